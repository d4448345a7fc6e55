"""`assay export`: runs and series as CSV, JSON and Parquet, for tools that know nothing of run directories.

Runs are one table of the index; series are read and written one after another, so that a million points need no more
memory than the longest series.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.errors import UsageError
from assay.exchange.parquet_file import ColumnKind, write_parquet
from assay.follow.locations import HOW_TO_START, StudyLocation
from assay.reading.ranking import best_values
from assay.reading.run_reader import load_fresh_table
from assay.reading.summary import select_rows
from assay.record.index.base import IndexTable, RunRow
from assay.record.index.stored import Index
from assay.record.received import describe_facts
from assay.show import formatting
from assay.show.console import SILENT, Console
from assay.show.table import build_csv_row, render_nested
from assay.system.fast_dataclasses import dataclass
from assay.values.series import direction_of, whole_step
from assay.values.where import WhereError

if TYPE_CHECKING:
    from assay.values.where import Where

Write = Callable[[str], object]
SERIES_FIELDS = ("run", "metric", "step", "value", "time")
_BATCH = 5_000  # rows that are rendered at once
_LARGEST = 2**63
_LARGEST_EXACT = 2**53  # of the integers that a float can hold


@dataclass(frozen=True, slots=True)
class ExportedRuns:
    """What is exported: these rows of a table."""

    index: Index
    root: str
    table: IndexTable
    chosen: Sequence[int]

    @property
    def rows(self) -> list[RunRow]:
        return [self.table.rows[i] for i in self.chosen]

    def find_metrics(self, i: int) -> list[str]:
        """The metrics that run i has."""
        return [name for name, column in self.table.metrics.items() if column.count[i]]


def select_runs(
    index: Index,
    locations: Sequence[StudyLocation],
    where: Where | None = None,
    patterns: Sequence[tuple[str, str]] = (),
    console: Console = SILENT,
) -> ExportedRuns:
    """Raises UsageError where there is nothing to export; that no run matches is an answer, and an empty table."""
    table = load_fresh_table(index, locations, console)
    if not table.rows:
        names = ", ".join(location.name for location in locations)
        raise UsageError(f"{names}: no runs yet", HOW_TO_START)
    try:
        chosen = select_rows(table, where, patterns)
    except WhereError as error:
        if not error.finds_nothing:
            raise
        console.error(f"0 runs: {error.render()}")
        chosen = []
    return ExportedRuns(index, locations[0].root, table, chosen)


# ---------------------------------------------------------------- one row per run


class RunColumn(NamedTuple):
    name: str
    kind: ColumnKind
    values: Sequence[Any]


_FIELDS: dict[str, ColumnKind] = {
    "key": "text",
    "study": "text",
    "name": "text",
    "state": "text",
    "reason": "text",
    "attempt": "integer",
    "exit_code": "integer",
    "created_at": "time",
    "started_at": "time",
    "ended_at": "time",
    "seconds": "number",
    "host": "text",
    "job": "text",
    "commit": "text",
    "origin": "text",
    "parent": "text",
    "trial": "integer",
    "tags": "texts",
    "note": "text",
    "received": "text",
}


def build_columns(selection: ExportedRuns) -> list[RunColumn]:
    """Fields of the run, parameters, then the last and the best value of each metric.

    A parameter and a metric of one name are `params.NAME` and `metrics.NAME`, as in `--where`.
    """
    rows, table, chosen = selection.rows, selection.table, selection.chosen
    found: list[tuple[str, RunColumn]] = [
        ("", RunColumn(name, kind, [_read_field(row, name) for row in rows])) for name, kind in _FIELDS.items()
    ]
    for name in dict.fromkeys(name for row in rows for name in row.params):
        values = [row.params.get(name) for row in rows]
        kind = _find_kind(values)
        found.append(("params.", RunColumn(name, kind, _to_text(values) if kind == "text" else values)))
    taken = Counter(column.name for _, column in found)
    for name, column in table.metrics.items():
        if not any(column.count[i] for i in chosen):
            continue
        pair = {name: column.last, f"{name}_best": best_values(column, direction_of(name))}
        prefix = "metrics." if any(map(taken.__contains__, pair)) else ""
        taken.update(pair.keys())
        for key, numbers in pair.items():
            cells = [numbers[i] if column.count[i] else None for i in chosen]
            found.append(("", RunColumn(prefix + key, "number", cells)))
    return _make_distinct(
        [each if taken[each.name] == 1 else each._replace(name=prefix + each.name) for prefix, each in found]
    )


def _read_field(row: RunRow, name: str) -> Any:
    if name == "seconds":
        return None if row.ended_at is None or row.started_at is None else row.ended_at - row.started_at
    value = getattr(row, name)
    if name == "tags":
        return list(value)
    if name == "received":
        return describe_facts(value) or None
    return str(value) if name == "state" else value


def _find_kind(values: Sequence[Any]) -> ColumnKind:
    """What all values are; text where they are of several kinds, or integers that the column could not hold."""
    kinds = set(map(type, values)) - {type(None)}
    largest = max((abs(value) for value in values if type(value) is int), default=0)
    if kinds == {bool}:
        return "flag"
    if kinds == {int} and largest < _LARGEST:
        return "integer"
    return "number" if float in kinds and kinds <= {int, float} and largest <= _LARGEST_EXACT else "text"


def _to_text(values: Sequence[Any]) -> list[str | None]:
    """Values of several types: text as it is, everything else as JSON writes it."""
    return [value if value is None or isinstance(value, str) else render_nested(value) for value in values]


def _make_distinct(columns: Sequence[RunColumn]) -> list[RunColumn]:
    """A parameter may be called `params.lr`."""
    taken: set[str] = set()
    distinct = []
    for column in columns:
        name, number = column.name, 2
        while name in taken:
            name, number = f"{column.name}_{number}", number + 1
        taken.add(name)
        distinct.append(column._replace(name=name))
    return distinct


def build_run_facts(selection: ExportedRuns) -> Iterator[dict[str, Any]]:
    """A run as one JSON object; parameters and metrics have an object each, so no name clashes."""
    for i in selection.chosen:
        row, metrics = selection.table.rows[i], {}
        for name in selection.find_metrics(i):
            column = selection.table.metrics[name]
            is_lower = direction_of(name) == "min"
            metrics[name] = {
                "count": int(column.count[i]),
                "last": column.last[i],
                "last_step": _step(column.last_step[i]),
                "best": (column.min if is_lower else column.max)[i],
                "best_step": _step((column.min_step if is_lower else column.max_step)[i]),
                "min": column.min[i],
                "max": column.max[i],
                "mean": column.mean[i],
            }
        yield {**{name: _read_field(row, name) for name in _FIELDS}, "params": dict(row.params), "metrics": metrics}


def _step(value: float) -> float | None:
    return None if value != value else whole_step(value)  # noqa: PLR0124 NaN: there is none


# ---------------------------------------------------------------- one row per point


class PointBatch(NamedTuple):
    """Points of one metric of one run."""

    run: str
    metric: str
    steps: Sequence[float]  # NaN: there is none, as in `times`
    values: Sequence[float]
    times: Sequence[float]


def load_points(selection: ExportedRuns) -> Iterator[PointBatch]:
    for i in selection.chosen:
        key = selection.table.rows[i].key
        for metric in selection.find_metrics(i):
            series = selection.index.load_series(key, metric)
            for start in range(0, len(series.values), _BATCH):
                part = slice(start, start + _BATCH)
                yield PointBatch(key, metric, series.steps[part], series.values[part], series.times[part])


def check_points(selection: ExportedRuns) -> None:
    if selection.chosen and not any(map(selection.find_metrics, selection.chosen)):
        runs = len(selection.chosen)
        raise UsageError(
            "the only run has no metric" if runs == 1 else f"none of {runs} runs has a metric",
            "leave out --series to export the runs themselves",
        )


# ---------------------------------------------------------------- formats


def write_runs_csv(selection: ExportedRuns, write: Write, *, raw: bool = False) -> None:
    columns = build_columns(selection)
    rows = zip(*map(_build_csv_cells, columns), strict=True)
    _write_csv(write, [column.name for column in columns], (build_csv_row(row, raw=raw) for row in rows), raw)


def _build_csv_cells(column: RunColumn) -> Iterable[Any]:
    """Times as ISO 8601 in UTC: a spreadsheet reads them."""
    if column.kind == "texts":
        return map(",".join, column.values)
    if column.kind != "time":
        return column.values
    from datetime import UTC, datetime

    moments = [None if value is None else datetime.fromtimestamp(value, UTC) for value in column.values]
    return [moment and moment.isoformat(timespec="milliseconds").replace("+00:00", "Z") for moment in moments]


def write_series_csv(selection: ExportedRuns, write: Write, *, raw: bool = False) -> None:
    _write_csv(write, SERIES_FIELDS, _build_point_cells(selection, raw), raw)


def _build_point_cells(selection: ExportedRuns, raw: bool) -> Iterator[Sequence[Any]]:
    for batch in load_points(selection):
        names = build_csv_row((batch.run, batch.metric), raw=raw)
        for step, value, time in zip(batch.steps, batch.values, batch.times, strict=True):
            yield (*names, _step(step), value, None if time != time else time)  # noqa: PLR0124


def _write_csv(write: Write, names: Sequence[str], rows: Iterable[Sequence[Any]], raw: bool) -> None:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for batch in chain([[build_csv_row(names, raw=raw)]], _batched(rows)):
        writer.writerows(batch)
        write(stream.getvalue())
        stream.seek(0)
        stream.truncate()


def _batched(items: Iterable[Any]) -> Iterator[list[Any]]:
    source = iter(items)
    while batch := list(islice(source, _BATCH)):
        yield batch


def write_runs_json(selection: ExportedRuns, write: Write) -> None:
    _write_json(write, build_run_facts(selection))


def write_series_json(selection: ExportedRuns, write: Write) -> None:
    _write_json(
        write,
        (
            dict(zip(SERIES_FIELDS, (batch.run, batch.metric, _step(step), value, _step(time)), strict=True))
            for batch in load_points(selection)
            for step, value, time in zip(batch.steps, batch.values, batch.times, strict=True)
        ),
    )


def _write_json(write: Write, items: Iterable[Any]) -> None:
    """A list with one item to a line: valid JSON, and readable line by line."""
    write("[")
    lead = "\n"
    for batch in _batched(items):
        texts = [json.dumps(formatting.to_json(i), ensure_ascii=False, default=str, allow_nan=False) for i in batch]
        write(lead + formatting.escape_json(",\n".join(texts)))
        lead = ",\n"
    write("\n]\n")


def write_runs_parquet(selection: ExportedRuns, path: str) -> None:
    columns = build_columns(selection)
    write_parquet(path, {each.name: each.kind for each in columns}, [[each.values for each in columns]])


def write_series_parquet(selection: ExportedRuns, path: str) -> None:
    kinds: tuple[ColumnKind, ...] = ("text", "text", "number", "number", "time")
    write_parquet(path, dict(zip(SERIES_FIELDS, kinds, strict=True)), map(_build_point_columns, load_points(selection)))


def _build_point_columns(batch: PointBatch) -> list[Sequence[Any]]:
    count = len(batch.values)
    steps = [None if step != step else step for step in batch.steps]  # noqa: PLR0124
    return [[batch.run] * count, [batch.metric] * count, steps, batch.values, batch.times]
