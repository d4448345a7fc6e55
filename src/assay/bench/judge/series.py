"""A history as the change point search uses it: finite values in units of sigma, with their autocorrelation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from assay.bench.judge.likelihood import MAD_TO_SIGMA, find_level, split_pieces
from assay.judge.statistics import Array, load_numpy

SHORTEST_SERIES = 6  # finite values; fewer show no change point
LEAST_AUTOCORRELATION = 0.2  # a smaller one counts as 0
MOST_AUTOCORRELATION = 0.96
AUTOCORRELATION_ERROR = 2.0  # divided by sqrt(n): an upper estimate of its standard error
LARGEST_LOG = 700.0  # beyond, exp overflows
USUAL_LENGTH = 1000  # points; the z of a window is meant for a series of that length


@dataclass(frozen=True, slots=True)
class Signal:
    """Finite values, as logs where all are positive, divided by their sigma."""

    x: Array
    indices: Array  # of the finite values in the original series
    origin: float  # what x = 0 stands for
    scale: float  # the distance of x = 1 from there: as a log, or as a fraction of `unit`
    unit: float  # the largest size of a value; 1 for logs
    autocorrelation: float  # lag-1 autocorrelation of the noise, 0 to MOST_AUTOCORRELATION
    in_logs: bool

    def restore(self, x: float) -> float:
        """A level in the units of the metric."""
        level = self.origin + x * self.scale
        return math.exp(min(level, LARGEST_LOG)) if self.in_logs else level * self.unit

    def relate(self, height: float, before: float) -> float:
        """A difference relative to the level before it; infinite where that level is 0."""
        if self.in_logs:
            return math.expm1(min(height * self.scale, LARGEST_LOG))
        level = abs(self.origin + before * self.scale)
        return height * self.scale / level if level else math.copysign(math.inf, height)

    @property
    def rigor(self) -> float:
        """A factor for thresholds: a longer series has more indices where chance can produce a step."""
        return math.log(len(self.x)) / math.log(USUAL_LENGTH)


def find_variance_inflation(autocorrelation: float) -> float:
    """Of the mean of points with this lag-1 autocorrelation: so many of them are worth one independent point."""
    return (1 + autocorrelation) / (1 - autocorrelation)


def build_signal(values: Sequence[float | None], least_autocorrelation: float = LEAST_AUTOCORRELATION) -> Signal | None:
    """None where there are fewer than `SHORTEST_SERIES` finite values, or all are the same."""
    np = load_numpy()
    given = np.array([math.nan if value is None else value for value in values], dtype=float)
    indices = np.flatnonzero(np.isfinite(given))
    finite = given[indices]
    if len(finite) < SHORTEST_SERIES or finite.min() == finite.max():
        return None
    in_logs = bool(finite.min() > 0)
    unit = 1.0 if in_logs else float(np.abs(finite).max())
    levels = np.log(finite) if in_logs else finite / unit
    autocorrelation = measure_autocorrelation(levels, least_autocorrelation)
    scale = measure_noise(levels) / math.sqrt(1 - autocorrelation)
    return Signal((levels - levels[0]) / scale, indices, float(levels[0]), scale, unit, autocorrelation, in_logs)


def measure_noise(levels: Array) -> float:
    """Sigma, from the differences of neighbours, which a rare step does not raise."""
    np = load_numpy()
    differences = np.diff(levels)
    noise = MAD_TO_SIGMA * float(np.median(np.abs(differences - np.median(differences)))) / math.sqrt(2)
    if noise == 0:  # counts that seldom change: use their few differences
        noise = float(differences.std()) / math.sqrt(2)
    return max(noise, 1e-9 * float(np.ptp(levels)))  # a straight line has no noise


def measure_autocorrelation(levels: Array, least: float = LEAST_AUTOCORRELATION) -> float:
    """Autocorrelation from the squared differences at lags 1, 2 and 3, which level shifts do not inflate.

    With autocorrelation r those at lags 2 and 3 are 1 + r and 1 + r + r² times as large; their mean is solved for r.
    """
    if len(levels) < 20:
        return 0.0
    first, second, third = (_squared_distance(levels, lag) for lag in (1, 2, 3))
    if first == 0:
        return 0.0
    ratio = (second + third) / 2 / first
    found = math.sqrt(max(2 * ratio - 1, 0.0)) - 1
    if found < least:
        return 0.0
    return min(
        found + AUTOCORRELATION_ERROR / math.sqrt(len(levels)), MOST_AUTOCORRELATION
    )  # too low a value raises false alarms


def measure_autocorrelation_again(signal: Signal, cuts: Sequence[int], least: float = LEAST_AUTOCORRELATION) -> Signal:
    """With the autocorrelation that remains without the found steps, if it is smaller; else the same signal.

    Many steps look like autocorrelation and hide the smaller steps among them. A signal without steps is not changed.
    """
    np = load_numpy()
    if not cuts or not signal.autocorrelation:
        return signal
    autocorrelation = measure_autocorrelation(
        np.concatenate([p - find_level(p) for p in split_pieces(signal.x, cuts)]), least
    )
    if autocorrelation >= signal.autocorrelation:
        return signal
    finer = math.sqrt((1 - autocorrelation) / (1 - signal.autocorrelation))
    return replace(signal, x=signal.x * finer, scale=signal.scale / finer, autocorrelation=autocorrelation)


def _squared_distance(levels: Array, lag: int) -> float:
    """The mean of squared differences, clipped at 3 sigma."""
    np = load_numpy()
    distances = np.abs(levels[lag:] - levels[:-lag])
    bound = 3 * MAD_TO_SIGMA * float(np.median(distances))
    return float((np.minimum(distances, bound) ** 2).mean())
