"""The JSON interface: what the commands print with `--json`, by address. `openapi.py` describes each of them."""

from __future__ import annotations

import os
from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import Response

from assay.errors import FormatError, NotFoundError, UsageError
from assay.follow.api import FoundRun
from assay.web.answers import send
from assay.web.contents.page_facts import (
    build_comparisons,
    build_listing_facts,
    build_run_answer,
    build_series_facts,
    build_study_facts,
    build_table_facts,
    load_verdicts,
)
from assay.web.contents.page_view import StudyView
from assay.web.contents.study_page import find_best, find_names
from assay.web.openapi import build_document
from assay.web.pages.run import find_run
from assay.web.routes import get
from assay.web.site import build_address, get_site, read_query
from assay.web.snapshots import Snapshot

_MOST_COMPARED = 100
_MOST_POINTS = 100_000


def send_openapi(_request: Request) -> Response:
    return send(build_document())


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
    get("/api/openapi.json", send_openapi),
    get("/api/studies", send_studies),
    get("/api/studies/{study}", send_study),
    get("/api/studies/{study}/table", send_table),
    get("/api/studies/{study}/runs", send_runs),
    get("/api/studies/{study}/verdicts", send_verdicts),
    get("/api/studies/{study}/runs/{run}", send_run),
    get("/api/studies/{study}/runs/{run}/series", send_series),
    get("/api/compare", send_comparison),
]
