"""`assay mcp`: a server of the Model Context Protocol on standard input and output, for coding agents.

A tool calls a command of Assay in a process of its own and answers with the command's output. If the client cancels the
call, or leaves, the command is ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from assay import __version__
from assay.errors import AssayError, ExitCode, InfrastructureError, MissingExtraError, NotFoundError, UsageError
from assay.mcp.tool_table import TOOLS, Tool, build_words
from assay.show.console import Console
from assay.show.formatting import make_safe
from assay.system.terminal import is_terminal
from assay.values.options import Request, option, root_option

_MOST_CHARACTERS = 50_000  # of an answer
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

    It reads, and starts or stops nothing unless --allow-run is given. An agent's configuration names it as the command
    `assay mcp` in the folder of your project.
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
        hints = {name: types.ToolAnnotations(read_only_hint=not tool.runs) for name, tool in tools.items()}
        found = [
            types.Tool(name=name, description=tool.help, input_schema=tool.schema, annotations=hints[name])
            for name, tool in tools.items()
        ]
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
    """Yield the messages; an invalid line is answered with JSON-RPC's error for it."""
    from mcp.shared.message import SessionMessage

    from mcp import types

    async for item in read:
        if isinstance(item, Exception):
            error = types.ErrorData(code=types.PARSE_ERROR, message="the line is not a message of JSON-RPC")
            await write.send(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=None, error=error)))
        else:
            yield item


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
        return _shorten_text(done.out, notes)
    return _shorten(_read(done), [*notes, *done.notes])


class Done(NamedTuple):
    code: int
    out: str
    notes: list[str]


async def _call(words: Sequence[str]) -> Done:
    """Run a command of Assay; the answer is an error if it only prints one. Cancelling the call ends the command."""
    pipe = asyncio.subprocess.PIPE
    null = asyncio.subprocess.DEVNULL
    argv = (sys.executable, "-P", "-m", "assay", *words)  # code in this folder must not be executed
    try:
        process = await asyncio.create_subprocess_exec(*argv, stdin=null, stdout=pipe, stderr=pipe)
    except (ValueError, OSError) as error:  # a null byte in a word, or words of hundreds of kilobytes
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
    return Done(code, make_safe(out.decode(errors="replace")), messages.splitlines())


def _read(done: Done) -> Any:
    try:
        found = json.loads(done.out)
    except ValueError as error:
        raise InfrastructureError(f"the command did not print JSON: {done.out[:200]!r}") from error
    if isinstance(found, list) and found and "lines" in found[0]:  # curves: one row for each
        return [{"metric": each["metric"], "over": each["x"], **line} for each in found for line in each["lines"]]
    return found


async def _start(words: list[str], notes: list[str], *, dry_run: bool) -> dict[str, Any]:
    """Plan, then start: the plan has the study's name, and reports a mistake in the file before anything starts."""
    planned = _read(await _call([words[0], "--dry-run", "--json", *words[1:]]))
    folder = os.path.dirname(planned[0]["dir"]) if planned else ""
    left = [run["name"] for run in planned if run["left"]]
    facts = {"study": os.path.basename(folder), "root": os.path.dirname(folder), "runs": len(planned)}
    if not dry_run:
        done = await _call([words[0], "--detach", *words[1:]])
        notes = [*notes, *done.notes]
    return _shorten({**facts, "starts": len(left), "names": left[:50], "is_started": not dry_run}, notes)


def _shorten(found: Any, notes: list[str]) -> dict[str, Any]:
    """Make an object small enough: rows are removed from the end, and a larger object is refused."""
    facts = {"rows": found, "left_out": 0} if isinstance(found, list) else {**found}
    size = len(json.dumps(facts, ensure_ascii=False))
    if size > _MOST_CHARACTERS and "rows" not in facts:
        fields = ", ".join(facts)
        raise UsageError(f"the answer has {size} characters", f"ask for some of its fields: {fields[:1000]}")
    if size > _MOST_CHARACTERS:
        sizes, kept = [len(json.dumps(row, ensure_ascii=False)) + 2 for row in found], 0
        while sum(sizes[: kept + 1]) < _MOST_CHARACTERS:
            kept += 1
        facts = {"rows": found[:kept], "left_out": len(found) - kept}
        notes = [*notes, f"the answer was too long: {len(found) - kept} rows are left out; ask for fields, or for less"]
    return {**facts, "notes": notes} if notes else facts


def _shorten_text(text: str, notes: list[str]) -> dict[str, Any]:
    if len(text) > _MOST_CHARACTERS:
        notes = [*notes, f"only the last {_MOST_CHARACTERS} of {len(text)} characters"]
    facts: dict[str, Any] = {"text": text[-_MOST_CHARACTERS:]}
    return {**facts, "notes": notes} if notes else facts
