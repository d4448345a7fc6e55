// Curves of a study: the server sends what a screen can show, uPlot draws it.
import uPlot from "/vendor/uPlot.esm.js";

const charts = new WeakMap();

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// uPlot wants one x for all: the curves' own points are put on the union, and gaps between a curve's points are spanned.
function join(curves) {
  const tables = curves.map((curve) => [curve.x, curve.y]);
  return uPlot.join(tables, tables.map(() => [2]));
}

function build(place, answer) {
  const data = join(answer.curves);
  const axis = { stroke: color("--soft"), grid: { stroke: color("--grid"), width: 1 }, ticks: { stroke: color("--rule"), width: 1 } };
  const series = answer.curves.map((curve) => ({
    label: curve.name,
    stroke: color(`--c${curve.color % 8}`),
    dash: [[], [7, 4], [2, 4], [8, 3, 2, 3]][Math.floor(curve.color / 8) % 4],
    width: 1.6,
    spanGaps: true,
    points: { show: curve.points === 1 },
    value: (_, value) => (value == null ? "" : Number(value.toPrecision(6)).toString()),
  }));
  const chart = new uPlot(
    {
      width: Math.max(280, place.clientWidth - 32),
      height: place.classList.contains("small") ? 220 : 380,
      scales: { x: { time: false, distr: answer.log_x ? 3 : 1, ...(answer.x_range ? { auto: false, min: answer.x_range[0], max: answer.x_range[1] } : {}) }, y: { distr: answer.log ? 3 : 1 } },
      axes: [
        { ...axis, label: answer.x },
        { ...axis, label: answer.y, size: 64 },
      ],
      legend: { live: true },
      cursor: { focus: { prox: 24 }, ...(place.dataset.sync ? { sync: { key: place.dataset.sync, setSeries: false } } : {}) },
      focus: { alpha: 0.25 },
      series: [{ label: answer.x }, ...series],
    },
    data,
    place,
  );
  charts.set(place, { chart, answer });
}

async function show(place) {
  const answer = await fetch(place.dataset.curves);
  const value = await answer.json();
  place.replaceChildren();
  if (!answer.ok) {
    const line = document.createElement("p");
    line.className = "answer";
    line.textContent = [value.error, value.hint].filter(Boolean).join(": ");
    place.append(line);
    return;
  }
  build(place, value);
  const notes = document.createElement("p");
  notes.className = "soft";
  const total = value.curves.reduce((sum, curve) => sum + curve.points, 0);
  notes.textContent = [`${value.curves.length} curves of ${total.toLocaleString("en")} points`, ...value.notes].join("; ");
  place.append(notes);
  place.dataset.drawn = "1";
}

function showAll(within) {
  for (const place of within.querySelectorAll("[data-curves]:not([data-drawn])")) show(place);
}

function drawAgain() {
  for (const place of document.querySelectorAll("[data-drawn]")) {
    const { chart, answer } = charts.get(place);
    const notes = place.lastElementChild;
    chart.destroy();
    place.replaceChildren();
    build(place, answer);
    place.append(notes);
  }
}

document.addEventListener("htmx:afterSettle", (event) => showAll(event.detail.target));
document.addEventListener("assay:theme", drawAgain);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAgain);
addEventListener("resize", () => {
  clearTimeout(drawAgain.wait);
  drawAgain.wait = setTimeout(drawAgain, 150);
});
showAll(document);
