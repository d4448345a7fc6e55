"""Which metric, which lines, under which names."""

from __future__ import annotations

import math
from typing import Any

from assay.record.index.base import RunRow
from assay.show.plot import Line
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
    assert plotting.build_labels([row("a", lr=1), row("b", "t", lr=2)]) == ["s/lr=1", "t/lr=2"]


def test_lines_are_ranked_by_their_best_value() -> None:
    lines = [Line("nan", [1], [math.nan]), Line("b", [1, 2], [3, 2]), Line("a", [1, 2], [1, 9])]
    assert [line.label for line in plotting.rank_lines(lines, "min")] == ["a", "b", "nan"]
    assert [line.label for line in plotting.rank_lines(lines, "max")] == ["a", "b", "nan"]
    assert [line.label for line in plotting.rank_lines(lines[:2], "max")] == ["b", "nan"]


def test_a_file_per_metric() -> None:
    assert plotting.build_paths("a/p.png", ["loss"]) == ["a/p.png"]
    assert plotting.build_paths("a/p.png", ["loss", "val/acc"]) == ["a/p-loss.png", "a/p-val_acc.png"]
