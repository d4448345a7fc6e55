"""sumx's table: hyperparameters that differ, the last validation of each run, epoch and epoch time; best first."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from assay.errors import UsageError
from assay.flows.ingest import refresh_study
from assay.flows.places import StudyPlace
from assay.flows.summary import best_values, choose_sort, differing_params, parse_sort, sort_rows
from assay.record import originals
from assay.record.index.base import Index, RunRow
from assay.record.index.base import Table as IndexTable
from assay.show.table import Column, Table
from assay.values.series import direction_of

# sumx never shows these: they differ in every run and say nothing
HIDDEN = ("logdir", "command", "result_dir", "nbr_workers", "paths", "val_paths")
_NAMELESS = ""


@dataclass(frozen=True, slots=True)
class SumxOptions:
    sortwith: str | None = None
    ignore: tuple[str, ...] = ()


def build_sumx(index: Index, places: Sequence[StudyPlace], options: SumxOptions) -> Table:
    for place in places:
        refresh_study(index, place)
    data = index.load_table([place.name for place in places])
    keep = [i for i, row in enumerate(data.rows) if _has_metrics(data, i)]
    if not keep:
        names = ", ".join(place.name for place in places)
        raise UsageError(
            f"no valid experiments found in {names}", "a run is shown once its script has called logx.metric('val', …)"
        )
    sort = choose_sort(options.sortwith or _default_sort(data), data, keep)
    order = sort_rows(data, keep, sort, options.sortwith)
    params = _load_params(data, places)
    names = differing_params([params[i] for i in keep], (*HIDDEN, *options.ignore))
    columns = [Column(_NAMELESS, key="run"), *(Column(name, digits=None) for name in names)]
    cells = [[data.rows[i].name for i in order], *([params[i].get(name) for i in order] for name in names)]
    _add_metrics(columns, cells, data, order, options)
    _add_epochs(columns, cells, data, order, options.ignore)
    return Table(tuple(columns), list(zip(*cells, strict=True)))


def _has_metrics(data: IndexTable, i: int) -> bool:
    return any(column.count[i] for column in data.metrics.values())


def _default_sort(data: IndexTable) -> str | None:
    """As sumx: by the first metric that is a loss, where there is one."""
    return next((name for name in sorted(data.metrics) if "loss" in name), None)


def _load_params(data: IndexTable, places: Sequence[StudyPlace]) -> list[dict[str, object]]:
    """What the script told logx is what sumx shows; our own record of the parameters fills the gaps."""
    roots = {place.name: place.root for place in places}
    return [_params_of(row, roots[row.study]) for row in data.rows]


def _params_of(row: RunRow, root: str) -> dict[str, object]:
    if row.origin != "assay":
        return dict(row.params)
    return {**row.params, **originals.load_hparams(os.path.join(root, row.key))}


def _add_metrics(
    columns: list[Column], cells: list[list[object]], data: IndexTable, order: Sequence[int], options: SumxOptions
) -> None:
    sorted_by = parse_sort(options.sortwith, data.metrics) if options.sortwith else (None, None)
    for name in sorted(data.metrics):
        if name in options.ignore or name.startswith("train/"):
            continue
        column = data.metrics[name]
        columns.append(Column(name, "number", digits=5))
        cells.append([column.last[i] if column.count[i] else None for i in order])
        if name == sorted_by[0]:
            values = best_values(column, sorted_by[1] or direction_of(name))
            if any(column.count[i] and values[i] != column.last[i] for i in order):
                columns.append(Column(f"{name}-best", "number", digits=5))
                cells.append([values[i] if column.count[i] else None for i in order])


def _add_epochs(
    columns: list[Column], cells: list[list[object]], data: IndexTable, order: Sequence[int], ignore: Sequence[str]
) -> None:
    epochs = [_last_epoch(data, i) for i in order]
    if "epoch" not in ignore:
        columns.append(Column("epoch", "number", digits=12))
        cells.append(list(epochs))
    if "epoch_time" not in ignore and "epoch time" not in ignore:
        columns.append(Column("epoch_time", "clock"))
        cells.append([_epoch_time(data, i, epoch) for i, epoch in zip(order, epochs, strict=True)])


def _last_epoch(data: IndexTable, i: int) -> float | None:
    steps = [
        column.last_step[i]
        for column in data.metrics.values()
        if column.count[i] and math.isfinite(column.last_step[i])
    ]
    return max(steps) if steps else None


def _epoch_time(data: IndexTable, i: int, epoch: float | None) -> float | None:
    """From the start of the script to its last validation, by the number of epochs."""
    lasts = [c.last_time[i] for c in data.metrics.values() if c.count[i] and math.isfinite(c.last_time[i])]
    firsts = [c.first_time[i] for c in data.metrics.values() if c.count[i] and math.isfinite(c.first_time[i])]
    if not lasts or epoch is None:
        return None
    start = data.rows[i].started_at or min(firsts)
    return max(0.0, max(lasts) - start) / max(1.0, epoch)
