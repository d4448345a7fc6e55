"""onnxruntime: its own words turned into outcomes, its options, its profile."""

from __future__ import annotations

import json
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.models.backends import backend_helpers

from assay.models.backends.ort import OrtBackend
from assay.models.graph.tensorfile import load_tensors
from assay.models.values.model import Step, StepEnding, Target
from assay.models.worker_process import WorkerProcess


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    with WorkerProcess(Target("ort", "ort"), folder=str(tmp_path_factory.mktemp("worker"))) as made:
        yield made


@pytest.fixture
def bench(worker, tmp_path):
    return backend_helpers.StepRunner(worker, tmp_path)


@pytest.mark.parametrize(
    ("text", "opset", "words"),
    [
        ("g (float[4] a) => (float[4] y) { y = Gelu(a) }", 17, "no implementation of Gelu of opset 17"),
        ("g (float[4] a) => (float[4] y) { y = my.ops.Foo(a) }", 17, "no implementation of my.ops:Foo of opset 17"),
        (
            "g (bfloat16[2,3] a, bfloat16[3,4] b) => (bfloat16[2,4] y) { y = MatMul(a, b) }",
            17,
            "no implementation of MatMul of opset 17",
        ),
        ("g (float[4] a) => (float[4] y) { y = Relu(a) }", 1, "no implementation of Relu of opset 1"),
    ],
)
def test_what_it_lacks_is_named(bench, text, opset, words):
    outcome = bench.prepare(bench.save(backend_helpers.parse(text, opset=opset)))
    assert (outcome.step, outcome.ending) == (Step.COMPILE, StepEnding.UNSUPPORTED)
    assert words in outcome.message
    assert ("assay model convert MODEL --opset 17" in outcome.hint) == (opset == 1)


@pytest.mark.parametrize("newer", [{"opset": 99}, {"ir": 99}])
def test_what_is_too_new(bench, newer):
    outcome = bench.prepare(bench.save(backend_helpers.parse(backend_helpers.MATMUL, **newer)))
    assert outcome.ending is StepEnding.UNSUPPORTED
    assert re.match(r"(opset|IR version) 99 is newer than onnxruntime ", outcome.message)
    assert ("convert" in outcome.hint) == ("opset" in newer)


@pytest.mark.parametrize(
    ("model", "feed", "ending", "message"),
    [
        (
            "g (float[n] a, int64[1] s) => (float[m] y) { y = Reshape(a, s) }",
            {"a": np.ones(4, np.float32), "s": np.array([3])},
            StepEnding.ERROR,
            "Reshape",
        ),
        (
            "g (float[4] a) => (seq(float[4]) y) { y = SequenceConstruct(a) }",
            {"a": np.ones(4, np.float32)},
            StepEnding.UNSUPPORTED,
            "y is a sequence",
        ),
        (
            "g (int4[2] a) => (float[2] y) { y = Cast<to = 1>(a) }",
            {"a": np.array([1, 2], ml_dtypes.int4)},
            StepEnding.UNSUPPORTED,
            "takes no int4 inputs",
        ),
    ],
)
def test_a_run_that_fails_reports_why(bench, model, feed, ending, message):
    made = bench.prepare(bench.save(backend_helpers.parse(model, opset=21, ir=10)))
    outcome = bench.run(made.path, feed, ["y"])
    assert (outcome.step, outcome.ending) == (Step.RUN, ending)
    assert message in outcome.message


@pytest.mark.parametrize(
    ("number", "dtype", "values"),
    [
        (16, ml_dtypes.bfloat16, [1.5, -2, 0]),
        (17, ml_dtypes.float8_e4m3fn, [1.5, -2, 0]),
        (22, ml_dtypes.int4, [1, -2, 0]),
        (21, ml_dtypes.uint4, [1, 2, 0]),
        (10, np.float16, [1.5, -2, 0]),
    ],
)
def test_small_types_come_out(bench, number, dtype, values):
    name = {16: "bfloat16", 17: "float8e4m3fn", 22: "int4", 21: "uint4", 10: "float16"}[number]
    model = backend_helpers.parse(f"g (float[3] a) => ({name}[3] y) {{ y = Cast<to = {number}>(a) }}", opset=21, ir=10)
    found = bench.compute(model, {"a": np.array(values, np.float32)})["y"]
    assert found.dtype == np.dtype(dtype)
    assert found.astype(float).tolist() == values


def test_small_types_and_texts_go_in(bench):
    array = np.array([1.5, -2], ml_dtypes.bfloat16)
    found = bench.compute("g (bfloat16[2] a) => (float[2] y) { y = Cast<to = 1>(a) }", {"a": array})
    assert found["y"].tolist() == [1.5, -2]
    texts = np.array(["größe", "b"], object)
    found = bench.compute("g (string[2] a) => (string[2] y) { y = Identity(a) }", {"a": texts})
    assert found["y"].tolist() == ["größe", "b"]


def test_optimisations_can_be_off(tmp_path):
    """x + 0 - 0 … is folded away, or it is not: the profile tells."""
    text = "g (float[4] a) => (float[4] y) { z = Constant<value = float[1] {0.0}>()  b = Identity(a)  y = Add(b, z) }"
    ran = {}
    for level in ("all", "none"):
        with WorkerProcess(Target("o", "ort", {"optimize": level}), folder=str(tmp_path / f"w{level}")) as worker:
            assert worker.identity()["optimize"] == level
            assert worker.identity()["cpu"], "kernels are chosen by it"
            bench = backend_helpers.StepRunner(worker, tmp_path / level)
            made = bench.prepare(bench.save(text))
            outcome = bench.run(
                made.path, {"a": np.ones(4, np.float32)}, ["y"], profile_dir=str(tmp_path / level / "p")
            )
            events = json.loads(Path(outcome.profiles[0]).read_text())
            ran[level] = {event["args"]["op_name"] for event in events if "op_name" in event.get("args", {})}
            assert load_tensors(outcome.path)["y"].tolist() == [1, 1, 1, 1]
    assert "Identity" in ran["none"]
    assert "Identity" not in ran["all"]


ORT = OrtBackend(Target("ort", "ort"))


def test_words_of_an_unknown_kind():
    error = ORT.explain(ValueError(""), "none")
    assert (error.message, error.ending) == ("ValueError", StepEnding.ERROR)
    error = ORT.explain(ValueError("[ONNXRuntimeError] : 1 : FAIL : first\nsecond"), "none")
    assert (error.message, error.stderr) == ("first", "first\nsecond")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "/src/utils.h:46 void f(int&) Opset 99 is under development. Current support for domain ai.onnx is till opset 26.",
            r"opset 99 is newer than onnxruntime [\d.]+ knows \(26\)",
            "convert the model: assay model convert MODEL --opset 26",
        ),
        (
            "Opset 44 is under development. Current official support for domain ai.onnx.ml is till opset 5.",
            r"opset 44 of ai\.onnx\.ml is newer than onnxruntime [\d.]+ knows \(5\)",
            "update onnxruntime, or export the model again for an older one",
        ),
        (
            "/src/model.cc:256 onnxruntime::Model::Model(x) Unsupported model IR version: 99, max supported IR version: 13",
            r"IR version 99 is newer than onnxruntime [\d.]+ knows \(13\)",
            "update onnxruntime, or export the model again for an older one",
        ),
    ],
)  # fmt: skip
def test_what_is_too_new_is_reported_in_our_words_first(text, message, hint):
    found = ORT.explain(RuntimeError(f"[ONNXRuntimeError] : 1 : FAIL : {text}"), "m")
    assert re.fullmatch(message, found.message)
    assert (found.ending, found.hint, found.stderr) == (StepEnding.UNSUPPORTED, hint, text)
