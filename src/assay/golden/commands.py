"""`assay golden`: its commands, their options, their progress lines and their reports."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from assay import plugins
from assay.errors import ExitCode, UsageError
from assay.golden.values import Fault
from assay.show.console import Console, build_same_call
from assay.show.report_files import ReportPages, check_targets, write_document, write_text
from assay.values.options import (
    Group,
    Request,
    argument,
    farm_option,
    jobs_option,
    json_option,
    option,
    quiet_option,
    root_option,
    slots_option,
)
from assay.values.units import parse_slot_flags, parse_timeout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.follow.api import Event
    from assay.golden.flow.files import GoldenOptions, RunHooks
    from assay.golden.values import GoldenReport
    from assay.values.notify import Notify

GROUP = Group(
    """Record a training that is good; check that a changed one still converges.

    FILE is the convergence harness's YAML, or a native study with a `golden:` section.
    """,
    {
        "gather": ("assay.golden.commands:gather", "Record a training and its noise."),
        "check": ("assay.golden.commands:check", "Check a training against its golden."),
        "validate": ("assay.golden.commands:validate", "Check FILE without running it."),
        "show": ("assay.golden.commands:show", "Show a golden recording."),
        "rebase": ("assay.golden.commands:rebase", "Accept a new golden recording."),
        "selftest": ("assay.golden.commands:selftest", "Inject faults: would a check catch them?"),
        "bisect": ("assay.golden.commands:bisect", "Find the commit that broke convergence."),
    },
)

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
        "-s",
        "--store",
        required=True,
        metavar="DIR",
        help="Where checkpoints and manifests are: a folder, or s3://BUCKET/golden.",
    )
    manifest_name: str = manifest_option()
    tests: tuple[str, ...] = tests_option()
    slots: str | None = slots_option()
    jobs: int | None = jobs_option()
    on: str | None = farm_option()
    root: str | None = root_option("Where the runs go.  [default: ./runs]")
    timeout: float | None = option(
        "--timeout", metavar="DURATION", parse=parse_timeout, help="Time limit of each run, as in 90s or 2h."
    )
    quiet: bool = quiet_option()
    as_json: bool = json_option("Print the report as JSON.")


class GoldenReports(ReportPages, GoldenRequest):
    pass


@contextmanager
def store_here(store: str | None, notify: Notify, *, writes: bool = False) -> Iterator[str | None]:
    """A store at an address is used as a copy on this machine; what a command writes is sent back."""
    if store is None or "://" not in store:
        yield store
        return
    shared_folder = plugins.require_function("store.shared_folder", f"the store {store}")
    with shared_folder(store, writes=writes, notify=notify) as folder:
        yield folder


def build_options(
    request: GoldenRequest,
    store: str | None,
    replicas: int | None = None,
    counting: bool = False,
    most_checks: int | None = None,
    early_stop: bool = True,
) -> GoldenOptions:
    """`store`: the folder that is used. `replicas`: recordings of a segment in all, the first one included."""
    from assay.golden.flow.files import GoldenOptions

    return GoldenOptions(
        file=request.file,
        store=store or "",
        address=request.store if store != request.store else None,
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


# ---------------------------------------------------------------- gather


class GatherRequest(GoldenReports):
    replicas: int | None = option(
        "--replicas",
        type=int,
        minimum=1,
        metavar="N",
        help="Recordings of each segment in all.  [default: the file's]",
    )
    counting: bool = option(
        "--counting",
        default=False,
        help="Only record how the program counts its steps, into the recording that exists.",
    )


def gather(request: GatherRequest, console: Console) -> int:
    """Record a training and its noise.

    Trains once and records what follows each checkpoint; then repeats the segments to measure the noise.
    """
    from assay.golden.flow.files import gather_file

    takes_stdout = check_targets(request.md, request.junit, request.html, as_json=request.as_json)
    quiet = console.quieted(request.quiet or request.as_json)
    with store_here(request.store, quiet.message, writes=True) as store:
        options = build_options(request, store, replicas=request.replicas, counting=request.counting)
        report = gather_file(options, build_hooks(quiet))
    write_reports(report, request)
    return show_report(report, request.as_json, console.on_stderr(takes_stdout))


# ---------------------------------------------------------------- validate


class ValidateRequest(Request):
    file: str = argument()
    store: str = option("-s", "--store", default="golden", metavar="DIR", help="Where checkpoints and manifests are.")
    manifest_name: str = manifest_option()
    tests: tuple[str, ...] = tests_option()
    log: str | None = option("--log", metavar="FILE", help="A sample log: report which patterns match nothing in it.")


def validate(request: ValidateRequest, console: Console) -> int:
    """Check FILE without running it.

    Reports its errors, its patterns, and every command it makes.
    """
    from assay.golden.flow.files import GoldenOptions, validate_file

    with store_here(request.store, console.message) as store:
        options = GoldenOptions(
            request.file,
            store or "",
            manifest_name=request.manifest_name,
            tests=request.tests or None,
            command_line=tuple(sys.argv),
        )
        found = validate_file(options, request.log)
    for warning in found.file.warnings:
        console.warning(str(warning))
    for test, mode, text in found.commands:
        console.print_lines(f"{test} {mode}: {text}")
    for note in found.notes:
        console.error(note)
    for problem in found.problems:
        console.error(f"problem: {problem}")
    return int(ExitCode.USAGE if found.problems else ExitCode.OK)


# ---------------------------------------------------------------- show


class ShowRequest(Request):
    path: str = argument("STORE|FILE")
    store: str | None = option(
        "-s", "--store", metavar="DIR", help="With a convergence file: where its recordings are."
    )
    manifest_name: str = manifest_option()
    metrics: tuple[str, ...] = option(
        "-m", "--metric", multiple=True, metavar="METRIC", help="Only the curves of these metrics."
    )
    no_plot: bool = option("--no-plot", default=False, help="No curves.")
    html: str | None = option("--html", metavar="FILE", help="Also write the recording as one HTML page; - for stdout.")
    as_json: bool = json_option()


def show(request: ShowRequest, console: Console) -> int:
    """Show a golden recording.

    Shows its curves with their band, its noise, the smallest effect it finds, its drift.
    STORE is a folder with recordings; FILE a manifest, or a convergence file together with --store.
    """
    from assay.golden.flow.files import load_recordings
    from assay.golden.report.other_commands import build_show_document

    takes_stdout = check_targets(request.html, as_json=request.as_json)
    quiet = console.quieted(request.as_json)
    with store_here(request.path, quiet.message) as path, store_here(request.store, quiet.message) as store:
        recordings = load_recordings(path or "", store, request.manifest_name)
    document = build_show_document(request.path, recordings, request.metrics, curves=not request.no_plot)
    if request.html:
        from assay.show.html import render_html

        write_text(request.html, render_html(document))
    if not takes_stdout:
        console.write_document(document, as_json=request.as_json)
    for each in recordings:
        for creep in each.creep:
            console.warning(f"{each.golden.test}: {creep}")
    return 0


# ---------------------------------------------------------------- rebase


class RebaseRequest(GoldenRequest):
    reason: str = option(
        "--reason", required=True, metavar="TEXT", help="Why the new behaviour is right; kept in the history."
    )
    source: Literal["gather", "check"] = option(
        "--from",
        choices=("gather", "check"),
        default="gather",
        help="A fresh gathering, or the runs of the last check, from the same checkpoints.",
    )
    replicas: int | None = option(
        "--replicas", type=int, minimum=1, metavar="N", help="Recordings of each segment in all."
    )
    allow_wider: bool = option(
        "--allow-wider", default=False, help="Accept more noise, looser rules, fewer recordings, or new variants."
    )
    allow_failed: bool = option(
        "--allow-failed", default=False, help="With --from check: also when the last check did not pass."
    )
    fresh: bool = option(
        "--fresh", default=False, help="Do not take what an earlier call has staged, or the runs of a check."
    )


def rebase(request: RebaseRequest, console: Console) -> int:
    """Accept a new golden recording.

    It replaces the old one, which is kept next to it. Exit code 0: accepted. 1: refused, and the old recording is
    untouched.
    """
    from assay.golden.flow.rebase import RebaseOptions, rebase_file
    from assay.golden.report.other_commands import build_rebase_document

    quiet = console.quieted(request.quiet or request.as_json)
    with store_here(request.store, quiet.message, writes=True) as store:
        options = RebaseOptions(
            build_options(request, store, replicas=request.replicas),
            request.reason,
            request.source,
            request.allow_wider,
            request.fresh,
            request.allow_failed,
        )
        done = rebase_file(options, build_hooks(quiet))
    console.write_document(build_rebase_document(done), as_json=request.as_json)
    return int(ExitCode.worst(each.exit_code for each in done))


# ---------------------------------------------------------------- check


class CheckRequest(GoldenReports):
    most_checks: int | None = option(
        "--most-checks",
        type=int,
        minimum=1,
        metavar="N",
        help="Runs of a segment while it is inconclusive.  [default: the file's]",
    )
    only: tuple[str, ...] = option(
        "--only",
        multiple=True,
        metavar="METRIC",
        help="Judge this metric alone, or one label of it, as in 'loss MLM'; may be repeated.",
    )
    no_early_stop: bool = option(
        "--no-early-stop", default=False, help="Run every segment to its end, also when it has failed."
    )
    allow_changed: bool = option("--allow-changed", default=False, help="CHANGED is good enough: exit code 0.")
    every_row: bool = option("--all", default=False, help="Show every segment that passed, however many there are.")


def check(request: CheckRequest, console: Console) -> int:
    """Check a training against its golden.

    Runs each recorded segment from its checkpoint and compares.

    Exit code 0: PASS. 1: FAIL, or a run crashed or timed out. 3: INCONCLUSIVE or CHANGED. The store is only read.
    """
    from assay.golden.flow.files import check_file
    from assay.system.fast_dataclasses import replace

    takes_stdout = check_targets(request.md, request.junit, request.html, as_json=request.as_json)
    quiet = console.quieted(request.quiet or request.as_json)
    with store_here(request.store, quiet.message) as store:
        options = build_options(request, store, most_checks=request.most_checks, early_stop=not request.no_early_stop)
        report = check_file(replace(options, only=request.only), build_hooks(quiet))
    write_reports(report, request, request.allow_changed)
    return show_report(
        report, request.as_json, console.on_stderr(takes_stdout), request.allow_changed, request.every_row
    )


# ---------------------------------------------------------------- selftest


def _parse_faults(texts: tuple[str, ...], flag: str) -> tuple[Fault, ...]:
    kind: Literal["env", "flag"] = "env" if flag == "--env" else "flag"
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or (kind == "env" and not equals):
            example = "BREAK_IT=a" if kind == "env" else "--lr=x0.9"
            raise UsageError(f"{flag} {text} does not name a fault", f"as in {flag} {example}")
        found.append(Fault(kind, name, value))
    return tuple(found)


class SelftestRequest(GoldenRequest):
    envs: tuple[Fault, ...] = option(
        "--env", multiple=True, metavar="NAME=VALUE", parse=_parse_faults, help="Also with this variable set."
    )
    flags: tuple[Fault, ...] = option(
        "--flag",
        multiple=True,
        metavar="FLAG=VALUE",
        parse=_parse_faults,
        help="Also with this flag; x0.9 scales the command's.",
    )
    segment: int | None = option(
        "--segment", type=int, metavar="STEP", help="The segment to try, by its first step.  [default: the middle one]"
    )


def selftest(request: SelftestRequest, console: Console) -> int:
    """Inject faults: would a check catch them?

    Each known fault is put into one segment. The faults are those of the file (golden.selftest) and of --env and
    --flag. A run without any fault comes first and has to pass. Exit code 0: all were caught. 1: some were missed or
    could not be tried.
    """
    from assay.golden.flow.selftest import selftest_file
    from assay.golden.report.other_commands import build_selftest_document

    quiet = console.quieted(request.quiet or request.as_json)
    with store_here(request.store, quiet.message) as store:
        options = build_options(request, store)
        reports = selftest_file(options, (*request.envs, *request.flags), request.segment, build_hooks(quiet))
    console.write_document(build_selftest_document(reports), as_json=request.as_json)
    return int(ExitCode.worst(report.exit_code for report in reports))


# ---------------------------------------------------------------- bisect


class BisectRequest(GoldenRequest):
    store: str | None = option(
        "-s", "--store", metavar="DIR", help="Where checkpoints and manifests are.  [default: gathered first]"
    )
    good: str = option("--good", required=True, metavar="COMMIT", help="A commit whose training converges.")
    bad: str = option("--bad", required=True, metavar="COMMIT", help="A later commit whose training does not.")
    build: str | None = option(
        "--build", metavar="COMMAND", help="Run at each commit before it is checked; skipped when it fails."
    )
    build_timeout: float | None = option(
        "--build-timeout", metavar="DURATION", parse=parse_timeout, help="Time limit of --build, as in 10m."
    )
    patience: int = option(
        "--patience",
        type=int,
        minimum=1,
        default=3,
        metavar="N",
        help="Trials of a commit that stays inconclusive.",
    )
    fresh: bool = option("--fresh", default=False, help="Forget what an earlier call of the same search found.")


def bisect(request: BisectRequest, console: Console) -> int:
    """Find the commit that broke convergence.

    Commits are tried in a work tree of their own, never in yours. First both ends are checked: the good one has to
    pass and the bad one to fail. Without --store the good end is gathered first. Commits that do not build or that
    crash are skipped, inconclusive ones tried again. Every trial is kept: killed, the same call goes on. Exit code 0:
    found. 3: not found, and it says why.
    """
    from assay.golden.flow.bisect import BisectOptions, bisect_file
    from assay.golden.report.other_commands import build_bisect_document

    quiet = console.quieted(request.quiet or request.as_json)
    with store_here(request.store, quiet.message) as store:
        options = BisectOptions(
            build_options(request, store),
            request.good,
            request.bad,
            request.build,
            request.build_timeout,
            request.patience,
            request.fresh,
        )
        report = bisect_file(options, build_hooks(quiet, is_silent=True))
    console.write_document(build_bisect_document(report), as_json=request.as_json)
    if report.interrupted:
        console.error(f"interrupted by {report.interrupted}; continue with: {build_same_call()}")
    return int(report.exit_code)
