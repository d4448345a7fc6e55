"""Processes of this host, read from /proc: their state, their identity, and how to start and end them.

Unreadable values (the process has ended, or is of another user) are empty, zero or None, and raise no error.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import cache

TYPE_CHECKING = False  # `typing`, which has this name too, takes milliseconds to load
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    Pid = int | str  # a number or "self"

PROC = "/proc"

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_EXEC_TRIES = 5
_EXEC_S = 0.0005
_POLL_S = 0.01
_KILL_S = 10.0
_FREE_FDS = 64  # source descriptors are moved above every target, so that no dup2 overwrites a source that is needed
# signals that Python ignores or handles; a job must get their default actions, as in a shell
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61


def _read(name: str) -> bytes:
    """Read a file below /proc."""
    try:
        fd = os.open(f"/proc/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    except OSError:  # ESRCH: the process ended between open and read
        return b""
    finally:
        os.close(fd)


def _read_link(name: str) -> str:
    try:
        return os.readlink(f"/proc/{name}")
    except OSError:
        return ""


def check_proc() -> None:
    """Raise OSError if /proc is not mounted or not readable."""
    for name in (f"{os.getpid()}/stat", "sys/kernel/random/boot_id"):
        with open(f"/proc/{name}", "rb") as file:
            file.read()


# ---------------------------------------------------------------- one process


class ProcessStat:
    """One reading of /proc/PID/stat; fields are parsed on access."""

    __slots__ = ("_fields", "pid")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        """`fields` are the fields after the command name."""
        self.pid = pid
        self._fields = fields

    @property
    def is_zombie(self) -> bool:
        return self._fields[0] in (b"Z", b"X")

    @property
    def parent(self) -> int:
        return int(self._fields[1])

    @property
    def session(self) -> int:
        return int(self._fields[3])

    @property
    def cpu_ticks(self) -> int:
        return int(self._fields[11]) + int(self._fields[12])

    @property
    def waited_ticks(self) -> int:
        """The CPU time of ended children that were waited for."""
        return int(self._fields[13]) + int(self._fields[14])

    @property
    def start(self) -> int:
        """When the process started, in clock ticks since boot."""
        return int(self._fields[19])

    @property
    def vms_bytes(self) -> int:
        return int(self._fields[20])

    @property
    def rss_bytes(self) -> int:
        return int(self._fields[21]) * _PAGE_BYTES


def parse_stat(pid: int, data: bytes) -> ProcessStat | None:
    """Parse a line of stat. The program's name in parentheses may contain anything, also parentheses."""
    fields = data[data.rfind(b")") + 2 :].split()
    return ProcessStat(pid, fields) if len(fields) >= 22 else None


def load_stat(pid: int) -> ProcessStat | None:
    return parse_stat(pid, _read(f"{pid}/stat"))


def exists(pid: int) -> bool:
    """Whether the process exists, perhaps as a zombie."""
    return os.path.exists(f"/proc/{pid}")


def list_pids() -> list[int]:
    return sorted(int(name) for name in os.listdir(PROC) if name.isdecimal())


def load_environ(pid: Pid) -> list[bytes]:
    """Return the environment with which a process was started, as NAME=VALUE. During exec a process has its new image
    but no environment yet, so an empty environment is read again, a few times. Kernel threads, which have no image, are
    read once."""
    for number in range(_EXEC_TRIES):
        environ = _read(f"{pid}/environ")
        if environ or not _read_link(f"{pid}/exe"):
            return environ.split(b"\0")
        time.sleep(_EXEC_S * 2**number)
    return []


def load_variable(pid: Pid, name: str) -> bytes:
    """Return a variable of the process's environment; empty if it is not set."""
    prefix = f"{name}=".encode()
    return next((each.removeprefix(prefix) for each in load_environ(pid) if each.startswith(prefix)), b"")


def load_command_line(pid: Pid) -> str:
    """Return the process's arguments, separated by spaces."""
    return os.fsdecode(_read(f"{pid}/cmdline").replace(b"\0", b" ").strip())


def describe_process(pid: int) -> str:
    """Return command and pid, by which a user finds a process: `python worker.py (pid 4711)`."""
    words = load_command_line(pid).encode(errors="surrogateescape").decode(errors="replace")
    return f"{words[:60].strip() or 'a process'} (pid {pid})"


def find_program(pid: Pid) -> str:
    return _read_link(f"{pid}/exe")


def find_folder(pid: Pid) -> str:
    """Return the working directory of the process."""
    return _read_link(f"{pid}/cwd")


def load_maps(pid: Pid) -> bytes:
    return _read(f"{pid}/maps")


def load_size(pid: Pid, *names: str) -> int:
    """Return the sum of these sizes of /proc/PID/status (`VmHWM`, `RssAnon`) in bytes."""
    data = _read(f"{pid}/status")
    total = 0
    for name in names:
        at = data.find(f"\n{name}:".encode())
        total += int(data[at:].split(None, 2)[1]) * 1024 if at >= 0 else 0
    return total


def is_ignoring(pid: Pid, number: signal.Signals) -> bool:
    """Whether a process ignores this signal."""
    data = _read(f"{pid}/status")
    at = data.find(b"\nSigIgn:")
    return at >= 0 and bool(int(data[at:].split(None, 2)[1], 16) >> (number - 1) & 1)


def find_open_files(pid: Pid) -> Iterator[tuple[str, str]]:
    """Yield the number of each descriptor and the path of its file."""
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            if path := _read_link(f"{pid}/fd/{number}"):
                yield number, path


def is_writing(pid: Pid, number: str) -> bool:
    """Whether this descriptor of a process is open for writing."""
    for line in _read(f"{pid}/fdinfo/{number}").splitlines():
        if line.startswith(b"flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def find_since(pid: Pid) -> float | None:
    """Return when the process was started, in seconds since the epoch."""
    try:
        return os.stat(f"/proc/{pid}").st_mtime
    except OSError:
        return None


def name_descriptor(fd: int) -> str:
    """Return a path that opens the file of a descriptor of this process again, with a separate offset."""
    return f"/proc/self/fd/{fd}"


# ---------------------------------------------------------------- the same process


@cache
def host_name() -> str:
    return os.uname().nodename


@cache
def boot_id() -> str:
    """Return an id that changes with every boot, after which pids mean other processes."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def process_start(pid: int) -> int | None:
    """Return the start time in clock ticks since boot; None if the process does not exist or is a zombie."""
    stat = load_stat(pid)
    return None if stat is None or stat.is_zombie else stat.start


def is_alive(pid: int, start: int, boot: str) -> bool:
    """Whether the process is alive: same boot, pid and start time, not a zombie."""
    return boot == boot_id() and process_start(pid) == start


@cache
def own_start() -> int:
    return process_start(os.getpid()) or 0


os.register_at_fork(after_in_child=own_start.cache_clear)


# ---------------------------------------------------------------- trees


def load_children(pid: int) -> list[int]:
    """Return the children that the process's first thread started; nothing if the kernel does not have the file
    `children`. Children of other threads are found by reading all processes."""
    return [int(child) for child in _read(f"{pid}/task/{pid}/children").split()]


def load_thread_children(pid: int) -> list[int]:
    """Return the children that any thread of the process started: exact, but slower. If a thread has ended while the
    lists were read, all lists are read again, at most ten times: the children of an ended thread become those of
    another thread, whose list may have been read already."""
    found: set[int] = set()
    threads = _list_threads(pid)
    for _ in range(10):
        found.update(int(child) for thread in threads for child in _read(f"{pid}/task/{thread}/children").split())
        before, threads = threads, _list_threads(pid)
        if threads.issuperset(before):
            break
    return sorted(found)


def _list_threads(pid: int) -> set[str]:
    try:
        return set(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return set()


def can_list_children() -> bool:
    """Whether this kernel has the file that `load_children` reads."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def walk(roots: Iterable[int], children_of: Callable[[int], Iterable[int]]) -> Iterator[int]:
    """Yield all descendants of `roots`."""
    seen = set(roots)
    waiting = list(seen)
    while waiting:
        for child in children_of(waiting.pop()):
            if child not in seen:
                seen.add(child)
                waiting.append(child)
                yield child


def group_by_parent(stats: Iterable[ProcessStat]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for stat in stats:
        children.setdefault(stat.parent, []).append(stat.pid)
    return children


def load_stats() -> dict[int, ProcessStat]:
    """Load the state of all processes of this host."""
    return {pid: stat for pid in list_pids() if (stat := load_stat(pid)) is not None}


def find_descendants(root: int) -> set[int]:
    """Return the live processes below this one, without itself and zombies."""
    stats = load_stats()
    children = group_by_parent(stats.values())
    return {pid for pid in walk([root], lambda pid: children.get(pid, ())) if not stats[pid].is_zombie}


def measure_memory(pids: Iterable[int]) -> int:
    """Return the bytes of allocated memory, without pages that are mapped from files or only reserved."""
    return sum(load_size(pid, "RssAnon", "RssShmem") for pid in pids)


# ---------------------------------------------------------------- starting and ending


def spawn_session(
    argv: list[str], env: Mapping[str, str] | Mapping[bytes, bytes], log: str, inherit: Sequence[tuple[int, int]] = ()
) -> int:
    """Start argv[0] in a new session with output in `log`; return its pid. `inherit`: (descriptor, child's number)."""
    import fcntl

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


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            if number is signal.SIGTERM:
                os.kill(pid, signal.SIGCONT)  # a stopped process would not handle TERM


def end_descendants(root: int) -> bool:
    """Kill everything below a process until nothing is left; return False if a process does not end."""
    deadline = time.monotonic() + _KILL_S
    while pids := find_descendants(root):
        if time.monotonic() > deadline:
            return False
        signal_all(pids, signal.SIGKILL)
        time.sleep(_POLL_S)
    return True


def adopt_orphans() -> bool:
    """Become the parent of all orphans below this process, also in sessions of their own ("subreaper"). Return False if
    the kernel or the C library does not support subreapers."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent ends. `parent`: the parent's pid; the parent may already be gone."""
    if not _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL)):
        raise OSError("prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


def allow_tracing() -> None:
    """Let any process of this user trace this one, if the kernel is strict (Yama)."""
    _prctl(_PR_SET_PTRACER, (1 << 64) - 1)


def _prctl(option: int, value: int) -> bool:
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def write_status_at_exit(path: str) -> None:
    """Write the exit status of this process into the first two bytes of a file when it calls exit(3). glibc writes the
    status, by a C function that runs after the interpreter is gone; Python does not report its own exit status. A
    signal or `os._exit` writes nothing, and neither does a C library other than glibc."""
    try:
        import ctypes

        library = ctypes.CDLL(None)
        library.fopen.restype = ctypes.c_void_p
        file = library.fopen(os.fsencode(path), b"r+e")
        for _ in range(2 if file else 0):
            library.on_exit(library.fputc, ctypes.c_void_p(file))
    except (ImportError, OSError, AttributeError):
        pass


# ---------------------------------------------------------------- work in two processes

_LEAST_FORKED = 200


def map_in_two(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Return the function's results in order. A forked child computes the second half if there are many items, two CPUs
    and no other threads; results that the child cannot transfer are computed by this process. The function must have
    no side effects and return values that `marshal` supports."""
    import marshal
    import threading

    half = len(items) // 2
    if len(items) < _LEAST_FORKED or len(os.sched_getaffinity(0)) < 2 or threading.active_count() > 1:
        return list(map(function, items))
    source, target = os.pipe()
    try:
        child = os.fork()
    except OSError:
        os.close(source)
        os.close(target)
        return list(map(function, items))
    if child == 0:
        with contextlib.suppress(BaseException), os.fdopen(target, "wb") as file:
            os.close(source)
            file.write(marshal.dumps(list(map(function, items[half:]))))
        os._exit(0)  # exit without cleanup of what the parent has open
    os.close(target)
    try:
        with os.fdopen(source, "rb") as file:
            first = list(map(function, items[:half]))
            try:
                rest = marshal.loads(file.read())  # noqa: S302 a child of this process wrote the data
            except (EOFError, ValueError, TypeError):
                rest = list(map(function, items[half:]))
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.waitpid(child, 0)
    return [*first, *rest]


# ---------------------------------------------------------------- the machine


def load_cpu_ticks(table: str | None = None) -> tuple[int, int]:
    """Return the clock ticks that all CPUs together have worked since boot, and all ticks. Raise ValueError if the
    kernel does not report them. `table` is a file like /proc/stat."""
    with open(table or "/proc/stat", "rb") as file:
        fields = [int(word) for word in file.readline().split()[1:9]]
    if len(fields) < 5:
        raise ValueError("the CPU line is too short")
    return sum(fields) - sum(fields[3:5]), sum(fields)  # fields 3 and 4 are idle time and waiting for a disk


def load_oom_kills() -> int | None:
    """Return how many processes the kernel has killed for lack of memory since boot; None if it does not count them."""
    found = [line.split()[1] for line in _read("vmstat").splitlines() if line.startswith(b"oom_kill ")]
    return int(found[0]) if found else None


def load_cpu_fields() -> dict[str, str]:
    """Return the first CPU's fields. Only the start of the file is read: for the rest the kernel asks every core."""
    text = b""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", "rb", buffering=0) as file:
        while b"\n\n" not in text and (part := file.read(4096)):
            text += part
    lines = text.partition(b"\n\n")[0].decode(errors="replace").splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def find_file_system(folder: str, table: str | None = None) -> str | None:
    """Return the type of the folder's file system. `table` is a file like /proc/self/mountinfo."""
    real = os.path.realpath(folder)
    best, kind = "", None
    try:
        with open(table or "/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.readlines()
    except OSError:
        return None
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = before.split()[4].encode().decode("unicode_escape")
        if (real == mount or real.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, kind = mount, after.split()[0]
    return kind


# ---------------------------------------------------------------- functions in bash, for job.sh

BASH_FIND_TAGGED = r"""_find() {  # into _pids: the processes of this attempt, but those given
  local file pid line lines; _pids=
  for file in /proc/[0-9]*/environ; do
    pid=${file#/proc/}; pid=${pid%/*}
    case " $* " in *" $pid "*) continue ;; esac
    [ -O "$file" ] && mapfile -d '' -t lines < "$file" || continue
    for line in "${lines[@]}"; do [ "$line" != "ASSAY_ATTEMPT=$ASSAY_ATTEMPT" ] || _pids+=" $pid"; done
  done 2>/dev/null
}
"""
BASH_TELL_PROGRAMS = r"""_tell() {  # the signal $2 to all programs below the process $1, but not to shells
  local pid; for pid in $(cat /proc/"$1"/task/*/children); do
    case $(cat /proc/"$pid"/comm) in bash | sh | dash | timeout | sleep | cat) ;; *) kill -"$2" "$pid" ;; esac
    _tell "$pid" "$2"
  done
}
"""
# HOSTNAME is not used: if it is exported, a job inherits the name of the host that submitted the job
BASH_READ_IDENTITY = """\
  read -r -a stat 2>/dev/null < /proc/$$/stat; read -r boot 2>/dev/null < /proc/sys/kernel/random/boot_id
  read -r host 2>/dev/null < /proc/sys/kernel/hostname
"""

# A script with two arguments, a session and a folder. At the end of its input the script kills what is left of the
# session, except its leader, and removes the folder.
BASH_KEEP_SESSION = r"""
trap '' TERM INT HUP
session=$0 folder=$1
read -r _
for round in {1..200}; do
  left=
  for file in /proc/[0-9]*/stat; do
    read -r line < "$file" || continue
    pid=${file#/proc/}; pid=${pid%/*}
    set -- ${line##*) }  # state, parent, group, session
    [ "$4" != "$session" ] || [ "$1" = Z ] || [ "$pid" = "$session" ] || left+=" $pid"
  done
  [ -n "$left" ] || break
  kill -KILL $left; sleep 0.05
done
rm -rf -- "$folder"
"""
