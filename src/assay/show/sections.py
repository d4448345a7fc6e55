"""Facts about one thing under headings: what `assay show`, `diff`, `doctor` and `index status` print."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from assay.show import formatting
from assay.show.table import render_table
from assay.system import terminal
from assay.values.plain import NO_DATE, render_date
from assay.values.table import Table

_INDENT = "  "
_NARROWEST = 20  # a value is not folded into a narrower column than this


@dataclass(frozen=True, slots=True)
class Section:
    """`facts` are label and value, `table` a table, `lines` text as it is; in this order. No title: no heading."""

    title: str = ""
    facts: Sequence[tuple[str, str]] = ()
    table: Table | None = None
    lines: Sequence[str] = ()
    folds: bool = True  # False: values are to be copied, so the terminal breaks them and not we

    @property
    def is_empty(self) -> bool:
        return not self.facts and not self.lines and (self.table is None or not self.table.rows)


def render_sections(
    sections: Sequence[Section], *, width: int | None = None, color: bool = False, plain: bool = False
) -> str:
    """Empty sections are left out; long values are folded under themselves where there is a width."""
    blocks = [_render(section, width, color, plain) for section in sections if not section.is_empty]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n" if blocks else ""


def _render(section: Section, width: int | None, color: bool, plain: bool) -> Iterator[str]:
    if section.title:
        yield terminal.paint(section.title, "bold") if color else section.title
    indent = _INDENT if section.title else ""
    inner = width - len(indent) if width is not None else None
    yield from (indent + line for line in render_facts(section.facts, inner if section.folds else None, color))
    if section.table is not None and section.table.rows:
        text = render_table(section.table, width=inner, color=color, plain=plain)
        yield from (indent + line for line in text.splitlines())
    yield from (indent + line for line in section.lines)


def render_facts(facts: Sequence[tuple[str, str]], width: int | None, color: bool) -> Iterator[str]:
    """Labels in a column, values folded under themselves."""
    column = max((formatting.display_width(formatting.clean(label)) for label, _ in facts), default=0)
    for label, value in facts:
        padded = formatting.pad(formatting.clean(label), column)
        first, *rest = fold(value, None if width is None else width - column - 2)
        yield f"{terminal.paint(padded, 'dim') if color else padded}  {first}".rstrip()
        yield from (f"{' ' * (column + 2)}{line}" for line in rest)


def fold(text: str, width: int | None) -> list[str]:
    """The lines of a text, each cleaned, and broken where it would not fit."""
    lines = [formatting.clean(line) for line in text.split("\n")]
    if width is None:
        return lines
    return [part for line in lines for part in _fold_line(line, max(width, _NARROWEST))]


def _fold_line(line: str, width: int) -> list[str]:
    """Between words: a path or a hash that is longer than the line is the terminal's to break, so it can be copied."""
    return textwrap.wrap(line, width, break_on_hyphens=False, break_long_words=False) or [""]


def render_moment(seconds: float | None, now: float) -> str:
    """A time of the clock on the wall, and how long ago that was."""
    if seconds is None:
        return "-"
    stamp = render_date(seconds, "%Y-%m-%d %H:%M:%S")
    return stamp if stamp == NO_DATE else f"{stamp} ({formatting.render_age(now - seconds)})"
