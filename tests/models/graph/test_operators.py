"""Operators in float64, from their definition, and the size of the terms that they add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from onnx import TensorProto, helper

from assay.models.graph.operators import (
    Magnitudes,
    compute_float64,
    compute_magnitude,
    compute_unrounded,
    count_terms,
    find_coarse,
    find_random,
    find_steps,
    is_operator,
    read_attributes,
)


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def build_alone(
    op: str, inputs: list[np.ndarray], opset: int, kind: int = TensorProto.FLOAT, **attributes: Any
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and what goes into it."""
    feeds = {f"i{number}": array for number, array in enumerate(inputs)}
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    node = helper.make_node(op, list(feeds), ["y"], **attributes)
    graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("y", kind, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), feeds


def compute_both(op: str, inputs: list[np.ndarray], opset: int, **attributes: Any) -> tuple[np.ndarray, np.ndarray]:
    """In float64, and by onnxruntime."""
    model, feeds = build_alone(op, inputs, opset, **attributes)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    found = compute_float64(op, inputs, read_attributes(model.graph.node[0]), opset)
    assert found is not None
    return found, session.run(None, feeds)[0]


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
    uses: list[tuple[str, list[np.ndarray], dict[str, Any], int]] = [
        ("NoSuchOperator", [draw(3)], {}, 17),
        ("MaxPool", [draw(1, 1, 5)], {"kernel_shape": [2], "ceil_mode": 1}, 17),
        ("BatchNormalization", [draw(2, 4), *FOUR], {"training_mode": 1}, 15),
        ("Gemm", [draw(2, 3), draw(4, 5)], {}, 13),
    ]
    assert [compute_float64(*use) for use in uses] == [None] * 4
    names = ("Gemm", "TreeEnsemble", "Gemmm", "FusedConv")
    assert [is_operator(name) for name in names] == [True, True, False, False]


def test_terms_are_as_large_as_what_goes_in_even_where_they_cancel() -> None:
    large, a, b = np.full((2, 2), 100, np.float32), np.float32([[1, -1]]), np.float32([[3], [3]])
    norm = [np.full((1, 1, 2), 5, np.float32), np.float32([2]), np.float32([1]), np.float32([5]), np.float32([4])]
    sizes: list[tuple[str, list[np.ndarray], dict[str, Any], float]] = [
        ("Sub", [large, large], {}, 200),
        ("MatMul", [a, b], {}, 6),
        ("Gemm", [a, b], {"alpha": -2.0}, 12),
        ("Conv", [large[None], np.float32([[[1, -1]]]).repeat(2, 1)], {}, 400),
        ("BatchNormalization", norm, {"epsilon": 0.0}, 11),
        ("Sigmoid", [large], {}, 1),
        ("Reshape", [large, np.array([4])], {}, 0),
        ("NoSuchOperator", [large, np.array(["a"])], {}, 100),
    ]
    for op, inputs, attributes, size in sizes:
        assert compute_magnitude(op, inputs, attributes, 17) == pytest.approx(size), op
    rows = np.full((1, 4), 3, np.float32)
    assert np.max(compute_magnitude("LayerNormalization", [rows, np.ones(4, np.float32)], {}, 17)) > 1000


def test_what_is_handed_on_is_followed_back_to_where_it_was_rounded() -> None:
    model = parse("""g (float[2,2] x) => (float[2,2] y)
        { gate = Sigmoid (x)  turned = Transpose (gate)  k = Constant <value_float = 50.0> ()  y = Mul (turned, k) }""")
    small = np.full((2, 2), 1e-8, np.float32)
    magnitudes = Magnitudes(model, {"x": small, "gate": small, "turned": small})
    assert magnitudes.find("y", 4) == pytest.approx(50)
    assert magnitudes.find("turned", 4) == 1
    assert magnitudes.find("y", 0) == magnitudes.find("x", 4) == 0


@pytest.mark.parametrize(("op", "shapes", "attributes", "terms"), [
    ("MatMul", [(2, 8, 64), (64, 4)], {}, 64), ("Gemm", [(64, 8), (64, 4)], {"transA": 1}, 64),
    ("Conv", [(1, 16, 9, 9), (32, 8, 3, 3)], {"group": 2}, 72), ("ConvTranspose", [(1, 16, 9, 9), (16, 8, 3, 3)], {}, 144),
    ("ReduceSum", [(2, 5, 7)], {"axes": [1, 2]}, 35), ("ReduceMean", [(2, 5, 7)], {}, 70),
    ("LayerNormalization", [(2, 5, 7), (7,)], {"axis": -1}, 7), ("InstanceNormalization", [(2, 3, 5, 7)], {}, 35),
    ("GroupNormalization", [(2, 4, 5)], {"num_groups": 2}, 20), ("GlobalAveragePool", [(2, 3, 5, 7)], {}, 35),
    ("LSTM", [(10, 1, 8), (1, 16, 8), (1, 16, 4)], {}, 120), ("Softmax", [(2, 5, 7)], {}, 7), ("Add", [(3, 4)], {}, 1),
    ("Constant", [], {}, 1), ("MatMul", [()], {}, 1), ("ReduceSum", [(2, 0, 4)], {"axes": [7]}, 1),
])  # fmt: skip
def test_terms_are_counted(op: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any], terms: int) -> None:
    assert count_terms(op, [np.zeros(shape) for shape in shapes], attributes) == terms


def one(value: float, dtype: str = "float32") -> np.ndarray:
    return np.array(value, dtype)


def test_what_a_quantiser_rounds_is_known() -> None:
    x = draw(2, 3, 4)
    found = compute_unrounded(
        "QuantizeLinear", [x, np.array([0.1, 0.2, 0.4]), np.array([1, 2, 3], np.int8)], {"axis": 1}
    )
    assert found is not None
    assert found[:, 2] == pytest.approx(x[:, 2] / 0.4 + 3)
    blocks = compute_unrounded("QuantizeLinear", [draw(4, 6), np.ones((2, 6)) / 2, None], {"axis": 0, "block_size": 2})
    assert blocks == pytest.approx(2 * draw(4, 6))
    assert compute_unrounded("QuantizeLinear", [x, None], {}) is None
    assert compute_unrounded("Relu", [x], {}) is None
    for op in ("LabelEncoder", "Cast"):
        assert compute_unrounded(op, [np.array(["a", "b"], object)], {}) is None, "a string is not rounded"
    assert compute_unrounded("QuantizeLinear", [x.astype(np.float16), one(0.1, "float16")], {}) is None
    dynamic = compute_unrounded("DynamicQuantizeLinear", [np.array([-1.0, 0.0, 4.1])], {})
    assert dynamic == pytest.approx([1.0, 51.0, 256.0 - 51 / 255], abs=1.01)


def test_what_a_quantised_product_rounds_is_known() -> None:
    """Next to onnx's evaluator, which computes it with integers."""
    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 256, (1, 4, 5, 5)).astype(np.uint8), rng.integers(-127, 128, (3, 4, 3, 3)).astype(np.int8)
    scales = np.array([0.01, 0.02, 0.005], np.float32)
    given = [x, one(0.02), one(100, "uint8"), w, scales, np.zeros(3, np.int8), one(0.7), one(128, "uint8")]
    given.append(rng.integers(-900, 900, 3).astype(np.int32))
    model, feeds = build_alone("QLinearConv", given, 19, TensorProto.UINT8, pads=[1, 1, 1, 1])
    right = onnx.reference.ReferenceEvaluator(model).run(None, feeds)[0]
    found = Magnitudes(model, feeds).compute_unrounded("y")
    assert found is not None
    assert np.abs(np.clip(found, 0, 255) - right).max() <= 0.501
    a, b = rng.integers(0, 256, (3, 8)).astype(np.uint8), rng.integers(0, 256, (8, 2)).astype(np.uint8)
    inputs = [a, one(0.1), one(3, "uint8"), b, one(0.2), one(5, "uint8"), one(0.5), one(7, "uint8")]
    product = compute_unrounded("QLinearMatMul", inputs, {})
    assert product == pytest.approx((a - 3.0) @ (b - 5.0) * 0.04 + 7, rel=1e-6)


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 19]> {text}')


def test_what_depends_on_chance_is_known() -> None:
    model = parse("""g (float[4] x) => (float[4] y, int64[1] s) {
        n = RandomNormalLike (x)
        y = Add (x, n)
        s = Shape (n)
    }""")
    assert find_random(model) == {"n": "RandomNormalLike", "y": "RandomNormalLike"}
    assert find_random(model, [1]) == {}
    model = parse("""g (float[4] x, float[4] m, bool c) => (float[4] y, float[4] z) {
        u, n = Split<num_outputs = 2> (x)
        y = Clip (x, , m)
        z = If (c) <then_branch = t () => (float[4] p) {p = Abs(n)}, else_branch = e () => (float[4] r) {r = Neg(n)}>
    }""")
    model.graph.node[0].op_type = "Multinomial"
    model.graph.node[0].output[0] = ""
    assert find_random(model) == {"n": "Multinomial", "z": "Multinomial"}, "what is omitted has no name"


def test_what_a_function_of_the_model_draws_depends_on_chance() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20, "own" : 1]>
        g (float[4] x) => (float[4] y) {
            n = own.Outer (x)
            y = Relu (n)
        }
        <domain: "own", opset_import: ["" : 20, "own" : 1]> Outer (a) => (b) { b = own.Noisy (a) }
        <domain: "own", opset_import: ["" : 20]> Noisy (a) => (b) {
            r = RandomNormalLike (a)
            b = Add (a, r)
        }""")
    assert find_random(model) == {"n": "RandomNormalLike", "y": "RandomNormalLike"}
    del model.functions[1].node[0]
    assert find_random(model) == {}


@pytest.mark.parametrize(("flag", "found"), [("1", {"y": "Dropout"}), ("0", {})])
def test_dropout_draws_in_training_only(flag: str, found: dict[str, str]) -> None:
    text = f"""g (float[4] x) => (float[4] y) <float r = {{0.5}}, bool t = {{{flag}}}> {{
        y = Dropout (x, r, t)
    }}"""
    assert find_random(parse(text)) == found


def test_what_was_cast_into_fewer_bits_is_known() -> None:
    model = parse("""g (float[4] x, bfloat16[4] b) => (float[4] y, float[4] z) <float16[4] w = {1, 2, 3, 4}> {
        h = Cast <to: int = 16> (x)
        u = Cast <to: int = 1> (h)
        e = Cast <to: int = 17> (u)
        f = Cast <to: int = 1> (e)
        y = Add (f, x)
        v = Cast <to: int = 1> (w)
        a = Add (v, x)
        c = Add (b, b)
        z = Cast <to: int = 1> (c)
    }""")
    coarse = find_coarse(model)
    assert {name: coarse.get(name) for name in "hufyvacz"} == {
        "h": "bfloat16", "u": "bfloat16", "f": "float8_e4m3fn", "y": "float8_e4m3fn", "v": None, "a": None,
        "c": "bfloat16", "z": "bfloat16",
    }  # fmt: skip
    assert find_steps(model) == {}
