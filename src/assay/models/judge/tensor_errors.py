"""The error of every element, a block at a time, and the histogram and heat map of them.

Integers are subtracted as integers, 64-bit ones as well: a float would make 2**53 and 2**53 + 1 the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from assay.models.judge.tensor_blocks import (
    Array,
    Block,
    Kind,
    Scale,
    build_scale,
    find_kind,
    load_numpy,
    name_dtype,
    read_block,
    survey,
    walk_blocks,
)
from assay.models.judge.tolerances import FLOATS, complete_tolerance
from assay.models.values.tensors import Heat, Histogram, Tolerance

_LARGEST_UINT = 2**64 - 1


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
    """The kind that both can be compared as; None for texts next to numbers."""
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
    wrong = distance > min(steps, _LARGEST_UINT if distance.dtype == np.uint64 else _LARGEST_UINT >> 1)
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
    # modulo 2**64 the larger minus the smaller is correct, whatever their signs are
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
        wrong |= ulp > min(tolerance.ulp, _LARGEST_UINT >> 1)
    if misplaced is not None:
        wrong |= misplaced
    return Errors(left, right, error, size, bound, wrong, misplaced, both_odd, ulp)


def _read_both(expected: Array, actual: Array, block: Block) -> tuple[Array, Array]:
    np = load_numpy()
    kinds = {find_kind(expected), find_kind(actual)}
    if Kind.COMPLEX in kinds:
        return read_block(expected, block, Kind.COMPLEX), read_block(actual, block, Kind.COMPLEX)
    if Kind.INTEGER in kinds:  # next to a float: a long double holds every 64-bit integer
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


_LOWEST, _HIGHEST = -330, 310  # powers of ten that a double knows
_LARGEST = 1e300
_MOST_BARS = 16  # decades; smaller errors are counted with the smallest ones shown


def can_draw(expected: Array, actual: Array) -> bool:
    """Numbers on both sides, in one shape, and at least one."""
    kind = find_common_kind(expected, actual)
    return kind not in (None, Kind.TEXT) and expected.shape == actual.shape and expected.size > 0


def build_histogram(expected: Array, actual: Array) -> Histogram:
    """Of absolute errors by powers of ten, the sixteen largest of them."""
    np = load_numpy()
    expected, actual = np.atleast_1d(expected), np.atleast_1d(actual)
    totals = np.zeros(_HIGHEST - _LOWEST, dtype=np.int64)
    zero = broken = 0
    for _, errors in walk_errors(expected, actual, *_prepare(expected, actual, None)):
        odd = 0 if errors.misplaced is None else int(errors.misplaced.sum())
        broken += odd
        some = errors.error[errors.error > 0]
        zero += errors.error.size - some.size - odd
        powers = np.floor(np.log10(np.minimum(some, _LARGEST))).astype(np.int64)
        totals += np.bincount(powers - _LOWEST, minlength=totals.size)
    return _cut_histogram(totals.tolist(), zero, broken)


def _cut_histogram(totals: list[int], zero: int, broken: int) -> Histogram:
    used = [index for index, count in enumerate(totals) if count]
    if not used:
        return Histogram((), (), zero, broken)
    last = used[-1]
    first = max(used[0], last - _MOST_BARS + 1)
    counts = [sum(totals[: first + 1]), *totals[first + 1 : last + 1]]
    edges = [0.0 if used[0] < first else 10.0 ** (first + _LOWEST)]
    edges += [10.0 ** (index + 1 + _LOWEST) for index in range(first, last + 1)]
    return Histogram(tuple(edges), tuple(counts), zero, broken)


def build_heat(
    expected: Array,
    actual: Array,
    rows: int,
    columns: int,
    tolerance: Tolerance | None = None,
    *,
    op: str | None = None,
) -> Heat:
    """At most so many rows and columns over the two longest axes; of everything else the largest error."""
    np = load_numpy()
    expected, actual = np.atleast_1d(expected), np.atleast_1d(actual)
    axes = find_longest(expected.shape)
    lengths = _lengths(expected.shape, axes)
    grid = np.zeros((min(rows, lengths[0]), min(columns, lengths[1])))
    full, scale = _prepare(expected, actual, tolerance, op)
    for block, errors in walk_errors(expected, actual, full, scale):
        _add_block(grid, axes, lengths, block, _measure_excess(errors))
    return Heat(axes, lengths, tuple(tuple(row) for row in grid.tolist()))


def find_longest(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The two longest axes, in the order of the tensor; one where there is only one."""
    order = sorted(range(len(shape)), key=lambda axis: -shape[axis])
    longer = [axis for axis in order[:2] if shape[axis] > 1] or order[:1]
    return tuple(sorted(longer))


def _lengths(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, int]:
    found = [shape[axis] for axis in axes]
    down, across = [1] * (2 - len(found)) + found
    return down, across


def _prepare(
    expected: Array, actual: Array, tolerance: Tolerance | None, op: str | None = None
) -> tuple[Tolerance, Scale]:
    full = complete_tolerance(tolerance or Tolerance(), (name_dtype(expected), name_dtype(actual)), op)
    return full, build_scale(expected, survey(expected))


def _measure_excess(errors: Errors) -> Array:
    """In units of what is allowed; what is wrong for another reason (its ULP) is more than 1 in any case."""
    np = load_numpy()
    ratio = np.minimum(errors.error / np.maximum(errors.bound, 1e-300), _LARGEST)
    ratio = np.where(errors.wrong, np.maximum(ratio, math.nextafter(1.0, 2.0)), ratio)
    return ratio if errors.misplaced is None else np.where(errors.misplaced, math.inf, ratio)


def _add_block(grid: Array, axes: tuple[int, ...], lengths: tuple[int, int], block: Block, excess: Array) -> None:
    np = load_numpy()
    others = tuple(axis for axis in range(excess.ndim) if axis not in axes)
    flat = excess.max(axis=others) if others else excess
    flat = flat.reshape((1,) * (2 - flat.ndim) + flat.shape)
    starts = [0] * (2 - len(axes)) + [block[axis].start for axis in axes]
    cells = [
        (np.arange(start, start + size) * count) // length
        for start, size, count, length in zip(starts, flat.shape, grid.shape, lengths, strict=True)
    ]
    firsts = [np.flatnonzero(np.diff(indices, prepend=-1)) for indices in cells]
    reduced = np.maximum.reduceat(np.maximum.reduceat(flat, firsts[0], axis=0), firsts[1], axis=1)
    where = np.ix_(cells[0][firsts[0]], cells[1][firsts[1]])
    grid[where] = np.maximum(grid[where], reduced)
