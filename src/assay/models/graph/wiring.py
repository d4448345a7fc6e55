"""Who makes and who reads each tensor of a graph: what every cut through it is decided by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from assay.models.graph.onnx_library import Graph, Node

DEFAULT_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True, slots=True)
class Wiring:
    """The top graph of a model; nodes inside If, Loop and Scan belong to the node that holds them."""

    nodes: tuple[Node, ...]
    reads: tuple[tuple[str, ...], ...]  # of each node: its inputs, then what its sub-graphs take from outside
    inputs: tuple[str, ...]  # initialisers that are listed as inputs do not count
    outputs: tuple[str, ...]
    weights: Mapping[str, Any]  # initialisers, sparse ones included
    constants: Mapping[str, int]  # outputs of Constant nodes → the node
    producers: Mapping[str, int]  # outputs of the other nodes → the node
    consumers: Mapping[str, tuple[int, ...]]

    def is_constant(self, name: str) -> bool:
        return name in self.weights or name in self.constants

    def is_output(self, name: str) -> bool:
        return name in self.outputs

    @property
    def intermediates(self) -> tuple[str, ...]:
        """What nodes make, in their order; constants and outputs of the graph do not count."""
        return tuple(name for name in self.producers if name not in self.outputs)

    def find_ancestors(self, names: Iterable[str], stop: Iterable[str] = ()) -> list[int]:
        """The nodes that these tensors need, Constant nodes included, in the graph's order; `stop` needs nothing."""
        seen = set(stop)
        wanted = [name for name in names if name not in seen]
        nodes: set[int] = set()
        while wanted:
            name = wanted.pop()
            place = self.producers.get(name, self.constants.get(name))
            if name in seen or place is None:
                continue
            seen.add(name)
            if place not in nodes:
                nodes.add(place)
                wanted.extend(self.reads[place])
        return sorted(nodes)


def build_wiring(graph: Graph) -> Wiring:
    nodes = tuple(graph.node)
    weights = {tensor.name: tensor for tensor in graph.initializer}
    weights |= {tensor.values.name: tensor for tensor in graph.sparse_initializer}
    reads = tuple(tuple(dict.fromkeys(find_reads(node))) for node in nodes)
    made = [(name, place) for place, node in enumerate(nodes) for name in node.output if name]
    consumers: dict[str, list[int]] = {}
    for place, names in enumerate(reads):
        for name in names:
            consumers.setdefault(name, []).append(place)
    return Wiring(
        nodes=nodes,
        reads=reads,
        inputs=tuple(value.name for value in graph.input if value.name not in weights),
        outputs=tuple(value.name for value in graph.output),
        weights=weights,
        constants={name: place for name, place in made if is_constant_node(nodes[place])},
        producers={name: place for name, place in made if not is_constant_node(nodes[place])},
        consumers={name: tuple(places) for name, places in consumers.items()},
    )


def is_constant_node(node: Node) -> bool:
    return bool(node.op_type == "Constant" and node.domain in DEFAULT_DOMAINS)


def find_reads(node: Node) -> Iterator[str]:
    """Names that the node needs from the graph it stands in; one that is left out is no name."""
    yield from (name for name in node.input if name)
    for graph in find_subgraphs(node):
        yield from _find_captured(graph)


def find_subgraphs(node: Node) -> Iterator[Graph]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _find_captured(graph: Graph) -> Iterator[str]:
    """What a sub-graph takes from outside: an output of it may come straight from there, too."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {tensor.values.name for tensor in graph.sparse_initializer}
    own |= {name for node in graph.node for name in node.output}
    for node in graph.node:
        yield from (name for name in find_reads(node) if name not in own)
    yield from (value.name for value in graph.output if value.name not in own)
