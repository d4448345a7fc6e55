"""Types, shapes and opsets, as models write them down."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper
from tests.models.model_shelf import parse

from assay.errors import UsageError
from assay.models.graph.signature import build_spec, find_elem_type, find_opset, name_elem_type


def test_what_is_no_tensor_is_said_to_be_so() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2])
    assert build_spec(sequence).dtype == "sequence"
    nothing = onnx.ValueInfoProto(name="n")
    assert (build_spec(nothing).dtype, build_spec(nothing).shape) == ("", None)
    text = helper.make_tensor_value_info("t", TensorProto.STRING, ["n", None, -1, 3])
    assert (build_spec(text).dtype, build_spec(text).shape) == ("string", ("n", None, None, 3))


@pytest.mark.parametrize("number", [value for value in TensorProto.DataType.values() if value])
def test_every_type_has_a_name_and_back(number: int) -> None:
    name = name_elem_type(number)
    assert name
    assert find_elem_type(name) == number


def test_a_type_that_onnx_lacks_is_told() -> None:
    with pytest.raises(UsageError, match="no tensor of type datetime64"):
        find_elem_type("datetime64")
    assert name_elem_type(999) == ""


@pytest.mark.parametrize(
    ("number", "name"), [(1, "float32"), (8, "string"), (16, "bfloat16"), (22, "int4"), (0, ""), (999, "")]
)
def test_types_by_number(number: int, name: str) -> None:
    assert name_elem_type(number) == name


def test_the_opset_is_that_of_onnxs_own_operators() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    del model.opset_import[:]
    assert find_opset(model) == 0
    model.opset_import.extend([helper.make_opsetid("com.example", 99), helper.make_opsetid("ai.onnx", 16)])
    assert find_opset(model) == 16
    model.opset_import.append(helper.make_opsetid("", 17))
    assert find_opset(model) == 17
