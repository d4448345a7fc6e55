"""`assay.check_golden`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from assay.golden.flow.each_test import check_file
from assay.golden.flow.segments import GoldenOptions
from assay.golden.report.document import render_golden
from assay.golden.values import DEFAULT_STORE
from assay.values.units import parse_slot_flags
from assay.values.verdict import Judgement

Path = str | os.PathLike[str]


def check_golden(
    file: Path,
    store: Path = DEFAULT_STORE,
    *,
    tests: Sequence[str] = (),
    root: Path | None = None,
    slots: str | None = None,
    jobs: int | None = None,
    on: str | None = None,
    timeout_s: float | None = None,
    allow_changed: bool = False,
) -> Judgement:
    """Check a training against its golden recording in the folder `store`, as `assay golden check` does."""
    options = GoldenOptions(
        file=os.fspath(file),
        store=os.fspath(store),
        root=os.fspath(root) if root is not None else None,
        slots=parse_slot_flags(slots, jobs),
        on=on,
        tests=tuple(tests),
        timeout_s=timeout_s,
    )
    report = check_file(options)
    if report.interrupted:
        raise KeyboardInterrupt  # it has stopped the runs; this program learns of it as of any other Ctrl-C
    findings = tuple(finding for test in report.tests for finding in test.verdict.findings)
    return Judgement(report.kind, int(report.exit_code(allow_changed)), findings, render_golden(report))
