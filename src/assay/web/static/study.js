// The page of a study: marks, the choice of columns, actions, and what changes while it runs.
import { follow, limit, loadPart } from "/static/live.js";
import { ask, say, send } from "/static/page.js";

const study = document.querySelector("[data-study]").dataset.study;
const bulk = document.querySelector("[data-bulk]");
const part = document.getElementById("part");
const MOST_AT_ONCE = 100; // runs that the server takes in one action

// ---------------------------------------------------------------- marks: kept for this tab, over pages and sorting

const marksKey = `assay-marks:${study}`;
const marks = new Set(JSON.parse(sessionStorage.getItem(marksKey) ?? "[]"));

function showMarks() {
  const boxes = [...part.querySelectorAll("input[name=run]")];
  for (const box of boxes) {
    box.checked = marks.has(box.value);
    box.closest("tr").classList.toggle("marked", box.checked);
  }
  const all = part.querySelector("[data-mark-all]");
  if (all) {
    const count = boxes.filter((box) => box.checked).length;
    all.checked = count > 0 && count === boxes.length;
    all.indeterminate = count > 0 && count < boxes.length;
  }
  bulk.hidden = marks.size === 0 || !part.querySelector("#runs");
  bulk.querySelector("[data-marked]").textContent = `${marks.size} marked`;
  bulk.querySelector("[data-stop]").hidden = !canStop(boxes);
  bulk.querySelector("[data-compare] button").disabled = marks.size < 2;
  document.getElementById("compare-needs").hidden = marks.size >= 2;
  sessionStorage.setItem(marksKey, JSON.stringify([...marks]));
}

// Something that was marked may run: on this page that can be seen, of other pages the head tells it.
function canStop(boxes) {
  if (!document.querySelector("#head [data-unfinished]")?.dataset.unfinished) return false;
  const seen = boxes.filter((box) => box.checked);
  return seen.length < marks.size || seen.some((box) => box.closest("tr").querySelector(".badge.running, .badge.queued"));
}

part.addEventListener("change", (event) => {
  const box = event.target;
  if (box.matches("input[name=run]")) box.checked ? marks.add(box.value) : marks.delete(box.value);
  else if (box.matches("[data-mark-all]")) {
    for (const each of part.querySelectorAll("input[name=run]")) box.checked ? marks.add(each.value) : marks.delete(each.value);
  } else return;
  showMarks();
  offerBar(box);
});

// From the box that was marked last, one Tab leads to what can be done with the marked runs, past the rows below it.
const toBar = Object.assign(document.createElement("a"), { href: "#bulk", className: "to-bar", textContent: "To the actions of the marked runs" });
toBar.addEventListener("click", (event) => {
  event.preventDefault();
  [...bulk.querySelectorAll("button, input")].find((each) => !each.disabled && each.getClientRects().length)?.focus();
});

function offerBar(box) {
  if (marks.size) box.after(toBar);
  else toBar.remove();
}

const more = bulk.querySelector(".more"); // on a phone
more.addEventListener("click", () => more.setAttribute("aria-expanded", String(bulk.classList.toggle("open"))));

bulk.querySelector("[data-clear]").addEventListener("click", () => {
  marks.clear();
  showMarks();
  part.querySelector("input[name=run]")?.focus();
});
bulk.querySelector("[data-compare]").addEventListener("submit", (event) => {
  event.preventDefault();
  const query = new URLSearchParams([...marks].map((run) => ["run", run]));
  location.assign(`${event.target.dataset.compare}?${query}`);
});

// ---------------------------------------------------------------- actions

async function act(action, runs, text = "") {
  const parts = runs.length ? [] : [[]];
  for (let start = 0; start < runs.length; start += MOST_AT_ONCE) parts.push(runs.slice(start, start + MOST_AT_ONCE));
  bulk.classList.add("busy");
  for (const some of parts) {
    const answer = await send(bulk.dataset.bulk, { action, runs: some, text });
    const value = await answer.json().catch(() => ({ error: answer.statusText }));
    const told = value.error ? [value.error, value.hint].filter(Boolean).join(": ") : `${value.command}\n${value.said}`;
    say(told.replaceAll(`${bulk.dataset.root}/`, ""), answer.ok ? "note" : "problem");
    if (!answer.ok) break;
  }
  bulk.classList.remove("busy");
  refresh();
}

const AGAIN = "No new run is made: each gets a new attempt, whose values replace those in the table. Earlier attempts and their logs stay on its page. What has failed gets the current code, everything else its recorded code.";
const count = (n) => `${n} ${n === 1 ? "run" : "runs"}`;
const few = (names) => names.slice(0, 5).join(", ") + (names.length > 5 ? ` and ${names.length - 5} more` : "");

bulk.querySelector("[data-act]").addEventListener("submit", async (event) => {
  event.preventDefault();
  const action = event.submitter.value;
  const field = event.target.elements.text;
  const runs = [...marks];
  if (action === "stop" && !(await ask(`Stop ${count(runs.length)}?`, few(runs), "Stop"))) return;
  if (action === "rerun" && !(await ask(`Run ${count(runs.length)} again?`, `${few(runs)}\n\n${AGAIN}`, "Run again"))) return;
  if (["tag", "untag", "note"].includes(action) && !field.value.trim()) return field.focus();
  await act(action, runs, field.value);
  field.value = "";
});
document.getElementById("head").addEventListener("click", async (event) => {
  const running = event.target.closest("[data-stop-all]")?.dataset.stopAll;
  if (running && (await ask(`Stop all ${count(Number(running))} of ${study} that run or wait?`, "", "Stop all"))) act("stop", []);
});

// ---------------------------------------------------------------- columns: what somebody chose is applied wherever the address says nothing

const columnsKey = `assay-columns:${study}`;

function applyColumns() {
  const address = new URL(location.href);
  const stored = JSON.parse(localStorage.getItem(columnsKey) ?? "null");
  const tab = address.searchParams.get("tab") ?? "table";
  if (!stored || tab !== "table" || address.searchParams.has("show") || address.searchParams.has("hide")) return;
  for (const name of ["show", "hide"]) if (stored[name]) address.searchParams.set(name, stored[name]);
  history.replaceState(history.state, "", address);
  htmx.ajax("GET", address.pathname + address.search, { target: "#part", swap: "innerHTML show:none" });
}

part.addEventListener("submit", (event) => {
  if (event.target.matches("[data-columns]") && event.submitter?.value === "usual") localStorage.removeItem(columnsKey);
}, true);
part.addEventListener("input", (event) => {
  if (!event.target.matches("[data-find-column]")) return;
  const wanted = event.target.value.trim().toLowerCase();
  for (const label of part.querySelectorAll("[data-columns] label.check")) label.hidden = !label.textContent.toLowerCase().includes(wanted);
});

// htmx would look at each of thousands of cells, which have nothing that it acts on: rows are put in beside it.
let rows = "";
part.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.target !== part || !event.detail.shouldSwap) return;
  part.querySelector("#runs tbody")?.replaceChildren();
  const whole = event.detail.serverResponse;
  const table = whole.indexOf('id="runs"');
  if (table < 0) return;
  const start = whole.indexOf("<tbody>", table) + "<tbody>".length;
  const end = whole.indexOf("</tbody>", start);
  rows = whole.slice(start, end);
  event.detail.serverResponse = whole.slice(0, start) + whole.slice(end);
});
part.addEventListener("htmx:afterSwap", () => {
  if (rows) part.querySelector("#runs tbody").innerHTML = rows;
  rows = "";
});

let choosing = false;
document.addEventListener("htmx:beforeRequest", (event) => (choosing = event.detail.elt.matches?.("[data-columns]") ?? false));
document.addEventListener("htmx:afterSettle", (event) => {
  if (!part.contains(event.detail.target)) return;
  const where = document.getElementById("where"); // the form stays while what it asked for is replaced
  if (document.getElementById("where-problem")) {
    where.setAttribute("aria-invalid", "true");
    where.setAttribute("aria-describedby", "where-problem");
  } else where.removeAttribute("aria-invalid");
  if (choosing) {
    const query = new URLSearchParams(location.search);
    const [show, hide] = [query.get("show"), query.get("hide")];
    if (show || hide) localStorage.setItem(columnsKey, JSON.stringify({ show, hide }));
    choosing = false;
  } else applyColumns();
  showMarks();
});

// ---------------------------------------------------------------- charts of points: a click opens the run

part.addEventListener("click", (event) => {
  const title = event.target.closest("#drawn svg :is(circle, path)")?.querySelector("title")?.textContent;
  if (title) location.assign(`/studies/${encodeURIComponent(study)}/find?${new URLSearchParams({ name: title.split("\n")[0] })}`);
});

// ---------------------------------------------------------------- live

// The rows that stay are the same elements: a box keeps its mark and the focus, the table its place.
function updateRows(old, fresh, isSame) {
  const known = new Map([...old.querySelectorAll("tr[data-run]")].map((row) => [row.dataset.run, row]));
  const focused = document.activeElement;
  let before = old.firstElementChild;
  for (const row of [...fresh.children]) {
    const same = known.get(row.dataset.run);
    if (!same) {
      old.insertBefore(row, before);
      row.classList.add("new");
      continue;
    }
    known.delete(row.dataset.run);
    const cells = [...row.cells].slice(1); // the first has the box
    if (isSame) {
      cells.forEach((cell, index) => {
        if (same.cells[index + 1].innerHTML !== cell.innerHTML) same.cells[index + 1].innerHTML = cell.innerHTML;
      });
    } else same.replaceChildren(same.cells[0], ...cells);
    if (same === before) before = before.nextElementSibling;
    else old.insertBefore(same, before);
  }
  for (const row of known.values()) row.remove();
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
}

function updateTable(fresh) {
  const [old, now] = [part, fresh].map((within) => within.querySelector("#runs table"));
  if (!old || !now) return;
  const isSame = old.tHead.textContent === now.tHead.textContent;
  if (!isSame) {
    old.tHead.replaceWith(now.tHead);
    htmx.process(old.tHead);
  }
  if (old.querySelector("tr[data-run]") && now.querySelector("tr[data-run]")) updateRows(old.tBodies[0], now.tBodies[0], isSame);
  else old.tBodies[0].replaceWith(now.tBodies[0]);
  showMarks();
}

async function update() {
  const head = await loadPart(`${location.pathname}/head`);
  if (!head) return;
  document.getElementById("head").replaceChildren(...head.childNodes);
  showLive();
  showMarks();
  document.dispatchEvent(new CustomEvent("assay:changed"));
  const fresh = await loadPart(location.pathname + location.search);
  if (!fresh) return;
  for (const place of part.querySelectorAll("[data-patch]")) {
    const now = fresh.getElementById(place.id);
    if (now && now.innerHTML !== place.innerHTML && !place.contains(document.activeElement)) place.innerHTML = now.innerHTML;
  }
  updateTable(fresh);
  const [drawn, again] = [part, fresh].map((within) => within.querySelector("#drawn"));
  if (drawn && again) drawn.replaceChildren(...again.childNodes);
}

const refresh = limit(1000, update);

function showLive() {
  document.querySelector("[data-live]").hidden = !document.querySelector("#head [data-running]")?.dataset.running;
}

let seen = null;
follow(`/events?${new URLSearchParams({ study })}`, "study", (value) => {
  const now = JSON.stringify([value.started, value.version, value.counts]);
  if (seen !== null && seen !== now) refresh();
  seen = now;
});
showLive();
showMarks();
applyColumns();
