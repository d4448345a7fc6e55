"""The verdict on a history: is the current level worse, since when, and has the change been triaged?

Also trends of a series, the smallest change that it could have shown, and moves from one environment to another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from assay.bench.judge.changepoint import (
    ASSUMED_AUTOCORRELATION,
    DEFAULT,
    MANY,
    TAIL_PROBABILITY,
    find_middle,
    find_young_bound,
    measure_residual_autocorrelation,
)
from assay.bench.judge.noise import (
    MAD_TO_SIGMA,
    SHORTEST_SERIES,
    Signal,
    build_signal,
    find_grid_noise,
    find_level,
    find_variance_inflation,
    measure_student_loss,
    split_pieces,
)
from assay.bench.judge.samples import Question, build_pair, compare_pairs, find_fewest, find_median, relate_medians
from assay.bench.values.comparison import Change, MetricHistory, MetricSeries, Step
from assay.judge.statistics import Array, load_numpy, normal_quantile
from assay.system.fast_dataclasses import dataclass
from assay.values.verdict import Finding, Verdict, VerdictKind

_MOVE_ALPHA = 0.05  # of a move to another environment, which is tested once and not searched for
FEWEST_MOVED = find_fewest(_MOVE_ALPHA)  # executions on either side; fewer cannot be significant

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


def judge_history(history: MetricHistory, recent: int | None = None, asserted: float = 0.05) -> Verdict:
    """FAIL: a worse level that persists and has not been triaged. INCONCLUSIVE: the environment changed as well, a new
    environment has too few executions, or the history is too short or too noisy to show a change of `asserted`. ERROR:
    the newest execution gives no value. Improvements and changes before the last `recent` executions raise no alarm."""
    findings = [_judge_change(history, change, recent) for change in history.changes]
    if history.broken:
        findings.append(Finding(VerdictKind.ERROR, _name(history), history.broken))
    longest = max((len(series.points) for series in history.series), default=0)
    if longest < SHORTEST_SERIES and all(change.too_few for change in history.changes):
        message = f"{longest} comparable executions are too few; at least {SHORTEST_SERIES} are needed"
        findings.append(Finding(VerdictKind.INCONCLUSIVE, _name(history), message))
    findings += _find_blindness(history, asserted)
    return Verdict.of(findings, sum(len(series.points) for series in history.series))


def _judge_change(history: MetricHistory, change: Change, recent: int | None) -> Finding:
    kind = VerdictKind.PASS
    matters = change.is_worse or change.too_few
    if matters and change.holds and not change.judgement and _is_recent(history, change, recent):
        is_sure = change.cause in ("code", "unknown") and not change.too_few
        kind = VerdictKind.FAIL if is_sure else VerdictKind.INCONCLUSIVE
    return Finding(
        kind=kind,
        subject=_name(history),
        message=describe_change(change),
        value=change.step.after,
        expected=change.step.before,
        step=float(change.step.at),
        effect=change.step.effect,
        interval=change.step.interval,
    )


def _is_recent(history: MetricHistory, change: Change, recent: int | None) -> bool:
    if recent is None or change.kind == "trend":  # it continues to the newest
        return True
    for series in history.series:
        ids = [point.execution_id for point in series.points]
        if change.execution_id in ids:
            return len(ids) - ids.index(change.execution_id) <= recent
    return True


_LARGEST_VISIBLE = 1.0  # largest detectable change that is offered as --min-effect


def _find_blindness(history: MetricHistory, asserted: float) -> Iterator[Finding]:
    """The newest series that is long enough is too noisy to show the change that matters."""
    series = find_newest(history)
    if series is None or series.detectable is None or series.detectable <= asserted:
        return
    message = f"a change of {asserted:.1%} would not have been found in this noise"
    if series.detectable <= _LARGEST_VISIBLE:
        message += f", only one of {series.detectable:.1%}"
    yield Finding(VerdictKind.INCONCLUSIVE, _name(history), f"{message}: {_advise_blind(series)}")


def _advise_blind(series: MetricSeries) -> str:
    visible = series.detectable or 0.0
    enough = (
        f"; or accept it with --min-effect {math.ceil(1000 * visible) / 1000:g}" if visible <= _LARGEST_VISIBLE else ""
    )
    if series.needed is None:
        return f"more executions do not help, less noise does{enough}"
    missing = series.needed - len(series.points)
    return f"about {missing} more execution{'' if missing == 1 else 's'} would show it{enough}"


def find_newest(history: MetricHistory) -> MetricSeries | None:
    """The newest of those that are long enough to show a change; without times, the longest."""
    known = [series for series in history.series if len(series.points) >= SHORTEST_SERIES]
    return max(known, key=lambda series: (series.points[-1].at or 0.0, len(series.points)), default=None)


def _name(history: MetricHistory) -> str:
    return f"{history.method} {history.metric}"


def describe_change(change: Change) -> str:
    words = [
        f"{change.step.effect:+.1%} {'step by step ' if change.kind == 'trend' else ''}since {change.execution_id}"
    ]
    old, new = ((commit or "unknown")[:12] for commit in change.commits)
    words.append(f"commits {old}..{new}" if old != new else f"commit {new}")
    cause = "environment or code?" if change.cause == "either" else f"{change.cause}:"
    details = f" ({', '.join(change.differences)})" if change.differences else ""
    words.append(f"{cause} {change.reason}{details}")
    if not change.holds:
        words.append("other environments were measured since" if change.too_few else "the level has returned since")
    if change.judgement:
        words.append(f"{change.judgement}{': ' + change.note if change.note else ''}")
    return "; ".join(words)


# ---------------------------------------------------------------- from one environment to another


def compare_levels(old: Sequence[float], new: Sequence[float], at: int) -> Step | None:
    """Two stretches that meet at a known index; None: too few values, or no difference."""
    (found,) = compare_pairs([build_pair("", old, new, Question("min", 0.0, _MOVE_ALPHA))])
    if found.p is None or found.p >= _MOVE_ALPHA or found.base is None or found.head is None or found.effect is None:
        return None
    return Step(at, found.base, found.head, found.effect, found.interval)


def compare_medians(old: Sequence[float], new: Sequence[float], at: int) -> Step:
    """The same with too few values to test: medians, without an interval."""
    before, after = find_median(old), find_median(new)
    return Step(at, before, after, relate_medians(before, after))


def count_executions(number: int) -> str:
    return f"{number} execution{'' if number == 1 else 's'}"


def describe_few(old: Sequence[float], new: Sequence[float]) -> str:
    """Whether the new values are within the range of the old ones; too few for a test."""
    inside = sum(min(old) <= value <= max(old) for value in new)
    where = "within" if inside == len(new) else "partly outside" if inside else "outside"
    counts = f"{count_executions(len(new))} on a new environment"
    if len(new) >= FEWEST_MOVED:
        counts = f"{count_executions(len(old))} on the old environment"
    return f"{counts}, too few to judge (at least {FEWEST_MOVED} are needed), {where} the old range"


# ---------------------------------------------------------------- trends


def find_trend(values: Sequence[float | None], changes: Sequence[Step] = ()) -> Step | None:
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
    rise, middle = slope * length, find_level(about)
    before = middle - rise / 2
    reach = normal_quantile(TAIL_PROBABILITY) * error * length
    low, high = (signal.relate(rise + way * reach, before) for way in (-1, 1))
    return Step(0, signal.restore(before), signal.restore(middle + rise / 2), signal.relate(rise, before), (low, high))


def fit_slope(x: Array, times: Array) -> tuple[float, float]:
    """The Theil-Sen slope (median of the slopes between all pairs), and its standard error."""
    np = load_numpy()
    first, second = np.triu_indices(len(x), 1)
    slope = find_middle((x[second] - x[first]) / (times[second] - times[first]))
    about = x - slope * times
    spread = MAD_TO_SIGMA * find_middle(np.abs(about - find_middle(about)))
    return slope, spread * math.sqrt(find_variance_inflation(ASSUMED_AUTOCORRELATION) / float((times**2).sum()))


def _explain_by_steps(x: Array, signal: Signal, changes: Sequence[Step], size: int) -> float:
    """What the steps gain over one level, less the penalty of each step after the first."""
    np = load_numpy()
    indices = [int(np.searchsorted(signal.indices, change.at)) // size for change in changes]
    cuts = sorted({index for index in indices if 0 < index < len(x)})
    if not cuts:
        return -math.inf
    about = np.concatenate([piece - find_middle(piece) for piece in split_pieces(x, cuts)])
    step_penalty = DEFAULT.step_penalty * math.log(len(x)) * (len(cuts) - 1)
    return measure_student_loss(x) - measure_student_loss(about) - step_penalty


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


def measure_visibility(values: Sequence[float | None], known: Sequence[Step] | Step = ()) -> Visibility | None:
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


def _split_known(signal: Signal, known: Sequence[Step] | Step) -> list[Array]:
    np = load_numpy()
    if not isinstance(known, Step):
        return split_pieces(signal.x, [int(np.searchsorted(signal.indices, change.at)) for change in known])
    times = np.arange(len(signal.x)) - (len(signal.x) - 1)
    return [signal.x - fit_slope(signal.x, times)[0] * times]  # unchanged at the newest value


def find_detectable(values: Sequence[float | None], known: Sequence[Step] | Step = ()) -> float | None:
    """The smallest relative change that would be found in 90% of such histories if it were present in their last third.
    None: there are too few values to find any."""
    found = measure_visibility(values, known)
    if found is not None:
        return found.find_smallest(len(found.signal.x))
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return 0.0 if len(finite) >= SHORTEST_SERIES else None


def count_needed(values: Sequence[float | None], effect: float, known: Sequence[Step] | Step = ()) -> int | None:
    """How many points a history with this noise needs to show a change of `effect`; None: no number suffices."""
    found = measure_visibility(values, known)
    if found is None:
        return SHORTEST_SERIES
    points = len(found.signal.x)
    counts = range(points, max(*VISIBLE, points) + 1)
    return next((count for count in counts if found.find_smallest(count) <= effect), None)
