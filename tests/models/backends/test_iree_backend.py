"""IREE in this process: what it refuses, in which words, and what it leaves behind."""

from __future__ import annotations

import csv
import os
import shlex
import subprocess
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import bfloat16
from onnx.reference import ReferenceEvaluator
from tests.example_models import load_examples
from tests.models.backends import backend_helpers

from assay.errors import UsageError
from assay.models.backends.base import BackendError
from assay.models.backends.iree_backend import (
    _to_view,
    choose_entry,
    explain,
    guess_op,
    name_mlir_type,
    parse_io,
    render_io,
    render_shape,
)
from assay.models.backends.registry import build_backend
from assay.models.graph.graph import build_outline
from assay.models.graph.tensorfile import load_tensors
from assay.models.values.model import Step, StepEnding, Target
from assay.models.values.tensors import TensorSpec
from assay.models.worker_process import WorkerProcess

MATMUL, ONES = backend_helpers.MATMUL, {"a": np.ones((2, 3), np.float32), "b": np.ones((3, 4), np.float32)}


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    with WorkerProcess(Target("iree", "iree"), folder=str(tmp_path_factory.mktemp("worker"))) as made:
        yield made


@pytest.fixture
def bench(worker, tmp_path):
    return backend_helpers.StepRunner(worker, tmp_path)


@contextmanager
def own_bench(tmp_path, **target):
    with WorkerProcess(Target("iree", "iree", **target), folder=str(tmp_path / "worker")) as worker:
        yield backend_helpers.StepRunner(worker, tmp_path)


def test_the_layer_that_iree_does_not_compile_is_a_recorded_error(bench):
    """A true defect of IREE 3.13, found in a model from PyPI; a later one may compile it, and then has to be right."""
    path = bench.make_folder() / "silero.onnx"
    backend_helpers.build_silero_layer(path)
    outcome = bench.prepare(path)
    assert outcome.step is Step.COMPILE
    if outcome.is_ok:  # pragma: no cover - not yet
        feed = {"x": np.random.default_rng(3).normal(size=(1, 64, 2)).astype(np.float32)}
        assert bench.run(outcome.path, feed, ["y"]).is_ok
        return
    assert outcome.ending in (StepEnding.ERROR, StepEnding.CRASH)
    assert "shape's dimension #2 to be 4, but found 3" in outcome.message
    assert "onnx.Conv" in outcome.stderr, "the whole diagnosis is kept"
    assert "iree-compile " in outcome.command


def test_an_old_opset_is_named_with_what_to_do(bench):
    text = 'g (float[1,1,2,2] a) => (float[1,1,4,4] y) { y = Upsample<mode = "nearest", scales = [1.0, 1.0, 2.0, 2.0]>(a) }'
    outcome = bench.prepare(bench.save(backend_helpers.parse(text, opset=7)))
    assert outcome.ending is StepEnding.UNSUPPORTED
    assert "IREE has no implementation of Upsample" in outcome.message
    assert "opset 7" in outcome.message
    assert outcome.hint == "convert the model: assay model convert MODEL --opset 17"


def test_what_fails_at_the_import(bench):
    """An operator newer than the model's opset, and a model that breaks the rules."""
    outcome = bench.prepare(bench.save("g (float[4] a) => (float[4] y) { y = Gelu(a) }"))
    assert (outcome.step, outcome.ending) == (Step.IMPORT, StepEnding.UNSUPPORTED)
    assert "Gelu" in outcome.message
    assert "iree-import-onnx " in outcome.command
    model = backend_helpers.parse(MATMUL)
    model.graph.node[0].input[0] = "nobody"
    outcome = bench.prepare(bench.save(model))
    assert (outcome.step, outcome.ending) == (Step.IMPORT, StepEnding.ERROR)
    assert "nobody" in outcome.message + outcome.stderr


@pytest.mark.parametrize(
    "flag", ["--no-such-flag", pytest.param("--iree-opt-level=O9", marks=pytest.mark.services("backends"))]
)
def test_a_flag_that_is_wrong(tmp_path, flag):
    with own_bench(tmp_path, compile_flags=(flag,)) as bench:
        outcome = bench.prepare(bench.save(MATMUL))
    assert (outcome.step, outcome.ending) == (Step.COMPILE, StepEnding.ERROR)
    assert flag.rpartition("=")[2] in outcome.message + outcome.stderr
    assert flag in outcome.command


@pytest.mark.parametrize(("option", "value"), [("device", "llvm-gpu"), ("driver", "remote")])
def test_an_unknown_device_is_a_usage_error(option, value):
    with pytest.raises(UsageError, match=f"target x: {option} = '{value}' is not known"):
        build_backend(Target("x", "iree", {option: value}))


def test_a_module_without_an_entry():
    with pytest.raises(BackendError, match="0 entry points"):
        choose_entry(["__init", "main$async"], "x.vmfb")
    with pytest.raises(BackendError, match="2 entry points, not one: a, b"):
        choose_entry(["a", "a$async", "b"], "x.vmfb")
    assert choose_entry(["main$async", "main", "__init"], "x.vmfb") == "main"


def test_mlir_is_text_that_a_person_can_read(bench):
    outcome = bench.step(Step.IMPORT, bench.save(MATMUL))
    assert Path(outcome.path).name == "model.mlir"
    assert 'torch.operator "onnx.MatMul"' in Path(outcome.path).read_text()


@pytest.mark.services("backends")
@pytest.mark.parametrize(
    "target",
    [
        {"compile_flags": ("--mlir-disable-threading",)},  # which only the program has
        {"options": {"driver": "local-task", "cpu": "host"}},
    ],
)
def test_flags_and_options_that_are_used(tmp_path, target):
    with own_bench(tmp_path, **target) as bench:
        assert bench.worker.identity()["driver"] == target.get("options", {}).get("driver", "local-sync")
        np.testing.assert_array_equal(bench.compute(MATMUL, ONES)["y"], np.full((2, 4), 3, np.float32))


@pytest.mark.services("backends")
def test_flags_reach_the_compiler(tmp_path):
    dump = tmp_path / "dump"
    with own_bench(tmp_path, compile_flags=(f"--iree-hal-dump-executable-files-to={dump}",)) as bench:
        assert bench.prepare(bench.save(MATMUL)).is_ok
    assert list(dump.iterdir())


@pytest.mark.services("backends")
def test_intermediate_representations_are_dumped(bench, tmp_path):
    outcome = bench.prepare(bench.save(MATMUL), ir_dir=str(tmp_path / "ir dump"))
    assert outcome.is_ok, outcome.stderr
    assert [name for name in backend_helpers.files_below(tmp_path / "ir dump") if name.endswith(".mlir")]
    assert "--mlir-print-ir-tree-dir" in outcome.command


@pytest.mark.services("backends")
def test_profiles_show_where_the_time_goes(bench, tmp_path):
    made = bench.prepare(bench.save(MATMUL), profile_dir=str(tmp_path / "c"))
    assert "Dispatches" in Path(made.profiles[0]).read_text()
    ran = bench.run(made.path, ONES, ["y"], profile_dir=str(tmp_path / "r"))
    assert [os.path.basename(path) for path in ran.profiles] == ["case_iree.ireeprof", "case_iree.csv"]
    with open(ran.profiles[1], newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows
    assert all(float(row["duration_us"]) >= 0 and "dispatch" in row["name"] for row in rows)
    assert rows[0]["op"] == "matmul"


@pytest.mark.services("backends")
def test_the_command_does_the_same_by_hand_also_with_small_floats(bench, tmp_path):
    made = bench.prepare(bench.save(MATMUL.replace("float[", "bfloat16[")))
    feed = {"a": np.ones((2, 3), bfloat16), "b": np.ones((3, 4), bfloat16)}
    ran = bench.run(made.path, feed, ["y"], profile_dir=str(tmp_path / "r"))
    assert ran.is_ok
    assert ran.profiles, ran.stderr
    assert "--input=2x3xbf16=@" in ran.command
    done = subprocess.run(shlex.split(ran.command), capture_output=True, text=True, check=True)
    assert "2x4xbf16=[3 3 3 3][3 3 3 3]" in done.stdout


def test_a_model_without_a_name_and_without_inputs(bench):
    model = backend_helpers.parse("g () => (float[3] y) { y = Constant<value = float[3] {1.0, 2.0, 3.0}>() }")
    model.graph.name = ""
    np.testing.assert_array_equal(bench.compute(model, {})["y"], [1, 2, 3])


@pytest.mark.services("backends")
def test_empty_tensors(bench):
    made = bench.prepare(bench.save("g (float[n,2] a) => (float[n,2] y) { y = Neg(a) }"))
    ran = bench.run(made.path, {"a": np.zeros((0, 2), np.float32)}, ["y"])
    assert ran.is_ok, ran.message
    assert load_tensors(ran.path)["y"].shape == (0, 2)


@pytest.mark.services("backends")
def test_a_cnn_of_25_layers(bench):
    model = load_examples().build_cnn()
    path = bench.save(model)
    assert len(build_outline(path).layers) == 25
    feed = {"image": np.random.default_rng(3).normal(size=(1, 3, 32, 32)).astype(np.float32)}
    expected = ReferenceEvaluator(str(path)).run(None, feed)[0]
    np.testing.assert_allclose(bench.compute(model, feed)["scores"], expected, rtol=1e-4)


def test_types_and_shapes_as_iree_names_them():
    types = {
        "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "i8", "uint8": "i8", "int64": "i64", "bool": "i1",
        "complex64": "complex<f32>", "float8_e4m3fn": "f8E4M3FN", "strange": "strange",
    }  # fmt: skip
    assert {dtype: name_mlir_type(dtype) for dtype in types} == types
    assert render_shape((1, 3), "float32") == "1x3xf32"
    assert render_shape((), "bool") == "i1"


def test_what_goes_in_and_out_is_written_down():
    inputs = (TensorSpec('a/"b"', "uint8", (1, None, "n")), TensorSpec("c", "", None))
    assert parse_io(render_io(inputs, inputs[:1])) == (inputs, inputs[:1])


@pytest.mark.parametrize(
    ("text", "opset", "ending", "words"),
    [
        ("x.mlir:3:1: error: bad thing\nnote: more", 17, StepEnding.ERROR, "bad thing"),
        ("bad thing", 9, StepEnding.ERROR, "bad thing (the model uses opset 9)"),
        ("", 17, StepEnding.ERROR, "IREE gave no reason"),
        (
            'error: failed to legalize operation \'torch.operator\' that was explicitly marked illegal: %0 = "torch.operator"(%a) <{name = "onnx.Foo"}>',
            21,
            StepEnding.UNSUPPORTED,
            "IREE has no implementation of Foo for these types and attributes (the model uses opset 21)",
        ),
    ],
)
def test_complaints_in_one_line(text, opset, ending, words):
    error = explain(text, opset, "cmd")
    assert (error.message, error.ending, error.command) == (words, ending, "cmd")
    assert bool(error.hint) == (opset < 17)


def test_dispatches_are_named_for_what_is_in_them():
    assert guess_op("main$async_dispatch_3_conv_16x32_f32") == "conv"
    assert guess_op("anything") == ""


@pytest.mark.parametrize("array", [np.array(["a", "b"], dtype=object), np.array(["a", "b"])])
def test_strings_are_called_strings(array):
    with pytest.raises(BackendError, match="IREE's runtime takes no strings") as caught:
        _to_view(None, array)
    assert caught.value.ending is StepEnding.UNSUPPORTED
