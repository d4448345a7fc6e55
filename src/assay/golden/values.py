"""Golden recordings: segments and values, how a check is run, and by which rules it is judged."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, Literal, get_args

from assay.errors import ExitCode
from assay.system.fast_dataclasses import dataclass, field
from assay.values.run import LogStream, State
from assay.values.study import MetricFile, Pattern, Position, Problem, Resources, Study
from assay.values.verdict import Verdict, VerdictKind

Operator = Literal["==", "!=", "<=", ">=", "<", ">"]
OPERATORS: tuple[str, ...] = get_args(Operator)
SUSPICIOUSLY_BETTER = "suspiciously better: "  # the beginning of a finding's message, whatever the verdict
RuleKind = Literal["exact", "paired", "unmatched", "margin", "digits", "noise", "level", "same"]
ReportMode = Literal["gather", "check"]
DEFAULT_STORE = "golden"  # a folder in the working directory
DEFAULT_MANIFEST = "convergence_harness_manifest.json"  # the end of a manifest's name, after the test's name


@dataclass(frozen=True, slots=True)
class Rule:
    """How one metric is judged.

    exact      every value bit for bit; a difference is CHANGED
    paired     same checkpoint, data and seed: windows of log-ratios against the noise of the replicas
    unmatched  other seeds: windows and the half-curve mean against the spread of the golden's replicas
    margin     operators of the original harness: each step against |expected| · margin
    digits, noise, level   recordings in files (judge/against.py); `delta` is the stated tolerance
    same       a configuration that must agree with the golden (judge/same.py): means of signed residuals
    """

    metric: str
    kind: RuleKind = "paired"
    delta: float | None = None  # smallest relative effect that matters; None: see `default_delta`
    alpha: float = 0.01
    window: int | None = None  # steps; None: about a sixth of the segment, at most 50
    direction: Literal["min", "max", "both"] | None = None  # which direction is better; both: any change fails
    operator: Operator | None = None  # margin only
    margin: float | None = None  # margin only
    labels: tuple[str, ...] = ()  # labels to judge; empty: all labels of the golden
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class Track:
    """The values of one metric (or one label of a metric) of one replica over one segment."""

    steps: tuple[int, ...]
    values: tuple[float, ...]
    texts: tuple[str, ...] = ()  # as logged, for manifests and exact reports

    def __post_init__(self) -> None:
        if len(self.steps) != len(self.values) or len(self.texts) not in (0, len(self.steps)):
            raise ValueError(f"a curve has {len(self.steps)} steps and {len(self.values)} values")

    def cut(self, steps: Container[int]) -> Track:
        """Return the values of this track at those of its steps that are in `steps`."""
        kept = [at for at, step in enumerate(self.steps) if step in steps]
        texts = tuple(self.texts[at] for at in kept) if self.texts else ()
        return Track(tuple(self.steps[at] for at in kept), tuple(self.values[at] for at in kept), texts)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of training after a checkpoint. `tracks[metric][label]` holds one Track per replica, the first one
    recorded while gathering. A metric without labels has the single label ""."""

    start_step: int
    checkpoint: str  # path relative to the manifest; "": the segment begins with the training, at step 0
    tracks: Mapping[str, Mapping[str, tuple[Track, ...]]]
    checkpoint_sha: str | None = None
    # variant → metric → label → what the variant logged after the checkpoint
    variants: Mapping[str, Mapping[str, Mapping[str, Track]]] = field(default_factory=dict)

    @property
    def replicas(self) -> int:
        return max((len(runs) for _, _, runs in self.walk()), default=0)

    @property
    def steps(self) -> list[int]:
        """All steps, of any metric, that were recorded while gathering."""
        return sorted({step for _, _, runs in self.walk() for step in runs[0].steps})

    @property
    def last_step(self) -> int:
        return max(self.steps, default=self.start_step)

    def walk(self) -> Iterator[tuple[str, str, tuple[Track, ...]]]:
        """Yield each metric and label with its recordings."""
        for metric, labels in self.tracks.items():
            for label, runs in labels.items():
                yield metric, label, runs


@dataclass(frozen=True, slots=True)
class Golden:
    """A known-good recording: one manifest."""

    test: str
    segments: tuple[Segment, ...]
    version: int = 2  # 1: written by the original harness
    steps_per_segment: int = 0
    provenance: Mapping[str, Any] = field(default_factory=dict)  # commit, packages, hardware, seeds, config hash
    noise: Mapping[str, float] = field(default_factory=dict)  # metric → sd of the paired log-ratio, per window
    history: tuple[Mapping[str, Any], ...] = ()  # rebases: when, by which user, why, effect on each metric
    complete: bool = True  # False: the training had not finished when this was written
    steps_beyond: int | None = None  # added to the length of a check, for a program that counts from 0 and stops one
    # step short; None: unknown
    repeats_start: bool | None = None  # whether a run from a checkpoint logs the checkpoint's own step; None: unknown
    gaps: tuple[tuple[str, int], ...] = ()  # metric and step of each value that the golden's file lacks

    @property
    def notes(self) -> list[str]:
        """Warnings about the file from which the golden was read."""
        return [describe_gap(metric, step) for metric, step in self.gaps]

    @property
    def recordings(self) -> int:
        """The number of recordings that every segment has."""
        return min((segment.replicas for segment in self.segments), default=0)

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(name for segment in self.segments for name in segment.tracks))

    @property
    def variants(self) -> list[str]:
        return list(dict.fromkeys(name for segment in self.segments for name in segment.variants))

    @property
    def values(self) -> int:
        """The number of recorded values."""
        return sum(len(run.steps) for segment in self.segments for _, _, runs in segment.walk() for run in runs)

    @property
    def is_gathered(self) -> bool:
        """Whether the runs were made by a gathering; a rebase may have recorded the runs of a check instead."""
        return not self.history or self.history[-1].get("source") == "gather"

    @property
    def rules(self) -> Mapping[str, Mapping[str, Any]]:
        """The rules with which the golden was gathered, by metric; older manifests have no rules."""
        return self.provenance.get("rules") or {}


def list_gpus(origin: Mapping[str, Any]) -> list[str] | None:
    """Return the names of the GPUs of a provenance, or of an environment of a run; None if they are unknown."""
    gpus = (origin.get("hardware") or {}).get("gpus")
    return None if gpus is None else [str(gpu.get("name") if isinstance(gpu, Mapping) else gpu) for gpu in gpus]


def describe_gap(metric: str, step: int) -> str:
    return f"the golden has no value of {metric} at step {step}"


@dataclass(frozen=True, slots=True)
class FlagSpec:
    """One flag of the program under test. `value` None: the flag has no value; `is_set`: Assay sets the value."""

    name: str
    key: str
    value: str | None = None
    is_set: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that a self-test injects: an environment variable, or a flag of the program."""

    kind: Literal["env", "flag"]
    name: str
    value: str  # for a flag also `x0.9`: 0.9 times the value in the command

    @property
    def title(self) -> str:
        return f"{self.name}={self.value}" if self.kind == "env" else f"{self.name} {self.value}".strip()


@dataclass(frozen=True, slots=True)
class Variant:
    """Another configuration of the program: under `variants` one that is harmless, under `same` one that must agree."""

    name: str
    env: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()  # appended to the command of a check

    @property
    def title(self) -> str:
        """The variables and arguments as they would be typed."""
        import shlex

        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in self.env), *map(shlex.quote, self.flags)])


@dataclass(frozen=True, slots=True)
class GoldenTest:
    """One test of a convergence file: how to gather, how to check, what to read, how to judge."""

    name: str
    executable: tuple[str, ...]
    directory: str | None  # as written; the flow resolves it
    stream: LogStream
    step: Pattern | None  # None: the values of each metric are counted
    save: Pattern | None  # None: without checkpoints, every run begins with the training
    metrics: tuple[Pattern, ...]
    rules: tuple[Rule, ...]
    steps_to_record: int
    gather_flags: tuple[FlagSpec, ...]  # in argv order: flags of the harness, of the mode, and common flags
    run_flags: tuple[FlagSpec, ...]
    replicas: int = 0  # further runs of each segment at gather time, for the noise
    most_checks: int = 3  # repeats of an inconclusive segment
    timeout_s: float | None = None
    position: Position | None = None
    command: str | None = None  # native: shell text instead of `executable`; the flags follow it
    files: tuple[MetricFile, ...] = ()  # native: metrics that the program writes into files of its run directory
    same_line: bool = False  # original harness: a metric counts only on the line with the step
    env: tuple[tuple[str, str], ...] = ()
    resources: Resources = Resources()
    variants: tuple[Variant, ...] = ()  # native: gathered with the replicas
    same: tuple[Variant, ...] = ()  # native: configurations that a check runs too, and that must agree
    selftest: tuple[Fault, ...] = ()  # native: faults that `assay golden selftest` injects

    @property
    def parsed_metrics(self) -> frozenset[str]:
        return frozenset(pattern.metric for pattern in self.metrics)

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """All patterns that are searched for in a log."""
        return tuple(pattern for pattern in (self.step, self.save, *self.metrics) if pattern is not None)

    @property
    def from_start(self) -> bool:
        """Whether a run begins at step 0 instead of at a checkpoint."""
        return self.save is None

    @property
    def has_length(self) -> bool:
        """Whether the program takes the length of a run; if not, it is ended when its segment is complete."""
        return any(flag.name in ("run_for", "run_length") for flag in self.run_flags)

    @property
    def seed_flag(self) -> str:
        """The program's flag for its seed; empty if the file names none."""
        return next((flag.key for flag in self.run_flags if flag.name == "seed"), "")


@dataclass(frozen=True, slots=True)
class GoldenFile:
    """The content of a convergence file: one or more tests of the original harness, or a native study."""

    source: str  # as the user wrote its path
    path: str  # absolute
    dialect: Literal["native", "convergence"]
    tests: tuple[GoldenTest, ...]
    config_hash: str
    warnings: tuple[Problem, ...] = ()
    study: Study | None = None  # native only


class MissingOption(Problem):
    """A section that the file must have."""


class MissingSection(MissingOption):
    """A missing part of `flags`: the original harness checks these parts first."""


class MissingFlag(Problem):
    """A flag that the program must offer and the file must name."""


@dataclass(frozen=True, slots=True)
class MetricReport:
    """The verdict on one metric of one segment: all labels, by the metric's rule."""

    rule: Rule
    verdict: Verdict
    golden: Mapping[str, tuple[Track, ...]]  # label -> replicas
    check: Mapping[str, tuple[Track, ...]]  # label -> one for each run of the check
    noise: float | None = None  # the golden's noise, as measured when it was gathered
    delta: float | None = None  # the delta of the verdict: the rule's or the default

    @property
    def metric(self) -> str:
        return self.rule.metric


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """One execution of a segment, or of the whole training while gathering."""

    dir: str
    state: State
    reason: str = ""
    elapsed_s: float | None = None
    last_step: int | None = None
    stopped_early: str | None = None  # the reason of an early stop
    saved_steps: int = 0  # steps that the early stop saved
    saved_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SegmentReport:
    start_step: int
    checkpoint: str
    verdict: Verdict  # verdict on all metrics and runs of the segment
    metrics: tuple[MetricReport, ...] = ()
    runs: tuple[SegmentRun, ...] = ()


@dataclass(frozen=True, slots=True)
class SameReport:
    """The verdict on one configuration of `golden.same`, over all segments."""

    name: str
    title: str  # the configuration's variables and arguments
    verdict: Verdict
    segments: tuple[SegmentReport, ...] = ()


@dataclass(frozen=True, slots=True)
class GoldenTestReport:
    """The result of `gather` or `check` of one test."""

    test: str
    manifest: str
    verdict: Verdict
    golden: Golden | None = None
    segments: tuple[SegmentReport, ...] = ()
    runs: tuple[SegmentRun, ...] = ()  # gather: the training itself, then the replicas
    notes: tuple[str, ...] = ()  # notes on what was chosen or left out
    warnings: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()  # differences from the recording, without values: packages, command, device and so on
    exit_code: ExitCode | None = None  # the exit code of an error that left nothing to judge
    interrupted: str | None = None  # the signal that interrupted the test
    problem: str | None = None  # a problem of the infrastructure
    same: tuple[SameReport, ...] = ()
    origin: Mapping[str, str] = field(default_factory=dict)  # origin of a check: commit, packages, device

    @property
    def saved_s(self) -> float:
        return sum(run.saved_s for segment in self.segments for run in segment.runs)

    @property
    def saved_steps(self) -> int:
        return sum(run.saved_steps for segment in self.segments for run in segment.runs)


@dataclass(frozen=True, slots=True)
class GoldenReport:
    """The result of `gather` or `check` of a file, from which all reports are built."""

    mode: ReportMode
    source: str
    tests: tuple[GoldenTestReport, ...]
    elapsed_s: float = 0.0

    @property
    def interrupted(self) -> str | None:
        return next((test.interrupted for test in self.tests if test.interrupted), None)

    @property
    def problem(self) -> str | None:
        return next((test.problem for test in self.tests if test.problem), None)

    @property
    def kind(self) -> VerdictKind:
        verdicts = [test.verdict for test in self.tests]
        findings = [finding for verdict in verdicts for finding in verdict.findings]
        return Verdict.of(findings, sum(verdict.comparisons for verdict in verdicts)).kind

    def exit_code(self, allow_changed: bool = False) -> ExitCode:
        excused = (VerdictKind.PASS, VerdictKind.CHANGED) if allow_changed else (VerdictKind.PASS,)
        kinds = [(test.exit_code, test.verdict.kind) for test in self.tests]
        codes = {code or (ExitCode.OK if kind in excused else kind.exit_code) for code, kind in kinds}
        if not self.tests:
            codes.add(ExitCode.FAILED)
        if self.interrupted:
            codes.add(ExitCode.INTERRUPTED)
        if self.problem:
            codes.add(ExitCode.INTERNAL)
        return ExitCode.worst(codes)
