"""`assay report` of checks of models: the last of each, or one, as one document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from assay.errors import FormatError, UsageError
from assay.follow.api import StudyLocation, open_index_of
from assay.models.pages import CheckSummary, ModelPage, build_model_page, group_checks, is_model_study, list_checks
from assay.models.report.summary import render_error, render_ms
from assay.reading.api import load_fresh_table
from assay.record.index.base import RunRow
from assay.values.document import Block, Document, Heading, Span, TableBlock
from assay.values.plain import render_date
from assay.values.table import Column, Table

_MOST_MODELS = 12  # with their layers


def build_report(location: StudyLocation, wanted: str | None) -> Document | None:
    """`wanted`: a run of the study; None: the last check of each model on each target. None where there is no such."""
    if not is_model_study(location):
        return None
    with open_index_of([location]) as index:
        rows = {row.key.partition("/")[2]: row for row in load_fresh_table(index, [location]).rows}
    checks = list_checks(location, [*rows.values()])
    if wanted is None:
        return Document("Models", [*_build_overview(location, rows, checks)])
    if wanted not in rows:
        return None
    page = build_model_page(location, rows[wanted], checks)
    if page.report is None:
        raise FormatError(page.problem)
    return Document(f"{page.report.verdict.kind} {page.report.stem}", [*page.blocks, *page.history])


def _build_overview(
    location: StudyLocation, rows: Mapping[str, RunRow], checks: Sequence[CheckSummary]
) -> Iterator[Block]:
    if not checks:
        raise UsageError(f"{location.dir}: no model has been checked yet", "assay model check MODEL.onnx")
    newest = [card.checks[0] for card in group_checks(checks)]
    yield Heading("Models", level=1, note=location.dir)
    yield TableBlock(_build_table(newest))
    for check in newest[:_MOST_MODELS]:
        page: ModelPage = build_model_page(location, rows[check.run], checks)
        yield from (*page.blocks, *page.history)


def _build_table(checks: Sequence[CheckSummary]) -> Table:
    columns = (
        Column("model"), Column("target"), Column("verdict"), Column("when"), Column("first wrong layer"),
        Column("error", align="right"), Column("run ms", align="right"),
    )  # fmt: skip
    rows = [
        (
            check.stem,
            check.target,
            Span(str(check.kind), str(check.kind)) if check.kind else check.problem,
            render_date(check.at, "%Y-%m-%d %H:%M"),
            check.first_wrong,
            "" if check.error is None else render_error(check.error),
            "" if check.run_s is None else render_ms(check.run_s),
        )
        for check in checks
    ]
    return Table(columns, rows)
