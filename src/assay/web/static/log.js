// The log of a run: its end first, parts of it by offset, lines that hold some words, and what is added as it comes.

const PAUSE = 1000;

function setUp(place) {
  const output = place.querySelector("pre");
  const where = place.querySelector("[data-place]");
  const matches = place.querySelector("[data-matches]");
  let shown = { start: 0, end: 0, size: 0 };

  async function ask(values) {
    const answer = await fetch(`${place.dataset.log}?${new URLSearchParams(values)}`);
    const value = await answer.json();
    if (!answer.ok) {
      where.textContent = [value.error, value.hint].filter(Boolean).join(": ");
      return null;
    }
    return value;
  }

  function describe() {
    where.textContent = `${shown.name}: bytes ${shown.start.toLocaleString("en")} to ${shown.end.toLocaleString("en")} of ${shown.size.toLocaleString("en")}`;
  }

  async function show(values) {
    const part = await ask(values);
    if (!part) return;
    shown = part;
    output.textContent = part.text;
    describe();
    if (values.from === undefined) output.scrollTop = output.scrollHeight;
  }

  async function add() {
    if (shown.end >= shown.size || shown.name) {
      const part = await ask({ from: shown.end });
      if (part && part.end > shown.end) {
        const atEnd = output.scrollTop + output.clientHeight >= output.scrollHeight - 8;
        output.append(part.text);
        shown = { ...part, start: shown.start };
        describe();
        if (atEnd) output.scrollTop = output.scrollHeight;
      }
    }
    setTimeout(add, PAUSE);
  }

  async function find(words) {
    const found = await ask({ find: words });
    if (!found) return;
    matches.hidden = false;
    matches.replaceChildren();
    for (const match of found.matches) {
      const line = document.createElement("li");
      const link = document.createElement("button");
      link.type = "button";
      link.className = "plain";
      link.textContent = match.line || "(an empty line)";
      link.addEventListener("click", () => show({ from: match.offset }));
      line.append(link);
      matches.append(line);
    }
    const end = found.is_whole ? "" : `; searched ${found.searched.toLocaleString("en")} of ${found.size.toLocaleString("en")} bytes`;
    where.textContent = `${found.matches.length} lines hold “${words}”${end}`;
  }

  place.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    const words = event.target.elements.find.value.trim();
    if (words) find(words);
    else matches.hidden = true;
  });
  const parts = {
    first: () => ({ from: 0 }),
    earlier: () => ({ from: Math.max(0, shown.start - 65536) }),
    later: () => ({ from: shown.end }),
    last: () => ({}),
  };
  for (const button of place.querySelectorAll("[data-part]"))
    button.addEventListener("click", () => show(parts[button.dataset.part]()));
  show({}).then(() => place.dataset.live && setTimeout(add, PAUSE));
}

for (const place of document.querySelectorAll("[data-log]")) setUp(place);
