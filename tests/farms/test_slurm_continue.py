"""Runs that are longer than what Slurm gives them: after warnings, time limits and preemption they go on from their
newest checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.executor import until
from tests.slurm_cluster import Cluster, start_cluster
from tests.training_with_checkpoints import load_steps, write_study

from assay.record.run_directory import load_history

pytestmark = pytest.mark.services("slurm")

FARMS = """\
farms:
  warned: {kind: slurm, cpus: 1, time: 1h, signal: USR1@2m}
  limited: {kind: slurm, cpus: 1, time: 1m}
  low: {kind: slurm, cpus: 4}
  packed: {kind: slurm, cpus: 4, pack: 2}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with start_cluster(cpus=4) as cluster:
        yield cluster


def wait_for_hold(run_dir: Path, attempt: int) -> None:
    log = run_dir / ("run.log" if attempt == 1 else f"run.{attempt}.log")
    until(lambda: log.exists() and "holds" in log.read_text(), f"attempt {attempt} waits")


def warn(cluster: Cluster) -> None:
    """As Slurm does before the limit."""
    (job,) = cluster.run("squeue", "-h", "-t", "RUNNING", "-o", "%i").split()
    cluster.run("scancel", "--batch", "--signal=USR1", job)


def load_ends(run_dir: Path) -> list[tuple[str, str]]:
    ends = [attempt.outcome for attempt in load_history(str(run_dir)).attempts if attempt.outcome]
    return [(end.state.value, end.reason) for end in ends]


class TestWarned:
    @pytest.mark.parametrize("code", [0, 5])
    def test_ten_times_as_long_as_its_limit_and_computed_once(
        self, cluster: Cluster, tmp_path: Path, code: int
    ) -> None:
        """It saves and leaves, well or not: both are no end. No `retries` are needed."""
        run_dir = write_study(tmp_path, f"--hold 3 --until 30 --code {code}", FARMS)
        with cluster.launch(tmp_path, "run", "s.yml", "--on", "warned") as supervisor:
            for attempt in range(1, 10):
                wait_for_hold(run_dir, attempt)
                warn(cluster)
            said, _ = supervisor.communicate(timeout=300)
        assert supervisor.returncode == 0, said
        assert load_steps(run_dir) == list(range(1, 31))
        assert "attempt 10, continues from step 27" in said
        ends = load_ends(run_dir)
        assert ends[0] == ("stopped", "its farm's time was up; goes on from step 3")
        assert [state for state, _ in ends] == ["stopped"] * 9 + ["done"]

    @pytest.mark.parametrize("code", [0, 5])
    def test_without_a_newer_checkpoint_it_has_failed(self, cluster: Cluster, tmp_path: Path, code: int) -> None:
        run_dir = write_study(tmp_path, f"--hold 3 --until 30 --keeps 0 --code {code}", FARMS)
        with cluster.launch(tmp_path, "run", "s.yml", "--on", "warned") as supervisor:
            wait_for_hold(run_dir, 1)
            warn(cluster)
            said, _ = supervisor.communicate(timeout=300)
        assert supervisor.returncode == 1, said
        reason = f"run ended with exit code {code} after the warning of its time limit, without a newer checkpoint"
        assert load_ends(run_dir) == [("failed", f"{reason} than it began with")]

    def test_it_is_continued_also_where_no_supervisor_was_there(self, cluster: Cluster, tmp_path: Path) -> None:
        run_dir = write_study(tmp_path, "--hold 3 --until 6", FARMS)
        with cluster.launch(tmp_path, "run", "s.yml", "--on", "warned") as supervisor:
            wait_for_hold(run_dir, 1)
            supervisor.kill()
        warn(cluster)
        until((run_dir / "end.1").exists, "the job has left")
        assert "goes on from step 3" in cluster.assay(tmp_path, "ls", "long").stdout
        with cluster.launch(tmp_path, "run", "s.yml", "--on", "warned") as supervisor:
            said, _ = supervisor.communicate(timeout=300)
        assert supervisor.returncode == 0, said
        assert load_steps(run_dir) == list(range(1, 7))


def test_preempted_by_a_partition_that_matters_more(cluster: Cluster, tmp_path: Path) -> None:
    run_dir = write_study(tmp_path, "--hold 3 --until 5", FARMS)
    with cluster.launch(tmp_path, "run", "s.yml", "--on", "low") as supervisor:
        wait_for_hold(run_dir, 1)
        cluster.run("sbatch", "--partition=urgent", "--cpus-per-task=4", "--output=/dev/null", "--wrap=sleep 1")
        said, _ = supervisor.communicate(timeout=300)
    assert supervisor.returncode == 0, said
    assert "attempt 2, continues from step 3" in said
    assert load_steps(run_dir) == [1, 2, 3, 4, 5]
    assert load_ends(run_dir)[0][0] == "lost"


def test_packed_runs_are_continued_one_by_one(cluster: Cluster, tmp_path: Path) -> None:
    """One had begun, and a supervisor continues it from its checkpoint; the other begins in the copy that Slurm requeued."""
    write_study(tmp_path, "--hold {hold} --until 5", f"params: {{hold: [3, 0]}}\n{FARMS}")
    first, second = (tmp_path / "runs/long" / name for name in ("hold=3", "hold=0"))
    with cluster.launch(tmp_path, "run", "s.yml", "--on", "packed") as supervisor:
        wait_for_hold(first, 1)
        assert not (second / "token.1").exists()
        cluster.run("sbatch", "--partition=urgent", "--cpus-per-task=4", "--output=/dev/null", "--wrap=sleep 1")
        said, _ = supervisor.communicate(timeout=300)
    assert supervisor.returncode == 0, said
    assert "submitted hold=3  attempt 2, continues from step 3" in said
    assert (load_steps(first), load_steps(second)) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    assert [state for state, _ in load_ends(first)] == ["lost", "done"]
    assert [state for state, _ in load_ends(second)] == ["done"]


@pytest.mark.long
@pytest.mark.timeout(2700)
def test_a_real_limit_ten_times(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm counts minutes: it takes a quarter of an hour."""
    run_dir = write_study(tmp_path, "--hold 3 --until 30", FARMS)
    with cluster.launch(tmp_path, "run", "s.yml", "--on", "limited") as supervisor:
        deadline = time.monotonic() + 2400
        while supervisor.poll() is None and time.monotonic() < deadline:
            time.sleep(1)
        said, _ = supervisor.communicate(timeout=10)
    assert supervisor.returncode == 0, said
    assert load_steps(run_dir) == list(range(1, 31))
    assert [state for state, _ in load_ends(run_dir)] == ["stopped"] * 9 + ["done"]
