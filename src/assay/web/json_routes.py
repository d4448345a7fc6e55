"""The JSON interface: paths that return what commands print with `--json`. Each route declares its description."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from assay.errors import FormatError, NotFoundError, UsageError
from assay.follow.api import FoundRun
from assay.reading import run_diff
from assay.reading.api import choose_sort, select_rows, sort_rows
from assay.reading.listing import NOT_STARTED, build_run_facts, list_rows
from assay.reading.run_description import build_facts
from assay.record.index.base import Series
from assay.show.chart import thin
from assay.show.formatting import to_json
from assay.show.table import build_rows
from assay.values.state import State
from assay.web.pages.page_view import METRIC, StudyView, view_params
from assay.web.pages.run import describe_served, find_children, find_run
from assay.web.pages.study_page import build_plain_table, find_best, find_names, leave_gaps
from assay.web.pages.verdicts import load_verdicts
from assay.web.routes import (
    COUNT,
    FLAG,
    NUMBER,
    OBJECT,
    TEXT,
    Operation,
    RouteEntry,
    Routes,
    Schema,
    UrlParam,
    many,
    record,
    ref,
    send,
)
from assay.web.site import build_address, get_site, load_study, read_query

_MOST_COMPARED = 100
_MOST_POINTS = 100_000
_CHOICE = ("where", "states", "sort", "reverse", "page", "rows")
_POINTS = UrlParam("points", "about how many points; without it all", {**COUNT, "minimum": 1, "maximum": _MOST_POINTS})
_COMPARED = UrlParam("run", "STUDY/RUN; two or more", many(TEXT), needed=True)
ROUTES = Routes()


@ROUTES.json("/api/openapi.json", "describe", OBJECT, refusals=())
def send_openapi(request: Request) -> Response:
    """The OpenAPI description of this interface"""
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
    """States, metrics and parameters of a study"""
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
    """The findings of all verdicts of a study, the newest last"""
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
    points, text = None, request.query_params.get("points")
    if text is not None:
        if not text.isascii() or not text.isdecimal() or len(text) > 18 or not 1 <= int(text) <= _MOST_POINTS:
            raise UsageError(f"points is not a whole number from 1 to {_MOST_POINTS}: {text[:40]!r}")
        points = int(text)
    with site.snapshots.read_points(snapshot.location.root) as index:
        series = index.load_series(snapshot.table.rows[number].key, metric)
        return send(build_series_facts(series, metric, known, points))


def build_series_facts(series: Series, metric: str, known: Sequence[str], points: int | None) -> dict[str, Any]:
    """Return the columns of a series; `points` limits their length, and the extremes of each section are kept."""
    if not series.values:
        raise NotFoundError("metric", metric, known)
    chosen: Sequence[int] = range(len(series.values))
    if points is not None and points < len(series.values):
        is_finite = [*map(math.isfinite, series.values)]
        finite = [(float(i), series.values[i]) for i in chosen if is_finite[i]]
        gaps = [i for i in chosen if not is_finite[i] and (i == 0 or is_finite[i - 1])]  # the first point of each gap
        chosen = sorted({*(int(i) for i, _ in thin(finite, points)), *gaps[:points]})
    return {
        "metric": metric,
        "points": len(series.values),
        "is_thinned": len(chosen) < len(series.values),
        "step": leave_gaps(series.steps[i] for i in chosen),
        "value": [to_json(series.values[i]) for i in chosen],
        "time": leave_gaps(series.times[i] for i in chosen),
    }


@ROUTES.json("/api/compare", "compareRuns", many(ref("Comparison")), (_COMPARED,))
def send_comparison(request: Request) -> Response:
    """The differences between the first run and each of the others, as `assay diff --json`"""
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


# ---------------------------------------------------------------- schemas of answers, with the fields that all have

MAYBE_TEXT: Schema = {"type": ["string", "null"]}
MAYBE_NUMBER: Schema = {"type": ["number", "null"]}
VALUE: Schema = {"anyOf": [NUMBER, {"enum": ["NaN", "Infinity", "-Infinity"]}]}  # JSON has no NaN
STATE: Schema = {"enum": [str(state) for state in State]}
COUNTS: Schema = {"type": "object", "additionalProperties": COUNT}
_BEST: Schema = {"anyOf": [record(run=TEXT, metric=TEXT, value=NUMBER), {"type": "null"}]}
_VALUES: Schema = {"type": "object", "additionalProperties": VALUE}
_CURVE = record(
    name=TEXT, run=MAYBE_TEXT, state=MAYBE_TEXT, runs=COUNT, color={"type": "integer"}, points=COUNT, last=VALUE,
    best=MAYBE_NUMBER, x=many(MAYBE_NUMBER), y=many(MAYBE_NUMBER),
)  # fmt: skip
SCHEMAS: Mapping[str, Schema] = {
    "Study": record(
        study=TEXT, name=TEXT, root=TEXT, runs=COUNT, counts=COUNTS, last_activity=MAYBE_NUMBER, link=TEXT
    ),
    "StudyFacts": record(
        study=TEXT, name=TEXT, root=TEXT, runs=COUNT, counts=COUNTS, metrics=many(TEXT), params=many(TEXT),
        differing=many(TEXT), step=TEXT, best=_BEST, version=COUNT, problems=many(TEXT), link=TEXT,
    ),
    "TableRow": OBJECT,
    "RunRow": record(
        key=TEXT, study=TEXT, name=TEXT, id=TEXT, state={"enum": [*map(str, State), NOT_STARTED]}, attempt=COUNT,
        params=OBJECT, created_at=MAYBE_NUMBER, started_at=MAYBE_NUMBER, ended_at=MAYBE_NUMBER, reason=TEXT,
        tags=many(TEXT), note=TEXT, dir=TEXT, elapsed_s=MAYBE_NUMBER, metrics=_VALUES, overrides=many(TEXT),
    ),
    "Run": record(
        key=TEXT, dir=TEXT, name=TEXT, id=TEXT, study=TEXT, state=STATE, reason=TEXT, params=OBJECT, commands=OBJECT,
        attempts=many(OBJECT), metrics=OBJECT, metric_sources=many(TEXT), created_at=NUMBER, tags=many(TEXT),
        notes=many(OBJECT), children=many(TEXT), files=COUNTS,
    ),
    "Series": record(
        metric=TEXT, points=COUNT, is_thinned=FLAG, step=many(MAYBE_NUMBER), value=many(VALUE), time=many(MAYBE_NUMBER)
    ),
    "Verdict": record(
        key=MAYBE_TEXT, judged_at=NUMBER, source=TEXT, result=TEXT, kind=TEXT, subject=TEXT, message=TEXT,
        value={"anyOf": [VALUE, {"type": "null"}]}, expected={"anyOf": [VALUE, {"type": "null"}]},
    ),
    "Comparison": record(
        first=TEXT, second=TEXT, state={"type": ["object", "null"]}, params=OBJECT, commands=OBJECT, environment=OBJECT,
        code={"type": "object", "additionalProperties": TEXT}, code_note=MAYBE_TEXT, metrics=OBJECT,
    ),
    "Curves": record(
        metric=TEXT, direction={"enum": ["min", "max"]}, x=TEXT, y=TEXT, log=FLAG, log_x=FLAG, notes=many(TEXT),
        curves=many(_CURVE),
    ),
    "LogPart": record(name=TEXT, text=TEXT, start=COUNT, end=COUNT, size=COUNT),
    "LogMatches": record(
        matches=many(record(offset=COUNT, line=TEXT)), start=COUNT, searched=COUNT, size=COUNT, is_whole=FLAG
    ),
    "Error": record(error=TEXT, hint=TEXT),
}  # fmt: skip


# ---------------------------------------------------------------- the OpenAPI document

_REASONS = {
    400: "A value is not valid; the answer names the value",
    401: "The token is missing or not valid",
    403: "The token does not allow this, or the request comes from another site",
    404: "There is no such study, run, metric or log",
    405: "The address does not take this method",
    409: "The command failed, or a run of this name has other content",
    413: "The body is too large",
    415: "The type of the body is not accepted here",
    421: "The server has another name",
    422: "The request is valid and cannot be carried out",
    429: "Too many wrong tokens or uploads within a minute",
    503: "The study or the index cannot be read now",
}
_PLAIN = (401, 403, 421)  # statuses of answers in plain text, which the guard sends
_PATH_PARAMS = {"study": "a study, as /api/studies names it", "run": "a run: the name of its directory"}


def build_document(entries: Iterable[RouteEntry]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    schemas = dict(SCHEMAS)
    for entry in entries:
        if entry.operation is not None:
            (method,) = entry.methods
            paths.setdefault(entry.path, {})[method.lower()] = _build_operation(entry, entry.operation)
            schemas |= entry.operation.schemas
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Assay",
            "version": "1",
            "description": "The JSON interface of `assay serve`. Reading needs no token on the machine itself.",
        },
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _build_operation(entry: RouteEntry, operation: Operation) -> dict[str, Any]:
    content = {"application/json": {"schema": operation.answer}}
    good = {str(status): {"description": "Success", "content": content} for status in (200, *operation.more)}
    refusals = sorted({*operation.refusals, *_PLAIN, *((413, 429) if entry.scope != "read" else (429,)), 503})
    names = [part[1:-1].partition(":")[0] for part in entry.path.split("/") if part.startswith("{")]
    in_path = [UrlParam(name, _PATH_PARAMS.get(name, name), needed=True) for name in names]
    responses: dict[str, Any] = {**good}
    for status in refusals:
        bodies: dict[str, Any] = {"text/plain": {"schema": TEXT}}
        if status not in _PLAIN:
            refused = {"anyOf": [ref("Error"), ref("Action")]} if status == 409 else ref("Error")
            bodies["application/json"] = {"schema": refused}
        responses[str(status)] = {"description": _REASONS[status], "content": bodies}
    params = [*((each, "path") for each in in_path), *((each, "query") for each in operation.params)]
    built: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            {"name": name, "in": where, "required": needed, "description": text, "schema": dict(schema)}
            for (name, text, schema, needed), where in params
        ],
        "responses": responses,
        "security": [{"token": []}] if entry.scope != "read" else [{}, {"token": []}],
    }
    if entry.scope != "read":
        built["description"] = f"Needs a token that allows you to {entry.scope}."
    if operation.body is not None:
        built["requestBody"] = {"required": True, "content": dict(operation.body)}
    return built
