"""W&B's CSV files: the table of runs, and the points of a chart.

    Name,State,Notes,User,Tags,Created,Runtime,Sweep,lr,loss          one row per run; with ID if that column was shown
    Step,calm-sun-1 - loss,calm-sun-1 - loss__MIN,…                   one row per step, one column per run

A table of runs does not show which columns are configuration and which are results. A column of numbers is a metric
if its name is a known one (`loss`, `val/acc`, `_step`) or begins with `summary.`; every other column is a parameter. If
two columns have the same name, the first is the parameter.
"""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from assay.exchange.importers.imported_run import (
    STILL_RUNNING,
    ImportedRun,
    ImportedRuns,
    build_series,
    opening,
    parse_moment,
    parse_number,
    parse_value,
    refuse,
)
from assay.record.importers.sample import Sample
from assay.values.series import find_direction
from assay.values.state import State

_KNOWN = ("Name", "State", "Notes", "User", "Tags", "Created", "Runtime", "Sweep", "ID", "Group", "Job Type", "Updated")
_TYPICAL = {"State", "Runtime", "Created"}
_STATES = {"finished": State.DONE, "failed": State.FAILED, "crashed": State.FAILED, "killed": State.STOPPED}
_UNFINISHED = ("running", "pending", "preempting", "preempted")
_SEPARATOR = " - "
_EDGES = ("__MIN", "__MAX")  # suffixes of the bounds of values that a chart aggregates
_DURATION = re.compile(r"(?:(\d+)d ?)?(?:(\d+)h ?)?(?:(\d+)m ?)?(?:(\d+(?:\.\d+)?)s)?")
_EMPTY = ("", "-")
_MOST_CHARACTERS = 1 << 20  # characters in a cell

Row = tuple[int, list[str]]  # the last line of the row, and its cells


def is_table(sample: Sample) -> bool:
    names = _split_header(sample)
    return "Name" in names and bool(_TYPICAL & set(names))


def is_history(sample: Sample) -> bool:
    names = _split_header(sample)
    return len(names) > 1 and all(_SEPARATOR in name for name in names[1:]) and _SEPARATOR not in names[0]


def _split_header(sample: Sample) -> list[str]:
    try:
        return [] if sample.is_folder else next(csv.reader([sample.first_line]), [])
    except csv.Error:
        return []


def _load_rows(path: str) -> Iterator[Row]:
    """Yield the rows, the header first, and refuse a row with another number of cells."""
    limit = csv.field_size_limit(_MOST_CHARACTERS)
    with opening(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        header: list[str] | None = None
        try:
            for cells in reader:
                if not cells:
                    continue
                header = header or cells
                if len(cells) != len(header):
                    refuse(path, f"{len(cells)} cells, but the header has {len(header)}", reader.line_num)
                yield reader.line_num, cells
        except csv.Error as error:
            refuse(path, str(error), reader.line_num)
        finally:
            csv.field_size_limit(limit)


# ---------------------------------------------------------------- the table of runs


def load_table(path: str) -> ImportedRuns:
    (_, header), *rows = [*_load_rows(path)] or [(1, [])]
    names = Counter(header)
    if wrong := [name for name, count in names.items() if count > (1 if name in _KNOWN else 2)]:
        refuse(path, f"the column {wrong[0]!r} is there {names[wrong[0]]} times", 1)
    metrics = _find_metrics(header, [cells for _, cells in rows])
    seen: Counter[str] = Counter()
    runs = [_build_run(path, header, metrics, row, seen) for row in rows]
    chosen = [header[index] for index in metrics]
    notes = [f"columns taken for metrics: {', '.join(chosen) or 'none'}; the others are parameters"]
    return ImportedRuns(tuple(runs), tuple(notes))


def _find_metrics(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    found = []
    for index, name in enumerate(header):
        if name in _KNOWN:
            continue
        is_repeated = name in header[:index]
        is_named = name.startswith(("summary.", "_")) or "/" in name or find_direction(name) is not None
        is_config = name.startswith("config.") or (name in header[index + 1 :] and not is_repeated)
        numbers = [parse_number(row[index]) for row in rows if row[index] not in _EMPTY]
        if (is_repeated or is_named) and not is_config and numbers and None not in numbers:
            found.append(index)
    return found


def _build_run(path: str, header: Sequence[str], metrics: Sequence[int], row: Row, seen: Counter[str]) -> ImportedRun:
    line, cells = row
    fields = {name: cell for name, cell in zip(header, cells, strict=True) if name in _KNOWN}
    name = fields.get("Name", "").strip() or refuse(path, "the run has no name", line)
    mark = fields.get("ID") or f"{name} {fields.get('Created', '')}".strip()
    seen[mark] += 1
    started_at, runtime = parse_moment(fields.get("Created", "")), _parse_runtime(path, line, fields.get("Runtime", ""))
    ended_at = started_at + runtime if started_at is not None and runtime is not None else None
    state, reason = _parse_state(path, line, fields.get("State", "finished"))
    values = {index: cell for index, cell in enumerate(cells) if header[index] not in _KNOWN and cell not in _EMPTY}
    last_step = next((parse_number(values[i]) for i in metrics if header[i] == "_step" and i in values), None)
    return ImportedRun(
        id=mark if seen[mark] == 1 else f"{mark} #{seen[mark]}",
        name=name,
        study=os.path.splitext(os.path.basename(path))[0],
        state=state,
        params={header[i].removeprefix("config."): parse_value(cell) for i, cell in values.items() if i not in metrics},
        points={
            header[i].removeprefix("summary."): build_series([(last_step, float(number), ended_at)])
            for i in metrics
            if i in values and (number := parse_number(values[i])) is not None
        },
        tags=tuple(tag.strip() for tag in fields.get("Tags", "").split(",") if tag.strip() not in _EMPTY),
        note=fields.get("Notes", "").strip() if fields.get("Notes", "").strip() not in _EMPTY else "",
        reason=reason,
        started_at=started_at,
        ended_at=ended_at,
        details={key.lower().replace(" ", "_"): fields[key] for key in ("User", "Sweep", "Group") if fields.get(key)},
    )


def _parse_state(path: str, line: int, text: str) -> tuple[State, str]:
    word = text.strip().lower()
    if word in _UNFINISHED:
        return State.STOPPED, STILL_RUNNING
    if word not in _STATES:
        refuse(path, f"State is {text[:40]!r}, which is none of {', '.join((*_STATES, *_UNFINISHED))}", line)
    return _STATES[word], f"{word} in W&B" if word != "finished" else ""


def _parse_runtime(path: str, line: int, text: str) -> float | None:
    """Parse a number of seconds, or a duration such as `1h 2m 3s`."""
    plain = text.strip()
    if plain in _EMPTY:
        return None
    number = parse_number(plain)
    if number is not None:
        return number
    found = _DURATION.fullmatch(plain)
    if found is None:
        refuse(path, f"Runtime is {text[:40]!r}, which is not a duration", line)
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


# ---------------------------------------------------------------- the points of a chart


def load_history(path: str) -> ImportedRuns:
    """Load a chart: runs with points only, which importing adds to runs of the same names from an imported table."""
    rows = _load_rows(path)
    _, header = next(rows, (1, []))
    if repeated := [name for name, count in Counter(header).items() if count > 1]:
        refuse(path, f"the column {repeated[0]!r} is there twice", 1)
    named = [(index, name.rpartition(_SEPARATOR)) for index, name in enumerate(header) if index]
    kept = [(index, run, metric) for index, (run, _, metric) in named if not metric.endswith(_EDGES)]
    points: dict[str, dict[str, list[tuple[float | None, float, float | None]]]] = {}
    for line, cells in rows:
        position = parse_number(cells[0])
        if position is None:
            refuse(path, f"{header[0]} is {cells[0][:40]!r}, which is not a number", line)
        step, time = (None, position) if header[0].lower() == "wall time" else (position, None)
        for index, run, metric in kept:
            if cells[index] in _EMPTY:
                continue
            number = parse_number(cells[index])
            if number is None:
                refuse(path, f"{header[index]} is {cells[index][:40]!r}, which is not a number", line)
            points.setdefault(run, {}).setdefault(metric, []).append((step, number, time))
    study = os.path.splitext(os.path.basename(path))[0]
    found = {run: {metric: build_series(each) for metric, each in series.items()} for run, series in points.items()}
    return ImportedRuns(tuple(ImportedRun(run, run, study, None, points=series) for run, series in found.items()))
