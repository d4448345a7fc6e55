"""The results of `assay golden bisect`, `blame`, `rebase` and `selftest`."""

from __future__ import annotations

from collections.abc import Mapping

from assay.code.checkout import Commit
from assay.errors import ExitCode
from assay.golden.judge.contrasts import MetricShift
from assay.golden.values import Fault, Golden, SegmentReport
from assay.system.fast_dataclasses import dataclass, field
from assay.values.verdict import VerdictKind

NO_EFFECT = "no effect: equal bit for bit"


@dataclass(frozen=True, slots=True)
class Tried:
    """One trial, as recorded in the log."""

    commit: str
    verdict: VerdictKind
    message: str = ""
    subject: str = ""
    effect: float | None = None
    interval: tuple[float, float] | None = None
    step: float | None = None
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BisectReport:
    good: Commit
    bad: Commit
    dir: str
    commits: int  # number of commits between the ends, including the bad end
    trials: tuple[Tried, ...]
    culprit: Commit | None = None
    evidence: Tried | None = None
    suspects: tuple[Commit, ...] = ()
    stuck: str | None = None
    interrupted: str | None = None
    resumed: int = 0  # trials that an earlier call had made

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.INTERRUPTED if self.interrupted else ExitCode.OK if self.culprit else ExitCode.INCONCLUSIVE

    @property
    def skipped(self) -> int:
        return len({trial.commit for trial in self.trials if trial.verdict is VerdictKind.ERROR})


@dataclass(frozen=True, slots=True)
class Rebased:
    """The rebase of one test. If it was not accepted, `refusals` has the reasons, and the old golden is unchanged."""

    test: str
    manifest: str
    before: Golden
    after: Golden | None = None
    effects: Mapping[str, float] = field(default_factory=dict)
    since_first: Mapping[str, float] = field(default_factory=dict)
    refusals: tuple[str, ...] = ()
    wider: tuple[str, ...] = ()  # what the new golden accepts in addition to the old one, as confirmed
    creep: tuple[str, ...] = ()
    archived: str | None = None
    interrupted: str | None = None
    shifts: Mapping[str, MetricShift] = field(default_factory=dict)  # metric and label → shift against the noise
    kept: str = ""  # why the old golden is kept, although the new one was not refused

    @property
    def is_accepted(self) -> bool:
        return self.archived is not None

    @property
    def exit_code(self) -> ExitCode:
        if self.interrupted:
            return ExitCode.INTERRUPTED
        return ExitCode.OK if self.is_accepted or self.kept else ExitCode.FAILED


@dataclass(frozen=True, slots=True)
class Injected:
    """One fault and the verdict of the check."""

    fault: Fault
    report: SegmentReport
    is_idle: bool = False  # every value is that of the run without a fault

    @property
    def is_caught(self) -> bool:
        """Whether the check reported the fault. A run that crashed was not judged: its fault does not count."""
        return self.report.verdict.kind in (VerdictKind.FAIL, VerdictKind.CHANGED)

    @property
    def word(self) -> str:
        if self.report.verdict.kind is VerdictKind.ERROR:
            return "not tried"
        if self.is_idle:
            return NO_EFFECT
        return "caught" if self.is_caught else "missed"


@dataclass(frozen=True, slots=True)
class SelftestReport:
    """The faults in one test. `control`: the run without any fault; if it does not pass, no result means anything."""

    test: str
    start_step: int
    control: SegmentReport
    injected: tuple[Injected, ...]
    elapsed_s: float = 0.0
    interrupted: str | None = None
    problem: str | None = None

    @property
    def caught(self) -> int:
        return sum(each.is_caught for each in self.injected)

    @property
    def exit_code(self) -> ExitCode:
        if self.interrupted or self.problem:
            return ExitCode.INTERRUPTED if self.interrupted else ExitCode.INTERNAL
        is_fine = self.control.verdict.kind is VerdictKind.PASS and self.caught == len(self.injected)
        return ExitCode.OK if is_fine else ExitCode.FAILED


@dataclass(frozen=True, slots=True)
class BlameCell:
    """One code in one environment, each side a or b. A cell with a problem did not run and has no result."""

    code: str
    environment: str
    runs: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """The effect of a change on one metric. `part`: environment, code, or interaction, the effect beyond their sum."""

    metric: str
    part: str
    shift: MetricShift | None = None  # None: a cell that the contrast needs did not run
    where: str = ""  # the side on which the effect was measured, if not a
    allowed: float = 0.0  # the largest relative effect that the metric's rule accepts


@dataclass(frozen=True, slots=True)
class BlameReport:
    test: str
    codes: Mapping[str, str]  # side → title; only one if both sides have the same code
    environments: Mapping[str, str]
    cells: tuple[BlameCell, ...]
    effects: tuple[Moved, ...] = ()
    notes: tuple[str, ...] = ()
    interrupted: str | None = None
    problem: str | None = None

    @property
    def exit_code(self) -> ExitCode:
        """INCONCLUSIVE if an effect is within the noise of the repeats, so that it may be 0."""
        if self.interrupted or self.problem:
            return ExitCode.INTERRUPTED if self.interrupted else ExitCode.INTERNAL
        if any(cell.problem for cell in self.cells) or not self.effects:
            return ExitCode.FAILED
        kinds = {each.shift.kind for each in self.effects if each.shift and each.part != "interaction"}
        return ExitCode.INCONCLUSIVE if "within noise" in kinds else ExitCode.OK
