"""Renders bars and heat maps of a document: with block characters for a terminal, as SVG for a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from assay.show.formatting import clean, display_width, escape_html, pad, render_number, shorten
from assay.system.terminal import paint
from assay.values.document import Bars, HeatMap

_BAR = 36  # columns of the longest bar
_EIGHTHS = "▏▎▍▌▋▊▉█"
_HEAT_ROWS = 24
_WIDEST_CELL = 3
_SIGNS = (  # for each level: its character, its ASCII character, its colour
    ("·", ".", "dim"),
    ("░", "-", "green"),
    ("▒", "+", "yellow"),
    ("▓", "#", "red"),
    ("█", "@", "bold red"),
    ("X", "X", "bold magenta"),
)
_LAST = len(_SIGNS) - 1

_WIDTH, _LEFT, _TOP = 1000, 46, 4
_TALLEST = 560
_LARGEST_CELL = 26
_MOST_TITLES = 600  # most cells that have a title of their own
_LONGEST_BAR = 420
_LONGEST_LABEL = 36


def find_level(value: float, limits: Sequence[float]) -> int:
    return _LAST if value == math.inf else sum(value > limit for limit in limits)


def find_first(cell: int, cells: int, length: int) -> int:
    """Return the index of the first of `length` elements that are in this cell of `cells`."""
    return -(-cell * length // cells)


def render_bars(block: Bars, *, color: bool, plain: bool) -> Iterator[str]:
    most = max((count for _, count in block.items), default=0) or 1
    items = [(shorten(clean(label), _LONGEST_LABEL, "~" if plain else "…"), count) for label, count in block.items]
    label_width = max((display_width(label) for label, _ in items), default=0)
    for label, count in items:
        eighths = math.ceil(count / most * _BAR * 8)  # rounded up, so that any value above zero is visible
        part = _EIGHTHS[eighths % 8 - 1] if eighths % 8 else ""
        bar = "#" * -(-eighths // 8) if plain else "█" * (eighths // 8) + part
        shown = paint(bar, "cyan") if color and bar else bar
        yield f"{pad(label, label_width, 'right')} {shown}{' ' * (_BAR - len(bar))} {render_number(count, 3)}"


def render_heat_map(block: HeatMap, width: int, *, color: bool, plain: bool) -> Iterator[str]:
    label_width = len(str(max(0, block.lengths[0] - 1)))
    room = width - label_width - 1
    cells = shrink(block.cells, _HEAT_ROWS, max(8, room))
    wide = max(1, min(_WIDEST_CELL, room // len(cells[0])))
    levels = [[find_level(value, block.limits) for value in row] for row in cells]
    for row, found in enumerate(levels):
        cell = _edge(row, len(cells), len(block.cells))
        label = find_first(cell, len(block.cells), block.lengths[0])
        runs = ((level, sum(1 for _ in group)) for level, group in groupby(found))
        yield f"{label:>{label_width}} " + "".join(_sign(level, n * wide, color, plain) for level, n in runs)
    used = 0
    line = ""
    for level in sorted({level for row in levels for level in row}):
        key, size = f"{_sign(level, 1, color, plain)} {block.levels[level]}", len(block.levels[level]) + 2
        if line and used + 3 + size > width:
            yield line
            line, used = "", 0
        line, used = f"{line}   {key}" if line else key, used + (3 if line else 0) + size
    yield line


def shrink(cells: Sequence[Sequence[float]], rows: int, columns: int) -> list[list[float]]:
    """Shrink to at most `rows` and `columns`; a merged cell has the largest of its values."""
    narrow = [[max(part) for part in _split(row, columns)] for row in cells]
    return [[max(values) for values in zip(*group, strict=True)] for group in _split(narrow, rows)]


def _split(items: Sequence[Any], most: int) -> list[Sequence[Any]]:
    count = min(most, len(items))
    return [items[_edge(at, count, len(items)) : _edge(at + 1, count, len(items))] for at in range(count)]


def _edge(part: int, parts: int, total: int) -> int:
    return part * total // parts


def _sign(level: int, count: int, color: bool, plain: bool) -> str:
    sign, ascii_sign, style = _SIGNS[level]
    text = (ascii_sign if plain else sign) * count
    return paint(text, style) if color else text


def draw_bars(block: Bars) -> str:
    most = max((count for _, count in block.items), default=0) or 1
    labels = [shorten(clean(label), _LONGEST_LABEL) for label, _ in block.items]
    left = max([140, *(8 * display_width(label) for label in labels)])
    rows = []
    for row, (label, (_, count)) in enumerate(zip(labels, block.items, strict=True)):
        y = 22 * row
        length = max(1.5, _LONGEST_BAR * count / most) if count else 0.0
        rows.append(
            f'<text class="label" x="{left}" y="{y + 15}" text-anchor="end">{escape_html(label)}</text>'
            f'<rect class="bar" x="{left + 10}" y="{y + 3}" width="{length:.1f}" height="15" rx="2"/>'
            f'<text class="tick" x="{left + 18 + length:.1f}" y="{y + 15}">{render_number(count, 3)}</text>'
        )
    size = f'class="sized" width="{left + 560}" viewBox="0 0 {left + 560} {22 * len(rows)}"'
    return f'<svg {size} role="img" aria-label="{escape_html(block.label)}">{"".join(rows)}</svg>'


def draw_heat_map(block: HeatMap) -> str:
    rows, columns = len(block.cells), len(block.cells[0])
    width, height = min(_LARGEST_CELL, (_WIDTH - _LEFT) / columns), min(_LARGEST_CELL, _TALLEST / rows)
    levels = [[find_level(value, block.limits) for value in row] for row in block.cells]
    merges = sum(level >= 2 for row in levels for level in row) > _MOST_TITLES
    parts = []
    for row, found in enumerate(levels):
        for first, end in _list_runs(found, merges):
            title = f"<title>{_describe_cells(block, row, first, end)}</title>" if found[first] >= 2 else ""
            parts.append(
                f'<rect class="l{found[first]}" x="{_LEFT + first * width:.1f}" y="{_TOP + row * height:.1f}" '
                f'width="{(end - first) * width:.1f}" height="{height:.1f}">{title}</rect>'
            )
    step = max(1, -(-rows * 14 // round(max(1.0, rows * height))))  # a label needs 14 units of height
    parts += [
        f'<text class="tick" x="{_LEFT - 6}" y="{_TOP + row * height + height / 2 + 4:.1f}" text-anchor="end">'
        f"{find_first(row, rows, block.lengths[0])}</text>"
        for row in range(0, rows, step)
    ]
    right = _LEFT + columns * width
    size = f'class="sized" width="{right:.0f}" viewBox="0 0 {right:.1f} {_TOP + rows * height + 4:.1f}"'
    return f'<svg {size} role="img" aria-label="{escape_html(block.label)}">{"".join(parts)}</svg>'


def _list_runs(levels: Sequence[int], merges: bool) -> Iterator[tuple[int, int]]:
    """Yield ranges of adjacent cells of one level. Cells above the first limits are merged only if `merges`."""
    for _, group in groupby(range(len(levels)), lambda at: (levels[at], None if merges or levels[at] < 2 else at)):
        places = list(group)
        yield places[0], places[-1] + 1


def _describe_cells(block: HeatMap, row: int, first: int, end: int) -> str:
    ranges = [
        _render_range(row, row + 1, len(block.cells), block.lengths[0]),
        _render_range(first, end, len(block.cells[0]), block.lengths[1]),
    ]
    named = zip(block.axes, ranges[2 - len(block.axes) :], strict=True)
    value = max(block.cells[row][first:end])
    what = block.levels[_LAST] if value == math.inf else f"{value:.3g} {block.unit}".rstrip()
    return escape_html(f"{', '.join(f'axis {axis}: {text}' for axis, text in named)}: {what}")


def _render_range(first: int, end: int, cells: int, length: int) -> str:
    low, high = find_first(first, cells, length), find_first(end, cells, length) - 1
    return str(low) if high <= low else f"{low} to {high}"
