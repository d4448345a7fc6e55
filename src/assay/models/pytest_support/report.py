"""What a test of a model says when it does not pass: everything that a person needs to go on, and nothing of ours."""

from __future__ import annotations

import re
import shlex
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from assay.errors import AssayError
    from assay.models.values.model import CaseReport, StepOutcome


_ALLOWED = "tolerance = {allow_constant = true} in the model's settings"
_MOST_LINES = 200  # of a tool's output: the first and the last of them


def render_failed_step(fixture: str, error: AssayError, outcome: StepOutcome, model: str) -> str:
    """Which step, its command line, and all that the tool said."""
    parts = [f"{fixture}: {error.message}"]
    if outcome.command:
        parts.append(f"command: {outcome.command}")
    parts += [f"{name}:\n{_shorten_output(text)}" for name, text in _list_outputs(outcome)]
    if error.hint:
        parts.append(f"what to do: {_name_model(error.hint, model)}")
    return "\n".join(parts)


def _list_outputs(outcome: StepOutcome) -> Iterator[tuple[str, str]]:
    for name, text in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        yield name, text.strip("\n") if text.strip() else "(nothing)"


def _shorten_output(text: str) -> str:
    lines = text.splitlines()
    if len(lines) <= _MOST_LINES:
        return text
    half = _MOST_LINES // 2
    return "\n".join([*lines[:half], f"… {len(lines) - 2 * half} lines left out …", *lines[-half:]])


def _name_model(hint: str, model: str) -> str:
    """A command in a hint is one that can be pasted: the file is the model's, not that of a layer cut out of it."""
    return hint.replace(" MODEL ", f" {shlex.quote(model)} ")


def render_error(fixture: str, error: AssayError, model: str) -> str:
    hint = f"\n  {_name_model(error.hint, model)}" if error.hint else ""
    return f"{fixture}: {error.message}{hint}"


def render_mismatch(label: str, reference: str, report: CaseReport) -> str:
    """The numbers, and the command that shows them."""
    from assay.models.report.summary import build_diff_commands, describe_finding, find_bad
    from assay.models.report.tensor_diff import build_document
    from assay.models.values.tensors import ALLOW_CONSTANT, TensorDiff
    from assay.show.terminal_report import render_terminal

    bad = [each for each in report.local if each.verdict.kind != "PASS"]
    found = "; ".join(describe_finding(finding, report) for finding in find_bad(report))
    differs = any(each.verdict.kind == "FAIL" for each in bad) or report.verdict.kind != "INCONCLUSIVE"
    verb = "differs from" if differs else "cannot be distinguished from"
    lines = [f"{label}: {report.target} {verb} {reference}: {found}"]
    files = dict(zip([each.name for each in bad], report.diffs, strict=False))
    diffs = [TensorDiff(each, *files.get(each.name, ("-", "-"))) for each in bad]
    if diffs:
        lines.append(render_terminal(build_document(diffs, report.verdict), width=110, plain=True).rstrip())
    lines += [f"show it: {command}" for command in build_diff_commands(report)]
    return "\n".join(lines).replace(ALLOW_CONSTANT, _ALLOWED)


PROPERTY_CASE, PROPERTY_ISSUE, PROPERTY_PROFILE = "case", "linked_issue", "profiling_output"  # of a test
_REASON = "assay_reason"
_SECTION = "models that did not pass"
_NAMES = {"error": "ERROR", "failed": "FAILED"}
_LEAST_WIDTH = 30  # columns that a reason needs in the short summary to say anything


def build_failure(text: str, reason: str) -> BaseException:
    """To be raised: the whole text for the report, and the reason alone."""
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
    shown: Any = report.longrepr
    crash = call.excinfo.getrepr(style="short", chain=False).reprcrash
    if crash is not None and getattr(shown, "chain", None):
        crash.path, crash.lineno, crash.message = str(item.path), (report.location[1] or 0) + 1, reason
        report.longrepr = type(shown)([*shown.chain[:-1], (shown.chain[-1][0], crash, shown.chain[-1][2])])
    return report


def report_reasons(reporter: Any) -> None:
    """Of tests whose names fill the whole line of pytest's own summary."""
    lines = [
        f"{word} {_shorten_id(report.nodeid)}: {getattr(report, _REASON)}"
        for kind, word in _NAMES.items()
        for report in reporter.stats.get(kind, ())
        if hasattr(report, _REASON) and not _has_room(reporter, report.nodeid)
    ]
    if lines:
        reporter.section(_SECTION)
    for line in lines:
        reporter.write_line(line)


def _has_room(reporter: Any, nodeid: str) -> bool:
    width: int = reporter._tw.fullwidth  # noqa: SLF001 pytest has no other way to ask
    return len(nodeid) + _LEAST_WIDTH <= width


def _shorten_id(nodeid: str) -> str:
    """What stands between the brackets."""
    match = re.search(r"\[(.*)\]$", nodeid)
    return match[1] if match else nodeid
