"""A table that is kept gives the same pages as one that is not."""

from __future__ import annotations

from array import array

import pytest

from assay.reading.kept_table import KeptTable, list_param, remember
from assay.reading.summary import SummaryOptions, build_summary
from assay.record.index.base import IndexTable, MetricColumns, RunRow
from assay.values.state import State
from assay.values.where import parse_where


def build_table(rows: int = 60) -> IndexTable:
    """Some runs lack a parameter or a metric, some values are NaN, some parameters are the same everywhere."""
    found = []
    for number in range(rows):
        params: dict[str, object] = {"lr": 0.1 / (1 + number % 7), "opt": ("sgd", "adam")[number % 2], "same": 1}
        if number % 5:
            params["late"] = f"1e-{number % 3}"
        state = State.FAILED if number % 11 == 0 else State.DONE
        found.append(RunRow(f"s/r{number}", "s", f"r{number}", f"{number:012x}", state, 1, params))
    loss = [float(number * 7 % 13) for number in range(rows)]
    loss[4 if rows > 4 else 0] = float("nan")
    count = [float(number % 9 != 0) for number in range(rows)]
    zeros, values = array("d", [0.0] * rows), array("d", loss)
    column = MetricColumns("loss", array("d", count), zeros, *[values] * 7, zeros, zeros)
    whole = column._replace(metric="acc", count=array("d", [1.0] * rows), last=zeros, min=zeros, max=zeros)
    return IndexTable(found, {"acc": whole, "loss": column})


@pytest.mark.parametrize("sort", [(), ("loss",), ("loss:max",), ("lr:max", "loss"), ("opt",), ("late:max",), ("time",)])
@pytest.mark.parametrize(
    "where", ["", "lr < 0.05", "opt == adam and loss >= 3", "not late == 1", "acc == 0 or loss < 2", "opt != sgd"]
)
def test_pages_are_the_same(sort: tuple[str, ...], where: str) -> None:
    table = build_table()
    kept = KeptTable.of(table)
    for states in (None, frozenset([State.DONE])):
        for page in (0, 1):
            options = SummaryOptions(
                sort, where=parse_where(where) if where else None, states=states, limit=9, offset=9 * page
            )
            expected, found = build_summary(table, options), build_summary(kept, options)
            assert repr(found.table) == repr(expected.table)
            assert found._replace(table=expected.table) == expected


def test_of_a_kept_table_each_column_is_made_once() -> None:
    table = build_table()
    kept = KeptTable.of(table)
    assert list_param(kept, "lr") is list_param(kept, "lr")
    assert list_param(table, "lr") is not list_param(table, "lr")
    assert kept == table


def test_what_is_kept_is_limited() -> None:
    kept = KeptTable.of(build_table(2))
    kept.rows.extend(kept.rows * 200_000)  # large: few columns have room
    for number in range(50):
        remember(kept, "asked for each time", lambda: None)
        remember(kept, number, lambda: None)
    assert list(kept._made) == [*range(43, 49), "asked for each time", 49]
