"""Large tensors, a block at a time, and the scale that their errors are measured by.

A block is a tuple of slices, one for each axis, so that a position in it is a position in the tensor. Nothing here
makes a copy that is larger than a block.

Rounding in a sum is as large as the terms of the sum, however small the sum is, so an element must not be measured by
itself alone: 1e-5 next to 100 is as precise as the 100, and a relative error of 100% there means nothing. Nor must all
be measured by the largest: one channel of 64 that is a thousand times smaller than the others and becomes zero would
pass. Hence

    scale of an element = the smallest root mean square of the slices that contain it, one for each axis,
                          but at least a tenth of that of the whole tensor; zeros do not count

so that rows, channels and samples of a batch are each measured by their own size, without knowing which axis means
what. The tenth protects a channel whose terms cancel: its rounding comes from terms that its outputs do not show.
 Zeros are most often what a Relu left out, and say nothing of the size of the rest; counting them made the
errors of correct targets look up to five times larger. A slice of fewer than eight elements has no size worth the name.
The root mean square rather than the largest, for outliers: one activation of 100 among thousands of 0.001 must not make
0.001 an error that does not count. Measured on real models: docs/explanation/comparing-tensors.md.

Values that stand for "nothing" (-1e9, -65504 or the lowest float in a masked attention) would hide everything next to
them: when the largest elements are several, all about one value of -1e4 or below, and a thousand times larger than all
the rest, the scale is that of the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from assay.errors import MissingExtraError, UsageError
from assay.models.judge.tolerances import FLOATS, SMALL_INTEGERS

Array = Any  # numpy.ndarray: the library is loaded inside functions only
Block = tuple[slice, ...]

BLOCK_ELEMENTS = 1 << 18  # two megabytes of doubles: what a processor keeps close


def load_numpy() -> Any:
    try:
        import numpy as np
    except ImportError:
        raise MissingExtraError("comparing tensors", "models") from None
    return np


class Kind(StrEnum):
    """How elements are compared."""

    FLOAT = "float"
    INTEGER = "integer"
    BOOL = "bool"
    COMPLEX = "complex"
    TEXT = "text"


_KINDS = {"f": Kind.FLOAT, "i": Kind.INTEGER, "u": Kind.INTEGER, "b": Kind.BOOL, "c": Kind.COMPLEX}


def name_dtype(array: Array) -> str:
    """As `TensorSpec.dtype` spells it."""
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


# ---------------------------------------------------------------- blocks


def walk_blocks(shape: tuple[int, ...], limit: int = BLOCK_ELEMENTS) -> Iterator[Block]:
    """Blocks in the order of memory; they cover a tensor of at least one axis, the leading ones index by index."""
    if 0 in shape:
        return
    axis = next(position for position in range(len(shape)) if math.prod(shape[position + 1 :]) <= limit)
    step = max(1, limit // math.prod(shape[axis + 1 :]))
    rest = tuple(slice(0, length) for length in shape[axis + 1 :])
    for before in _walk_indices(shape[:axis]):
        lead = tuple(slice(position, position + 1) for position in before)
        for start in range(0, shape[axis], step):
            yield (*lead, slice(start, min(start + step, shape[axis])), *rest)


def _walk_indices(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    import itertools

    return itertools.product(*(range(length) for length in shape))


def read_block(array: Array, block: Block, kind: Kind) -> Array:
    """In the type that is computed with: exact for every type but 64-bit integers, which are compared as they are."""
    np = load_numpy()
    if kind is Kind.COMPLEX:
        return array[block].astype(np.complex128)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array[block]
    return array[block].astype(np.float64)


# ---------------------------------------------------------------- one tensor


@dataclass(frozen=True, slots=True)
class Survey:
    """What a first look at a tensor of numbers tells."""

    nan: int
    inf: int
    finite: int
    largest: float  # magnitude of the finite elements
    spread: float  # from the least to the greatest of them; the larger one of a complex number's parts
    is_constant: bool  # every element is the same finite number

    @property
    def is_zero(self) -> bool:
        return self.is_constant and self.largest == 0


def survey(array: Array) -> Survey:
    kind = find_kind(array)
    if kind is Kind.COMPLEX:
        parts = [_survey_real(array.real), _survey_real(array.imag)]
        nan, inf = _count_complex(array)
        largest = math.hypot(*(part.largest for part in parts))
        same = all(part.is_constant for part in parts)
        spread = max(part.spread for part in parts)
        return Survey(nan, inf, array.size - nan - inf, largest, spread, same)
    return _survey_real(array)


def _survey_real(array: Array) -> Survey:
    np = load_numpy()
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


def _count_complex(array: Array) -> tuple[int, int]:
    """An element with a NaN in either part is NaN; else one with an infinity is infinite."""
    np = load_numpy()
    nan = inf = 0
    for block in walk_blocks(array.shape):
        part = array[block]
        is_nan = np.isnan(part)
        nan += int(is_nan.sum())
        inf += int((np.isinf(part) & ~is_nan).sum())
    return nan, inf


FEWEST = 8  # elements of a slice that has a size of its own
LEAST_SHARE = 0.1  # of the whole tensor's scale
_SENTINEL = 1e4
_SENTINEL_GAP = 1e3
_SENTINEL_SPREAD = 0.01
_FEWEST_SENTINELS = 2
_PLAIN = (1e-140, 1e140)  # magnitudes whose squares a double holds


@dataclass(frozen=True, slots=True)
class Scale:
    """`whole` is the tensor's; `slices` holds the root mean square along each axis that has slices worth the name."""

    whole: float
    slices: tuple[tuple[int, Array], ...] = ()
    cut: float = math.inf  # elements from here on stand for "nothing"
    unit: float = 1.0  # what to divide by before squares are taken

    def at(self, block: Block) -> Array | float:
        """Of each element of a block, in a shape that broadcasts to it."""
        np = load_numpy()
        if not self.slices:
            return self.whole
        found: Array = None
        for axis, sizes in self.slices:
            shape = [1] * len(block)
            shape[axis] = -1
            part = sizes[block[axis]].reshape(shape)
            found = part if found is None else np.minimum(found, part)
        return np.maximum(found, LEAST_SHARE * self.whole)


def build_scale(expected: Array, found: Survey) -> Scale:
    """Of the finite elements that are neither zero nor a sign for "nothing"."""
    cut = find_sentinels(expected, found)
    unit = 1.0
    if found.largest and not _PLAIN[0] < found.largest < _PLAIN[1]:
        unit = math.ldexp(1.0, math.frexp(found.largest)[1] - 1)
    axes = [axis for axis, length in enumerate(expected.shape) if length > 1 and expected.size // length >= FEWEST]
    squares, counts = _sum_squares(expected, axes, cut, unit)
    total, number = squares[None].item(), counts[None].item()
    whole = unit * math.sqrt(total / number) if number else 0.0
    return Scale(whole, tuple((axis, _root(squares[axis], counts[axis], unit)) for axis in axes), cut, unit)


def _root(squares: Array, counts: Array, unit: float) -> Array:
    np = load_numpy()
    return unit * np.sqrt(squares / np.maximum(counts, 1))


def _sum_squares(
    expected: Array, axes: list[int], cut: float, unit: float
) -> tuple[dict[int | None, Array], dict[int | None, Array]]:
    """By axis, and of all under None; and of how many elements each."""
    np = load_numpy()
    kind = find_kind(expected)
    keys: list[int | None] = [None, *axes]
    squares = {key: np.zeros(1 if key is None else expected.shape[key]) for key in keys}
    counts = {key: np.zeros(1 if key is None else expected.shape[key]) for key in keys}
    for block in walk_blocks(expected.shape):
        part = read_block(expected, block, kind)
        size = np.abs(part)
        used = np.isfinite(size) & (size < cut) & (size > 0)
        is_whole = bool(used.all())
        square = (size if unit == 1.0 else size / unit) ** 2 if is_whole else _square_used(size, used, unit)
        for key in keys:
            position = slice(0, 1) if key is None else block[key]
            others = tuple(axis for axis in range(part.ndim) if axis != key)
            squares[key][position] += square.sum(axis=others)
            counts[key][position] += (
                square.size / (1 if key is None else square.shape[key]) if is_whole else used.sum(others)
            )
    return squares, counts


def _square_used(size: Array, used: Array, unit: float) -> Array:
    np = load_numpy()
    return (np.where(used, size, 0.0) / unit) ** 2


# ---------------------------------------------------------------- signs for "nothing"


def find_sentinels(expected: Array, found: Survey) -> float:
    """From which magnitude on elements stand for "nothing"; infinite: none do."""
    if found.largest < _SENTINEL or found.is_constant or find_kind(expected) is not Kind.FLOAT:
        return math.inf
    bound = found.largest * (1 - _SENTINEL_SPREAD)
    rest, above, below_zero = _look_around(expected, bound)
    is_mask = above == below_zero >= _FEWEST_SENTINELS and rest * _SENTINEL_GAP <= found.largest
    return bound if is_mask else math.inf


def _look_around(expected: Array, bound: float) -> tuple[float, int, int]:
    """The largest magnitude below the bound; how many are above it, and how many of these are negative."""
    np = load_numpy()
    rest, above, below_zero = 0.0, 0, 0
    for block in walk_blocks(expected.shape):
        part = read_block(expected, block, Kind.FLOAT)
        size = np.abs(part)
        under = size[size < bound]
        rest = max(rest, float(under.max()) if under.size else 0.0)
        above += int((np.isfinite(size) & (size >= bound)).sum())
        below_zero += int((np.isfinite(part) & (part <= -bound)).sum())
    return rest, above, below_zero
