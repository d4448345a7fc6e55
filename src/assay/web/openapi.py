"""The OpenAPI document of the JSON interface, built from the operations that are declared above the handlers.

What a command prints with `--json` has the shape that the command gives it; the document describes the fields that
every answer has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from assay.reading.listing import NOT_STARTED
from assay.values.state import State
from assay.web.routes import (
    COUNT,
    FLAG,
    NUMBER,
    OBJECT,
    TEXT,
    Operation,
    RouteEntry,
    Schema,
    UrlParam,
    many,
    record,
    ref,
)

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


# ---------------------------------------------------------------- the document

_REASONS = {
    400: "A value is not valid; the answer names it",
    401: "A token is needed, or it is wrong",
    403: "The token does not allow this, or the request comes from another site",
    404: "There is no such study, run, metric or log",
    405: "The address does not take this method",
    409: "It was tried and refused: the command failed, or a run of this name has other content",
    413: "Too large",
    415: "The body is not of the kind that is taken here",
    421: "The server has another name",
    422: "Understood, and cannot be done",
    429: "Too many within a minute",
    503: "The study or the index cannot be read now",
}
_PLAIN = (401, 403, 421)  # statuses with a plain text, sent before the path is read
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
            "description": "What `assay serve` answers to programs. Reading needs no token on the machine itself.",
        },
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _build_operation(entry: RouteEntry, operation: Operation) -> dict[str, Any]:
    content = {"application/json": {"schema": operation.answer}}
    good = {str(status): {"description": "As asked", "content": content} for status in (200, *operation.more)}
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
    built: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [_build_param(each, "path") for each in in_path]
        + [_build_param(each, "query") for each in operation.params],
        "responses": responses,
        "security": [{"token": []}] if entry.scope != "read" else [{}, {"token": []}],
    }
    if entry.scope != "read":
        built["description"] = f"Needs a token that allows you to {entry.scope}."
    if operation.body is not None:
        built["requestBody"] = {"required": True, "content": dict(operation.body)}
    return built


def _build_param(param: UrlParam, place: str) -> dict[str, Any]:
    return {
        "name": param.name,
        "in": place,
        "required": param.needed,
        "description": param.text,
        "schema": dict(param.schema),
    }
