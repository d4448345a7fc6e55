"""Trends of a history, and the smallest change that it could have shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from assay.bench.judge.changepoint import (
    ASSUMED_AUTOCORRELATION,
    DEFAULT,
    MANY,
    TAIL_PROBABILITY,
    find_middle,
    find_young_bound,
    measure_residual_autocorrelation,
)
from assay.bench.judge.likelihood import MAD_TO_SIGMA, find_grid_noise, find_level, measure_student_loss, split_pieces
from assay.bench.judge.series import SHORTEST_SERIES, Signal, build_signal, find_variance_inflation
from assay.bench.values.comparison import ChangePoint, Trend
from assay.judge.statistics import Array, load_numpy, normal_quantile

SHORTEST_TREND = 8  # points
MOST_BLOCKS = 60  # of a long series
MOST_AUTOCORRELATION = 0.9  # about a line: an uneven trend looks like autocorrelation
# points: the step, in units of sigma, that is found in 90% of series when it is present in their last third
VISIBLE = {6: 7.5, 8: 6.0, 12: 4.7, 16: 4.2, 24: 4.0, 36: 2.8, 50: 2.3, 80: 1.8, 120: 1.6}
FAR_OUT = 4.0  # sigma from the level: an outlier
MOST_OUTLIERS = (
    0.1  # fraction of all points; with more of them off a level that most points are on, the level is not exact
)
OUTLIERS_COST = 300.0  # times outliers / points²: how much higher the step must be


# ---------------------------------------------------------------- trends


def find_trend(values: Sequence[float | None], changes: Sequence[ChangePoint] = ()) -> Trend | None:
    """The line that fits the series better than one level does, and better than its steps do; else None.

    A long series is reduced to the medians of blocks of neighbours.
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
    autocorrelation = measure_residual_autocorrelation([about - find_middle(about)]) if len(x) >= MANY else 0.0
    inflation = max(
        1.0,
        find_variance_inflation(min(autocorrelation, MOST_AUTOCORRELATION))
        / find_variance_inflation(ASSUMED_AUTOCORRELATION),
    )
    if gain < find_young_bound(len(x)) * inflation or gain < _explain_by_steps(x, signal, changes, size):
        return None
    length = len(x) - 1 / size  # from the first value to the last, in blocks
    return _describe_trend(signal, find_level(about), slope * length, error * length)


def fit_slope(x: Array, times: Array) -> tuple[float, float]:
    """The Theil-Sen slope (median of the slopes between all pairs), and its standard error."""
    np = load_numpy()
    first, second = np.triu_indices(len(x), 1)
    slope = find_middle((x[second] - x[first]) / (times[second] - times[first]))
    about = x - slope * times
    spread = MAD_TO_SIGMA * find_middle(np.abs(about - find_middle(about)))
    return slope, spread * math.sqrt(find_variance_inflation(ASSUMED_AUTOCORRELATION) / float((times**2).sum()))


def _explain_by_steps(x: Array, signal: Signal, changes: Sequence[ChangePoint], size: int) -> float:
    """What the steps gain over one level, less the penalty of each step after the first."""
    np = load_numpy()
    indices = [int(np.searchsorted(signal.indices, change.index)) // size for change in changes]
    cuts = sorted({index for index in indices if 0 < index < len(x)})
    if not cuts:
        return -math.inf
    about = np.concatenate([piece - find_middle(piece) for piece in split_pieces(x, cuts)])
    step_penalty = DEFAULT.step_penalty * math.log(len(x)) * (len(cuts) - 1)
    return measure_student_loss(x) - measure_student_loss(about) - step_penalty


def _describe_trend(signal: Signal, middle: float, rise: float, error: float) -> Trend:
    before = middle - rise / 2
    reach = normal_quantile(TAIL_PROBABILITY) * error
    low, high = (signal.relate(rise + way * reach, before) for way in (-1, 1))
    return Trend(
        size=signal.relate(rise, before),
        interval=(low, high),
        before=signal.restore(before),
        after=signal.restore(middle + rise / 2),
    )


# ---------------------------------------------------------------- the smallest detectable change


@dataclass(frozen=True, slots=True)
class Visibility:
    """Noise and outliers of a history about its levels."""

    signal: Signal
    noise: float  # sigma, in units of the signal
    outliers: int
    level: float  # of the newest points

    def find_smallest(self, points: int) -> float:
        """The smallest step, relative to the level, that so many points would show."""
        np = load_numpy()
        height = float(np.interp(math.log(points), [math.log(n) for n in VISIBLE], list(VISIBLE.values())))
        fraction = self.outliers / len(self.signal.x)
        up = height * self.noise * (1 + OUTLIERS_COST * fraction / points)
        return abs(self.signal.relate(up, self.level))


def measure_visibility(values: Sequence[float | None], known: Sequence[ChangePoint] | Trend = ()) -> Visibility | None:
    """Of the residuals about the levels, or about the line of a trend. None: too few values to find any change, or all
    are equal and any change would be found."""
    np = load_numpy()
    signal = build_signal(values)
    if signal is None:
        return None
    pieces = _split_known(signal, known)
    about = np.abs(np.concatenate([piece - find_level(piece) for piece in pieces]))
    noise = MAD_TO_SIGMA * find_middle(about) * math.sqrt(len(about) / max(len(about) - len(pieces), 1))
    if (about > 0).mean() > MOST_OUTLIERS:
        noise = max(noise, find_grid_noise(about))  # counts lie on a grid
    return Visibility(signal, noise, int((about > FAR_OUT * noise).sum()) if noise else 0, find_level(pieces[-1]))


def _split_known(signal: Signal, known: Sequence[ChangePoint] | Trend) -> list[Array]:
    np = load_numpy()
    if not isinstance(known, Trend):
        return split_pieces(signal.x, [int(np.searchsorted(signal.indices, change.index)) for change in known])
    times = np.arange(len(signal.x)) - (len(signal.x) - 1)
    return [signal.x - fit_slope(signal.x, times)[0] * times]  # unchanged at the newest value


def find_detectable(values: Sequence[float | None], known: Sequence[ChangePoint] | Trend = ()) -> float | None:
    """The smallest relative change that would be found in 90% of such histories if it were present in their last third.
    None: there are too few values to find any."""
    found = measure_visibility(values, known)
    if found is not None:
        return found.find_smallest(len(found.signal.x))
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return 0.0 if len(finite) >= SHORTEST_SERIES else None


def count_needed(
    values: Sequence[float | None], effect: float, known: Sequence[ChangePoint] | Trend = ()
) -> int | None:
    """How many points a history with this noise needs to show a change of `effect`; None: no number suffices."""
    found = measure_visibility(values, known)
    if found is None:
        return SHORTEST_SERIES
    points = len(found.signal.x)
    counts = range(points, max(*VISIBLE, points) + 1)
    return next((count for count in counts if found.find_smallest(count) <= effect), None)
