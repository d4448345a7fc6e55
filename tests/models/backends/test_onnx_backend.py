"""Models as files: what belongs to one, and what a damaged one is called."""

from __future__ import annotations

import csv
import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.models.backends import backend_helpers
from tests.models.backends.backend_helpers import spec

from assay.errors import InfrastructureError, MissingExtraError
from assay.models.backends.base import BackendError
from assay.models.backends.onnx_backend import (
    build_input_specs,
    build_output_specs,
    copy_model,
    find_external,
    load_outline,
)
from assay.models.backends.openvino_backend import OpenvinoBackend
from assay.models.backends.registry import build_backend
from assay.models.values.model import Step, StepEnding, Target
from assay.models.values.tensors import TensorSpec
from assay.models.worker_process import WorkerProcess


@pytest.mark.parametrize("place", ["../secret.bin", "/etc/passwd", "a/../../b"])
def test_external_data_outside_of_the_folder_is_refused(tmp_path, place):
    model = backend_helpers.parse(backend_helpers.MATMUL)
    tensor = numpy_helper.from_array(np.zeros(3), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    model.graph.initializer.append(tensor)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(BackendError, match="outside of the model's folder"):
        find_external(str(tmp_path / "m.onnx"))


def test_external_data_that_is_missing_is_named(tmp_path):
    backend_helpers.build_external(tmp_path / "m.onnx")
    assert find_external(str(tmp_path / "m.onnx")) == ["weights.bin"]
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(BackendError, match=f"missing external data: {tmp_path}/weights.bin"):
        find_external(str(tmp_path / "m.onnx"))


def test_external_data_of_a_sub_graph(tmp_path):
    model = backend_helpers.parse(
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
    copied = copy_model(str(tmp_path / "m.onnx"), str(tmp_path / "out"))
    assert backend_helpers.files_below(copied) == ["deep/w.bin", "model.onnx"]


@pytest.mark.parametrize("content", [b"no model", b"\x08\x08", None])
def test_what_is_no_model(tmp_path, content):
    """`None`: a folder. Files that are empty or not there: the contract of back ends."""
    path = tmp_path if content is None else tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BackendError, match="is not an ONNX model"):
        load_outline(str(path))


def test_specs():
    """What is not a tensor has no type here."""
    model = backend_helpers.parse("g (bfloat16[n,3] a, int64 b, float[3] w) => (float16[n,3] y) { y = Foo(a, b, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), "w"))
    assert build_input_specs(model) == (spec("a", "bfloat16", "n", 3), spec("b", "int64"))
    assert build_output_specs(model) == (spec("y", "float16", "n", 3),)
    (output,) = model.graph.output
    output.type.tensor_type.ClearField("shape")
    assert build_output_specs(model) == (TensorSpec("y", "float16", None),)
    output.ClearField("type")
    assert build_output_specs(model) == (TensorSpec("y", ""),)
    output.CopyFrom(onnx.helper.make_tensor_sequence_value_info("y", onnx.TensorProto.FLOAT, [2]))
    assert build_output_specs(model) == (TensorSpec("y", ""),)


@pytest.mark.parametrize(
    ("backend", "library", "extra"),
    [
        ("ort", "onnxruntime", "models"),
        ("reference", "onnx", "models"),
        ("openvino", "openvino", "openvino"),
        ("iree", "iree", "iree"),
        ("iree", "iree.runtime", "iree"),
    ],
)
def test_a_missing_library_names_the_extra(monkeypatch, backend, library, extra):
    for name in {library, *(each for each in sys.modules if each.startswith(f"{library}."))}:
        monkeypatch.setitem(sys.modules, name, None)  # the import of it fails
    with pytest.raises(MissingExtraError) as caught:
        build_backend(Target("mine", backend)).identity()
    assert f"pip install 'assay[{extra}]'" in str(caught.value)
    assert "the target 'mine'" in str(caught.value)


def test_a_missing_library_is_an_outcome_of_a_worker(tmp_path):
    """In a worker whose Python finds no such library."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['onnxruntime'] = None\n")
    target, env = Target("mine", "ort"), {"PYTHONPATH": str(tmp_path)}
    with WorkerProcess(target, folder=str(tmp_path / "worker"), env=env) as worker:
        with pytest.raises(MissingExtraError, match="assay\\[models\\]"):
            worker.identity()
        outcome = backend_helpers.StepRunner(worker, tmp_path).step(Step.COMPILE, "x")
    assert outcome.ending is StepEnding.ERROR
    assert "assay[models]" in outcome.hint


def test_a_library_that_is_broken_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino/__init__.py").write_text("import no_such_part")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [each for each in sys.modules if each.partition(".")[0] == "openvino"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        InfrastructureError, match="openvino is installed and cannot be loaded: No module named 'no_such_part'"
    ):
        build_backend(Target("ov", "openvino")).identity()


def test_a_file_of_that_name_in_the_working_directory_does_no_harm(tmp_path):
    (tmp_path / "onnx.py").write_text("raise SystemExit('the wrong one')")
    code = (
        "from assay.models.worker_process import WorkerProcess\nfrom assay.models.values.model import Target\n"
        "with WorkerProcess(Target('o', 'ort'), folder='w') as worker: print(worker.identity()['onnx'])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout[0].isdigit()


@pytest.fixture(scope="module")
def bench(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    with WorkerProcess(Target(request.param, request.param), folder=str(folder / "worker")) as worker:
        yield backend_helpers.StepRunner(worker, folder)


ONLY_REFERENCE, ONLY_OPENVINO = (
    pytest.mark.parametrize("bench", [name], indirect=True) for name in ("reference", "openvino")
)


@ONLY_REFERENCE
def test_the_evaluator_names_what_it_lacks_and_why_a_run_failed(bench):
    outcome = bench.prepare(bench.save(backend_helpers.FOREIGN))
    assert outcome.ending is StepEnding.UNSUPPORTED
    assert outcome.message == "the reference evaluator has no implementation of my.ops:Foo (opset 17)"
    made = bench.prepare(bench.save("g (float[n] a, int64[1] s) => (float[m] y) { y = Reshape(a, s) }"))
    outcome = bench.run(made.path, {"a": np.ones(4, np.float32), "s": np.array([3])}, ["y"])
    assert (outcome.step, outcome.ending) == (Step.RUN, StepEnding.ERROR)
    assert "reshape" in outcome.message.lower()


@ONLY_OPENVINO
def test_openvino_computes_in_full_precision_and_names_what_it_lacks(bench):
    """By itself it would use bfloat16 where the processor has it: 8 bits instead of 24."""
    rng = np.random.default_rng(0)
    feed = {"a": rng.normal(size=(64, 64)).astype(np.float32), "b": rng.normal(size=(64, 64)).astype(np.float32)}
    text = "g (float[64,64] a, float[64,64] b) => (float[64,64] y) { y = MatMul(a, b) }"
    assert bench.prepare(bench.save(backend_helpers.FOREIGN)).message == "OpenVINO has no implementation of my.ops.Foo"
    found = bench.compute(text, feed)["y"]
    exact = feed["a"].astype(np.float64) @ feed["b"].astype(np.float64)
    assert np.abs(found - exact).max() < 1e-4
    assert bench.worker.identity()["precision"] == "f32"


@ONLY_OPENVINO
def test_openvino_gives_four_bits_a_byte_each(bench):
    model = backend_helpers.parse("g (float[3] a) => (int4[3] y) { y = Cast<to = 22>(a) }", opset=21, ir=10)
    found = bench.compute(model, {"a": np.array([1, -2, 3], np.float32)})["y"]
    assert found.dtype == np.dtype(ml_dtypes.int4)
    assert found.astype(int).tolist() == [1, -2, 3]


@ONLY_OPENVINO
def test_openvinos_counters(bench, tmp_path):
    made = bench.prepare(bench.save(backend_helpers.MATMUL))
    feed = {"a": np.ones((2, 3), np.float32), "b": np.ones((3, 4), np.float32)}
    ran = bench.run(made.path, feed, ["y"], profile_dir=str(tmp_path))
    with open(ran.profiles[0], newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert any("MatMul" in row["op"] for row in rows)
    assert all(float(row["duration_us"]) >= 0 for row in rows)


def test_openvinos_words():
    explain = OpenvinoBackend(Target("ov", "openvino")).explain
    text = "Exception from src/a.cpp:84:\nCheck 'x' failed at src/b.cpp:1:\nThe true reason\nmore"
    assert explain(RuntimeError(text), "cmd").message == "The true reason"
    assert explain(RuntimeError("Exception from src/a.cpp"), "cmd").message == "RuntimeError"
    text = "Exception from src/a.cpp:1:\nShapes do not fit\nWhile validating node 'opset1::Reshape Reshape_7'\n"
    error = explain(RuntimeError(text), "cmd")
    assert error.message == "Shapes do not fit (While validating node 'opset1::Reshape Reshape_7')", (
        "it names the operator"
    )
