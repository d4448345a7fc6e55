"""How code below the console reports: one line of text at a time, to `Console.message`, `Console.warning` or nobody."""

from __future__ import annotations

from collections.abc import Callable

Notify = Callable[[str], None]


def ignore(_text: str) -> None:
    """For callers that want no messages."""
