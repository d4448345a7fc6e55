"""Effects per window: how far a check is from the golden (effect and distance), how far replicas and variants are, and
which distance is a change."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal

from assay.golden.judge.pairing import Aligned, Pair
from assay.golden.values import Rule, Track
from assay.judge.statistics import Array, np, t_quantile
from assay.system.fast_dataclasses import dataclass
from assay.values.series import find_direction

LONGEST_WINDOW = 50
WINDOWS_PER_SEGMENT = 6
DELTA_PAIRED = 0.005
DELTA_UNMATCHED = 0.01
# Harmless changes of kernels moved gradient norms by up to 0.4% in the first fifty steps and up to 3% later, when the
# runs had drifted apart (docs/explanation/convergence-statistics.md). A broken gradient shows at once.
DELTA_GRADIENT = 0.05
DELTA_GRADIENT_AT_FIRST = 0.01
# Multiple of the noise that is outside: chosen on examples/charlm, tested elsewhere (benchmarks/convergence_power.py).
MULTIPLE = 4.0
SINGLE_VALUES = 1.5  # factor of MULTIPLE in windows of fewer than FEW_VALUES: a single value varies more than a mean
FEW_VALUES = 4
ENOUGH_RECORDINGS = 5
SURE_TAIL = 0.001
# Rounding differences begin at 1e-8 to 1e-7 of the loss and grow slowly, faults exceed 1e-5 within twenty steps.
FLOOR = 1e-5
FLOOR_STEPS = 20  # without variants the floor grows by FLOOR every twenty steps
LARGEST_FLOOR = 1e-4
FLOOR_SCHEDULE = 1e-6  # for learning rates, which are set, not computed from data
# this many different variants show the effect of rounding, and the floor is only for the last bits
ENOUGH_VARIANTS = 3
FLOOR_SHOWN = 1e-7
MANY_DIGITS = 15  # a value logged with so many digits was not rounded for display
FEWEST_DIGITS = 3  # a value with fewer digits was set, as 0.1 and 5e-4 are, and not rounded for display

Way = Literal["min", "max", "both"]


def default_delta(rule: Rule) -> float:
    """Return the smallest relative effect that matters: the rule's delta, or a default."""
    if rule.delta is not None:
        return rule.delta
    if is_gradient(rule.metric):
        return DELTA_GRADIENT
    return DELTA_UNMATCHED if rule.kind == "unmatched" else DELTA_PAIRED


def is_gradient(metric: str) -> bool:
    return "grad" in metric.lower() and find_direction(metric) is None


def build_alarms(rule: Rule, windows: int) -> Array:
    """Return for each window the effect from which it may fail: delta, but less in a gradient norm's first window."""
    alarms = np.full(windows, default_delta(rule))
    at_first = find_first_delta(rule)
    if at_first is not None and windows > 1:
        alarms[0] = at_first
    return alarms


def find_first_delta(rule: Rule) -> float | None:
    """Return the delta of the first window, if it differs from that of later windows."""
    is_special = rule.delta is None and rule.kind == "paired" and is_gradient(rule.metric)
    return DELTA_GRADIENT_AT_FIRST if is_special else None


def better_way(rule: Rule) -> Way:
    """Return which way is better, by the rule or the metric's name; both (any change fails) if neither does."""
    return rule.direction or find_direction(rule.metric) or "both"


def find_rule_problem(rule: Rule) -> str | None:
    delta = default_delta(rule)
    if not math.isfinite(delta) or delta < 0:
        return f"a delta of {delta:g} is not valid; it is a fraction such as 0.005"
    if not 0 < rule.alpha < 0.5:
        return f"an alpha of {rule.alpha:g} is not valid; it is the rate of false alarms, such as 0.01"
    if rule.window is not None and rule.window < 1:
        return f"a window of {rule.window} steps is not valid"
    return None


def build_starts(rule: Rule, steps: Sequence[int]) -> list[int]:
    """Return the index in `steps` at which each window begins. A short remainder belongs to the last window."""
    at = np.asarray(steps)
    spacing = int(np.median(np.diff(at))) if len(at) > 1 else 1
    width = rule.window or find_width(int(at[-1] - at[0]) + spacing)
    numbers = (at - at[0]) // width
    starts: list[int] = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
    if len(starts) > 1 and len(steps) - starts[-1] < width / spacing / 2:
        starts.pop()
    return starts


def find_width(steps: int) -> int:
    """Return the width of a window if the rule gives none: a sixth of the segment, fifty steps at most."""
    return min(LONGEST_WINDOW, math.ceil(steps / WINDOWS_PER_SEGMENT))


@dataclass(frozen=True, slots=True)
class Effects:
    """Effects per window, as arrays. All but the levels `golden` and `check` are log-ratios, or scaled differences."""

    golden: Array  # mean level, for reports; the effect is how far `check` is from it
    check: Array
    effect: Array
    error: Array | None  # standard error; None: one recording and one check do not show noise
    freedom: int
    in_logs: bool
    distance: Array  # mean absolute difference of the check
    worse: Array  # mean positive and mean negative part of the check's differences
    own: Array  # the largest distance of a replica from the others, in this window
    replicas: Array  # the largest `own` in this window or an earlier one
    variants: Array  # the largest distance of a variant from the replicas, in this window or an earlier one
    spreads: bool  # whether differences show noise: False if all replicas are equal bit for bit
    recordings: int
    steps: Array  # per step: the check's absolute difference

    def bounds(self, tail: float) -> tuple[Array, Array]:
        """Return lower and upper bound of the relative effect, each wrong with probability `tail`."""
        if self.error is None:
            raise ValueError("without replicas there are no bounds")
        reach = t_quantile(self.freedom, tail) * self.error
        return self.relative(self.effect - reach), self.relative(self.effect + reach)

    def relative(self, effect: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.expm1(effect) if self.in_logs else effect

    @property
    def envelope(self) -> Array:
        """The largest distance that is known to be harmless."""
        return np.maximum(self.replicas, self.variants)


def stack_variants(pair: Pair) -> Array:
    """Return an array with one row for each variant."""
    return np.array([track.values for track in pair.variants], dtype=float).reshape(-1, len(pair.steps))


def stack(runs: Sequence[Track | Aligned]) -> Array:
    return np.array([run.values for run in runs], dtype=float)


def measure_pair(pair: Pair, starts: Sequence[int]) -> Effects:
    return measure_effects(stack(pair.golden), stack(pair.checks), starts, stack_variants(pair))


def measure_effects(golden: Array, checks: Array, starts: Sequence[int], variants: Array | None = None) -> Effects:
    """Measure effects; the effect of a window is NaN if a check lacks a value there, or has one that is not finite."""
    variants = golden[:0] if variants is None else variants
    in_logs = bool((golden > 0).all() and (variants > 0).all() and not (checks <= 0).any())
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        size = None if in_logs else measure_size(np.vstack([golden, variants]), starts)
        apart = [build_differences(values, golden[:1], starts, size) for values in (golden, checks, variants)]
        known, tested, harmless = (average(rows, starts) for rows in apart)
        level = _average_levels(checks, starts, in_logs)
        effect = np.where(np.isfinite(level), tested.mean(axis=0) - known.mean(axis=0), np.nan)
        # the noise of recordings or, if there is only one recording, of variants or of repeated checks
        sample = next((each for each in (known, np.vstack([known, harmless]), tested) if len(each) > 1), known)
        freedom, runs = len(sample) - 1, 1 / len(golden) + 1 / len(checks)
        error = np.sqrt(pool_variance(sample.var(axis=0, ddof=1)) * runs) if freedom else None
        rows, of_checks, of_variants = (each - apart[0].mean(axis=0) for each in apart)
        others = len(golden) / max(1, len(golden) - 1)  # scales distances from the mean of all to that of the others
        own = others * average(np.abs(rows), starts)
        return Effects(
            golden=_average_levels(golden, starts, in_logs),
            check=level,
            effect=effect,
            error=error,
            freedom=freedom,
            in_logs=in_logs,
            distance=average(np.abs(of_checks), starts).mean(axis=0),
            worse=np.stack([average(np.maximum(sign * of_checks, 0), starts).mean(axis=0) for sign in (1, -1)]),
            own=own.max(axis=0),
            replicas=_find_largest(own, len(starts)),
            variants=_find_largest(average(np.abs(of_variants), starts), len(starts)),
            spreads=len(golden) == 1 or bool((apart[0] != 0).any()),
            recordings=len(golden) + len(variants),
            steps=np.abs(of_checks).mean(axis=0),
        )


def _find_largest(distances: Array, windows: int) -> Array:
    """Return for each window the largest distance up to it: rounding grows, and a window may be quiet by chance."""
    return np.maximum.accumulate(distances.max(axis=0)) if len(distances) else np.zeros(windows)


def _average_levels(values: Array, starts: Sequence[int], in_logs: bool) -> Array:
    """Return each window's mean over all runs, in logs the geometric mean, so that check over golden is the effect."""
    return np.exp(average(np.log(values), starts).mean(axis=0)) if in_logs else average(values, starts).mean(axis=0)


def average(values: Array, starts: Sequence[int]) -> Array:
    return np.add.reduceat(values, starts, axis=1) / np.diff([*starts, values.shape[1]])


def build_differences(values: Array, first: Array, starts: Sequence[int], size: Array | None) -> Array:
    """Return for each step the log-ratio to the golden's first replica or, with a size per window, the difference in
    units of that size. The difference of equal values is exactly 0."""
    if size is None:
        return np.log(values) - np.log(first)
    apart = values - first
    units = np.repeat(size, np.diff([*starts, values.shape[1]]))
    return np.where(apart == 0, 0.0, apart / units)  # in units of 0 any difference is infinite


def measure_size(golden: Array, starts: Sequence[int]) -> Array:
    """Return the golden's mean absolute value per window, or over all windows if the window's mean is 0."""
    size = average(np.abs(golden), starts).mean(axis=0)
    return np.where(size > 0, size, np.abs(golden).mean())


def pool_variance(spread: Array) -> Array:
    """Return half the window's own variance plus half the mean of all windows: few replicas show it badly. A
    window without a finite variance (a check ended before it, or is infinitely far away) is ignored."""
    known = spread[np.isfinite(spread)]
    return 0.5 * np.where(np.isfinite(spread), spread, 0.0) + 0.5 * (known.mean() if len(known) else 0.0)


def is_schedule(rule: Rule) -> bool:
    """Whether a metric is a learning rate by a part of its name: `lr`, `train/lr_group0`, `learning_rate`."""
    name = rule.metric.lower()
    return "lr" in re.split(r"[^a-z]+", name) or re.search("learning.?rate", name) is not None


def build_floor(rule: Rule, pair: Pair, starts: Sequence[int], effects: Effects) -> Array:
    """Return the differences below which nothing is a change: rounding of the arithmetic and of the logged digits."""
    ends = [*starts[1:], len(pair.steps)]
    counts = np.diff([*starts, len(pair.steps)])
    quantum = 0.0 if is_schedule(rule) else find_quantum(stack(pair.golden))
    if not (is_schedule(rule) and all(_count_digits(text) < FEWEST_DIGITS for text in pair.golden[0].texts)):
        quantum = max(quantum, find_resolution(pair.golden[0]))
    flips = quantum * np.minimum(1.0, 2.0 / counts)  # changes of the last digit: two in a window
    level = measure_size(stack(pair.golden), starts)
    with np.errstate(divide="ignore", invalid="ignore"):
        digits = np.where(level > 0, flips / level, 0.0)
    gone = np.array([pair.steps[end - 1] - pair.steps[0] + 1 for end in ends], dtype=float)
    grown = np.clip(FLOOR * gone / FLOOR_STEPS, FLOOR, LARGEST_FLOOR)
    floor = FLOOR_SCHEDULE if is_schedule(rule) else FLOOR if effects.envelope.any() else grown
    # variants that are equal to one another or to a recording are no further evidence
    others = {track.values for track in pair.variants} - {track.values for track in pair.golden}
    if len(others) >= ENOUGH_VARIANTS and not is_schedule(rule):  # a mean of few values may be close by chance
        floor = np.where(counts < FEW_VALUES, floor, FLOOR_SHOWN)
    return np.minimum(floor, default_delta(rule)) + digits  # a delta below rounding is respected


def find_resolution(track: Track | Aligned) -> float:
    """Return the value of the last logged digit if every value was logged with few digits: 0.0001 for `2.3412`."""
    if not track.texts or len(track.texts) != len(track.values):
        return 0.0
    found = [_last_digit(text) for text in track.texts]
    return min(found) if all(found) else 0.0


def _last_digit(text: str) -> float:
    mantissa, _, exponent = text.strip().lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    try:
        return 10.0 ** (int(exponent or 0) - decimals) if _count_digits(text) < MANY_DIGITS else 0.0
    except (ValueError, OverflowError):
        return 0.0


def _count_digits(text: str) -> int:
    """Count the significant digits of a number's text: 3 of `0.0120`."""
    return sum(letter.isdigit() for letter in text.strip().lower().partition("e")[0].lstrip("+-0."))


def find_quantum(golden: Array) -> float:
    """Return the step between values of a metric that counts (1/128 for an accuracy); 0 for any other metric."""
    values = np.unique(golden)
    if len(values) < FEW_VALUES:
        return 0.0
    apart, scale = np.diff(values), float(np.abs(values).max())
    common = float(apart[0])
    for each in apart[1:]:
        common = _common_measure(common, float(each), 1e-9 * scale)
        if 1e-9 * scale < common < 1e-7 * scale:  # `common` only shrinks, at once for a metric that does not count
            return 0.0
    return common if common > 1e-6 * scale else 0.0


def _common_measure(one: float, other: float, slack: float) -> float:
    """Return the greatest common divisor of rounded numbers, by Euclid."""
    while other > slack:
        one, other = other, one - other * round(one / other)
        other = abs(other)
    return one


@dataclass(frozen=True, slots=True)
class WindowTolerance:
    """Distances per window: up to `inside` is harmless, above `sure` is not."""

    inside: Array
    sure: Array
    floor: Array
    declared: Array  # what the variants alone allow: delta at most


def build_limits(rule: Rule, pair: Pair, starts: Sequence[int], effects: Effects) -> WindowTolerance:
    """Build the limits: replicas are measured noise; variants are declared by the user, and count only up to delta."""
    delta = default_delta(rule)

    def widen(multiple: Array | float) -> Array:
        return np.maximum(multiple * effects.replicas, np.minimum(multiple * effects.variants, delta))

    floor = build_floor(rule, pair, starts, effects)
    few = np.where(np.diff([*starts, len(pair.steps)]) < FEW_VALUES, SINGLE_VALUES, 1.0)
    sure = find_sure_multiple(effects.recordings) if effects.spreads else MULTIPLE
    declared = np.minimum(MULTIPLE * effects.variants, delta)
    return WindowTolerance(widen(MULTIPLE) + floor, widen(sure * few) + floor, floor, declared)


def find_sure_multiple(recordings: int) -> float:
    """Return MULTIPLE for five recordings or more; for fewer, MULTIPLE scaled by how much wider Student's t is."""
    if recordings >= ENOUGH_RECORDINGS:
        return MULTIPLE
    wide, usual = (t_quantile(count - 1, SURE_TAIL) for count in (max(2, recordings), ENOUGH_RECORDINGS))
    return MULTIPLE * wide / usual
