"""Words to whoever listens. A reader that has left (`assay run … | head`) is no reason to leave the runs alone."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO


def tell(text: str, stream: TextIO | None = None) -> None:
    """A text as it is, on standard output unless said otherwise."""
    out = sys.stdout if stream is None else stream
    try:
        out.write(text)
        out.flush()
    except OSError:  # nobody reads it any more, or the disk is full: no reason to leave the runs alone
        _silence(out)


def say(line: str) -> None:
    tell(f"{_clean(line)}\n")


def note(line: str) -> None:
    """On standard error."""
    tell(f"{_clean(line)}\n", sys.stderr)


def _clean(text: str) -> str:
    from assay.show.formatting import clean_lines

    return clean_lines(text)


def echo(data: bytes) -> None:
    """A run's own output, byte for byte."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        _silence(sys.stdout)


def _silence(stream: TextIO) -> None:
    """What waits in the buffer would fail again with every word, and once more at the exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, stream.fileno())
        with contextlib.suppress(OSError):
            stream.flush()
    finally:
        os.close(null)


def build_same_call() -> str:
    """The command line that this process was called with, to be pasted."""
    from assay.values.shell import build_command

    return build_command(("assay", *sys.argv[1:]))
