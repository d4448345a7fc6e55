"""Judges a layer that is computed alone with the reference's inputs by how far correct runtimes are apart.

`benchmarks/model_noise.py` measured how far apart correct runtimes are, operator by operator. 1,302 models of one
operator, by operator, size, type and distribution of the inputs, were computed by onnxruntime with and without
optimisations, OpenVINO, onnx's evaluator, in float64, and by sums that add one term after another; a sixth of them by
IREE. A family's row is the largest difference in the half that is called `chosen`, rounded up, in units of the type
(eps) at the scale of an element, rounding of the terms that are added up aside. The script prints how much of its row
each operator uses, and the error rates on the other half: docs/explanation/layer-alone.md.

A difference up to FACTOR times the row is noise: PASS. A difference LIMIT times larger than noise is wrong, whatever
the type allows: FAIL. A difference between the two is CHANGED, with the number: the target computes something else.

An operator that rounds into its type is judged by the values before rounding: only an element near a tie may be rounded
the other way, and many such elements must not all be rounded in one direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from assay.models.judge.tensor_errors import Array, Kind, find_kind, name_dtype
from assay.models.judge.tensor_numbers import render_share
from assay.models.judge.tolerances import FLOATS
from assay.models.libraries import np
from assay.models.values.tensors import TensorComparison
from assay.system.fast_dataclasses import dataclass
from assay.values.verdict import Finding, VerdictKind

FACTOR = 4.0
LIMIT = 32.0
TIE_SHARE = 1e-3  # fraction of elements that may be a step off, without unrounded values; measured: 3e-5 in 8 bits
FEWEST_COHERENT = 256  # elements: the rounding errors of fewer elements need not cancel


@dataclass(frozen=True, slots=True)
class NoiseRow:
    """Noise in units of the type; `root`: more units for each root of the number of terms, only for float32, since
    16-bit types are added up in it. `common`: noise of the factor or offset that all elements share; None: no bound."""

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
_PLAIN = 1.0  # most units of an operator that may follow another one in a layer: it only copies or scales


@dataclass(frozen=True, slots=True)
class RoundingNoise:
    """Bounds as fractions of the scale; `common` is infinite if a shared factor or offset has no bound."""

    rel: float
    wrong: float
    common: float = math.inf


def find_noise(ops: Sequence[str], dtypes: tuple[str, str], terms: int) -> RoundingNoise | None:
    """Return the noise of a layer of these operators, whose elements are sums of `terms` terms; None if unknown."""
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


_NEAR = 8 * 2.0**-23  # times an unrounded float: four times float32's own rounding of a quotient or a product
_MOST_STEPS = 2.0**16  # the margin around a tie grows with an integer's magnitude up to this many steps
_NEAR_SMALL = 2.0**-10  # for types of 8 bits and fewer, which may be rounded twice, by way of float16
_MOST_LOST = 0.5  # fraction of the elements that differ: saturated elements are far from the unrounded values, too
_FEWEST = 16  # so many elements are rarely rounded in one direction by chance
_COHERENT = 4.0  # standard deviations


@dataclass(frozen=True, slots=True)
class LayerOrigin:
    """The computation of a layer alone: its operators, the number of terms of an element, and for each output the
    values before rounding, in steps of its type (None: the output is not rounded, or the values are not known)."""

    ops: tuple[str, ...]
    count_terms: Callable[[], int]
    compute_unrounded: Callable[[str], Array | None]


@dataclass(frozen=True, slots=True)
class Ties:
    """Elements that differ, compared with the values before rounding."""

    count: int  # number of all elements
    off: int = 0  # elements further from the unrounded value than the reference's, and not near a tie
    far: int = 0  # elements of `off` that are more than one step from the reference's
    near: int = 0  # elements near a tie
    up: int = 0  # elements near a tie that are larger than the reference's
    better: int = 0  # elements nearer to the unrounded value than the reference's, and not near a tie

    @property
    def is_coherent(self) -> bool:
        return is_coherent(2 * self.up - self.near, self.near)


def is_coherent(signed: float, count: int) -> bool:
    """Return whether `count` elements agree in direction by more than chance; `signed`: number up less number down."""
    return count >= _FEWEST and abs(signed) > _COHERENT * count**0.5


def find_ties(origin: LayerOrigin, name: str, expected: Array, actual: Array) -> Ties | None:
    """Compare the elements that differ with the values before rounding. None if those values are not known, have
    another size, are not finite or are far from both sides."""
    kind = FLOATS.get(name_dtype(expected))
    # only integers, and float types that a longer type is rounded into, have steps
    is_rounded = find_kind(expected) is Kind.INTEGER or (kind is not None and kind.bits <= 16)
    unrounded = origin.compute_unrounded(name) if is_rounded else None
    if unrounded is None or unrounded.size != expected.size:
        return None
    left, right, exact = (part.astype(np.float64).ravel() for part in (expected, actual, unrounded))
    found = np.flatnonzero(left != right)
    left, right, exact = left[found], right[found], exact[found]
    if not kind and origin.ops[-1].startswith("Cast") and np.array_equal(left, np.trunc(exact)):
        return None  # the reference truncates, so there are no ties
    if not (np.isfinite(left) & np.isfinite(right) & np.isfinite(exact)).all():
        return None
    if not kind and np.mean((np.abs(left - exact) > 1) & (np.abs(right - exact) > 1)) > _MOST_LOST:
        return None
    excess = np.abs(right - exact) - np.abs(left - exact)
    size = np.abs(exact) if kind else min(float(np.abs(unrounded).max()), _MOST_STEPS) + 1
    margin = (_NEAR_SMALL if kind and kind.bits < 16 else _NEAR) * size
    off, better = excess > margin, excess < -margin
    near = ~off & ~better
    steps = kind.eps * np.maximum(np.abs(left), np.abs(right)) if kind else 1.0
    far = off & (np.abs(right - left) > 1.001 * steps)
    parts = (off, far, near, near & (right > left), better)
    return Ties(expected.size, *(int(np.count_nonzero(part)) for part in parts))


def judge_ties(found: TensorComparison, ties: Ties, *, is_float: bool) -> Iterator[Finding]:
    """Judge elements that are a step off: integers that are not near a tie are wrong, unless they are few."""
    if ties.off:
        is_wrong = not is_float and (ties.far or ties.off > max(1.0, TIE_SHARE * ties.count))
        text = f"{render_share(ties.off, ties.count)} are rounded otherwise, although no tie is near"
        text += f", {ties.far} of them by more than a step" if ties.far else ""
        kind = VerdictKind.FAIL if is_wrong else VerdictKind.CHANGED
        yield Finding(kind, found.name, text, ties.off / ties.count, 0.0)
    elif ties.is_coherent:
        where = "up" if 2 * ties.up > ties.near else "down"
        text = f"{render_share(ties.near, ties.count)} are ties that are rounded otherwise, nearly all of them {where}"
        yield Finding(VerdictKind.CHANGED, found.name, f"{text}: another rounding rule", ties.near / ties.count, 0.0)


def describe_better(ties: Ties, largest: float) -> str:
    """Describe where the target is nearer to the unrounded values than the reference; empty if nowhere."""
    if not ties.better:
        return ""
    where = render_share(ties.better, ties.count)
    return f"the reference is off by up to {largest:.3g} in {where}; by float64 the target is right"


def judge_steps(found: TensorComparison, differing: int, signed: float) -> Iterator[Finding]:
    """Judge integers whose unrounded values are not known: ties are rare, and are rounded both up and down."""
    allowed = max(1.0, TIE_SHARE * found.count)
    if differing > allowed:
        coherent = is_coherent(signed, differing)
        text = f"{render_share(differing, found.count)} are off; correct runtimes differ in at most {TIE_SHARE:.3g}"
        text += ", and nearly all go in one direction: another rounding rule" if coherent else ""
        kind = VerdictKind.FAIL if coherent else VerdictKind.CHANGED
        yield Finding(kind, found.name, text, differing / found.count, TIE_SHARE)


def judge_noise(
    found: TensorComparison, noise: RoundingNoise, beyond: int, common: float, slack: Array | None
) -> Iterator[Finding]:
    """Judge by noise. `beyond`: elements that are further off; `common`: a factor or offset that all elements share."""
    measured = f"correct runtimes differ by at most {noise.rel:.2g} here"
    if beyond:
        text = f"{render_share(beyond, found.count)} are off by up to {found.max_rel:.3g} of the scale; {measured}"
        yield Finding(VerdictKind.CHANGED, found.name, text, found.max_rel, noise.rel)
        return
    allowed = noise.common
    if slack is not None and found.scale:
        allowed += float(np.sqrt(np.mean(np.square(slack)))) / found.scale
    if found.count >= FEWEST_COHERENT and common > allowed:
        text = f"all elements together are off by {common:.2g} of the scale, by a factor or an offset; correct runtimes"
        yield Finding(VerdictKind.CHANGED, found.name, f"{text} by at most {allowed:.2g}", common, allowed)
