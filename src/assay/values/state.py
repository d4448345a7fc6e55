"""The state of a run, in a module of its own, since tables import nothing else of a run."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """The state of a run. QUEUED and RUNNING can still change by themselves."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    TIMEOUT = "timeout"
    STOPPED = "stopped"
    PRUNED = "pruned"  # ended by a rule of the study (`stop:`): finished, not failed
    LOST = "lost"  # started on another host without a sign of life since, or dead several times in a row
    DAMAGED = "damaged"  # the run's run.json cannot be read

    @property
    def is_over(self) -> bool:
        return self not in (State.QUEUED, State.RUNNING)


FAILED = (State.FAILED, State.TIMEOUT, State.LOST, State.DAMAGED)  # states that are failures


def has_result(state: State, cause: str) -> bool:
    """Whether a run's values are final: it is done, or was ended as it stopped improving or reached its target. A run
    that a rule ended because others were better has no final values. `cause`: the cause of the run's outcome."""
    return state is State.DONE or (state is State.PRUNED and cause == "final")


RETRY = {"failed": (State.FAILED, State.TIMEOUT), "lost": (State.LOST,), "stopped": (State.STOPPED,)}  # for --retry
