"""Which supervisors a study has, and what dead ones have left aside.

Every supervisor holds a shared lock on one file of the study for as long as it lives; the kernel lets go of it however
the supervisor ends. Who gets the lock for itself alone knows that nobody is there to miss a temporary file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator

from assay.values import layout

STALE_S = 60.0  # where locks do not reach (some network file systems), what is being written is younger than this


@contextlib.contextmanager
def attend(study_dir: str, clock: float | None = None) -> Iterator[None]:
    """Be one of the study's supervisors. The first one to come clears away what dead ones have left."""
    fd = _open(study_dir)
    try:
        if fd is not None:
            if _try_lock(fd, fcntl.LOCK_EX):
                remove_stale(study_dir, time.time() if clock is None else clock)
            _try_lock(fd, fcntl.LOCK_SH)
        yield
    finally:
        if fd is not None:
            os.close(fd)


def _open(study_dir: str) -> int | None:
    """None where there can be no such file (a full disk): nothing is cleared away then, and nothing else changes."""
    path = os.path.join(study_dir, layout.STUDY_META_DIR, layout.PRESENCE_FILE)
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return None


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError:  # taken, or a file system without locks
        return False
    return True


def remove_stale(study_dir: str, now: float) -> int:
    """Remove half-made run directories, snapshots and files; how many. The caller knows that their makers are gone."""
    meta = os.path.join(study_dir, layout.STUDY_META_DIR)
    count = 0
    for folder in (meta, os.path.join(meta, layout.CODE_STORE_DIR)):
        for path in _find_stale(folder, now):
            _remove(path)
            count += 1
    return count


def _find_stale(folder: str, now: float) -> list[str]:
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(layout.TEMPORARY_PREFIX) and not entry.name.endswith(layout.TEMPORARY_SUFFIX):
                continue
            with contextlib.suppress(FileNotFoundError):
                if now - entry.stat(follow_symlinks=False).st_mtime >= STALE_S:
                    found.append(entry.path)
    return found


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):  # somebody else's, or gone: it does no harm
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
