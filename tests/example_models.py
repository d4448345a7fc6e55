"""Small models whose parts a test can name, and requests for them."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.finished_study import until as until  # noqa: PLC0414 for others

from assay.models.graph.graph import build_outline
from assay.models.graph.inputs import build_samples
from assay.models.graph.submodel import build_marked
from assay.models.values.model import InputChoice, ModelRequest, Target

EXAMPLES = Path(__file__).parents[1] / "examples" / "models"
ORT = Target("ort", "ort")
UNOPTIMIZED = Target("ort:unoptimized", "ort", {"optimize": "none"})
LARGE = InputChoice(ranges={"x": (50.0, 90.0)})


def load_examples() -> ModuleType:
    return load_example("build_models")


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def write_chain(path: Path, weight: float = 2.0) -> Path:
    """Write x → MatMul → Add → Relu → y, with the names `product`, `sum` and `y`."""
    rng = np.random.default_rng(3)
    w = (rng.standard_normal((4, 4)) * weight).astype(np.float32)
    b = rng.standard_normal(4).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
    ]
    return write_model(path, nodes, {"x": ["batch", 4]}, {"y": ["batch", 4]}, {"w": w, "b": b})


def hide_library(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a library appear not to be installed in processes that are started later."""
    place = folder / "hidden" / name
    place.mkdir(parents=True)
    (place / "__init__.py").write_text(f"raise ModuleNotFoundError('No module named {name}', name={name!r})\n")
    known = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(place.parent), known])))


def picky(**options: Any) -> Target:
    return Target("picky", "picky_backend:Picky", options)


def write_model(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: dict[str, list[int | str]],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 17,
) -> Path:
    """Write a model whose inputs and outputs are floats."""

    def describe(values: dict[str, list[int | str]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values.items()]

    kept = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, path.stem, describe(inputs), describe(outputs), kept)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    onnx.save(model, path)
    return path


def write_long_chain(path: Path, count: int = 9) -> Path:
    """x → Abs → Neg → Tanh → Abs → … → y: tensors `t1`, `t2`, …; layers `Abs_0`, `Neg_1`, `Tanh_2`, …"""
    ops = ["Abs", "Neg", "Tanh"]
    names = ["x", *(f"t{number}" for number in range(1, count)), "y"]
    nodes = [helper.make_node(ops[at % 3], [names[at]], [names[at + 1]]) for at in range(count)]
    return write_model(path, nodes, {"x": ["batch", 4]}, {"y": ["batch", 4]})


def faulty(kind: str, at: str) -> Target:
    return Target("faulty", "faulty:FaultyBackend", {"fault": {"kind": kind, "at": at}})


def off_where_large(name: str = "off") -> Target:
    """Return a back end that is off by one per cent for numbers above 20, and right for ordinary ones."""
    return Target(name, "picky_backend:Scaled", {"at": "sum", "by": 1.01, "above": 20})


def request_for(model: Path, target: Target = ORT, **further: Any) -> ModelRequest:
    return ModelRequest(str(model), ORT, target, **further)


def ask(model: Path, tmp_path: Path, target: Target = UNOPTIMIZED, **further: Any) -> ModelRequest:
    return request_for(model, target, store=str(tmp_path / "store"), **further)


def write_old(folder: Path, opset: int = 9) -> Path:
    """Conv, BatchNormalization, Relu as they were in an old opset; names: `conv`, `normal`, `y`."""
    rng = np.random.default_rng(5)
    weights = {name: rng.standard_normal(4).astype(np.float32) for name in ("s", "b", "m")}
    weights["v"] = np.abs(rng.standard_normal(4)).astype(np.float32) + np.float32(0.1)
    weights["w"] = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["conv"]),
        helper.make_node("BatchNormalization", ["conv", "s", "b", "m", "v"], ["normal"]),
        helper.make_node("Relu", ["normal"], ["y"]),
    ]
    return write_model(folder / "old.onnx", nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 6, 6]}, weights, opset)


def write_coarse(path: Path) -> Path:
    """Write three products, each followed by a quantiser of few steps: `p1` → `q1` → `d1` → `p2` → … → `d3`."""
    rng = np.random.default_rng(11)
    weights: dict[str, np.ndarray] = {"s": np.float32(2.5), "z": np.int8(0)}
    nodes, given = [], "x"
    for number in (1, 2, 3):
        weights[f"w{number}"] = (rng.standard_normal((32, 32)) / 3).astype(np.float32)
        nodes += [
            helper.make_node("MatMul", [given, f"w{number}"], [f"p{number}"]),
            helper.make_node("QuantizeLinear", [f"p{number}", "s", "z"], [f"q{number}"]),
            helper.make_node("DequantizeLinear", [f"q{number}", "s", "z"], [f"d{number}"]),
        ]
        given = f"d{number}"
    return write_model(path, nodes, {"x": [512, 32]}, {"d3": [512, 32]}, weights)


# ---------------------------------------------------------------- models in memory, and a reference to try them with

Arrays = dict[str, Any]


def parse(body: str, opset: int = 17, extra: str = "", weights: Mapping[str, Any] | None = None) -> onnx.ModelProto:
    """`g (float[2] x) => (float[2] y) { y = Relu(x) }`"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}{extra}]>\n{body}')
    tensors = (onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items())
    model.graph.initializer.extend(tensors)
    onnx.checker.check_model(model)
    return model


def save(folder: Path, model: onnx.ModelProto | str, **further: Any) -> Path:
    """Save a model, or one that is written as text (see `parse`), and return its file."""
    onnx.save(parse(model, **further) if isinstance(model, str) else model, folder / "m.onnx")
    return folder / "m.onnx"


def run(model: onnx.ModelProto, feeds: Mapping[str, Any], engine: str = "ort") -> Arrays:
    """Run a model without optimisations; return all outputs by name."""
    names = [value.name for value in model.graph.output]
    if engine == "reference":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return dict(zip(names, onnx.reference.ReferenceEvaluator(model).run(None, dict(feeds)), strict=True))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(None, dict(feeds)), strict=True))


def activate(model: onnx.ModelProto, feeds: Mapping[str, Any], engine: str = "ort") -> Arrays:
    """Run a model; return every tensor by name."""
    return {**feeds, **run(build_marked(model), feeds, engine)}


def sample(model: onnx.ModelProto, **options: Any) -> Arrays:
    return build_samples(build_outline(model), model, InputChoice(**options))[0]


def assert_equal(one: Any, other: Any) -> None:
    one, other = np.asarray(one), np.asarray(other)
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    if one.dtype == object:
        assert list(one.flat) == list(other.flat)
    else:
        assert one.tobytes() == other.tobytes()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the process may end between opening and reading
        return False


def find_marked(mark: str) -> list[int]:
    """Find processes with this `NAME=VALUE` in their environment, without our own."""
    found = []
    for location in Path("/proc").iterdir():
        if location.name.isdecimal() and int(location.name) != os.getpid():
            with suppress(OSError):
                found += [int(location.name)] * (mark.encode() in (location / "environ").read_bytes().split(b"\0"))
    return found
