"""Reports of model checks for the tests of everything that shows them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from assay.models.report.check import build_document
from assay.models.values.model import CaseReport, Layer, ModelReport, Step, StepEnding, StepOutcome
from assay.models.values.tensors import TensorComparison, Tolerance
from assay.show.html import render_html
from assay.show.junit import render_junit
from assay.show.markdown import render_markdown
from assay.show.terminal_report import render_terminal
from assay.values.verdict import Finding, Verdict, VerdictKind

COMMAND = "iree-compile 'my model.mlir' -o out.vmfb"
STDERR = "\n".join(f"line {number} <&> \x1b[31mred\x1b[0m" for number in range(30)) + "\n\n"
DIFF = ("/runs/model/m check/tensors/0/expected/0.npy", "/runs/model/m check/tensors/0/actual/0.npy")


def comparison(
    name: str = "y", error: float = 1e-7, kind: VerdictKind = VerdictKind.PASS, **more: Any
) -> TensorComparison:
    found = Finding(kind, name, f"3 of 8 (37.5%) differ by more than 1e-05 of the scale; worst {error:.3g}")
    findings = () if kind is VerdictKind.PASS else (found,)
    base = TensorComparison(
        name,
        Verdict.of(findings, 1),
        ("float32", "float32"),
        ((2, 4), (2, 4)),
        count=8,
        wrong=3 * bool(findings),
        max_abs=error,
        max_rel=error,
        cosine=0.9987654,
        sqnr_db=120.25 if error else math.inf,
        tolerance=Tolerance(abs=0.0, rel=1e-5),
    )
    return replace(base, **more)


def step(kind: Step, ending: StepEnding = StepEnding.OK, **more: Any) -> StepOutcome:
    return StepOutcome(kind, ending, **{"elapsed_s": 0.25, **more})


COMPILE_ERROR = step(
    Step.COMPILE,
    StepEnding.ERROR,
    message="failed to legalize 'onnx.Foo'",
    command=COMMAND,
    stderr=STDERR,
    hint="convert the model: assay model convert --opset 17",
)


def layer(number: int, *ops: str) -> Layer:
    names = ops or ("Conv",)
    return Layer(f"m_layer_{names[0]}_{number}", number, names, (number,), (f"t{number}",), (f"t{number + 1}",))


def good(number: int, *ops: str, local: float = 1e-7, accumulated: float = 2e-7) -> CaseReport:
    steps = (step(Step.IMPORT), step(Step.COMPILE, elapsed_s=1.234), step(Step.RUN, times_s=(0.002, 0.0015)))
    of = layer(number, *ops)
    name = f"t{number + 1}"
    inside = comparison(name, accumulated, VerdictKind.FAIL if accumulated > 1e-5 else VerdictKind.PASS)
    return CaseReport(of.name, "iree", Verdict.of((), 1), of, steps, (comparison(name, local),), (inside,))


def wrong(number: int, *ops: str, error: float = 0.41) -> CaseReport:
    compared = comparison(f"t{number + 1}", error, VerdictKind.FAIL)
    return replace(
        good(number, *ops), verdict=compared.verdict, local=(compared,), accumulated=(compared,), diffs=(DIFF,)
    )


def failed(number: int, *ops: str, outcome: StepOutcome = COMPILE_ERROR) -> CaseReport:
    base = good(number, *ops)
    finding = Finding(VerdictKind.ERROR, base.name, f"{outcome.step} {outcome.ending}: {outcome.message}")
    steps = (step(Step.IMPORT), outcome)
    return replace(base, verdict=Verdict.of([finding], 0), steps=steps, local=(), accumulated=())


def whole(error: float = 3e-7, kind: VerdictKind = VerdictKind.PASS) -> CaseReport:
    compared = comparison("logits", error, kind)
    steps = (step(Step.COMPILE, elapsed_s=2.0, cached=True), step(Step.RUN, times_s=(0.004,), cached=True))
    return CaseReport("m_full_model", "iree", compared.verdict, None, steps, (compared,))


def report(*cases: CaseReport, **more: Any) -> ModelReport:
    base = ModelReport(
        "models/my model.onnx", "m", "ort", "iree", cases, tools={"iree-base-compiler": "3.13.0"}, elapsed_s=12.0
    )
    return replace(base, **more)


def good_report() -> ModelReport:
    return report(good(0, "Conv", "Clip"), good(1, "Relu", local=0.0), whole())


def bad_report() -> ModelReport:
    cases = (
        good(0, "Conv", "Clip"), wrong(1, "MatMul"), good(2, "Relu", accumulated=0.4), failed(3), failed(4, "Gemm"),
        whole(0.4, VerdictKind.FAIL),
    )  # fmt: skip
    return report(*cases, first_wrong="m_layer_MatMul_1", confirmed=True, notes=("a <note>",), samples=2)


def large_report(count: int = 300, bad: int = 150) -> ModelReport:
    cases = [wrong(number) if number == bad else good(number) for number in range(count)]
    return report(*cases, whole(0.4, VerdictKind.FAIL), first_wrong=cases[bad].name, confirmed=True)


def show(report: ModelReport, width: int | None = None, color: bool = False, every: bool = False) -> str:
    return render_terminal(build_document(report, every=every), width=width, color=color)


def show_markdown(report: ModelReport) -> str:
    return render_markdown(build_document(report))


def show_page(report: ModelReport) -> str:
    return render_html(build_document(report))


def show_junit(report: ModelReport) -> str:
    return render_junit(build_document(report))
