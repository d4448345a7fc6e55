"""What other packages use of benchmarks. Names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.system.lazy import build_getattr

if TYPE_CHECKING:
    from assay.bench.child_report import load_story
    from assay.bench.commands.options import build_hooks, check_python
    from assay.bench.flow.archive import add_timings
    from assay.bench.flow.compare import CompareOptions, compare_recorded
    from assay.bench.flow.execution_builder import load_readings
    from assay.bench.flow.run import run_benchmarks
    from assay.bench.page.commits import list_commits
    from assay.bench.page.contents import (
        Archive,
        Zoom,
        build_environments,
        build_history_page,
        is_archive,
        list_columns,
    )
    from assay.bench.page.overview import SORTS, build_overview, choose_lines, find_changes, group_lines
    from assay.bench.page.report import build_report
    from assay.bench.page.sides import build_comparison
    from assay.bench.records import load_execution, write_execution
    from assay.bench.report.history import render_comparison
    from assay.bench.values.execution import (
        BENCH_REPORT_FILE,
        BenchExecution,
        BenchMethod,
        BenchReport,
        BenchRequest,
        BenchResult,
        ProfileWindow,
        parse_method,
        parse_windows,
    )

HOMES = {
    "assay.bench.page.report": "build_report",
    "assay.bench.page.sides": "build_comparison",
    "assay.bench.child_report": "load_story",
    "assay.bench.commands.options": "build_hooks check_python",
    "assay.bench.page.commits": "list_commits",
    "assay.bench.flow.archive": "add_timings",
    "assay.bench.flow.compare": "CompareOptions compare_recorded",
    "assay.bench.flow.execution_builder": "load_readings",
    "assay.bench.flow.run": "run_benchmarks",
    "assay.bench.page.overview": "SORTS build_overview choose_lines find_changes group_lines",
    "assay.bench.page.contents": ("Archive Zoom build_environments build_history_page is_archive list_columns"),
    "assay.bench.records": "load_execution write_execution",
    "assay.bench.report.history": "render_comparison",
    "assay.bench.values.execution": (
        "BENCH_REPORT_FILE BenchExecution BenchMethod BenchReport BenchRequest BenchResult ProfileWindow parse_method "
        "parse_windows"
    ),
}
__getattr__ = build_getattr(__name__, HOMES)
