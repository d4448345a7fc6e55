"""`assay run --on slurm` on a real Slurm: the same table as here, and supervisors that die at any instant."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.slurm_cluster import Cluster, start_cluster

pytestmark = pytest.mark.services("slurm")

KILLS = 5  # how often a supervisor is killed
STUDY = """\
command: bash train.sh {lr} {run.dir}
params: {lr: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}
metrics: {loss: 'loss ({number})'}
farms:
  cluster: {kind: slurm, cpus: 1, throttle: 4}
  refused: {kind: slurm, partition: nope}
"""
TRAIN = "echo x >> $2/ran; sleep 0.3; echo loss $1\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with start_cluster() as cluster:
        yield cluster


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "study.yml").write_text(STUDY)
    (tmp_path / "train.sh").write_text(TRAIN)
    return tmp_path


def assay(cluster: Cluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "assay", *words],
        cwd=folder,
        env=cluster.env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def load_table(cluster: Cluster, folder: Path, root: str) -> list[str]:
    """Without the time that each took."""
    lines = assay(cluster, folder, "sum", "--root", root, "study", "--csv").stdout.splitlines()
    return [line.rpartition(",")[0] for line in lines]


def test_the_same_table_as_here(cluster: Cluster, folder: Path) -> None:
    here = assay(cluster, folder, "run", "study.yml", "--root", "here", "--on", "local")
    there = assay(cluster, folder, "run", "study.yml", "--root", "there", "--on", "cluster")
    assert (here.returncode, there.returncode) == (0, 0), there.stderr
    assert load_table(cluster, folder, "there") == load_table(cluster, folder, "here")
    assert len(load_table(cluster, folder, "here")) == 7


def test_what_is_left_is_picked_up_from_its_files(cluster: Cluster, folder: Path) -> None:
    left = assay(cluster, folder, "run", "study.yml", "--root", "r", "--on", "slurm", "--detach")
    assert left.returncode == 0, left.stderr
    deadline = time.monotonic() + 60
    while len(list(folder.glob("r/study/*/train.exit.0"))) < 6 and len(list(folder.glob("r/study/*/*.exit.0"))) < 6:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    again = assay(cluster, folder, "run", "study.yml", "--root", "r", "--on", "slurm")
    assert again.returncode == 0, again.stderr
    assert {path.read_text() for path in folder.glob("r/study/*/ran")} == {"x\n"}


def test_refused_before_anything_is_written(cluster: Cluster, folder: Path) -> None:
    said = assay(cluster, folder, "run", "study.yml", "--root", "r", "--on", "refused")
    assert said.returncode == 2
    assert "invalid partition specified: nope" in said.stderr
    assert not (folder / "r" / "study").exists()


def test_an_unknown_farm(cluster: Cluster, folder: Path) -> None:
    said = assay(cluster, folder, "run", "study.yml", "--on", "clustr")
    assert said.returncode == 2
    assert "did you mean 'cluster'" in said.stderr


def test_supervisors_that_are_killed_lose_and_repeat_nothing(cluster: Cluster, folder: Path) -> None:
    argv = [sys.executable, "-m", "assay", "run", "study.yml", "--root", "r", "--on", "slurm"]
    chosen = random.Random(0)
    for _ in range(KILLS):
        process = subprocess.Popen(
            argv, cwd=folder, env=cluster.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(chosen.uniform(0.2, 1.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
    last = assay(cluster, folder, "run", "study.yml", "--root", "r", "--on", "slurm")
    assert last.returncode == 0, last.stderr
    found = sorted(folder.glob("r/study/*/ran"))
    assert len(found) == 6
    assert {path.read_text() for path in found} == {"x\n"}


def test_ctrl_c_takes_everything_back(cluster: Cluster, folder: Path) -> None:
    (folder / "train.sh").write_text("echo x >> $2/ran; sleep 100\n")
    argv = [sys.executable, "-m", "assay", "run", "study.yml", "--root", "r", "--on", "cluster"]
    process = subprocess.Popen(argv, cwd=folder, env=cluster.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(folder.glob("r/study/*/ran"))) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) != 0
    while cluster.run("squeue", "--noheader", "--states=PD,R").strip():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert len(list(folder.glob("r/study/*/ran"))) == 4
