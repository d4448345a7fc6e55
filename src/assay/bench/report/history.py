"""Histories, comparisons and set-ups of benchmarks as text."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

from assay.bench.report.executions import build_figure_columns, render_fitting, render_values
from assay.bench.values.comparison import (
    TAKEN_BY_ALL,
    Change,
    ComparisonReport,
    MetricComparison,
    MetricHistory,
    MetricSeries,
)
from assay.show import table as tables
from assay.show.bisection import render_commit, render_culprit
from assay.show.formatting import clean, shorten, wrap
from assay.system.terminal import STATE_COLORS, paint
from assay.values.plain import render_date
from assay.values.table import Column, Table
from assay.values.verdict import Finding, Verdict, VerdictKind

_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 60
_NAMES = ("benchmark", "method")  # columns of dotted names
_KIND = re.compile(rf"^( *)({'|'.join(kind.value for kind in VerdictKind)})\b", re.MULTILINE)  # that begins a line


# ---------------------------------------------------------------- history


def render_history(history: MetricHistory, *, color: bool, width: int | None) -> str:
    count = sum(len(series.points) for series in history.series)
    better = "lower" if history.direction == "min" else "higher"
    lines = [
        f"{history.verdict.kind} {history.method} {history.metric} ({better} is better): {count_executions(count)}"
    ]
    for series in history.series:
        lines += _describe_series(series, history.metric)
    lines += _describe_changes(history)
    lines += [
        f"  {count_executions(number)} left out: {_advise(reason)}" for reason, number in history.left_out.items()
    ]
    wrapped = "".join(f"{wrap(clean(line), width, '  ')}\n" for line in lines)
    return _KIND.sub(_paint_kind, wrapped) if color else wrapped


def _advise(reason: str) -> str:
    return f"{reason} (--all takes them)" if reason in TAKEN_BY_ALL else reason


def count_executions(number: int) -> str:
    return f"{number} execution{'' if number == 1 else 's'}"


def _paint_kind(match: re.Match[str]) -> str:
    return match[1] + paint(match[2], STATE_COLORS.get(match[2], "bold"))


def _describe_series(series: MetricSeries, metric: str) -> list[str]:
    setup = ", ".join(f"{key} {value}" for key, value in series.setup.items()) or "unknown set-up"
    label = f"label {series.label}; " if series.label else ""
    edges = [0, *(change.step.at for change in series.changes), len(series.points)]
    levels = [render_values(metric, [point.value for point in series.points[a:b]]) for a, b in pairwise(edges)]
    return [
        f"  {label}{setup}",
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


def _describe_changes(history: MetricHistory) -> list[str]:
    """A line for each change; then what else keeps the verdict from being PASS."""
    findings = history.verdict.findings
    lines = [_describe_change(*pair) for pair in zip(history.changes, findings, strict=False)]
    others = [f"  {finding.kind} {finding.message}" for finding in findings[len(history.changes) :]]
    return [*lines, *others] or [f"  no change{_describe_sight(history)}"]


def _describe_sight(history: MetricHistory) -> str:
    """How small a change would have been found, at most."""
    seen = [series.detectable for series in history.series if series.detectable]
    return f"; one of {max(seen):.1%} would have been found" if len(seen) == 1 else ""


def _describe_change(change: Change, finding: Finding) -> str:
    moment = render_date(change.at, "%Y-%m-%d %H:%M") if change.at else ""
    where = f"{moment} {change.execution_id}".strip()
    rest = finding.message.partition("; ")[2]
    effect = f"creep {_render_effect(finding)} from" if change.kind == "trend" else _render_effect(finding)
    return f"  {_word(change, finding.kind)} {effect} {where}: {rest}"


def _word(change: Change, kind: VerdictKind) -> str:
    if kind is not VerdictKind.PASS:
        return str(kind)
    return "worse" if change.is_worse else "better"


def build_history_cases(histories: Sequence[MetricHistory]) -> list[tuple[str, str, Verdict]]:
    return [(history.method, history.metric, history.verdict) for history in histories]


# ---------------------------------------------------------------- comparison


def render_comparison(report: ComparisonReport, *, color: bool, width: int | None) -> str:
    """A row for each metric; below it, in words, everything that is not simply as good as before."""
    lines = [f"{word}: {side}" for word, side in (("base", report.base), ("head", report.head)) if " " in side]
    methods = dict.fromkeys(metric.method for metric in report.metrics)
    lines += methods if len(methods) == 1 else []
    text = _render_metrics(report, len(methods) > 1, width=width, color=color)
    said = [
        f"{finding.kind} {finding.subject}: {finding.message}"
        for finding in report.verdict.findings
        if finding.kind is not VerdictKind.PASS
    ]
    count = report.verdict.comparisons
    said += [*report.notes, f"{report.verdict.kind}: {count} metric{'' if count == 1 else 's'} compared"]
    above, below = ("".join(f"{wrap(clean(line), width, '  ')}\n" for line in part) for part in (lines, said))
    return above + text + below


def _render_metrics(report: ComparisonReport, has_methods: bool, *, width: int | None, color: bool) -> str:
    """A table for each set-up: a column for them would leave no room for the figures."""
    parts = []
    for setup in dict.fromkeys(metric.setup for metric in report.metrics):
        mine = replace(report, metrics=tuple(metric for metric in report.metrics if metric.setup == setup))
        parts += [f"{wrap(clean(f'set-up: {setup}'), width, '  ')}\n"] if setup else []
        parts.append(_render_sides(mine, has_methods, width=width, color=color))
    return "".join(parts)


def _render_sides(report: ComparisonReport, has_methods: bool, *, width: int | None, color: bool) -> str:
    """Where their names leave no room for the figures, each benchmark has a table of its own, below its name."""
    table = _build_comparison_table(report, has_methods)
    if width is None or not tables.fit_columns(table, width)[1]:
        return tables.render_table(table, width=width, color=color)
    parts = []
    for method in dict.fromkeys(metric.method for metric in report.metrics):
        mine = replace(report, metrics=tuple(metric for metric in report.metrics if metric.method == method))
        parts.append(f"{shorten(clean(method), width, front=0)}\n")
        parts.append(tables.render_table(_build_comparison_table(mine, has_methods=False), width=width, color=color))
    return "".join(parts)


def _build_comparison_table(report: ComparisonReport, has_methods: bool) -> Table:
    names = [clean(side).partition(" ")[0] for side in (report.base, report.head)]
    columns = (
        Column("verdict", "state"),
        *([Column("benchmark", rank=1, cut="left")] if has_methods else []),
        Column("metric"),
        *(_figures(name, "right") for name in (names if names[0] != names[1] else ("base", "head"))),
        _figures("change", "left"),
    )
    return Table(columns, [_build_row(metric, has_methods) for metric in report.metrics])


def _figures(name: str, align: Literal["left", "right"]) -> Column:
    return Column(name, "text", align, cut="never")


def _build_row(metric: MetricComparison, has_methods: bool) -> list[str | None]:
    return [
        str(metric.finding.kind),
        *([metric.method] if has_methods else []),
        metric.metric,
        *(render_values(metric.metric, side.values) for side in (metric.base, metric.head)),
        _render_unsure(metric.finding),
    ]


def _render_unsure(finding: Finding) -> str | None:
    """A ratio of too few values to have an interval is marked."""
    text = _render_effect(finding)
    return f"{text} unsure" if text and not finding.interval else text


def _render_effect(finding: Finding) -> str | None:
    if finding.effect is None:
        return None
    interval = f" [{finding.interval[0]:+.1%}, {finding.interval[1]:+.1%}]" if finding.interval else ""
    return f"{finding.effect:+.1%}{interval}"


def build_comparison_cases(report: ComparisonReport) -> list[tuple[str, str, Verdict]]:
    cases = [(metric.method, _name_case(metric), Verdict.of([metric.finding], 1)) for metric in report.metrics]
    judged = [metric.finding for metric in report.metrics]
    return cases + [
        (found.subject, "execution", Verdict.of([found], 0)) for found in report.verdict.findings if found not in judged
    ]


def _name_case(metric: MetricComparison) -> str:
    return f"{metric.metric} ({metric.setup})" if metric.setup else metric.metric


# ---------------------------------------------------------------- set-ups, bisection


Rows = Sequence[tuple[Sequence[str], int, Mapping[str, Sequence[float]]]]  # keys, executions, values by metric


def render_setups(by: Sequence[str], metrics: Sequence[str], rows: Rows, form: str, width: int | None = None) -> str:
    """For machines medians and quartiles stand in columns of their own."""
    if form == "md":
        return tables.render_markdown(_build_setup_table(by, metrics, rows))
    if form == "text":
        return render_fitting(_build_setup_table(by, metrics, rows), "choose with -m", width=width)
    found = _build_quartile_table(by, metrics, rows)
    return tables.render_csv(found) if form == "csv" else tables.render_json(found) + "\n"


def _build_setup_table(by: Sequence[str], metrics: Sequence[str], rows: Rows) -> Table:
    columns = [
        *(Column(key, cut="left" if key in _NAMES else "anywhere") for key in by),
        Column("n", "number", digits=None),
        *build_figure_columns(metrics),
    ]
    cells = [[*keys, count, *(render_values(name, values[name]) for name in metrics)] for keys, count, values in rows]
    return Table(tuple(columns), cells)


def _build_quartile_table(by: Sequence[str], metrics: Sequence[str], rows: Rows) -> Table:
    parts = ("median", "low", "high")
    columns = [*(Column(key) for key in by), Column("n", "number", digits=None)]
    columns += [Column(f"{name}.{part}", "number", digits=None) for name in metrics for part in parts]
    cells = [
        [*keys, count, *(cell for name in metrics for cell in _quartiles(values[name]))] for keys, count, values in rows
    ]
    return Table(tuple(columns), cells)


def _quartiles(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    if not values:
        return None, None, None
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def render_bisect(found: Any, *, color: bool = False, width: int | None = None) -> str:
    """`found`: what a search came to. The culprit and its evidence; or who is suspected, and all answers."""
    lines: list[str] = []
    if found.culprit:
        lines += render_culprit(found.culprit, color)
        lines += [f"  {clean(line)}" for line in _describe_evidence(found.evidence)]
    elif found.suspects:
        lines.append("one of these, and the trials cannot tell which:")
        lines += [f"  {render_commit(commit)}" for commit in found.suspects]
    elif found.stuck:
        lines.append(clean(f"not found: {found.stuck}"))
    if found.resumed and not found.culprit:
        lines.append("what an earlier call found counts as well: --fresh asks again")
    if not found.culprit:
        lines += [f"{answer.commit[:12]} {answer.outcome}: {clean(answer.message)}" for answer in found.answers]
    tried = len({answer.commit for answer in found.answers})
    before = f", {found.resumed} of them by an earlier call" if found.resumed else ""
    answers = f"{len(found.answers)} answer{'' if len(found.answers) == 1 else 's'}{before}"
    lines.append(f"{tried} of {found.commits} commits tried, {answers}; log: {clean(found.log)}")
    return "".join(f"{wrap(line, width, '  ')}\n" for line in lines)


def _describe_evidence(evidence: MetricComparison | None) -> list[str]:
    if evidence is None:
        return []
    sides = (f"{side.name}: {render_values(evidence.metric, side.values)}" for side in (evidence.base, evidence.head))
    return [f"{evidence.method} {evidence.metric}: {evidence.finding.message}", *sides]
