"""What is said to somebody whose run waits for a slot: who holds it, and since when."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.flows.supervise import Supervisor

PATIENCE_S = 3.0


class Patience:
    """Says once that a run waits for a slot that something else holds."""

    def __init__(self, tell: Callable[[str], None], advice: str = "") -> None:
        self._tell = tell
        self._advice = advice
        self._since: float | None = None
        self._said = False

    def look(self, supervisor: Supervisor) -> None:
        now = time.monotonic()
        if not supervisor.queue or supervisor.running:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since > PATIENCE_S and not self._said:
            self._said = True
            self._tell(f"waiting for a slot: {_describe_holders(supervisor)}{self._advice}")


def _describe_holders(supervisor: Supervisor) -> str:
    from assay.show.words import clean, render_duration

    holders = supervisor.pool.holders() if supervisor.pool else []
    now = time.time()
    told = [f"{one.name}, process {one.pid}, for {render_duration(max(0.0, now - one.since))}" for one in holders[:3]]
    return clean("held by " + "; ".join(told)) if told else "another study holds it (see assay ls)"
