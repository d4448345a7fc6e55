"""What a tensor is made of: the size that an error is measured by.

Rounding in a sum is as large as the sum's terms, however small their sum comes out, so an element must not be measured
by itself alone: 1e-5 beside 100 is as precise as the 100 is, and a relative error of 100% there says nothing. Nor must
all be measured by the largest: one channel of 64 that is a thousand times smaller than the others and comes out as zero
would pass. Hence

    scale of an element = the smallest root mean square among the slices that it lies in, one for each axis,
                          but at least a tenth of that of the whole tensor; zeros do not count

so that rows, channels and samples of a batch are each measured by their own size, without knowing which axis means
what. The tenth is what guards a channel whose terms cancel: its rounding comes from terms that are not to be seen in
its outputs. Zeros are most often what a Relu left out, and say nothing of the size of the rest; counting them made the
errors of correct targets look up to five times larger. A slice of fewer than eight elements has no size worth the name.
The root mean square rather than the largest, for outliers: one activation of 100 among thousands of 0.001 must not make
0.001 an error that does not count. Measured on real models: docs/explanation/comparing-tensors.md.

Values that stand for "nothing" (-1e9, -65504 or the lowest float in a masked attention) would hide everything beside
them: when the largest elements are several, all about one value of -1e4 or below, and a thousand times larger than all
the rest, the scale is that of the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from assay.models.judge.tensor_blocks import (
    Array,
    Block,
    Kind,
    Survey,
    find_kind,
    load_numpy,
    read_block,
    walk_blocks,
)

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


def build_scale(expected: Array, look: Survey) -> Scale:
    """Of the finite elements that are neither zero nor a sign for "nothing"."""
    cut = find_sentinels(expected, look)
    unit = 1.0
    if look.largest and not _PLAIN[0] < look.largest < _PLAIN[1]:
        unit = math.ldexp(1.0, math.frexp(look.largest)[1] - 1)
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
            place = slice(0, 1) if key is None else block[key]
            others = tuple(axis for axis in range(part.ndim) if axis != key)
            squares[key][place] += square.sum(axis=others)
            counts[key][place] += (
                square.size / (1 if key is None else square.shape[key]) if is_whole else used.sum(others)
            )
    return squares, counts


def _square_used(size: Array, used: Array, unit: float) -> Array:
    np = load_numpy()
    return (np.where(used, size, 0.0) / unit) ** 2


# ---------------------------------------------------------------- signs for "nothing"


def find_sentinels(expected: Array, look: Survey) -> float:
    """From which magnitude on elements stand for "nothing"; infinite: none do."""
    if look.largest < _SENTINEL or look.is_constant or find_kind(expected) is not Kind.FLOAT:
        return math.inf
    bound = look.largest * (1 - _SENTINEL_SPREAD)
    rest, above, below_zero = _look_around(expected, bound)
    is_mask = above == below_zero >= _FEWEST_SENTINELS and rest * _SENTINEL_GAP <= look.largest
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
