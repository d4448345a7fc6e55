"""Builds the small models of these examples, with seeded weights: `python build_models.py [FOLDER]`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 19  # the oldest for which onnx's own evaluator has the quantised operators
IR_VERSION = 9
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tests", "testdata", "onnx_models")


class Builder:
    """A graph in the making: every call adds one node and gives the name of what it makes."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, op: str, *inputs: str, name: str = "", **attributes: object) -> str:
        made = name or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [made], name=f"{op}_{len(self.nodes)}", **attributes))
        return made

    def weight(self, values: np.ndarray | list[int] | float, dtype: type = np.float32) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype=dtype), name))
        return name

    def random(self, *shape: int, scale: float = 1.0) -> str:
        return self.weight(self.rng.normal(0.0, scale, shape))

    def build(self, inputs: dict[str, list[int | str]], outputs: dict[str, list[int | str]]) -> onnx.ModelProto:
        def describe(values: dict[str, list[int | str]]) -> list[onnx.ValueInfoProto]:
            return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values.items()]

        graph = helper.make_graph(self.nodes, self.name, describe(inputs), describe(outputs), self.weights)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="assay-examples"
        )
        onnx.checker.check_model(model, full_check=True)
        return model


def build_matmul() -> onnx.ModelProto:
    """One matrix product of two inputs."""
    builder = Builder("example-matmul", seed=1)
    builder.add("MatMul", "a", "b", name="y")
    return builder.build({"a": [4, 16], "b": [16, 8]}, {"y": [4, 8]})


# ---------------------------------------------------------------- a convolutional network


def build_cnn() -> onnx.ModelProto:
    """Convolutions with bounded activations, a residual block, pooling and a classifier; the batch is open."""
    builder = Builder("example-cnn", seed=2)
    x = builder.add("Sub", "image", builder.weight(np.reshape([0.1, 0.0, -0.1], (1, 3, 1, 1))))
    x = add_bounded_conv(builder, x, 3, 8, stride=2)
    x = add_normalised_conv(builder, x, 8, 8)
    x = builder.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = add_bounded_conv(builder, add_bounded_conv(builder, x, 8, 8, groups=8), 8, 16, size=1)
    x = builder.add("Relu", builder.add("Add", add_residual(builder, x, 16), x))
    x = add_bounded_conv(builder, x, 16, 16)
    x = builder.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = builder.add("Sigmoid", add_normalised_conv(builder, x, 16, 24))
    x = builder.add("Mul", x, builder.weight(1.5))
    x = builder.add("Flatten", builder.add("GlobalAveragePool", x))
    x = builder.add("Relu", builder.add("Gemm", x, builder.random(24, 32, scale=0.3), builder.random(32)))
    x = builder.add("Gemm", x, builder.random(10, 32, scale=0.3), builder.random(10), transB=1)
    builder.add("Softmax", x, name="scores", axis=-1)
    return builder.build({"image": ["batch", 3, 32, 32]}, {"scores": ["batch", 10]})


def add_conv(
    builder: Builder, x: str, inside: int, outside: int, size: int = 3, stride: int = 1, groups: int = 1
) -> str:
    scale = (inside / groups * size * size) ** -0.5
    weights = builder.random(outside, inside // groups, size, size, scale=scale)
    bias = builder.random(outside, scale=0.1)
    pads, strides = [size // 2] * 4, [stride, stride]
    return builder.add("Conv", x, weights, bias, kernel_shape=[size, size], pads=pads, strides=strides, group=groups)


def add_bounded_conv(
    builder: Builder, x: str, inside: int, outside: int, size: int = 3, stride: int = 1, groups: int = 1
) -> str:
    """Conv and Clip, which a compiler fuses and a test must not part."""
    x = add_conv(builder, x, inside, outside, size, stride, groups)
    return builder.add("Clip", x, builder.weight(0.0), builder.weight(6.0))


def add_normalised_conv(builder: Builder, x: str, inside: int, outside: int) -> str:
    x = add_conv(builder, x, inside, outside)
    scale, spread = builder.weight(builder.rng.uniform(0.5, 1.5, outside)), builder.weight(np.full(outside, 0.8))
    return builder.add("BatchNormalization", x, scale, builder.random(outside), builder.random(outside), spread)


def add_residual(builder: Builder, x: str, width: int) -> str:
    x = builder.add("Relu", add_normalised_conv(builder, x, width, width))
    return add_conv(builder, x, width, width)


# ---------------------------------------------------------------- an attention block


def build_attention() -> onnx.ModelProto:
    """Two heads over a sequence; the batch is open, so the shapes of its Reshape nodes are computed by the graph."""
    builder = Builder("example-attention", seed=3)
    width, heads = 16, 2
    x = add_layer_norm(builder, "tokens", width)
    query, key, value = (add_heads(builder, x, width, heads) for _ in range(3))
    scores = builder.add("MatMul", query, builder.add("Transpose", key, perm=[0, 1, 3, 2]))
    scores = builder.add("Softmax", builder.add("Mul", scores, builder.weight((width // heads) ** -0.5)), axis=-1)
    mixed = builder.add("Transpose", builder.add("MatMul", scores, value), perm=[0, 2, 1, 3])
    mixed = builder.add("Reshape", mixed, add_shape(builder, "tokens", [width]))
    mixed = builder.add("Add", "tokens", builder.add("MatMul", mixed, builder.random(width, width, scale=0.25)))
    hidden = builder.add("MatMul", add_layer_norm(builder, mixed, width), builder.random(width, 32, scale=0.25))
    hidden = builder.add("Mul", hidden, builder.add("Sigmoid", hidden))
    builder.add("Add", mixed, builder.add("MatMul", hidden, builder.random(32, width, scale=0.18)), name="mixed_tokens")
    return builder.build({"tokens": ["batch", 8, width]}, {"mixed_tokens": ["batch", 8, width]})


def add_layer_norm(builder: Builder, x: str, width: int) -> str:
    scale = builder.weight(builder.rng.uniform(0.5, 1.5, width))
    return builder.add("LayerNormalization", x, scale, builder.random(width, scale=0.1), axis=-1)


def add_shape(builder: Builder, x: str, rest: list[int]) -> str:
    """Shape → Gather → Unsqueeze → Concat: the first two dimensions of x, then `rest`."""
    shape = builder.add("Shape", x)
    dims = [builder.add("Gather", shape, builder.weight(place, np.int64), axis=0) for place in range(2)]
    rows = [builder.add("Unsqueeze", dim, builder.weight([0], np.int64)) for dim in dims]
    return builder.add("Concat", *rows, builder.weight(rest, np.int64), axis=0)


def add_heads(builder: Builder, x: str, width: int, heads: int) -> str:
    x = builder.add("MatMul", x, builder.random(width, width, scale=width**-0.5))
    x = builder.add("Reshape", x, add_shape(builder, x, [heads, width // heads]))
    return builder.add("Transpose", x, perm=[0, 2, 1, 3])


# ---------------------------------------------------------------- a quantised model


def build_quantised() -> onnx.ModelProto:
    """Eight-bit arithmetic in three styles: QLinearConv, operators between Dequantize and Quantize, MatMulInteger."""
    builder = Builder("example-quantised", seed=4)
    x = add_quantise(builder, "image", 0.008, 128)
    x = add_integer_conv(builder, x, 2, 4)
    x = builder.add("Relu", add_dequantise(builder, x, 0.02, 128))
    x = add_dequantise(builder, add_quantise(builder, x, 0.01, 0), 0.01, 0)
    x = builder.add("Conv", x, add_quantised_weights(builder, 4, 4), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    x = builder.add("Flatten", builder.add("GlobalAveragePool", x))
    x = add_quantise(builder, x, 0.01, 128)
    weights = builder.weight(builder.rng.integers(-60, 60, (4, 5)), np.int8)
    x = builder.add("MatMulInteger", x, weights, builder.weight(128, np.uint8))
    x = builder.add("Cast", x, to=TensorProto.FLOAT)
    builder.add("Mul", x, builder.weight(0.0005), name="scores")
    return builder.build({"image": [1, 2, 8, 8]}, {"scores": [1, 5]})


def add_quantise(builder: Builder, x: str, scale: float, zero: int) -> str:
    return builder.add("QuantizeLinear", x, builder.weight(scale), builder.weight(zero, np.uint8))


def add_dequantise(builder: Builder, x: str, scale: float, zero: int) -> str:
    return builder.add("DequantizeLinear", x, builder.weight(scale), builder.weight(zero, np.uint8))


def add_integer_conv(builder: Builder, x: str, inside: int, outside: int) -> str:
    # seven bits: processors without VNNI add pairs of products of eight bits in sixteen, and saturate
    weights = builder.weight(builder.rng.integers(-60, 60, (outside, inside, 3, 3)), np.int8)
    came = (builder.weight(0.008), builder.weight(128, np.uint8))
    mine = (builder.weight(0.005), builder.weight(0, np.int8))
    goes = (builder.weight(0.02), builder.weight(128, np.uint8))
    return builder.add("QLinearConv", x, *came, weights, *mine, *goes, kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def add_quantised_weights(builder: Builder, inside: int, outside: int) -> str:
    """Weights that lie in the model as bytes: a compiler folds this node away, and sees constants."""
    weights = builder.weight(builder.rng.integers(-100, 100, (outside, inside, 3, 3)), np.int8)
    return builder.add("DequantizeLinear", weights, builder.weight(0.004), builder.weight(0, np.int8))


# ----------------------------------------------------------------

MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "example-matmul": build_matmul,
    "example-cnn": build_cnn,
    "example-attention": build_attention,
    "example-quantised": build_quantised,
}


def write_models(folder: str = FOLDER) -> list[str]:
    """All of them, as `<name>.onnx`; the bytes are the same on every machine."""
    os.makedirs(folder, exist_ok=True)
    paths = []
    for name, build in MODELS.items():
        path = os.path.join(folder, f"{name}.onnx")
        aside = f"{path}.{os.getpid()}"
        with open(aside, "wb") as stream:
            stream.write(build().SerializeToString(deterministic=True))
        os.replace(aside, path)  # several test processes may build them at once
        paths.append(path)
    return paths


if __name__ == "__main__":
    for written in write_models(*sys.argv[1:2]):
        print(written)
