"""`assay run`."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

import click

from assay.errors import ExitCode
from assay.show.console import build_same_call, note, say, tell
from assay.show.console_warnings import warn
from assay.show.formatting import escape_json
from assay.values import layout
from assay.values.slots import parse_slot_flags
from assay.values.state import RETRY
from assay.values.verdict import Verdict, VerdictKind

if TYPE_CHECKING:
    from assay.study.locations import StudyPlace
    from assay.study.prepared import Prepared, Report

_MOST_FINDINGS = 20


@click.command()
@click.argument("file")
@click.option("-n", "--dry-run", is_flag=True, help="Print what would run; write nothing.")
@click.option("--slots", metavar="LIST", help="Slots: 0,1 (GPUs), 0+1 (one slot of two), cpu:4. Default: found.")
@click.option("-j", "--jobs", type=click.IntRange(min=1), metavar="N", help="N runs at once on the CPU: --slots cpu:N.")
@click.option("--on", metavar="FARM", help="Submit to this farm of the file; `local` runs here.")
@click.option("--root", metavar="DIR", help="Output root.  [default: ./runs]")
@click.option("--study", metavar="NAME", help="Another name for the study.")
@click.option("-t", "--title", multiple=True, metavar="T", help="Only the parts of the file with this title.")
@click.option("-c", "--command", "commands", multiple=True, metavar="C", help="Only these commands.")
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="A random part of each sweep.")
@click.option("--seed", type=int, metavar="N", help="Makes --sample repeatable.")
@click.option("--retry", multiple=True, type=click.Choice(list(RETRY)), help="Run these again as well.")
@click.option("--force", is_flag=True, help="Run everything again, finished or not.")
@click.option("--code", type=click.Choice(["snapshot", "live"]), help="Run a copy of the code, or where it lies.")
@click.option("--new-code", is_flag=True, help="Repeated runs get the code of now, not their own copy.")
@click.option("--detach", is_flag=True, help="Leave the supervisor in the background.")
@click.option("--quiet", is_flag=True, help="Say nothing until the end.")
@click.option("--plain", is_flag=True, help="Lines instead of the live view.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def command(
    file: str,
    dry_run: bool,
    slots: str | None,
    jobs: int | None,
    on: str | None,
    root: str | None,
    study: str | None,
    title: tuple[str, ...],
    commands: tuple[str, ...],
    sample: int | None,
    seed: int | None,
    retry: tuple[str, ...],
    force: bool,
    code: str | None,
    new_code: bool,
    detach: bool,
    quiet: bool,
    plain: bool,
    as_json: bool,
) -> int:
    """Expand FILE and run what is not finished yet.

    FILE is a study of ours, or one of runx's or mlrunner's; it is recognised by its content. Called again, finished
    runs are kept, running ones are watched, interrupted ones are continued. Ctrl-C stops the runs; --detach leaves
    them.
    """
    from assay.study.preflight import check_prepared
    from assay.study.prepared import Again, RunOptions
    from assay.study.sweep import prepare

    kept = {"--root": root, "--study": study, "--slots": slots, "-j": jobs, "--on": on, "--code": code}
    words = [word for flag, value in kept.items() if value is not None for word in (flag, str(value))]
    words += [word for value in title for word in ("-t", value)] + [word for c in commands for word in ("-c", c)]
    is_chance = sample is not None and seed is None  # another call would draw other runs
    words += ["--sample", str(sample), "--seed", str(seed)] if sample is not None else []
    options = RunOptions(
        file=file,
        root=root,
        study=study,
        slots=parse_slot_flags(slots, jobs),
        on=on,
        titles=title or None,
        commands=commands or None,
        sample=sample,
        seed=seed,
        retry=frozenset(state for name in retry for state in RETRY[name]),
        force=force,
        new_code=new_code,
        code=code,
        command_line=tuple(sys.argv),
        again=None if is_chance else Again(("assay", "run"), file, tuple(words)),
    )
    prepared = prepare(options)
    for warning in prepared.warnings:
        note(f"warning: {warning}")
    if dry_run:
        return show_plan(prepared, as_json)
    check_prepared(prepared)
    if not prepared.root_was_asked and not quiet:
        note(f"runs go to {os.path.relpath(prepared.place.dir)} (choose with --root or ASSAY_ROOT)")
    if detach and not _go_to_background(prepared.place):
        return int(ExitCode.OK)
    return supervise(prepared, quiet=quiet or as_json, plain=plain or detach, as_json=as_json)


def show_plan(prepared: Prepared, as_json: bool) -> int:
    """What would run, one command line each; exactly what a run would do, and nothing is written."""
    from assay.study.dry_run import build_dry_lines, build_dry_rows

    if as_json:
        print(escape_json(json.dumps(build_dry_rows(prepared), indent=1, ensure_ascii=False, default=str)))
        return int(ExitCode.OK)
    sys.stdout.write("".join(f"{line}\n" for line in build_dry_lines(prepared)))
    return int(ExitCode.OK)


def supervise(prepared: Prepared, quiet: bool, plain: bool, as_json: bool) -> int:
    from assay.show.progress import choose_progress
    from assay.show.study_report import render_report
    from assay.study.progress_view import Watcher, build_study_report
    from assay.study.sweep import RunHooks, run_study
    from assay.system.terminal import terminal_width, use_color

    began = time.time()
    progress = choose_progress(sys.stderr, quiet=quiet, live=False if plain else None)
    watcher = Watcher(progress, prepared.place.name)
    hooks = RunHooks(
        listen=watcher.listen,
        draw=watcher.draw,
        finish=watcher.finish,
        note=(lambda _line: None) if quiet else note,
        warn=warn if quiet else lambda text: progress.message(f"warning: {text}"),
        owns_process=True,
    )
    report = run_study(prepared, hooks)
    if as_json:
        say(escape_json(json.dumps(build_json(report), indent=1, ensure_ascii=False)))
    else:
        tell(
            render_report(
                build_study_report(report, time.time() - began),
                color=use_color(sys.stderr),
                width=terminal_width(sys.stderr),
            ),
            sys.stderr,
        )
        tell("".join(f"{line}\n" for line in describe_checks(report.verdict)), sys.stderr)
    if report.problem:
        note(f"assay: {report.problem}")
    if report.interrupted:
        note(f"interrupted by {report.interrupted}; go on with: {build_same_call()}")
    return int(report.exit_code)


def describe_checks(verdict: Verdict | None) -> list[str]:
    """One line, and one for each finding that is not a pass."""
    if verdict is None:
        return []
    bad = [finding for finding in verdict.findings if finding.kind is not VerdictKind.PASS]
    lines = [f"checks: {verdict.kind}, {verdict.comparisons} compared" + (f", {len(bad)} not passed" if bad else "")]
    lines += [f"  {finding.kind} {finding.subject}: {finding.message}" for finding in bad[:_MOST_FINDINGS]]
    return lines if len(bad) <= _MOST_FINDINGS else [*lines, f"  and {len(bad) - _MOST_FINDINGS} more"]


def build_json(report: Report) -> dict[str, object]:
    return {
        "study": report.prepared.place.name,
        "dir": report.prepared.place.dir,
        "exit_code": int(report.exit_code),
        "checks": describe_checks(report.verdict),
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


def _go_to_background(place: StudyPlace) -> bool:
    """Fork; True in the supervisor that goes on alone, with its output in a file."""
    from assay.study.lookup import show_command

    os.makedirs(os.path.join(place.dir, layout.STUDY_META_DIR), exist_ok=True)
    log = os.path.join(place.dir, layout.STUDY_META_DIR, "supervisor.log")
    hints = [show_command([word], place) for word in ("ls", "stop")]
    pid = os.fork()
    if pid:
        print(f"supervisor {pid} goes on in the background; its output is in {os.path.relpath(log)}")
        print(f"next: {hints[0]}\n      {hints[1]}")
        return False
    os.setsid()
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (fd, 1), (fd, 2)):
        os.dup2(source, target)
    return True
