"""What the JSON interface of `assay serve` answers: the facts that the commands print with `--json`."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from assay.errors import NotFoundError, UsageError
from assay.follow.locations import FoundRun, StudyLocation
from assay.follow.refresh import find_verdicts_file, read_verdict_line
from assay.reading import run_description, run_diff
from assay.reading.listing import ListedRun, build_run_facts
from assay.reading.ranking import choose_sort, sort_rows
from assay.reading.run_reader import load_objectives
from assay.reading.summary import build_summary, select_rows
from assay.record.index.base import Index, Series, StudyRow, VerdictRow
from assay.record.index.base import Table as IndexTable
from assay.record.run_directory import leaves_root
from assay.show.chart import thin
from assay.show.formatting import to_json
from assay.show.table import build_keys, render_csv
from assay.system.files import parse_json
from assay.values import layout
from assay.values.state import State
from assay.values.table import Table
from assay.values.verdict import VerdictKind
from assay.web.pages.page_view import StudyView
from assay.web.pages.study_page import Names

_MOST_VERDICT_BYTES = 64 << 20  # of a study's verdict file: its end


def build_study_facts(location: StudyLocation, row: StudyRow) -> dict[str, Any]:
    return {
        "name": location.name,
        "root": location.root,
        "runs": row.runs,
        "counts": {str(state): row.counts.get(state, 0) for state in State},
        "last_activity": row.last_activity,
    }


def build_table_facts(
    location: StudyLocation, table: IndexTable, view: StudyView, names: Names, *, whole: bool
) -> list[dict[str, Any]]:
    """As `assay sum --json`. `whole`: all rows, not a page of them."""
    return _build_rows(_build_table(location, table, view, names, whole=whole))


def build_table_csv(location: StudyLocation, table: IndexTable, view: StudyView, names: Names) -> str:
    """All rows, as `assay sum --csv`."""
    return render_csv(_build_table(location, table, view, names, whole=True))


def _build_table(location: StudyLocation, table: IndexTable, view: StudyView, names: Names, *, whole: bool) -> Table:
    options = view.build_options()
    if not options.sort:
        options = options._replace(sort=load_objectives([location], table))
    if whole:
        options = options._replace(limit=None, offset=0, is_page=False)
    return build_summary(table, options, names.step).table


def build_listing_facts(
    location: StudyLocation, table: IndexTable, view: StudyView, *, whole: bool
) -> list[dict[str, Any]]:
    """As `assay ls STUDY --json`, of the runs that have a directory."""
    options = view.build_options()
    keep = select_rows(table, options.where, (), options.states)
    if view.sort:
        params = [row.params for row in table.rows]
        keys = choose_sort(view.sort, table, params)
        keep = sort_rows(table, keep, [key._replace(is_reversed=view.reverse) for key in keys], params)
    if not whole:
        keep = keep[options.offset : options.offset + (options.limit or len(keep))]
    columns = table.metrics.items()
    runs = [
        ListedRun(table.rows[i], {name: (each.last[i], each.last_step[i]) for name, each in columns if each.count[i]})
        for i in keep
    ]
    return _build_rows(build_run_facts(runs, location, time.time()))


def _build_rows(table: Table) -> list[dict[str, Any]]:
    keys = build_keys(table.columns)
    return [{key: to_json(value) for key, value in zip(keys, row, strict=True)} for row in table.rows]


def build_run_answer(index: Index, location: StudyLocation, run_dir: str, children: Sequence[str]) -> Any:
    """As `assay show --json`."""
    return to_json(run_description.build_facts(describe_served(index, location, run_dir, children)))


def describe_served(
    index: Index, location: StudyLocation, run_dir: str, children: Sequence[str]
) -> run_description.RunDescription:
    """For others: without what a link leads to outside of the root."""
    run = run_description.describe_run(index, location, run_dir, children)
    is_outside = run.environment is not None and leaves_root(run_dir, layout.ENVIRONMENT_FILE)
    return replace(run, environment=None) if is_outside else run


def build_comparisons(runs: Sequence[tuple[Index, FoundRun]]) -> list[Any]:
    """The first with each other one, as `assay diff --json`."""
    if len(runs) < 2:
        raise UsageError("which runs are to be compared?", "two or more: ?run=STUDY/RUN&run=STUDY/RUN")
    (index, first), *others = runs
    return [
        to_json(run_diff.build_facts(run_diff.compare(index, other, first, run, within_root=True)))
        for other, run in others
    ]


def build_series_facts(series: Series, metric: str, known: Sequence[str], points: int | None) -> dict[str, Any]:
    """Columns; with `points` about so many of them, and the highest and the lowest of each stretch stay."""
    if not series.values:
        raise NotFoundError("metric", metric, known)
    chosen: Sequence[int] = range(len(series.values))
    if points is not None and points < len(series.values):
        chosen = _thin(series.values, points)
    return {
        "metric": metric,
        "points": len(series.values),
        "is_thinned": len(chosen) < len(series.values),
        "step": [_build_number(series.steps[i]) for i in chosen],
        "value": [to_json(series.values[i]) for i in chosen],
        "time": [_build_number(series.times[i]) for i in chosen],
    }


def _thin(values: Sequence[float], most: int) -> list[int]:
    """Which points stay; those that are not finite are gaps, of which one each stays."""
    finite = [(float(i), value) for i, value in enumerate(values) if math.isfinite(value)]
    gaps = [
        i for i, value in enumerate(values) if not math.isfinite(value) and (i == 0 or math.isfinite(values[i - 1]))
    ]
    return sorted({*(int(i) for i, _ in thin(finite, most)), *gaps[:most]})


def _build_number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def load_verdicts(location: StudyLocation) -> list[Mapping[str, Any]]:
    """Every finding of what was judged, the newest last."""
    rows = (row for line in _load_verdict_lines(location) for row in _read_verdicts(line, location, None))
    return [to_json(row._asdict()) for row in rows]


def load_run_verdicts(location: StudyLocation, run: str) -> list[VerdictRow]:
    """What was judged of one run, the newest first, as the file has them; of what the same judge said about the same
    thing the newest."""
    mark, key = json.dumps(run).encode(), f"{location.name}/{run}"
    lines = (line for line in _load_verdict_lines(location) if mark in line)  # parsing all of them would take long
    newest: dict[tuple[str, str], VerdictRow] = {}
    for row in (row for line in lines for row in _read_verdicts(line, location, key) if row.key == key):
        newest.pop((row.source, row.subject), None)
        newest[row.source, row.subject] = row
    return [*reversed(newest.values())]


def _read_verdicts(line: bytes, location: StudyLocation, key: str | None) -> Sequence[VerdictRow]:
    """A line that cannot be read is a verdict that nobody knows: left out, the one before it would be the last."""
    try:
        return read_verdict_line(line, location)
    except ValueError:
        text = f"a line of {os.path.basename(find_verdicts_file(location))} is damaged: what was judged is not known"
        return [VerdictRow(key, _find_time(line), "unknown", "ERROR", "ERROR", "a verdict", text)]


def _find_time(line: bytes) -> float:
    match = re.match(rb'\{"at": (\d{1,10}(\.\d+)?),', line)
    return float(match[1]) if match else 0.0


def count_failed_checks(location: StudyLocation) -> Mapping[str, int]:
    """Runs whose checks did not pass when they were judged last, by the verdict; of runs that are still there."""
    try:
        info = os.stat(find_verdicts_file(location))
    except OSError:
        return {}
    found: dict[str, int] = {}
    for run, kind in _load_last_checks(location, info.st_mtime_ns, info.st_size).items():
        if kind != VerdictKind.PASS and (run is None or os.path.isdir(os.path.join(location.dir, run))):
            found[str(kind)] = found.get(str(kind), 0) + 1
    return found


@lru_cache(maxsize=64)
def _load_last_checks(location: StudyLocation, _changed_ns: int, _size: int) -> Mapping[str | None, VerdictKind]:
    """The last verdict of each run; None: of the study. A line that cannot be read proves nothing about a run."""
    found: dict[str | None, VerdictKind] = {}
    for line in _load_verdict_lines(location):
        try:
            content = parse_json(line.decode())
            if content["source"] == "checks":
                found |= {each.get("run"): VerdictKind(each["kind"]) for each in content["verdicts"]}
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return found


def _load_verdict_lines(location: StudyLocation) -> list[bytes]:
    path = find_verdicts_file(location)
    if not os.path.isfile(path):
        return []
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _MOST_VERDICT_BYTES))
        lines = file.read().splitlines()
        return [line for line in lines[size > _MOST_VERDICT_BYTES :] if line.strip()]  # the first may be cut
