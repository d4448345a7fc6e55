"""What an error is measured by."""

from __future__ import annotations

import math

import numpy as np
import pytest

from assay.models.judge.tensor_blocks import survey, walk_blocks
from assay.models.judge.tensor_scale import LEAST_SHARE, Scale, build_scale


def scale_of(values: np.ndarray) -> Scale:
    return build_scale(values, survey(values))


def full(scale: Scale, shape: tuple[int, ...]) -> np.ndarray:
    block = tuple(slice(0, length) for length in shape)
    return np.broadcast_to(scale.at(block), shape)


def test_each_slice_has_its_own_size() -> None:
    values = np.ones((10, 12), np.float32)
    values[3] = 0.5
    values[:, 7] = 4
    found = full(scale_of(values), values.shape)
    row = math.sqrt((11 * 0.25 + 16) / 12)
    assert found[3, 0] == pytest.approx(min(row, math.sqrt((9 + 0.25) / 10)))
    assert found[0, 7] == pytest.approx(math.sqrt((11 + 16) / 12))


def test_no_slice_is_smaller_than_a_tenth_of_all() -> None:
    values = np.ones((10, 100))
    values[3] = 1e-6
    scale = scale_of(values)
    assert full(scale, values.shape)[3, 5] == pytest.approx(LEAST_SHARE * scale.whole)


def test_slices_of_a_few_elements_have_no_size() -> None:
    values = np.array([[100.0, 1e-3]] * 7)
    assert [axis for axis, _ in scale_of(values).slices] == []
    assert [axis for axis, _ in scale_of(np.concatenate([values, values])).slices] == [1]


def test_zeros_and_what_is_not_finite_do_not_count() -> None:
    values = np.array([3.0, 0, 0, 0, math.nan, math.inf, -3.0])
    assert scale_of(values).whole == 3
    assert scale_of(np.zeros(4)).whole == 0
    assert scale_of(np.full(4, math.nan)).whole == 0


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
    monkeypatch.setattr("assay.models.judge.tensor_scale.walk_blocks", lambda shape: walk_blocks(shape, 70))
    parts = scale_of(values)
    assert parts.whole == pytest.approx(whole.whole)
    for (axis, one), (other_axis, other) in zip(whole.slices, parts.slices, strict=True):
        assert axis == other_axis
        assert one == pytest.approx(other)
