"""Runs for TensorBoard: its HParams tab and the scalar series, by tensorboardX."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.errors import InfrastructureError, MissingExtraError
from assay.follow.api import StudyLocation
from assay.reading.api import SummaryOptions, load_fresh_table, select_rows
from assay.record.index.base import Index
from assay.system.files import rename

_MARK = "events.out.tfevents"


@dataclass(frozen=True, slots=True)
class Points:
    metric: str
    steps: Sequence[float]  # NaN: none; the position counts then
    values: Sequence[float]
    times: Sequence[float]  # NaN: none


@dataclass(frozen=True, slots=True)
class BoardRun:
    """`metrics`: the last value of each, shown in the HParams tab."""

    name: str
    params: Mapping[str, Any]
    metrics: Mapping[str, float]
    series: Iterable[Points]


def write_hparams_events(index: Index, locations: Sequence[StudyLocation], folder: str, options: SummaryOptions) -> int:
    """One sub-folder per run with its parameters, last values and series; how many runs."""
    table = load_fresh_table(index, locations)
    chosen = select_rows(table, options.where, options.patterns, options.states)
    for i in chosen:
        row = table.rows[i]
        last = {name: column.last[i] for name, column in table.metrics.items() if column.count[i]}
        name = row.key if len(locations) > 1 else row.key.partition("/")[2]
        write_board_run(folder, BoardRun(name, row.params, last, _load_series(index, row.key, last)))
    return len(chosen)


def _load_series(index: Index, key: str, metrics: Iterable[str]) -> Iterator[Points]:
    for metric in metrics:
        series = index.load_series(key, metric)
        yield Points(metric, series.steps, series.values, series.times)


def write_board_run(folder: str, run: BoardRun) -> None:
    """One sub-folder per run. What an earlier call wrote there is replaced, so that no point appears twice."""
    try:
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams
    except ImportError as error:
        raise MissingExtraError("TensorBoard output", "tensorboard") from error
    target = os.path.join(folder, run.name)
    try:
        os.makedirs(target, exist_ok=True)
        aside = tempfile.mkdtemp(prefix=".tmp-", dir=folder)
        try:
            writer = SummaryWriter(aside)
            for summary in hparams(build_hparams(run.params), dict(run.metrics)):
                writer.file_writer.add_summary(summary)
            _write_scalars(writer, run)
            writer.close()
            for name in os.listdir(target):
                if name.startswith(_MARK):
                    os.unlink(os.path.join(target, name))
            for name in os.listdir(aside):
                rename(os.path.join(aside, name), os.path.join(target, name))
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise InfrastructureError(f"cannot write into {target!r}: {error.strerror}") from error


def build_hparams(params: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """The tab knows numbers, words and truth; lists and the like are shown as their text, null as none."""
    plain = {}
    for name, value in params.items():
        plain[name] = value if isinstance(value, bool | int | float | str) else "none" if value is None else str(value)
    return plain


def _write_scalars(writer: Any, run: BoardRun) -> None:
    seen = set()
    for points in run.series:
        seen.add(points.metric)
        columns = zip(points.steps, points.values, points.times, strict=True)
        for index, (step, value, time) in enumerate(columns):
            position = index + 1 if math.isnan(step) else round(step)
            writer.add_scalar(points.metric, value, position, walltime=None if math.isnan(time) else time)
    for metric, value in run.metrics.items():  # the tab finds a metric by its scalar
        if metric not in seen:
            writer.add_scalar(metric, value, 0)
