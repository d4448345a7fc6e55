"""`assay run` on a Ray cluster when a node freezes and wakes up again."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contracts.executor import Run, Runs, begin, finish, members, start, until
from tests.finished_study import Bench
from tests.ray_cluster import RayCluster, find_marked, start_node, start_ray
from tests.ssh_hosts import has_namespaces

from assay.execute import process
from assay.farms import ray_bridge, ray_tasks
from assay.farms.ray_tasks import RayExecutor
from assay.record import run_directory
from assay.record.run_directory import History, load_history
from assay.values.run import Liveness, Stop
from assay.values.study import Farm

pytestmark = pytest.mark.services("ray")

STUDY = """
study: fit
command: 'echo x >> {run.dir}/ran; until [ -e {run.dir}/../go ]; do sleep 0.1; done; echo loss={x}'
params: {x: [1]}
metrics: {loss: 'loss=({number})'}
on: pool
farms: {pool: {kind: ray, address: 'ADDRESS', resources: {far: 1}, lost_after: 2s}}
"""
SOON = {
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    with start_ray(**SOON) as made:
        yield made


def signal_all(mark: str, number: signal.Signals) -> None:
    for pid in find_marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.skipif(not has_namespaces(), reason="a node needs a host name of its own")
def test_a_frozen_node_is_given_up_and_changes_nothing_when_it_wakes_up(cluster: RayCluster, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write("study.yml", STUDY.replace("ADDRESS", cluster.address))
    run = bench.root / "fit/x=1"
    with start_node(cluster, "r2", '{"far": 1}') as node:
        program = bench.start("run", "study.yml")
        until(lambda: (run / "ran").exists() or program.poll() is not None, "it runs")
        assert program.poll() is None, program.communicate()
        assert (run / "token.1").read_text().startswith("r2 ")
        signal_all(node, signal.SIGSTOP)
        cluster.add_node('{"num_cpus": 2, "resources": {"far": 1}}')
        until(lambda: (run / "token.2").exists() or program.poll() is not None, "it was started again elsewhere")
        assert program.poll() is None, program.communicate()
        (bench.root / "fit/go").touch()
        out, err = program.communicate(timeout=120)
        assert program.returncode == 0, out + err
        assert (out + err).count("the node r2 of the Ray cluster has lost its jobs, and does not answer") == 1
        before = load_all(bench, run)
        assert before[0].attempts[0].is_fenced
        signal_all(node, signal.SIGCONT)
        until((run / "end.1").exists, "the first copy has left")
        assert load_all(bench, run) == before
        again = bench.assay("run", "study.yml")
        assert again.returncode == 0, again.stderr
        assert load_all(bench, run) == before
        assert (run / "ran").read_text() == "x\nx\n"


@pytest.mark.skipif(not has_namespaces(), reason="a node needs a host name of its own")
def test_a_run_that_was_given_up_does_not_go_back_to_its_node(cluster: RayCluster, tmp_path: Path) -> None:
    """The node has joined again, and is idle; the other one is busy. Where there is no other, the run goes there."""
    executor = RayExecutor(Farm("pool", "ray", options={"address": cluster.address, "resources": {"far": 1}}))
    runs = Runs(tmp_path)
    with start_node(cluster, "r3", '{"far": 1}'), contextlib.closing(executor):
        busy = runs.make("until [ -e ../go ]; do sleep 0.1; done")
        handles = [start(executor, busy)]
        until(busy.path("token.1").exists, "the other node is busy")
        with start_node(cluster, "r2", '{"far": 1}'):
            given_up = make_given_up(runs, "r2")
            handles.append(start(executor, given_up, attempt=2))
            fresh = runs.make("true")
            finish(executor, [start(executor, fresh)])  # comes after it, and passes it
            busy.path("go").touch()
            finish(executor, handles)
            assert [run.text(f"token.{n}").split()[0] for run, n in ((fresh, 1), (given_up, 2))] == ["r2", "r3"]
        until(lambda: len(executor._connect().call("list_nodes")) == 2, "Ray knows that r2 has left")
        alone = make_given_up(runs, "r3")
        finish(executor, [start(executor, alone, attempt=2)])
        assert alone.markers() == {"train.2.exit.0"}


def make_given_up(runs: Runs, host: str) -> Run:
    """A run whose first attempt was on this host."""
    run = runs.make("true")
    assert run.publish(replace(process.build_handle(run.request(), "ray"), native_id="elsewhere:1"))
    run.path("token.1").write_text(f"{host} 1 1 boot 1\n")
    run_directory.write_stop(run.dir, 1, Stop("a test", f"{host} does not answer", "fence", 1.0))
    return run


@pytest.mark.skipif(not has_namespaces(), reason="a node needs a host name of its own")
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_dashboard_that_does_not_answer_is_named_and_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Frozen, it still takes connections. What runs on a node that only the cluster can ask about is given up."""
    monkeypatch.setattr(ray_tasks, "_LOOK_S", 2.0)
    monkeypatch.setattr(ray_bridge, "_CLOSE_S", 1.0)
    run = Runs(tmp_path).make("touch up; sleep 1000")
    with start_ray("dashboard") as cluster, start_node(cluster, "r2", '{"far": 1}'):
        options = {"address": cluster.dashboard, "resources": {"far": 1}, "lost_after": 2.0}
        with contextlib.closing(RayExecutor(Farm("pool", "ray", options=options))) as executor:
            handle = begin(executor, run)
            assert run.text("token.1").startswith("r2 ")
            dashboards = [pid for pid, line in find_marked(cluster.mark).items() if "dashboard/dashboard.py" in line]
            for pid in dashboards:
                os.kill(pid, number)
            assert executor.liveness(handle, run.dir) is not Liveness.GONE, "not at once"
            finish(executor, [handle])
            (said,) = executor.take_messages()
            assert f"the Ray cluster at {cluster.dashboard} does not answer" in said
            assert executor.explain_end(handle, run.dir) == (
                "fence",
                f"the Ray cluster at {cluster.dashboard} has not answered for 2.0s",
            )
            assert members(run), "the first copy may go on: its watcher ends it"


def test_a_head_that_does_not_answer_is_named_before_ray_gives_it_up(cluster: RayCluster, tmp_path: Path) -> None:
    """Its machine has lost its network: no connection is closed, and Ray waits for it for a minute."""
    run = Runs(tmp_path).make("touch up; sleep 1000")
    with contextlib.closing(RayExecutor(Farm("pool", "ray", options={"address": cluster.address}))) as executor:
        handle = begin(executor, run)
        heads = [pid for pid, line in find_marked(cluster.mark).items() if "gcs_server" in line or "ray::Tasks" in line]
        assert len(heads) == 2
        for pid in heads:
            os.kill(pid, signal.SIGSTOP)
        messages: list[str] = []
        until(lambda: executor.wait(0.1) or messages.extend(executor.take_messages()) or messages, "it is named")
        assert executor._bridge is not None, "Ray still waits"
        (message,) = messages
        assert message.startswith(f"the Ray cluster at {cluster.address} does not answer (timed out): ")
        for pid in heads:
            os.kill(pid, signal.SIGCONT)
        until(lambda: executor.wait(0.1) or executor._silent_since is None, "it is asked again")
        assert executor.liveness(handle, run.dir) is Liveness.ALIVE
        executor.cancel([(handle, run.dir)], 0.0)
        finish(executor, [handle])


def load_all(bench: Bench, run: Path) -> tuple[History, str, str]:
    return load_history(str(run)), (run / "job.log").read_text(), bench.assay("sum", "fit", "--csv").stdout
