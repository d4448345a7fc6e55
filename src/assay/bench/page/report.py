"""`assay report` of benchmarks: all benchmarks, the histories of one, or two compared sides, as one document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from assay.bench.page.contents import BenchArchive, HistoryPage, build_history_page, is_archive, load_archive
from assay.bench.page.overview import BenchLine, build_overview, find_changes, list_metrics
from assay.bench.page.sides import build_comparison
from assay.bench.report.history import build_changes, build_mark
from assay.errors import UsageError
from assay.follow.api import StudyLocation
from assay.values.document import Block, Document, Heading, Notes, Section, Span, TableBlock, Text
from assay.values.table import Column, Table
from assay.values.verdict import VerdictKind, find_worst

_MOST_HISTORIES = 30
_MOST_TOP = 8  # how many of the largest changes are listed for each direction


def build_report(location: StudyLocation, wanted: str | None) -> Document | None:
    """Build the report. `wanted`: a benchmark, an execution, or BASE..HEAD, which are labels or commits. Returns None
    if the study is not an archive of benchmarks, or if nothing in the study is named `wanted`."""
    if not is_archive(location):
        return None
    archive = load_archive(location)
    if not archive.groups:
        raise UsageError(f"{location.dir}: no benchmark has been executed yet", "assay bench run FILE")
    if wanted is None:
        return Document("Benchmarks", [*_build_overview(archive)])
    base, dots, head = wanted.partition("..")
    if dots:
        report, blocks = build_comparison(archive, base, head, "")
        return Document(f"{report.verdict.kind} {wanted}", [Heading(wanted, report.verdict.kind, 1), *blocks])
    methods = [
        method
        for method, group in archive.groups.items()
        if wanted == method or any(row.key.endswith(f"/{wanted}") for row in group.rows)
    ]
    if not methods:
        return None
    metrics = list_metrics(archive.of(methods[0]))[:_MOST_HISTORIES]
    pages = [build_history_page(archive, methods[0], metric) for metric in metrics]
    worst = _find_worst([page.history.verdict.kind if page.history else None for page in pages])
    histories = [block for page in pages for block in _build_history(page)]
    return Document(methods[0], [Heading(methods[0], worst, 1), *histories])


def _find_worst(kinds: Sequence[VerdictKind | None]) -> VerdictKind | None:
    """Return the worst kind; a None among others counts as INCONCLUSIVE. None if nothing has a history."""
    return find_worst(kind or VerdictKind.INCONCLUSIVE for kind in kinds) if any(kinds) else None


def _build_overview(archive: BenchArchive) -> Iterator[Block]:
    found = build_overview(archive.location, archive.groups, is_patient=True)
    worst = _find_worst([line.kind for line in found.lines])
    yield Heading("Benchmarks", worst, 1, note=archive.location.dir)
    yield Notes(found.problems)
    notes = [[line.judged.problem] if line.judged and line.judged.problem else [] for line in found.lines]
    yield TableBlock(_build_table(found.lines), notes=notes)
    top = find_changes(found.lines)
    if top.worse or top.better:
        items = [
            (build_mark(each.change.kind), f" {each.method} {each.change.metric}: {each.change.effect:+.1%}")
            for each in (*top.worse[:_MOST_TOP], *top.better[:_MOST_TOP])
        ]
        yield Section((Notes(items),), "Largest changes")
    for line in found.lines[:_MOST_HISTORIES]:
        if line.judged and line.judged.kind:
            yield from _build_history(build_history_page(archive, line.method, line.judged.shown))


def _build_table(lines: Sequence[BenchLine]) -> Table:
    columns = (
        Column("benchmark"), Column("metric"), Column("last", align="right"), Column("executions", "number"),
        Column("verdict"),
    )  # fmt: skip
    rows = []
    for line in lines:
        judged, kind = line.judged, str(line.kind or "")
        shown = Span(kind, kind) if kind else "no history"
        rows.append((line.method, judged.shown if judged else "", judged.last if judged else "", line.count, shown))
    return Table(columns, rows)


def _build_history(page: HistoryPage) -> Iterator[Block]:
    history = page.history
    if history is None:
        yield Heading(page.metric)
        yield Text(page.problem)
        return
    better = "lower" if history.direction == "min" else "higher"
    yield Heading(f"{history.method} {page.metric}", history.verdict.kind, 2, note=f"{better} is better")
    yield from page.charts
    yield Section((*build_changes(history), *page.notes), "Changes")
