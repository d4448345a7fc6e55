"""`assay bench compare`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from assay.bench.commands.options import (
    all_option,
    better_option,
    build_compare_options,
    build_request,
    build_run,
    effect_option,
    most_option,
    prepare,
    report_options,
    run_options,
    show,
)
from assay.errors import ExitCode, UsageError
from assay.show.console_warnings import say, warn

if TYPE_CHECKING:
    from assay.bench.values.comparison import ComparisonReport


@click.command()
@click.argument("what", nargs=-1, metavar="BASE HEAD | METHOD...")
@run_options
@click.option("--git", "span", metavar="BASE..HEAD", help="Check out both commits and run METHOD... in turns.")
@click.option("--build", metavar="TEXT", help="With --git: run this in each work tree first.")
@click.option("--method", metavar="METHOD", help="Only this benchmark of BASE and HEAD.")
@click.option("--only", multiple=True, metavar="METRIC", help="Only these metrics. Repeatable.")
@better_option
@effect_option(0.05, "Smaller differences do not matter.")
@most_option
@click.option(
    "--across-setups",
    "across",
    is_flag=True,
    help="Judge executions of different set-ups (machines, drivers, versions) all the same.",
)
@click.option("--allow-changed", is_flag=True, help="Better than expected is good enough: exit code 0.")
@click.option("--no-confirm", is_flag=True, help="With --git: say FAIL without running again.")
@all_option
@report_options
def compare(what: tuple[str, ...], span: str | None, build: str | None, method: str | None, **given: Any) -> int:
    """Compare labels, commits, folders or files.

    Only executions of the same set-up (processor, accelerator, driver, versions) are judged; where BASE and HEAD have
    none in common, nobody can tell the code from the machine, and it is inconclusive.

    With --git both commits are checked out into trees of our own and run in turns; what looks worse is run again
    before it is called a FAIL. Exit code 0: not worse. 1: worse. 3: inconclusive.
    """
    from assay.bench.flow.compare import DEFAULT_TRIALS, compare_git, compare_recorded

    prepare(given)
    options = build_compare_options(given, build)
    if span is not None:
        request = build_request(what, given, default_trials=DEFAULT_TRIALS)
        quiet = given["quiet"] or given["as_json"]
        report = compare_git(span, request, options, build_run(quiet), (lambda _line: None) if quiet else say)
    else:
        if len(what) != 2:
            raise UsageError(
                f"BASE and HEAD are two, not {len(what)}",
                "name two labels, commits or files; or --git base..head METHOD",
            )
        report = compare_recorded(what[0], what[1], method, given["root"], options, warn)
    return _show_comparison(report, given)


def _show_comparison(report: ComparisonReport, given: dict[str, Any]) -> int:
    from assay.bench.report.history import build_comparison_cases, render_comparison
    from assay.values.verdict import VerdictKind

    if report.problem:
        say(f"assay: {report.problem}")
    show(
        given,
        f"assay bench compare: base {report.base}, head {report.head}",
        build_comparison_cases(report),
        lambda color, width: render_comparison(report, color=color, width=width),
        lambda: asdict(report),
    )
    kind = report.verdict.kind
    codes = {ExitCode.OK if given["allow_changed"] and kind is VerdictKind.CHANGED else kind.exit_code}
    codes |= {ExitCode.INTERRUPTED} if report.interrupted else set()
    codes |= {ExitCode.INTERNAL} if report.problem else set()
    return int(ExitCode.worst(codes))
