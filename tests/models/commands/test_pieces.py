"""Models as files: split into layers, converted, outlined."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.example_models import ORT, picky, request_for, write_model

from assay.errors import InfrastructureError, NotFoundError, UsageError
from assay.models.commands.pieces import ConvertRequest, Piece, convert, render_outline, split_model
from assay.models.flow.cases import StepFailedError
from assay.models.graph.graph import build_outline
from assay.models.graph.tensorfile import load_tensors
from assay.models.values.model import InputChoice, Layer, ModelRequest, Outline
from assay.show.console import Console
from assay.show.formatting import display_width


def split_request(model: Path, tmp_path: Path, **further: Any) -> ModelRequest:
    return request_for(model, ORT, store=str(tmp_path / "store"), **further)


# ---------------------------------------------------------------- what cannot be split


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="not an ONNX model"):
        split_model(split_request(tmp_path / "m.onnx", tmp_path), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_case_that_is_not_there_is_named_before_anything_is_written(chain: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="did you mean 'Add_1'"):
        split_model(split_request(chain, tmp_path, only=("Ad_1",)), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written(chain: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match="cannot be made"):
        split_model(split_request(chain, tmp_path), str(tmp_path / "file" / "out"))


def test_a_reference_that_cannot_compute_it(chain: Path, tmp_path: Path) -> None:
    request = replace(split_request(chain, tmp_path), reference=picky(refuses="Add"))
    with pytest.raises(StepFailedError, match="the reference picky cannot compute this model"):
        split_model(request, str(tmp_path / "out"))


# ---------------------------------------------------------------- layers in files


def test_each_layer_stands_by_itself_with_its_values(chain: Path, tmp_path: Path) -> None:
    pieces = split_model(split_request(chain, tmp_path), str(tmp_path / "out"))
    assert [piece.case for piece in pieces] == ["chain_layer_MatMul_0", "chain_layer_Add_1", "chain_layer_Relu_2"]
    add = pieces[1]
    model = onnx.load(add.path)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Add"]
    fed, expected = load_tensors(add.inputs), load_tensors(add.expected)
    bias = onnx.numpy_helper.to_array(model.graph.initializer[0])
    assert np.array_equal(fed["product"] + bias, expected["sum"])


def test_every_sample_is_written(chain: Path, tmp_path: Path) -> None:
    pieces = split_model(split_request(chain, tmp_path, inputs=InputChoice(samples=3)), str(tmp_path / "out"))
    assert [piece.samples for piece in pieces] == [3, 3, 3]
    add = pieces[1]
    bias = onnx.numpy_helper.to_array(onnx.load(add.path).graph.initializer[0])
    seen = []
    for end in ("", "_2", "_3"):
        fed, expected = load_tensors(f"{add.inputs}{end}"), load_tensors(f"{add.expected}{end}")
        assert np.array_equal(fed["product"] + bias, expected["sum"])
        seen.append(fed["product"].tolist())
    assert len({str(each) for each in seen}) == 3
    assert not (tmp_path / "out" / "chain_layer_Add_1_2.onnx").exists(), "one model serves all"


def test_only_some(chain: Path, tmp_path: Path) -> None:
    pieces = split_model(split_request(chain, tmp_path, only=("Relu_*", "full_model")), str(tmp_path / "out"))
    assert [piece.case for piece in pieces] == ["chain_layer_Relu_2"]


def test_a_layer_that_cannot_stand_alone_reports_why(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
    ]
    model = write_model(tmp_path / "seq.onnx", nodes, {"x": [2]}, {"y": [4]})
    pieces = split_model(split_request(model, tmp_path), str(tmp_path / "out"))
    assert pieces
    assert all(isinstance(piece, Piece) and piece.problem and not piece.path for piece in pieces)


# ---------------------------------------------------------------- outlines and opsets


def test_an_outline_reads_no_weight(tmp_path: Path, chain: Path) -> None:
    model = onnx.load(chain)
    onnx.save(model, tmp_path / "e.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    assert build_outline(str(tmp_path / "e.onnx"), groups=(("Conv", "Clip"),)).cases[-1] == "e_full_model"


def test_another_opset_in_one_line(chain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(ConvertRequest(str(chain), 18, str(tmp_path / "new.onnx")), Console())
    assert capsys.readouterr().out == f"opset 17 → 18, 3 nodes: {tmp_path / 'new.onnx'}\n"
    assert onnx.load(tmp_path / "new.onnx").opset_import[0].version == 18


def test_an_opset_that_there_is_not(chain: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        convert(ConvertRequest(str(chain), 999, str(tmp_path / "new.onnx")), Console())
    assert not (tmp_path / "new.onnx").exists()


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


def test_a_column_that_nothing_has_is_not_there() -> None:
    assert render_outline(outline(layer(0, "Relu"), layer(1, "Add"))) == (
        "m_layer_Relu_0  Relu  a → b\nm_layer_Add_1   Add   a → b\nm_full_model\n"
    )


def test_a_model_without_layers_has_itself() -> None:
    assert render_outline(outline()) == "m_full_model\n"


def test_nothing_in_a_name_reaches_the_terminal() -> None:
    assert "\x1b" not in render_outline(outline(layer(0, "Relu", node="\x1b[31mred", flow=("a\n", "b"))))
