"""Values of trials, comparisons and histories: where a history changed, and whether by code or environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from assay.system.fast_dataclasses import dataclass, field
from assay.values.series import Direction
from assay.values.verdict import Finding, Verdict, VerdictKind

Cause = Literal["code", "environment", "label", "either", "load", "unknown"]
# reasons why an execution does not count
CONTAMINATED = "contaminated"
PROFILED = "profiled"
INTERRUPTED = "interrupted"
SKIPPED = "skipped"
UNOBSERVED = "not observed"
REFUSED = "refused as contaminated"
DISTURBED = (CONTAMINATED, UNOBSERVED)  # perhaps disturbed by other processes: drawn grey
TAKEN_BY_ALL = (PROFILED, CONTAMINATED, UNOBSERVED)  # counted with `--all`

# ---------------------------------------------------------------- trials and the comparison of two sides


@dataclass(frozen=True, slots=True)
class Samples:
    """The measured values of the trials of one side, in the order in which they ran."""

    values: tuple[float, ...]
    label: str = ""
    # trial -> what disturbed it (foreign load, throttling): such a trial is reported and left out of the comparison
    contaminated: Mapping[int, str] = field(default_factory=dict)
    is_one_process: bool = False  # samples of a single process: they do not show how processes differ

    @property
    def clean(self) -> tuple[float, ...]:
        return tuple(value for trial, value in enumerate(self.values) if trial not in self.contaminated)

    @property
    def disturbed(self) -> tuple[float, ...]:
        return tuple(value for trial, value in enumerate(self.values) if trial in self.contaminated)


@dataclass(frozen=True, slots=True)
class SampleComparison:
    """A comparison of one metric of base and head. Effects are relative: +.08 is head eight percent above base."""

    subject: str
    kind: VerdictKind
    message: str
    base_trials: int  # trials that counted
    head_trials: int
    base: float | None = None  # median of base
    head: float | None = None  # median of head
    effect: float | None = None  # Hodges-Lehmann shift
    interval: tuple[float, float] | None = None  # interval of the effect at 1 - alpha; None: too few trials for alpha
    p: float | None = None  # p of the two-sided Mann-Whitney test
    p_adjusted: float | None = None  # p adjusted by Holm over all metrics that were compared together
    missing_trials: int = 0  # more trials per side, until a verdict can be expected
    warnings: tuple[str, ...] = ()
    detectable: float | None = None  # the smallest worsening that 9 of 10 such comparisons would call FAIL


@dataclass(frozen=True, slots=True)
class NextStep:
    """The next step after a comparison."""

    kind: Literal["more", "confirm"]
    trials: int  # trials per side
    reason: str


# ---------------------------------------------------------------- histories


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One execution of a method."""

    execution_id: str
    value: float
    at: float | None = None
    commit: str | None = None
    samples: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class LevelStep:
    """A step of a series from one level to another that lasts, or a trend from the first value to the last."""

    at: int  # the first index of the new level; 0 for a trend
    before: float  # the level before, an interquartile mean
    after: float
    effect: float  # relative: +.08 is eight percent more
    interval: tuple[float, float] | None = None  # 95% interval of the effect


@dataclass(frozen=True, slots=True)
class MetricChange:
    """A step, a trend or an outlying newest execution, with its cause."""

    step: LevelStep
    execution_id: str  # the first execution of the new level
    until: str  # the last execution of the new level
    at: float | None
    commits: tuple[str | None, str | None]  # commits of the old level's last and the new level's first execution
    cause: Cause
    reason: str = ""  # the reason for naming that cause
    differences: tuple[str, ...] = ()  # differences of environment and label: `cudnn 8.9.2 → 9.1.0`
    is_worse: bool = False
    holds: bool = True  # the level has not returned since
    too_few: int = 0  # how many executions are newest or in a new environment, if too few to judge; else 0
    judgement: str = ""  # triage: ack, wontfix
    note: str = ""
    # a trend begins at `execution_id` and continues to `until`; `newest`: an outlier, or the beginning of a step
    kind: Literal["step", "trend", "newest"] = "step"


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """Executions that can be compared: with one method, metric, label and environment."""

    label: str | None
    fingerprint: str
    setup: Mapping[str, str]
    points: tuple[MetricPoint, ...]
    changes: tuple[MetricChange, ...] = ()
    detectable: float | None = None  # the smallest change that would have been found; None: too few points for any
    needed: int | None = None  # how many points would show the requested change; None: no number would
    alone: float | None = None  # the smallest change that would have been found in the newest execution alone


@dataclass(frozen=True, slots=True)
class MetricHistory:
    method: str
    metric: str
    direction: Direction
    series: tuple[MetricSeries, ...]
    moves: tuple[MetricChange, ...] = ()  # changes from one environment or label to the next
    verdict: Verdict = field(default_factory=lambda: Verdict.of((), 0))
    left_out: Mapping[str, int] = field(default_factory=dict)  # reason → number of executions
    aside: tuple[MetricSeries, ...] = ()  # executions that were disturbed and do not count: they are drawn grey
    instead: str = ""  # the command that judges CPU time of the same executions, which was not disturbed
    broken: str = ""  # why the newest execution gives no value
    doubted: tuple[str, str] | None = None  # the newest execution, if its value does not count, and why
    guessed: bool = False  # whether the direction was guessed: the metric's name does not show it

    @property
    def changes(self) -> tuple[MetricChange, ...]:
        every = [change for series in self.series for change in series.changes] + list(self.moves)
        return tuple(sorted(every, key=lambda change: change.at or 0.0))


@dataclass(frozen=True, slots=True)
class LastingChange:
    """A lasting change of a benchmark from one level to another: all metrics that changed at one execution."""

    method: str
    steps: tuple[tuple[str, MetricChange], ...]  # metric, and its change
    command: str  # the command that shows the change

    @property
    def first(self) -> MetricChange:
        return self.steps[0][1]


@dataclass(frozen=True, slots=True)
class BenchSide:
    """One side of a comparison."""

    name: str
    values: tuple[float, ...]  # values that counted
    executions: int = 0
    aside: tuple[float, ...] = ()  # values of disturbed executions, which did not count


@dataclass(frozen=True, slots=True)
class MetricComparison:
    method: str
    metric: str
    base: BenchSide
    head: BenchSide
    finding: Finding
    confirmed: bool | None = None  # whether a rerun confirmed the finding; None: there was no rerun
    setup: str = ""  # what distinguishes the environment from others of the same metric
    detectable: float | None = None  # the smallest worsening that 9 of 10 such comparisons would call FAIL


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    base: str
    head: str
    metrics: tuple[MetricComparison, ...]
    verdict: Verdict
    notes: tuple[str, ...] = ()
    interrupted: str | None = None
    problem: str | None = None
