import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.judge.made_series import build_ar, build_drifting, build_series

from assay.bench.judge.noise import (
    BIN,
    REACH,
    build_density,
    build_signal,
    find_level,
    find_variance_inflation,
    learn_density,
    measure_autocorrelation,
    measure_autocorrelation_again,
    measure_gains,
    measure_level_drift,
    measure_noise,
    split_pieces,
    weigh,
)


def draw_bimodal(n, seed):
    """Seven of ten points in one mode, the others four of its deviations higher."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal(n) / 2 + 2.0 * (rng.random(n) < 0.3)


def find_density(density, distance):
    return float(np.exp(weigh(density, np.array([distance]), np.array([0.0])))[0, 0])


# ---------------------------------------------------------------- pieces and levels


def test_pieces_and_their_levels():
    assert [piece.tolist() for piece in split_pieces(np.arange(5.0), [2, 4])] == [[0, 1], [2, 3], [4]]
    assert [len(piece) for piece in split_pieces(np.arange(5.0), [])] == [5]
    assert find_level(np.array([1.0, 1.0, 1.0, 1.0, 1e9])) == 1.0, "outliers do not move it"
    assert find_level(np.array([2.0])) == 2.0


# ---------------------------------------------------------------- level drift


def test_chance_is_rarely_taken_for_wandering():
    """Blocks side by side are so few that one in twenty of these would seem to wander by a quarter."""
    found = [measure_level_drift(draw_bimodal(500, seed), []) for seed in range(100)]
    assert np.std(found) < 0.1
    assert sum(wander > 1.25 for wander in found) <= 2


def test_a_level_that_drifts_wanders_and_a_known_step_does_not():
    assert min(measure_level_drift(build_drifting(seed), []) for seed in range(10)) > 1.3
    x = np.random.default_rng(0).standard_normal(600)
    x[300:] += 20
    assert measure_level_drift(x, [300]) == pytest.approx(1, abs=0.2)
    assert measure_level_drift(x, []) > 1.5
    same = draw_bimodal(300, 1)
    found = measure_level_drift(same, [100])
    assert found == measure_level_drift(same, [100]) == pytest.approx(measure_level_drift(-same, [100]))


def test_the_drift_of_few_or_equal_points_is_unknown():
    rng = np.random.default_rng(0)
    for x, cuts in ((rng.standard_normal(60), []), (rng.standard_normal(600), range(10, 600, 10)), (np.zeros(100), [])):
        assert measure_level_drift(x, list(cuts)) == math.inf


# ---------------------------------------------------------------- the density


@pytest.mark.parametrize("draw", [np.random.Generator.standard_normal, np.random.Generator.standard_cauchy])
def test_a_density_sums_to_one(draw):
    density = build_density(draw(np.random.default_rng(0), 500))
    assert np.exp(density).sum() * BIN == pytest.approx(1, abs=0.05)  # what is beyond reach is missing


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
    assert learn_density(x, cuts).max() > rough.max() + 0.03


def test_strays_and_points_that_are_all_the_same():
    rng = np.random.default_rng(0)
    density = build_density(np.concatenate((rng.standard_normal(480), np.full(20, 1e6))))
    assert find_density(density, REACH) < 1e-3, "they are not heaped at the end of reach"
    assert find_density(density, 1e300) == find_density(density, REACH)
    alone = build_density(np.random.default_rng(0).standard_normal(500))
    assert find_density(alone, 1e9) > 1e-5, "one unexpected point does not decide alone"
    equal = build_density(np.zeros(50))
    assert find_density(equal, 0) > 100 * find_density(equal, 1) > 0
    for seed in range(3):
        outliers = build_density(np.random.default_rng(seed).standard_t(2, 500))
        outwards = weigh(outliers, np.linspace(3, 8, 50), np.array([0.0]))[0]
        assert np.diff(outwards).max() < 0.1, "between outliers it does not fall into holes"


# ---------------------------------------------------------------- gains


def draw_step(height, seed=0):
    x = draw_bimodal(120, seed)
    x[50:] += height
    return x


def test_a_step_gains_much_where_it_is_and_none_gains_little():
    density = build_density(draw_bimodal(500, 7))
    gains = [measure_gains(density, draw_step(1.5, seed), 0.5, 2.0) for seed in range(50)]
    assert sum(abs(int(each.argmax()) - 50) <= 3 for each in gains) >= 48
    without = [measure_gains(density, draw_step(0.0, seed), 0.5, 0.5).max() for seed in range(30)]
    assert min(each.max() for each in gains[:30]) > 2 * max(without)


@pytest.mark.parametrize("height", [50.0, 1e12])
def test_a_step_of_any_height_gains_and_its_levels_are_fitted(height):
    """Hardly worse than the true ones, 0 and the height."""
    density = build_density(draw_bimodal(500, 7))
    x, levels = draw_step(height), np.array([0.0, height])
    gains = measure_gains(density, x, 0.5, height + 0.5)
    assert int(gains.argmax()) == 50
    assert gains[50] > 100
    sums = weigh(density, x[:50], levels).sum(axis=1), weigh(density, x[50:], levels).sum(axis=1)
    assert gains[50] > sums[0][0] + sums[1][1] - max(sums[0] + sums[1]) - 2


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40), st.floats(-5, 5), st.floats(-5, 5))
def test_a_step_never_makes_points_less_likely(values, before, after):
    gains = measure_gains(build_density(draw_bimodal(200, 1)), np.array(values), before, after)
    assert len(gains) == len(values) + 1
    assert gains.min() >= -1e-9
    assert gains[0] == gains[-1] == pytest.approx(0, abs=1e-9)


# ---------------------------------------------------------------- values in units of their noise


def test_a_signal_has_finite_values_in_units_of_their_noise():
    values: list[float | None] = [*build_series({}, n=300)]
    values[3] = None
    values[7] = math.nan
    signal = build_signal(values)
    assert len(signal.x) == len(signal.indices) == 298
    assert {3, 7}.isdisjoint(signal.indices.tolist())
    assert np.std(signal.x) == pytest.approx(1, abs=0.15)
    for none in ([], [1.0, 2.0, 3.0, 4.0, 5.0], [2.0] * 50, [None] * 9, [math.nan, math.inf] * 9):
        assert build_signal(none) is None
    short, long = (build_signal(build_series({}, n=n)) for n in (200, 5000))
    assert short.rigor < 1 < long.rigor, "a longer series asks for more"


@given(st.lists(st.floats(-1e6, 1e6), min_size=6, max_size=30))
def test_levels_are_restored_in_the_users_units(values):
    signal = build_signal(values)
    if signal is not None:
        restored = [signal.restore(x) for x in signal.x.tolist()]
        assert restored == pytest.approx(values, rel=1e-6, abs=1e-6 * max(map(abs, values)))


def test_a_height_is_a_share_of_the_level_before():
    positive = build_signal([100.0, 110.0] * 5)
    assert positive.relate(float(positive.x[1]), 0.0) == pytest.approx(0.1)
    negative = build_signal([-100.0, -110.0] * 5)
    assert negative.relate(float(negative.x[1]), 0.0) == pytest.approx(-0.1)
    nothing = build_signal([0.0, 1.0] * 5)
    assert nothing.relate(1.0, 0.0) == math.inf
    assert [find_variance_inflation(each) for each in (0.0, 0.5)] == pytest.approx([1, 3])


# ---------------------------------------------------------------- autocorrelation and noise


@pytest.mark.parametrize("coefficient", [0.0, 0.5, 0.8])
def test_autocorrelation_is_measured_despite_steps(coefficient):
    noise = build_ar(coefficient, 2000, 3)
    noise[700:] += 20
    noise[1500:] -= 10
    assert measure_autocorrelation(noise) == pytest.approx(coefficient, abs=0.1)


def test_autocorrelation_is_measured_again_without_the_steps():
    noise = build_ar(0.6, 500, 1)
    cuts = list(range(40, 500, 40))
    for cut in cuts[::2]:
        noise[cut : cut + 40] += 5
    signal = build_signal((100 * np.exp(0.02 * noise)).tolist())
    settled = measure_autocorrelation_again(signal, cuts)
    assert settled.autocorrelation < signal.autocorrelation
    assert settled.autocorrelation == pytest.approx(0.6, abs=0.15)
    assert settled.x * settled.scale == pytest.approx(signal.x * signal.scale)
    assert np.std(np.diff(settled.x)) > np.std(np.diff(signal.x))


def test_autocorrelation_stays_where_there_is_no_step_or_none_of_it():
    signal = build_signal(np.exp(0.02 * build_ar(0.8, 300, 0)).tolist())
    plain = build_signal(build_series({100: 0.2}, seed=1))
    assert measure_autocorrelation_again(signal, []) is signal
    assert plain.autocorrelation == 0
    assert measure_autocorrelation_again(plain, [100]) is plain
    assert measure_autocorrelation(np.arange(10.0)) == measure_autocorrelation(np.zeros(50)) == 0


def test_noise_ignores_rare_steps_and_is_never_nothing():
    levels = np.random.default_rng(2).standard_normal(1000)
    levels[500:] += 50
    assert measure_noise(levels) == pytest.approx(1, abs=0.1)
    assert measure_noise(np.arange(100.0)) > 0
