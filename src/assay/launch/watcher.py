"""The live view of a study that runs: counts, running runs, the best one so far, and what it waits for."""

from __future__ import annotations

import time

from assay.follow.collect import Collector
from assay.follow.entry import Entry, Event
from assay.launch.best_so_far import BestSoFar
from assay.launch.slot_choice import HasMemory
from assay.launch.supervise import Supervisor
from assay.show.formatting import render_size
from assay.show.progress import BestRow, EndedRow, Progress, ProgressView, RunningRow, estimate_eta
from assay.system.fast_dataclasses import dataclass, field
from assay.values.run import State
from assay.values.state import FAILED


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
        return (f"waiting for a GPU with {render_size(pool.usable.least_bytes)} free",)
    count = len(pool.entries)
    taken = "the only one is" if count == 1 else f"all {count} are"
    return (f"waiting for a slot: {taken} taken by other runs",)
