"""Plots: the chart as a value, and its look on a terminal. `show/figure.py` draws the same value as PNG or SVG."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from assay.errors import UsageError
from assay.show import formatting
from assay.system import terminal
from assay.values.series import mean_and_sd

Scale = Literal["linear", "log"]
Look = Literal["line", "dots", "crosses"]

_HUES = ("blue", "red", "green", "magenta", "cyan", "yellow")
PALETTE = (*_HUES, *(f"bright_{hue}" for hue in _HUES))
_MARKS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"  # no two lines share one
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # braille: column, row → bit
_SMALLEST = 20, 6  # columns and rows below which a plot says nothing
_MOST_ENDS = 1 / 6  # of the width, for marks behind the ends
_LARGEST = 1e300  # beyond it differences overflow: drawn like infinity, as a gap


@dataclass(frozen=True, slots=True)
class Line:
    """One series, or the mean of a group of runs.

    Of a group: `spread` is the standard deviation over its runs around each y, `members` how many runs it has, `end`
    mean and deviation of the runs' last values (runs may end at different steps), `others` runs that do not count.

    `raw`: the values before they were smoothed. `names`: which run each point is. `shade`: a colour between the worst
    (0) and the best (1) of a scale instead of one of its own.
    """

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    spread: Sequence[float] = ()
    members: int = 1
    end: tuple[float, float | None] | None = None
    others: int = 0
    raw: Sequence[float] = ()
    names: Sequence[str] = ()
    look: Look = "line"
    shade: float | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """One of the upright axes of parallel coordinates; ticks by their place on it, 0 (below) to 1."""

    name: str
    ticks: Sequence[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Chart:
    """`x_ticks`: names of categories at 0, 1, 2 … `x_marks`: numbers that get a tick, instead of round ones. `axes`:
    those at x = 0, 1, 2 … instead of a y axis; a y is then a place on them. `shades`: what the colour scale stands for,
    and its worst and its best value."""

    lines: tuple[Line, ...]
    title: str = ""
    x_name: str = "step"
    y_name: str = ""
    scale: Scale = "linear"
    x_scale: Scale = "linear"
    x_ticks: Sequence[tuple[float, str]] = ()
    x_marks: Sequence[float] = ()
    axes: Sequence[Axis] = ()
    shades: tuple[str, str, str] | None = None


# ---------------------------------------------------------------- the value


def build_bands(groups: Sequence[tuple[str, Sequence[Line]]]) -> tuple[Line, ...]:
    """Mean and standard deviation per group, over the runs that have a finite value at a step."""
    bands = []
    for label, members in groups:
        # each run counts once at a step: with the last of its values there, or with one between its neighbours where
        # other runs have a point and it has none
        runs = [{x: y for x, y in zip(each.xs, each.ys, strict=True) if math.isfinite(x)} for each in members]
        steps = sorted({x for run in runs for x, y in run.items() if math.isfinite(y)})
        columns = [_read_at(run, steps) for run in runs]
        found = [[y for y in row if math.isfinite(y)] for row in zip(*columns, strict=True)]
        looks = [mean_and_sd(values) for values in found]
        means = [math.nan if mean is None else mean for mean, _ in looks]
        bands.append(Line(label, steps, means, [sd or 0.0 for _, sd in looks], len(members)))
    return tuple(bands)


def resample(lines: Sequence[Line], count: int) -> list[Line]:
    """All at the same xs, evenly from the first to the last of any; NaN where a line has not begun or has ended."""
    low, high = min(line.xs[0] for line in lines), max(line.xs[-1] for line in lines)
    xs = [low + (high - low) * part / (count - 1) for part in range(count)] if high > low else [low]
    return [
        replace(
            line,
            xs=xs,
            ys=_read_at(dict(zip(line.xs, line.ys, strict=True)), xs),
            raw=_read_at(dict(zip(line.xs, line.raw, strict=True)), xs) if line.raw else (),
        )
        for line in lines
    ]


def smooth(values: Sequence[float], weight: float) -> list[float]:
    """The exponential moving average, corrected for its start at zero, as TensorBoard's. A value that is not finite
    stays what it is, and does not count."""
    smoothed, total, counted = [], 0.0, 0.0
    for value in values:
        if math.isfinite(value):
            total, counted = weight * total + (1 - weight) * value, weight * counted + (1 - weight)
        smoothed.append(total / counted if math.isfinite(value) else value)
    return smoothed


def thin(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most about `most` points: of each stretch the lowest and the highest, in their order."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(2 * len(points) / most)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        ys = [y for _, y in part]
        ends = {ys.index(min(ys)), ys.index(max(ys))}
        kept += [part[index] for index in sorted(ends)]
    return kept


def split_gaps(points: Iterable[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    """The stretches between the points that are not finite."""
    for is_finite, stretch in groupby(points, key=lambda each: abs(each[0]) <= _LARGEST and abs(each[1]) <= _LARGEST):
        if is_finite:
            yield list(stretch)


def _read_at(run: Mapping[float, float], steps: Sequence[float]) -> list[float]:
    """The run's values at these steps; NaN before its first, behind its last and next to one that is not finite."""
    if all(step in run for step in steps):
        return [run[step] for step in steps]
    own = sorted(run)
    return [run[step] if step in run else _interpolate(run, own, step) for step in steps]


def _interpolate(run: Mapping[float, float], own: Sequence[float], step: float) -> float:
    index = bisect_left(own, step)
    if not 0 < index < len(own):
        return math.nan
    before, after = own[index - 1], own[index]
    return run[before] + (run[after] - run[before]) * (step - before) / (after - before)


def build_shown(chart: Chart) -> Chart:
    """The chart with gaps (NaN) where nothing can be drawn; raises UsageError when nothing at all is left."""
    low_x, low_y = (1 / _LARGEST if scale == "log" else -_LARGEST for scale in (chart.x_scale, chart.scale))

    def leave_gaps(xs: Sequence[float], ys: Sequence[float]) -> list[float]:
        pairs = zip(xs, ys, strict=True)
        return [y if low_y <= y <= _LARGEST and low_x <= x <= _LARGEST else math.nan for x, y in pairs]

    lines = [
        replace(line, ys=leave_gaps(line.xs, line.ys), raw=leave_gaps(line.xs, line.raw) if line.raw else ())
        for line in chart.lines
    ]
    if not any(math.isfinite(y) for line in lines for y in line.ys):
        is_log = "log" in (chart.scale, chart.x_scale)
        logarithmic = is_log and any(math.isfinite(y) for line in chart.lines for y in line.ys)
        hint = "a logarithmic scale has no place for zero and below" if logarithmic else None
        raise UsageError("there is nothing to plot: no finite values", hint)
    return replace(chart, lines=tuple(lines))


def last_value(line: Line) -> float:
    """The last value that can be drawn, NaN without one."""
    return next((y for y in reversed(line.ys) if math.isfinite(y)), math.nan)


def render_end_value(line: Line) -> str:
    """The last value, not smoothed; of a group mean ± standard deviation over its runs, and how many these are; of
    points how many."""
    if line.look != "line":
        return formatting.render_count(sum(map(math.isfinite, line.ys)), "run")
    if not line.spread:
        return formatting.render_number(last_value(replace(line, ys=line.raw or line.ys)))
    index = next((index for index in reversed(range(len(line.ys))) if math.isfinite(line.ys[index])), -1)
    mean, sd = line.end or (last_value(line), line.spread[index] if line.members > 1 else None)
    spread = "" if sd is None else f" ± {formatting.render_number(sd, 2)}"
    others = f", {line.others} not done" if line.others else ""
    return f"{formatting.render_number(mean)}{spread} (n={formatting.render_count(line.members, 'run')}{others})"


def build_band_edges(line: Line, scale: Scale) -> tuple[list[float], list[float]]:
    """The lower and the upper edge of mean ± sd. On a logarithmic scale the lower one ends a decade below the line's
    smallest value: what is at zero or below has no place there."""
    pairs = list(zip(line.ys, line.spread, strict=True))
    lower, upper = [y - sd for y, sd in pairs], [y + sd for y, sd in pairs]
    if scale == "log":
        smallest = min((y for y in line.ys if y > 0), default=1.0)
        lower = [y if y != y else max(y, smallest / 10) for y in lower]  # noqa: PLR0124
    return lower, upper


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
    x_range: tuple[float, float]  # of the transformed values, as y_range
    y_range: tuple[float, float]
    transforms: tuple[Callable[[float], float], Callable[[float], float]]  # of x and of y
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


def render_plot(chart: Chart, *, width: int = 80, height: int = 20, color: bool = False, plain: bool = False) -> str:
    """The chart in characters: braille dots, or one letter per line where only ASCII is possible (`plain`)."""
    shown = build_shown(chart)
    left_out = len(shown.lines) - len(_MARKS)
    shown = replace(shown, lines=shown.lines[: len(_MARKS)])
    wide, high = max(width, _SMALLEST[0]), max(height, _SMALLEST[1])
    rows = max(high - 2 - bool(chart.title) - bool(chart.x_name), 3)
    area = _build_area(shown, wide, rows, plain)
    ticks = _build_y_ticks(shown, area)
    margin = max(map(len, ticks.values()))
    area = replace(area, columns=max(wide - margin - 4, 8))
    signs = _choose_signs(shown, plain)
    ends = _find_ends(shown, area) if len(shown.lines) > 1 and not plain else {}
    most = max(1, int(wide * _MOST_ENDS))
    area = replace(area, columns=max(wide - margin - 3 - min(most, max(map(len, ends.values()), default=1)), 8))
    cells = _draw(shown, area, plain)
    if len(shown.lines) > 1 and not plain:
        _put_marks(cells, shown, area, ends)
    axis_lines = (
        f"{row}{_render_ends(ends.get(number, ()), most, color)}".rstrip()
        for number, row in enumerate(_render_rows(cells, area, ticks, margin, signs, color=color, plain=plain))
    )
    foot = _render_x_axis(shown, area, margin, plain)
    title = [formatting.shorten(formatting.clean(chart.title), wide)] if chart.title else []
    name = [" " * (margin + 2) + formatting.clean(chart.x_name).center(area.columns).rstrip()] if chart.x_name else []
    legend = _render_legend(shown, wide, signs, color=color, plain=plain)
    more = [f"and {formatting.render_count(left_out, 'more line')}, not drawn"] if left_out > 0 else []
    return "\n".join((*title, *axis_lines, *foot, *name, *legend, *more)) + "\n"


def _build_area(chart: Chart, width: int, rows: int, plain: bool) -> _Area:
    to_x, to_y = (math.log10 if scale == "log" else float for scale in (chart.x_scale, chart.scale))
    points = [(x, y) for line in chart.lines for x, y in zip(line.xs, line.ys, strict=True) if y == y]  # noqa: PLR0124
    xs, ys = [to_x(x) for x, _ in points], [to_y(y) for _, y in points]
    room = 0.5 if chart.scale == "log" else abs(ys[0]) * 0.1 or 1.0
    x_range = (-0.5, len(chart.x_ticks) - 0.5) if chart.x_ticks else (min(xs), max(xs))
    y_range = min(ys), max(ys)
    if y_range[0] == y_range[1]:  # a constant needs some room around it to lie in the middle
        y_range = y_range[0] - room, y_range[1] + room
    return _Area(width, rows, x_range, y_range, (to_x, to_y), (1, 1) if plain else (2, 4))


def _build_y_ticks(chart: Chart, area: _Area) -> dict[int, str]:
    wanted = max(3, area.rows * 2 // 5)
    low, high = area.y_range
    log = chart.scale == "log"
    values = build_log_ticks(10**low, 10**high, wanted) if log else build_ticks(low, high, wanted)
    placed: dict[int, str] = {}
    for value, text in zip(values, render_ticks(values), strict=True):
        row = area.down(value) // area.dots[1]
        placed.setdefault(min(max(row, 0), area.rows - 1), text)
    return placed


def render_log_ticks(values: Sequence[float]) -> list[tuple[float, str]]:
    """Each with its own decimals: `0.001`, `0.01`."""
    return [(value, formatting.render_number(value, 6)) for value in values]


def render_ticks(values: Sequence[float]) -> list[str]:
    """As many decimals for all as the most precise one needs."""
    texts = [formatting.render_number(value, 6) for value in values]
    if any("e" in text for text in texts):
        return texts
    decimals = max(len(text.partition(".")[2]) for text in texts)
    return [f"{value:.{decimals}f}" for value in values] if decimals <= 4 else texts


@dataclass(slots=True)
class _Cell:
    """A character of the drawing: its dots, whose it is (the last line drawn), and whose mark covers the dots."""

    dots: int = 0
    line: int = 0
    is_shared: bool = False
    mark: int | None = None


Cells = dict[tuple[int, int], _Cell]  # (column, row) → what is there


def _choose_signs(chart: Chart, plain: bool) -> list[str]:
    """A letter for each line; what is not a line and the only one of its kind has the sign of its kind."""
    looks = [line.look for line in chart.lines]
    own = {"dots": "o" if plain else "•", "crosses": "x" if plain else "×"}  # noqa: RUF001
    return [own[look] if look in own and looks.count(look) == 1 else _MARKS[i] for i, look in enumerate(looks)]


def _draw(chart: Chart, area: _Area, plain: bool) -> Cells:
    cells: Cells = {}
    order = sorted(enumerate(chart.lines), key=lambda pair: pair[1].look != "line")  # points over lines
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
    """The dots of a line; a gap in the values is a gap in the line."""
    before: tuple[int, int] | None = None
    for x, y in zip(line.xs, line.ys, strict=True):
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
    color: bool,
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
            body += _paint_mark(sign, owner, color)
        yield f"{ticks.get(row, '').rjust(margin)} {tick if row in ticks else bar}{body} "


# ---------------------------------------------------------------- marks: which line is which


def _find_ends(chart: Chart, area: _Area) -> dict[int, list[int]]:
    """Row → the lines that end there at the right edge, all of them, from top to bottom."""
    found: dict[int, list[tuple[int, int]]] = {}
    for number, line in enumerate(chart.lines):
        column, row, dot = _find_end(line, area)
        if column == area.columns - 1 and line.look == "line":
            found.setdefault(row, []).append((dot, number))
    return {row: [number for _, number in sorted(each)] for row, each in found.items()}


def _find_end(line: Line, area: _Area) -> tuple[int, int, int]:
    """Column, row and dot of a line's last point; -1 for a line that has none."""
    pairs = zip(reversed(line.xs), reversed(line.ys), strict=True)
    end = next(((x, y) for x, y in pairs if math.isfinite(y)), None)
    if end is None:
        return -1, -1, -1
    x, y = area.dot(*end)
    return x // area.dots[0], y // area.dots[1], y


def _put_marks(cells: Cells, chart: Chart, area: _Area, ends: Mapping[int, Sequence[int]]) -> None:
    """A mark on each line's way, since shades are told apart badly or not at all, and where it ends before the edge."""
    at_edge = {number for each in ends.values() for number in each}
    own: dict[int, list[tuple[int, int]]] = {}  # characters that no other line touches
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
    """Next to the end where that is free; a line that others surround has its mark on its way and in the legend."""
    column, row, _ = end
    if column < 0:
        return
    behind = [(each, near) for near in (row, row - 1, row + 1) for each in range(column + 1, column + 3)]
    inside = (place for place in behind if place[0] < area.columns and 0 <= place[1] < area.rows)
    if place := next((place for place in inside if place not in cells), None):
        cells[place] = _Cell(line=number, mark=number)


def _render_ends(numbers: Sequence[int], most: int, color: bool) -> str:
    """Lines that end in the same row stand one after the other, so that each mark is in the row of its own line."""
    shown = numbers if len(numbers) <= most else numbers[: most - 1]
    rest = "…" if len(shown) < len(numbers) else ""
    return "".join(_paint_mark(_MARKS[number], number, color) for number in shown) + rest


def _list_x_ticks(chart: Chart, area: _Area, plain: bool) -> Iterator[tuple[float, str]]:
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


def _render_x_axis(chart: Chart, area: _Area, margin: int, plain: bool) -> Iterator[str]:
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


def _render_legend(chart: Chart, width: int, signs: Sequence[str], *, color: bool, plain: bool) -> Iterator[str]:
    """One entry per line with its end value, in as many columns as fit."""
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
        painted = (_paint_mark(text, number, color) for text, number in zip(padded, numbers, strict=True))
        yield "   ".join(painted).rstrip()


def _paint_mark(text: str, number: int, color: bool) -> str:
    mark, space, rest = text.partition(" ")
    return terminal.paint(mark, PALETTE[number % len(PALETTE)]) + space + rest if color else text
