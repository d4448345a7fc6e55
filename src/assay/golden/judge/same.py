"""The rule for configurations that must agree with the canonical run: `same`.

The signed residuals of a configuration (its values against the mean of the recordings) are averaged over each window
and over the whole segment. A two-sided test compares each mean with the noise of the same mean among the recordings.
Neighbouring steps and windows are correlated, so a segment counts as fewer windows than it has: as its effective sample
size. Differences of opposite signs cancel, but a bias does not. docs/explanation/equivalence-statistics.md has
the measured error rates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from assay.golden.judge.effects import (
    ENOUGH_RECORDINGS,
    MULTIPLE,
    Effects,
    average,
    build_differences,
    build_floor,
    build_starts,
    default_delta,
    find_rule_problem,
    measure_pair,
    measure_size,
    stack,
)
from assay.golden.judge.pairing import Pair
from assay.golden.judge.pointwise import has_equal_replicas, render_bounded, render_fraction
from assay.golden.judge.window import judge_single
from assay.golden.values import Rule
from assay.judge.statistics import Array, np, t_quantile
from assay.system.fast_dataclasses import dataclass
from assay.values.verdict import Finding, VerdictKind

FEW_RECORDINGS = 0.5  # factor of the sample size with fewer than five recordings, which show slow drift badly


@dataclass(frozen=True, slots=True)
class Noise:
    """How far chance moves one run. `variance`: variance of the mean of each window; `windows`: number of
    independent windows, the effective sample size of the segment; `freedom`: degrees of freedom of the estimate."""

    variance: Array
    windows: float
    freedom: int

    def measure_error(self, window: int | None) -> float:
        """Return the standard error of the mean of the segment (None) or of a window (at least an average one's)."""
        mean = float(self.variance.mean())
        return math.sqrt(mean / self.windows if window is None else max(mean, float(self.variance[window])))


def measure_noise(pair: Pair, starts: Sequence[int], in_logs: bool, alike: bool = True) -> Noise:
    """Measure the residuals of all recordings about their mean, averaged over windows. Unless `alike`, windows may
    differ in noise: each window is scaled by its own noise, or by the median noise if that is larger."""
    golden = stack(pair.golden)
    rows = build_differences(golden, golden[:1], starts, None if in_logs else measure_size(golden, starts))
    means = average((rows - rows.mean(axis=0)) * math.sqrt(len(golden) / (len(golden) - 1)), starts)
    variance = (means**2).mean(axis=0)
    if not alike and (variance := np.maximum(variance, np.median(variance))).all():
        means = means / np.sqrt(variance)
    windows = max(1.0, len(starts) / find_autocorrelation_time(means))
    few = FEW_RECORDINGS if len(golden) < ENOUGH_RECORDINGS else 1.0
    return Noise(variance, windows, int((len(golden) - 1) * max(1.0, few * windows)))


def find_autocorrelation_time(rows: Array) -> float:
    """Return the sum of the autocorrelations of all rows together, up to the first two lags whose sum is not positive
    (Geyer). The rows are not centred: an offset that a run keeps is a correlation at every lag."""
    columns = rows.shape[1]
    power = np.abs(np.fft.rfft(rows, 2 * columns)) ** 2
    covariances = np.fft.irfft(power.sum(axis=0))[:columns]
    if not covariances[0] > 0 or columns == 1:
        return 1.0
    pairs = covariances[: columns // 2 * 2].reshape(-1, 2).sum(axis=1) / covariances[0]
    ends = np.flatnonzero(pairs <= 0)
    return float(np.clip(2 * pairs[: ends[0] if len(ends) else None].sum() - 1, 1.0, columns))


@dataclass(frozen=True, slots=True)
class Mean:
    """The residuals of steps from index `first` to before `end`: their mean, how far chance moves it (`reach` among all
    tests together, `usual` in a single test), and the distance that is `harmless` in any case."""

    first: int
    end: int
    effect: float
    reach: float
    usual: float
    harmless: float


def list_means(rule: Rule, pair: Pair, peers: int) -> tuple[Effects, list[Mean]]:
    """Return the mean of the whole segment, then of its windows if there are several. The segment and the windows have
    half of alpha each, divided by the number of tests."""
    starts = build_starts(rule, pair.steps)
    whole, effects = measure_pair(pair, [0]), measure_pair(pair, starts)
    noise = measure_noise(pair, starts, effects.in_logs)
    means = [*_build_means(rule, pair, whole, [0], noise, 4 * peers)]
    if len(starts) > 1:
        means += _build_means(rule, pair, effects, starts, noise, 4 * peers * len(starts))
    return effects, means


def _build_means(
    rule: Rule, pair: Pair, effects: Effects, starts: Sequence[int], noise: Noise, tests: int
) -> Iterator[Mean]:
    """Yield the means. Differences that variants show are harmless up to delta, as in the paired rule."""
    declared = np.minimum(MULTIPLE * effects.variants, default_delta(rule))
    harmless = declared + build_floor(rule, pair, starts, effects)
    runs = math.sqrt(1 / len(pair.checks) + 1 / len(pair.golden))
    shared, usual = (t_quantile(noise.freedom, tail) for tail in (rule.alpha / tests, rule.alpha))
    for window, (first, end) in enumerate(zip(starts, [*starts[1:], len(pair.steps)], strict=True)):
        error = runs * noise.measure_error(window if len(starts) > 1 else None)
        yield Mean(first, end, float(effects.effect[window]), shared * error, usual * error, float(harmless[window]))


def judge_same(rule: Rule, pair: Pair, peers: int) -> list[Finding]:
    """Judge a configuration. FAIL: a mean is outside the noise and differs by more than delta; CHANGED: by less. PASS:
    no mean is outside, and that of the whole segment is surely within delta. `peers`: see `judge_windows`."""
    problem = find_rule_problem(rule)
    if problem or not pair.is_whole:
        return [Finding(VerdictKind.ERROR, pair.subject, problem)] if problem else []
    if any(has_equal_replicas([track.values, *(check.values for check in pair.checks)]) for track in pair.golden):
        message = f"{pair.compared} values are equal bit for bit to a recording"
        return [Finding(VerdictKind.PASS, pair.subject, message, effect=0.0)]
    if len(pair.golden) == 1:
        return [judge_single(pair, measure_pair(pair, [0]), [0])]
    effects, means = list_means(rule, pair, peers)
    delta = default_delta(rule)
    outside = [mean for mean in means if abs(mean.effect) - mean.reach - mean.harmless > 0]
    beyond = [mean for mean in outside if abs(effects.relative(mean.effect)) > delta]
    within = max(map(abs, _find_bounds(effects, means[0], means[0].usual))) <= delta
    kind = VerdictKind.PASS if within else VerdictKind.INCONCLUSIVE
    kind = VerdictKind.FAIL if beyond else VerdictKind.CHANGED if outside else kind
    worst = max(beyond or outside or means[:1], key=lambda mean: abs(mean.effect))
    return [_describe(rule, pair, effects, kind, worst, outside)]


def _find_bounds(effects: Effects, mean: Mean, reach: float) -> tuple[float, float]:
    low, high = (float(effects.relative(mean.effect + side * reach)) for side in (-1, 1))
    return low, high


def _describe(
    rule: Rule, pair: Pair, effects: Effects, kind: VerdictKind, worst: Mean, outside: Sequence[Mean]
) -> Finding:
    effect = float(effects.relative(worst.effect))
    ends = [(pair.steps[mean.first], pair.steps[mean.end - 1]) for mean in outside]
    low, high = _find_bounds(effects, worst, worst.reach if outside else worst.usual)
    first, last = pair.steps[worst.first], pair.steps[worst.end - 1]
    shown = f"{render_bounded(effect, low, high)} in the mean of steps {first} to {last}"
    noise = f"the noise of {len(pair.golden)} recordings, ±{render_fraction(worst.reach + worst.harmless)} there"
    delta = f"{100 * default_delta(rule):g}%"
    message = {
        VerdictKind.PASS: f"agrees within {delta}: {shown}",
        VerdictKind.INCONCLUSIVE: f"cannot be distinguished from {delta}: {shown}; more replicas show it",
        VerdictKind.CHANGED: f"{shown}\noutside {noise}; delta is {delta}",
        VerdictKind.FAIL: f"{shown}, more than {delta}\noutside {noise}",
    }[kind]
    step = float(min(start for start, _ in ends)) if ends else None
    stretches = tuple((float(start), float(end)) for start, end in ends)
    return Finding(kind, pair.subject, message, None, None, step, effect, (low, high), stretches)
