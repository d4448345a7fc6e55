"""The index of one user on one machine: a SQLite file in the cache directory."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from assay.errors import IndexDamagedError, InfrastructureError, UsageError
from assay.record.index.base import Answer
from assay.record.index.schema import is_damage, open_database, set_aside
from assay.record.index.stored import QUERY_LIMIT_S, Index, check_query
from assay.system.files import index_path
from assay.values.notify import Notify, ignore

_AGAIN = "it was set aside; give the command again, and it is built again from the run directories"
_ELSEWHERE = "set ASSAY_CACHE_DIR to a folder on a local disk that you may write to"
_HINTS = {
    "SQLITE_FULL": "free space on the disk, or set ASSAY_CACHE_DIR to a folder on another one",
    "SQLITE_BUSY": "another process has been writing for half a minute; look for one that is stopped (state T)",
}


def open_index(root: str | os.PathLike[str], warn: Notify = ignore) -> SqliteIndex:
    """Open the index of a root, in memory if the file cannot be opened; `warn` if an unusable file is built again."""
    try:
        index = SqliteIndex(index_path(root, os.environ), os.path.realpath(root))
    except InfrastructureError:
        return SqliteIndex(":memory:", os.path.realpath(root))
    if index.was_reset:
        warn(f"the index of {os.fspath(root)} is built again from the run directories: {index.reset_reason}")
    return index


class SqliteIndex(Index):
    """An index in a SQLite file for several processes: in WAL mode, one writer at a time locks it for a flush."""

    _db: sqlite3.Connection

    def __init__(self, path: str | os.PathLike[str], root: str | os.PathLike[str] = "") -> None:
        super().__init__()
        self.path, self.root = os.fspath(path), os.fspath(root)
        self.place, self.is_temporary = self.path, self.path == ":memory:"
        self._open()

    def _open(self) -> None:
        try:
            self._db, self.reset_reason = open_database(self.path, self.root)
        except (OSError, sqlite3.Error) as error:
            raise InfrastructureError(f"the index {self.path} cannot be opened: {error}", _ELSEWHERE) from error
        self.was_reset = bool(self.reset_reason)
        self._file = self._identify()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if is_damage(error, self.path) and not self.is_temporary:
                # the file was damaged while it was used: the next call finds an empty index
                self._db.close()
                set_aside(self.path)
                self._open()
                self.was_reset, self.reset_reason = True, f"it is damaged ({error})"
                raise IndexDamagedError(f"the index {self.path} was damaged ({error})", _AGAIN) from error
            name = getattr(error, "sqlite_errorname", None) or ""
            hint = next((text for kind, text in _HINTS.items() if name.startswith(kind)), _ELSEWHERE)
            hint = _AGAIN if is_damage(error) else hint
            raise InfrastructureError(f"the index {self.path} failed: {error}", hint) from error

    def _begin(self, *, writes: bool) -> None:
        self._db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            self._db.execute("ROLLBACK")

    def _disconnect(self) -> None:
        self._db.close()

    def query(self, statement: str) -> Answer:
        check_query(statement)
        self._write_waiting()
        end = time.monotonic() + QUERY_LIMIT_S
        self._db.execute("PRAGMA query_only = 1")
        self._db.set_authorizer(_allow_reading)
        self._db.set_progress_handler(lambda: int(time.monotonic() > end), 100_000)
        try:
            cursor = self._db.execute(statement)
            return Answer([column[0] for column in cursor.description or ()], cursor.fetchall())
        except (sqlite3.Error, sqlite3.Warning) as error:
            if getattr(error, "sqlite_errorname", None) == "SQLITE_INTERRUPT":
                message = f"the query took longer than {QUERY_LIMIT_S:.0f} s"
                raise UsageError(message, "ask for less: LIMIT, or a condition on the study") from error
            raise UsageError(f"the query was refused: {error}") from error
        finally:
            self._db.set_progress_handler(None, 0)
            self._db.set_authorizer(None)
            self._db.execute("PRAGMA query_only = 0")

    def is_there(self) -> bool:
        return self.is_temporary or self._identify() == self._file

    def _identify(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def load_size(self) -> int:
        paths = [self.path + suffix for suffix in ("", "-wal", "-shm")]
        return sum(os.stat(path).st_size for path in paths if os.path.exists(path))

    def compact(self) -> None:
        self._write_waiting()
        with self._translated():
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _allow_reading(action: int, _: str | None, function: str | None, *_more: object) -> int:
    reading = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE)
    is_function = action == sqlite3.SQLITE_FUNCTION and function != "load_extension"
    return sqlite3.SQLITE_OK if action in reading or is_function else sqlite3.SQLITE_DENY
