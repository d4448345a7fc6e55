"""Runs and series for tools that cannot read run directories: CSV, JSON, Parquet (`assay export`), and TensorBoard.

Runs are one table of the index. Series are read and written one after another, so that the longest series limits the
memory, not the number of points.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from assay.errors import InfrastructureError, MissingExtraError, UsageError
from assay.follow.locations import HOW_TO_START, StudyLocation, find_patterns
from assay.follow.opening import open_index_of
from assay.reading.ranking import best_values
from assay.reading.run_reader import load_fresh_table
from assay.reading.summary import SummaryOptions, select_rows
from assay.record.index.base import IndexTable, RunRow, Series
from assay.record.index.stored import Index
from assay.record.received import describe_facts
from assay.show import formatting
from assay.show.console import Console
from assay.show.table import build_csv_row, render_nested
from assay.system.fast_dataclasses import dataclass
from assay.system.files import rename, replacing
from assay.values.series import direction_of, whole_step
from assay.values.where import WhereError

if TYPE_CHECKING:
    import pyarrow as pa

    from assay.values.where import Where

Write = Callable[[str], object]
_BATCH = 5_000  # rows rendered at once
_GROUP_ROWS = 100_000  # small row groups make a large Parquet file that is slow to read
_EVENTS = "events.out.tfevents"  # start of the names of TensorBoard's files
_LARGEST = 2**63
_LARGEST_EXACT = 2**53  # the largest integer up to which floats are exact


@dataclass(frozen=True, slots=True)
class ExportedRuns:
    """The runs to export, as the rows `chosen` of a table."""

    index: Index
    root: str
    table: IndexTable
    chosen: Sequence[int]

    @property
    def rows(self) -> list[RunRow]:
        return [self.table.rows[i] for i in self.chosen]

    def find_metrics(self, i: int) -> list[str]:
        """Return the metrics of the run in row `i`."""
        return [name for name, column in self.table.metrics.items() if column.count[i]]


@contextmanager
def open_selection(
    studies: Sequence[str], where: Where | None, root: str | None, console: Console
) -> Iterator[ExportedRuns]:
    """Yield the runs to export, with their index open. Raise UsageError if there are no runs at all; if `where` matches
    no run, no row is chosen."""
    locations, patterns = find_patterns(studies, root)
    with open_index_of(locations) as index:
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
        yield ExportedRuns(index, locations[0].root, table, chosen)


# ---------------------------------------------------------------- columns

ColumnKind = Literal["text", "texts", "integer", "number", "flag", "time", "step", "clock"]
"""`time` and `clock` are seconds since the epoch; in a CSV file a `time` is a date, and a `clock` is a number."""


class ExportedColumns(NamedTuple):
    """Columns by name, and batches of rows, each with the values of every column. None is a missing value."""

    kinds: Mapping[str, ColumnKind]
    batches: Iterable[Sequence[Sequence[Any]]]


_FIELDS: dict[str, ColumnKind] = {
    "key": "text", "study": "text", "name": "text", "state": "text", "reason": "text", "attempt": "integer",
    "exit_code": "integer", "created_at": "time", "started_at": "time", "ended_at": "time", "seconds": "number",
    "host": "text", "job": "text", "commit": "text", "origin": "text", "parent": "text", "trial": "integer",
    "tags": "texts", "note": "text", "received": "text",
}  # fmt: skip


def build_run_columns(selection: ExportedRuns) -> ExportedColumns:
    """Build the columns of runs: fields, parameters, then the last and the best value of each metric.

    A parameter and a metric of one name are `params.NAME` and `metrics.NAME`, as in `--where`.
    """
    rows, chosen = selection.rows, selection.chosen
    found: list[tuple[str, str, ColumnKind, Sequence[Any]]] = [  # prefix for a name in use, name, kind, values
        ("", name, kind, [_read_field(row, name) for row in rows]) for name, kind in _FIELDS.items()
    ]
    params = dict.fromkeys(name for row in rows for name in row.params)
    found += [("params.", name, *_build_param(row.params.get(name) for row in rows)) for name in params]
    taken = Counter(name for _, name, _, _ in found)
    for metric, column in selection.table.metrics.items():
        if not any(column.count[i] for i in chosen):
            continue
        pair = {metric: column.last, f"{metric}_best": best_values(column, direction_of(metric))}
        prefix = "metrics." if any(map(taken.__contains__, pair)) else ""
        taken.update(pair.keys())
        for key, numbers in pair.items():
            cells = [numbers[i] if column.count[i] else None for i in chosen]
            found.append(("", prefix + key, "number", cells))
    kinds: dict[str, ColumnKind] = {}
    for prefix, name, kind, _ in found:
        wanted = distinct = name if taken[name] == 1 else prefix + name
        number = 2
        while distinct in kinds:  # a parameter may itself be called `params.lr`
            distinct, number = f"{wanted}_{number}", number + 1
        kinds[distinct] = kind
    return ExportedColumns(kinds, [[values for *_, values in found]])


def _read_field(row: RunRow, name: str) -> Any:
    if name == "seconds":
        return None if row.ended_at is None or row.started_at is None else row.ended_at - row.started_at
    value = getattr(row, name)
    if name == "tags":
        return list(value)
    if name == "received":
        return describe_facts(value) or None
    return str(value) if name == "state" else value


def _build_param(given: Iterable[Any]) -> tuple[ColumnKind, Sequence[Any]]:
    """Return the type of all values, and the values. If the types differ, or integers are too large for a column, all
    values become text: texts stay unchanged, and other values are written as JSON."""
    values = list(given)
    kinds = set(map(type, values)) - {type(None)}
    largest = max((abs(value) for value in values if type(value) is int), default=0)
    if kinds == {bool}:
        return "flag", values
    if kinds == {int} and largest < _LARGEST:
        return "integer", values
    if float in kinds and kinds <= {int, float} and largest <= _LARGEST_EXACT:
        return "number", values
    return "text", [value if value is None or isinstance(value, str) else render_nested(value) for value in values]


def build_run_facts(selection: ExportedRuns) -> Iterator[dict[str, Any]]:
    """Yield each run as a JSON object, with parameters and metrics in objects of their own, so that no names clash."""
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
    return None if value != value else whole_step(value)  # noqa: PLR0124 NaN: no step


def build_point_columns(selection: ExportedRuns) -> ExportedColumns:
    kinds: dict[str, ColumnKind] = {"run": "text", "metric": "text", "step": "step", "value": "number", "time": "clock"}
    return ExportedColumns(kinds, _load_points(selection))


def _load_points(selection: ExportedRuns) -> Iterator[Sequence[Sequence[Any]]]:
    for i in selection.chosen:
        key = selection.table.rows[i].key
        for metric in selection.find_metrics(i):
            series = selection.index.load_series(key, metric)
            for start in range(0, len(series.values), _BATCH):
                part = slice(start, start + _BATCH)
                steps, values, times = series.steps[part], series.values[part], series.times[part]
                yield [[key] * len(values), [metric] * len(values), _drop_nan(steps), values, _drop_nan(times)]


def _drop_nan(values: Iterable[float]) -> list[float | None]:
    return [None if value != value else value for value in values]  # noqa: PLR0124


def check_points(selection: ExportedRuns) -> None:
    if selection.chosen and not any(map(selection.find_metrics, selection.chosen)):
        runs = len(selection.chosen)
        hint = "leave out --series to export the runs themselves"
        raise UsageError("the only run has no metric" if runs == 1 else f"none of {runs} runs has a metric", hint)


# ---------------------------------------------------------------- formats


def write_csv(columns: ExportedColumns, write: Write, *, raw: bool = False) -> None:
    def write_rows(rows: Iterable[Sequence[Any]]) -> None:
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerows(rows)
        write(stream.getvalue())

    write_rows([build_csv_row(columns.kinds, raw=raw)])
    for batch in columns.batches:
        cells = map(_build_csv_cells, columns.kinds.values(), batch, itertools.repeat(raw))
        write_rows(zip(*cells, strict=True))


def _build_csv_cells(kind: ColumnKind, values: Sequence[Any], raw: bool) -> Sequence[Any]:
    """Build the cells of a column, with times as ISO 8601 in UTC, which spreadsheets read."""
    if kind == "texts":
        values = [",".join(each) for each in values]
    elif kind == "time":
        from datetime import UTC, datetime

        moments = [datetime.fromtimestamp(value, UTC) if _is_time(value) else None for value in values]
        values = [each and each.isoformat(timespec="milliseconds").replace("+00:00", "Z") for each in moments]
    elif kind == "step":
        return list(map(whole_step, values))
    if kind in ("number", "clock"):
        return values
    distinct = list(set(values))  # a million points may have one run and one metric
    cells = dict(zip(distinct, build_csv_row(distinct, raw=raw), strict=True))
    return [cells[value] for value in values]


def _is_time(value: float | None) -> bool:
    """Return whether a time is in the years 1 to 9999: a received record may contain any number."""
    return value is not None and -62_135_596_800 <= value < 253_402_300_800


def build_point_facts(selection: ExportedRuns) -> Iterator[dict[str, Any]]:
    kinds, batches = build_point_columns(selection)
    for batch in batches:
        for run, metric, step, value, time in zip(*batch, strict=True):
            yield dict(zip(kinds, (run, metric, whole_step(step), value, whole_step(time)), strict=True))


def write_json(items: Iterable[Any], write: Write) -> None:
    """Write a list with one item per line: valid JSON that can be read line by line."""
    write("[")
    lead, source = "\n", iter(items)
    while batch := list(itertools.islice(source, _BATCH)):
        texts = [json.dumps(formatting.to_json(i), ensure_ascii=False, default=str, allow_nan=False) for i in batch]
        write(lead + formatting.escape_json(",\n".join(texts)))
        lead = ",\n"
    write("\n]\n")


def write_parquet(columns: ExportedColumns, path: str) -> None:
    """Write the batches one by one: the file may be larger than the memory."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("assay export parquet", "parquet") from error
    moment = pa.timestamp("us", tz="UTC")
    types: dict[ColumnKind, pa.DataType] = {
        "text": pa.string(), "texts": pa.list_(pa.string()), "integer": pa.int64(), "number": pa.float64(),
        "flag": pa.bool_(), "time": moment, "step": pa.float64(), "clock": moment,
    }  # fmt: skip

    def build_array(field: pa.Field, values: Sequence[Any]) -> pa.Array:
        if field.type == moment:
            ticks = [round(value * 1e6) if _is_time(value) else None for value in values]
            return pa.array(ticks, pa.int64()).cast(field.type)
        if pa.types.is_string(field.type):  # half of a surrogate pair cannot be encoded
            values = [value if value is None else value.encode("utf-8", "replace").decode() for value in values]
        return pa.array(values, field.type)

    schema = pa.schema([pa.field(name, types[kind]) for name, kind in columns.kinds.items()])
    try:
        with replacing(path) as aside, parquet.ParquetWriter(aside, schema) as writer:
            waiting: list[pa.RecordBatch] = []
            for batch in columns.batches:
                waiting.append(pa.record_batch(list(map(build_array, schema, batch)), schema=schema))
                if sum(each.num_rows for each in waiting) >= _GROUP_ROWS:
                    writer.write_table(pa.Table.from_batches(waiting, schema))
                    waiting = []
            writer.write_table(pa.Table.from_batches(waiting, schema))
    except OSError as error:
        raise InfrastructureError(f"{path} cannot be written: {error.strerror or error}") from error


# ---------------------------------------------------------------- TensorBoard's HParams tab and scalars


def write_hparams_events(index: Index, locations: Sequence[StudyLocation], folder: str, options: SummaryOptions) -> int:
    """Write a folder for each run, with its parameters, last values and series; return the number of runs."""
    table = load_fresh_table(index, locations)
    chosen = select_rows(table, options.where, options.patterns, options.states)
    for i in chosen:
        row = table.rows[i]
        last = {name: column.last[i] for name, column in table.metrics.items() if column.count[i]}
        name = row.key if len(locations) > 1 else row.key.partition("/")[2]
        series = ((metric, index.load_series(row.key, metric)) for metric in last)
        write_board_run(os.path.join(folder, name), row.params, last, series)
    return len(chosen)


def write_board_run(
    target: str, params: Mapping[str, Any], last: Mapping[str, float], series: Iterable[tuple[str, Series]]
) -> None:
    """Write a run, with `last` in the HParams tab; replace earlier files, so that no point appears twice."""
    try:
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams
    except ImportError as error:
        raise MissingExtraError("TensorBoard output", "tensorboard") from error
    try:
        os.makedirs(target, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=target, ignore_cleanup_errors=True) as aside:
            writer = SummaryWriter(aside)
            for summary in hparams(build_hparams(params), dict(last)):
                writer.file_writer.add_summary(summary)
            for metric, points in series:
                for index, (step, value, time) in enumerate(
                    zip(points.steps, points.values, points.times, strict=True)
                ):
                    position = index + 1 if math.isnan(step) else round(step)
                    writer.add_scalar(metric, value, position, walltime=None if math.isnan(time) else time)
            writer.close()
            for name in os.listdir(target):
                if name.startswith(_EVENTS):
                    os.unlink(os.path.join(target, name))
            for name in os.listdir(aside):
                rename(os.path.join(aside, name), os.path.join(target, name))
    except OSError as error:
        raise InfrastructureError(f"cannot write into {target!r}: {error.strerror}") from error


def build_hparams(params: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Convert parameters to numbers, texts and booleans for the HParams tab: other values to text, None to `none`."""
    return {
        name: value if isinstance(value, bool | int | float | str) else "none" if value is None else str(value)
        for name, value in params.items()
    }
