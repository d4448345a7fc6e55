"""MLflow's runs, read without MLflow: its SQLite database, and the file store of older versions.

mlruns/<experiment>/meta.yaml              name, experiment_id, lifecycle_stage
mlruns/<experiment>/<run>/meta.yaml        run_id, run_name, status, start_time and end_time in milliseconds
                          params/<name>    the value as text; a name with slashes is a path
                          metrics/<name>   lines `timestamp value step`
                          tags/<name>

The database has the tables experiments, runs, params, tags and metrics. In the table metrics a NaN is a 0 with
`is_nan`, and an infinity is the largest number. Times are in milliseconds.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

from assay.config.source import parse_yaml_mapping
from assay.exchange.importers.imported_run import (
    STILL_RUNNING,
    ImportedRun,
    ImportedRuns,
    build_series,
    opening,
    parse_number,
    parse_value,
    refuse,
)
from assay.exchange.sqlite_file import ForeignDatabase, has_tables, reading
from assay.record.importers.sample import Sample, find_subfolders
from assay.record.index.base import Series
from assay.system.files import parse_json
from assay.values.secrets import hide_params
from assay.values.state import State

_META = "meta.yaml"
_PARTS = ("params", "metrics", "tags")
_STATES = {"FINISHED": State.DONE, "FAILED": State.FAILED, "KILLED": State.STOPPED}
_NUMBERED = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
_MOST_BYTES = 1 << 20  # bytes of a parameter, a tag or a meta.yaml
_OWN_TAGS = ("mlflow.", "assay.")


def is_store(sample: Sample) -> bool:
    """Return whether a sample is a folder of experiments, an experiment, or a run."""
    folders = (sample.path, *sample.folders) if sample.is_folder else ()
    return any("experiment_id:" in Sample(os.path.join(folder, _META)).head for folder in folders)


def load_store(path: str) -> ImportedRuns:
    """Load the runs of a store of files. Raise UsageError with the file and line of an error."""
    notes: list[str] = []
    if _is_run(path):
        above = os.path.dirname(os.path.abspath(path))
        name = str(_load_meta(above).get("name") or "") if os.path.exists(os.path.join(above, _META)) else ""
        return ImportedRuns(tuple(_load_run(path, name, notes)), tuple(notes))
    experiments = [path] if os.path.exists(os.path.join(path, _META)) else [*find_subfolders(path)]
    runs = [run for folder in experiments for run in _load_experiment(folder, notes)]
    return ImportedRuns(tuple(runs), tuple(notes))


def _is_run(path: str) -> bool:
    return "run_id:" in Sample(os.path.join(path, _META)).head or "run_uuid:" in Sample(os.path.join(path, _META)).head


def _load_experiment(folder: str, notes: list[str]) -> Iterator[ImportedRun]:
    run_dirs = [
        inner
        for inner in find_subfolders(folder)
        if _is_run(inner) or sum(os.path.isdir(os.path.join(inner, part)) for part in _PARTS) > 1
    ]
    if not run_dirs and not os.path.exists(os.path.join(folder, _META)):
        return  # the folder is not an experiment: `models`, for example, is next to the experiments
    meta = _load_meta(folder)
    name = str(meta.get("name") or os.path.basename(folder))
    if meta.get("lifecycle_stage") == "deleted":
        notes.append(f"experiment {name!r} is deleted, and was left out")
        return
    for run_dir in run_dirs:
        yield from _load_run(run_dir, name, notes)


def _load_meta(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, _META)
    problems: list[str] = []
    if not os.path.exists(path):
        refuse(path, "it is missing")
    meta = parse_yaml_mapping(_load_text(path), _META, problems)
    if problems:
        refuse(path, problems[0].removeprefix(f"{_META}: "))
    return {str(key): value for key, value in meta.items()}


def _load_text(path: str) -> str:
    with opening(path, "rb") as file:
        data: bytes = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            refuse(path, f"it is longer than {_MOST_BYTES >> 20} MiB")
        return data.decode("utf-8")


def _load_run(folder: str, experiment: str, notes: list[str]) -> Iterator[ImportedRun]:
    meta = _load_meta(folder)
    tags = {name: _load_text(path).strip() for name, path in _find_files(folder, "tags")}
    params = {key: parse_value(_load_text(path).rstrip("\n")) for key, path in _find_files(folder, "params")}
    points = {key: _load_points(path) for key, path in _find_files(folder, "metrics")}
    return _build_runs(meta, experiment, tags, params, points, os.path.join(folder, _META), notes)


def _build_runs(
    meta: dict[str, Any],
    experiment: str,
    tags: dict[str, str],
    params: dict[str, Any],
    points: dict[str, Series],
    place: str,
    notes: list[str],
) -> Iterator[ImportedRun]:
    """Yield the run; if it is deleted, only add a note. Errors about values name the location `place`."""
    run_id = str(meta.get("run_id") or meta.get("run_uuid") or "")
    if not run_id:
        refuse(place, "run_id is missing")
    name = str(meta.get("run_name") or tags.get("mlflow.runName") or run_id[:8])
    if meta.get("lifecycle_stage") == "deleted":
        notes.append(f"run {name!r} of {experiment!r} is deleted, and was left out")
        return
    state = _parse_state(meta.get("status"), tags, place)
    shown = hide_params(tags)
    theirs = (f"{key}={text}" if text else key for key, text in shown.items() if not key.startswith(_OWN_TAGS))
    yield ImportedRun(
        id=run_id,
        name=name,
        study=experiment,
        state=state or State.STOPPED,
        params=_restore_params(params, tags),
        points=points,
        tags=(*filter(None, shown.get("assay.tags", "").split(",")), *theirs),
        note=tags.get("mlflow.note.content", ""),
        reason=STILL_RUNNING if state is None else tags.get("assay.reason", ""),
        started_at=_parse_ms(meta, "start_time", place),
        ended_at=_parse_ms(meta, "end_time", place),
        commit=tags.get("mlflow.source.git.commit") or None,
        details={"tags": tags} if tags else {},
    )


def _find_files(folder: str, part: str) -> Iterator[tuple[str, str]]:
    """Yield each name, which may have slashes, with the path of its file. Links are ignored."""
    top = os.path.join(folder, part)
    for where, _, names in sorted(os.walk(top)):
        for name in sorted(names):
            path = os.path.join(where, name)
            if os.path.isfile(path) and not os.path.islink(path):
                yield os.path.relpath(path, top), path


def _parse_state(status: Any, tags: dict[str, str], file: str) -> State | None:
    """Return the state of a run, or None if it had not ended."""
    name = _NUMBERED.get(status, str(status)) if isinstance(status, int) else str(status)
    if name not in (*_NUMBERED.values(), "None"):
        refuse(file, f"status is {status!r}, which is none of {', '.join(_NUMBERED.values())}")
    state = _STATES.get(name)
    ours = next((each for each in State if each.value == tags.get("assay.state")), None)
    # the state that `assay export mlflow` wrote is more precise, unless MLflow's own state has changed since
    is_ours = state is not None and ours is not None and ours.is_over and (ours is State.DONE) == (state is State.DONE)
    return ours if is_ours else state


def _restore_params(params: dict[str, Any], tags: dict[str, str]) -> dict[str, Any]:
    """Return the parameters with the types that `assay export mlflow` kept; MLflow itself has only text."""
    try:
        kept = parse_json(tags.get("assay.params", ""))
    except ValueError:
        return params
    return kept if isinstance(kept, dict) else params


def _parse_ms(meta: dict[str, Any], key: str, place: str) -> float | None:
    value = meta.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        refuse(place, f"{key} is {value!r}, which is not a time in milliseconds")
    return value / 1000


def _load_points(path: str) -> Series:
    points: list[tuple[float | None, float, float | None]] = []
    with opening(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            words = line.split()
            if not words:
                continue
            found = [parse_number(word) for word in words[:3]]
            if not 2 <= len(words) <= 6 or None in found:  # dataset and model may follow the step
                refuse(path, f"{line.strip()[:60]!r} is not `timestamp value step`", number)
            time, value, *steps = found
            points.append((steps[0] if steps else None, value, time / 1000))  # type: ignore[arg-type, operator]
    return build_series(points)


# ---------------------------------------------------------------- the database

_TABLES = ("experiments", "runs", "params", "tags", "metrics")
_LARGEST = 1.7976931348623157e308
# column -> the expression that replaces it in older versions without it
_RUN = {"run_uuid": "", "name": "''", "status": "", "start_time": "", "end_time": "", "lifecycle_stage": ""}
_POINT = {"key": "", "value": "", "timestamp": "", "step": "0", "is_nan": "0"}
_PAIR = {"key": "", "value": ""}


def is_mlflow(sample: Sample) -> bool:
    """Return whether a sample is a database of MLflow or an older store of files."""
    return is_store(sample) or has_tables(sample, _TABLES)


def load_mlflow(path: str) -> ImportedRuns:
    """Load the runs of a database or a store of files. Raise UsageError with the file and the location of an error."""
    if Sample(path).is_folder:
        return load_store(path)
    notes: list[str] = []
    with reading(path) as database:
        experiments = database.load_rows("experiments", {"experiment_id": "", "name": "", "lifecycle_stage": ""})
        runs = [run for each in experiments for run in _load_database_runs(database, each, notes)]
    return ImportedRuns(tuple(runs), tuple(notes))


def _load_database_runs(
    database: ForeignDatabase, experiment: dict[str, Any], notes: list[str]
) -> Iterator[ImportedRun]:
    name = str(experiment["name"])
    if experiment["lifecycle_stage"] == "deleted":
        notes.append(f"experiment {name!r} is deleted, and was left out")
        return
    for row in database.load_rows("runs", _RUN, "start_time", experiment_id=experiment["experiment_id"]):
        run_id = str(row["run_uuid"])
        tags, params = ([*database.load_rows(each, _PAIR, "key", run_uuid=run_id)] for each in ("tags", "params"))
        points = _load_database_points(database, run_id)
        meta = {**row, "run_id": run_id, "run_name": row["name"]}
        yield from _build_runs(
            meta,
            name,
            {each["key"]: str(each["value"] or "") for each in tags},
            {each["key"]: parse_value(str(each["value"])) for each in params},
            points,
            f"{database.path}: run {run_id}",
            notes,
        )


def _load_database_points(database: ForeignDatabase, run_id: str) -> dict[str, Series]:
    """Load the points of a run in the order of time, so that new points are at the end."""
    points: dict[str, list[tuple[float | None, float, float | None]]] = {}
    for row in database.load_rows("metrics", _POINT, "timestamp, rowid", run_uuid=run_id):
        numbers = (row["step"], row["value"], row["timestamp"])
        if not all(isinstance(each, int | float) for each in numbers):
            what = f"metric {str(row['key'])[:60]!r} of run {run_id} is {numbers!r:.80}, which is not a point"
            refuse(database.path, what)
        value = math.nan if row["is_nan"] else float(row["value"])
        value = math.copysign(math.inf, value) if abs(value) >= _LARGEST else value
        points.setdefault(str(row["key"]), []).append((row["step"], value, row["timestamp"] / 1000))
    return {name: build_series(points[name]) for name in sorted(points)}
