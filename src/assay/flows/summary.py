"""The summary table: which run won.

Works on whole columns, as the index gives them: ten thousand runs are tabled in a blink.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from types import NoneType
from typing import Any, Literal, NamedTuple

from assay.errors import NotFoundError, UsageError
from assay.flows.finding import load_fresh_table
from assay.flows.places import StudyPlace
from assay.record.index.base import Index, MetricColumns, RunRow
from assay.record.index.base import Table as IndexTable
from assay.record.index.ranking import SortKey, best_values, choose_sort, differing_params, sort_rows
from assay.show.table import Column, Table, fit_columns
from assay.values.state import State
from assay.values.telling import Direction, direction_of, tellingness, whole_step

MOST_METRICS = 6  # more would not fit a terminal; --metrics says otherwise


class SummaryOptions(NamedTuple):
    sort: str | None = None  # METRIC[:min|max], or a parameter
    group_by: tuple[str, ...] = ()
    metrics: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    best: bool = False  # the best value of every metric, not only of the one sorted by
    states: frozenset[State] | None = None
    limit: int | None = None


class StudySummary(NamedTuple):
    """Everything the table is made of; `hidden` counts metrics that were left out, `left_out` rows."""

    table: Table
    rows: list[RunRow]
    sort: SortKey | None
    hidden: int = 0
    left_out: int = 0


def summarise(
    index: Index, places: Sequence[StudyPlace], options: SummaryOptions, complain: Any = None
) -> StudySummary:
    data = load_fresh_table(index, places, complain or (lambda _text: None))
    if not data.rows:
        names = ", ".join(place.name for place in places)
        raise UsageError(f"{names}: no runs yet", "start some: assay run FILE")
    return build_summary(data, options)


def build_summary(data: IndexTable, options: SummaryOptions) -> StudySummary:
    states = options.states
    keep = [i for i, row in enumerate(data.rows) if row.state in states] if states else list(range(len(data.rows)))
    sort = choose_sort(options.sort, data, keep)
    metrics = _choose_metrics(data, options, sort)
    hidden = len(data.metrics) - len(metrics) if options.metrics is None else 0
    params = differing_params([data.rows[i].params for i in keep], options.ignore)
    if options.group_by:
        return _grouped(data, keep, options, sort, metrics, params, hidden)
    order = sort_rows(data, keep, sort, options.sort)[: options.limit]
    columns, cells = _run_columns(data, order, params, metrics, sort, options)
    rows = list(zip(*cells, strict=True)) if order else []
    table = Table(tuple(columns), rows)
    return StudySummary(table, [data.rows[i] for i in order], sort, hidden, len(keep) - len(order))


def fit_summary(summary: StudySummary, width: int) -> StudySummary:
    """For a terminal: whole metrics leave the table before names become unreadable."""
    table, dropped = fit_columns(summary.table, width)
    metrics = {column.rank for column in dropped if column.rank % 2 == 0}
    return summary._replace(table=table, hidden=summary.hidden + len(metrics))


# The ranks by which columns leave a narrow table: metrics have even ones, the first stays as long as it can.
_STEP_RANK = 1
_STEP_TIME_RANK = 3


def _metric_rank(place: int, options: SummaryOptions) -> int:
    """0 for metrics that were asked for by name: they stay."""
    return 2 * place if options.metrics is None else 0


# ---------------------------------------------------------------- choosing


def _choose_metrics(data: IndexTable, options: SummaryOptions, sort: SortKey | None) -> list[str]:
    if options.metrics is not None:
        if options.metrics == ("all",):
            return list(data.metrics)
        for name in options.metrics:
            if name not in data.metrics:
                raise NotFoundError("metric", name, data.metrics)
        return list(options.metrics)
    names = [name for name in data.metrics if name not in options.ignore]
    ranked = sorted(names, key=lambda name: (sort is None or name != sort.metric, tellingness(name)))
    return ranked[:MOST_METRICS]


# ---------------------------------------------------------------- one row per run


def _run_columns(
    data: IndexTable,
    order: Sequence[int],
    params: Sequence[str],
    metrics: Sequence[str],
    sort: SortKey | None,
    options: SummaryOptions,
) -> tuple[list[Column], list[list[Any]]]:
    several = len(set(_gather(data, "study", order))) > 1
    columns = [Column("run")]
    cells: list[list[Any]] = [_gather(data, "key" if several else "name", order)]
    states = _gather(data, "state", order)
    if states.count(State.DONE) < len(states):
        columns.append(Column("state", "state"))
        cells.append(list(map(str, states)))
    for name in params:
        values = [row.params.get(name) for row in data.rows]
        cells.append(list(map(values.__getitem__, order)))
        columns.append(Column(name, _param_kind(cells[-1]), digits=None))
    for place, name in enumerate(metrics):
        before = len(columns)
        _add_metric(columns, cells, data.metrics[name], order, sort, options.best)
        columns[before:] = [column._replace(rank=_metric_rank(place, options)) for column in columns[before:]]
    _add_progress(columns, cells, data, order, metrics)
    return columns, cells


def _gather(data: IndexTable, field_name: str, order: Sequence[int]) -> list[Any]:
    """One field of these rows. Read in the order of the table: that of memory, and so twice as fast."""
    values = list(map(attrgetter(field_name), data.rows))
    return list(map(values.__getitem__, order))


def _param_kind(values: Sequence[Any]) -> Literal["text", "number"]:
    return "number" if _NUMBERS.issuperset(map(type, values)) else "text"


_NUMBERS = {int, float, NoneType}


def _add_metric(
    columns: list[Column],
    cells: list[list[Any]],
    column: MetricColumns,
    order: Sequence[int],
    sort: SortKey | None,
    best: bool,
) -> None:
    name = column.metric
    columns.append(Column(name, "number"))
    cells.append(_pick(column, column.last, order))
    if best or (sort is not None and name == sort.metric and _best_tells_more(column, order, sort.direction)):
        direction = sort.direction if sort is not None and name == sort.metric else direction_of(name)
        values = best_values(column, direction)
        columns.append(Column(f"best {name}", "number", key=f"{name}_best"))
        cells.append(_pick(column, values, order))


def _pick(column: MetricColumns, values: Sequence[float], order: Sequence[int]) -> list[float | None]:
    """The values of these rows; None where a run does not have the metric."""
    if 0.0 not in column.count:
        return list(map(values.__getitem__, order))
    return [values[i] if column.count[i] else None for i in order]


def _best_tells_more(column: MetricColumns, order: Sequence[int], direction: Direction) -> bool:
    values = best_values(column, direction)
    return any(column.count[i] and values[i] != column.last[i] for i in order)


def _add_progress(
    columns: list[Column], cells: list[list[Any]], data: IndexTable, order: Sequence[int], metrics: Sequence[str]
) -> None:
    """How far each run came, and what a step of it costs."""
    chosen = [data.metrics[name] for name in metrics]
    steps = _combine([column.last_step for column in chosen], order, max)
    if steps.count(None) < len(steps):
        columns.append(Column("step", "number", digits=12, rank=_STEP_RANK))
        cells.append(list(map(whole_step, steps)))
    starts, ends = _gather(data, "started_at", order), _gather(data, "ended_at", order)
    seconds = list(map(_elapsed, starts, ends))
    if seconds.count(None) < len(seconds):
        columns.append(Column("time", "clock", key="seconds"))
        cells.append(seconds)
    per_step = _seconds_per_step(chosen, order, starts, steps, seconds)
    if any(value is not None and value >= 0.05 for value in per_step):
        columns.append(Column("time/step", "duration", key="seconds_per_step", rank=_STEP_TIME_RANK))
        cells.append(per_step)


def _combine(
    columns: Sequence[Sequence[float]], order: Sequence[int], choose: Callable[..., float]
) -> list[float | None]:
    """Row by row the largest or the smallest of what is finite; None where nothing is."""
    different = [column for place, column in enumerate(columns) if column not in columns[:place]]
    picked = [list(map(column.__getitem__, order)) for column in different]  # metrics logged together share one
    if picked and all(math.isfinite(sum(values)) for values in picked):
        return list(map(choose, *picked)) if len(picked) > 1 else list(picked[0])
    rows = zip(*picked, strict=True) if picked else [()] * len(order)
    return [choose(finite) if (finite := [value for value in row if math.isfinite(value)]) else None for row in rows]


def _elapsed(start: float | None, end: float | None) -> float | None:
    if start is None or end is None:
        return None
    return end - start if end > start else 0.0


def _seconds_per_step(
    metrics: Sequence[MetricColumns],
    order: Sequence[int],
    starts: Sequence[float | None],
    steps: Sequence[float | None],
    seconds: Sequence[float | None],
) -> list[float | None]:
    """From the run's start to its last point, where points carry times; else the run's whole time."""
    lasts = _combine([column.last_time for column in metrics], order, max)
    firsts = _combine([column.first_time for column in metrics], order, min)
    begun = [start or first for start, first in zip(starts, firsts, strict=True)]
    took = [
        whole if until is None else until for whole, until in zip(seconds, map(_elapsed, begun, lasts), strict=True)
    ]
    return [time / step if step and time is not None else None for time, step in zip(took, steps, strict=True)]


# ---------------------------------------------------------------- one row per group


def _grouped(
    data: IndexTable,
    keep: Sequence[int],
    options: SummaryOptions,
    sort: SortKey | None,
    metrics: Sequence[str],
    params: Sequence[str],
    hidden: int,
) -> StudySummary:
    """Runs that differ only in the given parameters (a seed) become one row: mean ± sd of the last and best values."""
    known = {name for i in keep for name in data.rows[i].params}
    for name in options.group_by:
        if name not in known:
            raise NotFoundError("parameter", name, known)
    shown = [name for name in params if name not in options.group_by]
    groups: dict[str, list[int]] = {}
    for i in keep:
        groups.setdefault(repr([data.rows[i].params.get(name) for name in shown]), []).append(i)
    ordered = sorted(groups.values(), key=lambda members: _group_key(data, members, sort))[: options.limit]
    best = sort if options.best or _group_best_tells_more(data, keep, sort) else None
    columns = [Column(name, "text", digits=None) for name in shown]
    columns += [Column("n", "number", digits=12)]
    if any(data.rows[i].state is not State.DONE for i in keep):
        columns.append(Column("not done", "number", digits=12, key="not_done"))
    rows = [_group_row(data, members, shown, metrics, best, len(columns) > len(shown) + 1) for members in ordered]
    columns += _group_metric_columns(metrics, best, options)
    table = Table(tuple(columns), rows)
    return StudySummary(table, [data.rows[m[0]] for m in ordered], sort, hidden, len(groups) - len(ordered))


def _group_best_tells_more(data: IndexTable, keep: Sequence[int], sort: SortKey | None) -> bool:
    if sort is None:
        return False
    done = [i for i in keep if data.rows[i].state is State.DONE]
    return _best_tells_more(data.metrics[sort.metric], done, sort.direction)


def _group_metric_columns(metrics: Sequence[str], best: SortKey | None, options: SummaryOptions) -> list[Column]:
    columns = []
    for place, name in enumerate(metrics):
        rank = _metric_rank(place, options)
        columns += [Column(name, "number", rank=rank), Column("± sd", "number", digits=2, key=f"{name}_sd", rank=rank)]
        if best is not None and name == best.metric:
            columns += [
                Column(f"best {name}", "number", key=f"{name}_best", rank=rank),
                Column("± sd", "number", digits=2, key=f"{name}_best_sd", rank=rank),
            ]
    return columns


def _group_row(
    data: IndexTable,
    members: Sequence[int],
    shown: Sequence[str],
    metrics: Sequence[str],
    best: SortKey | None,
    mark: bool,
) -> list[Any]:
    done = [i for i in members if data.rows[i].state is State.DONE]
    row: list[Any] = [data.rows[members[0]].params.get(name) for name in shown]
    row.append(len(done))
    if mark:
        row.append(len(members) - len(done) or None)
    for name in metrics:
        column = data.metrics[name]
        row += mean_and_sd([column.last[i] for i in done if column.count[i]])
        if best is not None and name == best.metric:
            values = best_values(column, best.direction)
            row += mean_and_sd([values[i] for i in done if column.count[i]])
    return row


def _group_key(data: IndexTable, members: Sequence[int], sort: SortKey | None) -> tuple[bool, float]:
    if sort is None:
        return (False, 0.0)
    column = data.metrics[sort.metric]
    values = best_values(column, sort.direction)
    done = [values[i] for i in members if data.rows[i].state is State.DONE and column.count[i]]
    mean = mean_and_sd(done)[0]
    if mean is None or not math.isfinite(mean):
        return (True, 0.0)
    return (False, mean if sort.direction == "min" else -mean)


def mean_and_sd(values: Sequence[float]) -> list[float | None]:
    """The sample's mean and standard deviation; no deviation of a single value, NaN is not left out."""
    if not values:
        return [None, None]
    mean = math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan
    if len(values) < 2 or not math.isfinite(mean):
        return [mean, None]
    return [mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))]
