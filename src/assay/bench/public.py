"""The function `assay.compare_benchmarks` of the public API."""

from __future__ import annotations

import os
from collections.abc import Sequence

from assay.values.verdict import Judgement, build_judgement

Path = str | os.PathLike[str]


def compare_benchmarks(
    base: str,
    head: str,
    *,
    method: str | None = None,
    root: Path | None = None,
    metrics: Sequence[str] = (),
    min_effect: float = 0.05,
    everything: bool = False,
) -> Judgement:
    """Compare two labels, commits, run directories or files of results, as `assay bench compare BASE HEAD` does.

    `everything`: executions that other processes disturbed, and profiled ones, count as well.
    """
    from assay.bench.flow.compare import CompareOptions, compare_recorded
    from assay.bench.report.history import build_comparison_document
    from assay.show.terminal_report import render_terminal

    options = CompareOptions(metrics=tuple(metrics), min_effect=min_effect, everything=everything)
    report = compare_recorded(base, head, method, os.fspath(root) if root is not None else None, options)
    return build_judgement(report.verdict, render_terminal(build_comparison_document(report)))
