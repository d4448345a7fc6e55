"""What the parameters did, as geometry: where each run is, on which axis, under which mark."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from assay.errors import NotFoundError, UsageError
from assay.plots.param_plots import BUILDERS
from assay.plots.plot_document import build_page
from assay.plots.plotting import Declared, Plot, PlotOptions, PlottedRuns
from assay.reading.ranking import SortKey
from assay.record.index.base import IndexTable, MetricColumns, RunRow
from assay.show.chart import LineChart
from assay.values.state import State

Run = tuple[Mapping[str, Any], float | None] | tuple[Mapping[str, Any], float | None, State]
DONE, FAILED, PRUNED = State.DONE, State.FAILED, State.PRUNED


def select(runs: Sequence[Run], metric: str = "loss") -> PlottedRuns:
    """Runs with their parameters, value (None: without the metric) and state; they ended in this order."""
    rows = [
        RunRow(f"s/r{i}", "s", f"r{i}", "", (*run, DONE)[2], 1, run[0], ended_at=float(i)) for i, run in enumerate(runs)
    ]
    values = array("d", (math.nan if run[1] is None else run[1] for run in runs))
    counts = array("d", (float(run[1] is not None) for run in runs))
    columns = MetricColumns(metric, counts, *(values for _ in MetricColumns._fields[2:]))
    return PlottedRuns(IndexTable(rows, {metric: columns}), range(len(rows)), (), {metric: 1})


def draw(form: str, runs: PlottedRuns | Sequence[Run], **options: Any) -> Plot:
    (plot,) = BUILDERS[form](runs if isinstance(runs, PlottedRuns) else select(runs), PlotOptions(**options))
    return plot


def chart_of(form: str, runs: PlottedRuns | Sequence[Run], **options: Any) -> LineChart:
    return draw(form, runs, **options).chart


def points(line: Any) -> list[tuple[float, float]]:
    return list(zip(line.xs, line.ys, strict=True))


def select_two(runs: Sequence[tuple[float, float, State]]) -> PlottedRuns:
    """Runs with a loss and a time."""
    loss = select([({}, first, state) for first, _, state in runs])
    time = select([({}, second, state) for _, second, state in runs], "time")
    table = IndexTable(loss.data.rows, {**loss.data.metrics, **time.data.metrics})
    return PlottedRuns(table, loss.keep, (), {"loss": 1, "time": 1}, (SortKey("loss", "min"), SortKey("time", "min")))


def test_what_a_search_judges_is_drawn() -> None:
    runs = select([({"p": 1}, 0.1), ({"p": 2}, 0.4)])
    late = runs.data.metrics["loss"]._replace(last=array("d", [0.9, 0.3]))
    table = IndexTable(runs.data.rows, {"loss": late})
    found = PlottedRuns(table, runs.keep, (), {"loss": 2}, (SortKey("loss", "min", at="last"),))
    chart = chart_of("scatter", found, param="p")
    assert (points(chart.lines[0]), chart.y_name) == ([(1.0, 0.9), (2.0, 0.3)], "loss (last of each run)")


LOGS = select([({"lr": 10.0**-n, "opt": opt}, float(n)) for n in range(1, 5) for opt in ("adam", "sgd")])
ONE = [({"p": 1}, 1.0)]


@pytest.mark.needs(search=True)
@pytest.mark.parametrize(
    ("form", "runs", "options", "message"),
    [
        ("pareto", select_two([(1.0, 9.0, DONE)]), {"metrics": ("loss",)}, "needs two metrics, and this is 1"),
        ("scatter", [({"p": i, "q": f"t{i}"}, 1.0) for i in range(20)], {"param": "p", "color": "q"}, "too many for"),
        ("slices", LOGS, {"params": ("lrr",)}, "lrr"),
        *(
            ("scatter", [({"p": each}, 1.0), *ONE], {"param": "p", "log_x": True}, "logarithmic axis")
            for each in (0.0, -1.0, "text")
        ),
        ("history", [({"p": 1}, math.nan), ({"p": 2}, None)], {}, "no run has a finite value of loss"),
        ("slices", ONE, {}, "no parameter differs"),
        ("parallel", [({"p": n}, 2.0, FAILED) for n in range(2)], {}, "no finished run"),
        ("importance", [({"p": 1}, float(i)) for i in range(9)], {}, "the same parameters"),
    ],
)
def test_what_cannot_be_drawn_is_refused(form: str, runs: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((UsageError, NotFoundError), match=message):
        draw(form, runs, **options)


def test_runs_that_none_beats_in_both_metrics() -> None:
    runs = [(1.0, 9.0), (2.0, 5.0), (2.0, 6.0), (3.0, 1.0), (4.0, 4.0)]
    some = select_two([*((*run, DONE) for run in runs), (0.5, 0.5, FAILED)])
    assert [(line.label, line.look, points(line)) for line in chart_of("pareto", some).lines] == [
        ("Pareto set", "dots", [runs[0], runs[1], runs[3]]),
        ("other runs", "dots", [runs[2], runs[4]]),
        ("failed", "crosses", [(0.5, 0.5)]),
    ]
    few = select_two([(1.0, 9.0, DONE), (2.0, 5.0, DONE)])
    best, others = chart_of("pareto", few, metrics=("loss:min", "time:max")).lines
    assert (best.label, list(best.xs), list(others.xs)) == ("Pareto set", [1.0], [2.0])


# ---------------------------------------------------------------- scatter and slices


def test_what_a_search_chooses_on_a_logarithmic_scale_is_drawn_so(monkeypatch: pytest.MonkeyPatch) -> None:
    some = select([({"lr": value, "width": value}, 1.0) for value in (0.01, 0.02, 0.03)])
    monkeypatch.setattr("assay.plots.plotting.load_space", lambda _: {"lr": Declared((0.01, 0.03), True, True)})
    assert [chart_of("scatter", some, param=name).x_scale for name in ("lr", "width")] == ["log", "linear"]
    axes = chart_of("parallel", some, params=("lr", "width")).axes
    assert [axis.name for axis in axes] == ["lr (log)", "width", "loss"]
    assert chart_of("scatter", [({"lr": value}, 1.0) for value in (0.0, 0.02)], param="lr").x_scale == "linear"


def test_axes_show_what_a_search_may_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that were never tried have their place, and are named; a range is drawn as far as it goes."""
    some = select([({"width": w, "opt": o, "lr": r}, 1.0) for w, o, r in ((64, "sgd", 0.2), (512, "adam", 0.3))])
    space = {
        "width": Declared((64, 128, 256, 512)),
        "opt": Declared(("adam", "sgd", "lion")),
        "lr": Declared((0.01, 1.0), is_range=True, is_log=True),
    }
    monkeypatch.setattr("assay.plots.plotting.load_space", lambda _: space)
    plot = draw("slices", some)
    width, opt, lr = plot.chart
    assert width.x_marks == [64.0, 128.0, 256.0, 512.0]
    assert [text for _, text in opt.x_ticks] == ["adam", "lion", "sgd"]
    assert lr.x_bounds == [0.01, 1.0]
    assert plot.notes == ("width: never tried: 128, 256", "opt: never tried: lion")
    (drawn,) = build_page("", "", [replace(plot, chart=lr)]).blocks[-1].blocks[-2:-1]
    assert drawn.x_range[0] < -2.0 < 0.0 < drawn.x_range[1]  # of the logarithm
    upright = draw("parallel", some)
    texts = [[text for _, text in axis.ticks] for axis in upright.chart.axes]
    assert texts[:2] == [["64", "128", "256", "512"], ["adam", "lion", "sgd"]]
    assert (texts[2][0], texts[2][-1]) == ("0.01", "1")
    assert upright.notes == plot.notes


def test_each_run_is_a_point_at_its_parameter() -> None:
    chart = chart_of("scatter", LOGS, param="lr")
    (line,) = chart.lines
    assert (line.look, points(line)) == ("dots", [(10.0**-n, n) for n in (1, 2, 3, 4) for _ in range(2)])
    assert list(line.names) == [f"r{i}" for i in range(8)]
    assert (chart.x_scale, list(chart.x_marks)) == ("log", [0.0001, 0.001, 0.01, 0.1])


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1, 2, 3, 4], "linear"),
        ([16, 32, 64, 128, 256, 512], "log"),
        ([0, 1e-4, 1e-2], "linear"),
        ([-1, 10, 1000], "linear"),
        ([1, 500, 1000], "linear"),
        (["1e-4", "1e-3", "1e-2"], "log"),
        ([5], "linear"),
    ],
)
def test_a_logarithmic_axis_where_the_values_are_spaced_so(values: list[Any], scale: str) -> None:
    assert chart_of("scatter", [({"p": value}, 1.0) for value in values], param="p").x_scale == scale


def test_categories_have_a_column_each_in_their_order() -> None:
    """A parameter that a run does not have is one."""
    chart = chart_of("scatter", [({"p": p}, 1.0) for p in ("b", "a", True, 10, 9, None)], param="p")
    assert [text for _, text in chart.x_ticks] == ["9", "10", "a", "b", "true", "(none)"]
    assert list(chart.lines[0].xs) == [3, 2, 4, 1, 0, 5]
    chart = chart_of("scatter", [*ONE, ({"q": 1}, 2.0)], param="p")
    assert [text for _, text in chart.x_ticks] == ["1", "(none)"]


def test_runs_that_are_not_done_have_a_mark_by_state() -> None:
    runs = [*ONE, ({"p": 2}, 2.0, FAILED), ({"p": 3}, 3.0, PRUNED), ({"p": 4}, None, FAILED)]
    plot = draw("scatter", runs, param="p")
    found = [(line.label, line.look, list(line.xs)) for line in plot.chart.lines]
    assert found == [("done", "dots", [1]), ("failed", "crosses", [2]), ("pruned", "crosses", [3])]
    assert plot.notes == ("1 run without a finite loss: not drawn",)


def test_points_are_coloured_by_another_parameter() -> None:
    """Many numbers become ranges, in shades of one scale."""
    chart = chart_of("scatter", LOGS, param="lr", color="opt")
    assert [(line.label, len(line.xs)) for line in chart.lines] == [("opt=adam", 4), ("opt=sgd", 4)]
    chart = chart_of("scatter", [({"p": i, "q": 10 * i}, 1.0) for i in range(24)], param="p", color="q")
    assert [line.label for line in chart.lines][:2] == ["q=0…30", "q=40…70"]
    assert [line.shade for line in chart.lines] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert sum(len(line.xs) for line in chart.lines) == 24


def test_a_slice_for_each_parameter_that_differs() -> None:
    runs = select([({"a": i, "b": "x" * (i % 2), "same": 1}, float(i)) for i in range(4)])
    assert [chart.x_name for chart in draw("slices", runs).chart] == ["a", "b"]
    assert [chart.x_name for chart in draw("slices", runs, params=("same",)).chart] == ["same"]
    many = select([({f"p{n}": i for n in range(500)}, float(i)) for i in range(3)])
    for form in ("slices", "parallel"):
        assert draw(form, many).notes == ("the first 12 of 500 parameters (choose with --params A,B)",)


# ---------------------------------------------------------------- history


def test_the_best_so_far_is_level_until_a_run_is_better() -> None:
    runs = [({}, 3.0), ({}, 4.0), ({}, 1.0), ({}, 0.5, PRUNED), ({}, 2.0)]
    best, done, pruned = chart_of("history", runs).lines
    assert points(best) == [(1, 3), (3, 3), (3, 1), (5, 1)]
    assert points(done) == [(1, 3), (2, 4), (3, 1), (5, 2)]
    assert (pruned.label, points(pruned)) == ("pruned", [(4, 0.5)])
    assert [line.look for line in chart_of("history", [({}, 3.0, FAILED)]).lines] == ["crosses"]
    best, done = chart_of("history", [({}, 3.0)]).lines
    assert (list(best.ys), list(done.ys)) == ([3, 3], [3])


def test_higher_is_better_where_the_metric_or_the_user_says_so() -> None:
    values = [({"p": 1}, 3.0), ({"p": 2}, 4.0), ({"p": 3}, 1.0)]
    for runs, options in ((select(values, "acc"), {}), (select(values), {"metrics": (SortKey("loss", "max"),)})):
        assert list(chart_of("history", runs, **options).lines[0].ys) == [3, 3, 4, 4]
        chart = chart_of("parallel", runs, **options)
        assert [(line.label, line.shade) for line in chart.lines] == [
            ("r2", 0),
            ("r0", pytest.approx(2 / 3)),
            ("r1", 1),
        ]
        assert chart.shades[1:] == ("1", "4")


def test_without_a_wish_a_plot_is_about_what_the_search_is_about() -> None:
    runs = select([({}, 3.0), ({}, 4.0)])
    table = IndexTable(runs.data.rows, {**runs.data.metrics, "val/acc": runs.data.metrics["loss"]})
    about = PlottedRuns(table, runs.keep, (), {"loss": 1, "val/acc": 1}, (SortKey("loss", "max"),))
    plot = draw("history", about)
    assert (plot.name, plot.notes, list(plot.chart.lines[0].ys)) == ("loss", (), [3, 3, 4, 4])
    other = draw("history", PlottedRuns(table, runs.keep, (), about.counts))
    assert (other.name, other.notes) == ("val/acc", ("val/acc (others: loss; choose with -m)",))


# ---------------------------------------------------------------- importance and parallel coordinates


@pytest.mark.needs(search=True)
def test_a_bar_for_each_parameter_the_most_important_first() -> None:
    pytest.importorskip("optuna")
    bars = draw("importance", [({"noise": i * 7 % 5, "lr": i}, float((i - 10) ** 2)) for i in range(40)]).chart
    assert [name for name, _ in bars.items] == ["lr", "noise"]
    assert sum(value for _, value in bars.items) == pytest.approx(1)
    assert draw("importance", LOGS).notes == ("only 8 runs: a few more may change this",)


def test_a_line_goes_through_each_axis_to_the_value() -> None:
    runs = [({"lr": 0.001, "opt": "a"}, 2.0), ({"lr": 0.1, "opt": "b"}, 1.0), ({"lr": 0.01, "opt": "b"}, 3.0)]
    chart = chart_of("parallel", runs)
    assert [axis.name for axis in chart.axes] == ["lr (log)", "opt", "loss"]
    by_name = {line.label: line for line in chart.lines}
    assert list(by_name["r0"].ys) == pytest.approx([0, 0, 0.5])
    assert list(by_name["r1"].ys) == pytest.approx([1, 1, 0])
    assert list(by_name["r2"].ys) == pytest.approx([0.5, 1, 1])
    assert [axis.ticks for axis in chart.axes][1] == [(0, "a"), (1, "b")]
    assert {name: line.shade for name, line in by_name.items()} == pytest.approx({"r0": 0.5, "r1": 1, "r2": 0})
    assert chart.lines[-1].label == "r1", "the best run is drawn last, over the others"
    assert chart.shades == ("loss", "3", "1")


def test_missing_constant_and_extreme_values_have_a_place() -> None:
    runs = [({"p": 1, "q": 5}, 1.0), ({"q": 5}, 1.0), ({"p": 2, "q": 5}, 1.0), ({"p": 2}, 2.0, FAILED)]
    plot = draw("parallel", runs, params=("p", "q"))
    places = {line.label: list(line.ys) for line in plot.chart.lines}
    assert places["r1"][0] < 0
    assert places["r0"] == [0, 0.5, 0.5]
    assert plot.chart.axes[0].ticks[-1][1] == "(none)"
    assert ("r3" in places, plot.notes) == (False, ("1 run not done: not drawn",))
    chart = chart_of("parallel", [({"p": value}, value) for value in (-1.7e308, 1.7e308, 0.0)])
    assert all(0 <= y <= 1 for line in chart.lines for y in line.ys)
