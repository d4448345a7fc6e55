"""What a graph says of its values: types by numpy's names, shapes, and the opset that its operators are of."""

from __future__ import annotations

from typing import Any

from assay.errors import UsageError
from assay.probe.onnx_library import Model, import_onnx
from assay.probe.wiring import DEFAULT_DOMAINS
from assay.values.tensors import Dim, TensorSpec

_KINDS = {"sequence_type": "sequence", "optional_type": "optional", "map_type": "map", "sparse_tensor_type": "sparse"}


def build_spec(value: Any) -> TensorSpec:
    """What a graph says of a value; `dtype` is "sequence", "optional" or "map" for what is no tensor."""
    kind = value.type.WhichOneof("value")
    if kind in _KINDS:
        return TensorSpec(value.name, _KINDS[kind])
    tensor = value.type.tensor_type
    return TensorSpec(value.name, name_elem_type(tensor.elem_type), _build_shape(tensor))


def _build_shape(tensor: Any) -> tuple[Dim, ...] | None:
    return tuple(_build_dim(dim) for dim in tensor.shape.dim) if tensor.HasField("shape") else None


def _build_dim(dim: Any) -> Dim:
    kind = dim.WhichOneof("value")
    if kind == "dim_value":
        return int(dim.dim_value) if dim.dim_value >= 0 else None  # some exporters write -1 for what is open
    return (dim.dim_param or None) if kind else None


def name_elem_type(elem_type: int) -> str:
    """ONNX's number of a type by numpy's name; "" where there is none."""
    onnx = import_onnx()
    if elem_type == onnx.TensorProto.STRING:
        return "string"
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(elem_type).name) if elem_type else ""
    except KeyError:
        return ""


def find_elem_type(dtype: str) -> int:
    """The other way round. Raises UsageError for a type that ONNX lacks."""
    from assay.probe.tensorfile import parse_dtype

    onnx = import_onnx()
    try:
        return int(onnx.helper.np_dtype_to_tensor_dtype(parse_dtype(dtype)))
    except (KeyError, ValueError):
        raise UsageError(f"ONNX has no tensor of type {dtype}") from None


def find_opset(model: Model) -> int:
    """Of ONNX's own operators; 0: the model uses none."""
    return max((entry.version for entry in model.opset_import if entry.domain in DEFAULT_DOMAINS), default=0)
