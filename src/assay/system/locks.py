"""Locks on folders: the kernel lets go of them however their holder ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from typing import IO

from assay.errors import AssayError, UsageError

LOCK_FILE = "lock"
LOOK_AGAIN_S = 0.2


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
def hold(folder: str, taken: AssayError, wait: Callable[[], None] | None = None) -> Iterator[None]:
    """The folder is this process's alone, for as long as it works there. Raises `taken` where it is another's; with
    `wait` that is called once instead, and it is waited for."""
    try:
        os.makedirs(folder, exist_ok=True)
        file = open(os.path.join(folder, LOCK_FILE), "w", encoding="utf-8")  # noqa: SIM115 held until the end
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}", "choose another place: --root DIR") from None
    with file:
        if not _try_lock(file):
            if wait is None:
                raise taken
            wait()
            while not _try_lock(file):
                time.sleep(LOOK_AGAIN_S)
        yield


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
