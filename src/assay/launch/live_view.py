"""The live view of a running study: counts, running runs, the best run so far, and what the study waits for."""

from __future__ import annotations

import math
import time

from assay.follow.collect import Collector
from assay.follow.entry import Entry, Event
from assay.launch.slot_choice import HasMemory
from assay.launch.supervise import Supervisor
from assay.record.checkpoints import describe_checkpoint
from assay.record.folders import find_units, name_step
from assay.show.formatting import render_number, render_size
from assay.show.progress import BestRow, EndedRow, Progress, ProgressView, RunningRow, estimate_eta
from assay.system.fast_dataclasses import NamedTuple, dataclass, field
from assay.values.run import State
from assay.values.series import Direction, Summary, direction_of, metric_priority
from assay.values.state import FAILED, has_result
from assay.values.study import Study

# ---------------------------------------------------------------- the best run so far


class Goal(NamedTuple):
    """A metric, its better direction, and the value (last, best …) by which runs are compared."""

    metric: str
    direction: Direction
    at: str = "best"

    def measure(self, summary: Summary) -> float:
        name = self.direction if self.at == "best" else self.at
        value: float = getattr(summary, name)
        return value

    def is_better(self, value: float, than: float) -> bool:
        return value < than if self.direction == "min" else value > than


class Leader(NamedTuple):
    run: str
    value: float
    goal: Goal
    is_new: bool = False  # whether the run ended since the last call of `update`

    def render_value(self) -> str:
        return f"{self.goal.metric} {render_number(self.value)} ({self.goal.direction})"


def choose_goal(study: Study) -> Goal | None:
    """Return the metric of the study's search, else of its first check; None if the study has neither."""
    if study.search is not None:
        objective = study.search.objectives[0]
        return Goal(objective.metric, objective.direction, study.search.at)
    if not study.checks:
        return None
    check = study.checks[0]
    bounds: dict[tuple[bool, bool], Direction] = {(True, False): "max", (False, True): "min"}
    direction = bounds.get((check.min is not None, check.max is not None)) or direction_of(check.metric)
    return Goal(check.metric, direction, check.at)


def _counts(entry: Entry) -> bool:
    return has_result(entry.state, entry.outcome.cause if entry.outcome else "")


class BestSoFar:
    """The best of this call's done runs. Without a goal, the most informative metric of the first run decides."""

    def __init__(self, goal: Goal | None = None) -> None:
        self._goal = goal
        self._ended: list[Entry] = []  # runs that ended since the last call of `update`
        self._has_looked = False
        self.leader: Leader | None = None

    def note(self, entry: Entry) -> None:
        """Record a run that has ended."""
        if _counts(entry):
            self._ended.append(entry)

    def update(self, supervisor: Supervisor) -> Leader | None:
        """Return the best run so far. The index is read only if runs have ended since the last call."""
        if self.leader is not None and self.leader.is_new:
            self.leader = self.leader._replace(is_new=False)
        collector = supervisor.observer
        if not self._ended or not isinstance(collector, Collector):
            return self.leader
        ended, self._ended = self._ended, []
        new = {entry.dir for entry in ended}
        if not self._has_looked:
            earlier = [entry for entry in supervisor.entries if _counts(entry) and entry.dir not in new]
            ended, self._has_looked = [*earlier, *ended], True
        summaries = collector.load_summaries(ended)
        for entry in ended:
            metrics = summaries.get(entry.dir, {})
            if self._goal is None and metrics:
                name = min(metrics, key=metric_priority)
                self._goal = Goal(name, direction_of(name))
            if self._goal is None or self._goal.metric not in metrics:
                continue
            value = self._goal.measure(metrics[self._goal.metric])
            if math.isfinite(value) and (self.leader is None or self._goal.is_better(value, self.leader.value)):
                self.leader = Leader(entry.spec.name, value, self._goal, entry.dir in new)
        return self.leader


# ---------------------------------------------------------------- the view


@dataclass(slots=True)
class Watcher:
    """Listens to events of runs and draws the live view."""

    progress: Progress
    study: str
    began: float = field(default_factory=time.time)
    news: list[RunningRow | EndedRow] = field(default_factory=list)  # rows since the view was last drawn
    durations: list[float] = field(default_factory=list)
    kept: int | None = None
    found: set[tuple[str, int]] = field(default_factory=set)  # name and attempt of runs that were already running
    best: BestSoFar = field(default_factory=BestSoFar)
    step_name: str = ""  # `step` or `epoch`, by the first run that has steps

    def listen(self, event: Event) -> None:
        entry = event.entry
        if event.kind == "ended":
            outcome, elapsed_s = entry.outcome, None
            if outcome and outcome.started_at and outcome.ended_at:
                elapsed_s = max(0.0, outcome.ended_at - outcome.started_at)
            reason = outcome.reason if outcome else ""
            self.news.append(EndedRow(entry.spec.name, str(entry.state), elapsed_s, reason))
            self.best.note(entry)
            if entry.state is State.DONE and elapsed_s is not None:
                self.durations.append(elapsed_s)
        elif event.kind == "started":
            slot = entry.handle.slot if entry.handle else None
            begins = "starts over" if entry.begins else ""
            if entry.begins and entry.begins.checkpoint:
                begins = f"continues from {describe_checkpoint(entry.begins.checkpoint)}"
            running = RunningRow(entry.spec.name, slot, 0.0, entry.attempt, is_waiting=entry.is_waiting, begins=begins)
            self.news.append(running)
        elif event.kind == "adopted":
            self.found.add((entry.spec.name, entry.attempt))
            self.progress.message(f"found {entry.spec.name} still running (attempt {entry.attempt})")

    def draw(self, supervisor: Supervisor) -> None:
        self.progress.update(self.view(supervisor))

    def finish(self, supervisor: Supervisor) -> None:
        self.progress.finish(self.view(supervisor))

    def view(self, supervisor: Supervisor) -> ProgressView:
        states = [entry.state for entry in supervisor.entries]
        if self.kept is None:
            done = [entry for entry in supervisor.entries if entry.state is State.DONE]
            self.kept = sum(not entry.finished_here for entry in done)
        now = time.time()
        begun = [entry for entry in supervisor.running.values() if not entry.is_waiting]
        running = tuple(self._build_running(entry, supervisor, now) for entry in begun)
        is_leaving = supervisor.interrupted or supervisor.leave or supervisor.problem
        left = supervisor.count_left()
        queued = len(supervisor.queue) + left + len(supervisor.running) - len(begun)
        slots = max(1, len(running))
        eta_s = estimate_eta(self.durations[-200:], [row.elapsed_s for row in running], queued, slots)
        counting = [entry.dir for entry, row in zip(begun, running, strict=True) if row.step is not None]
        if counting and not self.step_name:
            self.step_name = name_step(find_units(counting[0]))
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
            step_name=self.step_name or "step",
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
        steps = [step for step, _ in values.values() if step == step]  # noqa: PLR0124 NaN: no step
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
    """Describe what this study waits for if none of its runs has a slot."""
    pool = supervisor.pool
    if pool is None or pool.wait is None or not supervisor.queue or any(e.has_slot for e in supervisor.entries):
        return ()
    if pool.wait == "device" and isinstance(pool.usable, HasMemory):
        return (f"waiting for a GPU with {render_size(min(pool.usable.needed.values()))} free",)
    count = len(pool.entries)
    taken = "the only one is" if count == 1 else f"all {count} are"
    return (f"waiting for a slot: {taken} taken by other runs",)
