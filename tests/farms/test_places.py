"""Where a run was executed: the node and the job, not the machine that submitted it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.execute.places import Place, build_executor, load_place, render_place
from assay.farms.submit import _SHELL, SubmitExecutor
from assay.values.run import JobHandle
from assay.values.study import Farm

HERE = "login"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "study" / "run"
    path.mkdir(parents=True)
    return path


def build(executor: str, *, native_id: str = "", pid: int = 0, tag: str = "uid.1") -> JobHandle:
    return JobHandle(executor, native_id, HERE, pid, 0, "boot", None, 1, 0.0, tag=tag)


def begin(run_dir: Path, host: str) -> None:
    (run_dir / "token.1").write_text(f"{host} 123 456 boot 1700000000\n")


@pytest.mark.parametrize(("index", "job"), [("5", "slurm 671_5"), ("-", "slurm 671")])
def test_a_run_on_slurm_names_its_node_and_job(run_dir: Path, index: str, job: str) -> None:
    arrays = run_dir.parent / ".assay" / "slurm"
    arrays.mkdir(parents=True)
    (arrays / "0123456789ab.log").write_text("sbatch: a warning of 1 line\n671;cluster\n")
    (run_dir / "submit.log.1").write_text(f"0123456789ab {index}\n")
    handle = build("slurm")
    waiting = load_place(str(run_dir), handle)
    assert waiting == Place(None, job)
    assert render_place(waiting, handle) == f"{job}, submitted on login"
    begin(run_dir, "n2")
    assert render_place(load_place(str(run_dir), handle), handle) == f"n2 ({job})"


def test_a_submit_command_that_printed_a_number(run_dir: Path) -> None:
    begin(run_dir, "n7")
    (run_dir / "submit.log.1").write_text("Your job 4711 has been submitted\n")
    assert load_place(str(run_dir), build("submit")) == Place("n7", "submit 4711")
    shell = build("submit", native_id=_SHELL)  # what it prints is not a job number
    assert load_place(str(run_dir), shell) == Place("n7", "submit")


def test_hosts_of_ssh_and_clusters_of_ray(run_dir: Path) -> None:
    begin(run_dir, "ssh:board-3")
    assert load_place(str(run_dir), build("ssh", native_id=json.dumps({"host": "board-3"}))) == Place("board-3", "ssh")
    begin(run_dir, "n1")
    assert load_place(str(run_dir), build("ray", native_id="10.0.0.1:6379")).job == "ray 10.0.0.1:6379"
    assert load_place(str(run_dir), build("ray", native_id="http://head:8265")).job == "ray assay-uid.1"


@pytest.mark.parametrize("token", ["", "- 0 0 - 1\n", "\0\n"])
def test_a_job_that_never_began_was_nowhere(run_dir: Path, token: str) -> None:
    (run_dir / "token.1").write_text(token)
    assert load_place(str(run_dir), build("submit")).host in (None, "\0")


def test_submit_takes_its_farm() -> None:
    farm = Farm("here", "generic", "bash")
    executor = build_executor("submit", farm=farm, parallel=3)
    assert isinstance(executor, SubmitExecutor)
    assert executor.farm == farm
    executor.close()
