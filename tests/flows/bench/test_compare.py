"""Comparisons of what is recorded, and what a rerun settles."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.flows.bench.laboratory import execution, request

from assay.errors import NotFoundError, UsageError
from assay.flows.bench.compare import (
    CompareOptions,
    Executions,
    _settle,
    compare_executions,
    compare_recorded,
    parse_span,
)
from assay.flows.bench.run import run_benchmarks
from assay.values.verdict import VerdictKind


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
