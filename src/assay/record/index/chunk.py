"""Points packed into bytes: a chunk is a piece of one metric of one run.

A column is an array of doubles; an empty one means that no point has any. A chunk may hold points of
several sources: its parts say, in order, which source gave how many.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from itertools import groupby
from math import isnan, nan
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from assay.record.index.base import Columns, Series
from assay.record.index.row import checksum, unseal

if TYPE_CHECKING:
    from assay.values.series import MetricPoint

FULL_CHUNK_POINTS = 8192  # a chunk of this size is never rewritten by a merge
MAX_LOOSE_CHUNKS = 64
_PART = struct.Struct("=qq")

Parts = list[tuple[int, int]]  # (source number, points)


class Chunk(NamedTuple):
    parts: Parts
    series: Series


def build_series(columns: Columns) -> Series:
    """Columns as they are stored; raises ValueError when they do not fit together."""
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
    return packed if required or _has_any(packed) else array("d")


def _has_any(column: array[float]) -> bool:
    return not all(map(isnan, column))


def build_columns(points: Iterable[MetricPoint]) -> dict[str, Columns]:
    """Points sorted into the columns of their metrics."""
    columns: dict[str, tuple[array[float], array[float], array[float]]] = {}
    for point in points:
        known = columns.get(point.metric)
        if known is None:
            known = columns[point.metric] = (array("d"), array("d"), array("d"))
        known[0].append(nan if point.step is None else point.step)
        known[1].append(point.value)
        known[2].append(nan if point.time is None else point.time)
    return dict(columns)


def join_series(pieces: Sequence[Series]) -> Series:
    """Pieces one after another."""
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
    """Every column at full length, for readers."""
    count = len(series.values)
    return Series(series.steps or _nothing(count), series.values, series.times or _nothing(count))


# ---------------------------------------------------------------- chunks


def join_chunks(chunks: Sequence[Chunk]) -> Chunk:
    parts = [part for chunk in chunks for part in chunk.parts]
    joined = [(source, sum(count for _, count in group)) for source, group in groupby(parts, key=itemgetter(0))]
    return Chunk(joined, join_series([chunk.series for chunk in chunks]))


def drop_source(chunk: Chunk, source: int) -> Chunk | None:
    """The chunk without the points of a source; None when nothing is left."""
    kept: list[Chunk] = []
    start = 0
    for owner, count in chunk.parts:
        if owner != source:
            steps, values, times = (column[start : start + count] for column in chunk.series)
            kept.append(Chunk([(owner, count)], Series(steps, values, times)))
        start += count
    return join_chunks(kept) if kept else None


def pack_parts(parts: Parts, series: Series, owner: bytes) -> bytes:
    """With the checksum of the whole chunk; `owner` says whose it is, so that one in the wrong place is noticed."""
    packed = b"".join([_PART.pack(*part) for part in parts])
    return packed + checksum(owner, *series, packed)


def name_owner(run: int, metric: int) -> bytes:
    return b"%d %d" % (run, metric)


def unpack_chunk(owner: bytes, parts: bytes, steps: bytes, values: bytes, times: bytes) -> Chunk:
    pairs = list(_PART.iter_unpack(unseal(parts, owner, steps, values, times)))
    return Chunk(pairs, Series(array("d", steps), array("d", values), array("d", times)))
