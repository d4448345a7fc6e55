"""The history of a metric: points, levels, and the changes between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from assay.values.series import Direction
from assay.values.verdict import Finding, Verdict

Cause = Literal["code", "environment", "either", "unknown"]

# why an execution does not count
CONTAMINATED = "contaminated"
PROFILED = "profiled"
INTERRUPTED = "interrupted"
UNOBSERVED = "not observed"
TAKEN_BY_ALL = (PROFILED, CONTAMINATED, UNOBSERVED)  # `--all` lets these count


@dataclass(frozen=True, slots=True)
class Point:
    """One execution of a method."""

    execution_id: str
    value: float
    at: float | None = None
    commit: str | None = None
    samples: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """Where a series leaves one level for another: `at` is the first place of the new one."""

    at: int
    before: float
    after: float
    effect: float  # relative: +.08 is eight percent more
    interval: tuple[float, float] | None = None  # of the effect


@dataclass(frozen=True, slots=True)
class Change:
    """A step with everything that tells where it comes from."""

    step: Step
    execution_id: str  # the first of the new level
    until: str  # the last of it
    at: float | None
    commits: tuple[str | None, str | None]  # the last of the old level, the first of the new one
    cause: Cause
    reason: str = ""  # for that
    differences: tuple[str, ...] = ()  # of the set-up: `cudnn 8.9.2 → 9.1.0`
    is_worse: bool = False
    holds: bool = True  # the level has not come back since
    too_few: int = 0  # executions that a new set-up has, where they are too few to be judged; 0: they are enough
    judgement: str = ""  # what people said: ack, wontfix
    note: str = ""
    kind: Literal["step", "trend"] = "step"  # a trend begins at `execution_id` and goes on to `until`


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """What can be compared: one method, one metric, one label, one set-up."""

    label: str | None
    fingerprint: str
    setup: Mapping[str, str]
    points: tuple[Point, ...]
    changes: tuple[Change, ...] = ()
    detectable: float | None = None  # the smallest change that would have been found; None: too few points for any
    needed: int | None = None  # points of a series that shows the change that was asked for; None: none would


@dataclass(frozen=True, slots=True)
class MetricHistory:
    method: str
    metric: str
    direction: Direction
    series: tuple[MetricSeries, ...]
    moves: tuple[Change, ...] = ()  # from one set-up to the next
    verdict: Verdict = field(default_factory=lambda: Verdict.of((), 0))
    left_out: Mapping[str, int] = field(default_factory=dict)  # why → how many executions
    broken: str = ""  # why the newest execution gives no value

    @property
    def changes(self) -> tuple[Change, ...]:
        every = [change for series in self.series for change in series.changes] + list(self.moves)
        return tuple(sorted(every, key=lambda change: change.at or 0.0))


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison."""

    name: str
    values: tuple[float, ...]
    executions: int = 0


@dataclass(frozen=True, slots=True)
class MetricComparison:
    method: str
    metric: str
    base: Side
    head: Side
    finding: Finding
    confirmed: bool | None = None  # by a rerun; None: there was none
    setup: str = ""  # what tells the set-up from others that the same metric is compared in


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    base: str
    head: str
    metrics: tuple[MetricComparison, ...]
    verdict: Verdict
    notes: tuple[str, ...] = ()
    interrupted: str | None = None
    problem: str | None = None
