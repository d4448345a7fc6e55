"""`assay bench run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from assay.bench.commands.options import build_request, build_run, prepare, report_options, run_options, show
from assay.show.console_warnings import say, warn

if TYPE_CHECKING:
    from assay.bench.values.execution import BenchReport


@click.command()
@click.argument("methods", nargs=-1, metavar="METHOD...")
@run_options
@click.option("--label", metavar="TEXT", help="Kept with each execution, to compare and to group by.")
@click.option(
    "--profile", metavar="START:END", help="Profile this window, in seconds; END may be left out; 2:5,8:9 for two."
)
@click.option(
    "--profiler",
    type=click.Choice(["auto", "framework", "py-spy"]),
    default="auto",
    show_default=True,
    help="Who takes the profile.",
)
@report_options
def run(methods: tuple[str, ...], label: str | None, profile: str | None, profiler: str, **given: Any) -> int:
    """Run benchmarks: one process for each method and trial.

    A benchmark that raises, crashes, hangs, reports NaN or nothing at all is a recorded failure, and the others still
    run. Exit code 0: all succeeded. Every execution is a run of the study `bench`.
    """
    from assay.bench.flow.options import check_folders
    from assay.bench.report.executions import build_report_facts, build_run_cases, render_bench_report
    from assay.bench.values.execution import parse_windows

    prepare(given)
    check_folders(given["python_path"])
    request = build_request(
        methods, given, label=label, profile=() if profile is None else parse_windows(profile), profiler=profiler
    )
    report = build_run(given["quiet"] or given["as_json"])(request)
    _say_problems(report)
    show(
        given,
        "assay bench run",
        build_run_cases(report),
        lambda color, width: render_bench_report(report, color=color, width=width),
        lambda: build_report_facts(report),
    )
    return int(report.exit_code)


def _say_problems(report: BenchReport) -> None:
    if report.problem:
        say(f"assay: {report.problem}")
    if report.interrupted:
        say(f"interrupted by {report.interrupted}; what was finished is kept")
    for execution in report.executions:
        for note in execution.profile_notes:
            warn(f"{execution.method} trial {execution.trial}: {note}")
