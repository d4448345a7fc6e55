"""Numbers of a check where tables, plots and viewers find them."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.report import model_reports as made

from assay.bench.flow.archive import add_timings, build_result, load_executions
from assay.bench.flow.history import HistoryOptions, load_histories
from assay.bench.values.execution import NOT_REPORTED, BenchExecution, BenchResult
from assay.errors import UsageError
from assay.models.flow.timings import (
    MachineObserver,
    build_numbers,
    build_points,
    build_timings,
    find_fresh,
    is_whole,
    name_method,
    write_metrics,
    write_trace,
)
from assay.models.trace import Slice
from assay.models.values.model import CaseReport, Ending, ModelReport, ModelRequest, Step, StepOutcome, Target
from assay.study.locations import StudyLocation
from assay.values.verdict import Verdict, VerdictKind


def test_times_that_were_remembered_are_no_figures() -> None:
    whole = made.whole()
    assert all(step.cached for step in whole.steps)
    assert build_numbers(whole) == {"local_error": 3e-7}
    assert find_fresh(whole, Step.RUN) == ()


def test_times_of_a_step_that_failed_are_no_figures() -> None:
    case = made.failed(0)
    assert find_fresh(case, Step.COMPILE) == ()
    assert find_fresh(case, Step.IMPORT) == (0.25,)
    assert build_numbers(case) == {"import_s": 0.25}


def test_every_execution_is_a_sample_and_the_shortest_counts() -> None:
    case = made.good(0)
    assert find_fresh(case, Step.RUN) == (0.002, 0.0015)
    numbers = build_numbers(case)
    assert numbers["run_s"] == 0.0015
    assert numbers["compile_s"] == 1.234
    assert numbers["accumulated_error"] == 2e-7


def test_points_stand_at_the_layers_number() -> None:
    points = list(build_points(made.report(made.good(4), made.whole())))
    assert points[0]["step"] == 4
    assert points[0]["run_s"] == 0.0015
    assert "step" not in points[1]
    assert points[1]["full.local_error"] == 3e-7


def test_what_json_does_not_know_is_left_out(tmp_path: Path) -> None:
    broken = replace(made.good(0), local=(made.comparison("y", math.inf, VerdictKind.FAIL, misplaced=1),))
    write_metrics(str(tmp_path), made.report(broken))
    (line,) = (tmp_path / "metrics" / "model.jsonl").read_text().splitlines()
    assert "local_error" not in json.loads(line)


def test_without_a_case_there_is_no_file(tmp_path: Path) -> None:
    write_metrics(str(tmp_path), made.report())
    assert list(tmp_path.iterdir()) == []


def test_a_trace_in_three_forms(tmp_path: Path) -> None:
    slices = [
        Slice(("iree", "compile"), "m_layer_Conv_0", 10, 40, {"ending": "ok"}),
        Slice(("ort", "run"), "x", 50, 60),
    ]
    write_trace(str(tmp_path), slices)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.csv", "trace.json", "trace.pb"]
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["name"] for event in events if event["ph"] == "X"} == {"m_layer_Conv_0", "x"}
    rows = list(csv.DictReader((tmp_path / "trace.csv").read_text().splitlines()))
    assert [(row["track"], row["duration_ns"]) for row in rows] == [("iree / compile", "30"), ("ort / run", "10")]
    assert b"m_layer_Conv_0" in (tmp_path / "trace.pb").read_bytes()


def test_where_nothing_was_computed_the_trace_is_empty_and_valid(tmp_path: Path) -> None:
    write_trace(str(tmp_path), [])
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"] == []
    assert (tmp_path / "trace.pb").read_bytes() == b""


def test_a_copy_is_no_compilation() -> None:
    """A target without a compiler: the time that handing the model on takes is no figure."""
    steps = (StepOutcome(Step.COMPILE, Ending.OK, elapsed_s=0.3, command="cp m.onnx"),)
    case = CaseReport("m_full_model", "cmd", Verdict.of((), 1), None, steps)
    assert "compile_s" not in build_numbers(case)
    assert "compile_s" in build_numbers(replace(case, steps=(replace(steps[0], command="npu-compile m.onnx"),)))


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
    ("request_", "report", "counts"),
    [
        (replace(REQUEST, goal="bisect"), measured(), False),
        (replace(REQUEST, only=("Conv_0",)), measured(), False),
        pytest.param(REQUEST, made.report(made.failed(0)), False, id="no case passed"),
        pytest.param(REQUEST, made.good_report(), False, id="some times are from the cache"),
        (REQUEST, measured(), True),
    ],
)
def test_only_a_whole_check_that_measured_counts(request_: ModelRequest, report: ModelReport, counts: bool) -> None:
    assert is_whole(request_, report) is counts


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
    location = StudyLocation(str(tmp_path), "bench")
    executions = load_executions(location, "model.m.iree")
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
    one, two = load_executions(StudyLocation(str(tmp_path), "bench"))
    assert one.fingerprint != two.fingerprint


def test_the_label_goes_along_and_the_same_run_counts_once(tmp_path: Path) -> None:
    add(tmp_path, measured(), "nightly")
    add(tmp_path, measured(), "nightly")
    (execution,) = load_executions(StudyLocation(str(tmp_path), "bench"))
    assert execution.label == "nightly"
    assert execution.extra["run"].endswith("-000000")


def test_one_check_is_no_history(tmp_path: Path) -> None:
    add(tmp_path, measured())
    with pytest.raises(UsageError, match=r"1 execution with Conv_0\.run_s: too few for a history"):
        load_histories("Conv_0.run_s", None, HistoryOptions(str(tmp_path), everything=True))
