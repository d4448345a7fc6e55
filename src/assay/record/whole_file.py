"""Files that other processes read: whole or not there, since each is written aside before it gets its name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from assay.values import layout


def write_new(path: str, text: str, mode: int = 0o666) -> None:
    """Where nothing may have the name yet."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        data = text.encode("utf-8", "surrogateescape")
        while data:  # a disk that runs full takes a part, and refuses the next
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


def write_atomic(path: str, text: str) -> None:
    """Replace a file: readers see the old or the new text, never a part."""
    with _aside(path, text) as aside:
        os.replace(aside, path)


@contextlib.contextmanager
def _aside(path: str, text: str) -> Iterator[str]:
    """A complete file beside the one that is meant; gone afterwards, whatever happens but a kill."""
    aside = f"{path}.{os.urandom(4).hex()}{layout.TEMPORARY_SUFFIX}"
    try:
        write_new(aside, text)
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
