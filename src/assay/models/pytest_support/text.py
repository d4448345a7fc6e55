"""What a test of a model says when it does not pass: everything that a person needs to go on, and nothing of ours."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

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
    parts += [f"{name}:\n{_shorten(text)}" for name, text in _said(outcome)]
    if error.hint:
        parts.append(f"what to do: {_name_model(error.hint, model)}")
    return "\n".join(parts)


def _said(outcome: StepOutcome) -> Iterator[tuple[str, str]]:
    for name, text in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        yield name, text.strip("\n") if text.strip() else "(nothing)"


def _shorten(text: str) -> str:
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
    from assay.models.report.tensor_diff import render_diffs
    from assay.models.report.text import build_diff_commands, find_bad, tell
    from assay.models.values.tensors import ALLOW_CONSTANT, TensorDiff

    bad = [each for each in report.local if each.verdict.kind != "PASS"]
    found = "; ".join(tell(finding, report) for finding in find_bad(report))
    differs = any(each.verdict.kind == "FAIL" for each in bad) or report.verdict.kind != "INCONCLUSIVE"
    lines = [f"{label}: {report.target} {'differs from' if differs else 'cannot be told from'} {reference}: {found}"]
    files = dict(zip([each.name for each in bad], report.diffs, strict=False))
    diffs = [TensorDiff(each, *files.get(each.name, ("-", "-"))) for each in bad]
    if diffs:
        lines.append(render_diffs(diffs, report.verdict, width=110, plain=True).rstrip())
    lines += [f"look at it: {command}" for command in build_diff_commands(report)]
    return "\n".join(lines).replace(ALLOW_CONSTANT, _ALLOWED)
