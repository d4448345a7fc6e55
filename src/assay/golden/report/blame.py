"""What `assay golden blame` came to, as a document; and shifts of metrics in words, also those of a rebase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.golden.judge.contrasts import Shift
from assay.golden.report.rows import render_step
from assay.golden.results import BlameReport, Moved
from assay.show.formatting import render_number
from assay.system.fast_dataclasses import asdict
from assay.values.document import Block, Document, Facts, Findings, Notes, Section, TableBlock, Text
from assay.values.table import Column, Table
from assay.values.verdict import Finding, VerdictKind

_TINY = 0.01


def render_shift(value: float) -> str:
    """`+2e-7`; `0`."""
    return f"{'+' if value > 0 else ''}{render_number(float(f'{value:.3g}'), 3)}" if value else "0"


def render_noise(shift: Shift, level: float = 1.0, unit: str = "") -> str | None:
    """`±0.002`; `0` where every run repeats itself bit for bit; None where that is unknown."""
    if shift.kind == "noise unknown" or not level:
        return None
    return "0" if shift.reach is None else f"±{render_number(shift.reach / level, 2)}{unit}"


def build_blame_document(reports: Sequence[BlameReport]) -> Document:
    sections = [Section(list(_build(report))) for report in reports]
    facts = [{**asdict(report), "exit_code": int(report.exit_code)} for report in reports]
    return Document("assay golden blame", sections, facts=facts)


def _build(report: BlameReport) -> Iterator[Block]:
    yield Section((Facts(list(_list_sides(report))),))
    table = _build_table(report.effects)
    if table.rows:
        yield Section((TableBlock(table),))
    names = {cell: f"code {cell.code} in environment {cell.environment}" for cell in report.cells if cell.problem}
    yield Findings([Finding(VerdictKind.ERROR, name, cell.problem) for cell, name in names.items()])
    runs = [f"{cell.code}{cell.environment} {cell.runs}" for cell in report.cells if cell not in names]
    yield Notes([f"runs of each code and environment: {', '.join(runs) or 'none'}", *report.notes])
    for metric in dict.fromkeys(each.metric for each in report.effects):
        parts = {each.part: each for each in report.effects if each.metric == metric}
        yield Text(f"{report.test}: {_describe(metric, parts)}", role="answer")
    if report.interrupted or report.problem:
        yield Text(f"{report.test}: not everything was run: {report.interrupted or report.problem}")


def _list_sides(report: BlameReport) -> Iterator[tuple[str, str]]:
    for kind, sides in (("code", report.codes), ("environment", report.environments)):
        for side, text in sides.items():
            yield f"{kind} {side}" if len(sides) > 1 else f"{kind} a, b", text


def _build_table(moved: Sequence[Moved]) -> Table:
    numbers = [Column(name, align="right") for name in ("moved by", "relative", "noise", "at most", "step")]
    return Table((Column("metric"), Column("effect of"), *numbers, Column("result")), list(map(_build_row, moved)))


def _build_row(moved: Moved) -> list[Any]:
    part, shift = f"{moved.part} ({moved.where})" if moved.where else moved.part, moved.shift
    if shift is None:
        return [moved.metric, part, *[None] * 5, "unknown"]
    effect = render_shift(shift.effect), f"{render_shift(100 * shift.relative)}%", render_noise(shift)
    steps = render_shift(shift.largest), render_step(shift.step) or None
    return [moved.metric, part, *effect, *steps, shift.kind]


def _describe(metric: str, parts: Mapping[str, Moved]) -> str:
    """`the environment moved loss by +2e-7, the code by 0`."""
    environment = _describe_part(parts["environment"].shift)
    code = f"by {_describe_part(parts['code'].shift)}" if "code" in parts else "is the same on both sides"
    text = f"the environment moved {metric} by {environment}, the code {code}"
    more = parts["interaction"].shift if "interaction" in parts else None
    return f"{text}; together by another {render_shift(more.effect)}" if more and _matters(more, parts) else text


def _matters(shift: Shift, parts: Mapping[str, Moved]) -> bool:
    """Effects that multiply have a tiny interaction, which the table shows."""
    least = min(abs(each.shift.effect) for each in parts.values() if each.shift and each.part != "interaction")
    return shift.kind == "moved" and abs(shift.effect) > _TINY * least


def _describe_part(shift: Shift | None) -> str:
    if shift is None:
        return "an unknown amount"
    effect = render_shift(shift.effect)
    return (
        f"no more than the repeats differ ({effect} {render_noise(shift)})"
        if shift.reach and shift.kind != "moved"
        else effect
    )
