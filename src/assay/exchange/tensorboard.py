"""Runs as event files of TensorBoard, for its HParams tab and its scalars, written by tensorboardX."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from assay.errors import InfrastructureError, MissingExtraError
from assay.follow.api import StudyLocation
from assay.reading.api import SummaryOptions, load_fresh_table, select_rows
from assay.record.index.base import Series
from assay.record.index.stored import Index
from assay.system.files import rename

_MARK = "events.out.tfevents"


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
    """Write a run, with `last` in the HParams tab. It replaces earlier files, so that no point appears twice."""
    try:
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams
    except ImportError as error:
        raise MissingExtraError("TensorBoard output", "tensorboard") from error
    try:
        os.makedirs(target, exist_ok=True)
        aside = tempfile.mkdtemp(prefix=".tmp-", dir=target)
        try:
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
                if name.startswith(_MARK):
                    os.unlink(os.path.join(target, name))
            for name in os.listdir(aside):
                rename(os.path.join(aside, name), os.path.join(target, name))
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise InfrastructureError(f"cannot write into {target!r}: {error.strerror}") from error


def build_hparams(params: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Convert parameters for the HParams tab, which has numbers, texts and booleans: others to text, None to `none`."""
    return {
        name: value if isinstance(value, bool | int | float | str) else "none" if value is None else str(value)
        for name, value in params.items()
    }
