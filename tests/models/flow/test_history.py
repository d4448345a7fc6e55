"""Times of a check are executions of the study `bench`: histories and change points see them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.report import model_reports as made

from assay.bench.flow.archive import load_executions
from assay.bench.flow.history import HistoryOptions, load_histories
from assay.bench.flow.imports import add_timings, build_result
from assay.bench.values.execution import NOT_REPORTED, BenchExecution, BenchResult
from assay.errors import UsageError
from assay.models.flow.history import MachineObserver, build_timings, describe_gap, name_method
from assay.models.values.model import CaseReport, ModelReport, ModelRequest, Step, Target
from assay.study.locations import StudyPlace
from assay.values.verdict import VerdictKind

REQUEST = ModelRequest("/m.onnx", Target("ort", "ort"), Target("iree", "iree"))


def fresh(case: CaseReport, run_s: float = 0.004) -> CaseReport:
    steps = (made.step(Step.COMPILE, elapsed_s=2.0), made.step(Step.RUN, times_s=(run_s, 2 * run_s)))
    return replace(case, steps=steps)


def measured(run_s: float = 0.004, number: int = 0, **more: object) -> ModelReport:
    cases = (fresh(made.good(0), run_s), fresh(made.whole(), run_s))
    return made.report(*cases, run_dir=f"/runs/m_iree_check_2026-11-15-12-00-00-{number:06}", **more)


def add(root: Path, report: ModelReport, label: str | None = None) -> BenchExecution | None:
    timings = build_timings(REQUEST, report, MachineObserver(), 0.0)
    return add_timings(str(root), timings, label) if timings else None


def times_of(report: ModelReport) -> BenchResult:
    timings = build_timings(REQUEST, report, MachineObserver(), 0.0)
    assert timings is not None
    return build_result(timings)


# ---------------------------------------------------------------- what gives none


@pytest.mark.parametrize(
    ("request_", "report", "why"),
    [
        (replace(REQUEST, goal="bisect"), measured(), "it was no check"),
        (replace(REQUEST, only=("Conv_0",)), measured(), "only some cases were computed"),
        (REQUEST, made.report(made.failed(0)), "no case is right"),
        (REQUEST, made.good_report(), "some times are from the cache"),
        (REQUEST, measured(), ""),
    ],
)
def test_only_a_whole_check_that_measured_counts(request_: ModelRequest, report: ModelReport, why: str) -> None:
    assert describe_gap(request_, report) == why


def test_where_there_is_a_gap_nothing_is_written(tmp_path: Path) -> None:
    assert add(tmp_path, made.good_report()) is None
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- what there is


def test_every_case_and_step_is_a_metric() -> None:
    result = times_of(measured())
    assert result.numbers == {
        "Conv_0.compile_s": 2.0,
        "Conv_0.run_s": 0.004,
        "full_model.compile_s": 2.0,
        "full_model.run_s": 0.004,
        "wall_time": 0.004,
    }
    assert result.samples == {"Conv_0.run_s": (0.004, 0.008), "full_model.run_s": (0.004, 0.008)}
    assert result.succeeded


def test_cases_that_are_wrong_leave_theirs_out() -> None:
    report = made.report(fresh(made.wrong(1)), fresh(made.good(2)), fresh(made.whole(0.4, VerdictKind.FAIL)))
    result = times_of(report)
    assert set(result.numbers) == {"Conv_2.compile_s", "Conv_2.run_s"}
    assert result.wall_time == NOT_REPORTED
    assert not result.succeeded


def test_a_simulator_s_run_times_are_left_out() -> None:
    result = times_of(measured(is_estimate=True))
    assert set(result.numbers) == {"Conv_0.compile_s", "full_model.compile_s"}
    assert result.wall_time == NOT_REPORTED


def test_the_method_has_no_letters_that_a_shell_minds() -> None:
    report = replace(made.report(), stem="my model", target="ort:unoptimized")
    assert name_method(report) == "model.my_model.ort_unoptimized"


def test_a_step_in_a_layer_s_times_is_found(tmp_path: Path) -> None:
    for number in range(24):
        slow = 1.0 if number < 12 else 1.5
        assert add(tmp_path, measured(0.004 * slow + number % 3 * 1e-6, number)) is not None
    place = StudyPlace(str(tmp_path), "bench")
    executions = load_executions(place, "model.m.iree")
    assert len(executions) == 24
    assert executions[0].setup["iree-base-compiler"] == "3.13.0"
    assert executions[0].result.samples["Conv_0.run_s"]
    (history,) = load_histories("Conv_0.run_s", "m.iree", HistoryOptions(str(tmp_path), everything=True))
    (change,) = history.series[0].changes
    assert change.is_worse
    assert change.step.effect == pytest.approx(0.5, abs=0.01)
    (history,) = load_histories("Conv_0.compile_s", "m.iree", HistoryOptions(str(tmp_path), everything=True))
    assert not history.series[0].changes


def test_another_tool_is_another_set_up(tmp_path: Path) -> None:
    add(tmp_path, measured(number=1))
    add(tmp_path, measured(number=2, tools={"iree-base-compiler": "3.14.0"}))
    one, two = load_executions(StudyPlace(str(tmp_path), "bench"))
    assert one.fingerprint != two.fingerprint


def test_the_label_goes_along_and_the_same_run_counts_once(tmp_path: Path) -> None:
    add(tmp_path, measured(), "nightly")
    add(tmp_path, measured(), "nightly")
    (execution,) = load_executions(StudyPlace(str(tmp_path), "bench"))
    assert execution.label == "nightly"
    assert execution.extra["run"].endswith("-000000")


def test_one_check_is_no_history(tmp_path: Path) -> None:
    add(tmp_path, measured())
    with pytest.raises(UsageError, match=r"1 execution with Conv_0\.run_s: that is no history"):
        load_histories("Conv_0.run_s", None, HistoryOptions(str(tmp_path), everything=True))
