"""Locks on files, folders and ranges of a file: the kernel releases them however their holder ends."""

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
_FLOCK = "hhqqi0q"  # struct flock: type, whence, start, length, pid; padded as the compiler pads it


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """False where another holds it. Raises OSError on a file system without locks."""
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
    """A descriptor that holds the lock of the file of this name until it is closed; None where another holds it, or
    has removed the file since it was opened: such a lock would exclude no other process."""
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
    """Hold the lock of a file that exists only while a process holds it; its descriptor.

    Where another process holds it, `on_taken` is called once with a descriptor to read from: it raises, or this waits.
    Without `required` a file system without locks is worked on unlocked.
    """
    fd = _take(path, on_taken, required)
    try:
        yield fd
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)  # while it is still ours
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
            if is_named(fd, path):  # else its holder has just removed it
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


@contextlib.contextmanager
def locked(path: str, *, create: bool = False) -> Iterator[None]:
    """One after another, where several write the same; held for a moment only. `path` is a folder or a file."""
    fd = os.open(path, (os.O_RDWR | os.O_CREAT if create else os.O_RDONLY) | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: the write is still atomic
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def hold(
    folder: str, taken: AssayError | None, wait: Callable[[], None] | None = None, name: str = LOCK_FILE
) -> Iterator[None]:
    """The folder is this process's alone, for as long as it works there. Raises `taken` where it is another's; with
    `wait` that is called once instead, and this waits for the other."""
    try:
        os.makedirs(folder, exist_ok=True)
        file = open(os.path.join(folder, name), "a", encoding="utf-8")  # noqa: SIM115 held until the end
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


# ---------------------------------------------------------------- ranges of a file


class RangeLocks:
    """Locks by name: byte ranges of one empty file.

    The lock of a name is one byte of the file, at an offset that follows from the name. Any number of locks costs one
    descriptor and no disk space (a full disk stops no reader), nothing has to be cleaned up, and what a process held is
    free as soon as the process has ended, also after kill -9. They are locks of an open file description (OFD), not of
    a process: threads exclude one another, and closing another descriptor of the file releases nothing.

    Without write access only shared locks can be taken; without the file, none: no process could write there either.
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
        """False, without `wait`: a process, maybe this one, has a lock of this name."""
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
        """Whether any process has the lock, this one included: the query uses a description of its own."""
        fd = _open_to_read(self._path)
        if fd is None:
            return False
        try:
            answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _pack(fcntl.F_WRLCK, name))
            return bool(int.from_bytes(answer[:2], sys.byteorder) != fcntl.F_UNLCK)  # l_type comes first
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
    import struct
    from hashlib import blake2b

    offset = int.from_bytes(blake2b(os.fsencode(name), digest_size=8).digest()) >> 2
    return struct.pack(_FLOCK, kind, os.SEEK_SET, offset, 1, 0)
