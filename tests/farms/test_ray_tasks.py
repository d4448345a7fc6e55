"""Jobs on Ray: the contract on a cluster of our own and on one that exists, and what only a cluster can do."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from tests.contracts.executor import (
    STOP,
    STUBBORN,
    ExecutorContract,
    Opened,
    Run,
    Runs,
    begin,
    complete,
    finish,
    members,
    start,
    until,
)
from tests.finished_study import Bench
from tests.ray_cluster import RayCluster, find_marked, marked, nothing_is_left, serve_answer, start_ray

from assay.errors import InfrastructureError, MissingExtraError, UsageError
from assay.execute import process
from assay.execute.places import load_liveness
from assay.farms import ray_farm, ray_nodes, ray_tasks
from assay.farms.ray_bridge import Bridge
from assay.farms.ray_tasks import RayExecutor
from assay.farms.submit import parse_token
from assay.record import run_directory
from assay.system import processes
from assay.values.run import JobHandle, Liveness
from assay.values.study import Farm

pytestmark = pytest.mark.services("ray")

SIZES = {"num_cpus": 4, "num_gpus": 2}
OWN = Farm("ray", "ray", options={"address": "local"})


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Farm]:
    """Executors of one process share a cluster: this one keeps it between tests."""
    keeper = RayExecutor(OWN, SIZES)
    with marked() as mark:
        folder = keeper._connect()._folder
    yield OWN
    keeper.close()
    nothing_is_left(mark)
    assert not os.path.exists(folder)


@pytest.fixture(scope="module")
def somebody() -> Iterator[RayCluster]:
    with start_ray() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def existing_cluster(somebody: RayCluster) -> Iterator[Farm]:
    farm = Farm("pool", "ray", options={"address": somebody.address, "gpus": 0})
    keeper = RayExecutor(farm)
    keeper._connect()
    yield farm
    keeper.close()


@pytest.mark.long
class TestOwnCluster(ExecutorContract):
    """Its tasks belong to the bridge instead of an actor; all else is the same."""

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


@pytest.fixture(params=[pytest.param("own", marks=pytest.mark.long), "existing"])
def executor(request: pytest.FixtureRequest, opened: Opened) -> RayExecutor:
    farm = request.getfixturevalue(f"{request.param}_cluster")
    return opened(RayExecutor(farm, SIZES if request.param == "own" else None))


def asking(executor: RayExecutor, **options: object) -> RayExecutor:
    """An executor of the same cluster with other needs."""
    farm = Farm("more", "ray", options={**executor.farm.options, **options})
    return RayExecutor(farm, executor._sizes)


def find_worker(run: Run, attempt: int = 1) -> int:
    return find_reader(parse_token(run.text(f"token.{attempt}")).pid)


def find_reader(job: int) -> int:
    """The worker that waits for job.sh: it reads what the parent of that says."""
    stat = processes.load_stat(job)
    pipe = os.readlink(f"/proc/{stat.parent}/fd/3")
    return next(pid for pid in processes.list_pids() if pid != stat.parent and pipe in list_files(pid))


def list_files(pid: int) -> set[str]:
    with contextlib.suppress(OSError):
        return {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
    return set()


def find_owner(somebody: RayCluster) -> int:
    """The actor that Ray knows as the owner of all tasks."""
    found = [pid for pid, text in find_marked(somebody.mark).items() if text.startswith("ray::Tasks")]
    assert len(found) == 1
    return found[0]


# ---------------------------------------------------------------- a worker or a node dies


DYING = {
    "plain": "touch up; sleep 1000",
    "own session, ignores TERM": STUBBORN["own session, ignores TERM"],
    "answers TERM with exit 0": "trap 'exit 0' TERM; touch up; while :; do sleep 0.05; done",
}


class TestDeaths:
    @pytest.mark.parametrize(
        "kind", ["plain", "answers TERM with exit 0", pytest.param("own session, ignores TERM", marks=pytest.mark.long)]
    )
    def test_a_killed_worker_takes_its_job_along(self, executor: RayExecutor, runs: Runs, kind: str) -> None:
        run = runs.make(DYING[kind])
        handle = begin(executor, run)
        os.kill(find_worker(run), signal.SIGKILL)
        finish(executor, [handle])
        until(lambda: members(run) == set(), "nothing of it is left")
        assert run.markers() == set()
        until(lambda: run.path("end.1").exists(), "its guard has said so")
        assert executor.liveness(handle, run.dir) is Liveness.GONE

    def test_the_owner_of_all_tasks_dies(
        self, somebody: RayCluster, existing_cluster: Farm, runs: Runs, opened: Opened
    ) -> None:
        """Ray ends the workers; until a guard acts, what comes to its end has its marker and is not repeated."""
        executor = opened(RayExecutor(existing_cluster))
        run = runs.make("touch up; until [ -e go ]; do sleep 0.02; done")
        handle = begin(executor, run)
        worker = find_worker(run)
        guards = find_guards(worker)
        try:
            for pid in guards:
                os.kill(pid, signal.SIGSTOP)
            os.kill(find_owner(somebody), signal.SIGKILL)
            until(lambda: not list_files(worker), "Ray has ended the worker")
            run.path("code/go").touch()
            until(run.markers, "it comes to its end")
        finally:
            for pid in guards:
                os.kill(pid, signal.SIGCONT)
        finish(executor, [handle])
        assert run.markers() == {"train.exit.0"}

    def test_the_jobs_of_a_killed_bridge(self, executor: RayExecutor, runs: Runs) -> None:
        """With a cluster of our own they end with it; elsewhere they go on, and we connect again."""
        mine = RayExecutor(executor.farm, {**executor._sizes, "num_cpus": 3} if executor._sizes else None)
        run = runs.make("touch up; until [ -e go ]; do sleep 0.02; done")
        with marked() as mark:
            handle = begin(mine, run)
        bridge = mine._bridge
        os.kill(bridge._process.pid, signal.SIGKILL)
        if bridge.is_shared:
            assert list(mine.wait(0.5)) == []
            run.path("code/go").touch()
        finish(mine, [handle])
        assert run.markers() == ({"train.exit.0"} if bridge.is_shared else set())
        second = runs.make("true")
        finish(mine, [start(mine, second)])
        assert second.markers() == {"train.exit.0"}
        mine.close()
        nothing_is_left(mark)
        assert not os.path.exists(bridge._folder)

    def test_a_node_joins_and_dies(
        self, somebody: RayCluster, existing_cluster: Farm, runs: Runs, opened: Opened
    ) -> None:
        executor = opened(
            RayExecutor(Farm("tpu", "ray", options={**existing_cluster.options, "resources": {"tpu": 1}}))
        )
        run = runs.make(DYING["plain"])
        with pytest.raises(UsageError, match="1 tpu"):
            executor.submit(run.request(), run.publish)
        raylet = somebody.add_node('{"num_cpus": 1, "resources": {"tpu": 1}}')
        handle = begin(executor, run)
        os.kill(raylet, signal.SIGKILL)
        finish(executor, [handle])
        until(lambda: members(run) == set(), "nothing of it is left")
        assert run.markers() == set()


def find_guards(worker: int) -> list[int]:
    """They read a pipe of the worker."""
    pipes = list_files(worker)
    found = []
    for pid in processes.list_pids():
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/cmdline").read_text()
            if text.startswith("bash\0-c\0_find()") and os.readlink(f"/proc/{pid}/fd/0") in pipes:
                found.append(pid)
    return found


ELSEWHERE = "sed -i s/^[^[:space:]]*/elsewhere/ ../token.1"  # as if the job were on another host


def kill_members(run: Run) -> set[int]:
    """Those that were there: one that is forked during the search is seen the next time."""
    found = members(run)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # job.sh does not see its command die
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    return found


class TestElsewhere:
    """Jobs whose token names another host: what their processes do cannot be seen from here."""

    def test_it_lives_as_long_as_its_task(self, executor: RayExecutor, runs: Runs) -> None:
        run = runs.make(f"{ELSEWHERE}; touch up; until [ -e go ]; do sleep 0.02; done")
        handle = begin(executor, run)
        assert executor.liveness(handle, run.dir) is Liveness.ALIVE
        run.path("code/go").touch()
        finish(executor, [handle])
        assert run.markers() == {"train.exit.0"}

    def test_a_node_that_leaves_no_end(
        self, executor: RayExecutor, runs: Runs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ray_tasks, "_ELSEWHERE_S", 0.5)
        run = runs.make(f"{ELSEWHERE}; {DYING['plain']}")
        handle = begin(executor, run)
        worker = find_worker(run)
        guards = find_guards(worker)
        assert guards
        for pid in [*guards, worker]:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not kill_members(run), "nothing of it is left")
        finish(executor, [handle])
        assert run.markers() == set()
        assert not run.path("end.1").exists()


class TestAnotherCluster:
    """Leases that name a cluster other than the farm's."""

    @pytest.fixture
    def executor(self, existing_cluster: Farm, opened: Opened) -> RayExecutor:
        made = opened(RayExecutor(existing_cluster))
        made._connect()
        return made

    def submitted(self, run: Run, cluster: str) -> JobHandle:
        """By a supervisor that has died since."""
        handle = process.build_handle(run.request(), "ray", native_id=cluster)
        handle = replace(handle, supervisor_pid=0, supervisor_start=0)
        assert run.publish(handle)
        run.path("submit.log.1").touch()
        run.path("submit.exit.1.0").touch()
        return handle

    @pytest.mark.parametrize("cluster", ["127.0.0.1:1", "http://127.0.0.1:1"])
    def test_what_waited_in_one_that_is_gone(self, executor: RayExecutor, runs: Runs, cluster: str) -> None:
        run = runs.make("touch ran")
        handle = self.submitted(run, cluster)
        executor.watch(handle, run.dir)
        finish(executor, [handle])
        said = executor.explain_end(handle, run.dir)
        assert said[0] == "taken back"
        assert cluster in said[1]
        assert [cluster in line for line in executor.take_messages()] == [True]
        env = {**os.environ, **process.request_environment(run.request())}
        subprocess.run(["bash", run.path("job.sh")], env=env, check=True)  # an old copy comes late
        assert not run.path("code/ran").exists()
        finish(executor, [start(executor, run, attempt=2)])
        assert run.markers() == {"train.2.exit.0"}

    def test_what_waited_in_one_that_was_started_again(self, executor: RayExecutor, runs: Runs) -> None:
        """A head that was started again has the same address and no queue: what never began has not died."""
        run = runs.make("touch ran")
        handle = self.submitted(run, executor._connect().cluster)
        executor.watch(handle, run.dir)
        finish(executor, [handle])
        said = executor.explain_end(handle, run.dir)
        assert (said[0], handle.native_id in said[1]) == ("taken back", True)

    def test_one_that_is_there_is_waited_for(self, executor: RayExecutor, runs: Runs) -> None:
        run = runs.make("touch ran")
        with serve_answer() as cluster:
            assert executor.liveness(self.submitted(run, cluster), run.dir) is Liveness.UNKNOWN
        assert not run.path("token.1").exists()
        assert [cluster in line for line in executor.take_messages()] == [True]

    def test_what_had_begun_on_a_node_of_one_that_is_gone(
        self, executor: RayExecutor, runs: Runs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its nodes end what they run, a while after their head."""
        run = runs.make("touch ran")
        handle = self.submitted(run, "127.0.0.1:1")
        run.path("token.1").write_text("elsewhere 17 17 boot 17\n")
        assert executor.liveness(handle, run.dir) is Liveness.UNKNOWN
        monkeypatch.setattr(ray_tasks, "_CLUSTER_DEATH_S", 0.0)
        monkeypatch.setattr(ray_tasks, "_ELSEWHERE_S", 0.0)
        until(lambda: executor.liveness(handle, run.dir) is Liveness.GONE, "it is lost")


# ---------------------------------------------------------------- resources


class TestResources:
    def test_ray_gives_the_devices(self, executor: RayExecutor, runs: Runs, opened: Opened) -> None:
        one = opened(asking(executor, gpus=1))
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

    def test_several_devices_for_one_job(self, executor: RayExecutor, runs: Runs, opened: Opened) -> None:
        two = opened(asking(executor, gpus=2, cpus=2, memory=1_000_000))
        run = runs.make("echo $CUDA_VISIBLE_DEVICES")
        finish(two, [start(two, run)])
        assert sorted(run.text("train.log").strip().split(",")) == ["0", "1"]

    def test_why_nothing_begins(self, executor: RayExecutor, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
        """Others use what the cluster has, or the node has left that could have run it."""
        monkeypatch.setattr(ray_tasks, "_LOOK_S", 0.0)
        busy, waiting = runs.make("until [ -e go ]; do sleep 0.02; done"), runs.make("true")
        using, wanting = asking(executor, gpus=2), asking(executor, gpus=2)
        handle = start(using, busy)
        until(lambda: busy.path("token.1").exists(), "the first runs")
        second = start(wanting, waiting)
        assert list(wanting.wait(0.1)) == []
        assert "has free what the farm more asks for: 1 CPU, 2 GPU" in "".join(wanting.take_messages())
        monkeypatch.setattr(Bridge, "call", lambda *_words, **_limits: [{"CPU": 4.0}])
        wanting._explain_wait()
        assert "has what the farm more asks for: 1 CPU, 2 GPU" in "".join(wanting.take_messages())
        monkeypatch.undo()
        busy.path("code/go").touch()
        finish(using, [handle])
        finish(wanting, [second])
        using.close()
        wanting.close()

    def test_what_waits_is_cancelled(self, executor: RayExecutor, runs: Runs, opened: Opened) -> None:
        two = opened(asking(executor, gpus=2))
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

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"gpus": 3}, "3 GPU"),
            ({"gpus": 1, "resources": {"quantum": 2}}, "2 quantum"),
            ({"memory": 10**15}, "1e+06 GB memory"),
            ({"gpus": 1.5}, "whole"),
        ],
    )
    def test_what_no_node_has(
        self, executor: RayExecutor, runs: Runs, options: dict[str, object], words: str, opened: Opened
    ) -> None:
        run = runs.make("true")
        asked = opened(asking(executor, **options))
        with pytest.raises(UsageError, match=words.replace("+", r"\+")) as caught:
            asked.submit(run.request(), run.publish)
        assert "whole" in words or "its nodes have:" in str(caught.value.hint)
        assert not run.path("lease.1").exists()

    def test_a_node_that_does_not_see_the_run(self, executor: RayExecutor, runs: Runs) -> None:
        """The directory goes away between the lease and the task."""
        run = runs.make("true")

        def publish(handle: JobHandle) -> bool:
            won = run.publish(handle)
            run.path("job.sh").rename(run.path("hidden"))
            return won

        handle = executor.submit(run.request(), publish)
        assert handle is not None
        finish(executor, [handle])
        assert "all nodes share" in str(executor.refusal(handle, run.dir))
        assert run.markers() == set()

    def test_what_it_used(self, executor: RayExecutor, runs: Runs) -> None:
        run = runs.make("i=0; while [ $i -lt 30000 ]; do i=$((i + 1)); done")
        used = executor.usage(complete(executor, run))
        assert used.cpu_s is not None
        assert used.cpu_s > 0


# ---------------------------------------------------------------- before anything is written


class TestRefusals:
    @pytest.mark.parametrize(
        ("address", "error", "words"),
        [
            ("http://", UsageError, "not the address of a Ray dashboard"),
            ("http://127.0.0.1:1", InfrastructureError, "no Ray dashboard at http://127.0.0.1:1"),
            ("ray://127.0.0.1:10001", UsageError, "not supported"),
            ("somewhere", UsageError, "not a Ray address"),
            ("127.0.0.1:1", InfrastructureError, "no Ray cluster at 127.0.0.1:1"),
            ("127.0.0.1:99999999", InfrastructureError, "no Ray cluster"),
            ("127.0.0.1:²", UsageError, "not a Ray address"),
            ("a..b:6379", InfrastructureError, "no Ray cluster at a..b:6379: the name of its host is not valid"),
        ],
    )
    def test_addresses(self, address: str, error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            RayExecutor.check(Farm("far", "ray", options={"address": address}))

    @pytest.mark.parametrize("before", ["", "http://", "https://"])
    def test_an_address_that_takes_connections_and_never_answers(
        self, monkeypatch: pytest.MonkeyPatch, before: str
    ) -> None:
        monkeypatch.setattr(ray_farm, "_ANSWER_S", 0.2)
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"{before}127.0.0.1:{server.getsockname()[1]}"
            with pytest.raises(InfrastructureError, match=f"at {address}: .*timed out"):
                RayExecutor.check(Farm("far", "ray", options={"address": address}))
            assert ray_farm.find_absence(address).endswith("timed out")

    def test_an_error_without_a_text_is_no_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_arguments: object) -> None:
            raise TimeoutError

        monkeypatch.setattr(socket, "create_connection", fail)
        with pytest.raises(InfrastructureError, match=": TimeoutError"):
            RayExecutor.check(Farm("far", "ray", options={"address": "127.0.0.1:1"}))

    def test_a_cluster_that_asks_for_a_token(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ray says that it cannot connect, and not why."""

        def fail(*_arguments: object, **_options: object) -> None:
            raise InfrastructureError("Ray: Failed to connect")

        monkeypatch.setattr(Bridge, "call", fail)
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
        with serve_answer() as address:
            farm = Farm("far", "ray", options={"address": address})
            with pytest.raises(InfrastructureError) as caught:
                RayExecutor.check(farm)
            assert "RAY_AUTH_MODE=token" in str(caught.value.hint)

    def test_ray_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(MissingExtraError) as caught:
            RayExecutor.check(Farm("far", "ray", options={"address": "127.0.0.1:1"}))
        assert "assay[ray]" in str(caught.value.hint)


SEND = """
import sys, ray.cloudpickle as pickle, assay.farms.ray_nodes as module, assay.system.processes as processes
pickle.register_pickle_by_value(module)
pickle.register_pickle_by_value(processes)
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
    job = ray_tasks._build_job(Farm("pool", "ray"), run.request())
    sent = subprocess.run([sys.executable, "-c", SEND, repr(job)], capture_output=True, check=True)
    received = subprocess.run([sys.executable, "-c", RECEIVE], input=sent.stdout, capture_output=True, check=True)
    assert received.stdout == b"fine\n"
    assert run.markers() == {"train.exit.3"}


# ---------------------------------------------------------------- deaths while a job begins

RAYLET = 'RAY_RAYLET_PID=$$ "$@" & wait'
WORKER = "import sys; from assay.farms import ray_nodes; ray_nodes.run_job(eval(sys.argv[1]))"
SETSID = """#!/bin/sh
: > "$HELD"; until [ -e "$HELD.go" ]; do sleep 0.02; done; exec "$REAL" "$@"
"""


def test_a_raylet_dies_before_its_worker_waits_for_the_job(runs: Runs, tmp_path: Path) -> None:
    """The worker has another parent by then, and the process that started the raylet may never look at it."""
    run = runs.make(DYING["plain"])
    held, setsid = tmp_path / "held", tmp_path / "setsid"
    setsid.write_text(SETSID)
    setsid.chmod(0o755)
    env = {"HELD": str(held), "REAL": str(shutil.which("setsid")), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    worker = [sys.executable, "-c", WORKER, repr(ray_tasks._build_job(Farm("pool", "ray"), run.request()))]
    with subprocess.Popen(["bash", "-c", RAYLET, "raylet", *worker], env={**os.environ, **env}) as raylet:
        until(held.exists, "the job is being started")
        raylet.kill()
        os.waitid(os.P_PID, raylet.pid, os.WEXITED | os.WNOWAIT)
        (tmp_path / "held.go").touch()
        try:
            until(lambda: run.path("end.1").exists(), "its guard has acted")
            assert members(run) == set()
        finally:
            kill_members(run)
    assert run.markers() == set()


def test_a_job_that_comes_after_its_guard_does_not_begin(runs: Runs) -> None:
    """A worker that is killed right after it has started job.sh: the guard does not find it yet."""
    run = runs.make("touch ran")
    said = "".join(f"{field}\0" for field in (run.request().tag, 0, run.path("end.1")))
    subprocess.run(["bash", "-c", ray_nodes.GUARD], input=said, text=True, check=True)
    assert run.path("end.1").exists()
    env = {**os.environ, **process.request_environment(run.request())}
    subprocess.run(["bash", run.path("job.sh")], env=env, check=True)
    assert not run.path("code/ran").exists()
    assert parse_token(run.text("token.1")).pid == 0


# ---------------------------------------------------------------- deaths in the middle of a sweep


# A second attempt that began beside the first would find its lock taken. Jobs end on a signal of the test, so that the
# test knows which of them a death can have met before their end.
STUDY = """
study: fit
command: >-
  exec 8> LEDGER.{x}; flock -n 8 || echo "beside {x} $ASSAY_ATTEMPT" >> LEDGER; echo "begin {x} $ASSAY_ATTEMPT" >> LEDGER;
  until [ -e GO.{x} ] || [ -e GO ]; do sleep 0.02; done; echo "end {x} $ASSAY_ATTEMPT" >> LEDGER; echo "loss={x}"
params: {x: VALUES}
metrics: {loss: 'loss=({number})'}
"""


class Sweep:
    def __init__(self, folder: Path, values: int, more: str = "") -> None:
        self.bench = Bench(folder)
        self._ledger, self.go = self.bench.folder / "ledger", self.bench.folder / "go"
        text = STUDY.replace("LEDGER", str(self._ledger)).replace("GO", str(self.go))
        self.bench.write("study.yml", text.replace("VALUES", str(list(range(values)))) + more)
        self._ledger.touch()
        self.values = values

    @contextlib.contextmanager
    def start(self) -> Iterator[subprocess.Popen[str]]:
        """Killed at the end, unless it has left by itself."""
        program = self.bench.start("run", "study.yml", "--quiet", "--retry", "lost")
        try:
            yield program
        finally:
            program.kill()
            if program.stdout is not None and not program.stdout.closed:  # else `finish` has read it
                program.communicate()

    def list_lines(self, word: str) -> list[tuple[str, str]]:
        """The value, and the attempt's tag."""
        lines = [line.split() for line in self._ledger.read_text().splitlines()]
        return [(line[1], line[2]) for line in lines if line[0] == word]

    def list_running(self) -> list[tuple[str, str]]:
        """Those that have begun, have not ended, and still have a process."""
        ended = self.list_lines("end")
        begun = [each for each in self.list_lines("begin") if each not in ended]
        return [each for each in begun if process.find_members([process.AttemptProcesses(0, 0, each[1])])]

    def wait_for(self, count: int, program: subprocess.Popen[str]) -> list[tuple[str, str]]:
        until(lambda: len(self.list_running()) >= count or program.poll() is not None, f"{count} jobs run")
        assert program.poll() is None, program.communicate()
        return self.list_running()

    def wait_until_gone(self, jobs: list[tuple[str, str]]) -> None:
        attempts = [process.AttemptProcesses(0, 0, tag) for _, tag in jobs]
        until(lambda: not process.find_members(attempts), "the jobs of what was killed are gone")

    def end(self, job: tuple[str, str]) -> None:
        (self.go.parent / f"go.{job[0]}").touch()
        until(lambda: job in self.list_lines("end"), "a job ends")

    def finish(self) -> None:
        self.go.touch()
        with self.start() as program:
            out, err = program.communicate(timeout=200)
        assert program.returncode == 0, out + err
        assert Counter(x for x, _ in self.list_lines("end")) == {str(x): 1 for x in range(self.values)}
        assert set(Counter(self.list_lines("begin")).values()) == {1}
        assert self.list_lines("beside") == []
        assert "ray" not in err.lower(), err


def test_a_killed_supervisor_with_a_cluster_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    sweep = Sweep(tmp_path, 3, "on: ray\n")
    with marked() as mark:
        with sweep.start() as program:
            sweep.wait_for(1, program)
        nothing_is_left(mark)
        sweep.finish()
        nothing_is_left(mark)


@pytest.mark.long
def test_a_cluster_dies_with_its_queue_and_another_has_another_address(tmp_path: Path, somebody: RayCluster) -> None:
    pool = "on: pool\nfarms: {pool: {kind: ray, address: 'ADDRESS', cpus: 3}}\n"
    with start_ray() as doomed:
        sweep = Sweep(tmp_path, 3, pool.replace("ADDRESS", doomed.address))
        with sweep.start() as program:
            sweep.wait_for(1, program)
            running = sweep.list_running()
        doomed.kill()
        sweep.wait_until_gone(running)
    file = sweep.bench.folder / "study.yml"
    file.write_text(file.read_text().replace(doomed.address, somebody.address))
    sweep.finish()


POOL = """
on: pool
farms: {pool: {kind: ray, address: ADDRESS, resources: {kill: 1}}}
"""
NODE = '{"num_cpus": 2, "resources": {"kill": 2}}'


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rounds", [5, pytest.param(20, marks=pytest.mark.long)])
def test_supervisors_workers_and_raylets_are_killed(tmp_path: Path, somebody: RayCluster, rounds: int) -> None:
    """Nothing finished is repeated, nothing is lost, and no two attempts of a run are ever there at the same time."""
    raylet = somebody.add_node(NODE)
    sweep = Sweep(tmp_path, rounds + 3, POOL.replace("ADDRESS", somebody.address))
    for _ in range(rounds):
        with sweep.start() as program:
            first = sweep.wait_for(2, program)
            os.kill(find_waiting(first[0][1]), signal.SIGKILL)
            sweep.wait_until_gone(first[:1])
            sweep.end(first[1])
            sweep.wait_for(1, program)
            os.kill(raylet, signal.SIGKILL)
            sweep.wait_until_gone(sweep.list_running())
            raylet = somebody.add_node(NODE)
            sweep.wait_for(1, program)
    sweep.finish()
    os.kill(raylet, signal.SIGKILL)


def find_waiting(tag: str) -> int:
    """The worker that waits for job.sh, which opened the session; each `sleep` of its command is gone in a moment."""
    for pid in process.find_members([process.AttemptProcesses(0, 0, tag)]):
        with contextlib.suppress(ProcessLookupError):
            return find_reader(os.getsid(pid))
    raise AssertionError(f"no process of {tag}")
