"""Decides which runs a rule of `stop:` ends, by pure functions of recorded points.

Runs are compared at rungs. Each recorded step belongs to one rung (the last rung that begins at or before the step),
and a run's value at a rung is the best of its points up to its first point in that rung. So the compared values depend
on steps alone: not on when a log was read, nor on how far a run has come since.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import count
from statistics import median

from assay.values.run import Ending
from assay.values.study import StopRule

COMPARING = ("asha", "median")  # rules that compare a run with others


class RungCurve:
    """The points of one run in the order of their steps, reduced to what a rule needs."""

    def __init__(self, rule: StopRule) -> None:
        self._rule = rule
        self.rungs = array("q")  # numbers of the rungs that the run has reached, ascending
        self.values = array("d")  # the best value at each rung
        self.steps = array("d")  # the step at which each value was recorded
        self.ending: Ending | None = None  # why a rule ends the run, for rules that do not compare runs
        self.last_step = -math.inf
        self._best, self._best_step = math.nan, math.nan

    def add(self, step: float, value: float) -> None:
        """Add the next point, whose step is not below that of the last point."""
        rule, self.last_step = self._rule, step
        before, was_at = self._best, self._best_step
        is_first = math.isnan(was_at)
        if is_first or is_better(rule, value, before, rule.min_delta if rule.rule == "patience" else 0):
            self._best, self._best_step = value, step
        if rule.rule in COMPARING:
            rung = find_rung(rule, step)
            if rung is not None and (not self.rungs or rung > self.rungs[-1]):
                self.rungs.append(rung)
                self.values.append(self._best)
                self.steps.append(step)
        elif self.ending is None and rule.rule == "bounds":
            self.ending = _judge_bounds(rule, step, value)
        elif self.ending is None and (waited := step - self._best_step) >= rule.patience:
            best = f"best {self._best:.4g} at step {self._best_step:g}"
            self.ending = Ending(f"patience: no better {rule.metric} for {waited:g} steps ({best})", "final")

    def value_at(self, rung: int) -> float | None:
        """Return the value at a rung; None if the run has not recorded a point there."""
        place = bisect_left(self.rungs, rung)
        return self.values[place] if place < len(self.rungs) and self.rungs[place] == rung else None


def build_curve(rule: StopRule, steps: Sequence[float], values: Sequence[float]) -> RungCurve:
    """Build a curve from points in any order; the step of a point without a step is the number of the point, from 1."""
    numbered = (number if math.isnan(step) else step for number, step in zip(count(1), steps, strict=False))
    curve = RungCurve(rule)
    for step, value in sorted(zip(numbered, values, strict=True), key=lambda point: point[0]):
        curve.add(step, value)
    return curve


def find_rung(rule: StopRule, step: float) -> int | None:
    """Return the number of the rung of a step, from 0; None if the step is before the first rung or after the end."""
    if rule.at is not None:
        return bisect_right(rule.at, step) - 1 if step >= rule.at[0] else None
    if step < rule.first or (rule.until is not None and step >= rule.until):
        return None
    if rule.rule == "median":
        return math.floor((step - rule.first) / rule.every)
    rung = round(math.log(step / rule.first, rule.factor))  # rounded, as a logarithm is not exact
    return rung if rule.first * rule.factor**rung <= step else rung - 1


def name_rung(rule: StopRule, rung: int) -> str:
    """Return the name of a rung, which is the step at which it begins."""
    if rule.at is not None:
        return f"{rule.at[rung]:g}"
    return f"{rule.first * rule.factor**rung if rule.rule == 'asha' else rule.first + rung * rule.every:g}"


def judge_curve(rule: StopRule, own: RungCurve, others: Iterable[RungCurve], since: int = 0) -> Ending | None:
    """Return why the rule ends the run, or None. `since`: how many of the run's rungs have been judged before."""
    if rule.rule not in COMPARING:
        return own.ending
    known = list(others) if since < len(own.rungs) else []
    for place in range(since, len(own.rungs)):
        rung = own.rungs[place]
        there = [value for curve in known if (value := curve.value_at(rung)) is not None]
        judge = _judge_asha if rule.rule == "asha" else _judge_median
        if reason := judge(rule, own, place, there):
            return Ending(reason)
    return None


def _judge_asha(rule: StopRule, own: RungCurve, place: int, others: Sequence[float]) -> str | None:
    """Return why a run is not among the best 1/factor of the runs that have reached a rung; None if it is."""
    value, total = own.values[place], len(others) + 1
    rank = 1 + sum(is_better(rule, other, value) for other in others)
    if total < rule.runs or rank <= math.ceil(total / rule.factor):
        return None
    suffix = "th" if rank % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th")
    return f"asha rung {name_rung(rule, own.rungs[place])}, {rank}{suffix} of {total}"


def _judge_median(rule: StopRule, own: RungCurve, place: int, others: Sequence[float]) -> str | None:
    """Return why a run's best value so far is worse than the median of the other runs at a rung; None if it is not."""
    if len(others) + 1 < rule.runs:
        return None
    worst = math.inf if rule.direction == "min" else -math.inf
    middle = median(worst if math.isnan(other) else other for other in others)
    if not is_better(rule, middle, own.values[place]):
        return None
    value = f"{own.values[place]:.4g} at step {own.steps[place]:g}"
    return f"median: {value}, median of {len(others)} runs {middle:.4g}"


def _judge_bounds(rule: StopRule, step: float, value: float) -> Ending | None:
    at = f"at step {step:g}"
    if rule.finite and not math.isfinite(value):
        return Ending(f"bounds: {rule.metric} {value:g} {at}")
    if rule.max is not None and value > rule.max:
        return Ending(f"bounds: {rule.metric} {value:.4g} above {rule.max:g} {at}")
    if rule.min is not None and value < rule.min:
        return Ending(f"bounds: {rule.metric} {value:.4g} below {rule.min:g} {at}")
    if rule.target is not None and (value == rule.target or is_better(rule, value, rule.target)):
        return Ending(f"bounds: {rule.metric} {value:.4g} has reached its target {rule.target:g} {at}", "final")
    return None


def is_better(rule: StopRule, value: float, than: float, by: float = 0) -> bool:
    """Return whether `value` is better than `than` by more than `by`. NaN is worse than every number."""
    if math.isnan(value) or math.isnan(than):
        return not math.isnan(value)
    return value < than - by if rule.direction == "min" else value > than + by
