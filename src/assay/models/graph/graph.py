"""ONNX models: loading, writing, the outline of their parts from the graph alone, and their weights.

Collecting tests needs the names of the layers of every model in a folder; for that, the type and dimensions of a tensor
are enough, so a model's file is read by its wire format, and gigabytes are neither read nor copied. Small tensors are
read: shape inference needs them as shapes and axes.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from assay.errors import InfrastructureError, UsageError
from assay.models.graph.onnx_library import (
    Model,
    Wiring,
    build_spec,
    build_wiring,
    find_opset,
    find_subgraphs,
    find_unreadable,
    is_constant_node,
    name_elem_type,
    parse_message,
    unify_domains,
    walk_nodes,
)
from assay.models.libraries import onnx
from assay.models.values.model import DEFAULT_GROUPS, Layer, Outline
from assay.models.values.tensors import TensorSpec
from assay.system.files import replacing, write_new
from assay.values import protobuf

Groups = Sequence[Sequence[str]]
_EXTERNAL_BYTES = 1_800_000_000  # protobuf cannot serialise more: the weights go to a file of their own


def load_model(path: str | os.PathLike[str], *, weights: bool = True, external: bool = True) -> Model:
    """Load a model; without weights, large tensors are left empty and external data is ignored. `external=False` leaves
    external data in its file, for a model that is only split into layers: each then loads its own. Raises UsageError
    for a file that is missing or not ONNX, and for external data that is missing or cut short."""
    name = os.fspath(path)
    try:
        model = _load_whole(name) if weights else load_skeleton(name)
    except FileNotFoundError:
        raise UsageError(f"there is no model {name}") from None
    except IsADirectoryError:
        raise UsageError(f"{name} is a folder, not a model") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{name} is not an ONNX model: {error}") from error
    if not model.graph.output or not model.opset_import:
        raise UsageError(f"{name} is not an ONNX model: it has no graph with outputs, or no opset")
    if fault := find_unreadable(model):
        raise UsageError(f"{name} cannot be read: {fault}", "write the model again; a newer onnx may know more types")
    unify_domains(model)
    if weights and external:
        load_external(model, os.path.dirname(os.path.abspath(name)))
    return model


def _load_whole(path: str) -> Model:
    with open(path, "rb") as stream:
        content = stream.read()
    if not content:
        raise ValueError("the file is empty")
    return parse_message(onnx.ModelProto(), content)


def write_model(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a model aside, then rename it. Weights beyond what one file can hold go next to it, into `<name>.data`."""
    name = os.fspath(path)
    if os.path.isdir(name):
        raise InfrastructureError(f"the model {name} cannot be written: it is a folder")
    os.makedirs(os.path.dirname(os.path.abspath(name)), exist_ok=True)
    try:
        with replacing(name) as aside:
            if measure_weights(model) <= _EXTERNAL_BYTES:
                write_new(aside, model.SerializeToString(deterministic=True))
                return
            data = f"{os.path.basename(name)}.data"
            if os.path.exists(f"{name}.data"):
                os.remove(f"{name}.data")  # the library would append to it
            onnx.save_model(model, aside, save_as_external_data=True, location=data, convert_attribute=False)
            load_external(model, os.path.dirname(os.path.abspath(name)))  # saving removed them from the caller's model
    except (OSError, onnx.checker.ValidationError) as error:
        raise InfrastructureError(f"the model {name} cannot be written: {error}") from error


def measure_weights(model: Model) -> int:
    return sum(measure_tensor(tensor) for tensor in model.graph.initializer)


def infer_specs(model: Model) -> dict[str, TensorSpec]:
    """Return type and shape of every tensor, as far as shape inference or the model itself knows them."""
    slim = build_skeleton(model)
    try:
        graph = onnx.shape_inference.infer_shapes(slim, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError):
        graph = slim.graph  # use only the model's own declarations: it may have an unknown operator
    values = (*graph.value_info, *graph.output, *graph.input)
    specs = {value.name: build_spec(value) for value in values}
    for tensor in graph.initializer:
        specs[tensor.name] = TensorSpec(tensor.name, name_elem_type(tensor.data_type), tuple(tensor.dims))
    return specs


def build_outline(source: str | os.PathLike[str] | Model, *, groups: Groups = DEFAULT_GROUPS) -> Outline:
    """Return the model's parts by name. Nothing is executed, no weight is read."""
    path = os.path.abspath(source) if isinstance(source, str | os.PathLike) else ""
    model: Model = load_model(path, weights=False) if path else source
    wiring = build_wiring(model.graph)
    name = (os.path.splitext(os.path.basename(path))[0] if path else model.graph.name) or "model"
    specs = infer_specs(model)
    declared = (build_spec(value) for value in model.graph.output)
    layers = []
    for number, indices in enumerate(find_parts(wiring, groups)):
        nodes = [wiring.nodes[index] for index in indices]
        ops, names = tuple(node.op_type for node in nodes), tuple(node.name for node in nodes)
        ends = find_ends(wiring, indices)
        layers.append(Layer(f"{name}_layer_{ops[0]}_{number}", number, ops, indices, *ends, names))
    return Outline(
        stem=name,
        path=path,
        opset=find_opset(model),
        inputs=tuple(build_spec(value) for value in model.graph.input if value.name not in wiring.weights),
        outputs=tuple(
            spec if spec.dtype and spec.shape is not None else specs.get(spec.name, spec) for spec in declared
        ),
        layers=tuple(layers),
        tensors=tuple(specs[name] for name in wiring.intermediates if name in specs),
    )


def find_parts(wiring: Wiring, groups: Groups) -> Iterator[tuple[int, ...]]:
    """Yield the node indices of each part: one node, or the longest matching group; Constant nodes are in none."""
    longest_first = sorted((tuple(group) for group in groups if len(group) > 1), key=len, reverse=True)
    taken: set[int] = set()
    for index, node in enumerate(wiring.nodes):
        if index in taken or is_constant_node(node):
            continue
        chains = (_match(wiring, index, group, taken) for group in longest_first)
        part = next((chain for chain in chains if chain), (index,))
        taken.update(part)
        yield part


def _match(wiring: Wiring, index: int, group: Sequence[str], taken: set[int]) -> tuple[int, ...]:
    """Return the nodes of the group that begins at a node, or nothing. Each node must be the only reader of the one
    before, and need no tensor made after the group's first node: parts keep the order in which they are computed."""
    if wiring.nodes[index].op_type != group[0]:
        return ()
    chain = [index]
    for op in group[1:]:
        made = {name for name in wiring.nodes[chain[-1]].output if name}
        readers = {reader for name in made for reader in wiring.consumers.get(name, ())}
        if len(readers) != 1 or any(map(wiring.is_output, made)):
            return ()
        following = readers.pop()
        if following in taken or wiring.nodes[following].op_type != op:
            return ()
        others = set(wiring.reads[following]) - made
        if any(wiring.producers.get(name, -1) >= index for name in others):
            return ()
        chain.append(following)
    return tuple(chain)


def find_ends(wiring: Wiring, indices: Sequence[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the inputs and the outputs of these nodes; outputs that nothing reads are included."""
    inside = set(indices)
    made = dict.fromkeys(name for index in indices for name in wiring.nodes[index].output if name)
    read = dict.fromkeys(name for index in indices for name in wiring.reads[index])
    inputs = tuple(name for name in read if name not in made and not wiring.is_constant(name))
    used = [name for name in made if wiring.is_output(name) or set(wiring.consumers.get(name, ())) - inside]
    last = [name for index in indices[-1:] for name in wiring.nodes[index].output if name]
    return inputs, tuple(used or last)


def walk_tensors(model: Model) -> Iterator[Any]:
    """Yield every constant tensor, also those of nodes' attributes, of sub-graphs and of the model's own functions."""
    nodes = list(walk_nodes(model.graph, *model.functions))
    for graph in (model.graph, *(inner for node in nodes for inner in find_subgraphs(node))):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        yield from [attribute.t] if attribute.HasField("t") else []
        yield from attribute.tensors


def find_locations(model: Model) -> list[str]:
    """Return the names of external files relative to the model."""
    entries = (entry for tensor in walk_tensors(model) for entry in tensor.external_data)
    return sorted({str(entry.value) for entry in entries if entry.key == "location"})


def load_external(model: Model, folder: str) -> None:
    """Load external data into the model."""
    tensors = [tensor for tensor in walk_tensors(model) if is_external(tensor)]
    check_external(tensors, folder)
    for tensor in tensors:
        load_external_tensor(tensor, folder)


def is_external(tensor: Any) -> bool:
    return bool(tensor.HasField("data_location") and tensor.data_location == type(tensor).EXTERNAL)


def check_external(tensors: Iterable[Any], folder: str) -> None:
    """Raise UsageError that lists all files that are missing or too short."""
    problems: dict[str, str] = {}
    for tensor in tensors:
        entry = {pair.key: pair.value for pair in tensor.external_data}
        location = entry.get("location", "")
        path = os.path.join(folder, location)
        extent = entry.get("offset") or "0", entry.get("length") or "0"
        needed = sum(map(int, extent)) if all(map(str.isdecimal, extent)) else -1
        if not location or not os.path.isfile(path):
            problems[location] = f"{path} is missing (it contains the tensor {tensor.name!r})"
        elif needed < 0:
            problems[location] = f"{tensor.name!r} cannot be at {extent[0]!r} of {path}, {extent[1]!r} bytes long"
        elif os.path.getsize(path) < needed:
            problems[location] = f"{path} has {os.path.getsize(path)} bytes, {tensor.name!r} ends at {needed}"
    if problems:
        raise UsageError(
            "the model's external data cannot be read: " + "; ".join(problems.values()),
            "put the file next to the model, under the name that the model gives it",
        )


def load_external_tensor(tensor: Any, folder: str) -> None:
    try:
        onnx.external_data_helper.load_external_data_for_tensor(tensor, folder)
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise UsageError(f"the external data of {tensor.name!r} cannot be read: {error}") from error
    tensor.ClearField("data_location")
    del tensor.external_data[:]


KEPT_BYTES = 4096  # a tensor message up to this size stays whole

# The fields of ONNX's messages that lead to tensors: message → field number → message.
_INSIDE = {
    "model": {7: "graph", 25: "function"},
    "function": {7: "node"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_TENSOR_FIELDS = frozenset((1, 2, 8))  # the fields that a large tensor keeps
_TENSOR_NAMES = ("dims", "data_type", "name")  # the names of `_TENSOR_FIELDS`


def load_skeleton(path: str) -> Model:
    """Load the model with its large tensors emptied. Raises ValueError for a file that is not ONNX, and OSError."""
    with open(path, "rb") as stream:
        try:
            content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file cannot be mapped
            raise ValueError("the file is empty") from None
    with content:
        try:
            return parse_message(onnx.ModelProto(), _skim(content, 0, len(content), "model"))
        except IndexError:
            raise ValueError("the file ends too early") from None


def build_skeleton(model: Model) -> Model:
    """Return a model without its large weights; the given model is not changed. A small model is returned itself."""
    if measure_weights(model) <= KEPT_BYTES * 100:
        return model
    slim = onnx.ModelProto()
    copy_fields(model, slim, leave=("graph",))
    copy_fields(model.graph, slim.graph, leave=("initializer",))
    for tensor in model.graph.initializer:
        is_large = measure_tensor(tensor) > KEPT_BYTES
        copy_fields(tensor, slim.graph.initializer.add(), only=_TENSOR_NAMES if is_large else None)
    return slim


def measure_tensor(tensor: Any) -> int:
    """Return a tensor's size in bytes, from its declaration: protobuf would serialise the tensor for it."""
    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    width = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize if tensor.data_type else 1
    return int(math.prod(tensor.dims) * width)


def copy_fields(source: Any, target: Any, *, leave: tuple[str, ...] = (), only: tuple[str, ...] | None = None) -> None:
    """Copy a message field by field: copying it as a whole fails beyond two gigabytes."""
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


def _skim(content: mmap.mmap, start: int, stop: int, kind: str) -> bytes:
    """Return the message with the large tensors in it reduced to their declarations."""
    inside = _INSIDE[kind]
    parts = []
    for number, begin, body, end in protobuf.scan_fields(content, start, stop):
        message = inside.get(number)
        if message is None or end - body <= KEPT_BYTES:
            parts.append(content[begin:end])
        elif message == "tensor":
            kept = (field for field in protobuf.scan_fields(content, body, end) if field[0] in _TENSOR_FIELDS)
            parts.append(protobuf.message(number, b"".join(content[first:last] for _, first, _, last in kept)))
        else:
            parts.append(protobuf.message(number, _skim(content, body, end, message)))
    return b"".join(parts)
