"""A level that creeps, and how small a change could have been seen."""

import math

import numpy as np
import pytest
from tests.bench.judge.made_series import build_ar

from assay.bench.judge.changepoint import find_change_points
from assay.bench.judge.trend import count_needed, find_detectable, find_trend


def draw(n, seed, rise=0.0, step=0.0, noise=0.015, autocorrelation=0.0):
    rng = np.random.default_rng(seed)
    x = noise * (build_ar(autocorrelation, n, seed) if autocorrelation else rng.standard_normal(n))
    values = 100 * np.exp(x) * (1 + rise * np.arange(n) / (n - 1))
    values[n // 2 :] *= 1 + step
    return values.tolist()


def trend_of(values):
    return find_trend(values, find_change_points(values))


@pytest.mark.parametrize(("n", "rise"), [(12, 0.35), (30, 0.35), (30, 0.15), (100, 0.1), (400, 0.1)])
def test_a_creep_is_found(n, rise):
    found = [trend_of(draw(n, seed, rise)) for seed in range(20)]
    known = [one for one in found if one]
    assert len(known) >= 16
    assert np.mean([one.size for one in known]) == pytest.approx(rise, abs=0.03)
    assert sum(one.interval[0] <= rise <= one.interval[1] for one in known) >= 0.8 * len(known)
    assert known[0].after / known[0].before == pytest.approx(1 + known[0].size)


@pytest.mark.parametrize("n", [24, 60, 300])
def test_a_step_is_no_creep(n):
    assert not any(trend_of(draw(n, seed, step=0.2)) for seed in range(20))


@pytest.mark.parametrize("autocorrelation", [0.0, 0.4, 0.7])
@pytest.mark.parametrize("n", [8, 24, 60, 200])
def test_noise_does_not_creep(n, autocorrelation):
    assert sum(trend_of(draw(n, seed, autocorrelation=autocorrelation)) is not None for seed in range(40)) <= 1


@pytest.mark.parametrize("values", [[], [1.0] * 30, [None] * 30, [math.nan] * 9, [1.0, 2.0, 3.0]])
def test_without_noise_or_values_nothing_creeps(values):
    assert find_trend(values) is None


def test_a_line_without_noise_creeps():
    assert find_trend([100.0 + n for n in range(30)]).size == pytest.approx(0.29, abs=0.03)


@pytest.mark.parametrize(("n", "noise"), [(12, 0.01), (24, 0.015), (40, 0.02), (100, 0.02)])
def test_a_change_that_is_said_to_be_visible_is_found(n, noise):
    """In nine of ten, when it is there for the last third."""
    hits = 0
    for seed in range(60):
        values = np.array(draw(n, seed, noise=noise))
        smallest = find_detectable(values.tolist())
        values[n - n // 3 :] *= 1 + smallest
        hits += bool(find_change_points(values.tolist()))
    assert hits >= 48


def test_more_executions_are_asked_for_until_the_change_is_visible():
    values = draw(12, 0, noise=0.02)
    seen = find_detectable(values)
    needed = count_needed(values, seen / 2)
    assert 12 < needed <= 120
    assert count_needed(values, seen) == 12
    assert count_needed(values, seen / 100) is None


def test_of_equal_values_any_change_is_visible_and_of_too_few_none():
    assert find_detectable([5.0] * 10) == 0.0
    assert count_needed([5.0] * 10, 0.01) == 6
    assert find_detectable([5.0] * 4) is None


def test_outliers_make_less_visible():
    calm = draw(24, 0)
    wild = [value * (1.5 if index % 8 == 0 else 1) for index, value in enumerate(calm)]
    assert find_detectable(wild) > 1.5 * find_detectable(calm)


def test_counts_that_vary_by_a_large_step_do_not_show_a_small_change():
    rng = np.random.default_rng(4)
    values = [5.0 if draw < 0.3 else 4.0 for draw in rng.random(24)]
    assert find_detectable(values) > 0.05
    assert find_detectable([4.0] * 23 + [5.0]) == 0.0  # one outlier
    assert find_detectable([4.0] * 12 + [4.0001, 4.0] * 6) < 0.01
