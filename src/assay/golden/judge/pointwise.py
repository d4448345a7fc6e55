"""The rules that compare value by value: `margin` and `exact`.

`margin`, the rule of the original harness, compares each logged value with the golden's by a fraction of |expected|.

    ==   |t - e| <= margin * |e|        !=   |t - e| > margin * |e|
    <=   t <= e + margin * |e|          >=   t >= e - margin * |e|
    <    t < e                          >    t > e                      (strict: no margin)

The comparison is made on the decimal numbers as they were logged and configured: 0.95 is exactly 5% below 1, though
in binary floating point it is a little more. NaN and infinity pass under no operator.

`exact` compares bit for bit. A difference is CHANGED: other rules decide whether a metric became worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from assay.golden.judge.effects import default_delta
from assay.golden.judge.pairing import Aligned, Pair
from assay.golden.values import OPERATORS, SUSPICIOUSLY_BETTER, Rule, Track
from assay.show.formatting import render_number
from assay.values.verdict import Finding, VerdictKind

_MEANT = {"=<": "<=", "=>": ">=", "=": "==", "≤": "<=", "≥": ">=", "≠": "!=", "<>": "!=", "===": "=="}
CLOSE = 1e-9  # relative distance from the boundary below which decimals decide


_COMPARE: dict[str, Callable[[Any, Any, Any], bool]] = {
    "==": lambda tested, expected, allowed: abs(tested - expected) <= allowed,
    "!=": lambda tested, expected, allowed: abs(tested - expected) > allowed,
    "<=": lambda tested, expected, allowed: tested <= expected + allowed,
    ">=": lambda tested, expected, allowed: tested >= expected - allowed,
    "<": lambda tested, expected, allowed: tested < expected,  # noqa: ARG005
    ">": lambda tested, expected, allowed: tested > expected,  # noqa: ARG005
}
SMALLEST = 1e-5  # smaller effects are shown as <0.001%


def find_margin_problem(operator: str | None, margin: float | None) -> str | None:
    """Return why a comparison is not valid; None if it is valid. Config files are checked before anything runs."""
    if operator not in OPERATORS:
        known = ", ".join(OPERATORS)
        if not operator:
            return f"no comparison is given; choose one of {known}"
        meant = f"; did you mean {_MEANT[operator]!r}?" if operator in _MEANT else ""
        return f"{operator!r} is not a comparison; choose one of {known}{meant}"
    if margin is None:
        return None if operator in ("<", ">") else "no margin is given"
    if not math.isfinite(margin) or margin < 0:
        return f"a margin of {margin:g} is not valid; it is a fraction such as 0.05"
    return None


def compare(operator: str, tested: float, expected: float, margin: float, texts: tuple[str, str] | None = None) -> bool:
    """Whether `tested` passes. `texts`: both numbers as they were logged, tested first."""
    if not (math.isfinite(tested) and math.isfinite(expected)):
        return False
    allowed = margin * abs(expected)
    distance = abs(tested - expected)
    if distance == 0.0 or abs(distance - allowed) <= CLOSE * max(abs(tested), abs(expected)):
        exact_tested, exact_expected = _exact(tested, texts and texts[0]), _exact(expected, texts and texts[1])
        return _COMPARE[operator](exact_tested, exact_expected, _exact(margin, None) * abs(exact_expected))
    return _COMPARE[operator](tested, expected, allowed)


def _exact(value: float, text: str | None) -> Fraction:
    """Return the decimal number that was written; without a text, the shortest decimal that represents the float."""
    try:
        return Fraction(Decimal(text)) if text else Fraction(Decimal(repr(value)))
    except (InvalidOperation, ValueError, OverflowError):
        return Fraction(Decimal(repr(value)))


def judge_margin(rule: Rule, pair: Pair) -> list[Finding]:
    """Return one finding per check: the number of failing steps, the first and the worst of them."""
    if problem := find_margin_problem(rule.operator, rule.margin):
        return [Finding(VerdictKind.ERROR, pair.subject, problem)]
    return list(filter(None, (_judge_check(rule, pair, check) for check in pair.checks)))


def find_failing(rule: Rule, golden: Track, check: Aligned) -> list[int]:
    """Return the indices of values that were logged, are finite and fail."""
    operator, margin = rule.operator or "==", rule.margin or 0.0
    with_texts = len(golden.texts) == len(golden.values) and bool(check.texts)
    texts = list(zip(check.texts, golden.texts, strict=True)) if with_texts else [None] * len(check.values)
    rows = enumerate(zip(check.values, golden.values, texts, strict=True))
    return [index for index, row in rows if math.isfinite(row[0]) and not compare(operator, *row[:2], margin, row[2])]


def _judge_check(rule: Rule, pair: Pair, check: Aligned) -> Finding | None:
    golden = pair.golden[0]
    if failing := find_failing(rule, golden, check):
        return _describe_failing(rule, pair, check, failing)
    if check.gaps or not all(map(math.isfinite, check.values)):
        return None  # missing and invalid values are reported elsewhere, and the metric does not pass
    effects = [measure_relative(tested, expected) for tested, expected in zip(check.values, golden.values, strict=True)]
    largest = max(effects, key=abs)
    message = f"{len(effects)} values {_render_rule(rule)}; the largest difference is {render_effect(largest)}"
    return Finding(VerdictKind.PASS, pair.subject, _describe_better(rule, golden, check) + message, effect=largest)


def _describe_better(rule: Rule, golden: Track, check: Aligned) -> str:
    """Return a note if the mean is better by more than the margin and delta: the unit or metric may be another."""
    operator = rule.operator or "=="
    known, tested = (math.fsum(value / len(each.values) for value in each.values) for each in (golden, check))
    effect = measure_relative(tested, known)
    better = {"<": -effect, ">": effect}.get(operator[0], 0.0)
    if better <= max(rule.margin or 0.0, default_delta(rule)):
        return ""
    return f"{SUSPICIOUSLY_BETTER}{render_effect(effect)}, {tested:.6g} instead of {known:.6g} in the mean\n"


def _describe_failing(rule: Rule, pair: Pair, check: Aligned, failing: list[int]) -> Finding:
    golden = pair.golden[0].values
    first, worst = failing[0], max(failing, key=lambda index: abs(measure_relative(check.values[index], golden[index])))
    effect, at_first = (measure_relative(check.values[at], golden[at]) for at in (worst, first))
    message = (
        f"{len(failing)} of {len(golden)} values are not {_render_rule(rule)}; first at step {pair.steps[first]}: "
        f"{check.values[first]:.6g}, expected {golden[first]:.6g} ({render_effect(at_first)})"
    )
    if render_effect(effect) != render_effect(at_first):
        message += f"; worst at step {pair.steps[worst]}: {render_effect(effect)}"
    both = check.values[worst], golden[worst]
    return Finding(VerdictKind.FAIL, pair.subject, message, *both, pair.steps[first], effect)


def _render_rule(rule: Rule) -> str:
    if rule.operator in ("<", ">"):
        return f"{rule.operator} the golden's"
    return f"{rule.operator} the golden's within {100 * (rule.margin or 0.0):g}%"


def measure_relative(tested: float, expected: float) -> float:
    """Return the relative difference with its sign; infinite if zero was expected."""
    if tested == expected:
        return 0.0
    return (tested - expected) / abs(expected) if expected else math.copysign(math.inf, tested)


def judge_exact(pair: Pair) -> list[Finding]:
    """Return a finding for each check that differs: the first step, the number of values, the largest difference."""
    golden = pair.golden[0].values
    for number, replica in enumerate(pair.golden[1:], 2):
        if (index := _first_difference(golden, replica.values)) is not None:
            message = (
                f"the golden's own replicas 1 and {number} differ at step {pair.steps[index]}: "
                "this program is not reproducible: use the paired rule instead of exact"
            )
            return [Finding(VerdictKind.ERROR, pair.subject, message, step=pair.steps[index])]
    findings = list(filter(None, (_describe_difference(pair, golden, check.values) for check in pair.checks)))
    if findings or not pair.is_whole:
        return findings
    return [Finding(VerdictKind.PASS, pair.subject, f"{pair.compared} values are equal bit for bit", effect=0.0)]


def _first_difference(golden: Sequence[float], other: Sequence[float]) -> int | None:
    return next((index for index, values in enumerate(zip(golden, other, strict=True)) if _differ(*values)), None)


def _differ(one: float, other: float) -> bool:
    """Whether the bits differ, as those of 0.0 and -0.0 do. A missing value is reported elsewhere."""
    return (one != other and not math.isnan(other)) or (one == 0.0 and math.copysign(1, one) != math.copysign(1, other))


def _describe_difference(pair: Pair, golden: Sequence[float], values: Sequence[float]) -> Finding | None:
    if not (indices := [index for index, both in enumerate(zip(golden, values, strict=True)) if _differ(*both)]):
        return None
    first = indices[0]
    worst = max(indices, key=lambda index: abs(measure_relative(values[index], golden[index])))
    effect = measure_relative(values[worst], golden[worst])
    message = (
        f"first differs at step {pair.steps[first]}: {values[first]!r}, expected {golden[first]!r}; "
        f"{len(indices)} of {len(golden)} values differ, by {100 * abs(effect):.3g}% at most"
    )
    return Finding(VerdictKind.CHANGED, pair.subject, message, values[worst], golden[worst], pair.steps[first], effect)


def has_equal_replicas(tracks: Iterable[Sequence[float]]) -> bool:
    """Whether all tracks are equal bit for bit."""
    first, *others = tracks
    return all(_first_difference(first, other) is None for other in others)


def render_effect(value: float, digits: int = 3) -> str:
    """Render a relative effect as `+3.02%`, `0%` or `<0.001%`."""
    if value == 0:
        return "0%"
    if abs(value) < SMALLEST:
        return "<0.001%"
    return f"{'+' if value > 0 else '-'}{render_number(abs(100.0 * value), digits)}%"


def render_fraction(value: float) -> str:
    """Render a fraction as `0.004%`, without a sign; a small fraction as `2e-06%`."""
    return f"{100 * value:{'.2g' if value < 1 else '.0f'}}%"


def render_bounded(value: float, low: float, high: float, digits: int = 3) -> str:
    """Render an effect as `+3.02% [+2.9%, +3.1%]`; the bounds only if they differ from the value."""
    shown, *around = (render_effect(each, digits) for each in (value, low, high))
    return shown if set(around) == {shown} else f"{shown} [{', '.join(around)}]"
