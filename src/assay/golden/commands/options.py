"""What the commands of `assay golden` share: their options, their progress lines, their report."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from assay.show.console import Console
from assay.show.report_files import ReportPages, write_document
from assay.values.options import (
    Request,
    argument,
    jobs_option,
    json_option,
    option,
    quiet_option,
    root_option,
    slots_option,
)
from assay.values.units import parse_slot_flags, parse_timeout

if TYPE_CHECKING:
    from assay.golden.flow.files import GoldenOptions, RunHooks
    from assay.golden.values import GoldenReport
    from assay.study.api import Event

DEFAULT_MANIFEST = "convergence_harness_manifest.json"


def manifest_option() -> str:
    found: str = option(
        "--manifest-name", default=DEFAULT_MANIFEST, metavar="NAME", help="Appended to the test's name."
    )
    return found


def tests_option() -> tuple[str, ...]:
    found: tuple[str, ...] = option("-t", "--test", multiple=True, metavar="NAME", help="Only these tests of the file.")
    return found


class GoldenRequest(Request):
    """Of every command that runs something."""

    file: str = argument()
    store: str | None = option(
        "-s", "--store", required=True, metavar="DIR", help="Where checkpoints and manifests are."
    )
    manifest_name: str = manifest_option()
    tests: tuple[str, ...] = tests_option()
    slots: str | None = slots_option()
    jobs: int | None = jobs_option()
    on: str | None = option("--on", metavar="FARM", help="Submit to this farm of the file; `local` runs here.")
    root: str | None = root_option("Where the runs go.  [default: ./runs]")
    timeout: float | None = option(
        "--timeout", metavar="DURATION", parse=parse_timeout, help="Time limit of each run, as in 90s or 2h."
    )
    quiet: bool = quiet_option()
    as_json: bool = json_option("Print the report as JSON.")


class GoldenReports(ReportPages, GoldenRequest):
    pass


def build_options(
    request: GoldenRequest,
    replicas: int | None = None,
    counting: bool = False,
    most_checks: int | None = None,
    early_stop: bool = True,
) -> GoldenOptions:
    """`replicas`: recordings of a segment in all, the first one included."""
    from assay.golden.flow.files import GoldenOptions

    return GoldenOptions(
        file=request.file,
        store=request.store or "",
        manifest_name=request.manifest_name,
        root=request.root,
        slots=parse_slot_flags(request.slots, request.jobs),
        on=request.on,
        tests=request.tests or None,
        timeout_s=request.timeout,
        command_line=tuple(sys.argv),
        replicas=None if replicas is None else replicas - 1,
        counting=counting,
        most_checks=most_checks,
        early_stop=early_stop,
    )


def build_hooks(console: Console, is_silent: bool | None = None) -> RunHooks:
    """A line for every run that begins or ends; a check is short, and a long training has `assay logs -f`."""
    from assay.golden.flow.files import RunHooks

    def listen(event: Event) -> None:
        entry = event.entry
        if event.kind == "started":
            console.message(f"started {entry.spec.name}")
        elif event.kind == "adopted":
            console.message(f"found {entry.spec.name} still running")
        elif event.kind == "ended":
            reason = f" ({entry.outcome.reason})" if entry.outcome and entry.outcome.reason else ""
            console.message(f"{entry.state} {entry.spec.name}{reason}")

    hooks = RunHooks(console=console, owns_process=True, counts_wait=True, tick_s=0.1)
    if not (console.quiet if is_silent is None else is_silent):
        hooks.listen = listen
    return hooks


def show_report(
    report: GoldenReport, as_json: bool, console: Console, allow_changed: bool = False, every_row: bool = True
) -> int:
    from assay.golden.report.document import build_document

    document = build_document(report, allow_changed=allow_changed, every_row=every_row)
    console.write_document(document, as_json=as_json)
    if report.problem:
        console.error(f"assay: {report.problem}")
    return int(report.exit_code(allow_changed))


def write_reports(report: GoldenReport, request: ReportPages, allow_changed: bool = False) -> None:
    from assay.golden.report.document import build_document

    if request.md or request.junit or request.html:
        write_document(build_document(report, allow_changed=allow_changed), request)
