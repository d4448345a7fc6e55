"""The state of a run in its supervisor, the events of a run, and the interface of observers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, Protocol

from assay.follow.attempts import RetryPolicy
from assay.record import run_directory
from assay.system.fast_dataclasses import dataclass
from assay.values.run import Beginning, Cause, JobHandle, Outcome, RunSpec, State, Usage

NOTHING: frozenset[str] = frozenset()  # shared by all entries: a supervisor may have a hundred thousand runs
EventKind = Literal["started", "command_started", "command_ended", "ended", "adopted", "retried"]


@dataclass(slots=True)
class Entry:
    """The state of a run in this supervisor."""

    spec: RunSpec
    dir: str
    policy: RetryPolicy
    state: State = State.QUEUED
    attempt: int = 0
    handle: JobHandle | None = None
    outcome: Outcome | None = None
    record: run_directory.RunRecord | None = None
    is_here: bool = False  # the directory of the run exists
    is_mine: bool = False  # this supervisor started or adopted the run
    reported: frozenset[str] = NOTHING  # command events of the current attempt that were reported
    done_before: AbstractSet[str] = NOTHING  # commands that earlier attempts have finished
    finished_here: bool = False  # the run ended while this supervisor watched
    begun_at: float | None = None  # when a farm began the job; None: the job waits in the queue, as far as known
    ended_at: float | None = None  # when the job ended; processes that the job left may end later
    has_slot: bool = False  # the run holds one of this supervisor's slots
    left: Sequence[str] | None = None  # processes left by the ended attempt; None: not searched yet
    loss: tuple[Cause, str] | None = None  # why the ended attempt has no exit code, if the engine knows
    begins: Beginning | None = None  # the checkpoint that the next attempt begins with, if the study has `resume:`
    used_s: float = 0.0  # time that the attempts which the next one continues have used of the run's limit
    wanted: frozenset[str] | None = None  # names of the commands to run; None: all
    since: int | None = None  # --force: the attempt after this one repeats commands that earlier attempts finished
    trial: int | None = None  # number of the trial, if the run belongs to a search
    search_from: int | None = None  # number of the first trial of the run's search
    kept: Mapping[str, Any] | None = None  # data that the sampler of the run's search needs again

    def begin(self, handle: JobHandle, *, has_slot: bool) -> None:
        """Record that this supervisor has started the next attempt, and clear the state of the previous attempt."""
        self.handle, self.has_slot = handle, has_slot
        self.state, self.is_mine = State.RUNNING, True
        self.outcome = self.left = self.ended_at = self.begun_at = None
        self.reported = NOTHING

    @property
    def is_waiting(self) -> bool:
        """Whether the run is in the queue of a farm that has not started it."""
        return self.handle is not None and self.handle.executor != "local" and self.begun_at is None

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that this call runs, in order."""
        names = tuple(command.name for command in self.spec.commands)
        return names if self.wanted is None else tuple(name for name in names if name in self.wanted)

    @property
    def skipped(self) -> AbstractSet[str]:
        """The commands that the next attempt leaves out."""
        unwanted = {command.name for command in self.spec.commands} - set(self.commands)
        return unwanted | (NOTHING if self.repeats else self.done_before)

    @property
    def repeats(self) -> bool:
        """Whether --force makes the next attempt of the run start over."""
        return self.since is not None and self.attempt <= self.since + 1


@dataclass(frozen=True, slots=True)
class Event:
    kind: EventKind
    entry: Entry
    command: str = ""
    code: int = 0


class Observer(Protocol):
    """Observes the runs of a loop. Every method must be fast: the loop waits for it."""

    def started(self, entry: Entry) -> None: ...
    def tick(self, running: Sequence[Entry], now: float) -> None: ...
    def usage(self, entry: Entry) -> Usage | None: ...  # returns the observed use of resources
    def ended(self, entry: Entry) -> None: ...
    def flush(self) -> None: ...
