"""What the page of a study shows: rows of its table, curves, plots of its parameters. `web` puts it into HTML."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from assay.errors import UsageError
from assay.record.index.base import Index, Table
from assay.show.chart import Chart, Line, build_band_edges, thin_line
from assay.study import param_plots, plot_page, plotting
from assay.study.locations import StudyLocation
from assay.study.page_view import StudyView
from assay.study.ranking import best_values, choose_sort, differing_params
from assay.study.run_reader import find_step_name, load_objectives
from assay.study.summary import StudySummary, build_summary, select_rows
from assay.values.document import Block
from assay.values.state import State
from assay.values.where import parse_where

_MOST_POINTS = 1500  # of a curve that is sent: more than a screen has columns


class Names(NamedTuple):
    """What can be chosen. `differing`: parameters that take more than one value."""

    metrics: Sequence[str]
    params: Sequence[str]
    differing: Sequence[str]
    step: str


class BestRun(NamedTuple):
    run: str
    metric: str
    value: float


def find_names(location: StudyLocation, table: Table) -> Names:
    params = [row.params for row in table.rows]
    every = list(dict.fromkeys(name for each in params for name in each))
    differing = differing_params(params) if params else []
    return Names(list(table.metrics), every, differing, find_step_name([location], table.rows))


def find_best(location: StudyLocation, table: Table) -> BestRun | None:
    """Of the finished runs, by what the study's search or its most telling metric is about."""
    done = [i for i, row in enumerate(table.rows) if row.state in (State.DONE, State.PRUNED)]
    keys = choose_sort(load_objectives([location], table), table, [row.params for row in table.rows])
    if not done or not keys or not keys[0].is_metric:
        return None
    column = table.metrics[keys[0].name]
    values = best_values(column, keys[0].direction)
    found = [i for i in done if column.count[i] and math.isfinite(values[i])]
    if not found:
        return None
    i = (max if keys[0].direction == "max" else min)(found, key=values.__getitem__)
    return BestRun(table.rows[i].key.partition("/")[2], keys[0].name, values[i])


def build_table(location: StudyLocation, table: Table, view: StudyView, names: Names) -> StudySummary:
    """A page of the table, as `assay sum` would print it."""
    options = view.build_options()
    if not options.sort:
        options = options._replace(sort=load_objectives([location], table))
    return build_summary(table, options, names.step)


# ---------------------------------------------------------------- plots


def build_plots(location: StudyLocation, table: Table, view: StudyView, names: Names) -> Sequence[Block]:
    """What `assay plot` draws of parameters, as blocks of a document."""
    selection = _build_selection(location, table, view)
    metrics = (view.metric,) if view.metric else ()
    options = param_plots.ParamOptions(metrics, color=view.color or None, log=view.log, log_x=view.log_x)
    if view.tab == "scatter":
        param = view.param or next(iter(names.differing), "")
        if not param:
            raise UsageError("the runs of this study do not differ in a parameter")
        plots = param_plots.build_scatters(selection, param, options)
    else:
        plots = _BUILDERS[view.tab](selection, options)
    return plot_page.build_page("", "", plots).blocks[1:]


_BUILDERS: Mapping[str, Callable[[plotting.Selection, param_plots.ParamOptions], list[plotting.Plot]]] = {
    "slices": param_plots.build_slices,
    "parallel": param_plots.build_parallels,
    "history": param_plots.build_histories,
    "importance": param_plots.build_importances,
}


def _build_selection(location: StudyLocation, table: Table, view: StudyView) -> plotting.Selection:
    where = parse_where(view.where) if view.where else None
    keep = select_rows(table, where, (), view.build_options().states)
    most = {name: int(max((column.count[i] for i in keep), default=0)) for name, column in table.metrics.items()}
    counts = {name: count for name, count in most.items() if count}
    if not counts:
        raise UsageError("none of these runs has a metric", plotting.describe_metrics(location))
    return plotting.Selection(table, keep, [location], counts, load_objectives([location], table))


# ---------------------------------------------------------------- curves


def build_curves(index: Index, location: StudyLocation, table: Table, view: StudyView) -> dict[str, Any]:
    """The curves of one metric as JSON, thinned to what a screen shows; highs and lows are kept."""
    selection = _build_selection(location, table, view)
    options = plotting.PlotOptions(
        metrics=(view.metric,) if view.metric else (),
        group_by=view.group,
        log=view.log,
        best=view.best,
        x=view.x or None,  # type: ignore[arg-type]
        smooth=view.smooth,
        log_x=view.log_x,
    )
    (plot, *_) = plotting.build_plots(index, selection, options)
    chart = plot.chart
    if not isinstance(chart, Chart):
        raise TypeError("curves are one chart")
    return {
        "metric": plot.name,
        "x": chart.x_name,
        "y": chart.y_name,
        "log": view.log,
        "log_x": view.log_x,
        "notes": list(plot.notes),
        "curves": [_build_curve(line, chart) for line in chart.lines],
    }


def _build_curve(line: Line, chart: Chart) -> dict[str, Any]:
    """`points`: how many there are behind what is sent."""
    xs, ys = thin_line(line.xs, line.ys, _MOST_POINTS)
    curve: dict[str, Any] = {
        "name": line.label,
        "color": line.number or 0,
        "points": len(line.ys),
        "x": _plain(xs),
        "y": _plain(ys),
    }
    if line.spread:
        lower, upper = build_band_edges(line, chart.scale)
        curve["x_band"], curve["low"] = map(_plain, thin_line(line.xs, lower, _MOST_POINTS))
        _, curve["high"] = map(_plain, thin_line(line.xs, upper, _MOST_POINTS))
    if line.raw:
        curve["x_raw"], curve["raw"] = map(_plain, thin_line(line.xs, line.raw, _MOST_POINTS))
    return curve


def _plain(values: Sequence[float]) -> list[float | None]:
    """JSON knows neither NaN nor infinity: a gap."""
    return [value if math.isfinite(value) else None for value in values]
