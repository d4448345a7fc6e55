"""The error of every element, a block at a time: what all numbers and pictures of a comparison are made from.

Integers are subtracted as integers, 64-bit ones as well: a float would make 2**53 and 2**53 + 1 the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from assay.models.judge.tensor_blocks import (
    Array,
    Block,
    Kind,
    find_kind,
    load_numpy,
    name_dtype,
    read_block,
    walk_blocks,
)
from assay.models.judge.tensor_scale import Scale
from assay.models.judge.tolerances import FLOATS
from assay.models.values.tensors import Tolerance

_LARGEST = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Errors:
    """Of one block. Where an element is not finite, its numbers are 0 and `misplaced` says whether that is wrong."""

    expected: Array
    actual: Array
    error: Array  # |actual - expected|
    size: Array  # that it is measured by: max(|expected|, scale)
    bound: Array | float  # what the tolerance allows
    wrong: Array
    misplaced: Array | None = None  # None: all is finite
    both_odd: int = 0  # NaN or the same infinity on both sides
    ulp: Array | None = None


def find_common_kind(expected: Array, actual: Array) -> Kind | None:
    """The kind that both can be compared as; None for texts beside numbers."""
    kinds = {find_kind(expected), find_kind(actual)}
    if Kind.TEXT in kinds:
        return Kind.TEXT if len(kinds) == 1 else None
    order = (Kind.COMPLEX, Kind.FLOAT, Kind.INTEGER, Kind.BOOL)
    return next(kind for kind in order if kind in kinds)


def walk_errors(
    expected: Array, actual: Array, tolerance: Tolerance, scale: Scale, slack: Array | None = None
) -> Iterator[tuple[Block, Errors]]:
    """Of two tensors of numbers that have one shape; the tolerance is complete.

    `slack`: an absolute bound for each element, of the tensors' shape, which is added to the tolerance's own.
    """
    np = load_numpy()
    kind = find_common_kind(expected, actual)
    for block in walk_blocks(expected.shape):
        with np.errstate(over="ignore", invalid="ignore"):
            if kind in (Kind.INTEGER, Kind.BOOL):
                steps = 0 if kind is Kind.BOOL else tolerance.int_abs or 0
                yield block, _compare_integers(expected[block], actual[block], steps, scale.at(block))
            else:
                yield block, _compare_floats(expected, actual, block, tolerance, scale, slack)


# ---------------------------------------------------------------- integers


def _compare_integers(expected: Array, actual: Array, steps: int, scale: Array | float) -> Errors:
    np = load_numpy()
    distance = subtract_integers(expected, actual)
    wrong = distance > min(steps, _LARGEST if distance.dtype == np.uint64 else _LARGEST >> 1)
    plain, other, error = (part.astype(np.float64) for part in (expected, actual, distance))
    # half a step more: off by one is beyond what exact integers allow, and a ratio can say so
    return Errors(plain, other, error, np.maximum(np.abs(plain), scale), steps + 0.5, wrong)


def subtract_integers(expected: Array, actual: Array) -> Array:
    """Distances that cannot overflow."""
    np = load_numpy()
    wide = {part.dtype.name for part in (expected, actual) if part.dtype.name in ("int64", "uint64")}
    if not wide:
        distance = actual.astype(np.int64)
        distance -= expected.astype(np.int64)
        return np.abs(distance, out=distance)
    if len(wide) == 2 or (wide == {"uint64"} and expected.dtype != actual.dtype):
        return np.abs(actual.astype(np.longdouble) - expected.astype(np.longdouble))  # 64 bits, and a sign
    left, right = (part.astype(next(iter(wide))) for part in (expected, actual))
    is_more = right > left
    # modulo 2**64 the larger minus the smaller is right, whatever their signs are
    return np.where(is_more, right.view(np.uint64) - left.view(np.uint64), left.view(np.uint64) - right.view(np.uint64))


# ---------------------------------------------------------------- floats


def _compare_floats(
    expected: Array, actual: Array, block: Block, tolerance: Tolerance, scale: Scale, slack: Array | None
) -> Errors:
    np = load_numpy()
    left, right = _read_both(expected, actual, block)
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
        wrong |= ulp > min(tolerance.ulp, _LARGEST >> 1)
    if misplaced is not None:
        wrong |= misplaced
    return Errors(left, right, error, size, bound, wrong, misplaced, both_odd, ulp)


def _read_both(expected: Array, actual: Array, block: Block) -> tuple[Array, Array]:
    np = load_numpy()
    kinds = {find_kind(expected), find_kind(actual)}
    if Kind.COMPLEX in kinds:
        return read_block(expected, block, Kind.COMPLEX), read_block(actual, block, Kind.COMPLEX)
    if Kind.INTEGER in kinds:  # beside a float: a long double holds every 64-bit integer
        return expected[block].astype(np.longdouble), actual[block].astype(np.longdouble)
    return read_block(expected, block, Kind.FLOAT), read_block(actual, block, Kind.FLOAT)


def measure_ulp(expected: Array, actual: Array) -> Array | None:
    """How many numbers of their type lie between; zero for +0 and -0. None where the two have no type in common."""
    kind = FLOATS.get(name_dtype(expected))
    if kind is None or kind.bits > 64 or expected.dtype != actual.dtype:
        return None
    left, right = (_rank(part, kind.bits, is_signed=kind.eps < 1) for part in (expected, actual))
    return subtract_integers(left, right)


def _rank(part: Array, bits: int, *, is_signed: bool) -> Array:
    """The place of each number in the order of all numbers of its type, zero in the middle."""
    np = load_numpy()
    if not is_signed:
        return part.view(np.uint8)
    if bits < 16:
        raw = part.view(np.uint8).astype(np.int16)
        return np.where(raw >> (bits - 1) & 1, -(raw & (2 ** (bits - 1) - 1)), raw)
    raw = part.view(f"i{bits // 8}")
    sign = raw >> (bits - 1)  # -1 for negative numbers, whose size is turned around
    rank = sign & (2 ** (bits - 1) - 1)
    rank ^= raw
    rank -= sign
    return rank
