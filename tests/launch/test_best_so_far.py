"""The best run so far: which metric, which run, and how often the index is asked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.finished_study import Bench

from assay.follow.attempts import RetryPolicy
from assay.follow.collect import Collector
from assay.follow.entry import Entry, Event
from assay.follow.locations import StudyLocation
from assay.launch.live_view import BestSoFar, Goal, Leader, Watcher, choose_goal
from assay.observe.devices import Devices
from assay.record.index.sqlite import SqliteIndex
from assay.show.progress import BestRow, Progress, ProgressView
from assay.values.run import RunSpec, State
from assay.values.study import Check, Objective, Search, Study


class StubSupervisor:
    def __init__(self, observer: Collector) -> None:
        self.entries: list[Entry] = []
        self.observer = observer
        self.queries: list[list[str]] = []


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Any]:
    with SqliteIndex(tmp_path / "index.sqlite3") as index:
        found = StubSupervisor(Collector(index, StudyLocation(str(tmp_path), "s"), Devices()))
        load = index.load_summaries

        def count(studies: Sequence[str] | None = None, keys: Sequence[str] | None = None) -> Any:
            found.queries.append(list(keys or ()))
            return load(studies, keys)

        index.load_summaries = count  # type: ignore[method-assign]
        yield found


def end(supervisor: Any, name: str, state: State = State.DONE, **metrics: Sequence[float]) -> Entry:
    """A run that has ended with these series."""
    folder = f"{supervisor.observer._location.dir}/{name}"
    entry = Entry(RunSpec(name, name, {}, ()), folder, RetryPolicy(), state)
    columns = {metric: (None, values, None) for metric, values in metrics.items()}
    index = supervisor.observer._index
    index.add_columns(f"s/{name}", "log", index.load_cursor(f"s/{name}", "log"), columns, expected_offset=0)
    supervisor.entries.append(entry)
    return entry


def lead(best: BestSoFar, supervisor: Any) -> Leader:
    found = best.update(supervisor)
    assert found is not None
    return found


def test_the_best_value_counts_and_only_of_runs_that_are_done(supervisor: Any) -> None:
    best = BestSoFar()
    best.note(end(supervisor, "a", loss=[0.5, 0.2, 0.4]))
    best.note(end(supervisor, "b", loss=[0.3]))
    best.note(end(supervisor, "c", State.FAILED, loss=[0.1]))
    leader = lead(best, supervisor)
    assert (leader.run, leader.value, leader.is_new, leader.goal) == ("a", 0.2, True, Goal("loss", "min"))
    assert leader.render_value() == "loss 0.2 (min)"


def test_the_index_is_asked_only_when_runs_have_ended(supervisor: Any) -> None:
    best = BestSoFar()
    assert best.update(supervisor) is None
    best.note(end(supervisor, "a", loss=[0.5]))
    assert [lead(best, supervisor).is_new for _ in range(3)] == [True, False, False]
    best.note(end(supervisor, "b", loss=[0.6]))
    assert lead(best, supervisor)[::3] == ("a", False)
    assert supervisor.queries == [["s/a"], ["s/b"]]


def test_runs_that_were_done_before_count_but_are_no_news(supervisor: Any) -> None:
    best = BestSoFar()
    end(supervisor, "old", loss=[0.1])
    best.note(end(supervisor, "a", loss=[0.5]))
    assert lead(best, supervisor)[::3] == ("old", False)


def test_the_metric_is_that_of_the_goal_or_the_most_telling_of_the_first_run(supervisor: Any) -> None:
    first, second = BestSoFar(), BestSoFar(Goal("time", "min", "last"))
    entries = [
        end(supervisor, "none"),
        end(supervisor, "a", loss=[0.5], val_acc=[0.1], time=[5.0, 9.0]),
        end(supervisor, "b", loss=[0.4], val_acc=[0.3], time=[7.0]),
    ]
    for best in (first, second):
        for entry in entries:
            best.note(entry)
    assert [lead(best, supervisor)[:2] for best in (first, second)] == [("b", 0.3), ("b", 7.0)]


def test_what_is_not_finite_never_leads(supervisor: Any) -> None:
    best = BestSoFar(Goal("loss", "min", "last"))
    best.note(end(supervisor, "a", loss=[math.nan]))
    assert best.update(supervisor) is None


@pytest.mark.parametrize(
    ("check", "goal"),
    [
        (Check("loss"), Goal("loss", "min", "last")),
        (Check("speed_of_loss", min=5.0), Goal("speed_of_loss", "max", "last")),
        (Check("acc", at="max", max=1.0), Goal("acc", "min", "max")),
        (Check("acc", min=0.0, max=1.0), Goal("acc", "max", "last")),
    ],
)
def test_a_check_gives_the_goal(check: Check, goal: Goal) -> None:
    assert choose_goal(Study("s", "native", "", "", (), (), checks=(check,))) == goal
    assert choose_goal(Study("s", "native", "", "", (), ())) is None


def test_a_search_gives_the_goal_before_a_check() -> None:
    search = Search("tpe", (Objective("acc", "min"), Objective("time", "min")), 5, at="mean")
    study = Study("s", "native", "", "", (), (), checks=(Check("loss"),), search=search)
    assert choose_goal(study) == Goal("acc", "min", "mean")


def test_an_index_that_fails_ends_nothing(supervisor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.errors import InfrastructureError

    def fail(**_: object) -> None:
        raise InfrastructureError("locked")

    best = BestSoFar()
    best.note(end(supervisor, "a", loss=[0.5]))
    monkeypatch.setattr(supervisor.observer._index, "load_summaries", fail)
    assert best.update(supervisor) is None
    assert supervisor.observer.failure


class Shown(Progress):
    def __init__(self) -> None:
        self.views: list[ProgressView] = []

    def update(self, view: ProgressView) -> None:
        self.views.append(view)


def test_the_view_has_it(supervisor: Any) -> None:
    supervisor.running, supervisor.queue, supervisor.pool, supervisor.count_left = {}, [], None, lambda: 0
    supervisor.interrupted = supervisor.leave = supervisor.problem = None
    progress = Shown()
    watcher = Watcher(progress, "s")
    watcher.listen(Event("ended", end(supervisor, "a", loss=[0.5])))
    watcher.draw(supervisor)
    watcher.draw(supervisor)
    best = BestRow("a", "loss 0.5 (min)")
    assert [(view.best, view.is_new_best) for view in progress.views] == [(best, True), (best, False)]


STUDY = r"""
study: fit
command: echo "loss {lr}"
params: {lr: [0.3, 0.2, 0.4]}
metrics: {loss: 'loss ({number})'}
resources: {gpus: 0}
"""


def test_a_study_that_is_run(own_bench: Bench) -> None:
    result = own_bench.assay("run", own_bench.write("fit.yml", STUDY), "--plain", "-j", "1")
    lines = [line for line in result.stderr.splitlines() if line.startswith("best of this call")]
    assert lines[-1] == "best of this call: lr=0.2 loss 0.2 (min)"
    assert "best of" not in own_bench.run(STUDY, "--quiet", "--force").stderr


def test_the_best_of_a_rerun_is_not_called_that_of_the_study(own_bench: Bench) -> None:
    file = own_bench.write("fit.yml", STUDY)
    assert own_bench.assay("run", file, "--quiet").returncode == 0
    for words in (("rerun", "fit/lr=0.4"), ("run", file, "lr=0.4")):
        assert "best so far" not in own_bench.assay(*words, "--plain", "-j", "1").stderr
    assert "best of this call: lr=0.4 loss 0.4 (min)" in own_bench.assay("rerun", "fit/lr=0.4", "--plain").stderr
