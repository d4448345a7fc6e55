"""The names of this package that other packages use, which are loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.system.lazy import build_getattr

if TYPE_CHECKING:
    from assay.bench.child_report import load_child_report
    from assay.bench.commands.options import build_hooks, check_python
    from assay.bench.flow.execution_builder import load_readings
    from assay.bench.flow.run import run_benchmarks
    from assay.bench.records import load_execution, write_execution
    from assay.bench.values.execution import (
        BENCH_REPORT_FILE,
        BenchExecution,
        BenchMethod,
        BenchReport,
        BenchRequest,
        BenchResult,
        parse_method,
        parse_windows,
    )

HOMES = {
    "assay.bench.child_report": "load_child_report",
    "assay.bench.commands.options": "build_hooks check_python",
    "assay.bench.flow.execution_builder": "load_readings",
    "assay.bench.flow.run": "run_benchmarks",
    "assay.bench.records": "load_execution write_execution",
    "assay.bench.values.execution": (
        "BENCH_REPORT_FILE BenchExecution BenchMethod BenchReport BenchRequest BenchResult parse_method parse_windows"
    ),
}
__getattr__ = build_getattr(__name__, HOMES)
