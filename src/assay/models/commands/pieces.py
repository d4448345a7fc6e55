"""`assay model split`, `layers` and `convert`: models as files."""

from __future__ import annotations

import os

from assay.errors import ExitCode, UsageError
from assay.models.values.flags import InputFlags, ModelFlags, group_option, only_option
from assay.show.console import Console
from assay.values.options import Request, argument, json_option, option


class SplitRequest(InputFlags):
    only: tuple[str, ...] = only_option()
    output: str | None = option("-o", "--output", metavar="DIR", help="Where they go.  [default: MODEL_layers]")
    as_json: bool = json_option("JSON.")


def split(request: SplitRequest, console: Console) -> int:
    """Write each layer of MODEL as a model of its own, with its inputs and the outputs of the reference."""
    from dataclasses import asdict

    from assay.models.flow.options import build_split_request
    from assay.models.flow.pieces import split_model

    flags = ModelFlags(**{name: getattr(request, name) for name in InputFlags.OPTIONS}, only=request.only)
    folder = request.output or f"{os.path.splitext(request.model)[0]}_layers"
    pieces = split_model(build_split_request(flags), os.path.abspath(folder))
    if request.as_json:
        console.write_json([asdict(piece) for piece in pieces])
        return int(ExitCode.OK)
    for piece in pieces:
        console.print(f"{piece.case}: {piece.problem}" if piece.problem else os.path.relpath(piece.path))
    left = sum(bool(piece.problem) for piece in pieces)
    console.error(f"{len(pieces) - left} layers in {folder}" + (f", {left} do not work alone" if left else ""))
    return int(ExitCode.OK)


class LayersRequest(Request):
    model: str = argument()
    groups: tuple[str, ...] = group_option()
    as_json: bool = json_option("JSON.")


def layers(request: LayersRequest, console: Console) -> int:
    """List the cases of MODEL: what `check` would compute. Nothing is executed, no weight is read."""
    from assay.models.flow.options import choose_groups
    from assay.models.flow.pieces import load_outline, render_outline
    from assay.values.plain import build_plain

    outline = load_outline(request.model, choose_groups(request.groups))
    if request.as_json:
        console.write_json(build_plain(outline))
        return int(ExitCode.OK)
    console.write(render_outline(outline))
    return int(ExitCode.OK)


class ConvertRequest(Request):
    model: str = argument()
    opset: int = option("--opset", type=int, minimum=1, required=True, metavar="N", help="The opset that is wanted.")
    output: str | None = option("-o", "--output", metavar="FILE", help="Where it goes.  [default: MODEL_opsetN.onnx]")


def convert(request: ConvertRequest, console: Console) -> int:
    """Write MODEL with another opset."""
    from assay.models.flow.pieces import convert_model

    target = request.output or f"{os.path.splitext(request.model)[0]}_opset{request.opset}.onnx"
    if os.path.realpath(target) == os.path.realpath(request.model):
        raise UsageError(f"{target} would overwrite the model itself", "name another file with -o")
    console.print(convert_model(request.model, target, request.opset))
    return int(ExitCode.OK)
