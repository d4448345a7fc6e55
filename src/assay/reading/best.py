"""`assay best`: find the best run, its margin over the next one, and the commands that repeat it.

As in `assay sum`, runs are compared by the best value of their metric. Only runs with a final result count: done
runs, and runs that a rule ended because they stopped improving or had reached their target.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from assay.errors import UsageError, check_known
from assay.follow.locations import StudyLocation, advise_adopting, show_command
from assay.reading.ranking import (
    Asked,
    GroupValue,
    RunGroup,
    SortKey,
    build_groups,
    choose_sort,
    differing_params,
    find_pareto_rows,
    measure_group,
    parse_sort,
    row_value,
    sort_groups,
    sort_rows,
)
from assay.reading.run_reader import find_step_name
from assay.record import run_directory
from assay.record.index.base import IndexTable, MetricColumns, RunRow
from assay.record.received import describe_facts
from assay.show.formatting import join_first, render_count, render_number
from assay.system.fast_dataclasses import NamedTuple
from assay.values import layout
from assay.values.document import Block, Commands, Document, Facts, Heading, Notes, Only, Section, TableBlock, Text
from assay.values.plain import render_value
from assay.values.secrets import HIDDEN
from assay.values.series import direction_of, whole_step
from assay.values.state import has_result
from assay.values.table import Column, Table

_MOST_NAMED = 3  # runs named in a note
_CLEAR = 2.0  # a margin of more standard errors than this exceeds the spread
_LENGTHS = ("epochs", "epoch", "steps", "iterations", "iters", "max_epochs", "max_steps", "num_epochs", "num_steps")
_WORDS = {"min": "lowest", "max": "highest"}


class Contender(NamedTuple):
    """A run or a group of runs, and the value by which it is compared."""

    name: str
    value: float
    run: int  # the run's row in the table; for a group, the row of its best run
    group: RunGroup | None = None
    spread: GroupValue | None = None  # None for a single run


class BestChoice(NamedTuple):
    """The result of `assay best` for one metric."""

    key: SortKey
    ranked: Sequence[Contender]  # contenders, the best first
    uncounted: Sequence[int]  # rows of runs that are not done and have a better value
    without: int  # number of runs that are done and have no finite value
    group_by: tuple[str, ...] = ()

    @property
    def best(self) -> Contender:
        return self.ranked[0]

    @property
    def tied(self) -> Sequence[Contender]:
        """The contenders that share the best value."""
        return [each for each in self.ranked if each.value == self.best.value]

    @property
    def margin(self) -> float | None:
        """The difference between the best value and the next; None if there is only one contender."""
        return abs(self.ranked[1].value - self.best.value) if len(self.ranked) > 1 else None

    @property
    def relative_margin(self) -> float | None:
        """The margin as a fraction of the next value."""
        margin = self.margin
        return None if margin is None or not self.ranked[1].value else margin / abs(self.ranked[1].value)

    @property
    def standard_error(self) -> float | None:
        """The standard error of the difference of two groups' means (two samples, unequal variances)."""
        spreads = [each.spread for each in self.ranked[:2]]
        if len(spreads) < 2 or any(each is None or each.sd is None for each in spreads):
            return None
        return math.hypot(*(each.sd / math.sqrt(each.n) for each in spreads if each and each.sd is not None))


def choose_best(
    data: IndexTable, keep: Sequence[int], asked: Asked | None = None, group_by: Sequence[str] = ()
) -> BestChoice | None:
    """Choose the best of the rows `keep`; None if no done run has the metric. Raise NotFoundError or UsageError."""
    key = choose_metric(data, asked)
    column = data.metrics[key.name]
    values = key.values(column)
    usable = [i for i in keep if column.count[i] > 0 and math.isfinite(values[i])]
    done = [i for i in keep if _counts(data.rows[i])]
    counted = [i for i in usable if _counts(data.rows[i])]
    if not counted:
        return None
    if group_by:
        ranked = _rank_groups(data, keep, counted, key, group_by)
    else:
        field = "key" if len({data.rows[i].study for i in counted}) > 1 else "name"
        order = sort_rows(data, counted, (key,), ())
        ranked = [Contender(getattr(data.rows[i], field), values[i], i) for i in order]
    sign = 1 if key.direction == "min" else -1
    best = min(sign * values[i] for i in counted)
    uncounted = [i for i in usable if not _counts(data.rows[i]) and sign * values[i] < best]
    ordered = sorted(uncounted, key=lambda i: sign * values[i])
    return BestChoice(key, ranked, ordered, len(done) - len(counted), tuple(group_by))


def _counts(row: RunRow) -> bool:
    return has_result(row.state, row.cause) and not row.is_foreign


def choose_metric(data: IndexTable, asked: Asked | None) -> SortKey:
    """Return the metric that `asked` names, as in `loss:min`; if it is None, the metric by which `assay sum` sorts."""
    if not data.metrics:
        hint = "log some with assay.log, or name patterns under `metrics:` in the file"
        raise UsageError("no run has a metric", hint)
    if asked is None:
        return choose_sort((), data, ())[0]
    if isinstance(asked, SortKey):
        return asked
    name, direction = parse_sort(asked, data.metrics)
    check_known("metric", [name], data.metrics)
    return SortKey(name, direction or direction_of(name))


def _rank_groups(
    data: IndexTable, keep: Sequence[int], counted: Sequence[int], key: SortKey, group_by: Sequence[str]
) -> list[Contender]:
    column = data.metrics[key.name]
    values = key.values(column)
    usable = set(counted)
    known = build_groups(data, keep, group_by)
    groups = [group._replace(runs=[i for i in group.runs if i in usable]) for group in known]
    several = len({group.study for group in groups}) > 1
    found = []
    for group in sort_groups(data, [group for group in groups if group.runs], (key,)):
        spread = measure_group(column, group, values)
        if spread.mean is not None:
            (first, *_) = sort_rows(data, group.runs, (key,), ())
            params = ", ".join(f"{name}={render_value(value)}" for name, value in group.params.items()) or "all runs"
            name = f"{group.study}: {params}" if several else params
            found.append(Contender(name, spread.mean, first, group, spread))
    return found


# ---------------------------------------------------------------- the report


class BestRun(NamedTuple):
    """The best run and the commands that repeat it."""

    row: RunRow
    dir: str
    commands: Mapping[str, str]
    differing: Sequence[str]  # names of the parameters in which the runs differ
    hints: Sequence[tuple[str, str]]  # what a command does, and the command
    step_name: str = "step"


def describe_best(data: IndexTable, keep: Sequence[int], run: int, locations: Sequence[StudyLocation]) -> BestRun:
    row = data.rows[run]
    location = next(each for each in locations if each.name == row.study)
    folder = row.folder
    path = os.path.join(location.dir, folder)
    record = run_directory.try_record(path) if row.origin == "assay" else None
    commands = {c.name: layout.show_command(c.text, path) for c in record.spec.commands} if record else {}
    differing = differing_params([data.rows[i].params for i in keep])
    hints = []
    if row.received and "adopted_at" not in row.received:  # a received run must be adopted before it is repeated
        hints.append(advise_adopting(location, folder))
    elif commands:
        changes = _choose_change(row, data.rows, differing)
        again = show_command(["rerun"], location, folder, assignments=changes)
        hints.append(("again, changed" if changes else "again", again))
    if record is not None:
        hints.append(("everything about it", show_command(["show"], location, folder)))
    if commands:
        hints.append(("its output", show_command(["logs"], location, folder)))
    own = [name for name in differing if name in row.params]
    return BestRun(row, path, commands, own, hints, find_step_name(locations, [row]))


def _choose_change(row: RunRow, rows: Sequence[RunRow], differing: Sequence[str]) -> list[str]:
    """Choose a change such as `epochs=6`: a numeric parameter with a value that no run has. Empty: there is none."""
    numbers = {
        name: value
        for name, value in row.params.items()
        if type(value) in (int, float) and value > 0 and name == name.strip() and not {"/", "="} & {*name}
    }
    lengths = [name for name in numbers if name.lower() in _LENGTHS]
    fixed = [name for name in numbers if name not in differing and name != "seed"]
    name = next(iter((*lengths, *fixed, *numbers)), None)
    if name is None or any(HIDDEN in str(value) for value in row.params.values()):
        return []
    taken = {_as_number(each.params.get(name)) for each in rows}
    values = (factor * numbers[name] for factor in (2, 3, 5, *range(6, len(rows) + 7)))
    texts = (str(value) if isinstance(value, int) else f"{value:g}" for value in values)
    return next(([f"{name}={text}"] for text in texts if _as_number(text) not in {*taken, math.inf}), [])


def _as_number(value: Any) -> float | None:
    """Return a value as a number, so that 2, 2.0, "2" and "2.0" are equal; None if it is not a number."""
    try:
        return float(str(value))
    except ValueError:
        return None


def build_document(choice: BestChoice, run: BestRun, data: IndexTable) -> Document:
    title = build_title(choice, data)
    blocks: list[Block] = [
        Heading(title),
        Only(("terminal",), (Text(title, role="strong"),)),
        Section((Facts(describe_standing(choice, run, data.metrics[choice.key.name])),)),
        *build_details(choice, run, data),
    ]
    return Document(title, blocks, facts=_build_facts(choice, run, data))


def build_title(choice: BestChoice, data: IndexTable) -> str:
    counted = render_count(len(choice.ranked), "group" if choice.group_by else "run")
    studies = ", ".join(dict.fromkeys(data.rows[each.run].study for each in choice.ranked))
    value = "" if choice.key.at == "best" else f" {choice.key.at} value"  # for example: lowest last value
    return f"{studies}: best of {counted} by {choice.key.name} ({_WORDS[choice.key.direction]}{value})"


def build_details(choice: BestChoice, run: BestRun, data: IndexTable) -> list[Section]:
    """Build the sections with parameters and commands of the best run, notes about other runs, and next commands."""
    ordered = [*run.differing, *(name for name in run.row.params if name not in run.differing)]
    params = [(name, render_value(run.row.params[name])) for name in ordered]
    return [
        Section((Facts(params),), "Parameters" if run.differing in ([], ordered) else "Parameters, what differs first"),
        Section((Facts(list(run.commands.items()), folds=False),), "Commands"),
        Section((Notes(_build_notes(choice, data)),)),
        Section((Commands(run.hints),)),
    ]


def describe_standing(choice: BestChoice, run: BestRun, column: MetricColumns) -> list[tuple[str, str]]:
    best, metric = choice.best, choice.key.name
    reached, step = choice.key.values(column)[best.run], choice.key.find_step(column, best.run)
    at = f" at {run.step_name} {render_number(step, 12)}" if math.isfinite(step) else ""
    last = f", {render_number(column.last[best.run])} at the end" if column.last[best.run] != reached else ""
    own = f"{render_number(reached)}{at}{last}"
    if best.group is None or best.spread is None:
        facts = [("run", best.name), (metric, own)]
    else:
        facts = [("group", best.name), (metric, _describe_spread(best.spread)), ("best run", f"{run.row.name}: {own}")]
    if run.row.received:
        facts.append(("received", describe_facts(run.row.received)))
    if run.row.tags:
        facts.append(("tags", ", ".join(run.row.tags)))
    if len(choice.tied) > 1:
        others = [each.name for each in choice.tied[1:]]
        facts.append(("tie", f"the same value: {join_first(others, _MOST_NAMED)}"))
    elif choice.margin is not None:
        following = choice.ranked[1]
        value = _describe_spread(following.spread) if following.spread else render_number(following.value)
        facts.append(("next", f"{following.name}: {value}"))
        fraction = choice.relative_margin
        relative = f" ({_round(100 * fraction)}%)" if fraction is not None else ""
        facts.append(("margin", f"{render_number(choice.margin)}{relative}"))
    if choice.group_by and len(choice.ranked) > 1:
        facts.append(("spread", _describe_error(choice)))
    return facts


def _describe_spread(spread: GroupValue) -> str:
    mean = render_number(spread.mean) if spread.mean is not None else "-"
    sd = f" ± {render_number(spread.sd, 2)}" if spread.sd is not None else ""
    return f"{mean}{sd} (n={spread.n})"


def _round(value: float) -> str:
    """Round to two digits, and a value of ten or more to an integer: 100, not 1e+02."""
    return f"{value:.2g}" if value < 9.95 else f"{value:.0f}"


def _describe_error(choice: BestChoice) -> str:
    """Describe in plain words whether the margin exceeds the spread within one group."""
    over = ", ".join(choice.group_by)
    error, margin = choice.standard_error, choice.margin or 0.0
    if error is None:
        return f"not known: a group of one run has no spread over {over}"
    shown = f"standard error of the difference {render_number(error, 2)}"
    if not error:
        return f"{shown}: runs that differ in {over} alone have equal values"
    ratio = f"the margin is {_round(margin / error)} times that"
    if margin <= _CLEAR * error:
        return f"{shown}; {ratio}: within the spread over {over}, the order may be chance; more runs would show it"
    return f"{shown}; {ratio}: more than the spread over {over}"


def _build_notes(choice: BestChoice, data: IndexTable) -> list[str]:
    column = data.metrics[choice.key.name]
    values = choice.key.values(column)
    notes = []
    single = sum(each.spread is not None and each.spread.n == 1 for each in choice.ranked)
    if single > 0 and len(choice.ranked) > 1:
        have = "has" if single == 1 else "have"
        notes.append(f"{single} of {len(choice.ranked)} groups {have} one run only, whose value may be chance")
    for i in choice.uncounted[:_MOST_NAMED]:
        row = data.rows[i]
        value = render_number(values[i])
        notes.append(f"{row.name} is {row.state} and does not count; it reached {choice.key.name} {value}")
    if len(choice.uncounted) > _MOST_NAMED:
        notes.append(f"and {len(choice.uncounted) - _MOST_NAMED} more that are not done reached a better value")
    if choice.without:
        notes.append(f"{render_count(choice.without, 'finished run')} without a finite {choice.key.name} did not count")
    return notes


# ---------------------------------------------------------------- for machines


def _build_facts(choice: BestChoice, run: BestRun, data: IndexTable) -> dict[str, Any]:
    column = data.metrics[choice.key.name]
    values = choice.key.values(column)
    following = choice.ranked[1] if len(choice.ranked) > 1 else None
    named = zip(("best", "next"), choice.ranked, strict=False)
    groups = {name: (each.group, each.spread) for name, each in named if each.group and each.spread}
    error = choice.standard_error
    return {
        "study": run.row.study,
        "metric": choice.key.name,
        "direction": choice.key.direction,
        "counted": len(choice.ranked),
        "best": {
            **_run_facts(data, choice.best.run, choice.key),
            "dir": run.dir,
            "differing": list(run.differing),
            "commands": dict(run.commands),
        },
        "next": _run_facts(data, following.run, choice.key) if following else None,
        "margin": choice.margin,
        "relative_margin": choice.relative_margin,
        "tied": [each.name for each in choice.tied[1:]],
        "group_by": list(choice.group_by),
        "groups": {
            name: {"params": group.params, **spread._asdict(), "runs": [data.rows[i].key for i in group.runs]}
            for name, (group, spread) in groups.items()
        },
        "standard_error": error,
        "within_spread": None if error is None or choice.margin is None else choice.margin <= _CLEAR * error,
        "uncounted": [
            {"run": data.rows[i].key, "state": str(data.rows[i].state), "value": values[i]} for i in choice.uncounted
        ],
        "hints": [command for _, command in run.hints],
    }


def _run_facts(data: IndexTable, i: int, key: SortKey) -> dict[str, Any]:
    column, row = data.metrics[key.name], data.rows[i]
    step = key.find_step(column, i)
    return {
        "run": row.key,
        "value": key.values(column)[i],
        "step": whole_step(step) if math.isfinite(step) else None,
        "last": column.last[i],
        "params": dict(row.params),
        "tags": list(row.tags),
        "received": row.received,
    }


# ---------------------------------------------------------------- several metrics


def build_front_document(
    data: IndexTable, keep: Sequence[int], keys: Sequence[SortKey], locations: Sequence[StudyLocation]
) -> Document | None:
    """Build the document about the Pareto set of the done runs; None if no done run has all the metrics."""
    done = [i for i in keep if _counts(data.rows[i])]
    front = find_pareto_rows(data, done, keys)
    if not front.items:
        return None
    order = sort_rows(data, front.items, keys, [row.params for row in data.rows])
    values = {key.name: [row_value(data, i, key) for i in order] for key in keys}
    differing = differing_params([data.rows[i].params for i in keep])
    several = len(locations) > 1
    columns = [Column("run"), *(Column(name, digits=None) for name in differing)]
    columns += [Column(key.name, "clock" if key.is_time else "number") for key in keys]
    rows = [
        [row.key if several else row.name, *(row.params.get(name) for name in differing), *found]
        for row, *found in zip((data.rows[i] for i in order), *values.values(), strict=True)
    ]
    by = ", ".join(f"{key.name} ({_WORDS[key.direction]})" for key in keys)
    studies = ", ".join(location.name for location in locations)
    title = f"{studies}: {len(order)} of {render_count(front.compared, 'run')} in the Pareto set by {by}"
    first = describe_best(data, keep, order[0], locations)
    blocks: list[Block] = [
        Heading(title),
        Only(("terminal",), (Text(title, role="strong"),)),
        Section((TableBlock(Table(tuple(columns), rows)),)),
        Text("no other run that is done is at least as good in all of them and better in one", role="soft"),
        Section((Commands(first.hints),)),
    ]
    facts = {
        "studies": [location.name for location in locations],
        "metrics": [{"metric": key.name, "direction": key.direction} for key in keys],
        "compared": front.compared,
        "front": [
            {
                "run": data.rows[i].key,
                "params": dict(data.rows[i].params),
                "values": {name: found[at] for name, found in values.items()},
            }
            for at, i in enumerate(order)
        ],
        "hints": [command for _, command in first.hints],
    }
    return Document(title, blocks, facts=facts)
