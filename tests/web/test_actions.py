"""Actions and comparisons."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.finished_study import GOOD, LONG, Bench, until
from tests.web_client import READER, WRITE, copy_bench, open_client

from assay.web import actions

ACTIONS = "/api/studies/fit/actions"
OTHER = "lr=0.1,n=8"


@pytest.fixture
def bench(served: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = copy_bench(served, tmp_path)
    for name, value in bench.extra.items():
        monkeypatch.setenv(name, value)
    return bench


def test_tags_and_notes(bench: Bench) -> None:
    with open_client(bench.root) as client:
        answer = client.post(
            ACTIONS, headers=WRITE, json={"action": "tag", "runs": [GOOD, OTHER], "text": "good, paper"}
        )
        assert answer.status_code == 200, answer.text
        text = "--help is <b>not</b> an option; $(id)"
        assert (
            client.post(ACTIONS, headers=WRITE, json={"action": "note", "runs": [GOOD], "text": text}).status_code
            == 200
        )
        shown = json.loads(bench.assay("tag", f"fit/{GOOD}", "--json").stdout)
        assert shown[0]["tags"] == ["good", "paper"]
        assert text in bench.assay("note", f"fit/{GOOD}").stdout
        page = client.get(f"/studies/fit/runs/{GOOD}").text
        assert "good, paper" in page
        assert "<b>not" not in page
        removed = client.post(ACTIONS, headers=WRITE, json={"action": "untag", "runs": [GOOD], "text": "paper"})
        assert removed.json()["said"].endswith("good")
        again = client.post(ACTIONS, headers=WRITE, json={"action": "untag", "runs": [GOOD], "text": "paper"})
        assert again.status_code == 409
        assert "paper" in again.json()["said"]


def test_a_run_is_repeated(bench: Bench) -> None:
    with open_client(bench.root) as client:
        answer = client.post(ACTIONS, headers=WRITE, json={"action": "rerun", "runs": [GOOD]})
        assert answer.status_code == 200
        assert answer.json()["command"].startswith("assay rerun --plain -- /")
        until(lambda: list((bench.root / "fit" / GOOD).glob("outcome.2")), "it ran again")


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


def test_what_cannot_start_is_said(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "_EARLY_S", 60.0)
    monkeypatch.setattr(actions, "build_commands", lambda *_: [["rerun", "--no-such-option"]])
    with open_client(bench.root) as client:
        answer = client.post(ACTIONS, headers=WRITE, json={"action": "rerun", "runs": [GOOD]})
    assert answer.status_code == 409
    assert "no-such-option" in answer.json()["said"]


def test_a_study_is_stopped(bench: Bench) -> None:
    bench.write("long.yml", LONG)
    supervisor = bench.start("run", "long.yml", "-j", "1", "--quiet")
    try:
        until(lambda: list(bench.root.glob("long/*/lease.1")), "a run has begun")
        with open_client(bench.root) as client:
            answer = client.post("/api/studies/long/actions", headers=WRITE, json={"action": "stop"})
            assert answer.status_code == 200, answer.text
            assert "running" not in client.get("/studies/long?states=running").text.partition("<tbody>")[2]
    finally:
        supervisor.kill()
        supervisor.communicate()
        bench.assay("stop", "long")


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ({"action": "remove", "runs": []}, 400),
        ({"action": "stop", "runs": ["../other"]}, 404),
        ({"action": "stop", "runs": "all"}, 400),
        ({"action": "tag", "runs": [GOOD]}, 400),
        ({"action": "note", "runs": [GOOD], "text": 7}, 400),
        ([], 400),
        (b"\xff{", 400),
        (b"[" * 100_000, 400),
    ],
)
def test_mistakes(client: TestClient, value: object, status: int) -> None:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    assert client.post(ACTIONS, headers=WRITE, content=body).status_code == status


def test_readers_cannot_act(client: TestClient) -> None:
    body = {"action": "tag", "runs": [GOOD], "text": "x"}
    assert client.post(ACTIONS, json=body).status_code == 401
    assert client.post(ACTIONS, headers={"authorization": f"Bearer {READER}"}, json=body).status_code == 403
