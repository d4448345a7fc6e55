"""Loading, writing and outlining models: names from the graph alone, and one clear message for what is no model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tests.example_models import load_examples, parse, run

from assay.errors import InfrastructureError, UsageError
from assay.models.graph import graph
from assay.models.graph.graph import (
    KEPT_BYTES,
    build_outline,
    build_skeleton,
    check_external,
    copy_fields,
    find_locations,
    infer_specs,
    is_external,
    load_external,
    load_model,
    load_skeleton,
    measure_tensor,
    walk_tensors,
    write_model,
)
from assay.models.values.model import DEFAULT_GROUPS

CHAIN = (
    "g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {1, 2, 3, 4}, float low = {0}, float high = {6}>"
)


def write(folder: Path, model: onnx.ModelProto, name: str = "m.onnx") -> Path:
    (folder / name).write_bytes(model.SerializeToString())
    return folder / name


def labels(model: onnx.ModelProto, groups: graph.Groups = DEFAULT_GROUPS) -> list[tuple[str, ...]]:
    return [layer.ops for layer in build_outline(model, groups=groups).layers]


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not an ONNX model: the file is empty"),
        (b"just a text", "is not an ONNX model"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "no graph"),
    ],
)
def test_a_file_that_is_something_else_is_refused(
    tmp_path: Path, weights: bool, content: bytes, complaint: str
) -> None:
    path = tmp_path / "thing.onnx"
    path.write_bytes(content)
    for wrong, said in ((path, complaint), (tmp_path / "gone.onnx", "there is no model"), (tmp_path, "is a folder")):
        with pytest.raises(UsageError, match=said) as caught:
            load_model(wrong, weights=weights)
        assert str(wrong) in str(caught.value)


def test_what_is_written_is_what_is_loaded(tmp_path: Path) -> None:
    model = load_examples().build_cnn()
    write_model(model, tmp_path / "deep" / "m.onnx")
    assert load_model(tmp_path / "deep" / "m.onnx") == model
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["m.onnx"]
    with pytest.raises(InfrastructureError, match="cannot be written"):
        write_model(model, tmp_path / "deep")


def test_large_weights_go_next_to_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_parts_are_numbered_and_constants_are_none(tmp_path: Path) -> None:
    path = write(tmp_path, load_examples().build_matmul(), "example-matmul.onnx")
    outline = build_outline(path)
    assert outline.cases == ("example-matmul_layer_MatMul_0", "example-matmul_full_model")
    assert (outline.path, outline.opset) == (str(path), 19)
    model = parse("""m (float[2] x) => (float[2] y) {
        k = Constant<value = float[2] {3, 4}>()
        a = Relu(x)
        l = Constant<value_float = 1.0>()
        b = Add(a, k)
        y = Mul(b, l)
    }""")
    layers = build_outline(model).layers
    assert [layer.name for layer in layers] == ["m_layer_Relu_0", "m_layer_Add_1", "m_layer_Mul_2"]
    assert [layer.nodes for layer in layers] == [(1,), (3,), (4,)]
    assert [layer.inputs for layer in layers] == [("x",), ("a",), ("b",)]


def test_the_name_comes_from_the_file_or_the_graph() -> None:
    model = parse("inside (float[2] x) => (float[2] y) { k = my.Constant(x)  y = Add(x, k) }", extra=', "my": 1')
    assert labels(model) == [("Constant",), ("Add",)], "a constant of another domain is a part"
    assert build_outline(model).stem == "inside"
    model.graph.name = ""
    assert build_outline(model).stem == "model"


def test_the_example_models_have_their_parts_also_without_node_names(tmp_path: Path) -> None:
    examples = load_examples()
    counts = {name: len(build_outline(build()).layers) for name, build in examples.MODELS.items()}
    assert counts == {"example-matmul": 1, "example-cnn": 25, "example-attention": 49, "example-quantised": 14}
    ops = [layer.ops for layer in build_outline(examples.build_cnn()).layers]
    assert ops.count(("Conv", "Clip")) == 4
    assert {"BatchNormalization", "MaxPool", "AveragePool", "Add", "Gemm", "Softmax"} <= {op[0] for op in ops}
    model = examples.build_attention()
    named = build_outline(model).cases
    for node in model.graph.node:
        node.ClearField("name")
    assert build_outline(model).cases == named
    assert len(set(named)) == len(named) == 50
    assert build_outline(write(tmp_path, model, "example-attention.onnx")).cases == named


def test_a_group_becomes_one_part() -> None:
    model = parse(CHAIN + "{ a = Conv(x, w)  b = Clip(a, low, high)  y = Relu(b) }")
    assert labels(model) == [("Conv", "Clip"), ("Relu",)]
    first, second = build_outline(model).layers
    assert (first.name, first.label, first.nodes) == ("g_layer_Conv_0", "Conv_0", (0, 1))
    assert (first.inputs, first.outputs, second.number) == (("x",), ("b",), 1)
    assert labels(model, ()) == [("Conv",), ("Clip",), ("Relu",)]
    model = parse(CHAIN + "{ a = Conv(x, w)  b = Relu(a)  c = Conv(b, w)  d = Relu(c)  y = Neg(d) }")
    groups = (("Conv", "Relu"), ("Conv", "Relu", "Conv", "Relu"), ("Neg",))
    assert labels(model, groups) == [("Conv", "Relu", "Conv", "Relu"), ("Neg",)], "the longest one"
    assert labels(model, (("Conv", "Relu"),)) == [("Conv", "Relu"), ("Conv", "Relu"), ("Neg",)]


BRANCHES = """y = If (c) < then_branch = t () => (float[1,2,4,4] p) { p = Neg(a) },
    else_branch = e () => (float[1,2,4,4] q) { q = Neg(b) } > }"""


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("{ a = Conv(x, w)  k = Constant<value_float = 1.0>()  y = Clip(a, low, k) }", "Conv+Clip"),
        # another node reads what is in between, or is in between
        ("{ a = Conv(x, w)  b = Clip(a, low, high)  y = Add(a, b) }", "Conv Clip Add"),
        ("{ a = Conv(x, w)  c = Neg(a)  b = Clip(c, low, high)  y = Relu(b) }", "Conv Neg Clip Relu"),
        # it is an output of the graph
        ("{ a = Conv(x, w)  y = Clip(a, low, high) }", "Conv Clip"),
        # a sub-graph reads it
        (f"{{ a = Conv(x, w)  b = Clip(a, low, high)  c = Constant<value = bool {{1}}>() {BRANCHES}", "Conv Clip If"),
        # the Clip needs a bound that is computed after the Conv: together they would stand before what they need
        ("{ a = Conv(x, w)  m = ReduceMax<keepdims = 0>(x)  y = Clip(a, low, m) }", "Conv ReduceMax Clip"),
        (
            "{ m = ReduceMax<keepdims = 0>(x)  a = Conv(x, w)  n = Neg(x)  b = Clip(a, low, m)  y = Add(b, n) }",
            "ReduceMax Conv+Clip Neg Add",
        ),
    ],
)
def test_a_group_is_not_forced(body: str, parts: str) -> None:
    head = CHAIN.replace("y) <", "y, float[1,2,4,4] a) <") if parts == "Conv Clip" else CHAIN
    assert labels(parse(head + body)) == [tuple(part.split("+")) for part in parts.split()]


def test_outputs_are_what_others_read_and_all_of_a_dead_end() -> None:
    model = parse(
        """g (float[4] x) => (float[2] y, float[2] b) <int64[1] k = {2}> {
        a, b = Split(x)
        v, i = TopK(a, k)
        y = Relu(v)
        w, j = TopK(x, k)
    }""",
        opset=13,
    )
    assert [layer.outputs for layer in build_outline(model).layers] == [("a", "b"), ("v",), ("y",), ("w", "j")]


def test_the_outline_knows_types_and_open_dimensions() -> None:
    outline = build_outline(load_examples().build_attention())
    (tokens,) = outline.inputs
    assert (tokens.dtype, tokens.shape, tokens.is_static) == ("float32", ("batch", 8, 16), False)
    known = {spec.name: spec for spec in outline.tensors}
    assert known["shape_2"].dtype == "int64"
    assert known["shape_2"].shape == (3,)
    assert known["layernormalization_0"].shape == ("batch", 8, 16)
    assert "mixed_tokens" not in known


def test_an_operator_that_nothing_knows_does_not_stop_the_outline() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { a = Fancy(x)  y = Relu(a) }'
    )
    assert labels(model) == [("Fancy",), ("Relu",)]
    assert infer_specs(model)["x"].shape == (2,)


def write_external(folder: Path) -> tuple[Path, np.ndarray]:
    values = np.arange(2048, dtype=np.float32)
    model = parse("g (float[2048] x) => (float[2048] y) { y = Add(x, w) }", weights={"w": values})
    onnx.save_model(model, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    return folder / "m.onnx", values


def test_external_data_is_brought_in_where_weights_are_wanted(tmp_path: Path) -> None:
    path, values = write_external(tmp_path)
    (tensor,) = load_model(path).graph.initializer
    assert numpy_helper.to_array(tensor).tolist() == values.tolist()
    assert not is_external(tensor)
    (tmp_path / "m.data").unlink()
    assert is_external(load_model(path, weights=False).graph.initializer[0])
    assert is_external(load_model(path, external=False).graph.initializer[0])
    assert [layer.ops for layer in build_outline(path).layers] == [("Add",)]


def test_missing_or_cut_external_data_names_the_file(tmp_path: Path) -> None:
    path, _ = write_external(tmp_path)
    (tmp_path / "m.data").write_bytes(b"short")
    with pytest.raises(UsageError, match=r"m\.data has 5 bytes, 'w' ends at 8192"):
        load_model(path)
    (tmp_path / "m.data").unlink()
    with pytest.raises(UsageError, match=r"m\.data is missing \(it contains the tensor 'w'"):
        load_model(path)


@pytest.mark.parametrize(("key", "value"), [("offset", "abc"), ("offset", "-4"), ("length", "-5"), ("length", "1e3")])
def test_a_place_in_external_data_that_is_none_is_refused(tmp_path: Path, key: str, value: str) -> None:
    model = load_model(write_external(tmp_path)[0], external=False)
    next(pair for pair in model.graph.initializer[0].external_data if pair.key == key).value = value
    with pytest.raises(UsageError, match=f"'w' cannot be at .*'{value}'"):
        load_model(write(tmp_path, model))


def test_external_data_elsewhere_is_not_read(tmp_path: Path) -> None:
    path, _ = write_external(tmp_path)
    model = load_model(path, external=False)
    (tmp_path / "inner").mkdir()
    for pair in model.graph.initializer[0].external_data:
        pair.value = "../m.data" if pair.key == "location" else pair.value
    with pytest.raises(UsageError, match="cannot be read"):
        load_model(write(tmp_path / "inner", model))


LARGE = np.arange(KEPT_BYTES, dtype=np.float32).reshape(2, -1)
SHAPE = np.array([2, -1], np.int64)


def build_external(name: str, location: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def make_model(location: str = "") -> onnx.ModelProto:
    """A tensor in each place that can hold one, large but for `shape`; `location`: where branches have one of theirs."""

    def large(name: str) -> TensorProto:
        return numpy_helper.from_array(LARGE, name)

    inner = build_external("unused", location) if location else large("unused")
    constant = helper.make_node("Constant", [], ["fixed"], value=large("constant"))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, LARGE.shape) for name in ("fixed", "x", "y")]
    branch = helper.make_graph([constant], "branch", [], values[:1], [inner])
    choice = helper.make_node("If", ["choice"], ["chosen"], then_branch=branch, else_branch=branch)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    nodes = [
        constant,
        helper.make_node("Many", ["x"], ["many"], domain="local", tensors=[large("one"), large("two")]),
        helper.make_node("Mul", ["many", "weight"], ["product"]),
        helper.make_node("Reshape", ["product", "shape"], ["y"]),
        choice,
    ]
    graph = helper.make_graph(
        nodes, "g", values[1:2], values[2:], [large("weight"), numpy_helper.from_array(SHAPE, "shape")],
        sparse_initializer=[helper.make_sparse_tensor(large("values"), large("places"), [2])],
    )  # fmt: skip
    function = helper.make_function("local", "Choose", ["choice"], ["chosen"], [constant, choice], opsets[:1])
    return helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8)


def test_tensors_are_found_and_brought_in_wherever_they_stand(tmp_path: Path) -> None:
    found = [tensor.name for tensor in walk_tensors(make_model())]
    inside = ["constant", *["unused", "constant"] * 2]
    assert sorted(found) == sorted(["weight", "shape", "values", "places", "one", "two", *inside * 2])
    model = make_model("z.bin")
    model.graph.initializer.append(build_external("v", "a.bin"))
    assert find_locations(model) == ["a.bin", "z.bin"], "once and in order"
    for name in ("a.bin", "z.bin"):
        (tmp_path / name).write_bytes(np.full(1, 7, np.float32).tobytes())
    load_external(model, str(tmp_path))
    assert find_locations(model) == []
    deep = [numpy_helper.to_array(tensor) for tensor in walk_tensors(model) if tensor.name == "unused"]
    assert [array.tolist() for array in deep] == [[7.0]] * 4


def test_every_file_that_lacks_is_named_at_once(tmp_path: Path) -> None:
    tensors = [build_external(name, location) for name, location in (("a", "a.bin"), ("b", "b.bin"), ("c", "a.bin"))]
    with pytest.raises(UsageError) as caught:
        check_external(tensors, str(tmp_path))
    assert caught.value.message.count(" is missing ") == 2


def find_tensors(message: object) -> list[onnx.TensorProto]:
    """Every tensor inside a message, however deep."""
    found = []
    for _, value in message.ListFields():
        for part in value if hasattr(value, "extend") else [value]:
            if isinstance(part, onnx.TensorProto):
                found.append(part)
            elif hasattr(part, "ListFields"):
                found += find_tensors(part)
    return found


def test_large_tensors_are_emptied_wherever_they_are_and_everything_else_is_there(tmp_path: Path) -> None:
    model = make_model()
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    slim = load_skeleton(str(tmp_path / "m.onnx"))
    assert slim.ByteSize() < KEPT_BYTES < model.ByteSize() / 20
    before, after = find_tensors(model), find_tensors(slim)
    assert len(after) == len(before) == 16
    assert [(t.name, t.data_type, list(t.dims)) for t in after] == [(t.name, t.data_type, list(t.dims)) for t in before]
    (small,) = (tensor for tensor in after if tensor.raw_data)
    assert numpy_helper.to_array(small).tolist() == SHAPE.tolist()
    for tensor in (*before, *after):
        tensor.ClearField("raw_data")
    assert slim == model
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert load_skeleton(str(tmp_path / "m.onnx")) == model, "a small model is read as it is"


def test_a_model_in_memory_is_left_alone() -> None:
    model = make_model()
    model.graph.initializer.extend(numpy_helper.from_array(np.zeros(50_000, np.float32), f"w{n}") for n in range(3))
    before = model.SerializeToString()
    slim = build_skeleton(model)
    assert model.SerializeToString() == before
    assert [len(tensor.raw_data) for tensor in slim.graph.initializer] == [0, 16, 0, 0, 0]
    assert [list(tensor.dims) for tensor in slim.graph.initializer[2:]] == [[50_000]] * 3
    assert list(slim.graph.node) == list(model.graph.node)
    small = make_model()
    assert build_skeleton(small) is small
    copied = onnx.ModelProto()
    copy_fields(small, copied)
    assert copied == small
    copied.graph.node[0].name = "another"
    assert small.graph.node[0].name == ""


def test_a_file_that_was_cut_is_refused_wherever_it_was_cut(tmp_path: Path) -> None:
    content = make_model().SerializeToString()
    for size in range(0, len(content), 997):
        (tmp_path / "m.onnx").write_bytes(content[:size])
        with pytest.raises(ValueError, match="." if size else "empty"):
            load_skeleton(str(tmp_path / "m.onnx"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=st.binary(min_size=1, max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    try:
        model = load_skeleton(str(tmp_path / "m.onnx"))
    except ValueError:
        return
    assert isinstance(model, onnx.ModelProto)


def test_a_tensor_is_measured_without_being_serialised() -> None:
    assert measure_tensor(numpy_helper.from_array(np.zeros((3, 5), np.float64))) == 120
    assert measure_tensor(numpy_helper.from_array(np.array(["ab", "größe"], dtype=object))) == 2 + 7
    assert measure_tensor(helper.make_tensor("f", TensorProto.FLOAT, [4], [1, 2, 3, 4])) == 16
    assert measure_tensor(numpy_helper.from_array(np.zeros((0, 5), np.float32))) == 0


def test_names_that_are_not_text_and_unknown_types_are_reported(tmp_path: Path) -> None:
    model = parse("g (float[2] x) => (float[2] y) <float[2] weight = {1, 2}> { y = LeakyRelu(x) }")
    path = tmp_path / "m.onnx"
    for word in (b"LeakyRelu", b"weight"):
        path.write_bytes(model.SerializeToString().replace(word, b"\xff" * len(word)))
        with pytest.raises(UsageError, match=r"cannot be read: the (op_type|name) b'.*' is not UTF-8"):
            load_model(path)
        with pytest.raises(UsageError, match="is not UTF-8"):
            build_outline(path)
    model.graph.initializer[0].data_type = 99
    path.write_bytes(model.SerializeToString())
    with pytest.raises(
        UsageError, match="the tensor 'weight' has the type 99, which this version of onnx does not know"
    ):
        load_model(path)
