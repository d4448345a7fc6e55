"""`assay mcp`: its answers, and the server itself with clients that keep to the protocol or to nothing."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.finished_study import BAD, GOOD, Bench, until
from tests.fork_server import call_assay

from assay.errors import AssayError, NotFoundError, UsageError
from assay.mcp.server import _MOST_CHARACTERS, TOOLS, Tool, _shorten, answer, build_words
from assay.system.processes import exists

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="mcp is not installed")  # slow to import
READING = {name: tool for name, tool in TOOLS.items() if name not in ("start", "stop")}
GATED = """
study: gated
command: 'echo "loss {x}"; until [ -e go-{x} ]; do sleep 0.05; done; echo "loss 0.{x}"; [ {x} != 2 ]'
params: {x: [1, 2]}
metrics: {loss: 'loss ({number})'}
resources: {gpus: 0}
code: live
"""


class Agent:
    """The tools of a bench, whose commands are forked."""

    def __init__(
        self,
        bench: Bench,
        monkeypatch: pytest.MonkeyPatch,
        tools: Mapping[str, Tool] = READING,
        root: str | None = None,
    ) -> None:
        self.tools, self.root = tools, root
        bench.enter(monkeypatch)
        monkeypatch.setattr(asyncio, "create_subprocess_exec", self._start)

    async def _start(self, *argv: str, **_streams: Any) -> Any:
        assert argv[1:4] == ("-P", "-m", "assay")
        done = call_assay(argv[4:], cwd=os.getcwd(), env=os.environ, timeout=60, new_session=True)

        class Process:
            returncode = done.returncode

            async def communicate(self) -> tuple[bytes, bytes]:
                return done.stdout.encode(), done.stderr.encode()

        return Process()

    def call(self, name: str, **given: Any) -> dict[str, Any]:
        return asyncio.run(answer(self.tools, name, given, self.root))

    def refused(self, name: str, **given: Any) -> str:
        with pytest.raises(AssayError) as caught:
            self.call(name, **given)
        return caught.value.render()


# ---------------------------------------------------------------- answers


@pytest.mark.needs(plots=True)
def test_an_agent_reads_what_is_there(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(bench, monkeypatch)
    (study,) = agent.call("studies")["rows"]
    assert (study["study"], study["counts"]["failed"]) == ("fit", 2)
    table = agent.call("table", study="fit", sort="loss:min", limit=2)
    assert [row["loss"] for row in table["rows"]] == [1.7, 1.7]
    assert "notes" in table  # two more rows
    failed = agent.call("runs", study="fit", where="failed", fields="name,reason")
    assert failed["rows"][0] == {"name": BAD, "reason": "train ended with exit code 1"}
    assert agent.call("logs", run=f"fit/{BAD}", lines=1)["text"] == "step 3 loss 1.7 lr 0.5\n"
    curve = agent.call("curve", study=f"fit/{GOOD}", metric="loss", points=10_000_000)
    assert curve["rows"][0]["value"] == [3.7, 2.7, 1.7]
    assert curve["notes"] == ["points: 10000000 were asked for, and at most 1000 are answered"]
    assert agent.call("best", study="fit", metric="loss")["best"]["run"] == f"fit/{GOOD}"
    assert agent.call("show", run=f"fit/{GOOD}", fields="state")["state"] == "done"
    assert agent.call("wait", study="fit", until="failed")["matches"] == 2
    assert agent.call("wait", study="fit")["reason"] == "finished"
    (bench.folder / "empty").mkdir(exist_ok=True)
    other = Agent(bench, monkeypatch, root="empty")
    assert other.call("studies")["rows"] == []
    assert "'fit' does not name a study of the root" in other.refused("runs", study="fit")


def test_no_module_of_the_folder_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent works in a project that has just been cloned: only to read executes nothing of it."""
    (tmp_path / "json.py").write_text("raise SystemExit('executed')")
    monkeypatch.chdir(tmp_path)
    assert asyncio.run(answer(TOOLS, "studies", {}, str(tmp_path)))["rows"] == []


def test_an_agent_starts_waits_and_stops(own_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    own_bench.write("gated.yml", GATED)
    agent = Agent(own_bench, monkeypatch, TOOLS)
    planned = agent.call("start", file="gated.yml", dry_run=True)
    assert (planned["study"], planned["starts"], planned["is_started"]) == ("gated", 2, False)
    assert not own_bench.root.exists()
    started = agent.call("start", file="gated.yml", params=["x=1,2,3"], jobs=3, budget="1h")
    assert (started["runs"], started["names"]) == (3, ["x=1", "x=2", "x=3"])
    early = agent.call("wait", study="gated", until="loss < 1", timeout="300ms")
    assert (early["reason"], early["runs"]) == ("timeout", 3)
    for number in (1, 2):
        (own_bench.folder / f"go-{number}").touch()
    assert agent.call("wait", study="gated", until="failed")["matched"] == ["x=2"]
    assert agent.call("wait", study="gated", until="done")["matched"] == ["x=1"]
    assert "loss 0.2\n" in agent.call("logs", run="gated/x=2")["text"]
    stopped = agent.call("stop", study="gated", reason="enough")
    assert {row["run"]: row["state"] for row in stopped["rows"]}["gated/x=3"] == "stopped"
    assert agent.call("wait", study="gated")["counts"] == {"done": 1, "failed": 1, "stopped": 1}


def test_mistakes_are_clear_answers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.write("bad.yml", "study: bad\ncomand: echo\n")
    up = f"../{bench.folder.name}/runs/fit"
    agent = Agent(bench, monkeypatch)
    for given, printed in (
        (
            {"study": "fti"},
            "'fti' does not name a study of the root, nor runs of one as STUDY/RUN\n  did you mean 'fit'?",
        ),
        ({"study": "/etc"}, "'/etc' does not name a study of the root"),
        ({"study": up}, f"'{up}' does not name a study"),
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
        assert printed in agent.refused("runs", **given)
    assert "this server only reads" in agent.refused("start", file="study.yml")
    assert "no tool named 'tabel'\n  did you mean 'table'?" in agent.refused("tabel")
    agent = Agent(bench, monkeypatch, TOOLS)
    for file in ("/etc/passwd", "../x.yml", "a\0b"):
        assert "is outside of the folder of the server" in agent.refused("start", file=file)
    assert "x" * 70_000 in agent.refused("start", file="x" * 70_000)
    assert "bad.yml:2:1 comand: " in agent.refused("start", file="bad.yml")
    assert "is not a budget" in agent.refused("start", file="bad.yml", budget="2 gpus")


def test_an_answer_is_never_long() -> None:
    facts = _shorten([{"name": "x" * 90, "number": i} for i in range(10_000)], [])
    assert len(json.dumps(facts)) <= _MOST_CHARACTERS
    left_out = facts["left_out"]
    assert len(facts["rows"]) + left_out == 10_000
    assert facts["notes"] == [f"the answer was too long: {left_out} rows are left out; ask for fields, or for less"]
    with pytest.raises(UsageError, match="ask for some of its fields: a, b"):
        _shorten({"a": "x" * 60_000, "b": 1}, [])
    assert _shorten({"a": 1}, []) == {"a": 1}
    assert _shorten(["x" * 24_985, "y" * 24_985], [])["left_out"] == 1  # only what is around the rows is too much
    for line in ("x" * 60_000, 'a "quoted" line\n' * 4_000):
        text = _shorten(f"{line}end", [])
        kept = len(text["text"])
        assert (text["text"][-3:], kept > 40_000) == ("end", True)
        assert text["notes"] == [f"only the last {kept} of {len(line) + 3} characters"]
        assert len(json.dumps(text)) <= _MOST_CHARACTERS
    for found in ("x" * 60_000, ["x" * 90] * 1_000):
        noted = _shorten(found, ["n" * 5_000] * 5_000)
        assert (len(noted["notes"]), len(json.dumps(noted)) <= _MOST_CHARACTERS) == (22, True)


def test_what_a_client_sends_is_never_an_option(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.enter(monkeypatch)
    words, _ = build_words(TOOLS["start"], {"file": "--force", "params": ["--root=/"], "on": "--force"}, None)
    assert words == ["run", "--on=--force", "--", "--force", "--root=/"]
    assert len(TOOLS) <= 10
    with pytest.raises(NotFoundError):
        build_words(TOOLS["runs"], {"study": "fit", "root": "/"}, None)


def test_a_root_that_is_not_there_and_a_missing_sdk_are_refused(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = cli("mcp", "--root", "nowhere")
    assert (refused.code, refused.err) == (2, "assay: nowhere is not a folder\n  name the folder of the studies\n")
    monkeypatch.setattr("assay.mcp.server.find_spec", lambda _name: None)
    refused = cli("mcp")
    assert (refused.code, refused.out) == (2, "")
    assert "install it: pip install 'assay[mcp]'" in refused.err


# ---------------------------------------------------------------- the server


@pytest.mark.services("frameworks")
def test_the_client_of_the_official_sdk(bench: Bench) -> None:
    from mcp.client.stdio import stdio_client

    from mcp import Client, StdioServerParameters

    async def talk() -> None:
        words, env = ["-m", "assay", "mcp"], {**os.environ, **bench.extra}
        server = StdioServerParameters(command=sys.executable, args=words, cwd=bench.folder, env=env)
        async with Client(stdio_client(server)) as client:
            assert sorted(tool.name for tool in (await client.list_tools()).tools) == sorted(READING)
            found = await client.call_tool("studies", {})
            assert json.loads(found.content[0].text) == found.structured_content
            assert not found.is_error
            assert (await client.call_tool("runs", {"study": "fti"})).is_error

    asyncio.run(talk())


class RawClient:
    """Writes lines to a server, whatever they are."""

    def __init__(self, bench: Bench, *flags: str) -> None:
        pipe, argv = subprocess.PIPE, [sys.executable, "-m", "assay", "mcp", *flags]
        env = {**os.environ, **bench.extra}
        self.server = subprocess.Popen(argv, cwd=bench.folder, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        assert self.ask("initialize", about)["result"]["serverInfo"]["name"] == "assay"
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message: object) -> None:
        self.server.stdin.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
        self.server.stdin.flush()

    def receive(self) -> Any:
        return json.loads(self.server.stdout.readline())

    def ask(self, method: str, params: object) -> Any:
        self.send({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        return self.receive()


def find_waiting(server: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"wait" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]


def test_garbage_is_answered_and_a_client_that_disconnects_leaves_nothing_but_what_it_started(own_bench: Bench) -> None:
    own_bench.write("gated.yml", GATED)
    assert own_bench.assay("run", "gated.yml", "-j", "2", "--detach").returncode == 0
    client = RawClient(own_bench)
    for garbage in ("this is not JSON", "[1, 2", '{"jsonrpc": "2.0"}', "\x00\ufffd"):
        client.send(garbage)
        error = client.receive()
        assert (error["id"], error["error"]["code"]) == (None, -32700)
    assert "error" in client.ask("no/such", {})
    assert {tool["name"] for tool in client.ask("tools/list", {})["result"]["tools"]} == set(READING)
    refused = client.ask("tools/call", {"name": "runs", "arguments": {"study": "x" * 60_000}})["result"]
    assert (refused["isError"], len(refused["content"][0]["text"])) == (True, _MOST_CHARACTERS)
    found = client.ask("tools/call", {"name": "studies", "arguments": {}})["result"]
    assert found["structuredContent"]["rows"][0]["study"] == "gated"
    assert json.loads(found["content"][0]["text"]) == found["structuredContent"]
    call = {"name": "wait", "arguments": {"study": "gated", "timeout": "1h"}}
    client.send({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})
    until(lambda: find_waiting(client.server), "the server waits for it")
    (pid,) = find_waiting(client.server)
    _, err = client.server.communicate(timeout=30)
    assert (client.server.returncode, "Traceback" in err) == (0, False), err
    until(lambda: not exists(pid), "what it asked for has ended")
    assert "running" in own_bench.assay("ls", "gated").stdout
    assert own_bench.assay("stop", "gated").returncode == 0
