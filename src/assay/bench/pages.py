"""What the page of the benchmarks shows: every benchmark with its verdict, histories with their changes, environments
side by side, and two sides compared. Nothing is written: a comparison on the page is not recorded as a verdict."""

from __future__ import annotations

import math
import re
import shlex
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import pairwise

from assay.bench.flow.archive import load_rows
from assay.bench.flow.compare import CompareOptions, compare_executions
from assay.bench.flow.history import list_invalid
from assay.bench.flow.sides import Executions
from assay.bench.flow.tables import build_table, describe_left_out
from assay.bench.overview import (
    Judged,
    find_judge,
    group_rows,
    list_metrics,
    name_series,
    sort_naturally,
    split_name,
    try_history,
)
from assay.bench.records import load_triage
from assay.bench.report.executions import render_effect, render_values
from assay.bench.report.history import build_setup_table
from assay.bench.values.comparison import (
    TAKEN_BY_ALL,
    Change,
    ComparisonReport,
    MetricComparison,
    MetricHistory,
    MetricSeries,
    Point,
)
from assay.bench.values.execution import STUDY, BenchExecution
from assay.errors import NotFoundError, UsageError
from assay.record.index.base import RunRow
from assay.show.chart import build_log_ticks, build_ticks
from assay.show.console import SILENT, CollectingConsole, Console
from assay.show.formatting import render_count
from assay.study.api import StudyLocation, closing_quietly, open_index, refresh_study
from assay.system.fast_dataclasses import dataclass
from assay.system.git import GitError, run_git
from assay.values.document import Block, Chart, Curve, Legend, Notes, Panel, Section, Span, TableBlock, Text
from assay.values.plain import render_date
from assay.values.table import Column, Table
from assay.values.verdict import SEVERITY, Finding, VerdictKind

_MOST_SHARES = 8  # distributions of a comparison
_MOST_INTERVALS = 24
_MOST_TICKS = 8
_MOST_LOADED = 6000  # executions that a page reads at once
_MOST_KEPT = 6  # benchmarks whose executions stay in memory


class Archive:
    """The benchmarks of one root. Executions are read from their directories when a page needs them."""

    def __init__(self, location: StudyLocation, rows: Sequence[RunRow]) -> None:
        self.location = location
        self.groups = group_rows(rows)
        self.problems: list[str] = []

    @property
    def methods(self) -> list[str]:
        return list(self.groups)

    @property
    def count(self) -> int:
        return sum(len(group.rows) for group in self.groups.values())

    def of(self, method: str) -> Sequence[BenchExecution]:
        """Oldest first."""
        self.check(method)
        group = self.groups[method]
        key = (self.location.dir, method, group.mark)
        if key not in _KEPT:
            while len(_KEPT) >= _MOST_KEPT:
                _KEPT.pop(next(iter(_KEPT)), None)
            _KEPT[key] = tuple(self.load(group.rows))
        return _KEPT[key]

    def check(self, method: str) -> None:
        if method not in self.groups:
            raise NotFoundError("benchmark", method, self.methods)

    def load(self, rows: Sequence[RunRow]) -> list[BenchExecution]:
        if len(rows) > _MOST_LOADED:
            raise UsageError(f"{len(rows)} executions are too many for a page", "choose a benchmark")
        console = CollectingConsole()
        found = load_rows(self.location, rows, console)
        self.problems += [line for line in console.lines if line not in self.problems]
        return found

    def choose(self, method: str) -> list[RunRow]:
        """Of one benchmark, or of all where it is ""."""
        if method:
            self.check(method)
        return [row for name, group in self.groups.items() if method in ("", name) for row in group.rows]

    def list_sides(self) -> list[str]:
        """What can be compared: labels, then commits, the newest first."""
        newest = sorted(self.choose(""), key=lambda row: -(row.started_at or row.created_at or 0.0))
        labels = [str(row.params["label"]) for row in newest if row.params.get("label")]
        commits = [row.commit[:12] for row in newest if row.commit]
        return list(dict.fromkeys([*labels, *commits]))


_KEPT: dict[tuple[str, str, str], tuple[BenchExecution, ...]] = {}


def is_archive(location: StudyLocation) -> bool:
    return location.name == STUDY


def load_archive(location: StudyLocation, console: Console = SILENT) -> Archive:
    with closing_quietly(open_index(location.root, console.warning, is_needed=False)) as index:
        refresh_study(index, location, console)
        return Archive(location, index.load_runs([location.name]))


# ---------------------------------------------------------------- one history


@dataclass(frozen=True, slots=True)
class Zoom:
    """Which executions a history shows: dates (`2026-11-01`), or commits; "" is open."""

    start: str = ""
    end: str = ""
    is_log: bool = False

    def cut(self, points: Sequence[Point]) -> tuple[int, int]:
        """The first that is shown, and the first that is not any more. Raises UsageError for an unknown commit."""
        first = self._find(points, self.start, is_end=False) if self.start else 0
        return first, self._find(points, self.end, is_end=True) if self.end else len(points)

    @staticmethod
    def _find(points: Sequence[Point], text: str, *, is_end: bool) -> int:
        day = parse_date(text)
        if day is not None:
            edge = day + _DAY_S * is_end
            return sum(1 for point in points if (point.at or 0.0) < edge)
        places = [n for n, point in enumerate(points) if len(text) >= 4 and (point.commit or "").startswith(text)]
        if not places:
            return len(points) * (not is_end)  # of another environment
        return places[-1] + 1 if is_end else places[0]


_DAY_S = 86400.0


def parse_date(text: str) -> float | None:
    try:
        return datetime.strptime(text, "%Y-%m-%d").timestamp()  # noqa: DTZ007 as dates are shown: local
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class Axis:
    """A parameter of the benchmark: its values, each with the benchmark that differs in this parameter alone."""

    name: str
    choices: tuple[tuple[str, str, bool], ...]  # value, method, whether it is the chosen one


@dataclass(frozen=True, slots=True)
class HistoryPage:
    history: MetricHistory | None
    problem: str
    hint: str
    charts: Sequence[Block]
    changes: tuple[tuple[Change, Finding], ...]  # oldest first
    others: tuple[Finding, ...]  # what else keeps the verdict from being PASS
    notes: Sequence[Block]
    metrics: Mapping[str, VerdictKind | None]  # each with its verdict, where it is known by now
    metric: str
    axes: tuple[Axis, ...] = ()
    by_parameter: Sequence[Block] = ()

    def name_environment(self, change: Change) -> str:
        """Of the series that has it; "" where there is only one, or it leads from one to another."""
        series = self.history.series if self.history else ()
        names = name_series(series) if len(series) > 1 else []
        return next((name for each, name in zip(series, names, strict=False) if change in each.changes), "")


def build_history_page(archive: Archive, method: str, metric: str | None, zoom: Zoom | None = None) -> HistoryPage:
    """Raises NotFoundError for a benchmark, a metric or a commit that is not there."""
    found, zoom = archive.of(method), zoom or Zoom()
    judged = find_judge(archive.location).ask(archive.groups, 0.0)
    kinds = judged[method].kinds if method in judged else {}
    metrics = {name: kinds.get(name) for name in list_metrics(found)}
    chosen = metric or next(iter(metrics), "")
    if metric and metric not in metrics:
        raise NotFoundError("metric", metric, list(metrics))
    _check_zoom(zoom, found)
    history, problem = _find_history(archive, method, chosen)
    axes, by_parameter = build_axes(archive, method, judged)
    if history is None:
        hint = shlex.join(["assay", "bench", "run", method, "--trials", "6"]) if _is_ours(found) else ""
        return HistoryPage(None, problem, hint, (), (), (), (), metrics, chosen, axes)
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
        list(_build_charts(history, zoom)),
        tuple(zip(history.changes, history.verdict.findings, strict=False)),
        tuple(history.verdict.findings[count:]),
        (Notes(left),),
        metrics,
        chosen,
        axes,
        by_parameter if chosen == next(iter(metrics)) else (),
    )


def _check_zoom(zoom: Zoom, found: Sequence[BenchExecution]) -> None:
    for text in (zoom.start, zoom.end):
        commits = [each.commit for each in found if each.commit]
        if text and parse_date(text) is None and not any(len(text) >= 4 and each.startswith(text) for each in commits):
            raise NotFoundError("date or commit", text, [each[:12] for each in dict.fromkeys(reversed(commits))])


def _find_history(archive: Archive, method: str, metric: str) -> tuple[MetricHistory | None, str]:
    """That of an earlier request where nothing has come since."""
    said = [each for each in load_triage(archive.location.dir) if (each.method, each.metric) == (method, metric)]
    key = (archive.location.dir, method, metric, archive.groups[method].mark, tuple(said))
    if key not in _HISTORIES:
        while len(_HISTORIES) >= _MOST_HISTORIES:
            _HISTORIES.pop(next(iter(_HISTORIES)), None)
        _HISTORIES[key] = try_history(method, metric, archive.of(method), said)
    return _HISTORIES[key]


_HISTORIES: dict[tuple[object, ...], tuple[MetricHistory | None, str]] = {}
_MOST_HISTORIES = 50


def _is_ours(found: Sequence[BenchExecution]) -> bool:
    return bool(found) and found[-1].source == "assay"


def list_commits(root: str, before: str | None, after: str | None) -> tuple[int, tuple[tuple[str, str], ...]]:
    """How many commits a change lies in, and the first lines of their messages, where the root's repository has them;
    0 where it does not."""
    if not before or not after or before == after or not _HASH.fullmatch(before) or not _HASH.fullmatch(after):
        return 0, ()
    return _list_commits(root, before, after)


_HASH = re.compile(r"[0-9a-f]{7,64}")
_MOST_COMMITS = 30


@lru_cache(maxsize=512)
def _list_commits(root: str, before: str, after: str) -> tuple[int, tuple[tuple[str, str], ...]]:
    try:
        counted = run_git(root, "rev-list", "--count", f"{before}..{after}")
        if counted.returncode:
            return 0, ()
        said = run_git(root, "log", f"-{_MOST_COMMITS}", "--format=%h%x00%s", f"{before}..{after}").stdout
        return int(counted.stdout), tuple(tuple(line.split("\0", 1)) for line in said.splitlines() if "\0" in line)  # type: ignore[misc]
    except (GitError, OSError, ValueError, subprocess.SubprocessError):
        return 0, ()


# ---------------------------------------------------------------- its charts


def _build_charts(history: MetricHistory, zoom: Zoom) -> Iterator[Block]:
    """One for each series, since executions of different environments are never in one."""
    names = name_series(history.series)
    for series, name in zip(history.series, names, strict=True):
        first, last = zoom.cut(series.points)
        if first < last:
            yield _build_series_chart(history, series, name, (first, last), is_log=zoom.is_log)
        else:
            yield Text(f"{name}: none of {render_count(len(series.points), 'execution')} is in this range", role="soft")
    drawn = {_choose_span(change) for change in history.changes if change.kind == "step"}
    keys = [("own c0", "dot", "an execution"), ("reference", "wide", "level: median between two changes")]
    keys += [("first", "dash", "change")] if drawn else []
    spans = (("fail", "worse, and nobody has judged it"), ("changed", "worse, and judged"), ("tolerance", "better"))
    yield Legend([*keys, *((style, "area", text) for style, text in spans if style in drawn)])


def _build_series_chart(
    history: MetricHistory, series: MetricSeries, name: str, shown: tuple[int, int], *, is_log: bool
) -> Chart:
    points = series.points
    steps = [change for change in series.changes if change.kind == "step"]
    edges = [0, *(change.step.at for change in steps), len(points)]
    is_log = is_log and all(point.value > 0 for point in points[slice(*shown)])

    def place(value: float) -> float:
        return math.log10(value) if is_log else value

    levels = []
    for start, end in pairwise(edges):
        if start < shown[1] and end > shown[0]:
            level = place(statistics.median(point.value for point in points[start:end]))
            levels.append(Curve([(max(start, shown[0]) + 0.6, level), (min(end, shown[1]) + 0.4, level)], "reference"))
    numbered = list(enumerate(points, 1))[slice(*shown)]
    texts = [_describe_point(history.metric, p.value, p.at, p.execution_id, p.commit) for _, p in numbered]
    dots = [(float(number), place(point.value)) for number, point in numbered]
    seen = f"; a change of {series.detectable:.1%} would be found" if series.detectable else ""
    part = "" if shown == (0, len(points)) else f"{len(numbered)} of "
    spans = [
        (_choose_span(change), max(change.step.at, shown[0]) + 0.5, min(end, shown[1]) + 0.5)
        for change, end in zip(steps, edges[2:], strict=True)
        if (change.holds or not change.is_worse) and change.step.at < shown[1] and end > shown[0]
    ]
    stride = max(1, -(-len(numbered) // _MOST_TICKS))
    return Chart(
        (Span(name, "strong"), Span(f"{part}{render_count(len(points), 'execution')}{seen}", "soft right")),
        (
            Panel(
                [*levels, Curve(dots, "c0 point", line=False, marker="dot", texts=texts)],
                height=190,
                ticks=_build_y_ticks(history.metric, [point.value for _, point in numbered], is_log=is_log),
                label=f"{history.metric}{', log scale' if is_log else ''}",
            ),
        ),
        f"{history.method} {history.metric}, {name}: {render_count(len(points), 'execution')}, "
        f"{render_count(len(series.changes), 'change')}",
        spans=spans,
        lines=[change.step.at + 0.5 for change in steps if shown[0] <= change.step.at < shown[1]],
        x_range=(shown[0] + 0.5, shown[1] + 0.5),
        x_ticks=[(float(n), _date(point.at) or str(n)) for n, point in numbered[::stride]],
        is_wide=True,
    )


def _build_y_ticks(metric: str, values: Sequence[float], *, is_log: bool) -> list[tuple[float, str]] | None:
    """In the unit of the metric."""
    low, high = min(values), max(values)
    if is_log and high > low:
        return [(math.log10(tick), render_values(metric, [tick]) or "") for tick in build_log_ticks(low, high, 5)]
    ticks = build_ticks(low, high, 4)
    texts = [render_values(metric, [tick]) or "" for tick in ticks]
    return (
        None if len(set(texts)) < len(texts) else list(zip(map(_log if is_log else float, ticks), texts, strict=True))
    )


def _log(value: float) -> float:
    return math.log10(value)


# ---------------------------------------------------------------- parameters


def build_axes(archive: Archive, method: str, judged: Mapping[str, Judged]) -> tuple[tuple[Axis, ...], Sequence[Block]]:
    """The parameters of a benchmark, and how its first metric depends on each that is a number."""
    suite, name, text = split_name(method)
    values = split_parameters(text)
    prefix = method[: len(method) - len(text)]
    others = {
        split_parameters(each[len(prefix) :]): each
        for each in archive.methods
        if values and each.startswith(prefix) and split_name(each)[:2] == (suite, name)
    }
    others = {each: known for each, known in others.items() if len(each) == len(values)}
    if len(others) < 2:
        return (), ()
    mine = judged.get(method)
    known = list(mine.parameters) if mine else []
    axes: list[Axis] = []
    charts: list[Block] = []
    for place in range(len(values)):
        called = known[place] if len(known) == len(values) else f"parameter {place + 1}"
        rest = [
            (each[place], known) for each, known in others.items() if _without(each, place) == _without(values, place)
        ]
        rest.sort(key=lambda pair: sort_naturally(pair[0]))
        if len(rest) < 2:
            continue
        axes.append(Axis(called, tuple((value, other, other == method) for value, other in rest)))
        charts += _build_axis_chart(called, mine.first if mine else "", rest, judged)
    return tuple(axes), charts


def split_parameters(text: str) -> tuple[str, ...]:
    """`(10, 'float32')` of asv, `[10-float32]` of pytest."""
    if not text:
        return ()
    return tuple(part.strip() for part in text[1:-1].split("," if text[0] == "(" else "-"))


def _without(values: Sequence[str], place: int) -> tuple[str, ...]:
    return (*values[:place], *values[place + 1 :])


def _build_axis_chart(
    name: str, metric: str, methods: Sequence[tuple[str, str]], judged: Mapping[str, Judged]
) -> Iterator[Block]:
    """The current level of each environment by the value of a parameter, if that is a number."""
    by_environment: dict[str, list[tuple[float, float]]] = {}
    try:
        numbers = [(float(value), judged[method]) for value, method in methods if method in judged]
    except ValueError:
        return
    for value, each in numbers:
        for level in each.levels if each.first == metric else ():
            by_environment.setdefault(level.environment, []).append((value, level.value))
    places = sorted({value for value, _ in numbers})
    if len(places) < 2 or not by_environment or places[0] <= 0:
        return
    levels = [level for found in by_environment.values() for _, level in found]
    is_wide = places[-1] / places[0] >= 20
    is_log = min(levels) > 0 and max(levels) / min(levels) >= 20
    ends = [math.log10(x) if is_wide else x for x in (places[0], places[-1])]
    room = 0.05 * (ends[1] - ends[0])
    curves, keys = [], []
    for number, (environment, found) in enumerate(by_environment.items()):
        color = f"c{number % 8}"
        points = [(math.log10(x) if is_wide else x, math.log10(y) if is_log else y) for x, y in sorted(found)]
        texts = [f"{name} {x:g}: {render_values(metric, [y])}\n{environment}" for x, y in sorted(found)]
        curves += [
            Curve(points, f"{color} curve"),
            Curve(points, f"{color} point", line=False, marker="dot", texts=texts),
        ]
        keys.append((f"own {color}", "dot", environment))
    yield Chart(
        (Span(f"by {name}", "strong"), Span("current level of each environment", "soft")),
        (
            Panel(
                curves, ticks=_build_y_ticks(metric, levels, is_log=is_log), label=f"{metric}{', log scale' * is_log}"
            ),
        ),
        f"{metric} by {name}",
        x_range=(ends[0] - room, ends[1] + room),
        x_ticks=[(math.log10(x) if is_wide else x, f"{x:g}") for x in places],
        x_label=f"{name}{', log scale' * is_wide}",
    )
    yield Legend(keys)


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


def build_environments(archive: Archive, method: str, by: Sequence[str]) -> Sequence[Block]:
    """The table of `assay bench table`. Raises NotFoundError for a column or a benchmark that is not there."""
    found = archive.of(method) if method else archive.load(archive.choose(""))
    table = build_table(found, load_triage(archive.location.dir), method or None, by, None)
    rows = [(row.keys, row.count, row.values) for row in table.rows]
    left = describe_left_out(table.left_out)
    shown = TableBlock(build_setup_table(table.by, table.metrics, rows))
    return [shown, *([Text(f"left out: {left}", role="soft")] if left else [])]


def list_columns(archive: Archive, method: str) -> list[str]:
    """By which environments can be told apart: what differs first."""
    found = archive.of(method) if method else archive.load(archive.choose("")[-_MOST_LOADED:])
    values: dict[str, set[str]] = {"label": set(), "commit": set(), "host": set()}
    for execution in found:
        values["label"].add(execution.label or "")
        values["commit"].add(execution.commit or "")
        values["host"].add(execution.machine.host)
        for key, value in execution.setup.items():
            values.setdefault(key, set()).add(value)
    few = {key for key, each in values.items() if 1 < len(each) <= 50}
    return sorted(values, key=lambda key: (key not in few, len(values[key]) < 2))


# ---------------------------------------------------------------- two sides


def build_comparison(archive: Archive, base: str, head: str, method: str) -> tuple[ComparisonReport, Sequence[Block]]:
    """Sides are labels or commits. Raises NotFoundError with those that are there."""
    rows = archive.choose(method)
    mine = [[row for row in rows if _is_side(row, name)] for name in (base, head)]
    loaded = archive.load(list({row.key: row for side in mine for row in side}.values()))
    said = load_triage(archive.location.dir)
    compared = {each.method for each in loaded}
    judged = [each for each in dict.fromkeys(each.method for each in said) if each in compared]
    invalid = list_invalid([each for name in judged for each in archive.of(name)], said)
    sides = [Executions(name, tuple(_find_side(loaded, name, archive)), invalid) for name in (base, head)]
    report = compare_executions(sides[0], sides[1], CompareOptions())
    ordered = sorted(
        report.metrics, key=lambda each: (SEVERITY.index(each.finding.kind), -abs(each.finding.effect or 0.0))
    )
    shown = [each for each in ordered if each.base.values and each.head.values][:_MOST_SHARES]
    blocks: list[Block] = [TableBlock(_build_sides_table(report, ordered)), Notes(report.notes)]
    intervals = list(_build_intervals(ordered))
    blocks += [Section(intervals, "Changes")] if intervals else []
    blocks += [Section([_build_distribution(each, report) for each in shown], "Distributions")] if shown else []
    return report, blocks


def _build_sides_table(report: ComparisonReport, ordered: Sequence[MetricComparison]) -> Table:
    """What did not pass first."""
    has_setup = any(each.setup for each in ordered)
    sides = [_shorten_side(name) for name in (report.base, report.head)]
    columns = [Column("verdict", "state"), Column("benchmark"), Column("metric")]
    columns += [Column("environment")] if has_setup else []
    columns += [Column(sides[0], align="right"), Column(sides[1], align="right"), Column("change"), Column("reason")]
    rows = [
        [
            str(each.finding.kind),
            each.method,
            each.metric,
            *([each.setup] if has_setup else []),
            render_values(each.metric, each.base.values),
            render_values(each.metric, each.head.values),
            render_effect(each.finding),
            each.finding.message,
        ]
        for each in ordered
    ]
    return Table(tuple(columns), rows)


def _shorten_side(name: str) -> str:
    """A commit as people write it."""
    word = name.partition(" ")[0]
    return word[:8] if _HASH.fullmatch(word) else word[:12]


def _build_intervals(ordered: Sequence[MetricComparison]) -> Iterator[Block]:
    """The change of each metric with its interval, beside no change at all."""
    known = [each for each in ordered if each.finding.interval and each.finding.effect is not None][:_MOST_INTERVALS]
    curves, names = [], []
    for place, each in enumerate(reversed(known), 1):
        low, high = (100 * end for end in each.finding.interval or (0.0, 0.0))
        effect = 100 * (each.finding.effect or 0.0)
        color = {VerdictKind.FAIL: "c1", VerdictKind.PASS: "c2"}.get(each.finding.kind, "c5")
        said = f"{each.method} {each.metric}\n{each.finding.kind} {effect:+.2f}% [{low:+.2f}%, {high:+.2f}%]"
        curves += [
            Curve([(low, float(place)), (high, float(place))], f"{color} curve", texts=[said]),
            Curve([(effect, float(place))], f"{color} point", line=False, marker="dot", texts=[said]),
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


def _is_side(row: RunRow, name: str) -> bool:
    return row.params.get("label") == name or (len(name) >= 4 and (row.commit or "").startswith(name))


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
