// The history of a benchmark: judging a change. While the command runs its buttons wait; then the page's part is shown anew.
import { getToken, markScrollers, say } from "/static/page.js";

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.dataset.triage) return;
  event.preventDefault();
  const button = event.submitter ?? form.querySelector("button");
  const body = new URLSearchParams(new FormData(form, button));
  const change = form.closest("section");
  const buttons = form.querySelectorAll("button");
  const tell = (text) => (form.querySelector("[role=status]").textContent = text);
  change.focus(); // a button that waits cannot keep it
  for (const each of buttons) each.disabled = true;
  tell(`${button.textContent}: the command runs …`);
  let problem = "";
  try {
    const answer = await fetch(form.dataset.triage, { method: "POST", headers: { authorization: `Bearer ${getToken()}` }, body });
    const value = await answer.json().catch(() => ({ error: answer.statusText }));
    if (!answer.ok) problem = value.error ? [value.error, value.hint].filter(Boolean).join(": ") : value.said;
  } catch {
    problem = "The server does not answer";
  }
  if (problem) {
    for (const each of buttons) each.disabled = false;
    button.focus();
    tell("Nothing was changed.");
    say(problem, "problem");
    return;
  }
  await showAgain(change.id, `${button.textContent}: done.`);
});

async function showAgain(id, text) {
  const answer = await fetch(location.href);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("history");
  if (!answer.ok || !fresh) return location.reload();
  document.getElementById("history").replaceWith(fresh);
  markScrollers();
  // a change that is declared invalid is gone: its executions do not count any more
  const place = document.getElementById(id) ?? document.getElementById("changes") ?? fresh;
  place.focus();
  const told = place.querySelector("[role=status]") ?? place.nextElementSibling ?? document.getElementById("said");
  told.textContent = `${text} The verdict is ${fresh.querySelector("h1 .badge").textContent}.`;
}
