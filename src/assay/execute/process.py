"""The processes of an attempt: their environment, how they are found, and how all of them are ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence

from assay.system import processes
from assay.system.fast_dataclasses import dataclass
from assay.values import layout
from assay.values.run import JobHandle, JobRequest

_NUMBERED_LOG = r"^[\w-]+(?:\.(\d+))?(?:\.other)?\.log$"
_POLL_S = 0.02
_ORPHAN_LOOKS = 50  # limit of repeated checks; a daemon forks twice
_KILL_ROUNDS = 250
_FIRST_SLOT_FD = 20
# variables that a run started inside a run must not inherit from it
OUTER = (
    layout.ENV_RUN_DIR,
    layout.ENV_DONE,
    layout.ENV_TIME,
    layout.ENV_SLOT,
    layout.ENV_GATE,
    layout.ENV_WAITED,
    layout.ENV_LAUNCH,
)


def place_slots(fds: Sequence[int]) -> list[tuple[int, int]]:
    """Return the descriptors of a job's locks: higher ones than a shell script is likely to use by itself."""
    return [(fd, _FIRST_SLOT_FD + i) for i, fd in enumerate(fds)]


def build_handle(
    request: JobRequest, executor: str, pid: int = 0, *, farm_root: str = "", native_id: str = ""
) -> JobHandle:
    """Build the handle by which this attempt is found again; no pid: the attempt is not a process of this host."""
    return JobHandle(
        executor=executor,
        native_id=str(pid) if pid else native_id,
        host=processes.host_name(),
        pid=pid,
        start=(processes.process_start(pid) or 0) if pid else 0,
        boot=processes.boot_id(),
        slot=request.slot,
        attempt=request.attempt,
        started_at=time.time(),
        supervisor_pid=os.getpid(),
        supervisor_start=processes.own_start(),
        tag=request.tag,
        skips=request.env.get(layout.ENV_DONE, ""),
        farm_root=farm_root,
        begins=request.begins,
    )


def build_environment(request: JobRequest) -> dict[str, str]:
    """Return the supervisor's environment with the request's variables, for a job or a submit command."""
    return {**base_environment(), **request_environment(request)}


def base_environment() -> dict[str, str]:
    """Return the variables that every job inherits from the supervisor."""
    return {name: value for name, value in os.environ.items() if name not in OUTER}


def request_environment(request: JobRequest) -> dict[str, str]:
    """Return the variables of this attempt."""
    own = {layout.ENV_ATTEMPT: request.tag, layout.ENV_ATTEMPT_NUMBER: str(request.attempt)}
    return {**request.env, **own}


def encode_environment(env: Mapping[str, str]) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in env.items()}


_known_peak_kib = 0


def find_peak_bytes(ru_maxrss_kib: int) -> int:
    """Return the peak of the largest process of an ended child; 0 if the kernel's number may be this process's.
    exec keeps the peak of the image that it replaces, and between spawn and exec that image was this process."""
    global _known_peak_kib  # noqa: PLW0603 a peak only grows
    if ru_maxrss_kib > _known_peak_kib:
        _known_peak_kib = processes.load_size("self", "VmHWM") // 1024
    return ru_maxrss_kib * 1024 if ru_maxrss_kib > _known_peak_kib else 0


@dataclass(frozen=True, slots=True)
class AttemptProcesses:
    """The data by which every process of an attempt is found."""

    leader: int  # pid of job.sh, which opened the session; 0: only the tag is known
    start: int
    tag: str
    dir: str = ""  # the run directory; if set, a process that writes the attempt's log counts, too
    seen: frozenset[tuple[int, int]] = frozenset()  # pid and start of members that were found before

    @property
    def number(self) -> str:
        return self.tag.rpartition(".")[2]


def find_members(attempts: Sequence[AttemptProcesses]) -> set[int]:
    """Return live processes of these attempts: found by session, by tag outside the session, and by the run's log."""
    # session 0 is the kernel's; in a container all processes from outside have session 0
    sessions = {attempt.leader for attempt in attempts if attempt.leader > 0 and not _is_reused(attempt)}
    needles = {f"{layout.ENV_ATTEMPT}={attempt.tag}".encode() for attempt in attempts if attempt.tag}
    folders = {(os.path.realpath(attempt.dir), attempt.number) for attempt in attempts if attempt.dir}
    own = os.getpid()
    found = {pid for pid in processes.list_pids() if pid != own and _belongs(pid, sessions, needles, folders)}
    # a process that was a member may have left the session since
    return found | {pid for attempt in attempts for pid, start in attempt.seen if processes.process_start(pid) == start}


def _is_reused(attempt: AttemptProcesses) -> bool:
    """Return whether another process has the leader's pid now; then the session has long been empty."""
    stat = processes.load_stat(attempt.leader)
    return stat is not None and stat.start != attempt.start


def _belongs(pid: int, sessions: set[int], needles: set[bytes], folders: set[tuple[str, str]]) -> bool:
    stat = processes.load_stat(pid)
    if stat is None or stat.is_zombie:
        return False
    return stat.session in sessions or _has_variable(pid, needles) or _writes_log(pid, stat.session, folders)


def _writes_log(pid: int, session: int, folders: set[tuple[str, str]]) -> bool:
    """Return whether the process may write to the log of one of these attempts, by its output or another descriptor.
    Attempts of a run share a directory: a process or session with a tag belongs to the attempt that the tag names."""
    if not folders:
        return False
    if not any(_is_output(pid, number, path, folders) for number, path in processes.find_open_files(pid)):
        return False
    return not any(processes.load_variable(each, layout.ENV_ATTEMPT) for each in {pid, session})


def _is_output(pid: int, number: str, path: str, folders: set[tuple[str, str]]) -> bool:
    folder, _, name = path.rpartition("/")
    if not (number in ("1", "2") or (".log" in name and name[0] != ".")):
        return False
    known = re.search(_NUMBERED_LOG, name)  # a user's template may have no number in the name
    if not any(folder == each and (known is None or (known[1] or "1") == attempt) for each, attempt in folders):
        return False
    return processes.is_writing(pid, number)


class Orphans:
    """Processes whose parent has exited and that became children of this process, as it requested from the kernel. An
    ended job can leave only such processes: one file of /proc shows whether any exist."""

    def __init__(self) -> None:
        self.is_active = processes.can_list_children() and processes.adopt_orphans()
        self._before = self._load() if self.is_active else set()

    def find(self, known: Iterable[int]) -> set[int]:
        """Return the orphans that are alive, and reap ended ones. `known`: the pids of the jobs themselves."""
        others = self._before.union(known)
        before: set[int] = set()
        living: set[int] = set()
        for _ in range(_ORPHAN_LOOKS):  # a process that ends during a check may have left a child to this one
            unknown = self._load() - others
            if unknown == before:
                break
            living = {pid for pid in unknown if self._is_orphan(pid)}
            if living == unknown:
                break
            before = unknown
        return living

    def _load(self) -> set[int]:
        return set(processes.load_children(os.getpid()))

    def _is_orphan(self, pid: int) -> bool:
        """Return whether a job has left a process. Processes in the current session were started by other code."""
        stat = processes.load_stat(pid)
        if stat is None or stat.session == os.getsid(0):
            return False
        if not stat.is_zombie:
            return True
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        return False


def is_of(pid: int, attempts: Sequence[AttemptProcesses]) -> bool:
    """Whether a process belongs to one of these attempts by its session or its tag."""
    stat = processes.load_stat(pid)
    if stat is not None and stat.session in {attempt.leader for attempt in attempts}:
        return True
    return _has_variable(pid, {f"{layout.ENV_ATTEMPT}={attempt.tag}".encode() for attempt in attempts if attempt.tag})


def _has_variable(pid: int, needles: set[bytes]) -> bool:
    return bool(needles) and not needles.isdisjoint(processes.load_environ(pid))


class Cancellation:
    """Sends TERM to all processes of these attempts, and KILL to those that outlive the grace.

    The processes are found by session and by tag: `timeout` and launchers such as torchrun open sessions of their own.
    """

    def __init__(self, attempts: Sequence[AttemptProcesses], grace_s: float) -> None:
        self._attempts = attempts
        self._signalled: set[int] = set()
        self._deadline = time.monotonic() + grace_s
        self._kills = 0
        self.left: set[int] = set()  # the processes that the last check found

    def look(self) -> bool:
        """Signal the processes that exist. Return True if none is left, or if those left cannot be killed."""
        # a second search if the first finds nothing, since a process that forks and exits can slip through one
        self.left = find_members(self._attempts) or find_members(self._attempts) if self._attempts else set()
        if not self.left or self._kills >= _KILL_ROUNDS:
            return True
        if self._signalled and time.monotonic() >= self._deadline:
            processes.signal_all(self.left, signal.SIGKILL)
            self._kills += 1
        else:  # a process forked since the last check has not been signalled yet
            leaders = {attempt.leader for attempt in self._attempts}
            # job.sh is signalled before its command, which must not count as finished if it answers TERM with exit 0
            leaders_first = sorted(self.left - self._signalled, key=lambda pid: (pid not in leaders, pid))
            processes.signal_all(leaders_first, signal.SIGTERM)
            self._signalled |= self.left
        return False


def end_attempts(attempts: Sequence[AttemptProcesses], grace_s: float) -> bool:
    """End all processes of these attempts, and wait for that. Return True if none is left."""
    ending = Cancellation(attempts, grace_s)
    while not ending.look():
        time.sleep(_POLL_S)
    return not ending.left
