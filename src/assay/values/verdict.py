"""Verdicts, the results of judging: never a bare true or false."""

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
    CHANGED = "CHANGED"  # different but not worse: suspiciously better, or not bit-equal
    ERROR = "ERROR"  # nothing could be judged: a crash, a time-out, an unread file

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
    """Return the worst kind; PASS if there are none."""
    return min(kinds, key=SEVERITY.index, default=VerdictKind.PASS)


@dataclass(frozen=True, slots=True)
class Finding:
    """One judged fact with its numbers."""

    kind: VerdictKind
    subject: str  # the judged object: a run and a metric, a layer, a segment
    message: str
    value: float | None = None
    expected: float | None = None
    step: float | None = None  # the first step that shows the finding
    effect: float | None = None  # relative: +.02 is two percent above the expected value
    interval: tuple[float, float] | None = None  # the confidence interval of the effect
    stretches: tuple[tuple[float, float], ...] = ()  # the first and last step of every window concerned
    label: str = ""  # the name of one of several numbers of a metric
    part: str = ""  # the part of a curve, such as its second half


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of judging: the worst kind of its findings; never PASS without a comparison."""

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
        """Judge a verdict of a file, which may have been changed, by the rules of new verdicts. The result is the worst
        of its stated kind, its findings and its parts; PASS needs a comparison, and numbers that are not NaN."""
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
    exit_code: int  # the exit code of the command
    findings: tuple[Finding, ...]
    text: str  # the report that the command prints

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


def build_judgement(verdict: Verdict, text: str) -> Judgement:
    return Judgement(verdict.kind, int(verdict.kind.exit_code), verdict.findings, text)
