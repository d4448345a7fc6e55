from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.judge.bounds import direction_of_check, judge_checks
from assay.values.series import Summary
from assay.values.study import Check
from assay.values.verdict import VerdictKind


def summary(metric="loss", *, last=0.5, low=0.25, high=2.0, mean=1.0, count=10, bad=0):
    return Summary(metric, count, last, 9.0, low, 7.0, high, 0.0, mean, bad)


def judge(check, **values):
    return judge_checks([check], "run-1", {check.metric: summary(check.metric, **values)})


@pytest.mark.parametrize(
    ("check", "kind"),
    [
        (Check("loss", max=0.5), VerdictKind.PASS),  # bounds are inclusive
        (Check("loss", max=0.49), VerdictKind.FAIL),
        (Check("loss", min=0.5), VerdictKind.PASS),
        (Check("loss", min=0.51), VerdictKind.FAIL),
        (Check("loss", min=0.4, max=0.6), VerdictKind.PASS),
        (Check("loss", min=0.6, max=0.7), VerdictKind.FAIL),
        (Check("loss", "min", max=0.3), VerdictKind.PASS),
        (Check("loss", "min", max=0.2), VerdictKind.FAIL),
        (Check("loss", "max", max=2.0), VerdictKind.PASS),
        (Check("loss", "max", max=1.9), VerdictKind.FAIL),
        (Check("loss", "mean", max=1.0), VerdictKind.PASS),
        (Check("loss", "mean", max=0.9), VerdictKind.FAIL),
        (Check("loss", "best", max=0.3), VerdictKind.PASS),  # best of a loss is its smallest
        (Check("loss", "best", max=0.2), VerdictKind.FAIL),
        (Check("acc", "best", min=1.9), VerdictKind.PASS),  # best of an accuracy is its largest
        (Check("acc", "best", min=2.1), VerdictKind.FAIL),
        (Check("acc", "best", min=1.9, max=2.1), VerdictKind.PASS),  # both bounds: by its name
        (Check("loss", "best", min=0.2, max=0.3), VerdictKind.PASS),
    ],
)
def test_bounds_pass_and_still_fail_on_bad_data(check, kind):
    verdict = judge(check)
    assert verdict.kind is kind
    assert verdict.comparisons == 1


def test_a_finding_carries_its_numbers():
    (finding,) = judge(Check("loss", max=0.4)).findings
    assert (finding.subject, finding.value, finding.expected, finding.step) == ("run-1 loss", 0.5, 0.4, 9.0)
    assert finding.message == "last value 0.5 is above 0.4"
    (finding,) = judge(Check("acc", "best", min=3)).findings
    assert finding.message == "best (max) value 2 is below 3"
    assert (finding.value, finding.step) == (2.0, 0.0)
    (finding,) = judge(Check("loss", min=0, max=1)).findings
    assert finding.message == "last value 0.5 is within 0 and 1"


def test_a_missing_metric_is_an_error_with_a_suggestion():
    verdict = judge_checks([Check("test.acuracy", min=0.9)], "r", {"test.accuracy": summary("test.accuracy")})
    assert verdict.kind is VerdictKind.ERROR
    assert verdict.comparisons == 0
    assert "did you mean 'test.accuracy'?" in verdict.findings[0].message
    assert judge_checks([Check("x", min=1)], "r", {}).kind is VerdictKind.ERROR


@pytest.mark.parametrize("at", ["last", "best", "min", "max", "mean"])
def test_nan_and_infinity_never_pass(at):
    for value in (math.nan, math.inf, -math.inf):
        for check in (Check("loss", at, max=1e9), Check("loss", at, min=-1e9)):
            assert judge(check, last=value, low=value, high=value, mean=value).kind is VerdictKind.FAIL
    verdict = judge(Check("loss", max=1.0), bad=3)
    assert verdict.kind is VerdictKind.FAIL
    assert "3 of 10 values are NaN or infinite" in verdict.findings[0].message


def test_nothing_to_compare_is_an_error():
    assert judge(Check("loss", max=9), count=0).kind is VerdictKind.ERROR
    assert judge(Check("loss")).kind is VerdictKind.ERROR
    assert judge(Check("loss", max=math.nan)).kind is VerdictKind.ERROR
    assert judge_checks([], "r", {"loss": summary()}).kind is VerdictKind.ERROR


def test_the_worst_finding_decides_and_all_are_kept():
    checks = [Check("loss", max=1.0), Check("loss", max=0.1), Check("gone", max=1.0)]
    verdict = judge_checks(checks, "r", {"loss": summary()})
    assert [finding.kind for finding in verdict.findings] == [VerdictKind.PASS, VerdictKind.FAIL, VerdictKind.ERROR]
    assert verdict.kind is VerdictKind.ERROR
    assert verdict.comparisons == 2


def test_direction_of_a_check():
    assert direction_of_check(Check("acc", "best", max=1)) == "min"
    assert direction_of_check(Check("loss", "best", min=1)) == "max"
    assert direction_of_check(Check("loss", "best", min=1, max=2)) == "min"


@given(st.floats(), st.floats(), st.floats())
def test_pass_means_inside_the_bounds(value, low, high):
    verdict = judge(Check("loss", min=low, max=high), last=value)
    assert (verdict.kind is VerdictKind.PASS) == (math.isfinite(value) and low <= value <= high)
