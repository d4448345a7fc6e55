"""`assay model compare`, which compares two models, and `assay model judge`, which judges stored outputs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from assay.errors import UsageError
from assay.models.commands.check import ModelReportRequest, ModelRunRequest, keep_option, run_request, show_report
from assay.models.values.flags import tolerance_option
from assay.show.console import Console
from assay.show.report_files import check_targets
from assay.system.fast_dataclasses import replace
from assay.values.options import argument, option

if TYPE_CHECKING:
    from assay.models.flow.options import Goal
    from assay.models.graph.foreign_outputs import Outputs
    from assay.models.values.model import CaseReport, ModelReport, Tolerances


class CompareModelsRequest(ModelRunRequest):
    other: str = argument()
    reference: str | None = option("--reference", metavar="TARGET", help="Target for MODEL.  [default: ort]")
    target: str | None = option("--target", metavar="TARGET", help="Target for OTHER.  [default: the reference]")
    vote: str = "none"  # a second reference is not useful for two models
    ops: bool = False
    forward: bool = False
    output: None = None
    keep_outputs: str | None = keep_option()
    bisect: bool = option("--bisect", default=False, help="Find only the first wrong layer; do not compute all.")


def compare(request: CompareModelsRequest, console: Console) -> int:
    """Compare OTHER with MODEL, layer by layer: before and after quantisation, a fusion or another export.

    Layers are paired by name, else by structure and weights. The bound of a quantised layer is measured on MODEL,
    rounded to the same number of bits.

    \b
    assay model compare float.onnx int8.onnx
    assay model compare float.onnx fused.onnx --tolerance rel=1e-4 --samples 3
    assay model compare float.onnx int8.onnx --bisect
    """
    from assay.models.config.settings import DEFAULT_REFERENCE
    from assay.models.flow.discovery import load_project
    from assay.models.flow.options import check_file
    from assay.models.values.model import is_torch_model

    if is_torch_model(request.model):
        hint = f"compare what computes it: assay model check {shlex.quote(request.model)} --target torch-compile"
        raise UsageError(f"{request.model} is a torch module: compare is for two ONNX models", hint)
    if request.bisect and request.keep_outputs:
        raise UsageError("--keep-outputs keeps every layer, --bisect computes some", "give one of them")
    check_file(request.other)
    reference = request.reference or load_project(os.getcwd()).settings.reference or DEFAULT_REFERENCE
    asked = request.replace(reference=reference, target=request.target or reference)
    other = os.path.abspath(request.other)
    goal: Goal = "bisect" if request.bisect else "compare"
    return run_request(asked, goal, console, keep_outputs=request.keep_outputs, other=other)


class JudgeRequest(ModelReportRequest):
    path: str = argument()
    actual: str | None = argument(required=False)
    tolerances: tuple[str, ...] = tolerance_option()


def judge(request: JudgeRequest, console: Console) -> int:
    """Judge the outputs in PATH again, or ACTUAL against PATH, outputs of any tool. Nothing is executed.

    \b
    assay model judge kept --tolerance rel=1e-3    a folder of --keep-outputs
    assay model judge expected.npz actual.npz      also .npy, Polygraphy's JSON, and folders of raw files
    """
    from assay.models.config.settings import parse_tolerance_texts
    from assay.models.flow.kept_outputs import judge_kept
    from assay.models.flow.output_keeper import INDEX_FILE

    takes_stdout = check_targets(request.md, request.junit, request.html, as_json=request.as_json)
    tolerances = parse_tolerance_texts(request.tolerances) if request.tolerances else None
    if not os.path.exists(request.path):
        raise UsageError(f"there is no {request.path}", "assay model check … --keep-outputs DIR keeps outputs")
    if request.actual is None and os.path.exists(os.path.join(request.path, INDEX_FILE)):
        report = judge_kept(request.path, tolerances)
    else:
        report = judge_foreign(request.path, request.actual, tolerances)
    show_report(report, request, takes_stdout, console)
    return int(report.exit_code)


def judge_foreign(path: str, actual: str | None, tolerances: Tolerances | None) -> ModelReport:
    """Build a report with a case for each tensor; without a graph no tensor is to blame for another."""
    from assay.models.graph.foreign_outputs import load_both
    from assay.models.values.model import ModelReport, Tolerances
    from assay.values.verdict import Finding, VerdictKind

    sides = load_both(path, actual)
    counts = [len(side.samples) for side in sides]
    findings = []
    if counts[0] != counts[1]:
        text = f"{counts[0]} samples of {sides[0].name}, {counts[1]} of {sides[1].name}: only the first are compared"
        findings.append(Finding(VerdictKind.INCONCLUSIVE, sides[0].name, text))
    cases = tuple(_judge_tensors(*sides, tolerances or Tolerances()))
    wrong = [case for case in cases if case.verdict.kind is VerdictKind.FAIL]
    if wrong:
        rest = f"; {len(wrong)} of {len(cases)} differ" if len(wrong) > 1 else ""
        text = f"the first tensor that differs is {wrong[0].name}: {wrong[0].verdict.findings[0].message}{rest}"
        findings.insert(0, Finding(VerdictKind.FAIL, sides[0].name, text))
    report = ModelReport(os.path.abspath(path), sides[0].name, sides[0].name, sides[1].name, cases, samples=min(counts))
    return replace(report, findings=tuple(findings), other=os.path.abspath(actual or path) if actual else sides[1].name)


def _judge_tensors(expected: Outputs, actual: Outputs, tolerances: Tolerances) -> Iterator[CaseReport]:
    from assay.models.judge.tensors import judge_outputs
    from assay.models.values.model import CaseReport
    from assay.models.values.tensors import TensorComparison
    from assay.values.verdict import Verdict

    pairs = list(zip(expected.samples, actual.samples, strict=False))
    if all(len(mine) == len(theirs) == 1 for mine, theirs in pairs):  # single tensors form a pair under any names
        pairs = [(mine, dict(zip(mine, theirs.values(), strict=True))) for mine, theirs in pairs]
    for name in dict.fromkeys(name for pair in pairs for side in pair for name in side):
        found, compared = list[Verdict](), list[TensorComparison]()
        for sides in pairs:
            mine, theirs = ({name: side[name]} if name in side else {} for side in sides)
            verdict, comparisons = judge_outputs(mine, theirs, tolerances)
            found.append(verdict)
            compared += comparisons
        findings = [finding for each in found for finding in each.findings]
        verdict = Verdict.of(findings, sum(each.comparisons for each in found))
        worst = sorted(compared, key=lambda each: -each.error)[:1]
        yield CaseReport(name, actual.name, verdict, local=tuple(worst))
