"""Plots of the effect of parameters: a point or a line for each run, instead of a curve.

The value of a run is the best one that its metric reached, as in `assay sum --sort`. An unfinished run with a value is
drawn with a mark of its own; plots that need finished runs leave it out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from assay import plugins
from assay.errors import NotFoundError, UsageError
from assay.plots.plotting import Declared, OptionNames, Plot, PlotOptions, PlottedRuns, choose_metrics, describe_value
from assay.reading.ranking import SortKey, differing_params, find_pareto_runs, parse_number, sort_values
from assay.record.index.base import RunRow
from assay.show.chart import Axis, Line, LineChart, Look, Scale, build_log_ticks, build_ticks
from assay.show.formatting import render_count, render_number
from assay.values.document import Bars
from assay.values.series import Direction
from assay.values.state import State

MOST_PARAMS = 12  # limit of small charts or upright axes
_MOST_COLORS = 8  # more values than this are grouped in ranges
_RANGES = 6
_LOG_RATIO = 30  # least ratio of the largest to the smallest value for a logarithmic scale
_MOST_CATEGORY_TICKS = 20  # limit of labelled categories of one upright axis
_FEW = 6  # up to this many different numbers get a tick each
_MOST_BARS = 30
_MISSING = -0.09  # position of runs without the parameter on an axis
_UNSET = "(none)"
_MOST_UNTRIED = 8  # limit of values that are named in a note
_NOTHING = Declared(())


class DrawnRun(NamedTuple):
    row: RunRow
    label: str
    value: float  # a finite number


Place = Callable[[DrawnRun], float]
_get_value: Place = attrgetter("value")


@dataclass(frozen=True, slots=True)
class DrawnRuns:
    metric: str
    direction: Direction
    y_name: str
    items: Sequence[DrawnRun]
    notes: tuple[str, ...]

    @property
    def done(self) -> list[DrawnRun]:
        return [trial for trial in self.items if trial.row.state is State.DONE]


def load_trials(selection: PlottedRuns, options: PlotOptions) -> list[DrawnRuns]:
    """Return for each metric the runs that have a finite value of it, with a note about the other runs."""
    chosen, notes = choose_metrics(selection, options.metrics, makes_line=False, names=options.names)
    return [_build_trials(selection, key, notes, is_log=options.log) for key in chosen]


def _build_trials(selection: PlottedRuns, key: SortKey, notes: Sequence[str], *, is_log: bool) -> DrawnRuns:
    metric, direction = key.name, key.direction
    column = selection.data.metrics[metric]
    values = key.values(column)
    several = len({row.study for row in selection.rows}) > 1
    items = [
        DrawnRun(row, row.key if several else row.name, values[i])
        for i, row in zip(selection.keep, selection.rows, strict=True)
        if column.count[i] and math.isfinite(values[i])
    ]
    if not items:
        raise UsageError(f"{selection.studies}: no run has a finite value of {metric}")
    without = len(selection.keep) - len(items)
    missing = [f"{render_count(without, 'run')} without a finite {metric}: not drawn"] if without else []
    if is_log and (below := sum(trial.value <= 0 for trial in items)):
        missing.append(f"{render_count(below, 'run')} with a {metric} of zero or below: not on a logarithmic scale")
    word = {"bestmin": "lowest", "bestmax": "highest"}.get(key.at + direction, key.at)
    y_name = metric if selection.counts[metric] == 1 else f"{metric} ({word} of each run)"
    return DrawnRuns(metric, direction, y_name, items, (*notes, *missing))


# ---------------------------------------------------------------- one parameter against the metric


def _plot_scatter(selection: PlottedRuns, trials: DrawnRuns, options: PlotOptions) -> Plot:
    _check_params(selection, [options.param, *([options.color] if options.color else [])])
    notes = (*trials.notes, *_describe_untried(selection, [options.param]))
    return Plot(trials.metric, _build_scatter(selection, trials, options.param, options), notes)


def _build_scatter(selection: PlottedRuns, trials: DrawnRuns, param: str, options: PlotOptions) -> LineChart:
    values, space = [trial.row.params.get(param) for trial in trials.items], selection.get_space(param)
    place = _choose_places(values, options.log_x, options.names, space)
    lines = _color_points(trials, param, place, options)
    return LineChart(
        (*lines, *_mark_unfinished(trials.items, lambda run: place.at(run.row.params.get(param)))),
        title=f"{selection.studies}: {trials.metric} by {param}",
        x_name=param,
        y_name=trials.y_name,
        scale="log" if options.log else "linear",
        x_scale=place.scale,
        x_ticks=place.ticks,
        x_marks=place.marks,
        x_bounds=[] if place.ticks else list(map(_read_number, space.values)),
    )


def _color_points(trials: DrawnRuns, param: str, place: _Places, options: PlotOptions) -> list[Line]:
    """Return a line of points for each value of the parameter `color`, or shades for ranges of many numbers."""
    done, color = trials.done, options.color

    def build(label: str, chosen: Sequence[DrawnRun], shade: float | None = None) -> Line:
        return _draw_points(label, chosen, lambda run: place.at(run.row.params.get(param)), shade=shade)

    if color is None or not done:
        return [build("done", done)] if done else []
    values = [_describe(trial.row.params.get(color)) for trial in done]
    order = sort_values([*dict.fromkeys(values)], [*dict.fromkeys(values)], "min")
    if len(order) <= _MOST_COLORS:
        return [
            build(f"{color}={name}", [trial for trial, value in zip(done, values, strict=True) if value == name])
            for name in order
        ]
    numbers = [_read_number(trial.row.params.get(color)) for trial in done]
    if not all(map(math.isfinite, numbers)):
        message = f"{options.names.color} {color}: its {len(order)} different values are too many for colours"
        raise UsageError(message, f"choose a parameter of numbers, or of at most {_MOST_COLORS} values")
    low, high, scale = min(numbers), max(numbers), _choose_scale(numbers)
    ranges: dict[int, list[int]] = {}
    for index, number in enumerate(numbers):
        ranges.setdefault(min(int(_fraction(number, low, high, scale) * _RANGES), _RANGES - 1), []).append(index)
    lines = []
    for part, members in sorted(ranges.items()):
        ends = dict.fromkeys(render_number(end(numbers[index] for index in members)) for end in (min, max))
        lines.append(build(f"{color}={'…'.join(ends)}", [done[i] for i in members], part / (_RANGES - 1)))
    return lines


def _draw_points(
    label: str,
    runs: Sequence[DrawnRun],
    x: Place,
    y: Place = _get_value,
    look: Look = "dots",
    shade: float | None = None,
) -> Line:
    names = [run.label for run in runs]
    return Line(label, [x(run) for run in runs], [y(run) for run in runs], names=names, look=look, shade=shade)


def _mark_unfinished(runs: Sequence[DrawnRun], x: Place, y: Place = _get_value) -> Iterator[Line]:
    """Yield crosses for the runs that are not done, one set for each state."""
    for state in dict.fromkeys(run.row.state for run in runs if run.row.state is not State.DONE):
        yield _draw_points(str(state), [run for run in runs if run.row.state is state], x, y, "crosses")


def _plot_slices(selection: PlottedRuns, trials: DrawnRuns, options: PlotOptions) -> Plot:
    """Plot a small scatter for each parameter that differs."""
    params, notes = _choose_params(selection, options)
    charts = tuple(_build_scatter(selection, trials, param, options) for param in params)
    notes += _describe_untried(selection, params)
    title = f"{selection.studies}: {trials.metric} by each parameter"
    return Plot(trials.metric, charts, (*trials.notes, *notes), title)


def _check_params(selection: PlottedRuns, names: Sequence[str]) -> None:
    known = dict.fromkeys(name for row in selection.rows for name in row.params)
    for name in names:
        if name not in known:
            raise NotFoundError("parameter", name, known)


def _choose_params(selection: PlottedRuns, options: PlotOptions) -> tuple[list[str], list[str]]:
    """Return the requested parameters, else the first that differ, and a note about parameters that are left out."""
    _check_params(selection, options.params)
    if options.params:
        return list(options.params), []
    found = differing_params([row.params for row in selection.rows])
    if not found:
        hint = f"name parameters with {options.names.params}, or plot curves: leave out --slices or --parallel"
        raise UsageError(f"{selection.studies}: no parameter differs between these runs", hint)
    notes = [f"the first {MOST_PARAMS} of {len(found)} parameters{options.names.choose_params}"]
    return found[:MOST_PARAMS], notes if len(found) > MOST_PARAMS else []


# ---------------------------------------------------------------- two metrics against each other


def build_pareto(selection: PlottedRuns, options: PlotOptions) -> list[Plot]:
    """Plot a point for each run, one metric over another, and the runs that no other run beats in both."""
    found = load_trials(selection, options)
    if len(found) != 2:
        message = f"--pareto needs two metrics, and {'these are' if len(found) > 2 else 'this is'} {len(found)}"
        raise UsageError(message, "name two: -m loss -m time, or loss:min and acc:max")
    across, up = found
    heights = {trial.row.key: trial.value for trial in up.items}
    both = [trial for trial in across.items if trial.row.key in heights]
    done = [trial for trial in both if trial.row.state is State.DONE]
    if not done:
        raise UsageError(f"no finished run has both {across.metric} and {up.metric}")
    keys, _ = choose_metrics(selection, options.metrics, makes_line=False, names=options.names)
    front = {selection.data.rows[i].key for i in find_pareto_runs(selection.data, selection.keep, keys)}
    best = sorted((trial for trial in done if trial.row.key in front), key=lambda trial: trial.value)

    def get_height(run: DrawnRun) -> float:
        return heights[run.row.key]

    others = [trial for trial in done if trial.row.key not in front]
    named = (("Pareto set", best), ("other runs", others))
    points = [_draw_points(label, runs, _get_value, get_height) for label, runs in named if runs]
    chart = LineChart(
        (*points, *_mark_unfinished(both, _get_value, get_height)),
        title=f"{selection.studies}: {up.metric} and {across.metric}, {len(best)} of {len(done)} in the Pareto set",
        x_name=across.y_name,
        y_name=up.y_name,
        scale="log" if options.log else "linear",
        x_scale="log" if options.log_x else "linear",
    )
    return [Plot("pareto", chart, tuple(dict.fromkeys((*across.notes, *up.notes))))]


# ---------------------------------------------------------------- in the order of finishing


def _plot_history(selection: PlottedRuns, trials: DrawnRuns, options: PlotOptions) -> Plot:
    """Plot the value of each run in the order in which the runs finished, and the best value so far."""
    ends = [trial.row.ended_at for trial in trials.items]
    order = sort_values(trials.items, ends, "min")  # runs that have not ended come last
    number = {trial.row.key: float(index + 1) for index, trial in enumerate(order)}
    done = [trial for trial in order if trial.row.state is State.DONE]
    lines = []
    if done:
        lines.append(_build_best_so_far(done, trials.direction, number, len(order)))
        lines.append(_draw_points("done", done, lambda run: number[run.row.key]))
    chart = LineChart(
        (*lines, *_mark_unfinished(trials.items, lambda run: number[run.row.key])),
        title=f"{selection.studies}: {trials.metric} of each run, in the order of finishing",
        x_name="run",
        y_name=trials.y_name,
        scale="log" if options.log else "linear",
    )
    return Plot(trials.metric, chart, trials.notes)


def _build_best_so_far(done: Sequence[DrawnRun], direction: Direction, number: Mapping[str, float], last: int) -> Line:
    """Return a line of the best value so far, which is level until a run is better and vertical there."""
    xs: list[float] = []
    ys: list[float] = []
    names: list[str] = []
    best = done[0]
    for trial in done:
        if trial is best or (trial.value < best.value if direction == "min" else trial.value > best.value):
            corners = [best, trial] if ys else [trial]
            xs += [number[trial.row.key]] * len(corners)
            ys += [each.value for each in corners]
            names += [each.label for each in corners]
            best = trial
    return Line("best so far", [*xs, float(last)], [*ys, best.value], names=[*names, best.label])


# ---------------------------------------------------------------- all parameters at once


def _plot_parallel(selection: PlottedRuns, trials: DrawnRuns, options: PlotOptions) -> Plot:
    """Plot a line for each finished run through its parameters to its value; better runs are darker, and on top."""
    params, notes = _choose_params(selection, options)
    worst_first: Direction = "max" if trials.direction == "min" else "min"
    done = sort_values(trials.done, [trial.value for trial in trials.done], worst_first)
    if not done:
        raise UsageError(f"no finished run has {trials.metric}", "parallel coordinates are drawn of finished runs")
    columns = [[trial.row.params.get(param) for trial in done] for param in params]
    values = [trial.value for trial in done]
    pairs = zip(params, columns, strict=True)
    uprights = [_build_upright(name, each, False, options.names, selection.get_space(name)) for name, each in pairs]
    uprights.append(_build_upright(trials.metric, values, options.log, options.names))
    low, high = min(values), max(values)
    scale: Scale = "log" if options.log and low > 0 else "linear"
    lines = []
    for index, trial in enumerate(done):
        share = _fraction(trial.value, low, high, scale)
        shade = 1 - share if trials.direction == "min" else share
        ys = [found[index] for _, found in uprights]
        shown = [f"{name}={_describe(trial.row.params.get(name))}" for name in params]
        text = "\n".join((trial.label, *shown, f"{trials.metric} {render_number(trial.value)}"))
        lines.append(Line(trial.label, range(len(ys)), ys, names=[text], shade=shade))
    worst, best = (high, low) if trials.direction == "min" else (low, high)
    unfinished = len(trials.items) - len(done)
    left_out = [f"{render_count(unfinished, 'run')} not done: not drawn"] if unfinished else []
    chart = LineChart(
        tuple(lines),
        title=f"{selection.studies}: {trials.metric} by {render_count(len(params), 'parameter')}",
        x_name="",
        axes=[axis for axis, _ in uprights],
        shades=(trials.y_name, render_number(worst), render_number(best)),
    )
    return Plot(trials.metric, chart, (*trials.notes, *notes, *left_out, *_describe_untried(selection, params)))


def _describe_untried(selection: PlottedRuns, params: Sequence[str]) -> Iterator[str]:
    """Yield notes about values that a search may choose and that no run has."""
    for param in params:
        space = selection.get_space(param)
        tried = {_describe(row.params.get(param)) for row in selection.rows}
        names = [name for name in dict.fromkeys(map(_describe, space.values)) if name not in tried]
        if names and not space.is_range:
            more = f" and {len(names) - _MOST_UNTRIED} more" if len(names) > _MOST_UNTRIED else ""
            yield f"{param}: never tried: {', '.join(names[:_MOST_UNTRIED])}{more}"


def _build_upright(
    name: str, values: Sequence[Any], log: bool, names: OptionNames, space: Declared = _NOTHING
) -> tuple[Axis, list[float]]:
    """Return the axis of a parameter or of the metric, and the position of each value on it."""
    place = _choose_places(values, log, names, space, is_upright=True)
    if count := len(place.ticks):
        step = -(-count // _MOST_CATEGORY_TICKS)
        ticks = [(_center(index, count), text) for index, text in place.ticks][::step]
        return Axis(name, ticks), [_center(place.at(value), count) for value in values]
    numbers = [place.at(value) for value in values]
    known = [number for number in numbers if math.isfinite(number)]
    reached = [*known, *map(_read_number, space.values)]
    low, high = min(reached), max(reached)
    marks = place.marks or (build_log_ticks(low, high, 5) if place.scale == "log" else build_ticks(low, high, 5))
    inner = [mark for mark in marks if 0.06 < _fraction(mark, low, high, place.scale) < 0.94]
    shown = [low, *inner, high] if high > low else [low]
    ticks = [(_fraction(float(mark), low, high, place.scale), render_number(float(mark))) for mark in shown]
    if len(known) < len(numbers):
        ticks.append((_MISSING, _UNSET))
    title = f"{name} (log)" if place.scale == "log" else name
    places = [_fraction(each, low, high, place.scale) if math.isfinite(each) else _MISSING for each in numbers]
    return Axis(title, ticks), places


def _center(index: float, count: int) -> float:
    return index / (count - 1) if count > 1 else 0.5


# ---------------------------------------------------------------- importance


def build_importances(selection: PlottedRuns, options: PlotOptions) -> list[Plot]:
    """Plot a bar for each parameter, which shows how much the metric depends on it, as `assay importance` does."""
    measure, describe_limits = map(plugins.find_function, ("importance.measure", "importance.describe_limits"))
    if measure is None:
        raise UsageError("importance needs a plug-in that is not installed", "`assay doctor` lists what is installed")
    chosen, notes = choose_metrics(selection, options.metrics, makes_line=False, names=options.names)
    plots = []
    for key in chosen:
        found = measure(selection.data, selection.keep, key, how_to_choose=options.names.metric)
        items = list(found.fractions.items())
        more = [f"the {_MOST_BARS} most important of {len(items)} parameters"] if len(items) > _MOST_BARS else []
        runs = render_count(found.runs, "finished run")
        bars = Bars(items[:_MOST_BARS], f"{selection.studies}: importance of parameters for {key.name}, of {runs}")
        plots.append(Plot(key.name, bars, (*notes, *more, *describe_limits(found))))
    return plots


Builder = Callable[[PlottedRuns, PlotOptions], list[Plot]]


def _for_each_metric(build: Callable[[PlottedRuns, DrawnRuns, PlotOptions], Plot]) -> Builder:
    return lambda selection, options: [build(selection, trials, options) for trials in load_trials(selection, options)]


build_slices, build_parallels = _for_each_metric(_plot_slices), _for_each_metric(_plot_parallel)
build_histories = _for_each_metric(_plot_history)
BUILDERS: Mapping[str, Builder] = {
    "scatter": _for_each_metric(_plot_scatter),
    "slices": build_slices,
    "parallel": build_parallels,
    "history": build_histories,
    "pareto": build_pareto,
    "importance": build_importances,
}


# ---------------------------------------------------------------- positions on an axis


@dataclass(frozen=True, slots=True)
class _Places:
    """An axis of numbers, or of categories in `ticks`."""

    at: Callable[[Any], float]
    scale: Scale
    ticks: Sequence[tuple[float, str]] = ()
    marks: Sequence[float] = ()  # the numbers that get a tick, if there are few


def _choose_places(
    values: Sequence[Any], log: bool, names: OptionNames, space: Declared, *, is_upright: bool = False
) -> _Places:
    """Return an axis of numbers if all values, also those that a search chooses from, are numbers; otherwise an axis
    with a column for each value, in order. A missing value has its own column, or is NaN if `is_upright`."""
    values = [*values, *space.values]
    numbers = [parse_number(value) for value in values]
    known = [number for number in numbers if number is not None and math.isfinite(number)]
    is_missing = [value is None for value in values]
    if known and len(known) + sum(is_missing) * is_upright == len(values):
        if log and min(known) <= 0:
            raise UsageError("a logarithmic axis cannot show zero and below", f"leave out {names.log} or {names.log_x}")
        few = sorted({float(number) for number in known})
        scale: Scale = "log" if log or (space.is_log and min(known) > 0) else _choose_scale(known)
        return _Places(_read_number, scale, marks=few if len(few) <= _FEW else ())
    if log:
        raise UsageError("a logarithmic axis needs numbers, and these are not all numbers", f"leave out {names.log_x}")
    texts = dict.fromkeys(_describe(value) for value in values)
    texts.pop(_UNSET, None)
    order = sort_values([*texts], [*texts], "min") + [_UNSET] * any(is_missing)
    index = {text: float(number) for number, text in enumerate(order)}
    return _Places(lambda value: index[_describe(value)], "linear", [(number, text) for text, number in index.items()])


def _describe(value: Any) -> str:
    return _UNSET if value is None else describe_value(value)


def _read_number(value: Any) -> float:
    number = parse_number(value)
    return math.nan if number is None else float(number)


def _choose_scale(values: Sequence[float]) -> Scale:
    """Choose a logarithmic scale if the values span decades and their median is nearer to the middle of that scale."""
    known = sorted(set(values))
    low, high = known[0], known[-1]
    if low <= 0 or high < low * _LOG_RATIO:
        return "linear"
    middle = known[len(known) // 2] if len(known) > 2 else math.sqrt(low * high)
    by_log, by_value = _fraction(middle, low, high, "log"), _fraction(middle, low, high, "linear")
    return "log" if abs(by_log - 0.5) < abs(by_value - 0.5) else "linear"


def _fraction(value: float, low: float, high: float, scale: Scale) -> float:
    """Return the position of a value between `low` and `high`, from 0 to 1; 0.5 if `low` and `high` are equal."""
    if scale == "log":
        value, low, high = math.log(value), math.log(low), math.log(high)
    return value / (high - low) - low / (high - low) if high > low else 0.5
