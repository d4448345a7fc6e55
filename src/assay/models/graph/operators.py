"""Facts about operators: their names, their results in float64, and the size of the terms of their sums.

The float64 formulas are written from ONNX's specification alone, for the operators that most models consist of. Each
formula has two uses: an evaluator that gives a second opinion is tested against it; and with absolute inputs it gives
the sum of the terms' magnitudes, to which rounding errors are proportional if the terms cancel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from assay.models.graph.onnx_library import (
    DEFAULT_DOMAINS,
    DRAWING,
    Model,
    Node,
    Wiring,
    build_wiring,
    find_opset,
    find_reads,
    find_subgraphs,
    read_attributes,
    words,
)
from assay.models.graph.submodel import find_functions, load_constant
from assay.models.graph.tensorfile import Array
from assay.models.libraries import np, onnx

Inputs = Sequence[Any]  # None: an omitted optional input
Attributes = Mapping[str, Any]
Formula = Callable[[Inputs, Attributes, int], Array]

_EPSILON = 1e-5
_SEED = 1234


def is_operator(name: str) -> bool:
    """Return whether there is an operator of this name, in any domain and of any version."""
    return any(schema.name == name for schema in onnx.defs.get_all_schemas_with_history())


# ---------------------------------------------------------------- results in float64


def compute_float64(op: str, inputs: Inputs, attributes: Attributes, opset: int) -> Array | None:
    """Compute the first output from the definition of the operator; None if there is no formula for this use."""
    formula = _build_formulas().get(op)
    if formula is None:
        return None
    wide = [None if each is None else _widen(each) for each in inputs]
    try:
        with np.errstate(all="ignore"):
            return formula(wide, attributes, opset)
    except (ValueError, IndexError, KeyError, TypeError, NotImplementedError):
        return None  # the formula does not cover this use


def _widen(array: Array) -> Array:
    return array.astype(np.float64) if is_float(array) else array


def is_float(array: Array | None) -> bool:
    """Return whether an array has floats; floats of ml_dtypes, which numpy calls void, count as well."""
    return array is not None and array.dtype.kind in "fV" and "int" not in array.dtype.name


def _build_formulas() -> dict[str, Formula]:
    unary: dict[str, Callable[[Array], Array]] = {
        "Abs": np.abs, "Neg": np.negative, "Exp": np.exp, "Log": np.log, "Sqrt": np.sqrt, "Tanh": np.tanh,
        "Sin": np.sin, "Cos": np.cos, "Floor": np.floor, "Ceil": np.ceil, "Round": np.rint,
        "Identity": lambda x: x, "Reciprocal": lambda x: 1 / x, "Relu": lambda x: np.maximum(x, 0),
        "Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "Softplus": lambda x: np.logaddexp(x, 0),
        "Erf": np.vectorize(math.erf, otypes=[float]), "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    }  # fmt: skip
    binary: dict[str, Callable[[Array, Array], Array]] = {
        "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power, "MatMul": np.matmul,
        "Sum": np.add, "Max": np.maximum, "Min": np.minimum,
        "PRelu": lambda x, slope: np.where(x < 0, x * slope, x),
    }  # fmt: skip
    formulas: dict[str, Formula] = {
        "Clip": _clip, "Gemm": _gemm, "Conv": _conv, "MaxPool": _max_pool, "AveragePool": _average_pool,
        "BatchNormalization": _batch_normalization, "LayerNormalization": _layer_normalization,
        "InstanceNormalization": _instance_normalization,
        "LogSoftmax": _log_softmax, "Softmax": lambda *given: np.exp(_log_softmax(*given)),
        "LeakyRelu": lambda inputs, given, _: np.where(inputs[0] < 0, inputs[0] * given.get("alpha", 0.01), inputs[0]),
        "HardSigmoid": lambda inputs, given, _: np.clip(
            inputs[0] * given.get("alpha", 0.2) + given.get("beta", 0.5), 0, 1
        ),
        "Einsum": lambda inputs, given, _: np.einsum(given["equation"].decode().replace(" ", ""), *inputs),
        "ReduceSum": lambda inputs, given, _: _reduce(inputs, given, np.sum),
        "ReduceMean": lambda inputs, given, _: _reduce(inputs, given, np.mean),
        "ReduceMax": lambda inputs, given, _: _reduce(inputs, given, np.max),
        "GlobalAveragePool": lambda inputs, *_: inputs[0].mean(tuple(range(2, inputs[0].ndim)), keepdims=True),
        "GlobalMaxPool": lambda inputs, *_: inputs[0].max(tuple(range(2, inputs[0].ndim)), keepdims=True),
    }  # fmt: skip
    for name, function in unary.items():
        formulas[name] = lambda inputs, *_, of_first=function: of_first(inputs[0])
    for name, join in binary.items():
        formulas[name] = lambda inputs, *_, of_all=join: reduce(of_all, inputs)
    return formulas


def _clip(inputs: Inputs, attributes: Attributes, _opset: int) -> Array:
    low, high = (inputs[position] if len(inputs) > position else None for position in (1, 2))
    low = attributes.get("min", -math.inf) if low is None else low
    return np.minimum(np.maximum(inputs[0], low), attributes.get("max", math.inf) if high is None else high)


def _gemm(inputs: Inputs, attributes: Attributes, _opset: int) -> Array:
    a, b = inputs[0], inputs[1]
    a = a.T if attributes.get("transA") else a
    b = b.T if attributes.get("transB") else b
    found = attributes.get("alpha", 1.0) * (a @ b)
    has_c = len(inputs) > 2 and inputs[2] is not None
    return found + attributes.get("beta", 1.0) * inputs[2] if has_c else found


def _batch_normalization(inputs: Inputs, attributes: Attributes, opset: int) -> Array:
    """Normalize as in inference, with the given mean and variance."""
    if attributes.get("training_mode") or (opset < 7 and not attributes.get("is_test")):
        raise NotImplementedError
    x = inputs[0]
    shape = [1, -1] + [1] * (x.ndim - 2)
    scale, bias, mean, variance = (inputs[position].reshape(shape) for position in range(1, 5))
    return (x - mean) / np.sqrt(variance + attributes.get("epsilon", _EPSILON)) * scale + bias


def _layer_normalization(inputs: Inputs, attributes: Attributes, _opset: int) -> Array:
    x = inputs[0]
    found = _normalize(x, attributes.get("axis", -1) % x.ndim, attributes) * inputs[1]
    return found + inputs[2] if len(inputs) > 2 and inputs[2] is not None else found


def _instance_normalization(inputs: Inputs, attributes: Attributes, _opset: int) -> Array:
    shape = [1, -1] + [1] * (inputs[0].ndim - 2)
    return _normalize(inputs[0], 2, attributes) * inputs[1].reshape(shape) + inputs[2].reshape(shape)


def _normalize(x: Array, first_axis: int, attributes: Attributes) -> Array:
    axes = tuple(range(first_axis, x.ndim))
    centred = x - x.mean(axes, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axes, keepdims=True) + attributes.get("epsilon", _EPSILON))


def _log_softmax(inputs: Inputs, attributes: Attributes, opset: int) -> Array:
    """Compute over all axes from `axis` on in opsets up to 12, and over `axis` alone in later opsets."""
    x = inputs[0]
    first = attributes.get("axis", 1 if opset < 13 else -1) % x.ndim
    axes = tuple(range(first, x.ndim)) if opset < 13 else (first,)
    below = x - x.max(axes, keepdims=True)
    return below - np.log(np.exp(below).sum(axes, keepdims=True))


def _reduce(inputs: Inputs, attributes: Attributes, function: Callable[..., Array]) -> Array:
    axes = attributes.get("axes")
    if len(inputs) > 1 and inputs[1] is not None:
        axes = inputs[1].tolist()
    if not axes and attributes.get("noop_with_empty_axes"):
        return inputs[0]
    return function(inputs[0], axis=tuple(axes) if axes else None, keepdims=bool(attributes.get("keepdims", 1)))


def _conv(inputs: Inputs, attributes: Attributes, _opset: int) -> Array:
    """Compute one matrix product for each position in the kernel."""
    x, weight = inputs[0], inputs[1]
    kernel, group = weight.shape[2:], attributes.get("group", 1)
    windows = _slide(x, kernel, attributes, 0.0)
    parts = x.shape[0], group, x.shape[1] // group
    split = weight.reshape(group, weight.shape[0] // group, *weight.shape[1:])
    total: Any = 0.0
    for position, window in windows:
        taken = window.reshape(*parts, -1)
        total = total + np.einsum("goc,ngcp->ngop", split[(..., *position)], taken, optimize=True)
        shape = window.shape[2:]
    found = total.reshape(x.shape[0], weight.shape[0], *shape)
    has_bias = len(inputs) > 2 and inputs[2] is not None
    return found + inputs[2].reshape([1, -1] + [1] * len(kernel)) if has_bias else found


def _max_pool(inputs: Inputs, attributes: Attributes, _opset: int) -> Array:
    windows = _slide(inputs[0], tuple(attributes["kernel_shape"]), attributes, -math.inf)
    return reduce(np.maximum, [window for _, window in windows])


def _average_pool(inputs: Inputs, attributes: Attributes, _opset: int) -> Array:
    kernel = tuple(attributes["kernel_shape"])
    total = sum(window for _, window in _slide(inputs[0], kernel, attributes, 0.0))
    if attributes.get("count_include_pad"):
        return total / math.prod(kernel)
    return total / sum(window for _, window in _slide(np.ones_like(inputs[0]), kernel, attributes, 0.0))


def _slide(
    x: Array, kernel: tuple[int, ...], attributes: Attributes, filling: float
) -> list[tuple[tuple[int, ...], Array]]:
    """Return the elements that each position in the kernel is applied to."""
    count = len(kernel)
    automatic = attributes.get("auto_pad", b"NOTSET")
    if automatic not in (b"NOTSET", b"VALID", b"") or attributes.get("ceil_mode"):
        raise NotImplementedError
    strides = tuple(attributes.get("strides", [1] * count))
    steps = tuple(attributes.get("dilations", [1] * count))
    pads = [0] * 2 * count if automatic == b"VALID" else attributes.get("pads", [0] * 2 * count)
    padded = np.pad(
        x, [(0, 0), (0, 0), *zip(pads[:count], pads[count:], strict=True)], constant_values=filling
    )  # fmt: skip
    sizes = [padded.shape[axis + 2] - (kernel[axis] - 1) * steps[axis] for axis in range(count)]
    found = []
    for position in itertools.product(*(range(length) for length in kernel)):
        cuts = tuple(
            slice(position[axis] * steps[axis], position[axis] * steps[axis] + sizes[axis], strides[axis])
            for axis in range(count)
        )
        found.append((position, padded[(slice(None), slice(None), *cuts)]))
    return found


# ---------------------------------------------------------------- a model of a few operators


def compute_model_float64(model: Model, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
    """Compute the first output of each node of a model; None if a node has no formula."""
    wiring, opset = build_wiring(model.graph), find_opset(model)
    values: dict[str, Array] = dict(inputs)
    for name in (*wiring.weights, *wiring.constants):
        constant = load_constant(wiring, name)
        if constant is not None:
            values[name] = constant
    found = {}
    for position in sorted(set(wiring.producers.values())):
        node = wiring.nodes[position]
        given = [values.get(name) if name else None for name in node.input]
        is_known = node.domain in DEFAULT_DOMAINS  # an operator of this name in another domain may differ
        made = compute_float64(node.op_type, given, read_attributes(node), opset) if is_known else None
        if made is None:
            return None
        values[node.output[0]] = found[node.output[0]] = made
    return found


def draw_ordinary(inputs: Mapping[str, Array], *, positive: bool) -> dict[str, Array]:
    """Return the inputs with random floats of moderate size, which do not amplify rounding; integers stay."""
    rng = np.random.default_rng(_SEED)
    drawn = {}
    for name, array in inputs.items():
        sizes = rng.uniform(0.25, 1.5, array.shape)
        signs = 1.0 if positive else rng.choice([-1.0, 1.0], array.shape)
        drawn[name] = np.asarray(sizes * signs).astype(array.dtype) if is_float(array) else array
    return drawn


def is_finite(arrays: Mapping[str, Array]) -> bool:
    return all(np.isfinite(_widen(array)).all() for array in arrays.values() if is_float(array))


def identify_use(nodes: Sequence[Node], opset: int) -> str:
    """Return a key of everything that an implementation may depend on: the operators' names, version and attributes."""
    parts = [f"{node.domain}:{node.op_type}:{sorted(map(repr, node.attribute))}:{len(node.input)}" for node in nodes]
    return f"{opset} {' '.join(parts)}"


# ---------------------------------------------------------------- the size of the terms

# operators that compute linear sums: with absolute inputs, the result is the sum of the terms' magnitudes
_LINEAR = words("Add Sub Sum MatMul Gemm Einsum Conv ReduceSum ReduceMean GlobalAveragePool AveragePool")

# operators that compute with numbers around one, even if the result is small: sigmoid(-17) as 1 - 0.99999996
_AROUND_ONE = words("""
    Sigmoid HardSigmoid Tanh Erf Softplus Log LogSoftmax Elu Celu Selu Sin Cos Asin Atan Asinh Atanh Softsign
    LSTM GRU RNN DynamicQuantizeLSTM If Loop Scan
""")

# operators whose terms do not cancel: the result is as precise as its size, or its inputs, allow
_EXACT = words("""
    Relu LeakyRelu PRelu Clip Neg Abs Mul Div Reciprocal Exp Sqrt Pow Max Min Floor Ceil Round Sign Softmax ReduceMax
    ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare MaxPool GlobalMaxPool LpPool Identity Cast Reshape Transpose
    Flatten Squeeze Unsqueeze Concat Split Slice Gather GatherElements GatherND ScatterElements ScatterND Pad Expand
    Tile Where Dropout DepthToSpace SpaceToDepth TopK Compress Trilu Range ConstantOfShape EyeLike QuantizeLinear
    DequantizeLinear Hardmax ThresholdedRelu Shrink
""")

# operators that pass on a rounding error of an input, unchanged or (Mul) times the other factor
_CARRYING = words("""
    Relu LeakyRelu Clip Neg Abs Max Min Identity Cast Reshape Transpose Flatten Squeeze Unsqueeze Concat Split Slice
    Gather GatherElements GatherND Pad Expand Tile Where Dropout DepthToSpace SpaceToDepth MaxPool GlobalMaxPool
    ReduceMax ReduceMin Resize Upsample Add Sub Sum Mul
""")


def compute_magnitude(op: str, inputs: Inputs, attributes: Attributes, opset: int) -> Array | float:
    """Return the size of the terms that an operator adds up, as one number or for each element of its first output. A
    rounding error is a few times this size times the type's precision (float32: 1.2e-7), even if the terms cancel."""
    if op in _EXACT:
        return 0.0
    if op in _AROUND_ONE:
        return 1.0
    found = _add_magnitudes(op, inputs, attributes, opset)
    return max((_measure_size(each) for each in inputs), default=0.0) if found is None else found


def _add_magnitudes(op: str, inputs: Inputs, attributes: Attributes, opset: int) -> Array | None:
    sizes = [np.abs(_widen(each)) if is_float(each) else each for each in inputs]
    if op in _LINEAR:
        positive = {name: abs(value) if isinstance(value, float) else value for name, value in attributes.items()}
        return compute_float64("Add" if op == "Sub" else op, sizes, positive, opset)
    if op == "BatchNormalization":  # the mean is subtracted: its negative size adds up
        sizes[3:4] = [-size for size in sizes[3:4] if size is not None]
        return compute_float64(op, sizes, attributes, opset)
    if op in ("LayerNormalization", "InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization"):
        return _measure_normalized(op, inputs, attributes)
    return None


def _measure_normalized(op: str, inputs: Inputs, attributes: Attributes) -> Array | None:
    """Return the elements' size divided by the deviation that normalises them, which is small for equal elements."""
    x = inputs[0]
    if x is None or x.ndim < 2:
        return None
    wide = x.astype(np.float64)
    first = attributes.get("axis", -1) % x.ndim if op == "LayerNormalization" else min(2, x.ndim - 1)
    axes = tuple(range(first, x.ndim))
    deviation = np.sqrt(wide.var(axes, keepdims=True) + attributes.get("epsilon", _EPSILON))
    others = [float(np.abs(each).max()) for each in inputs[1:3] if each is not None and each.size]
    factor = others[0] if others else 1.0
    return (np.abs(wide) + np.abs(wide).mean(axes, keepdims=True)) / deviation * factor + sum(others[1:2])


def _measure_size(array: Array | None) -> float:
    """Return the root mean square of the elements that are neither zero nor infinite."""
    if array is None or not is_float(array) or not array.size:
        return 0.0
    wide = np.abs(array.astype(np.float64))
    used = wide[np.isfinite(wide) & (wide > 0)]
    return float(np.sqrt(np.mean(np.square(used)))) if used.size else 0.0


def count_terms(op: str, inputs: Inputs, attributes: Attributes) -> int:
    """Return the most terms that an operator adds for one output element, in all steps of a recurrent operator."""
    shapes: list[tuple[int, ...]] = [() if each is None else each.shape for each in inputs]
    first = shapes[0] if shapes else ()
    axes: Sequence[int] = ()
    if not all(shapes[:3] if op in ("LSTM", "GRU", "RNN") else shapes[:2]):
        return 1  # an input is unknown
    if op in ("Conv", "ConvTranspose") and len(shapes) > 1:
        return math.prod(shapes[1]) // max(shapes[1][0 if op == "Conv" else 1], 1)
    if op in ("LSTM", "GRU", "RNN") and len(shapes) > 2:
        return int(first[0] * (shapes[1][-1] + shapes[2][-1]))
    if op in ("MatMul", "Gemm"):
        axes = (0 if attributes.get("transA") else -1,)
    elif op.startswith("Reduce"):
        given = inputs[1].tolist() if len(inputs) > 1 and inputs[1] is not None else None
        axes = attributes.get("axes") or given or range(len(first))
    elif op.endswith(("LayerNormalization", "RMSNormalization")):
        axes = range(attributes.get("axis", -1) % max(len(first), 1), len(first))
    elif op.endswith(("Pool", "InstanceNormalization", "GroupNormalization")):
        axes = range(1 if op == "GroupNormalization" else 2, len(first))
    elif op in ("Softmax", "LogSoftmax", "LpNormalization", "CumSum", "Einsum"):
        return max(first, default=1)
    return math.prod(first[axis] for axis in axes if -len(first) <= axis < len(first))


def compute_unrounded(op: str, inputs: Inputs, attributes: Attributes) -> Array | None:
    """Return in float64 the values that an operator rounds to the type of its output, in steps of this type; None if
    the operator rounds nothing, or if this use is not covered."""
    if op not in _UNROUNDED:
        return None
    if not op.startswith("Cast") and any(is_float(each) and each.dtype.itemsize < 4 for each in inputs):
        return None  # a quotient of short floats may be rounded to a short float first
    try:
        with np.errstate(all="ignore"):
            return _UNROUNDED[op]([None if each is None else each.astype(np.float64) for each in inputs], attributes)
    except (ValueError, IndexError, AttributeError, TypeError, NotImplementedError):
        return None  # the formula does not cover this use, or an input is unknown


def _broadcast(values: Array, ndim: int, axis: int) -> Array:
    """Return one number, or one for each index of an axis, in a shape that broadcasts."""
    return values if values.size == 1 else values.reshape([-1 if each == axis % ndim else 1 for each in range(ndim)])


def _quantize(inputs: Inputs, attributes: Attributes) -> Array:
    x, axis, size = inputs[0], attributes.get("axis", 1), attributes.get("block_size", 0)

    def expand(values: Array) -> Array:
        return values.repeat(size, axis) if size else _broadcast(values, x.ndim, axis)

    return x / expand(inputs[1]) + (expand(inputs[2]) if len(inputs) > 2 and inputs[2] is not None else 0.0)


def _quantize_by_range(inputs: Inputs, _attributes: Attributes) -> Array:
    x = inputs[0]
    low, high = min(x.min(), 0.0), max(x.max(), 0.0)
    scale = (high - low) / 255
    return x / scale + round(min(max(-low / scale, 0.0), 255.0))


def _multiply_quantized(inputs: Inputs, _attributes: Attributes) -> Array:
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = inputs
    if a_scale.size > 1 or scale.size > 1 or b_scale.ndim > 1:
        raise NotImplementedError
    return (a - a_zero) @ (b - b_zero) * (a_scale * b_scale / scale) + zero


def _convolve_quantized(inputs: Inputs, attributes: Attributes) -> Array:
    x, x_scale, x_zero, weight, w_scale, w_zero, scale, zero = inputs[:8]
    found = _conv([x - x_zero, weight - _broadcast(w_zero, weight.ndim, 0), *inputs[8:9]], attributes, 0)
    return found * (x_scale / scale) * _broadcast(w_scale, x.ndim, 1) + zero


_UNROUNDED: dict[str, Callable[[Inputs, Attributes], Array]] = {
    "QuantizeLinear": _quantize,
    "DynamicQuantizeLinear": _quantize_by_range,
    "QLinearMatMul": _multiply_quantized,
    "QLinearConv": _convolve_quantized,
    "Cast": lambda inputs, _: inputs[0],
    "CastLike": lambda inputs, _: inputs[0],
}


class Magnitudes:
    """The sizes of the terms that each tensor of a model was computed from, with the values of one sample."""

    def __init__(self, model: Model, values: Mapping[str, Array]) -> None:
        self._wiring = build_wiring(model.graph)
        self._opset = find_opset(model)
        self._values = values
        self._known: dict[tuple[str, int], Array | float] = {}

    def find(self, tensor: str, depth: int) -> Array | float:
        """Return the size of a tensor's terms. `depth`: through how many operators the rounding errors that they pass
        on are followed back; 0 if the inputs are those of the reference, which have no rounding errors."""
        position = self._wiring.producers.get(tensor)
        if position is None:
            return 0.0
        if (tensor, depth) not in self._known:
            self._known[tensor, depth] = self._measure(self._wiring.nodes[position], depth)
        return self._known[tensor, depth]

    def _measure(self, node: Node, depth: int) -> Array | float:
        inputs = self._find_inputs(node)
        own = compute_magnitude(node.op_type, inputs, read_attributes(node), self._opset)
        if depth <= 0 or node.op_type not in _CARRYING:
            return own
        sizes = [_measure_size(each) for each in inputs]
        largest = 0.0
        for position, name in enumerate(node.input):
            found = np.asarray(self.find(name, depth - 1), np.float64)
            carried = float(np.sqrt(np.mean(np.square(found)))) if found.size else 0.0
            others = sizes[:position] + sizes[position + 1 :]  # the factors that an error is multiplied by
            largest = max(largest, carried * math.prod(others) if node.op_type == "Mul" else carried)
        return own + largest

    def count_terms(self) -> int:
        """Return the most terms that an operator of the model adds up: see the function `count_terms`."""
        nodes = [(node, self._find_inputs(node)) for node in self._wiring.nodes]
        return max((count_terms(node.op_type, inputs, read_attributes(node)) for node, inputs in nodes), default=1)

    def compute_unrounded(self, tensor: str) -> Array | None:
        """Return the unrounded values of a tensor that is the first output of an operator; None for other tensors."""
        position = self._wiring.producers.get(tensor)
        node = self._wiring.nodes[position] if position is not None else None
        if node is None or node.output[0] != tensor:
            return None
        return compute_unrounded(node.op_type, self._find_inputs(node), read_attributes(node))

    def _find_inputs(self, node: Node) -> list[Array | None]:
        found = [
            self._values[name] if name in self._values else load_constant(self._wiring, name) if name else None
            for name in node.input
        ]
        return [each if hasattr(each, "dtype") else None for each in found]


_COARSE = (  # ordered from fine to coarse
    "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn",
)  # fmt: skip


def find_random(model: Model, positions: Sequence[int] | None = None) -> dict[str, str]:
    """Return each random tensor with the operator that draws its numbers. `positions`: the only nodes to search."""
    wiring = build_wiring(model.graph)
    chosen = range(len(wiring.nodes)) if positions is None else positions
    nodes = [wiring.nodes[position] for position in sorted(chosen)]
    return _propagate(nodes, lambda node: _find_drawing(model, node, wiring), max)


def _find_drawing(model: Model, node: Node, wiring: Wiring | None) -> str:
    """Return the operator that draws random numbers: the node, a node in its sub-graphs, or one in a function that it
    calls, whose constants are unknown (`wiring` is None)."""
    inner = (each for graph in find_subgraphs(node) for each in graph.node)
    is_training = node.op_type == "Dropout" and len(node.input) > 2 and wiring and load_constant(wiring, node.input[2])
    if node.op_type in DRAWING or is_training:
        return str(node.op_type)
    called = (each for function in find_functions(model, [node]) for each in function.node)
    drawn = (_find_drawing(model, each, wiring) for each in inner)
    return next(filter(None, itertools.chain(drawn, (_find_drawing(model, each, None) for each in called))), "")


def find_coarse(model: Model) -> dict[str, str]:
    """Return each tensor after a rounding to a float type of 16 bits or fewer, with the coarsest such type. Values that
    are only stored in a type of 16 bits, and widened before they are used, are exact."""
    stored = {each.name: each.data_type for each in model.graph.initializer}
    stored |= {each.name: each.type.tensor_type.elem_type for each in model.graph.input}

    def seed(node: Node) -> str:
        given = read_attributes(node)
        kinds = [given.get("to") if node.op_type == "Cast" else given.get("output_dtype")]
        if node.op_type not in ("Cast", "CastLike", "DequantizeLinear"):
            kinds += [stored.get(name) for name in node.input]
        names = [onnx.helper.tensor_dtype_to_np_dtype(kind).name for kind in kinds if kind and kind in known]
        return max((name for name in names if name in _COARSE), key=_rank, default="")

    known = set(onnx.TensorProto.DataType.values()) - {0, onnx.TensorProto.STRING}
    return _propagate(build_wiring(model.graph).nodes, seed, lambda *names: max(*names, key=_rank))


def _rank(dtype: str) -> int:
    return _COARSE.index(dtype) if dtype else -1


def _propagate(nodes: Sequence[Node], seed: Callable[[Node], str], join: Callable[[str, str], str]) -> dict[str, str]:
    """Return the marks of tensors: `seed` marks nodes; a node that reads a marked tensor, not its size, is marked."""
    found: dict[str, str] = {}
    for node in nodes:
        what = reduce(join, (found.get(name, "") for name in find_reads(node)), seed(node))
        if what and node.op_type not in ("Shape", "Size"):
            found |= dict.fromkeys(filter(None, node.output), what)
    return found


def find_steps(model: Model) -> dict[str, float]:
    """Return each output of a DequantizeLinear with a constant scale, and the largest step between two of its values.
    Values of a float8 type have no steps of one size."""
    wiring = build_wiring(model.graph)
    coarse = find_coarse(model)
    found = {}
    for node in wiring.nodes:
        is_known = node.op_type == "DequantizeLinear" and "float8" not in coarse.get(node.input[0], "")
        scale = load_constant(wiring, node.input[1]) if is_known else None
        if scale is not None and scale.size:
            found[node.output[0]] = float(np.abs(scale.astype(np.float64)).max())
    return found
