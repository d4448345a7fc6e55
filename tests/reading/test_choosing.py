"""Which runs are meant: `--where` over the columns of an index, and names with patterns."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from assay.errors import NotFoundError, UsageError
from assay.reading.choosing import FIELDS, choose_rows, match_rows, need_rows
from assay.record.index.base import IndexTable, MetricColumns, RunRow
from assay.values.state import State
from assay.values.where import parse_where


def metric(name: str, last: Sequence[float | None]) -> MetricColumns:
    """The least value is 1 less than the last, the greatest 1 more, the mean half of it; None: the run has it not."""
    count = array("d", [0.0 if value is None else 1.0 for value in last])
    values = array("d", [math.nan if value is None else value for value in last])
    less, more, half = (
        array("d", [change(v) for v in values]) for change in (lambda v: v - 1, lambda v: v + 1, lambda v: v / 2)
    )
    return MetricColumns(name, count, count, values, count, less, count, more, count, half, count, count)


def build_table() -> IndexTable:
    params: list[dict[str, Any]] = [
        {"lr": 0.1, "opt": "adam", "acc": 1, "a b": 1},
        {"lr": "1e-4", "opt": "sgd", "acc": 2, "title": "x"},
        {"lr": 1, "opt": None},
        {},
    ]
    states = [State.DONE, State.FAILED, State.RUNNING, State.QUEUED]
    rows = [
        RunRow(f"s/r{i}", "s", f"r{i}", f"abcdef{i}", state, i, each)
        for i, (state, each) in enumerate(zip(states, params, strict=True))
    ]
    rows[0] = rows[0]._replace(tag="good", started_at=100.0, ended_at=7000.0, host="here", exit_code=0)
    rows[1] = rows[1]._replace(
        title="part", started_at=100.0, ended_at=110.0, exit_code=3, reason="exit code 3", parent="s/r0", trial=4
    )
    rows[2] = rows[2]._replace(tags=("new", "good"), note="an odd one")
    metrics = [metric("loss", [0.5, 5.0, math.nan]), metric("acc", [0.9, None, 0.1])]
    return IndexTable(rows, {each.metric: each for each in metrics})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr < 0.5", [0, 1]),
        ("lr == 1e-4", [1]),
        ("opt == adam", [0]),
        ("opt != adam", [1, 2]),
        ("opt == null", [2]),
        ("loss < 3", [0]),
        ("not loss < 3", [1]),
        ("last(loss) == 5", [1]),
        ("best(loss) == 4", [1]),
        ("min(loss) == 4", [1]),
        ("max(loss) == 6", [1]),
        ("mean(loss) == 2.5", [1]),
        ("best(acc) > 1.5", [0]),
        ("metrics.acc < 1", [0, 2]),
        ("params.acc == 2", [1]),
        ("`a b` == 1", [0]),
        ("params.title == x", [1]),
        ("run.title == part", [1]),
        ("state == done", [0]),
        ("state in (failed, queued)", [1, 3]),
        ("state != done", [1, 2, 3]),
        ("name ~ 'r[12]'", [1, 2]),
        ("attempt > 1", [2, 3]),
        ("time > 1h", [0]),
        ("seconds == 10", [1]),
        ("tag == good", [0, 2]),
        ("tags != good", [1, 3]),
        ("tag ~ n*", [2]),
        ("note ~ *odd*", [2]),
        ("note == ''", [0, 1, 3]),
        ("exit_code != 0", [1]),
        ("host == here", [0]),
        ("trial < 5 and parent ~ s/*", [1]),
        ("reason ~ '*code 3'", [1]),
        ("id ~ *2", [2]),
        ("study == s and lr > 0.5", [2]),
    ],
)
def test_every_kind_of_name(text: str, expected: list[int]) -> None:
    assert choose_rows(parse_where(text), build_table()) == expected


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_can_be_tested(name: str) -> None:
    text = f"{name} < 0" if name in ("seconds", "time") else f"run.{name} ~ 'no such text'"
    assert choose_rows(parse_where(text), build_table()) == []


def test_an_unknown_name_comes_with_what_there_is() -> None:
    with pytest.raises(UsageError, match="no parameter, metric or field is named 'los'") as error:
        choose_rows(parse_where("lr < 1 and los < 2"), build_table())
    text = error.value.render()
    assert "did you mean 'loss'" in text
    assert "\n             ^\n" in text
    assert "parameters: lr, opt, acc, a b, title" in text
    assert "metrics: loss, acc" in text
    with pytest.raises(UsageError, match="no metric is named 'lr'"):
        choose_rows(parse_where("best(lr) < 1"), build_table())
    with pytest.raises(UsageError, match="no field is named 'lr'"):
        choose_rows(parse_where("run.lr < 1"), build_table())
    with pytest.raises(UsageError, match=r"write best\(NAME\)"):
        choose_rows(parse_where("best < 1"), build_table())


def test_a_name_that_means_two_things_is_refused() -> None:
    with pytest.raises(UsageError, match=r"acc is a parameter and a metric[\s\S]*write params.acc or metrics.acc"):
        choose_rows(parse_where("acc < 1"), build_table())
    with pytest.raises(UsageError, match=r"title is a parameter and a field[\s\S]*write params.title or run.title"):
        choose_rows(parse_where("title == x"), build_table())


def test_an_empty_selection_comes_with_the_values_there_are() -> None:
    table = build_table()
    with pytest.raises(UsageError, match="none of 4 runs matches") as error:
        need_rows(parse_where("lr > 3 and state == lost and best(loss) < 0 or run.title == y or host == y"), table)
    assert error.value.hint is not None
    assert error.value.hint.split("\n  ") == [
        "lr: 0.1, 1e-4, 1",
        "state: done, failed, running, queued",
        "best(loss): -0.5, 4",
        "title: part",
        "host: here",
    ]
    with pytest.raises(UsageError, match=r"the only run does not match[\s\S]*host: no run has it"):
        need_rows(parse_where("host == here"), table, [1])
    many = IndexTable([row._replace(params={"n": i}) for i, row in enumerate(table.rows * 10)], {})
    with pytest.raises(UsageError, match="n: 0 to 39"):
        need_rows(parse_where("n < 0"), many)
    texts = IndexTable([row._replace(params={"n": f"t{i}"}) for i, row in enumerate(table.rows * 10)], {})
    with pytest.raises(UsageError, match="n: t0, t1, t2, t3, t4, t5 and 34 more"):
        need_rows(parse_where("n == x"), texts)


def test_patterns_of_runs() -> None:
    table = build_table()
    assert match_rows(table, [("s", "*")]) == [0, 1, 2, 3]
    assert match_rows(table, [("s", "r[01]"), ("s", "r1")]) == [0, 1]
    assert match_rows(table, [("s", "abcdef3")]) == [3]
    with pytest.raises(NotFoundError, match="no run named 's/q'"):
        match_rows(table, [("s", "r1"), ("s", "q")])


@pytest.mark.parametrize("text", ["state == finished", "state != runing", "state in (done, runing)", "run.state == 3"])
def test_a_state_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no state is named") as error:
        choose_rows(parse_where(text), build_table())
    assert "did you mean 'running'" in error.value.render() or "known: " in error.value.render()
    assert choose_rows(parse_where("state ~ *ing and not state == `name`"), build_table()) == [2]


def test_a_parameter_called_state_has_values_of_its_own() -> None:
    rows = [row._replace(params={"state": "CA"}) for row in build_table().rows]
    assert choose_rows(parse_where("params.state == CA and run.state == done"), IndexTable(rows, {})) == [0]


def test_values_are_shown_as_they_are_written() -> None:
    rows = [row._replace(params={"amp": i % 2 == 0, "layers": [64, i]}) for i, row in enumerate(build_table().rows)]
    with pytest.raises(UsageError) as error:
        need_rows(parse_where("amp == yes and layers == x"), IndexTable(rows, {}))
    assert error.value.hint == "amp: true, false\n  layers: [64, 0], [64, 1], [64, 2], [64, 3]"


def test_each_name_is_described_once() -> None:
    """Each is a look at every run, and an expression may have hundreds of comparisons."""
    with pytest.raises(UsageError, match="none of 4 runs matches") as error:
        need_rows(parse_where(" or ".join(f"lr < {-n}" for n in range(1, 100))), build_table())
    assert error.value.hint == "lr: 0.1, 1e-4, 1"
