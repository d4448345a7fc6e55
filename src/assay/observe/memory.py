"""GPU memory of a run's own processes: never that of strangers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from assay.observe.devices import Devices, GpuProcess
from assay.observe.readings import load_tag
from assay.system import processes


@dataclass(frozen=True, slots=True)
class GpuPeak:
    """The most that a run's processes held on its GPUs at one moment, and who says so."""

    size_bytes: int = 0
    basis: Literal["", "processes", "device"] = ""
    owners: int = 0  # how many of the run's processes were on the GPUs at one moment


@dataclass(slots=True)
class GpuMemory:
    """What a run's processes hold on its GPUs, look by look. Where the driver tells it by process those of the run
    count; where it does not (in a container it knows other numbers, or none) it is what the device has in use beyond
    the start and beyond the strangers that can be seen."""

    devices: Devices
    indices: tuple[int, ...]
    peak: GpuPeak = field(default_factory=GpuPeak)
    # before the start: what was in use by nobody who is named, and who was there
    _before: dict[int, tuple[int, frozenset[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """The moment before the run touches the GPU."""
        for index in self.indices:
            processes = self.devices.processes(index)
            told = sum(process.memory_bytes for process in processes)
            self._before[index] = self._used(index) - told, frozenset(process.pid for process in processes)

    def look(self, tag: str | None, members: Collection[int]) -> None:
        """`members` are processes that are known to be the run's; others are by its tag."""
        found = [self._look_at(index, tag, members) for index in self.indices]
        own = sum(own for own, _, _ in found)
        beyond = sum(beyond for _, beyond, _ in found)
        owners = max(self.peak.owners, len({pid for _, _, pids in found for pid in pids}))
        if own and self.peak.basis != "processes":  # the better word: it replaces what was guessed before
            self.peak = GpuPeak(own, "processes", owners)
        elif self.peak.basis == "processes":
            self.peak = GpuPeak(max(self.peak.size_bytes, own), "processes", owners)
        elif beyond:
            self.peak = GpuPeak(max(self.peak.size_bytes, beyond), "device", owners)

    def _look_at(self, index: int, tag: str | None, pids: Collection[int]) -> tuple[int, int, list[int]]:
        processes = self.devices.processes(index)
        unknown, there = self._before[index]
        own = [process for process in processes if process.pid in pids or _has_tag(process, tag)]
        others = sum(process.memory_bytes for process in processes if process not in own and _is_seen(process, there))
        beyond = self._used(index) - max(0, unknown) - others
        return sum(process.memory_bytes for process in own), max(0, beyond), [process.pid for process in own]

    def _used(self, index: int) -> int:
        reading = self.devices.read([index])
        return reading.memory_bytes if reading else 0


def _has_tag(process: GpuProcess, tag: str | None) -> bool:
    return bool(tag) and load_tag(process.pid) == str(tag).encode()


def _is_seen(process: GpuProcess, there: frozenset[int]) -> bool:
    """Surely a stranger: it was there before, or is a process of this machine."""
    return process.pid in there or processes.exists(process.pid)
