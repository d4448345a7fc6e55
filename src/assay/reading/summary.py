"""The summary table, with the best run first. It is computed by columns, so that ten thousand runs take a moment."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any

from assay.errors import UsageError, check_known
from assay.follow.locations import HOW_TO_START, StudyLocation, show_adopt
from assay.reading.kept_table import list_param, remember
from assay.reading.ranking import (
    Asked,
    Front,
    ParamsOf,
    RunGroup,
    SortKey,
    best_values,
    build_groups,
    choose_sort,
    combine_columns,
    find_differing,
    find_pareto_groups,
    find_pareto_rows,
    measure_group,
    sort_groups,
    sort_some,
)
from assay.reading.run_reader import find_step_name, load_fresh_table, load_objectives
from assay.record.index.base import IndexTable, MetricColumns, RunRow
from assay.record.index.stored import Index
from assay.show.console import SILENT, Console
from assay.show.formatting import clean, render_count
from assay.show.table import drop_spare, fit_columns
from assay.system.fast_dataclasses import NamedTuple
from assay.values.series import Direction, direction_of, metric_priority, whole_step
from assay.values.state import State
from assay.values.table import Column, Kind, Role, Table

if TYPE_CHECKING:
    from assay.values.where import Where

_Has = Callable[[str, bool], bool]
"""Whether there is a column of this name; the second argument: whether the rows at hand would show something in it."""
_Columns = list[tuple[Column, list[Any]]]  # each column with its cells
MOST_REASONS = 5  # limit of lines below a table that is too narrow for the column of reasons
MOST_METRICS = 6  # more metrics would not fit a terminal; --metrics chooses others
_ENDED = tuple(state for state in State if state.is_over and state is not State.DONE)
_NUMBERS = {int, float, NoneType}


class SummaryOptions(NamedTuple):
    sort: tuple[Asked, ...] = ()  # METRIC or PARAMETER, optionally with :min or :max; the first is the most important
    group_by: tuple[str, ...] = ()
    metrics: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    show: tuple[str, ...] = ()  # parameters and metrics in addition to the chosen ones
    best: bool = False  # show the best value of every metric, not only of the one sorted by
    states: frozenset[State] | None = None
    limit: int | None = None
    offset: int = 0  # rows before the first shown row
    is_page: bool = False  # the columns are those of all rows, even if only some are shown
    all_reasons: bool = False  # show why runs ended, not only for pruned runs
    reverse: bool = False  # reverses the order of the rows, not what is best
    where: Where | None = None
    patterns: tuple[tuple[str, str], ...] = ()  # study, pattern of its runs; empty: all runs
    pareto: tuple[str, ...] = ()  # show only rows that no other row dominates by these keys, each as in `sort`

    @property
    def end(self) -> int | None:
        """The index after the last shown row; None: all rows are shown."""
        return None if self.limit is None else self.offset + self.limit


class Unranked(NamedTuple):
    """Uploads that were not adopted."""

    number: int
    first: RunRow | None  # the first upload that can be adopted; None: each has the id of a run that was made here


class StudySummary(NamedTuple):
    """The table, and facts about it. `hidden` counts the metrics that were left out, `left_out` the rows."""

    table: Table
    rows: list[RunRow]
    sort: tuple[SortKey, ...]
    hidden: int = 0
    left_out: int = 0
    front: Front | None = None  # the front of runs or groups for --pareto
    not_done: int = 0  # runs that --pareto did not compare because of their state
    no_room: tuple[str, ...] = ()  # columns other than metrics for which the terminal is too narrow
    remarks: tuple[str, ...] = ()  # reasons of pruned runs, if their column does not fit
    total: int = 0  # number of rows, shown or not
    unranked: Unranked | None = None  # these rows are last, and in no group or Pareto set


def summarise(
    index: Index, locations: Sequence[StudyLocation], options: SummaryOptions, console: Console = SILENT
) -> StudySummary:
    data = load_fresh_table(index, locations, console)
    if not data.rows:
        names = ", ".join(location.name for location in locations)
        raise UsageError(f"{names}: no runs yet", HOW_TO_START)
    if not options.sort and not options.pareto:
        options = options._replace(sort=load_objectives(locations, data))
    return build_summary(data, options, find_step_name(locations, data.rows))


def build_summary(data: IndexTable, options: SummaryOptions, step_name: str = "step") -> StudySummary:
    keep = select_rows(data, options.where, options.patterns, options.states)
    ranked = leave_out_foreign(data, keep)
    unranked = find_left_out(data, keep, ranked)
    known = ParamsOf(data, keep)
    shown = options.metrics[:1] if options.metrics and options.metrics[0] in data.metrics else ()  # not a hidden metric
    sort = choose_sort(options.sort or options.pareto or shown, data, known)
    if options.reverse:
        sort = tuple(key._replace(is_reversed=True) for key in sort)
    pareto = choose_sort(options.pareto, data, known) if options.pareto else ()
    if len(pareto) == 1:
        raise UsageError("--pareto needs two or more names", f"as in --pareto {options.pareto[0]},time")
    metrics = _choose_metrics(data, options, (*sort, *pareto))
    hidden = len(data.metrics) - len(metrics) if options.metrics is None else 0
    if options.group_by:
        return _grouped(data, ranked or keep, options, sort, metrics, hidden, pareto)._replace(unranked=unranked)
    front, not_done = None, 0
    if pareto:
        done = ranked if options.states else [i for i in ranked if data.rows[i].state is State.DONE]
        front, not_done = find_pareto_rows(data, done, pareto), len(ranked) - len(done)
        keep = ranked = front.items
    params = find_differing(data, keep, options.ignore)
    params += [name for name in options.show if name not in params and any(name in each for each in known)]
    if len(ranked) == len(keep):
        order = sort_some(data, keep, sort, options.offset, options.end)
    else:  # uploads come last
        parts = ranked, sorted(set(keep) - set(ranked))
        order = [i for part in parts for i in sort_some(data, part, sort, 0, None)][options.offset : options.end]

    def build(rows: Sequence[int], has: _Has) -> _Columns:
        return _run_columns(data, rows, params, metrics, sort, options, step_name, has)

    has: _Has = lambda _what, tells: tells  # noqa: E731 only the shown rows decide
    if options.is_page:
        asked = options._replace(limit=None, offset=0)
        has = _ask_all(data, keep, build, (tuple(metrics), options.ignore), asked)
    table = _build_table(build(order, has))
    rest = max(0, len(keep) - options.offset - len(order))
    found = [data.rows[i] for i in order]
    return StudySummary(table, found, sort, hidden, rest, front, not_done, total=len(keep), unranked=unranked)


def _build_table(columns: _Columns) -> Table:
    return Table(tuple(column for column, _ in columns), list(zip(*(cells for _, cells in columns), strict=True)))


def _ask_all(
    data: IndexTable,
    keep: Sequence[int],
    build: Callable[[Sequence[int], _Has], object],
    subject: Hashable,
    options: SummaryOptions,
) -> _Has:
    """Return a function that checks which columns the rows `keep` need. Usually the shown rows need a column, or no row
    of the study does, which is cached: checking all rows of a filter takes far longer than showing some."""

    def find(rows: Sequence[int]) -> dict[str, bool]:
        found: dict[str, bool] = {}
        build(rows, found.setdefault)
        return found

    def has(what: str, tells: bool) -> bool:
        if tells:
            return True
        every: dict[str, bool] = remember(data, ("columns", subject), dict)
        if what not in every:
            every.update(find(range(len(data.rows))))
        if not every[what] or len(keep) == len(data.rows):
            return every[what]
        return remember(data, ("columns", options), lambda: find(keep))[what]

    return has


def describe_front(front: Front, what: str, not_done: int) -> str:
    """Describe how many items are in the front, and how many were not compared."""
    missing = [f"{not_done} not done"] if not_done else []
    missing += [f"{front.without} without a number for each"] if front.without else []
    found = f"{len(front.items)} of {render_count(front.compared, what)}"
    return f"the Pareto front: {found}" + (f"; not compared: {', '.join(missing)}" if missing else "")


def fit_summary(summary: StudySummary, width: int) -> StudySummary:
    """Fit a table to a terminal: drop empty and duplicate columns, then metrics, before names become unreadable."""
    table, dropped = fit_columns(drop_spare(summary.table, width), width)
    ranks = {column.rank for column in dropped}
    metrics = {rank for rank in ranks if rank <= _WANTED_RANK or (rank > 0 and rank % 200 == 0)}
    known = {*metrics, _REASON_RANK, _BEST_RANK}
    others = tuple(column.name for column in dropped if column.rank not in known)
    remarks: tuple[str, ...] = ()
    if _REASON_RANK in ranks:
        remarks = tuple(build_remarks([row for row in summary.rows if row.state is State.PRUNED]))
    return summary._replace(table=table, hidden=summary.hidden + len(metrics), no_room=others, remarks=remarks)


def build_remarks(rows: Sequence[RunRow]) -> Iterator[str]:
    """Yield lines with the reasons why the runs ended."""
    explained = [row for row in rows if row.reason]
    yield from (f"{row.state}: {clean(row.name)}: {clean(row.reason)}" for row in explained[:MOST_REASONS])
    if len(explained) > MOST_REASONS:
        yield f"and {len(explained) - MOST_REASONS} more; `assay show` explains a single run"


# The ranks of columns: a narrow table drops the highest rank first. Metrics have multiples of 200, the first has 0.
_PATH_RANK = 9900
_BEST_RANK = 1100
_REASON_RANK = 700
_TAGS_RANK = 500
_STEP_TIME_RANK = 300
_NAMED_RANK = 210  # this rank and above: parameters that are part of the runs' names
_TIME_RANK = 205
_STEP_RANK = 100
_FIRST_BEST_RANK = -100  # best values of the metric that rows are sorted by
_WANTED_RANK = -200  # this rank and below: metrics that were requested, or that a search optimises


def _rank_metric(
    columns: _Columns, index: int, metrics: Sequence[str], sort: Sequence[SortKey], options: SummaryOptions
) -> _Columns:
    """Set the ranks of the columns of one metric: its values, and its best values if they are shown."""
    is_wanted = options.metrics is not None or any(key.is_metric and key.name == metrics[index] for key in sort[1:])
    rank = 200 * index if not is_wanted else _WANTED_RANK - (len(metrics) - 1 - index)
    is_first = bool(sort) and sort[0].name == metrics[index] and (options.metrics is None or options.best)
    best = _FIRST_BEST_RANK if is_first else _BEST_RANK
    ranks = {"best": best, "best sd": best}
    return [(column._replace(rank=ranks.get(column.role, rank if index else 0)), cells) for column, cells in columns]


# ---------------------------------------------------------------- choosing


def select_rows(
    data: IndexTable,
    where: Where | None = None,
    patterns: Sequence[tuple[str, str]] = (),
    states: frozenset[State] | None = None,
) -> list[int]:
    """Return the indexes of the rows to show. The code that matches rows is loaded only if there is a condition."""
    if where is not None and not states and not patterns:
        from assay.reading.choosing import need_rows

        return need_rows(where, data)
    keep = [i for i, row in enumerate(data.rows) if row.state in states] if states else list(range(len(data.rows)))
    if where is None and not patterns:
        return keep
    from assay.reading.choosing import match_rows, need_rows

    if patterns:
        matching = set(match_rows(data, patterns))
        keep = [i for i in keep if i in matching]
    return keep if where is None else need_rows(where, data, keep)


def leave_out_foreign(data: IndexTable, keep: list[int]) -> list[int]:
    """Leave out uploads that were not adopted, which are not compared, ranked or counted."""
    rows = enumerate(data.rows)
    foreign = remember(data, "foreign", lambda: {i for i, row in rows if row.received and row.is_foreign})
    return [i for i in keep if i not in foreign] if foreign else keep


def find_left_out(data: IndexTable, keep: Sequence[int], ranked: Sequence[int]) -> Unranked | None:
    if len(ranked) == len(keep):
        return None
    rows = [data.rows[i] for i in sorted(set(keep) - set(ranked))]
    own = {(row.study, row.id) for row in data.rows if not row.is_foreign}
    return Unranked(len(rows), next((row for row in rows if (row.study, row.id) not in own), None))


def describe_unranked(
    unranked: tuple[int, RunRow | None], locations: Sequence[StudyLocation], *, others: str = " with the others"
) -> str:
    count, row = unranked
    runs = f"{'1 uploaded run is' if count == 1 else f'{count} uploaded runs are'} not ranked{others}"
    if row is None:
        return f"{runs}; a run that was made here has the same id"
    location = next(each for each in locations if each.name == row.study)
    return f"{runs}; to take {'it' if count == 1 else 'one'}: {show_adopt(location, row.folder)}"


def _choose_metrics(data: IndexTable, options: SummaryOptions, sort: Sequence[SortKey]) -> list[str]:
    if options.metrics is not None:
        if options.metrics == ("all",):
            return list(data.metrics)
        check_known("metric", options.metrics, data.metrics)
        return list(options.metrics)
    names = [name for name in data.metrics if name not in options.ignore]
    sorted_by = [key.name for key in sort if key.is_metric]
    first = [name for name in dict.fromkeys(sorted_by) if name in names]
    ranked = first + sorted((name for name in names if name not in first), key=metric_priority)
    chosen = ranked[:MOST_METRICS] + [name for name in ranked[MOST_METRICS:] if name in options.show]
    return sorted(chosen, key=metric_priority) if options.is_page else chosen  # a page keeps the order of columns


# ---------------------------------------------------------------- one row per run


def _run_columns(
    data: IndexTable,
    order: Sequence[int],
    params: Sequence[str],
    metrics: Sequence[str],
    sort: Sequence[SortKey],
    options: SummaryOptions,
    step_name: str,
    has: _Has,
) -> _Columns:
    several = len(set(_gather(data, "study", order))) > 1
    runs = _gather(data, "key" if several else "name", order)
    columns: _Columns = [(Column("run", role="run"), runs)]
    states = _gather(data, "state", order)
    if has("state", states.count(State.DONE) < len(states)):
        columns.append((Column("state", "state"), list(map(str, states))))
    for index, name in enumerate(params):
        is_part = _is_part(data, order)
        every = [] if is_part else list_param(data, name)
        cells = [data.rows[i].params.get(name) for i in order] if is_part else list(map(every.__getitem__, order))
        kind: Kind = "text" if has(f"text {name}", not _NUMBERS.issuperset(map(type, cells))) else "number"
        rank = _rank_param(name, index, len(params), runs, cells)
        columns.append((Column(name, kind, digits=None, rank=rank, role="parameter"), cells))
    for index, name in enumerate(metrics):
        found = _build_metric(data.metrics[name], order, sort, options.best, has)
        columns += _rank_metric(found, index, metrics, sort, options)
    columns += _build_progress(data, order, metrics, step_name, has)
    tags = _gather(data, "tags", order) if "tags" not in options.ignore else []
    if has("tags", any(tags)):
        columns.append((Column("tags", rank=_TAGS_RANK, role="tags"), list(map(",".join, tags))))
    received = _gather(data, "received", order)
    if has("received", any(received)):
        from assay.record.received import describe_facts  # few tables have received runs

        columns.append((Column("received", rank=_TAGS_RANK), [describe_facts(each) or None for each in received]))
    explained = _ENDED if options.all_reasons else (State.PRUNED,)  # pruned: the rule; other reasons: `assay ls`
    if has("every reason" if options.all_reasons else "reason", not set(explained).isdisjoint(states)):
        ends = zip(states, _gather(data, "reason", order), strict=True)
        reasons = [(why or None) if state in explained else None for state, why in ends]
        columns.append((Column("reason", rank=_REASON_RANK), reasons))
    return columns


def _gather(data: IndexTable, field_name: str, order: Sequence[int]) -> list[Any]:
    """Return one field of the rows `order`. Many rows are read in the order of the table, which is twice as fast."""
    if _is_part(data, order):
        return [getattr(data.rows[i], field_name) for i in order]
    return list(map(list(map(attrgetter(field_name), data.rows)).__getitem__, order))


def _is_part(data: IndexTable, order: Sequence[int]) -> bool:
    """Whether the rows `order` are a small part of a large table, such as a page."""
    return len(order) * 4 < len(data.rows)


def _rank_param(name: str, index: int, count: int, runs: Sequence[str], values: Sequence[Any]) -> int:
    """Rank a parameter. A parameter in the runs' names is dropped before a name is cut; others are dropped last."""
    if is_checkpoint(values):
        return _PATH_RANK
    is_named = all(f"{name}=" in run for run, value in zip(runs, values, strict=True) if value is not None)
    return min(_NAMED_RANK + 1 + 2 * index, _STEP_TIME_RANK - 1) if is_named else index - count


def is_checkpoint(values: Sequence[Any]) -> bool:
    """Whether the values are paths of only some runs, as by `rerun --from checkpoint`, of little use in a table."""
    found = [value for value in values if value is not None]
    return len(found) < len(values) and all(isinstance(value, str) and value.startswith("/") for value in found)


def _build_metric(
    column: MetricColumns, order: Sequence[int], sort: Sequence[SortKey], best: bool, has: _Has
) -> _Columns:
    name = column.metric
    columns: _Columns = [(Column(name, "number", role="last", metric=name), _pick(column, column.last, order))]
    wanted = _find_direction(sort, name)
    if best or (wanted is not None and has(f"best {name}:{wanted}", _best_differs(column, order, wanted))):
        values = best_values(column, wanted or direction_of(name))
        title = Column(f"best {name}", "number", key=f"{name}_best", role="best", metric=name)
        columns.append((title, _pick(column, values, order)))
    return columns


def _find_direction(sort: Sequence[SortKey], metric: str) -> Direction | None:
    """Return the direction of a metric that rows are sorted by; None for any other metric."""
    return next((key.direction for key in sort if key.is_metric and key.name == metric), None)


def _pick(column: MetricColumns, values: Sequence[float], order: Sequence[int]) -> list[float | None]:
    """Return the values of the rows `order`, with None for a run without the metric."""
    if len(order) * 4 >= len(values) and 0.0 not in column.count:
        return list(map(values.__getitem__, order))
    return [values[i] if column.count[i] else None for i in order]


def _best_differs(column: MetricColumns, order: Sequence[int], direction: Direction) -> bool:
    values = best_values(column, direction)
    return any(column.count[i] and values[i] != column.last[i] for i in order)


def _build_progress(
    data: IndexTable, order: Sequence[int], metrics: Sequence[str], step_name: str, has: _Has
) -> Iterator[tuple[Column, list[Any]]]:
    """Build the columns for how far each run came, and how long a step takes."""
    chosen = [data.metrics[name] for name in metrics]
    steps = combine_columns([column.last_step for column in chosen], order, max)
    if has("step", steps.count(None) < len(steps)):
        yield Column(step_name, "number", digits=12, rank=_STEP_RANK), list(map(whole_step, steps))
    starts, ends = _gather(data, "started_at", order), _gather(data, "ended_at", order)
    seconds = list(map(_elapsed, starts, ends))
    if has("time", seconds.count(None) < len(seconds)):
        yield Column("time", "clock", key="seconds", rank=_TIME_RANK, role="time"), seconds
    # `took`: the time from a run's start to its last point; its duration if the points have no times
    lasts = combine_columns([column.last_time for column in chosen], order, max)
    firsts = combine_columns([column.first_time for column in chosen], order, min)
    begun = [start or first for start, first in zip(starts, firsts, strict=True)]
    spans = zip(seconds, map(_elapsed, begun, lasts), strict=True)
    took = [whole if until is None else until for whole, until in spans]
    per_step = [time / step if step and time is not None else None for time, step in zip(took, steps, strict=True)]
    if has("time of a step", any(value is not None and value >= 0.05 for value in per_step)):
        key = f"seconds_per_{step_name}"
        yield Column(f"time/{step_name}", "duration", key=key, rank=_STEP_TIME_RANK), per_step


def _elapsed(start: float | None, end: float | None) -> float | None:
    if start is None or end is None:
        return None
    return end - start if end > start else 0.0


# ---------------------------------------------------------------- one row per group


def _grouped(
    data: IndexTable,
    keep: Sequence[int],
    options: SummaryOptions,
    sort: Sequence[SortKey],
    metrics: Sequence[str],
    hidden: int,
    pareto: Sequence[SortKey],
) -> StudySummary:
    """Make one row for all runs that differ only in `group_by` (a seed): mean ± sd of last and best values."""
    for key in (*sort, *pareto):
        if not key.is_metric and key.name in options.group_by:
            text = f"cannot sort by {key.name!r}, which is grouped over"
            raise UsageError(text, "sort by a metric or by another parameter")
    groups = build_groups(data, keep, options.group_by, options.ignore, options.states)
    front = find_pareto_groups(data, groups, pareto) if pareto else None
    if front is not None:
        groups = [groups[i] for i in front.items]
    ordered = sort_groups(data, groups, sort)[options.offset : options.end]
    columns = _group_columns(groups, ordered)
    every = groups if options.is_page else ordered
    common = all(len({measure_group(data.metrics[name], each).n for name in metrics}) < 2 for each in every)
    counts = [[measure_group(data.metrics[name], group).n for group in ordered] for name in metrics]
    if common:
        columns.append((Column("n", "number", digits=12), counts[0] if counts else [len(g.runs) for g in ordered]))
    if any(group.others for group in every):
        name = "not counted" if options.states else "not done"
        others = Column(name, "number", digits=12, key=name.replace(" ", "_"))
        columns.append((others, [group.others or None for group in ordered]))
    counted = [i for group in every for i in group.runs]
    for index, name in enumerate(metrics):
        count = Column("n", "number", digits=12, key=f"{name}_n", role="count", metric=name)
        found = [] if common else [(count, counts[index])]
        found += _build_group_metric(data.metrics[name], ordered, sort, options.best, counted)
        columns += _rank_metric(found, index, metrics, sort, options)
    first = [data.rows[group.runs[0]] for group in ordered if group.runs]
    rest = max(0, len(groups) - options.offset - len(ordered))
    return StudySummary(_build_table(columns), first, tuple(sort), hidden, rest, front, total=len(groups))


def _group_columns(groups: Sequence[RunGroup], ordered: Sequence[RunGroup]) -> _Columns:
    """Return the columns that distinguish the groups."""
    several = len({group.study for group in groups}) > 1
    columns: _Columns = [(Column("study"), [group.study for group in ordered])] if several else []
    for name in dict.fromkeys(name for group in groups for name in group.params):
        column = Column(name, "text", digits=None, role="parameter")
        columns.append((column, [group.params.get(name) for group in ordered]))
    return columns


def _build_group_metric(
    column: MetricColumns, groups: Sequence[RunGroup], sort: Sequence[SortKey], best: bool, counted: Sequence[int]
) -> Iterator[tuple[Column, list[Any]]]:
    name = column.metric
    wanted = _find_direction(sort, name)
    looks: list[tuple[Role, str, str, Sequence[float]]] = [("last", name, name, column.last)]
    if best or (wanted is not None and _best_differs(column, counted, wanted)):
        looks.append(("best", f"best {name}", f"{name}_best", best_values(column, wanted or direction_of(name))))
    for role, title, key, values in looks:
        found = [measure_group(column, group, values) for group in groups]
        yield Column(title, "number", key=key, role=role, metric=name), [each.mean for each in found]
        spread: Role = "best sd" if role == "best" else "last sd"
        sd = Column("± sd", "number", digits=2, key=f"{key}_sd", role=spread, metric=name)
        yield sd, [each.sd for each in found]
