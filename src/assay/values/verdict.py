"""What judging returns: never a bare true or false."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from assay.errors import ExitCode
from assay.system.fast_dataclasses import dataclass


class VerdictKind(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    CHANGED = "CHANGED"  # different, not worse: suspiciously better, or not bit-equal
    ERROR = "ERROR"  # there was nothing to judge: a crash, a time-out, an unread file

    @property
    def exit_code(self) -> ExitCode:
        return _EXIT_CODES[self]


_EXIT_CODES = {
    VerdictKind.PASS: ExitCode.OK,
    VerdictKind.FAIL: ExitCode.FAILED,
    VerdictKind.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
    VerdictKind.CHANGED: ExitCode.INCONCLUSIVE,
    VerdictKind.ERROR: ExitCode.FAILED,
}
SEVERITY = (VerdictKind.ERROR, VerdictKind.FAIL, VerdictKind.INCONCLUSIVE, VerdictKind.CHANGED, VerdictKind.PASS)


@dataclass(frozen=True, slots=True)
class Finding:
    """One judged fact with its numbers."""

    kind: VerdictKind
    subject: str  # what was judged: a run and a metric, a layer, a segment
    message: str
    value: float | None = None
    expected: float | None = None
    step: float | None = None  # where it first shows
    effect: float | None = None  # relative: +.02 is two percent above what was expected
    interval: tuple[float, float] | None = None  # of the effect
    stretches: tuple[tuple[float, float], ...] = ()  # from step to step: every window that is meant


@dataclass(frozen=True, slots=True)
class Verdict:
    """The worst of its findings. Without a single comparison it can never be PASS."""

    kind: VerdictKind
    findings: tuple[Finding, ...]
    comparisons: int

    @classmethod
    def of(cls, findings: Iterable[Finding], comparisons: int) -> Verdict:
        found = tuple(findings)
        kinds = {finding.kind for finding in found}
        worst = next((kind for kind in SEVERITY if kind in kinds), VerdictKind.PASS)
        if comparisons == 0 and worst is VerdictKind.PASS:
            worst = VerdictKind.ERROR
            found = (*found, Finding(worst, "nothing", "nothing was compared"))
        return cls(worst, found, comparisons)
