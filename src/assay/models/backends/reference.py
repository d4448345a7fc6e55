"""onnx's own ReferenceEvaluator: slow, plain, and the nearest thing to the specification."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from assay.models.backends.base import Backend, BackendError, Made, render_python
from assay.models.backends.onnx_file import (
    build_input_specs,
    build_output_specs,
    copy_model,
    find_external,
    find_model,
    load_outline,
)
from assay.models.backends.tensors_io import load_inputs, warm_up, write_outputs
from assay.models.graph.onnx_library import find_opset
from assay.models.values.model import Ending, Job, Step

_LACKING = re.compile(r"operator '(?P<a>\w+)'|Node type '(?P<b>\w+)' from domain '(?P<domain>[^']*)'")


class ReferenceBackend(Backend):
    def warm_up(self) -> None:
        self.import_library("onnx.reference")
        warm_up((Step.COMPILE, self._compile), (Step.RUN, self._run))

    def identity(self) -> Mapping[str, str]:
        onnx, numpy = self.import_library("onnx"), self.import_library("numpy")
        return {"onnx": str(onnx.__version__), "numpy": str(numpy.__version__)}

    def perform(self, job: Job) -> Made:
        return self._compile(job) if job.step is Step.COMPILE else self._run(job)

    def _compile(self, job: Job) -> Made:
        self._open(job.source)
        return Made(copy_model(job.source, job.folder), _describe(job.source))

    def _run(self, job: Job) -> Made:
        source = find_model(job.source)
        outline = load_outline(source)
        inputs = load_inputs(job, build_input_specs(outline))
        evaluator = self._open(source)
        first, times_s = _execute(evaluator, inputs, job, source)
        specs = build_output_specs(outline)
        names = [spec.name for spec in specs]
        return Made(write_outputs(job, names, first, specs), _describe(source), times_s=times_s)

    def _open(self, source: str) -> Any:
        reference = self.import_library("onnx.reference")
        find_external(source)
        try:
            return reference.ReferenceEvaluator(source)
        except Exception as error:
            raise explain(error, source) from error


def _execute(evaluator: Any, inputs: Any, job: Job, source: str) -> tuple[Sequence[Any], tuple[float, ...]]:
    first: Sequence[Any] = ()
    times_s = []
    for turn in range(max(1, job.repeats)):
        start = time.perf_counter()
        try:
            values = evaluator.run(None, inputs)
        except Exception as error:
            raise explain(error, source) from error
        times_s.append(time.perf_counter() - start)
        first = first if turn else values
    return first, tuple(times_s)


def explain(error: Exception, source: str) -> BackendError:
    lines = str(error).strip().splitlines()
    text = lines[0].strip() if lines else type(error).__name__
    lacking = _LACKING.search(text) if isinstance(error, NotImplementedError) else None
    if lacking:
        opset = find_opset(load_outline(source))
        domain = f"{lacking['domain']}:" if lacking["domain"] else ""
        text = (
            f"the reference evaluator has no implementation of {domain}{lacking['a'] or lacking['b']} (opset {opset})"
        )
    ending = Ending.UNSUPPORTED if isinstance(error, NotImplementedError) else Ending.ERROR
    if isinstance(error, MemoryError):
        ending, text = Ending.MEMORY, "out of memory"
    return BackendError(text, ending=ending, command=_describe(source), stderr=str(error))


def _describe(source: str) -> str:
    return render_python(f"from onnx.reference import ReferenceEvaluator; ReferenceEvaluator({source!r})")
