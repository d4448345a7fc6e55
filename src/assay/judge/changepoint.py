"""Where the level of a history changed and stayed.

Two steps. An rbf kernel cuts the series into more pieces than it should, in overlapping stretches, each scaled by its
own noise: rare outliers and several modes do not trouble a bounded kernel, and a quiet month is not measured by a
noisy one. Then the weakest cuts are taken back, one after the other, until every cut left is a step that someone who
looks at the points beside it would call one: at least about as high as their spread, and sure. How sure depends on
the series: the longer it is, the more often chance makes a step somewhere; where neighbours resemble each other
(memory) points count as fewer, and the jump itself is evidence too; where the level wanders, as on most real machines,
less is believed than in noise that is nothing but noise.

`docs/explanation/benchmark-statistics.md` says why, and how good it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from assay.errors import MissingExtraError
from assay.judge.numerics import Array, load_numpy, t_quantile
from assay.values.bench import ChangePoint

SHORTEST_SERIES = 6  # finite values; below that nothing can be told
SHORTEST_PIECE = 3
MAD_TO_SIGMA = 1.4826
MOST_MEMORY = 0.95
MEMORY_ERROR = 1.5  # divided by sqrt(n): about the standard error of what is measured
LARGEST_LOG = 700.0  # beyond, exp overflows
QUIETEST = 0.2  # a stretch is not taken to be quieter than this, in units of the whole series' noise
LONGEST_LOOK = 100
USUAL_LENGTH = 1000  # points; a look's z is meant for a series of that length
BLOCK = 8  # points that wandering is looked for in
FEWEST_BLOCKS = 8
LEVEL_COST = 1.19  # variance of an interquartile mean over that of a mean, in normal noise
MEDIAN_TELLS = 0.4  # of a standard deviation's degrees of freedom
SURE = 1.0  # times 1 / sqrt(n): a smaller correlation of the points about their levels is taken for chance
LEVEL_BIAS = 4.0  # divided by n: how much too small it comes out, since the levels were fitted


@dataclass(frozen=True, slots=True)
class Look:
    """How far one looks to both sides of a cut, and what must then be seen."""

    points: int
    z: float
    effect: float  # in spreads


@dataclass(frozen=True, slots=True)
class Tuning:
    """The few numbers of the method, tuned on annotated histories (benchmarks/changepoint.py)."""

    gamma: float = 0.15  # of the kernel, on values scaled by their noise
    penalty: float = 0.45  # of a cut, times ln n
    stretch: int = 400  # points that are cut together
    near: Look = Look(20, 3.0, 1.0)
    far: Look = Look(60, 5.0, 0.5)  # small steps that last
    floor: float = 0.5  # added to a look's own spread, in units of the whole series' noise
    least_memory: float = 0.2  # autocorrelation below this counts as none
    ease: float = 0.7  # share of both bounds of a look that is enough where the level does not wander
    unrest: float = 1.35  # from this much wandering on the bounds hold in full


DEFAULT = Tuning()


def find_change_points(values: Sequence[float | None], tuning: Tuning = DEFAULT) -> tuple[ChangePoint, ...]:
    """The change points in order. None, NaN and infinite values are passed over; a series with fewer than
    `SHORTEST_SERIES` others, or a constant one, has no change point."""
    signal = build_signal(values, tuning)
    if signal is None:
        return ()
    candidates = find_candidates(signal, tuning)
    cuts = prune_cuts(signal, candidates, tuning)
    ease = find_ease(measure_wander(signal, cuts), tuning)
    return describe_cuts(signal, prune_cuts(signal, candidates, tuning, ease) if ease < 1 else cuts, tuning)


# ---------------------------------------------------------------- the series in units of its noise


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
    def thinning(self) -> float:
        """How many neighbouring points are worth one independent one."""
        return (1 + self.memory) / (1 - self.memory)

    @property
    def rigor(self) -> float:
        """In a longer series there are more places for chance to make a step at."""
        return math.log(len(self.x)) / math.log(USUAL_LENGTH)


def build_signal(values: Sequence[float | None], tuning: Tuning = DEFAULT) -> Signal | None:
    np = load_numpy()
    given = np.array([math.nan if value is None else value for value in values], dtype=float)
    places = np.flatnonzero(np.isfinite(given))
    finite = given[places]
    if len(finite) < SHORTEST_SERIES or finite.min() == finite.max():
        return None
    in_logs = bool(finite.min() > 0)
    unit = 1.0 if in_logs else float(np.abs(finite).max())
    levels = np.log(finite) if in_logs else finite / unit
    memory = measure_memory(levels, tuning)
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


def measure_memory(levels: Array, tuning: Tuning = DEFAULT) -> float:
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
    if found < tuning.least_memory:
        return 0.0
    return min(found + MEMORY_ERROR / math.sqrt(len(levels)), MOST_MEMORY)  # too little of it raises alarms


def _squared_distance(levels: Array, lag: int) -> float:
    """The mean, distances beyond three sigma counting as three."""
    np = load_numpy()
    distances = np.abs(levels[lag:] - levels[:-lag])
    bound = 3 * MAD_TO_SIGMA * float(np.median(distances))
    return float((np.minimum(distances, bound) ** 2).mean())


# ---------------------------------------------------------------- too many cuts


def find_candidates(signal: Signal, tuning: Tuning = DEFAULT) -> list[int]:
    """Cuts of all stretches; of a cut in the overlap of two, the stretch speaks that has it nearer to its middle."""
    n, length = len(signal.x), tuning.stretch
    penalty = tuning.penalty * math.log(n)
    if n <= length:
        return _separate(_cut(signal.x, tuning.gamma, penalty), n)
    found: set[int] = set()
    for start in range(0, n - length + length // 2, length // 2):
        begin = min(start, n - length)
        piece = signal.x[begin : begin + length]
        noise = max(measure_noise(piece) / math.sqrt(1 - signal.memory), QUIETEST)
        low = 0 if begin == 0 else length // 4
        high = length if begin + length == n else length - length // 4
        found.update(begin + cut for cut in _cut(piece / noise, tuning.gamma, penalty) if low <= cut < high)
    return _separate(sorted(found), n)


def _cut(x: Array, gamma: float, penalty: float) -> list[int]:
    kernel = _load_ruptures().KernelCPD(kernel="rbf", params={"gamma": gamma}, min_size=SHORTEST_PIECE)
    ends: list[int] = kernel.fit(x.reshape(-1, 1)).predict(pen=penalty)
    return [int(end) for end in ends[:-1]]


def _load_ruptures() -> Any:
    try:
        import ruptures
    except ImportError:
        raise MissingExtraError("finding change points", "stats") from None
    return ruptures


def _separate(cuts: Iterable[int], n: int) -> list[int]:
    """Without cuts that leave a piece shorter than the shortest."""
    kept: list[int] = [0]
    for cut in cuts:
        if cut - kept[-1] >= SHORTEST_PIECE and n - cut >= SHORTEST_PIECE:
            kept.append(cut)
    return kept[1:]


# ---------------------------------------------------------------- fewer


def prune_cuts(signal: Signal, cuts: Sequence[int], tuning: Tuning = DEFAULT, ease: float = 1.0) -> list[int]:
    """Takes the weakest cut back, weighs its neighbours anew, and goes on until each is strong enough.

    `ease`: this share of what must be seen is enough.
    """
    edges = [0, *cuts, len(signal.x)]

    def weigh(place: int) -> float:
        return weigh_cut(signal, edges[place - 1], edges[place], edges[place + 1], tuning) / ease

    return _take_back(edges, weigh)


def _take_back(edges: list[int], weigh: Callable[[int], float]) -> list[int]:
    strengths = [weigh(place) for place in range(1, len(edges) - 1)]
    while strengths and min(strengths) < 1:
        weakest = strengths.index(min(strengths))
        del edges[weakest + 1], strengths[weakest]
        for neighbour in (weakest - 1, weakest):
            if 0 <= neighbour < len(strengths):
                strengths[neighbour] = weigh(neighbour + 1)
    return edges[1:-1]


def weigh_cut(signal: Signal, start: int, cut: int, stop: int, tuning: Tuning = DEFAULT) -> float:
    """How far the step is above what must be seen; below 1 it is none. Seen from near, or else from far."""
    strength = 0.0
    for look in (tuning.near, tuning.far):
        sides = measure_sides(signal, start, cut, stop, look.points)
        effect, z = measure_step(signal, cut, sides, tuning.floor)
        strength = max(strength, min(z / (look.z * signal.rigor + signal.memory), effect / look.effect))
    return strength


def measure_wander(signal: Signal, cuts: Sequence[int]) -> float:
    """How much farther apart levels of neighbouring points are than levels of as many points from all over the piece.

    1 where the noise is nothing but noise, whatever its distribution; 1.2 to 2 in histories of real machines.
    """
    near: list[Array] = []
    apart: list[Array] = []
    for start, stop in pairwise([0, *cuts, len(signal.x)]):
        count = (stop - start) // BLOCK
        if count >= 2:
            piece = signal.x[start : start + count * BLOCK]
            near.append(_spread_levels(piece.reshape(count, BLOCK)))
            apart.append(_spread_levels(piece.reshape(BLOCK, count).T))
    if sum(map(len, near)) < FEWEST_BLOCKS:
        return math.inf  # nobody knows
    among = _clipped_deviation(apart)
    return _clipped_deviation(near) / among if among else math.inf


def _spread_levels(blocks: Array) -> Array:
    """The interquartile mean of each row, less their median; as spread as those of many rows would be."""
    np = load_numpy()
    levels = np.sort(blocks, axis=1)[:, BLOCK // 4 : BLOCK - BLOCK // 4].mean(axis=1)
    return (levels - np.median(levels)) * math.sqrt(len(levels) / (len(levels) - 1))


def _clipped_deviation(parts: Sequence[Array]) -> float:
    """Standard deviation about 0, values beyond three sigma counting as three."""
    np = load_numpy()
    sizes = np.abs(np.concatenate(parts))
    return float(np.sqrt(np.mean(np.minimum(sizes, 3 * MAD_TO_SIGMA * np.median(sizes)) ** 2)))


def find_ease(wander: float, tuning: Tuning = DEFAULT) -> float:
    """From `tuning.ease` where the level does not wander, up to 1 where it does."""
    share = (wander - 1) / (tuning.unrest - 1)
    return tuning.ease + (1 - tuning.ease) * min(max(share, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Sides:
    """The levels on both sides of a cut, in units of the noise."""

    before: float
    after: float
    spread: float  # of the points about their level
    left: int  # points looked at
    right: int
    told: float  # independent points that the two levels are worth, as 1 / (1 / left + 1 / right)
    memory: float

    @property
    def height(self) -> float:
        return self.after - self.before

    @property
    def error(self) -> float:
        """Standard error of the height."""
        return self.spread * math.sqrt((1 - self.memory**2) * LEVEL_COST / self.told)

    @property
    def freedom(self) -> int:
        return self.left + self.right - 2

    @property
    def known(self) -> int:
        """Degrees of freedom that the spread is worth: a median deviation tells less than a standard deviation does."""
        return max(1, round(MEDIAN_TELLS * self.freedom))


def measure_sides(signal: Signal, start: int, cut: int, stop: int, points: int) -> Sides:
    """Between the neighbouring cuts `start` and `stop`, and at most so many independent points away."""
    np = load_numpy()
    reach = max(points, int(min(points * signal.thinning, LONGEST_LOOK)))
    left, right = signal.x[max(start, cut - reach) : cut], signal.x[cut : min(stop, cut + reach)]
    before, after = find_level(left), find_level(right)
    spread = MAD_TO_SIGMA * _middle(np.abs(np.concatenate((left - before, right - after))))
    told = len(left) * len(right) / (len(left) + len(right)) * (1 - signal.memory) ** 2
    return Sides(before, after, spread, len(left), len(right), told, signal.memory)


def measure_step(signal: Signal, cut: int, sides: Sides, floor: float) -> tuple[float, float]:
    """How high the step is, in spreads, and how sure (z). Both are 0 where levels and jump contradict each other.

    In noise with memory r each point tells (1 - r)² of what an independent one would, and the first point after the
    step tells the rest of one, since the noise could not have moved so far at once.
    """
    r = signal.memory
    jump = float(signal.x[cut]) - r * float(signal.x[cut - 1]) - (1 - r) * sides.before
    jump_tells = 1 - (1 - r) ** 2
    told = sides.told + jump_tells
    height = (sides.height * sides.told + jump * jump_tells) / told
    if height * sides.height <= 0:
        return 0.0, 0.0
    effect = abs(height) / (sides.spread + floor)
    return effect, effect * math.sqrt(told / (1 - r * r))


def find_level(values: Array) -> float:
    """The interquartile mean: nearly as steady as the mean, and as deaf to outliers as one needs."""
    np = load_numpy()
    ordered = np.sort(values)
    aside = len(ordered) // 4
    return float(ordered[aside : len(ordered) - aside].mean())


def _middle(values: Array) -> float:
    """The median; numpy's own checks cost more than the sort of so few."""
    ordered = load_numpy().sort(values)
    half = len(ordered) // 2
    return float(ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2)


# ---------------------------------------------------------------- in the user's units


def describe_cuts(signal: Signal, cuts: Sequence[int], tuning: Tuning = DEFAULT) -> tuple[ChangePoint, ...]:
    edges = [0, *cuts, len(signal.x)]
    triples = zip(edges, edges[1:], edges[2:], strict=False)
    return tuple(_describe(signal, start, cut, stop, tuning) for start, cut, stop in triples)


def _describe(signal: Signal, start: int, cut: int, stop: int, tuning: Tuning) -> ChangePoint:
    sides = settle_sides(signal, measure_sides(signal, start, cut, stop, tuning.far.points), cut)
    reach = t_quantile(sides.known, 0.025) * sides.error if sides.error else 0.0
    low, high = (signal.relate(sides.height + way * reach, sides.before) for way in (-1, 1))
    return ChangePoint(
        index=int(signal.places[cut]),
        last_before=int(signal.places[cut - 1]),
        size=signal.relate(sides.height, sides.before),
        interval=(low, high),
        before=signal.restore(sides.before),
        after=signal.restore(sides.after),
        confidence=1 - _p_value(sides),
    )


def settle_sides(signal: Signal, sides: Sides, cut: int) -> Sides:
    """With the memory that the points show about their two levels.

    Cuts are sought with a memory that is rather too large, since too little of it raises alarms. In a short series that
    is mostly its own error, and an interval made with it is several times too wide.
    """
    np = load_numpy()
    left = signal.x[cut - sides.left : cut] - sides.before
    right = signal.x[cut : cut + sides.right] - sides.after
    bound = 3 * sides.spread
    parts = [np.clip(part, -bound, bound) for part in (left, right)]
    squares = sum(float((part**2).sum()) for part in parts)
    count = sides.left + sides.right
    found = sum(float((part[1:] * part[:-1]).sum()) for part in parts) / squares if squares else 0.0
    memory = min(found + LEVEL_BIAS / count, MOST_MEMORY) if found > SURE / math.sqrt(count) and signal.memory else 0.0
    told = sides.left * sides.right / count * (1 - memory) ** 2
    spread = sides.spread * math.sqrt(count / sides.freedom)  # the two levels were fitted to the same points
    return replace(sides, spread=spread, told=told, memory=memory)


def _p_value(sides: Sides) -> float:
    from scipy.special import stdtr

    return float(2 * stdtr(sides.known, -abs(sides.height) / sides.error)) if sides.error else 0.0
