"""Jobs on Ray: the contract on a cluster of our own and on one that exists, and what only a cluster can do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from tests.contracts.executor import STOP, STUBBORN, ExecutorContract, Run, Runs, finish, members, start, until
from tests.study.workbench import Bench

from assay.errors import InfrastructureError, MissingExtraError, UsageError
from assay.execute import ray_tasks
from assay.execute.ray_tasks import RayExecutor
from assay.execute.submit import load_liveness, parse_token
from assay.record import run_directory
from assay.values.run import JobHandle, Liveness
from assay.values.study import Farm

# Run by `make test-long` until each of them passes beside other clusters, every time (issue 13).
pytestmark = [pytest.mark.services("ray"), pytest.mark.long]

SIZES = {"num_cpus": 4, "num_gpus": 2}
OWN = Farm("ray", "ray", options={"address": "local"})

# A cluster as somebody else has it: prints its address, adds a node for every line, leaves at the end of its input.
CLUSTER = """
import sys
from ray.cluster_utils import Cluster
small = {"object_store_memory": 80_000_000}
head = {"num_cpus": 4, "num_gpus": 2, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head | small)
print("address", cluster.address, flush=True)
for line in sys.stdin:
    node = cluster.add_node(num_cpus=1, resources={"tpu": 1}, **small)
    print("node", node.all_processes["raylet"][0].process.pid, flush=True)
cluster.shutdown()
"""


def list_commands(word: str) -> list[str]:
    """The processes that have this word in their command line."""
    found = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in found if word in line]


def nothing_is_left(folder: str) -> None:
    until(lambda: not list_commands(folder), f"no process of {folder} is left")


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Farm]:
    """Executors of one process share a cluster: this one keeps it between tests."""
    keeper = RayExecutor(OWN, SIZES)
    folder = keeper._connect()._folder
    yield OWN
    keeper.close()
    nothing_is_left(folder)
    assert not os.path.exists(folder)


@pytest.fixture(scope="module")
def somebody() -> Iterator[subprocess.Popen[str]]:
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    program = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"},
        text=True,
        start_new_session=True,
    )
    yield program
    program.communicate(timeout=60)
    nothing_is_left(folder)
    shutil.rmtree(folder, ignore_errors=True)


def ask_cluster(program: subprocess.Popen[str], word: str) -> str:
    assert program.stdout is not None
    line = next(line for line in program.stdout if line.startswith(f"{word} "))
    return line.split()[1]


@pytest.fixture(scope="module")
def existing_cluster(somebody: subprocess.Popen[str]) -> Iterator[Farm]:
    farm = Farm("pool", "ray", options={"address": ask_cluster(somebody, "address"), "gpus": 0})
    keeper = RayExecutor(farm)
    keeper._connect()
    yield farm
    keeper.close()


class TestOwnCluster(ExecutorContract):
    @pytest.fixture
    def surroundings(self, own_cluster: Farm) -> None:
        """The cluster is up."""

    def another(self) -> RayExecutor:
        return RayExecutor(OWN, SIZES)


class TestExistingCluster(ExecutorContract):
    farm: ClassVar[Farm]

    @pytest.fixture
    def surroundings(self, existing_cluster: Farm) -> None:
        type(self).farm = existing_cluster

    def another(self) -> RayExecutor:
        return RayExecutor(self.farm)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "root")


@pytest.fixture(params=["own", "existing"])
def executor(request: pytest.FixtureRequest) -> Iterator[RayExecutor]:
    farm = request.getfixturevalue(f"{request.param}_cluster")
    made = RayExecutor(farm, SIZES if request.param == "own" else None)
    yield made
    made.close()


@pytest.fixture
def own(own_cluster: Farm) -> Iterator[RayExecutor]:
    made = RayExecutor(own_cluster, SIZES)
    yield made
    made.close()


def asking(executor: RayExecutor, **options: object) -> RayExecutor:
    """The same cluster, with other needs."""
    farm = Farm("more", "ray", options={**executor.farm.options, **options})
    return RayExecutor(farm, executor._sizes)


def find_worker(run: Run, attempt: int = 1) -> int:
    """The process that waits for job.sh."""
    job = parse_token(run.text(f"token.{attempt}")).pid
    return int(subprocess.check_output(["ps", "-o", "ppid=", "-p", str(job)]))


# ---------------------------------------------------------------- a worker or a node dies


DYING = {
    "plain": "touch up; sleep 1000",
    "own session, ignores TERM": STUBBORN["own session, ignores TERM"],
    "answers TERM with exit 0": "trap 'exit 0' TERM; touch up; while :; do sleep 0.05; done",
}


class TestDeaths:
    @pytest.mark.parametrize("kind", DYING)
    def test_a_killed_worker_takes_its_job_along(self, own: RayExecutor, runs: Runs, kind: str) -> None:
        run = runs.make(DYING[kind])
        handle = start(own, run)
        until(lambda: run.path("code/up").exists(), "the command runs")
        os.kill(find_worker(run), signal.SIGKILL)
        finish(own, [handle])
        until(lambda: members(run) == set(), "nothing of it is left")
        assert run.markers() == set()
        until(lambda: run.path("end.1").exists(), "its guard has said so")
        assert own.liveness(handle, run.dir) is Liveness.GONE

    def test_workers_are_killed_again_and_again(self, executor: RayExecutor, runs: Runs) -> None:
        """Every attempt begins once, and none begins before the one before it is gone."""
        run = runs.make("echo $ASSAY_ATTEMPT_NUMBER >> ran; touch up; [ $ASSAY_ATTEMPT_NUMBER = 6 ] || sleep 1000")
        for attempt in range(1, 6):
            handle = executor.submit(run.request(attempt=attempt), run.publish)
            assert handle is not None
            until(lambda: run.path("code/up").exists(), "the command runs")
            run.path("code/up").unlink()
            os.kill(find_worker(run, attempt), signal.SIGKILL)
            finish(executor, [handle])
        last = executor.submit(run.request(attempt=6), run.publish)
        assert last is not None
        finish(executor, [last])
        assert run.markers() == {"train.6.exit.0"}
        assert run.text("code/ran").split() == ["1", "2", "3", "4", "5", "6"]

    def test_the_jobs_of_a_killed_bridge(self, executor: RayExecutor, runs: Runs) -> None:
        """With a cluster of our own they end with it; elsewhere they go on, and we connect again."""
        mine = RayExecutor(executor.farm, {**executor._sizes, "num_cpus": 3} if executor._sizes else None)
        run = runs.make("touch up; until [ -e go ]; do sleep 0.02; done")
        handle = start(mine, run)
        until(lambda: run.path("code/up").exists(), "the command runs")
        bridge = mine._bridge
        assert bridge is not None
        os.kill(bridge._process.pid, signal.SIGKILL)
        if bridge.is_shared:
            assert list(mine.wait(0.5)) == []
            run.path("code/go").touch()
        finish(mine, [handle])
        assert run.markers() == ({"train.exit.0"} if bridge.is_shared else set())
        second = runs.make("true")
        finish(mine, [start(mine, second)])
        assert second.markers() == {"train.exit.0"}
        folder = mine._connect()._folder
        mine.close()
        nothing_is_left(folder)
        nothing_is_left(bridge._folder)

    def test_a_node_dies(self, somebody: subprocess.Popen[str], existing_cluster: Farm, runs: Runs) -> None:
        assert somebody.stdin is not None
        somebody.stdin.write("node\n")
        somebody.stdin.flush()
        raylet = int(ask_cluster(somebody, "node"))
        for bridge in list(ray_tasks._bridges.values()):
            bridge.nodes.append({"CPU": 1.0, "tpu": 1.0})  # as a supervisor that starts now finds it
        executor = RayExecutor(Farm("tpu", "ray", options={**existing_cluster.options, "resources": {"tpu": 1}}))
        run = runs.make(DYING["plain"])
        handle = start(executor, run)
        until(lambda: run.path("code/up").exists(), "the command runs")
        os.kill(raylet, signal.SIGKILL)
        finish(executor, [handle])
        until(lambda: members(run) == set(), "nothing of it is left")
        assert run.markers() == set()
        executor.close()


ELSEWHERE = "sed -i s/^[^[:space:]]*/elsewhere/ ../token.1"  # as if the job were on another host


class TestElsewhere:
    """Jobs whose token names another host: what their processes do cannot be seen from here."""

    def test_it_lives_as_long_as_its_task(self, executor: RayExecutor, runs: Runs) -> None:
        run = runs.make(f"{ELSEWHERE}; touch up; until [ -e go ]; do sleep 0.02; done")
        handle = start(executor, run)
        until(lambda: run.path("code/up").exists(), "the command runs")
        assert executor.liveness(handle, run.dir) is Liveness.ALIVE
        run.path("code/go").touch()
        finish(executor, [handle])
        assert run.markers() == {"train.exit.0"}

    def test_a_node_that_leaves_no_end(
        self, executor: RayExecutor, runs: Runs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ray_tasks, "_ELSEWHERE_S", 0.5)
        run = runs.make(f"{ELSEWHERE}; {DYING['plain']}")
        handle = start(executor, run)
        until(lambda: run.path("code/up").exists(), "the command runs")
        worker = find_worker(run)
        pipes = {os.readlink(path) for path in Path(f"/proc/{worker}/fd").iterdir()}
        known = [int(line.split()[0]) for line in list_commands("bash -c _find() {")]
        guards = [pid for pid in known if os.readlink(f"/proc/{pid}/fd/0") in pipes]
        assert guards
        for pid in [*guards, worker, *members(run)]:
            os.kill(pid, signal.SIGKILL)
        finish(executor, [handle])
        assert run.markers() == set()
        assert not run.path("end.1").exists()


# ---------------------------------------------------------------- resources


class TestResources:
    def test_ray_gives_the_devices(self, executor: RayExecutor, runs: Runs) -> None:
        one = asking(executor, gpus=1)
        text = "echo $CUDA_VISIBLE_DEVICES; touch up; until [ -e go ]; do sleep 0.02; done"
        made = [runs.make(text) for _ in range(3)]
        handles = [start(one, run) for run in made]
        until(lambda: sum(run.path("code/up").exists() for run in made) == 2, "two run")
        waiting = next(run for run in made if not run.path("code/up").exists())
        busy = [run for run in made if run is not waiting]
        assert {run.text("train.log").strip() for run in busy} == {"0", "1"}
        assert one.liveness(handles[made.index(waiting)], waiting.dir) is Liveness.ALIVE
        assert load_liveness(handles[made.index(waiting)], waiting.dir) is not Liveness.GONE
        for run in made:
            run.path("code/go").touch()
        finish(one, handles)
        assert [run.markers() for run in made] == [{"train.exit.0"}] * 3
        one.close()

    def test_several_devices_for_one_job(self, executor: RayExecutor, runs: Runs) -> None:
        two = asking(executor, gpus=2, cpus=2, memory=1_000_000)
        run = runs.make("echo $CUDA_VISIBLE_DEVICES")
        finish(two, [start(two, run)])
        assert sorted(run.text("train.log").strip().split(",")) == ["0", "1"]
        two.close()

    def test_what_waits_is_cancelled(self, executor: RayExecutor, runs: Runs) -> None:
        two = asking(executor, gpus=2)
        busy, waiting = runs.make(DYING["plain"]), runs.make("touch ran")
        handles = [start(two, busy), start(two, waiting)]
        until(lambda: busy.path("code/up").exists(), "one runs")
        for run, handle in zip((waiting, busy), reversed(handles), strict=True):
            run_directory.write_stop(run.dir, 1, STOP)
            two.cancel([(handle, run.dir)], 0.5)
        finish(two, handles)
        after = runs.make("true")
        finish(two, [start(two, after)])
        assert after.markers() == {"train.exit.0"}
        assert not waiting.path("code/ran").exists()
        assert busy.markers() == waiting.markers() == set()
        two.close()

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"gpus": 3}, "3 GPU"),
            ({"gpus": 1, "resources": {"quantum": 2}}, "2 quantum"),
            ({"memory": 10**15}, "1e+06 GB memory"),
            ({"gpus": 1.5}, "whole"),
        ],
    )
    def test_what_no_node_has(self, own: RayExecutor, runs: Runs, options: dict[str, object], words: str) -> None:
        run = runs.make("true")
        executor = asking(own, **options)
        with pytest.raises(UsageError, match=words.replace("+", r"\+")) as caught:
            executor.submit(run.request(), run.publish)
        assert "whole" in words or "its nodes have:" in str(caught.value.hint)
        assert not run.path("lease.1").exists()
        executor.close()

    def test_a_node_that_does_not_see_the_run(self, own: RayExecutor, runs: Runs) -> None:
        """The directory goes away between the lease and the task."""
        run = runs.make("true")

        def publish(handle: JobHandle) -> bool:
            won = run.publish(handle)
            run.path("job.sh").rename(run.path("hidden"))
            return won

        handle = own.submit(run.request(), publish)
        assert handle is not None
        finish(own, [handle])
        assert "all nodes share" in str(own.refusal(handle, run.dir))
        assert run.markers() == set()

    def test_what_it_used(self, own: RayExecutor, runs: Runs) -> None:
        run = runs.make("i=0; while [ $i -lt 30000 ]; do i=$((i + 1)); done")
        handle = start(own, run)
        finish(own, [handle])
        used = own.usage(handle)
        assert used is not None
        assert used.cpu_s is not None
        assert used.cpu_s > 0


# ---------------------------------------------------------------- before anything is written


class TestRefusals:
    @pytest.mark.parametrize(
        ("address", "error", "words"),
        [
            ("http://127.0.0.1:8265", UsageError, "not supported"),
            ("ray://127.0.0.1:10001", UsageError, "not supported"),
            ("somewhere", UsageError, "not a Ray address"),
            ("127.0.0.1:1", InfrastructureError, "no Ray cluster at 127.0.0.1:1"),
            ("127.0.0.1:99999999", InfrastructureError, "no Ray cluster"),
        ],
    )
    def test_addresses(self, address: str, error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            RayExecutor.check(Farm("far", "ray", options={"address": address}))

    def test_ray_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(MissingExtraError) as caught:
            RayExecutor.check(Farm("far", "ray", options={"address": "127.0.0.1:1"}))
        assert "assay[ray]" in str(caught.value.hint)

    def test_no_cluster_to_be_found(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        with pytest.raises(InfrastructureError, match="running Ray"):
            RayExecutor.check(Farm("far", "ray", options={"address": "auto"}))


SEND = """
import sys, ray.cloudpickle as pickle, assay.execute.ray_tasks as module
pickle.register_pickle_by_value(module)
sys.stdout.buffer.write(pickle.dumps((module.run_job, module.Tasks, eval(sys.argv[1]))))
"""
RECEIVE = """
import sys
sys.modules["assay"] = None
import ray.cloudpickle as pickle
run_job, _, job = pickle.loads(sys.stdin.buffer.read())
print(run_job(job)[0] or "fine")
"""


def test_nodes_need_nothing_of_assay(runs: Runs) -> None:
    run = runs.make("echo $ASSAY_RUN_NAME; exit 3")
    job = ray_tasks._build_job(run.request())
    sent = subprocess.run([sys.executable, "-c", SEND, repr(job)], capture_output=True, check=True)
    received = subprocess.run([sys.executable, "-c", RECEIVE], input=sent.stdout, capture_output=True, check=True)
    assert received.stdout == b"fine\n"
    assert run.markers() == {"train.exit.3"}


# ---------------------------------------------------------------- the supervisor dies


STUDY = """
study: fit
command: 'echo "begin {x}" >> LEDGER; until [ -e GO ]; do sleep 0.02; done; echo "end {x}" >> LEDGER; echo "loss={x}"'
params: {x: [1, 2, 3]}
metrics: {loss: 'loss=({number})'}
"""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    text = STUDY.replace("LEDGER", str(bench.folder / "ledger")).replace("GO", str(bench.folder / "go"))
    bench.write("study.yml", text)
    (bench.folder / "ledger").touch()
    return bench


def count_lines(bench: Bench, word: str) -> Counter[str]:
    lines = (bench.folder / "ledger").read_text().splitlines()
    return Counter(line.split()[1] for line in lines if line.startswith(word))


def end_supervisor(bench: Bench, begun: int) -> None:
    program = bench.start("run", "study.yml", "--on", "ray", "--quiet")
    until(lambda: count_lines(bench, "begin").total() >= begun or program.poll() is not None, "jobs have begun")
    assert program.poll() is None, program.communicate()
    os.kill(program.pid, signal.SIGKILL)
    program.communicate()


def test_a_killed_supervisor_with_a_cluster_of_its_own(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    end_supervisor(bench, 1)
    (bench.folder / "go").touch()
    program = bench.start("run", "study.yml", "--on", "ray", "--quiet", "--retry", "lost")
    out, err = program.communicate(timeout=120)
    assert program.returncode == 0, out + err
    assert count_lines(bench, "end") == {"1": 1, "2": 1, "3": 1}
    assert "ray" not in err.lower(), err
    nothing_is_left("assay.execute.ray_tasks")


def test_a_killed_supervisor_of_an_existing_cluster(
    bench: Bench, existing_cluster: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", str(existing_cluster.options["address"]))
    for count in range(1, 4):
        end_supervisor(bench, min(count, 2))
    (bench.folder / "go").touch()
    program = bench.start("run", "study.yml", "--on", "ray", "--quiet")
    out, err = program.communicate(timeout=120)
    assert program.returncode == 0, out + err
    assert count_lines(bench, "begin") == count_lines(bench, "end") == {"1": 1, "2": 1, "3": 1}
