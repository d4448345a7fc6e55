"""An output of a layer that got exactly what the reference had: is it as near as correct runtimes are to each other?

What was measured of them is in `judge.noise`. Beyond it, and within what a type allows, a tensor is CHANGED: the target
computes something else. An operator that rounds into its type is judged by what it rounds: only an element near a tie
may go the other way, and where many ties do, they must not all go in one direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from assay.models.judge.noise import FEWEST_COHERENT, TIE_SHARE, RoundingNoise
from assay.models.judge.tensor_errors import Array, Kind, find_kind, name_dtype
from assay.models.judge.tensor_numbers import render_share
from assay.models.judge.tolerances import FLOATS
from assay.models.libraries import np
from assay.models.values.tensors import TensorComparison
from assay.system.fast_dataclasses import dataclass
from assay.values.verdict import Finding, VerdictKind

_NEAR = 8 * 2.0**-23  # times an unrounded float: float32's own rounding of a quotient or a product, four times
_MOST_STEPS = 2.0**16  # integers are rounded from a multiple of their range's lowest value, as exact as the range
_NEAR_SMALL = 2.0**-10  # for types of 8 bits and fewer: they may be rounded twice, by way of float16
_MOST_LOST = 0.5  # fraction of the elements that differ: saturated ones are far from the unrounded values, too
_FEWEST = 16  # number of elements that go in one direction by chance only rarely
_COHERENT = 4.0  # standard deviations


@dataclass(frozen=True, slots=True)
class LayerOrigin:
    """The computation of a layer alone: its operators, the number of terms of an element, and for each output the
    values before rounding, in steps of its type (None: it is not rounded, or they are not known)."""

    ops: tuple[str, ...]
    count_terms: Callable[[], int]
    compute_unrounded: Callable[[str], Array | None]


@dataclass(frozen=True, slots=True)
class Ties:
    """Elements that differ, compared with the values before rounding."""

    count: int  # of all elements
    off: int = 0  # further from the unrounded value than the reference's, and not near a tie
    far: int = 0  # of these: by more than one step
    near: int = 0  # near a tie
    up: int = 0  # of those near a tie: larger than the reference's
    better: int = 0  # nearer to the unrounded value than the reference's, and not near a tie

    @property
    def is_coherent(self) -> bool:
        return is_coherent(2 * self.up - self.near, self.near)


def is_coherent(signed: float, count: int) -> bool:
    """Return whether so many elements agree in direction by more than chance; `signed`: those up less those down."""
    return count >= _FEWEST and abs(signed) > _COHERENT * count**0.5


def find_ties(origin: LayerOrigin, name: str, expected: Array, actual: Array) -> Ties | None:
    """Compare the elements that differ with the values before rounding. None if these are not known, have another
    shape, are not finite or are far from both sides."""
    kind = FLOATS.get(name_dtype(expected))
    # only integers have steps, and float types that a longer type is rounded into
    is_rounded = find_kind(expected) is Kind.INTEGER or (kind is not None and kind.bits <= 16)
    unrounded = origin.compute_unrounded(name) if is_rounded else None
    if unrounded is None or unrounded.size != expected.size:
        return None
    left, right, exact = (part.astype(np.float64).ravel() for part in (expected, actual, unrounded))
    found = np.flatnonzero(left != right)
    left, right, exact = left[found], right[found], exact[found]
    if not kind and origin.ops[-1].startswith("Cast") and np.array_equal(left, np.trunc(exact)):
        return None  # it truncates: there is no tie
    if not (np.isfinite(left) & np.isfinite(right) & np.isfinite(exact)).all():
        return None
    if not kind and np.mean((np.abs(left - exact) > 1) & (np.abs(right - exact) > 1)) > _MOST_LOST:
        return None
    excess = np.abs(right - exact) - np.abs(left - exact)
    size = np.abs(exact) if kind else min(float(np.abs(unrounded).max()), _MOST_STEPS) + 1
    margin = (_NEAR_SMALL if kind and kind.bits < 16 else _NEAR) * size
    off, better = excess > margin, excess < -margin
    near = ~off & ~better
    steps = kind.eps * np.maximum(np.abs(left), np.abs(right)) if kind else 1.0
    far = off & (np.abs(right - left) > 1.001 * steps)
    parts = (off, far, near, near & (right > left), better)
    return Ties(expected.size, *(int(np.count_nonzero(part)) for part in parts))


def judge_ties(found: TensorComparison, ties: Ties, *, is_float: bool) -> Iterator[Finding]:
    """Judge steps: integers that are off without a tie nearby are wrong, unless few; for floats the type decides."""
    if ties.off:
        is_wrong = not is_float and (ties.far or ties.off > max(1.0, TIE_SHARE * ties.count))
        text = f"{render_share(ties.off, ties.count)} are rounded otherwise, although no tie is near"
        text += f", {ties.far} of them by more than a step" if ties.far else ""
        kind = VerdictKind.FAIL if is_wrong else VerdictKind.CHANGED
        yield Finding(kind, found.name, text, ties.off / ties.count, 0.0)
    elif ties.is_coherent:
        where = "up" if 2 * ties.up > ties.near else "down"
        text = f"{render_share(ties.near, ties.count)} are ties that are rounded otherwise, nearly all of them {where}"
        yield Finding(VerdictKind.CHANGED, found.name, f"{text}: another rounding rule", ties.near / ties.count, 0.0)


def describe_better(ties: Ties, largest: float) -> str:
    """Describe where the target is right by the definition and the reference is not; empty if nowhere."""
    if not ties.better:
        return ""
    where = render_share(ties.better, ties.count)
    return f"the reference is off by up to {largest:.3g} in {where}; by float64 the target is right"


def judge_steps(found: TensorComparison, differing: int, signed: float) -> Iterator[Finding]:
    """Judge integers whose unrounded values are not known: ties are rare, and go both ways."""
    allowed = max(1.0, TIE_SHARE * found.count)
    if differing > allowed:
        coherent = is_coherent(signed, differing)
        text = f"{render_share(differing, found.count)} are off; correct runtimes differ in at most {TIE_SHARE:.3g}"
        text += ", and nearly all go in one direction: another rounding rule" if coherent else ""
        kind = VerdictKind.FAIL if coherent else VerdictKind.CHANGED
        yield Finding(kind, found.name, text, differing / found.count, TIE_SHARE)


def judge_noise(
    found: TensorComparison, noise: RoundingNoise, beyond: int, common: float, slack: Array | None
) -> Iterator[Finding]:
    """Judge by noise. `beyond`: elements that are further off; `common`: the factor or offset of all of them."""
    measured = f"correct runtimes differ by at most {noise.rel:.2g} here"
    if beyond:
        text = f"{render_share(beyond, found.count)} are off by up to {found.max_rel:.3g} of the scale; {measured}"
        yield Finding(VerdictKind.CHANGED, found.name, text, found.max_rel, noise.rel)
        return
    allowed = noise.common
    if slack is not None and found.scale:
        allowed += float(np.sqrt(np.mean(np.square(slack)))) / found.scale
    if found.count >= FEWEST_COHERENT and common > allowed:
        text = f"all elements together are off by {common:.2g} of the scale, by a factor or an offset; correct runtimes"
        yield Finding(VerdictKind.CHANGED, found.name, f"{text} by at most {allowed:.2g}", common, allowed)
