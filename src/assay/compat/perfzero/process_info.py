"""process_info.log: what a benchmark's processes used over time, as lines of JSON; and its plot, a page per metric.

Lines of PerfZero itself have `time`, `rss`, `vms` and `cpu_percent` of one process. Ours are of the whole tree, and
have the number of processes and the GPU beside. Any other number is plotted as well.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from assay.bench.api import BenchExecution
from assay.errors import NotFoundError, UsageError
from assay.show.plot import Chart, Line
from assay.values.series import Reading

TIME = "time"
_MIB = 1 << 20
_UNITS = {
    "rss": ("resident memory of all processes", "MiB", _MIB),
    "vms": ("virtual memory of all processes", "MiB", _MIB),
    "cpu_percent": ("CPU", "percent of one core", 1),
    "processes": ("processes", "", 1),
    "gpu_memory": ("GPU memory", "MiB", _MIB),
    "gpu_percent": ("GPU", "percent", 1),
    "gpu_clock_mhz": ("GPU clock", "MHz", 1),
    "gpu_temperature_c": ("GPU temperature", "°C", 1),
    "gpu_power_w": ("GPU power", "W", 1),
}


# ---------------------------------------------------------------- writing


def render_process_info(readings: Sequence[Reading], execution: BenchExecution) -> str:
    """A line for each reading. A benchmark that was over before the first has one of the kernel's own counters."""
    began = execution.started_at
    lines = [_build_line(reading, share) for reading, share in zip(readings, _cpu_shares(readings, began), strict=True)]
    return "".join(json.dumps(line) + "\n" for line in lines or [_build_peak_line(execution)])


def _cpu_shares(readings: Sequence[Reading], began: float | None) -> Iterator[float]:
    """Percent of one core between one reading and the next; the first since the beginning."""
    if readings:
        first = readings[0]
        yield _share(first.cpu_s, first.time - began) if began is not None else 0.0
    for before, after in pairwise(readings):
        yield _share(after.cpu_s - before.cpu_s, after.time - before.time)


def _share(cpu_s: float, elapsed_s: float) -> float:
    return round(100 * cpu_s / elapsed_s, 1) if elapsed_s > 0 else 0.0


def _build_line(reading: Reading, cpu_percent: float) -> dict[str, float]:
    line: dict[str, float] = {
        TIME: reading.time,
        "rss": reading.rss_bytes,
        "vms": reading.vms_bytes,
        "cpu_percent": cpu_percent,
        "processes": reading.processes,
    }
    if (gpu := reading.gpu) is not None:
        line |= {
            "gpu_memory": gpu.memory_bytes,
            "gpu_percent": gpu.utilisation,
            "gpu_clock_mhz": gpu.sm_clock_mhz,
            "gpu_temperature_c": gpu.temperature_c,
            "gpu_power_w": gpu.power_w,
        }
    return line


def _build_peak_line(execution: BenchExecution) -> dict[str, float]:
    peaks = execution.peaks
    at = execution.ended_at or execution.started_at or 0.0
    line = {TIME: at, "rss": peaks.max_rss, "vms": peaks.max_vms, "cpu_percent": peaks.max_cpu_percent}
    return line | ({"gpu_memory": peaks.gpu_memory_bytes} if peaks.gpu_memory_bytes else {})


# ---------------------------------------------------------------- reading


@dataclass(slots=True)
class ProcessInfo:
    """Metric → times and values, in the order of their first appearance."""

    series: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    lines: int = 0
    unreadable: int = 0

    @property
    def began(self) -> float:
        return min((time for times, _ in self.series.values() for time in times), default=0.0)


def load_process_info(path: str) -> ProcessInfo:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = parse_process_info(file)
    except FileNotFoundError:
        raise NotFoundError("file", path, _list_beside(path)) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    if not found.lines:
        why = "no line of it is a reading" if found.unreadable else "it is empty"
        raise UsageError(f"there is nothing to plot in {path}: {why}", "name a process_info.log")
    return found


def _list_beside(path: str) -> list[str]:
    try:
        return [os.path.join(os.path.dirname(path), name) for name in os.listdir(os.path.dirname(path) or ".")]
    except OSError:
        return []


def parse_process_info(lines: Iterable[str]) -> ProcessInfo:
    """A line that is cut off is counted and left out: whoever wrote it was killed."""
    found = ProcessInfo()
    for line in lines:
        if not line.strip():
            continue
        fields = _parse_line(line)
        if fields is None:
            found.unreadable += 1
            continue
        found.lines += 1
        for name, value in fields.items():
            if name != TIME:
                times, values = found.series.setdefault(name, ([], []))
                times.append(fields[TIME])
                values.append(value)
    return found


def _parse_line(line: str) -> dict[str, float] | None:
    try:
        fields: Any = json.loads(line)
    except ValueError:
        return None
    if not isinstance(fields, Mapping) or not _is_number(fields.get(TIME)):
        return None
    numbers = {str(name): float(value) for name, value in fields.items() if _is_number(value)}
    return numbers if len(numbers) > 1 else None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


# ---------------------------------------------------------------- plotting


def build_charts(info: ProcessInfo) -> tuple[Chart, ...]:
    return tuple(_build_chart(name, times, values, info.began) for name, (times, values) in info.series.items())


def _build_chart(name: str, times: Sequence[float], values: Sequence[float], began: float) -> Chart:
    title, unit, scale = _UNITS.get(name, ("", "", 1))
    line = Line(name, [time - began for time in times], [value / scale for value in values])
    return Chart((line,), title or name, "seconds", f"{name} [{unit}]" if unit else name)


def write_plot(source: str, target: str) -> ProcessInfo:
    """A PDF with a page for each metric over time."""
    from assay.show.figure import write_pages

    info = load_process_info(source)
    write_pages(build_charts(info), Path(target))
    return info
