"""The rules for recordings in files, where nothing is run again: `digits`, `noise` and `level`.

One golden does not show noise: values that are equal at the digits of the side with fewer digits, or within a stated
tolerance, pass; other values are CHANGED. Several goldens show noise: windows inside the noise pass; windows surely
outside, on either side, fail, or are CHANGED if every value is within the stated tolerance. Times and memory have a
level, the median, which is compared by a stated tolerance alone. See docs/explanation/golden-statistics.md.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from statistics import median

from assay.golden.judge.effects import (
    ENOUGH_RECORDINGS,
    FEWEST_DIGITS,
    MANY_DIGITS,
    build_limits,
    build_starts,
    default_delta,
    is_schedule,
    measure_pair,
)
from assay.golden.judge.pairing import Aligned, Pair
from assay.golden.judge.pointwise import compare, measure_relative, render_bounded, render_effect, render_fraction
from assay.golden.judge.same import measure_noise
from assay.golden.judge.window import WindowReport, find_outside, render_steps
from assay.golden.values import Rule, Track
from assay.judge.statistics import Array, np, t_quantile
from assay.show.formatting import render_count, render_number
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.verdict import Finding, VerdictKind

NOISE_UNKNOWN = "noise unknown"
_TOO_FEW = "too few goldens to call that a change: more of them, or --history DIR, show it"
_UNITS = (60.0, 100.0, 1000.0, 3600.0, 1e6, 1e9)
_UNIT_SLACK = 1.25


@dataclass(frozen=True, slots=True)
class Digits:
    """How a column was written: with `decimals` decimals, as float32 (`is_single`) or, if neither is set, in full."""

    decimals: int | None = None
    is_single: bool = False

    def find_quantum(self, value: float) -> float:
        """Return the distance between two neighbouring numbers of this column near `value`."""
        if self.decimals is not None:
            return 10.0**-self.decimals
        return 2.0 ** (max(math.frexp(value)[1], -125) - 24) if self.is_single else 0.0

    def describe(self) -> str:
        return render_count(self.decimals, "decimal") if self.decimals is not None else "single precision"


def find_digits(values: Sequence[float]) -> Digits:
    """Find the digits from the shortest decimals that represent the values. Whole numbers are counts, and very short
    numbers (a learning rate of 1e-05) were set: neither kind was rounded."""
    texts = [repr(value).removesuffix(".0").partition("e") for value in values]
    digits = max(len(text.replace(".", "").lstrip("-0")) for text, _, _ in texts)
    if digits >= MANY_DIGITS:
        return Digits(is_single=all(map(_is_single, values)))
    decimals = max(len(text.partition(".")[2]) - int(power or 0) for text, _, power in texts)
    return Digits(decimals) if decimals > 0 and digits >= FEWEST_DIGITS else Digits()


def _is_single(value: float) -> bool:
    try:
        return bool(struct.unpack("<f", struct.pack("<f", value))[0] == value)
    except OverflowError:
        return False


def judge_digits(rule: Rule, pair: Pair) -> list[Finding]:
    """Return one finding for each check, against the only golden."""
    return [_judge_digits(rule, pair, check) for check in pair.checks] if pair.is_whole else []


def _judge_digits(rule: Rule, pair: Pair, check: Aligned) -> Finding:
    golden, values = pair.golden[0].values, check.values
    find = find_digits if not is_schedule(rule) else lambda _: Digits()
    sides = {"golden": find(golden), "run": find(values)}
    pairs = list(zip(values, golden, strict=True))
    different = [index for index, both in enumerate(pairs) if not _is_equal(*both, *sides.values())]
    if not different:
        coarser = max(sides, key=lambda side: sides[side].find_quantum(max(golden, key=abs)))
        are = "1 value is" if len(golden) == 1 else f"{len(golden)} values are"
        at = "" if values == golden else f" at the digits of the {coarser} ({sides[coarser].describe()})"
        too_few = default_delta(rule)  # an effect of this size is in the digits that only the golden has
        if at and coarser == "run" and sides["run"].find_quantum(0.0) / 2 > too_few * median(map(abs, golden)):
            lost = f"too few to show a difference of {100 * too_few:g}%: log as many as the golden has"
            return Finding(VerdictKind.INCONCLUSIVE, pair.subject, f"{are} equal{at}, {lost}", effect=0.0)
        return Finding(VerdictKind.PASS, pair.subject, f"{are} equal{at}", effect=0.0)
    worst = max(different, key=lambda index: abs(measure_relative(*pairs[index])))
    effect, first = measure_relative(*pairs[worst]), different[0]
    largest = f"at most {render_effect(effect)}, at step {pair.steps[worst]}"
    stated = f"the stated tolerance of {100 * (rule.delta or 0):g}%, {NOISE_UNKNOWN}"
    if rule.delta is not None and holds_tolerance(rule.delta, pair, check):
        return Finding(VerdictKind.PASS, pair.subject, f"within {stated}: {largest}", effect=effect)
    mean = render_effect(measure_relative(math.fsum(values), math.fsum(golden)))
    beyond = f"beyond {stated}; " if rule.delta is not None else ""
    message = (
        f"{beyond}{len(different)} of {len(golden)} values differ, first at step {pair.steps[first]}: "
        f"{values[first]!r}, expected {golden[first]!r}; {largest}, {mean} in the mean{describe_unit(values, golden)}\n"
        f"{NOISE_UNKNOWN}: several goldens of one environment, or --history DIR, show it"
    )
    return Finding(VerdictKind.CHANGED, pair.subject, message, *pairs[worst], pair.steps[first], effect)


def _is_equal(tested: float, expected: float, *sides: Digits) -> bool:
    """Whether values agree at the digits of the side with fewer digits; the other side may be rounded, too."""
    fine, coarse = sorted(side.find_quantum(expected) for side in sides)
    allowed = coarse / 2 + (fine / 2 if fine <= coarse / 2 else 0.0)
    return tested == expected or abs(tested - expected) <= allowed * (1 + 1e-6)


def holds_tolerance(tolerance: float, pair: Pair, check: Aligned) -> bool:
    """Whether every value is within a tolerance of the golden's, or of the mean of several goldens."""
    columns = zip(*(track.values for track in pair.golden), strict=True)
    expected = [math.fsum(column) / len(pair.golden) for column in columns]
    return all(compare("==", tested, known, tolerance) for tested, known in zip(check.values, expected, strict=True))


def describe_unit(values: Sequence[float], golden: Sequence[float]) -> str:
    """Ask whether the units are the same if one side is about 60, 100, 1000 … times the other."""
    one, other = abs(median(values)), abs(median(golden))
    ratio = max(one, other) / min(one, other) if min(one, other) else 0.0
    factor = next((unit for unit in _UNITS if unit / _UNIT_SLACK <= ratio <= unit * _UNIT_SLACK), None)
    if factor is None:
        return ""
    larger, smaller = ("run", "golden") if one > other else ("golden", "run")
    return f"; the values of the {larger} are about {factor:g} times those of the {smaller}: are the units the same?"


def judge_level(rule: Rule, pair: Pair) -> list[Finding]:
    """Judge the median of each check. Several goldens show how far a level moves without a change."""
    levels = [median(track.values) for track in pair.golden]
    is_judged = pair.is_whole and rule.delta is not None
    return [_judge_level(rule, pair, levels, median(check.values)) for check in pair.checks] if is_judged else []


def _judge_level(rule: Rule, pair: Pair, levels: Sequence[float], value: float) -> Finding:
    expected, tolerance = math.fsum(levels) / len(levels), rule.delta or 0.0
    effect, unit = measure_relative(value, expected), describe_unit([value], [expected])
    shown = f"{render_number(value, 6)} instead of {render_number(expected, 6)} in the median ({render_effect(effect)})"
    stated = f"the stated tolerance of {100 * tolerance:g}%{'' if len(levels) > 1 else f', {NOISE_UNKNOWN}'}"
    if compare("==", value, expected, tolerance):
        return Finding(VerdictKind.PASS, pair.subject, f"within {stated}: {shown}", effect=effect)
    if min(levels) <= value <= max(levels):
        return Finding(VerdictKind.PASS, pair.subject, f"beyond {stated}, between the goldens: {shown}", effect=effect)
    kind = VerdictKind.ERROR if unit else VerdictKind.FAIL if len(levels) > 1 else VerdictKind.CHANGED
    return Finding(kind, pair.subject, f"beyond {stated}: {shown}{unit}", value, expected, pair.steps[0], effect)


def judge_noise(rule: Rule, pair: Pair, peers: int) -> list[Finding]:
    """Judge all windows of the checks by the noise between the goldens."""
    if not pair.is_whole:
        return []
    columns = [*(each.values for each in pair.golden), *(each.values for each in pair.checks)]
    known = [each.decimals for each in map(find_digits, columns) if each.decimals is not None]
    decimals = None if is_schedule(rule) else min(known, default=None)
    # texts are left out: the short text 0.1 of a value that was not rounded would allow differences in its last digit
    exact = replace(pair, golden=tuple(replace(track, texts=()) for track in pair.golden))
    alike = exact if decimals is None else _round_alike(pair, columns, decimals)
    found = _judge_alike(rule, alike, peers)
    if [track.values for track in alike.golden] == [track.values for track in pair.golden]:
        return [found]
    coarse = f"compared at {render_count(decimals or 0, 'decimal')}, the fewest that a side has"
    return [replace(found, message=f"{found.message}\n{coarse}")]


def _judge_alike(rule: Rule, pair: Pair, peers: int) -> Finding:
    plain = replace(rule, delta=None)
    starts = build_starts(plain, pair.steps)
    effects = measure_pair(pair, starts)
    # the noise of each window or, if a window is quieter by chance, the median noise: a large difference between the
    # goldens in early windows must not hide a check that is outside in later windows
    quiet = np.minimum(effects.replicas, np.maximum(effects.own, np.median(effects.own)))
    effects = replace(effects, replicas=quiet)
    limits = build_limits(plain, pair, starts, effects)
    outside = find_outside(plain, effects, limits, len(starts) * peers)
    unsure = ~outside & ~(effects.distance <= limits.inside)
    report = NoiseReport(rule, pair, effects, tuple(starts), peers, limits)
    if outside.any():
        return report.describe(_find_kind(rule, pair), outside)
    if unsure.any():
        return report.describe(VerdictKind.INCONCLUSIVE, unsure)
    return _find_bias(report) or report.describe(VerdictKind.PASS, effects.distance <= limits.inside)


def _find_bias(report: NoiseReport) -> Finding | None:
    """Return a finding if the mean of all steps is outside although each window is inside: differences of both signs
    cancel in the mean, a bias does not. Each window is scaled by its noise."""
    effects, many = report.effects, len(report.pair.golden)
    noise = measure_noise(report.pair, report.starts, effects.in_logs, alike=False)
    if not effects.spreads or not noise.variance.all():
        return None
    weights = noise.variance**-0.5 / (noise.variance**-0.5).sum()
    error = math.sqrt((1 + 1 / many) / noise.windows) * len(weights) / float((noise.variance**-0.5).sum())
    reach = t_quantile(noise.freedom, report.rule.alpha / (4 * report.peers)) * error
    effect, floor = (float((each * weights).sum()) for each in (effects.effect, report.limits.floor))
    return report.describe_bias(effect, reach) if abs(effect) > max(reach, floor) else None


def _find_kind(rule: Rule, pair: Pair) -> VerdictKind:
    """Return the kind of verdict on values that are outside."""
    holds = rule.delta is not None and all(holds_tolerance(rule.delta, pair, each) for each in pair.checks)
    return VerdictKind.CHANGED if holds else VerdictKind.FAIL


def _round_alike(pair: Pair, columns: Sequence[Sequence[float]], decimals: int) -> Pair:
    runs, many = [tuple(round(value, decimals) for value in values) for values in columns], len(pair.golden)
    rows = [(values, tuple(f"{value:.{decimals}f}" for value in values)) for values in runs]
    golden = tuple(Track(pair.steps, *row) for row in rows[:many])
    return replace(pair, golden=golden, checks=tuple(Aligned(*row, 0) for row in rows[many:]))


class NoiseReport(WindowReport):
    """Findings about windows that are judged by the noise of several goldens alone, without delta."""

    __slots__ = ()

    def is_signed(self, window: int, kind: VerdictKind) -> bool:
        return super().is_signed(window, VerdictKind.CHANGED if kind is VerdictKind.FAIL else kind)

    def render_message(self, kind: VerdictKind, marks: Array, worst: int, step: int) -> str:
        steps = render_steps(self.pair.steps, self.starts, worst)
        shown = f"{self.render_size(worst, VerdictKind.CHANGED)} in {steps}"
        effect, bounds = self.effects.effect[worst], (self.effects.envelope, self.limits.inside)
        noise, inside = (abs(float(self.effects.relative(math.copysign(each[worst], effect)))) for each in bounds)
        many = f"{int(marks.sum())} of {len(self.starts)} windows"
        apart = f"which differ by up to {render_fraction(noise)} there" if noise else "which are equal"
        goldens = f"the noise of {len(self.pair.golden)} goldens, {apart}"
        if kind is VerdictKind.PASS:
            return f"inside {goldens}: at most {shown}; the limit there is {render_fraction(inside)}"
        if kind is VerdictKind.INCONCLUSIVE:
            return f"{shown}, beyond {goldens}\n{many}; {_TOO_FEW}"
        values = [value for check in self.pair.checks for value in check.values]
        unit = describe_unit(values, self.pair.golden[0].values)
        return f"{shown}, outside {goldens}{self._render_stated(kind)}\nbegins at step {step}; {many}{unit}"

    def describe_bias(self, effect: float, reach: float) -> Finding:
        many, steps = len(self.pair.golden), (float(self.pair.steps[0]), float(self.pair.steps[-1]))
        kind = _find_kind(self.rule, self.pair) if many >= ENOUGH_RECORDINGS else VerdictKind.INCONCLUSIVE
        shown, low, high = (float(self.effects.relative(effect + side * reach)) for side in (0, -1, 1))
        mean = f"{render_bounded(shown, low, high)} in the mean of steps {steps[0]:g} to {steps[1]:g}"
        more = f"\n{_TOO_FEW}" if kind is VerdictKind.INCONCLUSIVE else ""
        message = f"{mean}: a bias, beyond the noise of {many} goldens{self._render_stated(kind)}{more}"
        return Finding(kind, self.pair.subject, message, None, None, steps[0], shown, (low, high), (steps,))

    def _render_stated(self, kind: VerdictKind) -> str:
        stated = f"; within the stated tolerance of {100 * (self.rule.delta or 0):g}%"
        return stated if kind is VerdictKind.CHANGED else ""
