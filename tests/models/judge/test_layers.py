"""Which layer is to blame, in graphs with branches, gaps, NaN and drift."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.models.judge.layers import Blame, judge_votes, localise
from assay.models.judge.tensors import compare_tensors
from assay.models.values.model import Layer
from assay.models.values.tensors import TensorComparison, Tolerance
from assay.values.verdict import Finding, Verdict, VerdictKind

REL = 2e-4


def layer(number: int, inputs: str, outputs: str, op: str = "Conv") -> Layer:
    return Layer(f"m_layer_{op}_{number}", number, (op,), (number,), tuple(inputs.split()), tuple(outputs.split()))


def tensor(name: str, error: float, kind: VerdictKind | None = None, *, nan: int = 0) -> TensorComparison:
    kind = kind or (VerdictKind.FAIL if error > REL or nan else VerdictKind.PASS)
    findings = [] if kind is VerdictKind.PASS else [Finding(kind, name, "wrong")]
    return TensorComparison(
        name, Verdict.of(findings, 10), ("float32", "float32"), ((10,), (10,)), count=10, max_rel=error,
        nan=(0, nan), misplaced=nan, tolerance=Tolerance(abs=0.0, rel=REL),
    )  # fmt: skip


def tensors(**errors: float) -> dict[str, TensorComparison]:
    return {name: tensor(name, error) for name, error in errors.items()}


CHAIN = [layer(0, "x", "a"), layer(1, "a", "b"), layer(2, "b", "c"), layer(3, "c", "d")]
# a → b → d → e,  a → c → d
DIAMOND = [layer(0, "x", "a"), layer(1, "a", "b"), layer(2, "a", "c"), layer(3, "b c", "d", "Add"), layer(4, "d", "e")]


def blamed(
    layers: list[Layer], seen: Mapping[str, TensorComparison], local: Mapping[str, TensorComparison] | None = None
) -> int | None:
    found = localise(layers, seen, local).first
    return None if found is None else found.number


DTYPE = TensorComparison(
    "b", Verdict.of([Finding(VerdictKind.FAIL, "b", "dtype")], 10), ("int64", "int32"), ((10,), (10,)), count=10
)


@pytest.mark.parametrize(
    ("layers", "seen", "local", "culprit"),
    [
        (CHAIN, tensors(a=1e-6, b=0.3, c=0.3, d=0.5), {}, 1),
        (CHAIN, tensors(a=0.01, b=0.01, c=0.01, d=0.01), {}, 0),
        (CHAIN, tensors(a=1e-6, b=2e-6, c=3e-6, d=0.9), {}, 3),
        (DIAMOND, tensors(a=0, b=0.1, c=0, d=0.1, e=0.1), {}, 1),
        (DIAMOND, tensors(a=0, b=0, c=0.1, d=0.1, e=0.1), {}, 2),
        (DIAMOND, tensors(a=0, b=0, c=0, d=0.1, e=0.1), {}, 3),
        (DIAMOND, tensors(a=0, b=0.1, c=0.2, d=0.1, e=0), {}, 1),  # two faults: the first
        # an error that heals is no excuse for the next: what goes through a Relu or an ArgMax may be right again
        (CHAIN, tensors(a=0.1, b=0, c=0.1, d=0.1), {}, 0),
        # a NaN, or another type, however small the error, also when rounding grows before it
        (CHAIN, tensors(a=1e-4, b=1.5e-4) | {"c": tensor("c", 2e-4, nan=1), "d": tensor("d", 0, nan=1)}, {}, 2),
        (CHAIN, tensors(a=1e-4, c=0, d=0) | {"b": DTYPE}, {}, 1),
        # small steps are distinguished from a jump
        (CHAIN, tensors(a=5e-5, b=1e-4, c=1.5e-4, d=3e-4), {}, None),
        (CHAIN, tensors(a=5e-5, b=1e-4, c=1.5e-4, d=3e-3), {}, 3),
        # a layer that only amplifies is not blamed
        (CHAIN, tensors(a=1e-5, b=5e-3, c=5e-3, d=5e-3), {}, 1),
        (CHAIN, tensors(a=1e-5, b=5e-3, c=5e-3, d=5e-3), tensors(b=1e-7), None),
        # one that is right alone and wrong with equal inputs is: a fusion gone wrong shows in the model alone
        (CHAIN, tensors(a=0, b=5e-3, c=5e-3, d=5e-3), tensors(b=1e-7), 1),
        (CHAIN, tensors(a=1e-5, c=1, d=1) | {"b": tensor("b", 0, nan=1)}, tensors(b=1e-7), 1),
        # what was not compared passes an error on
        (CHAIN, tensors(a=0.5, d=0.5), {}, 0),
        (DIAMOND, tensors(a=0, b=0.5, d=0.5, e=0.5), {}, 1),
        # undecided tensors are not wrong
        (CHAIN, {"a": tensor("a", 0, VerdictKind.INCONCLUSIVE)} | tensors(b=0, c=0.1, d=0.1), {}, 2),
    ],
)
def test_the_layer_to_blame(
    layers: list[Layer],
    seen: Mapping[str, TensorComparison],
    local: Mapping[str, TensorComparison],
    culprit: int | None,
) -> None:
    assert blamed(layers, seen, local) == culprit


def test_nothing_wrong() -> None:
    found = localise(CHAIN, tensors(a=1e-6, b=1e-6, c=1e-5, d=1e-5))
    assert (found.blame, found.first, found.reason) == (Blame.NOTHING, None, "no layer's output is wrong")
    assert len(found.ranking) == 4
    assert localise(CHAIN, {}).blame is Blame.NOTHING
    assert localise([], {}).ranking == ()
    inherited = [growth.is_inherited for growth in localise(CHAIN, tensors(a=0, b=0, c=0.1, d=0.1)).ranking]
    assert inherited == [False, True, False, False]


def test_a_nan_is_blamed_where_it_is_born() -> None:
    seen = tensors(a=1e-6, b=1e-6) | {"c": tensor("c", 0, nan=3), "d": tensor("d", 0, nan=10)}
    found = localise(CHAIN, seen)
    assert found.first is CHAIN[2]
    assert found.reason == "Conv_2 is where it begins: its inputs are correct (error 1e-06)"
    assert found.ranking[0].factor == math.inf


def test_drift_has_no_culprit() -> None:
    found = localise(CHAIN, tensors(a=5e-5, b=1e-4, c=1.8e-4, d=3e-4))
    assert (found.blame, found.first) == (Blame.DRIFT, None)
    assert found.reason.startswith("drift: Conv_3 is the first beyond its tolerance")
    assert "5e-05 → 0.0001" in found.reason
    assert [growth.layer.number for growth in found.ranking][:1] == [0]


def test_a_layer_that_may_be_far_off_is_named_where_it_brings_most() -> None:
    """Its own bound is wide, and that of the next is not."""
    wide = {"a": replace(tensor("a", 0.07, VerdictKind.PASS), tolerance=Tolerance(abs=0.0, rel=0.1))}
    found = localise(CHAIN, wide | tensors(b=0.05, c=0.05, d=0.05), tensors(b=1e-7))
    assert found.blame is Blame.DRIFT
    assert "most of it comes from Conv_0, which is within its own: Conv_0 0 → 0.07" in found.reason
    assert "no layer adds much" not in found.reason


def test_a_layer_that_is_wrong_alone_is_blamed_in_spite_of_drift() -> None:
    seen = tensors(a=1e-4, b=3e-4, c=2e-3, d=2e-3)
    assert blamed(CHAIN, seen) is None
    found = localise(CHAIN, seen, tensors(a=1e-7, b=1e-7, c=1e-3, d=1e-7))
    assert found.first is CHAIN[2]
    assert "its inputs are off too" in found.reason


def test_layers_that_nothing_looked_at_are_suspects_too() -> None:
    found = localise(CHAIN, tensors(a=0, d=0.5))
    assert found.first is CHAIN[3]
    assert "it may be Conv_1, Conv_2 as well" in found.reason
    assert "as well" not in localise(CHAIN, tensors(a=0, b=0, c=0, d=0.5)).reason


def test_a_layer_with_several_outputs() -> None:
    layers = [layer(0, "x", "a b", "Split"), layer(1, "a", "c"), layer(2, "b", "d")]
    found = localise(layers, tensors(a=0, b=0.2, c=0, d=0.2))
    assert found.first is layers[0]
    assert found.reason == "Split_0 is where it begins: its inputs are equal"


def test_the_ranking_has_the_layer_that_adds_most_first() -> None:
    found = localise(CHAIN, tensors(a=1e-4, b=1e-4, c=0.5, d=0.6))
    assert [growth.layer.number for growth in found.ranking] == [2, 0, 3, 1]
    growth = found.ranking[0]
    assert (growth.before, growth.after, growth.is_wrong, growth.is_inherited) == (1e-4, 0.5, True, False)
    assert growth.factor == pytest.approx(5000)


def test_a_deep_model_does_not_exhaust_the_stack() -> None:
    layers = [layer(number, f"t{number}", f"t{number + 1}") for number in range(5000)]
    assert blamed(layers, {"t5000": tensor("t5000", 0.5)}) == 4999


@given(st.integers(2, 30), st.data())
def test_one_planted_fault_in_any_graph_is_found(count: int, data: st.DataObject) -> None:
    """Each layer reads some earlier tensors; all that follows from the fault is wrong, all else is rounding."""
    layers = []
    for number in range(count):
        known = ["x", *(f"t{index}" for index in range(number))]
        names = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
        layers.append(layer(number, " ".join(names), f"t{number}"))
    fault = data.draw(st.integers(0, count - 1))
    tainted = {f"t{fault}"}
    for each in layers[fault + 1 :]:
        if tainted & set(each.inputs):
            tainted |= set(each.outputs)
    noise = st.floats(0, REL / 5)
    seen = {
        name: tensor(name, data.draw(st.floats(0.01, 10)) if name in tainted else data.draw(noise))
        for name in (f"t{number}" for number in range(count))
    }
    assert blamed(layers, seen) == fault


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
        assert judge_votes([target], [other]).kind is VerdictKind.FAIL


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
