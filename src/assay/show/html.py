"""Renders a document as one HTML page without scripts or external files, in the reader's light or dark theme.

`page/report.html` is the template; the styles of `page/colors.css` and `page/report.css` become part of the page;
`page/blocks.html` renders each kind of block, for this page and for those of `assay serve`. The environment cleans and
escapes every text; only drawings, made by this module and `show/heat_map.py`, are markup and escape their own texts.
Drawings get their colours from the style sheet by class names, so that one drawing serves both themes. Long curves are
thinned to what a screen can show; their extremes are kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from assay.show import formatting, heat_map
from assay.show.chart import build_ticks, render_ticks, split_gaps, thin
from assay.show.formatting import clean, escape_html, shorten
from assay.show.table import build_texts
from assay.values import document as doc

_FOLDER = os.path.join(os.path.dirname(__file__), "page")
WIDTH, WIDE = 560, 1120
_LEFT, _RIGHT, _TOP = 58, 12, 10
_GAP = 18  # the height between two panels
_AXIS = 28  # the height below the last panel, for the numbers of the x axis
_NAMED_AXIS = 96  # the height below the last panel, for slanted names
_LONGEST_NAME = 18
_CHARACTER = 6.3  # the approximate width of a character in a tick
_LABEL = 20  # the height of an axis's name
_NAME_ROOM = 16  # the distance from one slanted name to the next
_MOST_POINTS = 500  # most points of a curve


def render_html(document: doc.Document) -> str:
    return build_environment().get_template("report.html").render(document=document, style=load_style()) + "\n"


def load_style() -> Markup:
    """Load the style sheets: the colours of both themes, and the styles of a document's blocks."""
    texts = []
    for name in ("colors.css", "report.css"):
        with open(os.path.join(_FOLDER, name), encoding="utf-8") as file:
            texts.append(file.read())
    return Markup("".join(texts))  # noqa: S704 (our own files)


@cache  # the environment keeps its compiled templates: compiling one is slower than filling it in
def build_environment(*folders: str) -> Environment:
    """Build the environment of the templates in `folders` and in `page`, which has `blocks.html` for documents."""
    environment = Environment(
        loader=FileSystemLoader([*folders, _FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        # cleans the output of templates: line ends stay, and Markup stays unchanged
        finalize=lambda value: value if isinstance(value, Markup) else formatting.clean_lines(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        parts=build_parts, spans=doc.build_spans, plain=doc.build_plain, rows=build_rows, draw=_draw
    )
    return environment


def _draw(block: doc.Chart | doc.Bars | doc.HeatMap) -> Markup:
    if isinstance(block, doc.Chart):
        return Markup(draw(block))  # noqa: S704 (it escapes its texts)
    return Markup(heat_map.draw_bars(block) if isinstance(block, doc.Bars) else heat_map.draw_heat_map(block))  # noqa: S704


def build_parts(blocks: Sequence[doc.Block]) -> list[tuple[str, Any]]:
    """Return each block with the name of its type; successive charts become one part."""
    named = [(type(block).__name__, block) for block in doc.choose_blocks(blocks, "html")]
    parts: list[tuple[str, Any]] = []
    for name, group in groupby(named, key=lambda pair: pair[0]):
        found = [block for _, block in group]
        parts += [("Charts", found)] if name == "Chart" else [(name, block) for block in found]
    return parts


def build_rows(block: doc.TableBlock) -> list[dict[str, Any]]:
    """Return each row with its cells as spans, its notes, its role, and the text before it."""
    columns, rows = block.table.columns, block.table.rows
    texts = [build_texts(column, [row[index] for row in rows]) for index, column in enumerate(columns)]
    built = []
    for index, row in enumerate(rows):
        cells = []
        for column, value, its_texts in zip(columns, row, texts, strict=True):
            text = its_texts[index].strip()
            role = text.split(maxsplit=1)[0] if column.kind == "state" and value is not None else ""
            cells.append((column, value if isinstance(value, doc.Span) else doc.Span(text, role)))
        notes = block.notes[index] if block.notes else ()
        role = block.roles[index] if block.roles else ""
        built.append({"cells": cells, "notes": notes, "role": role, "before": (block.breaks or {}).get(index, "")})
    return built


@dataclass(frozen=True, slots=True)
class Frame:
    """Converts values of a panel to positions in the drawing."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    top: float
    height: float
    width: float = WIDTH

    def x(self, value: float) -> float:
        return _LEFT + _fraction(value, self.x_range) * (self.right - _LEFT)

    def y(self, value: float) -> float:
        return self.top + (1 - _fraction(value, self.y_range)) * self.height

    @property
    def bottom(self) -> float:
        return self.top + self.height

    @property
    def right(self) -> float:
        return self.width - _RIGHT


def _fraction(value: float, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return min(max((value - low) / (high - low), -0.05), 1.05) if high > low else 0.5


def draw(chart: doc.Chart) -> str:
    """Draw a chart as an <svg> element; if the chart has no finite values, it contains a note."""
    points = [point for panel in chart.panels for point in _list_points(panel)]
    width = WIDE if chart.is_wide else WIDTH
    below = _NAMED_AXIS if _is_named(chart) else _AXIS
    below += _LABEL * bool(chart.x_label)
    inner = sum(panel.height + _LABEL * bool(panel.label) for panel in chart.panels)
    height = _TOP + inner + _GAP * (len(chart.panels) - 1) + below
    if not points:
        note = f'<text class="note" x="{width // 2}" y="90" text-anchor="middle">no finite values</text>'
        return _wrap(chart, height, [note])
    x_range = chart.x_range or _widen(min(x for x, _ in points), max(x for x, _ in points))
    frames, top = [], float(_TOP)
    for panel in chart.panels:
        values = [y for _, y in _list_points(panel)] or [0.0]
        y_range = panel.y_range or _widen(min(values), max(values), 0.05)
        top += _LABEL * bool(panel.label)
        frames.append(Frame(x_range, y_range, top, panel.height, width))
        top += panel.height + _GAP
    bottom = frames[-1].bottom
    parts = [
        *_draw_marks(chart, frames[0], bottom),
        *(part for panel, frame in zip(chart.panels, frames, strict=True) for part in _draw_panel(panel, frame)),
        *(_draw_x_names(chart.x_ticks, frames[-1]) if _is_named(chart) else _draw_x_axis(chart, frames[-1])),
    ]
    if chart.x_label:
        text, x = escape_html(shorten(clean(chart.x_label), 60)), (_LEFT + frames[-1].right) / 2
        parts.append(f'<text class="axis" x="{x:.1f}" y="{height - 6:g}" text-anchor="middle">{text}</text>')
    return _wrap(chart, height, [*parts, *_draw_hovers(chart, frames[0], bottom)])


def _wrap(chart: doc.Chart, height: float, parts: Sequence[str]) -> str:
    label = escape_html(chart.label or doc.build_plain(chart.title))
    body = "\n".join(parts)
    width = WIDE if chart.is_wide else WIDTH
    return f'<svg viewBox="0 0 {width} {height:g}" role="img" aria-label="{label}">\n{body}\n</svg>'


def _list_points(panel: doc.Panel) -> list[doc.Point]:
    lines = [curve.points for curve in panel.curves]
    lines += [line for area in panel.areas for line in (area.upper, area.lower)]
    return [point for line in lines for point in _keep_finite(line)]


def _keep_finite(points: Sequence[doc.Point]) -> list[doc.Point]:
    return [point for part in split_gaps(points) for point in part]


def _widen(low: float, high: float, margin: float = 0.0) -> tuple[float, float]:
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low - margin * (high - low), high + margin * (high - low)
    room = abs(low) * 0.01 or 1.0
    return low - room, high + room


def _draw_marks(chart: doc.Chart, frame: Frame, bottom: float) -> Iterator[str]:
    """Draw each span as a stripe, and each single value as a line."""
    for style, start, end in chart.spans:
        left, right = max(frame.x(start), _LEFT), min(frame.x(end), frame.right)
        yield _rect(style, left, frame.top, max(right - left, 2.0), bottom - frame.top)
    for index in chart.lines:
        x = frame.x(index)
        yield f'<line class="first" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.top:g}" y2="{bottom:.1f}"/>'


def _rect(style: str, x: float, y: float, width: float, height: float, *, inner: str = "") -> str:
    shape = f'<rect class="{escape_html(style)}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f"{shape}>{inner}</rect>" if inner else f"{shape}/>"


def _is_named(chart: doc.Chart) -> bool:
    """Return whether a label is wider than the distance between two ticks, so that labels must be slanted."""
    ticks = chart.x_ticks or ()
    room = ((WIDE if chart.is_wide else WIDTH) - _LEFT - _RIGHT) / max(1, len(ticks))
    return any(len(text) > 5 and 7 * len(text) > room for _, text in ticks)


def _draw_x_axis(chart: doc.Chart, frame: Frame) -> Iterator[str]:
    """Draw the labels of the x axis; without `x_ticks`, these are whole numbers."""
    ticks = chart.x_ticks
    if ticks is None:
        found = build_ticks(*frame.x_range, 12 if chart.is_wide else 6)
        values = [value for value in found if value == int(value)]
        ticks = list(zip(values, render_ticks(values) if values else [], strict=True))
    for value, text in ticks:
        x, y = frame.x(value), frame.bottom + _AXIS - 12
        yield f'<text class="tick" x="{x:.1f}" y="{y:g}" text-anchor="middle">{escape_html(text)}</text>'


def _draw_x_names(ticks: Sequence[tuple[float, str]] | None, frame: Frame) -> Iterator[str]:
    ticks = ticks or ()
    for value, text in ticks[:: max(1, -(-len(ticks) * _NAME_ROOM // round(frame.right - _LEFT)))]:
        x, y = frame.x(value) + 3, frame.bottom + 16
        name = escape_html(shorten(clean(text), min(_LONGEST_NAME, round(x / 5))))  # a slanted character takes 5
        turn = f'transform="rotate(-42 {x:.1f} {y:.1f})"'
        yield f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="end" {turn}>{name}</text>'


def _draw_hovers(chart: doc.Chart, frame: Frame, bottom: float) -> Iterator[str]:
    """Draw invisible bars that show a text when the mouse is over them."""
    hovers = chart.hovers
    for index, (x, text) in enumerate(hovers):
        left = frame.x((hovers[index - 1][0] + x) / 2) if index else frame.x(frame.x_range[0])
        is_last = index + 1 == len(hovers)
        right = frame.x(frame.x_range[1]) if is_last else frame.x((hovers[index + 1][0] + x) / 2)
        yield _rect("hover", left, frame.top, max(right - left, 0.5), bottom - frame.top, inner=_title(text))


def _draw_panel(panel: doc.Panel, frame: Frame) -> Iterator[str]:
    low, high = frame.y_range
    for style, start, end in panel.limits:
        top, bottom = frame.y(min(end, high)), frame.y(max(start, low))
        yield _rect(style, _LEFT, top, frame.right - _LEFT, bottom - top)
    ticks = panel.ticks
    if ticks is None:
        values = build_ticks(*frame.y_range, max(4, int(frame.height // 45)))
        ticks = list(zip(values, render_ticks(values), strict=True))
    for value, text in ticks:
        y = frame.y(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{frame.right:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{escape_html(text)}</text>'
    if panel.label:
        text = escape_html(shorten(clean(panel.label), 70))
        yield f'<text class="axis" x="{_LEFT - 50}" y="{frame.top - 9:g}">{text}</text>'
    for area in panel.areas:
        upper, lower = (thin(_keep_finite(line), _most_points(frame)) for line in (area.upper, area.lower))
        yield f'<path class="{escape_html(area.style)}" d="{_path(upper, frame)}{_path(lower[::-1], frame, "L")}Z"/>'
    for curve in panel.curves:
        yield from _draw_curve(curve, frame)
    for x, y, text in panel.labels:
        place, name = f'x="{frame.x(x) - 6:.1f}" y="{frame.y(y) + 3.5:.1f}"', shorten(clean(text), _LONGEST_NAME)
        width = _CHARACTER * len(name) + 4
        yield _rect("plate", frame.x(x) - 4 - width, frame.y(y) - 8, width, 15)
        yield f'<text class="tick at" {place} text-anchor="end">{escape_html(name)}</text>'


def _draw_curve(curve: doc.Curve, frame: Frame) -> Iterator[str]:
    style, texts = escape_html(curve.style), list(map(_title, curve.texts))
    if curve.line:
        most = max(2, _most_points(frame))
        stretches = list(split_gaps(curve.points))
        total = sum(map(len, stretches))
        thinned = (thin(part, max(2, most * len(part) // total)) for part in stretches)
        path = "".join(_path(part, frame) + ("h0" if len(part) == 1 else "") for part in thinned)
        if path:
            yield (
                f'<path class="{style}" d="{path}">{texts[0]}</path>'
                if texts
                else f'<path class="{style}" d="{path}"/>'
            )
    if curve.marker and texts and len(texts) == len(curve.points):
        for point, text in zip(curve.points, texts, strict=True):
            if _keep_finite([point]):
                yield _draw_marker(curve.marker, style, frame.x(point[0]), frame.y(point[1]), text)
    elif curve.marker:
        for x, y in thin(_keep_finite(curve.points), _most_points(frame)):
            yield _draw_marker(curve.marker, style, frame.x(x), frame.y(y))


def _title(text: str) -> str:
    return f"<title>{chr(10).join(map(escape_html, text.split(chr(10))))}</title>"


_SHAPES = {
    "cross": "m-4 -4l8 8m0 -8l-8 8",
    "square": "m-3.6 -3.6h7.2v7.2h-7.2z",
    "triangle": "m0 -5l4.6 8.4h-9.2z",
    "diamond": "m0 -5l5 5l-5 5l-5 -5z",
}


def _draw_marker(marker: str, style: str, x: float, y: float, inner: str = "") -> str:
    if marker == "dot":
        shape = f'circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{4 if inner else 3}"'
        return f"<{shape}>{inner}</circle>" if inner else f"<{shape}/>"
    shape = f'path class="{style}" d="M{x:.1f} {y:.1f}{_SHAPES[marker]}"'
    return f"<{shape}>{inner}</path>" if inner else f"<{shape}/>"


def _most_points(frame: Frame) -> int:
    """Return the largest number of points that is worth drawing for a curve."""
    return _MOST_POINTS * (2 if frame.width == WIDE else 1)


def _path(points: Sequence[doc.Point], frame: Frame, first: str = "M") -> str:
    return "".join(
        f"{first if index == 0 else 'L'}{frame.x(x):.1f} {frame.y(y):.1f}" for index, (x, y) in enumerate(points)
    )
