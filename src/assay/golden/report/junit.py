"""A report as JUnit XML: one test case for each segment and metric.

JUnit knows passed, failed, in error and skipped. FAIL is a failure; ERROR (a crash, a time-out, nothing to compare) is
an error. CHANGED is a failure too, with its name as the `type`. INCONCLUSIVE is skipped, with its message: nothing was
shown to be wrong, so that it is not red, and nothing to be right, so that it is not passed; that a pipeline does not go
on with it is said by the exit code, 3. Skipped as well is CHANGED where that was declared good enough.
A metric that an early stop left undecided has no case: the one that failed has.

`effect` is how far `value` is from `expected`, as a share of it: both are means over the window with the largest effect
(or the value of the worst step, where single steps are compared). `step` is where it first shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as ET

from assay.golden.report.terminal import RUN, Row, build_step, build_test_rows, render_rule
from assay.golden.values import GoldenReport, GoldenTestReport
from assay.show.formatting import escape_xml
from assay.show.junit import ALLOWED, ELEMENTS, add_outcome, add_properties, add_skipped
from assay.values.verdict import VerdictKind


def render_junit(report: GoldenReport, allow_changed: bool = False) -> str:
    suites = [_build_suite(test, allow_changed) for test in report.tests]
    attributes = {name: str(sum(int(suite.get(name, 0)) for suite in suites)) for name in _COUNTED}
    top = ET.Element("testsuites", {"name": escape_xml(f"assay golden {report.mode}"), **attributes})
    top.set("time", f"{report.elapsed_s:.3f}")
    top.extend(suites)
    ET.indent(top)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(top, encoding="unicode") + "\n"


_COUNTED = ("tests", "failures", "errors", "skipped")


def _build_suite(test: GoldenTestReport, allow_changed: bool) -> ET.Element:
    rows = build_test_rows(test)
    cases = [
        _build_case(test, row, ALLOWED if row.kind is VerdictKind.CHANGED and allow_changed else None) for row in rows
    ]
    counts = [
        len(cases),
        *(sum(case.find(name) is not None for case in cases) for name in ("failure", "error", "skipped")),
    ]
    attributes = {name: str(count) for name, count in zip(_COUNTED, counts, strict=True)}
    suite = ET.Element(
        "testsuite", {"name": escape_xml(test.test), **attributes, "time": f"{_suite_seconds(test):.3f}"}
    )
    add_properties(suite, _describe_suite(test))
    suite.extend(cases)
    said = [*(f"warning: {text}" for text in test.warnings), *test.notes]
    if said:
        ET.SubElement(suite, "system-out").text = escape_xml("\n".join(said))
    return suite


def _suite_seconds(test: GoldenTestReport) -> float:
    return sum(run.elapsed_s or 0.0 for segment in test.segments for run in segment.runs)


def _describe_suite(test: GoldenTestReport) -> Iterator[tuple[str, object]]:
    yield "manifest", test.manifest
    yield "verdict", test.verdict.kind
    yield "comparisons", test.verdict.comparisons
    yield "saved_steps", test.saved_steps
    origin = test.golden.provenance if test.golden else {}
    for name in ("gathered_at", "commit", "host", "config_hash"):
        if origin.get(name):
            yield f"golden.{name}", origin[name]


def _build_case(test: GoldenTestReport, row: Row, excuse: str | None) -> ET.Element:
    place = "golden" if row.segment is None else f"segment {row.segment}"
    case = ET.Element("testcase", {"classname": escape_xml(f"{test.test}.{place}"), "name": escape_xml(row.metric)})
    case.set("time", f"{_case_seconds(test, row):.3f}")
    add_properties(case, _describe_case(row))
    if excuse is not None:
        add_skipped(case, excuse, row.message)
    elif row.kind in ELEMENTS:
        add_outcome(case, row.kind, row.message).text = escape_xml(_tell(row))
    return case


def _case_seconds(test: GoldenTestReport, row: Row) -> float:
    """A segment's runs serve all its metrics: their time is counted once, in the first case."""
    for segment in test.segments:
        if segment.start_step == row.segment:
            first = segment.metrics[0].metric if segment.metrics else RUN
            return sum(run.elapsed_s or 0.0 for run in segment.runs) if row.metric == first else 0.0
    return 0.0


def _describe_case(row: Row) -> Iterator[tuple[str, object]]:
    yield "verdict", row.kind
    if row.rule is not None:
        yield "rule", render_rule(row.rule)
    yield "comparisons", row.comparisons
    finding = row.finding
    if finding is not None:
        label = row.label_of(finding)
        if label:
            yield "label", label
        named = (("effect", finding.effect), ("value", finding.value), ("expected", finding.expected))
        yield from ((name, value) for name, value in (*named, ("step", build_step(finding.step))) if value is not None)
        if finding.interval is not None:
            yield from zip(("interval_low", "interval_high"), finding.interval, strict=True)
    if row.noise is not None:
        yield "noise", row.noise


def _tell(row: Row) -> str:
    bad: Sequence[str] = [f"{each.kind} {each.subject}: {each.message}" for each in row.findings]
    return "\n".join(bad)
