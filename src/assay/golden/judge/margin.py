"""The original's rule: each logged value against the golden's, with a margin that is a proportion of |expected|.

    ==   |t - e| <= margin * |e|        !=   |t - e| > margin * |e|
    <=   t <= e + margin * |e|          >=   t >= e - margin * |e|
    <    t < e                          >    t > e                      (strict: no margin)

The comparison is made on the decimal numbers as they were logged and configured: 0.95 is exactly 5% below 1, though
in binary floating point it is a little more. NaN and infinity pass under no operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, get_args

from assay.golden.judge.pairing import Aligned, Pair
from assay.golden.judge.wording import render_effect
from assay.golden.values import Operator, Rule, Track
from assay.values.verdict import Finding, VerdictKind

OPERATORS: tuple[str, ...] = get_args(Operator)
_MEANT = {"=<": "<=", "=>": ">=", "=": "==", "≤": "<=", "≥": ">=", "≠": "!=", "<>": "!=", "===": "=="}
CLOSE = 1e-9  # nearer to the boundary than this (relative), decimals decide


_COMPARE: dict[str, Callable[[Any, Any, Any], bool]] = {
    "==": lambda tested, expected, allowed: abs(tested - expected) <= allowed,
    "!=": lambda tested, expected, allowed: abs(tested - expected) > allowed,
    "<=": lambda tested, expected, allowed: tested <= expected + allowed,
    ">=": lambda tested, expected, allowed: tested >= expected - allowed,
    "<": lambda tested, expected, allowed: tested < expected,  # noqa: ARG005
    ">": lambda tested, expected, allowed: tested > expected,  # noqa: ARG005
}


def find_rule_problem(operator: str | None, margin: float | None) -> str | None:
    """Why these cannot be compared with; config files ask this too, so that nobody waits for a run to learn it."""
    if operator not in OPERATORS:
        known = ", ".join(OPERATORS)
        if not operator:
            return f"no comparison is given; choose one of {known}"
        meant = f"; did you mean {_MEANT[operator]!r}?" if operator in _MEANT else ""
        return f"{operator!r} is no comparison; choose one of {known}{meant}"
    if margin is None:
        return None if operator in ("<", ">") else "no margin is given"
    if not math.isfinite(margin) or margin < 0:
        return f"a margin of {margin:g} makes no sense; it is a proportion such as 0.05"
    return None


def compare(operator: str, tested: float, expected: float, margin: float, texts: tuple[str, str] | None = None) -> bool:
    """Whether `tested` passes. `texts`: both numbers as they were logged, tested first."""
    if not (math.isfinite(tested) and math.isfinite(expected)):
        return False
    allowed = margin * abs(expected)
    if _is_close_call(tested, expected, allowed):
        exact_tested, exact_expected = _exact(tested, texts and texts[0]), _exact(expected, texts and texts[1])
        return _COMPARE[operator](exact_tested, exact_expected, _exact(margin, None) * abs(exact_expected))
    return _COMPARE[operator](tested, expected, allowed)


def _is_close_call(tested: float, expected: float, allowed: float) -> bool:
    distance = abs(tested - expected)
    return distance == 0.0 or abs(distance - allowed) <= CLOSE * max(abs(tested), abs(expected))


def _exact(value: float, text: str | None) -> Fraction:
    """The decimal number that was written; the shortest one that stands for the float where no text is known."""
    try:
        return Fraction(Decimal(text)) if text else Fraction(Decimal(repr(value)))
    except (InvalidOperation, ValueError, OverflowError):
        return Fraction(Decimal(repr(value)))


# ---------------------------------------------------------------- a whole track


def judge_margin(rule: Rule, pair: Pair) -> list[Finding]:
    """One finding per check: how many steps fail, the first and the worst of them."""
    problem = find_rule_problem(rule.operator, rule.margin)
    if problem:
        return [Finding(VerdictKind.ERROR, pair.subject, problem)]
    findings = [_judge_check(rule, pair, check) for check in pair.checks]
    return [finding for finding in findings if finding]


def find_failing(rule: Rule, golden: Track, check: Aligned) -> list[int]:
    """The places where a value that was logged and is finite fails."""
    operator, margin = rule.operator or "==", rule.margin or 0.0
    with_texts = len(golden.texts) == len(golden.values) and bool(check.texts)
    return [
        place
        for place, (tested, expected) in enumerate(zip(check.values, golden.values, strict=True))
        if math.isfinite(tested)
        and not compare(
            operator, tested, expected, margin, (check.texts[place], golden.texts[place]) if with_texts else None
        )
    ]


def _judge_check(rule: Rule, pair: Pair, check: Aligned) -> Finding | None:
    golden = pair.golden[0]
    failing = find_failing(rule, golden, check)
    if failing:
        return _describe_failing(rule, pair, check, failing)
    if check.gaps or not all(map(math.isfinite, check.values)):
        return None  # what is missing or not finite has been said; the rest must not look like a pass
    effects = [_effect(tested, expected) for tested, expected in zip(check.values, golden.values, strict=True)]
    largest = max(effects, key=abs)
    message = f"{len(effects)} values {_words(rule)}; the largest difference is {render_effect(largest)}"
    return Finding(VerdictKind.PASS, pair.subject, message, effect=largest)


def _describe_failing(rule: Rule, pair: Pair, check: Aligned, failing: list[int]) -> Finding:
    golden = pair.golden[0].values
    first, worst = failing[0], max(failing, key=lambda place: abs(_effect(check.values[place], golden[place])))
    effect, at_first = _effect(check.values[worst], golden[worst]), _effect(check.values[first], golden[first])
    message = (
        f"{len(failing)} of {len(golden)} values are not {_words(rule)}; first at step {pair.steps[first]}: "
        f"{check.values[first]:.6g}, expected {golden[first]:.6g} ({render_effect(at_first)})"
    )
    if render_effect(effect) != render_effect(at_first):
        message += f"; worst at step {pair.steps[worst]}: {render_effect(effect)}"
    return Finding(
        VerdictKind.FAIL, pair.subject, message, check.values[worst], golden[worst], pair.steps[first], effect
    )


def _words(rule: Rule) -> str:
    if rule.operator in ("<", ">"):
        return f"{rule.operator} the golden's"
    return f"{rule.operator} the golden's within {100 * (rule.margin or 0.0):g}%"


def _effect(tested: float, expected: float) -> float:
    if tested == expected:
        return 0.0
    return (tested - expected) / abs(expected) if expected else math.copysign(math.inf, tested)
