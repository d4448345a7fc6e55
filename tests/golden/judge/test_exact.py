from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden.judge.curves import run, segment

from assay.golden.judge.convergence import judge_segment
from assay.golden.judge.exact import has_equal_replicas
from assay.golden.values import Rule
from assay.values.verdict import VerdictKind

RULE = Rule("loss", "exact")
VALUES = [2.0, 1.5, 1.25, 1.125]


def judge(golden, *checks, rule=RULE):
    return judge_segment(rule, segment(*golden), [run(check) for check in checks])


def test_equal_values_pass():
    verdict = judge([VALUES], VALUES)
    assert verdict.kind is VerdictKind.PASS
    assert verdict.comparisons == 4
    assert verdict.findings[0].message == "4 values are equal bit for bit"


def test_the_smallest_difference_is_found_with_its_step():
    changed = [2.0, 1.5, math.nextafter(1.25, 2), 1.5]
    verdict = judge([VALUES], changed)
    assert verdict.kind is VerdictKind.CHANGED
    (finding,) = verdict.findings
    assert (finding.step, finding.value, finding.expected) == (103, 1.5, 1.125)
    assert finding.effect == pytest.approx(1.5 / 1.125 - 1)
    assert (
        "first differs at step 103: 1.2500000000000002, expected 1.25; 2 of 4 values differ, by 33.3%"
        in finding.message
    )


def test_every_check_is_compared():
    assert judge([VALUES], VALUES, [*VALUES[:3], 1.0]).kind is VerdictKind.CHANGED


def test_the_sign_of_zero_counts():
    assert judge([[0.0]], [-0.0]).kind is VerdictKind.CHANGED
    assert judge([[0.0]], [0.0]).kind is VerdictKind.PASS


def test_from_zero_the_difference_is_infinite():
    assert judge([[0.0]], [1e-9]).findings[0].effect == math.inf


def test_a_golden_that_does_not_repeat_itself_is_an_error():
    verdict = judge([VALUES, [2.0, 1.5, 1.25, 1.0]], VALUES)
    assert verdict.kind is VerdictKind.ERROR
    assert "replicas 1 and 2 differ at step 104" in verdict.findings[0].message


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_fail(bad):
    verdict = judge([VALUES], [2.0, bad, 1.25, 1.125])
    assert verdict.kind is VerdictKind.FAIL
    assert verdict.findings[0].step == 102


def test_a_check_that_ends_early_does_not_pass():
    verdict = judge([VALUES], VALUES[:3])
    assert verdict.kind is VerdictKind.ERROR
    assert not any(finding.kind is VerdictKind.PASS for finding in verdict.findings)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.data())
def test_any_changed_value_is_found(values, data):
    place = data.draw(st.integers(0, len(values) - 1))
    changed = [*values]
    changed[place] = math.nextafter(values[place], math.inf if values[place] < 1e308 else -math.inf)
    assert judge([values], values).kind is VerdictKind.PASS
    verdict = judge([values], changed)
    assert verdict.kind is VerdictKind.CHANGED
    assert verdict.findings[0].step == 101 + place


def test_equal_replicas():
    assert has_equal_replicas([VALUES])
    assert has_equal_replicas([VALUES, list(VALUES)])
    assert not has_equal_replicas([VALUES, VALUES, [2.0, 1.5, 1.25, 1.126]])
