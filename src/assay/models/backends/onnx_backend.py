"""Back ends that read ONNX files in this process: how they keep a model, their steps, and onnx's own evaluator.

A model without external data is kept as a file; a model with external data as a folder with the model under a fixed
name and the data next to the model, under the names in it.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.models.backends.base import Backend, BackendError, Made, first_line, render_python
from assay.models.backends.tensors_io import load_inputs, warm_up, write_outputs
from assay.models.graph.graph import find_locations, load_skeleton
from assay.models.graph.onnx_library import Model, build_spec, find_opset
from assay.models.values.model import Job, Step, StepEnding
from assay.models.values.tensors import TensorSpec

MODEL_FILE = "model.onnx"


def copy_model(source: str, folder: str) -> str:
    """Copy a model with all of its files into a folder. Returns the path of the copy."""
    data = find_external(source)
    target = os.path.join(folder, "model") if data else folder
    os.makedirs(target, exist_ok=True)
    shutil.copyfile(source, os.path.join(target, MODEL_FILE))
    for name in data:
        copy = os.path.join(target, name)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        shutil.copyfile(os.path.join(os.path.dirname(source), name), copy)
    return target if data else os.path.join(target, MODEL_FILE)


def find_model(path: str) -> str:
    """Return the model's own file in a result of `copy_model`."""
    return os.path.join(path, MODEL_FILE) if os.path.isdir(path) else path


def load_outline(path: str) -> Model:
    """Load the model without its weights. Raises BackendError if the file is missing, or not ONNX."""
    try:
        model = load_skeleton(path)
    except FileNotFoundError:
        raise BackendError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise BackendError(f"{path} is not an ONNX model: {error}") from error
    if not model.graph.node and not model.graph.output:
        raise BackendError(f"{path} is not an ONNX model: it has neither nodes nor outputs")
    return model


def find_external(path: str) -> list[str]:
    """Return the files with a model's weights, relative to its folder. Raises BackendError if one is missing."""
    folder = os.path.dirname(os.path.abspath(path))
    names = find_locations(load_outline(path))
    outside = [name for name in names if os.path.isabs(name) or os.path.normpath(name).startswith("..")]
    if outside:
        raise BackendError(f"the external data {', '.join(outside)} is outside of the model's folder")
    missing = [name for name in names if not os.path.isfile(os.path.join(folder, name))]
    if missing:
        listed = ", ".join(os.path.join(folder, name) for name in missing)
        raise BackendError(f"missing external data: {listed}", hint="put the file next to the model")
    return names


def build_input_specs(model: Model) -> tuple[TensorSpec, ...]:
    """Return the inputs of a model; initialisers that are listed as inputs do not count."""
    known = {tensor.name for tensor in model.graph.initializer}
    return tuple(_build_spec(value) for value in model.graph.input if value.name not in known)


def build_output_specs(model: Model) -> tuple[TensorSpec, ...]:
    return tuple(_build_spec(value) for value in model.graph.output)


def _build_spec(value: Any) -> TensorSpec:
    """Return a value's spec, which arrays are checked against; a value that is not a tensor has no type."""
    return build_spec(value) if value.type.HasField("tensor_type") else TensorSpec(value.name, "")


class OnnxBackend(Backend):
    """A back end that compiles by opening the model with its library, as a check; the model itself is kept."""

    libraries: tuple[str, ...]

    @abstractmethod
    def open(self, source: str, profile: str) -> Any:
        """Open the library's model. `profile`: the path of its profile without a suffix; empty: no profile."""

    @abstractmethod
    def start(self, opened: Any, inputs: Mapping[str, Any]) -> Callable[[], Any]:
        """Return a function that executes the model once: only this function is timed."""

    def read(self, values: Any, _specs: Sequence[TensorSpec]) -> Sequence[Any]:
        """Convert the result of an execution to arrays, before the next execution begins."""
        found: Sequence[Any] = values
        return found

    def write_profile(self, _opened: Any, _values: Any, _profile: str) -> tuple[str, ...]:
        return ()

    @abstractmethod
    def describe(self, source: str) -> str:
        """Return a shell line that opens the model in the same way."""

    @abstractmethod
    def explain(self, error: Exception, source: str) -> BackendError:
        """Return the library's exception as a failed step."""

    def warm_up(self) -> None:
        for name in self.libraries:
            self.import_library(name)
        warm_up((Step.COMPILE, self._compile), (Step.RUN, self._run))

    def perform(self, job: Job) -> Made:
        return self._compile(job) if job.step is Step.COMPILE else self._run(job)

    def _compile(self, job: Job) -> Made:
        self._open(job.source, "")
        return Made(copy_model(job.source, job.folder), self.describe(job.source))

    def _run(self, job: Job) -> Made:
        source = find_model(job.source)
        outline = load_outline(source)
        specs = build_output_specs(outline)
        inputs = load_inputs(job, build_input_specs(outline))
        profile = os.path.join(job.profile_dir, job.case or "model") if job.profile_dir else ""
        opened = self._open(source, profile)
        execute = self.start(opened, inputs)
        arrays: Sequence[Any] = ()
        times_s = []
        for turn in range(max(1, job.repeats)):
            start = time.perf_counter()
            try:
                values = execute()
            except Exception as error:
                raise self.explain(error, source) from error
            times_s.append(time.perf_counter() - start)
            arrays = arrays if turn else self.read(values, specs)
        profiles = self.write_profile(opened, values, profile) if profile else ()
        path = write_outputs(job, [spec.name for spec in specs], arrays, specs)
        return Made(path, self.describe(source), times_s=tuple(times_s), profiles=profiles)

    def _open(self, source: str, profile: str) -> Any:
        for name in self.libraries:
            self.import_library(name)
        find_external(source)  # raises an error with the missing file; libraries name the weight
        try:
            return self.open(source, profile)
        except Exception as error:
            raise self.explain(error, source) from error


_LACKING = re.compile(r"operator '(?P<a>\w+)'|Node type '(?P<b>\w+)' from domain '(?P<domain>[^']*)'")


class ReferenceBackend(OnnxBackend):
    """onnx's own evaluator: slow and plain, but the nearest to the specification."""

    libraries = ("onnx.reference",)

    def identity(self) -> Mapping[str, str]:
        onnx, numpy = self.import_library("onnx"), self.import_library("numpy")
        return {"onnx": str(onnx.__version__), "numpy": str(numpy.__version__)}

    def open(self, source: str, _profile: str) -> Any:
        return self.import_library("onnx.reference").ReferenceEvaluator(source)

    def start(self, opened: Any, inputs: Mapping[str, Any]) -> Callable[[], Any]:
        return lambda: opened.run(None, inputs)

    def describe(self, source: str) -> str:
        return render_python(f"from onnx.reference import ReferenceEvaluator; ReferenceEvaluator({source!r})")

    def explain(self, error: Exception, source: str) -> BackendError:
        text = first_line(str(error)) or type(error).__name__
        lacking = _LACKING.search(text) if isinstance(error, NotImplementedError) else None
        if lacking:
            opset = find_opset(load_outline(source))
            operator = (f"{lacking['domain']}:" if lacking["domain"] else "") + (lacking["a"] or lacking["b"])
            text = f"the reference evaluator has no implementation of {operator} (opset {opset})"
        ending = StepEnding.UNSUPPORTED if isinstance(error, NotImplementedError) else StepEnding.ERROR
        if isinstance(error, MemoryError):
            ending, text = StepEnding.MEMORY, "out of memory"
        return BackendError(text, ending=ending, command=self.describe(source), stderr=str(error))
