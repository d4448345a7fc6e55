"""A case step by step, with pieces of the user's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.example_models import parse
from tests.models.backends.backend_helpers import build_external

from assay.errors import UsageError
from assay.models.flow.artifact_builder import ArtifactBuilder, Dumps, load_product
from assay.models.flow.cases import StepFailedError
from assay.models.flow.stepwise import CaseSteps, Stepwise, read_samples
from assay.models.values.model import InputChoice, ModelRequest, Step, Target
from assay.models.values.tensors import TensorSpec

ORT, EVALUATOR = Target("ort", "ort"), Target("reference", "reference")
BODY = "g (float[4] x) => (float[4] y) { t = Relu(x) y = Neg(t) }"


@pytest.fixture
def stand(builder: ArtifactBuilder, tmp_path: Path) -> Stepwise:
    return Stepwise(builder, Dumps(run_profile_dir=str(tmp_path / "profiles")))


@pytest.fixture
def request_of_net(tmp_path: Path) -> ModelRequest:
    onnx.save(parse(BODY), tmp_path / "net.onnx")
    return ModelRequest(str(tmp_path / "net.onnx"), ORT, EVALUATOR, inputs=InputChoice(samples=2))


def compare(steps: CaseSteps, tmp_path: Path, expected, actual):
    return steps.compare(steps.cases.request, str(tmp_path / "keep"), expected, actual)


def test_a_layer_from_its_inputs_to_the_comparison(stand, request_of_net, tmp_path):
    steps = stand.open_case(request_of_net, "net_layer_Neg_1", "net_layer_Neg_1-reference-default")
    inputs = steps.write_inputs(steps.inputs)
    assert [product.sha for product in inputs] == [trial.inputs.sha for trial in steps.case.trials]
    expected = steps.expect(ORT, inputs)
    actual = steps.run(EVALUATOR, steps.prepare(EVALUATOR), inputs, tested=True)
    assert len(expected) == len(actual) == 2
    assert compare(steps, tmp_path, expected, actual).verdict.kind == "PASS"
    assert [str(step.step) for step in steps.steps] == ["compile", "run", "run"], "one model, two samples"
    made = tmp_path / "profiles" / "net_layer_Neg_1-reference-default" / "net_layer_Neg_1_runtime.csv"
    assert made.exists()
    assert len(list((tmp_path / "profiles").iterdir())) == 1, "the reference is not profiled"
    assert stand.builder.dumps == Dumps()


def test_other_inputs_are_computed_by_the_reference(stand, request_of_net, tmp_path):
    steps = stand.open_case(request_of_net, "net_full_model", "x")
    inputs = steps.write_inputs([{"x": np.array([1, -1, 2, -2], np.float32)}])
    (expected,) = steps.expect(ORT, inputs)
    assert expected["y"].tolist() == [-1, 0, -2, 0]
    report = compare(steps, tmp_path, [expected], [{"y": expected["y"] + 1}])
    assert report.verdict.kind == "FAIL"
    assert np.load(report.diffs[0][1]).tolist() == [0, 1, -1, 1]


def test_what_does_not_fit_is_refused_and_nothing_is_never_a_pass(stand, request_of_net, tmp_path):
    steps = stand.open_case(request_of_net, "net_full_model", "x")
    with pytest.raises(UsageError, match=r"missing: x; too many: a, b"):
        steps.write_inputs([{"a": np.zeros(4), "b": np.zeros(4)}])
    with pytest.raises(UsageError, match="1 samples of results, 2 of the reference"):
        compare(steps, tmp_path, [{}, {}], [{}])
    assert compare(steps, tmp_path, [], []).verdict.kind == "ERROR"
    assert compare(steps, tmp_path, [{"y": np.ones(4)}], [{}]).verdict.kind == "FAIL"


def test_a_step_that_fails_reports_so_and_what_it_was_given_is_kept_where_the_visit_says(
    stand, request_of_net, tmp_path
):
    broken = tmp_path / "broken.onnx"
    broken.write_text("no model")
    with stand.visiting(str(tmp_path / "kept")):
        steps = stand.open_case(request_of_net, "net_full_model", "x")
        with pytest.raises(StepFailedError, match="ort cannot compute net_full_model: compile error") as caught:
            steps.build(ORT, Step.COMPILE, [stand.take_in(broken)], tested=True)
    assert caught.value.outcome is steps.steps[-1]
    assert (tmp_path / "kept" / "net_full_model" / "compile-ort" / "broken.onnx").read_text() == "no model"
    assert stand.builder.failure_dir == ""


def test_only_the_last_models_stay_in_memory(stand, tmp_path):
    requests = []
    for name in "abc":
        onnx.save(parse(BODY), tmp_path / f"{name}.onnx")
        requests.append(ModelRequest(str(tmp_path / f"{name}.onnx"), ORT, EVALUATOR))
    opened = [
        stand.open_case(each, f"{name}_full_model", "x").cases for name, each in zip("abc", requests, strict=True)
    ]
    assert stand.open_case(requests[2], "c_full_model", "x").cases is opened[2]
    assert stand.open_case(requests[0], "a_full_model", "x").cases is not opened[0]


def test_a_visit_holds_what_it_takes_and_nothing_longer(stand, request_of_net, tmp_path):
    """The store may throw out what a test has used; what the reference made of the model is for all tests."""
    store = stand.builder.store
    with stand.visiting(""):
        steps = stand.open_case(request_of_net, "net_full_model", "x")
        (artifact, _) = steps.prepare(EVALUATOR)
        stand.hand_out(artifact)
        store.clear()
        assert Path(artifact.path).exists()
    store.clear()
    assert not Path(artifact.path).exists()
    with pytest.raises(UsageError, match="there is no"):
        stand.take_in(artifact.path)
    with stand.visiting(""):
        again = stand.open_case(request_of_net, "net_full_model", "x")
        assert all(each["y"].shape == (4,) for each in again.expect(ORT, again.write_inputs(again.inputs)))


def test_each_sample_is_given_its_own_shapes(stand, request_of_net):
    """Samples may differ in shape, and the raw bytes that a runner writes are read as each sample's shape."""
    steps = stand.open_case(request_of_net, "net_full_model", "x")
    first, second = steps.case.trials
    specs = [(TensorSpec("y", "float32", (size,)),) for size in (2, 3)]
    trials = (replace(first, specs=specs[0]), replace(second, specs=specs[1]))
    steps.case = replace(steps.case, trials=trials)
    wanted = []

    def run(target, artifact, inputs, wants, case, whole=stand.builder.run):
        wanted.append(wants.specs)
        return whole(target, artifact, inputs, wants, case)

    own = steps.write_inputs(steps.inputs)
    other = steps.write_inputs([{"x": np.ones(4, np.float32)}])
    artifacts = steps.prepare(ORT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ArtifactBuilder, "run", lambda self, *words: run(*words))
        steps.run(ORT, artifacts, own)
        steps.run(ORT, artifacts, other)
    assert wanted == [*specs, steps.case.specs]


def test_what_is_handed_out_is_taken_in_again(stand, request_of_net, tmp_path):
    steps = stand.open_case(request_of_net, "net_full_model", "x")
    (artifact, _) = steps.prepare(ORT)
    folder = stand.hand_out(artifact, str(tmp_path / "some folder"))
    assert stand.take_in(folder) is artifact
    with pytest.raises(UsageError, match="there is no"):
        stand.take_in(tmp_path / "missing")


def test_a_users_folder_is_searched_for_the_artifact_and_what_is_next_to_it_counts(stand, tmp_path):
    """A tool may read it."""
    made = tmp_path / "made"
    made.mkdir()
    (made / "only").write_text("1")
    assert stand.take_in(made).path == str(made / "only")
    (made / "model.vmfb").write_text("2")
    assert stand.take_in(made).path == str(made)
    before = stand.take_in(made, "model.vmfb")
    assert before.path == str(made / "model.vmfb")
    assert stand.take_in(made, "model.vmfb").sha == before.sha
    (made / "only").write_text("2")
    assert stand.take_in(made, "model.vmfb").sha != before.sha
    model = tmp_path / "model.onnx"
    build_external(model)
    whole = stand.take_in(model)
    assert whole == load_product(str(model))
    build_external(model, seed=1)
    assert stand.take_in(model).sha != whole.sha, "the external data is part of it"


def test_forms_of_samples():
    a, b = np.zeros(1), np.ones(1)
    assert read_samples([a, b], ("p", "q")) == [{"p": a, "q": b}]
    assert read_samples({"p": a}, ("p",)) == [{"p": a}]
    assert read_samples([{"p": a}, {"p": b}], ("p",)) == [{"p": a}, {"p": b}]
    assert read_samples(a, ("p",)) == [{"p": a}]
    assert read_samples([], ("p",)) == [{}]
    assert len(read_samples([a, b, a], ("p",))[0]) == 3, "no array is lost whatever the names"
