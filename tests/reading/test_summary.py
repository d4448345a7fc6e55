"""The summary table, from an index's columns."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from assay.errors import UsageError
from assay.reading.kept_table import KeptTable
from assay.reading.summary import StudySummary, SummaryOptions, build_summary, fit_summary
from assay.record.index.base import IndexTable, MetricColumns, RunRow
from assay.show.table import render_csv, render_json, render_table
from assay.values.state import State
from assay.values.where import parse_where


def metric(name: str, last: Sequence[float], best: Sequence[float] | None = None) -> MetricColumns:
    """A metric to be minimised, or one whose best values are its last."""
    values, least, ones = array("d", last), array("d", best or last), array("d", [1.0] * len(last))
    steps = array("d", [200.0 + 0.5 * (index % 2) for index in range(len(last))])
    return MetricColumns(name, ones, ones, values, steps, least, steps, values, steps, values, ones, ones)


def build_data(count: int, *metrics: MetricColumns, state: State = State.DONE) -> IndexTable:
    params = [{"lr": 0.1 * (index // 2), "seed": index % 2} for index in range(count)]
    rows = [RunRow(f"s/r{n}", "s", f"r{n}", "", state, 1, each) for n, each in enumerate(params)]
    return IndexTable(rows, {each.metric: each for each in metrics})


def names(summary: StudySummary) -> list[str]:
    return [column.name for column in summary.table.columns]


def column(summary: StudySummary, key: str) -> list[Any]:
    return [row[key] for row in json.loads(render_json(summary.table))]


def grouped(data: IndexTable, **more: Any) -> StudySummary:
    return build_summary(data, SummaryOptions(group_by=("seed",), **more))


def test_groups_show_the_best_only_where_it_tells_more() -> None:
    last = [0.4, 0.3, 0.2, 0.1]
    assert names(grouped(build_data(4, metric("loss", last)))) == ["lr", "n", "loss", "± sd"]
    better = grouped(build_data(4, metric("loss", last, [0.4, 0.3, 0.2, 0.05])))
    assert names(better) == ["lr", "n", "loss", "± sd", "best loss", "± sd"]
    assert column(better, "loss_best") == [0.125, 0.35]
    assert "best loss" in names(grouped(build_data(4, metric("loss", last)), best=True))


def test_the_best_of_runs_that_do_not_count_tells_nothing() -> None:
    data = build_data(4, metric("loss", [0.4, 0.3, 0.2, 0.1], [0.0, 0.3, 0.2, 0.1]))
    data.rows[0] = data.rows[0]._replace(state=State.FAILED)
    assert "best loss" not in names(grouped(data))


def test_rows_beyond_the_limit_are_counted() -> None:
    data = build_data(10, metric("loss", [0.1 * index for index in range(10)]))
    summary = build_summary(data, SummaryOptions(limit=4))
    assert (len(summary.table.rows), summary.left_out) == (4, 6)
    assert build_summary(data, SummaryOptions()).left_out == 0
    assert build_summary(data, SummaryOptions(limit=10)).left_out == 0
    assert (len(grouped(data, limit=2).table.rows), grouped(data, limit=2).left_out) == (2, 3)


def test_whole_steps_are_integers_to_machines() -> None:
    found = column(build_summary(build_data(2, metric("loss", [0.1, 0.2])), SummaryOptions()), "step")
    assert found == [200, 200.5]
    assert [type(step) for step in found] == [int, float]


def test_whole_metrics_leave_a_narrow_table_and_are_counted() -> None:
    metrics = [metric(f"validation_loss_{n}", [0.1, 0.2]) for n in range(5)]
    summary = build_summary(build_data(2, *metrics), SummaryOptions())
    fitted = fit_summary(summary, 60)
    shown = [name for name in names(fitted) if name.startswith("val")]
    assert shown == ["validation_loss_0", "validation_loss_1"]
    assert fitted.hidden == 3
    assert max(map(len, render_table(fitted.table, width=60).splitlines())) <= 60
    assert fit_summary(summary, 200).hidden == 0
    narrowest = fit_summary(summary, 10)
    assert (names(narrowest)[-1], narrowest.hidden) == ("validation_loss_0", 4)


def test_metrics_that_were_asked_for_stay() -> None:
    asked = tuple(f"validation_loss_{n}" for n in range(5))
    data = build_data(2, *(metric(name, [0.1, 0.2]) for name in asked))
    fitted = fit_summary(build_summary(data, SummaryOptions(metrics=asked)), 40)
    assert set(asked) <= set(names(fitted))
    assert fitted.hidden == 0


def test_groups_lose_a_metric_with_its_deviation() -> None:
    metrics = [metric(f"validation_loss_{n}", [0.1, 0.2, 0.3, 0.4]) for n in range(3)]
    fitted = fit_summary(grouped(build_data(4, *metrics)), 50)
    assert names(fitted) == ["lr", "n", "validation_loss_0", "± sd"]
    assert fitted.hidden == 2


# ---------------------------------------------------------------- order


def with_params(data: IndexTable, **values: Sequence[Any]) -> IndexTable:
    for name, column in values.items():
        for position, value in enumerate(column):
            data.rows[position].params[name] = value  # type: ignore[index]
    return data


def ordered(data: IndexTable, *sort: str) -> list[str]:
    return [row.name for row in build_summary(data, SummaryOptions(sort=sort)).rows]


@pytest.mark.parametrize(
    ("values", "lowest_first", "highest_first"),
    [
        ([0.2, 0.1, 10, 0.3], "r1 r0 r3 r2", "r2 r3 r0 r1"),
        ([None, ..., math.nan, 0.3], "r3 r0 r1 r2", "r3 r0 r1 r2"),  # missing values come last
        # numbers come before texts, and a number in quotes is one
        (["auto", 1e-3, "1e-4", True, [1, 2], 10**400], "r2 r1 r5 r3 r4 r0", "r5 r1 r2 r0 r4 r3"),
    ],
)
def test_a_parameter_is_sorted_in_either_direction(values: list[Any], lowest_first: str, highest_first: str) -> None:
    data = with_params(build_data(len(values), metric("loss", [0.1] * len(values))), lr=values)
    for row in data.rows:
        if row.params["lr"] is ...:
            del row.params["lr"]  # type: ignore[attr-defined]
    assert ordered(data, "lr") == ordered(data, "lr:min") == lowest_first.split()
    assert ordered(data, "lr:max") == highest_first.split()


def test_several_keys_sort_by_all_of_them_the_first_one_first() -> None:
    loss = metric("loss", [0.3, 0.1, 0.2, 0.1])
    data = with_params(build_data(4, loss), lr=[1, 2, 1, 2], size=["b", "a", "a", "b"])
    assert ordered(data, "lr", "loss") == ["r2", "r0", "r1", "r3"]
    assert ordered(data, "loss", "size:max") == ["r3", "r1", "r2", "r0"]
    assert ordered(data, "lr:max", "size:max", "loss") == ["r3", "r1", "r0", "r2"]


def test_groups_are_sorted_by_parameters_and_metrics() -> None:
    data = build_data(6, metric("loss", [0.1, 0.1, 0.2, 0.2, 0.1, 0.1]))
    assert column(grouped(data, sort=("lr:max",)), "lr") == [0.2, 0.1, 0.0]
    assert column(grouped(data, sort=("loss:max", "lr:max")), "lr") == [0.1, 0.2, 0.0]
    with pytest.raises(UsageError, match="'seed', which is grouped over"):
        grouped(data, sort=("seed",))


def test_a_diverged_metric_has_a_mean_and_a_deviation() -> None:
    summary = grouped(build_data(2, metric("loss", [1e200, 3e200])))
    assert column(summary, "loss") == [2e200]
    assert column(summary, "loss_sd") == pytest.approx([math.sqrt(2) * 1e200])


# ---------------------------------------------------------------- narrow terminals


def test_columns_that_repeat_another_or_are_empty_give_way_first() -> None:
    last = [0.25, 0.125]
    data = build_data(2, metric("validation_loss", last), metric("test_loss", last, [0.2, 0.1]))
    data.metrics["unseen_accuracy"] = metric("unseen_accuracy", last)._replace(count=array("d", [0.0, 0.0]))
    wide = build_summary(data, SummaryOptions(best=True))
    assert {"best validation_loss", "unseen_accuracy", "best unseen_accuracy"} <= set(names(fit_summary(wide, 200)))
    fitted = fit_summary(wide, 60)
    assert names(fitted) == ["run", "seed", "test_loss", "best test_loss", "validation_loss", "step"]
    assert fitted.hidden == 0


def test_the_deviation_of_single_runs_gives_way_first() -> None:
    data = with_params(build_data(2, *(metric(f"validation_loss_{n}", [0.1 + n, 0.2]) for n in range(3))), lr=[1, 2])
    assert names(fit_summary(grouped(data), 54)) == ["lr", "n", *(f"validation_loss_{n}" for n in range(3))]


def test_every_column_of_a_grouped_csv_has_a_name_of_its_own() -> None:
    loss = metric("loss", [0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.05])
    data = build_data(4, loss, metric("acc", [1.0, 2.0, 3.0, 4.0]))
    head = render_csv(grouped(data, sort=("loss",)).table).splitlines()[0]
    assert head == "lr,n,loss,loss_sd,best loss,loss_best_sd,acc,acc_sd"


def test_the_first_metric_that_was_named_decides_the_order() -> None:
    data = build_data(3, metric("acc", [0.3, 0.1, 0.2]), metric("loss", [0.3, 0.1, 0.2]))
    assert column(build_summary(data, SummaryOptions(metrics=("loss",))), "loss") == [0.1, 0.2, 0.3]
    assert column(build_summary(data, SummaryOptions(metrics=("loss",), sort=("loss:max",))), "loss") == [0.3, 0.2, 0.1]


def test_the_path_of_a_checkpoint_leaves_a_narrow_table_first() -> None:
    data = build_data(3, metric("loss", [0.3, 0.1, 0.2]), metric("acc", [0.3, 0.1, 0.2]))
    path = "/somewhere/runs/study/lr=0.1,width=32/checkpoints/last.ckpt"
    data.rows[2] = data.rows[2]._replace(params={**data.rows[2].params, "resume": path})
    wide = build_summary(data, SummaryOptions())
    assert "resume" in names(wide)
    assert names(fit_summary(wide, 40)) == [name for name in names(wide) if name != "resume"]


def test_short_names_are_not_cut_for_what_they_share() -> None:
    data = build_data(3, *(metric(f"metric{index}", [0.3, 0.1, 0.2]) for index in range(5)))
    data.rows[:] = [row._replace(name=f"trial-000{index}") for index, row in enumerate(data.rows)]
    text = render_table(fit_summary(build_summary(data, SummaryOptions()), 60).table, width=60)
    assert "trial-0001" in text


def test_parameters_that_names_show_leave_before_the_second_metric() -> None:
    data = build_data(3, metric("val_loss", [0.3, 0.1, 0.2]), metric("val_acc", [0.3, 0.1, 0.2]))
    for index, row in enumerate(data.rows):
        params = {"lr": 0.001 * (index + 1), "opt": "momentum" if index else "sgd", "weight_decay": 0.1 * index}
        name = ",".join(f"{key}={value}" for key, value in params.items())
        data.rows[index] = row._replace(name=name, key=f"study/{name}", params=params)
    fitted = fit_summary(build_summary(data, SummaryOptions()), 60)
    assert {"run", "val_acc", "val_loss"} <= set(names(fitted))
    assert "weight_decay" in fitted.no_room
    assert max(map(len, render_table(fitted.table, width=60).splitlines())) <= 60


def test_all_metrics_in_a_narrow_terminal_never_wrap() -> None:
    data = build_data(3, *(metric(f"some_metric_{n}", [0.3, 0.1, 0.2], [0.2, 0.05, 0.1]) for n in range(30)))
    for options in (SummaryOptions(metrics=("all",)), SummaryOptions(metrics=("all",), best=True)):
        fitted = fit_summary(build_summary(data, options), 80)
        assert max(map(len, render_table(fitted.table, width=80).splitlines())) <= 80
        assert fitted.hidden == 30 - sum(name.startswith("some_") for name in names(fitted))


def test_every_objective_of_a_search_stays_before_other_metrics() -> None:
    metrics = [metric(name, [0.3, 0.1, 0.2], [0.2, 0.05, 0.1]) for name in ("val_loss", "size", "val_acc", "test_acc")]
    data = build_data(3, *metrics)
    data.rows[:] = [row._replace(name=f"trial-000{index}") for index, row in enumerate(data.rows)]
    fitted = fit_summary(build_summary(data, SummaryOptions(sort=("val_loss:min", "size:min"))), 44)
    assert {"val_loss", "size"} <= set(names(fitted))
    assert fitted.hidden > 0


def test_the_reasons_of_pruned_runs_are_told_below_a_narrow_table() -> None:
    data = build_data(2, metric("val_loss", [0.3, 0.1]), metric("val_acc", [0.3, 0.1]))
    why = "val_acc 0.3 is below the median 0.8 of 5 runs at step 100"
    data.rows[0] = data.rows[0]._replace(state=State.PRUNED, reason=why)
    fitted = fit_summary(build_summary(data, SummaryOptions()), 50)
    assert "reason" not in names(fitted)
    assert any(why in line for line in fitted.remarks)


@pytest.mark.parametrize("where", [None, "seed == 0", "lr < 0.15", "lr > 0.35"])
@pytest.mark.parametrize("odd", [0, 3, 8, 11])
def test_every_page_has_the_columns_of_all_rows_that_are_kept(where: str | None, odd: int) -> None:
    """Also of a table that remembers what it was asked before. One run has what no other has."""
    data = build_data(12, metric("loss", [0.5] * 12, [0.5 - 0.1 * (n == odd) for n in range(12)]))
    params = {**data.rows[odd].params, "extra": "text"}
    data.rows[odd] = data.rows[odd]._replace(state=State.FAILED, tags=("good",), params=params)
    options = SummaryOptions(where=parse_where(where) if where else None, sort=("loss:min",), show=("extra",))
    kept = KeptTable.of(data)
    whole = build_summary(data, options)
    for number in (0, 1, 2, 0):
        page = build_summary(kept, options._replace(limit=4, offset=4 * number, is_page=True))
        shown = [(each.name, each.kind) for each in page.table.columns if each.name != "reason"]
        assert shown == [(each.name, each.kind) for each in whole.table.columns]
