"""`assay golden`: gather, check, validate."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

import click

from assay.cli.reports import prepare_reports, report_options, write_reports
from assay.cli.run import parse_slot_flags
from assay.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from assay.flows.golden import Doors, GoldenOptions
    from assay.flows.supervise import Event
    from assay.values.golden import GoldenReport

DEFAULT_MANIFEST = "convergence_harness_manifest.json"


@click.group()
def command() -> None:
    """Record a training that is good; check that a changed one still converges.

    FILE is the convergence harness's YAML, or a native study with a `golden:` section.
    """


def golden_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What gather and check share."""
    options = [
        click.argument("file"),
        click.option("-s", "--store", required=True, metavar="DIR", help="Where checkpoints and manifests lie."),
        click.option(
            "--manifest-name",
            default=DEFAULT_MANIFEST,
            metavar="NAME",
            show_default=True,
            help="Put behind the test's name.",
        ),
        click.option("-t", "--test", "tests", multiple=True, metavar="NAME", help="Only these tests of the file."),
        click.option(
            "--slots", metavar="LIST", help="Slots: 0,1 (GPUs), 0+1 (one slot of two), cpu:4. Default: found."
        ),
        click.option(
            "-j", "--jobs", type=click.IntRange(min=1), metavar="N", help="N runs at once on the CPU: --slots cpu:N."
        ),
        click.option("--on", metavar="FARM", help="Submit to this farm of the file; `local` runs here."),
        click.option("--root", metavar="DIR", help="Where the runs go.  [default: ./runs]"),
        click.option("--timeout", metavar="DURATION", help="Time limit of each run, as in 90s or 2h."),
        click.option("--quiet", is_flag=True, help="Say nothing until the end."),
        click.option("--json", "as_json", is_flag=True, help="Print the report as JSON."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@command.command()
@golden_options
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    metavar="N",
    help="Recordings of each segment in all.  [default: the file's]",
)
@report_options
def gather(replicas: int | None, quiet: bool, as_json: bool, **given: Any) -> int:
    """Train once and record what follows each checkpoint; then repeat the segments to measure the noise."""
    from assay.flows.golden import gather_file

    stream = sys.stderr if prepare_reports({**given, "as_json": as_json}) else sys.stdout
    options = build_options(given, replicas=None if replicas is None else replicas - 1)
    report = gather_file(options, build_doors(quiet or as_json), warn)
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
@report_options
def check(
    most_checks: int | None, no_early_stop: bool, allow_changed: bool, quiet: bool, as_json: bool, **given: Any
) -> int:
    """Run each recorded segment from its checkpoint and compare.

    Exit code 0: PASS. 1: FAIL, or a run crashed or timed out. 3: INCONCLUSIVE or CHANGED. The store is only read.
    """
    from assay.flows.golden import check_file

    stream = sys.stderr if prepare_reports({**given, "as_json": as_json}) else sys.stdout
    options = build_options(given, most_checks=most_checks, early_stop=not no_early_stop)
    report = check_file(options, build_doors(quiet or as_json), warn)
    write_reports(report, given, allow_changed)
    return show_report(report, as_json, allow_changed, stream=stream)


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
    """Look at FILE without running anything: its errors, its patterns, and every command it makes."""
    from assay.flows.golden import validate_file

    found = validate_file(build_options(given), log)
    for warning in found.file.warnings:
        warn(f"warning: {warning}")
    for test, mode, text in found.commands:
        print(f"{test} {mode}: {text}")
    for note in found.notes:
        print(note, file=sys.stderr)
    for problem in found.problems:
        print(f"problem: {problem}", file=sys.stderr)
    return int(ExitCode.USAGE if found.problems else ExitCode.OK)


# ---------------------------------------------------------------- shared


def build_options(given: dict[str, Any], **further: Any) -> GoldenOptions:
    from assay.flows.golden import GoldenOptions

    return GoldenOptions(
        file=given["file"],
        store=given["store"],
        manifest_name=given["manifest_name"],
        root=given.get("root"),
        slots=parse_slot_flags(given.get("slots"), given.get("jobs")),
        on=given.get("on"),
        tests=tuple(given["tests"]) or None,
        timeout_s=_parse_timeout(given.get("timeout")),
        command_line=tuple(sys.argv),
        **further,
    )


def _parse_timeout(text: str | None) -> float | None:
    from assay.flows.golden import parse_duration

    seconds = parse_duration(text) if text is not None else None
    if text is not None and not seconds:
        raise UsageError(f"--timeout {text} is no duration", "such as 90s, 30m, 2h or 1h30m")
    return seconds


def build_doors(quiet: bool) -> Doors:
    """A line for every run that begins or ends; a check is short, and a long training has `assay logs -f`."""
    from assay.flows.golden import Doors

    return Doors(listen=(lambda _event: None) if quiet else tell_event, tick_s=0.1)


def tell_event(event: Event) -> None:
    entry = event.entry
    if event.kind == "started":
        print(f"started {entry.spec.name}", file=sys.stderr)
    elif event.kind == "adopted":
        print(f"found {entry.spec.name} still running", file=sys.stderr)
    elif event.kind == "ended":
        reason = f" ({entry.outcome.reason})" if entry.outcome and entry.outcome.reason else ""
        print(f"{entry.state} {entry.spec.name}{reason}", file=sys.stderr)


def warn(line: str) -> None:
    print(line, file=sys.stderr)


def show_report(report: GoldenReport, as_json: bool, allow_changed: bool = False, stream: TextIO | None = None) -> int:
    from assay.show.golden import build_golden_facts, render_golden
    from assay.show.json_text import render_facts
    from assay.show.terminal import can_encode, terminal_width, use_color

    if as_json:
        sys.stdout.write(render_facts(build_golden_facts(report, allow_changed)))
    else:
        out = stream or sys.stdout
        look = {"color": use_color(out), "width": terminal_width(out), "plain": not can_encode(out, "…─")}
        out.write(render_golden(report, **look))
    if report.problem:
        print(f"assay: {report.problem}", file=sys.stderr)
    return int(report.exit_code(allow_changed))
