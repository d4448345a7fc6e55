"""Choose the runs of a call by names and patterns, and by `--where` over the columns of the index."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from assay.errors import NotFoundError, did_you_mean, suggest
from assay.follow.locations import ALL_RUNS, FoundRun, StudyLocation, find_runs
from assay.follow.opening import open_index_of
from assay.reading.kept_table import KeptTable, has_param, remember
from assay.reading.ranking import best_values
from assay.reading.run_reader import load_fresh_table
from assay.record.index.base import IndexTable, RunRow
from assay.show.formatting import join_first
from assay.values.plain import render_value
from assay.values.series import direction_of
from assay.values.state import State
from assay.values.where import (
    AGGREGATES,
    MISSING,
    Kind,
    Name,
    Where,
    WhereColumn,
    WhereError,
    choose,
    find_comparisons,
    find_names,
    find_plain,
)

if TYPE_CHECKING:
    from assay.values.run import RunSpec

_MOST_VALUES = 6  # values of one name that are listed if nothing matches
_MOST_NAMES = 20
_MOST_DESCRIBED = 10  # names of an expression that are described: each needs a pass over all runs
_KINDS: dict[Kind, str] = {"params": "parameter", "metrics": "metric", "run": "field"}

# The fields of every run besides its parameters and metrics; None: the run has no such value.
_DURATIONS = ("seconds", "time")
_SETS = ("tag", "tags")
FIELDS: dict[str, Callable[[RunRow], Any]] = {
    **{name: attrgetter(name) for name in ("name", "study", "state", "attempt")},
    **dict.fromkeys(_DURATIONS, lambda row: row.elapsed_s(time.time())),
    "exit_code": attrgetter("exit_code"),
    "reason": lambda row: row.reason or None,
    "title": attrgetter("title"),
    **dict.fromkeys(_SETS, lambda row: row.tags if row.tag is None else (*row.tags, row.tag)),
    **{name: attrgetter(name) for name in ("note", "parent", "trial", "host", "slot", "id", "commit")},
    "received": lambda row: row.received["how"] if row.received else None,
}


# ---------------------------------------------------------------- an expression


def choose_rows(where: Where, table: IndexTable, unknown: set[str] | None = None) -> list[int]:
    """Return the indexes of the rows that match. Rows beyond the columns of the metrics have no metrics. `unknown`
    collects names that no run has yet; without it such names are refused."""
    _check_states(where, table)

    def resolve(name: Name) -> WhereColumn:
        if unknown is not None and not _find_kinds(name, table):
            unknown.add(name.name)
            return WhereColumn([MISSING] * len(table.rows))
        return _resolve(where, name, table)

    return choose(where, len(table.rows), resolve)


def _check_states(where: Where, table: IndexTable) -> None:
    """Refuse an unknown state, which would silently match nothing, or everything."""
    for name, sign, right in find_comparisons(where.expression):
        if name.name != "state" or sign not in ("==", "!=", "in") or _find_kinds(name, table) != ["run"]:
            continue
        for value in right if isinstance(right, tuple) and sign == "in" else (right,):
            if not isinstance(value, Name) and value not in list(State):
                where.refuse(f"no state is named {value!r}", name.column, did_you_mean(str(value), map(str, State)))


def need_rows(where: Where, table: IndexTable, among: Sequence[int] | None = None) -> list[int]:
    """Return the indexes in `among` whose rows match; raise an error with the existing values if none does."""
    chosen = choose_rows(where, table)
    if among is not None:
        possible = set(among)
        chosen = [i for i in chosen if i in possible]
    if not chosen:
        rows = range(len(table.rows)) if among is None else among
        runs = "the only run does not match" if len(rows) == 1 else f"none of {len(rows)} runs matches"
        if not rows:
            raise WhereError("there are no runs to choose from", text=where.text)
        error = WhereError(runs, "\n  ".join(_describe_values(where, table, rows)), text=where.text)
        error.finds_nothing = True
        raise error
    return chosen


def _resolve(where: Where, name: Name, table: IndexTable) -> WhereColumn:
    kinds = _find_kinds(name, table)
    if len(kinds) != 1:
        _refuse_name(where, name, kinds, table)
    (kind,) = kinds
    if kind in ("params", "metrics"):
        return remember(table, ("where", kind, name.name, name.aggregate), lambda: _build_column(kind, name, table))
    read = FIELDS[name.name]
    values = [MISSING if (value := read(row)) is None else value for row in table.rows]
    return WhereColumn(values, is_duration=name.name in _DURATIONS, is_set=name.name in _SETS)


def _build_column(kind: Kind, name: Name, table: IndexTable) -> WhereColumn:
    values: Sequence[Any]
    if kind == "params":
        values = [row.params.get(name.name, MISSING) for row in table.rows]
    else:
        column, aggregate = table.metrics[name.name], name.aggregate or "last"
        is_best = aggregate == "best"
        values = best_values(column, direction_of(name.name)) if is_best else getattr(column, aggregate)
        if 0.0 in column.count or len(values) < len(table.rows):
            found = [value if count else MISSING for value, count in zip(values, column.count, strict=True)]
            values = found + [MISSING] * (len(table.rows) - len(found))
    if not isinstance(table, KeptTable):
        return WhereColumn(values)
    return WhereColumn(list(values), plain=find_plain(values))  # else each comparison would create the numbers again


def _find_kinds(name: Name, table: IndexTable) -> list[Kind]:
    is_known = has_param(table, name.name), name.name in table.metrics, name.name in FIELDS
    return [kind for kind, is_its in zip(_KINDS, is_known, strict=True) if is_its and name.kind in (None, kind)]


def _refuse_name(where: Where, name: Name, kinds: Sequence[Kind], table: IndexTable) -> None:
    if kinds:
        shown = name.name if name.name.replace("_", "a").isalnum() else f"`{name.name}`"
        ways = " or ".join(f"{kind}.{shown}" for kind in kinds)
        what = " and a ".join(_KINDS[kind] for kind in kinds)
        where.refuse(f"{name.name} is a {what}", name.column, f"write {ways}")
    known: dict[Kind, Iterable[str]] = {
        "params": dict.fromkeys(chain.from_iterable(row.params for row in table.rows)),
        "metrics": table.metrics,
        "run": FIELDS,
    }
    possible = {kind: list(names) for kind, names in known.items() if name.kind in (None, kind)}
    close = suggest(name.name, [each for names in possible.values() for each in names])
    lines = [close] if close else []
    if name.name in AGGREGATES:
        lines = [f"write {name.name}(NAME) for the {name.name} of a metric"]
    lines += [f"{_KINDS[kind]}s: {join_first(names, _MOST_NAMES) or 'none'}" for kind, names in possible.items()]
    what = ", ".join(_KINDS[kind] for kind in possible).replace("metric, field", "metric or field")
    where.refuse(f"no {what} is named {name.name!r}", name.column, "\n  ".join(lines))


def _describe_values(where: Where, table: IndexTable, rows: Sequence[int]) -> list[str]:
    """Return a line with the runs' values for each name that was tested."""
    lines = []
    names = {(name.kind, name.aggregate, name.name): name for name in find_names(where.expression)}
    for name in islice(names.values(), _MOST_DESCRIBED):
        values = _resolve(where, name, table).values
        found = list(dict.fromkeys(map(_show, (values[i] for i in rows if not _is_missing(values[i])))))
        title = f"{name.aggregate}({name.name})" if name.aggregate else name.name
        numbers = [values[i] for i in rows if isinstance(values[i], int | float) and not _is_missing(values[i])]
        if not found:
            text = "no run has it"
        elif len(found) > _MOST_VALUES and len(numbers) >= len(found):
            text = f"{min(numbers):g} to {max(numbers):g}"
        else:
            text = join_first(found, _MOST_VALUES)
        lines.append(f"{title}: {text}")
    return lines


def _is_missing(value: Any) -> bool:
    return value is MISSING or (isinstance(value, float) and math.isnan(value))


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return f"{value:g}" if isinstance(value, float) else render_value(value)


# ---------------------------------------------------------------- names and patterns


def match_rows(table: IndexTable, patterns: Sequence[tuple[str, str]]) -> list[int]:
    """Return the rows that match one of the patterns; each pattern must match a run."""
    rows = table.rows
    chosen: set[int] = set()
    for study, pattern in patterns:
        fits = [i for i, row in enumerate(rows) if row.study == study and _fits(row, pattern)]
        if not fits and pattern != ALL_RUNS:
            raise NotFoundError("run", f"{study}/{pattern}", [row.key for row in rows if row.study == study])
        chosen.update(fits)
    return sorted(chosen)


def _fits(row: RunRow, pattern: str) -> bool:
    from fnmatch import fnmatchcase

    name, is_id = row.folder, len(pattern) >= 6 and row.id.startswith(pattern)
    return pattern in (ALL_RUNS, name) or is_id or fnmatchcase(name, pattern)


# ---------------------------------------------------------------- for commands that act on runs


def choose_planned(where: Where, planned: Iterable[RunSpec], location: StudyLocation) -> list[RunSpec]:
    """Choose among planned runs by their earlier results. A run without a directory is queued, without metrics."""
    table = IndexTable([], {})
    if os.path.isdir(location.dir):
        with open_index_of([location]) as index:
            table = load_fresh_table(index, [location])
    rows = list(table.rows)
    indexes = {row.key: i for i, row in enumerate(rows)}
    specs: dict[int, RunSpec] = {}
    for spec in planned:
        key = f"{location.name}/{spec.name}"
        i = indexes.get(key)
        if i is None or rows[i].is_foreign:
            i, own = len(rows), (spec.params, spec.title, spec.tag)
            rows.append(RunRow(key, location.name, spec.name, spec.id, State.QUEUED, 0, *own))
        else:
            rows[i] = rows[i]._replace(params=spec.params)
        specs[i] = spec
    chosen = set(need_rows(where, IndexTable(rows, table.metrics), list(specs)))
    return [spec for i, spec in specs.items() if i in chosen]


def find_chosen_runs(names: Sequence[str], where: Where | None, root: str | None) -> list[FoundRun]:
    """Return the runs of these names that match the expression; raise an error if none does."""
    runs = list({run.dir: run for name in names for run in find_runs(name, root)}.values())
    if where is None or not runs:
        return runs
    locations = list(dict.fromkeys(run.location for run in runs))
    with open_index_of(locations) as index:
        table = load_fresh_table(index, locations)
    by_key = {run.key: run for run in runs}
    among = [i for i, row in enumerate(table.rows) if row.key in by_key]
    return [by_key[table.rows[i].key] for i in need_rows(where, table, among)]
