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
from tests.bench_samples import execution, request

from assay.bench.flow.archive import find_location, write_as_run
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


def side(name: str, level: float, count: int = 12, seed: int = 0, **fields: object) -> Executions:
    chance = random.Random(f"{name}{seed}")
    return Executions(name, tuple(execution(n, level * (1 + chance.gauss(0, 0.01)), **fields) for n in range(count)))


@pytest.mark.parametrize(
    ("head", "kind"),
    [(10.0, VerdictKind.PASS), (11.5, VerdictKind.FAIL), (8.0, VerdictKind.CHANGED), (10.1, VerdictKind.PASS)],
)
def test_verdicts(head: float, kind: VerdictKind) -> None:
    report = compare_executions(side("base", 10), side("head", head), CompareOptions())
    assert report.verdict.kind is kind
    assert report.metrics[0].finding.effect == pytest.approx(head / 10 - 1, abs=0.02)
    turned = compare_executions(side("base", 10), side("head", head), CompareOptions(directions={"wall_time": "max"}))
    swapped = {VerdictKind.FAIL: VerdictKind.CHANGED, VerdictKind.CHANGED: VerdictKind.FAIL}
    assert turned.verdict.kind is swapped.get(kind, kind)


def test_a_benchmark_that_one_side_lacks_or_fails_is_an_error() -> None:
    other = Executions("head", tuple(replace(e, method="m.C.other") for e in side("head", 10).found))
    assert compare_executions(side("base", 10), other, CompareOptions()).verdict.kind is VerdictKind.ERROR
    broken = tuple(replace(e, result=replace(e.result, has_exception=True)) for e in side("head", 10).found[:1])
    mixed = Executions("head", (*side("head", 10).found, *broken))
    report = compare_executions(side("base", 10), mixed, CompareOptions())
    assert report.verdict.kind is VerdictKind.ERROR
    assert "1 of 13 executions of head failed" in report.verdict.findings[0].message


def test_a_benchmark_that_only_head_has_is_a_note() -> None:
    new = tuple(replace(e, method="m.C.new") for e in side("head", 10).found)
    report = compare_executions(side("base", 10), Executions("head", (*side("head", 10).found, *new)), CompareOptions())
    assert report.verdict.kind is VerdictKind.PASS
    assert "m.C.new: only head has it" in report.notes
    lost = compare_executions(Executions("base", (*side("base", 10).found, *new)), side("head", 10), CompareOptions())
    assert lost.verdict.kind is VerdictKind.ERROR
    assert lost.verdict.findings[0].message == "base has it, head does not"


def test_a_figure_that_lacks_what_it_had_to_report_is_a_failure() -> None:
    silent = Finding(VerdictKind.ERROR, "m.C.f", "speed was not found in its output")
    broken = tuple(replace(e, result=replace(e.result, findings=(silent,))) for e in side("head", 10).found[:2])
    report = compare_executions(side("base", 10), Executions("head", (*side("h", 10).found, *broken)), CompareOptions())
    assert report.verdict.findings[0].message == "2 of 14 executions of head failed: speed was not found in its output"


def test_a_bound_that_head_does_not_keep_fails_however_quick_it_is() -> None:
    low = Finding(VerdictKind.FAIL, "m.C.f", "accuracy is 0.8, below its minimum")

    def break_bound(found: Executions) -> Executions:
        results = [replace(e.result, succeeded=False, findings=(low,)) for e in found.found]
        return Executions(found.name, tuple(replace(e, result=r) for e, r in zip(found.found, results, strict=True)))

    good, bad = side("base", 10), break_bound(side("head", 10))
    report = compare_executions(good, bad, CompareOptions())
    assert report.verdict.kind is VerdictKind.FAIL
    assert "12 of 12 executions of head failed: accuracy is 0.8" in report.verdict.findings[0].message
    assert compare_executions(bad, good, CompareOptions()).verdict.kind is VerdictKind.PASS, "it was mended"
    assert compare_executions(break_bound(good), bad, CompareOptions()).verdict.kind is VerdictKind.PASS, "nothing new"


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
        failed = Finding(VerdictKind.ERROR, "m.C.f", "SIGINT to the supervisor")
        cut = replace(kept[-1], state="stopped", result=BenchResult("m.C.f", False, True, findings=(failed,)))
        return BenchReport((*kept[:-1], cut), interrupted="SIGINT")

    def _execute(self, label: str) -> BenchExecution:
        self.number += 1
        load = (50 + self.number % 40) / 100
        dirt = (self.reason or f"others used {load:.0%} of the CPUs during the run",) if self.spoil else ()
        found = execution(self.number, 10.0 + 0.001 * (self.number % 7), label=label, contaminated=dirt)
        return replace(found, machine=replace(found.machine, foreign_cpu=load))


def contest(machine: Machine, trials: int = 10, **options: Any) -> ComparisonReport:
    variants = (BenchVariant("base"), BenchVariant("head"))
    asked = request("m.C.f", trials=trials, variants=variants)
    return Contest(asked, CompareOptions(**options), machine.run, SILENT).run()


GPU = "the GPU was throttled: hw_thermal"


@pytest.mark.parametrize(("trials", "most"), [(10, 30), (3, 3), (5, 6)])
def test_a_disturbed_gpu_does_not_keep_it_running_for_ever(trials: int, most: int) -> None:
    machine = Machine(reason=GPU)
    report = contest(machine, trials, most=most)
    assert sum(machine.trials) == most
    assert report.verdict.kind is VerdictKind.INCONCLUSIVE
    (finding,) = report.verdict.findings
    assert finding.message.startswith("all trials of base and head are contaminated: wait until the machine is quiet")
    assert f"{most} of {most} trials left out: {GPU}" in finding.message
    assert finding.message.count("left out") == 2
    expected = f"base: {most} contaminated executions are left out of {most} for wall_time (include them with --all)"
    assert report.notes[0] == expected


def test_load_that_hits_both_sides_in_turns_counts() -> None:
    machine = Machine()
    report = contest(machine)
    assert report.verdict.kind is VerdictKind.PASS
    assert machine.trials == [10]
    assert (len(report.metrics[0].base.values), report.metrics[0].base.aside) == (10, ())
    load = "others used 51% to 70% of the CPUs in 20 of 20 executions, which count: base and head ran in turns"
    assert report.notes == (load,)
    assert report.metrics[0].detectable == pytest.approx(0.0501, abs=0.001), "the threshold: the noise is small"
    assert contest(Machine(reason=GPU), everything=True).verdict.kind is VerdictKind.PASS, "all can be taken"


def test_without_turns_load_leaves_wall_time_out_and_cpu_time_in() -> None:
    sides = []
    for name in ("base", "head"):
        found = [replace(e, contaminated=("others used 90% of the CPUs",)) for e in side(name, 10).found]
        found = [replace(e, result=replace(e.result, cpu_time=e.result.wall_time)) for e in found]
        sides.append(Executions(name, tuple(found)))
    report = compare_executions(sides[0], sides[1], CompareOptions())
    assert {each.metric: each.finding.kind for each in report.metrics} == {
        "cpu_time": VerdictKind.PASS,
        "wall_time": VerdictKind.INCONCLUSIVE,
    }
    assert report.notes[0] == (
        "base: 12 contaminated executions are left out of 12 for wall_time (include them with --all; cpu_time counts, "
        "judge by it alone with --only cpu_time)"
    )
    (wall,) = [each for each in report.metrics if each.metric == "wall_time"]
    assert (wall.base.values, len(wall.base.aside)) == ((), 12)
    only = compare_executions(sides[0], sides[1], CompareOptions(metrics=("cpu_time",)))
    assert only.verdict.kind is VerdictKind.PASS


@pytest.mark.parametrize(
    ("base", "head", "levels", "kind"),
    [
        (0.9, 0.9, (10, 13), VerdictKind.FAIL),
        (0.1, 0.9, (10, 13), VerdictKind.INCONCLUSIVE),
        (0.1, 0.9, (10, 40), VerdictKind.FAIL),
        (0.9, 0.1, (10, 13), VerdictKind.FAIL),
        (0.9, 0.1, (13, 10), VerdictKind.INCONCLUSIVE),
        (0.9, 0.1, (10, 10), VerdictKind.INCONCLUSIVE),  # the load may hide a difference
        (0.1, 0.9, (10, 10), VerdictKind.PASS),
        (0.90, 0.87, (10, 10), VerdictKind.PASS),
    ],
)
def test_another_load_may_be_the_reason(base: float, head: float, levels: tuple[int, int], kind: VerdictKind) -> None:
    sides = []
    for name, load, level in zip(("base", "head"), (base, head), levels, strict=True):
        found = [replace(e, machine=replace(e.machine, foreign_cpu=load)) for e in side(name, level).found]
        sides.append(Executions(name, tuple(found)))
    report = compare_executions(sides[0], sides[1], CompareOptions())
    assert report.verdict.kind is kind
    assert ("load or code?" in report.verdict.findings[0].message) == (kind is VerdictKind.INCONCLUSIVE)


@pytest.mark.parametrize("after", [0, 1, 2, 7])
def test_what_our_own_end_took_along_has_not_failed(after: int) -> None:
    report = contest(Machine(spoil=False, interrupted_after=after))
    assert report.interrupted == "SIGINT"
    assert report.verdict.kind is VerdictKind.INCONCLUSIVE
    assert any("it was ended by SIGINT" in finding.message for finding in report.verdict.findings)
    assert any(
        "it was ended" in found.message for _, _, judged in build_comparison_cases(report) for found in judged.findings
    )
    assert not any("failed" in finding.message for finding in report.verdict.findings)


def test_contaminated_executions_are_left_out_and_reported() -> None:
    dirty = tuple(replace(e, contaminated=("load",)) for e in side("dirt", 30, 3).found)
    head = Executions("head", (*side("head", 10).found, *dirty))
    report = compare_executions(side("base", 10), head, CompareOptions())
    assert report.verdict.kind is VerdictKind.PASS
    assert "3 contaminated executions are left out" in report.notes[0]
    assert len(report.metrics[0].head.values) == 12
    everything = compare_executions(side("base", 10), head, CompareOptions(everything=True))
    assert len(everything.metrics[0].head.values) == 15


def test_profiled_executions_are_left_out_and_reported() -> None:
    slow = tuple(replace(e, profiles=("trace",)) for e in side("slow", 30, 13).found)
    head = Executions("head", (*side("head", 10).found, *slow))
    report = compare_executions(side("base", 10), head, CompareOptions())
    assert report.verdict.kind is VerdictKind.PASS
    assert report.notes == ("head: 13 profiled executions are left out of 25 (include them with --all)",)
    assert len(report.metrics[0].head.values) == 12
    everything = compare_executions(side("base", 10), head, CompareOptions(everything=True))
    assert (len(everything.metrics[0].head.values), everything.notes) == (25, ())
    assert everything.verdict.kind is not VerdictKind.PASS


def stop(one: BenchExecution) -> BenchExecution:
    ended = Finding(VerdictKind.ERROR, "m.C.f", "SIGINT to the supervisor")
    return replace(one, state="stopped", result=BenchResult("m.C.f", False, has_exception=True, findings=(ended,)))


def test_an_interrupted_execution_has_not_failed() -> None:
    head = Executions("head", (*side("head", 10).found, stop(execution(20, 0.0))))
    for everything in (False, True):
        report = compare_executions(side("base", 10), head, CompareOptions(everything=everything))
        assert report.verdict.kind is VerdictKind.PASS
        assert report.notes == ("head: 1 interrupted execution is left out of 13",)


@pytest.mark.parametrize("names", [("head",), ("base",), ("base", "head")])
def test_a_benchmark_of_which_nothing_counts_is_never_passed_over(names: tuple[str, ...]) -> None:
    """Beside one that is as good as before."""
    sides = []
    for name in ("base", "head"):
        other = tuple(replace(e, method="m.C.other") for e in side(name, 10).found)
        aside = (*(replace(e, profiles=("trace",)) for e in other[:3]), replace(stop(other[3]), method="m.C.other"))
        sides.append(Executions(name, (*side(name, 10).found, *(aside if name in names else other))))
    report = compare_executions(sides[0], sides[1], CompareOptions())
    assert report.verdict.kind is VerdictKind.INCONCLUSIVE
    assert [finding.message for finding in report.verdict.findings if finding.subject == "m.C.other"] == [
        f"no execution of {name} counts: 3 profiled, 1 interrupted (include profiled ones: --all)" for name in names
    ]
    assert not any("only head has it" in note for note in report.notes)


def test_what_failed_while_it_was_profiled_has_failed() -> None:
    broken = tuple(
        replace(e, profiles=("trace",), result=replace(e.result, has_exception=True)) for e in side("h", 10).found[:1]
    )
    report = compare_executions(side("base", 10), Executions("head", (*side("h", 10).found, *broken)), CompareOptions())
    assert report.verdict.kind is VerdictKind.ERROR


def test_a_single_contaminated_process_does_not_count() -> None:
    one = execution(1, 10.0, contaminated=("load",))
    one = replace(one, result=replace(one.result, samples={"wall_time": tuple(10 + n / 100 for n in range(20))}))
    report = compare_executions(side("base", 5), Executions("head", (one,)), CompareOptions())
    assert report.verdict.kind is VerdictKind.INCONCLUSIVE
    assert "all trials of head are contaminated" in report.verdict.findings[0].message
    taken = compare_executions(side("base", 5), Executions("head", (one,)), CompareOptions(everything=True))
    assert taken.metrics[0].finding.effect is not None


def test_one_process_gives_its_samples_with_a_note() -> None:
    chance = random.Random(1)
    sides = []
    for name in ("base", "head"):
        one = execution(1, 10.0)
        samples = {"wall_time": tuple(10 + chance.gauss(0, 0.05) for _ in range(20))}
        sides.append(Executions(name, (replace(one, result=replace(one.result, samples=samples)),)))
    report = compare_executions(*sides, CompareOptions())
    assert len(report.metrics[0].base.values) == 20
    assert any("one process" in note for note in report.notes)
    assert report.verdict.kind is VerdictKind.INCONCLUSIVE  # however alike they are


def test_a_metric_that_is_not_there() -> None:
    with pytest.raises(NotFoundError, match="wall_tmie"):
        compare_executions(side("base", 10), side("head", 10), CompareOptions(metrics=("wall_tmie",)))


def test_only_a_rerun_makes_a_fail() -> None:
    first = compare_executions(side("base", 10), side("head", 11.5), CompareOptions())
    again = compare_executions(side("base", 10, seed=1), side("head", 11.5, seed=1), CompareOptions())
    calm = compare_executions(side("base", 10, seed=1), side("head", 10, seed=1), CompareOptions())
    confirmed = _settle(first, list(first.metrics), again, OPTIONS)
    assert confirmed.verdict.kind is VerdictKind.FAIL
    assert confirmed.metrics[0].confirmed is True
    assert "confirmed" in confirmed.metrics[0].finding.message
    settled = _settle(first, list(first.metrics), calm, OPTIONS)
    assert settled.verdict.kind is VerdictKind.INCONCLUSIVE
    assert settled.metrics[0].confirmed is False


def test_a_fail_and_a_rerun_that_agrees_are_pooled() -> None:
    """Of few trials the second round may not be sure by itself."""
    first = compare_executions(side("base", 10), side("head", 11.5), CompareOptions())
    found = compare_executions(side("base", 10, seed=1), side("head", 11.5, seed=1), CompareOptions())
    (metric,) = found.metrics
    unsure = replace(metric, finding=replace(metric.finding, kind=VerdictKind.INCONCLUSIVE, message="not sure"))
    pooled = _settle(first, list(first.metrics), replace(found, metrics=(unsure,)), OPTIONS)
    assert pooled.verdict.kind is VerdictKind.FAIL
    (joined,) = pooled.metrics
    assert joined.confirmed is True
    assert "in both rounds together" in joined.finding.message
    assert len(joined.base.values) == len(first.metrics[0].base.values) + len(metric.base.values)
    opposite = replace(unsure, finding=replace(unsure.finding, effect=-0.02))
    assert _settle(first, list(first.metrics), replace(found, metrics=(opposite,)), OPTIONS).verdict.kind is (
        VerdictKind.INCONCLUSIVE
    )


def test_a_benchmark_that_fails_on_both_sides_is_no_error_of_the_comparison() -> None:
    good = [side(name, 10) for name in ("base", "head")]
    words = Finding(VerdictKind.ERROR, "m.C.bad", "ValueError: broken for weeks")
    crash = BenchResult("m.C.bad", False, has_exception=True, findings=(words,))
    bad = [[replace(e, method="m.C.bad", result=crash) for e in one.found[:3]] for one in good]
    sides = [replace(one, found=(*one.found, *other)) for one, other in zip(good, bad, strict=True)]
    report = compare_executions(*sides, CompareOptions())
    assert report.verdict.kind is VerdictKind.INCONCLUSIVE
    assert [found.message for found in report.verdict.findings if "both sides" in found.message]
    worse = replace(side("head", 13), found=(*side("head", 13).found, *bad[1]))
    assert compare_executions(sides[0], worse, CompareOptions()).verdict.kind is VerdictKind.FAIL
    one_sided = compare_executions(good[0], sides[1], CompareOptions())
    assert one_sided.verdict.kind is not VerdictKind.PASS


def test_a_command_has_as_many_trials_as_its_metrics_need() -> None:
    """p is corrected for wall time, CPU time and memory: of five trials none could ever fail."""
    variants = (BenchVariant("base"), BenchVariant("head"))
    asked = replace(request("m.C.f", trials=5, variants=variants), methods=(BenchMethod("true", "true", "command"),))
    machine = Machine(spoil=False)
    Contest(asked, CompareOptions(), machine.run, SILENT).run()
    assert machine.trials[0] == 6
    assert 2 / math.comb(12, 6) * 3 < ALPHA < 2 / math.comb(10, 5) * 3


@pytest.mark.parametrize("span", ["main", "..", "main..", "..HEAD", ""])
def test_spans_that_name_no_two_commits(span: str) -> None:
    assert parse_span("a...b") == parse_span("a..b") == ("a", "b")
    with pytest.raises(UsageError, match="does not name two commits"):
        parse_span(span)


# ---------------------------------------------------------------- labels, commits and files


def test_sides_by_label_folder_and_file(lab: Path) -> None:
    one = run_benchmarks(request("mod.B.fixed", trials=2, label="one")).executions
    run_benchmarks(request("mod.B.fixed", trials=2, label="two"))
    by_label = compare_recorded("one", "two", None, "runs", CompareOptions())
    assert by_label.metrics[0].base.values == (0.5, 0.5)
    by_folder = compare_recorded(one[0].run_dir, "two", "B.fixed", "runs", CompareOptions())
    assert by_folder.metrics[0].base.values == (0.5,)
    with pytest.raises(NotFoundError, match="onne"):
        compare_recorded("onne", "two", None, "runs", CompareOptions())
    google = {"context": {}, "benchmarks": [{"name": "mod.B.fixed", "real_time": 1, "cpu_time": 1, "time_unit": "s"}]}
    (lab / "g.json").write_text(json.dumps(google))
    by_file = compare_recorded("g.json", "two", None, "runs", CompareOptions())
    assert "wall_time" in [metric.metric for metric in by_file.metrics]


def test_verdicts_are_in_the_index_of_a_study(lab: Path) -> None:
    location = find_location("runs")
    for each in (*side("base", 10, label="base").found, *side("head", 13, label="head").found):
        write_as_run(location, replace(each, execution_id=f"{each.label}-{each.execution_id}"), None)
    report = compare_recorded("base", "head", None, "runs", CompareOptions())
    (line,) = (Path(location.dir) / ".assay" / "verdicts.jsonl").read_text().splitlines()
    assert json.loads(line)["source"] == "bench compare"
    with open_index(location.root) as index, contextlib.closing(sqlite3.connect(index.path)) as database:
        (row,) = database.execute("SELECT study, key, source, result, subject, effect FROM verdicts")
    assert tuple(row) == ("bench", None, "bench compare", "FAIL", "m.C.f wall_time", report.metrics[0].finding.effect)
    folders = [str(path) for path in sorted(Path(location.dir).glob("*_C.f"))]
    compare_recorded(folders[0], folders[-1], None, "elsewhere", CompareOptions())
    assert not Path("elsewhere").exists(), "files outside a study leave nothing"


def test_without_any_history_it_is_reported(lab: Path) -> None:
    with pytest.raises(UsageError, match="there is no benchmark under"):
        compare_recorded("one", "two", None, "runs", CompareOptions())


def test_comparing_a_side_with_itself_is_refused(lab: Path) -> None:
    run_benchmarks(request("mod.B.fixed", trials=2, label="one"))
    with pytest.raises(UsageError, match="base and head are both one, the same 2 executions"):
        compare_recorded("one", "one", None, "runs", CompareOptions())
    with pytest.raises(UsageError, match="are the same 2 executions: there is nothing to compare"):
        compare_recorded("one", "runs/bench", None, "runs", CompareOptions())


# ---------------------------------------------------------------- metrics that are gone


def reporting(name: str, lists: list[dict[str, float]]) -> Executions:
    chance = random.Random(name)
    results = [
        BenchResult("m.C.f", True, wall_time=10 * (1 + chance.gauss(0, 0.01)), extras=dict(extras)) for extras in lists
    ]
    return Executions(name, tuple(execution(n, 10.0, result=result) for n, result in enumerate(results)))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({}, "base reports speed, head does not report it"),
        ({"velocity": 5.0}, "base reports speed, head does not report it (only head has velocity)"),
    ],
)
def test_a_metric_that_head_has_lost_is_an_error(head: dict[str, float], message: str) -> None:
    base = reporting("base", [{"speed": 5.0}] * 12)
    found = compare_executions(base, reporting("head", [head] * 12), OPTIONS)
    assert found.verdict.kind is VerdictKind.ERROR
    assert message in [finding.message for finding in found.verdict.findings]
    assert "wall_time" in [metric.metric for metric in found.metrics]
    cases = build_comparison_cases(found)
    assert any(verdict.kind is VerdictKind.ERROR for _, _, verdict in cases)
    only = CompareOptions(metrics=("wall_time",))
    assert compare_executions(base, reporting("head", [head] * 12), only).verdict.kind is VerdictKind.PASS
    lost = CompareOptions(metrics=("speed",))
    assert compare_executions(base, reporting("head", [head] * 12), lost).verdict.kind is VerdictKind.ERROR
    assert compare_executions(reporting("head", [head] * 12), base, OPTIONS).verdict.kind is (
        VerdictKind.ERROR if head else VerdictKind.PASS
    )


def test_a_metric_that_head_reports_sometimes_is_an_error() -> None:
    base, head = [{"speed": 5.0}] * 12, [{"speed": 5.0}] * 9 + [{}] * 3
    found = compare_executions(reporting("base", base), reporting("head", head), OPTIONS)
    assert found.verdict.kind is VerdictKind.ERROR
    assert "head lacks it in 3 of 12" in found.verdict.findings[0].message
    assert compare_executions(reporting("head", head), reporting("b", head), OPTIONS).verdict.kind is VerdictKind.PASS


def test_memory_that_could_not_be_measured_is_not_a_lost_metric() -> None:
    base = side("base", 10.0, peaks=Peaks(max_rss=10**7))
    assert compare_executions(base, side("head", 10.0), OPTIONS).verdict.kind is VerdictKind.PASS


# ---------------------------------------------------------------- environments

V100, T4 = {"accelerator_model": "V100"}, {"accelerator_model": "T4"}


def join(*sides: Executions) -> Executions:
    return Executions(sides[0].name, tuple(e for side in sides for e in side.found))


@pytest.mark.parametrize("head", [10.0, 13.0, 7.0])
def test_another_machine_is_not_blamed_on_the_code(head: float) -> None:
    sides = side("base", 10, setup=V100, commit="a"), side("head", head, setup=T4, commit="a")
    report = compare_executions(*sides, CompareOptions())
    assert report.verdict.kind is VerdictKind.INCONCLUSIVE
    words = report.metrics[0].finding.message
    assert words.startswith(
        "environment or code? The environments differ (accelerator_model V100 → T4); the code is the"
    )
    assert report.metrics[0].finding.effect == pytest.approx(head / 10 - 1, abs=0.02)
    assert any("--across-setups" in note for note in report.notes)


@pytest.mark.parametrize(("head", "kind"), [(10.0, VerdictKind.PASS), (13.0, VerdictKind.FAIL)])
def test_it_can_be_judged_all_the_same(head: float, kind: VerdictKind) -> None:
    sides = side("base", 10, setup=V100), side("head", head, setup=T4)
    report = compare_executions(*sides, CompareOptions(across=True))
    assert report.verdict.kind is kind
    assert "environments differ (accelerator_model V100 → T4), and are compared nevertheless" in report.notes[0]


def test_values_that_are_no_numbers_fail_on_any_machine() -> None:
    broken = side("head", float("nan"), setup=T4)
    assert compare_executions(side("base", 10, setup=V100), broken, CompareOptions()).verdict.kind is VerdictKind.FAIL


def test_mixed_set_ups_are_split_so_that_a_slowdown_shows() -> None:
    """Together the two machines would hide it."""
    base = join(side("base", 10, 8, setup=V100), side("base", 20, 8, 1, setup=T4))
    head = join(side("head", 10, 8, setup=V100), side("head", 26, 8, 1, setup=T4))
    report = compare_executions(base, head, CompareOptions())
    assert [(m.setup, m.finding.kind) for m in report.metrics] == [
        ("accelerator_model V100", VerdictKind.PASS),
        ("accelerator_model T4", VerdictKind.FAIL),
    ]
    assert "(accelerator_model T4)" in report.metrics[1].finding.subject
    assert report.verdict.comparisons == 2
    mixed = compare_executions(base, head, CompareOptions(across=True))
    assert mixed.verdict.kind is VerdictKind.INCONCLUSIVE
    assert any("base mixes 2 environments" in note for note in mixed.notes)


def test_only_the_common_environment_counts() -> None:
    base = side("base", 10, setup=V100)
    slow = Executions("head", tuple(execution(50 + n, 30.0, setup=T4) for n in range(12)))
    report = compare_executions(base, join(side("head", 10, setup=V100), slow), CompareOptions())
    assert report.verdict.kind is VerdictKind.PASS
    assert len(report.metrics[0].head.values) == 12
    assert any("12 executions of head left out, environment" in note for note in report.notes)


class Changing(Machine):
    """Head loads a library that base does not: the environment comes with the commit."""

    def _execute(self, label: str) -> BenchExecution:
        found = super()._execute(label)
        setup = {"cpu_model": "one"} | ({"numba": "1"} if label == "head" else {})
        return replace(found, setup=setup, fingerprint=label)


def test_commits_in_turns_are_judged_whatever_they_load() -> None:
    report = contest(Changing(spoil=False))
    assert report.verdict.kind is VerdictKind.PASS
    assert "numba none → 1" in report.notes[0]


# ---------------------------------------------------------------- declared invalid


def write_side(label: str, first: int, values: list[float]) -> None:
    location = find_location("runs")
    Path(location.dir).mkdir(parents=True, exist_ok=True)
    for number, value in enumerate(values, first):
        write_as_run(location, execution(number, value, label=label), None)


def test_what_was_declared_invalid_is_left_out_and_reported(lab: Path) -> None:
    chance = random.Random(3)
    levels = [1.0] * 20 + [1.5] * 14
    values = [level * (1 + chance.gauss(0, 0.005)) for level in levels]
    write_side("ib", 0, values[:10])
    write_side("ih", 10, values[10:])
    assert compare_recorded("ib", "ih", None, "runs", CompareOptions()).verdict.kind is not VerdictKind.PASS
    word = Triage("m.C.f", "wall_time", "e0020", "e0033", "invalid")
    add_triage(find_location("runs").dir, word)
    report = compare_recorded("ib", "ih", None, "runs", CompareOptions())
    assert report.verdict.kind is VerdictKind.PASS
    assert report.notes == ("m.C.f wall_time: 14 executions of ih left out: declared invalid",)
    folders = compare_recorded("runs/bench", "ih", None, "runs", CompareOptions())
    assert len(folders.metrics[0].base.values) == 20  # the executions named by their folder
    shutil.copytree("runs/bench", "sent")
    sent = compare_recorded("sent", "ih", None, "runs", CompareOptions())
    assert len(sent.metrics[0].base.values) == 34  # executions of others are not triaged
    add_triage(find_location("runs").dir, replace(word, judgement="open"))
    assert compare_recorded("ib", "ih", None, "runs", CompareOptions()).verdict.kind is not VerdictKind.PASS


def test_a_failure_that_was_declared_invalid_is_none() -> None:
    broken = tuple(replace(e, result=replace(e.result, has_exception=True)) for e in side("x", 10, 1).found)
    head = Executions("head", (*broken, *(execution(20 + n, 10.0 + n / 99) for n in range(12))))
    assert compare_executions(side("base", 10), head, CompareOptions()).verdict.kind is VerdictKind.ERROR
    spoken = replace(head, invalid={("m.C.f", "wall_time"): {"e0000"}})
    assert compare_executions(side("base", 10), spoken, CompareOptions()).verdict.kind is VerdictKind.PASS


def test_nothing_left_is_an_error() -> None:
    head = side("head", 10)
    spoken = replace(head, invalid={("m.C.f", "wall_time"): {e.execution_id for e in head.found}})
    report = compare_executions(side("base", 10), spoken, CompareOptions())
    assert report.verdict.kind is VerdictKind.ERROR
    assert "head has no values" in report.verdict.findings[0].message


# ---------------------------------------------------------------- as people read it


def test_a_ratio_of_single_values_is_marked_as_not_significant() -> None:
    sides = [Executions(name, (execution(1, value),)) for name, value in (("base", 10.0), ("head", 12.0))]
    text = render_terminal(build_comparison_document(compare_executions(*sides, CompareOptions())), width=100)
    assert "+20.0% not significant" in text


def test_sizes_have_units() -> None:
    peaks = Peaks(max_rss=300 << 20, gpu_memory_bytes=3 << 30)
    sides = [Executions(name, tuple(execution(n, 10.0, peaks=peaks) for n in range(8))) for name in ("base", "head")]
    text = render_terminal(build_comparison_document(compare_executions(*sides, CompareOptions())), width=120)
    assert "peak_memory" in text
    assert "300 MiB ±0.0%" in text
    assert "3 GiB ±0.0%" in text
