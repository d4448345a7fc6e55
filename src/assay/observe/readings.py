"""What a run's whole process tree consumes, from /proc.

A process belongs to the run when it descends from the job, lives in the job's session, or carries the attempt's tag
in its environment: launchers start new sessions, and orphans lose their parents. Descendants are followed at every
sample; the look at all processes of the machine, which finds the others, is made every few seconds only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from assay.values.layout import ENV_ATTEMPT
from assay.values.plain import check_types
from assay.values.series import GpuReading, Reading

SCAN_INTERVAL_S = 5.0

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TAG_PREFIX = f"{ENV_ATTEMPT}=".encode()


class ProcessStat(NamedTuple):
    """What we use of /proc/PID/stat. `waited` is the CPU time of children that ended and were waited for."""

    pid: int
    is_zombie: bool
    parent: int
    session: int
    ticks: int
    waited: int
    start: int
    vms_bytes: int
    rss_bytes: int


def parse_stat(pid: int, data: bytes) -> ProcessStat | None:
    """The program's name in parentheses may hold anything, parentheses included."""
    fields = data[data.rfind(b")") + 2 :].split()
    if len(fields) < 22:
        return None
    numbers = [int(fields[index]) for index in (1, 3, 11, 12, 13, 14, 19, 20, 21)]
    parent, session, user, system, waited_user, waited_system, start, vms, pages = numbers
    is_zombie = fields[0] in (b"Z", b"X")
    return ProcessStat(
        pid, is_zombie, parent, session, user + system, waited_user + waited_system, start, vms, pages * _PAGE_BYTES
    )


def load_stat(pid: int) -> ProcessStat | None:
    data = _read(f"/proc/{pid}/stat")
    return parse_stat(pid, data) if data else None


class ProcessTable:
    """All processes of the machine, looked at seldom; the samplers of one supervisor share one table."""

    def __init__(self, interval_s: float = SCAN_INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._scanned_at: float | None = None
        self._stats: dict[int, ProcessStat] = {}
        self.scans = 0
        self._tags: dict[tuple[int, int], bytes] = {}  # an environment does not change: read once per process

    def refresh(self, now: float) -> None:
        """`now` is any clock that the caller keeps to."""
        if self._scanned_at is not None and 0 <= now - self._scanned_at < self._interval_s:
            return
        self._scanned_at = now
        self.scans += 1
        stats = (load_stat(int(name)) for name in os.listdir("/proc") if name.isdecimal())
        self._stats = {stat.pid: stat for stat in stats if stat is not None}
        self._tags = {(stat.pid, stat.start): self._tag(stat) for stat in self._stats.values()}

    def members(self, root: int | None, tag: str | None) -> set[int]:
        """`root`, the session that it leads or led, processes with this tag, and all their descendants."""
        wanted = tag.encode() if tag else None
        found = {stat.pid for stat in self._stats.values() if root in (stat.session, stat.pid)}
        if wanted:
            found |= {pid for (pid, _), its_tag in self._tags.items() if its_tag == wanted}
        return found | self._descendants(found)

    def _tag(self, stat: ProcessStat) -> bytes:
        key = (stat.pid, stat.start)
        return self._tags[key] if key in self._tags else load_tag(stat.pid)

    def _descendants(self, found: set[int]) -> set[int]:
        children: dict[int, list[int]] = {}
        for stat in self._stats.values():
            children.setdefault(stat.parent, []).append(stat.pid)
        return set(walk(found, lambda pid: children.get(pid, ())))


def load_tag(pid: int) -> bytes:
    """The attempt that a process belongs to; empty when it has none, or is not ours to look at."""
    for entry in _read(f"/proc/{pid}/environ").split(b"\0"):
        if entry.startswith(_TAG_PREFIX):
            return entry[len(_TAG_PREFIX) :]
    return b""


class TreeSampler:
    """Follows one run. CPU time and peak never fall, although processes come and go."""

    def __init__(
        self,
        pid: int,
        tag: str | None = None,
        *,
        start: int | None = None,
        table: ProcessTable | None = None,
        previous: Reading | None = None,
    ) -> None:
        """`start` (the kernel's start time of `pid`) guards against a reused pid; `previous` is the last reading of
        an earlier supervisor, which this one goes on from."""
        self._root = pid
        self._tag = tag
        self._start = start
        self._table = table if table is not None else ProcessTable()
        self._members: tuple[int, set[int]] = (0, set())  # as of which scan
        self._last: dict[int, ProcessStat] = {}
        self._gone_ticks = 0
        self._cpu_s = previous.cpu_s if previous else 0.0
        self._peak_bytes = previous.peak_rss_bytes if previous else 0

    def sample(self, now: float, gpu: GpuReading | None = None) -> Reading | None:
        """None when no process of the run is alive."""
        self._table.refresh(now)
        stats = self._load_tree()
        self._keep_time_of_vanished(stats)
        self._last = stats
        alive = [stat for stat in stats.values() if not stat.is_zombie]
        if not alive:
            return None
        ticks = self._gone_ticks + sum(stat.ticks + stat.waited for stat in stats.values())
        self._cpu_s = max(self._cpu_s, ticks / _TICKS_PER_S)
        rss = sum(stat.rss_bytes for stat in alive)
        self._peak_bytes = max(self._peak_bytes, rss, *(load_peak_bytes(stat.pid) for stat in alive))
        vms = sum(stat.vms_bytes for stat in alive)
        return Reading(now, len(alive), self._cpu_s, rss, vms, self._peak_bytes, gpu)

    def pids(self) -> tuple[int, ...]:
        """The processes of the last sample: whose GPU memory is the run's."""
        return tuple(self._last)

    def _load_tree(self) -> dict[int, ProcessStat]:
        root = self._load_root()
        if self._members[0] != self._table.scans:
            self._members = (self._table.scans, self._table.members(root, self._tag))
        known = {*self._last, *self._members[1]} | ({root} if root is not None else set())
        stats = (load_stat(pid) for pid in known | set(walk(known, load_children)))
        return {stat.pid: stat for stat in stats if stat is not None and self._is_same(stat)}

    def _load_root(self) -> int | None:
        """The job's pid, also when it has ended; None when another process has its number now."""
        stat = load_stat(self._root)
        if stat is not None and self._start is None:
            self._start = stat.start
        return self._root if stat is None or stat.start == self._start else None

    def _is_same(self, stat: ProcessStat) -> bool:
        """Not another process under a number that was used before."""
        if stat.pid == self._root:
            return stat.start == self._start
        before = self._last.get(stat.pid)
        return before is None or before.start == stat.start

    def _keep_time_of_vanished(self, stats: Mapping[int, ProcessStat]) -> None:
        """A process that its parent waited for lives on in the parent's `waited`; the time of others is kept here."""
        owed: dict[int, int] = {}
        for pid, stat in self._last.items():
            if pid not in stats:
                heir = self._heir(stat, stats)
                owed[heir] = owed.get(heir, 0) + stat.ticks + stat.waited
        for heir, ticks in owed.items():
            gained = stats[heir].waited - self._last[heir].waited if heir in stats else 0
            self._gone_ticks += max(0, ticks - gained)

    def _heir(self, stat: ProcessStat, stats: Mapping[int, ProcessStat]) -> int:
        """The nearest ancestor that is still there; 0 when none is."""
        parent = stat.parent
        while parent in self._last and parent not in stats:
            parent = self._last[parent].parent
        return parent if parent in self._last and parent in stats else 0


def walk(roots: Iterable[int], children_of: Any) -> Iterable[int]:
    """All descendants of `roots`."""
    seen = set(roots)
    waiting = list(seen)
    while waiting:
        for child in children_of(waiting.pop()):
            if child not in seen:
                seen.add(child)
                waiting.append(child)
                yield child


def load_children(pid: int) -> list[int]:
    """Children that the process's first thread started; those of other threads wait for the look at all processes.

    (A kernel without this file gives none, and the same look finds them.)
    """
    return [int(child) for child in _read(f"/proc/{pid}/task/{pid}/children").split()]


def load_thread_children(pid: int) -> list[int]:
    """Children that any thread of the process started: exact, and dearer."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(child) for thread in threads for child in _read(f"/proc/{pid}/task/{thread}/children").split()]


def load_peak_bytes(pid: int) -> int:
    """The largest resident size that the process ever had."""
    data = _read(f"/proc/{pid}/status")
    at = data.find(b"VmHWM:")
    return int(data[at + 6 : data.index(b"kB", at)]) * 1024 if at >= 0 else 0


def _read(path: str) -> bytes:
    """Empty when the process is gone, or is another user's."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return _read_all(descriptor)
    except OSError:  # ESRCH: it ended between open and read
        return b""
    finally:
        os.close(descriptor)


def _read_all(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 1 << 16):
        parts.append(part)
    return b"".join(parts)


# ---------------------------------------------------------------- readings.jsonl


def render_reading(reading: Reading) -> str:
    """A line of readings.jsonl, newline included."""
    fields = {key: value for key, value in asdict(reading).items() if value is not None}
    return json.dumps(fields, separators=(",", ":")) + "\n"


def parse_reading(line: str | bytes) -> Reading | None:
    """None for a line that is damaged or cut off. Unknown fields are those of a newer version: they are left out."""
    try:
        fields = json.loads(line)
        gpu = fields.pop("gpu", None)
        return check_types(Reading(**_known(Reading, fields), gpu=_parse_gpu(gpu) if gpu else None))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _parse_gpu(fields: dict[str, Any]) -> GpuReading:
    known = _known(GpuReading, fields)
    return GpuReading(**{**known, "throttle": tuple(known.get("throttle", ()))})


def _known(kind: type[Reading | GpuReading], fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key in kind.__slots__}
