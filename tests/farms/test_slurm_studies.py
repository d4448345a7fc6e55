"""`assay run --on slurm` on a real Slurm: the same table as here, and deaths of all that takes part, at any instant."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.executor import until
from tests.slurm_cluster import Cluster, start_cluster

pytestmark = pytest.mark.services("slurm")

STUDY = """\
command: bash train.sh {lr} {run.dir}
params: {lr: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}
metrics: {loss: 'loss ({number})'}
farms:
  cluster: {kind: slurm, cpus: 1, throttle: 4}
  refused: {kind: slurm, partition: nope}
  low: {kind: slurm, cpus: 12}
"""
RUN = ("run", "study.yml", "--root", "r", "--on")
TRAIN = "echo x >> $2/ran; sleep 0.3; echo loss $1\n"
# a job that does not get the lock runs beside another attempt of the same run
ALONE = """\
exec 7>> $2/alone; flock -n 7 || echo beside another >> $2/problems
echo x >> $2/ran; sleep $(($1 % 4 + 1)); echo x >> $2/finished; echo loss $1
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with start_cluster(cpus=24) as cluster:
        yield cluster


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "study.yml").write_text(STUDY)
    (tmp_path / "train.sh").write_text(TRAIN)
    return tmp_path


def count(folder: Path, name: str) -> int:
    return len(list(folder.glob(f"r/study/*/{name}")))


def load_states(cluster: Cluster, folder: Path, **env: str) -> dict[str, tuple[str, str]]:
    """State and reason of each run, as `assay ls` has them."""
    said = cluster.assay(folder, "ls", "--root", "r", "study", "--json", **env)
    assert said.returncode in (0, 1), said.stderr
    return {row["name"]: (row["state"], row.get("reason") or "") for row in json.loads(said.stdout)}


def load_table(cluster: Cluster, folder: Path, root: str) -> list[str]:
    """Without the time that each took."""
    lines = cluster.assay(folder, "sum", "--root", root, "study", "--csv").stdout.splitlines()
    return [line.rpartition(",")[0] for line in lines]


def test_the_same_table_as_here(cluster: Cluster, folder: Path) -> None:
    here = cluster.assay(folder, "run", "study.yml", "--root", "here", "--on", "local")
    there = cluster.assay(folder, "run", "study.yml", "--root", "there", "--on", "cluster")
    assert (here.returncode, there.returncode) == (0, 0), there.stderr
    assert load_table(cluster, folder, "there") == load_table(cluster, folder, "here")
    assert len(load_table(cluster, folder, "here")) == 7


def test_a_run_names_the_node_and_the_job_that_executed_it(cluster: Cluster, folder: Path) -> None:
    there = cluster.assay(folder, *RUN, "cluster")
    assert there.returncode == 0, there.stderr
    rows = json.loads(cluster.assay(folder, "export", "json", "study", "--root", "r", "-o", "-").stdout)
    jobs = [row["job"] for row in rows]
    assert all(re.fullmatch(r"slurm \d+_[0-5]", job) for job in jobs), jobs
    assert len(set(jobs)) == 6
    (host,) = {row["host"] for row in rows}
    shown = cluster.assay(folder, "show", f"study/{rows[0]['name']}", "--root", "r").stdout
    assert f"where      {host} ({rows[0]['job']})" in shown
    assert (
        len(cluster.assay(folder, "ls", "study", "--root", "r", "--where", f"host == {host!r}").stdout.splitlines()) > 6
    )


def test_what_is_left_is_picked_up_from_its_files(cluster: Cluster, folder: Path) -> None:
    """By `assay ls` also where Slurm cannot be asked any more."""
    left = cluster.assay(folder, *RUN, "slurm", "--detach")
    assert left.returncode == 0, left.stderr
    until(lambda: count(folder, "*.exit.0") == 6, "all have ended")
    states = load_states(cluster, folder, SLURM_CONF=str(folder / "missing"))
    assert [state for state, _ in states.values()] == ["done"] * 6
    again = cluster.assay(folder, *RUN, "slurm")
    assert again.returncode == 0, again.stderr
    assert {path.read_text() for path in folder.glob("r/study/*/ran")} == {"x\n"}


def test_refused_before_anything_is_written(cluster: Cluster, folder: Path) -> None:
    said = cluster.assay(folder, *RUN, "refused")
    assert said.returncode == 2
    assert "invalid partition specified: nope" in said.stderr
    assert not (folder / "r" / "study").exists()


# ---------------------------------------------------------------- what Slurm did


def test_what_was_cancelled_while_nobody_watched_is_stopped(cluster: Cluster, folder: Path) -> None:
    (folder / "train.sh").write_text("echo x >> $2/ran; sleep 100\n")
    process = cluster.launch(folder, *RUN, "slurm")
    until(lambda: count(folder, "ran") == 6, "all run")
    process.kill()
    process.communicate()
    cluster.run("scancel", "--me")
    until(lambda: not cluster.run("squeue", "--noheader").strip(), "Slurm has ended them")
    assert cluster.assay(folder, *RUN, "slurm").returncode == 1
    assert {state for state, _ in load_states(cluster, folder).values()} == {"stopped"}
    assert {path.read_text() for path in folder.glob("r/study/*/ran")} == {"x\n"}


def test_preempted_runs_go_on(cluster: Cluster, folder: Path) -> None:
    (folder / "train.sh").write_text("echo x >> $2/ran; until [ -e $2/../go ]; do sleep 0.1; done; echo loss $1\n")
    process = cluster.launch(folder, *RUN, "low")
    until(lambda: count(folder, "ran") == 2, "two run, one on each half of the node")
    urgent = ("--partition=urgent", "--cpus-per-task=24", "--output=/dev/null", f"--wrap=touch {folder}/urgent")
    cluster.run("sbatch", *urgent)
    until((folder / "urgent").exists, "what matters more has run")
    (folder / "r" / "study" / "go").touch()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert {state for state, _ in load_states(cluster, folder).values()} == {"done"}
    lost = [json.loads(path.read_text()) for path in folder.glob("r/study/*/outcome.1")]
    reasons = [outcome["reason"] for outcome in lost if outcome["state"] == "lost"]
    assert len(reasons) == 2
    assert all("taken back" in reason for reason in reasons)
    assert len(cluster.run("squeue", "--noheader").split()) == 0


def test_lost_again_and_again_and_then_retried(cluster: Cluster, folder: Path) -> None:
    (folder / "study.yml").write_text(STUDY.replace("0.1, 0.2, 0.3, 0.4, 0.5, 0.6", "0.1"))
    killer = 'echo x >> $2/ran; set -- $1 $2 $(cat "$2/token.$ASSAY_ATTEMPT_NUMBER"); [ -e ~/whole ] || kill -9 $4; echo loss $1\n'
    (folder / "train.sh").write_text(killer.replace("~", str(folder)))
    assert cluster.assay(folder, *RUN, "slurm").returncode == 1
    [(state, reason)] = load_states(cluster, folder).values()
    assert (state, count(folder, "lease.*")) == ("lost", 5)
    assert "Slurm reports of its job" in reason
    (folder / "whole").touch()
    again = cluster.assay(folder, *RUN, "slurm", "--retry", "lost")
    assert again.returncode == 0, again.stderr
    assert count(folder, "lease.*") == 6


def test_ctrl_c_takes_everything_back(cluster: Cluster, folder: Path) -> None:
    (folder / "train.sh").write_text("echo x >> $2/ran; sleep 100\n")
    process = cluster.launch(folder, *RUN, "cluster")
    until(lambda: count(folder, "ran") == 4, "four run")
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    until(lambda: not cluster.run("squeue", "--noheader", "--states=PD,R").strip(), "the queue is empty")
    assert count(folder, "ran") == 4


# ---------------------------------------------------------------- deaths

FEW, MANY = 5, 20


class Victim:
    """Something that is killed in the middle, and is there again afterwards."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.launch = lambda: cluster.launch(folder, *RUN, "slurm")
        self.supervisor = self.launch()

    def kill_supervisor(self) -> None:
        self.supervisor.kill()
        self.supervisor.communicate()
        self.supervisor = self.launch()

    def kill_slurmd(self) -> None:
        self.cluster.kill_node()
        self.cluster.start_node()

    def restart_slurmctld(self) -> None:
        self.cluster.stop_controller()
        self.cluster.start_controller()
        self.cluster.await_nodes()


@pytest.mark.parametrize("kills", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
@pytest.mark.parametrize("victim", ["kill_supervisor", "kill_slurmd", "restart_slurmctld"])
def test_deaths_in_the_middle_lose_and_repeat_nothing(cluster: Cluster, folder: Path, victim: str, kills: int) -> None:
    values = ", ".join(str(number) for number in range(1, 1 + kills * 4))
    (folder / "study.yml").write_text(STUDY.replace("0.1, 0.2, 0.3, 0.4, 0.5, 0.6", values))
    (folder / "train.sh").write_text(ALONE)
    chosen = random.Random(kills)
    killed = Victim(cluster, folder)
    in_the_middle = 0
    for _ in range(kills):
        time.sleep(chosen.uniform(0.1, 1.0))
        in_the_middle += count(folder, "finished") < kills * 4
        getattr(killed, victim)()
    killed.supervisor.communicate(timeout=120)
    last = cluster.assay(folder, *RUN, "slurm")
    assert last.returncode == 0, last.stderr
    assert in_the_middle > 1  # a controller needs seconds to be back, and the jobs go on during that time
    assert count(folder, "problems") == 0
    assert [path.read_text() for path in folder.glob("r/study/*/finished")] == ["x\n"] * kills * 4
    assert {path.read_text() for path in folder.glob("r/study/*/ran")} == {"x\n"}


def test_jobs_that_wait_in_the_queue_are_taken_back_when_the_budget_is_used(cluster: Cluster, folder: Path) -> None:
    (folder / "train.sh").write_text("echo x >> $2/ran; sleep 4; echo loss $1\n")
    (folder / "study.yml").write_text(STUDY.replace("throttle: 4", "throttle: 1"))
    words = ("run", "study.yml", "--root", "r", "--on", "cluster", "--json")
    done = cluster.assay(folder, *words, "--budget", "0.0005h")
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["exit_code"]) == (3, 3), done.stderr
    states = {run["name"]: run["state"] for run in facts["runs"]}
    assert [states[name] for name in facts["held_back"]] == ["stopped"] * len(facts["held_back"])
    assert len(facts["held_back"]) >= 4
    assert count(folder, "ran") == 6 - len(facts["held_back"])
    (folder / "train.sh").write_text(TRAIN)
    (folder / "study.yml").write_text(STUDY)
    assert cluster.assay(folder, *words).returncode == 0  # a later call continues them
    assert count(folder, "ran") == 6
