"""Times that one product measured and the benchmark history keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from assay.values.machine import Machine


@dataclass(frozen=True, slots=True)
class Timings:
    """The times of one execution of `method`; the shortest sample of each name counts."""

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
