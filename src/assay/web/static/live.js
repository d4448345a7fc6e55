// Server-sent events while somebody looks: closed when the tab is hidden, opened again when it is seen or was cut off.

const GRACE = 4000; // a browser connects again within 3 seconds by itself

// What a page that is not renewed any more says, in place of "live".
function tellLost(since) {
  const text = since ? `No connection since ${since.toLocaleTimeString("en-GB")}; trying again. What is shown may be out of date.` : "";
  const place = document.getElementById("connection");
  if (place.textContent !== text) place.textContent = text;
  document.documentElement.toggleAttribute("data-lost", Boolean(since));
}

export function follow(address, name, hear) {
  let events = null;
  let later = null;
  let lost = null; // when it was
  let telling = null;
  const recover = () => {
    clearTimeout(telling);
    [lost, telling] = [null, null];
    tellLost(null);
  };
  const open = () => {
    clearTimeout(later);
    if (document.hidden || events) return;
    events = new EventSource(address);
    events.addEventListener("open", recover);
    events.addEventListener(name, (event) => hear(JSON.parse(event.data)));
    events.addEventListener("error", () => {
      lost ??= new Date();
      telling ??= setTimeout(() => tellLost(lost), GRACE);
      if (events?.readyState !== EventSource.CLOSED) return; // the browser connects again by itself
      close();
      later = setTimeout(open, 5000);
    });
  };
  const close = () => {
    events?.close();
    events = null;
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", () => {
    close();
    clearTimeout(telling); // leaving is not a loss
  });
  open();
}

// `work` soon, but not again within `pause` milliseconds.
export function limit(pause, work) {
  let due = null;
  let last = 0;
  return () => {
    if (due) return;
    due = setTimeout(() => {
      due = null;
      last = Date.now();
      work();
    }, Math.max(0, last + pause - Date.now()));
  };
}

export async function loadPart(address) {
  const answer = await fetch(address, { headers: { "HX-Request": "true" } });
  if (!answer.ok) return null;
  const holder = document.createElement("template");
  holder.innerHTML = await answer.text();
  return holder.content;
}
