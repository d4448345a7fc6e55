"""Slurm, a real one of one node with two fake GPUs: the executor contract, arrays, requeues and deaths."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contracts.executor import (
    STOP,
    ExecutorContract,
    Opened,
    Run,
    Runs,
    begin,
    finish,
    members,
    start,
    until,
)
from tests.slurm_cluster import Cluster, start_cluster
from tests.stand_ins import put_programs

from assay.config.load import load_study
from assay.errors import ConfigError, InfrastructureError, UsageError
from assay.execute.places import load_wait_reason
from assay.farms import slurm_queue as queue
from assay.farms.slurm import SlurmExecutor, build_flags, build_script
from assay.farms.slurm_queue import JobSummary, call, load_limits, load_summary
from assay.record import run_directory
from assay.values import layout
from assay.values.run import JobHandle, Liveness
from assay.values.study import Farm


def build(**options: object) -> SlurmExecutor:
    return SlurmExecutor(Farm("cluster", "slurm", options=options))


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with start_cluster(MaxArraySize="31") as cluster:
        yield cluster


@pytest.mark.services("slurm")
class TestContract(ExecutorContract):
    @pytest.fixture
    def surroundings(self, cluster: Cluster) -> None:
        """The cluster is up."""

    def another(self) -> SlurmExecutor:
        return build()


# ---------------------------------------------------------------- arrays


@pytest.fixture
def executor(cluster: Cluster, opened: Opened) -> SlurmExecutor:
    return opened(build())


def start_together(executor: SlurmExecutor, made: list[Run]) -> list[JobHandle]:
    with executor.together():
        return [start(executor, run) for run in made]


def find_task(executor: SlurmExecutor, run: Run) -> str:
    until(lambda: (executor.wait(0.05), executor._find_task(run.dir, 1))[1], "Slurm has a number for it")
    return str(executor._find_task(run.dir, 1))


def count_starts(run: Run) -> int:
    return run.text("code/ran").count("x")


WAITING = "echo x >> ran; until [ -e go ]; do sleep 0.05; done; exit 7"


@pytest.mark.services("slurm")
class TestArrays:
    def test_what_starts_together_is_one_array(self, executor: SlurmExecutor, runs: Runs) -> None:
        made = [runs.make(f"exit {i}") for i in range(5)]
        finish(executor, start_together(executor, made))
        assert [run.markers() for run in made] == [{f"train.exit.{i}"} for i in range(5)]
        assert len({find_task(executor, run).partition("_")[0] for run in made}) == 1
        assert executor.is_handed_over()

    def test_more_than_the_scheduler_allows_are_split(self, executor: SlurmExecutor, runs: Runs) -> None:
        made = [runs.make("true") for _ in range(40)]
        finish(executor, start_together(executor, made))
        assert load_limits().array_size == 30
        assert len({find_task(executor, run).partition("_")[0] for run in made}) == 2
        assert all(run.markers() == {"train.exit.0"} for run in made)

    def test_a_throttle(self, cluster: Cluster, runs: Runs, opened: Opened) -> None:
        executor = opened(build(throttle=2))
        made = [runs.make("sleep 0.5") for _ in range(5)]
        finish(executor, start_together(executor, made))
        spans = [run_directory.load_times(run.dir)["train"] for run in made]
        for began, _ in spans:
            assert sum(first <= began < (last or 0) for first, last in spans) <= 2

    def test_gpus_are_shared_out(self, cluster: Cluster, runs: Runs, opened: Opened) -> None:
        executor = opened(build(gpus=1))
        made = [runs.make('echo "$CUDA_VISIBLE_DEVICES"; sleep 1') for _ in range(2)]
        finish(executor, start_together(executor, made))
        assert {run.text("train.log") for run in made} == {"0\n", "1\n"}

    def test_one_task_is_stopped_and_the_others_go_on(self, executor: SlurmExecutor, runs: Runs) -> None:
        made = [runs.make(WAITING) for _ in range(3)]
        handles = start_together(executor, made)
        until(lambda: all(run.path("code/ran").exists() for run in made), "all run")
        run_directory.write_stop(made[1].dir, 1, STOP)
        executor.cancel([(handles[1], made[1].dir)], 5.0)
        assert members(made[1]) == set()
        assert all(members(run) for run in (made[0], made[2]))
        for run in made:
            run.path("code/go").touch()
        finish(executor, handles)
        assert [run.markers() for run in made] == [{"train.exit.7"}, set(), {"train.exit.7"}]


@pytest.mark.services("slurm")
class TestRefused:
    def test_a_rejected_submission_has_the_words_of_slurm_and_the_others_go_on(
        self, executor: SlurmExecutor, runs: Runs
    ) -> None:
        made = [runs.make("true") for _ in range(3)]
        nowhere = replace(made[1].request(), farm_resources=(("partition", "nope"),))
        with executor.together():
            handles = [executor.submit(nowhere if run is made[1] else run.request(), run.publish) for run in made]
        finish(executor, handles)
        assert [run.markers() for run in made] == [{"train.exit.0"}, set(), {"train.exit.0"}]
        kind, said = executor.explain_end(handles[1], made[1].dir)
        assert (kind, executor.refusal(handles[1], made[1].dir)) == ("interrupt", None)
        assert "invalid partition specified: nope" in said

    def test_what_cannot_be_given_is_said_before(self, cluster: Cluster) -> None:
        SlurmExecutor.check(Farm("cluster", "slurm", options={"gpus": 2, "time": 60.0}))
        with pytest.raises(UsageError, match="Slurm would refuse"):
            SlurmExecutor.check(Farm("cluster", "slurm", options={"gpus": 3}))

    def test_a_node_that_is_drained_may_give_it_later(self, cluster: Cluster) -> None:
        node = f"nodename={cluster.nodes[0]}"
        cluster.run("scontrol", "update", node, "state=drain", "reason=test")
        try:
            SlurmExecutor.check(Farm("cluster", "slurm", options={"gpus": 2}))
        finally:
            cluster.run("scontrol", "update", node, "state=resume")

    def test_a_controller_that_does_not_answer(
        self, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = Path(cluster.conf).read_text()
        (tmp_path / "slurm.conf").write_text(re.sub("SlurmctldPort=.*", "SlurmctldPort=1\nMessageTimeout=1", text))
        monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
        with pytest.raises(InfrastructureError, match="Slurm does not answer"):
            SlurmExecutor.check(Farm("cluster", "slurm"))

    @pytest.mark.parametrize(
        "programs", [{"squeue": "false"}, {"squeue": "echo 'TASK|PENDING|None'", "sinfo": "false"}]
    )
    def test_a_failing_squeue_or_sinfo_says_nothing_about_a_job(
        self,
        executor: SlurmExecutor,
        runs: Runs,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        programs: dict[str, str],
    ) -> None:
        """What Slurm has requeued may live on where its node does not answer: the queue alone does not say so."""
        run = runs.make(WAITING)
        handle = begin(executor, run, "ran")
        run.path("token.1").write_text("elsewhere 1 1 - 0\n")  # as from another node
        task = find_task(executor, run)
        texts = {name: text.replace("TASK", task) for name, text in programs.items()}
        monkeypatch.setenv("PATH", put_programs(tmp_path, **texts))
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            assert list(executor.wait(0.5)) == []
        assert executor.liveness(handle, run.dir) is Liveness.UNKNOWN
        run.path("code/go").touch()
        finish(executor, [handle])

    def test_a_squeue_that_leaves_a_job_out_ends_nothing(
        self, executor: SlurmExecutor, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By a variable of the user's own, or since it is a program of the site that answers from a cache."""
        run = runs.make(WAITING)
        handle = begin(executor, run, "ran")
        run.path("token.1").write_text("elsewhere 1 1 - 0\n")  # as from another node
        task = find_task(executor, run)
        monkeypatch.setenv("SQUEUE_PARTITION", "urgent")
        assert task in call(("squeue", "--noheader", f"--jobs={task}", "--format=%F")).stdout
        monkeypatch.setenv("PATH", put_programs(tmp_path, squeue=f"echo x >> {tmp_path}/asked"))
        asked = tmp_path / "asked"
        until(lambda: executor.wait(0.1) or (asked.exists() and len(asked.read_text()) > 8), "it was asked four times")
        assert executor.liveness(handle, run.dir) is Liveness.UNKNOWN
        run.path("code/go").touch()
        finish(executor, [handle])

    def test_a_supervisor_inside_of_an_array_submits_a_job_of_its_own(
        self, executor: SlurmExecutor, runs: Runs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in {"JOB_ID": "7", "ARRAY_TASK_ID": "3", "CPUS_PER_TASK": "5"}.items():
            monkeypatch.setenv(f"SLURM_{name}", value)
        run = runs.make("echo ${SLURM_CPUS_PER_TASK:-none}")
        finish(executor, [start(executor, run)])
        assert (run.markers(), run.text("train.log")) == ({"train.exit.0"}, "none\n")

    def test_what_could_not_be_submitted_is_not_waited_for(self, cluster: Cluster, runs: Runs) -> None:
        """Its lease is there: no other supervisor would submit it."""
        made = [runs.make("true") for _ in range(2)]
        (Path(made[0].dir).parent / layout.STUDY_META_DIR / layout.SLURM_DIR).touch()
        executor, handles = build(), []
        with pytest.raises(InfrastructureError, match="cannot submit to Slurm"), executor.together():
            handles += [start(executor, run) for run in made]
        finish(executor, handles)
        for handle, run in zip(handles, made, strict=True):
            assert "cannot submit to Slurm: File exists" in str(executor.explain_end(handle, run.dir))
        executor.close()


@pytest.mark.services("slurm")
def test_why_slurm_does_not_start_a_job(cluster: Cluster, runs: Runs, opened: Opened) -> None:
    executor = opened(build(flags=("--hold",)))
    run = runs.make("true")
    handle = start(executor, run)
    said: list[str] = []
    until(lambda: executor.wait(0.1) or said.extend(executor.take_messages()) or said, "the reason is told")
    (message,) = said
    assert "JobHeldUser" in message
    assert load_wait_reason(handle, run.dir) == "JobHeldUser"
    subprocess.run(message[message.index("scontrol") :].split(), check=True)
    finish(executor, [handle])
    assert run.markers() == {"train.exit.0"}
    assert executor.take_messages() == []


@pytest.mark.services("slurm")
def test_a_slurm_conf_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="does not exist"):
        SlurmExecutor.check(Farm("slurm", "slurm"))


def test_slurm_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="Slurm is not installed here: sbatch, squeue"):
        SlurmExecutor.check(Farm("slurm", "slurm"))


def test_the_flags_of_sbatch() -> None:
    options: dict[str, object] = {"partition": "gpu", "account": "me", "qos": "high", "constraint": "a100"}
    options |= {"time": 5401.0, "gpus": 2, "cpus": 4, "memory": 10**9, "nodes": 2}
    options |= {"signal": "USR1@2m", "flags": ("--exclusive",)}
    assert " ".join(build_flags(Farm("f", "slurm", options=options))) == (
        "--partition=gpu --account=me --qos=high --constraint=a100 --time=91 --gres=gpu:2 --cpus-per-task=4 "
        "--mem=954M --nodes=2 --ntasks-per-node=1 --signal=B:USR1@120 --exclusive"
    )
    more = build_flags(Farm("f", "slurm", options={"partition": "a"}), (("partition", "b"), ("nodes", 3)))
    assert more == ["--partition=b", "--nodes=3", "--ntasks-per-node=1"]


def test_a_node_without_the_file_system_does_nothing(tmp_path: Path) -> None:
    script = build_script(Farm("f", "slurm"), str(tmp_path / "missing.list"))
    assert subprocess.run(["bash", "-c", script], cwd=tmp_path, check=False, capture_output=True).returncode == 4
    assert list(tmp_path.iterdir()) == []


def test_a_warning_at_the_end_of_a_rank_leaves_its_code(tmp_path: Path) -> None:
    srun = 'until [ "$1" = bash ]; do shift; done; SLURM_PROCID=0 SLURM_NTASKS=1 exec "$@"'
    path = put_programs(tmp_path, scontrol="echo n1", srun=srun)
    ends = 'for i in {1..12}; do _assay_srun "kill -USR1 \\$\\$; exit 5"; echo $? >> codes; done'
    (tmp_path / "list").write_bytes(b"\0".join([bytes(tmp_path), ends.encode(), b"", b""]))
    script = build_script(Farm("f", "slurm", options={"nodes": 1, "signal": "USR1@60"}), str(tmp_path / "list"))
    env = {"PATH": path, "ASSAY_RUN_DIR": str(tmp_path), "ASSAY_ATTEMPT_NUMBER": "1"}
    subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, check=False)
    assert (tmp_path / "codes").read_text().split() == ["5"] * 12


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        (["7_1|OUT_OF_MEMORY|0:125|n1"], JobSummary("OUT_OF_MEMORY", "0:125", "n1", False)),
        (["7_1|TIMEOUT|0:0|n1"], JobSummary("TIMEOUT", "0:0", "n1", False)),
        (["7_1|CANCELLED by 0|0:0|n1"], JobSummary("CANCELLED", "0:0", "n1", False)),
        (["7_1|PREEMPTED|0:0|n1"], JobSummary("PREEMPTED", "0:0", "n1", True)),
        (["7_1|NODE_FAIL|1:0|n1", "7_1|COMPLETED|0:0|n2"], JobSummary("NODE_FAIL", "1:0", "n1", True)),
        (["7_[2-5]|PENDING|0:0|None assigned"], None),
        ([], None),
    ],
)
def test_what_the_accounting_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[str], note: JobSummary | None
) -> None:
    """The controller has forgotten the job."""
    path = put_programs(tmp_path, scontrol="exit 1", sacct="\n".join(["cat <<END", *rows, "END"]))
    monkeypatch.setenv("PATH", path)
    assert load_summary("7_1") == note


def test_a_job_without_a_node_is_not_reported_on_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, handle = build(), JobHandle("slurm", "0", "here", 0, 0, "", None, 1, 0.0)
    monkeypatch.setattr(executor, "_find_task", lambda *_: "7")
    monkeypatch.setattr(executor._queue, "wait_for_end", lambda *_: "PENDING")
    monkeypatch.setattr(queue, "load_summary", lambda _: JobSummary("PENDING", "0:0", "", True))
    said = "Slurm reports of its job 7: PENDING, exit code 0:0"
    assert executor.explain_end(handle, str(tmp_path)) == ("taken back", said)
    executor.close()


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("USR1", "has no time", "as in USR1@2m"),
        ("USR1@soon", "'soon' is not a duration", "as in USR1@90s"),
        ("USR1@20h", "'20h' is not a duration of at most 18h", "USR1@90s"),
        ("USR1@0s", "'0s' is not a duration", "USR1@90s"),
        ("@2m", "'' is not a signal", "USR1"),
        ("USR9@1m", "'USR9' is not a signal that a job can be sent", "USR1"),
        ("KILL@2m", "'KILL' is not a signal", "TERM"),
        ("usr1@2m", "'usr1' is not a signal", "USR1"),
        ("USR1@2h", "would be sent 7200 s before the limit, which is 3600 s", "a longer `time:`"),
        ("[USR1@2m]", "must be a signal and a time, as in USR1@2m, not a list", ""),
    ],
)
def test_a_signal_that_cannot_be_sent_is_refused_with_its_position(
    tmp_path: Path, text: str, problem: str, hint: str
) -> None:
    value = text if text.startswith("[") else repr(text)
    (tmp_path / "s.yml").write_text(f"command: x\nfarms:\n  f: {{kind: slurm, time: 1h, signal: {value}}}\n")
    (found,) = load_study(str(tmp_path / "s.yml")).farms["f"].problems
    rendered = ConfigError([found]).render()
    assert problem in rendered
    assert "s.yml:3:38 farms.f.signal" in rendered
    assert hint in rendered


# ---------------------------------------------------------------- several nodes, signals, limits


@pytest.mark.services("slurm")
class TestJobs:
    @pytest.mark.parametrize("text", ["python3 train.py", "python3 train.py; exit $?"])
    def test_a_signal_before_the_limit_reaches_the_program(
        self, cluster: Cluster, runs: Runs, text: str, opened: Opened
    ) -> None:
        executor = opened(build(signal="USR1@1m"))
        run = runs.make(text)
        run.path("code/train.py").write_text(
            "import signal, sys, time\n"
            "signal.signal(signal.SIGUSR1, lambda *_: (print('saved'), sys.exit(5)))\n"
            "open('up', 'w').close()\ntime.sleep(100)\n"
        )
        handle = begin(executor, run)
        cluster.run("scancel", "--batch", "--signal=USR1", find_task(executor, run))
        finish(executor, [handle])
        assert (run.text("train.log"), run.markers()) == ("saved\n", {"train.exit.5"})

    @pytest.mark.long
    def test_a_time_limit_of_slurm(self, cluster: Cluster, runs: Runs, opened: Opened) -> None:
        executor = opened(build(time=60.0))
        run = runs.make("sleep 1000", "true")
        handle = start(executor, run)
        deadline = time.monotonic() + 300
        while handle not in executor.wait(1.0):
            assert time.monotonic() < deadline
        assert executor.explain_end(handle, run.dir) is None
        assert run.markers() == {"train.exit.124"}
        assert run.path("train.timeout").exists()


# ---------------------------------------------------------------- deaths


@pytest.mark.services("slurm")
class TestDeaths:
    def test_a_requeued_job_does_not_run_twice(self, executor: SlurmExecutor, cluster: Cluster, runs: Runs) -> None:
        run = runs.make(WAITING)
        handle = begin(executor, run, "ran")
        task = find_task(executor, run)
        cluster.run("scontrol", "requeue", task)
        finish(executor, [handle])
        assert run.markers() == set()
        said = executor.explain_end(handle, run.dir)
        assert said[0] == "taken back"  # it was not stopped: it is tried again
        second = start(executor, run, attempt=2)
        until(lambda: "COMPLETED" in cluster.run("scontrol", "show", "job", task), "the copy has left")
        run.path("code/go").touch()
        finish(executor, [second])
        assert run.markers() == {"train.2.exit.7"}
        assert count_starts(run) == 2

    def test_slurmd_is_killed_in_the_middle(self, executor: SlurmExecutor, cluster: Cluster, runs: Runs) -> None:
        made = [runs.make(WAITING) for _ in range(3)]
        handles = start_together(executor, made)
        until(lambda: all(run.path("code/ran").exists() for run in made), "all run")
        cluster.kill_node()
        assert list(executor.wait(0.5)) == []
        made[0].path("code/go").touch()
        finish(executor, handles[:1])
        cluster.start_node()
        for run in made[1:]:
            run.path("code/go").touch()
        finish(executor, handles[1:])
        assert [run.markers() for run in made] == [{"train.exit.7"}] * 3
        assert [count_starts(run) for run in made] == [1] * 3

    @pytest.mark.long
    def test_a_node_that_is_down_for_long(self, executor: SlurmExecutor, cluster: Cluster, runs: Runs) -> None:
        run = runs.make(WAITING)
        handle = begin(executor, run, "ran")
        task = find_task(executor, run)
        cluster.kill_node()
        until(lambda: "Restarts=1" in cluster.run("scontrol", "show", "job", task), "Slurm has requeued it")
        assert executor.liveness(handle, run.dir) is Liveness.ALIVE
        run.path("code/go").touch()
        finish(executor, [handle])
        cluster.start_node()
        until(lambda: "COMPLETED" in cluster.run("scontrol", "show", "job", task), "the copy has left")
        assert (run.markers(), count_starts(run)) == ({"train.exit.7"}, 1)

    def test_a_supervisor_dies_before_sbatch(self, executor: SlurmExecutor, runs: Runs) -> None:
        """A lease alone, or with its place in an array that was never submitted: given up, and nothing can begin."""
        for has_place in (False, True):
            run = runs.make("touch ran")
            dead = replace(run_handle(executor, run), supervisor_start=1)
            assert run.publish(dead)
            if has_place:
                run.path(layout.submit_log_name(1)).write_text("0123456789ab 0\n")
            executor.watch(dead, run.dir)
            finish(executor, [dead])
            assert run.text("token.1").startswith("- ")

    def test_a_job_that_vanished(self, executor: SlurmExecutor, cluster: Cluster, runs: Runs) -> None:
        run = runs.make("touch ran")
        folder = Path(run.dir).parent / layout.STUDY_META_DIR / layout.SLURM_DIR
        folder.mkdir(parents=True)
        (folder / "0123456789ab.log").write_text("999999\n")
        (folder / "0123456789ab.exit.0").touch()
        run.path(layout.submit_log_name(1)).write_text("0123456789ab 0\n")
        handle = run_handle(executor, run)
        assert run.publish(handle)
        executor.watch(handle, run.dir)
        finish(executor, [handle])
        assert executor.liveness(handle, run.dir) is Liveness.GONE
        assert run.text("token.1").startswith("- ")


def run_handle(executor: SlurmExecutor, run: Run) -> JobHandle:
    from assay.execute import process

    return process.build_handle(run.request(), executor.name)
