"""Whatever does not fit together is reported, and never passes: under every kind of rule."""

from __future__ import annotations

import math

import pytest
from tests.golden.judge.curves import run, segment, track

from assay.golden.judge.convergence import judge_segment
from assay.golden.judge.pairing import find_labels, line_up
from assay.golden.values import Rule, Segment, Track
from assay.values.verdict import VerdictKind

VALUES = [2.0, 1.5, 1.25, 1.125, 1.0, 0.9]
RULES = [
    Rule("loss", "exact"),
    Rule("loss", "paired"),
    Rule("loss", "unmatched"),
    Rule("loss", "margin", operator="<=", margin=0.5),
]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)


def judge(rule, golden, *checks):
    return judge_segment(rule, golden, checks)


def replicas(*tracks):
    return segment(*(tracks or (VALUES, VALUES, VALUES)))


def has_message(verdict, words):
    return any(words in finding.message for finding in verdict.findings if finding.kind is not VerdictKind.PASS)


@every_rule
def test_what_fits_passes(rule):
    assert judge(rule, replicas(), run(VALUES)).kind is VerdictKind.PASS


# ---------------------------------------------------------------- missing things


@every_rule
def test_no_check_at_all_is_an_error(rule):
    verdict = judge(rule, replicas())
    assert verdict.kind is VerdictKind.ERROR
    assert has_message(verdict, "no run checked this segment")


@every_rule
def test_a_metric_that_the_golden_lacks_is_an_error(rule):
    verdict = judge(rule, segment(VALUES, metric="losses"), run(VALUES))
    assert verdict.kind is VerdictKind.ERROR
    assert has_message(verdict, "the golden has no loss; did you mean 'losses'?")


@every_rule
def test_a_metric_that_the_check_lacks_is_an_error(rule):
    verdict = judge(rule, replicas(), {"accuracy": {"": track(VALUES)}})
    assert verdict.kind is VerdictKind.ERROR
    assert has_message(verdict, "the check has no loss")


@every_rule
def test_one_of_several_checks_without_the_metric_is_an_error(rule):
    assert judge(rule, replicas(), run(VALUES), {}).kind is VerdictKind.ERROR


@every_rule
def test_a_golden_without_values_is_an_error(rule):
    for golden in (segment([]), Segment(100, "c", {"loss": {"": ()}}), Segment(100, "c", {"loss": {}})):
        assert judge(rule, golden, run(VALUES)).kind is VerdictKind.ERROR


@every_rule
@pytest.mark.parametrize("kept", range(6))
def test_a_check_that_ends_early_is_an_error(rule, kept):
    verdict = judge(rule, replicas(), run(VALUES[:kept]))
    assert verdict.kind is VerdictKind.ERROR
    assert has_message(verdict, f"{6 - kept} of 6 steps are missing" if kept else "none of the golden's 6 steps")
    assert not any(finding.kind is VerdictKind.PASS for finding in verdict.findings)


@every_rule
def test_a_hole_is_an_error(rule):
    holed = Track((101, 102, 104, 105, 106), (2.0, 1.5, 1.125, 1.0, 0.9))
    verdict = judge(rule, replicas(), run(holed))
    assert verdict.kind is VerdictKind.ERROR
    assert has_message(verdict, "no value at step 103: 1 of 6 steps are missing")


@every_rule
def test_other_steps_are_an_error(rule):
    assert judge(rule, replicas(), run(Track((1, 2), (2.0, 1.5)))).kind is VerdictKind.ERROR


@every_rule
def test_further_steps_of_the_check_are_ignored(rule):
    longer = Track((100, *range(101, 109)), (9.0, *VALUES, 9.0, 9.0))
    verdict = judge(rule, replicas(), run(longer))
    assert verdict.kind is VerdictKind.PASS
    assert verdict.comparisons == 6


# ---------------------------------------------------------------- disorder


@every_rule
@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((101, 102, 102, 104, 105, 106), "step 102 was logged twice"),
        ((101, 103, 102, 104, 105, 106), "step 102 was logged after step 103"),
    ],
)
def test_disorder_is_an_error_on_both_sides(rule, steps, words):
    odd = Track(steps, tuple(VALUES))
    for verdict in (
        judge(rule, replicas(), run(odd)),
        judge(rule, replicas(odd, odd, odd), run(VALUES)),
    ):
        assert verdict.kind is VerdictKind.ERROR
        assert has_message(verdict, words)


@every_rule
def test_replicas_of_other_steps_are_an_error(rule):
    verdict = judge(rule, replicas(VALUES, VALUES, VALUES[:5]), run(VALUES))
    assert verdict.kind is VerdictKind.ERROR
    assert has_message(verdict, "replicas 1 and 3 have different steps")


# ---------------------------------------------------------------- not finite


@every_rule
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 3, 5])
def test_a_check_that_is_not_finite_fails_with_its_step(rule, bad, place):
    values = [*VALUES]
    values[place] = bad
    verdict = judge(rule, replicas(), run(values))
    assert verdict.kind is VerdictKind.FAIL
    assert has_message(verdict, f"the check is {bad:g} at step {101 + place}")


@every_rule
def test_nan_beyond_the_golden_s_steps_fails_too(rule):
    longer = Track(tuple(range(101, 108)), (*VALUES, math.nan))
    assert judge(rule, replicas(), run(longer)).kind is VerdictKind.FAIL


@every_rule
def test_all_nan_fails(rule):
    verdict = judge(rule, replicas(), run([math.nan] * 6))
    assert verdict.kind is VerdictKind.FAIL
    assert has_message(verdict, "and 5 later values")


@every_rule
def test_a_golden_that_is_not_finite_is_an_error(rule):
    verdict = judge(rule, replicas(VALUES, VALUES, [*VALUES[:5], math.nan]), run(VALUES))
    assert verdict.kind is VerdictKind.ERROR
    assert has_message(verdict, "not finite at step 106 (replica 3): gather again")


# ---------------------------------------------------------------- labels


def labelled(*labels, count=3):
    return Segment(100, "c", {"loss": {label: (track(VALUES),) * count for label in labels}})


def check_of(*labels):
    return {"loss": {label: track(VALUES) for label in labels}}


@every_rule
@pytest.mark.parametrize("found", [("MLM",), ("MLM", "NSP", "more"), ("0", "1"), ("mlm", "nsp")])
def test_other_labels_fail(rule, found):
    verdict = judge(rule, labelled("MLM", "NSP"), check_of(*found))
    assert verdict.kind is VerdictKind.FAIL
    assert has_message(verdict, "the golden has the labels 'MLM', 'NSP', the check has ")


@every_rule
def test_the_same_labels_pass_and_each_is_compared(rule):
    verdict = judge(rule, labelled("MLM", "NSP"), check_of("NSP", "MLM"))
    assert verdict.kind is VerdictKind.PASS
    assert verdict.comparisons == 12
    assert verdict.findings[0].subject.startswith("segment at 100: loss MLM")


def test_one_bad_label_fails_the_metric():
    check = {"loss": {"MLM": track(VALUES), "NSP": track([9.0] * 6)}}
    verdict = judge(RULES[3], labelled("MLM", "NSP"), check)
    assert verdict.kind is VerdictKind.FAIL
    assert {finding.kind for finding in verdict.findings} == {VerdictKind.PASS, VerdictKind.FAIL}
    assert {found.label for found in verdict.findings} == {"MLM", "NSP"}
    assert {found.label for found in verdict.findings if found.kind is VerdictKind.FAIL} == {"NSP"}


def test_a_rule_can_choose_its_labels():
    rule = Rule("loss", "margin", operator="<=", margin=0.5, labels=("MLM",))
    check = {"loss": {"MLM": track(VALUES), "NSP": track([9.0] * 6)}}
    assert judge(rule, labelled("MLM", "NSP"), check).kind is VerdictKind.PASS
    assert judge(rule, labelled("MLM", "NSP"), check_of("NSP")).kind is VerdictKind.FAIL
    verdict = judge(rule, labelled("NSP"), check_of("NSP"))
    assert verdict.kind is VerdictKind.ERROR
    assert has_message(verdict, "the golden has no label 'MLM'; it has 'NSP'")


# ---------------------------------------------------------------- the values themselves


def test_values_are_put_at_the_golden_s_steps():
    check = Track((99, 102, 106, 110), (9.0, 1.5, 0.9, 9.0), ("9", "1.50", "0.90", "9"))
    pair = line_up(RULES[0], replicas(), "", [run(check)])
    (aligned,) = pair.checks
    assert aligned.gaps == 4
    assert [value for value in aligned.values if not math.isnan(value)] == [1.5, 0.9]
    assert aligned.texts == ("", "1.50", "", "", "", "0.90")
    assert pair.compared == 2
    assert not pair.is_whole


def test_labels_come_in_the_golden_s_order():
    labels, findings = find_labels(Rule("loss"), labelled("b", "a"), [check_of("a", "b")])
    assert labels == ("b", "a")
    assert findings == []


@pytest.mark.parametrize("bad", [math.inf, -math.inf])
@pytest.mark.parametrize("rule", RULES[1:3], ids=lambda rule: rule.kind)
def test_an_infinite_value_is_reported_once_and_its_window_is_not_judged(rule, bad):
    (finding,) = judge(rule, replicas(), run([*VALUES[:5], bad])).findings
    assert finding.kind is VerdictKind.FAIL
