"""Benchmarks as text: tables, reports for CI, histories."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.bench_samples import execution

from assay.bench.report.executions import (
    Cases,
    build_bench_document,
    build_report_facts,
    build_run_cases,
    build_run_document,
    render_execution,
    render_values,
)
from assay.bench.values.execution import BenchExecution, BenchReport, BenchResult
from assay.show.junit import render_junit
from assay.show.markdown import render_markdown
from assay.show.terminal_report import render_terminal
from assay.values.verdict import Finding, Verdict, VerdictKind

BAD = Finding(VerdictKind.FAIL, "m", "worse | than\x00before", effect=0.1, interval=(0.05, 0.15))
CASES = [
    ("m.C.f", "wall_time", Verdict.of([], 1)),
    ("m.C.g", "wall_time", Verdict.of([BAD], 1)),
    ("m.C.h", "x", Verdict.of([], 0)),
]


def render_report(*executions: BenchExecution, width: int | None = None, **fields: Any) -> str:
    return render_terminal(build_run_document(BenchReport(executions, **fields)), color=False, width=width)


def count_junit(cases: Cases, allow_changed: bool = False) -> tuple[list[str | None], ET.Element]:
    """Tests, failures, errors and skipped ones."""
    suites = ET.fromstring(render_junit(build_bench_document("title", cases, (), None, allow_changed=allow_changed)))
    return [suites.get(name) for name in ("tests", "failures", "errors", "skipped")], suites


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("wall_time", [0.0025], "2.5 ms"),
        ("part1.wall_time", [0.0025], "2.5 ms"),
        ("wall_time", [2.5e-6], "2.5 µs"),
        ("wall_time", [2.5e-10], "0.25 ns"),
        ("wall_time", [3600.0], "1h"),
        ("throughput", [1234.5], "1234"),
        ("throughput", [62081446542.0], "62.08 G"),
        ("throughput", [172498620503.0] * 3, "172.5 G ±0.0%"),
        ("bytes", [-5e6], "-5 M"),
        ("bytes", [999999], "999999"),
        ("x", [1e20], "1e20"),
        ("x", [1e308] * 4, "1e308 ±0.0%"),
        ("x", [1.0, 1.0, 1.0], "1 ±0.0%"),
        ("x", [math.nan], "nan"),
        ("x", [math.nan, 2.0], "2"),
        ("x", [0.0, 0.0, 0.0], "0"),
        ("x", [], None),
    ],
)
def test_values(name: str, values: list[float], text: str | None) -> None:
    assert render_values(name, values) == text


DIRTY = replace(execution(1, 2.0), contaminated=("others used 81% of the CPUs",))


def test_a_report_names_every_trouble_once() -> None:
    good = execution(1, 2.0)
    bad = replace(good, trial=2, result=replace(good.result, succeeded=False, findings=(BAD,)))
    dirty = replace(good, trial=3, contaminated=("load",), refused=True)
    text = render_report(good, bad, dirty)
    assert "1/3" in text
    assert text.count("FAIL m.C.f: worse") == 1
    assert "\x00" not in text
    assert "REFUSED m.C.f: load (trial 3)" in text
    facts = build_report_facts(BenchReport((good, bad)))
    assert [each["succeeded"] for each in facts["executions"]] == [True, False]
    kinds = [verdict.kind for _, _, verdict in build_run_cases(BenchReport((good, bad, dirty)))]
    assert kinds == [VerdictKind.PASS, VerdictKind.FAIL, VerdictKind.INCONCLUSIVE]
    assert render_report() == ""
    long = replace(bad, result=replace(bad.result, findings=(replace(BAD, message="a long reported " * 20),)))
    assert max(map(len, render_report(long, width=60).splitlines())) <= 60


def test_logs_of_failures_and_traces_are_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    good = execution(1, 2.0, profiles=("profile/trace.json",))
    good = replace(good, run_dir=str(tmp_path / "runs" / "a"))
    failed = replace(good.result, succeeded=False, has_exception=True)
    bad = [replace(good, trial=n, result=failed, log="bench.log", profiles=()) for n in (2, 3)]
    lines = render_report(good, *bad).splitlines()
    assert lines[-2:] == ["log of m.C.f: runs/a/bench.log", "profile of m.C.f: runs/a/profile/trace.json"]
    assert sum("log of" in line for line in lines) == 1


def test_markdown_and_junit_never_pass_what_is_not_good() -> None:
    text = render_markdown(build_bench_document("title", CASES, (), None))
    assert text.startswith("## ❌ title: ERROR")
    assert "| FAIL | m.C.g | wall\\_time | worse \\| than\\\\x00before | +10.0% \\[+5.0%, +15.0%\\] |" in text
    assert "m.C.f" not in text
    assert "|" not in render_markdown(build_bench_document("t", CASES[:1], (), None))
    counts, suites = count_junit(CASES)
    assert counts == ["3", "1", "1", "0"]
    failure = suites.find(".//testcase[@classname='m.C.g']/failure")
    assert failure is not None
    assert (failure.get("type"), failure.get("message")) == ("FAIL", "worse | than\\x00before")


def test_junit_is_as_red_as_the_exit_code() -> None:
    unsure = replace(BAD, kind=VerdictKind.INCONCLUSIVE, message="needs 3 more trials")
    better = replace(BAD, kind=VerdictKind.CHANGED, message="better")
    for findings, allow_changed, expected, message in (
        ([unsure], False, ["1", "0", "0", "1"], "INCONCLUSIVE: needs 3 more trials"),
        ([unsure, BAD], False, ["1", "1", "0", "0"], None),
        ([better], False, ["1", "1", "0", "0"], None),
        ([better], True, ["1", "0", "0", "1"], "CHANGED, allowed: better"),
        ([BAD], True, ["1", "1", "0", "0"], None),
    ):
        counts, suites = count_junit([("m.C.f", "wall_time", Verdict.of(findings, 1))], allow_changed)
        assert counts == expected
        assert [each.get("message") for each in suites.iter("skipped")] == ([message] if message else [])


def test_an_interrupted_execution_is_a_note_and_no_failure() -> None:
    ended = Finding(VerdictKind.ERROR, "m.C.f", "SIGINT to the supervisor")
    good = execution(1, 2.0)
    result = replace(good.result, succeeded=False, has_exception=True, findings=(ended,), wall_time=0.1)
    cut = replace(good, trial=2, state="stopped", log="bench.log", result=result)
    assert render_execution(cut, 2, 5) == "[2/5] m.C.f trial 2: interrupted: SIGINT to the supervisor"
    text = render_report(good, cut, interrupted="SIGINT")
    assert "interrupted m.C.f: SIGINT to the supervisor (trial 2)\n" in text
    assert text.splitlines()[2].split()[:4] == ["m.C.f", "1/1", "2", "s"], "what it took until then is no figure"
    assert "ERROR" not in text
    assert "log of" not in text
    counts, suites = count_junit(build_run_cases(BenchReport((good, cut), interrupted="SIGINT")))
    assert counts == ["2", "0", "0", "1"]
    (skipped,) = suites.iter("skipped")
    assert "interrupted: SIGINT to the supervisor" in str(skipped.get("message"))
    assert count_junit(build_run_cases(BenchReport((replace(cut, state="failed"),))))[0][2] == "1"


LONG = "company.benchmarks.vision.transformers.large_models.TransformerBenchmark.training_step"


@pytest.mark.parametrize("width", [60, 100, 140])
def test_long_names_are_cut_from_the_left_and_no_row_breaks(width: int) -> None:
    figures = {f"metric_{n}": 1234.5 * n for n in range(1, 6)}
    runs = []
    for n, name in enumerate(("small", "large")):
        one = execution(n, 2.0)
        runs.append(replace(one, method=f"{LONG}_{name}", result=replace(one.result, extras=figures)))
    text = render_report(*runs, width=width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    for line, name in zip(lines[2:4], ("small", "large"), strict=True):
        assert line.startswith("…")
        assert f"training_step_{name}  " in line
        assert " 2 s " in line
    rest = ", ".join(name for name in figures if name not in lines[0])
    assert (f"(no room here for {rest}: --json has them)" in " ".join(text.split())) is bool(rest)
    assert LONG in render_report(*runs), "never in a pipe"


def test_an_execution_in_a_line() -> None:
    good = execution(1, 0.0025, label="nightly")
    assert render_execution(good, 3, 12) == "[ 3/12] m.C.f nightly trial 1: wall_time 2.5 ms"
    dirty = replace(good, contaminated=("others used 50% of the CPUs during the run", "and more"))
    assert render_execution(dirty, 3, 3).endswith("2.5 ms (contaminated: others used 50% of the CPUs during the run)")
    assert "(refused: others" in render_execution(replace(dirty, refused=True), 3, 3)
    bad = replace(good, result=replace(good.result, findings=(BAD,)))
    assert render_execution(bad, 12, 12) == "[12/12] m.C.f nightly trial 1: FAIL: worse | than\\x00before"
    silent = replace(good, result=BenchResult("m.C.f", True))
    assert render_execution(silent, 1, 1).endswith("it reported nothing")
    timed = replace(DIRTY, result=replace(DIRTY.result, cpu_time=1.5))
    end = "wall_time 2 s, cpu_time 1.5 s (contaminated: others used 81% of the CPUs)"
    assert render_execution(timed, 1, 1).endswith(end)


def test_contamination_of_many_trials_is_one_line() -> None:
    dirt = [replace(execution(n, 2.0), trial=n, contaminated=(f"others used {80 + n}% of the CPUs",)) for n in (1, 2)]
    failed = replace(dirt[0], trial=3, result=replace(dirt[0].result, succeeded=False))
    text = render_report(*dirt, failed)
    assert "contaminated: others used 81 to 82% of the CPUs (2 of 3 executions)\n" in text
    assert text.count("contaminated") == 1
    other = replace(dirt[1], method="m.C.g")  # once for all benchmarks
    assert "contaminated: others used 81 to 82% of the CPUs (2 of 2 executions)\n" in render_report(dirt[0], other)


def test_cpu_time_is_advised_only_where_it_was_measured() -> None:
    without = render_report(DIRTY)
    assert "in brackets: disturbed results of wall_time, which are left out" in without
    assert "or take them with --all\n" in without
    assert "cpu_time" not in without
    timed = replace(DIRTY, result=replace(DIRTY.result, cpu_time=1.5), run_dir=os.path.abspath("runs/bench/x"))
    assert "cpu_time counts" not in render_report(DIRTY, timed), "a single one is not a history"
    text = render_report(timed, timed)
    assert "cpu_time counts: `assay bench history cpu_time m.C.f`\n" in text
    assert "(2 s)" in text
    assert " 1.5 s " in text
    moved = replace(timed, run_dir=os.path.abspath("my runs/bench/x"))
    assert "`assay bench history cpu_time m.C.f --root 'my runs'`\n" in render_report(moved, moved)
