"""The exact rule: every value bit for bit. A difference is CHANGED: whether it is worse, other rules say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from assay.golden.judge.pairing import Pair
from assay.values.verdict import Finding, VerdictKind


def judge_exact(pair: Pair) -> list[Finding]:
    """One finding for the metric: the first step that differs, how many do, and by how much at most."""
    golden = pair.golden[0].values
    for number, replica in enumerate(pair.golden[1:], 2):
        place = _first_difference(golden, replica.values)
        if place is not None:
            return [_describe_noisy(pair, number, place)]
    differing = [_describe_difference(pair, golden, check.values) for check in pair.checks]
    findings = [finding for finding in differing if finding]
    if findings or not pair.is_whole:
        return findings
    return [Finding(VerdictKind.PASS, pair.subject, f"{pair.compared} values are equal bit for bit", effect=0.0)]


def _first_difference(golden: Sequence[float], other: Sequence[float]) -> int | None:
    return next((place for place, values in enumerate(zip(golden, other, strict=True)) if _differ(*values)), None)


def _differ(one: float, other: float) -> bool:
    """By their bits: 0.0 and -0.0 differ. A value that is missing was reported as that."""
    return (one != other and not math.isnan(other)) or (one == 0.0 and math.copysign(1, one) != math.copysign(1, other))


def _describe_noisy(pair: Pair, number: int, place: int) -> Finding:
    message = (
        f"the golden's own replicas 1 and {number} differ at step {pair.steps[place]}: "
        "this program does not repeat itself, so ask for paired windows instead of exact values"
    )
    return Finding(VerdictKind.ERROR, pair.subject, message, step=pair.steps[place])


def _describe_difference(pair: Pair, golden: Sequence[float], values: Sequence[float]) -> Finding | None:
    places = [place for place, both in enumerate(zip(golden, values, strict=True)) if _differ(*both)]
    if not places:
        return None
    first = places[0]
    worst = max(places, key=lambda place: _relative(golden[place], values[place]))
    largest = _relative(golden[worst], values[worst])
    message = (
        f"first differs at step {pair.steps[first]}: {values[first]!r}, expected {golden[first]!r}; "
        f"{len(places)} of {len(golden)} values differ, by {100 * largest:.3g}% at most"
    )
    effect = math.copysign(largest, values[worst] - golden[worst])
    return Finding(VerdictKind.CHANGED, pair.subject, message, values[worst], golden[worst], pair.steps[first], effect)


def _relative(expected: float, value: float) -> float:
    if expected == value:
        return 0.0
    return abs(value - expected) / abs(expected) if expected and math.isfinite(value) else math.inf


def has_equal_replicas(tracks: Iterable[Sequence[float]]) -> bool:
    """Whether all of them are the same to the last bit."""
    first, *others = tracks
    return all(_first_difference(first, other) is None for other in others)
