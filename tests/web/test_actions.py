"""Actions and comparisons."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.finished_study import GOOD, LONG, Bench, until
from tests.fork_server import call_python, start_assay
from tests.web_client import READER, WRITE, copy_bench, open_client

from assay.web import actions

ACTIONS = "/api/studies/fit/actions"
OTHER = "lr=0.1,n=8"


@pytest.fixture
def bench(served: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return copy_bench(served, tmp_path).enter(monkeypatch)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that are waited for are forked: the start of an interpreter is not the point."""
    monkeypatch.setattr(subprocess, "run", lambda command, **_options: call_python(command[2:], is_merged=False))


def test_tags_and_notes(bench: Bench, forked: None) -> None:
    with open_client(bench.root) as client:

        def act(action: str, text: str, *runs: str) -> Any:
            return client.post(ACTIONS, headers=WRITE, json={"action": action, "runs": [*runs], "text": text})

        assert act("tag", "good, paper", GOOD, OTHER).status_code == 200
        text = "--help is <b>not</b> an option; $(id)"
        assert act("note", text, GOOD).status_code == 200
        assert json.loads(bench.read("tag", f"fit/{GOOD}", "--json").stdout)[0]["tags"] == ["good", "paper"]
        assert text in bench.read("note", f"fit/{GOOD}").stdout
        page = client.get(f"/studies/fit/runs/{GOOD}").text
        assert "good, paper" in page
        assert "<b>not" not in page
        assert act("untag", "paper", GOOD).json()["said"].endswith("good")
        again = act("untag", "paper", GOOD)
        assert (again.status_code, "paper" in again.json()["said"]) == (409, True)


def test_a_failed_run_is_repeated_with_the_current_code_and_the_page_says_so(bench: Bench) -> None:
    (bench.folder / "say.sh").write_text("exit 1\n")
    bench.run("study: c\ncommand: bash say.sh\nresources: {gpus: 0}\n")
    (bench.folder / "say.sh").write_text('until [ -e "$ASSAY_RUN_DIR/go" ]; do sleep 0.02; done\n')
    (run_dir,) = (path.parent for path in bench.root.glob("c/*/run.json"))
    with open_client(bench.root) as client:
        assert "--old-code" in client.get(f"/studies/c/runs/{run_dir.name}").text
        answer = client.post("/api/studies/c/actions", headers=WRITE, json={"action": "rerun", "runs": [run_dir.name]})
        until((run_dir / "code.1").exists, "it runs again")
        (run_dir / "go").touch()
        until((run_dir / "outcome.2").exists, "it has ended")
    assert answer.status_code == 200
    supervisor_log = (bench.root / "c/.assay/supervisor.log").read_text()
    assert "1 failed run takes the current code: say.sh has changed since" in supervisor_log
    assert json.loads((run_dir / "outcome.2").read_text())["state"] == "done"


def test_what_cannot_start_is_said_and_no_module_of_the_folder_is_executed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder where the server was started may hold a `json.py` of a project."""
    (bench.folder / "json.py").write_text("raise SystemExit('executed')")
    assert "executed" not in actions.call(["--version"])[1]
    monkeypatch.setattr(actions, "_EARLY_S", 60.0)
    monkeypatch.setattr(actions, "build_commands", lambda *_: [["rerun", "--no-such-option"]])
    with open_client(bench.root) as client:
        answer = client.post(ACTIONS, headers=WRITE, json={"action": "rerun", "runs": [GOOD]})
    assert answer.status_code == 409
    assert "no-such-option" in answer.json()["said"]


def test_a_study_is_stopped(bench: Bench, forked: None, tmp_path: Path) -> None:
    bench.write("long.yml", LONG)
    with open(tmp_path / "log", "w") as log:
        supervisor = start_assay(["run", "long.yml", "-j", "1"], cwd=bench.folder, env=os.environ, log=log)
    try:
        until(lambda: list(bench.root.glob("long/*/lease.1")), "a run has begun")
        with open_client(bench.root) as client:
            answer = client.post("/api/studies/long/actions", headers=WRITE, json={"action": "stop"})
            assert answer.status_code == 200, answer.text
            assert "running" not in client.get("/studies/long?states=running").text.partition("<tbody>")[2]
    finally:
        supervisor.kill()
        bench.read("stop", "long")


def test_mistakes_and_readers(client: TestClient) -> None:
    tag = {"action": "tag", "runs": [GOOD], "text": "x"}
    for value, status in (
        ({**tag, "action": "remove"}, 400),
        ({**tag, "runs": ["../other"]}, 404),
        ({**tag, "runs": "all"}, 400),
        ({**tag, "text": ""}, 400),
        ({**tag, "action": "note", "text": 7}, 400),
        ([], 400),
        (b"\xff{", 400),
        (b"[" * 100_000, 400),
    ):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        assert client.post(ACTIONS, headers=WRITE, content=body).status_code == status, value
    assert client.post(ACTIONS, json=tag).status_code == 401
    assert client.post(ACTIONS, headers={"authorization": f"Bearer {READER}"}, json=tag).status_code == 403
