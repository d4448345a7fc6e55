"""Summarises the errors of all elements: the numbers of a report, the histogram and the heat map."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from assay.models.judge.tensor_errors import (
    Array,
    Block,
    Errors,
    Kind,
    TensorScale,
    build_scale,
    find_common_kind,
    survey,
    walk_errors,
)
from assay.models.libraries import np
from assay.models.values.tensors import Element, ErrorHistogram, Heat, Number, Tolerance
from assay.system.fast_dataclasses import dataclass, field

_LEAST = 1e-300  # the least divisor
_UNBOUNDED = 1e250  # a larger relative error comes from a division by nearly zero
_TIE = 1e-6  # relative errors closer than this count as equal: absolute errors decide


_LOWEST, _HIGHEST = -330, 310  # powers of ten in the range of a double
_LARGEST = 1e300
_MOST_BARS = 16  # decades; smaller errors are counted with the smallest ones shown


class Extreme(NamedTuple):
    score: float  # the relative error by which elements are ranked
    relative: float
    at: tuple[int, ...]


@dataclass(slots=True)
class DifferenceTally:
    """Counts of differences, which are updated block by block."""

    wanted: int  # number of elements to show
    finite: int = 0  # elements that are finite on both sides
    wrong: int = 0
    differing: int = 0
    misplaced: int = 0
    sum_abs: float = 0.0
    sum_signed: float = 0.0  # actual less expected
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: int | None = None
    products: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])  # e·e, a·a, e·a, d·d
    extremes: list[Extreme] = field(default_factory=list)  # worst first

    def add(self, block: Block, errors: Errors, scale: TensorScale) -> None:
        odd = 0 if errors.misplaced is None else int(errors.misplaced.sum())
        self.finite += errors.error.size - odd - errors.both_odd
        self.wrong += int(errors.wrong.sum())
        self.misplaced += odd
        self.differing += int(np.count_nonzero(errors.error)) + odd
        self.sum_abs += float(errors.error.sum())
        self.sum_signed += float((errors.actual - errors.expected).sum().real)
        self.max_abs = max(self.max_abs, float(errors.error.max()))
        relative = errors.error / np.maximum(errors.size, _LEAST)
        self.max_rel = max(self.max_rel, _limit(float(relative.max())))
        if errors.ulp is not None:
            self.max_ulp = max(self.max_ulp or 0, int(errors.ulp.max()))
        self._add_products(errors, scale)
        self._add_places(block, errors, relative, scale.whole)

    def _add_products(self, errors: Errors, scale: TensorScale) -> None:
        """Add the products in units whose squares do not overflow, without elements that stand for "nothing"."""
        left, right = errors.expected, errors.actual
        if scale.cut < math.inf:
            used = np.abs(left) < scale.cut
            left, right = np.where(used, left, 0), np.where(used, right, 0)
        if scale.unit != 1.0:
            left, right = left / scale.unit, right / scale.unit
        with np.errstate(over="ignore", invalid="ignore"):
            pairs = ((left, left), (right, right), (left, right))
            found = [*(_dot(one, other) for one, other in pairs), _dot(*[right - left] * 2)]
        self.products = [total + more for total, more in zip(self.products, found, strict=True)]

    def _add_places(self, block: Block, errors: Errors, relative: Array, whole: float) -> None:
        """Add the worst elements by relative error, or by absolute error among equal ones, as in a channel of zeros."""
        ranks = relative if errors.misplaced is None else np.where(errors.misplaced, math.inf, relative)
        least = self.extremes[-1].score if len(self.extremes) >= self.wanted else 0.0
        found = np.flatnonzero(ranks >= least * (1 - 2 * _TIE)) if least else np.flatnonzero(ranks)
        if not found.size:
            return
        flat = ranks.ravel()[found]
        size = errors.error.ravel()[found]
        score = flat * (1 + _TIE * size / (size + whole + _LEAST))
        if found.size > self.wanted:
            kept = np.argpartition(-score, self.wanted - 1)[: self.wanted]
            found, flat, score = found[kept], flat[kept], score[kept]
        columns = [axis + part.start for axis, part in zip(np.unravel_index(found, ranks.shape), block, strict=True)]
        indices = zip(*(column.tolist() for column in columns), strict=True) if columns else [()]
        fresh = map(Extreme, score.tolist(), map(_limit, flat.tolist()), indices)
        self.extremes = sorted([*self.extremes, *fresh], key=lambda each: (-each.score, each.at))[: self.wanted]

    @property
    def cosine(self) -> float | None:
        expected, actual, both, _ = self.products
        if not expected and not actual:
            return None
        if not expected or not actual:
            return 0.0
        return max(-1.0, min(1.0, both / (math.sqrt(expected) * math.sqrt(actual))))

    def find_common(self, scale: float) -> float:
        """Return the error that all elements share, a factor or an offset, as a fraction of the scale."""
        expected, _, both, _ = self.products
        factor = abs(both / expected - 1) if expected and math.isfinite(both) else 0.0
        offset = abs(self.sum_signed) / self.finite / scale if self.finite and scale else 0.0
        return max(factor, offset)

    @property
    def sqnr_db(self) -> float | None:
        signal, _, _, noise = self.products
        if not self.finite:
            return None
        if not noise:
            return math.inf
        return 10 * math.log10(signal / noise) if signal and noise < math.inf else -math.inf


def _limit(relative: float) -> float:
    return relative if relative < _UNBOUNDED else math.inf


def _dot(one: Array, other: Array) -> float:
    """Return the product of two blocks without BLAS, whose threads block each other if many tests share a machine."""
    return float(np.einsum("i,i->", one.ravel().conj(), other.ravel()).real)


def measure(
    expected: Array, actual: Array, tolerance: Tolerance, scale: TensorScale, worst: int, slack: Array | None = None
) -> DifferenceTally:
    tally = DifferenceTally(worst)
    for block, errors in walk_errors(expected, actual, tolerance, scale, slack):
        tally.add(block, errors, scale)
    return tally


def measure_texts(expected: Array, actual: Array, worst: int) -> DifferenceTally:
    """Compare strings: the error of a string that differs is 1."""
    tally = DifferenceTally(worst)
    for index in np.ndindex(expected.shape):
        tally.finite += 1
        if to_text(expected[index]) != to_text(actual[index]):
            tally.wrong += 1
            tally.extremes.append(Extreme(1.0, 1.0, index))
    tally.differing = tally.wrong
    tally.extremes = tally.extremes[:worst]
    tally.max_abs = tally.max_rel = float(bool(tally.wrong))
    tally.sum_abs = float(tally.wrong)
    return tally


def render_share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.3g}%)"


def to_text(value: object) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def build_elements(expected: Array, actual: Array, tally: DifferenceTally) -> tuple[Element, ...]:
    pairs = [(_plain(expected[each.at]), _plain(actual[each.at]), each) for each in tally.extremes]
    return tuple(
        Element(each.at, _name(left), _name(right), _distance(left, right), each.relative)
        for left, right, each in pairs
    )


def _plain(value: Any) -> Any:
    """Return an element as a value of Python's own types, whose integers do not overflow."""
    kind = getattr(value, "dtype", None)
    if kind is None or kind.kind in "OUST":
        return to_text(value)
    if kind.kind in "iub" or "int" in kind.name:
        return int(value)
    return complex(value) if kind.kind == "c" else float(value)


def _name(value: Any) -> Number:
    if isinstance(value, complex):
        return str(value).strip("()")
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _distance(expected: Any, actual: Any) -> float:
    """Return the distance of two elements; infinite if either is not finite, 1 for strings that differ."""
    if isinstance(expected, str):
        return float(expected != actual)
    try:
        distance = float(abs(actual - expected))
    except OverflowError:
        return math.inf
    return math.inf if math.isnan(distance) else distance


@dataclass(frozen=True, slots=True)
class Ranking:
    rows: int
    agree: int
    first: tuple[int, ...] | None = None  # the index of the first row that disagrees
    expected: int | None = None  # the index of the largest element in that row of the expected tensor
    actual: int | None = None

    @property
    def share(self) -> float | None:
        return self.agree / self.rows if self.rows else None


def measure_top_k(expected: Array, actual: Array, k: int) -> Ranking:
    """Count the rows along the last axis whose k largest elements are the same. If equal values allow several choices
    of k elements, a row agrees if one choice is correct for both sides."""
    length = expected.shape[-1] if expected.ndim else 1
    rows = expected.size // length if length else 0
    left, right = expected.reshape(rows, length), actual.reshape(rows, length)
    step = max(1, (1 << 20) // max(1, length))
    agree, first = 0, None
    for start in range(0, rows, step):
        good = _rows_agree(
            _sortable(left[start : start + step]), _sortable(right[start : start + step]), min(k, length)
        )
        agree += int(good.sum())
        if first is None and not good.all():
            first = start + int(np.argmin(good))
    if first is None:
        return Ranking(rows, agree)
    index = tuple(int(number) for number in np.unravel_index(first, expected.shape[:-1])) if expected.ndim > 1 else ()
    winners = [int(np.argmax(_sortable(side[first]))) for side in (left, right)]
    return Ranking(rows, agree, index, *winners)


def _sortable(part: Array) -> Array:
    """Return values for sorting: NaN counts as the smallest value, so that it never is among the largest."""
    if part.dtype.kind in "iub":
        return part
    plain = np.abs(part) if part.dtype.kind == "c" else part.astype(np.float64)
    return np.where(np.isnan(plain), -np.inf, plain)


def _rows_agree(left: Array, right: Array, k: int) -> Array:
    """Return which rows have a choice of k elements that is correct for both sides: it contains all elements that must
    be among the largest of either side, and only elements that may be among the largest of both sides."""
    edges = [np.partition(side, -k, axis=-1)[:, -k][:, None] for side in (left, right)]
    surely = (left > edges[0]) | (right > edges[1])
    maybe = (left >= edges[0]) & (right >= edges[1])
    return ~(surely & ~maybe).any(-1) & (surely.sum(-1) <= k) & (maybe.sum(-1) >= k)


def can_draw(expected: Array, actual: Array) -> bool:
    """Return whether both sides have numbers, the same shape, and at least one element."""
    kind = find_common_kind(expected, actual)
    return kind not in (None, Kind.TEXT) and expected.shape == actual.shape and expected.size > 0


def build_histogram(expected: Array, actual: Array) -> ErrorHistogram:
    """Build a histogram of the absolute errors by powers of ten, for the sixteen largest powers."""
    expected, actual = np.atleast_1d(expected), np.atleast_1d(actual)
    totals = np.zeros(_HIGHEST - _LOWEST, dtype=np.int64)
    zero = broken = 0
    for _, errors in walk_errors(expected, actual, Tolerance(), build_scale(expected, survey(expected))):
        odd = 0 if errors.misplaced is None else int(errors.misplaced.sum())
        broken += odd
        some = errors.error[errors.error > 0]
        zero += errors.error.size - some.size - odd
        powers = np.floor(np.log10(np.minimum(some, _LARGEST))).astype(np.int64)
        totals += np.bincount(powers - _LOWEST, minlength=totals.size)
    used = np.flatnonzero(totals).tolist()
    if not used:
        return ErrorHistogram((), (), zero, broken)
    last = used[-1]
    first = max(used[0], last - _MOST_BARS + 1)
    counts = [int(totals[: first + 1].sum()), *totals[first + 1 : last + 1].tolist()]
    edges = [0.0 if used[0] < first else 10.0 ** (first + _LOWEST)]
    edges += [10.0 ** (index + 1 + _LOWEST) for index in range(first, last + 1)]
    return ErrorHistogram(tuple(edges), tuple(counts), zero, broken)


def build_heat(expected: Array, actual: Array, rows: int, columns: int, tolerance: Tolerance) -> Heat:
    """Build a map of at most `rows` rows and `columns` columns over the two longest axes, with the largest error along
    the other axes. `tolerance` has no open bounds."""
    expected, actual = np.atleast_1d(expected), np.atleast_1d(actual)
    axes = find_longest(expected.shape)
    across, down = [*(expected.shape[axis] for axis in reversed(axes)), 1][:2]
    lengths = down, across
    grid = np.zeros((min(rows, lengths[0]), min(columns, lengths[1])))
    for block, errors in walk_errors(expected, actual, tolerance, build_scale(expected, survey(expected))):
        excess = np.minimum(errors.error / np.maximum(errors.bound, _LEAST), _LARGEST)
        # an element that is wrong for another reason (its ULP) gets more than 1 in any case
        excess = np.where(errors.wrong, np.maximum(excess, math.nextafter(1.0, 2.0)), excess)
        if errors.misplaced is not None:
            excess = np.where(errors.misplaced, math.inf, excess)
        _add_block(grid, axes, lengths, block, excess)
    return Heat(axes, lengths, tuple(tuple(row) for row in grid.tolist()))


def find_longest(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the two longest axes, in the order of the tensor, or its only axis."""
    order = sorted(range(len(shape)), key=lambda axis: -shape[axis])
    longer = [axis for axis in order[:2] if shape[axis] > 1] or order[:1]
    return tuple(sorted(longer))


def _add_block(grid: Array, axes: tuple[int, ...], lengths: tuple[int, int], block: Block, excess: Array) -> None:
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
