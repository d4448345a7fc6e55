"""Two models that should compute the same: what is paired, what passes, and which layer is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnxruntime.transformers.float16 import convert_float_to_float16
from tests.example_models import save
from tests.quantised_models import plant, quantise, rename, write_float

from assay.errors import UsageError
from assay.models.flow.artifact_builder import ArtifactBuilder
from assay.models.flow.bisect import bisect_model
from assay.models.flow.check import check_model
from assay.models.report.summary import describe_outcome, label_of
from assay.models.values.model import ModelReport, ModelRequest, Target, Tolerances
from assay.models.values.tensors import Tolerance
from assay.values.verdict import VerdictKind

PLAIN = Target("ort", "ort", {"optimize": "none"})
Compare = Callable[..., ModelReport]


@pytest.fixture
def compare(shared: ArtifactBuilder, tmp_path: Path) -> Compare:
    def call(first: Path, second: Path, **further: Any) -> ModelReport:
        request = ModelRequest(str(first), PLAIN, PLAIN, other=str(second), **{"goal": "compare", **further})
        return (bisect_model if request.goal == "bisect" else check_model)(request, shared, str(tmp_path / "keep"))

    return call


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_float(tmp_path_factory.mktemp("net") / "net.onnx")


@pytest.fixture(scope="module")
def int8(net: Path) -> Path:
    return quantise(net, net.with_name("int8.onnx"))


@pytest.mark.parametrize("form", ["QDQ", "QOperator", "dynamic"])
def test_what_a_quantiser_makes_passes_under_its_names_and_under_others(
    compare: Compare, net: Path, tmp_path: Path, form: str
) -> None:
    made = quantise(net, tmp_path / "int8.onnx", form)
    named = compare(net, made)
    assert named.verdict.kind is VerdictKind.PASS, describe_outcome(named)
    assert "(100%)" in named.coverage
    assert {case.matched.split(" ")[0] for case in named.cases if case.layer} == {"name"}
    other = compare(net, rename(made, tmp_path / "renamed.onnx"))
    assert other.verdict.kind is VerdictKind.PASS, describe_outcome(other)
    assert {case.matched.split(" ")[0] for case in other.cases if case.layer} == {"structure"}
    if form != "dynamic":
        assert any("weights within a step" in case.matched for case in other.cases)


def _one_more(array: Any) -> Any:
    return (array + 1).astype(array.dtype)


@pytest.mark.parametrize(
    ("tensor", "change", "layer"),
    [
        ("w_scale", lambda array: (array * np.float32(1.5)).astype(array.dtype), "Conv_0"),
        ("v_zero_point", _one_more, "Conv_3"),
        ("v_quantized", lambda array: np.swapaxes(array, -1, -2), "Conv_3"),
        ("b_quantized", np.zeros_like, "Conv_0"),
    ],
)
def test_the_layer_of_a_planted_fault_is_named(
    compare: Compare, net: Path, int8: Path, tmp_path: Path, tensor: str, change: Any, layer: str
) -> None:
    faulty = plant(int8, tmp_path / "faulty.onnx", tensor, change)
    report, found = compare(net, faulty), compare(net, faulty, goal="bisect")
    assert report.verdict.kind is found.verdict.kind is VerdictKind.FAIL
    first = next(case for case in report.cases if case.name == report.first_wrong)
    assert label_of(first, report) == layer
    assert (found.first_wrong, found.coverage) == (report.first_wrong, report.coverage)
    assert len(found.cases) < len(report.cases)
    assert found.cases[0].matched.startswith("name")


def test_a_second_model_that_cannot_be_computed_is_bisected_by_its_beginnings(
    compare: Compare, net: Path, tmp_path: Path
) -> None:
    made = onnx.load(net)
    node = next(node for node in made.graph.node if node.op_type == "MaxPool")
    node.domain = "nobody.has.this"
    made.opset_import.append(helper.make_opsetid("nobody.has.this", 1))
    onnx.save(made, tmp_path / "foreign.onnx")
    found = compare(net, tmp_path / "foreign.onnx", goal="bisect")
    assert found.verdict.kind in (VerdictKind.FAIL, VerdictKind.ERROR)
    assert str(found.first_wrong).endswith("MaxPool_2")


def test_integers_that_are_read_with_another_zero_point_than_they_are_written_with_are_named(
    compare: Compare, net: Path, int8: Path, tmp_path: Path
) -> None:
    made = onnx.load(int8)
    node = next(node for node in made.graph.node if node.output[0] == "less_DequantizeLinear_Output")
    zero = next(each for each in made.graph.initializer if each.name == node.input[2])
    array = _one_more(onnx.numpy_helper.to_array(zero))
    made.graph.initializer.append(onnx.numpy_helper.from_array(array, "other_zero"))
    node.input[2] = "other_zero"
    onnx.save(made, tmp_path / "faulty.onnx")
    report = compare(net, tmp_path / "faulty.onnx")
    assert report.verdict.kind is VerdictKind.FAIL
    assert "MaxPool_2" in str(report.first_wrong)
    messages = [finding.message for case in report.cases for finding in case.verdict.findings]
    assert any("its integers are written with scale" in message for message in messages)


def test_integers_that_only_sub_graphs_read_are_no_contradiction(compare: Compare, tmp_path: Path) -> None:
    head = "g (float[4] x, bool c) => (float[4] y) <float s = {0.1}, int8 z = {0}> { a = Relu(x)"
    branches = (
        "then_branch = t () => (float[4] p) {%s p = Abs(%s)}, else_branch = e () => (float[4] r) {%s r = Neg(%s)}"
    )
    known = branches % ("", "a", "", "a")
    read = branches % ("d = DequantizeLinear(q, s, z)", "d", "h = DequantizeLinear(q, s, z)", "h")
    first = save(tmp_path, f"{head} y = If(c) < {known} > }}").rename(tmp_path / "float.onnx")
    second = save(tmp_path, f"{head} q = QuantizeLinear(a, s, z) y = If(c) < {read} > }}")
    report = compare(first, second)
    assert {case.name: case.verdict.kind for case in report.cases}["float_layer_Relu_0"] is VerdictKind.PASS


def test_a_fused_activation_belongs_to_the_layer_before_it(compare: Compare, net: Path, tmp_path: Path) -> None:
    """As a converter does it that keeps no name: the Relu is an attribute of the convolution."""
    model = onnx.load(net)
    conv, relu = model.graph.node[0], model.graph.node[1]
    conv.op_type, conv.domain, conv.output[0] = "FusedConv", "com.microsoft", relu.output[0]
    conv.attribute.append(helper.make_attribute("activation", "Relu"))
    model.graph.node.remove(relu)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, tmp_path / "fused.onnx")
    report = compare(net, rename(tmp_path / "fused.onnx", tmp_path / "renamed.onnx"))
    assert report.verdict.kind is VerdictKind.PASS, describe_outcome(report)
    assert report.cases[0].layer is not None
    assert report.cases[0].layer.ops == ("Conv", "Relu")
    assert report.cases[0].matched == "structure (equal weights)"


def test_few_pairs_prove_nothing(compare: Compare, tmp_path: Path) -> None:
    head, constants = "g (float[4] x) => (float[4] y)", "<float[1] one = {1}, float[1] zero = {0}>"
    first = save(tmp_path, f"{head} {{ a = Neg(x)  b = Neg(a)  c = Neg(b)  d = Neg(c)  y = Relu(d) }}")
    others = "p = Div(x, one)  q = Div(p, one)  r = Div(q, one)  s = Div(r, one)  y = Max(s, zero)"
    report = compare(first.rename(tmp_path / "first.onnx"), save(tmp_path, f"{head} {constants} {{ {others} }}"))
    assert all(case.verdict.kind is VerdictKind.PASS for case in report.cases)
    assert report.verdict.kind is VerdictKind.INCONCLUSIVE
    assert "only 1 layer of 5 could be paired" in describe_outcome(report)


def test_a_tolerance_that_is_given_holds_instead_of_what_was_measured(compare: Compare, net: Path, int8: Path) -> None:
    for rel, kind in ((1e-6, VerdictKind.FAIL), (0.5, VerdictKind.PASS)):
        assert compare(net, int8, tolerances=Tolerances(Tolerance(rel=rel))).verdict.kind is kind
    found = compare(net, int8, goal="bisect")
    assert (found.verdict.kind, found.first_wrong) == (VerdictKind.PASS, None)


@pytest.mark.parametrize(
    ("nodes", "output", "said"),
    [
        ([("Relu", "b", "a"), ("Relu", "a", "b"), ("Relu", "b", "y")], "y", "has a cycle: Relu → Relu → Relu"),
        ([("Relu", "nowhere", "y")], "y", "ERROR"),
        ([("Flatten", "", "y")], "y", "ERROR"),
        ([], "x", "is both an input and an output of broken"),
    ],
    ids=["a cycle", "what nothing makes", "no input", "no node"],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_broken_graph_is_reported(
    compare: Compare, tmp_path: Path, nodes: list[tuple[str, str, str]], output: str, said: str, is_first: bool
) -> None:
    values = [helper.make_tensor_value_info(name, 1, [2, 3]) for name in ("x", output)]
    made = [helper.make_node(op, [read] if read else [], [name]) for op, read, name in nodes]
    broken = helper.make_model(helper.make_graph(made, "g", values[:1], values[1:]), ir_version=8)
    onnx.save(broken, tmp_path / "broken.onnx")
    right = save(tmp_path, "g (float[2,3] x) => (float[2,3] y) { a = Relu(x)  y = Relu(a) }")
    pair = (tmp_path / "broken.onnx", right) if is_first else (right, tmp_path / "broken.onnx")
    if said == "ERROR":
        assert compare(*pair).verdict.kind == said
    elif nodes or is_first:
        with pytest.raises(UsageError, match=said):
            compare(*pair)


def test_what_cannot_be_compared_is_refused(compare: Compare, net: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="are equal: there is nothing to compare"):
        compare(net, net)
    other = save(tmp_path, "g (float[1,5] x) => (float[1,5] y) { y = Relu(x) }")
    with pytest.raises(UsageError, match=r"x is float32\[1, 3, 8, 8\] in net, float32\[1, 5\] in m"):
        compare(net, other)
    more = save(tmp_path, "g (float[1,5] x, float[1] z) => (float[1,5] y) { y = Relu(x) }")
    with pytest.raises(UsageError, match="net has the inputs x, m has x, z"):
        compare(net, more)


def test_a_tensor_of_another_layout_is_not_paired_though_its_name_is_the_same(compare: Compare, tmp_path: Path) -> None:
    head = "g (float[2,3] x) => (float[2,3] y)"
    first = save(tmp_path, f"{head} {{ a = Abs(x)  y = Tanh(a) }}").rename(tmp_path / "first.onnx")
    turned = save(tmp_path, f"{head} {{ t = Transpose(x)  a = Abs(t)  b = Transpose(a)  y = Tanh(b) }}")
    report = compare(first, turned)
    assert report.verdict.kind is VerdictKind.PASS, describe_outcome(report)
    assert [case.layer.ops for case in report.cases if case.layer] == [("Tanh", "Abs")]


def test_floats_of_16_bits_pass_with_what_their_type_allows(compare: Compare, net: Path, tmp_path: Path) -> None:
    short = convert_float_to_float16(onnx.load(net), keep_io_types=False)
    onnx.save(short, tmp_path / "short.onnx")
    report = compare(net, tmp_path / "short.onnx")
    assert report.verdict.kind is VerdictKind.PASS, describe_outcome(report)
    assert 0 < max(each.error for case in report.cases for each in case.local) < 0.01
