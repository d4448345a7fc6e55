"""The part of a run's directory that is sent to a host by ssh, and the part that is fetched from there."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import itertools
import os
import shutil
import tarfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import IO

from assay.system.files import blake2b, rename
from assay.values import layout

NO_CODE = "-"
_CHUNK_BYTES = 1 << 20  # bytes of one write
_PART = ".assay-part-"
_WHOLE = ".whole"
NOW = ".now"  # a file that the host makes when it lists the files of an ended job
_GROWING = ("*.log", "log.*", "*.jsonl", "*.csv", "*.timeout", "*.exit.*")  # the patterns of remote.sh
_NOT_SENT = (
    *("lease.*", "outcome.*", "stop.*", "token.*", "end.*", "warned.*", "submit.*", "unreachable.*"),
    *(f"{_PART}*", ".tmp-*"),
)
_RECORDS = (layout.RUN_FILE, layout.JOB_FILE, layout.SECRETS_FILE, layout.ENVIRONMENT_FILE, layout.TAGS_FILE)
_OURS = frozenset((*_RECORDS, ".code", NOW, _WHOLE))


# ---------------------------------------------------------------- what is sent


def write_tar(stream: IO[bytes], run_dir: str, *, with_code: bool) -> None:
    """Write a tar of the run's directory, with its code as `.code-copy`; an empty last file shows that it is whole."""
    with tarfile.open(
        fileobj=stream,
        mode="w|",
        bufsize=_CHUNK_BYTES,
        format=tarfile.GNU_FORMAT,
        encoding="utf-8",
        errors="surrogateescape",
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
    """Hashes of the code of runs. Copies of one snapshot have equal names, sizes and times: only one copy is read."""

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
    """Yield relative name, status and link target of everything below the folder, in a fixed order."""
    for entry in sorted(os.scandir(os.path.join(folder, prefix)), key=lambda each: each.name):
        name = os.path.join(prefix, entry.name)
        target = os.readlink(entry.path) if entry.is_symlink() else ""
        yield name, entry.stat(follow_symlinks=False), target
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(folder, name)


# ---------------------------------------------------------------- what comes back


@dataclass(slots=True)
class RemoteListing:
    """The files that an ended job has left on its host."""

    files: dict[str, int] = field(default_factory=dict)  # name -> size
    hashes: dict[str, str] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)  # of the files and of the listing itself, by the host's clock
    made_at: float = field(default_factory=time.time)  # when the listing arrived, by this machine's clock

    def find_time(self, name: str) -> float:
        """Return the time of a file by this machine's clock: only the age of the file is by the host's clock."""
        now = self.times.get(NOW, 0.0)
        return self.made_at - max(0.0, now - self.times.get(name, now))

    links: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)  # empty folders
    closed: list[str] = field(default_factory=list)  # folders that cannot be read
    processes: list[str] = field(default_factory=list)


def list_growing(run_dir: str) -> dict[str, int]:
    """Return the sizes of the growing files, such as logs, as far as they have been fetched."""
    found = {}
    with contextlib.suppress(OSError):
        for prefix, patterns in (("", _GROWING), (f"{layout.METRICS_DIR}/", ("*.jsonl",))):
            folder = os.path.join(run_dir, prefix)
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                path = os.path.join(folder, name)
                is_growing = any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
                if is_growing and os.path.isfile(path) and not os.path.islink(path):
                    found[prefix + name] = os.path.getsize(path)
    return found


def open_growing(run_dir: str, name: str, offset: int) -> IO[bytes] | None:
    """Open a growing file at `offset`; None if the host may not write the file, or the run's directory was removed."""
    path = locate(run_dir, name)
    if path is None or not os.path.isdir(run_dir):
        return None
    make_parents(run_dir, name)
    _clear(path)
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666), "wb")
    file.truncate(max(offset, 0))
    file.seek(offset)
    return file


def locate(run_dir: str, name: str) -> str | None:
    """Return the path for a file of the host's copy; None if the path is outside the run's directory, or if only this
    machine writes the file."""
    top, _, rest = os.path.normpath(name).partition("/")
    is_part = top.startswith(_PART) or rest.rpartition("/")[2].startswith(_PART)
    is_ours = top in _OURS or top.startswith((".start.", "submit.log.", "submit.exit.")) or layout.parse_numbered(top)
    is_code = top == layout.CODE_DIR or top.startswith(f"{layout.CODE_DIR}.")
    if is_part or is_ours or (is_code and os.path.isdir(os.path.join(run_dir, top))) or not _is_inside(run_dir, name):
        return None
    return os.path.normpath(os.path.join(run_dir, name))


def _is_inside(run_dir: str, name: str) -> bool:
    return os.path.normpath(os.path.join(run_dir, name)).startswith(os.path.normpath(run_dir) + os.sep)


def is_wanted(run_dir: str, name: str, size: int, digest: str) -> bool:
    """Return whether a file of the host's copy has to be fetched."""
    path = locate(run_dir, name)
    return path is not None and not (_has_parents(run_dir, name) and _is_same(path, size, digest))


def _is_same(path: str, size: int, digest: str) -> bool:
    try:
        if os.path.islink(path) or os.path.getsize(path) != size:
            return False
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except OSError:
        return False


def _list_parents(run_dir: str, name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return [os.path.join(run_dir, *parts[:count]) for count in range(1, len(parts) + 1)]


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _has_parents(run_dir: str, name: str) -> bool:
    return all(map(_is_folder, _list_parents(run_dir, name)))


def make_parents(run_dir: str, name: str) -> None:
    """Make the parent folders of a file, and replace files at their paths. The run's directory itself is never made:
    if it was removed, it stays removed."""
    for folder in _list_parents(run_dir, name):
        _make_folder(folder)


def _make_folder(path: str) -> None:
    if not _is_folder(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)


def _clear(path: str) -> None:
    """Remove a folder or link at a file's path: an earlier attempt has left it, or the job has replaced the file."""
    if os.path.islink(path):
        os.unlink(path)
    elif os.path.isdir(path):
        shutil.rmtree(path)


class PartialFile:
    """A file that is being fetched, next to its final path; a later try continues where an earlier one was cut off."""

    def __init__(self, run_dir: str, name: str, size: int, digest: str) -> None:
        self.name, self.size, self._digest = name, size, digest
        folder, base = os.path.split(name)
        mark = blake2b(base.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()  # names may be too long
        self._target = os.path.join(run_dir, name)
        self._path = os.path.join(run_dir, folder, f"{_PART}{mark}")
        make_parents(run_dir, name)
        there = os.path.getsize(self._path) if os.path.exists(self._path) else 0
        self.offset = there if there <= size else 0

    def open(self) -> IO[bytes]:
        file = open(self._path, "r+b" if self.offset else "wb")  # noqa: SIM115 - closed by the caller
        file.truncate(self.offset)
        file.seek(self.offset)
        return file

    def finish(self) -> bool:
        """Move the file to its final path if its content is that of the host."""
        if _is_same(self._path, self.size, self._digest):
            _clear(self._target)
            rename(self._path, self._target)
            return True
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        return False


def make_link(run_dir: str, name: str, target: str) -> None:
    """Make a link to one of the run's own files, as in `last.pt -> step-100.pt`. A link to another path is not made,
    since it has no meaning on this machine, but the file at the link's path is removed."""
    path = locate(run_dir, name)
    if path is None or (os.path.islink(path) and _has_parents(run_dir, name) and os.readlink(path) == target):
        return
    make_parents(run_dir, name)
    _clear(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    if not os.path.isabs(target) and _is_inside(run_dir, os.path.join(os.path.dirname(name), target)):
        words = itertools.dropwhile(lambda word: word in (".", ".."), target.split("/"))
        if ".." not in words:  # after another link, `..` would lead elsewhere
            os.symlink(target, path)


def make_folder(run_dir: str, name: str) -> None:
    """Make a folder that is empty on the host."""
    path = locate(run_dir, name)
    if path is not None:
        make_parents(run_dir, name)
        _make_folder(path)


def sync_names(run_dir: str, names: Iterable[str]) -> None:
    """Flush the folders of fetched files before the host's copy is removed; contents were flushed file by file."""
    for folder in {".", *(str(parent) for name in names for parent in PurePosixPath(name).parents)}:
        fd = os.open(os.path.join(run_dir, folder), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
