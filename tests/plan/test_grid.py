"""Grids are counted and indexed; subsets are drawn from them by a seed."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.plan.grid import Grid, draw, draw_rows, shuffled
from assay.values.study import Choices, Condition, Random, Subset, Sweep


def sweep(zips=(), when=(), **axes) -> Sweep:
    built = {name: axis if isinstance(axis, Random) else Choices(tuple(axis)) for name, axis in axes.items()}
    return Sweep(built, tuple(zips), tuple(when))


def rows(one: Sweep, *, distinct=True) -> list[dict]:
    return list(Grid(one, distinct=distinct).rows())


def test_the_last_axis_runs_fastest_no_axes_are_one_run_and_an_empty_axis_is_none():
    found = rows(sweep(a=[1, 2], b=["x", "y"]))
    assert [(row["a"], row["b"]) for row in found] == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]
    assert rows(sweep()) == [{}]
    assert rows(sweep(a=[1], b=[])) == []


def test_zipped_axes_advance_together_and_parameters_keep_the_files_order():
    found = rows(sweep([("a", "c")], a=[1, 2], b=[5, 6], c=["x", "y"]))
    assert [list(row.items()) for row in found] == [
        [("a", 1), ("b", 5), ("c", "x")], [("a", 1), ("b", 6), ("c", "x")],
        [("a", 2), ("b", 5), ("c", "y")], [("a", 2), ("b", 6), ("c", "y")],
    ]  # fmt: skip


def test_a_single_value_goes_with_all_of_a_zip():
    assert rows(sweep([("a", "b")], a=[1, 2], b=[9])) == [{"a": 1, "b": 9}, {"a": 2, "b": 9}]


def test_conditions_keep_what_they_name():
    assert rows(sweep((), [Condition("a", (1, 3))], a=[1, 2, 3], b=[0])) == [{"a": 1, "b": 0}, {"a": 3, "b": 0}]
    zipped = sweep([("a", "b")], [Condition("b", ("y",))], a=[1, 2], b=["x", "y"])
    assert rows(zipped) == [{"a": 2, "b": "y"}]
    assert rows(sweep((), [Condition("a", (True,))], a=[1, True])) == [{"a": True}], "1 is not True"


def test_a_value_listed_twice_counts_once_or_twice():
    assert [row["a"] for row in rows(sweep(a=[48, 48, 64]))] == [48, 64]
    assert [row["a"] for row in rows(sweep(a=[48, 48, 64]), distinct=False)] == [48, 48, 64]
    assert Grid(sweep(a=[48, 48, 64]), distinct=True).groups[0].repeats == ((48,),)
    assert [row["a"] for row in rows(sweep(a=[1, True, 1.0, "1"]))] == [1, True, 1.0, "1"]


AXES = st.dictionaries(
    st.sampled_from("abcd"), st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True), max_size=4
)


@given(AXES)
def test_a_grid_has_the_product_of_its_axes_and_no_two_alike(axes):
    found = rows(sweep(**axes))
    assert len(found) == math.prod(len(values) for values in axes.values())
    assert len({tuple(row.items()) for row in found}) == len(found)
    assert all(list(row) == list(axes) for row in found)


@given(AXES)
def test_rows_by_number_are_the_rows_in_order(axes):
    grid = Grid(sweep(**axes), distinct=True)
    assert [grid.row(index, random.Random(0)) for index in range(grid.count)] == list(grid.rows())


@given(st.integers(0, 200), st.integers())
def test_shuffled_numbers_are_all_there_once(count, seed):
    found = list(shuffled(count, random.Random(seed)))
    assert sorted(found) == list(range(count))
    assert found == list(shuffled(count, random.Random(seed)))


def test_shuffling_a_huge_range_costs_what_is_taken():
    drawn = shuffled(10**15, random.Random(1))
    assert len({next(drawn) for _ in range(100)}) == 100


def test_every_place_of_a_shuffle_is_likely():
    firsts = {tuple(shuffled(3, random.Random(seed))) for seed in range(200)}
    assert len(firsts) == 6


def subset(count, *sweeps, seed=0, per_sweep=False, distinct=True):
    grids = [Grid(one, distinct=distinct) for one in sweeps]
    return list(draw_rows(grids, Subset(count, seed, per_sweep), distinct=distinct))


def test_a_subset_is_that_many_different_rows_in_the_grids_order():
    one = sweep(a=range(10), b=range(10))
    found = [row for _, row in subset(20, one)]
    everything = rows(one)
    assert len(found) == 20
    assert [everything.index(row) for row in found] == sorted({everything.index(row) for row in found})


def test_a_subset_follows_from_its_seed_for_ever():
    one = sweep(a=range(100), b=Random("uniform", 0, 1), c=Random("log_uniform", 1e-5, 1))
    assert subset(5, one, seed=3) == subset(5, one, seed=3)
    assert subset(5, one, seed=3) != subset(5, one, seed=4)
    assert [row for _, row in subset(2, one, seed=3)] == PINNED


PINNED = [{"a": 23, "b": 0.560324, "c": 0.0344767}, {"a": 54, "b": 0.218155, "c": 2.45132e-05}]


@pytest.mark.parametrize("per_sweep", [False, True])
@given(st.data(), st.integers(), st.integers(1, 20), st.integers(0, 20))
def test_an_enlarged_subset_keeps_its_runs(per_sweep, data, seed, count, more):
    axis = st.sampled_from([[1], [1, 2], list(range(7)), Random("uniform", 0, 1), Random("int", 1, 100)])
    sweeps = [
        sweep(**data.draw(st.dictionaries(st.sampled_from("abc"), axis, min_size=1)), only=[index])
        for index in range(data.draw(st.integers(1, 3)))
    ]
    small = subset(count, *sweeps, seed=seed, per_sweep=per_sweep)
    large = subset(count + more, *sweeps, seed=seed, per_sweep=per_sweep)
    for each in small:
        large.remove(each)


def test_the_first_five_of_random_numbers_are_the_first_five_of_eight():
    one = sweep(lr=Random("log_uniform", 1e-5, 1), momentum=Random("uniform", 0, 1))
    assert subset(8, one)[:5] == subset(5, one)


def test_a_subset_counts_rows_of_two_sweeps_that_are_the_same_once():
    same = sweep(a=range(5))
    assert sorted(row["a"] for _, row in subset(5, same, same)) == list(range(5))


def test_random_axes_are_drawn_as_often_as_asked_and_other_axes_evenly():
    found = [row for _, row in subset(20, sweep(seed=[0, 1], lr=Random("uniform", 0, 1)))]
    assert sorted(row["seed"] for row in found) == [0] * 10 + [1] * 10
    assert len({row["lr"] for row in found}) == 20


def test_a_sweep_without_random_axes_is_not_repeated_beside_one_that_has_them():
    found = subset(10, sweep(a=[1, 2]), sweep(b=Random("uniform", 0, 1)))
    assert [place for place, _ in found].count(0) == 2
    assert [place for place, _ in found].count(1) == 8


def test_a_subset_of_an_empty_grid_is_empty_and_one_larger_than_the_grid_is_the_grid():
    assert subset(5, sweep(a=[], b=Random("uniform", 0, 1))) == []
    assert [row for _, row in subset(9, sweep(a=[1, 2]))] == [{"a": 1}, {"a": 2}]


@given(st.sampled_from(["uniform", "log_uniform"]), st.floats(1e-9, 1e9), st.floats(1e-9, 1e9), st.integers())
def test_drawn_numbers_lie_between_their_bounds(kind, low, high, seed):
    low, high = min(low, high), max(low, high)
    assert low <= draw(Random(kind, low, high), random.Random(seed)) <= high


def test_drawn_numbers_are_short_unless_the_bounds_are_close():
    rng = random.Random(0)
    assert all(len(repr(draw(Random("uniform", 0, 1), rng))) <= 10 for _ in range(100))
    assert len({draw(Random("uniform", 1, 1 + 1e-9), rng) for _ in range(100)}) > 90


@pytest.mark.parametrize("kind", ["int", "log_int"])
def test_whole_numbers_are_whole_and_reach_both_bounds(kind):
    rng = random.Random(0)
    drawn = [draw(Random(kind, 2, 5), rng) for _ in range(2000)]
    assert {type(each) for each in drawn} == {int}
    assert set(drawn) == {2, 3, 4, 5}
    least = min(drawn.count(each) for each in (2, 3, 4, 5))
    assert least > (400 if kind == "int" else 200)


def test_log_uniform_is_even_over_the_magnitudes():
    rng = random.Random(0)
    assert 400 < sum(draw(Random("log_uniform", 1e-4, 1), rng) < 1e-2 for _ in range(1000)) < 600


@pytest.mark.parametrize("distinct", [True, False])
def test_without_a_subset_every_sweep_is_there_in_order(distinct):
    grids = [Grid(sweep(a=[1, 2]), distinct=distinct), Grid(sweep(a=[2, 3]), distinct=distinct)]
    found = list(draw_rows(grids, None, distinct=distinct))
    assert found == [(0, {"a": 1}), (0, {"a": 2}), (1, {"a": 2}), (1, {"a": 3})]
