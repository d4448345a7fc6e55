// Curves of a study: the server sends what a screen can show, uPlot draws it. The legend is a list of ours: it scrolls,
// hides curves, leads to their runs, and tells the values under the cursor.
let uPlot = null; // loaded where there is something to draw
const charts = new Map(); // place → what is drawn there
const DASHES = [[], [7, 4], [2, 4], [8, 3, 2, 3]];
const COLORS = 12; // distinct ones first, then dashes
const WHOLE = [...Array(16).keys()].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power)); // ticks of steps
const TAIL = 16; // letters of a name that are not cut
const SETTLE = 150; // milliseconds that a zoom has to last before its points are asked for
const PAUSE = 2000; // between two requests for the same curves while a study runs

const read = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const fade = (color, share) => `color-mix(in srgb, ${color} ${share}%, transparent)`;
const WORDS = { NaN: "nan", Infinity: "inf", "-Infinity": "-inf" }; // JSON has no such numbers
// Five digits, and never fewer than a number has before its point: step 123456 is not 123460.
const round = (value, digits = 5) => Number(value.toPrecision(Math.min(17, Math.max(digits, Math.ceil(Math.log10(Math.abs(value) + 1))))));
const plain = (value) => (value == null ? "" : (WORDS[value] ?? round(value).toString()));

function make(name, text = "", attributes = {}) {
  const element = document.createElement(name);
  element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// uPlot wants one x for all. What a curve has no point at is undefined, and passed over; null is a gap.
function build(place, state) {
  const { answer, hidden } = state;
  const isSmall = place.classList.contains("small");
  const tables = [];
  const series = [{ label: answer.x }];
  const bands = [];
  const owner = [null]; // series → curve
  answer.curves.forEach((curve, index) => {
    const color = read(`--c${curve.color % COLORS}`);
    const show = !hidden.has(curve.name);
    const add = (xs, ys, look) => {
      tables.push([xs, ys]);
      series.push({ label: curve.name, show, points: { show: false }, ...look });
      owner.push(index);
    };
    if (curve.low) {
      add(curve.x_low, curve.low, { stroke: "transparent", width: 0 });
      add(curve.x_high, curve.high, { stroke: "transparent", width: 0 });
      bands.push({ series: [series.length - 1, series.length - 2], fill: fade(color, 18) });
    }
    if (curve.raw) add(curve.x_raw, curve.raw, { stroke: fade(color, 30), width: 1 });
    const dash = DASHES[Math.floor(curve.color / COLORS) % DASHES.length];
    add(curve.x, curve.y, { stroke: color, dash, width: isSmall ? 1.4 : 1.7, points: { show: curve.points === 1 }, main: true });
  });
  const isWhole = answer.curves.every((curve) => curve.x.every((x) => x === null || Number.isInteger(x)));
  const axis = { stroke: read("--soft"), font: "12px system-ui", labelFont: "12px system-ui", grid: { stroke: read("--grid"), width: 1 }, ticks: { show: false } };
  const options = {
    width: Math.max(200, state.canvas.clientWidth),
    height: isSmall ? 190 : 400,
    scales: { x: { time: false, distr: answer.log_x ? 3 : 1, ...(answer.x_range ? { auto: false, min: answer.x_range[0], max: answer.x_range[1] } : {}) }, y: { distr: answer.log ? 3 : 1, ...(state.isClipped && state.middle ? { range: state.middle } : {}) } },
    axes: [
      { ...axis, label: answer.x, labelSize: 18, labelGap: 0, size: 28, gap: 3, space: (_chart, _axis, _min, max) => Math.max(50, 9 * max.toLocaleString("en").length), ...(isWhole ? { incrs: WHOLE } : {}) },
      { ...axis, label: isSmall ? undefined : answer.y, size: 56, values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : plain(tick))) },
    ],
    legend: { show: false },
    cursor: { focus: { prox: state.told ? 80 : 24, dist: (chart, index, _, at, cursor) => (series[index].main ? at - cursor : Infinity) }, drag: { x: true, y: false }, bind: { dblclick: () => () => resetZoom(place) }, points: { size: 6 }, ...(place.dataset.sync ? { sync: { key: place.dataset.sync, setSeries: false } } : {}) },
    focus: { alpha: answer.curves.length > 1 ? 0.25 : 1 },
    series,
    bands,
    hooks: {
      setCursor: [(chart) => tellValues(state, chart)],
      setSeries: [
        (chart, index) => {
          state.nearest = index == null ? null : owner[index];
          highlight(state, state.nearest);
          tellNearest(state, chart);
        },
      ],
      setScale: [(chart, name) => name === "x" && showZoom(state, chart)],
    },
  };
  state.owner = owner;
  state.main = series.map((each, index) => (each.main ? index : null)).filter((index) => index !== null);
  const data = uPlot.join(tables, tables.map(() => [1]));
  state.full = answer.x_range ?? (state.detail ? state.full : [data[0][0], data[0][data[0].length - 1]]);
  state.chart = new uPlot(options, data, state.canvas);
  if (state.zoom) state.chart.setScale("x", { min: state.zoom[0], max: state.zoom[1] });
}

// Where 19 of 20 values are; null where nothing is far outside.
function findMiddle(answer) {
  const values = answer.curves.flatMap((curve) => curve.y.filter((y) => y !== null)).sort((a, b) => a - b);
  if (answer.log || values.length < 20) return null;
  const [low, high] = [0.025, 0.975].map((part) => values[Math.floor(part * (values.length - 1))]);
  const room = (high - low) * 0.1 || Math.abs(high) * 0.1 || 1;
  const isFar = values[0] < low - 10 * room || values[values.length - 1] > high + 10 * room;
  return isFar ? [low - room, high + room] : null;
}

function showZoom(state, chart) {
  const { min, max } = chart.scales.x;
  const isZoomed = min != null && (min > state.full[0] || max < state.full[1]);
  state.zoom = isZoomed ? [min, max] : null;
  state.reset.hidden = !isZoomed;
  if (state.hasAddress) history.replaceState(history.state, "", isZoomed ? `#zoom=${round(min, 12)},${round(max, 12)}` : location.pathname + location.search);
  showDetail(state);
}

// Charts that are zoomed together go back together.
function resetZoom(place) {
  for (const [other, { chart, full }] of charts)
    if (other === place || (place.dataset.sync && other.dataset.sync === place.dataset.sync)) chart.setScale("x", { min: full[0], max: full[1] });
}

// Of a long curve the server sends what a screen shows of the whole: of a part it has more.
function showDetail(state) {
  const find = () => state.zoom?.join(",") ?? "";
  const wanted = find();
  const whole = state.whole ?? state.answer;
  clearTimeout(state.waits);
  if (wanted === (state.detail ?? "") || !whole.curves.some((curve) => curve.points > curve.x.length)) return;
  state.waits = setTimeout(async () => {
    const [isGood, answer] = wanted ? await load(state.place, wanted) : [true, whole];
    if (isGood && charts.get(state.place) === state && find() === wanted) draw(state.place, { ...state, answer, whole, detail: wanted });
  }, SETTLE);
}

// A chart that is alone on its page has its zoom in the address.
function readZoom() {
  const numbers = location.hash.match(/^#zoom=([^,]+),([^,]+)$/)?.slice(1).map(Number);
  return numbers?.every(Number.isFinite) && numbers[0] < numbers[1] ? numbers : null;
}

// ---------------------------------------------------------------- the legend

function makeKey(curve) {
  const key = document.createElement("template");
  key.innerHTML = `<svg class="key-line" viewBox="0 0 22 10" aria-hidden="true"><path class="curve c${curve.color % COLORS} d${Math.floor(curve.color / COLORS) % DASHES.length}" d="M1 5H21"/></svg>`;
  return key.content.firstChild;
}

// A name is cut before its last letters. Where others end with the same it is not cut, so that all stay different.
function makeName(place, curve, curves) {
  const end = curve.name.slice(-TAIL);
  const isWhole = curves.some((other) => other.name !== curve.name && other.name.endsWith(end));
  const slug = place.dataset.studySlug;
  const href = curve.run && slug ? { href: `/studies/${encodeURIComponent(slug)}/runs/${encodeURIComponent(curve.run)}` } : null;
  const name = make(href ? "a" : "span", "", { class: isWhole ? "of whole" : "of", title: curve.name, ...href });
  name.append(...(isWhole ? [curve.name] : [make("span", curve.name.slice(0, -TAIL)), make("span", end)]));
  return name;
}

// Several charts have one legend below them: each run once, with what it is called where it is drawn first.
function buildSharedLegend(grid) {
  const holder = grid.parentElement.querySelector("[data-shared-legend]");
  if (!holder) return;
  const states = [...charts].filter(([place]) => grid.contains(place));
  const known = new Map();
  for (const [place, { answer }] of states)
    for (const curve of answer.curves) {
      const key = `${curve.run ?? curve.name} ${curve.color}`; // two of them where runs have to share colours
      if (!known.has(key)) known.set(key, [place, curve]);
    }
  const shown = JSON.stringify([...known.keys()]);
  if (holder.dataset.shown === shown) return;
  holder.dataset.shown = shown;
  const list = make("ul", "", { class: "curve-keys", "aria-label": "Curves of all these charts", tabindex: "0" });
  const isSame = (one, other) => (one.run ?? one.name) === (other.run ?? other.name);
  const focus = (curve) => {
    for (const [place, state] of charts)
      if (grid.contains(place)) {
        const index = curve ? state.answer.curves.findIndex((each) => isSame(each, curve)) : -1;
        state.chart.setSeries(index < 0 ? null : state.main[index], { focus: true });
      }
  };
  const shownCurves = [...known.values()].map(([, curve]) => curve);
  const isHidden = (curve) => [...charts].some(([place, state]) => grid.contains(place) && state.hidden.has(curve.name));
  for (const [place, curve] of [...known.values()].sort(([, one], [, other]) => one.name.localeCompare(other.name, "en", { numeric: true }))) {
    const item = make("li");
    const key = make("button", "", { type: "button", class: "swatch", "aria-pressed": String(!isHidden(curve)), "aria-label": `Show ${curve.name}` });
    key.append(makeKey(curve));
    key.addEventListener("click", () => {
      const isShown = key.getAttribute("aria-pressed") === "false";
      key.setAttribute("aria-pressed", String(isShown));
      for (const [other, state] of charts) {
        const index = grid.contains(other) ? state.answer.curves.findIndex((each) => isSame(each, curve)) : -1;
        if (index >= 0 && state.hidden.has(state.answer.curves[index].name) === isShown) toggle(state, index, key);
      }
    });
    item.append(key, makeName(place, curve, shownCurves));
    item.addEventListener("mouseenter", () => focus(curve));
    item.addEventListener("mouseleave", () => focus(null));
    list.append(item);
  }
  holder.hidden = known.size === 0;
  holder.replaceChildren(make("h2", "Curves"), list);
}

function buildLegend(place, state) {
  const { answer } = state;
  const list = make("ul", "", { class: "curve-keys", "aria-label": "Curves", tabindex: "0" });
  state.items = answer.curves.map((curve, index) => {
    const item = make("li");
    const key = make("button", "", { type: "button", class: "swatch", "aria-pressed": String(!state.hidden.has(curve.name)), "aria-label": `Show ${curve.name}` });
    key.append(makeKey(curve));
    key.addEventListener("click", () => toggle(state, index, key));
    const name = makeName(place, curve, answer.curves);
    const value = make("span", plain(curve.last), { class: typeof curve.last === "string" ? "at bad" : "at", title: "the last value, or the one under the cursor" });
    const points = make("span", `${curve.runs > 1 ? `${curve.runs} runs, ` : ""}${curve.points.toLocaleString("en")} points`, { class: "soft" });
    item.append(key, name, value, points);
    item.addEventListener("mouseenter", () => state.chart.setSeries(state.main[index], { focus: true }));
    item.addEventListener("mouseleave", () => state.chart.setSeries(null, { focus: true }));
    list.append(item);
    return item;
  });
  return list;
}

function toggle(state, index, key) {
  const name = state.answer.curves[index].name;
  const isShown = state.hidden.has(name);
  isShown ? state.hidden.delete(name) : state.hidden.add(name);
  key.setAttribute("aria-pressed", String(isShown));
  state.owner.forEach((owner, series) => owner === index && state.chart.setSeries(series, { show: isShown }));
}

function highlight(state, index) {
  state.items?.forEach((item, number) => item.classList.toggle("focused", number === index));
}

// The value of a curve at the cursor: of its nearest point before it.
function readAt(chart, series, at) {
  let place = at;
  while (place > 0 && chart.data[series][place] === undefined) place -= 1;
  return chart.data[series][place];
}

function tellValues(state, chart) {
  tellNearest(state, chart);
  if (!state.items) return;
  const at = chart.cursor.idx;
  state.main.forEach((series, index) => {
    const value = at == null ? state.answer.curves[index].last : readAt(chart, series, at);
    state.items[index].querySelector(".at").textContent = plain(value);
  });
}

// Below one of several charts: the curve next to the cursor, and its value there.
function tellNearest(state, chart) {
  if (!state.told) return;
  const at = chart.cursor.idx;
  const curve = state.answer.curves[state.nearest];
  if (at == null || !curve || chart.cursor.left < 0) return state.told.replaceChildren();
  const value = `${plain(readAt(chart, state.main[state.nearest], at))} at ${state.answer.x} ${plain(chart.data[0][at])}`;
  state.told.replaceChildren(makeKey(curve), makeName(state.place, curve, []), make("b", value));
}

function buildValues(answer) {
  const details = make("details", "", { class: "values" });
  const table = make("table");
  const better = answer.direction === "max" ? "highest" : "lowest";
  const head = make("tr");
  for (const [text, side] of [["curve", ""], ["last", "num"], [better, "num"], ["points", "num"]]) head.append(make("th", text, { scope: "col", class: side }));
  table.createTHead().append(head);
  const body = table.createTBody();
  for (const curve of answer.curves) {
    const row = make("tr");
    row.append(make("th", curve.name, { scope: "row" }));
    for (const value of [plain(curve.last), plain(curve.best), curve.points.toLocaleString("en")]) row.append(make("td", value, { class: "num" }));
    body.append(row);
  }
  const holder = make("div", "", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Values of ${answer.metric}` });
  holder.append(table);
  details.append(make("summary", "Values"), holder);
  return details;
}

// ---------------------------------------------------------------- asking and drawing

async function load(place, zoom = "") {
  const address = new URL(place.dataset.curves, location.origin);
  if (zoom) address.searchParams.set("zoom", zoom);
  const answer = await fetch(address);
  return [answer.ok, await answer.json()];
}

async function show(place) {
  place.dataset.asked = "1";
  const [library, [isGood, value]] = await Promise.all([import("/vendor/uPlot.esm.js"), load(place)]);
  uPlot = library.default;
  if (!isGood) {
    place.replaceChildren(make("p", [value.error, value.hint].filter(Boolean).join(": "), { class: "answer" }));
    place.dataset.drawn = "1";
    return;
  }
  const hasAddress = document.querySelectorAll("[data-curves]").length === 1;
  draw(place, { answer: value, hidden: new Set(), zoom: hasAddress ? readZoom() : null, hasAddress });
}

function draw(place, state) {
  const { answer } = state;
  const isSmall = place.classList.contains("small");
  const isBrief = place.closest(".grid") !== null; // one of several: its name is above it, its legend where it is large
  const isOpen = place.querySelector("details.values")?.open;
  const scroll = place.querySelector(".curve-keys")?.scrollTop;
  charts.get(place)?.chart.destroy();
  state.canvas = make("div", "", { class: "canvas" });
  state.reset = make("button", "Reset zoom", { type: "button", class: "reset" });
  state.reset.hidden = true;
  state.reset.addEventListener("click", () => resetZoom(place));
  const total = answer.curves.reduce((sum, curve) => sum + curve.points, 0);
  const number = answer.curves.length;
  const notes = [`${number} ${number === 1 ? "curve" : "curves"} of ${total.toLocaleString("en")} points`, ...answer.notes];
  if (answer.curves.some((curve) => curve.low)) notes.push("bands: mean ± standard deviation");
  if (answer.curves.some((curve) => curve.raw)) notes.push("faint: before smoothing");
  state.middle = isBrief ? null : findMiddle(answer);
  const clip = make("button", "Clip outliers", { type: "button", "aria-pressed": String(Boolean(state.isClipped)) });
  clip.addEventListener("click", () => {
    draw(place, { ...state, isClipped: !state.isClipped });
    place.querySelector(".chart-tools [aria-pressed]")?.focus();
  });
  const tools = make("div", "", { class: "chart-tools" });
  tools.append(...(state.middle ? [clip] : []), state.reset);
  state.told = isBrief ? make("p", "", { class: "told" }) : null;
  place.replaceChildren(tools, state.canvas);
  state.place = place;
  charts.set(place, state);
  build(place, state);
  state.canvas.setAttribute("role", "img");
  state.canvas.setAttribute("aria-label", `${answer.metric} over ${answer.x}, ${notes[0]}`);
  if (isSmall && !isBrief) place.prepend(make("p", answer.y, { class: "name" }));
  if (isBrief) place.append(state.told);
  else place.append(buildLegend(place, state));
  if (!isSmall) place.append(make("p", "Drag over the chart to zoom.", { class: "soft hint" }));
  place.append(make("p", notes.join(" · "), { class: "soft" }), buildValues(answer));
  if (isOpen) place.querySelector("details.values").open = true;
  if (isBrief) buildSharedLegend(place.closest(".grid"));
  place.dataset.drawn = "1";
  if (scroll) place.querySelector(".curve-keys").scrollTop = scroll;
}

function showAll(within) {
  for (const place of charts.keys()) {
    if (place.isConnected) continue;
    charts.get(place).chart.destroy();
    charts.delete(place);
  }
  for (const place of within.querySelectorAll("[data-curves]:not([data-asked])")) show(place);
}

function drawAgain() {
  for (const [place, state] of charts) draw(place, state);
}

let last = 0;
let due = null;
async function loadAgain() {
  due = null;
  last = Date.now();
  for (const place of [...charts.keys()]) {
    const box = place.getBoundingClientRect();
    if (!place.isConnected || box.bottom < 0 || box.top > innerHeight) continue;
    const [isGood, value] = await load(place);
    if (isGood && place.isConnected) draw(place, { ...charts.get(place), answer: value, whole: null, detail: "" });
  }
}

document.addEventListener("assay:changed", () => {
  due ??= setTimeout(loadAgain, Math.max(0, last + PAUSE - Date.now()));
});
document.addEventListener("htmx:afterSettle", (event) => showAll(event.detail.target));
document.addEventListener("assay:theme", drawAgain);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAgain);
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return; // a phone's address bar
  width = innerWidth;
  clearTimeout(drawAgain.wait);
  drawAgain.wait = setTimeout(drawAgain, 150);
});
showAll(document);
