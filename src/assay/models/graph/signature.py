"""What a graph says of its values: types by numpy's names, shapes, and the opset that its operators are of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from assay.errors import UsageError
from assay.models.graph.onnx_library import Model, import_onnx
from assay.models.graph.wiring import DEFAULT_DOMAINS
from assay.models.values.tensors import Dim, TensorSpec

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
    from assay.models.graph.tensorfile import parse_dtype

    onnx = import_onnx()
    try:
        return int(onnx.helper.np_dtype_to_tensor_dtype(parse_dtype(dtype)))
    except (KeyError, ValueError):
        raise UsageError(f"ONNX has no tensor of type {dtype}") from None


def find_opset(model: Model) -> int:
    """Of ONNX's own operators; 0: the model uses none."""
    return max((entry.version for entry in model.opset_import if entry.domain in DEFAULT_DOMAINS), default=0)


_NEW_TYPES = {  # IR version → the types that came with it
    9: ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"),
    10: ("UINT4", "INT4"),
    11: ("FLOAT4E2M1",),
    12: ("FLOAT8E8M0",),
    13: ("UINT2", "INT2"),
}
_NEW_FIELDS = {8: ("functions",), 11: ("configuration",)}  # of a model


def find_newer_use(model: Model, most: int) -> str:
    """What a model uses that came after an IR version; empty: nothing that is known of."""
    kinds = import_onnx().TensorProto.DataType
    newer = [name for version, names in _NEW_TYPES.items() if version > most for name in names]
    numbers = {kinds.Value(name): name for name in newer if name in kinds.keys()}  # noqa: SIM118 a protobuf enum
    for number in _list_types(model):
        if number in numbers:
            return numbers[number]
    fields = [name for version, names in _NEW_FIELDS.items() if version > most for name in names]
    return next((name for name in fields if getattr(model, name, None)), "")


def _list_types(message: Any) -> Iterator[int]:
    """Every type of a tensor or of a value in it, also in sub-graphs and attributes."""
    for field, value in message.ListFields():
        if field.name in ("data_type", "elem_type") and isinstance(value, int):
            yield value
        elif field.name in ("to", "i"):
            yield from [value] if isinstance(value, int) else []
        elif field.message_type is not None:
            for each in value if field.is_repeated else (value,):
                yield from _list_types(each)
