"""IREE in this process: import, compile, run, and read a compiled module.

Options: `device` (llvm-cpu, vmvx), `cpu` (generic, host or any that LLVM knows), `driver` (local-sync, local-task).

A process for each compilation would cost one second more. Names, types and shapes of inputs and outputs are written
into the module as reflection, so that an artifact can be run without its model: IREE itself keeps neither names nor
signs of integers.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from assay.errors import InfrastructureError
from assay.models.backends.base import Backend, BackendError, Made, describe_cpu, first_line, name_program
from assay.models.backends.captured_output import begin_output, run_program
from assay.models.backends.onnx_backend import build_input_specs, build_output_specs, find_external
from assay.models.backends.tensors_io import (
    is_numpy_type,
    load_inputs,
    warm_up,
    write_operators,
    write_outputs,
    write_raw,
)
from assay.models.graph.onnx_library import Model, find_opset
from assay.models.graph.tensorfile import load_refs, load_tensors
from assay.models.libraries import np, onnx
from assay.models.values.model import Job, Step, StepEnding, Target
from assay.models.values.tensors import TensorSpec
from assay.system.fast_dataclasses import dataclass

Array = Any  # numpy.ndarray

PROFILED = "host-execution,executable-metadata,queue-events"
REFLECTION = "assay.io"
LOWEST_OPSET = 17  # for a lower opset the hint of an error is to convert the model to this one
_TEXT_BYTES = 32 * 1024 * 1024  # larger models are written as bytecode: as text, weights take twice their size
_ERROR = re.compile(r"error: (?P<text>.*)")
_LACKING = re.compile(
    r"failed to legalize (?:unresolved materialization|operation 'torch\.operator').*?name = \"onnx\.(?P<a>\w+)\""
    r"|No Op registered for (?P<b>[\w.]+)"
    r"|onnx\.(?P<c>\w+)' op .*?(?:unsupported|not supported)",
    re.DOTALL,
)
_OPSET = re.compile(r"torch\.onnx_meta\.opset_version = (\d+)")


# ---------------------------------------------------------------- ONNX → MLIR


def import_model(source: str, target: str) -> str:
    """Write the model as MLIR. Returns the equivalent shell command. Raises BackendError."""
    command = shlex.join([name_program("iree-import-onnx"), source, "-o", target])
    find_external(source)
    model = _load_inferred(source, os.path.dirname(target), command)
    try:
        _write_module(model, target)
    except Exception as error:  # the importer raises exceptions of many undocumented types
        raise explain(str(error) or type(error).__name__, find_opset(model), command) from error
    return command


def _load_inferred(source: str, folder: str, command: str) -> Model:
    """Return the model with the shapes of all intermediate tensors, on which the importer relies."""
    try:
        model = onnx.load(source)
    except Exception as error:
        raise BackendError(f"{source} is not an ONNX model: {error}", command=command) from error
    model.graph.name = model.graph.name or "main_graph"  # the imported function gets this name
    try:
        onnx.checker.check_model(model)
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except ValueError:  # a model of more than two gigabytes, protobuf's limit: use files
        aside = os.path.join(folder, "inferred.onnx")
    except Exception as error:
        raise explain(str(error), find_opset(model), command) from error
    try:
        onnx.shape_inference.infer_shapes_path(source, aside, data_prop=True)
        model = onnx.load(aside, load_external_data=False)
    finally:
        if os.path.exists(aside):
            os.remove(aside)
    onnx.load_external_data_for_model(model, os.path.dirname(source))
    return model


def _write_module(model: Model, target: str) -> None:
    from iree.compiler import ir
    from iree.compiler.extras import onnx_importer as importer

    context = ir.Context()
    info = importer.ModelInfo(model)
    module = info.create_module(context=context).operation
    node_importer = importer.NodeImporter.define_function(info.main_graph, module)
    node_importer.import_all()
    with context:
        entry = module.regions[0].blocks[0].operations[0]
        text = ir.StringAttr.get(render_io(build_input_specs(model), build_output_specs(model)))
        entry.attributes["iree.reflection"] = ir.DictAttr.get({REFLECTION: text})
    module.verify()
    with open(target, "wb") as stream:
        if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > _TEXT_BYTES:
            module.write_bytecode(stream)
        else:
            stream.write(module.get_asm(assume_verified=True).encode())


def render_io(inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]) -> str:
    rows = {"inputs": inputs, "outputs": outputs}
    return json.dumps({kind: [[spec.name, spec.dtype, spec.shape] for spec in rows[kind]] for kind in rows})


def parse_io(text: str) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    content = json.loads(text)
    inputs, outputs = (
        tuple(TensorSpec(name, dtype, None if shape is None else tuple(shape)) for name, dtype, shape in content[kind])
        for kind in ("inputs", "outputs")
    )
    return inputs, outputs


# ---------------------------------------------------------------- MLIR → module


@dataclass(frozen=True, slots=True)
class Compilation:
    source: str
    target: str
    flags: tuple[str, ...]
    ir_dir: str | None = None

    @property
    def command(self) -> str:
        return shlex.join([name_program("iree-compile"), *self.arguments])

    @property
    def arguments(self) -> list[str]:
        found = [self.source, "-o", self.target, *self.flags]
        if self.ir_dir:
            found += ["--mlir-print-ir-after-all", f"--mlir-print-ir-tree-dir={self.ir_dir}"]
            found += ["--mlir-elide-elementsattrs-if-larger=50"]
        return found


def compile_module(compilation: Compilation) -> None:
    """Compile in this process, or by IREE's program if it dumps IR, or if only the program has one of the flags."""
    from iree.compiler import api

    session = api.Session()
    try:
        session.set_flags(*compilation.flags)
    except ValueError as error:
        if "option not found" not in str(error):
            raise BackendError(" ".join(str(error).split()), command=compilation.command) from error
        return _compile_by_program(compilation)
    if compilation.ir_dir:
        return _compile_by_program(compilation)
    read_stderr = begin_output(2)
    try:
        is_done = _invoke(api, session, compilation)
    except ValueError as error:
        raise BackendError(" ".join(str(error).split()), command=compilation.command) from error
    if not is_done:
        raise explain(read_stderr(), _load_opset(compilation.source), compilation.command)
    return None


def _invoke(api: Any, session: Any, compilation: Compilation) -> bool:
    """Run the compiler. Returns False if it has reported an error on stderr."""
    invocation = session.invocation()
    try:
        invocation.enable_console_diagnostics()
        source = api.Source.open_file(session, compilation.source)
        if not invocation.parse_source(source) or not invocation.execute():
            return False
        output = api.Output.open_file(compilation.target)
        invocation.output_vm_bytecode(output)
        output.keep()
        output.close()
        return True
    finally:
        invocation.close()


def _compile_by_program(compilation: Compilation) -> None:
    result = run_program([find_program("iree-compile"), *compilation.arguments])
    if result.code:
        raise explain(result.stderr, _load_opset(compilation.source), compilation.command)


def find_program(name: str) -> str:
    """Return the path of a program that comes with IREE's packages."""
    package = "iree.compiler._mlir_libs" if name == "iree-compile" else "iree._runtime_libs"
    path = os.path.join(import_module(package).__path__[0], name)
    if not os.path.isfile(path):
        raise InfrastructureError(f"IREE's packages are here without {name}: {path} is missing")
    return path


def explain(text: str, opset: int, command: str) -> BackendError:
    """Return the first error in IREE's output, or the missing operator, with the opset if that may be the reason."""
    lacking = _LACKING.search(text)
    is_old = 0 < opset < LOWEST_OPSET
    of_opset = f" (the model uses opset {opset})" if is_old or lacking else ""
    hint = f"convert the model: assay model convert MODEL --opset {LOWEST_OPSET}" if is_old else ""
    if lacking:
        operator = lacking["a"] or lacking["b"] or lacking["c"]
        message = f"IREE has no implementation of {operator} for these types and attributes"
        ending = StepEnding.UNSUPPORTED
    else:
        found = _ERROR.search(text)
        message = found["text"].strip() if found else first_line(text)
        message, ending = message or "IREE gave no reason", StepEnding.ERROR
    return BackendError(f"{message}{of_opset}", ending=ending, command=command, stderr=text, hint=hint)


def _load_opset(path: str) -> int:
    """Return the opset that the importer records in the MLIR; 0 for bytecode, or another importer."""
    with open(path, "rb") as stream:
        found = _OPSET.search(stream.read(65536).decode("utf-8", "replace"))
    return int(found[1]) if found else 0


def name_mlir_type(dtype: str) -> str:
    """Convert numpy's or ml_dtypes' name to MLIR's, as IREE's programs take it: float32 → f32."""
    if dtype == "bool":
        return "i1"
    if dtype == "bfloat16":
        return "bf16"
    if dtype.startswith("float8_"):
        return "f8" + dtype.removeprefix("float8_").upper()
    match = re.fullmatch(r"(u?int|float|complex)(\d+)", dtype)
    if match is None:
        return dtype
    letter = {"int": "i", "uint": "i", "float": "f"}.get(match[1])
    return f"{letter}{match[2]}" if letter else f"complex<f{int(match[2]) // 2}>"


def render_shape(shape: Sequence[int], dtype: str) -> str:
    """Render a shape and a type as IREE's programs take them: 1x3x32xf32."""
    return "x".join([*(str(dim) for dim in shape), name_mlir_type(dtype)])


# ---------------------------------------------------------------- running a module


@dataclass(frozen=True, slots=True)
class Module:
    """A loaded module with its entry point."""

    context: Any
    function: Any
    device: Any
    inputs: tuple[TensorSpec, ...] | None  # None: the module was not imported by us, and does not state its inputs
    outputs: tuple[TensorSpec, ...] | None


def load_module(path: str, driver: str) -> Module:
    from iree import runtime

    try:
        instance, device = runtime.VmInstance(), runtime.get_device(driver)
        module = runtime.VmModule.mmap(instance, path)
        context = runtime.VmContext(instance=instance, modules=[runtime.create_hal_module(instance, device), module])
    except Exception as error:
        raise explain_run(
            error, shlex.join([name_program("iree-run-module"), f"--module={path}", f"--device={driver}"])
        ) from error
    function = module.lookup_function(choose_entry(module.function_names, path))
    text = dict(function.reflection).get(REFLECTION)
    inputs, outputs = parse_io(text) if text else (None, None)
    return Module(context, function, device, inputs, outputs)


def choose_entry(names: Sequence[str], path: str) -> str:
    """Return the entry point. IREE exports each function twice: the one without `$async` is synchronous."""
    found = [name for name in names if not name.endswith("$async") and not name.startswith("__")]
    if len(found) != 1:
        raise BackendError(f"{path} has {len(found)} entry points, not one: {', '.join(found) or 'none'}")
    return found[0]


def invoke(module: Module, arrays: Sequence[Array], command: str) -> tuple[list[Array], float]:
    """Run the module once. Returns its outputs and the seconds that the run took."""
    from iree import runtime

    arguments = runtime.VmVariantList(len(arrays))
    for array in arrays:
        arguments.push_ref(_to_view(module.device, array))
    results = runtime.VmVariantList(1)
    start = time.perf_counter()
    try:
        module.context.invoke(module.function, arguments, results)
    except Exception as error:
        raise explain_run(error, command) from error
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
    """Convert a tensor to an array by its bytes: the runtime cannot convert types that numpy does not know."""
    from iree.runtime import HalElementType

    shape = tuple(view.shape)
    if 0 in shape:
        return np.zeros(shape, _find_dtype(view.element_type))
    width = HalElementType.dense_byte_count(view.element_type)
    raw = view.map().asarray([int(np.prod(shape, dtype=np.int64)) * width], np.dtype("u1")).copy()
    return raw.view(_find_dtype(view.element_type)).reshape(shape)


def _find_dtype(element: Any) -> Any:
    """Return an element's type. Signless integers count as signed; the module's list of outputs has the sign."""
    from iree import runtime

    for dtype, known in runtime.dtypes._ML_DTYPE_TO_HAL_ELEMENT_TYPE.items():  # noqa: SLF001 - it has no public name
        if known == element:
            return dtype
    return runtime.HalElementType.map_to_dtype(element)


def explain_run(error: Exception, command: str) -> BackendError:
    text = str(error)
    ending = StepEnding.MEMORY if "RESOURCE_EXHAUSTED" in text else StepEnding.ERROR
    return BackendError(first_line(text) or type(error).__name__, ending=ending, command=command, stderr=text)


def stage_inputs(job: Job, order: Sequence[TensorSpec] | None) -> list[str]:
    """Return inputs as IREE's programs take them; types that numpy's files do not support become raw bytes."""
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
    """Run a module under IREE's profiler. Returns the paths of the profile and of a table of the dispatches."""
    bundle = os.path.join(job.profile_dir or job.folder, f"{job.case or 'model'}_iree.ireeprof")
    flags = [f"--device_profiling_mode={PROFILED}", f"--device_profiling_output={bundle}", "--output=+/dev/null"]
    run = run_program([find_program("iree-run-module"), *argv[1:], *flags])
    if run.code:
        return ()  # the error is in the outcome's stderr; a missing profile must not fail a run
    profile = [find_program("iree-profile"), "dispatch", "--dispatch_events", "--format=jsonl", bundle]
    lines = run_program(profile).stdout.splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    events = [row for row in rows if "duration_ns" in row and "key" in row]
    start_ns = min((row["start_host_time_ns"] for row in events), default=0)
    times = [((row["start_host_time_ns"] - start_ns) / 1e3, row["duration_ns"] / 1e3) for row in events]
    table = [(row["key"], guess_op(row["key"]), "", *time_us) for row, time_us in zip(events, times, strict=True)]
    return bundle, write_operators(os.path.splitext(bundle)[0] + ".csv", table)


def guess_op(key: str) -> str:
    """Return the op that a dispatch is named for: `main$async_dispatch_3_conv_16x32…` → conv."""
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
        warm_up((Step.IMPORT, self._import))  # import only: even a small compilation takes half a second

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
        if self.target.run_flags:  # the flags hold for the whole process, which has only this target
            self.import_library("iree.runtime.flags").parse_flags(*self.target.run_flags)
        module = load_module(job.source, self._driver)
        argv = [name_program("iree-run-module"), f"--module={job.source}", f"--device={self._driver}"]
        argv += [f"--function={module.function.name}"]
        argv += [f"--input={text}" for text in stage_inputs(job, module.inputs)]
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
