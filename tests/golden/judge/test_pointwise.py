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

CHANGED, ERROR, FAIL, PASS = VerdictKind.CHANGED, VerdictKind.ERROR, VerdictKind.FAIL, VerdictKind.PASS
finite = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e100, max_value=1e100)
margins = st.floats(0, 10)


def judge(operator, margin, expected, tested, texts=((), ())):
    rule = Rule("loss", "margin", operator=operator, margin=margin)
    return judge_segment(rule, segment(track(expected, texts=texts[0])), [run(track(tested, texts=texts[1]))])


@pytest.mark.parametrize(
    ("operator", "margin", "expected", "passing", "failing"),
    [
        ("==", 0.05, 1.0, [0.95, 1.0, 1.05], [0.9499, 1.0501, 2.0, -1.0]),
        ("!=", 0.05, 1.0, [0.9499, 1.0501, 2.0, -1.0], [0.95, 1.0, 1.05]),
        ("<=", 0.05, 1.0, [-5.0, 0.5, 1.0, 1.05], [1.0501, 2.0]),
        (">=", 0.05, 1.0, [0.95, 1.0, 50.0], [0.9499, -1.0]),
        ("<", 0.05, 1.0, [0.5, 0.9999], [1.0, 1.01, 2.0]),  # strict: no margin
        (">", 0.05, 1.0, [1.0001, 2.0], [1.0, 0.99]),
        ("==", 0.05, -1.0, [-1.05, -0.95], [-1.06, -0.94, 1.0]),
        ("<=", 0.05, -1.0, [-0.95, -3.0], [-0.94, 1.0]),  # the margin widens, whatever the sign
        (">=", 0.05, -1.0, [-1.05, 3.0], [-1.06]),
        ("==", 0.5, 0.0, [0.0], [1e-300]),  # zero has no margin
        ("<=", 0.5, 0.0, [-1.0], [1e-300]),
        (">=", 0.5, 0.0, [1.0], [-1e-300]),
        ("!=", 0.5, 0.0, [1e-300], [0.0]),
        ("==", 1.0, 1.0, [2.0], [2.0001, 1e30]),  # a large margin does not accept everything
    ],
)
def test_each_operator_passes_and_still_fails(operator, margin, expected, passing, failing):
    for kind, values in ((PASS, passing), (FAIL, failing)):
        for tested in values:
            assert judge(operator, margin, [expected], [tested]).kind is kind, tested


@pytest.mark.parametrize(
    ("operator", "margin", "expected", "usual", "suspicious"),
    [
        ("<=", 0.05, [2.0, 1.0], [1.9, 0.96], [0.019, 0.0096]),
        ("<=", 0.05, [2.0, 1.0], [2.1, 0.78], [2.1, 0.74]),  # a single step may be far away
        (">=", 0.05, [0.5, 0.87], [0.52, 0.9], [50.0, 87.0]),  # in percent instead of a fraction
        (">", None, [0.5, 0.87], [0.501, 0.871], [50.0, 87.0]),
        ("<=", 0.0, [1e308, 1e308], [1e308, 1e308], [1e306, 1e306]),
    ],
)
def test_what_is_better_by_more_than_the_margin_passes_with_a_note(operator, margin, expected, usual, suspicious):
    for tested, is_noted in ((usual, False), (suspicious, True)):
        (finding,) = judge(operator, margin, expected, tested).findings
        assert (finding.kind, finding.message.startswith("suspiciously better: ")) == (PASS, is_noted)


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
    assert compare("<=", 1.05, 1.0, 0.05, ("about 1.05", "")), "a text that is not a number"
    assert judge("<=", 0.05, [1.0], [1.05], (["1"], [close])).kind is FAIL
    assert judge("<=", 0.05, [1.0], [1.05], (["1"], ["1.05"])).kind is PASS


@given(finite, finite, margins, margins)
def test_the_operators_agree_with_one_another_and_a_wider_margin_accepts_no_less(tested, expected, one, other):
    margin, wide = sorted((one, other))
    for value in (tested, expected, expected * (1 + margin)):
        close = compare("==", value, expected, margin)
        assert close or value != expected
        assert compare("!=", value, expected, margin) is not close
        assert compare("<=", value, expected, margin) == (close or value < expected)
        assert compare(">=", value, expected, margin) == (close or value > expected)
        assert (compare("<", value, expected, margin), compare(">", value, expected, margin)) == (
            value < expected,
            value > expected,
        )
        assert compare("==", value, expected, wide) or not close


@pytest.mark.parametrize("operator", OPERATORS)
def test_what_is_not_finite_passes_under_no_operator(operator):
    for bad in (math.nan, math.inf, -math.inf):
        assert not compare(operator, bad, 1.0, 0.5)
        assert not compare(operator, 1.0, bad, 0.5)
        assert judge(operator, 0.5, [1.0, 1.0], [1.0, bad]).kind is FAIL
        assert judge(operator, 0.5, [1.0, bad], [1.0, 1.0]).kind is ERROR  # a golden that is not finite


@pytest.mark.parametrize(
    ("operator", "margin", "words"),
    [
        ("=>", 0.1, "'=>' is not a comparison; choose one of ==, !=, <=, >=, <, >; did you mean '>='?"),
        ("=<", 0.1, "did you mean '<='?"),
        ("=", 0.1, "did you mean '=='?"),
        ("<>", 0.1, "did you mean '!='?"),
        ("lower", 0.1, "is not a comparison; choose one of ==, !=, <=, >=, <, >"),
        ("", 0.1, "no comparison is given; choose one of ==, !=, <=, >=, <, >"),
        (None, 0.1, "no comparison is given; choose one of ==, !=, <=, >=, <, >"),
        ("<=", -0.1, "a margin of -0.1 is not valid; it is a fraction such as 0.05"),
        ("<=", math.nan, "a margin of nan is not valid; it is a fraction such as 0.05"),
        ("<=", math.inf, "a margin of inf is not valid; it is a fraction such as 0.05"),
        ("<=", None, "no margin is given"),
    ],
)
def test_a_rule_that_makes_no_sense_is_an_error(operator, margin, words):
    assert find_margin_problem(operator, margin).endswith(words)
    verdict = judge(operator, margin, [1.0], [1.0])
    assert verdict.kind is ERROR
    assert words in verdict.findings[0].message


def test_findings_of_a_margin():
    assert judge("<=", 0.2, [1.0, 1.0, 1.0], [1.3]).kind is FAIL, "it failed before it ended"
    (finding,) = judge("<=", 0.05, [1.0] * 5, [1.0, 1.1, 1.0, 1.5, 1.0]).findings
    assert (finding.step, finding.value, finding.expected, finding.effect) == (102, 1.5, 1.0, 0.5)
    assert finding.message == (
        "2 of 5 values are not <= the golden's within 5%; first at step 102: 1.1, expected 1 (+10%); "
        "worst at step 104: +50%"
    )
    (finding,) = judge("<=", 0.05, [1.0, 2.0], [1.5, 3.0]).findings
    assert finding.message.endswith("first at step 101: 1.5, expected 1 (+50%)"), "the same effect is reported once"
    rule = Rule("loss", "margin", operator="<=", margin=0.05)
    verdict = judge_segment(rule, segment([1.0]), [run([1.0]), run([2.0]), run([3.0])])
    assert [finding.kind for finding in verdict.findings] == [PASS, FAIL, FAIL], "every check has its finding"


VALUES = [2.0, 1.5, 1.25, 1.125]


def judge_exactly(golden, *checks):
    return judge_segment(Rule("loss", "exact"), segment(*golden), [run(check) for check in checks])


def test_equal_and_changed_values():
    verdict = judge_exactly([VALUES], VALUES)
    assert (verdict.kind, verdict.comparisons) == (PASS, 4)
    assert verdict.findings[0].message == "4 values are equal bit for bit"
    verdict = judge_exactly([VALUES], [2.0, 1.5, math.nextafter(1.25, 2), 1.5])
    assert verdict.kind is CHANGED
    (finding,) = verdict.findings
    assert (finding.step, finding.value, finding.expected) == (103, 1.5, 1.125)
    assert finding.effect == pytest.approx(1.5 / 1.125 - 1)
    words = "first differs at step 103: 1.2500000000000002, expected 1.25; 2 of 4 values differ, by 33.3%"
    assert words in finding.message
    assert judge_exactly([VALUES], VALUES, [*VALUES[:3], 1.0]).kind is CHANGED, "every check is compared"
    assert len(judge_exactly([VALUES], *[[*VALUES[:3], 1.0]] * 3).findings) == 1, "what three checks show is said once"
    assert judge_exactly([[0.0]], [-0.0]).kind is CHANGED, "the sign of zero counts"
    assert judge_exactly([[0.0]], [0.0]).kind is PASS
    assert judge_exactly([[0.0]], [1e-9]).findings[0].effect == math.inf
    verdict = judge_exactly([VALUES, [2.0, 1.5, 1.25, 1.0]], VALUES)
    assert verdict.kind is ERROR, "a golden that does not repeat itself"
    assert "replicas 1 and 2 differ at step 104" in verdict.findings[0].message
    assert has_equal_replicas([VALUES])
    assert has_equal_replicas([VALUES, list(VALUES)])
    assert not has_equal_replicas([VALUES, VALUES, [2.0, 1.5, 1.25, 1.126]])


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.data())
def test_any_changed_value_is_found(values, data):
    place = data.draw(st.integers(0, len(values) - 1))
    changed = [*values]
    changed[place] = math.nextafter(values[place], math.inf if values[place] < 1e308 else -math.inf)
    assert judge_exactly([values], values).kind is PASS
    verdict = judge_exactly([values], changed)
    assert verdict.kind is CHANGED
    assert verdict.findings[0].step == 101 + place


def test_percentages_in_messages():
    effects = {-0.0: "0%", 0.03: "+3%", -0.0301: "-3.01%", 4.1e-8: "<0.001%", -4.1e-8: "<0.001%"}
    effects |= {1e-5: "+0.001%", math.inf: "+inf%"}
    assert {value: render_effect(value) for value in effects} == effects
    assert render_bounded(0.03, 0.02, 0.04) == "+3% [+2%, +4%]"
    assert render_bounded(0.03, 0.03, 0.03) == "+3%"
    assert render_bounded(0.03, 0.03, 0.031) == "+3% [+3%, +3.1%]"
    assert render_bounded(0.0, 0.0, 0.0) == "0%"
