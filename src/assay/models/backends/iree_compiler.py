"""IREE's compiler in this process: ONNX → MLIR → a module. A process for each compilation costs a second more.

What goes in and comes out (names, types, shapes) is written into the module as reflection, so that an artifact alone is
enough to run it: IREE itself keeps neither names nor signs of integers.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from assay.errors import InfrastructureError
from assay.models.backends.base import BackendError, first_line, name_program
from assay.models.backends.captured_output import begin_output, run_program
from assay.models.backends.onnx_backend import build_input_specs, build_output_specs, find_external
from assay.models.graph.onnx_library import Model, find_opset
from assay.models.libraries import onnx
from assay.models.values.model import StepEnding
from assay.models.values.tensors import TensorSpec
from assay.system.fast_dataclasses import dataclass

REFLECTION = "assay.io"
LOWEST_OPSET = 17  # below it, an error may well be the opset's: what to convert to
_TEXT_BYTES = 32 * 1024 * 1024  # beyond it MLIR is written as bytecode: as text, weights take twice their size
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
    """Write the model as MLIR. Returns the command that does so in a shell. Raises BackendError."""
    command = shlex.join([name_program("iree-import-onnx"), source, "-o", target])
    find_external(source)
    model = _load_inferred(source, os.path.dirname(target), command)
    try:
        _write_module(model, target)
    except Exception as error:  # of their importer: many kinds, none of them promised
        raise explain(str(error) or type(error).__name__, find_opset(model), command) from error
    return command


def _load_inferred(source: str, folder: str, command: str) -> Model:
    """The model with the shapes of all intermediate tensors: the importer relies on them."""
    try:
        model = onnx.load(source)
    except Exception as error:
        raise BackendError(f"{source} is not an ONNX model: {error}", command=command) from error
    model.graph.name = model.graph.name or "main_graph"  # it becomes the function's
    try:
        onnx.checker.check_model(model)
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except ValueError:  # beyond protobuf's two gigabytes only files will do
        return _infer_by_file(onnx, source, folder)
    except Exception as error:
        raise explain(str(error), find_opset(model), command) from error


def _infer_by_file(onnx: Any, source: str, folder: str) -> Model:
    aside = os.path.join(folder, "inferred.onnx")
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
    """Compile in this process, or by IREE's program where a flag is one that only the program has."""
    from iree.compiler import api

    session = api.Session()
    try:
        session.set_flags(*compilation.flags)
    except ValueError as error:
        if "option not found" not in str(error):
            raise BackendError(" ".join(str(error).split()), command=compilation.command) from error
        return _compile_by_program(compilation)
    if compilation.ir_dir:
        os.makedirs(compilation.ir_dir, exist_ok=True)
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
    """Run the compiler. Returns False where it has reported an error on stderr."""
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
    """A program that comes with IREE's packages."""
    package = "iree.compiler._mlir_libs" if name == "iree-compile" else "iree._runtime_libs"
    path = os.path.join(import_module(package).__path__[0], name)
    if not os.path.isfile(path):
        raise InfrastructureError(f"IREE's packages are here without {name}: {path} is missing")
    return path


# ---------------------------------------------------------------- what went wrong


def explain(text: str, opset: int, command: str) -> BackendError:
    """The first error in IREE's output, or the operator that it lacks, with the opset where that may be the reason."""
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
    """The opset that the importer notes in the MLIR; 0 where it is bytecode, or of another importer."""
    with open(path, "rb") as stream:
        found = _OPSET.search(stream.read(65536).decode("utf-8", "replace"))
    return int(found[1]) if found else 0


def name_mlir_type(dtype: str) -> str:
    """numpy's or ml_dtypes' name → MLIR's, as IREE's programs take it: float32 → f32."""
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
    """A shape and a type as IREE's programs take them: 1x3x32xf32."""
    return "x".join([*(str(dim) for dim in shape), name_mlir_type(dtype)])
