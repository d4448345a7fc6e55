"""How long to wait for a silent server, and how often to ask a failing one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Progress resets the count of attempts."""

    attempts: int = 5
    first_delay_s: float = 1.0
    longest_delay_s: float = 60.0
    timeout_s: float = 60.0
    report_s: float = 10.0  # between two lines about how far a long download is
    sleep: Callable[[float], None] = time.sleep

    def delay_s(self, failures: int, asked_s: float | None) -> float:
        wanted = self.first_delay_s * 2 ** (failures - 1) if asked_s is None else asked_s
        return min(wanted, self.longest_delay_s)


DEFAULT_RETRY = RetryPolicy()
