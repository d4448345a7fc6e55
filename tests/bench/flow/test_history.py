"""Histories: steps found, placed between commits, put down to code or environment, and respected once spoken about."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.bench_samples import execution, history

from assay.bench.flow import history as histories
from assay.bench.flow.archive import choose_methods
from assay.bench.flow.history import HistoryOptions, build_history, load_histories
from assay.bench.records import Triage, add_triage, load_triage
from assay.bench.values.comparison import MetricHistory
from assay.bench.values.execution import COMPARED, NOT_OBSERVED, BenchExecution, BenchReport, BenchResult
from assay.errors import NotFoundError, UsageError
from assay.show.console import CollectingConsole
from assay.values.environment import GitState
from assay.values.verdict import Finding, VerdictKind

METHOD = "m.C.f"


def noise(level: float, count: int, seed: int = 0) -> list[float]:
    chance = random.Random(seed)
    return [level * (1 + chance.gauss(0, 0.005)) for _ in range(count)]


def judge(executions: list[BenchExecution], *said: Triage, metric: str = "wall_time", **options: Any) -> MetricHistory:
    return build_history(METHOD, metric, executions, HistoryOptions(**options), said)


STEP = [*noise(10, 30, 1), *noise(11, 30, 2)]


def test_a_step_is_found_with_size_and_commits() -> None:
    found = judge(history(STEP))
    (change,) = found.changes
    assert abs(change.step.at - 30) <= 1
    assert change.step.effect == pytest.approx(0.1, abs=0.02)
    low, high = change.step.interval  # type: ignore[misc]
    assert low < change.step.effect < high
    assert high - low < 0.03
    assert change.commits == tuple(f"{n:x}".ljust(40, "0") for n in (change.step.at - 1, change.step.at))
    assert change.cause == "code"
    assert change.is_worse
    assert found.verdict.kind is VerdictKind.FAIL
    assert "code: " in found.verdict.findings[0].message


def test_better_is_no_alarm_and_the_direction_can_be_given() -> None:
    down = history(STEP[::-1])
    assert judge(down).verdict.kind is VerdictKind.PASS
    assert judge(down, direction="max").verdict.kind is VerdictKind.FAIL
    rates = history(STEP[::-1], metric="images_per_second")
    assert judge(rates, metric="images_per_second").verdict.kind is VerdictKind.FAIL


def test_a_level_that_came_back_is_no_alarm() -> None:
    found = judge(history([*noise(10, 30, 1), *noise(12, 20, 2), *noise(10, 30, 3)]))
    assert len(found.changes) == 2
    assert found.verdict.kind is VerdictKind.PASS
    assert "has returned" in found.verdict.findings[0].message


def test_old_and_small_changes_can_be_left_alone() -> None:
    assert judge(history(STEP), recent=10).verdict.kind is VerdictKind.PASS
    assert judge(history(STEP), recent=40).verdict.kind is VerdictKind.FAIL
    assert judge(history(STEP), min_effect=0.2).changes == ()


@pytest.mark.parametrize("values", [[3.0] * 30, [0.5] * 10, noise(5, 40)])
def test_nothing_changed(values: list[float]) -> None:
    found = judge(history(values))
    assert found.changes == ()
    assert found.verdict.kind is VerdictKind.PASS


@pytest.mark.parametrize("count", [0, 1])
def test_one_point_is_no_history(count: int) -> None:
    with pytest.raises(UsageError, match=f"{count} execution.*too few for a history"):
        judge(history([1.0] * count))


def test_failed_and_contaminated_executions_are_left_out_and_counted() -> None:
    executions = history(noise(10, 20))
    executions[3] = replace(executions[3], contaminated=("load",))
    executions[4] = replace(executions[4], result=replace(executions[4].result, has_exception=True))
    executions[5] = replace(executions[5], contaminated=("load",), refused=True)
    found = judge(executions)
    assert len(found.series[0].points) == 17
    assert found.left_out == {"contaminated": 1, "failed": 1, "refused as contaminated": 1}
    assert len(judge(executions, everything=True).series[0].points) == 18


def test_a_figure_that_lacks_what_it_had_to_report_is_none() -> None:
    executions = history(noise(10, 20))
    silent = Finding(VerdictKind.ERROR, METHOD, "speed was not found in its output")
    executions[3] = replace(executions[3], result=replace(executions[3].result, succeeded=False, findings=(silent,)))
    assert judge(executions).left_out == {"failed": 1}
    executions[19] = replace(executions[19], result=executions[3].result)
    assert judge(executions).verdict.kind is VerdictKind.ERROR


def test_a_newest_execution_that_breaks_a_bound_has_failed_and_is_a_figure() -> None:
    executions = history(noise(10, 20))
    low = Finding(VerdictKind.FAIL, METHOD, "accuracy is 0.8, below its minimum")
    executions[-1] = replace(executions[-1], result=replace(executions[-1].result, succeeded=False, findings=(low,)))
    found = judge(executions)
    assert found.verdict.kind is VerdictKind.ERROR
    assert "accuracy is 0.8" in found.broken
    assert (found.left_out, len(found.series[0].points)) == ({}, 20)


def stop(one: BenchExecution, wall_time: float | None = None) -> BenchExecution:
    """Ended by Ctrl-C; a command has a duration all the same."""
    ended = Finding(VerdictKind.ERROR, METHOD, "SIGINT to the supervisor")
    value = {} if wall_time is None else {"wall_time": wall_time}
    result = BenchResult(METHOD, False, has_exception=True, findings=(ended,), **value)
    return replace(one, state="stopped", result=result)


@pytest.mark.parametrize("wall_time", [None, 0.1])
def test_an_interrupted_execution_has_not_failed(wall_time: float | None) -> None:
    executions = [*history(noise(10, 20)), stop(execution(20, 0.0), wall_time)]
    found = judge(executions)
    assert (found.verdict.kind, found.broken) == (VerdictKind.PASS, "")
    assert found.left_out == {"interrupted": 1}
    assert len(found.series[0].points) == 20
    assert judge(executions, everything=True).left_out == {"interrupted": 1}
    crashed = [*executions[:-1], replace(executions[-1], state="failed")]
    assert judge(crashed).verdict.kind is VerdictKind.ERROR


def test_a_failure_is_not_forgotten_because_the_next_was_ended() -> None:
    executions = [*history(noise(10, 20)), replace(stop(execution(20, 0.0)), state="failed"), stop(execution(21, 0.0))]
    assert "e0020" in judge(executions).broken


def test_of_another_label_or_a_comparison_nothing_is_reported() -> None:
    executions = history(noise(10, 20), label="nightly")
    others = [stop(execution(20, 0.0, label="x")), stop(execution(21, 0.0, label="nightly", extra=COMPARED))]
    found = judge([*executions, *others], label="nightly")
    assert (found.left_out, found.verdict.kind) == ({}, VerdictKind.PASS)


@pytest.mark.parametrize("fields", [{"profiles": ("profile/trace.json",)}, {"extra": {"profile": {"windows": "0:"}}}])
def test_profiled_executions_are_left_out_unless_all_are_wanted(fields: dict[str, Any]) -> None:
    slow = [execution(20 + n, value, **fields) for n, value in enumerate(noise(90, 10, 2))]
    executions = [*history(noise(10, 20)), *slow]
    found = judge(executions)
    assert (found.left_out, found.verdict.kind) == ({"profiled": 10}, VerdictKind.PASS)
    everything = judge(executions, everything=True)
    assert (everything.left_out, everything.verdict.kind) == ({}, VerdictKind.FAIL)


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"profiles": ("trace",)}, "include profiled ones: --all"),
        ({"contaminated": ("load",), "refused": True}, "run it again: `assay bench run m.C.f --trials 6`"),
    ],
)
def test_what_helps_is_advised(fields: dict[str, Any], hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        judge(history(noise(10, 6), **fields))
    assert caught.value.hint == hint
    with pytest.raises(UsageError) as caught:
        judge(history(noise(10, 1), **fields))
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("run it again: `assay bench run m.C.f --trials 6`"), "all of them are too few"
    assert ("when the machine is quiet" in caught.value.hint) == ("--all" in hint)


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> list[BenchExecution]:
    """Of three benchmarks all executions were profiled."""
    slow = history(noise(10, 6), profiles=("trace",))
    found = [replace(each, method=f"m.C.{name}") for name in "fgh" for each in slow]
    monkeypatch.setattr(histories, "load_executions", lambda *_: found)
    return found


def test_none_of_several_has_a_history(three: list[BenchExecution]) -> None:
    console = CollectingConsole()
    warnings = console.lines
    with pytest.raises(UsageError) as caught:
        load_histories("wall_time", None, HistoryOptions(), console)
    assert warnings == [], "the same thing is not said in two ways"
    first, *lines = caught.value.message.splitlines()
    assert first == "none of 3 benchmarks has a history of wall_time"
    assert [line.split()[0] for line in lines] == ["m.C.f", "m.C.g", "m.C.h"]
    assert caught.value.hint == "include profiled ones: --all"


def test_those_without_a_history_are_warnings_beside_the_others(three: list[BenchExecution]) -> None:
    three[:6] = [replace(each, profiles=()) for each in three[:6]]
    console = CollectingConsole()
    warnings = console.lines
    assert [each.method for each in load_histories("wall_time", None, HistoryOptions(), console)] == ["m.C.f"]
    assert [text.split()[0] for text in warnings] == ["m.C.g", "m.C.h"]
    assert all(text.endswith("6 left out: profiled (include profiled ones: --all)") for text in warnings)


def test_one_that_has_only_ever_failed_is_not_passed_over(three: list[BenchExecution]) -> None:
    three[:6] = [replace(each, profiles=()) for each in three[:6]]
    three[6:] = [replace(stop(each), method=each.method) for each in three[6:]]  # g and h were interrupted
    broken = Finding(VerdictKind.ERROR, "m.C.h", "ValueError: no")
    three[-1] = replace(three[-1], state="failed", result=BenchResult("m.C.h", False, findings=(broken,)))
    console = CollectingConsole()
    warnings = console.lines
    load_histories("wall_time", None, HistoryOptions(), console)
    assert warnings == ["m.C.h has never reported anything: ValueError: no"]


def test_of_benchmarks_without_the_label_nothing_is_reported(three: list[BenchExecution]) -> None:
    three[:6] = [replace(each, profiles=(), label="before") for each in three[:6]]
    console = CollectingConsole()
    warnings = console.lines
    found = load_histories("wall_time", None, HistoryOptions(label="before"), console)
    assert ([each.method for each in found], warnings) == (["m.C.f"], [])
    with pytest.raises(NotFoundError, match="befor"):
        load_histories("wall_time", None, HistoryOptions(label="befor"), console)


# ---------------------------------------------------------------- a busy machine

BUSY = ("others used 90% of the CPUs during the run",)


def measured(values: Sequence[float], **fields: Any) -> list[BenchExecution]:
    """Executions with CPU times, and wall times twice as long."""
    found = history(values, **fields)
    return [
        replace(e, result=replace(e.result, wall_time=2 * v, cpu_time=v)) for e, v in zip(found, values, strict=True)
    ]


def test_load_leaves_cpu_time_in_the_history() -> None:
    executions = measured([*noise(10, 15), *noise(13, 15, 2)], contaminated=BUSY)
    found = judge(executions, metric="cpu_time")
    assert (found.verdict.kind, found.left_out, found.aside) == (VerdictKind.FAIL, {}, ())
    assert found.changes[0].step.at == 15


def test_what_was_disturbed_is_kept_beside_what_counts() -> None:
    executions = measured(noise(10, 12), contaminated=BUSY)
    executions[:8] = [replace(each, contaminated=()) for each in executions[:8]]
    found = judge(executions)
    assert [len(series.points) for series in (*found.series, *found.aside)] == [8, 4]
    assert found.left_out == {"contaminated": 4}
    assert found.instead == "assay bench history cpu_time m.C.f"
    assert judge(executions, everything=True).aside == ()
    assert judge(executions, root="my runs").instead == "assay bench history cpu_time m.C.f --root 'my runs'"


def test_where_all_was_disturbed_it_is_inconclusive_and_names_what_counts() -> None:
    found = judge(measured(noise(10, 12), contaminated=BUSY))
    assert (found.series, found.verdict.kind) == ((), VerdictKind.INCONCLUSIVE)
    assert (
        "0 comparable executions are too few; at least 6 are needed (12 were disturbed)"
        in found.verdict.findings[0].message
    )
    assert found.instead == "assay bench history cpu_time m.C.f"
    assert judge(history(noise(10, 12), contaminated=BUSY)).instead == "", "there is no CPU time"
    assert judge(measured(noise(10, 12), contaminated=(NOT_OBSERVED,))).instead == ""


@pytest.mark.parametrize(
    "reason", ["other processes were on the GPU: 7", "the GPU was throttled: hw_thermal", NOT_OBSERVED]
)
def test_what_is_not_load_disturbs_cpu_time_too(reason: str) -> None:
    """A GPU is waited for by asking it again and again."""
    assert judge(measured(noise(10, 12), contaminated=(reason,)), metric="cpu_time").series == ()


def loaded(each: BenchExecution, load: float) -> BenchExecution:
    return replace(each, machine=replace(each.machine, foreign_cpu=load))


@pytest.mark.parametrize(
    ("loads", "after", "kind"),
    [
        ((0.9, 0.9), 13.0, VerdictKind.FAIL),
        ((0.1, 0.9), 13.0, VerdictKind.INCONCLUSIVE),
        ((0.1, 0.9), 40.0, VerdictKind.FAIL),  # more than load makes of it
        ((0.9, 0.1), 13.0, VerdictKind.FAIL),  # the load became less
        ((0.9, 0.1), 4.0, VerdictKind.CHANGED),  # an improvement that the load is too small for
        ((0.9, 0.1), 6.0, VerdictKind.PASS),
        ((None, 0.9), 13.0, VerdictKind.FAIL),
    ],
)
def test_another_load_may_be_the_reason(loads: tuple[float, float], after: float, kind: VerdictKind) -> None:
    executions = measured([*noise(10, 15), *noise(after, 15, 2)])
    executions = [loaded(each, loads[number >= 15]) for number, each in enumerate(executions)]
    found = judge(executions, metric="cpu_time")
    assert found.verdict.kind is kind
    assert (found.changes[0].cause == "load") == (kind in (VerdictKind.INCONCLUSIVE, VerdictKind.PASS))
    if kind is VerdictKind.INCONCLUSIVE:
        text = "load: others used 10% of the CPUs before and 90% after, which may be all of it"
        assert text in found.verdict.findings[0].message


def test_load_is_no_reason_for_what_it_does_not_change() -> None:
    executions = history([*noise(10, 15), *noise(13, 15, 2)], metric="loss")
    executions = [loaded(each, 0.1 + 0.8 * (number >= 15)) for number, each in enumerate(executions)]
    assert judge(executions, metric="loss").verdict.kind is VerdictKind.FAIL


# ---------------------------------------------------------------- environment or code?


def moved(same_commit: bool) -> list[BenchExecution]:
    old = history(noise(10, 20, 1), setup={"cudnn": "8.9.2", "cpu_model": "one"})
    new = [
        execution(20 + n, value, setup={"cudnn": "9.1.0", "cpu_model": "one"})
        for n, value in enumerate(noise(11, 20, 2))
    ]
    if same_commit:
        old, new = ([replace(e, commit="a" * 40) for e in side] for side in (old, new))
    return [*old, *new]


def test_the_same_commit_in_another_environment_is_the_environment() -> None:
    found = judge(moved(same_commit=True))
    assert len(found.series) == 2
    (change,) = found.changes
    assert change.cause == "environment"
    assert change.differences == ("cudnn 8.9.2 → 9.1.0",)
    assert found.verdict.kind is VerdictKind.INCONCLUSIVE
    both = judge(moved(same_commit=False))
    assert both.changes[0].cause == "either"
    assert "environment or code" in both.verdict.findings[0].message


def test_a_label_is_a_series_of_its_own() -> None:
    executions = [*history(noise(10, 10), label="a"), *history(noise(20, 10), label="b")]
    assert [series.label for series in judge(executions).series] == ["a", "b"]
    assert [series.label for series in judge(executions, label="b").series] == ["b"]


# ---------------------------------------------------------------- triage


def say(judgement: str, executions: list[BenchExecution], note: str = "") -> Triage:
    (change,) = judge(executions).changes
    return Triage(METHOD, "wall_time", change.execution_id, change.until, judgement, note)  # type: ignore[arg-type]


@pytest.mark.parametrize("judgement", ["ack", "wontfix"])
def test_a_word_silences_the_alarm_is_shown_and_can_be_taken_back(judgement: str) -> None:
    executions = history(STEP)
    word = say(judgement, executions, "known")
    found = judge(executions, word)
    assert found.verdict.kind is VerdictKind.PASS
    assert f"{judgement}: known" in found.verdict.findings[0].message
    assert judge(executions, word, replace(word, judgement="open")).verdict.kind is VerdictKind.FAIL


def test_a_word_about_another_change_silences_nothing() -> None:
    executions = history(STEP)
    other = replace(say("ack", executions), execution_id="e0010")
    assert judge(executions, other).verdict.kind is VerdictKind.FAIL
    elsewhere = replace(say("ack", executions), metric="throughput")
    assert judge(executions, elsewhere).verdict.kind is VerdictKind.FAIL


def test_invalid_executions_are_left_out_and_new_ones_count() -> None:
    executions = history(STEP)
    word = say("invalid", executions)
    found = judge(executions, word)
    assert found.changes == ()
    assert found.left_out["declared invalid"] >= 29
    later = [*executions, *(execution(60 + n, value) for n, value in enumerate(noise(12, 30, 4)))]
    assert judge(later, word).verdict.kind is VerdictKind.FAIL


def test_words_are_kept_in_order_and_bad_lines_cost_nothing(tmp_path: Path) -> None:
    add_triage(str(tmp_path), Triage("m", "x", "e1", "e2", "ack", "one"))
    with (tmp_path / ".assay" / "triage.jsonl").open("a") as file:
        file.write("not json\n[1]\n")
    add_triage(str(tmp_path), Triage("m", "x", "e1", "e2", "open"))
    assert [word.judgement for word in load_triage(str(tmp_path))] == ["ack", "open"]
    assert load_triage(str(tmp_path / "nowhere")) == []


# ---------------------------------------------------------------- names


def test_a_method_goes_by_its_end() -> None:
    known = ["a.C.run", "b.D.run", "b.D.stop"]
    assert choose_methods("stop", known) == ["b.D.stop"]
    assert choose_methods("C.run", known) == ["a.C.run"]
    with pytest.raises(UsageError, match="matches 2"):
        choose_methods("run", known)
    with pytest.raises(NotFoundError, match="stpo"):
        choose_methods("stpo", known)


def test_names_of_other_tools_go_by_their_ends_too() -> None:
    known = [
        "tests/test_x.py::test_sort",
        "tests/test_x.py::test_fold[a.b-3]",
        "b.T.time_x(10)",
        "b.T.time_x(20)",
        "BM/8",
    ]
    assert choose_methods("test_sort", known) == [known[0]]
    assert choose_methods("test_x.py::test_sort", known) == [known[0]]
    assert choose_methods("test_fold", known) == [known[1]]
    assert choose_methods("b.T.time_x", known) == choose_methods("time_x", known) == known[2:4]
    assert choose_methods("time_x(10)", known) == [known[2]]
    with pytest.raises(NotFoundError):
        choose_methods("ime_x", known)  # no end of a word


# ---------------------------------------------------------------- never a pass without reason


@pytest.mark.parametrize("count", [2, 5])
def test_a_short_history_is_no_pass(count: int) -> None:
    assert judge(history([1.0] * count)).verdict.kind is VerdictKind.INCONCLUSIVE


def broken(number: int, **fields: Any) -> BenchExecution:
    found = execution(number, 10.0)
    failed = Finding(VerdictKind.ERROR, METHOD, "ValueError: no luck")
    return replace(found, result=replace(found.result, findings=(failed,), has_exception=True, **fields))


def test_a_benchmark_that_broke_yesterday_does_not_pass() -> None:
    executions = [*history(noise(10, 20)), broken(20, wall_time=-1.0)]
    found = judge(executions)
    assert found.verdict.kind is VerdictKind.ERROR
    assert found.verdict.findings[-1].message == "the newest execution, e0020, failed: ValueError: no luck"
    nan = execution(20, float("nan"))
    assert judge([*history(noise(10, 20)), nan]).verdict.kind is VerdictKind.ERROR
    # it has run well again since
    assert judge([*executions, execution(21, 10.0)]).verdict.kind is VerdictKind.PASS
    # nothing is reported of another label
    assert judge([*history(noise(10, 20), label="a"), broken(20)], label="a").verdict.kind is VerdictKind.PASS


def test_what_compare_and_bisect_ran_is_no_history() -> None:
    """They run old commits after new ones."""
    compared = [replace(e, extra=dict(COMPARED), label="head-x") for e in history(noise(20, 10))]
    found = judge([*history(noise(10, 20)), *compared])
    assert [len(series.points) for series in found.series] == [20]
    assert found.left_out == {"run by compare or bisect (--label names one)": 10}
    assert len(judge(compared, label="head-x").series[0].points) == 10
    with pytest.raises(UsageError, match="10 left out: run by compare or bisect"):
        judge(compared)


# ---------------------------------------------------------------- a new environment, and back again

OLD, NEW = {"driver": "410"}, {"driver": "999"}


def at(first: int, values: list[float], setup: dict[str, str], **fields: Any) -> list[BenchExecution]:
    given = {"commit": "a" * 40, "setup": setup, **fields}
    return [execution(first + n, value, **given) for n, value in enumerate(values)]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("level", [10.0, 20.0, 5.0])
def test_a_new_environment_with_few_executions_is_no_pass(count: int, level: float) -> None:
    found = judge([*at(0, noise(10, 20), OLD), *at(20, noise(level, count, 1), NEW)])
    assert found.verdict.kind is VerdictKind.INCONCLUSIVE
    (change,) = found.changes
    assert (change.too_few, change.execution_id, change.step.interval) == (count, "e0020", None)
    assert change.step.effect == pytest.approx(level / 10 - 1, abs=0.02)
    words = found.verdict.findings[0].message
    assert (
        f"{count} execution{'s' * (count > 1)} on a new environment, too few to judge (at least 4 are needed)" in words
    )
    assert "(driver 410 → 999)" in words
    if level != 10.0:
        assert "outside the old range" in words


def test_enough_executions_are_judged() -> None:
    calm = judge([*at(0, noise(10, 20), OLD), *at(20, noise(10, 16, 1), NEW)])
    assert (calm.verdict.kind, calm.changes) == (VerdictKind.PASS, ())
    (change,) = judge([*at(0, noise(10, 20), OLD), *at(20, noise(13, 4, 1), NEW)]).changes
    assert change.too_few == 0
    assert change.step.interval is not None


def test_a_few_can_be_spoken_of() -> None:
    executions = [*at(0, noise(10, 20), OLD), *at(20, noise(20, 3, 1), NEW)]
    assert judge(executions, say("ack", executions, "new driver")).verdict.kind is VerdictKind.PASS
    left = judge(executions, say("invalid", executions))
    assert (left.verdict.kind, left.left_out) == (VerdictKind.PASS, {"declared invalid": 3})


def test_a_few_before_a_environment_with_a_history_of_its_own_are_no_matter() -> None:
    assert judge([*at(0, noise(5, 2), OLD), *at(2, noise(10, 20, 1), NEW)]).verdict.kind is VerdictKind.PASS
    young = judge([*at(0, noise(5, 2), OLD), *at(2, noise(10, 5, 1), NEW)])
    assert "2 executions on the old environment, too few" in young.verdict.findings[0].message


def test_a_stray_execution_between_does_not_hide_a_move() -> None:
    stray = at(20, [12.0], {"driver": "500"})
    found = judge([*at(0, noise(10, 20), OLD), *stray, *at(21, noise(13, 10, 1), NEW)])
    few, move = found.changes
    assert (few.too_few, few.holds) == (1, False)
    assert (move.differences, move.holds) == (("driver 410 → 999",), True)
    assert move.step.effect == pytest.approx(0.3, abs=0.02)
    assert found.verdict.kind is VerdictKind.INCONCLUSIVE


@pytest.mark.parametrize("away", [3, 6])
@pytest.mark.parametrize("back", [1, 15])
def test_a_machine_that_is_back_at_its_old_level_is_no_alarm(away: int, back: int) -> None:
    left = [*at(0, noise(10, 15), OLD), *at(15, noise(13, away, 1), NEW)]
    assert judge(left).verdict.kind is VerdictKind.INCONCLUSIVE
    found = judge([*left, *at(30, noise(10, back, 2), OLD)])
    assert found.verdict.kind is VerdictKind.PASS
    (change,) = found.changes
    assert not change.holds


def test_a_machine_that_is_back_at_the_new_level_is_one() -> None:
    found = judge([*at(0, noise(10, 15), OLD), *at(15, noise(13, 6, 1), NEW), *at(21, noise(13, 3, 2), OLD)])
    assert found.moves[0].holds
    assert found.verdict.kind is VerdictKind.FAIL  # within the old environment it is a step of its own


@pytest.mark.parametrize(("level", "holds"), [(10.0, False), (13.0, True)])
def test_a_third_environment_tells_by_its_level(level: float, holds: bool) -> None:
    third = at(21, noise(level, 10, 2), {"driver": "1000"})
    found = judge([*at(0, noise(10, 15), OLD), *at(15, noise(13, 6, 1), NEW), *third])
    assert found.moves[0].holds is holds


def test_two_machines_in_turns_raise_no_alarm_whichever_was_last() -> None:
    both = [at(n, [10.0 + 3 * (n % 2)], (OLD, NEW)[n % 2])[0] for n in range(21)]
    assert [(len(series.points), series.changes) for series in judge(both).series] == [(11, ()), (10, ())]
    assert judge(both).verdict.kind is judge(both[:-1]).verdict.kind is VerdictKind.PASS


# ---------------------------------------------------------------- local edits


def edited(text: str) -> GitState:
    return GitState("a" * 40, "main", bool(text), text)


def test_local_edits_are_code() -> None:
    executions = [*at(0, noise(10, 8), OLD, git=edited("")), *at(8, noise(13, 8, 1), OLD, git=edited("- 1"))]
    (change,) = judge(executions).changes
    assert change.cause == "code"
    assert change.reason.startswith("local edits")
    same = [replace(e, git=edited("- 1")) for e in executions]
    assert judge(same).changes[0].cause == "unknown"


def test_local_edits_and_another_environment_may_be_either() -> None:
    executions = [*at(0, noise(10, 8), OLD, git=edited("")), *at(8, noise(13, 8, 1), NEW, git=edited("- 1"))]
    (change,) = judge(executions).changes
    assert change.cause == "either"
    assert "local edits" in change.reason


def test_without_a_commit_the_reason_does_not_name_it() -> None:
    executions = [*at(0, noise(10, 8), OLD, commit=None), *at(8, noise(13, 8, 1), NEW, commit=None)]
    (finding,) = judge(executions).verdict.findings
    assert (
        "environment or code? the environment changed; whether the code is the same was not recorded" in finding.message
    )
    assert "both changed" not in finding.message
    (change,) = judge([*executions[:8], *at(8, noise(13, 8, 1), OLD, commit=None)]).changes
    assert change.cause == "unknown"


def test_invalid_means_the_series_and_not_what_ran_beside_it() -> None:
    """Two labels in turns: one of them is bad from e0020 on."""
    bad = [e for n in range(40) for e in at(n, [10.0 + 5 * (n >= 20 and n % 2)], OLD, label=("a", "b")[n % 2])]
    word = Triage(METHOD, "wall_time", "e0021", "e0039", "invalid")
    found = judge(bad, word)
    assert found.left_out == {"declared invalid": 10}
    assert {series.label: len(series.points) for series in found.series} == {"a": 20, "b": 10}


# ---------------------------------------------------------------- young and noisy histories


def jitter(count: int, seed: int, noise: float = 0.015) -> list[float]:
    chance = random.Random(seed)
    return [10 * (1 + chance.gauss(0, noise)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_a_step_of_22_percent_with_two_outliers_among_24_executions_fails(seed: int) -> None:
    values = [value * (1.22 if index >= 12 else 1) for index, value in enumerate(jitter(24, seed))]
    values[5 + seed] *= 1.4
    values[16] *= 1.6
    found = judge(history(values))
    assert found.verdict.kind is VerdictKind.FAIL
    assert [abs(change.step.at - 12) <= 1 for change in found.changes] == [True]


@pytest.mark.parametrize("seed", range(3))
def test_a_step_of_10_percent_with_every_seventh_execution_doubled_fails(seed: int) -> None:
    values = [value * (1.1 if index >= 20 else 1) for index, value in enumerate(jitter(40, seed))]
    values = [value * (2 if index % 7 == 0 else 1) for index, value in enumerate(values)]
    assert judge(history(values)).verdict.kind is VerdictKind.FAIL


@pytest.mark.parametrize("count", [30, 300])
def test_a_creep_is_a_finding_of_its_own(count: int) -> None:
    values = [value * (1 + 0.35 * index / (count - 1)) for index, value in enumerate(jitter(count, 1))]
    found = judge(history(values))
    (change,) = found.changes
    assert (change.kind, found.verdict.kind) == ("trend", VerdictKind.FAIL)
    assert change.step.effect == pytest.approx(0.35, abs=0.04)
    assert (change.execution_id, change.until) == tuple(found.series[0].points[n].execution_id for n in (0, -1))
    assert "+3" in found.verdict.findings[0].message
    assert "step by step" in found.verdict.findings[0].message
    words = say("ack", history(values), "known")
    assert judge(history(values), words).verdict.kind is VerdictKind.PASS


def test_a_creep_for_the_better_is_named_and_no_alarm() -> None:
    values = [value * (1 - 0.3 * index / 59) for index, value in enumerate(jitter(60, 1))]
    found = judge(history(values))
    assert [change.kind for change in found.changes] == ["trend"]
    assert found.verdict.kind is VerdictKind.PASS


def test_a_history_too_noisy_to_show_a_change_is_inconclusive_and_says_what_is_missing() -> None:
    found = judge(history(jitter(12, 3, noise=0.03)))
    assert found.verdict.kind is VerdictKind.INCONCLUSIVE
    (finding,) = found.verdict.findings
    assert "a change of 5.0% would not have been found in this noise" in finding.message
    (series,) = found.series
    assert series.needed is not None
    assert f"about {series.needed - 12} more executions would show it" in finding.message
    accepted = float(finding.message.rpartition("--min-effect ")[2])
    assert judge(history(jitter(12, 3, noise=0.03)), min_effect=accepted).verdict.kind is VerdictKind.PASS


def test_a_history_that_shows_nothing_at_all_is_not_advised_to_accept_it() -> None:
    values = jitter(7, 2, noise=0.01)
    found = judge(history([*values[:5], 30 * values[5], 50 * values[6]]))
    assert found.verdict.kind is VerdictKind.INCONCLUSIVE
    (finding,) = found.verdict.findings
    assert found.series[0].detectable is not None
    assert found.series[0].detectable > 1
    assert "--min-effect" not in finding.message


def test_the_smaller_a_change_has_to_be_seen_the_more_is_asked_of_a_history() -> None:
    values = history(jitter(60, 4, noise=0.005))
    assert judge(values).verdict.kind is VerdictKind.PASS
    assert judge(values, min_effect=0.02).verdict.kind is VerdictKind.PASS
    strict = judge(values, min_effect=0.002)
    assert strict.verdict.kind is VerdictKind.INCONCLUSIVE
    assert "more executions do not help" in strict.verdict.findings[0].message


# ---------------------------------------------------------------- the newest executions


@pytest.mark.parametrize("count", [8, 20, 40, 100])
@pytest.mark.parametrize("last", [1, 2])
@pytest.mark.parametrize("step", [1.3, 3.0])
def test_newest_executions_that_are_slower_do_not_pass(count: int, last: int, step: float) -> None:
    found = judge(history([*noise(10, count - last), *noise(10 * step, last, 7)]))
    assert found.verdict.kind is VerdictKind.INCONCLUSIVE
    (change,) = found.changes
    assert (change.kind, change.too_few, change.step.at) == ("newest", last, count - last)
    assert change.step.effect == pytest.approx(step - 1, rel=0.1)
    assert "run it again (--confirm does)" in found.verdict.findings[0].message
    better = judge(history([*noise(10, count - last), *noise(10 / 1.3, last, 7)]))
    assert len(better.changes) == 1
    assert better.verdict.findings[0].kind is VerdictKind.PASS, "named, and not worse"


def test_a_newest_execution_that_came_again_before_is_no_alarm() -> None:
    values = noise(10, 40)
    values[5] = values[17] = values[29] = values[39] = 13.0
    assert judge(history(values)).verdict.kind is VerdictKind.PASS


def test_a_newest_execution_after_a_step_is_compared_with_the_new_level() -> None:
    steps = [*noise(10, 30, 1), *noise(8, 30, 2)]
    found = judge(history([*steps, 10.0]))
    assert [change.kind for change in found.changes] == ["step", "newest"]
    assert found.changes[-1].step.effect == pytest.approx(0.25, abs=0.02)
    assert found.changes[0].holds
    assert judge(history([*steps, 8.02])).verdict.kind is VerdictKind.PASS


def test_a_newest_execution_on_a_creep_is_compared_with_its_end() -> None:
    rising = [value * (1 - 0.004 * n) for n, value in enumerate(noise(10, 40, 1))]
    assert [change.kind for change in judge(history(rising)).changes] == ["trend"]
    found = judge(history([*rising, 10.0]))
    assert [change.kind for change in found.changes] == ["trend", "newest"]
    assert found.verdict.kind is VerdictKind.INCONCLUSIVE


def test_a_newest_execution_that_is_triaged_or_below_min_effect_is_no_alarm() -> None:
    executions = history([*noise(10, 20), 13.0])
    assert judge(executions, say("ack", executions)).verdict.kind is VerdictKind.PASS
    values = [*noise(10, 40), 10.4]
    assert judge(history(values)).changes == ()
    assert judge(history(values), min_effect=0.03).verdict.kind is VerdictKind.INCONCLUSIVE


def test_what_passes_says_where_a_change_would_have_been_found() -> None:
    found = judge(history(noise(10, 40)))
    (series,) = found.series
    assert series.detectable is not None
    assert series.alone is not None
    assert series.detectable < series.alone
    slower = judge(history([*noise(10, 39), 10 * (1.01 + series.alone)]))
    assert slower.verdict.kind is VerdictKind.INCONCLUSIVE or series.alone < 0.05


def test_after_a_fail_nothing_is_reported_of_what_would_not_have_been_found() -> None:
    chance = random.Random(3)
    values = [level * (1 + chance.gauss(0, 0.04)) for level in (10,) * 15 + (20,) * 15]
    found = judge(history(values))
    assert found.verdict.kind is VerdictKind.FAIL
    assert "would not have been found" not in " ".join(finding.message for finding in found.verdict.findings)


@pytest.mark.parametrize("count", [1, 20])
def test_an_improbable_improvement_is_to_be_checked(count: int) -> None:
    executions = history([*noise(10, 20, 1), *noise(0.01, count, 2)])
    assert judge(executions).verdict.kind is VerdictKind.CHANGED
    assert judge(executions, say("wontfix", executions)).verdict.kind is VerdictKind.PASS
    rates = history([*noise(10, 20, 1), *noise(1e4, count, 2)], metric="throughput_x")
    assert judge(rates, metric="throughput_x", direction="max").verdict.kind is VerdictKind.CHANGED


@pytest.mark.parametrize("tail", [(3, 3, 1), (3, 3, 3, 1), (3, 3, 3, 1, 1), (1.5, 1.5, 1)])
@pytest.mark.parametrize("count", [8, 20, 40])
def test_slower_executions_of_which_the_newest_is_back_are_no_fail(count: int, tail: tuple[float, ...]) -> None:
    found = judge(history([*noise(10, count), *(10 * factor for factor in tail)]))
    assert found.verdict.kind is VerdictKind.INCONCLUSIVE
    (change,) = found.changes
    assert (change.kind, change.step.at) == ("newest", count)
    assert change.step.effect == pytest.approx(tail[0] - 1, abs=0.02)
    back = tail.count(1)
    words = f"of the {len(tail)} newest executions {back} {'is' if back == 1 else 'are'} at the old level: run it again"
    assert words in found.verdict.findings[0].message


def test_a_slow_one_among_the_last_three_is_not_half_a_step() -> None:
    found = judge(history([*noise(10, 8), 30.0, 10.0, 30.0]))
    assert found.verdict.kind is VerdictKind.INCONCLUSIVE
    assert found.changes[-1].step.effect == pytest.approx(2, abs=0.02)


@pytest.mark.parametrize("away", [5, 20])
def test_to_be_back_after_a_slow_time_is_not_an_improbable_improvement(away: int) -> None:
    values = [*noise(10, 20, 1), *noise(30, away, 2), *noise(10, 20, 3)]
    assert judge(history(values)).verdict.kind is VerdictKind.PASS
    faster = history([*values[: 20 + away], *noise(4, 20, 3)])
    assert judge(faster).verdict.kind is VerdictKind.CHANGED


def test_a_time_below_zero_is_not_believed() -> None:
    assert judge(history([*noise(10, 20), -5.0])).verdict.kind is VerdictKind.CHANGED


def test_a_newest_execution_that_was_disturbed_has_not_passed() -> None:
    busy = execution(20, 30.0, contaminated=("others used 50%",))
    found = judge([*history(noise(10, 20)), busy])
    assert found.verdict.kind is VerdictKind.INCONCLUSIVE
    assert (
        found.verdict.findings[-1].message
        == "the newest execution, e0020, does not count: contaminated; run it again (--confirm does)"
    )
    same = replace(execution(19, 10.0), commit=busy.commit)
    assert judge([*history(noise(10, 19)), same, busy]).verdict.kind is VerdictKind.PASS, "the same code was measured"
    assert judge([*history(noise(10, 20)), execution(20, 10.0), execution(21, 10.0)]).doubted is None


def test_confirm_executes_a_newest_execution_that_was_disturbed() -> None:
    before, asked = judge([*history(noise(10, 20)), execution(20, 30.0, contaminated=("others used 50%",))]), []

    def again(method: str, name: str) -> BenchReport:
        asked.append((method, name))
        return BenchReport(())

    after = judge(history(noise(10, 21)))
    assert histories.confirm_newest([before], lambda: [after], again) == ([after], None)
    assert asked == [(METHOD, "e0020")]


def test_what_would_have_been_found_in_the_newest_is_found_in_nine_of_ten() -> None:
    found = [judge(history(noise(10, 40, seed))).series[0].alone or 0.0 for seed in range(30)]
    slower = [[*noise(10, 39, seed), noise(10 * (1 + size), 1, 1000 + seed)[0]] for seed, size in enumerate(found)]
    kinds = [judge(history(values)).verdict.kind for values in slower]
    assert kinds.count(VerdictKind.PASS) <= 5, "of 30"
    assert judge(history([10.0] * 20 + [10.5])).verdict.kind is VerdictKind.INCONCLUSIVE, "5% is 5%"


def test_a_change_that_is_not_reported_is_not_called_detectable() -> None:
    (series,) = judge(history(noise(10, 40)), min_effect=0.5).series
    assert series.detectable == 0.5
    assert (series.alone or 0) > 0.5


def test_a_newest_value_that_is_not_a_number_is_named() -> None:
    found = judge([*history(noise(10, 20)), execution(20, float("nan"))])
    assert found.verdict.findings[-1].message == "the newest execution, e0020, failed: it reported nan as wall_time"
    bad = replace(execution(20, 10.0), result=BenchResult(METHOD, False, wall_time=10.0))
    assert "e0020, failed: it did not succeed" in judge([*history(noise(10, 20)), bad]).verdict.findings[-1].message


def test_outlying_newest_executions_are_recent_whatever_their_number() -> None:
    slower = history([*noise(10, 20), 20.0, 20.0])
    assert judge(slower, recent=1).verdict.kind is VerdictKind.INCONCLUSIVE


# ---------------------------------------------------------------- from one label to the next


def labelled(level: float, count: int = 20, **fields: Any) -> list[BenchExecution]:
    after = [execution(20 + n, value, label="v2", **fields) for n, value in enumerate(noise(level, count, 2))]
    return [*history(noise(10, 20, 1), label="v1"), *after]


def test_a_slower_label_is_inconclusive_as_a_slower_environment_is() -> None:
    found = judge(labelled(12))
    (change,) = found.moves
    assert (change.cause, change.differences) == ("either", ("label v1 → v2",))
    assert found.verdict.kind is VerdictKind.INCONCLUSIVE
    assert "label or code?" in found.verdict.findings[0].message
    (change,) = judge([replace(e, commit="a" * 40) for e in labelled(12)]).moves
    assert change.cause == "label"
    assert judge(labelled(10)).moves == ()
    assert judge(labelled(12), label="v2").verdict.kind is VerdictKind.PASS


def test_a_label_that_is_back_at_its_old_level_is_no_alarm() -> None:
    back = [execution(60 + n, value, label="v1") for n, value in enumerate(noise(10, 10, 3))]
    assert judge([*labelled(12), *back]).verdict.kind is VerdictKind.PASS


def test_a_label_with_few_executions_is_no_pass() -> None:
    found = judge(labelled(10, 2))
    assert found.verdict.kind is VerdictKind.INCONCLUSIVE
    assert "2 executions on a new label, too few" in found.verdict.findings[0].message


def test_a_new_label_in_a_new_environment_is_compared_with_what_was_before() -> None:
    (change,) = judge(labelled(12, setup={"cpu_model": "two"})).moves
    assert change.differences == ("label v1 → v2", "cpu_model one → two")


def test_changes_are_listed_once_where_no_name_comes_close() -> None:
    levels = [*noise(10, 20), *noise(12, 20, 2), *noise(15, 20, 3)]
    found = judge([replace(each, execution_id=f"mean{n:02d}") for n, each in enumerate(history(levels))])
    assert [change.execution_id for change in found.changes] == ["mean20", "mean40"]
    with pytest.raises(NotFoundError) as caught:
        histories._find_change(found, "zzzz", None)
    assert caught.value.hint == "changes: mean20, mean40, or last"
    with pytest.raises(NotFoundError, match=r"did you mean 'mean20' or 'mean40'\?; changes: mean20, mean40, or last"):
        histories._find_change(found, "mean2", None)
