"""Operators in float64, from their definition, and the size of the terms that they add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from assay.models.graph.operators import Magnitudes, compute_float64, compute_magnitude, is_operator, read_attributes


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def compute_both(op: str, inputs: list[np.ndarray], opset: int, **attributes: Any) -> tuple[np.ndarray, np.ndarray]:
    """In float64, and by onnxruntime."""
    import onnxruntime

    names = [f"i{number}" for number in range(len(inputs))]
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, inputs, strict=True)
    ]
    node = helper.make_node(op, names, ["y"], **attributes)
    graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    found = compute_float64(op, inputs, read_attributes(node), opset)
    assert found is not None
    return found, session.run(None, dict(zip(names, inputs, strict=True)))[0]


FOUR = [draw(4), draw(4, seed=1), draw(4, seed=2), abs(draw(4, seed=3)) + np.float32(0.1)]
CASES: list[tuple[str, list[np.ndarray], int, dict[str, Any]]] = [
    ("Conv", [draw(2, 4, 9, 8), draw(6, 2, 3, 2), draw(6)], 17,
     {"group": 2, "pads": [1, 0, 1, 2], "strides": [2, 1], "dilations": [1, 2]}),
    ("Conv", [draw(1, 3, 9), draw(5, 3, 3)], 11, {"auto_pad": "VALID"}),
    ("MaxPool", [draw(2, 4, 9, 9)], 12, {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    ("AveragePool", [draw(2, 4, 9, 9)], 11, {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    ("AveragePool", [draw(1, 2, 9)], 11, {"kernel_shape": [3], "pads": [1, 1], "count_include_pad": 1}),
    ("BatchNormalization", [draw(2, 4, 5), *FOUR], 9, {}),
    ("BatchNormalization", [draw(2, 4, 5, 3), *FOUR], 15, {"epsilon": 0.1}),
    ("LayerNormalization", [draw(2, 3, 4), draw(3, 4), draw(3, 4)], 17, {"axis": 1}),
    ("InstanceNormalization", [draw(2, 4, 5), FOUR[0], FOUR[1]], 17, {}),
    ("Softmax", [draw(2, 3, 4)], 11, {}),
    ("Softmax", [draw(2, 3, 4)], 13, {"axis": 1}),
    ("LogSoftmax", [draw(2, 3, 4)], 13, {}),
    ("Gemm", [draw(3, 2), draw(4, 3), draw(4)], 13, {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("Gemm", [draw(2, 3), draw(3, 4)], 13, {}),
    ("MatMul", [draw(2, 3, 4), draw(4, 5)], 13, {}),
    ("Einsum", [draw(2, 3), draw(3, 4)], 13, {"equation": "ij, jk -> ik"}),
    ("ReduceMean", [draw(3, 2)], 13, {"axes": [1], "keepdims": 0}),
    ("ReduceSum", [draw(3, 2), np.array([0])], 13, {}),
    ("ReduceMax", [draw(3, 2)], 13, {}),
    ("GlobalAveragePool", [draw(1, 4, 5)], 13, {}),
    ("GlobalMaxPool", [draw(1, 4, 5)], 13, {}),
    ("Clip", [draw(3, 2)], 7, {"min": -0.1, "max": 0.5}),
    ("Clip", [draw(3, 2), np.array(0.0, np.float32)], 13, {}),
    ("LeakyRelu", [draw(3, 2)], 13, {"alpha": 0.3}),
    ("HardSigmoid", [draw(3, 2)], 13, {}),
    ("HardSwish", [draw(3, 2)], 14, {}),
    ("Sum", [draw(3, 2), draw(2), draw(3, 1)], 13, {}),
    ("Sub", [draw(3, 2), draw(2)], 13, {}),
    ("PRelu", [draw(3, 2), draw(2)], 13, {}),
    ("Erf", [draw(3, 2)], 13, {}),
    ("Sigmoid", [draw(3, 2)], 13, {}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "opset", "attributes"), CASES, ids=[f"{c[0]}-{c[2]}" for c in CASES])
def test_float64_agrees_with_a_correct_runtime(
    op: str, inputs: list[np.ndarray], opset: int, attributes: dict[str, Any]
) -> None:
    exact, found = compute_both(op, inputs, opset, **attributes)
    assert exact.shape == found.shape
    np.testing.assert_allclose(found, exact, rtol=3e-5, atol=3e-6)


def test_what_there_is_no_formula_for_is_not_guessed() -> None:
    assert compute_float64("NoSuchOperator", [draw(3)], {}, 17) is None
    assert compute_float64("MaxPool", [draw(1, 1, 5)], {"kernel_shape": [2], "ceil_mode": 1}, 17) is None
    assert compute_float64("BatchNormalization", [draw(2, 4), *FOUR], {"training_mode": 1}, 15) is None
    assert compute_float64("Gemm", [draw(2, 3), draw(4, 5)], {}, 13) is None
    assert is_operator("Gemm")
    assert not is_operator("Gemmm")


def test_terms_are_as_large_as_what_goes_in_even_where_they_cancel() -> None:
    large = np.full((2, 2), 100, np.float32)
    assert compute_magnitude("Sub", [large, large], {}, 17) == pytest.approx(200)
    a, b = np.float32([[1, -1]]), np.float32([[3], [3]])
    assert compute_magnitude("MatMul", [a, b], {}, 17) == pytest.approx(6)
    assert compute_magnitude("Gemm", [a, b], {"alpha": -2.0}, 17) == pytest.approx(12)
    kernel = np.float32([[[1, -1]]])
    assert compute_magnitude("Conv", [large[None], kernel.repeat(2, 1)], {}, 17) == pytest.approx(400)
    norm = [np.full((1, 1, 2), 5, np.float32), np.float32([2]), np.float32([1]), np.float32([5]), np.float32([4])]
    assert compute_magnitude("BatchNormalization", norm, {"epsilon": 0.0}, 15) == pytest.approx(11)
    rows = np.full((1, 4), 3, np.float32)
    assert np.max(compute_magnitude("LayerNormalization", [rows, np.ones(4, np.float32)], {}, 17)) > 1000
    assert compute_magnitude("Sigmoid", [large], {}, 17) == 1
    assert compute_magnitude("Reshape", [large, np.array([4])], {}, 17) == 0
    assert compute_magnitude("NoSuchOperator", [large, np.array(["a"])], {}, 17) == pytest.approx(100)


def test_what_is_handed_on_is_followed_back_to_where_it_was_rounded() -> None:
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["gate"]),
        helper.make_node("Transpose", ["gate"], ["turned"]),
        helper.make_node("Mul", ["turned", "k"], ["y"]),
        helper.make_node("Constant", [], ["k"], value=onnx.numpy_helper.from_array(np.float32([50.0]))),
    ]
    graph = helper.make_graph(nodes, "g", [], [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    small = np.full((2, 2), 1e-8, np.float32)
    magnitudes = Magnitudes(model, {"x": small, "gate": small, "turned": small})
    assert magnitudes.find("y", 4) == pytest.approx(50)
    assert magnitudes.find("turned", 4) == 1
    assert magnitudes.find("y", 0) == magnitudes.find("x", 4) == 0
