"""What is said when a test does not pass."""

from __future__ import annotations

from assay.errors import UsageError
from assay.models.flow.cases import StepFailedError
from assay.models.pytest_support.report import render_error, render_failed_step
from assay.models.values.model import Ending, Step, StepOutcome


def failed(**more: str) -> StepOutcome:
    return StepOutcome(Step.COMPILE, Ending.ERROR, "tool said no", **more)


def test_everything_that_the_tool_said_is_there():
    outcome = failed(
        command="tool x", stdout="working\n", stderr="\nno\n", hint="try: assay model convert MODEL --opset 17"
    )
    text = render_failed_step("torq_results", StepFailedError("sim", outcome), outcome, "/my models/a.onnx")
    assert text.splitlines() == [
        "torq_results: sim: compile error: tool said no",
        "command: tool x",
        "stdout:",
        "working",
        "stderr:",
        "no",
        "what to do: try: assay model convert '/my models/a.onnx' --opset 17",
    ]


def test_silence_is_said_too():
    outcome = failed()
    lines = render_failed_step("f", StepFailedError("sim", outcome), outcome, "m").splitlines()
    assert lines[1:] == ["stdout:", "(nothing)", "stderr:", "(nothing)"]


def test_a_flood_is_cut_in_the_middle():
    outcome = failed(stderr="\n".join(f"line {number}" for number in range(1000)))
    text = render_failed_step("f", StepFailedError("sim", outcome), outcome, "m")
    assert "line 99\n… 800 lines left out …\nline 900" in text
    assert text.endswith("line 999")


def test_an_error_without_a_step():
    assert render_error("f", UsageError("bad", "do MODEL better"), "x.onnx") == "f: bad\n  do x.onnx better"
    assert render_error("f", UsageError("bad"), "x") == "f: bad"
