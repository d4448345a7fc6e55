// Server-sent events while somebody looks: closed when the tab is hidden, opened again when it is seen or was cut off.

export function follow(address, name, hear) {
  let events = null;
  let later = null;
  const open = () => {
    clearTimeout(later);
    if (document.hidden || events) return;
    events = new EventSource(address);
    events.addEventListener(name, (event) => hear(JSON.parse(event.data)));
    events.addEventListener("error", () => {
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
  addEventListener("pagehide", close);
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
