"""A history as change points are sought in it: its finite values in units of their noise, and how much of that noise
lasts from one point to the next (memory)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from assay.bench.judge.likelihood import MAD_TO_SIGMA, find_level, split_pieces
from assay.judge.statistics import Array, load_numpy

SHORTEST_SERIES = 6  # finite values; below that nothing can be told
LEAST_MEMORY = 0.2  # autocorrelation below this counts as none
MOST_MEMORY = 0.96
MEMORY_ERROR = 2.0  # divided by sqrt(n): rather more than the standard error of what is measured
LARGEST_LOG = 700.0  # beyond, exp overflows
USUAL_LENGTH = 1000  # points; a look's z is meant for a series of that length


@dataclass(frozen=True, slots=True)
class Signal:
    """Finite values, as logs where all are positive, divided by their noise."""

    x: Array
    places: Array  # of the finite values in the given series
    origin: float  # what x = 0 stands for
    scale: float  # and how far x = 1 is from there: as a log, or as a share of `unit`
    unit: float  # the largest size of a value; 1 for logs
    memory: float  # lag-1 autocorrelation of the noise, 0 to MOST_MEMORY
    in_logs: bool

    def restore(self, x: float) -> float:
        """A level in the user's units."""
        level = self.origin + x * self.scale
        return math.exp(min(level, LARGEST_LOG)) if self.in_logs else level * self.unit

    def relate(self, height: float, before: float) -> float:
        """A difference as a proportion of the level before; of a level of 0 everything is infinitely far."""
        if self.in_logs:
            return math.expm1(min(height * self.scale, LARGEST_LOG))
        level = abs(self.origin + before * self.scale)
        return height * self.scale / level if level else math.copysign(math.inf, height)

    @property
    def rigor(self) -> float:
        """In a longer series there are more places for chance to make a step at."""
        return math.log(len(self.x)) / math.log(USUAL_LENGTH)


def find_thinning(memory: float) -> float:
    """How many neighbouring points are worth one independent one."""
    return (1 + memory) / (1 - memory)


def build_signal(values: Sequence[float | None], least_memory: float = LEAST_MEMORY) -> Signal | None:
    """None where there are fewer than `SHORTEST_SERIES` finite values, or all are the same."""
    np = load_numpy()
    given = np.array([math.nan if value is None else value for value in values], dtype=float)
    places = np.flatnonzero(np.isfinite(given))
    finite = given[places]
    if len(finite) < SHORTEST_SERIES or finite.min() == finite.max():
        return None
    in_logs = bool(finite.min() > 0)
    unit = 1.0 if in_logs else float(np.abs(finite).max())
    levels = np.log(finite) if in_logs else finite / unit
    memory = measure_memory(levels, least_memory)
    scale = measure_noise(levels) / math.sqrt(1 - memory)
    return Signal((levels - levels[0]) / scale, places, float(levels[0]), scale, unit, memory, in_logs)


def measure_noise(levels: Array) -> float:
    """Standard deviation from neighbours' differences, which a rare step does not raise."""
    np = load_numpy()
    differences = np.diff(levels)
    noise = MAD_TO_SIGMA * float(np.median(np.abs(differences - np.median(differences)))) / math.sqrt(2)
    if noise == 0:  # counts that seldom change: their few differences are all there is
        noise = float(differences.std()) / math.sqrt(2)
    return max(noise, 1e-9 * float(np.ptp(levels)))  # a line that climbs evenly has no noise at all


def measure_memory(levels: Array, least: float = LEAST_MEMORY) -> float:
    """Autocorrelation by how much farther apart values are at lags 2 and 3 than at lag 1; level shifts do not fake it.

    With correlation r those squared distances are 1 + r and 1 + r + r² times as large; their mean is solved for r.
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
    return min(found + MEMORY_ERROR / math.sqrt(len(levels)), MOST_MEMORY)  # too little of it raises alarms


def settle_memory(signal: Signal, cuts: Sequence[int], least: float = LEAST_MEMORY) -> Signal:
    """With the memory that is left when the steps found are taken off, if that is less; else the same signal.

    Many steps look like a little memory after all, and hide the smaller among them. Noise without any stays as it is.
    """
    np = load_numpy()
    if not cuts or not signal.memory:
        return signal
    memory = measure_memory(np.concatenate([p - find_level(p) for p in split_pieces(signal.x, cuts)]), least)
    if memory >= signal.memory:
        return signal
    finer = math.sqrt((1 - memory) / (1 - signal.memory))
    return replace(signal, x=signal.x * finer, scale=signal.scale / finer, memory=memory)


def _squared_distance(levels: Array, lag: int) -> float:
    """The mean, distances beyond three sigma counting as three."""
    np = load_numpy()
    distances = np.abs(levels[lag:] - levels[:-lag])
    bound = 3 * MAD_TO_SIGMA * float(np.median(distances))
    return float((np.minimum(distances, bound) ** 2).mean())
