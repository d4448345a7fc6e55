"""Captures a bounded excerpt of what a tool or a library writes to stdout and stderr, which still get all of it; lists
the files that were written into a folder."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from assay.system.fast_dataclasses import dataclass
from assay.system.processes import name_descriptor

KEPT_BYTES = 64 * 1024  # the excerpt of each stream: half from the beginning, half from the end


@dataclass(frozen=True, slots=True)
class CapturedOutput:
    """Excerpts of a program's output, and its exit code: negative for a signal, as in subprocess."""

    code: int
    stdout: str
    stderr: str


def name_signal(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def load_excerpt(path: str) -> str:
    """Return the excerpt of a file; empty if the file does not exist."""
    try:
        with open(path, "rb") as stream:
            return _read_excerpt(stream)
    except FileNotFoundError:
        return ""


def _read_excerpt(stream: IO[bytes], limit_bytes: int = KEPT_BYTES) -> str:
    """Return the head and the tail of the stream's current content: a program that still writes causes no delay."""
    half, size = limit_bytes // 2, os.fstat(stream.fileno()).st_size - stream.tell()
    dropped = size - 2 * half
    if dropped <= 0:
        return stream.read(max(0, size)).decode("utf-8", "replace")
    head = stream.read(half)
    stream.seek(dropped, os.SEEK_CUR)
    gap = f"\n… {dropped} bytes left out …\n"
    return (head + gap.encode() + stream.read(half)).decode("utf-8", "replace")


def run_program(argv: Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> CapturedOutput:
    """Run a program until it ends; its output goes to our own stdout and stderr, and an excerpt into the result."""
    read_stdout, read_stderr = begin_output(1), begin_output(2)
    code = subprocess.run(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, check=False).returncode
    return CapturedOutput(code, read_stdout(), read_stderr())


def begin_output(fd: int) -> Callable[[], str]:
    """Return a function that reads everything written to stdout (1) or stderr (2) from now on, also by a library in
    this process. In a worker both streams are files: a crash loses nothing, and a grandchild that keeps one open
    does not block the worker."""

    def flush() -> os.stat_result:
        (sys.stdout if fd == 1 else sys.stderr).flush()
        return os.fstat(fd)

    start = flush().st_size

    def read() -> str:
        if not stat.S_ISREG(flush().st_mode):  # a terminal: the back end runs outside of a worker
            return ""
        with open(name_descriptor(fd), "rb") as stream:
            stream.seek(start)
            return _read_excerpt(stream)

    return read


def watch_folder(folder: str | None) -> Callable[[], tuple[str, ...]]:
    """Return a function that lists the files written in a folder from now on: older files may be there too."""
    if not folder:
        return tuple

    def survey() -> dict[str, tuple[int, ...]]:
        paths = [os.path.join(location, name) for location, _, names in os.walk(folder) for name in names]
        found = {path: os.stat(path) for path in sorted(paths) if os.path.isfile(path)}
        return {path: (each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for path, each in found.items()}

    before = survey()
    return lambda: tuple(path for path, stamp in survey().items() if before.get(path) != stamp)
