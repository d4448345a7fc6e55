"""The tools of `assay mcp`: each is a command line with parameters that a client may set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assay.errors import NotFoundError, UsageError, did_you_mean
from assay.follow.locations import find_roots, find_studies

_TYPES: dict[str, type] = {"string": str, "integer": int, "boolean": bool, "array": list}


@dataclass(frozen=True, slots=True)
class Param:
    """An argument of a tool. `flag`: the command's option; none: positional. `names`: what its value names."""

    help: str
    flag: str = ""
    kind: str = "string"
    default: Any = None
    most: int | None = None  # the largest number: a larger one is replaced by it, and the answer reports that
    names: str = ""  # "study" or "file"
    required: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        more: dict[str, Any] = {"items": {"type": "string"}} if self.kind == "array" else {}
        more |= {"minimum": 1} if self.kind == "integer" else {}
        more |= {"default": self.default} if self.default is not None else {}
        return {"type": self.kind, "description": self.help, **more}


@dataclass(frozen=True, slots=True)
class Tool:
    help: str
    words: tuple[str, ...]
    params: Mapping[str, Param]
    runs: bool = False  # changes something: needs --allow-run

    @property
    def schema(self) -> dict[str, Any]:
        needed = [name for name, param in self.params.items() if param.required]
        properties = {name: param.schema for name, param in self.params.items()}
        return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


_STUDY = Param("STUDY, or some of its runs as STUDY/lr=0.1*", names="study", required=True)
_RUN = Param("STUDY/RUN", names="study", required=True)
_WHERE = Param("only runs that match, as `lr < 0.1 and failed` or `best(loss) < 0.3`", "--where")
_SORT = Param("NAME:min or NAME:max, of a metric or a parameter", "--sort")


def _limit(default: int) -> Param:
    return Param("at most this many rows", "--limit", "integer", default, most=500)


def _fields(default: str | None = None) -> Param:
    return Param("only these, as name,state,metrics.loss", "--fields", default=default)


_OF_RUNS = "name,state,reason,params,metrics,elapsed_s,attempt"
TOOLS = {
    "studies": Tool("List the studies: how many runs of each are in which state.", ("ls", "--json"),
        {"limit": _limit(50), "fields": _fields("study,runs,counts,last_activity,tags")}),
    "runs": Tool("List runs of a study with state, reason of failure, parameters and last metrics.", ("ls", "--json"),
        {"study": _STUDY, "where": _WHERE, "sort": _SORT, "limit": _limit(50), "fields": _fields(_OF_RUNS)}),
    "table": Tool("Compare runs: parameters that differ, metrics, time, the best first.", ("sum", "--json"),
        {"study": _STUDY, "where": _WHERE, "sort": _SORT, "limit": _limit(50), "fields": _fields(),
         "group_by": Param("one row for runs that differ only in this parameter, as seed: mean and sd", "--group-by")}),
    "best": Tool("The best run, its margin over the next one, and how to repeat it.", ("best", "--json"),
        {"study": _STUDY, "where": _WHERE, "fields": _fields(), "metric": Param("NAME:min or NAME:max", "--metric")}),
    "show": Tool("Everything about one run: attempts, commands, metrics, files.", ("show", "--json"),
        {"run": _RUN, "fields": _fields()}),
    "curve": Tool("Points of a metric over steps, thinned so that peaks stay.", ("plot", "--json"),
        {"study": _STUDY, "where": _WHERE, "metric": Param("which metric", "--metric"),
         "points": Param("about this many points of each line", "--points", "integer", 100, most=1000),
         "best": Param("only the lines of this many best runs", "--best", "integer", most=50)}),
    "logs": Tool("The output of a run: what matters of it (tracebacks, lines about errors, the end).", ("logs",),
        {"run": _RUN, "lines": Param("the last lines, at most this many", "--lines", "integer", 40, most=1000),
         "errors": Param("false: the last lines alone", "--errors", "boolean", True)}),
    "wait": Tool("Wait until a run matches, all runs have finished, or the time limit is reached.", ("wait",),
        {"study": _STUDY, "until": Param("as `failed or loss < 2`; none: all have finished", "--until"),
         "all": Param("until all runs match", "--all", "boolean"),
         "timeout": Param("at most this long, as 50s or 10m: less than your own limit", "--timeout", default="50s")}),
    "start": Tool("Run a study file; in the background, so `wait` for it. Finished runs are kept.", ("run",),
        {"file": Param("the study file, below the folder of the server", names="file", required=True),
         "params": Param("other values than the file's, as lr=0.1,0.01", kind="array"),
         "budget": Param("start no more runs after this: 2gpuh, 8cpuh or 3h", "--budget"),
         "jobs": Param("this many runs at once, on the CPU", "--jobs", "integer", most=256),
         "on": Param("a farm", "--on"), "where": _WHERE, "retry": Param("failed, lost or stopped runs too", "--retry"),
         "dry_run": Param("only list what would run", "--dry-run", "boolean")}, runs=True),
    "stop": Tool("Stop runs of a study, or all of it, and everything they started.", ("stop", "--json"),
        {"study": _STUDY, "where": _WHERE, "reason": Param("why; kept with the runs", "--reason")}, runs=True),
}  # fmt: skip


def build_words(tool: Tool, given: Mapping[str, Any], root: str | None) -> tuple[list[str], list[str]]:
    """Return the command line, and notes about changed arguments; raises UsageError for invalid arguments."""
    for name in given:
        if name not in tool.params:
            raise NotFoundError("argument", name, tool.params)
    options, arguments, notes = [*tool.words, *([f"--root={root}"] if root else [])], list[str](), list[str]()
    for name, param in tool.params.items():
        value = _check(name, param, given.get(name, param.default), root)
        if param.most is not None and value is not None and value > param.most:
            notes.append(f"{name}: {value} were asked for, and at most {param.most} are answered")
            value = param.most
        if isinstance(value, bool):
            options += [param.flag] if value else []
        elif value is not None:
            texts = [str(each) for each in value] if param.kind == "array" else [str(value)]
            options += [f"{param.flag}={text}" for text in texts if param.flag]
            arguments += [] if param.flag else texts
    return [*options, "--", *arguments], notes


def _check(name: str, param: Param, value: Any, root: str | None) -> Any:
    if value is None:
        if param.required:
            raise UsageError(f"the argument {name} is missing: {param.help}")
        return None
    is_wrong = type(value) is not _TYPES[param.kind]
    if is_wrong or (param.kind == "integer" and value < 1):
        what = "an integer of 1 or more" if param.kind == "integer" else f"of the type {param.kind}"
        raise UsageError(f"{name} is not {what}: {str(value)[:100]!r}")
    if param.names == "file":
        here = os.path.realpath(os.curdir)
        if "\0" in value or os.path.commonpath([os.path.realpath(value), here]) != here:
            raise UsageError(f"{value!r} is outside of the folder of the server, {here}")
    if param.names == "study":
        known = [study for each in find_roots(root).all for study in find_studies(each)]
        study, _, run = value.partition("/")
        if study not in known or "/" in run or run in (".", ".."):  # a path could lead out of the root
            hint = did_you_mean(study, known) or "list them with the tool `studies`"
            raise UsageError(f"{value!r} does not name a study of the root, nor runs of one as STUDY/RUN", hint)
    return value
