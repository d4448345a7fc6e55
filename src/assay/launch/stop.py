"""`assay stop`: end runs and everything they started, and report what happened to each."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from assay.errors import AssayError
from assay.execute import process
from assay.execute.base import UnconfirmedError
from assay.execute.places import build_executor, load_place
from assay.follow.attempts import build_outcome, finished_before
from assay.follow.locations import FoundRun, StudyLocation, show_command
from assay.follow.run_status import RunStatus, find_owner, find_supervisors, load_status
from assay.record import run_directory
from assay.record.presence import SupervisorRecord
from assay.record.received import describe, load_received
from assay.show import formatting
from assay.system import processes
from assay.system.files import publish
from assay.values import layout
from assay.values.run import JobHandle, Outcome, State, Stop
from assay.values.study import Farm

_OWNER_S = 3.0  # how long a live supervisor gets to write the outcome: it knows what the run consumed
_LEAVE_S = 5.0  # how long a supervisor gets to end, in addition to the grace
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Stopped:
    """The result of `assay stop` for one run. `is_well` is False if the run may still be running."""

    key: str
    text: str
    state: State
    was_running: bool = False
    is_well: bool = True
    is_taken_back: bool = False  # whether the run was taken back from the queue of its farm


@dataclass(slots=True)
class _Target:
    run: FoundRun
    status: RunStatus
    handle: JobHandle
    processes: int = 0
    problem: str = ""
    owner: SupervisorRecord | None = None


@dataclass(slots=True)
class StopReport:
    runs: list[Stopped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        return all(run.is_well for run in self.runs)

    def count(self) -> str:
        """Return one line that counts the ended runs; an empty string if one run was named, or no run was ended."""
        ended = [run for run in self.runs if run.was_running and run.is_well and run.state is State.STOPPED]
        taken_back = sum(run.is_taken_back for run in ended)
        if len(self.runs) == 1 or not ended:
            return ""
        from_queue = f", {taken_back} of them before their farm had started them" if taken_back else ""
        return f"{formatting.render_count(len(ended), 'run', 'runs')} stopped{from_queue}"


def stop(runs: Sequence[FoundRun], studies: Iterable[StudyLocation], grace_s: float, reason: str) -> StopReport:
    """Stop runs. The supervisors of `studies`, which were named as a whole, end too; their queued runs stay queued."""
    whole = set(studies)
    who = f"pid {os.getpid()} on {processes.host_name()}"
    request = Stop(who, reason or "stopped by the user", "user", time.time())
    found = [_find_target(run, None if run.location in whole else request) for run in runs]
    targets = [each for each in found if isinstance(each, _Target)]
    report = StopReport([each for each in found if isinstance(each, Stopped)])
    # the reason is written before the first signal is sent
    unwritten = [each for each in targets if not _write_stop(each.run.dir, each.status.attempt, request)]
    if unwritten and reason:
        report.notes.append("the disk is full: the reason was not kept")
    supervisors = _interrupt_supervisors(whole)
    _cancel(targets, grace_s)
    report.runs += [_conclude(target) for target in targets]
    for location, each in supervisors:
        has_left = _wait_while(partial(getattr, each, "is_alive"), grace_s + _LEAVE_S)
        end = "has left; what was queued is not started" if has_left else "was asked to leave, but still runs"
        report.notes.append(f"{location.name}: its supervisor (pid {each.pid}) {end}")
    return report


def _find_target(run: FoundRun, request: Stop | None) -> _Target | Stopped:
    """Find the attempt to end, or the reason why there is none. `request` stops a run that is still queued."""
    try:
        status = load_status(run.dir)
        if status.state is State.QUEUED and request is not None:
            if _take_from_queue(run.dir, request):
                return Stopped(run.key, "stopped before it was started", State.STOPPED)
            status = load_status(run.dir)
    except AssayError as error:
        return Stopped(run.key, f"cannot be read: {error.message}", State.LOST, is_well=False)
    handle, last = status.handle, status.history.last
    has_outcome = last is not None and last.outcome is not None
    has_outcome = has_outcome or (status.is_of_script and status.outcome is not None)
    if handle is None or has_outcome or (status.state.is_over and status.state is not State.LOST):
        idle = "was not started yet" if status.state is State.QUEUED else f"was not running ({status.state})"
        return Stopped(run.key, idle, status.state)
    where = ""
    if handle.is_elsewhere:
        source = f" ({describe(received)})" if (received := load_received(run.dir)) else ""
        where = f"was received{source}: if it still runs, stop it where it was started"
    elif status.is_of_script:
        where = f"a script opened it itself on {handle.host}: end that script there with `kill {handle.pid}`"
    elif handle.executor == "local" and handle.host != processes.host_name():
        stop_it = show_command(["stop"], *run.words)
        where = f"runs on {handle.host} (pid {handle.pid}): stop it there with `{stop_it}`"
    if where:
        return Stopped(run.key, where, status.state, is_well=False)
    tagged = handle if handle.tag else replace(handle, tag=f"{status.record.uid}.{status.attempt}")
    return _Target(run, status, tagged, owner=find_owner(handle))


def _take_from_queue(run_dir: str, request: Stop) -> bool:
    """Stop a queued run; return False if it has started. A supervisor writes its lease before it checks for a stop."""
    _write_stop(run_dir, 1, request)
    if os.path.exists(os.path.join(run_dir, layout.numbered_name("lease", 1))):
        return False
    with _bearing_a_full_disk():
        return run_directory.write_outcome(run_dir, Outcome(State.STOPPED, 1, {}, request.why, None, request.at))
    return True


def _write_stop(run_dir: str, attempt: int, request: Stop) -> bool:
    """Write the stop file. If the disk is full, write an empty file, which needs no space, and return False."""
    with _bearing_a_full_disk():
        run_directory.write_stop(run_dir, attempt, request)
        return True
    publish(os.path.join(run_dir, layout.numbered_name("stop", attempt)), "")
    return False


@contextlib.contextmanager
def _bearing_a_full_disk() -> Iterator[None]:
    """Ignore a full disk: without an outcome, the next reader of the run derives it from the stop file."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


# ---------------------------------------------------------------- supervisors


def _interrupt_supervisors(studies: Iterable[StudyLocation]) -> list[tuple[StudyLocation, SupervisorRecord]]:
    """Interrupt the supervisors of the studies like Ctrl-C, so that their queued runs are not started."""
    interrupted = []
    for location in studies:
        for supervisor in find_supervisors(run_directory.find_run_dirs(location.dir), location.dir):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                # the shell of a script makes its background jobs (`assay run f.yml &`) ignore Ctrl-C
                is_deaf = processes.is_ignoring(supervisor.pid, signal.SIGINT)
                os.kill(supervisor.pid, signal.SIGTERM if is_deaf else signal.SIGINT)
                interrupted.append((location, supervisor))
    return interrupted


def _wait_while(condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait while the condition is true; return whether it became false within the limit."""
    deadline = time.monotonic() + limit_s
    while is_so := condition():
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    return not is_so


# ---------------------------------------------------------------- ending


def _cancel(targets: Sequence[_Target], grace_s: float) -> None:
    """End the targets. All targets of an executor are ended at once, so that the grace times do not add up."""
    for target in targets:
        handle = target.handle
        leader = process.AttemptProcesses(handle.pid if handle.executor == "local" else 0, handle.start, handle.tag)
        target.processes = len(process.find_members([leader])) if handle.host == processes.host_name() else 0
    for name in sorted({target.handle.executor for target in targets}):
        chosen = [target for target in targets if target.handle.executor == name]
        try:
            # the file that defines the farm may be gone: an engine finds its jobs by the files of their directories
            farm = {} if name == "local" else {"farm": Farm("?", "template" if name == "submit" else name)}
            with contextlib.closing(build_executor(name, **farm)) as executor:
                executor.cancel([(target.handle, target.run.dir) for target in chosen], grace_s)
            for target in chosen if name == "local" else ():
                # a job.sh that was started by hand in another session ends once its watcher sees the stop file
                lives = partial(processes.is_alive, target.handle.pid, target.handle.start, target.handle.boot)
                if not _wait_while(lives, grace_s + _LEAVE_S):
                    target.problem = f"pid {target.handle.pid} is still there"
        except AssayError as error:
            left = error.dirs if isinstance(error, UnconfirmedError) else [target.run.dir for target in chosen]
            for target in (each for each in chosen if each.run.dir in left):
                target.problem = error.message


def _conclude(target: _Target) -> Stopped:
    key, status = target.run.key, target.status
    if target.problem:
        text = f"asked to stop, but has not confirmed it: {target.problem}"
        return Stopped(key, text, status.state, was_running=True, is_well=False)
    outcome = _write_outcome(target)
    if outcome.state is not State.STOPPED:
        return Stopped(key, f"had finished before: {outcome.state}", outcome.state, was_running=True)
    host = load_place(target.run.dir, target.handle).host
    if target.handle.executor != "local" and host is None:  # this call has the attempt's token
        text = "taken back before its farm had started it"
        return Stopped(key, text, outcome.state, was_running=True, is_taken_back=True)
    ended = outcome.ended_at or time.time()
    after = formatting.render_clock(max(0.0, ended - (outcome.started_at or target.handle.started_at)))
    if host not in (None, processes.host_name()):  # the watcher on that host has ended the processes
        return Stopped(key, f"stopped after {after} on {host}", outcome.state, was_running=True)
    count = formatting.render_count(target.processes, "process", "processes")
    return Stopped(key, f"stopped after {after}, {count} ended", outcome.state, was_running=True)


def _write_outcome(target: _Target) -> Outcome:
    """Return the outcome that counts: the supervisor's if it is alive and writes soon, else the one written here."""
    path = os.path.join(target.run.dir, layout.numbered_name("outcome", target.status.attempt))
    owner = target.owner
    if owner is not None:
        _wait_while(lambda: owner.is_alive and not os.path.exists(path), _OWNER_S)
    history = run_directory.load_history(target.run.dir)
    until = run_directory.History(tuple(each for each in history.attempts if each.number <= target.status.attempt))
    outcome = build_outcome(until.attempts[-1], target.status.commands, finished_before(until))
    span = run_directory.find_span(target.run.dir, target.handle, outcome.codes, time.time())
    ours = replace(outcome, started_at=span[0], ended_at=span[1])
    with _bearing_a_full_disk():
        run_directory.write_outcome(target.run.dir, ours)
    last = next(a for a in run_directory.load_history(target.run.dir).attempts if a.number == target.status.attempt)
    return last.outcome or ours
