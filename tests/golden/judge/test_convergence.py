"""All rules of a segment together, and the stop of a run that has already failed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.golden.judge.curves import falling, noisy, run, segment, track

from assay.golden.judge.convergence import count_peers, judge_rules, judge_segment, judge_so_far
from assay.golden.values import Golden, Rule, Segment, Track
from assay.values.verdict import VerdictKind

FAIL, PASS, CHANGED = VerdictKind.FAIL, VerdictKind.PASS, VerdictKind.CHANGED
INCONCLUSIVE, ERROR = VerdictKind.INCONCLUSIVE, VerdictKind.ERROR
RULES = (Rule("loss"), Rule("grad_norm"))


@pytest.fixture
def rng():
    return np.random.default_rng(41)


def two_metrics(rng, start):
    tracks = {metric: {"": tuple(map(track, noisy(rng, 5)))} for metric in ("loss", "grad_norm")}
    return Segment(start, "c", tracks)


def check(rng, loss=0.0, grad_norm=0.0):
    return {**run(noisy(rng, 1, effect=loss)[0]), **run(noisy(rng, 1, effect=grad_norm)[0], metric="grad_norm")}


@pytest.fixture
def golden(rng):
    return Golden("t", (two_metrics(rng, 0), two_metrics(rng, 100), two_metrics(rng, 200)))


def test_a_good_segment_passes_and_one_without_checks_or_rules_does_not(rng, golden):
    verdict = judge_rules(RULES, golden.segments[0], [check(rng)], peers=count_peers(RULES, golden))
    assert verdict.kind is PASS
    assert verdict.comparisons == 2 * 300
    assert len(verdict.findings) == 2
    verdict = judge_rules(RULES, golden.segments[0], [])
    assert (verdict.kind, len(verdict.findings)) == (ERROR, 2)
    assert judge_rules((), golden.segments[0], [check(rng)]).kind is ERROR
    assert judge_segment(Rule("loss", "guess"), segment(falling()), [run(falling())]).kind is ERROR


def test_every_failure_is_reported_also_of_a_run_that_was_stopped_for_one_metric(rng, golden):
    verdict = judge_rules(RULES, golden.segments[0], [check(rng, loss=0.05, grad_norm=1.0)])
    failed = [finding.subject for finding in verdict.findings if finding.kind is FAIL]
    assert failed == ["segment at 0: loss", "segment at 0: grad_norm"]
    kinds = [judge_rules(RULES, golden.segments[0], [check(rng, **bad)]).kind for bad in ({}, {"grad_norm": 1.0})]
    assert kinds == [PASS, FAIL]
    stopped = {
        "loss": {"": track(noisy(rng, 1, effect=0.05)[0][:50])},
        "grad_norm": {"": track(noisy(rng, 1)[0][:50])},
    }
    verdict = judge_rules(RULES, golden.segments[0], [stopped])
    assert verdict.kind is FAIL
    crashed = {metric: {"": track(noisy(rng, 1)[0][:50])} for metric in ("loss", "grad_norm")}
    assert judge_rules(RULES, golden.segments[0], [crashed]).kind is ERROR


def test_alpha_is_shared_by_what_is_judged_by_statistics(golden):
    exact, fixed = Rule("lr", "exact"), Rule("loss", "margin", operator="<=", margin=0.1)
    assert count_peers((*RULES, exact, fixed), golden) == 6
    assert count_peers((exact,), golden) == 1
    assert count_peers(RULES, Golden("t", ())) == 1


def watch(rule, golden, values, every=25, **more):
    """Judge a run every few steps; return the step at which it would be stopped, and the finding."""
    for end in range(every, len(values) + 1, every):
        found = judge_so_far(rule, golden, track(values[:end]), **more)
        if found:
            return 100 + end, found
    return None, None


def test_a_bad_run_is_stopped_at_the_first_failing_window_and_a_good_one_is_left_alone(rng):
    golden = segment(*noisy(rng, 5))
    step, found = watch(Rule("loss"), golden, noisy(rng, 1, effect=0.05)[0])
    assert (step, found.kind) == (150, FAIL)
    assert found.effect == pytest.approx(0.05, abs=2e-3)
    late = noisy(rng, 1)[0] * np.where(np.arange(300) < 180, 1.0, 1.1)
    assert watch(Rule("loss"), golden, late)[0] == 300  # the window of steps 251 to 300 holds the first bad step, 281
    for effect in (0.0, -0.1):
        assert watch(Rule("loss"), golden, noisy(rng, 1, effect=effect)[0]) == (None, None)
    assert watch(Rule("loss", "exact"), segment(falling()), falling() * 2)[0] is None, "it is CHANGED at the end"
    assert watch(Rule("loss"), segment(falling()), falling() * 2)[0] is None, "a single recording shows no noise"


@pytest.mark.parametrize("rounds", [4, pytest.param(75, marks=pytest.mark.long)])
def test_looking_often_raises_no_false_alarms(rounds):
    rng = np.random.default_rng(42)
    alarms = 0
    for _ in range(rounds):
        golden = segment(*noisy(rng, 5, step=0.01))
        alarms += sum(watch(Rule("loss"), golden, values)[0] is not None for values in noisy(rng, 4, step=0.01))
    assert alarms <= 1  # of four runs in each


def test_what_was_stopped_fails_at_the_end_too(rng):
    for _ in range(20):
        golden, values = segment(*noisy(rng, 5, step=0.01)), noisy(rng, 1, step=0.01, effect=0.012)[0]
        if watch(Rule("loss"), golden, values)[0]:
            assert judge_segment(Rule("loss"), golden, [run(values)]).kind is FAIL


@pytest.mark.parametrize("kind", ["exact", "paired", "unmatched", "margin"])
def test_what_is_not_finite_stops_at_once(rng, kind):
    rule = Rule("loss", kind, operator="<=", margin=0.5)
    for bad in (math.nan, math.inf):
        found = judge_so_far(rule, segment(*noisy(rng, 5)), track([*falling()[:3], bad]))
        assert (found.kind, found.step) == (FAIL, 104)


def test_a_fixed_margin_stops_at_the_first_failing_step_and_other_seeds_at_a_window(rng):
    golden = segment(falling())
    rule = Rule("loss", "margin", operator="<=", margin=0.2)
    values = falling() * np.where(np.arange(300) < 60, 1.0, 1.3)
    step, found = watch(rule, golden, values, every=1)
    assert (step, found.step) == (161, 161)
    assert watch(rule, golden, falling())[0] is None
    golden = segment(*noisy(rng, 10, step=0.02))
    rule = Rule("loss", "unmatched")
    assert watch(rule, golden, noisy(rng, 1, step=0.02, effect=0.2)[0])[0] == 150
    assert watch(rule, golden, noisy(rng, 1, step=0.02)[0])[0] is None


def test_earlier_checks_count_and_little_or_odd_data_stops_nothing(rng):
    golden = segment(*noisy(rng, 5, step=0.02))
    values = noisy(rng, 3, step=0.02, effect=0.013)
    alone = watch(Rule("loss"), golden, values[2])[0] or math.inf
    together = watch(Rule("loss"), golden, values[2], earlier=[run(values[0]), run(values[1])])[0] or math.inf
    assert together <= alone
    assert together < math.inf
    golden = segment(*noisy(rng, 5))
    for steps in ((), (101,), (102, 101), (999,)):
        assert judge_so_far(Rule("loss"), golden, Track(steps, (1.0,) * len(steps))) is None
    assert judge_so_far(Rule("other"), golden, track(falling())) is None
    assert judge_so_far(Rule("loss"), golden, track(falling() * 9), label="x") is None
    assert judge_so_far(Rule("loss", "margin", operator="=>", margin=0.1), golden, track(falling() * 9)) is None
