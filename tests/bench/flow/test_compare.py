"""Comparisons of what is recorded, and what a rerun settles."""

from __future__ import annotations

import contextlib
import json
import math
import random
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.bench_samples import execution, history, request, write_archive

from assay.bench.flow.compare import CompareOptions, Contest, _settle, compare_executions, compare_recorded, parse_span
from assay.bench.flow.run import run_benchmarks
from assay.bench.flow.sides import Executions
from assay.bench.judge.samples import ALPHA
from assay.bench.records import Triage, add_triage
from assay.bench.report.history import build_comparison_cases, build_comparison_document
from assay.bench.values.comparison import ComparisonReport
from assay.bench.values.execution import (
    BenchExecution,
    BenchMethod,
    BenchReport,
    BenchRequest,
    BenchResult,
    BenchVariant,
    Peaks,
)
from assay.errors import NotFoundError, UsageError
from assay.follow.opening import open_index
from assay.show.console import SILENT
from assay.show.terminal_report import render_terminal
from assay.values.verdict import Finding, VerdictKind

OPTIONS = CompareOptions()
PASS, FAIL, CHANGED = VerdictKind.PASS, VerdictKind.FAIL, VerdictKind.CHANGED
INCONCLUSIVE, ERROR = VerdictKind.INCONCLUSIVE, VerdictKind.ERROR


def side(name: str, level: float, count: int = 12, seed: int = 0, **fields: object) -> Executions:
    chance = random.Random(f"{name}{seed}")
    return Executions(name, tuple(execution(n, level * (1 + chance.gauss(0, 0.01)), **fields) for n in range(count)))


BASE, HEAD = side("base", 10), side("head", 10)


def join(side: Executions, *more: BenchExecution) -> Executions:
    return replace(side, found=(*side.found, *more))


def change(side: Executions, count: int | None = None, **fields: Any) -> tuple[BenchExecution, ...]:
    """The first executions of a side with other fields, also of their results."""
    own = {name: value for name, value in fields.items() if name in BenchExecution.__dataclass_fields__}
    other = {name: value for name, value in fields.items() if name not in own}
    return tuple(replace(e, **own, result=replace(e.result, **other)) for e in side.found[:count])


def compare(base: Executions, head: Executions, **options: Any) -> ComparisonReport:
    return compare_executions(base, head, CompareOptions(**options))


def find_kind(base: Executions, head: Executions, **options: Any) -> VerdictKind:
    return compare(base, head, **options).verdict.kind


def stop(one: BenchExecution, method: str = "m.C.f") -> BenchExecution:
    ended = Finding(VerdictKind.ERROR, method, "SIGINT to the supervisor")
    result = BenchResult(method, False, has_exception=True, findings=(ended,))
    return replace(one, method=method, state="stopped", result=result)


@pytest.mark.parametrize(("head", "kind"), [(10.0, PASS), (11.5, FAIL), (8.0, CHANGED), (10.1, PASS)])
def test_verdicts(head: float, kind: VerdictKind) -> None:
    report = compare(BASE, side("head", head))
    assert report.verdict.kind is kind
    assert report.metrics[0].finding.effect == pytest.approx(head / 10 - 1, abs=0.02)
    swapped = {FAIL: CHANGED, CHANGED: FAIL}
    assert find_kind(BASE, side("head", head), directions={"wall_time": "max"}) is swapped.get(kind, kind)


# ---------------------------------------------------------------- what failed, or is missing

MUTE = Finding(VerdictKind.ERROR, "m.C.f", "speed was not found in its output")
LOW = Finding(VerdictKind.FAIL, "m.C.f", "accuracy is 0.8, below its minimum")
CRASH = Finding(VerdictKind.ERROR, "m.C.bad", "ValueError: broken for weeks")
OTHER = change(HEAD, method="m.C.other")
BOUND = {"succeeded": False, "findings": (LOW,)}
CRASHED = BenchResult("m.C.bad", False, has_exception=True, findings=(CRASH,))
BAD = tuple(replace(each, method="m.C.bad", result=CRASHED) for each in BASE.found[:3])


@pytest.mark.parametrize(
    ("base", "head", "kind", "message"),
    [
        (BASE, replace(HEAD, found=OTHER), ERROR, "base has it, head does not"),
        (join(BASE, *OTHER), HEAD, ERROR, "base has it, head does not"),
        (BASE, join(HEAD, *OTHER), PASS, ""),  # one that is new
        (BASE, join(HEAD, *change(HEAD, 1, has_exception=True)), ERROR, "1 of 13 executions of head failed: done"),
        (BASE, join(HEAD, *change(HEAD, 1, has_exception=True, profiles=("x",))), ERROR, "1 of 13 executions of head"),
        (BASE, join(HEAD, *change(HEAD, 2, findings=(MUTE,))), ERROR, f"2 of 14 executions of head failed: {MUTE.message}"),
        # a bound that head does not keep fails, however quick it is; one that is kept now, or never was, does not
        (BASE, replace(HEAD, found=change(HEAD, **BOUND)), FAIL, f"12 of 12 executions of head failed: {LOW.message}"),
        (replace(BASE, found=change(BASE, **BOUND)), HEAD, PASS, ""),
        (replace(BASE, found=change(BASE, **BOUND)), replace(HEAD, found=change(HEAD, **BOUND)), PASS, ""),
        # what fails on both sides shows nothing about the change
        (join(BASE, *BAD), join(HEAD, *BAD), INCONCLUSIVE, "it fails on both sides, before and after: 3 of 3"),
        (join(BASE, *BAD), join(side("head", 13), *BAD), FAIL, "it fails on both sides"),
        (BASE, join(HEAD, *BAD), ERROR, "3 of 3 executions of head failed: ValueError: broken for weeks"),
        (BASE, side("head", float("nan")), FAIL, "12 of 12 values of head are NaN or infinite"),
    ],
)  # fmt: skip
def test_what_failed_or_is_gone_is_no_gap(base: Executions, head: Executions, kind: VerdictKind, message: str) -> None:
    report = compare(base, head)
    assert report.verdict.kind is kind
    assert any(finding.message.startswith(message) for finding in report.verdict.findings)
    methods = [{e.method for e in one.found} for one in (base, head)]
    assert ("m.C.other: only head has it" in report.notes) == ("m.C.other" in methods[1] - methods[0])


def test_an_interrupted_execution_has_not_failed() -> None:
    for everything in (False, True):
        report = compare(BASE, join(HEAD, stop(execution(20, 0.0))), everything=everything)
        assert report.verdict.kind is PASS
        assert report.notes == ("head: 1 interrupted execution is left out of 13",)


@pytest.mark.parametrize("names", [("head",), ("base", "head")])
def test_a_benchmark_of_which_nothing_counts_is_never_passed_over(names: tuple[str, ...]) -> None:
    """Beside one that is as good as before."""
    sides = []
    for given in (BASE, HEAD):
        other = change(given, method="m.C.other")
        aside = (*(replace(e, profiles=("trace",)) for e in other[:3]), stop(other[3], "m.C.other"))
        sides.append(join(given, *(aside if given.name in names else other)))
    report = compare(*sides)
    assert report.verdict.kind is INCONCLUSIVE
    assert [finding.message for finding in report.verdict.findings if finding.subject == "m.C.other"] == [
        f"no execution of {name} counts: 3 profiled, 1 interrupted (include profiled ones: --all)" for name in names
    ]
    assert not any("only head has it" in note for note in report.notes)


# ---------------------------------------------------------------- in turns, on a busy machine


class Machine:
    """Runs what is asked for, and keeps count. `spoil`: others use the CPUs all the while."""

    def __init__(self, spoil: bool = True, interrupted_after: int | None = None, reason: str = "") -> None:
        self.spoil = spoil
        self.reason = reason
        self.interrupted_after = interrupted_after
        self.trials: list[int] = []
        self.number = 0

    def run(self, asked: BenchRequest) -> BenchReport:
        self.trials.append(asked.trials)
        found = [self._execute(variant.label) for _ in range(asked.trials) for variant in asked.variants]
        if self.interrupted_after is None:
            return BenchReport(tuple(found))
        kept = found[: self.interrupted_after + 1]
        return BenchReport((*kept[:-1], stop(kept[-1])), interrupted="SIGINT")

    def _execute(self, label: str) -> BenchExecution:
        self.number += 1
        load = (50 + self.number % 40) / 100
        dirt = (self.reason or f"others used {load:.0%} of the CPUs during the run",) if self.spoil else ()
        found = execution(self.number, 10.0 + 0.001 * (self.number % 7), label=label, contaminated=dirt)
        return replace(found, machine=replace(found.machine, foreign_cpu=load))


def contest(machine: Machine, trials: int = 10, **options: Any) -> ComparisonReport:
    asked = request("m.C.f", trials=trials, variants=(BenchVariant("base"), BenchVariant("head")))
    return Contest(asked, CompareOptions(**options), machine.run, SILENT).run()


GPU = "the GPU was throttled: hw_thermal"


@pytest.mark.parametrize(("trials", "most"), [(10, 30), (3, 3), (5, 6)])
def test_a_disturbed_gpu_does_not_keep_it_running_for_ever(trials: int, most: int) -> None:
    machine = Machine(reason=GPU)
    report = contest(machine, trials, most=most)
    assert sum(machine.trials) == most
    assert report.verdict.kind is INCONCLUSIVE
    (finding,) = report.verdict.findings
    assert finding.message.startswith("all trials of base and head are contaminated: wait until the machine is quiet")
    assert f"{most} of {most} trials left out: {GPU}" in finding.message
    assert finding.message.count("left out") == 2
    expected = f"base: {most} contaminated executions are left out of {most} for wall_time (include them with --all)"
    assert report.notes[0] == expected


def test_load_that_hits_both_sides_in_turns_counts() -> None:
    machine = Machine()
    report = contest(machine)
    assert report.verdict.kind is PASS
    assert machine.trials == [10]
    assert (len(report.metrics[0].base.values), report.metrics[0].base.aside) == (10, ())
    load = "others used 51% to 70% of the CPUs in 20 of 20 executions, which count: base and head ran in turns"
    assert report.notes == (load,)
    assert report.metrics[0].detectable == pytest.approx(0.0501, abs=0.001), "the threshold: the noise is small"
    assert contest(Machine(reason=GPU), everything=True).verdict.kind is PASS, "all can be taken"


def test_without_turns_load_leaves_wall_time_out_and_cpu_time_in() -> None:
    busy = {"contaminated": ("others used 90% of the CPUs",)}
    sides = [
        replace(one, found=tuple(replace(e, result=replace(e.result, cpu_time=e.result.wall_time)) for e in found))
        for one, found in ((BASE, change(BASE, **busy)), (HEAD, change(HEAD, **busy)))
    ]
    report = compare(*sides)
    assert {m.metric: m.finding.kind for m in report.metrics} == {"cpu_time": PASS, "wall_time": INCONCLUSIVE}
    assert report.notes[0] == (
        "base: 12 contaminated executions are left out of 12 for wall_time (include them with --all; cpu_time counts, "
        "judge by it alone with --only cpu_time)"
    )
    (wall,) = [each for each in report.metrics if each.metric == "wall_time"]
    assert (wall.base.values, len(wall.base.aside)) == ((), 12)
    assert find_kind(*sides, metrics=("cpu_time",)) is PASS


@pytest.mark.parametrize(
    ("base", "head", "levels", "kind"),
    [
        (0.9, 0.9, (10, 13), FAIL),
        (0.1, 0.9, (10, 13), INCONCLUSIVE),
        (0.1, 0.9, (10, 40), FAIL),
        (0.9, 0.1, (10, 13), FAIL),
        (0.9, 0.1, (13, 10), INCONCLUSIVE),
        (0.9, 0.1, (10, 10), INCONCLUSIVE),  # the load may hide a difference
        (0.1, 0.9, (10, 10), PASS),
        (0.90, 0.87, (10, 10), PASS),
    ],
)
def test_another_load_may_be_the_reason(base: float, head: float, levels: tuple[int, int], kind: VerdictKind) -> None:
    sides = []
    for name, load, level in zip(("base", "head"), (base, head), levels, strict=True):
        found = [replace(e, machine=replace(e.machine, foreign_cpu=load)) for e in side(name, level).found]
        sides.append(Executions(name, tuple(found)))
    report = compare(*sides)
    assert report.verdict.kind is kind
    assert ("load or code?" in report.verdict.findings[0].message) == (kind is INCONCLUSIVE)


@pytest.mark.parametrize("after", [0, 1, 7])
def test_what_our_own_end_took_along_has_not_failed(after: int) -> None:
    report = contest(Machine(spoil=False, interrupted_after=after))
    assert report.interrupted == "SIGINT"
    assert report.verdict.kind is INCONCLUSIVE
    messages = [found.message for _, _, judged in build_comparison_cases(report) for found in judged.findings]
    for texts in (messages, [finding.message for finding in report.verdict.findings]):
        assert any("it was ended by SIGINT" in text for text in texts)
        assert not any("failed" in text for text in texts)


def test_one_process_gives_its_samples_with_a_note() -> None:
    chance = random.Random(1)
    samples = [{"wall_time": tuple(10 + chance.gauss(0, 0.05) for _ in range(20))} for _ in range(2)]
    sides = [replace(one, found=change(one, 1, samples=mine)) for one, mine in zip((BASE, HEAD), samples, strict=True)]
    report = compare(*sides)
    assert len(report.metrics[0].base.values) == 20
    assert any("one process" in note for note in report.notes)
    assert report.verdict.kind is INCONCLUSIVE  # however alike they are
    spoilt = replace(HEAD, found=change(sides[1], contaminated=("load",)))
    report = compare(side("base", 5), spoilt)
    assert report.verdict.kind is INCONCLUSIVE
    assert "all trials of head are contaminated" in report.verdict.findings[0].message
    assert compare(side("base", 5), spoilt, everything=True).metrics[0].finding.effect is not None


def test_only_a_rerun_makes_a_fail() -> None:
    first = compare(BASE, side("head", 11.5))
    again = compare(side("base", 10, seed=1), side("head", 11.5, seed=1))
    calm = compare(side("base", 10, seed=1), side("head", 10, seed=1))
    confirmed = _settle(first, list(first.metrics), again, OPTIONS)
    assert confirmed.verdict.kind is FAIL
    assert confirmed.metrics[0].confirmed is True
    assert "confirmed" in confirmed.metrics[0].finding.message
    settled = _settle(first, list(first.metrics), calm, OPTIONS)
    assert settled.verdict.kind is INCONCLUSIVE
    assert settled.metrics[0].confirmed is False
    # of few trials the second round may not be sure by itself: one that agrees is pooled with the first
    (metric,) = again.metrics
    unsure = replace(metric, finding=replace(metric.finding, kind=INCONCLUSIVE, message="not sure"))
    pooled = _settle(first, list(first.metrics), replace(again, metrics=(unsure,)), OPTIONS)
    assert pooled.verdict.kind is FAIL
    (joined,) = pooled.metrics
    assert joined.confirmed is True
    assert "in both rounds together" in joined.finding.message
    assert len(joined.base.values) == len(first.metrics[0].base.values) + len(metric.base.values)
    opposite = replace(unsure, finding=replace(unsure.finding, effect=-0.02))
    cancels = replace(unsure, base=metric.head, head=metric.base)  # both rounds together show nothing
    for second in (opposite, cancels):
        settled = _settle(first, list(first.metrics), replace(again, metrics=(second,)), OPTIONS)
        assert (settled.verdict.kind, settled.metrics[0].confirmed) == (INCONCLUSIVE, False)


def test_a_command_has_as_many_trials_as_its_metrics_need() -> None:
    """p is corrected for wall time, CPU time and memory: of five trials none could ever fail."""
    variants = (BenchVariant("base"), BenchVariant("head"))
    asked = replace(request("m.C.f", trials=5, variants=variants), methods=(BenchMethod("true", "true", "command"),))
    machine = Machine(spoil=False)
    Contest(asked, CompareOptions(), machine.run, SILENT).run()
    assert machine.trials[0] == 6
    assert 2 / math.comb(12, 6) * 3 < ALPHA < 2 / math.comb(10, 5) * 3


@pytest.mark.parametrize("span", ["main", "main..", "..HEAD", ""])
def test_spans_that_name_no_two_commits(span: str) -> None:
    assert parse_span("a...b") == parse_span("a..b") == ("a", "b")
    with pytest.raises(UsageError, match="does not name two commits"):
        parse_span(span)


# ---------------------------------------------------------------- labels, commits and files


@pytest.mark.usefixtures("in_process")
def test_sides_by_label_folder_and_file(lab: Path) -> None:
    with pytest.raises(UsageError, match="there is no benchmark under"):
        compare_recorded("one", "two", None, "runs", OPTIONS)
    one = run_benchmarks(request("mod.B.fixed", trials=2, label="one")).executions
    with pytest.raises(UsageError, match="base and head are both one, the same 2 executions"):
        compare_recorded("one", "one", None, "runs", OPTIONS)
    with pytest.raises(UsageError, match="are the same 2 executions: there is nothing to compare"):
        compare_recorded("one", "runs/bench", None, "runs", OPTIONS)
    run_benchmarks(request("mod.B.fixed", trials=2, label="two"))
    by_label = compare_recorded("one", "two", None, "runs", OPTIONS)
    assert by_label.metrics[0].base.values == (0.5, 0.5)
    by_folder = compare_recorded(one[0].run_dir, "two", "B.fixed", "runs", OPTIONS)
    assert by_folder.metrics[0].base.values == (0.5,)
    with pytest.raises(NotFoundError, match="onne"):
        compare_recorded("onne", "two", None, "runs", OPTIONS)
    google = {"context": {}, "benchmarks": [{"name": "mod.B.fixed", "real_time": 1, "cpu_time": 1, "time_unit": "s"}]}
    (lab / "g.json").write_text(json.dumps(google))
    by_file = compare_recorded("g.json", "two", None, "runs", OPTIONS)
    assert "wall_time" in [metric.metric for metric in by_file.metrics]


def test_verdicts_are_in_the_index_of_a_study(lab: Path) -> None:
    both = (*side("base", 10, label="base").found, *side("head", 13, label="head").found)
    location = write_archive(
        lab / "runs", [replace(each, execution_id=f"{each.label}-{each.execution_id}") for each in both]
    )
    report = compare_recorded("base", "head", None, "runs", OPTIONS)
    (line,) = (Path(location.dir) / ".assay" / "verdicts.jsonl").read_text().splitlines()
    assert json.loads(line)["source"] == "bench compare"
    with open_index(location.root) as index, contextlib.closing(sqlite3.connect(index.path)) as database:
        (row,) = database.execute("SELECT study, key, source, result, subject, effect FROM verdicts")
    assert tuple(row) == ("bench", None, "bench compare", "FAIL", "m.C.f wall_time", report.metrics[0].finding.effect)
    folders = [str(path) for path in sorted(Path(location.dir).glob("*_C.f"))]
    compare_recorded(folders[0], folders[-1], None, "elsewhere", OPTIONS)
    assert not Path("elsewhere").exists(), "files outside a study leave nothing"


# ---------------------------------------------------------------- metrics that are gone


def reporting(name: str, *lists: dict[str, float]) -> Executions:
    chance = random.Random(name)
    results = [BenchResult("m.C.f", True, wall_time=10 * (1 + chance.gauss(0, 0.01)), extras=each) for each in lists]
    return Executions(name, tuple(execution(n, 10.0, result=result) for n, result in enumerate(results)))


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({}, "base reports speed, head does not report it"),
        ({"velocity": 5.0}, "base reports speed, head does not report it (only head has velocity)"),
    ],
)
def test_a_metric_that_head_has_lost_is_an_error(extras: dict[str, float], message: str) -> None:
    base, head = reporting("base", *[{"speed": 5.0}] * 12), reporting("head", *[extras] * 12)
    found = compare(base, head)
    assert found.verdict.kind is ERROR
    assert message in [finding.message for finding in found.verdict.findings]
    assert "wall_time" in [metric.metric for metric in found.metrics]
    assert any(verdict.kind is ERROR for _, _, verdict in build_comparison_cases(found))
    assert find_kind(base, head, metrics=("wall_time",)) is PASS
    assert find_kind(base, head, metrics=("speed",)) is ERROR
    assert find_kind(head, base) is (ERROR if extras else PASS)


def test_a_metric_that_head_reports_sometimes_is_an_error() -> None:
    some = [{"speed": 5.0}] * 9 + [{}] * 3
    found = compare(reporting("base", *[{"speed": 5.0}] * 12), reporting("head", *some))
    assert found.verdict.kind is ERROR
    assert "head lacks it in 3 of 12" in found.verdict.findings[0].message
    assert find_kind(reporting("head", *some), reporting("b", *some)) is PASS
    assert find_kind(side("base", 10.0, peaks=Peaks(max_rss=10**7)), HEAD) is PASS, "memory that was not measured"
    with pytest.raises(NotFoundError, match="wall_tmie"):
        compare(BASE, HEAD, metrics=("wall_tmie",))


# ---------------------------------------------------------------- environments

V100, T4 = {"accelerator_model": "V100"}, {"accelerator_model": "T4"}


@pytest.mark.parametrize(("head", "kind"), [(10.0, PASS), (13.0, FAIL), (7.0, CHANGED)])
def test_another_machine_is_not_blamed_on_the_code(head: float, kind: VerdictKind) -> None:
    sides = side("base", 10, setup=V100, commit="a"), side("head", head, setup=T4, commit="a")
    report = compare(*sides)
    assert report.verdict.kind is INCONCLUSIVE
    words = "environment or code? The environments differ (accelerator_model V100 → T4); the code is the"
    assert report.metrics[0].finding.message.startswith(words)
    assert report.metrics[0].finding.effect == pytest.approx(head / 10 - 1, abs=0.02)
    assert any("--across-setups" in note for note in report.notes)
    across = compare(*sides, across=True)
    assert across.verdict.kind is kind, "it can be judged all the same"
    assert "environments differ (accelerator_model V100 → T4), and are compared nevertheless" in across.notes[0]
    assert find_kind(sides[0], side("head", float("nan"), setup=T4)) is FAIL, "that is no number on any machine"


def test_mixed_set_ups_are_split_so_that_a_slowdown_shows() -> None:
    """Together the two machines would hide it."""
    base = join(side("base", 10, 8, setup=V100), *side("base", 20, 8, 1, setup=T4).found)
    head = join(side("head", 10, 8, setup=V100), *side("head", 26, 8, 1, setup=T4).found)
    report = compare(base, head)
    assert [(m.setup, m.finding.kind) for m in report.metrics] == [
        ("accelerator_model V100", PASS),
        ("accelerator_model T4", FAIL),
    ]
    assert "(accelerator_model T4)" in report.metrics[1].finding.subject
    assert report.verdict.comparisons == 2
    assert find_kind(base, head, across=True) is INCONCLUSIVE


class Changing(Machine):
    """Head loads a library that base does not: the environment comes with the commit."""

    def _execute(self, label: str) -> BenchExecution:
        setup = {"cpu_model": "one"} | ({"numba": "1"} if label == "head" else {})
        return replace(super()._execute(label), setup=setup, fingerprint=label)


def test_commits_in_turns_are_judged_whatever_they_load() -> None:
    report = contest(Changing(spoil=False))
    assert report.verdict.kind is PASS
    assert "numba none → 1" in report.notes[0]


# ---------------------------------------------------------------- declared invalid


def test_what_was_declared_invalid_is_left_out_and_reported(lab: Path) -> None:
    chance = random.Random(3)
    values = [level * (1 + chance.gauss(0, 0.005)) for level in [1.0] * 20 + [1.5] * 14]
    location = write_archive(lab / "runs", [*history(values[:10], label="ib"), *history(values[10:], 10, label="ih")])
    assert compare_recorded("ib", "ih", None, "runs", OPTIONS).verdict.kind is not PASS
    word = Triage("m.C.f", "wall_time", "e0020", "e0033", "invalid")
    add_triage(location.dir, word)
    report = compare_recorded("ib", "ih", None, "runs", OPTIONS)
    assert report.verdict.kind is PASS
    assert report.notes == ("m.C.f wall_time: 14 executions of ih left out: declared invalid",)
    folders = compare_recorded("runs/bench", "ih", None, "runs", OPTIONS)
    assert len(folders.metrics[0].base.values) == 20  # the executions named by their folder
    shutil.copytree("runs/bench", "sent")
    sent = compare_recorded("sent", "ih", None, "runs", OPTIONS)
    assert len(sent.metrics[0].base.values) == 34  # executions of others are not triaged
    add_triage(location.dir, replace(word, judgement="open"))
    assert compare_recorded("ib", "ih", None, "runs", OPTIONS).verdict.kind is not PASS


def test_a_failure_that_was_declared_invalid_is_none_and_nothing_left_is_an_error() -> None:
    later = [execution(20 + n, 10.0 + n / 99) for n in range(12)]
    head = Executions("head", (*change(side("x", 10, 1), has_exception=True), *later))
    assert find_kind(BASE, head) is ERROR
    assert find_kind(BASE, replace(head, invalid={("m.C.f", "wall_time"): {"e0000"}})) is PASS
    report = compare(BASE, replace(HEAD, invalid={("m.C.f", "wall_time"): {e.execution_id for e in HEAD.found}}))
    assert report.verdict.kind is ERROR
    assert "head has no values" in report.verdict.findings[0].message


# ---------------------------------------------------------------- as people read it


def test_ratios_of_single_values_and_sizes_as_people_read_them() -> None:
    single = [Executions(name, (execution(1, value),)) for name, value in (("base", 10.0), ("head", 12.0))]
    assert "+20.0%  not significant" in render_terminal(build_comparison_document(compare(*single)), width=100)
    peaks = Peaks(max_rss=300 << 20, gpu_memory_bytes=3 << 30)
    sides = [Executions(name, tuple(execution(n, 10.0, peaks=peaks) for n in range(8))) for name in ("base", "head")]
    text = render_terminal(build_comparison_document(compare(*sides)), width=120)
    assert "peak_memory" in text
    assert "300 MiB ±0.0%" in text
    assert "3 GiB ±0.0%" in text
