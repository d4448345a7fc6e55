"""Renders a document for a terminal, or for a pipe (`width` None: nothing is wrapped or left out)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from assay.errors import UsageError
from assay.show import formatting
from assay.show.heat_map import render_bars, render_heat_map
from assay.show.table import drop_columns, fit_columns, render_table, table_width
from assay.system import terminal
from assay.system.fast_dataclasses import NamedTuple
from assay.values import document as doc
from assay.values.table import Table
from assay.values.verdict import VerdictKind

_INDENT = "  "
_SHORT_NAME = 8  # a name up to this length is not replaced by a number
_NARROWEST = 20  # the narrowest column in which a value is folded
_NARROW = 80  # the width of a drawing in a pipe
_ROWS = 14  # the height of a chart
_LONGEST_CODE_LINE = 200  # a progress bar in a log can have thousands of characters
_STYLES = {**terminal.STATE_COLORS, "soft": "dim", "strong": "bold", "title": "bold", "culprit": "bold red"}


class _Look(NamedTuple):
    width: int | None
    color: bool
    plain: bool

    def inside(self, indent: str) -> _Look:
        return self if self.width is None or not indent else self._replace(width=max(self.width - len(indent), 20))


def render_terminal(
    document: doc.Document, *, width: int | None = None, color: bool = False, plain: bool = False
) -> str:
    """Render a document. `plain`: use only ASCII, as far as the texts of the document are ASCII."""
    return "".join(f"{line}\n" for line in _render_blocks(document.blocks, _Look(width, color, plain)))


def _render_blocks(blocks: Sequence[doc.Block], look: _Look) -> list[str]:
    """Render blocks, with a blank line around each section and each part that can be folded on a page."""
    lines: list[str] = []
    was_part = False
    for block in doc.choose_blocks(blocks, "terminal"):
        is_part = isinstance(block, (doc.Section, doc.Details))
        found = list(_RENDERERS[type(block)](block, look)) if type(block) in _RENDERERS else []
        if found and lines and (is_part or was_part):
            lines.append("")
        lines += found
        was_part = is_part if found else was_part
    return lines


def _render_section(block: doc.Section, look: _Look) -> Iterator[str]:
    indent = _INDENT if block.title else ""
    inner = _render_blocks(block.blocks, look.inside(indent))
    if inner and block.title:
        title = formatting.clean(block.title)
        yield terminal.paint(title, "bold") if look.color else title
    yield from (f"{indent}{line}".rstrip() for line in inner)


def _render_details(block: doc.Details, look: _Look) -> Iterator[str]:
    yield from _render_content(block.title, look)
    yield from (f"{_INDENT}{line}".rstrip() for line in _render_blocks(block.blocks, look.inside(_INDENT)))


def _render_content(content: doc.Content, look: _Look, indent: int = 0) -> list[str]:
    """Render the text of a content: first it is wrapped, then colours are added, as they have no width."""
    spans = doc.build_spans(content)
    cleaned = [formatting.clean_lines(span.text) for span in spans]
    text = formatting.wrap(_INDENT * indent + "".join(cleaned), look.width, _INDENT)
    if look.color:
        # a verdict in a sentence is bold: readers look for it
        weights = ["bold " if span.role in VerdictKind.__members__ else "" for span in spans]
        styles = [weight + _STYLES.get(span.role, "") for weight, span in zip(weights, spans, strict=True)]
        done, rest = "", text  # each span gets its colour, even if it was wrapped
        for span, style in zip(cleaned, styles, strict=True):
            found = re.search(r"\s+".join(map(re.escape, span.split())), rest) if span.strip() else None
            if found is None:
                continue
            inner = terminal.paint(found[0], style) if style else found[0]
            done, rest = done + rest[: found.start()] + inner, rest[found.end() :]
        text = done + rest
    return text.split("\n")


def _render_text(block: doc.Text, look: _Look) -> list[str]:
    content = block.content
    if block.role in _STYLES and isinstance(content, str):
        content = doc.Span(content, block.role)
    return _render_content(content, look, block.indent)


def _render_findings(block: doc.Findings, look: _Look) -> Iterator[str]:
    for finding in block.items[: block.most]:
        kind = str(finding.kind)
        subject = f" {formatting.clean(finding.subject)}" if finding.subject else ""
        head, *rest = finding.message.splitlines() or [""]
        first, *more = _render_content(f"{kind}{subject}: {head}", look._replace(color=False))
        yield (terminal.paint(kind, _STYLES[kind]) if look.color else kind) + first.removeprefix(kind)
        yield from more
        for line in rest:
            yield from _render_content(line.strip(), look, indent=1)
    if len(block.items) > block.most:
        yield f"and {len(block.items) - block.most} more"


def _render_facts(block: doc.Facts, look: _Look) -> Iterator[str]:
    """Render facts: labels in one column, and values folded in the next column."""
    column = max((formatting.display_width(formatting.clean(label)) for label, _ in block.pairs), default=0)
    room = look.width - column - 2 if look.width is not None and block.folds else None
    for label, value in block.pairs:
        padded = formatting.pad(formatting.clean(label), column)
        first, *rest = fold(value, room)
        yield f"{terminal.paint(padded, 'dim') if look.color else padded}  {first}".rstrip()
        yield from (f"{' ' * (column + 2)}{line}" for line in rest)


def fold(text: str, width: int | None) -> list[str]:
    """Split a text into cleaned lines, and break lines that are wider than `width` between words."""
    lines = [formatting.clean(line) for line in text.split("\n")]
    if width is None:
        return lines
    import textwrap

    # words are not broken: a terminal breaks a longer path or hash by itself, so that it can be copied
    folder = textwrap.TextWrapper(max(width, _NARROWEST), break_on_hyphens=False, break_long_words=False)
    return [part for line in lines for part in folder.wrap(line) or [""]]


def _render_commands(block: doc.Commands, _look: _Look) -> Iterator[str]:
    """Render each command on one line, however long, so that it can be copied."""
    wide = max((formatting.display_width(formatting.clean(what)) + 1 for what, _ in block.items if what), default=0)
    for what, command in block.items:
        label = formatting.pad(f"{formatting.clean(what)}:" if what else "", wide)
        yield f"{label}{' ' if wide else ''}{formatting.clean(command)}"


def _render_code(block: doc.Code, look: _Look) -> Iterator[str]:
    if block.wraps:
        yield formatting.clean(block.text)
        return
    longest = _LONGEST_CODE_LINE if look.width is None else 2 * look.width
    for line in block.text.splitlines():
        yield f"| {formatting.shorten(formatting.clean(line.expandtabs(4)), longest)}".rstrip()


def _render_chart(block: doc.Chart, look: _Look) -> Iterator[str]:
    from assay.show.chart import Line, LineChart, build_bands  # loaded here, as few documents have charts
    from assay.show.plot import render_plot

    groups: dict[str, list[Line]] = {}
    for curve in (curve for panel in block.panels for curve in panel.curves if curve.name):
        xs, ys = [x for x, _ in curve.points], [y for _, y in curve.points]
        groups.setdefault(curve.name, []).append(Line(curve.name, xs, ys))
    if not groups:
        return
    bands = build_bands(list(groups.items()))
    lines = [found[0] if len(found) == 1 else band for band, found in zip(bands, groups.values(), strict=True)]
    title, width = doc.build_plain(block.title), look.width or _NARROW
    chart = LineChart(tuple(lines), title, y_name=title)
    try:
        text = render_plot(chart, width=width, height=_ROWS, color=look.color, plain=look.plain)
    except UsageError as error:  # a chart has no finite values
        text = formatting.clean(f"{title}: {error.message}")
    yield from text.splitlines()


def _render_table(block: doc.TableBlock, look: _Look) -> Iterator[str]:
    if not block.table.rows:
        return
    if block.numbers_names and look.width is not None and table_width(block.table) > look.width:
        names = [formatting.clean(str(row[0])) for row in block.table.rows]
        labels = [name if len(name) <= _SHORT_NAME else f"#{number}" for number, name in enumerate(names)]
        rows = [[label, *row[1:]] for label, row in zip(labels, block.table.rows, strict=True)]
        yield from _render_rows(block, Table(block.table.columns, rows), look)
        yield ""
        for label, name in zip(labels, names, strict=True):
            if label != name:
                yield from formatting.wrap(f"{label}  {name}", look.width, 2 * _INDENT).split("\n")
        return
    table, dropped = _fit(block.table, look.width)
    if dropped and block.split_by:
        index = [column.name for column in block.table.columns].index(block.split_by)
        titles = [row[index] for row in block.table.rows]
        parts, dropped = _fit(drop_columns(block.table, {index}), look.width)
        for title in dict.fromkeys(titles):
            part = parts._replace(rows=[row for row, its in zip(parts.rows, titles, strict=True) if its == title])
            yield formatting.shorten(formatting.clean(str(title)), look.width or 0, front=0)
            yield from render_table(part, width=look.width, color=look.color, plain=look.plain).splitlines()
    else:
        lines = _render_rows(block, table, look)
        for index, text in sorted((block.breaks or {}).items(), reverse=True):
            lines.insert(index + 2, formatting.clean(text))  # index + 2: below the names of the columns and the rule
        yield from lines
    if dropped and block.hint:
        left_out = ", ".join(formatting.clean(name) for name in dropped)
        yield from formatting.wrap(f"(no room here for {left_out}: {block.hint})", look.width, _INDENT).split("\n")


def _fit(table: Table, width: int | None) -> tuple[Table, list[str]]:
    """Use short names first; then drop empty columns, then the columns of the highest rank. Return what was dropped."""
    if width is None or table_width(table) <= width:
        return table, []
    short = Table(tuple(each._replace(name=each.short or each.name) for each in table.columns), table.rows)
    fitting, dropped = fit_columns(short, width)
    if dropped:  # columns without values are dropped first, except column 0, which names the rows
        columns = range(1, len(short.columns))
        empty = {index for index in columns if all(row[index] in (None, "", "-") for row in short.rows)}
        fitting, dropped = fit_columns(drop_columns(short, empty), width)
    return fitting, [column.name for column in dropped]


def _render_rows(block: doc.TableBlock, table: Table, look: _Look) -> list[str]:
    if not look.color or not any(block.roles):
        return render_table(table, width=look.width, color=look.color, plain=look.plain).splitlines()
    head, rule, *rows = render_table(table, width=look.width, plain=look.plain).splitlines()
    painted = [terminal.paint(head, "bold"), terminal.paint(rule, "dim")]
    for row, role in zip(rows, block.roles, strict=True):
        kind, _, is_first = role.partition(" ")
        style = _STYLES.get(kind, "")
        painted.append(terminal.paint(row, f"bold {style}" if is_first else style) if style else row)
    return painted


_RENDERERS: dict[type, Callable[[Any, _Look], Any]] = {
    doc.Text: _render_text,
    doc.Notes: lambda block, look: (line for item in block.items for line in _render_content(item, look)),
    doc.Findings: _render_findings,
    doc.Facts: _render_facts,
    doc.TableBlock: _render_table,
    doc.Commands: _render_commands,
    doc.Code: _render_code,
    doc.Section: _render_section,
    doc.Details: _render_details,
    doc.Chart: _render_chart,
    doc.Bars: lambda block, look: render_bars(block, color=look.color, plain=look.plain),
    doc.HeatMap: lambda block, look: render_heat_map(block, look.width or _NARROW, color=look.color, plain=look.plain),
}
