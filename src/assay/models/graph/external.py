"""External data: weights that lie in files beside the model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from assay.errors import UsageError
from assay.models.graph.onnx_library import Graph, Model, Node, import_onnx
from assay.models.graph.wiring import find_subgraphs


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
            problems[location] = f"{path} is missing (the tensor {tensor.name!r} lies there)"
        elif os.path.getsize(path) < needed:
            problems[location] = f"{path} has {os.path.getsize(path)} bytes, {tensor.name!r} ends at {needed}"
    if problems:
        raise UsageError(
            "the model's external data cannot be read: " + "; ".join(problems.values()),
            "put the file beside the model, under the name that the model gives it",
        )


def load_external_tensor(tensor: Any, folder: str) -> None:
    onnx = import_onnx()
    try:
        onnx.external_data_helper.load_external_data_for_tensor(tensor, folder)
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise UsageError(f"the external data of {tensor.name!r} cannot be read: {error}") from error
    tensor.ClearField("data_location")
    del tensor.external_data[:]
