"""`assay run --on slurm` when nodes die or freeze, when Slurm starts jobs again, and when people cancel them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.executor import until
from tests.farms.test_slurm_studies import RUN, count, load_states
from tests.slurm_cluster import Cluster, start_cluster
from tests.training_with_checkpoints import load_steps, write_study

from assay.execute import process as attempts
from assay.record import run_directory

pytestmark = pytest.mark.services("slurm")

STUDY = """\
command: bash train.sh {lr} {run.dir}
params: {lr: [1, 2, 3, 4]}
metrics: {loss: 'loss ({number})'}
retries: 1
farms:
  pool: {kind: slurm, cpus: 4, lost_after: 1s}
  patient: {kind: slurm, cpus: 4}
  narrow: {kind: slurm, cpus: 8, throttle: 1}
"""
TRAIN = "echo x >> $2/ran; until [ -e $2/go ] || [ -e $2/../go ]; do sleep 0.1; done; echo loss $1\n"


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with start_cluster(nodes=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Cluster:
    shared.await_nodes()
    return shared


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "study.yml").write_text(STUDY)
    (tmp_path / "train.sh").write_text(TRAIN)
    return tmp_path


def find_on(folder: Path, node: str, attempt: int = 1) -> list[Path]:
    """The runs that have begun there."""
    tokens = sorted(folder.glob(f"r/study/*/token.{attempt}"))
    return [token.parent for token in tokens if token.read_text().startswith(f"{node} ")]


def find_processes(run: Path, attempt: int = 1) -> set[int]:
    tag = json.loads((run / f"lease.{attempt}").read_text())["tag"]
    return attempts.find_members([attempts.AttemptProcesses(0, 0, tag)])


def signal_all(runs: list[Path], number: signal.Signals) -> None:
    for pid in {pid for run in runs for pid in find_processes(run)}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def load_reasons(folder: Path, attempt: int = 1) -> list[str]:
    paths = sorted(folder.glob(f"r/study/*/outcome.{attempt}"))
    outcomes = [json.loads(path.read_text()) for path in paths]
    return [outcome["reason"] for outcome in outcomes if outcome["state"] == "lost"]


def load_all(cluster: Cluster, folder: Path) -> tuple[object, ...]:
    """Everything that Assay says of the study, and the files that it reads."""
    commands = (("sum", "study", "--csv"), ("ls", "study", "--json"), ("export", "json", "study", "-o", "-"))
    said = [cluster.assay(folder, *words, "--root", "r").stdout for words in commands]
    logs = [path.read_text() for path in sorted(folder.glob("r/study/*/job.log"))]
    return said, logs, [run_directory.load_history(str(run)) for run in sorted(folder.glob("r/study/lr=*"))]


# ---------------------------------------------------------------- nodes


def test_a_frozen_node_is_given_up_and_changes_nothing_when_it_wakes_up(cluster: Cluster, folder: Path) -> None:
    process = cluster.launch(folder, *RUN, "pool")
    until(lambda: count(folder, "ran") == 4, "all run")
    frozen = find_on(folder, "n1")
    assert len(frozen) == 2
    cluster.kill_node("n1")
    signal_all(frozen, signal.SIGSTOP)
    try:
        until(lambda: all((run / "lease.2").exists() for run in frozen), "both are started again")
        (folder / "r/study/go").touch()
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said
        assert said.count("the node n1 does not answer Slurm; what runs there (lr=") == 1
        assert find_on(folder, "n2", 2) == frozen, "elsewhere, and not on n1"
        assert [run_directory.load_history(str(run)).attempts[0].is_fenced for run in frozen] == [True, True]
        assert ["its node n1 has not answered Slurm for 1.0s" in reason for reason in load_reasons(folder)] == [
            True
        ] * 2
        before = load_all(cluster, folder)
        signal_all(frozen, signal.SIGCONT)
        until(lambda: not any(map(find_processes, frozen)), "they were ended, or came to an end")
        until(lambda: all((run / "end.1").exists() for run in frozen), "they have left")
        assert load_all(cluster, folder) == before
        again = cluster.assay(folder, *RUN, "pool")
        assert again.returncode == 0, again.stderr
        assert load_all(cluster, folder) == before
        assert count(folder, "lease.3") == 0
    finally:
        signal_all(frozen, signal.SIGKILL)
        cluster.find_node("n1")


def test_a_dead_node_whose_jobs_slurm_has_ended(cluster: Cluster, folder: Path) -> None:
    """Before `lost_after`: Slurm wants to start them again itself, and the supervisor is faster or follows."""
    process = cluster.launch(folder, *RUN, "patient")
    until(lambda: count(folder, "ran") == 4, "all run")
    dead = find_on(folder, "n1")
    signal_all(dead, signal.SIGKILL)
    cluster.lose_node("n1")
    try:
        (folder / "r/study/go").touch()
        said, _ = process.communicate(timeout=120)
    finally:
        cluster.find_node("n1")
    assert process.returncode == 0, said
    assert {state for state, _ in load_states(cluster, folder).values()} == {"done"}
    assert [len((run / "ran").read_text().split()) for run in dead] == [2, 2]
    assert find_on(folder, "n2", 2) == dead
    assert not cluster.run("squeue", "--noheader", "--states=PD,R").strip(), "no copy waits"


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_run_goes_on_from_its_checkpoint_on_another_node(cluster: Cluster, tmp_path: Path, is_watched: bool) -> None:
    """The copy that Slurm starts again leaves: a supervisor, the next one at the latest, chooses the checkpoint."""
    run = write_study(tmp_path, "--hold 3 --until 5", "farms: {pool: {kind: slurm, cpus: 4}}")
    log = run / "run.log"
    process = cluster.launch(tmp_path, "run", "s.yml", "--on", "pool")
    until(lambda: log.exists() and "holds" in log.read_text(), "it has computed three steps")
    if not is_watched:
        process.kill()
        process.communicate()
    node = (run / "token.1").read_text().split()[0]
    signal_all([run], signal.SIGKILL)
    cluster.lose_node(node)
    try:
        if not is_watched:
            until(lambda: not cluster.run("squeue", "-h"), "Slurm's copy has left")
            assert load_steps(run) == [1, 2, 3]
            process = cluster.launch(tmp_path, "run", "s.yml", "--on", "pool")
        said, _ = process.communicate(timeout=120)
    finally:
        cluster.find_node(node)
    assert process.returncode == 0, said
    assert "attempt 2, continues from step 3" in said
    assert load_steps(run) == [1, 2, 3, 4, 5]
    assert (run / "token.2").read_text().split()[0] != node


def test_what_slurm_starts_again_goes_on_without_a_supervisor(cluster: Cluster, folder: Path) -> None:
    process = cluster.launch(folder, *RUN, "patient")
    until(lambda: count(folder, "ran") == 4, "all run")
    process.kill()
    process.communicate()
    lost = find_on(folder, "n1")
    for run in find_on(folder, "n2"):
        (run / "go").touch()  # they leave room for the others
    signal_all(lost, signal.SIGSTOP)  # they live on, out of Slurm's reach
    cluster.lose_node("n1")
    try:
        until(lambda: all((run / "token.2").exists() for run in lost), "the copies have begun, as second attempts")
        assert find_on(folder, "n2", 2) == lost
        assert [load_states(cluster, folder)[run.name][0] for run in lost] == ["running"] * 2
        signal_all(lost, signal.SIGCONT)
        until(lambda: all((run / "end.1").exists() for run in lost), "the first ones have left")
        (folder / "r/study/go").touch()
        again = cluster.assay(folder, *RUN, "patient")
    finally:
        signal_all(lost, signal.SIGKILL)
        cluster.find_node("n1")
    assert again.returncode == 0, again.stderr
    assert {state for state, _ in load_states(cluster, folder).values()} == {"done"}
    histories = [run_directory.load_history(str(run)) for run in lost]
    assert [[str(each.outcome.state) for each in history.attempts if each.outcome] for history in histories] == [
        ["lost", "done"]
    ] * 2
    assert [len((run / "ran").read_text().split()) for run in lost] == [2, 2]


def test_nodes_that_are_drained_lose_nothing_and_what_waits_for_them_is_named(cluster: Cluster, folder: Path) -> None:
    process = cluster.launch(folder, *RUN, "narrow")
    until(lambda: count(folder, "ran") == 1, "one runs")
    cluster.run("scontrol", "update", "nodename=ALL", "state=drain", "reason=test")
    try:
        (folder / "r/study/go").touch()
        until(lambda: count(folder, "outcome.1") == 1, "what ran came to its end")
        until(lambda: any("waits: " in log.read_text() for log in folder.glob("r/study/*/submit.log.1")), "it is noted")
    finally:
        cluster.run("scontrol", "update", "nodename=ALL", "state=resume")
    said, _ = process.communicate(timeout=120)
    assert (process.returncode, "Slurm does not start the job" in said) == (0, True), said
    assert {path.read_text() for path in folder.glob("r/study/*/ran")} == {"x\n"}
    assert (count(folder, "ran"), count(folder, "lease.2")) == (4, 0)


# ---------------------------------------------------------------- cancelled by a person


@pytest.mark.parametrize("whom", ["one that runs", "one that waits", "all that wait", "the whole array"])
def test_what_a_person_cancels_is_stopped(cluster: Cluster, folder: Path, whom: str) -> None:
    """Of four tasks one runs at a time; the others go on, and nothing that was cancelled is started again."""
    process = cluster.launch(folder, *RUN, "narrow")
    until(lambda: count(folder, "ran") == 1, "one runs")
    number = cluster.run("squeue", "--noheader", "--format=%F").split()[0]
    running = int(next(folder.glob("r/study/*/ran")).parent.name.removeprefix("lr=")) - 1
    waiting = [index for index in range(4) if index != running]
    chosen = {
        "one that runs": [running],
        "one that waits": waiting[:1],
        "all that wait": waiting,
        "the whole array": [running, *waiting],
    }[whom]
    tasks = [number] if len(chosen) == 4 else [f"{number}_{index}" for index in chosen]
    cluster.run("scancel", *tasks)
    until(lambda: count(folder, "outcome.1") >= len(chosen), "it is noted")
    (folder / "r/study/go").touch()
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 1, said
    states = load_states(cluster, folder)
    stopped = {
        name for name, (state, reason) in states.items() if state == "stopped" and "cancelled in Slurm" in reason
    }
    assert stopped == {f"lr={index + 1}" for index in chosen}
    assert {state for name, (state, _) in states.items() if name not in stopped} <= {"done"}
    again = cluster.assay(folder, *RUN, "narrow")
    assert again.returncode == 1, again.stderr
    assert load_states(cluster, folder) == states, "a person's cancel is final"
    assert {path.read_text() for path in folder.glob("r/study/*/ran")} == {"x\n"}


def test_a_retry_that_is_cancelled_while_it_waits_is_stopped(cluster: Cluster, folder: Path) -> None:
    """What its first attempt left in job.log says nothing about the second."""
    (folder / "study.yml").write_text(STUDY.replace("[1, 2, 3, 4]", "[1, 2]"))
    (folder / "train.sh").write_text("echo x >> $2/ran; [ $1 = 2 ] && exit 3; until [ -e $2/go ]; do sleep 0.1; done\n")
    process = cluster.launch(folder, *RUN, "narrow")
    blocker = ("--exclusive", "--nodes=2", "--output=/dev/null", "--nice=0", "--wrap=sleep 100")
    until(lambda: count(folder, "ran") == 1, "the first runs")
    block = cluster.run("sbatch", "--parsable", *blocker).strip()
    (folder / "r/study/lr=1/go").touch()
    until((folder / "r/study/lr=2/submit.log.2").exists, "the retry was submitted")
    job = (folder / "r/study/lr=2/submit.log.2").read_text().split()[0]
    log = folder / "r/study/.assay/slurm" / f"{job}.log"
    until(lambda: log.exists() and log.read_text().strip().isdigit(), "Slurm has it")
    cluster.run("scancel", log.read_text().strip())
    said, _ = process.communicate(timeout=120)
    cluster.run("scancel", block)
    assert process.returncode == 1, said
    assert load_states(cluster, folder)["lr=2"][0] == "stopped"
    assert (folder / "r/study/lr=2/ran").read_text() == "x\n"


def test_what_a_person_cancels_on_a_node_that_does_not_answer_is_stopped(cluster: Cluster, folder: Path) -> None:
    """Slurm ends it when it gives up the node; `lost_after` is over by then."""
    process = cluster.launch(folder, *RUN, "pool")
    until(lambda: count(folder, "ran") == 4, "all run")
    chosen = find_on(folder, "n1")
    number = cluster.run("squeue", "--noheader", "--format=%F").split()[0]
    cluster.kill_node("n1")
    cluster.run("scancel", *[f"{number}_{int(run.name.removeprefix('lr=')) - 1}" for run in chosen])
    try:
        until(lambda: any(state.endswith("*") for state in cluster.load_states()), "the node does not answer")
        cluster.run("scontrol", "update", "nodename=n1", "state=down", "reason=test")
        until(lambda: all((run / "stop.1").exists() for run in chosen), "they are stopped")
        (folder / "r/study/go").touch()
        said, _ = process.communicate(timeout=120)
    finally:
        cluster.find_node("n1")
    assert process.returncode == 1, said
    states = load_states(cluster, folder)
    assert {name for name, (state, _) in states.items() if state == "stopped"} == {run.name for run in chosen}
    assert count(folder, "lease.2") == 0
