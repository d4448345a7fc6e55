"""`stop:` at work: what is judged when, and with real runs what becomes of those that a rule ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from array import array
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.study_processes import StudyProcesses, until

from assay.errors import InfrastructureError
from assay.follow.attempts import RetryPolicy
from assay.follow.entry import Entry
from assay.follow.locations import StudyLocation
from assay.follow.opening import open_index
from assay.launch.supervise import LOOK_S
from assay.record.index.base import Cursor, RunRow
from assay.record.index.stored import Index
from assay.search.early_stop import EarlyStop
from assay.values.run import JobHandle, RunSpec, State
from assay.values.study import StopRule

ASHA = StopRule("asha", "loss", "min", first=1, factor=2, runs=2)


class Study:
    """A study in an index, without processes."""

    def __init__(self, root: Path, index: Index, *rules: StopRule) -> None:
        self.location = StudyLocation(str(root), "s")
        self.index = index
        self.rules = rules
        self.now = 0.0
        self.early_stop = self.open()

    def open(self) -> EarlyStop:
        return EarlyStop(self.rules, self.index, self.location, lambda: self.now)

    def record(self, name: str, *losses: float, noted: bool = False) -> None:
        """Further points of a run, read here (`noted`) or by another process."""
        key = f"s/{name}"
        if not self.index.load_runs(keys=[key]):
            self.index.put_runs([RunRow(key, "s", name, name, State.RUNNING, 1, {})])
        begin = self.index.load_cursor(key, "log").offset
        steps = array("d", range(begin + 1, begin + len(losses) + 1))
        columns = {"loss": (steps, array("d", losses), array("d", [0.0] * len(losses)))}
        assert self.index.add_columns(key, "log", Cursor(begin + len(losses)), columns, expected_offset=begin)
        if noted:
            self.early_stop.note(key, columns)

    def entry(self, name: str, *, supervisor: int | None = None, attempt: int = 1, since: int | None = None) -> Entry:
        owner = os.getpid() if supervisor is None else supervisor
        handle = JobHandle("local", "1", "host", 1, 1, "boot", None, attempt, 0.0, supervisor_pid=owner)
        path = os.path.join(self.location.dir, name)
        return Entry(RunSpec(name, name, {}, ()), path, RetryPolicy(), State.RUNNING, attempt, handle, since=since)

    def prune(self, *entries: Entry) -> dict[str, str]:
        return {os.path.basename(path): end.why for path, end in self.early_stop.prune(entries).items()}


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    with open_index(str(tmp_path)) as index, index.batch():
        yield Study(tmp_path, index, ASHA)


def test_each_rung_is_judged_once(study: Study) -> None:
    a, b = study.entry("a"), study.entry("b")
    study.record("a", 5.0, noted=True)
    assert study.prune(a, b) == {}
    study.record("b", 1.0, noted=True)
    assert study.prune(a, b) == {}  # a was the best when it came to rung 1
    study.record("b", 1.0, noted=True)
    study.record("a", 4.0, noted=True)
    assert study.prune(a, b) == {"a": "asha rung 2, 2nd of 2"}


def test_runs_of_earlier_calls_and_of_other_supervisors_count(study: Study) -> None:
    study.record("earlier", 1.0)
    a = study.entry("a")
    study.record("a", 2.0, noted=True)
    assert study.prune(a) == {"a": "asha rung 1, 2nd of 2"}
    c = study.entry("c")
    study.record("c", 0.5, noted=True)
    assert study.prune(c) == {}
    study.record("other", 0.1, 0.1)
    study.now += LOOK_S
    study.record("c", 0.5, noted=True)
    assert study.prune(c) == {"c": "asha rung 2, 2nd of 2"}


def test_points_that_another_reader_has_stored_are_found(study: Study) -> None:
    study.record("other", 1.0, 1.0)
    a = study.entry("a")
    study.record("a", 0.9, noted=True)
    assert study.prune(a) == {}
    study.record("a", 2.0)  # read by `assay sum`, so our own follower never sees it
    study.now += LOOK_S
    assert study.prune(a) == {}  # its best value counts
    study.record("a", 2.0, 2.0)
    study.record("other", 0.1, 0.1)
    study.now += LOOK_S
    assert study.prune(a) == {"a": "asha rung 4, 2nd of 2"}


def test_a_run_that_is_taken_over_is_judged_from_its_next_rung_on(study: Study) -> None:
    """A supervisor that was started again judges in the same way: what had passed is not ended by what has come since."""
    study.record("a", 5.0, 5.0)
    study.record("b", 1.0, 1.0)
    adopted = study.entry("a", supervisor=1)
    assert study.prune(adopted) == {}
    study.record("a", 5.0, noted=True)
    assert study.prune(adopted) == {}
    study.record("b", 1.0, 1.0)
    study.now += LOOK_S
    study.record("a", 5.0, noted=True)
    assert study.prune(adopted) == {"a": "asha rung 4, 2nd of 2"}
    study.early_stop = study.open()
    assert study.prune(adopted) == {}


def test_another_attempt_is_judged_by_its_own_points(study: Study) -> None:
    study.record("a", 0.1, 0.1, noted=True)
    assert study.prune(study.entry("a")) == {}
    study.record("b", 1.0)
    study.index.forget_points("s/a")
    study.record("a", 7.0, noted=True)
    study.now += LOOK_S
    assert study.prune(study.entry("a", attempt=2, since=1)) == {"a": "asha rung 1, 2nd of 2"}


def test_what_was_begun_by_hand_is_left_alone(study: Study) -> None:
    study.record("b", 1.0)
    by_hand = study.entry("a", supervisor=0)
    for _ in range(2):
        assert study.prune(by_hand) == {}
        study.record("a", 9.0, noted=True)


def test_only_what_has_changed_is_loaded(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(100):
        study.record(f"r{number}", 1.0, 1.0)
    entry = study.entry("a")
    study.record("a", 0.5, noted=True)
    study.prune(entry)
    loads = Mock(side_effect=study.index.load_series)
    monkeypatch.setattr(study.index, "load_series", loads)
    for _ in range(20):
        study.record("a", 0.5, noted=True)
        study.now += LOOK_S
        study.prune(entry)
    assert loads.call_count == 0
    study.record("r7", 1.0)
    study.now += LOOK_S
    study.prune(entry)
    assert [call.args[0] for call in loads.call_args_list] == ["s/r7"]


def test_an_index_that_fails_ends_no_run(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    study.record("b", 1.0)
    study.record("a", 9.0, noted=True)
    monkeypatch.setattr(study.index, "load_table", Mock(side_effect=InfrastructureError("disk full")))
    assert study.prune(study.entry("a")) == {}
    monkeypatch.undo()
    study.now += 61
    assert study.prune(study.entry("a")) == {"a": "asha rung 1, 2nd of 2"}


# ---------------------------------------------------------------- with real runs


# `hold` lets a run wait until the file `go` is there
TRAIN = """
for i in 1 2 3 4 5 6 7 8; do
  echo "step $i loss $1"
  [ $i != "$2" ] || { touch "$ASSAY_RUN_DIR/up"; while [ ! -e "$ASSAY_RUN_DIR/go" ]; do sleep 0.05; done; }
done
"""


def write_study(shop: StudyProcesses, stop: str, losses: str, hold: str = "0", more: str = "") -> None:
    shop.write("train.sh", TRAIN)
    shop.write(
        "study.yml",
        f"study: study\ncommand: bash train.sh {{x}} {hold}\nparams: {{x: {losses}}}\nresources: {{gpus: 0}}\n"
        f"metrics: {{step: 'step (\\d+)', loss: 'loss ({{number}})'}}\nstop: {stop}\n{more}",
    )


def test_a_grid_with_asha(shop: StudyProcesses) -> None:
    """The good ones hold at step 4 until they are let go; the bad one comes to its rung and is ended."""
    write_study(shop, "{rule: asha, metric: loss, at: {min: 2, factor: 2, max: 4, runs: 2}}", "[1, 2]", hold="4")
    program = shop.start("--plain", "-j", "2")
    until((shop.dir("x=2") / "outcome.1").exists, "it is ended")
    (shop.dir("x=1") / "go").touch()
    assert program.wait(60) == 0
    assert (shop.states("x=1"), shop.states("x=2")) == ([State.DONE], [State.PRUNED])
    outcome = shop.history("x=2").attempts[0].outcome
    assert outcome is not None
    assert outcome.reason == "asha rung 2, 2nd of 2"
    assert "pruned   x=2" in shop.words(program)
    assert shop.processes() == {}
    rows = {row["run"]: row for row in json.loads(shop.call("sum", "study", "--root", str(shop.root), "--json").out)}
    assert rows["x=2"]["state"] == "pruned"
    assert rows["x=2"]["reason"] == "asha rung 2, 2nd of 2"
    listed = shop.call("ls", "study", "--root", str(shop.root)).out
    assert "1 pruned" in listed
    assert "asha rung 2, 2nd of 2" in listed


@pytest.mark.parametrize(
    ("stop", "loss", "reason", "best"),
    [
        ("rule: bounds", "nan", "bounds: loss nan at step 1", 1),
        ("rule: bounds, target: 5", "4", "bounds: loss 4 has reached its target 5 at step 1", 0),
        ("rule: patience, patience: 3", "4", "patience: no better loss for 3 steps (best 4 at step 1)", 0),
    ],
)
def test_a_run_that_is_ended_for_its_own_points(
    shop: StudyProcesses, stop: str, loss: str, reason: str, best: int
) -> None:
    stop = f"{{metric: loss, {stop}}}"
    write_study(shop, stop, f"['{loss}']", hold="8", more="retries: 3\n")
    assert shop.run("-j", "1").code == 0
    (run,) = shop.run_dirs()
    (attempt,) = shop.history(run).attempts
    assert attempt.outcome is not None
    assert (attempt.outcome.state, attempt.outcome.reason) == (State.PRUNED, reason)
    assert shop.processes() == {}
    assert shop.call("best", "study", "--root", str(shop.root)).code == best  # whether its values are final
    # resumed by hand, it is not ended
    (shop.dir(run) / "go").touch()
    assert shop.call("rerun", f"study/{run}", "--root", str(shop.root)).code == 0
    assert shop.states(run) == [State.PRUNED, State.DONE]


def test_what_is_resumed_by_hand_is_not_ended_by_a_later_call(shop: StudyProcesses) -> None:
    write_study(shop, "{rule: bounds, metric: loss, max: 3}", "[4]", hold="8")
    assert shop.run("-j", "1").code == 0
    assert shop.states("x=4") == [State.PRUNED]
    (shop.dir("x=4") / "up").unlink(missing_ok=True)
    by_hand = subprocess.Popen(["bash", "job.sh"], cwd=shop.dir("x=4"), env=shop.env, stdin=subprocess.DEVNULL)
    until((shop.dir("x=4") / "up").exists, "it runs")
    program = shop.start("--plain", "-j", "1")
    until(lambda: "still running" in shop.words(program), "the supervisor has found it")
    until(lambda: "loss" in (shop.dir("x=4") / "run.2.log").read_text(), "it has recorded something")
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(1.5)
    (shop.dir("x=4") / "go").touch()
    assert (by_hand.wait(60), program.wait(60)) == (0, 0)
    assert shop.states("x=4") == [State.PRUNED, State.DONE]


@pytest.mark.services("kills")
def test_a_supervisor_that_dies_while_it_ends_a_run(shop: StudyProcesses) -> None:
    """TERM is ignored, so that the run outlives the supervisor that has decided to end it."""
    write_study(shop, "{rule: bounds, metric: loss, max: 3}", "[4]")
    shop.write("train.sh", 'trap "" TERM\necho "step 1 loss 4"\nwhile :; do sleep 0.1; done\n')
    program = shop.start("--plain", "-j", "1")
    until((shop.dir("x=4") / "stop.1").exists, "it has decided")
    shop.end(program, signal.SIGKILL)
    assert shop.processes()
    ended = shop.run("-j", "1")
    assert ended.code == 0, ended.err
    assert shop.states("x=4") == [State.PRUNED]
    assert shop.processes() == {}


def test_a_metric_that_never_appears_is_named_and_ends_nothing(shop: StudyProcesses) -> None:
    write_study(shop, "[{rule: bounds, metric: los, max: 3}, {rule: bounds, metric: loss, max: 30}]", "[4, 5]")
    ended = shop.run("-j", "2", "--plain").ended(0)
    assert shop.states("x=4") == shop.states("x=5") == [State.DONE]
    assert "stop: no run has reported los; the runs report: loss" in ended.err
    assert "did you mean 'loss'" in ended.err


def test_trials_of_a_search_are_ended_too(shop: StudyProcesses) -> None:
    pytest.importorskip("optuna")
    search = "search: {sampler: grid, metric: loss, direction: min, trials: 2}\n"
    write_study(shop, "{rule: bounds, metric: loss, max: 5}", "[1, 9]", more=search)
    shop.write("train.sh", 'echo "step 1 loss $1"\n[ $1 -lt 5 ] || sleep 1000\n')
    ended = shop.run("-j", "2")
    assert ended.code == 0, ended.err
    assert sorted(str(shop.states(name)[-1]) for name in shop.run_dirs()) == ["done", "pruned"]
    assert shop.run("-j", "2").code == 0
    assert sum(len(shop.states(name)) for name in shop.run_dirs()) == 2
