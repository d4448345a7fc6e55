"""Loading, writing and outlining models: names from the graph alone, and one clear message for what is no model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.models.model_shelf import load_examples, parse, run

from assay.errors import InfrastructureError, UsageError
from assay.models.graph import graph
from assay.models.values.model import DEFAULT_GROUPS
from assay.models.graph.graph import build_outline, infer_specs, load_model, write_model

CHAIN = (
    "g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {1, 2, 3, 4}, float low = {0}, float high = {6}>"
)


def write(folder: Path, model: onnx.ModelProto, name: str = "m.onnx") -> Path:
    (folder / name).write_bytes(model.SerializeToString())
    return folder / name


def labels(model: onnx.ModelProto, groups: graph.Groups = DEFAULT_GROUPS) -> list[tuple[str, ...]]:
    return [layer.ops for layer in build_outline(model, groups=groups).layers]


# ---------------------------------------------------------------- what is no model


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not an ONNX model: the file is empty"),
        (b"just a text", "is not an ONNX model"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "is not an ONNX model"),
        (b"\x08\x07", "no graph"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "no graph"),
    ],
)
def test_a_file_that_is_something_else_is_refused(
    tmp_path: Path, weights: bool, content: bytes, complaint: str
) -> None:
    path = tmp_path / "thing.onnx"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=complaint) as caught:
        load_model(path, weights=weights)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("weights", [True, False])
def test_a_missing_file_and_a_folder_are_told(tmp_path: Path, weights: bool) -> None:
    with pytest.raises(UsageError, match="there is no model"):
        load_model(tmp_path / "gone.onnx", weights=weights)
    with pytest.raises(UsageError, match="is a folder"):
        load_model(tmp_path, weights=weights)


# ---------------------------------------------------------------- writing


def test_what_is_written_is_what_is_loaded(tmp_path: Path) -> None:
    model = load_examples().build_cnn()
    write_model(model, tmp_path / "deep" / "m.onnx")
    assert load_model(tmp_path / "deep" / "m.onnx") == model
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["m.onnx"]


def test_large_weights_go_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "_EXTERNAL_BYTES", 1000)
    model = load_examples().build_cnn()
    before = model.SerializeToString(deterministic=True)
    for _ in range(2):  # the second time over the first
        write_model(model, tmp_path / "m.onnx")
    assert model.SerializeToString(deterministic=True) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert (tmp_path / "m.onnx").stat().st_size < len(before) < (tmp_path / "m.onnx.data").stat().st_size + 10_000
    feeds = {"image": np.ones((1, 3, 32, 32), np.float32)}
    assert run(load_model(tmp_path / "m.onnx"), feeds)["scores"].tolist() == run(model, feeds)["scores"].tolist()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").mkdir()
    with pytest.raises(InfrastructureError, match="cannot be written"):
        write_model(load_examples().build_matmul(), tmp_path / "m.onnx")


# ---------------------------------------------------------------- names


def test_the_seeds_example_has_the_seeds_names(tmp_path: Path) -> None:
    path = write(tmp_path, load_examples().build_matmul(), "example-matmul.onnx")
    outline = build_outline(path)
    assert outline.cases == ("example-matmul_layer_MatMul_0", "example-matmul_full_model")
    assert (outline.path, outline.opset) == (str(path), 19)


def test_parts_are_numbered_and_constants_are_none() -> None:
    model = parse("""g (float[2] x) => (float[2] y) {
        k = Constant<value = float[2] {3, 4}>()
        a = Relu(x)
        l = Constant<value_float = 1.0>()
        b = Add(a, k)
        y = Mul(b, l)
    }""")
    names = [layer.name for layer in build_outline(model, stem="m").layers]
    assert names == ["m_layer_Relu_0", "m_layer_Add_1", "m_layer_Mul_2"]
    assert [layer.nodes for layer in build_outline(model).layers] == [(1,), (3,), (4,)]
    assert [layer.inputs for layer in build_outline(model).layers] == [("x",), ("a",), ("b",)]


def test_a_constant_of_another_domain_is_a_part() -> None:
    model = parse("g (float[2] x) => (float[2] y) { k = my.Constant(x)  y = Add(x, k) }", extra=', "my": 1')
    assert labels(model) == [("Constant",), ("Add",)]


def test_the_name_comes_from_the_file_or_the_graph() -> None:
    model = parse("inside (float[2] x) => (float[2] y) { y = Relu(x) }")
    assert build_outline(model).stem == "inside"
    model.graph.name = ""
    assert build_outline(model).stem == "model"
    assert build_outline(model, stem="chosen").full_name == "chosen_full_model"


def test_names_are_stable_and_unique_also_without_node_names(tmp_path: Path) -> None:
    model = load_examples().build_attention()
    named = build_outline(model).cases
    for node in model.graph.node:
        node.ClearField("name")
    assert build_outline(model).cases == named
    assert len(set(named)) == len(named) == 50
    assert build_outline(write(tmp_path, model, "example-attention.onnx")).cases == named


def test_the_example_models_have_their_parts() -> None:
    examples = load_examples()
    counts = {name: len(build_outline(build()).layers) for name, build in examples.MODELS.items()}
    assert counts == {"example-matmul": 1, "example-cnn": 25, "example-attention": 49, "example-quantised": 14}
    ops = [layer.ops for layer in build_outline(examples.build_cnn()).layers]
    assert ops.count(("Conv", "Clip")) == 4
    assert {"BatchNormalization", "MaxPool", "AveragePool", "Add", "Gemm", "Softmax"} <= {op[0] for op in ops}


# ---------------------------------------------------------------- groups


def test_a_group_becomes_one_part() -> None:
    model = parse(CHAIN + "{ a = Conv(x, w)  b = Clip(a, low, high)  y = Relu(b) }")
    assert labels(model) == [("Conv", "Clip"), ("Relu",)]
    first, second = build_outline(model, stem="m").layers
    assert (first.name, first.label, first.nodes) == ("m_layer_Conv_0", "Conv_0", (0, 1))
    assert (first.inputs, first.outputs, second.number) == (("x",), ("b",), 1)
    assert labels(model, ()) == [("Conv",), ("Clip",), ("Relu",)]


def test_constants_between_do_not_part_a_group() -> None:
    body = "{ a = Conv(x, w)  k = Constant<value_float = 1.0>()  y = Clip(a, low, k) }"
    assert labels(parse(CHAIN + body)) == [("Conv", "Clip")]


def test_the_longest_group_wins() -> None:
    model = parse(CHAIN + "{ a = Conv(x, w)  b = Relu(a)  c = Conv(b, w)  d = Relu(c)  y = Neg(d) }")
    groups = (("Conv", "Relu"), ("Conv", "Relu", "Conv", "Relu"), ("Neg",))
    assert labels(model, groups) == [("Conv", "Relu", "Conv", "Relu"), ("Neg",)]
    assert labels(model, (("Conv", "Relu"),)) == [("Conv", "Relu"), ("Conv", "Relu"), ("Neg",)]


@pytest.mark.parametrize(
    "body",
    [
        "{ a = Conv(x, w)  b = Clip(a, low, high)  y = Add(a, b) }",  # somebody else reads what is in between
        "{ a = Conv(x, w)  b = Clip(a, low, high)  c = Neg(a)  y = Sub(b, c) }",
        "{ a = Conv(x, w)  c = Neg(a)  b = Clip(c, low, high)  y = Relu(b) }",  # another node is in between
    ],
)
def test_a_group_is_not_forced(body: str) -> None:
    assert ("Conv", "Clip") not in labels(parse(CHAIN + body))


def test_an_output_of_the_graph_is_not_hidden_in_a_group() -> None:
    inside = CHAIN.replace("y) <", "y, float[1,2,4,4] a) <")
    assert labels(parse(inside + "{ a = Conv(x, w)  y = Clip(a, low, high) }")) == [("Conv",), ("Clip",)]


def test_what_a_subgraph_reads_is_not_hidden_in_a_group() -> None:
    body = """{ a = Conv(x, w)  b = Clip(a, low, high)  c = Constant<value = bool {1}>()
        y = If (c) < then_branch = t () => (float[1,2,4,4] p) { p = Neg(a) }, else_branch = e () => (float[1,2,4,4] q) { q = Neg(b) } > }"""
    assert labels(parse(CHAIN + body)) == [("Conv",), ("Clip",), ("If",)]


def test_parts_keep_the_order_of_computation() -> None:
    """The Clip needs a bound that is computed after the Conv: together they would stand before what they need."""
    late = "{ a = Conv(x, w)  m = ReduceMax<keepdims = 0>(x)  y = Clip(a, low, m) }"
    assert labels(parse(CHAIN + late)) == [("Conv",), ("ReduceMax",), ("Clip",)]
    early = "{ m = ReduceMax<keepdims = 0>(x)  a = Conv(x, w)  n = Neg(x)  b = Clip(a, low, m)  y = Add(b, n) }"
    assert labels(parse(CHAIN + early)) == [("ReduceMax",), ("Conv", "Clip"), ("Neg",), ("Add",)]


# ---------------------------------------------------------------- ends of layers


def test_outputs_are_what_others_read() -> None:
    model = parse(
        """g (float[4] x) => (float[2] y, float[2] b) <int64[1] k = {2}> {
        a, b = Split(x)
        v, i = TopK(a, k)
        y = Relu(v)
    }""",
        opset=13,
    )
    split, top, _ = build_outline(model).layers
    assert split.outputs == ("a", "b")
    assert top.outputs == ("v",)  # nobody asks for the indices


def test_a_dead_end_shows_all_that_it_makes() -> None:
    model = parse("g (float[4] x) => (float[4] y) <int64[1] k = {2}> { y = Relu(x)  v, i = TopK(x, k) }")
    assert build_outline(model).layers[1].outputs == ("v", "i")


def test_inputs_left_out_are_no_names() -> None:
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in ("x", "high", "y")]
    model = helper.make_model(helper.make_graph([node], "g", values[:2], values[2:]))
    assert build_outline(model).layers[0].inputs == ("x", "high")


def test_a_subgraph_is_one_part_with_all_it_reads() -> None:
    model = parse("""g (float[2] x, bool c) => (float[2] y) { a = Relu(x)  y = If (c) <
        then_branch = t () => (float[2] p) { i = Neg(a)  p = Exp(i) }, else_branch = e () => (float[2] q) { q = Neg(x) } > }""")
    relu, branch = build_outline(model).layers
    assert relu.ops == ("Relu",)
    assert branch.inputs == ("c", "a", "x")


# ---------------------------------------------------------------- types


def test_the_outline_knows_types_and_open_dimensions() -> None:
    outline = build_outline(load_examples().build_attention())
    (tokens,) = outline.inputs
    assert (tokens.dtype, tokens.shape, tokens.is_static) == ("float32", ("batch", 8, 16), False)
    known = {spec.name: spec for spec in outline.tensors}
    assert known["shape_2"].dtype == "int64"
    assert known["shape_2"].shape == (3,)
    assert known["layernormalization_0"].shape == ("batch", 8, 16)
    assert "mixed_tokens" not in known


def test_an_operator_that_nobody_knows_does_not_stop_the_outline() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { a = Fancy(x)  y = Relu(a) }'
    )
    assert labels(model) == [("Fancy",), ("Relu",)]
    assert infer_specs(model)["x"].shape == (2,)


def test_an_outline_reads_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, load_examples().build_cnn())

    def refuse(*_: object) -> None:
        raise AssertionError("the whole model was loaded")

    monkeypatch.setattr(graph, "_load_whole", refuse)
    assert len(build_outline(path).layers) == 25


def test_layers_know_their_nodes_own_names(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["r"], name="/enc/relu"), helper.make_node("Abs", ["r"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]))
    first, second = build_outline(model).layers
    assert (first.node_names, first.title) == (("/enc/relu",), "/enc/relu")
    assert (second.node_names, second.title) == (("",), "")
