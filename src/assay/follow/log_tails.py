"""The log of what failed in a run, and its last lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from assay.record import run_directory
from assay.show.formatting import clean
from assay.system.files import read_end
from assay.values import layout
from assay.values.document import Block, Code, Text

TAIL_LINES = 10
_TAIL_BYTES = 8192


def find_failed_log(run_dir: str, log_name: str, commands: tuple[str, ...]) -> str | None:
    """The log of the command that failed, or of the last one that began."""
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
    """The last lines of a log; none where it is empty."""
    return split_log(read_end(path, _TAIL_BYTES))[-most:]


def build_tail(path: str, shown_path: str, most: int = TAIL_LINES) -> Iterator[Block]:
    """The path of a log and its last lines, for a report."""
    yield Text(shown_path)
    yield Code("\n".join(load_tail(path, most)) or "(the log is empty)")


def split_log(text: str) -> list[str]:
    """Lines as a terminal would leave them: of a line rewritten by carriage returns only the last state."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    cleaned = [clean(_strip_escapes(line).expandtabs(4)).rstrip() for line in lines]
    while cleaned and not cleaned[-1]:
        cleaned.pop()
    return cleaned


def _strip_escapes(line: str) -> str:
    return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", line) if "\x1b" in line else line
