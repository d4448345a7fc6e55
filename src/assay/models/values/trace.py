"""What happened when, on which track: the one shape into which every tool's own profile is brought."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that took time. `track` is a path: ("onnxruntime", "CPU"); its parts are nested in a viewer."""

    track: tuple[str, ...]
    name: str
    start_ns: int
    end_ns: int
    args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.end_ns < self.start_ns:
            raise ValueError(f"{self.name!r} ends {self.start_ns - self.end_ns} ns before it begins")

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Profile:
    """A tool's profile as far as it could be read; `problems` tell of the rest, one line each."""

    slices: tuple[Slice, ...]
    problems: tuple[str, ...] = ()
