"""`assay report` of benchmarks: all of them, the history of one, or two sides compared, as one document."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from assay.bench.pages import (
    Archive,
    BenchLine,
    build_comparison,
    build_history_page,
    build_overview,
    is_archive,
    list_metrics,
    load_archive,
)
from assay.bench.report.executions import render_effect
from assay.bench.report.history import build_changes, build_mark
from assay.errors import UsageError
from assay.study.api import StudyLocation
from assay.values.document import Block, Document, Heading, Notes, Section, Span, TableBlock, Text
from assay.values.table import Column, Table
from assay.values.verdict import SEVERITY, VerdictKind

_MOST_HISTORIES = 30


def build_report(location: StudyLocation, wanted: str | None) -> Document | None:
    """`wanted`: a benchmark, one of its executions, or BASE..HEAD, which are labels or commits. None where the study
    is not an archive of benchmarks, or this is the name of nothing in it."""
    if not is_archive(location):
        return None
    archive = load_archive(location)
    if not archive.executions:
        raise UsageError(f"{location.dir}: no benchmark has been executed yet", "assay bench run FILE")
    if wanted is None:
        return Document("Benchmarks", [*_build_overview(archive)])
    base, dots, head = wanted.partition("..")
    if dots:
        report, blocks = build_comparison(archive, base, head, None)
        return Document(f"{report.verdict.kind} {wanted}", [Heading(wanted, report.verdict.kind, 1), *blocks])
    methods = [each.method for each in archive.executions if wanted in (each.method, _name_run(each.run_dir))]
    if not methods:
        return None
    found = archive.of(methods[0])
    return Document(methods[0], [*_build_histories(archive, methods[0], list_metrics(found)[:_MOST_HISTORIES])])


def _name_run(run_dir: str | None) -> str:
    return os.path.basename(run_dir or "")


def _find_worst(kinds: Sequence[VerdictKind]) -> VerdictKind | None:
    return next((kind for kind in SEVERITY if kind in kinds), None)


def _build_overview(archive: Archive) -> Iterator[Block]:
    found = build_overview(archive)
    kinds = [line.history.verdict.kind for line in found.lines if line.history]
    yield Heading("Benchmarks", _find_worst(kinds), 1, note=archive.location.dir)
    yield Notes(archive.problems)
    yield TableBlock(_build_table(found.lines), notes=[[line.problem] if line.problem else [] for line in found.lines])
    if found.top:
        items = [
            (build_mark(each.finding.kind), f" {each.method} {each.metric}: {render_effect(each.finding)}")
            for each in found.top
        ]
        yield Section((Notes(items),), "Largest changes")
    for line in found.lines[:_MOST_HISTORIES]:
        if line.history:
            yield from _build_history(archive, line.method, line.metric, level=2)


def _build_table(lines: Sequence[BenchLine]) -> Table:
    columns = (
        Column("benchmark"), Column("metric"), Column("last", align="right"), Column("executions", "number"),
        Column("verdict"),
    )  # fmt: skip
    rows = []
    for line in lines:
        kind = str(line.history.verdict.kind) if line.history else ""
        rows.append((line.method, line.metric, line.last, line.count, Span(kind, kind) if kind else "no history"))
    return Table(columns, rows)


def _build_histories(archive: Archive, method: str, metrics: Sequence[str]) -> Iterator[Block]:
    pages = [(metric, build_history_page(archive, method, metric)) for metric in metrics]
    kinds = [page.history.verdict.kind for _, page in pages if page.history]
    yield Heading(method, _find_worst(kinds), 1)
    for metric, page in pages:
        if page.history is None:
            yield Heading(metric)
            yield Text(page.problem)
        else:
            yield from _build_history(archive, method, metric, level=2)


def _build_history(archive: Archive, method: str, metric: str, level: int) -> Iterator[Block]:
    page = build_history_page(archive, method, metric)
    if page.history is not None:
        better = "lower" if page.history.direction == "min" else "higher"
        yield Heading(f"{method} {metric}", page.history.verdict.kind, level, note=f"{better} is better")
        yield from page.charts
        yield Section((*build_changes(page.history), *page.notes), "Changes")
