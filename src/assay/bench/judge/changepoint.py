"""Finds where the level of a history changed and stayed changed.

In the first stage of the search an RBF kernel over-segments the series, in overlapping stretches that are each scaled
by their own noise: a bounded kernel is robust against rare outliers and several modes, and a quiet month is not scaled
by a noisy one. In the second stage the weakest cuts are removed one by one until every cut is a clear step: at least
about as high as the sigma of the points around it, and significant. The threshold for a step grows with the length of
the series: in a longer series chance more often produces a step somewhere. With autocorrelation the effective sample
size is smaller, but the jump between neighbouring points is evidence too.

In a young series neither autocorrelation nor sigma can be estimated well, and a tenth of the points may be outliers. A
young series is searched by trying every segmentation with the likelihood of Student's t; a step must gain more than
chance does in 2% of series of equal length in noise with some autocorrelation (`find_young_cuts`).

Where the level does not drift between steps, the noise has one density everywhere, which can be estimated (`noise.py`).
By that density a step must make the points around it much more likely, and is moved to its most likely index. On most
real machines the level does drift.

`docs/explanation/change-points.md` gives the reasons and the measured error rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from assay.bench.judge.noise import (
    LEAST_AUTOCORRELATION,
    MAD_TO_SIGMA,
    MOST_AUTOCORRELATION,
    Signal,
    build_signal,
    find_level,
    find_variance_inflation,
    learn_density,
    measure_autocorrelation_again,
    measure_gains,
    measure_level_drift,
    measure_noise,
    measure_piece_costs,
    measure_student_gains,
)
from assay.bench.values.comparison import LevelStep
from assay.errors import MissingExtraError
from assay.judge.statistics import Array, np, t_quantile
from assay.system.fast_dataclasses import dataclass, replace

SHORTEST_PIECE = 3
YOUNG = 120  # points; a shorter series is young
ASSUMED_AUTOCORRELATION = 0.4  # assumed in a young series, which has too few points for an estimate
YOUNG_PENALTY = 4.0  # penalty of a candidate cut
YOUNG_BOUNDS = {6: 7.6, 8: 8.6, 12: 9.8, 16: 10.3, 24: 10.3, 36: 11.0, 60: 12.6, 120: 14.0}  # points → least gain
MANY = 20  # from 20 points on autocorrelation is estimated, and three outliers in a row occur by chance
FALSE_ALARM_RATE = 0.008  # the rate for Student's test, which is used with fewer than MANY points
RESIDUAL_ERROR = 1.1  # divided by sqrt(n): standard error of an estimated autocorrelation
USUAL_JUMP = 3.0  # gain of a jump that occurs by chance in autocorrelated noise
SHARPNESS = 1.5  # times the log of the number of pieces: raises the bound in each piece
TAIL_PROBABILITY = 0.025  # probability outside the reported interval, on either side
QUIETEST = 0.2  # least sigma of a stretch, in units of the whole series' sigma
LONGEST_WINDOW = 100
LEVEL_VARIANCE_RATIO = 1.19  # the variance of an interquartile mean over that of a mean, in normal noise
MAD_EFFICIENCY = 0.4  # degrees of freedom of a MAD relative to those of a standard deviation
SIGNIFICANT_CORRELATION = 1.0  # times 1 / sqrt(n): a smaller residual autocorrelation counts as 0
LEVEL_BIAS = 4.0  # divided by n: bias of an estimated autocorrelation, since the levels were fitted


@dataclass(frozen=True, slots=True)
class Window:
    """How many points on both sides of a cut are used, and the thresholds of a step."""

    points: int
    z: float
    effect: float  # least height of a step, in units of sigma


@dataclass(frozen=True, slots=True)
class Tuning:
    """The parameters of the search. All but the last two were tuned on annotated histories; `drift_threshold` was
    measured in pure noise, `step_penalty` follows from theory (benchmarks/changepoint.py)."""

    gamma: float = 0.15  # the kernel's gamma, for values scaled by sigma
    penalty: float = 0.45  # penalty of a cut, times ln n
    stretch: int = 400  # points that are cut together
    near: Window = Window(20, 3.0, 1.0)
    far: Window = Window(60, 5.0, 0.5)  # finds small steps that persist
    floor: float = 0.5  # added to a window's own sigma, in units of the whole series' sigma
    least_autocorrelation: float = LEAST_AUTOCORRELATION
    drift_threshold: float = 5.0  # divided by sqrt(n): how far the drift ratio may exceed 1
    step_penalty: float = 1.5  # times ln n: 0.5 for a step's level and 1 for its index, as in Schwarz's criterion


DEFAULT = Tuning()


def find_change_points(values: Sequence[float | None], tuning: Tuning = DEFAULT) -> tuple[LevelStep, ...]:
    """Return the change points in order. None, NaN and infinite values are ignored; a series with fewer than
    `SHORTEST_SERIES` finite values, or a constant one, has no change point."""
    signal = build_signal(values, tuning.least_autocorrelation)
    if signal is None:
        return ()
    if len(signal.x) < YOUNG:
        return describe_cuts(signal, find_young_cuts(signal, tuning), tuning)
    candidates = find_candidates(signal, tuning)
    cuts = prune_cuts(signal, candidates, partial(weigh_cut, signal, tuning))
    settled = measure_autocorrelation_again(signal, cuts, tuning.least_autocorrelation)
    if settled is not signal:
        candidates = find_candidates(settled, tuning)
        # a larger autocorrelation gives less weight to levels and more to the jump; either may show a step
        both = (partial(weigh_cut, signal, tuning), partial(weigh_cut, settled, tuning))
        cuts = prune_cuts(settled, candidates, lambda *around: max(weigh(*around) for weigh in both))
    if not level_drifts(settled, cuts, tuning):
        density = learn_density(settled.x, cuts)
        cuts = prune_cuts(settled, candidates, partial(weigh_likelihood, settled, density, tuning))
        cuts = move_cuts(settled, cuts, density, tuning)
    cuts = prune_cuts(settled, cuts, partial(weigh_interval, settled, tuning))
    return describe_cuts(settled, cuts, tuning)


def level_drifts(signal: Signal, cuts: Sequence[int], tuning: Tuning = DEFAULT) -> bool:
    """Return whether the level drifts between steps; a few in a thousand series of pure noise seem to drift."""
    return measure_level_drift(signal.x, cuts) >= 1 + tuning.drift_threshold / math.sqrt(len(signal.x))


# ---------------------------------------------------------------- over-segmentation


def find_candidates(signal: Signal, tuning: Tuning) -> list[int]:
    """Return the cuts of all stretches; where two stretches overlap, the cuts of the stretch whose middle is nearer."""
    n, length = len(signal.x), tuning.stretch
    penalty = tuning.penalty * math.log(n)
    if n <= length:
        return _separate(_cut(signal.x, tuning.gamma, penalty), n)
    found: set[int] = set()
    for start in range(0, n - length + length // 2, length // 2):
        begin = min(start, n - length)
        piece = signal.x[begin : begin + length]
        noise = max(measure_noise(piece) / math.sqrt(1 - signal.autocorrelation), QUIETEST)
        low = 0 if begin == 0 else length // 4
        high = length if begin + length == n else length - length // 4
        found.update(begin + cut for cut in _cut(piece / noise, tuning.gamma, penalty) if low <= cut < high)
    return _separate(sorted(found), n)


def _cut(x: Array, gamma: float, penalty: float) -> list[int]:
    try:
        import ruptures
    except ImportError:
        raise MissingExtraError("finding change points", "stats") from None
    kernel = ruptures.KernelCPD(kernel="rbf", params={"gamma": gamma}, min_size=SHORTEST_PIECE)
    ends: list[int] = kernel.fit(x.reshape(-1, 1)).predict(pen=penalty)
    return [int(end) for end in ends[:-1]]


def _separate(cuts: Iterable[int], n: int) -> list[int]:
    """Drop cuts that leave a piece shorter than SHORTEST_PIECE."""
    kept: list[int] = [0]
    for cut in cuts:
        if cut - kept[-1] >= SHORTEST_PIECE and n - cut >= SHORTEST_PIECE:
            kept.append(cut)
    return kept[1:]


# ---------------------------------------------------------------- pruning


def prune_cuts(signal: Signal, cuts: Sequence[int], weigh: Callable[[int, int, int], float]) -> list[int]:
    """Remove the weakest cut, compute the strengths of its neighbours again, and repeat until each is strong enough.

    `weigh(previous, cut, next)` returns the strength of a cut between its neighbours; below 1 the cut is too weak.
    """
    edges = [0, *cuts, len(signal.x)]
    strengths = [weigh(*edges[index : index + 3]) for index in range(len(cuts))]
    while strengths and min(strengths) < 1:
        weakest = strengths.index(min(strengths))
        del edges[weakest + 1], strengths[weakest]
        for neighbour in (weakest - 1, weakest):
            if 0 <= neighbour < len(strengths):
                strengths[neighbour] = weigh(*edges[neighbour : neighbour + 3])
    return edges[1:-1]


def weigh_cut(signal: Signal, tuning: Tuning, start: int, cut: int, stop: int) -> float:
    """Return the ratio of the step to the thresholds of the near or the far window, whichever is larger."""
    strength = 0.0
    for window in (tuning.near, tuning.far):
        sides = measure_sides(signal, start, cut, stop, window.points)
        effect, z = measure_step(signal, cut, sides, tuning.floor)
        strength = max(strength, min(z / (window.z * signal.rigor + signal.autocorrelation), effect / window.effect))
    return strength


def weigh_likelihood(signal: Signal, density: Array, tuning: Tuning, start: int, cut: int, stop: int) -> float:
    """Return the ratio of a step's log-likelihood gain to its penalty, which grows with the variance inflation."""
    gains, first = _find_gains(signal, start, cut, stop, density, tuning.far.points)
    penalty = tuning.step_penalty * math.log(len(signal.x)) * find_variance_inflation(signal.autocorrelation)
    return float(gains[cut - first]) / penalty


def weigh_interval(signal: Signal, tuning: Tuning, start: int, cut: int, stop: int) -> float:
    """Return the strength of a step by its reported interval: below 1 the interval would contain 0."""
    sides = settle_sides(signal, measure_sides(signal, start, cut, stop, tuning.far.points), cut)
    return abs(sides.height) / sides.reach if sides.reach else math.inf


def move_cuts(signal: Signal, cuts: Sequence[int], density: Array, tuning: Tuning = DEFAULT) -> list[int]:
    """Move every cut to its most likely index: the kernel may have cut at a change of modes that is not a step."""
    edges = [0, *cuts, len(signal.x)]
    for index in range(1, len(edges) - 1):
        start, cut, stop = edges[index - 1 : index + 2]
        gains, first = _find_gains(signal, start, cut, stop, density, tuning.far.points)
        edges[index] = first + SHORTEST_PIECE + int(gains[SHORTEST_PIECE:-SHORTEST_PIECE].argmax())
    return edges[1:-1]


def _find_gains(signal: Signal, start: int, cut: int, stop: int, density: Array, points: int) -> tuple[Array, int]:
    """Return the gains at each index at most `points` from the cut, and the first of these indices."""
    first, last = max(start, cut - points), min(stop, cut + points)
    values = signal.x[first:last]
    before, after = find_level(values[: cut - first]), find_level(values[cut - first :])
    return measure_gains(density, values, before, after), first


# ---------------------------------------------------------------- young histories


def find_young_cuts(signal: Signal, tuning: Tuning) -> list[int]:
    """Find steps that are significant by Student's t. A young series is so short that every segmentation is tried."""
    cuts = prune_cuts(signal, find_young_candidates(signal.x), partial(weigh_young, signal))
    cuts = prune_cuts(signal, move_young_cuts(signal, cuts), partial(weigh_young, signal))
    return prune_cuts(signal, cuts, partial(weigh_interval, signal, tuning))


def find_young_candidates(x: Array) -> list[int]:
    """Return the most likely segmentation with a small penalty per cut, or at least the single most likely cut."""
    n = len(x)
    costs = measure_piece_costs(x, measure_noise(x))
    best, last = np.full(n + 1, np.inf), [0] * (n + 1)
    best[0] = -YOUNG_PENALTY
    for end in range(SHORTEST_PIECE, n + 1):
        ways = best[: end - SHORTEST_PIECE + 1] + costs[: end - SHORTEST_PIECE + 1, end]
        if end < n:
            ways[max(1, end - find_shortest_stay(n) + 1) :] = np.inf
        last[end] = int(ways.argmin())
        best[end] = ways[last[end]] + YOUNG_PENALTY
    cuts: list[int] = []
    end = n
    while last[end]:
        end = last[end]
        cuts.insert(0, end)
    return cuts or [_find_likeliest(x, SHORTEST_PIECE, SHORTEST_PIECE)]


def find_shortest_stay(n: int) -> int:
    """Return the fewest points between two cuts: in a long series three outliers in a row occur by chance."""
    return SHORTEST_PIECE + (n >= MANY)


def _find_likeliest(x: Array, left: int, right: int) -> int:
    """Return the most likely cut with at least `left` and `right` points on its sides."""
    return left + int(measure_student_gains(x)[left : len(x) - right + 1].argmax())


def move_young_cuts(signal: Signal, cuts: Sequence[int]) -> list[int]:
    """Move every cut to its most likely index between its neighbours."""
    n = len(signal.x)
    edges = [0, *cuts, n]
    for index in range(1, len(edges) - 1):
        start, stop = edges[index - 1], edges[index + 1]
        shortest = [SHORTEST_PIECE if end in (0, n) else find_shortest_stay(n) for end in (start, stop)]
        edges[index] = start + _find_likeliest(signal.x[start:stop], *shortest)
    return edges[1:-1]


def weigh_young(signal: Signal, start: int, cut: int, stop: int) -> float:
    """Return the ratio of a step's gain to the largest gain that noise with the assumed autocorrelation reaches at any
    index by chance; a larger residual autocorrelation lowers the gain. With few points Student's test is used too."""
    x, at = signal.x[start:stop], cut - start
    needed = find_young_bound(len(x)) + SHARPNESS * math.log(len(signal.x) / len(x))
    gain = float(measure_student_gains(x)[at])
    if len(signal.x) < MANY:
        return max(gain / needed, _weigh_few(x[:at], x[at:], len(signal.x)))
    return max(_allow_for_autocorrelation(gain, x[:at], x[at:]) / needed, _weigh_exact(x[:at], x[at:], len(signal.x)))


def _allow_for_autocorrelation(gain: float, left: Array, right: Array) -> float:
    """Adjust a gain. With more autocorrelation than assumed the levels are weaker evidence, but a jump between three
    points and the three before them is stronger evidence, since autocorrelated noise does not jump."""
    parts = [part - find_middle(part) for part in (left, right)]
    inflation = find_excess_inflation(measure_residual_autocorrelation(parts))
    sigma = MAD_TO_SIGMA * find_middle(np.abs(np.concatenate(parts)))
    if inflation <= 1 or not sigma:
        return gain
    jump = (find_middle(right[:SHORTEST_PIECE]) - find_middle(left[-SHORTEST_PIECE:])) / sigma
    return min(gain, gain / inflation + max(0.0, 2 * math.log1p(jump * jump / 3) - USUAL_JUMP))


def _weigh_exact(left: Array, right: Array, points: int) -> float:
    """Test two levels without any noise by permutations of their values. Return 0 if there is noise."""
    if left.min() < left.max() or right.min() < right.max():
        return 0.0
    count = len(left) + len(right)
    orders = math.log(math.comb(count, len(left)))
    return orders / (SHARPNESS * math.log(points / count) - math.log(FALSE_ALARM_RATE / 2))


def _weigh_few(left: Array, right: Array, points: int) -> float:
    """Return the ratio of Student's t to its critical value, corrected for the number of possible cuts."""
    squares = float(left.var()) * len(left) + float(right.var()) * len(right)
    degrees_of_freedom = len(left) + len(right) - 2
    variance = squares / degrees_of_freedom * (1 / len(left) + 1 / len(right))
    error = math.sqrt(variance * find_variance_inflation(ASSUMED_AUTOCORRELATION))
    indices = points - 2 * SHORTEST_PIECE + 1
    bound = error * t_quantile(degrees_of_freedom, FALSE_ALARM_RATE / 2 / indices)
    return abs(float(right.mean() - left.mean())) / bound if bound else math.inf


def find_young_bound(points: int) -> float:
    """Return the 98% quantile of the largest gain in `points` points of noise, simulated by `report_young_bounds`."""
    return float(np.interp(math.log(points), [math.log(n) for n in YOUNG_BOUNDS], list(YOUNG_BOUNDS.values())))


def find_excess_inflation(autocorrelation: float) -> float:
    """Return the variance inflation, relative to the inflation that is assumed in a young series."""
    return find_variance_inflation(autocorrelation) / find_variance_inflation(ASSUMED_AUTOCORRELATION)


def measure_residual_autocorrelation(parts: Sequence[Array]) -> float:
    """Return an upper estimate of the residuals' lag-1 autocorrelation, without the bias that fitted levels give it."""
    found = _correlate(parts, 3 * MAD_TO_SIGMA * find_middle(np.abs(np.concatenate(parts))))
    if found is None:
        return 0.0
    count = sum(map(len, parts))
    return min(max(found + LEVEL_BIAS / count + RESIDUAL_ERROR / math.sqrt(count), 0.0), MOST_AUTOCORRELATION)


def _correlate(parts: Sequence[Array], bound: float) -> float | None:
    """Return the lag-1 autocorrelation of residuals that are clipped at `bound`; None if all are 0."""
    clipped = [np.clip(part, -bound, bound) for part in parts]
    squares = sum(float((part**2).sum()) for part in clipped)
    return sum(float((part[1:] * part[:-1]).sum()) for part in clipped) / squares if squares else None


# ---------------------------------------------------------------- the levels on both sides


@dataclass(frozen=True, slots=True)
class Sides:
    """The levels on both sides of a cut, in units of the series' sigma."""

    before: float
    after: float
    sigma: float  # sigma of the residuals
    left: int  # number of points used on the left
    right: int
    effective_sample_size: float  # size for the difference: 1 / (1 / left + 1 / right) for independent points
    autocorrelation: float

    @property
    def height(self) -> float:
        return self.after - self.before

    @property
    def error(self) -> float:
        """Standard error of the height."""
        return self.sigma * math.sqrt((1 - self.autocorrelation**2) * LEVEL_VARIANCE_RATIO / self.effective_sample_size)

    @property
    def reach(self) -> float:
        """Half the width of the interval of the height."""
        return t_quantile(self.known, TAIL_PROBABILITY) * self.error if self.error else 0.0

    @property
    def degrees_of_freedom(self) -> int:
        return self.left + self.right - 2

    @property
    def known(self) -> int:
        """Degrees of freedom of sigma, which is estimated from a median absolute deviation."""
        return max(1, round(MAD_EFFICIENCY * self.degrees_of_freedom))


def measure_sides(signal: Signal, start: int, cut: int, stop: int, points: int) -> Sides:
    """Measure both levels between two cuts, from as many points as are worth `points` independent ones on each side."""
    reach = max(points, int(min(points * find_variance_inflation(signal.autocorrelation), LONGEST_WINDOW)))
    left, right = signal.x[max(start, cut - reach) : cut], signal.x[cut : min(stop, cut + reach)]
    before, after = find_level(left), find_level(right)
    sigma = MAD_TO_SIGMA * find_middle(np.abs(np.concatenate((left - before, right - after))))
    effective_sample_size = len(left) * len(right) / (len(left) + len(right)) * (1 - signal.autocorrelation) ** 2
    return Sides(before, after, sigma, len(left), len(right), effective_sample_size, signal.autocorrelation)


def measure_step(signal: Signal, cut: int, sides: Sides, floor: float) -> tuple[float, float]:
    """Return the height of the step in units of sigma, and its z. Both are 0 if levels and jump contradict each other.

    With autocorrelation r each point has (1 - r)² of the weight of an independent point, and the first point after the
    step has the rest of that weight as well, since the noise could not have moved so far at once.
    """
    r = signal.autocorrelation
    jump = float(signal.x[cut]) - r * float(signal.x[cut - 1]) - (1 - r) * sides.before
    jump_weight = 1 - (1 - r) ** 2
    effective_sample_size = sides.effective_sample_size + jump_weight
    height = (sides.height * sides.effective_sample_size + jump * jump_weight) / effective_sample_size
    if height * sides.height <= 0:
        return 0.0, 0.0
    effect = abs(height) / (sides.sigma + floor)
    return effect, effect * math.sqrt(effective_sample_size / (1 - r * r))


def find_middle(values: Array) -> float:
    """Return the median, without numpy's checks, which cost more than sorting so few values."""
    ordered = np.sort(values)
    half = len(ordered) // 2
    return float(ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2)


# ---------------------------------------------------------------- steps in the units of the metric


def describe_cuts(signal: Signal, cuts: Sequence[int], tuning: Tuning) -> tuple[LevelStep, ...]:
    edges, steps = [0, *cuts, len(signal.x)], []
    for start, cut, stop in zip(edges, edges[1:], edges[2:], strict=False):
        sides = settle_sides(signal, measure_sides(signal, start, cut, stop, tuning.far.points), cut)
        steps.append(signal.build_step(cut, sides.before, sides.after, sides.reach))
    return tuple(steps)


def settle_sides(signal: Signal, sides: Sides, cut: int) -> Sides:
    """Return the sides with the autocorrelation of the residuals about the two levels.

    The search uses an upper estimate of the autocorrelation, since too low a value raises false alarms. In a short
    series an upper estimate is mostly its own error, and would make the interval several times too wide.
    """
    left = signal.x[cut - sides.left : cut] - sides.before
    right = signal.x[cut : cut + sides.right] - sides.after
    count, found = sides.left + sides.right, _correlate((left, right), 3 * sides.sigma) or 0.0
    autocorrelation = 0.0
    if found > SIGNIFICANT_CORRELATION / math.sqrt(count) and signal.autocorrelation:
        autocorrelation = min(found + LEVEL_BIAS / count, MOST_AUTOCORRELATION)
    effective_sample_size = sides.left * sides.right / count * (1 - autocorrelation) ** 2
    sigma = sides.sigma * math.sqrt(count / sides.degrees_of_freedom)  # the two levels were fitted to the same points
    return replace(sides, sigma=sigma, effective_sample_size=effective_sample_size, autocorrelation=autocorrelation)
