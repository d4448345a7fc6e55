"""onnxruntime on the CPU: the usual reference, and without its optimisations a second one.

Options: `optimize` (all, extended, basic, none), `threads`. Optimised models are not kept: they depend on the
machine.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.models.backends.base import BackendError, describe_cpu, first_line, render_python
from assay.models.backends.onnx_backend import OnnxBackend, load_outline
from assay.models.backends.tensors_io import PACKED, unpack
from assay.models.graph.onnx_library import find_opset
from assay.models.graph.tensorfile import parse_dtype
from assay.models.libraries import np
from assay.models.values.model import StepEnding, Target
from assay.models.values.tensors import TensorSpec

LEVELS = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "none": "ORT_DISABLE_ALL",
}
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_LACKING = re.compile(
    r"Could not find an implementation for (?P<a>[\w.:]+)\((?P<v>\d+)\)"
    r"|No Op registered for (?P<b>[\w.:]+)"
    r"|(?P<c>[\w.:]+)\(-?\d+\) is not a registered function/op"
    r"|(?P<d>[\w.]+:[\w.]+) is not a registered"
)
_TOO_NEW = re.compile(
    r"Opset (?P<opset>\d+) is under development.*support for domain (?P<domain>[\w.]+) is till opset (?P<most>\d+)"
    r"|Unsupported model IR version: (?P<ir>\d+), max supported IR version: (?P<most_ir>\d+)",
    re.DOTALL,
)
_OWN_DOMAIN = "ai.onnx"


class OrtBackend(OnnxBackend):
    libraries = ("onnx", "onnxruntime")

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._level = self.choose("optimize", tuple(LEVELS))
        self._threads = int(target.options.get("threads", 1))

    def identity(self) -> Mapping[str, str]:
        runtime, onnx = self.import_library("onnxruntime"), self.import_library("onnx")
        return {
            "onnxruntime": f"{runtime.__version__} {runtime.get_build_info()}",
            "onnx": str(onnx.__version__),
            "cpu": describe_cpu(),
            "optimize": self._level,
            "threads": str(self._threads),
        }

    def open(self, source: str, profile: str) -> Any:
        runtime = self.import_library("onnxruntime")
        options = runtime.SessionOptions()
        options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, LEVELS[self._level])
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.use_deterministic_compute = True
        options.log_severity_level = 4  # errors are raised, so printing them as well is not needed
        if profile:
            options.enable_profiling = True
            options.profile_file_prefix = f"{profile}_ort"
        return runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    def start(self, opened: Any, inputs: Mapping[str, Any]) -> Callable[[], Any]:
        """Return a call that passes strings unchanged, all else as onnxruntime's values, which support every type."""
        if any(array.dtype.kind in "OUS" for array in inputs.values()):
            return lambda: opened.run(None, inputs)
        feed = {name: self._to_value(array) for name, array in inputs.items()}
        return lambda: opened.run_with_ort_values(None, feed)

    def read(self, values: Any, specs: Sequence[TensorSpec]) -> Sequence[Any]:
        return [_to_array(value, spec) for value, spec in zip(values, specs, strict=True)]

    def write_profile(self, opened: Any, _values: Any, _profile: str) -> tuple[str, ...]:
        return (opened.end_profiling(),)

    def _to_value(self, array: Any) -> Any:
        """Convert an array to onnxruntime's value: types that numpy does not know are passed as bytes."""
        runtime, onnx = self.import_library("onnxruntime"), self.import_library("onnx")
        if array.dtype.isbuiltin == 1:
            return runtime.OrtValue.ortvalue_from_numpy(array)
        number = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        if array.dtype.name in PACKED:
            raise BackendError(f"onnxruntime takes no {array.dtype.name} inputs", ending=StepEnding.UNSUPPORTED)
        return runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(f"u{array.dtype.itemsize}"), number)

    def describe(self, source: str) -> str:
        return render_python(
            "import onnxruntime as ort; options = ort.SessionOptions(); "
            f"options.graph_optimization_level = ort.GraphOptimizationLevel.{LEVELS[self._level]}; "
            f"options.intra_op_num_threads = {self._threads}; ort.InferenceSession({source!r}, options)"
        )

    def explain(self, error: Exception, source: str) -> BackendError:
        """Return the exception as a failed step, with the operator's name if one is missing."""
        text, command = _PREFIX.sub("", str(error)).strip(), self.describe(source)
        lacking = _LACKING.search(text)
        if lacking:
            operator = lacking["a"] or lacking["b"] or lacking["c"] or lacking["d"]
            opset = find_opset(load_outline(source))
            return BackendError(
                f"onnxruntime has no implementation of {operator} of opset {opset} for these types",
                ending=StepEnding.UNSUPPORTED, command=command, stderr=text,
                hint="convert the model: assay model convert MODEL --opset 17" if opset < 7 else "",
            )  # fmt: skip
        too_new = _TOO_NEW.search(text)
        if too_new:
            return _explain_new(too_new, text, command)
        kind = type(error).__name__
        ending = StepEnding.UNSUPPORTED if kind == "NotImplemented" else StepEnding.ERROR
        return BackendError(first_line(text) or kind, ending=ending, command=command, stderr=text)


def _explain_new(found: re.Match[str], text: str, command: str) -> BackendError:
    """Build an error with a message of our own: onnxruntime's message begins with a C++ signature."""
    import onnxruntime

    domain = "" if found["domain"] in (_OWN_DOMAIN, None) else f" of {found['domain']}"
    what, most = (f"IR version {found['ir']}", found["most_ir"]) if found["ir"] else (
        f"opset {found['opset']}{domain}", found["most"]
    )  # fmt: skip
    message = f"{what} is newer than onnxruntime {onnxruntime.__version__} knows ({most})"
    hint = "update onnxruntime, or export the model again for an older one"
    if found["opset"] and not domain:
        hint = f"convert the model: assay model convert MODEL --opset {most}"
    return BackendError(message, ending=StepEnding.UNSUPPORTED, command=command, stderr=text, hint=hint)


def _to_array(value: Any, spec: TensorSpec) -> Any:
    """Convert a value to an array; types that numpy does not know are read from memory."""
    if hasattr(value, "dtype"):
        return value
    if isinstance(value, list | dict) or not value.is_tensor():
        raise BackendError(f"{spec.name} is a sequence or a map, not a tensor", ending=StepEnding.UNSUPPORTED)
    dtype = parse_dtype(spec.dtype) if spec.dtype else None
    if dtype is None or dtype.isbuiltin == 1 or spec.dtype == "string":
        return value.numpy()
    raw = np.frombuffer(ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()), np.uint8)
    shape = tuple(value.shape())
    return unpack(raw, dtype, shape) if dtype.name in PACKED else raw.view(dtype).reshape(shape).copy()
