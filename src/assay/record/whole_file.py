"""Files that other processes read: whole or not there, since each is written aside before it gets its name."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from assay.values import layout

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
    aside = f"{path}.{os.urandom(4).hex()}{layout.TEMPORARY_SUFFIX}"
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
