"""An index in the tables of any database; subclasses open the database and begin its transactions.

The statements are statements of SQLite that PostgreSQL understands, too. Parameters are `?`, and `json_each`, whose
meaning differs, is translated by `exchange/postgres_index.py`.
"""

from __future__ import annotations

import gc
import re
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from assay.errors import InfrastructureError, UsageError
from assay.record.index import digest, packing
from assay.record.index.base import Answer, Cursor, Database, IndexTable, Refused, RunRow, Series, StudyRow, VerdictRow
from assay.record.index.buffer import Buffer, BufferedIndex
from assay.values.state import State

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from assay.values.series import Summary

_NAME = "SELECT number FROM names WHERE name = ?"
_CURSOR = """SELECT c.run, c.source, c.bytes_read, c.state FROM runs r JOIN cursors c ON c.run = r.run
    WHERE r.key = ? AND c.source = (SELECT number FROM names WHERE name = ?) AND c.bytes_read > 0"""
_SUMMARISED = "SELECT DISTINCT r.key FROM cursors c JOIN runs r ON r.run = c.run WHERE c.bytes_read = 0"
_CURSORS = "SELECT r.key, c.run, c.source, c.bytes_read, c.state FROM cursors c JOIN runs r ON r.run = c.run WHERE "
_SERIES = """SELECT run, metric, parts, step_data, value_data, time_data FROM chunks
    WHERE run = (SELECT run FROM runs WHERE key = ?) AND metric = (SELECT number FROM names WHERE name = ?)
    ORDER BY chunk"""
_COUNT = """SELECT metrics, summaries, (SELECT number FROM names WHERE name = ?) FROM run_cache
    WHERE run = (SELECT run FROM runs WHERE key = ?)"""
_CACHED = "FROM runs r LEFT JOIN run_cache c ON c.run = r.run"
_HAS_ROW = "(run_row IS NOT NULL OR c.run IS NULL)"  # a run without its cached row is damaged
_HAS_METRICS = "(metrics IS NOT NULL OR c.run IS NULL)"
_VERDICT_OFFSET = "SELECT bytes_read FROM verdict_files WHERE study = ?"
_OF_RUN = ("chunks", "cursors", "metric_summaries", "run_cache")  # the tables that have rows of a run, except `runs`


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector: it would search thousands of rows, which have no cycles, a hundred times."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


QUERY_LIMIT_S = 60.0


def check_query(statement: str) -> None:
    """Raise UsageError for a statement that is not a query (COPY, PRAGMA, COMMIT); the databases also refuse writes."""
    plain = re.sub(r"--[^\n]*|/\*.*?\*/", " ", statement, flags=re.DOTALL).strip().lower()
    if not re.match(r"\(*\s*(select|with|values|explain)\b", plain):
        raise UsageError("only a query can be asked: SELECT …", "assay index query 'SELECT * FROM studies'")


class Index(BufferedIndex):
    """A copy of the run directories, which may be lost at any time, and is then built again from the directories.

    Concurrency rules that every implementation keeps:

    - Any number of processes may read and write the same index; a handle belongs to one thread of one process
      (open another after a fork). Readers never wait for writers.
    - Each writing call is one transaction: seen whole by others, or not at all.
    - Points are compare-and-set. `add_columns` names the offset at which its reader began; if the stored cursor has
      another offset, another supervisor has written those bytes: no point is stored, and `add_columns` returns False.
      The caller then calls `load_cursor` and reads on from that offset. So no point is ever stored twice.
    - Points of an attempt that is followed by another are refused in the transaction that would write them. The next
      attempt publishes its lease first and then forgets the points, so no point of the earlier attempt stays.
    - Inside `batch()`, writes wait in memory, without a lock, until `flush()`, the end of the batch, the next
      `load_*` other than `load_cursor`, or very many writes; then one transaction writes all of them. A supervisor
      may stay in one batch for hours and flush five times a second.
    - Inside a batch, True from `add_columns` means "accepted": the stored cursor is compared when points are written,
      and stale points are dropped and listed by `flush()` and in the list from `batch()`. A caller that ignores the
      lists gets False from its next `add_columns` for that source, until it calls `load_cursor`.
    - Each accepted call is a complete fact about a directory. So a batch that ends with an exception is written like
      any other, and nothing is undone.
    - A reader sees what was written with the same handle, flushed or not.
    - When writing fails (disk full, locked for too long) an InfrastructureError is raised. Pending writes of a batch
      wait for the next flush; outside a batch they are dropped, and the caller may call again.
    """

    was_reset: bool = False  # an unreadable file was set aside, so that everything is read from the directories again
    reset_reason: str = ""
    is_temporary: bool = False  # the index exists only in this process
    place: str = ""  # location of the index for messages, without passwords
    store_points: Callable[[str], None] | None = None  # function that reads the files of a run that has only summaries
    _db: Database

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---------------------------------------------------------------- what differs between databases

    @abstractmethod
    def query(self, statement: str) -> Answer:
        """Return the result of one SELECT over the tables and views of `docs/reference/formats-index.md`. Raise
        UsageError for another statement, an invalid SELECT, or one that takes too long."""

    @abstractmethod
    def load_size(self) -> int:
        """Return the approximate size of the index in bytes."""

    @abstractmethod
    def compact(self) -> None:
        """Free the space of forgotten rows."""

    def is_there(self) -> bool:
        """Return whether the open index still exists; if it was deleted or replaced, it must be opened again."""
        return True

    @abstractmethod
    def _begin(self, *, writes: bool) -> None:
        """Begin a transaction: only one at a time may write; one that only reads sees one state of the database."""

    @abstractmethod
    def _roll_back(self) -> None:
        """Undo the transaction without raising an error."""

    @abstractmethod
    def _translated(self) -> AbstractContextManager[None]:
        """Translate errors of the database into errors of Assay."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Close the connection to the database."""

    @contextmanager
    def _transaction(self) -> Iterator[Database]:
        with self._translated():
            self._begin(writes=True)
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                self._names.clear()  # numbers of names may have been assigned in the transaction that is undone
                self._roll_back()
                raise

    @contextmanager
    def _reading(self) -> Iterator[Database]:
        """Give all statements the same state of the database, after pending writes of this handle."""
        self._write_waiting()
        with self._translated():
            self._begin(writes=False)
            try:
                yield self._db
            finally:
                self._roll_back()

    def _find(self, query: str, parameters: Sequence[Any]) -> Any:
        """Return the first stored row, without pending writes; None if the query finds no row."""
        with self._translated():
            return self._db.execute(query, parameters).fetchone()

    # ---------------------------------------------------------------- writing

    @_collector_paused()
    def _write(self, buffer: Buffer) -> list[Refused]:
        # readers do not need these functions
        from assay.record.index.writing import forget_points, write_points, write_rows, write_summaries

        with self._transaction() as db:
            forget_points(db, buffer.forgotten)
            write_rows(db, buffer.rows.values())
            refused = write_summaries(db, buffer.summaries, self._number)
            return refused + write_points(db, buffer.entries, self._number)

    def _number(self, name: str) -> int:
        """Return the number of a metric or source, which is assigned to a new name; only in a writing transaction."""
        if name not in self._names:
            text = packing.storable(name)
            found = self._db.execute(_NAME, (text,)).fetchone()
            if found is None:
                self._db.execute("INSERT INTO names (name, checksum) VALUES (?, ?)", (text, b""))
                found = self._db.execute(_NAME, (text,)).fetchone()
                seal = packing.checksum(f"{found[0]} {text}")
                self._db.execute("UPDATE names SET checksum = ? WHERE number = ?", (seal, found[0]))
            self._names[name] = found[0]
        return self._names[name]

    def forget_runs(self, keys: Iterable[str]) -> None:
        """Remove runs and all their data."""
        self._write_waiting()
        chosen = _list(list(keys))
        of_run = f"WHERE run IN (SELECT run FROM runs WHERE {_among('key')})"  # noqa: S608
        with self._transaction() as db:
            for table in (*_OF_RUN, "runs"):
                db.execute(f"DELETE FROM {table} {of_run}", (chosen,))  # noqa: S608

    def clear(self) -> None:
        """Remove all runs and verdicts."""
        self._write_waiting()
        with self._transaction() as db:
            for table in (*_OF_RUN, "runs", "verdicts", "verdict_files"):
                db.execute(f"DELETE FROM {table}")  # noqa: S608

    def add_verdicts(
        self, study: str, rows: Sequence[VerdictRow], *, start: int, end: int, expected_offset: int
    ) -> bool:
        """Store the bytes `start` to `end` of the study's verdict file, if the stored offset is the expected one. If
        `start` is 0, they replace all verdicts of the study: its file was read from the beginning."""
        from assay.record.index.writing import write_verdicts  # readers do not need this function

        study = packing.storable(study)
        with self._transaction() as db:
            found = db.execute(_VERDICT_OFFSET, (study,)).fetchone()
            if (found[0] if found else 0) != expected_offset:
                return False
            write_verdicts(db, study, rows, start, end)
        return True

    def close(self) -> None:
        """Write what is pending and disconnect. May be called twice."""
        try:
            self._write_waiting()
        finally:
            self._disconnect()

    # ---------------------------------------------------------------- reading

    def _load_stored_cursor(self, key: str, source: str) -> Cursor:
        row = self._find(_CURSOR, (key, packing.storable(source)))
        with self._translated():
            return _build_cursor(*row) if row else Cursor()

    @_collector_paused()
    def load_cursors(
        self, source: str | None, studies: Sequence[str] | None = None, noting: Sequence[str] = ()
    ) -> dict[str, Cursor]:
        """Return key → cursor for every run whose source has been read, in one query. `source` None: a cursor of any
        source. `noting`: only cursors whose state has one of these keys."""
        where, chosen = _build_choice(studies, None)
        where = ("TRUE" if source is None else "c.source = (SELECT number FROM names WHERE name = ?)") + where  # noqa: S608
        where += f" AND ({' OR '.join(['c.state LIKE ?'] * len(noting))})" if noting else ""
        values = [*([] if source is None else [packing.storable(source)]), *chosen, *(f'%"{key}"%' for key in noting)]
        with self._reading() as db:
            found = db.execute(f"{_CURSORS}{where}", values).fetchall()
            return {key: _build_cursor(*cursor) for key, *cursor in found}

    def load_verdict_offset(self, study: str) -> int:
        """Return how many bytes of the study's verdict file have been read."""
        found = self._find(_VERDICT_OFFSET, (packing.storable(study),))
        return int(found[0]) if found else 0

    @_collector_paused()
    def load_runs(self, studies: Sequence[str] | None = None, keys: Sequence[str] | None = None) -> list[RunRow]:
        """Return runs ordered by creation, then key, as after a rebuild. None: all runs; an empty sequence: no runs."""
        where, chosen = _build_choice(studies, keys)
        with self._reading() as db:
            found = db.execute(f"SELECT run_row {_CACHED} WHERE {_HAS_ROW}{where} ORDER BY r.run", chosen)
            rows = packing.unpack_rows([row for (row,) in found])
        # the order must not depend on which process wrote the index, or how often it was written
        return sorted(rows, key=lambda row: (row.created_at or 0.0, row.key))

    def load_studies(self) -> list[StudyRow]:
        """Return the studies, ordered by name."""
        counts: dict[str, dict[State, int]] = {}
        last: dict[str, float] = {}
        for row in self.load_runs():  # columns are not used: only the whole row has a checksum
            study = packing.storable(row.study)
            per_state = counts.setdefault(study, {})
            per_state[row.state] = per_state.get(row.state, 0) + 1
            last[study] = max(packing.last_activity(row), last.get(study, 0.0))
        return [StudyRow(study, dict(sorted(counts[study].items())), last[study] or None) for study in sorted(counts)]

    def find_summarised(self, studies: Sequence[str] | None = None) -> list[str]:
        """Return the keys of the runs that have stored summaries but no stored points."""
        where, chosen = _build_choice(studies, None)
        with self._reading() as db:
            return [key for (key,) in db.execute(f"{_SUMMARISED}{where}", chosen)]

    def load_series(self, key: str, metric: str) -> Series:
        """Return a metric's points, empty if it has none. If points are not stored, `store_points` reads the files."""
        series = self._load_stored_series(key, metric)
        if series is None and self.store_points is not None:
            self.store_points(key)
            series = self._load_stored_series(key, metric)
        if series is None:
            message = f"the points of {key} are not stored, and its files cannot be read"
            raise InfrastructureError(message, "see why: assay index rebuild")
        return packing.fill_series(series)

    def _load_stored_series(self, key: str, metric: str) -> Series | None:
        """Return the stored points; None if only the summary is stored."""
        with self._reading() as db:
            found = db.execute(_SERIES, (key, packing.storable(metric)))
            chunks = [packing.unpack_chunk(packing.name_owner(run, number), *row) for run, number, *row in found]
            series = packing.join_series([chunk.series for chunk in chunks])
            if len(series.values) != self._load_count(key, metric):
                where, chosen = _build_choice(None, [key])
                if not chunks and db.execute(f"{_SUMMARISED}{where}", chosen).fetchone():
                    return None
                raise packing.DamagedError("points are missing")
        return series

    def _load_count(self, key: str, metric: str) -> int:
        """Return the number of points in the summary of a metric."""
        row = self._db.execute(_COUNT, (packing.storable(metric), key)).fetchone()
        if row is None or row[0] is None or row[2] is None:
            return 0
        summaries = digest.split_summaries(packing.unseal(row[1] or b"", row[0]))
        known = dict(zip(array("q", row[0]), summaries, strict=True))
        return int(digest.LAYOUT.unpack(known[row[2]])[0]) if row[2] in known else 0

    @_collector_paused()
    def load_summaries(
        self, studies: Sequence[str] | None = None, keys: Sequence[str] | None = None
    ) -> dict[str, dict[str, Summary]]:
        """Return key → metric → summary, without runs that have no metrics; values are NaN if no value is finite."""
        where, chosen = _build_choice(studies, keys)
        query = f"SELECT key, metrics, summaries {_CACHED} WHERE {_HAS_METRICS}{where} ORDER BY r.run"
        with self._reading() as db:
            names = self._load_names()
            found = db.execute(query, chosen).fetchall()
            opened = packing.unseal_all([packed for _, _, packed in found], [numbers for _, numbers, _ in found])
            digest.check_names([numbers for _, numbers, _ in found], names)
        owned = [[names[number] for number in array("q", numbers)] for _, numbers, _ in found]
        summaries = iter(digest.parse_summaries(chain.from_iterable(owned), opened))
        # all summaries were parsed at once: each run takes as many as it has metrics
        return {found[i][0]: dict(zip(each, summaries, strict=False)) for i, each in enumerate(owned)}

    def _load_names(self) -> dict[int, str]:
        found = self._db.execute("SELECT number, name, checksum FROM names").fetchall()
        if any(packing.checksum(f"{number} {name}") != seal for number, name, seal in found):
            raise packing.DamagedError("a checksum does not fit")
        return {number: name for number, name, _ in found}

    @_collector_paused()
    def load_table(self, studies: Sequence[str] | None = None, metrics: Sequence[str] | None = None) -> IndexTable:
        """Return runs and summaries column by column: for thousands of runs, this is much faster than objects."""
        where, chosen = _build_choice(studies, None)
        query = f"SELECT run_row, metrics, summaries {_CACHED} WHERE {_HAS_ROW}{where} ORDER BY r.run"
        with self._reading() as db:
            rows, numbers, packed = list(zip(*db.execute(query, chosen).fetchall(), strict=True)) or ((), (), ())
            names = self._load_names()
            whole, opened = packing.unpack_rows(rows), digest.open_all_summaries(numbers, packed)
            digest.check_names(numbers, names)
        if metrics is not None:
            names = {number: name for number, name in names.items() if name in metrics}
        order = sorted(range(len(whole)), key=[(row.created_at or 0.0, row.key) for row in whole].__getitem__)
        columns = digest.build_metric_columns([numbers[i] for i in order], [opened[i] for i in order], names)
        shown = sorted(columns) if metrics is None else metrics
        ordered = [whole[i] for i in order]
        return IndexTable(ordered, {name: columns.get(name) or digest.build_empty(name, len(rows)) for name in shown})

    def load_metric_names(self, studies: Sequence[str] | None = None) -> list[str]:
        """Return the names of all metrics, sorted."""
        where, chosen = _build_choice(studies, None)
        query = f"SELECT metrics, summaries {_CACHED} WHERE {_HAS_METRICS}{where}"
        with self._reading() as db:
            found = [metrics for metrics, summaries in db.execute(query, chosen) if packing.unseal(summaries, metrics)]
            names = self._load_names()
            digest.check_names(found, names)
            return digest.find_metrics(found, names)


# ---------------------------------------------------------------- from and to rows


def _among(column: str) -> str:
    """Return a condition that has one parameter for any number of values, as SQLite limits the number of parameters."""
    return f"{column} IN (SELECT value FROM json_each(?))"  # noqa: S608


def _build_choice(studies: Sequence[str] | None, keys: Sequence[str] | None) -> tuple[str, list[str]]:
    """Return the conditions after a WHERE over `runs r`, each with AND, and their parameters."""
    where, parameters = "", []
    for column, values in (("r.study", studies), ("r.key", keys)):
        if values is None:
            continue
        # the database's index has the runs of one study in order; runs of several studies would be sorted
        is_single = len(values) == 1
        where += f" AND {column} = ?" if is_single else f" AND {_among(column)}"
        parameters.append(packing.storable(values[0]) if is_single else _list(values))
    return where, parameters


def _list(values: Sequence[str]) -> str:
    """Render a list of values as the parameter of `_among`."""
    import json  # the module is rarely needed: usually there is one study

    return json.dumps(list(map(packing.storable, values)))


def _build_cursor(run: int, source: int, offset: int, sealed: str) -> Cursor:
    import json

    from assay.record.index.writing import open_cursor  # tables do not load cursors

    return Cursor(offset, json.loads(open_cursor(run, source, offset, sealed)))
