"""Which metric, which lines, under which names."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any

import pytest
from tests.finished_study import Bench

from assay.follow.locations import StudyLocation
from assay.plots import plotting
from assay.plots.plotting import Declared, choose_colors, load_space, resample, separate_colors
from assay.record.index.base import IndexTable, RunRow, Series
from assay.record.search_file import SearchFile, find_search_file, write_search
from assay.show.chart import Line
from assay.values.run import State
from assay.values.study import Objective


def row(name: str, study: str = "s", **params: Any) -> RunRow:
    return RunRow(f"{study}/{name}", study, name, "", State.DONE, 1, params)


def test_the_most_telling_metric_that_makes_a_line() -> None:
    for counts, name in (
        ({"loss": 9, "val_acc": 1}, "loss"),
        ({"loss": 9, "val_acc": 9, "lr": 9}, "val_acc"),
        ({"loss": 1, "val_acc": 1}, "val_acc"),
    ):
        (key,), _ = plotting.choose_metrics(plotting.PlottedRuns(IndexTable([], {}), [], [], counts), ())
        assert key.name == name


def test_labels_are_the_parameters_that_differ_or_names_where_they_do_not() -> None:
    again = row("b", lr=1, epochs=10, resume="/somewhere/runs/s/a/model.ckpt")
    for rows, labels in (
        (
            [row("a", lr=0.1, n=1, flag=True), row("b", lr=0.2, n=1, flag=False)],
            ["lr=0.1 flag=true", "lr=0.2 flag=false"],
        ),
        ([row("a", lr=1), row("b", lr=1)], ["a", "b"]),
        ([row("a", lr=1)], ["a"]),
        ([row("a", lr=1, epochs=4), again], ["epochs=4", "epochs=10"]),
        ([row("a", lr=1), row("b", "t", lr=2)], ["s/lr=1", "t/lr=2"]),
    ):
        assert plotting.build_labels(rows) == labels


def test_a_file_per_metric() -> None:
    assert plotting.build_paths("a/p.png", ["loss"]) == ["a/p.png"]
    assert plotting.build_paths("a/p.png", ["loss", "val/acc"]) == ["a/p-loss.png", "a/p-val_acc.png"]


def test_lines_are_ranked_by_their_best_value() -> None:
    lines = [Line("nan", [1], [math.nan]), Line("b", [1, 2], [3, 2]), Line("a", [1, 2], [1, 9])]
    assert [line.label for line in plotting.rank_lines(lines, "min")] == ["a", "b", "nan"]
    assert [line.label for line in plotting.rank_lines(lines, "max")] == ["a", "b", "nan"]
    assert [line.label for line in plotting.rank_lines(lines[:2], "max")] == ["b", "nan"]


# ---------------------------------------------------------------- colours


def test_a_colour_follows_from_the_name_and_older_runs() -> None:
    names = [f"lr={number}" for number in range(60)]
    chosen = choose_colors(names)
    assert {chosen[name] for name in names[:12]} == set(range(12))
    assert {chosen[name] for name in names[:48]} == set(range(48))
    assert choose_colors(names[:20]) == {name: chosen[name] for name in names[:20]}  # the later ones change nothing
    assert choose_colors(["lr=7"])["lr=7"] == choose_colors(["lr=7", "lr=8"])["lr=7"]


def test_what_is_drawn_together_has_different_colours_while_there_are_some() -> None:
    assert separate_colors({"b": 3, "a": 3, "c": 4}) == {"a": 3, "c": 4, "b": 5}
    assert separate_colors({"a": 1, "b": 2}) == {"a": 1, "b": 2}
    assert set(separate_colors({f"{number}": 5 for number in range(60)}).values()) == set(range(48))


def test_a_run_has_one_colour_in_all_charts(cli: Any, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another is best, and where runs are left out."""
    seen: list[dict[str, int | None]] = []
    real = plotting.build_plots

    def build(*arguments: Any) -> list[plotting.Plot]:
        plots = real(*arguments)
        seen.extend({line.label: line.number for line in plot.chart.lines} for plot in plots)  # type: ignore[union-attr]
        return plots

    monkeypatch.setattr(plotting, "build_plots", build)
    assert cli("plot", "fit", "-m", "loss:min", "-m", "test.acc:max").code == 0
    assert cli("plot", "fit", "-m", "loss:max", "--where", "lr==0.1").code == 0
    loss, acc, some = seen
    assert len(set(loss.values())) == len(loss) == 4
    assert all(loss[label] == number for label, number in acc.items())
    for label, number in some.items():  # shorter there: what all of them share is left out
        assert [each for name, each in loss.items() if "lr=0.1" in name and name.endswith(label)] == [number]


def test_what_a_search_chooses_from(tmp_path: Path) -> None:
    location = StudyLocation(str(tmp_path), "s")
    assert load_space([location]) == {}
    (tmp_path / "s" / ".assay").mkdir(parents=True)
    ranges = {"lr": {"log_uniform": [0.01, 1]}, "n": {"log_int": [1, 9]}, "w": {"int": [1, 2]}}
    space = ({**ranges, "k, m": [[1, "a"], [2, "b"]]},)
    write_search(location.dir, SearchFile("random", (Objective("loss", "min"),), 0, "best", space, {}))
    assert load_space([location]) == {
        "lr": Declared((0.01, 1), is_range=True, is_log=True),
        "n": Declared((1, 9), is_range=True, is_log=True),
        "w": Declared((1, 2), is_range=True),
        "k": Declared((1, 2)),
        "m": Declared(("a", "b")),
    }
    Path(find_search_file(location.dir)).write_text("{")
    assert load_space([location]) == {}


# ---------------------------------------------------------------- the x axis


@pytest.mark.parametrize(
    ("epochs", "at", "expected"),
    [
        (range(8), [0, 1, 2, 3, 4, 6, 8], [0, 0.25, 0.5, 0.75, 1, 1.5, 2]),  # a whole one begins with its first step
        ({10: 0.1, 20: 0.2, 40: 0.8}, [10, 20, 30, 40], [0.1, 0.2, 0.5, 0.8]),  # fractions are as they were recorded
        ({5: 3, 6: 3}, [5, 6, 7], [3, 3, 3]),
        ({}, [1, 2], [math.nan, math.nan]),
    ],
)
def test_epochs_of_steps(epochs: Any, at: list[float], expected: list[float]) -> None:
    pairs = epochs if isinstance(epochs, dict) else {step: step // 4 for step in epochs}
    steps, values = array("d", pairs), array("d", pairs.values())
    assert plotting._find_epochs(Series(steps, values, steps), at) == pytest.approx(expected, nan_ok=True)


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
    assert plotting.choose_time_unit(longest) == unit


def test_runs_without_common_points_are_read_at_the_same_ones() -> None:
    first, second = resample([Line("a", [0.0, 10.0], [0.0, 10.0]), Line("b", [5.0, 10.0], [1.0, 2.0])], 5)
    assert list(first.xs) == list(second.xs) == [0.0, 2.5, 5.0, 7.5, 10.0]
    assert list(first.ys) == [0.0, 2.5, 5.0, 7.5, 10.0]
    assert math.isnan(second.ys[0])
    assert list(second.ys[2:]) == [1.0, 1.5, 2.0]
    assert [list(line.xs) for line in resample([Line("a", [3.0], [1.0])], 5)] == [[3.0]]
