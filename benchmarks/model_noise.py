"""How far apart correct runtimes are, operator by operator: where the bounds for a layer alone come from.

    nice python benchmarks/model_noise.py [--seed 1] [--iree] [--rows rows.jsonl]

Models of one operator, by operator, size, type and distribution of their inputs, are computed by onnxruntime without
optimisations (the reference of `assay model check`), with them, OpenVINO, onnx's evaluator, with --iree by IREE, by the
operator's definition in float64 rounded to its type (an exact target), and, for sums of products, by adding up
one term after another in float32 (a simple target). Printed is how much of its row in `judge/alone.py` each operator
uses: with its worst element, and with what all elements have in common (a factor or an offset).

The cases are drawn into two halves. `src/assay/models/judge/alone.py` holds the largest of the half `chosen`, rounded
up; the half `held-out` is what to report: how often the judge does not pass a correct runtime, and how many faults of
a whole target (rounding rules, epsilons, approximations, factors in fewer bits) it does pass. 100 s of CPU time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from measuring import ROOT, render_share

sys.path.insert(0, str(ROOT / "src"))

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from assay.models.graph.operators import Magnitudes, compute_model_float64
from assay.models.judge.alone import FACTOR, TIE_SHARE, LayerOrigin, find_noise
from assay.models.judge.tensors import judge_outputs
from assay.models.judge.tolerances import FLOATS
from assay.models.values.model import Tolerances

Arrays = dict[str, Any]
OPSET = 22
UNARY = (
    "Exp Log Sqrt Tanh Sigmoid Erf HardSwish Softplus Elu Selu Celu Sin Cos Tan Atan Sinh Cosh Asinh Reciprocal Relu "
    "LeakyRelu Abs Neg Floor Round Mish Softsign HardSigmoid Gelu Identity"
)
BINARY = "Add Sub Mul Div Pow PRelu Max Min"
REDUCTIONS = "ReduceSum ReduceMean ReduceL1 ReduceL2 ReduceLogSumExp ReduceSumSquare ReduceMax"
POSITIVE = ("Log", "Sqrt", "Reciprocal", "Div", "Pow")
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


@dataclass
class Case:
    """One operator with its inputs. `terms`: how many each element is the sum of."""

    op: str
    label: str
    model: Any
    inputs: Arrays
    terms: int = 1

    @property
    def half(self) -> str:
        return ("chosen", "held-out")[zlib.crc32(self.label.encode()) % 2]


def build_model(op: str, inputs: Arrays, weights: Arrays, out: int, opset: int = OPSET, **attributes: Any) -> Any:
    """`inputs` and `weights` in the operator's order; a weight is an initialiser."""
    names = [*inputs, *weights]
    node = helper.make_node(op, names, ["y"], **attributes)
    if op == "DynamicQuantizeLinear":
        node = helper.make_node(op, names, ["y", "y_scale", "y_zero"])
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    outs = [helper.make_tensor_value_info("y", out, None)]
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph([node], op, values, outs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


# ---------------------------------------------------------------- the cases


class Draw:
    """Numbers as layers see them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, shape: tuple[int, ...], kind: str, dtype: str = "float32") -> Any:
        rng = self.rng
        if kind == "normal":
            found = rng.normal(0, 1, shape)
        elif kind == "positive":
            found = rng.uniform(0.05, 2, shape)
        elif kind == "wide":
            found = rng.normal(0, 1, shape) * np.exp(rng.normal(0, 1.5, shape))
        else:  # channels with offsets of their own
            found = rng.normal(0, 0.5, shape) + rng.normal(0, 2, (*shape[:1], *[1] * (len(shape) - 1)))
        return found.astype(dtype)


SHAPES = ((1, 10), (2, 64, 33), (1, 16, 64, 65))


def build_cases(seed: int) -> Iterator[Case]:
    draw = Draw(seed)
    for dtype in TYPES:
        yield from _build_elementwise(draw, dtype)
        yield from _build_sums(draw, dtype)
        yield from _build_normalizations(draw, dtype)
        yield from _build_movers(draw, dtype)
    yield from _build_recurrent(draw)
    yield from _build_casts(draw)
    yield from _build_quantizers(draw)


def _build_elementwise(draw: Draw, dtype: str) -> Iterator[Case]:
    out = TYPES[dtype]
    for op in UNARY.split():
        for kind in ("positive", "wide") if op in POSITIVE else ("normal", "wide", "offset"):
            for shape in SHAPES:
                x = draw(shape, kind, dtype)
                x = np.abs(x) + x.dtype.type(1e-3) if op in POSITIVE else x
                x = np.clip(x, -9, 9) if op in ("Exp", "Sinh", "Cosh", "Tan", "Sin", "Cos") else x
                x = np.clip(x, -1.3, 1.3) if op == "Tan" else x
                yield Case(op, f"{op} {dtype} {kind} {shape}", build_model(op, {"x": x}, {}, out), {"x": x})
    for op in BINARY.split():
        for kind in ("positive", "normal", "wide"):
            for shape in SHAPES:
                x, y = draw(shape, kind, dtype), draw(shape[-1:], kind, dtype)
                if op in ("Div", "Pow"):
                    y = np.abs(y) + y.dtype.type(0.05)
                if op == "Pow":
                    x, y = np.clip(np.abs(x) + x.dtype.type(0.01), 0, 8), np.clip(y, 0, 3)
                inputs = {"x": x, "b": y}
                yield Case(op, f"{op} {dtype} {kind} {shape}", build_model(op, inputs, {}, out), inputs)


def _build_sums(draw: Draw, dtype: str) -> Iterator[Case]:
    out = TYPES[dtype]
    half = dtype == "float16"
    for kind in ("normal", "positive", "wide"):
        for rows, terms, columns in ((1, 16, 10), (8, 64, 64), (33, 256, 65), (64, 1024, 48), (16, 4096, 32)):
            factor = 1 / math.sqrt(terms)
            a, b = draw((rows, terms), kind, dtype), (draw((terms, columns), kind) * factor).astype(dtype)
            name = f"{dtype} {kind} {rows}x{terms}x{columns}"
            yield Case("MatMul", f"MatMul {name}", build_model("MatMul", {"a": a}, {"b": b}, out), {"a": a}, terms)
            c = draw((columns,), kind, dtype)
            model = build_model("Gemm", {"a": a}, {"b": np.ascontiguousarray(b.T), "c": c}, out, transB=1)
            yield Case("Gemm", f"Gemm {name}", model, {"a": a}, terms)
        for shape, channels, kernel, group in (
            ((1, 3, 24, 24), 16, 3, 1), ((1, 16, 12, 12), 24, 1, 1), ((1, 32, 14, 14), 32, 3, 32),
            ((1, 64, 9, 9), 32, 3, 1), ((1, 256, 6, 6), 32, 3, 1), ((2, 8, 31), 12, 5, 1),
        ):  # fmt: skip
            ndim = len(shape) - 2
            x = draw(shape, kind, dtype)
            terms = shape[1] // group * kernel**ndim
            w = draw((channels, shape[1] // group, *[kernel] * ndim), kind, "float32") / math.sqrt(terms)
            b = draw((channels,), kind, dtype)
            model = build_model(
                "Conv", {"x": x}, {"w": w.astype(dtype), "b": b}, out, group=group, pads=[kernel // 2] * 2 * ndim
            )
            yield Case("Conv", f"Conv {dtype} {kind} {shape} {kernel} {group}", model, {"x": x}, terms)
        x, w = draw((1, 16, 9, 9), kind, dtype), (draw((16, 8, 3, 3), kind) / 12).astype(dtype)
        model = build_model("ConvTranspose", {"x": x}, {"w": w}, out, strides=[2, 2])
        yield Case("ConvTranspose", f"ConvTranspose {dtype} {kind}", model, {"x": x}, 144)
        for op in REDUCTIONS.split():
            for shape in ((4, 16), (3, 20, 100), (2, 40, 1000), (1, 8, 10000)):
                if half and (shape[-1] > 1000 or op == "ReduceSumSquare"):
                    continue
                x = draw(shape, kind, dtype)
                x = x / x.dtype.type(shape[-1]) if half and op in ("ReduceSum", "ReduceL1") else x
                model = build_model(op, {"x": x}, {"axes": np.array([-1])}, out, keepdims=1)
                yield Case(op, f"{op} {dtype} {kind} {shape}", model, {"x": x}, shape[-1])
        for op in ("GlobalAveragePool", "AveragePool"):
            for shape in ((1, 8, 6, 6), (1, 32, 40, 40)):
                x = draw(shape, kind, dtype)
                more = {"kernel_shape": [3, 3], "pads": [1] * 4} if op == "AveragePool" else {}
                terms = 9 if more else shape[2] * shape[3]
                model = build_model(op, {"x": x}, {}, out, **more)
                yield Case(op, f"{op} {dtype} {kind} {shape}", model, {"x": x}, terms)
        x = draw((4, 300), kind, dtype)
        x = x / x.dtype.type(30)
        model = build_model("CumSum", {"x": x}, {"axis": np.array(1)}, out)
        yield Case("CumSum", f"CumSum {dtype} {kind}", model, {"x": x}, 300)
        a, b = draw((2, 8, 40), kind, dtype), (draw((2, 40, 24), kind) / 6).astype(dtype)
        model = build_model("Einsum", {"a": a, "b": b}, {}, out, equation="bik,bkj->bij")
        yield Case("Einsum", f"Einsum {dtype} {kind}", model, {"a": a, "b": b}, 40)


def _build_normalizations(draw: Draw, dtype: str) -> Iterator[Case]:
    out = TYPES[dtype]
    for kind in ("normal", "wide", "offset"):
        for shape in ((2, 16), (4, 10, 96), (1, 50, 768), (2, 3, 4096)):
            x = draw(shape, kind, dtype)
            for op in ("Softmax", "LogSoftmax"):
                yield Case(op, f"{op} {dtype} {kind} {shape}", build_model(op, {"x": x}, {}, out), {"x": x}, shape[-1])
            scale, bias = draw(shape[-1:], "positive", dtype), draw(shape[-1:], "normal", dtype)
            for epsilon in (1e-5, 1e-12):
                model = build_model("LayerNormalization", {"x": x}, {"s": scale, "b": bias}, out, epsilon=epsilon)
                yield Case(
                    "LayerNormalization",
                    f"LayerNormalization {dtype} {kind} {shape} {epsilon}",
                    model,
                    {"x": x},
                    shape[-1],
                )
            model = build_model("RMSNormalization", {"x": x}, {"s": scale}, out, opset=23)
            yield Case("RMSNormalization", f"RMSNormalization {dtype} {kind} {shape}", model, {"x": x}, shape[-1])
            model = build_model("LpNormalization", {"x": x}, {}, out)
            yield Case("LpNormalization", f"LpNormalization {dtype} {kind} {shape}", model, {"x": x}, shape[-1])
        for shape in ((2, 8, 5, 5), (1, 16, 32, 32)):
            x, count = draw(shape, kind, dtype), shape[1]
            given = [draw((count,), each, dtype) for each in ("positive", "normal", "normal", "positive")]
            weights = dict(zip("sbmv", given, strict=True))
            model = build_model("BatchNormalization", {"x": x}, weights, out)
            yield Case("BatchNormalization", f"BatchNormalization {dtype} {kind} {shape}", model, {"x": x})
            model = build_model("InstanceNormalization", {"x": x}, {"s": given[0], "b": given[1]}, out)
            area = shape[2] * shape[3]
            yield Case("InstanceNormalization", f"InstanceNormalization {dtype} {kind} {shape}", model, {"x": x}, area)
            model = build_model("GroupNormalization", {"x": x}, {"s": given[0], "b": given[1]}, out, num_groups=4)
            yield Case("GroupNormalization", f"GroupNormalization {dtype} {kind} {shape}", model, {"x": x}, 2 * area)
            model = build_model("LRN", {"x": x}, {}, out, size=5)
            yield Case("LRN", f"LRN {dtype} {kind} {shape}", model, {"x": x}, 5)


def _build_movers(draw: Draw, dtype: str) -> Iterator[Case]:
    out = TYPES[dtype]
    for kind in ("normal", "wide"):
        x = draw((2, 6, 9, 12), kind, dtype)
        lowest = {"l": np.array(-0.5, x.dtype)}
        sizes = {"r": np.zeros(0, dtype), "s": np.zeros(0, np.float32), "n": np.array([2, 6, 17, 25])}
        for name, op, weights, more in (
            ("", "Transpose", {}, {"perm": [0, 2, 3, 1]}), ("", "Reshape", {"s": np.array([2, -1])}, {}),
            ("", "MaxPool", {}, {"kernel_shape": [3, 3]}), ("", "Clip", lowest, {}),
            ("linear", "Resize", sizes, {"mode": "linear"}), ("cubic", "Resize", sizes, {"mode": "cubic"}),
            ("nearest", "Resize", sizes, {"mode": "nearest"}),
            ("", "Pad", {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}, {}),
            ("", "Slice", {"a": np.array([1]), "e": np.array([5])}, {}),
        ):  # fmt: skip
            model = build_model(op, {"x": x}, weights, out, **more)
            yield Case(op, f"{op} {name} {dtype} {kind}", model, {"x": x}, 4)


def _build_recurrent(draw: Draw) -> Iterator[Case]:
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        for steps, inputs, hidden in ((3, 8, 12), (25, 32, 40), (80, 16, 64)):
            for kind in ("normal", "offset"):
                x = draw((steps, 2, inputs), kind)
                w = draw((1, gates * hidden, inputs), "normal") / np.float32(math.sqrt(inputs))
                r = draw((1, gates * hidden, hidden), "normal") / np.float32(math.sqrt(hidden))
                model = build_model(op, {"x": x}, {"w": w, "r": r}, TensorProto.FLOAT, hidden_size=hidden)
                yield Case(op, f"{op} {kind} {steps} {inputs} {hidden}", model, {"x": x}, steps * (inputs + hidden))


def _build_casts(draw: Draw) -> Iterator[Case]:
    for to in ("FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2"):
        for kind in ("normal", "wide"):
            for shape in SHAPES:
                x = draw(shape, kind)
                number = getattr(TensorProto, to)
                yield Case(
                    "Cast", f"Cast {to} {kind} {shape}", build_model("Cast", {"x": x}, {}, number, to=number), {"x": x}
                )


def _build_quantizers(draw: Draw) -> Iterator[Case]:
    kinds = (("uint8", 255), ("int8", 127), ("int16", 32767))
    for kind in ("normal", "wide", "offset"):
        for shape in (*SHAPES, (1, 8, 100, 100)):
            x = draw(shape, kind)
            for dtype, most in kinds:
                spread = float(np.abs(x).max())
                scale = np.float32(2 * spread / 255 if dtype == "uint8" else spread / most)
                zero = np.array(128 if dtype == "uint8" else 0, dtype)
                out = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
                model = build_model("QuantizeLinear", {"x": x}, {"s": np.asarray(scale), "z": zero}, out)
                yield Case("QuantizeLinear", f"QuantizeLinear {dtype} {kind} {shape}", model, {"x": x})
                q = np.clip(np.rint(x / scale) + zero, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)
                model = build_model(
                    "DequantizeLinear", {"x": q}, {"s": np.asarray(scale), "z": zero}, TensorProto.FLOAT
                )
                yield Case("DequantizeLinear", f"DequantizeLinear {dtype} {kind} {shape}", model, {"x": q})
            if len(shape) > 2:
                scales = (np.abs(x).max((0, *range(2, x.ndim))) / 127).astype(np.float32)
                model = build_model(
                    "QuantizeLinear",
                    {"x": x},
                    {"s": scales, "z": np.zeros(shape[1], np.int8)},
                    TensorProto.INT8,
                    axis=1,
                )
                yield Case("QuantizeLinear", f"QuantizeLinear axis {kind} {shape}", model, {"x": x})
            model = build_model("DynamicQuantizeLinear", {"x": x}, {}, TensorProto.UINT8)
            yield Case("DynamicQuantizeLinear", f"DynamicQuantizeLinear {kind} {shape}", model, {"x": x})
    rng = draw.rng
    for rows, terms, columns in ((4, 32, 16), (64, 256, 64), (100, 1024, 100)):
        for signed in (False, True):
            low, high, dtype = (-128, 128, "int8") if signed else (0, 256, "uint8")
            a, b = (rng.integers(low, high, shape).astype(dtype) for shape in ((rows, terms), (terms, columns)))
            middle = np.array(0 if signed else 128, dtype)
            step = np.float32(0.02)
            out_step = np.float32(0.02 * 0.02 * 74 * 74 * math.sqrt(terms) / 40)
            weights = {"as": step, "az": middle, "b": b, "bs": step, "bz": middle, "ys": out_step, "yz": middle}
            arrays = {name: np.asarray(value) for name, value in weights.items()}
            out = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            model = build_model("QLinearMatMul", {"a": a}, arrays, out)
            yield Case("QLinearMatMul", f"QLinearMatMul {dtype} {rows}x{terms}x{columns}", model, {"a": a}, terms)
    for shape, channels, kernel in (((1, 3, 20, 20), 8, 3), ((1, 32, 16, 16), 32, 3), ((1, 64, 10, 10), 64, 1)):
        x = rng.integers(0, 256, shape).astype("uint8")
        w = rng.integers(-127, 128, (channels, shape[1], kernel, kernel)).astype("int8")
        terms = shape[1] * kernel**2
        weights = {
            "xs": np.float32(0.02), "xz": np.uint8(128), "w": w,
            "ws": rng.uniform(0.005, 0.02, channels).astype("float32"),
            "wz": np.zeros(channels, "int8"), "ys": np.float32(0.02 * 0.0125 * 74 * 74 * math.sqrt(terms) / 40),
            "yz": np.uint8(128), "bias": rng.integers(-3000, 3000, channels).astype("int32"),
        }  # fmt: skip
        arrays = {name: np.asarray(value) for name, value in weights.items()}
        model = build_model("QLinearConv", {"x": x}, arrays, TensorProto.UINT8, pads=[kernel // 2] * 4)
        yield Case("QLinearConv", f"QLinearConv {shape} {kernel}", model, {"x": x}, terms)


# ---------------------------------------------------------------- the runtimes


def run_ort(level: str, model: Any, inputs: Arrays, out: Any) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
    value = session.run_with_ort_values(None, feed)[0]
    if out.isbuiltin == 1:
        return value.numpy()
    import ctypes

    raw = np.frombuffer(ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()), np.uint8)
    return raw.view(out).reshape(value.shape()).copy()


def run_openvino(model: Any, inputs: Arrays, out: Any) -> Any:
    import openvino

    core = openvino.Core()
    properties = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", properties)
    request = compiled.create_infer_request()
    request.infer({name: openvino.Tensor(np.ascontiguousarray(array)) for name, array in inputs.items()})
    found = request.get_tensor("y").data
    return found.view(out).copy() if out.isbuiltin != 1 else found.astype(out)


def run_evaluator(model: Any, inputs: Arrays, _out: Any) -> Any:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(model).run(None, inputs)[0]


def run_exact(model: Any, inputs: Arrays, out: Any) -> Any:
    found = compute_model_float64(model, inputs)
    return None if found is None else found["y"].astype(out)


def run_plain(model: Any, inputs: Arrays, out: Any) -> Any:
    """One term after another in float32, as a simple target adds them up."""
    node = model.graph.node[0]
    if node.op_type not in ("MatMul", "ReduceSum", "ReduceMean") or out != np.float32:
        return None
    if node.op_type == "MatMul":
        b = numpy_helper.to_array(model.graph.initializer[0])
        total = np.zeros((inputs["a"].shape[0], b.shape[1]), np.float32)
        for k in range(b.shape[0]):
            total += inputs["a"][:, k : k + 1] * b[k]
        return total
    total = np.cumsum(inputs["x"], -1, dtype=np.float32)[..., -1:]
    return total / np.float32(inputs["x"].shape[-1]) if node.op_type == "ReduceMean" else total


def run_iree(model: Any, inputs: Arrays, out: Any) -> Any:
    from assay.models.backends.base import BackendError
    from assay.models.backends.iree_backend import IreeBackend
    from assay.models.graph.tensorfile import load_tensors, write_tensors
    from assay.models.values.model import Job, Target

    backend = IreeBackend(Target("iree", "iree"))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = os.path.join(folder, "model.onnx")
        onnx.save(model, path)
        write_tensors(os.path.join(folder, "inputs"), inputs)
        for step in backend.steps:
            target = os.path.join(folder, str(step))
            os.makedirs(target)
            job = Job(step=step, source=path, folder=target, inputs=os.path.join(folder, "inputs"), case="m")
            try:
                path = backend.perform(job).path
            except BackendError:
                return None
        return next(iter(load_tensors(path).values())).astype(out)


RUNTIMES: dict[str, Callable[[Any, Arrays, Any], Any]] = {
    "ort": lambda *given: run_ort("ORT_ENABLE_ALL", *given),
    "openvino": run_openvino,
    "evaluator": run_evaluator,
    "exact": run_exact,
    "plain": run_plain,
}


def compute(runtime: Callable[[Any, Arrays, Any], Any], case: Case, out: Any) -> Any:
    """None: it cannot."""
    try:
        with np.errstate(all="ignore"):
            return runtime(case.model, case.inputs, out)
    except Exception:  # noqa: BLE001 whatever a runtime raises for what it has not
        return None


# ---------------------------------------------------------------- how far apart


def measure_pair(case: Case, expected: Any, actual: Any) -> dict[str, float]:
    """In units of the type; `rest`: what is left when rounding of the terms that were added up is taken off."""
    from assay.models.judge.tensor_errors import build_scale, name_dtype, survey
    from assay.models.judge.tolerances import FLOATS, rounding_units

    left, right = expected.astype(np.float64), actual.astype(np.float64)
    gap = right - left
    if expected.dtype.kind in "iu":
        off = gap[gap != 0]
        return {
            "count": gap.size,
            "share": off.size / gap.size,
            "most": float(np.abs(gap).max()),
            "up": float((off > 0).mean()) if off.size else 0.5,
        }
    eps = FLOATS[name_dtype(expected)].eps
    scale = build_scale(expected, survey(expected))
    size = np.maximum(np.abs(left), scale.at(tuple(slice(0, n) for n in expected.shape)))
    reach = np.asarray(Magnitudes(case.model, case.inputs).find("y", 0), np.float64)
    reach = reach if reach.size in (1, gap.size) else np.sqrt(np.mean(reach**2))
    rest = np.maximum(np.abs(gap) - rounding_units((name_dtype(expected),) * 2) * np.broadcast_to(reach, gap.shape), 0)
    square = float((left**2).sum()) or 1.0
    gain, offset = float((gap * left).sum()) / square, float(gap.mean()) / (scale.whole or 1.0)
    coherence = max(abs(gain), abs(offset)) / eps
    return {
        "count": gap.size, "worst": float((np.abs(gap) / size).max()) / eps, "rest": float((rest / size).max()) / eps,
        "coherent": coherence, "rms": float(np.sqrt((gap**2).mean())) / (scale.whole or 1.0) / eps,
    }  # fmt: skip


# ---------------------------------------------------------------- faults of a whole target


def run_changed(case: Case, out: Any, **attributes: Any) -> Any:
    """The reference with other attributes."""
    model = type(case.model)()
    model.CopyFrom(case.model)
    node = model.graph.node[0]
    kept = [each for each in node.attribute if each.name not in attributes]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in attributes.items())])
    return run_ort("ORT_DISABLE_ALL", model, case.inputs, out)


def run_short(case: Case, out: Any, dtype: Any) -> Any:
    """Factors in fewer bits, the sum in float32."""
    model = type(case.model)()
    model.CopyFrom(case.model)
    inputs = {name: array.astype(dtype).astype(array.dtype) for name, array in case.inputs.items()}
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind == "f":
            tensor.CopyFrom(numpy_helper.from_array(array.astype(dtype).astype(array.dtype), tensor.name))
    return run_ort("ORT_DISABLE_ALL", model, inputs, out)


def run_in_steps(case: Case, out: Any) -> Any:
    """Activations in 8 bits, row by row, as fast paths for int4 weights compute."""
    inputs = {}
    for name, array in case.inputs.items():
        step = np.abs(array).max(-1, keepdims=True) / 127 + 1e-9
        inputs[name] = (np.rint(array / step) * step).astype(array.dtype)
    return run_ort("ORT_DISABLE_ALL", case.model, inputs, out)


def round_by(rule: Callable[[Any], Any]) -> Callable[[Case, Any, Any], Any]:
    def run(case: Case, out: Any, _expected: Any) -> Any:
        exact = Magnitudes(case.model, case.inputs).compute_unrounded("y")
        return np.clip(rule(exact), np.iinfo(out).min, np.iinfo(out).max).astype(out)

    return run


def truncate(case: Case, out: Any, expected: Any) -> Any:
    """A cast that cuts off: what was rounded away from zero is one number lower."""
    too_large = np.abs(expected.astype(np.float64)) > np.abs(case.inputs["x"])
    raw = expected.view(f"u{out.itemsize}")
    return np.where(too_large, raw - 1, raw).astype(raw.dtype).view(out)


def find_attribute(case: Case, name: str, default: float) -> float:
    return next((each.f for each in case.model.graph.node[0].attribute if each.name == name), default)


def spread_epsilon(factor: float) -> Callable[[Case, Any, Any], Any]:
    return lambda case, out, _: run_changed(case, out, epsilon=factor * find_attribute(case, "epsilon", 1e-5))


def approximate(size: float) -> Callable[[Case, Any, Any], Any]:
    """A polynomial of too low a degree: an error that goes up and down with the input."""
    return lambda case, out, expected: (expected * (1 + size * np.sin(7 * case.inputs["x"].astype(np.float64)))).astype(
        out
    )


Fault = Callable[[Case, Any, Any], Any]
ROUNDING: dict[str, Fault] = {
    "floor(x + 0.4)": round_by(lambda x: np.floor(x + 0.4)), "cut off": round_by(np.trunc),
    "floor": round_by(np.floor), "a step of 0.1% more": round_by(lambda x: np.rint(x * 1.001)),
}  # fmt: skip
EPSILONS = {f"epsilon x {factor:g}": spread_epsilon(factor) for factor in (100, 10, 0.01)}
FACTORS: dict[str, Fault] = {
    "factors in bfloat16": lambda case, out, _: run_short(
        case, out, helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    ),
    "factors in float16": lambda case, out, _: run_short(case, out, np.float16),
    "activations in 8 bits": lambda case, out, _: run_in_steps(case, out),
    "0.002% too large": lambda _case, out, expected: (expected * np.float64(1 + 2e-5)).astype(out),
}
SUMMING: dict[str, Fault] = {"summed in float16": lambda case, out, _: run_short(case, out, np.float16)}
CURVES: dict[str, Fault] = {"off by 1e-4": approximate(1e-4), "off by 1e-5": approximate(1e-5)}
FAULTS: dict[str, dict[str, Fault]] = {
    **dict.fromkeys(("QuantizeLinear", "DynamicQuantizeLinear", "QLinearMatMul"), ROUNDING),
    **dict.fromkeys(
        ("LayerNormalization", "InstanceNormalization", "GroupNormalization", "BatchNormalization", "RMSNormalization"),
        EPSILONS,
    ),
    **dict.fromkeys(("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"), FACTORS),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "GlobalAveragePool", "AveragePool"), SUMMING),
    **dict.fromkeys(("Exp", "Tanh", "Sigmoid", "Erf", "Softmax", "Log", "Sqrt", "Gelu", "Softplus", "Elu"), CURVES),
    "Cast": {"cut off": truncate},
    "LeakyRelu": {"slope of 0.0101": lambda case, out, _: run_changed(case, out, alpha=0.0101)},
    "Resize": {
        "other coordinates": lambda case, out, _: run_changed(case, out, coordinate_transformation_mode="align_corners")
    },
}
FAULTS["Gelu"] = {**CURVES, "by tanh": lambda case, out, _: run_changed(case, out, approximate="tanh")}
LEAST_UNITS = 16.0  # of float32, 4 of float16: a fault that changes less is none


def is_fault(case: Case, expected: Any, actual: Any) -> bool:
    if actual is None or actual.shape != expected.shape:
        return False
    found = measure_pair(case, expected, actual)
    least = LEAST_UNITS if expected.dtype == np.float32 else 4.0 if expected.dtype == np.float16 else 0.5
    return found.get("worst", 0.0) >= least or found.get("share", 0.0) > TIE_SHARE


# ---------------------------------------------------------------- both halves


def judge(case: Case, expected: Any, actual: Any) -> str:
    magnitudes = Magnitudes(case.model, case.inputs)
    origin = LayerOrigin((case.op,), magnitudes.count_terms, magnitudes.compute_unrounded)
    verdict, _ = judge_outputs(
        {"y": expected},
        {"y": actual},
        Tolerances(),
        op=case.op,
        reach=lambda name: magnitudes.find(name, 0),
        origin=origin,
    )
    return str(verdict.kind)


def is_known_wrong(case: Case, runtime: str, dtype: str) -> bool:
    """What is known to be wrong in a runtime, by float64: no evidence of what correct ones do."""
    in_short = runtime == "evaluator" and (dtype != "float32" or case.op in ("LRN", "LogSoftmax"))
    saturates = case.op.startswith("QLinear") and runtime in ("openvino", "ort")
    casts = runtime == "openvino" and case.op == "Cast" and dtype in ("bfloat16", "float8_e4m3fn")  # cut off; no limit
    return in_short or saturates or casts or (runtime == "iree" and case.op == "Asinh")


def measure_all(seed: int, runtimes: Mapping[str, Any], keep: Callable[[dict[str, Any]], None]) -> None:
    for case in build_cases(seed):
        out = helper.tensor_dtype_to_np_dtype(case.model.graph.output[0].type.tensor_type.elem_type)
        expected = compute(lambda *given: run_ort("ORT_DISABLE_ALL", *given), case, out)
        if case.op == "QLinearConv":  # onnxruntime saturates on processors without VNNI: the evaluator is right
            expected = compute(run_evaluator, case, out)
        if expected is None:
            continue
        same = {
            "op": case.op,
            "label": case.label,
            "half": case.half,
            "terms": case.terms,
            "dtype": str(expected.dtype),
        }
        for name, runtime in runtimes.items():
            actual = compute(runtime, case, out)
            if actual is not None and actual.shape == expected.shape and not is_known_wrong(case, name, same["dtype"]):
                keep(
                    {
                        **same,
                        "runtime": name,
                        "verdict": judge(case, expected, actual),
                        **measure_pair(case, expected, actual),
                    }
                )
        for name, fault in FAULTS.get(case.op, {}).items():
            actual = compute(lambda *_, make=fault, of=(case, out, expected): make(*of), case, out)
            if is_fault(case, expected, actual):
                keep(
                    {
                        **same,
                        "fault": name,
                        "verdict": judge(case, expected, actual),
                        **measure_pair(case, expected, actual),
                    }
                )


def print_rows(rows: list[dict[str, Any]]) -> None:
    """The largest difference of the chosen half, as a share of the row that the judge has."""
    largest: dict[tuple[str, str], tuple[float, float]] = {}
    for row in rows:
        noise = find_noise((row["op"],), (row["dtype"], row["dtype"]), row["terms"])
        if noise is None or "runtime" not in row or row["half"] != "chosen":
            continue
        eps = FLOATS[row["dtype"]].eps
        used = row["rest"] * eps * FACTOR / noise.rel if noise.rel else row["rest"]
        common = row["coherent"] * eps * FACTOR / noise.common if noise.common else row["coherent"]
        known = largest.get((row["op"], row["dtype"]), (0.0, 0.0))
        largest[row["op"], row["dtype"]] = max(known[0], used), max(known[1], common if row["count"] >= 256 else 0.0)
    for (op, dtype), (used, common) in sorted(largest.items(), key=lambda each: -max(each[1])):
        if max(used, common) > 0.3:
            print(f"  {op:22} {dtype:9} worst {used:5.2f}  common {common:5.2f} of the row")


def print_half(rows: list[dict[str, Any]], half: str) -> None:
    clean = [row for row in rows if row["half"] == half and "runtime" in row]
    faults = [row for row in rows if row["half"] == half and "fault" in row]
    print(f"{half}: {len(clean)} results of correct runtimes, {len(faults)} of faults")
    for kind in ("FAIL", "CHANGED", "INCONCLUSIVE"):
        found = [row for row in clean if row["verdict"] == kind]
        where = Counter(f"{row['op']} {row['dtype']} {row['runtime']}" for row in found)
        print(f"{render_share(f'{half}: correct and {kind}', len(found), len(clean))}  {dict(where.most_common(6))}")
    missed = [row for row in faults if row["verdict"] == "PASS"]
    print(render_share(f"{half}: faults that pass", len(missed), len(faults)))
    by_kind = defaultdict(Counter)
    for row in faults:
        by_kind[row["fault"]][row["verdict"]] += 1
    for name, counts in sorted(by_kind.items()):
        print(f"    {name:24} {dict(counts)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--iree", action="store_true", help="IREE too: two seconds for each case")
    parser.add_argument("--rows", help="a file for every single difference")
    given = parser.parse_args()
    begun = time.process_time()
    rows: list[dict[str, Any]] = []
    measure_all(given.seed, RUNTIMES | ({"iree": run_iree} if given.iree else {}), rows.append)
    if given.rows:
        with open(given.rows, "w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows)
    print(f"{len(rows)} results, {time.process_time() - begun:.0f} s of CPU time")
    print_rows(rows)
    for half in ("chosen", "held-out"):
        print_half(rows, half)
    return 0


if __name__ == "__main__":
    sys.exit(main())
