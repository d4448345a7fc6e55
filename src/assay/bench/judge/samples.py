"""Compares a few trials of base and head: is head slower, and by how much?

The test is Mann-Whitney's (exact, ties included, for up to a hundred trials), the effect is the Hodges-Lehmann shift,
and the interval is the one that belongs to the test. Positive values are compared as logs, so that effects are ratios.

FAIL          head is worse by more than the threshold, and the difference is significant
PASS          head is surely not worse by more than the threshold, and the interval is narrow enough to show it
CHANGED       head is better by more than the threshold, and the difference is significant: check the benchmark
INCONCLUSIVE  anything between; the comparison gives the number of further trials that would decide
ERROR, FAIL   nothing to compare, or values that are not finite: never PASS
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from statistics import median_high, median_low

from assay.bench.judge.trials import describe_stragglers, describe_trials, find_stragglers
from assay.bench.values.comparison import NextStep, SampleComparison, Samples
from assay.judge.statistics import Array, needed_for, normal_quantile, np
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.series import Direction
from assay.values.verdict import Finding, VerdictKind

THRESHOLD = 0.05
ALPHA = 0.01
MOST_TRIALS = 60  # trials per side; a difference that 60 trials do not decide is too close to the threshold
MISSED = 0.1  # fraction of changes of the size stated as visible that are missed
WIDEST = 3.0  # widest interval that passes, in units of the threshold
LARGEST_EXACT = 100  # trials of both sides together; with more trials the normal approximation is as good
LARGEST_LOG = 700.0  # exp of a larger value overflows
BUSY_ADVICE = "wait until the machine is quiet, or take them with --all"
PROCESS_SPREAD = 0.05  # assumed for a single process: memory layout, hash seeds and load differ between processes


@dataclass(frozen=True, slots=True)
class Question:
    """How a metric is compared."""

    direction: Direction  # "min": lower is better
    threshold: float = THRESHOLD  # smallest relative effect that matters
    alpha: float = ALPHA


@dataclass(frozen=True, slots=True)
class SamplePair:
    """One metric of both sides. `build_pair` builds a pair from plain sequences of numbers."""

    subject: str
    base: Samples
    head: Samples
    question: Question


def build_pair(
    subject: str, base: Samples | Sequence[float], head: Samples | Sequence[float], question: Question
) -> SamplePair:
    ours, theirs = (given if isinstance(given, Samples) else Samples(tuple(given)) for given in (base, head))
    return SamplePair(subject, ours, theirs, question)


# ---------------------------------------------------------------- verdicts


def build_finding(found: SampleComparison) -> Finding:
    message = "; ".join((found.message, *found.warnings))
    levels = (found.head, found.base)
    return Finding(found.kind, found.subject, message, *levels, effect=found.effect, interval=found.interval)


@needed_for("comparing benchmarks")
def compare_pairs(pairs: Iterable[SamplePair]) -> tuple[SampleComparison, ...]:
    asked = tuple(pairs)
    measured = [_measure(pair) for pair in asked]
    adjusted = iter(adjust_holm([one.p for one in measured if one.p is not None]))
    together = max(1, sum(one.p is not None for one in measured))
    return tuple(
        _allow_for_stragglers(pair, _conclude(pair.question, replace(one, p_adjusted=next(adjusted)), together))
        if one.p is not None
        else one
        for pair, one in zip(asked, measured, strict=True)
    )


def adjust_holm(values: Sequence[float]) -> list[float]:
    """Adjust p values by Holm: multiply each by the number of values that are not smaller, and keep their order."""
    order = sorted(range(len(values)), key=values.__getitem__)
    raised = accumulate((min(1.0, values[index] * (len(values) - rank)) for rank, index in enumerate(order)), max)
    return [adjusted for _, adjusted in sorted(zip(order, raised, strict=True))]


# ---------------------------------------------------------------- one pair


def _measure(pair: SamplePair) -> SampleComparison:
    """Compute all numbers of a comparison; only a comparison without enough valid values gets a verdict here."""
    base, head = pair.base.clean, pair.head.clean
    empty = SampleComparison(pair.subject, VerdictKind.ERROR, "", len(base), len(head))
    refusal = _find_refusal(pair)
    if refusal:
        return replace(empty, kind=refusal[0], message=refusal[1])
    empty = replace(empty, warnings=describe_trials(pair.base, pair.head))
    more = _count_needed(pair)
    if more:
        message = f"too few clean trials for an alpha of {pair.question.alpha:g}: needs {more} more on each side"
        spoilt = [side.label or name for side, name in ((pair.base, "base"), (pair.head, "head")) if not side.clean]
        if spoilt:
            message = f"all trials of {' and '.join(spoilt)} are contaminated: {BUSY_ADVICE}"
        found = replace(empty, kind=VerdictKind.INCONCLUSIVE, message=message, missing_trials=more)
        if spoilt:
            return found
        levels = find_median(base), find_median(head)  # there are too few values for an interval
        ratio = relate_medians(*levels)
        seen = f"{ratio:+.2%}, not significant: {message}"
        return replace(found, base=levels[0], head=levels[1], effect=ratio, message=seen)
    scale = RatioScale.of((*base, *head), find_median(base))
    shift = measure_shift(scale.apply(base), scale.apply(head), pair.question.alpha)
    shift, p = _allow_for_processes(pair, shift, measure_p(base, head), PROCESS_SPREAD * scale.step)
    effect, low, high = map(scale.relate, (shift.estimate, shift.low, shift.high))
    # the smallest shift that is significant, and above the threshold, in 9 of 10 comparisons with this noise
    quantile = normal_quantile(pair.question.alpha / 2)
    error = (shift.high - shift.low) / 2 / quantile
    least = max(quantile * error, math.log1p(pair.question.threshold) * scale.step) + normal_quantile(MISSED) * error
    visible = abs(scale.relate(least if pair.question.direction == "min" else -least))
    return replace(
        empty,
        base=find_median(base),
        head=find_median(head),
        effect=effect,
        interval=(low, high),
        p=p,
        detectable=visible,
    )


def _find_refusal(pair: SamplePair) -> tuple[VerdictKind, str] | None:
    asked = pair.question
    if not math.isfinite(asked.threshold) or asked.threshold < 0:
        return VerdictKind.ERROR, f"a threshold of {asked.threshold:g} is not valid; it is a fraction such as 0.05"
    if not 0 < asked.alpha < 0.5:
        return (
            VerdictKind.ERROR,
            f"an alpha of {asked.alpha:g} is not valid; it is the rate of false alarms, such as 0.01",
        )
    for side, kind in ((pair.base, VerdictKind.ERROR), (pair.head, VerdictKind.FAIL)):
        name = side.label or ("base" if side is pair.base else "head")
        if not side.values:
            return VerdictKind.ERROR, f"{name} has no values"
        bad = sum(not math.isfinite(value) for value in side.values)
        if bad:
            return kind, f"{bad} of {len(side.values)} values of {name} are NaN or infinite"
    return None


def _count_needed(pair: SamplePair) -> int:
    """Count the clean trials that a side lacks because it has fewer than the test needs or because most are disturbed.

    If all trials of a side are disturbed, the fewest trials that the test needs are requested.
    """
    fewest = find_fewest(pair.question.alpha)
    sides = ((len(side.clean), len(side.values)) for side in (pair.base, pair.head))
    return max(max(fewest - clean, total - 2 * clean if clean else 0, 0) for clean, total in sides)


def _conclude(asked: Question, found: SampleComparison, together: int) -> SampleComparison:
    """Conclude with a verdict. `together`: the number of metrics that p is corrected for."""
    assert found.effect is not None
    assert found.interval is not None
    assert found.p_adjusted is not None
    sign = 1 if asked.direction == "min" else -1
    worse = sign * found.effect
    most = max(sign * bound for bound in found.interval)
    sure = found.p_adjusted < asked.alpha
    if sure and worse > asked.threshold:
        return _word(found, VerdictKind.FAIL, f"worse by more than {asked.threshold:.2%}")
    if sure and -worse > asked.threshold:
        return _word(found, VerdictKind.CHANGED, f"suspiciously better: more than {asked.threshold:.2%}")
    low, high = found.interval
    is_narrow = high - low <= WIDEST * asked.threshold  # a wide interval may end below the threshold by chance
    if most <= asked.threshold and (is_narrow or (sure and abs(worse) <= asked.threshold)):
        return _word(found, VerdictKind.PASS, f"not worse by more than {asked.threshold:.2%}")
    fewest = find_fewest(asked.alpha / together) - min(found.base_trials, found.head_trials)
    more = max(count_missing(found, asked), fewest)
    what = "too wide an interval" if most <= asked.threshold else f"cannot be distinguished from {asked.threshold:.2%}"
    if min(found.interval) > asked.threshold or max(found.interval) < -asked.threshold:
        what = f"beyond {asked.threshold:.2%}, but not significant: p (corrected) is not below {asked.alpha:g}"
        if fewest > 0:
            what += f", which so few trials of {together} metrics cannot reach"
    hope = f"{what}; needs about {more} more trials on each side"
    return replace(_word(found, VerdictKind.INCONCLUSIVE, hope), missing_trials=more)


def _allow_for_stragglers(pair: SamplePair, found: SampleComparison) -> SampleComparison:
    """Report a few trials of head that are much worse than the others: a median hides them, so PASS is withdrawn."""
    base, head = pair.base.clean, pair.head.clean
    late = find_stragglers(base, head, 1 if pair.question.direction == "min" else -1, pair.question.threshold)
    if not late:
        return found
    words = describe_stragglers(head, late, pair.head.label or "head")
    found = replace(found, warnings=(*found.warnings, words))
    if found.kind is not VerdictKind.PASS:
        return found
    more = min(len(base), len(head))
    hope = f"but some trials of head are much worse than the others; needs about {more} more trials on each side"
    return replace(_word(found, VerdictKind.INCONCLUSIVE, hope), missing_trials=more)


def _word(found: SampleComparison, kind: VerdictKind, what: str) -> SampleComparison:
    low, high = found.interval or (math.nan, math.nan)
    effect, p = found.effect or 0.0, found.p_adjusted or 0.0
    return replace(found, kind=kind, message=f"{effect:+.2%} [{low:+.2%}, {high:+.2%}], p {p:.2g}: {what}")


def count_missing(found: SampleComparison, asked: Question) -> int:
    """Return how many more trials per side make the interval, which shrinks with the root of their number, narrow
    enough for PASS, and to exclude the threshold, or to exclude 0 if the effect is beyond the threshold."""
    low, high = found.interval or (0.0, 0.0)
    effect = found.effect or 0.0
    worse = effect if asked.direction == "min" else -effect
    room = abs(asked.threshold - worse) if abs(worse) <= asked.threshold else abs(worse)
    room = min(room, WIDEST / 2 * asked.threshold) or room
    trials = min(found.base_trials, found.head_trials)
    ratio = (high - low) / 2 / room if room else math.nan
    if math.isnan(ratio):  # the bounds are infinite, or both threshold and effect are 0
        return MOST_TRIALS
    times = min(ratio, 1e3) ** 2 * 1.1  # 10% more, because the effect itself is an estimate
    return max(1, min(math.ceil(trials * times) - trials, 10 * MOST_TRIALS))


def decide_next(
    comparisons: Sequence[SampleComparison], *, confirmed: bool = False, most: int = MOST_TRIALS, ran: int = 0
) -> NextStep | None:
    """Decide what to run after comparing. A FAIL is confirmed by a second run; `confirmed`: these are the results of
    the second run. None: every metric has its verdict, or `most` trials on each side did not decide.

    `ran`: trials on each side so far, with contaminated ones, so that a comparison ends even on a busy machine.
    """
    if not comparisons:
        return None
    done = min(min(one.base_trials, one.head_trials) for one in comparisons)
    failed = [one for one in comparisons if one.kind is VerdictKind.FAIL and one.p is not None]
    if failed and not confirmed:
        return NextStep(
            "confirm", max(done, find_fewest(ALPHA)), f"{failed[0].subject} failed: run once more to confirm it"
        )
    missing = max((one.missing_trials for one in comparisons if one.kind is VerdictKind.INCONCLUSIVE), default=0)
    left = most - max(done, ran)
    if failed or not missing or left <= 0:
        return None
    return NextStep("more", min(missing, left), "some metrics are not decided yet")


# ---------------------------------------------------------------- ranks


def measure_p(base: Sequence[float], head: Sequence[float]) -> float:
    """Return p of the two-sided Mann-Whitney test: exact, ties included; a normal approximation for many trials."""
    ranks = _rank_twice((*base, *head))
    total, trials = sum(ranks[: len(base)]), len(ranks)
    mean = len(base) * sum(ranks) / trials
    if trials <= LARGEST_EXACT:
        sums = _deal(tuple(sorted(ranks)), len(base))
        beyond = abs(np.arange(len(sums)) - mean) >= abs(total - mean) - 1e-9
        return min(1.0, float(sums[beyond].sum() / sums.sum()))
    spread = sum((rank - sum(ranks) / trials) ** 2 for rank in ranks)
    variance = len(base) * len(head) / (trials * (trials - 1)) * spread
    return math.erfc(abs(total - mean) / math.sqrt(2 * variance)) if variance else 1.0


def _rank_twice(values: Sequence[float]) -> list[int]:
    """Return the ranks of the values, doubled so that they are whole numbers; equal values share a rank."""
    order = sorted(values)
    indices: dict[float, list[int]] = {}
    for index, value in enumerate(order, 1):
        indices.setdefault(value, []).append(index)
    return [indices[value][0] + indices[value][-1] for value in values]


@lru_cache(maxsize=256)
def _deal(ranks: tuple[int, ...], dealt: int) -> Array:
    """Return for each sum the number of ways to draw `dealt` of the ranks."""
    ways = np.zeros((dealt + 1, sum(ranks[-dealt:]) + 1))
    ways[0, 0] = 1
    for rank in ranks:
        for taken in range(dealt, 0, -1):
            ways[taken, rank:] += ways[taken - 1, : ways.shape[1] - rank]
    return ways[dealt]


@lru_cache(maxsize=64)
def find_fewest(alpha: float) -> int:
    """Return the fewest trials per side that can be significant at this alpha."""
    return next(n for n in range(2, 1000) if 2 / math.comb(2 * n, n) <= alpha)


# ---------------------------------------------------------------- the shift


@dataclass(frozen=True, slots=True)
class Shift:
    """The median of all differences head minus base, and the bounds that the rank test would not reject."""

    estimate: float
    low: float
    high: float


def measure_shift(base: Sequence[float], head: Sequence[float], alpha: float) -> Shift:
    differences = np.sort(np.subtract.outer(np.asarray(head, float), np.asarray(base, float)).ravel())
    aside = _count_aside(len(base), len(head), alpha)
    low, high = differences[aside], differences[len(differences) - 1 - aside]
    return Shift(float(np.median(differences)), float(low), float(high))


def scale_visible(visible: float, trials: int, wanted: int) -> float:
    """Scale a visible effect to `wanted` trials: noise decreases with the root of the number of trials."""
    return visible * math.sqrt(trials / wanted)


def _allow_for_processes(pair: SamplePair, shift: Shift, p: float, spread: float) -> tuple[Shift, float]:
    """Widen the interval of a single process: its samples vary less than processes do, and do not show how much
    processes vary.

    The variation between processes is assumed to be `spread`: only much larger differences are significant.
    """
    lone = pair.base.is_one_process + pair.head.is_one_process
    if not lone:
        return shift, p
    quantile = normal_quantile(pair.question.alpha / 2)
    error = math.hypot((shift.high - shift.low) / 2 / quantile, spread * math.sqrt(lone))
    reach = quantile * error
    wide = Shift(shift.estimate, shift.estimate - reach, shift.estimate + reach)
    return wide, max(p, math.erfc(abs(shift.estimate) / error / math.sqrt(2)))


@lru_cache(maxsize=256)
def _count_aside(base: int, head: int, alpha: float) -> int:
    """Return how many differences the interval leaves out at either end."""
    if base + head > LARGEST_EXACT:
        width = normal_quantile(alpha / 2) * math.sqrt(base * head * (base + head + 1) / 12)
        return max(0, math.floor(base * head / 2 - width))
    ways = _deal(tuple(range(1, base + head + 1)), base)[base * (base + 1) // 2 :]
    below = np.cumsum(ways) / ways.sum()
    return max(0, int((below <= alpha / 2).sum()) - 1)


@dataclass(frozen=True, slots=True)
class RatioScale:
    """A scale for effects: logs, or fractions of the largest value if some values are not positive."""

    in_logs: bool
    unit: float
    center: float  # the base's median, as a fraction of `unit`

    @classmethod
    def of(cls, values: Sequence[float], center: float) -> RatioScale:
        unit = max(map(abs, values)) or 1.0
        return cls(min(values) > 0, unit, abs(center) / unit or 1.0)

    def apply(self, values: Sequence[float]) -> list[float]:
        return [math.log(value) if self.in_logs else value / self.unit for value in values]

    @property
    def step(self) -> float:
        """The size of a shift by the base's whole median; for logs this is 1."""
        return 1.0 if self.in_logs else self.center

    def relate(self, shift: float) -> float:
        """Return a shift relative to the base's median."""
        return math.expm1(min(shift, LARGEST_LOG)) if self.in_logs else shift / self.center


def find_median(values: Sequence[float]) -> float:
    return median_low(values) / 2 + median_high(values) / 2  # halves first: the sum of two huge values overflows


def relate_medians(before: float, after: float) -> float:
    """Return the relative difference of two medians."""
    scale = RatioScale.of((before, after), before)
    old, new = scale.apply((before, after))
    return scale.relate(new - old)
