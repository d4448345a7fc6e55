"""Models as files: split into layers, converted, outlined."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.example_models import ask, picky, write_model

from assay.errors import InfrastructureError, NotFoundError
from assay.models.commands.pieces import Piece, render_outline, split_model
from assay.models.flow.cases import StepFailedError
from assay.models.graph.tensorfile import load_tensors
from assay.models.values.model import InputChoice, Layer, Outline
from assay.show.formatting import display_width


@pytest.mark.parametrize(
    ("further", "out", "kind", "said"),
    [
        ({"only": ("Ad_1",)}, "out", NotFoundError, "did you mean 'Add_1'"),
        ({"reference": picky(refuses="Add")}, "new", StepFailedError, "the reference picky cannot compute this model"),
        ({}, "file/out", InfrastructureError, "cannot be made"),
    ],
)
def test_what_cannot_be_split_is_named(
    chain: Path, tmp_path: Path, further: dict[str, Any], out: str, kind: type[Exception], said: str
) -> None:
    (tmp_path / "file").write_text("")
    request = replace(ask(chain, tmp_path), **further)
    with pytest.raises(kind, match=said):
        split_model(request, str(tmp_path / out))
    assert not (tmp_path / "out").exists()


def test_each_layer_stands_by_itself_with_its_values_in_every_sample(chain: Path, tmp_path: Path) -> None:
    request = ask(chain, tmp_path, inputs=InputChoice(samples=3), only=("Add_1", "Relu_*", "full_model"))
    pieces = split_model(request, str(tmp_path / "out"))
    assert [(piece.case, piece.samples) for piece in pieces] == [("chain_layer_Add_1", 3), ("chain_layer_Relu_2", 3)]
    add, model = pieces[0], onnx.load(pieces[0].path)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Add"]
    bias = onnx.numpy_helper.to_array(model.graph.initializer[0])
    seen = set()
    for end in ("", "_2", "_3"):
        fed, expected = load_tensors(f"{add.inputs}{end}"), load_tensors(f"{add.expected}{end}")
        assert np.array_equal(fed["product"] + bias, expected["sum"])
        seen.add(fed["product"].tobytes())
    assert len(seen) == 3
    assert not (tmp_path / "out" / "chain_layer_Add_1_2.onnx").exists(), "one model serves all"


def test_a_layer_that_cannot_stand_alone_reports_why(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
    ]
    model = write_model(tmp_path / "seq.onnx", nodes, {"x": [2]}, {"y": [4]})
    pieces = split_model(ask(model, tmp_path), str(tmp_path / "out"))
    assert pieces
    assert all(isinstance(piece, Piece) and piece.problem and not piece.path for piece in pieces)


def layer(number: int, *ops: str, node: str = "", flow: tuple[str, str] = ("a", "b")) -> Layer:
    return Layer(f"m_layer_{ops[0]}_{number}", number, ops, (number,), (flow[0],), (flow[1],), (node,))


def outline(*layers: Layer) -> Outline:
    return Outline("m", "m.onnx", 17, (), (), layers)


def test_columns_are_aligned() -> None:
    text = render_outline(
        outline(
            layer(0, "Relu", node="näme é 漢字"), layer(1, "Conv", "Clip", node="x"), layer(10, "BatchNormalization")
        )
    )
    *rows, full = text.splitlines()
    assert full == "m_full_model"
    assert rows[0].split()[0] == "m_layer_Relu_0"
    places = {display_width(row[: row.index("a → b")]) for row in rows}
    assert len(places) == 1
    assert {row.index(op) for row, op in zip(rows, ("Relu  ", "Conv+Clip", "BatchNormalization  "), strict=True)} == {
        len("m_layer_BatchNormalization_10") + 2
    }


def test_a_column_that_nothing_has_is_not_there_and_no_control_character_is() -> None:
    assert render_outline(outline(layer(0, "Relu"), layer(1, "Add"))) == (
        "m_layer_Relu_0  Relu  a → b\nm_layer_Add_1   Add   a → b\nm_full_model\n"
    )
    assert render_outline(outline()) == "m_full_model\n"
    assert "\x1b" not in render_outline(outline(layer(0, "Relu", node="\x1b[31mred", flow=("a\n", "b"))))
