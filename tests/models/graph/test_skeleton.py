"""A model without its weights says the same of itself; a file that is something else is refused, whatever it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from assay.models.graph.skeleton import KEPT_BYTES, build_skeleton, copy_fields, load_skeleton, measure_tensor

LARGE = np.arange(KEPT_BYTES, dtype=np.float32).reshape(2, -1)
SHAPE = np.array([2, -1], np.int64)


def make_model() -> onnx.ModelProto:
    """Large tensors wherever one can be: initialisers, a Constant node, a branch of an If, a function."""
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["inner"], value=numpy_helper.from_array(LARGE))],
        "branch",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, LARGE.shape)],
        [numpy_helper.from_array(LARGE, "unused")],
    )
    constant = helper.make_node("Constant", [], ["fixed"], value=numpy_helper.from_array(LARGE))
    nodes = [
        constant,
        helper.make_node("Add", ["x", "fixed"], ["sum"]),
        helper.make_node("Mul", ["sum", "weight"], ["product"]),
        helper.make_node("Reshape", ["product", "shape"], ["flat"]),
        helper.make_node("If", ["choice"], ["chosen"], then_branch=branch, else_branch=branch),
        helper.make_node("Large", ["flat", "chosen"], ["y"], domain="local"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, LARGE.shape),
        helper.make_tensor_value_info("choice", TensorProto.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, LARGE.shape)]
    weights = [numpy_helper.from_array(LARGE, "weight"), numpy_helper.from_array(SHAPE, "shape")]
    function = helper.make_function(
        "local", "Large", ["a", "b"], ["c"],
        [helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(LARGE)), helper.make_node("Sum", ["a", "b", "k"], ["c"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8)


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


def test_large_tensors_are_emptied_wherever_they_are(tmp_path: Path) -> None:
    model = make_model()
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    slim = load_skeleton(str(tmp_path / "m.onnx"))
    assert slim.ByteSize() < KEPT_BYTES < model.ByteSize() / 20
    before, after = find_tensors(model), find_tensors(slim)
    assert len(after) == len(before) == 8
    assert [(t.name, t.data_type, list(t.dims)) for t in after] == [(t.name, t.data_type, list(t.dims)) for t in before]
    (small,) = (tensor for tensor in after if tensor.raw_data)
    assert numpy_helper.to_array(small).tolist() == SHAPE.tolist()


def test_everything_else_is_there(tmp_path: Path) -> None:
    model = make_model()
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    slim = load_skeleton(str(tmp_path / "m.onnx"))
    for tensor in (*find_tensors(model), *find_tensors(slim)):
        tensor.ClearField("raw_data")
    assert slim == model


def test_a_small_model_is_read_as_it_is(tmp_path: Path) -> None:
    model = make_model()
    for tensor in find_tensors(model):
        tensor.ClearField("raw_data")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert load_skeleton(str(tmp_path / "m.onnx")) == model


def test_a_model_in_memory_is_left_alone() -> None:
    model = make_model()
    model.graph.initializer.extend(numpy_helper.from_array(np.zeros(50_000, np.float32), f"w{n}") for n in range(3))
    before = model.SerializeToString()
    slim = build_skeleton(model)
    assert model.SerializeToString() == before
    assert [len(tensor.raw_data) for tensor in slim.graph.initializer] == [0, 16, 0, 0, 0]
    assert [list(tensor.dims) for tensor in slim.graph.initializer[2:]] == [[50_000]] * 3
    assert list(slim.graph.node) == list(model.graph.node)
    assert build_skeleton(slim) == slim
    small = make_model()
    assert build_skeleton(small) is small


def test_copying_field_by_field_copies_all() -> None:
    model = make_model()
    copied = onnx.ModelProto()
    copy_fields(model, copied)
    assert copied == model
    copied.graph.node[0].name = "another"
    assert model.graph.node[0].name == ""


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    with pytest.raises(ValueError, match="empty"):
        load_skeleton(str(tmp_path / "m.onnx"))


def test_a_file_that_was_cut_is_refused_wherever_it_was_cut(tmp_path: Path) -> None:
    content = make_model().SerializeToString()
    path = tmp_path / "m.onnx"
    refused = 0
    for size in range(1, len(content), 997):
        path.write_bytes(content[:size])
        try:
            load_skeleton(str(path))
        except ValueError:
            refused += 1
    assert refused == len(range(1, len(content), 997))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
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
