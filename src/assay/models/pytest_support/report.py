"""Why a test of a model did not pass, in one line: for pytest's short summary, and wherever pytest shows it."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import pytest

PROPERTY_CASE, PROPERTY_ISSUE, PROPERTY_PROFILE = "case", "linked_issue", "profiling_output"  # of a test
_REASON = "assay_reason"
_SECTION = "models that did not pass"
_WORDS = {"error": "ERROR", "failed": "FAILED"}
_ROOM = 30  # columns that a reason needs in the short summary to say anything


def build_failure(text: str, reason: str) -> BaseException:
    """To be raised: the whole text for the report, and the reason by itself."""
    error: BaseException = pytest.fail.Exception(text, pytrace=False)
    setattr(error, _REASON, reason.partition("\n")[0])
    return error


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Without a traceback pytest knows no place where it went wrong, and shows no reason in its summary."""
    report = yield
    reason = getattr(call.excinfo.value, _REASON, None) if call.excinfo is not None else None
    if call.excinfo is None or reason is None:
        return report
    setattr(report, _REASON, reason)  # pytest hands on what it does not know, between processes too
    said: Any = report.longrepr
    place = call.excinfo.getrepr(style="short", chain=False).reprcrash
    if place is not None and getattr(said, "chain", None):
        place.path, place.lineno, place.message = str(item.path), (report.location[1] or 0) + 1, reason
        report.longrepr = type(said)([*said.chain[:-1], (said.chain[-1][0], place, said.chain[-1][2])])
    return report


def tell_reasons(reporter: Any) -> None:
    """Of tests whose names fill the whole line of pytest's own summary."""
    lines = [
        f"{word} {_shorten(report.nodeid)}: {getattr(report, _REASON)}"
        for kind, word in _WORDS.items()
        for report in reporter.stats.get(kind, ())
        if hasattr(report, _REASON) and not _has_room(reporter, report.nodeid)
    ]
    if lines:
        reporter.section(_SECTION)
    for line in lines:
        reporter.write_line(line)


def _has_room(reporter: Any, nodeid: str) -> bool:
    width: int = reporter._tw.fullwidth  # noqa: SLF001 pytest has no other way to ask
    return len(nodeid) + _ROOM <= width


def _shorten(nodeid: str) -> str:
    """What stands between the brackets."""
    match = re.search(r"\[(.*)\]$", nodeid)
    return match[1] if match else nodeid
