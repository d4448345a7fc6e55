"""The nodes that make and read each tensor, sub-graphs included."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.example_models import parse

from assay.errors import UsageError
from assay.models.graph.onnx_library import (
    build_spec,
    build_wiring,
    find_opset,
    find_reads,
    name_elem_type,
    unify_domains,
)
from assay.models.graph.submodel import find_elem_type

BRANCHES = """g (float[2] x, bool choice) => (float[2] y) <float[2] w = {1, 2}> {
    a = Relu(x)
    b = Neg(x)
    k = Constant<value = float[2] {3, 4}>()
    y = If (choice) <
        then_branch = then () => (float[2] t) { u = Add(a, w)  t = Mul(u, k) },
        else_branch = els () => (float[2] e) {
            e = If (choice) <
                then_branch = deep () => (float[2] d) { d = Identity(b) },
                else_branch = straight () => (float[2] f) { f = Neg(a) }
            >
        }
    >
}"""


def test_what_a_subgraph_takes_from_outside_is_read_by_its_node() -> None:
    """Also an output that comes straight from there."""
    wiring = build_wiring(parse(BRANCHES).graph)
    assert wiring.reads[3] == ("choice", "a", "w", "k", "b")
    assert wiring.consumers["b"] == wiring.consumers["choice"] == (3,)
    branch = helper.make_graph([], "b", [], [helper.make_tensor_value_info("outer", TensorProto.FLOAT, [1])])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    assert list(dict.fromkeys(find_reads(node))) == ["c", "outer"]


def test_what_a_subgraph_has_itself_is_not_read() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["inner", "weight"], ["made"]), helper.make_node("Add", ["made", ""], ["out"])],
        "body",
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(np.zeros(1, np.float32), "weight")],
    )
    assert list(find_reads(helper.make_node("Scan", ["x", ""], ["y"], body=body))) == ["x"]


def test_constants_and_weights_are_no_activations() -> None:
    wiring = build_wiring(parse(BRANCHES).graph)
    assert wiring.inputs == ("x", "choice")
    assert set(wiring.weights) == {"w"}
    assert wiring.constants == {"k": 2}
    assert list(wiring.producers) == ["a", "b", "y"]
    assert wiring.intermediates == ("a", "b")
    assert wiring.is_constant("k")
    assert wiring.is_constant("w")
    assert not wiring.is_constant("a")


def test_an_initialiser_that_is_listed_as_an_input_is_none() -> None:
    model = parse("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    assert build_wiring(model.graph).inputs == ("x",)


def test_ancestors_are_what_a_tensor_needs() -> None:
    wiring = build_wiring(
        parse("""g (float[2] x) => (float[2] y, float[2] z) {
            k = Constant<value = float[2] {3, 4}>()
            a = Relu(x)
            b = Add(a, k)
            c = Neg(a)
            y = Mul(b, b)
            z = Exp(c)
        }""").graph
    )
    assert wiring.find_ancestors(["y"]) == [0, 1, 2, 4]
    assert wiring.find_ancestors(["z"]) == [1, 3, 5]
    assert wiring.find_ancestors(["y"], stop=["a"]) == [0, 2, 4]
    assert wiring.find_ancestors(["y"], stop=["y"]) == []
    assert wiring.find_ancestors(["x"]) == []
    assert wiring.find_ancestors(["y", "z"]) == [0, 1, 2, 3, 4, 5]


def test_what_is_no_tensor_is_reported_to_be_so() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2])
    assert build_spec(sequence).dtype == "sequence"
    nothing = onnx.ValueInfoProto(name="n")
    assert (build_spec(nothing).dtype, build_spec(nothing).shape) == ("", None)
    text = helper.make_tensor_value_info("t", TensorProto.STRING, ["n", None, -1, 3])
    assert (build_spec(text).dtype, build_spec(text).shape) == ("string", ("n", None, None, 3))


def test_every_type_has_a_name_and_back() -> None:
    for number in filter(None, TensorProto.DataType.values()):
        assert find_elem_type(name_elem_type(number)) == number
    names = {1: "float32", 8: "string", 16: "bfloat16", 22: "int4", 0: "", 999: ""}
    assert {number: name_elem_type(number) for number in names} == names
    with pytest.raises(UsageError, match="no tensor of type datetime64"):
        find_elem_type("datetime64")


def test_the_opset_is_that_of_onnxs_own_operators() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    del model.opset_import[:]
    assert find_opset(model) == 0
    model.opset_import.extend([helper.make_opsetid("com.example", 99), helper.make_opsetid("ai.onnx", 16)])
    assert find_opset(model) == 16
    model.opset_import.append(helper.make_opsetid("", 17))
    assert find_opset(model) == 17


def test_the_own_domain_of_onnx_has_one_name_everywhere() -> None:
    model = parse(BRANCHES)
    deep = model.graph.node[3].attribute[1].g.node[0].attribute[0].g.node
    other = helper.make_node("Gelu", ["x"], ["z"], domain="com.microsoft")
    own = helper.make_function("local", "F", ["x"], ["z"], [helper.make_node("Relu", ["x"], ["z"])], [])
    model.functions.append(own)
    for node in (*deep, *model.functions[0].node, model.graph.node[0]):
        node.domain = "ai.onnx"
    model.graph.node.append(other)
    domains = ("com.microsoft", 1), ("ai.onnx", 16), ("", 17)
    for part in (model, model.functions[0]):
        del part.opset_import[:]
        part.opset_import.extend(helper.make_opsetid(*each) for each in domains)
    unify_domains(model)
    nodes = (*deep, *model.functions[0].node, *model.graph.node)
    assert [node.domain for node in nodes] == [""] * 6 + [other.domain]
    for part in (model, model.functions[0]):
        assert [(each.domain, each.version) for each in part.opset_import] == [("com.microsoft", 1), ("", 16), ("", 17)]
