"""Runs for Python programs: what `assay.runs` hands out."""

from __future__ import annotations

import os
import warnings
from typing import Any

from assay.record.index.base import RunRow
from assay.record.index.sqlite import open_index
from assay.show.console import CollectingConsole
from assay.study.locations import StudyLocation
from assay.study.lookup import find_locations
from assay.study.refresh import refresh_study
from assay.values.metric_direction import direction_of
from assay.values.run import State
from assay.values.series import Summary


def load_study_runs(study: str, root: str | None) -> tuple[str, str, list[dict[str, Any]]]:
    """Root, the study's name, and the fields of each run; a damaged run is a Python warning."""
    (location,) = find_locations([study], root)
    with open_index(location.root) as index:
        console = CollectingConsole()
        refresh_study(index, location, console)
        for text in console.lines:
            warnings.warn(text, stacklevel=3)
        rows = index.load_runs([location.name])
        summaries = index.load_summaries([location.name])
    for row in rows:
        if row.state is State.DAMAGED:
            warnings.warn(f"{row.key} is damaged: {row.reason}", stacklevel=3)
    return location.root, location.name, [_build_fields(location, row, summaries.get(row.key, {})) for row in rows]


def _build_fields(location: StudyLocation, row: RunRow, metrics: dict[str, Summary]) -> dict[str, Any]:
    took = row.ended_at - row.started_at if row.ended_at is not None and row.started_at is not None else None
    return {
        "name": row.name,
        "state": str(row.state),
        "params": dict(row.params),
        "dir": os.path.join(location.dir, row.key.partition("/")[2]),
        "metrics": {name: summary.last for name, summary in metrics.items()},
        "best": {
            name: (summary.min if direction_of(summary.metric) == "min" else summary.max)
            for name, summary in metrics.items()
        },
        "id": row.id,
        "attempt": row.attempt,
        "seconds": took,
        "reason": row.reason,
    }


def load_points(root: str, key: str, metric: str) -> tuple[list[float], list[float], list[float]]:
    with open_index(root) as index:
        series = index.load_series(key, metric)
    return series.steps.tolist(), series.values.tolist(), series.times.tolist()
