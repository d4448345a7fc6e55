"""Verdicts, which judging returns: never a bare true or false."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum

from assay.errors import ExitCode
from assay.system.fast_dataclasses import NamedTuple, dataclass


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


def find_worst(kinds: Iterable[VerdictKind]) -> VerdictKind:
    """Return the worst kind; PASS where there are none."""
    return min(kinds, key=SEVERITY.index, default=VerdictKind.PASS)


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
    label: str = ""  # of several numbers of a metric the one that is meant
    part: str = ""  # of a curve: its second half


@dataclass(frozen=True, slots=True)
class Verdict:
    """The worst of its findings. Without a single comparison it can never be PASS."""

    kind: VerdictKind
    findings: tuple[Finding, ...]
    comparisons: int

    @classmethod
    def of(cls, findings: Iterable[Finding], comparisons: int) -> Verdict:
        found = tuple(findings)
        worst = find_worst(finding.kind for finding in found)
        if comparisons <= 0 and worst is VerdictKind.PASS:
            worst = VerdictKind.ERROR
            found = (*found, Finding(worst, "nothing", "nothing was compared"))
        return cls(worst, found, comparisons)

    def review(self, parts: Iterable[Verdict] = ()) -> Verdict:
        """Judge a verdict from a file by the rules of a new one: the file may have been changed. It is the worst of
        what it states, of its findings and of its parts; PASS needs a comparison, and numbers that are numbers."""
        findings = tuple(map(_review_finding, self.findings))
        inside = find_worst([*(finding.kind for finding in findings), *(part.kind for part in parts)])
        if SEVERITY.index(inside) < SEVERITY.index(self.kind):
            contradiction = Finding(inside, "verdict", f"the file states {self.kind}, its findings give {inside}")
            return Verdict(inside, (*findings, contradiction), self.comparisons)
        if self.kind is not VerdictKind.PASS:
            return Verdict(self.kind, findings, self.comparisons)
        return Verdict.of(findings, self.comparisons)


def _review_finding(found: Finding) -> Finding:
    numbers = (found.effect, *(found.interval or ()))
    if found.kind is not VerdictKind.PASS or not any(each is not None and math.isnan(each) for each in numbers):
        return found
    message = f"{found.message}; but its effect is not a number"
    return Finding(VerdictKind.ERROR, found.subject, message, found.value, found.expected, found.step, found.effect)


class Judgement(NamedTuple):
    """The result of a check or a comparison, for Python programs."""

    verdict: VerdictKind
    exit_code: int  # what the command ends with
    findings: tuple[Finding, ...]
    text: str  # the report that the command prints

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


def build_judgement(verdict: Verdict, text: str) -> Judgement:
    return Judgement(verdict.kind, int(verdict.kind.exit_code), verdict.findings, text)
