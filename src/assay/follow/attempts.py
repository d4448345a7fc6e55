"""What to do about a run, given the files of its attempts and whether its process lives: pure."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from assay.record.run_directory import Attempt, History, conclude, describe_contradiction
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.run import JobHandle, Liveness, Outcome, State

MAX_DEATHS = 5  # attempts in a row that ended without saying how, before we stop trying
MAX_TAKEN_BACK = 50  # attempts in a row that an engine took back, for jobs that matter more or since a node failed
GIVEN_UP = "started on another host and given up there by --retry lost"
DEATH = "ended without an exit code: killed from outside, out of memory, or the machine went down"
TAKEN_BACK = "taken back before its end"


class Action(Enum):
    START = "start"  # begin attempt `attempt`
    FOLLOW = "follow"  # it runs, here or elsewhere: watch it
    CLOSE = "close"  # it is over, which is not written yet: write `outcome`
    CLEAN = "clean"  # as CLOSE, after ending what the dead attempt left behind
    KEEP = "keep"  # it is over


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    state: State
    attempt: int
    outcome: Outcome | None = None
    handle: JobHandle | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Which ends are not the end. `base` is the last attempt that does not count any more."""

    retries: int = 0
    again: frozenset[State] = frozenset()  # --retry: states that get one more chance at the start
    base: int = 0
    interrupted: int | None = None  # the newest attempt stopped before this supervisor looked; None: not looked
    abandons: bool = False  # --retry lost: what another host was given is not waited for any longer

    def begin(self, history: History) -> RetryPolicy:
        """At a supervisor's first look: of what it finds interrupted it starts the next attempt.

        An attempt that is interrupted later was interrupted by another supervisor, and stays so. Attempts have an
        order of their own; the wall clock may go back between two calls.
        """
        stopped = [attempt.number for attempt in history.attempts if attempt.stop is not None]
        return replace(self, interrupted=max(stopped, default=0))

    def gives_up(self, attempt: Attempt) -> bool:
        return self.abandons and attempt.number <= self.base

    def wants_another(self, history: History) -> bool:
        last = history.last
        if last is None or last.outcome is None:
            return False
        state = last.outcome.state
        if last.number <= self.base and state in self.again:
            return True
        if state is State.STOPPED:
            if last.stop is None or self.interrupted is None:
                return False
            return last.stop.kind == "interrupt" and last.number <= self.interrupted
        if state is State.LOST:
            limits = {DEATH: MAX_DEATHS, TAKEN_BACK: MAX_TAKEN_BACK}
            return any(0 < _count_last(history, reason) < limit for reason, limit in limits.items())
        failing = (State.FAILED, State.TIMEOUT)
        ended = [a.outcome.state for a in history.attempts if a.number > self.base and a.outcome is not None]
        return state in failing and 0 < sum(each in failing for each in ended) <= self.retries


def _count_last(history: History, reason: str) -> int:
    """How many of the newest attempts ended for this reason, which an engine's explanation may follow."""
    count = 0
    for attempt in reversed(history.attempts):
        if attempt.outcome is None or not attempt.outcome.reason.startswith(reason):
            break
        count += 1
    return count


def decide(
    history: History,
    commands: tuple[str, ...],
    liveness: Callable[[JobHandle], Liveness],
    policy: RetryPolicy,
) -> Decision:
    """Liveness is looked at before the markers: a job that ends in between has written them by then."""
    last = history.last
    if last is None:
        return Decision(Action.START, State.QUEUED, 1)
    if last.outcome is not None:
        if policy.wants_another(history) or _lacks_commands(history, commands):
            return Decision(Action.START, State.QUEUED, last.number + 1)
        return Decision(Action.KEEP, last.outcome.state, last.number, last.outcome, last.handle)
    alive = liveness(last.handle) if last.handle else Liveness.GONE
    if alive is Liveness.ALIVE:
        return Decision(Action.FOLLOW, State.RUNNING, last.number, handle=last.handle)
    outcome = build_outcome(last, commands, finished_before(history))
    if outcome.state is State.LOST and alive is Liveness.UNKNOWN:
        return _decide_elsewhere(last, outcome, policy)
    action = Action.CLOSE if outcome.state is State.DONE else Action.CLEAN
    return Decision(action, outcome.state, last.number, outcome, last.handle)


def _decide_elsewhere(last: Attempt, outcome: Outcome, policy: RetryPolicy) -> Decision:
    """A farm's job is running. A job on another host is left alone, unless the policy gives it up.

    A host reached by ssh counts as another host when it has not answered for long.
    """
    if last.handle is not None and last.handle.executor not in ("local", "ssh"):
        return Decision(Action.FOLLOW, State.RUNNING, last.number, handle=last.handle)
    if policy.gives_up(last):
        return Decision(Action.CLOSE, State.LOST, last.number, replace(outcome, reason=GIVEN_UP), last.handle)
    return Decision(Action.FOLLOW, State.LOST, last.number, handle=last.handle)


def _lacks_commands(history: History, commands: tuple[str, ...]) -> bool:
    """It ended well, but only some of its commands had been asked for then."""
    last = history.last
    if last is None or last.outcome is None or last.outcome.state is not State.DONE:
        return False
    return not history.finished_commands().issuperset(commands)


def finished_before(history: History) -> set[str]:
    """The commands that the last attempt left out; where its files do not name them, those that others finished.

    A repeat that was killed must not be taken for done because an earlier attempt was.
    """
    last = history.last
    if last is not None and last.skips is not None:
        return last.skips
    return History(history.attempts[:-1]).finished_commands()


def build_outcome(attempt: Attempt, commands: tuple[str, ...], finished_before: set[str]) -> Outcome:
    """The conclusion about an attempt that has ended."""
    state, reason = _conclude(attempt, commands, finished_before)
    began_at = attempt.handle.started_at if attempt.handle else None
    return Outcome(state, attempt.number, attempt.codes, reason, began_at, attempt.ended_at)


def _conclude(attempt: Attempt, commands: tuple[str, ...], finished_before: set[str]) -> tuple[State, str]:
    state = conclude(attempt, commands, finished_before)
    if state is State.DONE:
        return state, ""
    if attempt.stop is not None:
        return State.PRUNED if attempt.stop.kind == "rule" else State.STOPPED, attempt.stop.why
    if attempt.contradictory:
        return State.FAILED, describe_contradiction(attempt)
    if state is None:
        return State.LOST, DEATH
    name, code = next((name, code) for name, code in attempt.codes.items() if code != 0)
    if state is State.TIMEOUT:
        return state, f"{name} ran into its time limit"
    return state, f"{name} ended with exit code {code}{_signal(code)}"


def _signal(code: int) -> str:
    import signal

    try:
        return f" ({signal.Signals(code - 128).name})" if code > 128 else ""
    except ValueError:
        return ""
