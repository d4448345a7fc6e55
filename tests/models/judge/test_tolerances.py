"""What types and operators allow by themselves."""

from __future__ import annotations

import ml_dtypes
import pytest

from assay.models.judge.tolerances import FLOATS, complete_tolerance, default_tolerance, is_zero_significant
from assay.models.values.tensors import Tolerance


def test_the_types_are_as_their_libraries_say() -> None:
    for name, kind in FLOATS.items():
        if name in ("float128", "float64"):
            continue
        info = ml_dtypes.finfo(getattr(ml_dtypes, name, name))
        assert kind.bits == info.bits, name
        assert kind.eps == float(info.eps), name
        least = float(info.smallest_normal if kind.bits >= 16 else info.smallest_subnormal)
        assert kind.least in (least, 0.0), name


def test_coarser_types_get_more() -> None:
    order = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
    bounds = [default_tolerance(name).rel or 0.0 for name in order]
    assert bounds == sorted(bounds)
    assert len(set(bounds)) == len(bounds)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "complex64"])
def test_operators_only_widen(dtype: str) -> None:
    base = default_tolerance(dtype).rel or 0.0
    for op in ("Reshape", "Conv", "Softmax", "Exp", "LSTM", "LayerNormalization", "NoSuchOperator"):
        assert (default_tolerance(dtype, op).rel or 0.0) >= base
    assert (default_tolerance(dtype, "Softmax").rel or 0.0) > base


@pytest.mark.parametrize(
    ("dtype", "op", "steps"),
    [
        ("int8", "QuantizeLinear", 1), ("uint8", "QLinearConv", 1), ("int4", "QuantizeLinear", 1), ("int8", None, 0),
        ("int8", "Reshape", 0), ("int32", "MatMulInteger", 0), ("int64", "QuantizeLinear", 0), ("bool", "Equal", 0),
    ],
)  # fmt: skip
def test_only_what_is_rounded_may_be_one_off(dtype: str, op: str | None, steps: int) -> None:
    found = default_tolerance(dtype, op)
    assert found.int_abs == steps
    assert bool(found.int_share) is bool(steps)


def test_a_quantised_model_is_loose_as_a_whole_only() -> None:
    assert (default_tolerance("float32", quantized=True).rel or 0) >= 0.1
    assert default_tolerance("float32", quantized=True).min_cosine
    assert default_tolerance("int8", quantized=True).int_abs == 5
    assert default_tolerance("uint16", quantized=True).int_abs == 5
    assert default_tolerance("int4", quantized=True).int_abs == 1, "of sixteen"
    assert default_tolerance("int64", quantized=True).int_abs == 0
    for op in ("Conv", "QuantizeLinear", "Relu"):
        assert default_tolerance("float32", op, quantized=True) == default_tolerance("float32", op)
        assert default_tolerance("int8", op, quantized=True) == default_tolerance("int8", op)


def test_what_is_given_stays_and_what_is_open_is_filled_in() -> None:
    found = complete_tolerance(Tolerance(abs=0.5, int_abs=3, min_cosine=0.5), ("float32", "float32"))
    assert (found.abs, found.rel, found.int_abs, found.int_share, found.min_cosine) == (0.5, 3e-4, 3, 1.0, 0.5)
    assert complete_tolerance(Tolerance(int_abs=1), ("int8", "int8"), "QuantizeLinear").int_share == 1.0
    assert complete_tolerance(Tolerance(), ("int8", "int8"), "QuantizeLinear").int_share == 0.25
    for mixed in (("float32", "bfloat16"), ("bfloat16", "float32")):
        assert complete_tolerance(Tolerance(), mixed).rel == 2e-2, "of two types the coarser counts"
    pair = ("float8_e4m3fn", "float8_e4m3fn")  # units are asked of small types unless a bound is given
    units = [
        complete_tolerance(each, pair).ulp for each in (Tolerance(), Tolerance(rel=0.5), Tolerance(rel=0.5, ulp=2))
    ]
    assert [*units, complete_tolerance(Tolerance(), ("float32", "float32")).ulp] == [1, None, 2, None]


def test_what_is_computed_around_one_is_off_by_a_unit_of_one() -> None:
    units = {("float32", "Sigmoid"): -22, ("float32", None): -126, ("float32", "Softmax"): -126}
    units |= {("float16", "Sigmoid"): -10, ("float16", "Conv"): -14, ("bfloat16", "Tanh"): -7}
    assert {key: default_tolerance(*key).abs for key in units} == {key: 2.0**power for key, power in units.items()}
    assert [is_zero_significant(op) for op in ("Relu", "Where", "Conv")] == [True, True, False]


@pytest.mark.parametrize("op", ["DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QAttention"])
def test_what_rounds_its_own_inputs_to_steps_has_a_bound_in_steps(op: str) -> None:
    found = default_tolerance("float32", op)
    assert (found.rel or 0) >= 0.1
    assert found.min_cosine == 0.99
    assert default_tolerance("uint8", "QLinearWhatever").int_abs == 1
    assert default_tolerance("int32", "MatMulInteger").int_abs == default_tolerance("int32", "ConvInteger").int_abs == 0


def test_what_amplifies_at_the_end_of_a_quantised_model_amplifies_steps_too() -> None:
    given, pair = Tolerance(quantized=True), ("float32", "float32")
    assert complete_tolerance(given, pair, maker="Gemm").rel == 0.1
    assert complete_tolerance(given, pair, maker="Softmax").rel == 0.5
    assert complete_tolerance(given, pair, maker="Softmax").min_cosine == 0.99
    assert complete_tolerance(Tolerance(), pair, maker="Softmax").rel == default_tolerance("float32", "Softmax").rel
