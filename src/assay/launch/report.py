"""The report at the end of a study: how it went, what failed and why, what to do next."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

from assay.follow.collect import Collector
from assay.follow.entry import Entry, Event
from assay.follow.locations import show_command
from assay.follow.refresh import describe_damage
from assay.launch.best_so_far import BestSoFar
from assay.launch.prepared import Report
from assay.launch.slot_choice import HasMemory
from assay.launch.supervise import Supervisor
from assay.record import run_directory
from assay.show import formatting
from assay.show.progress import BestRow, EndedRow, Progress, ProgressView, RunningRow, estimate_eta
from assay.show.terminal_report import render_terminal
from assay.system.fast_dataclasses import dataclass, field
from assay.system.files import read_end
from assay.values import layout
from assay.values.document import Block, Code, Commands, Details, Document, Notes, Section, Span, Text
from assay.values.run import State
from assay.values.verdict import VerdictKind

TAIL_LINES = 10
_IN_FULL = 3  # failed runs shown with the end of their log
_LISTED = 20  # failed runs named at all


@dataclass(frozen=True, slots=True)
class FailedRun:
    """`log_tail` is the end of the log as text; `state` a State's word."""

    name: str
    state: str = "failed"
    reason: str = ""
    exit_code: int | None = None
    log_path: str | None = None
    log_tail: str = ""
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class StudyReport:
    """Counts of runs; `kept` of `done` were finished before. `next_steps` are commands, quoted for a shell."""

    study: str
    total: int
    done: int
    failed: tuple[FailedRun, ...] = ()
    stopped: int = 0
    pruned: int = 0  # ended by a rule of the study
    running: int = 0  # left running: --detach, or another supervisor's
    queued: int = 0
    kept: int = 0
    elapsed_s: float | None = None
    folder: str | None = None
    warnings: tuple[str, ...] = ()
    results: tuple[str, ...] = ()  # what a search has found
    next_steps: tuple[str, ...] = ()


def render_report(report: StudyReport, *, color: bool = False, width: int | None = None) -> str:
    return render_terminal(build_document(report), color=color, width=width)


def build_document(report: StudyReport) -> Document:
    role = VerdictKind.PASS if report.done + report.pruned == report.total else VerdictKind.INCONCLUSIVE
    if report.failed:
        role = VerdictKind.FAIL
    return Document(
        report.study,
        (
            *_build_failures(report),
            Notes([f"warning: {text}" for text in report.warnings]),
            *(Text(line) for line in report.results),
            Text(Span(describe_outcome(report), role)),
            Commands([("" if number else "next", step) for number, step in enumerate(report.next_steps)]),
        ),
    )


def describe_outcome(report: StudyReport) -> str:
    late = sum(run.state == "timeout" for run in report.failed)
    lost = sum(run.state == "lost" for run in report.failed)
    kept = f" ({report.kept} of them earlier)" if report.kept else ""
    counts = (
        (report.done, f"done{kept}"),
        (report.pruned, "pruned"),
        (len(report.failed) - late - lost, "failed"),
        (late, "timed out"),
        (lost, "lost"),
        (report.stopped, "stopped"),
        (report.running, "still running"),
        (report.queued, "not started"),
    )
    said = ", ".join(f"{count} {name}" for count, name in counts if count) or "nothing ran"
    took = "" if report.elapsed_s is None else f" after {formatting.render_duration(report.elapsed_s)}"
    folder = f", in {report.folder}" if report.folder else ""
    return f"{report.study}: {formatting.render_count(report.total, 'run')}: {said}{took}{folder}"


def _build_failures(report: StudyReport) -> Iterator[Block]:
    failed = report.failed
    for run in failed[:_IN_FULL]:
        yield Details(Span(describe_failed(run), "failed"), list(build_tail(run)))
    listed: list[Block] = []
    for run in failed[_IN_FULL:_LISTED]:
        listed.append(Text(Span(describe_failed(run), "failed")))
        listed += [Text(run.log_path, indent=1)] if run.log_path else []
    if len(failed) > _LISTED:
        listed.append(Text(f"and {len(failed) - _LISTED} more that failed"))
    yield Section(listed)


def describe_failed(run: FailedRun) -> str:
    reason = run.reason
    code = "" if run.exit_code is None or "exit code" in reason else f"exit code {run.exit_code}"
    attempts = f"{run.attempts} attempts" if run.attempts > 1 else ""
    facts = ", ".join(fact for fact in (reason, code, attempts) if fact)
    return f"{run.state.upper()} {run.name}" + (f": {facts}" if facts else "")


def build_tail(run: FailedRun, most: int = TAIL_LINES) -> Iterator[Block]:
    if run.log_path:
        yield Text(run.log_path)
        lines = split_log(run.log_tail)[-most:]
        yield Code("\n".join(lines) if lines else "(the log is empty)")


def split_log(text: str) -> list[str]:
    """Lines as a terminal would leave them: of a line rewritten by carriage returns only the last state."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    cleaned = [formatting.clean(_strip_escapes(line).expandtabs(4)).rstrip() for line in lines]
    while cleaned and not cleaned[-1]:
        cleaned.pop()
    return cleaned


def _strip_escapes(line: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", line) if "\x1b" in line else line


# ---------------------------------------------------------------- of a study that is running, or has ended


FAILED = (State.FAILED, State.TIMEOUT, State.LOST, State.DAMAGED)
TAIL_BYTES = 8192
_RERUN_AT_ONCE = 10


@dataclass(slots=True)
class Watcher:
    """Listens to events and draws the view."""

    progress: Progress
    study: str
    began: float = field(default_factory=time.time)
    news: list[RunningRow | EndedRow] = field(default_factory=list)  # since the last view
    durations: list[float] = field(default_factory=list)
    kept: int | None = None
    found: set[tuple[str, int]] = field(default_factory=set)  # runs that were under way before: name, attempt
    best: BestSoFar = field(default_factory=BestSoFar)

    def listen(self, event: Event) -> None:
        if event.kind == "ended":
            outcome = event.entry.outcome
            elapsed = None
            if outcome and outcome.started_at and outcome.ended_at:
                elapsed = max(0.0, outcome.ended_at - outcome.started_at)
            row = EndedRow(event.entry.spec.name, str(event.entry.state), elapsed, outcome.reason if outcome else "")
            self.news.append(row)
            self.best.note(event.entry)
            if event.entry.state is State.DONE and row.elapsed_s is not None:
                self.durations.append(row.elapsed_s)
        elif event.kind == "started":
            entry = event.entry
            slot = entry.handle.slot if entry.handle else None
            self.news.append(RunningRow(entry.spec.name, slot, 0.0, entry.attempt, is_waiting=entry.is_waiting))
        elif event.kind == "adopted":
            self.found.add((event.entry.spec.name, event.entry.attempt))
            self.progress.message(f"found {event.entry.spec.name} still running (attempt {event.entry.attempt})")

    def draw(self, supervisor: Supervisor) -> None:
        self.progress.update(self.view(supervisor))

    def finish(self, supervisor: Supervisor) -> None:
        self.progress.finish(self.view(supervisor))

    def view(self, supervisor: Supervisor) -> ProgressView:
        states = [entry.state for entry in supervisor.entries]
        if self.kept is None:
            self.kept = states.count(State.DONE) - sum(
                entry.finished_here for entry in supervisor.entries if entry.state is State.DONE
            )
        now = time.time()
        begun = [entry for entry in supervisor.running.values() if not entry.is_waiting]
        running = tuple(self._build_running(entry, supervisor, now) for entry in begun)
        is_leaving = supervisor.interrupted or supervisor.leave or supervisor.problem
        left = supervisor.count_left()
        queued = len(supervisor.queue) + left + len(supervisor.running) - len(begun)
        slots = max(1, len(running))
        eta_s = estimate_eta(self.durations[-200:], [row.elapsed_s for row in running], queued, slots)
        news, self.news = tuple(self.news), []
        leader = self.best.update(supervisor)
        return ProgressView(
            study=self.study,
            total=len(states) + left,
            done=states.count(State.DONE),
            failed=sum(state in FAILED for state in states),
            timed_out=states.count(State.TIMEOUT),
            lost=states.count(State.LOST),
            stopped=states.count(State.STOPPED),
            pruned=states.count(State.PRUNED),
            running=running,
            queued=queued,
            eta_s=None if is_leaving else eta_s,
            elapsed_s=now - self.began,
            kept=self.kept,
            ended=tuple(row for row in news if isinstance(row, EndedRow)),
            news=news,
            best=BestRow(leader.run, leader.render_value()) if leader else None,
            is_new_best=leader is not None and leader.is_new,
            messages=() if is_leaving else describe_wait(supervisor),
        )

    def _build_running(self, entry: Entry, supervisor: Supervisor, now: float) -> RunningRow:
        handle = entry.handle
        observer = supervisor.observer
        values = observer.last_values(entry) if isinstance(observer, Collector) else {}
        steps = [step for step, _ in values.values() if step == step]  # noqa: PLR0124 NaN: there is none
        return RunningRow(
            name=entry.spec.name,
            slot=handle.slot if handle else None,
            elapsed_s=max(0.0, now - (entry.begun_at or handle.started_at)) if handle else 0.0,
            attempt=entry.attempt,
            metrics={metric: value for metric, (_, value) in values.items()},
            step=max(steps) if steps else None,
            was_found=(entry.spec.name, entry.attempt) in self.found,
        )


def describe_wait(supervisor: Supervisor) -> tuple[str, ...]:
    """Why nothing of this study runs although something could."""
    pool = supervisor.pool
    if pool is None or pool.wait is None or not supervisor.queue or any(e.has_slot for e in supervisor.entries):
        return ()
    if pool.wait == "device" and isinstance(pool.usable, HasMemory):
        return (f"waiting for a GPU with {formatting.render_size(pool.usable.least_bytes)} free",)
    count = len(pool.entries)
    taken = "the only one is" if count == 1 else f"all {count} are"
    return (f"waiting for a slot: {taken} taken by other runs",)


# ---------------------------------------------------------------- when it has ended


def build_study_report(report: Report, elapsed_s: float) -> StudyReport:
    entries = report.entries
    return StudyReport(
        study=report.prepared.location.name,
        total=len(entries),
        done=report.count(State.DONE),
        failed=tuple(_build_failed(entry) for entry in entries if entry.state in FAILED),
        stopped=report.count(State.STOPPED),
        pruned=report.count(State.PRUNED),
        running=report.count(State.RUNNING),
        queued=report.count(State.QUEUED),
        kept=sum(entry.state is State.DONE and not entry.finished_here for entry in entries),
        elapsed_s=elapsed_s,
        folder=os.path.relpath(report.prepared.location.dir),
        warnings=(*report.notes, *_describe_search(report)),
        results=report.search.lines if report.search else (),
        next_steps=build_next_steps(report),
    )


def _describe_search(report: Report) -> Iterator[str]:
    search = report.search
    if search is None:
        return
    for name, why in list(search.failed.items())[:_LISTED]:
        yield f"{name} counts as failed: {why}"
    for name in search.damaged[:_LISTED]:
        run_dir = os.path.join(report.prepared.location.dir, name)
        yield f"{name} counts as a trial without a result: {describe_damage(run_dir)}"
    if search.failure:
        yield search.failure


def build_next_steps(report: Report) -> tuple[str, ...]:
    """Commands that make sense now; each works when it is pasted in this folder."""
    location = report.prepared.location
    failed = [entry for entry in report.entries if entry.state in FAILED]
    steps = []
    if failed:
        with_log = next((e for e in failed if find_telling_log(e.dir, e.spec.log_name, e.commands)), None)
        steps += [show_command(["logs"], location, with_log.spec.name)] if with_log else []
        steps += [_build_retry(report, failed)]
    again = report.prepared.options.again
    if report.count(State.STOPPED) and not report.interrupted and again and again.takes_retry:
        steps.append(again.build("--retry", "stopped"))  # by `assay stop`: a call without it leaves them alone
    if report.count(State.RUNNING, State.QUEUED):
        steps.append(show_command(["ls"], location))
    if report.count(State.DONE, State.PRUNED):
        steps.append(show_command(["sum"], location))
    return (*steps, *report.advice)


def _build_retry(report: Report, failed: Sequence[Entry]) -> str:
    """One run on this machine by its name; several, and what a farm runs, by the command that was called."""
    again = report.prepared.options.again
    if again and not again.takes_retry:
        return again.build()
    if again and (len(failed) > 1 or report.prepared.farm is not None):
        names = dict.fromkeys("lost" if entry.state is State.LOST else "failed" for entry in failed)
        return again.build(*(word for name in names for word in ("--retry", name)))
    return show_command(["rerun"], report.prepared.location, *(entry.spec.name for entry in failed[:_RERUN_AT_ONCE]))


def _build_failed(entry: Entry) -> FailedRun:
    outcome = entry.outcome
    log = find_telling_log(entry.dir, entry.spec.log_name, entry.commands)
    return FailedRun(
        name=entry.spec.name,
        state=str(entry.state),
        reason=outcome.reason if outcome else "",
        exit_code=outcome.exit_code if outcome else None,
        log_path=os.path.relpath(log) if log else None,
        log_tail=read_end(log, TAIL_BYTES) if log else "",
        attempts=entry.attempt,
    )


def find_telling_log(run_dir: str, log_name: str, commands: tuple[str, ...]) -> str | None:
    """The log of the command that failed, or of the last one that began."""
    if not os.path.isdir(run_dir):
        return None
    names = os.listdir(run_dir)
    last = run_directory.load_history(run_dir, names).last
    bad = [name for name, code in last.codes.items() if code != 0] if last else []
    for command in [*bad, *reversed(commands)]:
        log = layout.find_log(names, log_name, command)
        if log is not None:
            return os.path.join(run_dir, log)
    return None
