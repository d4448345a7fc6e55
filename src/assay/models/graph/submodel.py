"""Models made from another model: some of its nodes, the part between chosen tensors, or the whole with more outputs.

A model that is made here has the weights and functions that its nodes need, and the operator sets of the original.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from assay.errors import NotFoundError, UsageError
from assay.models.graph.graph import copy_fields, infer_specs, is_external, load_external_tensor
from assay.models.graph.onnx_library import Model, Node, Wiring, build_wiring, find_subgraphs, is_constant_node
from assay.models.graph.tensorfile import Array, name_dtype, parse_dtype
from assay.models.libraries import np, onnx
from assay.models.values.tensors import TensorSpec

PRODUCER = "assay"
_FIRST_FREE_IR = 4  # in earlier IR versions every initialiser had to be listed as an input as well
NON_TENSORS = ("sequence", "optional", "map", "sparse")


def build_submodel(
    model: Model,
    wiring: Wiring,
    node_indices: Sequence[int],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    name: str,
    frozen: Mapping[str, Array] | None = None,
    values: Iterable[TensorSpec] = (),
    folder: str = "",
) -> Model:
    """Build a model of the nodes with these indices between inputs and outputs. `frozen` tensors become initialisers;
    `values` are known specs of tensors in between; `folder` has the external data that was not loaded with the
    model."""
    frozen = frozen or {}
    result = _build_header(model)
    graph = result.graph
    graph.name = name
    nodes = (wiring.nodes[index] for index in node_indices)
    graph.node.extend(node for node in nodes if not is_constant_node(node) or _is_sparse(node))
    result.functions.extend(find_functions(model, graph.node))
    graph.input.extend(build_value(spec) for spec in inputs)
    graph.output.extend(build_value(spec) for spec in outputs)
    graph.value_info.extend(build_value(spec) for spec in values)
    given = {spec.name for spec in inputs}
    read = dict.fromkeys(name for index in node_indices for name in wiring.reads[index])
    for tensor in (name for name in read if name not in given):
        if tensor in frozen:
            graph.initializer.append(build_tensor(tensor, frozen[tensor]))
        elif wiring.is_constant(tensor):
            _add_weight(result, wiring, tensor, folder)
    return result


def _build_header(model: Model) -> Model:
    result = onnx.ModelProto()
    result.ir_version = min(max(model.ir_version, _FIRST_FREE_IR), int(onnx.IR_VERSION))
    result.producer_name = PRODUCER
    result.opset_import.extend(model.opset_import)
    return result


def find_functions(model: Model, nodes: Iterable[Node]) -> list[Any]:
    """Return the model's functions that these nodes call, directly or through other functions."""
    known = {(function.domain, function.name, function.overload): function for function in model.functions}
    found: dict[tuple[str, str, str], Any] = {}
    waiting = list(nodes) if known else []
    while waiting:
        node = waiting.pop()
        waiting.extend(inner for graph in find_subgraphs(node) for inner in graph.node)
        key = (node.domain, node.op_type, node.overload)
        if key in known and key not in found:
            found[key] = known[key]
            waiting.extend(known[key].node)
    return [found[key] for key in known if key in found]


def build_value(spec: TensorSpec) -> Any:
    """Return the declaration of a tensor in a graph; a tensor of unknown type gets only its name."""
    if spec.dtype in NON_TENSORS:
        raise UsageError(f"{spec.name!r} is not a tensor but a {spec.dtype}")
    if not spec.dtype:
        return onnx.ValueInfoProto(name=spec.name)
    return onnx.helper.make_tensor_value_info(spec.name, find_elem_type(spec.dtype), spec.shape)


def find_elem_type(dtype: str) -> int:
    """Return ONNX's number for this type. Raises UsageError for a type that ONNX lacks."""
    try:
        return int(onnx.helper.np_dtype_to_tensor_dtype(parse_dtype(dtype)))
    except (KeyError, ValueError):
        raise UsageError(f"ONNX has no tensor of type {dtype}") from None


def describe_array(name: str, array: Array) -> TensorSpec:
    return TensorSpec(name, name_dtype(array), tuple(int(dim) for dim in array.shape))


def build_tensor(name: str, array: Array) -> Any:
    if name_dtype(array) == "string":
        array = np.asarray(array, dtype=object)
    return onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)


def _is_sparse(node: Node) -> bool:
    return any(attribute.name == "sparse_value" for attribute in node.attribute)


def _add_weight(result: Model, wiring: Wiring, name: str, folder: str) -> None:
    tensor = wiring.weights.get(name)
    if tensor is None:
        node = wiring.nodes[wiring.constants[name]]
        if not _is_sparse(node):
            result.graph.initializer.append(build_constant(node))
        elif node not in result.graph.node:
            result.graph.node.insert(0, node)
    elif hasattr(tensor, "indices"):
        result.graph.sparse_initializer.append(tensor)
    else:
        copied = result.graph.initializer.add()
        copied.CopyFrom(tensor)
        if is_external(copied):
            load_external_tensor(copied, folder)


def build_constant(node: Node) -> Any:
    """Return the tensor of a Constant node, under the name of its output. Raises UsageError unless it has one value."""
    found = [attribute for attribute in node.attribute if attribute.name.startswith("value")]
    if len(found) != 1:
        raise UsageError(f"the constant {node.output[0]!r} has {len(found)} values")
    attribute = found[0]
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.name == "value":
        tensor = onnx.TensorProto()
        tensor.CopyFrom(value)
        tensor.name = node.output[0]
        return tensor
    kinds = {"float": np.float32, "floats": np.float32, "int": np.int64, "ints": np.int64}
    kind = kinds.get(attribute.name.removeprefix("value_"), object)
    return build_tensor(node.output[0], np.array(value, dtype=kind))


def load_constant(wiring: Wiring, name: str) -> Array | None:
    """Return the array of a constant; None for a tensor that is not constant, is sparse, or has no readable data."""
    try:
        tensor = wiring.weights.get(name)
        if name in wiring.constants:
            node = wiring.nodes[wiring.constants[name]]
            tensor = None if _is_sparse(node) else build_constant(node)
        return None if tensor is None or hasattr(tensor, "indices") else onnx.numpy_helper.to_array(tensor)
    except (ValueError, OSError, UsageError, onnx.checker.ValidationError):
        return None


Types = Mapping[str, TensorSpec]


def build_marked(model: Model, names: Iterable[str] | None = None, *, types: Types | None = None) -> Model:
    """Return the model with these tensors as additional outputs after its own; by default all intermediate tensors.
    `types` come from a reference run: they override types of the graph and of shape inference, also for inputs and
    outputs, so that open dimensions get the sample's sizes. Values that are not tensors are left out."""
    wiring = build_wiring(model.graph)
    wanted = list(wiring.intermediates if names is None else names)
    check_names(wiring, wanted)
    types = types or {}
    specs = {**infer_specs(model), **types}
    marked = copy_model(model)
    for value in (*marked.graph.input, *marked.graph.output):
        if value.name in types and types[value.name].dtype not in NON_TENSORS:
            value.CopyFrom(build_value(types[value.name]))
    # the model's declarations of intermediate tensors may contradict `types`
    kept = [value for value in marked.graph.value_info if value.name not in types]
    del marked.graph.value_info[:]
    marked.graph.value_info.extend(kept)
    for name in dict.fromkeys(wanted):
        spec = specs.get(name, TensorSpec(name, ""))
        if spec.dtype not in NON_TENSORS and name in wiring.producers and not wiring.is_output(name):
            marked.graph.output.append(build_value(spec))
    return marked


def copy_model(model: Model) -> Model:
    copied = onnx.ModelProto()
    copy_fields(model, copied, leave=("graph",))
    copy_fields(model.graph, copied.graph)
    return copied


def check_names(wiring: Wiring, names: Iterable[str]) -> None:
    known = {*wiring.producers, *wiring.constants, *wiring.inputs, *wiring.weights}
    for name in names:
        if name not in known:
            raise NotFoundError("tensor", name, known)


def build_cut(model: Model, inputs: Sequence[str], outputs: Sequence[str], types: Types | None = None) -> Model:
    """Return the smallest sub-model that computes `outputs` from `inputs`. Other inputs of the model that are needed
    stay inputs; given inputs that are not needed are left out. Raises UsageError for an input of unknown type, and for
    an output that no node makes."""
    wiring = build_wiring(model.graph)
    check_names(wiring, (*inputs, *outputs))
    for output in outputs:
        if output in inputs or output not in wiring.producers:
            raise UsageError(f"{output!r} is not made between the inputs and the outputs of the cut")
    indices = wiring.find_ancestors(outputs, stop=inputs)
    read = {tensor for index in indices for tensor in wiring.reads[index]}
    specs = {**infer_specs(model), **(types or {})}
    needed = []
    for tensor in dict.fromkeys((*inputs, *wiring.inputs)):
        if tensor in read:
            if not specs.get(tensor, TensorSpec(tensor, "")).dtype:
                raise UsageError(f"the type of {tensor!r} is not known: no cut can be made there")
            needed.append(specs[tensor])
    made = {tensor for index in indices for tensor in wiring.nodes[index].output} - {*outputs, *wiring.constants, ""}
    between = (specs[tensor] for tensor in sorted(made) if tensor in specs)
    return build_submodel(
        model,
        wiring,
        indices,
        needed,
        [specs.get(tensor, TensorSpec(tensor, "")) for tensor in outputs],
        name=model.graph.name or "cut",
        values=[spec for spec in between if spec.dtype not in ("", *NON_TENSORS)],
    )


def name_part(number: int, name: str) -> str:
    """Return the name that an input of one of several models has in `join_models`."""
    return f"part{number}/{name}"


def join_models(models: Sequence[Model]) -> Model:
    """Join independent parts of one model in one graph; their outputs keep their names."""
    joined = _build_header(models[0])
    joined.graph.name = "together"
    for number, model in enumerate(models):
        kept = dict.fromkeys(("rename_nodes", "rename_edges", "rename_outputs", "rename_value_infos"), False)
        part = onnx.compose.add_prefix(model, name_part(number, ""), **kept)
        for field in ("node", "input", "output", "initializer", "sparse_initializer", "value_info"):
            getattr(joined.graph, field).extend(getattr(part.graph, field))
        joined.functions.extend(part.functions)
    return joined
