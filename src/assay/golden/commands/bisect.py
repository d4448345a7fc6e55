"""`assay golden bisect`."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from assay.golden.commands.options import build_hooks, build_options, run_options, warn
from assay.values.units import parse_timeout

if TYPE_CHECKING:
    from assay.golden.flow.bisect import BisectReport


@click.command()
@run_options(store_is_needed=False)
@click.option("--good", required=True, metavar="COMMIT", help="A commit whose training converges.")
@click.option("--bad", required=True, metavar="COMMIT", help="A later commit whose training does not.")
@click.option("--build", metavar="COMMAND", help="Run at each commit before it is checked; skipped when it fails.")
@click.option("--build-timeout", metavar="DURATION", help="Time limit of --build, as in 10m.")
@click.option(
    "--patience",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="Trials of a commit that stays inconclusive.",
)
@click.option("--fresh", is_flag=True, help="Forget what an earlier call of the same search found.")
def bisect(good: str, bad: str, quiet: bool, as_json: bool, **given: Any) -> int:
    """Find the commit that broke convergence.

    Commits are tried in a work tree of their own, never in yours. First both ends are checked: the good one has to
    pass and the bad one to fail. Without --store the good end is gathered first. Commits that do not build or that
    crash are skipped, inconclusive ones tried again. Every trial is kept: killed, the same call goes on. Exit code 0:
    found. 3: not found, and it says why.
    """
    from assay.golden.flow.bisect import BisectOptions, bisect_file

    options = BisectOptions(
        build_options({**given, "store": given["store"] or ""}),
        good,
        bad,
        given["build"],
        parse_timeout(given["build_timeout"]),
        given["patience"],
        given["fresh"],
    )
    report = bisect_file(options, build_hooks(quiet=True), (lambda _line: None) if quiet or as_json else warn)
    return show(report, as_json)


def show(report: BisectReport, as_json: bool) -> int:
    from assay.golden.report.bisection import build_document, exit_code
    from assay.show.report_files import print_document

    print_document(build_document(report), as_json=as_json)
    if report.interrupted:
        warn(f"interrupted by {report.interrupted}; go on with: {shlex.join(['assay', *sys.argv[1:]])}")
    return int(exit_code(report))
