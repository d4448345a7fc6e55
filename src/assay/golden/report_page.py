"""`assay report` of a golden check: what its page shows, as one document."""

from __future__ import annotations

import os

from assay.errors import FormatError, UsageError
from assay.follow.api import StudyLocation
from assay.golden.page import build_golden_page
from assay.golden.records import FOLDER, Head, list_ids, parse_name
from assay.values import layout
from assay.values.document import Block, Details, Document, Notes, Section, Span, TableBlock
from assay.values.plain import render_date
from assay.values.table import Column, Table

_MOST_CHECKS = 50


def find_kept(path: str) -> tuple[StudyLocation, str]:
    """The study and the id of a report that is named by its file. Raises UsageError for another file."""
    folder, name = os.path.split(os.path.abspath(path))
    study = os.path.dirname(os.path.dirname(folder))
    kept = parse_name(name)
    if kept is None or folder != os.path.join(study, layout.STUDY_META_DIR, FOLDER):
        where = os.path.join("STUDY", layout.STUDY_META_DIR, FOLDER)
        raise UsageError(f"{path} is not the report of a golden check", f"those are in {where}")
    return StudyLocation(os.path.dirname(study), os.path.basename(study)), kept


def build_report(location: StudyLocation, wanted: str | None) -> Document | None:
    """`wanted`: the id of a check; None: the last one. None where the study has no such report."""
    known = [each for each, _ in list_ids(location)]
    if not known or (wanted is not None and wanted not in known):
        return None
    page = build_golden_page(location, wanted)
    if page.head is None or not page.blocks:
        raise FormatError("; ".join(page.problems))
    blocks: list[Block] = [Notes(page.problems), *page.blocks, *page.drift]
    if len(page.history) > 1:
        blocks.append(Section((TableBlock(_build_table(page.history[:_MOST_CHECKS])),), "Checks and gatherings"))
    if page.recording:
        blocks.append(Details("The recording now", page.recording))
    return Document(f"{page.head.kind} {page.head.test}", blocks)


def _build_table(heads: tuple[Head, ...]) -> Table:
    columns = (Column("when"), Column("id"), Column("what"), Column("verdict"), Column("file"))
    rows = [
        (render_date(each.at, "%Y-%m-%d %H:%M"), each.id, each.mode, Span(each.word, str(each.kind)), each.source)
        for each in heads
    ]
    return Table(columns, rows)
