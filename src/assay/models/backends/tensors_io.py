"""Inputs and outputs of a model, checked against its signature; and the first, untimed run of a library.

Every back end checks its inputs here, since some runtimes accept anything: OpenVINO computes with uninitialised memory
if an input is missing. The work of a library for its first model (load kernels, register operators, start
threads) is done before anything is timed: otherwise the time of the first case would include it.
"""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from assay.models.backends.base import BackendError, Made
from assay.models.graph.inputs import find_problems
from assay.models.graph.tensorfile import load_ref, load_tensors, name_dtype, parse_dtype, write_tensors
from assay.models.libraries import np, onnx
from assay.models.values.model import Job, Step, StepEnding
from assay.models.values.tensors import TensorRef, TensorSpec
from assay.system.fast_dataclasses import replace

Array = Any  # numpy.ndarray

OUTPUTS_FOLDER = "outputs"
_NUMPY_TYPES = ("bool", "float16", "float32", "float64", "complex64", "complex128")
PACKED = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}  # bits of types whose elements share a byte


def load_inputs(job: Job, specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Return the job's inputs in the model's order. Raises BackendError that names every input that does not fit."""
    arrays = load_tensors(job.inputs) if job.inputs else {}
    problems = find_problems(specs, arrays)
    if problems:
        raise BackendError("the inputs do not fit: " + "; ".join(problems))
    return {spec.name: arrays[spec.name] for spec in specs}


def write_raw(ref: TensorRef, path: str) -> TensorRef:
    """Write the bytes of a tensor, for programs that read only raw files."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as stream:
        stream.write(load_ref(ref).tobytes())
    return replace(ref, path=path)


def is_numpy_type(dtype: str) -> bool:
    """Return whether numpy's own files support this type."""
    return dtype in _NUMPY_TYPES or (dtype.startswith(("int", "uint")) and dtype not in PACKED)


def write_outputs(job: Job, names: Sequence[str], arrays: Sequence[Any], specs: Sequence[TensorSpec] = ()) -> str:
    """Write the outputs under the names that the job asks for; return the folder. `names` are the back end's names of
    `arrays`."""
    types = {spec.name: spec.dtype for spec in (*job.output_specs, *specs)}
    found = {name: fit_type(array, types.get(name, ""), name) for name, array in zip(names, arrays, strict=True)}
    missing = [name for name in job.outputs if name not in found]
    if missing:
        raise BackendError(f"no output named {', '.join(missing)} was computed; there are {', '.join(found) or 'none'}")
    folder = os.path.join(job.folder, OUTPUTS_FOLDER)
    write_tensors(folder, {name: found[name] for name in job.outputs or found})
    return folder


def write_operators(path: str, rows: Iterable[tuple[str, str, str, float, float]]) -> str:
    """Write the profile of a library that has no table of its own; return the path."""
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["name", "op", "kernel", "start_us", "duration_us"])
        writer.writerows([*names, f"{start_us:.3f}", f"{length_us:.3f}"] for *names, start_us, length_us in rows)
    return path


def fit_type(array: Any, dtype: str, name: str = "output") -> Array:
    """Return the array with its true type if a runtime only knows one of the same width: int8 for bool or uint8. A type
    of another width or kind is kept: the comparison reports it."""
    if not hasattr(array, "dtype"):
        kind = "a sequence" if isinstance(array, list) else f"a {type(array).__name__}"
        raise BackendError(
            f"{name} is {'empty' if array is None else kind}, not a tensor", ending=StepEnding.UNSUPPORTED
        )
    if not dtype or name_dtype(array) == dtype:
        return array
    found, wanted = array.dtype, parse_dtype(dtype)
    is_known = wanted.isbuiltin == 1  # numpy knows the type; the small types are ml_dtypes'
    # bytes may represent any type, integers other integers or bool, unsigned integers small floats
    is_integer = found.kind in "iub" and wanted.kind in "iub" and is_known
    is_alias = found.name.startswith("void") or is_integer or (found.kind == "u" and not is_known)
    return array.view(wanted) if found.itemsize == wanted.itemsize and is_alias else array


def unpack(raw: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Unpack elements that share a byte, the first one lowest; ml_dtypes gives each element a byte."""
    bits = PACKED[dtype.name]
    parts = [(raw >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    flat = np.stack(parts, axis=-1).reshape(-1)[: int(np.prod(shape, dtype=np.int64))]
    if dtype.name.startswith("int"):
        sign = 1 << (bits - 1)
        return ((flat.astype(np.int8) ^ sign) - sign).astype(dtype).reshape(shape)
    return flat.view(dtype).reshape(shape)


# a model of one node, in versions that are old enough for every library
_MODEL = '<ir_version: 7, opset_import: ["": 13]> rehearsal (float[4] x) => (float[4] y) { y = Add(x, x) }'
Perform = Callable[[Job], Made]


def warm_up(*steps: tuple[Step, Perform]) -> None:
    """Perform these steps with a model of one node. Errors are ignored: the first real job reports them."""
    with suppress(Exception), tempfile.TemporaryDirectory(prefix="assay-rehearsal-") as folder:
        made, inputs = os.path.join(folder, "rehearsal.onnx"), os.path.join(folder, "inputs")
        onnx.save(onnx.parser.parse_model(_MODEL), made)
        write_tensors(inputs, {"x": np.ones(4, np.float32)})
        for step, perform in steps:
            job = Job(step, made, tempfile.mkdtemp(dir=folder), inputs=inputs, outputs=("y",), case="rehearsal")
            made = perform(replace(job, inputs=inputs if step is Step.RUN else None)).path
