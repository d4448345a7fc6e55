"""Finds the jobs in a farm's queue that have begun, at a cost that does not depend on the length of the queue."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import takewhile

Key = tuple[str, int]  # run directory and attempt
HasBegun = Callable[[Key, bool], bool]  # argument True: the result must not come from a cache

_LOOKS_PER_S = 28.0  # a check is one or a few calls on a shared file system that may be slow
_MOST_LOOKS = 14.0  # the most checks that may be saved up for the next call
_OLDEST = 4  # one check in this many is for the oldest job


class WaitingJobs:
    """Checks a few jobs of a farm's queue at a time.

    Farms start jobs roughly in the order of their submission: one check in four is for the oldest job, the other checks
    are for all jobs in turn, and if a job has begun the next job is checked at once. The checks keep up with a queue
    that moves; in a queue that does not move they cost the same for thirty jobs and for thirty thousand.
    """

    def __init__(self, has_begun: HasBegun, clock: Callable[[], float] = time.monotonic) -> None:
        self._has_begun = has_begun
        self._clock = clock
        self._jobs: dict[Key, None] = {}
        self._turns: deque[Key] = deque()  # a job that has left the queue is dropped at its turn
        self._looked_at, self._saved, self._count = clock(), _MOST_LOOKS, 0

    def __contains__(self, key: Key) -> bool:
        return key in self._jobs

    def __iter__(self) -> Iterator[Key]:
        return iter(self._jobs)

    def add(self, key: Key) -> None:
        if key not in self._jobs:
            self._jobs[key] = None
            self._turns.append(key)

    def discard(self, key: Key) -> None:
        self._jobs.pop(key, None)

    def take_begun(self) -> list[Key]:
        """Remove and return the jobs that were seen to have begun since the last call."""
        now = self._clock()
        self._saved = min(_MOST_LOOKS, self._saved + (now - self._looked_at) * _LOOKS_PER_S)
        self._looked_at = now
        begun: list[Key] = []
        for _ in range(min(int(self._saved), len(self._jobs) + 1)):
            self._saved -= 1
            self._count += 1
            begun += self._take_oldest() if self._count % _OLDEST == 0 else self._take_turn()
        return begun

    def _take_oldest(self) -> list[Key]:
        begun = list(takewhile(lambda key: self._has_begun(key, True), self._jobs))
        for key in begun:
            del self._jobs[key]
        return begun

    def _take_turn(self) -> list[Key]:
        begun = []
        while self._turns:
            key = self._turns.popleft()
            if key not in self._jobs:
                continue
            if not self._has_begun(key, False):
                self._turns.append(key)
                break
            del self._jobs[key]
            begun.append(key)
        return begun
