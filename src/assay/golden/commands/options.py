"""What the subcommands of `assay golden` share: their options, their progress lines, their last words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

import click

from assay.show.console_warnings import warn as warn_user
from assay.show.formatting import clean, clean_lines
from assay.values.slots import parse_slot_flags
from assay.values.units import parse_timeout

if TYPE_CHECKING:
    from assay.golden.flow.files import GoldenOptions, RunHooks
    from assay.golden.values import GoldenReport
    from assay.study.api import Event

DEFAULT_MANIFEST = "convergence_harness_manifest.json"


def run_options(store_is_needed: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What all subcommands that run something share."""
    store = "Where checkpoints and manifests lie." + ("" if store_is_needed else "  [default: gathered first]")
    options = [
        click.argument("file"),
        click.option("-s", "--store", required=store_is_needed, metavar="DIR", help=store),
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

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


golden_options = run_options()


def build_options(given: dict[str, Any], **further: Any) -> GoldenOptions:
    from assay.golden.flow.files import GoldenOptions

    return GoldenOptions(
        file=given["file"],
        store=given["store"],
        manifest_name=given["manifest_name"],
        root=given.get("root"),
        slots=parse_slot_flags(given.get("slots"), given.get("jobs")),
        on=given.get("on"),
        tests=tuple(given["tests"]) or None,
        timeout_s=parse_timeout(given.get("timeout")),
        command_line=tuple(sys.argv),
        **further,
    )


def build_hooks(quiet: bool) -> RunHooks:
    """A line for every run that begins or ends; a check is short, and a long training has `assay logs -f`."""
    from assay.golden.flow.files import RunHooks

    listen = (lambda _event: None) if quiet else tell_event
    return RunHooks(listen=listen, warn=warn_user, owns_process=True, counts_wait=True, tick_s=0.1)


def tell_event(event: Event) -> None:
    entry = event.entry
    if event.kind == "started":
        warn(clean(f"started {entry.spec.name}"))
    elif event.kind == "adopted":
        warn(clean(f"found {entry.spec.name} still running"))
    elif event.kind == "ended":
        reason = f" ({entry.outcome.reason})" if entry.outcome and entry.outcome.reason else ""
        warn(clean(f"{entry.state} {entry.spec.name}{reason}"))


def warn(line: str) -> None:
    print(clean_lines(line), file=sys.stderr)


def show_report(
    report: GoldenReport,
    as_json: bool,
    allow_changed: bool = False,
    stream: TextIO | None = None,
    every_row: bool = True,
) -> int:
    from assay.golden.report.document import build_document
    from assay.show.report_files import print_document

    document = build_document(report, allow_changed=allow_changed, every_row=every_row)
    print_document(document, as_json=as_json, stream=stream)
    if report.problem:
        warn(f"assay: {report.problem}")
    return int(report.exit_code(allow_changed))


def write_reports(report: GoldenReport, given: Mapping[str, Any], allow_changed: bool = False) -> None:
    from assay.golden.report.document import build_document
    from assay.show.report_files import FORMS, write_document

    if any(given.get(name) for name in FORMS):
        write_document(build_document(report, allow_changed=allow_changed), given)
