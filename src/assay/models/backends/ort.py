"""onnxruntime on the CPU: the usual reference, and with its optimisations off another one.

Options: `optimize` (all, extended, basic, none), `threads`. A compilation is a session that could be built; what is
kept is the model itself, since onnxruntime's optimised models are tied to the machine.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from assay.errors import UsageError, did_you_mean
from assay.models.backends.base import Backend, BackendError, Made, describe_cpu, render_python
from assay.models.backends.onnx_file import (
    build_input_specs,
    build_output_specs,
    copy_model,
    find_external,
    find_model,
    load_outline,
)
from assay.models.backends.tensors_io import PACKED, load_inputs, unpack, warm_up, write_outputs
from assay.models.graph.onnx_library import find_opset
from assay.models.graph.tensorfile import parse_dtype
from assay.models.values.model import Ending, Job, Step, Target
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


class OrtBackend(Backend):
    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._level = str(target.options.get("optimize", "all"))
        self._threads = int(target.options.get("threads", 1))
        if self._level not in LEVELS:
            raise UsageError(
                f"target {target.name}: optimize = {self._level!r} is not known", did_you_mean(self._level, LEVELS)
            )

    def warm_up(self) -> None:
        self.import_library("onnx")
        self.import_library("onnxruntime")
        warm_up((Step.COMPILE, self._compile), (Step.RUN, self._run))

    def identity(self) -> Mapping[str, str]:
        runtime, onnx = self.import_library("onnxruntime"), self.import_library("onnx")
        return {
            "onnxruntime": f"{runtime.__version__} {runtime.get_build_info()}",
            "onnx": str(onnx.__version__),
            "cpu": describe_cpu(),
            "optimize": self._level,
            "threads": str(self._threads),
        }

    def perform(self, job: Job) -> Made:
        return self._compile(job) if job.step is Step.COMPILE else self._run(job)

    def _compile(self, job: Job) -> Made:
        command = self._describe(job.source)
        self._open(job.source, self._options(), command)
        return Made(copy_model(job.source, job.folder), command)

    def _run(self, job: Job) -> Made:
        source = find_model(job.source)
        command = self._describe(source)
        outline = load_outline(source)
        inputs = load_inputs(job, build_input_specs(outline))
        options = self._options()
        if job.profile_dir:
            os.makedirs(job.profile_dir, exist_ok=True)
            options.enable_profiling = True
            options.profile_file_prefix = os.path.join(job.profile_dir, f"{job.case or 'model'}_ort")
        session = self._open(source, options, command)
        names = [output.name for output in session.get_outputs()]
        values, times_s = self._execute(session, inputs, job, command)
        profiles = (session.end_profiling(),) if job.profile_dir else ()
        specs = build_output_specs(outline)
        arrays = [_to_array(value, spec) for value, spec in zip(values, specs, strict=True)]
        return Made(write_outputs(job, names, arrays, specs), command, times_s=times_s, profiles=profiles)

    def _execute(self, session: Any, inputs: Any, job: Job, command: str) -> tuple[Sequence[Any], tuple[float, ...]]:
        """Texts go in as they are, all else as onnxruntime's own values: only these hold every type."""
        has_texts = any(array.dtype.kind in "OUS" for array in inputs.values())
        feed = inputs if has_texts else {name: self._to_value(array) for name, array in inputs.items()}
        run = session.run if has_texts else session.run_with_ort_values
        first: Sequence[Any] = ()
        times_s = []
        for turn in range(max(1, job.repeats)):
            start = time.perf_counter()
            try:
                values = run(None, feed)
            except Exception as error:
                raise explain(error, command, find_model(job.source)) from error
            times_s.append(time.perf_counter() - start)
            first = first if turn else values
        return first, tuple(times_s)

    def _options(self) -> Any:
        runtime = self.import_library("onnxruntime")
        options = runtime.SessionOptions()
        options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, LEVELS[self._level])
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.use_deterministic_compute = True
        options.log_severity_level = 4  # errors are raised; it need not say them twice, in colours
        return options

    def _open(self, source: str, options: Any, command: str) -> Any:
        runtime = self.import_library("onnxruntime")
        find_external(source)  # names the file that is missing; onnxruntime names the weight
        try:
            return runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise explain(error, command, source) from error

    def _to_value(self, array: Any) -> Any:
        """onnxruntime takes types that numpy does not know only as the bytes that they are."""
        runtime, onnx = self.import_library("onnxruntime"), self.import_library("onnx")
        if array.dtype.isbuiltin == 1:
            return runtime.OrtValue.ortvalue_from_numpy(array)
        number = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        if array.dtype.name in PACKED:
            raise BackendError(f"onnxruntime takes no {array.dtype.name} inputs", ending=Ending.UNSUPPORTED)
        return runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(f"u{array.dtype.itemsize}"), number)

    def _describe(self, source: str) -> str:
        return render_python(
            "import onnxruntime as ort; options = ort.SessionOptions(); "
            f"options.graph_optimization_level = ort.GraphOptimizationLevel.{LEVELS[self._level]}; "
            f"options.intra_op_num_threads = {self._threads}; ort.InferenceSession({source!r}, options)"
        )


def explain(error: Exception, command: str, source: str) -> BackendError:
    """Their exception as an outcome, with the operator's name where one is lacking."""
    text = _PREFIX.sub("", str(error)).strip()
    lacking = _LACKING.search(text)
    if lacking:
        operator = next(name for name in (lacking["a"], lacking["b"], lacking["c"], lacking["d"]) if name)
        return _lacking(operator, text, command, source)
    too_new = _TOO_NEW.search(text)
    if too_new:
        return _explain_new(too_new, text, command)
    kind = type(error).__name__
    ending = Ending.UNSUPPORTED if kind == "NotImplemented" else Ending.ERROR
    return BackendError(first_line(text) or kind, ending=ending, command=command, stderr=text)


def _explain_new(found: re.Match[str], text: str, command: str) -> BackendError:
    """In our words first: theirs begin with a path and a C++ signature."""
    import onnxruntime

    domain = "" if found["domain"] in (_OWN_DOMAIN, None) else f" of {found['domain']}"
    what, most = (f"IR version {found['ir']}", found["most_ir"]) if found["ir"] else (
        f"opset {found['opset']}{domain}", found["most"]
    )  # fmt: skip
    message = f"{what} is newer than onnxruntime {onnxruntime.__version__} knows ({most})"
    hint = "update onnxruntime, or export the model again for an older one"
    if found["opset"] and not domain:
        hint = f"convert the model: assay model convert MODEL --opset {most}"
    return BackendError(message, ending=Ending.UNSUPPORTED, command=command, stderr=text, hint=hint)


def _lacking(operator: str, text: str, command: str, source: str) -> BackendError:
    opset = find_opset(load_outline(source)) if os.path.isfile(source) else 0
    where = f" of opset {opset}" if opset else ""
    return BackendError(
        f"onnxruntime has no implementation of {operator}{where} for these types",
        ending=Ending.UNSUPPORTED, command=command, stderr=text,
        hint="convert the model: assay model convert MODEL --opset 17" if 0 < opset < 7 else "",
    )  # fmt: skip


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


# ---------------------------------------------------------------- values


def _to_array(value: Any, spec: TensorSpec) -> Any:
    """A value as an array; types that numpy does not know are read from memory."""
    if hasattr(value, "dtype"):
        return value
    if isinstance(value, list | dict) or not value.is_tensor():
        raise BackendError(f"{spec.name} is a sequence or a map, not a tensor", ending=Ending.UNSUPPORTED)
    dtype = parse_dtype(spec.dtype) if spec.dtype else None
    if dtype is None or dtype.isbuiltin == 1 or spec.dtype == "string":
        return value.numpy()
    return _read_memory(value, dtype)


def _read_memory(value: Any, dtype: Any) -> Any:
    import numpy as np

    shape = tuple(value.shape())
    raw = np.frombuffer(ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()), np.uint8)
    if dtype.name in PACKED:
        return unpack(raw, dtype, shape)
    return raw.view(dtype).reshape(shape).copy()
