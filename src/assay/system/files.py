"""Files that other processes read: whole or not there, since each is written aside before it gets its name."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator

TEMPORARY_SUFFIX = ".tmp"  # of a file that is being written: it gets its name when it is whole
_PIECE = 1 << 20
_MOST_PIECES = 256  # a link to /dev/zero must not fill the memory


def write_new(path: str, text: str, mode: int = 0o666) -> None:
    """Where nothing may have the name yet."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        data = text.encode("utf-8", "surrogateescape")
        while data:  # a disk that runs full takes a part, and refuses the next
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


def flush_folder(folder: str) -> None:
    """Have the disk hold all that was written in this folder's file system: one call, however many files."""
    import ctypes  # for syncfs(2), which Python does not offer; os.sync would wait for every disk of the machine

    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ctypes.CDLL(None).syncfs(fd)
    finally:
        os.close(fd)


class Flusher:
    """Flushes a folder once for each batch of news, in a thread: nobody waits for the disk."""

    def __init__(self, folder: str, gather_s: float = 1.0, pause_s: float = 10.0) -> None:
        self._folder, self._gather_s, self._pause_s = folder, gather_s, pause_s
        self._due: float | None = None  # when the present batch is full; None: there is nothing new
        self._rests_until = 0.0
        self._thread: threading.Thread | None = None
        self.count = 0

    def note(self) -> None:
        """Something new was written."""
        if self._due is None:
            self._due = max(time.monotonic() + self._gather_s, self._rests_until)

    def tick(self) -> None:
        """Called now and then: begins a flush when one is due and none is under way."""
        now = time.monotonic()
        if self._due is None or now < self._due or (self._thread is not None and self._thread.is_alive()):
            return
        self._due, self._rests_until = None, now + self._pause_s
        self._thread = threading.Thread(target=self._flush, daemon=True)
        self._thread.start()

    def _flush(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # a folder that is gone; a C library without syncfs
            flush_folder(self._folder)
            self.count += 1

    def wait(self) -> None:
        """Until the flush that is under way has come to its end."""
        if self._thread is not None:
            self._thread.join()


def read_text(path: str) -> str:
    """The text of a small file. Raises OSError for what is not one; a pipe reads as empty, and is not waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        pieces = []
        while piece := os.read(fd, _PIECE):
            pieces.append(piece)
            if len(pieces) > _MOST_PIECES:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    finally:
        os.close(fd)
    return b"".join(pieces).decode("utf-8", "surrogateescape")


def write_atomic(path: str, text: str, mode: int = 0o666) -> None:
    """Replace a file: readers see the old or the new text, never a part. A folder of that name is renamed."""
    with _aside(path, text, mode) as aside:
        try:
            os.replace(aside, path)
        except IsADirectoryError:
            os.rename(path, f"{path}.damaged-{os.urandom(3).hex()}")
            os.replace(aside, path)


@contextlib.contextmanager
def _aside(path: str, text: str, mode: int = 0o666) -> Iterator[str]:
    """A complete file beside the one that is meant; gone afterwards, whatever happens but a kill."""
    aside = f"{path}.{os.urandom(4).hex()}{TEMPORARY_SUFFIX}"
    try:
        write_new(aside, text, mode)
        yield aside
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)


def publish(target: str, text: str) -> bool:
    """Create a file with its whole content by link(2). True for exactly one caller."""
    with _aside(target, text) as aside:
        try:
            os.link(aside, target)
        except FileExistsError:
            return False
    return True
