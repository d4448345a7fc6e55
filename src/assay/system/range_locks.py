"""The locks of the artifact store: byte ranges of one file, kept by the kernel.

Each lock is one byte of `store.lock`, at a place that follows from what is locked; the file itself stays empty. So any
number of locks costs one descriptor and no disk space (a full disk does not stop anybody from reading), nothing is left
to clean up, and whatever a process held is free the moment it is gone, also after kill -9. They are locks of an open
file description (OFD), not of a process: threads exclude one another, and closing some other descriptor of the file
frees nothing.

    whole(exclusive)   shared: take or publish an entry; exclusive: take entries away
    building(key)      exclusive: who builds this key
    hold(name)         shared: this entry is in use
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
_WHOLE = 0
_BUILD_BASE = 1 << 60
_USE_BASE = 1 << 61
_TAKEN = (errno.EAGAIN, errno.EACCES)


class StoreLocks:
    """Locks by name. Without write access there are only shared ones; without the file there are none."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._guard = threading.Lock()
        self._held: Counter[str] = Counter()
        self._use_fd: int | None = None
        self._pid = os.getpid()

    @contextlib.contextmanager
    def whole(self, *, exclusive: bool) -> Iterator[None]:
        fd = _open(self._path, write=True) if exclusive else _open_to_read(self._path)
        try:
            if fd is not None:
                _set(fd, fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK, _WHOLE)
            yield
        finally:
            if fd is not None:
                os.close(fd)

    @contextlib.contextmanager
    def building(self, key: str) -> Iterator[None]:
        """Waits for whoever builds it now."""
        fd = _open(self._path, write=True)
        try:
            _set(fd, fcntl.F_WRLCK, _BUILD_BASE + _place(key))
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def if_not_building(self, key: str) -> Iterator[bool]:
        """False where somebody builds it, this process included; else nobody can meanwhile."""
        fd = _open(self._path, write=True)
        try:
            yield _try(fd, fcntl.F_WRLCK, _BUILD_BASE + _place(key))
        finally:
            os.close(fd)

    def hold(self, name: str) -> None:
        """Say that an entry is in use, as often as it is taken."""
        with self._guard:
            self._leave_parent()
            if self._use_fd is None:
                self._use_fd = _open_to_read(self._path)
            if self._use_fd is not None and not self._held[name]:
                _set(self._use_fd, fcntl.F_RDLCK, _USE_BASE + _place(name))
            self._held[name] += 1

    def let_go(self, name: str) -> None:
        """As often as it was held; more often does nothing."""
        with self._guard:
            self._leave_parent()
            if not self._held[name]:
                return
            self._held[name] -= 1
            if not self._held[name] and self._use_fd is not None:
                _set(self._use_fd, fcntl.F_UNLCK, _USE_BASE + _place(name))

    def is_held(self, name: str) -> bool:
        """By any process, this one included: the question is asked through a description of its own."""
        fd = _open_to_read(self._path)
        if fd is None:
            return False
        try:
            asked = _pack(fcntl.F_WRLCK, _USE_BASE + _place(name))
            answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked)
            return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
        finally:
            os.close(fd)

    def close(self) -> None:
        with self._guard:
            self._leave_parent()
            self._held.clear()
            if self._use_fd is not None:
                os.close(self._use_fd)
                self._use_fd = None

    def _leave_parent(self) -> None:
        """A forked child shares its parent's description: what it lets go would be gone for the parent as well.

        It begins anew, and leaves the inherited one open: what the parent held stays held while the child lives.
        """
        if self._pid != os.getpid():
            self._pid, self._use_fd = os.getpid(), None
            self._held.clear()


def _place(name: str) -> int:
    """60 bits: two names that meet protect each other for a while, which harms nobody."""
    return int.from_bytes(blake2b(os.fsencode(name), digest_size=8).digest()) >> 4


def _open(path: str, *, write: bool) -> int:
    mode = os.O_RDWR if write else os.O_RDONLY
    try:
        return os.open(path, mode | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.open(path, mode | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _open_to_read(path: str) -> int | None:
    """None in a read-only store that has no such file: nobody who could write there has ever been."""
    try:
        return _open(path, write=False)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOSPC, errno.EDQUOT):
            return None
        raise


def _pack(kind: int, start: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, start, 1, 0)


def _set(fd: int, kind: int, start: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _pack(kind, start))


def _try(fd: int, kind: int, start: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _pack(kind, start))
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True
