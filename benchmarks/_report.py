"""What the scripts measured, rendered: `benchmarks/README.md` and the chart of the README, from `benchmarks/results/`.

`python benchmarks/_report.py` writes them; a test compares.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHART = HERE.parent / "docs" / "pictures" / "proof.svg"

HEAD = """# Measured

Each script of this folder runs Assay and its peers in turns, or counts errors; `make bench` runs all of them, the
cheapest first. What a script measured is in `results/`, and `python benchmarks/_report.py` writes this page from there.
`assay / Hydra` is Assay's time divided by Hydra's. A missed target is marked.
"""
# What the chart shows: the script, the figure, what a reader sees. Ratios of which less is better are turned over.
BARS = (
    ("launch", "assay / mlrunner, all in", "start a job: mlrunner"),
    ("launch", "assay / submitit local, all in", "start a job: submitit, local"),
    ("launch", "assay / Hydra basic, all in", "start a job: Hydra"),
    ("metric_logging", "assay.log / tensorboardX", "log a point: tensorboardX"),
    ("metric_logging", "assay.log / MLflow log_batch, its faster store", "log a point: MLflow"),
    ("summary", "runx sumx / assay sum, indexed, wall", "table of runs: runx"),
    ("summary", "MLflow search_runs / assay sum, in-process", "table of runs: MLflow"),
)
WIDTH, ROW, LEFT, RIGHT = 640, 26, 210, 70


def load_results() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((HERE / "results").glob("*.json"))}


def build_page(results: dict[str, dict[str, Any]]) -> str:
    parts = (build_contents(results), build_missed(results), *map(build_part, results.values()))
    return HEAD + "".join(line for part in parts for line in part)


def build_contents(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield "\n| script | what it measures |\n|---|---|\n"
    yield from (f"| [{name}](#{name}) | {' '.join(load_purpose(name).split())} |\n" for name in results)


def build_missed(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield "\n## Missed targets\n\n| script | | figure | target |\n|---|---|---|---|\n"
    for name, result in results.items():
        for figure in result["figures"]:
            if not figure.get("is_met", True):
                row = (f"[{name}](#{name})", figure["what"].strip(), render_number(figure["value"]))
                yield f"| {' | '.join(row)} | {render_target(figure).removesuffix(' **missed**')} |\n"


def build_part(result: dict[str, Any]) -> Iterator[str]:
    machine, words = result["machine"], " ".join(["python", f"benchmarks/{result['script']}.py", *result["arguments"]])
    yield f"\n## {result['script']}\n\n{load_purpose(result['script'])}\n\n"
    yield f"`{words}` at {result['commit']}, {result['date']}: {machine['cores']} cores ({machine['processor']}), "
    gpu = f", {machine['gpu']}" if "gpu" in machine else ""
    peers = ", ".join(peer.replace("==", " ") for peer in find_peers(result))
    yield f"Python {machine['python']}{gpu}, load {machine['load']}{peers and '; ' + peers}.\n\n"
    yield "| | figure | spread | target |\n|---|---|---|---|\n"
    for figure in result["figures"]:
        if "hits" in figure:
            low, high = figure["interval"]
            yield f"| {figure['what']} | {figure['hits']} of {figure['tried']:,} | 95%: {low:.1%} to {high:.1%} | |\n"
            continue
        if "tried" in figure:
            yield f"| {figure['what']} | {figure['problems']} failed of {figure['tried']:,} | "
            yield f"95%: at most {figure['at_most_rate']:.2%} | |\n"
            continue
        spread = " to ".join(map(render_number, figure.get("spread", ())))
        yield f"| {figure['what']} | {render_number(figure['value'])} | {spread} | {render_target(figure)} |\n"


def find_peers(result: dict[str, Any]) -> list[str]:
    """Those that a figure names: `hydra-core==1.3.8` where one is `assay / Hydra basic`."""
    text = " ".join(figure["what"] for figure in result["figures"])
    names = {peer: re.split("[-=]", peer)[0] for peer in result["peers"]}
    return [peer for peer, name in names.items() if re.search(rf"(?<!assay )\b{name}\b", text, re.IGNORECASE)]


def render_number(value: float) -> str:
    digits = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return digits if abs(value) >= 0.1 or not value else f"{value:.2g}"


def load_purpose(script: str) -> str:
    """The first paragraph of the script's docstring: what its figures are about."""
    path = HERE / f"{script}.py"
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) if path.exists() else None
    return (text or "").partition("\n\n")[0]


def render_target(figure: dict[str, Any]) -> str:
    if "is_met" not in figure:
        return ""
    target = f"≤ {figure['at_most']:,}" if "at_most" in figure else f"≥ {figure['at_least']:,}"
    return target if figure["is_met"] else f"{target} **missed**"


def build_chart(results: dict[str, dict[str, Any]]) -> str:
    """Bars on a logarithmic scale: how many times as long the peer takes. Readable on a light and on a dark page."""
    rows = [row for row in (find_row(results, *bar) for bar in BARS) if row is not None]
    longest = max((value for _, value in rows), default=1.0)
    height = ROW * len(rows) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        "<style>text { fill: #24292f; font: 13px sans-serif }",
        "@media (prefers-color-scheme: dark) { text { fill: #d7dde5 } }</style>",
        '<text x="0" y="16"><tspan font-weight="bold">Time of others; Assay takes 1</tspan> (logarithmic)</text>',
    ]
    for number, (name, value) in enumerate(rows):
        y = 28 + ROW * number
        width = max(2.0, (WIDTH - LEFT - RIGHT) * _log(value) / _log(longest)) if value > 1 else 2.0
        parts.append(f'<text x="0" y="{y + 15}">{name}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y + 3}" width="{width:.0f}" height="16" rx="2" fill="#009485"/>')
        parts.append(f'<text x="{LEFT + width + 6:.0f}" y="{y + 15}">{value:.3g}&#215;</text>')
    return "\n".join([*parts, "</svg>\n"])


def _log(value: float) -> float:
    return math.log10(max(value, 1.0)) + 0.1


def find_row(results: dict[str, dict[str, Any]], script: str, what: str, name: str) -> tuple[str, float] | None:
    for figure in results.get(script, {"figures": ()})["figures"]:
        if figure["what"] == what:
            return name, 1 / figure["value"] if what.startswith("assay /") else figure["value"]
    return None


def main() -> None:
    results = load_results()
    (HERE / "README.md").write_text(build_page(results), "utf-8")
    CHART.write_text(build_chart(results), "utf-8")


if __name__ == "__main__":
    main()
