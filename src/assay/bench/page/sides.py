"""A page that compares two sides, which are labels or commits. The result is not recorded as a verdict."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from assay.bench.flow.compare import CompareOptions, compare_executions
from assay.bench.flow.history import list_invalid
from assay.bench.flow.sides import Executions, choose_side
from assay.bench.page.contents import HASH, BenchArchive
from assay.bench.records import load_triage
from assay.bench.report.executions import render_values
from assay.bench.report.history import build_comparison_table, describe_visible
from assay.bench.values.comparison import BenchSide, ComparisonReport, MetricComparison
from assay.errors import NotFoundError
from assay.show.chart import build_ticks
from assay.values.document import Block, Chart, Curve, Notes, Panel, Section, Span, TableBlock
from assay.values.verdict import SEVERITY, VerdictKind

_MOST_SHARES = 8  # the most charts of distributions on a page

_MOST_INTERVALS = 24


def build_comparison(
    archive: BenchArchive, base: str, head: str, method: str
) -> tuple[ComparisonReport, Sequence[Block]]:
    """Build the comparison of two labels or commits. Raises NotFoundError, with the known names, for another name."""
    commits = tuple(name for name in (base, head) if len(name) >= 4)
    rows = archive.choose(method)
    mine = [row for row in rows if row.params.get("label") in (base, head) or (row.commit or "").startswith(commits)]
    loaded = archive.load(mine)
    triages = load_triage(archive.location.dir)
    compared = {each.method for each in loaded}
    judged = [each for each in dict.fromkeys(each.method for each in triages) if each in compared]
    invalid = list_invalid([each for name in judged for each in archive.of(name)], triages)
    for name in (base, head):
        if not choose_side(loaded, name):
            raise NotFoundError("label or commit", name, archive.list_sides())
    sides = [Executions(name, tuple(choose_side(loaded, name)), invalid) for name in (base, head)]
    report = compare_executions(sides[0], sides[1], CompareOptions())
    ordered = sorted(
        report.metrics, key=lambda each: (SEVERITY.index(each.finding.kind), -abs(each.finding.effect or 0.0))
    )
    shown = [each for each in ordered if _list_values(each.base) and _list_values(each.head)][:_MOST_SHARES]
    notes = Notes([*report.notes, *describe_visible(report)])
    names = [_shorten_side(name) for name in (base, head)]
    blocks: list[Block] = [TableBlock(build_comparison_table(names, ordered, is_whole=True)), notes]
    intervals = list(_build_intervals(ordered))
    blocks += [Section(intervals, "Changes")] if intervals else []
    blocks += [Section([_build_distribution(each, report) for each in shown], "Distributions")] if shown else []
    return report, blocks


def _shorten_side(name: str) -> str:
    """Shorten a commit to 8 characters, and any other name to 12."""
    word = name.partition(" ")[0]
    return word[:8] if HASH.fullmatch(word) else word[:12]


def _build_intervals(ordered: Sequence[MetricComparison]) -> Iterator[Block]:
    """Build a chart of the change of each metric with its interval; a line marks no change."""
    known = [each for each in ordered if each.finding.interval and each.finding.effect is not None][:_MOST_INTERVALS]
    curves, names = [], []
    for place, each in enumerate(reversed(known), 1):
        low, high = (100 * end for end in each.finding.interval or (0.0, 0.0))
        effect = 100 * (each.finding.effect or 0.0)
        color = {VerdictKind.FAIL: "c1", VerdictKind.PASS: "c2"}.get(each.finding.kind, "c5")
        text = f"{each.method} {each.metric}\n{each.finding.kind} {effect:+.2f}% [{low:+.2f}%, {high:+.2f}%]"
        curves += [
            Curve([(low, float(place)), (high, float(place))], f"{color} curve", texts=[text]),
            Curve([(effect, float(place))], f"{color} point", line=False, marker="dot", texts=[text]),
        ]
        names.append((float(place), f"{each.metric}"))
    if curves:
        ends = [x for curve in curves for x, _ in curve.points]
        low, high = min([*ends, 0.0]), max([*ends, 0.0])
        room = 0.06 * (high - low) or 1.0
        panel = Panel(curves, y_range=(0.4, len(known) + 0.6), ticks=names, height=36 + 24 * len(known))
        title = (Span("Change with its interval", "strong"), Span("percent; dashed: no change", "soft"))
        ticks = [(tick, f"{tick:g}%") for tick in build_ticks(low - room, high + room, 8)]
        yield Chart(
            title, (panel,), "change of each metric with its interval", lines=[0.0],
            x_range=(low - room, high + room), x_ticks=ticks, is_wide=True,
        )  # fmt: skip


def _list_values(side: BenchSide) -> tuple[float, ...]:
    return (*side.values, *side.aside)


def _build_distribution(metric: MetricComparison, report: ComparisonReport) -> Chart:
    """Build a chart of all values of both sides, with medians of the values that count; other values are grey."""
    sides = ((2.0, metric.base, "c0"), (1.0, metric.head, "c1"))
    curves = []
    for y, side, color in sides:
        if side.values:
            middle = statistics.median(side.values)
            curves.append(Curve([(middle, y - 0.4), (middle, y + 0.4)], f"{color} curve"))
        for drawn, style in ((side.aside, "soft"), (side.values, color)):
            spread = [(value, y + 0.14 * ((number % 5) - 2)) for number, value in enumerate(drawn)]
            texts = [render_values(metric.metric, [value]) or "" for value in drawn]
            curves.append(Curve(spread, f"{style} point", line=False, marker="dot", texts=texts))
    values = [*_list_values(metric.base), *_list_values(metric.head)]
    low, high = min(values), max(values)
    room = (high - low) * 0.06 or abs(low) * 0.01 or 1.0
    ticks = [(tick, render_values(metric.metric, [tick]) or "") for tick in build_ticks(low - room, high + room, 4)]
    names = [_shorten_side(name) for name in (report.base, report.head)]
    kind = str(metric.finding.kind)
    about = ", ".join(part for part in (metric.setup, metric.finding.message) if part)
    return Chart(
        (Span(f"{metric.method} {metric.metric}", "strong"), Span(kind, kind), Span(about, "soft")),
        (Panel(curves, y_range=(0.4, 2.6), ticks=[(2.0, names[0]), (1.0, names[1])], height=120),),
        f"{metric.metric}: values of {report.base} and {report.head}",
        x_range=(low - room, high + room),
        x_ticks=ticks,
    )
