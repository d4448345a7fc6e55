"""Which jobs of a queue are looked at, and how often: no files, a clock of our own."""

from __future__ import annotations

import pytest

from assay.farms.waiting import Key, WaitingJobs


class Queue:
    """A farm's queue with the looks at it."""

    def __init__(self, count: int) -> None:
        self.now = 0.0
        self.begun: set[Key] = set()
        self.looks: list[Key] = []
        self.jobs = [(f"run{number}", 1) for number in range(count)]
        self.waiting = WaitingJobs(self.look, lambda: self.now)
        for job in self.jobs:
            self.waiting.add(job)

    def look(self, key: Key, is_fresh: bool) -> bool:
        self.looks += [key] * (2 if is_fresh else 1)
        return key in self.begun

    def follow(self, seconds: float, step_s: float = 0.25) -> list[Key]:
        """What is seen to begin during this time."""
        found = []
        for _ in range(int(seconds / step_s)):
            self.now += step_s
            found += self.waiting.take_begun()
        return found


@pytest.mark.parametrize(("count", "step_s"), [(30, 0.05), (300, 0.25), (3000, 2.0)])
def test_the_looks_of_a_second_do_not_depend_on_how_many_wait(count: int, step_s: float) -> None:
    queue = Queue(count)
    queue.follow(2.0)  # what was saved up
    queue.looks.clear()
    assert queue.follow(60.0, step_s) == []
    assert 0 < len(queue.looks) <= 50 * 60


def test_a_queue_that_moves_in_its_order_is_followed_at_once() -> None:
    queue = Queue(3000)
    queue.follow(2.0)
    queue.begun.update(queue.jobs[:500])
    assert queue.follow(0.25) == queue.jobs[:500]
    queue.begun.add(queue.jobs[500])
    assert queue.follow(0.25) == [queue.jobs[500]]
    assert queue.jobs[500] not in queue.waiting
    assert queue.jobs[501] in queue.waiting


def test_a_job_that_overtakes_others_is_found_by_turns() -> None:
    queue = Queue(300)
    queue.begun.update(queue.jobs[200:220])
    assert queue.follow(20.0) == queue.jobs[200:220]


def test_few_jobs_are_all_looked_at_each_time() -> None:
    queue = Queue(3)
    queue.follow(2.0)
    queue.looks.clear()
    queue.follow(0.25)
    assert set(queue.looks) == set(queue.jobs)


def test_what_left_the_queue_is_not_looked_at() -> None:
    queue = Queue(2)
    queue.waiting.discard(queue.jobs[0])
    queue.waiting.discard(queue.jobs[0])
    queue.begun.update(queue.jobs)
    assert queue.follow(1.0) == [queue.jobs[1]]
    assert list(queue.waiting) == []
    queue.waiting.add(queue.jobs[0])
    assert queue.follow(1.0) == [queue.jobs[0]]
