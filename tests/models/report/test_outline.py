"""A model's cases as a list."""

from __future__ import annotations

from assay.models.report.outline import render_outline
from assay.models.values.model import Layer, Outline
from assay.show.formatting import display_width


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


def test_a_column_that_nobody_has_is_not_there() -> None:
    assert render_outline(outline(layer(0, "Relu"), layer(1, "Add"))) == (
        "m_layer_Relu_0  Relu  a → b\nm_layer_Add_1   Add   a → b\nm_full_model\n"
    )


def test_a_model_without_layers_has_itself() -> None:
    assert render_outline(outline()) == "m_full_model\n"


def test_nothing_in_a_name_reaches_the_terminal() -> None:
    assert "\x1b" not in render_outline(outline(layer(0, "Relu", node="\x1b[31mred", flow=("a\n", "b"))))
