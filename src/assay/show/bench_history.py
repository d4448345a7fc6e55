"""Histories, comparisons and set-ups of benchmarks as text."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from assay.show import table as tables
from assay.show.bench import render_values
from assay.show.bisection import render_commit, render_culprit
from assay.show.table import Column, Table
from assay.show.terminal import STATE_COLORS, paint
from assay.show.words import clean
from assay.values.bench_history import Change, ComparisonReport, MetricComparison, MetricHistory, MetricSeries
from assay.values.verdict import Finding, Verdict, VerdictKind

_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 60


# ---------------------------------------------------------------- history


def render_history(history: MetricHistory, *, color: bool, width: int | None) -> str:
    del width
    count = sum(len(series.points) for series in history.series)
    better = "lower" if history.direction == "min" else "higher"
    verdict = str(history.verdict.kind)
    lines = [
        f"{history.method} {history.metric} ({better} is better): {count} executions, {_paint(verdict, verdict, color)}"
    ]
    for series in history.series:
        lines += _describe_series(series, history.metric)
    lines += _describe_changes(history, color)
    lines += [f"  {number} executions left out: {reason}" for reason, number in history.left_out.items()]
    return "".join(f"{line}\n" for line in lines)


def _paint(text: str, kind: str, color: bool) -> str:
    return paint(text, STATE_COLORS.get(kind, "bold")) if color else text


def _describe_series(series: MetricSeries, metric: str) -> list[str]:
    setup = ", ".join(f"{key} {value}" for key, value in series.setup.items()) or "unknown set-up"
    label = f"label {series.label}; " if series.label else ""
    edges = [0, *(change.step.at for change in series.changes), len(series.points)]
    levels = [render_values(metric, [point.value for point in series.points[a:b]]) for a, b in pairwise(edges)]
    return [
        f"  {clean(label + setup)}",
        f"    {_draw([point.value for point in series.points])}",
        "    levels: " + " → ".join(level or "-" for level in levels),
    ]


def _draw(values: Sequence[float]) -> str:
    """A bar for each execution, or for each group of neighbours where there are many."""
    size = -(-len(values) // _MOST_BARS)
    heights = [statistics.median(values[at : at + size]) for at in range(0, len(values), size)]
    low, high = min(heights), max(heights)
    if high == low:
        return _BARS[0] * len(heights)
    return "".join(_BARS[min(7, int(8 * (height - low) / (high - low)))] for height in heights)


def _describe_changes(history: MetricHistory, color: bool) -> list[str]:
    """A line for each change; then what else keeps the verdict from being PASS."""
    findings = history.verdict.findings
    lines = [_describe_change(*pair, color) for pair in zip(history.changes, findings, strict=False)]
    others = [
        f"  {_paint(str(finding.kind), str(finding.kind), color)} {clean(finding.message)}"
        for finding in findings[len(history.changes) :]
    ]
    return [*lines, *others] or ["  no change"]


def _describe_change(change: Change, finding: Finding, color: bool) -> str:
    word = _word(change, finding.kind)
    interval = change.step.interval
    size = f"{change.step.effect:+.1%}" + (f" [{interval[0]:+.1%}, {interval[1]:+.1%}]" if interval else "")
    moment = datetime.fromtimestamp(change.at).strftime("%Y-%m-%d %H:%M") if change.at else ""  # noqa: DTZ006 local time
    rest = finding.message.partition("; ")[2]
    return f"  {_paint(word, str(finding.kind), color)} {size} {moment} {change.execution_id}: {clean(rest)}"


def _word(change: Change, kind: VerdictKind) -> str:
    if kind is not VerdictKind.PASS:
        return str(kind)
    return "worse" if change.is_worse else "better"


def build_history_cases(histories: Sequence[MetricHistory]) -> list[tuple[str, str, Verdict]]:
    return [(history.method, history.metric, history.verdict) for history in histories]


# ---------------------------------------------------------------- comparison


def render_comparison(report: ComparisonReport, *, color: bool, width: int | None) -> str:
    columns = (
        Column("verdict", "state"),
        Column("benchmark"),
        Column("metric"),
        Column(clean(report.base), "text", "right"),
        Column(clean(report.head), "text", "right"),
        Column("change"),
    )
    rows = [
        [
            str(m.finding.kind),
            m.method,
            m.metric,
            render_values(m.metric, m.base.values),
            render_values(m.metric, m.head.values),
            m.finding.message,
        ]
        for m in report.metrics
    ]
    text = tables.render_table(Table(columns, rows), width=width, color=color) if rows else ""
    others = [f for f in report.verdict.findings if f not in [m.finding for m in report.metrics]]
    lines = [f"{finding.kind} {finding.subject}: {finding.message}" for finding in others]
    lines += [*report.notes, f"{report.verdict.kind}: {report.verdict.comparisons} compared"]
    return text + "".join(f"{clean(line)}\n" for line in lines)


def build_comparison_cases(report: ComparisonReport) -> list[tuple[str, str, Verdict]]:
    cases = [(metric.method, metric.metric, Verdict.of([metric.finding], 1)) for metric in report.metrics]
    judged = [metric.finding for metric in report.metrics]
    return cases + [
        (found.subject, "execution", Verdict.of([found], 0)) for found in report.verdict.findings if found not in judged
    ]


# ---------------------------------------------------------------- set-ups, bisection


def render_setups(
    by: Sequence[str],
    metrics: Sequence[str],
    rows: Sequence[tuple[Sequence[str], int, Mapping[str, Sequence[float]]]],
    form: str,
) -> str:
    """`rows`: keys, executions, values by metric. For machines medians and quartiles stand in columns of their own."""
    if form in ("text", "md"):
        columns = [
            *(Column(key) for key in by),
            Column("n", "number", digits=None),
            *(Column(name, "text", "right") for name in metrics),
        ]
        cells = [
            [*keys, count, *(render_values(name, values[name]) for name in metrics)] for keys, count, values in rows
        ]
        found = Table(tuple(columns), cells)
        return tables.render_markdown(found) if form == "md" else tables.render_table(found)
    parts = ("median", "low", "high")
    columns = [*(Column(key) for key in by), Column("n", "number", digits=None)]
    columns += [Column(f"{name}.{part}", "number", digits=None) for name in metrics for part in parts]
    plain = [
        [*keys, count, *(cell for name in metrics for cell in _quartiles(values[name]))] for keys, count, values in rows
    ]
    found = Table(tuple(columns), plain)
    return tables.render_csv(found) if form == "csv" else tables.render_json(found) + "\n"


def _quartiles(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    if not values:
        return None, None, None
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def render_bisect(found: Any, *, color: bool = False) -> str:
    """`found`: what a search came to. The culprit first, then its evidence, then how it was found."""
    lines: list[str] = []
    if found.culprit:
        lines += render_culprit(found.culprit, color)
        lines += [f"  {clean(line)}" for line in _describe_evidence(found.evidence)]
    elif found.suspects:
        lines.append("one of these, and the trials cannot tell which:")
        lines += [f"  {render_commit(commit)}" for commit in found.suspects]
    elif found.stuck:
        lines.append(clean(f"not found: {found.stuck}"))
    lines += [f"{answer.commit[:12]} {answer.outcome}: {clean(answer.message)}" for answer in found.answers]
    tried = len({answer.commit for answer in found.answers})
    before = f", {found.resumed} of them by an earlier call" if found.resumed else ""
    answers = f"{len(found.answers)} answer{'' if len(found.answers) == 1 else 's'}{before}"
    lines.append(f"{tried} of {found.commits} commits tried, {answers}; log: {clean(found.log)}")
    return "".join(f"{line}\n" for line in lines)


def _describe_evidence(evidence: MetricComparison | None) -> list[str]:
    if evidence is None:
        return []
    sides = (f"{side.name}: {render_values(evidence.metric, side.values)}" for side in (evidence.base, evidence.head))
    return [f"{evidence.method} {evidence.metric}: {evidence.finding.message}", *sides]
