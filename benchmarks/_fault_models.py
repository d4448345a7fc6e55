"""Models for model_faults.py that no package ships: small outputs and cancelling sums, old opsets, quantised ones.

All weights and inputs are seeded. The quantised models are made by onnxruntime's own quantiser out of given ones, with
random samples for the calibration, as a user would make them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

SEED = 7


def write_small(folder: Path) -> dict[str, Path]:
    """Sums whose terms cancel, and tensors of small numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    return {name: build(folder / f"{name}.onnx") for name, build in SMALL.items()}


def _write(path: Path, nodes: list[Any], inputs: dict[str, list[int]], outputs: list[str], weights: dict[str, Any],
           opset: int = 17) -> Path:  # fmt: skip
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8 if opset < 19 else 10)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def _draw(seed: int, *shape: int, size: float = 1.0) -> Any:
    import numpy as np

    return (np.random.default_rng(SEED + seed).standard_normal(shape) * size).astype(np.float32)


def _node(op: str, inputs: str, output: str, **attributes: Any) -> Any:
    from onnx import helper

    return helper.make_node(op, inputs.split(), [output], **attributes)


def _scalar(value: float) -> Any:
    import numpy as np

    return np.array(value, np.float32)


def write_int4(folder: Path) -> dict[str, Path]:
    """Products with weights of four bits in blocks, and normalisations between them."""
    folder.mkdir(parents=True, exist_ok=True)
    return {name: _write_int4(folder / f"{name}.onnx", *sizes) for name, sizes in INT4.items()}


INT4 = {"int4": (64, 96, 8), "int4-wide": (256, 64, 16)}


def _write_int4(path: Path, width: int, hidden: int, rows: int) -> Path:
    import ml_dtypes
    import numpy as np

    rng = np.random.default_rng(width)
    sizes = ((width, hidden), (hidden, width), (width, 32))
    nodes, weights, given = [], {}, "x"
    for number, (fan_in, fan_out) in enumerate(sizes):
        weights |= {
            f"w{number}": rng.integers(-8, 8, (fan_in, fan_out)).astype(ml_dtypes.int4),
            f"s{number}": rng.uniform(0.01, 0.03, (fan_in // 32, fan_out)).astype(np.float32),
            f"g{number}": rng.uniform(0.5, 1.5, fan_in).astype(np.float32),
            f"b{number}": _draw(number, fan_in, size=0.1),
        }
        nodes += [
            _node("LayerNormalization", f"{given} g{number} b{number}", f"n{number}"),
            _node("DequantizeLinear", f"w{number} s{number}", f"d{number}", axis=0, block_size=32),
            _node("MatMul", f"n{number} d{number}", f"m{number}"),
        ]
        given = f"m{number}"
    return _write(path, nodes, {"x": [rows, width]}, [given], weights, opset=21)


def _write_tiny_mlp(path: Path) -> Path:
    """Every tensor behind the first product is about 1e-7 or less."""
    nodes = [
        _node("MatMul", "x a", "product"), _node("Add", "product b", "sum"), _node("Relu", "sum", "positive"),
        _node("MatMul", "positive c", "second"), _node("Mul", "second k", "scaled"), _node("Neg", "scaled", "y"),
    ]  # fmt: skip
    weights = {"a": _draw(1, 16, 32, size=1e-8), "b": _draw(2, 32, size=1e-8), "c": _draw(3, 32, 8), "k": _scalar(0.3)}
    return _write(path, nodes, {"x": [4, 16]}, ["y"], weights)


def _write_tiny_cnn(path: Path) -> Path:
    nodes = [
        _node("Conv", "x a p", "first", pads=[1, 1, 1, 1]), _node("Relu", "first", "positive"),
        _node("Conv", "positive b", "second", strides=[2, 2]), _node("GlobalAveragePool", "second", "pooled"),
        _node("Flatten", "pooled", "flat"), _node("Gemm", "flat c d", "y"),
    ]  # fmt: skip
    weights = {
        "a": _draw(1, 8, 3, 3, 3, size=1e-9), "p": _draw(2, 8, size=1e-9), "b": _draw(3, 12, 8, 3, 3),
        "c": _draw(4, 12, 10), "d": _draw(5, 10, size=1e-9),
    }  # fmt: skip
    return _write(path, nodes, {"x": [1, 3, 16, 16]}, ["y"], weights)


def _write_cancelling(path: Path) -> Path:
    """x - x, a kernel whose weights add up to zero on a flat picture, a normalisation of rows that are one number."""
    import numpy as np

    kernel = _draw(1, 4, 1, 3, 3)
    kernel -= kernel.mean((2, 3), keepdims=True)
    nodes = [
        _node("Mul", "x zero", "nothing"), _node("Add", "nothing hundred", "flat"),
        _node("Conv", "flat kernel", "edges"), _node("Add", "x x", "two"), _node("Add", "two x", "three"),
        _node("Mul", "x third", "times"), _node("Sub", "three times", "rest"),
        _node("LayerNormalization", "flat gain", "normal", axis=-1),
        _node("ReduceSum", "edges", "total", keepdims=0), _node("ReduceSum", "rest", "others", keepdims=0),
        _node("ReduceMax", "normal", "most", keepdims=0), _node("Sum", "total others most", "noise"),
        _node("Add", "x noise", "y"),
    ]  # fmt: skip
    weights = {"zero": _scalar(0), "hundred": _scalar(97.3), "kernel": kernel, "third": _scalar(3),
               "gain": np.ones(12, np.float32)}  # fmt: skip
    return _write(path, nodes, {"x": [1, 1, 12, 12]}, ["y"], weights)


def _write_tails(path: Path) -> Path:
    """The far ends of Softmax, Sigmoid and Gelu, and what a gate multiplies with them."""
    nodes = [
        _node("MatMul", "x a", "scores"), _node("Softmax", "scores", "shares"), _node("Sub", "scores far", "low"),
        _node("Sigmoid", "low", "gate"), _node("Reshape", "gate shape", "turned"), _node("Reshape", "turned back", "g"),
        _node("Mul", "x g", "gated"), _node("Div", "low root", "scaled"), _node("Erf", "scaled", "erf"),
        _node("Add", "erf one", "around"), _node("Mul", "around low", "gelu"), _node("Tanh", "gelu", "small"),
        _node("Concat", "shares gated small x", "y", axis=1),
    ]  # fmt: skip
    import numpy as np

    weights = {"a": _draw(1, 32, 32, size=3), "far": _scalar(17), "root": _scalar(2**0.5), "one": _scalar(1),
               "shape": np.array([32, 4], np.int64), "back": np.array([4, 32], np.int64)}  # fmt: skip
    return _write(path, nodes, {"x": [4, 32]}, ["y"], weights)


def _write_old(path: Path, opset: int) -> Path:
    """BatchNormalization and Softmax as they were up to opset 13 and 12."""

    def norm(number: int, given: str, made: str) -> Any:
        names = " ".join(f"{letter}{number}" for letter in "sbmv")
        return _node("BatchNormalization", f"{given} {names}", made)

    nodes = [
        _node("Conv", "x a", "first", pads=[1, 1, 1, 1]), norm(1, "first", "n1"), _node("Relu", "n1", "r1"),
        _node("Conv", "r1 c", "second", pads=[1, 1, 1, 1]), norm(2, "second", "n2"), _node("Add", "n2 r1", "sum"),
        _node("Relu", "sum", "r2"), _node("MaxPool", "r2", "less", kernel_shape=[2, 2], strides=[2, 2]),
        norm(3, "less", "n3"), _node("GlobalAveragePool", "n3", "pooled"), _node("Flatten", "pooled", "flat"),
        _node("Gemm", "flat d e", "scores"), _node("Softmax", "scores", "y", axis=1),
    ]  # fmt: skip
    weights = {"a": _draw(1, 8, 3, 3, 3, size=0.3), "c": _draw(2, 8, 8, 3, 3, size=0.2), "d": _draw(3, 8, 10),
               "e": _draw(4, 10)}  # fmt: skip
    for number in (1, 2, 3):
        drawn = [_draw(10 * number + k, 8, size=0.5) for k in range(4)]
        weights |= {f"s{number}": drawn[0] + 1, f"b{number}": drawn[1], f"m{number}": drawn[2],
                    f"v{number}": abs(drawn[3]) + 0.2}  # fmt: skip
    return _write(path, nodes, {"x": [1, 3, 16, 16]}, ["y"], weights, opset)


SMALL = {
    "tiny-mlp": _write_tiny_mlp,
    "tiny-cnn": _write_tiny_cnn,
    "cancelling": _write_cancelling,
    "tails": _write_tails,
}
OLD = {"old-9": 9, "old-11": 11, "old-13": 13}


def write_old(folder: Path) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    return {name: _write_old(folder / f"{name}.onnx", opset) for name, opset in OLD.items()}


# ---------------------------------------------------------------- quantised models


def write_quantized(path: Path, target: Path, dims: dict[str, Any], *, is_dynamic: bool = False) -> Path:
    """By onnxruntime's quantiser: with QuantizeLinear and DequantizeLinear, or dynamically."""
    import logging

    from onnxruntime import quantization

    logging.disable(logging.WARNING)
    try:
        if is_dynamic:
            quantization.quantize_dynamic(path, target)
        else:
            reader = _Samples(path, dims)
            quantization.quantize_static(path, target, reader, quant_format=quantization.QuantFormat.QDQ)
    finally:
        logging.disable(logging.NOTSET)
    return target


class _Samples:
    """Random samples for the calibration, drawn as assay draws them."""

    def __init__(self, path: Path, dims: dict[str, Any]) -> None:
        from assay.models.graph.graph import build_outline, load_model
        from assay.models.graph.inputs import build_samples
        from assay.models.values.model import InputChoice

        outline = build_outline(str(path))
        choice = InputChoice(samples=3, seed=SEED, dims=dims)
        self._left = list(build_samples(outline, load_model(str(path)), choice))

    def get_next(self) -> Any:
        return self._left.pop() if self._left else None


if __name__ == "__main__":
    sys.exit("python benchmarks/model_faults.py")
