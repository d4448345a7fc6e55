"""`assay model split` and `convert`: models as files, for a person to look at or to pass on."""

from __future__ import annotations

import os
from dataclasses import dataclass

from assay.errors import InfrastructureError
from assay.models.flow.artifact_builder import ArtifactBuilder
from assay.models.flow.cases import Case, Cases, Tensors
from assay.models.flow.check import build_source
from assay.models.graph.convert import convert_opset
from assay.models.graph.graph import build_outline, load_model, write_model
from assay.models.graph.tensorfile import write_tensors
from assay.models.store.artifacts import ArtifactStore
from assay.models.values.model import Layer, ModelRequest, Outline
from assay.show import formatting


@dataclass(frozen=True, slots=True)
class Piece:
    """One layer in files: its model, the inputs that it sees in the whole, and what the reference makes of them.

    Of further samples the names end in `_2`, `_3`, …; a model only where the values of a sample make another of it.
    """

    case: str
    path: str = ""
    inputs: str = ""
    expected: str = ""
    problem: str = ""
    samples: int = 0


def load_outline(path: str, groups: tuple[tuple[str, ...], ...]) -> Outline:
    return build_outline(path, groups=groups)


def split_model(request: ModelRequest, folder: str) -> list[Piece]:
    """`<folder>/<case>.onnx` with `<case>_inputs/` and `<case>_expected/`; the reference runs once for each sample."""
    pieces = []
    with ArtifactBuilder(ArtifactStore(request.store), request.limits, recompute=request.recompute) as builder:
        cases = Cases(build_source(request), builder)
        chosen = [name for name in cases.choose(request.only) if name != cases.outline.full_name]
        _make(folder)
        for case in cases.iterate(chosen):
            if case.problem:
                pieces.append(Piece(case.name, problem=case.problem))
                continue
            pieces.append(_write_piece(case, os.path.join(folder, case.name)))
    return pieces


def _write_piece(case: Case, base: str) -> Piece:
    for number, trial in enumerate(case.trials, start=1):
        end = f"_{number}" if number > 1 else ""
        if number == 1 or trial.model.sha != case.trials[0].model.sha:
            write_model(load_model(trial.model.path), f"{base}{end}.onnx")
        write_tensors(f"{base}_inputs{end}", dict(Tensors(trial.inputs.path)))
        write_tensors(f"{base}_expected{end}", dict(trial.expected))
    return Piece(case.name, f"{base}.onnx", f"{base}_inputs", f"{base}_expected", samples=len(case.trials))


def _make(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise InfrastructureError(f"the folder {folder} cannot be made: {error.strerror}") from error


def convert_model(path: str, target: str, opset: int) -> str:
    """What was done, in one line."""
    done = convert_opset(path, target, opset)
    return f"opset {done.before} → {done.after}, {done.nodes} nodes: {done.path}"


_COLUMNS = 4  # the case, its operators, the nodes' own names, what goes in and comes out


def render_outline(outline: Outline) -> str:
    """In columns; one that no layer has anything for is not there."""
    rows = [_build_row(layer) for layer in outline.layers]
    shown = [column for column in range(_COLUMNS) if any(row[column] for row in rows)]
    widths = {column: max(formatting.display_width(row[column]) for row in rows) for column in shown}
    lines = ["  ".join(formatting.pad(row[column], widths[column]) for column in shown).rstrip() for row in rows]
    return "".join(f"{line}\n" for line in (*lines, formatting.clean(outline.full_name)))


def _build_row(layer: Layer) -> list[str]:
    flow = f"{', '.join(layer.inputs)} → {', '.join(layer.outputs)}"
    return [formatting.clean(text) for text in (layer.name, "+".join(layer.ops), layer.title, flow)]
