from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden.judge.curves import run, segment, track

from assay.golden.judge.convergence import judge_segment
from assay.golden.judge.pointwise import (
    OPERATORS,
    compare,
    find_margin_problem,
    has_equal_replicas,
    render_bounded,
    render_effect,
)
from assay.golden.values import Rule
from assay.values.verdict import VerdictKind

finite = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e100, max_value=1e100)
margins = st.floats(0, 10)


def judge(operator, margin, expected, tested, texts=((), ())):
    rule = Rule("loss", "margin", operator=operator, margin=margin)
    return judge_segment(rule, segment(track(expected, texts=texts[0])), [run(track(tested, texts=texts[1]))])


# ---------------------------------------------------------------- the operators


@pytest.mark.parametrize(
    ("operator", "passing", "failing"),
    [
        ("==", [0.95, 1.0, 1.05], [0.9499, 1.0501, 2.0, -1.0]),
        ("!=", [0.9499, 1.0501, 2.0, -1.0], [0.95, 1.0, 1.05]),
        ("<=", [-5.0, 0.5, 1.0, 1.05], [1.0501, 2.0]),
        (">=", [0.95, 1.0, 50.0], [0.9499, -1.0]),
        ("<", [0.5, 0.9999], [1.0, 1.01, 2.0]),  # strict: no margin
        (">", [1.0001, 2.0], [1.0, 0.99]),
    ],
)
def test_each_operator_passes_and_still_fails(operator, passing, failing):
    for tested in passing:
        assert judge(operator, 0.05, [1.0], [tested]).kind is VerdictKind.PASS, tested
    for tested in failing:
        assert judge(operator, 0.05, [1.0], [tested]).kind is VerdictKind.FAIL, tested


@pytest.mark.parametrize(
    ("operator", "passing", "failing"),
    [
        ("==", [-1.05, -0.95], [-1.06, -0.94, 1.0]),
        ("<=", [-0.95, -3.0], [-0.94, 1.0]),  # the margin widens, whatever the sign
        (">=", [-1.05, 3.0], [-1.06]),
    ],
)
def test_the_margin_of_a_negative_value_is_a_share_of_its_size(operator, passing, failing):
    for tested in passing:
        assert judge(operator, 0.05, [-1.0], [tested]).kind is VerdictKind.PASS, tested
    for tested in failing:
        assert judge(operator, 0.05, [-1.0], [tested]).kind is VerdictKind.FAIL, tested


@pytest.mark.parametrize(
    ("operator", "tested", "kind"),
    [
        ("==", 0.0, VerdictKind.PASS),
        ("==", 1e-300, VerdictKind.FAIL),
        ("<=", 1e-300, VerdictKind.FAIL),
        ("<=", -1.0, VerdictKind.PASS),
        (">=", -1e-300, VerdictKind.FAIL),
        ("!=", 0.0, VerdictKind.FAIL),
        ("!=", 1e-300, VerdictKind.PASS),
    ],
)
def test_zero_has_no_margin(operator, tested, kind):
    assert judge(operator, 0.5, [0.0], [tested]).kind is kind


def test_a_large_margin_does_not_accept_everything():
    assert judge("==", 1.0, [1.0], [2.0]).kind is VerdictKind.PASS
    assert judge("==", 1.0, [1.0], [2.0001]).kind is VerdictKind.FAIL
    assert judge("==", 1.0, [1.0], [1e30]).kind is VerdictKind.FAIL


def test_improvement_passes_where_the_operator_allows_it():
    assert judge("<=", 0.05, [1.0, 1.0], [0.1, 0.01]).kind is VerdictKind.PASS
    assert judge(">=", 0.05, [1.0, 1.0], [10.0, 100.0]).kind is VerdictKind.PASS


# ---------------------------------------------------------------- decimals


@pytest.mark.parametrize(
    ("expected", "margin", "edge", "beyond"),
    [
        (1.0, 0.05, 0.95, 0.94999999999999),
        (1.0, 0.1, 1.1, 1.1000000000001),
        (0.3, 0.1, 0.33, 0.3300000000001),
        (9.742, 0.2, 11.6904, 11.6904000001),
        (1e-4, 0.05, 1.05e-4, 1.0500001e-4),
    ],
)
def test_the_edge_is_where_decimals_put_it(expected, margin, edge, beyond):
    assert compare("==", edge, expected, margin)
    assert not compare("==", beyond, expected, margin)


def test_what_was_logged_decides_where_floats_cannot():
    close = "1.05000000000000000000001"
    assert float(close) == 1.05
    assert compare("<=", 1.05, 1.0, 0.05)
    assert not compare("<=", 1.05, 1.0, 0.05, (close, "1.0"))
    assert judge("<=", 0.05, [1.0], [1.05], (["1"], [close])).kind is VerdictKind.FAIL
    assert judge("<=", 0.05, [1.0], [1.05], (["1"], ["1.05"])).kind is VerdictKind.PASS


def test_a_text_that_is_no_number_falls_back_to_the_value():
    assert compare("<=", 1.05, 1.0, 0.05, ("about 1.05", ""))


@given(finite, margins)
def test_a_value_equals_itself_under_every_margin(value, margin):
    assert compare("==", value, value, margin)
    assert compare("<=", value, value, margin)
    assert compare(">=", value, value, margin)
    assert not compare("!=", value, value, margin)
    assert not compare("<", value, value, margin)
    assert not compare(">", value, value, margin)


@given(finite, finite, margins)
def test_the_operators_agree_with_one_another(tested, expected, margin):
    close = compare("==", tested, expected, margin)
    assert compare("!=", tested, expected, margin) is not close
    assert compare("<=", tested, expected, margin) == (close or tested < expected)
    assert compare(">=", tested, expected, margin) == (close or tested > expected)


@given(finite, st.floats(-1, 1), margins, margins)
def test_a_wider_margin_accepts_no_less(expected, share, one, other):
    narrow, wide = sorted((one, other))
    tested = expected + share * expected
    assert compare("==", tested, expected, wide) or not compare("==", tested, expected, narrow)


# ---------------------------------------------------------------- what never passes


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_passes_under_no_operator(operator, bad):
    assert not compare(operator, bad, 1.0, 0.5)
    assert not compare(operator, 1.0, bad, 0.5)
    assert judge(operator, 0.5, [1.0, 1.0], [1.0, bad]).kind is VerdictKind.FAIL
    assert judge(operator, 0.5, [1.0, bad], [1.0, 1.0]).kind is VerdictKind.ERROR  # a golden that is not finite


@pytest.mark.parametrize(
    ("operator", "margin", "words"),
    [
        ("=>", 0.1, "'=>' is not a comparison; choose one of ==, !=, <=, >=, <, >"),
        ("lower", 0.1, "is not a comparison"),
        ("~", 0.1, "is not a comparison"),
        ("", 0.1, "no comparison is given"),
        (None, 0.1, "no comparison is given"),
        ("<=", -0.1, "a margin of -0.1 is not valid"),
        ("<=", math.nan, "a margin of nan is not valid"),
        ("<=", math.inf, "a margin of inf is not valid"),
        ("<=", None, "no margin is given"),
    ],
)
def test_a_rule_that_makes_no_sense_is_an_error(operator, margin, words):
    assert words in find_margin_problem(operator, margin)
    verdict = judge(operator, margin, [1.0], [1.0])
    assert verdict.kind is VerdictKind.ERROR
    assert words in verdict.findings[0].message


@pytest.mark.parametrize(("operator", "margin"), [("<", None), (">", None), ("==", 0.0), ("<=", 0.2)])
def test_rules_that_do_make_sense(operator, margin):
    assert find_margin_problem(operator, margin) is None


def test_a_check_that_failed_before_it_ended_is_a_failure():
    assert judge("<=", 0.2, [1.0, 1.0, 1.0], [1.3]).kind is VerdictKind.FAIL


# ---------------------------------------------------------------- messages


def test_a_finding_names_the_first_and_the_worst_step():
    (finding,) = judge("<=", 0.05, [1.0] * 5, [1.0, 1.1, 1.0, 1.5, 1.0]).findings
    assert (finding.step, finding.value, finding.expected, finding.effect) == (102, 1.5, 1.0, 0.5)
    assert finding.message == (
        "2 of 5 values are not <= the golden's within 5%; first at step 102: 1.1, expected 1 (+10%); "
        "worst at step 104: +50%"
    )


def test_the_same_effect_is_not_reported_twice():
    (finding,) = judge("<=", 0.05, [1.0, 2.0], [1.5, 3.0]).findings
    assert finding.message.endswith("first at step 101: 1.5, expected 1 (+50%)")


@pytest.mark.parametrize(("wrong", "meant"), [("=<", "<="), ("=>", ">="), ("=", "=="), ("<>", "!=")])
def test_a_comparison_that_is_written_backwards_is_understood(wrong, meant):
    assert find_margin_problem(wrong, 0.1).endswith(f"did you mean {meant!r}?")
    assert "did you mean" not in find_margin_problem("~", 0.1)


def test_every_check_has_its_finding():
    rule = Rule("loss", "margin", operator="<=", margin=0.05)
    verdict = judge_segment(rule, segment([1.0]), [run([1.0]), run([2.0]), run([3.0])])
    assert [finding.kind for finding in verdict.findings] == [VerdictKind.PASS, VerdictKind.FAIL, VerdictKind.FAIL]


# ---------------------------------------------------------------- bit for bit

EXACT = Rule("loss", "exact")
VALUES = [2.0, 1.5, 1.25, 1.125]


def judge_exactly(golden, *checks, rule=EXACT):
    return judge_segment(rule, segment(*golden), [run(check) for check in checks])


def test_equal_values_pass():
    verdict = judge_exactly([VALUES], VALUES)
    assert verdict.kind is VerdictKind.PASS
    assert verdict.comparisons == 4
    assert verdict.findings[0].message == "4 values are equal bit for bit"


def test_the_smallest_difference_is_found_with_its_step():
    changed = [2.0, 1.5, math.nextafter(1.25, 2), 1.5]
    verdict = judge_exactly([VALUES], changed)
    assert verdict.kind is VerdictKind.CHANGED
    (finding,) = verdict.findings
    assert (finding.step, finding.value, finding.expected) == (103, 1.5, 1.125)
    assert finding.effect == pytest.approx(1.5 / 1.125 - 1)
    assert (
        "first differs at step 103: 1.2500000000000002, expected 1.25; 2 of 4 values differ, by 33.3%"
        in finding.message
    )


def test_every_check_is_compared():
    assert judge_exactly([VALUES], VALUES, [*VALUES[:3], 1.0]).kind is VerdictKind.CHANGED


def test_the_sign_of_zero_counts():
    assert judge_exactly([[0.0]], [-0.0]).kind is VerdictKind.CHANGED
    assert judge_exactly([[0.0]], [0.0]).kind is VerdictKind.PASS


def test_from_zero_the_difference_is_infinite():
    assert judge_exactly([[0.0]], [1e-9]).findings[0].effect == math.inf


def test_a_golden_that_does_not_repeat_itself_is_an_error():
    verdict = judge_exactly([VALUES, [2.0, 1.5, 1.25, 1.0]], VALUES)
    assert verdict.kind is VerdictKind.ERROR
    assert "replicas 1 and 2 differ at step 104" in verdict.findings[0].message


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.data())
def test_any_changed_value_is_found(values, data):
    place = data.draw(st.integers(0, len(values) - 1))
    changed = [*values]
    changed[place] = math.nextafter(values[place], math.inf if values[place] < 1e308 else -math.inf)
    assert judge_exactly([values], values).kind is VerdictKind.PASS
    verdict = judge_exactly([values], changed)
    assert verdict.kind is VerdictKind.CHANGED
    assert verdict.findings[0].step == 101 + place


def test_equal_replicas():
    assert has_equal_replicas([VALUES])
    assert has_equal_replicas([VALUES, list(VALUES)])
    assert not has_equal_replicas([VALUES, VALUES, [2.0, 1.5, 1.25, 1.126]])


# ---------------------------------------------------------------- percentages in messages


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0%"),
        (-0.0, "0%"),
        (0.03, "+3%"),
        (-0.0301, "-3.01%"),
        (4.1e-8, "<0.001%"),
        (-4.1e-8, "<0.001%"),
        (1e-5, "+0.001%"),
        (math.inf, "+inf%"),
    ],
)
def test_an_effect_as_text(value, text):
    assert render_effect(value) == text


def test_bounds_are_reported_where_they_differ():
    assert render_bounded(0.03, 0.02, 0.04) == "+3% [+2%, +4%]"
    assert render_bounded(0.03, 0.03, 0.03) == "+3%"
    assert render_bounded(0.03, 0.03, 0.031) == "+3% [+3%, +3.1%]"
    assert render_bounded(0.0, 0.0, 0.0) == "0%"
