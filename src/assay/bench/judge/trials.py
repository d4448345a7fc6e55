"""Warnings about the trials of a benchmark: contamination, two modes, a trend during the run, a few slow trials."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from assay.bench.values.comparison import Samples
from assay.judge.statistics import Array, np
from assay.show.formatting import join_first

FEWEST = 8  # fewer trials do not show modes or trends
TREND_Z = 3.0
APART = 7.0  # least distance of two modes in units of their sigma; the halves of normal noise are about 3 apart
SMALLEST_MODE = 0.2  # least fraction of the trials in a mode
STRAGGLING = 8.0  # times the median distance from the median, about 5 sigma: a trial farther off is a straggler
_NUMBERS = re.compile(r"\d+(?:, \d+)*")  # a percentage, or numbers of processes
_MOST_NUMBERS = 5


def describe_trials(base: Samples, head: Samples) -> tuple[str, ...]:
    """Return warnings about both sides, which do not change a verdict."""
    warnings: list[str] = []
    for label, side in ((base.label or "base", base), (head.label or "head", head)):
        total, values = len(side.values), side.clean
        reasons = merge_reasons((trial, why) for trial, why in sorted(side.contaminated.items()) if 0 <= trial < total)
        warnings += (f"{label}: {len(found)} of {total} trials left out: {why}" for why, found in reasons.items())
        if has_trend(values):
            warnings.append(f"{label}: drifts from trial to trial ({measure_drift(values):+.1%} over the run)")
        if modes := find_modes(values):
            warnings.append(f"{label}: has two modes, near {modes[0]:.6g} and {modes[1]:.6g}")
    return tuple(warnings)


def find_stragglers(base: Sequence[float], head: Sequence[float], sign: int, threshold: float) -> list[int]:
    """Find trials of head that are much worse than the others and together worsen head's mean by more than `threshold`,
    compared with such trials of base; a single trial is ignored as chance. `sign`: 1 if lower is better, else -1."""
    given = sign * _share((*base, *head))[0]
    ours, theirs = given[: len(base)], given[len(base) :]
    before, after = float(np.median(ours)), float(np.median(theirs))
    limit = max(STRAGGLING * float(np.median(np.abs(theirs - after))), threshold * abs(after))
    late = np.flatnonzero(theirs - after > limit)
    excess = [
        np.where(side - level > limit, side - level, 0).mean() for side, level in ((ours, before), (theirs, after))
    ]
    return late.tolist() if len(late) > 1 and excess[1] - excess[0] > threshold * abs(after) else []


def describe_stragglers(values: Sequence[float], late: Sequence[int], label: str) -> str:
    """Describe late trials: `head: 4 of 20 trials are 3.0 times the others (trials 3, 8, 11, 20)`."""
    given, _ = _share(values)
    rest = abs(float(np.median(np.delete(given, late))))
    far = f" are {abs(float(np.median(given[late]))) / rest:.2g} times the others" if rest else " are far off"
    names = join_first([str(trial + 1) for trial in late], _MOST_NUMBERS)
    return f"{label}: {len(late)} of {len(values)} trials{far} (trials {names})"


def merge_reasons(reasons: Iterable[tuple[int, str]]) -> dict[str, list[int]]:
    """Merge the trials by reason; reasons that differ only in numbers become one: `others used 52 to 91%`."""
    trials: dict[str, list[int]] = {}
    numbers: dict[str, set[int]] = {}
    for trial, reason in reasons:
        text = _NUMBERS.sub("…", reason)
        trials.setdefault(text, []).append(trial)
        numbers.setdefault(text, set()).update(int(n) for found in _NUMBERS.findall(reason) for n in found.split(", "))
    return {_fill(text, sorted(numbers[text])): found for text, found in trials.items()}


def _fill(text: str, numbers: Sequence[int]) -> str:
    if not numbers:
        return text
    if "…%" in text:
        low, high = numbers[0], numbers[-1]
        return text.replace("…", f"{low}" if low == high else f"{low} to {high}")
    return text.replace("…", ", ".join(map(str, numbers[:_MOST_NUMBERS])))


# ---------------------------------------------------------------- trend


def has_trend(values: Sequence[float]) -> bool:
    """Return whether there is a trend by Mann-Kendall: more pairs are in order than chance gives."""
    n = len(values)
    if n < FEWEST:
        return False
    given = np.asarray(values, float)
    later, earlier = given[None, :], given[:, None]
    score = float(np.triu((later > earlier).astype(int) - (later < earlier), 1).sum())
    ties = sum(count * (count - 1) * (2 * count + 5) for count in Counter(values).values())
    variance = (n * (n - 1) * (2 * n + 5) - ties) / 18
    return variance > 0 and (abs(score) - 1) / math.sqrt(variance) > TREND_Z


def measure_drift(values: Sequence[float]) -> float:
    """Return the Theil-Sen slope over the whole run, relative to the median."""
    given, _ = _share(values)
    first, second = np.triu_indices(len(given), 1)
    slope = float(np.median((given[second] - given[first]) / (second - first)))
    level = abs(float(np.median(given))) or 1.0
    return slope * (len(given) - 1) / level


# ---------------------------------------------------------------- modes


def find_modes(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the two levels between which the trials jump, if there are two."""
    if len(values) < FEWEST:
        return None
    shares, unit = _share(values)
    ordered = np.sort(shares)
    smallest = max(2, math.ceil(SMALLEST_MODE * len(ordered)))
    cut = max(range(smallest, len(ordered) - smallest + 1), key=lambda index: ordered[index] - ordered[index - 1])
    low, high = ordered[:cut], ordered[cut:]
    apart, gap = float(high.mean() - low.mean()), float(ordered[cut] - ordered[cut - 1])
    spread = math.sqrt((float(low.var(ddof=1)) + float(high.var(ddof=1))) / 2)
    if gap <= 0 or apart <= APART * spread:
        return None
    return unit * float(np.median(low)), unit * float(np.median(high))


def _share(values: Sequence[float]) -> tuple[Array, float]:
    """Return the values as fractions of the largest absolute value, so that no sum overflows, and that value."""
    given = np.asarray(values, float)
    unit = float(np.abs(given).max()) or 1.0
    return given / unit, unit
