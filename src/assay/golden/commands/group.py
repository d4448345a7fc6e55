"""`assay golden`: gather, check, validate."""

from __future__ import annotations

import sys
from typing import Any

import click

from assay.errors import ExitCode
from assay.golden.commands.bisect import bisect
from assay.golden.commands.options import (
    DEFAULT_MANIFEST,
    build_hooks,
    build_options,
    golden_options,
    show_report,
    warn,
    write_reports,
)
from assay.golden.commands.rebase import rebase
from assay.golden.commands.selftest import selftest
from assay.golden.commands.show import show
from assay.show.formatting import clean_lines
from assay.show.report_files import prepare_reports, report_options


@click.group()
def command() -> None:
    """Record a training that is good; check that a changed one still converges.

    FILE is the convergence harness's YAML, or a native study with a `golden:` section.
    """


@command.command()
@golden_options
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    metavar="N",
    help="Recordings of each segment in all.  [default: the file's]",
)
@click.option(
    "--counting", is_flag=True, help="Only record how the program counts its steps, into the recording that is there."
)
@report_options
def gather(replicas: int | None, counting: bool, quiet: bool, as_json: bool, **given: Any) -> int:
    """Record a training and its noise.

    Trains once and records what follows each checkpoint; then repeats the segments to measure the noise.
    """
    from assay.golden.flow.files import gather_file

    stream = sys.stderr if prepare_reports({**given, "as_json": as_json}) else sys.stdout
    options = build_options(given, replicas=None if replicas is None else replicas - 1, counting=counting)
    report = gather_file(options, build_hooks(quiet or as_json), warn)
    write_reports(report, given)
    return show_report(report, as_json, stream=stream)


@command.command()
@golden_options
@click.option(
    "--most-checks",
    type=click.IntRange(min=1),
    metavar="N",
    help="Runs of a segment while it is inconclusive.  [default: the file's]",
)
@click.option("--no-early-stop", is_flag=True, help="Run every segment to its end, also when it has failed.")
@click.option("--allow-changed", is_flag=True, help="CHANGED is good enough: exit code 0.")
@click.option("--all", "every_row", is_flag=True, help="Show every segment that passed, however many there are.")
@report_options
def check(
    most_checks: int | None,
    no_early_stop: bool,
    allow_changed: bool,
    every_row: bool,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Check a training against its golden.

    Runs each recorded segment from its checkpoint and compares.

    Exit code 0: PASS. 1: FAIL, or a run crashed or timed out. 3: INCONCLUSIVE or CHANGED. The store is only read.
    """
    from assay.golden.flow.files import check_file

    stream = sys.stderr if prepare_reports({**given, "as_json": as_json}) else sys.stdout
    options = build_options(given, most_checks=most_checks, early_stop=not no_early_stop)
    report = check_file(options, build_hooks(quiet or as_json), warn)
    write_reports(report, given, allow_changed)
    return show_report(report, as_json, allow_changed, stream, every_row)


@command.command()
@click.argument("file")
@click.option(
    "-s", "--store", default="golden", metavar="DIR", show_default=True, help="Where checkpoints and manifests lie."
)
@click.option(
    "--manifest-name", default=DEFAULT_MANIFEST, metavar="NAME", show_default=True, help="Put behind the test's name."
)
@click.option("-t", "--test", "tests", multiple=True, metavar="NAME", help="Only these tests of the file.")
@click.option("--log", metavar="FILE", help="A sample log: say which patterns match nothing in it.")
def validate(log: str | None, **given: Any) -> int:
    """Look at FILE without running it.

    Says its errors, its patterns, and every command it makes.
    """
    from assay.golden.flow.files import validate_file

    found = validate_file(build_options(given), log)
    for warning in found.file.warnings:
        warn(f"warning: {warning}")
    for test, mode, text in found.commands:
        print(clean_lines(f"{test} {mode}: {text}"))
    for note in found.notes:
        warn(note)
    for problem in found.problems:
        warn(f"problem: {problem}")
    return int(ExitCode.USAGE if found.problems else ExitCode.OK)


for _inner in (show, rebase, selftest, bisect):
    command.add_command(_inner)
