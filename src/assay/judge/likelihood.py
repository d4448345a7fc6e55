"""How likely the points about a step are with it and without it, by the density of the noise itself.

Levels and spreads know where the middle of the points is and how wide they lie. Of noise with two modes that is little:
a piece in which one mode happens to be rarer looks like a step, and a step is placed where the modes happen to change.
Once the cuts are roughly known, the distances of all points from their levels are a sample of the noise, and its
density tells how likely each point is on either level, whatever shape the noise has. It is one density for the whole
series, so this holds only where the noise is the same everywhere: `measure_wander` tells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from assay.judge.numerics import Array, load_numpy

MAD_TO_SIGMA = 1.4826
BLOCK = 8  # points that wandering is looked for in
FEWEST_BLOCKS = 8
DEALS = 3  # times that the points are dealt anew, to see blocks without wandering
BIN = 0.05  # width of a bin, in units of the noise
REACH = 20.0  # farther away than this is all the same
BEND = 2.0  # at this distance the kernel is 1.4 times as wide as at the level
SMOOTHING = 0.9  # Silverman's, times the spread, divided by the fifth root of n
QUARTILES_TO_SIGMA = 1.349  # how far apart they are in normal noise
STRAYS = 0.02  # share of points that may lie anywhere: one that nobody expected may not decide alone
LEVELS = 13  # that are tried about the one that is supposed
MARGIN = 1.0  # so far to both sides


def split_pieces(x: Array, cuts: Sequence[int]) -> list[Array]:
    return [x[start:stop] for start, stop in pairwise([0, *cuts, len(x)])]


def find_level(values: Array) -> float:
    """The interquartile mean: nearly as steady as the mean, and as deaf to outliers as one needs."""
    np = load_numpy()
    ordered = np.sort(values)
    aside = len(ordered) // 4
    return float(ordered[aside : len(ordered) - aside].mean())


# ---------------------------------------------------------------- is the noise the same everywhere?


def measure_wander(x: Array, cuts: Sequence[int]) -> float:
    """How much farther apart levels of neighbouring points are than levels of as many points from all over the piece.

    About 1 where the noise is nothing but noise, whatever its distribution; 1.1 to 1.8 in histories of real machines.
    """
    np = load_numpy()
    rng = np.random.default_rng(0)  # the same series gets the same answer
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
        return math.inf  # nobody knows
    among = _clipped_deviation(apart)
    return _clipped_deviation(near) / among if among else math.inf


def _spread_levels(rows: Array) -> Array:
    """The interquartile mean of every block of neighbours, less the row's median; as spread as those of many blocks
    would be. Blocks overlap: side by side there would be too few of them to tell wandering from chance."""
    np = load_numpy()
    blocks = np.lib.stride_tricks.sliding_window_view(rows, BLOCK, axis=1)
    levels = np.sort(blocks, axis=2)[:, :, BLOCK // 4 : BLOCK - BLOCK // 4].mean(axis=2)
    count = rows.shape[1] // BLOCK
    spread: Array = (levels - np.median(levels, axis=1, keepdims=True)) * math.sqrt(count / (count - 1))
    return spread


def _clipped_deviation(parts: Sequence[Array]) -> float:
    """Standard deviation about 0, values beyond three sigma counting as three."""
    np = load_numpy()
    sizes = np.abs(np.concatenate(parts))
    return float(np.sqrt(np.mean(np.minimum(sizes, 3 * MAD_TO_SIGMA * np.median(sizes)) ** 2)))


# ---------------------------------------------------------------- what is it like?


@dataclass(frozen=True, slots=True)
class Density:
    """Of a point's distance from its level."""

    logs: Array  # of each bin, from -REACH to REACH

    def weigh(self, values: Array, levels: Array) -> Array:
        """The log density of each value (column) on each level (row)."""
        np = load_numpy()
        bins = (values - levels[:, None]) * (1 / BIN) + (REACH / BIN + 0.5)
        return self.logs.take(np.clip(bins, 0, len(self.logs) - 1, out=bins).astype(np.intp))


def learn_density(x: Array, cuts: Sequence[int]) -> Density:
    """From the distances of all points from the levels of their pieces.

    Twice: the first density finds better levels, and these a sharper density.
    """
    pieces = split_pieces(x, cuts)
    levels = [find_level(piece) for piece in pieces]
    first = build_density(_measure_distances(pieces, levels))
    better = [_fit_level(first, piece, level) for piece, level in zip(pieces, levels, strict=True)]
    return build_density(_measure_distances(pieces, better))


def _measure_distances(pieces: Sequence[Array], levels: Sequence[float]) -> Array:
    np = load_numpy()
    distances: Array = np.concatenate([piece - level for piece, level in zip(pieces, levels, strict=True)])
    return distances


def build_density(distances: Array) -> Density:
    """A histogram, smoothed by a normal kernel that widens with the distance from the level: far out points are rare.

    Widening is bending: the histogram is of arsinh(distance), and then taken back.
    """
    np = load_numpy()
    centres = np.linspace(-REACH, REACH, 2 * round(REACH / BIN) + 1)
    end = math.asinh(REACH / BEND)
    bent, step = np.linspace(-end, end, len(centres), retstep=True)
    within = distances[np.abs(distances) < REACH]  # the others are strays: heaped at the ends they would look expected
    counts = np.bincount(np.rint((np.arcsinh(within / BEND) + end) / step).astype(np.intp), minlength=len(bent))
    width = _find_bandwidth(distances) / BEND
    kernel = np.exp(-0.5 * (bent[np.abs(bent) < 4 * width + step] / width) ** 2)
    smooth = np.convolve(counts, kernel / kernel.sum(), "same") / len(distances) / step
    density = np.interp(np.arcsinh(centres / BEND), bent, smooth) / np.hypot(centres, BEND)
    return Density(np.log((1 - STRAYS) * density + STRAYS / (math.pi * (1 + centres**2))))


def _find_bandwidth(distances: Array) -> float:
    np = load_numpy()
    low, high = np.percentile(distances, (25, 75))
    deviation = float(distances.std())
    spread = min(deviation, float(high - low) / QUARTILES_TO_SIGMA) or deviation
    return max(SMOOTHING * spread / math.pow(len(distances), 0.2), BIN)


def _fit_level(density: Density, values: Array, around: float) -> float:
    """The level that the values are likeliest on."""
    levels = around + load_numpy().linspace(-MARGIN, MARGIN, LEVELS)
    return float(levels[density.weigh(values, levels).sum(axis=1).argmax()])


# ---------------------------------------------------------------- is there a step, and where?


def measure_gains(density: Density, values: Array, before: float, after: float) -> Array:
    """For every place, how much likelier the values are with a step there than without any, as a log.

    Each side has its likeliest level, all of them together theirs. They lie near `before` or `after`: between levels
    that are far apart, where no point is, there is none to be found.
    """
    np = load_numpy()
    levels = np.add.outer((before, after), np.linspace(-MARGIN, MARGIN, LEVELS)).ravel()
    sums = np.zeros((len(levels), len(values) + 1))
    np.cumsum(density.weigh(values, levels), axis=1, out=sums[:, 1:])
    gains: Array = sums.max(axis=0) + (sums[:, -1:] - sums).max(axis=0) - sums[:, -1].max()
    return gains
