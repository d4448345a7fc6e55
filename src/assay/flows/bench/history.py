"""`assay bench history`: where a metric changed, by how much, between which commits, and whether it was the code.

Executions that may not be compared are never in one series: each label and each set-up (processor, accelerator, driver,
framework, versions) has its own. Where one set-up follows another, the levels on both sides are compared, and the
change says what else was changed there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from assay.errors import UsageError
from assay.flows.bench.archive import Complain, choose_metric, find_place, keep_quiet, load_executions
from assay.flows.bench.statistics import compare_levels, find_steps
from assay.judge.history import judge_history
from assay.record.benchmarks import Triage, load_triage
from assay.values.bench import Attribution
from assay.values.bench_history import Change, MetricHistory, MetricSeries, Point, Step
from assay.values.benchmark import BenchExecution
from assay.values.series import Direction, direction_of

_NEAR = 3  # a change may be found a few executions beside where it was found before
_SIDE = 20  # executions on either side of a move to another set-up that are compared
FEWEST = 2


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    root: str | None = None
    label: str | None = None
    min_effect: float = 0.01  # smaller changes are not spoken of
    recent: int | None = None  # only changes within the last N executions of a series raise an alarm
    everything: bool = False  # contaminated executions count as well
    direction: Direction | None = None


def load_histories(
    metric: str, method: str | None, options: HistoryOptions, complain: Complain = keep_quiet
) -> list[MetricHistory]:
    """Of one method, or of every method that reports the metric."""
    place = find_place(options.root)
    executions = load_executions(place, method, complain)
    named = {execution.method for execution in executions if metric in execution.result.numbers}
    if not named:
        choose_metric(metric, executions)
    chosen = sorted(named)
    triage = load_triage(place.dir)
    found: list[MetricHistory] = []
    for name in chosen:
        try:
            found.append(build_history(name, metric, [e for e in executions if e.method == name], options, triage))
        except UsageError as error:
            if name == chosen[-1] and not found:
                raise
            complain(error.message)  # one that has run once is no reason to say nothing of the others
    return found


def build_history(
    method: str, metric: str, executions: Sequence[BenchExecution], options: HistoryOptions, triage: Sequence[Triage]
) -> MetricHistory:
    said = [each for each in triage if each.method == method and each.metric == metric]
    kept, left_out = _choose(executions, metric, options, said)
    if len(kept) < FEWEST:
        why = "".join(f"; {count} left out: {reason}" for reason, count in left_out.items())
        raise UsageError(
            f"{method} has {len(kept)} execution{'s' * (len(kept) != 1)} with {metric}: that is no history{why}",
            "run it again: assay bench run METHOD --trials N",
        )
    direction = options.direction or direction_of(metric)
    series = [_build_series(found, metric, direction, options, said) for found in _group(kept).values()]
    moves = _find_moves(kept, metric, direction, options, said)
    broken = _describe_newest(executions, metric, options, said)
    history = MetricHistory(method, metric, direction, tuple(series), tuple(moves), left_out=left_out, broken=broken)
    return replace(history, verdict=judge_history(history, options.recent))


def _describe_newest(
    executions: Sequence[BenchExecution], metric: str, options: HistoryOptions, said: Sequence[Triage]
) -> str:
    """Why the newest execution gives no value: a benchmark that broke yesterday has no level that could be worse."""
    meant = [
        execution
        for execution in executions
        if (execution.label == options.label if options.label is not None else not execution.is_compared)
    ]
    if not meant or meant[-1].execution_id in find_invalid(executions, said):
        return ""
    result = meant[-1].result
    if math.isfinite(result.numbers.get(metric, math.nan)) and result.is_figure:
        return ""
    reason = result.findings[0].message if result.findings else f"it did not report {metric}"
    return f"the newest execution, {meant[-1].execution_id}, failed: {reason}"


def _choose(
    executions: Sequence[BenchExecution], metric: str, options: HistoryOptions, said: Sequence[Triage]
) -> tuple[list[BenchExecution], dict[str, int]]:
    kept: list[BenchExecution] = []
    left_out: dict[str, int] = {}
    invalid = find_invalid(executions, said)
    for execution in executions:
        reason = _why_not(execution, metric, options, invalid)
        if reason is None:
            kept.append(execution)
        elif reason:
            left_out[reason] = left_out.get(reason, 0) + 1
    return kept, left_out


def _why_not(execution: BenchExecution, metric: str, options: HistoryOptions, invalid: set[str]) -> str | None:
    """None: it counts. An empty text: it is not meant at all."""
    value = execution.result.numbers.get(metric)
    if value is None or (options.label is not None and execution.label != options.label):
        return ""
    if not math.isfinite(value) or not execution.result.is_figure:
        return "failed"
    if execution.is_compared and options.label is None:
        return "run by compare or bisect (--label names one)"
    if execution.execution_id in invalid:
        return "declared invalid"
    if execution.refused:
        return "refused as contaminated"
    return "contaminated" if execution.contaminated and not options.everything else None


def find_invalid(executions: Sequence[BenchExecution], said: Sequence[Triage]) -> set[str]:
    """Everything from a change that was declared invalid to the last execution that was meant then."""
    order = {execution.execution_id: place for place, execution in enumerate(executions)}
    found: set[str] = set()
    for each in last_words(said):
        if each.judgement == "invalid" and each.execution_id in order:
            first = order[each.execution_id]
            last = order.get(each.until, first)
            found |= {execution.execution_id for execution in executions[first : last + 1]}
    return found


def last_words(said: Iterable[Triage]) -> list[Triage]:
    """The last one about each change, in the order in which they were said."""
    found: dict[str, Triage] = {}
    for each in said:
        found.pop(each.execution_id, None)
        found[each.execution_id] = each
    return list(found.values())


def _group(executions: Sequence[BenchExecution]) -> dict[tuple[str | None, str], list[BenchExecution]]:
    groups: dict[tuple[str | None, str], list[BenchExecution]] = {}
    for execution in executions:
        groups.setdefault((execution.label, execution.fingerprint), []).append(execution)
    return groups


def build_point(execution: BenchExecution, metric: str) -> Point:
    return Point(
        execution.execution_id,
        execution.result.numbers[metric],
        execution.started_at,
        execution.commit,
        execution.result.samples.get(metric, ()),
    )


# ---------------------------------------------------------------- changes within a set-up


def _build_series(
    found: Sequence[BenchExecution], metric: str, direction: Direction, options: HistoryOptions, said: Sequence[Triage]
) -> MetricSeries:
    points = tuple(build_point(execution, metric) for execution in found)
    first = found[0]
    steps = find_steps(
        [point.value for point in points], [first.fingerprint] * len(points), [point.commit for point in points]
    )
    steps = [(step, cause) for step, cause in steps if abs(step.effect) >= options.min_effect]
    changes = [_build_change(points, steps, number, direction, said) for number in range(len(steps))]
    return MetricSeries(first.label, first.fingerprint, first.setup, points, tuple(changes))


def _build_change(
    points: Sequence[Point],
    steps: Sequence[tuple[Step, Attribution]],
    number: int,
    direction: Direction,
    said: Sequence[Triage],
) -> Change:
    step, cause = steps[number]
    end = steps[number + 1][0].at if number + 1 < len(steps) else len(points)
    change = Change(
        step=step,
        execution_id=points[step.at].execution_id,
        until=points[end - 1].execution_id,
        at=points[step.at].at,
        commits=(points[step.at - 1].commit, points[step.at].commit),
        cause=cause.origin,
        reason=cause.reason,
        is_worse=is_worse(step.effect, direction),
        holds=_holds(step, steps[-1][0].after),
    )
    near = {point.execution_id for point in points[max(0, step.at - _NEAR) : step.at + _NEAR + 1]}
    return add_triage_words(change, near, said)


def is_worse(effect: float, direction: Direction) -> bool:
    return effect > 0 if direction == "min" else effect < 0


def _holds(step: Step, last_level: float) -> bool:
    """The newest level is still more on the new side than on the old one."""
    middle = (step.before + step.after) / 2
    return last_level > middle if step.after > step.before else last_level < middle


def add_triage_words(change: Change, near: set[str], said: Sequence[Triage]) -> Change:
    for each in reversed(said):
        if each.execution_id in near:
            judgement = "" if each.judgement == "open" else each.judgement
            return replace(change, judgement=judgement, note=each.note if judgement else "")
    return change


# ---------------------------------------------------------------- from one set-up to the next


def _find_moves(
    executions: Sequence[BenchExecution],
    metric: str,
    direction: Direction,
    options: HistoryOptions,
    said: Sequence[Triage],
) -> list[Change]:
    moves = []
    for label in dict.fromkeys(execution.label for execution in executions):
        found = [execution for execution in executions if execution.label == label]
        seen: set[str] = {found[0].fingerprint}
        for place in range(1, len(found)):
            before, after = found[place - 1], found[place]
            if after.fingerprint != before.fingerprint and after.fingerprint not in seen:
                move = _build_move(found, place, metric, direction, said)
                if move is not None and abs(move.step.effect) >= options.min_effect:
                    moves.append(move)
            seen.add(after.fingerprint)
    return moves


def _build_move(
    found: Sequence[BenchExecution], place: int, metric: str, direction: Direction, said: Sequence[Triage]
) -> Change | None:
    before, after = found[place - 1], found[place]
    old = [e.result.numbers[metric] for e in found[:place] if e.fingerprint == before.fingerprint][-_SIDE:]
    new = [e.result.numbers[metric] for e in found[place:] if e.fingerprint == after.fingerprint][:_SIDE]
    step = compare_levels(old, new, place)
    if step is None:
        return None
    same_code = before.commit is not None and before.commit == after.commit
    last = [e for e in found if e.fingerprint == after.fingerprint][-1]
    change = Change(
        step=step,
        execution_id=after.execution_id,
        until=last.execution_id,
        at=after.started_at,
        commits=(before.commit, after.commit),
        cause="environment" if same_code else "either",
        reason="the commit is the same, the set-up is not" if same_code else "set-up and commit both changed",
        differences=describe_differences(before, after),
        is_worse=is_worse(step.effect, direction),
    )
    return add_triage_words(change, {after.execution_id}, said)


def describe_differences(before: BenchExecution, after: BenchExecution) -> tuple[str, ...]:
    keys = dict.fromkeys([*before.setup, *after.setup])
    changed = [key for key in keys if before.setup.get(key) != after.setup.get(key)]
    return tuple(f"{key} {before.setup.get(key, 'none')} → {after.setup.get(key, 'none')}" for key in changed)
