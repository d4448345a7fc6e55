"""The tables of the SQLite index, and how a file becomes one.

runs        one row per run. `row` is the whole RunRow, by `marshal`: read three times as fast as columns of
            their own. A run without one only lends its number to points that came before it.
            `metrics`, `summaries` and `carried` say what its metrics come to (digest.py)
names       numbers for the names of metrics and sources; never deleted, so processes may remember them
cursors     how far each source of a run has been read
chunks      points: packed doubles, in the order of `id`

There are no migrations: the index is a copy, so a file of another version is set aside and made anew.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress

VERSION = 3
APPLICATION_ID = 0x41535359  # "ASSY"
BUSY_TIMEOUT_S = 30.0
_DAMAGED = (
    *("SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_FORMAT", "SQLITE_SCHEMA"),
    *("SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "SQLITE_TOOBIG", "SQLITE_RANGE"),
)

_TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE runs (
    num INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, study TEXT NOT NULL, state TEXT, active_at REAL, row BLOB,
    metrics BLOB, summaries BLOB, carried BLOB
);
CREATE INDEX runs_study ON runs (study);
CREATE TABLE names (num INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, seal BLOB NOT NULL);
CREATE TABLE cursors (
    run INTEGER NOT NULL, source INTEGER NOT NULL, offset INTEGER NOT NULL, state TEXT NOT NULL,
    PRIMARY KEY (run, source)
) WITHOUT ROWID;
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL, metric INTEGER NOT NULL, parts BLOB NOT NULL,
    steps BLOB NOT NULL, "values" BLOB NOT NULL, times BLOB NOT NULL
);
CREATE INDEX chunks_series ON chunks (run, metric);
"""


def open_database(path: str, root: str) -> tuple[sqlite3.Connection, str]:
    """A connection to a ready index, made or made anew where needed; why an older file had to be set aside, or ""."""
    if path == ":memory:":
        return _connect(path, root)[0], ""
    if os.path.exists(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(f"{path} is not writable")
        connection, fault = _connect(path, None)
        if fault is None:  # the ordinary case, without a lock
            return connection, ""
        connection.close()
    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
    with _locked(f"{path}.lock"):  # switching to WAL and setting aside are not safe against one another
        return _open_alone(path, root)


def _open_alone(path: str, root: str) -> tuple[sqlite3.Connection, str]:
    connection, fault = _connect(path, root)
    if not fault:
        return connection, ""
    connection.close()
    set_aside(path)
    return _connect(path, root)[0], fault


def _connect(path: str, new_root: str | None) -> tuple[sqlite3.Connection, str | None]:
    """A connection, and what `_find_fault` says of it; where a root is given, a blank file becomes an index."""
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    try:
        fault = _find_fault(connection)
        if fault == "" and new_root is not None:
            _create(connection, new_root)
            fault = None
        if fault is None:
            _tune(connection)
    except BaseException:
        connection.close()
        raise
    return connection, fault


def _tune(connection: sqlite3.Connection) -> None:
    # In WAL mode NORMAL waits for the disk only at a checkpoint. OFF would save that too, but after a power cut
    # it may leave a file that is wrong without being unreadable.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")


def _find_fault(connection: sqlite3.Connection) -> str | None:
    """None: ready. "": new and empty. Else why the file cannot be used."""
    try:
        if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
            return ""
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if application != APPLICATION_ID:
            return _find_foreign(connection)
        if version != VERSION:
            return f"it has format {version}, this Assay uses {VERSION}"
        connection.execute("SELECT num FROM runs LIMIT 1").fetchall()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return f"it is damaged ({error})"
    return None


def _find_foreign(connection: sqlite3.Connection) -> str:
    """WAL is switched on before there is a table: a creator that was killed in between leaves a blank file."""
    blank = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    return "" if blank else "it is not an index of Assay"


def _create(connection: sqlite3.Connection, root: str) -> None:
    connection.execute("PRAGMA page_size = 8192")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    connection.execute("INSERT INTO about VALUES ('root', ?)", (os.fsencode(root).decode("utf-8", "backslashreplace"),))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def is_damage(error: sqlite3.Error, path: str = "") -> bool:
    """Our statements and values are always the same, so an error in them comes from a damaged schema or page.

    Python's own errors (a text that is not UTF-8) carry no name.
    """
    name = getattr(error, "sqlite_errorname", None)
    if name == "SQLITE_READONLY":  # a damaged header says so, too
        return bool(path) and os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK)
    if not isinstance(error, sqlite3.OperationalError | sqlite3.IntegrityError | sqlite3.DataError) and name is None:
        return False
    return name is None or name == "SQLITE_ERROR" or name.startswith(_DAMAGED)


def set_aside(path: str) -> None:
    """Keep the last unusable file for whoever wants to look into it."""
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.unlink(f"{path}.aside{suffix}")
        with suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{path}.aside{suffix}")


@contextmanager
def _locked(path: str) -> Iterator[None]:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
