"""The machine that something ran on and the state it was in; and times that were measured there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


@dataclass(frozen=True, slots=True)
class Timings:
    """Times that one product measured and the benchmark history keeps: those of one execution of `method`.

    The shortest sample of each name counts.
    """

    id: str
    method: str
    samples: Mapping[str, tuple[float, ...]]  # seconds, by name
    wall_time: str  # the name whose samples are the execution's wall time; it may have none
    succeeded: bool
    machine: Machine
    tools: Mapping[str, str] = field(default_factory=dict)  # name → version: only equal ones are compared
    commit: str | None = None
    started_at: float = 0.0
    ended_at: float = 0.0
    contaminated: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)


KeepTimings = Callable[[str, Timings, str | None], object]  # the runs' root, the times, a label
