"""Configurations that must agree: one row for each, one column for each metric."""

from __future__ import annotations

import math
from collections.abc import Sequence

from assay.golden.report.rows import RUN, ReportRow, render_percent
from assay.golden.values import GoldenTestReport
from assay.values.document import Section, Span, TableBlock
from assay.values.table import Column, Table
from assay.values.verdict import SEVERITY, VerdictKind

_CANONICAL = "canonical"
_MOST_REASONS = 5  # below a row of a page


def build_matrix(test: GoldenTestReport, rows: Sequence[ReportRow]) -> Section:
    """Of several segments a cell shows the worst; the reasons of what did not pass are below a row on a page."""
    metrics = list(dict.fromkeys(row.metric for row in rows if row.rule is not None))
    columns = (Column("configuration"), *(Column(name, "state") for name in metrics), Column("changes", rank=1))
    groups = [("", "the command as it is"), *((each.name, each.title) for each in test.same)]
    cells, notes, roles = [], [], []
    for name, title in groups:
        mine = [row for row in rows if row.configuration == name and row.segment is not None]
        cells.append([name or _CANONICAL, *(_build_cell(mine, metric) for metric in metrics), title])
        bad = sorted((row for row in mine if name and row.kind is not VerdictKind.PASS), key=rank_row)
        notes.append([_describe(row) for row in bad[:_MOST_REASONS]])
        roles.append(str(min((row.kind for row in mine), key=SEVERITY.index, default=VerdictKind.ERROR)))
    return Section((TableBlock(Table(columns, cells), notes, roles),), "Configurations that must agree")


def _build_cell(rows: Sequence[ReportRow], metric: str) -> Span | None:
    """The worst verdict, with the largest effect of that kind."""
    found = [row for row in rows if row.metric == metric] or [row for row in rows if row.metric == RUN]
    if not found:
        return None
    worst = min(found, key=rank_row)
    effect = render_percent(worst.finding.effect if worst.finding else None)
    return Span(f"{worst.kind} {effect}".strip(), str(worst.kind))


def _describe(row: ReportRow) -> str:
    finding = row.finding
    return f"segment {row.segment} {row.metric}: {'; '.join(finding.message.splitlines()) if finding else ''}"


def rank_row(row: ReportRow) -> tuple[int, float]:
    """The worst first, and of those the one with the largest effect."""
    effect = (row.finding.effect if row.finding else None) or 0.0
    return SEVERITY.index(row.kind), 0.0 if math.isnan(effect) else -abs(effect)
