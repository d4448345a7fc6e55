"""Where the level of a history changed and stayed.

Two steps. An rbf kernel cuts the series into more pieces than it should, in overlapping stretches, each scaled by its
own noise: rare outliers and several modes do not trouble a bounded kernel, and a quiet month is not measured by a
noisy one. Then the weakest cuts are taken back, one after the other, until every cut left is a step that someone who
looks at the points beside it would call one: at least about as high as their spread, and sure. How sure depends on
the series: the longer it is, the more often chance makes a step somewhere; where neighbours resemble each other
(memory) points count as fewer, and the jump itself is evidence too.

A young series shows neither its memory nor its spread well, and a tenth of it may be outliers. It is searched in a way
of its own: every way to cut it is tried, by the likelihood of Student's t, and a step must gain more than chance does
in 2% of series of that length in noise with some memory (`find_young_cuts`).

Where the level does not wander, as it does on most real machines, the noise is the same everywhere and its own density
is known (`likelihood.py`). Then a step is one that makes the points beside it much likelier than none would, and it is
put where it is likeliest.

`docs/explanation/benchmark-statistics.md` says why, and how good it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from assay.bench.judge.likelihood import (
    MAD_TO_SIGMA,
    Density,
    find_level,
    learn_density,
    measure_gains,
    measure_piece_costs,
    measure_student_gains,
    measure_wander,
)
from assay.bench.judge.series import (
    LEAST_MEMORY,
    MOST_MEMORY,
    SHORTEST_SERIES,
    Signal,
    build_signal,
    find_thinning,
    measure_noise,
    settle_memory,
)
from assay.bench.values.comparison import ChangePoint
from assay.errors import MissingExtraError
from assay.judge.statistics import Array, load_numpy, t_quantile

__all__ = ["DEFAULT", "SHORTEST_SERIES", "Look", "Tuning", "find_change_points"]

SHORTEST_PIECE = 3
YOUNG = 120  # points; a shorter series is a young one
SUPPOSED_MEMORY = 0.4  # in a young one: too few points to show more or less
YOUNG_PRICE = 4.0  # of a cut that is looked at closer
YOUNG_BOUNDS = {6: 7.6, 8: 8.6, 12: 9.8, 16: 10.3, 24: 10.3, 36: 11.0, 60: 12.6, 120: 14.0}  # points: least gain
MANY = 20  # points of a young series: from here on its memory is measured, and outliers come in threes
CHANCE = 0.008  # of an alarm by Student's test, in fewer
RESIDUAL_ERROR = 1.1  # divided by sqrt(n): of a correlation that is measured
USUAL_JUMP = 3.0  # what a jump gains by chance in noise with memory
SHARPNESS = 1.5  # added to it in a piece that is one of many, times the log of how many
TAIL = 0.025  # of the interval that is reported, on either side
QUIETEST = 0.2  # a stretch is not taken to be quieter than this, in units of the whole series' noise
LONGEST_LOOK = 100
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
    """The few numbers of the method. All but the last two were tuned on annotated histories; `unrest` was measured in
    pure noise, `price` is a matter of theory (benchmarks/changepoint.py)."""

    gamma: float = 0.15  # of the kernel, on values scaled by their noise
    penalty: float = 0.45  # of a cut, times ln n
    stretch: int = 400  # points that are cut together
    near: Look = Look(20, 3.0, 1.0)
    far: Look = Look(60, 5.0, 0.5)  # small steps that last
    floor: float = 0.5  # added to a look's own spread, in units of the whole series' noise
    least_memory: float = LEAST_MEMORY
    unrest: float = 5.0  # divided by sqrt(n): a level farther apart than chance would have it wanders
    price: float = 1.5  # of a step, times ln n: half for its level and one for its place, as in Schwarz's criterion


DEFAULT = Tuning()


def find_change_points(values: Sequence[float | None], tuning: Tuning = DEFAULT) -> tuple[ChangePoint, ...]:
    """The change points in order. None, NaN and infinite values are passed over; a series with fewer than
    `SHORTEST_SERIES` others, or a constant one, has no change point."""
    signal = build_signal(values, tuning.least_memory)
    if signal is None:
        return ()
    if len(signal.x) < YOUNG:
        return describe_cuts(signal, find_young_cuts(signal, tuning), tuning)
    candidates = find_candidates(signal, tuning)
    cuts = prune_cuts(signal, candidates, partial(weigh_cut, signal, tuning))
    settled = settle_memory(signal, cuts, tuning.least_memory)
    if settled is not signal:
        candidates = find_candidates(settled, tuning)
        cuts = prune_cuts(settled, candidates, partial(_weigh_both, signal, settled, tuning))
    if not wanders(settled, cuts, tuning):
        density = learn_density(settled.x, cuts)
        cuts = prune_cuts(settled, candidates, partial(weigh_likelihood, settled, density, tuning))
        cuts = place_cuts(settled, cuts, density, tuning)
    cuts = prune_cuts(settled, cuts, partial(weigh_interval, settled, tuning))
    return describe_cuts(settled, cuts, tuning)


def wanders(signal: Signal, cuts: Sequence[int], tuning: Tuning = DEFAULT) -> bool:
    """Whether the level moves about between its steps, more than chance makes it seem to in a few of a thousand."""
    return measure_wander(signal.x, cuts) >= 1 + tuning.unrest / math.sqrt(len(signal.x))


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


def prune_cuts(signal: Signal, cuts: Sequence[int], weigh: Callable[[int, int, int], float]) -> list[int]:
    """Takes the weakest cut back, weighs its neighbours anew, and goes on until each is strong enough.

    `weigh`: how strong a cut is, of its place between those of its neighbours; below 1 it is too weak.
    """
    edges = [0, *cuts, len(signal.x)]
    strengths = [weigh(*edges[place : place + 3]) for place in range(len(cuts))]
    while strengths and min(strengths) < 1:
        weakest = strengths.index(min(strengths))
        del edges[weakest + 1], strengths[weakest]
        for neighbour in (weakest - 1, weakest):
            if 0 <= neighbour < len(strengths):
                strengths[neighbour] = weigh(*edges[neighbour : neighbour + 3])
    return edges[1:-1]


def weigh_cut(signal: Signal, tuning: Tuning, start: int, cut: int, stop: int) -> float:
    """How far the step is above what must be seen; below 1 it is none. Seen from near, or else from far."""
    strength = 0.0
    for look in (tuning.near, tuning.far):
        sides = measure_sides(signal, start, cut, stop, look.points)
        effect, z = measure_step(signal, cut, sides, tuning.floor)
        strength = max(strength, min(z / (look.z * signal.rigor + signal.memory), effect / look.effect))
    return strength


def _weigh_both(signal: Signal, settled: Signal, tuning: Tuning, *around: int) -> float:
    """More memory makes less of the levels and more of the jump; a step shows in either."""
    return max(weigh_cut(signal, tuning, *around), weigh_cut(settled, tuning, *around))


def weigh_likelihood(signal: Signal, density: Density, tuning: Tuning, start: int, cut: int, stop: int) -> float:
    """How far the likelihood of a step is above its price. Points that resemble their neighbours count as fewer."""
    gains, first = _find_gains(signal, start, cut, stop, density, tuning.far.points)
    return float(gains[cut - first]) / (tuning.price * math.log(len(signal.x)) * find_thinning(signal.memory))


def weigh_interval(signal: Signal, tuning: Tuning, start: int, cut: int, stop: int) -> float:
    """Below 1 the interval that would be reported holds 0."""
    sides = settle_sides(signal, measure_sides(signal, start, cut, stop, tuning.far.points), cut)
    return abs(sides.height) / sides.reach if sides.reach else math.inf


def place_cuts(signal: Signal, cuts: Sequence[int], density: Density, tuning: Tuning = DEFAULT) -> list[int]:
    """Every cut where it is likeliest between its neighbours: a kernel sees modes change where there is no step."""
    edges = [0, *cuts, len(signal.x)]
    for place in range(1, len(edges) - 1):
        start, cut, stop = edges[place - 1 : place + 2]
        gains, first = _find_gains(signal, start, cut, stop, density, tuning.far.points)
        edges[place] = first + SHORTEST_PIECE + int(gains[SHORTEST_PIECE:-SHORTEST_PIECE].argmax())
    return edges[1:-1]


def _find_gains(signal: Signal, start: int, cut: int, stop: int, density: Density, points: int) -> tuple[Array, int]:
    """Of each place at most so many points from the cut, and which place the first is."""
    first, last = max(start, cut - points), min(stop, cut + points)
    values = signal.x[first:last]
    before, after = find_level(values[: cut - first]), find_level(values[cut - first :])
    return measure_gains(density, values, before, after), first


# ---------------------------------------------------------------- young histories


def find_young_cuts(signal: Signal, tuning: Tuning = DEFAULT) -> list[int]:
    """Steps that Student's t is sure of. Every way to cut so few points can be tried."""
    cuts = prune_cuts(signal, find_young_candidates(signal.x), partial(weigh_young, signal))
    cuts = prune_cuts(signal, place_young_cuts(signal, cuts), partial(weigh_young, signal))
    return prune_cuts(signal, cuts, partial(weigh_interval, signal, tuning))


def find_young_candidates(x: Array) -> list[int]:
    """The likeliest cuts, where one has to be worth a little; at least the likeliest single one."""
    np = load_numpy()
    n = len(x)
    costs = measure_piece_costs(x, measure_noise(x))
    best, last = np.full(n + 1, np.inf), [0] * (n + 1)
    best[0] = -YOUNG_PRICE
    for end in range(SHORTEST_PIECE, n + 1):
        ways = best[: end - SHORTEST_PIECE + 1] + costs[: end - SHORTEST_PIECE + 1, end]
        if end < n:
            ways[max(1, end - find_shortest_stay(n) + 1) :] = np.inf
        last[end] = int(ways.argmin())
        best[end] = ways[last[end]] + YOUNG_PRICE
    cuts: list[int] = []
    end = n
    while last[end]:
        end = last[end]
        cuts.insert(0, end)
    return cuts or [_find_likeliest(x, SHORTEST_PIECE, SHORTEST_PIECE)]


def find_shortest_stay(n: int) -> int:
    """Points of a level that was left again: of many points, three in a row are outliers by chance."""
    return SHORTEST_PIECE + (n >= MANY)


def _find_likeliest(x: Array, left: int, right: int) -> int:
    """With at least so many points on either side."""
    return left + int(measure_student_gains(x)[left : len(x) - right + 1].argmax())


def place_young_cuts(signal: Signal, cuts: Sequence[int]) -> list[int]:
    """Every cut where it is likeliest between its neighbours."""
    n = len(signal.x)
    edges = [0, *cuts, n]
    for place in range(1, len(edges) - 1):
        start, stop = edges[place - 1], edges[place + 1]
        shortest = [SHORTEST_PIECE if end in (0, n) else find_shortest_stay(n) for end in (start, stop)]
        edges[place] = start + _find_likeliest(signal.x[start:stop], *shortest)
    return edges[1:-1]


def weigh_young(signal: Signal, start: int, cut: int, stop: int) -> float:
    """How far a step is above what chance makes of it at one of all places, were neighbours a little alike; more than a
    little, where the points about their levels are. By the likelihood; of few points Student's test knows as much."""
    x, at = signal.x[start:stop], cut - start
    needed = find_young_bound(len(x)) + SHARPNESS * math.log(len(signal.x) / len(x))
    gain = float(measure_student_gains(x)[at])
    if len(signal.x) < MANY:
        return max(gain / needed, _weigh_few(x[:at], x[at:], len(signal.x)))
    return max(_allow_for_memory(gain, x[:at], x[at:]) / needed, _weigh_exact(x[:at], x[at:], len(signal.x)))


def _allow_for_memory(gain: float, left: Array, right: Array) -> float:
    """Of points that resemble their neighbours levels tell less; that three points are far from the three before them
    tells more, since such noise does not jump."""
    np = load_numpy()
    parts = [part - find_middle(part) for part in (left, right)]
    thinning = find_thinning(measure_residual_memory(parts)) / find_thinning(SUPPOSED_MEMORY)
    spread = MAD_TO_SIGMA * find_middle(np.abs(np.concatenate(parts)))
    if thinning <= 1 or not spread:
        return gain
    jump = (find_middle(right[:SHORTEST_PIECE]) - find_middle(left[-SHORTEST_PIECE:])) / spread
    return min(gain, gain / thinning + max(0.0, 2 * math.log1p(jump * jump / 3) - USUAL_JUMP))


def _weigh_exact(left: Array, right: Array, points: int) -> float:
    """Two levels without any noise: how few of all orders of these values separate them. 0 where there is noise."""
    if left.min() < left.max() or right.min() < right.max():
        return 0.0
    count = len(left) + len(right)
    orders = math.log(math.comb(count, len(left)))
    return orders / (SHARPNESS * math.log(points / count) - math.log(CHANCE / 2))


def _weigh_few(left: Array, right: Array, points: int) -> float:
    """How far Student's t is above what chance makes of it."""
    squares = float(left.var()) * len(left) + float(right.var()) * len(right)
    freedom = len(left) + len(right) - 2
    error = math.sqrt(squares / freedom * (1 / len(left) + 1 / len(right)) * find_thinning(SUPPOSED_MEMORY))
    places = points - 2 * SHORTEST_PIECE + 1
    bound = error * t_quantile(freedom, CHANCE / 2 / places)
    return abs(float(right.mean() - left.mean())) / bound if bound else math.inf


def find_young_bound(points: int) -> float:
    """What the likeliest cut gains in noise of so many points in 2% of series (`report_young_bound` draws it again)."""
    np = load_numpy()
    return float(np.interp(math.log(points), [math.log(n) for n in YOUNG_BOUNDS], list(YOUNG_BOUNDS.values())))


def measure_residual_memory(parts: Sequence[Array]) -> float:
    """Lag-1 correlation of distances from levels, those far out counting less; raised by what fitting took away, and
    by its own error."""
    np = load_numpy()
    bound = 3 * MAD_TO_SIGMA * find_middle(np.abs(np.concatenate(parts)))
    clipped = [np.clip(part, -bound, bound) for part in parts]
    squares = sum(float((part**2).sum()) for part in clipped)
    if not squares:
        return 0.0
    count = sum(map(len, parts))
    found = sum(float((part[1:] * part[:-1]).sum()) for part in clipped) / squares
    return min(max(found + LEVEL_BIAS / count + RESIDUAL_ERROR / math.sqrt(count), 0.0), MOST_MEMORY)


# ---------------------------------------------------------------- the levels on both sides


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
    def reach(self) -> float:
        """How far the interval of the height goes to either side."""
        return t_quantile(self.known, TAIL) * self.error if self.error else 0.0

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
    reach = max(points, int(min(points * find_thinning(signal.memory), LONGEST_LOOK)))
    left, right = signal.x[max(start, cut - reach) : cut], signal.x[cut : min(stop, cut + reach)]
    before, after = find_level(left), find_level(right)
    spread = MAD_TO_SIGMA * find_middle(np.abs(np.concatenate((left - before, right - after))))
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


def find_middle(values: Array) -> float:
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
    low, high = (signal.relate(sides.height + way * sides.reach, sides.before) for way in (-1, 1))
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
