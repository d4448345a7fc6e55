"""Slots: the right to use a GPU, some GPUs or a CPU share, held as kernel file locks.

A slot is a file in a directory shared by all supervisors of this user on this host. A process that runs a job opens the
file, locks it (flock), writes into it which attempt gets it, and hands the descriptor to the job; the supervisor's own
copy is closed. The lock is then held as long as the job runs: a crash leaves no lock to be adopted, and a frozen
supervisor does not block others.

The lock alone is not enough. A process may close the descriptor and go on, and a process that left its attempt (its
session, its tag and its log) may keep the lock for ever. A slot is therefore taken as long as the attempt that its file
names has a process: the free lock of such a slot is not given away, and a lock that only unrelated processes hold is
replaced by a new file. To take a lock, a process locks the directory shared, until it has removed the old attempt's
name from the file; to replace a file, a process locks the directory exclusively and checks again, so that it never
replaces a file that was just locked.

A supervisor that found no free slot writes `want.<priority>.<pid>`, a file that it keeps locked and that lists the
locks it could use. Supervisors of lower priority do not take these until the waiting one has one, is gone or frozen.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from assay.errors import InfrastructureError
from assay.execute import process
from assay.system import processes
from assay.system.fast_dataclasses import dataclass
from assay.system.files import parse_json, read_text
from assay.system.locks import is_named, try_lock, try_lock_file, unlock
from assay.values import layout
from assay.values.run import JobHandle
from assay.values.units import CPU

Wait = Literal["slot", "device"]  # all slots are taken by other runs; or one is free, but its device is not

_WANT_S = 10.0
_LOOK_AGAIN_S = 0.5
_MOST_SWEPT = 1000
_LINE_BYTES = 8192  # a path has at most 4096


def _devices(label: str) -> tuple[str, ...]:
    return tuple(device.strip() for device in label.split(","))


@dataclass(frozen=True, slots=True)
class SlotEntry:
    """One slot for a job: the devices that the job gets, and the lock files that represent the slot."""

    label: str  # "0", "1,2" or "cpu"
    locks: tuple[str, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        return () if self.label == CPU else _devices(self.label)


@dataclass(frozen=True, slots=True)
class HeldSlot:
    entry: SlotEntry
    fds: tuple[int, ...]

    def name_occupant(self, handle: JobHandle, run_dir: str) -> None:
        """Write which job has the slot before the job begins: its processes inherit the lock."""
        fields = (run_dir, handle.attempt, handle.tag, handle.pid, handle.start, handle.boot, handle.started_at)
        line = json.dumps(fields).encode() + b"\n"
        for fd in self.fds:
            os.pwrite(fd, line, 0)

    def let_go(self) -> None:
        """Close this process's descriptors of the locks; a job that inherited the locks keeps them."""
        for fd in self.fds:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class Occupant:
    """The attempt that a slot's file names."""

    dir: str
    attempt: int
    tag: str
    pid: int  # process id of job.sh
    start: int
    boot: str
    since: float

    @property
    def is_job_alive(self) -> bool:
        return processes.is_alive(self.pid, self.start, self.boot)

    @property
    def is_concluded(self) -> bool:
        """Return whether the attempt is concluded: its left-over processes have been ended, or may stay."""
        outcome = layout.numbered_path(self.dir, "outcome", self.attempt)
        return self.boot != processes.boot_id() or os.path.exists(outcome)

    def find_members(self) -> set[int]:
        return process.find_members([process.AttemptProcesses(self.pid, self.start, self.tag, self.dir)])


def build_entries(labels: Sequence[str]) -> tuple[SlotEntry, ...]:
    """Return the slots with the names of their locks. A GPU that is listed twice has two slots and numbered locks."""
    seen: Counter[str] = Counter()
    entries = []
    for label in labels:
        locks = []
        for device in _devices(label):
            locks.append(f"{device.replace('/', '_')}.{seen[device]}")
            seen[device] += 1
        entries.append(SlotEntry(label, tuple(locks)))
    return tuple(entries)


def slots_directory(name: str | None = None) -> str:
    """Return this user's slot directory on this host, not on a network file system; `name`: of separate slots."""
    chosen = os.path.join(slots_directory(), name) if name else os.environ.get("ASSAY_SLOTS_DIR")
    if not chosen:
        import tempfile

        chosen = os.path.join(tempfile.gettempdir(), f"assay-{os.getuid()}", "slots")
    try:
        os.makedirs(chosen, mode=0o700, exist_ok=True)
    except OSError as error:
        raise InfrastructureError(f"cannot make the slot directory {chosen}: {error.strerror}") from error
    if os.stat(chosen).st_uid != os.getuid():
        raise InfrastructureError(f"the slot directory {chosen} belongs to another user", "set ASSAY_SLOTS_DIR")
    return chosen


class SlotPool:
    """The slots that this supervisor may use."""

    def __init__(
        self,
        entries: Sequence[SlotEntry],
        directory: str | None = None,
        usable: Callable[[SlotEntry], bool] = lambda _entry: True,
        priority: int = 0,
    ) -> None:
        self.entries = tuple(entries)
        self._directory = directory or slots_directory()
        self.usable = usable
        self.wait: Wait | None = None  # why the last `acquire` failed
        self._priority = priority
        self._want_fd: int | None = None
        self._next = 0
        self._directory_fd: int | None = None  # descriptor of the directory, for its lock
        self._swept: dict[str, None] = {}  # tags of ended attempts that hold no slot any more; the newest last
        self._looked_at: dict[str, float] = {}  # path → when it was found to be taken

    def acquire(self, held_here: int = 0, *, wants_more: bool = False) -> HeldSlot | None:
        """Return the next free slot; None: all are taken, or a more important supervisor waits for them. `held_here`
        counts the slots of this pool that the caller's own jobs hold: if these are all, no slot is tried. With
        `wants_more` the request stays after a success, instead of being announced again a moment later."""
        count = len(self.entries)
        self.wait = None
        if held_here >= count:
            self._announce_want()
            return None
        wanted_elsewhere = self._load_wants()
        for offset in range(count):
            entry = self.entries[(self._next + offset) % count]
            held = self._try(entry) if wanted_elsewhere.isdisjoint(entry.locks) else None
            if held is not None:
                self._next = (self._next + offset + 1) % count
                self.wait = None
                if not wants_more:
                    self.withdraw_want()
                return held
        self.wait = self.wait or "slot"
        self._announce_want()
        return None

    def holders(self) -> list[SlotHolder]:
        """Return the occupants of the slots that this supervisor may use: the first process of each run."""
        paths = [os.path.join(self._directory, lock) for entry in self.entries for lock in entry.locks]
        occupants: dict[str, Occupant] = {}
        for path in paths:
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                if (occupant := _parse_occupant(file.fileno())) is not None:
                    occupants[path] = occupant
        found: dict[str, SlotHolder] = {}
        for one in occupants.values():
            pid = one.pid if one.is_job_alive else min(one.find_members(), default=0)
            if pid and one.dir not in found:
                found[one.dir] = SlotHolder(pid, one.dir, one.since, is_run=True)
        named = sorted(found.values(), key=lambda holder: (holder.since, holder.pid))
        return named or find_holders([path for path in paths if path not in occupants])

    def note_ended(self, tag: str, *, is_left: bool = False) -> None:
        """Record that an attempt has no process left, or (`is_left`) only some that may stay: no more checks."""
        if is_left:
            self._looked_at.clear()
        self._swept.pop(tag, None)
        self._swept[tag] = None
        if len(self._swept) > _MOST_SWEPT:
            del self._swept[next(iter(self._swept))]

    def close(self) -> None:
        self.withdraw_want()
        if self._directory_fd is not None:
            os.close(self._directory_fd)
            self._directory_fd = None

    def _try(self, entry: SlotEntry) -> HeldSlot | None:
        fds: list[int] = []
        for lock in entry.locks:
            path = os.path.join(self._directory, lock)
            fd = self._take(path)
            if fd is None and self._replace_abandoned(path):
                fd = self._take(path)
            if fd is None:
                break
            fds.append(fd)
        held = HeldSlot(entry, tuple(fds))
        if len(fds) == len(entry.locks):
            if self.usable(entry):
                return held
            self.wait = "device"
        held.let_go()
        return None

    def _take(self, path: str) -> int | None:
        """Lock a slot, unless its lock is held, or a process of the attempt that its file names is alive."""
        with self._directory_lock(shared=True) as is_ours:
            fd = _lock(path) if is_ours else None
            if fd is None:
                return None
            if (occupant := _parse_occupant(fd)) is not None and self._is_occupied(occupant):
                os.close(fd)
                return None
            os.pwrite(fd, b"-", 0)  # the file names no attempt until the next one is known
            return fd

    def _is_occupied(self, occupant: Occupant) -> bool:
        if occupant.tag in self._swept:
            return False
        return occupant.is_job_alive or (not occupant.is_concluded and bool(occupant.find_members()))

    def _replace_abandoned(self, path: str) -> bool:
        """Remove a slot's file if only unrelated processes hold its lock. Return whether to try the slot again."""
        if time.monotonic() - self._looked_at.get(path, -_LOOK_AGAIN_S) < _LOOK_AGAIN_S:
            return False
        self._looked_at[path] = time.monotonic()
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            occupant = _parse_occupant(fd)
            if occupant is None or self._is_occupied(occupant):
                return False
            with self._directory_lock(shared=False) as is_ours:
                if not is_ours or not is_named(fd, path) or _parse_occupant(fd) != occupant:
                    return False
                os.unlink(path)
                return True
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _directory_lock(self, *, shared: bool) -> Iterator[bool]:
        """Lock the directory without waiting, since the holder may be frozen. False: another process has the lock."""
        if self._directory_fd is None:
            self._directory_fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if not try_lock(self._directory_fd, shared=shared):
            yield False
            return
        try:
            yield True
        finally:
            unlock(self._directory_fd)

    def _load_wants(self) -> set[str]:
        """Return the locks that supervisors of higher priority wait for."""
        wanted: set[str] = set()
        for name in os.listdir(self._directory):
            if not name.startswith("want.") or int(name.split(".")[1]) <= self._priority:
                continue
            path = os.path.join(self._directory, name)
            fd = _lock(path)
            with contextlib.suppress(FileNotFoundError):
                if fd is not None:  # the supervisor is gone
                    os.unlink(path)
                # a waiting supervisor renews its file several times a second; a frozen one must not block the others; a
                # time in the future means that the clock was set back
                elif abs(time.time() - os.stat(path).st_mtime) < _WANT_S:
                    wanted.update(read_text(path).split("\n"))
            if fd is not None:
                os.close(fd)
        return wanted

    def _announce_want(self) -> None:
        if self._want_fd is not None:
            os.utime(self._want_fd)
        elif (fd := _lock(self._want_path())) is not None:
            os.write(fd, "\n".join(lock for entry in self.entries for lock in entry.locks).encode())
            self._want_fd = fd

    def withdraw_want(self) -> None:
        """Record that this process no longer waits for a slot."""
        if self._want_fd is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._want_path())
            os.close(self._want_fd)
            self._want_fd = None

    def _want_path(self) -> str:
        return os.path.join(self._directory, f"want.{self._priority}.{os.getpid()}")


def _parse_occupant(fd: int) -> Occupant | None:
    """Return the occupant that the lock file names; None before an occupant has written its line."""
    line = os.pread(fd, _LINE_BYTES, 0).partition(b"\n")[0]
    if not line.startswith(b"["):
        return None
    try:
        return Occupant(*parse_json(line))
    except (ValueError, TypeError):
        return None


def _lock(path: str) -> int | None:
    """Lock the file of this name exclusively; None if another process has it locked."""
    fd = try_lock_file(path)
    if fd is not None:
        os.utime(fd)  # programs that clean the temporary directory remove old files
    return fd


# ---------------------------------------------------------------- the occupants of slots
# A lock is held as long as a process has its file open: /proc lists all such processes.


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """A run, represented by its oldest process that has the lock file open."""

    pid: int
    name: str  # the run directory, or the command line of a process that is not of a run
    since: float  # seconds since the epoch
    is_run: bool = False


def find_holders(paths: Sequence[str]) -> list[SlotHolder]:
    """Return this user's other processes that have one of the files open, oldest first, one for each run."""
    wanted = {os.path.realpath(path) for path in paths}
    found: dict[str, SlotHolder] = {}
    for pid in processes.list_pids():
        if pid != os.getpid() and any(path in wanted for _, path in processes.find_open_files(pid)):
            since = processes.find_since(pid)
            run_dir = os.fsdecode(processes.load_variable(pid, layout.ENV_RUN_DIR))
            name = run_dir or processes.load_command_line(pid)
            if since is not None and name and (name not in found or since < found[name].since):
                found[name] = SlotHolder(pid, name, since, is_run=bool(run_dir))
    return sorted(found.values(), key=lambda holder: (holder.since, holder.pid))
