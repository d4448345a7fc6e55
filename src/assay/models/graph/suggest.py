"""Suggests values for a model's inputs from the nodes that read them: ranges, and sizes of open dimensions.

An index beyond its table, a logarithm of a negative number or an unknown token would show nothing about a compiler.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from assay.models.graph.onnx_library import Model, Node, Wiring, build_wiring, read_attributes, words
from assay.models.graph.split import Folding, build_folding, evaluate
from assay.models.graph.submodel import load_constant
from assay.models.libraries import onnx
from assay.models.values.tensors import TensorSpec
from assay.system.fast_dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Domain:
    """Values from `low` to `high`, both included; `why` is the reason for a report."""

    low: float
    high: float
    why: str
    whole: bool = False  # only whole numbers, also for an input of a float type
    is_mask: bool = False  # 0 and 1, and never only 0


@dataclass(slots=True)
class InputGraph:
    """A model with the specs of its tensors, its connections, and constants that were computed."""

    model: Model
    specs: Mapping[str, TensorSpec]
    wiring: Wiring = field(init=False)
    folding: Folding = field(init=False)
    folded: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.wiring = build_wiring(self.model.graph)
        self.folding = build_folding(self.wiring)

    def load_constant(self, name: str) -> Any:
        """Return the array of a constant, or of a tensor that nodes compute from constants alone; None for others."""
        if name not in self.folding.constant_made:
            return load_constant(self.wiring, name)
        if name not in self.folded:
            self.folded[name] = evaluate(self.model, self.wiring, name, {})
        return self.folded[name]

    def find_dim(self, name: str, axis: int) -> int | None:
        spec = self.specs.get(name)
        if spec is None or spec.shape is None or not -len(spec.shape) <= axis < len(spec.shape):
            return None
        dim = spec.shape[axis]
        return dim if isinstance(dim, int) else None


_FORWARDING = words(
    "Cast Identity Unsqueeze Squeeze Reshape Transpose Flatten Slice Expand Split Dropout Tile Pad Gather Concat"
)
_FORWARDED = 64  # the most tensors that are followed


def find_readers(graph: InputGraph, name: str) -> Iterator[tuple[Node, int]]:
    """Yield (node, index of its input) for all readers of a tensor, also after nodes that only rearrange it."""
    waiting, seen = [name], {name}
    while waiting and len(seen) <= _FORWARDED:
        tensor = waiting.pop(0)
        for input_index in graph.wiring.consumers.get(tensor, ()):
            node = graph.wiring.nodes[input_index]
            positions = [position for position, read in enumerate(node.input) if read == tensor]
            yield from ((node, position) for position in positions)
            if node.op_type in _FORWARDING and (0 in positions or node.op_type == "Concat"):
                fresh = [made for made in node.output if made and made not in seen]
                seen.update(fresh)
                waiting.extend(fresh)


Rule = Callable[[InputGraph, Node, int, TensorSpec], Domain | None]
_WHOLE_TYPES = re.compile(r"u?int\d+|bool")
_BY_TYPE = {"bool": (0, 1), "uint8": (0, 255), "int8": (-128, 127), "int4": (-8, 7), "uint4": (0, 15)}
_STATE = re.compile(r"state|hidden|cache|past|^[hc]_?[0-9n]?$")
_NAMED = (  # the usual meaning of names of inputs, if the graph itself shows nothing
    (re.compile(r"mask"), Domain(0, 1, "a mask, by its name", whole=True, is_mask=True)),
    (re.compile(r"^sr$|sampl(e|ing)_?rate"), Domain(16000, 16000, "a sampling rate, by its name", whole=True)),
    (re.compile(r"len(gth)?s?$"), Domain(1, 1, "a length, by its name", whole=True)),
    (_STATE, Domain(-0.1, 0.1, "a state near zero, by its name")),
)


def suggest_domain(graph: InputGraph, spec: TensorSpec) -> Domain:
    """Return the range that all readers of an input accept; else the range by its name; else the range by its type."""
    found = []
    for node, input_index in find_readers(graph, spec.name):
        rule = _RULES.get((node.op_type, input_index))
        domain = rule(graph, node, input_index, spec) if rule else None
        found += [domain] if domain else []
    if found:
        best = found[0]
        for domain in found[1:]:  # a range narrows those before it, and is ignored if no value would be left
            low, high = max(best.low, domain.low), min(best.high, domain.high)
            if low <= high and (low, high) != (best.low, best.high):
                best = Domain(low, high, f"{best.why}; {domain.why}", best.whole or domain.whole)
        return best
    is_whole = is_whole_type(spec.dtype)
    named = (domain for pattern, domain in _NAMED if pattern.search(spec.name.lower()))
    low, high = _BY_TYPE.get(spec.dtype, (0, 9) if is_whole else (-1, 1))
    plain = Domain(low, high, f"{spec.dtype} of no special meaning", whole=is_whole)
    return next((domain for domain in named if domain.whole or not is_whole), plain)


def is_whole_type(dtype: str) -> bool:
    return _WHOLE_TYPES.fullmatch(dtype) is not None


def _index(graph: InputGraph, node: Node, _input_index: int, _spec: TensorSpec, *, table: int = 0) -> Domain | None:
    if len(node.input) <= table or not node.input[table]:
        return None
    rows = graph.find_dim(node.input[table], read_attributes(node).get("axis", 0)) or 1
    return Domain(0, rows - 1, f"indices of {node.op_type} into {rows} rows", whole=True)


def _category(graph: InputGraph, node: Node, _input_index: int, _spec: TensorSpec) -> Domain | None:
    depth = graph.load_constant(node.input[1])
    return None if depth is None else Domain(0, int(depth.max()) - 1, "categories of OneHot", whole=True)


def _compared(graph: InputGraph, node: Node, input_index: int, spec: TensorSpec) -> Domain | None:
    """Return the value for a switch such as a sampling rate: a whole number gets the constant it is compared with."""
    other = graph.load_constant(node.input[1 - input_index])
    is_single = spec.shape is not None and all(dim == 1 for dim in spec.shape)
    if other is None or other.size != 1 or not is_single or not is_whole_type(spec.dtype) or spec.dtype == "bool":
        return None
    return Domain(int(other.item()), int(other.item()), "what Equal compares it with", whole=True)


def _cast(_graph: InputGraph, node: Node, _input_index: int, spec: TensorSpec) -> Domain | None:
    to = read_attributes(node).get("to", 0)
    if to == onnx.TensorProto.BOOL and spec.dtype != "bool":
        return Domain(0, 1, "Cast to bool", whole=True)
    whole = (onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.INT16)
    return None if is_whole_type(spec.dtype) or to not in whole else Domain(0, 9, "Cast to whole numbers", whole=True)


_INTEGERS = {2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 21: "uint4", 22: "int4"}  # TensorProto's numbers


def _quantised(graph: InputGraph, node: Node, _input_index: int, _spec: TensorSpec) -> Domain | None:
    """Return the range of the quantised type, which is the zero point's, else `output_dtype`, else uint8."""
    scale, zero = graph.load_constant(node.input[1]), None
    dtype = _INTEGERS.get(read_attributes(node).get("output_dtype", 0) or onnx.TensorProto.UINT8, "")
    if len(node.input) > 2 and node.input[2]:
        zero = graph.load_constant(node.input[2])
        dtype = "" if zero is None else zero.dtype.name
    if scale is None or scale.size != 1 or dtype not in _INTEGERS.values():
        return None
    count, factor = 2 ** int(dtype.lstrip("uint")), float(scale.item())
    lowest = (0 if dtype.startswith("u") else -count // 2) - (0 if zero is None else int(zero.item()))
    return Domain(lowest * factor, (lowest + count - 1) * factor, "the range of QuantizeLinear")


def _base(graph: InputGraph, node: Node, input_index: int, spec: TensorSpec) -> Domain | None:
    exponent = graph.load_constant(node.input[1])
    is_harmless = exponent is not None and bool((exponent >= 0).all() and (exponent == exponent.astype(int)).all())
    return None if is_harmless else _positive(graph, node, input_index, spec)


def _positive(_graph: InputGraph, node: Node, _input_index: int, spec: TensorSpec) -> Domain | None:
    low, high = (1, 9) if is_whole_type(spec.dtype) else (0.1, 2)
    return Domain(low, high, f"{node.op_type} of numbers above zero", whole=is_whole_type(spec.dtype))


def _between(
    _graph: InputGraph, node: Node, _input_index: int, _spec: TensorSpec, *, low: float, high: float
) -> Domain | None:
    return Domain(low, high, f"what {node.op_type} accepts", whole=low == high)


def _steps(graph: InputGraph, node: Node, _input_index: int, _spec: TensorSpec) -> Domain | None:
    """Return the full length for a recurrent node's sequences, since values beyond a length are zero."""
    length = graph.find_dim(node.input[0], 0) or 1
    return Domain(length, length, f"lengths of {node.op_type}'s sequences", whole=True)


_RULES: dict[tuple[str, int], Rule] = {
    **{(op, 1): _index for op in ("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Scatter")},
    ("GatherBlockQuantized", 1): _index,
    ("EmbedLayerNormalization", 0): partial(_index, table=2),
    ("EmbedLayerNormalization", 1): partial(_index, table=4),
    ("OneHot", 0): _category,
    ("Equal", 0): _compared,
    ("Equal", 1): _compared,
    ("Cast", 0): _cast,
    ("QuantizeLinear", 0): _quantised,
    ("Pow", 0): _base,
    **dict.fromkeys((("Log", 0), ("Sqrt", 0), ("Reciprocal", 0), ("Div", 1), ("Mod", 1)), _positive),
    ("Pow", 1): partial(_between, low=0, high=2),
    **{(op, 0): partial(_between, low=-0.9, high=0.9) for op in ("Acos", "Asin", "Atanh")},
    ("Acosh", 0): partial(_between, low=1.1, high=3),
    ("BitShift", 1): partial(_between, low=0, high=7),
    ("NonZero", 0): lambda *_: Domain(0, 1, "some zeros for NonZero", whole=True),
    **{key: partial(_between, low=1, high=1) for key in (("TopK", 1), ("Expand", 1), ("Tile", 1))},
    **{(op, 4): _steps for op in ("LSTM", "GRU", "RNN")},
    **{(op, 5): partial(_between, low=-0.1, high=0.1) for op in ("LSTM", "GRU", "RNN")},
    ("LSTM", 6): partial(_between, low=-0.1, high=0.1),
}


_SIZES = (  # the usual sizes of dimensions by their symbols
    (re.compile(r"batch|^bs$|^unk"), 1),
    (re.compile(r"height|width"), 64),
    (re.compile(r"samples|audio|wave"), 16000),
    (re.compile(r"frame|time"), 64),
    (re.compile(r"past|seq|len|token"), 16),
    (re.compile(r"chan"), 3),
)
_MOST_CHANNELS = 3  # a guess up to this number is that of a batch, or of an image's channels
_BY_RANK = {1: (16,), 2: (1, 16), 3: (1, 16, 16), 4: (1, 3, 64, 64), 5: (1, 3, 8, 32, 32)}


def suggest_size(graph: InputGraph, spec: TensorSpec, axis: int, least: int = 0) -> int:
    """Return the size of an open dimension: the size that a reader requires (by its weights or a constant shape), else
    a guess by the symbol or the axis. A guess is at least what readers need (for indices that they gather, for padding,
    for kernels), and at least `least` unless it is that of a batch or of channels."""
    assert spec.shape is not None
    demanded = _find_demanded(graph, spec, axis)
    if demanded is None:
        demanded = next((size for size in _ask_readers(graph, spec, axis, _find_exact) if size), None)
    if demanded is not None:
        return demanded
    symbol, rank = spec.shape[axis], len(spec.shape)
    if (axis == 0 and symbol in ("N", "n", "B", "b")) or (not symbol and _STATE.search(spec.name.lower())):
        guess = 1
    else:
        named = (size for pattern, size in _SIZES if isinstance(symbol, str) and pattern.search(symbol.lower()))
        guess = next(named, _BY_RANK.get(rank, (1,) * rank)[axis])
    return max(
        guess if guess <= _MOST_CHANNELS else max(guess, least), *_ask_readers(graph, spec, axis, _find_least), 1
    )


_KEEPING = words("Cast Identity Relu Abs Neg Sqrt Tanh Sigmoid Exp Log Clip QuantizeLinear DequantizeLinear")
_JOINING = words("Add Sub Mul Div Where Equal Max Min")
_UNKNOWN = TensorSpec("", "", None)
Size = Callable[[InputGraph, Node, str, TensorSpec, int], int]


def _ask_readers(graph: InputGraph, spec: TensorSpec, axis: int, find: Size) -> Iterator[int]:
    """Yield the size that each reader of an axis needs, also after nodes that keep the axis; 0 if any size will do."""
    waiting, seen = [(spec.name, axis)], {spec.name}
    while waiting and len(seen) <= _FORWARDED:
        name, input_index = waiting.pop(0)
        for number in graph.wiring.consumers.get(name, ()):
            node = graph.wiring.nodes[number]
            yield find(graph, node, name, spec, input_index)
            moved = _move_axis(graph, node, name, input_index)
            if moved is not None and node.output[0] not in seen:
                seen.add(node.output[0])
                waiting.append((node.output[0], moved))


def _move_axis(graph: InputGraph, node: Node, name: str, axis: int) -> int | None:
    """Return the index of the axis in the node's output; None if the axis is not kept, or not known."""
    if node.op_type == "Gather" and name in node.input[1:] and read_attributes(node).get("axis", 0) == 0:
        return axis  # axes of the indices come first, then those of the table's rows
    if not node.input or node.input[0] != name:
        return None
    if node.op_type in _KEEPING:
        return axis
    if node.op_type != "Unsqueeze":
        return None
    axes = graph.load_constant(node.input[1]) if len(node.input) > 1 else read_attributes(node).get("axes")
    added = sorted(int(each) for each in axes) if axes is not None else [-1]
    if added[0] < 0:
        return axis if added == [-1] and axes is not None else None
    for each in added:
        axis += each <= axis
    return axis


def _find_exact(graph: InputGraph, node: Node, name: str, spec: TensorSpec, axis: int) -> int:
    """Return the only size that a node accepts; 0 if it accepts several."""
    if node.op_type == "Reshape" and node.input[0] == name == spec.name:
        return _find_reshaped(graph, node, spec, axis)
    shape = (spec if name == spec.name else graph.specs.get(name, _UNKNOWN)).shape
    if node.op_type not in _JOINING or shape is None:
        return 0
    behind = len(shape) - axis  # both shapes are aligned at their last axis
    others = [other for other in node.input if other != name and graph.load_constant(other) is not None]
    shapes = [graph.load_constant(other).shape for other in others]
    return max((shape[-behind] for shape in shapes if len(shape) >= behind and shape[-behind] > 1), default=0)


def _find_reshaped(graph: InputGraph, node: Node, spec: TensorSpec, axis: int) -> int:
    """Return the size that gives as many elements as a constant shape has, or a multiple if it leaves one size open."""
    wanted = graph.load_constant(node.input[1])
    others = [dim for input_index, dim in enumerate(spec.shape or ()) if input_index != axis]
    if wanted is None or 0 in wanted or not all(isinstance(dim, int) for dim in others):
        return 0
    needed, known = math.prod(int(each) for each in wanted if each > 0), math.prod(others)  # type: ignore[arg-type]
    if -1 in wanted:
        return needed // math.gcd(needed, known) if needed > 1 else 0
    return needed // known if known and needed % known == 0 else 0


def _find_least(graph: InputGraph, node: Node, name: str, _spec: TensorSpec, axis: int) -> int:
    """Return the smallest size that a node accepts; 0 if it accepts any."""
    if not node.input or node.input[0] != name:
        return 0
    if node.op_type == "Gather" and len(node.input) > 1 and read_attributes(node).get("axis", 0) == axis:
        indices = graph.load_constant(node.input[1])
        return 0 if indices is None or not indices.size else int(max(indices.max() + 1, -indices.min()))
    attributes = read_attributes(node)
    if node.op_type == "Pad":
        given = graph.load_constant(node.input[1]) if len(node.input) > 1 else attributes.get("pads")
        if given is None or attributes.get("mode", b"constant") != b"reflect" or len(node.input) > 3:
            return 0
        half = len(given) // 2
        return max(int(given[axis]), int(given[half + axis])) + 1 if axis < half else 0  # more than the pad
    kernel, at = attributes.get("kernel_shape") or (), axis - 2
    is_windowed = node.op_type in ("Conv", "MaxPool", "AveragePool") and 0 <= at < len(kernel)
    if not is_windowed or attributes.get("auto_pad", b"NOTSET") in (b"SAME_UPPER", b"SAME_LOWER"):
        return 0
    spread = (attributes.get("dilations") or [1] * len(kernel))[at]
    pads = attributes.get("pads") or [0] * 2 * len(kernel)
    return int(max(1, (kernel[at] - 1) * spread + 1 - pads[at] - pads[len(kernel) + at]))


def _find_demanded(graph: InputGraph, spec: TensorSpec, axis: int) -> int | None:
    assert spec.shape is not None
    last = len(spec.shape) - 1
    for input_index in graph.wiring.consumers.get(spec.name, ()):
        node = graph.wiring.nodes[input_index]
        if not node.input or node.input[0] != spec.name or len(node.input) < 2:
            continue
        if node.op_type == "Conv" and axis == 1:
            channels = graph.find_dim(node.input[1], 1)
            return None if channels is None else channels * read_attributes(node).get("group", 1)
        if node.op_type == "MatMul" and axis == last:
            return graph.find_dim(node.input[1], -2)
        if node.op_type in ("LSTM", "GRU", "RNN") and axis == last:
            return graph.find_dim(node.input[1], 2)
        if node.op_type == "Gemm" and axis == last and not read_attributes(node).get("transA", 0):
            return graph.find_dim(node.input[1], 1 if read_attributes(node).get("transB", 0) else 0)
    return None
