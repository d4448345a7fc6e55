"""Locks on files and folders: the kernel releases them however their holder ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator

from assay.errors import AssayError, UsageError

LOCK_FILE = "lock"
POLL_S = 0.2
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)


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
    has removed the file since it was opened: such a lock would exclude nobody."""
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
    """Hold the lock of a file that exists only while somebody holds it; its descriptor.

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
            if not _try_or_go_on(fd, required):
                on_taken(fd)
                fcntl.flock(fd, fcntl.LOCK_EX)
            if is_named(fd, path):  # else its holder has just removed it
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _try_or_go_on(fd: int, required: bool) -> bool:
    try:
        return try_lock(fd)
    except OSError:
        if required:
            raise
        return True


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
