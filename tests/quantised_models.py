"""A small network, its form after onnxruntime's quantiser, and faults in that form."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime import quantization
from tests.example_models import write_model

SHAPE = [1, 3, 8, 8]


def write_float(path: Path) -> Path:
    """x → Conv_0 → Relu_1 → MaxPool_2 → Conv_3 → Add_4 → Flatten_5 → Gemm_6 → y."""
    rng = np.random.default_rng(1)
    weights = {
        name: (rng.standard_normal(shape) * 0.3).astype(np.float32)
        for name, shape in {"w": (8, 3, 3, 3), "b": (8,), "v": (8, 8, 3, 3), "g": (128, 10), "h": (10,)}.items()
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["first"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["first"], ["bent"]),
        helper.make_node("MaxPool", ["bent"], ["less"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["less", "v"], ["second"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["second", "less"], ["sum"]),
        helper.make_node("Flatten", ["sum"], ["flat"]),
        helper.make_node("Gemm", ["flat", "g", "h"], ["y"]),
    ]
    return write_model(path, nodes, {"x": SHAPE}, {"y": [1, 10]}, weights)


class _Samples:
    def __init__(self) -> None:
        rng = np.random.default_rng(2)
        self._left = [{"x": rng.uniform(-1, 1, SHAPE).astype(np.float32)} for _ in range(8)]

    def get_next(self) -> Any:
        return self._left.pop() if self._left else None


def quantise(path: Path, target: Path, form: str = "QDQ") -> Path:
    logging.disable(logging.WARNING)
    try:
        if form == "dynamic":
            quantization.quantize_dynamic(path, target)
        else:
            quantization.quantize_static(path, target, _Samples(), quant_format=quantization.QuantFormat[form])
    finally:
        logging.disable(logging.NOTSET)
    return target


def rename(path: Path, target: Path) -> Path:
    """Write the file again with other names, also of its input and output."""
    model = onnx.load(path)
    names: dict[str, str] = {}
    for node in model.graph.node:
        node.name = ""
        node.input[:] = [names.setdefault(name, f"r{len(names)}") if name else "" for name in node.input]
        node.output[:] = [names.setdefault(name, f"r{len(names)}") for name in node.output]
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.name = names[value.name]
    del model.graph.value_info[:]
    onnx.save(model, target)
    return target


def plant(path: Path, target: Path, tensor: str, change: Any) -> Path:
    """Change the constant of this name by a function of its array."""
    model = onnx.load(path)
    for each in model.graph.initializer:
        if each.name == tensor:
            array = change(numpy_helper.to_array(each))
            each.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor))
    onnx.save(model, target)
    return target
