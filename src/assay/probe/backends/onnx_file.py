"""An ONNX model in files, as the back ends that read ONNX themselves keep it: the model and its external data.

A model without external data is one file; one with external data is a folder with the model under a fixed name and the
data beside it, under the names that the model knows.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

from assay.probe.backends.base import BackendError
from assay.probe.onnx_library import Graph, Model, import_onnx
from assay.probe.skeleton import load_skeleton
from assay.values.tensors import Dim, TensorSpec

MODEL_FILE = "model.onnx"


def copy_model(source: str, folder: str) -> str:
    """Copy a model with all that belongs to it into a folder; where it lies there."""
    data = find_external(source)
    target = os.path.join(folder, "model") if data else folder
    os.makedirs(target, exist_ok=True)
    shutil.copyfile(source, os.path.join(target, MODEL_FILE))
    for name in data:
        place = os.path.join(target, name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        shutil.copyfile(os.path.join(os.path.dirname(source), name), place)
    return target if data else os.path.join(target, MODEL_FILE)


def find_model(path: str) -> str:
    """The model's own file in what `copy_model` made."""
    return os.path.join(path, MODEL_FILE) if os.path.isdir(path) else path


def load_outline(path: str) -> Model:
    """The model without its weights. Raises BackendError for what is not there, or not ONNX."""
    try:
        model = load_skeleton(path)
    except FileNotFoundError:
        raise BackendError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise BackendError(f"{path} is not an ONNX model: {error}") from error
    if not model.graph.node and not model.graph.output:
        raise BackendError(f"{path} is not an ONNX model: it has neither nodes nor outputs")
    return model


def find_external(path: str) -> list[str]:
    """Names of the files with the model's weights, relative to it. Raises BackendError where one is missing."""
    folder = os.path.dirname(os.path.abspath(path))
    names = sorted({name for tensor in _walk_tensors(load_outline(path)) for name in _locations(tensor)})
    outside = [name for name in names if os.path.isabs(name) or os.path.normpath(name).startswith("..")]
    if outside:
        raise BackendError(f"the external data {', '.join(outside)} lies outside of the model's folder")
    missing = [name for name in names if not os.path.isfile(os.path.join(folder, name))]
    if missing:
        listed = ", ".join(os.path.join(folder, name) for name in missing)
        raise BackendError(f"missing external data: {listed}", hint="put the file beside the model")
    return names


def _walk_tensors(model: Model) -> Iterator[Any]:
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _node_tensors(function.node)


def _graph_tensors(graph: Graph) -> Iterator[Any]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Any) -> Iterator[Any]:
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for graph in [*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs]:
            yield from _graph_tensors(graph)


def _locations(tensor: Any) -> Iterator[str]:
    return (str(entry.value) for entry in tensor.external_data if entry.key == "location")


# ---------------------------------------------------------------- what goes in and comes out


def build_input_specs(model: Model) -> tuple[TensorSpec, ...]:
    """Initialisers that are listed as inputs do not count."""
    known = {tensor.name for tensor in model.graph.initializer}
    return tuple(build_spec(value) for value in model.graph.input if value.name not in known)


def build_output_specs(model: Model) -> tuple[TensorSpec, ...]:
    return tuple(build_spec(value) for value in model.graph.output)


def build_spec(value: Any) -> TensorSpec:
    kind = value.type.tensor_type
    dtype = name_type(kind.elem_type) if value.type.HasField("tensor_type") else ""
    shape = tuple(_build_dim(dim) for dim in kind.shape.dim) if kind.HasField("shape") else None
    return TensorSpec(value.name, dtype, shape)


def _build_dim(dim: Any) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None  # some exporters write -1 for what is open
    return str(dim.dim_param) or None


def name_type(number: int) -> str:
    """ONNX's number of a type → numpy's or ml_dtypes' name; nothing for an unknown one."""
    onnx = import_onnx()
    if number == onnx.TensorProto.STRING:
        return "string"
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(number).name)
    except KeyError:
        return ""


def find_opset(model: Model) -> int:
    """Of ONNX's own operators; 0 where the model does not say."""
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def name_operators(model: Model) -> set[str]:
    return {node.op_type for node in model.graph.node}
