"""A target with a fault: onnxruntime, but one node computes something else.

    [tool.assay.targets.faulty]
    backend = "faulty:FaultyBackend"
    fault = {kind = "lost-bias", at = "conv3"}       # the node is named by its first output; "*": every node that can

The fault follows the node wherever it is computed: in the whole model, laid open, and in its layer alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from assay.models.backends.base import Backend, BackendError, Made
from assay.models.backends.iree_backend import IreeBackend
from assay.models.backends.ort import OrtBackend
from assay.models.values.model import Job

Plant = Callable[["Graph", Any], bool]  # False: this node cannot have this fault
PLANTS: dict[str, Plant] = {}


class _Faulty(Backend):
    """Plants the fault before a back end's own first step. Options: `fault` with `kind` (a key of PLANTS) and `at`."""

    def identity(self) -> Mapping[str, str]:
        return {**super().identity(), "fault": repr(dict(self.target.options["fault"]))}

    def perform(self, job: Job) -> Made:
        if job.step is not self.steps[0]:
            return super().perform(job)
        import onnx

        model = onnx.load(job.source)
        fault = self.target.options["fault"]
        if not plant(model, fault["kind"], fault["at"]):
            return super().perform(job)
        path = os.path.join(os.path.dirname(job.source), f"faulty-{os.path.basename(job.source)}")
        onnx.save(model, path)
        try:
            return super().perform(replace(job, source=path))
        finally:
            os.unlink(path)


class FaultyBackend(_Faulty, OrtBackend):
    """onnxruntime with a fault."""


class FaultyIree(_Faulty, IreeBackend):
    """IREE with a fault."""


def plant(model: Any, kind: str, at: str) -> bool:
    """Change the model in place. False where the node is not in it, or cannot have this fault."""
    if kind not in PLANTS:
        raise BackendError(f"there is no fault {kind!r}; known: {', '.join(sorted(PLANTS))}")
    graph = Graph(model)
    nodes = [node for node in model.graph.node if node.output and at in ("*", node.output[0])]
    return sum(PLANTS[kind](graph, node) for node in nodes) > 0


class Graph:
    """What a fault needs to look up and to change."""

    def __init__(self, model: Any) -> None:
        self.graph = model.graph
        self.weights = {tensor.name: tensor for tensor in model.graph.initializer}

    def find_weight(self, name: str) -> Any:
        """As an array, or None."""
        from onnx import numpy_helper

        if name in self.weights:
            return numpy_helper.to_array(self.weights[name])
        for node in self.graph.node:
            if node.op_type == "Constant" and node.output[0] == name:
                return numpy_helper.to_array(node.attribute[0].t)
        return None

    def add_weight(self, array: Any, hint: str) -> str:
        from onnx import numpy_helper

        name = f"faulty_{hint}_{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def replace_input(self, node: Any, place: int, array: Any) -> None:
        """Only for this node: others may use the same weight."""
        node.input[place] = self.add_weight(array, node.op_type)

    def behind(self, node: Any, build: Callable[[str, str], list[Any]]) -> None:
        """Put nodes between this one and all that read its first output."""
        name = node.output[0]
        node.output[0] = f"{name}_right"
        place = list(self.graph.node).index(node) + 1
        for new in reversed(build(node.output[0], name)):
            self.graph.node.insert(place, new)

    def before(self, node: Any, place: int, build: Callable[[str, str], list[Any]]) -> None:
        old, new = node.input[place], f"{node.input[place]}_for_{node.output[0]}"
        nodes = build(old, new)
        node.input[place] = new
        where = list(self.graph.node).index(node)
        for made in reversed(nodes):
            self.graph.node.insert(where, made)


def planted(kind: str) -> Callable[[Plant], Plant]:
    def register(function: Plant) -> Plant:
        PLANTS[kind] = function
        return function

    return register


def find_attribute(node: Any, name: str) -> Any:
    return next((each for each in node.attribute if each.name == name), None)


def set_attribute(node: Any, name: str, value: Any) -> None:
    from onnx import helper

    kept = [each for each in node.attribute if each.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


# ---------------------------------------------------------------- the faults


@planted("weights")
def _perturb(graph: Graph, node: Any) -> bool:
    """One weight in ten is a tenth too large."""
    for place, name in enumerate(node.input):
        array = graph.find_weight(name)
        if array is not None and array.dtype.kind == "f" and array.size >= 4:
            changed = array.copy()
            changed.reshape(-1)[::10] *= array.dtype.type(1.1)
            graph.replace_input(node, place, changed)
            return True
    return False


@planted("one-weight")
def _perturb_one(graph: Graph, node: Any) -> bool:
    """The largest weight has the wrong sign."""
    import numpy as np

    for place, name in enumerate(node.input):
        array = graph.find_weight(name)
        if array is not None and array.dtype.kind == "f" and array.size >= 4:
            changed = array.copy()
            flat = changed.reshape(-1)
            worst = int(np.argmax(np.abs(flat)))
            flat[worst] = -flat[worst]
            graph.replace_input(node, place, changed)
            return True
    return False


@planted("attribute")
def _mistake_attribute(graph: Graph, node: Any) -> bool:
    """An epsilon, a slope, a factor or a group of another size."""
    del graph
    wrong: dict[str, tuple[str, float, float]] = {  # operator → attribute, its default, factor
        "BatchNormalization": ("epsilon", 1e-5, 1e4),
        "LayerNormalization": ("epsilon", 1e-5, 1e4),
        "LeakyRelu": ("alpha", 0.01, 5.0),
        "Elu": ("alpha", 1.0, 1.5),
        "Gemm": ("alpha", 1.0, 1.01),
        "HardSigmoid": ("alpha", 0.2, 1.1),
    }
    if node.op_type not in wrong:
        return False
    name, default, factor = wrong[node.op_type]
    found = find_attribute(node, name)
    set_attribute(node, name, float((found.f if found else default) * factor))
    return True


_NORMALIZATIONS = (
    "BatchNormalization",
    "LayerNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "RMSNormalization",
)


@planted("epsilon")
def _mistake_epsilon(graph: Graph, node: Any) -> bool:
    """A hundred times what the model asks for."""
    del graph
    if node.op_type not in _NORMALIZATIONS:
        return False
    found = find_attribute(node, "epsilon")
    set_attribute(node, "epsilon", 100.0 * (found.f if found else 1e-5))
    return True


def _round_by(graph: Graph, node: Any, share: float) -> bool:
    """Of a step, taken off before it is rounded to the nearest one."""
    from onnx import helper

    scale = graph.find_weight(node.input[1]) if node.op_type == "QuantizeLinear" else None
    if scale is None or scale.size != 1:
        return False
    less = graph.add_weight((share * scale).reshape(()).astype(scale.dtype), "less")
    graph.before(node, 0, lambda old, new: [helper.make_node("Sub", [old, less], [new])])
    return True


@planted("rounds-late")
def _round_late(graph: Graph, node: Any) -> bool:
    """floor(x + 0.4) in the place of rounding to the nearest step."""
    return _round_by(graph, node, 0.1)


@planted("rounds-down")
def _round_down(graph: Graph, node: Any) -> bool:
    """floor(x)."""
    return _round_by(graph, node, 0.5)


@planted("8-bit-inputs")
def _lose_bits(graph: Graph, node: Any) -> bool:
    """What is multiplied with weights is rounded to 8 bits first, as fast paths for int4 weights do."""
    from onnx import helper

    if node.op_type not in ("MatMul", "Gemm"):
        return False

    def build(old: str, new: str) -> list[Any]:
        made = [f"{new}_{word}" for word in ("bits", "scale", "zero")]
        return [
            helper.make_node("DynamicQuantizeLinear", [old], made),
            helper.make_node("DequantizeLinear", made, [new]),
        ]

    graph.before(node, 0, build)
    return True


@planted("axis")
def _mistake_axis(graph: Graph, node: Any) -> bool:
    """Softmax over the wrong axis, or a mean that leaves the wrong one."""
    del graph
    if node.op_type not in ("Softmax", "LogSoftmax", "LayerNormalization"):
        return False
    if node.op_type == "LayerNormalization":
        return False
    found = find_attribute(node, "axis")
    set_attribute(node, "axis", 0 if found is None or found.i != 0 else -1)
    return True


@planted("swapped")
def _swap(graph: Graph, node: Any) -> bool:
    """The elements along the last axis come out in reverse order."""
    import numpy as np
    from onnx import helper

    if node.op_type in ("Shape", "Size", "Constant", "Gather", "Unsqueeze", "Squeeze", "Cast"):
        return False
    starts, ends, axes, steps = (
        graph.add_weight(np.array([value], np.int64), hint)
        for hint, value in (("starts", -1), ("ends", -(2**31)), ("axes", -1), ("steps", -1))
    )
    graph.behind(node, lambda old, new: [helper.make_node("Slice", [old, starts, ends, axes, steps], [new])])
    return True


@planted("saturated")
def _saturate(graph: Graph, node: Any) -> bool:
    """As if it went through a type of too small a range."""
    import numpy as np
    from onnx import helper

    if node.op_type not in ("Conv", "MatMul", "Gemm", "Add", "Mul", "BatchNormalization", "Sub"):
        return False
    low, high = (
        graph.add_weight(np.array(value, np.float32), hint) for hint, value in (("low", -0.05), ("high", 0.05))
    )
    graph.behind(node, lambda old, new: [helper.make_node("Clip", [old, low, high], [new])])
    return True


@planted("padding")
def _shift_padding(graph: Graph, node: Any) -> bool:
    """One row too many in front, one too few behind."""
    del graph
    pads = find_attribute(node, "pads")
    if node.op_type not in ("Conv", "MaxPool", "AveragePool") or pads is None:
        return False
    values = list(pads.ints)
    half = len(values) // 2
    if not values[half]:
        return False
    values[0] += 1
    values[half] -= 1
    set_attribute(node, "pads", values)
    return True


@planted("nan")
def _bear_nan(graph: Graph, node: Any) -> bool:
    """The largest element becomes NaN."""
    from onnx import helper

    if node.op_type in ("Shape", "Size", "Constant", "Gather", "Unsqueeze", "Squeeze", "Cast", "Concat"):
        return False
    at = node.output[0]

    def build(old: str, new: str) -> list[Any]:
        most, gap, zero = f"{at}_most", f"{at}_gap", f"{at}_zero"
        return [
            helper.make_node("ReduceMax", [old], [most], keepdims=0),
            helper.make_node("Sub", [old, most], [gap]),  # 0 at the largest element, negative elsewhere
            helper.make_node("Div", [gap, gap], [zero]),  # 0 / 0 there, 1 elsewhere
            helper.make_node("Mul", [old, zero], [new]),
        ]

    graph.behind(node, build)
    return True


@planted("lost-bias")
def _lose_bias(graph: Graph, node: Any) -> bool:
    if node.op_type not in ("Conv", "Gemm", "ConvTranspose") or len(node.input) < 3 or not node.input[2]:
        return False
    bias = graph.find_weight(node.input[2])
    if bias is None:
        return False
    graph.replace_input(node, 2, bias * 0)
    return True


@planted("low-precision")
def _lose_precision(graph: Graph, node: Any) -> bool:
    """Factors in bfloat16, as a fast path would take them."""
    from onnx import TensorProto, helper

    if node.op_type not in ("Conv", "MatMul", "Gemm"):
        return False

    def build(old: str, new: str) -> list[Any]:
        return [
            helper.make_node("Cast", [old], [f"{new}_16"], to=TensorProto.BFLOAT16),
            helper.make_node("Cast", [f"{new}_16"], [new], to=TensorProto.FLOAT),
        ]

    graph.before(node, 0, build)
    graph.before(node, 1, build)
    return True


@planted("scaled")
def _scale(graph: Graph, node: Any) -> bool:
    """One per cent too large: a wrong constant in a fused kernel."""
    import numpy as np
    from onnx import helper

    if node.op_type in ("Shape", "Size", "Constant", "Gather", "Unsqueeze", "Squeeze", "Cast", "Concat", "QLinearConv"):
        return False
    if node.op_type.startswith(("Quantize", "MatMulInteger", "ConvInteger")):
        return False
    factor = graph.add_weight(np.array(1.01, np.float32), "factor")
    graph.behind(node, lambda old, new: [helper.make_node("Mul", [old, factor], [new])])
    return True


_NO_AXES = (
    "Shape",
    "Size",
    "Constant",
    "ConstantOfShape",
    "Range",
    "Reshape",
    "Unsqueeze",
    "Squeeze",
    "Slice",
    "Gather",
)


def _plant_index(graph: Graph, hint: str, value: int) -> str:
    import numpy as np

    return graph.add_weight(np.array([value], np.int64), hint)


@planted("cropped")
def _crop(graph: Graph, node: Any) -> bool:
    """The last element of the last axis is missing: a wrong loop bound."""
    from onnx import helper

    if node.op_type in _NO_AXES:
        return False
    names = [_plant_index(graph, hint, value) for hint, value in (("starts", 0), ("ends", -1), ("axes", -1))]
    graph.behind(node, lambda old, new: [helper.make_node("Slice", [old, *names], [new])])
    return True


@planted("flattened")
def _flatten(graph: Graph, node: Any) -> bool:
    """All axes but the first are one."""
    from onnx import helper

    if node.op_type in _NO_AXES or node.op_type in ("Flatten", "Gemm"):
        return False
    graph.behind(node, lambda old, new: [helper.make_node("Flatten", [old], [new], axis=1)])
    return True


@planted("extra-axis")
def _add_axis(graph: Graph, node: Any) -> bool:
    """An axis of length one too many, in front."""
    from onnx import helper

    if node.op_type in _NO_AXES:
        return False
    sizes, one = f"{node.output[0]}_sizes", _plant_index(graph, "one", 1)

    def build(old: str, new: str) -> list[Any]:
        return [
            helper.make_node("Shape", [old], [sizes]),
            helper.make_node("Concat", [one, sizes], [f"{sizes}_more"], axis=0),
            helper.make_node("Reshape", [old, f"{sizes}_more"], [new]),
        ]

    graph.behind(node, build)
    return True
