"""What the parameters did, as geometry: where each run is, on which axis, under which mark."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from assay.errors import NotFoundError, UsageError
from assay.plots import param_plots
from assay.plots.plot_document import build_page
from assay.plots.plotting import Declared, PlotOptions, PlottedRuns
from assay.reading.ranking import SortKey
from assay.record.index.base import IndexTable, MetricColumns, RunRow
from assay.show.chart import LineChart
from assay.values.document import Bars
from assay.values.state import State

Run = tuple[Mapping[str, Any], float | None] | tuple[Mapping[str, Any], float | None, State]


def select(runs: Sequence[Run], metric: str = "loss") -> PlottedRuns:
    """Runs with their parameters, value (None: without the metric) and state; they ended in this order."""
    rows = [
        RunRow(f"s/r{i}", "s", f"r{i}", "", (*run, State.DONE)[2], 1, run[0], ended_at=float(i))  # type: ignore[arg-type]
        for i, run in enumerate(runs)
    ]
    values = array("d", (math.nan if run[1] is None else run[1] for run in runs))
    counts = array("d", (float(run[1] is not None) for run in runs))
    columns = MetricColumns(metric, counts, *(values for _ in MetricColumns._fields[2:]))
    return PlottedRuns(IndexTable(rows, {metric: columns}), range(len(rows)), (), {metric: 1})


def chart_of(plots: Sequence[Any]) -> LineChart:
    (plot,) = plots
    assert isinstance(plot.chart, LineChart)
    return plot.chart


LOGS = select([({"lr": 10.0**-n, "opt": opt}, float(n)) for n in range(1, 5) for opt in ("adam", "sgd")])


def select_two(runs: Sequence[tuple[float, float, State]]) -> PlottedRuns:
    """Runs with a loss and a time."""
    loss = select([({}, first, state) for first, _, state in runs])
    time = select([({}, second, state) for _, second, state in runs], "time")
    table = IndexTable(loss.data.rows, {**loss.data.metrics, **time.data.metrics})
    return PlottedRuns(table, loss.keep, (), {"loss": 1, "time": 1}, (SortKey("loss", "min"), SortKey("time", "min")))


# ---------------------------------------------------------------- two metrics


def test_runs_that_none_beats_in_both_metrics() -> None:
    runs = [(1.0, 9.0), (2.0, 5.0), (2.0, 6.0), (3.0, 1.0), (4.0, 4.0)]
    some = select_two([*((*run, State.DONE) for run in runs), (0.5, 0.5, State.FAILED)])
    chart = chart_of(param_plots.build_pareto(some, PlotOptions()))
    found = {line.label: list(zip(line.xs, line.ys, strict=True)) for line in chart.lines}
    assert found == {
        "Pareto set": [runs[0], runs[1], runs[3]],
        "other runs": [runs[2], runs[4]],
        "failed": [(0.5, 0.5)],
    }
    assert [line.look for line in chart.lines] == ["dots", "dots", "crosses"]


def test_the_better_end_of_each_metric_can_be_chosen() -> None:
    some = select_two([(1.0, 9.0, State.DONE), (2.0, 5.0, State.DONE)])
    chart = chart_of(param_plots.build_pareto(some, PlotOptions(metrics=("loss:min", "time:max"))))
    assert [list(line.xs) for line in chart.lines] == [[1.0], [2.0]]
    assert chart.lines[0].label == "Pareto set"


@pytest.mark.parametrize("metrics", [("loss",), ("loss", "time", "loss2")])
def test_a_pareto_plot_is_of_two_metrics(metrics: tuple[str, ...]) -> None:
    some = select_two([(1.0, 9.0, State.DONE)])
    some.data.metrics["loss2"] = some.data.metrics["loss"]  # type: ignore[index]
    some.counts["loss2"] = 1  # type: ignore[index]
    with pytest.raises(UsageError, match="needs two metrics"):
        param_plots.build_pareto(some, PlotOptions(metrics=metrics))


# ---------------------------------------------------------------- scatter


def test_what_a_search_chooses_on_a_logarithmic_scale_is_drawn_so(monkeypatch: pytest.MonkeyPatch) -> None:
    some = select([({"lr": value, "width": value}, 1.0) for value in (0.01, 0.02, 0.03)])
    monkeypatch.setattr("assay.plots.plotting.load_space", lambda _: {"lr": Declared((0.01, 0.03), True, True)})
    scales = [chart_of(param_plots.build_scatters(some, PlotOptions(param=name))).x_scale for name in ("lr", "width")]
    assert scales == ["log", "linear"]
    axes = chart_of(param_plots.build_parallels(some, PlotOptions(params=("lr", "width")))).axes
    assert [axis.name for axis in axes] == ["lr (log)", "width", "loss"]
    zero = select([({"lr": value}, 1.0) for value in (0.0, 0.02)])
    assert chart_of(param_plots.build_scatters(zero, PlotOptions(param="lr"))).x_scale == "linear"


def test_axes_show_what_a_search_may_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that were never tried have their place, and are named; a range is drawn as far as it goes."""
    some = select([({"width": w, "opt": o, "lr": r}, 1.0) for w, o, r in ((64, "sgd", 0.2), (512, "adam", 0.3))])
    space = {
        "width": Declared((64, 128, 256, 512)),
        "opt": Declared(("adam", "sgd", "lion")),
        "lr": Declared((0.01, 1.0), is_range=True, is_log=True),
    }
    monkeypatch.setattr("assay.plots.plotting.load_space", lambda _: space)
    (plot,) = param_plots.build_slices(some, PlotOptions())
    assert isinstance(plot.chart, tuple)
    width, opt, lr = plot.chart
    assert width.x_marks == [64.0, 128.0, 256.0, 512.0]
    assert [text for _, text in opt.x_ticks] == ["adam", "lion", "sgd"]
    assert lr.x_bounds == [0.01, 1.0]
    assert plot.notes == ("width: never tried: 128, 256", "opt: never tried: lion")
    (drawn,) = build_page("", "", [replace(plot, chart=lr)]).blocks[-1].blocks[-2:-1]  # type: ignore[union-attr]
    assert drawn.x_range[0] < -2.0 < 0.0 < drawn.x_range[1]  # of the logarithm
    (upright,) = param_plots.build_parallels(some, PlotOptions())
    axes = chart_of([upright]).axes
    assert [text for _, text in axes[0].ticks] == ["64", "128", "256", "512"]
    assert [text for _, text in axes[1].ticks] == ["adam", "lion", "sgd"]
    assert [text for _, text in axes[2].ticks][:: len(axes[2].ticks) - 1] == ["0.01", "1"]
    assert upright.notes == plot.notes


@pytest.mark.needs(search=True)
def test_importance_of_a_few_runs_says_so() -> None:
    pytest.importorskip("optuna")
    (plot,) = param_plots.build_importances(LOGS, PlotOptions())
    assert plot.notes == ("only 8 runs: a few more may change this",)


def test_each_run_is_a_point_at_its_parameter() -> None:
    chart = chart_of(param_plots.build_scatters(LOGS, PlotOptions(param="lr")))
    (line,) = chart.lines
    assert (line.look, list(line.ys)) == ("dots", [1, 1, 2, 2, 3, 3, 4, 4])
    assert list(line.xs) == [0.1, 0.1, 0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001]
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
    runs = select([({"p": value}, 1.0) for value in values])
    assert chart_of(param_plots.build_scatters(runs, PlotOptions(param="p"))).x_scale == scale


def test_categories_have_a_column_each_in_their_order() -> None:
    runs = select([({"p": p}, 1.0) for p in ("b", "a", True, 10, 9, None)])
    chart = chart_of(param_plots.build_scatters(runs, PlotOptions(param="p")))
    assert [text for _, text in chart.x_ticks] == ["9", "10", "a", "b", "true", "(none)"]
    assert list(chart.lines[0].xs) == [3, 2, 4, 1, 0, 5]


def test_a_parameter_that_a_run_does_not_have_is_a_column() -> None:
    runs = select([({"p": 1}, 1.0), ({"q": 1}, 2.0)])
    chart = chart_of(param_plots.build_scatters(runs, PlotOptions(param="p")))
    assert [text for _, text in chart.x_ticks] == ["1", "(none)"]


def test_runs_that_are_not_done_have_a_mark_by_state() -> None:
    runs = select(
        [({"p": 1}, 1.0), ({"p": 2}, 2.0, State.FAILED), ({"p": 3}, 3.0, State.PRUNED), ({"p": 4}, None, State.FAILED)]
    )
    (plot,) = param_plots.build_scatters(runs, PlotOptions(param="p"))
    assert isinstance(plot.chart, LineChart)
    found = [(line.label, line.look, list(line.xs)) for line in plot.chart.lines]
    assert found == [("done", "dots", [1]), ("failed", "crosses", [2]), ("pruned", "crosses", [3])]
    assert plot.notes == ("1 run without a finite loss: not drawn",)


def test_points_are_coloured_by_another_parameter() -> None:
    chart = chart_of(param_plots.build_scatters(LOGS, PlotOptions(param="lr", color="opt")))
    assert [(line.label, len(line.xs)) for line in chart.lines] == [("opt=adam", 4), ("opt=sgd", 4)]


def test_many_numbers_become_ranges_in_shades_of_one_scale() -> None:
    runs = select([({"p": i, "q": 10 * i}, 1.0) for i in range(24)])
    chart = chart_of(param_plots.build_scatters(runs, PlotOptions(param="p", color="q")))
    assert [line.label for line in chart.lines][:2] == ["q=0…30", "q=40…70"]
    assert [line.shade for line in chart.lines] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert sum(len(line.xs) for line in chart.lines) == 24


def test_many_texts_are_refused_as_colours() -> None:
    runs = select([({"p": i, "q": f"t{i}"}, 1.0) for i in range(20)])
    with pytest.raises(UsageError, match="too many for colours"):
        param_plots.build_scatters(runs, PlotOptions(param="p", color="q"))


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(NotFoundError, match="lrr"):
        param_plots.build_scatters(LOGS, PlotOptions(param="lrr"))
    with pytest.raises(NotFoundError, match="lrr"):
        param_plots.build_scatters(LOGS, PlotOptions(param="lr", color="lrr"))
    with pytest.raises(NotFoundError, match="lrr"):
        param_plots.build_slices(LOGS, PlotOptions(params=("lrr",)))


@pytest.mark.parametrize("value", [0.0, -1.0, "text"])
def test_a_logarithmic_axis_is_refused_where_it_cannot_be(value: Any) -> None:
    runs = select([({"p": value}, 1.0), ({"p": 1.0}, 1.0)])
    with pytest.raises(UsageError, match="logarithmic axis"):
        param_plots.build_scatters(runs, PlotOptions(param="p", log_x=True))


def test_no_finite_value_is_refused() -> None:
    with pytest.raises(UsageError, match="no run has a finite value of loss"):
        param_plots.build_histories(select([({"p": 1}, math.nan), ({"p": 2}, None)]), PlotOptions())


# ---------------------------------------------------------------- slices


def test_a_slice_for_each_parameter_that_differs() -> None:
    runs = select([({"a": i, "b": "x" * (i % 2), "same": 1}, float(i)) for i in range(4)])
    (plot,) = param_plots.build_slices(runs, PlotOptions())
    assert isinstance(plot.chart, tuple)
    assert [chart.x_name for chart in plot.chart] == ["a", "b"]
    (chosen,) = param_plots.build_slices(runs, PlotOptions(params=("same",)))
    assert isinstance(chosen.chart, tuple)
    assert [chart.x_name for chart in chosen.chart] == ["same"]


def test_of_500_parameters_some_are_shown_and_the_others_counted() -> None:
    runs = select([({f"p{n}": i for n in range(500)}, float(i)) for i in range(3)])
    for build in (param_plots.build_slices, param_plots.build_parallels):
        (plot,) = build(runs, PlotOptions())
        assert plot.notes == ("the first 12 of 500 parameters (choose with --params A,B)",)


def test_no_parameter_differs() -> None:
    with pytest.raises(UsageError, match="no parameter differs"):
        param_plots.build_slices(select([({"p": 1}, 1.0)]), PlotOptions())


# ---------------------------------------------------------------- history


def test_the_best_so_far_is_level_until_a_run_is_better() -> None:
    runs = select([({}, 3.0), ({}, 4.0), ({}, 1.0), ({}, 0.5, State.PRUNED), ({}, 2.0)])
    best, done, pruned = chart_of(param_plots.build_histories(runs, PlotOptions())).lines
    assert list(zip(best.xs, best.ys, strict=True)) == [(1, 3), (3, 3), (3, 1), (5, 1)]
    assert list(zip(done.xs, done.ys, strict=True)) == [(1, 3), (2, 4), (3, 1), (5, 2)]
    assert (pruned.label, list(pruned.xs), list(pruned.ys)) == ("pruned", [4], [0.5])


def test_higher_is_better_where_the_metric_says_so() -> None:
    runs = select([({}, 3.0), ({}, 4.0), ({}, 1.0)], metric="acc")
    best = chart_of(param_plots.build_histories(runs, PlotOptions())).lines[0]
    assert list(best.ys) == [3, 3, 4, 4]


def test_a_direction_can_be_given() -> None:
    runs = select([({"p": 1}, 3.0), ({"p": 2}, 4.0), ({"p": 3}, 1.0)])
    best = chart_of(param_plots.build_histories(runs, PlotOptions(metrics=(SortKey("loss", "max"),)))).lines[0]
    assert list(best.ys) == [3, 3, 4, 4]
    shades = chart_of(param_plots.build_parallels(runs, PlotOptions(metrics=(SortKey("loss", "max"),)))).shades
    assert shades == ("loss", "1", "4")


def test_a_history_of_failures_only_and_of_one_run() -> None:
    failed = select([({}, 3.0, State.FAILED)])
    assert [line.look for line in chart_of(param_plots.build_histories(failed, PlotOptions())).lines] == ["crosses"]
    best, done = chart_of(param_plots.build_histories(select([({}, 3.0)]), PlotOptions())).lines
    assert (list(best.ys), list(done.ys)) == ([3, 3], [3])


def test_without_a_wish_a_plot_is_about_what_the_search_is_about() -> None:
    runs = select([({}, 3.0), ({}, 4.0)])
    table = IndexTable(runs.data.rows, {**runs.data.metrics, "val/acc": runs.data.metrics["loss"]})
    about = PlottedRuns(table, runs.keep, (), {"loss": 1, "val/acc": 1}, (SortKey("loss", "max"),))
    (plot,) = param_plots.build_histories(about, PlotOptions())
    assert (plot.name, plot.notes) == ("loss", ())
    assert list(chart_of([plot]).lines[0].ys) == [3, 3, 4, 4]
    (other,) = param_plots.build_histories(PlottedRuns(table, runs.keep, (), about.counts), PlotOptions())
    assert (other.name, other.notes) == ("val/acc", ("val/acc (others: loss; choose with -m)",))


# ---------------------------------------------------------------- importance


@pytest.mark.needs(search=True)
def test_a_bar_for_each_parameter_the_most_important_first() -> None:
    pytest.importorskip("optuna")
    runs = select([({"noise": i * 7 % 5, "lr": i}, float((i - 10) ** 2)) for i in range(40)])
    (plot,) = param_plots.build_importances(runs, PlotOptions())
    assert isinstance(plot.chart, Bars)
    assert [name for name, _ in plot.chart.items] == ["lr", "noise"]
    assert sum(value for _, value in plot.chart.items) == pytest.approx(1)


@pytest.mark.needs(search=True)
def test_importance_needs_runs_that_differ() -> None:
    pytest.importorskip("optuna")
    with pytest.raises(UsageError, match="the same parameters"):
        param_plots.build_importances(select([({"p": 1}, float(i)) for i in range(9)]), PlotOptions())
    with pytest.raises(UsageError, match="needs 4 finished runs"):
        param_plots.build_importances(select([({"p": 1}, 1.0)]), PlotOptions())


# ---------------------------------------------------------------- parallel coordinates


def test_a_line_goes_through_each_axis_to_the_value() -> None:
    runs = select([({"lr": 0.001, "opt": "a"}, 2.0), ({"lr": 0.1, "opt": "b"}, 1.0), ({"lr": 0.01, "opt": "b"}, 3.0)])
    chart = chart_of(param_plots.build_parallels(runs, PlotOptions()))
    assert [axis.name for axis in chart.axes] == ["lr (log)", "opt", "loss"]
    by_name = {line.label: line for line in chart.lines}
    assert list(by_name["r0"].ys) == pytest.approx([0, 0, 0.5])
    assert list(by_name["r1"].ys) == pytest.approx([1, 1, 0])
    assert list(by_name["r2"].ys) == pytest.approx([0.5, 1, 1])
    assert [axis.ticks for axis in chart.axes][1] == [(0, "a"), (1, "b")]
    assert {name: line.shade for name, line in by_name.items()} == pytest.approx({"r0": 0.5, "r1": 1, "r2": 0})
    assert chart.lines[-1].label == "r1", "the best run is drawn last, over the others"
    assert chart.shades == ("loss", "3", "1")


def test_where_higher_is_better_the_highest_is_the_best_shade() -> None:
    runs = select([({"p": 1}, 1.0), ({"p": 2}, 2.0)], metric="acc")
    chart = chart_of(param_plots.build_parallels(runs, PlotOptions()))
    assert [(line.label, line.shade) for line in chart.lines] == [("r0", 0), ("r1", 1)]
    assert chart.shades == ("acc", "1", "2")


def test_a_missing_parameter_is_below_the_axis_and_constant_values_in_the_middle() -> None:
    runs = select([({"p": 1, "q": 5}, 1.0), ({"q": 5}, 1.0), ({"p": 2, "q": 5}, 1.0)])
    chart = chart_of(param_plots.build_parallels(runs, PlotOptions(params=("p", "q"))))
    places = {line.label: list(line.ys) for line in chart.lines}
    assert places["r1"][0] < 0
    assert places["r0"] == [0, 0.5, 0.5]
    assert chart.axes[0].ticks[-1][1] == "(none)"


def test_runs_that_are_not_done_are_left_out_and_counted() -> None:
    runs = select([({"p": 1}, 1.0), ({"p": 2}, 2.0, State.FAILED)])
    (plot,) = param_plots.build_parallels(runs, PlotOptions())
    assert isinstance(plot.chart, LineChart)
    assert [line.label for line in plot.chart.lines] == ["r0"]
    assert plot.notes == ("1 run not done: not drawn",)
    with pytest.raises(UsageError, match="no finished run"):
        param_plots.build_parallels(select([({"p": n}, 2.0, State.FAILED) for n in range(2)]), PlotOptions())


def test_values_that_overflow_differences_still_have_a_place() -> None:
    runs = select([({"p": -1.7e308}, -1.7e308), ({"p": 1.7e308}, 1.7e308), ({"p": 0.0}, 0.0)])
    chart = chart_of(param_plots.build_parallels(runs, PlotOptions()))
    assert all(0 <= y <= 1 for line in chart.lines for y in line.ys)
