"""Whatever does not fit together is reported, and never passes under any kind of rule."""

from __future__ import annotations

import math

import pytest
from tests.golden.judge.curves import run, segment, track

from assay.golden.judge.convergence import judge_segment
from assay.golden.judge.pairing import find_labels, line_up
from assay.golden.values import Rule, Segment, Track
from assay.values.verdict import VerdictKind

ERROR, FAIL, PASS = VerdictKind.ERROR, VerdictKind.FAIL, VerdictKind.PASS
VALUES = [2.0, 1.5, 1.25, 1.125, 1.0, 0.9]
STEPS = tuple(range(101, 107))
RULES = [
    Rule("loss", "exact"),
    Rule("loss", "paired"),
    Rule("loss", "unmatched"),
    Rule("loss", "margin", operator="<=", margin=0.5),
]
GOLDEN = segment(VALUES, VALUES, VALUES)
TWICE = Track((101, 102, 102, 104, 105, 106), tuple(VALUES))
BACK = Track((101, 103, 102, 104, 105, 106), tuple(VALUES))


def labelled(*labels):
    return Segment(100, "c", {"loss": {label: (track(VALUES),) * 3 for label in labels}})


def check_of(*labels):
    return {"loss": {label: track(VALUES) for label in labels}}


TWO = labelled("MLM", "NSP")
OTHER_LABELS = "the golden has the labels 'MLM', 'NSP', the check has "


def replaced(at, value):
    return run([*VALUES[:at], value, *VALUES[at + 1 :]])


# golden, checks, the verdict of every rule, and words of the finding
CASES = [
    (GOLDEN, [run(VALUES)], PASS, ""),
    (GOLDEN, [run(Track((100, *range(101, 109)), (9.0, *VALUES, 9.0, 9.0)))], PASS, ""),  # further steps are ignored
    (TWO, [check_of("NSP", "MLM")], PASS, ""),
    # missing
    (GOLDEN, [], ERROR, "no run checked this segment"),
    (segment(VALUES, metric="losses"), [run(VALUES)], ERROR, "the golden has no loss; did you mean 'losses'?"),
    (GOLDEN, [{"accuracy": {"": track(VALUES)}}], ERROR, "the check has no loss"),
    (GOLDEN, [run(VALUES), {}], ERROR, "the check has no loss"),  # one of several runs
    (segment([]), [run(VALUES)], ERROR, "the golden has no values"),
    (Segment(100, "c", {"loss": {"": ()}}), [run(VALUES)], ERROR, "the golden has no values"),
    (Segment(100, "c", {"loss": {}}), [run(VALUES)], ERROR, "the golden has no loss"),
    (GOLDEN, [run([])], ERROR, "none of the golden's 6 steps"),
    *((GOLDEN, [run(VALUES[:kept])], ERROR, f"{6 - kept} of 6 steps are missing") for kept in range(1, 6)),
    (
        GOLDEN,
        [run(Track((101, 102, 104, 105, 106), (2.0, 1.5, 1.125, 1.0, 0.9)))],
        ERROR,
        "no value at step 103: 1 of 6 steps are missing",
    ),
    (GOLDEN, [run(Track((1, 2), (2.0, 1.5)))], ERROR, "none of the golden's 6 steps"),
    # disorder, on both sides
    (GOLDEN, [run(TWICE)], ERROR, "step 102 was logged twice"),
    (GOLDEN, [run(BACK)], ERROR, "step 102 was logged after step 103"),
    (segment(TWICE, TWICE, TWICE), [run(VALUES)], ERROR, "step 102 was logged twice"),
    (segment(BACK, BACK, BACK), [run(VALUES)], ERROR, "step 102 was logged after step 103"),
    (segment(VALUES, VALUES, VALUES[:5]), [run(VALUES)], ERROR, "replicas 1 and 3 have different steps"),
    # not finite
    *(
        (GOLDEN, [replaced(at, bad)], FAIL, f"the check is {bad:g} at step {101 + at}")
        for at in (0, 3, 5)
        for bad in (math.nan, math.inf, -math.inf)
    ),
    (GOLDEN, [run(Track((*STEPS, 107), (*VALUES, math.nan)))], FAIL, "the check is nan at step 107"),
    (GOLDEN, [run([math.nan] * 6)], FAIL, "and 5 later values"),
    (
        segment(VALUES, VALUES, [*VALUES[:5], math.nan]),
        [run(VALUES)],
        ERROR,
        "not finite at step 106 (replica 3): gather again",
    ),
    # labels
    *(
        (TWO, [check_of(*found)], FAIL, OTHER_LABELS)
        for found in (("MLM",), ("MLM", "NSP", "more"), ("0", "1"), ("mlm", "nsp"))
    ),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_what_does_not_fit_never_passes(rule):
    for golden, checks, kind, words in CASES:
        verdict = judge_segment(rule, golden, checks)
        bad = [finding for finding in verdict.findings if finding.kind is not PASS]
        assert verdict.kind is kind, (checks, verdict)
        assert bool(bad) is (kind is not PASS)
        assert kind is PASS or any(words in finding.message for finding in bad), (words, bad)
        assert not words[:1].isdigit() or len(bad) == len(verdict.findings), "of what ended early nothing passes"
    assert judge_segment(rule, *CASES[1][:2]).comparisons == 6
    labels = judge_segment(rule, *CASES[2][:2])
    assert labels.comparisons == 12
    assert labels.findings[0].subject.startswith("segment at 100: loss MLM")
    if rule.kind in ("paired", "unmatched"):
        for bad in (math.inf, -math.inf):
            (finding,) = judge_segment(rule, GOLDEN, [replaced(5, bad)]).findings
            assert finding.kind is FAIL, "it is reported once, and its window is not judged"


def test_labels_and_values_are_put_at_the_golden_s_steps_in_its_order_and_one_bad_label_fails():
    check = {"loss": {"MLM": track(VALUES), "NSP": track([9.0] * 6)}}
    verdict = judge_segment(RULES[3], TWO, [check])
    assert verdict.kind is FAIL
    assert {(found.label, found.kind) for found in verdict.findings} == {("MLM", PASS), ("NSP", FAIL)}
    rule = Rule("loss", "margin", operator="<=", margin=0.5, labels=("MLM",))
    assert judge_segment(rule, TWO, [check]).kind is PASS
    assert judge_segment(rule, TWO, [check_of("MLM", "other")]).kind is PASS
    assert judge_segment(rule, TWO, [check_of("NSP")]).kind is FAIL
    verdict = judge_segment(rule, labelled("NSP"), [check_of("NSP")])
    assert verdict.kind is ERROR
    assert any("the golden has no label 'MLM'; it has 'NSP'" in found.message for found in verdict.findings)
    check = Track((99, 102, 106, 110), (9.0, 1.5, 0.9, 9.0), ("9", "1.50", "0.90", "9"))
    pair = line_up(RULES[0], GOLDEN, "", [run(check)])
    (aligned,) = pair.checks
    assert (aligned.gaps, pair.compared, pair.is_whole) == (4, 2, False)
    assert [value for value in aligned.values if not math.isnan(value)] == [1.5, 0.9]
    assert aligned.texts == ("", "1.50", "", "", "", "0.90")
    assert find_labels(Rule("loss"), labelled("b", "a"), [check_of("a", "b")]) == (("b", "a"), [])
