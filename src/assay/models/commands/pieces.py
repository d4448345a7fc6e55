"""`assay model split`, `layers` and `convert`."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from assay.errors import ExitCode, UsageError
from assay.models.commands.options import INPUT_OPTIONS, ONLY, with_options
from assay.show.formatting import clean


@click.command()
@click.argument("model")
@click.option("-o", "--output", metavar="DIR", help="Where they go.  [default: MODEL_layers]")
@with_options(INPUT_OPTIONS, [ONLY])
@click.option("--json", "as_json", is_flag=True, help="JSON.")
def split(**given: Any) -> int:
    """Write each layer of MODEL as a model of its own, with its inputs and what the reference makes of them."""
    from dataclasses import asdict

    from assay.models.commands.options import build_flags
    from assay.models.flow.options import build_split_request
    from assay.models.flow.pieces import split_model
    from assay.show.json_text import render_facts

    folder = given.pop("output") or f"{os.path.splitext(given['model'])[0]}_layers"
    pieces = split_model(build_split_request(build_flags(given)), os.path.abspath(folder))
    if given["as_json"]:
        sys.stdout.write(render_facts([asdict(piece) for piece in pieces]))
        return int(ExitCode.OK)
    for piece in pieces:
        print(clean(f"{piece.case}: {piece.problem}" if piece.problem else os.path.relpath(piece.path)))
    left = sum(bool(piece.problem) for piece in pieces)
    print(
        f"{len(pieces) - left} layers in {folder}" + (f", {left} cannot stand alone" if left else ""), file=sys.stderr
    )
    return int(ExitCode.OK)


@click.command()
@click.argument("model")
@click.option("--group", "groups", multiple=True, metavar="OP,OP", help="Stay together.  [default: Conv,Clip]")
@click.option("--json", "as_json", is_flag=True, help="JSON.")
def layers(model: str, groups: tuple[str, ...], as_json: bool) -> int:
    """List the cases of MODEL: what `check` would compute. Nothing is executed, no weight is read."""
    from assay.models.flow.options import choose_groups
    from assay.models.flow.pieces import load_outline, render_outline
    from assay.show.json_text import render_facts
    from assay.values.plain import build_plain

    outline = load_outline(model, choose_groups(groups))
    if as_json:
        sys.stdout.write(render_facts(build_plain(outline)))
        return int(ExitCode.OK)
    sys.stdout.write(render_outline(outline))
    return int(ExitCode.OK)


@click.command()
@click.argument("model")
@click.option("--opset", type=click.IntRange(min=1), required=True, metavar="N", help="The opset that is wanted.")
@click.option("-o", "--output", metavar="FILE", help="Where it goes.  [default: MODEL_opsetN.onnx]")
def convert(model: str, opset: int, output: str | None) -> int:
    """Write MODEL with another opset."""
    from assay.models.flow.pieces import convert_model

    target = output or f"{os.path.splitext(model)[0]}_opset{opset}.onnx"
    if os.path.realpath(target) == os.path.realpath(model):
        raise UsageError(f"{target} would overwrite the model itself", "name another file with -o")
    print(convert_model(model, target, opset))
    return int(ExitCode.OK)
