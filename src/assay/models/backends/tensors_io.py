"""Inputs and outputs of a model, checked against its signature; and the first, untimed run of a library.

Some runtimes accept any input: OpenVINO computes with uninitialised memory if an input is missing. So every back end
checks its inputs here first. What a library does once, at its first model (load kernels, register operators, start
threads), happens before anything is timed: else the first case, which is the full model, would include it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from assay.models.backends.base import BackendError, Made
from assay.models.graph.onnx_library import import_onnx
from assay.models.graph.tensorfile import load_ref, load_tensors, name_dtype, parse_dtype, write_tensors
from assay.models.values.model import Ending, Job, Step
from assay.models.values.tensors import TensorRef, TensorSpec

Array = Any  # numpy.ndarray

OUTPUTS_FOLDER = "outputs"
_NUMPY_TYPES = ("bool", "float16", "float32", "float64", "complex64", "complex128")
PACKED = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}  # bits of types that share a byte


def load_inputs(job: Job, specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """The job's inputs in the model's order. Raises BackendError that names everything that does not fit."""
    arrays = load_tensors(job.inputs) if job.inputs else {}
    problems = list(find_misfits(specs, arrays))
    if problems:
        raise BackendError("the inputs do not fit: " + "; ".join(problems))
    return {spec.name: arrays[spec.name] for spec in specs}


def find_misfits(specs: Sequence[TensorSpec], arrays: Mapping[str, Array]) -> Iterator[str]:
    known = {spec.name for spec in specs}
    for spec in specs:
        if spec.name not in arrays:
            yield f"{spec.name} is missing"
        else:
            yield from _array_misfits(spec, arrays[spec.name])
    yield from (f"{name} is not an input of the model" for name in arrays if name not in known)


def _array_misfits(spec: TensorSpec, array: Array) -> Iterator[str]:
    if spec.dtype and name_dtype(array) != spec.dtype:
        yield f"{spec.name} is {name_dtype(array)}, not {spec.dtype}"
    if spec.shape is not None and not _fits(spec, array.shape):
        wanted = ", ".join("?" if dim is None else str(dim) for dim in spec.shape)
        yield f"{spec.name} has the shape {list(array.shape)}, not [{wanted}]"


def _fits(spec: TensorSpec, shape: Sequence[int]) -> bool:
    dims = spec.shape or ()
    same = all(not isinstance(dim, int) or dim == size for dim, size in zip(dims, shape, strict=False))
    return len(dims) == len(shape) and same


def write_raw(ref: TensorRef, path: str) -> TensorRef:
    """The bytes alone, for programs that read no other files."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as stream:
        stream.write(load_ref(ref).tobytes())
    return replace(ref, path=path)


def is_numpy_type(dtype: str) -> bool:
    """Whether numpy's own files can name it."""
    return dtype in _NUMPY_TYPES or (dtype.startswith(("int", "uint")) and dtype not in PACKED)


def write_outputs(job: Job, names: Sequence[str], arrays: Sequence[Any], specs: Sequence[TensorSpec] = ()) -> str:
    """Write what came out, under the names that the job asks for; the folder.

    `names` are what the back end calls them, in its order.
    """
    types = {spec.name: spec.dtype for spec in (*job.output_specs, *specs)}
    found = {name: fit_type(array, types.get(name, ""), name) for name, array in zip(names, arrays, strict=True)}
    missing = [name for name in job.outputs if name not in found]
    if missing:
        raise BackendError(f"no output named {', '.join(missing)} was computed; there are {', '.join(found) or 'none'}")
    folder = os.path.join(job.folder, OUTPUTS_FOLDER)
    write_tensors(folder, {name: found[name] for name in job.outputs or found})
    return folder


def fit_type(array: Any, dtype: str, name: str = "output") -> Array:
    """The array with its true type, where a runtime only knows one of the same width: int8 for bool or uint8.

    A type of another width or kind stays: that is for the comparison to see.
    """
    if not hasattr(array, "dtype"):
        raise BackendError(f"{name} is {describe_kind(array)}, not a tensor", ending=Ending.UNSUPPORTED)
    if not dtype or name_dtype(array) == dtype:
        return array
    kind = parse_dtype(dtype)
    return array.view(kind) if array.dtype.itemsize == kind.itemsize and _is_alias(array.dtype, kind) else array


def _is_alias(found: Any, wanted: Any) -> bool:
    """Nameless bytes may be anything; integers stand for integers and truth values; unsigned ones for small floats."""
    if found.name.startswith("void"):
        return True
    is_known = wanted.isbuiltin == 1  # to numpy; the small types are ml_dtypes'
    return (found.kind in "iub" and wanted.kind in "iub" and is_known) or (found.kind == "u" and not is_known)


def describe_kind(value: Any) -> str:
    if value is None:
        return "empty"
    return "a sequence" if isinstance(value, list) else f"a {type(value).__name__}"


def unpack(raw: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Several elements share a byte, the first one lowest; ml_dtypes gives each a byte of its own."""
    import numpy as np

    bits = PACKED[dtype.name]
    parts = [(raw >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    flat = np.stack(parts, axis=-1).reshape(-1)[: int(np.prod(shape, dtype=np.int64))]
    if dtype.name.startswith("int"):
        sign = 1 << (bits - 1)
        return ((flat.astype(np.int8) ^ sign) - sign).astype(dtype).reshape(shape)
    return flat.view(dtype).reshape(shape)


_OPSET, _IR_VERSION = 13, 7  # old enough for every library
Perform = Callable[[Job], Made]


def warm_up(*steps: tuple[Step, Perform]) -> None:
    """Take a model of one node through these steps. Whatever is wrong is reported by the first real job."""
    with suppress(Exception), tempfile.TemporaryDirectory(prefix="assay-rehearsal-") as folder:
        made = _write_model(folder)
        inputs = _write_inputs(folder)
        for step, perform in steps:
            job = Job(step, made, tempfile.mkdtemp(dir=folder), inputs=inputs, outputs=("y",), case="rehearsal")
            made = perform(replace(job, inputs=inputs if step is Step.RUN else None)).path


def _write_model(folder: str) -> str:
    onnx = import_onnx()
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "x"], ["y"])], "rehearsal", ends[:1], ends[1:])
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION
    )  # fmt: skip
    path = os.path.join(folder, "rehearsal.onnx")
    with open(path, "wb") as file:
        file.write(model.SerializeToString())
    return path


def _write_inputs(folder: str) -> str:
    import numpy as np

    path = os.path.join(folder, "inputs")
    write_tensors(path, {"x": np.ones(4, np.float32)})
    return path
