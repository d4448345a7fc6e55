"""model.json: the result of a model check, with every case, step and number.

The file is standard JSON: NaN and infinities, which JSON does not have, are strings. Paths into the run directory,
also in command lines, are stored relative to that directory, which may be moved.
"""

from __future__ import annotations

import math
import os
from numbers import Integral, Real
from typing import Any

from assay.models.values.model import CaseReport, ModelReport
from assay.record.formats import Format, build_damage, read_versioned, render_versioned
from assay.system.fast_dataclasses import replace
from assay.system.files import write_atomic
from assay.values import layout
from assay.values.plain import build_plain, parse_plain
from assay.values.state import State
from assay.values.verdict import Finding, Verdict, VerdictKind

MODEL_FILE = "model.json"
MODEL_REQUEST_PREFIX = "request-"  # a file in .assay of the study: a request that is too long for a command line
MODEL_TENSORS_DIR = "tensors"  # <case>/<output>/{expected,actual}: tensors that differ
MODEL_ERROR_FILE = "error.json"  # why there is no report
MODEL_TRACE_FILES = {"chrome": "trace.json", "perfetto": "trace.pb", "csv": "trace.csv"}

KIND = "model"
FORMATS = {KIND: Format(1, "delete the run's directory and repeat `assay model check`: the cache makes it quick")}
_WITH_PATHS = {"path", "profiles", "command", "hint", "diffs"}  # fields whose paths may be in the run directory


def write_report(run_dir: str, report: ModelReport) -> None:
    here = os.path.abspath(run_dir)
    content = _rebuild(build_plain(replace(report, run_dir="")), here, layout.RUN_DIR_REFERENCE)
    write_atomic(os.path.join(run_dir, MODEL_FILE), render_versioned(build_plain(content), KIND, FORMATS))


def load_report(run_dir: str) -> ModelReport | None:
    """Load the report with the verdicts that its own numbers support; None if the run has no report."""
    path = os.path.join(run_dir, MODEL_FILE)
    try:
        with open(path, "rb") as file:
            text = file.read()
    except FileNotFoundError:
        return None
    here = os.path.abspath(run_dir)
    content = read_versioned(text, KIND, path, FORMATS)
    try:
        content = _rebuild(content, layout.RUN_DIR_REFERENCE, here)
        return review(replace(parse_plain(ModelReport, content), run_dir=run_dir))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise build_damage(path, str(error), FORMATS[KIND]) from error


def review(report: ModelReport) -> ModelReport:
    """Check a report, whose file may have been changed: a case that passed must have a result and valid numbers."""
    findings = report.findings
    if report.samples < 1:
        text = f"{report.samples} samples: nothing was computed"
        findings = (*findings, Finding(VerdictKind.ERROR, report.stem, text))
    return replace(report, cases=tuple(map(_review_case, report.cases)), findings=findings)


def _review_case(case: CaseReport) -> CaseReport:
    verdict = case.verdict.review()
    problems = [f"the file states PASS for {case.outcome}"] if case.failed_step is not None else []
    for each in (*case.local, *case.accumulated):
        bound = each.tolerance
        numbers = (each.max_abs, each.mean_abs, each.max_rel, bound.abs, bound.rel, bound.allowed_wrong)
        if any(number is not None and math.isnan(number) for number in numbers):
            problems.append(f"the file states PASS for {each.name}, whose error or tolerance is not a number")
    if problems and verdict.kind is VerdictKind.PASS:
        found = Finding(VerdictKind.ERROR, case.name, problems[0])
        verdict = Verdict.of((*verdict.findings, found), verdict.comparisons)
    return replace(case, verdict=verdict)


def judge_run(report: ModelReport, state: State, reason: str = "") -> ModelReport:
    """Return a run's report, which is not a PASS unless the run is done: the report may be of an earlier attempt."""
    if state is State.DONE or report.verdict.kind is not VerdictKind.PASS:
        return report
    text = f"the run is {state}{f': {reason}' if reason else ''}: its report is not a PASS"
    return replace(report, findings=(*report.findings, Finding(VerdictKind.ERROR, report.stem, text)))


def _rebuild(content: Any, old: str, new: str, *, has_paths: bool = False) -> Any:
    """Return the content with paths below `old` moved below `new`; `/runs/model/ab` is not below `/runs/model/a`.
    Numbers of numpy's types, which JSON does not support, become Python's."""
    if isinstance(content, dict):
        return {name: _rebuild(each, old, new, has_paths=name in _WITH_PATHS) for name, each in content.items()}
    if isinstance(content, list):
        return [_rebuild(each, old, new, has_paths=has_paths) for each in content]
    if isinstance(content, Real) and not isinstance(content, bool):
        return int(content) if isinstance(content, Integral) else float(content)
    if not has_paths or not isinstance(content, str):
        return content
    return new if content == old else content.replace(f"{old}/", f"{new}/")
