"""Slurm on several nodes, each another host: ranks, lost nodes, preemption, and what the accounting remembers."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tests.contracts.executor import ExecutorContract, Opened, Run, Runs, finish, members, start, until
from tests.farms.test_slurm import WAITING, build, count_starts, find_task
from tests.slurm_cluster import Cluster, start_cluster

from assay.execute.base import Executor
from assay.farms.slurm import SlurmExecutor
from assay.farms.slurm_queue import build_exclusion
from assay.record import run_directory
from assay.values.run import JobHandle, Liveness, Stop

pytestmark = pytest.mark.services("slurm")


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with start_cluster(nodes=2) as cluster:
        yield cluster


@pytest.fixture
def executor(cluster: Cluster, opened: Opened) -> SlurmExecutor:
    return opened(build())


def load_host(run: Run, attempt: int = 1) -> str:
    return run.text(f"token.{attempt}").split()[0]


@pytest.mark.long
class TestContract(ExecutorContract):
    """All of it, with jobs whose processes a supervisor cannot ask its own kernel about."""

    @pytest.fixture
    def surroundings(self, cluster: Cluster) -> None:
        """The cluster is up."""

    def another(self) -> SlurmExecutor:
        return build()

    def test_liveness(self, executor: Executor, runs: Runs) -> None:
        """Its kernel cannot be asked: as long as Slurm says nothing else, it is taken for running."""
        run = runs.make("until [ -e go ]; do sleep 0.02; done")
        handle = start(executor, run)
        until(lambda: run.path("token.1").exists(), "it runs")
        assert executor.liveness(handle, run.dir) is Liveness.UNKNOWN
        run.path("code/go").touch()
        finish(executor, [handle])
        assert executor.liveness(handle, run.dir) is Liveness.GONE


# ---------------------------------------------------------------- one run on several nodes

RANKS = "RANK WORLD_SIZE NODE_RANK LOCAL_RANK MASTER_ADDR"


class TestRanks:
    @pytest.mark.parametrize("limit", [None, 100.0])
    def test_a_command_is_started_on_each_node(
        self, cluster: Cluster, runs: Runs, limit: float | None, opened: Opened
    ) -> None:
        executor = opened(build(nodes=2))
        words = " ".join(f"${name}" for name in RANKS.split())
        write = f'echo $(uname -n) {words} $MASTER_PORT > "new$RANK"; mv "new$RANK" "rank$RANK"'
        both = "until [ -e rank0 ] && [ -e rank1 ]; do sleep 0.1; done"  # a rank that fails ends the others
        run = runs.make(f"{write}; {both}; exit $((3 * RANK))", limits=(limit,))
        finish(executor, [start(executor, run)])
        first, second = (run.text(f"code/rank{rank}").split() for rank in (0, 1))
        assert first[:6] == ["n1", "0", "2", "0", "0", "n1"]
        assert second[:6] == ["n2", "1", "2", "1", "0", "n1"]
        assert first[6] == second[6]
        assert run.markers() == {"train.exit.3"}

    def test_several_tasks_on_a_node(self, cluster: Cluster, runs: Runs, opened: Opened) -> None:
        executor = opened(build(tasks_per_node=2, cpus=2, srun_flags=("--label", "--export=ALL,GIVEN=a b")))
        run = runs.make(
            'echo $(uname -n) $WORLD_SIZE $LOCAL_RANK $SLURM_CPUS_PER_TASK "$GIVEN" > "rank$RANK"; echo said'
        )
        finish(executor, [start(executor, run)])
        assert {tuple(run.text(f"code/rank{rank}").split()[1:]) for rank in (0, 1)} == {
            ("2", "0", "2", "a", "b"),
            ("2", "1", "2", "a", "b"),
        }
        assert sorted(run.text("train.log").splitlines()) == ["0: said", "1: said"]

    def test_torchrun_as_on_one_machine(self, cluster: Cluster, runs: Runs, opened: Opened) -> None:
        """Two process groups find each other. The test's nodes have no address of their own."""
        pytest.importorskip("torch")
        executor = opened(build(nodes=2))
        address = "export PET_RDZV_ENDPOINT=127.0.0.1:$MASTER_PORT PET_LOCAL_ADDR=127.0.0.1 GLOO_SOCKET_IFNAME=lo"
        run = runs.make(f"{address}; {sys.executable} -m torch.distributed.run --nproc-per-node=2 train.py")
        run.path("code/train.py").write_text(
            "import os, platform, torch, torch.distributed as group\n"
            "group.init_process_group('gloo')\n"
            "total = torch.tensor([1.0 + group.get_rank()])\ngroup.all_reduce(total)\n"
            "name = f'rank{group.get_rank()}'\n"
            "open(name, 'w').write(f'{platform.node()} {group.get_world_size()} {total.item():g}')\n"
            "group.barrier()\ngroup.destroy_process_group()\n"  # else gloo's threads may abort one that ends first
        )
        finish(executor, [start(executor, run)])
        assert run.markers() == {"train.exit.0"}, run.text("train.log")
        said = [run.text(f"code/rank{rank}").split() for rank in range(4)]
        assert sorted(node for node, _, _ in said) == ["n1", "n1", "n2", "n2"]
        assert {(size, total) for _, size, total in said} == {("4", "10")}

    @pytest.mark.parametrize("text", ["python3 train.py", "python3 train.py; exit $?", "bash train.sh"])
    def test_a_signal_before_the_limit_reaches_every_rank(
        self, cluster: Cluster, runs: Runs, text: str, opened: Opened
    ) -> None:
        executor = opened(build(nodes=2, signal="USR1@1m"))
        run = runs.make(text)
        run.path("code/train.sh").write_text("python3 train.py\nexit $?\n")
        run.path("code/train.py").write_text(
            "import os, pathlib, signal, sys, time\n"
            "save = lambda *_: (pathlib.Path('saved' + os.environ['RANK']).touch(), sys.exit(5))\n"
            "signal.signal(signal.SIGUSR1, save)\n"
            "pathlib.Path('up' + os.environ['RANK']).touch()\ntime.sleep(100)\n"
        )
        handle = start(executor, run)
        until(lambda: all(run.path(f"code/up{rank}").exists() for rank in (0, 1)), "both ranks run")
        cluster.run("scancel", "--batch", "--signal=USR1", find_task(executor, run))
        finish(executor, [handle])
        assert all(run.path(f"code/saved{rank}").exists() for rank in (0, 1))
        assert run.markers() == {"train.exit.5"}

    @pytest.mark.parametrize("signal", [None, "USR1@1m"])
    def test_the_code_of_the_rank_that_failed_first(
        self, cluster: Cluster, runs: Runs, signal: str | None, opened: Opened
    ) -> None:
        """srun ends the others, which would make it 143."""
        executor = opened(build(nodes=2, **({"signal": signal} if signal else {})))
        run = runs.make(
            '[ "$RANK" = 0 ] || { touch up; exec sleep 100; }; until [ -e up ]; do sleep 0.05; done; exit 6'
        )
        finish(executor, [start(executor, run)])
        assert run.markers() == {"train.exit.6"}
        assert not run.path(".rank.1").exists()

    def test_a_rank_that_saves_slowly_is_not_ended_by_a_faster_one(
        self, cluster: Cluster, runs: Runs, opened: Opened
    ) -> None:
        executor = opened(build(nodes=2, signal="USR1@1m"))
        run = runs.make("python3 train.py")
        run.path("code/train.py").write_text(
            "import os, pathlib, signal, sys, time\n"
            "rank = int(os.environ['RANK'])\n"
            "def save(*_):\n"
            "    while rank and not pathlib.Path('go').exists(): time.sleep(0.05)\n"
            "    pathlib.Path(f'saved{rank}').touch()\n"
            "    sys.exit(5)\n"
            "signal.signal(signal.SIGUSR1, save)\n"
            "pathlib.Path(f'up{rank}').touch()\ntime.sleep(100)\n"
        )
        handle = start(executor, run)
        until(lambda: all(run.path(f"code/up{rank}").exists() for rank in (0, 1)), "both ranks run")
        cluster.run("scancel", "--batch", "--signal=USR1", find_task(executor, run))
        until(lambda: run.path(".rank.1").exists(), "the first rank has saved and left")
        run.path("code/go").touch()
        finish(executor, [handle])
        assert run.path("code/saved1").exists()
        assert run.markers() == {"train.exit.5"}


# ---------------------------------------------------------------- taken back


def start_on(executor: SlurmExecutor, run: Run, name: str) -> JobHandle:
    handle = start(executor, run)
    until(lambda: (executor.wait(0.05), run.path("code/ran").exists())[1], "it runs")
    assert load_host(run) == name
    return handle


class TestTakenBack:
    def test_a_job_that_has_just_begun_is_not_taken_for_requeued(
        self, cluster: Cluster, runs: Runs, opened: Opened
    ) -> None:
        """The newest answer of squeue may be older than the token."""
        executor = opened(build(flags=("--begin=now+1hour",)))
        run = runs.make("true")
        handle = start(executor, run)
        task = find_task(executor, run)
        until(lambda: (executor.wait(0.05), executor._queue.state(task) == "PENDING")[1], "squeue says that it waits")
        run.path("token.1").write_text("n1 1 1 - 0\n")
        assert executor.liveness(handle, run.dir) is Liveness.UNKNOWN
        finish(executor, [handle])  # the next answer says so too
        cluster.run("scancel", task)


class TestLostNodes:
    def test_one_of_two_while_the_others_go_on(self, cluster: Cluster, runs: Runs) -> None:
        """What Slurm has requeued is given up, though it may still run; its own copy of it comes to nothing."""
        first, second = build(flags=("--nodelist=n1",)), build(flags=("--nodelist=n2",))
        made = [runs.make(WAITING) for _ in range(2)]
        handles = [
            start_on(executor, run, name)
            for executor, run, name in zip((first, second), made, ("n1", "n2"), strict=True)
        ]
        task = find_task(first, made[0])
        cluster.lose_node("n1")
        try:
            more = runs.make("true")
            finish(second, [start(second, more)])
            until(lambda: "Restarts=1" in cluster.run("scontrol", "show", "job", task), "Slurm has requeued it")
            finish(first, handles[:1])
            said = first.explain_end(handles[0], made[0].dir)
            assert said == ("fence", f"its node n1 does not answer Slurm, which has ended its job {task}")
            run_directory.write_stop(made[0].dir, 1, Stop("test", said[1], "fence"))
            first.end_fenced(handles[0], made[0].dir)
            first.cancel([(handles[0], made[0].dir)], 1.0)  # waits for nothing
            until(lambda: task not in cluster.run("squeue", "-h", "-r", "-o", "%i"), "Slurm does not start it again")
            until(lambda: members(made[0]) == set(), "the first copy has seen that it was given up")
            made[1].path("code/go").touch()
            finish(second, handles[1:])
        finally:
            cluster.find_node("n1")
        assert [run.markers() for run in made] == [set(), {"train.exit.7"}]
        assert [count_starts(run) for run in made] == [1, 1]
        first.close()
        second.close()

    def test_nodes_that_a_run_avoids(self, cluster: Cluster, runs: Runs) -> None:
        """Those of the farm too; where no node would be left, or Slurm knows none of that name, it avoids none."""
        assert build_exclusion(("--cpus-per-task=1",), ["n1"]) == ["--exclude=n1"]
        assert build_exclusion((), ["n1"]) == ["--exclude=n1"]
        assert build_exclusion(("-x", "n2"), ["n1"]) == []
        assert build_exclusion(("--exclude=n1",), ["n1"]) == ["--exclude=n1,n1"]
        assert build_exclusion(("--nodelist=n1",), ["n1"]) == []
        assert build_exclusion((), ["elsewhere"]) == []
