"""Slurm with its accounting: jobs that the controller has forgotten are explained all the same."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.executor import Opened, Runs, finish, members, start, until
from tests.farms.test_slurm import WAITING, build, find_task, start_together
from tests.slurm_cluster import Cluster, start_cluster

from assay.farms import slurm_queue
from assay.farms.slurm_queue import load_summary


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with start_cluster(nodes=2, has_accounting=True) as cluster:
        for name in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(name, cluster.env[name])
        yield cluster


@pytest.mark.services("slurm", "slurmdbd")
def test_jobs_that_the_controller_has_forgotten(cluster: Cluster, tmp_path: Path, opened: Opened) -> None:
    """One is killed, one cancelled, one loses its node, one ends by itself; then the controller loses its memory."""
    runs, executor = Runs(tmp_path / "root"), build(flags=("--nodelist=n1",))
    on_second = build(flags=("--nodelist=n2", "--no-requeue"))
    killed, _, failed, orphan = made = [runs.make(WAITING) for _ in range(4)]
    handles = [start(on_second if run is orphan else executor, run) for run in made]
    until(lambda: all(run.path("code/ran").exists() for run in made), "all run")
    tasks = [find_task(on_second if run is orphan else executor, run) for run in made]
    for pid in members(killed):
        with contextlib.suppress(ProcessLookupError):  # it may end with the one before it
            os.kill(pid, signal.SIGKILL)
    cluster.run("scancel", tasks[1])
    failed.path("code/go").touch()
    cluster.lose_node("n2")
    cluster.find_node("n2")
    ended = {"FAILED", "CANCELLED", "NODE_FAIL"}
    until(lambda: {note.state for note in map(load_summary, tasks) if note} == ended, "Slurm knows how all have ended")
    until(lambda: all(load_rows(cluster, task) for task in tasks), "the accounting, too")
    executor.close()
    on_second.close()

    cluster.stop_controller()
    cluster.start_controller("-c")
    cluster.await_nodes()
    assert load_note_of_controller(tasks[0]) is None
    later = opened(build())
    for run, handle in zip(made, handles, strict=True):
        later.watch(handle, run.dir)
    finish(later, handles)
    said = [later.explain_end(handle, run.dir) for run, handle in zip(made, handles, strict=True)]
    assert [each and each[0] for each in said] == ["lost", "user", None, "lost"]
    assert "FAILED, exit code 0:9, on n1" in said[0][1]
    assert "NODE_FAIL" in said[3][1]
    assert [run.markers() for run in made] == [set(), set(), {"train.exit.7"}, set()]


@pytest.mark.services("slurm", "slurmdbd")
def test_a_waiting_task_that_was_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    """The controller forgets it at once, and the accounting does not."""
    runs, executor = Runs(tmp_path / "root"), build(cpus=8, throttle=1)
    made = [runs.make(WAITING) for _ in range(3)]
    handles = start_together(executor, made)
    until(lambda: any(run.path("code/ran").exists() for run in made), "one runs")
    (waiting,) = [run for run in made if not run.path("code/ran").exists()][:1]
    cluster.run("scancel", find_task(executor, waiting))
    handle = handles[made.index(waiting)]
    finish(executor, [handle])
    assert executor.explain_end(handle, waiting.dir)[0] == "user"
    for run in made:
        run.path("code/go").touch()
    finish(executor, [each for each in handles if each is not handle])
    assert sorted(len(run.markers()) for run in made) == [0, 1, 1]
    executor.close()


def load_rows(cluster: Cluster, task: str) -> bool:
    """Whether the accounting has an end for it."""
    said = cluster.run("sacct", "--noheader", "--allocations", "--parsable2", "--format=State", "-j", task)
    return bool(said.strip()) and "RUNNING" not in said and "PENDING" not in said


def load_note_of_controller(task: str) -> str | None:
    answer = slurm_queue.call(("scontrol", "show", "job", task))
    return answer.stdout if answer.returncode == 0 else None
