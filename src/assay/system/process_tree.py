"""Everything that a process started, directly or not: found, weighed and ended. Linux only, by /proc alone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STATE_FIELD, _PARENT_FIELD = 0, 1  # of /proc/<pid>/stat, counted after the command name
_POLL_S = 0.01
_KILL_S = 10.0


def adopt_orphans() -> None:
    """What our descendants leave behind becomes ours, also from sessions of their own: nothing slips out."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent ends. `parent`: who that was, in case it is gone already."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def find_descendants(root: int) -> set[int]:
    """Live processes below this one, itself not counted; zombies do not count."""
    children: dict[int, list[int]] = defaultdict(list)
    dead = set()
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        fields = _load_stat(pid)
        if fields is None:
            continue
        children[int(fields[_PARENT_FIELD])].append(pid)
        if fields[_STATE_FIELD] in (b"Z", b"X"):
            dead.add(pid)
    found: set[int] = set()
    waiting = list(children[root])
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting += children[pid]
    return found - dead


def _load_stat(pid: int) -> list[bytes] | None:
    """The fields after the command name, which may itself hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            text = stream.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(b")") + 2 :].split()


def weigh(pids: Iterable[int]) -> int:
    """Bytes of memory that cannot be dropped: what was allocated, not what is mapped from files or only reserved."""
    return sum(_weigh_one(pid) for pid in pids)


def _weigh_one(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status", "rb") as stream:
            lines = stream.read().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith((b"RssAnon:", b"RssShmem:")))


def end_descendants(root: int) -> bool:
    """Kill everything below a process until nothing is left; False where something does not go."""
    deadline = time.monotonic() + _KILL_S
    while pids := find_descendants(root):
        if time.monotonic() > deadline:
            return False
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    return True
