"""Evaluates patterns of metrics, which may come with uploaded runs, in a child process that the server can end."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from assay.errors import UsageError
from assay.follow import collect
from assay.follow.collect import ParsedLog
from assay.follow.limited_process import LimitedProcess, TookTooLongError
from assay.values.study import Pattern


class LimitedLogParser:
    """A log parser with limits, for `collect.log_parser`. The allowed time of a set of patterns grows with the bytes
    that it reads; a set that exceeds its time is not evaluated again."""

    FIRST_S, PER_BYTE_S, FREE_S = 10.0, 2.5e-7, 0.05
    REFUSAL = "its metrics are not read, because of its patterns"

    def __init__(self) -> None:
        self.process = LimitedProcess()
        self._left_s: dict[tuple[object, ...], float] = {}

    def __call__(
        self, patterns: Sequence[Pattern], command: str, data: bytes, state: dict[str, Any], final: bool
    ) -> ParsedLog:
        key = (*patterns, command)
        left_s = min(self.FIRST_S, self._left_s.get(key, self.FIRST_S) + self.PER_BYTE_S * len(data))
        if left_s <= 0:
            raise UsageError(f"{self.REFUSAL}: they have taken too long before")
        try:
            answer = self.process.call(f"{__name__}:parse_timed", patterns, command, data, state, final, limit_s=left_s)
        except TookTooLongError as error:
            self._left_s[key] = -math.inf
            raise UsageError(f"{self.REFUSAL}: {error.message}") from None
        parsed: ParsedLog
        parsed, used_s = answer
        self._left_s[key] = left_s - max(0.0, used_s - self.FREE_S)
        return parsed


@contextmanager
def limit_patterns() -> Iterator[None]:
    """Evaluate the patterns of metrics in a child process while the context is open."""
    before, limited = collect.log_parser, LimitedLogParser()
    collect.log_parser = limited
    try:
        yield
    finally:
        collect.log_parser = before
        limited.process.close()


def parse_timed(*arguments: Any) -> tuple[ParsedLog, float]:
    """Return the parsed log and the CPU time of parsing it; the child process calls this function."""
    started_s = time.process_time()
    return collect.parse_log(*arguments), time.process_time() - started_s
