"""A compiled IREE module: load it, feed it, read what comes out, and where its time goes."""

from __future__ import annotations

import csv
import json
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from assay.models.backends.base import BackendError, name_program
from assay.models.backends.captured_output import CapturedOutput, run_program
from assay.models.backends.iree_compiler import REFLECTION, Importer, find_program, parse_io, render_shape
from assay.models.backends.tensors_io import is_numpy_type, write_raw
from assay.models.graph.tensorfile import load_refs
from assay.models.values.model import Ending, Job
from assay.models.values.tensors import TensorRef, TensorSpec

Array = Any  # numpy.ndarray

PROFILED = "host-execution,executable-metadata,queue-events"


@dataclass(frozen=True, slots=True)
class Module:
    """A loaded module with its entry point."""

    context: Any
    function: Any
    device: Any
    inputs: tuple[TensorSpec, ...] | None  # None: the module was not imported by us, and does not say
    outputs: tuple[TensorSpec, ...] | None

    @property
    def entry(self) -> str:
        return str(self.function.name)


def load_module(load: Importer, path: str, driver: str) -> Module:
    runtime = load("iree.runtime")
    try:
        instance, device = runtime.VmInstance(), runtime.get_device(driver)
        module = runtime.VmModule.mmap(instance, path)
        context = runtime.VmContext(instance=instance, modules=[runtime.create_hal_module(instance, device), module])
    except Exception as error:
        raise explain(
            error, shlex.join([name_program("iree-run-module"), f"--module={path}", f"--device={driver}"])
        ) from error
    function = module.lookup_function(_choose_entry(module.function_names, path))
    text = dict(function.reflection).get(REFLECTION)
    inputs, outputs = parse_io(text) if text else (None, None)
    return Module(context, function, device, inputs, outputs)


def _choose_entry(names: Sequence[str], path: str) -> str:
    """Of the pair that IREE makes of each function, the one that returns when it is done."""
    found = [name for name in names if not name.endswith("$async") and not name.startswith("__")]
    if len(found) != 1:
        raise BackendError(f"{path} has {len(found)} entry points, not one: {', '.join(found) or 'none'}")
    return found[0]


def invoke(load: Importer, module: Module, arrays: Sequence[Array], command: str) -> tuple[list[Array], float]:
    """What comes out, and the seconds that it took."""
    runtime = load("iree.runtime")
    arguments = runtime.VmVariantList(len(arrays))
    for array in arrays:
        arguments.push_ref(_to_view(load, module.device, array))
    results = runtime.VmVariantList(1)
    start = time.perf_counter()
    try:
        module.context.invoke(module.function, arguments, results)
    except Exception as error:
        raise explain(error, command) from error
    elapsed_s = time.perf_counter() - start
    views = [results.get_as_object(i, runtime.HalBufferView) for i in range(len(results))]
    return [_to_array(load, view) for view in views], elapsed_s


def _to_view(load: Importer, device: Any, array: Array) -> Any:
    runtime, np = load("iree.runtime"), load("numpy")
    element = load("iree.runtime.dtypes").map_dtype_to_hal_element_type(array.dtype)
    if element is None:
        kind = "strings" if array.dtype.kind in "OUS" else array.dtype.name
        raise BackendError(f"IREE's runtime takes no {kind}", ending=Ending.UNSUPPORTED)
    plain = np.asarray(array, order="C")
    if plain.dtype.isbuiltin != 1 or plain.dtype.kind == "b":
        plain = plain.view(f"u{plain.dtype.itemsize}")
    return device.allocator.allocate_buffer_copy(
        memory_type=runtime.MemoryType.DEVICE_LOCAL,
        allowed_usage=runtime.BufferUsage.DEFAULT | runtime.BufferUsage.MAPPING,
        device=device, buffer=plain, element_type=element,
    )  # fmt: skip


def _to_array(load: Importer, view: Any) -> Array:
    """Read as bytes: the runtime maps no type that numpy does not know."""
    runtime, np = load("iree.runtime"), load("numpy")
    shape = tuple(view.shape)
    if 0 in shape:
        return np.zeros(shape, _find_dtype(load, view.element_type))
    width = runtime.HalElementType.dense_byte_count(view.element_type)
    raw = view.map().asarray([int(np.prod(shape, dtype=np.int64)) * width], np.dtype("u1")).copy()
    return raw.view(_find_dtype(load, view.element_type)).reshape(shape)


def _find_dtype(load: Importer, element: Any) -> Any:
    """Signless integers come out as signed ones; the module's own list of outputs knows better."""
    dtypes, runtime = load("iree.runtime.dtypes"), load("iree.runtime")
    for dtype, known in dtypes._ML_DTYPE_TO_HAL_ELEMENT_TYPE.items():  # noqa: SLF001 - it has no public name
        if known == element:
            return dtype
    return runtime.HalElementType.map_to_dtype(element)


def explain(error: Exception, command: str) -> BackendError:
    text = str(error)
    ending = Ending.MEMORY if "RESOURCE_EXHAUSTED" in text else Ending.ERROR
    message = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return BackendError(message, ending=ending, command=command, stderr=text)


# ---------------------------------------------------------------- by IREE's own programs


def build_run_command(path: str, entry: str, driver: str, inputs: Sequence[str]) -> list[str]:
    fed = [f"--input={text}" for text in inputs]
    return [name_program("iree-run-module"), f"--module={path}", f"--device={driver}", f"--function={entry}", *fed]


def stage_inputs(job: Job, order: Sequence[TensorSpec] | None) -> list[str]:
    """As IREE's programs take them: types that numpy's files do not know as raw bytes, with their type said."""
    refs = {ref.name: ref for ref in load_refs(job.inputs)} if job.inputs else {}
    names = list(refs) if order is None else [spec.name for spec in order if spec.name in refs]
    return [_stage_input(job, refs[name], i) for i, name in enumerate(names)]


def _stage_input(job: Job, ref: TensorRef, index: int) -> str:
    if is_numpy_type(ref.dtype):
        return f"@{ref.path}"
    raw = write_raw(ref, os.path.join(job.folder, "inputs", f"{index}.bin"))
    return f"{render_shape(ref.shape, ref.dtype)}=@{raw.path}"


def write_profile(load: Importer, job: Job, argv: Sequence[str]) -> tuple[str, ...]:
    """Run once more under IREE's profiler: its own bundle, and a table of the dispatches."""
    folder = job.profile_dir or job.folder
    os.makedirs(folder, exist_ok=True)
    bundle = os.path.join(folder, f"{job.case or 'model'}_iree.ireeprof")
    flags = [f"--device_profiling_mode={PROFILED}", f"--device_profiling_output={bundle}", "--output=+/dev/null"]
    run = run_program([find_program(load, "iree-run-module"), *argv[1:], *flags])
    if run.code:
        return ()  # what it said is in the outcome's stderr; a profile is not worth a failed run
    profile = [find_program(load, "iree-profile"), "dispatch", "--dispatch_events", "--format=jsonl", bundle]
    return bundle, _write_dispatches(run_program(profile), os.path.splitext(bundle)[0] + ".csv")


def _write_dispatches(speech: CapturedOutput, path: str) -> str:
    rows = [json.loads(line) for line in speech.stdout.splitlines() if line.startswith("{") and line.endswith("}")]
    events = [row for row in rows if "duration_ns" in row and "key" in row]
    start_ns = min((row["start_host_time_ns"] for row in events), default=0)
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["name", "op", "kernel", "start_us", "duration_us"])
        for row in events:
            begun_us = (row["start_host_time_ns"] - start_ns) / 1e3
            writer.writerow(
                [row["key"], _guess_op(row["key"]), "", f"{begun_us:.3f}", f"{row['duration_ns'] / 1e3:.3f}"]
            )
    return path


def _guess_op(key: str) -> str:
    """`main$async_dispatch_3_conv_16x32…` → conv: IREE names its dispatches for what is in them."""
    words = key.rpartition("_dispatch_")[2].split("_")
    return words[1] if len(words) > 1 else ""
