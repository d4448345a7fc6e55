"""Numbers over time: metrics by step, readings by second."""

from __future__ import annotations

from assay.system.fast_dataclasses import dataclass

# What `{number}` stands for in a pattern: sign, exponent, nan, inf. It holds no group, so that it can be put into one.
NUMBER = r"[-+]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|(?i:nan|inf(?:inity)?))"


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One value of one metric. `step` counts whatever the script counts (iterations or epochs)."""

    metric: str
    value: float
    step: float | None = None
    time: float | None = None  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a run's whole process tree, and at its GPU where it has one."""

    time: float
    processes: int
    cpu_s: float  # consumed so far by the tree
    rss_bytes: int
    vms_bytes: int
    peak_rss_bytes: int  # the largest VmHWM seen in the tree so far
    gpu: GpuReading | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The sum (memory) or the maximum (the rest) over the run's GPUs."""

    memory_bytes: int
    utilisation: float  # percent
    sm_clock_mhz: int
    temperature_c: int
    power_w: float
    throttle: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """One metric of one run in a line. Values that are not finite count only in `count` and `bad`."""

    metric: str
    count: int
    last: float
    last_step: float | None
    min: float
    min_step: float | None
    max: float
    max_step: float | None
    mean: float
    bad: int = 0  # how many NaN or infinite values
    first_time: float | None = None
    last_time: float | None = None
