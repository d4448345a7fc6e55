"""Load studies from the index after an update, for tables and for the objects of `assay.runs`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from assay.errors import FormatError, UsageError
from assay.follow.locations import StudyLocation, find_patterns
from assay.follow.opening import open_index
from assay.reading.ranking import SortKey, best_values, parse_sort
from assay.record.folders import find_changes, find_script_units, find_units, name_step
from assay.record.index.base import IndexTable, RunRow
from assay.record.index.stored import Index
from assay.show.console import SILENT, CollectingConsole, Console
from assay.system.fast_dataclasses import NamedTuple
from assay.values import layout
from assay.values.series import direction_of
from assay.values.state import State

if TYPE_CHECKING:
    from assay.record.search_file import SearchFile


class LoadedRuns(NamedTuple):
    """The runs of a study. `fields` has the fields of an `assay.Run` for each row of the table."""

    location: StudyLocation
    patterns: tuple[tuple[str, str], ...]
    table: IndexTable
    fields: list[dict[str, Any]]


def load_study_runs(study: str, root: str | None) -> LoadedRuns:
    """Load all runs of a study, and the pattern in `study`, if any. A damaged run causes a Python warning."""
    from assay.follow.refresh import refresh_study  # loaded only for Python programs

    locations, patterns = find_patterns([study], root)
    if len(locations) != 1:
        raise UsageError(f"{study!r} names runs of {len(locations)} studies", "put the name of one study before it")
    (location,) = locations
    with open_index(location.root) as index:
        console = CollectingConsole()
        refresh_study(index, location, console)
        for text in console.lines:
            warnings.warn(text, stacklevel=3)
        table = index.load_table([location.name])
    for row in table.rows:
        if row.state is State.DAMAGED:
            warnings.warn(f"{row.key} is damaged: {row.reason}", stacklevel=3)
    fields = [_build_fields(location, table, i) for i in range(len(table.rows))]
    return LoadedRuns(location, patterns, table, fields)


def _build_fields(location: StudyLocation, table: IndexTable, i: int) -> dict[str, Any]:
    row, columns = table.rows[i], [column for column in table.metrics.values() if column.count[i]]
    return {
        "name": row.name,
        "state": str(row.state),
        "params": dict(row.params),
        "dir": os.path.join(location.dir, row.folder),
        "metrics": {column.metric: column.last[i] for column in columns},
        "best": {column.metric: best_values(column, direction_of(column.metric))[i] for column in columns},
        "id": row.id,
        "attempt": row.attempt,
        "seconds": row.took_s,
        "reason": row.reason,
        "tags": row.tags,
        "note": row.note,
        "ended_at": row.ended_at,
        "received": row.received,
    }


def load_points(root: str, key: str, metric: str) -> tuple[list[float], list[float], list[float]]:
    with open_index(root) as index:
        series = index.load_series(key, metric)
    return series.steps.tolist(), series.values.tolist(), series.times.tolist()


def load_objectives(locations: Sequence[StudyLocation], data: IndexTable) -> tuple[SortKey, ...]:
    """Return the objectives of the studies' searches; empty if the searches have different objectives."""
    found = {_load_study_objectives(location, data) for location in locations}
    objectives = found.pop() if len(found) == 1 else ()
    return objectives if all(each.name in data.metrics for each in objectives) else ()


def _load_study_objectives(location: StudyLocation, data: IndexTable) -> tuple[SortKey, ...]:
    if not os.path.exists(os.path.join(location.dir, layout.STUDY_META_DIR, layout.SEARCH_FILE)):
        first = next((row for row in data.rows if row.study == location.name), None)
        if first is None or first.origin != "optuna":
            return ()
        from assay.record.run_directory import try_record  # loaded only for imported runs

        record = try_record(os.path.join(location.root, first.key))
        known = (record.origin or {}).get("objectives") if record else None
        parsed = [parse_sort(str(each), ()) for each in known] if isinstance(known, list) else []
        return tuple(SortKey(name, direction) for name, direction in parsed if direction)
    search = load_search_file(location)
    return tuple(SortKey(each.metric, each.direction, at=search.at) for each in search.objectives) if search else ()


def load_search_file(location: StudyLocation) -> SearchFile | None:
    """Load the search of a study; None if its file is damaged, which tables and plots ignore."""
    from assay.record.search_file import load_search

    try:
        return load_search(location.dir)
    except FormatError:
        return None


def load_fresh_table(index: Index, locations: Sequence[StudyLocation], console: Console = SILENT) -> IndexTable:
    """Load a table after updating the index. The code that reads runs is loaded only if runs have changed."""
    names = [location.name for location in locations]
    data = index.load_table(names)
    is_stale = False
    for location in locations:
        rows = data.rows if len(locations) == 1 else [row for row in data.rows if row.study == location.name]
        if changes := find_changes(location.dir, location.name, rows):
            from assay.follow.refresh import apply_changes

            apply_changes(index, location, changes, console)
            is_stale = True
    return index.load_table(names) if is_stale else data


def find_step_name(locations: Sequence[StudyLocation], rows: Sequence[RunRow], metric: str | None = None) -> str:
    """Return `epoch` if the runs, or the calls that log this metric, count only epochs; otherwise `step`. Only the
    first run of each study is examined."""
    first = {row.study: row for row in reversed(rows)}
    folders = {location.name: location.root for location in locations}
    run_dirs = {os.path.join(folders[row.study], row.key): row for row in first.values()}
    units = {unit for run_dir, row in run_dirs.items() for unit in _find_units(run_dir, row)}
    if metric is not None and units == {"step", "epoch"}:
        units = {unit for run_dir in run_dirs for unit in find_script_units(run_dir, metric)}
    return name_step(units)


def _find_units(run_dir: str, row: RunRow) -> set[str]:
    if row.created_at is None and os.path.exists(f"{run_dir}/{layout.LOGX_METRICS_FILE}"):
        return {"epoch"}  # in another tool's run, logx counts validations by epoch
    return find_units(run_dir)
