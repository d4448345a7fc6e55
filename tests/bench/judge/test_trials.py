import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.bench.judge.trials import FEWEST, describe_trials, find_modes, has_trend, measure_drift, merge_reasons
from assay.bench.values.comparison import Samples


def test_a_trend_is_seen():
    for sign in (1, -1):
        values = [100 + sign * trial for trial in range(FEWEST)]
        assert has_trend(values)
        assert measure_drift(values) == pytest.approx(sign * (FEWEST - 1) / 100, rel=0.05)
    rng = np.random.default_rng(0)
    assert has_trend((np.arange(30) + 3 * rng.standard_normal(30)).tolist()), "in noise"
    assert measure_drift([-1.0, 0.0, 1.0]) == 2.0, "about 0"


def test_no_trend():
    for values in ([], [1.0], list(range(FEWEST - 1)), [1.0] * 30, [1.0, 2.0] * 15):
        assert not has_trend(values)
    rng = np.random.default_rng(1)
    assert sum(has_trend(rng.standard_normal(15).tolist()) for _ in range(300)) <= 6


@pytest.mark.parametrize("large", [1e308, -1e308])
def test_huge_values_do_not_overflow(large):
    values = [large, -large, 0.0, large, 1.0, -large, 2.0, large, 0.0, 5.0]
    assert not has_trend(values)
    assert abs(measure_drift(values)) < 10
    assert find_modes(values) is None


def test_modes_are_found_whatever_the_order():
    values = [1.0, 5.0, 1.1, 5.1, 0.9, 1.0, 4.9, 1.05]
    assert find_modes(values) == pytest.approx((1.0, 5.0), abs=0.06)
    assert find_modes(values[::-1]) == find_modes(values)
    assert find_modes([1.0] * 5 + [2.0] * 5) == (1.0, 2.0), "without spread"
    for none in ([], [1.0] * 20, [1.0, 5.0] * 3, [1.0] * 19 + [9.0]):
        assert find_modes(none) is None, "too few values, or a single outlier"
    rng = np.random.default_rng(2)
    assert sum(find_modes(np.exp(rng.standard_normal(10) / 2).tolist()) is not None for _ in range(300)) <= 15


@given(st.lists(st.floats(-1e9, 1e9), max_size=30))
def test_any_values_are_described(values):
    assert all(isinstance(one, str) for one in describe_trials(Samples(tuple(values)), Samples(())))


def test_warnings_name_their_side():
    rising = Samples(tuple(range(100, 120)), "v1.2")
    assert describe_trials(rising, Samples(()))[0].startswith("v1.2: drifts")
    assert describe_trials(Samples(()), Samples(tuple(range(100, 120))))[0].startswith("head: drifts")


def test_reasons_of_contamination_are_counted_apart():
    side = Samples((1.0,) * 4, contaminated={0: "throttled", 1: "foreign load", 2: "throttled", 9: "gone"})
    assert describe_trials(side, Samples(())) == (
        "base: 2 of 4 trials left out: throttled",
        "base: 1 of 4 trials left out: foreign load",
    )


def test_reasons_that_differ_in_their_numbers_alone_are_one():
    load = {n: f"others used {52 + n % 40}% of the CPUs during the run" for n in range(145)}
    (told,) = describe_trials(Samples((1.0,) * 145, contaminated=load), Samples(()))
    assert told == "base: 145 of 145 trials left out: others used 52 to 91% of the CPUs during the run"
    assert merge_reasons((n, "others used 52% of them") for n in (3, 4)) == {"others used 52% of them": [3, 4]}
    merged = merge_reasons((n, f"other processes were on the GPU: {n}, {n + 1}") for n in range(100, 110))
    assert merged == {"other processes were on the GPU: 100, 101, 102, 103, 104": list(range(100, 110))}
    assert merge_reasons([]) == {}
