"""Which metric, which lines, under which names."""

from __future__ import annotations

import math
from array import array
from typing import Any

import pytest

from assay.record.index.base import RunRow, Series
from assay.show.chart import Line
from assay.study import plotting
from assay.values.run import State


def row(name: str, study: str = "s", **params: Any) -> RunRow:
    return RunRow(f"{study}/{name}", study, name, "", State.DONE, 1, params)


def test_the_most_telling_metric_that_makes_a_line() -> None:
    assert plotting.choose_metric({"loss": 9, "val_acc": 1}) == "loss"
    assert plotting.choose_metric({"loss": 9, "val_acc": 9, "lr": 9}) == "val_acc"
    assert plotting.choose_metric({"loss": 1, "val_acc": 1}) == "val_acc"


def test_labels_are_the_parameters_that_differ() -> None:
    rows = [row("a", lr=0.1, n=1, flag=True), row("b", lr=0.2, n=1, flag=False)]
    assert plotting.build_labels(rows) == ["lr=0.1 flag=true", "lr=0.2 flag=false"]


def test_names_where_parameters_do_not_tell() -> None:
    assert plotting.build_labels([row("a", lr=1), row("b", lr=1)]) == ["a", "b"]
    assert plotting.build_labels([row("a", lr=1)]) == ["a"]
    again = row("b", lr=1, epochs=10, resume="/somewhere/runs/s/a/model.ckpt")
    assert plotting.build_labels([row("a", lr=1, epochs=4), again]) == ["epochs=4", "epochs=10"]
    assert plotting.build_labels([row("a", lr=1), row("b", "t", lr=2)]) == ["s/lr=1", "t/lr=2"]


def test_lines_are_ranked_by_their_best_value() -> None:
    lines = [Line("nan", [1], [math.nan]), Line("b", [1, 2], [3, 2]), Line("a", [1, 2], [1, 9])]
    assert [line.label for line in plotting.rank_lines(lines, "min")] == ["a", "b", "nan"]
    assert [line.label for line in plotting.rank_lines(lines, "max")] == ["a", "b", "nan"]
    assert [line.label for line in plotting.rank_lines(lines[:2], "max")] == ["b", "nan"]


def test_a_file_per_metric() -> None:
    assert plotting.build_paths("a/p.png", ["loss"]) == ["a/p.png"]
    assert plotting.build_paths("a/p.png", ["loss", "val/acc"]) == ["a/p-loss.png", "a/p-val_acc.png"]


# ---------------------------------------------------------------- the x axis


def series(steps: list[float], values: list[float]) -> Series:
    return Series(array("d", steps), array("d", values), array("d", steps))


def test_a_whole_epoch_begins_with_its_first_step() -> None:
    epochs = series([0, 1, 2, 3, 4, 5, 6, 7], [0, 0, 0, 0, 1, 1, 1, 1])
    assert plotting._find_epochs(epochs, [0, 1, 2, 3, 4, 6, 8]) == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1.5, 2])


def test_fractions_of_epochs_are_as_they_were_recorded() -> None:
    epochs = series([10, 20, 40], [0.1, 0.2, 0.8])
    assert plotting._find_epochs(epochs, [10, 20, 30, 40]) == pytest.approx([0.1, 0.2, 0.5, 0.8])


def test_one_epoch_and_none() -> None:
    assert plotting._find_epochs(series([5, 6], [3, 3]), [5, 6, 7]) == [3, 3, 3]
    assert all(map(math.isnan, plotting._find_epochs(series([], []), [1, 2])))


@pytest.mark.parametrize(
    ("longest", "unit"),
    [
        (0.5, (1, "s")),
        (119, (1, "s")),
        (120, (60, "min")),
        (7199, (60, "min")),
        (7200, (3600, "h")),
        (2e5, (86400, "days")),
    ],
)
def test_times_have_a_unit_that_can_be_read(longest: float, unit: tuple[float, str]) -> None:
    assert plotting._choose_time_unit(longest) == unit
