"""What commands say beside their answer, in lines that end between words."""

from __future__ import annotations

import sys
from contextlib import suppress


def warn(text: str) -> None:
    """A warning on stderr."""
    say(f"warning: {text}")


def say(text: str) -> None:
    """A remark on stderr; a pipe gets it in one line."""
    from assay.show.formatting import clean_lines, wrap
    from assay.system.terminal import terminal_width

    with suppress(OSError):  # a remark that cannot be written changes nothing about the answer
        print(wrap(clean_lines(text), terminal_width(sys.stderr), "  "), file=sys.stderr)
