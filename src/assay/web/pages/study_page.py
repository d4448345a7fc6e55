"""The content of a study's page: rows of its table, curves, plots of its parameters. `study.py` renders it as HTML."""

from __future__ import annotations

import math
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeVar

from assay.errors import UsageError
from assay.plots import api as plotting
from assay.reading import ranking
from assay.reading.choosing import FIELDS
from assay.reading.ranking import Asked, SortKey
from assay.reading.run_reader import find_step_name, load_objectives
from assay.reading.summary import StudySummary, build_summary, leave_out_foreign, select_rows
from assay.record.index.base import IndexTable, RunRow
from assay.record.index.stored import Index
from assay.show.chart import Line, LineChart, build_band_edges, build_shown, has_finite_sum, thin_line
from assay.show.formatting import to_json
from assay.show.progress import estimate_eta
from assay.values.document import Block, Text
from assay.values.series import direction_of, metric_priority
from assay.values.state import State
from assay.values.table import Column, Table
from assay.web.pages.page_view import COUNTERS, StudyView
from assay.web.snapshots import StudySnapshot

T = TypeVar("T")
_MOST_POINTS = 1500  # points of one curve that are sent: more than a screen has columns of pixels
_MOST_SENT = 30_000  # points of all curves of a chart; but each may have a third of `_MOST_POINTS`
_MOST_CHARTS = 6  # metrics with charts next to each other
_LONG_NUMBER = 11  # numbers with more characters than this are shortened
_MOST_SPARK = 60  # points in the small curve on a card
MOST_DRAWN = {"scatter": 3000, "slices": 600, "parallel": 600, "history": 3000, "importance": 1500}
"""Runs in one drawing: with more, a third of them are the best, the rest are chosen evenly from the others, and a note
reports it. For the importance of parameters all are chosen evenly."""


class StudyNames(NamedTuple):
    """Names that a reader can choose. `differing`: parameters with several values; `empty`: metrics without values."""

    metrics: Sequence[str]
    params: Sequence[str]
    differing: Sequence[str]
    empty: Sequence[str]
    step: str


class StudyBest(NamedTuple):
    """The best run of a study. `history`: the best value after each run, in the order in which they finished."""

    run: str
    metric: str
    value: float
    history: Sequence[float] = ()


class Pace(NamedTuple):
    """How fast the runs of a study finish: runs per hour, and seconds until the last run ends; None if unknown."""

    per_hour: float | None
    left_s: float | None


def _cached(make: Callable[[StudySnapshot], T]) -> Callable[[StudySnapshot], T]:
    """Make a function keep its result in the snapshot of the study, so that it is computed once for each snapshot."""

    @wraps(make)
    def get(study: StudySnapshot) -> T:
        return study.remember(make.__name__, lambda: make(study))

    return get


@_cached
def find_names(study: StudySnapshot) -> StudyNames:
    table = study.table
    params = [row.params for row in table.rows]
    every = list(dict.fromkeys(name for each in params for name in each))
    differing = ranking.differing_params(params) if params else []
    empty = [name for name, column in table.metrics.items() if not any(column.count)]
    return StudyNames(list(table.metrics), every, differing, empty, find_step_name([study.location], table.rows))


@_cached
def find_best(study: StudySnapshot) -> StudyBest | None:
    """Return the best finished run by the objective of the study's search, else by its most informative metric."""
    table = study.table
    done = [i for i, row in enumerate(table.rows) if row.state in (State.DONE, State.PRUNED)]
    done = leave_out_foreign(table, done) or done
    keys = ranking.choose_sort(_load_objectives(study), table, [row.params for row in table.rows])
    if not done or not keys or not keys[0].is_metric:
        return None
    column = table.metrics[keys[0].name]
    values = keys[0].values(column)
    found = [i for i in done if column.count[i] and math.isfinite(values[i])]
    if not found:
        return None
    choose = max if keys[0].direction == "max" else min
    i = choose(found, key=values.__getitem__)
    found.sort(key=lambda i: table.rows[i].ended_at or math.inf)
    history = list(accumulate((values[each] for each in found), choose))
    thinned = history[:: -(-len(history) // _MOST_SPARK)]
    return StudyBest(table.rows[i].folder, keys[0].name, values[i], [*thinned, history[-1]])


@_cached
def count_not_finite(study: StudySnapshot) -> int:
    """Return the number of runs whose last value of some metric is NaN or infinite."""
    columns = [column for column in study.table.metrics.values() if any(column.bad)]
    pairs = ((i, last) for column in columns for i, last in enumerate(column.last) if column.bad[i])
    return len({i for i, last in pairs if not math.isfinite(last)})


def measure_pace(study: StudySnapshot) -> Pace | None:
    """Return how fast the runs of the study finish, or None if no run is running."""
    if not study.counts[State.RUNNING]:
        return None
    now, rows = time.time(), study.table.rows
    running = [row.elapsed_s(now) or 0.0 for row in rows if row.state is State.RUNNING]
    took = [row.took_s for row in rows if row.state is State.DONE and row.took_s]
    mean, queued = sum(took) / len(took) if took else 0.0, study.counts[State.QUEUED]
    return Pace(3600 * len(running) / mean if mean else None, estimate_eta(took, running, queued, len(running)))


def _load_objectives(study: StudySnapshot) -> tuple[SortKey, ...]:
    return load_objectives([study.location], study.table)


# ---------------------------------------------------------------- the table

ColumnKind = Literal["parameter", "metric", "other"]


class ColumnChoice(NamedTuple):
    """A column to choose. `name`, for addresses, is `metrics.NAME` if a parameter is called NAME; `title` is shown."""

    name: str
    title: str
    kind: ColumnKind
    is_shown: bool
    note: str = ""


class StudyTable(NamedTuple):
    """A page of a study's table. `names`: the parameter or metric of each column; `sorts`: the name by which a click on
    each column sorts, or ""; `members`: the expression that chooses the runs of each row, if rows are groups."""

    summary: StudySummary
    names: Sequence[str]
    sorts: Sequence[str]
    choices: Sequence[ColumnChoice]
    page: int  # the shown page: the last one if the request has a larger number
    by: str = ""  # the name that the rows are sorted by, as it is shown
    members: Sequence[str] = ()


def build_table(study: StudySnapshot, view: StudyView) -> StudyTable:
    """Build a page of the table that `assay sum` prints, without hidden columns."""
    summary, names = _build_whole(study, view), find_names(study)
    last = max(1, -(-summary.total // view.rows))
    if view.page > last:
        return build_table(study, view._replace(page=last))
    columns = [_name_best(column, summary, study) for column in summary.table.columns]
    bases = [_find_base(column, names) for column in columns]
    kept = [index for index, base in enumerate(bases) if base not in view.hide or base == "run"]
    firsts = {column.metric: index for index, column in reversed([*enumerate(columns)]) if column.metric}
    # the column of a metric's best values, by which a click sorts, is before the column of its last values
    kept.sort(key=lambda i: (firsts.get(columns[i].metric, i), columns[i].role not in ("best", "best sd")))
    sorts = [_find_sort(column, names, columns) for column in columns]
    by = ""
    if summary.sort:
        key = summary.sort[0]
        best = (each.name for each in columns if key.is_metric and each.role == "best" and each.metric == key.name)
        by = next(best, key.name) + (", reversed" if key.is_reversed else "")
    rows = summary.table.rows
    shown = tuple(_shorten(columns[index], [row[index] for row in rows]) for index in kept)
    if kept != [*range(len(columns))]:
        rows = [tuple(row[index] for index in kept) for row in rows]
    return StudyTable(
        summary._replace(table=summary.table._replace(columns=shown, rows=rows)),
        [bases[index] for index in kept],
        [sorts[index] for index in kept],
        _list_choices(bases, names, view),
        view.page,
        by,
        [*_describe_groups(summary, bases, view)] if view.group else (),
    )


def _name_best(column: Column, summary: StudySummary, study: StudySnapshot) -> Column:
    """Rename `best loss` to `highest loss` or `lowest loss` if the page sorts against the study's direction."""
    key = next((each for each in summary.sort if each.is_metric and each.name == column.metric), None)
    if column.role != "best" or key is None:
        return column
    if key.direction == _add_direction(key.name, _load_objectives(study)).direction:
        return column
    return column._replace(name=f"{'highest' if key.direction == 'max' else 'lowest'} {key.name}")


def _add_direction(metric: str, objectives: Sequence[SortKey]) -> SortKey:
    """Return a metric with the direction of the study's objective, else the direction that the name suggests."""
    return next((each for each in objectives if each.name == metric), SortKey(metric, direction_of(metric)))


def _shorten(column: Column, values: Sequence[Any]) -> Column:
    """Show six digits of a parameter if its numbers have many; the run's page shows all digits."""
    is_long = column.kind == "number" and column.role == "parameter"
    if is_long and any(isinstance(value, float) and len(repr(value)) > _LONG_NUMBER for value in values):
        return column._replace(digits=6)
    return column


def _build_whole(study: StudySnapshot, view: StudyView) -> StudySummary:
    table, objectives = study.table, _load_objectives(study)
    options = view.build_options()._replace(ignore=(), show=tuple(name.removeprefix("metrics.") for name in view.show))
    asked = tuple(_add_direction(name, objectives) if name in table.metrics else name for name in view.sort)
    options = options._replace(sort=asked or objectives, all_reasons=True)
    summary = build_summary(table, options, find_names(study).step)
    if view.group or not study.remember("has notes", lambda: any(row.note for row in table.rows)):
        return summary
    notes = [row.note for row in summary.rows]
    rows = [(*row, note) for row, note in zip(summary.table.rows, notes, strict=True)]
    return summary._replace(
        table=summary.table._replace(columns=(*summary.table.columns, Column("note", role="note")), rows=rows)
    )


def build_plain_table(study: StudySnapshot, view: StudyView, *, whole: bool) -> Table:
    """Build the table of `assay sum`: all rows if `whole`, else one page."""
    options = view.build_options()
    if not options.sort:
        options = options._replace(sort=_load_objectives(study))
    if whole:
        options = options._replace(limit=None, offset=0, is_page=False)
    return build_summary(study.table, options, find_names(study).step).table


def choose_columns(study: StudySnapshot, view: StudyView, chosen: Sequence[str]) -> StudyView:
    """Return the view with the columns `chosen`, as names that are added to the default columns or hidden."""
    columns, names = _build_whole(study, view._replace(show=(), hide=())).table.columns, find_names(study)
    usual = dict.fromkeys(_find_base(column, names) for column in columns)
    usual.pop("run", None)
    return view._replace(
        show=tuple(name for name in chosen if name not in usual),
        hide=tuple(name for name in usual if name not in chosen),
    )


def _find_base(column: Column, names: StudyNames) -> str:
    """Return the name of the parameter, metric or field that a column shows."""
    return f"metrics.{column.metric}" if column.metric in names.params else column.metric or column.name


def _find_sort(column: Column, names: StudyNames, columns: Sequence[Column]) -> str:
    """Return the name by which a click on a column sorts, or "". A metric sorts by its best values."""
    if column.role == "parameter":  # a metric of the same name has precedence
        return "" if column.name in names.metrics else column.name
    has_best = any(each.role == "best" and each.metric == column.metric for each in columns)
    if column.role == "best" or (column.role == "last" and not has_best):
        return column.metric
    return "time" if column.role == "time" else ""


def _list_choices(present: Sequence[str], names: StudyNames, view: StudyView) -> list[ColumnChoice]:
    """List all columns that can be shown: parameters that differ, other parameters, metrics, then other columns."""
    shown = set(present) - set(view.hide)
    choices = [
        ColumnChoice(name, name, "parameter", name in shown, "" if name in names.differing else "the same in all runs")
        for name in dict.fromkeys((*names.differing, *names.params))
    ]
    for name in sorted(names.metrics, key=lambda name: (name in names.empty, metric_priority(name))):
        base = f"metrics.{name}" if name in names.params else name
        choices.append(ColumnChoice(base, name, "metric", base in shown, "no values" if name in names.empty else ""))
    known = {"run", *(choice.name for choice in choices)}
    others = dict.fromkeys(name for name in (*present, *view.hide) if name not in known)
    return choices + [ColumnChoice(name, name, "other", name in shown) for name in others]


def _describe_groups(summary: StudySummary, bases: Sequence[str], view: StudyView) -> Iterator[str]:
    columns = summary.table.columns
    params = [(index, bases[index]) for index, column in enumerate(columns) if column.role == "parameter"]
    for row in summary.table.rows:
        known = ((name, row[index]) for index, name in params if row[index] is not None)
        equal = (f"params.{_quote_name(name)} == {_quote(value)}" for name, value in known)
        yield " and ".join((*([f"({view.where})"] if view.where else []), *equal))


@_cached
def build_examples(study: StudySnapshot) -> list[str]:
    """Return examples of `where` expressions that choose some of the runs."""
    table, names = study.table, find_names(study)
    examples: list[str] = []
    if not table.rows:
        return examples
    if found := [name for name in names.differing if table.rows[0].params.get(name) is not None]:
        value = table.rows[0].params[found[0]]
        sign = "<=" if isinstance(value, float) else "=="
        examples.append(f"{_quote_known(found[0], names, 'params')} {sign} {_quote(value)}")
    if metric := min((name for name in names.metrics if name not in names.empty), key=metric_priority, default=None):
        column = table.metrics[metric]
        is_min, bests = direction_of(metric) == "min", ranking.best_values(column, direction_of(metric))
        middle = sorted(best for best, count in zip(bests, column.count, strict=True) if count)
        limit = float(f"{middle[len(middle) // 2]:.3g}")
        if math.isfinite(limit):
            examples.append(f"best({_quote_known(metric, names, 'metrics')}) {'<=' if is_min else '>='} {limit!r}")
    if len(examples) == 2:
        examples.append(" or ".join(examples))
    return [*examples, f"state in ({table.rows[0].state}, timeout)"]


def _quote_known(name: str, names: StudyNames, kind: str) -> str:
    is_shared = (name in names.params and name in names.metrics) or name in FIELDS
    is_plain = _PLAIN_NAME.fullmatch(name) and name not in _WORDS
    return name if is_plain and not is_shared else f"{kind}.{name if is_plain else _quote_name(name)}"


_PLAIN_NAME = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_WORDS = ("and", "or", "not", "in", "true", "false", "null", "inf", "nan")


def _quote_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _quote(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, int | float) else quote_where(str(value))


# ---------------------------------------------------------------- plots


def build_plots(study: StudySnapshot, view: StudyView) -> Sequence[Block]:
    """Build the charts of parameters that `assay plot` draws, as blocks of a document."""
    names = find_names(study)
    wanted = [name for name in (view.param, view.color) if name and name not in names.params]
    selection, left_out = _build_selection(study, view, _add_metrics(study.table, wanted))
    metrics = _find_metrics(view.metric, selection)
    selection, notes = _limit_runs(selection, view, metrics)
    options = _build_options(view, metrics)
    if view.tab == "scatter" and not view.param:
        options = replace(options, param=next(iter(names.differing), ""))
        if not options.param:
            raise UsageError("the runs of this study do not differ in a parameter")
    plots = plotting.BUILDERS[view.tab](selection, options)
    return [*(Text(note, role="soft") for note in left_out + notes), *plotting.build_page("", "", plots).blocks[1:]]


def _find_metrics(metric: str, selection: plotting.PlottedRuns) -> tuple[Asked, ...]:
    """Return the metric with its direction, or the name of a metric that no run has, which the builder refuses."""
    known = _add_direction(metric, selection.objectives) if metric in selection.counts else metric
    return (known,) if metric else ()


_FORM_NAMES = plotting.OptionNames(
    metric="", color="Colour by", log="log y", log_x="log x", params="Parameters", over="over", draw_over="over",
    as_counted="as reported", without_group="without a mean", choose_metric="", choose_best="",
    choose_params=" (choose with Parameters)",
)  # fmt: skip


def _build_options(view: StudyView, metrics: tuple[Asked, ...]) -> plotting.PlotOptions:
    return plotting.PlotOptions(
        metrics=metrics,
        group_by=view.group,
        log=view.log,
        best=view.best,
        x=view.x or None,
        smooth=view.smooth,
        log_x=view.log_x,
        param=view.param,
        params=view.params,
        color=view.color or None,
        names=_FORM_NAMES,
    )


def _add_metrics(table: IndexTable, wanted: Sequence[str]) -> IndexTable:
    """Return the table with the metrics `wanted` among the parameters, so that a metric can be an axis or a colour."""
    found = {name: table.metrics[name] for name in wanted if name in table.metrics}
    if not found:
        return table
    values = {name: ranking.best_values(column, direction_of(name)) for name, column in found.items()}

    def extend(i: int, row: RunRow) -> RunRow:
        own = {name: values[name][i] for name, column in found.items() if column.count[i]}
        return row._replace(params={**row.params, **own})

    return IndexTable([extend(i, row) for i, row in enumerate(table.rows)], table.metrics)


def _limit_runs(
    selection: plotting.PlottedRuns, view: StudyView, metrics: Sequence[Asked]
) -> tuple[plotting.PlottedRuns, list[str]]:
    """Return as many runs as a chart can show: a third are the best runs, the other runs are evenly chosen."""
    most, total = MOST_DRAWN.get(view.tab), len(selection.keep)
    if most is None or total <= most:
        return selection, []
    (key, *_), _ = plotting.choose_metrics(selection, metrics, makes_line=False)
    column, values = selection.data.metrics[key.name], _get_values(selection, key)
    ranked = ranking.sort_values(
        selection.keep, [values[i] if column.count[i] else None for i in selection.keep], key.direction
    )
    best, rest = ([], ranked) if view.tab == "importance" else (ranked[: most // 3], ranked[most // 3 :])
    step = len(rest) / (most - len(best))
    chosen = {*best, *(rest[int(number * step)] for number in range(most - len(best)))}
    if view.tab == "history":
        chosen |= _find_records(selection, key)
    note = f"{len(chosen):,} of {total:,} runs, evenly from the best to the worst"
    if best:
        others = f"{most - len(best):,} evenly from the others"
        note = f"{len(chosen):,} of {total:,} runs: the {len(best):,} best, and {others}"
    return replace(selection, keep=[i for i in selection.keep if i in chosen]), [note]


def _find_records(selection: plotting.PlottedRuns, key: SortKey) -> set[int]:
    """Return the finished runs that were better than all runs that finished before."""
    column, values = selection.data.metrics[key.name], _get_values(selection, key)
    rows, sign = selection.data.rows, 1 if key.direction == "min" else -1
    done = [i for i in selection.keep if rows[i].state is State.DONE and column.count[i] and math.isfinite(values[i])]
    done.sort(key=lambda i: rows[i].ended_at or math.inf)
    bests: Iterator[int] = accumulate(done, lambda best, i: i if sign * values[i] < sign * values[best] else best)
    return set(bests)


def _get_values(selection: plotting.PlottedRuns, key: SortKey) -> Sequence[float]:
    return key.values(selection.data.metrics[key.name])


def _build_selection(
    study: StudySnapshot, view: StudyView, table: IndexTable
) -> tuple[plotting.PlottedRuns, list[str]]:
    """Return the runs of the table to draw, and a note about those that are left out."""
    options = view.build_options()
    chosen = select_rows(table, options.where, (), options.states)
    keep = leave_out_foreign(table, chosen) or chosen
    selection, count = plotting.build_selection(table, keep, [study.location]), len(chosen) - len(keep)
    if not selection.counts:
        raise UsageError("none of these runs has a metric", plotting.describe_metrics(study.location))
    return selection, [f"without {count:,} uploaded {'runs' if count > 1 else 'run'}, not adopted"] if count else []


# ---------------------------------------------------------------- curves


def choose_charts(study: StudySnapshot, view: StudyView) -> list[str]:
    """Return the chosen metric, else the metrics to draw next to each other, the objectives of a search first."""
    if view.metric:
        return [view.metric]
    selection, _ = _build_selection(study, view, study.table)
    first = [each.name for each in selection.objectives]
    lines = [name for name, count in selection.counts.items() if count > 1 and name not in COUNTERS]
    lines.sort(key=lambda name: (name not in first, metric_priority(name)))
    return lines[:_MOST_CHARTS]


def build_curves(index: Index, study: StudySnapshot, view: StudyView) -> dict[str, Any]:
    """Return the curves of one metric as JSON, thinned for a screen; minima and maxima are kept."""
    selection, notes = _build_selection(study, view, study.table)
    answer = build_selected_curves(index, selection, view)
    return {**answer, "notes": [*notes, *answer["notes"]]}


def build_selected_curves(index: Index, selection: plotting.PlottedRuns, view: StudyView) -> dict[str, Any]:
    """Return the curves of the selected runs as JSON."""
    (key, *_), _ = plotting.choose_metrics(selection, _find_metrics(view.metric, selection))
    is_other = view.by in selection.counts  # with `by` charts next to each other show the same runs
    rank = _add_direction(view.by, selection.objectives) if is_other else key
    selection, notes = _keep_best(selection, view, key, rank)
    (plot, *_) = plotting.build_plots(index, selection, _build_options(view, (key,)))
    if not isinstance(plot.chart, LineChart):
        raise TypeError("curves are one chart")
    labels = dict(zip(plotting.build_labels(selection.rows), selection.rows, strict=True)) if not view.group else {}
    answer = build_answer(plot.chart, key, labels, view)
    return {**answer, "metric": plot.name, "notes": [*notes, *plot.notes]}


def build_answer(chart: LineChart, key: SortKey, labels: Mapping[str, RunRow], view: StudyView) -> dict[str, Any]:
    """Return the lines of a chart as JSON. `labels` maps the label of each line to its run."""
    drawn = chart
    if view.log or view.log_x:  # values that the axis cannot show are gaps in y, and left out in x
        drawn, start = build_shown(chart), 0 if chart.x_scale == "log" else -math.inf
        drawn = replace(drawn, lines=tuple(_slice(e, slice(bisect_right(e.xs, start), None)) for e in drawn.lines))
    drawn = _crop(drawn, view.zoom) if view.zoom else drawn
    return {
        "metric": key.name,
        "direction": key.direction,
        "x": chart.x_name,
        "y": chart.y_name,
        "log": view.log,
        "log_x": view.log_x,
        "notes": [],
        "curves": [
            _build_curve(line, chart, labels.get(line.label), key, shown)
            for line, shown in zip(chart.lines, drawn.lines, strict=True)
        ],
    }


def _crop(chart: LineChart, zoom: str) -> LineChart:
    """Return the chart for the part `zoom` of the x axis, of which a zoomed page shows more points."""
    try:
        low, high = map(float, zoom.split(","))
    except ValueError:
        raise UsageError(f"zoom is not two numbers: {zoom[:40]!r}", "as in zoom=100,200") from None
    ends = [(bisect_left(line.xs, low), bisect_right(line.xs, high)) for line in chart.lines]
    parts = [slice(max(0, start - 1), end + 1) for start, end in ends]
    return replace(chart, lines=tuple(map(_slice, chart.lines, parts)))


def _slice(line: Line, part: slice) -> Line:
    """Return a line with only the part `part` of its points, which are ordered by x."""
    return replace(line, **{name: getattr(line, name)[part] for name in ("xs", "ys", "raw", "spread")})


def _keep_best(
    selection: plotting.PlottedRuns, view: StudyView, key: SortKey, rank: SortKey
) -> tuple[plotting.PlottedRuns, list[str]]:
    """Keep the best runs or groups, which are drawn; the series of other runs need not be read."""
    data, column = selection.data, selection.data.metrics[key.name]
    ranked: list[Sequence[int]]
    if view.group:
        groups = ranking.build_groups(data, selection.keep, view.group)
        groups = [group for group in groups if ranking.measure_group(column, group).n]
        ranked, what = [group.runs for group in ranking.sort_groups(data, groups, [rank])], " groups"
    else:
        counts, values = data.metrics[rank.name].count, _get_values(selection, rank)
        drawn = [i for i in selection.keep if column.count[i]]
        known = [values[i] if counts[i] and math.isfinite(values[i]) else None for i in drawn]
        ranked = [(i,) for i in ranking.sort_values(drawn, known, rank.direction)]
        what = f" by {rank.name}" if rank.name != key.name else ""
    if len(ranked) <= view.best:
        return selection, []
    keep = sorted(i for runs in ranked[: view.best] for i in runs)
    return replace(selection, keep=keep), [f"the {view.best} best of {len(ranked):,}{what}"]


def _build_curve(line: Line, chart: LineChart, row: RunRow | None, key: SortKey, shown: Line) -> dict[str, Any]:
    """Return a line as JSON, with the points of `shown`, the part of the line that is drawn. `points` counts the whole
    line; `last` and `best` are not smoothed; for a group `last` is the mean of the last values of its runs."""
    most = max(_MOST_POINTS // 3, min(_MOST_POINTS, _MOST_SENT // len(chart.lines)))
    values = line.raw or line.ys
    last = line.end[0] if line.end else values[-1] if values else math.nan
    finite = values if has_finite_sum(values) else [y for y in values if math.isfinite(y)]
    points, line = len(line.ys), shown
    xs, ys = thin_line(line.xs, line.ys, most)
    x_raw, raw = thin_line(line.xs, line.raw, most) if line.raw else ((), ())
    curve: dict[str, Any] = {
        "name": line.label,
        "run": row.folder if row else None,
        "state": str(row.state) if row else None,
        "runs": line.members,
        "color": line.number or 0,
        "points": points,
        "last": to_json(last),
        "best": (min if key.direction == "min" else max)(finite) if finite else None,
        "x": leave_gaps(xs),
        "y": leave_gaps(ys),
    }
    if line.spread and line.members > 1:
        lower, upper = build_band_edges(line, chart.scale)
        curve["x_low"], curve["low"] = map(leave_gaps, thin_line(line.xs, lower, most))
        curve["x_high"], curve["high"] = map(leave_gaps, thin_line(line.xs, upper, most))
    if line.raw:
        curve["x_raw"], curve["raw"] = leave_gaps(x_raw), leave_gaps(raw)
    return curve


def leave_gaps(values: Iterable[float]) -> list[float | None]:
    """Replace NaN and infinity, which JSON does not have, by None, which charts show as a gap."""
    return [value if math.isfinite(value) else None for value in values]


def quote_where(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
