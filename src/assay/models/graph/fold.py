"""Which tensors of a graph a compiler would know before it runs: what comes of constants and of shapes alone.

In an extracted layer they are initialisers. Left as inputs they would make of a Reshape something of open shape, and
of a convolution one without constant weights: neither is what the target sees in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from assay.models.graph.onnx_library import DEFAULT_DOMAINS, Model, Node, Wiring, find_subgraphs, import_onnx
from assay.models.graph.submodel import build_cut, describe_array
from assay.models.graph.tensorfile import Array

SMALL = 4096  # elements: what is computed from shapes may still be a large mask, and stays an activation then


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_RANDOM = _words("RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli Dropout")
_SHAPE_SOURCES = _words("Shape Size")
_SHAPE_OPS = _words(
    "Slice Concat Gather GatherND GatherElements Squeeze Unsqueeze Cast ConstantOfShape Reshape Transpose Flatten "
    "Identity Add Sub Mul Div Mod Pow Neg Abs Sign Floor Ceil Round Sqrt Min Max Equal Greater GreaterOrEqual Less "
    "LessOrEqual Not And Or Xor Where Range Expand Tile Split ReduceProd ReduceSum ReduceMax ReduceMin Clip "
    "ScatterElements ScatterND CumSum"
)
_REDUCTIONS = _words(
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare"
)
# Inputs that say how large something is, or along which axis: they decide the shape of what comes out.
SHAPE_OPERANDS: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,),
    "Expand": (1,),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
    "Slice": (1, 2, 3, 4),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Tile": (1, 2),
    "Pad": (1, 3),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "MaxUnpool": (2,),
    "TopK": (1,),
    "OneHot": (1,),
    "CumSum": (1,),
    "CumProd": (1,),
    "Trilu": (1,),
    "CenterCropPad": (1,),
    "AffineGrid": (1,),
    "Col2Im": (1, 2),
    "DFT": (1, 2),
    "STFT": (1, 3),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    **dict.fromkeys(_words("HannWindow HammingWindow BlackmanWindow"), (0,)),
    **dict.fromkeys(_REDUCTIONS, (1,)),
}


@dataclass(frozen=True, slots=True)
class Folding:
    """What a compiler would know of a graph's tensors."""

    wiring: Wiring
    constant_made: frozenset[str]
    shape_made: frozenset[str]

    def is_foldable(self, name: str) -> bool:
        return name in self.constant_made or name in self.shape_made

    def is_frozen(self, indices: Sequence[int], outputs: Iterable[str], name: str, value: Array) -> bool:
        """Whether this input of these nodes becomes an initialiser when they are taken out of the graph."""
        nodes = (self.wiring.nodes[index] for index in indices)
        if any(name in find_shape_operands(node) for node in nodes):
            return bool(value.size <= SMALL)
        if all(self.is_foldable(output) for output in outputs):
            return False  # they would have nothing left to compute
        return name in self.constant_made or (name in self.shape_made and value.size <= SMALL)


def build_folding(wiring: Wiring) -> Folding:
    return Folding(wiring, find_constant_made(wiring), find_shape_made(wiring))


def find_constant_made(wiring: Wiring) -> frozenset[str]:
    """What nodes compute from constants alone."""
    return _spread(wiring, lambda node, known: known and bool(node.input) and _is_repeatable(node))


def find_shape_made(wiring: Wiring) -> frozenset[str]:
    """What nodes compute from shapes and constants alone, beginning with the shapes themselves."""
    return _spread(wiring, _is_shape_node)


def _is_shape_node(node: Node, known: bool) -> bool:
    is_known = node.op_type in _SHAPE_SOURCES or (known and node.op_type in _SHAPE_OPS)
    return is_known and node.domain in DEFAULT_DOMAINS


def _spread(wiring: Wiring, follows: Callable[[Node, bool], bool]) -> frozenset[str]:
    """Nodes stand in the order of their computation: once through is enough."""
    made: set[str] = set()
    for index, node in enumerate(wiring.nodes):
        known = all(name in made or wiring.is_constant(name) for name in wiring.reads[index])
        if not any(name in wiring.constants for name in node.output) and follows(node, known):
            made.update(name for name in node.output if name)
    return frozenset(made)


def _is_repeatable(node: Node) -> bool:
    """Not one that draws random numbers, or that may do so inside."""
    is_plain = node.domain in (*DEFAULT_DOMAINS, "ai.onnx.ml", "com.microsoft")
    return is_plain and node.op_type not in _RANDOM and not any(True for _ in find_subgraphs(node))


def find_shape_operands(node: Node) -> frozenset[str]:
    indices = SHAPE_OPERANDS.get(node.op_type, ()) if node.domain in DEFAULT_DOMAINS else ()
    return frozenset(node.input[index] for index in indices if index < len(node.input) and node.input[index])


def evaluate(model: Model, wiring: Wiring, name: str, activations: Mapping[str, Array]) -> Array | None:
    """The value of a tensor that no run has brought, from those that it has; None where that cannot be done.

    For tensors made of shapes and constants only: onnx's own evaluator is slow, and these are small.
    """
    onnx = import_onnx()
    known = {border: activations[border] for border in _find_border(wiring, name, activations)}
    types = {border: describe_array(border, value) for border, value in known.items() if hasattr(value, "dtype")}
    try:
        cut = build_cut(model, tuple(known), (name,), types)
        feeds = {value.name: known[value.name] for value in cut.graph.input}
        (found,) = onnx.reference.ReferenceEvaluator(cut).run(None, feeds)
    except Exception:  # noqa: BLE001  the evaluator raises whatever its operators raise; then there is no value
        return None
    return found


def _find_border(wiring: Wiring, name: str, activations: Container[str]) -> list[str]:
    """The nearest tensors before this one whose values are there."""
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
