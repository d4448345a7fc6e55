"""The weights of a model: external data in other files, and models read without their weights.

Collecting tests needs the names of the layers of every model in a folder; for that, the type and dimensions of a tensor
are enough. So a model's file is read by its wire format, and gigabytes are neither read nor copied. Small tensors stay:
they are the shapes and axes that shape inference needs.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable, Iterator
from typing import Any

from assay.errors import UsageError
from assay.models.graph.onnx_library import Graph, Model, Node, find_subgraphs, import_onnx, parse_message
from assay.values import protobuf

# ---------------------------------------------------------------- external data


def walk_tensors(model: Model) -> Iterator[Any]:
    """Every constant tensor, also those of nodes' attributes, of sub-graphs and of the model's own functions."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _node_tensors(function.node)


def _graph_tensors(graph: Graph) -> Iterator[Any]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[Node]) -> Iterator[Any]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for graph in find_subgraphs(node):
            yield from _graph_tensors(graph)


def find_locations(model: Model) -> list[str]:
    """The files' names, as the model gives them: relative to it."""
    entries = (entry for tensor in walk_tensors(model) for entry in tensor.external_data)
    return sorted({str(entry.value) for entry in entries if entry.key == "location"})


def load_external(model: Model, folder: str) -> None:
    """Bring external data into the model."""
    tensors = [tensor for tensor in walk_tensors(model) if is_external(tensor)]
    check_external(tensors, folder)
    for tensor in tensors:
        load_external_tensor(tensor, folder)


def is_external(tensor: Any) -> bool:
    return bool(tensor.HasField("data_location") and tensor.data_location == type(tensor).EXTERNAL)


def check_external(tensors: Iterable[Any], folder: str) -> None:
    """All files that are missing or too short, at once. Raises UsageError."""
    problems: dict[str, str] = {}
    for tensor in tensors:
        entry = {pair.key: pair.value for pair in tensor.external_data}
        location = entry.get("location", "")
        path = os.path.join(folder, location)
        needed = int(entry.get("offset") or 0) + int(entry.get("length") or 0)
        if not location or not os.path.isfile(path):
            problems[location] = f"{path} is missing (the tensor {tensor.name!r} is there)"
        elif os.path.getsize(path) < needed:
            problems[location] = f"{path} has {os.path.getsize(path)} bytes, {tensor.name!r} ends at {needed}"
    if problems:
        raise UsageError(
            "the model's external data cannot be read: " + "; ".join(problems.values()),
            "put the file next to the model, under the name that the model gives it",
        )


def load_external_tensor(tensor: Any, folder: str) -> None:
    onnx = import_onnx()
    try:
        onnx.external_data_helper.load_external_data_for_tensor(tensor, folder)
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise UsageError(f"the external data of {tensor.name!r} cannot be read: {error}") from error
    tensor.ClearField("data_location")
    del tensor.external_data[:]


# ---------------------------------------------------------------- models without their weights

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
    for number, begin, body, end in protobuf.scan_fields(content, start, stop):
        message = inside.get(number)
        if message is None or end - body <= KEPT_BYTES:
            parts.append(content[begin:end])
        else:
            slim = _strip(content, body, end) if message == "tensor" else _skim(content, body, end, message)
            parts.append(protobuf.message(number, slim))
    return b"".join(parts)


def _strip(content: mmap.mmap, start: int, stop: int) -> bytes:
    kept = (field for field in protobuf.scan_fields(content, start, stop) if field[0] in _TENSOR_FIELDS)
    return b"".join(content[begin:end] for _, begin, _, end in kept)
