"""`assay golden gather`, `validate`, `show` and `rebase`: golden recordings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from assay.errors import ExitCode
from assay.golden.commands.options import (
    GoldenReports,
    GoldenRequest,
    build_hooks,
    build_options,
    manifest_option,
    show_report,
    tests_option,
    write_reports,
)
from assay.show.console import Console
from assay.show.report_files import check_targets, write_text
from assay.values.options import Request, argument, json_option, option

if TYPE_CHECKING:
    from assay.golden.flow.rebase import Rebased
    from assay.golden.flow.recordings import Recording


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
    options = build_options(request, replicas=request.replicas, counting=request.counting)
    report = gather_file(options, build_hooks(console.quieted(request.quiet or request.as_json)))
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
    import sys

    from assay.golden.flow.files import GoldenOptions, validate_file

    options = GoldenOptions(
        request.file,
        request.store,
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
    from assay.golden.flow.recordings import load_recordings
    from assay.golden.report.recording import build_facts

    takes_stdout = check_targets(request.html, as_json=request.as_json)
    recordings = load_recordings(request.path, request.store, request.manifest_name)
    if request.html:
        write_text(request.html, _render_page(request.path, recordings))
    if request.as_json:
        console.write_json([build_facts(each) for each in recordings])
    elif not takes_stdout:
        console.write("\n".join(_render(each, request, console) for each in recordings))
    for each in recordings:
        for creep in each.creep:
            console.warning(f"{each.golden.test}: {creep}")
    return 0


def _render(recording: Recording, request: ShowRequest, console: Console) -> str:
    from assay.golden.report.recording import build_charts, build_document, render_charts
    from assay.show.terminal_report import render_terminal

    color, plain = console.color, console.is_plain
    charts = build_charts(recording.golden, request.metrics)
    text = render_terminal(build_document(recording), width=console.width, color=color, plain=plain)
    if request.no_plot:
        return text
    rendered = render_charts(charts, width=console.width or 80, color=color, plain=plain)
    return text + "".join(f"\n{chart}" for chart in rendered)


def _render_page(path: str, recordings: Sequence[Recording]) -> str:
    from assay.golden.report.document import build_document
    from assay.golden.values import GoldenReport, GoldenTestReport
    from assay.show.html import render_html
    from assay.values.verdict import Finding, Verdict, VerdictKind

    tests = []
    for each in recordings:
        count = sum(
            len(track.steps)
            for segment in each.golden.segments
            for labels in segment.tracks.values()
            for found in labels.values()
            for track in found
        )
        said = Finding(
            VerdictKind.PASS, each.golden.test, f"{len(each.golden.segments)} segments, {count} values recorded"
        )
        tests.append(
            GoldenTestReport(
                each.golden.test, each.manifest, Verdict.of([said], count), each.golden, warnings=each.creep
            )
        )
    return render_html(build_document(GoldenReport("gather", path, tuple(tests))))


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
    from assay.golden.report.recording import build_rebase_document

    options = RebaseOptions(
        build_options(request, replicas=request.replicas),
        request.reason,
        request.source,
        request.allow_wider,
        request.fresh,
        request.allow_failed,
    )
    done = rebase_file(options, build_hooks(console.quieted(request.quiet or request.as_json)))
    console.write_document(build_rebase_document(done), as_json=request.as_json)
    return int(ExitCode.worst(_choose_exit_code(each) for each in done))


def _choose_exit_code(outcome: Rebased) -> ExitCode:
    if outcome.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if outcome.is_accepted else ExitCode.FAILED
