"""What a trace holds, as a document."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from assay.trace.records import NO_VALUES, Trace
from assay.values.document import Document, Facts, Heading, TableBlock
from assay.values.table import Column, Table

_COLUMNS = (
    Column("step", "number", digits=None), Column("phase"), Column("module", cut="left"), Column("tensor"),
    Column("shape", rank=2), Column("dtype", rank=3), Column("norm", "number"), Column("largest", "number", rank=1),
    Column("not finite", "number", digits=None, rank=1), Column("hash", rank=4), Column("source", cut="left", rank=5),
)  # fmt: skip


def build_listing(trace: Trace, step: int | None, only: Sequence[str]) -> Document:
    meta = trace.meta
    rows = list(_list_rows(trace, step, only))
    pairs = [
        ("level", f"{meta['level']}{', inside compiled regions' if meta.get('inside') else ''}"),
        ("process", f"rank {meta['rank']} of {meta['world']}, torch {meta['torch']}, {meta['device']}"),
        ("steps", ", ".join(_describe_step(each) for each in trace.steps) or "none was completed"),
        *([] if trace.is_complete else [("end", "the process did not end in order: what it recorded until then")]),
    ]
    names = [column.key or column.name for column in _COLUMNS]
    facts = {**meta, "steps": list(trace.steps), "rows": [dict(zip(names, row, strict=True)) for row in rows]}
    blocks = (Heading(os.path.relpath(trace.folder), level=1), Facts(pairs), TableBlock(Table(_COLUMNS, rows)))
    return Document("trace", blocks, facts=facts)


def _describe_step(facts: Any) -> str:
    loss, skipped = facts.get("loss"), " (skipped)" if facts.get("skipped") else ""
    return f"{facts['step']}{f' (loss {loss:.6g})' if loss is not None else ''}{skipped}"


def _list_rows(trace: Trace, step: int | None, only: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for row in trace.rows:
        point = trace.points[row["point"]]
        if step not in (None, row["step"]) or (only and not any(fnmatchcase(point.module, each) for each in only)):
            continue
        name = point.op or (f"{point.name} (call {point.call + 1})" if point.call else point.name)
        shape = "x".join(map(str, point.shape)) or "scalar"
        facts = (int(row["step"]), point.phase, point.module or point.kind, name, shape, point.dtype)
        values: tuple[Any, ...] = (None, None, None, "not read")
        if not row["flags"] & NO_VALUES:
            figures = (math.sqrt(row["sumsq"]), float(row["largest"]), int(row["nonfinite"]) or None)
            values = (*figures, f"{int(row['hash']):016x}")
        yield (*facts, *values, point.source)
