"""`assay golden`: its commands, their progress lines and their reports."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from assay import plugins
from assay.errors import ExitCode, UsageError
from assay.golden.requests import (
    BlameRequest,
    GatherRequest,
    GoldenBisectRequest,
    GoldenCheckRequest,
    GoldenHistoryRequest,
    GoldenImportRequest,
    GoldenRequest,
    GoldenShowRequest,
    RebaseRequest,
    SelftestRequest,
    ValidateRequest,
)
from assay.golden.values import DEFAULT_STORE
from assay.show.console import Console, build_same_call
from assay.show.report_files import ReportFiles, ReportPages, check_targets, write_document, write_text
from assay.system.fast_dataclasses import replace
from assay.values.options import Group
from assay.values.run import State
from assay.values.units import parse_slot_flags

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.follow.api import Event
    from assay.golden.flow.segments import GoldenOptions
    from assay.golden.values import GoldenReport
    from assay.launch.api import RunHooks
    from assay.values.notify import Notify

GROUP = Group(
    """Record a training that is good; check that a changed program still converges.

    FILE is the convergence harness's YAML, or a native study with a `golden:` section.
    """,
    {
        "gather": ("assay.golden.commands:gather", "Record a training and its noise."),
        "check": ("assay.golden.commands:check", "Check a training against its golden."),
        "explain": ("assay.golden.commands:explain", "Show where the difference began, by traces of torch."),
        "history": ("assay.golden.commands:history", "Show what moved over many nights, and since when."),
        "validate": ("assay.golden.commands:validate", "Check FILE without running it."),
        "import": ("assay.golden.commands:import_", "Make a golden from another tool's files."),
        "show": ("assay.golden.commands:show", "Show a golden recording."),
        "rebase": ("assay.golden.commands:rebase", "Accept a new golden recording."),
        "selftest": ("assay.golden.commands:selftest", "Inject faults, to show which of them a check catches."),
        "blame": ("assay.golden.commands:blame", "Show whether the code or the environment moved the training."),
        "bisect": ("assay.golden.commands:bisect", "Find the commit that broke convergence."),
    },
)


@contextmanager
def store_here(store: str | None, notify: Notify, *, writes: bool = False) -> Iterator[str | None]:
    """Yield a local folder for the store; a store at an address is copied, and sent back if the command writes."""
    if store is None or "://" not in store:
        yield store
        return
    shared_folder = plugins.require_function("store.shared_folder", f"the store {store}")
    with shared_folder(store, writes=writes, notify=notify) as folder:
        yield folder


@contextmanager
def prepare(
    request: GoldenRequest, console: Console, *, writes: bool = False, is_silent: bool | None = None
) -> Iterator[tuple[GoldenOptions, RunHooks]]:
    """Yield the flow's options, with the store as a local folder, and its hooks. `writes`: send the store back."""
    from assay.golden.flow.segments import GoldenOptions

    quiet, replicas = console.quieted(request.quiet or request.as_json), getattr(request, "replicas", None)
    with store_here(request.store, quiet.message, writes=writes) as store:
        options = GoldenOptions(
            file=request.file,
            store=store or "",
            address=request.store if store != request.store else None,
            manifest_name=request.manifest_name,
            environment=request.environment,
            root=request.root,
            slots=parse_slot_flags(request.slots, request.jobs),
            on=request.on,
            tests=request.tests,
            replicas=replicas - 1 if replicas else None,  # the option counts all recordings, not those after the first
            timeout_s=request.timeout_s,
            command_line=tuple(sys.argv),
        )
        yield options, build_hooks(quiet, is_silent)


def build_hooks(console: Console, is_silent: bool | None = None) -> RunHooks:
    """Return hooks that print a line for every run that begins or ends; `assay logs -f` follows a long training."""
    from assay.launch.api import RunHooks

    def listen(event: Event) -> None:
        entry = event.entry
        if event.kind == "started":
            console.message(f"started {entry.spec.name}")
        elif event.kind == "adopted":
            console.message(f"found {entry.spec.name} still running")
        elif event.kind == "ended":
            reason = f" ({entry.outcome.reason})" if entry.outcome and entry.outcome.reason else ""
            word = "ended" if entry.state is State.PRUNED else entry.state
            console.message(f"{word} {entry.spec.name}{reason}")

    hooks = RunHooks(console=console, owns_process=True, counts_wait=True, tick_s=0.1)
    if not (console.quiet if is_silent is None else is_silent):
        hooks.listen = listen
    return hooks


def show_report(
    report: GoldenReport,
    as_json: bool,
    console: Console,
    allow_changed: bool = False,
    every_row: bool = True,
    files: ReportPages | None = None,
) -> int:
    """Print the report, write it with every row into `files`, and return the exit code."""
    from assay.golden.report.document import build_document

    if files and (files.md or files.junit or files.html):
        write_document(build_document(report, allow_changed=allow_changed), files)
    console.write_document(build_document(report, allow_changed=allow_changed, every_row=every_row), as_json=as_json)
    if report.problem:
        console.error(f"assay: {report.problem}")
    return int(report.exit_code(allow_changed))


def gather(request: GatherRequest, console: Console) -> int:
    """Record a training and its noise.

    Train once and record the first steps, or the steps after each checkpoint; repeat them to measure the noise.
    """
    from assay.golden.flow.each_test import gather_file

    takes_stdout = check_targets(request.md, request.junit, request.html, as_json=request.as_json)
    with prepare(request, console, writes=True) as (options, hooks):
        report = gather_file(replace(options, counting=request.counting), hooks)
    return show_report(report, request.as_json, console.on_stderr(takes_stdout), files=request)


def validate(request: ValidateRequest, console: Console) -> int:
    """Check FILE without running it.

    Report the errors and patterns of FILE, and every command that it makes.
    """
    from assay.golden.flow.each_test import validate_file
    from assay.golden.flow.segments import GoldenOptions

    with store_here(request.store, console.message) as store:
        options = GoldenOptions(request.file, store or "", request.manifest_name, tests=request.tests)
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


def show(request: GoldenShowRequest, console: Console) -> int:
    """Show a golden recording.

    The report has the curves with their band, the noise, the smallest effect that a check finds, and the drift. STORE
    is a folder with recordings; FILE is a manifest, or a convergence file together with --store.
    """
    from assay.golden.recordings import load_recordings
    from assay.golden.report.other_commands import build_show_document

    takes_stdout = check_targets(request.html, as_json=request.as_json)
    quiet = console.quieted(request.as_json)
    with store_here(request.path, quiet.message) as path, store_here(request.store, quiet.message) as store:
        recordings = load_recordings(path or "", store or "", request.manifest_name)
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


def rebase(request: RebaseRequest, console: Console) -> int:
    """Accept a new golden recording.

    The new recording replaces the old one, which is kept next to it. Exit code 0: accepted. 1: refused; the old
    recording is unchanged.
    """
    from assay.golden.flow.rebase import rebase_file
    from assay.golden.report.other_commands import build_rebase_document

    takes_stdout = check_targets(request.md, as_json=request.as_json)
    with prepare(request, console, writes=True) as (options, hooks):
        done = rebase_file(request, options, hooks)
    document = build_rebase_document(done)
    write_document(document, ReportFiles(md=request.md))
    console.on_stderr(takes_stdout).write_document(document, as_json=request.as_json)
    return int(ExitCode.worst(each.exit_code for each in done))


def check(request: GoldenCheckRequest, console: Console) -> int:
    """Check a training against its golden.

    Run each recorded segment again, and compare. With --against and --from nothing is run, and neither FILE nor a store
    is needed: two files, or two folders of files, are compared.

    Exit code 0: PASS. 1: FAIL, or a run crashed or timed out. 3: INCONCLUSIVE or CHANGED. The store is only read.
    """
    from assay.golden.flow.each_test import check_file

    takes_stdout = check_targets(request.md, request.junit, request.html, as_json=request.as_json)
    _check_sides(request)
    if request.against is not None:
        from assay.golden.flow.against import check_against

        report = check_against(request)
    else:
        with prepare(request, console) as (options, hooks):
            most, early_stop = request.most_checks, not request.no_early_stop
            # explain is an option that a plug-in adds
            explaining = plugins.find_function("golden.explain") if getattr(request, "explain", False) else None
            chosen = replace(options, most_checks=most, only=request.only, early_stop=early_stop, explain=explaining)
            report = check_file(chosen, hooks)
    shown = console.on_stderr(takes_stdout)
    return show_report(report, request.as_json, shown, request.allow_changed, request.every_row, request)


def explain(request: GoldenRequest, console: Console) -> int:
    """Show where the difference began that the last check of FILE found.

    Execute the golden's commit and the current files with traces, at most three times each, from the checkpoint before
    the first bad window, to find the first step that differs, then the module, gradient, input, flag or optimiser
    group, then the operation. The result is added to the report of the check. A program without torch cannot be traced;
    the report states this. The exit code is that of the check.
    """
    from assay.golden.flow.each_test import explain_file

    explain_test = plugins.require_function("golden.explain", "assay golden explain")
    with prepare(request, console) as (options, hooks):
        report = explain_file(options, explain_test, hooks)
    return show_report(report, request.as_json, console)


_OF_FILES = ("source", "history", "tolerances", "names")
_OF_RUNS = ("file", "store", "manifest_name", "tests", "slots", "jobs", "on", "root", "timeout_s", "most_checks")


def _check_sides(request: GoldenCheckRequest) -> None:
    """Refuse options for runs together with --against, and options of --against without it."""
    if request.against is None and not request.file:
        raise UsageError("FILE is missing", "without running anything: assay golden check --against GOLDEN --from PATH")
    if request.against is not None and request.source is None:
        raise UsageError("--against needs the run that is checked", "as in --from tensorboard/")
    names, why = (_OF_FILES, "needs --against") if request.against is None else (_OF_RUNS, "is not for --against")
    for name in names:
        if getattr(request, name) and getattr(request, name) != request.OPTIONS[name].default:
            raise UsageError(f"{request.OPTIONS[name].name or 'FILE'} {why}")


def import_(request: GoldenImportRequest, console: Console) -> int:
    """Make a golden from another tool's files.

    PATH is a file or folder in any format of `check --against`. Several goldens of one environment become recordings of
    one golden, and show its noise.
    """
    from assay.golden.flow.against import import_golden
    from assay.golden.recordings import load_recordings
    from assay.golden.report.other_commands import build_show_document

    with store_here(request.store, console.message, writes=True) as store:
        path = import_golden(request, store or "")
        recordings = load_recordings(path)
    console.write_document(build_show_document(path, recordings, (), curves=False), as_json=request.as_json)
    return 0


def history(request: GoldenHistoryRequest, console: Console) -> int:
    """Show what moved over many nights, and since when.

    Read the kept checks of FILE; nothing is run. All checks of a day are one night. The level of each metric is
    searched for lasting changes, as in `assay bench history`; goldens and devices are judged separately. A night is
    good when it passed or was accepted.

    Exit code 0: no metric moved, or the change was accepted. 1: a metric got worse. 3: a metric moved, or the result is
    not yet known.
    """
    from assay.golden.config import load_golden_file
    from assay.golden.flow.history import load_histories, write_accepted
    from assay.golden.flow.segments import GoldenOptions, build_contexts
    from assay.golden.report.other_commands import build_history_document

    if bool(request.accept) != bool(request.reason) or (request.accept and request.withdraw):
        raise UsageError("--accept and --reason go together, without --withdraw", "as in --accept last --reason 'why'")
    find_steps = plugins.require_function("series.change_points", "assay golden history")
    takes_stdout = check_targets(request.md, request.junit, request.html, as_json=request.as_json)
    options = GoldenOptions(request.file, DEFAULT_STORE, tests=request.tests, root=request.root)
    contexts = build_contexts(load_golden_file(request.file, ("run",)), options)
    for context in contexts if request.accept or request.withdraw else ():
        nights = write_accepted(context, request.accept or request.withdraw or "", request.reason or "")
        word = "accepted" if request.accept else "not accepted any more"
        console.message(f"{context.test.name}, {word}: {', '.join(nights)}")
    found = [each for context in contexts for each in load_histories(context, find_steps)]
    document = build_history_document(request.file, found, request.every_row)
    write_document(document, request)
    console.on_stderr(takes_stdout).write_document(document, as_json=request.as_json)
    return int(ExitCode.worst(each.verdict.kind.exit_code for each in found))


def selftest(request: SelftestRequest, console: Console) -> int:
    """Inject faults, to show which of them a check catches.

    Inject each known fault into one segment. The faults are those of the file (golden.selftest) and of --env and
    --flag. A run without a fault comes first and has to pass. Exit code 0: all faults were caught. 1: some faults were
    missed or could not be tried.
    """
    from assay.golden.flow.selftest import selftest_file
    from assay.golden.report.other_commands import build_selftest_document

    with prepare(request, console) as (options, hooks):
        reports = selftest_file(options, (*request.envs, *request.flags), request.segment, hooks)
    console.write_document(build_selftest_document(reports), as_json=request.as_json)
    return int(ExitCode.worst(report.exit_code for report in reports))


def bisect(request: GoldenBisectRequest, console: Console) -> int:
    """Find the commit that broke convergence.

    Commits are tried in a separate work tree, never in yours. First both ends are checked: the good commit has to pass
    and the bad commit to fail. Without --store the good commit is gathered first. Commits that do not build or that
    crash are skipped; inconclusive commits are tried again. Every trial is recorded: after a kill the same command
    continues. Exit code 0: found. 3: not found; the report says why.
    """
    from assay.golden.flow.bisect import bisect_file
    from assay.golden.report.other_commands import build_bisect_document

    with prepare(request, console, is_silent=True) as (options, hooks):
        report = bisect_file(request, options, hooks)
    console.write_document(build_bisect_document(report), as_json=request.as_json)
    if report.interrupted:
        console.error(f"interrupted by {report.interrupted}; continue with: {build_same_call()}")
    return int(report.exit_code)


def blame(request: BlameRequest, console: Console) -> int:
    """Show whether the code or the environment moved the training.

    Run the golden's segments in four cells: two versions of the code, each in two environments. A cell is run twice
    unless it is equal to another cell bit for bit. Code a is the commit that the golden was recorded with, code b the
    files as they are; files that are not in git are on neither side. A cell that does not run is an ERROR; the other
    cells are reported. Exit code 0: each effect is known. 1: a cell did not run. 3: an effect is not larger than the
    difference between repeats.
    """
    from assay.golden.flow.blame import blame_file
    from assay.golden.report.other_commands import build_blame_document

    with prepare(request, console, is_silent=True) as (options, hooks):
        reports = blame_file(request, options, hooks)
    console.write_document(build_blame_document(reports), as_json=request.as_json)
    return int(ExitCode.worst(report.exit_code for report in reports))
