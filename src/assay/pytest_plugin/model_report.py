"""Why a test of a model did not pass, in one line: for pytest's short summary, and wherever pytest shows it."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import pytest
from _pytest.outcomes import Failed

_SECTION = "models that did not pass"
_WORDS = {"error": "ERROR", "failed": "FAILED"}
_ROOM = 30  # columns that a reason needs in the short summary to say anything


class ModelFailure(Failed):  # noqa: N818 - named as pytest's own
    """The whole text for the report, and the reason by itself."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text, pytrace=False)
        self.reason = reason.partition("\n")[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Without a traceback pytest knows no place where it went wrong, and shows no reason in its summary."""
    report = yield
    error = call.excinfo.value if call.excinfo is not None else None
    chain = getattr(report.longrepr, "chain", None)
    if not isinstance(error, ModelFailure) or not chain:
        return report
    from _pytest._code.code import ExceptionChainRepr, ReprFileLocation

    place = ReprFileLocation(str(item.path), (report.location[1] or 0) + 1, error.reason)
    report.longrepr = ExceptionChainRepr([*chain[:-1], (chain[-1][0], place, chain[-1][2])])
    setattr(report, "assay_reason", error.reason)  # noqa: B010 mypy: pytest carries what it does not know
    return report


def tell_reasons(reporter: Any) -> None:
    """Of tests whose names fill the whole line of pytest's own summary."""
    lines = [
        f"{word} {_shorten(report.nodeid)}: {report.assay_reason}"
        for kind, word in _WORDS.items()
        for report in reporter.stats.get(kind, ())
        if hasattr(report, "assay_reason") and not _has_room(reporter, report.nodeid)
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
