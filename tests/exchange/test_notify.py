"""Messages about a study: what each receiver gets, and that no receiver harms a run."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.finished_study import Bench, until

from assay.errors import ConfigError, UsageError
from assay.exchange import notify
from assay.exchange.notify import Notifier, check_receivers, drop_flag, hide_receiver
from assay.follow.attempts import RetryPolicy
from assay.follow.entry import Entry, Event
from assay.launch.live_view import Goal, Leader
from assay.values.run import Outcome, RunSpec, State
from assay.values.secrets import DEFAULT_RULES


class Server(ThreadingHTTPServer):
    """Keeps what it gets; answers by path: /ok, /500, /302, /slow (when it is released)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[dict[str, Any]] = []
        self.kinds: list[str] = []
        self.logins: set[str | None] = set()
        self.may_answer = threading.Event()

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.kinds.append(self.headers["Content-Type"])
        self.server.logins.add(self.headers["Authorization"])
        if self.path == "/slow":
            self.server.may_answer.wait(60)
        code = {"/500": 500, "/302": 302}.get(self.path, 204)
        self.send_response(code)
        if code == 302:
            self.send_header("Location", "/ok")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield found
        found.may_answer.set()
        found.shutdown()
        thread.join(10)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test does not wait for ten seconds."""
    monkeypatch.setattr(notify, "LIMIT_S", 0.5)


def build(*receivers: str) -> Notifier:
    return Notifier(receivers, "fit", "/runs/fit", DEFAULT_RULES)


def ended(name: str, state: State = State.DONE, reason: str = "", **codes: int) -> Event:
    outcome = Outcome(state, 1, codes, reason)
    return Event(
        "ended", Entry(RunSpec(name, name, {}, ()), f"/runs/fit/{name}", RetryPolicy(), state, outcome=outcome)
    )


LEADER = Leader("a", 0.5, Goal("loss", "min"), is_new=True)


# ---------------------------------------------------------------- what is sent


def test_the_first_failure_and_the_end(server: Server) -> None:
    notifier = build(server.address("ok"))
    notifier.listen(ended("a"))
    notifier.listen(ended("b", State.FAILED, "train ended with exit code 3", train=3))
    notifier.listen(ended("c", State.TIMEOUT))
    assert notifier.finish("fit: 3 runs: 1 done, 2 failed", 1, {"elapsed_s": 2.0}) == []
    failure, end = server.got
    assert (failure["event"], failure["run"], failure["exit_code"], failure["study"]) == ("failure", "b", 3, "fit")
    assert "train ended with exit code 3" in failure["message"]
    assert (end["event"], end["run"], end["exit_code"], end["elapsed_s"]) == ("end", None, 1, 2.0)
    assert end["text"] == end["content"] == end["message"] == "fit: 3 runs: 1 done, 2 failed"
    assert set(server.kinds) == {"application/json"}


def test_a_new_best_run_is_sent_at_most_once_in_a_while_and_then_the_newest(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(notify.time, "monotonic", lambda: now[0])
    notifier = build(server.address("ok"))
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
    assert [(each["event"], each["best"]["run"], each["best"]["value"]) for each in server.got] == [
        ("best", "a", 0.5),
        ("best", "c", 0.3),
    ]
    assert server.got[0]["best"] == {"run": "a", "metric": "loss", "direction": "min", "value": 0.5}


def test_a_call_in_which_nothing_happened_sends_nothing(server: Server) -> None:
    assert build(server.address("ok")).finish("fit: 3 runs: 3 done", 0) == []
    assert server.got == []


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


def test_secrets_are_not_sent(server: Server) -> None:
    notifier = build(server.address("ok"))
    notifier.listen(ended("b", State.FAILED, "cannot log in with --api-key abcdef123456"))
    notifier.finish("", 1)
    assert "abcdef123456" not in json.dumps(server.got)


# ---------------------------------------------------------------- receivers that do not take it


def find_free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize(("path", "text"), [("500", "it answered 500"), ("302", "redirects are not followed")])
def test_a_server_that_refuses(server: Server, path: str, text: str) -> None:
    notifier = build(server.address(path), server.address("ok"))
    notifier.listen(ended("b", State.FAILED))
    (note,) = notifier.finish("", 1)
    assert text in note
    assert "2 of 2 messages" in note
    assert f"/{path}" not in note.partition("did not take")[0]
    assert len(server.got) == 4


def test_a_port_where_nobody_listens() -> None:
    notifier = build(f"http://127.0.0.1:{find_free_port()}/secret/path")
    notifier.listen(ended("b"))
    (note,) = notifier.finish("", 0)
    assert "refused" in note
    assert "secret" not in note


@pytest.mark.usefixtures("short")
def test_a_server_that_never_answers_is_left(server: Server) -> None:
    notifier = build(server.address("slow"), server.address("ok"))
    notifier.listen(ended("b"))
    (note,) = notifier.finish("", 0)
    assert "no answer within 0.5 s" in note
    assert [each["event"] for each in server.got] == ["end", "end"]


def test_what_answers_does_not_speak_http(short: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"SSH-2.0\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        notifier = build(f"http://127.0.0.1:{listener.getsockname()[1]}/x")
        notifier.listen(ended("b"))
        (note,) = notifier.finish("", 0)
        thread.join(10)
    assert "BadStatusLine" in note


def test_a_login_in_the_address_is_sent_as_such_and_shown_nowhere(server: Server) -> None:
    notifier = build(f"http://user:SECRET@127.0.0.1:{server.server_port}/ok", "http://user:SECRET@127.0.0.1:1/x")
    notifier.listen(ended("b"))
    notes = notifier.finish("", 0)
    assert "SECRET" not in str(notes)
    assert server.logins == {"Basic dXNlcjpTRUNSRVQ="}


def test_a_command_that_fails() -> None:
    notifier = build("echo one >&2; echo 'no such user' >&2; exit 7", "exit 0", "no-such-command-at-all")
    notifier.listen(ended("b"))
    failed, missing = notifier.finish("", 0)
    assert failed.endswith("exit code 7: no such user")
    assert "exit code 127" in missing


@pytest.mark.usefixtures("short")
def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    notifier = build(f"sleep 300 & echo $! > {tmp_path}/child; wait")
    notifier.listen(ended("b"))
    (note,) = notifier.finish("", 0)
    assert "not finished within 0.5 s" in note
    child = int((tmp_path / "child").read_text())
    until(lambda: not is_alive(child), "the child has gone")


@pytest.mark.usefixtures("short")
def test_a_command_that_hangs_with_every_message_is_given_up_at_the_end(tmp_path: Path) -> None:
    notifier = build(f"echo $$ >> {tmp_path}/children; exec sleep 300")
    for number in range(4):
        notifier.send_best(LEADER)
        notifier._best_at = -1e9
        notifier.listen(ended(f"r{number}", State.FAILED))
    (note,) = notifier.finish("", 0)
    assert "did not take the message" in note
    notifier.close()
    for child in (tmp_path / "children").read_text().split():
        until(lambda child=child: not is_alive(int(child)), "the child has gone")


def test_whoever_interrupts_the_wait_leaves_no_command_behind(own_bench: Bench) -> None:
    text = STUDY.replace("0.5, 0.3", "0.3")
    command = "echo $$ > child; exec sleep 300"
    process = own_bench.start("run", own_bench.write("fit.yml", text), "--notify", command)
    until((own_bench.root / "fit" / "lr=0.3" / "outcome.1").exists, "the run has ended")
    child = own_bench.folder / "child"
    until(lambda: child.exists() and child.stat().st_size, "the command has begun")
    assert process.stderr is not None
    for line in process.stderr:  # up to the report, after which it waits
        if line.startswith("next: "):
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
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
    except FileNotFoundError:
        return False


def test_what_a_command_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    notifier = build(f"sleep 60 & echo $! > {tmp_path}/child")
    notifier.listen(ended("b"))
    try:
        assert notifier.finish("", 0) == []
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


# ---------------------------------------------------------------- names of receivers


@pytest.mark.parametrize(
    "receiver", ["", "  ", "http://", "https:///path", "http://host:port/", "http://a b/", "ftp://h/x"]
)
def test_what_cannot_be_a_receiver(receiver: str) -> None:
    with pytest.raises(UsageError, match="--notify: "):
        check_receivers([receiver], "--notify")


def test_what_can() -> None:
    receivers = ["https://host/x?y=1", "HTTP://user:word@h:80", "mail -s x me", "none"]
    assert check_receivers(receivers, "") == tuple(receivers[:3])


@pytest.mark.parametrize(
    ("receiver", "shown"),
    [
        ("https://hooks.host/services/T0/B0/abc", "https://hooks.host/***"),
        ("https://user:word@host", "https://host"),
        ("curl -H 'Authorization: Bearer abcdef123' x", "curl -H 'Authorization: Bearer ***' x"),
    ],
)
def test_addresses_are_hidden(receiver: str, shown: str) -> None:
    assert hide_receiver(receiver) == shown


def test_a_command_line_is_recorded_without_receivers() -> None:
    words = ["assay", "run", "--notify", "http://h/secret", "x.yml", "--notify=http://h/secret", "-n"]
    assert drop_flag(words) == ("assay", "run", "x.yml", "-n")


# ---------------------------------------------------------------- whole studies

STUDY = r"""
study: fit
command: echo "loss {lr}"; [ {lr} != 0.5 ]
params: {lr: [0.5, 0.3]}
metrics: {loss: 'loss ({number})'}
resources: {gpus: 0}
"""


def test_a_study_with_a_server_and_a_command(own_bench: Bench, server: Server) -> None:
    command = "cat > $ASSAY_EVENT.json"
    result = own_bench.run(STUDY, "--notify", server.address("ok"), "--notify", command)
    assert result.returncode == 1
    assert "notify" not in result.stderr
    events = {each["event"]: each for each in server.got}
    assert set(events) == {"failure", "best", "end"}
    assert (events["failure"]["run"], events["best"]["run"]) == ("lr=0.5", "lr=0.3")
    end = events["end"]
    assert (end["exit_code"], end["states"], end["interrupted"]) == (1, {"done": 1, "failed": 1}, None)
    assert end["best"] == {"run": "lr=0.3", "metric": "loss", "direction": "min", "value": 0.3}
    assert {path.stem for path in own_bench.folder.glob("*.json")} == set(events)
    for path in own_bench.root.rglob("*.json"):
        assert "127.0.0.1" not in path.read_text()


def test_a_receiver_that_is_not_there_is_a_warning(own_bench: Bench) -> None:
    text = STUDY.replace("0.5, 0.3", "0.3")
    result = own_bench.run(text, "--notify", f"http://127.0.0.1:{find_free_port()}/path", "--notify", "exit 3")
    assert result.returncode == 0
    assert result.stderr.count("warning: notify: ") == 2


def test_settings_and_none(own_bench: Bench) -> None:
    settings = own_bench.folder / "assay.toml"
    settings.write_text('notify = ["echo $ASSAY_EVENT >> events"]\n')
    text = STUDY.replace("0.5, 0.3", "0.3")
    own_bench.run(text, "--notify", "none")
    assert not (own_bench.folder / "events").exists()
    own_bench.run(text)  # nothing to do
    assert not (own_bench.folder / "events").exists()
    assert own_bench.assay("rerun", "fit", "--quiet").returncode == 0
    assert sorted((own_bench.folder / "events").read_text().split()) == ["best", "end"]
    settings.write_text("notify = 5\n")
    assert "notify: must be an address or a command" in own_bench.run(text).stderr
    settings.write_text('notify = "ftp://x/"\n')
    result = own_bench.run(text, "--force")
    assert result.returncode == 2
    assert "assay.toml: ftp:// is not supported" in result.stderr


LONG = "study: long\ncommand: sleep 300\nresources: {gpus: 0}\n"


def test_an_interruption_is_said(own_bench: Bench, server: Server) -> None:
    process = own_bench.start("run", own_bench.write("long.yml", LONG), "--quiet", "--notify", server.address("ok"))
    until(lambda: list(own_bench.root.glob("long/*/lease.1")), "the run has begun")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    (end,) = server.got
    assert (end["event"], end["interrupted"], end["exit_code"]) == ("end", "SIGINT", 130)
    assert "continue with: assay run" in errors
    assert server.address("ok") not in errors


def test_in_the_background(own_bench: Bench, server: Server) -> None:
    text = STUDY.replace("0.5, 0.3", "0.3")
    result = own_bench.run(text, "--detach", "--notify", server.address("ok"))
    assert result.returncode == 0
    until(lambda: any(each["event"] == "end" for each in server.got), "the end is reported")


def test_bad_receivers_are_refused_before_anything_runs(own_bench: Bench) -> None:
    result = own_bench.run(STUDY, "--notify", "http://")
    assert result.returncode == 2
    assert "not a valid address" in result.stderr
    assert not own_bench.root.exists()


def test_config_errors_have_positions(own_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.config.settings import load_settings

    (own_bench.folder / "assay.toml").write_text('notify = ["x", 1]\n')
    with pytest.raises(ConfigError, match=r"assay\.toml:1:"):
        load_settings(str(own_bench.folder), {})
    (own_bench.folder / "assay.toml").write_text('notify = "mail me"\n')
    assert load_settings(str(own_bench.folder), {}).notify == ("mail me",)
    assert load_settings(str(own_bench.folder), {"ASSAY_NOTIFY": "x y"}).notify == ("x y",)
