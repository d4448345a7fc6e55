"""The run's directory here, as far as it goes to a host reached by ssh and comes back from there."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import tarfile
from collections.abc import Iterator
from typing import IO

from assay.system.files import blake2b, rename
from assay.values import layout

NO_CODE = "-"
_PART = ".assay-part-"
_WHOLE = ".whole"
_GROWING = ("*.log", "log.*", "*.jsonl", "*.csv", "*.timeout", "*.exit.*")  # as in remote.sh
_NOT_SENT = (
    *("lease.*", "outcome.*", "stop.*", "token.*", "end.*", "submit.*", "unreachable.*"),
    *(f"{_PART}*", ".tmp-*"),
)
_OURS = frozenset(
    (
        *(layout.RUN_FILE, layout.JOB_FILE, layout.SECRETS_FILE, layout.ENVIRONMENT_FILE, layout.TAGS_FILE),
        ".code",
        _WHOLE,
    )
)


# ---------------------------------------------------------------- what is sent


def write_tar(stream: IO[bytes], run_dir: str, *, with_code: bool) -> None:
    """The run's directory, its code as `.code-copy`, and at the end an empty file: all of it has arrived."""
    with tarfile.open(
        fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
    ) as archive:
        for name in sorted(os.listdir(run_dir)):
            path = os.path.join(run_dir, name)
            is_code = (name == layout.CODE_DIR or name.startswith(f"{layout.CODE_DIR}.")) and os.path.isdir(path)
            if not is_code and not any(fnmatch.fnmatchcase(name, pattern) for pattern in _NOT_SENT):
                archive.add(path, name)
        if with_code:
            archive.add(os.path.join(run_dir, layout.CODE_DIR), ".code-copy")
        archive.addfile(tarfile.TarInfo(_WHOLE))


class CodeHashes:
    """Of a run's code by content. Copies of one snapshot have the same names, sizes and times: one of them is read."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], str] = {}

    def find(self, folder: str) -> str:
        if not os.path.isdir(folder):
            return NO_CODE
        entries = list(_walk(folder))
        key = tuple(
            (name, s.st_mode, s.st_size if not target else 0, s.st_mtime_ns, target) for name, s, target in entries
        )
        if key not in self._known:
            digest = blake2b(digest_size=16)
            for name, status, target in entries:
                head = f"{name}\0{status.st_mode:o}\0{target}\0{status.st_size}\0"
                digest.update(head.encode("utf-8", "surrogateescape"))
                if not target and not os.path.isdir(os.path.join(folder, name)):
                    with open(os.path.join(folder, name), "rb") as file:
                        digest.update(file.read())
            self._known[key] = digest.hexdigest()
        return self._known[key]


def _walk(folder: str, prefix: str = "") -> Iterator[tuple[str, os.stat_result, str]]:
    """Relative name, status and link target of everything below, in a fixed order."""
    for entry in sorted(os.scandir(os.path.join(folder, prefix)), key=lambda each: each.name):
        name = os.path.join(prefix, entry.name)
        target = os.readlink(entry.path) if entry.is_symlink() else ""
        yield name, entry.stat(follow_symlinks=False), target
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(folder, name)


# ---------------------------------------------------------------- what comes back


def list_growing(run_dir: str) -> dict[str, int]:
    """What was followed so far, with sizes."""
    found = {}
    with contextlib.suppress(OSError):
        for prefix, patterns in (("", _GROWING), (f"{layout.METRICS_DIR}/", ("*.jsonl",))):
            folder = os.path.join(run_dir, prefix)
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                path = os.path.join(folder, name)
                if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns) and os.path.isfile(path):
                    found[prefix + name] = os.path.getsize(path)
    return found


def open_growing(run_dir: str, name: str, offset: int) -> IO[bytes] | None:
    """Where more of a file belongs; None: not inside the run's directory, or that was removed."""
    path = locate(run_dir, name)
    if path is None or not os.path.isdir(run_dir):
        return None
    make_parents(run_dir, name)
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666), "wb")
    file.truncate(max(offset, 0))
    file.seek(offset)
    return file


def locate(run_dir: str, name: str) -> str | None:
    """Where a file of the host's copy belongs; None: not inside the run's directory."""
    path = os.path.normpath(os.path.join(run_dir, name))
    return path if path.startswith(os.path.normpath(run_dir) + os.sep) else None


def is_wanted(run_dir: str, name: str, size: int, digest: str) -> bool:
    """Whether a file of the host's copy has to be fetched."""
    path = locate(run_dir, name)
    return path is not None and not _is_ours(name) and not _is_same(path, size, digest)


def _is_ours(name: str) -> bool:
    """What this side writes, and is right about."""
    if "/" in name:
        return name.rpartition("/")[2].startswith(_PART)
    if name in _OURS or name.startswith((_PART, ".start.")) or layout.parse_numbered(name):
        return True
    return name.startswith(("submit.log.", "submit.exit."))


def _is_same(path: str, size: int, digest: str) -> bool:
    try:
        if os.path.islink(path) or os.path.getsize(path) != size:
            return False
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except OSError:
        return False


def make_parents(run_dir: str, name: str) -> None:
    """Never the run's directory itself: where that was removed, it stays so."""
    parts = name.split("/")[:-1]
    for count in range(1, len(parts) + 1):
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.join(run_dir, *parts[:count]))


class Part:
    """A file on its way, next to where it belongs; a later try goes on from where one was cut off."""

    def __init__(self, run_dir: str, name: str, size: int, digest: str) -> None:
        self.name, self.size, self._digest = name, size, digest
        folder, base = os.path.split(name)
        mark = blake2b(base.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()  # a long name stays possible
        self._target = os.path.join(run_dir, name)
        self._path = os.path.join(run_dir, folder, f"{_PART}{mark}")
        make_parents(run_dir, name)
        self.offset = os.path.getsize(self._path) if os.path.exists(self._path) else 0
        if self.offset > size:
            self.offset = 0

    def open(self) -> IO[bytes]:
        file = open(self._path, "r+b" if self.offset else "wb")  # noqa: SIM115 - closed by the caller
        file.truncate(self.offset)
        file.seek(self.offset)
        return file

    def finish(self) -> bool:
        """Into its place, where it is what the host has."""
        if _is_same(self._path, self.size, self._digest):
            rename(self._path, self._target)
            return True
        os.unlink(self._path)
        return False


def make_link(run_dir: str, name: str, target: str) -> None:
    """Links to the run's own files, as in `last.pt -> step-100.pt`; others mean nothing here."""
    path = locate(run_dir, name)
    if path is None or os.path.isabs(target) or locate(run_dir, os.path.join(os.path.dirname(name), target)) is None:
        return
    with contextlib.suppress(OSError):
        make_parents(run_dir, name)
        if os.path.islink(path):
            os.unlink(path)
        os.symlink(target, path)


def sync_names(run_dir: str) -> None:
    """Before the host's copy goes; the bytes were flushed one by one."""
    fd = os.open(run_dir, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
