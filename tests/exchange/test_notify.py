"""Messages about a study: what each receiver gets, and that no receiver harms a run."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bad_servers import Got, RecordingServer, answering, recording
from tests.finished_study import Bench, until
from tests.fork_server import ForkedProcess, start_assay

from assay.config.settings import load_settings
from assay.errors import ConfigError, UsageError
from assay.exchange import notify
from assay.exchange.notify import Notifier, check_receivers, drop_flag, hide_receiver
from assay.follow.attempts import RetryPolicy
from assay.follow.entry import Entry, Event
from assay.launch.live_view import Goal, Leader
from assay.values.run import Outcome, RunSpec, State
from assay.values.secrets import DEFAULT_RULES


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    """It answers by the path: /ok, /500, /302, and /slow when the test has ended."""
    may_answer = threading.Event()

    def answer(got: Got) -> tuple[int, bytes]:
        if got.path == "/slow":
            may_answer.wait(60)
        return {"/500": 500, "/302": 302}.get(got.path, 204), b"/ok" * (got.path == "/302")

    with recording(answer) as found:
        yield found
        may_answer.set()


def build(*receivers: str) -> Notifier:
    return Notifier(receivers, "fit", "/runs/fit", DEFAULT_RULES)


def ended(name: str, state: State = State.DONE, reason: str = "", **codes: int) -> Event:
    outcome = Outcome(state, 1, codes, reason)
    return Event(
        "ended", Entry(RunSpec(name, name, {}, ()), f"/runs/fit/{name}", RetryPolicy(), state, outcome=outcome)
    )


LEADER = Leader("a", 0.5, Goal("loss", "min"), is_new=True)


# ---------------------------------------------------------------- what is sent


def test_the_first_failure_and_the_end(server: RecordingServer) -> None:
    """Not where nothing has happened; secrets are hidden."""
    assert build(f"{server.url}/ok").finish("fit: 3 runs: 3 done", 0) == []
    assert server.got == []
    notifier = build(f"{server.url}/ok")
    notifier.listen(ended("a"))
    notifier.listen(ended("b", State.FAILED, "train --api-key abcdef123456 ended with exit code 3", train=3))
    notifier.listen(ended("c", State.TIMEOUT))
    assert notifier.finish("fit: 3 runs: 1 done, 2 failed", 1, {"elapsed_s": 2.0}) == []
    failure, end = server.messages
    assert (failure["event"], failure["run"], failure["exit_code"], failure["study"]) == ("failure", "b", 3, "fit")
    assert "ended with exit code 3" in failure["message"]
    assert "abcdef123456" not in json.dumps(server.messages)
    assert (end["event"], end["run"], end["exit_code"], end["elapsed_s"]) == ("end", None, 1, 2.0)
    assert end["text"] == end["content"] == end["message"] == "fit: 3 runs: 1 done, 2 failed"
    assert {got.headers["Content-Type"] for got in server.got} == {"application/json"}


def test_a_new_best_run_is_sent_at_most_once_in_a_while_and_then_the_newest(
    server: RecordingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(notify.time, "monotonic", lambda: now[0])
    notifier = build(f"{server.url}/ok")
    notifier.send_best(None)
    notifier.send_best(LEADER)
    notifier.send_best(LEADER._replace(is_new=False))
    notifier.send_best(LEADER._replace(run="b", value=0.4))
    notifier.send_best(LEADER._replace(run="c", value=0.3))
    now[0] += 29
    notifier.send_best(LEADER._replace(run="c", value=0.3, is_new=False))
    now[0] += 2
    notifier.send_best(LEADER._replace(run="c", value=0.3, is_new=False))
    monkeypatch.undo()
    notifier.finish("", 0)
    assert [(each["event"], each["best"]["run"], each["best"]["value"]) for each in server.messages] == [
        ("best", "a", 0.5),
        ("best", "c", 0.3),
    ]
    assert server.messages[0]["best"] == {"run": "a", "metric": "loss", "direction": "min", "value": 0.5}


def test_a_command_gets_variables_and_the_document(tmp_path: Path) -> None:
    names = "EVENT STUDY RUN MESSAGE EXIT_CODE"
    shown = "".join(f'echo "$ASSAY_{name}" >> {tmp_path}/env; ' for name in names.split())
    notifier = build(f"{shown} cat >> {tmp_path}/json")
    notifier.listen(ended("b", State.FAILED, "it's $HOME `broken`", train=3))
    assert notifier.finish("done", 1) == []
    lines = (tmp_path / "env").read_text().splitlines()
    assert lines[:3] + lines[4:5] == ["failure", "fit", "b", "3"]
    assert "it's $HOME `broken`" in lines[3]
    assert lines[5:] == ["end", "fit", "", "done", "1"]
    decoder = json.JSONDecoder()
    first, end = decoder.raw_decode((tmp_path / "json").read_text())
    assert (first["event"], end > 0) == ("failure", True)


# ---------------------------------------------------------------- receivers that do not take it


def test_servers_that_do_not_take_it(
    server: RecordingServer, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    """They refuse, lead elsewhere, are not there, never answer, or do not speak HTTP: the others get all messages."""
    monkeypatch.setattr(notify, "LIMIT_S", 0.5)
    with answering([b"SSH-2.0\r\n\r\n"]) as other:
        paths = [f"{server.url}/500", f"{server.url}/302", f"http://127.0.0.1:{closed_port}/secret/path"]
        notifier = build(*paths, f"{other}/x", f"{server.url}/slow", f"{server.url}/ok")
        notifier.listen(ended("b", State.FAILED))
        *notes, late = notifier.finish("", 1)
    for note, text in zip(
        notes, ("it answered 500", "redirects are not followed", "refused", "BadStatusLine"), strict=True
    ):
        assert text in note
        assert "2 of 2 messages" in note
        assert not re.search("/500|/302|secret", note.partition("did not take")[0])
    assert "no answer within 0.5 s" in late
    assert sum(each["event"] == "failure" for each in server.messages) == 4
    assert sum(each["event"] == "end" for each in server.messages) >= 3


def test_a_login_in_the_address_is_sent_as_such_and_shown_nowhere(server: RecordingServer) -> None:
    notifier = build(f"http://user:SECRET@127.0.0.1:{server.server_port}/ok", "http://user:SECRET@127.0.0.1:1/x")
    notifier.listen(ended("b"))
    notes = notifier.finish("", 0)
    assert "SECRET" not in str(notes)
    assert {got.headers["Authorization"] for got in server.got} == {"Basic dXNlcjpTRUNSRVQ="}


def test_commands_that_fail_or_leave_something_running(tmp_path: Path) -> None:
    """What a command leaves running is not waited for."""
    leaving = f"sleep 60 & echo $! > {tmp_path}/child"
    notifier = build("echo one >&2; echo 'no such user' >&2; exit 7", "exit 0", "no-such-command-at-all", leaving)
    notifier.listen(ended("b"))
    try:
        failed, missing = notifier.finish("", 0)
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert failed.endswith("exit code 7: no such user")
    assert "exit code 127" in missing


def test_commands_that_hang_are_ended_with_their_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with its only message; one with every message, which is given up at the end."""
    monkeypatch.setattr(notify, "LIMIT_S", 0.3)
    notifier = build(f"sleep 300 & echo $! >> {tmp_path}/children; wait")
    notifier.listen(ended("b"))
    (note,) = notifier.finish("", 0)
    assert "not finished within 0.3 s" in note
    notifier = build(f"echo $$ >> {tmp_path}/children; exec sleep 300")
    for number in range(6):
        notifier.send_best(LEADER)
        notifier._best_at = -1e9
        notifier.listen(ended(f"r{number}", State.FAILED))
    (note,) = notifier.finish("", 0)
    assert "did not take the message" in note
    notifier.close()
    children = (tmp_path / "children").read_text().split()
    until(lambda: not any(is_alive(int(child)) for child in children), "the children have gone")


def start(bench: Bench, *words: str) -> tuple[ForkedProcess, Path]:
    """In the background, and the file that it prints to."""
    path = bench.folder / "printed"
    with open(path, "w") as log:
        return start_assay(["run", *words], cwd=bench.folder, env=os.environ | bench.extra, log=log), path


def test_an_interruption_of_the_wait_leaves_no_command_behind(own_bench: Bench) -> None:
    command = "echo $$ > child; exec sleep 300"
    process, printed = start(own_bench, own_bench.write("fit.yml", ONE), "--notify", command)
    child = own_bench.folder / "child"
    until(lambda: child.exists() and child.stat().st_size, "the command has begun")
    until(lambda: "next: " in printed.read_text(), "the report is printed, after which it waits")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    until(lambda: not is_alive(int(child.read_text())), "the command has gone")


def test_a_machine_without_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    notifier = build("true")
    notifier.listen(ended("b"))
    (note,) = notifier.finish("", 0)
    assert "can't start new thread" in note


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# ---------------------------------------------------------------- names of receivers


def test_receivers_are_checked_and_their_addresses_hidden() -> None:
    """A command line is recorded without them."""
    words = ["assay", "run", "--notify", "http://h/secret", "x.yml", "--notify=http://h/secret", "-n"]
    assert drop_flag(words) == ("assay", "run", "x.yml", "-n")
    for receiver in ("", "  ", "http://", "https:///path", "http://host:port/", "http://a b/", "ftp://h/x"):
        with pytest.raises(UsageError, match="--notify: "):
            check_receivers([receiver], "--notify")
    receivers = ["https://host/x?y=1", "HTTP://user:word@h:80", "mail -s x me", "none"]
    assert check_receivers(receivers, "") == tuple(receivers[:3])
    assert hide_receiver("https://hooks.host/services/T0/B0/abc") == "https://hooks.host/***"
    assert hide_receiver("https://user:word@host") == "https://host"
    assert hide_receiver("curl -H 'Authorization: Bearer abcdef123' x") == "curl -H 'Authorization: Bearer ***' x"


# ---------------------------------------------------------------- whole studies

STUDY = r"""
study: fit
command: echo "loss {lr}"; [ {lr} != 0.5 ]
params: {lr: [0.5, 0.3]}
metrics: {loss: 'loss ({number})'}
resources: {gpus: 0}
"""
ONE = STUDY.replace("0.5, 0.3", "0.3")


def test_a_study_with_a_server_and_a_command(own_bench: Bench, server: RecordingServer) -> None:
    command = "cat > $ASSAY_EVENT.json"
    result = own_bench.run(STUDY, "--notify", f"{server.url}/ok", "--notify", command)
    assert result.returncode == 1
    assert "notify" not in result.stderr
    events = {each["event"]: each for each in server.messages}
    assert set(events) == {"failure", "best", "end"}
    assert (events["failure"]["run"], events["best"]["run"]) == ("lr=0.5", "lr=0.3")
    end = events["end"]
    assert (end["exit_code"], end["states"], end["interrupted"]) == (1, {"done": 1, "failed": 1}, None)
    assert end["best"] == {"run": "lr=0.3", "metric": "loss", "direction": "min", "value": 0.3}
    assert {path.stem for path in own_bench.folder.glob("*.json")} == set(events)
    for path in own_bench.root.rglob("*.json"):
        assert "127.0.0.1" not in path.read_text()


def test_a_receiver_that_is_not_there_is_a_warning(own_bench: Bench, closed_port: int) -> None:
    result = own_bench.run(ONE, "--notify", f"http://127.0.0.1:{closed_port}/path", "--notify", "exit 3")
    assert result.returncode == 0
    assert result.stderr.count("warning: notify: ") == 2
    refused = own_bench.run(ONE, "--force", "--notify", "http://")
    assert (refused.returncode, "not a valid address" in refused.stderr) == (2, True)
    assert not list(own_bench.root.glob("fit/*/lease.2"))


def test_settings_and_none(own_bench: Bench) -> None:
    settings = own_bench.folder / "assay.toml"
    settings.write_text('notify = ["echo $ASSAY_EVENT >> events"]\n')
    own_bench.run(ONE, "--notify", "none")
    assert not (own_bench.folder / "events").exists()
    own_bench.run(ONE)  # nothing to do
    assert not (own_bench.folder / "events").exists()
    assert own_bench.assay("rerun", "fit", "--quiet").returncode == 0
    assert sorted((own_bench.folder / "events").read_text().split()) == ["best", "end"]
    for text, environment, receivers in (('"mail me"', {}, ("mail me",)), ("[]", {"ASSAY_NOTIFY": "x y"}, ("x y",))):
        settings.write_text(f"notify = {text}\n")
        assert load_settings(str(own_bench.folder), environment).notify == receivers
    settings.write_text('notify = ["x", 1]\n')
    with pytest.raises(ConfigError, match=r"assay\.toml:1:"):
        load_settings(str(own_bench.folder), {})
    settings.write_text("notify = 5\n")
    assert "notify: must be an address or a command" in own_bench.run(ONE).stderr
    settings.write_text('notify = "ftp://x/"\n')
    result = own_bench.run(ONE, "--force")
    assert result.returncode == 2
    assert "assay.toml: ftp:// is not supported" in result.stderr


LONG = "study: long\ncommand: sleep 300\nresources: {gpus: 0}\n"


def test_an_interruption_is_said(own_bench: Bench, server: RecordingServer) -> None:
    address = f"{server.url}/ok"
    process, printed = start(own_bench, own_bench.write("long.yml", LONG), "--quiet", "--notify", address)
    until(lambda: list(own_bench.root.glob("long/*/lease.1")), "the run has begun")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    (end,) = server.messages
    assert (end["event"], end["interrupted"], end["exit_code"]) == ("end", "SIGINT", 130)
    assert "continue with: assay run" in printed.read_text()
    assert address not in printed.read_text()


def test_in_the_background(own_bench: Bench, server: RecordingServer) -> None:
    assert own_bench.run(ONE, "--detach", "--notify", f"{server.url}/ok").returncode == 0
    until(lambda: any(each["event"] == "end" for each in server.messages), "the end is reported")
