"""The statistics that benchmarks ask for, in one place."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from assay.judge.changepoint import find_change_points
from assay.values.bench_history import Step
from assay.values.series import Direction
from assay.values.verdict import Finding, VerdictKind

ALPHA = 0.01


@dataclass(frozen=True, slots=True)
class Pair:
    """Two samples of one metric."""

    subject: str
    base: tuple[float, ...]
    head: tuple[float, ...]
    direction: Direction


def find_steps(values: Sequence[float]) -> list[Step]:
    return [
        Step(point.index, point.before, point.after, point.size, point.interval) for point in find_change_points(values)
    ]


def compare_levels(old: Sequence[float], new: Sequence[float], at: int) -> Step | None:
    if len(old) < 2 or len(new) < 2:
        return None
    effect, interval, p = _compare(old, new)
    if p > 0.05:
        return None
    return Step(at, statistics.median(old), statistics.median(new), effect, interval)


def compare_pairs(pairs: Sequence[Pair], min_effect: float, alpha: float = ALPHA) -> list[Finding]:
    found = [(pair, *_compare(pair.base, pair.head)) for pair in pairs]
    order = sorted(range(len(found)), key=lambda place: found[place][3])
    adjusted: dict[int, float] = {}
    running = 0.0
    for rank, place in enumerate(order):
        running = max(running, min(1.0, found[place][3] * (len(found) - rank)))
        adjusted[place] = running
    return [
        _judge(pair, effect, interval, adjusted[place], min_effect, alpha)
        for place, (pair, effect, interval, _) in enumerate(found)
    ]


def _judge(
    pair: Pair, effect: float, interval: tuple[float, float], p: float, min_effect: float, alpha: float
) -> Finding:
    worse = effect if pair.direction == "min" else -effect
    bound = interval[1] if pair.direction == "min" else -interval[0]
    kind = VerdictKind.PASS
    if p < alpha and worse > min_effect:
        kind, word = VerdictKind.FAIL, "worse"
    elif p < alpha and -worse > min_effect:
        word = "better"
    elif bound > max(min_effect, 0.05):
        kind, word = VerdictKind.INCONCLUSIVE, "too noisy to tell"
    else:
        word = "no difference that matters"
    message = f"{effect:+.1%} [{interval[0]:+.1%}, {interval[1]:+.1%}]: {word} (p = {p:.2g}, {len(pair.base)} against {len(pair.head)})"
    return Finding(
        kind,
        pair.subject,
        message,
        statistics.median(pair.head),
        statistics.median(pair.base),
        effect=effect,
        interval=interval,
    )


def _compare(old: Sequence[float], new: Sequence[float]) -> tuple[float, tuple[float, float], float]:
    base = statistics.median(old)
    if not base:
        return 0.0, (0.0, 0.0), 1.0
    ratios = sorted(b / a - 1 for a in old for b in new if a)
    effect = statistics.median(ratios)
    n, m = len(old), len(new)
    half = 2.58 * math.sqrt(n * m * (n + m + 1) / 12)
    low, high = int(max(0, n * m / 2 - half)), int(min(n * m - 1, n * m / 2 + half))
    return effect, (ratios[min(low, len(ratios) - 1)], ratios[min(high, len(ratios) - 1)]), _mann_whitney(old, new)


def _mann_whitney(old: Sequence[float], new: Sequence[float]) -> float:
    n, m = len(old), len(new)
    u = sum((b > a) + 0.5 * (b == a) for a in old for b in new)
    sigma = math.sqrt(n * m * (n + m + 1) / 12)
    z = max(0.0, abs(u - n * m / 2) - 0.5) / sigma
    return math.erfc(z / math.sqrt(2))
