"""What a history shows beside steps: a level that creeps, and how small a change could have been and be seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from assay.bench.judge.changepoint import (
    DEFAULT,
    MANY,
    SUPPOSED_MEMORY,
    TAIL,
    find_middle,
    find_young_bound,
    measure_residual_memory,
)
from assay.bench.judge.likelihood import MAD_TO_SIGMA, find_grid_noise, find_level, measure_student_loss, split_pieces
from assay.bench.judge.series import SHORTEST_SERIES, Signal, build_signal, find_thinning
from assay.bench.values.comparison import ChangePoint, Trend
from assay.judge.statistics import Array, load_numpy, normal_quantile

SHORTEST_TREND = 8  # points
MOST_BLOCKS = 60  # of a long series
MOST_MEMORY = 0.9  # about a line: a creep that is not quite even looks like memory
# points: the step, in units of the noise, that nine of ten series show when it is there for their last third
VISIBLE = {6: 7.5, 8: 6.0, 12: 4.7, 16: 4.2, 24: 4.0, 36: 2.8, 50: 2.3, 80: 1.8, 120: 1.6}
FAR_OUT = 4.0  # spreads from the level: an outlier
MOST_OUTLIERS = 0.1  # of all points; where more are not on a level that most of them are on, it is not exact
OUTLIERS_COST = 300.0  # times their number, divided by the square of that of all points: how much higher it must be


# ---------------------------------------------------------------- a level that creeps


def find_trend(values: Sequence[float | None], changes: Sequence[ChangePoint] = ()) -> Trend | None:
    """The line that explains the series better than one level does, and better than its steps do; else None.

    A long series is looked at in blocks of neighbours, each counting as its median.
    """
    np = load_numpy()
    signal = build_signal(values)
    if signal is None or len(signal.x) < SHORTEST_TREND:
        return None
    size = -(-len(signal.x) // MOST_BLOCKS)
    starts = range(0, len(signal.x) - size + 1, size)
    x = np.array([find_middle(signal.x[start : start + size]) for start in starts])
    times = np.arange(len(x)) - (len(x) - 1) / 2
    slope, error = fit_slope(x, times)
    about = x - slope * times
    gain = measure_student_loss(x) - measure_student_loss(about)
    memory = measure_residual_memory([about - find_middle(about)]) if len(x) >= MANY else 0.0
    thinning = max(1.0, find_thinning(min(memory, MOST_MEMORY)) / find_thinning(SUPPOSED_MEMORY))
    if gain < find_young_bound(len(x)) * thinning or gain < _explain_by_steps(x, signal, changes, size):
        return None
    length = len(x) - 1 / size  # from the first value to the last, in blocks
    return _describe_trend(signal, find_level(about), slope * length, error * length)


def fit_slope(x: Array, times: Array) -> tuple[float, float]:
    """The median of the slopes between all pairs (Theil and Sen), and its standard error."""
    np = load_numpy()
    first, second = np.triu_indices(len(x), 1)
    slope = find_middle((x[second] - x[first]) / (times[second] - times[first]))
    about = x - slope * times
    spread = MAD_TO_SIGMA * find_middle(np.abs(about - find_middle(about)))
    return slope, spread * math.sqrt(find_thinning(SUPPOSED_MEMORY) / float((times**2).sum()))


def _explain_by_steps(x: Array, signal: Signal, changes: Sequence[ChangePoint], size: int) -> float:
    """What the steps gain over one level, less the price of a step more than one: a stair with many is a line."""
    np = load_numpy()
    places = [int(np.searchsorted(signal.places, change.index)) // size for change in changes]
    cuts = sorted({place for place in places if 0 < place < len(x)})
    if not cuts:
        return -math.inf
    about = np.concatenate([piece - find_middle(piece) for piece in split_pieces(x, cuts)])
    price = DEFAULT.price * math.log(len(x)) * (len(cuts) - 1)
    return measure_student_loss(x) - measure_student_loss(about) - price


def _describe_trend(signal: Signal, middle: float, rise: float, error: float) -> Trend:
    before = middle - rise / 2
    reach = normal_quantile(TAIL) * error
    low, high = (signal.relate(rise + way * reach, before) for way in (-1, 1))
    return Trend(
        size=signal.relate(rise, before),
        interval=(low, high),
        before=signal.restore(before),
        after=signal.restore(middle + rise / 2),
    )


# ---------------------------------------------------------------- what could have been seen


@dataclass(frozen=True, slots=True)
class Visibility:
    """Of a history: what is measured about its levels."""

    signal: Signal
    noise: float  # in units of the signal
    outliers: int
    level: float  # of the newest points

    def find_smallest(self, points: int) -> float:
        """The smallest step, as a proportion of the level, that so many points would show."""
        np = load_numpy()
        height = float(np.interp(math.log(points), [math.log(n) for n in VISIBLE], list(VISIBLE.values())))
        share = self.outliers / len(self.signal.x)
        up = height * self.noise * (1 + OUTLIERS_COST * share / points)
        return abs(self.signal.relate(up, self.level))


def measure_visibility(values: Sequence[float | None], known: Sequence[ChangePoint] | Trend = ()) -> Visibility | None:
    """Of the points about their levels, or about the line that they creep on. None: too few values to find any change,
    or all are the same and any would be seen."""
    np = load_numpy()
    signal = build_signal(values)
    if signal is None:
        return None
    pieces = _split_known(signal, known)
    about = np.abs(np.concatenate([piece - find_level(piece) for piece in pieces]))
    noise = MAD_TO_SIGMA * find_middle(about) * math.sqrt(len(about) / max(len(about) - len(pieces), 1))
    if (about > 0).mean() > MOST_OUTLIERS:
        noise = max(noise, find_grid_noise(about))  # what a step of counts is compared with
    return Visibility(signal, noise, int((about > FAR_OUT * noise).sum()) if noise else 0, find_level(pieces[-1]))


def _split_known(signal: Signal, known: Sequence[ChangePoint] | Trend) -> list[Array]:
    np = load_numpy()
    if not isinstance(known, Trend):
        return split_pieces(signal.x, [int(np.searchsorted(signal.places, change.index)) for change in known])
    times = np.arange(len(signal.x)) - (len(signal.x) - 1)
    return [signal.x - fit_slope(signal.x, times)[0] * times]  # at the newest value it is as it was


def find_detectable(values: Sequence[float | None], known: Sequence[ChangePoint] | Trend = ()) -> float | None:
    """The smallest change, as a proportion, that would have been found in nine of ten such histories, had it been there
    for their last third. None: there are too few values to find any."""
    found = measure_visibility(values, known)
    if found is not None:
        return found.find_smallest(len(found.signal.x))
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return 0.0 if len(finite) >= SHORTEST_SERIES else None


def count_needed(
    values: Sequence[float | None], effect: float, known: Sequence[ChangePoint] | Trend = ()
) -> int | None:
    """How many points a history with this noise has that shows a change of `effect`; None: no number of them does."""
    found = measure_visibility(values, known)
    if found is None:
        return SHORTEST_SERIES
    points = len(found.signal.x)
    counts = range(points, max(*VISIBLE, points) + 1)
    return next((count for count in counts if found.find_smallest(count) <= effect), None)
