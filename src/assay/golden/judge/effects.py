"""Per window: how far a check is from the golden (effect and distance), and how far replicas and variants are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from assay.golden.judge.pairing import Aligned, Pair
from assay.golden.values import Rule, Track
from assay.judge.statistics import Array, load_numpy, t_quantile

LONGEST_WINDOW = 50
WINDOWS_PER_SEGMENT = 6


def build_starts(rule: Rule, steps: Sequence[int]) -> list[int]:
    """Where each window begins, as indices into `steps`. A short remainder belongs to the last window."""
    np = load_numpy()
    places = np.asarray(steps)
    spacing = int(np.median(np.diff(places))) if len(places) > 1 else 1
    span = int(places[-1] - places[0]) + spacing
    width = rule.window or min(LONGEST_WINDOW, math.ceil(span / WINDOWS_PER_SEGMENT))
    numbers = (places - places[0]) // width
    starts: list[int] = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
    if len(starts) > 1 and len(steps) - starts[-1] < width / spacing / 2:
        starts.pop()
    return starts


@dataclass(frozen=True, slots=True)
class Effects:
    """Per window, as numpy arrays. All but the levels are log-ratios, or scaled differences."""

    golden: Array  # mean level, for reports; the effect is how far `check` is from it
    check: Array
    effect: Array
    error: Array | None  # standard error; None: one recording and one check do not show noise
    freedom: int
    in_logs: bool
    distance: Array  # mean absolute difference of the check
    worse: Array  # mean positive and mean negative part of its differences
    replicas: Array  # the largest distance of a replica from the others, in this window or one before it
    variants: Array  # and of a variant from the replicas
    spreads: bool  # whether noise is known from runs that differ: not where all replicas are equal bit for bit
    recordings: int
    steps: Array  # per step: the check's absolute difference

    def bounds(self, tail: float) -> tuple[Array, Array]:
        """Lower and upper bound of the relative effect, each wrong with probability `tail`."""
        low, high = self._reach(tail)
        return self.relative(low), self.relative(high)

    def _reach(self, tail: float) -> tuple[Array, Array]:
        if self.error is None:
            raise ValueError("without replicas there are no bounds")
        reach = t_quantile(self.freedom, tail) * self.error
        return self.effect - reach, self.effect + reach

    def relative(self, effect: Array) -> Array:
        np = load_numpy()
        with np.errstate(over="ignore"):
            return np.expm1(effect) if self.in_logs else effect

    @property
    def envelope(self) -> Array:
        """The largest distance that is known to be harmless."""
        return load_numpy().maximum(self.replicas, self.variants)


def stack_variants(pair: Pair) -> Array:
    """One row for each variant; none: no rows."""
    np = load_numpy()
    return np.array([track.values for track in pair.variants], dtype=float).reshape(-1, len(pair.steps))


def stack_golden(golden: Sequence[Track]) -> Array:
    return load_numpy().array([track.values for track in golden], dtype=float)


def stack_checks(checks: Sequence[Aligned]) -> Array:
    return load_numpy().array([check.values for check in checks], dtype=float)


def measure_effects(golden: Array, checks: Array, starts: Sequence[int], variants: Array | None = None) -> Effects:
    """Windows in which a check lacks a value, or has one that is not finite, get NaN as their effect."""
    np = load_numpy()
    variants = golden[:0] if variants is None else variants
    in_logs = bool((golden > 0).all() and (variants > 0).all() and not (checks <= 0).any())
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        size = None if in_logs else measure_size(np.vstack([golden, variants]), starts)
        apart = [build_differences(values, golden[:1], starts, size) for values in (golden, checks, variants)]
        known, tested, harmless = (average(rows, starts) for rows in apart)
        levels = _average_levels(golden, starts, in_logs), _average_levels(checks, starts, in_logs)
        effect = np.where(np.isfinite(levels[1]), tested.mean(axis=0) - known.mean(axis=0), np.nan)
        spread, freedom = measure_spread(known if len(known) > 1 else np.vstack([known, harmless]), tested)
        error = None if spread is None else np.sqrt(pool_variance(spread) * (1 / len(golden) + 1 / len(checks)))
        rows, of_checks, of_variants = (each - apart[0].mean(axis=0) for each in apart)
        others = len(golden) / max(1, len(golden) - 1)  # from the mean of all to the mean of the others
        return Effects(
            *levels,
            effect,
            error,
            freedom,
            in_logs,
            average(np.abs(of_checks), starts).mean(axis=0),
            np.stack([average(np.maximum(sign * of_checks, 0), starts).mean(axis=0) for sign in (1, -1)]),
            _find_largest(others * average(np.abs(rows), starts), len(starts)),
            _find_largest(average(np.abs(of_variants), starts), len(starts)),
            len(golden) == 1 or bool((apart[0] != 0).any()),
            len(golden) + len(variants),
            np.abs(of_checks).mean(axis=0),
        )


def _find_largest(distances: Array, windows: int) -> Array:
    """Of all runs, in each window or an earlier one: rounding grows, and a window may be quiet by chance."""
    np = load_numpy()
    return np.maximum.accumulate(distances.max(axis=0)) if len(distances) else np.zeros(windows)


def _average_levels(values: Array, starts: Sequence[int], in_logs: bool) -> Array:
    """A window's mean over all runs: of logs the geometric one, so that check over golden is the effect."""
    np = load_numpy()
    return np.exp(average(np.log(values), starts).mean(axis=0)) if in_logs else average(values, starts).mean(axis=0)


def average(values: Array, starts: Sequence[int]) -> Array:
    np = load_numpy()
    counts = np.diff([*starts, values.shape[1]])
    return np.add.reduceat(values, starts, axis=1) / counts


def build_differences(values: Array, first: Array, starts: Sequence[int], size: Array | None) -> Array:
    """Step by step the log-ratio to the golden's first replica, or, with a size per window, the difference in units
    of it. Equal values are exactly 0 apart."""
    np = load_numpy()
    if size is None:
        return np.log(values) - np.log(first)
    apart = values - first
    units = np.repeat(size, np.diff([*starts, values.shape[1]]))
    return np.where(apart == 0, 0.0, apart / units)  # in units of 0 any difference is infinite


def build_distances(values: Array, first: Array, starts: Sequence[int], size: Array | None) -> Array:
    """Window means of the differences."""
    return average(build_differences(values, first, starts, size), starts)


def measure_size(golden: Array, starts: Sequence[int]) -> Array:
    """The golden's mean absolute value per window, or over all windows where that is 0."""
    np = load_numpy()
    size = average(np.abs(golden), starts).mean(axis=0)
    return np.where(size > 0, size, np.abs(golden).mean())


def measure_spread(golden: Array, checks: Array) -> tuple[Array | None, int]:
    """The variance between replicas per window, and its degrees of freedom.

    A golden of one recording has none; then that of repeated checks is used.
    """
    source = golden if len(golden) > 1 else checks
    return (source.var(axis=0, ddof=1), len(source) - 1) if len(source) > 1 else (None, 0)


def pool_variance(spread: Array) -> Array:
    """Half the window's own, half the mean of all windows: five replicas estimate a window's variance badly.

    A window without a finite variance (a check ended before it, or is infinitely far away) is ignored.
    """
    np = load_numpy()
    known = spread[np.isfinite(spread)]
    return 0.5 * np.where(np.isfinite(spread), spread, 0.0) + 0.5 * (known.mean() if len(known) else 0.0)
