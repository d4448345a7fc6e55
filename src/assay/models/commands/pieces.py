"""`assay model split`, `layers` and `convert`: write layers as models, list the cases, and change the opset."""

from __future__ import annotations

import os
import shlex

from assay.errors import ExitCode, UsageError
from assay.models.flow.artifact_builder import ArtifactBuilder
from assay.models.flow.cases import Cases, ModelCase, Tensors
from assay.models.flow.options import build_split_request, choose_groups
from assay.models.flow.step_files import make_folder
from assay.models.graph.convert import convert_opset
from assay.models.graph.graph import build_outline, load_model, write_model
from assay.models.graph.onnx_library import find_opset
from assay.models.graph.tensorfile import write_tensors
from assay.models.store.artifacts import ArtifactStore
from assay.models.values.flags import InputFlags, ModelFlags, group_option, only_option
from assay.models.values.model import ModelRequest, Outline, is_torch_model
from assay.show import formatting
from assay.show.console import Console
from assay.system.fast_dataclasses import asdict, dataclass
from assay.values.options import Request, argument, json_option, option
from assay.values.plain import build_plain


def _refuse_torch(model: str) -> None:
    if is_torch_model(model):
        hint = f"`assay model check {shlex.quote(model)} --target torch-bf16 --all` lists the calls of a torch module"
        raise UsageError(f"{model} is a torch module, not an ONNX model", hint)


class SplitRequest(InputFlags):
    only: tuple[str, ...] = only_option()
    output: str | None = option("-o", "--output", metavar="DIR", help="Folder of the layers.  [default: MODEL_layers]")
    as_json: bool = json_option("JSON.")


@dataclass(frozen=True, slots=True)
class Piece:
    """One layer in files: its model, its inputs inside the whole model, and the reference's outputs for these inputs.
    File names of further samples end in `_2`, `_3`, …; only models that depend on a sample's values are repeated."""

    case: str
    path: str = ""
    inputs: str = ""
    expected: str = ""
    problem: str = ""
    samples: int = 0


def split(request: SplitRequest, console: Console) -> int:
    """Write each layer of MODEL as a model of its own, with its inputs and the outputs of the reference."""
    _refuse_torch(request.model)
    flags = ModelFlags(**{name: getattr(request, name) for name in InputFlags.OPTIONS}, only=request.only)
    folder = request.output or f"{os.path.splitext(request.model)[0]}_layers"
    pieces = split_model(build_split_request(flags), os.path.abspath(folder))
    if request.as_json:
        console.write_json([asdict(piece) for piece in pieces])
        return int(ExitCode.OK)
    for piece in pieces:
        console.print(f"{piece.case}: {piece.problem}" if piece.problem else os.path.relpath(piece.path))
    left = sum(bool(piece.problem) for piece in pieces)
    written = f"{formatting.render_count(len(pieces) - left, 'layer')} in {folder}"
    console.error(written + (f", {left} cannot be computed alone" if left else ""))
    return int(ExitCode.OK)


def split_model(request: ModelRequest, folder: str) -> list[Piece]:
    """Write `<folder>/<case>.onnx`, `<case>_inputs/` and `<case>_expected/`; each sample is one reference run."""
    with ArtifactBuilder(ArtifactStore(request.store), request.limits, recompute=request.recompute) as builder:
        cases = Cases(request, builder)
        chosen = [name for name in cases.choose(request.only) if name != cases.outline.full_name]
        make_folder(folder)
        return [_write_piece(case, os.path.join(folder, case.name)) for case in cases.iterate(chosen)]


def _write_piece(case: ModelCase, base: str) -> Piece:
    if case.problem:
        return Piece(case.name, problem=case.problem)
    for number, trial in enumerate(case.trials, start=1):
        end = f"_{number}" if number > 1 else ""
        if number == 1 or trial.model.sha != case.trials[0].model.sha:
            write_model(load_model(trial.model.path), f"{base}{end}.onnx")
        write_tensors(f"{base}_inputs{end}", dict(Tensors(trial.inputs.path)))
        write_tensors(f"{base}_expected{end}", dict(trial.expected))
    return Piece(case.name, f"{base}.onnx", f"{base}_inputs", f"{base}_expected", samples=len(case.trials))


class LayersRequest(Request):
    model: str = argument()
    groups: tuple[str, ...] = group_option()
    as_json: bool = json_option("JSON.")


def layers(request: LayersRequest, console: Console) -> int:
    """List the cases of MODEL: what `check` would compute. Nothing is executed, no weight is read."""
    _refuse_torch(request.model)
    outline = build_outline(request.model, groups=choose_groups(request.groups))
    if request.as_json:
        console.write_json(build_plain(outline))
    else:
        console.write(render_outline(outline))
    return int(ExitCode.OK)


def render_outline(outline: Outline) -> str:
    """Render a line for each layer, without empty columns: its name, operators, names of nodes, inputs and outputs."""
    rows = []
    for layer in outline.layers:
        flow = f"{', '.join(layer.inputs)} → {', '.join(layer.outputs)}"
        rows.append([formatting.clean(text) for text in (layer.name, "+".join(layer.ops), layer.title, flow)])
    columns = [column for column in zip(*rows, strict=True) if any(column)]
    widths = [max(map(formatting.display_width, column)) for column in columns]
    lines = ["  ".join(map(formatting.pad, row, widths)).rstrip() for row in zip(*columns, strict=True)]
    return "".join(f"{line}\n" for line in (*lines, formatting.clean(outline.full_name)))


class ConvertRequest(Request):
    model: str = argument()
    opset: int = option("--opset", type=int, minimum=1, required=True, metavar="N", help="Opset of the new model.")
    output: str | None = option("-o", "--output", metavar="FILE", help="File to write.  [default: MODEL_opsetN.onnx]")


def convert(request: ConvertRequest, console: Console) -> int:
    """Write MODEL with another opset."""
    _refuse_torch(request.model)
    target = request.output or f"{os.path.splitext(request.model)[0]}_opset{request.opset}.onnx"
    if os.path.realpath(target) == os.path.realpath(request.model):
        raise UsageError(f"{target} would overwrite the model itself", "name another file with -o")
    before, after = convert_opset(request.model, target, request.opset)
    nodes = f"{len(after.graph.node)} nodes: {os.path.abspath(target)}"
    console.print(f"opset {find_opset(before)} → {find_opset(after)}, {nodes}")
    return int(ExitCode.OK)
