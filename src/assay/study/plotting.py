"""`assay plot`: series from the index as charts."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from assay.errors import FormatError, NotFoundError, UsageError
from assay.record import run_directory
from assay.record.index.base import Index, RunRow
from assay.record.index.base import Table as IndexTable
from assay.show.console import Console
from assay.show.plot import Chart, Line, build_bands
from assay.study.locations import HOW_TO_START, StudyLocation, show_command
from assay.study.ranking import SortKey, build_groups, differing_params, measure_group, sort_groups
from assay.study.run_reader import find_step_name, load_fresh_table
from assay.study.summary import select_rows
from assay.values.series import Direction, direction_of, metric_priority

if TYPE_CHECKING:
    from assay.values.where import Where

MOST_LINES = 12  # more lines than this say nothing; --best asks for others


@dataclass(frozen=True, slots=True)
class PlotOptions:
    metrics: tuple[str, ...] = ()  # none: the most telling one
    group_by: tuple[str, ...] = ()  # runs that differ only here become a mean and a band
    log: bool = False
    best: int | None = None
    where: Where | None = None
    patterns: tuple[tuple[str, str], ...] = ()  # study, pattern of its runs; none: all runs


@dataclass(frozen=True, slots=True)
class BuiltChart:
    metric: str
    chart: Chart
    was_chosen: bool  # by us, among `others`
    others: tuple[str, ...]
    hidden: int  # lines that were left out
    empty: tuple[str, ...] = ()  # groups without a run that counts and has the metric


def build_charts(
    index: Index, locations: Sequence[StudyLocation], options: PlotOptions, console: Console
) -> list[BuiltChart]:
    data = load_fresh_table(index, locations, console)
    keep = select_rows(data, options.where, options.patterns) if data.rows else []
    names = ", ".join(location.name for location in locations)
    if not keep:
        raise UsageError(f"{names}: no runs yet", HOW_TO_START)
    most = {name: int(max(column.count[i] for i in keep)) for name, column in data.metrics.items()}
    counts = {name: count for name, count in most.items() if count}
    known = sorted(counts)
    if not known:
        raise UsageError(f"{names}: no metrics in these runs", describe_metrics(locations[0]))
    for metric in options.metrics:
        if metric not in known:
            raise NotFoundError("metric", metric, known)
    chosen = options.metrics or (choose_metric(counts),)
    step_name = find_step_name(locations, [data.rows[i] for i in keep])
    return [_build(index, data, keep, metric, options, known, step_name) for metric in chosen]


def describe_metrics(location: StudyLocation) -> str:
    """How a study comes to have metrics, by the kind of its file."""
    record = None
    for run_dir in run_directory.find_run_dirs(location.dir):
        with suppress(FormatError, OSError):  # a damaged one has been reported
            record = run_directory.load_record(run_dir)
            break
    if record is None or record.dialect != "native" or not record.source:
        return "the script reports them: assay.log(loss=0.5, step=1), or logx.metric('val', {'loss': 0.5}, epoch=1)"
    again = show_command(["index", "reparse"], location, options=("--file", record.source))
    return f"describe under `metrics:` in {record.source} how the logs show them, then read the logs again: {again}"


def choose_metric(counts: Mapping[str, int]) -> str:
    """The most telling one that makes a line: a single point per run is for a table."""
    return min(counts, key=lambda name: (counts[name] < 2, metric_priority(name)))


def _build(
    index: Index,
    data: IndexTable,
    keep: Sequence[int],
    metric: str,
    options: PlotOptions,
    known: Sequence[str],
    step_name: str,
) -> BuiltChart:
    drawn = [i for i in keep if data.metrics[metric].count[i]]
    loaded = {i: _load_line(index, data.rows[i].key, metric) for i in drawn}
    by_step = all(has_steps for _, has_steps in loaded.values())
    curves = {
        i: line if by_step else replace(line, xs=list(range(1, len(line.ys) + 1))) for i, (line, _) in loaded.items()
    }
    empty: tuple[str, ...] = ()
    if options.group_by:
        lines, empty = _build_groups(data, keep, metric, options, curves)
    else:
        labels = build_labels([data.rows[i] for i in keep])
        named = [replace(curves[i], label=label) for i, label in zip(keep, labels, strict=True) if i in curves]
        lines = rank_lines(named, direction_of(metric))
    shown = lines[: options.best or MOST_LINES]
    studies = ", ".join(dict.fromkeys(data.rows[i].study for i in keep))
    chart = Chart(
        tuple(shown),
        title=f"{studies}: {metric}",
        x_name=step_name if by_step else "point",
        y_name=metric,
        scale="log" if options.log else "linear",
    )
    return BuiltChart(metric, chart, not options.metrics, tuple(known), len(lines) - len(shown), empty)


def _build_groups(
    data: IndexTable, keep: Sequence[int], metric: str, options: PlotOptions, curves: Mapping[int, Line]
) -> tuple[list[Line], tuple[str, ...]]:
    """A line for each group, in the order and with the numbers of the table that `assay sum -g` prints."""
    column, key = data.metrics[metric], SortKey(metric, direction_of(metric))
    groups = sort_groups(data, build_groups(data, keep, options.group_by), [key])
    several = len({group.study for group in groups}) > 1
    lines, empty = [], []
    for group in groups:
        params = _describe_params(group.params) or "all"
        label = f"{group.study}/{params}" if several else params
        value = measure_group(column, group)
        if not value.n or value.mean is None:
            empty.append(label)
            continue
        (band,) = build_bands([(label, [curves[i] for i in group.runs if i in curves])])
        lines.append(replace(band, end=(value.mean, value.sd), others=group.others))
    if not lines:
        raise UsageError(f"no finished run has {metric}", "without -g, runs that are not done are drawn as well")
    return lines, tuple(empty)


def _load_line(index: Index, key: str, metric: str) -> tuple[Line, bool]:
    """The line, in the order of steps, and whether its points have any."""
    series = index.load_series(key, metric)
    has_steps = bool(len(series.steps)) and all(map(math.isfinite, series.steps))
    if not has_steps:
        return Line(key, list(range(1, len(series.values) + 1)), series.values), False
    pairs = sorted(zip(series.steps, series.values, strict=True), key=lambda pair: pair[0])
    return Line(key, [x for x, _ in pairs], [y for _, y in pairs]), True


def build_labels(rows: Sequence[RunRow]) -> list[str]:
    """What tells the runs apart: the parameters that differ, else their names."""
    several = len({row.study for row in rows}) > 1
    telling = differing_params([row.params for row in rows])
    labels = [_describe_params({name: row.params[name] for name in telling if name in row.params}) for row in rows]
    if len(set(labels)) < len(rows) or not all(labels):
        labels = [row.name for row in rows]
    return [f"{row.study}/{label}" if several else label for row, label in zip(rows, labels, strict=True)]


def _describe_params(params: Mapping[str, object]) -> str:
    shown = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in params.items()}
    return " ".join(f"{name}={value}" for name, value in shown.items())


def rank_lines(lines: Sequence[Line], direction: Direction) -> list[Line]:
    """Best first, by the best value of each; those without a finite value last."""

    def key(line: Line) -> tuple[bool, float]:
        finite = [y for y in line.ys if math.isfinite(y)]
        if not finite:
            return True, 0.0
        return False, min(finite) if direction == "min" else -max(finite)

    return sorted(lines, key=key)


def build_paths(path: str, metrics: Sequence[str]) -> list[str]:
    """One file per metric: with several, each name carries its metric."""
    if len(metrics) == 1:
        return [path]
    stem, suffix = os.path.splitext(path)
    return [f"{stem}-{metric.replace('/', '_')}{suffix}" for metric in metrics]
