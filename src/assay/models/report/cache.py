"""What the artifact store holds, as a table."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from assay.show.formatting import render_age, render_count, render_size
from assay.show.table import fit_columns, render_table
from assay.values.table import Column, Table

_COLUMNS = (
    Column("case"),
    Column("step"),
    Column("backend", rank=1),
    Column("size", align="right"),
    Column("used", align="right", rank=1),
    Column("", rank=1),
)


def render_cache(folder: str, entries: Sequence[Mapping[str, Any]], width: int | None) -> str:
    total = sum(entry["size_bytes"] for entry in entries)
    last = f"{render_count(len(entries), 'artifact')}, {render_size(total)} in {folder}\n"
    if not entries:
        return last
    now = time.time()
    rows = [
        (
            entry["case"],
            entry["step"],
            entry["backend"],
            render_size(entry["size_bytes"]),
            render_age(now - entry["used_at"]),
            "in use" if entry["in_use"] else "",
        )
        for entry in entries
    ]
    table = Table(_COLUMNS, rows)
    return render_table(fit_columns(table, width)[0] if width else table, width=width) + last


def build_cache_facts(folder: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"folder": folder, "size_bytes": sum(entry["size_bytes"] for entry in entries), "artifacts": list(entries)}
