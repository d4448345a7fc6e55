"""What clusters use: packed runs, containers (a stand-in for apptainer), the way to a job; on a real Slurm of two nodes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.executor import Opened, Runs, complete, finish, start, until
from tests.farms.test_slurm import WAITING, build, find_task
from tests.slurm_cluster import Cluster, start_cluster
from tests.stand_ins import put_programs

from assay.errors import ConfigError, InfrastructureError, UsageError
from assay.farms.container import check_container, choose_runtime, load_image
from assay.farms.slurm import SlurmExecutor, build_flags, build_script
from assay.record import run_directory
from assay.values.run import Stop
from assay.values.study import Farm, Position

pytestmark = pytest.mark.services("slurm")

# Notes its words, and executes the command as the runtime would: in the folder that --pwd names.
APPTAINER = r"""#!/usr/bin/env bash
printf '%s\0' "$@" $'\n' >> "$APPTAINER_CALLS"
if [ "$1" = pull ]; then
  case $4 in *missing*) echo "FATAL:   While making image: manifest unknown" >&2; exit 255 ;; esac
  echo "pulled $4" > "$3"; exit 0
fi
shift
while :; do
  case $1 in
    --nv) shift ;;
    --bind) [ -e "${2%%:*}" ] || { echo "mount source $2 does not exist" >&2; exit 255; }; shift 2 ;;
    --pwd) cd "$2" || exit 255; shift 2 ;;
    *) break ;;
  esac
done
export INSIDE=$1; shift; exec "$@"
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with start_cluster(nodes=2) as cluster:
        yield cluster


@pytest.fixture
def apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the words of each call."""
    calls = tmp_path / "calls"
    monkeypatch.setenv("PATH", put_programs(tmp_path / "bin", apptainer=APPTAINER))
    monkeypatch.setenv("APPTAINER_CALLS", str(calls))
    return calls


def load_calls(path: Path) -> list[list[str]]:
    return [call.split("\0")[:-1] for call in path.read_text().split("\n\0")[:-1]] if path.exists() else []


# ---------------------------------------------------------------- several runs in one allocation


class TestPack:
    def test_packed_runs_share_an_allocation_one_after_another(
        self, cluster: Cluster, runs: Runs, opened: Opened
    ) -> None:
        executor = opened(build(pack=3, time=60.0))
        made = [runs.make(f'echo $SLURM_JOB_ID >> "{runs.root}/order"; exit {number % 2}') for number in range(7)]
        with executor.together():
            handles = [start(executor, run) for run in made]
        finish(executor, handles)
        assert [run.markers() for run in made] == [{f"train.exit.{number % 2}"} for number in range(7)]
        tasks = [find_task(executor, run) for run in made]
        assert [tasks.count(task) for task in dict.fromkeys(tasks)] == [3, 3, 1]
        jobs = (runs.root / "order").read_text().split()
        assert sorted(jobs.count(job) for job in set(jobs)) == [1, 3, 3]

    def test_the_time_of_all_is_asked_for(self) -> None:
        farm = Farm("f", "slurm", options={"time": 3600.0, "pack": 16})
        assert build_flags(farm, (), 16) == ["--time=960"]

    def test_one_of_them_is_stopped_and_the_others_go_on(self, cluster: Cluster, runs: Runs, opened: Opened) -> None:
        executor = opened(build(pack=4))
        first, second, third = runs.make(WAITING), runs.make("touch ran"), runs.make("true")
        with executor.together():
            handles = [start(executor, run) for run in (first, second, third)]
        until(lambda: (executor.wait(0.05), first.path("code/ran").exists())[1], "the first one runs")
        for run, handle in ((second, handles[1]), (first, handles[0])):
            run_directory.write_stop(run.dir, 1, Stop("a test", "enough", "user", 0.0))
            executor.cancel([(handle, run.dir)], 1.0)
        finish(executor, handles)
        assert (first.markers(), second.markers(), third.markers()) == (set(), set(), {"train.exit.0"})
        assert not second.path("code/ran").exists()

    def test_all_of_them_are_cancelled_with_their_task(self, cluster: Cluster, runs: Runs, opened: Opened) -> None:
        executor = opened(build(pack=2))
        made = [runs.make(WAITING), runs.make("true")]
        with executor.together():
            handles = [start(executor, run) for run in made]
        until(lambda: (executor.wait(0.05), made[0].path("code/ran").exists())[1], "the first one runs")
        task = find_task(executor, made[0])
        for run in made:
            run_directory.write_stop(run.dir, 1, Stop("a test", "enough", "user", 0.0))
        executor.cancel(list(zip(handles, [run.dir for run in made], strict=True)), 1.0)
        until(lambda: task not in cluster.run("squeue", "-h", "-o", "%i"), "Slurm has nothing of it")
        assert [run.markers() for run in made] == [set(), set()]


# ---------------------------------------------------------------- containers


class TestContainer:
    @pytest.mark.parametrize("limit", [None, 100.0])
    def test_commands_run_inside_with_code_data_and_run_directory(
        self, cluster: Cluster, runs: Runs, apptainer: Path, tmp_path: Path, limit: float | None, opened: Opened
    ) -> None:
        (tmp_path / "im age.sif").write_text("an image")
        (tmp_path / "data").mkdir()
        image, data = str(tmp_path / "im age.sif"), str(tmp_path / "data")
        executor = opened(build(container=image, mounts=(f"{data}:/data:ro",), gpus=1))
        run = runs.make('echo "$INSIDE"; pwd; exit 3', limits=(limit,))
        handle = complete(executor, run)
        assert run.markers() == {"train.exit.3"}
        assert run.text("train.log").splitlines() == [image, f"{run.dir}/code"]
        (words,) = load_calls(apptainer)
        study, code = os.path.dirname(run.dir), os.path.realpath(f"{run.dir}/code")
        assert words[:4] == ["exec", "--nv", "--bind", f"{data}:/data:ro"]
        assert words[4:11] == ["--bind", study, "--bind", code, "--pwd", f"{run.dir}/code", image]
        digest = hashlib.sha256(b"an image").hexdigest()
        assert handle.image == f"{image} sha256:{digest}"
        assert json.loads(run.text("lease.1"))["image"] == handle.image

    def test_every_task_has_its_container(
        self, cluster: Cluster, runs: Runs, apptainer: Path, tmp_path: Path, opened: Opened
    ) -> None:
        (tmp_path / "image.sif").write_text("an image")
        executor = opened(build(nodes=2, container=str(tmp_path / "image.sif")))
        run = runs.make('echo "$INSIDE" $(uname -n) > "rank$RANK"')
        finish(executor, [start(executor, run)])
        said = [run.text(f"code/rank{rank}").split() for rank in (0, 1)]
        assert said == [[str(tmp_path / "image.sif"), "n1"], [str(tmp_path / "image.sif"), "n2"]]

    def test_an_image_of_a_registry_is_pulled_once(self, runs: Runs, apptainer: Path, tmp_path: Path) -> None:
        farm = Farm("f", "slurm", options={"container": "docker://ubuntu:24.04"})
        check_container(farm)
        first, second = (load_image(farm, str(tmp_path)) for _ in range(2))
        assert first == second
        assert Path(first.path).read_text() == "pulled docker://ubuntu:24.04\n"
        digest = hashlib.sha256(Path(first.path).read_bytes()).hexdigest()
        assert first.record == f"docker://ubuntu:24.04 sha256:{digest}"
        assert [call[0] for call in load_calls(apptainer)] == ["pull"]

    def test_an_image_that_cannot_be_pulled(
        self, cluster: Cluster, runs: Runs, apptainer: Path, opened: Opened
    ) -> None:
        """One line, and nothing of the run has begun: the same call works later."""
        executor = opened(build(container="docker://missing"))
        run = runs.make("true")
        with pytest.raises(InfrastructureError, match=r"cannot pull the image docker://missing: .*manifest unknown"):
            start(executor, run)
        assert not run.path("lease.1").exists()

    def test_a_node_without_the_runtime(self, cluster: Cluster, runs: Runs, tmp_path: Path, opened: Opened) -> None:
        (tmp_path / "image.sif").write_text("an image")
        executor = opened(build(container=str(tmp_path / "image.sif")))
        run = runs.make("true")
        said = executor.explain_end(complete(executor, run), run.dir)
        assert said[0] == "lost"
        assert said[1].endswith(", where apptainer is not installed")
        assert run.markers() == set()

    def test_what_is_refused_before_anything_is_written(self, cluster: Cluster, tmp_path: Path) -> None:
        position = Position("study.yml", 4, 3)
        gone = Farm("f", "slurm", options={"container": "gone.sif"}, position=position)
        with pytest.raises(ConfigError) as caught:
            SlurmExecutor.check(gone)
        assert "study.yml:4:3 f.container: the image gone.sif does not exist" in "".join(str(caught.value.render()))
        with pytest.raises(UsageError, match="apptainer, which would pull docker://x, is not installed here"):
            SlurmExecutor.check(Farm("f", "slurm", options={"container": "docker://x"}))
        with pytest.raises(UsageError, match="pyxis is not installed: srun has no --container-image"):
            SlurmExecutor.check(Farm("f", "slurm", options={"container": "ubuntu:24.04", "runtime": "pyxis"}))
        image = tmp_path / "image.sif"
        image.write_text("an image")
        with pytest.raises(UsageError, match="its path has a colon or a comma"):
            load_image(Farm("f", "slurm", options={"container": str(image)}), str(tmp_path / "a:b"))

    def test_pyxis_gets_its_options_from_srun(self, tmp_path: Path) -> None:
        """Slurm has no such plug-in here: a stand-in for srun prints what it gets."""
        path = put_programs(tmp_path, srun="printf '%s\\n' \"$@\" > words")
        options = {"container": "nvcr.io#nvidia/pytorch:24.01", "runtime": "pyxis", "mounts": ("/da ta", "/a:/b:ro")}
        farm = Farm("f", "slurm", options=options)
        assert choose_runtime(Farm("f", "slurm", options={"container": "/i.sqsh"})) == "pyxis"
        image = load_image(farm, str(tmp_path))
        assert image.record.endswith("(no digest: name it with @sha256:…)")
        script = build_script(farm, str(tmp_path / "list"), image)
        (tmp_path / "list").write_text(f"{tmp_path}\0$ASSAY_LAUNCH 'echo hi'\0\0")
        env = {**os.environ, "PATH": path, "ASSAY_RUN_DIR": "/s t/run"}
        subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, check=True)
        here = os.path.realpath(tmp_path)
        assert (tmp_path / "words").read_text().splitlines() == [
            "--nodes=1",
            "--ntasks=1",
            "--container-image=nvcr.io#nvidia/pytorch:24.01",
            f"--container-mounts=/s t:/s t,{here}:{here},/da ta:/da ta,/a:/b:ro",
            f"--container-workdir={tmp_path}",
            "bash",
            "-c",
            'eval "$1"',
            "bash",
            "echo hi",
        ]


# ---------------------------------------------------------------- the way to a job, and its end


def test_show_prints_the_way_to_a_running_job_and_stop_counts(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "s.yml").write_text(
        "study: s\ncommand: 'touch {run.dir}/up; sleep 300'\nparams: {x: [1, 2]}\n"
        "farms: {c: {kind: slurm, cpus: 8, flags: [--nodelist=n2]}}\non: c\n"
    )

    program = cluster.launch(tmp_path, "run", "s.yml", "--root", "r", "--quiet")
    try:
        until(lambda: len(list(tmp_path.glob("r/s/*/up"))) == 1, "one runs, the node has no place for the other")
        (up,) = tmp_path.glob("r/s/*/up")
        lines = cluster.assay(tmp_path, "show", f"s/{up.parent.name}", "--root", "r").stdout.splitlines()
        (line,) = [line.split(None, 1)[1] for line in lines if line.split()[:1] == ["enter"]]
        entered = subprocess.run(
            ["bash", "-c", line.replace("--pty bash", "uname -n")],
            env=cluster.env, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert entered.stdout == "n2\n", (line, entered.stderr)
    finally:
        stopped = cluster.assay(tmp_path, "stop", "s", "--root", "r")
        program.communicate(timeout=60)
    assert "on n2" in stopped.stdout
    assert "2 runs stopped, 1 of them before their farm had started them" in stopped.stdout, stopped
