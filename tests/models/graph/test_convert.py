"""Another opset: the same numbers, or the operator that stands in the way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.example_models import assert_equal, load_examples, parse, run, sample

from assay.errors import UsageError
from assay.models.graph import convert
from assay.models.graph.convert import build_converted, convert_opset, find_newest_opset
from assay.models.graph.graph import load_model
from assay.models.graph.onnx_library import find_opset

OLD = "g (float[2,1] x) => (float[2] y) { a = Squeeze<axes = [1]>(x)  y = Clip<min = 0.0, max = 6.0>(a) }"


def test_an_old_model_becomes_a_new_one(tmp_path: Path) -> None:
    model = parse(OLD, opset=9)
    (tmp_path / "old.onnx").write_bytes(model.SerializeToString())
    before, after = convert_opset(tmp_path / "old.onnx", tmp_path / "new" / "m.onnx", 17)
    converted = load_model(tmp_path / "new" / "m.onnx")
    assert after == converted
    assert (find_opset(before), find_opset(converted)) == (9, 17)
    feeds = {"x": np.array([[-1], [7]], np.float32)}
    assert_equal(run(converted, feeds)["y"], run(model, feeds)["y"])
    assert find_opset(load_model(tmp_path / "old.onnx")) == 9
    assert build_converted(model, 9) is model


@pytest.mark.parametrize("name", load_examples().MODELS)
def test_the_examples_survive_a_newer_opset(name: str) -> None:
    model = load_examples().MODELS[name]()
    feeds = sample(model)
    converted = build_converted(model, 21)
    for output, value in run(model, feeds).items():
        assert np.allclose(run(converted, feeds)[output], value, rtol=1e-5, atol=1e-6)


def test_functions_are_inlined_and_branches_converted() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 11, "local": 1]>
        g (float[2,1] x, bool c) => (float[2] y) { a = local.f(x)  y = If (c) <
            then_branch = t () => (float[2] p) { p = Squeeze<axes = [1]>(a) },
            else_branch = e () => (float[2] q) { r = Squeeze<axes = [1]>(a)  q = Neg(r) } > }
        <domain: "local", opset_import: ["": 11]> f (p) => (q) { q = Exp(p) }""")
    converted = build_converted(model, 17)
    assert not converted.functions
    for choice in (True, False):
        feeds = {"x": np.array([[-1], [1]], np.float32), "c": np.array(choice)}
        assert_equal(run(converted, feeds)["y"], run(model, feeds)["y"])


@pytest.mark.parametrize(
    ("body", "before", "opset", "complaint"),
    [
        ("g (float[2,3] x) => (float[2,3] y) { y = Gelu(x) }", 20, 9, "the operator Gelu"),
        ("g (float[1,1,4] x) => (float[1,1,2] y) { y = MaxPool<kernel_shape = [2], strides = [2]>(x) }", 12, 9, "cannot convert the operator MaxPool"),
    ],
)  # fmt: skip
def test_the_operator_in_the_way_is_named(body: str, before: int, opset: int, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        build_converted(parse(body, opset=before), opset, name="m.onnx")
    assert f"m.onnx cannot be converted from opset {before} to {opset}" in str(caught.value)
    assert "export the model again with that opset" in str(caught.value)


@pytest.mark.parametrize(
    ("opsets", "node", "complaint"), [('"": 13', "Fancy(x)", "no operator Fancy"), ('"my": 1', "my.F(x)", "nothing to convert")]
)  # fmt: skip
def test_operators_that_onnx_does_not_have_are_named(opsets: str, node: str, complaint: str) -> None:
    text = f"<ir_version: 8, opset_import: [{opsets}]> g (float[2] x) => (float[2] y) {{ y = {node} }}"
    with pytest.raises(UsageError, match=complaint):
        build_converted(onnx.parser.parse_model(text), 17)


@pytest.mark.parametrize("opset", [0, 10_000])
def test_an_opset_that_does_not_exist_is_reported(opset: int) -> None:
    with pytest.raises(UsageError, match=f"there is no opset {opset}") as caught:
        build_converted(parse(OLD, opset=9), opset)
    assert f"1 to {find_newest_opset()}" in str(caught.value)
    model = parse(OLD, opset=9)
    model.opset_import[0].version = 99
    with pytest.raises(UsageError, match=rf"opset 99, .* knows \({find_newest_opset()}\)\n  update onnx, or export"):
        build_converted(model, 17)


def test_a_model_beyond_the_librarys_size_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "_CONVERTED_BYTES", 10)
    with pytest.raises(UsageError, match="too large"):
        build_converted(load_examples().build_cnn(), 21)


def test_nothing_is_written_when_it_fails(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(parse(OLD, opset=9).SerializeToString())
    with pytest.raises(UsageError):
        convert_opset(tmp_path / "m.onnx", tmp_path / "new.onnx", 10_000)
    with pytest.raises(UsageError, match="there is no model"):
        convert_opset(tmp_path / "gone.onnx", tmp_path / "new.onnx", 17)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def old_file(**more: object) -> onnx.ModelProto:
    """Opset 6, and a weight that is no input: a rule of its IR version."""
    ends = [onnx.helper.make_tensor_value_info(name, 1, [2, 3, 4]) for name in ("x", "y")]
    weight = onnx.numpy_helper.from_array(np.ones(3, np.float32), "b")
    node = onnx.helper.make_node("Add", ["x", "b"], ["y"], broadcast=1, **more)
    graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:], [weight])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 6)], ir_version=3)


def test_a_file_that_breaks_a_rule_is_reported_which() -> None:
    with pytest.raises(
        UsageError, match=r"old\.onnx breaks a rule of ONNX: b in initializer but not in graph input"
    ) as caught:
        build_converted(old_file(axis=1), 17, name="old.onnx")
    assert caught.value.hint == "it is held to opset 6 and IR version 3"


def test_where_onnx_gives_up_the_operator_is_named_and_nothing_of_its_code() -> None:
    model = old_file(axis=1)
    model.graph.input.append(onnx.helper.make_tensor_value_info("b", 1, [3]))
    onnx.checker.check_model(model)
    with pytest.raises(UsageError) as caught:
        build_converted(model, 17)
    assert "to 17: the operator Add: Dimension 0 of input 2 does not match" in caught.value.message
    assert ".cc" not in caught.value.message


def test_what_stands_in_the_way_is_found_by_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    assert convert.find_obstacle(parse(OLD, opset=9), 17, "m") == ""
    assert convert.find_obstacle(old_file(), 17, "m").startswith("m breaks a rule of ONNX: b in initializer")
    monkeypatch.setattr(convert, "_TRIED_BYTES", 0)
    assert convert.find_obstacle(old_file(), 17, "m") == "", "too large to try it on the side"
