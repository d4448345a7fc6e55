"""Histories: steps found, placed between commits, put down to code or environment, and respected once spoken about."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.flows.bench.laboratory import execution, history

from assay.errors import NotFoundError, UsageError
from assay.flows.bench import history as histories
from assay.flows.bench.archive import choose_method, choose_methods
from assay.flows.bench.history import HistoryOptions, build_history, describe_differences, load_histories
from assay.record.benchmarks import Triage, add_triage, load_triage
from assay.values.bench_history import MetricHistory
from assay.values.benchmark import COMPARED, BenchExecution
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


def test_better_is_no_alarm_and_the_direction_can_be_told() -> None:
    down = history(STEP[::-1])
    assert judge(down).verdict.kind is VerdictKind.PASS
    assert judge(down, direction="max").verdict.kind is VerdictKind.FAIL
    rates = history(STEP[::-1], metric="images_per_second")
    assert judge(rates, metric="images_per_second").verdict.kind is VerdictKind.FAIL


def test_a_level_that_came_back_is_no_alarm() -> None:
    found = judge(history([*noise(10, 30, 1), *noise(12, 20, 2), *noise(10, 30, 3)]))
    assert len(found.changes) == 2
    assert found.verdict.kind is VerdictKind.PASS
    assert "come back" in found.verdict.findings[0].message


def test_old_changes_can_be_left_alone() -> None:
    assert judge(history(STEP), recent=10).verdict.kind is VerdictKind.PASS
    assert judge(history(STEP), recent=40).verdict.kind is VerdictKind.FAIL


def test_small_changes_are_not_spoken_of() -> None:
    assert judge(history(STEP), min_effect=0.2).changes == ()


@pytest.mark.parametrize("values", [[3.0] * 30, [0.0] * 10, noise(5, 40)])
def test_nothing_changed(values: list[float]) -> None:
    found = judge(history(values))
    assert found.changes == ()
    assert found.verdict.kind is VerdictKind.PASS


@pytest.mark.parametrize("count", [0, 1])
def test_one_point_is_no_history(count: int) -> None:
    with pytest.raises(UsageError, match=f"{count} execution.*no history"):
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


def test_both_changed_may_be_either() -> None:
    (change,) = judge(moved(same_commit=False)).changes
    assert change.cause == "either"
    assert "environment or code" in judge(moved(same_commit=False)).verdict.findings[0].message


def test_two_machines_in_turns_are_two_series_without_a_change() -> None:
    executions = [
        execution(n, 10.0 + 5 * (n % 2) + random.Random(n).gauss(0, 0.02), setup={"host": str(n % 2)}, commit="b" * 40)
        for n in range(40)
    ]
    found = judge(executions)
    assert [len(series.points) for series in found.series] == [20, 20]
    assert all(not series.changes for series in found.series)


def test_a_label_is_a_series_of_its_own() -> None:
    executions = [*history(noise(10, 10), label="a"), *history(noise(20, 10), label="b")]
    assert [series.label for series in judge(executions).series] == ["a", "b"]
    assert [series.label for series in judge(executions, label="b").series] == ["b"]


def test_differences_name_what_came_and_went() -> None:
    one, other = execution(1, 1, setup={"a": "1", "b": "2"}), execution(2, 1, setup={"b": "2", "c": "3"})
    assert describe_differences(one, other) == ("a 1 → none", "c none → 3")


# ---------------------------------------------------------------- triage


def say(judgement: str, executions: list[BenchExecution], note: str = "") -> Triage:
    (change,) = judge(executions).changes
    return Triage(METHOD, "wall_time", change.execution_id, change.until, judgement, note)  # type: ignore[arg-type]


@pytest.mark.parametrize("judgement", ["ack", "wontfix"])
def test_a_word_silences_the_alarm_and_is_shown(judgement: str) -> None:
    executions = history(STEP)
    found = judge(executions, say(judgement, executions, "known"))
    assert found.verdict.kind is VerdictKind.PASS
    assert f"{judgement}: known" in found.verdict.findings[0].message


def test_a_word_can_be_taken_back() -> None:
    executions = history(STEP)
    word = say("ack", executions)
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
    assert choose_method("stop", known) == "b.D.stop"
    assert choose_method("C.run", known) == "a.C.run"
    with pytest.raises(UsageError, match="stands for 2"):
        choose_method("run", known)
    with pytest.raises(NotFoundError, match="stpo"):
        choose_method("stpo", known)


def test_names_of_other_tools_go_by_their_ends_too() -> None:
    known = [
        "tests/test_x.py::test_sort",
        "tests/test_x.py::test_fold[a.b-3]",
        "b.T.time_x(10)",
        "b.T.time_x(20)",
        "BM/8",
    ]
    assert choose_method("test_sort", known) == known[0]
    assert choose_method("test_x.py::test_sort", known) == known[0]
    assert choose_method("test_fold", known) == known[1]
    assert choose_methods("b.T.time_x", known) == choose_methods("time_x", known) == known[2:4]
    assert choose_methods("time_x(10)", known) == [known[2]]
    with pytest.raises(UsageError, match="stands for 2"):
        choose_method("time_x", known)
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
    # of another label nothing is said
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


def test_one_benchmark_that_has_run_once_does_not_silence_the_others(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = replace(execution(99, 1.0), method="m.C.once")
    given = [*history(noise(10, 20)), once]
    monkeypatch.setattr(histories, "load_executions", lambda *_: given)
    said: list[str] = []
    (found,) = load_histories("wall_time", None, HistoryOptions("runs"), said.append)
    assert found.method == METHOD
    assert "m.C.once has 1 execution with wall_time" in said[0]
    given[:-1] = []
    with pytest.raises(UsageError, match=r"m\.C\.once has 1 execution"):
        load_histories("wall_time", None, HistoryOptions("runs"), said.append)
