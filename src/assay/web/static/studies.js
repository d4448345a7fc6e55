// The cards of studies: each is asked for again when an event says that its study changed.
import { follow, limit, loadPart } from "/static/live.js";

const place = document.getElementById("part");
let seen = null;
const changed = new Set();

async function updateCard(slug, card) {
  const path = `/studies/${encodeURIComponent(slug)}`;
  const [fresh, best] = await Promise.all([loadPart(`${path}/card`), loadPart(`${path}/best`)]);
  if (!fresh) return;
  const focused = card.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const line = fresh.querySelector(".best");
  if (best) line.replaceChildren(...best.childNodes);
  line.removeAttribute("hx-get");
  card.replaceChildren(...fresh.childNodes);
  if (focused) card.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
}

const update = limit(1000, async () => {
  const cards = new Map([...place.querySelectorAll("[data-study]")].map((card) => [card.dataset.study, card]));
  const some = [...changed];
  changed.clear();
  if (some.some((slug) => !cards.has(slug)) && !new URLSearchParams(location.search).get("q")) {
    const fresh = await loadPart(location.pathname + location.search); // a study has begun
    if (fresh) place.replaceChildren(...fresh.childNodes);
    return htmx.process(place);
  }
  await Promise.all(some.filter((slug) => cards.has(slug)).map((slug) => updateCard(slug, cards.get(slug))));
});

follow("/events", "studies", ({ studies }) => {
  if (seen) for (const [slug, state] of Object.entries(studies)) if (JSON.stringify(seen[slug]) !== JSON.stringify(state)) changed.add(slug);
  seen = studies;
  document.getElementById("total").textContent = Object.keys(studies).length || "";
  if (changed.size) update();
});
