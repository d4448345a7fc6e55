"""Properties of output streams: colours, characters, size."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO, TextIO

RESET = "\x1b[0m"
_HUES = ("red", "green", "yellow", "blue", "magenta", "cyan")
CODES: Mapping[str, str] = {
    "bold": "\x1b[1m",
    "dim": "\x1b[2m",
    **{hue: f"\x1b[{number}m" for number, hue in enumerate(_HUES, 31)},
    **{f"bright_{hue}": f"\x1b[{number}m" for number, hue in enumerate(_HUES, 91)},
}
STATE_COLORS: Mapping[str, str] = {
    "done": "green",
    "finished": "green",
    "running": "cyan",
    "queued": "dim",
    "not started": "dim",
    "failed": "red",
    "timeout": "red",
    "stopped": "yellow",
    "pruned": "blue",
    "lost": "magenta",
    "damaged": "magenta",
    "PASS": "green",
    "FAIL": "red",
    "ERROR": "red",
    "INCONCLUSIVE": "yellow",
    "CHANGED": "yellow",
}


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a terminal; a closed stream and an object without `isatty` are not."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def use_color(stream: TextIO, env: Mapping[str, str] | None = None) -> bool:
    """Whether to use colours: on terminals, unless NO_COLOR or a dumb terminal forbids it, or if FORCE_COLOR is set."""
    known = os.environ if env is None else env
    if known.get("NO_COLOR"):
        return False
    if known.get("FORCE_COLOR"):
        return True
    return is_terminal(stream) and known.get("TERM") != "dumb"


def can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def terminal_width(stream: TextIO, fallback: int | None = None) -> int | None:
    """Return the columns of a terminal, else `fallback`, so that files and pipes are never shortened."""
    if not is_terminal(stream):
        return fallback
    import shutil

    return shutil.get_terminal_size((80, 24)).columns


def terminal_size(stream: IO[str]) -> os.terminal_size | None:
    """Return the size of the terminal of this stream; None without a terminal or if its size is unknown."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return None
    return size if size.columns and size.lines else None


def find_terminals() -> list[int]:
    """Return the standard output descriptors that are terminals and have not hung up."""
    return [fd for fd in (1, 2) if os.isatty(fd)]


def paint(text: str, style: str) -> str:
    """Return the text in a style such as `bold red`."""
    codes = "".join(CODES[word] for word in style.split())
    return f"{codes}{text}{RESET}" if codes else text
