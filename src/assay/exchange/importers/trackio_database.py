"""Trackio's SQLite database, one file for each project, read without Trackio.

metrics          a row for each call of `log`: run_id, run_name, step, timestamp, the values as JSON
configs          run_id, run_name, the configuration as JSON
system_metrics   the columns of `metrics`, without steps

Versions of Trackio before 0.24 have no run_id. Trackio does not record how a run ended.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from assay.exchange.importers.imported_run import ImportedRun, ImportedRuns, build_series, parse_moment, refuse
from assay.exchange.sqlite_file import ForeignDatabase, has_tables, reading
from assay.record.importers.sample import Sample
from assay.system.fast_dataclasses import dataclass, field
from assay.system.files import parse_json

_TABLES = ("metrics", "configs", "system_metrics")
_LEFT_OUT = ("traces", "alerts", "artifact_versions")  # tables that are not imported
_IDS = {"run_id": "run_name", "run_name": ""}
_NOT_FINITE = {text: float(text) for text in ("NaN", "Infinity", "-Infinity")}  # Trackio writes these numbers as text
_STATES_NOTE = "Trackio does not record how a run ended: the state of all is `done`"

Point = tuple[float | None, float, float | None]


@dataclass(slots=True)
class _Run:
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    points: dict[str, list[Point]] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)


def is_trackio(sample: Sample) -> bool:
    return has_tables(sample, _TABLES)


def load_trackio(path: str) -> ImportedRuns:
    """Load the runs of a database. Raise UsageError with the table and row of an error."""
    runs: dict[str, _Run] = {}
    others: Counter[str] = Counter()
    with reading(path) as database:
        _add_points(database, "metrics", "", runs, others)
        _add_points(database, "system_metrics", "NULL", runs, others, "system/")
        for row in database.load_rows("configs", {**_IDS, "config": "", "id": "rowid"}):
            run = runs.setdefault(str(row["run_id"]), _Run(str(row["run_name"])))
            run.config = _parse(database, "configs", row["id"], row["config"])
        others.update({table: count for table in _LEFT_OUT if (count := database.count_rows(table))})
    notes = [f"left out, since only numbers are imported: {name} ({count})" for name, count in others.items()]
    study = os.path.splitext(os.path.basename(path))[0]
    return ImportedRuns(
        tuple(_build_run(id_, run, study) for id_, run in runs.items()), (*notes, *([_STATES_NOTE] if runs else []))
    )


def _add_points(
    database: ForeignDatabase, table: str, step: str, runs: dict[str, _Run], others: Counter[str], prefix: str = ""
) -> None:
    columns = {**_IDS, "step": step, "timestamp": "", "metrics": "", "id": "rowid"}
    for row in database.load_rows(table, columns, "id"):
        time = parse_moment(str(row["timestamp"]))
        if time is None or not isinstance(row["step"], int | None):
            found = f"{row['timestamp']!r:.60}, {row['step']!r:.60}"
            refuse(database.path, f"row {row['id']} of {table} has no time and step: {found}")
        run = runs.setdefault(str(row["run_id"]), _Run(str(row["run_name"])))
        run.times.append(time)
        for name, value in _flatten(_parse(database, table, row["id"], row["metrics"]), prefix):
            number = float(value) if isinstance(value, int | float) else _NOT_FINITE.get(str(value))
            if number is None:
                others[name] += 1
            else:
                run.points.setdefault(name, []).append((row["step"], number, time))


def _parse(database: ForeignDatabase, table: str, row: int, text: Any) -> dict[str, Any]:
    with suppress(ValueError, TypeError):
        content = parse_json(text)
        if isinstance(content, dict):
            return content
    return refuse(database.path, f"row {row} of {table} is not an object as JSON")


def _flatten(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield names and values; names in nested mappings are `outer/inner`. Trackio's own objects are not split."""
    for name, value in values.items():
        if isinstance(value, dict) and "_type" not in value:
            yield from _flatten(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _build_run(id_: str, run: _Run, study: str) -> ImportedRun:
    own = {name.lstrip("_").lower(): value for name, value in run.config.items() if name.startswith("_") and value}
    created = parse_moment(str(own.get("created", "")))
    return ImportedRun(
        id=id_,
        name=run.name,
        study=study,
        params={name: value for name, value in run.config.items() if not name.startswith("_")},
        points={name: build_series(points) for name, points in run.points.items()},
        started_at=created if created is not None else min(run.times, default=None),
        ended_at=max(run.times, default=None),
        details=own,
    )
