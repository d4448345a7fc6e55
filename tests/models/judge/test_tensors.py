"""Comparing tensors: what must fail, what must pass, and that no option lets everything through."""

from __future__ import annotations

import dataclasses
import math
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from assay.errors import UsageError
from assay.models.judge.tensors import compare_tensors, find_dead_parts, judge_outputs
from assay.models.values.model import Tolerances
from assay.models.values.tensors import ACTUAL_ZERO, EXPECTED_CONSTANT, TensorComparison, Tolerance
from assay.values.verdict import VerdictKind

PASS, FAIL, INCONCLUSIVE, ERROR = (
    VerdictKind.PASS, VerdictKind.FAIL, VerdictKind.INCONCLUSIVE, VerdictKind.ERROR,
)  # fmt: skip


def f32(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def compare(expected: Any, actual: Any, *, op: str | None = None, worst: int = 10, **bounds: Any) -> TensorComparison:
    return compare_tensors("y", expected, actual, Tolerance(**bounds), op=op, worst=worst)


def messages(found: TensorComparison) -> str:
    return "\n".join(finding.message for finding in found.verdict.findings)


def test_infinity_is_not_three_and_large_integers_are_exact() -> None:
    found = compare(f32(math.inf, 1, 2), f32(3, 1, 2))
    assert found.verdict.kind is FAIL
    assert (found.misplaced, found.inf, found.error) == (1, (1, 0), math.inf)
    assert "expected inf, actual 3" in messages(found)
    found = compare(np.array([2**40, 1]), np.array([2**40 + 100, 1]))
    assert (found.verdict.kind, found.max_abs) == (FAIL, 100)
    assert "expected 1099511627776, actual 1099511627876: by 100" in messages(found)


# every way to loosen a comparison, each as far as it goes
LOOSEST: dict[str, Tolerance] = {
    "abs": Tolerance(abs=1e30),
    "rel": Tolerance(rel=1e30),
    "ulp": Tolerance(ulp=2**62),
    "int_abs": Tolerance(int_abs=2**62),
    "int_share": Tolerance(int_abs=2**62, int_share=1.0),
    "allowed_wrong": Tolerance(allowed_wrong=0.999999),
    "min_cosine": Tolerance(min_cosine=-0.999),
    "min_sqnr_db": Tolerance(min_sqnr_db=-1e9),
    "max_shift": Tolerance(max_shift=1e30),
    "top_k": Tolerance(top_k=10**9),
    "allow_constant": Tolerance(allow_constant=True),
    "check_dtype": Tolerance(check_dtype=False),
    "quantized": Tolerance(quantized=True),
}
ALL_AT_ONCE = Tolerance(
    abs=1e30, rel=1e30, ulp=2**62, int_abs=2**62, int_share=1.0, allowed_wrong=0.999999, allow_constant=True,
    check_dtype=False, quantized=True, max_shift=1e30,
)  # fmt: skip
BROKEN = {
    "NaN": (f32(1, 2, 3), f32(1, math.nan, 3)),
    "lost NaN": (f32(1, math.nan, 3), f32(1, 2, 3)),
    "infinity": (f32(1, 2, 3), f32(1, math.inf, 3)),
    "sign": (f32(1, math.inf, 3), f32(1, -math.inf, 3)),
    "all zero": (f32(1, 2, 3), f32(0, 0, 0)),
    "constant": (f32(1, 2, 3), f32(2, 2, 2)),
    "shape": (f32(1, 2, 3), f32(1, 2, 3).reshape(1, 3)),
    "all zero integers": (np.array([1, 2, 3]), np.array([0, 0, 0])),
    "a mask that is never set": (np.array([True, False]), np.array([False, False])),
    "text": (np.array([1, 2, 3]), np.array(["1", "2", "3"])),
}


def test_every_option_is_known_here() -> None:
    assert set(LOOSEST) == {field.name for field in dataclasses.fields(Tolerance)}


@pytest.mark.parametrize("damage", BROKEN)
@pytest.mark.parametrize("tolerance", [*LOOSEST.values(), ALL_AT_ONCE], ids=[*LOOSEST, "all at once"])
def test_no_option_lets_everything_pass(tolerance: Tolerance, damage: str) -> None:
    expected, actual = BROKEN[damage]
    found = compare_tensors("y", expected, actual, tolerance)
    assert found.verdict.kind is FAIL
    assert found.is_broken


def test_a_shift_that_all_elements_share_is_bounded_apart_from_their_errors() -> None:
    expected = np.random.default_rng(1).normal(size=256).astype(np.float32)
    noisy = expected + np.float32(0.1) * np.tile(np.float32([1, -1]), 128)
    loose = Tolerance(rel=1.0, max_shift=0.05)
    assert compare_tensors("y", expected, noisy, loose).verdict.kind is PASS
    shifted = compare_tensors("y", expected, expected + np.float32(0.1), loose)
    assert "all elements share a factor or an offset of" in messages(shifted)


@pytest.mark.parametrize(
    ("shapes", "guess"),
    [
        (((4, 1), (1, 4)), "the axes are in another order"),
        (((2, 3), (3, 2)), "the axes are in another order"),
        (((1, 5), (5,)), "axes of length 1 are too many or missing"),
        (((2, 6), (3, 4)), "the number of elements is the same"),
        (((2,), (3,)), ""),
        (((), (1,)), "axes of length 1"),
    ],
)
def test_another_shape_is_reported_clearly(shapes: tuple[tuple[int, ...], ...], guess: str) -> None:
    expected, actual = (np.ones(shape, np.float32) for shape in shapes)
    found = compare(expected, actual)
    (finding,) = found.verdict.findings
    assert found.verdict.kind is FAIL
    assert finding.message.startswith(f"shape {shapes[1]} instead of {shapes[0]}")
    assert guess in finding.message
    assert found.count == found.wrong == 0


def test_a_flipped_argmax_is_shown_without_a_request() -> None:
    """Within the tolerance it passes; but another class is another answer."""
    expected = np.tile(f32(0.1, 0.5, 0.4999999), (8, 1))
    actual = expected.copy()
    actual[5] = f32(0.1, 0.4999999, 0.5)
    found = compare(expected, actual)
    assert found.verdict.kind is PASS
    assert found.top_k == 7 / 8
    assert found.flags == (
        "the largest element is another one in 1 of 8 (12.5%) rows; first in row [5]: 2 instead of 1",
    )
    assert compare(expected, expected).flags == ()
    assert compare(expected, expected).top_k == 1


def test_what_does_not_look_like_scores_is_not_ranked() -> None:
    for shape, dtype in (((), "float32"), ((4, 1), "float32"), ((1, 2, 3, 4), "float32"), ((2, 4), "int32")):
        array = noise(*shape, 2)[..., 0].astype(dtype)
        assert compare(array, array.copy()).top_k is None
    layer = compare(f32(0.1, 0.5, 0.4999999), f32(0.1, 0.4999999, 0.5), op="MatMul")
    assert (layer.flags, layer.top_k) == ((), None)


def test_all_outputs_are_compared_and_named() -> None:
    expected = {"a": f32(1, 2), "b": f32(3, 4), "c": np.array([7])}
    actual = {"a": f32(1, 2), "b": f32(3, 5), "c": np.array([8])}
    verdict, compared = judge_outputs(expected, actual, Tolerances())
    assert [each.name for each in compared] == ["a", "b", "c"]
    assert [each.verdict.kind for each in compared] == [PASS, FAIL, FAIL]
    assert {finding.subject for finding in verdict.findings} == {"b", "c"}
    assert verdict.comparisons == 5


LARGE, TINY = f32(*[100] * 99, 1e-5), np.dtype(ml_dtypes.float8_e8m0fnu)
CHANNELS = noise(1, 64, 28, 28)
CHANNELS[0, 9] *= 0.01
DEAD = CHANNELS.copy()
DEAD[0, 9] = 0


@pytest.mark.parametrize(
    ("expected", "actual", "options", "kind"),
    [
        (f32(100, 0), f32(100, 1e-5), {}, PASS),  # a small number next to a large one is as precise as that
        (LARGE, f32(*[100] * 99, 3e-5), {}, PASS),
        (LARGE, f32(*[100] * 99, 0.1), {}, FAIL),
        (np.array([1.0, 2.0, 4.0], TINY), np.array([1.0, 2.0, 4.0], TINY), {}, PASS),  # scales of blocks are exact
        (np.array([1.0, 2.0, 4.0], TINY), np.array([1.0, 2.0, 8.0], TINY), {}, FAIL),
        (f32(1, 2, 3), f32(1, 2, 3).astype(">f4"), {}, PASS),  # in another byte order
        (CHANNELS, DEAD, {"rel": 0.02}, FAIL),  # a dead channel is found with a coarse tolerance too
        (CHANNELS.astype(ml_dtypes.bfloat16), DEAD.astype(ml_dtypes.bfloat16), {}, FAIL),
        (np.zeros(9, np.float32), noise(9), {}, FAIL),
        (np.ones((4, 4), np.float32), np.ones((4, 4), np.float32), {}, PASS),
        (f32(1, 1 - 1e-7, 1), f32(1, 1, 1), {"op": "Sigmoid"}, PASS),  # varies by less than the type's own rounding
        (np.float32(5), np.float32(5), {}, PASS),
        (np.float32(5), np.float32(6), {}, FAIL),
        (np.float32(0), np.float32(0), {}, INCONCLUSIVE),
        (np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32), {}, INCONCLUSIVE),
        (np.zeros((0, 4), np.float32), np.zeros((1, 4), np.float32), {}, FAIL),
        (np.zeros((0, 4), np.float32), np.zeros((0, 4), np.int32), {}, FAIL),
    ],
)
def test_verdicts(expected: Any, actual: Any, options: dict[str, Any], kind: VerdictKind) -> None:
    assert compare(expected, actual, **options).verdict.kind is kind


def test_details_of_single_constant_and_swapped_numbers() -> None:
    assert compare(np.float32(5), np.float32(5)).flags == ()
    assert compare(np.float32(5), np.float32(6)).worst[0].index == ()
    constant = compare(np.ones((4, 4), np.float32), np.ones((4, 4), np.float32))
    assert EXPECTED_CONSTANT in constant.flags
    assert not constant.is_dead
    swapped = compare(f32(1, 2, 3), f32(1, 2, 3).astype(">f4"))
    assert (swapped.max_ulp, swapped.dtype) == (0, ("float32", "float32"))
    with pytest.raises(UsageError, match="cannot be compared"):
        compare(np.zeros(2, "V3"), np.zeros(2, "V3"))


BASE = noise(20, 30)
OFF = BASE + np.float32(0.01) * noise(20, 30, seed=1)
ONE_OFF = BASE.copy()
ONE_OFF[3, 4] += 1
STEPS = np.arange(100, dtype=np.int8).reshape(10, 10)


@pytest.mark.parametrize(
    ("expected", "actual", "good", "bad", "said"),
    [
        (BASE, OFF, {"abs": 0.1}, {"abs": 0.01}, "differ by more than"),
        (BASE, OFF, {"rel": 0.1}, {"rel": 0.01}, "differ by more than 0.01 of the scale"),
        (f32(1, 2), np.nextafter(f32(1, 2), f32(9, 9)), {"ulp": 1}, {"ulp": 0}, "more than 0 ULP"),
        (STEPS, STEPS + np.int8(1), {"int_abs": 1}, {"int_abs": 0}, "100 of 100 (100%) differ by more than 0"),
        (STEPS, STEPS + np.int8(2), {"int_abs": 2}, {"int_abs": 1}, "by 2"),
        (STEPS, STEPS + (STEPS % 2), {"int_abs": 1}, {"int_abs": 1, "int_share": 0.4}, "are off by up to 1, at most 0.4"),
        (BASE, ONE_OFF, {"allowed_wrong": 1 / 600}, {"allowed_wrong": 1 / 601}, "1 of 600"),
        (BASE, OFF, {"rel": 1.0, "min_cosine": 0.999}, {"rel": 1.0, "min_cosine": 0.99999}, "cosine 0.9999"),
        (BASE, OFF, {"rel": 1.0, "min_sqnr_db": 39.0}, {"rel": 1.0, "min_sqnr_db": 41.0}, "signal to noise"),
        (BASE, OFF, {"rel": 1.0, "top_k": 1}, {"rel": 1.0, "top_k": 9}, "rows have others among their 9 largest"),
        (f32(1, 2), np.array([1, 2.0]), {"check_dtype": False}, {}, "dtype float64 instead of float32"),
        (f32(1, 2), np.array([1, 2.5]), {"check_dtype": False, "rel": 1.0}, {"check_dtype": False}, "worst at [1]"),
        (BASE, OFF, {"quantized": True}, {}, "worst at"),
        (BASE, -OFF, {"rel": 3.0}, {"quantized": True}, "cosine -0.99"),
    ],
)  # fmt: skip
def test_each_bound(expected: Any, actual: Any, good: dict[str, Any], bad: dict[str, Any], said: str) -> None:
    assert compare(expected, actual, **good).verdict.kind is PASS
    failed = compare(expected, actual, **bad)
    assert failed.verdict.kind is FAIL
    assert said in messages(failed)


def test_a_bound_never_switches_another_one_off() -> None:
    assert compare(BASE, ONE_OFF, ulp=2**40).verdict.kind is FAIL
    assert compare(BASE, ONE_OFF, abs=10.0, ulp=10).verdict.kind is FAIL
    assert compare(BASE, ONE_OFF, abs=10.0, min_cosine=0.9999).verdict.kind is FAIL
    assert compare(BASE, ONE_OFF, allowed_wrong=0.5, min_sqnr_db=40).verdict.kind is FAIL


@pytest.mark.parametrize(
    "bounds",
    [
        {"rel": math.nan}, {"abs": math.inf}, {"rel": -1.0}, {"ulp": -1}, {"int_abs": -1}, {"allowed_wrong": 1.0},
        {"allowed_wrong": math.nan}, {"allowed_wrong": -0.1}, {"min_cosine": math.nan}, {"min_cosine": -1.0},
        {"min_cosine": 1.5}, {"top_k": 0}, {"min_sqnr_db": math.nan}, {"int_share": 2.0}, {"int_share": math.nan},
    ],
    ids=str,
)  # fmt: skip
def test_a_bound_that_makes_no_sense_is_refused(bounds: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        compare(f32(1), f32(1), **bounds)


def test_what_is_not_finite_on_both_sides_agrees() -> None:
    expected = f32(math.nan, math.inf, -math.inf, 1, 2)
    found = compare(expected, expected.copy(), op="Softmax")  # of a row that is masked as a whole
    assert found.verdict.kind is PASS
    assert (found.nan, found.inf, found.misplaced) == ((1, 1), (2, 2), 0)
    assert "NaN or infinite on both sides, in the same places" in found.flags
    assert compare(expected, f32(math.nan, math.inf, -math.inf, 1, 3)).verdict.kind is FAIL
    whole = compare(expected, expected.copy())
    assert whole.verdict.kind is INCONCLUSIVE
    assert "1 of 5 (20%) are NaN on both sides: this proves nothing" in messages(whole)
    assert compare(expected[1:], expected[1:].copy()).verdict.kind is PASS


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("allow", [True, False])
def test_nothing_finite_proves_nothing(value: float, allow: bool) -> None:
    found = compare(f32(value, value), f32(value, value), allow_constant=allow)
    assert found.verdict.kind is INCONCLUSIVE


def test_a_nan_does_not_spoil_the_other_numbers() -> None:
    found = compare(f32(1, 2, 3, 4), f32(1, math.nan, 3, 4.1))
    assert found.max_abs == pytest.approx(0.1, rel=1e-5)
    assert found.mean_abs == pytest.approx(0.1 / 3, rel=1e-5)
    assert [each.index for each in found.worst] == [(1,), (3,)]
    assert [each.actual for each in found.worst] == ["nan", pytest.approx(4.1)]
    assert found.wrong == 2


INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@given(st.sampled_from(INTEGERS), st.data())
def test_integers_are_compared_as_python_would(name: str, data: st.DataObject) -> None:
    info = np.iinfo(name)
    numbers = st.lists(st.integers(int(info.min), int(info.max)), min_size=1, max_size=6)
    left = data.draw(numbers)
    right = data.draw(st.lists(st.integers(int(info.min), int(info.max)), min_size=len(left), max_size=len(left)))
    steps = data.draw(st.integers(0, 2**63))
    found = compare(np.array(left, name), np.array(right, name), int_abs=steps, allow_constant=True)
    distances = [abs(one - other) for one, other in zip(left, right, strict=True)]
    assert found.wrong == sum(distance > steps for distance in distances)
    assert found.max_abs == float(max(distances))


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (np.array([2**63 - 1, 5]), np.array([2**63 - 2, 5])),  # a step beyond what a double holds
        (np.array([2**64 - 1, 5], np.uint64), np.array([2**64 - 2, 5], np.uint64)),
        (np.array([2**63, 1], np.uint64), np.array([2**63 - 1, 1], np.int64)),
        (np.array([2**53 + 1, 1], np.int64), np.array([2.0**53, 1])),
        (np.array([1, 1], np.uint8), np.array([True, False])),
        (np.array([300, 1], np.int32), np.array([44, 1], np.uint8)),
    ],
)
def test_types_that_differ_are_compared_by_value(expected: Any, actual: Any) -> None:
    found = compare(expected, actual, check_dtype=False, rel=0.0, abs=0.0)
    assert found.wrong == 1
    assert found.verdict.kind is FAIL
    same = expected.astype(np.uint64 if expected.dtype == np.uint64 or expected.max() < 2**62 else np.int64)
    assert compare(expected, same, check_dtype=False).wrong == 0


def test_no_step_is_allowed_between_true_and_false() -> None:
    found = compare(np.array([True, False]), np.array([False, True]), int_abs=1)
    assert found.verdict.kind is FAIL
    assert found.wrong == 2
    assert "differ by more than 0" in messages(found)
    assert compare(np.array([True, False]), np.array([True, False])).verdict.kind is PASS


def test_texts() -> None:
    expected = np.array(["a", "b", "ü"], object)
    assert compare(expected, np.array(["a", "b", "ü"])).verdict.kind is PASS
    assert compare(expected, np.array([b"a", b"b", "ü".encode()], object)).verdict.kind is PASS
    found = compare(expected, np.array(["a", "B", "ü"], object))
    assert found.verdict.kind is FAIL
    assert "1 of 3 (33.3%) strings differ; first at [1]: expected 'b', actual 'B'" in messages(found)
    assert (found.wrong, found.count, found.worst[0].abs_error) == (1, 3, 1.0)
    assert compare(expected, np.array(["a", "B", "ü"], object), allowed_wrong=0.34).verdict.kind is PASS


def test_complex_numbers() -> None:
    expected = np.array([1 + 2j, 3 - 4j], np.complex64)
    assert compare(expected, expected * np.complex64(1 + 1e-6)).verdict.kind is PASS
    found = compare(expected, np.array([1 + 2j, 3 + 4j], np.complex64))
    assert found.verdict.kind is FAIL
    assert found.worst[0].expected == "3-4j"
    assert found.max_abs == 8
    lost = compare(expected, np.array([1 + 2j, complex(3, math.nan)], np.complex64))
    assert (lost.verdict.kind, lost.nan, lost.misplaced) == (FAIL, (0, 1), 1)
    infinite = np.array([complex(math.inf, 1), 2], np.complex64)
    assert compare(infinite, infinite.copy()).verdict.kind is PASS
    assert compare(infinite, np.array([complex(math.inf, 2), 2], np.complex64)).verdict.kind is FAIL


SMALL_FLOATS = [
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e3m4", "float6_e2m3fn",
    "float6_e3m2fn", "float4_e2m1fn",
]  # fmt: skip


@pytest.mark.parametrize("name", [*SMALL_FLOATS, "float16", "float32", "float64"])
def test_units_in_the_last_place_count_the_numbers_between(name: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, name, name))
    bits = 16 if name == "bfloat16" else kind.itemsize * 8
    unsigned = f"u{kind.itemsize}"
    one = np.array([1.0], kind)
    up = (one.view(unsigned) + 1).astype(unsigned).view(kind)
    assert float(up[0]) > 1
    assert compare(one, up, abs=9.0).max_ulp == 1
    assert compare(one, one.copy(), abs=9.0).max_ulp == 0
    least = np.array([1], unsigned).view(kind)
    assert compare(least, -least, abs=9.0).max_ulp == 2
    if "fnuz" not in name:
        assert compare(np.array([0.0], kind), np.array([-0.0], kind)).max_ulp == 0
    assert bits >= 8


def test_doubles_at_both_ends_have_a_distance() -> None:
    top = np.finfo(np.float64).max
    found = compare(np.array([top, 1.0]), np.array([-top, 1.0]))
    assert found.max_ulp == 2 * int(np.array(top).view(np.uint64))
    assert found.verdict.kind is FAIL
    assert found.max_abs == math.inf


@pytest.mark.parametrize("name", [*SMALL_FLOATS, "float16"])
def test_one_step_of_a_small_type_passes_and_three_do_not(name: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, name, name))
    expected = np.array([1.0, 1.5, 0.5, 2.0], kind)
    unsigned = f"u{kind.itemsize}"
    raw = expected.view(unsigned).copy()
    raw[0] += 1
    assert compare(expected, raw.view(kind)).verdict.kind is PASS
    raw[0] += 2 if name not in ("float16", "bfloat16") else 40
    assert compare(expected, raw.view(kind)).verdict.kind is FAIL


@pytest.mark.parametrize(("name", "low", "high"), [("int4", -8, 7), ("uint4", 0, 15), ("int2", -2, 1)])
def test_small_integers(name: str, low: int, high: int) -> None:
    kind = getattr(ml_dtypes, name)
    found = compare(np.array([low, high], kind), np.array([high, high], kind), int_abs=1)
    assert found.verdict.kind is FAIL
    assert found.max_abs == high - low
    assert found.worst[0].expected == low
    assert compare(np.array([low, high], kind), np.array([low, high], kind)).verdict.kind is PASS


def test_a_bfloat16_result_is_measured_by_bfloat16() -> None:
    expected = noise(50, 50).astype(ml_dtypes.bfloat16)
    rounded = (expected.astype(np.float32) * np.float32(1.004)).astype(ml_dtypes.bfloat16)
    assert compare(expected, rounded).verdict.kind is PASS
    assert compare(expected.astype(np.float32), rounded.astype(np.float32)).verdict.kind is FAIL
    assert compare(expected, (expected.astype(np.float32) * 1.1).astype(ml_dtypes.bfloat16)).verdict.kind is FAIL
    mixed = compare(expected.astype(np.float32), rounded, check_dtype=False)
    assert mixed.verdict.kind is PASS
    assert mixed.tolerance.rel == 2e-2
    assert mixed.max_ulp is None


@pytest.mark.parametrize(("axis", "share"), [(0, 1e-2), (1, 1e-3), (2, 1e-4)])
def test_a_dead_channel_is_found_however_small_it_is_next_to_the_others(axis: int, share: float) -> None:
    expected = noise(16, 16, 16)
    chosen: list[Any] = [slice(None)] * 3
    chosen[axis] = 5
    expected[tuple(chosen)] *= share
    actual = expected.copy()
    actual[tuple(chosen)] = 0
    found = compare(expected, actual)
    assert found.verdict.kind is FAIL
    assert found.flags == (f"actual is all zero at 5 of axis {axis} (1 of 16)",)


def test_rounding_of_sums_that_cancel_passes_and_sums_of_16_bit_factors_fail() -> None:
    left = np.random.default_rng(1).normal(size=(100, 200))
    right = np.random.default_rng(2).normal(size=(200, 100))
    right[100:, 7] = -right[:100, 7]  # a column whose terms cancel
    left[:, 100:] = left[:, :100]
    exact, single = (left @ right).astype(np.float32), left.astype(np.float32) @ right.astype(np.float32)
    assert compare(exact, single, op="MatMul").verdict.kind is PASS
    left, right = noise(100, 200, seed=1), noise(200, 100, seed=2)
    half = left.astype(np.float16).astype(np.float32) @ right.astype(np.float16).astype(np.float32)
    assert compare(left @ right, half, op="MatMul").verdict.kind is FAIL


def test_an_outlier_does_not_hide_the_rest() -> None:
    expected = noise(100, 100) * np.float32(1e-3)
    expected[3, 3] = 100
    actual = expected + np.float32(1e-3) * noise(100, 100, seed=4)
    assert compare(expected, actual).wrong > 9000


@pytest.mark.parametrize("mask", [-1e9, -65504.0, float(np.finfo(np.float32).min)])
def test_a_mask_does_not_hide_what_is_not_masked(mask: float) -> None:
    expected = noise(4, 32, 32) * 5
    expected[:, np.triu_indices(32, 1)[0], np.triu_indices(32, 1)[1]] = mask
    assert compare(expected, expected.copy()).verdict.kind is PASS
    actual = expected.copy()
    actual[1, 20, 3] += 0.1
    found = compare(expected, actual)
    assert found.wrong == 1
    assert 1 < found.scale < 10
    assert found.sqnr_db is not None
    assert found.sqnr_db < 100


def test_numbers_whose_squares_overflow_have_a_scale() -> None:
    for size in (1e200, 1e-200):
        expected = np.array([1.0, -2.0, 3.0] * 10).reshape(10, 3) * size
        found = compare(expected, expected * (1 + 1e-12))
        assert found.scale == pytest.approx(math.sqrt(14 / 3) * size)
        assert (found.verdict.kind, found.cosine) == (PASS, pytest.approx(1))
        assert compare(expected, expected * 1.1).sqnr_db == pytest.approx(20)


@given(hnp.arrays(np.float32, (9, 11), elements=st.floats(-64, 64, width=32)), st.floats(0.01, 100))
def test_relative_errors_do_not_depend_on_the_unit(values: np.ndarray, factor: float) -> None:
    other = values + np.float32(0.5)
    one = compare(values.astype(np.float64), other.astype(np.float64))
    two = compare(values.astype(np.float64) * factor, other.astype(np.float64) * factor)
    assert two.max_rel == pytest.approx(one.max_rel, rel=1e-6)
    assert two.verdict.kind is one.verdict.kind


@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.floats(-1e6, 1e6, width=32)),
    st.data(),
)
def test_a_tensor_is_itself_and_one_wild_element_is_found(values: np.ndarray, data: st.DataObject) -> None:
    same = compare(values, values.copy(), allow_constant=True)
    assert same.verdict.kind is PASS
    assert (same.max_abs, same.max_rel, same.max_ulp, same.wrong, same.worst) == (0, 0, 0, 0, ())
    place = data.draw(st.tuples(*(st.integers(0, length - 1) for length in values.shape)))
    wild = values.copy()
    wild[place] = data.draw(st.sampled_from([math.nan, math.inf, -math.inf, 1e8, -1e8]))
    found = compare(values, wild)
    assert found.verdict.kind is FAIL
    assert found.wrong == 1
    assert found.worst[0].index == place


@pytest.mark.parametrize(
    ("op", "dtype", "kind"),
    [
        (None, "float32", INCONCLUSIVE), ("Conv", "float32", INCONCLUSIVE), ("MatMul", "float16", INCONCLUSIVE),
        (None, "int8", INCONCLUSIVE), ("MatMulInteger", "int32", INCONCLUSIVE),
        ("Relu", "float32", PASS), ("Pad", "float32", PASS), ("Mul", "float32", PASS),
        (None, "int64", PASS), (None, "bool", PASS), ("ArgMax", "int64", PASS),
    ],
)  # fmt: skip
def test_all_zero_on_both_sides(op: str | None, dtype: str, kind: VerdictKind) -> None:
    zeros = np.zeros((3, 4), dtype)
    found = compare(zeros, zeros.copy(), op=op)
    assert found.verdict.kind is kind
    assert ACTUAL_ZERO in found.flags  # never without a word
    assert kind is PASS or "--tolerance allow_constant=true" in messages(found)
    assert compare(zeros, zeros.copy(), op=op, allow_constant=True).verdict.kind is PASS


def test_a_constant_where_there_should_be_numbers() -> None:
    found = compare(noise(5, 5), np.full((5, 5), 3, np.float32), op="Relu", abs=100.0, allow_constant=True)
    assert found.verdict.kind is FAIL
    assert found.is_dead
    assert "the actual tensor is constant; the expected one varies by" in messages(found)


def test_a_sigmoid_far_below_zero_is_as_precise_as_one_is() -> None:
    expected = 1 / (1 + np.exp(-noise(20, 20) + 17))  # some 4e-8
    other = ((expected + np.float32(1)) - np.float32(1)).astype(np.float32)  # to the nearest unit of one
    assert compare(expected.astype(np.float32), other + np.float32(1e-6), op="Sigmoid").verdict.kind is FAIL
    found = compare(expected.astype(np.float32), other, op="Sigmoid")
    assert found.verdict.kind is INCONCLUSIVE  # and yet nothing is shown by it
    assert "right only by what rounding alone can do here (2.38e-07)" in messages(found)
    assert found.error == found.max_rel > 0.9
    assert compare(expected.astype(np.float32), expected.astype(np.float32), op="Sigmoid").verdict.kind is PASS
    allowed = compare(expected.astype(np.float32), other, op="Sigmoid", allow_constant=True)
    assert allowed.verdict.kind is PASS
    beside = np.concatenate([expected, np.ones((20, 20))]).astype(np.float32)
    changed = np.concatenate([other, np.ones((20, 20), np.float32)])
    assert compare(beside, changed, op="Sigmoid").verdict.kind is PASS


@pytest.mark.parametrize(("size", "op"), [(1e-3, "MatMul"), (4e-8, "Relu"), (1e-30, None)])
def test_small_outputs_with_the_wrong_sign_fail(size: float, op: str | None) -> None:
    expected = noise(4, 8) * np.float32(size)
    for reach in (None, lambda: 10 * size):
        found = compare_tensors("y", expected, -expected, op=op, reach=reach)
        assert found.verdict.kind is FAIL
        assert found.cosine == pytest.approx(-1)


def test_terms_that_cancel_leave_rounding_which_neither_fails_nor_passes() -> None:
    expected, other = noise(4, 8) * np.float32(1e-7), noise(4, 8, seed=1) * np.float32(1e-7)
    found = compare_tensors("y", expected, other, op="Conv", reach=lambda: 10.0)
    assert found.verdict.kind is INCONCLUSIVE
    assert found.tolerance.abs == pytest.approx(10 * 2.0**-22)
    assert compare_tensors("y", expected, other, op="Conv", reach=lambda: 0.1).verdict.kind is FAIL
    assert (
        compare_tensors("y", expected, other, op="Conv", reach=lambda: np.full((4, 8), 10.0)).verdict == found.verdict
    )


def test_rounding_is_allowed_where_the_terms_are_large_and_nowhere_else() -> None:
    expected = noise(4, 8)
    terms = np.ones((4, 8))
    terms[0] = 1e4
    wrong = expected.copy()
    wrong[0] += np.float32(2e-3)
    assert compare_tensors("y", expected, wrong, op="Add", reach=lambda: terms).verdict.kind is PASS
    wrong[1, 0] += np.float32(2e-3)
    assert compare_tensors("y", expected, wrong, op="Add", reach=lambda: terms).wrong == 1


def test_zeros_where_rounding_is_all_there_is_are_not_called_dead() -> None:
    expected = noise(4, 8) * np.float32(1e-7)
    dead = np.zeros((4, 8), np.float32)
    assert compare_tensors("y", expected, dead, op="Sub", reach=lambda: 1e-3).verdict.kind is FAIL
    assert compare_tensors("y", expected, dead, op="Sub", reach=lambda: 10.0).verdict.kind is INCONCLUSIVE


def test_an_absolute_bound_above_every_element_proves_nothing() -> None:
    expected, other = noise(4, 8), noise(4, 8, seed=1)
    found = compare(expected, other, abs=100.0)
    assert found.verdict.kind is INCONCLUSIVE
    assert "every element is below the absolute bound (100)" in messages(found)
    assert compare(expected, expected * np.float32(1 + 1e-5), abs=100.0).verdict.kind is PASS
    assert compare(expected, other, abs=100.0, allow_constant=True).verdict.kind is PASS


def test_dead_parts_are_named_by_axis_and_index() -> None:
    expected = noise(20, 30)
    actual = expected.copy()
    actual[[1, 4]] = 0
    actual[:, ::3] = 0
    assert list(find_dead_parts(expected, actual)) == [
        "actual is all zero at 1, 4 of axis 0 (2 of 20)",
        "actual is all zero at 0, 3, 6, 9, 12, 15, … of axis 1 (10 of 30)",
    ]
    assert list(find_dead_parts(expected, expected)) == []


def test_the_numbers_are_what_numpy_says() -> None:
    expected, actual = noise(7, 11, 13), noise(7, 11, 13) + np.float32(1e-3) * noise(7, 11, 13, seed=1)
    found = compare(expected, actual)
    left, right = expected.astype(np.float64).ravel(), actual.astype(np.float64).ravel()
    error = np.abs(left - right)
    assert found.count == 1001
    assert found.max_abs == error.max()
    assert found.mean_abs == pytest.approx(error.mean())
    assert found.cosine == pytest.approx(left @ right / math.sqrt((left @ left) * (right @ right)))
    assert found.sqnr_db == pytest.approx(10 * math.log10((left @ left) / (error @ error)))
    assert found.scale == pytest.approx(math.sqrt((left @ left) / left.size))
    shares = [each.rel_error for each in found.worst]
    assert shares == sorted(shares, reverse=True)
    assert found.max_rel == shares[0] == found.error
    assert compare(f32(1, 2), f32(2, 1)).error == pytest.approx(0.632, rel=1e-2)


def test_the_worst_elements_come_first_wherever_they_lie() -> None:
    expected = np.ones((3, 200, 700), np.float32) + noise(3, 200, 700)  # several blocks
    actual = expected.copy()
    places = [(2, 199, 699), (0, 0, 0), (1, 100, 13), (2, 5, 600)]  # worst first
    for rank, place in enumerate(places):
        expected[place], actual[place] = 1, 1000 * (5 - rank)
    found = compare(expected, actual, worst=3)
    assert [each.index for each in found.worst] == places[:3]
    assert found.wrong == 4
    assert compare(expected, actual, worst=0).worst == ()
    expected = np.arange(1, 401, dtype=np.float32).reshape(20, 20) * 100
    equal = compare(expected, expected * 0 + np.float32(1e-30) * noise(20, 20))
    assert [each.index for each in equal.worst[:3]] == [(19, 19), (19, 18), (19, 17)], "the larger difference first"


def test_memory_stays_within_a_few_blocks() -> None:
    expected = noise(2, 1500, 1000)
    actual = expected + np.float32(1e-6)
    tracemalloc.start()
    compare(expected, actual)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * expected.nbytes


@pytest.mark.parametrize(
    ("expected", "actual", "k", "agrees"),
    [
        ([3, 2, 1], [3, 1, 2], 1, True),
        ([3, 2, 1], [3, 1, 2], 2, False),
        ([3, 2, 1], [3, 1, 2], 3, True),
        ([3, 2, 1], [2, 3, 1], 2, True),  # equal ones, in another order
        ([2, 2, 1], [3, 2, 1], 1, True),  # a tie may go either way
        ([2, 2, 1], [1, 2, 3], 1, False),
        ([2, 2, 2, 0], [2, 2, 1, 0], 2, True),
        ([3, 2, 2, 0], [2, 3, 2, 0], 2, True),
        ([3, 2, 2, 0], [2, 2, 2, 3], 2, False),
        ([3, 3, 2, 2], [2, 2, 3, 3], 3, False),  # four that must be among three
        ([1, 1, 1], [0, 0, 5], 2, True),
        ([1, math.nan, 0], [1, math.nan, 0], 1, True),
    ],
)
def test_ties_among_the_largest(expected: list[float], actual: list[float], k: int, agrees: bool) -> None:
    assert compare(f32(*expected), f32(*actual), abs=100.0, top_k=k).top_k == float(agrees)


def test_rows_are_counted_and_the_first_is_named() -> None:
    expected = np.eye(6, dtype=np.float32).reshape(2, 3, 6)
    actual = expected.copy()
    actual[1, 0] = actual[1, 1]
    found = compare(expected, actual, abs=9.0, top_k=1)
    assert found.top_k == pytest.approx(5 / 6)
    assert "first in row [1, 0], whose largest is 4 instead of 3" in messages(found)
    assert compare(np.float32(1), np.float32(1), top_k=3).top_k == 1


def test_the_largest_integers_are_ranked_as_integers() -> None:
    expected, actual = np.array([2**62, 2**62 + 1]), np.array([2**62 + 1, 2**62])
    assert compare(expected, actual, int_abs=1, top_k=1).verdict.kind is FAIL


def test_outputs_that_are_missing_or_too_many() -> None:
    verdict, compared = judge_outputs({"logits": f32(1, 2)}, {"logit": f32(1, 2)}, Tolerances())
    assert verdict.kind is FAIL
    assert compared == ()
    assert [(each.subject, each.message) for each in verdict.findings] == [
        ("logits", "the output is missing: did you mean 'logit'?"),
        ("logit", "an unexpected output"),
    ]
    assert judge_outputs({}, {}, Tolerances())[0].kind is ERROR
    assert judge_outputs({}, {"y": f32(1)}, Tolerances())[0].kind is FAIL


def test_the_more_special_tolerance_wins() -> None:
    tolerances = Tolerances(
        Tolerance(rel=1.0), by_op={"Conv": Tolerance(rel=0.1)}, by_tensor={"b": Tolerance(rel=1e-9)}
    )
    expected, actual = {"a": f32(1, 2), "b": f32(1, 2)}, {"a": f32(1, 2.5), "b": f32(1, 2.0001)}
    verdict, compared = judge_outputs(expected, actual, tolerances)
    assert [each.verdict.kind for each in compared] == [PASS, FAIL]
    _, compared = judge_outputs(expected, actual, tolerances, op="Conv")
    assert [each.tolerance.rel for each in compared] == [0.1, 1e-9]
    assert verdict.kind is FAIL


def test_sequences_and_absent_optionals() -> None:
    expected = {"parts": [f32(1, 2), f32(3, 4)], "none": None}
    verdict, compared = judge_outputs(expected, {"parts": [f32(1, 2), f32(3, 9)], "none": None}, Tolerances())
    assert [each.name for each in compared] == ["parts[0]", "parts[1]"]
    assert verdict.findings[0].subject == "parts[1]"
    assert judge_outputs(expected, {"parts": [f32(1, 2)]}, Tolerances())[0].kind is FAIL


def test_an_output_of_a_whole_model_has_the_bound_of_the_operator_that_makes_it() -> None:
    expected = {"p": np.linspace(0.5, 1, 64, dtype=np.float32), "q": np.linspace(0.5, 1, 64, dtype=np.float32)}
    actual = {name: array * np.float32(1.001) for name, array in expected.items()}
    verdict, (p, q) = judge_outputs(expected, actual, Tolerances(), makers={"p": "Softmax", "q": "Gemm"})
    assert (p.verdict.kind, q.verdict.kind) == (VerdictKind.PASS, VerdictKind.FAIL)
    assert p.tolerance.rel == judge_outputs(expected, actual, Tolerances(), op="Softmax")[1][0].tolerance.rel
    assert verdict.kind is VerdictKind.FAIL
    wide = Tolerances(by_op={"Gemm": Tolerance(rel=0.01)})
    assert judge_outputs(expected, actual, wide, makers={"p": "Softmax", "q": "Gemm"})[0].kind is VerdictKind.PASS
    near = Tolerances(by_op={"Gemm": Tolerance(rel=0.01)}, by_tensor={"q": Tolerance(rel=1e-4)})
    assert judge_outputs(expected, actual, near, makers={"q": "Gemm"})[0].kind is VerdictKind.FAIL


def test_an_output_of_a_whole_model_that_is_all_zero_proves_nothing_whatever_makes_it() -> None:
    zeros = {"y": np.zeros(4, np.float32)}
    assert judge_outputs(zeros, zeros, Tolerances(), op="Relu")[0].kind is VerdictKind.PASS
    assert judge_outputs(zeros, zeros, Tolerances(), makers={"y": "Relu"})[0].kind is VerdictKind.INCONCLUSIVE
