"""The paired rule: what a check shows in each window, against what replicas and declared variants show there.

Two measures. The *distance* of a run is its mean absolute log-ratio to the replicas' mean: differences of both signs do
not cancel. The *effect* is the mean log-ratio, signed, with bounds from Student's t. A window is outside when its
distance exceeds four times the largest distance of a replica (from the others) or of a variant, plus a floor for
rounding; or when its effect is significant. Outside and worse than delta is FAIL; outside and not worse is CHANGED;
inside, and significantly below delta, is PASS; what cannot be decided is INCONCLUSIVE. Values that are zero or negative
have no logs: then differences, scaled by the golden's mean size in the window, are used. The full rule is in
docs/explanation/convergence-statistics.md."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from assay.golden.judge.effects import (
    Effects,
    build_starts,
    measure_effects,
    measure_size,
    stack_checks,
    stack_golden,
    stack_variants,
)
from assay.golden.judge.pairing import Pair
from assay.golden.judge.pointwise import has_equal_replicas, render_bounded, render_effect, render_fraction
from assay.golden.values import Rule, Track
from assay.judge.statistics import Array, load_numpy, t_quantile
from assay.values.series import find_direction
from assay.values.verdict import Finding, VerdictKind

DELTA_PAIRED = 0.005
DELTA_UNMATCHED = 0.01
# Harmless changes of kernels moved gradient norms by up to 0.4% in the first fifty steps and up to 3% later, when the
# runs had drifted apart (docs/explanation/convergence-statistics.md). A broken gradient shows at once.
DELTA_GRADIENT = 0.05
DELTA_GRADIENT_AT_FIRST = 0.01
# How far outside is outside: chosen on examples/charlm, reported on another training (benchmarks/convergence_power.py).
MULTIPLE = 4.0
SINGLE_VALUES = 1.5  # times that in windows of fewer than FEW_VALUES: a single value varies more than a mean
FEW_VALUES = 4
ENOUGH_RECORDINGS = 5
SURE_TAIL = 0.001
# Rounding differences begin at 1e-8 to 1e-7 of the loss and grow slowly, faults exceed 1e-5 within twenty steps.
FLOOR = 1e-5
FLOOR_STEPS = 20  # without variants the floor grows by as much every twenty steps
LARGEST_FLOOR = 1e-4
FLOOR_SCHEDULE = 1e-6  # of learning rates: they are set, not computed from data
MANY_DIGITS = 15  # a value logged with so many digits was not rounded for display

Way = Literal["min", "max", "both"]


# ---------------------------------------------------------------- defaults of a rule


def default_delta(rule: Rule) -> float:
    """The smallest relative effect that matters, where the rule names none."""
    if rule.delta is not None:
        return rule.delta
    if is_gradient(rule):
        return DELTA_GRADIENT
    return DELTA_UNMATCHED if rule.kind == "unmatched" else DELTA_PAIRED


def is_gradient(rule: Rule) -> bool:
    return "grad" in rule.metric.lower() and find_direction(rule.metric) is None


def build_alarms(rule: Rule, windows: int) -> Array:
    """The effect from which a window may fail: delta, but less in the first window of gradient norms."""
    alarms = load_numpy().full(windows, default_delta(rule))
    at_first = find_first_delta(rule)
    if at_first is not None and windows > 1:
        alarms[0] = at_first
    return alarms


def find_first_delta(rule: Rule) -> float | None:
    """The delta of the first window, where it has one of its own."""
    is_special = rule.delta is None and rule.kind == "paired" and is_gradient(rule)
    return DELTA_GRADIENT_AT_FIRST if is_special else None


def better_way(rule: Rule) -> Way:
    """By the rule, else by the metric's name; both (any change fails) where the name does not show it."""
    return rule.direction or find_direction(rule.metric) or "both"


def find_rule_problem(rule: Rule) -> str | None:
    delta = default_delta(rule)
    if not math.isfinite(delta) or delta < 0:
        return f"a delta of {delta:g} is not valid; it is a fraction such as 0.005"
    if not 0 < rule.alpha < 0.5:
        return f"an alpha of {rule.alpha:g} is not valid; it is the rate of false alarms, such as 0.01"
    if rule.window is not None and rule.window < 1:
        return f"a window of {rule.window} steps is not valid"
    return None


# ---------------------------------------------------------------- effects and their bounds


# ---------------------------------------------------------------- the floor


def is_schedule(rule: Rule) -> bool:
    """A learning rate, by a part of the metric's name: `lr`, `train/lr_group0`, `learning_rate`."""
    name = rule.metric.lower()
    return "lr" in re.split(r"[^a-z]+", name) or re.search("learning.?rate", name) is not None


def build_floor(rule: Rule, pair: Pair, starts: Sequence[int], effects: Effects) -> Array:
    """Below this no difference is a change: rounding of the arithmetic, and of the digits that were logged."""
    np = load_numpy()
    ends = [*starts[1:], len(pair.steps)]
    counts = np.diff([*starts, len(pair.steps)])
    quantum = 0.0 if is_schedule(rule) else find_quantum(stack_golden(pair.golden))
    quantum = max(quantum, find_resolution(pair.golden[0]))
    flips = quantum * np.minimum(1.0, 2.0 / counts)  # of the last digit: two in a window
    level = measure_size(stack_golden(pair.golden), starts)
    with np.errstate(divide="ignore", invalid="ignore"):
        digits = np.where(level > 0, flips / level, 0.0)
    gone = np.array([pair.steps[end - 1] - pair.steps[0] + 1 for end in ends], dtype=float)
    grown = np.clip(FLOOR * gone / FLOOR_STEPS, FLOOR, LARGEST_FLOOR)
    floor = FLOOR_SCHEDULE if is_schedule(rule) else FLOOR if effects.envelope.any() else grown
    return np.minimum(floor, default_delta(rule)) + digits  # a delta below rounding is respected


def find_resolution(track: Track) -> float:
    """The value of the last logged digit, where every value was logged with few digits: 0.0001 for `2.3412`."""
    if not track.texts or len(track.texts) != len(track.values):
        return 0.0
    found = [_last_digit(text) for text in track.texts]
    return min(found) if all(found) else 0.0


def _last_digit(text: str) -> float:
    mantissa, _, exponent = text.strip().lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    digits = sum(letter.isdigit() for letter in mantissa.lstrip("+-0."))
    try:
        return 10.0 ** (int(exponent or 0) - decimals) if digits < MANY_DIGITS else 0.0
    except (ValueError, OverflowError):
        return 0.0


def find_quantum(golden: Array) -> float:
    """The step between neighbouring values of a metric that counts (an accuracy: 1/128); 0 for any other."""
    np = load_numpy()
    values = np.unique(golden)
    if len(values) < FEW_VALUES:
        return 0.0
    apart, scale = np.diff(values), float(np.abs(values).max())
    common = float(apart[0])
    for each in apart[1:]:
        common = _common_measure(common, float(each), 1e-9 * scale)
    return common if common > 1e-6 * scale else 0.0


def _common_measure(one: float, other: float, slack: float) -> float:
    """Greatest common divisor by Euclid, for rounded numbers."""
    while other > slack:
        one, other = other, one - other * round(one / other)
        other = abs(other)
    return one


# ---------------------------------------------------------------- the verdict


@dataclass(frozen=True, slots=True)
class Windows:
    """What was decided: one mark per window, in `Effects`' order."""

    failed: Array
    changed: Array
    passed: Array
    judged: Array  # the others lack values


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Distances per window: up to `inside` is harmless, above `sure` is not."""

    inside: Array
    sure: Array
    floor: Array
    declared: Array  # what the variants alone allow


def build_limits(rule: Rule, pair: Pair, starts: Sequence[int], effects: Effects) -> Tolerance:
    np = load_numpy()
    floor = build_floor(rule, pair, starts, effects)
    counts = np.diff([*starts, len(pair.steps)])
    few = np.where(counts < FEW_VALUES, SINGLE_VALUES, 1.0)
    sure = find_sure_multiple(effects.recordings) if effects.spreads else MULTIPLE
    return Tolerance(
        MULTIPLE * effects.envelope + floor,
        sure * few * effects.envelope + floor,
        floor,
        MULTIPLE * effects.variants,
    )


def find_sure_multiple(recordings: int) -> float:
    """Four from five recordings on; with fewer as much more as Student's t is wider."""
    if recordings >= ENOUGH_RECORDINGS:
        return MULTIPLE
    wide, usual = (t_quantile(count - 1, SURE_TAIL) for count in (max(2, recordings), ENOUGH_RECORDINGS))
    return MULTIPLE * wide / usual


def decide(rule: Rule, effects: Effects, limits: Tolerance, tests: int) -> Windows:
    """`tests`: the number of comparisons that alpha is divided by."""
    np = load_numpy()
    delta, alarms = default_delta(rule), build_alarms(rule, len(effects.effect))
    relative = effects.relative(effects.effect)
    with np.errstate(invalid="ignore"):
        sure_low, sure_high = effects.bounds(rule.alpha / tests)
        low, high = effects.bounds(rule.alpha)
        far = effects.distance > limits.sure
        least = limits.floor + limits.declared
        outside = far | (effects.spreads & ((sure_low > least) | (sure_high < -least)))
        parts = effects.relative(effects.worse - limits.inside)
        above = outside & ((sure_low > 0) & (relative > alarms) | far & (parts[0] > alarms))
        below = outside & ((sure_high < 0) & (relative < -alarms) | far & (parts[1] > alarms))
        widest = np.maximum(delta, limits.declared)
        inside = ~outside & (effects.distance <= limits.inside)
        under, over = inside & (high <= widest), inside & (low >= -widest)
    judged = ~np.isnan(effects.effect)
    failed = {"both": above | below, "min": above, "max": below}[better_way(rule)] & judged
    passed = {"both": under & over, "min": under, "max": over}[better_way(rule)] & judged
    return Windows(failed, outside & ~failed & judged, passed, judged)


def judge_windows(rule: Rule, pair: Pair, peers: int = 1) -> list[Finding]:
    """A finding for each kind that some window has; PASS only when all windows pass and nothing is missing.

    `peers`: how many metrics, labels and segments are judged together, this one included; alpha is divided by it.
    """
    problem = find_rule_problem(rule)
    if problem:
        return [Finding(VerdictKind.ERROR, pair.subject, problem)]
    starts = build_starts(rule, pair.steps)
    golden, checks = stack_golden(pair.golden), stack_checks(pair.checks)
    effects = measure_effects(golden, checks, starts, stack_variants(pair))
    if effects.recordings == 1 and pair.is_whole and has_equal_replicas([pair.golden[0].values, *checks.tolist()]):
        message = f"{pair.compared} values are equal bit for bit"
        return [Finding(VerdictKind.PASS, pair.subject, message, effect=0.0)]
    if effects.error is None:
        return [_judge_single(pair, effects, starts)] if pair.is_whole else []
    limits = build_limits(rule, pair, starts, effects)
    found = decide(rule, effects, limits, len(starts) * peers)
    if effects.recordings == 1:  # only the spread of the checks is known: it can only fail
        nothing = load_numpy().zeros_like(found.judged)
        found = Windows(found.failed, nothing, nothing, found.judged)
    return describe_windows(Report(rule, pair, effects, tuple(starts), peers, limits), found)


def describe_windows(report: Report, found: Windows) -> list[Finding]:
    """Where a window has failed, CHANGED windows are reported only if they are suspiciously better."""
    unsure = found.judged & ~found.failed & ~found.changed & ~found.passed
    changed = found.changed & report.find_better() if found.failed.any() else found.changed
    findings = [
        report.describe(kind, marks)
        for kind, marks in (
            (VerdictKind.FAIL, found.failed),
            (VerdictKind.CHANGED, changed),
            (VerdictKind.INCONCLUSIVE, unsure),
        )
        if marks.any()
    ]
    if not findings and report.pair.is_whole:
        findings.append(report.describe(VerdictKind.PASS, found.passed))
    return findings


def _judge_single(pair: Pair, effects: Effects, starts: Sequence[int]) -> Finding:
    """One recording and one check that differs: it cannot be distinguished from noise."""
    np = load_numpy()
    relative = effects.relative(effects.effect)
    worst = int(np.argmax(np.abs(relative)))
    message = (
        f"{render_effect(float(relative[worst]))} in {_stretch(pair.steps, starts, worst)}, and a golden of one "
        "recording does not show how much of that is noise; gather with replicas"
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


# ---------------------------------------------------------------- messages


@dataclass(frozen=True, slots=True)
class Report:
    """Turns marked windows into a finding: the one with the largest effect is described, the first gives the
    beginning."""

    rule: Rule
    pair: Pair
    effects: Effects
    starts: tuple[int, ...]
    peers: int
    limits: Tolerance

    def describe(self, kind: VerdictKind, marks: Array) -> Finding:
        np = load_numpy()
        signed = np.array([self._is_signed(window, kind) for window in range(len(self.starts))])
        relative, distance = (self.effects.relative(each) for each in (self.effects.effect, self.effects.distance))
        shown = np.where(signed, relative, distance)
        speaking = marks & signed if (marks & signed).any() else marks
        worst = int(np.argmax(np.where(speaking, np.abs(shown), -1.0)))
        sure = kind in (VerdictKind.FAIL, VerdictKind.CHANGED)
        tests = len(self.starts) * self.peers if sure else 1
        low, high = self.effects.bounds(self.rule.alpha / tests)
        interval = (float(low[worst]), float(high[worst])) if signed[worst] else None
        step = self._find_onset(marks) if sure else self.pair.steps[self.starts[int(np.argmax(marks))]]
        return Finding(
            kind,
            self.pair.subject,
            self._render_message(kind, marks, worst, step),
            float(self.effects.check[worst]),
            float(self.effects.golden[worst]),
            float(step),
            float(shown[worst]),
            interval,
            tuple(self._ends(int(window)) for window in np.flatnonzero(marks)) if kind is not VerdictKind.PASS else (),
        )

    def _is_signed(self, window: int, kind: VerdictKind) -> bool:
        """Whether its effect is reported; where differences of both signs cancel, or a window fails by its worse part
        although its mean is better, the distance is."""
        distance, effect = float(self.effects.distance[window]), float(self.effects.effect[window])
        if kind is VerdictKind.FAIL and {"min": effect < 0, "max": effect > 0}.get(better_way(self.rule), False):
            return False
        is_far = distance > float(self.limits.inside[window])
        return not (is_far and abs(effect) < distance / 2)

    def _find_onset(self, marks: Array) -> int:
        """The first step in the window that is farther from the golden than the limit; otherwise the window's first."""
        np = load_numpy()
        first = int(np.argmax(marks))
        end = self.starts[first + 1] if first + 1 < len(self.starts) else len(self.pair.steps)
        counts = np.diff([*self.starts, len(self.pair.steps)])
        with np.errstate(invalid="ignore"):
            far = np.flatnonzero((self.effects.steps > np.repeat(self.limits.inside, counts))[:end])
        inside = far[far >= self.starts[first]]
        return self.pair.steps[int(inside[0]) if len(inside) else self.starts[first]]

    def _ends(self, window: int) -> tuple[float, float]:
        end = self.starts[window + 1] if window + 1 < len(self.starts) else len(self.pair.steps)
        return float(self.pair.steps[self.starts[window]]), float(self.pair.steps[end - 1])

    def _render_message(self, kind: VerdictKind, marks: Array, worst: int, step: int) -> str:
        delta = f"{100 * default_delta(self.rule):g}%"
        steps, many = _stretch(self.pair.steps, self.starts, worst), f"{int(marks.sum())} of {len(self.starts)} windows"
        shown = self._render(worst, kind)
        if kind is VerdictKind.PASS:
            return f"within {delta}: at most {shown}, in {steps}; {many}"
        if kind is VerdictKind.INCONCLUSIVE:
            return self._render_unsure(delta, shown, steps, many, worst)
        if kind is VerdictKind.FAIL:
            return f"{shown} in {steps}, more than {self._limit(worst)}\nbegins at step {step}; {many}"
        better = "suspiciously better: " if self.find_better()[worst] else ""
        return f"{better}{shown} in {steps}; begins at step {step}\n{many}; {self._render_envelope(worst)}"

    def _render_unsure(self, delta: str, shown: str, steps: str, many: str, worst: int) -> str:
        if self.effects.recordings == 1:
            return f"{shown} in {steps}; one recording does not show noise: gather with replicas"
        if float(self.effects.distance[worst]) > float(self.limits.inside[worst]):
            few = "too few recordings" if self.effects.recordings < ENOUGH_RECORDINGS else "too few values"
            advice = f"gather {max(ENOUGH_RECORDINGS, self.effects.recordings + 1)} or more"
            return f"{shown} in {steps}; {many}; {few} to call that a change: {advice}"
        return f"cannot be distinguished from {delta}: {shown} in {steps}; {many}; add a replica"

    def _render_envelope(self, window: int) -> str:
        """What the finding is compared with."""
        known = self.effects
        variants, delta = len(self.pair.variants), f"delta is {100 * default_delta(self.rule):g}%"
        names = "replicas and variants" if variants else "replicas"
        if not known.envelope[window]:
            return (
                f"{names} are bit-equal, rounding is below {render_fraction(float(self.limits.floor[window]))}; {delta}"
            )
        return f"{names} differ by {render_fraction(float(known.envelope[window]))} at most; {delta}"

    def find_better(self) -> Array:
        """Windows that are better than the golden by more than delta."""
        np, effect = load_numpy(), self.effects.relative(self.effects.effect)
        delta, way = default_delta(self.rule), better_way(self.rule)
        return effect < -delta if way == "min" else effect > delta if way == "max" else np.zeros_like(effect, bool)

    def _render(self, window: int, kind: VerdictKind) -> str:
        if not self._is_signed(window, kind):
            return f"{render_fraction(float(self.effects.relative(self.effects.distance)[window]))} up and down"
        sure = kind in (VerdictKind.FAIL, VerdictKind.CHANGED)
        low, high = self.effects.bounds(self.rule.alpha / (len(self.starts) * self.peers if sure else 1))
        relative = float(self.effects.relative(self.effects.effect)[window])
        if kind is VerdictKind.CHANGED:
            return render_effect(relative)
        return render_bounded(relative, float(low[window]), float(high[window]))

    def _limit(self, window: int) -> str:
        """`5%`; if the first window has its own limit, both: `1% (the first window's; 5% later)`."""
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
