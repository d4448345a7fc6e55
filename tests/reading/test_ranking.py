"""Which run is best: directions, missing values, parameters that tell runs apart."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import NotFoundError, UsageError
from assay.reading.ranking import (
    Front,
    SortKey,
    build_groups,
    choose_sort,
    differing_params,
    find_front,
    find_pareto_groups,
    find_pareto_rows,
    measure_group,
    parse_sort,
    sort_rows,
)
from assay.record.index.base import IndexTable, MetricColumns, RunRow
from assay.values.run import State


def table(**metrics: list[float | None]) -> IndexTable:
    """Rows named 0, 1, …; None: the run has no such metric."""
    count = max(len(values) for values in metrics.values())
    rows = [RunRow(f"s/{i}", "s", str(i), "", State.DONE, 1, {"lr": -i}) for i in range(count)]
    return IndexTable(rows, {name: column(name, values) for name, values in metrics.items()})


def column(name: str, values: list[float | None]) -> MetricColumns:
    numbers = array("d", [math.nan if value is None else value for value in values])
    counts = array("d", [0 if value is None else 1 for value in values])
    fields = dict.fromkeys(MetricColumns._fields, numbers)
    return MetricColumns(**{**fields, "metric": name, "count": counts})


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("acc", ("acc", None)), ("acc:min", ("acc", "min")), ("a:b", ("a:b", None)), ("a:b:max", ("a:b", "max"))],
)
def test_a_name_with_or_without_a_direction(asked: str, expected: tuple[str, str | None]) -> None:
    assert parse_sort(asked, {"acc": 1, "a:b": 1}) == expected


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match="bad direction 'up'"):
        parse_sort("acc:up", {"acc": 1})
    with pytest.raises(NotFoundError, match="no metric or parameter named 'ac'"):
        choose_sort(["ac"], table(acc=[1.0]), [{}])


def test_without_a_wish_the_most_telling_metric_is_taken() -> None:
    assert choose_sort((), table(loss=[1.0], val_acc=[1.0]), [{}]) == (SortKey("val_acc", "max"),)


def test_best_first_and_what_has_no_finite_value_last() -> None:
    data = table(acc=[1.0, None, 3.0, math.inf, 2.0])
    keep = list(range(5))
    assert sort_rows(data, keep, [SortKey("acc", "max")], [{}] * 5) == [2, 4, 0, 1, 3]
    assert sort_rows(data, keep, [SortKey("acc", "min")], [{}] * 5) == [0, 4, 2, 1, 3]


def test_parameters_that_differ_in_order_of_appearance() -> None:
    params = [{"a": 1, "b": [1], "c": 1}, {"a": 2, "b": [1]}, {"a": 1, "b": [1], "d": None}]
    assert differing_params(params) == ["a", "c", "d"]
    assert differing_params(params, ["a"]) == ["c", "d"]


def test_one_and_true_are_two_values_and_two_groups() -> None:
    """Their runs have two ids: a mean over both would be that of no configuration."""
    data = table(loss=[0.2, 0.4, 9.0, 7.0])
    values = [1, 1, True, True]
    data = data._replace(rows=[row._replace(params={"x": values[i], "seed": i % 2}) for i, row in enumerate(data.rows)])
    assert differing_params([{"x": 1}, {"x": True}]) == differing_params([{"x": 1}, {"x": 1.0}]) == ["x"]
    assert [group.runs for group in build_groups(data, range(4), ["seed"])] == [[0, 1], [2, 3]]


def test_a_pruned_run_is_left_out_of_the_mean_of_its_group() -> None:
    data = table(loss=[0.2, 0.4, 9.0])
    rows = [row._replace(params={"seed": i}) for i, row in enumerate(data.rows)]
    rows[2] = rows[2]._replace(state=State.PRUNED)
    data = data._replace(rows=rows)
    (group,) = build_groups(data, range(3), ["seed"])
    assert (group.runs, group.others) == ([0, 1], 1)
    assert measure_group(data.metrics["loss"], group).mean == pytest.approx(0.3)


# ---------------------------------------------------------------- several metrics at once


def beats(left: tuple[float, ...], right: tuple[float, ...]) -> bool:
    return all(a <= b for a, b in zip(left, right, strict=True)) and left != right


POINTS = st.integers(1, 4).flatmap(
    lambda count: st.lists(st.tuples(*[st.sampled_from([0.0, 1.0, 2.0, -1.5])] * count), max_size=12)
)


@given(POINTS)
def test_a_front_is_what_nothing_beats(points: list[tuple[float, ...]]) -> None:
    expected = [i for i, point in enumerate(points) if not any(beats(other, point) for other in points)]
    front = find_front(points)
    assert sorted(front) == expected
    assert [points[i] for i in front] == sorted(points[i] for i in front)


def build_runs(*rows: tuple[float | None, float | None, object]) -> IndexTable:
    """Loss, seconds and size of each run."""
    found = [
        RunRow(f"s/{i}", "s", str(i), "", State.DONE, 1, {"size": size}, started_at=0.0, ended_at=seconds)
        for i, (_, seconds, size) in enumerate(rows)
    ]
    values = array("d", [math.nan if loss is None else loss for loss, _, _ in rows])
    count = array("d", [0.0 if loss is None else 1.0 for loss, _, _ in rows])
    loss = MetricColumns("loss", count, count, values, values, values, values, values, values, values, values, values)
    return IndexTable(found, {"loss": loss})


def find_named(table: IndexTable, *names: str) -> Front:
    params = [row.params for row in table.rows]
    return find_pareto_rows(table, range(len(table.rows)), choose_sort(names, table, params))


def test_metrics_parameters_and_time_are_weighed() -> None:
    table = build_runs((0.1, 9.0, 1), (0.2, 8.0, 2), (0.3, 8.5, 3), (0.2, 8.0, 4), (None, 1.0, 5), (math.inf, 1, 6))
    assert find_named(table, "loss", "time") == Front([0, 1, 3], 4, 2)
    assert find_named(table, "loss", "time", "size:max").items == [0, 3]
    assert find_named(table, "loss:max", "time").items == [2, 1, 3]
    texts = build_runs((0.1, None, "a"), (0.2, 3.0, "1e-4"), (0.3, 2.0, True), (0.4, 1.0, None), (0.5, 1.0, 0))
    assert find_named(texts, "loss", "size") == Front([1, 4], 2, 3)
    assert find_named(texts, "loss", "time").without == 1


def test_a_metric_or_parameter_called_time_comes_first() -> None:
    table = build_runs((0.1, 9.0, 1), (0.2, 8.0, 2))
    (key,) = choose_sort(["time:max"], table, [row.params for row in table.rows])
    assert (key.is_time, key.direction) == (True, "max")
    (key,) = choose_sort(["time"], table, [{"time": 3}, {}])
    assert (key.is_time, key.is_metric) == (False, False)
    table = build_runs((0.1, 9.0, 1), (0.2, None, 2), (0.3, 8.0, 3))
    params = [row.params for row in table.rows]
    assert sort_rows(table, [0, 1, 2], choose_sort(["time"], table, params), params) == [2, 0, 1]


def test_groups_are_weighed_by_their_means() -> None:
    table = build_runs((0.1, 9.0, 1), (0.3, 7.0, 1), (0.2, 9.0, 2), (0.4, 7.0, 2), (0.5, 1.0, 3))
    table.rows[:] = [row._replace(params={**row.params, "seed": i}) for i, row in enumerate(table.rows)]
    groups = build_groups(table, range(5), ["seed"])
    keys = choose_sort(["loss", "time"], table, [row.params for row in table.rows])
    front = find_pareto_groups(table, groups, keys)
    assert [groups[i].params["size"] for i in front.items] == [1, 3]
