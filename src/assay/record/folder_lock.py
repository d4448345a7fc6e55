"""Locks on folders: the kernel lets go of them however their holder ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from assay.errors import AssayError, UsageError

LOCK_FILE = "lock"


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """One after another, where several merge into the same file; held for a moment only."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: the write is still atomic
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def hold(folder: str, taken: AssayError) -> Iterator[None]:
    """The folder is this process's alone, for as long as it works there. Raises `taken` where it is another's."""
    try:
        os.makedirs(folder, exist_ok=True)
        file = open(os.path.join(folder, LOCK_FILE), "w", encoding="utf-8")  # noqa: SIM115 held until the end
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}", "choose another place: --root DIR") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise taken from None
        yield
