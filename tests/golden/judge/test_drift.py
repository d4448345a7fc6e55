from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.golden.judge.drift import build_rule_facts, find_creep, find_widening, measure_drift, measure_levels
from assay.golden.values import Golden, Rule, Segment, Track


def golden(level=1.0, starts=(100, 200), replicas=3, rules=None, **changes):
    def tracks(start):
        runs = tuple(Track((start + 1, start + 2), (level, level)) for _ in range(replicas))
        return {"loss": {"": runs}, "acc": {"top": runs}}

    segments = tuple(Segment(start, f"c{start}", tracks(start)) for start in starts)
    facts = build_rule_facts(rules if rules is not None else [Rule("loss")])
    fields = {"steps_per_segment": 50, "provenance": {"rules": facts}, "noise": {"loss": 0.001}, **changes}
    return Golden("t", segments, **fields)


def test_drift_is_the_relative_change_of_each_metric():
    drift = measure_drift(measure_levels(golden(2.0)), measure_levels(golden(2.1)))
    assert drift == {"loss": pytest.approx(0.05), "acc top": pytest.approx(0.05)}


@given(st.lists(st.floats(0.98, 1.02), min_size=1, max_size=8))
def test_small_steps_add_up_to_what_the_ends_say(steps):
    first = level = 3.0
    total = 1.0
    for step in steps:
        effect = measure_drift(measure_levels(golden(level)), measure_levels(golden(level * step)))["loss"]
        total *= 1 + effect
        level *= step
    since_first = measure_drift(measure_levels(golden(first)), measure_levels(golden(level)))["loss"]
    assert total - 1 == pytest.approx(since_first, abs=1e-9)


def test_only_segments_that_both_have_are_compared():
    assert measure_drift(measure_levels(golden(1.0, (100,))), measure_levels(golden(2.0, (300,)))) == {}
    both = measure_drift(measure_levels(golden(1.0, (100, 200))), measure_levels(golden(2.0, (200, 300))))
    assert both["loss"] == pytest.approx(1.0)


def test_creep_is_what_many_rebases_add_up_to():
    assert find_creep({"loss": 0.03}, [Rule("loss")], 3) == [
        "loss has drifted by +3% since the first golden, in 3 rebases"
    ]
    assert find_creep({"loss": 0.03}, [Rule("loss")], 1) == [], "a single step was somebody's decision"
    assert find_creep({"loss": 0.001}, [Rule("loss")], 3) == []
    assert find_creep({"loss MLM": -0.03}, [Rule("loss")], 2)[0].startswith("loss MLM has drifted by -3%")
    assert find_creep({"loss": 0.03}, [Rule("loss", "exact")], 3) == []


def test_the_same_again_is_no_widening():
    assert find_widening(golden(), golden(1.5)) == []
    assert find_widening(golden(noise={"loss": 0.001}), golden(noise={"loss": 0.0015})) == []
    assert find_widening(golden(noise={"loss": 0.0}), golden(noise={"loss": 0.00005})) == []


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (golden(noise={"loss": 0.005}), "the noise of loss grows from 0.1% to 0.5%"),
        (golden(rules=[Rule("loss", delta=0.02)]), "the delta of loss grows from 0.005 to 0.02"),
        (golden(rules=[Rule("loss", alpha=0.001)]), "the alpha of loss falls from 0.01 to 0.001"),
        (golden(rules=[]), "loss is not judged any more"),
        (golden(rules=[Rule("loss", "unmatched")]), "loss is judged by unmatched instead of paired"),
        (golden(starts=(100,)), "there are 1 segments instead of 2"),
        (golden(replicas=2), "there are 2 recordings of each segment instead of 3"),
        (golden(steps_per_segment=20), "segments have 20 steps instead of 50"),
    ],
)
def test_everything_that_lets_more_through_is_said(after, words):
    assert words in find_widening(golden(), after)


def test_a_larger_margin_is_a_widening():
    tight, loose = (golden(rules=[Rule("loss", "margin", operator="<=", margin=margin)]) for margin in (0.05, 0.2))
    assert find_widening(tight, loose) == ["the margin of loss grows from 0.05 to 0.2"]
    assert find_widening(loose, tight) == []


def test_a_metric_that_is_not_recorded_any_more_is_said():
    before, after = golden(), golden()
    cut = tuple(replace(each, tracks={"loss": each.tracks["loss"]}) for each in after.segments)
    assert find_widening(before, replace(after, segments=cut)) == ["acc is not recorded any more"]


def test_a_golden_of_the_original_has_no_rules_to_compare():
    old = golden(provenance={}, noise={}, steps_per_segment=0, replicas=1)
    assert find_widening(old, golden()) == []


def test_a_new_variant_widens_a_golden():
    before = golden()
    variants = {"halves": {"loss": {"": Track((101, 102), (1.0, 1.0))}}}
    after = replace(before, segments=tuple(replace(segment, variants=variants) for segment in before.segments))
    assert find_widening(before, after) == ["the variant halves is new: its effect will pass"]
    assert find_widening(after, after) == []
    assert find_widening(after, before) == []
