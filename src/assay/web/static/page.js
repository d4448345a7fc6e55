// What every page does: the theme, the token, messages, and times that go on.

const root = document.documentElement;

export function getToken() {
  return sessionStorage.getItem("assay-token") ?? "";
}

export function say(text, kind = "note", { stays = false } = {}) {
  const line = document.createElement("p");
  line.className = kind;
  line.textContent = text;
  document.getElementById("messages").append(line);
  if (!stays) return setTimeout(() => line.remove(), 8000);
  const close = document.createElement("button");
  Object.assign(close, { type: "button", className: "close", textContent: "Close" });
  close.addEventListener("click", () => line.remove());
  line.prepend(close);
}

// An action: the token travels in a header that no other site can make a browser send.
export async function send(address, body = undefined) {
  const headers = { authorization: `Bearer ${getToken()}` };
  if (body !== undefined) headers["content-type"] = "application/json";
  const answer = await fetch(address, { method: "POST", headers, body: body === undefined ? undefined : JSON.stringify(body) });
  if (answer.status === 401 && getToken()) forgetToken();
  return answer;
}

// A server that was started again has another token.
function forgetToken() {
  sessionStorage.removeItem("assay-token");
  sessionStorage.setItem("assay-wrong-token", "1");
  showAccess();
}

function showAccess() {
  const link = document.getElementById("access");
  const isAllowed = getToken() && !sessionStorage.getItem("assay-only-reads");
  const isWrong = !getToken() && sessionStorage.getItem("assay-wrong-token");
  root.dataset.access = isAllowed ? "write" : "read";
  link.classList.toggle("wrong", Boolean(isWrong));
  if (isWrong) link.textContent = "The token is not valid any more";
  else link.textContent = isAllowed ? "Actions are allowed" : getToken() ? "Actions need another token" : "Actions need a token";
}

function setUpTheme() {
  const choice = document.getElementById("theme");
  choice.value = root.dataset.theme;
  choice.addEventListener("change", () => {
    root.dataset.theme = choice.value;
    localStorage.setItem("assay-theme", choice.value);
    document.dispatchEvent(new CustomEvent("assay:theme"));
  });
}

async function logIn(token) {
  sessionStorage.setItem("assay-token", token);
  const answer = await send("/login");
  if (answer.ok) sessionStorage.removeItem("assay-wrong-token");
  else sessionStorage.removeItem("assay-token");
  const { scopes } = answer.ok ? await answer.clone().json() : { scopes: [] };
  sessionStorage.setItem("assay-only-reads", scopes.includes("write") ? "" : "1");
  return answer;
}

function setUpToken() {
  const link = document.getElementById("access");
  link.addEventListener("click", () => {
    if (location.pathname !== "/login") link.search = `?next=${encodeURIComponent(location.pathname + location.search)}`;
  });
  const form = document.getElementById("login");
  showAccess();
  // the address that `assay serve` prints ends with #token=…, which is never sent to a server
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    history.replaceState(null, "", location.pathname + location.search);
    logIn(given).then((answer) => {
      showAccess();
      if (!answer.ok) say("The token of this address is not valid any more. `assay serve` prints a new one each time it is started.", "problem", { stays: true });
      else if (form) location.assign(next());
    });
  }
  form?.addEventListener("submit", async (event) => {
    event.preventDefault();
    const answer = await logIn(form.elements.token.value.trim());
    showAccess();
    if (answer.ok) location.assign(next());
    else document.getElementById("login-answer").textContent = await answer.text();
  });
}

function next() {
  const wanted = new URLSearchParams(location.search).get("next") ?? "/";
  const target = new URL(wanted, location.origin); // "//name" and "/\\name" lead elsewhere
  return target.origin === location.origin ? target.pathname + target.search : "/";
}

// A question of the page itself; whether it was answered with yes.
export function ask(text, names, yes) {
  const dialog = document.getElementById("confirm");
  dialog.querySelector("#confirm-text").textContent = text;
  dialog.querySelector("[data-names]").textContent = names;
  dialog.querySelector("[data-yes]").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

const QUESTIONS = {
  stop: ["Stop this run?", "Stop"],
  rerun: ["Run this run again? It gets a new attempt; what the previous one wrote stays in its folder. If it has failed, it gets the current code.", "Run again"],
};

// A form of actions: the button that was pressed says which; what the command printed becomes a message.
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.dataset.actions) return;
  event.preventDefault();
  const runs = [form.dataset.run];
  const action = event.submitter?.value;
  const question = QUESTIONS[action];
  if (question && !(await ask(question[0], form.dataset.run, question[1]))) return;
  form.classList.add("busy");
  const answer = await send(form.dataset.actions, { action, runs, text: form.elements.text?.value ?? "" });
  form.classList.remove("busy");
  const value = await answer.json().catch(() => ({ error: answer.statusText }));
  say(value.error ? [value.error, value.hint].filter(Boolean).join(": ") : `${value.command}\n${value.said}`, answer.ok ? "note" : "problem");
  if (answer.ok) setTimeout(() => location.reload(), 1500);
});

document.addEventListener("htmx:configRequest", (event) => {
  if (event.detail.verb !== "get") event.detail.headers.authorization = `Bearer ${getToken()}`;
});
document.addEventListener("htmx:responseError", async (event) => {
  say(event.detail.xhr.responseText.slice(0, 500), "problem");
});
document.addEventListener("htmx:sendError", () => say("The server does not answer", "problem"));

// What a part of the page shows now, for those who do not see it: "37 runs, sorted by loss", or the view that was chosen.
document.addEventListener("htmx:afterSettle", (event) => {
  const place = event.detail.target;
  const told = place.querySelector("[role=alert], caption") ?? place.querySelector(".tabs [aria-current]");
  if (told) document.getElementById("said").textContent = told.textContent.trim();
});

// A choice acts at once; its form has a button for what is typed, and for browsers without scripts.
document.addEventListener("change", (event) => {
  if (event.target.matches("form[data-now] :is(select, input[type=checkbox])")) event.target.form.requestSubmit();
});

// What scrolls sideways can be scrolled with the keyboard, too.
export function markScrollers() {
  for (const place of document.querySelectorAll(".scroll, figure.wide, pre, code.block, .card:has(> svg.sized)")) {
    const goesOn = place.scrollWidth > place.clientWidth || place.scrollHeight > place.clientHeight + 1;
    place.toggleAttribute("data-goes-on", goesOn);
    if (goesOn) place.tabIndex = 0;
    else if (!place.hasAttribute("aria-label")) place.removeAttribute("tabindex");
  }
}
addEventListener("load", markScrollers);
addEventListener("resize", markScrollers);
document.addEventListener("htmx:afterSettle", markScrollers);
document.addEventListener("toggle", markScrollers, true);

setUpTheme();
setUpToken();
