"""Computes the errors of all elements of large tensors, block by block, and the scale to which errors are relative.

A block is a tuple of slices, one for each axis, so that a position in a block gives the position in the tensor. No
function here makes a copy that is larger than a block. Integers, also of 64 bits, are subtracted as integers: a float
would make 2**53 and 2**53 + 1 the same.

Rounding in a sum is as large as the terms of the sum, however small the sum is, so the error of an element must not be
relative to that element alone: 1e-5 next to 100 is as precise as the 100, and its relative error of 100% means nothing.
Nor must all errors be relative to the largest element: one channel of 64 that is a thousand times smaller than the
others and becomes zero would pass. Errors are therefore relative to

    scale of an element = the smallest root mean square of the slices that contain it, one for each axis,
                          but at least a tenth of that of the whole tensor; zeros do not count

so that errors of rows, channels and samples of a batch are each relative to their own size, without knowing which axis
is which. The tenth protects a channel whose terms cancel: its rounding comes from terms that its outputs do not show.
Zeros are most often the result of a Relu, and do not show the size of other elements; counting them made the errors of
correct targets look up to five times larger. A slice of fewer than eight elements is too small to have its own scale.
The scale is the root mean square, not the maximum, because of outliers: an activation of 100 among thousands of 0.001
must not hide an error of 0.001. docs/explanation/comparing-tensors.md has measurements of real models.

Values that stand for "nothing" (-1e9, -65504 or the lowest float in a masked attention) would hide errors of all other
elements: if several elements are close to one value of -1e4 or below, and a thousand times larger than all others, the
scale is computed from the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from assay.errors import UsageError
from assay.models.judge.tolerances import FLOATS, SMALL_INTEGERS
from assay.models.libraries import np
from assay.models.values.tensors import Tolerance
from assay.system.fast_dataclasses import dataclass

Array = Any  # numpy.ndarray: numpy is loaded on first use
Block = tuple[slice, ...]

_LARGEST_UINT = 2**64 - 1
BLOCK_ELEMENTS = 1 << 18  # two megabytes of doubles: this fits a processor's cache


class Kind(StrEnum):
    """How elements are compared."""

    FLOAT = "float"
    INTEGER = "integer"
    BOOL = "bool"
    COMPLEX = "complex"
    TEXT = "text"


_KINDS = {"f": Kind.FLOAT, "i": Kind.INTEGER, "u": Kind.INTEGER, "b": Kind.BOOL, "c": Kind.COMPLEX}


def name_dtype(array: Array) -> str:
    """Return the type of an array in the form of `TensorSpec.dtype`."""
    return "string" if array.dtype.kind in "OUST" else str(array.dtype.name)


def find_kind(array: Array) -> Kind:
    name = name_dtype(array)
    if name == "string":
        return Kind.TEXT
    if name in FLOATS:
        return Kind.FLOAT
    if name in SMALL_INTEGERS:
        return Kind.INTEGER
    kind = _KINDS.get(array.dtype.kind)
    if kind is None:
        raise UsageError(f"tensors of the type {name} cannot be compared", "give its true type, such as bfloat16")
    return kind


def walk_blocks(shape: tuple[int, ...], limit: int = BLOCK_ELEMENTS) -> Iterator[Block]:
    """Yield blocks, in the order of memory, that cover a tensor of one or more axes; leading axes have length 1."""
    if 0 in shape:
        return
    axis = next(position for position in range(len(shape)) if math.prod(shape[position + 1 :]) <= limit)
    step = max(1, limit // math.prod(shape[axis + 1 :]))
    rest = tuple(slice(0, length) for length in shape[axis + 1 :])
    for before in itertools.product(*map(range, shape[:axis])):
        lead = tuple(slice(position, position + 1) for position in before)
        for start in range(0, shape[axis], step):
            yield (*lead, slice(start, min(start + step, shape[axis])), *rest)


def read_block(array: Array, block: Block, kind: Kind) -> Array:
    """Return a block in the type of the computation, which is exact for every type except 64-bit integers."""
    if kind is Kind.COMPLEX:
        return array[block].astype(np.complex128)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array[block]
    return array[block].astype(np.float64)


@dataclass(frozen=True, slots=True)
class Survey:
    """The statistics of a tensor of numbers, from one pass over it."""

    nan: int
    inf: int
    finite: int
    largest: float  # largest magnitude of the finite elements
    spread: float  # greatest less least finite element; for complex numbers, the larger spread of the two parts
    is_constant: bool  # every element is the same finite number

    @property
    def is_zero(self) -> bool:
        return self.is_constant and self.largest == 0


def survey(array: Array) -> Survey:
    kind = find_kind(array)
    if kind is Kind.COMPLEX:
        parts = [_survey_real(array.real), _survey_real(array.imag)]
        nan = inf = 0
        for block in walk_blocks(array.shape):  # an element with a NaN in either part is NaN, else it may be infinite
            is_nan = np.isnan(array[block])
            nan += int(is_nan.sum())
            inf += int((np.isinf(array[block]) & ~is_nan).sum())
        largest = math.hypot(*(part.largest for part in parts))
        same = all(part.is_constant for part in parts)
        spread = max(part.spread for part in parts)
        return Survey(nan, inf, array.size - nan - inf, largest, spread, same)
    return _survey_real(array)


def _survey_real(array: Array) -> Survey:
    nan = inf = 0
    low: Any = math.inf
    high: Any = -math.inf
    for block in walk_blocks(array.shape):
        part = array[block]
        if part.dtype.kind not in "fiub":
            part = part.astype(np.float64)
        least, most = part.min(), part.max()
        if not (np.isfinite(least) and np.isfinite(most)):
            nans, infs = int(np.isnan(part).sum()), int(np.isinf(part).sum())
            nan, inf = nan + nans, inf + infs
            part = part[np.isfinite(part)]
            if not part.size:
                continue
            least, most = part.min(), part.max()
        low, high = min(low, least.item()), max(high, most.item())
    finite = array.size - nan - inf
    if not finite:
        return Survey(nan, inf, 0, 0.0, 0.0, is_constant=False)
    is_constant = low == high and finite == array.size
    return Survey(nan, inf, finite, float(max(abs(low), abs(high))), float(high - low), is_constant)


FEWEST = 8  # the fewest elements of a slice that has a scale of its own
LEAST_SHARE = 0.1  # least scale, as a fraction of the whole tensor's scale
_SENTINEL = 1e4
_SENTINEL_GAP = 1e3
_SENTINEL_SPREAD = 0.01
_FEWEST_SENTINELS = 2
_PLAIN = (1e-140, 1e140)  # magnitudes whose squares a double can represent


@dataclass(frozen=True, slots=True)
class TensorScale:
    """The scale of a tensor: `whole`, and in `slices` the root mean square along each axis with large enough slices."""

    whole: float
    slices: tuple[tuple[int, Array], ...] = ()
    cut: float = math.inf  # elements from this magnitude on stand for "nothing"
    unit: float = 1.0  # divisor of values before these are squared

    def at(self, block: Block) -> Array | float:
        """Return the scale of each element of a block, in a shape that broadcasts to it."""
        if not self.slices:
            return self.whole
        found: Array = None
        for axis, sizes in self.slices:
            shape = [1] * len(block)
            shape[axis] = -1
            part = sizes[block[axis]].reshape(shape)
            found = part if found is None else np.minimum(found, part)
        return np.maximum(found, LEAST_SHARE * self.whole)


def build_scale(expected: Array, found: Survey) -> TensorScale:
    """Build the scale from the finite elements that are neither zero nor stand for "nothing"."""
    cut = find_sentinels(expected, found)
    unit = 1.0
    if found.largest and not _PLAIN[0] < found.largest < _PLAIN[1]:
        unit = math.ldexp(1.0, math.frexp(found.largest)[1] - 1)
    axes = [axis for axis, length in enumerate(expected.shape) if length > 1 and expected.size // length >= FEWEST]
    squares, counts = _sum_squares(expected, axes, cut, unit)
    total, number = squares[None].item(), counts[None].item()
    whole = unit * math.sqrt(total / number) if number else 0.0
    slices = [(axis, unit * np.sqrt(squares[axis] / np.maximum(counts[axis], 1))) for axis in axes]
    return TensorScale(whole, tuple(slices), cut, unit)


def _sum_squares(
    expected: Array, axes: list[int], cut: float, unit: float
) -> tuple[dict[int | None, Array], dict[int | None, Array]]:
    """Return sums of squares by axis, with the sum of all elements under None, and the numbers of their elements."""
    kind = find_kind(expected)
    keys: list[int | None] = [None, *axes]
    squares = {key: np.zeros(1 if key is None else expected.shape[key]) for key in keys}
    counts = {key: np.zeros(1 if key is None else expected.shape[key]) for key in keys}
    for block in walk_blocks(expected.shape):
        part = read_block(expected, block, kind)
        size = np.abs(part)
        used = np.isfinite(size) & (size < cut) & (size > 0)
        is_whole = bool(used.all())  # the usual case, which needs no copy
        kept = size if is_whole else np.where(used, size, 0.0)
        square = (kept if unit == 1.0 else kept / unit) ** 2
        for key in keys:
            position = slice(0, 1) if key is None else block[key]
            others = tuple(axis for axis in range(part.ndim) if axis != key)
            squares[key][position] += square.sum(axis=others)
            counts[key][position] += (
                square.size / (1 if key is None else square.shape[key]) if is_whole else used.sum(others)
            )
    return squares, counts


def find_sentinels(expected: Array, found: Survey) -> float:
    """Return the magnitude from which on elements stand for "nothing"; infinite without such elements."""
    if found.largest < _SENTINEL or found.is_constant or find_kind(expected) is not Kind.FLOAT:
        return math.inf
    bound = found.largest * (1 - _SENTINEL_SPREAD)
    rest, above, below_zero = 0.0, 0, 0  # largest magnitude below the bound; counts beyond it; counts of negatives
    for block in walk_blocks(expected.shape):
        part = read_block(expected, block, Kind.FLOAT)
        size = np.abs(part)
        under = size[size < bound]
        rest = max(rest, float(under.max()) if under.size else 0.0)
        above += int((np.isfinite(size) & (size >= bound)).sum())
        below_zero += int((np.isfinite(part) & (part <= -bound)).sum())
    is_mask = above == below_zero >= _FEWEST_SENTINELS and rest * _SENTINEL_GAP <= found.largest
    return bound if is_mask else math.inf


@dataclass(frozen=True, slots=True)
class Errors:
    """The errors of one block. Elements that are not finite count as 0; `misplaced` marks those that are wrong."""

    expected: Array
    actual: Array
    error: Array  # |actual - expected|
    size: Array  # size for the relative error: max(|expected|, scale)
    bound: Array | float  # largest error that the tolerance allows
    wrong: Array
    misplaced: Array | None = None  # None: all elements are finite
    both_odd: int = 0  # NaN or the same infinity on both sides
    ulp: Array | None = None


def find_common_kind(expected: Array, actual: Array) -> Kind | None:
    """Return the kind as which both tensors can be compared; None for strings and numbers."""
    kinds = {find_kind(expected), find_kind(actual)}
    if Kind.TEXT in kinds:
        return Kind.TEXT if len(kinds) == 1 else None
    order = (Kind.COMPLEX, Kind.FLOAT, Kind.INTEGER, Kind.BOOL)
    return next(kind for kind in order if kind in kinds)


def walk_errors(
    expected: Array, actual: Array, tolerance: Tolerance, scale: TensorScale, slack: Array | None = None
) -> Iterator[tuple[Block, Errors]]:
    """Yield the errors of two tensors of numbers with one shape, block by block. `tolerance` has no open bounds.
    `slack`, of the tensors' shape, is an absolute bound for each element in addition to the tolerance's bounds."""
    kind = find_common_kind(expected, actual)
    for block in walk_blocks(expected.shape):
        with np.errstate(over="ignore", invalid="ignore"):
            if kind in (Kind.INTEGER, Kind.BOOL):
                steps = 0 if kind is Kind.BOOL else tolerance.int_abs or 0
                distance = subtract_integers(expected[block], actual[block])
                wrong = distance > min(steps, _LARGEST_UINT if distance.dtype == np.uint64 else _LARGEST_UINT >> 1)
                plain, other, error = (part.astype(np.float64) for part in (expected[block], actual[block], distance))
                # the bound is half a step more: exact integers that are off by one exceed it with a finite ratio
                size = np.maximum(np.abs(plain), scale.at(block))
                yield block, Errors(plain, other, error, size, steps + 0.5, wrong)
            else:
                yield block, _compare_floats(expected, actual, block, tolerance, scale, slack)


def subtract_integers(expected: Array, actual: Array) -> Array:
    """Return the distances of integers, without overflow."""
    wide = {part.dtype.name for part in (expected, actual) if part.dtype.name in ("int64", "uint64")}
    if not wide:
        distance = actual.astype(np.int64)
        distance -= expected.astype(np.int64)
        return np.abs(distance, out=distance)
    if len(wide) == 2 or (wide == {"uint64"} and expected.dtype != actual.dtype):
        return np.abs(actual.astype(np.longdouble) - expected.astype(np.longdouble))  # exact for 64 bits and a sign
    left, right = (part.astype(next(iter(wide))) for part in (expected, actual))
    is_more = right > left
    # modulo 2**64 the larger minus the smaller integer is correct, whatever their signs are
    return np.where(is_more, right.view(np.uint64) - left.view(np.uint64), left.view(np.uint64) - right.view(np.uint64))


def _compare_floats(
    expected: Array, actual: Array, block: Block, tolerance: Tolerance, scale: TensorScale, slack: Array | None
) -> Errors:
    kinds = {find_kind(expected), find_kind(actual)}
    if Kind.INTEGER in kinds and Kind.COMPLEX not in kinds:  # an integer and a float: a long double is exact
        left, right = expected[block].astype(np.longdouble), actual[block].astype(np.longdouble)
    else:
        kind = Kind.COMPLEX if Kind.COMPLEX in kinds else Kind.FLOAT
        left, right = read_block(expected, block, kind), read_block(actual, block, kind)
    is_finite = np.isfinite(left) & np.isfinite(right)
    misplaced, both_odd = None, 0
    if not is_finite.all():
        agree = (left == right) | (np.isnan(left) & np.isnan(right))
        misplaced = ~is_finite & ~agree
        both_odd = int((~is_finite & agree).sum())
        left, right = np.where(is_finite, left, 0), np.where(is_finite, right, 0)
    error = np.abs(right - left).astype(np.float64)
    size = np.maximum(np.abs(left), scale.at(block)).astype(np.float64)
    bound = (tolerance.abs or 0.0) + (tolerance.rel or 0.0) * size
    if slack is not None:
        bound = bound + slack[block]
    wrong = error > bound
    ulp = measure_ulp(expected[block], actual[block])
    if ulp is not None and misplaced is not None:
        ulp = np.where(is_finite, ulp, 0)
    if ulp is not None and tolerance.ulp is not None:
        wrong |= ulp > min(tolerance.ulp, _LARGEST_UINT >> 1)
    if misplaced is not None:
        wrong |= misplaced
    return Errors(left, right, error, size, bound, wrong, misplaced, both_odd, ulp)


def measure_ulp(expected: Array, actual: Array) -> Array | None:
    """Return the distances in ULP, zero between +0 and -0; None unless both tensors have the same float type."""
    kind = FLOATS.get(name_dtype(expected))
    if kind is None or kind.bits > 64 or expected.dtype != actual.dtype:
        return None
    left, right = (_rank(part, kind.bits, is_signed=kind.eps < 1) for part in (expected, actual))
    return subtract_integers(left, right)


def _rank(part: Array, bits: int, *, is_signed: bool) -> Array:
    """Return the position of each number in the order of all numbers of its type, with zero in the middle."""
    if not is_signed:
        return part.view(np.uint8)
    if bits < 16:
        raw = part.view(np.uint8).astype(np.int16)
        return np.where(raw >> (bits - 1) & 1, -(raw & (2 ** (bits - 1) - 1)), raw)
    raw = part.view(f"i{bits // 8}")
    sign = raw >> (bits - 1)  # -1 for negative numbers, whose magnitude is inverted
    rank = sign & (2 ** (bits - 1) - 1)
    rank ^= raw
    rank -= sign
    return rank
