"""The verdict on a history: is the current level worse, since when, and has the change been triaged?

The module also judges newest executions that are too few for a step, and moves between environments or labels,
and finds trends of a series and the smallest change that it could have shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from assay.bench.judge.changepoint import (
    ASSUMED_AUTOCORRELATION,
    DEFAULT,
    MANY,
    SHORTEST_PIECE,
    TAIL_PROBABILITY,
    find_excess_inflation,
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
from assay.bench.values.comparison import LevelStep, MetricChange, MetricHistory
from assay.judge.statistics import Array, normal_quantile, np, t_quantile
from assay.show.formatting import render_count
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.series import Direction
from assay.values.verdict import Finding, Verdict, VerdictKind

_MOVE_ALPHA = 0.05  # alpha of a move to another environment, which is tested once and not searched for
FEWEST_MOVED = find_fewest(_MOVE_ALPHA)  # executions on either side; fewer cannot be significant

SHORTEST_TREND = 8  # points
MOST_BLOCKS = 60  # blocks of a long series
MOST_AUTOCORRELATION = 0.9  # of residuals about a line: an uneven trend looks like autocorrelation
# points: the step, in units of sigma, that is found in 90% of series when it is present in their last third
VISIBLE = {6: 7.5, 8: 6.0, 12: 4.7, 16: 4.2, 24: 4.0, 36: 2.8, 50: 2.3, 80: 1.8, 120: 1.6}
FAR_OUT = 4.0  # distance of an outlier from the level, in sigma
MOST_OUTLIERS = 0.1  # fraction of all points: if more are far from the level that most have, that level is not exact
BLOWN_UP = 8.0  # if the newest third is this many times as noisy as all points, a change must be visible in its noise
OUTLIERS_COST = 300.0  # times outliers / points²: how much higher the step must be

# chosen with seeds below 100,000 of benchmarks/newest.py
MOST_NEWEST = 5  # the number of executions at the end that are compared with all before them
FEWEST_BEFORE = 4
NEWEST_RATE = 0.0005  # rate of false alarms in normal noise, on either side; for two and more executions twice that
RARE = 0.02  # fraction of the earlier executions that may be farther off
FEWEST_RARE = 20  # of this many or more earlier executions, one may be farther off
FARTHER = 1.5  # an outlying tail is at least this many times as far off as earlier neighbours were
MISSED = 0.1  # fraction of changes of the newest execution alone, of the size stated as visible, that are missed
IMPROBABLE = 2.0  # an improvement by this factor: programs that skip their work are fast


def judge_history(history: MetricHistory, recent: int | None = None, asserted: float = 0.05) -> Verdict:
    """Judge a history. FAIL: a worse level that persists and has not been triaged. INCONCLUSIVE: the environment,
    the label or the load changed as well, a new environment has too few executions, the newest executions are worse
    and too few for a level or do not count, or the history is too short or too noisy to show a change of `asserted`.
    CHANGED: an improvement that is improbable, or a change of a metric whose direction is not known.
    ERROR: the newest execution gives no value. Other improvements, and changes before the last `recent` executions,
    raise no alarm."""
    findings = [_judge_change(history, change, recent) for change in history.changes]
    if history.broken:
        findings.append(Finding(VerdictKind.ERROR, _name(history), history.broken))
    longest = max((len(series.points) for series in history.series), default=0)
    if longest < SHORTEST_SERIES and all(change.too_few for change in history.changes):
        what = "1 comparable execution is" if longest == 1 else f"{longest} comparable executions are"
        message = f"{what} too few; at least {SHORTEST_SERIES} are needed"
        if history.aside:
            count = sum(len(series.points) for series in history.aside)
            message += f" ({count} {'was' if count == 1 else 'were'} disturbed)"
        findings.append(Finding(VerdictKind.INCONCLUSIVE, _name(history), message))
    if history.doubted:
        message = "the newest execution, {}, does not count: {}".format(*history.doubted)
        findings.append(Finding(VerdictKind.INCONCLUSIVE, _name(history), message))
    if all(finding.kind is VerdictKind.PASS for finding in findings):
        findings += _find_blindness(history, asserted)
    return Verdict.of(findings, sum(len(series.points) for series in history.series))


def _judge_change(history: MetricHistory, change: MetricChange, recent: int | None) -> Finding:
    is_open = change.holds and not change.judgement and _is_recent(history, change, recent)
    changes = next((series.changes for series in history.series if change in series.changes), (change,))
    levels = [each.step.before for each in changes if each.step.at <= change.step.at]  # earlier levels of the series
    return Finding(
        kind=_choose_kind(change, levels, history.guessed) if is_open else VerdictKind.PASS,
        subject=_name(history),
        message=describe_change(change) + _DIRECTION * history.guessed,
        value=change.step.after,
        expected=change.step.before,
        step=float(change.step.at),
        effect=change.step.effect,
        interval=change.step.interval,
    )


_DIRECTION = "; the metric's name does not show which direction is better: --better min or max"


def _choose_kind(change: MetricChange, levels: Sequence[float], guessed: bool) -> VerdictKind:
    """Return the kind of a change that holds and is not triaged. A return to an earlier level is not improbable."""
    if change.too_few and (change.is_worse or change.kind != "newest"):
        return VerdictKind.INCONCLUSIVE
    if change.is_worse:
        return VerdictKind.FAIL if change.cause in ("code", "unknown") else VerdictKind.INCONCLUSIVE
    is_explained = change.cause in ("environment", "label", "load")
    is_new = all(is_improbable(replace(change.step, before=level)) for level in levels)
    return VerdictKind.CHANGED if (is_new or guessed) and not is_explained else VerdictKind.PASS


def is_improbable(step: LevelStep) -> bool:
    """Return whether one level is a multiple of the other, or has another sign: such an improvement is doubtful."""
    low, high = sorted((abs(step.before), abs(step.after)))
    return (high >= IMPROBABLE * low and high > 0) or step.before * step.after < 0


def _is_recent(history: MetricHistory, change: MetricChange, recent: int | None) -> bool:
    if recent is None or change.kind in ("trend", "newest"):  # such a change continues to the newest execution
        return True
    for series in history.series:
        ids = [point.execution_id for point in series.points]
        if change.execution_id in ids:
            return len(ids) - ids.index(change.execution_id) <= recent
    return True


_LARGEST_VISIBLE = 1.0  # largest detectable change that is offered as --min-effect


def _find_blindness(history: MetricHistory, asserted: float) -> Iterator[Finding]:
    """Yield a finding if the newest series that is long enough is too noisy to show the change that matters."""
    known = [series for series in history.series if len(series.points) >= SHORTEST_SERIES]
    series = max(known, key=lambda series: (series.points[-1].at or 0.0, len(series.points)), default=None)
    if series is None or series.detectable is None or series.detectable <= asserted:
        return
    message = f"a change of {asserted:.1%} would not have been found in this noise"
    if series.detectable <= _LARGEST_VISIBLE:
        message += f", only one of {series.detectable:.1%}"
    advice = "more executions do not help, less noise does"
    if series.needed is not None:
        more = max(1, series.needed - len(series.points))
        advice = f"about {render_count(more, 'more execution')} would show it"
    if series.detectable <= _LARGEST_VISIBLE:
        advice += f"; or accept it with --min-effect {math.ceil(1000 * series.detectable) / 1000:g}"
    yield Finding(VerdictKind.INCONCLUSIVE, _name(history), f"{message}: {advice}")


def _name(history: MetricHistory) -> str:
    return f"{history.method} {history.metric}"


_SINCE = {"step": "since", "trend": "step by step since", "newest": "in the newest since"}


def describe_change(change: MetricChange) -> str:
    words = [f"{change.step.effect:+.1%} {_SINCE[change.kind]} {change.execution_id}"]
    old, new = ((commit or "unknown")[:12] for commit in change.commits)
    words.append(f"commits {old}..{new}" if old != new else f"commit {new}")
    moved = "label" if [each.partition(" ")[0] for each in change.differences] == ["label"] else "environment"
    cause = f"{moved} or code?" if change.cause == "either" else f"{change.cause}:"
    details = f" ({', '.join(change.differences)})" if change.differences else ""
    words.append(f"{cause} {change.reason}{details}")
    if not change.holds:
        words.append("others were measured since" if change.too_few else "the level has returned since")
    if change.judgement:
        words.append(f"{change.judgement}{': ' + change.note if change.note else ''}")
    return "; ".join(words)


# ---------------------------------------------------------------- from one environment to another


def compare_levels(old: Sequence[float], new: Sequence[float], at: int) -> LevelStep | None:
    """Compare two stretches that meet at a known index. None: there are too few values, or there is no difference."""
    (found,) = compare_pairs([build_pair("", old, new, Question("min", 0.0, _MOVE_ALPHA))])
    if found.p is None or found.p >= _MOVE_ALPHA or found.base is None or found.head is None or found.effect is None:
        return None
    return LevelStep(at, found.base, found.head, found.effect, found.interval)


def may_be_worse(old: Sequence[float], new: Sequence[float], direction: Direction, asserted: float) -> bool:
    """Return whether the new level may be worse by more than `asserted`, although no difference is significant."""
    (found,) = compare_pairs([build_pair("", old, new, Question(direction, asserted, _MOVE_ALPHA))])
    return found.kind is not VerdictKind.PASS


def compare_medians(old: Sequence[float], new: Sequence[float], at: int) -> LevelStep:
    """Return a step between two stretches that are too short for a test: medians, without an interval."""
    before, after = find_median(old), find_median(new)
    return LevelStep(at, before, after, relate_medians(before, after))


def describe_few(old: Sequence[float], new: Sequence[float], what: str = "environment") -> str:
    """Describe whether the new values are within the range of the old ones, if they are too few for a test."""
    inside = sum(min(old) <= value <= max(old) for value in new)
    where = "within" if inside == len(new) else "partly outside" if inside else "outside"
    counts, why, needed = f"{render_count(len(new), 'execution')} on a new {what}", "too few to judge", FEWEST_MOVED
    if len(old) < FEWEST_MOVED <= len(new):
        counts = f"{render_count(len(old), 'execution')} on the old {what}"
    elif len(new) >= FEWEST_MOVED:
        why, needed = f"{why} in their noise", SHORTEST_SERIES
    return f"{counts}, {why} (at least {needed} are needed), {where} the old range"


# ---------------------------------------------------------------- the newest executions


@dataclass(frozen=True, slots=True)
class Newest:
    """The last executions of a series against all before them, in units of the signal."""

    level: float  # level of the executions before the last ones
    bound: float  # last executions that are all farther off are outlying
    noise: float
    step: LevelStep | None  # None: the last executions are not outlying


def measure_newest(signal: Signal, known: Sequence[LevelStep] | LevelStep, count: int) -> Newest | None:
    """Measure the last `count` executions; None: there are too few before them.

    The executions are outlying if each is farther off, to the same side, than chance allows in normal noise, and at
    least `FARTHER` times as far off as the same number of neighbours were before: so noise with outliers or two modes
    is recognised.
    """
    *older, last = _split_known(signal, known)
    before, tail = last[:-count], last[-count:]
    pieces = [*older, before]
    points = sum(map(len, pieces))
    if not len(before) or points < FEWEST_BEFORE:
        return None
    level = find_level(before)
    parts = [piece - find_level(piece) for piece in pieces]
    known_degrees = max(1, points - len(pieces))
    about = np.concatenate(parts)
    limit = 3 * MAD_TO_SIGMA * find_middle(np.abs(about))
    noise = math.sqrt(float((np.clip(about, -limit, limit) ** 2).sum()) / known_degrees)
    if (about != 0).mean() > MOST_OUTLIERS:
        noise = max(noise, find_grid_noise(about))  # counts lie on a grid
    quantile = t_quantile(known_degrees, NEWEST_RATE * min(count, 2))
    bound = max(quantile * noise * math.sqrt(1 + 1 / len(before)), FARTHER * _find_farthest(parts, count))
    reach = t_quantile(known_degrees, TAIL_PROBABILITY) * noise * math.sqrt(1 / len(before) + 1 / count)
    off = tail - level
    nearest = max(float(off.min()), -float(off.max()))  # the whole tail must be far, and nearer to the new level
    is_outlying = nearest > max(bound, abs(find_middle(off)) / 2)
    step = signal.build_step(len(signal.x) - count, level, level + find_level(off), reach) if is_outlying else None
    return Newest(level, bound, noise, step)


def _find_farthest(parts: Sequence[Array], count: int) -> float:
    """Return the largest distance to one side of the level that `count` neighbours all had; the rarest are left out."""
    windows = [np.lib.stride_tricks.sliding_window_view(part, count) for part in parts if len(part) >= count]
    if not windows:
        return 0.0
    distances = [np.maximum(window.min(axis=1), -window.max(axis=1)) for window in windows]
    ordered = np.sort(np.concatenate(distances))
    rare = max(int(RARE * len(ordered)), len(ordered) >= FEWEST_RARE)
    return max(0.0, float(ordered[len(ordered) - 1 - rare]))


def find_newest_step(
    values: Sequence[float], known: Sequence[LevelStep] | LevelStep, most: int = MOST_NEWEST
) -> LevelStep | None:
    """Return the largest outlying group of newest executions as a step; None: the newest is at the level before it."""
    signal = build_signal(values)
    if signal is None:
        return None
    counts = range(min(most, len(signal.x) - FEWEST_BEFORE), 0, -1)
    tails = (measure_newest(signal, known, count) for count in counts)
    return next((tail.step for tail in tails if tail is not None and tail.step), None)


def separate_newest(
    values: Sequence[float], steps: Sequence[LevelStep]
) -> tuple[tuple[LevelStep, ...], LevelStep | None]:
    """Return the steps, and separately the step of the newest executions alone.

    A level has at least `SHORTEST_PIECE` executions, so the search puts the last two together with one of the old level
    or finds nothing; where the group is long enough for a level, the step that was found begins where the group does.
    With fewer than `FEWEST_BEFORE` executions before a step, it stays where it was found: no group can begin there.
    If some of the last executions are at the old level, the others are outliers, or the old level has outliers.
    """
    length = len(values) - steps[-1].at if steps else len(values)
    is_short = bool(steps) and length <= MOST_NEWEST
    earlier = tuple(steps[:-1] if is_short else steps)
    is_early = is_short and steps[-1].at < FEWEST_BEFORE
    found = None if is_early else find_newest_step(values, earlier, min(length, MOST_NEWEST))
    if found is None and is_short:
        tail, step = values[steps[-1].at :], steps[-1]
        away = [value for value in tail if abs(value - step.before) > abs(value - step.after)] or tail
        mixed = compare_medians([step.before], away, step.at)  # without the values at the old level
        return (earlier, mixed) if count_back(tail, mixed) else (tuple(steps), None)
    if found is None:
        return tuple(steps), None
    if not is_short or len(values) - found.at < SHORTEST_PIECE:
        return earlier, found
    return (*earlier, steps[-1] if steps[-1].at == found.at else found), None


def count_back(values: Sequence[float], step: LevelStep) -> int:
    """Count the values that are at the level before the step: at most a quarter of the way from it."""
    return sum(abs(value - step.before) < abs(step.after - step.before) / 4 for value in values)


def find_alone(values: Sequence[float], known: Sequence[LevelStep] | LevelStep, least: float) -> float | None:
    """Return the smallest relative change of the newest execution alone that would be found in 90% of such histories.
    `least`: a change that is measured as smaller is not reported, so one of this size is missed as often as not."""
    signal = build_signal(values)
    found = measure_newest(signal, known, 1) if signal is not None else None
    if signal is None or found is None:
        return None
    margin = normal_quantile(MISSED) * found.noise
    outlying, apart = (abs(signal.relate(height, found.level)) for height in (found.bound + margin, margin))
    return max(outlying, least + (1 + least) * apart)


# ---------------------------------------------------------------- trends


def find_trend(values: Sequence[float], changes: Sequence[LevelStep] = ()) -> LevelStep | None:
    """Return the line that fits the series better than one level does, and better than its steps do, or None. A long
    series is reduced to the medians of blocks of neighbours."""
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
    inflation = max(1.0, find_excess_inflation(min(autocorrelation, MOST_AUTOCORRELATION)))
    if gain < find_young_bound(len(x)) * inflation or gain < _explain_by_steps(x, changes, size):
        return None
    length = len(x) - 1 / size  # from the first value to the last, in blocks
    rise, middle = slope * length, find_level(about)
    reach = normal_quantile(TAIL_PROBABILITY) * error * length
    return replace(signal.build_step(0, middle - rise / 2, middle + rise / 2, reach), at=0)


def fit_slope(x: Array, times: Array) -> tuple[float, float]:
    """Return the Theil-Sen slope (median of the slopes between all pairs), and its standard error."""
    first, second = np.triu_indices(len(x), 1)
    slope = find_middle((x[second] - x[first]) / (times[second] - times[first]))
    about = x - slope * times
    spread = MAD_TO_SIGMA * find_middle(np.abs(about - find_middle(about)))
    return slope, spread * math.sqrt(find_variance_inflation(ASSUMED_AUTOCORRELATION) / float((times**2).sum()))


def _explain_by_steps(x: Array, changes: Sequence[LevelStep], size: int) -> float:
    """Return what the steps gain over one level, less the penalty of each step after the first."""
    cuts = sorted({change.at // size for change in changes if 0 < change.at // size < len(x)})
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
    level: float  # level of the newest points

    def find_smallest(self, points: int) -> float:
        """Return the smallest step, relative to the level, that a history of `points` points would show."""
        height = float(np.interp(math.log(points), [math.log(n) for n in VISIBLE], list(VISIBLE.values())))
        fraction = self.outliers / len(self.signal.x)
        up = height * self.noise * (1 + OUTLIERS_COST * fraction / points)
        return abs(self.signal.relate(up, self.level))


def measure_visibility(values: Sequence[float], known: Sequence[LevelStep] | LevelStep) -> Visibility | None:
    """Measure the noise of the residuals about the levels, or about the line of a trend. None: there are too few values
    to find any change, or all are equal and any change would be found."""
    signal = build_signal(values)
    if signal is None:
        return None
    pieces = _split_known(signal, known)
    about = np.abs(np.concatenate([piece - find_level(piece) for piece in pieces]))
    noise = MAD_TO_SIGMA * find_middle(about) * math.sqrt(len(about) / max(len(about) - len(pieces), 1))
    if (about > 0).mean() > MOST_OUTLIERS:
        noise = max(noise, find_grid_noise(about))  # counts lie on a grid
    newest = MAD_TO_SIGMA * find_middle(about[-(len(about) // 3) :]) if len(about) >= MANY else 0.0
    noise = newest if newest > BLOWN_UP * noise else noise
    return Visibility(signal, noise, int((about > FAR_OUT * noise).sum()) if noise else 0, find_level(pieces[-1]))


def _split_known(signal: Signal, known: Sequence[LevelStep] | LevelStep) -> list[Array]:
    if not isinstance(known, LevelStep):
        return split_pieces(signal.x, [change.at for change in known])
    times = np.arange(len(signal.x)) - (len(signal.x) - 1)
    return [signal.x - fit_slope(signal.x, times)[0] * times]  # without the trend; the newest value is unchanged


def find_detectable(values: Sequence[float], known: Sequence[LevelStep] | LevelStep = ()) -> float | None:
    """Return the smallest relative change in the last third that 90% of such histories show; None: too few values."""
    found = measure_visibility(values, known)
    if found is not None:
        return found.find_smallest(len(found.signal.x))
    return 0.0 if len(values) >= SHORTEST_SERIES else None


def count_needed(values: Sequence[float], effect: float, known: Sequence[LevelStep] | LevelStep = ()) -> int | None:
    """Return how many points a history with this noise needs to show a change of `effect`; None: no number suffices."""
    found = measure_visibility(values, known)
    if found is None:
        return SHORTEST_SERIES
    points = len(found.signal.x)
    counts = range(points, max(*VISIBLE, points) + 1)
    return next((count for count in counts if found.find_smallest(count) <= effect), None)
