"""`assay ls`: the studies, and the states of the runs of a study."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.follow.locations import StudyLocation, find_studies
from assay.follow.opening import open_index
from assay.follow.refresh import refresh_root, refresh_study
from assay.follow.run_status import find_supervisors
from assay.reading.ranking import choose_sort, sort_rows
from assay.reading.summary import SummaryOptions, build_remarks, select_rows
from assay.record import presence, run_directory
from assay.record.index.base import OWN_FIELDS, IndexTable, RunRow, StudyRow
from assay.record.index.stored import Index
from assay.record.received import describe_facts
from assay.record.tags import NO_MARKS, Marks, find_tags_file, load_marks
from assay.show import formatting
from assay.show.console import Console
from assay.show.table import fit_columns, table_width
from assay.system.processes import host_name
from assay.values.run import State
from assay.values.series import metric_priority
from assay.values.table import Column, Table

MOST_METRICS = 3  # in addition to state, time and reason; `assay sum` shows more
_REASON = "reason"
NOT_STARTED = "not started"
# The ranks by which the columns of metrics are dropped from a narrow table, the highest first.
_METRIC_RANKS = (2, 6, 7)


# ---------------------------------------------------------------- studies


@dataclass(frozen=True, slots=True)
class ListedStudy:
    root: str
    row: StudyRow
    marks: Marks = NO_MARKS
    idle: int = 0  # queued runs that no supervisor will start

    @property
    def counts(self) -> dict[str, int]:
        """Runs by state; a run that no supervisor will start is not counted as `queued`."""
        waiting = self.row.counts.get(State.QUEUED, 0) - self.idle
        named = {str(state): count for state, count in self.row.counts.items()}
        return {NOT_STARTED: self.idle, **named, str(State.QUEUED): waiting}


def list_studies(roots: Sequence[str], console: Console) -> list[ListedStudy]:
    """List every study under these roots as its directories are now, also one without runs."""
    found = []
    for root in roots:
        names = list(find_studies(root))
        if not names:
            continue
        with open_index(root, console.warning) as index:
            refresh_root(index, root, console)
            known = {row.name: row for row in index.load_studies()}
            found += [_list_study(index, StudyLocation(root, name), known.get(name), console) for name in names]
    return found


def _list_study(index: Index, location: StudyLocation, known: StudyRow | None, console: Console) -> ListedStudy:
    row, idle = known or StudyRow(location.name, {}, None), 0
    planned = _load_planned(location)
    if queued := row.counts.get(State.QUEUED, 0) + len(planned):
        row = row._replace(counts={**row.counts, State.QUEUED: queued})
        rows = [*index.load_runs([location.name]), *planned]
        idle = sum(map(_waits, rows)) if name_waiting(rows, location) == NOT_STARTED else 0
    marks = load_marks(find_tags_file(location.dir, of_study=True))
    if marks.problem:
        console.warning(f"{location.name}: {marks.problem}")
    return ListedStudy(location.root, row, marks, idle)


def _load_planned(location: StudyLocation) -> list[RunRow]:
    """Return planned runs without a directory: their `assay run` waits for slots, or was interrupted or killed."""
    return [
        RunRow(f"{location.name}/{name}", location.name, name, run_id, State.QUEUED, 0, {})
        for name, run_id in run_directory.load_planned(location.dir).items()
    ]


def build_study_table(studies: Sequence[ListedStudy], now: float) -> Table:
    """Build the table of studies with the states that occur; the newest activity is last, next to the prompt."""
    states = [state for state in (NOT_STARTED, *State) if any(study.counts.get(state) for study in studies)]
    several = len({study.root for study in studies}) > 1
    columns = [Column("study"), Column("runs", "number")]
    columns += [Column(str(state), "number", key=str(state)) for state in states]
    columns += [Column("last activity", "age", align="left")]
    is_tagged = any(study.marks.tags for study in studies)
    columns += [Column("tags")] if is_tagged else []
    columns += [Column("root")] if several else []
    rows = []
    for study in sorted(studies, key=lambda study: study.row.last_activity or 0.0):
        row = study.row
        age = now - row.last_activity if row.last_activity is not None else None
        cells = [row.name, row.runs, *(study.counts.get(state) or None for state in states), age]
        cells += [",".join(study.marks.tags)] if is_tagged else []
        rows.append([*cells, os.path.relpath(study.root)] if several else cells)
    return Table(tuple(columns), rows)


def build_study_facts(studies: Sequence[ListedStudy]) -> Table:
    """Build the table of studies for programs: every state, absolute times."""
    columns = ("study", "root", "dir", "runs", "counts", "last_activity", "tags", "note")
    rows = [
        [
            study.row.name,
            study.root,
            os.path.join(study.root, study.row.name),
            study.row.runs,
            {str(state): study.counts.get(state, 0) for state in (*State, NOT_STARTED)},
            study.row.last_activity,
            list(study.marks.tags),
            study.marks.note,
        ]
        for study in studies
    ]
    return Table(tuple(Column(name) for name in columns), rows)


# ---------------------------------------------------------------- runs


@dataclass(frozen=True, slots=True)
class ListedRun:
    row: RunRow
    metrics: Mapping[str, tuple[float, float]]  # name -> last value, its step (NaN: none)


def list_runs(index: Index, location: StudyLocation, options: SummaryOptions, console: Console) -> list[ListedRun]:
    """List the runs of a study; of `options`, only those that choose and sort rows apply."""
    count, data = load_all_rows(index, location, console)
    keep = select_rows(data, options.where, options.patterns, options.states)
    if options.sort:
        params = [row.params for row in data.rows]
        begun = sort_rows(data, [i for i in keep if i < count], choose_sort(options.sort, data, params), params)
        keep = [*begun, *(i for i in keep if i >= count)]
    return list_rows(data, keep)


def load_all_rows(index: Index, location: StudyLocation, console: Console) -> tuple[int, IndexTable]:
    """Return the number of runs with a directory, and the current runs of a study followed by the planned ones."""
    planned = _load_planned(location)  # loaded first: a run that gets its directory now is found twice, not never
    refresh_study(index, location, console)
    data = index.load_table([location.name])
    there = {row.folder for row in data.rows}
    return len(data.rows), IndexTable([*data.rows, *(row for row in planned if row.folder not in there)], data.metrics)


def list_rows(data: IndexTable, keep: Sequence[int]) -> list[ListedRun]:
    """Return the rows at the indexes `keep` with their metrics; planned runs have no metrics."""
    metrics = data.metrics.items()
    return [
        ListedRun(
            data.rows[i], {name: (c.last[i], c.last_step[i]) for name, c in metrics if i < len(c.count) and c.count[i]}
        )
        for i in keep
    ]


def _waits(row: RunRow) -> bool:
    return row.state is State.QUEUED and row.attempt == 0


def name_waiting(rows: Sequence[RunRow], location: StudyLocation) -> str:
    """Return `queued`, or `not started` if no supervisor will start the waiting runs."""
    return NOT_STARTED if any(map(_waits, rows)) and not has_supervisor(rows, location) else State.QUEUED


def has_supervisor(rows: Iterable[RunRow], location: StudyLocation) -> bool:
    """Whether a supervisor may start runs of the study: on this host, or registered on another."""
    elsewhere = any(each.host != host_name() for each in presence.load_supervisors(location.dir))
    return elsewhere or bool(find_supervisors((os.path.join(location.dir, row.folder) for row in rows), location.dir))


def _name_state(run: ListedRun, waiting: str) -> str:
    return waiting if _waits(run.row) else str(run.row.state)


def describe_total(runs: Sequence[ListedRun], waiting: str = State.QUEUED) -> str:
    """Return a line such as `24 runs: 18 done, 6 queued`."""
    counts = Counter(_name_state(run, waiting) for run in runs)
    states = ", ".join(f"{counts[state]} {state}" for state in (NOT_STARTED, *State) if counts[state])
    return f"{formatting.render_count(len(runs), 'run')}: {states}"


@dataclass(frozen=True, slots=True)
class RunTable:
    """A table of runs. `remarks` are lines below the table: reasons that did not fit into it. `no_room`: columns."""

    table: Table
    remarks: tuple[str, ...] = ()
    no_room: tuple[str, ...] = ()


def build_run_table(
    runs: Sequence[ListedRun],
    now: float,
    width: int | None = None,
    waiting: str = State.QUEUED,
    step_name: str = "step",
) -> RunTable:
    """Build columns that have a value in some run; with a width, only as many as leave the names readable."""
    shown = sorted({name for run in runs for name in run.metrics}, key=metric_priority)[:MOST_METRICS]
    attempts = [run.row.attempt for run in runs]
    steps = [[step for _, step in run.metrics.values() if math.isfinite(step)] for run in runs]
    candidates: list[tuple[Column, list[Any]]] = [
        (Column("run"), [run.row.name for run in runs]),
        (Column("state", "state"), [_name_state(run, waiting) for run in runs]),
        (Column("attempt", "number", rank=4), attempts if max(attempts, default=0) > 1 else [None] * len(runs)),
        (Column("slot", rank=5), [run.row.slot for run in runs]),
        (Column("time", "clock", rank=1), [run.row.elapsed_s(now) for run in runs]),
        (Column(step_name, "number", digits=12, rank=3), [max(found, default=None) for found in steps]),
        *(
            (Column(name, "number", rank=_METRIC_RANKS[index]), [run.metrics.get(name, (None,))[0] for run in runs])
            for index, name in enumerate(shown)
        ),
        (Column("tags", rank=8), [",".join(run.row.tags) or None for run in runs]),
        (Column("received"), [describe_facts(run.row.received) or None for run in runs]),
        (Column(_REASON), [run.row.reason or None for run in runs]),
    ]
    filled = [pair for pair in candidates if any(value is not None for value in pair[1])]
    columns = [column for column, _ in filled]
    cells = [["" if v is None and column.kind == "text" else v for v in values] for column, values in filled]
    table = Table(tuple(columns), list(zip(*cells, strict=True)))
    if width is None or table_width(table) <= width:
        return RunTable(table)
    if columns[-1].name == _REASON:  # half a reason would be useless
        table = Table(table.columns[:-1], [row[:-1] for row in table.rows])
    table, dropped = fit_columns(table, width)
    return RunTable(table, tuple(build_remarks([run.row for run in runs])), tuple(column.name for column in dropped))


def build_run_facts(runs: Sequence[ListedRun], location: StudyLocation, now: float) -> Table:
    """Build a table of everything that the index has of these runs, for programs."""
    more = ("dir", "elapsed_s", "metrics", "overrides")
    columns = [Column(name) for name in (*OWN_FIELDS, *more)]
    waiting, rows = name_waiting([run.row for run in runs], location), []
    for run in runs:
        own = {name: getattr(run.row, name) for name in OWN_FIELDS}
        values = {**own, "state": _name_state(run, waiting)}.values()
        metrics = {name: value for name, (value, _) in run.metrics.items()}
        run_dir = os.path.join(location.dir, run.row.folder)
        overrides = list(run_directory.load_overrides(run_dir))
        rows.append([*values, run_dir, run.row.elapsed_s(now), metrics, overrides])
    return Table(tuple(columns), rows)
