"""Weights in files of their own: found wherever a model has them, brought in, and named where they are not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.models.model_shelf import parse

from assay.errors import UsageError
from assay.models.graph.external import check_external, find_locations, is_external, load_external, walk_tensors
from assay.models.graph.graph import build_outline, load_model


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
