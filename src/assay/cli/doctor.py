"""`assay doctor`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from assay.errors import ExitCode

if TYPE_CHECKING:
    from assay.cli.doctor_checks import Diagnosis, Diagnostic

_MARKS = {
    "ok": ("✓", "+", "green"),
    "note": ("·", ".", "yellow"),
    "missing": ("○", "-", "dim"),
    "broken": ("✗", "x", "red"),
}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--root", metavar="DIR", help="Output root.")
def command(as_json: bool, root: str | None) -> int:
    """What works on this machine, and how to get the rest. Ends with 1 when something needed does not work."""
    from assay.cli.doctor_checks import examine
    from assay.show.json_text import render_facts

    diagnosis = examine(root)
    if as_json:
        sys.stdout.write(render_facts(_build_facts(diagnosis)))
    else:
        sys.stdout.writelines(f"{line}\n" for line in _render(diagnosis))
    return int(ExitCode.OK if diagnosis.is_well else ExitCode.FAILED)


def _build_facts(diagnosis: Diagnosis) -> dict[str, object]:
    findings = [
        {"group": group, "name": each.name, "grade": each.grade, "text": each.text, "hint": each.hint or None}
        for group, found in diagnosis.groups
        for each in found
    ]
    return {"is_well": diagnosis.is_well, "findings": findings}


def _render(diagnosis: Diagnosis) -> Iterator[str]:
    from assay.system import terminal

    color = terminal.use_color(sys.stdout)
    width = terminal.terminal_width(sys.stdout)
    column = max(len(each.name) for _, found in diagnosis.groups for each in found)
    for group, found in diagnosis.groups:
        yield terminal.paint(group, "bold") if color else group
        for each in found:
            yield from _render_finding(each, column, width, color)
        yield ""
    yield "everything that is needed works" if diagnosis.is_well else "something that is needed does not work"


def _render_finding(finding: Diagnostic, column: int, width: int | None, color: bool) -> Iterator[str]:
    from assay.show.formatting import pad
    from assay.show.sections import fold
    from assay.system import terminal

    nice, plain, style = _MARKS[finding.grade]
    mark = nice if terminal.can_encode(sys.stdout, nice) else plain
    indent = " " * (column + 6)
    room = None if width is None else width - len(indent)
    first, *rest = [*fold(finding.text, room), *(fold(finding.hint, room) if finding.hint else [])]
    yield f"  {terminal.paint(mark, style) if color else mark} {pad(finding.name, column)}  {first}"
    yield from (f"{indent}{line}" for line in rest)
