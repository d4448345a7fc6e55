"""Two tensors beside each other as one HTML page: no script, nothing from elsewhere; the heat map is SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from assay.models.report.tensor_diff import (
    build_worst,
    describe_axes,
    describe_levels,
    describe_outcome,
    find_first,
    find_level,
    list_bars,
    list_numbers,
)
from assay.models.values.tensors import Heat, Histogram, TensorDiff
from assay.show.formatting import escape_html as _text
from assay.show.style import STYLE
from assay.values.table import Table
from assay.values.verdict import Verdict

_WIDTH, _LEFT, _TOP = 1000, 46, 4
_TALLEST = 560  # of the heat map
_LARGEST_CELL = 26
_MOST_TITLES = 600  # cells that answer the mouse one by one
_BAR_ROOM = 420

_OWN_STYLE = """
:root { --l0: #e9eae6; --l1: #9fd3ae; --l2: #f2c14e; --l3: #e5783a; --l4: #c22f26; --l5: #8b3fc7; --bar: #2f6db3; }
@media (prefers-color-scheme: dark) { :root {
  --l0: #2a2f36; --l1: #2c6b45; --l2: #a97d16; --l3: #c65f25; --l4: #ef5a4e; --l5: #b98bff; --bar: #74aef0; } }
svg .l0 { fill: var(--l0); } svg .l1 { fill: var(--l1); } svg .l2 { fill: var(--l2); } svg .l3 { fill: var(--l3); }
svg .l4 { fill: var(--l4); } svg .l5 { fill: var(--l5); } svg .bar { fill: var(--bar); }
svg .label { fill: var(--ink); font-size: 13px; } ul.said li { margin: 3px 0; }
"""


def render_diff_html(diffs: Sequence[TensorDiff], verdict: Verdict) -> str:
    body = "\n".join(part for diff in diffs for part in _render_diff(diff))
    named = {diff.comparison.name for diff in diffs}
    loose = [f"{each.subject}: {each.message}" for each in verdict.findings if each.subject not in named]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{verdict.kind} tensor comparison</title>\n<style>{STYLE}{_OWN_STYLE}</style>\n</head>\n"
        "<body>\n<main>\n"
        f"<h1>Tensor comparison {_badge(verdict)}</h1>\n<p class=soft>{_text(describe_outcome(diffs, verdict))}</p>\n"
        f"{_render_said(loose)}{body}\n<footer>made by Assay</footer>\n</main>\n</body>\n</html>\n"
    )


def _badge(verdict: Verdict) -> str:
    return f'<span class="badge {verdict.kind}">{verdict.kind}</span>'


def _render_said(lines: Sequence[str]) -> str:
    return "<ul class=said>" + "".join(f"<li>{_text(line)}</li>" for line in lines) + "</ul>\n" if lines else ""


def _render_diff(diff: TensorDiff) -> Iterator[str]:
    found = diff.comparison
    yield f"<section>\n<h2>{_text(found.name)} {_badge(found.verdict)}</h2>"
    yield f"<p class=soft>expected <code>{_text(diff.expected)}</code><br>actual <code>{_text(diff.actual)}</code></p>"
    if diff.part:
        yield f"<p class=soft>{_text(diff.part)}; indices count inside it</p>"
    yield _render_said([*(finding.message for finding in found.verdict.findings), *found.flags])
    yield from _render_facts(list_numbers(found))
    if found.worst:
        yield from _render_table("Worst elements", build_worst(found))
    if diff.histogram is not None:
        yield f"<h3>Absolute errors</h3>\n<div class=card>{_draw_histogram(diff.histogram)}</div>"
    if diff.heat is not None:
        yield f"<h3>Where: {_text(describe_axes(diff.heat, found.shape[0]))}</h3>"
        yield f"<div class=card>{_draw_heat(diff.heat)}{_render_legend()}</div>"
    yield "</section>"


def _render_facts(facts: Sequence[tuple[str, str]]) -> Iterator[str]:
    rows = "".join(f"<tr><td class=key>{_text(label)}</td><td>{_text(value)}</td></tr>" for label, value in facts)
    yield f'<div class="card scroll"><table><tbody>{rows}</tbody></table></div>'


def _render_table(title: str, table: Table) -> Iterator[str]:
    sides = [" class=num" if column.side == "right" else "" for column in table.columns]
    head = "".join(f"<th{side}>{_text(column.name)}</th>" for side, column in zip(sides, table.columns, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td{side}>{_text(cell)}</td>" for side, cell in zip(sides, row, strict=True)) + "</tr>"
        for row in table.rows
    )
    yield f"<h3>{title}</h3>"
    yield f'<div class="card scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


# ---------------------------------------------------------------- drawings


def _draw_histogram(histogram: Histogram) -> str:
    bars = list_bars(histogram)
    most = max(count for _, count in bars) or 1
    rows = []
    for place, (label, count) in enumerate(bars):
        y = 22 * place
        length = max(1.5, _BAR_ROOM * count / most) if count else 0.0
        rows.append(
            f'<text class="label" x="140" y="{y + 15}" text-anchor="end">{_text(label)}</text>'
            f'<rect class="bar" x="150" y="{y + 3}" width="{length:.1f}" height="15" rx="2"/>'
            f'<text class="tick" x="{158 + length:.1f}" y="{y + 15}">{count}</text>'
        )
    height = 22 * len(bars)
    shape = f'viewBox="0 0 700 {height}" style="max-width:700px" role="img" aria-label="histogram of absolute errors"'
    return f"<svg {shape}>{''.join(rows)}</svg>"


def _draw_heat(heat: Heat) -> str:
    rows, columns = len(heat.cells), len(heat.cells[0])
    width = min(_LARGEST_CELL, (_WIDTH - _LEFT) / columns)
    height = min(_LARGEST_CELL, _TALLEST / rows)
    wrong = sum(find_level(excess) >= 2 for row in heat.cells for excess in row)
    parts = [part for row in range(rows) for part in _draw_row(heat, row, (width, height), merges=wrong > _MOST_TITLES)]
    step = max(1, -(-rows * 14 // round(max(1.0, rows * height))))  # a label takes 14 units
    labels = [
        f'<text class="tick" x="{_LEFT - 6}" y="{_TOP + row * height + height / 2 + 4:.1f}" text-anchor="end">'
        f"{find_first(row, rows, heat.lengths[0])}</text>"
        for row in range(0, rows, step)
    ]
    size = f"0 0 {_LEFT + columns * width:.1f} {_TOP + rows * height + 4:.1f}"
    style = f"max-width:{_LEFT + columns * width:.0f}px"
    head = f'<svg viewBox="{size}" style="{style}" role="img" aria-label="heat map of errors">'
    return f"{head}{''.join(parts + labels)}</svg>"


def _draw_row(heat: Heat, row: int, size: tuple[float, float], *, merges: bool) -> Iterator[str]:
    """Neighbours of one level are one rectangle; what is wrong stands by itself where there is not too much of it."""
    levels = [find_level(excess) for excess in heat.cells[row]]
    width, height = size
    place = 0
    while place < len(levels):
        end = place + 1
        while end < len(levels) and levels[end] == levels[place] and (merges or levels[place] < 2):
            end += 1
        title = f"<title>{_describe_cells(heat, row, place, end)}</title>" if levels[place] >= 2 else ""
        yield (
            f'<rect class="l{levels[place]}" x="{_LEFT + place * width:.1f}" y="{_TOP + row * height:.1f}" '
            f'width="{(end - place) * width:.1f}" height="{height:.1f}">{title}</rect>'
        )
        place = end


def _describe_cells(heat: Heat, row: int, first: int, end: int) -> str:
    spans = [
        _span(row, row + 1, len(heat.cells), heat.lengths[0]),
        _span(first, end, len(heat.cells[0]), heat.lengths[1]),
    ]
    where = ", ".join(f"axis {axis}: {span}" for axis, span in zip(heat.axes, spans[2 - len(heat.axes) :], strict=True))
    excess = max(heat.cells[row][first:end])
    return _text(f"{where}: " + (describe_levels()[5] if excess == math.inf else f"{excess:.3g} times the tolerance"))


def _span(first: int, end: int, cells: int, length: int) -> str:
    low, high = find_first(first, cells, length), find_first(end, cells, length) - 1
    return str(low) if high <= low else f"{low} to {high}"


def _render_legend() -> str:
    keys = "".join(
        f'<span><i style="background:var(--l{level})"></i>{text}</span>' for level, text in enumerate(describe_levels())
    )
    return f"<p class=legend>{keys}</p>"
