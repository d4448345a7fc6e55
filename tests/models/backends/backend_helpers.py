"""Small models, and a runner that takes a model through all steps of a target."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from tests.example_models import until
from tests.fork_server import Server

from assay.models.backends.onnx_backend import build_output_specs
from assay.models.graph.tensorfile import load_tensors, write_tensors
from assay.models.values.model import Job, Step, StepLimits, StepOutcome, Target
from assay.models.values.tensors import TensorSpec
from assay.models.worker_process import WorkerProcess

STAND_IN = str(Path(__file__).with_name("stand_in.py"))
_CALL, _PROFILE = (sys.executable, "-SE", STAND_IN), ["--profile", "{profile_dir}"]
COMMAND = {
    "compile": [*_CALL, "compile", "{model}", "{artifact}", _PROFILE, ["--ir", "{ir_dir}"]],
    "run": [*_CALL, "run", "{artifact}", "{input_flags}", "{output_flags}", _PROFILE],
    "input_flag": "--input={name}={dtype}=@{path}",
    "output_flag": "--output={name}=@{path}",
    "version": False,
}

MATMUL = "g (float[2,3] a, float[3,4] b) => (float[2,4] y) { y = MatMul(a, b) }"
SPLIT = """g (float[2] b, float[4] a) => (float[3] z, float[1] y, float[2] c)
    <int64[2] s = {1, 3}> { y, z = Split<axis = 0>(a, s)  c = Neg(b) }"""
INTEGERS = """g (int64[3] a, int64[3] b, uint8[3] u, bool[3] p) => (int64[3] s, uint8[3] v, bool[3] q)
    { s = Add(a, b)  v = Add(u, u)  q = Not(p) }"""
DYNAMIC = "g (float[batch,3] a, float[3,4] b) => (float[batch,4] y) { y = MatMul(a, b) }"
FOREIGN = "g (float[4] a) => (float[4] y) { y = my.ops.Foo(a) }"
ODD_NAMES = """g (float[2,2] a, float b) => (float[2,2] y, float z) { y = Add(a, b)  z = Neg(b) }"""


def parse(text, opset=17, ir=8):
    return onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["": {opset}, "my.ops": 1]> {text}')


def rename(model, **names):
    """ONNX's text knows only plain names; files know all."""
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*model.graph.input, *model.graph.output):
        value.name = names.get(value.name, value.name)
    return model


def build_external(path, seed=0):
    """A model whose weights are in a file next to it."""
    model = parse("g (float[2,64] a) => (float[2,64] y) { y = MatMul(a, w) }")
    weight = np.random.default_rng(seed).normal(size=(64, 64)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return weight


def build_silero_layer(path):
    """The one layer of silero_vad_v6.onnx that IREE 3.13 does not compile: kernel 3, stride 2, padding 1 on two steps."""
    rng = np.random.default_rng(0)
    model = parse(
        "g (float[1,64,2] x) => (float[1,64,1] y) { y = Conv<kernel_shape = [3], strides = [2], pads = [1, 1]>(x, w, b) }"
    )
    for name, shape in (("w", (64, 64, 3)), ("b", (64,))):
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    onnx.save(model, path)


@contextmanager
def serve_stand_in(folder):
    """The options of a target whose program is the stand-in, next to a server for it."""
    address, words = str(folder / "stand-in"), [STAND_IN, "serve", str(folder / "stand-in")]
    request = {"words": words, "cwd": "/", "env": dict(os.environ), "session": False}
    server = Server.get("pytest").start(request, [1, 2])
    until(lambda: os.path.exists(address), "the stand-in's server listens")
    yield {**COMMAND, "env": {"STAND_IN": address}}
    server.kill()
    server.wait()


@dataclass
class StepRunner:
    """A worker, and a folder for everything that is made with it."""

    worker: WorkerProcess
    folder: Path
    outcomes: list[StepOutcome] = field(default_factory=list)
    _count: int = 0

    def make_folder(self):
        self._count += 1
        place = self.folder / f"{self._count}"
        place.mkdir(parents=True)
        return place

    def save(self, model, name="model.onnx"):
        path = self.make_folder() / name
        onnx.save(parse(model) if isinstance(model, str) else model, path)
        return path

    def write(self, feed):
        place = self.make_folder()
        write_tensors(place, feed)
        return str(place)

    def step(self, step, source, limits=None, **more):
        for name in ("ir_dir", "profile_dir"):
            os.makedirs(more.get(name) or self.folder, exist_ok=True)
        job = Job(step, str(source), str(self.make_folder()), case="case", **more)
        outcome = self.worker.work(job, limits or StepLimits(compile_s=120, run_s=120))
        self.outcomes.append(outcome)
        return outcome

    def prepare(self, path, **more):
        """Every step before the run: the last outcome."""
        outcome = None
        source = path
        for step in self.worker.steps[:-1]:
            outcome = self.step(step, source, **(more if step is Step.COMPILE else {}))
            if not outcome.is_ok:
                break
            source = outcome.path
        return outcome

    def run(self, artifact, feed, outputs, **more):
        return self.step(Step.RUN, artifact, inputs=self.write(feed), outputs=tuple(outputs), **more)

    def compute(self, model, feed, **more):
        """All steps: what comes out."""
        proto = parse(model) if isinstance(model, str) else model
        names = [value.name for value in proto.graph.output]
        made = self.prepare(self.save(proto))
        assert made.is_ok, (made.message, made.stderr)
        ran = self.run(made.path, feed, names, output_specs=build_output_specs(proto), **more)
        assert ran.is_ok, (ran.message, ran.stderr)
        return load_tensors(ran.path)


def write_program(path, text="#!/bin/sh\necho hello\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def files_below(folder):
    return sorted(
        os.path.relpath(os.path.join(place, name), folder) for place, _, names in os.walk(folder) for name in names
    )


def target_of(name, backend, **options):
    return Target(name, backend, options)


def spec(name, dtype, *shape):
    return TensorSpec(name, dtype, tuple(shape))
