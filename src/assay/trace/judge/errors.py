"""The error between two rows, and the largest error that noise explains.

The error of a row is ‖A - B‖ relative to the larger norm: 0 if the hashes are equal, otherwise by the sketches;
infinite if one side has more elements, or more that are not finite. Noise is the error between the traced execution and
others whose first activation was moved by one unit in the last place. `benchmarks/trace_faults.py` chose the factors on
one half of its cases, and reports error rates on the other: docs/explanation/trace-numerics.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.judge.statistics import Array, np
from assay.system.fast_dataclasses import dataclass, replace
from assay.trace.judge.sides import Side, load_lean, release
from assay.trace.records import NO_VALUES

WITHIN = 8.0  # times the noise: a smaller error is noise
BEYOND = 32.0  # times the noise: a larger error is a fault; between the two the result is undecided
UNITS = 4.0  # units in the last place that every rounding may change, before WITHIN and BEYOND multiply them
SHORT_UNITS = 0.125  # units for types of 16 bits, whose sums are taken in float32 and rounded once
SHORT_SHARES = (0.6, 0.3)  # fraction of the noise of gradients and states, and of activations, for these types
_SHORT = ("bfloat16", "float16")
EPSILONS = {"float64": 2**-52, "float32": 2**-23, "bfloat16": 2**-7, "float16": 2**-10}
EPSILONS |= {"complex64": 2**-23, "complex128": 2**-52, "float8_e4m3fn": 2**-3, "float8_e5m2": 2**-2}
_FLOWING = ("input", "forward", "loss", "backward")  # phases of tensors whose size is that of the batch
_CHUNK = 1 << 14
_TINY = 1e-30  # the error if the bits differ, but not the sketches
_UNDERFLOW = 1e-15  # below this norm, squares are lost in float32: the norm of the sketch is used as well
_COLUMNS = ("a", "b", "error", "noise", "step", "point", "other")


@dataclass(frozen=True, slots=True)
class Compared:
    """The rows of A and of B that were compared, in the order of A's execution."""

    a: Array  # row numbers in A
    b: Array  # row numbers in B
    error: Array
    noise: Array  # largest noise of the row, including rounding; 0 without noise
    step: Array
    point: Array  # point of A
    other: Array  # point of B
    reshaped: tuple[int, int] | None = None  # the first rows of A and B that are left out: they have other sizes
    unread: int = 0  # rows that are left out: their tensors have no values that could be read

    @property
    def ratio(self) -> Array:
        """Errors in units of noise; infinite if there is a difference and no noise."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.error == 0, 0.0, self.error / self.noise)

    def choose(self, rows: Array) -> Compared:
        """Choose some of the rows, or all in another order."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _COLUMNS})

    def add(self, rows: Sequence[tuple[Any, ...]]) -> Compared:
        columns = {name: getattr(self, name) for name in _COLUMNS}
        more = zip(columns.items(), zip(*rows, strict=True), strict=True)
        return replace(self, **{name: np.r_[old, np.array(new)].astype(old.dtype) for (name, old), new in more})


def compare_rows(
    a: Side, b: Side, other: Array, noise_a: Sequence[tuple[Side, Array]], noise_b: Sequence[tuple[Side, Array]]
) -> Compared:
    """Compare two sides. `other` maps points of A to B, those in `noise_a` and `noise_b` to a perturbed execution."""
    lean_a, lean_b = load_lean(a.rows), load_lean(b.rows)
    ia, ib = match_rows(lean_a, lean_b, other)
    is_read = (lean_a["flags"][ia] | lean_b["flags"][ib]) & NO_VALUES == 0
    unread, ia, ib = int(len(ia) - is_read.sum()), ia[is_read], ib[is_read]
    order = np.lexsort((a.order[ia], lean_a["step"][ia]))
    ia, ib = ia[order], ib[order]
    by_norm = a.by_norm[ia] | b.by_norm[ib]
    flows = a.find_phases(*_FLOWING)[lean_a["point"][ia]]
    odd = (lean_a["count"][ia] != lean_b["count"][ib]) & (flows | by_norm)
    left = np.flatnonzero(odd & ~by_norm)
    reshaped = (int(ia[left[0]]), int(ib[left[0]])) if len(left) else None
    ia, ib = ia[~odd], ib[~odd]
    error = _measure(a, b, lean_a, lean_b, ia, ib)
    noise = _measure_noise(a, lean_a, noise_a)[ia]
    noise = np.fmax(noise, _measure_noise(b, lean_b, noise_b)[ib])
    # a unit in the last place of each point's type; 0 for whole numbers
    unit_a, unit_b = (np.array([EPSILONS.get(each.dtype, 0.0) for each in side.points] or [0.0]) for side in (a, b))
    units = np.fmax(unit_a[lean_a["point"][ia]], unit_b[lean_b["point"][ib]])
    if noise_a or noise_b:
        points = lean_a["point"][ia], lean_b["point"][ib]
        mine, theirs = (np.array([point.dtype in _SHORT for point in side.points], bool) for side in (a, b))
        noise = _add_rounding(a, noise, units, points[0], mine[points[0]] & theirs[points[1]])
    else:  # partial sums have no hash: rounding is not a difference
        noise = np.where(a.exact[ia] & b.exact[ib], 0.0, BEYOND * UNITS * units)
    at = lean_a["step"][ia], lean_a["point"][ia], lean_b["point"][ib]
    return Compared(ia, ib, error, noise, *at, reshaped, unread)


def match_rows(a: dict[str, Array], b: dict[str, Array], other: Array) -> tuple[Array, Array]:
    """Match the rows of paired points that are the n-th of their point in the same step."""
    back = np.full(int(b["point"].max(initial=0)) + 1, -1)
    paired = np.flatnonzero((other >= 0) & (other < len(back)))
    back[other[paired]] = paired
    key_a, rows_a = _number(a["point"].astype(np.int64), a["step"], np.flatnonzero(other[a["point"]] >= 0))
    mine = back[b["point"]]
    key_b, rows_b = _number(mine, b["step"], np.flatnonzero(mine >= 0))
    _, at_a, at_b = np.intersect1d(key_a, key_b, assume_unique=True, return_indices=True)
    return rows_a[at_a], rows_b[at_b]


def _number(point: Array, step: Array, rows: Array) -> tuple[Array, Array]:
    """Return a number of each row's point, step and count in that step, which is the same on both sides."""
    plain = (step[rows].astype(np.uint64) << np.uint64(32)) | point[rows].astype(np.uint64)
    if not len(plain):
        return plain, rows
    order = np.argsort(plain, kind="stable")
    ordered = plain[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    nth = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.r_[starts, len(ordered)]))
    return ordered + (nth.astype(np.uint64) << np.uint64(56)), rows[order]


def _measure(a: Side, b: Side, lean_a: dict[str, Array], lean_b: dict[str, Array], ia: Array, ib: Array) -> Array:
    error = np.zeros(len(ia))
    numbers: dict[str, int] = {}  # type → number, for both sides
    types, others = (
        np.array([numbers.setdefault(each.dtype, len(numbers)) for each in side.points], dtype=int) for side in (a, b)
    )
    same = types[lean_a["point"][ia]] == others[lean_b["point"][ib]]
    is_equal = (lean_a["hash"][ia] == lean_b["hash"][ib]) & same & a.exact[ia] & b.exact[ib]
    is_equal &= lean_a["count"][ia] == lean_b["count"][ib]
    odd = (lean_a["count"][ia] != lean_b["count"][ib]) | (lean_a["nonfinite"][ia] != lean_b["nonfinite"][ib])
    error[odd] = np.inf
    by_norm = np.flatnonzero(a.by_norm[ia] | b.by_norm[ib])
    is_equal[by_norm] = True
    rows = np.flatnonzero(~is_equal & ~odd)
    error[rows] = _measure_sketches(a.rows, b.rows, ia[rows], ib[rows])
    both = np.fmax(lean_a["sumsq"][ia[rows]], lean_b["sumsq"][ib[rows]]) ** 0.5
    tiny = np.flatnonzero(both < _UNDERFLOW)
    sketches = (a.rows["sketch"][ia[rows[tiny]]], b.rows["sketch"][ib[rows[tiny]]])
    both[tiny] = np.fmax(*(np.linalg.norm(each.astype(float), axis=1) for each in sketches))
    with np.errstate(invalid="ignore", divide="ignore"):
        error[rows] = np.where(error[rows] == 0, np.where(same[rows], _TINY, 0.0), error[rows] / both)
    # norms and sums alone give only a lower bound of the error
    na, nb = ia[by_norm], ib[by_norm]
    size = np.fmax(np.fmax(lean_a["sumsq"][na], lean_b["sumsq"][nb]) ** 0.5, 1e-300)
    norms = np.abs(lean_a["sumsq"][na] ** 0.5 - lean_b["sumsq"][nb] ** 0.5)
    sums = np.abs(lean_a["sum"][na] - lean_b["sum"][nb]) / np.fmax(lean_a["count"][na], 1) ** 0.5
    error[by_norm] = np.fmax(norms, sums) / size
    return error


def _measure_sketches(a: Array, b: Array, ia: Array, ib: Array) -> Array:
    distance = np.empty(len(ia))
    for start in range(0, len(ia), _CHUNK):
        part = slice(start, start + _CHUNK)
        difference = a["sketch"][ia[part]] - b["sketch"][ib[part]]
        distance[part] = np.sqrt(np.einsum("ij,ij->i", difference, difference, dtype=np.float64))
        release(a)
        release(b)
    return distance


def _measure_noise(side: Side, lean: dict[str, Array], perturbed: Sequence[tuple[Side, Array]]) -> Array:
    """Return the largest distance from a perturbed execution, for each row of the side."""
    noise = np.full(len(side.rows), np.nan)
    for other, pairs in perturbed:
        theirs = load_lean(other.rows)
        ia, ib = match_rows(lean, theirs, pairs)
        noise[ia] = np.fmax(noise[ia], _measure(side, other, lean, theirs, ia, ib))
    return np.nan_to_num(noise, nan=0.0, posinf=0.0)


def _add_rounding(a: Side, noise: Array, units: Array, points: Array, short: Array) -> Array:
    """Add the effect of rounding to the noise. From the first tensor of 16 bits on, all tensors but the data have been
    rounded to that type, even if they are float32 again; a unit of that type covers all other rounding."""
    flows, is_data = (a.find_phases(*phases)[points] for phases in (_FLOWING, ("input",)))
    coarse = np.cumsum(short).astype(bool) & ~is_data & (units > 0)
    units = np.where(coarse, np.fmax(units, np.max(units, where=short, initial=0.0)), units)
    shares = np.where(coarse, np.array(SHORT_SHARES)[flows.astype(int)], 1.0)
    return np.fmax(shares * noise, np.where(coarse, SHORT_UNITS, UNITS) * units)
