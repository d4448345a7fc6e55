"""`assay bench history`: where a metric changed, by how much, between which commits, and whether it was the code.

Executions that may not be compared are never in one series: each label and each set-up (processor, accelerator, driver,
framework, versions) has its own. Where one set-up follows another, the levels on both sides are compared, and the
change says what else was changed there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from assay.bench.flow.archive import choose_metric, find_place, load_executions
from assay.bench.judge.environments import attribute_move, attribute_trend, describe_differences
from assay.bench.judge.history import (
    FEWEST_MOVED,
    Course,
    compare_levels,
    describe_course,
    describe_few,
    judge_history,
    look_at_few,
)
from assay.bench.judge.samples import find_median
from assay.bench.judge.series import SHORTEST_SERIES
from assay.bench.records import Triage, load_triage
from assay.bench.values.comparison import (
    CONTAMINATED,
    INTERRUPTED,
    PROFILED,
    TAKEN_BY_ALL,
    UNOBSERVED,
    Attribution,
    Change,
    MetricHistory,
    MetricSeries,
    Point,
    Step,
)
from assay.bench.values.execution import NOT_OBSERVED, BenchExecution
from assay.errors import NotFoundError, UsageError
from assay.show.console import SILENT, Console
from assay.values.metric_direction import Direction, direction_of

_NEAR = 3  # a change may be found a few executions beside where it was found before
_SIDE = 20  # executions on either side of a move to another set-up that are compared
FEWEST = 2
REPORTED = 0.01  # changes as large as this are reported, where nobody says how small one matters
ASSERTED = 0.05  # and a PASS means that one as large as this would have been found


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    root: str | None = None
    label: str | None = None
    min_effect: float | None = None  # smaller changes are not reported, and a PASS means that one so large is not there
    recent: int | None = None  # only changes within the last N executions of a series raise an alarm
    everything: bool = False  # contaminated and profiled executions count as well
    direction: Direction | None = None

    @property
    def reported(self) -> float:
        return REPORTED if self.min_effect is None else self.min_effect

    @property
    def asserted(self) -> float:
        return ASSERTED if self.min_effect is None else self.min_effect


def load_histories(
    metric: str, method: str | None, options: HistoryOptions, console: Console = SILENT
) -> list[MetricHistory]:
    """Of one method, or of every method that reports the metric."""
    place = find_place(options.root)
    executions = load_executions(place, method, console)
    meant = _choose_labelled(executions, options.label)
    named = {execution.method for execution in meant if metric in execution.numbers}
    if not named:
        choose_metric(metric, meant)
    chosen = sorted(named)
    triage = load_triage(place.dir)
    found: list[MetricHistory] = []
    missing: list[UsageError] = []
    for name in chosen:
        try:
            found.append(build_history(name, metric, [e for e in executions if e.method == name], options, triage))
        except UsageError as error:
            missing.append(error)
    if not found:
        raise _join_errors(metric, missing)
    for each in missing:  # one that has run once is no reason to say nothing of the others
        console.warning(f"{each.message} ({each.hint})")
    for line in _describe_never([e for e in meant if e.method not in named]):
        console.warning(line)
    return found


def _choose_labelled(executions: Sequence[BenchExecution], label: str | None) -> Sequence[BenchExecution]:
    """All, or those with the label: of benchmarks that never had it nothing is to be said."""
    found = [execution for execution in executions if label in (None, execution.label)]
    if label is not None and not found:
        raise NotFoundError("label", label, sorted({each.label for each in executions if each.label}))
    return found


def _describe_never(executions: Sequence[BenchExecution]) -> Iterator[str]:
    """Benchmarks that failed from their first execution on report no metric at all, and would be passed over."""
    by_method = {execution.method: execution for execution in executions if not execution.is_interrupted}
    reported = {execution.method for execution in executions if execution.result.numbers}
    for method, last in by_method.items():
        if method not in reported and last.result.findings:
            yield f"{method} has never reported anything: {last.result.findings[0].message}"


def _join_errors(metric: str, errors: Sequence[UsageError]) -> UsageError:
    """Of several benchmarks of which none has a history; what helps some of them is said once."""
    if len(errors) == 1:
        return errors[0]
    lines = "".join(f"\n  {error.message}" for error in errors)
    hints = "\n  ".join(dict.fromkeys(error.hint for error in errors if error.hint))
    return UsageError(f"none of {len(errors)} benchmarks has a history of {metric}{lines}", hints)


def build_history(
    method: str, metric: str, executions: Sequence[BenchExecution], options: HistoryOptions, triage: Sequence[Triage]
) -> MetricHistory:
    said = [each for each in triage if each.method == method and each.metric == metric]
    kept, left_out = _choose(executions, metric, options, said)
    if len(kept) < FEWEST:
        why = "".join(f"; {count} left out: {reason}" for reason, count in left_out.items())
        raise UsageError(
            f"{method} has {len(kept)} execution{'s' * (len(kept) != 1)} with {metric}: that is no history{why}",
            _advise(len(kept), left_out),
        )
    direction = options.direction or direction_of(metric)
    series = [_build_series(found, metric, direction, options, said) for found in _group(kept).values()]
    moves = _find_moves(kept, metric, direction, options, said)
    broken = _describe_newest(executions, metric, options, said)
    history = MetricHistory(method, metric, direction, tuple(series), tuple(moves), left_out=left_out, broken=broken)
    return replace(history, verdict=judge_history(history, options.recent, options.asserted))


def _advise(kept: int, left_out: Mapping[str, int]) -> str:
    """What is there already, and is left out, costs nothing."""
    spare = sum(left_out.get(reason, 0) for reason in TAKEN_BY_ALL)
    again = "run it again: assay bench run METHOD --trials N"
    if spare and kept + spare < FEWEST:
        return f"{again}, when the machine is quiet; or {advise_all(left_out)}"
    return advise_all(left_out) if spare else again


def advise_all(left_out: Mapping[str, int]) -> str:
    """Empty where `--all` would change nothing."""
    names = [reason for reason in TAKEN_BY_ALL if left_out.get(reason)]
    return f"take {' and '.join(names)} ones as well: --all" if names else ""


def _describe_newest(
    executions: Sequence[BenchExecution], metric: str, options: HistoryOptions, said: Sequence[Triage]
) -> str:
    """Why the newest execution did not succeed: one that broke yesterday has no level that could be worse, and one that
    does not keep its bounds may be as quick as ever. One that somebody ended is none: the one before it counts."""
    meant = [
        execution
        for execution in executions
        if (execution.label == options.label if options.label is not None else not execution.is_compared)
        and not execution.is_interrupted
    ]
    if not meant or meant[-1].execution_id in find_invalid(executions, said):
        return ""
    result = meant[-1].result
    if math.isfinite(meant[-1].numbers.get(metric, math.nan)) and result.succeeded:
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
    if options.label is not None and execution.label != options.label:
        return ""
    if execution.is_interrupted:
        return "" if execution.is_compared else INTERRUPTED
    value = execution.numbers.get(metric)
    if value is None:
        return ""
    if not math.isfinite(value) or not execution.result.is_figure:
        return "failed"
    return _why_left_out(execution, options, invalid)


def _why_left_out(execution: BenchExecution, options: HistoryOptions, invalid: set[str]) -> str | None:
    """Although it has a figure."""
    if execution.is_compared and options.label is None:
        return "run by compare or bisect (--label names one)"
    if execution.execution_id in invalid:
        return "declared invalid"
    if execution.refused:
        return "refused as contaminated"
    return None if options.everything else find_doubt(execution)


def find_doubt(execution: BenchExecution) -> str | None:
    """Why its figure is not what an ordinary execution would have given."""
    if execution.is_profiled:
        return PROFILED
    if execution.contaminated == (NOT_OBSERVED,):
        return UNOBSERVED
    return CONTAMINATED if execution.contaminated else None


def find_invalid(executions: Sequence[BenchExecution], said: Sequence[Triage]) -> set[str]:
    """Everything from a change that was declared invalid to the last execution that was meant then; what another label
    or set-up measured meanwhile was not meant."""
    order = {execution.execution_id: place for place, execution in enumerate(executions)}
    found: set[str] = set()
    for each in last_words(said):
        if each.judgement == "invalid" and each.execution_id in order:
            first = order[each.execution_id]
            last = order.get(each.until, first)
            meant = find_series(executions[first])
            found |= {e.execution_id for e in executions[first : last + 1] if find_series(e) == meant}
    return found


def list_invalid(executions: Sequence[BenchExecution], said: Sequence[Triage]) -> dict[tuple[str, str], set[str]]:
    """The same for every method and metric that anything was said about."""
    found = {}
    for method, metric in dict.fromkeys((each.method, each.metric) for each in said):
        mine = [execution for execution in executions if execution.method == method]
        found[method, metric] = find_invalid(mine, [e for e in said if (e.method, e.metric) == (method, metric)])
    return found


def find_series(execution: BenchExecution) -> tuple[str | None, str]:
    """What may be held against it: one label, one set-up."""
    return execution.label, execution.fingerprint


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
        groups.setdefault(find_series(execution), []).append(execution)
    return groups


def build_point(execution: BenchExecution, metric: str) -> Point:
    return Point(
        execution.execution_id,
        execution.numbers[metric],
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
    codes = [execution.code for execution in found]
    values = [point.value for point in points]
    course = describe_course(values, [first.fingerprint] * len(points), codes, options.asserted)
    changes = tuple(_build_changes(points, codes, course, direction, options.reported, said))
    return MetricSeries(first.label, first.fingerprint, first.setup, points, changes, course.detectable, course.needed)


def _build_changes(
    points: Sequence[Point],
    codes: Sequence[str | None],
    course: Course,
    direction: Direction,
    smallest: float,
    said: Sequence[Triage],
) -> Iterator[Change]:
    if course.trend is not None and abs(course.trend.effect) >= smallest:
        yield _build_trend(points, codes, course.trend, direction, said)
    steps = [(step, cause) for step, cause in course.steps if abs(step.effect) >= smallest]
    for number in range(len(steps)):
        yield _build_change(points, steps, number, direction, said)


def _build_trend(
    points: Sequence[Point], codes: Sequence[str | None], step: Step, direction: Direction, said: Sequence[Triage]
) -> Change:
    cause, reason = attribute_trend(codes[0], codes[-1])
    change = Change(
        step=step,
        execution_id=points[0].execution_id,
        until=points[-1].execution_id,
        at=points[0].at,
        commits=(points[0].commit, points[-1].commit),
        cause=cause,
        reason=reason,
        is_worse=is_worse(step.effect, direction),
        kind="trend",
    )
    return add_triage_words(change, {points[0].execution_id}, said)


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
            if found[place].fingerprint not in seen:
                move = _build_move(found, place, metric, direction, said)
                if move is not None and (move.too_few or abs(move.step.effect) >= options.reported):
                    moves.append(move)
            seen.add(found[place].fingerprint)
    return moves


def _build_move(
    found: Sequence[BenchExecution], place: int, metric: str, direction: Direction, said: Sequence[Triage]
) -> Change | None:
    """None: both levels are known, and they are the same."""
    before, after = _find_predecessor(found, place), found[place]
    old = _collect(found[:place], before, metric)[-_SIDE:]
    new = _collect(found[place:], after, metric)[:_SIDE]
    few = len(new) if min(len(old), len(new)) < FEWEST_MOVED else 0
    step = look_at_few(old, new, place) if few else compare_levels(old, new, place)
    if step is None or few >= SHORTEST_SERIES:  # by then it has a history of its own
        return None
    cause, reason = attribute_move(before.code, after.code)
    last = [e for e in found if e.fingerprint == after.fingerprint][-1]
    change = Change(
        step=step,
        execution_id=after.execution_id,
        until=last.execution_id,
        at=after.started_at,
        commits=(before.commit, after.commit),
        cause=cause,
        reason=f"{describe_few(old, new)}; {reason}" if few else reason,
        differences=describe_differences(before.setup, after.setup),
        is_worse=is_worse(step.effect, direction),
        holds=_still_holds(found, place, before, step, metric, young=bool(few)),
        too_few=few,
    )
    return add_triage_words(change, {after.execution_id}, said)


def _find_predecessor(found: Sequence[BenchExecution], place: int) -> BenchExecution:
    """The last execution of a set-up that has enough of them to be held against; the very last where none has."""
    counts = Counter(execution.fingerprint for execution in found[:place])
    known = [execution for execution in found[:place] if counts[execution.fingerprint] >= FEWEST_MOVED]
    return (known or found[:place])[-1]


def _collect(found: Sequence[BenchExecution], like: BenchExecution, metric: str) -> list[float]:
    return [e.numbers[metric] for e in found if e.fingerprint == like.fingerprint]


def _still_holds(
    found: Sequence[BenchExecution], place: int, before: BenchExecution, step: Step, metric: str, *, young: bool
) -> bool:
    """Not where the old set-up was measured again since, at its old level: whether the machine is back or both run in
    turns, the code is not to blame. Nor where a third set-up has come since that is at the old level."""
    after, newest = found[place], found[-1]
    back = _collect(found[place:], before, metric)[-_SIDE:]
    if back and not _holds(step, find_median(back)):
        return False
    if young or newest.fingerprint == after.fingerprint:  # what will never be judged is nobody's trouble any more
        return newest.fingerprint == after.fingerprint
    return _holds(step, find_median(_collect(found[place:], newest, metric)[-_SIDE:]))
