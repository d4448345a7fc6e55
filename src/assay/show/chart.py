"""A chart as data: its lines, bands, smoothing and ticks.

`show/plot.py` draws a chart on a terminal; `plots/plot_document.py` makes a document of it, for pages and files.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from assay.errors import UsageError
from assay.show import formatting
from assay.values.series import mean_and_sd

Scale = Literal["linear", "log"]
Look = Literal["line", "dots", "crosses"]

_LARGEST = 1e300  # larger values are drawn as a gap, like infinity: their differences would overflow


@dataclass(frozen=True, slots=True)
class Line:
    """One series, or the mean of a group of runs.

    For a group, `spread` is the standard deviation of the runs around each y, `members` their number, `end` mean and
    deviation of their last values (runs may end at different steps), `others` the number of runs that do not count,
    and `counts` the number of runs in the mean at each y.

    `raw`: the values before smoothing. `names`: the run of each point. `shade`: a colour between the worst (0) and the
    best (1) of a scale, which replaces the line's colour. `number`: the number of the colour, so that a run has one
    colour in every chart; None: the line's index.
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
    number: int | None = None
    counts: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Axis:
    """A vertical axis of parallel coordinates; `ticks` have a position on it, from 0 (bottom) to 1, and a text."""

    name: str
    ticks: Sequence[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class LineChart:
    """A chart. `x_ticks`: names of categories at 0, 1, 2 … `x_marks`: numbers that get a tick, instead of round ones.
    `x_bounds`: numbers that the x axis includes, with or without points. `axes`: vertical axes at x = 0, 1, 2 …, with
    each y a position on them, instead of a y axis. `shades`: the name of the colour scale, its worst and best value."""

    lines: tuple[Line, ...]
    title: str = ""
    x_name: str = "step"
    y_name: str = ""
    scale: Scale = "linear"
    x_scale: Scale = "linear"
    x_ticks: Sequence[tuple[float, str]] = ()
    x_marks: Sequence[float] = ()
    x_bounds: Sequence[float] = ()
    axes: Sequence[Axis] = ()
    shades: tuple[str, str, str] | None = None


COLORS = 12  # colours of a chart; further lines also differ by their dashes


def number_lines(lines: Sequence[Line]) -> list[tuple[int, Line]]:
    """Return each line after the number of its colour."""
    return [(index if line.number is None else line.number, line) for index, line in enumerate(lines)]


def build_bands(groups: Sequence[tuple[str, Sequence[Line]]]) -> tuple[Line, ...]:
    """Build mean and standard deviation of each group, over the runs that have a finite value at a step."""
    bands = []
    for label, members in groups:
        # each run counts once at a step: with its last value there, or with one interpolated between its neighbours if
        # only other runs have a point at this step
        runs = [{x: y for x, y in zip(each.xs, each.ys, strict=True) if math.isfinite(x)} for each in members]
        steps = sorted({x for run in runs for x, y in run.items() if math.isfinite(y)})
        columns = [read_at(run, steps) for run in runs]
        found = [[y for y in row if math.isfinite(y)] for row in zip(*columns, strict=True)]
        looks = [mean_and_sd(values) for values in found]
        means = [math.nan if mean is None else mean for mean, _ in looks]
        spread = [sd or 0.0 for _, sd in looks]
        bands.append(Line(label, steps, means, spread, len(members), counts=list(map(len, found))))
    return tuple(bands)


def smooth(values: Sequence[float], weight: float) -> list[float]:
    """Return the exponential moving average, corrected for its start at zero, as in TensorBoard. Values that are not
    finite stay unchanged, and are left out of the average."""
    smoothed, total, counted = [], 0.0, 0.0
    for value in values:
        if math.isfinite(value):
            total, counted = weight * total + (1 - weight) * value, weight * counted + (1 - weight)
        smoothed.append(total / counted if math.isfinite(value) else value)
    return smoothed


def thin(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Return about `most` points: the lowest and the highest point of each stretch, in order, and both ends."""
    if len(points) <= most:
        return list(points)
    ends = _find_ends([y for _, y in points], math.ceil(2 * len(points) / most))
    return [points[at] for at in ends]


def thin_line(xs: Sequence[float], ys: Sequence[float], most: int) -> tuple[Sequence[float], Sequence[float]]:
    """Return about `most` points of a line; its gaps are kept."""
    if len(ys) <= most:
        return xs, ys
    if has_finite_sum(ys):  # the usual line has no gaps, so its points need not be handled one by one
        places = _find_ends(ys, math.ceil(2 * len(ys) / most))
        found = [xs[at] for at in places], [ys[at] for at in places]
        if all(-_LARGEST <= value <= _LARGEST for values in found for value in values):
            return found
    kept: list[tuple[float, float]] = []
    for part in split_gaps(zip(xs, ys, strict=True)):
        share = max(2, most * len(part) // len(ys))
        kept += [*([(kept[-1][0], math.nan)] if kept else []), *thin(part, share)]
    return [x for x, _ in kept], [y for _, y in kept]


def has_finite_sum(values: Sequence[float]) -> bool:
    """Return whether the sum is finite: then every value is finite. Finite values may have an infinite sum, too."""
    try:
        return math.isfinite(sum(values))
    except OverflowError:
        return False


def _find_ends(ys: Sequence[float], size: int) -> list[int]:
    """Return the indexes of the lowest and the highest value of each stretch, in order, and both ends."""
    kept = {0: None}
    for start in range(0, len(ys), size):
        part = list(ys[start : start + size])  # a list: an array would create its numbers again in each pass
        low, high = part.index(min(part)), part.index(max(part))
        kept[start + min(low, high)] = kept[start + max(low, high)] = None
    kept[len(ys) - 1] = None
    return list(kept)


def split_gaps(points: Iterable[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    """Yield the stretches of finite points between points that are not finite."""
    for is_finite, stretch in groupby(points, key=lambda each: abs(each[0]) <= _LARGEST and abs(each[1]) <= _LARGEST):
        if is_finite:
            yield list(stretch)


def read_at(run: Mapping[float, float], steps: Sequence[float]) -> list[float]:
    """Return a run's values at these steps; NaN before its first step, after its last, and next to NaN or infinity."""
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


def build_shown(chart: LineChart) -> LineChart:
    """Return the chart with gaps (NaN) for values that cannot be drawn; raise UsageError if no value can be drawn."""
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
        hint = "a logarithmic scale cannot show zero and below" if logarithmic else None
        raise UsageError("there is nothing to plot: no finite values", hint)
    return replace(chart, lines=tuple(lines))


def last_value(line: Line) -> float:
    """Return the last value that can be drawn; NaN if no value can be drawn."""
    return next((y for y in reversed(line.ys) if math.isfinite(y)), math.nan)


def render_end_value(line: Line) -> str:
    """Render the last value, unsmoothed; for a group mean ± sd and the number of runs; for points their number."""
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
    """Return the lower and the upper edge of mean ± sd. On a logarithmic scale, which has no zero, the lower edge is at
    least a tenth of the line's smallest value."""
    pairs = list(zip(line.ys, line.spread, strict=True))
    lower, upper = [y - sd for y, sd in pairs], [y + sd for y, sd in pairs]
    if scale == "log":
        smallest = min((y for y in line.ys if y > 0), default=1.0)
        lower = [y if y != y else max(y, smallest / 10) for y in lower]  # noqa: PLR0124
    return lower, upper


def build_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Return about `wanted` round numbers between the bounds."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / max(wanted, 1)))
    steps = (factor * power for factor in (1, 2, 2.5, 5, 10, 20))
    step = next(step for step in steps if span / step <= max(wanted, 1) + 1e-9)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    decimals = 3 - math.floor(math.log10(step))
    return [round(count * step, decimals) for count in range(first, last + 1)]


_NEAR = 0.08  # a fraction of the axis: the labels of ticks that are closer may overlap


def build_log_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Return powers of ten, thinned out if they are many, with factors 1, 2 and 5 if they are few; and both ends."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = max(1, math.ceil((last - first) / max(wanted, 1)))
    ticks = [10.0**power for power in range(first, last + 1, stride)]
    if last - first <= 2:
        ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    inside = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
    ends = [_round_log(low, math.ceil), _round_log(high, math.floor)]
    near = (high / low) ** _NEAR  # an end that is close to another tick does not become a tick
    return sorted({*inside, *(end for end in ends if all(not 1 / near < end / tick < near for tick in inside))})


def _round_log(value: float, to_whole: Callable[[float], int]) -> float:
    """Round to two digits with `to_whole` (up or down), so that a tick stays within the axis."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{to_whole(round(value / unit, 6)) * unit:.2g}")


def render_log_ticks(values: Sequence[float]) -> list[tuple[float, str]]:
    """Render each tick with as many decimals as it needs itself: `0.001`, `0.01`."""
    return [(value, formatting.render_number(value, 6)) for value in values]


def render_ticks(values: Sequence[float]) -> list[str]:
    """Render all ticks with as many decimals as the most precise tick needs."""
    texts = [formatting.render_number(value, 6) for value in values]
    if any("e" in text for text in texts):
        return texts
    decimals = max(len(text.partition(".")[2]) for text in texts)
    return [f"{value:.{decimals}f}" for value in values] if decimals <= 4 else texts
