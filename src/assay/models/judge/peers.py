"""Compares layers of one kind, and slices of one tensor, with each other: is one further off than the others?

On one target, layers of one class round alike: in bfloat16 their errors agree within a few percent, and so do rows and
columns of one output. A layer that is further off than its peers computes something else, although it is within what
its type allows and the end of the model hides it; so may one row in a thousand. `benchmarks/torch_models.py` measures
how often this comparison finds a planted fault, and that it blames no correct model.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from assay.models.judge.tolerances import FLOATS
from assay.models.libraries import np
from assay.models.values.model import CaseReport
from assay.models.values.tensors import TensorComparison
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.verdict import Finding, Verdict, VerdictKind

FACTOR = 1.4  # times the median of the peers, and more for a small tensor: see `find_limit`
COMPOSITE_FACTOR = 2.5  # for a call that contains other calls: thresholds inside it amplify rounding
SLICE_FACTOR = 6.0  # times the median of the tensor's other rows: one of a thousand rows is far out by chance
NOISE_FACTOR = 3.0  # times the worst row of the reference with rounding in it
FEWEST_PEERS = 3  # including the layer itself
FEWEST_SLICES = 8
FEWEST_ELEMENTS = 16  # elements of a slice: with fewer, errors differ by chance
MOST_SHARE = 0.25  # fraction of the slices: if more are off, the fault is not in a few slices
_SUMS = 2e-6  # error in float32 of a sum in another order


def find_floor(grain: str) -> float:
    """Return the error that this type's rounding explains, whatever the error of the peers is."""
    kind = FLOATS.get("float16" if grain == "tf32" else grain)
    return max(_SUMS if kind is None or kind.bits <= 32 else 0.0, kind.eps / 8 if kind else 0.0)


@dataclass(frozen=True, slots=True)
class OddSlice:
    axis: int
    index: int
    count: int  # number of odd slices
    length: int
    error: float  # error of the worst slice, as a fraction of its norm
    usual: float  # error of the median slice


def find_odd_slice(expected: Any, actual: Any, noisy: Any, floor: float) -> OddSlice | None:
    """Return the worst slice that is further off than the others, both relative to its size and absolutely, and than
    any slice of the reference computed with rounding (`noisy`): a value at a threshold moves a whole row."""
    if len({each.shape for each in (expected, actual, noisy)}) > 1 or not _has_numbers(expected):
        return None
    left, right, rounded = (np.asarray(each).astype(np.float64) for each in (expected, actual, noisy))
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return None
    parts = left, right - left, rounded - left
    found = [each for axis in range(left.ndim) if (each := _find_on_axis(np, *parts, axis, floor))]
    return max(found, key=lambda each: each.error / max(each.usual, floor), default=None)


def _has_numbers(array: Any) -> bool:
    return bool(array.size) and array.dtype.kind not in "biucOSU"


def _find_on_axis(np: Any, left: Any, difference: Any, noise: Any, axis: int, floor: float) -> OddSlice | None:
    length = left.shape[axis]
    if length < FEWEST_SLICES or left.size / length < FEWEST_ELEMENTS:
        return None
    others = tuple(each for each in range(left.ndim) if each != axis)
    off, size, moved = (np.sqrt(np.sum(np.square(each), axis=others)) for each in (difference, left, noise))
    used = size > 0
    if np.count_nonzero(used) < FEWEST_SLICES:
        return None
    errors = np.divide(off, size, out=np.zeros_like(off), where=used)
    usual = float(np.median(errors[used]))
    limit = max(SLICE_FACTOR * max(usual, floor), NOISE_FACTOR * float(np.max(moved[used] / size[used])))
    is_odd = used & (errors > limit) & (off > SLICE_FACTOR * np.median(off[used]))
    count = int(np.count_nonzero(is_odd))
    if not count or count > max(1, MOST_SHARE * length):
        return None
    index = int(np.argmax(np.where(is_odd, errors, 0.0)))
    return OddSlice(axis, index, count, length, float(errors[index]), usual)


def judge_slices(compared: TensorComparison, expected: Any, actual: Any, noisy: Any, floor: float) -> TensorComparison:
    odd = find_odd_slice(expected, actual, noisy, floor)
    if odd is None or compared.verdict.kind is VerdictKind.FAIL:
        return compared
    are = "are" if odd.count > 1 else "is"
    text = f"{odd.count} of {odd.length} slices along axis {odd.axis} {are} off, [{odd.index}] by {odd.error:.2g}"
    text += f" of its size; the others by {odd.usual:.2g}"
    return _add(compared, text, odd.error, max(odd.usual, floor) * SLICE_FACTOR)


def _add(compared: TensorComparison, text: str, value: float, bound: float) -> TensorComparison:
    finding = Finding(VerdictKind.FAIL, compared.name, text, value, bound)
    return replace(compared, verdict=Verdict.of((*compared.verdict.findings, finding), compared.verdict.comparisons))


def measure_typical(expected: Any, actual: Any) -> float | None:
    """Return the median error of a row, as a fraction of its size, on which a few huge elements, as in language models,
    have no effect. None if there is no number to compare."""
    if expected.shape != actual.shape or not _has_numbers(expected):
        return None
    left, right = (np.asarray(each).astype(np.float64) for each in (expected, actual))
    width = left.shape[-1] if left.ndim > 1 and left.shape[-1] >= FEWEST_ELEMENTS else left.size
    off, size = (np.sqrt(np.sum(np.square(each.reshape(-1, width)), axis=1)) for each in (right - left, left))
    used = (size > 0) & np.isfinite(off) & np.isfinite(size)
    return float(np.median(off[used] / size[used])) if used.any() else None


@dataclass(frozen=True, slots=True)
class TypicalError:
    """The error of one tensor on the target, and its error in the reference computed with rounding."""

    target: float
    noise: float
    factor: float = FACTOR
    shapes: str = ""  # shapes of the inputs: sums of other lengths round differently

    def compare(self, floor: float) -> float:
        return self.target / max(self.noise, floor)


Errors = Mapping[tuple[str, str], TypicalError]  # (case, tensor) → error
_Kind = tuple[str, str, str]


def judge_peers(reports: Sequence[CaseReport], errors: Errors, floor: float) -> list[CaseReport]:
    """Return the reports with a finding for each tensor that is further off than its peers in other layers."""
    peers: dict[_Kind, list[float]] = defaultdict(list)
    for report in reports:
        for compared in report.local if report.layer else ():
            if (report.name, compared.name) in errors:
                error = errors[report.name, compared.name]
                peers[name_kind(report, compared, error)].append(error.compare(floor))
    known = {kind: found for kind, found in peers.items() if len(found) >= FEWEST_PEERS}
    return [_judge_case(report, known, errors, floor) for report in reports]


def name_kind(report: CaseReport, compared: TensorComparison, error: TypicalError) -> _Kind:
    """Return the class of the layer, the role of the tensor (an output, the gradient of a weight), and input shapes."""
    assert report.layer is not None
    return report.layer.ops[0], compared.name.removeprefix(report.layer.label.removesuffix(":backward")), error.shapes


def find_limit(peers: Sequence[float], error: TypicalError, count: int, floor: float) -> float:
    """Return the limit of a tensor's error by its peers' errors and its noise; with few elements errors vary more."""
    usual = max(median(peers) * max(error.noise, floor), floor)
    return error.factor * (1 + 3 / math.sqrt(max(count, 1))) * usual


def _judge_case(report: CaseReport, known: Mapping[_Kind, Sequence[float]], errors: Errors, floor: float) -> CaseReport:
    if report.layer is None or report.verdict.kind not in (VerdictKind.PASS, VerdictKind.CHANGED):
        return report
    local = tuple(_judge_tensor(report, compared, known, errors, floor) for compared in report.local)
    verdict = Verdict.of([each for one in local for each in one.verdict.findings], report.verdict.comparisons)
    return replace(report, local=local, verdict=verdict) if local != report.local else report


def _judge_tensor(
    report: CaseReport, compared: TensorComparison, known: Mapping[_Kind, Sequence[float]], errors: Errors, floor: float
) -> TensorComparison:
    error = errors.get((report.name, compared.name))
    if error is None or (kind := name_kind(report, compared, error)) not in known:
        return compared
    limit = find_limit(known[kind], error, compared.count, floor)
    if error.target <= limit:
        return compared
    others = f"as in the other {len(known[kind]) - 1} {kind[0]} layers it would be at most {limit:.2g}"
    return _add(compared, f"its rows are off by {error.target:.2g} of their size; {others}", error.target, limit)
