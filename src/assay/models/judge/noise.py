"""How far apart correct runtimes are for one operator alone: measured by `benchmarks/model_noise.py`.

1,302 models of one operator, by operator, size, type and distribution of the inputs, were computed by onnxruntime with
and without optimisations, OpenVINO, onnx's evaluator, in float64, and by sums that add one term after another; a sixth
of them by IREE. A family's row is the largest difference in the half that is called `chosen`, rounded up, in units of
the type (eps) at the scale of an element, rounding of the terms that are added up aside. The script prints how much of
its row each operator uses, and the error rates on the other half: docs/explanation/layer-alone.md.

Up to FACTOR times the row is noise: PASS. What is LIMIT times larger than noise is wrong, whatever the type allows:
FAIL. Between the two it is CHANGED, with the number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from assay.models.judge.tolerances import FLOATS
from assay.system.fast_dataclasses import dataclass

FACTOR = 4.0
LIMIT = 32.0
TIE_SHARE = 1e-3  # fraction of elements that may be a step off, without unrounded values; measured: 3e-5 in 8 bits
FEWEST_COHERENT = 256  # elements: rounding errors of fewer need not cancel


@dataclass(frozen=True, slots=True)
class NoiseRow:
    """Noise in units of the type; `root`: more units for each root of the number of terms, in float32: the 16-bit types
    are added up in float32. `common`: of the factor or offset that all elements share; None: it has no bound."""

    units: float
    root: float = 0.0
    common: float | None = None


_ROWS = {
    """
    Relu Abs Neg Max Min Clip Identity Floor Ceil Round Sign Reshape Transpose Flatten Squeeze Unsqueeze Concat Split
    Slice Gather GatherElements GatherND Pad Expand Tile Where DepthToSpace SpaceToDepth MaxPool GlobalMaxPool ReduceMax
    ReduceMin TopK Compress Trilu Dropout Hardmax Cast CastLike QuantizeLinear
    """: NoiseRow(0.0, common=0.0),
    """
    Add Sub Mul Div Reciprocal Sqrt PRelu LeakyRelu HardSigmoid HardSwish DequantizeLinear ThresholdedRelu
    """: NoiseRow(1.0, common=0.5),
    """
    Exp Log Tanh Sigmoid Erf Elu Celu Sin Cos Tan Sinh Cosh Asin Acos Acosh Atanh Gelu Softsign Pow
    """: NoiseRow(4.0, common=1.0),
    "Softplus Mish Selu Atan Asinh": NoiseRow(32.0, common=16.0),
    "MatMul Gemm Conv ConvTranspose Einsum": NoiseRow(4.0, root=0.7, common=2.0),
    """
    ReduceSum ReduceMean ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp GlobalAveragePool AveragePool
    CumSum LpPool GlobalLpPool
    """: NoiseRow(4.0, root=1.2),
    """
    Softmax LogSoftmax LayerNormalization SimplifiedLayerNormalization SkipLayerNormalization RMSNormalization
    InstanceNormalization BatchNormalization LRN
    """: NoiseRow(4.0, root=0.3, common=3.0),
    "LpNormalization MeanVarianceNormalization": NoiseRow(4.0, root=0.3),
    "GroupNormalization": NoiseRow(4.0, root=2.4),
    "LSTM GRU RNN": NoiseRow(12.0),
    "Resize Upsample": NoiseRow(320.0),
}
_BY_OP = {op: row for names, row in _ROWS.items() for op in names.split()}
_SHORT = NoiseRow(0.5)  # results that are computed in float32 and rounded to 16 bits once are at most one unit apart
_PLAIN = 1.0  # most units of operators that may follow another one in its layer: those that only copy or scale


@dataclass(frozen=True, slots=True)
class RoundingNoise:
    """Bounds as fractions of the scale; `common` is infinite if it has no bound."""

    rel: float
    wrong: float
    common: float = math.inf


def find_noise(ops: Sequence[str], dtypes: tuple[str, str], terms: int) -> RoundingNoise | None:
    """Return the noise of a layer of these operators, whose elements are sums of so many terms; None if unknown."""
    rows = [_BY_OP.get(op) for op in ops]
    if dtypes[0] != dtypes[1] or not rows or any(row is None or row.units > _PLAIN for row in rows[1:]):
        return None
    first, kind = rows[0], FLOATS.get(dtypes[0])
    if first is None or kind is None or not 16 <= kind.bits <= 32:
        return None
    is_exact = not any(row.units for row in rows if row)
    row = first if kind.bits == 32 or is_exact else _SHORT
    units = row.units + row.root * math.sqrt(max(terms, 1)) + sum(each.units for each in rows[1:] if each)
    rel = FACTOR * units * kind.eps
    common = math.inf if row.common is None or kind.bits < 32 else FACTOR * (row.common + len(rows) - 1) * kind.eps
    return RoundingNoise(rel, LIMIT * max(rel, kind.eps), common)
