"""sumx's table: differing hyperparameters, last validation, epoch and epoch time of each run, best first."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from assay.compat.original_command import Parsed, call_original, warn
from assay.errors import ExitCode, UsageError
from assay.follow.locations import StudyLocation, find_locations
from assay.follow.opening import open_index_of
from assay.reading.ranking import (
    SortKey,
    best_values,
    choose_sort,
    combine_columns,
    differing_params,
    sort_rows,
    sort_values,
)
from assay.reading.run_reader import load_fresh_table
from assay.record.index.base import IndexTable
from assay.record.index.stored import Index
from assay.show.console import CollectingConsole
from assay.show.formatting import clean, pad
from assay.show.table import fit, join_rows, lay_out, pad_column, render_csv
from assay.values import layout
from assay.values.series import direction_of, metric_priority, whole_step
from assay.values.table import Column, Table

# parameters that sumx never shows, since they differ in every run
HIDDEN = ("logdir", "command", "result_dir", "nbr_workers", "paths", "val_paths")
_DIGITS = 5
_FIRST_WIDTH = 6  # least width of the first column
_EPOCH, _EPOCH_TIME = "epoch", "epoch_time"
_TRAINING = ("train/", "trn/", "training/")  # metrics that count iterations, not epochs


def build_sumx(
    index: Index, locations: Sequence[StudyLocation], sortwith: Sequence[str], ignore: Sequence[str]
) -> tuple[Table, list[str]]:
    """Build the table, and the warnings about data that could not be read."""
    console = CollectingConsole()
    data = load_fresh_table(index, locations, console)
    warnings = console.lines
    warnings += [f"{row.key}/{row.reason}" for row in data.rows if row.origin in ("runx", "mlrunner") and row.reason]
    found = [i for i, row in enumerate(data.rows) if any(column.count[i] for column in data.metrics.values())]
    keep = [i for i in found if not data.rows[i].is_foreign]
    if len(keep) < len(found):
        warnings.append(f"{len(found) - len(keep)} uploaded runs are not ranked; to take one: assay adopt STUDY/RUN")
    if not keep:
        names = ", ".join(location.name for location in locations)
        hint = "a run is shown once its script has called logx.metric('val', …)"
        raise UsageError(f"no valid experiments found in {names}", "; ".join((hint, *warnings)))
    epochs, times = _build_epochs(data, _load_starts(index, data, keep, warnings))
    params = _load_params(data, locations)
    if not sortwith:
        order = _sort_by_shown(data, keep, ignore)
        return _build_table(data, order, params, epochs, times, ignore, ()), warnings
    known = [{**each, _EPOCH: epochs[i], _EPOCH_TIME: times[i]} for i, each in enumerate(params)]
    # by default, `epoch` sorts the run with the most epochs first, and `epoch_time` the fastest
    usual = {_EPOCH: f"{_EPOCH}:max", _EPOCH_TIME: f"{_EPOCH_TIME}:min"}
    asked = [each.replace("epoch time", _EPOCH_TIME) for each in sortwith]
    sort = choose_sort([usual.get(name, name) for name in asked], data, [known[i] for i in keep])
    return _build_table(data, sort_rows(data, keep, sort, known), params, epochs, times, ignore, sort), warnings


def _sort_by_shown(data: IndexTable, keep: Sequence[int], ignore: Sequence[str]) -> list[int]:
    """Sort like sumx, best first: by the shown values of the first loss, or without a loss of another metric."""
    shown = [name for name in _list_shown(data, ignore) if any(data.metrics[name].count[i] for i in keep)]
    if not shown:
        return list(keep)
    name = next((name for name in shown if "loss" in name), min(shown, key=metric_priority))
    column = data.metrics[name]
    return sort_values(keep, [column.last[i] if column.count[i] else None for i in keep], direction_of(name))


def _list_shown(data: IndexTable, ignore: Sequence[str]) -> list[str]:
    """Return the metrics that sumx shows: all except those that a script logged for its training."""
    return [name for name in sorted(data.metrics) if name not in ignore and not name.startswith(_TRAINING)]


def _load_starts(index: Index, data: IndexTable, keep: Sequence[int], warnings: list[str]) -> dict[int, float]:
    """Return when each run's script first called logx.initialize, since the run may have waited in a farm's queue. Rows
    of runx's own runs have this time: without other runs, only cursors with a note about unread lines are loaded."""
    starts = {}
    noting = ("damaged", "unread") if all(data.rows[i].origin != "assay" for i in keep) else ()
    cursors = index.load_cursors(layout.LOGX_METRICS_FILE, sorted({data.rows[i].study for i in keep}), noting)
    for i in keep:
        row = data.rows[i]
        state = cursors[row.key].state if row.key in cursors else {}
        if state.get("start") is not None:
            starts[i] = float(state["start"])
        if state.get("damaged"):
            lines = f"{state['damaged']} damaged or unfinished line(s) ignored"
            warnings.append(f"{row.key}/{layout.LOGX_METRICS_FILE}: {lines}")
        if state.get("unread"):
            left_out = f"{state['unread']} value(s) left out that are not numbers, such as {state['unread_example']}"
            warnings.append(f"{row.key}/{layout.LOGX_METRICS_FILE}: {left_out}")
    return starts


def _load_params(data: IndexTable, locations: Sequence[StudyLocation]) -> list[Mapping[str, object]]:
    """Load the parameters that the script gave to logx, as sumx shows them, and further ones of Assay's record."""
    if all(row.origin != "assay" for row in data.rows):
        return [row.params for row in data.rows]
    from assay.compat.originals import load_hparams  # a table of runx's own runs does not need it
    from assay.values.secrets import hide_named

    roots = {location.name: location.root for location in locations}
    ours = [row.origin == "assay" and os.path.join(roots[row.study], row.key) for row in data.rows]
    given = [hide_named(load_hparams(folder)) if folder else {} for folder in ours]
    return [{**row.params, **own} for row, own in zip(data.rows, given, strict=True)]


# ---------------------------------------------------------------- columns


def _build_table(
    data: IndexTable,
    order: Sequence[int],
    params: Sequence[Mapping[str, object]],
    epochs: Sequence[float | None],
    times: Sequence[float | None],
    ignore: Sequence[str],
    asked: Sequence[SortKey],
) -> Table:
    several = len({data.rows[i].study for i in order}) > 1
    names = [data.rows[i].key if several else data.rows[i].name for i in order]
    columns: list[tuple[Column, Sequence[object]]] = [(Column("", key="run"), names)]
    differing = differing_params([params[i] for i in order], (*HIDDEN, *ignore))
    columns += [(Column(name, digits=None), [params[i].get(name) for i in order]) for name in differing]
    for name in _list_shown(data, ignore):
        columns += _build_metric(data, name, order, asked)
    if _EPOCH not in ignore:
        columns.append((Column(_EPOCH, "number", digits=12), [whole_step(epochs[i]) for i in order]))
    if not {_EPOCH_TIME, "epoch time"} & set(ignore):
        columns.append((Column(_EPOCH_TIME, "clock"), [times[i] for i in order]))
    titles, cells = zip(*columns, strict=True)
    return Table(titles, list(zip(*cells, strict=True)))


def _build_metric(
    data: IndexTable, name: str, order: Sequence[int], asked: Sequence[SortKey]
) -> Iterator[tuple[Column, Sequence[object]]]:
    column = data.metrics[name]
    if not any(column.count[i] for i in order):
        return
    yield Column(name, "number", digits=_DIGITS), [column.last[i] if column.count[i] else None for i in order]
    direction = next((key.direction for key in asked if key.is_metric and key.name == name), None)
    values = best_values(column, direction or direction_of(name))
    if direction and any(column.count[i] and values[i] != column.last[i] for i in order):
        best = Column(f"{name}-best", "number", digits=_DIGITS)
        yield best, [values[i] if column.count[i] else None for i in order]


def _build_epochs(data: IndexTable, starts: Mapping[int, float]) -> tuple[list[float | None], list[float | None]]:
    """Return the epoch of each row's last validation, and its time per epoch: from the script's start to that
    validation, divided by the number of epochs."""
    columns, rows = [data.metrics[name] for name in _list_shown(data, ())], range(len(data.rows))
    lasts = combine_columns([column.last_step for column in columns], rows, max)
    ends = combine_columns([column.last_time for column in columns], rows, max)
    firsts = combine_columns([column.first_time for column in columns], rows, min)
    begins = [starts.get(i) or data.rows[i].started_at or first for i, first in enumerate(firsts)]
    times = [
        None if end is None or begin is None or last is None else max(0.0, end - begin) / max(1.0, last)
        for end, begin, last in zip(ends, begins, lasts, strict=True)
    ]
    return lasts, times


# ---------------------------------------------------------------- the command


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=command.__doc__)
    add = parser.add_argument
    add("dirs", nargs="+", help="experiments (below LOGROOT) or folders")
    add("--logroot", help="where experiments are, instead of .runx's LOGROOT")
    add("--ignore", help="columns to leave out, comma-separated")
    sorts = "sort by this field, best first; NAME:min or NAME:max sets what is best; may be given again"
    add("--sortwith", "-s", action="append", help=sorts)
    add("--sort", dest="sortwith", action="append", help=argparse.SUPPRESS)
    add("--csv", help="also write NAME.csv here")
    add("--csv-raw", action="store_true", help="leave text that looks like a formula as it is")
    return parser


def run(parsed: Parsed) -> int:
    from assay.system.terminal import terminal_width

    locations = find_locations(parsed.dirs, parsed.logroot, foreign_first=True)
    with open_index_of(locations) as index:
        ignore = [name for name in (parsed.ignore or "").split(",") if name]
        table, warnings = build_sumx(index, locations, parsed.sortwith or (), ignore)
    warn(warnings)
    sys.stdout.write(render_sumx(table, width=terminal_width(sys.stdout)))
    if parsed.csv:
        text = render_csv(table, raw=parsed.csv_raw)
        path = parsed.csv if parsed.csv.endswith(".csv") else f"{parsed.csv}.csv"
        try:
            with open(path, "w", encoding="utf-8", newline="") as file:
                file.write(text)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return int(ExitCode.OK)


def command(words: Sequence[str]) -> int:
    """Summarise runs as sumx does: differing hyperparameters, last metrics, epoch time."""
    return call_original("sumx", build_parser(), words, run)


def render_sumx(table: Table, *, width: int | None = None) -> str:
    """Render the table like sumx: no title over the first column, all columns left-aligned, two spaces between."""
    names = ["", *(clean(column.name) for column in table.columns[1:])]
    laid = lay_out(table, names=names)
    for each in laid:
        each.texts = [text.rstrip() for text in each.texts]
    laid[0].width = max(laid[0].width, _FIRST_WIDTH)
    if width is not None:
        fit(laid, width, gap=2, mark="~")
    head = "  ".join(pad(each.name, each.width) for each in laid).rstrip()
    rule = "  ".join("-" * each.width for each in laid)
    return f"{head}\n{rule}\n" + join_rows([pad_column(each, "left") for each in laid])
