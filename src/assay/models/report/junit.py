"""A check of a model as JUnit XML: one test case for each layer and one for the full model.

ERROR (a step before the comparison failed: import, compile, run) is an error, FAIL (the outputs differ) a failure.
CHANGED is a failure too, with its name as the `type`. INCONCLUSIVE is skipped, with its message: it is neither red nor
passed, and the exit code is 3. What was found about the model as a whole is a case of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree as ET

from assay.models.report.text import (
    build_diff_commands,
    build_figures,
    build_tail,
    describe_outcome,
    find_bad,
    render_command,
)
from assay.models.values.model import CaseReport, ModelReport
from assay.show.formatting import escape_xml
from assay.show.junit import add_outcome, add_properties
from assay.values.verdict import Finding, VerdictKind

_COUNTED = (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))


def render_model_junit(*reports: ModelReport) -> str:
    suites = [_build_suite(report) for report in reports]
    names = ("tests", *(plural for plural, _ in _COUNTED))
    counts = {name: str(sum(int(suite.get(name, 0)) for suite in suites)) for name in names}
    took = sum(report.elapsed_s for report in reports)
    top = ET.Element("testsuites", {"name": "assay model", **counts, "time": f"{took:.3f}"})
    top.extend(suites)
    ET.indent(top)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(top, encoding="unicode") + "\n"


def _build_suite(report: ModelReport) -> ET.Element:
    cases = [_build_case(case, report) for case in report.cases]
    cases += [_build_finding(finding, report) for finding in report.findings if finding.kind is not VerdictKind.PASS]
    if not cases:  # nothing was compared: never green
        cases = [_build_finding(Finding(VerdictKind.ERROR, report.stem, describe_outcome(report)), report)]
    suite = ET.Element("testsuite", {"name": escape_xml(_suite_name(report)), "tests": str(len(cases))})
    for plural, name in _COUNTED:
        suite.set(plural, str(sum(case.find(name) is not None for case in cases)))
    suite.set("time", f"{report.elapsed_s:.3f}")
    add_properties(suite, _describe_suite(report))
    suite.extend(cases)
    if report.notes:
        ET.SubElement(suite, "system-out").text = escape_xml("\n".join(report.notes))
    return suite


def _suite_name(report: ModelReport) -> str:
    return f"{report.stem} on {report.target}"


def _describe_suite(report: ModelReport) -> Iterator[tuple[str, object]]:
    yield "model", report.model
    yield "reference", report.reference
    yield "target", report.target
    yield "verdict", report.verdict.kind
    yield "summary", describe_outcome(report)
    if report.first_wrong:
        yield "first_wrong", report.first_wrong
    yield from ((f"tool.{name}", version) for name, version in report.tools.items())


def _build_case(case: CaseReport, report: ModelReport) -> ET.Element:
    node = _start_case(case.name, report)
    node.set("time", f"{sum(step.elapsed_s for step in case.steps if not step.cached):.3f}")
    add_properties(node, _describe_case(case))
    kind = case.verdict.kind
    if kind is not VerdictKind.PASS:
        bad = find_bad(case)
        message = bad[0].message if bad else case.outcome
        add_outcome(node, kind, message, case.outcome).text = escape_xml("\n".join(_tell(case)))
    return node


def _start_case(name: str, report: ModelReport) -> ET.Element:
    return ET.Element("testcase", {"classname": escape_xml(f"{report.stem}.{report.target}"), "name": escape_xml(name)})


def _build_finding(finding: Finding, report: ModelReport) -> ET.Element:
    node = _start_case(f"{report.stem} as a whole", report)
    add_outcome(node, finding.kind, finding.message).text = escape_xml(finding.message)
    return node


def _describe_case(case: CaseReport) -> Iterator[tuple[str, object]]:
    yield "verdict", case.verdict.kind
    yield "outcome", case.outcome
    yield "comparisons", case.verdict.comparisons
    figures = build_figures(case)
    for name in ("local", "accumulated"):
        if getattr(figures, name) is not None:
            yield f"{name}_error", getattr(figures, name)
    for name in ("cosine", "sqnr_db", "compile_s", "run_s"):
        if getattr(figures, name) is not None:
            yield name, getattr(figures, name)


def _tell(case: CaseReport) -> Iterator[str]:
    """Everything that is needed to go on: what was found, the command lines, what the tool said."""
    yield from (f"{finding.kind} {finding.subject}: {finding.message}" for finding in find_bad(case))
    step = case.failed_step
    if step is not None:
        if step.command:
            yield render_command(step)
        yield from build_tail(step, 40)
        if step.hint:
            yield step.hint
    yield from build_diff_commands(case)
