"""The JSON interface: what the commands print with `--json`, by address. Each is described beside its route."""

from __future__ import annotations

import os
from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import Response

from assay.errors import FormatError, NotFoundError, UsageError
from assay.follow.api import FoundRun
from assay.web.answers import send
from assay.web.openapi import CHOICE, build_document, view_params
from assay.web.operations import OBJECT, TEXT, Operation, Param, many, ref
from assay.web.pages.page_facts import (
    build_comparisons,
    build_listing_facts,
    build_run_answer,
    build_series_facts,
    build_study_facts,
    build_table_facts,
    load_verdicts,
)
from assay.web.pages.page_view import StudyView
from assay.web.pages.run import find_run
from assay.web.pages.study_page import find_best, find_names
from assay.web.routes import get
from assay.web.site import build_address, get_site, read_query
from assay.web.snapshots import Snapshot

_MOST_COMPARED = 100
_MOST_POINTS = 100_000


def send_openapi(request: Request) -> Response:
    return send(build_document(request.app.state.entries))


def send_studies(request: Request) -> Response:
    known = get_site(request).snapshots.load_studies()
    return send(
        [
            {"study": slug, **build_study_facts(location, row), "link": build_address("studies", slug)}
            for slug, (location, row) in known.items()
        ]
    )


def _load(request: Request) -> Snapshot:
    return get_site(request).snapshots.load(request.path_params["study"])


def send_study(request: Request) -> Response:
    snapshot = _load(request)
    location, table = snapshot.location, snapshot.table
    names = snapshot.remember("names", lambda: find_names(location, table))
    best = find_best(location, table)
    return send(
        {
            "study": snapshot.slug,
            "name": location.name,
            "root": location.root,
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
    """All rows, unless a page of them is asked for."""
    return not {"page", "rows"} & set(request.query_params)


def send_table(request: Request) -> Response:
    snapshot = _load(request)
    location, table = snapshot.location, snapshot.table
    view = StudyView.from_query(read_query(request))
    names = snapshot.remember("names", lambda: find_names(location, table))
    return send(build_table_facts(location, table, view, names, whole=_is_whole(request)))


def send_runs(request: Request) -> Response:
    snapshot = _load(request)
    view = StudyView.from_query(read_query(request))
    return send(build_listing_facts(snapshot.location, snapshot.table, view, whole=_is_whole(request)))


def send_verdicts(request: Request) -> Response:
    return send(load_verdicts(_load(request).location))


# ---------------------------------------------------------------- runs


def send_run(request: Request) -> Response:
    site, snapshot, number, run_dir = find_run(request)
    key = snapshot.table.rows[number].key
    children = [row.key for row in snapshot.table.rows if row.parent == key]
    try:
        with site.snapshots.open_index(snapshot.location.root) as index:
            return send(build_run_answer(index, snapshot.location, run_dir, children))
    except (FormatError, FileNotFoundError) as error:
        raise UsageError(f"the run {key} is damaged: {error}") from error


def send_series(request: Request) -> Response:
    site, snapshot, number, _ = find_run(request)
    metric = request.query_params.get("metric", "")
    known = [name for name, column in snapshot.table.metrics.items() if column.count[number]]
    if metric not in known:
        raise NotFoundError("metric", metric, known)
    points = read_count(request, "points", _MOST_POINTS)
    with site.snapshots.read_points(snapshot.location.root) as index:
        series = index.load_series(snapshot.table.rows[number].key, metric)
        return send(build_series_facts(series, metric, known, points))


def read_count(request: Request, name: str, most: int) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:18]) <= most or len(text) > 18:
        raise UsageError(f"{name} is not a whole number from 1 to {most}: {text[:40]!r}")
    return int(text)


def send_comparison(request: Request) -> Response:
    """The first run with each of the others."""
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
    with ExitStack() as stack:
        opened = [(stack.enter_context(site.snapshots.open_index(run.location.root)), run) for run in runs]
        return send(build_comparisons(opened))


ROUTES = [
    get("/api/openapi.json", send_openapi, Operation("describe", "This document", OBJECT, refusals=())),
    get("/api/studies", send_studies, Operation("listStudies", "All studies", many(ref("Study")), refusals=())),
    get(
        "/api/studies/{study}",
        send_study,
        Operation("showStudy", "What a study has: states, metrics, parameters", ref("StudyFacts")),
    ),
    get(
        "/api/studies/{study}/table",
        send_table,
        Operation(
            "showTable",
            "The table of a study, as `assay sum STUDY --json`",
            many(ref("TableRow")),
            view_params(*CHOICE, "group", "metrics", "show", "hide"),
        ),
    ),
    get(
        "/api/studies/{study}/runs",
        send_runs,
        Operation(
            "listRuns", "The runs of a study, as `assay ls STUDY --json`", many(ref("RunRow")), view_params(*CHOICE)
        ),
    ),
    get(
        "/api/studies/{study}/verdicts",
        send_verdicts,
        Operation("listVerdicts", "What was judged: a finding each, the newest last", many(ref("Verdict"))),
    ),
    get(
        "/api/studies/{study}/runs/{run}",
        send_run,
        Operation("showRun", "Everything about a run, as `assay show STUDY/RUN --json`", ref("Run")),
    ),
    get(
        "/api/studies/{study}/runs/{run}/series",
        send_series,
        Operation(
            "showSeries",
            "One metric of a run, point by point",
            ref("Series"),
            (
                Param("metric", "which metric", needed=True),
                Param(
                    "points",
                    "about how many points; without it all",
                    {"type": "integer", "minimum": 1, "maximum": _MOST_POINTS},
                ),
            ),
        ),
    ),
    get(
        "/api/compare",
        send_comparison,
        Operation(
            "compareRuns",
            "The first run with each other one, as `assay diff --json`",
            many(ref("Comparison")),
            (Param("run", "STUDY/RUN; two or more", many(TEXT), needed=True),),
        ),
    ),
]
