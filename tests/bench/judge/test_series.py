import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bench.judge.made_series import build_ar, build_series

from assay.bench.judge.series import (
    build_signal,
    find_variance_inflation,
    measure_autocorrelation,
    measure_autocorrelation_again,
    measure_noise,
)

# ---------------------------------------------------------------- values in units of their noise


@pytest.mark.parametrize("values", [[], [1.0, 2.0, 3.0, 4.0, 5.0], [2.0] * 50, [None] * 9, [math.nan, math.inf] * 9])
def test_too_few_or_constant_values_are_no_signal(values):
    assert build_signal(values) is None


def test_a_signal_has_finite_values_in_units_of_their_noise():
    values: list[float | None] = [*build_series({}, n=300)]
    values[3] = None
    values[7] = math.nan
    signal = build_signal(values)
    assert len(signal.x) == len(signal.indices) == 298
    assert {3, 7}.isdisjoint(signal.indices.tolist())
    assert np.std(signal.x) == pytest.approx(1, abs=0.15)


@settings(max_examples=40, deadline=None)
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


def test_points_that_resemble_each_other_count_as_fewer():
    assert find_variance_inflation(0.0) == 1
    assert find_variance_inflation(0.5) == pytest.approx(3)


# ---------------------------------------------------------------- autocorrelation and noise


@pytest.mark.parametrize("coefficient", [0.0, 0.5, 0.8])
def test_autocorrelation_is_measured_despite_steps(coefficient):
    noise = build_ar(coefficient, 2000, 3)
    noise[700:] += 20
    noise[1500:] -= 10
    assert measure_autocorrelation(noise) == pytest.approx(coefficient, abs=0.1)


def test_autocorrelation_of_a_short_or_constant_series_is_none():
    assert measure_autocorrelation(np.arange(10.0)) == 0
    assert measure_autocorrelation(np.zeros(50)) == 0


def test_a_longer_series_asks_for_more():
    short, long = (build_signal(build_series({}, n=n)) for n in (200, 5000))
    assert short.rigor < 1 < long.rigor


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


def test_noise_ignores_rare_steps():
    rng = np.random.default_rng(2)
    levels = rng.standard_normal(1000)
    levels[500:] += 50
    assert measure_noise(levels) == pytest.approx(1, abs=0.1)


def test_noise_is_never_nothing():
    assert measure_noise(np.arange(100.0)) > 0
