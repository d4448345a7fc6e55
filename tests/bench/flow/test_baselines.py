"""Names for executions: they stay, and are compared with what comes later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench_samples import history, write_archive

from assay.bench.flow.archive import find_location
from assay.bench.flow.baselines import remove_baseline, set_baseline
from assay.bench.flow.compare import CompareOptions, compare_baseline, compare_recorded
from assay.bench.records import Baseline, load_named
from assay.bench.values.execution import BenchExecution, BenchReport, parse_method
from assay.errors import FormatError, NotFoundError, UsageError
from assay.values.environment import GitState
from assay.values.verdict import VerdictKind

OPTIONS = CompareOptions(metrics=("wall_time",))


def add(lab: Path, first: int, values: list[float], **fields: object) -> list[BenchExecution]:
    made = history(values, first, **fields)
    write_archive(lab / "runs", made)
    return made


def noisy(level: float) -> list[float]:
    return [level * (1 + number / 1000) for number in range(8)]


def test_a_baseline_stays_although_newer_executions_come(lab: Path) -> None:
    commit = "a" * 40
    add(lab, 0, noisy(1.0), commit=commit)
    assert len(set_baseline("main", "aaaa", "runs").runs) == 8
    add(lab, 20, noisy(1.5), commit=commit)  # newer, of the same commit: slower
    report = compare_baseline("main", None, None, "runs", OPTIONS)
    assert report.verdict.kind is VerdictKind.FAIL
    assert report.metrics[0].base.executions == 8
    assert report.metrics[0].finding.effect == pytest.approx(0.5, abs=0.02)
    add(lab, 40, noisy(1.0), commit="b" * 40)  # the newest code is compared, not what came between
    assert compare_baseline("main", None, None, "runs", OPTIONS).verdict.kind is VerdictKind.PASS
    assert compare_recorded("main", "bbbb", None, "runs", OPTIONS).verdict.kind is VerdictKind.PASS
    now = BenchReport(tuple(history(noisy(1.5), 60)), interrupted="SIGINT")
    assert compare_baseline("main", lambda: now, None, "runs", OPTIONS).interrupted == "SIGINT"
    remove_baseline("main", "runs")
    assert load_named(find_location("runs").dir, Baseline) == {}


def test_what_is_named_and_gone_is_an_error_and_other_benchmarks_are_noted(lab: Path) -> None:
    names = ("m.C.f", "m.C.g", "m.D.h")
    for number, name in enumerate(names):
        add(lab, 20 * number, noisy(1.0), commit="a" * 40, method=name)
    set_baseline("main", "aaaa", "runs")
    now = BenchReport(tuple(history(noisy(1.0), 90, method="m.C.f")))
    report = compare_baseline("main", lambda: now, None, "runs", OPTIONS, asked=[parse_method("m.C.filter:.*")])
    bad = [finding for finding in report.verdict.findings if finding.kind is VerdictKind.ERROR]
    assert [(finding.subject, finding.message) for finding in bad] == [("m.C.g", "main has it, now does not")]
    assert "main has other benchmarks, which were not executed now: m.D.h" in report.notes
    passed = compare_baseline("main", lambda: now, None, "runs", OPTIONS, asked=[parse_method("m.C.f")])
    assert passed.verdict.kind is VerdictKind.PASS
    assert "main has other benchmarks, which were not executed now: m.C.g, m.D.h" in passed.notes


def test_local_edits_and_failures_are_not_a_baseline(lab: Path) -> None:
    commit = "a" * 40
    edited = GitState(commit, None, True, diff="+ an edit")
    add(lab, 0, [1.0], commit=commit, git=edited)
    with pytest.raises(UsageError, match="no execution of aaaa that could be a baseline"):
        set_baseline("main", "aaaa", "runs")
    (failed,) = add(lab, 1, [1.0], commit="b" * 40)
    failed = replace(failed, execution_id="e0009", result=replace(failed.result, succeeded=False, has_exception=True))
    write_archive(lab / "runs", [failed])
    assert len(set_baseline("main", "bbbb", "runs").runs) == 1


def test_a_baseline_that_is_not_there_is_named(lab: Path) -> None:
    add(lab, 0, [1.0, 1.1], label="release")
    set_baseline("release", "release", "runs")
    for call in (
        lambda: compare_baseline("relaese", None, None, "runs", OPTIONS),
        lambda: remove_baseline("relaese", "runs"),
    ):
        with pytest.raises(NotFoundError, match="no baseline named 'relaese'") as refused:
            call()
        assert refused.value.hint == "did you mean 'release'?"
    with pytest.raises(UsageError, match="nothing was executed besides the baseline release"):
        compare_baseline("release", None, None, "runs", OPTIONS)
    with pytest.raises(UsageError, match="is not a name for a baseline"):
        set_baseline("a b", "release", "runs")
    (lab / "runs/bench/.assay/baselines.json").write_text("{")
    with pytest.raises(FormatError, match=r"baselines\.json cannot be read"):
        load_named(find_location("runs").dir, Baseline)
