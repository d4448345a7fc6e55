"""The resources that a run's whole process tree uses.

A process belongs to the run if it descends from the job, is in the job's session, or has the attempt's tag in its
environment: launchers start new sessions, and orphans lose their parents. Descendants are followed at every sample;
members of the session and processes with the tag are searched for among all processes only every few seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from assay.observe.devices import Devices
from assay.plugins import read_child_words
from assay.system import processes
from assay.system.fast_dataclasses import asdict
from assay.system.processes import ProcessStat
from assay.values import layout
from assay.values.plain import parse_strict
from assay.values.series import READING_S, GpuReading, Reading

SCAN_INTERVAL_S = 5.0

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ProcessTable:
    """All processes of the machine, read rarely; the samplers of one supervisor share one table."""

    def __init__(self, interval_s: float = SCAN_INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._scanned_at: float | None = None
        self._stats: dict[int, ProcessStat] = {}
        self.scans = 0
        self._tags: dict[tuple[int, int], bytes] = {}  # (pid, start) → tag; read once: an environment does not change

    def refresh(self, now: float) -> None:
        """Read the processes again if the interval has passed since the last scan. `now` is always from one clock."""
        if self._scanned_at is not None and 0 <= now - self._scanned_at < self._interval_s:
            return
        self._scanned_at = now
        self.scans += 1
        self._stats = processes.load_stats()
        self._tags = {(stat.pid, stat.start): self._tag(stat) for stat in self._stats.values()}

    def members(self, root: int | None, tag: str | None) -> set[int]:
        """Return `root`, the session that it leads or led, processes with this tag, and all their descendants."""
        wanted = tag.encode() if tag else None
        found = {stat.pid for stat in self._stats.values() if root in (stat.session, stat.pid)}
        if wanted:
            found |= {pid for (pid, _), its_tag in self._tags.items() if its_tag == wanted}
        children = processes.group_by_parent(self._stats.values())
        return found | set(processes.walk(found, lambda pid: children.get(pid, ())))

    def _tag(self, stat: ProcessStat) -> bytes:
        key = (stat.pid, stat.start)
        return self._tags[key] if key in self._tags else load_tag(stat.pid)


def load_tag(pid: int) -> bytes:
    """Return the attempt's tag in the environment of a process; empty if it has no tag, or may not be read."""
    return processes.load_variable(pid, layout.ENV_ATTEMPT)


class TreeSampler:
    """Samples the resources of one run. CPU time and peak never decrease, although processes start and end."""

    def __init__(
        self,
        pid: int,
        tag: str | None = None,
        *,
        start: int | None = None,
        table: ProcessTable | None = None,
        ignored: int | None = None,
    ) -> None:
        """`start` (the kernel's start time of `pid`) detects a reused pid; the process `ignored` is not of the run."""
        self._root = pid
        self._tag = tag
        self._start = start
        self._ignored = ignored
        self._table = table if table is not None else ProcessTable()
        self._members: tuple[int, set[int]] = (0, set())  # the number of the last scan, and the members that it found
        self._last: dict[int, ProcessStat] = {}
        self._gone_ticks = 0
        self._cpu_s = 0.0
        self._peak_bytes = 0

    def sample(self, now: float, gpu: GpuReading | None = None) -> Reading | None:
        """Return a reading; None if no process of the run is alive."""
        self._table.refresh(now)
        root = self._load_root()
        if self._members[0] != self._table.scans:
            self._members = (self._table.scans, self._table.members(root, self._tag))
        known = {*self._last, *self._members[1]} | ({root} if root is not None else set())
        tree = (known | set(processes.walk(known, processes.load_children))) - {self._ignored}
        loaded = (processes.load_stat(pid) for pid in tree)
        stats = {stat.pid: stat for stat in loaded if stat is not None and self._is_same(stat)}
        self._keep_time_of_vanished(stats)
        self._last = stats
        alive = [stat for stat in stats.values() if not stat.is_zombie]
        if not alive:
            return None
        ticks = self._gone_ticks + sum(stat.cpu_ticks + stat.waited_ticks for stat in stats.values())
        self._cpu_s = max(self._cpu_s, ticks / _TICKS_PER_S)
        rss = sum(stat.rss_bytes for stat in alive)
        peaks = (processes.load_size(stat.pid, "VmHWM") for stat in alive)
        self._peak_bytes = max(self._peak_bytes, rss, *peaks)
        vms = sum(stat.vms_bytes for stat in alive)
        return Reading(now, len(alive), self._cpu_s, rss, vms, self._peak_bytes, gpu)

    def pids(self) -> tuple[int, ...]:
        """Return the processes of the last sample, whose GPU memory counts as the run's."""
        return tuple(self._last)

    def _load_root(self) -> int | None:
        """Return the job's pid, also of an ended job; None if it is unknown, or another process has this pid now."""
        if not self._root:  # the job of a farm has no pid here: 0 would match every process of this machine
            return None
        stat = processes.load_stat(self._root)
        if stat is not None and self._start is None:
            self._start = stat.start
        return self._root if stat is None or stat.start == self._start else None

    def _is_same(self, stat: ProcessStat) -> bool:
        """Return whether `stat` is of the same process that had this pid before."""
        if stat.pid == self._root:
            return stat.start == self._start
        before = self._last.get(stat.pid)
        return before is None or before.start == stat.start

    def _keep_time_of_vanished(self, stats: Mapping[int, ProcessStat]) -> None:
        """Keep the CPU time of ended processes, unless their parent waited for them and has it in `waited_ticks`."""
        vanished: dict[int, int] = {}  # nearest ancestor that still exists, or 0 → ticks of its ended processes
        for pid, stat in self._last.items():
            if pid not in stats:
                parent = stat.parent
                while parent in self._last and parent not in stats:
                    parent = self._last[parent].parent
                ancestor = parent if parent in self._last and parent in stats else 0
                vanished[ancestor] = vanished.get(ancestor, 0) + stat.cpu_ticks + stat.waited_ticks
        for ancestor, ticks in vanished.items():
            waited = stats[ancestor].waited_ticks - self._last[ancestor].waited_ticks if ancestor in stats else 0
            self._gone_ticks += max(0, ticks - waited)


def render_reading(reading: Reading) -> str:
    """Render a line of readings.jsonl with its newline."""
    fields = {key: value for key, value in asdict(reading).items() if value is not None}
    return json.dumps(fields, separators=(",", ":")) + "\n"


def parse_absence(line: str | bytes) -> str | None:
    """Parse the line that job.sh writes if no readings can be taken, and return the reason; None for other lines."""
    try:
        return str(json.loads(line)["absent"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def parse_reading(line: str | bytes) -> Reading | None:
    """Parse a reading; None for a damaged line. Unknown fields of newer versions are ignored."""
    try:
        return parse_strict(Reading, json.loads(line))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def main() -> int:
    """Write the readings of a run on the host of a farm: `python -m assay child readings WATCHER JOB TAG`. The watcher
    of `job.sh` starts this process in the run's directory, and it ends with the watcher. Without arguments it returns
    0: this is how job.sh finds out whether Assay is installed for an interpreter."""
    if len(sys.argv) == 1:
        return 0
    watcher, job, tag = read_child_words("readings", sys.argv[1:], watcher=int, job=int, tag=str)
    sampler = TreeSampler(job, tag, ignored=os.getpid())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    gpus, devices = [int(part) for part in visible if part.strip().isdecimal()], Devices()
    with suppress(OSError):  # the kernel may be old, the disk full, or the directory removed
        processes.die_with_parent(watcher)
        # if the file `stop.N` exists, another attempt may have replaced this one
        stop = layout.numbered_name("stop", int(tag.rpartition(".")[2]))
        while os.getppid() == watcher and not os.path.exists(stop):
            reading = sampler.sample(time.time(), devices.read(gpus) if gpus else None)
            if reading is None:
                break
            with open(layout.READINGS_FILE, "a", encoding="ascii") as file:
                file.write(render_reading(reading))
            time.sleep(READING_S)
    return 0
