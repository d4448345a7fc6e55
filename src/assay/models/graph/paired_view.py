"""The second of two paired models with the names of the first, and the first model rounded like the second.

In the view every paired tensor has its name in the first model, and all other tensors have a prefix. Integers are
converted to floats and back, so that a part of the model can be cut out between any two tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from assay.errors import UsageError
from assay.models.graph.graph import find_ends
from assay.models.graph.matching import ROUNDING, GroupPair, ModelSide
from assay.models.graph.onnx_library import (
    Graph,
    Model,
    Node,
    Wiring,
    build_wiring,
    find_reads,
    find_subgraphs,
    read_attributes,
)
from assay.models.graph.submodel import build_submodel, build_tensor, copy_model, load_constant
from assay.models.libraries import np, onnx
from assay.models.values.tensors import TensorSpec

Specs = Mapping[str, TensorSpec]
OWN = "other/"  # prefix of tensors that only the second model has
_FLOAT8_BITS = 5  # a mantissa of three bits rounds as coarsely as an integer of five bits


def build_view(side: ModelSide, pairs: Iterable[GroupPair]) -> Model:
    """Return the second model with the first one's names; integers are dequantised and quantised again."""
    model = copy_model(side.model)
    renamed = {pair.right.value: pair.left.value for pair in pairs}
    whole = [pair for pair in pairs if pair.right.is_whole and pair.right.value in side.wiring.producers]
    names = {*side.wiring.producers, *side.wiring.constants, *side.wiring.weights, *side.wiring.inputs}
    mapping = {name: renamed.get(name, OWN + name) for name in names}
    mapping |= {pair.right.value: f"{OWN}{pair.right.value}" for pair in whole}
    mapping |= _merge_copies(model.graph, mapping)
    _rename(model.graph, mapping)
    for pair in whole:
        scales = [mapping[name] for name in pair.right.scaling or () if name]
        _insert_floats(model.graph, mapping[pair.right.value], pair.left.value, scales)
    return model


def find_order(model: Model) -> list[int]:
    """Return the indices of the nodes, each after the nodes whose outputs it reads: converters append the nodes that
    they add. Raises UsageError for a cycle."""
    makers = {name: index for index, node in enumerate(model.graph.node) for name in node.output if name}
    reads = [{makers[name] for name in find_reads(node) if name in makers} for node in model.graph.node]
    if all(each < index for index, needed in enumerate(reads) for each in needed):
        return list(range(len(reads)))
    try:
        return list(TopologicalSorter(dict(enumerate(reads))).static_order())
    except CycleError as error:
        cycle = " → ".join(model.graph.node[index].op_type for index in error.args[1])
        raise UsageError(f"the graph {model.graph.name!r} has a cycle: {cycle}") from None


def sort_nodes(model: Model) -> Model:
    order = find_order(model)
    if order == sorted(order):
        return model
    nodes = [type(node).FromString(node.SerializeToString()) for node in model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes[index] for index in order)
    return model


def rename_ends(model: Model, names: Mapping[str, str]) -> Model:
    """Return the model with tensors renamed by `names`; all other tensors get the prefix OWN."""
    wiring, renamed = build_wiring(model.graph), copy_model(model)
    known = {*wiring.producers, *wiring.constants, *wiring.weights, *wiring.inputs}
    _rename(renamed.graph, {name: names.get(name, OWN + name) for name in known})
    return renamed


def _merge_copies(graph: Graph, mapping: Mapping[str, str]) -> dict[str, str]:
    """Remove DequantizeLinear nodes that repeat another one; return the tensors that replace their outputs."""
    first, merged, kept = dict[tuple[str, ...], str](), dict[str, str](), list[Node]()
    for node in graph.node:
        same = first.setdefault(tuple(node.input), node.output[0]) if node.op_type == "DequantizeLinear" else ""
        is_copy = (
            bool(same) and same != node.output[0] and not any(node.output[0] == each.name for each in graph.output)
        )
        merged |= {node.output[0]: mapping[same]} if is_copy else {}
        kept += [] if is_copy else [node]
    del graph.node[:]
    graph.node.extend(kept)
    return merged


def _rename(graph: Graph, mapping: Mapping[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [mapping.get(name, name) for name in node.input]
        node.output[:] = [mapping.get(name, name) for name in node.output]
        for inner in find_subgraphs(node):
            _rename(inner, mapping)
    for values in (graph.input, graph.output, graph.value_info, graph.initializer):
        for value in values:
            value.name = mapping.get(value.name, value.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = mapping.get(sparse.values.name, sparse.values.name)


def _insert_floats(graph: Graph, whole: str, name: str, scales: Sequence[str]) -> None:
    """Insert nodes that convert the integers `whole` to the floats `name`, and back to integers for all readers."""
    helper, again = onnx.helper, f"{whole}/again"
    at = next(index for index, node in enumerate(graph.node) if whole in node.output) + 1
    for node in graph.node:
        node.input[:] = [again if each == whole else each for each in node.input]
    graph.node.insert(at, helper.make_node("QuantizeLinear", [name, *scales], [again]))
    graph.node.insert(at, helper.make_node("DequantizeLinear", [whole, *scales], [name]))


def cut_model(
    model: Model, wiring: Wiring, stops: Iterable[str], outputs: Sequence[str], specs: Specs, name: str
) -> Model:
    """Return a model of the nodes between the nearest of the stops and the outputs."""
    borders = set(stops) - set(outputs)
    indices = wiring.find_ancestors(outputs, stop=borders)
    inputs, ends = (
        [specs.get(each, TensorSpec(each, "")) for each in names] for names in (find_ends(wiring, indices)[0], outputs)
    )
    return build_submodel(model, wiring, indices, inputs, ends, name=name)


def is_rounding(node: Node) -> bool:
    op = node.op_type
    return op in ROUNDING or op.startswith(("QLinear", "QGemm", "DynamicQuantize", "MatMulNBits")) or "Integer" in op


def find_bits(side: ModelSide) -> tuple[int | None, int | None]:
    """Return the fewest bits of weights and of activations; None for what is not rounded."""
    weights, activations = [], []
    for node in side.wiring.nodes:
        if node.op_type == "DequantizeLinear" and side.wiring.is_constant(node.input[0]):
            weights.append(_count_bits(side.wiring, node.input[0]))
        elif node.op_type == "MatMulNBits":
            weights.append(int(read_attributes(node).get("bits", 4)))
        elif is_rounding(node) and node.op_type != "DequantizeLinear":
            zero = node.input[2] if node.op_type == "QuantizeLinear" and len(node.input) > 2 else ""
            activations.append(_count_bits(side.wiring, zero) if zero else 8)
            weights += [8] if node.op_type not in ROUNDING else []
    return min((each for each in weights if each <= 16), default=None), min(activations, default=None)


def _count_bits(wiring: Wiring, name: str) -> int:
    array = load_constant(wiring, name)
    dtype = str(array.dtype.name) if array is not None else "int8"
    return _FLOAT8_BITS if dtype.startswith("float") else int(dtype.lstrip("uint"))


def build_rounded(
    model: Model, ranges: Mapping[str, tuple[float, float]], bits: tuple[int | None, int | None]
) -> Model:
    """Return the model with its weights, and the tensors in `ranges`, rounded to equal steps within their range."""
    rounded = copy_model(model)
    wiring = build_wiring(rounded.graph)
    if bits[0] is not None:
        for tensor in rounded.graph.initializer:
            array = load_constant(wiring, tensor.name)
            if array is not None and array.ndim > 1 and np.issubdtype(array.dtype, np.floating) and array.size:
                step = float(np.abs(array).max()) / (2 ** (bits[0] - 1) - 1) or 1.0
                tensor.CopyFrom(build_tensor(tensor.name, (np.round(array / step) * step).astype(array.dtype)))
    if bits[1] is not None:
        _insert_rounding(
            rounded.graph, wiring, {name: (high - low) / (2 ** bits[1] - 1) for name, (low, high) in ranges.items()}
        )
    return rounded


def _insert_rounding(graph: Graph, wiring: Wiring, steps: Mapping[str, float]) -> None:
    inputs = {name for name in wiring.inputs if name in steps}
    nodes = [each for name in sorted(inputs) for each in _round(graph, name, f"{name}/rounded", steps[name])]
    for node in list(graph.node):
        node.input[:] = [f"{name}/rounded" if name in inputs else name for name in node.input]
        made = [name for name in node.output if name in steps and steps[name] > 0]
        node.output[:] = [f"{name}/exact" if name in made else name for name in node.output]
        nodes += [node, *(each for name in made for each in _round(graph, f"{name}/exact", name, steps[name]))]
    copied = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copied)


def _round(graph: Graph, source: str, target: str, step: float) -> list[Any]:
    """Return nodes for `floor(x / step + 0.5) * step`, by operators that every opset has."""
    helper = onnx.helper
    names = [f"{target}/{word}" for word in ("inverse", "half", "step")]
    values = (1.0 / step if step else 1.0, 0.5, step or 1.0)
    graph.initializer.extend(
        build_tensor(name, np.array(value, np.float32)) for name, value in zip(names, values, strict=True)
    )
    return [
        helper.make_node("Mul", [source, names[0]], [f"{target}/scaled"]),
        helper.make_node("Add", [f"{target}/scaled", names[1]], [f"{target}/shifted"]),
        helper.make_node("Floor", [f"{target}/shifted"], [f"{target}/whole"]),
        helper.make_node("Mul", [f"{target}/whole", names[2]], [target]),
    ]
