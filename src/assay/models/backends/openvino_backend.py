"""OpenVINO on the CPU, in the precision of the model: by default OpenVINO uses bfloat16 if the CPU has it.

Options: `threads`, `precision` (the plug-in's INFERENCE_PRECISION_HINT).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.models.backends.base import BackendError, describe_cpu, render_python
from assay.models.backends.onnx_backend import OnnxBackend
from assay.models.backends.tensors_io import unpack, write_operators
from assay.models.graph.tensorfile import parse_dtype
from assay.models.values.model import StepEnding, Target
from assay.models.values.tensors import TensorSpec

_LACKING = re.compile(r"No conversion rule found for operations: (?P<names>[^\n]+)")
_NAMED = re.compile(r"\bnode\b|\boperat(?:or|ion)\b|friendly_name|failed for \S|opset\d+::", re.IGNORECASE)
_NOISE = re.compile(r"^(Exception from |Check .* failed at |FrontEnd API failed|\s*$)")
# numpy's or ml_dtypes' name → OpenVINO's
_TYPES = {"bfloat16": "bf16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2", "bool": "boolean"}
_PACKED = {"i4": "int4", "u4": "uint4"}


class OpenvinoBackend(OnnxBackend):
    libraries = ("onnx", "openvino")

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._precision = str(target.options.get("precision", "f32"))
        self._threads = int(target.options.get("threads", 1))

    def identity(self) -> Mapping[str, str]:
        openvino = self.import_library("openvino")
        return {
            "openvino": str(openvino.__version__),
            "cpu": describe_cpu(),
            "precision": self._precision,
            "threads": str(self._threads),
        }

    def open(self, source: str, profile: str) -> Any:
        properties = {
            "INFERENCE_PRECISION_HINT": self._precision,
            "INFERENCE_NUM_THREADS": self._threads,
            "NUM_STREAMS": 1,
            "PERF_COUNT": bool(profile),
        }
        core = self.import_library("openvino").Core()
        return core.compile_model(core.read_model(source), "CPU", properties)

    def start(self, opened: Any, inputs: Mapping[str, Any]) -> Callable[[], Any]:
        request = opened.create_infer_request()
        feed = {name: self._to_tensor(array) for name, array in inputs.items()}

        def execute() -> Any:
            request.infer(feed)
            return request

        return execute

    def read(self, values: Any, specs: Sequence[TensorSpec]) -> Sequence[Any]:
        return [_to_array(values.get_tensor(spec.name)) for spec in specs]

    def write_profile(self, _opened: Any, values: Any, profile: str) -> tuple[str, ...]:
        """Write OpenVINO's counters, one line for each operation in order: OpenVINO writes no profile itself."""
        rows, start_us = [], 0.0
        for info in values.profiling_info:
            duration_us = info.real_time.total_seconds() * 1e6
            rows.append((info.node_name, info.node_type, info.exec_type, start_us, duration_us))
            start_us += duration_us
        return (write_operators(f"{profile}_openvino.csv", rows),)

    def _to_tensor(self, array: Any) -> Any:
        openvino = self.import_library("openvino")
        kind = _TYPES.get(array.dtype.name)
        if kind is None:
            return openvino.Tensor(array)
        if not hasattr(openvino.Type, kind):
            raise BackendError(f"OpenVINO takes no {array.dtype.name}", ending=StepEnding.UNSUPPORTED)
        tensor = openvino.Tensor(getattr(openvino.Type, kind), openvino.Shape(array.shape))
        raw = array.view(f"u{array.dtype.itemsize}")
        tensor.data.view(raw.dtype)[...] = raw
        return tensor

    def describe(self, source: str) -> str:
        hint = f"{{'INFERENCE_PRECISION_HINT': {self._precision!r}}}"
        return render_python(f"import openvino; openvino.Core().compile_model({source!r}, 'CPU', {hint})")

    def explain(self, error: Exception, source: str) -> BackendError:
        """Return the error without the lines about OpenVINO's own source, with which the messages begin."""
        text, command = str(error), self.describe(source)
        lacking = _LACKING.search(text)
        if lacking:
            message = f"OpenVINO has no implementation of {lacking['names'].strip()}"
            return BackendError(message, ending=StepEnding.UNSUPPORTED, command=command, stderr=text)
        lines = [line.strip() for line in text.splitlines() if not _NOISE.match(line)]
        message = lines[0] if lines else type(error).__name__
        named = next((line for line in lines if _NAMED.search(line)), message)
        return BackendError(message if named == message else f"{message} ({named})", command=command, stderr=text)


def _to_array(tensor: Any) -> Any:
    """Return a copy of a tensor, whose memory a request reuses; small types come as bytes, and get their type later."""
    array = tensor.data
    name = tensor.element_type.get_type_name()
    if name in _PACKED:
        return unpack(array.reshape(-1).view("u1"), parse_dtype(_PACKED[name]), tuple(tensor.get_shape()))
    return (array.view(f"u{array.dtype.itemsize}") if name in _TYPES.values() else array).copy()
