"""Ray Jobs, by the dashboard of a cluster that the supervisor's machine need not be part of."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from tests.contracts.executor import STOP, ExecutorContract, Opened, Runs, begin, finish, members, start, until
from tests.finished_study import Bench
from tests.ray_cluster import RayCluster, start_ray

from assay.errors import InfrastructureError, MissingExtraError
from assay.farms import ray_tasks
from assay.farms.ray_tasks import RayExecutor
from assay.farms.submit import parse_token
from assay.record import run_directory
from assay.values.study import Farm

pytestmark = pytest.mark.services("ray")


@pytest.fixture(scope="module")
def remote() -> Iterator[RayCluster]:
    with start_ray("dashboard") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def remote_farm(remote: RayCluster) -> Iterator[Farm]:
    farm = Farm("far", "ray", options={"address": remote.dashboard, "cpus": 0.1})
    keeper = RayExecutor(farm)
    keeper._connect()
    yield farm
    keeper.close()


@pytest.mark.long
class TestContract(ExecutorContract):
    """A job takes more than a second, since each has a process of Ray's."""

    many_s = 900.0
    farm: ClassVar[Farm]

    @pytest.fixture
    def surroundings(self, remote_farm: Farm) -> None:
        type(self).farm = remote_farm

    def another(self) -> RayExecutor:
        return RayExecutor(self.farm)


def build(farm: Farm, **options: object) -> RayExecutor:
    return RayExecutor(Farm("far", "ray", options={**farm.options, **options}))


def test_codes_devices_and_what_waits(remote_farm: Farm, runs: Runs, opened: Opened) -> None:
    executor = opened(build(remote_farm, gpus=2))
    busy = runs.make("echo $CUDA_VISIBLE_DEVICES; touch up; until [ -e go ]; do sleep 0.02; done; exit 3")
    handle = begin(executor, busy)
    waiting = runs.make("touch ran")
    second = start(executor, waiting)
    assert list(executor.wait(0.1)) == []
    run_directory.write_stop(waiting.dir, 1, STOP)
    executor.cancel([(second, waiting.dir)], 0.5)
    busy.path("code/go").touch()
    finish(executor, [handle, second])
    assert busy.markers() == {"train.exit.3"}
    assert sorted(busy.text("train.log").strip().split(",")) == ["0", "1"]
    assert not waiting.path("code/ran").exists()
    assert waiting.markers() == set()


def test_a_folder_that_the_cluster_does_not_see(
    remote_farm: Farm, runs: Runs, monkeypatch: pytest.MonkeyPatch, opened: Opened
) -> None:
    run = runs.make("true")
    executor = opened(build(remote_farm))
    build_remote_job = ray_tasks._build_remote_job

    def hide(*arguments: object) -> dict[str, object]:
        job = build_remote_job(*arguments)  # type: ignore[arg-type]
        run.path("submit.sh.1").write_text("# of another machine\n")
        return job

    monkeypatch.setattr(ray_tasks, "_build_remote_job", hide)
    executor._connect().probed.clear()
    with pytest.raises(InfrastructureError, match=r"does not see the runs.*submit\.sh\.1 is not there on the node"):
        executor.submit(run.request(), run.publish)
    assert not run.path("lease.1").exists()


@pytest.mark.long
def test_a_killed_worker_takes_its_job_along(remote_farm: Farm, runs: Runs, opened: Opened) -> None:
    executor = opened(build(remote_farm))
    run = runs.make("setsid bash -c 'trap \"\" TERM; touch up; while :; do sleep 1000; done' & wait")
    handle = begin(executor, run)
    starter = parent_of(parse_token(run.text("token.1")).pid)
    os.kill(parent_of(starter), signal.SIGKILL)
    finish(executor, [handle])
    until(lambda: members(run) == set(), "nothing of it is left")
    assert run.markers() == set()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.long
def test_a_whole_study(remote: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Ray's own variable, and a supervisor that is killed in the middle."""
    monkeypatch.setenv("RAY_ADDRESS", remote.dashboard)
    bench = Bench(tmp_path)
    ledger = tmp_path / "ledger"
    command = f"echo {{x}} >> {ledger}; until [ -e {tmp_path}/go ]; do sleep 0.1; done; echo loss={{x}}"
    bench.write("study.yml", f"study: fit\ncommand: '{command}'\nparams: {{x: [1, 2, 3]}}\n")
    program = bench.start("run", "study.yml", "--on", "ray", "--quiet")
    until(lambda: ledger.exists() or program.poll() is not None, "a job has begun")
    program.kill()
    out, err = program.communicate()
    assert ledger.exists(), out + err
    (tmp_path / "go").touch()
    result = bench.assay("run", "study.yml", "--on", "ray", "--quiet")
    assert result.returncode == 0, result.stdout + result.stderr
    assert sorted(ledger.read_text().split()) == ["1", "2", "3"]


def test_what_a_person_stops_is_stopped(remote: RayCluster, tmp_path: Path) -> None:
    """By `ray job stop`: one that runs, and one that waits; the third goes on, and neither is started again."""
    bench = Bench(tmp_path)
    command = "touch {run.dir}/ran; until [ -e {run.dir}/../go ]; do sleep 0.1; done"
    farm = f"{{kind: ray, address: '{remote.dashboard}', gpus: 1}}"
    text = f"study: fit\ncommand: '{command}'\nparams: {{x: [1, 2, 3]}}\nretries: 1\nfarms: {{pool: {farm}}}\n"
    bench.write("study.yml", text)
    program = bench.start("run", "study.yml", "--on", "pool", "--quiet")
    runs = [bench.root / f"fit/x={x}" for x in (1, 2, 3)]
    until(lambda: sum((run / "ran").exists() for run in runs) == 2 or program.poll() is not None, "two run")
    running, waiting = ([run for run in runs if (run / "ran").exists() == has_begun] for has_begun in (True, False))
    for run in (running[0], waiting[0]):
        tag = json.loads((run / "lease.1").read_text())["tag"]
        client = ["ray", "job", "stop", "--no-wait", f"--address={remote.dashboard}", f"assay-{tag}"]
        subprocess.run([str(Path(sys.executable).parent / client[0]), *client[1:]], check=True, capture_output=True)
    until(lambda: (running[0] / "outcome.1").exists() and (waiting[0] / "outcome.1").exists(), "both are concluded")
    (bench.root / "fit/go").touch()
    out, err = program.communicate(timeout=120)
    assert program.returncode == 1, out + err
    rows = {row["name"]: row["state"] for row in json.loads(bench.assay("ls", "fit", "--json").stdout)}
    assert rows == {running[0].name: "stopped", waiting[0].name: "stopped", running[1].name: "done"}
    assert bench.assay("run", "study.yml", "--on", "pool", "--quiet").returncode == 1
    assert not any((run / "lease.2").exists() for run in runs)


def test_ray_without_its_dashboard_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(MissingExtraError) as caught:
        RayExecutor.check(Farm("far", "ray", options={"address": "http://127.0.0.1:1"}))
    assert "assay[ray]" in str(caught.value.hint)
