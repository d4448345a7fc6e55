"""Large tensors, a block at a time: nothing here makes a copy that is larger than a block.

A block is a tuple of slices, one for each axis, so that a position in it is a position in the tensor.
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
    axis = next(place for place in range(len(shape)) if math.prod(shape[place + 1 :]) <= limit)
    step = max(1, limit // math.prod(shape[axis + 1 :]))
    rest = tuple(slice(0, length) for length in shape[axis + 1 :])
    for before in _walk_indices(shape[:axis]):
        lead = tuple(slice(place, place + 1) for place in before)
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
