"""The first wrong layer, for as little work as it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.example_models import faulty, picky, request_for, save, write_coarse, write_long_chain

from assay.models.flow.artifact_builder import ArtifactBuilder
from assay.models.flow.bisect import LayerSearch, _find_correct, bisect_model
from assay.models.flow.cases import Cases
from assay.models.flow.check import Examination
from assay.models.report.summary import describe_outcome
from assay.models.values.model import InputChoice, ModelReport, StepEnding, Target
from assay.values.verdict import VerdictKind

UNOPTIMIZED = Target("ort:unoptimized", "ort", {"optimize": "none"})
FUSING, EXPOSED = (Target(name.lower(), f"picky_backend:{name}") for name in ("Fusing", "Exposed"))


Bisect = Callable[..., ModelReport]


@pytest.fixture
def bisect(shared: ArtifactBuilder, tmp_path: Path) -> Bisect:
    """`bisect(model, target, …)`; tensors that differ are in `keep`. With `builder`, the test has a store of its own."""
    return lambda model, target, **further: bisect_model(
        request_for(model, target, goal="bisect", **further), shared, str(tmp_path / "keep")
    )


def labels(report: ModelReport) -> list[str]:
    return [case.layer.label if case.layer else "full" for case in report.cases]


def test_a_right_target_costs_two_compilations(
    chain: Path, tmp_path: Path, builder: ArtifactBuilder, bisect: Bisect
) -> None:
    report = bisect(chain, UNOPTIMIZED)
    assert (report.verdict.kind, report.first_wrong) == (VerdictKind.PASS, None)
    assert labels(report) == ["full"]
    compiled = [each.name for each in builder.slices if each.track == ("ort:unoptimized", "compile")]
    assert compiled == ["chain_marked", "chain_full_model"]
    assert not (tmp_path / "keep").exists()


@pytest.mark.parametrize(
    ("target", "first", "confirmed", "kind", "shown", "said"),
    [
        (faulty("scaled", "product"), "MatMul_0", True, "FAIL", ["MatMul_0"], ""),
        (faulty("scaled", "y"), "Relu_2", True, "FAIL", ["Relu_2"], ""),
        # MatMul by itself is refused for a reason of its own, which the model never meets
        (picky(refuses="Relu", refuses_alone="MatMul"), "Relu_2", True, "ERROR", ["Relu_2", "full"], ""),
        (picky(refuses="Add", wordy=True), "Add_1", True, "ERROR", ["Add_1", "full"], ""),
        (picky(refuses_among="Add"), "Add_1", False, "ERROR", ["Add_1", "full"], "with its neighbours"),
        (FUSING, "Relu_2", False, "FAIL", ["Relu_2", "full"], "the outputs hide the fault"),
        # the unmarked model confirms nothing: neither a pass in silence nor a failure of the model
        (EXPOSED, "Add_1", False, "INCONCLUSIVE", ["Add_1", "full"], "without intermediate outputs the model is correct"),
    ],
)  # fmt: skip
def test_the_first_wrong_layer_of_a_chain(
    chain: Path, bisect: Bisect, target: Target, first: str, confirmed: bool, kind: str, shown: list[str], said: str
) -> None:
    report = bisect(chain, target)
    assert (report.verdict.kind, report.first_wrong, report.confirmed) == (kind, f"chain_layer_{first}", confirmed)
    assert labels(report) == shown
    assert any(said in text for text in (*report.notes, *(each.message for each in report.findings), ""))
    if kind == "FAIL" and confirmed:
        (case,) = report.cases
        assert case.local
        assert case.accumulated
        assert case.diffs


def write_samples(folder: Path, *samples: tuple[int, float]) -> InputChoice:
    """Of (batch, value) each."""
    for number, (batch, value) in enumerate(samples):
        np.savez(folder / f"{number}.npz", x=np.full((batch, 4), value, np.float32))
    return InputChoice(files=tuple(str(folder / f"{number}.npz") for number in range(len(samples))))


def test_samples_may_differ_in_shape(tmp_path: Path, bisect: Bisect) -> None:
    model = write_long_chain(tmp_path / "long.onnx")
    inputs = write_samples(tmp_path, (1, 0.1), (3, 0.5))
    right = bisect(model, UNOPTIMIZED, inputs=inputs)
    assert right.verdict.kind is VerdictKind.PASS
    assert right.verdict.comparisons == (1 + 3) * 4
    wrong = bisect(model, faulty("nan", "t3"), inputs=inputs)
    assert (wrong.samples, wrong.first_wrong, wrong.confirmed) == (2, "long_layer_Tanh_2", True)
    assert bisect(model, picky(refuses="Tanh"), inputs=inputs).first_wrong == "long_layer_Tanh_2"


def test_the_second_sample_may_be_the_wrong_one(tmp_path: Path, bisect: Bisect) -> None:
    """Values within the bounds of a saturating cast in the first sample, and of another shape beyond them."""
    model = save(tmp_path, "g (float[batch,4] x) => (float[batch,4] y) { double = Add(x, x)  y = Neg(double) }")
    target = faulty("saturated", "double")
    first = bisect(model, target, inputs=write_samples(tmp_path, (1, 0.01)))
    assert first.first_wrong is None
    both = bisect(model, target, inputs=write_samples(tmp_path, (1, 0.01), (3, 0.5)))
    assert both.first_wrong == "m_layer_Add_0"
    assert both.cases[0].local[0].shape == ((3, 4), (3, 4))


@pytest.mark.parametrize("goal", ["nothing goes in", "handed through", "nothing but handed through"])
def test_odd_models(goal: str, tmp_path: Path, bisect: Bisect) -> None:
    body = {
        "nothing goes in": "g () => (float[4] y) <float[4] w = {0, 1, 2, 3}> { e = Exp(w)  y = Neg(e) }",
        "handed through": "g (float[4] x) => (float[4] y, float[4] x) { y = Neg(x) }",
        "nothing but handed through": "g (float[4] x) => (float[4] x) { }",
    }
    path = save(tmp_path, body[goal])
    right = bisect(path, UNOPTIMIZED)
    assert right.verdict.kind is VerdictKind.PASS
    assert right.verdict.comparisons > 0
    wrong = bisect(path, faulty("scaled", "y"))
    assert (wrong.first_wrong is None) == (goal == "nothing but handed through")


def test_an_operator_that_is_lacking_is_found_by_halving(
    tmp_path: Path, builder: ArtifactBuilder, bisect: Bisect
) -> None:
    report = bisect(write_long_chain(tmp_path / "long.onnx", 16), picky(refuses="Tanh"))
    assert report.first_wrong == "long_layer_Tanh_2"
    assert report.confirmed
    assert labels(report) == ["Tanh_2", "full"]
    assert report.cases[0].failed_step is not None
    assert report.cases[0].failed_step.ending is StepEnding.UNSUPPORTED
    assert report.verdict.kind is VerdictKind.ERROR
    tried = [each for each in builder.slices if each.track == ("picky", "compile")]
    assert len(tried) <= 3 + 4 + 1  # marked, whole, closed, four halves of sixteen, the layer alone


def test_beginnings_get_the_inputs_that_they_need_and_no_others(tmp_path: Path, bisect: Bisect) -> None:
    """The second input is read behind the layer that is refused."""
    model = save(tmp_path, "g (float[4] a, float[4] b) => (float[4] y) { s = Abs(a)  t = Tanh(s)  y = Add(t, b) }")
    assert bisect(model, picky(refuses="Tanh")).first_wrong == "m_layer_Tanh_1"


def test_a_model_that_cannot_be_laid_open_but_is_right_is_right(tmp_path: Path, bisect: Bisect) -> None:
    """The target refuses more than one output; as it is, the model has one."""
    model = write_long_chain(tmp_path / "long.onnx", 4)
    report = bisect(model, Target("one", "picky_backend:OneOutput"))
    assert report.verdict.kind is VerdictKind.PASS
    assert "its intermediate tensors are unknown" in report.notes[0]


def test_a_quantised_model_that_is_right_passes_with_every_layer_that_differs(built: Path, bisect: Bisect) -> None:
    report = bisect(built / "example-quantised.onnx", UNOPTIMIZED)
    assert report.verdict.kind is VerdictKind.PASS
    assert any("every layer whose values differ is correct with the reference's inputs" in x for x in report.notes)


def open_search(model: Path, target: Target, builder: ArtifactBuilder, keep: Path) -> LayerSearch:
    request = request_for(model, target)
    return LayerSearch(Examination(request, builder, Cases(request, builder), str(keep)))


def test_layers_are_tried_side_by_side_and_only_the_wrong_one_is_left(tmp_path: Path, builder: ArtifactBuilder) -> None:
    model = write_coarse(tmp_path / "coarse.onnx")
    search = open_search(model, faulty("scaled", "p2"), builder, tmp_path)
    correct = _find_correct(search, search.cases.outline.layers)
    assert [layer.label for layer in search.cases.outline.layers if layer.name not in correct] == ["MatMul_3"]
    assert [each.name for each in builder.slices if each.track == ("faulty", "compile")] == ["coarse_together"]


def test_a_group_of_layers_that_the_target_cannot_compute_is_divided(tmp_path: Path, builder: ArtifactBuilder) -> None:
    model = write_long_chain(tmp_path / "long.onnx", 9)
    search = open_search(model, picky(refuses_among="Tanh"), builder, tmp_path)
    correct = _find_correct(search, search.cases.outline.layers)
    assert correct == {f"long_layer_{label}" for label in ("Abs_0", "Neg_1")}, "what is left is tried alone"


def test_a_file_that_fails_only_with_open_dimensions_is_not_passed(chain: Path, bisect: Bisect) -> None:
    target = Target("static", "picky_backend:Static")
    report = bisect(chain, target)
    assert report.verdict.kind is VerdictKind.ERROR
    assert report.first_wrong is None
    assert any("with them closed (batch=1) it is ok" in note for note in report.notes)
    kept = bisect(chain, target, inputs=InputChoice(keep_dims=True))
    assert kept.verdict.kind is VerdictKind.ERROR
    assert not any("closed (" in note for note in kept.notes)


@pytest.mark.parametrize(
    ("kind", "at", "label"),
    [("cropped", "r", "Relu_0"), ("extra-axis", "n", "Neg_1"), ("cropped", "product", "MatMul_2")],
)
def test_a_wrong_shape_is_blamed_on_the_layer_that_makes_it(
    kind: str, at: str, label: str, tmp_path: Path, bisect: Bisect
) -> None:
    """What reads a wrong shape is two layers behind."""
    body = "{ r = Relu(x)  n = Neg(r)  product = MatMul(n, w)  y = Tanh(product) }"
    weights = {"w": np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)}
    report = bisect(save(tmp_path, f"g (float[2,4] x) => (float[2,3] y) {body}", weights=weights), faulty(kind, at))
    assert report.first_wrong == f"m_layer_{label}"
    assert report.confirmed
    assert not any("suspect" in finding.message for finding in report.verdict.findings)


def test_a_wrong_shape_that_keeps_the_inside_from_being_seen_is_found_all_the_same(
    tmp_path: Path, bisect: Bisect
) -> None:
    """A target that takes one output at a time, and adds an axis behind Relu, which Add broadcasts."""
    model = save(tmp_path, "g (float[2,4] x) => (float[2,4] y) { r = Relu(x)  s = Add(r, x)  y = Neg(s) }")
    target = Target("narrow", "picky_backend:FaultyOneOutput", {"fault": {"kind": "extra-axis", "at": "r"}})
    report = bisect(model, target)
    assert (report.first_wrong, report.confirmed) == ("m_layer_Relu_0", True)


def test_a_layer_that_cannot_stand_alone_is_found_with_its_failure(tmp_path: Path, bisect: Bisect) -> None:
    """A sequence is no tensor to compare."""
    body = """{ r = Relu(x)  a, b = Split<axis = 0>(r)  q = SequenceConstruct(a, b)
        c = ConcatFromSequence<axis = 0>(q)  y = Neg(c) }"""
    model = save(tmp_path, f"g (float[4,4] x) => (float[4,4] y) {body}", opset=13)
    report = bisect(model, picky(refuses="ConcatFromSequence"))
    assert report.first_wrong == "m_layer_ConcatFromSequence_3"
    assert report.confirmed is None
    text = describe_outcome(report)
    assert "compile unsupported: no ConcatFromSequence here; this layer cannot be computed alone" in text
    assert "wrong in isolation" not in text
