"""The content of the page of benchmarks: histories with their changes, parameters, and environments side by side."""

from __future__ import annotations

import math
import os
import re
import shlex
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise

from assay.bench.flow.archive import describe_received, load_rows
from assay.bench.flow.history import parse_date, render_again
from assay.bench.flow.tables import build_table, describe_table
from assay.bench.page.overview import (
    JudgedBenchmark,
    find_judge,
    group_rows,
    list_metrics,
    name_series,
    sort_naturally,
    split_name,
    try_history,
)
from assay.bench.records import load_triage
from assay.bench.report.executions import build_value_ticks, render_values
from assay.bench.report.history import build_setup_table, describe_sight, list_drawn, order_points
from assay.bench.values.comparison import TAKEN_BY_ALL, MetricChange, MetricHistory, MetricPoint, MetricSeries
from assay.bench.values.execution import STUDY, BenchExecution
from assay.errors import AssayError, NotFoundError, UsageError, check_known
from assay.follow.api import StudyLocation, closing_quietly, open_index, refresh_study
from assay.record.index.base import RunRow
from assay.record.run_directory import load_record
from assay.show.console import SILENT, CollectingConsole
from assay.show.formatting import render_count
from assay.system.fast_dataclasses import dataclass
from assay.system.git import GitError, run_git
from assay.values.document import Block, Chart, Curve, Legend, Notes, Panel, Span, TableBlock, Text
from assay.values.plain import render_date
from assay.values.verdict import Finding, VerdictKind

_MOST_TICKS = 8
_MOST_LOADED = 6000  # the most executions that are read at once for a page
_MOST_KEPT = 6  # the most benchmarks whose executions stay in memory
HASH = re.compile(r"[0-9a-f]{7,64}")
_MOST_COMMITS = 30  # the most commits of a change that are listed


class BenchArchive:
    """The benchmarks of one root. Executions are read from their run directories when a page needs them."""

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
        """Load the executions of a benchmark, oldest first."""
        check_known("benchmark", [method], self.groups)
        group = self.groups[method]
        key = (self.location.dir, method, group.mark)
        if key not in _KEPT:
            while len(_KEPT) >= _MOST_KEPT:
                _KEPT.pop(next(iter(_KEPT)), None)
            _KEPT[key] = tuple(self.load(group.rows))
        return _KEPT[key]

    def load(self, rows: Sequence[RunRow]) -> list[BenchExecution]:
        if len(rows) > _MOST_LOADED:
            raise UsageError(f"{len(rows)} executions are too many for a page", "choose a benchmark")
        console = CollectingConsole()
        found = load_rows(self.location, rows, console)
        self.problems += [line for line in console.lines if line not in self.problems]
        return found

    def choose(self, method: str) -> list[RunRow]:
        """Return the rows of one benchmark, or of all if `method` is ""."""
        if method:
            check_known("benchmark", [method], self.groups)
        return [row for name, group in self.groups.items() if method in ("", name) for row in group.rows]

    def list_sides(self) -> list[str]:
        """List the labels and then the commits that can be compared, the newest first."""
        newest = sorted(self.choose(""), key=lambda row: -(row.started_at or row.created_at or 0.0))
        labels = [str(row.params["label"]) for row in newest if row.params.get("label")]
        commits = [row.commit[:12] for row in newest if row.commit]
        return list(dict.fromkeys([*labels, *commits]))


_KEPT: dict[tuple[str, str, str], tuple[BenchExecution, ...]] = {}


def is_archive(location: StudyLocation) -> bool:
    return location.name == STUDY


def load_archive(location: StudyLocation) -> BenchArchive:
    with closing_quietly(open_index(location.root, SILENT.warning, is_needed=False)) as index:
        refresh_study(index, location, SILENT)
        return BenchArchive(location, index.load_runs([location.name]))


# ---------------------------------------------------------------- parameters: `time_x(10, 'f4')`, `test_x[10-f4]`


@dataclass(frozen=True, slots=True)
class ParameterAxis:
    """A parameter of a benchmark: its values, each with the benchmark that differs only in the parameter."""

    name: str
    choices: tuple[tuple[str, str, bool], ...]  # value, method, whether the method is the chosen one


def build_axes(
    methods: Sequence[str], method: str, judged: Mapping[str, JudgedBenchmark]
) -> tuple[tuple[ParameterAxis, ...], Sequence[Block]]:
    """Build the parameters of a benchmark, and a chart of its first metric by each parameter that is a number."""
    suite, name, text = split_name(method)
    values = split_parameters(text)
    prefix = method[: len(method) - len(text)]
    others = {
        split_parameters(each[len(prefix) :]): each
        for each in methods
        if values and each.startswith(prefix) and split_name(each)[:2] == (suite, name)
    }
    others = {each: known for each, known in others.items() if len(each) == len(values)}
    if len(others) < 2:
        return (), ()
    mine = judged.get(method)
    known = list(mine.parameters) if mine else []
    axes: list[ParameterAxis] = []
    charts: list[Block] = []
    for place in range(len(values)):
        called = known[place] if len(known) == len(values) else f"parameter {place + 1}"
        rest = [
            (each[place], other)
            for each, other in others.items()
            if each == (*values[:place], each[place], *values[place + 1 :])
        ]
        rest.sort(key=lambda pair: sort_naturally(pair[0]))
        if len(rest) < 2:
            continue
        axes.append(ParameterAxis(called, tuple((value, other, other == method) for value, other in rest)))
        charts += _build_axis_chart(called, mine.first if mine else "", rest, judged)
    return tuple(axes), charts


def split_parameters(text: str) -> tuple[str, ...]:
    """Split the parameters of a name: `(10, 'float32')` of asv, `[10-float32]` of pytest."""
    if not text:
        return ()
    return tuple(part.strip() for part in text[1:-1].split("," if text[0] == "(" else "-"))


def _build_axis_chart(
    name: str, metric: str, methods: Sequence[tuple[str, str]], judged: Mapping[str, JudgedBenchmark]
) -> Iterator[Block]:
    """Build a chart of the current level in each environment by the value of a parameter, if all values are numbers."""
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
                curves,
                ticks=build_value_ticks(metric, levels, is_log=is_log),
                label=f"{metric}{', log scale' * is_log}",
            ),
        ),
        f"{metric} by {name}",
        x_range=(ends[0] - room, ends[1] + room),
        x_ticks=[(math.log10(x) if is_wide else x, f"{x:g}") for x in places],
        x_label=f"{name}{', log scale' * is_wide}",
    )
    yield Legend(keys)


# ---------------------------------------------------------------- one history


@dataclass(frozen=True, slots=True)
class Zoom:
    """Which executions a history shows: from `start` to `end`, which are dates (`2026-11-01`), commits, or ""."""

    start: str = ""
    end: str = ""
    is_log: bool = False

    def cut(self, points: Sequence[MetricPoint]) -> tuple[int, int]:
        """Return the index of the first point and the index after the last point that the history shows."""
        first = self._find(points, self.start, is_end=False) if self.start else 0
        return first, self._find(points, self.end, is_end=True) if self.end else len(points)

    @staticmethod
    def _find(points: Sequence[MetricPoint], text: str, *, is_end: bool) -> int:
        day = parse_date(text)
        if day is not None:
            edge = day + _DAY_S * is_end
            return sum(1 for point in points if (point.at or 0.0) < edge)
        places = [n for n, point in enumerate(points) if len(text) >= 4 and (point.commit or "").startswith(text)]
        if not places:
            return len(points) * (not is_end)  # the commit is in another environment
        return places[-1] + 1 if is_end else places[0]


_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class HistoryPage:
    history: MetricHistory | None
    problem: str
    hint: str
    charts: Sequence[Block]
    changes: tuple[tuple[MetricChange, Finding], ...]  # oldest first
    others: tuple[Finding, ...]  # findings that keep the verdict from being PASS, besides the changes
    notes: Sequence[Block]
    metrics: Mapping[str, VerdictKind | None]  # name → verdict, None if it is not known yet
    metric: str
    axes: tuple[ParameterAxis, ...] = ()
    by_parameter: Sequence[Block] = ()

    def name_environment(self, change: MetricChange) -> str:
        """Return the environment of the series with the change; "" for a single series, or a change between series."""
        series = self.history.series if self.history else ()
        names = name_series(series) if len(series) > 1 else []
        return next((name for each, name in zip(series, names, strict=False) if change in each.changes), "")


def build_history_page(archive: BenchArchive, method: str, metric: str | None, zoom: Zoom | None = None) -> HistoryPage:
    """Build the page of a history. Raises NotFoundError for an unknown benchmark, metric or commit."""
    found, zoom = archive.of(method), zoom or Zoom()
    judged = find_judge(archive.location).ask(archive.groups, 0.0)
    kinds = judged[method].kinds if method in judged else {}
    metrics = {name: kinds.get(name) for name in list_metrics(found)}
    chosen = metric or next(iter(metrics), "")
    check_known("metric", [metric] if metric else (), metrics)
    for text in (zoom.start, zoom.end):
        commits = [each.commit for each in found if each.commit]
        if text and parse_date(text) is None and not any(len(text) >= 4 and each.startswith(text) for each in commits):
            raise NotFoundError("date or commit", text, [each[:12] for each in dict.fromkeys(reversed(commits))])
    history, problem = _find_history(archive, method, chosen)
    axes, by_parameter = build_axes(archive.methods, method, judged)
    if history is None:
        hint = render_again(found[-1], archive.location.root) if found else ""
        return HistoryPage(None, problem, hint, (), (), (), (), metrics, chosen, axes)
    count = len(history.changes)
    every = shlex.join(["assay", "bench", "history", chosen, method, "--all", "--root", archive.location.root])
    left = [
        f"{render_count(number, 'execution')} left out: {reason}"
        + (f" (`{every}` includes them)" if reason in TAKEN_BY_ALL else "")
        for reason, number in history.left_out.items()
    ]
    instead = [f"cpu_time was not disturbed: `{history.instead}`"] if history.instead else []
    changes = tuple(zip(history.changes, history.verdict.findings, strict=False))
    notes, charts = Notes([*left, *instead, *describe_received(found)]), list(_build_charts(history, zoom))
    return HistoryPage(
        history, "", "", charts, changes, tuple(history.verdict.findings[count:]), (notes,), metrics, chosen, axes,
        by_parameter if chosen == next(iter(metrics)) else (),
    )  # fmt: skip


def _find_history(archive: BenchArchive, method: str, metric: str) -> tuple[MetricHistory | None, str]:
    """Return the history, or why there is none; a history is cached until an execution or a triage is added."""
    triages = [each for each in load_triage(archive.location.dir) if (each.method, each.metric) == (method, metric)]
    key = (archive.location.dir, method, metric, archive.groups[method].mark, tuple(triages))
    if key not in _HISTORIES:
        while len(_HISTORIES) >= _MOST_HISTORIES:
            _HISTORIES.pop(next(iter(_HISTORIES)), None)
        _HISTORIES[key] = try_history(method, metric, archive.of(method), triages, archive.location.root)
    return _HISTORIES[key]


_HISTORIES: dict[tuple[object, ...], tuple[MetricHistory | None, str]] = {}
_MOST_HISTORIES = 50


# ---------------------------------------------------------------- the charts of a history


def _build_charts(history: MetricHistory, zoom: Zoom) -> Iterator[Block]:
    """Build a chart for each series: executions of different environments are never in one chart."""
    every = list_drawn(history)
    for (series, aside), name in zip(every, name_series([series for series, _ in every]), strict=True):
        points = order_points(series, aside)
        first, last = zoom.cut([point for point, _ in points])
        if first < last:
            yield _build_series_chart(history, series, points, name, (first, last), is_log=zoom.is_log)
        else:
            yield Text(f"{name}: none of {render_count(len(points), 'execution')} is in this range", role="soft")
    drawn = {_choose_span(change) for change in history.changes if change.kind != "trend"}
    keys = [("own c0", "dot", "an execution"), ("reference", "wide", "level: median between two changes")]
    keys += [("own soft", "dot", "disturbed by others: it does not count")] if history.aside else []
    keys += [("first", "dash", "change")] if drawn else []
    spans = (("fail", "worse, not triaged"), ("changed", "worse, triaged"), ("tolerance", "better"))
    yield Legend([*keys, *((style, "area", text) for style, text in spans if style in drawn)])


def _build_series_chart(
    history: MetricHistory,
    series: MetricSeries,
    points: Sequence[tuple[MetricPoint, bool]],
    name: str,
    shown: tuple[int, int],
    *,
    is_log: bool,
) -> Chart:
    """Build a chart. `points`: all points of a label and environment, and whether each counts; `shown`: their range."""
    steps = [change for change in series.changes if change.kind != "trend"]
    places = [number for number, (_, counts) in enumerate(points) if counts]  # positions of the points that count
    cuts = [places[change.step.at] for change in steps]
    edges = [0, *cuts, len(points)]
    numbered = list(enumerate(points, 1))[slice(*shown)]
    is_log = is_log and all(point.value > 0 for _, (point, _) in numbered)

    def place(value: float) -> float:
        return math.log10(value) if is_log else value

    levels = []
    for start, end in pairwise(edges):
        values = [point.value for point, counts in points[start:end] if counts]
        if values and start < shown[1] and end > shown[0]:
            level = place(statistics.median(values))
            levels.append(Curve([(max(start, shown[0]) + 0.6, level), (min(end, shown[1]) + 0.4, level)], "reference"))
    dots = []
    for kind, style in ((False, "soft point"), (True, "c0 point")):
        mine = [(x, point) for x, (point, counts) in numbered if counts is kind]
        texts = [_describe_point(history.metric, point) for _, point in mine]
        dots.append(Curve([(float(x), place(p.value)) for x, p in mine], style, line=False, marker="dot", texts=texts))
    is_quiet = history.verdict.kind is VerdictKind.PASS
    seen = f"; {describe_sight(series)}" if series.detectable and is_quiet else ""
    part = "" if shown == (0, len(points)) else f"{len(numbered)} of "
    grey = f", {len(points) - len(places)} disturbed" if len(places) < len(points) else ""
    count = f"{render_count(len(points), 'execution')}{grey}"
    spans = [
        (_choose_span(change), max(cut, shown[0]) + 0.5, min(end, shown[1]) + 0.5)
        for change, cut, end in zip(steps, cuts, edges[2:], strict=True)
        if (change.holds or not change.is_worse) and cut < shown[1] and end > shown[0]
    ]
    ticked = numbered[:: max(1, -(-len(numbered) // _MOST_TICKS))]
    return Chart(
        (Span(name, "strong"), Span(f"{part}{count}{seen}", "soft right")),
        (
            Panel(
                [*levels, *dots],
                height=190,
                ticks=build_value_ticks(history.metric, [point.value for _, (point, _) in numbered], is_log=is_log),
                label=f"{history.metric}{', log scale' if is_log else ''}",
            ),
        ),
        f"{history.method} {history.metric}, {name}: {count}, {render_count(len(series.changes), 'change')}",
        spans=spans,
        lines=[cut + 0.5 for cut in cuts if shown[0] <= cut < shown[1]],
        x_range=(shown[0] + 0.5, shown[1] + 0.5),
        x_ticks=list(zip([float(n) for n, _ in ticked], render_times([p.at for _, (p, _) in ticked]), strict=True)),
        x_label=_name_day([point.at for _, (point, _) in numbered]),
        is_wide=True,
    )


def _choose_span(change: MetricChange) -> str:
    if not change.is_worse:
        return "tolerance"
    return "changed" if change.judgement else "fail"


def render_times(times: Sequence[float | None]) -> list[str]:
    """Render dates, or a time if the date equals the previous date; if all are of a single day, only times."""
    for time_of_day in ("%H:%M", "%H:%M:%S"):
        texts, before = [], _name_day(times)
        for at in times:
            day = render_date(at, _DAY) if at else ""
            texts.append(render_date(at, time_of_day if day == before else "%m-%d") if at else "")
            before = day
        if all(text != other for text, other in pairwise(texts)):
            break
    return texts


def _name_day(times: Sequence[float | None]) -> str:
    """Return the day of all times; "" if they are of several days."""
    days = {render_date(at, _DAY) if at else "" for at in times}
    return days.pop() if len(days) == 1 else ""


_DAY = "%Y-%m-%d"


def _describe_point(metric: str, point: MetricPoint) -> str:
    when = render_date(point.at, "%Y-%m-%d %H:%M") if point.at else ""
    commit = f"commit {point.commit[:12]}" if point.commit else ""
    return "\n".join(filter(None, [render_values(metric, [point.value]), point.execution_id, when, commit]))


# ---------------------------------------------------------------- environments


def build_environments(archive: BenchArchive, method: str, by: Sequence[str]) -> Sequence[Block]:
    """Build the table of `assay bench table`. Raises NotFoundError for an unknown column or benchmark."""
    found = archive.of(method) if method else archive.load(archive.choose(""))
    table = build_table(found, load_triage(archive.location.dir), method or None, by, None)
    left = describe_table(table, hint="")
    return [TableBlock(build_setup_table(table)), *([Text(left, role="soft")] if left else [])]


def list_columns(archive: BenchArchive, method: str) -> list[str]:
    """List the columns by which environments can be distinguished, columns with different values first."""
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


# ---------------------------------------------------------------- the commits that a change is in


def list_commits(
    root: str, change: MetricChange, execution: BenchExecution | None
) -> tuple[int, tuple[tuple[str, str], ...]]:
    """Return how many commits the change spans, and the first lines of their messages; 0 if the commits are neither in
    the repository of the root nor in that of the change's first execution."""
    before, after = change.commits
    if before and after and before != after and HASH.fullmatch(before) and HASH.fullmatch(after):
        for folder in _list_folders(root, execution):
            found = _list_commits(folder, before, after)
            if found[0]:
                return found
    return 0, ()


def _list_folders(root: str, execution: BenchExecution | None) -> Iterator[str]:
    """List folders whose repository is read, but no folder in the root: an upload may have a `.git` with settings."""
    yield root
    if execution and execution.run_dir:
        with suppress(AssayError, OSError):
            folder = os.path.realpath(os.path.join(execution.run_dir, load_record(execution.run_dir).workdir))
            if os.path.commonpath([folder, os.path.realpath(root)]) != os.path.realpath(root):
                yield folder


@lru_cache(maxsize=512)
def _list_commits(folder: str, before: str, after: str) -> tuple[int, tuple[tuple[str, str], ...]]:
    span = f"{before}..{after}"
    try:
        counted = run_git(folder, "rev-list", "--count", span)
        if counted.returncode:
            return 0, ()
        listed = run_git(folder, "log", f"-{_MOST_COMMITS}", "--no-show-signature", "--format=%h%x00%s", span).stdout
        return int(counted.stdout), tuple(tuple(line.split("\0", 1)) for line in listed.splitlines() if "\0" in line)  # type: ignore[misc]
    except (GitError, OSError, ValueError, subprocess.SubprocessError):
        return 0, ()
