"""Layers as models of their own, with the values that they have in the model.

Shapes and activations come from a reference run of one sample, never from shape inference: shapes that it leaves open
or infers wrong would turn good layers into failing ones.

Tensors that a compiler would know before the run, since they depend on constants and shapes alone, are initialisers in
an extracted layer. As inputs, such tensors would turn a Reshape into one of open shape, and a convolution into one
without constant weights: neither occurs in the whole model.
"""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import cast

from assay.errors import UsageError
from assay.models.graph.graph import KEPT_BYTES, build_skeleton, infer_specs, measure_tensor
from assay.models.graph.onnx_library import (
    DEFAULT_DOMAINS,
    DRAWING,
    Model,
    Node,
    Wiring,
    build_wiring,
    find_subgraphs,
    import_evaluator,
    name_elem_type,
    words,
)
from assay.models.graph.submodel import build_cut, build_submodel, build_value, describe_array
from assay.models.graph.tensorfile import Array
from assay.models.libraries import onnx
from assay.models.values.model import Layer, Outline
from assay.models.values.tensors import TensorSpec
from assay.system.fast_dataclasses import dataclass, field, replace

SMALL = 4096  # elements: a larger tensor computed from shapes, such as a mask, stays an activation


_PLAIN_DOMAINS = (*DEFAULT_DOMAINS, "ai.onnx.ml", "com.microsoft")
_SHAPE_OPS = words(
    "Slice Concat Gather GatherND GatherElements Squeeze Unsqueeze Cast ConstantOfShape Reshape Transpose Flatten "
    "Identity Add Sub Mul Div Mod Pow Neg Abs Sign Floor Ceil Round Sqrt Min Max Equal Greater GreaterOrEqual Less "
    "LessOrEqual Not And Or Xor Where Range Expand Tile Split ReduceProd ReduceSum ReduceMax ReduceMin Clip "
    "ScatterElements ScatterND CumSum"
)
_REDUCTIONS = words(
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare"
)
# Operator → its inputs that state a size or an axis, and so decide the shape of the output.
SHAPE_OPERANDS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(words("ConstantOfShape HannWindow HammingWindow BlackmanWindow"), (0,)),
    **dict.fromkeys(words("Reshape Expand Squeeze Unsqueeze Split SplitToSequence Upsample TopK OneHot"), (1,)),
    **dict.fromkeys(words("CumSum CumProd Trilu CenterCropPad AffineGrid"), (1,)),
    **dict.fromkeys(_REDUCTIONS, (1,)),
    **dict.fromkeys(words("Tile Col2Im DFT"), (1, 2)),
    **dict.fromkeys(words("Pad STFT"), (1, 3)),
    "MaxUnpool": (2,),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
}


@dataclass(frozen=True, slots=True)
class Folding:
    """The tensors of a graph that a compiler would know before the run."""

    wiring: Wiring
    constant_made: frozenset[str]
    shape_made: frozenset[str]

    def is_foldable(self, name: str) -> bool:
        return name in self.constant_made or name in self.shape_made

    def is_frozen(self, indices: Sequence[int], outputs: Iterable[str], name: str, value: Array) -> bool:
        """Return whether the input `name` becomes an initialiser when the nodes are taken out of the graph."""
        nodes = (self.wiring.nodes[index] for index in indices)
        if any(name in find_shape_operands(node) for node in nodes):
            return bool(value.size <= SMALL)
        if all(self.is_foldable(output) for output in outputs):
            return False  # with initialisers the nodes would have nothing to compute
        return name in self.constant_made or (name in self.shape_made and value.size <= SMALL)


def build_folding(wiring: Wiring) -> Folding:
    """Find the tensors that nodes compute from constants alone, and the tensors computed from shapes and constants."""
    return Folding(wiring, _spread(wiring, _is_constant_made), _spread(wiring, _is_shape_made))


def _is_constant_made(node: Node, known: bool) -> bool:
    """Return whether a node computes from constants alone, without random numbers and without a sub-graph."""
    is_plain = node.domain in _PLAIN_DOMAINS and node.op_type not in DRAWING and node.op_type != "Dropout"
    return known and bool(node.input) and is_plain and not any(True for _ in find_subgraphs(node))


def _is_shape_made(node: Node, known: bool) -> bool:
    is_known = node.op_type in ("Shape", "Size") or (known and node.op_type in _SHAPE_OPS)
    return is_known and node.domain in DEFAULT_DOMAINS


def _spread(wiring: Wiring, follows: Callable[[Node, bool], bool]) -> frozenset[str]:
    """Return the outputs of the nodes that `follows` accepts. One pass is enough: nodes are in order of computation."""
    made: set[str] = set()
    for index, node in enumerate(wiring.nodes):
        known = all(name in made or wiring.is_constant(name) for name in wiring.reads[index])
        if not any(name in wiring.constants for name in node.output) and follows(node, known):
            made.update(name for name in node.output if name)
    return frozenset(made)


def find_shape_operands(node: Node) -> frozenset[str]:
    indices = SHAPE_OPERANDS.get(node.op_type, ()) if node.domain in DEFAULT_DOMAINS else ()
    return frozenset(node.input[index] for index in indices if index < len(node.input) and node.input[index])


def evaluate(model: Model, wiring: Wiring, name: str, activations: Mapping[str, Array]) -> Array | None:
    """Compute a tensor without a value in `activations` from tensors that have one; None if that fails. It is meant for
    tensors computed from shapes and constants, which are small: onnx's own evaluator is slow."""
    evaluator = import_evaluator()
    known = {border: activations[border] for border in _find_border(wiring, name, activations)}
    types = {border: describe_array(border, value) for border, value in known.items() if hasattr(value, "dtype")}
    try:
        cut = build_cut(model, tuple(known), (name,), types)
        feeds = {value.name: known[value.name] for value in cut.graph.input}
        (found,) = evaluator(cut).run(None, feeds)
    except Exception:  # noqa: BLE001  the evaluator raises any error of its operators; then there is no value
        return None
    return found


def _find_border(wiring: Wiring, name: str, activations: Container[str]) -> list[str]:
    """Return the nearest tensors with known values from which this tensor is computed."""
    border: dict[str, None] = {}
    waiting, seen = [name], {name}
    while waiting:
        index = wiring.producers.get(waiting.pop())
        for read in wiring.reads[index] if index is not None else ():
            if read in activations:
                border[read] = None
            elif read not in seen:
                seen.add(read)
                waiting.append(read)
    return list(border)


@dataclass(frozen=True, slots=True)
class LayerModel:
    """One layer as a model of its own. `inputs` may be empty: a layer may need only constants."""

    layer: Layer
    model: Model | None  # None: see `problem`
    inputs: Mapping[str, Array] = field(default_factory=dict)  # in the order of the model's inputs
    outputs: Mapping[str, Array] = field(default_factory=dict)  # the reference's outputs
    problem: str = ""  # why the layer cannot be a model of its own


def build_layers(
    model: Model, outline: Outline, activations: Mapping[str, Array], *, numbers: Container[int] | None = None
) -> Iterator[LayerModel]:
    """Yield the layers of the outline, all or those with these numbers. `activations` has the model's inputs, all
    intermediate tensors and the outputs of one sample. External data that is not in the model yet is read from next to
    the model's file, layer by layer."""
    splitter = _Splitter(model, outline, activations)
    for layer in outline.layers:
        if numbers is None or layer.number in numbers:
            yield splitter.build(layer)


class _Splitter:
    def __init__(self, model: Model, outline: Outline, activations: Mapping[str, Array]) -> None:
        self.model = model
        self.wiring: Wiring = build_wiring(model.graph)
        self.values = ChainMap[str, Array]({}, cast(dict[str, Array], activations))  # values are read on use
        self.folder = os.path.dirname(outline.path)
        self.folding = build_folding(self.wiring)

    @cached_property
    def inferred(self) -> dict[str, TensorSpec]:
        return infer_specs(self.model)

    def build(self, layer: Layer) -> LayerModel:
        known = {name: self._find_value(name) for name in layer.inputs}
        outputs = {name: self.values[name] for name in layer.outputs if name in self.values}
        missing = [repr(name) for name, value in known.items() if value is None]
        if missing:
            return LayerModel(layer, None, problem=f"the reference run has no value of {', '.join(missing)}")
        others = [repr(name) for name, value in {**known, **outputs}.items() if not hasattr(value, "dtype")]
        if others:
            problem = f"{', '.join(others)} is not a tensor but a sequence, an optional or a map"
            return LayerModel(layer, None, problem=problem)
        is_frozen = partial(self.folding.is_frozen, layer.nodes, layer.outputs)
        frozen = {name: value for name, value in known.items() if is_frozen(name, value)}
        try:
            alone = self._choose(layer, known, frozen)
        except UsageError as error:
            return LayerModel(layer, None, problem=error.message)
        problem = check(alone)
        inputs = {value.name: known[value.name] for value in alone.graph.input}
        return LayerModel(layer, None if problem else alone, inputs, outputs, problem)

    def _choose(self, layer: Layer, known: Mapping[str, Array], frozen: Mapping[str, Array]) -> Model:
        """Return the layer as a model with shapes that are as static as possible. Static inference refuses some valid
        models: a Range whose bounds have one dimension, and shapes that are invalid only in the branch that is not
        taken. A layer that is refused gets its constants as inputs, and then also open shapes."""
        first = self._extract(layer, known, frozen, is_open=False)
        if not check(first, with_shapes=True):
            return first
        others = (self._extract(layer, known, {}, is_open=is_open) for is_open in (False, True))
        return next((other for other in others if not check(other, with_shapes=True)), first)

    def _find_value(self, name: str) -> Array | None:
        if name not in self.values and self.folding.is_foldable(name):
            found = evaluate(self.model, self.wiring, name, self.values)
            if found is not None:
                self.values[name] = found
        return self.values.get(name)

    def _extract(
        self, layer: Layer, known: Mapping[str, Array], frozen: Mapping[str, Array], *, is_open: bool
    ) -> Model:
        made = (name for index in layer.nodes for name in self.wiring.nodes[index].output)
        inner = [name for name in made if name not in layer.outputs and hasattr(self.values.get(name), "dtype")]
        # tensors that the branches of an If read need not have a shape that is valid in the branch not taken
        branches = [index for index in layer.nodes if self.wiring.nodes[index].op_type == "If"]
        opened = known if is_open else {name for index in branches for name in self.wiring.reads[index]}
        specs = [describe_array(name, value) for name, value in known.items() if name not in frozen]
        return build_submodel(
            self.model,
            self.wiring,
            layer.nodes,
            [replace(spec, shape=(None,) * len(spec.shape or ())) if spec.name in opened else spec for spec in specs],
            [
                describe_array(name, self.values[name])
                if name in self.values
                else self.inferred.get(name, TensorSpec(name, ""))
                for name in layer.outputs
            ],
            name=layer.name,
            frozen=frozen,
            values=[describe_array(name, self.values[name]) for name in inner],
            folder=self.folder,
        )


def check(model: Model, *, with_shapes: bool = False) -> str:
    """Return the error of the ONNX checker in one line; empty if the model is valid."""
    try:
        onnx.checker.check_model(_build_light(model), full_check=with_shapes)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return "it is not a valid model on its own: " + " ".join(str(error).split())
    return ""


def _build_light(model: Model) -> Model:
    """Return the model with inputs instead of large weights: a check need not serialise gigabytes."""
    slim = build_skeleton(model)
    if slim is model:
        return model
    emptied = [tensor for tensor in slim.graph.initializer if measure_tensor(tensor) > KEPT_BYTES]
    listed = {value.name for value in slim.graph.input}
    for tensor in emptied:
        slim.graph.initializer.remove(tensor)
        if tensor.name not in listed:
            spec = TensorSpec(tensor.name, name_elem_type(tensor.data_type), tuple(tensor.dims))
            slim.graph.input.append(build_value(spec))
    return slim
