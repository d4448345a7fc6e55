"""What JUnit XML of every product shares: how a verdict becomes the outcome of a test case.

JUnit knows passed, failed, in error and skipped. FAIL is a failure; ERROR (a crash, a time-out, nothing to compare) is
an error. CHANGED is a failure too, with its name as the `type`. INCONCLUSIVE is skipped, with its message.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree as ET

from assay.show.formatting import escape_xml
from assay.values.verdict import VerdictKind

ALLOWED = "CHANGED, allowed"
ELEMENTS = {
    VerdictKind.FAIL: "failure",
    VerdictKind.INCONCLUSIVE: "skipped",
    VerdictKind.CHANGED: "failure",
    VerdictKind.ERROR: "error",
}


def add_outcome(case: ET.Element, kind: VerdictKind, message: str, name: str | None = None) -> ET.Element:
    """What a case that is no PASS is marked with. A failure or an error has a type, `name` unless it is the verdict's;
    a skipped case has none in JUnit's schema, and says its verdict in the message."""
    element = ELEMENTS[kind]
    if element == "skipped":
        return add_skipped(case, name or str(kind), message)
    return ET.SubElement(case, element, {"type": name or str(kind), "message": escape_xml(message)})


def add_skipped(case: ET.Element, why: str, message: str) -> ET.Element:
    return ET.SubElement(case, "skipped", {"message": escape_xml(f"{why}: {message}")})


def add_properties(element: ET.Element, properties: Iterator[tuple[str, object]]) -> None:
    inner = ET.SubElement(element, "properties")
    for name, value in properties:
        text = repr(value) if isinstance(value, float) else str(value)
        ET.SubElement(inner, "property", {"name": escape_xml(name), "value": escape_xml(text)})
