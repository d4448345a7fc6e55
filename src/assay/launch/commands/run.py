"""The command `assay run`: its options, its output and its exit code."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from assay.errors import ExitCode, UsageError, did_you_mean
from assay.launch.live_view import BestSoFar, Watcher, choose_goal
from assay.launch.prepared import Again, Prepared, Report, RunOptions, build_dry_lines, build_dry_rows, check_prepared
from assay.launch.report import render_report
from assay.launch.steps import RunStep, find_steps
from assay.launch.sweep import RunHooks, go_to_background, prepare, run_study
from assay.plugins import load, merge
from assay.show.console import Console, build_same_call
from assay.show.formatting import escape_json
from assay.show.progress import choose_progress
from assay.system.terminal import terminal_width, use_color
from assay.values.options import (
    Request,
    argument,
    budget_option,
    farm_option,
    jobs_option,
    json_option,
    option,
    quiet_option,
    root_option,
    slots_option,
    split_commas,
    where_option,
)
from assay.values.state import RETRY, State
from assay.values.units import parse_slot_flags
from assay.values.verdict import Verdict, VerdictKind

if TYPE_CHECKING:
    from assay.values.where import Where

_MOST_FINDINGS = 20


def _parse_retry(texts: tuple[str, ...], flag: str) -> frozenset[State]:
    names = split_commas(texts, flag)
    for name in names:
        if name not in RETRY:
            raise UsageError(f"{flag}: {name!r} is not one of {', '.join(RETRY)}", did_you_mean(name, RETRY))
    return frozenset(state for name in names for state in RETRY[name])


class RunRequest(Request):
    file: str = argument()
    overrides: tuple[str, ...] = argument("[NAME=VALUE]...", multiple=True, required=False)
    dry_run: bool = option("-n", "--dry-run", default=False, help="Print what would run; write nothing.")
    slots: str | None = slots_option()
    jobs: int | None = jobs_option()
    on: str | None = farm_option()
    root: str | None = root_option()
    study: str | None = option("--study", metavar="NAME", help="Another name for the study.")
    titles: tuple[str, ...] = option(
        "-t", "--title", multiple=True, metavar="T", help="Only the parts of the file with this title."
    )
    commands: tuple[str, ...] = option("-c", "--command", multiple=True, metavar="C", help="Only these commands.")
    settings: tuple[str, ...] = option(
        "--set", multiple=True, metavar="KEY=VALUE", help="Another value of a key of the file, e.g. timeout=2h."
    )
    where: Where | None = where_option("Only the runs that match; runs that were not started yet are `queued`.")
    sample: int | None = option("--sample", type=int, minimum=1, metavar="N", help="A random part of each sweep.")
    seed: int | None = option("--seed", type=int, metavar="N", help="Make --sample repeatable.")
    retry: frozenset[State] = option(
        "--retry", multiple=True, metavar="|".join(RETRY), parse=_parse_retry, help="Run these again as well."
    )
    force: bool = option("--force", default=False, help="Run everything again, finished or not.")
    code: str | None = option(
        "--code",
        choices=("snapshot", "live"),
        help="Run a copy of the code, or the code where it is.  [default: the file's, or snapshot]",
    )
    new_code: bool = option(
        "--new-code",
        default=False,
        help="Use the current code for all runs that are started, not only for repeated ones.",
    )
    old_code: bool = option("--old-code", default=False, help="Repeat failed runs with their recorded code.")
    budget: str | None = budget_option()
    detach: bool = option("--detach", default=False, help="Leave the supervisor in the background.")
    quiet: bool = quiet_option()
    plain: bool = option("--plain", default=False, help="Print lines instead of the live view.")
    as_json: bool = json_option("Print the outcome as JSON.")


def run(request: RunRequest, console: Console) -> int:
    """Expand FILE and start the runs that are not finished yet.

    FILE is a study file of Assay, runx or mlrunner; it is recognised by its content. A repeated
    call keeps finished runs, follows running ones and continues interrupted ones. Ctrl-C stops the runs;
    --detach leaves them.

    NAME=VALUE gives a parameter other values than the file: lr=0.1,0.01 epochs=6 'name="a, b"' 'seed={range: 5}'.
    --set gives other keys of the file another value: --set timeout=2h, --set resources.gpus=2.
    """
    prepared = prepare(build_options(request))
    for warning in prepared.warnings:
        console.warning(str(warning))
    if request.dry_run:
        return _show_plan(prepared, request.as_json, console)
    check_prepared(prepared)
    steps = choose_steps(prepared)
    if not prepared.root_was_asked:
        text = f"runs go to {os.path.relpath(prepared.location.dir)} (choose with --root or ASSAY_ROOT)"
        console.quieted(request.quiet).message(text)
    if request.detach and not go_to_background(prepared.location, console):
        return int(ExitCode.OK)
    plain = request.plain or request.detach
    quieted = console.quieted(request.quiet or request.as_json)
    return run_and_report(prepared, quieted, plain, request.as_json, steps)


def choose_steps(prepared: Prepared) -> list[RunStep]:
    """Return the steps of plug-ins in this run, with those that settings ask for."""
    settings = prepared.settings
    if settings.notify and "notify" not in merge("run_steps"):
        raise UsageError(f"notify in {settings.notify_from} needs a plug-in that is not installed", "remove it there")
    steps = find_steps(prepared, *(("notify",) if settings.notify else ()))
    for step in steps:
        step.check(prepared)
    return steps


# options that are repeated in a printed command for another call
_REPEATED = (
    *("root", "study", "slots", "jobs", "on", "code"),
    *("titles", "commands", "settings", "where", "sample", "seed"),
)


def build_options(request: RunRequest) -> RunOptions:
    words = request.render_words(name for name in _REPEATED if name != "seed" or request.sample is not None)
    is_random = request.sample is not None and request.seed is None  # another call would draw other runs
    return take_options(
        request,
        *("file", "overrides", "root", "study", "titles", "where"),
        *("sample", "seed", "retry", "force", "code", "extras"),
        again=None if is_random else Again(("assay", "run"), request.file, tuple(words), request.overrides),
        budget=load("assay.launch.budget:Budget")(request.budget) if request.budget is not None else None,
    )


def take_options(request: Any, *names: str, **more: Any) -> RunOptions:
    """Return the options that `run` and `rerun` share and those that `names` lists, from the request."""
    if request.new_code and request.old_code:
        raise UsageError("--new-code and --old-code contradict each other", "leave out one of them")
    given = {name: getattr(request, name) for name in ("settings", "commands", "on", "new_code", "old_code", *names)}
    slots = parse_slot_flags(request.slots, request.jobs)
    return RunOptions(**given, **more, slots=slots, command_line=tuple(sys.argv))


def _show_plan(prepared: Prepared, as_json: bool, console: Console) -> int:
    """Print what would run, one command line each, without writing anything."""
    steps = find_steps(prepared)
    if as_json:
        for step in steps:
            prepared = step.complete(prepared)
        rows = json.dumps(build_dry_rows(prepared), indent=1, ensure_ascii=False, default=str)
        console.write(f"{escape_json(rows)}\n")
        return int(ExitCode.OK)
    lines = [*build_dry_lines(prepared), *(line for step in steps for line in step.describe_plan(prepared))]
    console.write("".join(f"{line}\n" for line in lines))
    return int(ExitCode.OK)


def run_and_report(prepared: Prepared, console: Console, plain: bool, as_json: bool, steps: Sequence[RunStep]) -> int:
    """Run what is prepared with a live view or with lines, print the report and return the exit code."""
    progress = choose_progress(sys.stderr, quiet=console.quiet, plain=plain)
    watcher = Watcher(progress, prepared.location.name, best=BestSoFar(choose_goal(prepared.study)))
    hooks = RunHooks(
        listen=watcher.listen,
        draw=watcher.draw,
        finish=watcher.finish,
        console=console if console.quiet else console.around(progress.message),
        owns_process=True,
        best=watcher.best,
        steps=steps,
    )
    try:
        report = run_study(prepared, hooks)
        _print_report(report, console, as_json, time.time() - watcher.began)
    except BaseException as error:
        _end_steps(steps, error, console)
        raise
    _end_steps(steps, report, console)
    return int(report.exit_code)


def _end_steps(steps: Sequence[RunStep], outcome: Report | BaseException, console: Console) -> None:
    for step in steps:
        try:
            for warning in step.end(outcome):
                console.warning(warning)
        except (Exception, SystemExit) as error:  # noqa: BLE001 an error of a plug-in does not keep the other steps from ending
            console.warning(f"{type(step).__module__}.{type(step).__qualname__}.end failed: {error!r}")


def _print_report(report: Report, console: Console, as_json: bool, elapsed_s: float) -> None:
    options = report.prepared.options
    if as_json:
        console.write(f"{escape_json(json.dumps(_build_json(report), indent=1, ensure_ascii=False))}\n")
    else:
        text = render_report(report, elapsed_s, color=use_color(sys.stderr), width=terminal_width(sys.stderr))
        console.write_message(text + "".join(f"{line}\n" for line in describe_checks(report.verdict)))
    if report.problem:
        console.error(f"assay: {report.problem}")
    if report.interrupted:
        again = options.again if "search" in options.extras else None  # --search was applied, and `again` lacks it
        takes_retry = options.again and options.again.takes_retry
        more = ["--retry", "stopped"] if report.is_stopped and takes_retry else []
        words = [*options.command_line[1:], *([] if State.STOPPED in options.retry else more)]
        call = again.build(*more) if again else build_same_call(words)
        console.error(f"interrupted by {report.interrupted}; continue with: {call}")


def describe_checks(verdict: Verdict | None) -> list[str]:
    """Return a summary of the checks, and a line for each finding that is not a pass."""
    if verdict is None:
        return []
    bad = [finding for finding in verdict.findings if finding.kind is not VerdictKind.PASS]
    lines = [f"checks: {verdict.kind}, {verdict.comparisons} compared" + (f", {len(bad)} not passed" if bad else "")]
    lines += [f"  {finding.kind} {finding.subject}: {finding.message}" for finding in bad[:_MOST_FINDINGS]]
    return lines if len(bad) <= _MOST_FINDINGS else [*lines, f"  and {len(bad) - _MOST_FINDINGS} more"]


def _build_json(report: Report) -> dict[str, object]:
    return {
        "study": report.prepared.location.name,
        "dir": report.prepared.location.dir,
        "exit_code": int(report.exit_code),
        "checks": describe_checks(report.verdict),
        **(report.result.facts if report.result else {}),
        **({"held_back": report.held_back} if report.held_back else {}),
        "runs": [
            {
                "name": entry.spec.name,
                "id": entry.spec.id,
                "dir": entry.dir,
                "state": str(entry.state),
                "attempt": entry.attempt,
                "exit_code": entry.outcome.exit_code if entry.outcome else None,
                "reason": entry.outcome.reason if entry.outcome else "",
                "params": dict(entry.spec.params),
            }
            for entry in report.entries
        ],
    }
