"""Numbers of a check where tables, plots and viewers find them."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

from tests.models.report import model_reports as made

from assay.models.flow.metrics import build_numbers, build_points, find_fresh, write_figures, write_trace
from assay.models.values.model import CaseReport, Ending, Step, StepOutcome
from assay.models.values.trace import Slice
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
    write_figures(str(tmp_path), made.report(broken))
    (line,) = (tmp_path / "metrics" / "model.jsonl").read_text().splitlines()
    assert "local_error" not in json.loads(line)


def test_without_a_case_there_is_no_file(tmp_path: Path) -> None:
    write_figures(str(tmp_path), made.report())
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
