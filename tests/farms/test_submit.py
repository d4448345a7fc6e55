"""Jobs on farms: the contract with a real shell and with stand-ins for farms, and the states that only a farm knows."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import HOSTILE_NAMES
from tests.contracts.executor import (
    STOP,
    STUBBORN,
    ExecutorContract,
    Opened,
    Run,
    Runs,
    begin,
    complete,
    finish,
    members,
    start,
    until,
)
from tests.stand_ins import put_programs

from assay.errors import InfrastructureError, UsageError
from assay.farms import submit
from assay.farms.submit import SubmitExecutor, find_unfinished, load_submit_code, load_submit_failure, parse_token
from assay.record import run_directory
from assay.system import processes
from assay.values import layout
from assay.values.run import JobHandle, Liveness
from assay.values.study import Farm

# A farm: writes down what it was asked, and starts the command a moment later in a clean environment.
# HOLD keeps jobs in the queue, REFUSE makes the farm say no.
SUBMIT_JOB = r"""#!/usr/bin/env bash
{ flock 9; printf '%s\0' "$@" $'\n' >&9; } 9>> "$FARM_FOLDER/calls"
if [ -e "$FARM_FOLDER/REFUSE" ]; then echo "no such partition" >&2; exit 7; fi
while [ $# -gt 0 ]; do
  case $1 in
    -c | --command | --commandline) command=$2; shift ;;
    --script) printf -v command 'bash %q' "$2"; shift ;;
  esac
  shift
done
echo "Submitted batch job 4711"
(
  while [ -e "$FARM_FOLDER/HOLD" ]; do sleep 0.02; done; sleep 0.02
  cd /; exec setsid env -i HOME="$HOME" PATH="$PATH" bash -c "$command"
) > /dev/null 2>&1 < /dev/null &
"""
NGC = r"""#!/usr/bin/env bash
case "$1 $2" in
  "workspace upload")
    { flock 9; printf '%s\0' "$@" $'\n' >&9; } 9>> "$FARM_FOLDER/calls"
    mkdir -p "$FARM_FOLDER/mount/$6" && cp -R "$4/." "$FARM_FOLDER/mount/$6" ;;
  "batch run") exec submit_job "$@" ;;
  *) exit 2 ;;
esac
"""


@pytest.fixture
def farm_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "the farm"
    (folder / "mount").mkdir(parents=True)
    monkeypatch.setenv("PATH", put_programs(folder / "bin", submit_job=SUBMIT_JOB, ngc=NGC))
    monkeypatch.setenv("FARM_FOLDER", str(folder))
    return folder


def calls(folder: Path) -> list[list[str]]:
    """The argument lists that the stand-ins were called with."""
    text = (folder / "calls").read_text() if (folder / "calls").exists() else ""
    return [call.split("\0")[:-1] for call in text.split("\n\0")[:-1]]


SHELL = Farm("here", "generic", "bash")
BIG = Farm("bigfarm", "generic", "submit_job", (("gpu", 2), ("cpu", 16)))


@pytest.fixture
def shell(opened: Opened) -> SubmitExecutor:
    return opened(SubmitExecutor(SHELL))


@pytest.fixture
def big(farm_folder: Path, opened: Opened) -> SubmitExecutor:
    return opened(SubmitExecutor(BIG))


class TestShell(ExecutorContract):
    def another(self) -> SubmitExecutor:
        return SubmitExecutor(SHELL)


class TestSubmitJob(ExecutorContract):
    @pytest.fixture
    def surroundings(self, farm_folder: Path) -> None:
        """The stand-in is on the PATH."""

    def another(self) -> SubmitExecutor:
        return SubmitExecutor(BIG)


FORMS = {
    "draco": Farm("draco-rno", "draco", "submit_job", (("gpu", 1),)),
    "script": Farm("pbs", "template", 'submit_job -N "{job}" --script {script}'),
    "bare": Farm("lsf", "template", "submit_job {resources} -c {command}", (("q", "long"),)),
    "double quotes": Farm("sbatch", "template", 'submit_job --chdir={dir} -c "{command}"'),
    "single quotes": Farm("rlaunch", "template", "submit_job --name='{name}' -c 'exec {command}'"),
}


class TestForms:
    @pytest.mark.parametrize("form", FORMS)
    def test_hostile_paths(self, farm_folder: Path, tmp_path: Path, form: str, opened: Opened) -> None:
        executor = opened(SubmitExecutor(FORMS[form]))
        text = "echo 'it'\\''s'; exit 3"
        made = [Runs(tmp_path / name).make(text, name=name, study=name) for name in HOSTILE_NAMES.values()]
        finish(executor, [start(executor, run) for run in made])
        assert [run.markers() for run in made] == [{"train.exit.3"}] * len(made)
        assert [run.text("train.log") for run in made] == ["it's\n"] * len(made)


class TestNgc(ExecutorContract):
    folder: Path

    @pytest.fixture
    def surroundings(self, farm_folder: Path) -> None:
        type(self).folder = farm_folder

    def another(self) -> SubmitExecutor:
        farm = Farm("ngc", "ngc", "ngc batch run", workspace="ws", remote_root=str(self.folder / "mount"))
        return SubmitExecutor(farm)

    def job_dir(self, run: Run) -> str:
        return str(self.folder / "mount" / run.name)

    def test_the_directory_is_uploaded_once_and_its_results_are_linked(
        self, executor: SubmitExecutor, runs: Runs
    ) -> None:
        run = runs.make("mkdir ../results; echo 1 > ../results/a; exit 1")
        finish(executor, [start(executor, run)])
        finish(executor, [start(executor, run, attempt=2)])
        verbs = [call[:2] for call in calls(self.folder)]
        assert verbs == [["workspace", "upload"], ["batch", "run"], ["batch", "run"]]
        assert calls(self.folder)[0][2:] == ["--source", run.dir, "--destination", "study/run1", "ws"]
        assert os.readlink(run.path("train.log")) == f"{self.job_dir(run)}/train.log"
        assert run.text("results/a") == "1\n"
        assert run.markers() == {"train.exit.1", "train.2.exit.1"}

    def test_a_queued_job_is_cancelled_in_the_workspace(self, executor: SubmitExecutor, runs: Runs) -> None:
        (self.folder / "HOLD").touch()
        run = runs.make("touch ran")
        handle = start(executor, run)
        until(lambda: load_submit_code(run.dir, 1) == 0, "it is in the queue")
        run_directory.write_stop(run.dir, 1, STOP)
        executor.cancel([(handle, run.dir)], 0.3)
        finish(executor, [handle])
        (self.folder / "HOLD").unlink()
        assert (self.folder / "mount" / run.name / "stop.1").exists()
        assert not (self.folder / "mount" / run.name / "code/ran").exists()

    def test_a_workspace_that_is_not_mounted(self, runs: Runs, farm_folder: Path, opened: Opened) -> None:
        (farm_folder / "HOLD").touch()
        farm = Farm("ngc", "ngc", "ngc batch run", workspace="ws", remote_root=str(farm_folder / "unmounted"))
        executor = opened(SubmitExecutor(farm))
        run = runs.make("true")
        handle = start(executor, run)
        until(lambda: load_submit_code(run.dir, 1) == 0, "it is in the queue")
        assert list(executor.wait(0.1)) == []
        assert executor.liveness(handle, run.dir) is Liveness.UNKNOWN
        (farm_folder / "HOLD").unlink()


# ---------------------------------------------------------------- what is asked of the farm


class TestCall:
    def test_a_program_is_found_from_where_the_user_stands(
        self, runs: Runs, farm_folder: Path, monkeypatch: pytest.MonkeyPatch, opened: Opened
    ) -> None:
        monkeypatch.chdir(farm_folder)
        executor = opened(SubmitExecutor(Farm("near", "generic", "./bin/submit_job")))
        run = runs.make("true")
        finish(executor, [start(executor, run)])
        assert run.markers() == {"train.exit.0"}

    def test_the_farm_s_files_land_in_the_run_directory(self, runs: Runs, opened: Opened) -> None:
        executor = opened(SubmitExecutor(Farm("odd", "template", "echo said > job.o1; bash -c {command}")))
        run = runs.make("true")
        finish(executor, [start(executor, run)])
        assert run.text("job.o1") == "said\n"

    def test_a_shell_job_holds_its_slot_until_it_ends(self, shell: SubmitExecutor, runs: Runs, tmp_path: Path) -> None:
        run = runs.make("readlink /proc/self/fd/20")
        fd = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
        handle = shell.submit(run.request(slot_fds=(fd,)), run.publish)
        os.close(fd)
        assert handle is not None
        finish(shell, [handle])
        assert run.text("train.log") == f"{tmp_path}/lock\n"
        usage = shell.usage(handle)
        assert usage.cpu_s > 0

    def test_a_farm_that_lacks_something_is_refused_before_there_is_a_lease(self, runs: Runs, opened: Opened) -> None:
        executor = opened(SubmitExecutor(Farm("ngc", "ngc", "ngc batch run", remote_root="/r")))
        run = runs.make("true")
        with pytest.raises(UsageError, match="WORKSPACE"):
            executor.submit(run.request(), run.publish)
        assert not run.path("lease.1").exists()


def count_pidfds() -> int:
    with os.scandir("/proc/self/fd") as entries:
        return sum("pidfd" in os.readlink(entry.path) for entry in entries)


class TestParallel:
    def test_submit_commands_wait_for_their_turn(self, runs: Runs, farm_folder: Path, opened: Opened) -> None:
        text = (
            'echo x >> "$FARM_FOLDER/begun"; while [ -e "$FARM_FOLDER/SLOW" ]; do sleep 0.02; done; bash -c {command}'
        )
        (farm_folder / "SLOW").touch()
        executor = opened(SubmitExecutor(Farm("slow", "template", text), parallel=2))
        handles = [start(executor, runs.make("true")) for _ in range(5)]
        until(lambda: (farm_folder / "begun").exists() and (farm_folder / "begun").read_text() == "x\nx\n", "two begin")
        assert list(executor.wait(0.2)) == []
        assert (farm_folder / "begun").read_text() == "x\nx\n"
        assert len(executor._pending) == 3
        (farm_folder / "SLOW").unlink()
        finish(executor, handles)
        assert len(executor._pending) == 0

    def test_submit_commands_are_reaped_while_others_are_submitted(self, runs: Runs, opened: Opened) -> None:
        executor = opened(SubmitExecutor(Farm("busy", "template", "true {script}"), parallel=1))
        made = [runs.make("true") for _ in range(6)]

        def is_submitted(run: Run) -> bool:
            """Whether its submit command has ended, which takes a moment after the marker is written."""
            client = executor._clients.get((run.dir, 1))
            ended = client is None or os.waitid(os.P_PID, client.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return bool(ended) and run.path("submit.exit.1.0").exists()

        for last, run in zip([None, *made], made, strict=False):
            start(executor, run)
            if last is not None:  # its turn came when this one was submitted; `wait` was not called
                until(partial(is_submitted, last), f"{last.name} is submitted")

    def test_commands_that_stay_use_up_no_descriptors(
        self, runs: Runs, farm_folder: Path, monkeypatch: pytest.MonkeyPatch, opened: Opened
    ) -> None:
        monkeypatch.setattr(submit, "_MOST_PIDFDS", 3)
        (farm_folder / "HOLD").touch()
        text = 'bash -c {command}; while [ -e "$FARM_FOLDER/HOLD" ]; do sleep 0.05; done'
        executor = opened(SubmitExecutor(Farm("stays", "template", text), parallel=12))
        before = count_pidfds()  # workers that other tests share have some
        handles = [start(executor, runs.make("true")) for _ in range(12)]
        assert count_pidfds() - before == 3
        finish(executor, handles)
        assert len(executor._clients) == 12
        (farm_folder / "HOLD").unlink()

        def reap() -> bool:
            executor.wait(0)
            return not executor._clients

        until(reap, "all twelve are reaped")

    def test_nothing_more_is_submitted_after_a_refusal(self, runs: Runs, opened: Opened) -> None:
        executor = opened(SubmitExecutor(Farm("full", "template", "echo no partition; exit 7; : {script}")))
        first, second = runs.make("true"), runs.make("true")
        start(executor, first)
        until(first.path("submit.exit.1.7").exists, "it is refused")

        def submit_again() -> bool:  # the command leaves a moment after its marker
            try:
                return executor.submit(second.request(), lambda _: False) is not None
            except InfrastructureError as error:
                return "no partition" in error.message

        until(submit_again, "the second one is not accepted")
        assert not second.path("lease.1").exists()

    def test_a_queued_run_whose_directory_was_removed(self, runs: Runs, opened: Opened) -> None:
        executor = opened(SubmitExecutor(Farm("busy", "template", "true {script}")))
        run = runs.make("true")
        handle = start(executor, run)
        until(run.path("submit.exit.1.0").exists, "it is submitted")
        shutil.rmtree(run.dir)
        finish(executor, [handle])
        assert executor.refusal(handle, run.dir) is None

    def test_what_waits_for_its_turn_can_be_cancelled(self, runs: Runs, farm_folder: Path, opened: Opened) -> None:
        (farm_folder / "HOLD").touch()
        text = 'while [ -e "$FARM_FOLDER/HOLD" ]; do sleep 0.02; done; bash -c {command}'
        executor = opened(SubmitExecutor(Farm("slow", "template", text), parallel=1))
        first, second = runs.make("true"), runs.make("touch ran")
        handles = [start(executor, first), start(executor, second)]
        assert executor.liveness(handles[1], second.dir) is Liveness.ALIVE
        executor.cancel([(handles[1], second.dir)], 0.2)
        (farm_folder / "HOLD").unlink()
        finish(executor, handles)
        assert first.markers() == {"train.exit.0"}
        assert second.markers() == set()
        assert not second.path("submit.log.1").exists()

    def test_a_shell_is_the_job_and_never_waits(self, runs: Runs, opened: Opened) -> None:
        executor = opened(SubmitExecutor(SHELL, parallel=1))
        made = [runs.make("touch up; until [ -e go ]; do sleep 0.02; done") for _ in range(3)]
        handles = [start(executor, run) for run in made]
        until(lambda: all(run.path("code/up").exists() for run in made), "all three run at once")
        for run in made:
            run.path("code/go").touch()
        finish(executor, handles)


# ---------------------------------------------------------------- submissions that fail


class TestFailure:
    @pytest.mark.parametrize(
        ("submit", "code", "said"),
        [
            ("no-such-program-here", 127, "no-such-program-here: command not found"),
            ("submit 'unbalanced", 1, "unexpected EOF"),
            ("false", 1, "printed nothing"),
        ],
    )
    def test_commands_that_cannot_work(self, runs: Runs, submit: str, code: int, said: str, opened: Opened) -> None:
        executor = opened(SubmitExecutor(Farm("broken", "generic", submit)))
        run = runs.make("true")
        complete(executor, run)
        reason = load_submit_failure(run.dir, 1)
        assert reason is not None
        assert said in reason
        assert load_submit_code(run.dir, 1) in (code, 2)

    def test_a_killed_submit_command(self, runs: Runs, farm_folder: Path, opened: Opened) -> None:
        executor = opened(SubmitExecutor(Farm("slow", "template", "sleep 1000; bash -c {command}")))
        run = runs.make("true")
        handle = start(executor, run)
        until(lambda: members(run), "the submit command runs")
        os.killpg(
            os.getpgid(members(run).pop()), signal.SIGKILL
        )  # all at once: else its shell goes on after the `sleep`
        finish(executor, [handle])
        assert "killed" in str(load_submit_failure(run.dir, 1))

    def test_a_job_that_fails_is_not_a_failed_submission(self, shell: SubmitExecutor, runs: Runs) -> None:
        run = runs.make("exit 4")
        finish(shell, [start(shell, run)])
        assert load_submit_code(run.dir, 1) == 4  # the shell's code is the job's
        assert load_submit_failure(run.dir, 1) is None

    def test_a_refusal_counts_after_an_acceptance(self, runs: Runs) -> None:
        """A folder lists its names in any order."""
        for codes in ((0, 126), (126, 0)):
            run = runs.make("true")
            for code in codes:
                run.path(layout.submit_exit_name(1, code)).touch()
            assert load_submit_code(run.dir, 1) == 126

    def test_a_second_attempt_is_not_judged_by_the_first(
        self, big: SubmitExecutor, runs: Runs, farm_folder: Path
    ) -> None:
        (farm_folder / "REFUSE").touch()
        run = runs.make("true")
        finish(big, [start(big, run)])
        (farm_folder / "REFUSE").unlink()
        finish(big, [start(big, run, attempt=2)])
        assert load_submit_failure(run.dir, 2) is None
        assert run.markers() == {"train.2.exit.0"}
        assert calls(farm_folder)[-1][5] == "study_run1.2"

    def test_a_submit_command_that_cannot_be_started(self, shell: SubmitExecutor, runs: Runs) -> None:
        run = runs.make("true")
        request = replace(run.request(), env={"HUGE": "x" * 3_000_000})  # beyond what exec takes
        with pytest.raises(InfrastructureError, match="cannot start the submit command"):
            shell.submit(request, run.publish)
        assert load_submit_code(run.dir, 1) == 126
        assert "Argument list too long" in str(load_submit_failure(run.dir, 1))


# ---------------------------------------------------------------- states


@pytest.fixture
def lease(runs: Runs) -> tuple[Run, JobHandle]:
    """An attempt whose supervisor, on this host and in this boot, is dead."""
    run = runs.make("true")
    dead = subprocess.Popen(["true"])
    dead.wait()
    handle = JobHandle(
        "submit", "", processes.host_name(), 0, 0, processes.boot_id(), None, 1, 0.0, dead.pid, 1, f"{run.uid}.1"
    )
    return run, handle


OURS = {"supervisor_pid": os.getpid(), "supervisor_start": processes.own_start()}


class TestLiveness:
    @pytest.mark.parametrize(
        ("files", "changes", "expected"),
        [
            pytest.param((), {}, Liveness.GONE, id="its supervisor died before it submitted"),
            pytest.param((), {"host": "elsewhere"}, Liveness.UNKNOWN, id="another host is about to submit"),
            pytest.param((), OURS, Liveness.ALIVE, id="this process is about to submit"),
            pytest.param(("submit.log.1",), {}, Liveness.UNKNOWN, id="it may be in the queue"),
            pytest.param(("submit.log.1", "submit.exit.1.0"), {}, Liveness.UNKNOWN, id="it is in the queue"),
        ],
    )
    def test_before_there_is_a_token(
        self,
        big: SubmitExecutor,
        lease: tuple[Run, JobHandle],
        files: tuple[str, ...],
        changes: dict[str, str],
        expected: Liveness,
    ) -> None:
        run, handle = lease
        for name in files:
            run.path(name).touch()
        assert big.liveness(replace(handle, **changes), run.dir) is expected  # type: ignore[arg-type]
        assert changes or SubmitExecutor(SHELL).liveness(handle, run.dir) is Liveness.GONE  # a shell has no queue

    def test_running_on_another_host(self, big: SubmitExecutor, lease: tuple[Run, JobHandle]) -> None:
        run, handle = lease
        run.path("token.1").write_text("node17 1 1 other-boot 1700000000\n")
        big.watch(handle, run.dir)
        for name in ("", "train.exit.0"):  # there may be more commands
            run.path(name).touch()
            assert big.liveness(handle, run.dir) is Liveness.UNKNOWN
        assert list(big.wait(0.1)) == []
        run.path("end.1").touch()
        assert big.liveness(handle, run.dir) is Liveness.GONE
        assert list(big.wait(10.0)) == [handle]

    def test_running_on_this_host(self, big: SubmitExecutor, lease: tuple[Run, JobHandle]) -> None:
        run, handle = lease
        here, boot, start_ = processes.host_name(), processes.boot_id(), processes.own_start()
        for pid, began, booted, expected in [
            (os.getpid(), start_, boot, Liveness.ALIVE),
            (os.getpid(), start_ - 1, boot, Liveness.GONE),
            (os.getpid(), start_, "earlier", Liveness.GONE),
        ]:
            run.path("token.1").write_text(f"{here} {pid} {began} {booted} 1700000000\n")
            assert big.liveness(handle, run.dir) is expected

    @pytest.mark.parametrize("ahead_s", [-3600, 0, 3600])
    def test_an_empty_token(
        self,
        big: SubmitExecutor,
        lease: tuple[Run, JobHandle],
        monkeypatch: pytest.MonkeyPatch,
        ahead_s: int,
    ) -> None:
        """Whatever the clock of the host that made it."""
        run, handle = lease
        run.path("token.1").touch()
        os.utime(run.path("token.1"), (time.time() + ahead_s, time.time() + ahead_s))
        assert big.liveness(handle, run.dir) is Liveness.UNKNOWN
        monkeypatch.setattr(submit, "_EMPTY_TOKEN_S", 0.01)
        time.sleep(0.02)
        assert big.liveness(handle, run.dir) is Liveness.GONE

    def test_what_was_reported_as_ended_stays_so(
        self, big: SubmitExecutor, lease: tuple[Run, JobHandle], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The supervisor asks again when it concludes the attempt."""
        monkeypatch.setattr(submit, "_EMPTY_TOKEN_S", 0.3)
        run, handle = lease
        run.path("token.1").touch()
        big.watch(handle, run.dir)
        until(lambda: list(big.wait(0.1)) == [handle], "it has ended")
        assert big.liveness(handle, run.dir) is Liveness.GONE

    def test_a_damaged_token_is_an_empty_one(self) -> None:
        assert {parse_token(text).host for text in ("", "host", "host x y z", "\n")} == {""}

    @pytest.mark.parametrize("mark", [".", ","])
    def test_the_command_that_has_no_end(self, runs: Runs, mark: str) -> None:
        """bash writes the decimal mark of the user's locale."""
        run = runs.make("true")
        run.path("job.log").write_text(f"1{mark}5 train start\n")
        assert find_unfinished(run.dir, 1) == "train"


# ---------------------------------------------------------------- crashes


SUPERVISOR = """
import os, sys, time, json
from assay.farms.submit import SubmitExecutor
from assay.record import run_directory
from assay.values.run import JobRequest
from assay.values.study import Farm

run_dir, uid, farm = sys.argv[1:]
executor = SubmitExecutor(Farm(**json.loads(farm)))
request = JobRequest(run_dir, "study/run", 1, {}, tag=uid + ".1")
executor.submit(request, lambda handle: run_directory.publish_lease(run_dir, handle))
open(os.path.join(run_dir, "reached"), "w").close()
time.sleep(1000)
"""


def kill_supervisor(run: Run, farm: Farm) -> JobHandle:
    """Let a supervisor submit a run, and die."""
    fields = json.dumps({"name": farm.name, "kind": farm.kind, "submit": farm.submit})
    child = subprocess.Popen([sys.executable, "-c", SUPERVISOR, run.dir, run.uid, fields])
    until(run.path("reached").exists, "the supervisor is where it should die")
    child.kill()
    child.wait()
    handle = run_directory.load_history(run.dir).attempts[0].handle
    assert handle is not None
    return handle


class TestCrash:
    def test_killed_while_the_job_runs(self, shell: SubmitExecutor, runs: Runs) -> None:
        run = runs.make("touch up; until [ -e go ]; do sleep 0.02; done; exit 3")
        handle = kill_supervisor(run, SHELL)
        until(run.path("code/up").exists, "the command runs")
        assert shell.liveness(handle, run.dir) is Liveness.ALIVE
        shell.watch(handle, run.dir)
        run.path("code/go").touch()
        finish(shell, [handle])
        assert run.markers() == {"train.exit.3"}

    def test_killed_while_the_submit_command_runs(self, runs: Runs, farm_folder: Path, opened: Opened) -> None:
        """The submit command goes on by itself, and says how it ended."""
        (farm_folder / "HOLD").touch()
        text = 'while [ -e "$FARM_FOLDER/HOLD" ]; do sleep 0.02; done; echo full >&2; exit 9; : {command}'
        farm = Farm("slow", "template", f"( {text} )")
        run = runs.make("touch ran")
        handle = kill_supervisor(run, farm)
        executor = opened(SubmitExecutor(farm))
        assert executor.liveness(handle, run.dir) is Liveness.ALIVE
        executor.watch(handle, run.dir)
        (farm_folder / "HOLD").unlink()
        finish(executor, [handle])
        assert "code 9: full" in str(load_submit_failure(run.dir, 1))

    def test_the_farm_starts_a_job_twice(self, big: SubmitExecutor, runs: Runs, farm_folder: Path) -> None:
        run = runs.make("echo x >> ran")
        finish(big, [start(big, run)])
        assert subprocess.run(["bash", "-c", calls(farm_folder)[0][-1]], check=False).returncode == 0
        assert run.text("code/ran") == "x\n"

    def test_job_sh_killed(self, shell: SubmitExecutor, runs: Runs) -> None:
        """Only the watcher can see it from another host: end.N must come all the same."""
        run = runs.make("touch up; until [ -e go ]; do sleep 0.02; done")
        handle = begin(shell, run)
        os.kill(parse_token(run.text("token.1")).pid, signal.SIGKILL)
        finish(shell, [handle])
        assert run.markers() == set()
        assert not run.path("end.1").exists()
        run.path("code/go").touch()
        until(run.path("end.1").exists, "the watcher says so when the last process has left")


# ---------------------------------------------------------------- stopping


class TestStop:
    def test_a_queued_job_never_begins(self, big: SubmitExecutor, runs: Runs, farm_folder: Path) -> None:
        (farm_folder / "HOLD").touch()
        run = runs.make("touch ran")
        handle = start(big, run)
        until(lambda: load_submit_code(run.dir, 1) == 0, "it is in the queue")
        assert list(big.wait(0.05)) == []
        run_directory.write_stop(run.dir, 1, STOP)
        # as the farm would start it, on another host: our processes are not in reach of the tag
        command = calls(farm_folder)[0][-1]
        big.cancel([(handle, run.dir)], 0.2)
        assert big.liveness(handle, run.dir) is Liveness.GONE
        finish(big, [handle])
        assert subprocess.run(["bash", "-c", command], check=False).returncode == 0
        assert not run.path("code/ran").exists()
        (farm_folder / "HOLD").unlink()

    @pytest.mark.parametrize("kind", ["plain", "own session"])
    def test_a_job_out_of_reach_obeys_its_stop_file(
        self, shell: SubmitExecutor, runs: Runs, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        run = runs.make(STUBBORN[kind])
        handle = begin(shell, run)
        monkeypatch.setattr(processes, "host_name", lambda: "the supervisor's host")
        run_directory.write_stop(run.dir, 1, STOP)
        until(run.path("end.1").exists, "the watcher ends it")
        until(lambda: not members(run), "nothing is left")
        finish(shell, [handle])
        assert "train.exit.0" not in run.markers()

    def test_a_job_elsewhere_that_does_not_answer(
        self, big: SubmitExecutor, lease: tuple[Run, JobHandle], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run, handle = lease
        run.path("token.1").write_text("node17 1 1 other-boot 1700000000\n")
        monkeypatch.setattr("assay.farms.submit._ELSEWHERE_S", 0.1)
        with pytest.raises(InfrastructureError, match="have not confirmed") as caught:
            big.cancel([(handle, run.dir)], 0.1)
        assert run.dir in str(caught.value)

    def test_the_farm_s_own_cancel_command(self, runs: Runs, farm_folder: Path, opened: Opened) -> None:
        (farm_folder / "HOLD").touch()
        farm = replace(BIG, cancel='echo "cancel {native_id} {job}" >> "$FARM_FOLDER/cancelled"')
        executor = opened(SubmitExecutor(farm))
        run = runs.make("true")
        handle = start(executor, run)
        until(lambda: load_submit_code(run.dir, 1) == 0, "it is in the queue")
        executor.cancel([(handle, run.dir)], 0.2)
        finish(executor, [handle])
        assert (farm_folder / "cancelled").read_text() == "cancel 4711 study_run1\n"
        (farm_folder / "HOLD").unlink()

    def test_no_cancel_command_for_what_was_never_submitted(
        self, lease: tuple[Run, JobHandle], tmp_path: Path, opened: Opened
    ) -> None:
        run, handle = lease
        executor = opened(SubmitExecutor(replace(BIG, cancel=f"touch {tmp_path}/called")))
        executor.cancel([(handle, run.dir)], 0.1)
        assert not (tmp_path / "called").exists()
        assert run.path(layout.numbered_name("token", 1)).read_text().startswith("- ")
