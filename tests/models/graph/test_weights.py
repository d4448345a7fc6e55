"""Weights in files of their own: found wherever a model has them, brought in, and named where they are not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tests.models.model_shelf import parse

from assay.errors import UsageError
from assay.models.graph.graph import build_outline, load_model
from assay.models.graph.weights import (
    KEPT_BYTES,
    build_skeleton,
    check_external,
    copy_fields,
    find_locations,
    is_external,
    load_external,
    load_skeleton,
    measure_tensor,
    walk_tensors,
)


def write(folder: Path, model: onnx.ModelProto) -> Path:
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


def write_external(folder: Path) -> tuple[Path, np.ndarray]:
    values = np.arange(2048, dtype=np.float32)
    model = parse("g (float[2048] x) => (float[2048] y) { y = Add(x, w) }", weights={"w": values})
    onnx.save_model(model, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    return folder / "m.onnx", values


def test_external_data_is_brought_in(tmp_path: Path) -> None:
    path, values = write_external(tmp_path)
    (tensor,) = load_model(path).graph.initializer
    assert numpy_helper.to_array(tensor).tolist() == values.tolist()
    assert not is_external(tensor)


def test_without_weights_external_data_is_not_looked_at(tmp_path: Path) -> None:
    path, _ = write_external(tmp_path)
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
    with pytest.raises(UsageError, match=r"m\.data is missing \(the tensor 'w'"):
        load_model(path)


def test_external_data_elsewhere_is_not_read(tmp_path: Path) -> None:
    path, _ = write_external(tmp_path)
    model = load_model(path, external=False)
    (tmp_path / "inner").mkdir()
    for pair in model.graph.initializer[0].external_data:
        pair.value = "../m.data" if pair.key == "location" else pair.value
    with pytest.raises(UsageError, match="cannot be read"):
        load_model(write(tmp_path / "inner", model))


# ---------------------------------------------------------------- where tensors stand


def build_tensor(name: str, location: str = "") -> TensorProto:
    tensor = numpy_helper.from_array(np.ones(1, np.float32), name)
    if location:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
    return tensor


def build_everywhere(location: str = "") -> onnx.ModelProto:
    """A model with a tensor in each place that can hold one; `location`: where the branch of its function has its own."""
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["b"], value=build_tensor("in_branch"))],
        "branch",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, [1])],
        [build_tensor("of_branch", location)],
    )
    many = helper.make_node("Many", [], ["m"], domain="ours", tensors=[build_tensor("one"), build_tensor("two")])
    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    function = helper.make_function("ours", "Choose", ["c"], ["y"], [choice], [helper.make_opsetid("", 17)])
    values, places = build_tensor("values"), helper.make_tensor("places", TensorProto.INT64, [1], [0])
    graph = helper.make_graph(
        [many],
        "g",
        [],
        [helper.make_tensor_value_info("m", TensorProto.FLOAT, [1])],
        [build_tensor("w")],
        sparse_initializer=[helper.make_sparse_tensor(values, places, [2])],
    )
    return helper.make_model(graph, functions=[function])


def test_tensors_are_found_wherever_they_stand() -> None:
    found = [tensor.name for tensor in walk_tensors(build_everywhere())]
    assert found == ["w", "values", "places", "one", "two", *(["of_branch", "in_branch"] * 2)]


def test_files_are_named_once_and_in_order() -> None:
    model = build_everywhere("z.bin")
    assert find_locations(model) == ["z.bin"]
    model.graph.initializer.append(build_tensor("v", "a.bin"))
    assert find_locations(model) == ["a.bin", "z.bin"]
    assert find_locations(build_everywhere()) == []


def test_what_lies_deep_is_brought_in_as_well(tmp_path: Path) -> None:
    (tmp_path / "z.bin").write_bytes(np.full(1, 7, np.float32).tobytes())
    model = build_everywhere("z.bin")
    load_external(model, str(tmp_path))
    assert find_locations(model) == []
    deep = [numpy_helper.to_array(tensor) for tensor in walk_tensors(model) if tensor.name == "of_branch"]
    assert [array.tolist() for array in deep] == [[7.0], [7.0]]


def test_every_file_that_lacks_is_named_at_once(tmp_path: Path) -> None:
    tensors = [build_tensor("a", "a.bin"), build_tensor("b", "b.bin"), build_tensor("c", "a.bin")]
    with pytest.raises(UsageError) as caught:
        check_external(tensors, str(tmp_path))
    assert caught.value.message.count(" is missing ") == 2
    (tmp_path / "a.bin").write_bytes(b"1234")
    (tmp_path / "b.bin").write_bytes(b"1234")
    check_external(tensors, str(tmp_path))


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
