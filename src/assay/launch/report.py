"""The report at the end of a study: the states of its runs, what failed and why, and what to do next."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from assay.execute.places import load_place
from assay.follow.entry import Entry
from assay.follow.locations import show_command
from assay.launch.prepared import Report
from assay.show import formatting
from assay.show.terminal_report import render_terminal
from assay.values.document import Block, Commands, Details, Document, Notes, Section, Span, Text
from assay.values.run import State
from assay.values.verdict import VerdictKind

_IN_FULL = 3  # failed runs shown with the end of their log
_LISTED = 20  # failed runs that are named
_MOST_NAMED = 10  # a printed command names at most so many runs


def render_report(report: Report, elapsed_s: float, *, color: bool = False, width: int | None = None) -> str:
    return render_terminal(build_document(report, elapsed_s), color=color, width=width)


def build_document(report: Report, elapsed_s: float) -> Document:
    is_complete = report.count(State.DONE, State.PRUNED) == len(report.entries)
    role = VerdictKind.FAIL if report.failed else VerdictKind.PASS if is_complete else VerdictKind.INCONCLUSIVE
    steps, result = build_next_steps(report), report.result
    return Document(
        report.prepared.location.name,
        (
            *(_build_failures(report.failed) if report.failed else ()),
            Notes([f"warning: {text}" for text in (*report.notes, *(result.warnings if result else ()))]),
            *(Text(line) for line in (result.lines if result else ())),
            Text(Span(describe_outcome(report, elapsed_s), role)),
            Commands([("" if number else "next", step) for number, step in enumerate(steps)]),
        ),
    )


def describe_outcome(report: Report, elapsed_s: float) -> str:
    """Return one line with the number of runs in each state, the duration, and the study's folder."""
    kept = sum(entry.state is State.DONE and not entry.finished_here for entry in report.entries)
    names = {
        f"done ({kept} of them earlier)" if kept else "done": (State.DONE,),
        "pruned": (State.PRUNED,),
        "failed": (State.FAILED, State.DAMAGED),
        "timed out": (State.TIMEOUT,),
        "lost": (State.LOST,),
        "stopped": (State.STOPPED,),
        "still running": (State.RUNNING,),
        "not started": (State.QUEUED,),
    }
    counts = [f"{count} {name}" for name, states in names.items() if (count := report.count(*states))]
    location = report.prepared.location
    return (
        f"{location.name}: {formatting.render_count(len(report.entries), 'run')}: {', '.join(counts) or 'nothing ran'}"
        f" after {formatting.render_duration(elapsed_s)}, in {_show_path(location.dir)}"
    )


def _show_path(path: str) -> str:
    return formatting.clean(os.path.relpath(path))  # a folder's name may have line breaks


def _build_failures(failed: Sequence[Entry]) -> Iterator[Block]:
    from assay.follow.log_tails import build_tail  # loaded for runs that failed, not for every study

    for entry in failed[:_IN_FULL]:
        log = _find_log(entry)
        tail = build_tail(log, _show_path(log)) if log else ()
        yield Details(Span(_describe_failed(entry), "failed"), list(tail))
    listed: list[Block] = []
    for entry in failed[_IN_FULL:_LISTED]:
        listed.append(Text(Span(_describe_failed(entry), "failed")))
        log = _find_log(entry)
        listed += [Text(_show_path(log), indent=1)] if log else []
    if len(failed) > _LISTED:
        listed.append(Text(f"and {len(failed) - _LISTED} more that failed"))
    yield Section(listed)


def _find_log(entry: Entry) -> str | None:
    from assay.follow.log_tails import find_failed_log  # loaded for runs that failed

    return find_failed_log(entry.dir, entry.spec.log_name, entry.commands)


def _describe_failed(entry: Entry) -> str:
    reason = entry.outcome.reason if entry.outcome else ""
    if _may_run(entry) and entry.handle is not None:
        reason = f"{load_place(entry.dir, entry.handle).host} has it, which cannot be asked from here; it may still run"
    attempts = f"{entry.attempt} attempts" if entry.attempt > 1 else ""
    facts = ", ".join(fact for fact in (reason, attempts) if fact)
    return f"{str(entry.state).upper()} {entry.spec.name}" + (f": {facts}" if facts else "")


def _may_run(entry: Entry) -> bool:
    """Whether another host may still execute the run, so that --retry would start it a second time."""
    return entry.outcome is None and entry.handle is not None


def build_next_steps(report: Report) -> tuple[str, ...]:
    """Return the commands to call next; each works when it is pasted in the current folder."""
    location = report.prepared.location
    failed = report.failed
    steps = []
    over = [entry for entry in failed if not _may_run(entry)]
    if failed:
        with_log = next((entry for entry in failed if _find_log(entry)), None)
        steps += [show_command(["logs"], location, with_log.spec.name)] if with_log else []
        steps += [_build_retry(report, over)] if over else []
    again = report.prepared.options.again
    if report.count(State.STOPPED) and not report.interrupted and again and again.takes_retry:
        steps.append(again.build("--retry", "stopped"))  # without it, runs that `assay stop` ended are skipped
    if report.count(State.RUNNING, State.QUEUED) or len(over) < len(failed):
        steps.append(show_command(["ls"], location))
    if report.count(State.DONE, State.PRUNED):
        steps.append(show_command(["sum"], location))
    return (*steps, *report.advice)


def _build_retry(report: Report, failed: Sequence[Entry]) -> str:
    """Return a command that repeats failed runs: some runs of this machine by name, else the call with --retry."""
    again = report.prepared.options.again
    if again and not again.takes_retry:
        return again.build()
    takes_others = any(map(_may_run, report.failed)) and any(entry.state is State.LOST for entry in failed)
    if again and (len(failed) > 1 or report.prepared.farm is not None) and not takes_others:
        names = dict.fromkeys("lost" if entry.state is State.LOST else "failed" for entry in failed)
        return again.build(*(word for name in names for word in ("--retry", name)))
    location = report.prepared.location
    if len(failed) > _MOST_NAMED and not takes_others:
        states = " or ".join(dict.fromkeys(f"state=={entry.state}" for entry in failed))
        return show_command(["rerun"], location, options=["--where", states])
    return show_command(["rerun"], location, *(entry.spec.name for entry in failed))
