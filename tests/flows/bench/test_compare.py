"""Comparisons of what is recorded, and what a rerun settles."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.flows.bench.laboratory import execution, request

from assay.errors import NotFoundError, UsageError
from assay.flows.bench.compare import (
    CompareOptions,
    Contest,
    Executions,
    _settle,
    compare_executions,
    compare_recorded,
    parse_span,
)
from assay.flows.bench.run import run_benchmarks
from assay.values.bench_history import ComparisonReport
from assay.values.benchmark import BenchExecution, BenchReport, BenchRequest, BenchResult, BenchVariant
from assay.values.verdict import Finding, VerdictKind


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


def test_the_direction_can_be_told() -> None:
    options = CompareOptions(directions={"wall_time": "max"})
    assert compare_executions(side("base", 10), side("head", 11.5), options).verdict.kind is VerdictKind.CHANGED


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


# ---------------------------------------------------------------- in turns, on a busy machine


class Machine:
    """Runs what is asked for, and keeps count. `spoil`: others use the CPUs all the while."""

    def __init__(self, spoil: bool = True, interrupted_after: int | None = None) -> None:
        self.spoil = spoil
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
        dirt = (f"others used {50 + self.number % 40}% of the CPUs meanwhile",) if self.spoil else ()
        return execution(self.number, 10.0 + 0.001 * (self.number % 7), label=label, contaminated=dirt)


def contest(machine: Machine, trials: int = 10, **options: Any) -> ComparisonReport:
    variants = (BenchVariant("base"), BenchVariant("head"))
    asked = request("m.C.f", trials=trials, variants=variants)
    return Contest(asked, CompareOptions(**options), machine.run, lambda _line: None).run()


@pytest.mark.parametrize(("trials", "most"), [(10, 30), (3, 3), (5, 6)])
def test_a_busy_machine_does_not_keep_it_running_for_ever(trials: int, most: int) -> None:
    machine = Machine()
    report = contest(machine, trials, most=most)
    assert sum(machine.trials) == most
    assert report.verdict.kind is VerdictKind.INCONCLUSIVE
    (finding,) = report.verdict.findings
    assert finding.message.startswith("all trials of base and head are contaminated; base: ")
    assert f"{most} of {most} trials left out: others used 5" in finding.message
    assert finding.message.count("left out") == 2
    assert (
        f"base: {most} contaminated executions are left out of {most} (--all takes them, --foreign" in report.notes[0]
    )


def test_all_of_them_can_be_taken() -> None:
    machine = Machine()
    assert contest(machine, everything=True).verdict.kind is VerdictKind.PASS
    assert machine.trials == [10]


@pytest.mark.parametrize("after", [0, 1, 2, 7])
def test_what_our_own_end_took_along_has_not_failed(after: int) -> None:
    report = contest(Machine(spoil=False, interrupted_after=after))
    assert report.interrupted == "SIGINT"
    assert report.verdict.kind is VerdictKind.INCONCLUSIVE
    assert not any("failed" in finding.message for finding in report.verdict.findings)


def test_too_few_trials_are_inconclusive() -> None:
    report = compare_executions(side("base", 10, 2), side("head", 10, 2), CompareOptions())
    assert report.verdict.kind is not VerdictKind.PASS


def test_contaminated_executions_are_left_out_and_said() -> None:
    dirty = tuple(replace(e, contaminated=("load",)) for e in side("dirt", 30, 3).found)
    head = Executions("head", (*side("head", 10).found, *dirty))
    report = compare_executions(side("base", 10), head, CompareOptions())
    assert report.verdict.kind is VerdictKind.PASS
    assert "3 contaminated executions are left out" in report.notes[0]
    assert len(report.metrics[0].head.values) == 12
    everything = compare_executions(side("base", 10), head, CompareOptions(everything=True))
    assert len(everything.metrics[0].head.values) == 15


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
    confirmed = _settle(first, list(first.metrics), again)
    assert confirmed.verdict.kind is VerdictKind.FAIL
    assert confirmed.metrics[0].confirmed is True
    assert "confirmed" in confirmed.metrics[0].finding.message
    settled = _settle(first, list(first.metrics), calm)
    assert settled.verdict.kind is VerdictKind.INCONCLUSIVE
    assert settled.metrics[0].confirmed is False


@pytest.mark.parametrize("span", ["main", "..", "main..", "..HEAD", ""])
def test_spans_that_name_no_two_commits(span: str) -> None:
    with pytest.raises(UsageError, match="no two commits"):
        parse_span(span)


def test_three_dots_are_two() -> None:
    assert parse_span("a...b") == ("a", "b")


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


def test_without_any_history_it_is_said(lab: Path) -> None:
    with pytest.raises(UsageError, match="there is no benchmark under"):
        compare_recorded("one", "two", None, "runs", CompareOptions())
