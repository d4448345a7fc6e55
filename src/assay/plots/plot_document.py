"""Build the document of a page of plots: each chart with its legend, and the values that the mouse shows.

Logarithmic axes are converted here: the document contains positions, and the numbers as labels of ticks.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from assay.plots.plotting import Plot
from assay.show import chart as charts
from assay.show.chart import Line, LineChart, Scale
from assay.show.formatting import render_count, render_number
from assay.values import document as doc

_COLORS, _DASHES, SHADES = 12, 4, 10  # classes of the style sheet: c0…, d0…, s0…
_MARKERS: tuple[Literal["dot", "square", "triangle", "diamond"], ...] = ("dot", "square", "triangle", "diamond")
_MOST_HOVERS = 160
_HEIGHT = 320
_LONG = 4000
_MANY = 150  # more lines through upright axes than this are drawn fainter
_MOST_SHOWN = 14  # lines that the mouse shows at once


def build_page(title: str, note: str, plots: Sequence[Plot]) -> doc.Document:
    blocks: list[doc.Block] = [doc.Heading(title, level=1, note=note)]
    for plot in plots:
        blocks += [doc.Text(note, role="soft") for note in plot.notes]
        blocks.append(doc.Section([*build_blocks(plot)]))
    return doc.Document(title, blocks)


def build_blocks(plot: Plot) -> Iterator[doc.Block]:
    if isinstance(plot.chart, doc.Bars):
        yield doc.Text(doc.Span(plot.chart.label, "strong"))
        yield plot.chart
        return
    if plot.title:
        yield doc.Text(doc.Span(plot.title, "strong"))
    is_single = isinstance(plot.chart, LineChart)
    shown = [charts.build_shown(chart) for chart in ([plot.chart] if isinstance(plot.chart, LineChart) else plot.chart)]
    yield from (_build_chart(chart, is_single) for chart in shown)
    keys = {(style, shape): text for chart in shown for style, shape, text in _list_keys(chart, is_single)}
    if keys:
        yield doc.Legend([(style, shape, text) for (style, shape), text in keys.items()])


def _build_chart(chart: LineChart, is_wide: bool) -> doc.Chart:
    curves: list[doc.Curve] = []
    areas = []
    for index, (number, line) in enumerate(charts.number_lines(chart.lines)):
        style = _style(line, number)
        if line.spread:
            lower, upper = (_build_points(chart, line, edge) for edge in charts.build_band_edges(line, chart.scale))
            areas.append(doc.Area(upper, lower, f"spread {style}"))
        if line.raw:
            curves.append(doc.Curve(_build_points(chart, line, line.raw), f"raw {style}"))
        kind = sum(each.look == line.look for each in chart.lines[:index])
        curves.append(_build_curve(line, style, kind, _build_points(chart, line, line.ys), chart))
    xs, ys = ([point[side] for curve in curves for point in curve.points] for side in (0, 1))
    bounds = map(_transform(chart.x_scale), chart.x_bounds)
    uprights = [doc.Curve([(index, 0.0), (index, 1.0)], "upright") for index in range(len(chart.axes))]
    labels = [(float(index), place, text) for index, axis in enumerate(chart.axes) for place, text in axis.ticks]
    panel = doc.Panel(
        [*curves, *uprights],
        areas,
        height=_HEIGHT if is_wide else 200,
        label=chart.y_name,
        ticks=() if chart.axes else _build_log_axis(ys, chart.scale),
        y_range=(-0.12, 1.04) if chart.axes else None,
        labels=labels,
    )
    return doc.Chart(
        doc.Span(chart.title, "strong") if is_wide else doc.Span(chart.x_name, "strong"),
        [panel],
        chart.title,
        hovers=[] if chart.axes or any(line.look != "line" for line in chart.lines) else [*_build_hovers(chart)],
        x_range=_find_x_range(chart),
        x_ticks=_build_x_ticks(chart, [*xs, *bounds], is_wide),
        is_wide=is_wide,
        x_label=chart.x_name if is_wide else "",
    )


def _build_points(chart: LineChart, line: Line, ys: Sequence[float]) -> list[doc.Point]:
    """Return the points of a line. A drawn line is reduced to a few times as many points as a page can show."""
    to_x, to_y = _transform(chart.x_scale), _transform(chart.scale)
    xs, ys = charts.thin_line(line.xs, ys, _LONG if line.look == "line" else len(ys))
    return [*zip(map(to_x, xs), map(to_y, ys), strict=True)]


def _build_curve(line: Line, style: str, kind: int, points: Sequence[doc.Point], chart: LineChart) -> doc.Curve:
    """Build a curve. `kind`: how many earlier lines have the same look, which decides the shape of the points."""
    if line.look == "line":
        if sum(math.isfinite(y) for y in line.ys) == 1:  # a line of one point would be invisible
            return doc.Curve(points, f"point {style}", line=False, marker="dot")
        if not chart.axes:
            return doc.Curve(points, f"curve {style}")
        return doc.Curve(points, f"{'one many' if len(chart.lines) > _MANY else 'one'} {style}", texts=line.names)
    name = dict(chart.x_ticks)
    texts = [
        f"{run}\n{chart.x_name}: {name.get(x) or render_number(float(x), 6)}\n{chart.y_name}: {render_number(y, 6)}"
        + ("" if line.label == "done" else f"\n{line.label}")
        for run, x, y in zip(line.names, line.xs, line.ys, strict=True)
    ]
    if line.look == "crosses":
        return doc.Curve(points, f"crossed {style}", line=False, marker="cross", texts=texts)
    return doc.Curve(points, f"point {style}", line=False, marker=_MARKERS[kind % len(_MARKERS)], texts=texts)


def _style(line: Line, number: int) -> str:
    if line.shade is not None:
        return f"s{min(SHADES - 1, int(line.shade * SHADES))}"
    dash = number // _COLORS % _DASHES
    return f"c{number % _COLORS}" + (f" d{dash}" if dash else "")


def _list_keys(chart: LineChart, is_single: bool) -> Iterator[tuple[str, str, str]]:
    """Yield style, shape and text of each line. For small charts, which share a legend, the text is only the label."""
    if chart.shades is not None:
        name, worst, best = chart.shades
        yield "s0", "own", f"{name}: {worst}"
        yield from ((f"s{shade}", "own", "") for shade in range(2, SHADES - 1, 2))
        yield f"s{SHADES - 1}", "own", best
        return
    for index, (number, line) in enumerate(charts.number_lines(chart.lines)):
        kind = sum(each.look == line.look for each in chart.lines[:index])
        shape = {"line": "line", "dots": _MARKERS[kind % len(_MARKERS)], "crosses": "crossed"}[line.look]
        count = f", {render_count(len(line.ys), 'point')}" if not line.names else ""
        text = f"{line.label}  {charts.render_end_value(line)}{count}" if is_single else line.label
        yield _style(line, number), f"own {shape}", text
    if any(line.raw for line in chart.lines):
        yield "c0", "own faint", "faint: before smoothing"


# ---------------------------------------------------------------- axes


def _transform(scale: Scale) -> Callable[[float], float]:
    return (lambda value: math.log10(value) if value > 0 else math.nan) if scale == "log" else float


def _build_log_axis(places: Sequence[float], scale: Scale) -> list[tuple[float, str]] | None:
    """Return the ticks of a logarithmic axis; None if the axis is linear, for which the renderer chooses ticks."""
    known = [place for place in places if math.isfinite(place)]
    if scale != "log" or not known:
        return None
    ticks = charts.build_log_ticks(10 ** min(known), 10 ** max(known), 6)
    return [(math.log10(tick), text) for tick, text in charts.render_log_ticks(ticks)]


def _build_x_ticks(chart: LineChart, places: Sequence[float], is_wide: bool) -> list[tuple[float, str]] | None:
    """Return the ticks of an x axis; None if all numbers are whole, for which the renderer chooses round ticks."""
    if chart.axes:
        return [(float(index), axis.name) for index, axis in enumerate(chart.axes)]
    if chart.x_ticks or chart.x_marks:
        to_x = _transform(chart.x_scale)
        return list(chart.x_ticks) or [(to_x(mark), render_number(mark)) for mark in chart.x_marks]
    known = [place for place in places if math.isfinite(place)]
    if chart.x_scale == "log" or all(place.is_integer() for place in known):
        return _build_log_axis(known, chart.x_scale)
    ticks = charts.build_ticks(min(known), max(known), 12 if is_wide else 6)
    return list(zip(ticks, charts.render_ticks(ticks), strict=True))


def _find_x_range(chart: LineChart) -> tuple[float, float] | None:
    """Return a range with a margin around points and upright axes, so that nothing is cut off; None for lines."""
    if chart.axes or chart.x_ticks:
        count = len(chart.axes or chart.x_ticks)
        return (-0.06 * (count - 1), 1.02 * (count - 1)) if chart.axes else (-0.5, count - 0.5)
    if all(line.look == "line" for line in chart.lines):
        return None
    to_x = _transform(chart.x_scale)
    xs = [to_x(x) for line in chart.lines for x, y in zip(line.xs, line.ys, strict=True) if math.isfinite(y)]
    xs += [place for place in map(to_x, chart.x_bounds) if math.isfinite(place)]
    room = (max(xs) - min(xs)) * 0.03 or 0.5
    return min(xs) - room, max(xs) + room


# ---------------------------------------------------------------- values at the mouse pointer


def _build_hovers(chart: LineChart) -> Iterator[tuple[float, str]]:
    """Yield the values of all lines at some evenly spaced xs; the value of a line is that of its nearest point."""
    lines = [line for line in chart.lines if len(line.xs)]
    some = [[*range(0, len(line.xs), -(-len(line.xs) // _MOST_HOVERS)), len(line.xs) - 1] for line in lines]
    drawn = zip(lines, some, strict=True)
    xs = sorted({line.xs[i] for line, indexes in drawn for i in indexes if math.isfinite(line.ys[i])})
    to_x = _transform(chart.x_scale)
    for x in xs[:: -(-len(xs) // _MOST_HOVERS)]:
        found = [f"{line.label}: {_read_nearest(line, x)}" for line in lines if line.xs[0] <= x <= line.xs[-1]]
        more = [f"and {len(found) - _MOST_SHOWN} more"] if len(found) > _MOST_SHOWN else []
        yield to_x(x), "\n".join((f"{chart.x_name} {render_number(float(x), 6)}", *found[:_MOST_SHOWN], *more))


def _read_nearest(line: Line, x: float) -> str:
    after = min(bisect_left(line.xs, x), len(line.xs) - 1)
    nearest = min((max(after - 1, 0), after), key=lambda index: abs(line.xs[index] - x))
    value = render_number(line.ys[nearest], 6)
    return f"{value} ± {render_number(line.spread[nearest], 2)}" if line.spread and line.members > 1 else value
