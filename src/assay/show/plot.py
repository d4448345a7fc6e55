"""Line plots: the chart as a value, and its look on a terminal. `show/figure.py` draws the same value as PNG or SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from assay.errors import UsageError
from assay.show import terminal, words

Scale = Literal["linear", "log"]

PALETTE = ("blue", "red", "green", "magenta", "cyan", "yellow")
_MARKS = "abcdefghijklmnopqrstuvwxyz"
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # braille: column, row → bit
_SMALLEST = 20, 6  # columns and rows below which a plot says nothing
_LEGEND_ROWS = 12
_LARGEST = 1e300  # beyond it differences overflow: drawn like infinity, as a gap


@dataclass(frozen=True, slots=True)
class Line:
    """One series. `spread` is the standard deviation around each y of a group's mean, `members` the group's size."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    spread: Sequence[float] = ()
    members: int = 1


@dataclass(frozen=True, slots=True)
class Chart:
    lines: tuple[Line, ...]
    title: str = ""
    x_name: str = "step"
    y_name: str = ""
    scale: Scale = "linear"


# ---------------------------------------------------------------- the value


def build_bands(groups: Sequence[tuple[str, Sequence[Line]]]) -> tuple[Line, ...]:
    """Mean and standard deviation per group, over the members that have a finite value at a step."""
    return tuple(_build_band(label, members) for label, members in groups)


def _build_band(label: str, members: Sequence[Line]) -> Line:
    by_step: dict[float, list[float]] = {}
    for x, y in (pair for member in members for pair in zip(member.xs, member.ys, strict=True)):
        if math.isfinite(y) and math.isfinite(x):
            by_step.setdefault(x, []).append(y)
    steps = sorted(by_step)
    means = [math.fsum(by_step[step]) / len(by_step[step]) for step in steps]
    spread = [_deviation(by_step[step], mean) for step, mean in zip(steps, means, strict=True)]
    return Line(label, steps, means, spread, len(members))


def _deviation(values: Sequence[float], mean: float) -> float:
    if len(values) < 2:
        return 0.0
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def build_shown(chart: Chart) -> Chart:
    """The chart with gaps (NaN) where nothing can be drawn; raises UsageError when nothing at all is left."""
    lines = tuple(_hide_bad(line, chart.scale) for line in chart.lines)
    if not any(math.isfinite(y) for line in lines for y in line.ys):
        logarithmic = chart.scale == "log" and any(math.isfinite(y) for line in chart.lines for y in line.ys)
        hint = "a logarithmic scale has no place for zero and below" if logarithmic else None
        raise UsageError("there is nothing to plot: no finite values", hint)
    return replace(chart, lines=lines)


def _hide_bad(line: Line, scale: Scale) -> Line:
    lowest = 1 / _LARGEST if scale == "log" else -_LARGEST
    ys = [
        y if lowest <= y <= _LARGEST and abs(x) <= _LARGEST else math.nan for x, y in zip(line.xs, line.ys, strict=True)
    ]
    return replace(line, ys=ys)


def last_value(line: Line) -> float:
    """The last value that can be drawn, NaN without one."""
    return next((y for y in reversed(line.ys) if math.isfinite(y)), math.nan)


def render_end_value(line: Line) -> str:
    text = words.render_number(last_value(line))
    if not line.spread:
        return text
    end = next((place for place in reversed(range(len(line.ys))) if math.isfinite(line.ys[place])), -1)
    return f"{text} ± {words.render_number(line.spread[end], 2)} (n={line.members})"


# ---------------------------------------------------------------- ticks


def build_ticks(low: float, high: float, wanted: int) -> list[float]:
    """About `wanted` round numbers between the bounds."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / max(wanted, 1)))
    steps = (factor * power for factor in (1, 2, 2.5, 5, 10, 20))
    step = next(step for step in steps if span / step <= max(wanted, 1) + 1e-9)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    decimals = 3 - math.floor(math.log10(step))
    return [round(count * step, decimals) for count in range(first, last + 1)]


def build_log_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Powers of ten, thinned out when there are many; 1-2-5 when there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = max(1, math.ceil((last - first) / max(wanted, 1)))
    ticks = [10.0**power for power in range(first, last + 1, stride)]
    if last - first <= 2:
        ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    inside = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
    return inside or [low, high]


# ---------------------------------------------------------------- the terminal


@dataclass(frozen=True, slots=True)
class _Area:
    """Where values lie inside the drawing: a grid of cells, each with its own grid of dots."""

    columns: int
    rows: int
    x_range: tuple[float, float]
    y_range: tuple[float, float]  # of the transformed values
    transform: Callable[[float], float]
    dots: tuple[int, int]

    def dot(self, x: float, y: float) -> tuple[int, int]:
        across = _share(x, self.x_range) * (self.columns * self.dots[0] - 1)
        down = (1 - _share(self.transform(y), self.y_range)) * (self.rows * self.dots[1] - 1)
        return round(across), round(down)


def _share(value: float, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return (value - low) / (high - low) if high > low else 0.5


def render_plot(chart: Chart, *, width: int = 80, height: int = 20, color: bool = False, plain: bool = False) -> str:
    """The chart in characters: braille dots, or one letter per line where only ASCII is possible (`plain`)."""
    shown = build_shown(chart)
    wide, high = max(width, _SMALLEST[0]), max(height, _SMALLEST[1])
    rows = max(high - 2 - bool(chart.title) - bool(chart.x_name), 3)
    area = _build_area(shown, wide, rows, plain)
    ticks = _build_y_ticks(shown, area)
    margin = max(map(len, ticks.values()))
    area = replace(area, columns=max(wide - margin - 4, 8))
    cells = _draw(shown, area, plain)
    ends = _place_ends(shown, area, color) if len(shown.lines) > 1 and not plain else {}
    axis_lines = (
        f"{row}{ends.get(number, '')}".rstrip()
        for number, row in enumerate(_render_rows(cells, area, ticks, margin, color=color, plain=plain))
    )
    foot = _render_x_axis(area, margin, plain)
    title = [words.shorten(words.clean(chart.title), wide)] if chart.title else []
    name = [" " * (margin + 2) + chart.x_name.center(area.columns).rstrip()] if chart.x_name else []
    legend = _render_legend(shown, wide, color=color, plain=plain)
    return "\n".join((*title, *axis_lines, *foot, *name, *legend)) + "\n"


def _build_area(chart: Chart, width: int, rows: int, plain: bool) -> _Area:
    transform = math.log10 if chart.scale == "log" else float
    points = [(x, y) for line in chart.lines for x, y in zip(line.xs, line.ys, strict=True) if y == y]  # noqa: PLR0124
    xs, ys = [x for x, _ in points], [transform(y) for _, y in points]
    room = 0.5 if chart.scale == "log" else abs(ys[0]) * 0.1 or 1.0
    x_range, y_range = (min(xs), max(xs)), _widen(min(ys), max(ys), room)
    return _Area(width, rows, x_range, y_range, transform, (1, 1) if plain else (2, 4))


def _widen(low: float, high: float, room: float) -> tuple[float, float]:
    """A constant needs some room around it to lie in the middle."""
    return (low, high) if high > low else (low - room, high + room)


def _build_y_ticks(chart: Chart, area: _Area) -> dict[int, str]:
    wanted = max(3, area.rows * 2 // 5)
    low, high = area.y_range
    log = chart.scale == "log"
    values = build_log_ticks(10**low, 10**high, wanted) if log else build_ticks(low, high, wanted)
    placed: dict[int, str] = {}
    for value, text in zip(values, render_ticks(values), strict=True):
        row = area.dot(area.x_range[0], value)[1] // area.dots[1]
        placed.setdefault(min(max(row, 0), area.rows - 1), text)
    return placed


def render_ticks(values: Sequence[float]) -> list[str]:
    """As many decimals for all as the most precise one needs."""
    texts = [words.render_number(value, 6) for value in values]
    if any("e" in text for text in texts):
        return texts
    decimals = max(len(text.partition(".")[2]) for text in texts)
    return [f"{value:.{decimals}f}" for value in values] if decimals <= 4 else texts


Cells = dict[tuple[int, int], tuple[int, int]]  # (column, row) → (dots or 0, line)


def _draw(chart: Chart, area: _Area, plain: bool) -> Cells:
    cells: Cells = {}
    for number, line in enumerate(chart.lines):
        for x, y in _trace(line, area):
            place = x // area.dots[0], y // area.dots[1]
            bit = 1 if plain else _DOTS[x % 2][y % 4]
            cells[place] = cells.get(place, (0, 0))[0] | bit, number
    return cells


def _trace(line: Line, area: _Area) -> Iterator[tuple[int, int]]:
    """The dots of a line; a gap in the values is a gap in the line."""
    before: tuple[int, int] | None = None
    for x, y in zip(line.xs, line.ys, strict=True):
        if y != y:  # noqa: PLR0124
            before = None
            continue
        dot = area.dot(x, y)
        if dot == before:
            continue
        yield from _connect(before, dot) if before else (dot,)
        before = dot


def _connect(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    count = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
    for part in range(1, count + 1):
        share = part / count
        yield round(start[0] + (end[0] - start[0]) * share), round(start[1] + (end[1] - start[1]) * share)
    yield start


def _render_rows(
    cells: Cells, area: _Area, ticks: dict[int, str], margin: int, *, color: bool, plain: bool
) -> Iterator[str]:
    tick, bar = ("+", "|") if plain else ("┤", "│")
    for row in range(area.rows):
        body = "".join(_render_cell(cells.get((column, row)), color, plain) for column in range(area.columns))
        yield f"{ticks.get(row, '').rjust(margin)} {tick if row in ticks else bar}{body} "


def _render_cell(cell: tuple[int, int] | None, color: bool, plain: bool) -> str:
    if cell is None:
        return " "
    dots, line = cell
    text = _MARKS[line % len(_MARKS)] if plain else chr(0x2800 + dots)
    return terminal.paint(text, PALETTE[line % len(PALETTE)]) if color else text


def _place_ends(chart: Chart, area: _Area, color: bool) -> dict[int, str]:
    """A letter beside the end of each line, moved to the next free row where two lines end together."""
    placed: dict[int, str] = {}
    for number, line in enumerate(chart.lines[: len(_MARKS)]):
        value = last_value(line)
        if value != value:  # noqa: PLR0124
            continue
        row = area.dot(area.x_range[1], value)[1] // area.dots[1]
        near = (row + shift for shift in (0, -1, 1, -2, 2))
        free = next((each for each in near if 0 <= each < area.rows and each not in placed), None)
        if free is not None:
            placed[free] = _paint_mark(_MARKS[number], number, color)
    return placed


def _render_x_axis(area: _Area, margin: int, plain: bool) -> Iterator[str]:
    corner, dash, tick = ("+", "-", "+") if plain else ("└", "─", "┬")
    axis, labels = [dash] * area.columns, [" "] * (area.columns + 4)
    values = build_ticks(*area.x_range, max(2, area.columns // 12))
    free_from = 0
    for value, text in zip(values, render_ticks(values), strict=True):
        column = area.dot(value, 0.0 if area.transform is float else 1.0)[0] // area.dots[0]
        start = min(max(0, column - len(text) // 2), len(labels) - len(text))
        axis[column] = tick
        if start >= free_from:
            labels[start : start + len(text)] = text
            free_from = start + len(text) + 1
    yield " " * (margin + 1) + corner + "".join(axis)
    yield " " * (margin + 2) + "".join(labels).rstrip()


def _render_legend(chart: Chart, width: int, *, color: bool, plain: bool) -> Iterator[str]:
    """One entry per line with its end value, in as many columns as fit."""
    shown = chart.lines[:_LEGEND_ROWS]
    entries = [_describe(number, line, width, plain) for number, line in enumerate(shown)]
    column = max(map(words.display_width, entries)) + 3
    across = max(1, (width + 3) // column)
    for start in range(0, len(entries), across):
        chosen = list(enumerate(entries))[start : start + across]
        padded = (words.pad(text, column - 3) for _, text in chosen)
        numbers = (number for number, _ in chosen)
        painted = (_paint_mark(text, number, color) for text, number in zip(padded, numbers, strict=True))
        yield "   ".join(painted).rstrip()
    if len(chart.lines) > _LEGEND_ROWS:
        yield f"and {len(chart.lines) - _LEGEND_ROWS} more"


def _describe(number: int, line: Line, width: int, plain: bool) -> str:
    mark = _MARKS[number % len(_MARKS)]
    value = render_end_value(line)
    value = value.replace("±", "+-") if plain else value
    label = words.shorten(words.clean(line.label), max(8, width - len(value) - 6), "~" if plain else "…")
    return f"{mark} {label}  {value}"


def _paint_mark(text: str, number: int, color: bool) -> str:
    mark, space, rest = text.partition(" ")
    return terminal.paint(mark, PALETTE[number % len(PALETTE)]) + space + rest if color else text


def group_lines(lines: Iterable[tuple[str, Line]]) -> list[tuple[str, list[Line]]]:
    """(group, line) pairs gathered for `build_bands`, groups in order of appearance."""
    groups: dict[str, list[Line]] = {}
    for group, line in lines:
        groups.setdefault(group, []).append(line)
    return list(groups.items())
