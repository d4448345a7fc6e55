// The log of a run: its end first, parts of it by offset, lines that hold some words, and what is added as it comes.

import { follow as listen, limit } from "/static/live.js";

const PAUSE = 1000;
const PART = 65536;
const MOST_SHOWN = 4 * 1024 * 1024; // characters; a log that is followed for days does not fill the memory

const count = (number) => number.toLocaleString("en");

// what a terminal would have made of it: colours are left out, and of a line that was written over its last state stays
function clean(text) {
  return text
    .replace(/\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]/g, "")
    .replace(/\r+\n/g, "\n")
    .replace(/[^\n]*\r(?=[^\n])/g, "")
    .replace(/[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]/g, "\u00b7");
}

function setUp(place) {
  const output = place.querySelector("pre");
  const form = place.querySelector("form");
  const where = place.querySelector("[data-place]");
  const steps = place.querySelector("[data-steps]");
  const total = place.querySelector("[data-count]");
  const onward = place.querySelector("[data-on]");
  const save = place.querySelector("[data-save]");
  const follow = place.querySelector("[name=follow]");
  let shown = { start: 0, end: 0, size: 0 };
  let found = null; // of the last search
  let current = -1;
  let failures = 0;

  async function ask(values) {
    const query = new URLSearchParams({ file: form.elements.file.value, ...values });
    let answer;
    try {
      answer = await fetch(`${place.dataset.log}?${query}`);
    } catch {
      where.textContent = "The server does not answer";
      return null;
    }
    const value = await answer.json().catch(() => ({ error: answer.statusText }));
    if (!answer.ok) {
      where.textContent = [value.error, value.hint].filter(Boolean).join(": ");
      return null;
    }
    return value;
  }

  function describe() {
    const part = shown.start === 0 && shown.end === shown.size ? "" : `bytes ${count(shown.start)} to ${count(shown.end)} of `;
    where.textContent = `${part}${count(shown.size)} bytes`;
  }

  function mark(words) {
    const text = output.textContent;
    const at = text.toLowerCase().indexOf(words.toLowerCase());
    if (at < 0) return;
    const line = document.createElement("mark");
    line.textContent = text.slice(at, at + words.length);
    output.replaceChildren(text.slice(0, at), line, text.slice(at + words.length));
  }

  async function show(values) {
    const part = await ask(values);
    if (!part) return;
    shown = part;
    output.textContent = clean(part.text) || (part.size ? "" : "(empty)");
    describe();
    output.scrollTop = values.from === undefined ? output.scrollHeight : 0;
  }

  async function add() {
    const isOver = !document.querySelector("[data-live-run]");
    const before = shown.end;
    if (follow?.checked && shown.name !== undefined) {
      const part = await ask({ from: shown.end });
      failures = part ? 0 : failures + 1;
      if (part && part.size < shown.end) await show({}); // it was begun again
      else if (part && part.end > shown.end && part.start === shown.end) {
        const atEnd = output.scrollTop + output.clientHeight >= output.scrollHeight - 8;
        if (shown.size === 0) output.replaceChildren();
        if (output.textContent.length > MOST_SHOWN) output.textContent = output.textContent.slice(-MOST_SHOWN / 2);
        output.append(clean(part.text));
        shown = { ...part, start: shown.start };
        describe();
        if (atEnd) output.scrollTop = output.scrollHeight;
      }
    }
    if (!isOver || shown.end > before) setTimeout(add, PAUSE * Math.min(30, 2 ** failures));
  }

  async function go(index) {
    current = (index + found.matches.length) % found.matches.length;
    if (follow) follow.checked = false;
    await show({ from: found.matches[current].offset });
    mark(found.words);
    say();
  }

  function say() {
    const number = found.matches.length;
    const part = found.is_whole ? "" : ` in the first ${count(found.searched)} of ${count(found.size)} bytes`;
    total.textContent = number ? `${current + 1} of ${count(number)} lines${part}` : `nothing found${part}`;
    onward.hidden = found.is_whole;
    for (const button of steps.querySelectorAll("[data-step]")) button.disabled = !number;
    steps.hidden = false;
  }

  async function find(words, before = null) {
    total.textContent = "searching …";
    steps.hidden = false;
    const answer = await ask(before ? { find: words, from: before.searched } : { find: words });
    if (!answer) return;
    const matches = before ? [...before.matches, ...answer.matches] : answer.matches;
    found = { ...answer, matches, words };
    const first = before ? before.matches.length : 0;
    if (matches.length > first) await go(first);
    else say();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const words = form.elements.find.value.trim();
    if (!words) {
      steps.hidden = true;
      found = null;
    } else if (found?.words === words && found.matches.length) go(current + 1);
    else find(words);
  });
  form.elements.file.addEventListener("change", () => choose(form.elements.file.value));
  for (const button of place.querySelectorAll("[data-step]"))
    button.addEventListener("click", () => found?.matches.length && go(current + Number(button.dataset.step)));
  onward.addEventListener("click", () => found && find(found.words, found));

  function choose(name) {
    form.elements.file.value = name;
    save.href = place.dataset.files + name.split("/").map(encodeURIComponent).join("/");
    found = null;
    steps.hidden = true;
    show({});
  }

  const parts = {
    first: () => ({ from: 0 }),
    earlier: () => ({ from: Math.max(0, shown.start - PART) }),
    later: () => ({ from: shown.end }),
    last: () => ({}),
  };
  for (const button of place.querySelectorAll("[data-part]"))
    button.addEventListener("click", () => {
      if (follow) follow.checked = button.dataset.part === "last";
      show(parts[button.dataset.part]());
    });
  for (const button of document.querySelectorAll("[data-show]"))
    button.addEventListener("click", () => {
      choose(button.dataset.show);
      place.scrollIntoView({ block: "start" });
      output.focus({ preventScroll: true });
    });
  show({}).then(() => place.dataset.live && setTimeout(add, PAUSE));
}

for (const place of document.querySelectorAll("[data-log]")) setUp(place);

for (const button of document.querySelectorAll("[data-copy]"))
  button.addEventListener("click", async () => {
    const before = button.textContent;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it and press Ctrl-C";
    }
    setTimeout(() => (button.textContent = before), 2000);
  });

// The log of another command or attempt has appeared: it is shown to who follows.
function addFiles(page) {
  const [files, fresh] = [document, page].map((each) => each.querySelector("[data-log] select"));
  if (!files || !fresh) return;
  const known = new Set([...files.options].map((each) => each.value));
  const added = [...fresh.options].filter((each) => !known.has(each.value));
  files.append(...added.map((each) => new Option(each.value)));
  const isNew = added.some((each) => each.value === fresh.value);
  if (isNew && document.querySelector("[name=follow]")?.checked) {
    files.value = fresh.value;
    files.dispatchEvent(new Event("change"));
  }
}

// A run that goes on: its state, its numbers and its curves are asked for again when its study has changed.
const live = document.querySelector("[data-live-run]");
if (live) {
  const refresh = limit(2000, async () => {
    if (!document.querySelector("[data-live-run]")) return; // it is over
    const answer = await fetch(location.href);
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-refresh]")) {
      const fresh = page.getElementById(part.id);
      if (fresh) part.replaceWith(document.adoptNode(fresh));
    }
    addFiles(page);
    document.dispatchEvent(new CustomEvent("assay:changed"));
  });
  setInterval(() => document.hidden || refresh(), 10_000); // how long it has been running
  listen(`/events?${new URLSearchParams({ study: live.dataset.liveRun })}`, "study", refresh);
}
