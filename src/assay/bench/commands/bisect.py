"""`assay bench bisect`."""

from __future__ import annotations

import shlex
import sys
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
    json_option,
    most_option,
    run_options,
)
from assay.errors import ExitCode
from assay.show.console import tell
from assay.show.console_warnings import say

if TYPE_CHECKING:
    from assay.bench.flow.bisect import BenchBisect


@click.command()
@click.argument("methods", nargs=-1, metavar="METHOD")
@run_options
@click.option("--good", required=True, metavar="COMMIT", help="Where it was still good.")
@click.option("--bad", default="HEAD", show_default=True, metavar="COMMIT", help="Where it is worse.")
@click.option(
    "--on", "metric", default="wall_time", show_default=True, metavar="METRIC", help="The metric that got worse."
)
@better_option
@effect_option(0.05, "Smaller differences do not matter.")
@most_option
@click.option("--build", metavar="TEXT", help="Run this in each work tree first; commits where it fails are skipped.")
@click.option("--fresh", is_flag=True, help="Forget what an earlier call of the same search found.")
@all_option
@json_option
def bisect(methods: tuple[str, ...], good: str, bad: str, metric: str, build: str | None, **given: Any) -> int:
    """Find the commit that made a metric worse.

    Each commit runs in turns with the good one, in trees of our own. The bad end is tried first: it has to be worse.
    The first worse commit and the one before it are tried twice before anybody is accused. Every answer is kept:
    killed, the same call goes on. Exit code 0: found. 3: not found, and it says why.
    """
    from assay.bench.flow.bisect import Question, bisect_benchmark
    from assay.bench.flow.compare import DEFAULT_TRIALS

    request = build_request(methods, given, default_trials=DEFAULT_TRIALS)
    speak = (lambda _line: None) if given["quiet"] or given["as_json"] else say
    question = Question(good, bad, metric, given["fresh"])
    found = bisect_benchmark(question, request, build_compare_options(given, build), build_run(quiet=True), speak)
    return _show(found, given["as_json"])


def _show(found: BenchBisect, as_json: bool) -> int:
    from assay.bench.report.history import render_bisect
    from assay.show.json_text import render_facts
    from assay.system.terminal import terminal_width, use_color

    code = _exit_code(found)
    if as_json:
        tell(render_facts({"exit_code": int(code), **asdict(found)}))
    else:
        tell(render_bisect(found, color=use_color(sys.stdout), width=terminal_width(sys.stdout)))
    if found.interrupted:
        say(f"interrupted by {found.interrupted}; go on with: {shlex.join(['assay', *sys.argv[1:]])}")
    return int(code)


def _exit_code(found: BenchBisect) -> ExitCode:
    if found.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if found.culprit else ExitCode.INCONCLUSIVE
