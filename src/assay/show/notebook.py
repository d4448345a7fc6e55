"""Shows runs in a notebook: a table as HTML, and a view that is updated.

Styles are inline, since untrusted notebooks drop style sheets. Text has the colour of the page, and lines a fainter
shade of this colour, for light and dark themes; the dots of states are visible on both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from assay.show.formatting import escape_html
from assay.show.table import build_texts
from assay.values.table import Column, Table

MOST_ROWS = 100
_COLOURS = {
    "done": "#2e9e5b",
    "pruned": "#4c78d8",
    "running": "#17a2b8",
    "failed": "#d6455d",
    "timeout": "#d6455d",
    "lost": "#d6455d",
    "damaged": "#d6455d",
    "stopped": "#c98a1b",
    "queued": "#8b8b8b",
}
_LINE = "border-bottom:1px solid color-mix(in srgb, currentColor 25%, transparent)"
_CELL = f"padding:2px 10px;{_LINE}"


def render_runs(heading: str, table: Table, states: Mapping[str, int]) -> str:
    """Render a heading, a bar with the number of runs in each state, and the first MOST_ROWS rows."""
    total = sum(states.values())
    counts = " &nbsp;".join(f"{_render_dot(state)}{count} {escape_html(state)}" for state, count in states.items())
    parts = [f'<div style="margin-bottom:4px"><b>{escape_html(heading)}</b> {counts}</div>']
    if total:
        pieces = [
            f'<div style="width:{100 * count / total:.2f}%;background:{_COLOURS.get(state, "")}"></div>'
            for state, count in states.items()
            if state != "queued"
        ]
        style = "display:flex;height:6px;max-width:40em;margin-bottom:6px;border-radius:3px;overflow:hidden"
        parts.append(
            f'<div style="{style};background:color-mix(in srgb, currentColor 15%, transparent)">{"".join(pieces)}</div>'
        )
    if table.rows:
        parts.append(_render_table(table._replace(rows=table.rows[:MOST_ROWS])))
    if len(table.rows) > MOST_ROWS:
        parts.append(f'<div style="opacity:.7">and {len(table.rows) - MOST_ROWS} more</div>')
    return f'<div style="color:inherit">{"".join(parts)}</div>'


def _render_dot(state: str) -> str:
    colour = _COLOURS.get(state, _COLOURS["queued"])
    return f'<span style="color:{colour}" aria-hidden="true">&#9679;</span>&nbsp;'


def _render_table(table: Table) -> str:
    columns = list(zip(*table.rows, strict=True))
    cells = [_render_cells(column, values) for column, values in zip(table.columns, columns, strict=True)]
    head = "".join(
        f'<th style="{_CELL};text-align:{each.side}">{escape_html(each.name)}</th>' for each in table.columns
    )
    rows = "".join(f'<tr style="background:transparent">{"".join(row)}</tr>' for row in zip(*cells, strict=True))
    style = "border-collapse:collapse;border:none;font-variant-numeric:tabular-nums"
    return f'<table style="{style}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _render_cells(column: Column, values: Sequence[Any]) -> list[str]:
    texts = build_texts(column, list(values))
    dots = [_render_dot(str(value)) if column.kind == "state" else "" for value in values]
    style = f"{_CELL};text-align:{column.side};white-space:pre"
    return [f'<td style="{style}">{dot}{escape_html(text)}</td>' for dot, text in zip(dots, texts, strict=True)]


def find_kernel() -> bool:
    """Return whether this process is the kernel of a notebook: IPython with a kernel, not on a terminal."""
    import sys

    if "IPython" not in sys.modules:
        return False
    ipython: Any = import_module("IPython")
    return getattr(ipython.get_ipython(), "kernel", None) is not None


class LiveView:
    """HTML below a cell; each update replaces it."""

    def __init__(self, html: str) -> None:
        self._library: Any = import_module("IPython.display")
        self._handle = self._library.display(self._library.HTML(html), display_id=True)

    def update(self, html: str) -> None:
        self._handle.update(self._library.HTML(html))
