"""OpenVINO on the CPU, in the precision that the model states: otherwise it would compute in bfloat16 if it can.

Options: `threads`, `precision` (the plug-in's INFERENCE_PRECISION_HINT).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from assay.models.backends.base import Backend, BackendError, Made, describe_cpu, render_python
from assay.models.backends.onnx_file import (
    build_input_specs,
    build_output_specs,
    copy_model,
    find_external,
    find_model,
    load_outline,
)
from assay.models.backends.tensors_io import load_inputs, unpack, warm_up, write_outputs
from assay.models.graph.tensorfile import parse_dtype
from assay.models.values.model import Ending, Job, Step, Target

_LACKING = re.compile(r"No conversion rule found for operations: (?P<names>[^\n]+)")
_NOISE = re.compile(r"^(Exception from |Check .* failed at |FrontEnd API failed|\s*$)")
# numpy's or ml_dtypes' name → OpenVINO's
_TYPES = {
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "bool": "boolean",
}
_PACKED = {"i4": "int4", "u4": "uint4"}


class OpenvinoBackend(Backend):
    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._precision = str(target.options.get("precision", "f32"))
        self._threads = int(target.options.get("threads", 1))

    def warm_up(self) -> None:
        self.import_library("onnx")
        self.import_library("openvino")
        warm_up((Step.COMPILE, self._compile), (Step.RUN, self._run))

    def identity(self) -> Mapping[str, str]:
        openvino = self.import_library("openvino")
        return {
            "openvino": str(openvino.__version__),
            "cpu": describe_cpu(),
            "precision": self._precision,
            "threads": str(self._threads),
        }

    def perform(self, job: Job) -> Made:
        return self._compile(job) if job.step is Step.COMPILE else self._run(job)

    def _compile(self, job: Job) -> Made:
        self._open(job.source, with_profile=False)
        return Made(copy_model(job.source, job.folder), self._describe(job.source))

    def _run(self, job: Job) -> Made:
        source = find_model(job.source)
        outline = load_outline(source)
        specs = build_output_specs(outline)
        inputs = load_inputs(job, build_input_specs(outline))
        compiled = self._open(source, with_profile=job.profile_dir is not None)
        request = compiled.create_infer_request()
        feed = {name: self._to_tensor(array) for name, array in inputs.items()}
        arrays, times_s = self._execute(request, feed, [spec.name for spec in specs], job)
        profiles = (_write_profile(request, job),) if job.profile_dir else ()
        path = write_outputs(job, [spec.name for spec in specs], arrays, specs)
        return Made(path, self._describe(source), times_s=times_s, profiles=profiles)

    def _execute(
        self, request: Any, feed: Any, names: Sequence[str], job: Job
    ) -> tuple[Sequence[Any], tuple[float, ...]]:
        first: Sequence[Any] = ()
        times_s = []
        for turn in range(max(1, job.repeats)):
            start = time.perf_counter()
            try:
                request.infer(feed)
            except Exception as error:
                raise explain(error, self._describe(job.source)) from error
            times_s.append(time.perf_counter() - start)
            first = first if turn else [_to_array(request.get_tensor(name)) for name in names]
        return first, tuple(times_s)

    def _open(self, source: str, *, with_profile: bool) -> Any:
        openvino = self.import_library("openvino")
        find_external(source)
        properties = {
            "INFERENCE_PRECISION_HINT": self._precision,
            "INFERENCE_NUM_THREADS": self._threads,
            "NUM_STREAMS": 1,
            "PERF_COUNT": with_profile,
        }
        try:
            core = openvino.Core()
            return core.compile_model(core.read_model(source), "CPU", properties)
        except Exception as error:
            raise explain(error, self._describe(source)) from error

    def _to_tensor(self, array: Any) -> Any:
        openvino = self.import_library("openvino")
        kind = _TYPES.get(array.dtype.name)
        if kind is None:
            return openvino.Tensor(array)
        if not hasattr(openvino.Type, kind):
            raise BackendError(f"OpenVINO takes no {array.dtype.name}", ending=Ending.UNSUPPORTED)
        tensor = openvino.Tensor(getattr(openvino.Type, kind), openvino.Shape(array.shape))
        raw = array.view(f"u{array.dtype.itemsize}")
        tensor.data.view(raw.dtype)[...] = raw
        return tensor

    def _describe(self, source: str) -> str:
        hint = f"{{'INFERENCE_PRECISION_HINT': {self._precision!r}}}"
        return render_python(f"import openvino; openvino.Core().compile_model({source!r}, 'CPU', {hint})")


def _to_array(tensor: Any) -> Any:
    """A copy, since the request's own memory is used again; of small types the bytes, which get their type later."""
    array = tensor.data
    name = tensor.element_type.get_type_name()
    if name in _PACKED:
        return unpack(array.reshape(-1).view("u1"), parse_dtype(_PACKED[name]), tuple(tensor.get_shape()))
    return (array.view(f"u{array.dtype.itemsize}") if name in _TYPES.values() else array).copy()


def _write_profile(request: Any, job: Job) -> str:
    """OpenVINO has no profile file of its own: its counters, one line for each operation, in the order of execution."""
    import csv
    import os

    folder = job.profile_dir or job.folder
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{job.case or 'model'}_openvino.csv")
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["name", "op", "kernel", "start_us", "duration_us"])
        start_us = 0.0
        for info in request.profiling_info:
            duration_us = info.real_time.total_seconds() * 1e6
            writer.writerow([info.node_name, info.node_type, info.exec_type, f"{start_us:.3f}", f"{duration_us:.3f}"])
            start_us += duration_us
    return path


_NAMED = re.compile(r"\bnode\b|\boperat(?:or|ion)\b|friendly_name|failed for \S|opset\d+::", re.IGNORECASE)


def explain(error: Exception, command: str) -> BackendError:
    """Their many lines about where in the source it was said come last."""
    text = str(error)
    lacking = _LACKING.search(text)
    if lacking:
        message = f"OpenVINO has no implementation of {lacking['names'].strip()}"
        return BackendError(message, ending=Ending.UNSUPPORTED, command=command, stderr=text)
    lines = [line.strip() for line in text.splitlines() if not _NOISE.match(line)]
    message = lines[0] if lines else type(error).__name__
    named = next((line for line in lines if _NAMED.search(line)), message)
    return BackendError(message if named == message else f"{message} ({named})", command=command, stderr=text)
