"""ONNX models in memory: the library, the connections of a graph, types and operator sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from assay.models.libraries import onnx
from assay.models.values.tensors import Dim, TensorSpec
from assay.system.fast_dataclasses import dataclass

Model = Any  # onnx.ModelProto: the library is loaded inside functions only
Node = Any  # onnx.NodeProto
Graph = Any  # onnx.GraphProto


def import_evaluator() -> Any:
    """Import onnx's own class for computing models; `import onnx` alone does not load it."""
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator


def words(text: str) -> frozenset[str]:
    """Return the names in a text such as `"Relu Clip"`."""
    return frozenset(text.split())


def parse_message(message: Any, content: bytes) -> Any:
    """Fill an empty protobuf message. Raises ValueError if the bytes are not such a message."""
    from google.protobuf.message import DecodeError

    try:
        message.ParseFromString(content)
    except DecodeError as error:
        raise ValueError(error) from error
    return message


DEFAULT_DOMAINS = ("", "ai.onnx")
DRAWING = words("RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli")


@dataclass(frozen=True, slots=True)
class Wiring:
    """The top graph of a model; nodes inside If, Loop and Scan belong to the node that contains them."""

    nodes: tuple[Node, ...]
    reads: tuple[tuple[str, ...], ...]  # by node: its inputs, then tensors that its sub-graphs read from outside
    inputs: tuple[str, ...]  # inputs of the graph that are not initialisers
    outputs: tuple[str, ...]
    weights: Mapping[str, Any]  # initialisers, sparse ones included
    constants: Mapping[str, int]  # output of a Constant node → index of the node
    producers: Mapping[str, int]  # output of any other node → index of the node
    consumers: Mapping[str, tuple[int, ...]]

    def is_constant(self, name: str) -> bool:
        return name in self.weights or name in self.constants

    def is_output(self, name: str) -> bool:
        return name in self.outputs

    @property
    def intermediates(self) -> tuple[str, ...]:
        """The outputs of nodes in their order, without constants and outputs of the graph."""
        return tuple(name for name in self.producers if name not in self.outputs)

    def find_ancestors(self, names: Iterable[str], stop: Iterable[str] = ()) -> list[int]:
        """Return the indices of the nodes, Constant nodes too, that compute these tensors from the tensors `stop`."""
        seen = set(stop)
        wanted = [name for name in names if name not in seen]
        nodes: set[int] = set()
        while wanted:
            name = wanted.pop()
            index = self.producers.get(name, self.constants.get(name))
            if name in seen or index is None:
                continue
            seen.add(name)
            if index not in nodes:
                nodes.add(index)
                wanted.extend(self.reads[index])
        return sorted(nodes)


def build_wiring(graph: Graph) -> Wiring:
    nodes = tuple(graph.node)
    weights = {tensor.name: tensor for tensor in graph.initializer}
    weights |= {tensor.values.name: tensor for tensor in graph.sparse_initializer}
    reads = tuple(tuple(dict.fromkeys(find_reads(node))) for node in nodes)
    made = [(name, index) for index, node in enumerate(nodes) for name in node.output if name]
    consumers: dict[str, list[int]] = {}
    for index, names in enumerate(reads):
        for name in names:
            consumers.setdefault(name, []).append(index)
    return Wiring(
        nodes=nodes,
        reads=reads,
        inputs=tuple(value.name for value in graph.input if value.name not in weights),
        outputs=tuple(value.name for value in graph.output),
        weights=weights,
        constants={name: index for name, index in made if is_constant_node(nodes[index])},
        producers={name: index for name, index in made if not is_constant_node(nodes[index])},
        consumers={name: tuple(indices) for name, indices in consumers.items()},
    )


def read_attributes(node: Node) -> dict[str, Any]:
    return {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}


def is_constant_node(node: Node) -> bool:
    return bool(node.op_type == "Constant" and node.domain in DEFAULT_DOMAINS)


def find_reads(node: Node) -> Iterator[str]:
    """Yield the names of the tensors that a node reads from its graph, also inside of sub-graphs, whose outputs may be
    such tensors. Omitted inputs are skipped."""
    yield from (name for name in node.input if name)
    for graph in find_subgraphs(node):
        own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        own |= {tensor.values.name for tensor in graph.sparse_initializer}
        own |= {name for inner in graph.node for name in inner.output}
        read = (name for inner in graph.node for name in find_reads(inner))
        yield from (name for name in (*read, *(value.name for value in graph.output)) if name not in own)


def find_subgraphs(node: Node) -> Iterator[Graph]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def walk_nodes(*parts: Any) -> Iterator[Node]:
    """Yield every node of these graphs and functions, and of the sub-graphs in them."""
    waiting = [node for part in parts for node in part.node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(inner for graph in find_subgraphs(node) for inner in graph.node)


_KINDS = {"sequence_type": "sequence", "optional_type": "optional", "map_type": "map", "sparse_tensor_type": "sparse"}


def build_spec(value: Any) -> TensorSpec:
    """Return the spec of a value in a graph; if it is not a dense tensor, `dtype` is its kind, such as "sequence"."""
    kind = value.type.WhichOneof("value")
    if kind in _KINDS:
        return TensorSpec(value.name, _KINDS[kind])
    tensor = value.type.tensor_type
    dims: list[Dim] = []
    for dim in tensor.shape.dim:
        is_known = dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0  # exporters write -1 for an open dim
        dims.append(int(dim.dim_value) if is_known else dim.dim_param or None)
    shape = tuple(dims) if tensor.HasField("shape") else None
    return TensorSpec(value.name, name_elem_type(tensor.elem_type), shape)


def name_elem_type(elem_type: int) -> str:
    """Return numpy's name of the type with this number in ONNX; "" if there is none."""
    if elem_type == onnx.TensorProto.STRING:
        return "string"
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(elem_type).name) if elem_type else ""
    except KeyError:
        return ""


def find_opset(model: Model) -> int:
    """Return the version of ONNX's own operators; 0 if the model uses none of them."""
    return max((entry.version for entry in model.opset_import if entry.domain in DEFAULT_DOMAINS), default=0)


def unify_domains(model: Model) -> None:
    """Rename ONNX's own domain to "": runtimes accept "ai.onnx" as the same domain, the checker does not."""
    versions = (entry for part in (model, *model.functions) for entry in part.opset_import)
    for each in (*versions, *model.functions, *walk_nodes(model.graph, *model.functions)):
        if each.domain == DEFAULT_DOMAINS[1]:
            each.domain = DEFAULT_DOMAINS[0]


_NEW_FIELDS = {"functions": 8, "configuration": 11}  # field of a model → the IR version that introduced it


def find_least_ir(model: Model) -> int:
    """Return the lowest IR version that a model needs for its types, its fields and its operators."""
    parts = (model, *model.functions)
    opsets = [entry for part in parts for entry in part.opset_import]
    fields = [version for name, version in _NEW_FIELDS.items() if getattr(model, name, None)]
    return max((int(onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True)), *fields))


_NOT_NAMES = ("doc_string", "metadata_props", "producer_name", "producer_version")


def find_unreadable(message: Any) -> str | None:
    """Describe a name that is not text, or a tensor whose type the library does not know; None if there is neither."""
    for field, value in message.ListFields():
        if field.name in _NOT_NAMES:
            continue
        if field.message_type is not None:
            inner = (find_unreadable(each) for each in (value if field.is_repeated else (value,)))
            if fault := next((each for each in inner if each), None):
                return fault
        elif field.type == field.TYPE_STRING:
            for text in value if field.is_repeated else (value,):
                if isinstance(text, bytes):
                    return f"the {field.name} {text[:40]!r} is not UTF-8"
        elif field.name == "data_type" and value not in onnx.TensorProto.DataType.values():
            return f"the tensor {message.name!r} has the type {value}, which this version of onnx does not know"
    return None
