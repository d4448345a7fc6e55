"""Reads a trace in `trace/rank-R/` of a run directory. `docs/reference/formats-results.md` describes the files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from assay.errors import FormatError
from assay.system.fast_dataclasses import dataclass
from assay.trace.inside.files import FORMAT, ROW_BYTES

TRACE_DIR = "trace"
_ROW = [
    *(("point", "<u4"), ("step", "<u4"), ("flags", "<u4"), ("spare", "<u4"), ("inputs", "<u4", 4)),
    *(("hash", "<u8"), ("count", "<u8"), ("nonfinite", "<u8"), ("zeros", "<u8")),
    *(("sum", "<f8"), ("sumsq", "<f8"), ("largest", "<f8"), ("sketch", "<f4", 64)),
]
NO_VALUES = 2  # the flag of a row whose tensor could not be read
_FOLDER = re.compile(r"rank-(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, slots=True)
class Point:
    """A tensor at one point of the program; every traced step records the tensor."""

    phase: str  # input, forward, loss, backward, gradient, parameter, optimiser, buffer
    module: str
    kind: str
    name: str
    call: int
    op: str | None
    shape: tuple[int, ...]
    dtype: str
    device: str
    placement: Mapping[str, Any] | None
    source: str | None


@dataclass(frozen=True, slots=True)
class Weight:
    """The hashes of a parameter: one for each row, with the values rounded to bf16."""

    module: str
    name: str
    shape: tuple[int, ...]
    hashes: Any  # a numpy array of u8


@dataclass(frozen=True, slots=True)
class Trace:
    """The record of one process. `rows` is a numpy array of records, mapped from the file."""

    folder: str
    meta: Mapping[str, Any]
    points: tuple[Point, ...]
    rows: Any
    steps: tuple[Mapping[str, Any], ...]
    weights: tuple[Weight, ...]
    is_complete: bool  # whether the process ended in order


def list_traces(run_dir: str, below: str = "") -> list[str]:
    """List the folders of processes that recorded something, by rank. `below`: a folder in `trace`, as `noise-1`."""
    folder = os.path.join(run_dir, TRACE_DIR, below)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    found = [(match, name) for name in names if (match := _FOLDER.fullmatch(name))]
    ordered = sorted(found, key=lambda each: (int(each[0][1]), int(each[0][2] or 1)))
    return [os.path.join(folder, name) for _, name in ordered]


def load_trace(folder: str) -> Trace:
    """Load a trace; a last line or row that a killed process left incomplete is ignored. Raises FormatError."""
    try:
        return _load_trace(folder)
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{folder} is not the record of a trace: {type(error).__name__}: {error}") from None


def _load_trace(folder: str) -> Trace:
    import numpy as np

    with open(os.path.join(folder, "trace.json"), encoding="utf-8") as file:
        meta = json.load(file)
    if meta.get("format") != FORMAT:
        hint = "read it with the version of Assay that wrote it"
        raise FormatError(f"{folder} has format {meta.get('format')!r}; this version reads format {FORMAT}", hint)
    names = Point.__dataclass_fields__
    points = tuple(
        Point(**{**{name: facts.get(name) for name in names}, "shape": tuple(facts["shape"])})  # type: ignore[arg-type]
        for facts in _load_lines(os.path.join(folder, "points.jsonl"))
    )
    lines = list(_load_lines(os.path.join(folder, "steps.jsonl")))
    steps = tuple({**each, "step": int(each["step"])} for each in lines if "step" in each)
    meta = {**meta, "graphs": next((each.get("graphs") or {} for each in lines if "end" in each), {})}
    path, kind = os.path.join(folder, "rows.bin"), np.dtype(_ROW)
    count = os.path.getsize(path) // ROW_BYTES if os.path.exists(path) else 0
    rows = np.memmap(path, kind, "r", shape=(count,)) if count else np.zeros(0, kind)
    known = rows["point"] < len(points)
    whole = rows if known.all() else rows[: int(known.argmin())]
    written = max((int(each.get("rows") or 0) for each in steps), default=0)  # a copied file may have fewer rows
    is_whole = any(each.get("end") for each in lines) and len(whole) >= written
    return Trace(folder, meta, points, whole, steps, tuple(_load_weights(folder)), is_whole)


def _load_lines(path: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file up to the first one that is cut off or damaged."""
    if not os.path.exists(path):
        return
    with open(path, "rb") as file:
        for line in file:
            try:
                found = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                found = None
            if not isinstance(found, dict):
                return
            yield found


def _load_weights(folder: str) -> Iterator[Weight]:
    import numpy as np

    path = os.path.join(folder, "weights.bin")
    hashes = np.fromfile(path, "<u8") if os.path.exists(path) else np.zeros(0, "<u8")
    for facts in _load_lines(os.path.join(folder, "weights.jsonl")):
        first = int(facts["offset"])
        if first + int(facts["rows"]) <= len(hashes):
            found = hashes[first : first + int(facts["rows"])]
            yield Weight(str(facts["module"]), str(facts["name"]), tuple(facts["shape"]), found)
