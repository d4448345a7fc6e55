"""Reads SQLite files of other tools without changing them; refuses unreadable files with a one-line error."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote

from assay.errors import InfrastructureError, UsageError
from assay.exchange.importers.imported_run import refuse
from assay.record.importers.sample import Sample

_MAGIC = "SQLite format 3\0"
_WAIT_S = 5.0  # time to wait for a program that writes


class ForeignDatabase(NamedTuple):
    path: str
    connection: sqlite3.Connection

    def count_rows(self, table: str) -> int:
        """Return the number of rows, or 0 if there is no such table."""
        if table not in _find_tables(self.connection):
            return 0
        return int(self.connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 a constant

    def load_rows(
        self, table: str, columns: Mapping[str, str], order: str = "rowid", **of: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows whose columns have the values `of`. `columns` maps each column to the expression that replaces
        the column in versions of the tool that lack it; a column without an expression must exist."""
        present = {row["name"] for row in self.connection.execute(f"PRAGMA table_info({table})")}
        needed = [*(name for name, instead in columns.items() if not instead), *of]
        if missing := [name for name in needed if name not in present]:
            what = f"the table {table} has no column {missing[0]}" if present else f"it has no table {table}"
            refuse(self.path, f"{what}: it is of another program, or of a version that is not known")
        chosen = ", ".join(f"{name if name in present else instead} AS {name}" for name, instead in columns.items())
        where = " AND ".join(f"{name} = ?" for name in of) or "1"
        query = f"SELECT {chosen} FROM {table} WHERE {where} ORDER BY {order}"  # noqa: S608
        yield from map(dict, self.connection.execute(query, (*of.values(),)))


def has_tables(sample: Sample, tables: Collection[str]) -> bool:
    """Return whether a file is a database with all of `tables`. Raise UsageError if the database is unreadable."""
    if sample.is_folder or not sample.head.startswith(_MAGIC):
        return False
    with reading(sample.path) as database:
        return _find_tables(database.connection) >= set(tables)


@contextmanager
def reading(path: str) -> Iterator[ForeignDatabase]:
    """Open a file in one state, even if another program writes to it. Raise UsageError if the file is unreadable."""
    if not os.path.isfile(path) or not os.path.getsize(path):
        refuse(path, "it is empty" if os.path.isfile(path) else "there is no such file")
    try:
        with closing(_open(path)) as database:
            database.row_factory = sqlite3.Row
            database.text_factory = lambda data: data.decode("utf-8", "replace")
            yield ForeignDatabase(path, database)
    except sqlite3.Error as error:
        reason = f"it cannot be read as a SQLite database: {error}"
        locked = "another program writes to it and has locked it; try again when that has ended"
        refuse(path, locked if _is_locked(error) else reason)


def _open(path: str, more: str = "") -> sqlite3.Connection:
    """Open a file for reading. A file with a `-wal` in a read-only folder is opened as immutable."""
    address = f"file:{quote(os.path.abspath(path))}?mode=ro{more}"
    database = sqlite3.connect(address, uri=True, timeout=_WAIT_S, isolation_level=None)
    try:
        database.execute("BEGIN")
        database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        database.close()
        can_write = os.access(os.path.dirname(os.path.abspath(path)), os.W_OK)
        if more or can_write or not isinstance(error, sqlite3.OperationalError):
            raise
        return _open(path, "&immutable=1")
    return database


def _find_tables(database: sqlite3.Connection) -> set[str]:
    return {str(name) for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _is_locked(error: sqlite3.Error) -> bool:
    code: int = getattr(error, "sqlite_errorcode", 0)  # only errors of SQLite itself have a code
    return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def check_writable(path: str, table: str, timeout_s: float) -> None:
    """Raise an error if a database cannot be written: MLflow would retry for a minute with a damaged database."""
    if not os.path.lexists(path):
        return
    try:
        with closing(sqlite3.connect(path, timeout=timeout_s, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            tables = _find_tables(database)
            database.execute("ROLLBACK")
    except sqlite3.Error as error:
        if isinstance(error, sqlite3.OperationalError):
            hint = "another program writes to it: try again when that has ended" if _is_locked(error) else ""
            raise InfrastructureError(f"{path} cannot be written: {error}", hint) from error
        hint = "name another file: --to mlflow.db"
        raise UsageError(f"{path} is not a SQLite database that can be used: {error}", hint) from error
    if tables and table not in tables:
        hint = "name a file of its own: --to mlflow.db"
        raise UsageError(f"{path} is a database of another program: it has no table {table}", hint)
