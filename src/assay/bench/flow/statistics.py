"""What benchmarks ask of the judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.bench.judge.changepoint import find_change_points
from assay.bench.judge.origin import attribute_changes
from assay.bench.judge.samples import Question, Scale, build_pair, compare_pairs, find_fewest, find_median
from assay.bench.judge.trend import count_needed, find_detectable, find_trend
from assay.bench.values.comparison import Attribution, ChangePoint
from assay.bench.values.history import Step

_MOVE_ALPHA = 0.05  # of a move to another set-up: it is looked at once, not searched for
FEWEST_MOVED = find_fewest(_MOVE_ALPHA)  # executions on either side of it, below which nothing can be sure


@dataclass(frozen=True, slots=True)
class Course:
    """What a series shows: steps, or instead of them a level that creeps; and what it could have shown."""

    steps: tuple[tuple[Step, Attribution], ...]  # where the level changed and stayed, and what changed there as well
    trend: Step | None  # from the first value to the last
    detectable: float | None
    needed: int | None  # points that would show the change that was asked for


def describe_course(
    values: Sequence[float], fingerprints: Sequence[str | None], commits: Sequence[str | None], asked: float
) -> Course:
    """`asked`: the smallest change that has to be seen."""
    changes = find_change_points(values)
    trend = find_trend(values, changes)
    steps = () if trend else attribute_changes(changes, values, fingerprints, commits=commits)
    return Course(
        tuple((build_step(cause.change), cause) for cause in steps),
        Step(0, trend.before, trend.after, trend.size, trend.interval) if trend else None,
        find_detectable(values, trend or changes),
        count_needed(values, asked, trend or changes),
    )


def build_step(point: ChangePoint) -> Step:
    return Step(point.index, point.before, point.after, point.size, point.interval)


def compare_levels(old: Sequence[float], new: Sequence[float], at: int) -> Step | None:
    """Two stretches that met at a known place; None: too few values, or no difference."""
    (found,) = compare_pairs([build_pair("", old, new, Question("min", 0.0, _MOVE_ALPHA))])
    if found.p is None or found.p >= _MOVE_ALPHA or found.base is None or found.head is None or found.effect is None:
        return None
    return Step(at, found.base, found.head, found.effect, found.interval)


def look_at_few(old: Sequence[float], new: Sequence[float], at: int) -> Step:
    """The same where they are too few to be judged: medians, without an interval."""
    levels = find_median(old), find_median(new)
    scale = Scale.of(levels, levels[0])
    before, after = scale.apply(levels)
    return Step(at, *levels, scale.relate(after - before))


def describe_few(old: Sequence[float], new: Sequence[float]) -> str:
    """Where they lie, since no test can be asked."""
    inside = sum(min(old) <= value <= max(old) for value in new)
    where = "within" if inside == len(new) else "partly outside" if inside else "outside"
    counts = f"{count_executions(len(new))} on a new set-up"
    if len(new) >= FEWEST_MOVED:
        counts = f"{count_executions(len(old))} on the old set-up"
    return f"{counts}, too few to judge ({FEWEST_MOVED} are the fewest), {where} the old range"


def count_executions(number: int) -> str:
    return f"{number} execution{'' if number == 1 else 's'}"
