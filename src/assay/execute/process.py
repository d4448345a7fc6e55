"""Processes of this host: is it the same one, is it alive, and how to end all that belongs to an attempt."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from assay.values import layout

_SESSION_FIELD = 3  # of /proc/<pid>/stat, counted after the command name
_START_FIELD = 19
_POLL_S = 0.02
_KILL_ROUNDS = 250


@cache
def host_name() -> str:
    return socket.gethostname()


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


def all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is needed to find every process of an attempt."""

    leader: int  # pid of job.sh, which opened the session
    start: int
    tag: str


def find_members(attempts: Sequence[Attempt]) -> set[int]:
    """Live processes of these attempts: by session, and by tag for those that moved to another one."""
    sessions = {attempt.leader for attempt in attempts if not _is_stranger(attempt)}
    needles = {f"{layout.ENV_ATTEMPT}={attempt.tag}".encode() for attempt in attempts if attempt.tag}
    own = os.getpid()
    return {pid for pid in all_pids() if pid != own and _belongs(pid, sessions, needles)}


def _is_stranger(attempt: Attempt) -> bool:
    """Whether the leader's pid was given to somebody else; the session is then long empty."""
    fields = _stat_fields(attempt.leader)
    return fields is not None and int(fields[_START_FIELD]) != attempt.start


def _belongs(pid: int, sessions: set[int], needles: set[bytes]) -> bool:
    fields = _stat_fields(pid)
    if fields is None or fields[0] in (b"Z", b"X"):
        return False
    return int(fields[_SESSION_FIELD]) in sessions or _has_variable(pid, needles)


def _has_variable(pid: int, needles: set[bytes]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            return not needles.isdisjoint(file.read().split(b"\0"))
    except OSError:  # gone, or not ours
        return False


def end_attempts(attempts: Sequence[Attempt], grace_s: float) -> bool:
    """TERM to everything of these attempts, KILL to what outlives the grace. True when nothing is left.

    By session and by tag: `timeout` and launchers such as torchrun open groups and sessions of their own.
    """
    if not attempts:
        return True
    _signal_all(find_members(attempts), signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while members := find_members(attempts):
        if time.monotonic() >= deadline:
            break
        time.sleep(_POLL_S)
    for _ in range(_KILL_ROUNDS):
        if not members:
            return True
        _signal_all(members, signal.SIGKILL)
        time.sleep(_POLL_S)
        members = find_members(attempts)
    return not members


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            # a stopped process would never see the TERM
            if number is signal.SIGTERM:
                os.kill(pid, signal.SIGCONT)
