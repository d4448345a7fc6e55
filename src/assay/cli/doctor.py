"""`assay doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from assay.errors import ExitCode
from assay.show.console import Console
from assay.values.options import Request, json_option, root_option

if TYPE_CHECKING:
    from assay.cli.doctor_checks import Diagnosis, Diagnostic

_MARKS = {
    "ok": ("✓", "+", "green"),
    "note": ("·", ".", "yellow"),
    "missing": ("○", "-", "dim"),
    "broken": ("✗", "x", "red"),
}


class DoctorRequest(Request):
    as_json: bool = json_option()
    root: str | None = root_option()


def doctor(request: DoctorRequest, console: Console) -> int:
    """Show what works on this machine, and how to get the rest. Exit code 1: something needed does not work."""
    from assay.cli.doctor_checks import examine

    diagnosis = examine(request.root)
    if request.as_json:
        console.write_json(_build_facts(diagnosis))
    else:
        console.write("".join(f"{line}\n" for line in _render(diagnosis, console)))
    return int(ExitCode.OK if diagnosis.is_well else ExitCode.FAILED)


def _build_facts(diagnosis: Diagnosis) -> dict[str, object]:
    findings = [
        {"group": group, "name": each.name, "grade": each.grade, "text": each.text, "hint": each.hint or None}
        for group, found in diagnosis.groups
        for each in found
    ]
    return {"is_well": diagnosis.is_well, "findings": findings}


def _render(diagnosis: Diagnosis, console: Console) -> Iterator[str]:
    from assay.system import terminal

    color, width = console.color, console.width
    column = max(len(each.name) for _, found in diagnosis.groups for each in found)
    for group, found in diagnosis.groups:
        yield terminal.paint(group, "bold") if color else group
        for each in found:
            yield from _render_finding(each, column, width, color, console.is_plain)
        yield ""
    yield "everything that is needed works" if diagnosis.is_well else "something that is needed does not work"


def _render_finding(finding: Diagnostic, column: int, width: int | None, color: bool, plain: bool) -> Iterator[str]:
    from assay.show.formatting import pad
    from assay.show.terminal_report import fold
    from assay.system import terminal

    nice, ascii_mark, style = _MARKS[finding.grade]
    mark = ascii_mark if plain else nice
    indent = " " * (column + 6)
    room = None if width is None else width - len(indent)
    first, *rest = [*fold(finding.text, room), *(fold(finding.hint, room) if finding.hint else [])]
    yield f"  {terminal.paint(mark, style) if color else mark} {pad(finding.name, column)}  {first}"
    yield from (f"{indent}{line}" for line in rest)
