"""What every executor must do, whatever it starts jobs with: real `job.sh` scripts, real processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest
from tests.conftest import HOSTILE_NAMES
from tests.finished_study import until

from assay.errors import InfrastructureError
from assay.execute import process
from assay.execute.base import Executor
from assay.execute.script import JobText, render_job
from assay.record import run_directory
from assay.system import processes
from assay.values import layout
from assay.values.run import Command, JobHandle, JobRequest, Liveness, RunSpec, Stop

PATIENCE_S = 120.0  # for what comes in a moment: a cluster that begins beside others on two cores takes a minute
TIME = "20250101.120000"
AnyExecutor = TypeVar("AnyExecutor", bound=Executor)


@dataclass(frozen=True)
class Run:
    """A run directory with what a supervisor would know about it."""

    dir: str
    name: str
    uid: str
    spec: RunSpec

    def request(self, attempt: int = 1, slot_fds: tuple[int, ...] = (), **env: str) -> JobRequest:
        return JobRequest(
            dir=self.dir,
            name=self.name,
            attempt=attempt,
            env={layout.ENV_TIME: TIME, **env},
            tag=f"{self.uid}.{attempt}",
            slot_fds=slot_fds,
        )

    def publish(self, handle: JobHandle) -> bool:
        return run_directory.publish_lease(self.dir, handle)

    def path(self, name: str) -> Path:
        return Path(self.dir, name)

    def markers(self) -> set[str]:
        return {name for name in os.listdir(self.dir) if layout.parse_exit_marker(name)}

    def text(self, name: str) -> str:
        return self.path(name).read_text()


class Runs:
    """Makes run directories under a root, as the supervisor does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.count = 0

    def make(
        self,
        *texts: str,
        name: str = "",
        study: str = "study",
        timeout_s: float | None = None,
        limits: tuple[float | None, ...] = (),
        env: tuple[tuple[str, str], ...] = (),
        pythonpath: str | None = None,
        log_name: str | None = None,
    ) -> Run:
        self.count += 1
        names = ("train", "avg", "test")
        limits = limits or (None,) * len(texts)
        commands = tuple(Command(n, t, s) for n, t, s in zip(names, texts, limits, strict=False))
        run = name or f"run{self.count}"
        spec = RunSpec("0123456789ab", run, {}, commands, timeout_s=timeout_s, env=env, pythonpath=pythonpath)
        spec = replace(spec, log_name=log_name or spec.log_name)
        record = run_directory.RunRecord(spec, study, run_directory.new_uid(), time.time())
        path = str(self.root / study / run)
        job = render_job(spec, JobText(record.uid, study, layout.CODE_DIR))
        assert run_directory.write_run_dir(
            path, record, job, lambda aside: os.mkdir(os.path.join(aside, layout.CODE_DIR))
        )
        return Run(path, f"{study}/{run}", record.uid, spec)


class Opened(ExitStack):
    """Closes the executors that it gets when the test has ended."""

    def __call__(self, executor: AnyExecutor) -> AnyExecutor:
        self.callback(executor.close)
        return executor


def start(executor: Executor, run: Run, **more: str) -> JobHandle:
    handle = executor.submit(run.request(**more), run.publish)
    assert handle is not None
    return handle


def finish(executor: Executor, handles: Iterable[JobHandle]) -> None:
    """Until all of these are reported; nothing else may be, and nothing twice."""
    left = set(handles)
    deadline = time.monotonic() + PATIENCE_S
    while left:
        assert time.monotonic() < deadline, f"not ended: {left}"
        for handle in executor.wait(1.0):
            left.remove(handle)


def begin(executor: Executor, run: Run, file: str = "up") -> JobHandle:
    """Start a run, and wait until its command has made this file in its folder."""
    handle = start(executor, run)
    until(run.path(f"code/{file}").exists, f"{run.name} runs")
    return handle


def complete(executor: Executor, run: Run) -> JobHandle:
    handle = start(executor, run)
    finish(executor, [handle])
    return handle


def members(*runs: Run) -> set[int]:
    """By tag alone; and never by session 0, or cancelling would end the host's own processes."""
    assert process.find_members([process.AttemptProcesses(0, 0, "")]) == set()
    return process.find_members([process.AttemptProcesses(0, 0, f"{run.uid}.1") for run in runs])


STOP = Stop("test", "enough")

# each says when all of it is up by making `up` in its working directory
STUBBORN = {
    "plain": "touch up; sleep 1000",
    "ignores TERM": "trap '' TERM; touch up; while :; do sleep 1000; done",
    "own session": "setsid bash -c 'touch up; sleep 1000'",
    "own session, ignores TERM": """setsid bash -c 'trap "" TERM; touch up; while :; do sleep 1000; done' & wait""",
    "double fork": "(setsid bash -c '(trap \"\" TERM; sleep 1000 & touch up; wait) &' &); sleep 1000",
    "stopped": "bash -c 'touch up; kill -STOP $$'",
}


class ExecutorContract:
    """Subclasses give the `executor` fixture; `another` builds one as a second process would."""

    many_s: ClassVar[float] = PATIENCE_S * 2  # for two hundred jobs

    @pytest.fixture
    def executor(self, surroundings: None) -> Iterator[Executor]:
        members()  # before anything is cancelled: see there
        made = self.another()
        yield made
        made.close()

    @pytest.fixture
    def surroundings(self) -> None:
        """What has to be there before an executor can be made."""

    @pytest.fixture
    def runs(self, tmp_path: Path) -> Runs:
        return Runs(tmp_path / "root")

    def another(self) -> Executor:
        raise NotImplementedError

    def job_dir(self, run: Run) -> str:
        """Where the job finds itself."""
        return run.dir

    def test_jobs_run_to_their_end(self, executor: Executor, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
        """Several at once. A run that surrounds us gives them nothing: `train` would be left out of all."""
        outer = {"ASSAY_RUN_DIR": "/outer", "ASSAY_DONE": ":train:", "ASSAY_GATE": "9", "ASSAY_ATTEMPT": "outer.7"}
        for name, value in outer.items():
            monkeypatch.setenv(name, value)
        ordered = runs.make("echo 1 >> out", "echo 2 >> out", "cat out")
        failing = runs.make("echo said; exit 3", "touch never")
        last = runs.make("true", "exit 255")
        killed = runs.make("bash -c 'kill -KILL $$'")
        within = runs.make("exit 124", limits=(100.0,))
        skipping = runs.make("echo again", "echo once")
        chatty = runs.make("seq 100000; printf 'to stderr' >&2; printf 'no newline'")
        variables = {"CUDA_VISIBLE_DEVICES": "1,2", "ODD": "a 'b' \"c\" $d"}
        asking = runs.make("env -0 > vars", env=(("FROM_SPEC", "it's $HOME"),), pythonpath="${ASSAY_RUN_DIR}/code")
        handles = [start(executor, run) for run in (ordered, failing, last, killed, within, chatty)]
        handles.append(start(executor, skipping, **{layout.ENV_DONE: ":train:"}))
        handles.append(start(executor, asking, **variables))
        finish(executor, handles)
        assert ordered.markers() == {"train.exit.0", "avg.exit.0", "test.exit.0"}
        assert ordered.text("test.log") == "1\n2\n"
        assert failing.markers() == {"train.exit.3"}, "the first failure ends the run"
        assert failing.text("train.log") == "said\n"
        assert not Path(self.job_dir(failing), "code/never").exists()
        assert last.markers() == {"train.exit.0", "avg.exit.255"}
        assert killed.markers() == {"train.exit.137"}
        assert within.markers() == {"train.exit.124"}
        assert not within.path("train.timeout").exists()
        assert skipping.markers() == {"avg.exit.0"}, "finished commands are not repeated"
        lines = chatty.text("train.log").splitlines()
        assert (len(lines), lines[-1]) == (100001, "to stderrno newline")
        self.check_environment(asking)

    def check_environment(self, run: Run) -> None:
        seen = dict(item.partition("=")[::2] for item in Path(self.job_dir(run), "code/vars").read_text().split("\0"))
        expected = {
            "ASSAY_RUN_DIR": self.job_dir(run),
            "ASSAY_RUN_NAME": run.spec.name,
            "ASSAY_RUN_ID": "0123456789ab",
            "ASSAY_STUDY": "study",
            "ASSAY_ATTEMPT": f"{run.uid}.1",
            "ASSAY_ATTEMPT_NUMBER": "1",
            "ASSAY_TIME": TIME,
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": f"{self.job_dir(run)}/code",
            "FROM_SPEC": "it's $HOME",
            "CUDA_VISIBLE_DEVICES": "1,2",
            "ODD": "a 'b' \"c\" $d",
        }
        assert {name: seen.get(name) for name in expected} == expected
        assert "ASSAY_GATE" not in seen
        began, ended = run_directory.load_times(run.dir)["train"]
        assert ended is not None
        assert began <= ended <= time.time()

    def test_a_second_attempt_has_its_own_files(self, executor: Executor, runs: Runs) -> None:
        run = runs.make("[ -e ready ] && echo now")
        finish(executor, [start(executor, run)])
        Path(self.job_dir(run), "code", "ready").touch()
        second = executor.submit(run.request(attempt=2), run.publish)
        assert second is not None
        finish(executor, [second])
        assert run.markers() == {"train.exit.1", "train.2.exit.0"}
        assert run.text("train.2.log") == "now\n"

    def test_hostile_paths(self, executor: Executor, tmp_path: Path) -> None:
        text = 'echo "$PWD"; echo "it\'s fine" > "$ASSAY_RUN_DIR/out"'
        made = [Runs(tmp_path / name).make(text, name=name, study=name) for name in HOSTILE_NAMES.values()]
        finish(executor, [start(executor, run) for run in made])
        for run in made:
            assert run.markers() == {"train.exit.0"}
            assert run.text("train.log") == f"{self.job_dir(run)}/code\n"
            assert run.text("out") == "it's fine\n"

    def test_twelve_jobs(self, executor: Executor, runs: Runs) -> None:
        self.run_many(executor, runs, 12)

    @pytest.mark.long
    def test_two_hundred_jobs(self, executor: Executor, runs: Runs) -> None:
        self.run_many(executor, runs, 200)

    def run_many(self, executor: Executor, runs: Runs, count: int, width: int = 8) -> None:
        made = [runs.make(f"exit {i % 5}") for i in range(count)]
        waiting, active = list(made), set()
        deadline = time.monotonic() + self.many_s
        while waiting or active:
            assert time.monotonic() < deadline
            while waiting and len(active) < width:
                active.add(start(executor, waiting.pop()))
            active.difference_update(executor.wait(1.0))
        assert [run.markers() for run in made] == [{f"train.exit.{i % 5}"} for i in range(count)]

    def test_publish_false_means_that_nothing_runs(self, executor: Executor, runs: Runs) -> None:
        run = runs.make("touch ran")
        assert executor.submit(run.request(), lambda _: False) is None
        assert list(executor.wait(0.2)) == []
        assert members(run) == set()
        assert not run.path("code/ran").exists()
        assert run.markers() == set()

    def test_of_two_supervisors_one_runs_it(self, executor: Executor, runs: Runs) -> None:
        run = runs.make("echo x >> ran")
        other = self.another()
        handles = [each.submit(run.request(), run.publish) for each in (executor, other)]
        assert [handle is None for handle in handles] == [False, True]
        finish(executor, [handle for handle in handles if handle])
        assert Path(self.job_dir(run), "code/ran").read_text() == "x\n"
        other.close()

    def test_a_lease_that_cannot_be_written_means_that_nothing_runs(self, executor: Executor, runs: Runs) -> None:
        run = runs.make("touch ran")

        def full_disk(_handle: JobHandle) -> bool:
            raise OSError(28, "No space left on device")

        with pytest.raises(OSError, match="No space"):
            executor.submit(run.request(), full_disk)
        assert list(executor.wait(0.2)) == []
        assert members(run) == set()
        assert not run.path("code/ran").exists()

    def test_the_handle_says_who_started_it(self, executor: Executor, runs: Runs) -> None:
        run = runs.make("true")
        published: list[JobHandle] = []

        def publish(handle: JobHandle) -> bool:
            published.append(handle)
            assert run.markers() == set()
            return run.publish(handle)

        handle = executor.submit(run.request(), publish)
        assert handle is not None
        finish(executor, [handle])
        assert published == [handle]
        assert handle.executor == executor.name
        assert (handle.supervisor_pid, handle.host) == (os.getpid(), processes.host_name())
        assert processes.is_alive(handle.supervisor_pid, handle.supervisor_start, handle.boot)
        assert (handle.attempt, handle.tag) == (1, f"{run.uid}.1")
        assert run_directory.load_history(run.dir).attempts[0].handle == handle

    def test_a_run_directory_that_is_gone(self, executor: Executor, runs: Runs) -> None:
        run = runs.make("true")
        os.rename(run.dir, run.dir + ".moved")
        with pytest.raises(InfrastructureError, match="cannot start"):
            executor.submit(run.request(), lambda _: True)

    def test_another_executor_watches(self, executor: Executor, runs: Runs) -> None:
        run = runs.make("until [ -e go ]; do sleep 0.02; done; exit 5")
        handle = start(executor, run)
        second = self.another()
        second.watch(handle, run.dir)
        second.watch(handle, run.dir)
        assert list(second.wait(0.1)) == []
        until(lambda: Path(self.job_dir(run), "code").is_dir(), "the job has its directory")
        Path(self.job_dir(run), "code/go").touch()
        finish(second, [handle])
        assert second.liveness(handle, run.dir) is Liveness.GONE
        assert run.markers() == {"train.exit.5"}
        finish(executor, [handle])
        second.close()

    def test_what_has_ended_can_be_watched_and_cancelled(self, executor: Executor, runs: Runs) -> None:
        assert list(executor.wait(0.01)) == []
        run = runs.make("true")
        handle = start(executor, run)
        finish(executor, [handle])
        second = self.another()
        second.watch(handle, run.dir)
        finish(second, [handle])
        assert list(second.wait(0.0)) == []
        second.close()
        executor.cancel([(handle, run.dir)], 0.1)
        assert run.markers() == {"train.exit.0"}

    def test_liveness(self, executor: Executor, runs: Runs) -> None:
        run = runs.make(STUBBORN["plain"])
        handle = start(executor, run)
        until(lambda: Path(self.job_dir(run), "code/up").exists(), "the command runs")
        assert executor.liveness(handle, run.dir) is Liveness.ALIVE
        run_directory.write_stop(run.dir, 1, STOP)
        executor.cancel([(handle, run.dir)], 0.3)
        finish(executor, [handle])
        assert executor.liveness(handle, run.dir) is Liveness.GONE

    def test_closing_leaves_jobs_running(self, executor: Executor, runs: Runs) -> None:
        run = runs.make("until [ -e go ]; do sleep 0.02; done; exit 6")
        first = self.another()
        handle = start(first, run)
        until(lambda: Path(self.job_dir(run), "train.log").exists(), "the command runs")
        first.close()
        executor.watch(handle, run.dir)
        Path(self.job_dir(run), "code/go").touch()
        finish(executor, [handle])
        assert run.markers() == {"train.exit.6"}

    @pytest.mark.parametrize("kinds", [tuple(STUBBORN)[:3], tuple(STUBBORN)[3:]], ids=["one group", "many groups"])
    def test_cancel_leaves_no_process_and_spares_the_others(
        self, executor: Executor, runs: Runs, kinds: tuple[str, ...]
    ) -> None:
        made = [runs.make(STUBBORN[kind]) for kind in kinds]
        handles = [start(executor, run) for run in made]
        until(lambda: all(Path(self.job_dir(run), "code/up").exists() for run in made), "the commands run")
        for some in (slice(0, 2), slice(2, 3)):
            assert all(members(run) for run in made[some])
            for run in made[some]:
                run_directory.write_stop(run.dir, 1, STOP)
            executor.cancel([(handle, run.dir) for handle, run in zip(handles, made, strict=True)][some], 0.3)
            assert members(*made[some]) == set()
        finish(executor, handles)
        assert all("train.exit.0" not in run.markers() for run in made)

    def test_a_time_limit(self, executor: Executor, runs: Runs) -> None:
        run = runs.make("setsid sleep 1000 & sleep 1000", "true", limits=(0.3, None))
        finish(executor, [start(executor, run)])
        assert run.markers() == {"train.exit.124"}
        assert run.path("train.timeout").exists()
        until(lambda: members(run) == set(), "no process is left")  # job.sh itself ends after its last marker
