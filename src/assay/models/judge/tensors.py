"""Compares a tensor with the expected one: every number of a report, and a verdict that names what is wrong.

FAIL          another shape or type; a NaN or an infinity on one side only; elements beyond the tolerance; a constant
              instead of numbers, whatever the tolerance; a missing or additional output
INCONCLUSIVE  nothing is wrong but nothing is proved: no element, no finite number, all zero on both sides, or numbers
              that are smaller than what rounding can make of the inputs
CHANGED       for a layer alone: within what its type allows, but further off than correct runtimes are (`judge.alone`)
PASS          anything else, with flags for what users should know
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from assay.errors import did_you_mean
from assay.models.judge.alone import (
    LayerOrigin,
    RoundingNoise,
    describe_better,
    find_noise,
    find_ties,
    judge_noise,
    judge_steps,
    judge_ties,
)
from assay.models.judge.tensor_errors import (
    FEWEST,
    Array,
    Kind,
    Survey,
    TensorScale,
    build_scale,
    find_common_kind,
    name_dtype,
    survey,
    walk_blocks,
)
from assay.models.judge.tensor_numbers import (
    DifferenceTally,
    Ranking,
    build_elements,
    measure,
    measure_texts,
    measure_top_k,
)
from assay.models.judge.tensor_numbers import render_share as _share
from assay.models.judge.tolerances import (
    TAIL_SHARE,
    TAIL_SQNR_DB,
    complete_tolerance,
    default_tolerance,
    is_zero_significant,
    rounding_units,
)
from assay.models.libraries import np
from assay.models.values.model import Tolerances
from assay.models.values.tensors import (
    ACTUAL_CONSTANT,
    ACTUAL_ZERO,
    ALLOW_CONSTANT,
    EXPECTED_CONSTANT,
    EXPECTED_ZERO,
    OTHER_LARGEST,
    Element,
    TensorComparison,
    Tolerance,
)
from assay.system.fast_dataclasses import replace
from assay.values.verdict import Finding, Verdict, VerdictKind

WORST = 10  # elements that are listed
_COUNTED = frozenset({"int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"})  # ids, indices, shapes, masks
_LONGEST_LIST = 6
_MOST_SCORES = 1 << 21
_NOTICEABLE = 0.1  # an absolute bound below this fraction of the relative bound is not mentioned
_LEAST_SQNR_DB = 20.0  # for a tensor that passes only by an absolute bound: an error of a tenth, a cosine of 0.995

Reach = Callable[[], Array | float]  # magnitude of the terms whose sum a tensor is: one number, or one per element


def compare_tensors(
    name: str,
    expected: Array,
    actual: Array,
    tolerance: Tolerance = Tolerance(),  # noqa: B008 frozen
    *,
    op: str | None = None,
    maker: str | None = None,
    worst: int = WORST,
    reach: Reach | None = None,
    origin: LayerOrigin | None = None,
) -> TensorComparison:
    """Compare two tensors. `op`: the operator that made the tensor; None for the output of a whole model, whose last
    operator is `maker`: the output has that operator's tolerance, but all zeros prove less than in a layer.

    `reach` is called only if elements differ by more than their own scale allows, and no absolute bound was given.
    `origin` is given for a layer alone, computed with exactly the reference's inputs; unless a bound was given, such a
    layer is judged by how far correct runtimes are apart.
    """
    left, right = _to_native(expected), _to_native(actual)
    dtypes = name_dtype(left), name_dtype(right)
    full = complete_tolerance(tolerance, dtypes, op, maker)
    empty = TensorComparison(name, Verdict.of((), 0), dtypes, (left.shape, right.shape), tolerance=full)
    kind = find_common_kind(left, right)
    formal = list(_judge_form(empty, kind))
    if left.shape != right.shape or kind is None:
        return replace(empty, verdict=Verdict.of(formal, 0))
    if not left.size:
        text = f"both tensors have no elements (shape {left.shape}): there is nothing to compare"
        nothing = Finding(VerdictKind.INCONCLUSIVE, name, text)
        return replace(empty, verdict=Verdict.of([*formal, nothing], 0))
    is_single = left.ndim == 0
    if is_single:
        left, right = left.reshape(1), right.reshape(1)
    if kind is Kind.TEXT:
        found = _compare_texts(empty, left, right, formal, worst)
    else:
        asked = None if tolerance.abs is not None else reach
        bounds = (tolerance.abs, tolerance.rel, tolerance.ulp, tolerance.int_abs, tolerance.int_share)
        alone = None if any(each is not None for each in bounds) or tolerance.allowed_wrong else origin
        found = _compare_numbers(empty, left, right, formal, kind, op, worst, asked, alone)
        found = found if found.verdict.kind is VerdictKind.FAIL else _doubt(found, left, tolerance)
    return replace(found, worst=tuple(replace(each, index=()) for each in found.worst)) if is_single else found


def judge_outputs(
    expected: Mapping[str, Any],
    actual: Mapping[str, Any],
    tolerances: Tolerances,
    *,
    op: str | None = None,
    makers: Mapping[str, str] | None = None,
    worst: int = WORST,
    reach: Callable[[str], Array | float] | None = None,
    origin: LayerOrigin | None = None,
) -> tuple[Verdict, tuple[TensorComparison, ...]]:
    """Judge all outputs by name. A missing or additional output is a finding; no output at all is never PASS. `op` is
    the operator that made all outputs; `makers` has the operator of each output by its name; `reach`, which gets a
    name, and `origin` are described in `compare_tensors`."""
    left, right = dict(_flatten(expected)), dict(_flatten(actual))
    made_by = {name: None if op else (makers or {}).get(name) for name in left}
    compared = tuple(
        compare_tensors(
            name, array, right[name], tolerances.choose(name, op or made_by[name]), op=op, maker=made_by[name],
            worst=worst, reach=None if reach is None else partial(reach, name), origin=origin,
        )
        for name, array in left.items()
        if name in right
    )  # fmt: skip
    findings = [
        *(finding for each in compared for finding in each.verdict.findings),
        *_judge_names(tuple(left), tuple(right)),
    ]
    return Verdict.of(findings, sum(each.count for each in compared)), compared


def _to_native(array: Array) -> Array:
    """Return the array in the machine's byte order, since its bits are compared."""
    found = np.asarray(array)
    return found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("="))


def _flatten(outputs: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Yield outputs as single tensors: a sequence's tensors one by one; absent optional outputs are left out."""
    for name, value in outputs.items():
        if isinstance(value, list | tuple):
            yield from ((f"{name}[{number}]", each) for number, each in enumerate(value))
        elif value is not None:
            yield name, value


def _judge_names(expected: Sequence[str], actual: Sequence[str]) -> Iterator[Finding]:
    extra = [name for name in actual if name not in expected]
    for name in expected:
        if name not in actual:
            hint = did_you_mean(name, extra)
            yield Finding(VerdictKind.FAIL, name, "the output is missing" + (f": {hint}" if hint else ""))
    for name in extra:
        yield Finding(VerdictKind.FAIL, name, "an unexpected output")


def _judge_form(given: TensorComparison, kind: Kind | None) -> Iterator[Finding]:
    shapes, dtypes = given.shape, given.dtype
    if shapes[0] != shapes[1]:
        reason = ""
        if sorted(shapes[0]) == sorted(shapes[1]):
            reason = "; the axes are in another order"
        elif [dim for dim in shapes[0] if dim != 1] == [dim for dim in shapes[1] if dim != 1]:
            reason = "; axes of length 1 are too many or missing"
        elif math.prod(shapes[0]) == math.prod(shapes[1]) > 0:
            reason = "; the number of elements is the same"
        yield Finding(VerdictKind.FAIL, given.name, f"shape {shapes[1]} instead of {shapes[0]}{reason}")
    if dtypes[0] != dtypes[1] and (given.tolerance.check_dtype or kind is None):
        yield Finding(VerdictKind.FAIL, given.name, f"dtype {dtypes[1]} instead of {dtypes[0]}")


def _compare_texts(
    given: TensorComparison, expected: Array, actual: Array, formal: Sequence[Finding], worst: int
) -> TensorComparison:
    tally = measure_texts(expected, actual, max(worst, 1))
    elements = build_elements(expected, actual, tally)
    findings = list(formal)
    if tally.wrong > given.tolerance.allowed_wrong * expected.size:
        text = f"{_share(tally.wrong, expected.size)} strings differ; first at {_render_index(elements[0])}"
        findings.append(Finding(VerdictKind.FAIL, given.name, text))
    return replace(_add_numbers(given, tally, elements[:worst]), verdict=Verdict.of(findings, expected.size))


def _add_numbers(given: TensorComparison, tally: DifferenceTally, worst: tuple[Element, ...]) -> TensorComparison:
    return replace(
        given, count=math.prod(given.shape[0]), wrong=tally.wrong, max_abs=tally.max_abs,
        mean_abs=tally.sum_abs / tally.finite if tally.finite else 0.0, max_rel=tally.max_rel,
        misplaced=tally.misplaced, worst=worst,
    )  # fmt: skip


# ---------------------------------------------------------------- numbers


def _compare_numbers(
    given: TensorComparison,
    expected: Array,
    actual: Array,
    formal: Sequence[Finding],
    kind: Kind,
    op: str | None,
    worst: int,
    reach: Reach | None,
    origin: LayerOrigin | None = None,
) -> TensorComparison:
    surveys = survey(expected), survey(actual)
    scale = build_scale(expected, surveys[0])
    tally = measure(expected, actual, given.tolerance, scale, max(worst, 1))
    origin = origin if tally.differing else None
    noise = find_noise(origin.ops, given.dtype, origin.count_terms()) if origin is not None else None
    if noise is not None and noise.wrong < (given.tolerance.rel or 0.0):
        given = replace(given, tolerance=replace(given.tolerance, rel=noise.wrong))
        tally = measure(expected, actual, given.tolerance, scale, max(worst, 1))
    ties = find_ties(origin, given.name, expected, actual) if origin is not None else None
    bound = given.tolerance
    is_doubtful = tally.wrong > tally.misplaced or surveys[0].is_constant != surveys[1].is_constant
    slack = _build_slack(reach, expected, given) if reach is not None and is_doubtful else None
    if slack is not None:
        tally = measure(expected, actual, given.tolerance, scale, max(worst, 1), slack)
        largest = (given.tolerance.abs or 0.0) + float(slack.max())
        given = replace(given, tolerance=replace(given.tolerance, abs=largest))
    is_asked = given.tolerance.top_k is not None
    # scores of classes or tokens: a few rows, each with several candidates
    looks_like_scores = 1 <= expected.ndim <= 3 and expected.shape[-1] > 1 and expected.size <= _MOST_SCORES
    is_ranked = is_asked or (op is None and kind is Kind.FLOAT and looks_like_scores)
    ranking = measure_top_k(expected, actual, given.tolerance.top_k or 1) if is_ranked else None
    elements = build_elements(expected, actual, tally)
    found = replace(
        _add_numbers(given, tally, elements[:worst]), max_ulp=tally.max_ulp, scale=scale.whole, cosine=tally.cosine,
        sqnr_db=tally.sqnr_db, top_k=ranking.share if ranking else None, nan=(surveys[0].nan, surveys[1].nan),
        inf=(surveys[0].inf, surveys[1].inf),
    )  # fmt: skip
    is_float = kind in (Kind.FLOAT, Kind.COMPLEX)
    by_size = [] if ties is not None and not is_float else _judge_elements(found, tally, elements, is_float=is_float)
    findings = [
        *formal,
        *_judge_misplaced(found, elements),
        *by_size,
        *_judge_whole(found, ranking if is_asked else None, tally.find_common(scale.whole)),
        *_judge_constants(found, surveys, op, 0.0 if slack is None else found.tolerance.abs or 0.0),
    ]
    if all(finding.kind is not VerdictKind.FAIL for finding in findings):
        if ties is not None:
            findings += judge_ties(found, ties, is_float=is_float)
        elif origin is not None and not is_float and found.tolerance.int_abs:
            findings += judge_steps(found, tally.differing, tally.sum_signed)
        if noise is not None and ties is None:
            findings += _judge_by_noise(replace(found, tolerance=bound), expected, actual, scale, noise, reach)
    verdict = Verdict.of(findings, expected.size)
    flags = [*_find_flags(found, surveys, verdict, expected, actual)]
    if ranking is not None and not is_asked and ranking.agree < ranking.rows:  # the ranking is shown, but not judged
        others = f"{OTHER_LARGEST} {_share(ranking.rows - ranking.agree, ranking.rows)} rows"
        row = f"first in row {list(ranking.first or ())}: {ranking.actual} instead of {ranking.expected}"
        flags.append(f"{others}; {row}")
    flags += [text for text in (describe_better(ties, tally.max_abs) if ties is not None else "",) if text]
    return replace(found, verdict=verdict, flags=tuple(flags))


def _judge_by_noise(
    found: TensorComparison,
    expected: Array,
    actual: Array,
    scale: TensorScale,
    noise: RoundingNoise,
    reach: Reach | None,
) -> Iterator[Finding]:
    """Judge by noise; if single elements or all together exceed it, rounding of large terms that cancel is allowed."""
    tight = replace(found.tolerance, rel=noise.rel)
    tally = measure(expected, actual, tight, scale, 1)
    common = tally.find_common(found.scale)
    is_beyond = tally.wrong or common > noise.common
    slack = _build_slack(reach, expected, found) if reach is not None and is_beyond else None
    beyond = measure(expected, actual, tight, scale, 1, slack).wrong if slack is not None else tally.wrong
    yield from judge_noise(found, noise, beyond, common, slack)


def _build_slack(reach: Reach, expected: Array, given: TensorComparison) -> Array | None:
    """Return how far rounding can move each element beyond the tolerance's absolute bound; None if not at all."""
    units = rounding_units(given.dtype)
    if not units:
        return None
    terms = np.nan_to_num(np.asarray(reach(), np.float64), nan=0.0, posinf=0.0)
    slack = np.maximum(units * terms - (given.tolerance.abs or 0.0), 0.0)
    if slack.size not in (1, expected.size):  # the tensor of the terms has another shape
        slack = np.sqrt(np.mean(np.square(slack)))
    is_single = slack.size == 1
    return np.broadcast_to(slack.reshape(() if is_single else expected.shape), expected.shape) if slack.any() else None


def _doubt(found: TensorComparison, expected: Array, asked: Tolerance) -> TensorComparison:
    """Make a tensor INCONCLUSIVE if only an absolute bound lets it pass, and it is below that bound or mostly wrong."""
    tolerance = found.tolerance
    is_by_size = found.max_rel <= (tolerance.rel or 0.0) or found.wrong or not rounding_units(found.dtype)
    if is_by_size or tolerance.allow_constant or tolerance.min_cosine is not None:  # min_cosine has judged it
        return found
    bound = tolerance.abs or 0.0
    is_small = all((np.abs(expected[block]) <= bound).all() for block in walk_blocks(expected.shape))
    is_noise = asked.abs is None and found.sqnr_db is not None and found.sqnr_db < _LEAST_SQNR_DB
    if not is_small and not is_noise:
        return found
    whose = "what rounding alone can do here" if asked.abs is None else "the absolute bound"
    what = f"every element is below {whose}" if is_small else f"right only by {whose}"
    size = f"{found.max_abs:.3g}" + (f" ({found.max_rel:.3g} of the scale)" if math.isfinite(found.max_rel) else "")
    text = f"{what} ({bound:.3g}), and the largest difference is {size}: this proves nothing"
    hint = f"(other inputs may; {ALLOW_CONSTANT} lets it pass)"
    finding = Finding(VerdictKind.INCONCLUSIVE, found.name, f"{text} {hint}", found.max_rel, tolerance.rel)
    return replace(found, verdict=Verdict.of([*found.verdict.findings, finding], found.verdict.comparisons))


def _judge_misplaced(found: TensorComparison, elements: Sequence[Element]) -> Iterator[Finding]:
    if found.misplaced:
        counts = f"NaN: {found.nan[0]} expected, {found.nan[1]} actual; infinite: {found.inf[0]} and {found.inf[1]}"
        text = f"{_share(found.misplaced, found.count)} are NaN or infinite on one side only, or with the other sign"
        yield Finding(VerdictKind.FAIL, found.name, f"{text}; first at {_render_index(elements[0])} ({counts})")


def _judge_elements(
    found: TensorComparison, tally: DifferenceTally, elements: Sequence[Element], *, is_float: bool
) -> Iterator[Finding]:
    wrong = tally.wrong - tally.misplaced
    allowed = found.tolerance.allowed_wrong * found.count
    is_near = found.sqnr_db is not None and found.sqnr_db >= TAIL_SQNR_DB  # as near as after rounding to 8 bits
    if found.tolerance.quantized and found.tolerance.allowed_wrong == TAIL_SHARE and not is_near:
        allowed = 0.0
    worst = next((each for each in elements if each.abs_error < math.inf), elements[0] if elements else None)
    if wrong > allowed and worst is not None:
        at_most = f" (at most {found.tolerance.allowed_wrong:.3g} may)" if allowed else ""
        text = f"{_share(wrong, found.count)} differ by more than {_render_bound(found, is_float)}{at_most}"
        size = (
            f"{worst.rel_error:.3g} of the scale, {worst.abs_error:.3g}" if is_float else f"by {worst.abs_error:.16g}"
        )
        text = f"{text}; worst at {_render_index(worst)}: {size}"
        yield Finding(VerdictKind.FAIL, found.name, text, found.max_rel, found.tolerance.rel if is_float else 0.0)
    near = tally.differing - tally.wrong
    share = found.tolerance.int_share or 0.0
    if not is_float and near > max(1.0, share * found.count):
        text = f"{_share(near, found.count)} are off by up to {found.tolerance.int_abs}, at most {share:.3g} may be"
        yield Finding(VerdictKind.FAIL, found.name, text, near / found.count, share)


def _render_bound(found: TensorComparison, is_float: bool) -> str:
    tolerance = found.tolerance
    if not is_float:
        return f"{0 if 'bool' in found.dtype else tolerance.int_abs}"
    parts = [f"{tolerance.rel:.3g} of the scale"] if tolerance.rel else []
    is_noticeable = (tolerance.abs or 0.0) > _NOTICEABLE * (tolerance.rel or 0.0) * found.scale
    parts += [f"{tolerance.abs:.3g}"] if is_noticeable or not parts else []
    text = " + ".join(parts)
    return text if tolerance.ulp is None else f"{text} or by more than {tolerance.ulp} ULP"


def _judge_whole(found: TensorComparison, ranking: Ranking | None, shift: float) -> Iterator[Finding]:
    """Judge the bounds on the tensor as a whole; NaN violates each bound."""
    asked = found.tolerance
    if asked.min_cosine is not None and found.cosine is not None and not found.cosine >= asked.min_cosine:
        text = f"cosine {found.cosine:.6g}, at least {asked.min_cosine:.6g} is required"
        yield Finding(VerdictKind.FAIL, found.name, text, found.cosine, asked.min_cosine)
    if asked.min_sqnr_db is not None and found.sqnr_db is not None and not found.sqnr_db >= asked.min_sqnr_db:
        text = f"signal to noise {found.sqnr_db:.4g} dB, at least {asked.min_sqnr_db:.4g} is required"
        yield Finding(VerdictKind.FAIL, found.name, text, found.sqnr_db, asked.min_sqnr_db)
    if asked.max_shift is not None and not shift <= asked.max_shift:
        text = f"all elements share a factor or an offset of {shift:.3g} of the scale; at most {asked.max_shift:.3g}"
        yield Finding(VerdictKind.FAIL, found.name, text, shift, asked.max_shift)
    if ranking is not None and ranking.agree < ranking.rows:
        text = (
            f"{_share(ranking.rows - ranking.agree, ranking.rows)} rows have others among their {asked.top_k} largest"
        )
        where = f"first in row {list(ranking.first or ())}"
        if ranking.actual != ranking.expected:
            where += f", whose largest is {ranking.actual} instead of {ranking.expected}"
        yield Finding(VerdictKind.FAIL, found.name, f"{text}; {where}", ranking.share, 1.0)


def _judge_constants(
    found: TensorComparison, surveys: tuple[Survey, Survey], op: str | None, rounding: float
) -> Iterator[Finding]:
    expected, actual = surveys
    # the expected tensor varies by more than rounding: a dead output is found with any tolerance
    least = max((default_tolerance(found.dtype[0]).rel or 0.0) * expected.largest, rounding)
    varies = found.count > 1 and (found.count > expected.finite or expected.spread > least)
    if not expected.finite and not found.misplaced:
        yield Finding(VerdictKind.INCONCLUSIVE, found.name, "not a single finite number: this proves nothing")
    elif op is None and found.nan[0] and not found.misplaced:
        text = f"{_share(found.nan[0], found.count)} are NaN on both sides: this proves nothing"
        yield Finding(VerdictKind.INCONCLUSIVE, found.name, text)
    elif actual.is_constant and not expected.is_constant and varies:
        what = "all zero" if actual.is_zero else "constant"
        text = f"the actual tensor is {what}; the expected one varies by {expected.spread:.3g}"
        yield Finding(VerdictKind.FAIL, found.name, text)
    elif expected.is_zero and actual.is_zero and not found.tolerance.allow_constant:
        if is_zero_significant(op) if op is not None else found.dtype[0] in _COUNTED:
            return
        text = f"both are all zero: this proves nothing (other inputs may; {ALLOW_CONSTANT} lets it pass)"
        yield Finding(VerdictKind.INCONCLUSIVE, found.name, text)


def _find_flags(
    found: TensorComparison, surveys: tuple[Survey, Survey], verdict: Verdict, expected: Array, actual: Array
) -> Iterator[str]:
    flags = ((EXPECTED_CONSTANT, EXPECTED_ZERO), (ACTUAL_CONSTANT, ACTUAL_ZERO))
    for side, (constant, zero) in zip(surveys, flags, strict=True):
        if side.is_constant and (found.count > 1 or side.is_zero):
            yield constant
        if side.is_zero:
            yield zero
    if verdict.kind is VerdictKind.FAIL and not surveys[1].is_constant:
        yield from find_dead_parts(expected, actual)
    if verdict.kind is not VerdictKind.FAIL and found.wrong and found.tolerance.quantized:
        yield f"{_share(found.wrong, found.count)} are further off than {_render_bound(found, is_float=True)}"
    if found.nan[0] + found.inf[0] and not found.misplaced:
        yield "NaN or infinite on both sides, in the same places"


def find_dead_parts(expected: Array, actual: Array) -> Iterator[str]:
    """Find rows, columns and channels that are all zero only in the actual tensor: usually a lost part of a kernel."""
    for axis, length in enumerate(expected.shape):
        if length < 2 or expected.size // length < FEWEST:
            continue
        alive = np.zeros((2, length), dtype=bool)
        others = tuple(other_axis for other_axis in range(expected.ndim) if other_axis != axis)
        for block in walk_blocks(expected.shape):
            for side, array in enumerate((expected, actual)):
                alive[side, block[axis]] |= (array[block] != 0).any(axis=others)
        dead = np.flatnonzero(alive[0] & ~alive[1]).tolist()
        if dead:
            names = ", ".join(map(str, dead[:_LONGEST_LIST])) + (", …" if len(dead) > _LONGEST_LIST else "")
            yield f"actual is all zero at {names} of axis {axis} ({len(dead)} of {length})"


# ---------------------------------------------------------------- messages


def _render_index(element: Element) -> str:
    return f"{list(element.index)}: expected {_render_value(element.expected)}, actual {_render_value(element.actual)}"


def _render_value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    return repr(value) if isinstance(value, str) and not _is_number(value) else str(value)


def _is_number(text: str) -> bool:
    """Return whether a string is a number: `nan`, `-inf` and complex numbers are strings too."""
    try:
        complex(text)
    except ValueError:
        return False
    return True
