"""A document as one HTML page: no script, nothing from elsewhere; light or dark as the reader's system is.

`page/report.html` is the template and `page/report.css` the style sheet, which becomes part of the page. Every text is
cleaned and escaped by the environment; only the drawings of `show/charts.py`, which escape their own, are markup.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from assay.show import charts, formatting, heat_map
from assay.show.table import build_texts
from assay.values.document import (
    Bars,
    Block,
    Chart,
    Document,
    HeatMap,
    Span,
    TableBlock,
    build_plain,
    build_spans,
    choose_blocks,
)

_FOLDER = os.path.join(os.path.dirname(__file__), "page")


def render_html(document: Document) -> str:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(parts=build_parts, spans=build_spans, plain=build_plain, rows=build_rows, draw=_draw)
    with open(os.path.join(_FOLDER, "report.css"), encoding="utf-8") as file:
        style = Markup(file.read())  # noqa: S704 (our own file)
    return environment.get_template("report.html").render(document=document, style=style) + "\n"


def _clean(value: Any) -> Any:
    """What a template puts out; lines stay lines. Markup is ours."""
    return value if isinstance(value, Markup) else formatting.clean_lines(str(value))


def _draw(block: Chart | Bars | HeatMap) -> Markup:
    if isinstance(block, Chart):
        return Markup(charts.draw(block))  # noqa: S704 (each of them escapes its texts)
    return Markup(heat_map.draw_bars(block) if isinstance(block, Bars) else heat_map.draw_heat_map(block))  # noqa: S704


def build_parts(blocks: Sequence[Block]) -> list[tuple[str, Any]]:
    """The name of each block's type with the block; charts that follow each other are one part."""
    named = [(type(block).__name__, block) for block in choose_blocks(blocks, "html")]
    parts: list[tuple[str, Any]] = []
    for name, group in groupby(named, key=lambda pair: pair[0]):
        found = [block for _, block in group]
        parts += [("Charts", found)] if name == "Chart" else [(name, block) for block in found]
    return parts


def build_rows(block: TableBlock) -> list[dict[str, Any]]:
    """Each row with its cells as spans, and what comes before and below it."""
    columns, rows = block.table.columns, block.table.rows
    texts = [build_texts(column, [row[index] for row in rows]) for index, column in enumerate(columns)]
    return [
        {
            "cells": [
                (column, _build_cell(row[at], texts[at][index].strip(), column.kind == "state"))
                for at, column in enumerate(columns)
            ],
            "notes": block.notes[index] if block.notes else (),
            "role": block.roles[index] if block.roles else "",
            "before": (block.breaks or {}).get(index, ""),
        }
        for index, row in enumerate(rows)
    ]


def _build_cell(value: Any, text: str, is_state: bool) -> Span:
    if isinstance(value, Span):
        return value
    return Span(text, text.split(maxsplit=1)[0] if is_state and value is not None else "")
