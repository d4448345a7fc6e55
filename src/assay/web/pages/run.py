"""One run: what it was, how it went, its logs and files."""

from __future__ import annotations

import os
import queue

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from assay.errors import FormatError, NotFoundError, UsageError
from assay.follow.api import LimitedProcess
from assay.web.answers import quote, send
from assay.web.interface import ask_pages
from assay.web.operations import COUNT, Operation, Param, ref
from assay.web.pages.page_view import read_x, view_params
from assay.web.pages.run_files import (
    choose_log,
    find_default_log,
    find_file,
    find_image_kind,
    list_files,
    load_log,
    split_diff,
)
from assay.web.pages.run_page import build_run_curves, build_run_page, choose_metrics, find_children, find_failure
from assay.web.pages.study_page import find_names
from assay.web.pages.traces import list_traces
from assay.web.routes import get
from assay.web.site import Site, build_address, get_site
from assay.web.snapshots import StudySnapshot

_MOST_CHARTS = 24  # the others by a click
_MOST_SEARCHES = 3  # each may take seconds
_SEARCH_S = 10.0  # of CPU time
_searchers: queue.SimpleQueue[LimitedProcess] = queue.SimpleQueue()  # in this process they would hold up every thread
for _ in range(_MOST_SEARCHES):
    _searchers.put(LimitedProcess())


def find_run(request: Request) -> tuple[Site, StudySnapshot, int, str]:
    """The run of the address: its row, and its directory."""
    site = get_site(request)
    snapshot = site.snapshots.load(request.path_params["study"])
    row = snapshot.get_row(request.path_params["run"])
    return site, snapshot, row, os.path.join(snapshot.location.dir, request.path_params["run"])


def show(request: Request) -> Response:
    site, snapshot, number, run_dir = find_run(request)
    row, table, location = snapshot.table.rows[number], snapshot.table, snapshot.location
    names = find_names(location, table)
    page, problem = None, ""
    try:
        with site.snapshots.open_index(location.root) as index:
            page = build_run_page(index, location, run_dir, find_children(table.rows, row.key), names.differing)
    except FormatError as error:  # its files are shown all the same
        problem = error.message
    metrics, has_times = choose_metrics(table, number)
    is_timed = request.query_params.get("x") == "time" and has_times
    files, failure = list_files(run_dir), find_failure(run_dir, row)
    most = len(metrics) if request.query_params.get("all") else _MOST_CHARTS
    return site.render(
        request,
        "run.html",
        snapshot=snapshot,
        row=row,
        run=request.path_params["run"],
        page=page,
        problem=problem,
        metrics=metrics[:most],
        left_out=len(metrics) - len(metrics[:most]),
        has_times=has_times,
        is_timed=is_timed,
        files=files,
        failure=failure,
        log=(failure.log if failure else "") or find_default_log(run_dir),
        related=_find_related(site, snapshot, request.path_params["run"], {file.name for file in files}),
        links=_link_runs(site, snapshot, [*page.children, page.parent] if page else []),
        split_diff=split_diff,
        quoted=lambda text: quote(text, safe="/"),
    )


def _find_related(site: Site, snapshot: StudySnapshot, run: str, files: set[str]) -> list[tuple[str, str]]:
    """Pages of the products that this run belongs to."""
    slug = snapshot.slug
    found = [each for links in ask_pages(site.pages, "find_related", slug, run, files) for each in links]
    if list_traces(snapshot.location, slug, run):
        found.append(("Traces", build_address("traces", slug, run)))
    return found


def _link_runs(site: Site, snapshot: StudySnapshot, keys: list[str]) -> dict[str, str]:
    """Addresses of other runs by their keys; only of those that exist."""
    found = {}
    for key in filter(None, keys):
        study, _, run = key.partition("/")
        try:
            other = snapshot if study == snapshot.location.name else site.snapshots.load(study)
            other.get_row(run)
        except NotFoundError:
            continue
        found[key] = build_address("studies", other.slug, "runs", run)
    return found


def send_curves(request: Request) -> Response:
    site, snapshot, number, _ = find_run(request)
    query = request.query_params
    x = read_x(query.get("x", ""))
    metrics, _ = choose_metrics(snapshot.table, number)
    reading = query.get("reading", "")
    metric = query.get("metric", "") or ("" if reading else next(iter(metrics), ""))
    with site.snapshots.read_points(snapshot.location.root) as index:
        return send(
            build_run_curves(
                index, snapshot.location, snapshot.table, number, metric=metric, reading=reading, x=x
            )
        )  # fmt: skip


def send_log(request: Request) -> Response:
    """A part of a log as JSON: its end, or from an offset on; with `find` the lines that hold these words."""
    _, _, _, run_dir = find_run(request)
    query = request.query_params
    attempt, start = (_read_whole(query.get(name), name) for name in ("attempt", "from"))
    path = choose_log(run_dir, query.get("file") or None, query.get("command") or None, attempt)
    words = query.get("find", "")
    if not words:
        return send(load_log(path, start)._asdict())
    if len(words) > 1000:
        raise UsageError("a search has at most 1000 characters")
    try:
        searcher = _searchers.get(timeout=0.3)
    except queue.Empty:
        raise HTTPException(429, "other searches are going on; try again in a moment") from None
    try:
        found = searcher.call("assay.web.pages.run_files:search_log", path, words, start or 0, limit_s=_SEARCH_S)
    finally:
        _searchers.put(searcher)
    items = [each._asdict() for each in found.items]
    return send({**found._asdict(), "items": None, "matches": items})


def _read_whole(text: str | None, name: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise UsageError(f"{name} is not a whole number: {text[:40]!r}")
    return int(text)


def send_file(request: Request) -> Response:
    """A file is saved, never shown: it may be a page with scripts. With `view` a picture, known by its bytes, is shown,
    which no browser executes."""
    _, _, _, run_dir = find_run(request)
    path = find_file(run_dir, request.path_params["file"])
    kind = find_image_kind(path) if request.query_params.get("view") else None
    headers = {"content-security-policy": "sandbox; default-src 'none'", "cache-control": "no-store"}
    if kind:
        return FileResponse(path, media_type=kind, headers={**headers, "content-disposition": "inline"})
    name = os.path.basename(path)
    return FileResponse(path, media_type="application/octet-stream", filename=name, headers=headers)


ROUTES = [
    get("/studies/{study}/runs/{run}", show),
    get("/studies/{study}/runs/{run}/files/{file:path}", send_file),
    get(
        "/api/studies/{study}/runs/{run}/curves",
        send_curves,
        Operation(
            "showRunCurve",
            "One metric of a run, or one of its readings, thinned to what a screen shows; "
            "over time all have the same axis",
            ref("Curves"),
            (
                Param("metric", "which metric"),
                Param("reading", "instead of a metric: what was read of the machine, for example `memory, GiB`"),
                *view_params("x"),
            ),
        ),
    ),
    get(
        "/api/studies/{study}/runs/{run}/log",
        send_log,
        Operation(
            "showLog",
            "A part of a log, or with `find` the lines that hold these words",
            {"anyOf": [ref("LogPart"), ref("LogMatches")]},
            (
                Param("command", "which command; without it the one that failed, else the last"),
                Param("attempt", "which attempt; without it the last", {"type": "integer", "minimum": 1}),
                Param("file", "instead of a command: a file of the run by its name"),
                Param("from", "the first byte; without it the end of the log, or the beginning of a search", COUNT),
                Param("find", "instead of a part: lines that hold these words"),
            ),
        ),
    ),
]
