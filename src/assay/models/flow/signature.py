"""What makes two failures the same one: by this a search knows what it is looking for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from assay.models.values.model import CaseReport, StepOutcome
from assay.values.verdict import VerdictKind

WRONG = (VerdictKind.FAIL, VerdictKind.ERROR)
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Signature:
    """The step that failed, how, and in which words; or outputs that differ."""

    step: str  # "" : all steps went well, and the outputs differ
    ending: str = ""
    words: str = ""  # of the message, without numbers, names and paths

    def __str__(self) -> str:
        if not self.step:
            return "the outputs differ"
        return f"{self.step} {self.ending}: {self.words}" if self.words else f"{self.step} {self.ending}"

    def resembles(self, other: Signature | None) -> bool:
        """The same step ended in the same way, whatever was said."""
        return other is not None and (self.step, self.ending) == (other.step, other.ending)


def build_signature(report: CaseReport) -> Signature | None:
    """None: nothing is wrong."""
    failed = report.failed_step
    if failed is not None:
        return sign_failure(failed)
    return Signature("") if report.verdict.kind in WRONG else None


def sign_failure(failed: StepOutcome) -> Signature:
    return Signature(str(failed.step), str(failed.ending), normalise(failed.message))


def normalise(message: str) -> str:
    """Numbers, quoted names and paths belong to a model, not to the failure."""
    text = re.sub(r"\"[^\"]*\"|(?<!\w)'[^']*'(?!\w)|`[^`]*`|%\w+|@\w+|<[^<>]*>", "…", message)
    text = re.sub(r"(?<!\w)(?:~|\.{1,2})?(?:/[\w.+@-]+)+/?|0x[0-9a-fA-F]+", "…", text)
    text = re.sub(r"\d+(?:[x.:,]\d+)*", "N", text)
    return " ".join(text.split())[:_LONGEST]


def find_same(reports: Sequence[CaseReport], wanted: Signature | None) -> CaseReport | None:
    """The first case that fails as the whole does: word for word, else in the same step and way.

    A part may fail by itself for a reason of its own, which the whole never meets: it comes first only where nothing
    resembles the whole's failure more.
    """
    wrong = [report for report in reports if report.verdict.kind in WRONG]
    exact = (report for report in wrong if wanted is not None and build_signature(report) == wanted)
    alike = (report for report in wrong if wanted is not None and wanted.resembles(build_signature(report)))
    return next(iter((*exact, *alike, *wrong)), None)
