"""Draws a chart on a terminal, in braille dots or in ASCII."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from assay.show import formatting
from assay.show.chart import (
    Line,
    LineChart,
    build_log_ticks,
    build_shown,
    build_ticks,
    number_lines,
    render_end_value,
    render_log_ticks,
    render_ticks,
    thin_line,
)
from assay.system import terminal

_HUES = ("blue", "red", "green", "magenta", "cyan", "yellow")
PALETTE = (*_HUES, *(f"bright_{hue}" for hue in _HUES))
_MARKS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"  # each line has its own mark
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # the bits of braille dots, by column and row
_SMALLEST = 20, 6  # columns and rows below which a plot shows nothing
_MOST_ENDS = 1 / 6  # fraction of the width for marks next to the ends of lines


@dataclass(frozen=True, slots=True)
class _Area:
    """Converts values to positions in the drawing: a grid of cells, each of which is a grid of dots."""

    columns: int
    rows: int
    x_range: tuple[float, float]  # the range of transformed values, as y_range
    y_range: tuple[float, float]
    transforms: tuple[Callable[[float], float], Callable[[float], float]]  # the transforms of x and of y
    dots: tuple[int, int]

    def dot(self, x: float, y: float) -> tuple[int, int]:
        return self.across(x), self.down(y)

    def across(self, x: float) -> int:
        return round(_share(self.transforms[0](x), self.x_range) * (self.columns * self.dots[0] - 1))

    def down(self, y: float) -> int:
        return round((1 - _share(self.transforms[1](y), self.y_range)) * (self.rows * self.dots[1] - 1))


def _share(value: float, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return (value - low) / (high - low) if high > low else 0.5


def render_plot(
    chart: LineChart, *, width: int = 80, height: int = 20, color: bool = False, plain: bool = False
) -> str:
    """Render the chart in braille dots, or with one letter per line if only ASCII is possible (`plain`)."""
    shown = build_shown(chart)
    left_out = len(shown.lines) - len(_MARKS)
    shown = replace(shown, lines=shown.lines[: len(_MARKS)])
    wide, high = max(width, _SMALLEST[0]), max(height, _SMALLEST[1])
    rows = max(high - 2 - bool(chart.title) - bool(chart.x_name), 3)
    area = _build_area(shown, wide, rows, plain)
    ticks = _build_y_ticks(shown, area)
    margin = max(map(len, ticks.values()))
    area = replace(area, columns=max(wide - margin - 4, 8))
    looks = [line.look for line in shown.lines]  # the only series drawn as dots or crosses has their sign
    own = {"dots": "o" if plain else "•", "crosses": "x" if plain else "×"}  # noqa: RUF001
    signs = [own[look] if look in own and looks.count(look) == 1 else _MARKS[i] for i, look in enumerate(looks)]
    hues = [PALETTE[number % len(PALETTE)] for number, _ in number_lines(shown.lines)] if color else ()
    ends = _find_ends(shown, area) if len(shown.lines) > 1 and not plain else {}
    most = max(1, int(wide * _MOST_ENDS))
    area = replace(area, columns=max(wide - margin - 3 - min(most, max(map(len, ends.values()), default=1)), 8))
    cells = _draw(shown, area, plain)
    if len(shown.lines) > 1 and not plain:
        _put_marks(cells, shown, area, ends)
    axis_lines = (
        f"{row}{_render_ends(ends.get(number, ()), most, hues)}".rstrip()
        for number, row in enumerate(_render_rows(cells, area, ticks, margin, signs, hues=hues, plain=plain))
    )
    foot = _render_x_axis(shown, area, margin, plain)
    title = [formatting.shorten(formatting.clean(chart.title), wide)] if chart.title else []
    name = [" " * (margin + 2) + formatting.clean(chart.x_name).center(area.columns).rstrip()] if chart.x_name else []
    legend = _render_legend(shown, wide, signs, hues=hues, plain=plain)
    more = [f"and {formatting.render_count(left_out, 'more line')}, not drawn"] if left_out > 0 else []
    return "\n".join((*title, *axis_lines, *foot, *name, *legend, *more)) + "\n"


def _build_area(chart: LineChart, width: int, rows: int, plain: bool) -> _Area:
    to_x, to_y = (math.log10 if scale == "log" else float for scale in (chart.x_scale, chart.scale))
    points = [(x, y) for line in chart.lines for x, y in zip(line.xs, line.ys, strict=True) if y == y]  # noqa: PLR0124
    xs, ys = [to_x(x) for x, _ in points], [to_y(y) for _, y in points]
    room = 0.5 if chart.scale == "log" else abs(ys[0]) * 0.1 or 1.0
    x_range = (-0.5, len(chart.x_ticks) - 0.5) if chart.x_ticks else (min(xs), max(xs))
    y_range = min(ys), max(ys)
    if y_range[0] == y_range[1]:  # a constant is drawn in the middle
        y_range = y_range[0] - room, y_range[1] + room
    return _Area(width, rows, x_range, y_range, (to_x, to_y), (1, 1) if plain else (2, 4))


def _build_y_ticks(chart: LineChart, area: _Area) -> dict[int, str]:
    wanted = max(3, area.rows * 2 // 5)
    low, high = area.y_range
    log = chart.scale == "log"
    values = build_log_ticks(10**low, 10**high, wanted) if log else build_ticks(low, high, wanted)
    placed: dict[int, str] = {}
    for value, text in zip(values, render_ticks(values), strict=True):
        row = area.down(value) // area.dots[1]
        placed.setdefault(min(max(row, 0), area.rows - 1), text)
    return placed


@dataclass(slots=True)
class _Cell:
    """A character of the drawing: its dots, the line drawn last in it, and the line whose mark covers the dots."""

    dots: int = 0
    line: int = 0
    is_shared: bool = False
    mark: int | None = None


Cells = dict[tuple[int, int], _Cell]  # (column, row) → cell


def _draw(chart: LineChart, area: _Area, plain: bool) -> Cells:
    cells: Cells = {}
    order = sorted(enumerate(chart.lines), key=lambda pair: pair[1].look != "line")  # points cover lines
    for number, line in order:
        for x, y in _trace(line, area):
            cell = cells.setdefault((x // area.dots[0], y // area.dots[1]), _Cell(line=number))
            cell.dots |= 1 if plain else _DOTS[x % 2][y % 4]
            cell.is_shared |= cell.line != number
            cell.line = number
            if line.look != "line":
                cell.mark = number
    return cells


def _trace(line: Line, area: _Area) -> Iterator[tuple[int, int]]:
    """Yield the dots of a line; a gap in the values is a gap in the line."""
    before: tuple[int, int] | None = None
    most = 4 * area.columns * area.dots[0]  # more points would not change the drawing
    xs, ys = thin_line(line.xs, line.ys, most) if line.look == "line" else (line.xs, line.ys)
    for x, y in zip(xs, ys, strict=True):
        if y != y:  # noqa: PLR0124
            before = None
            continue
        dot = area.dot(x, y)
        if dot == before:
            continue
        yield from _connect(before, dot) if before and line.look == "line" else (dot,)
        before = dot


def _connect(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    count = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
    for part in range(1, count + 1):
        share = part / count
        yield round(start[0] + (end[0] - start[0]) * share), round(start[1] + (end[1] - start[1]) * share)
    yield start


def _render_rows(
    cells: Cells,
    area: _Area,
    ticks: dict[int, str],
    margin: int,
    signs: Sequence[str],
    *,
    hues: Sequence[str],
    plain: bool,
) -> Iterator[str]:
    tick, bar = ("+", "|") if plain else ("┤", "│")
    for row in range(area.rows):
        body = ""
        for column in range(area.columns):
            cell = cells.get((column, row))
            if cell is None:
                body += " "
                continue
            owner = cell.line if cell.mark is None else cell.mark
            sign = signs[owner] if plain or cell.mark is not None else chr(0x2800 + cell.dots)
            body += _paint_mark(sign, owner, hues)
        yield f"{ticks.get(row, '').rjust(margin)} {tick if row in ticks else bar}{body} "


def _find_ends(chart: LineChart, area: _Area) -> dict[int, list[int]]:
    """Return row → the lines that end in this row at the right edge, from top to bottom."""
    found: dict[int, list[tuple[int, int]]] = {}
    for number, line in enumerate(chart.lines):
        column, row, dot = _find_end(line, area)
        if column == area.columns - 1 and line.look == "line":
            found.setdefault(row, []).append((dot, number))
    return {row: [number for _, number in sorted(each)] for row, each in found.items()}


def _find_end(line: Line, area: _Area) -> tuple[int, int, int]:
    """Return column, row and dot of a line's last point; -1 for each if the line has no point."""
    pairs = zip(reversed(line.xs), reversed(line.ys), strict=True)
    end = next(((x, y) for x, y in pairs if math.isfinite(y)), None)
    if end is None:
        return -1, -1, -1
    x, y = area.dot(*end)
    return x // area.dots[0], y // area.dots[1], y


def _put_marks(cells: Cells, chart: LineChart, area: _Area, ends: Mapping[int, Sequence[int]]) -> None:
    """Put a mark on each line, since its colour alone is not enough, and at an end before the right edge."""
    at_edge = {number for each in ends.values() for number in each}
    own: dict[int, list[tuple[int, int]]] = {}  # cells through which only one line goes
    for index, cell in cells.items():
        if not cell.is_shared and cell.mark is None:
            own.setdefault(cell.line, []).append(index)
    for number, line in enumerate(chart.lines):
        if line.look != "line":
            continue
        wanted = area.columns * (number + 1) / (len(chart.lines) + 1)
        if nearest := min(own.get(number, ()), key=lambda index: abs(index[0] - wanted), default=None):
            cells[nearest].mark = number
        if number not in at_edge:
            _put_end(cells, area, number, _find_end(line, area))


def _put_end(cells: Cells, area: _Area, number: int, end: tuple[int, int, int]) -> None:
    """Put a mark next to the end of a line if a cell there is free; else the line has only its other mark."""
    column, row, _ = end
    if column < 0:
        return
    behind = [(each, near) for near in (row, row - 1, row + 1) for each in range(column + 1, column + 3)]
    inside = (place for place in behind if place[0] < area.columns and 0 <= place[1] < area.rows)
    if place := next((place for place in inside if place not in cells), None):
        cells[place] = _Cell(line=number, mark=number)


def _render_ends(numbers: Sequence[int], most: int, hues: Sequence[str]) -> str:
    """Render the marks of lines that end in the same row, one after another."""
    shown = numbers if len(numbers) <= most else numbers[: most - 1]
    rest = "…" if len(shown) < len(numbers) else ""
    return "".join(_paint_mark(_MARKS[number], number, hues) for number in shown) + rest


def _list_x_ticks(chart: LineChart, area: _Area, plain: bool) -> Iterator[tuple[float, str]]:
    if chart.x_ticks:
        room = max(3, area.columns // len(chart.x_ticks) - 2)
        for value, name in chart.x_ticks:
            yield value, formatting.shorten(formatting.clean(name), room, "~" if plain else "…")
        return
    wanted, (low, high) = max(2, area.columns // 12), area.x_range
    if chart.x_marks:
        yield from ((value, formatting.render_number(value)) for value in chart.x_marks)
    elif chart.x_scale == "log":
        yield from render_log_ticks(build_log_ticks(10**low, 10**high, wanted))
    else:
        values = build_ticks(low, high, wanted)
        yield from zip(values, render_ticks(values), strict=True)


def _render_x_axis(chart: LineChart, area: _Area, margin: int, plain: bool) -> Iterator[str]:
    corner, dash, tick = ("+", "-", "+") if plain else ("└", "─", "┬")
    axis, labels = [dash] * area.columns, [" "] * (area.columns + 4)
    free_from = 0
    for value, text in _list_x_ticks(chart, area, plain):
        column = area.across(value) // area.dots[0]
        start = min(max(0, column - len(text) // 2), len(labels) - len(text))
        axis[column] = tick
        if start >= free_from:
            labels[start : start + len(text)] = text
            free_from = start + len(text) + 1
    yield " " * (margin + 1) + corner + "".join(axis)
    yield " " * (margin + 2) + "".join(labels).rstrip()


def _render_legend(
    chart: LineChart, width: int, signs: Sequence[str], *, hues: Sequence[str], plain: bool
) -> Iterator[str]:
    """Yield one entry per line with its end value, in as many columns as fit."""
    entries = []
    for number, line in enumerate(chart.lines):
        value = render_end_value(line).replace("±", "+-" if plain else "±")
        room, mark = max(8, width - len(value) - 6), "~" if plain else "…"
        entries.append(f"{signs[number]} {formatting.shorten(formatting.clean(line.label), room, mark)}  {value}")
    column = max(map(formatting.display_width, entries)) + 3
    across = max(1, (width + 3) // column)
    for start in range(0, len(entries), across):
        chosen = list(enumerate(entries))[start : start + across]
        padded = (formatting.pad(text, column - 3) for _, text in chosen)
        numbers = (number for number, _ in chosen)
        painted = (_paint_mark(text, number, hues) for text, number in zip(padded, numbers, strict=True))
        yield "   ".join(painted).rstrip()


def _paint_mark(text: str, number: int, hues: Sequence[str]) -> str:
    """Paint the mark at the start of a text; without `hues`, return the text unchanged."""
    mark, space, rest = text.partition(" ")
    return terminal.paint(mark, hues[number]) + space + rest if hues else text
