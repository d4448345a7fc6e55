"""Blocks cover a tensor once; a first look at it tells the truth."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import UsageError
from assay.models.judge.tensor_errors import (
    LEAST_SHARE,
    Kind,
    TensorScale,
    build_scale,
    find_kind,
    survey,
    walk_blocks,
)

SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple)


@given(SHAPES, st.integers(1, 60))
def test_blocks_cover_every_element_once_and_are_small(shape: tuple[int, ...], limit: int) -> None:
    seen = np.zeros(shape, int)
    for block in walk_blocks(shape, limit):
        assert len(block) == len(shape)
        assert seen[block].size <= limit
        seen[block] += 1
    assert (seen == 1).all()


def test_blocks_are_not_many_more_than_needed() -> None:
    assert list(walk_blocks((3, 0, 2))) == []
    assert len(list(walk_blocks((1, 3, 100, 100), 1 << 10))) <= 60
    assert len(list(walk_blocks((100000, 2), 1 << 10))) == math.ceil(200000 / 1024)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("float32", Kind.FLOAT), ("float16", Kind.FLOAT), ("longdouble", Kind.FLOAT), ("int64", Kind.INTEGER),
        ("uint8", Kind.INTEGER), ("bool", Kind.BOOL), ("complex64", Kind.COMPLEX), ("U3", Kind.TEXT), ("O", Kind.TEXT),
        (ml_dtypes.bfloat16, Kind.FLOAT), (ml_dtypes.float8_e5m2, Kind.FLOAT), (ml_dtypes.uint4, Kind.INTEGER),
    ],
)  # fmt: skip
def test_kinds(dtype: Any, kind: Kind) -> None:
    assert find_kind(np.zeros(2, dtype)) is kind


@pytest.mark.parametrize("dtype", ["datetime64[s]", "V4", [("a", "i4")]])
def test_what_has_no_kind_is_refused(dtype: Any) -> None:
    with pytest.raises(UsageError):
        find_kind(np.zeros(2, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", ml_dtypes.bfloat16, "complex64"])
def test_a_first_look(dtype: Any) -> None:
    found = survey(np.array([[1, math.nan], [-3, math.inf], [0, 2]], dtype))
    assert (found.nan, found.inf, found.finite, found.largest) == (1, 1, 4, 3)
    assert found.spread == 5
    assert not found.is_constant


def test_a_first_look_at_odd_ones() -> None:
    assert survey(np.full(5, 3, np.uint64)).is_constant
    assert survey(np.zeros((2, 2), np.int8)).is_zero
    assert survey(np.array([2**64 - 1, 2**64 - 2], np.uint64)).spread == 1
    assert survey(np.array([-(2**63), 2**63 - 1])).spread == float(2**64 - 1)
    nothing = survey(np.array([math.nan, math.inf]))
    assert (nothing.finite, nothing.largest, nothing.is_constant) == (0, 0, False)
    assert not survey(np.array([1.0, math.nan])).is_constant
    assert survey(np.array([1 + 2j, 1 + 2j])).is_constant
    assert not survey(np.array([1 + 2j, 1 + 3j])).is_constant


def scale_of(values: np.ndarray) -> TensorScale:
    return build_scale(values, survey(values))


def full(scale: TensorScale, shape: tuple[int, ...]) -> np.ndarray:
    block = tuple(slice(0, length) for length in shape)
    return np.broadcast_to(scale.at(block), shape)


def test_each_slice_has_its_own_size_but_at_least_a_tenth_of_all() -> None:
    values = np.ones((10, 12), np.float32)
    values[3] = 0.5
    values[:, 7] = 4
    found = full(scale_of(values), values.shape)
    row = math.sqrt((11 * 0.25 + 16) / 12)
    assert found[3, 0] == pytest.approx(min(row, math.sqrt((9 + 0.25) / 10)))
    assert found[0, 7] == pytest.approx(math.sqrt((11 + 16) / 12))
    values = np.ones((10, 100))
    values[3] = 1e-6
    scale = scale_of(values)
    assert full(scale, values.shape)[3, 5] == pytest.approx(LEAST_SHARE * scale.whole)


def test_few_elements_zeros_and_what_is_not_finite_have_no_size() -> None:
    values = np.array([[100.0, 1e-3]] * 7)
    assert [axis for axis, _ in scale_of(values).slices] == []
    assert [axis for axis, _ in scale_of(np.concatenate([values, values])).slices] == [1]
    assert scale_of(np.array([3.0, 0, 0, 0, math.nan, math.inf, -3.0])).whole == 3
    assert scale_of(np.zeros(4)).whole == scale_of(np.full(4, math.nan)).whole == 0


@pytest.mark.parametrize(
    ("values", "cut"),
    [
        ([1.0, 2.0, -1e9, -1e9], True),
        ([1.0, 2.0, -1e9, -1.001e9], True),
        ([0.0, 0.0, -1e9, -1e9], True),
        ([1.0, 2.0, -1e9], False),  # one alone may be anything
        ([1.0, 2.0, 1e9, 1e9], False),
        ([1.0, 2.0, -1e9, 1e9], False),
        ([1.0, 2.0, -1e9, -9e8], False),
        ([1e7, 2.0, -1e9, -1e9], False),
        ([1.0, 2.0, -9e3, -9e3], False),
        ([-1e9, -1e9], False),
    ],
)
def test_signs_for_nothing(values: list[float], cut: bool) -> None:
    found = scale_of(np.array(values))
    assert (found.cut < math.inf) is cut
    if cut:
        assert found.whole < 3


def test_several_blocks_make_one_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=(20, 30, 10)).astype(np.float32)
    values[2, 3, 4] = math.nan
    whole = scale_of(values)
    monkeypatch.setattr("assay.models.judge.tensor_errors.walk_blocks", lambda shape: walk_blocks(shape, 70))
    parts = scale_of(values)
    assert parts.whole == pytest.approx(whole.whole)
    for (axis, one), (other_axis, other) in zip(whole.slices, parts.slices, strict=True):
        assert axis == other_axis
        assert one == pytest.approx(other)
