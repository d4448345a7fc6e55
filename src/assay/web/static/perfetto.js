// Hands a trace to Perfetto's own page, as that page asks for it: we send PING until it answers PONG, then the bytes.

import { say } from "./page.js";

const PERFETTO = "https://ui.perfetto.dev";
const PAUSE_MS = 100;
const LONGEST_MS = 60000;

function wait(view) {
  return new Promise((resolve, reject) => {
    const timer = setInterval(() => view.postMessage("PING", PERFETTO), PAUSE_MS);
    const end = setTimeout(() => {
      stop();
      reject(new Error("Perfetto's page did not answer"));
    }, LONGEST_MS);
    const listen = (event) => {
      if (event.origin !== PERFETTO || event.data !== "PONG") return;
      stop();
      resolve();
    };
    const stop = () => {
      clearInterval(timer);
      clearTimeout(end);
      window.removeEventListener("message", listen);
    };
    window.addEventListener("message", listen);
  });
}

document.addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-perfetto]");
  if (!link) return;
  event.preventDefault();
  const view = window.open(PERFETTO);
  if (!view) {
    say("The browser did not open a new window", "problem");
    return;
  }
  try {
    const answer = await fetch(link.dataset.perfetto);
    if (!answer.ok) throw new Error(`The file cannot be read: ${answer.status}`);
    const buffer = await answer.arrayBuffer();
    await wait(view);
    view.postMessage({ perfetto: { buffer, title: link.dataset.title, keepApiOpen: false } }, PERFETTO);
  } catch (error) {
    say(error.message, "problem");
  }
});
