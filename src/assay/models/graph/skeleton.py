"""A model without its weights: read from the file's wire format, so that gigabytes are neither read nor copied.

Collecting tests asks every model of a folder for the names of its layers; for that, a tensor's type and dimensions are
enough. Small tensors stay: they are the shapes and axes that shape inference asks for.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from typing import Any

from assay.models.graph.onnx_library import Model, import_onnx, parse_message

KEPT_BYTES = 4096  # a tensor message up to this size stays whole

# Which fields of ONNX's messages lead to tensors: message → field number → message.
_INSIDE = {
    "model": {7: "graph", 25: "function"},
    "function": {7: "node"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_TENSOR_FIELDS = frozenset((1, 2, 8))  # what stays of a large tensor
_TENSOR_NAMES = ("dims", "data_type", "name")  # the same, by name
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}


def load_skeleton(path: str) -> Model:
    """The model with its large tensors emptied. Raises ValueError for a file that is something else, and OSError."""
    with open(path, "rb") as stream:
        try:
            content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file cannot be mapped
            raise ValueError("the file is empty") from None
    with content:
        try:
            return parse_message(import_onnx().ModelProto(), _skim(content, 0, len(content), "model"))
        except IndexError:
            raise ValueError("the file ends too early") from None


def build_skeleton(model: Model) -> Model:
    """The same of a model in memory; the model is left as it is. A small one is returned itself."""
    onnx = import_onnx()
    if sum(measure_tensor(tensor) for tensor in model.graph.initializer) <= KEPT_BYTES * 100:
        return model
    slim = onnx.ModelProto()
    copy_fields(model, slim, leave=("graph",))
    copy_fields(model.graph, slim.graph, leave=("initializer",))
    for tensor in model.graph.initializer:
        is_large = measure_tensor(tensor) > KEPT_BYTES
        copy_fields(tensor, slim.graph.initializer.add(), only=_TENSOR_NAMES if is_large else None)
    return slim


def measure_tensor(tensor: Any) -> int:
    """Its bytes, from what it says of itself: protobuf would serialise it to find out."""
    onnx = import_onnx()
    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    width = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize if tensor.data_type else 1
    return int(math.prod(tensor.dims) * width)


def copy_fields(source: Any, target: Any, *, leave: tuple[str, ...] = (), only: tuple[str, ...] | None = None) -> None:
    """Copy a message field by field: copying one as a whole fails beyond two gigabytes."""
    for descriptor, value in source.ListFields():
        name = descriptor.name
        if name in leave or (only is not None and name not in only):
            continue
        if hasattr(value, "ListFields"):
            getattr(target, name).CopyFrom(value)
        elif hasattr(value, "extend"):
            getattr(target, name).extend(value)
        else:
            setattr(target, name, value)


# ---------------------------------------------------------------- the wire format


def _skim(content: mmap.mmap, start: int, stop: int, kind: str) -> bytes:
    """The message again, with the large tensors in it reduced to what they are."""
    inside = _INSIDE[kind]
    parts = []
    for number, begin, body, end in _fields(content, start, stop):
        message = inside.get(number)
        if message is None or end - body <= KEPT_BYTES:
            parts.append(content[begin:end])
        else:
            slim = _strip(content, body, end) if message == "tensor" else _skim(content, body, end, message)
            parts.append(_varint(number << 3 | _BYTES) + _varint(len(slim)) + slim)
    return b"".join(parts)


def _strip(content: mmap.mmap, start: int, stop: int) -> bytes:
    kept = (field for field in _fields(content, start, stop) if field[0] in _TENSOR_FIELDS)
    return b"".join(content[begin:end] for _, begin, _, end in kept)


def _fields(content: mmap.mmap, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, where it begins, where its content begins, where it ends) of each field."""
    place = start
    while place < stop:
        begin = place
        key, body = _read_varint(content, place)
        place = _find_end(content, key & 7, body)
        if key & 7 == _BYTES:
            _, body = _read_varint(content, body)
        if place > stop:
            raise ValueError("the file ends too early")
        yield key >> 3, begin, body, place


def _find_end(content: mmap.mmap, wire: int, body: int) -> int:
    if wire in _WIDTHS:
        return body + _WIDTHS[wire]
    if wire not in (_VARINT, _BYTES):
        raise ValueError(f"there is no wire type {wire}")
    value, end = _read_varint(content, body)
    return end + value if wire == _BYTES else end


def _read_varint(content: mmap.mmap, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:  # ten bytes at most
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError("a number is too long")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
