"""The paired rule: window means of log-ratios against the noise that the golden's replicas show.

A window's effect is the mean log of the checks less the mean log of the replicas. Its variance is taken half from the
replicas' spread in that window and half from the mean spread of all windows; Student's t with one degree of freedom
less than there are replicas. A window FAILS when its effect is worse than delta and surely above nothing (alpha shared
among all windows, Bonferroni); it passes when its effect is surely below delta (each window at alpha: all must pass, so
nothing need be shared). Values that are zero or negative have no logs: then differences, scaled by the golden's mean
size in the window, take their place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from assay.judge.exact import has_equal_replicas
from assay.judge.numerics import Array, load_numpy, t_quantile
from assay.judge.pairing import Aligned, Pair
from assay.judge.wording import render_bounded, render_effect
from assay.values.golden import Rule, Track
from assay.values.series import told_direction
from assay.values.verdict import Finding, VerdictKind

LONGEST_WINDOW = 50
WINDOWS_PER_SEGMENT = 6
DELTA_PAIRED = 0.005
DELTA_UNMATCHED = 0.01
# Harmless changes of kernels moved gradient norms by up to 0.4% in the first fifty steps and up to 3% later, when the
# runs had drifted apart (docs/explanation/convergence-statistics.md). A broken gradient shows at once.
DELTA_GRADIENT = 0.05
DELTA_GRADIENT_AT_FIRST = 0.01

Way = Literal["min", "max", "both"]


# ---------------------------------------------------------------- what the rule leaves open


def default_delta(rule: Rule) -> float:
    """The smallest relative effect that matters, where the rule names none."""
    if rule.delta is not None:
        return rule.delta
    if is_gradient(rule):
        return DELTA_GRADIENT
    return DELTA_UNMATCHED if rule.kind == "unmatched" else DELTA_PAIRED


def is_gradient(rule: Rule) -> bool:
    return "grad" in rule.metric.lower() and told_direction(rule.metric) is None


def build_alarms(rule: Rule, windows: int) -> Array:
    """From which effect on a window may fail: delta, but for gradient norms less in the first window."""
    alarms = load_numpy().full(windows, default_delta(rule))
    at_first = find_first_delta(rule)
    if at_first is not None and windows > 1:
        alarms[0] = at_first
    return alarms


def find_first_delta(rule: Rule) -> float | None:
    """What may fail in the first window already, where that is not delta."""
    is_special = rule.delta is None and rule.kind == "paired" and is_gradient(rule)
    return DELTA_GRADIENT_AT_FIRST if is_special else None


def better_way(rule: Rule) -> Way:
    """By the rule, else by the metric's name; a name that does not tell (gradient norm, learning rate): both, any
    change fails."""
    return rule.direction or told_direction(rule.metric) or "both"


def find_rule_problem(rule: Rule) -> str | None:
    delta = default_delta(rule)
    if not math.isfinite(delta) or delta < 0:
        return f"a delta of {delta:g} makes no sense; it is a proportion such as 0.005"
    if not 0 < rule.alpha < 0.5:
        return f"an alpha of {rule.alpha:g} makes no sense; it is the share of false alarms, such as 0.01"
    if rule.window is not None and rule.window < 1:
        return f"a window of {rule.window} steps makes no sense"
    return None


def build_starts(rule: Rule, steps: Sequence[int]) -> list[int]:
    """Where each window begins, as places in `steps`. A short rest at the end belongs to the window before it."""
    np = load_numpy()
    places = np.asarray(steps)
    spacing = int(np.median(np.diff(places))) if len(places) > 1 else 1
    span = int(places[-1] - places[0]) + spacing
    width = rule.window or min(LONGEST_WINDOW, math.ceil(span / WINDOWS_PER_SEGMENT))
    numbers = (places - places[0]) // width
    starts: list[int] = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
    if len(starts) > 1 and len(steps) - starts[-1] < width / spacing / 2:
        starts.pop()
    return starts


# ---------------------------------------------------------------- effects and their bounds


@dataclass(frozen=True, slots=True)
class Effects:
    """Per window, as numpy arrays. `effect` and `error` are log-ratios, or scaled differences."""

    golden: Array  # mean level, for reports; the effect is how far `check` is from it
    check: Array
    effect: Array
    error: Array | None  # standard error; None: one recording against one check tells no noise
    freedom: int
    in_logs: bool

    def bounds(self, tail: float) -> tuple[Array, Array]:
        """Lower and upper bound of the relative effect, each wrong with probability `tail`."""
        if self.error is None:
            raise ValueError("without replicas there are no bounds")
        reach = t_quantile(self.freedom, tail) * self.error
        return self.relative(self.effect - reach), self.relative(self.effect + reach)

    def relative(self, effect: Array) -> Array:
        np = load_numpy()
        with np.errstate(over="ignore"):
            return np.expm1(effect) if self.in_logs else effect


def stack_golden(golden: Sequence[Track]) -> Array:
    return load_numpy().array([track.values for track in golden], dtype=float)


def stack_checks(checks: Sequence[Aligned]) -> Array:
    return load_numpy().array([check.values for check in checks], dtype=float)


def measure_effects(golden: Array, checks: Array, starts: Sequence[int]) -> Effects:
    """Windows in which a check lacks a value, or has one that is not finite, get NaN as their effect."""
    np = load_numpy()
    in_logs = bool((golden > 0).all() and not (checks <= 0).any())
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        size = None if in_logs else measure_size(golden, starts)
        known, tested = (build_distances(values, golden[:1], starts, size) for values in (golden, checks))
        levels = _average_levels(golden, starts, in_logs), _average_levels(checks, starts, in_logs)
        effect = np.where(np.isfinite(levels[1]), tested.mean(axis=0) - known.mean(axis=0), np.nan)
        spread, freedom = measure_spread(known, tested)
        error = None if spread is None else np.sqrt(share_variance(spread) * (1 / len(golden) + 1 / len(checks)))
    return Effects(*levels, effect, error, freedom, in_logs)


def _average_levels(values: Array, starts: Sequence[int], in_logs: bool) -> Array:
    """A window's mean over all runs: of logs the geometric one, so that check over golden is the effect."""
    np = load_numpy()
    return np.exp(average(np.log(values), starts).mean(axis=0)) if in_logs else average(values, starts).mean(axis=0)


def average(values: Array, starts: Sequence[int]) -> Array:
    np = load_numpy()
    counts = np.diff([*starts, values.shape[1]])
    return np.add.reduceat(values, starts, axis=1) / counts


def build_distances(values: Array, first: Array, starts: Sequence[int], size: Array | None) -> Array:
    """Window means of the log-ratio to the golden's first replica, or, with a size, of the difference in units of it.

    Taken step by step, so that equal values are exactly 0 apart.
    """
    np = load_numpy()
    if size is None:
        return average(np.log(values) - np.log(first), starts)
    apart = average(values - first, starts)
    return np.where(apart == 0, 0.0, apart / size)  # in units of nothing, any difference is infinite


def measure_size(golden: Array, starts: Sequence[int]) -> Array:
    """The golden's mean absolute value per window, or over all windows where that is 0."""
    np = load_numpy()
    size = average(np.abs(golden), starts).mean(axis=0)
    return np.where(size > 0, size, np.abs(golden).mean())


def measure_spread(golden: Array, checks: Array) -> tuple[Array | None, int]:
    """The variance between replicas per window, and its degrees of freedom.

    A golden of one recording knows none; then that of repeated checks is used.
    """
    source = golden if len(golden) > 1 else checks
    return (source.var(axis=0, ddof=1), len(source) - 1) if len(source) > 1 else (None, 0)


def share_variance(spread: Array) -> Array:
    """Half the window's own, half that of all windows: five replicas alone know a window's variance badly.

    A window that knows no variance (a check ended before it, or is infinitely far away) takes no part.
    """
    np = load_numpy()
    known = spread[np.isfinite(spread)]
    return 0.5 * np.where(np.isfinite(spread), spread, 0.0) + 0.5 * (known.mean() if len(known) else 0.0)


# ---------------------------------------------------------------- the verdict


@dataclass(frozen=True, slots=True)
class Windows:
    """What was decided: one mark per window, in `Effects`' order."""

    failed: Array
    changed: Array
    passed: Array
    judged: Array  # the others lack values


def decide(rule: Rule, effects: Effects, tests: int) -> Windows:
    """`tests`: among how many comparisons alpha is shared before anything fails."""
    np = load_numpy()
    delta, alarms, way = default_delta(rule), build_alarms(rule, len(effects.effect)), better_way(rule)
    relative = effects.relative(effects.effect)
    with np.errstate(invalid="ignore"):
        sure_low, sure_high = effects.bounds(rule.alpha / tests)
        low, high = effects.bounds(rule.alpha)
        above = (sure_low > 0) & (relative > alarms)
        below = (sure_high < 0) & (relative < -alarms)
        under, over = high <= delta, low >= -delta
    judged = ~np.isnan(effects.effect)
    nothing = np.zeros_like(judged)
    if way == "both":
        return Windows(above | below, nothing, under & over, judged)
    return Windows(above, below, under, judged) if way == "min" else Windows(below, above, over, judged)


def judge_windows(rule: Rule, pair: Pair, peers: int = 1) -> list[Finding]:
    """A finding for each kind that some window has; PASS only when all windows pass and nothing is missing.

    `peers`: how many metrics, labels and segments are judged beside this one, itself included; alpha is shared.
    """
    problem = find_rule_problem(rule)
    if problem:
        return [Finding(VerdictKind.ERROR, pair.subject, problem)]
    starts = build_starts(rule, pair.steps)
    effects = measure_effects(stack_golden(pair.golden), stack_checks(pair.checks), starts)
    if effects.error is None:
        return [_judge_single(pair, effects, starts)] if pair.is_whole else []
    found = decide(rule, effects, len(starts) * peers)
    return describe_windows(Report(rule, pair, effects, tuple(starts), peers), found)


def describe_windows(report: Report, found: Windows) -> list[Finding]:
    unsure = found.judged & ~found.failed & ~found.changed & ~found.passed
    findings = [
        report.describe(kind, marks)
        for kind, marks in (
            (VerdictKind.FAIL, found.failed),
            (VerdictKind.CHANGED, found.changed),
            (VerdictKind.INCONCLUSIVE, unsure),
        )
        if marks.any()
    ]
    if not findings and report.pair.is_whole:
        findings.append(report.describe(VerdictKind.PASS, found.passed))
    return findings


def _judge_single(pair: Pair, effects: Effects, starts: Sequence[int]) -> Finding:
    """One recording, one check: equal to the last bit passes; anything else cannot be told from noise."""
    if has_equal_replicas([pair.golden[0].values, pair.checks[0].values]):
        message = f"{pair.compared} values are equal bit for bit"
        return Finding(VerdictKind.PASS, pair.subject, message, effect=0.0)
    np = load_numpy()
    relative = effects.relative(effects.effect)
    worst = int(np.argmax(np.abs(relative)))
    message = (
        f"{render_effect(float(relative[worst]))} in {_stretch(pair.steps, starts, worst)}, and a golden of one "
        "recording does not tell how much of that is noise; check again, or gather with replicas"
    )
    return Finding(
        VerdictKind.INCONCLUSIVE,
        pair.subject,
        message,
        float(effects.check[worst]),
        float(effects.golden[worst]),
        float(pair.steps[starts[worst]]),
        float(relative[worst]),
    )


# ---------------------------------------------------------------- words


@dataclass(frozen=True, slots=True)
class Report:
    """Turns marked windows into a finding: the one with the largest effect speaks, the first gives the step."""

    rule: Rule
    pair: Pair
    effects: Effects
    starts: tuple[int, ...]
    peers: int

    def describe(self, kind: VerdictKind, marks: Array) -> Finding:
        np = load_numpy()
        relative = self.effects.relative(self.effects.effect)
        worst = int(np.argmax(np.where(marks, np.abs(relative), -1.0)))
        first = int(np.argmax(marks))
        sure = kind in (VerdictKind.FAIL, VerdictKind.CHANGED)
        tests = len(self.starts) * self.peers if sure else 1
        low, high = self.effects.bounds(self.rule.alpha / tests)
        interval = float(low[worst]), float(high[worst])
        shown = render_bounded(float(relative[worst]), *interval)
        return Finding(
            kind,
            self.pair.subject,
            self._word(kind, marks, worst, shown),
            float(self.effects.check[worst]),
            float(self.effects.golden[worst]),
            float(self.pair.steps[self.starts[first]]),
            float(relative[worst]),
            interval,
            tuple(self._ends(int(window)) for window in np.flatnonzero(marks)) if kind is not VerdictKind.PASS else (),
        )

    def _ends(self, window: int) -> tuple[float, float]:
        end = self.starts[window + 1] if window + 1 < len(self.starts) else len(self.pair.steps)
        return float(self.pair.steps[self.starts[window]]), float(self.pair.steps[end - 1])

    def _word(self, kind: VerdictKind, marks: Array, worst: int, shown: str) -> str:
        delta = f"{100 * default_delta(self.rule):g}%"
        place, many = _stretch(self.pair.steps, self.starts, worst), f"{int(marks.sum())} of {len(self.starts)} windows"
        if kind is VerdictKind.PASS:
            return f"within {delta}: at most {shown}, in {place}; {many}"
        if kind is VerdictKind.INCONCLUSIVE:
            return f"cannot be told from {delta}: {shown} in {place}; {many}; add a replica"
        limit = self._limit(worst)
        since = f"first shows from step {self.pair.steps[self.starts[int(marks.argmax())]]}"
        better = "suspiciously better: " if kind is VerdictKind.CHANGED else ""
        return f"{better}{shown} in {place}, more than {limit}; {since}; {many}"

    def _limit(self, window: int) -> str:
        """`5%`; where the first window has a limit of its own, both: `1% (the first window's; 5% later)`."""
        alarms = [f"{100 * float(each):g}%" for each in build_alarms(self.rule, len(self.starts))]
        if alarms[0] == alarms[-1]:
            return alarms[window]
        if window == 0:
            return f"{alarms[0]} (the limit of the first window; {alarms[-1]} later)"
        return f"{alarms[window]} ({alarms[0]} in the first window)"


def _stretch(steps: Sequence[int], starts: Sequence[int], window: int) -> str:
    end = starts[window + 1] if window + 1 < len(starts) else len(steps)
    first, last = steps[starts[window]], steps[end - 1]
    return f"step {first}" if first == last else f"steps {first} to {last}"
