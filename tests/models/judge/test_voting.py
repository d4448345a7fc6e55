"""References that disagree: when they excuse a target, and when nothing does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from assay.models.judge.tensors import compare_tensors
from assay.models.judge.voting import judge_votes
from assay.models.values.tensors import TensorComparison, Tolerance
from assay.values.verdict import VerdictKind

REFERENCE = np.random.default_rng(0).normal(size=(8, 50)).astype(np.float32)


def off_by(share: float, seed: int = 1, count: int | None = None) -> np.ndarray:
    """The reference with errors of this size; in the first `count` elements alone where it is given."""
    wrong = np.random.default_rng(seed).normal(size=REFERENCE.shape).astype(np.float32) * np.float32(share)
    if count is not None:
        wrong.reshape(-1)[count:] = 0
    return REFERENCE + wrong


def against(actual: Any, name: str = "y", **bounds: Any) -> TensorComparison:
    return compare_tensors(name, REFERENCE, actual, Tolerance(**bounds))


def test_a_target_that_is_as_far_off_as_the_references_are() -> None:
    target, other = against(off_by(0.01)), against(off_by(0.01, seed=2))
    assert target.verdict.kind is VerdictKind.FAIL
    verdict = judge_votes([target], [other])
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    (finding,) = verdict.findings
    assert finding.subject == "y"
    assert finding.message.startswith("the references disagree: ")
    assert (finding.value, finding.expected) == (target.error, other.error)
    assert f"{target.max_rel:.3g}" in finding.message
    assert f"{other.max_rel:.3g}" in finding.message
    assert verdict.comparisons == 400


@pytest.mark.parametrize("times", [5, 100])
def test_a_target_that_is_much_worse_fails(times: float) -> None:
    target, other = against(off_by(0.01 * times)), against(off_by(0.01, seed=2))
    verdict = judge_votes([target], [other])
    assert verdict.kind is VerdictKind.FAIL
    assert verdict.findings == target.verdict.findings


def test_one_bad_element_of_the_references_does_not_excuse_many() -> None:
    target, other = against(off_by(0.01)), against(off_by(3.0, seed=2, count=1))
    assert other.max_rel > target.max_rel / 2
    assert judge_votes([target], [other]).kind is VerdictKind.FAIL


def test_references_that_agree_excuse_nothing() -> None:
    assert judge_votes([against(off_by(0.01))], [against(REFERENCE.copy())]).kind is VerdictKind.FAIL
    assert judge_votes([against(off_by(0.01))], []).kind is VerdictKind.FAIL
    assert judge_votes([against(off_by(0.01))], [against(off_by(0.5), "z")]).kind is VerdictKind.FAIL


def with_odd(value: float) -> np.ndarray:
    array = off_by(0.01)
    array[3, 3] = value
    return array


@pytest.mark.parametrize(
    "actual",
    [
        with_odd(math.nan), with_odd(math.inf), np.zeros_like(REFERENCE), np.full_like(REFERENCE, 0.1), REFERENCE.T,
        off_by(0.01).astype(np.float64),
    ],
    ids=["NaN", "infinite", "zero", "constant", "shape", "dtype"],
)  # fmt: skip
def test_what_no_rounding_explains_is_never_excused(actual: np.ndarray) -> None:
    """Not even when the second reference does the same."""
    target = against(actual, rel=0.001)
    for other in (against(off_by(10.0, seed=2)), against(actual.copy(), rel=0.001)):
        verdict = judge_votes([target], [other])
        assert verdict.kind is VerdictKind.FAIL


def test_a_ranking_is_excused_by_a_ranking_only() -> None:
    flipped = REFERENCE.copy()
    flipped[:, [0, 1]] = flipped[:, [1, 0]]
    rows = np.argmax(REFERENCE, axis=1)
    flipped[np.arange(8), rows] = -1
    target = against(flipped, top_k=1, rel=5.0)
    assert target.verdict.kind is VerdictKind.FAIL
    assert judge_votes([target], [against(off_by(2.0, seed=3), rel=5.0)]).kind is VerdictKind.FAIL
    assert judge_votes([target], [against(flipped.copy(), top_k=1, rel=5.0)]).kind is VerdictKind.INCONCLUSIVE


def test_tensors_are_weighed_one_by_one() -> None:
    target = [against(off_by(0.01), "a"), against(off_by(0.01), "b"), against(REFERENCE.copy(), "c")]
    others = [against(off_by(0.01, seed=2), "a"), against(REFERENCE.copy(), "b"), against(off_by(9.0), "c")]
    verdict = judge_votes(target, others)
    assert verdict.kind is VerdictKind.FAIL
    assert [(each.kind, each.subject) for each in verdict.findings] == [
        (VerdictKind.INCONCLUSIVE, "a"),
        (VerdictKind.FAIL, "b"),
    ]


def test_what_passes_stays_so_and_nothing_is_never_a_pass() -> None:
    assert judge_votes([against(REFERENCE.copy())], [against(off_by(9.0))]).kind is VerdictKind.PASS
    assert judge_votes([], []).kind is VerdictKind.ERROR
    zeros = compare_tensors("y", np.zeros(4, np.float32), np.zeros(4, np.float32))
    assert judge_votes([zeros], [zeros]).kind is VerdictKind.INCONCLUSIVE
