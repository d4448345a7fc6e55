"""The JSON interface: paths that return what commands print with `--json`. Each route declares its description."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from assay.errors import FormatError, NotFoundError, UsageError
from assay.follow.api import FoundRun
from assay.reading import run_diff
from assay.reading.api import choose_sort, select_rows, sort_rows
from assay.reading.listing import build_run_facts, list_rows
from assay.reading.run_description import build_facts
from assay.record.index.base import Series
from assay.show.chart import thin
from assay.show.formatting import to_json
from assay.show.table import build_rows
from assay.values.state import State
from assay.web.answers import send
from assay.web.openapi import build_document
from assay.web.pages.page_view import METRIC, StudyView, view_params
from assay.web.pages.run import describe_served, find_children, find_run
from assay.web.pages.study_page import build_plain_table, find_best, find_names, leave_gaps
from assay.web.pages.verdicts import load_verdicts
from assay.web.routes import OBJECT, TEXT, Routes, Schema, UrlParam, many, ref
from assay.web.site import build_address, get_site, load_study, read_query

_MOST_COMPARED = 100
_MOST_POINTS = 100_000
_CHOICE = ("where", "states", "sort", "reverse", "page", "rows")
_COUNT: Schema = {"type": "integer", "minimum": 1, "maximum": _MOST_POINTS}
_POINTS = UrlParam("points", "about how many points; without it all", _COUNT)
_COMPARED = UrlParam("run", "STUDY/RUN; two or more", many(TEXT), needed=True)
ROUTES = Routes()


@ROUTES.json("/api/openapi.json", "describe", OBJECT, refusals=())
def send_openapi(request: Request) -> Response:
    """This document"""
    return send(build_document(request.app.state.entries))


@ROUTES.json("/api/studies", "listStudies", many(ref("Study")), refusals=())
def send_studies(request: Request) -> Response:
    """All studies"""
    known = get_site(request).snapshots.load_studies()
    return send(
        [
            {
                "study": slug,
                "name": location.name,
                "root": location.root,
                "runs": row.runs,
                "counts": {str(state): row.counts.get(state, 0) for state in State},
                "last_activity": row.last_activity,
                "link": build_address("studies", slug),
            }
            for slug, (location, row) in known.items()
        ]
    )


@ROUTES.json("/api/studies/{study}", "showStudy", ref("StudyFacts"))
def send_study(request: Request) -> Response:
    """What a study has: states, metrics, parameters"""
    snapshot = load_study(request)
    names, best = find_names(snapshot), find_best(snapshot)
    return send(
        {
            "study": snapshot.slug,
            "name": snapshot.location.name,
            "root": snapshot.location.root,
            "runs": snapshot.counts.total(),
            "counts": {str(state): count for state, count in snapshot.counts.items()},
            "metrics": list(names.metrics),
            "params": list(names.params),
            "differing": list(names.differing),
            "step": names.step,
            "best": best._asdict() if best else None,
            "version": snapshot.version,
            "problems": list(snapshot.problems),
            "link": build_address("studies", snapshot.slug),
        }
    )


def _is_whole(request: Request) -> bool:
    """Return whether the request asks for all rows, that is, not for one page of them."""
    return not {"page", "rows"} & set(request.query_params)


@ROUTES.json(
    "/api/studies/{study}/table",
    "showTable",
    many(ref("TableRow")),
    view_params(*_CHOICE, "group", "metrics", "show", "hide"),
)
def send_table(request: Request) -> Response:
    """The table of a study, as `assay sum STUDY --json`"""
    view = StudyView.from_query(read_query(request))
    return send(build_rows(build_plain_table(load_study(request), view, whole=_is_whole(request))))


@ROUTES.json("/api/studies/{study}/runs", "listRuns", many(ref("RunRow")), view_params(*_CHOICE))
def send_runs(request: Request) -> Response:
    """The runs of a study, as `assay ls STUDY --json`"""
    snapshot = load_study(request)
    table, view = snapshot.table, StudyView.from_query(read_query(request))
    options = view.build_options()
    keep = select_rows(table, options.where, (), options.states)
    if view.sort:
        params = [row.params for row in table.rows]
        keys = choose_sort(view.sort, table, params)
        keep = sort_rows(table, keep, [key._replace(is_reversed=view.reverse) for key in keys], params)
    if not _is_whole(request):
        keep = keep[options.offset : options.offset + (options.limit or len(keep))]
    return send(build_rows(build_run_facts(list_rows(table, keep), snapshot.location, time.time())))


@ROUTES.json("/api/studies/{study}/verdicts", "listVerdicts", many(ref("Verdict")))
def send_verdicts(request: Request) -> Response:
    """What was judged: a finding each, the newest last"""
    return send(load_verdicts(load_study(request).location))


# ---------------------------------------------------------------- runs


@ROUTES.json("/api/studies/{study}/runs/{run}", "showRun", ref("Run"))
def send_run(request: Request) -> Response:
    """Everything about a run, as `assay show STUDY/RUN --json`"""
    site, snapshot, number, run_dir = find_run(request)
    key = snapshot.table.rows[number].key
    children = find_children(snapshot.table.rows, key)
    try:
        with site.snapshots.open_index(snapshot.location.root) as index:
            return send(to_json(build_facts(describe_served(index, snapshot.location, run_dir, children))))
    except (FormatError, FileNotFoundError) as error:
        raise UsageError(f"the run {key} is damaged: {error}") from error


@ROUTES.json("/api/studies/{study}/runs/{run}/series", "showSeries", ref("Series"), (METRIC, _POINTS))
def send_series(request: Request) -> Response:
    """One metric of a run, point by point"""
    site, snapshot, number, _ = find_run(request)
    metric = request.query_params.get("metric", "")
    known = [name for name, column in snapshot.table.metrics.items() if column.count[number]]
    if metric not in known:
        raise NotFoundError("metric", metric, known)
    points = read_count(request, "points", _MOST_POINTS)
    with site.snapshots.read_points(snapshot.location.root) as index:
        series = index.load_series(snapshot.table.rows[number].key, metric)
        return send(build_series_facts(series, metric, known, points))


def build_series_facts(series: Series, metric: str, known: Sequence[str], points: int | None) -> dict[str, Any]:
    """Return the columns of a series; `points` limits their length, with the extremes of each stretch kept."""
    if not series.values:
        raise NotFoundError("metric", metric, known)
    chosen: Sequence[int] = range(len(series.values))
    if points is not None and points < len(series.values):
        chosen = _thin(series.values, points)
    return {
        "metric": metric,
        "points": len(series.values),
        "is_thinned": len(chosen) < len(series.values),
        "step": leave_gaps(series.steps[i] for i in chosen),
        "value": [to_json(series.values[i]) for i in chosen],
        "time": leave_gaps(series.times[i] for i in chosen),
    }


def _thin(values: Sequence[float], most: int) -> list[int]:
    """Return the indices of the points to keep, with one for each gap: a stretch of values that are not finite."""
    finite = [(float(i), value) for i, value in enumerate(values) if math.isfinite(value)]
    gaps = [
        i for i, value in enumerate(values) if not math.isfinite(value) and (i == 0 or math.isfinite(values[i - 1]))
    ]
    return sorted({*(int(i) for i, _ in thin(finite, most)), *gaps[:most]})


def read_count(request: Request, name: str, most: int) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:18]) <= most or len(text) > 18:
        raise UsageError(f"{name} is not a whole number from 1 to {most}: {text[:40]!r}")
    return int(text)


@ROUTES.json("/api/compare", "compareRuns", many(ref("Comparison")), (_COMPARED,))
def send_comparison(request: Request) -> Response:
    """The first run with each other one, as `assay diff --json`"""
    site = get_site(request)
    names = list(dict.fromkeys(request.query_params.getlist("run")))
    if len(names) > _MOST_COMPARED:
        raise UsageError(f"at most {_MOST_COMPARED} runs are compared at once")
    runs: list[FoundRun] = []
    for name in names:
        slug, _, run = name.partition("/")
        snapshot = site.snapshots.load(slug)
        snapshot.get_row(run)
        runs.append(FoundRun(snapshot.location, os.path.join(snapshot.location.dir, run)))
    if len(runs) < 2:
        raise UsageError("which runs are to be compared?", "two or more: ?run=STUDY/RUN&run=STUDY/RUN")
    with ExitStack() as stack:
        indexes = [stack.enter_context(site.snapshots.open_index(run.location.root)) for run in runs]
        found = [
            run_diff.compare(indexes[0], index, runs[0], run, within_root=True)
            for index, run in zip(indexes[1:], runs[1:], strict=True)
        ]
    return send([to_json(run_diff.build_facts(each)) for each in found])
