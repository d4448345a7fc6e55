"""Where and how large the errors of a tensor are: what its pictures are drawn from."""

from __future__ import annotations

import math

from assay.models.judge.tensor_blocks import Array, Block, Kind, load_numpy, name_dtype, survey
from assay.models.judge.tensor_errors import Errors, find_common_kind, walk_errors
from assay.models.judge.tensor_scale import Scale, build_scale
from assay.models.judge.tolerances import complete_tolerance
from assay.models.values.tensors import Heat, Histogram, Tolerance

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
    used = [place for place, count in enumerate(totals) if count]
    if not used:
        return Histogram((), (), zero, broken)
    last = used[-1]
    first = max(used[0], last - _MOST_BARS + 1)
    counts = [sum(totals[: first + 1]), *totals[first + 1 : last + 1]]
    edges = [0.0 if used[0] < first else 10.0 ** (first + _LOWEST)]
    edges += [10.0 ** (place + 1 + _LOWEST) for place in range(first, last + 1)]
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
    firsts = [np.flatnonzero(np.diff(places, prepend=-1)) for places in cells]
    reduced = np.maximum.reduceat(np.maximum.reduceat(flat, firsts[0], axis=0), firsts[1], axis=1)
    where = np.ix_(cells[0][firsts[0]], cells[1][firsts[1]])
    grid[where] = np.maximum(grid[where], reduced)
