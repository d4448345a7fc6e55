"""How much memory the processes of a benchmark held together.

The kernel keeps the peak of every process and none of a tree. One process is therefore known exactly, and several as
well as they were looked at: a hundred times a second while the run is young, twice a second later on. What is
reported is the largest sum of one look, so that it is never more than there was; beside it stands the sum of those that
lived together with each at its own peak.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from assay.system.processes import ProcessStat, load_size, load_stat, load_thread_children, walk

FIRST_INTERVAL_S = 0.01
LAST_INTERVAL_S = 0.5
_SHARE_OF_AGE = 0.1  # of what happened, a look misses at most the last tenth


@dataclass(frozen=True, slots=True)
class TreePeaks:
    """Of a benchmark's own processes; the shells and the wrapper that start it are left out."""

    rss_bytes: int = 0  # the largest sum at one moment
    vms_bytes: int = 0
    bound_bytes: int = 0  # those that were seen together, each at its own peak
    largest_bytes: int = 0  # the largest peak of one process
    processes: int = 0  # at one moment, at most
    ours_bytes: int | None = None  # of the shells and the wrapper; None where nothing was seen


@dataclass(slots=True)
class TreeLook:
    """Looks at one tree. `root` is its first process, `job` the shell that we started; those between are ours."""

    job: int
    root: int
    peaks: TreePeaks = field(default_factory=TreePeaks)
    _known: dict[int, int] = field(default_factory=dict)  # pid → start: orphans stay members
    _root_start: int | None = None  # a number may be given to another process when the first one has ended
    _tops: dict[int, int] = field(default_factory=dict)  # peak of each that lives

    def look(self) -> None:
        found = self._load()
        self._known = {stat.pid: stat.start for stat in found}
        stats = leave_out_twins(found)
        if not stats:
            return
        self._tops = {stat.pid: max(self._tops.get(stat.pid, 0), load_size(stat.pid, "VmHWM")) for stat in stats}
        self._add(stats)

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(self._known)

    def _load(self) -> list[ProcessStat]:
        pids = {self.root, *self._known}
        found = [load_stat(pid) for pid in pids | set(walk(pids, load_thread_children))]
        alive = [stat for stat in found if stat is not None and not stat.is_zombie]
        if self._root_start is None:
            self._root_start = next((stat.start for stat in alive if stat.pid == self.root), None)
        return [stat for stat in alive if self._is_same(stat)]

    def _is_same(self, stat: ProcessStat) -> bool:
        start = self._root_start if stat.pid == self.root else self._known.get(stat.pid)
        return start is None or start == stat.start

    def adopt(self, pids: Iterable[int]) -> None:
        """Processes that nothing leads to from the first one any more."""
        self._known |= {pid: stat.start for pid in pids if (stat := load_stat(pid)) is not None}

    def _add(self, stats: list[ProcessStat]) -> None:
        before, rss = self.peaks, sum(stat.rss_bytes for stat in stats)
        tops = [max(self._tops[stat.pid], stat.rss_bytes) for stat in stats]
        self.peaks = TreePeaks(
            max(before.rss_bytes, rss),
            max(before.vms_bytes, sum(stat.vms_bytes for stat in stats)),
            max(before.bound_bytes, sum(tops)),
            max(before.largest_bytes, *tops),
            max(before.processes, len(stats)),
            _weigh_ours(self.job, self.root) if before.ours_bytes is None else before.ours_bytes,
        )


def leave_out_twins(stats: Iterable[ProcessStat]) -> list[ProcessStat]:
    """Without those that are just being started: until it becomes another program a child shares its parent's memory,
    which would be counted twice."""
    found = {stat.pid: stat for stat in stats}
    return [stat for stat in found.values() if not _is_twin(stat, found.get(stat.parent))]


def _is_twin(stat: ProcessStat, parent: ProcessStat | None) -> bool:
    return parent is not None and (stat.rss_bytes, stat.vms_bytes) == (parent.rss_bytes, parent.vms_bytes)


def _weigh_ours(job: int, root: int) -> int | None:
    """From the parent of the first process up to the job's shell; None where that way is gone."""
    total, stat = 0, load_stat(root)
    while stat is not None and stat.parent > 1:
        stat = load_stat(stat.parent)
        total += stat.rss_bytes if stat else 0
        if stat is not None and stat.pid == job:
            return total
    return None


def parse_root(text: str) -> int | None:
    """The first process of a benchmark, from what its child has written so far: the child itself, or the command that
    our wrapper has started (which says so in a second line)."""
    for line in text.splitlines():
        fields: Any = None
        with suppress(ValueError):
            fields = json.loads(line)
        if not isinstance(fields, dict):
            return None
        if isinstance(pid := fields.get("pid"), int) and "wrapper_rss" not in fields:
            return pid
    return None


class TreeWatch(threading.Thread):
    """Looks from the side: the loop that waits for the run has other things to do."""

    def __init__(self, job: int, report_path: str) -> None:
        super().__init__(name="assay-tree", daemon=True)
        self._job = job
        self._path = report_path
        self._over = threading.Event()
        self._look: TreeLook | None = None

    def run(self) -> None:
        began = time.monotonic()
        interval_s = FIRST_INTERVAL_S
        while not self._over.wait(interval_s):
            self.look()
            interval_s = min(LAST_INTERVAL_S, max(FIRST_INTERVAL_S, _SHARE_OF_AGE * (time.monotonic() - began)))

    def look(self) -> None:
        if self._look is None:
            root = self._load_root()
            self._look = TreeLook(self._job, root) if root is not None else None
        if self._look is not None:
            self._look.look()

    def _load_root(self) -> int | None:
        try:
            with open(self._path, encoding="utf-8", errors="replace") as file:
                return parse_root(file.read(4096))
        except OSError:  # it has said nothing yet
            return None

    @property
    def pids(self) -> frozenset[int]:
        """The processes of the last look."""
        return self._look.pids if self._look else frozenset()

    def finish(self, left: Collection[int] = ()) -> TreePeaks:
        """`left` are processes that have outlived the run: what they hold now is looked at for the last time."""
        self._over.set()
        if self.ident is not None:
            self.join()
        self.look()
        if self._look is None:
            return TreePeaks()
        if left:
            self._look.adopt(left)
            self._look.look()
        return self._look.peaks
