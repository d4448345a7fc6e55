"""What the page of the benchmarks shows: every benchmark with its verdict, histories with their changes, environments
side by side, and two sides compared. Nothing is written: a comparison on the page is not recorded as a verdict."""

from __future__ import annotations

import os
import shlex
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise

from assay.bench.flow.archive import load_executions
from assay.bench.flow.compare import CompareOptions, compare_executions
from assay.bench.flow.history import HistoryOptions, build_history, list_invalid
from assay.bench.flow.sides import Executions
from assay.bench.flow.tables import build_table, describe_left_out
from assay.bench.records import TRIAGE_FILE, Triage, load_triage
from assay.bench.report.executions import render_values
from assay.bench.report.history import build_comparison_document, build_setup_table
from assay.bench.values.comparison import (
    TAKEN_BY_ALL,
    Change,
    ComparisonReport,
    MetricComparison,
    MetricHistory,
    MetricSeries,
)
from assay.bench.values.execution import STUDY, BenchExecution
from assay.errors import NotFoundError, UsageError
from assay.show.chart import build_ticks
from assay.show.console import CollectingConsole
from assay.show.formatting import render_count
from assay.study.api import StudyLocation
from assay.system.fast_dataclasses import dataclass
from assay.values import layout
from assay.values.document import Block, Chart, Curve, Legend, Notes, Panel, Section, Span, TableBlock, Text
from assay.values.plain import render_date
from assay.values.verdict import Finding, VerdictKind

_FIRST = ("wall_time", "throughput", "full_model.run_s", "full_model.compile_s")  # what stands for a benchmark
_MOST_PAIRS = 100  # benchmarks and metrics that are looked at for the largest changes
_MOST_TOP = 12
_MOST_SHARES = 8  # distributions of a comparison
_MOST_TICKS = 8


@dataclass(frozen=True, slots=True)
class Archive:
    """The executions of one root, oldest first."""

    location: StudyLocation
    executions: tuple[BenchExecution, ...]
    problems: tuple[str, ...] = ()

    @property
    def methods(self) -> list[str]:
        return sorted({execution.method for execution in self.executions})

    def of(self, method: str) -> list[BenchExecution]:
        found = [execution for execution in self.executions if execution.method == method]
        if not found:
            raise NotFoundError("benchmark", method, self.methods)
        return found

    def list_sides(self) -> list[str]:
        """What can be compared: labels, then commits, the newest first."""
        newest = [*reversed(self.executions)]
        labels = [execution.label for execution in newest if execution.label]
        commits = [execution.commit[:12] for execution in newest if execution.commit]
        return list(dict.fromkeys([*labels, *commits]))


def is_archive(location: StudyLocation) -> bool:
    return location.name == STUDY


def load_archive(location: StudyLocation) -> Archive:
    console = CollectingConsole()
    try:
        found = load_executions(location, None, console)
    except UsageError:  # a folder without an execution that is over
        found = []
    return Archive(location, tuple(found), tuple(console.lines))


def get_triage_stamp(location: StudyLocation) -> tuple[int, int]:
    """Changes with what people say about changes."""
    try:
        stat = os.stat(os.path.join(location.dir, layout.STUDY_META_DIR, TRIAGE_FILE))
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


# ---------------------------------------------------------------- all of them


@dataclass(frozen=True, slots=True)
class BenchLine:
    """One benchmark and the metric that stands for it. `history` None: `problem` says why."""

    method: str
    metric: str
    metrics: tuple[str, ...]
    count: int
    at: float
    last: str
    history: MetricHistory | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TopChange:
    method: str
    metric: str
    change: Change
    finding: Finding


@dataclass(frozen=True, slots=True)
class Overview:
    lines: tuple[BenchLine, ...]
    top: tuple[TopChange, ...]
    left: int  # metrics that were not looked at for the largest changes


def build_overview(archive: Archive) -> Overview:
    """The verdict of each benchmark, and the largest changes of all that is measured."""
    triage = load_triage(archive.location.dir)
    groups: dict[str, list[BenchExecution]] = {}
    for execution in archive.executions:
        groups.setdefault(execution.method, []).append(execution)
    lines, histories = [], []
    for method, found in sorted(groups.items()):
        metrics = list_metrics(found)
        metric = metrics[0] if metrics else ""
        history, problem = _try_history(method, metric, found, triage)
        values = [each.numbers[metric] for each in found if metric in each.numbers]
        last = render_values(metric, values[-1:]) or ""
        at = max((each.started_at or 0.0 for each in found), default=0.0)
        lines.append(BenchLine(method, metric, tuple(metrics), len(found), at, last, history, problem))
        histories += [history] if history else []
    rest = [(line.method, metric) for line in lines for metric in line.metrics[1:]]
    for method, metric in rest[:_MOST_PAIRS]:
        found_history, _ = _try_history(method, metric, groups[method], triage)
        histories += [found_history] if found_history else []
    top = [
        TopChange(each.method, each.metric, change, finding)
        for each in histories
        for change, finding in zip(each.changes, each.verdict.findings, strict=False)
    ]
    top.sort(key=lambda each: (each.finding.kind is VerdictKind.PASS, -abs(each.change.step.effect)))
    return Overview(tuple(lines), tuple(top[:_MOST_TOP]), max(0, len(rest) - _MOST_PAIRS))


def list_metrics(executions: Sequence[BenchExecution]) -> list[str]:
    known = list(dict.fromkeys(name for execution in executions for name in execution.numbers))
    return [*(name for name in _FIRST if name in known), *(name for name in known if name not in _FIRST)]


def _try_history(
    method: str, metric: str, found: Sequence[BenchExecution], triage: Sequence[Triage]
) -> tuple[MetricHistory | None, str]:
    said = tuple(each for each in triage if (each.method, each.metric) == (method, metric))
    key = (method, metric, hash(tuple((each.execution_id, each.run_dir) for each in found)), said)
    if key not in _KNOWN:
        while len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.pop(next(iter(_KNOWN)), None)
        _KNOWN[key] = _build_history(method, metric, found, said)
    return _KNOWN[key]


_KNOWN: dict[tuple[object, ...], tuple[MetricHistory | None, str]] = {}  # histories of earlier requests
_MOST_KNOWN = 5000


def _build_history(
    method: str, metric: str, found: Sequence[BenchExecution], triage: Sequence[Triage]
) -> tuple[MetricHistory | None, str]:
    if not metric:
        reasons = [each.result.findings[0].message for each in found if each.result.findings]
        return None, f"it has never reported anything: {reasons[-1]}" if reasons else "it has never reported anything"
    try:
        return build_history(method, metric, found, HistoryOptions(), triage), ""
    except UsageError as error:
        return None, error.message


# ---------------------------------------------------------------- one history


@dataclass(frozen=True, slots=True)
class HistoryPage:
    history: MetricHistory | None
    problem: str
    hint: str
    charts: Sequence[Block]
    changes: tuple[tuple[Change, Finding], ...]  # oldest first
    others: tuple[Finding, ...]  # what else keeps the verdict from being PASS
    notes: Sequence[Block]
    metrics: tuple[str, ...]
    metric: str


def build_history_page(archive: Archive, method: str, metric: str | None) -> HistoryPage:
    """Raises NotFoundError for a benchmark or a metric that is not there."""
    found = archive.of(method)
    metrics = tuple(list_metrics(found))
    chosen = metric or (metrics[0] if metrics else "")
    if metric and metric not in metrics:
        raise NotFoundError("metric", metric, metrics)
    history, problem = _try_history(method, chosen, found, load_triage(archive.location.dir))
    if history is None:
        hint = shlex.join(["assay", "bench", "run", method, "--trials", "6"]) if _is_ours(found) else ""
        return HistoryPage(None, problem, hint, (), (), (), (), metrics, chosen)
    count = len(history.changes)
    left = [
        f"{render_count(number, 'execution')} left out: {reason}"
        + (" (assay bench history --all includes them)" if reason in TAKEN_BY_ALL else "")
        for reason, number in history.left_out.items()
    ]
    return HistoryPage(
        history,
        "",
        "",
        list(_build_charts(history)),
        tuple(zip(history.changes, history.verdict.findings, strict=False)),
        tuple(history.verdict.findings[count:]),
        (Notes(left),),
        metrics,
        chosen,
    )


def _is_ours(found: Sequence[BenchExecution]) -> bool:
    return found[-1].source == "assay"


def _build_charts(history: MetricHistory) -> Iterator[Block]:
    """One for each series, since executions of different environments are never in one."""
    for series in history.series:
        yield _build_series_chart(history, series)
    yield Legend(
        (
            ("own c0", "dot", "an execution"),
            ("reference", "wide", "level: median between two changes"),
            ("fail", "area", "worse, and nobody has said anything about it"),
            ("changed", "area", "worse, and judged: ack or wontfix"),
            ("tolerance", "area", "better"),
        )
    )


def _build_series_chart(history: MetricHistory, series: MetricSeries) -> Chart:
    points = series.points
    steps = [change for change in series.changes if change.kind == "step"]
    edges = [0, *(change.step.at for change in steps), len(points)]
    levels = []
    for start, end in pairwise(edges):
        level = statistics.median(point.value for point in points[start:end])
        levels.append(Curve([(start + 0.6, level), (end + 0.4, level)], "reference"))
    texts = [
        _describe_point(history.metric, point.value, point.at, point.execution_id, point.commit) for point in points
    ]
    dots = [(float(number), point.value) for number, point in enumerate(points, 1)]
    setup = ", ".join(f"{key} {value}" for key, value in series.setup.items()) or "unknown environment"
    label = f"label {series.label}; " if series.label else ""
    seen = f"; a change of {series.detectable:.1%} would be found" if series.detectable else ""
    spans = [
        (_choose_span(change), change.step.at + 0.5, end + 0.5)
        for change, end in zip(steps, edges[2:], strict=True)
        if change.holds or not change.is_worse
    ]
    stride = max(1, -(-len(points) // _MOST_TICKS))
    return Chart(
        (Span(f"{label}{setup}", "soft"), Span(f"{render_count(len(points), 'execution')}{seen}", "soft right")),
        (Panel([*levels, Curve(dots, "c0 point", line=False, marker="dot", texts=texts)], height=190),),
        f"{history.method} {history.metric}: {render_count(len(points), 'execution')}, "
        f"{render_count(len(series.changes), 'change')}",
        spans=spans,
        lines=[change.step.at + 0.5 for change in steps],
        x_range=(0.5, len(points) + 0.5),
        x_ticks=[(n + 1.0, _date(points[n].at) or str(n + 1)) for n in range(0, len(points), stride)],
        is_wide=True,
    )


def _choose_span(change: Change) -> str:
    if not change.is_worse:
        return "tolerance"
    return "changed" if change.judgement else "fail"


def _date(at: float | None) -> str:
    return render_date(at, "%m-%d") if at else ""


def _describe_point(metric: str, value: float, at: float | None, execution_id: str, commit: str | None) -> str:
    when = render_date(at, "%Y-%m-%d %H:%M") if at else ""
    lines = [render_values(metric, [value]) or "", execution_id, when, f"commit {commit[:12]}" if commit else ""]
    return "\n".join(line for line in lines if line)


# ---------------------------------------------------------------- environments


def build_environments(archive: Archive, method: str | None, by: Sequence[str]) -> Sequence[Block]:
    """The table of `assay bench table`. Raises NotFoundError for a column or a benchmark that is not there."""
    found = archive.of(method) if method else list(archive.executions)
    table = build_table(found, load_triage(archive.location.dir), method, by, None)
    rows = [(row.keys, row.count, row.values) for row in table.rows]
    left = describe_left_out(table.left_out)
    shown = TableBlock(build_setup_table(table.by, table.metrics, rows))
    return [shown, *([Text(f"left out: {left}", role="soft")] if left else [])]


def list_columns(archive: Archive) -> list[str]:
    """By which environments can be told apart: what differs first."""
    values: dict[str, set[str]] = {"label": set(), "commit": set(), "host": set()}
    for execution in archive.executions:
        values["label"].add(execution.label or "")
        values["commit"].add(execution.commit or "")
        values["host"].add(execution.machine.host)
        for key, value in execution.setup.items():
            values.setdefault(key, set()).add(value)
    return sorted(values, key=lambda key: (len(values[key]) < 2, key not in values))


# ---------------------------------------------------------------- two sides


def build_comparison(
    archive: Archive, base: str, head: str, method: str | None
) -> tuple[ComparisonReport, Sequence[Block]]:
    """Sides are labels or commits. Raises NotFoundError with those that are there."""
    mine = archive.of(method) if method else list(archive.executions)
    invalid = list_invalid(archive.executions, load_triage(archive.location.dir))
    sides = [Executions(name, tuple(_find_side(mine, name, archive)), invalid) for name in (base, head)]
    report = compare_executions(sides[0], sides[1], CompareOptions())
    document = build_comparison_document(report)
    largest = sorted(report.metrics, key=lambda each: -abs(each.finding.effect or 0.0))[:_MOST_SHARES]
    charts = [_build_distribution(each, report) for each in largest if each.base.values and each.head.values]
    return report, [*document.blocks, *([Section(charts, "Distributions")] if charts else [])]


def _find_side(executions: Sequence[BenchExecution], name: str, archive: Archive) -> list[BenchExecution]:
    by_label = [each for each in executions if each.label == name]
    by_commit = [each for each in executions if each.commit and len(name) >= 4 and each.commit.startswith(name)]
    if not by_label and not by_commit:
        raise NotFoundError("label or commit", name, archive.list_sides())
    return by_label or by_commit


def _build_distribution(metric: MetricComparison, report: ComparisonReport) -> Chart:
    """All values of both sides, with their medians."""
    sides = ((2.0, metric.base, "c0"), (1.0, metric.head, "c1"))
    curves = []
    for y, side, color in sides:
        spread = [(value, y + 0.14 * ((number % 5) - 2)) for number, value in enumerate(side.values)]
        texts = [render_values(metric.metric, [value]) or "" for value in side.values]
        middle = statistics.median(side.values)
        curves.append(Curve([(middle, y - 0.4), (middle, y + 0.4)], f"{color} curve"))
        curves.append(Curve(spread, f"{color} point", line=False, marker="dot", texts=texts))
    values = [*metric.base.values, *metric.head.values]
    low, high = min(values), max(values)
    room = (high - low) * 0.06 or abs(low) * 0.01 or 1.0
    ticks = [(tick, render_values(metric.metric, [tick]) or "") for tick in build_ticks(low - room, high + room, 4)]
    names = [name.partition(" ")[0][:12] for name in (report.base, report.head)]
    kind = str(metric.finding.kind)
    return Chart(
        (Span(f"{metric.method} {metric.metric}", "strong"), Span(kind, kind), Span(metric.finding.message, "soft")),
        (Panel(curves, y_range=(0.4, 2.6), ticks=[(2.0, names[0]), (1.0, names[1])], height=120),),
        f"{metric.metric}: values of {report.base} and {report.head}",
        x_range=(low - room, high + room),
        x_ticks=ticks,
    )
