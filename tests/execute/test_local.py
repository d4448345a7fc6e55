"""Jobs as processes of this host: the contract, and what only the parent and its gate can do."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contracts.executor import ExecutorContract, Run, Runs, finish, members, start, until

from assay.errors import InfrastructureError
from assay.execute import process
from assay.execute.local import LocalExecutor
from assay.record.run_directory import load_history
from assay.system import processes
from assay.values.run import JobHandle, Liveness

# A supervisor in a process of its own, like that of `assay run`. The files that it makes show its stages.
SUPERVISOR = """
import os, sys, time
from assay.execute.local import LocalExecutor
from assay.record import run_directory
from assay.values.run import JobRequest

run_dir, uid, stage = sys.argv[1:]

def publish(handle):
    if stage == "before publish":
        hang()
    won = run_directory.publish_lease(run_dir, handle)
    if stage == "after publish":
        hang()
    return won

def hang():
    open(os.path.join(run_dir, "reached"), "w").close()
    time.sleep(1000)

LocalExecutor().submit(JobRequest(run_dir, "study/run", 1, {}, tag=uid + ".1"), publish)
hang()
"""


def kill_supervisor(run: Run, stage: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", SUPERVISOR, run.dir, run.uid, stage])
    until(run.path("reached").exists, "the supervisor is where it should die")
    child.kill()
    child.wait()


def is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


@pytest.fixture
def executor() -> Iterator[LocalExecutor]:
    made = LocalExecutor()
    yield made
    made.close()


class TestContract(ExecutorContract):
    def another(self) -> LocalExecutor:
        return LocalExecutor()


class TestCrash:
    @pytest.mark.parametrize("stage", ["before publish", "after publish"])
    def test_a_supervisor_killed_before_the_gate_leaves_a_job_that_never_ran(self, runs: Runs, stage: str) -> None:
        run = runs.make("touch ran")
        kill_supervisor(run, stage)
        until(lambda: not members(run), "the job leaves")
        assert not run.path("code/ran").exists()
        assert run.markers() == set()
        assert run.path("lease.1").exists() == (stage == "after publish")

    def test_a_supervisor_killed_after_the_gate_leaves_its_job_alone(self, executor: LocalExecutor, runs: Runs) -> None:
        run = runs.make("until [ -e go ]; do sleep 0.02; done; exit 9")
        kill_supervisor(run, "after the gate")
        handle = load_history(run.dir).attempts[0].handle
        assert handle is not None
        assert executor.liveness(handle, run.dir) is Liveness.ALIVE
        executor.watch(handle, run.dir)
        run.path("code/go").touch()
        finish(executor, [handle])
        assert run.markers() == {"train.exit.9"}

    def test_job_sh_killed_leaves_no_marker_and_is_gone(self, executor: LocalExecutor, runs: Runs) -> None:
        run = runs.make("touch up; sleep 1000")
        handle = start(executor, run)
        until(run.path("code/up").exists, "the command runs")
        assert processes.is_alive(handle.pid, handle.start, handle.boot)
        assert os.getsid(handle.pid) == handle.pid
        os.kill(handle.pid, signal.SIGKILL)
        finish(executor, [handle])
        assert executor.liveness(handle, run.dir) is Liveness.GONE
        assert run.markers() == set()
        assert members(run), "the command lives on: the caller ends it before the next attempt"
        executor.cancel([(handle, run.dir)], 1.0)
        assert members(run) == set()


class TestHandle:
    def test_another_host_boot_or_start_is_another_process(self, executor: LocalExecutor, runs: Runs) -> None:
        run = runs.make("true")
        handle = start(executor, run)
        finish(executor, [handle])
        foreign = replace(handle, host="elsewhere")
        assert executor.liveness(foreign, run.dir) is Liveness.UNKNOWN
        executor.watch(foreign, run.dir)
        assert list(executor.wait(0.05)) == []
        with pytest.raises(InfrastructureError, match="elsewhere"):
            executor.cancel([(foreign, run.dir)], 0.1)
        own = replace(handle, pid=os.getpid(), start=processes.own_start())
        assert executor.liveness(own, run.dir) is Liveness.ALIVE
        for other in (replace(own, boot="earlier"), replace(own, start=own.start - 1), replace(own, pid=0)):
            assert executor.liveness(other, run.dir) is Liveness.GONE
            executor.watch(other, run.dir)
            finish(executor, [other])


class TestUsage:
    def test_the_peak_of_a_small_job_is_unknown(self, executor: LocalExecutor, runs: Runs) -> None:
        """The job inherits our own peak over exec."""
        run = runs.make("true")
        handle = start(executor, run)
        finish(executor, [handle])
        usage = executor.usage(handle)
        assert usage is not None
        assert usage.peak_rss_bytes == 0

    def test_of_an_ended_job(self, executor: LocalExecutor, runs: Runs) -> None:
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        large = own + 50_000_000
        run = runs.make(f"{sys.executable} -c 'x = bytearray({large}); sum(range(1_000_000))'")
        handle = start(executor, run)
        finish(executor, [handle])
        usage = executor.usage(handle)
        assert usage is not None
        assert usage.peak_rss_bytes > large
        assert usage.cpu_s > 0
        assert executor.usage(handle) is None


class TestDescriptors:
    def test_none_of_ours_reach_the_job(self, executor: LocalExecutor, runs: Runs) -> None:
        run = runs.make("ls /proc/self/fd")
        given = {fd for fd in range(3, 256) if is_inheritable(fd)}  # inherited from the process that started the tests
        finish(executor, [start(executor, run)])
        seen = {int(fd) for fd in run.text("train.log").split()}
        assert len(seen - given - {0, 1, 2}) == 1  # `ls` has opened the folder that it reads

    def test_a_job_without_a_lease_is_reaped_at_once(self, executor: LocalExecutor, runs: Runs) -> None:
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        before = children.read_text()

        def full_disk(_handle: JobHandle) -> bool:
            raise OSError(28, "No space left on device")

        with pytest.raises(OSError, match="No space"):
            executor.submit(runs.make("true").request(), full_disk)
        executor.submit(runs.make("true").request(), lambda _: False)
        assert children.read_text() == before

    @pytest.mark.parametrize("wanted", [(3, 20, 21), (21, 20), (4, 3)])
    def test_slot_locks_arrive_whatever_their_numbers_are(
        self, runs: Runs, tmp_path: Path, wanted: tuple[int, ...]
    ) -> None:
        run = runs.make("for fd in 20 21 22; do readlink /proc/self/fd/$fd; done")
        # the process is new, so that these numbers are free to take
        text = f"""
import os, sys
from assay.execute.local import LocalExecutor
from assay.values.run import JobRequest
for number in {wanted!r}:
    fd = os.open({str(tmp_path)!r} + f"/lock{{number}}", os.O_RDWR | os.O_CREAT)
    os.dup2(fd, number, inheritable=False) if fd != number else None
executor = LocalExecutor()
executor.submit(JobRequest({run.dir!r}, "s/r", 1, {{}}, tag="{run.uid}.1", slot_fds={wanted!r}), lambda _: True)
assert len(executor.wait(30)) == 1
"""
        subprocess.run([sys.executable, "-c", text], check=True)
        assert run.text("train.log").split() == [f"{tmp_path}/lock{number}" for number in wanted]

    def test_no_descriptor_is_left_open(self, executor: LocalExecutor, runs: Runs) -> None:
        finish(executor, [start(executor, runs.make("true"))])
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            finish(executor, [start(executor, runs.make("true"))])
            executor.submit(runs.make("true").request(), lambda _: False)
        assert len(os.listdir("/proc/self/fd")) == before


class TestSignals:
    def test_a_job_finds_signals_as_a_shell_would(self, executor: LocalExecutor, runs: Runs) -> None:
        """Python ignores SIGPIPE: if a job inherited that, `yes | head` would end with an error."""
        run = runs.make("yes | head -1; echo ${PIPESTATUS[0]}")
        finish(executor, [start(executor, run)])
        assert run.text("train.log") == "y\n141\n"


def test_what_forks_during_the_look_is_found_by_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`setsid PROGRAM` forks and exits: the list had the parent, and not yet its child."""
    child = subprocess.Popen(["sleep", "100"])
    until(Path(f"/proc/{child.pid}/cmdline").read_bytes, "its command line can be read")  # empty while it begins
    looks = iter([set(), {child.pid}])
    monkeypatch.setattr(process, "find_members", lambda _attempts: next(looks))
    executor = LocalExecutor()
    try:
        handle = JobHandle("local", "0", processes.host_name(), 1, 0, processes.boot_id(), None, 1, 1.0)
        assert executor.leftovers(handle, str(tmp_path)) == (f"sleep 100 (pid {child.pid})",)
    finally:
        executor.close()
        child.kill()
        child.wait()
