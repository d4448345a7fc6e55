"""The supervisors of a study, and the files that dead supervisors have left.

Every supervisor holds a shared lock on one file of the study as long as it lives; the kernel releases the lock
however the supervisor ends. A process that gets the exclusive lock knows that temporary files are not in use.

A lock does not show which supervisor holds it: for `assay stop`, each supervisor also has a file
`supervisor.<host>.<pid>.<start>` with the boot id. A killed supervisor leaves this file, so the file counts only
while its process exists.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator

from assay.system import processes
from assay.system.fast_dataclasses import NamedTuple
from assay.system.files import TEMPORARY_SUFFIX, list_names, publish
from assay.system.locks import try_lock
from assay.values import layout

_registrations: set[str] = set()  # paths of the files by which this process is registered
STALE_S = 60.0  # without locks (some network file systems), files younger than this may be in use


@contextlib.contextmanager
def register(study_dir: str, clock: float | None = None) -> Iterator[None]:
    """Register as a supervisor of the study. The first supervisor removes what dead supervisors have left."""
    lock = os.path.join(study_dir, layout.STUDY_META_DIR, layout.PRESENCE_FILE)
    fd: int | None = None
    with contextlib.suppress(OSError):  # if the disk is full, nothing is removed
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if fd is not None:
            if _try_lock(fd):  # an exclusive lock: this host has no other supervisor
                remove_stale(study_dir, time.time() if clock is None else clock)
                for path, (host, pid, _) in _find_registrations(study_dir):
                    if host == processes.host_name() and pid != os.getpid():  # a parent may register this process
                        _remove(path)
            _try_lock(fd, shared=True)
        with _registered(study_dir):
            yield
    finally:
        if fd is not None:
            os.close(fd)


@contextlib.contextmanager
def _registered(study_dir: str) -> Iterator[None]:
    """Register by a file, if it can be written; only the first registration in a process removes the file."""
    name = layout.supervisor_name(processes.host_name(), os.getpid(), processes.own_start())
    path = os.path.join(study_dir, layout.STUDY_META_DIR, name)
    is_first = path not in _registrations
    _registrations.add(path)
    with contextlib.suppress(OSError):  # the file is written at once: an empty one would count as a dead supervisor's
        publish(path, processes.boot_id())
    try:
        yield
    finally:
        if is_first:
            _registrations.discard(path)
            _remove(path)


def announce(study_dir: str, pid: int) -> None:
    """Register a child process before it registers itself, so that the study never appears to be finished."""
    name = layout.supervisor_name(processes.host_name(), pid, processes.process_start(pid) or 0)
    with contextlib.suppress(OSError):
        publish(os.path.join(study_dir, layout.STUDY_META_DIR, name), processes.boot_id())


class SupervisorRecord(NamedTuple):
    """The registration of a supervisor of a study: an `assay run` or `assay rerun`, perhaps on another host."""

    host: str
    pid: int
    start: int
    boot: str

    @property
    def is_alive(self) -> bool:
        """Whether the supervisor's process exists; valid only on the supervisor's host."""
        return processes.is_alive(self.pid, self.start, self.boot)


def load_supervisors(study_dir: str) -> list[SupervisorRecord]:
    found = []
    for path, (host, pid, start) in _find_registrations(study_dir):
        with contextlib.suppress(OSError, UnicodeDecodeError), open(path, encoding="ascii") as file:  # it may be gone
            found.append(SupervisorRecord(host, pid, start, file.read()))
    return found


def _find_registrations(study_dir: str) -> list[tuple[str, tuple[str, int, int]]]:
    meta = os.path.join(study_dir, layout.STUDY_META_DIR)
    names = sorted(list_names(meta))
    return [(os.path.join(meta, name), found) for name in names if (found := layout.parse_supervisor(name))]


def _try_lock(fd: int, *, shared: bool = False) -> bool:
    with contextlib.suppress(OSError):  # the file system may have no locks
        return try_lock(fd, shared=shared)
    return False


def remove_stale(study_dir: str, now: float) -> int:
    """Remove half-written run directories, snapshots and files of dead processes; return their number."""
    meta = os.path.join(study_dir, layout.STUDY_META_DIR)
    stale = [*_find_stale(meta, now), *_find_stale(os.path.join(meta, layout.CODE_STORE_DIR), now)]
    for path in stale:
        _remove(path)
    return len(stale)


def _find_stale(folder: str, now: float) -> list[str]:
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(layout.TEMPORARY_PREFIX) and not entry.name.endswith(TEMPORARY_SUFFIX):
                continue
            with contextlib.suppress(FileNotFoundError):
                if now - entry.stat(follow_symlinks=False).st_mtime >= STALE_S:
                    found.append(entry.path)
    return found


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):  # a file of another user, or one that is gone, does no harm
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
