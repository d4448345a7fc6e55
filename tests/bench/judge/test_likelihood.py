import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.bench.judge.likelihood import (
    BIN,
    REACH,
    build_density,
    find_level,
    learn_density,
    measure_gains,
    measure_level_drift,
    split_pieces,
)


def draw_bimodal(n, seed):
    """Seven of ten points in one mode, the others four of its deviations higher."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal(n) / 2 + 2.0 * (rng.random(n) < 0.3)


def draw_drifting(n, seed):
    """Noise on a level that drifts about slowly: what machines do."""
    rng = np.random.default_rng(seed)
    level = [0.0]
    for push in rng.standard_normal(n - 1):
        level.append(0.95 * level[-1] + 0.3 * push)
    return rng.standard_normal(n) + np.array(level)


def find_density(density, distance):
    return float(np.exp(density.weigh(np.array([distance]), np.array([0.0])))[0, 0])


# ---------------------------------------------------------------- pieces and levels


def test_pieces_are_what_lies_between_cuts():
    assert [piece.tolist() for piece in split_pieces(np.arange(5.0), [2, 4])] == [[0, 1], [2, 3], [4]]
    assert [len(piece) for piece in split_pieces(np.arange(5.0), [])] == [5]


def test_a_level_is_deaf_to_outliers():
    assert find_level(np.array([1.0, 1.0, 1.0, 1.0, 1e9])) == 1.0
    assert find_level(np.array([2.0])) == 2.0


# ---------------------------------------------------------------- level drift


@pytest.mark.parametrize("draw", ["standard_normal", "standard_cauchy"])
def test_noise_that_is_nothing_but_noise_does_not_wander(draw):
    found = [measure_level_drift(getattr(np.random.default_rng(seed), draw)(600), []) for seed in range(40)]
    assert np.mean(found) == pytest.approx(1, abs=0.05)


def test_chance_is_rarely_taken_for_wandering():
    """Blocks side by side are so few that one in twenty of these would seem to wander by a quarter."""
    found = [measure_level_drift(draw_bimodal(500, seed), []) for seed in range(100)]
    assert np.std(found) < 0.1
    assert sum(wander > 1.25 for wander in found) <= 2


def test_a_level_that_drifts_wanders():
    assert min(measure_level_drift(draw_drifting(1000, seed), []) for seed in range(10)) > 1.3


def test_a_known_step_is_no_wandering():
    x = np.random.default_rng(0).standard_normal(600)
    x[300:] += 20
    assert measure_level_drift(x, [300]) == pytest.approx(1, abs=0.2)
    assert measure_level_drift(x, []) > 1.5


@pytest.mark.parametrize("cuts", [[], list(range(10, 600, 10))])
def test_of_few_points_nobody_knows_whether_they_wander(cuts):
    n = 600 if cuts else 60
    assert measure_level_drift(np.random.default_rng(0).standard_normal(n), cuts) == math.inf


def test_of_points_that_are_all_the_same_nobody_knows_either():
    assert measure_level_drift(np.zeros(100), []) == math.inf


def test_wandering_is_the_same_each_time_and_either_way_up():
    x = draw_bimodal(300, 1)
    assert (
        measure_level_drift(x, [100]) == measure_level_drift(x, [100]) == pytest.approx(measure_level_drift(-x, [100]))
    )


# ---------------------------------------------------------------- the density


@pytest.mark.parametrize("draw", [np.random.Generator.standard_normal, np.random.Generator.standard_cauchy])
def test_a_density_sums_to_one(draw):
    density = build_density(draw(np.random.default_rng(0), 500))
    assert np.exp(density.logs).sum() * BIN == pytest.approx(1, abs=0.05)  # what is beyond reach is missing


def test_normal_noise_has_about_the_normal_density():
    density = build_density(np.random.default_rng(0).standard_normal(5000))
    for distance in (-2.0, -1.0, 0.0, 0.5, 1.5):
        normal = math.exp(-(distance**2) / 2) / math.sqrt(2 * math.pi)
        assert find_density(density, distance) == pytest.approx(normal, rel=0.15)


def test_two_modes_are_two_modes():
    density = build_density(draw_bimodal(500, 0))
    assert find_density(density, 0) > 2 * find_density(density, 1)
    assert find_density(density, 2) > 1.2 * find_density(density, 1)


def test_better_levels_make_a_sharper_density():
    """Interquartile means of so few points of two modes lie anywhere between them."""
    x = np.concatenate([draw_bimodal(20, seed) + 10 * seed for seed in range(25)])
    cuts = list(range(20, 500, 20))
    rough = build_density(np.concatenate([piece - find_level(piece) for piece in split_pieces(x, cuts)]))
    assert learn_density(x, cuts).logs.max() > rough.logs.max() + 0.03


def test_strays_are_not_heaped_at_the_end_of_reach():
    rng = np.random.default_rng(0)
    distances = np.concatenate((rng.standard_normal(480), np.full(20, 1e6)))
    density = build_density(distances)
    assert find_density(density, REACH) < 1e-3
    assert find_density(density, 1e300) == find_density(density, REACH)


@pytest.mark.parametrize("seed", range(5))
def test_between_outliers_the_density_does_not_fall_into_holes(seed):
    density = build_density(np.random.default_rng(seed).standard_t(2, 500))
    outwards = density.weigh(np.linspace(3, 8, 50), np.array([0.0]))[0]
    assert np.diff(outwards).max() < 0.1


def test_one_point_that_nobody_expected_does_not_decide_alone():
    density = build_density(np.random.default_rng(0).standard_normal(500))
    assert find_density(density, 1e9) > 1e-5


def test_points_that_are_all_the_same_have_a_density():
    density = build_density(np.zeros(50))
    assert find_density(density, 0) > 100 * find_density(density, 1) > 0


# ---------------------------------------------------------------- gains


def draw_step(height, seed=0):
    x = draw_bimodal(120, seed)
    x[50:] += height
    return x


def test_a_step_gains_most_where_it_is():
    density = build_density(draw_bimodal(500, 7))
    found = [int(measure_gains(density, draw_step(1.5, seed), 0.5, 2.0).argmax()) for seed in range(50)]
    assert sum(abs(index - 50) <= 3 for index in found) >= 48


def test_a_step_gains_much_and_none_gains_little():
    density = build_density(draw_bimodal(500, 7))
    with_step = [measure_gains(density, draw_step(1.5, seed), 0.5, 2.0).max() for seed in range(30)]
    without = [measure_gains(density, draw_step(0.0, seed), 0.5, 0.5).max() for seed in range(30)]
    assert min(with_step) > 2 * max(without)


@pytest.mark.parametrize("height", [50.0, 1e6, 1e12])
def test_a_step_of_any_height_gains_and_is_placed(height):
    density = build_density(draw_bimodal(500, 7))
    gains = measure_gains(density, draw_step(height), 0.5, height + 0.5)
    assert int(gains.argmax()) == 50
    assert gains[50] > 100


@pytest.mark.parametrize("height", [50.0, 1e6])
def test_levels_are_fitted_as_well_however_far_apart_they_are(height):
    """Hardly worse than the true ones, 0 and the height."""
    density = build_density(draw_bimodal(500, 7))
    x, levels = draw_step(height), np.array([0.0, height])
    sums = density.weigh(x[:50], levels).sum(axis=1), density.weigh(x[50:], levels).sum(axis=1)
    gain = sums[0][0] + sums[1][1] - max(sums[0] + sums[1])
    assert measure_gains(density, x, 0.5, height + 0.5)[50] > gain - 2


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40), st.floats(-5, 5), st.floats(-5, 5))
def test_a_step_never_makes_points_less_likely(values, before, after):
    gains = measure_gains(build_density(draw_bimodal(200, 1)), np.array(values), before, after)
    assert len(gains) == len(values) + 1
    assert gains.min() >= -1e-9
    assert gains[0] == gains[-1] == pytest.approx(0, abs=1e-9)
