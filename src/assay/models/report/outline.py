"""A model's cases as a list: the name of each first, so that a line can be taken apart by its first word."""

from __future__ import annotations

from assay.models.values.model import Layer, Outline
from assay.show import formatting

_COLUMNS = 4  # the case, its operators, the nodes' own names, what goes in and comes out


def render_outline(outline: Outline) -> str:
    """In columns; one that no layer has anything for is not there."""
    rows = [_build_row(layer) for layer in outline.layers]
    told = [place for place in range(_COLUMNS) if any(row[place] for row in rows)]
    widths = {place: max(formatting.display_width(row[place]) for row in rows) for place in told}
    lines = ["  ".join(formatting.pad(row[place], widths[place]) for place in told).rstrip() for row in rows]
    return "".join(f"{line}\n" for line in (*lines, formatting.clean(outline.full_name)))


def _build_row(layer: Layer) -> list[str]:
    flow = f"{', '.join(layer.inputs)} → {', '.join(layer.outputs)}"
    return [formatting.clean(text) for text in (layer.name, "+".join(layer.ops), layer.title, flow)]
