"""The rules by windows, paired and unmatched: what a check shows in each window, against what replicas and declared
variants show there.

The *distance* of a run is its mean absolute log-ratio to the replicas' mean: differences of both signs do not cancel.
The *effect* is the mean log-ratio, signed, with bounds from Student's t. A window is outside when its distance exceeds
four times the largest distance of a replica (from the others) or of a variant, plus a floor for rounding; or when its
effect is significant. A window that is outside and worse than delta is FAIL, one that is outside and not worse is
CHANGED, one that is inside and significantly below delta is PASS; any other window is INCONCLUSIVE. Zero and negative
values have no logs: differences, scaled by the golden's mean size in the window, are used for such a metric. The full
rules are in docs/explanation/convergence-statistics.md.

The unmatched rule compares runs with other seeds. In any one window such runs differ by far more than delta, so only
the mean over the second half of the segment can pass. Half of alpha is for the alarms of this mean, the other half for
the windows, which can only fail (or be suspiciously better): they find what the mean hides, such as a spike or a late
divergence. Gather with ten replicas and check with three to five.

The unmatched rule also compares how far the values move from step to step. A running mean, an exponential average, a
value that is repeated for some steps, or the loss of one device instead of the mean over all devices has the expected
level, but another mean absolute difference between neighbouring values. A metric is CHANGED if this difference is off
by more than a factor of two, and by more than the spread of the recordings explains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from assay.golden.judge.effects import (
    ENOUGH_RECORDINGS,
    SURE_TAIL,
    Effects,
    WindowTolerance,
    better_way,
    build_alarms,
    build_limits,
    build_starts,
    default_delta,
    find_resolution,
    find_rule_problem,
    measure_pair,
    stack,
    stack_variants,
)
from assay.golden.judge.pairing import Aligned, Pair
from assay.golden.judge.pointwise import has_equal_replicas, render_bounded, render_effect, render_fraction
from assay.golden.values import SUSPICIOUSLY_BETTER, Rule, Track
from assay.judge.statistics import Array, np, t_quantile
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.verdict import Finding, VerdictKind

ENOUGH_REPLICAS = 3  # replicas that are needed to compare other seeds
FEWEST_STEPS = 10  # fewer values show little of how far a metric moves
FACTOR = 2.0  # chosen on a falling curve with independent noise, tested on correlated noise and on counts


@dataclass(frozen=True, slots=True)
class Windows:
    """The decisions: one mark per window, in the order of `Effects`."""

    failed: Array
    changed: Array
    passed: Array
    judged: Array  # the other windows lack values


def decide(rule: Rule, effects: Effects, limits: WindowTolerance, tests: int) -> Windows:
    """Decide each window. `tests`: the number of comparisons by which alpha is divided."""
    delta, alarms = default_delta(rule), build_alarms(rule, len(effects.effect))
    relative = effects.relative(effects.effect)
    with np.errstate(invalid="ignore"):
        sure_low, sure_high = effects.bounds(rule.alpha / tests)
        low, high = effects.bounds(rule.alpha)
        far, outside = effects.distance > limits.sure, find_outside(rule, effects, limits, tests)
        parts = measure_parts(effects, limits)
        above = outside & ((sure_low > 0) & (relative > alarms) | far & (parts[0] > alarms))
        below = outside & ((sure_high < 0) & (relative < -alarms) | far & (parts[1] > alarms))
        inside = ~outside & (effects.distance <= limits.inside)
        under, over = inside & (high <= delta), inside & (low >= -delta)
    judged = ~np.isnan(effects.effect)
    failed = {"both": above | below, "min": above, "max": below}[better_way(rule)] & judged
    passed = {"both": under & over, "min": under, "max": over}[better_way(rule)] & judged
    return Windows(failed, outside & ~failed & judged, passed, judged)


def find_outside(rule: Rule, effects: Effects, limits: WindowTolerance, tests: int) -> Array:
    """Return windows that are surely beyond what the recordings show: by their distance, or by their effect."""
    with np.errstate(invalid="ignore"):
        low, high = effects.bounds(rule.alpha / tests)
        least = limits.floor + limits.declared
        return (effects.distance > limits.sure) | (effects.spreads & ((low > least) | (high < -least)))


def measure_parts(effects: Effects, limits: WindowTolerance) -> Array:
    """Return by how much upward and downward differences exceed what is harmless, as fractions of the golden."""
    above, below = effects.worse - limits.inside
    return np.stack([effects.relative(above), -effects.relative(-below)])


def judge_windows(rule: Rule, pair: Pair, peers: int) -> list[Finding]:
    """Return a finding for each verdict that some window has; PASS only if all windows pass and no value is missing.
    `peers`: the number of metrics, labels and segments that are judged together, by which alpha is divided."""
    if problem := find_rule_problem(rule):
        return [Finding(VerdictKind.ERROR, pair.subject, problem)]
    starts = build_starts(rule, pair.steps)
    effects = measure_pair(pair, starts)
    runs = [pair.golden[0].values, *(check.values for check in pair.checks)]
    if effects.recordings == 1 and pair.is_whole and has_equal_replicas(runs):
        return [Finding(VerdictKind.PASS, pair.subject, f"{pair.compared} values are equal bit for bit", effect=0.0)]
    if effects.error is None:
        return [judge_single(pair, effects, starts)] if pair.is_whole else []
    limits = build_limits(rule, pair, starts, effects)
    found = decide(rule, effects, limits, len(starts) * peers)
    if effects.recordings == 1:  # only the spread of the checks is known: a window can only fail
        nothing = np.zeros_like(found.judged)
        found = Windows(found.failed, nothing, nothing, found.judged)
    return describe_windows(WindowReport(rule, pair, effects, tuple(starts), peers, limits), found)


def describe_windows(report: WindowReport, found: Windows) -> list[Finding]:
    """Describe the windows. If one has failed, CHANGED windows are reported only if they are suspiciously better."""
    unsure = found.judged & ~found.failed & ~found.changed & ~found.passed
    changed = found.changed & report.find_better() if found.failed.any() else found.changed
    marked = (VerdictKind.FAIL, found.failed), (VerdictKind.CHANGED, changed), (VerdictKind.INCONCLUSIVE, unsure)
    findings = [report.describe(kind, marks) for kind, marks in marked if marks.any()]
    if not findings and report.pair.is_whole:
        findings.append(report.describe(VerdictKind.PASS, found.passed))
    return findings


def judge_single(pair: Pair, effects: Effects, starts: Sequence[int]) -> Finding:
    """Report one recording and one check that differs: the difference cannot be distinguished from noise."""
    relative = effects.relative(effects.effect)
    worst = int(np.argmax(np.abs(relative)))
    message = (
        f"{render_effect(float(relative[worst]))} in {render_steps(pair.steps, starts, worst)}, and a golden of one "
        "recording does not show how much of that is noise; gather with replicas"
    )
    numbers = (effects.check[worst], effects.golden[worst], pair.steps[starts[worst]], relative[worst])
    value, expected, step, effect = map(float, numbers)
    return Finding(VerdictKind.INCONCLUSIVE, pair.subject, message, value, expected, step, effect)


def judge_unmatched(rule: Rule, pair: Pair, peers: int) -> list[Finding]:
    problem = find_rule_problem(rule)
    if problem is None and len(pair.golden) < ENOUGH_REPLICAS:
        problem = (
            f"the golden has {len(pair.golden)} recordings; to compare other seeds it needs at least "
            f"{ENOUGH_REPLICAS}, and 10 to find small effects: gather with replicas"
        )
    if problem:
        return [Finding(VerdictKind.ERROR, pair.subject, problem)]
    shared = replace(rule, alpha=rule.alpha / 2)
    return [*_judge_half(rule, shared, pair, peers), *judge_spikes(shared, pair, peers)]


def _judge_half(rule: Rule, shared: Rule, pair: Pair, peers: int) -> list[Finding]:
    half = second_half(pair)
    if any(check.gaps for check in half.checks):
        return []
    effects = measure_pair(half, [0])
    limits = build_limits(rule, half, [0], effects)
    surely, passing = decide(shared, effects, limits, peers), decide(rule, effects, limits, peers)
    found = Windows(surely.failed, surely.changed, passing.passed, surely.judged)
    whole = replace(half, findings=pair.findings)
    findings = describe_windows(WindowReport(rule, whole, effects, (0,), peers, limits), found)
    return [replace(each, part="second half") for each in (*findings, *judge_movement(half, peers))]


def second_half(pair: Pair) -> Pair:
    cut = len(pair.steps) // 2
    golden, variants = (
        tuple(Track(track.steps[cut:], track.values[cut:]) for track in tracks)
        for tracks in (pair.golden, pair.variants)
    )
    halves = [(check.values[cut:], check.texts[cut:]) for check in pair.checks]
    checks = tuple(Aligned(values, texts, sum(map(math.isnan, values))) for values, texts in halves)
    subject = f"{pair.subject}, second half"
    return replace(pair, subject=subject, steps=pair.steps[cut:], golden=golden, checks=checks, variants=variants)


def judge_spikes(rule: Rule, pair: Pair, peers: int) -> list[Finding]:
    """Report the windows that fail or changed, and no others."""
    starts = build_starts(rule, pair.steps)
    effects = measure_pair(pair, starts)
    limits = build_limits(rule, pair, starts, effects)
    found = decide(rule, effects, limits, len(starts) * peers)
    report = WindowReport(rule, pair, effects, tuple(starts), peers, limits)
    marked = ((VerdictKind.FAIL, found.failed), (VerdictKind.CHANGED, found.changed))
    return [report.describe(kind, marks) for kind, marks in marked if np.any(marks)]


def judge_movement(pair: Pair, tests: int) -> list[Finding]:
    """Judge how far checks move from step to step. `tests`: the number of metrics and segments judged together."""
    golden, checks = stack(pair.golden), stack(pair.checks)
    runs: list[Track | Aligned] = [*pair.golden, *pair.checks]
    if len(pair.steps) < FEWEST_STEPS or not np.isfinite(checks).all():
        return []
    if not np.median(np.abs(np.diff(golden, axis=1)), axis=1).all():
        return []  # values that rarely change do so by chance
    last = max(find_resolution(run) for run in runs)  # values with fewer digits seem to move less
    moved = [np.abs(np.diff(rows, axis=1)).mean(axis=1) for rows in (golden, checks, stack_variants(pair))]
    with np.errstate(divide="ignore"):
        known, tested, harmless = (np.log(each + last / 4) for each in moved)
    effect, error = float(tested.mean() - known.mean()), float(known.std(ddof=1))
    surely = t_quantile(len(known) - 1, SURE_TAIL / tests) * error * math.sqrt(1 / len(known) + 1 / len(tested))
    if abs(effect) <= max(math.log(FACTOR), surely, *np.abs(harmless - known.mean())):
        return []
    shown, usual = (render_fraction(float(each.mean() / np.abs(golden).mean())) for each in (moved[1], moved[0]))
    cause = "a mean or a smoothed value instead of each step's?" if effect < 0 else "a part instead of a mean?"
    message = f"moves by {shown} from step to step instead of {usual}: does it log {cause}"
    return [Finding(VerdictKind.CHANGED, pair.subject, message)]


@dataclass(frozen=True, slots=True)
class WindowReport:
    """Turns marked windows into a finding that begins at the first of them and describes the largest effect."""

    rule: Rule
    pair: Pair
    effects: Effects
    starts: tuple[int, ...]
    peers: int
    limits: WindowTolerance

    def describe(self, kind: VerdictKind, marks: Array) -> Finding:
        signed = np.array([self.is_signed(window, kind) for window in range(len(self.starts))])
        relative, distance = (self.effects.relative(each) for each in (self.effects.effect, self.effects.distance))
        shown = np.where(signed, relative, self._find_part() if kind is VerdictKind.FAIL else distance)
        speaking = marks & signed if (marks & signed).any() else marks
        worst = int(np.argmax(np.where(speaking, np.abs(shown), -1.0)))
        sure = kind in (VerdictKind.FAIL, VerdictKind.CHANGED)
        tests = len(self.starts) * self.peers if sure else 1
        low, high = self.effects.bounds(self.rule.alpha / tests)
        interval = (float(low[worst]), float(high[worst])) if signed[worst] else None
        marked = () if kind is VerdictKind.PASS else np.flatnonzero(marks)
        ends = [_find_ends(self.pair.steps, self.starts, int(window)) for window in marked]
        step = self._find_onset(marks) if sure else self.pair.steps[self.starts[int(np.argmax(marks))]]
        message = self.render_message(kind, marks, worst, step)
        value, expected, effect = (float(each[worst]) for each in (self.effects.check, self.effects.golden, shown))
        stretches = tuple((float(first), float(last)) for first, last in ends)
        return Finding(kind, self.pair.subject, message, value, expected, float(step), effect, interval, stretches)

    def is_signed(self, window: int, kind: VerdictKind) -> bool:
        """Return whether a finding shows a window's effect: not if only its worse part fails or differences cancel."""
        distance, effect = float(self.effects.distance[window]), float(self.effects.effect[window])
        if kind is VerdictKind.FAIL:
            limit, relative = build_alarms(self.rule, len(self.starts))[window], self.effects.relative(effect)
            is_worse = {"min": relative > limit, "max": relative < -limit}
            return bool(is_worse.get(better_way(self.rule), abs(relative) > limit))
        is_far = distance > float(self.limits.inside[window])
        return not (is_far and abs(effect) < distance / 2)

    def _find_part(self) -> Array:
        """Return by how much the worse part of each window, or the larger one if both are worse, exceeds what is
        harmless: this excess is compared with the limit."""
        above, below = measure_parts(self.effects, self.limits)
        way = better_way(self.rule)
        return np.where(above >= below if way == "both" else way == "min", above, -below)

    def _count_digits(self, window: int, value: float) -> int:
        """Return how many digits show that a value is beyond its limit."""
        limit = float(build_alarms(self.rule, len(self.starts))[window])
        return next((digits for digits in range(3, 9) if float(f"{abs(value):.{digits}g}") > limit), 9)

    def _find_onset(self, marks: Array) -> int:
        """Return the first step of the first marked window that is beyond the limit, else the window's first step."""
        first = int(np.argmax(marks))
        end = self.starts[first + 1] if first + 1 < len(self.starts) else len(self.pair.steps)
        counts = np.diff([*self.starts, len(self.pair.steps)])
        with np.errstate(invalid="ignore"):
            far = np.flatnonzero((self.effects.steps > np.repeat(self.limits.inside, counts))[:end])
        inside = far[far >= self.starts[first]]
        return self.pair.steps[int(inside[0]) if len(inside) else self.starts[first]]

    def render_message(self, kind: VerdictKind, marks: Array, worst: int, step: int) -> str:
        delta = f"{100 * default_delta(self.rule):g}%"
        steps = render_steps(self.pair.steps, self.starts, worst)
        many = f"{int(marks.sum())} of {len(self.starts)} windows"
        shown = self.render_size(worst, kind)
        if kind is VerdictKind.PASS:
            inside, allowed = float(self.limits.inside[worst]), delta  # delta, or the recordings' smaller limit
            if inside < default_delta(self.rule):
                allowed = f"{render_fraction(inside)} (harmless by the recordings; delta is {delta})"
            return f"within {allowed}: at most {shown}, in {steps}; {many}"
        if kind is VerdictKind.INCONCLUSIVE:
            return self._render_unsure(delta, shown, steps, many, worst)
        if kind is VerdictKind.FAIL:
            return f"{shown} in {steps}, more than {self._limit(worst)}\nbegins at step {step}; {many}"
        better = SUSPICIOUSLY_BETTER if self.find_better()[worst] else ""
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
        """Render the difference with which the finding is compared."""
        known = self.effects
        variants, delta = len(self.pair.variants), f"delta is {100 * default_delta(self.rule):g}%"
        names = "replicas and variants" if variants else "replicas"
        if not known.envelope[window]:
            floor = render_fraction(float(self.limits.floor[window]))
            return f"{names} are bit-equal, rounding is below {floor}; {delta}"
        return f"{names} differ by {render_fraction(float(known.envelope[window]))} at most; {delta}"

    def find_better(self) -> Array:
        """Return the windows that are better than the golden by more than delta."""
        effect = self.effects.relative(self.effects.effect)
        delta, way = default_delta(self.rule), better_way(self.rule)
        return effect < -delta if way == "min" else effect > delta if way == "max" else np.zeros_like(effect, bool)

    def render_size(self, window: int, kind: VerdictKind) -> str:
        if not self.is_signed(window, kind) and kind is VerdictKind.FAIL:
            part = float(self._find_part()[window])
            shown = render_effect(abs(part), self._count_digits(window, part)).removeprefix("+")
            return f"up and down, {'upward' if part > 0 else 'downward'} by {shown}"
        if not self.is_signed(window, kind):
            return f"{render_fraction(float(self.effects.relative(self.effects.distance)[window]))} up and down"
        sure = kind in (VerdictKind.FAIL, VerdictKind.CHANGED)
        low, high = self.effects.bounds(self.rule.alpha / (len(self.starts) * self.peers if sure else 1))
        relative = float(self.effects.relative(self.effects.effect)[window])
        if kind is VerdictKind.CHANGED:
            return render_effect(relative)
        digits = self._count_digits(window, relative) if kind is VerdictKind.FAIL else 3
        return render_bounded(relative, float(low[window]), float(high[window]), digits)

    def _limit(self, window: int) -> str:
        """Render the limit as `5%`; if the limit of the first window differs, render both limits."""
        alarms = [f"{100 * float(each):g}%" for each in build_alarms(self.rule, len(self.starts))]
        if alarms[0] == alarms[-1]:
            return alarms[window]
        if window == 0:
            return f"{alarms[0]} (the limit of the first window; {alarms[-1]} later)"
        return f"{alarms[window]} ({alarms[0]} in the first window)"


def _find_ends(steps: Sequence[int], starts: Sequence[int], window: int) -> tuple[int, int]:
    """Return the first and the last step of a window."""
    end = starts[window + 1] if window + 1 < len(starts) else len(steps)
    return steps[starts[window]], steps[end - 1]


def render_steps(steps: Sequence[int], starts: Sequence[int], window: int) -> str:
    first, last = _find_ends(steps, starts, window)
    return f"step {first}" if first == last else f"steps {first} to {last}"
