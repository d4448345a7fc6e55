"""Processes of this host: is it the same one, is it alive, and how to end all that belongs to an attempt."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from assay.values import layout
from assay.values.run import JobRequest

_SESSION_FIELD = 3  # of /proc/<pid>/stat, counted after the command name
_START_FIELD = 19
_TAG = f"{layout.ENV_ATTEMPT}=".encode()
_NUMBERED_LOG = re.compile(r"^[\w-]+(?:\.(\d+))?(?:\.other)?\.log$")
_POLL_S = 0.02
_EXEC_LOOKS = 5
_EXEC_S = 0.0005
_ORPHAN_LOOKS = 50  # a daemon forks twice
_KILL_ROUNDS = 250
_FIRST_SLOT_FD = 20
_FREE_FDS = 64  # sources are moved above every target, so that no dup2 overwrites what a later one needs
# Python ignores these; a job must find them as a shell would
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# what a run started from inside a run must not take over from it
_OUTER = (layout.ENV_RUN_DIR, layout.ENV_DONE, layout.ENV_TIME, layout.ENV_SLOT, layout.ENV_GATE, layout.ENV_WAITED)


Environ = Mapping[str, str] | Mapping[bytes, bytes]


@cache
def host_name() -> str:
    return os.uname().nodename


@cache
def boot_id() -> str:
    """Changes with every boot: a pid means nothing across it."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def _stat_fields(pid: int) -> list[bytes] | None:
    """The fields after the command name, which may itself hold spaces and brackets."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(fd, 4096)
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    return text[text.rindex(b")") + 2 :].split()


def process_start(pid: int) -> int | None:
    """The start time in clock ticks since boot; None when there is no such process, or only its zombie."""
    fields = _stat_fields(pid)
    if fields is None or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[_START_FIELD])


def is_alive(pid: int, start: int, boot: str) -> bool:
    """Same boot, same pid, same start time, not a zombie."""
    return boot == boot_id() and process_start(pid) == start


@cache
def own_start() -> int:
    return process_start(os.getpid()) or 0


os.register_at_fork(after_in_child=own_start.cache_clear)


# ---------------------------------------------------------------- starting


def spawn_session(argv: list[str], env: Environ, log: str, inherit: Sequence[tuple[int, int]] = ()) -> int:
    """Start a program (argv[0] is its path) in a new session with its output in `log`; the pid.

    `inherit` lists pairs of a descriptor here and its number there.
    """
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FREE_FDS) for fd, _ in inherit]
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    actions += [(os.POSIX_SPAWN_DUP2, fd, there) for fd, (_, there) in zip(moved, inherit, strict=True)]
    try:
        return os.posix_spawn(
            argv[0], argv, env, file_actions=actions, setsid=True, setsigdef=_DEFAULT_SIGNALS, setsigmask=()
        )
    finally:
        for fd in moved:
            os.close(fd)


def place_slots(fds: Sequence[int]) -> list[tuple[int, int]]:
    """Where a job finds the locks that it holds: above what a shell script is likely to use by itself."""
    return [(fd, _FIRST_SLOT_FD + i) for i, fd in enumerate(fds)]


def build_environment(request: JobRequest) -> dict[str, str]:
    """The supervisor's environment with the request's on top, as a job or a submit command gets it."""
    return {**base_environment(), **_request_environment(request)}


def base_environment() -> dict[str, str]:
    """What every job takes over from the supervisor."""
    return {name: value for name, value in os.environ.items() if name not in _OUTER}


def _request_environment(request: JobRequest) -> dict[str, str]:
    own = {layout.ENV_ATTEMPT: request.tag, layout.ENV_ATTEMPT_NUMBER: str(request.attempt)}
    return {**request.env, **own}


class EncodedEnvironment:
    """As `build_environment`, with the part that is the same for all jobs read and encoded once."""

    def __init__(self) -> None:
        self._base = _encode(base_environment())

    def build(self, request: JobRequest, more: Mapping[str, str]) -> dict[bytes, bytes]:
        return {**self._base, **_encode(_request_environment(request)), **_encode(more)}


def _encode(env: Mapping[str, str]) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in env.items()}


# ---------------------------------------------------------------- what a job used

_known_peak_kib = 0


def find_peak_bytes(ru_maxrss_kib: int) -> int:
    """The largest process of an ended child of ours; 0 where the kernel's figure may be our own.

    exec keeps the peak of the image that it replaces, and between spawn and exec that image was this process.
    """
    global _known_peak_kib  # noqa: PLW0603 a peak only grows
    if ru_maxrss_kib > _known_peak_kib:
        _known_peak_kib = _load_own_peak_kib()
    return ru_maxrss_kib * 1024 if ru_maxrss_kib > _known_peak_kib else 0


def _load_own_peak_kib() -> int:
    with open("/proc/self/status", "rb") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(b"VmHWM:")), 0)


# ---------------------------------------------------------------- finding and ending


def all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is needed to find every process of an attempt."""

    leader: int  # pid of job.sh, which opened the session; 0: known by its tag alone
    start: int
    tag: str
    dir: str = ""  # the run directory; where it is given, whoever has the attempt's log open as output counts, too
    seen: frozenset[tuple[int, int]] = frozenset()  # pid and start of members that were found before

    @property
    def number(self) -> str:
        return self.tag.rpartition(".")[2]


def find_members(attempts: Sequence[Attempt]) -> set[int]:
    """Live processes of these attempts: by session, by tag for those that moved to another one, by the run's log."""
    # session 0 is the kernel's own, and in a container everybody's who came from outside
    sessions = {attempt.leader for attempt in attempts if attempt.leader > 0 and not _is_stranger(attempt)}
    needles = {f"{layout.ENV_ATTEMPT}={attempt.tag}".encode() for attempt in attempts if attempt.tag}
    folders = {(os.path.realpath(attempt.dir), attempt.number) for attempt in attempts if attempt.dir}
    own = os.getpid()
    found = {pid for pid in all_pids() if pid != own and _belongs(pid, sessions, needles, folders)}
    # what was a member may have left the session since
    return found | {pid for attempt in attempts for pid, start in attempt.seen if process_start(pid) == start}


def _is_stranger(attempt: Attempt) -> bool:
    """Whether the leader's pid was given to somebody else; the session is then long empty."""
    fields = _stat_fields(attempt.leader)
    return fields is not None and int(fields[_START_FIELD]) != attempt.start


def _belongs(pid: int, sessions: set[int], needles: set[bytes], folders: set[tuple[str, str]]) -> bool:
    fields = _stat_fields(pid)
    if fields is None or fields[0] in (b"Z", b"X"):
        return False
    session = int(fields[_SESSION_FIELD])
    return session in sessions or _has_variable(pid, needles) or _writes_log(pid, session, folders)


def _writes_log(pid: int, session: int, folders: set[tuple[str, str]]) -> bool:
    """Whether its output, or another descriptor that it may write to, is the log of one of these attempts.

    Attempts of a run share a directory: what carries a tag, or whose session does, is of the attempt that this names.
    """
    try:
        numbers = os.listdir(f"/proc/{pid}/fd") if folders else ()
    except OSError:  # another user's, or gone
        return False
    if not any(_is_output(pid, number, folders) for number in numbers):
        return False
    return not any(_is_tagged(each) for each in {pid, session})


def _is_tagged(pid: int) -> bool:
    return any(variable.startswith(_TAG) for variable in _load_environ(pid).split(b"\0"))


def _is_output(pid: int, number: str, folders: set[tuple[str, str]]) -> bool:
    try:
        folder, _, name = os.readlink(f"/proc/{pid}/fd/{number}").rpartition("/")
        if not (number in ("1", "2") or (".log" in name and name[0] != ".")):
            return False
        known = _NUMBERED_LOG.search(name)  # a template of its own may put no number into the name
        if not any(folder == each and (known is None or (known[1] or "1") == attempt) for each, attempt in folders):
            return False
        with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as file:
            flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
    except (OSError, StopIteration):
        return False
    return flags & os.O_ACCMODE != os.O_RDONLY


def describe_process(pid: int) -> str:
    """For a person who has to find out where it came from: `python worker.py (pid 4711)`."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(200).replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        words = ""
    return f"{words[:60] or 'a process'} (pid {pid})"


# ---------------------------------------------------------------- what jobs leave behind

_PR_SET_CHILD_SUBREAPER = 36


class Orphans:
    """Processes whose parent has left and that became children of this one, because it asked the kernel for them.

    After a job has ended they are all that it can have left behind: to see that there are none takes one file.
    """

    def __init__(self) -> None:
        self._file = f"/proc/self/task/{os.getpid()}/children"
        self.is_active = os.path.exists(self._file) and _become_subreaper()
        self._before = self._load() if self.is_active else set()

    def find(self, known: Iterable[int]) -> set[int]:
        """Those that live; what has ended meanwhile is reaped. `known` are the jobs themselves."""
        others = self._before.union(known)
        before: set[int] = set()
        living: set[int] = set()
        for _ in range(_ORPHAN_LOOKS):  # one that ends during a look may have left us a child of its own
            unknown = self._load() - others
            if unknown == before:
                break
            living = {pid for pid in unknown if self._is_orphan(pid)}
            if living == unknown:
                break
            before = unknown
        return living

    def _load(self) -> set[int]:
        with open(self._file, "rb", buffering=0) as file:
            return set(map(int, file.read().split()))

    def _is_orphan(self, pid: int) -> bool:
        """A job's process is never in our own session; what is there was started by some other part of us."""
        fields = _stat_fields(pid)
        if fields is None or int(fields[_SESSION_FIELD]) == os.getsid(0):
            return False
        if fields[0] != b"Z":
            return True
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        return False


def _become_subreaper() -> bool:
    import ctypes

    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def is_of(pid: int, attempts: Sequence[Attempt]) -> bool:
    """Whether a process belongs to one of these attempts by its session or its tag."""
    fields = _stat_fields(pid)
    if fields is not None and int(fields[_SESSION_FIELD]) in {attempt.leader for attempt in attempts}:
        return True
    return _has_variable(pid, {f"{layout.ENV_ATTEMPT}={attempt.tag}".encode() for attempt in attempts if attempt.tag})


def _has_variable(pid: int, needles: set[bytes]) -> bool:
    return bool(needles) and not needles.isdisjoint(_load_environ(pid).split(b"\0"))


def _load_environ(pid: int) -> bytes:
    """The environment a process was started with; empty when it is gone, or not ours to read.

    In the middle of exec the new image is there and its environment is not yet: a short while later it is.
    Kernel threads have no image; what was really started without an environment costs these few looks.
    """
    try:
        for _ in range(_EXEC_LOOKS):
            with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
                environ = file.read()
            if environ or not os.readlink(f"/proc/{pid}/exe"):
                return environ
            time.sleep(_EXEC_S)
    except OSError:
        pass
    return b""


def end_attempts(attempts: Sequence[Attempt], grace_s: float) -> bool:
    """TERM to everything of these attempts, KILL to what outlives the grace. True when nothing is left.

    By session and by tag: `timeout` and launchers such as torchrun open groups and sessions of their own.
    """
    if not attempts:
        return True
    told: set[int] = set()
    deadline = time.monotonic() + grace_s
    while members := find_members(attempts):
        # what was forked since the last look has not been told yet
        _signal_all(_leaders_first(members - told, attempts), signal.SIGTERM)
        told |= members
        if time.monotonic() >= deadline:
            break
        time.sleep(_POLL_S)
    for _ in range(_KILL_ROUNDS):
        # a second look, since a process that forks and exits can slip through one
        if not members and not (members := find_members(attempts)):
            return True
        _signal_all(members, signal.SIGKILL)
        time.sleep(_POLL_S)
        members = find_members(attempts)
    return not members


def _leaders_first(pids: set[int], attempts: Sequence[Attempt]) -> list[int]:
    """job.sh before its command: a command that answers TERM with exit 0 must not pass for finished."""
    leaders = {attempt.leader for attempt in attempts}
    return sorted(pids, key=lambda pid: (pid not in leaders, pid))


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            # a stopped process would never see the TERM
            if number is signal.SIGTERM:
                os.kill(pid, signal.SIGCONT)
