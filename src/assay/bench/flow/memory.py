"""The peak memory of all processes of a run together: on the GPU, without the processes of other users, and on the
host.

The kernel records the peak of each process, but not of a process tree. The peak of a single process is therefore
exact; the peak of several processes comes from readings, a hundred per second at the beginning of a run and two per
second later. The largest sum of one reading is reported, which is never too large, together with an upper bound: the
largest sum of the peaks of processes that were alive together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

from assay.observe.devices import Devices
from assay.observe.readings import load_tag
from assay.system import processes
from assay.system.processes import ProcessStat, load_size, load_stat, load_thread_children, walk


@dataclass(frozen=True, slots=True)
class GpuPeak:
    """The largest memory of a run's processes on its GPUs at one moment, and the source of that number."""

    size_bytes: int = 0
    basis: Literal["", "processes", "device"] = ""
    owners: int = 0  # how many of the run's processes were on the GPUs at one moment


@dataclass(slots=True)
class GpuMemory:
    """The GPU memory of a run's processes, as the driver reports it for each process, or, where the driver does not (in
    a container it knows other pids, or none), the memory of the device in use, less what was in use at the start and by
    other visible processes."""

    devices: Devices
    indices: tuple[int, ...]
    peak: GpuPeak = field(default_factory=GpuPeak)
    # GPU → state before the start: the memory in use by unlisted processes, and the pids on the GPU
    _before: dict[int, tuple[int, frozenset[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Record the state before the run touches the GPU."""
        for index in self.indices:
            found = self.devices.processes(index)
            reported = sum(each.memory_bytes for each in found)
            self._before[index] = self._used(index) - reported, frozenset(each.pid for each in found)

    def look(self, tag: str | None, members: Collection[int]) -> None:
        """Read the memory of the run's processes: those in `members`, and those that have the tag of its attempt."""
        own = beyond = 0
        pids: set[int] = set()
        for index in self.indices:
            found = self.devices.processes(index)
            unknown, there = self._before[index]
            ours = [each for each in found if each.pid in members or (tag and load_tag(each.pid) == tag.encode())]
            # processes that are certainly not the run's: on the GPU before it, or other processes of this machine
            foreign = [each for each in found if each not in ours and (each.pid in there or processes.exists(each.pid))]
            own += sum(each.memory_bytes for each in ours)
            beyond += max(0, self._used(index) - max(0, unknown) - sum(each.memory_bytes for each in foreign))
            pids |= {each.pid for each in ours}
        owners = max(self.peak.owners, len(pids))
        if own or self.peak.basis == "processes":  # memory by process is exact, and replaces an earlier estimate
            before = self.peak.size_bytes if self.peak.basis == "processes" else 0
            self.peak = GpuPeak(max(before, own), "processes", owners)
        elif beyond:
            self.peak = GpuPeak(max(self.peak.size_bytes, beyond), "device", owners)

    def _used(self, index: int) -> int:
        reading = self.devices.read([index])
        return reading.memory_bytes if reading else 0


# ---------------------------------------------------------------- host memory


FIRST_INTERVAL_S = 0.01
LAST_INTERVAL_S = 0.5
_SHARE_OF_AGE = 0.1  # interval relative to the run's age: at most a tenth of a run is after its last reading


@dataclass(frozen=True, slots=True)
class TreePeaks:
    """The memory of a benchmark's own processes; the shells and the wrapper that start it are left out."""

    rss_bytes: int = 0  # the largest sum at one moment
    vms_bytes: int = 0
    bound_bytes: int = 0  # the sum of the peaks of processes that were seen together
    largest_bytes: int = 0  # the largest peak of one process
    processes: int = 0  # the largest number at one moment
    ours_bytes: int | None = None  # memory of the shells and the wrapper; None if they were not seen


class TreeWatch(threading.Thread):
    """Watches one process tree in a thread: the loop that waits for the run has other tasks. `job` is the shell that we
    started, `find_root` finds the benchmark's first process; processes between those two are not the benchmark's."""

    def __init__(self, job: int, find_root: Callable[[], int | None]) -> None:
        super().__init__(name="assay-tree", daemon=True)
        self.peaks = TreePeaks()
        self._job = job
        self._find_root = find_root
        self._root: int | None = None
        self._root_start: int | None = None  # when `_root` started: its pid may be reused after its end
        self._known: dict[int, int] = {}  # pid → start of each member of the tree; orphans stay members
        self._tops: dict[int, int] = {}  # pid → peak of each living process
        self._over = threading.Event()

    def run(self) -> None:
        began = time.monotonic()
        interval_s = FIRST_INTERVAL_S
        while not self._over.wait(interval_s):
            self.look()
            interval_s = min(LAST_INTERVAL_S, max(FIRST_INTERVAL_S, _SHARE_OF_AGE * (time.monotonic() - began)))

    @property
    def pids(self) -> frozenset[int]:
        """The pids of the last reading."""
        return frozenset(self._known)

    def look(self) -> None:
        self._root = self._find_root() if self._root is None else self._root
        if self._root is None:
            return
        found = self._load(self._root)
        self._known = {stat.pid: stat.start for stat in found}
        if stats := drop_starting_copies(found):
            self._tops = {stat.pid: max(self._tops.get(stat.pid, 0), load_size(stat.pid, "VmHWM")) for stat in stats}
            self._add(stats, self._root)

    def _load(self, root: int) -> list[ProcessStat]:
        pids = {root, *self._known}
        found = [load_stat(pid) for pid in pids | set(walk(pids, load_thread_children))]
        alive = [stat for stat in found if stat is not None and not stat.is_zombie]
        if self._root_start is None:
            self._root_start = next((stat.start for stat in alive if stat.pid == root), None)
        starts = {**self._known, root: self._root_start}
        return [stat for stat in alive if starts.get(stat.pid) in (None, stat.start)]

    def _add(self, stats: list[ProcessStat], root: int) -> None:
        before, rss = self.peaks, sum(stat.rss_bytes for stat in stats)
        tops = [max(self._tops[stat.pid], stat.rss_bytes) for stat in stats]
        self.peaks = TreePeaks(
            max(before.rss_bytes, rss),
            max(before.vms_bytes, sum(stat.vms_bytes for stat in stats)),
            max(before.bound_bytes, sum(tops)),
            max(before.largest_bytes, *tops),
            max(before.processes, len(stats)),
            _measure_shells(self._job, root) if before.ours_bytes is None else before.ours_bytes,
        )

    def finish(self, left: Collection[int] = ()) -> TreePeaks:
        """Read the memory for the last time, also of `left`: processes that have outlived the run."""
        self._over.set()
        if self.ident is not None:
            self.join()
        self.look()
        if left and self._root is not None:
            self._known |= {pid: stat.start for pid in left if (stat := load_stat(pid)) is not None}
            self.look()
        return self.peaks


def drop_starting_copies(stats: Iterable[ProcessStat]) -> list[ProcessStat]:
    """Remove children that have not executed their program yet: they still share their parent's memory."""
    found = list(stats)
    sizes = {stat.pid: (stat.rss_bytes, stat.vms_bytes) for stat in found}
    return [stat for stat in found if sizes.get(stat.parent) != sizes[stat.pid]]


def _measure_shells(job: int, root: int) -> int | None:
    """Return the memory of the shells from the parent of the first process up to the job's; None if one has ended."""
    total, stat = 0, load_stat(root)
    while stat is not None and stat.parent > 1:
        stat = load_stat(stat.parent)
        total += stat.rss_bytes if stat else 0
        if stat is not None and stat.pid == job:
            return total
    return None
