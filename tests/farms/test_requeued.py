"""What a job does that Slurm starts again, by its script alone: bash and the files of a run, without Slurm."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.contracts.executor import Run, Runs, until

from assay.execute import process
from assay.farms.slurm import build_script
from assay.farms.submit_lines import build_exec_command
from assay.record import run_directory
from assay.values import layout
from assay.values.run import Stop
from assay.values.study import Farm

FARM = Farm("cluster", "slurm")
BASE = "0123456789ab"
GONE = "n1 1 1 - 0\n"


class Job:
    """A run that Slurm has started once, on a node that is gone."""

    def __init__(self, runs: Runs, *texts: str, warned: str = "") -> None:
        self.run = runs.make(*(texts or ("echo train >> ../ran", "echo avg >> ../ran")))
        self.list = runs.root / f"{BASE}.list"
        request = self.run.request(**{layout.ENV_DONE: ""})
        self.list.write_text(f"{self.run.dir}\0{build_exec_command(FARM, request)}\0{warned}\0")
        assert self.run.publish(process.build_handle(request, "slurm"))
        self.run.path("submit.log.1").write_text(f"{BASE} -\n")
        self.write("token.1", GONE)
        self.write("job.log", "1.0 train start\n")

    def write(self, name: str, text: str = "") -> None:
        self.run.path(name).write_text(text)

    def start_again(self, count: int = 1) -> str:
        """The names that are new; Slurm starts the same script, and says how often it did."""
        before = set(os.listdir(self.run.dir))
        env = {**os.environ, "SLURM_RESTART_COUNT": str(count)}
        done = subprocess.run(["bash", "-c", build_script(FARM, str(self.list))], env=env, check=False)
        assert done.returncode == 0
        assert not list(Path(self.run.dir).glob(".tmp*"))
        return " ".join(sorted(set(os.listdir(self.run.dir)) - before))

    def load_ran(self) -> list[str]:
        path = self.run.path("ran")
        return path.read_text().split() if path.exists() else []


def load(run: Run) -> list[tuple[str, dict[str, int]]]:
    """State and codes of each attempt."""
    attempts = run_directory.load_history(run.dir).attempts
    return [(str(each.outcome.state) if each.outcome else "-", dict(each.codes)) for each in attempts]


def test_it_is_the_next_attempt(runs: Runs) -> None:
    job = Job(runs)
    old = open(job.run.path("job.log"), "a", encoding="utf-8")  # noqa: SIM115 as the first copy has it
    with old:
        new = job.start_again()
        old.write("9.0 train exit 0\n")
    assert new == "avg.2.exit.0 avg.2.log end.2 lease.2 ran stop.1 submit.log.2 token.2 train.2.exit.0 train.2.log"
    assert job.load_ran() == ["train", "avg"]
    assert load(job.run) == [("lost", {}), ("-", {"train": 0, "avg": 0})]
    first, second = run_directory.load_history(job.run.dir).attempts
    assert first.is_fenced
    assert (second.handle.attempt, second.handle.tag, second.handle.skips) == (2, f"{job.run.uid}.2", "")
    assert "9.0 train exit 0" not in job.run.text("job.log")
    assert job.run.text("submit.log.2") == f"{BASE} -\n"


def test_a_bash_without_a_clock(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4.4, as Enterprise Linux 8 has it."""
    (tmp_path / "older").write_text("unset EPOCHREALTIME\n")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "older"))
    job = Job(runs)
    job.start_again()
    first, second = run_directory.load_history(job.run.dir).attempts
    assert first.is_fenced
    assert second.handle.started_at == first.stop.at > 1e9
    assert run_directory.load_times(job.run.dir)["avg"][1] is not None


def test_commands_that_had_ended_well_are_not_repeated(runs: Runs) -> None:
    job = Job(runs)
    job.write("train.exit.0")
    job.start_again()
    assert job.load_ran() == ["avg"]
    assert load(job.run) == [("lost", {"train": 0}), ("-", {"avg": 0})]
    assert run_directory.load_history(job.run.dir).finished_commands() == {"train", "avg"}


def test_it_happens_twice(runs: Runs) -> None:
    job = Job(runs, "echo $ASSAY_ATTEMPT_NUMBER >> ../ran; [ $ASSAY_ATTEMPT_NUMBER = 3 ] || kill -9 $$", "true")
    env = {**os.environ, "SLURM_RESTART_COUNT": "1"}
    subprocess.run(["bash", "-c", build_script(FARM, str(job.list))], env=env, check=False)
    assert job.load_ran() == ["2"]
    until(job.run.path("end.2").exists, "its watcher has left")
    job.start_again(2)
    assert job.load_ran() == ["2", "3"]
    assert [state for state, _ in load(job.run)] == ["lost", "lost", "-"]


def test_what_had_not_begun_begins(runs: Runs) -> None:
    job = Job(runs)
    job.run.path("token.1").unlink()
    job.start_again()
    assert job.load_ran() == ["train", "avg"]
    assert load(job.run) == [("-", {"train": 0, "avg": 0})]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("token.1", "- 0 0 - 0\n"),  # a supervisor took it back
        ("stop.1", '{"who": "me", "why": "enough", "kind": "user"}'),
        ("outcome.1", '{"state": "lost", "attempt": 1}'),
        ("train.exit.3", ""),  # it failed
        ("lease.2", "{}"),  # a supervisor has begun the next attempt
    ],
)
def test_it_leaves_where_the_run_goes_on_without_it(runs: Runs, name: str, text: str) -> None:
    job = Job(runs)
    job.write(name, text)
    job.write("submit.log.2", "ba9876543210 -\n")
    assert job.start_again() == ""
    assert job.load_ran() == []


def test_a_supervisor_chooses_the_checkpoint_that_a_run_goes_on_with(runs: Runs) -> None:
    assert Job(runs, warned="warned.1").start_again() == ""


def test_runs_of_one_task_are_looked_at_one_by_one(runs: Runs) -> None:
    """The first was lost, the second had ended well, the third had not begun."""
    farm = Farm("cluster", "slurm", options={"pack": 3})
    jobs = [Job(runs) for _ in range(3)]
    for name in ("train", "avg"):
        jobs[1].write(f"{name}.exit.0")
    jobs[2].run.path("token.1").unlink()
    texts = []
    for job in jobs:
        request = job.run.request(**{layout.ENV_DONE: ""})
        texts.append(f"{job.run.dir}\0{build_exec_command(farm, request)}\0\0")
        job.write("submit.log.1", f"{BASE} -+\n")
    jobs[0].list.write_text("".join(texts))
    env = {**os.environ, "SLURM_RESTART_COUNT": "1"}
    subprocess.run(["bash", "-c", build_script(farm, str(jobs[0].list))], env=env, check=True)
    assert [job.load_ran() for job in jobs] == [["train", "avg"], [], ["train", "avg"]]
    assert [len(load(job.run)) for job in jobs] == [2, 1, 1]
    assert jobs[0].run.text("submit.log.2") == f"{BASE} -+\n"


def test_it_leaves_where_all_had_ended_well(runs: Runs) -> None:
    job = Job(runs)
    for name in ("train", "avg"):
        job.write(f"{name}.exit.0")
    assert job.start_again() == ""


# ---------------------------------------------------------------- what a fenced attempt does later


def test_a_fenced_attempt_counts_no_more(runs: Runs) -> None:
    """A supervisor has given it up and concluded; then it wakes up, and comes to its end."""
    job = Job(runs)
    with open(job.run.path("job.log"), "a", encoding="utf-8") as old:
        assert run_directory.write_stop(job.run.dir, 1, Stop("test", "its node is silent", "fence"))
        outcome = run_directory.Outcome(
            run_directory.State.LOST, 1, {}, "taken back before its end; its node is silent"
        )
        assert run_directory.write_outcome(job.run.dir, outcome)
        before = load(job.run), job.run.text("job.log")
        for name in ("train.exit.0", "avg.exit.0", "end.1"):
            job.write(name)
        old.write("9.0 avg exit 0\n")
    assert (load(job.run), job.run.text("job.log")) == before == ([("lost", {})], "1.0 train start\n")
    assert run_directory.load_history(job.run.dir).finished_commands() == set()
