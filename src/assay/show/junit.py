"""Renders a document's suites as JUnit XML.

JUnit knows the results passed, failed, in error and skipped. FAIL is a failure; ERROR (a crash, a time-out, nothing to
compare) is an error. CHANGED is a failure, too, with its name as the `type`. INCONCLUSIVE is skipped, with its message:
the case was shown neither wrong nor right; the exit code, 3, stops a pipeline. A result that did not pass but has an
excuse (`CHANGED, allowed`) is also skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from assay.show.formatting import escape_xml
from assay.values.document import Case, Document, Suite
from assay.values.verdict import VerdictKind

ALLOWED = "CHANGED, allowed"
ELEMENTS = {
    VerdictKind.FAIL: "failure",
    VerdictKind.INCONCLUSIVE: "skipped",
    VerdictKind.CHANGED: "failure",
    VerdictKind.ERROR: "error",
}
_COUNTED = (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))


def render_junit(document: Document) -> str:
    suites = [_build_suite(suite) for suite in document.suites]
    names = ("tests", *(plural for plural, _ in _COUNTED))
    counts = {name: str(sum(int(suite.get(name, 0)) for suite in suites)) for name in names}
    top = ET.Element("testsuites", {"name": escape_xml(document.suites_name), **counts})
    _add_seconds(top, document.seconds)
    top.extend(suites)
    ET.indent(top)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(top, encoding="unicode") + "\n"


def _build_suite(suite: Suite) -> ET.Element:
    cases = [_build_case(case) for case in suite.cases]
    top = ET.Element("testsuite", {"name": escape_xml(suite.name), "tests": str(len(cases))})
    for plural, name in _COUNTED:
        top.set(plural, str(sum(case.find(name) is not None for case in cases)))
    _add_seconds(top, suite.seconds)
    _add_properties(top, suite.properties)
    top.extend(cases)
    if suite.output:
        ET.SubElement(top, "system-out").text = escape_xml(suite.output)
    return top


def _build_case(case: Case) -> ET.Element:
    node = ET.Element("testcase", {"classname": escape_xml(case.classname), "name": escape_xml(case.name)})
    _add_seconds(node, case.seconds)
    _add_properties(node, case.properties)
    if case.kind is VerdictKind.PASS:
        return node
    kind = case.type or str(case.kind)
    # skipped cases have no type in JUnit's schema: the message begins with the type
    if case.excuse or ELEMENTS[case.kind] == "skipped":
        outcome = ET.SubElement(node, "skipped", {"message": escape_xml(f"{case.excuse or kind}: {case.message}")})
    else:
        outcome = ET.SubElement(node, ELEMENTS[case.kind], {"type": kind, "message": escape_xml(case.message)})
    outcome.text = escape_xml(case.text) or None
    return node


def _add_seconds(node: ET.Element, seconds: float | None) -> None:
    if seconds is not None:
        node.set("time", f"{seconds:.3f}")


def _add_properties(node: ET.Element, properties: Sequence[tuple[str, object]]) -> None:
    if not properties:
        return
    inner = ET.SubElement(node, "properties")
    for name, value in properties:
        text = repr(value) if isinstance(value, float) else str(value)
        ET.SubElement(inner, "property", {"name": escape_xml(name), "value": escape_xml(text)})
