"""Which runs a rule ends: the reasons, and that only recorded points count, in whatever order and bunches they come."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.search.judge import RungCurve, build_curve, find_rung, judge_curve, name_rung
from assay.values.study import StopRule

ASHA = StopRule("asha", "loss", "min", first=1, factor=3, runs=1)
MEDIAN = StopRule("median", "loss", "min", first=5, runs=4)
PATIENCE = StopRule("patience", "loss", "min", patience=10)
BOUNDS = StopRule("bounds", "loss", "min", max=10, target=0.05)


def curve(rule: StopRule, *values: float, start: float = 1) -> RungCurve:
    return build_curve(rule, [start + i for i in range(len(values))], values)


def judge(rule: StopRule, values: list[float], others: list[list[float]] | None = None) -> str | None:
    ending = judge_curve(rule, curve(rule, *values), [curve(rule, *other) for other in others or []])
    if ending is not None:
        assert ending.cause == ("final" if rule.rule == "patience" or "target" in ending.why else "")
    return ending.why if ending else None


# ---------------------------------------------------------------- rungs


def test_a_step_belongs_to_the_last_rung_that_begins_at_or_before_it() -> None:
    steps = {0.5: None, 1: 0, 2: 0, 3: 1, 8: 1, 9: 2, 26: 2, 27: 3, 243: 5, 728: 5}
    assert {step: find_rung(ASHA, step) for step in steps} == steps
    assert [find_rung(MEDIAN, step) for step in (4, 5, 6.5, 9)] == [None, 0, 1, 4]
    listed = StopRule("asha", "loss", "min", at=(2, 10))
    assert [name_rung(ASHA, rung) for rung in range(4)] == ["1", "3", "9", "27"]
    assert (name_rung(MEDIAN, 3), name_rung(listed, 1)) == ("8", "10")
    assert [find_rung(listed, step) for step in (1, 2, 9, 10, 1e9)] == [None, 0, 0, 1, 1]
    assert [find_rung(StopRule("asha", "loss", "min", first=2, until=8), step) for step in (7, 8)] == [1, None]


@given(st.floats(0.5, 10), st.sampled_from([1.5, 2.0, 3.0, 4.0]), st.integers(0, 20))
def test_a_rung_begins_exactly_at_its_step(first: float, factor: float, rung: int) -> None:
    rule = StopRule("asha", "loss", "min", first=first, factor=factor)
    begin = first * factor**rung
    assert find_rung(rule, begin) == rung
    assert find_rung(rule, math.nextafter(begin, 0)) == (rung - 1 if rung else None)


def test_a_rung_in_which_nothing_was_recorded_has_no_value_and_points_without_steps_are_counted() -> None:
    nan = math.nan
    assert list(build_curve(ASHA, [nan, nan, nan], [3.0, 2.0, 1.0]).steps) == [1, 3]
    every_tenth = build_curve(ASHA, [10, 20, 30], [3.0, 2.0, 1.0])
    assert [every_tenth.value_at(rung) for rung in range(5)] == [None, None, 3.0, 1.0, None]


# ---------------------------------------------------------------- the reasons


def test_asha_compares_at_the_rung_and_not_with_what_came_later() -> None:
    others = [[0.1 * i] * 27 for i in range(1, 60)]
    assert judge(ASHA, [0.05, 9.0, 0.05], others) is None
    assert judge(ASHA, [4.05, 0.0], others) == "asha rung 1, 41st of 60"
    assert judge(ASHA, [0.15, 0.15, 0.15] + [0.0] * 6, others) is None
    worse_later = [[*values[:2], *([0.0] * 25)] for values in others]
    assert judge(ASHA, [0.15, 0.15, 0.15], worse_later) == "asha rung 3, 60th of 60"


def test_asha_counts_a_third_rounded_up_and_waits_for_enough_runs() -> None:
    assert judge(ASHA, [2.0], [[1.0], [3.0], [3.0]]) is None
    assert judge(ASHA, [2.0], [[1.0], [3.0]]) == "asha rung 1, 2nd of 3"
    assert judge(StopRule("asha", "loss", "min", first=1, runs=5), [9.0], [[1.0]] * 3) is None


def test_asha_for_a_metric_that_should_be_large() -> None:
    rule = StopRule("asha", "acc", "max", first=1, factor=3, runs=1)
    assert judge(rule, [0.9], [[0.1], [0.2]]) is None
    assert judge(rule, [0.1], [[0.9], [0.2]]) == "asha rung 1, 3rd of 3"


def test_nan_is_worse_than_every_number() -> None:
    assert judge(ASHA, [math.nan], [[5.0], [math.inf]]) == "asha rung 1, 3rd of 3"
    assert judge(ASHA, [5.0], [[math.nan], [math.nan]]) is None
    assert judge(MEDIAN, [math.nan] * 5, [[1.0] * 5] * 5) == "median: nan at step 5, median of 5 runs 1"
    assert judge(MEDIAN, [1.0] * 5, [[math.nan] * 5] * 5) is None


def test_median_needs_enough_others_and_takes_the_best_so_far() -> None:
    others = [[0.31] * 5] * 12
    assert judge(MEDIAN, [0.9, 0.52, 0.9, 0.9, 0.9], others) == "median: 0.52 at step 5, median of 12 runs 0.31"
    assert judge(MEDIAN, [0.9, 0.2, 0.9, 0.9, 0.9], others) is None
    assert judge(MEDIAN, [0.9] * 5, others[:2]) is None
    assert judge(MEDIAN, [0.9] * 4, others) is None


def test_patience_counts_the_steps_since_the_best_value() -> None:
    values = [1.0] * 39 + [0.31] + [0.4] * 9
    assert judge(PATIENCE, values) == "patience: no better loss for 10 steps (best 1 at step 1)"
    values = [1 - 0.01 * i for i in range(39)] + [0.31] + [0.4] * 9
    assert judge(PATIENCE, values) is None
    assert judge(PATIENCE, [*values, 0.4]) == "patience: no better loss for 10 steps (best 0.31 at step 40)"
    assert judge(PATIENCE, [*values, 0.4, 0.1]) is not None  # it would not have come so far
    small = StopRule("patience", "loss", "min", patience=3, min_delta=0.1)
    assert judge(small, [1.0, 0.95, 0.92, 0.91]) is not None
    assert judge(small, [1.0, 0.95, 0.89, 0.9]) is None
    assert judge(small, [math.nan] * 4) == "patience: no better loss for 3 steps (best nan at step 1)"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.0] * 11 + [math.nan], "bounds: loss nan at step 12"),
        ([1.0, math.inf, 0.0], "bounds: loss inf at step 2"),
        ([1.0, 12.5], "bounds: loss 12.5 above 10 at step 2"),
        ([1.0, 0.05], "bounds: loss 0.05 has reached its target 0.05 at step 2"),
        ([1.0, 9.0], None),
    ],
)
def test_bounds(values: list[float], reason: str | None) -> None:
    assert judge(BOUNDS, values) == reason
    rule = StopRule("bounds", "acc", "max", min=0.1, finite=False)
    assert judge(rule, [math.nan, 0.5]) is None, "it leaves NaN alone"
    assert judge(rule, [0.05]) == "bounds: acc 0.05 below 0.1 at step 1"


# ---------------------------------------------------------------- only recorded points count

losses = st.lists(st.one_of(st.floats(0, 10), st.just(math.nan)), min_size=1, max_size=40)
LATER, LARGE = StopRule("asha", "loss", "min", first=2, runs=3), StopRule("median", "loss", "max")
rules = st.sampled_from([ASHA, MEDIAN, PATIENCE, BOUNDS, LATER, LARGE])


@given(rules, losses, st.lists(losses, max_size=6), st.lists(st.integers(0, 40), max_size=5), st.randoms())
def test_points_are_judged_as_one_by_one_in_whatever_bunches_and_order_they_are_read(
    rule: StopRule, own: list[float], others: list[list[float]], cuts: list[int], rng: random.Random
) -> None:
    known = [curve(rule, *other) for other in others]

    def follow(ends: list[int]) -> str | None:
        following, judged, begin = RungCurve(rule), 0, 0
        for end in ends:
            for step, value in list(enumerate(own, 1))[begin:end]:
                following.add(step, value)
            if ending := judge_curve(rule, following, known, judged):
                return ending.why
            judged, begin = len(following.rungs), end
        return None

    one_by_one = follow(list(range(1, len(own) + 1)))
    assert follow([*sorted(cut for cut in cuts if cut < len(own)), len(own)]) == one_by_one
    assert judge(rule, own, others) == one_by_one
    points = list(enumerate(own, 1))
    rng.shuffle(points)
    ending = judge_curve(rule, build_curve(rule, *zip(*points, strict=True)), known)
    assert (ending.why if ending else None) == one_by_one


@given(rules, losses, st.lists(losses, max_size=6), st.lists(losses, max_size=6))
def test_what_others_record_later_ends_no_run_that_has_passed(
    rule: StopRule, own: list[float], before: list[list[float]], later: list[list[float]]
) -> None:
    passed = curve(rule, *own)
    if judge_curve(rule, passed, [curve(rule, *other) for other in before]) is None:
        known = [curve(rule, *other) for other in (*before, *later)]
        assert judge_curve(rule, passed, known, since=len(passed.rungs)) is None
