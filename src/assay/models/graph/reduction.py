"""Delta debugging on graphs: smaller and smaller models that still show a failure, until nothing can be removed.

Any set of nodes is a model: tensors that it reads from outside become inputs that are fed with the reference's
activations, tensors that other nodes read become outputs. The search is ddmin over the nodes, which cuts heads and
tails first and single nodes last; then outputs are dropped, and nodes that keep a tensor's type and shape are bypassed.
The result is 1-minimal: with any single further step the failure disappears.

The caller decides whether a model fails: this module runs no model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from assay.errors import UsageError
from assay.models.graph.graph import find_ends, infer_specs
from assay.models.graph.onnx_library import Model, Wiring, build_wiring, is_constant_node
from assay.models.graph.split import Folding, build_folding, check
from assay.models.graph.submodel import build_submodel, copy_model, describe_array
from assay.models.graph.tensorfile import Array, name_dtype
from assay.models.values.tensors import Dim, TensorSpec
from assay.system.fast_dataclasses import dataclass, field, replace

Sample = Mapping[str, Array]
Activations = Sequence[Mapping[str, Any]]  # per sample: inputs, intermediate tensors, outputs


@dataclass(frozen=True, slots=True)
class Candidate:
    """A smaller model, with the inputs of every sample."""

    model: Model
    samples: tuple[Sample, ...]
    nodes: int
    chunk: int = 1  # number of nodes that were kept or removed at once: the search continues with it
    changes_values: bool = False  # whether tensors have other values than in the larger model


@dataclass(frozen=True, slots=True)
class Reduced:
    """The smallest model that was found, with the inputs of every sample."""

    model: Model
    samples: tuple[Sample, ...]
    tried: int  # calls of the oracle


Oracle = Callable[[Candidate], bool]
ActivationsFor = Callable[[Model, Sequence[Sample]], Activations]


@dataclass(slots=True)
class _Search:
    """Calls the oracle and counts the calls; a model that it has refused is not tried again."""

    oracle: Oracle
    tried: int = 0
    refused: set[bytes] = field(default_factory=set)

    def find(self, options: Iterable[Candidate]) -> Candidate | None:
        """Return the first candidate that shows the failure; None if no candidate does."""
        for option in options:
            key = _fingerprint(option)
            if key in self.refused:
                continue
            self.tried += 1
            if self.oracle(option):
                return option
            self.refused.add(key)
        return None


def reduce_model(model: Model, samples: Sequence[Sample], activations_for: ActivationsFor, oracle: Oracle) -> Reduced:
    """Return the smallest model found that the oracle reports as failing, with all samples.
    `activations_for(model, samples)` is a reference run with every intermediate tensor as an output. Raises UsageError
    if the model itself does not fail."""
    if not samples:
        raise UsageError("a model cannot be reduced without a sample of its inputs")
    search = _Search(oracle)
    whole = Candidate(model, tuple(samples), count_nodes(model))
    search.tried += 1
    if not oracle(whole):
        raise UsageError("the model does not show this failure: there is nothing to reduce")
    cutter = Cutter(model, whole.samples, activations_for(model, samples), keeps_open=False)
    # static shapes, those of the samples, are simpler, and are used unless the failure needs open shapes
    static = cutter.build(cutter.indices, len(cutter.indices))
    found = None if static is None else search.find([static])
    used = whole if found is None else found
    cutter = Cutter(used.model, used.samples, cutter.activations, keeps_open=found is None)
    while (found := search.find(cutter.list_candidates())) is not None:
        activations = cutter.activations
        if found.changes_values:
            activations = activations_for(found.model, found.samples)
            search.refused.clear()  # a model that was refused may fail with other activations
        cutter = Cutter(found.model, found.samples, activations, found.chunk, keeps_open=cutter.keeps_open)
    return Reduced(cutter.model, cutter.samples, search.tried)


def count_nodes(model: Model) -> int:
    """Return the number of nodes without Constant nodes, which are weights in another form."""
    return sum(not is_constant_node(node) for node in model.graph.node)


def _fingerprint(candidate: Candidate) -> bytes:
    graph = candidate.model.graph
    digest = hashlib.sha256()
    for part in (*graph.node, *graph.input, *graph.output):
        digest.update(part.SerializeToString(deterministic=True))
    digest.update(repr(sorted(tensor.name for tensor in graph.initializer)).encode())
    return digest.digest()


class Cutter:
    """Builds the models that are one step smaller. `chunk`: how many nodes are kept or removed at once; 0: half of the
    nodes. `keeps_open`: whether the failure needs open dimensions and the computation of shapes."""

    def __init__(
        self, model: Model, samples: tuple[Sample, ...], activations: Activations, chunk: int = 0, *, keeps_open: bool
    ) -> None:
        self.model, self.samples, self.activations, self.keeps_open = model, samples, activations, keeps_open
        self.wiring: Wiring = build_wiring(model.graph)
        self.indices = tuple(at for at, node in enumerate(self.wiring.nodes) if not is_constant_node(node))
        self._chunk = min(chunk or len(self.indices), (len(self.indices) + 1) // 2)
        self._folding: Folding = build_folding(self.wiring)
        self._inferred = infer_specs(model) if keeps_open else {}

    def list_candidates(self) -> Iterator[Candidate]:
        """Yield every model that is one step smaller, the largest steps first."""
        return filter(None, chain(self._cut_nodes(), self._drop_outputs(), map(self._bypass, self.indices)))

    def _cut_nodes(self) -> Iterator[Candidate | None]:
        """Yield models by ddmin: each chunk alone, then all but this chunk, with smaller and smaller chunks."""
        indices, size = self.indices, self._chunk
        while size and len(indices) > 1:
            chunks = [indices[start : start + size] for start in range(0, len(indices), size)]
            yield from (self.build(kept, size) for kept in chunks)
            if len(chunks) > 2:  # with two chunks, dropping one is keeping the other
                for dropped in chunks:
                    yield self.build([index for index in indices if index not in dropped], size)
            size = size // 2 if size > 1 else 0

    def _drop_outputs(self) -> Iterator[Candidate | None]:
        """Yield models with only one output, then with all but one; nodes that no output needs are removed as well."""
        outputs, wiring = self.wiring.outputs, self.wiring
        single = [(output,) for output in outputs] if len(outputs) > 1 else []
        others = [tuple(each for each in outputs if each != output) for output in outputs] if len(outputs) > 2 else []
        for kept in (*single, *others):
            if all(output in wiring.producers for output in kept):
                indices = [index for index in wiring.find_ancestors(kept) if index in self.indices]
                yield self.build(indices, 1, kept)

    def build(self, indices: Sequence[int], chunk: int, outputs: Sequence[str] | None = None) -> Candidate | None:
        """Return the model of the nodes with these indices; None if a border tensor cannot be an input or an output."""
        inputs, ends = find_ends(self.wiring, indices)
        outputs = ends if outputs is None else outputs
        if not outputs or any(not self._is_known(name) for name in (*inputs, *outputs)):
            return None
        frozen = {name: self.activations[0][name] for name in inputs if self._is_frozen(indices, outputs, name)}
        fed = [name for name in inputs if name not in frozen]
        model = build_submodel(
            self.model,
            self.wiring,
            indices,
            [self._describe(name) for name in fed],
            [self._describe(name) for name in outputs],
            name=self.model.graph.name or "reduced",
            frozen=frozen,
        )
        samples = tuple({name: values[name] for name in fed} for values in self.activations)
        return None if check(model) else Candidate(model, samples, len(indices), chunk)

    def _is_known(self, name: str) -> bool:
        return all(hasattr(values.get(name), "dtype") for values in self.activations)

    def _is_frozen(self, indices: Sequence[int], outputs: Sequence[str], name: str) -> bool:
        """Return whether a tensor can be a constant: it is equal in all samples, and not a shape that must be open."""
        values = [values[name] for values in self.activations]
        if any(value.shape != values[0].shape or value.tobytes() != values[0].tobytes() for value in values[1:]):
            return False
        if self.keeps_open and name not in self._folding.constant_made:
            return False
        return self._folding.is_frozen(indices, outputs, name, values[0])

    def _describe(self, name: str) -> TensorSpec:
        arrays = [values[name] for values in self.activations]
        spec = self._inferred.get(name)
        if spec is not None and spec.shape is not None and spec.dtype == name_dtype(arrays[0]):
            return spec
        first = describe_array(name, arrays[0])
        if any(array.ndim != arrays[0].ndim for array in arrays):
            return replace(first, shape=None)
        dims: list[Dim] = [
            sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*(a.shape for a in arrays), strict=True)
        ]
        return replace(first, shape=tuple(dims))

    def _find_bypass(self, index: int) -> str | None:
        """Return an input of a node that can replace its only used output: type and shape are equal; else None."""
        node = self.wiring.nodes[index]
        made = [name for name in node.output if name]
        output = node.output[0]
        used = [name for name in made if name in self.wiring.consumers or self.wiring.is_output(name)]
        if used != [output] or self.wiring.is_output(output) or not self._is_known(output):
            return None
        readers = [self.wiring.nodes[reader] for reader in self.wiring.consumers[output]]
        if any(output not in reader.input for reader in readers):
            return None  # a sub-graph reads the output
        for name in node.input:
            if name and self._is_known(name):
                pairs = ((values[name], values[output]) for values in self.activations)
                if all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs):
                    return str(name)
        return None

    def _bypass(self, index: int) -> Candidate | None:
        """Return the model without the node of this index; None if no input can replace the node's output."""
        source = self._find_bypass(index)
        if source is None:
            return None
        model = copy_model(self.model)
        output = self.wiring.nodes[index].output[0]
        for reader in model.graph.node:
            for position, name in enumerate(reader.input):
                if name == output:
                    reader.input[position] = source
        del model.graph.node[index]
        graph, wiring = model.graph, build_wiring(model.graph)
        live = wiring.find_ancestors(wiring.outputs)  # the other nodes, and their tensors, are removed
        there = {name for at in live for name in (*wiring.reads[at], *wiring.nodes[at].output)}
        tensors = (graph.input, graph.initializer, graph.value_info)
        kept = [(values, [value for value in values if value.name in there]) for values in tensors]
        for repeated, left in ((graph.node, [wiring.nodes[at] for at in live]), *kept):
            del repeated[:]
            repeated.extend(left)
        if check(model):
            return None
        names = [value.name for value in model.graph.input]
        samples = tuple({name: sample[name] for name in names} for sample in self.samples)
        return Candidate(model, samples, count_nodes(model), changes_values=True)
