import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bench.judge.made_series import build_ar, build_drifting, build_series

from assay.bench.judge import changepoint
from assay.bench.judge.changepoint import (
    DEFAULT,
    Window,
    find_candidates,
    find_change_points,
    level_drifts,
    move_cuts,
    prune_cuts,
    weigh_cut,
    weigh_interval,
    weigh_likelihood,
    weigh_young,
)
from assay.bench.judge.noise import build_signal, learn_density
from assay.errors import MissingExtraError


def rarely(value):
    """A case of the long suite: the others find the same faults."""
    return pytest.param(value, marks=pytest.mark.long)


def indices(values, tuning=DEFAULT):
    return [change.at for change in find_change_points(values, tuning)]


# ---------------------------------------------------------------- nothing to find


def draw_noise(kind, n, seed):
    rng = np.random.default_rng(seed)
    if kind == "heavy":
        return rng.standard_t(2, n)
    if kind == "bimodal":
        return 2.0 * (rng.random(n) < 0.3) + rng.standard_normal(n) / 2
    return build_ar(0.4, n, seed) if kind == "memory" else rng.standard_normal(n)


def raise_at(values, *places, to=1000.0):
    return [to if place in places else value for place, value in enumerate(values)]


@pytest.mark.parametrize(
    "values",
    [
        *([], [1.0] * 5, [math.nan] * 50, [None] * 50, [math.inf] * 9, [1, 2, 3, 4, 5]),  # too few values
        *([value] * 100 for value in (5.0, 0.0, -3.0, 1e300, 5e-324)),  # a constant series
        raise_at(build_series({}), 100),  # outliers
        raise_at(build_series({}), 100, 101),
        raise_at([100.0] * 101, 50, to=500.0),
    ],
)
def test_a_series_without_a_change_point(values):
    assert find_change_points(values) == ()


# ---------------------------------------------------------------- steps


@pytest.mark.parametrize("size", [0.05, -0.05, 0.25, 2.0, -0.9])
def test_a_step_is_found_where_it_is(size):
    (change,) = find_change_points(build_series({120: size}))
    assert abs(change.at - 120) <= 1
    assert change.effect == pytest.approx(size, abs=0.02 * (1 + size))
    low, high = change.interval
    assert low <= change.effect <= high
    assert (low > 0) == (high > 0) == (size > 0)
    assert change.after / change.before == pytest.approx(1 + change.effect)


def test_several_steps_are_found():
    found = indices(build_series({60: 0.1, 130: -0.08, 180: 0.2}))
    assert [abs(index - at) <= 2 for index, at in zip(found, (60, 130, 180), strict=True)] == [True] * 3
    assert indices(build_series({195: 0.2})) == [195], "shortly before the end"


def test_steps_of_counts_without_noise_are_found_exactly():
    values = [1000.0] * 40 + [1010.0] * 40 + [1009.0] * 40
    changes = find_change_points(values)
    assert [change.at for change in changes] == [40, 80]
    assert changes[0].effect == pytest.approx(0.01)
    assert changes[0].interval == pytest.approx((0.01, 0.01))


def test_a_small_step_that_lasts_is_found_from_afar():
    series = [build_series({150: 0.024}, n=300, seed=seed) for seed in range(10)]
    near_only = replace(DEFAULT, far=Window(60, math.inf, 0.5))
    found = [
        sum(any(abs(index - 150) <= 10 for index in indices(one, tuning)) for one in series)
        for tuning in (DEFAULT, near_only)
    ]
    assert found[0] > found[1]


def test_a_long_series_is_searched_in_stretches():
    at = [310, 900, 1399, 1400 + 250]
    found = indices(build_series(dict(zip(at, (0.1, -0.1, 0.12, -0.1), strict=True)), n=2000))
    assert len(found) == 4
    assert all(abs(index - expected) <= 2 for index, expected in zip(found, at, strict=True))


def test_a_quiet_stretch_is_not_measured_by_a_noisy_one():
    noisy = build_series({}, n=1500, noise=0.1)
    quiet = build_series({750: 0.03}, n=1500, noise=0.005, seed=1)
    assert any(abs(index - 1500 - 750) <= 2 for index in indices(noisy + quiet))


def test_missing_values_are_passed_over_and_places_are_those_of_the_series():
    values: list[float | None] = [*build_series({100: 0.2})]
    values[99] = None
    values[98] = math.nan
    values[20] = math.inf
    (change,) = find_change_points(values)
    assert change.at == 100


def test_zero_and_negative_values_are_compared_as_differences():
    rng = np.random.default_rng(0)
    values = np.concatenate((rng.normal(-5, 1, 60), rng.normal(5, 1, 60))).tolist()
    (change,) = find_change_points(values)
    assert change.at == 60
    assert change.effect == pytest.approx(2.0, abs=0.2)
    assert change.before == pytest.approx(-5, abs=0.5)
    (change,) = find_change_points([0.0] * 40 + [3.0] * 40)
    assert change.effect == math.inf
    assert (change.before, change.after) == pytest.approx((0.0, 3.0))
    (change,) = find_change_points([-1e308] * 20 + [1e308] * 20)
    assert (change.at, change.effect) == (20, pytest.approx(2.0)), "it does not overflow"
    (change,) = find_change_points([1e-300] * 20 + [1e300] * 20)
    assert change.at == 20


def test_the_interval_covers_the_true_step():
    changes = [each for seed in range(40) for each in find_change_points(build_series({100: 0.1}, seed=seed))]
    assert len(changes) >= 39
    assert np.mean([each.interval[0] <= 0.1 <= each.interval[1] for each in changes]) >= 0.85


# ---------------------------------------------------------------- autocorrelated noise


def test_noise_with_memory_would_be_taken_for_steps_without_its_autocorrelation():
    """`test_noise_rarely_alarms` has the same series."""
    forgetful = replace(DEFAULT, least_autocorrelation=math.inf)
    assert sum(bool(indices(draw_memory(0.8, 300, seed), forgetful)) for seed in range(20)) >= 15


def test_steps_are_found_in_noise_with_memory():
    noise = 0.02 * build_ar(0.7, 400, 5)
    noise[200:] += 0.15
    assert indices((100 * np.exp(noise)).tolist()) == [200]


# ---------------------------------------------------------------- young histories


def draw_young(kind, n, seed, height=0.0):
    """With a step in the middle, in units of the noise."""
    noise = draw_noise(kind, n, seed)
    noise[n // 2 :] += height
    return (100 * np.exp(0.02 * noise)).tolist()


def test_young_histories_would_alarm_without_their_own_bound(monkeypatch):
    series = [draw_young("memory", n, seed) for n in (8, 12, 15) for seed in range(40)]
    monkeypatch.setattr(changepoint, "YOUNG", 0)
    assert sum(bool(indices(one)) for one in series) >= 12


@pytest.mark.parametrize(("count", "after"), [(20, 3), (20, 6), (60, 4), (110, 3)])
def test_a_step_at_the_end_of_equal_values_is_found(count, after):
    (found,) = find_change_points([100.0] * (count - after) + [150.0] * after)
    assert found.at == count - after
    assert found.effect == pytest.approx(0.5)
    assert indices([7.0, 7.0, 7.0, 8.0, 8.0, 8.0]) == [3], "of counts in the shortest history"


def draw_with_outliers(n, seed, step=0.0, share=0.1):
    """A tenth of the points is higher, by 40% in the mean."""
    rng = np.random.default_rng(seed)
    values = 100 * (1 + 0.015 * rng.standard_normal(n))
    far_out = rng.random(n) < share
    values[far_out] *= 1 + 0.4 * rng.exponential(size=far_out.sum())
    values[n // 2 :] *= 1 + step
    return values.tolist()


@pytest.mark.parametrize(
    ("draw", "n", "share"),
    [
        (partial(draw_young, "gauss", height=8), 6, 0.85),
        (partial(draw_young, "gauss", height=5), 10, 0.75),
        (partial(draw_young, "gauss", height=4), 30, 0.8),
        (partial(draw_with_outliers, step=0.2), 12, 0.65),
        (partial(draw_with_outliers, step=0.1), 36, 0.8),
    ],
)
def test_a_clear_step_in_a_young_history_is_found(draw, n, share):
    found = [indices(draw(n=n, seed=seed)) for seed in range(50)]
    assert sum(any(abs(index - n // 2) <= 1 for index in one) for one in found) >= share * 50


def test_up_and_back_in_a_young_history_are_two_steps():
    values = [*draw_with_outliers(20, 1), *[1.2 * v for v in draw_with_outliers(20, 2)], *draw_with_outliers(20, 3)]
    assert [abs(found - at) <= 1 for found, at in zip(indices(values), (20, 40), strict=True)] == [True, True]


def test_of_fewer_points_more_is_asked():
    signal = build_signal(draw_young("gauss", 60, 0, 4.0))
    assert weigh_young(signal, 0, 30, 60) > weigh_young(signal, 20, 30, 40) > weigh_young(signal, 26, 30, 34)


def test_a_cut_whose_interval_holds_nothing_is_taken_back(monkeypatch):
    """Whatever else speaks for it."""
    monkeypatch.setattr(changepoint, "weigh_cut", lambda *_: 2.0)
    monkeypatch.setattr(changepoint, "YOUNG", 0)
    series = [draw_young("gauss", 12, seed, 1.5) for seed in range(20)]
    assert all(low > 0 or high < 0 for one in series for low, high in [c.interval for c in find_change_points(one)])
    signal = build_signal(series[0])
    monkeypatch.undo()
    assert weigh_interval(signal, DEFAULT, 0, 3, 6) < 1


# ---------------------------------------------------------------- drifting levels


def test_a_small_step_is_believed_in_plain_noise_and_not_on_a_drifting_level():
    plain = [indices(build_series({500: 0.03}, n=1000, seed=seed)) for seed in range(6)]
    drifting = []
    for seed in range(6):
        levels = 0.02 * build_drifting(seed, size=0.8)
        levels[500:] += 0.03
        drifting.append(indices((100 * np.exp(levels)).tolist()))
    assert sum(any(abs(index - 500) <= 10 for index in found) for found in plain) >= 5
    assert sum(any(abs(index - 500) <= 10 for index in found) for found in drifting) <= 3


# ---------------------------------------------------------------- the density of the noise


NO_DENSITY = replace(DEFAULT, drift_threshold=-math.inf)  # levels and spreads alone


def build_bimodal(steps, n=500, *, seed):
    """Three of ten points are 4% higher."""
    rng = np.random.default_rng(seed)
    factors = 1 + 0.01 * rng.standard_normal(n) + 0.04 * (rng.random(n) < 0.3)
    for index, size in steps.items():
        factors[index:] *= 1 + size
    return (100 * factors).tolist()


def count_found(values, true, tuning=DEFAULT):
    """Of the true ones within 5 points, and how many others."""
    found = indices(values, tuning)
    hits = sum(any(abs(index - one) <= 5 for index in found) for one in true)
    return hits, len(found) - hits


@pytest.mark.parametrize("n", [100, rarely(200), rarely(500), rarely(1000)])
@pytest.mark.parametrize("kind", ["gauss", "heavy", "bimodal"])
def test_pure_noise_of_whatever_length_hardly_ever_wanders(kind, n):
    """A few of a thousand: `benchmarks/changepoint.py` draws as many."""
    signals = [build_signal(np.exp(0.02 * draw_noise(kind, n, seed)).tolist()) for seed in range(60)]
    assert sum(level_drifts(signal, []) for signal in signals) <= 1


def test_the_longer_a_series_is_the_less_drifting_is_taken_for_chance():
    signals = [
        build_signal(np.exp(0.02 * build_drifting(seed, n, 0.35)).tolist()) for n in (200, 2000) for seed in range(12)
    ]
    found = [level_drifts(signal, []) for signal in signals]
    assert sum(found[:12]) < 6 < sum(found[12:])


def test_steps_between_two_modes_are_found_and_placed():
    steps = {100: 0.035, 200: -0.035, 260: 0.05, 400: 0.035}
    series = [build_bimodal(steps, seed=seed) for seed in range(40)]
    by_density, by_levels = (
        np.sum([count_found(values, steps, tuning) for values in series], axis=0) for tuning in (DEFAULT, NO_DENSITY)
    )
    assert by_density[0] >= 158
    assert by_density[1] <= 1
    assert by_levels[0] <= by_density[0] - 5


def test_a_cut_is_put_where_the_step_is_likeliest():
    moved = []
    for seed in range(20):
        signal = build_signal(build_bimodal({200: 0.03}, seed=seed))
        moved += move_cuts(signal, [208], learn_density(signal.x, [208]))
    assert sum(abs(cut - 200) <= 2 for cut in moved) >= 18


def test_cuts_that_are_put_elsewhere_leave_no_piece_shorter_than_three():
    signal = build_signal(build_series({50: 0.3, 53: -0.3}, n=100))
    cuts = move_cuts(signal, [45, 48], learn_density(signal.x, [50, 53]))
    assert min(np.diff([0, *cuts, 100])) >= 3


def test_where_one_mode_is_rare_by_chance_is_no_step():
    """The points lie lower for a while, and yet none of them where no point lay before."""
    by_levels, by_density = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        high = rng.random(400) < 0.5
        high[200:220] = False
        signal = build_signal((100 * np.exp(0.01 * rng.standard_normal(400) + 0.04 * high)).tolist())
        by_levels.append(weigh_cut(signal, DEFAULT, 0, 200, 220))
        by_density.append(weigh_likelihood(signal, learn_density(signal.x, []), DEFAULT, 0, 200, 220))
    assert max(by_levels) > 1
    assert max(by_density) < 1
    assert np.median(by_density) < 0.25


def test_memory_makes_a_step_less_likely():
    signal = build_signal(build_series({100: 0.05}))
    density = learn_density(signal.x, [100])
    around = (0, 100, 200)
    plain, doubtful = (
        weigh_likelihood(replace(signal, autocorrelation=autocorrelation), density, DEFAULT, *around)
        for autocorrelation in (0.0, 0.5)
    )
    assert doubtful == pytest.approx(plain / 3)


@pytest.mark.parametrize("factor", [1.5, 1e3, 1e12])
def test_high_steps_and_short_ones_stay_in_plain_noise(factor):
    """However far apart levels are, and however few points are on one of them."""
    values = build_series({}, n=400, noise=0.001)
    values[100:105] = [value * factor for value in values[100:105]]
    values[250:] = [value * factor for value in values[250:]]
    assert indices(values) == [100, 105, 250]


# ---------------------------------------------------------------- false alarms


def draw_memory(coefficient, n, seed):
    return (100 * np.exp(0.02 * build_ar(coefficient, n, seed))).tolist()


KINDS = ("gauss", "heavy", "bimodal", "memory")
YOUNG = [("gauss", 6), ("memory", 6), ("heavy", 12), ("bimodal", 12), ("memory", 30), ("heavy", 80)]
OTHERS = [(kind, n) for kind in KINDS for n in (6, 8, 10, 12, 15, 20, 30, 50, 80) if (kind, n) not in YOUNG]


def list_noises(values, draw, count, most, rare=()):
    """The rare ones are of the long suite: the others find the same faults."""
    cases = [(partial(draw, *value), count, most) for value in (*values, *rare)]
    return [*cases[: len(values)], *(pytest.param(*case, marks=pytest.mark.long) for case in cases[len(values) :])]


@pytest.mark.parametrize(
    ("draw", "count", "most"),
    [
        # at most 2% (benchmarks/changepoint.py); that 50 of these have more than 4 alarms would then be odd
        *list_noises(YOUNG, draw_young, 50, 4, OTHERS),
        *list_noises([("gauss", 200)], draw_young, 50, 1),
        *list_noises([("heavy", 200), ("bimodal", 200)], draw_young, 50, 2),
        *list_noises([(0.4, 200), (0.7, 200)], draw_memory, 100, 3, [(each, 200) for each in (0.2, 0.3, 0.6, 0.9)]),
        *list_noises([(0.8, 300)], draw_memory, 20, 1),
        *list_noises([(12,), (36,)], draw_with_outliers, 40, 3, [(80,)]),
        *list_noises([({}, 80)], build_bimodal, 60, 1, [({}, 200), ({}, 500)]),
        (lambda seed: (7.0 + (np.random.default_rng(seed).random(30) < 0.3)).tolist(), 50, 2),  # counts that repeat
    ],
)
def test_noise_rarely_alarms(draw, count, most):
    assert sum(bool(indices(draw(seed=seed))) for seed in range(count)) <= most


# ---------------------------------------------------------------- the parts


@pytest.mark.parametrize(("gap", "heights"), [(60, (4, -4)), (40, (12, -3, -9))])
def test_many_steps_do_not_hide_each_other_as_memory(gap, heights, monkeypatch):
    starts = range(gap, 490, gap)
    series = []
    for seed in range(12):
        noise = build_ar(0.7, 500, seed)
        for start, height in zip(starts, itertools.cycle(heights), strict=False):
            noise[start:] += height
        series.append((100 * np.exp(0.02 * noise)).tolist())
    again = np.sum([count_found(values, starts) for values in series], axis=0)
    monkeypatch.setattr(changepoint, "measure_autocorrelation_again", lambda signal, *_: signal)
    once = np.sum([count_found(values, starts) for values in series], axis=0)
    assert again[0] >= once[0] + 3
    assert again[1] <= 2


def test_pruning_takes_back_cuts_where_there_is_no_step():
    signal = build_signal(build_series({100: 0.2}))
    assert prune_cuts(signal, [20, 50, 100, 150], partial(weigh_cut, signal, DEFAULT)) == [100]
    density = learn_density(signal.x, [20, 50, 100, 150])
    assert prune_cuts(signal, [20, 50, 100, 150], partial(weigh_likelihood, signal, density, DEFAULT)) == [100]
    assert prune_cuts(signal, [], partial(weigh_cut, signal, DEFAULT)) == []


def test_candidates_leave_no_piece_shorter_than_three():
    for seed in range(5):
        signal = build_signal(build_series({50: 0.3, 54: -0.3}, n=120, seed=seed))
        edges = [0, *find_candidates(signal, replace(DEFAULT, penalty=0.05)), 120]
        assert min(np.diff(edges)) >= 3


def test_without_ruptures_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ruptures", None)
    with pytest.raises(MissingExtraError, match="finding change points") as caught:
        changepoint.find_change_points(build_series({100: 0.5}))
    assert caught.value.extra == "stats"


# ---------------------------------------------------------------- properties


@given(
    st.lists(
        st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.integers(-3, 3).map(float)), max_size=60
    )
)
def test_any_series_gives_ordered_places_of_finite_values(values):
    found = find_change_points(values)
    indices = [change.at for change in found]
    assert indices == sorted(set(indices))
    for change in found:
        assert values[change.at] is not None
        assert math.isfinite(values[change.at])


@given(st.integers(0, 10_000), st.sampled_from([1e-6, 0.5, 1e6]))
@settings(max_examples=8)
def test_units_do_not_matter_nor_whether_they_are_rates_or_times(seed, factor):
    values = build_series({70: 0.1, 130: -0.1}, seed=seed)
    found = find_change_points(values)
    scaled = find_change_points([value * factor for value in values])
    for one, other in zip(found, scaled, strict=True):
        assert (one.at, one.effect) == (other.at, pytest.approx(other.effect))
        assert other.before == pytest.approx(one.before * factor)
    assert indices([1 / value for value in values]) == [one.at for one in found]


def step_of_ten_percent(seed, points=30, at=20, noise=0.01):
    values = np.exp(noise * np.random.default_rng(seed).standard_normal(points))
    values[at:] *= 1.1
    found = [change for change in find_change_points(values.tolist()) if abs(change.at - at) <= 1]
    return found[0].interval if len(found) == 1 else None


def test_intervals_of_the_same_step_are_alike_and_cover_it():
    """An assumed autocorrelation made some of them four times as wide as others."""
    found = [interval for seed in range(30) if (interval := step_of_ten_percent(seed))]
    widths = [high - low for low, high in found]
    assert len(found) >= 28
    assert max(widths) < 0.06
    assert max(widths) < 3 * np.median(widths)
    assert np.mean([low <= 0.1 <= high for low, high in found]) >= 0.9


def test_a_true_memory_widens_the_interval():
    """Points that resemble their neighbours tell less."""

    def draw(autocorrelation, seed):
        x = 0.01 * build_ar(autocorrelation, 200, seed)
        x[100:] += 0.1
        changes = find_change_points(np.exp(x).tolist())
        return max((c.interval[1] - c.interval[0] for c in changes if abs(c.at - 100) <= 1), default=np.nan)

    widths = [np.nanmedian([draw(autocorrelation, seed) for seed in range(12)]) for autocorrelation in (0.0, 0.7)]
    assert widths[1] > 1.5 * widths[0]
