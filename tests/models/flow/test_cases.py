"""A model's cases: layers see the values that they see in the model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.example_models import ORT, save

from assay.errors import NotFoundError, UsageError
from assay.models.flow.artifact_builder import ArtifactBuilder
from assay.models.flow.cases import Cases, StepFailedError, Tensors
from assay.models.values.model import InputChoice, ModelRequest, Target


def open_cases(model: Path, builder: ArtifactBuilder, reference: Target = ORT, **inputs: object) -> Cases:
    return Cases(ModelRequest(str(model), reference, reference, inputs=InputChoice(**inputs)), builder)  # type: ignore[arg-type]


def test_a_layer_is_fed_with_the_reference_s_values(chain: Path, shared: ArtifactBuilder) -> None:
    cases = open_cases(chain, shared)
    product, add = cases.iterate(["chain_layer_MatMul_0", "chain_layer_Add_1"])
    made, fed = product.trials[0].expected["product"], Tensors(add.trials[0].inputs.path)["product"]
    assert np.array_equal(made, fed)
    (bias,) = (numpy_helper.to_array(each) for each in cases.proto.graph.initializer if each.name == "b")
    assert np.array_equal(add.trials[0].expected["sum"], fed + bias)


def test_the_full_model_is_the_file_itself_and_the_closed_one_has_the_sample_s_shapes(
    chain: Path, shared: ArtifactBuilder
) -> None:
    cases = open_cases(chain, shared, dims={"batch": 3})
    assert cases.full.trials[0].model.path == str(chain)
    assert cases.full.trials[0].expected["y"].shape == (3, 4)
    assert cases.closed is not None
    model = onnx.load(cases.closed.trials[0].model.path)
    assert [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim] == [3, 4]
    assert open_cases(chain, shared, keep_dims=True).closed is None
    marked = onnx.load(open_cases(chain, shared, keep_dims=True).marked.trials[0].model.path)
    assert marked.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


@pytest.mark.parametrize("least", [17, 100])
def test_larger_sizes_are_tried_where_the_reference_refuses_the_guessed_ones(
    least: int, tmp_path: Path, shared: ArtifactBuilder
) -> None:
    """A window that is cut out behind a computed beginning: nothing in the graph says how long the input must be."""
    weights = {"begin": [least - 1], "end": [least], "one": [1], "wanted": [1, 1]}
    body = "{ part = Slice(x, begin, end, one)  m = Neg(part)  y = Reshape(m, wanted) }"
    cases = open_cases(save(tmp_path, f"g (float[batch,n] x) => (float[1,1] y) {body}", weights=weights), shared)
    assert cases.full.trials[0].expected["y"].shape == (1, 1)
    size = next(size for size in (64, 512, 4096, 16000) if size >= least)
    assert Tensors(cases.samples[0].path)["x"].shape == (1, size)
    (note,) = cases.notes
    assert note.startswith("ort refuses the model with the sizes that were guessed first")
    assert note.endswith(f"takes batch=1, n={size}; --dim NAME=SIZE gives others")


def test_the_open_dimension_of_a_state_is_its_batch(tmp_path: Path, shared: ArtifactBuilder) -> None:
    """As in real voice detectors: [2, ?, 128] next to [batch, sequence]."""
    body = "{ m = ReduceMean<keepdims = 0>(state)  y = Add(x, m) }"
    model = save(tmp_path, f"g (float[batch,n] x, float[2,?,128] state) => (float[batch,n] y) {body}")
    assert Tensors(open_cases(model, shared).samples[0].path)["state"].shape == (2, 1, 128)


def test_sizes_that_were_given_are_not_changed(tmp_path: Path, shared: ArtifactBuilder) -> None:
    model = save(tmp_path, "g (float[n] x) => (float[8,8] y) <int64[2] wanted = {8, 8}> { y = Reshape(x, wanted) }")
    with pytest.raises(StepFailedError):
        _ = open_cases(model, shared, dims={"n": 16}).full
    assert open_cases(model, shared).full.trials[0].expected["y"].shape == (8, 8), "the graph demands 64"


def test_constants_are_folded_in_a_process_that_has_loaded_nothing(tmp_path: Path) -> None:
    """`import onnx` does not bring onnx's evaluator."""
    body = "<int64[2] four = {4, 4}, int64[2] two = {2, 2}> { wanted = Mul(four, two)  y = Reshape(x, wanted) }"
    model = save(tmp_path, f"g (float[n] x) => (float[8,8] y) {body}")
    code = (
        "import sys\n"
        "from assay.models.graph.graph import build_outline, load_model\n"
        "from assay.models.graph.inputs import close_specs\n"
        "print(close_specs(build_outline(sys.argv[1]), load_model(sys.argv[1]), {})[0].shape)"
    )
    done = subprocess.run([sys.executable, "-c", code, model], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(64,)"


def test_the_length_of_a_position_table_decides_the_number_of_tokens(tmp_path: Path, shared: ArtifactBuilder) -> None:
    weights = {"words": np.ones((100, 8), np.float32), "places": np.ones((1, 77, 8), np.float32)}
    body = "{ ids = Cast<to = 7>(x)  e = Gather(words, ids)  y = Add(e, places) }"
    model = save(tmp_path, f"g (float[b,s] x) => (float[b,77,8] y) {body}", weights=weights)
    assert Tensors(open_cases(model, shared).samples[0].path)["x"].shape == (1, 77)


def test_every_sample_is_a_trial_of_its_own_and_they_share_a_compiled_layer(
    chain: Path, shared: ArtifactBuilder
) -> None:
    cases = open_cases(chain, shared, samples=3)
    (layer,) = cases.iterate(["chain_layer_Relu_2"])
    for case in (cases.full, cases.marked, layer):
        assert len(case.trials) == len({trial.inputs.sha for trial in case.trials}) == 3
    assert len({trial.model.sha for trial in layer.trials}) == 1


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ([], ["MatMul_0", "Add_1", "Relu_2", "full_model"]),
        (["Add_1"], ["Add_1"]),
        (["chain_layer_Add_1"], ["Add_1"]),
        (["*_[02]", "full_model"], ["MatMul_0", "Relu_2", "full_model"]),
    ],
)
def test_cases_are_chosen_by_name_label_or_pattern(
    chain: Path, shared: ArtifactBuilder, patterns: list[str], expected: list[str]
) -> None:
    cases = open_cases(chain, shared)
    chosen = cases.choose(patterns)
    assert [name.removeprefix("chain_layer_").removeprefix("chain_") for name in chosen] == expected
    with pytest.raises(NotFoundError, match="did you mean 'MatMul_0'"):
        cases.choose([*patterns, "MatMul_1"])


def test_the_first_samples_of_files_are_taken_where_fewer_are_asked_for(
    chain: Path, shared: ArtifactBuilder, tmp_path: Path
) -> None:
    (tmp_path / "samples").mkdir()
    for number in range(3):
        np.savez(tmp_path / "samples" / f"{number}.npz", x=np.full((1, 4), number, np.float32))
    files = (str(tmp_path / "samples"),)
    cases = open_cases(chain, shared, files=files, most=2)
    assert [float(Tensors(sample.path)["x"][0, 0]) for sample in cases.samples] == [0.0, 1.0]
    assert cases.notes == ["the first 2 of the 3 samples in the files were taken"]
    for most in (None, 3):
        cases = open_cases(chain, shared, files=files, most=most)
        assert (len(cases.samples), cases.notes) == (3, [])
    with pytest.raises(UsageError, match="--samples 7: the files hold 3 only"):
        _ = open_cases(chain, shared, files=files, most=7).samples


@pytest.mark.parametrize(
    ("opset", "ir", "said"),
    [(99, 8, "which is newer than the onnx that is installed here knows"), (1, 3, "breaks a rule of ONNX: a in initializer")],
)  # fmt: skip
def test_another_opset_is_not_offered_where_it_cannot_help(
    opset: int, ir: int, said: str, tmp_path: Path, shared: ArtifactBuilder
) -> None:
    ends = [helper.make_tensor_value_info(name, 1, [4]) for name in ("x", "y")]
    nodes = [helper.make_node("Add", ["x", "a"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(np.ones(4, np.float32), "a")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(StepFailedError) as caught:
        _ = open_cases(tmp_path / "m.onnx", shared).full
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(f"another opset does not help: {tmp_path}/m.onnx ")
    assert said in caught.value.hint
    assert "assay model convert" not in caught.value.hint
