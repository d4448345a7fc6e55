"""`assay plot`: draw series of the index as charts."""

from __future__ import annotations

import math
import os
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import le
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from assay.errors import FormatError, NotFoundError, UsageError
from assay.follow.locations import HOW_TO_START, StudyLocation, show_command
from assay.plugins import find_dialect
from assay.reading.ranking import Asked, SortKey, build_groups, differing_params, measure_group, parse_sort, sort_groups
from assay.reading.run_reader import find_step_name, load_fresh_table, load_objectives, load_search_file
from assay.reading.summary import describe_unranked, find_left_out, is_checkpoint, leave_out_foreign, select_rows
from assay.record import run_directory
from assay.record.index.base import IndexTable, RunRow, Series
from assay.record.index.stored import Index
from assay.record.received import is_foreign
from assay.show.chart import COLORS, Line, LineChart, build_bands, has_finite_sum, read_at, smooth
from assay.show.console import Console
from assay.show.formatting import render_count, render_number
from assay.values.document import Bars
from assay.values.series import Direction, direction_of, metric_priority
from assay.values.state import State

if TYPE_CHECKING:
    from assay.values.where import Where

XName = Literal["step", "epoch", "time"]
MOST_LINES = 12  # more lines are unreadable; --best chooses another number
_MOST_MISSING = 3  # limit of notes about means that lack runs
_GRID = 500  # number of points of a group's mean if its runs have no common xs


class OptionNames(NamedTuple):
    """The names of a plot's options in messages: options of the command, or fields of a page's form."""

    metric: str = " with -m"
    color: str = "--color"
    log: str = "--log"
    log_x: str = "--log-x"
    params: str = "--params A,B"
    over: str = "-x"
    draw_over: str = "with -x"
    as_counted: str = "without -x"
    without_group: str = "without -g"
    choose_metric: str = "; choose with -m"
    choose_best: str = " (choose with --best N)"
    choose_params: str = " (choose with --params A,B)"


COMMAND_LINE = OptionNames()


@dataclass(frozen=True, slots=True)
class PlotOptions:
    metrics: tuple[Asked, ...] = ()  # empty: the metric with the highest priority
    group_by: tuple[str, ...] = ()  # runs that differ only in these parameters are drawn as a mean and a band
    log: bool = False
    best: int | None = None
    x: XName | None = None  # None: the unit that the runs count
    smooth: float = 0.0  # the weight of the moving average
    log_x: bool = False
    param: str = ""  # the parameter of a scatter plot
    params: tuple[str, ...] = ()  # for slices and parallel coordinates; empty: parameters that differ
    color: str | None = None
    names: OptionNames = COMMAND_LINE


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot that is ready to be drawn. Several charts are drawn small, next to each other."""

    name: str  # a part of the names of files
    chart: LineChart | Bars | tuple[LineChart, ...]
    notes: tuple[str, ...] = ()  # notes about what was chosen and left out
    title: str = ""  # the title of several charts


@dataclass(frozen=True, slots=True)
class PlottedRuns:
    """The runs to plot, as indexes into the table, and the metrics that they have."""

    data: IndexTable
    keep: Sequence[int]
    locations: Sequence[StudyLocation]
    counts: Mapping[str, int]  # metric → points of the run with the most points
    objectives: tuple[SortKey, ...] = ()  # objectives of the studies' search
    beside: Sequence[RunRow] = ()  # all runs of the studies, if the table lacks some

    @property
    def rows(self) -> list[RunRow]:
        return [self.data.rows[i] for i in self.keep]

    @property
    def studies(self) -> str:
        return ", ".join(dict.fromkeys(row.study for row in self.rows))

    def get_space(self, param: str) -> Declared:
        """Return the values from which a search chooses the parameter; no values if it does not choose it."""
        return load_space(self.locations).get(param, Declared(()))


def load_selection(
    index: Index,
    locations: Sequence[StudyLocation],
    where: Where | None,
    patterns: tuple[tuple[str, str], ...],
    console: Console,
) -> PlottedRuns:
    """Load the runs to plot. `patterns` are pairs of a study and a pattern of its runs; if empty, load all runs."""
    data = load_fresh_table(index, locations, console)
    chosen = select_rows(data, where, patterns) if data.rows else []
    keep = leave_out_foreign(data, chosen) or chosen
    if unranked := find_left_out(data, chosen, keep):
        console.error(describe_unranked(unranked, locations))
    names = ", ".join(location.name for location in locations)
    if not keep:
        raise UsageError(f"{names}: no runs yet", HOW_TO_START)
    selection = build_selection(data, keep, locations)
    if not selection.counts:
        raise UsageError(f"{names}: no metrics in these runs", describe_metrics(locations[0]))
    return selection


def build_selection(data: IndexTable, keep: Sequence[int], locations: Sequence[StudyLocation]) -> PlottedRuns:
    most = {name: int(max((column.count[i] for i in keep), default=0)) for name, column in data.metrics.items()}
    counts = {name: count for name, count in most.items() if count}
    return PlottedRuns(data, keep, locations, counts, load_objectives(locations, data))


def choose_metrics(
    selection: PlottedRuns, asked: Sequence[Asked], *, makes_line: bool = True, names: OptionNames = COMMAND_LINE
) -> tuple[list[SortKey], list[str]]:
    """Return the requested metrics (`loss`, `loss:min`), else the objectives of the search, else the metric with the
    highest priority. Also return a note if this metric was chosen among several."""
    known = sorted(selection.counts)
    least = 2 if makes_line else 1
    asked = asked or [each for each in selection.objectives if selection.counts.get(each.name, 0) >= least]
    if asked:
        keys = [_read_metric(each, selection) for each in asked]
        return list({key.name: key for key in keys}.values()), []
    # the metric with the highest priority that makes a line: a single point per run belongs in a table
    metric = min(known, key=lambda name: (makes_line and selection.counts[name] < 2, metric_priority(name)))
    others = [name for name in known if name != metric]
    more = ", ".join(others[:8]) + (" …" if len(others) > 8 else "")
    notes = [f"{metric} (others: {more}{names.choose_metric})"] if others and names.choose_metric else []
    return [SortKey(metric, direction_of(metric))], notes


def _read_metric(asked: Asked, selection: PlottedRuns) -> SortKey:
    if isinstance(asked, SortKey):
        return asked
    metric, direction = parse_sort(asked, selection.counts)
    if metric not in selection.counts:
        raise NotFoundError("metric", metric, sorted(selection.counts))
    return SortKey(metric, direction or direction_of(metric))


def build_plots(index: Index, selection: PlottedRuns, options: PlotOptions) -> list[Plot]:
    """Build a chart of lines for each metric. A run, or a group, has the same colour in all charts."""
    chosen, notes = choose_metrics(selection, options.metrics, names=options.names)
    plots = [_build(index, selection, key, options, notes) for key in chosen]
    charts = [plot.chart for plot in plots if isinstance(plot.chart, LineChart)]
    numbers = separate_colors({line.label: line.number or 0 for chart in charts for line in chart.lines})
    return [
        replace(plot, chart=replace(chart, lines=tuple(replace(e, number=numbers[e.label]) for e in chart.lines)))
        for plot, chart in zip(plots, charts, strict=True)
    ]


def describe_metrics(location: StudyLocation) -> str:
    """Describe how runs of a study can record metrics, according to the kind of the study's file."""
    record = None
    for run_dir in run_directory.find_run_dirs(location.dir):
        if is_foreign(run_dir):  # a received run may name any file
            continue
        with suppress(FormatError, OSError):  # a damaged file has been reported
            record = run_directory.load_record(run_dir)
            break
    if record is None or not find_dialect(record.dialect).is_ours or not record.source:
        return "the script reports them: assay.log(loss=0.5, step=1), or logx.metric('val', {'loss': 0.5}, epoch=1)"
    again = show_command(["index", "reparse"], location, options=("--file", record.source))
    return f"describe under `metrics:` in {record.source} how the logs show them, then read the logs again: {again}"


def _build(index: Index, selection: PlottedRuns, key: SortKey, options: PlotOptions, notes: Sequence[str]) -> Plot:
    data, keep, metric = selection.data, selection.keep, key.name
    curves, x_name, left_out = _load_curves(index, selection, metric, options)
    notes = [*notes, *left_out]
    if options.smooth:
        curves = {i: replace(line, ys=smooth(line.ys, options.smooth), raw=line.ys) for i, line in curves.items()}
    if options.group_by:
        lines, empty = _build_groups(data, keep, key, options, curves)
        notes += describe_missing(lines, x_name)
        notes += [f"{label}: not drawn, since none of its runs is done and has {metric}" for label in empty]
    else:
        labels = build_labels(selection.rows)
        pairs = [(i, label) for i, label in zip(keep, labels, strict=True) if i in curves]
        colors = _choose_run_colors(selection.beside or data.rows)
        named = [replace(curves[i], label=label, number=colors[data.rows[i].key]) for i, label in pairs]
        lines = rank_lines(named, key.direction)
    shown = lines[: options.best or MOST_LINES]
    if len(shown) < len(lines):
        notes.append(f"the {len(shown)} best of {len(lines)}{options.names.choose_best}")
    if options.log and (count := sum(y <= 0 for line in shown for y in line.raw or line.ys)):
        notes.append(f"{render_count(count, 'value')} of zero or below: not on a logarithmic scale")
    chart = LineChart(
        tuple(shown),
        title=f"{selection.studies}: {metric}",
        x_name=x_name,
        y_name=f"{metric} (smoothed, weight {options.smooth:g})" if options.smooth else metric,
        scale="log" if options.log else "linear",
        x_scale="log" if options.log_x else "linear",
    )
    return Plot(metric, chart, tuple(notes))


def _build_groups(
    data: IndexTable, keep: Sequence[int], key: SortKey, options: PlotOptions, curves: Mapping[int, Line]
) -> tuple[list[Line], list[str]]:
    """Return a line for each group, with order and numbers as in `assay sum -g`, and the labels of empty groups."""
    built = build_groups(data, keep, options.group_by)
    colors = _choose_group_colors(data, options.group_by)
    several = len({group.study for group in built}) > 1
    lines, empty = [], []
    for group in sort_groups(data, built, [key]):
        params = describe_params(group.params) or "all"
        label = f"{group.study}/{params}" if several else params
        value = measure_group(data.metrics[key.name], group)
        members = [curves[i] for i in group.runs if i in curves]
        if not value.n or value.mean is None or not members:
            empty.append(label)
            continue
        if options.x in ("epoch", "time"):  # no two runs have a point at the same x
            members = resample(members, _GRID)
        (band,) = build_bands([(label, members)])
        if options.smooth:
            (before,) = build_bands([(label, [replace(each, ys=each.raw) for each in members])])
            band = replace(band, raw=before.ys)
        lines.append(replace(band, end=(value.mean, value.sd), others=group.others, number=colors[group.runs[0]]))
    if not lines:
        hint = f"{options.names.without_group}, runs that are not done are drawn as well"
        raise UsageError(f"no finished run has {key.name}", hint)
    return lines, empty


def _choose_run_colors(rows: Sequence[RunRow]) -> dict[str, int]:
    """Return key -> colour of each run, chosen among all runs of its study, so that a selection does not change it."""
    studies: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: (row.created_at or 0.0, row.key)):
        studies.setdefault(row.study, []).append(row.folder)
    colors = {study: choose_colors(names) for study, names in studies.items()}
    return {row.key: colors[row.study][row.folder] for row in rows}


def _choose_group_colors(data: IndexTable, group_by: Sequence[str]) -> dict[int, int]:
    """Return the colour of each run's group, chosen among all groups of the study."""
    groups = build_groups(data, range(len(data.rows)), group_by, counted=frozenset(State))
    first = {_sort_by_age(data, group.runs)[0]: group for group in groups}
    names = {i: describe_params(first[i].params) for i in _sort_by_age(data, list(first))}
    colors = choose_colors(names.values())
    return {run: colors[names[i]] for i, group in first.items() for run in group.runs}


def _sort_by_age(data: IndexTable, runs: Sequence[int]) -> list[int]:
    return sorted(runs, key=lambda i: (data.rows[i].created_at or 0.0, data.rows[i].key))


def describe_missing(lines: Sequence[Line], x_name: str) -> list[str]:
    """Describe what the means leave out: unfinished runs, and points at which runs have no finite value."""
    notes = []
    for line in lines:
        told = [f"without {render_count(line.others, 'run')} not done"] if line.others else []
        fewer = [at for at, count in enumerate(line.counts) if count < line.members]
        if fewer and fewer == list(range(fewer[0], len(line.xs))):
            count = min(line.counts[fewer[0] :])
            told.append(f"from {x_name} {render_number(line.xs[fewer[0]])} on of {count} of its {line.members} runs")
        elif fewer:
            told.append(f"at {len(fewer):,} of {len(line.xs):,} points of fewer than its {line.members} runs")
        notes += [f"{line.label}: mean {', '.join(told)}"] if told else []
    more = len(notes) - _MOST_MISSING
    return [*notes[:_MOST_MISSING], *([f"{render_count(more, 'more mean')} of fewer runs"] if more > 0 else [])]


# ---------------------------------------------------------------- the x axis


def _load_curves(
    index: Index, selection: PlottedRuns, metric: str, options: PlotOptions
) -> tuple[dict[int, Line], str, list[str]]:
    """Return the line of each run by rising x, the meaning of x, and notes about runs that are left out."""
    rows, column = selection.data.rows, selection.data.metrics[metric]
    x, names = options.x, options.names
    series = {i: index.load_series(rows[i].key, metric) for i in selection.keep if column.count[i]}
    unit = find_step_name(selection.locations, selection.rows, metric)
    xs: dict[int, Sequence[float]]
    if x == "time":
        starts = {i: find_start(selection.data, i) for i in series}
        xs = {i: [time - starts[i] for time in each.times] for i, each in series.items()}
        hint = f"metrics of assay.log have them; {names.over} step works without"
    elif x == "epoch" and unit != "epoch":
        xs = {i: _find_epochs(index.load_series(rows[i].key, "epoch"), each.steps) for i, each in series.items()}
        hint = f"log them with the steps: assay.log({metric.rpartition('/')[2]}=0.5, step=100, epoch=1)"
    elif x == "step" and unit == "epoch":
        hint = f"draw it {names.draw_over} epoch"
        raise UsageError(f"{metric} is counted by epoch in these runs, not by step", hint)
    else:
        xs, hint = {i: each.steps for i, each in series.items()}, f"{names.as_counted}, points are counted"
    rising = {i for i, each in xs.items() if _is_rising(each)}
    whole = {i for i in xs if i in rising or (xs[i] and all(map(math.isfinite, xs[i])))}
    if x is None and len(whole) < len(xs):
        counted = {i: Line(rows[i].key, range(1, len(each.values) + 1), each.values) for i, each in series.items()}
        return counted, "point", []
    if not whole:
        raise UsageError(f"{metric} has no {x}s in these runs", hint)
    lines = {i: Line(rows[i].key, xs[i], series[i].values) for i in xs if i in whole}
    lines |= {i: _sort_line(lines[i]) for i in whole - rising}
    left_out = []
    if missing := [rows[i].name for i in xs if i not in whole]:
        more = " …" if len(missing) > 3 else ""
        left_out.append(f"{', '.join(missing[:3])}{more}: not drawn, since there are no {x}s")
    if x != "time":
        return lines, x or unit, left_out
    seconds, name = choose_time_unit(max(line.xs[-1] for line in lines.values()))
    scaled = {i: replace(line, xs=[each / seconds for each in line.xs]) for i, line in lines.items()}
    return scaled, f"time since the start of the run ({name})", left_out


def _is_rising(xs: Sequence[float]) -> bool:
    """Whether the numbers are finite and never fall; a comparison with a NaN between them is false."""
    return bool(xs) and math.isfinite(xs[0]) and math.isfinite(xs[-1]) and all(map(le, xs, islice(xs, 1, None)))


def _sort_line(line: Line) -> Line:
    order = sorted(range(len(line.xs)), key=line.xs.__getitem__)
    return Line(line.label, [line.xs[i] for i in order], [line.ys[i] for i in order])


def find_start(data: IndexTable, i: int) -> float:
    """Return the earliest known time of a run: its start, or its first point. NaN if no time is known."""
    times = [column.first_time[i] for column in data.metrics.values() if column.count[i]]
    known = [time for time in (*times, data.rows[i].started_at) if time is not None and math.isfinite(time)]
    return min(known, default=math.nan)


def choose_time_unit(longest: float) -> tuple[float, str]:
    units = (60.0, "min"), (3600.0, "h"), (86400.0, "days")
    return next((unit for unit in reversed(units) if longest >= 2 * unit[0]), (1.0, "s"))


def _find_epochs(epochs: Series, steps: Sequence[float]) -> list[float]:
    """Return the epoch at each step, interpolated between the epochs that the run recorded. An epoch that was recorded
    for several steps began at the first of these. The result is NaN if the run recorded no epochs."""
    pairs = sorted((step, epoch) for step, epoch in zip(epochs.steps, epochs.values, strict=True) if step == step)  # noqa: PLR0124
    firsts = [next(group) for _, group in groupby(pairs, key=lambda pair: pair[1])]
    if not firsts:
        return [math.nan] * len(steps)
    known = [step for step, _ in firsts]
    found = []
    for step in steps:
        after = min(max(bisect_right(known, step), 1), max(len(firsts) - 1, 1))
        (step_a, epoch_a), (step_b, epoch_b) = firsts[after - 1], firsts[min(after, len(firsts) - 1)]
        rate = (epoch_b - epoch_a) / (step_b - step_a) if step_b > step_a else 0.0
        found.append(epoch_a + (step - step_a) * rate)
    return found


# ---------------------------------------------------------------- names and order


def build_labels(rows: Sequence[RunRow]) -> list[str]:
    """Return different labels: the differing parameters, without paths of checkpoints if possible; else names."""
    several = len({row.study for row in rows}) > 1
    telling = differing_params([row.params for row in rows])
    plain = [name for name in telling if not is_checkpoint([row.params.get(name) for row in rows])]
    labels = [row.name for row in rows]
    for names in (plain, telling):
        told = [describe_params({name: row.params[name] for name in names if name in row.params}) for row in rows]
        if len(set(told)) == len(rows) and all(told):
            labels = told
            break
    return [f"{row.study}/{label}" if several else label for row, label in zip(rows, labels, strict=True)]


def describe_params(params: Mapping[str, object]) -> str:
    return " ".join(f"{name}={describe_value(value)}" for name, value in params.items())


def describe_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def rank_lines(lines: Sequence[Line], direction: Direction) -> list[Line]:
    """Sort lines by the best value of each, best first; lines without a finite value are last."""

    def find_best(line: Line) -> float:
        ys = line.raw or line.ys
        finite = ys if has_finite_sum(ys) else [y for y in ys if math.isfinite(y)]
        return min(finite, default=math.inf) if direction == "min" else -max(finite, default=-math.inf)

    return sorted(lines, key=find_best) if len(lines) > 1 else list(lines)


def build_paths(path: str, metrics: Sequence[str]) -> list[str]:
    """Return the path of one file per metric. With several metrics, each file name contains its metric."""
    stem, suffix = os.path.splitext(path)
    return [path] if len(metrics) == 1 else [f"{stem}-{each.replace('/', '_')}{suffix}" for each in metrics]


_LOOKS = COLORS * 4  # number of combinations of colours and dashes


def choose_colors(names: Iterable[str]) -> dict[str, int]:
    """Return the number of a colour, and of dashes, for each run of a study. `names` has the oldest run first.

    The checksum of its name gives the colour of a run. If an older run has this colour, the next free colour is taken:
    first without, then with dashes. If no colour is free, the run shares one. So a run has the same colour in every
    view and for every user, whatever is drawn next to it, and a new run does not change the colours of other runs.
    """
    chosen: dict[str, int] = {}
    taken: set[int] = set()
    for name in dict.fromkeys(names):
        chosen[name] = _find_free(zlib.crc32(name.encode("utf-8", "surrogatepass")), taken)
        taken.add(chosen[name])
    return chosen


def separate_colors(chosen: Mapping[str, int]) -> dict[str, int]:
    """Return colours for curves that are drawn together; dashes only if there are more curves than colours.

    If two curves have the same colour, the first by name keeps it, and the other one gets the next free colour.
    """
    looks = COLORS if len(chosen) <= COLORS else _LOOKS
    found: dict[str, int] = {}
    for name in sorted(chosen):
        if chosen[name] % looks not in found.values():
            found[name] = chosen[name] % looks
    for name in sorted(chosen.keys() - found.keys()):
        found[name] = _find_free(chosen[name], set(found.values()))
    return found


def _find_free(wanted: int, taken: set[int]) -> int:
    order = (dash + (wanted + step) % COLORS for dash in range(0, _LOOKS, COLORS) for step in range(COLORS))
    return wanted % _LOOKS if len(taken) == _LOOKS else next(number for number in order if number not in taken)


def resample(lines: Sequence[Line], count: int) -> list[Line]:
    """Return all lines at common xs, evenly spaced from the first to the last x; NaN outside of a line's own range."""
    low, high = min(line.xs[0] for line in lines), max(line.xs[-1] for line in lines)
    xs = [low + (high - low) * part / (count - 1) for part in range(count)] if high > low else [low]

    def read(line: Line, ys: Sequence[float]) -> Sequence[float]:
        return read_at(dict(zip(line.xs, ys, strict=True)), xs) if ys else ()

    return [replace(line, xs=xs, ys=read(line, line.ys), raw=read(line, line.raw)) for line in lines]


class Declared(NamedTuple):
    """The values from which a search chooses a parameter: `values`, or the numbers between them if `is_range`."""

    values: tuple[Any, ...]
    is_range: bool = False
    is_log: bool = False


def load_space(locations: Sequence[StudyLocation]) -> dict[str, Declared]:
    """Return the values that the searches of these studies choose parameters from."""
    found: dict[str, Declared] = {}
    searches = filter(None, map(load_search_file, locations))
    for name, (values, is_range, is_log) in (p for each in searches for sweep in each.space for p in _read_axes(sweep)):
        before = found.get(name, Declared((), is_range=True))
        joined = (*before.values, *values)
        found[name] = Declared(joined, before.is_range and is_range, before.is_log or is_log)
    return found


def _read_axes(sweep: Mapping[str, Any]) -> Iterator[tuple[str, Declared]]:
    for key, values in sweep.items():
        if isinstance(values, dict) and len(values) == 1:
            ((kind, bounds),) = values.items()
            if isinstance(bounds, list):
                yield key, Declared(tuple(bounds), is_range=True, is_log=str(kind).startswith("log_"))
        elif isinstance(values, list):
            names = key.split(", ") if values and isinstance(values[0], list) else [key]
            rows = [row if isinstance(row, list) and len(names) > 1 else [row] for row in values]
            yield from ((name, Declared(tuple(column))) for name, column in zip(names, zip(*rows), strict=False))  # noqa: B905
