"""Locks by name: byte ranges of one empty file, kept by the kernel.

The lock of a name is one byte of the file, at an offset that follows from the name. Any number of locks costs one
descriptor and no disk space (a full disk stops no reader), nothing has to be cleaned up, and what a process held is
free as soon as the process has ended, also after kill -9. They are locks of an open file description (OFD), not of a
process: threads exclude one another, and closing another descriptor of the file releases nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b

_FLOCK = "hhqqi0q"  # struct flock: type, whence, start, length, pid; padded as the compiler pads it
_TAKEN = (errno.EAGAIN, errno.EACCES)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOSPC, errno.EDQUOT)


class RangeLocks:
    """Without write access only shared locks can be taken; without the file, none: nobody could write there either."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._guard = threading.Lock()
        self._held: Counter[str] = Counter()
        self._fd: int | None = None
        self._pid = os.getpid()

    @contextlib.contextmanager
    def exclusive(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """False, without `wait`: somebody has a lock of this name, this process included."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, _pack(fcntl.F_WRLCK, name))
            taken = False
        except OSError as error:
            taken = error.errno in _TAKEN
            if not taken:
                os.close(fd)
                raise
        try:
            yield not taken
        finally:
            os.close(fd)

    def hold(self, name: str) -> None:
        """Take a shared lock, until `release` was called as often or until `close`."""
        with self._guard:
            self._leave_parent()
            if self._fd is None:
                self._fd = _open_to_read(self._path)
            if self._fd is not None and not self._held[name]:
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLKW, _pack(fcntl.F_RDLCK, name))
            self._held[name] += 1

    def release(self, name: str) -> None:
        with self._guard:
            self._leave_parent()
            if not self._held[name]:
                return
            self._held[name] -= 1
            if not self._held[name] and self._fd is not None:
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLKW, _pack(fcntl.F_UNLCK, name))

    def is_held(self, name: str) -> bool:
        """By any process, this one included: the query uses a description of its own."""
        fd = _open_to_read(self._path)
        if fd is None:
            return False
        try:
            answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _pack(fcntl.F_WRLCK, name))
            return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
        finally:
            os.close(fd)

    def close(self) -> None:
        with self._guard:
            self._leave_parent()
            self._held.clear()
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def _leave_parent(self) -> None:
        """A forked child shares its parent's description: what it releases would be released for the parent as well.

        The child starts without locks and leaves the inherited descriptor open.
        """
        if self._pid != os.getpid():
            self._pid, self._fd = os.getpid(), None
            self._held.clear()


def _open_to_read(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
    with contextlib.suppress(OSError):  # a file that exists, in a folder that cannot be written
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None


def _pack(kind: int, name: str) -> bytes:
    """62 bits of a hash: two names that share an offset lock each other for a while, which is harmless."""
    offset = int.from_bytes(blake2b(os.fsencode(name), digest_size=8).digest()) >> 2
    return struct.pack(_FLOCK, kind, os.SEEK_SET, offset, 1, 0)
