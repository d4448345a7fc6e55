"""Pending writes of a supervisor between two flushes, held in memory without a lock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from assay.errors import InfrastructureError, UsageError
from assay.record.index.base import Columns, Cursor, Refused, RunRow, Series
from assay.record.index.packing import build_series
from assay.system.fast_dataclasses import dataclass, field

MAX_WAITING = 1_000_000  # total weight of points and rows in a batch at which it is written
_ROW_WEIGHT = 100
_BEGINNING = Cursor()


@dataclass(slots=True)
class PendingPoints:
    """Consecutive points of one source of one run, and the reader's cursors before and after them."""

    source: str
    expected_offset: int
    cursor: Cursor
    columns: dict[str, list[Series]]
    counts: Callable[[], bool] | None = None  # `counts` of `add_columns`, as passed with the first of these points


Summaries = tuple[Mapping[str, Mapping[str, Any]], Mapping[str, tuple[bytes, float]]]  # readers' states, and summaries


@dataclass(slots=True)
class Buffer:
    """Pending writes. They are written in this order: forget, rows, summaries, points."""

    forgotten: dict[tuple[str, str | None], None] = field(default_factory=dict)  # an ordered set: its values are unused
    rows: dict[str, RunRow] = field(default_factory=dict)
    summaries: dict[str, Summaries] = field(default_factory=dict)  # key of a run without points → its summaries
    entries: dict[str, list[PendingPoints]] = field(default_factory=dict)  # key → points, in order
    weight: int = 0

    def __bool__(self) -> bool:
        return bool(self.forgotten or self.rows or self.summaries or self.entries)

    def cursor(self, key: str, source: str) -> Cursor | None:
        """Return the cursor of the source after the flush; None if no pending write changes it."""
        for entry in reversed(self.entries.get(key, ())):
            if entry.source == source:
                return entry.cursor
        is_begun = (key, source) in self.forgotten or (key, None) in self.forgotten or key in self.summaries
        return _BEGINNING if is_begun else None

    def put(self, row: RunRow) -> None:
        self.rows[row.key] = row
        self.weight += _ROW_WEIGHT

    def summarise(self, key: str, summaries: Summaries) -> None:
        self.summaries[key] = summaries
        self.weight += _ROW_WEIGHT

    def add(self, key: str, entry: PendingPoints) -> None:
        self.summaries.pop(key, None)
        self.weight += sum(len(piece.values) for pieces in entry.columns.values() for piece in pieces)
        entries = self.entries.setdefault(key, [])
        if not entries or entries[-1].source != entry.source:
            entries.append(entry)
            return
        entries[-1].cursor = entry.cursor
        for metric, pieces in entry.columns.items():
            entries[-1].columns.setdefault(metric, []).extend(pieces)

    def forget(self, key: str, source: str | None) -> None:
        kept = [entry for entry in self.entries.pop(key, ()) if source is not None and entry.source != source]
        if kept:
            self.entries[key] = kept
        self.summaries.pop(key, None)
        self.forgotten[key, source] = None
        self.weight += _ROW_WEIGHT


class BufferedIndex(ABC):
    """The part of an index that does not depend on its database."""

    def __init__(self) -> None:
        self._buffer = Buffer()
        self._batches: list[list[Refused]] = []  # the refused writes of each open batch, the outermost batch first
        self._refused: list[Refused] = []
        self._new: set[str] = set()  # keys that `expect_new` announced: no data of them is stored
        self._stale: set[Refused] = set()  # writes refused in a batch; the reader has not loaded the cursor since

    @abstractmethod
    def _write(self, buffer: Buffer) -> list[Refused]:
        """Write everything in one transaction, except points whose stored cursor has moved; return those points."""

    @abstractmethod
    def _load_stored_cursor(self, key: str, source: str) -> Cursor:
        """Return the stored cursor, or the beginning of the file if none is stored."""

    def put_runs(self, rows: Iterable[RunRow]) -> None:
        """Insert rows, or replace rows of the same key; the points of replaced rows stay."""
        for row in rows:
            _check_key(row.key)
            self._buffer.put(row)
        self._write_or_wait()

    def load_cursor(self, key: str, source: str) -> Cursor:
        """Return the cursor at which reading continues. `source` is the name of a file in the run directory."""
        self._stale.discard((key, source))
        waiting = self._buffer.cursor(key, source)
        if waiting is None and key in self._new:
            return _BEGINNING
        return self._load_stored_cursor(key, source) if waiting is None else waiting

    def add_columns(
        self,
        key: str,
        source: str,
        cursor: Cursor,
        columns: Mapping[str, Columns],
        *,
        expected_offset: int,
        counts: Callable[[], bool] | None = None,
    ) -> bool:
        """Store points, their summaries and the cursor after them, if the stored offset is the expected one. `counts`
        is called in the transaction that writes the points, while no other process writes. The points are refused if it
        returns False, which it returns from then on. Arrays are kept, not copied: do not change them afterwards."""
        _check_key(key)
        pieces = {metric: [build_series(column)] for metric, column in columns.items()}
        waiting = self._buffer.cursor(key, source)
        if (key, source) in self._stale or (waiting is not None and waiting.offset != expected_offset):
            return False  # other offsets are compared with the stored cursor when points are written
        self._buffer.add(key, PendingPoints(source, expected_offset, cursor, pieces, counts))
        return (key, source) not in self._write_or_wait()

    def add_summaries(
        self, key: str, states: Mapping[str, Mapping[str, Any]], summaries: Mapping[str, tuple[bytes, float]]
    ) -> None:
        """Store the summaries of a run's metrics, each as from `Tally.carry`, without the points. `states`: the sources
        of the summaries with the states of their readers. The sources' cursors stay at the beginning: the first stored
        points of the run replace the summaries. For a run with stored points this is refused, with "" as the source."""
        _check_key(key)
        self._buffer.summarise(key, (states, summaries))
        self._write_or_wait()

    def forget_points(self, key: str, source: str | None = None) -> None:
        """Remove points and cursor of one source, or of all; in a batch no reader sees a gap before `add_columns`."""
        self._buffer.forget(key, source)
        self._stale = {stale for stale in self._stale if stale[0] != key or source not in (None, stale[1])}
        self._write_or_wait()

    @contextmanager
    def batch(self) -> Iterator[list[Refused]]:
        """Delay writes and write them together; yield a list that collects refused writes. May be nested."""
        refused: list[Refused] = []
        self._batches.append(refused)
        try:
            yield refused
        except BaseException:
            self._batches.pop()
            with suppress(InfrastructureError):  # the original error is more useful
                self._end_batch(refused)
            raise
        self._batches.pop()
        self._end_batch(refused)

    def expect_new(self, keys: Iterable[str]) -> None:
        """Announce runs of this batch that are new to the index: their cursors are not read one by one. If another
        process has stored points since, writing is refused."""
        self._new.update(keys if self._batches else ())

    def _end_batch(self, refused: list[Refused]) -> None:
        if not self._batches:
            self._new.clear()
            self._write_waiting(refused)
            self._refused = []  # the refused writes are in the list of the batch

    def flush(self) -> list[Refused]:
        """Write what is pending; return the writes that were refused since the last flush."""
        self._write_waiting()
        refused, self._refused = self._refused, []
        return refused

    def _write_or_wait(self) -> list[Refused]:
        """Write pending changes now, unless an open batch can hold them; each method that adds a change calls this."""
        if self._batches:
            return self._write_waiting() if self._buffer.weight >= MAX_WAITING else []
        try:
            return self._write_waiting()
        except BaseException:
            self._buffer = Buffer()
            raise
        finally:
            self._refused = []  # the caller gets the refused writes as the result

    def _write_waiting(self, closing: list[Refused] | None = None) -> list[Refused]:
        if not self._buffer:
            return []
        refused = self._write(self._buffer)
        self._new.difference_update(self._buffer.entries)
        self._buffer = Buffer()
        self._refused += refused
        if self._batches:
            self._stale.update(refused)
        for batch in [*self._batches, *([] if closing is None else [closing])]:
            batch.extend(refused)
        return refused


def _check_key(key: str) -> None:
    """Raise UsageError for a key that is not valid Unicode, as names of files can be."""
    try:
        key.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the folder name {key!r} is not valid UTF-8", "rename the folder") from None
