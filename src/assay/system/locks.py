"""Locks on files, folders and ranges of a file; the kernel releases them however their holder ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

from assay.errors import AssayError, UsageError

LOCK_FILE = "lock"
POLL_S = 0.2
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOSPC, errno.EDQUOT)
_FLOCK = "hhqqi0q"  # the fields of struct flock: type, whence, start, length, pid; padded as by a C compiler


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Try to take a lock; False if another process holds it. Raise OSError on a file system without locks."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True


def unlock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)


def try_lock_file(path: str, *, shared: bool = False, create: bool = True) -> int | None:
    """Return a descriptor that holds the lock of a file until it is closed; None if another process holds it, or has
    removed the file since it was opened: such a lock would exclude no other process."""
    flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        if try_lock(fd, shared=shared) and is_named(fd, path):
            return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def is_named(fd: int, path: str) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def hold_file(path: str, on_taken: Callable[[int], None], *, required: bool = True) -> Iterator[int]:
    """Hold the lock of a file that exists only while a process holds it; yield its descriptor. If another process holds
    it, `on_taken` is called once with a readable descriptor; unless it raises an error, this call waits. Without
    `required`, no lock is taken on a file system without locks."""
    fd = _take(path, on_taken, required)
    try:
        yield fd
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)  # removed before the lock is released
        os.close(fd)


def _take(path: str, on_taken: Callable[[int], None], required: bool) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                is_ours = try_lock(fd)
            except OSError:
                if required:
                    raise
                is_ours = True
            if not is_ours:
                on_taken(fd)
                fcntl.flock(fd, fcntl.LOCK_EX)
            if is_named(fd, path):  # otherwise the previous holder has just removed the file
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


@contextlib.contextmanager
def locked(path: str, *, create: bool = False) -> Iterator[None]:
    """Hold the lock of `path`, a folder or a file, for a short write, so that processes write one after another."""
    fd = os.open(path, (os.O_RDWR | os.O_CREAT if create else os.O_RDONLY) | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # on a file system without locks the write is still atomic
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def hold(
    folder: str, taken: AssayError | None, wait: Callable[[], None] | None = None, name: str = LOCK_FILE
) -> Iterator[None]:
    """Lock a folder for this process; if another process holds the lock, call `wait` and wait, or raise `taken`."""
    try:
        os.makedirs(folder, exist_ok=True)
        file = open(os.path.join(folder, name), "a", encoding="utf-8")  # noqa: SIM115 closed at the end
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}", "choose another folder: --root DIR") from None
    with file:
        if not try_lock(file.fileno()):
            if wait is not None:
                wait()
            elif taken is not None:
                raise taken
            while not try_lock(file.fileno()):
                time.sleep(POLL_S)
        yield


class RangeLocks:
    """Locks by name, as byte ranges of one empty file.

    The lock of a name is one byte of the file, at an offset computed from the name. Any number of locks needs only one
    descriptor and no disk space (a full disk stops no reader), nothing must be cleaned up, and locks are released when
    their process has ended, also after kill -9. The locks belong to an open file description (OFD), not to a process:
    threads exclude one another, and closing another descriptor of the file releases nothing.

    Without write access only shared locks are possible. If the file cannot be created, no lock is taken or needed.
    """

    def __init__(self, path: str) -> None:
        import threading

        self._path = path
        self._guard = threading.Lock()
        self._held: Counter[str] = Counter()
        self._fd: int | None = None
        self._pid = os.getpid()

    @contextlib.contextmanager
    def exclusive(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Take an exclusive lock; with `wait` False, yield whether no process, this one included, held the lock."""
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
        """Take a shared lock, and keep it until `release` has been called as often as `hold`, or until `close`."""
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
        """Whether any process, this one included, holds the lock: the query uses its own file description."""
        fd = _open_to_read(self._path)
        if fd is None:
            return False
        try:
            answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _pack(fcntl.F_WRLCK, name))
            return bool(int.from_bytes(answer[:2], sys.byteorder) != fcntl.F_UNLCK)  # l_type is the first field
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
        """Forget locks in a forked child, which shares the parent's description: releasing would affect the parent."""
        if self._pid != os.getpid():
            self._pid, self._fd = os.getpid(), None
            self._held.clear()


def _open_to_read(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
    with contextlib.suppress(OSError):  # the file may exist in a folder that cannot be written
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None


def _pack(kind: int, name: str) -> bytes:
    """Pack a lock of 62 bits of a hash: two names with the same offset lock each other briefly, which is harmless."""
    import struct
    from hashlib import blake2b

    offset = int.from_bytes(blake2b(os.fsencode(name), digest_size=8).digest()) >> 2
    return struct.pack(_FLOCK, kind, os.SEEK_SET, offset, 1, 0)
