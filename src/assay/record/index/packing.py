"""Values stored as bytes, each with a checksum: a run's whole row, and chunks of points.

A row is written by `marshal`: reading it takes a third of the time of the columns of `runs`. marshal executes no code,
and its format 4 is the same in every supported Python; the file is in the user's own cache directory.

A chunk is a part of the points of one metric of one run. Each column of a chunk is an array of doubles; an empty array
has no value for any point. A chunk may contain points of several sources: its parts list the sources with their counts.
"""

from __future__ import annotations

import marshal
import sqlite3
import struct
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from math import isnan, nan
from operator import itemgetter
from typing import Any
from zlib import adler32

from assay.record.index.base import Columns, RunRow, Series
from assay.system.fast_dataclasses import NamedTuple
from assay.values.state import State

_FORMAT = 4
_STATE = RunRow._fields.index("state")
_PARAMS = RunRow._fields.index("params")
_STATES = {state.value: state for state in State}
_SEAL = 4  # bytes of a checksum
FULL_CHUNK_POINTS = 8192  # a chunk of this size is never rewritten by a merge
MAX_LOOSE_CHUNKS = 64
_PART = struct.Struct("=qq")

Parts = list[tuple[int, int]]  # (source number, points)


class DamagedError(sqlite3.DatabaseError):
    """A stored value does not match its checksum. SQLite notices damage of its own structures, not of their content."""

    sqlite_errorname = "SQLITE_CORRUPT"


def checksum(*pieces: Any) -> bytes:
    """Return one checksum of bytes and texts. Adler-32 detects each changed byte in a third of the time of a CRC."""
    total = 1
    for piece in pieces:
        total = adler32(piece.encode("utf-8", "surrogatepass") if type(piece) is str else piece, total)
    return total.to_bytes(_SEAL, "little")


def unseal(sealed: bytes, *more: Any) -> bytes:
    """Return the content without its checksum, which also covers `more`; raise DamagedError if it is wrong."""
    try:
        body = sealed[:-_SEAL]
        if checksum(*more, body) == sealed[-_SEAL:]:
            return body
    except TypeError:  # a value of another type was stored
        pass
    raise DamagedError("a checksum does not fit")


def unseal_all(sealed: Sequence[bytes], more: Sequence[bytes] | None = None) -> list[bytes]:
    """Return the contents of thousands of values as `unseal` does, in a few passes. `more`: one for each value."""
    try:
        bodies = [each[:-_SEAL] for each in sealed]
        starts = None if more is None else {each: adler32(each) for each in set(more)}
        found = map(adler32, bodies) if starts is None else map(adler32, bodies, [starts[each] for each in more or ()])
        if [total.to_bytes(_SEAL, "little") for total in found] == [each[-_SEAL:] for each in sealed]:
            return bodies
    except TypeError:  # a value of another type was stored
        pass
    raise DamagedError("a checksum does not fit")


def last_activity(row: RunRow) -> float:
    return max(row.stamp, row.ended_at or 0.0, row.started_at or 0.0, row.created_at or 0.0)


def pack_row(row: RunRow) -> bytes:
    whole: list[Any] = list(row)  # a list, so that the state can be replaced
    whole[_STATE], whole[_PARAMS] = row.state.value, dict(row.params)
    try:
        packed = marshal.dumps(whole, _FORMAT)
    except ValueError:  # a value is not JSON-like
        import json

        plain = [
            value if isinstance(value, tuple) else json.loads(json.dumps(value, default=plain_object))
            for value in whole
        ]
        packed = marshal.dumps(plain, _FORMAT)
    return packed + checksum(packed)


def plain_object(value: object) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


def unpack_rows(packed: Sequence[bytes]) -> list[RunRow]:
    """Unpack all values before the rows are built: rows that are adjacent in memory are faster to iterate over."""
    whole = list(map(marshal.loads, unseal_all(packed)))
    for row in whole:
        row[_STATE] = _STATES[row[_STATE]]
    return list(map(partial(tuple.__new__, RunRow), whole))  # `tuple.__new__` is faster than the `__new__` of RunRow


def storable(text: str) -> str:
    """Return text that databases accept: SQLite accepts only UTF-8, PostgreSQL no NUL."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\ufffd")


class Chunk(NamedTuple):
    parts: Parts
    series: Series


def build_series(columns: Columns) -> Series:
    """Build the columns of a metric as they are stored; raise ValueError if their lengths differ."""
    steps, values, times = columns
    series = Series(_build_column(steps), _build_column(values, required=True), _build_column(times))
    if any(column and len(column) != len(series.values) for column in (series.steps, series.times)):
        lengths = ", ".join(str(len(column)) for column in series)
        raise ValueError(f"steps, values and times must be equally long, not {lengths}")
    return series


def _build_column(column: Sequence[float] | None, *, required: bool = False) -> array[float]:
    if column is None:
        return array("d")
    packed = column if isinstance(column, array) and column.typecode == "d" else array("d", column)
    return packed if required or not all(map(isnan, packed)) else array("d")


def join_series(pieces: Sequence[Series]) -> Series:
    """Join series one after another."""
    if len(pieces) == 1:
        return pieces[0]
    counts = [len(piece.values) for piece in pieces]
    steps = _join([piece.steps for piece in pieces], counts)
    values = _join([piece.values for piece in pieces], counts)
    return Series(steps, values, _join([piece.times for piece in pieces], counts))


def _join(columns: Sequence[array[float]], counts: Sequence[int]) -> array[float]:
    if not any(columns):
        return array("d")
    whole = array("d")
    for column, count in zip(columns, counts, strict=True):
        whole.extend(column or _nothing(count))
    return whole


def _nothing(count: int) -> array[float]:
    return array("d", (nan,)) * count


def fill_series(series: Series) -> Series:
    """Fill every column with NaN to full length, for readers."""
    count = len(series.values)
    return Series(series.steps or _nothing(count), series.values, series.times or _nothing(count))


def join_chunks(chunks: Sequence[Chunk]) -> Chunk:
    parts = [part for chunk in chunks for part in chunk.parts]
    joined = [(source, sum(count for _, count in group)) for source, group in groupby(parts, key=itemgetter(0))]
    return Chunk(joined, join_series([chunk.series for chunk in chunks]))


def drop_source(chunk: Chunk, source: int) -> Chunk | None:
    """Return the chunk without the points of a source; None if no points are left."""
    kept: list[Chunk] = []
    start = 0
    for owner, count in chunk.parts:
        if owner != source:
            steps, values, times = (column[start : start + count] for column in chunk.series)
            kept.append(Chunk([(owner, count)], Series(steps, values, times)))
        start += count
    return join_chunks(kept) if kept else None


def pack_parts(parts: Parts, series: Series, owner: bytes) -> bytes:
    """Return the parts, and the checksum of the chunk. It covers `owner`, so that a misplaced chunk is detected."""
    packed = b"".join([_PART.pack(*part) for part in parts])
    return packed + checksum(owner, *series, packed)


def name_owner(run: int, metric: int) -> bytes:
    return b"%d %d" % (run, metric)


def unpack_chunk(owner: bytes, parts: bytes, steps: bytes, values: bytes, times: bytes) -> Chunk:
    pairs = list(_PART.iter_unpack(unseal(parts, owner, steps, values, times)))
    return Chunk(pairs, Series(array("d", steps), array("d", values), array("d", times)))
