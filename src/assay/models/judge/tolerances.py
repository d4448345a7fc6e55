"""The default tolerances: how far apart two correct tensors of a type and an operator may be.

Relative bounds apply at the tensor's scale. Float32 tensors of two correct runtimes are within 1.1e-4 of each other
(the largest of 1,223 in seven real models, most below 1e-5; layers that amplify rounding aside), the order of
summation, fused multiply-add and Winograd included. Computing with 16-bit factors, a fault that must be found, is off
by 1.3e-3. The default for float32, 3e-4, is between the two. Half and bfloat16 have bounds of a few of their own units.

Absolute bounds are needed since rounding is as large as the terms that are added up, which may cancel. A result that is
computed around one (a sigmoid of -20 as a half minus nearly a half) is off by a unit of one, however small it is: two
correct runtimes may be 120% apart. For every other operator the bound is a few units of the terms that its real inputs
make (`rounding_units` of the `reach` that a caller of `compare_tensors` supplies), and almost zero if these terms are
unknown: an absolute number for all tensors would let any tensor of small numbers pass.

Operators only ever widen a bound, never narrow it: the output of an exact Reshape contains the rounding of everything
before, for which Reshape is not to blame.
"""

from __future__ import annotations

import math

from assay.errors import UsageError
from assay.models.values.tensors import Tolerance
from assay.system.fast_dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class FloatType:
    """A float type. `eps`: from 1 to the next number. `least`: what may get lost near zero, the smallest normal number
    for types whose denormals hardware drops, and the smallest positive number for other types."""

    eps: float
    least: float
    bits: int
    rel: float


FLOATS = {
    "float128": FloatType(2.0**-52, 2.0**-1022, 128, 1e-9),  # the machine's long double
    "float64": FloatType(2.0**-52, 2.0**-1022, 64, 1e-9),
    "float32": FloatType(2.0**-23, 2.0**-126, 32, 3e-4),
    "float16": FloatType(2.0**-10, 2.0**-14, 16, 5e-3),
    "bfloat16": FloatType(2.0**-7, 2.0**-126, 16, 2e-2),
    "float8_e3m4": FloatType(2.0**-4, 2.0**-6, 8, 2.0**-4),
    "float8_e4m3": FloatType(2.0**-3, 2.0**-9, 8, 2.0**-3),
    "float8_e4m3fn": FloatType(2.0**-3, 2.0**-9, 8, 2.0**-3),
    "float8_e4m3fnuz": FloatType(2.0**-3, 2.0**-10, 8, 2.0**-3),
    "float8_e4m3b11fnuz": FloatType(2.0**-3, 2.0**-13, 8, 2.0**-3),
    "float8_e5m2": FloatType(2.0**-2, 2.0**-16, 8, 2.0**-2),
    "float8_e5m2fnuz": FloatType(2.0**-2, 2.0**-17, 8, 2.0**-2),
    "float8_e8m0fnu": FloatType(1.0, 0.0, 8, 0.0),  # powers of two that scale blocks: each is twice the previous
    "float6_e2m3fn": FloatType(2.0**-3, 2.0**-3, 6, 2.0**-3),
    "float6_e3m2fn": FloatType(2.0**-2, 2.0**-4, 6, 2.0**-2),
    "float4_e2m1fn": FloatType(2.0**-1, 2.0**-1, 4, 2.0**-1),
}
COMPLEX_PARTS = {"complex64": "float32", "complex128": "float64", "complex256": "float128"}
SMALL_INTEGERS = frozenset({"int2", "uint2", "int4", "uint4"})  # types that numpy does not have

# exp and division turn a small absolute error of their inputs into a larger relative one
_AMPLIFYING = """
    Exp Pow Log Div Reciprocal Softmax LogSoftmax Tan Sinh Cosh Attention MultiHeadAttention GroupQueryAttention
    LayerNormalization SimplifiedLayerNormalization SkipLayerNormalization InstanceNormalization GroupNormalization
    RMSNormalization LpNormalization MeanVarianceNormalization LRN
"""
_RECURRENT = "LSTM GRU RNN Scan Loop"  # rounding of each step is an input of the next one
_WIDER = dict.fromkeys(_AMPLIFYING.split(), 5.0) | dict.fromkeys(_RECURRENT.split(), 3.0)

_SQUASHING = "Sigmoid HardSigmoid Tanh Erf Softplus Celu Elu Selu LSTM GRU RNN"

# all zeros from these operators mean that their inputs were empty, so nothing was tested
_SUMMING = """
    MatMul Gemm Conv ConvTranspose ConvInteger MatMulInteger QLinearConv QLinearMatMul Einsum Softmax LogSoftmax
    BatchNormalization GlobalAveragePool AveragePool LSTM GRU RNN Attention MultiHeadAttention GroupQueryAttention
    LayerNormalization InstanceNormalization GroupNormalization RMSNormalization Sigmoid Exp Cos
    FusedConv FusedMatMul FusedGemm
"""

# operators that round into their integer type: a value halfway between two may go either way
_ROUNDING = "QuantizeLinear DynamicQuantizeLinear QGemm"  # and operators whose names begin with QLinear
_TIES = 0.25  # fraction of elements that may be one off: up to 16% in correct targets, 50% in a target that truncates
_ROUNDED = frozenset({"int4", "uint4", "int8", "uint8", "int16", "uint16"})

# operators that round their inputs to 8 bits, and output floats: a step is some 3% of a tensor's magnitude.
# OpenVINO, which computes a DynamicQuantizeLSTM in floats, is 10% from onnxruntime at worst (cosine 0.998)
_QUANTIZING = {
    "DynamicQuantizeLSTM": 0.2, "DynamicQuantizeMatMul": 0.1, "MatMulIntegerToFloat": 0.1, "QAttention": 0.1,
}  # fmt: skip

_QUANTIZED_REL = 0.1  # a step of 8 bits is some 3% of a tensor's magnitude; a few steps add up
_QUANTIZED_STEPS = 5
_QUANTIZED_SHARE = 0.5
_QUANTIZED_COSINE = 0.99
# some elements are on the edge of a step in several layers at once: this fraction may be further off, if the whole
# tensor is as near as rounding to 8 bits (a correct runtime: 12 of 65,680, 45 dB)
TAIL_SHARE = 1e-3
TAIL_SQNR_DB = 30.0


def default_tolerance(
    dtype: str, op: str | None = None, *, quantized: bool = False, maker: str | None = None
) -> Tolerance:
    """Return the bounds of a tensor of this type that this operator made, or without an operator, of a model's output.
    `quantized`: the model computes in steps (QuantizeLinear is in its graph), so that a value on the edge between two
    steps moves by a whole step, and all later values with it. This widens the bounds of the whole model's outputs; a
    layer in isolation is as exact as any other. `maker`: a quantised model's last operator, which may amplify."""
    is_loose = quantized and op is None
    kind = FLOATS.get(COMPLEX_PARTS.get(dtype, dtype))
    if kind is None:
        return _default_integers(dtype, op, is_loose)
    if kind.bits < 16:
        return Tolerance(abs=kind.least, rel=kind.rel, ulp=1 if kind.rel else 0, int_abs=0, int_share=0.0)
    rel = kind.rel * _WIDER.get(op or "", 1.0)
    # units of one for functions computed around one; other functions may lose numbers near zero
    absolute = _count_units(kind) * kind.eps if op in _SQUASHING.split() else kind.least
    plain = Tolerance(abs=absolute, rel=rel, int_abs=0, int_share=0.0)
    if op in _QUANTIZING:
        return replace(plain, rel=max(rel, _QUANTIZING[op]), min_cosine=_QUANTIZED_COSINE)
    loose = _QUANTIZED_REL * _WIDER.get(maker or "", 1.0)
    return replace(plain, rel=max(rel, loose), min_cosine=_QUANTIZED_COSINE) if is_loose else plain


def _count_units(kind: FloatType) -> int:
    """Return how many units rounding may change: two for the long types, whose units are small; one for other types."""
    return 2 if kind.bits >= 32 else 1


def rounding_units(dtypes: tuple[str, str]) -> float:
    """Return the rounding of a sum, as a fraction of its terms' magnitudes, in the coarser of two types."""
    kinds = [FLOATS.get(COMPLEX_PARTS.get(dtype, dtype)) for dtype in dtypes]
    return max((_count_units(kind) * kind.eps for kind in kinds if kind and kind.bits >= 16), default=0.0)


def _default_integers(dtype: str, op: str | None, is_loose: bool) -> Tolerance:
    """Return the bounds of integers. Only results that are rounded may be off: shapes, indices and ids are exact."""
    exact = Tolerance(abs=0.0, rel=0.0, int_abs=0, int_share=0.0)
    if is_loose and dtype in _ROUNDED:
        steps = 1 if dtype in SMALL_INTEGERS else _QUANTIZED_STEPS
        return replace(exact, int_abs=steps, int_share=_QUANTIZED_SHARE, min_cosine=_QUANTIZED_COSINE)
    rounds = dtype in _ROUNDED and op is not None and (op in _ROUNDING.split() or op.startswith("QLinear"))
    return replace(exact, int_abs=1, int_share=_TIES) if rounds else exact


def step_tolerance(step: float) -> Tolerance:
    """Return the bounds of floats after a quantiser with steps of this size inside a model."""
    bounds = Tolerance(abs=_QUANTIZED_STEPS * step, rel=0.0, min_cosine=_QUANTIZED_COSINE)
    return replace(bounds, quantized=True, allowed_wrong=TAIL_SHARE)


def coarse_tolerance(dtype: str) -> Tolerance:
    """Return the bounds of a tensor after a cast into this type inside a model: an element on the edge between two of
    the type's numbers moves by a whole step, and all later values with it."""
    return Tolerance(rel=FLOATS[dtype].rel, min_cosine=_QUANTIZED_COSINE)


def complete_tolerance(
    given: Tolerance, dtypes: tuple[str, str], op: str | None = None, maker: str | None = None
) -> Tolerance:
    """Return the tolerance with every open bound filled in, for the coarser of two types. Raises UsageError.
    `maker`: the last operator of a whole model, whose default bounds apply unless the model computes in steps."""
    check_tolerance(given)
    op = op or (None if given.quantized else maker)
    defaults = [default_tolerance(dtype, op, quantized=given.quantized, maker=maker) for dtype in dtypes]
    default = max(defaults, key=lambda each: each.rel or 0.0)
    has_bounds = given.abs is not None or given.rel is not None
    has_tail = given.quantized and op is None and not has_bounds and given.int_abs is None and not given.allowed_wrong
    share = default.int_share if given.int_abs is None else 1.0  # a given int_abs without int_share is for all elements
    return replace(
        given,
        abs=default.abs if given.abs is None else given.abs,
        rel=default.rel if given.rel is None else given.rel,
        ulp=default.ulp if given.ulp is None and not has_bounds else given.ulp,
        int_abs=default.int_abs if given.int_abs is None else given.int_abs,
        int_share=share if given.int_share is None else given.int_share,
        min_cosine=default.min_cosine if given.min_cosine is None else given.min_cosine,
        allowed_wrong=TAIL_SHARE if has_tail else given.allowed_wrong,
    )


def check_tolerance(tolerance: Tolerance) -> None:
    """Raise UsageError for a bound that could let everything pass: NaN, infinite, negative, a fraction of 1."""
    for name in ("abs", "rel", "ulp", "int_abs", "max_shift", "min_sqnr_db"):
        value = getattr(tolerance, name)
        if value is not None and (not math.isfinite(value) or (value < 0 and name != "min_sqnr_db")):
            raise UsageError(f"a tolerance of {name} {value} is not valid", "it is a finite number from 0 up")
    if not 0 <= tolerance.allowed_wrong < 1:
        raise UsageError(
            f"allowed_wrong is {tolerance.allowed_wrong}", "it is a fraction of the elements, from 0 to below 1"
        )
    if tolerance.int_share is not None and not 0 <= tolerance.int_share <= 1:
        raise UsageError(f"int_share is {tolerance.int_share}", "it is a fraction of the elements, from 0 to 1")
    if tolerance.min_cosine is not None and not -1 < tolerance.min_cosine <= 1:
        raise UsageError(f"a cosine of {tolerance.min_cosine} is not valid", "1 is the same direction: try 0.999")
    if tolerance.top_k is not None and tolerance.top_k < 1:
        raise UsageError(f"top_k is {tolerance.top_k}", "1 requires the same largest element")


def is_zero_significant(op: str) -> bool:
    """Return whether outputs of this operator that are all zero, as expected, prove something: sums of products do not;
    a mask, a dead Relu, a padded block or a first hidden state is all zero in correct models."""
    return op not in _SUMMING.split()
