import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import MissingExtraError
from assay.judge import changepoint
from assay.judge.changepoint import (
    DEFAULT,
    Look,
    build_signal,
    find_candidates,
    find_change_points,
    find_ease,
    find_level,
    measure_memory,
    measure_noise,
    measure_wander,
    prune_cuts,
)


def build_series(steps, n=200, noise=0.02, seed=0, level=100.0):
    """`steps`: index -> relative step."""
    rng = np.random.default_rng(seed)
    logs = np.full(n, math.log(level))
    for index, size in steps.items():
        logs[index:] += math.log1p(size)
    return np.exp(logs + noise * rng.standard_normal(n)).tolist()


def build_ar(coefficient, n, seed):
    rng = np.random.default_rng(seed)
    noise = [rng.standard_normal()]
    for innovation in rng.standard_normal(n - 1) * math.sqrt(1 - coefficient**2):
        noise.append(coefficient * noise[-1] + innovation)
    return np.array(noise)


def places(values, tuning=DEFAULT):
    return [change.index for change in find_change_points(values, tuning)]


# ---------------------------------------------------------------- nothing to find


@pytest.mark.parametrize(
    "values", [[], [1.0], [1.0] * 5, [math.nan] * 50, [None] * 50, [math.inf] * 9, [1, 2, 3, 4, 5]]
)
def test_too_few_values_have_no_change_point(values):
    assert find_change_points(values) == ()


@pytest.mark.parametrize("value", [5.0, 0.0, -3.0, 1e300, 5e-324])
def test_a_constant_series_has_no_change_point(value):
    assert find_change_points([value] * 100) == ()


def test_pure_noise_raises_hardly_any_alarm():
    alarms = sum(bool(places(build_series({}, seed=seed))) for seed in range(100))
    assert alarms <= 2


@pytest.mark.parametrize("kind", ["heavy", "bimodal"])
def test_odd_noise_raises_hardly_any_alarm(kind):
    alarms = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        noise = (
            rng.standard_t(2, 200) if kind == "heavy" else 2.0 * (rng.random(200) < 0.3) + rng.standard_normal(200) / 2
        )
        alarms += bool(places((100 * np.exp(0.02 * noise)).tolist()))
    assert alarms <= 4


def test_a_single_outlier_is_no_change():
    values = build_series({})
    values[100] *= 10
    assert places(values) == []


def test_two_outliers_in_a_row_are_no_change():
    values = build_series({})
    values[100] = values[101] = 1000.0
    assert places(values) == []


def test_a_spike_in_a_constant_series_is_no_change():
    assert places([100.0] * 50 + [500.0] + [100.0] * 50) == []


# ---------------------------------------------------------------- steps


@pytest.mark.parametrize("size", [0.05, -0.05, 0.25, 2.0, -0.9])
def test_a_step_is_found_where_it_is(size):
    (change,) = find_change_points(build_series({120: size}))
    assert abs(change.index - 120) <= 1
    assert change.size == pytest.approx(size, abs=0.02 * (1 + size))
    low, high = change.interval
    assert low <= change.size <= high
    assert (low > 0) == (high > 0) == (size > 0)
    assert change.after / change.before == pytest.approx(1 + change.size)
    assert change.confidence > 0.999


def test_several_steps_are_found():
    found = places(build_series({60: 0.1, 130: -0.08, 180: 0.2}))
    assert [abs(index - at) <= 2 for index, at in zip(found, (60, 130, 180), strict=True)] == [True] * 3


def test_a_step_shortly_before_the_end_is_found():
    assert places(build_series({195: 0.2})) == [195]


def test_steps_of_counts_without_noise_are_found_exactly():
    values = [1000.0] * 40 + [1010.0] * 40 + [1009.0] * 40
    changes = find_change_points(values)
    assert [change.index for change in changes] == [40, 80]
    assert changes[0].size == pytest.approx(0.01)
    assert changes[0].interval == pytest.approx((0.01, 0.01))
    assert changes[0].confidence == 1.0


def test_a_small_step_that_lasts_is_found_from_afar():
    series = [build_series({150: 0.024}, n=300, seed=seed) for seed in range(10)]
    near_only = replace(DEFAULT, far=Look(60, math.inf, 0.5))
    found = [
        sum(any(abs(index - 150) <= 10 for index in places(one, tuning)) for one in series)
        for tuning in (DEFAULT, near_only)
    ]
    assert found[0] > found[1]


def test_a_long_series_is_searched_in_stretches():
    at = [310, 900, 1399, 1400 + 250]
    values = build_series(dict(zip(at, (0.1, -0.1, 0.12, -0.1), strict=True)), n=2000)
    found = places(values)
    assert len(found) == 4
    assert all(abs(index - place) <= 2 for index, place in zip(found, at, strict=True))


def test_a_quiet_stretch_is_not_measured_by_a_noisy_one():
    noisy = build_series({}, n=1500, noise=0.1)
    quiet = build_series({750: 0.03}, n=1500, noise=0.005, seed=1)
    assert any(abs(index - 1500 - 750) <= 2 for index in places(noisy + quiet))


def test_missing_values_are_passed_over_and_places_are_those_of_the_series():
    values: list[float | None] = [*build_series({100: 0.2})]
    values[99] = None
    values[98] = math.nan
    values[20] = math.inf
    (change,) = find_change_points(values)
    assert (change.last_before, change.index) == (97, 100)


def test_zero_and_negative_values_are_compared_as_differences():
    rng = np.random.default_rng(0)
    values = np.concatenate((rng.normal(-5, 1, 60), rng.normal(5, 1, 60))).tolist()
    (change,) = find_change_points(values)
    assert change.index == 60
    assert change.size == pytest.approx(2.0, abs=0.2)
    assert change.before == pytest.approx(-5, abs=0.5)


def test_a_step_up_from_nothing_is_infinite():
    (change,) = find_change_points([0.0] * 40 + [3.0] * 40)
    assert change.size == math.inf
    assert (change.before, change.after) == pytest.approx((0.0, 3.0))


def test_the_interval_covers_the_true_step():
    covered = found = 0
    for seed in range(60):
        for change in find_change_points(build_series({100: 0.1}, seed=seed)):
            found += 1
            covered += change.interval[0] <= 0.1 <= change.interval[1]
    assert found >= 58
    assert covered / found >= 0.85


# ---------------------------------------------------------------- noise with memory


@pytest.mark.parametrize("coefficient", [0.0, 0.5, 0.8])
def test_memory_is_measured_despite_steps(coefficient):
    noise = build_ar(coefficient, 2000, 3)
    noise[700:] += 20
    noise[1500:] -= 10
    assert measure_memory(noise) == pytest.approx(coefficient, abs=0.1)


def test_memory_of_a_short_or_constant_series_is_none():
    assert measure_memory(np.arange(10.0)) == 0
    assert measure_memory(np.zeros(50)) == 0


def test_noise_with_memory_is_not_taken_for_steps():
    series = [(100 * np.exp(0.02 * build_ar(0.8, 300, seed))).tolist() for seed in range(40)]
    forgetful = replace(DEFAULT, least_memory=math.inf)
    alarms = [sum(bool(places(one, tuning)) for one in series) for tuning in (DEFAULT, forgetful)]
    assert alarms[0] <= 3
    assert alarms[1] >= 30  # what it would be if memory did not count


@pytest.mark.parametrize("coefficient", [0.3, 0.4, 0.6, 0.7, 0.9])
def test_short_histories_of_noise_with_memory_rarely_alarm(coefficient):
    series = [(100 * np.exp(0.02 * build_ar(coefficient, 200, seed))).tolist() for seed in range(60)]
    assert sum(bool(places(one)) for one in series) <= 5


def test_steps_are_found_in_noise_with_memory():
    noise = 0.02 * build_ar(0.7, 400, 5)
    noise[200:] += 0.15
    assert places((100 * np.exp(noise)).tolist()) == [200]


# ---------------------------------------------------------------- wandering levels


def build_wandering(seed, n=1000, size=1.0):
    """Noise on a level that drifts about slowly: what machines do."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal(n) + size * build_ar(0.95, n, seed + 1)


@pytest.mark.parametrize("draw", ["standard_normal", "standard_cauchy"])
def test_noise_that_is_nothing_but_noise_does_not_wander(draw):
    found = [
        measure_wander(build_signal((100 + 1e-3 * getattr(np.random.default_rng(seed), draw)(600)).tolist()), [])
        for seed in range(20)
    ]
    assert np.median(found) == pytest.approx(1, abs=0.12)


def test_a_level_that_drifts_wanders():
    found = [measure_wander(build_signal(np.exp(0.02 * build_wandering(seed)).tolist()), []) for seed in range(10)]
    assert min(found) > 1.5


def test_a_known_step_is_no_wandering():
    signal = build_signal(build_series({300: 0.5}, n=600))
    assert measure_wander(signal, [300]) == pytest.approx(1, abs=0.35)
    assert measure_wander(signal, []) > 3


def test_of_a_short_series_nobody_knows_whether_it_wanders():
    signal = build_signal(build_series({}, n=40))
    assert measure_wander(signal, []) == math.inf
    assert find_ease(math.inf) == 1


def test_ease_goes_from_least_to_none():
    assert find_ease(0.5) == find_ease(1.0) == DEFAULT.ease
    assert DEFAULT.ease < find_ease((1 + DEFAULT.unrest) / 2) < 1
    assert find_ease(DEFAULT.unrest) == find_ease(99.0) == 1


def test_a_small_step_is_believed_in_plain_noise_and_not_on_a_wandering_level():
    plain = [places(build_series({500: 0.03}, n=1000, seed=seed)) for seed in range(10)]
    wandering = []
    for seed in range(10):
        levels = 0.02 * build_wandering(seed, size=0.8)
        levels[500:] += 0.03
        wandering.append(places((100 * np.exp(levels)).tolist()))
    assert sum(any(abs(place - 500) <= 10 for place in found) for found in plain) >= 8
    assert sum(any(abs(place - 500) <= 10 for place in found) for found in wandering) <= 5


def test_a_longer_series_asks_for_more():
    short, long = (build_signal(build_series({}, n=n)) for n in (200, 5000))
    assert short.rigor < 1 < long.rigor


# ---------------------------------------------------------------- the parts


def test_noise_ignores_rare_steps():
    rng = np.random.default_rng(2)
    levels = rng.standard_normal(1000)
    levels[500:] += 50
    assert measure_noise(levels) == pytest.approx(1, abs=0.1)


def test_noise_is_never_nothing():
    assert measure_noise(np.arange(100.0)) > 0


def test_a_level_is_deaf_to_outliers():
    assert find_level(np.array([1.0, 1.0, 1.0, 1.0, 1e9])) == 1.0
    assert find_level(np.array([2.0])) == 2.0


def test_pruning_takes_back_cuts_where_there_is_no_step():
    signal = build_signal(build_series({100: 0.2}))
    assert prune_cuts(signal, [20, 50, 100, 150]) == [100]


def test_pruning_keeps_nothing_of_nothing():
    assert prune_cuts(build_signal(build_series({})), []) == []


def test_candidates_leave_no_piece_shorter_than_three():
    for seed in range(5):
        signal = build_signal(build_series({50: 0.3, 54: -0.3}, n=120, seed=seed))
        edges = [0, *find_candidates(signal, replace(DEFAULT, penalty=0.05)), 120]
        assert min(np.diff(edges)) >= 3


@pytest.mark.parametrize(
    "tuning", [replace(DEFAULT, near=Look(20, 1e9, 1), far=Look(60, 1e9, 1)), replace(DEFAULT, penalty=1e9)]
)
def test_bounds_that_nothing_reaches_find_nothing(tuning):
    assert places(build_series({100: 0.5}), tuning) == []


def test_without_ruptures_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ruptures", None)
    with pytest.raises(MissingExtraError, match="finding change points") as caught:
        changepoint.find_change_points(build_series({100: 0.5}))
    assert caught.value.extra == "stats"


# ---------------------------------------------------------------- properties


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.integers(-3, 3).map(float)), max_size=60
    )
)
def test_any_series_gives_ordered_places_of_finite_values(values):
    found = find_change_points(values)
    indices = [change.index for change in found]
    assert indices == sorted(set(indices))
    for change in found:
        assert values[change.index] is not None
        assert math.isfinite(values[change.index])
        assert change.last_before < change.index
        assert 0 <= change.confidence <= 1


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1e-6, 0.5, 1e6]))
def test_units_do_not_matter(seed, factor):
    values = build_series({70: 0.1, 130: -0.1}, seed=seed)
    scaled = find_change_points([value * factor for value in values])
    for one, other in zip(find_change_points(values), scaled, strict=True):
        assert (one.index, one.size) == (other.index, pytest.approx(other.size))
        assert other.before == pytest.approx(one.before * factor)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_rates_and_times_change_at_the_same_places(seed):
    values = build_series({70: 0.1, 130: -0.1}, seed=seed)
    assert places([1 / value for value in values]) == places(values)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 0.5))
def test_a_clear_step_is_always_found(seed, size):
    at = random.Random(seed).randrange(40, 160)
    assert any(abs(index - at) <= 2 for index in places(build_series({at: size}, seed=seed)))


def test_values_near_the_ends_of_floats_do_not_overflow():
    (change,) = find_change_points([-1e308] * 20 + [1e308] * 20)
    assert (change.index, change.size) == (20, pytest.approx(2.0))
    (change,) = find_change_points([1e-300] * 20 + [1e300] * 20)
    assert change.index == 20


def step_of_ten_percent(seed, points=30, at=20, noise=0.01):
    values = np.exp(noise * np.random.default_rng(seed).standard_normal(points))
    values[at:] *= 1.1
    found = [change for change in find_change_points(values.tolist()) if abs(change.index - at) <= 1]
    return found[0].interval if len(found) == 1 else None


def test_intervals_of_the_same_step_are_alike_and_cover_it():
    """A memory that is only supposed made some of them four times as wide as others."""
    found = [interval for seed in range(150) if (interval := step_of_ten_percent(seed))]
    widths = [high - low for low, high in found]
    assert len(found) >= 140
    assert max(widths) < 0.06
    assert max(widths) < 3 * np.median(widths)
    assert np.mean([low <= 0.1 <= high for low, high in found]) >= 0.9


def test_a_true_memory_widens_the_interval():
    """Points that resemble their neighbours tell less."""

    def draw(memory, seed):
        rng = np.random.default_rng(seed)
        x = np.zeros(200)
        for n in range(1, 200):
            x[n] = memory * x[n - 1] + 0.01 * np.sqrt(1 - memory**2) * rng.standard_normal()
        x[100:] += 0.1
        changes = find_change_points(np.exp(x).tolist())
        return max((c.interval[1] - c.interval[0] for c in changes if abs(c.index - 100) <= 1), default=np.nan)

    widths = [np.nanmedian([draw(memory, seed) for seed in range(12)]) for memory in (0.0, 0.7)]
    assert widths[1] > 1.5 * widths[0]
