"""`assay mcp`: a server of the Model Context Protocol on standard input and output, for coding agents.

A tool calls a command of Assay in a process of its own and answers with the command's output. If the client cancels the
call or disconnects, the command is terminated.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, NamedTuple

from assay import __version__
from assay.errors import (
    AssayError,
    ExitCode,
    InfrastructureError,
    MissingExtraError,
    NotFoundError,
    UsageError,
    did_you_mean,
)
from assay.follow.locations import find_roots, find_studies
from assay.show.console import Console
from assay.show.formatting import make_safe
from assay.system.terminal import is_terminal
from assay.values.options import Request, option, root_option

_MOST_CHARACTERS = 50_000  # the longest answer as JSON
_FRAME = 200  # characters of an answer around its rows or text, with the note that some are left out
_MOST_NOTES, _MOST_OF_NOTE = 20, 500
_INSTRUCTIONS = (
    "Assay runs machine-learning studies: a study has runs, each with parameters, state, metrics and logs. Begin with "
    "`studies`; `table` compares runs, `best` names the winner, `runs` with where=failed and `logs` explain failures, "
    "`curve` shows how a metric went. After `start` call `wait`. Answers are short: ask for fields, where and limit."
)


class McpRequest(Request):
    allow_run: bool = option("--allow-run", default=False, help="Let clients start and stop runs, too.")
    root: str | None = root_option()


def serve(request: McpRequest, console: Console) -> int:
    """Serve studies to a coding agent: a Model Context Protocol server over stdio.

    The server only reads; with --allow-run it also starts and stops runs. In the configuration of an agent, name it as
    the command `assay mcp` in the folder of your project.
    """
    if find_spec("mcp") is None:
        raise MissingExtraError("assay mcp", "mcp")
    if request.root is not None and not os.path.isdir(request.root):
        raise UsageError(f"{request.root} is not a folder", "name the folder of the studies")
    if is_terminal(sys.stdin):
        console.message("assay mcp waits for an agent on standard input; Ctrl-D ends it")
    offered = {name: tool for name, tool in TOOLS.items() if request.allow_run or not tool.runs}
    asyncio.run(_serve(offered, request.root))
    return int(ExitCode.OK)


async def _serve(tools: Mapping[str, Tool], root: str | None) -> None:
    from mcp.server import Server
    from mcp.server.stdio import stdio_server

    from mcp import types

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        found = []
        for name, tool in tools.items():
            hints = types.ToolAnnotations(read_only_hint=not tool.runs)
            found.append(types.Tool(name=name, description=tool.help, input_schema=tool.schema, annotations=hints))
        return types.ListToolsResult(tools=found)

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            facts = await answer(tools, params.name, params.arguments or {}, root)
        except AssayError as error:
            text = error.render()[:_MOST_CHARACTERS]
            return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
        text = json.dumps(facts, ensure_ascii=False)
        return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=facts)

    server = Server(
        "assay", version=__version__, instructions=_INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )
    async with stdio_server() as (read, write):
        messages: Any = _refuse_garbage(read, write)
        await server.run(messages, write, server.create_initialization_options())


async def _refuse_garbage(read: Any, write: Any) -> AsyncIterator[Any]:
    """Yield the messages; answer each invalid line with the parse error of JSON-RPC."""
    from mcp.shared.message import SessionMessage

    from mcp import types

    async for item in read:
        if isinstance(item, Exception):
            error = types.ErrorData(code=types.PARSE_ERROR, message="the line is not a message of JSON-RPC")
            await write.send(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=None, error=error)))
        else:
            yield item


# ---------------------------------------------------------------- tools: a command line with parameters each

_TYPES: dict[str, type] = {"string": str, "integer": int, "boolean": bool, "array": list}


@dataclass(frozen=True, slots=True)
class Param:
    """An argument of a tool. `flag`: the command's option; empty: positional. `names`: what the value names."""

    help: str
    flag: str = ""
    kind: str = "string"
    default: Any = None
    most: int | None = None  # the largest number: it replaces larger numbers, which a note reports
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
    runs: bool = False  # whether the tool changes something: it needs --allow-run

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


# ---------------------------------------------------------------- answers


async def answer(tools: Mapping[str, Tool], name: str, given: Mapping[str, Any], root: str | None) -> dict[str, Any]:
    if name not in tools:
        if name in TOOLS:
            raise UsageError(f"the tool {name} is not offered: this server only reads", "start it with --allow-run")
        raise NotFoundError("tool", name, tools)
    words, notes = build_words(tools[name], given, root)
    if name == "start":
        return await _start(words, notes, dry_run=bool(given.get("dry_run")))
    done = await _call(words)
    if name == "logs":
        return _shorten(done.out, notes)
    return _shorten(_read(done), [*notes, *done.notes])


class Done(NamedTuple):
    out: str
    notes: list[str]


async def _call(words: Sequence[str]) -> Done:
    """Run a command of Assay; raise UsageError if it only prints an error. Cancelling the call ends the command."""
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    argv = (sys.executable, "-P", "-m", "assay", *words)  # -P: code in this folder must not be executed
    try:
        process = await asyncio.create_subprocess_exec(*argv, stdin=null, stdout=pipe, stderr=pipe)
    except (ValueError, OSError) as error:  # a word has a null byte, or the words have hundreds of kilobytes
        raise UsageError(f"the request is not valid: {error}") from None
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
    messages = make_safe(err.decode(errors="replace")).strip()
    code = process.returncode or 0
    if code not in (ExitCode.OK, ExitCode.FAILED, ExitCode.INCONCLUSIVE) or (code and not out):
        raise UsageError(messages.removeprefix("assay: ") or f"the command ended with {code}")
    return Done(make_safe(out.decode(errors="replace")), messages.splitlines())


def _read(done: Done) -> Any:
    try:
        found = json.loads(done.out)
    except ValueError as error:
        raise InfrastructureError(f"the command did not print JSON: {done.out[:200]!r}") from error
    if isinstance(found, list) and found and "lines" in found[0]:  # curves: one row for each line
        return [{"metric": each["metric"], "over": each["x"], **line} for each in found for line in each["lines"]]
    return found


async def _start(words: list[str], notes: list[str], *, dry_run: bool) -> dict[str, Any]:
    """List the runs, then start them: the list has the study's name, and fails for a mistake in the file."""
    planned = _read(await _call([words[0], "--dry-run", "--json", *words[1:]]))
    folder = os.path.dirname(planned[0]["dir"]) if planned else ""
    left = [run["name"] for run in planned if run["left"]]
    facts = {"study": os.path.basename(folder), "root": os.path.dirname(folder), "runs": len(planned)}
    if not dry_run:
        done = await _call([words[0], "--detach", *words[1:]])
        notes = [*notes, *done.notes]
    return _shorten({**facts, "starts": len(left), "names": left[:50], "is_started": not dry_run}, notes)


def _shorten(found: Any, notes: list[str]) -> dict[str, Any]:
    """Limit an answer to `_MOST_CHARACTERS`: cut the last rows or a text's beginning; refuse a larger object."""
    more = [f"{len(notes) - _MOST_NOTES} more notes are left out"] if len(notes) > _MOST_NOTES else []
    notes = [*(note[:_MOST_OF_NOTE] for note in notes[:_MOST_NOTES]), *more]
    room = _MOST_CHARACTERS - _FRAME - _measure(notes)
    if isinstance(found, str):
        text = found[max(0, len(found) - room) :]
        text = text[max(0, _measure(text) - room) :]  # JSON escapes some characters
        if len(text) < len(found):
            notes.append(f"only the last {len(text)} of {len(found)} characters")
        return {"text": text, **({"notes": notes} if notes else {})}
    facts = {"rows": found, "left_out": 0} if isinstance(found, list) else {**found}
    size = _measure({**facts, "notes": notes})
    if size > _MOST_CHARACTERS:
        if "rows" not in facts:
            fields = ", ".join(facts)
            raise UsageError(f"the answer has {size} characters", f"ask for some of its fields: {fields[:1000]}")
        kept = sum(size < room for size in accumulate(_measure(row) + 2 for row in found))
        facts = {"rows": found[:kept], "left_out": len(found) - kept}
        notes.append(f"the answer was too long: {len(found) - kept} rows are left out; ask for fields, or for less")
    return {**facts, "notes": notes} if notes else facts


def _measure(content: Any) -> int:
    return len(json.dumps(content, ensure_ascii=False))
