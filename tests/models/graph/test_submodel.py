"""A marked model computes what the model computes, and shows its inside; a cut computes what lies between."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from tests.example_models import activate, assert_equal, load_examples, parse, run, sample

from assay.errors import NotFoundError, UsageError
from assay.models.graph.graph import build_outline
from assay.models.graph.onnx_library import build_spec, build_wiring
from assay.models.graph.submodel import build_cut, build_marked, describe_array, load_constant
from assay.models.values.tensors import TensorSpec

EXAMPLES = load_examples().MODELS
TREE = """g (float[2,3] x) => (float[2,3] y, float[2,3] z) <float[3] w = {1, 2, 3}> {
    k = Constant<value_float = 2.0>()
    a = Relu(x)
    b = Mul(a, w)
    c = Add(b, k)
    y = Neg(c)
    z = Exp(b)
}"""
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def test_a_constant_has_one_value() -> None:
    """onnxruntime takes one with two."""
    model = parse(TREE)
    wiring = build_wiring(model.graph)
    assert load_constant(wiring, "k") == 2
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("value_int", 3))
    assert load_constant(wiring, "k") is None
    with pytest.raises(UsageError, match="the constant 'k' has 2 values"):
        build_cut(model, ["b"], ["c"])


def outputs(model: onnx.ModelProto) -> list[str]:
    return [value.name for value in model.graph.output]


@pytest.mark.parametrize("name", EXAMPLES)
def test_marking_changes_no_number(name: str) -> None:
    model = EXAMPLES[name]()
    feeds = sample(model)
    marked = build_marked(model)
    onnx.checker.check_model(marked, full_check=True)
    found = run(marked, feeds)
    for output, value in run(model, feeds).items():
        assert_equal(found[output], value)
    made = {output for layer in build_outline(model, groups=()).layers for output in layer.outputs}
    assert made <= set(found)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (None, ["y", "z", "a", "b", "c"]),
        (["b", "b", "y"], ["y", "z", "b"]),
        ([], ["y", "z"]),
        (["k", "w", "x"], ["y", "z"]),  # a constant, a weight, an input
    ],
)
def test_what_is_marked_comes_behind_the_models_own_outputs(wanted: list[str] | None, found: list[str]) -> None:
    model = parse(TREE)
    before = model.SerializeToString()
    assert outputs(build_marked(model, wanted)) == found
    assert model.SerializeToString() == before
    with pytest.raises(NotFoundError, match="no tensor named 'bb'"):
        build_marked(model, ["bb"])


def test_a_type_that_nothing_knows_is_taken_from_the_reference() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[2] x) => (float[2] y) { a = my.Fancy(x)  y = Relu(a) }'
    )
    assert build_spec(build_marked(model).graph.output[1]).dtype == ""
    types = {"a": TensorSpec("a", "int8", (5,))}
    assert build_spec(build_marked(model, types=types).graph.output[1]) == types["a"]


def test_found_types_go_before_what_the_graph_says() -> None:
    model = EXAMPLES["example-attention"]()
    feeds = sample(model, dims={"batch": 3})
    found = activate(model, feeds)
    marked = build_marked(model, types={name: describe_array(name, value) for name, value in found.items()})
    onnx.checker.check_model(marked, full_check=True)
    specs = [build_spec(value) for value in (*marked.graph.input, *marked.graph.output)]
    assert all(spec.is_static for spec in specs)
    assert {spec.name: spec.shape for spec in specs} == {name: value.shape for name, value in found.items()}
    assert_equal(run(marked, feeds)["mixed_tokens"], found["mixed_tokens"])


def test_the_model_alone_can_be_typed() -> None:
    model = EXAMPLES["example-cnn"]()
    typed = build_marked(model, (), types={"image": TensorSpec("image", "float32", (2, 3, 32, 32))})
    assert build_spec(typed.graph.input[0]).shape == (2, 3, 32, 32)
    assert outputs(typed) == ["scores"]
    assert build_spec(model.graph.input[0]).shape == ("batch", 3, 32, 32)


def test_what_is_no_tensor_is_left_out() -> None:
    model = parse("g (float[2] x) => (float[4] y) { s = SequenceConstruct(x, x)  y = ConcatFromSequence<axis = 0>(s) }")
    assert outputs(build_marked(model)) == ["y"]


def test_a_cut_computes_what_is_between() -> None:
    model = parse(TREE)
    found = activate(model, {"x": X})
    cut = build_cut(model, ["b"], ["y"])
    onnx.checker.check_model(cut, full_check=True)
    assert [node.op_type for node in cut.graph.node] == ["Add", "Neg"]
    assert [value.name for value in cut.graph.input] == ["b"]
    assert [tensor.name for tensor in cut.graph.initializer] == ["k"]
    assert_equal(run(cut, {"b": found["b"]})["y"], found["y"])


def test_the_inputs_of_a_cut() -> None:
    """Those that are needed stay, others go; a weight can become one; given types are used."""
    model = parse(TREE)
    cut = build_cut(model, ["x"], ["y", "z"])
    assert_equal(run(cut, {"x": X})["z"], run(model, {"x": X})["z"])
    assert len(cut.graph.node) == 5
    weight = build_cut(model, ["a", "w"], ["b"])
    assert [value.name for value in weight.graph.input] == ["a", "w"]
    assert not weight.graph.initializer
    typed = build_cut(model, ["b"], ["c"], {"b": TensorSpec("b", "float32", (7, 3))})
    assert build_spec(typed.graph.input[0]).shape == (7, 3)
    more = parse("g (float[2] x, float[2] q, float[2] r) => (float[2] y) { a = Relu(x)  b = Add(a, q)  y = Neg(b) }")
    assert [value.name for value in build_cut(more, ["a"], ["b"]).graph.input] == ["a", "q"]
    assert [value.name for value in build_cut(more, ["b", "r"], ["y"]).graph.input] == ["b"]


def test_cuts_that_cannot_be_are_reported() -> None:
    model = parse(TREE)
    with pytest.raises(NotFoundError, match="no tensor named 'nope'"):
        build_cut(model, ["nope"], ["y"])
    for output in ("x", "w", "k"):
        with pytest.raises(UsageError, match="is not made between"):
            build_cut(model, ["x"], [output])
    with pytest.raises(UsageError, match="is not made between"):
        build_cut(model, ["b"], ["b"])
    unknown = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[2] x) => (float[2] y) { a = my.Fancy(x)  y = Relu(a) }'
    )
    with pytest.raises(UsageError, match="type of 'a' is not known"):
        build_cut(unknown, ["a"], ["y"])


def test_functions_go_along_and_only_those_that_are_called() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "local": 1]>
        g (float[2] x) => (float[2] y, float[2] z) { a = local.outer(x)  y = Neg(a)  z = local.other(a) }
        <domain: "local", opset_import: ["": 17, "local": 1]> outer (p) => (q) { i = Relu(p)  q = local.inner(i) }
        <domain: "local", opset_import: ["": 17]> inner (p) => (q) { q = Exp(p) }
        <domain: "local", opset_import: ["": 17]> other (p) => (q) { q = Abs(p) }""")
    cut = build_cut(model, ["x"], ["a"])
    assert sorted(function.name for function in cut.functions) == ["inner", "outer"]
    x = np.array([-1, 2], np.float32)
    assert_equal(run(cut, {"x": x})["a"], activate(model, {"x": x})["a"])
    assert not build_cut(model, ["a"], ["y"], {"a": TensorSpec("a", "float32", (2,))}).functions
