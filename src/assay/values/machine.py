"""The machine that something ran on, and the state it was in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU before or after an execution."""

    index: int
    name: str
    sm_clock_mhz: int = 0
    temperature_c: int = 0
    power_w: float = 0.0
    memory_bytes: int = 0
    utilisation: float = 0.0
    throttle: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()  # pids that were on it and are not ours


@dataclass(frozen=True, slots=True)
class Machine:
    """How the machine is made and how it stood: what a figure is worth depends on it."""

    host: str = ""
    os: str = ""
    python: str = ""
    cpu_model: str = ""
    logical_cpus: int = 0
    physical_cpus: int = 0
    sockets: int = 0
    memory_bytes: int = 0
    governor: str = ""
    load_1m: float | None = None  # when it began
    foreign_cpu: float | None = (
        None  # fraction of all cores that others used during the run; None: too short to measure
    )
    accelerator_model: str = ""
    accelerator_count: int = 0
    accelerator_driver: str = ""
    gpus: tuple[GpuState, ...] = ()  # before
    gpus_after: tuple[GpuState, ...] = ()
    throttled: tuple[str, ...] = ()  # every reason seen before, during or after the run
    packages: Mapping[str, str] = field(default_factory=dict)
    foreign_cpu_before: float | None = None  # share of all cores that others used just before it began
