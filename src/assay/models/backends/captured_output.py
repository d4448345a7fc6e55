"""The output of a tool or a library on stdout and stderr: kept, bounded, and passed on to where it went."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from assay.system.fast_dataclasses import dataclass
from assay.system.processes import name_descriptor

KEPT_BYTES = 64 * 1024  # of each stream: half from the beginning, half from the end
_CHUNK_BYTES = 65536
_DRAIN_S = 2.0  # how long a stream may stay open after its program has ended: a grandchild may hold it for ever


@dataclass(frozen=True, slots=True)
class CapturedOutput:
    """How a program ended. `code` is negative for a signal, as subprocess has it."""

    code: int
    stdout: str
    stderr: str


class Excerpt:
    """The head and the tail of a stream, however long it is."""

    def __init__(self, limit_bytes: int = KEPT_BYTES) -> None:
        self._half = limit_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, chunk: bytes) -> None:
        room = max(0, self._half - len(self._head))
        self._head += chunk[:room]
        self._tail += chunk[room:]
        extra = len(self._tail) - self._half
        if extra > 0:
            del self._tail[:extra]
            self._dropped += extra

    def render(self) -> str:
        if not self._dropped:
            return (self._head + self._tail).decode("utf-8", "replace")
        gap = f"\n… {self._dropped} bytes left out …\n"
        return self._head.decode("utf-8", "replace") + gap + self._tail.decode("utf-8", "replace")


def name_signal(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def load_excerpt(path: str) -> str:
    """The excerpt of a file; empty where there is none."""
    try:
        with open(path, "rb") as stream:
            return _read_excerpt(stream)
    except FileNotFoundError:
        return ""


def _read_excerpt(stream: IO[bytes]) -> str:
    excerpt = Excerpt()
    while chunk := stream.read(_CHUNK_BYTES):
        excerpt.add(chunk)
    return excerpt.render()


# ---------------------------------------------------------------- programs


def run_program(argv: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> CapturedOutput:
    """Run a program to its end. Its output goes on to our own stdout and stderr as it comes, and is kept."""
    with subprocess.Popen(
        argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        return listen(process)


def listen(process: subprocess.Popen[bytes]) -> CapturedOutput:
    """Pass the output of a program on until it ends, and keep an excerpt of it."""
    kept = Excerpt(), Excerpt()
    streams = ((process.stdout, 1, kept[0]), (process.stderr, 2, kept[1]))
    threads = [
        threading.Thread(target=_pass_on, args=(stream, fd, excerpt), daemon=True)
        for stream, fd, excerpt in streams
        if stream is not None
    ]
    for thread in threads:
        thread.start()
    code = process.wait()
    for thread in threads:
        thread.join(_DRAIN_S)
    return CapturedOutput(code, kept[0].render(), kept[1].render())


def _pass_on(stream: IO[bytes], fd: int, excerpt: Excerpt) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed by the other side, or by us
        while chunk := os.read(stream.fileno(), _CHUNK_BYTES):
            excerpt.add(chunk)
            with contextlib.suppress(OSError):
                os.write(fd, chunk)


# ---------------------------------------------------------------- libraries


def begin_stderr() -> Callable[[], str]:
    """Return what reads all that is written to stderr from now on, by a library in this process as well.

    In a worker stderr is a file: a crash loses nothing.
    """
    sys.stderr.flush()
    start = os.fstat(2).st_size

    def read() -> str:
        sys.stderr.flush()
        with open(name_descriptor(2), "rb") as stream:
            stream.seek(start)
            return _read_excerpt(stream)

    return read
