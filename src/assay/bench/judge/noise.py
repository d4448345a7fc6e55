"""The noise of a history: its sigma and autocorrelation, and the likelihood of the points around a step.

Levels and sigma describe noise with two modes badly: a piece in which one mode happens to be rarer looks like a step,
and a step is located where the modes happen to change. Once the cuts are roughly known, the residuals of all points are
a sample of the noise, whose density gives the likelihood of each point on either level, whatever shape the noise has.
One density is estimated for the whole series, so it is valid only where the noise is equal everywhere
(`measure_level_drift`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from assay.bench.values.comparison import LevelStep
from assay.judge.statistics import Array, np
from assay.system.fast_dataclasses import dataclass, replace

SHORTEST_SERIES = 6  # finite values; a series with fewer has no change point
LEAST_AUTOCORRELATION = 0.2  # a smaller autocorrelation counts as 0
MOST_AUTOCORRELATION = 0.96
AUTOCORRELATION_ERROR = 2.0  # divided by sqrt(n): an upper estimate of the autocorrelation's standard error
LARGEST_LOG = 700.0  # exp of a larger value overflows
USUAL_LENGTH = 1000  # points; the z of a window is the threshold for a series of this length
MAD_TO_SIGMA = 1.4826
BLOCK = 8  # points from which a drifting level is estimated
FEWEST_BLOCKS = 8
DEALS = 3  # random permutations that give blocks without drift
BIN = 0.05  # width of a bin, in units of sigma
REACH = 20.0  # in units of sigma: all larger residuals are treated alike
BEND = 2.0  # distance from the level, in units of sigma, at which the kernel is 1.4 times as wide
SMOOTHING = 0.9  # Silverman's factor, times the spread, divided by the fifth root of n
QUARTILES_TO_SIGMA = 1.349  # distance of the quartiles in normal noise
CONTAMINATION = 0.02  # fraction of points that may have any value: a single outlier must not decide
LEVELS = 13  # levels that are tried around the estimated one
MARGIN = 1.0  # distance of the outermost tried levels from the estimated one, in units of sigma


def split_pieces(x: Array, cuts: Sequence[int]) -> list[Array]:
    return [x[start:stop] for start, stop in pairwise([0, *cuts, len(x)])]


def find_level(values: Array) -> float:
    """Return the interquartile mean: nearly as efficient as the mean, and robust against outliers."""
    ordered = np.sort(values)
    aside = len(ordered) // 4
    return float(ordered[aside : len(ordered) - aside].mean())


# ---------------------------------------------------------------- a history in units of its noise


@dataclass(frozen=True, slots=True)
class Signal:
    """Finite values, as logs where all are positive, divided by their sigma."""

    x: Array
    indices: Array  # positions of the finite values in the original series
    origin: float  # the value of x = 0
    scale: float  # the distance of x = 1 from x = 0: as a log, or as a fraction of `unit`
    unit: float  # the largest absolute value; 1 for logs
    autocorrelation: float  # lag-1 autocorrelation of the noise, 0 to MOST_AUTOCORRELATION
    in_logs: bool

    def restore(self, x: float) -> float:
        """Return a level in the units of the metric."""
        level = self.origin + x * self.scale
        return math.exp(min(level, LARGEST_LOG)) if self.in_logs else level * self.unit

    def relate(self, height: float, before: float) -> float:
        """Return a difference relative to the level before it; infinite if the level before is 0."""
        if self.in_logs:
            return math.expm1(min(height * self.scale, LARGEST_LOG))
        level = abs(self.origin + before * self.scale)
        return height * self.scale / level if level else math.copysign(math.inf, height)

    def build_step(self, index: int, before: float, after: float, reach: float) -> LevelStep:
        """Return a step at `index` from one level to another. `reach`: half the width of the height's interval."""
        height = after - before
        low, high = (self.relate(height + way * reach, before) for way in (-1, 1))
        effect = self.relate(height, before)
        return LevelStep(int(self.indices[index]), self.restore(before), self.restore(after), effect, (low, high))

    @property
    def rigor(self) -> float:
        """Return a factor for thresholds: a longer series has more indices where chance can produce a step."""
        return math.log(len(self.x)) / math.log(USUAL_LENGTH)


def find_variance_inflation(autocorrelation: float) -> float:
    """Return how many points with this lag-1 autocorrelation contribute as much to a mean as one independent point."""
    return (1 + autocorrelation) / (1 - autocorrelation)


def build_signal(values: Sequence[float | None], least_autocorrelation: float = LEAST_AUTOCORRELATION) -> Signal | None:
    """Return a signal; None if there are fewer than `SHORTEST_SERIES` finite values, or if all of them are equal."""
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
    """Measure sigma from the differences of neighbours, which are not raised by a rare step."""
    differences = np.diff(levels)
    noise = MAD_TO_SIGMA * float(np.median(np.abs(differences - np.median(differences)))) / math.sqrt(2)
    if noise == 0:  # for counts that seldom change, sigma comes from their few differences
        noise = float(differences.std()) / math.sqrt(2)
    return max(noise, 1e-9 * float(np.ptp(levels)))  # a straight line has no noise


def measure_autocorrelation(levels: Array, least: float = LEAST_AUTOCORRELATION) -> float:
    """Estimate the autocorrelation from the squared differences at lags 1, 2 and 3, which level shifts do not inflate.

    With autocorrelation r the squares at lags 2 and 3 are 1 + r and 1 + r + r² times as large; the mean gives r.
    """
    if len(levels) < 20:
        return 0.0
    first, second, third = (_measure_clipped_variance(levels[lag:] - levels[:-lag]) for lag in (1, 2, 3))
    if first == 0:
        return 0.0
    ratio = (second + third) / 2 / first
    found = math.sqrt(max(2 * ratio - 1, 0.0)) - 1
    if found < least:
        return 0.0
    raised = found + AUTOCORRELATION_ERROR / math.sqrt(len(levels))  # too low a value raises false alarms
    return min(raised, MOST_AUTOCORRELATION)


def measure_autocorrelation_again(signal: Signal, cuts: Sequence[int], least: float = LEAST_AUTOCORRELATION) -> Signal:
    """Return the signal with the autocorrelation that remains without the found steps, if it is smaller.

    Many steps look like autocorrelation and hide the smaller steps among them. A signal without steps is not changed.
    """
    if not cuts or not signal.autocorrelation:
        return signal
    about = np.concatenate([piece - find_level(piece) for piece in split_pieces(signal.x, cuts)])
    autocorrelation = measure_autocorrelation(about, least)
    if autocorrelation >= signal.autocorrelation:
        return signal
    finer = math.sqrt((1 - autocorrelation) / (1 - signal.autocorrelation))
    return replace(signal, x=signal.x * finer, scale=signal.scale / finer, autocorrelation=autocorrelation)


def _measure_clipped_variance(values: Array) -> float:
    """Return the mean of the squares of the values, clipped at 3 sigma."""
    sizes = np.abs(values)
    return float((np.minimum(sizes, 3 * MAD_TO_SIGMA * float(np.median(sizes))) ** 2).mean())


# ---------------------------------------------------------------- is the noise the same everywhere?


def measure_level_drift(x: Array, cuts: Sequence[int]) -> float:
    """Return the ratio of the spread of levels of neighbouring points to that of as many points from all over a piece:
    about 1 for independent noise, whatever its distribution; 1.1 to 1.8 in histories of real machines."""
    rng = np.random.default_rng(0)  # a fixed seed: a series always has one result
    near: list[Array] = []
    apart: list[Array] = []
    blocks = 0
    for piece in split_pieces(x, cuts):
        if len(piece) >= 2 * BLOCK:
            blocks += len(piece) // BLOCK
            dealt = rng.permuted(np.tile(piece, (DEALS, 1)), axis=1)
            levels = _spread_levels(np.vstack((piece, dealt)))
            near.append(levels[0])
            apart.append(levels[1:].ravel())
    if blocks < FEWEST_BLOCKS:
        return math.inf  # too few blocks to measure the drift
    spread, among = (math.sqrt(_measure_clipped_variance(np.concatenate(parts))) for parts in (near, apart))
    return spread / among if among else math.inf


def _spread_levels(rows: Array) -> Array:
    """Return the interquartile mean of every block of neighbours, minus the row's median, scaled to the spread of many
    blocks. The blocks overlap: disjoint blocks would be too few to distinguish drift from chance."""
    blocks = np.lib.stride_tricks.sliding_window_view(rows, BLOCK, axis=1)
    levels = np.sort(blocks, axis=2)[:, :, BLOCK // 4 : BLOCK - BLOCK // 4].mean(axis=2)
    count = rows.shape[1] // BLOCK
    return (levels - np.median(levels, axis=1, keepdims=True)) * math.sqrt(count / (count - 1))


# ---------------------------------------------------------------- the density of the noise


def weigh(density: Array, values: Array, levels: Array) -> Array:
    """Return the log density of each value (column) on each level (row)."""
    bins = (values - levels[:, None]) * (1 / BIN) + (REACH / BIN + 0.5)
    return density.take(np.clip(bins, 0, len(density) - 1, out=bins).astype(np.intp))


def learn_density(x: Array, cuts: Sequence[int]) -> Array:
    """Estimate the density of the residuals of all points about the levels of their pieces.

    The estimate is made twice: the first density gives better levels, and better levels give a sharper density.
    """
    pieces = split_pieces(x, cuts)
    levels = [find_level(piece) for piece in pieces]
    first = build_density(_measure_distances(pieces, levels))
    around, better = np.linspace(-MARGIN, MARGIN, LEVELS), []
    for piece, level in zip(pieces, levels, strict=True):  # the most likely level of each piece
        better.append(float((level + around)[weigh(first, piece, level + around).sum(axis=1).argmax()]))
    return build_density(_measure_distances(pieces, better))


def _measure_distances(pieces: Sequence[Array], levels: Sequence[float]) -> Array:
    return np.concatenate([piece - level for piece, level in zip(pieces, levels, strict=True)])


def build_density(distances: Array) -> Array:
    """Return the log density of each bin from -REACH to REACH: a histogram, smoothed by a normal kernel that widens
    with the distance from the level, where points are rare.

    The histogram counts arsinh(distance), and the smoothed result is transformed back.
    """
    centres = np.linspace(-REACH, REACH, 2 * round(REACH / BIN) + 1)
    end = math.asinh(REACH / BEND)
    bent, step = np.linspace(-end, end, len(centres), retstep=True)
    within = distances[np.abs(distances) < REACH]  # other points would all be counted in the last bins
    counts = np.bincount(np.rint((np.arcsinh(within / BEND) + end) / step).astype(np.intp), minlength=len(bent))
    low, high = np.percentile(distances, (25, 75))
    deviation = float(distances.std())
    spread = min(deviation, float(high - low) / QUARTILES_TO_SIGMA) or deviation
    width = max(SMOOTHING * spread / math.pow(len(distances), 0.2), BIN) / BEND
    kernel = np.exp(-0.5 * (bent[np.abs(bent) < 4 * width + step] / width) ** 2)
    smooth = np.convolve(counts, kernel / kernel.sum(), "same") / len(distances) / step
    density = np.interp(np.arcsinh(centres / BEND), bent, smooth) / np.hypot(centres, BEND)
    return np.log((1 - CONTAMINATION) * density + CONTAMINATION / (math.pi * (1 + centres**2)))


def measure_gains(density: Array, values: Array, before: float, after: float) -> Array:
    """Return for every index the log-likelihood ratio of the values with a step at that index and without a step.

    Each side has its most likely level, and so have all values together. Levels are tried only near `before` and
    `after`: between two levels that are far apart there are no points.
    """
    levels = np.add.outer((before, after), np.linspace(-MARGIN, MARGIN, LEVELS)).ravel()
    sums = np.zeros((len(levels), len(values) + 1))
    np.cumsum(weigh(density, values, levels), axis=1, out=sums[:, 1:])
    return sums.max(axis=0) + (sums[:, -1:] - sums).max(axis=0) - sums[:, -1].max()


# ---------------------------------------------------------------- few points, and outliers among them


STUDENT_DEGREES_OF_FREEDOM = 3.0  # the cost of an outlier grows slowly with its distance
SCALES = 12  # scales of the noise that are tried
MOST_LEVELS = 48  # levels that are tried: the values themselves, or as many of their quantiles
MOST_TIES = 0.5  # fraction of values that equal another one; with more ties the values are counts on a grid
GRID_NOISE = 0.5  # in steps of a grid of counts: values one step apart may be one level


def measure_student_gains(values: Array) -> Array:
    """Return for every cut the log-likelihood ratio of the values with and without a step, in noise of Student's t.
    Levels and the scale of the noise are fitted with the step and without the step.

    The ratio is robust if up to a tenth of the values are outliers. A density that is estimated from the values
    (`learn_density`) needs more points.
    """
    count = len(values)
    scales = find_scales(values)
    sums = np.zeros((len(scales), min(count, MOST_LEVELS), count + 1))
    np.cumsum(_weigh_student(values, scales), axis=2, out=sums[:, :, 1:])
    base = count * np.log(scales)
    without = (sums[:, :, -1].min(axis=1) + base).min()
    sides = sums.min(axis=1) + (sums[:, :, -1:] - sums).min(axis=1)
    return without - (sides + base[:, None]).min(axis=0)


def measure_student_loss(values: Array) -> float:
    """Return the negative log-likelihood of the values with their most likely level and scale."""
    scales = find_scales(values)
    sums = _weigh_student(values, scales).sum(axis=2).min(axis=1)
    return float((sums + len(values) * np.log(scales)).min())


def _weigh_student(values: Array, scales: Array) -> Array:
    """Return the negative log density of each value (last axis) on each level (second) with each scale (first)."""
    levels = values
    if len(values) > MOST_LEVELS:
        levels = np.quantile(values, (np.arange(MOST_LEVELS) + 0.5) / MOST_LEVELS)
    squares = (values - levels[:, None]) ** 2 / STUDENT_DEGREES_OF_FREEDOM
    cost: Array = np.log1p(squares / (scales**2)[:, None, None])
    cost *= (STUDENT_DEGREES_OF_FREEDOM + 1) / 2
    return cost


def find_scales(values: Array) -> Array:
    """Return scales from well below the differences of neighbours to well above the spread of all values."""
    spreads = [np.median(np.abs(part)) for part in (values - np.median(values), np.diff(values) / math.sqrt(2))]
    floor = max(1e-9 * float(np.ptp(values)), find_grid_noise(values), 1e-300)
    low = max(0.5 * float(min(spreads)), floor)
    high = max(2.4 * float(max(spreads)), 1.01 * low)
    return np.geomspace(low, high, SCALES)


def find_grid_noise(values: Array) -> float:
    """Return the noise that rounding adds to counts on a grid; 0 if few values repeat or all are equal."""
    distinct = np.unique(values)
    if len(distinct) < 2 or len(distinct) > (1 - MOST_TIES) * len(values):
        return 0.0
    return GRID_NOISE * float(np.diff(distinct).min())


def measure_piece_costs(values: Array, scale: float) -> Array:
    """Return the negative log-likelihood of every piece [row, column) on its most likely level, with a known scale."""
    weighed = _weigh_student(values, np.array([scale]))[0]
    sums = np.zeros((len(weighed), len(values) + 1))
    np.cumsum(weighed, axis=1, out=sums[:, 1:])
    costs = np.full((len(values) + 1, len(values) + 1), np.inf)
    for row in sums:
        np.minimum(costs, row[None, :] - row[:, None], out=costs)
    return costs
