"""One study: its table, its curves, and what its parameters do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from assay.errors import UsageError
from assay.show.chart import Chart, Line, build_band_edges, thin_line
from assay.study import param_plots, plot_page, plotting
from assay.study.ranking import differing_params
from assay.study.run_reader import find_step_name, load_objectives
from assay.study.summary import StudySummary, build_summary, select_rows
from assay.values.document import Block, TableBlock
from assay.values.where import parse_where
from assay.web.pages.studies import build_shares
from assay.web.routes import get
from assay.web.site import Site, get_site
from assay.web.snapshots import Snapshot
from assay.web.view import TABS, StudyView

_MOST_POINTS = 1500  # of a curve that is sent: more than a screen has columns
_MOST_ORDERS = 200  # pages of tables kept for the next reader


def show(request: Request) -> Response:
    site = get_site(request)
    snapshot = site.snapshots.load(request.path_params["study"])
    view = StudyView.from_query(request.query_params)
    values: dict[str, Any] = {"summary": None, "blocks": (), "problem": None}
    try:
        if view.tab == "table":
            values["summary"] = load_summary(snapshot, view)
        elif view.tab != "curves":
            values["blocks"] = _build_blocks(snapshot, view)
    except UsageError as error:  # a wrong filter is answered on the page where it was typed
        values["problem"] = error
    return site.render(
        request,
        "study.html",
        snapshot=snapshot,
        view=view,
        tabs=TABS,
        shares=build_shares(snapshot.counts),
        names=find_names(snapshot),
        block=TableBlock,
        **values,
    )


def load_summary(snapshot: Snapshot, view: StudyView) -> StudySummary:
    """A page of the table, as `assay sum` would print it; kept as long as the study does not change."""
    found = snapshot.cache.get(view)
    if isinstance(found, StudySummary):
        return found
    options = view.build_options()
    if not options.sort:
        options = options._replace(sort=load_objectives([snapshot.location], snapshot.table))
    summary = build_summary(snapshot.table, options, _step_name(snapshot))
    if len(snapshot.cache) < _MOST_ORDERS:
        snapshot.cache[view] = summary
    return summary


def find_names(snapshot: Snapshot) -> Mapping[str, Sequence[str]]:
    """What can be chosen: metrics, parameters, and those of them that differ."""
    known = snapshot.cache.get("names")
    if not isinstance(known, dict):
        params = [row.params for row in snapshot.table.rows]
        every = list(dict.fromkeys(name for each in params for name in each))
        known = {
            "metrics": list(snapshot.table.metrics),
            "params": every,
            "differing": differing_params(params) if params else [],
        }
        snapshot.cache["names"] = known
    return known


def _step_name(snapshot: Snapshot) -> str:
    known = snapshot.cache.get("step name")
    if not isinstance(known, str):
        known = snapshot.cache["step name"] = find_step_name([snapshot.location], snapshot.table.rows)
    return str(known)


# ---------------------------------------------------------------- charts


def build_selection(snapshot: Snapshot, view: StudyView) -> plotting.Selection:
    where = parse_where(view.where) if view.where else None
    states = view.build_options().states
    keep = select_rows(snapshot.table, where, (), states)
    columns = snapshot.table.metrics.items()
    most = {name: int(max((column.count[i] for i in keep), default=0)) for name, column in columns}
    counts = {name: count for name, count in most.items() if count}
    if not counts:
        raise UsageError("none of these runs has a metric", plotting.describe_metrics(snapshot.location))
    objectives = load_objectives([snapshot.location], snapshot.table)
    return plotting.Selection(snapshot.table, keep, [snapshot.location], counts, objectives)


_BUILDERS: Mapping[str, Callable[[plotting.Selection, param_plots.ParamOptions], list[plotting.Plot]]] = {
    "slices": param_plots.build_slices,
    "parallel": param_plots.build_parallels,
    "history": param_plots.build_histories,
    "importance": param_plots.build_importances,
}


def _build_blocks(snapshot: Snapshot, view: StudyView) -> Sequence[Block]:
    selection = build_selection(snapshot, view)
    metrics = (view.metric,) if view.metric else ()
    options = param_plots.ParamOptions(metrics, color=view.color or None, log=view.log, log_x=view.log_x)
    if view.tab == "scatter":
        param = view.param or next(iter(find_names(snapshot)["differing"]), "")
        if not param:
            raise UsageError("the runs of this study do not differ in a parameter")
        plots = param_plots.build_scatters(selection, param, options)
    else:
        plots = _BUILDERS[view.tab](selection, options)
    return plot_page.build_page("", "", plots).blocks[1:]


def send_curves(request: Request) -> Response:
    """The curves of one metric, thinned to what a screen shows; highs and lows are kept."""
    site = get_site(request)
    snapshot = site.snapshots.load(request.path_params["study"])
    view = StudyView.from_query(request.query_params)
    return JSONResponse(build_curves(site, snapshot, view), headers={"cache-control": "no-store"})


def build_curves(site: Site, snapshot: Snapshot, view: StudyView) -> dict[str, Any]:
    selection = build_selection(snapshot, view)
    options = plotting.PlotOptions(
        metrics=(view.metric,) if view.metric else (),
        group_by=view.group,
        log=view.log,
        best=view.best,
        x=view.x or None,  # type: ignore[arg-type]
        smooth=view.smooth,
        log_x=view.log_x,
    )
    with site.snapshots.open_index(snapshot.location.root) as index:
        plots = plotting.build_plots(index, selection, options)
    plot = plots[0]
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
    curve: dict[str, Any] = {"name": line.label, "points": len(line.ys), "x": _plain(xs), "y": _plain(ys)}
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


ROUTES = [get("/studies/{study}", show), get("/api/studies/{study}/curves", send_curves)]
