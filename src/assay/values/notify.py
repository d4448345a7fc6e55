"""Functions by which code below the console reports lines: `Console.message`, `Console.warning` or `ignore`."""

from __future__ import annotations

from collections.abc import Callable

Notify = Callable[[str], None]


def ignore(_text: str) -> None:
    """Drop the message."""
