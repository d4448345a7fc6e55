"""The machine lease: while a benchmark measures, no model check and no run of a sweep starts on this machine.

The lease is two files next to the slots, locked with flock. A benchmark first locks `turn` exclusively, so that
nothing new starts, and waits until it can lock `checks` exclusively, which every running model check holds shared. A
run of a sweep holds no lock: it only checks whether `turn` is free before it starts. Running runs are not waited for.

The locks belong to the command that requested them: when the command dies, the kernel releases them. Only the job of a
check also inherits the check's lock, but the job's own children do not. A process that a holder starts finds the holder
in its environment and does not wait for it. No function of this module blocks: the caller tries again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from assay.execute.slots import SlotHolder, find_holders, slots_directory
from assay.system import processes
from assay.system.locks import try_lock_file
from assay.values.layout import ENV_LEASE

Use = Literal["run", "check", "benchmark"]

_FOLDER = "lease"
_TURN, _CHECKS = "turn", "checks"
_kept: list[dict[str, int]] = []  # locks of this process that are kept after their lease ends


class MachineLease:
    """The right of one command to start something on this machine. An instance is not thread-safe."""

    def __init__(self, use: Use, directory: str | None = None) -> None:
        self.use = use
        self._folder = os.path.join(directory or slots_directory(), _FOLDER)
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        self._locks: dict[str, int] = {}
        self._is_inside = False
        with suppress(ValueError):
            pid, start, boot = os.environ.get(ENV_LEASE, "").split(".", 2)
            self._is_inside = processes.is_alive(int(pid), int(start), boot)
        self.blocked_by: str | None = None  # the file that the last `try_enter` found locked

    def try_enter(self) -> bool:
        """Return whether the command's work may start now; a benchmark or a check then holds the lease."""
        if self._is_inside:
            return True
        self.blocked_by = self._find_obstacle()
        return self.blocked_by is None

    def _find_obstacle(self) -> str | None:
        if self.use == "benchmark":
            return next((name for name in (_TURN, _CHECKS) if not self._hold(name)), None)
        if self.use == "check" and _CHECKS not in self._locks:
            if not self._is_free(_TURN):
                return _TURN
            if not self._hold(_CHECKS, shared=True):
                return _CHECKS
            if self._is_free(_TURN):
                return None
            os.close(self._locks.pop(_CHECKS))  # a benchmark has locked `turn` since the first check
            return _TURN
        return None if self.use == "check" or self._is_free(_TURN) else _TURN

    def close(self) -> None:
        if _kept and self.use == "benchmark" and self.blocked_by is None:
            _kept[-1].update(self._locks)
            self._locks.clear()
        for fd in self._locks.values():
            os.close(fd)
        self._locks.clear()

    @property
    def env(self) -> dict[str, str]:
        """The variables by which processes of this command find the lease."""
        if self._is_inside or self.use == "run":
            return {}
        return {ENV_LEASE: f"{os.getpid()}.{processes.own_start()}.{processes.boot_id()}"}

    @property
    def shared_fds(self) -> tuple[int, ...]:
        """The lock that the job of a check inherits: the check counts as running until its job ends."""
        return tuple(self._locks.values()) if self.use == "check" else ()

    def holders(self) -> list[SlotHolder]:
        """Return the process that blocks the lease, for people."""
        return [] if self.blocked_by is None else find_holders([os.path.join(self._folder, self.blocked_by)])

    def _hold(self, name: str, *, shared: bool = False) -> bool:
        if name in self._locks or any(name in locks for locks in _kept):
            return True
        fd = try_lock_file(os.path.join(self._folder, name), shared=shared)
        if fd is not None:
            self._locks[name] = fd
        return fd is not None

    def _is_free(self, name: str) -> bool:
        fd = try_lock_file(os.path.join(self._folder, name), shared=True)
        if fd is not None:
            os.close(fd)
        return fd is not None


@contextmanager
def keeping_lease() -> Iterator[None]:
    """Keep a benchmark's lease until the end of this block, so that nothing starts between the benchmark's parts."""
    _kept.append({})
    try:
        yield
    finally:
        for fd in _kept.pop().values():
            os.close(fd)
