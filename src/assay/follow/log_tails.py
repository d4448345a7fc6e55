"""Find the log of the command that failed in a run, its last lines, and its lines about errors."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator

from assay.record import run_directory
from assay.show.formatting import clean
from assay.system.files import read_end
from assay.values import layout
from assay.values.document import Block, Code, Text

TAIL_LINES = 10
_TAIL_BYTES = 8192
_TRACEBACK = "Traceback (most recent call last)"
# `_ERROR` does not match the name of a metric, as in `error 0.12`
_ESCAPE = r"\x1b\[[0-?]*[ -/]*[@-~]"
_ERROR = re.compile(
    r"(?i)\b(?:\w*(?:error|exception)(?![\w'\"]*\s*[=:]?\s*[-+.\d])|fatal|panic|killed|aborted|out of memory|"
    r"segmentation fault|core dumped|nan)\b"
)
_MOST_ERRORS, _MOST_FRAMES, _MOST_CHARACTERS = 20, 60, 1000


def find_failed_log(run_dir: str, log_name: str, commands: tuple[str, ...]) -> str | None:
    """Return the log of the failed command, else of the last command that began."""
    if not os.path.isdir(run_dir):
        return None
    names = os.listdir(run_dir)
    last = run_directory.load_history(run_dir, names).last
    bad = [name for name, code in last.codes.items() if code != 0] if last else []
    for command in [*bad, *reversed(commands)]:
        log = layout.find_log(names, log_name, command)
        if log is not None:
            return os.path.join(run_dir, log)
    return None


def load_tail(path: str, most: int = TAIL_LINES) -> list[str]:
    """Return the last lines of a log; an empty list if the log is empty."""
    return split_log(read_end(path, _TAIL_BYTES))[-most:]


def build_tail(path: str, shown_path: str, most: int = TAIL_LINES) -> Iterator[Block]:
    """Yield the path of a log and its last lines, for a report."""
    yield Text(shown_path)
    yield Code("\n".join(load_tail(path, most)) or "(the log is empty)")


def find_errors(path: str, most: int = TAIL_LINES) -> list[str]:
    """Return tracebacks, lines about errors, and the last lines. Lines that differ only in numbers are given once."""
    found: dict[str, list[str]] = {}
    with open(path, encoding="utf-8", errors="replace") as file:
        for block in _find_blocks(file):
            if len(found) < _MOST_ERRORS:
                found.setdefault(re.sub(r"\d+", "0", "".join(block)), block)
    shown = [split_log("".join(block)) for block in found.values()]
    end = load_tail(path, most) if most else []
    parts = shown if shown and shown[-1][-1:] == end[-1:] else [*shown, end]
    return [line[:_MOST_CHARACTERS] for part in parts for line in (*part, "…")][:-1]


def _find_blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield each traceback up to its last line, and each line about an error. Lines may have a launcher's prefix."""
    block, before = deque[str](maxlen=_MOST_FRAMES), ""
    for line in lines:
        prefix, has_traceback, _ = line.partition(_TRACEBACK)
        if has_traceback or (block and line.removeprefix(before)[:1].isspace()):
            before = prefix if has_traceback else before
            block.append(line)
        elif block or _ERROR.search(line):
            yield [*block, line]
            block.clear()
    if block:
        yield [*block]


def split_log(text: str) -> list[str]:
    """Return the lines as a terminal shows them; a line that carriage returns rewrote is shown in its last state."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    cleaned = [clean(re.sub(_ESCAPE, "", line).expandtabs(4)).rstrip() for line in lines]
    while cleaned and not cleaned[-1]:
        cleaned.pop()
    return cleaned
