"""`assay mcp`, driven by the client of the official SDK, and by one that keeps to nothing."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.finished_study import BAD, GOOD, Bench, until

from assay.errors import NotFoundError, UsageError
from assay.mcp.server import _MOST_CHARACTERS, _shorten, _shorten_text
from assay.mcp.tool_table import TOOLS, build_words
from assay.system.processes import exists

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="mcp is not installed")  # slow to import
READING = ["best", "curve", "logs", "runs", "show", "studies", "table", "wait"]
GATED = """
study: gated
command: 'echo "loss {x}"; until [ -e go-{x} ]; do sleep 0.05; done; echo "loss 0.{x}"; [ {x} != 2 ]'
params: {x: [1, 2]}
metrics: {loss: 'loss ({number})'}
resources: {gpus: 0}
code: live
"""


class Agent:
    def __init__(self, client: Any) -> None:
        self.client = client

    async def list_tools(self) -> list[str]:
        return sorted(tool.name for tool in (await self.client.list_tools()).tools)

    async def call(self, name: str, **given: Any) -> dict[str, Any]:
        result = await self.client.call_tool(name, given)
        assert not result.is_error, result.content[0].text
        assert json.loads(result.content[0].text) == result.structured_content
        facts: dict[str, Any] = result.structured_content
        return facts

    async def refused(self, name: str, **given: Any) -> str:
        result = await self.client.call_tool(name, given)
        assert result.is_error
        text: str = result.content[0].text
        return text


def build_environment(bench: Bench) -> dict[str, str]:
    return {**os.environ, **bench.extra}


@asynccontextmanager
async def connect(bench: Bench, *flags: str) -> AsyncIterator[Agent]:
    from mcp.client.stdio import stdio_client

    from mcp import Client, StdioServerParameters

    words = ["-m", "assay", "mcp", *flags]
    server = StdioServerParameters(command=sys.executable, args=words, cwd=bench.folder, env=build_environment(bench))
    async with Client(stdio_client(server)) as client:
        yield Agent(client)


def talk(bench: Bench, session: Callable[[Agent], Awaitable[None]], *flags: str) -> None:
    async def run() -> None:
        async with connect(bench, *flags) as agent:
            await session(agent)

    asyncio.run(run())


# ---------------------------------------------------------------- a whole session


@pytest.mark.needs(plots=True)
def test_an_agent_reads_what_is_there(bench: Bench) -> None:
    async def session(agent: Agent) -> None:
        assert await agent.list_tools() == READING
        (study,) = (await agent.call("studies"))["rows"]
        assert (study["study"], study["counts"]["failed"]) == ("fit", 2)
        table = await agent.call("table", study="fit", sort="loss:min", limit=2)
        assert [row["loss"] for row in table["rows"]] == [1.7, 1.7]
        assert "notes" in table  # two more rows
        failed = await agent.call("runs", study="fit", where="failed", fields="name,reason")
        assert failed["rows"][0] == {"name": BAD, "reason": "train ended with exit code 1"}
        assert (await agent.call("logs", run=f"fit/{BAD}", lines=1))["text"] == "step 3 loss 1.7 lr 0.5\n"
        curve = await agent.call("curve", study=f"fit/{GOOD}", metric="loss", points=10_000_000)
        assert curve["rows"][0]["value"] == [3.7, 2.7, 1.7]
        assert curve["notes"] == ["points: 10000000 were asked for, and at most 1000 are answered"]
        assert (await agent.call("best", study="fit", metric="loss"))["best"]["run"] == f"fit/{GOOD}"
        assert (await agent.call("show", run=f"fit/{GOOD}", fields="state"))["state"] == "done"
        assert (await agent.call("wait", study="fit", until="failed"))["matches"] == 2
        assert (await agent.call("wait", study="fit"))["reason"] == "finished"

    talk(bench, session)


def test_an_agent_starts_waits_and_stops(own_bench: Bench) -> None:
    own_bench.write("gated.yml", GATED)

    async def session(agent: Agent) -> None:
        assert await agent.list_tools() == sorted([*READING, "start", "stop"])
        planned = await agent.call("start", file="gated.yml", dry_run=True)
        assert (planned["study"], planned["starts"], planned["is_started"]) == ("gated", 2, False)
        assert not own_bench.root.exists()
        started = await agent.call("start", file="gated.yml", params=["x=1,2,3"], jobs=3, budget="1h")
        assert (started["runs"], started["names"]) == (3, ["x=1", "x=2", "x=3"])
        early = await agent.call("wait", study="gated", until="loss < 1", timeout="1s")
        assert (early["reason"], early["runs"]) == ("timeout", 3)
        for number in (1, 2):
            (own_bench.folder / f"go-{number}").touch()
        assert (await agent.call("wait", study="gated", until="failed"))["matched"] == ["x=2"]
        assert (await agent.call("wait", study="gated", until="done"))["matched"] == ["x=1"]
        assert "loss 0.2\n" in (await agent.call("logs", run="gated/x=2"))["text"]
        stopped = await agent.call("stop", study="gated", reason="enough")
        assert {row["run"]: row["state"] for row in stopped["rows"]}["gated/x=3"] == "stopped"
        assert (await agent.call("wait", study="gated"))["counts"] == {"done": 1, "failed": 1, "stopped": 1}

    talk(own_bench, session, "--allow-run")


# ---------------------------------------------------------------- what is refused


def test_mistakes_are_clear_answers(bench: Bench) -> None:
    (bench.folder / "bad.yml").write_text("study: bad\ncomand: echo\n")

    async def session(agent: Agent) -> None:
        for given, printed in (
            (
                {"study": "fti"},
                "'fti' does not name a study of the root, nor runs of one as STUDY/RUN\n  did you mean 'fit'?",
            ),
            ({"study": "/etc"}, "'/etc' does not name a study of the root"),
            ({"study": f"../{bench.folder.name}/runs/fit"}, f"'../{bench.folder.name}/runs/fit' does not name a study"),
            ({"study": "fit/../../x"}, "'fit/../../x' does not name a study"),
            ({"study": "fit/.."}, "'fit/..' does not name a study"),
            ({"study": "fit", "were": "x"}, "no argument named 'were'\n  did you mean 'where'?"),
            ({"study": "fit", "limit": -3}, "limit is not an integer of 1 or more: '-3'"),
            ({"study": "fit", "limit": True}, "limit is not an integer of 1 or more: 'True'"),
            ({"study": "fit", "limit": "ten"}, "limit is not an integer of 1 or more: 'ten'"),
            ({"study": ["fit"]}, "study is not of the type string"),
            ({}, "the argument study is missing"),
            ({"study": "fit", "where": "loss <"}, "--where: expected a name or a value, not the end\n  loss <\n"),
            ({"study": "fit", "fields": "nme"}, "no field named 'nme'\n  did you mean 'name'?"),
            ({"study": "fit", "sort": "--help"}, "--help"),
        ):
            assert printed in await agent.refused("runs", **given)
        assert "this server only reads" in await agent.refused("start", file="study.yml")
        assert "no tool named 'tabel'\n  did you mean 'table'?" in await agent.refused("tabel")

    async def with_runs(agent: Agent) -> None:
        assert "is outside of the folder of the server" in await agent.refused("start", file="/etc/passwd")
        assert "is outside of the folder of the server" in await agent.refused("start", file="../x.yml")
        assert "is outside of the folder of the server" in await agent.refused("start", file="a\0b")
        assert len(await agent.refused("start", file="x" * 70_000)) == _MOST_CHARACTERS
        assert "bad.yml:2:1 comand: " in await agent.refused("start", file="bad.yml")
        assert "is not a budget" in await agent.refused("start", file="bad.yml", budget="2 gpus")

    talk(bench, session)
    talk(bench, with_runs, "--allow-run")


def test_an_answer_is_never_long() -> None:
    facts = _shorten([{"name": "x" * 90, "number": i} for i in range(10_000)], [])
    assert len(json.dumps(facts)) < 51_000
    assert len(facts["rows"]) + facts["left_out"] == 10_000
    assert facts["notes"] == [
        f"the answer was too long: {facts['left_out']} rows are left out; ask for fields, or for less"
    ]
    with pytest.raises(UsageError, match="ask for some of its fields: a, b"):
        _shorten({"a": "x" * 60_000, "b": 1}, [])
    assert _shorten({"a": 1}, []) == {"a": 1}
    text = _shorten_text("x" * 60_000 + "end", [])
    assert (len(text["text"]), text["text"][-3:]) == (50_000, "end")
    assert text["notes"] == ["only the last 50000 of 60003 characters"]


def test_what_a_client_sends_is_never_an_option(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.enter(monkeypatch)
    words, _ = build_words(TOOLS["start"], {"file": "--force", "params": ["--root=/"], "on": "--force"}, None)
    assert words == ["run", "--on=--force", "--", "--force", "--root=/"]
    assert len(TOOLS) <= 10
    with pytest.raises(NotFoundError):
        build_words(TOOLS["runs"], {"study": "fit", "root": "/"}, None)


def test_another_root_and_one_that_is_not_there(bench: Bench, cli) -> None:
    async def session(agent: Agent) -> None:
        assert (await agent.call("studies"))["rows"] == []
        assert "'fit' does not name a study of the root" in await agent.refused("runs", study="fit")

    (bench.folder / "empty").mkdir(exist_ok=True)
    talk(bench, session, "--root", "empty")
    refused = cli("mcp", "--root", "nowhere")
    assert (refused.code, refused.err) == (2, "assay: nowhere is not a folder\n  name the folder of the studies\n")


# ---------------------------------------------------------------- clients that keep to nothing


def start_server(bench: Bench, *flags: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "assay", "mcp", *flags]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        argv, cwd=bench.folder, env=build_environment(bench), stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def send(server: subprocess.Popen[str], message: object) -> None:
    assert server.stdin is not None
    server.stdin.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
    server.stdin.flush()


def receive(server: subprocess.Popen[str]) -> dict[str, Any]:
    assert server.stdout is not None
    found: dict[str, Any] = json.loads(server.stdout.readline())
    return found


def shake_hands(server: subprocess.Popen[str]) -> None:
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    send(server, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about})
    assert receive(server)["result"]["serverInfo"]["name"] == "assay"
    send(server, {"jsonrpc": "2.0", "method": "notifications/initialized"})


def test_garbage_is_answered_and_changes_nothing(bench: Bench) -> None:
    server = start_server(bench)
    shake_hands(server)
    for garbage in ("this is not JSON", "[1, 2", '{"jsonrpc": "2.0"}', "\x00\ufffd"):
        send(server, garbage)
        error = receive(server)
        assert (error["id"], error["error"]["code"]) == (None, -32700)
    send(server, {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "studies", "arguments": {}}})
    assert receive(server)["result"]["structuredContent"]["rows"][0]["study"] == "fit"
    send(server, {"jsonrpc": "2.0", "id": 3, "method": "no/such", "params": {}})
    assert "error" in receive(server)
    out, err = server.communicate(timeout=30)
    assert (server.returncode, out, "Traceback" in err) == (0, "", False)


def find_waiting(server: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"wait" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]


def test_a_client_that_disconnects_leaves_nothing_but_what_it_started(own_bench: Bench) -> None:
    own_bench.write("gated.yml", GATED)
    assert own_bench.assay("run", "gated.yml", "-j", "2", "--detach").returncode == 0
    server = start_server(own_bench)
    shake_hands(server)
    call = {"name": "wait", "arguments": {"study": "gated", "timeout": "1h"}}
    send(server, {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})
    until(lambda: find_waiting(server), "the server waits for it")
    (pid,) = find_waiting(server)
    _, err = server.communicate(timeout=30)
    assert (server.returncode, "Traceback" in err) == (0, False), err
    until(lambda: not exists(pid), "what it asked for has ended")
    assert "running" in own_bench.assay("ls", "gated").stdout
    assert own_bench.assay("stop", "gated").returncode == 0


def test_without_the_sdk_it_says_what_to_install(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.mcp.server.find_spec", lambda _name: None)
    refused = cli("mcp")
    assert (refused.code, refused.out) == (2, "")
    assert "install it: pip install 'assay[mcp]'" in refused.err
