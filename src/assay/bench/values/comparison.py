"""Benchmarks: repeated trials and what comparing them gave, histories and where they changed, and by whose fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from assay.values.verdict import VerdictKind

# ---------------------------------------------------------------- trials, A against B


@dataclass(frozen=True, slots=True)
class Samples:
    """What the trials of one side measured, in the order in which they ran."""

    values: tuple[float, ...]
    label: str = ""
    # trial -> what disturbed it (foreign load, throttling): such a trial is reported and left out of the comparison
    contaminated: Mapping[int, str] = field(default_factory=dict)
    is_one_process: bool = False  # samples of a single process: they do not tell how processes differ

    @property
    def clean(self) -> tuple[float, ...]:
        return tuple(value for trial, value in enumerate(self.values) if trial not in self.contaminated)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric, base against head. Effects are relative: +.08 is head eight percent above base."""

    subject: str
    kind: VerdictKind
    message: str
    base_trials: int  # that counted
    head_trials: int
    base: float | None = None  # medians
    head: float | None = None
    effect: float | None = None  # Hodges-Lehmann shift
    interval: tuple[float, float] | None = None  # of the effect, at 1 - alpha; None: too few trials for that alpha
    p: float | None = None  # two-sided Mann-Whitney
    p_adjusted: float | None = None  # Holm, over all metrics that were compared together
    detectable: float | None = None  # the smallest effect that so many trials would show in four cases of five
    missing_trials: int = 0  # more trials per side, until a verdict can be expected
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do after a comparison; the flow does it."""

    kind: Literal["stop", "more", "confirm"]
    trials: int  # per side
    reason: str


# ---------------------------------------------------------------- histories


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A level that changed and stayed. Places are indices into the series as it was given."""

    index: int  # the first value of the new level
    last_before: int  # the last value of the old one: the change came after it, up to and with `index`
    size: float  # relative: +.08 is eight percent higher from here on
    interval: tuple[float, float]  # of the size, 95%
    before: float  # levels: interquartile means
    after: float
    confidence: float  # 1 - p of this one step; that a whole series was searched is not counted in


@dataclass(frozen=True, slots=True)
class Trend:
    """A level that moves on from value to value, from the first to the last of a series."""

    size: float  # relative: +.35 is 35 percent more at the end than at the beginning
    interval: tuple[float, float]  # of the size, 95%
    before: float  # levels of the line at both ends
    after: float


# ---------------------------------------------------------------- environment or code


@dataclass(frozen=True, slots=True)
class EnvironmentSegment:
    """A stretch of a series that was measured in one environment. `fingerprint` None: it was not recorded."""

    start: int
    stop: int  # one past the last
    fingerprint: str | None


Origin = Literal["code", "environment", "unknown"]


@dataclass(frozen=True, slots=True)
class Attribution:
    """Whether a change point coincides with a change of the environment."""

    change: ChangePoint
    origin: Origin
    reason: str
    split: int | None = None  # where the environment changed
