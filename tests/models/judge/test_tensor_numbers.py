"""Histograms and heat maps hold what the tensors hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.models.judge import tensor_numbers
from assay.models.judge.tensor_numbers import build_histogram, can_draw, find_longest
from assay.models.judge.tensors import compare_tensors
from assay.models.values.tensors import Heat, Tolerance


def build_heat(
    expected: np.ndarray,
    actual: np.ndarray,
    rows: int,
    columns: int,
    tolerance: Tolerance = Tolerance(),  # noqa: B008
) -> Heat:
    complete = compare_tensors("y", expected, actual, tolerance).tolerance
    return tensor_numbers.build_heat(expected, actual, rows, columns, complete)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_errors_are_counted_by_powers_of_ten() -> None:
    expected = np.zeros(8)
    actual = np.array([0, 0, 0.02, 0.03, 5, -0.5, math.nan, math.inf])
    found = build_histogram(expected, actual)
    assert found.edges == pytest.approx((0.01, 0.1, 1, 10))
    assert found.counts == (2, 1, 1)
    assert (found.zero, found.broken) == (2, 2)


def test_many_decades_are_cut_from_below() -> None:
    actual = 10.0 ** np.arange(-30, 1)
    found = build_histogram(np.zeros(31), actual)
    assert len(found.counts) == 16
    assert sum(found.counts) == 31
    assert found.edges[0] == 0
    assert found.edges[-1] == pytest.approx(10)


def test_equal_tensors_have_no_bars() -> None:
    found = build_histogram(noise(5, 5), noise(5, 5))
    assert (found.edges, found.counts, found.zero) == ((), (), 25)
    assert build_histogram(np.float32(3), np.float32(4)).counts == (1,)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((3, 5), (0, 1)), ((1, 64, 7, 9), (1, 3)), ((5,), (0,)), ((1, 5), (1,)), ((9, 1, 2, 9), (0, 3)), ((1, 1), (0,))],
)
def test_the_two_longest_axes_are_drawn(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    assert find_longest(shape) == axes
    heat = build_heat(np.ones(shape), np.ones(shape), 4, 4)
    assert heat.axes == axes
    assert len(heat.cells) <= 4
    assert all(len(row) <= 4 for row in heat.cells)


def test_the_worst_error_of_everything_else_is_shown() -> None:
    expected = noise(2, 8, 8)
    actual = expected.copy()
    actual[1, 6, 3] += 1
    actual[0, 1, 7] = math.nan
    heat = build_heat(expected, actual, 8, 8)
    wrong = {(row, column) for row in range(8) for column in range(8) if heat.cells[row][column] > 1}
    assert wrong == {(6, 3), (1, 7)}
    assert heat.cells[1][7] == math.inf
    assert heat.cells[0][0] == 0


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.integers(1, 9), st.data())
def test_one_wrong_element_is_in_its_cell(
    height: int, width: int, rows: int, columns: int, data: st.DataObject
) -> None:
    place = data.draw(st.tuples(st.integers(0, height - 1), st.integers(0, width - 1)))
    expected = np.ones((height, width), np.float32)
    actual = expected.copy()
    actual[place] = 2
    heat = build_heat(expected, actual, rows, columns)
    down, across = heat.lengths
    cells = np.array(heat.cells)
    index = place if (height > 1 and width > 1) else (0, max(place))
    where = (index[0] * cells.shape[0] // down, index[1] * cells.shape[1] // across)
    assert cells[where] > 1
    assert (cells > 1).sum() == 1


def test_cells_are_beyond_one_exactly_where_elements_are_wrong() -> None:
    expected = noise(30, 40)
    actual = expected + np.float32(2e-4) * noise(30, 40, seed=3)
    heat = build_heat(expected, actual, 30, 40)
    wrong = compare_tensors("y", expected, actual).wrong
    assert sum(cell > 1 for row in heat.cells for cell in row) == wrong > 0


def test_an_integer_off_by_one_and_a_bound_of_ulp_are_shown() -> None:
    expected = np.arange(12).reshape(3, 4)
    assert build_heat(expected, expected + 1, 3, 4).cells[0][0] > 1
    assert build_heat(expected, expected + 1, 3, 4, Tolerance(int_abs=1)).cells[0][0] < 1
    ones = np.ones(4, np.float32)
    assert max(build_heat(ones, np.nextafter(ones, np.float32(2)), 1, 4, Tolerance(ulp=0)).cells[0]) > 1


def test_several_blocks_make_one_map() -> None:
    expected = noise(3, 500, 600)
    actual = expected.copy()
    actual[2, 499, 599] = actual[0, 0, 0] = 50
    cells = np.array(build_heat(expected, actual, 10, 10).cells)
    assert {tuple(place) for place in np.argwhere(cells > 1).tolist()} == {(0, 0), (9, 9)}


def test_what_can_be_drawn() -> None:
    assert can_draw(np.ones(3), np.ones(3, int))
    assert not can_draw(np.ones(3), np.ones(4))
    assert not can_draw(np.ones(0), np.ones(0))
    assert not can_draw(np.array(["a"]), np.array(["a"]))
    assert not can_draw(np.array(["a"]), np.ones(1))
