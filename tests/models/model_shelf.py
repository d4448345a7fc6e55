"""Models to try things on, and the reference that they are tried with."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import onnxruntime as ort

from assay.models.graph.graph import build_outline
from assay.models.graph.inputs import build_samples
from assay.models.graph.submodel import build_marked

Arrays = dict[str, Any]
EXAMPLES = Path(__file__).parents[2] / "examples" / "models" / "build_models.py"


def load_examples() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_models", EXAMPLES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parse(body: str, opset: int = 17, extra: str = "", weights: Mapping[str, Any] | None = None) -> onnx.ModelProto:
    """`g (float[2] x) => (float[2] y) { y = Relu(x) }`"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}{extra}]>\n{body}')
    tensors = (onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items())
    model.graph.initializer.extend(tensors)
    onnx.checker.check_model(model)
    return model


def run(model: onnx.ModelProto, feeds: Mapping[str, Any], engine: str = "ort") -> Arrays:
    """All outputs by name, without optimisations."""
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
    """Every tensor of a run by name."""
    return {**feeds, **run(build_marked(model), feeds, engine)}


def sample(model: onnx.ModelProto, **options: Any) -> Arrays:
    return build_samples(build_outline(model), model=model, **options)[0]


def assert_equal(one: Any, other: Any) -> None:
    one, other = np.asarray(one), np.asarray(other)
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    if one.dtype == object:
        assert list(one.flat) == list(other.flat)
    else:
        assert one.tobytes() == other.tobytes()
