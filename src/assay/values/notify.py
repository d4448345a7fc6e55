"""How code below the console reports, one line at a time: `Console.message`, `Console.warning` or `ignore`."""

from __future__ import annotations

from collections.abc import Callable

Notify = Callable[[str], None]


def ignore(_text: str) -> None:
    """Drop the message: for callers that want none."""
