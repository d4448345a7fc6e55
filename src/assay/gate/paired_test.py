"""A group-sequential paired t-test over seeds (is side b better than side a?), and the choice among several winners.

The test is repeated at several looks, each with more pairs. The one-sided level of a look grows with the number of its
pairs (the shape of Wang and Tsiatis, Δ = 0.25). One constant scales the levels; it is calibrated by simulation so that
equal sides are called `better` at any look with probability `ALPHA`. The interval of a look has the test's boundary (a
repeated confidence interval), so it holds whenever the test ends. Error rates: `docs/explanation/trying-ideas.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Literal

from assay.judge.statistics import load_numpy, needed_for, np, t_quantile, t_tail
from assay.system.fast_dataclasses import dataclass
from assay.values.series import Direction, mean_and_sd

Choice = Literal["better", "worse", "same", "undecided"]

ALPHA = 0.025  # probability of `better`, and of `worse`, between equal sides: intervals have 95%
FEWEST = 5  # fewest pairs: fewer all favour b by chance too often (four pairs in 1 of 16 cases)
FALSE_KEPT = 0.10  # expected fraction of wrong ideas among those that are kept after a confirmation
_FIRST = 6  # pairs at the first look
_POWER = 0.25  # how fast the boundary falls: 0.5 - Δ of Wang and Tsiatis
_LIMITS = (0.0, 1.0, 100.0)  # limits of losses, error rates and accuracies
_PATHS, _BLOCK, _SEED = 100_000, 2_000_000, 20_240_613  # size and seed of the simulation that calibrates the boundary


@dataclass(frozen=True, slots=True)
class SeedPair:
    """The values of both sides with one seed. A value is None if the run failed or has no value of the metric."""

    seed: int
    a: float | None
    b: float | None

    @property
    def is_bad_a(self) -> bool:
        return self.a is None or not math.isfinite(self.a)

    @property
    def is_bad_b(self) -> bool:
        return self.b is None or not math.isfinite(self.b)

    @property
    def change(self) -> float | None:
        """The difference b - a; None unless both values are finite."""
        return None if self.a is None or self.b is None or self.is_bad_a or self.is_bad_b else self.b - self.a


@dataclass(frozen=True, slots=True)
class TryQuestion:
    """Which differences matter: a fraction of side a, or, with `change`, an amount."""

    direction: Direction
    effect: float = 0.005
    change: float | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of a look. `effect` and `interval` describe b - a in the units of the metric."""

    verdict: Choice
    pairs: int  # pairs with a value on at least one side
    effect: float | None = None
    relative: float | None = None  # the effect as a fraction of side a
    interval: tuple[float, float] | None = None
    threshold: float | None = None
    failed_a: int = 0
    failed_b: int = 0


def check_libraries() -> None:
    """Raise an error, before anything runs, if a library that the test needs is not installed."""
    with needed_for("assay try"):
        load_numpy()
        t_quantile(FEWEST, ALPHA)


@lru_cache(maxsize=8)
def build_schedule(most: int) -> tuple[tuple[int, float], ...]:
    """Return the number of pairs and the one-sided level of each look: after every second pair from the sixth on or,
    with more than twenty pairs, after each tenth of all pairs."""
    step = max(2, math.ceil(most / 10))
    looks = (*range(max(_FIRST, 3 * step), most, step), most)
    if len(looks) == 1:
        return ((most, ALPHA),)
    values, low, high = _simulate(looks), 1.0, 6.0
    for _ in range(40):
        scale = (low + high) / 2
        limits = [t_quantile(count - 1, level) for count, level in _find_levels(looks, scale)]
        alarms = float((values > limits).any(axis=1).mean())  # how often t exceeds the boundary at one of the looks
        low, high = (scale, high) if alarms > ALPHA else (low, scale)
    return _find_levels(looks, high)


def _find_levels(looks: Sequence[int], scale: float) -> tuple[tuple[int, float], ...]:
    return tuple((count, NormalDist().cdf(-scale * (looks[-1] / count) ** _POWER)) for count in looks)


def _simulate(looks: Sequence[int]) -> Any:
    """Simulate t at each look, from normal differences without an effect: one row for each path."""
    random, rows = np.random.default_rng(_SEED), max(1, _BLOCK // looks[-1])
    blocks = []
    for start in range(0, _PATHS, rows):
        drawn = random.standard_normal((min(rows, _PATHS - start), looks[-1]))
        parts = [drawn[:, :count] for count in looks]
        blocks.append(np.stack([p.mean(axis=1) / p.std(axis=1, ddof=1) * math.sqrt(p.shape[1]) for p in parts], axis=1))
    return np.concatenate(blocks)


def judge_look(pairs: Sequence[SeedPair], level: float, question: TryQuestion) -> Judged:
    """Return the verdict at a look. `pairs`: the pairs of the first seeds in order. `level`: the look's level."""
    failed_a, failed_b = sum(pair.is_bad_a for pair in pairs), sum(pair.is_bad_b for pair in pairs)
    changes, good, threshold = build_changes(pairs, question)
    mean, sd = mean_and_sd(changes)
    if mean is None or sd is None or len(changes) < FEWEST:
        return Judged("undecided", len(changes), failed_a=failed_a, failed_b=failed_b)
    half = t_quantile(len(changes) - 1, level) * measure_error(pairs, sd, len(changes))
    interval = (mean - half, mean + half)
    verdict: Choice = "undecided"
    if -threshold <= interval[0] and interval[1] <= threshold:
        verdict = "undecided" if failed_a or failed_b else "same"  # failed runs do not prove equality
    elif (interval[0] > 0 or interval[1] < 0) and abs(mean) > threshold:
        verdict = "better" if (mean < 0) == (question.direction == "min") else "worse"
    if all(pair.change is None for pair in pairs):  # no seed has a value on both sides
        return Judged(verdict, len(changes), failed_a=failed_a, failed_b=failed_b)
    mean_a, _ = mean_and_sd(good)
    relative = mean / abs(mean_a) if mean_a else None
    return Judged(verdict, len(changes), mean, relative, interval, threshold, failed_a, failed_b)


def build_changes(pairs: Sequence[SeedPair], question: TryQuestion) -> tuple[list[float], list[float], float]:
    """Return b - a of each pair that has a value, the finite values of side a, and the smallest difference that
    matters. A side that failed counts as worse, by the largest of all differences."""
    counted = [pair for pair in pairs if not (pair.is_bad_a and pair.is_bad_b)]
    good = [pair.a for pair in counted if pair.a is not None and not pair.is_bad_a]
    mean, _ = mean_and_sd(good)
    threshold = question.effect * abs(mean or 0.0) if question.change is None else question.change
    worst = max([2 * threshold, *(abs(pair.change) for pair in counted if pair.change is not None)]) or 1.0
    worse = worst if question.direction == "min" else -worst
    penalties = [worse if pair.is_bad_b else -worse for pair in counted]
    known = zip((pair.change for pair in counted), penalties, strict=True)
    return [penalty if change is None else change for change, penalty in known], good, threshold


def measure_error(pairs: Sequence[SeedPair], sd: float, count: int) -> float:
    """Return the standard error of the mean change. A side with the same value for all seeds counts as a single run,
    whose distance from its mean may be that of the other side's runs, unless the value is a limit of the metric."""
    sides = [pair.a for pair in pairs if not pair.is_bad_a], [pair.b for pair in pairs if not pair.is_bad_b]
    is_one_run = any(len(side) > 1 and len({*side}) == 1 and side[0] not in _LIMITS for side in sides)
    return sd * math.sqrt(is_one_run + 1 / count)


def is_one_pair(pairs: Sequence[SeedPair]) -> bool:
    """Return whether all pairs have the same two different values: the seed is not used, and all pairs are one."""
    return len(pairs) > 1 and bool(pairs[0].change) and len({(pair.a, pair.b) for pair in pairs}) == 1


def is_near_zero(values: Sequence[float]) -> bool:
    """Return whether a fraction of these values is meaningless: they have both signs, or their mean may be zero."""
    mean, sd = mean_and_sd(values)
    if mean is None or not math.isfinite(mean) or min(values) <= 0 <= max(values):
        return bool(values)
    return sd is not None and len(values) >= FEWEST and abs(mean) <= 2 * sd / math.sqrt(len(values))


def measure_chance(pairs: Sequence[SeedPair], question: TryQuestion) -> float:
    """Return the one-sided p value of `better` by a t-test, at least the chance that equal sides agree in all pairs."""
    changes, _, _ = build_changes(pairs, question)
    mean, sd = mean_and_sd(changes)
    if mean is None or sd is None or len(changes) < FEWEST or is_one_pair(pairs):
        return 1.0
    gain = -mean if question.direction == "min" else mean
    tail = t_tail(len(changes) - 1, gain / measure_error(pairs, sd, len(changes))) if sd else float(gain <= 0)
    return max(0.5 ** len(changes), tail)


def choose_kept(chances: Sequence[float]) -> list[bool]:
    """Choose tries to keep by Benjamini and Hochberg: on average at most a fraction `FALSE_KEPT` of them is wrong."""
    fitting = [p for rank, p in enumerate(sorted(chances), 1) if p <= FALSE_KEPT * rank / len(chances)]
    return [bool(fitting) and p <= fitting[-1] for p in chances]
