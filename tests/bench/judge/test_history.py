"""The verdict on a history, from its values alone."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from tests.bench.judge.made_series import build_ar

from assay.bench.judge.changepoint import find_change_points
from assay.bench.judge.history import (
    FEWEST_MOVED,
    compare_levels,
    compare_medians,
    count_needed,
    describe_change,
    describe_few,
    find_detectable,
    find_trend,
    separate_newest,
)
from assay.bench.values.comparison import LevelStep, MetricChange
from assay.values.verdict import VerdictKind

PASS, FAIL, INCONCLUSIVE, ERROR = VerdictKind.PASS, VerdictKind.FAIL, VerdictKind.INCONCLUSIVE, VerdictKind.ERROR


def change(at: int = 20, **fields: Any) -> MetricChange:
    given = {
        "step": LevelStep(at, 10.0, 12.0, 0.2, (0.18, 0.22)),
        "execution_id": f"e{at}",
        "until": "e39",
        "at": 1e9,
        "commits": ("a" * 40, "b" * 40),
        "cause": "code",
        "reason": "the environment is the same",
        "is_worse": True,
        **fields,
    }
    return MetricChange(**given)


def test_words_of_a_change() -> None:
    text = describe_change(change(differences=("cudnn 8 → 9",), holds=False, judgement="ack", note="known"))
    assert text == (
        "+20.0% since e20; commits aaaaaaaaaaaa..bbbbbbbbbbbb; code: the environment is the same (cudnn 8 → 9); "
        "the level has returned since; ack: known"
    )
    assert "measured since" in describe_change(change(too_few=3, holds=False))
    assert "commit unknown" in describe_change(change(commits=(None, None)))
    assert "environment or code? " in describe_change(change(cause="either"))


# ---------------------------------------------------------------- what a series shows


def noise(level: float, count: int, seed: int) -> list[float]:
    chance = random.Random(seed)
    return [level * (1 + chance.gauss(0, 0.01)) for _ in range(count)]


def test_levels_on_both_sides_of_a_known_place() -> None:
    step = compare_levels(noise(10, 12, 1), noise(11, 12, 2), 12)
    assert step is not None
    assert step.at == 12
    assert step.effect == pytest.approx(0.1, abs=0.02)
    for old, new in (([1.0], [2.0]), (noise(10, 12, 1), noise(10, 12, 2)), ([], [1.0]), ([1.0] * 5, [1.0] * 5)):
        assert compare_levels(old, new, 0) is None


def test_a_few_are_looked_at_by_their_medians() -> None:
    step = compare_medians([1.0, 1.1, 0.9], [2.0], 3)
    assert (step.at, step.before, step.after, step.interval) == (3, 1.0, 2.0, None)
    assert step.effect == pytest.approx(1.0)
    assert compare_medians([0.0], [0.0], 1).effect == 0.0
    assert math.isfinite(compare_medians([0.0], [5.0], 1).effect)
    assert compare_medians([2.0], [-1.0], 1).effect == pytest.approx(-1.5)


def test_where_a_few_lie_and_which_side_is_too_short() -> None:
    for new, where in (([1.5], "within"), ([1.5, 3.0], "partly outside"), ([3.0, 0.5], "outside"), ([2.0], "within")):
        words = describe_few([1.0, 2.0, 1.5, 1.2], new)
        assert words.startswith("1 execution on a new" if len(new) == 1 else "2 executions on a new")
        assert words.endswith(f"too few to judge (at least 4 are needed), {where} the old range")
    assert describe_few([1.0], [1.0] * 5).startswith("1 execution on the old environment, too few")
    assert compare_levels([1.0] * FEWEST_MOVED, [2.0 + n / 100 for n in range(FEWEST_MOVED)], 4) is not None


# ---------------------------------------------------------------- trends, and the smallest detectable change


def draw(n, seed, rise=0.0, step=0.0, noise=0.015, autocorrelation=0.0):
    rng = np.random.default_rng(seed)
    x = noise * (build_ar(autocorrelation, n, seed) if autocorrelation else rng.standard_normal(n))
    values = 100 * np.exp(x) * (1 + rise * np.arange(n) / (n - 1))
    values[n // 2 :] *= 1 + step
    return values.tolist()


def trend_of(values):
    return find_trend(values, find_change_points(values))


@pytest.mark.parametrize(("n", "rise"), [(12, 0.35), (30, 0.15), (200, 0.1)])
def test_a_creep_is_found(n, rise):
    known = [one for one in [trend_of(draw(n, seed, rise)) for seed in range(20)] if one]
    assert len(known) >= 16
    assert np.mean([one.effect for one in known]) == pytest.approx(rise, abs=0.03)
    assert sum(one.interval[0] <= rise <= one.interval[1] for one in known) >= 0.8 * len(known)
    assert known[0].after / known[0].before == pytest.approx(1 + known[0].effect)


@pytest.mark.parametrize("n", [24, 200])
def test_a_step_is_no_creep(n):
    assert not any(trend_of(draw(n, seed, step=0.2)) for seed in range(12))


@pytest.mark.parametrize(("n", "autocorrelation"), [(8, 0.4), (24, 0.0), (24, 0.7), (60, 0.4), (200, 0.7)])
def test_noise_does_not_creep(n, autocorrelation):
    assert sum(trend_of(draw(n, seed, autocorrelation=autocorrelation)) is not None for seed in range(30)) <= 1


def test_without_noise_or_values_nothing_but_a_line_creeps():
    for values in ([], [1.0] * 30, [None] * 30, [math.nan] * 9, [1.0, 2.0, 3.0]):
        assert find_trend(values) is None
    assert find_trend([100.0 + n for n in range(30)]).effect == pytest.approx(0.29, abs=0.03)


@pytest.mark.parametrize(("n", "noise"), [(12, 0.01), (40, 0.02)])
def test_a_change_of_the_detectable_size_is_found(n, noise):
    """In nine of ten, when it is there for the last third."""
    hits = 0
    for seed in range(40):
        values = np.array(draw(n, seed, noise=noise))
        smallest = find_detectable(values.tolist())
        values[n - n // 3 :] *= 1 + smallest
        hits += bool(find_change_points(values.tolist()))
    assert hits >= 32


def test_more_executions_are_asked_for_until_the_change_is_visible():
    values = draw(12, 0, noise=0.02)
    seen = find_detectable(values)
    needed = count_needed(values, seen / 2)
    assert 12 < needed <= 120
    assert count_needed(values, seen) == 12
    assert count_needed(values, seen / 100) is None


def test_what_is_visible_in_equal_values_outliers_and_counts():
    assert find_detectable([5.0] * 10) == 0.0
    assert count_needed([5.0] * 10, 0.01) == 6
    assert find_detectable([5.0] * 4) is None
    calm = draw(24, 0)
    wild = [value * (1.5 if index % 8 == 0 else 1) for index, value in enumerate(calm)]
    assert find_detectable(wild) > 1.5 * find_detectable(calm)
    values = [5.0 if each < 0.3 else 4.0 for each in np.random.default_rng(4).random(24)]
    assert find_detectable(values) > 0.05, "counts that vary by a large step do not show a small change"
    assert find_detectable([4.0] * 23 + [5.0]) == 0.0  # one outlier
    assert find_detectable([4.0] * 12 + [4.0001, 4.0] * 6) < 0.01


@pytest.mark.parametrize(("before", "after"), [(3, 3), (3, 4), (3, 5), (4, 3), (4, 5), (6, 3)])
def test_a_step_of_a_short_history_is_where_it_is(before: int, after: int) -> None:
    noise = random.Random(before * 10 + after)
    values = [level * noise.uniform(0.99, 1.01) for level in (*[244.0] * before, *[740.0] * after)]
    steps, newest = separate_newest(values, find_change_points(values))
    assert ([step.at for step in steps], newest) == ([before], None)
