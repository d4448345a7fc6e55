"""MLflow's SQLite database, read without MLflow: the tables experiments, runs, params, tags and metrics.

A NaN is a 0 with `is_nan`, an infinity the largest number; times are milliseconds.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from typing import Any

from assay.exchange.importers import mlflow_store
from assay.exchange.importers.imported_run import ImportedRun, ImportedRuns, build_series, parse_value, refuse
from assay.exchange.sqlite_file import has_tables, load_rows, reading
from assay.record.importers.sample import Sample
from assay.record.index.base import Series

_TABLES = ("experiments", "runs", "params", "tags", "metrics")
_LARGEST = 1.7976931348623157e308
_RUN = {  # column -> what stands for it where an older version has none
    "run_uuid": "",
    "name": "''",
    "status": "",
    "start_time": "",
    "end_time": "",
    "lifecycle_stage": "",
}
_POINT = {"key": "", "value": "", "timestamp": "", "step": "0", "is_nan": "0"}
_PAIR = {"key": "", "value": ""}


def is_mlflow(sample: Sample) -> bool:
    """A database, or one of the older stores of files."""
    return mlflow_store.is_store(sample) or has_tables(sample, _TABLES)


def load_mlflow(path: str) -> ImportedRuns:
    """Raises UsageError with the file and what in it cannot be read."""
    if Sample(path).is_folder:
        return mlflow_store.load_store(path)
    notes: list[str] = []
    with reading(path) as database:
        experiments = load_rows(path, database, "experiments", {"experiment_id": "", "name": "", "lifecycle_stage": ""})
        runs = [run for each in experiments for run in _load_experiment(path, database, each, notes)]
    return ImportedRuns(tuple(runs), tuple(notes))


def _load_experiment(
    path: str, database: sqlite3.Connection, experiment: dict[str, Any], notes: list[str]
) -> Iterator[ImportedRun]:
    name = str(experiment["name"])
    if experiment["lifecycle_stage"] == "deleted":
        notes.append(f"experiment {name!r} is deleted, and was left out")
        return
    for row in load_rows(path, database, "runs", _RUN, "start_time", experiment_id=experiment["experiment_id"]):
        run_id = str(row["run_uuid"])
        tags = {each["key"]: str(each["value"] or "") for each in _load_of(path, database, "tags", run_id)}
        params = {each["key"]: parse_value(str(each["value"])) for each in _load_of(path, database, "params", run_id)}
        points = _load_points(path, database, run_id)
        meta = {**row, "run_id": run_id, "run_name": row["name"]}
        yield from mlflow_store.build_runs(meta, name, tags, params, points, f"{path}: run {run_id}", notes)


def _load_of(path: str, database: sqlite3.Connection, table: str, run_id: str) -> Iterator[dict[str, Any]]:
    return load_rows(path, database, table, _PAIR, "key", run_uuid=run_id)


def _load_points(path: str, database: sqlite3.Connection, run_id: str) -> dict[str, Series]:
    """In the order of time, so that what is new is at the end."""
    points: dict[str, list[tuple[float | None, float, float | None]]] = {}
    for row in load_rows(path, database, "metrics", _POINT, "timestamp, step, value", run_uuid=run_id):
        numbers = (row["step"], row["value"], row["timestamp"])
        if not all(isinstance(each, int | float) for each in numbers):
            refuse(path, f"metric {str(row['key'])[:60]!r} of run {run_id} is {numbers!r:.80}, which is not a point")
        value = math.nan if row["is_nan"] else _restore(float(row["value"]))
        points.setdefault(str(row["key"]), []).append((row["step"], value, row["timestamp"] / 1000))
    return {name: build_series(points[name]) for name in sorted(points)}


def _restore(value: float) -> float:
    return math.copysign(math.inf, value) if abs(value) >= _LARGEST else value
