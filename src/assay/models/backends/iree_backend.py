"""IREE in this process: import, compile, run, and read a compiled module.

Options: `device` (llvm-cpu, vmvx), `cpu` (generic, host or any that LLVM knows), `driver` (local-sync, local-task).
"""

from __future__ import annotations

import csv
import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from assay.models.backends.base import Backend, BackendError, Made, describe_cpu, first_line, name_program
from assay.models.backends.captured_output import CapturedOutput, run_program
from assay.models.backends.iree_compiler import (
    REFLECTION,
    Compilation,
    compile_module,
    find_program,
    import_model,
    parse_io,
    render_shape,
)
from assay.models.backends.tensors_io import is_numpy_type, load_inputs, warm_up, write_outputs, write_raw
from assay.models.graph.tensorfile import load_refs, load_tensors
from assay.models.libraries import np
from assay.models.values.model import Job, Step, StepEnding, Target
from assay.models.values.tensors import TensorSpec
from assay.system.fast_dataclasses import dataclass

Array = Any  # numpy.ndarray

PROFILED = "host-execution,executable-metadata,queue-events"


@dataclass(frozen=True, slots=True)
class Module:
    """A loaded module with its entry point."""

    context: Any
    function: Any
    device: Any
    inputs: tuple[TensorSpec, ...] | None  # None: the module was not imported by us, and does not state them
    outputs: tuple[TensorSpec, ...] | None

    @property
    def entry(self) -> str:
        return str(self.function.name)


def load_module(path: str, driver: str) -> Module:
    from iree import runtime

    try:
        instance, device = runtime.VmInstance(), runtime.get_device(driver)
        module = runtime.VmModule.mmap(instance, path)
        context = runtime.VmContext(instance=instance, modules=[runtime.create_hal_module(instance, device), module])
    except Exception as error:
        raise explain(
            error, shlex.join([name_program("iree-run-module"), f"--module={path}", f"--device={driver}"])
        ) from error
    function = module.lookup_function(choose_entry(module.function_names, path))
    text = dict(function.reflection).get(REFLECTION)
    inputs, outputs = parse_io(text) if text else (None, None)
    return Module(context, function, device, inputs, outputs)


def choose_entry(names: Sequence[str], path: str) -> str:
    """The entry point. IREE makes a pair of each function; the one without `$async` returns when it is done."""
    found = [name for name in names if not name.endswith("$async") and not name.startswith("__")]
    if len(found) != 1:
        raise BackendError(f"{path} has {len(found)} entry points, not one: {', '.join(found) or 'none'}")
    return found[0]


def invoke(module: Module, arrays: Sequence[Array], command: str) -> tuple[list[Array], float]:
    """Run the module once. Returns its outputs, and the seconds that it took."""
    from iree import runtime

    arguments = runtime.VmVariantList(len(arrays))
    for array in arrays:
        arguments.push_ref(_to_view(module.device, array))
    results = runtime.VmVariantList(1)
    start = time.perf_counter()
    try:
        module.context.invoke(module.function, arguments, results)
    except Exception as error:
        raise explain(error, command) from error
    elapsed_s = time.perf_counter() - start
    views = [results.get_as_object(i, runtime.HalBufferView) for i in range(len(results))]
    return [_to_array(view) for view in views], elapsed_s


def _to_view(device: Any, array: Array) -> Any:
    from iree import runtime

    element = runtime.dtypes.map_dtype_to_hal_element_type(array.dtype)
    if element is None:
        kind = "strings" if array.dtype.kind in "OUS" else array.dtype.name
        raise BackendError(f"IREE's runtime takes no {kind}", ending=StepEnding.UNSUPPORTED)
    plain = np.asarray(array, order="C")
    if plain.dtype.isbuiltin != 1 or plain.dtype.kind == "b":
        plain = plain.view(f"u{plain.dtype.itemsize}")
    return device.allocator.allocate_buffer_copy(
        memory_type=runtime.MemoryType.DEVICE_LOCAL,
        allowed_usage=runtime.BufferUsage.DEFAULT | runtime.BufferUsage.MAPPING,
        device=device, buffer=plain, element_type=element,
    )  # fmt: skip


def _to_array(view: Any) -> Array:
    """A tensor as an array, read as bytes: the runtime maps no type that numpy does not know."""
    from iree.runtime import HalElementType

    shape = tuple(view.shape)
    if 0 in shape:
        return np.zeros(shape, _find_dtype(view.element_type))
    width = HalElementType.dense_byte_count(view.element_type)
    raw = view.map().asarray([int(np.prod(shape, dtype=np.int64)) * width], np.dtype("u1")).copy()
    return raw.view(_find_dtype(view.element_type)).reshape(shape)


def _find_dtype(element: Any) -> Any:
    """The type of an element. Signless integers count as signed; the module's own list of outputs corrects that."""
    from iree import runtime

    for dtype, known in runtime.dtypes._ML_DTYPE_TO_HAL_ELEMENT_TYPE.items():  # noqa: SLF001 - it has no public name
        if known == element:
            return dtype
    return runtime.HalElementType.map_to_dtype(element)


def explain(error: Exception, command: str) -> BackendError:
    text = str(error)
    ending = StepEnding.MEMORY if "RESOURCE_EXHAUSTED" in text else StepEnding.ERROR
    return BackendError(first_line(text) or type(error).__name__, ending=ending, command=command, stderr=text)


# ---------------------------------------------------------------- by IREE's own programs


def stage_inputs(job: Job, order: Sequence[TensorSpec] | None) -> list[str]:
    """Inputs as IREE's programs take them: types that numpy's files do not know as raw bytes, with their type."""
    refs = {ref.name: ref for ref in load_refs(job.inputs)} if job.inputs else {}
    names = list(refs) if order is None else [spec.name for spec in order if spec.name in refs]
    found = []
    for index, ref in enumerate(refs[name] for name in names):
        if is_numpy_type(ref.dtype):
            found.append(f"@{ref.path}")
        else:
            raw = write_raw(ref, os.path.join(job.folder, "inputs", f"{index}.bin"))
            found.append(f"{render_shape(ref.shape, ref.dtype)}=@{raw.path}")
    return found


def write_profile(job: Job, argv: Sequence[str]) -> tuple[str, ...]:
    """Run once more under IREE's profiler. Returns the paths of its bundle and of a table of the dispatches."""
    folder = job.profile_dir or job.folder
    os.makedirs(folder, exist_ok=True)
    bundle = os.path.join(folder, f"{job.case or 'model'}_iree.ireeprof")
    flags = [f"--device_profiling_mode={PROFILED}", f"--device_profiling_output={bundle}", "--output=+/dev/null"]
    run = run_program([find_program("iree-run-module"), *argv[1:], *flags])
    if run.code:
        return ()  # its output is in the outcome's stderr; a profile is not worth a failed run
    profile = [find_program("iree-profile"), "dispatch", "--dispatch_events", "--format=jsonl", bundle]
    return bundle, _write_dispatches(run_program(profile), os.path.splitext(bundle)[0] + ".csv")


def _write_dispatches(output: CapturedOutput, path: str) -> str:
    rows = [json.loads(line) for line in output.stdout.splitlines() if line.startswith("{") and line.endswith("}")]
    events = [row for row in rows if "duration_ns" in row and "key" in row]
    start_ns = min((row["start_host_time_ns"] for row in events), default=0)
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["name", "op", "kernel", "start_us", "duration_us"])
        for row in events:
            begun_us = (row["start_host_time_ns"] - start_ns) / 1e3
            op = guess_op(row["key"])
            writer.writerow([row["key"], op, "", f"{begun_us:.3f}", f"{row['duration_ns'] / 1e3:.3f}"])
    return path


def guess_op(key: str) -> str:
    """`main$async_dispatch_3_conv_16x32…` → conv: IREE names its dispatches for what is in them."""
    words = key.rpartition("_dispatch_")[2].split("_")
    return words[1] if len(words) > 1 else ""


class IreeBackend(Backend):
    steps = (Step.IMPORT, Step.COMPILE, Step.RUN)

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._device = self.choose("device", ("llvm-cpu", "vmvx"))
        self._driver = self.choose("driver", ("local-sync", "local-task"))
        self._cpu = str(target.options.get("cpu", "generic"))

    def warm_up(self) -> None:
        for name in ("onnx", "iree.compiler.api", "iree.compiler.extras.onnx_importer", "iree.runtime"):
            self.import_library(name)
        warm_up((Step.IMPORT, self._import))  # a compilation, however small, takes half a second: too dear

    def identity(self) -> Mapping[str, str]:
        compiler, runtime = self.import_library("iree.compiler.version"), self.import_library("iree.runtime.version")
        return {
            "iree-compiler": f"{compiler.VERSION} {compiler.REVISIONS.get('IREE', '')}".strip(),
            "iree-runtime": str(runtime.VERSION),
            "onnx": str(self.import_library("onnx").__version__),
            "device": self._device,
            "driver": self._driver,
            "target-cpu": self._cpu,
            "cpu": describe_cpu(),
        }

    def perform(self, job: Job) -> Made:
        work = {Step.IMPORT: self._import, Step.COMPILE: self._compile, Step.RUN: self._run}
        return work[job.step](job)

    def _import(self, job: Job) -> Made:
        target = os.path.join(job.folder, "model.mlir")
        return Made(target, import_model(job.source, target))

    def _compile(self, job: Job) -> Made:
        target = os.path.join(job.folder, "model.vmfb")
        profile = os.path.join(job.profile_dir, f"{job.case or 'model'}_iree_statistics.csv") if job.profile_dir else ""
        if job.profile_dir:
            os.makedirs(job.profile_dir, exist_ok=True)
        compilation = Compilation(job.source, target, self._build_flags(profile), job.ir_dir)
        self.announce(compilation.command)
        compile_module(compilation)
        return Made(target, compilation.command, profiles=(profile,) if profile else ())

    def _build_flags(self, profile: str) -> tuple[str, ...]:
        flags = ["--iree-hal-target-device=local", f"--iree-hal-local-target-device-backends={self._device}"]
        if self._device == "llvm-cpu":
            flags.append(f"--iree-llvmcpu-target-cpu={self._cpu}")
        if profile:
            flags += [
                "--iree-scheduling-dump-statistics-format=csv",
                f"--iree-scheduling-dump-statistics-file={profile}",
            ]
        return (*flags, *self.target.compile_flags)

    def _run(self, job: Job) -> Made:
        if self.target.run_flags:  # they hold for the whole process, which is this target's own
            self.import_library("iree.runtime.flags").parse_flags(*self.target.run_flags)
        module = load_module(job.source, self._driver)
        argv = [name_program("iree-run-module"), f"--module={job.source}", f"--device={self._driver}"]
        argv += [f"--function={module.entry}", *(f"--input={text}" for text in stage_inputs(job, module.inputs))]
        command = shlex.join([*argv, *self.target.run_flags])
        self.announce(command)
        if module.inputs is not None:
            fed = load_inputs(job, module.inputs)
        else:
            fed = load_tensors(job.inputs) if job.inputs else {}
        arrays = list(fed.values())
        turns = [invoke(module, arrays, command) for _ in range(max(1, job.repeats))]
        profiles = write_profile(job, argv) if job.profile_dir else ()
        outputs = module.outputs or ()
        names = [spec.name for spec in outputs] or list(job.outputs) or [str(i) for i in range(len(turns[0][0]))]
        path = write_outputs(job, names, turns[0][0], outputs)
        return Made(path, command, times_s=tuple(elapsed_s for _, elapsed_s in turns), profiles=profiles)
