"""Golden recordings: what was good, how a check is made, and by which rules it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from assay.values.study import Pattern, Position

Operator = Literal["==", "!=", "<=", ">=", "<", ">"]
RuleKind = Literal["exact", "paired", "unmatched", "margin"]


@dataclass(frozen=True, slots=True)
class Rule:
    """How one metric is judged.

    exact      every value bit for bit; a difference is CHANGED
    paired     same checkpoint, data and seed: windows of log-ratios against the noise of the replicas
    unmatched  other seeds: windows and the half-curve mean against the spread of the golden's replicas
    margin     the original's operators: each step against |expected| · margin
    """

    metric: str
    kind: RuleKind = "paired"
    delta: float | None = None  # smallest relative effect that matters; None: .005 paired, .01 unmatched
    alpha: float = 0.01
    window: int | None = None  # steps; None: about a sixth of the segment, at most 50
    direction: Literal["min", "max", "both"] | None = None  # which way is worse is the other one; both: any change fails
    operator: Operator | None = None  # margin only
    margin: float | None = None  # margin only
    labels: tuple[str, ...] = ()
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class Track:
    """One metric (or one label of it) of one replica over one segment."""

    steps: tuple[int, ...]
    values: tuple[float, ...]
    texts: tuple[str, ...] = ()  # as logged, for manifests and exact reports


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of training after a checkpoint. `tracks[metric][label]` holds one Track per replica, the first one
    recorded while gathering. A metric without labels has the single label ""."""

    start_step: int
    checkpoint: str  # relative to the manifest
    tracks: Mapping[str, Mapping[str, tuple[Track, ...]]]
    checkpoint_sha: str | None = None

    @property
    def replicas(self) -> int:
        return max((len(found) for labels in self.tracks.values() for found in labels.values()), default=0)


@dataclass(frozen=True, slots=True)
class Golden:
    """A known-good recording: one manifest."""

    test: str
    segments: tuple[Segment, ...]
    version: int = 2  # 1: written by the original
    steps_per_segment: int = 0
    provenance: Mapping[str, object] = field(default_factory=dict)  # commit, packages, hardware, seeds, config hash
    noise: Mapping[str, float] = field(default_factory=dict)  # metric -> measured sd of the paired log-ratio, per window
    history: tuple[Mapping[str, object], ...] = ()  # rebases: when, who, why, effect on each metric


@dataclass(frozen=True, slots=True)
class FlagSpec:
    """One flag of the program under test; `value` None is the bare flag, `is_set` means that we give the value."""

    name: str
    key: str
    value: str | None = None
    is_set: bool = False


@dataclass(frozen=True, slots=True)
class GoldenTest:
    """One test of a convergence file: how to gather, how to check, what to read, how to judge."""

    name: str
    executable: tuple[str, ...]
    directory: str | None  # as written; the flow resolves it
    stream: Literal["stdout", "stderr", "both"]
    step: Pattern
    save: Pattern
    metrics: tuple[Pattern, ...]
    rules: tuple[Rule, ...]
    steps_to_record: int
    gather_flags: tuple[FlagSpec, ...]  # in argv order: the harness's own, the mode's, the common ones
    run_flags: tuple[FlagSpec, ...]
    replicas: int = 0  # further runs of each segment at gather time, for the noise
    most_checks: int = 3  # repeats of an inconclusive segment
    timeout_s: float | None = None
    position: Position | None = None
