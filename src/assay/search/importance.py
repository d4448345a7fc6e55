"""Measures for `assay importance` how much each parameter affects a metric, over the runs that are done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from assay.errors import UsageError
from assay.reading.best import choose_metric
from assay.reading.ranking import Asked, SortKey, differing_params
from assay.record.index.base import IndexTable
from assay.search.optuna_proposals import compute_importance
from assay.show.formatting import render_count
from assay.values.document import Block, Document, Notes, TableBlock, Text
from assay.values.state import State
from assay.values.table import Column, Table

LEAST_RUNS = 4
_FEW_RUNS = 20  # with fewer runs, the best runs depend on chance
_BAR = 30  # the length of a bar in characters


class Importance(NamedTuple):
    key: SortKey
    fractions: dict[str, float]  # parameter → its fraction, the largest fraction first
    values: dict[str, int]  # parameter → the number of its different values
    runs: int
    without: int  # the number of finished runs that have no finite value


def measure_importance(
    data: IndexTable, keep: Sequence[int], asked: Asked | None = None, how_to_choose: str = " with -m"
) -> Importance:
    """Measure the importance of parameters over the finished runs in `keep`. Raise UsageError if there is nothing to
    compare; `how_to_choose` is the end of the advice to choose another metric."""
    key = choose_metric(data, asked)
    column = data.metrics[key.name]
    values = key.values(column)
    done = [i for i in keep if data.rows[i].state is State.DONE and not data.rows[i].is_foreign]
    used = [i for i in done if column.count[i] > 0 and math.isfinite(values[i])]
    if len(used) < LEAST_RUNS:
        raise UsageError(
            f"importance needs {LEAST_RUNS} finished runs with {key.name}, and there are {len(used)}",
            f"run more of them, or choose another metric{how_to_choose}",
        )
    params = [data.rows[i].params for i in used]
    differing = differing_params(params)
    if not differing:
        raise UsageError(f"all {len(used)} runs have the same parameters", "importance compares runs that differ")
    chosen = [{name: each[name] for name in differing if name in each} for each in params]
    fractions = compute_importance(chosen, [values[i] for i in used], key.direction)
    counts = {name: len({repr(each.get(name)) for each in params}) for name in fractions}
    return Importance(key, fractions, counts, len(used), len(done) - len(used))


def build_importance_document(found: Importance) -> Document:
    most = max(found.fractions.values(), default=0.0)
    rows = [
        (name, fraction, found.values[name], "█" * round(_BAR * fraction / most) if most else "")
        for name, fraction in found.fractions.items()
    ]
    columns = (
        Column("parameter"),
        Column("importance", "number", digits=2),
        Column("values", "number", digits=None),
        Column("", cut="never"),
    )
    word = "lower" if found.key.direction == "min" else "higher"
    what = f"importance for the {found.key.at} {found.key.name} ({word} is better), {render_count(found.runs, 'run')}"
    blocks: list[Block] = [Text(what), TableBlock(Table(columns, rows)), Notes(describe_limits(found))]
    facts = {"metric": found.key.name, "direction": found.key.direction}
    return Document("importance", blocks, facts={**facts, "runs": found.runs, "importance": found.fractions})


def describe_limits(found: Importance) -> list[str]:
    """Describe what limits the meaning of the fractions."""
    notes = []
    if found.without:
        notes.append(f"{render_count(found.without, 'run')} without a finite {found.key.name} left out")
    if found.runs < _FEW_RUNS:
        notes.append(f"only {found.runs} runs: a few more may change this")
    return notes
