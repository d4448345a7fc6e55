"""What the page that compares runs shows: runs as rows, only what differs; of two runs also their code."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from assay.record import run_directory
from assay.record.index.base import Index, RunRow, Table
from assay.study.locations import FoundRun, StudyLocation
from assay.study.ranking import best_values, differing_params
from assay.study.run_diff import build_document, compare, flatten_environment, render_code_diff
from assay.values.document import Block, Code, Notes, Section, TableBlock
from assay.values.series import direction_of, metric_priority
from assay.values.table import Column
from assay.values.table import Table as ShownTable

_MOST_ENVIRONMENTS = 50  # files to be read
_MOST_LINES = 2000  # of a difference of code
_MOST_METRICS = 30
_MISSING = "-"


def build_comparison(
    index: Index, location: StudyLocation, table: Table, chosen: Sequence[int]
) -> tuple[Sequence[Block], Sequence[RunRow]]:
    """Of these rows of the table, in their order."""
    rows = [table.rows[i] for i in chosen]
    params = differing_params([row.params for row in rows])
    blocks: list[Block] = [
        Section((TableBlock(_build_facts(rows, params)),), "Parameters that differ"),
        Section((TableBlock(_build_metrics(table, chosen)),), "Metrics"),
    ]
    dirs = [os.path.join(location.root, row.key) for row in rows]
    if len(rows) == 2:
        left, right = (FoundRun(location, path) for path in dirs)
        found = compare(index, index, left, right)
        document = build_document(found)
        titles = ("Commands", "Environment", "Code")
        blocks += [block for block in document.blocks if isinstance(block, Section) and block.title in titles]
        lines = list(islice(render_code_diff(found), _MOST_LINES + 1))
        if lines:
            more = [Notes([f"only the first {_MOST_LINES} lines are shown"])] if len(lines) > _MOST_LINES else []
            blocks.append(Section((Code("\n".join(lines[:_MOST_LINES])), *more), "Code, line by line"))
    else:
        blocks.append(Section(_build_environments(rows, dirs), "Environment and code"))
    return blocks, rows


def _build_facts(rows: Sequence[RunRow], params: Sequence[str]) -> ShownTable:
    columns = [Column("run"), Column("state", "state"), *(Column(name, digits=None) for name in params)]
    cells = [[row.name, str(row.state), *(row.params.get(name) for name in params), row.took_s] for row in rows]
    return ShownTable((*columns, Column("time", "clock")), cells)


def _build_metrics(table: Table, chosen: Sequence[int]) -> ShownTable:
    """The last value and the best one of each metric that any of them has."""
    names = sorted((n for n, c in table.metrics.items() if any(c.count[i] for i in chosen)), key=metric_priority)
    columns: list[Column] = [Column("run")]
    cells: list[Sequence[Any]] = [[table.rows[i].name for i in chosen]]
    for name in names[:_MOST_METRICS]:
        column = table.metrics[name]
        looks: list[tuple[str, Sequence[float]]] = [(name, column.last)]
        if any(column.count[i] > 1 for i in chosen):
            looks.append((f"best {name}", best_values(column, direction_of(name))))
        for title, values in looks:
            columns.append(Column(title, "number"))
            cells.append([values[i] if column.count[i] else None for i in chosen])
    return ShownTable(tuple(columns), list(zip(*cells, strict=True)))


def _build_environments(rows: Sequence[RunRow], dirs: Sequence[str]) -> Sequence[Block]:
    """Runs as rows, and a column for each fact that is not the same everywhere."""
    shown = rows[:_MOST_ENVIRONMENTS]
    facts = [_load_facts(row, path) for row, path in zip(shown, dirs, strict=False)]
    known = dict.fromkeys(name for each in facts for name in each)
    names = [name for name in known if len({each.get(name) for each in facts}) > 1]
    if not names:
        return [Notes(["the same in all of them"])]
    cells = [[row.name, *(each.get(name, _MISSING) for name in names)] for row, each in zip(shown, facts, strict=True)]
    left = [Notes([f"the first {_MOST_ENVIRONMENTS} of {len(rows)} runs"])] if len(rows) > len(shown) else []
    return [TableBlock(ShownTable((Column("run"), *map(Column, names)), cells)), *left]


def _load_facts(row: RunRow, run_dir: str) -> Mapping[str, Any]:
    record = run_directory.try_record(run_dir)
    code = {"code": row.code_hash[:12]} if row.code_hash else {}
    return {**flatten_environment(run_dir, record.commit if record else row.commit), **code}
