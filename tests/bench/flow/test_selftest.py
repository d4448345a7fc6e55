"""Equal code against itself, and gates below what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.bench_samples import execution

from assay.bench.flow.archive import find_location
from assay.bench.flow.compare import Run
from assay.bench.flow.selftest import WORK, check_gate, run_selftest
from assay.bench.records import Selftest, load_named
from assay.bench.report.history import build_selftest_document
from assay.bench.values.execution import BenchReport, BenchRequest
from assay.errors import UsageError
from assay.show.terminal_report import render_terminal
from assay.values.verdict import VerdictKind

REQUEST = BenchRequest((WORK,), trials=10, root="runs")
NOISE = [0.97, 1.0, 1.02, 0.99, 1.01, 1.03, 0.98, 1.0, 1.01, 0.99]


def answer(a: Sequence[float], b: Sequence[float], interrupted: str | None = None) -> Run:
    def run(request: BenchRequest) -> BenchReport:
        assert request.extra == {"part_of": "comparison"}  # it is not in the history
        found = [
            execution(n, value, label=label) for label, side in (("a", a), ("b", b)) for n, value in enumerate(side)
        ]
        return BenchReport(tuple(found), interrupted)

    return run


def test_a_gate_below_what_equal_code_shows_is_refused_with_the_figure(lab: Path) -> None:
    check_gate(0.0, (), (), 10, "runs")  # nothing is known yet
    found = run_selftest(REQUEST, answer(NOISE, NOISE[::-1]))
    assert found.report.verdict.kind is not VerdictKind.FAIL
    assert found.kept
    visible = found.found.visible["wall_time"]
    assert 0.02 < visible < 0.06
    with pytest.raises(
        UsageError, match=rf"10 trials on each side show no wall_time effect below {visible:.2%}"
    ) as refused:
        check_gate(0.01, (), (), 10, "runs")
    assert refused.value.hint is not None
    assert "--most-trials" in refused.value.hint
    check_gate(visible * 1.01, (), (), 10, "runs")
    check_gate(visible * 0.51, ("wall_time",), (), 40, "runs")  # four times the trials show half of it
    check_gate(0.0, ("loss",), (), 10, "runs")  # of which nothing is known


def test_equal_code_that_differs_or_is_interrupted_is_not_kept(lab: Path) -> None:
    worse = run_selftest(REQUEST, answer(NOISE, [2 * value for value in NOISE]))
    assert (worse.report.verdict.kind, worse.kept) == (VerdictKind.FAIL, False)
    cut = run_selftest(REQUEST, answer(NOISE, NOISE[:6], interrupted="SIGINT"))
    assert (cut.report.interrupted, cut.kept) == ("SIGINT", False)
    assert load_named(find_location("runs").dir, Selftest) == {}


def test_each_line_about_equal_code_names_its_metric(lab: Path) -> None:
    document = build_selftest_document(run_selftest(REQUEST, answer([float("nan")] * 10, NOISE)))
    text = render_terminal(document)
    assert "equal code is not decided" in text
    assert "wall_time: 10 of 10 values of a are NaN or infinite" in text
    few = render_terminal(build_selftest_document(run_selftest(REQUEST, answer(NOISE[:3], NOISE[:3]))))
    assert few.endswith("nothing is kept of it: run it again, with --trials 10 or more\n"), (
        "and not: nothing was measured"
    )
