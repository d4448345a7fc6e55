"""Processes of this host."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.executor import until

from assay.execute import process
from assay.execute.process import AttemptProcesses
from assay.system import processes
from assay.values.run import JobRequest


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "1000"])
    yield child
    child.kill()
    child.wait()


def tagged(text: str, tag: str, **more: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["bash", "-c", text], env={**os.environ, "ASSAY_ATTEMPT": tag}, **more)  # type: ignore[call-overload]


def end(tag: str, grace_s: float) -> bool:
    """End an attempt by its tag alone, after the guard: without it everything of session 0 would be ended, too."""
    assert process.find_members([AttemptProcesses(0, 0, "")]) == set()
    return process.end_attempts([AttemptProcesses(0, 0, tag)], grace_s)


class TestIdentity:
    def test_this_process(self) -> None:
        start = processes.process_start(os.getpid())
        assert start == processes.own_start()
        assert start is not None
        assert processes.is_alive(os.getpid(), start, processes.boot_id())
        assert not processes.is_alive(os.getpid(), processes.own_start() + 1, processes.boot_id())
        assert not processes.is_alive(os.getpid(), processes.own_start(), "another boot")

    def test_a_zombie_is_not_alive(self) -> None:
        child = subprocess.Popen(["true"])
        until(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(") ")[2][0] == "Z", "it is a zombie")
        assert processes.process_start(child.pid) is None
        child.wait()
        assert processes.process_start(child.pid) is None

    def test_the_host_and_the_boot(self) -> None:
        assert processes.host_name() == socket.gethostname()
        assert len(processes.boot_id()) == 36

    def test_a_forked_child_has_a_start_of_its_own(self) -> None:
        text = """
import os, time
from assay.system import processes
processes.own_start()
time.sleep(0.05)
pid = os.fork()
if pid == 0:
    os._exit(processes.own_start() == processes.process_start(os.getpid()))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
"""
        subprocess.run([sys.executable, "-c", text], check=True)


class TestMembers:
    def test_by_session(self) -> None:
        child = subprocess.Popen(["bash", "-c", "sleep 1000 & wait"], start_new_session=True)
        attempt = AttemptProcesses(child.pid, processes.process_start(child.pid) or 0, "")
        until(lambda: len(process.find_members([attempt])) == 2, "both are up")
        assert process.end_attempts([attempt], 5.0)
        child.wait()

    def test_by_tag_in_another_session(self) -> None:
        child = tagged("setsid sleep 1000 & wait", "tag-of-test.1")
        attempt = AttemptProcesses(0, 0, "tag-of-test.1")
        until(lambda: len(process.find_members([attempt])) == 2, "both are up")
        assert end("tag-of-test.1", 5.0)
        child.wait()
        assert process.find_members([attempt]) == set()

    def test_a_member_that_was_seen_is_ended_although_it_has_left_the_session_since(
        self, sleeper: subprocess.Popen[bytes]
    ) -> None:
        start = processes.process_start(sleeper.pid) or 0
        other = AttemptProcesses(0, 0, "", seen=frozenset({(sleeper.pid, start + 1)}))
        assert process.find_members([other]) == set()
        assert process.end_attempts([AttemptProcesses(0, 0, "", seen=frozenset({(sleeper.pid, start)}))], 5.0)
        assert sleeper.wait() == -signal.SIGTERM

    def test_a_daemon_that_forks_twice_while_orphans_are_looked_for_is_found(self) -> None:
        text = """
import os, signal, time
from assay.execute import process

class Late(process.Orphans):
    def _load(self):
        pids = super()._load()
        if first in pids:
            os.kill(first, signal.SIGTERM)  # between the list and the look at each the first one leaves
            os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
        return pids

first = 0
orphans = Late()
ready, tell = os.pipe()
first = os.fork()
if not first:
    os.setsid()
    if not os.fork():
        os.write(tell, b"1")
        time.sleep(1000)
    signal.pause()
os.read(ready, 1)
found = orphans.find([])
for pid in found:
    os.kill(pid, signal.SIGKILL)
assert len(found) == 1 and first not in found, found
"""
        subprocess.run([sys.executable, "-c", text], check=True, timeout=60)

    def test_a_tag_is_compared_whole(self) -> None:
        child = tagged("exec sleep 1000", "tag-of-test.12")
        until(lambda: process.find_members([AttemptProcesses(0, 0, "tag-of-test.12")]), "it is up")
        assert process.find_members([AttemptProcesses(0, 0, "tag-of-test.1")]) == set()
        child.kill()
        child.wait()

    def test_without_a_leader_or_a_tag_nobody_belongs(self) -> None:
        """Session 0 has the kernel's threads and what started the host: a lease without a pid must not reach it."""
        assert process.find_members([AttemptProcesses(0, 0, ""), AttemptProcesses(-1, 0, "")]) == set()
        assert end("", 0.0)
        assert process.end_attempts([], 10.0)

    def test_a_leader_s_pid_that_was_given_to_somebody_else(self) -> None:
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        start = processes.process_start(child.pid) or 0
        assert process.find_members([AttemptProcesses(child.pid, start, "")]) == {child.pid}
        assert process.find_members([AttemptProcesses(child.pid, start - 1, "")]) == set()
        child.kill()
        child.wait()

    def test_orphans_of_a_dead_leader(self) -> None:
        child = subprocess.Popen(["bash", "-c", "sleep 1000 & exit"], start_new_session=True)
        start = processes.process_start(child.pid) or 0
        child.wait()
        attempt = AttemptProcesses(child.pid, start, "")
        assert len(process.find_members([attempt])) == 1
        assert process.end_attempts([attempt], 5.0)

    def test_never_ourselves(self, monkeypatch: pytest.MonkeyPatch) -> None:
        text = (
            "import os; from assay.execute import process; a = process.AttemptProcesses(0, 0, 'tag-of-test.3');"
            "assert process.find_members([a]) == set(); assert process.end_attempts([a], 0.0)"
        )
        subprocess.run([sys.executable, "-c", text], check=True, env={**os.environ, "ASSAY_ATTEMPT": "tag-of-test.3"})


class TestEnding:
    def test_term_comes_first(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        child = tagged(
            f"trap 'echo term > {out}; exit' TERM; touch {out}.up; while :; do sleep 0.01; done", "tag-of-test.4"
        )
        until((tmp_path / "out.up").exists, "it is up")
        assert end("tag-of-test.4", 30.0)
        child.wait()
        assert out.read_text() == "term\n"

    def test_kill_comes_after_the_grace(self, tmp_path: Path) -> None:
        child = tagged(f"trap '' TERM; touch {tmp_path}/up; while :; do sleep 1000; done", "tag-of-test.5")
        until((tmp_path / "up").exists, "it is up")
        assert end("tag-of-test.5", 0.1)
        assert child.wait() == -signal.SIGKILL

    def test_a_stopped_process_is_ended_by_its_term(self) -> None:
        child = tagged("exec sleep 1000", "tag-of-test.6")
        until(lambda: process.find_members([AttemptProcesses(0, 0, "tag-of-test.6")]), "it is up")
        child.send_signal(signal.SIGSTOP)
        assert end("tag-of-test.6", 30.0)
        assert child.wait() == -signal.SIGTERM

    def test_a_process_forked_during_the_end_is_signalled_too(self, tmp_path: Path) -> None:
        """On TERM the process starts a successor, which only a TERM of its own ends within the grace."""
        text = f"""trap 'setsid bash -c "touch {tmp_path}/next; exec sleep 1000" & exit' TERM; touch {tmp_path}/up; while :; do sleep 0.01; done"""
        child = tagged(text, "tag-of-test.7")
        until((tmp_path / "up").exists, "it is up")
        seen: list[signal.Signals] = []
        original = processes.signal_all
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(processes, "signal_all", lambda pids, number: (seen.append(number), original(pids, number)))
            assert end("tag-of-test.7", 30.0)
        child.wait()
        assert signal.SIGKILL not in seen


class TestStarting:
    def test_a_session_of_its_own_with_its_output_in_a_file(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_text("before\n")
        argv = ["/bin/bash", "-c", "echo out; echo err >&2; cat; ps -o sid= -p $$"]
        pid = processes.spawn_session(argv, dict(os.environ), str(log))
        assert os.waitpid(pid, 0)[1] == 0
        assert log.read_text().split() == ["before", "out", "err", str(pid)]

    def test_what_cannot_be_started(self, tmp_path: Path) -> None:
        before = os.listdir("/proc/self/fd")
        with pytest.raises(FileNotFoundError):
            processes.spawn_session(["/no/such/program"], {}, str(tmp_path / "log"), [(0, 3)])
        assert os.listdir("/proc/self/fd") == before

    def test_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ASSAY_DONE", ":outer:")
        monkeypatch.setenv("KEPT", "1")
        env = process.build_environment(JobRequest("/d", "s/r", 3, {"OWN": "2", "KEPT": "over"}, tag="u.3"))
        assert (env["KEPT"], env["OWN"]) == ("over", "2")
        assert (env["ASSAY_ATTEMPT"], env["ASSAY_ATTEMPT_NUMBER"]) == ("u.3", "3")
        assert "ASSAY_DONE" not in env


class TestLogs:
    """Processes that have opened an attempt's log as output, without session and tag."""

    @pytest.mark.parametrize(
        ("name", "tag", "attempts"),
        [
            ("train.log", None, [1]),
            ("train.2.log", None, [2]),
            ("train.2.other.log", None, [2]),
            ("log.train.20260101.101500", None, [1, 2]),  # a template without a number
            ("train.log", "uid-of-test.2", [2]),  # the tag decides
            ("train.2.log", "another.1", []),
        ],
    )
    def test_a_process_belongs_to_the_attempt_whose_log_it_writes(
        self, tmp_path: Path, name: str, tag: str | None, attempts: list[int]
    ) -> None:
        """Ending the first attempt must not end the second, which shares its directory."""
        env = {} if tag is None else {"ASSAY_ATTEMPT": tag}
        with (tmp_path / name).open("w") as log:
            child = subprocess.Popen(["/bin/sleep", "1000"], env=env, stdout=log, start_new_session=True)
        try:
            until(lambda: os.readlink(f"/proc/{child.pid}/exe") != os.readlink("/proc/self/exe"), "it is up")
            found = [
                n for n in (1, 2) if process.find_members([AttemptProcesses(0, 0, f"uid-of-test.{n}", str(tmp_path))])
            ]
            assert found == attempts
        finally:
            child.kill()
            child.wait()

    def test_who_reads_a_log_does_not_belong(self, tmp_path: Path) -> None:
        (tmp_path / "train.log").touch()
        with (tmp_path / "train.log").open() as log:
            child = subprocess.Popen(["/bin/sleep", "1000"], env={}, stdin=log)
        try:
            assert process.find_members([AttemptProcesses(0, 0, "uid-of-test.1", str(tmp_path))]) == set()
        finally:
            child.kill()
            child.wait()
