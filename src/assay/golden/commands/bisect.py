"""`assay golden bisect`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from assay.errors import ExitCode
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
    from assay.show.json_text import render_facts
    from assay.system.terminal import use_color

    if as_json:
        sys.stdout.write(render_facts(build_facts(report)))
    else:
        sys.stdout.write("".join(f"{line}\n" for line in describe(report, use_color(sys.stdout))))
    if report.interrupted:
        warn(f"interrupted by {report.interrupted}; go on with: {shlex.join(['assay', *sys.argv[1:]])}")
    return int(exit_code(report))


def exit_code(report: BisectReport) -> ExitCode:
    if report.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if report.culprit else ExitCode.INCONCLUSIVE


def describe(report: BisectReport, color: bool = False) -> Iterator[str]:
    from assay.golden.report.terminal import render_evidence
    from assay.show.bisection import render_commit, render_culprit

    if report.culprit:
        yield from render_culprit(report.culprit, color)
    elif report.stuck:
        yield f"nothing was searched: {report.stuck}"
    elif report.suspects:
        yield "one of these, and the trials cannot tell which:"
        yield from (f"  {render_commit(commit)}" for commit in report.suspects)
    if report.evidence:
        yield from render_evidence(report.evidence)
    tested = len({trial.commit for trial in report.tried})
    skipped = f", {report.skipped} of them skipped" if report.skipped else ""
    trials = f"{len(report.tried)} trial{'' if len(report.tried) == 1 else 's'}"
    yield f"{tested} of {report.commits + 1} commits tried{skipped}, {trials}; log: {report.dir}"


def build_facts(report: BisectReport) -> dict[str, Any]:
    from assay.show.bisection import build_commit_facts

    return {
        "exit_code": int(exit_code(report)),
        "good": build_commit_facts(report.good),
        "bad": build_commit_facts(report.bad),
        "culprit": build_commit_facts(report.culprit) if report.culprit else None,
        "suspects": [build_commit_facts(commit) for commit in report.suspects],
        "evidence": _build_trial(report.evidence) if report.evidence else None,
        "stuck": report.stuck,
        "commits": report.commits,
        "trials": [_build_trial(trial) for trial in report.tried],
        "resumed": report.resumed,
        "interrupted": report.interrupted,
        "dir": report.dir,
    }


def _build_trial(trial: Any) -> dict[str, Any]:
    facts = asdict(trial)
    facts["verdict"] = str(facts.pop("kind"))
    return facts
