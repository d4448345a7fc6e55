"""What the JSON interface offers, as an OpenAPI document. A test compares this table with the routes.

Paths are those of the routes. What a command prints with `--json` has the shape that the command gives it: here stand
the fields that every answer has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from assay.values.state import State
from assay.web.contents.page_view import TABS, StudyView

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
MAYBE_TEXT: Schema = {"type": ["string", "null"]}
MAYBE_NUMBER: Schema = {"type": ["number", "null"]}
VALUE: Schema = {"anyOf": [NUMBER, {"enum": ["NaN", "Infinity", "-Infinity"]}]}  # JSON has no NaN
STATE: Schema = {"enum": [str(state) for state in State]}
OBJECT: Schema = {"type": "object"}
BINARY: Schema = {"type": "string", "format": "binary"}


def many(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def record(**fields: Schema) -> Schema:
    """All of these, and perhaps more."""
    return {"type": "object", "properties": dict(fields), "required": list(fields)}


COUNTS: Schema = {"type": "object", "additionalProperties": COUNT}
STUDY = record(
    study=TEXT, name=TEXT, root=TEXT, runs=COUNT, counts=COUNTS, last_activity=MAYBE_NUMBER, link=TEXT
)  # fmt: skip
BEST: Schema = {"anyOf": [record(run=TEXT, metric=TEXT, value=NUMBER), {"type": "null"}]}
STUDY_FACTS = record(
    study=TEXT, name=TEXT, root=TEXT, runs=COUNT, counts=COUNTS, metrics=many(TEXT), params=many(TEXT),
    differing=many(TEXT), step=TEXT, best=BEST, version=COUNT, problems=many(TEXT), link=TEXT,
)  # fmt: skip
RUN_ROW = record(
    key=TEXT, study=TEXT, name=TEXT, id=TEXT, state=STATE, attempt=COUNT, params=OBJECT, created_at=MAYBE_NUMBER,
    started_at=MAYBE_NUMBER, ended_at=MAYBE_NUMBER, reason=TEXT, tags=many(TEXT), note=TEXT, dir=TEXT,
    elapsed_s=MAYBE_NUMBER, metrics={"type": "object", "additionalProperties": VALUE}, overrides=many(TEXT),
)  # fmt: skip
RUN_FACTS = record(
    key=TEXT, dir=TEXT, name=TEXT, id=TEXT, study=TEXT, state=STATE, reason=TEXT, params=OBJECT, commands=OBJECT,
    attempts=many(OBJECT), metrics=OBJECT, metric_sources=many(TEXT), created_at=NUMBER, tags=many(TEXT),
    notes=many(OBJECT), children=many(TEXT), files={"type": "object", "additionalProperties": COUNT},
)  # fmt: skip
SERIES = record(
    metric=TEXT, points=COUNT, is_thinned=FLAG, step=many(MAYBE_NUMBER), value=many(VALUE), time=many(MAYBE_NUMBER)
)
VERDICT = record(
    key=MAYBE_TEXT, judged_at=NUMBER, source=TEXT, result=TEXT, kind=TEXT, subject=TEXT, message=TEXT,
    value={"anyOf": [VALUE, {"type": "null"}]}, expected={"anyOf": [VALUE, {"type": "null"}]},
)  # fmt: skip
COMPARISON = record(
    first=TEXT, second=TEXT, state={"type": ["object", "null"]}, params=OBJECT, commands=OBJECT, environment=OBJECT,
    code={"type": "object", "additionalProperties": TEXT}, code_note=MAYBE_TEXT, metrics=OBJECT,
)  # fmt: skip
CURVE = record(
    name=TEXT,
    run={"type": ["string", "null"]},
    state={"type": ["string", "null"]},
    runs=COUNT,
    color={"type": "integer"},
    points=COUNT,
    last=VALUE,
    best=MAYBE_NUMBER,
    x=many(MAYBE_NUMBER),
    y=many(MAYBE_NUMBER),
)
CURVES = record(
    metric=TEXT,
    direction={"enum": ["min", "max"]},
    x=TEXT,
    y=TEXT,
    log=FLAG,
    log_x=FLAG,
    notes=many(TEXT),
    curves=many(CURVE),
)
LOG_PART = record(name=TEXT, text=TEXT, start=COUNT, end=COUNT, size=COUNT)
LOG_MATCHES = record(
    matches=many(record(offset=COUNT, line=TEXT)), start=COUNT, searched=COUNT, size=COUNT, is_whole=FLAG
)  # fmt: skip
WISH: Schema = {
    "type": "object",
    "required": ["action"],
    "properties": {
        "action": {"enum": ["stop", "rerun", "tag", "untag", "note"]},
        "runs": {"type": "array", "items": TEXT, "maxItems": 100},
        "text": {"type": "string", "maxLength": 10_000},
    },
}
JUDGEMENT: Schema = {
    "type": "object",
    "required": ["metric", "method", "change", "judgement"],
    "properties": {
        **dict.fromkeys(("metric", "method", "change"), TEXT),
        "judgement": {"enum": ["ack", "wontfix", "invalid", "open"]},
        "note": {"type": "string", "maxLength": 2000},
    },
}
ACTION = record(command=TEXT, code={"type": "integer"}, said=TEXT)  # 409: the command's exit code was not 0
UPLOAD = record(runs=many(record(study=TEXT, run=TEXT, is_new=FLAG, link=TEXT)), link=TEXT)
ERROR = record(error=TEXT, hint=TEXT)

SCHEMAS: Mapping[str, Schema] = {
    "Study": STUDY,
    "StudyFacts": STUDY_FACTS,
    "TableRow": OBJECT,
    "RunRow": RUN_ROW,
    "Run": RUN_FACTS,
    "Series": SERIES,
    "Verdict": VERDICT,
    "Comparison": COMPARISON,
    "Curves": CURVES,
    "LogPart": LOG_PART,
    "LogMatches": LOG_MATCHES,
    "Wish": WISH,
    "Action": ACTION,
    "Judgement": JUDGEMENT,
    "Upload": UPLOAD,
    "TorqSession": record(id=TEXT, link=TEXT, runs=COUNT),
    "Error": ERROR,
}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


# ---------------------------------------------------------------- parameters


class Param(NamedTuple):
    name: str
    text: str
    schema: Schema = TEXT
    needed: bool = False


WHOLE: Schema = {"type": "integer", "minimum": 1, "maximum": 1_000_000}
BOOL: Schema = {"enum": ["0", "1"]}
_TEXTS: Mapping[str, str] = {
    "tab": "which view of the study's page",
    "where": "only runs for which this holds, as `--where` of the commands",
    "states": "only runs in these states, with commas between",
    "sort": "a metric, a parameter or time, each with :min or :max behind it or not, with commas between",
    "reverse": "the rows in reverse; what counts as the best of a metric stays",
    "group": "one row for runs that differ only in these parameters: mean and standard deviation",
    "metrics": "which metrics are columns, with commas between; all: every one",
    "show": "parameters and metrics beside those that the table has by itself",
    "hide": "parameters and metrics that are left out",
    "page": "which page; without page and rows the answer holds all rows",
    "rows": "how many rows a page has",
    "metric": "which metric",
    "x": "step, epoch or time",
    "smooth": "0 to less than 1: how much of the mean before stays in each point",
    "log": "a logarithmic axis",
    "log_x": "a logarithmic horizontal axis",
    "best": "how many curves",
    "by": "the metric by which they are the best; without it the one that is asked for",
    "param": "which parameter or metric",
    "color": "a parameter or metric that colours points",
    "params": "which parameters are drawn, with commas between",
}
_SCHEMAS: Mapping[str, Schema] = {
    "tab": {"enum": list(TABS)},
    "x": {"enum": ["", "step", "epoch", "time"]},
    "smooth": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
    "page": WHOLE,
    "rows": {"type": "integer", "minimum": 1, "maximum": 500},
    "best": {"type": "integer", "minimum": 1, "maximum": 50},
    "log": BOOL,
    "reverse": BOOL,
    "log_x": BOOL,
}


def view_params(*names: str) -> tuple[Param, ...]:
    return tuple(Param(name, _TEXTS[name], _SCHEMAS.get(name, TEXT)) for name in StudyView._fields if name in names)


_CHOICE = ("where", "states", "sort", "reverse", "page", "rows")
_RUNS = Param("run", "STUDY/RUN; two or more", many(TEXT), needed=True)
_LOG = (
    Param("command", "which command; without it the one that failed, else the last"),
    Param("attempt", "which attempt; without it the last", {"type": "integer", "minimum": 1}),
    Param("file", "instead of a command: a file of the run by its name"),
    Param(
        "from",
        "the first byte; without it the end of the log, or the beginning of a search",
        {"type": "integer", "minimum": 0},
    ),
    Param("find", "instead of a part: lines that hold these words"),
)
_POINTS = Param("points", "about how many points; without it all", {"type": "integer", "minimum": 1, "maximum": 100000})


# ---------------------------------------------------------------- the table


class Operation(NamedTuple):
    name: str
    summary: str
    answer: Schema  # of 200, and of `more`
    params: Sequence[Param] = ()
    refusals: Sequence[int] = (400, 404)
    more: Sequence[int] = ()  # other good answers, of the same shape
    body: Mapping[str, Any] | None = None
    scope: str = "read"


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("GET", "/api/openapi.json"): Operation("describe", "This document", OBJECT, refusals=()),
    ("GET", "/api/studies"): Operation("listStudies", "All studies", many(ref("Study")), refusals=()),
    ("GET", "/api/studies/{study}"): Operation(
        "showStudy", "What a study has: states, metrics, parameters", ref("StudyFacts")
    ),
    ("GET", "/api/studies/{study}/table"): Operation(
        "showTable",
        "The table of a study, as `assay sum STUDY --json`",
        many(ref("TableRow")),
        view_params(*_CHOICE, "group", "metrics", "show", "hide"),
    ),
    ("GET", "/api/studies/{study}/runs"): Operation(
        "listRuns", "The runs of a study, as `assay ls STUDY --json`", many(ref("RunRow")), view_params(*_CHOICE)
    ),
    ("GET", "/api/studies/{study}/verdicts"): Operation(
        "listVerdicts", "What was judged: a finding each, the newest last", many(ref("Verdict"))
    ),
    ("GET", "/api/studies/{study}/curves"): Operation(
        "showCurves",
        "The curves of one metric, thinned to what a screen shows; highs and lows stay",
        ref("Curves"),
        view_params("where", "states", "group", "metric", "x", "smooth", "log", "log_x", "best", "by"),
    ),
    ("GET", "/api/studies/{study}/compare/curves"): Operation(
        "compareCurves",
        "One metric of the runs that are compared, of many the 50 best",
        ref("Curves"),
        (
            Param("metric", "which metric", needed=True),
            Param(
                "run", "a run of the study, or STUDY/RUN of another; without any, all that `where` chooses", many(TEXT)
            ),
            *view_params("where", "x"),
        ),
    ),
    ("GET", "/api/studies/{study}/runs/{run}"): Operation(
        "showRun", "Everything about a run, as `assay show STUDY/RUN --json`", ref("Run")
    ),
    ("GET", "/api/studies/{study}/runs/{run}/series"): Operation(
        "showSeries",
        "One metric of a run, point by point",
        ref("Series"),
        (Param("metric", "which metric", needed=True), _POINTS),
    ),
    ("GET", "/api/studies/{study}/runs/{run}/curves"): Operation(
        "showRunCurve",
        "One metric of a run, or one of its readings, thinned to what a screen shows; over time all have the same axis",
        ref("Curves"),
        (
            Param("metric", "which metric"),
            Param("reading", "instead of a metric: what was read of the machine, for example `memory, GiB`"),
            Param("x", "step, epoch or time", {"enum": ["", "step", "epoch", "time"]}),
        ),
    ),
    ("GET", "/api/studies/{study}/runs/{run}/log"): Operation(
        "showLog",
        "A part of a log, or with `find` the lines that hold these words",
        {"anyOf": [ref("LogPart"), ref("LogMatches")]},
        _LOG,
    ),
    ("POST", "/api/studies/{study}/actions"): Operation(
        "act",
        "Stop, repeat, tag or untag runs, or write a note; without runs the whole study",
        ref("Action"),
        refusals=(400, 404, 409),
        body={"application/json": {"schema": ref("Wish")}},
        scope="write",
    ),
    ("POST", "/api/benchmarks/{study}/triage"): Operation(
        "triage",
        "Write down a judgement about a change of a benchmark, as `assay bench triage`",
        ref("Action"),
        refusals=(400, 404, 409),
        body={"application/x-www-form-urlencoded": {"schema": ref("Judgement")}},
        scope="write",
    ),
    ("POST", "/api/uploads"): Operation(
        "upload",
        "Store the runs of a zip archive of STUDY/RUN/FILE; 200: all of them were here already",
        ref("Upload"),
        refusals=(400, 409, 415),
        more=(201,),
        body={"application/zip": {"schema": BINARY}, "application/octet-stream": {"schema": BINARY}},
        scope="upload",
    ),
    ("POST", "/api/test-sessions/upload_zip/"): Operation(
        "uploadTorqSession",
        "Store a session of Torq's tests: a form with the zip archive as its field `file`; each test becomes a run",
        ref("TorqSession"),
        refusals=(400, 409, 415),
        more=(201,),
        body={
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": BINARY},
                }
            }
        },
        scope="upload",
    ),
    ("GET", "/api/compare"): Operation(
        "compareRuns", "The first run with each other one, as `assay diff --json`", many(ref("Comparison")), (_RUNS,)
    ),
}

_REASONS = {
    400: "A value makes no sense; the answer says which",
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
_PLAIN = (401, 403, 421)  # answered before anything has read the address
_PATH_PARAMS = {
    "study": "a study, as /api/studies names it",
    "run": "a run: the name of its directory",
}


def build_document() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _build_operation(path, operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Assay",
            "version": "1",
            "description": "What `assay serve` answers to programs. Reading needs no token on the machine itself.",
        },
        "paths": paths,
        "components": {
            "schemas": dict(SCHEMAS),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _build_operation(path: str, operation: Operation) -> dict[str, Any]:
    content = {"application/json": {"schema": operation.answer}}
    good = {str(status): {"description": "As asked", "content": content} for status in (200, *operation.more)}
    refusals = sorted({*operation.refusals, *_PLAIN, *((413, 429) if operation.scope != "read" else (429,)), 503})
    built: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [*_build_path_params(path), *map(_build_param, operation.params)],
        "responses": {**good, **{str(status): _build_refusal(status) for status in refusals}},
        "security": [{"token": []}] if operation.scope != "read" else [{}, {"token": []}],
    }
    if operation.scope != "read":
        built["description"] = f"Needs a token that allows to {operation.scope}."
    if operation.body is not None:
        built["requestBody"] = {"required": True, "content": dict(operation.body)}
    return built


def _build_refusal(status: int) -> dict[str, Any]:
    told: dict[str, Any] = {"text/plain": {"schema": TEXT}}
    if status not in _PLAIN:
        refused = {"anyOf": [ref("Error"), ref("Action")]} if status == 409 else ref("Error")
        told |= {"application/json": {"schema": refused}}
    return {"description": _REASONS[status], "content": told}


def _build_path_params(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1].partition(":")[0] for part in path.split("/") if part.startswith("{")]
    return [
        {"name": name, "in": "path", "required": True, "description": _PATH_PARAMS.get(name, name), "schema": TEXT}
        for name in names
    ]


def _build_param(param: Param) -> dict[str, Any]:
    return {
        "name": param.name,
        "in": "query",
        "required": param.needed,
        "description": param.text,
        "schema": dict(param.schema),
    }
