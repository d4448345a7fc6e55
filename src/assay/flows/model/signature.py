"""When are two failures the same one? By the step, its ending, and what is said of it, without numbers and names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from assay.values.model import CaseReport
from assay.values.verdict import VerdictKind

_WRONG = (VerdictKind.FAIL, VerdictKind.ERROR)


@dataclass(frozen=True, slots=True)
class Signature:
    """What makes two failures the same one."""

    step: str  # "" : all steps went well, and the outputs differ
    ending: str = ""
    words: str = ""  # of the message, without numbers, names and paths

    def __str__(self) -> str:
        return f"{self.step} {self.ending}: {self.words}" if self.step else "the outputs differ"


def build_signature(report: CaseReport) -> Signature | None:
    """None: nothing is wrong."""
    failed = report.failed_step
    if failed is not None:
        return Signature(str(failed.step), str(failed.ending), normalise(failed.message))
    return Signature("") if report.verdict.kind in _WRONG else None


def normalise(message: str) -> str:
    """Numbers, quoted names and paths belong to a model, not to the failure."""
    text = re.sub(r"\"[^\"]*\"|'[^']*'|%\w+|@\w+|<[^<>]*>", "…", message)
    text = re.sub(r"(?:/[\w.+-]+)+|0x[0-9a-fA-F]+", "…", text)
    text = re.sub(r"\d+(?:[x.:]\d+)*", "N", text)
    return " ".join(text.split())[:200]
