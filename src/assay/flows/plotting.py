"""`assay plot`: series from the index as charts."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from assay.errors import NotFoundError, UsageError
from assay.flows.finding import FoundRun
from assay.flows.ingest import refresh_study
from assay.flows.places import StudyPlace
from assay.record.index.base import Index, RunRow
from assay.show.plot import Chart, Line, build_bands, group_lines
from assay.values.series import Direction, direction_of, tellingness

MOST_LINES = 12  # more lines than this say nothing; --best asks for others


@dataclass(frozen=True, slots=True)
class PlotOptions:
    metrics: tuple[str, ...] = ()  # none: the most telling one
    group_by: tuple[str, ...] = ()  # runs that differ only here become a mean and a band
    log: bool = False
    best: int | None = None


@dataclass(frozen=True, slots=True)
class BuiltChart:
    metric: str
    chart: Chart
    was_chosen: bool  # by us, among `others`
    others: tuple[str, ...]
    hidden: int  # lines that were left out


def build_charts(
    index: Index,
    places: Sequence[StudyPlace],
    runs: Sequence[FoundRun] | None,
    options: PlotOptions,
    complain: Callable[[str], None],
) -> list[BuiltChart]:
    """`runs`: only these; None is every run of the studies."""
    for place in places:
        refresh_study(index, place, complain)
    keys = None if runs is None else {run.key for run in runs}
    rows = [row for row in index.load_runs([place.name for place in places]) if keys is None or row.key in keys]
    names = ", ".join(place.name for place in places)
    if not rows:
        raise UsageError(f"{names}: no runs yet", "start some: assay run FILE")
    counts = _load_counts(index, rows)
    known = sorted(counts)
    if not known:
        raise UsageError(
            f"{names}: no metrics in these runs",
            "say in the study's file where they are (metrics:), then read the logs again with it: "
            f"assay index reparse {shlex.quote(places[0].name)} --file study.yml",
        )
    _check_names(options, known, rows)
    chosen = options.metrics or (choose_metric(counts),)
    return [_build(index, rows, metric, options, known) for metric in chosen]


def _load_counts(index: Index, rows: Sequence[RunRow]) -> dict[str, int]:
    """Metric → the most points that a run has of it."""
    counts: dict[str, int] = {}
    for metrics in index.load_summaries(keys=[row.key for row in rows]).values():
        for name, summary in metrics.items():
            counts[name] = max(summary.count, counts.get(name, 0))
    return counts


def choose_metric(counts: Mapping[str, int]) -> str:
    """The most telling one that makes a line: a single point per run is for a table."""
    return min(counts, key=lambda name: (counts[name] < 2, tellingness(name)))


def _check_names(options: PlotOptions, known: Iterable[str], rows: Sequence[RunRow]) -> None:
    for metric in options.metrics:
        if metric not in known:
            raise NotFoundError("metric", metric, known)
    params = {name for row in rows for name in row.params}
    for name in options.group_by:
        if name not in params:
            raise NotFoundError("parameter", name, params)


def _build(index: Index, rows: Sequence[RunRow], metric: str, options: PlotOptions, known: Sequence[str]) -> BuiltChart:
    labels = build_labels(rows, options.group_by)
    loaded = [(label, _load_line(index, row.key, metric, label)) for row, label in zip(rows, labels, strict=True)]
    drawn = [(label, line, by_step) for label, (line, by_step) in loaded if len(line.ys)]
    by_step = all(each for _, _, each in drawn)
    lines = [line if by_step else _by_position(line) for _, line, _ in drawn]
    if options.group_by:
        grouped = group_lines((label, line) for (label, _, _), line in zip(drawn, lines, strict=True))
        lines = list(build_bands(grouped))
    ranked = rank_lines(lines, direction_of(metric))
    shown = ranked[: options.best or MOST_LINES]
    studies = ", ".join(dict.fromkeys(row.study for row in rows))
    chart = Chart(
        tuple(shown),
        title=f"{studies}: {metric}",
        x_name="step" if by_step else "point",
        y_name=metric,
        scale="log" if options.log else "linear",
    )
    return BuiltChart(metric, chart, not options.metrics, tuple(known), len(lines) - len(shown))


def _load_line(index: Index, key: str, metric: str, label: str) -> tuple[Line, bool]:
    """The line, in the order of steps, and whether its points have any."""
    series = index.load_series(key, metric)
    has_steps = bool(len(series.steps)) and all(map(math.isfinite, series.steps))
    if not has_steps:
        return Line(label, list(range(1, len(series.values) + 1)), series.values), False
    pairs = sorted(zip(series.steps, series.values, strict=True), key=lambda pair: pair[0])
    return Line(label, [x for x, _ in pairs], [y for _, y in pairs]), True


def _by_position(line: Line) -> Line:
    return replace(line, xs=list(range(1, len(line.ys) + 1)))


def build_labels(rows: Sequence[RunRow], group_by: Sequence[str] = ()) -> list[str]:
    """What tells the runs apart: the parameters that differ, else their names; without those that are grouped over."""
    several = len({row.study for row in rows}) > 1
    names = dict.fromkeys(name for row in rows for name in row.params)
    telling = [name for name in names if name not in group_by and len({repr(row.params.get(name)) for row in rows}) > 1]
    labels = [" ".join(f"{name}={_show(row.params[name])}" for name in telling if name in row.params) for row in rows]
    if group_by:
        labels = [label or "all" for label in labels]
    elif len(set(labels)) < len(rows) or not all(labels):
        labels = [row.name for row in rows]
    return [f"{row.study}/{label}" if several else label for row, label in zip(rows, labels, strict=True)]


def _show(value: object) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


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
