"""New bytes of a file that grows."""

from __future__ import annotations

import os
import stat


class Tail:
    """Reads what was appended since `offset`.

    A file that became shorter, or that another file has replaced, is read again from its start; `restarts` counts
    this, and whoever keeps a state beside the offset has to forget it then. A file that is not there (yet) is empty;
    so is a folder or a pipe in its place.
    """

    def __init__(self, path: str | os.PathLike[str], offset: int = 0, inode: int | None = None) -> None:
        """`inode` is that of the file which `offset` was measured in, where the caller has kept it."""
        self.path = os.fspath(path)
        self.offset = offset
        self.inode = inode
        self.restarts = 0

    def read(self, limit: int = 1 << 20) -> bytes:
        """At most `limit` new bytes; empty when there are none."""
        try:
            status = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return b""
        if not stat.S_ISREG(status.st_mode):
            return b""
        self._notice(status)
        if status.st_size <= self.offset:
            return b""  # most polls end here, without an open
        return self._read(limit)

    def _notice(self, status: os.stat_result) -> None:
        is_other = self.inode is not None and status.st_ino != self.inode
        self.inode = status.st_ino
        if is_other or status.st_size < self.offset:
            self.restarts += 1 if self.offset else 0
            self.offset = 0

    def _read(self, limit: int) -> bytes:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            data = os.pread(descriptor, limit, self.offset)
        finally:
            os.close(descriptor)
        self.offset += len(data)
        return data
