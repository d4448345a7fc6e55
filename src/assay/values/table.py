"""A table as a value: named columns and rows of plain values, rendered by `show/table.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from assay.system.fast_dataclasses import NamedTuple

Kind = Literal["text", "number", "clock", "duration", "size", "age", "state"]
Align = Literal["left", "right"]
Role = Literal["run", "parameter", "last", "last sd", "best", "best sd", "count", "time", "tags", "note", "other"]


class Column(NamedTuple):
    """`digits`: significant digits of numbers; None shows all digits (parameters). `key` is the JSON name.

    `rank`: if a table is too wide, columns of the highest rank are dropped first (`fit_columns`). Columns of rank 0
    stay, and columns of lower ranks are dropped only if no row would fit otherwise, -1 first.
    `cut`: where texts are shortened: `left` for dotted names, which differ at their ends, unless two would become
    equal; `never` for numbers with units. `short`: the name of a report's column on a narrow terminal.
    `role` and `metric`: the content of this column in a table of runs.
    """

    name: str
    kind: Kind = "text"
    align: Align | None = None  # None: text and states left, all others right
    digits: int | None = 4
    key: str | None = None
    rank: int = 0
    cut: Literal["anywhere", "left", "never"] = "anywhere"
    short: str = ""
    role: Role = "other"
    metric: str = ""

    @property
    def side(self) -> Align:
        return self.align or ("left" if self.kind in ("text", "state") else "right")

    @property
    def can_shorten(self) -> bool:
        return self.kind == "text" and self.cut != "never"


class Table(NamedTuple):
    """Rows of plain values; None is a missing value."""

    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Any]]
