"""The loop that starts runs on free slots, watches them, collects their metrics and concludes how they ended.

Nothing that matters exists only in this process. A supervisor may be killed at any time, or work next to another on
the same study: `lease.N` decides which of them starts an attempt, the markers in the run directory how it ended.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

from assay.errors import AssayError, FormatError, InfrastructureError, explain_refusal
from assay.execute.base import Executor
from assay.execute.machine_lease import MachineLease
from assay.execute.places import load_liveness
from assay.execute.slots import HeldSlot, SlotPool
from assay.follow.attempts import DEATH, Action, Decision, choose_beginning, decide
from assay.follow.entry import NOTHING, Entry, Event, Observer
from assay.follow.run_status import find_owner
from assay.launch.slot_choice import describe_holders, describe_lease
from assay.record import run_directory
from assay.record.checkpoints import find_newer, list_checkpoints
from assay.record.received import check_executable, is_foreign, load_received
from assay.system import processes
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.system.files import list_names
from assay.values import layout
from assay.values.run import Cause, Ending, JobHandle, JobRequest, Liveness, Outcome, State, Stop, StopKind, Usage

if TYPE_CHECKING:
    from assay.launch.budget import Budget

TICK_S = 0.25  # how often logs are read and the view is drawn
LOOK_S = 2.0  # how often runs of other supervisors are checked
GRACE_S = 10.0
_BEGUN_S = 0.02  # part of a tick in which jobs are checked that may have begun
_MOST_LEFT = 3  # processes named in a message


class RunSource(Protocol):
    """A source of runs that are not known beforehand: each run is chosen only when a slot is free for it."""

    def count_left(self) -> int: ...  # how many runs may still come; 0: the source has ended
    def prepare(self) -> None: ...  # called while all slots are busy, for work that needs no results
    def take(self, supervisor: Supervisor) -> Sequence[Entry]: ...  # returns new runs, whose directories exist


@dataclass(slots=True)
class LoopSettings:
    """Settings and callbacks of the loop; `RunHooks` adds settings that commands use outside of the loop."""

    create: Callable[[Entry], bool] = lambda _entry: True  # write the run's directory; False: another supervisor did
    renew: Callable[[Entry], None] = lambda _entry: None  # change the run's code before an attempt begins
    rewrite: Callable[[Entry], None] = lambda _entry: None  # write job.sh of a later attempt before a process reads it
    remake: Callable[[Entry], None] = lambda _entry: None  # write job.sh and code/ of a pulled run
    listen: Callable[[Event], None] = lambda _event: None
    draw: Callable[[Supervisor], None] = lambda _supervisor: None
    warn: Callable[[str], None] = lambda _line: None  # prints the executor's messages
    env: Mapping[str, str] = field(default_factory=dict)
    tick_s: float = TICK_S
    grace_s: float = GRACE_S
    counts_wait: bool = False  # waiting for a slot counts towards a run's time limit
    keeps_slots: bool = False  # slots belong to this command: a job that outlives the command holds no slot
    lease: MachineLease | None = None  # checked before each start; None: the jobs run on a farm
    max_wait_s: float | None = None  # limit of the wait for the lease while no run of this call is running
    limit: int | None = None  # most runs at once if there is no pool
    leaves: bool = False  # end the loop as soon as the executor has taken over every job
    # called after each tick for runs of this supervisor: `decide` returns why a run ends early (`stopped`), `prune` the
    # runs that the study's rules end (`pruned`), by directory
    decide: Callable[[Entry], str | None] = lambda _entry: None
    prune: Callable[[Sequence[Entry]], Mapping[str, Ending]] = lambda _entries: {}
    source: RunSource | None = None
    budget: Budget | None = None


class Supervisor:
    def __init__(
        self,
        entries: Sequence[Entry],
        executor: Executor,
        pool: SlotPool | None,
        observer: Observer,
        settings: LoopSettings,
    ) -> None:
        self.entries = list(entries)
        self.executor = executor
        self.pool = pool
        self.observer = observer
        self.settings = settings
        self.running: dict[str, Entry] = {}  # run directory -> entry
        self._tagged_entries: dict[str, Entry] = {}  # tag -> entry, for a fast search among thousands
        self._shared: dict[Any, Any] = {}  # values that most runs share, each kept once
        self.queue: list[tuple[int, int, Entry]] = []
        self.interrupted: str | None = None  # the name of the signal
        self.at_interrupt: list[Entry] = []  # the runs that were running when the signal arrived
        self.leave = False  # whether to end the loop without stopping any run
        self.problem: InfrastructureError | None = None
        self._order = 0
        self._waiting_since: float | None = None  # since when no run of this call is running and no slot is free
        self._kept: dict[str, HeldSlot] = {}  # run directory -> slot
        self._ending: dict[str, Callable[[], bool]] = {}  # directory of a run being ended -> whether it has ended
        self._was_ended: set[tuple[str, int]] = set()  # directory and attempt of each call of `_begin_ending`
        self._turn = 0  # index of the next job to check among those that wait in a farm's queue
        self.held_back: list[Entry] = []  # runs that the budget does not permit
        self._leased_since: float | None = None  # since when other programs hold the machine lease

    # ------------------------------------------------------------ the loop

    def run(self) -> None:
        """Supervise until every run has finished, a signal interrupts the loop, or `leave` is set."""
        present = {folder: list_names(folder) for folder in {os.path.dirname(entry.dir) for entry in self.entries}}
        for entry in self.entries:
            folder, name = os.path.split(entry.dir)
            self._reconcile(entry, is_new=name not in present[folder])
        settings = self.settings
        next_tick = next_look = time.monotonic()
        while (self.queue or self.running or self.count_left()) and not self.interrupted and not self.leave:
            self._fill_slots()
            self._count_wait()
            if self.problem and not self.running:
                break
            if not (self.queue or self.running or self.count_left()):
                break
            self._create_ahead()
            ended = self.executor.wait(min(settings.tick_s, max(0.0, next_tick - time.monotonic())))
            self._refill(ended)
            self._take_ended(ended)
            if ended and self.count_left():
                self._fill_slots()  # a source chooses new runs by the results of ended runs
            has_more = self.queue or self.count_left()
            if settings.leaves and (self.problem or not has_more) and self.executor.is_handed_over():
                self.leave = True
            now = time.monotonic()
            if now >= next_tick:
                self._tick()
                next_tick = time.monotonic() + settings.tick_s
            if now >= next_look:
                self.look_at_others()
                next_look = now + LOOK_S
        if self.interrupted:
            self.stop(list(self.running.values()), f"{self.interrupted} to the supervisor", "interrupt")
        self.look_at_others()
        self.observer.flush()
        settings.draw(self)

    def count_left(self) -> int:
        """Return how many runs that are not among the entries may still come."""
        return self.settings.source.count_left() if self.settings.source is not None else 0

    def _tick(self) -> None:
        mine = [entry for entry in self.running.values() if entry.is_mine]
        self._note_begun(mine)
        begun = [entry for entry in mine if not entry.is_waiting]
        self.observer.tick(begun, time.time())
        self._stop_early(mine)
        for line in self.executor.take_messages():
            self.settings.warn(line)
        for entry in begun:
            if len(entry.spec.commands) > 1:
                self._report_commands(entry)
        self.settings.draw(self)

    def _note_begun(self, entries: Sequence[Entry]) -> None:
        """Check jobs that wait in a farm's queue. Each tick checks some: a thousand jobs take long on a slow disk."""
        waiting = [
            entry
            for entry in entries
            if entry.is_waiting and entry.handle and self.executor.may_have_begun(entry.handle, entry.dir)
        ]
        deadline = time.monotonic() + _BEGUN_S
        for count in range(len(waiting)):
            entry = waiting[(self._turn + count) % len(waiting)]
            assert entry.handle is not None
            entry.begun_at = run_directory.find_begin(entry.dir, entry.handle)
            if time.monotonic() > deadline:
                self._turn += count + 1
                break

    def _stop_early(self, entries: Sequence[Entry]) -> None:
        """End the runs that `decide` and the study's rules name, all at once and without waiting for them."""
        found = [(self.running[path], is_ended) for path, is_ended in self._ending.items() if path in self.running]
        self._take_ending([entry for entry, is_ended in found if is_ended()])
        going = [entry for entry in entries if entry.dir in self.running and entry.dir not in self._ending]
        stops = {entry.dir: self._build_stop(why, "early") for entry in going if (why := self.settings.decide(entry))}
        pruned = self.settings.prune(going)
        stops |= {path: self._build_stop(end.why, "rule", end.cause) for path, end in pruned.items()}
        chosen = [entry for entry in going if entry.dir in stops]
        self._begin_ending([entry for entry in chosen if self._write_stop(entry, stops[entry.dir])])

    def _begin_ending(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._was_ended.add((entry.dir, entry.attempt))
            try:
                job = (self._tagged(entry, entry.handle), entry.dir)
                self._ending[entry.dir] = self.executor.begin_cancel([job], self.settings.grace_s)
            except AssayError as error:
                self.problem = InfrastructureError(error.message, error.hint)
        self._take_ending([entry for entry in entries if entry.dir in self._ending and self._ending[entry.dir]()])

    def _take_ending(self, entries: Sequence[Entry]) -> None:
        """Conclude runs whose processes have all ended, so that the files of each run are complete."""
        if not entries:
            return
        for entry in entries:
            del self._ending[entry.dir]
        self._take_ended(self.executor.wait(0))
        for entry in entries:
            if entry.dir in self.running:
                entry.finished_here = True
                self._reconcile(entry)

    # ------------------------------------------------------------ starting

    def _fill_slots(self) -> None:
        budget = self.settings.budget
        if budget is not None and budget.measure_s(self.running.values()) >= budget.limit_s:
            self._hold_back(budget)
        try:
            with self.executor.together():
                self._start_all()
        except InfrastructureError as error:
            self.problem = error

    def _start_all(self) -> None:
        while (self.queue or self.count_left()) and not (self.problem or self.interrupted or self.leave):
            limit = self.settings.limit
            if (limit is not None and len(self.running) >= limit) or not self.executor.has_room():
                return
            wants_more = len(self.queue) + self.count_left() > 1
            ours = sum(entry.has_slot for entry in self.running.values())
            held = self.pool.acquire(ours, wants_more=wants_more) if self.pool else None
            if held is None and self.pool is not None:
                return
            may_start = self._may_start()
            if not may_start or not (self.queue or self._take_new()):
                if held is not None:
                    held.let_go()
                if not may_start:
                    return
                continue
            entry = heapq.heappop(self.queue)[2]
            try:
                self._try(self._start, entry, held)
            finally:
                if held is not None:
                    self._hand_over(entry, held)
        if not self.queue:
            self._leased_since = None
        if self.problem and self.pool:
            self.pool.withdraw_want()

    def _hold_back(self, budget: Budget) -> None:
        """Drop the queued runs, and take back the runs in a farm's queue, which a later call continues."""
        waiting = [entry for entry in self.running.values() if entry.is_waiting]
        if waiting:
            self.stop(waiting, f"the budget of {budget.text} is used", "interrupt")
        self.held_back += [*waiting, *(entry for _, _, entry in sorted(self.queue) if entry not in self.held_back)]
        self.queue.clear()
        self.settings.source = None

    def _take_new(self) -> bool:
        """Take runs from the source; return whether one waits for a start. Runs of other supervisors are followed."""
        assert self.settings.source is not None
        try:
            found = self.settings.source.take(self)
        except AssayError as error:
            self.problem = InfrastructureError(error.message, error.hint)
            return False
        self.entries += found
        for entry in found:
            self._reconcile(entry)
        return bool(self.queue)

    def _hand_over(self, entry: Entry, held: HeldSlot) -> None:
        if self.settings.keeps_slots and entry.has_slot:
            self._kept[entry.dir] = held
        else:
            held.let_go()

    def _may_start(self) -> bool:
        """Whether the machine lease permits a start. If it does not, the caller gives back the slot that it holds."""
        lease = self.settings.lease
        if lease is None or lease.try_enter():
            self._leased_since = None
            return True
        if self._leased_since is None:
            self._leased_since = time.monotonic()
        self._waiting_since = None
        return False

    @property
    def leased_s(self) -> float:
        """Return how long a start has waited for the machine lease."""
        return 0.0 if self._leased_since is None else time.monotonic() - self._leased_since

    @property
    def waited_s(self) -> float:
        """Return how long all runs of this supervisor have waited for a slot that other programs hold."""
        return 0.0 if self._waiting_since is None else time.monotonic() - self._waiting_since

    def _count_wait(self) -> None:
        lease, most_s = self.settings.lease, self.settings.max_wait_s
        if self._leased_since is not None:
            if lease is not None and most_s is not None and not self.running and self.leased_s >= most_s:
                text = f"nothing was started within {most_s:g} s: {describe_lease(lease)}"
                hint = "end that process, or set ASSAY_MAX_WAIT=4h to wait longer"
                self.problem = InfrastructureError(text, hint)
            return
        if self.running or not (self.queue or self.count_left()) or self.pool is None:
            self._waiting_since = None
            return
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        limit_s = self.queue[0][2].spec.timeout_s if self.settings.counts_wait and self.queue else None
        if limit_s is not None and self.waited_s >= limit_s:
            text = f"no slot came free within the time limit of {limit_s:g} s: {describe_holders(self.pool)}"
            hint = "end what holds it, choose another slot (--slots), or allow more time (--timeout)"
            self.problem = InfrastructureError(text, hint)

    def _try(self, step: Callable[..., None], entry: Entry, *more: HeldSlot | None) -> None:
        try:
            step(entry, *more)
        except InfrastructureError as error:
            self.problem = error
        except FormatError as error:
            self._drop(entry, State.DAMAGED, error.message)
        except OSError as error:  # for example a full disk, or a root that became read-only
            text = f"cannot start {entry.spec.name} in {entry.dir}: {explain_refusal(error)}"
            self.problem = InfrastructureError(text)

    def _refill(self, ended: Sequence[JobHandle]) -> None:
        """Start the next runs on slots that have just come free, before the ended runs are concluded, which is slow."""
        if not ended or self.pool is None or not self.queue:
            return
        for handle in ended:
            if (entry := self._entry_of(handle)) is not None and self._has_freed_slot(entry):
                entry.has_slot = False
                self._report_commands(entry)  # the end of the run is reported before the start of the next
        self._fill_slots()

    def _has_freed_slot(self, entry: Entry) -> bool:
        """Whether an ended attempt no longer holds its slot: no process is left, or the study permits leftovers."""
        assert entry.handle is not None
        entry.left = self.executor.leftovers(entry.handle, entry.dir)
        done = os.path.join(entry.dir, layout.exit_marker_name(entry.commands[-1], entry.attempt, 0))
        is_free = not entry.left or (entry.spec.leave_running and os.path.exists(done))
        if is_free and self.pool is not None:
            self.pool.note_ended(entry.handle.tag, is_left=bool(entry.left))
        return is_free

    def _create_ahead(self) -> None:
        """Write the directories of the next runs while the slots are busy: runs without a lease are only queued. Runs
        of a source are not created ahead: the source would choose them before it has the results of running runs."""
        if self.problem or not self.running:
            return
        if self.settings.source is not None:
            self.settings.source.prepare()
        for _, _, entry in (*self.queue[:1], *sorted(self.queue[1:3])[:1]):  # the first two of the heap
            if not entry.is_here:
                self._try(self._create, entry)

    def _create(self, entry: Entry) -> None:
        self.settings.create(entry)
        entry.is_here = True

    def _start(self, entry: Entry, held: HeldSlot | None) -> None:
        if not entry.is_here:
            self._create(entry)
        if entry.record is None:
            entry.record = run_directory.load_record(entry.dir)
        if self._is_taken(entry):
            self._reconcile(entry)
            return
        if (received := load_received(entry.dir)) is not None:
            if received.how == "pull":
                self.settings.remake(entry)
            check_executable(entry.dir)
        self._choose_beginning(entry)
        if entry.attempt > 1:
            self.settings.rewrite(entry)
        request = self._build_request(entry, entry.record.uid, held)
        handle = self.executor.submit(request, lambda handle: self._claim(entry, handle, held))
        if handle is None:  # another supervisor has the lease
            self._reconcile(entry)
            return
        entry.begin(handle, has_slot=held is not None)
        self._put_running(entry, handle)
        self.observer.started(entry)
        self.settings.listen(Event("started", entry))
        if (name := next((each for each in entry.commands if each not in entry.skipped), None)) is not None:
            self._report(f"+{name}", Event("command_started", entry, name))

    def _choose_beginning(self, entry: Entry) -> None:
        """Let a failed or finished run that a user repeats start over; other attempts continue from a checkpoint."""
        if (resume := entry.spec.resume) is None:
            return
        earlier = run_directory.load_history(entry.dir).attempts[: entry.attempt - 1]
        ends = [attempt.outcome for attempt in earlier if attempt.outcome]
        kept = (State.LOST, State.STOPPED)
        is_asked = bool(ends) and ends[-1].attempt <= entry.policy.base and ends[-1].state not in kept
        found = list_checkpoints(entry.dir, resume.files)
        starts_over = not ends or entry.repeats or is_asked
        entry.begins = choose_beginning(resume.files, found, earlier, starts_over=starts_over)
        continued = takewhile(lambda end: end.state in kept, reversed(ends)) if entry.begins.checkpoint else ()
        entry.used_s = sum((end.ended_at or 0.0) - (end.started_at or 0.0) for end in continued)

    def _put_running(self, entry: Entry, handle: JobHandle) -> None:
        self.running[entry.dir] = entry
        if handle.tag:
            self._tagged_entries[handle.tag] = entry

    def _is_taken(self, entry: Entry) -> bool:
        """Whether the attempt was begun by another supervisor or a job.sh started by hand, or ended by `assay stop`."""
        names = (layout.numbered_name(kind, entry.attempt) for kind in ("lease", "token", "stop"))
        return any(os.access(f"{entry.dir}/{name}", os.F_OK) for name in names)

    def _claim(self, entry: Entry, handle: JobHandle, held: HeldSlot | None) -> bool:
        """Claim the attempt. The job's process still waits, so that the code can be changed before it is executed."""
        if self._is_taken(entry) or not run_directory.publish_lease(entry.dir, handle):
            return False
        if os.access(f"{entry.dir}/{layout.numbered_name('stop', entry.attempt)}", os.F_OK):
            return False
        if held is not None and not self.settings.keeps_slots:
            held.name_occupant(handle, entry.dir)
        self.settings.renew(entry)
        return True

    def _build_request(self, entry: Entry, uid: str, held: HeldSlot | None) -> JobRequest:
        env = dict(self.settings.env)
        slot = held.entry.label if held else None
        if held and held.entry.devices:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(held.entry.devices)
        if slot is not None:
            env[layout.ENV_SLOT] = slot
        if self.settings.lease is not None:
            env |= self.settings.lease.env
        used_s = entry.used_s + (self.waited_s if self.settings.counts_wait else 0.0)
        if used_s >= 1:
            env[layout.ENV_WAITED] = str(int(used_s))
        env[layout.ENV_TIME] = _choose_time(entry)
        env[layout.ENV_DONE] = "".join(f":{name}:" for name in sorted(entry.skipped))
        shared = self.settings.lease.shared_fds if self.settings.lease is not None else ()
        return JobRequest(
            dir=entry.dir,
            name=f"{os.path.basename(os.path.dirname(entry.dir))}_{entry.spec.name}",
            attempt=entry.attempt,
            env=env,
            slot=slot,
            # locks that the job holds as long as it lives
            slot_fds=shared if held is None or self.settings.keeps_slots else (*held.fds, *shared),
            tag=f"{uid}.{entry.attempt}",
            command_line=" && ".join(command.text for command in entry.spec.commands),
            farm_resources=entry.spec.farm_resources,
            label=entry.spec.name if entry.spec.tag else "",
            begins=entry.begins,
        )

    # ------------------------------------------------------------ from the files to the next step

    def _reconcile(self, entry: Entry, *, is_new: bool = False) -> None:
        """Decide from the files what a run needs, and do it. `is_new`: the run had no directory when the loop began."""
        if not entry.is_here and not is_new:  # an upload may have the name of a run of this study
            entry.is_here = os.path.exists(os.path.join(entry.dir, layout.RUN_FILE)) and not is_foreign(entry.dir)
        try:
            history, decision = self._decide(entry)
            if decision.action in (Action.CLOSE, Action.CLEAN):
                if decision.state is State.LOST and decision.handle is not None and not entry.finished_here:
                    entry.attempt = decision.attempt
                    self._note_cause(entry, decision.handle)  # the run ended without a supervisor
                # a file written between the read and the end of the job was missed: only now the files are complete
                history, decision = self._decide(entry)
        except FileNotFoundError:
            self._give_up(entry)
            return
        except OSError as error:
            self._drop(entry, State.DAMAGED, f"{entry.dir} cannot be read: {error.strerror}")
            return
        self._accept_conclusion(entry, history)
        for fenced in (each.handle for each in history.attempts if each.is_fenced):
            if fenced is not None and fenced.executor == self.executor.name:
                self.executor.end_fenced(fenced, entry.dir)
        entry.state, entry.attempt, entry.handle = decision.state, decision.attempt, decision.handle
        entry.outcome = decision.outcome
        self._apply(entry, decision)
        is_watched = decision.action is Action.FOLLOW and entry.is_mine and entry.dir in self.running
        stop = history.last.stop if history.last else None
        if is_watched and stop and stop.kind == "rule" and (entry.dir, entry.attempt) not in self._was_ended:
            self._begin_ending([entry])  # the supervisor that decided to end the run has died

    def _decide(self, entry: Entry) -> tuple[run_directory.History, Decision]:
        history = run_directory.load_history(entry.dir) if entry.is_here else run_directory.History()
        entry.done_before = history.finished_commands() or NOTHING
        if entry.policy.interrupted is None:
            policy = entry.policy.begin(history)
            entry.policy = self._shared.setdefault(policy, policy)
        liveness, newer = partial(self._load_liveness, run_dir=entry.dir), partial(find_newer, entry.dir)
        return history, decide(history, entry.commands, liveness, entry.policy, newer)

    def _accept_conclusion(self, entry: Entry, history: run_directory.History) -> None:
        """Accept the outcome that another supervisor wrote for an attempt that is watched here."""
        if entry.dir not in self.running:
            return
        outcome = next((a.outcome for a in history.attempts if a.number == entry.attempt), None)
        if outcome is not None:
            entry.state, entry.outcome = outcome.state, outcome
            self._finish(entry)

    def _give_up(self, entry: Entry) -> None:
        """End the processes of a run whose directory was removed, for which no outcome can be written."""
        self.running.pop(entry.dir, None)
        if entry.handle is not None and not entry.handle.is_elsewhere:
            with suppress(AssayError):
                self.executor.cancel([(entry.handle, entry.dir)], self.settings.grace_s)
        entry.is_here = False
        self._drop(entry, State.LOST, "its directory was removed")

    def _drop(self, entry: Entry, state: State, reason: str) -> None:
        """Give up a run whose files cannot be used, without stopping other runs."""
        self.running.pop(entry.dir, None)
        entry.state, entry.has_slot, entry.outcome = state, False, Outcome(state, entry.attempt, {}, reason)
        self.settings.listen(Event("ended", entry))

    def _apply(self, entry: Entry, decision: Decision) -> None:
        if decision.action is Action.START:
            self.running.pop(entry.dir, None)
            if entry.attempt > 1:
                self.settings.listen(Event("retried", entry))
            self._order += 1
            heapq.heappush(self.queue, (-entry.spec.priority, self._order, entry))
        elif decision.action is Action.FOLLOW:
            self._follow(entry)
        elif decision.action in (Action.CLOSE, Action.CLEAN):
            if decision.action is Action.CLEAN:
                self._clean(entry, self._tagged(entry, decision.handle))
            self._close(entry, decision)

    def _follow(self, entry: Entry) -> None:
        assert entry.handle is not None
        was_mine = entry.is_mine and entry.dir in self.running
        is_ours = entry.handle.executor == self.executor.name
        entry.is_mine = is_ours and find_owner(entry.handle) is None
        if entry.state is State.LOST:
            self.running.pop(entry.dir, None)
            return
        if entry.dir not in self.running:
            entry.begun_at = run_directory.find_begin(entry.dir, entry.handle)
            self._put_running(entry, entry.handle)
            self.settings.listen(Event("adopted", entry))
        if entry.is_mine and not was_mine:  # the run was found without an owner, or its owner has died
            self.observer.started(entry)
        if is_ours:
            self.executor.watch(entry.handle, entry.dir)

    def _load_liveness(self, handle: JobHandle, run_dir: str) -> Liveness:
        """Return whether a job is alive, according to the job's executor, which may be the farm of an earlier call."""
        is_ours = handle.executor == self.executor.name
        return self.executor.liveness(handle, run_dir) if is_ours else load_liveness(handle, run_dir)

    def look_at_others(self) -> None:
        lost = [each for each in self.entries if each.state is State.LOST and each.outcome is None]  # on another host
        for entry in [*lost, *(each for each in self.running.values() if not each.is_mine)]:
            self._reconcile(entry)

    # ------------------------------------------------------------ ending

    def _take_ended(self, handles: Sequence[JobHandle]) -> None:
        for handle in handles:
            if (entry := self._entry_of(handle)) is None:
                continue
            entry.finished_here, entry.ended_at = True, entry.ended_at or self.executor.find_end(handle) or time.time()
            if entry.dir in self._ending:
                if not self._ending[entry.dir]():
                    continue  # job.sh has ended, but a process that it started has not
                del self._ending[entry.dir]
            # submit no more jobs after a farm has refused one; a later call continues the runs
            if (refusal := self.executor.refusal(handle, entry.dir)) is not None:
                self.problem = self.problem or InfrastructureError(refusal)
                run_directory.write_stop(entry.dir, entry.attempt, self._build_stop(refusal, "interrupt"))
            else:
                self._note_cause(entry, handle)
            if self._begin_leftovers(entry, handle):
                continue
            if len(entry.spec.commands) == 1 and self._close_if_done(entry):
                continue
            self._reconcile(entry)

    def _begin_leftovers(self, entry: Entry, handle: JobHandle) -> bool:
        """Begin to end the processes that an ended attempt left; return True if it is concluded when they end."""
        if (entry.dir, entry.attempt) in self._was_ended or entry.spec.leave_running:
            return False
        if entry.left is None:
            entry.left = self.executor.leftovers(handle, entry.dir)
        if not entry.left:
            return False
        self._begin_ending([entry])
        return entry.dir in self._ending or entry.dir not in self.running

    def _note_cause(self, entry: Entry, handle: JobHandle) -> None:
        if handle.is_elsewhere or (explained := self.executor.explain_end(handle, entry.dir)) is None:
            return
        kind, why = explained
        if kind == "lost":
            entry.loss = "death", f"{DEATH}; {why}"
        elif kind == "taken back":
            entry.loss = "taken back", f"{run_directory.TAKEN_BACK}; {why}"
        elif kind != "interrupt" or entry.finished_here:  # a refusal before this call is ignored: the job is retried
            run_directory.write_stop(entry.dir, entry.attempt, self._build_stop(why, kind))

    def _entry_of(self, handle: JobHandle) -> Entry | None:
        entry = self._tagged_entries.get(handle.tag)
        if entry is not None and entry.handle == handle and entry.dir in self.running:
            return entry
        return next((entry for entry in self.running.values() if entry.handle == handle), None)

    def _close_if_done(self, entry: Entry) -> bool:
        """Conclude a run whose only command ended with 0, which is common, with one read of the directory."""
        name = entry.commands[0]
        begin = layout.exit_marker_name(name, entry.attempt, 0)[:-1]
        try:
            names = os.listdir(entry.dir)
            if [each for each in names if each.startswith(begin)] != [f"{begin}0"]:
                return False
            if layout.numbered_name("warned", entry.attempt) in names:
                return False
        except FileNotFoundError:
            return False
        entry.state = State.DONE
        outcome = Outcome(State.DONE, entry.attempt, {name: 0})
        self._close(entry, Decision(Action.CLOSE, State.DONE, entry.attempt, outcome))
        return True

    def _tagged(self, entry: Entry, handle: JobHandle | None) -> JobHandle:
        """Return the handle with the tag that all processes of the attempt have, even if it was started by hand."""
        if entry.record is None:
            entry.record = run_directory.try_record(entry.dir)
        tag = f"{entry.record.uid}.{entry.attempt}" if entry.record else ""
        if handle is None:
            here, boot = processes.host_name(), processes.boot_id()
            return JobHandle("local", "0", here, 0, 0, boot, None, entry.attempt, 0.0, tag=tag)
        return handle if handle.tag else replace(handle, tag=tag)

    def _clean(self, entry: Entry, handle: JobHandle) -> None:
        """End the processes that a dead, failed or stopped attempt left."""
        if self._load_liveness(handle, entry.dir) is not Liveness.GONE:
            return
        if entry.left is None:
            entry.left = self.executor.leftovers(handle, entry.dir)
        if entry.left or entry.state is not State.FAILED:  # a killed attempt may still be forking
            self.executor.cancel([(handle, entry.dir)], self.settings.grace_s)

    def _end_leftovers(self, entry: Entry) -> str:
        """End the processes that a finished run left, unless its study permits them; return the outcome's reason."""
        if entry.handle is None or entry.handle.is_elsewhere or entry.left == ():
            return ""
        if self._load_liveness(entry.handle, entry.dir) is not Liveness.GONE:
            return ""
        handle = self._tagged(entry, entry.handle)
        left = self.executor.leftovers(handle, entry.dir) if entry.left is None else entry.left
        if not left:
            return ""
        if entry.spec.leave_running:
            return _describe_left(left, "as leave_running permits")
        with suppress(AssayError):
            self.executor.cancel([(handle, entry.dir)], self.settings.grace_s)
        return _describe_left(left, "which Assay ended")

    def _close(self, entry: Entry, decision: Decision) -> None:
        assert decision.outcome is not None
        usage = self._usage(entry)  # measured while the processes that the run left are alive, to include them
        cause, reason = decision.outcome.cause, decision.outcome.reason
        if decision.outcome.state is State.DONE:
            reason = self._end_leftovers(entry)
        elif cause == "death" and entry.loss:
            cause, reason = entry.loss
        elif decision.outcome.state is State.FAILED and entry.left:
            reason = f"{reason}; it {_describe_left(entry.left, 'which Assay ended')}"
        started_at, ended_at = None, _find_end(entry, decision.outcome)
        if entry.handle is not None:
            started_at, ended_at = run_directory.find_span(entry.dir, entry.handle, decision.outcome.codes, ended_at)
        outcome = replace(
            decision.outcome,
            reason=reason,
            cause=cause,
            started_at=started_at,
            ended_at=ended_at,
            peak_rss_bytes=(usage.peak_rss_bytes or None) if usage else None,
            cpu_s=usage.cpu_s if usage else None,
        )
        is_written = self._write_outcome(entry, outcome)
        self._finish(entry)
        if is_written and (entry.state is not State.DONE or entry.attempt <= entry.policy.base):
            self._reconcile(entry)  # another attempt may begin, with --force also of a run that was done before

    def _finish(self, entry: Entry) -> None:
        """Release the slot and the records of an attempt that this or another supervisor has concluded."""
        entry.has_slot, entry.left, entry.loss = False, None, None
        if self.running.pop(entry.dir, None) is not None and entry.is_mine and self.settings.budget is not None:
            self.settings.budget.add(entry)
        self._ending.pop(entry.dir, None)
        if entry.dir in self._kept:
            self._kept.pop(entry.dir).let_go()
        if entry.handle is not None:
            self._tagged_entries.pop(entry.handle.tag, None)
            if self.pool is not None:
                self.pool.note_ended(entry.handle.tag)
        self._report_commands(entry)
        self.observer.ended(entry)
        self.settings.listen(Event("ended", entry))

    def _write_outcome(self, entry: Entry, outcome: Outcome) -> bool:
        """Write the outcome, or load an outcome that another supervisor wrote first. Return False if writing fails."""
        entry.outcome = outcome
        try:
            if not run_directory.write_outcome(entry.dir, outcome):
                entry.outcome = run_directory.load_outcome(entry.dir, outcome.attempt) or outcome
        except OSError as error:  # the markers are there: a later command concludes the run from them
            self.problem = InfrastructureError(f"cannot write into {entry.dir}: {error.strerror}")
            return False
        entry.state = entry.outcome.state
        return True

    def _usage(self, entry: Entry) -> Usage | None:
        """Return the larger values of the kernel's usage, exact for one process, and the observer's, of the tree."""
        exact = self.executor.usage(entry.handle) if entry.handle else None
        seen = self.observer.usage(entry)
        if exact is None or seen is None:
            return exact or seen
        return Usage(max(exact.cpu_s, seen.cpu_s), max(exact.peak_rss_bytes, seen.peak_rss_bytes))

    def stop(self, entries: Iterable[Entry], why: str, kind: StopKind = "user") -> None:
        """End runs and everything they started. The reason is written before the first signal is sent."""
        chosen = [entry for entry in entries if entry.is_mine and entry.handle]
        self._ending.clear()
        for entry in chosen:
            self._write_stop(entry, self._build_stop(why, kind))
        jobs = [(self._tagged(entry, entry.handle), entry.dir) for entry in chosen]
        try:
            self.executor.cancel(jobs, self.settings.grace_s)
        except AssayError as error:
            self.problem = InfrastructureError(error.message, error.hint)
        self._take_ended(self.executor.wait(0))
        for entry in [each for each in chosen if each.dir in self.running]:
            self._reconcile(entry)

    def _build_stop(self, why: str, kind: StopKind, cause: Cause = "") -> Stop:
        return Stop(f"pid {os.getpid()} on {processes.host_name()}", why, kind, time.time(), cause)

    def _write_stop(self, entry: Entry, stop: Stop) -> bool:
        """Write the stop file; return False on failure. A run without this file counts as dead and is continued."""
        try:
            run_directory.write_stop(entry.dir, entry.attempt, stop)
        except OSError as error:
            self.problem = InfrastructureError(f"cannot write into {entry.dir}: {error.strerror}")
            return False
        return True

    # ------------------------------------------------------------ events of commands

    def _report(self, mark: str, event: Event) -> None:
        """Report an event of a command once; `mark` identifies the event in `Entry.reported`."""
        if mark not in event.entry.reported:
            reported = event.entry.reported | {mark}
            event.entry.reported = self._shared.setdefault(reported, reported)
            self.settings.listen(event)

    def _report_commands(self, entry: Entry) -> None:
        """Report the commands of a run that began or ended since the last call, in their order."""
        codes = self._load_codes(entry)
        for name in entry.commands:
            if name in entry.skipped and name not in codes:
                continue
            self._report(f"+{name}", Event("command_started", entry, name))
            if name not in codes:
                return
            self._report(f"-{name}", Event("command_ended", entry, name, codes[name]))
            if codes[name] != 0:
                return

    def _load_codes(self, entry: Entry) -> Mapping[str, int]:
        if entry.outcome is not None:
            return entry.outcome.codes
        with suppress(FileNotFoundError):
            markers = (layout.parse_exit_marker(name) for name in os.listdir(entry.dir))
            return {marker[0]: marker[2] for marker in markers if marker and marker[1] == entry.attempt}
        return {}


def _choose_time(entry: Entry) -> str:
    """Return the time for the names of logs: now, or a later second if an earlier attempt has a log with this time."""
    moment, template = datetime.now(), entry.spec.log_name  # noqa: DTZ005 a log name in local time
    names = list_names(entry.dir) if "{time}" in template else frozenset()
    while True:
        stamp = moment.strftime("%Y%m%d.%H%M%S")
        if not any(layout.log_name(template, c.name, entry.attempt, stamp) in names for c in entry.spec.commands):
            return stamp
        moment += timedelta(seconds=1)


def _describe_left(left: Sequence[str], how: str) -> str:
    count = "1 process" if len(left) == 1 else f"{len(left)} processes"
    return f"left {count} running, {how}: {', '.join(left[:_MOST_LEFT])}{', …' if len(left) > _MOST_LEFT else ''}"


def _find_end(entry: Entry, outcome: Outcome) -> float:
    """Return when an attempt ended: as this supervisor saw it, else by its outcome, else by the last write to a log."""
    if entry.finished_here:
        return entry.ended_at or time.time()
    if outcome.ended_at:
        return outcome.ended_at
    with suppress(OSError):
        logs = (each for each in os.scandir(entry.dir) if ".log" in each.name and each.is_file())
        return max((each.stat().st_mtime for each in logs), default=time.time())
    return time.time()
