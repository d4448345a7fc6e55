"""A layer alone is as near as correct runtimes are to each other, or it is not passed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from assay.models.judge.alone import LayerOrigin, find_noise
from assay.models.judge.tensors import compare_tensors, judge_outputs
from assay.models.judge.tolerances import default_tolerance
from assay.models.values.model import Tolerances
from assay.models.values.tensors import TensorComparison, Tolerance
from assay.values.verdict import VerdictKind

PASS, FAIL, CHANGED = VerdictKind.PASS, VerdictKind.FAIL, VerdictKind.CHANGED


def alone(*ops: str, terms: int = 1, unrounded: Any = None) -> LayerOrigin:
    return LayerOrigin(ops, lambda: terms, lambda _: unrounded)


def compare(expected: Any, actual: Any, origin: LayerOrigin, tolerance: Tolerance = Tolerance()) -> TensorComparison:  # noqa: B008
    return compare_tensors("y", expected, actual, tolerance, op=origin.ops[0], origin=origin)


def draw(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(0, 1, (count // 100, 100))


def quantise(x: Any, rule: Any) -> Any:
    return np.clip(rule(x), -128, 127).astype(np.int8)


STEPS = draw(20_000) * 30


@pytest.mark.parametrize(
    "rule",
    [lambda x: np.floor(x + 0.4), np.trunc, np.floor, np.ceil, lambda x: np.rint(x * 1.01), lambda x: -np.rint(x)],
)
def test_a_quantiser_that_rounds_otherwise_is_not_passed(rule: Any) -> None:
    found = compare(quantise(STEPS, np.rint), quantise(STEPS, rule), alone("QuantizeLinear", unrounded=STEPS))
    assert found.verdict.kind is FAIL
    assert "although no tie is near" in found.verdict.findings[0].message


def test_without_the_unrounded_values_a_common_direction_is_not_passed() -> None:
    """Operators without a definition here."""
    expected = quantise(STEPS, np.rint)
    found = compare(expected, quantise(STEPS, lambda x: np.floor(x + 0.4)), alone("QLinearAdd"))
    assert found.verdict.kind is FAIL
    assert "one direction" in found.verdict.findings[0].message
    both_ways = expected + np.where(np.arange(20_000).reshape(200, 100) % 20 == 0, 1, 0) * np.where(STEPS > 0, 1, -1)
    assert compare(expected, both_ways.astype(np.int8), alone("QLinearAdd")).verdict.kind is CHANGED
    few = expected.copy()
    few[0, :15] += 1
    assert compare(expected, few, alone("QLinearAdd")).verdict.kind is PASS


def test_near_a_tie_an_element_may_go_either_way_but_not_all_one_way() -> None:
    x = STEPS.copy()
    x[:10] = np.round(x[:10]) + 0.5
    ways = np.where(np.random.default_rng(1).random(x.shape) < 0.5, 1e-6, -1e-6)
    origin = alone("QuantizeLinear", unrounded=x)
    found = compare(quantise(x, np.rint), quantise(x + ways, np.rint), origin)
    assert (found.max_abs, found.verdict.kind) == (1, PASS)
    half_up = compare(quantise(x, np.rint), quantise(x, lambda values: np.floor(values + 0.5)), origin)
    assert half_up.verdict.kind is CHANGED
    assert "nearly all of them up: another rounding rule" in half_up.verdict.findings[0].message


def test_a_reference_that_saturates_does_not_fail_an_exact_target() -> None:
    """onnxruntime's QLinearConv on processors without VNNI."""
    right = quantise(STEPS, np.rint)
    saturated = np.where(np.abs(right) > 40, right - 9 * np.sign(right), right).astype(np.int8)
    found = compare(saturated, right, alone("QLinearConv", unrounded=STEPS))
    assert found.verdict.kind is PASS
    assert any(flag.startswith("the reference is off by up to 9") for flag in found.flags)
    assert compare(right, saturated, alone("QLinearConv", unrounded=STEPS)).verdict.kind is FAIL


def test_a_definition_that_fits_neither_side_decides_nothing() -> None:
    right = quantise(STEPS, np.rint)
    found = compare(right, quantise(STEPS, np.floor), alone("QuantizeLinear", unrounded=STEPS + 50))
    assert found.verdict.kind is FAIL
    assert "no tie" not in found.verdict.findings[0].message


def test_a_cast_that_cuts_off_is_changed() -> None:
    x = draw(10_000).astype(np.float32)
    expected, cut = x.astype(np.float16), x.astype(np.float16)
    cut = np.where(np.abs(cut.astype(np.float64)) > np.abs(x), np.nextafter(cut, np.float16(0)), cut)
    assert compare(expected, cut, alone("Cast", unrounded=x.astype(np.float64))).verdict.kind is CHANGED
    assert compare(expected, expected, alone("Cast", unrounded=x.astype(np.float64))).verdict.kind is PASS


@pytest.mark.parametrize("rule", [np.rint, np.floor, np.ceil])
@pytest.mark.parametrize("count", [1, 20_000])
def test_a_cast_to_integers_that_rounds_is_wrong(rule: Any, count: int) -> None:
    """It cuts off: nearer to what goes in is not better."""
    actual = STEPS.astype(np.int32)
    off = np.flatnonzero(rule(STEPS) != np.trunc(STEPS))[:count]
    actual.flat[off] = rule(STEPS).flat[off]
    found = compare(STEPS.astype(np.int32), actual, alone("Cast", unrounded=STEPS))
    assert (found.verdict.kind, found.flags) == (FAIL, ())


def test_what_correct_runtimes_do_passes() -> None:
    a, b = draw(6_400).reshape(25, 256).astype(np.float32), draw(25_600, 1).reshape(256, 100).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    in_turn = np.cumsum(a[:, :, None] * b, axis=1, dtype=np.float32)[:, -1]
    assert compare(exact.astype(np.float32), in_turn, alone("MatMul", terms=256)).verdict.kind is PASS


@pytest.mark.parametrize(("op", "error", "kind"), [
    ("LayerNormalization", 7e-4, FAIL), ("LayerNormalization", 5e-6, CHANGED), ("LayerNormalization", 2e-7, PASS),
    ("Exp", 1e-5, CHANGED), ("Exp", 1e-4, FAIL), ("Reshape", 2e-7, CHANGED), ("Mul", 1e-7, PASS), ("Mul", 2e-6, CHANGED),
])  # fmt: skip
def test_the_bound_is_a_multiple_of_what_was_measured(op: str, error: float, kind: VerdictKind) -> None:
    expected = draw(10_000).astype(np.float32)
    signs = np.where(np.random.default_rng(3).random(expected.shape) < 0.5, 1, -1)
    actual = (expected * (1 + signs * error)).astype(np.float32)
    assert compare(expected, actual, alone(op, terms=100)).verdict.kind is kind
    assert (default_tolerance("float32", op).rel or 0) >= error  # as a part of a model it would pass


def test_a_factor_that_all_elements_share_is_changed() -> None:
    """Each is within noise."""
    expected = draw(10_000).astype(np.float32)
    found = compare(expected, (expected * np.float64(1 + 2e-6)).astype(np.float32), alone("MatMul", terms=4096))
    assert found.verdict.kind is CHANGED
    assert "all elements together are off by 2e-06 of the scale" in found.verdict.findings[0].message
    random = expected * (1 + 2e-6 * np.sign(draw(10_000, 5)))
    assert compare(expected, random.astype(np.float32), alone("MatMul", terms=4096)).verdict.kind is PASS


def test_rounding_of_terms_that_cancel_is_not_a_fault() -> None:
    expected = (draw(1_000) * 1e-3).astype(np.float32)
    actual = (expected + 1e-5 * np.sign(draw(1_000, 2))).astype(np.float32)
    given = {"op": "MatMul", "origin": alone("MatMul", terms=64)}
    assert compare_tensors("y", expected, actual, **given).verdict.kind is FAIL
    assert compare_tensors("y", expected, actual, reach=lambda: 100.0, **given).verdict.kind is PASS


def test_a_bound_that_was_asked_for_is_the_bound() -> None:
    expected = draw(10_000).astype(np.float32)
    off = (expected * 1.0005).astype(np.float32)
    assert compare(expected, off, alone("Softmax")).verdict.kind is FAIL
    assert compare(expected, off, alone("Softmax"), Tolerance(rel=1e-3)).verdict.kind is PASS


@pytest.mark.parametrize(
    ("ops", "dtypes", "is_known"),
    [
        (("Attention",), ("float32", "float32"), False),
        (("Conv", "Softmax"), ("float32", "float32"), False),  # one amplifies the other
        (("Exp",), ("float64", "float64"), False),
        (("Exp",), ("float32", "float16"), False),
        (("Conv", "Clip"), ("float32", "float32"), True),
    ],
)
def test_what_was_not_measured_keeps_the_bound_of_its_type(
    ops: tuple[str, ...], dtypes: tuple[str, str], is_known: bool
) -> None:
    assert (find_noise(ops, dtypes, 9) is not None) is is_known


def test_long_sums_may_differ_more() -> None:
    short, long = (find_noise(("MatMul",), ("float32", "float32"), terms) for terms in (16, 4096))
    assert short is not None
    assert long is not None
    assert short.rel < long.rel < 1e-4


def test_a_few_of_many_elements_may_be_further_off_in_eight_bits() -> None:
    expected = draw(65_700).astype(np.float32)
    actual = expected + (0.004 * draw(65_700, 1)).astype(np.float32)
    actual[::60, 7] += 0.25  # 11 elements
    steps = Tolerances(Tolerance(quantized=True))
    verdict, (found,) = judge_outputs({"y": expected}, {"y": actual}, steps)
    assert found.sqnr_db is not None
    assert found.sqnr_db > 40
    assert verdict.kind is PASS
    assert any("of 65700" in flag for flag in found.flags)
    actual[::2, 7] += 0.25
    assert judge_outputs({"y": expected}, {"y": actual}, steps)[0].kind is FAIL
    assert judge_outputs({"y": expected[:9]}, {"y": actual[:9]}, steps)[0].kind is FAIL
