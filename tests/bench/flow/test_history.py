"""Histories: steps found, placed between commits, put down to code or environment, and respected once triaged."""

from __future__ import annotations

import getpass
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.bench_samples import execution, history

from assay.bench.flow import history as histories
from assay.bench.flow.archive import choose_methods
from assay.bench.flow.history import HistoryOptions, build_history, load_histories, triage_change
from assay.bench.records import Triage, add_triage, load_triage
from assay.bench.values.comparison import MetricHistory
from assay.bench.values.execution import COMPARED, NOT_OBSERVED, BenchExecution, BenchReport, BenchResult
from assay.errors import NotFoundError, UsageError
from assay.show.console import CollectingConsole
from assay.values.environment import GitState
from assay.values.verdict import Finding, VerdictKind

METHOD = "m.C.f"
PASS, FAIL, CHANGED = VerdictKind.PASS, VerdictKind.FAIL, VerdictKind.CHANGED
INCONCLUSIVE, ERROR = VerdictKind.INCONCLUSIVE, VerdictKind.ERROR


def noise(level: float, count: int, seed: int = 0, share: float = 0.005) -> list[float]:
    chance = random.Random(seed)
    return [level * (1 + chance.gauss(0, share)) for _ in range(count)]


def jitter(count: int, seed: int, share: float = 0.015) -> list[float]:
    return noise(10, count, seed, share)


def judge(executions: list[BenchExecution], *said: Triage, metric: str = "wall_time", **options: Any) -> MetricHistory:
    return build_history(METHOD, metric, executions, HistoryOptions(**options), said)


def find_kind(executions: list[BenchExecution], *said: Triage, **options: Any) -> VerdictKind:
    return judge(executions, *said, **options).verdict.kind


def describe(found: MetricHistory) -> str:
    return " ".join(finding.message for finding in found.verdict.findings)


def creep(count: int, seed: int, rise: float) -> list[float]:
    return [value * (1 + rise * index / (count - 1)) for index, value in enumerate(jitter(count, seed))]


STEP = [*noise(10, 30, 1), *noise(11, 30, 2)]
UP_AND_BACK = [*noise(10, 30, 1), *noise(12, 20, 2), *noise(10, 30, 3)]
SLOW_TIME = [*noise(10, 20, 1), *noise(30, 20, 2)]


def test_a_step_is_found_with_size_and_commits() -> None:
    found = judge(history(STEP))
    (change,) = found.changes
    assert abs(change.step.at - 30) <= 1
    assert change.step.effect == pytest.approx(0.1, abs=0.02)
    low, high = change.step.interval  # type: ignore[misc]
    assert low < change.step.effect < high
    assert high - low < 0.03
    assert change.commits == tuple(f"{n:x}".ljust(40, "0") for n in (change.step.at - 1, change.step.at))
    assert (change.cause, change.is_worse) == ("code", True)
    assert found.verdict.kind is FAIL
    assert "code: " in found.verdict.findings[0].message


@pytest.mark.parametrize(
    ("values", "options", "kind", "changes", "words"),
    [
        (STEP[::-1], {}, PASS, 1, ""),
        (STEP[::-1], {"direction": "max"}, FAIL, 1, ""),
        (STEP[::-1], {"metric": "images_per_second"}, FAIL, 1, ""),
        (STEP, {"metric": "allocations"}, CHANGED, 1, "which direction is better: --better min or max"),
        (STEP, {"metric": "allocations", "direction": "max"}, PASS, 1, ""),
        (STEP, {"metric": "allocations", "direction": "min"}, FAIL, 1, ""),
        (UP_AND_BACK, {}, PASS, 2, "has returned"),
        (STEP, {"recent": 10}, PASS, 1, ""),
        (STEP, {"recent": 40}, FAIL, 1, ""),
        (STEP, {"min_effect": 0.2}, PASS, 0, ""),
        ([3.0] * 30, {}, PASS, 0, ""),
        (noise(5, 40), {}, PASS, 0, ""),
        ([1.0] * 2, {}, INCONCLUSIVE, 0, "2 comparable executions are too few"),
        ([1.0] * 5, {}, INCONCLUSIVE, 0, "too few"),
        # too noisy to show what was asked for
        (jitter(60, 4, 0.005), {}, PASS, 0, ""),
        (jitter(60, 4, 0.005), {"min_effect": 0.02}, PASS, 0, ""),
        (jitter(60, 4, 0.005), {"min_effect": 0.002}, INCONCLUSIVE, 0, "more executions do not help"),
        ([*noise(10, 40, 4), *noise(10, 20, 24, 0.1)], {}, INCONCLUSIVE, 0, "a change of 5.0% would not have been"),
        # a creep for the better is named, and no alarm
        (creep(60, 1, -0.3), {}, PASS, 1, "step by step"),
        # the newest executions
        ([13.0 if n % 12 == 5 or n == 39 else each for n, each in enumerate(noise(10, 40))], {}, PASS, 0, ""),
        ([*noise(10, 30, 1), *noise(8, 30, 2), 8.02], {}, PASS, 1, ""),
        ([*noise(10, 40), 10.4], {}, PASS, 0, ""),
        ([*noise(10, 40), 10.4], {"min_effect": 0.03}, INCONCLUSIVE, 1, ""),
        ([10.0] * 20 + [10.5], {}, INCONCLUSIVE, 1, ""),
        ([*noise(10, 20), 20.0, 20.0], {"recent": 1}, INCONCLUSIVE, 1, ""),
        ([*noise(10, 8), 30.0, 10.0, 30.0], {}, INCONCLUSIVE, 1, "+200"),
        ([*noise(10, 20), -5.0], {}, CHANGED, 1, ""),
        # to be back after a slow time is not an improbable improvement
        ([*SLOW_TIME[:25], *noise(10, 20, 3)], {}, PASS, 2, ""),
        ([*SLOW_TIME, *noise(10, 20, 3)], {}, PASS, 2, ""),
        ([*SLOW_TIME, *noise(4, 20, 3)], {}, CHANGED, 2, ""),
    ],
)
def test_verdicts(values: list[float], options: dict[str, Any], kind: VerdictKind, changes: int, words: str) -> None:
    found = judge(history(values, metric=options.get("metric", "wall_time")), **options)
    assert (found.verdict.kind, len(found.changes)) == (kind, changes)
    assert words in describe(found)


def test_one_point_is_no_history() -> None:
    for count in (0, 1):
        with pytest.raises(UsageError, match=f"{count} execution.*too few for a history"):
            judge(history([1.0] * count))


# ---------------------------------------------------------------- what does not count

SILENT = Finding(VerdictKind.ERROR, METHOD, "speed was not found in its output")


def fail(one: BenchExecution, finding: Finding | None = None, **fields: Any) -> BenchExecution:
    findings = (finding,) if finding else ()
    return replace(one, result=replace(one.result, succeeded=False, findings=findings, **fields))


def stop(one: BenchExecution, wall_time: float = -1.0) -> BenchExecution:
    """Ended by Ctrl-C; a command has a duration all the same."""
    ended = Finding(VerdictKind.ERROR, METHOD, "SIGINT to the supervisor")
    return replace(fail(one, ended, has_exception=True, wall_time=wall_time), state="stopped")


def test_failed_and_contaminated_executions_are_left_out_and_counted() -> None:
    executions = history(noise(10, 20))
    executions[3] = replace(executions[3], contaminated=("load",))
    executions[4] = fail(executions[4], has_exception=True)
    executions[5] = replace(executions[5], contaminated=("load",), refused=True)
    executions[6] = fail(executions[6], SILENT)
    found = judge(executions)
    assert len(found.series[0].points) == 16
    assert found.left_out == {"contaminated": 1, "failed": 2, "refused as contaminated": 1}
    assert len(judge(executions, everything=True).series[0].points) == 17


@pytest.mark.parametrize(
    ("newest", "words"),
    [
        (fail(execution(20, 10.0), SILENT), "e0020, failed: speed was not found in its output"),
        (fail(execution(20, 10.0), has_exception=True, wall_time=-1.0), "e0020, failed: it did not report wall_time"),
        (fail(execution(20, 10.0)), "e0020, failed: it did not succeed"),
        (execution(20, float("nan")), "e0020, failed: it reported nan as wall_time"),
    ],
)
def test_a_benchmark_that_broke_yesterday_does_not_pass(newest: BenchExecution, words: str) -> None:
    executions = [*history(noise(10, 20)), newest]
    found = judge(executions)
    assert found.verdict.kind is ERROR
    assert found.verdict.findings[-1].message == f"the newest execution, {words}"
    assert find_kind([*executions, execution(21, 10.0)]) is PASS, "it has run well again since"
    labelled = [*history(noise(10, 20), label="a"), newest]
    assert find_kind(labelled, label="a") is PASS, "nothing is reported of another label"
    assert "e0020" in judge([*executions, stop(execution(21, 0.0))]).broken, "one that was ended hides no failure"


def test_a_newest_execution_that_breaks_a_bound_has_failed_and_is_a_figure() -> None:
    low = Finding(VerdictKind.FAIL, METHOD, "accuracy is 0.8, below its minimum")
    executions = history(noise(10, 20))
    found = judge([*executions[:-1], fail(executions[-1], low)])
    assert found.verdict.kind is ERROR
    assert "accuracy is 0.8" in found.broken
    assert (found.left_out, len(found.series[0].points)) == ({}, 20)


@pytest.mark.parametrize("wall_time", [-1.0, 0.1])
def test_an_interrupted_execution_has_not_failed(wall_time: float) -> None:
    executions = [*history(noise(10, 20)), stop(execution(20, 0.0), wall_time)]
    found = judge(executions)
    assert (found.verdict.kind, found.broken) == (PASS, "")
    assert found.left_out == {"interrupted": 1}
    assert len(found.series[0].points) == 20
    assert judge(executions, everything=True).left_out == {"interrupted": 1}
    assert find_kind([*executions[:-1], replace(executions[-1], state="failed")]) is ERROR


def test_what_compare_and_bisect_ran_is_no_history() -> None:
    """They run old commits after new ones."""
    compared = [replace(e, extra=dict(COMPARED), label="head-x") for e in history(noise(20, 10))]
    found = judge([*history(noise(10, 20)), *compared])
    assert [len(series.points) for series in found.series] == [20]
    assert found.left_out == {"run by compare or bisect (--label names one)": 10}
    assert len(judge(compared, label="head-x").series[0].points) == 10
    with pytest.raises(UsageError, match="10 left out: run by compare or bisect"):
        judge(compared)
    others = [stop(execution(20, 0.0, label="x")), stop(execution(21, 0.0, label="nightly", extra=COMPARED))]
    found = judge([*history(noise(10, 20), label="nightly"), *others], label="nightly")
    assert (found.left_out, found.verdict.kind) == ({}, PASS), "nothing is reported of another label or a comparison"


@pytest.mark.parametrize("fields", [{"profiles": ("profile/trace.json",)}, {"extra": {"profile": {"windows": "0:"}}}])
def test_profiled_executions_are_left_out_unless_all_are_wanted(fields: dict[str, Any]) -> None:
    executions = [*history(noise(10, 20)), *history(noise(90, 10, 2), 20, **fields)]
    found = judge(executions)
    assert (found.left_out, found.verdict.kind) == ({"profiled": 10}, PASS)
    everything = judge(executions, everything=True)
    assert (everything.left_out, everything.verdict.kind) == ({}, FAIL)


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"profiles": ("trace",)}, "include profiled ones: --all"),
        ({"contaminated": ("load",), "refused": True}, "run it again: `assay bench run m.C.f --trials 6`"),
    ],
)
def test_what_helps_is_advised(fields: dict[str, Any], hint: str) -> None:
    hints = []
    for count in (6, 1):
        with pytest.raises(UsageError) as caught:
            judge(history(noise(10, count), **fields))
        hints.append(caught.value.hint or "")
    assert hints[0] == hint
    assert hints[1].startswith("run it again: `assay bench run m.C.f --trials 6`"), "all of them are too few"
    assert ("when the machine is quiet" in hints[1]) == ("--all" in hint)


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> list[BenchExecution]:
    """Of three benchmarks all executions were profiled."""
    slow = history(noise(10, 6), profiles=("trace",))
    found = [replace(each, method=f"m.C.{name}") for name in "fgh" for each in slow]
    monkeypatch.setattr(histories, "load_executions", lambda *_: found)
    return found


def test_none_of_several_has_a_history(three: list[BenchExecution]) -> None:
    console = CollectingConsole()
    with pytest.raises(UsageError) as caught:
        load_histories("wall_time", None, HistoryOptions(), console)
    assert console.lines == [], "the same thing is not said in two ways"
    first, *lines = caught.value.message.splitlines()
    assert first == "none of 3 benchmarks has a history of wall_time"
    assert [line.split()[0] for line in lines] == ["m.C.f", "m.C.g", "m.C.h"]
    assert caught.value.hint == "include profiled ones: --all"


def test_those_without_a_history_are_warnings_beside_the_others(three: list[BenchExecution]) -> None:
    three[:6] = [replace(each, profiles=(), label="before") for each in three[:6]]
    console = CollectingConsole()
    assert [each.method for each in load_histories("wall_time", None, HistoryOptions(), console)] == ["m.C.f"]
    assert [text.split()[0] for text in console.lines] == ["m.C.g", "m.C.h"]
    assert all(text.endswith("6 left out: profiled (include profiled ones: --all)") for text in console.lines)
    labelled = CollectingConsole()
    found = load_histories("wall_time", None, HistoryOptions(label="before"), labelled)
    assert ([each.method for each in found], labelled.lines) == (["m.C.f"], []), "the others do not have the label"
    with pytest.raises(NotFoundError, match="befor"):
        load_histories("wall_time", None, HistoryOptions(label="befor"))
    three[6:] = [replace(stop(each), method=each.method) for each in three[6:]]  # g and h were interrupted
    broken = Finding(VerdictKind.ERROR, "m.C.h", "ValueError: no")
    three[-1] = replace(three[-1], state="failed", result=BenchResult("m.C.h", False, findings=(broken,)))
    console = CollectingConsole()
    load_histories("wall_time", None, HistoryOptions(), console)
    assert console.lines == ["m.C.h has never reported anything: ValueError: no"]


# ---------------------------------------------------------------- a busy machine

BUSY = ("others used 90% of the CPUs during the run",)


def measured(values: Sequence[float], **fields: Any) -> list[BenchExecution]:
    """Executions with CPU times, and wall times twice as long."""
    found = zip(history(values, **fields), values, strict=True)
    return [replace(each, result=replace(each.result, wall_time=2 * v, cpu_time=v)) for each, v in found]


def test_load_leaves_cpu_time_in_the_history() -> None:
    found = judge(measured([*noise(10, 15), *noise(13, 15, 2)], contaminated=BUSY), metric="cpu_time")
    assert (found.verdict.kind, found.left_out, found.aside) == (FAIL, {}, ())
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
    assert (found.series, found.verdict.kind) == ((), INCONCLUSIVE)
    assert "0 comparable executions are too few; at least 6 are needed (12 were disturbed)" in describe(found)
    assert "(1 was disturbed)" in describe(judge([*history([1.0]), *history([1.0], 1, contaminated=BUSY)]))
    assert found.instead == "assay bench history cpu_time m.C.f"
    assert judge(history(noise(10, 12), contaminated=BUSY)).instead == "", "there is no CPU time"
    assert judge(measured(noise(10, 12), contaminated=(NOT_OBSERVED,))).instead == ""


@pytest.mark.parametrize("reason", ["the GPU was throttled: hw_thermal", NOT_OBSERVED])
def test_what_is_not_load_disturbs_cpu_time_too(reason: str) -> None:
    """A GPU is waited for by asking it again and again."""
    assert judge(measured(noise(10, 12), contaminated=(reason,)), metric="cpu_time").series == ()


@pytest.mark.parametrize(
    ("metric", "loads", "after", "kind"),
    [
        ("cpu_time", (0.9, 0.9), 13.0, FAIL),
        ("cpu_time", (0.1, 0.9), 13.0, INCONCLUSIVE),
        ("cpu_time", (0.1, 0.9), 40.0, FAIL),  # more than load makes of it
        ("cpu_time", (0.9, 0.1), 13.0, FAIL),  # the load became less
        ("cpu_time", (0.9, 0.1), 4.0, CHANGED),  # an improvement that the load is too small for
        ("cpu_time", (0.9, 0.1), 6.0, PASS),
        ("cpu_time", (None, 0.9), 13.0, FAIL),
        ("loss", (0.1, 0.9), 13.0, FAIL),  # load does not change it
    ],
)
def test_another_load_may_be_the_reason(
    metric: str, loads: tuple[float, float], after: float, kind: VerdictKind
) -> None:
    values = [*noise(10, 15), *noise(after, 15, 2)]
    executions = measured(values) if metric == "cpu_time" else history(values, metric=metric)
    for number, each in enumerate(executions):
        executions[number] = replace(each, machine=replace(each.machine, foreign_cpu=loads[number >= 15]))
    found = judge(executions, metric=metric)
    assert found.verdict.kind is kind
    assert (found.changes[0].cause == "load") == (kind in (INCONCLUSIVE, PASS))
    if kind is INCONCLUSIVE:
        assert "load: others used 10% of the CPUs before and 90% after, which may be all of it" in describe(found)


def test_load_is_no_reason_for_another_count() -> None:
    """Its values are equal on each side of the step, whatever others used."""
    executions = history([1003.0] * 15 + [1083.0] * 15, metric="lines")
    for number, each in enumerate(executions):
        executions[number] = replace(each, machine=replace(each.machine, foreign_cpu=0.9 if number >= 15 else 0.1))
    found = judge(executions, metric="lines", direction="min")
    assert (found.verdict.kind, found.changes[0].cause) == (FAIL, "code")


# ---------------------------------------------------------------- triage


def say(judgement: str, executions: list[BenchExecution], note: str = "") -> Triage:
    (change,) = judge(executions).changes
    return Triage(METHOD, "wall_time", change.execution_id, change.until, judgement, note)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "judgement", "kind"),
    [
        (STEP, "ack", FAIL),
        (STEP, "wontfix", FAIL),
        (creep(30, 1, 0.35), "ack", FAIL),
        ([*noise(10, 20), 13.0], "ack", INCONCLUSIVE),  # a newest execution
        ([*noise(10, 20, 1), *noise(0.01, 20, 2)], "wontfix", CHANGED),  # an improbable improvement
    ],
)
def test_a_word_silences_the_alarm_is_shown_and_can_be_taken_back(
    values: list[float], judgement: str, kind: VerdictKind
) -> None:
    executions = history(values)
    word = say(judgement, executions, "known")
    found = judge(executions, word)
    assert found.verdict.kind is PASS
    assert f"{judgement}: known" in found.verdict.findings[0].message
    assert find_kind(executions, word, replace(word, judgement="open")) is kind
    assert find_kind(executions, replace(word, execution_id="e0010")) is kind, "it is about another change"
    assert find_kind(executions, replace(word, metric="throughput")) is kind


def test_invalid_executions_are_left_out_and_new_ones_count() -> None:
    executions = history(STEP)
    word = say("invalid", executions)
    found = judge(executions, word)
    assert found.changes == ()
    assert found.left_out["declared invalid"] >= 29
    assert find_kind([*executions, *history(noise(12, 30, 4), 60)], word) is FAIL


def test_words_are_kept_in_order_and_bad_lines_cost_nothing(tmp_path: Path) -> None:
    add_triage(str(tmp_path), Triage("m", "x", "e1", "e2", "ack", "one"))
    with (tmp_path / ".assay" / "triage.jsonl").open("a") as file:
        file.write("not json\n[1]\n")
    add_triage(str(tmp_path), Triage("m", "x", "e1", "e2", "open"))
    assert [word.judgement for word in load_triage(str(tmp_path))] == ["ack", "open"]
    assert load_triage(str(tmp_path / "nowhere")) == []


# ---------------------------------------------------------------- the judgement of a person, by its command

UP = [10.0 + 0.01 * (n % 3) for n in range(20)] + [12.0 + 0.01 * (n % 3) for n in range(20)]


@pytest.fixture
def place(lab: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A history with one change, at e0020."""
    given = history(UP)
    monkeypatch.setattr(histories, "load_executions", lambda *_: given)
    return lab / "runs" / "bench"


def record(change: str, judgement: str = "ack", note: str = "", **fields: Any) -> str:
    return triage_change("wall_time", "m.C.f", change, judgement, note, "runs", **fields)


@pytest.mark.parametrize("change", ["last", "e0020", "14" + "0" * 38, "1300"])
def test_by_its_execution_a_commit_or_as_the_last(place: Path, change: str) -> None:
    """e0020 is at commit 14000…, the one before at 13000…."""
    assert record(change, "wontfix", "meant") == "m.C.f wall_time: the change at e0020 is wontfix"
    (word,) = load_triage(str(place))
    assert (word.execution_id, word.until, word.judgement, word.note) == ("e0020", "e0039", "wontfix", "meant")
    assert word.at > 1e9


def test_a_change_that_is_not_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError, match=r"(?s)e0021.*changes: e0020, or last"):
        record("e0021")
    with pytest.raises(NotFoundError):
        record("14")  # too short for a commit
    monkeypatch.setattr(histories, "load_executions", lambda *_: history([5.0] * 20))
    with pytest.raises(UsageError, match="has no change"):
        record("last")
    assert load_triage(str(place)) == []


def test_an_invalid_change_can_be_taken_back_although_it_is_not_seen_any_more(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record("last", "invalid")
    with pytest.raises(UsageError, match="has no change"):
        record("last")
    assert record("e0020", "open").endswith("is open")
    assert record("last", "open") == "m.C.f wall_time: the change at e0020 is open"  # it is seen again
    record("last", "invalid")
    monkeypatch.setattr(histories, "load_executions", lambda *_: history([5.0]))  # what is left is no history
    assert triage_change("wall_time", "C.f", "last", "open", "", "runs").endswith("is open")
    found = [(word.execution_id, word.judgement) for word in load_triage(str(place))]
    assert found == [("e0020", word) for word in ("invalid", "open", "open", "invalid", "open")]


def test_a_user_without_a_name(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the user's number may have no entry."""

    def fail() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", fail)
    record("last")
    assert load_triage(str(place))[0].who == ""


# ---------------------------------------------------------------- names

KNOWN = ["a.C.run", "b.D.run", "b.D.stop", "tests/test_x.py::test_sort", "tests/test_x.py::test_fold[a.b-3]"]
KNOWN += ["b.T.time_x(10)", "b.T.time_x(20)", "BM/8", "a.one", "a.one.two"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("stop", KNOWN[2:3]),
        ("C.run", KNOWN[:1]),
        ("test_sort", KNOWN[3:4]),
        ("test_x.py::test_sort", KNOWN[3:4]),
        ("test_fold", KNOWN[4:5]),
        ("b.T.time_x", KNOWN[5:7]),
        ("time_x", KNOWN[5:7]),
        ("time_x(10)", KNOWN[5:6]),
        ("a.one", ["a.one"]),
    ],
)
def test_a_method_goes_by_its_end(name: str, found: list[str]) -> None:
    assert choose_methods(name, KNOWN) == found


def test_names_that_no_method_or_several_have() -> None:
    with pytest.raises(UsageError, match="matches 2"):
        choose_methods("run", KNOWN)
    for name in ("stpo", "ime_x"):
        with pytest.raises(NotFoundError, match=name):
            choose_methods(name, KNOWN)


# ---------------------------------------------------------------- from one environment to another

OLD, NEW = {"driver": "410"}, {"driver": "999"}


def at(first: int, values: list[float], setup: dict[str, str], **fields: Any) -> list[BenchExecution]:
    return history(values, first, **{"commit": "a" * 40, "setup": setup, **fields})


def edited(text: str) -> dict[str, GitState]:
    return {"git": GitState("a" * 40, "main", bool(text), text)}


@pytest.mark.parametrize(
    ("before", "after", "setup", "kind", "cause", "words"),
    [
        ({}, {}, NEW, INCONCLUSIVE, "environment", "(driver 410 → 999)"),
        ({}, {"commit": "b" * 40}, NEW, INCONCLUSIVE, "either", "environment or code"),
        (edited(""), edited("- 1"), OLD, FAIL, "code", "code: local edits"),
        (edited("- 1"), edited("- 1"), OLD, FAIL, "unknown", ""),
        (edited(""), edited("- 1"), NEW, INCONCLUSIVE, "either", "local edits"),
        ({"commit": None}, {"commit": None}, OLD, FAIL, "unknown", ""),
        (
            {"commit": None}, {"commit": None}, NEW, INCONCLUSIVE, "either",
            "environment or code? the environment changed; whether the code is the same was not recorded",
        ),
    ],
)  # fmt: skip
def test_code_or_environment(
    before: dict[str, Any], after: dict[str, Any], setup: dict[str, str], kind: VerdictKind, cause: str, words: str
) -> None:
    found = judge([*at(0, noise(10, 8), OLD, **before), *at(8, noise(13, 8, 1), setup, **after)])
    assert len(found.series) == 1 + (setup is NEW)
    (change,) = found.changes
    assert (found.verdict.kind, change.cause) == (kind, cause)
    assert change.differences == (("driver 410 → 999",) if setup is NEW else ())
    assert words in describe(found)
    assert ("both changed" in describe(found)) == (after == {"commit": "b" * 40})


@pytest.mark.parametrize(("count", "level"), [(1, 10.0), (3, 10.0), (2, 20.0), (3, 5.0)])
def test_a_new_environment_with_few_executions_is_no_pass(count: int, level: float) -> None:
    found = judge([*at(0, noise(10, 20), OLD), *at(20, noise(level, count, 1), NEW)])
    assert found.verdict.kind is INCONCLUSIVE
    (change,) = found.changes
    assert (change.too_few, change.execution_id, change.step.interval) == (count, "e0020", None)
    assert change.step.effect == pytest.approx(level / 10 - 1, abs=0.02)
    counted = f"{count} execution{'s' * (count > 1)} on a new environment"
    assert f"{counted}, too few to judge (at least 4 are needed)" in describe(found)
    assert "(driver 410 → 999)" in describe(found)
    assert level == 10.0 or "outside the old range" in describe(found)


@pytest.mark.parametrize("tail", [(9.9, 10.6, 10.7, 10.8), (8.0, 12.0, 12.5, 13.0), (10.0, 10.0, 9.9, 10.1, 20.0)])
def test_a_new_environment_that_may_be_slower_is_no_pass(tail: tuple[float, ...]) -> None:
    found = judge([*at(0, noise(10, 20), OLD), *at(20, list(tail), NEW)])
    assert found.verdict.kind is INCONCLUSIVE
    assert f"{len(tail)} executions on a new environment, too few to judge in their noise (at least 6" in describe(
        found
    )
    assert find_kind([*at(0, noise(10, 20), OLD), *at(20, noise(10, len(tail), 1), NEW)]) is PASS


def test_enough_executions_are_judged() -> None:
    calm = judge([*at(0, noise(10, 20), OLD), *at(20, noise(10, 16, 1), NEW)])
    assert (calm.verdict.kind, calm.changes) == (PASS, ())
    (change,) = judge([*at(0, noise(10, 20), OLD), *at(20, noise(13, 4, 1), NEW)]).changes
    assert change.too_few == 0
    assert change.step.interval is not None


def test_a_few_can_be_spoken_of() -> None:
    executions = [*at(0, noise(10, 20), OLD), *at(20, noise(20, 3, 1), NEW)]
    assert find_kind(executions, say("ack", executions, "new driver")) is PASS
    left = judge(executions, say("invalid", executions))
    assert (left.verdict.kind, left.left_out) == (PASS, {"declared invalid": 3})


def test_a_few_before_a_environment_with_a_history_of_its_own_are_no_matter() -> None:
    assert find_kind([*at(0, noise(5, 2), OLD), *at(2, noise(10, 20, 1), NEW)]) is PASS
    young = judge([*at(0, noise(5, 2), OLD), *at(2, noise(10, 5, 1), NEW)])
    assert "2 executions on the old environment, too few" in young.verdict.findings[0].message


def test_a_stray_execution_between_does_not_hide_a_move() -> None:
    stray = at(20, [12.0], {"driver": "500"})
    found = judge([*at(0, noise(10, 20), OLD), *stray, *at(21, noise(13, 10, 1), NEW)])
    few, move = found.changes
    assert (few.too_few, few.holds) == (1, False)
    assert (move.differences, move.holds) == (("driver 410 → 999",), True)
    assert move.step.effect == pytest.approx(0.3, abs=0.02)
    assert found.verdict.kind is INCONCLUSIVE


@pytest.mark.parametrize(("away", "back"), [(3, 1), (3, 15), (6, 1)])
def test_a_machine_that_is_back_at_its_old_level_is_no_alarm(away: int, back: int) -> None:
    left = [*at(0, noise(10, 15), OLD), *at(15, noise(13, away, 1), NEW)]
    assert find_kind(left) is INCONCLUSIVE
    found = judge([*left, *at(30, noise(10, back, 2), OLD)])
    assert found.verdict.kind is PASS
    (change,) = found.changes
    assert not change.holds


@pytest.mark.parametrize(
    ("last", "holds"),
    [
        (at(21, noise(13, 3, 2), OLD), True),  # within the old environment it is a step of its own
        (at(21, noise(13, 10, 2), {"driver": "1000"}), True),
        (at(21, noise(10, 10, 2), {"driver": "1000"}), False),
    ],
)
def test_a_move_holds_by_the_level_of_what_was_measured_last(last: list[BenchExecution], holds: bool) -> None:
    found = judge([*at(0, noise(10, 15), OLD), *at(15, noise(13, 6, 1), NEW), *last])
    assert found.moves[0].holds is holds
    assert last[0].setup != OLD or found.verdict.kind is FAIL


def test_two_machines_in_turns_raise_no_alarm_whichever_was_last() -> None:
    both = [at(n, [10.0 + 3 * (n % 2)], (OLD, NEW)[n % 2])[0] for n in range(21)]
    assert [(len(series.points), series.changes) for series in judge(both).series] == [(11, ()), (10, ())]
    assert find_kind(both) is find_kind(both[:-1]) is PASS


def test_invalid_means_the_series_and_not_what_ran_beside_it() -> None:
    """Two labels in turns: one of them is bad from e0020 on."""
    bad = [e for n in range(40) for e in at(n, [10.0 + 5 * (n >= 20 and n % 2)], OLD, label=("a", "b")[n % 2])]
    found = judge(bad, Triage(METHOD, "wall_time", "e0021", "e0039", "invalid"))
    assert found.left_out == {"declared invalid": 10}
    assert {series.label: len(series.points) for series in found.series} == {"a": 20, "b": 10}
    assert [series.label for series in judge(bad, label="b").series] == ["b"]


# ---------------------------------------------------------------- young and noisy histories


@pytest.mark.parametrize("seed", range(3))
def test_a_step_among_outliers_fails(seed: int) -> None:
    """22% with two outliers among 24 executions; 10% with every seventh of 40 doubled."""
    values = [value * (1.22 if index >= 12 else 1) for index, value in enumerate(jitter(24, seed))]
    values[5 + seed] *= 1.4
    values[16] *= 1.6
    found = judge(history(values))
    assert found.verdict.kind is FAIL
    assert [abs(change.step.at - 12) <= 1 for change in found.changes] == [True]
    values = [value * (1.1 if index >= 20 else 1) for index, value in enumerate(jitter(40, seed))]
    assert find_kind(history([value * (2 if index % 7 == 0 else 1) for index, value in enumerate(values)])) is FAIL


@pytest.mark.parametrize("count", [30, 200])
def test_a_creep_is_a_finding_of_its_own(count: int) -> None:
    found = judge(history(creep(count, 1, 0.35)))
    (change,) = found.changes
    assert (change.kind, found.verdict.kind) == ("trend", FAIL)
    assert change.step.effect == pytest.approx(0.35, abs=0.04)
    assert (change.execution_id, change.until) == tuple(found.series[0].points[n].execution_id for n in (0, -1))
    assert "+3" in describe(found)
    assert "step by step" in describe(found)


def test_a_history_too_noisy_to_show_a_change_is_inconclusive_and_says_what_is_missing() -> None:
    found = judge(history(jitter(12, 3, 0.03)))
    assert found.verdict.kind is INCONCLUSIVE
    (finding,) = found.verdict.findings
    assert "a change of 5.0% would not have been found in this noise" in finding.message
    (series,) = found.series
    assert series.needed is not None
    assert f"about {series.needed - 12} more executions would show it" in finding.message
    accepted = float(finding.message.rpartition("--min-effect ")[2])
    assert find_kind(history(jitter(12, 3, 0.03)), min_effect=accepted) is PASS


def test_a_history_that_shows_nothing_at_all_is_not_advised_to_accept_it() -> None:
    values = jitter(7, 2, 0.01)
    found = judge(history([*values[:5], 30 * values[5], 50 * values[6]]))
    assert found.verdict.kind is INCONCLUSIVE
    assert (found.series[0].detectable or 0) > 1
    assert "--min-effect" not in describe(found)


# ---------------------------------------------------------------- the newest executions


@pytest.mark.parametrize(
    ("count", "last", "step"), [(8, 1, 1.3), (8, 2, 3.0), (20, 1, 3.0), (40, 2, 1.3), (100, 1, 1.3)]
)
def test_newest_executions_that_are_slower_do_not_pass(count: int, last: int, step: float) -> None:
    found = judge(history([*noise(10, count - last), *noise(10 * step, last, 7)]))
    assert found.verdict.kind is INCONCLUSIVE
    (change,) = found.changes
    assert (change.kind, change.too_few, change.step.at) == ("newest", last, count - last)
    assert change.step.effect == pytest.approx(step - 1, rel=0.1)
    assert "run it again (--confirm does)" in describe(found)
    better = judge(history([*noise(10, count - last), *noise(10 / 1.3, last, 7)]))
    assert len(better.changes) == 1
    assert better.verdict.findings[0].kind is PASS, "named, and not worse"


@pytest.mark.parametrize(
    ("values", "kinds", "effect"),
    [
        ([*noise(10, 30, 1), *noise(8, 30, 2)], ["step", "newest"], 0.25),  # with the new level
        ([value * (1 - 0.004 * n) for n, value in enumerate(noise(10, 40, 1))], ["trend", "newest"], None),  # its end
    ],
)
def test_a_newest_execution_is_compared_with_what_is_before_it(
    values: list[float], kinds: list[str], effect: float | None
) -> None:
    assert [change.kind for change in judge(history(values)).changes] == kinds[:1]
    found = judge(history([*values, 10.0]))
    assert [change.kind for change in found.changes] == kinds
    assert found.changes[0].holds
    assert effect is None or found.changes[-1].step.effect == pytest.approx(effect, abs=0.02)
    assert found.verdict.kind is INCONCLUSIVE


def test_what_passes_says_where_a_change_would_have_been_found() -> None:
    (series,) = judge(history(noise(10, 40))).series
    assert series.detectable is not None
    assert series.alone is not None
    assert series.detectable < series.alone
    assert find_kind(history([*noise(10, 39), 10 * (1.01 + series.alone)])) is INCONCLUSIVE or series.alone < 0.05
    (series,) = judge(history(noise(10, 40)), min_effect=0.5).series
    assert series.detectable == 0.5, "a change that is not reported is not called detectable"
    assert (series.alone or 0) > 0.5


def test_after_a_fail_nothing_is_reported_of_what_would_not_have_been_found() -> None:
    chance = random.Random(3)
    found = judge(history([level * (1 + chance.gauss(0, 0.04)) for level in (10,) * 15 + (20,) * 15]))
    assert found.verdict.kind is FAIL
    assert "would not have been found" not in describe(found)


@pytest.mark.parametrize("count", [1, 20])
def test_an_improbable_improvement_is_to_be_checked(count: int) -> None:
    assert find_kind(history([*noise(10, 20, 1), *noise(0.01, count, 2)])) is CHANGED
    rates = history([*noise(10, 20, 1), *noise(1e4, count, 2)], metric="throughput_x")
    assert find_kind(rates, metric="throughput_x", direction="max") is CHANGED


@pytest.mark.parametrize(
    ("count", "tail"), [(8, (3, 3, 1)), (20, (3, 3, 3, 1)), (40, (3, 3, 3, 1, 1)), (8, (1.5, 1.5, 1)), (40, (3, 3, 1))]
)
def test_slower_executions_of_which_the_newest_is_back_are_no_fail(count: int, tail: tuple[float, ...]) -> None:
    found = judge(history([*noise(10, count), *(10 * factor for factor in tail)]))
    assert found.verdict.kind is INCONCLUSIVE
    (change,) = found.changes
    assert (change.kind, change.step.at) == ("newest", count)
    assert change.step.effect == pytest.approx(tail[0] - 1, abs=0.02)
    back = f"{tail.count(1)} {'is' if tail.count(1) == 1 else 'are'} at the old level: run it again"
    assert f"of the {len(tail)} newest executions {back}" in describe(found)


def test_a_newest_execution_that_was_disturbed_has_not_passed_and_is_executed_again() -> None:
    busy = execution(20, 30.0, contaminated=("others used 50%",))
    found, asked = judge([*history(noise(10, 20)), busy]), []
    assert found.verdict.kind is INCONCLUSIVE
    words = "the newest execution, e0020, does not count: contaminated; run it again (--confirm does)"
    assert found.verdict.findings[-1].message == words
    same = replace(execution(19, 10.0), commit=busy.commit)
    assert find_kind([*history(noise(10, 19)), same, busy]) is PASS, "the same code was measured"
    assert judge([*history(noise(10, 20)), execution(20, 10.0), execution(21, 10.0)]).doubted is None

    def again(method: str, name: str) -> BenchReport:
        asked.append((method, name))
        return BenchReport(())

    after = judge(history(noise(10, 21)))
    assert histories.confirm_newest([found], lambda: [after], again) == ([after], None)
    assert asked == [(METHOD, "e0020")]


def test_what_would_have_been_found_in_the_newest_is_found_in_nine_of_ten() -> None:
    found = [judge(history(noise(10, 40, seed))).series[0].alone or 0.0 for seed in range(30)]
    slower = [[*noise(10, 39, seed), noise(10 * (1 + size), 1, 1000 + seed)[0]] for seed, size in enumerate(found)]
    assert [find_kind(history(values)) for values in slower].count(PASS) <= 5, "of 30"


# ---------------------------------------------------------------- from one label to the next


def labelled(level: float, count: int = 20, **fields: Any) -> list[BenchExecution]:
    return [*history(noise(10, 20, 1), label="v1"), *history(noise(level, count, 2), 20, label="v2", **fields)]


def test_a_slower_label_is_inconclusive_as_a_slower_environment_is() -> None:
    found = judge(labelled(12))
    (change,) = found.moves
    assert (change.cause, change.differences) == ("either", ("label v1 → v2",))
    assert found.verdict.kind is INCONCLUSIVE
    assert "label or code?" in describe(found)
    (change,) = judge([replace(e, commit="a" * 40) for e in labelled(12)]).moves
    assert change.cause == "label"
    assert judge(labelled(10)).moves == ()
    assert find_kind(labelled(12), label="v2") is PASS
    back = history(noise(10, 10, 3), 60, label="v1")
    assert find_kind([*labelled(12), *back]) is PASS, "it is back at its old level"
    few = judge(labelled(10, 2))
    assert few.verdict.kind is INCONCLUSIVE
    assert "2 executions on a new label, too few" in describe(few)
    (change,) = judge(labelled(12, setup={"cpu_model": "two"})).moves
    assert change.differences == ("label v1 → v2", "cpu_model one → two"), "it is compared with what was before"


def test_changes_are_listed_once_where_no_name_comes_close() -> None:
    levels = [*noise(10, 20), *noise(12, 20, 2), *noise(15, 20, 3)]
    found = judge([replace(each, execution_id=f"mean{n:02d}") for n, each in enumerate(history(levels))])
    assert [change.execution_id for change in found.changes] == ["mean20", "mean40"]
    with pytest.raises(NotFoundError) as caught:
        histories._find_change(found, "zzzz", None)
    assert caught.value.hint == "changes: mean20, mean40, or last"
    with pytest.raises(NotFoundError, match=r"did you mean 'mean20' or 'mean40'\?; changes: mean20, mean40, or last"):
        histories._find_change(found, "mean2", None)
