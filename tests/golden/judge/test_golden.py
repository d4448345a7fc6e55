from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden.judge.curves import falling, noisy, run, segment, track

from assay.golden.judge.convergence import judge_segment
from assay.golden.judge.golden import (
    build_rule_facts,
    check_margin,
    find_creep,
    find_equal,
    find_far_variants,
    find_idle_variants,
    find_refusals,
    find_widening,
    measure_drift,
    measure_golden_noise,
    measure_levels,
    measure_noise,
    round_up,
    summarise_noise,
)
from assay.golden.values import Golden, Rule, Segment, Track
from assay.values.verdict import VerdictKind


@pytest.fixture
def rng():
    return np.random.default_rng(31)


def measure(replicas, rule=None):
    (noise,) = measure_noise(rule or Rule("loss"), segment(*replicas))
    return noise


def test_the_noise_is_the_one_that_was_put_in(rng):
    noise = measure(noisy(rng, 200, step=0.01, whole=0.002))
    assert noise.per_step == pytest.approx(math.hypot(0.01, 0.002), rel=0.1)
    assert noise.per_window == pytest.approx(math.hypot(0.01 / math.sqrt(50), 0.002), rel=0.15)
    assert len(noise.windows) == 6
    assert (noise.replicas, noise.steps, noise.metric, noise.label) == (200, 300, "loss", "")
    assert noise.subject == "segment at 100: loss"

    other_seeds = measure(noisy(rng, 200, step=0.01, whole=0.002), Rule("loss", "unmatched"))
    half = [math.hypot(0.01 / math.sqrt(150), 0.002)]
    assert other_seeds.windows == pytest.approx(half, rel=0.15), "the second half counts"
    assert measure(-noisy(rng, 200, step=0.01)).per_step == pytest.approx(0.01, rel=0.1), "values without logs"
    assert measure([np.zeros(60)] * 3).per_step == 0.0
    equal = measure([falling()] * 5)
    assert (equal.per_step, equal.per_window, equal.floor) == (0.0, 0.0, 0.0)
    assert (equal.detectable, equal.suggested_delta) == ((0.005, 0.005, 0.005), 0.005)


def test_what_is_called_detectable_is_found_and_the_suggested_delta_lets_good_runs_pass(rng):
    golden = noisy(rng, 5, step=0.02)
    noise = measure(golden)
    one, two, three = noise.detectable
    assert one > two > three > 0.005

    def count(kind, checks, effect, rule):
        runs = [[run(values) for values in noisy(rng, checks, step=0.02, effect=effect)] for _ in range(10)]
        return sum(judge_segment(rule, segment(*golden), each).kind is kind for each in runs)

    for checks, effect in enumerate(noise.detectable, 1):
        assert count(VerdictKind.FAIL, checks, effect, Rule("loss")) >= 9
    assert count(VerdictKind.PASS, 1, 0.0, Rule("loss", delta=noise.suggested_delta)) >= 8
    best = [run(golden.mean(axis=0))] * 3  # the best possible check
    below = Rule("loss", delta=noise.floor * 0.9)
    assert judge_segment(below, segment(*golden), best).kind is VerdictKind.INCONCLUSIVE


def test_every_segment_metric_and_label_with_noise_is_measured(rng):
    loud = {"loss": {"a": tuple(map(track, noisy(rng, 3, step=0.01))), "b": tuple(map(track, noisy(rng, 3)))}}
    calm = {"loss": {"a": tuple(map(track, noisy(rng, 3))), "b": tuple(map(track, noisy(rng, 3)))}}
    golden = Golden("t", (Segment(0, "c", calm), Segment(100, "c", loud)))
    noises = measure_golden_noise([Rule("loss")], golden)
    assert [(noise.subject, noise.label) for noise in noises] == [
        ("segment at 0: loss a", "a"),
        ("segment at 0: loss b", "b"),
        ("segment at 100: loss a", "a"),
        ("segment at 100: loss b", "b"),
    ]
    assert summarise_noise(noises) == {"loss": noises[2].per_window}
    single, none, uneven, bad = segment([1.0, 2.0]), segment(), segment([1.0, 2.0], [1.0]), segment([1.0], [math.nan])
    for golden in (single, none, uneven, bad, Segment(100, "c", {})):
        assert measure_noise(Rule("loss"), golden) == ()


def test_a_delta_or_margin_below_the_noise_is_found(rng):
    noise = measure(noisy(rng, 5, step=0.05))
    finding = check_margin(Rule("loss", delta=0.0001), noise)
    assert finding.kind is VerdictKind.ERROR
    assert finding.subject == "segment at 100: loss"
    assert f"set the delta of loss to {noise.suggested_delta:g}, or gather more replicas" in finding.message
    assert check_margin(Rule("loss", delta=noise.suggested_delta), noise) is None
    assert check_margin(Rule("loss", delta=noise.floor), noise) is None
    narrow, other = Rule("loss", delta=0.0001), Rule("acc", delta=0.0001)
    assert find_refusals([narrow, other], [noise]) == [(narrow, check_margin(narrow, noise))]
    assert find_refusals([Rule("loss", delta=noise.suggested_delta), other], [noise]) == []
    noise, quiet = measure(noisy(rng, 5, step=0.02)), measure([falling()] * 3)
    for operator in ("==", "<=", ">="):
        narrow, wide = (Rule("loss", "margin", operator=operator, margin=margin) for margin in (0.05, 0.2))
        assert "is below the noise of 300 steps" in check_margin(narrow, noise).message
        assert check_margin(wide, noise) is None
    for operator in ("<", ">", "!="):  # operators without a margin
        assert check_margin(Rule("loss", "margin", operator=operator, margin=0.0), noise) is None
    assert check_margin(Rule("loss", "margin", operator="==", margin=0.0), quiet) is None, "nothing moves"
    assert check_margin(Rule("loss", "exact"), noise) is not None
    assert check_margin(Rule("loss", "exact"), quiet) is None


@given(st.floats(1e-12, 1e6))
def test_rounding_up_never_falls_below(value):
    assert value * (1 - 1e-9) <= round_up(value) <= 2.5 * value * (1 + 1e-9)
    known = {0.003: 0.005, 0.005: 0.005, 0.0051: 0.01, 0.1: 0.1, 7.0: 10.0, 1e-7: 1e-7, 0: 0}
    assert {each: round_up(each) for each in known} == known


def test_variants_that_change_nothing_or_fail_and_equal_replicas_are_named(rng):
    variants = {"idle": run(falling()), "near": run(falling() * 1.003), "far": run(falling() * 1.03)}
    golden = Golden("t", (replace(segment(falling(), falling()), variants=variants),))
    assert find_idle_variants([Rule("loss")], golden) == ["idle"]
    short = replace(segment(falling()), variants={"short": run(falling()[:-1])})
    assert find_idle_variants([Rule("loss")], Golden("t", (short,))) == [], "it lacks a step, which is an error"
    (text,) = find_far_variants([Rule("loss")], golden)
    assert text.startswith("the variant far is beyond delta, and a check like it fails (segment at ")
    assert "loss: +3% in steps" in text
    assert not find_far_variants([Rule("loss", delta=0.1)], golden)
    rules = [Rule("loss")]
    assert find_equal(rules, Golden("t", (segment(falling(), falling()),)))
    assert not find_equal(rules, Golden("t", (segment(falling()),)))
    assert not find_equal(rules, Golden("t", (segment(falling(), falling()), segment(*noisy(rng, 2)))))
    assert not find_equal([Rule("loss", "exact")], Golden("t", (segment(falling(), falling()),)))


def test_what_is_called_outside_is_where_a_change_begins(rng):
    for golden in ([falling()] * 5, noisy(rng, 5, step=1e-4), noisy(rng, 5, step=1e-7)):
        limit = measure(golden).outside
        centre = np.exp(np.log(golden).mean(axis=0))
        above = judge_segment(Rule("loss"), segment(*golden), [run(centre * (1 + 1.02 * limit))])
        assert above.kind is VerdictKind.CHANGED
    below = judge_segment(Rule("loss"), segment(*[falling()] * 5), [run(falling() * (1 + 9e-6))])
    assert below.kind is VerdictKind.PASS
    golden, rule = noisy(rng, 10, step=0.2), Rule("loss", "unmatched", delta=0.2)
    limit, centre = measure(golden, rule).outside, np.exp(np.log(golden).mean(axis=0))
    assert limit < 0.1, "the mean of a half shows what a single step hides"
    centre *= np.exp(0.12 * (-1.0) ** np.arange(300))  # it moves from step to step as the recordings do
    for effect, kind in ((1.2 * limit, VerdictKind.CHANGED), (0.5 * limit, VerdictKind.PASS)):
        assert judge_segment(rule, segment(*golden), [run(centre * (1 + effect))]).kind is kind


def golden(level=1.0, starts=(100, 200), replicas=3, rules=None, **changes):
    def tracks(start):
        runs = tuple(Track((start + 1, start + 2), (level, level)) for _ in range(replicas))
        return {"loss": {"": runs}, "acc": {"top": runs}}

    segments = tuple(Segment(start, f"c{start}", tracks(start)) for start in starts)
    facts = build_rule_facts(rules if rules is not None else [Rule("loss")])
    fields = {"steps_per_segment": 50, "provenance": {"rules": facts}, "noise": {"loss": 0.001}, **changes}
    return Golden("t", segments, **fields)


def test_drift_is_the_relative_change_of_each_metric_and_creep_that_of_many_rebases():
    drift = measure_drift(measure_levels(golden(2.0)), measure_levels(golden(2.1)))
    assert drift == {"loss": pytest.approx(0.05), "acc top": pytest.approx(0.05)}
    assert measure_drift(measure_levels(golden(1.0, (100,))), measure_levels(golden(2.0, (300,)))) == {}
    both = measure_drift(measure_levels(golden(1.0, (100, 200))), measure_levels(golden(2.0, (200, 300))))
    assert both["loss"] == pytest.approx(1.0), "the segments that both have"
    assert find_creep({"loss": 0.03}, [Rule("loss")], 3) == [
        "loss has drifted by +3% since the first golden, in 3 rebases"
    ]
    assert find_creep({"loss": 0.03}, [Rule("loss")], 1) == [], "a single step was decided"
    assert find_creep({"loss": 0.001}, [Rule("loss")], 3) == []
    assert find_creep({"loss MLM": -0.03}, [Rule("loss")], 2)[0].startswith("loss MLM has drifted by -3%")
    assert find_creep({"loss": 0.03}, [Rule("loss", "exact")], 3) == []


def change_segments(**changes):
    return replace(golden(), segments=tuple(replace(each, **changes) for each in golden().segments))


def test_everything_that_lets_more_through_is_reported():
    varied = change_segments(variants={"halves": {"loss": {"": Track((101, 102), (1.0, 1.0))}}})
    cut = change_segments(tracks={"loss": golden().segments[0].tracks["loss"]})
    for before, after, words in (
        (golden(), golden(noise={"loss": 0.005}), ["the noise of loss grows from 0.1% to 0.5%"]),
        (golden(), golden(rules=[Rule("loss", delta=0.02)]), ["the delta of loss grows from 0.005 to 0.02"]),
        (golden(), golden(rules=[]), ["loss is not judged any more"]),
        (golden(), golden(starts=(100,)), ["there are 1 segments instead of 2"]),
        (golden(), golden(replicas=2), ["2 recordings of each segment instead of 3"]),
        (golden(), golden(steps_per_segment=20), ["segments have 20 steps instead of 50"]),
        (golden(), cut, ["acc is not recorded any more"]),
        (golden(), varied, ["the variant halves is new: its effect will pass"]),
        (varied, varied, []),
        (varied, golden(), []),
        (golden(), golden(1.5), []),
        (golden(noise={"loss": 0.001}), golden(noise={"loss": 0.0015}), []),
        (golden(noise={"loss": 0.0}), golden(noise={"loss": 0.00005}), []),
        (golden(provenance={}, noise={}, steps_per_segment=0, replicas=1), golden(), []),  # the original's has no rules
    ):
        assert find_widening(before, after) == words
