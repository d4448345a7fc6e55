"""Finds tensors of two models that are the same: before and after quantisation, a fusion, or under other names.

Tensors are compared in groups: the output of a node, with all nodes that only pass it on (QuantizeLinear,
DequantizeLinear, a cast, an Identity). Groups are paired by name; then by structure, in the order of computation: the
same operator that reads tensors already paired; then by weights that are equal, or equal to within a step once they are
dequantised. A node without a counterpart (a Relu or a BatchNormalization that was fused) belongs to the node before it.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from functools import cached_property

from assay.models.graph.graph import infer_specs
from assay.models.graph.onnx_library import Model, Node, Wiring, build_wiring, read_attributes, words
from assay.models.graph.split import build_folding
from assay.models.graph.submodel import load_constant
from assay.models.graph.tensorfile import Array
from assay.models.libraries import np
from assay.system.fast_dataclasses import dataclass, replace

FLOATS = ("float16", "bfloat16", "float32", "float64")
NAME, STRUCTURE, WEIGHTS = "name", "structure", "weights"
EQUAL, WITHIN_STEP, OTHER = "equal weights", "weights within a step", "other weights"
SHIFTED = "weights off by a zero point"
_SUFFIX = re.compile(r"_(?:(?:Dequantize|Quantize)Linear_(?:In|Out)put|(?:output_)?(?:de)?quantized)(?:_\d+)?$")
ROUNDING = words("QuantizeLinear DequantizeLinear DynamicQuantizeLinear")
_HANDING_ON = ROUNDING | {"Identity", "Dropout", "Cast", "CastLike"}
_KINDS = {
    "ConvInteger": "Conv", "FusedConv": "Conv", "MatMulInteger": "MatMul", "FusedMatMul": "MatMul", "Gemm": "MatMul",
    "DynamicQuantizeMatMul": "MatMul", "MatMulIntegerToFloat": "MatMul", "MatMulNBits": "MatMul", "QGemm": "MatMul",
    "FusedGemm": "MatMul", "DynamicQuantizeLSTM": "LSTM",
}  # fmt: skip
WEIGHTED = words("Conv ConvTranspose MatMul LSTM GRU RNN")
_ABSORBED = words("Relu Clip BatchNormalization Sigmoid Tanh LeakyRelu HardSigmoid HardSwish Elu Add Mul")
_COMMUTING = words("Add Mul Max Min Sum Mean")
_MOVING = words("MaxPool Reshape Transpose Flatten Squeeze Unsqueeze Gather Slice Split Relu Clip Pad")
_SCALES = {"QLinearConv": 6, "QLinearMatMul": 6, "QLinearAdd": 6, "QLinearMul": 6, "QGemm": 7, "QLinearConcat": 0}
_AXES = {"QLinearConv": 0, "QLinearMatMul": 1, "QGemm": 1}  # the axis of the weights along which scales differ
_MOST_WRONG_NAMES = 0.2  # of the common names: if more are wrong, names are numbers that each export gives in its order
_EXACT = 1e-6  # relative to the largest weight
_FEWEST_WEIGHTS = 16
_SHIFT = 0.25  # steps: any way of rounding is off by less on average


def name_kind(op: str) -> str:
    """Return the operator's kind: `QLinearConv`, `ConvInteger` and `FusedConv` are convolutions."""
    bare = op.removeprefix("QLinear")
    return _KINDS.get(bare, bare)


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """A tensor that a node makes, and all tensors that only pass it on; `node` is -1 for an input of the model."""

    root: str
    node: int
    kind: str
    names: tuple[str, ...]
    sources: tuple[str, ...] = ()  # roots of the groups that the node reads
    weights: tuple[str, ...] = ()  # constants that the node reads
    value: str = ""  # the tensor that later nodes read: after a DequantizeLinear, if there is one
    scaling: tuple[str, str] | None = None  # names of the scale and zero point of its integers
    is_whole: bool = False  # `value` itself is integers


@dataclass(frozen=True, slots=True)
class GroupPair:
    left: TensorGroup
    right: TensorGroup
    how: str
    weights: str = ""  # how the weights of the two compare; empty: there are none

    @property
    def description(self) -> str:
        return f"{self.how} ({self.weights})" if self.weights else self.how


class ModelSide:
    """One of two models that are compared, as groups of tensors."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.wiring: Wiring = build_wiring(model.graph)
        self.folding = build_folding(self.wiring)
        self.specs = infer_specs(model)
        self._roots: dict[str, str] = {}  # tensor → the root of its group
        self._scalings: dict[str, tuple[str, str]] = {}  # tensor of integers → its scale and zero point
        members: dict[str, list[str]] = {name: [name] for name in self.wiring.inputs}
        for node in self.wiring.nodes:
            handed = self._find_handed(node)
            for number, name in enumerate(filter(None, node.output)):
                self._roots[name] = self._roots.get(handed, handed) if handed and not number else name
                members.setdefault(self._roots[name], []).append(name)
            self._note_scaling(node)
        built = [self._build_group(root, tuple(names)) for root, names in members.items()]
        self.groups = {group.root: group for group in built if self._is_pairable(group)}

    def _is_pairable(self, group: TensorGroup) -> bool:
        """Return whether a group can be paired: constants, shapes and computations of scales cannot."""
        if group.node < 0:
            return group.root in self.wiring.inputs
        is_about_scales = self.wiring.nodes[group.node].op_type in ROUNDING or (
            group.kind == "Mul" and not group.sources
        )
        return not self._is_known(group.root) and not is_about_scales

    def _is_known(self, name: str) -> bool:
        return self.wiring.is_constant(name) or self.folding.is_foldable(name)

    def find_maker(self, name: str) -> Node | None:
        index = self.wiring.producers.get(name)
        return None if index is None else self.wiring.nodes[index]

    def _find_handed(self, node: Node) -> str:
        """Return the tensor that a node passes on; empty if the node computes something."""
        read = [name for name in node.input if name and not self._is_known(name)]
        if not read:
            return ""
        if node.op_type in _HANDING_ON:
            return read[0] if node.op_type != "Cast" or self._is_float(node) else ""
        products = [name for name in read if self._is_integer_product(name)] if node.op_type == "Mul" else []
        return products[0] if len(products) == 1 else ""  # the node multiplies a product of integers by its scales

    def _is_float(self, cast: Node) -> bool:
        """Return whether a Cast converts to floats, from floats or from a product of integers."""
        kinds = [spec.dtype if (spec := self.specs.get(name)) else "" for name in (cast.input[0], cast.output[0])]
        return kinds[1] in FLOATS and (kinds[0] in FLOATS or self._is_integer_product(cast.input[0]))

    def _is_integer_product(self, name: str) -> bool:
        maker = self.find_maker(self._roots.get(name, name))
        return maker is not None and maker.op_type in ("MatMulInteger", "ConvInteger")

    def _note_scaling(self, node: Node) -> None:
        """Record the scale of integers that a node makes; a node that only moves integers keeps their scale."""
        at = 1 if node.op_type == "QuantizeLinear" else _SCALES.get(node.op_type)
        if at is None and node.op_type.startswith("QLinear"):
            at = 3
        if at is not None and len(node.input) > at:
            self._scalings[node.output[0]] = node.input[at], node.input[at + 1] if len(node.input) > at + 1 else ""
        elif node.op_type in _MOVING and any(name in self._scalings for name in node.input[:1]):
            self._scalings |= dict.fromkeys(node.output, self._scalings[node.input[0]])

    def _build_group(self, root: str, names: tuple[str, ...]) -> TensorGroup:
        index = self.wiring.producers.get(root, -1)
        if index < 0:
            return TensorGroup(root, index, "", names, value=root)
        makers = {name: maker.op_type for name in names if (maker := self.find_maker(name)) is not None}
        floats = [name for name, op in makers.items() if op == "DequantizeLinear"]
        scaled = [name for name, op in makers.items() if op == "Mul"] if self._is_integer_product(root) else []
        value = next(iter((*floats, *scaled, root)))
        read = self.wiring.reads[index]
        made = [self._roots.get(name, name) for name in read if not self._is_known(name)]
        sources = [name for name in made if (maker := self.find_maker(name)) is None or maker.op_type not in ROUNDING]
        known = tuple(name for name in read if self._is_known(name))
        kind = name_kind(self.wiring.nodes[index].op_type)
        maker = self.find_maker(value)
        whole = maker.input[0] if maker is not None and maker.op_type == "DequantizeLinear" else value
        scaling = self._scalings.get(whole)
        return TensorGroup(root, index, kind, names, tuple(sources), known, value, scaling, value in self._scalings)

    @cached_property
    def readers(self) -> dict[str, list[TensorGroup]]:
        """For each root, the groups whose nodes read it."""
        found: dict[str, list[TensorGroup]] = {}
        for group in self.groups.values():
            for source in dict.fromkeys(group.sources):
                found.setdefault(source, []).append(group)
        return found

    @cached_property
    def by_name(self) -> dict[str, TensorGroup]:
        """Each group by every name of its tensors."""
        return {name: group for group in self.groups.values() for name in group.names}

    @cached_property
    def by_stem(self) -> dict[str, TensorGroup]:
        """Each group by the names of its tensors without what a quantiser adds to names."""
        return {_SUFFIX.sub("", name): group for group in self.groups.values() for name in group.names}

    @cached_property
    def kinds(self) -> frozenset[str]:
        return frozenset(group.kind for group in self.groups.values())

    def is_output(self, group: TensorGroup) -> bool:
        return any(self.wiring.is_output(name) for name in group.names)

    def list_sizes(self, group: TensorGroup) -> list[list[int]]:
        """Return the group's small integer constants, such as positions of a slice or a shape."""
        found = [load_constant(self.wiring, name) for name in group.weights]
        return [
            each.ravel().tolist() for each in found if each is not None and each.dtype == "int64" and each.size < 64
        ]

    def find_range(self, group: TensorGroup) -> tuple[float, float, float] | None:
        """Return the least and the largest number that the group's integers can express, and their step; None if it has
        no integers, or no single scale."""
        scale, zero = (load_constant(self.wiring, name) for name in group.scaling or ("", ""))
        if scale is None or scale.size != 1 or (zero is not None and zero.dtype.kind not in "iu"):
            return None
        kind = np.iinfo(np.uint8 if zero is None else zero.dtype) if zero is None or zero.dtype.isbuiltin == 1 else None
        step, offset = float(scale.reshape(-1)[0]), 0 if zero is None else int(zero.reshape(-1)[0])
        return None if kind is None else ((kind.min - offset) * step, (kind.max - offset) * step, step)

    def find_contradiction(self, group: TensorGroup) -> str:
        """Describe integers that are written with one scale and zero point, and read with others; else empty."""
        for name in (name for name in group.names if name in self._scalings):
            written = [self._load_number(each) for each in self._scalings[name]]
            for index in self.wiring.consumers.get(name, ()):
                node = self.wiring.nodes[index]
                is_scaled = node.op_type == "DequantizeLinear" or node.op_type.startswith(("QLinear", "QGemm"))
                if not is_scaled or name not in node.input:  # what a sub-graph reads is not among its inputs
                    continue
                at = list(node.input).index(name) + 1
                read = [self._load_number(each) for each in (*node.input[at : at + 2], "")[:2]]
                if None not in (*written, *read) and written != read:
                    words = [f"scale {scale:.6g} and zero point {zero:.0f}" for scale, zero in (written, read)]
                    return f"its integers are written with {words[0]}, and read with {words[1]}"
        return ""

    def _load_number(self, name: str) -> float | None:
        found = load_constant(self.wiring, name) if name else None
        return 0.0 if not name else float(found.reshape(-1)[0]) if found is not None and found.size == 1 else None

    def load_weights(self, group: TensorGroup) -> tuple[Array, Array | float] | None:
        """Return the largest constant that a node of weights reads, as numbers, and the size of its steps (0: none)."""
        if group.node < 0 or group.kind not in WEIGHTED:
            return None
        found = [each for name in group.weights if (each := self._load_numbers(name, group)) is not None]
        return max(found, key=lambda each: int(each[0].size), default=None)

    def _load_numbers(self, name: str, group: TensorGroup) -> tuple[Array, Array | float] | None:
        maker, reader = self.find_maker(name), self.wiring.nodes[group.node]
        if maker is not None and maker.op_type == "DequantizeLinear":
            return self._dequantize(tuple(maker.input), int(read_attributes(maker).get("axis", 1)))
        if reader.op_type in _AXES and len(reader.input) > 5 and reader.input[3] == name:
            return self._dequantize(tuple(reader.input[3:6]), _AXES[reader.op_type])
        array = load_constant(self.wiring, name)
        return (
            (array, 0.0) if array is not None and array.ndim > 1 and np.issubdtype(array.dtype, np.floating) else None
        )

    def _dequantize(self, names: tuple[str, ...], axis: int) -> tuple[Array, Array] | None:
        loaded = [load_constant(self.wiring, name) for name in names if name]
        known = [each.astype(np.float64) for each in loaded if each is not None]
        if len(known) < len(loaded):
            return None
        whole, scale, zero = (*known, np.zeros(1))[:3]
        if scale.size > 1 and (scale.ndim != 1 or whole.ndim <= axis or whole.shape[axis] != scale.size):
            return None  # blocks of weights with their own scales are not supported
        shape = [scale.size if at == axis and scale.size > 1 else 1 for at in range(whole.ndim)]
        step = scale.reshape(shape)
        return (whole - (zero.reshape(shape) if zero.size == scale.size else zero.reshape(-1)[0])) * step, np.abs(step)


def match_models(left: ModelSide, right: ModelSide, ends: Mapping[str, str]) -> dict[str, GroupPair]:
    """Return the pairs by the left group's root. `ends`: inputs and outputs of the right model, by the left model's."""
    found = _Pairing(left, right)
    for one in left.wiring.inputs:
        found.add(left.by_name[one], right.by_name[ends[one]], NAME if ends[one] == one else STRUCTURE)
    found.pair_names()
    for one in left.wiring.outputs:
        if one in left.by_name and ends[one] in right.by_name:
            found.add(left.by_name[one], right.by_name[ends[one]], NAME if ends[one] == one else STRUCTURE)
    found.pair_structure()
    if found.pair_weights():
        found.pair_structure()
    return {root: found.compare(pair) for root, pair in found.pairs.items()}


class _Pairing:
    def __init__(self, left: ModelSide, right: ModelSide) -> None:
        self.left, self.right = left, right
        self.pairs: dict[str, GroupPair] = {}  # root of the left group → pair
        self._taken: dict[str, str] = {}  # root of the right group → root of the left group

    def add(self, left: TensorGroup, right: TensorGroup, how: str) -> None:
        """Pair two groups, unless one of them is paired already."""
        if left.root not in self.pairs and right.root not in self._taken:
            left, right = self._absorb(left, right)
            self.pairs[left.root] = GroupPair(left, right, how)
            self._taken[right.root] = left.root

    def compare(self, pair: GroupPair) -> GroupPair:
        """Return the pair with the comparison of the weights of its node, not of a node that was fused into it."""
        left = self._find_weighted(self.left, pair.left, self.pairs)
        right = self._find_weighted(self.right, pair.right, self._taken)
        return replace(pair, weights=compare_weights(self.left.load_weights(left), self.right.load_weights(right)))

    def _find_weighted(self, side: ModelSide, group: TensorGroup, paired: Container[str]) -> TensorGroup:
        while group.kind in _ABSORBED and len(group.sources) == 1 and group.sources[0] not in paired:
            if group.sources[0] not in side.groups:
                break  # no node makes this source, which the runtime reports
            group = side.groups[group.sources[0]]
        return group

    def _absorb(self, left: TensorGroup, right: TensorGroup) -> tuple[TensorGroup, TensorGroup]:
        """Add to the groups what follows on one side only: an activation, a normalisation or a bias that was fused."""
        while True:
            mine, theirs = self._find_next(self.left, left), self._find_next(self.right, right)
            others = {each.kind for each in self.right.readers.get(right.root, ())}
            own = {each.kind for each in self.left.readers.get(left.root, ())}
            is_bias = theirs is not None and theirs.kind == "Add" and left.kind in WEIGHTED and len(left.weights) > 1
            is_theirs = theirs is not None and theirs.kind not in own and theirs.root not in self._taken
            is_mine = mine is not None and mine.kind not in others and mine.root not in self.pairs
            if theirs is not None and is_theirs and (is_bias or not mine):
                right = theirs
            elif mine is not None and is_mine and not any(name in self.right.by_name for name in mine.names):
                left = mine
            else:
                return left, right

    def _find_next(self, side: ModelSide, group: TensorGroup) -> TensorGroup | None:
        readers = side.readers.get(group.root, [])
        if group.node < 0 or len(readers) != 1 or side.is_output(group):
            return None
        is_simple = readers[0].kind in _ABSORBED and readers[0].sources == (group.root,)
        return readers[0] if is_simple else None

    def pair_names(self) -> None:
        lists = (self.right.by_name, self.right.by_stem)  # exact names come before names without a quantiser's suffix
        shared = [
            (left, known[left.root]) for known in lists for left in self.left.groups.values() if left.root in known
        ]
        likely = [pair for pair in shared if self._is_likely(*pair)]
        if len(shared) - len(likely) <= _MOST_WRONG_NAMES * len(shared):
            for left, right in likely:
                self.add(left, right, NAME)

    def _is_likely(self, left: TensorGroup, right: TensorGroup) -> bool:
        """Whether equal names may mean one thing: the same operator, a part of it, or one that only one model has."""
        is_fused = left.kind in _ABSORBED and (right.kind in WEIGHTED or right.kind in _ABSORBED)
        is_split = right.kind in ("Add", "Mul") and left.kind in WEIGHTED
        is_alone = right.kind not in self.left.kinds or left.kind not in self.right.kinds
        return left.kind == right.kind or is_fused or is_split or is_alone

    def pair_structure(self) -> None:
        """Pair operators that read paired tensors; of several equal ones, those with equal weights or attributes."""
        for left in self.left.groups.values():
            if left.root in self.pairs or not left.sources or any(name not in self.pairs for name in left.sources):
                continue
            wanted = _order(left.kind, tuple(self.pairs[name].right.root for name in left.sources))
            options = [
                group
                for group in self.right.readers.get(wanted[0], ())
                if group.kind == left.kind
                and group.root not in self._taken
                and _order(group.kind, group.sources) == wanted
                and (left.kind in WEIGHTED or self._has_same_form(left, group))
            ]
            chosen = options if len(options) < 2 else [each for each in options if self._is_alike(left, each)]
            if chosen:
                self.add(left, chosen[0], STRUCTURE)

    def _is_alike(self, left: TensorGroup, right: TensorGroup) -> bool:
        same = compare_weights(self.left.load_weights(left), self.right.load_weights(right))
        return same in (EQUAL, WITHIN_STEP) or (not same and self._has_same_form(left, right))

    def _has_same_form(self, left: TensorGroup, right: TensorGroup) -> bool:
        """Return whether axes, orders and sizes are equal; numbers such as an epsilon may be wrong."""
        mine, theirs = (
            read_attributes(side.wiring.nodes[group.node]) for side, group in ((self.left, left), (self.right, right))
        )
        shared = (name for name in mine if name in theirs and not isinstance(mine[name], float))
        sizes = [side.list_sizes(group) for side, group in ((self.left, left), (self.right, right))]
        is_known = len(sizes[0]) == len(sizes[1])
        return all(mine[name] == theirs[name] for name in shared) and (sizes[0] == sizes[1] or not is_known)

    def pair_weights(self) -> int:
        """Pair nodes that are the only ones with their weights, and return how many were paired."""
        free = [
            group for group in self.right.groups.values() if group.kind in WEIGHTED and group.root not in self._taken
        ]
        before = len(self.pairs)
        for left in [
            each for each in self.left.groups.values() if each.kind in WEIGHTED and each.root not in self.pairs
        ]:
            mine = self.left.load_weights(left)
            same = [each for each in free if each.kind == left.kind and each.root not in self._taken
                    and compare_weights(mine, self.right.load_weights(each)) in (EQUAL, WITHIN_STEP)]  # fmt: skip
            if len(same) == 1:
                self.add(left, same[0], WEIGHTS)
        return len(self.pairs) - before


def _order(kind: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(names)) if kind in _COMMUTING else names


def compare_weights(left: tuple[Array, Array | float] | None, right: tuple[Array, Array | float] | None) -> str:
    """Return how two constants compare, each with the size of its steps; empty if one of them cannot be read."""
    if left is None or right is None or not left[0].size:
        return ""
    views = [right]
    if right[0].ndim == 2:  # the weights of a Gemm may be those of a MatMul transposed
        views.append((right[0].T, np.transpose(right[1])))
    for turned, step in views:
        if turned.shape == left[0].shape:
            gap = np.abs(left[0].astype(np.float64) - turned)
            exact = _EXACT * float(np.abs(left[0]).max())
            if (gap <= exact).all():
                return EQUAL
            if (gap <= 0.51 * (step + left[1]) + exact).all():
                return WITHIN_STEP
            steps = (turned - left[0]) / step if np.all(step) else gap[:0]
            # all weights are shifted by about the same number of steps, plus a rounding of their own
            if steps.size >= _FEWEST_WEIGHTS and abs(steps.mean()) > _SHIFT and steps.std() < 2 * _SHIFT:
                return SHIFTED
    return OTHER
