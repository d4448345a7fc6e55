"""The index of one user on one machine: a SQLite file in the cache directory."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from assay.errors import InfrastructureError
from assay.record.index.schema import is_damage, open_database, set_aside
from assay.record.index.stored import StoredIndex
from assay.system.files import index_path
from assay.values.notify import Notify, ignore

_AGAIN = "it was set aside; give the command again, and it is built again from the run directories"


class IndexDamagedError(InfrastructureError):
    """The index was damaged and is empty now: a command that only reads starts again, and finds it filled."""


def open_index(root: str | os.PathLike[str], warn: Notify = ignore) -> SqliteIndex:
    """The index of a root. Where none can be kept, one that lives as long as this process.

    `warn` hears that an older or damaged file was set aside: what it held is read again from the run directories.
    """
    try:
        index = SqliteIndex(index_path(root, os.environ), os.path.realpath(root))
    except InfrastructureError:
        return SqliteIndex(":memory:", os.path.realpath(root))
    if index.was_reset:
        warn(f"the index of {os.fspath(root)} is built again from the run directories: {index.reset_reason}")
    return index


class SqliteIndex(StoredIndex):
    """Several processes at once: WAL, one writer at a time, each for as long as one flush takes."""

    _db: sqlite3.Connection

    def __init__(self, path: str | os.PathLike[str], root: str | os.PathLike[str] = "") -> None:
        super().__init__()
        self.path, self.root = os.fspath(path), os.fspath(root)
        self.is_temporary = self.path == ":memory:"
        self._open()

    def _open(self) -> None:
        try:
            self._db, self.reset_reason = open_database(self.path, self.root)
        except (OSError, sqlite3.Error) as error:
            raise InfrastructureError(
                f"the index {self.path} cannot be opened: {error}",
                "set ASSAY_CACHE_DIR to a folder on a local disk that you may write to",
            ) from error
        self.was_reset = bool(self.reset_reason)

    # ---------------------------------------------------------------- transactions

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if is_damage(error, self.path) and not self.is_temporary:
                # the file broke while it was used: the next call finds an empty index
                self._db.close()
                set_aside(self.path)
                self._open()
                self.was_reset, self.reset_reason = True, f"it is damaged ({error})"
                raise IndexDamagedError(f"the index {self.path} was damaged ({error})", _AGAIN) from error
            raise _build_error(self.path, error) from error

    def _begin(self, *, writes: bool) -> None:
        self._db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            self._db.execute("ROLLBACK")

    def _disconnect(self) -> None:
        self._db.close()


def _build_error(path: str, error: sqlite3.Error) -> InfrastructureError:
    name = getattr(error, "sqlite_errorname", None) or ""
    if is_damage(error):
        hint = _AGAIN
    elif name.startswith("SQLITE_FULL"):
        hint = "free space on the disk, or set ASSAY_CACHE_DIR to a folder on another one"
    elif name.startswith("SQLITE_BUSY"):
        hint = "another process has been writing for half a minute; look for one that is stopped (state T)"
    else:
        hint = "set ASSAY_CACHE_DIR to a folder on a local disk that you may write to"
    return InfrastructureError(f"the index {path} failed: {error}", hint)
