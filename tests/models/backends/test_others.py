"""onnx's evaluator, OpenVINO, the registry, and what is said where a library is missing."""

from __future__ import annotations

import csv
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from tests.models.backends import lab

from assay.errors import InfrastructureError, MissingExtraError, NotFoundError
from assay.models.backends.base import describe_cpu
from assay.models.backends.openvino_backend import explain
from assay.models.backends.registry import BACKENDS, build_backend
from assay.models.values.model import Ending, Step, Target
from assay.models.worker_process import WorkerProcess


@pytest.fixture(scope="module")
def benches(tmp_path_factory):
    workers = {
        name: WorkerProcess(Target(name, name), folder=str(tmp_path_factory.mktemp(name)))
        for name in ("reference", "openvino")
    }
    yield {name: lab.Bench(worker, tmp_path_factory.mktemp("bench")) for name, worker in workers.items()}
    for worker in workers.values():
        worker.close()


# ---------------------------------------------------------------- the registry


def test_an_unknown_back_end_gets_a_suggestion():
    with pytest.raises(NotFoundError, match=r"no back end named 'opnvino'\n  did you mean 'openvino'"):
        build_backend(Target("x", "opnvino"))


@pytest.mark.parametrize("place", ["no_such_module:X", "json:NoSuchClass"])
def test_a_class_of_ones_own_that_is_not_there(place):
    with pytest.raises(NotFoundError, match="it cannot be loaded"):
        build_backend(Target("x", place))


def test_every_name_leads_to_a_class():
    options = {"command": {"run": "x"}, "ssh": {"run": "x", "address": "b"}}
    for name in BACKENDS:
        backend = build_backend(Target(name, name, options.get(name, {})))
        assert backend.steps[-1] is Step.RUN
        assert Step.COMPILE in backend.steps


# ---------------------------------------------------------------- libraries that are missing


@pytest.mark.parametrize(
    ("backend", "library", "extra"),
    [
        ("ort", "onnxruntime", "models"),
        ("ort", "onnx", "models"),
        ("reference", "onnx", "models"),
        ("openvino", "openvino", "openvino"),
        ("iree", "iree", "iree"),
        ("iree", "iree.runtime", "iree"),
    ],
)
def test_a_missing_library_names_the_extra(tmp_path, backend, library, extra):
    """In a worker whose Python finds no such library."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Gone:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {library!r} or name.startswith({library!r} + '.'):\n"
        "            raise ModuleNotFoundError('No module named ' + name, name=name)\n"
        "sys.meta_path.insert(0, Gone())\n"
    )
    target = Target("mine", backend)
    with WorkerProcess(target, folder=str(tmp_path / "worker"), env={"PYTHONPATH": str(tmp_path)}) as worker:
        with pytest.raises(MissingExtraError) as caught:
            worker.identity()
        assert f"pip install 'assay[{extra}]'" in str(caught.value)
        assert "the target 'mine'" in str(caught.value)
        outcome = lab.Bench(worker, tmp_path).step(Step.COMPILE, "x")
    assert outcome.ending is Ending.ERROR
    assert f"assay[{extra}]" in outcome.hint


def test_a_library_that_is_broken_is_not_called_missing(tmp_path):
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino/__init__.py").write_text("import no_such_part")
    env = {"PYTHONPATH": str(tmp_path)}
    words = "openvino is installed and cannot be loaded: No module named 'no_such_part'"
    with (
        WorkerProcess(Target("ov", "openvino"), folder=str(tmp_path / "worker"), env=env) as worker,
        pytest.raises(InfrastructureError, match=words),
    ):
        worker.identity()


def test_a_file_of_that_name_in_the_working_directory_does_no_harm(tmp_path):
    (tmp_path / "onnx.py").write_text("raise SystemExit('the wrong one')")
    code = (
        "from assay.models.worker_process import WorkerProcess\nfrom assay.models.values.model import Target\n"
        "with WorkerProcess(Target('o', 'ort'), folder='w') as worker: print(worker.identity()['onnx'])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout[0].isdigit()


def test_the_processor_has_a_name():
    assert describe_cpu() == describe_cpu()
    assert len(describe_cpu().split()[-1]) == 12


# ---------------------------------------------------------------- onnx's evaluator


def test_the_evaluator_names_what_it_lacks(benches):
    outcome = benches["reference"].prepare(benches["reference"].save(lab.FOREIGN))
    assert outcome.ending is Ending.UNSUPPORTED
    assert outcome.message == "the reference evaluator has no implementation of my.ops:Foo (opset 17)"


def test_the_evaluator_in_the_middle_of_a_run(benches):
    bench = benches["reference"]
    made = bench.prepare(bench.save("g (float[n] a, int64[1] s) => (float[m] y) { y = Reshape(a, s) }"))
    outcome = bench.run(made.path, {"a": np.ones(4, np.float32), "s": np.array([3])}, ["y"])
    assert (outcome.step, outcome.ending) == (Step.RUN, Ending.ERROR)
    assert "reshape" in outcome.message.lower()


# ---------------------------------------------------------------- OpenVINO


def test_openvino_names_what_it_lacks(benches):
    outcome = benches["openvino"].prepare(benches["openvino"].save(lab.FOREIGN))
    assert outcome.message == "OpenVINO has no implementation of my.ops.Foo"


def test_openvino_computes_in_full_precision(benches):
    """By itself it would use bfloat16 where the processor has it: 8 bits instead of 24."""
    rng = np.random.default_rng(0)
    feed = {"a": rng.normal(size=(64, 64)).astype(np.float32), "b": rng.normal(size=(64, 64)).astype(np.float32)}
    text = "g (float[64,64] a, float[64,64] b) => (float[64,64] y) { y = MatMul(a, b) }"
    found = benches["openvino"].compute(text, feed)["y"]
    exact = feed["a"].astype(np.float64) @ feed["b"].astype(np.float64)
    assert np.abs(found - exact).max() < 1e-4
    assert benches["openvino"].worker.identity()["precision"] == "f32"


def test_openvino_gives_four_bits_a_byte_each(benches):
    model = lab.parse("g (float[3] a) => (int4[3] y) { y = Cast<to = 22>(a) }", opset=21, ir=10)
    found = benches["openvino"].compute(model, {"a": np.array([1, -2, 3], np.float32)})["y"]
    assert found.dtype == np.dtype(ml_dtypes.int4)
    assert found.astype(int).tolist() == [1, -2, 3]


def test_openvinos_counters(benches, tmp_path):
    bench = benches["openvino"]
    made = bench.prepare(bench.save(lab.MATMUL))
    feed = {"a": np.ones((2, 3), np.float32), "b": np.ones((3, 4), np.float32)}
    ran = bench.run(made.path, feed, ["y"], profile_dir=str(tmp_path))
    with open(ran.profiles[0], newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert any("MatMul" in row["op"] for row in rows)
    assert all(float(row["duration_us"]) >= 0 for row in rows)


def test_openvinos_words():
    text = "Exception from src/a.cpp:84:\nCheck 'x' failed at src/b.cpp:1:\nThe true reason\nmore"
    assert explain(RuntimeError(text), "cmd").message == "The true reason"
    assert explain(RuntimeError("Exception from src/a.cpp"), "cmd").message == "RuntimeError"
    text = "Exception from src/a.cpp:1:\nShapes do not fit\nWhile validating node 'opset1::Reshape Reshape_7'\n"
    error = explain(RuntimeError(text), "cmd")
    assert error.message == "Shapes do not fit (While validating node 'opset1::Reshape Reshape_7')", (
        "it names the operator"
    )
