"""Models as files: what belongs to one, and what a damaged one is called."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.models.backends import lab
from tests.models.backends.lab import spec

from assay.models.backends.base import BackendError
from assay.models.backends.onnx_backend import (
    build_input_specs,
    build_output_specs,
    copy_model,
    find_external,
    find_model,
    load_outline,
)
from assay.models.values.tensors import TensorSpec


def test_external_data_is_found_and_comes_along(tmp_path):
    (tmp_path / "out").mkdir()
    lab.build_external(tmp_path / "m.onnx")
    assert find_external(str(tmp_path / "m.onnx")) == ["weights.bin"]
    path = copy_model(str(tmp_path / "m.onnx"), str(tmp_path / "out"))
    assert lab.files_below(path) == ["model.onnx", "weights.bin"]
    assert onnx.load(find_model(path)).graph.initializer[0].raw_data


def test_a_plain_model_is_one_file(tmp_path):
    onnx.save(lab.parse(lab.MATMUL), tmp_path / "m.onnx")
    (tmp_path / "out").mkdir()
    path = copy_model(str(tmp_path / "m.onnx"), str(tmp_path / "out"))
    assert path == find_model(path) == str(tmp_path / "out" / "model.onnx")


def test_external_data_that_is_missing_is_named(tmp_path):
    lab.build_external(tmp_path / "m.onnx")
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(BackendError, match=f"missing external data: {tmp_path}/weights.bin"):
        find_external(str(tmp_path / "m.onnx"))


@pytest.mark.parametrize("place", ["../secret.bin", "/etc/passwd", "a/../../b"])
def test_external_data_outside_of_the_folder_is_refused(tmp_path, place):
    model = lab.parse(lab.MATMUL)
    tensor = numpy_helper.from_array(np.zeros(3), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    model.graph.initializer.append(tensor)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(BackendError, match="outside of the model's folder"):
        find_external(str(tmp_path / "m.onnx"))


def test_external_data_of_a_sub_graph(tmp_path):
    model = lab.parse(
        "g (bool c) => (float[1] y) { y = If(c) <then_branch = t () => (float[1] a) { a = Constant<value = float[1] {1.0}>() }, else_branch = e () => (float[1] b) { b = Constant<value = float[1] {2.0}>() }> }"
    )
    branch = model.graph.node[0].attribute[0].g
    tensor = branch.node[0].attribute[0].t
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="deep/w.bin")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/w.bin").write_bytes(np.ones(1, np.float32).tobytes())
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "out").mkdir()
    assert lab.files_below(copy_model(str(tmp_path / "m.onnx"), str(tmp_path / "out"))) == ["deep/w.bin", "model.onnx"]


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x08"])
def test_what_is_no_model(tmp_path, content):
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(BackendError, match="is not an ONNX model"):
        load_outline(str(tmp_path / "m.onnx"))


def test_what_is_not_there(tmp_path):
    with pytest.raises(BackendError, match="there is no file"):
        load_outline(str(tmp_path / "m.onnx"))
    with pytest.raises(BackendError, match="is not an ONNX model"):
        load_outline(str(tmp_path))


def test_specs():
    model = lab.parse("g (bfloat16[n,3] a, int64 b, float[3] w) => (float16[n,3] y) { y = Foo(a, b, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), "w"))
    assert build_input_specs(model) == (spec("a", "bfloat16", "n", 3), spec("b", "int64"))
    assert build_output_specs(model) == (spec("y", "float16", "n", 3),)


def test_a_value_without_a_shape_or_type():
    model = lab.parse(lab.MATMUL)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert build_output_specs(model)[0].shape is None
    model.graph.output[0].ClearField("type")
    assert build_output_specs(model)[0].dtype == ""


def test_what_is_no_tensor_has_no_type_here():
    model = lab.parse(lab.MATMUL)
    name = model.graph.output[0].name
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_sequence_value_info(name, onnx.TensorProto.FLOAT, [2]))
    assert build_output_specs(model) == (TensorSpec(name, ""),)


def test_copies_leave_the_source_alone(tmp_path):
    onnx.save(lab.parse(lab.MATMUL), tmp_path / "m.onnx")
    (tmp_path / "out").mkdir()
    copy_model(str(tmp_path / "m.onnx"), str(tmp_path / "out"))
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "out"]
