"""Pure functions that decide what a run needs, from the files of its attempts and whether its process is alive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import pairwise

from assay.record.checkpoints import Checkpoint, describe_checkpoint
from assay.record.run_directory import TAKEN_BACK, Attempt, History, conclude, describe_contradiction
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.run import Beginning, Cause, JobHandle, Liveness, Outcome, State

MAX_DEATHS = 5  # after this many attempts in a row that ended without an exit code, no other is started
MAX_TAKEN_BACK = 50  # limit of attempts in a row that an engine took back, for other jobs or after a node failed
MAX_CONTINUED = 1000  # limit of attempts after time limits: a program may start over each time and rewrite its files
MAX_REFUSED = 3  # limit of checkpoints that fail at once and are followed by an older one
AT_ONCE_S = 600.0  # an attempt that fails within this time failed at once: a large checkpoint takes minutes to load
GIVEN_UP = "started on another host and given up there by --retry lost"
DEATH = "ended without an exit code: killed from outside, out of memory, or the machine went down"
OUT_OF_TIME = "its farm's time was up"
NO_CHECKPOINT = "without a newer checkpoint than it began with"

FindNewer = Callable[[Beginning | None], str]  # returns the newer checkpoint that an attempt wrote, or an empty string


class Action(Enum):
    START = "start"  # begin attempt `attempt`
    FOLLOW = "follow"  # the attempt is running, here or elsewhere: watch it
    CLOSE = "close"  # the attempt has ended, and its outcome is not written yet: write `outcome`
    CLEAN = "clean"  # like CLOSE, but first end the processes that the dead attempt left
    KEEP = "keep"  # the run has ended


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    state: State
    attempt: int
    outcome: Outcome | None = None
    handle: JobHandle | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The rules for which ended attempts are followed by another. Attempts up to number `base` do not count."""

    retries: int = 0
    again: frozenset[State] = frozenset()  # --retry: states that get one more chance at the start
    base: int = 0
    interrupted: int | None = None  # the newest attempt that was stopped before this supervisor began; None: not known
    abandons: bool = False  # --retry lost: do not wait for attempts on other hosts

    def begin(self, history: History) -> RetryPolicy:
        """Return the policy of a supervisor that begins: it starts the next attempt of a run that it finds interrupted.
        Attempts that another supervisor interrupts later stay interrupted. Attempts are compared by number, as the
        wall clock may go back between two calls."""
        stopped = [attempt.number for attempt in history.attempts if attempt.stop is not None]
        return replace(self, interrupted=max(stopped, default=0))

    def wants_another(self, history: History) -> bool:
        last = history.last
        if last is None or last.outcome is None:
            return False
        state = last.outcome.state
        if last.number <= self.base and state in self.again:
            return True
        if state is State.STOPPED:
            if last.stop is None:
                return last.outcome.cause == "out of time" and last.number - self.base < MAX_CONTINUED
            is_known = self.interrupted is not None and last.number <= self.interrupted
            return is_known and last.stop.kind == "interrupt"
        if state is State.LOST:
            limits = {"death": MAX_DEATHS, "taken back": MAX_TAKEN_BACK}
            return _count_last(history, last.outcome.cause) < limits.get(last.outcome.cause, 0)
        counted = [attempt for attempt in history.attempts if attempt.number > self.base and _has_failed(attempt)]
        refused = [attempt for attempt in _find_refusals(history) if attempt in counted]
        is_allowed = len(refused) <= MAX_REFUSED if last in refused else len(counted) - len(refused) <= self.retries
        return last in counted and is_allowed


def _has_failed(attempt: Attempt) -> bool:
    return attempt.outcome is not None and attempt.outcome.state in (State.FAILED, State.TIMEOUT)


def _find_refusals(history: History) -> list[Attempt]:
    """Return the attempts that failed because of their checkpoint: no other failure came directly before them."""
    found: list[Attempt] = []
    for before, attempt in pairwise(history.attempts):
        if has_refused_checkpoint(attempt) and (before in found or not _has_failed(before)):
            found.append(attempt)
    return found


def has_refused_checkpoint(attempt: Attempt) -> bool:
    """Whether the attempt failed at once with its checkpoint, which may be damaged while an older one is not."""
    outcome, begins = attempt.outcome, attempt.handle.begins if attempt.handle else None
    if outcome is None or begins is None or not begins.checkpoint or outcome.checkpoint or attempt.is_warned:
        return False
    took_s = (outcome.ended_at or 0.0) - (outcome.started_at or 0.0)
    return outcome.state is State.FAILED and took_s < AT_ONCE_S


def choose_beginning(
    files: tuple[str, ...], found: Sequence[Checkpoint], earlier: Sequence[Attempt], *, starts_over: bool
) -> Beginning:
    """Choose the newest checkpoint since the last fresh start that no attempt refused. `found` has the newest first."""
    known = [(attempt, attempt.handle.begins) for attempt in earlier if attempt.handle and attempt.handle.begins]
    since_ns = max((begins.newest_ns for _, begins in known if not begins.checkpoint), default=0)
    refused = {begins.checkpoint: begins.newest_ns for attempt, begins in known if has_refused_checkpoint(attempt)}
    usable = [each for each in found if each.written_ns > max(since_ns, refused.get(each.path, 0))]
    return Beginning(files, usable[0].path if usable and not starts_over else "", found[0].written_ns if found else 0)


def _count_last(history: History, cause: Cause) -> int:
    """Count the newest attempts in a row that ended for this cause, back to the last that wrote a checkpoint."""
    count = 0
    for attempt in reversed(history.attempts):
        if attempt.outcome is None or attempt.outcome.cause != cause:
            break
        count += 1
        if attempt.outcome.checkpoint:
            break
    return count


def decide(
    history: History,
    commands: tuple[str, ...],
    liveness: Callable[[JobHandle], Liveness],
    policy: RetryPolicy,
    find_newer: FindNewer = lambda _begins: "",
) -> Decision:
    """Decide what the run needs. If the attempt has ended, `history` may be too old: load it and decide again."""
    last = history.last
    if last is None:
        return Decision(Action.START, State.QUEUED, 1)
    if last.outcome is not None:
        # an attempt that is done may lack commands: a call can select some of them
        is_partial = last.outcome.state is State.DONE and not history.finished_commands().issuperset(commands)
        if is_partial or policy.wants_another(history):
            return Decision(Action.START, State.QUEUED, last.number + 1)
        return Decision(Action.KEEP, last.outcome.state, last.number, last.outcome, last.handle)
    alive = liveness(last.handle) if last.handle and not last.is_fenced else Liveness.GONE
    if alive is Liveness.ALIVE:
        return Decision(Action.FOLLOW, State.RUNNING, last.number, handle=last.handle)
    outcome = build_outcome(last, commands, finished_before(history), find_newer)
    is_on_ssh = last.handle is not None and last.handle.executor == "ssh"  # the ssh host may not have received the stop
    if alive is Liveness.UNKNOWN and (outcome.state is State.LOST or (last.stop is not None and is_on_ssh)):
        # a job on another host, or on an ssh host that does not answer, is followed unless the policy gives it up
        is_on_farm = last.handle is not None and last.handle.executor not in ("local", "ssh")
        if is_on_farm or not policy.abandons or last.number > policy.base:
            state = State.RUNNING if is_on_farm else State.LOST
            return Decision(Action.FOLLOW, state, last.number, handle=last.handle)
        outcome, action = replace(outcome, state=State.LOST, reason=GIVEN_UP, cause=""), Action.CLOSE
    else:
        is_elsewhere = last.handle is not None and last.handle.is_elsewhere
        action = Action.CLOSE if outcome.state is State.DONE or is_elsewhere else Action.CLEAN
    return Decision(action, outcome.state, last.number, outcome, last.handle)


def finished_before(history: History) -> set[str]:
    """Return the commands that the last attempt left out; if its files do not name them, the commands that earlier
    attempts finished. A killed repetition must not count as done because an earlier attempt was done."""
    last = history.last
    if last is not None and last.skips is not None:
        return last.skips
    return History(history.attempts[:-1]).finished_commands()


def build_outcome(
    attempt: Attempt, commands: tuple[str, ...], finished_before: set[str], find_newer: FindNewer = lambda _begins: ""
) -> Outcome:
    """Build the outcome of an attempt that has ended."""
    state, reason = _conclude(attempt, commands, finished_before)
    began_at = attempt.handle.started_at if attempt.handle else None
    cause: Cause = attempt.stop.cause if state is State.PRUNED and attempt.stop else ""
    if state is State.LOST:
        cause = "taken back" if attempt.is_fenced else "death"
    outcome = Outcome(state, attempt.number, attempt.codes, reason, began_at, attempt.ended_at, cause=cause)
    if attempt.handle is None or attempt.handle.begins is None or state is State.DONE:
        return outcome
    outcome = replace(outcome, checkpoint=find_newer(attempt.handle.begins))
    ran_out = attempt.is_warned and attempt.stop is None and not attempt.contradictory  # the exit code does not matter
    if not ran_out or state not in (State.FAILED, State.TIMEOUT):
        return outcome
    if outcome.checkpoint:
        reason = f"{OUT_OF_TIME}; goes on from {describe_checkpoint(outcome.checkpoint)}"
        return replace(outcome, state=State.STOPPED, reason=reason, cause="out of time")
    when = "" if state is State.TIMEOUT else " after the warning of its time limit"
    return replace(outcome, reason=f"{outcome.reason}{when}, {NO_CHECKPOINT}")


def _conclude(attempt: Attempt, commands: tuple[str, ...], finished_before: set[str]) -> tuple[State, str]:
    state = conclude(attempt, commands, finished_before)
    if state is State.DONE:
        return state, ""
    if attempt.stop is not None and attempt.stop.kind != "fence":
        return State.PRUNED if attempt.stop.kind == "rule" else State.STOPPED, attempt.stop.why
    if attempt.contradictory:
        return State.FAILED, describe_contradiction(attempt)
    if state is None or attempt.is_fenced:
        return State.LOST, f"{TAKEN_BACK}; {attempt.stop.why}" if attempt.is_fenced and attempt.stop else DEATH
    bad = ((name, code) for name, code in attempt.codes.items() if code != 0)
    name, code = next(bad, (max(attempt.late, default=""), 0))
    if state is State.TIMEOUT:
        return state, f"{name} ran into its time limit"
    from signal import Signals

    signals = {128 + each: f" ({each.name})" for each in Signals}
    return state, f"{name} ended with exit code {code}{signals.get(code, '')}"
