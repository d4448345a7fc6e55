"""`assay golden check`, `selftest` and `bisect`: is it still the same training?"""

from __future__ import annotations

from typing import Literal

from assay.errors import ExitCode, UsageError
from assay.golden.commands.options import (
    GoldenReports,
    GoldenRequest,
    build_hooks,
    build_options,
    show_report,
    write_reports,
)
from assay.golden.values import Fault
from assay.show.console import Console, build_same_call
from assay.show.report_files import check_targets
from assay.values.options import option
from assay.values.units import parse_timeout


class CheckRequest(GoldenReports):
    most_checks: int | None = option(
        "--most-checks",
        type=int,
        minimum=1,
        metavar="N",
        help="Runs of a segment while it is inconclusive.  [default: the file's]",
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

    takes_stdout = check_targets(request.md, request.junit, request.html, as_json=request.as_json)
    options = build_options(request, most_checks=request.most_checks, early_stop=not request.no_early_stop)
    report = check_file(options, build_hooks(console.quieted(request.quiet or request.as_json)))
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
    from assay.golden.report.selftest import build_document

    hooks = build_hooks(console.quieted(request.quiet or request.as_json))
    reports = selftest_file(build_options(request), (*request.envs, *request.flags), request.segment, hooks)
    console.write_document(build_document(reports), as_json=request.as_json)
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
    from assay.golden.report.bisection import build_document, exit_code

    options = BisectOptions(
        build_options(request),
        request.good,
        request.bad,
        request.build,
        request.build_timeout,
        request.patience,
        request.fresh,
    )
    hooks = build_hooks(console.quieted(request.quiet or request.as_json), is_silent=True)
    report = bisect_file(options, hooks)
    console.write_document(build_document(report), as_json=request.as_json)
    if report.interrupted:
        console.error(f"interrupted by {report.interrupted}; continue with: {build_same_call()}")
    return int(exit_code(report))
