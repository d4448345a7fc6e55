"""Uploads of runs as a zip archive. All runs of an archive are checked first; no run of an invalid archive is stored.

An archive of files `STUDY/RUN/FILE…` is unpacked in a folder next to the studies, and each run gets its name by a
rename, so that incomplete runs are never visible. Archives are not trusted, since a sender needs only a token: no
member may lead out of the folder, be a link or a device, or exceed the limits of size. Each run is marked as received,
and no code of a received run is executed.
"""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
import stat
import struct
import tempfile
import time
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from assay.errors import AssayError, FormatError, InfrastructureError, UsageError
from assay.follow import collect
from assay.follow.limited_process import LimitedProcess
from assay.follow.run_status import load_status
from assay.record import run_directory
from assay.record.received import Received, write_received
from assay.system.files import rename
from assay.system.locks import locked
from assay.values import layout
from assay.values.run import RunSpec
from assay.values.study import MetricFile, is_study_name

PREFIX = ".upload-"  # prefix of temporary folders in a root, which no command reads as studies
_OLD_S = 86_400.0  # an older temporary folder is left over from a killed server
_CHUNK = 1 << 20
METRICS_S = 30.0  # CPU time for reading the metrics of an upload
_LONGEST_PART, _DEEPEST = 255, 40
# the exceptions of zipfile for damaged archives
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, struct.error, ValueError, ArithmeticError, LookupError, RuntimeError,
)  # fmt: skip
_OUR_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM,
    errno.EMFILE, errno.ENFILE, errno.ENOMEM,
)  # fmt: skip
_END, _END_64 = b"PK\5\6", b"PK\6\7"


class UploadLimits(NamedTuple):
    body: int = 1 << 30  # bytes of the archive
    files: int = 50_000
    total: int = 4 << 30  # unpacked bytes
    ratio: int = 200  # unpacked size relative to the archive; text compresses to a twentieth
    free: int = 64 << 20  # unpacked bytes that are allowed whatever the ratio


class RefusedUploadError(UsageError):
    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message, "nothing of it was stored")
        self.status = status


class StoredRun(NamedTuple):
    study: str
    run: str
    is_new: bool  # False: an identical run was here already


@contextmanager
def make_aside(root: str) -> Iterator[str]:
    """Yield a temporary folder on the same disk as the runs, and remove it at the end."""
    try:
        os.makedirs(root, exist_ok=True)
        for entry in os.scandir(root):
            if entry.name.startswith(PREFIX) and entry.stat(follow_symlinks=False).st_mtime < time.time() - _OLD_S:
                shutil.rmtree(entry.path, ignore_errors=True)
        aside = tempfile.mkdtemp(prefix=PREFIX, dir=root)
    except OSError as error:
        raise InfrastructureError(f"the server's folder cannot be written: {error.strerror}") from error
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


class Sender(NamedTuple):
    """The facts about the client that sends an upload."""

    address: str = ""
    by: str = ""  # the token's scope and fingerprint
    prefix: str = ""  # prefix of the names of studies that the token allows

    def mark(self, runs: Sequence[tuple[str, str]], folder: str) -> None:
        """Write `received.json` of each run; raise RefusedUploadError for a study that the token does not allow."""
        for study, run in runs:
            if not study.startswith(self.prefix):
                raise RefusedUploadError(f"this token is for studies that begin with {self.prefix}, not {study}", 403)
            write_received(os.path.join(folder, study, run), Received("upload", self.address, self.by, time.time()))


def store_archive(archive: str, aside: str, root: str, limits: UploadLimits, sender: Sender) -> list[StoredRun]:
    """Check and store the runs of an archive; raise RefusedUploadError without storing any run."""
    unpacked = os.path.join(aside, "runs")
    try:
        names = unpack(archive, unpacked, limits, check=_check_place)
        runs = [*dict.fromkeys((study, run) for study, run, *_ in (name.split("/") for name in names))]
        if not runs:
            raise RefusedUploadError("the archive contains no run: it has no file STUDY/RUN/run.json")
        sender.mark(runs, unpacked)
        dirs = [os.path.join(unpacked, study, run) for study, run in runs]
        specs = [_check_run(run_dir, f"{study}/{run}") for run_dir, (study, run) in zip(dirs, runs, strict=True)]
        _check_metrics([run_dir for run_dir, spec in zip(dirs, specs, strict=True) if spec.patterns])
        return place_runs(runs, unpacked, root)
    except OSError as error:
        raise _blame(error) from error


# ---------------------------------------------------------------- unpacking


def unpack(
    archive: str, folder: str, limits: UploadLimits, check: Callable[[Sequence[str], bool], None] = lambda *_: None
) -> list[str]:
    """Unpack regular files and return their names. `check` gets each name's parts, and whether it is a folder."""
    size = os.path.getsize(archive)
    _check_end(archive, size, limits)
    names: list[str] = []
    try:
        with zipfile.ZipFile(archive) as file:
            members = file.infolist()
            left = min(limits.total, max(limits.free, limits.ratio * size))
            _check_members(members, size, left, limits)
            for info in members:
                parts = _check_name(info)
                check(parts, info.is_dir())
                if info.is_dir():
                    continue
                left = _write(file, info, os.path.join(folder, *parts), left)
                names.append("/".join(parts))
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise RefusedUploadError("a name in the archive is a file and a folder at once") from error
    except OSError as error:  # includes an offset in the archive that does not exist
        raise _blame(error) from error
    except _DAMAGE as error:
        raise RefusedUploadError(f"not a readable zip archive: {error or type(error).__name__}") from error
    return names


def _blame(error: OSError) -> AssayError:
    """Return InfrastructureError for an error of the disk, else RefusedUploadError, without paths of this machine."""
    why = error.strerror or type(error).__name__
    if error.errno in _OUR_ERRORS:
        return InfrastructureError(f"the upload cannot be stored: {why}")
    return RefusedUploadError(f"not a readable archive: {why}")


def _check_end(archive: str, size: int, limits: UploadLimits) -> None:
    """Refuse an archive with too many members, before zipfile reads the list of them into memory."""
    with open(archive, "rb") as file:
        file.seek(max(0, size - (1 << 16) - 42))
        tail = file.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) < at + 22:
        raise RefusedUploadError("not a readable zip archive: its end is missing")
    count, length = struct.unpack("<HI", tail[at + 10 : at + 16])
    if _END_64 in tail[max(0, at - 20) : at] or count > limits.files or length > 1024 * limits.files:
        raise RefusedUploadError(f"the archive has more than {limits.files} members", 413)


def _check_members(members: Sequence[zipfile.ZipInfo], size: int, most: int, limits: UploadLimits) -> None:
    if len(members) > limits.files:
        raise RefusedUploadError(f"the archive has {len(members)} members; at most {limits.files} are taken", 413)
    total = sum(info.file_size for info in members)
    if total > most:
        raise RefusedUploadError(f"{total} bytes would come out of {size}; that is more than is taken", 413)
    counts = Counter(info.filename.rstrip("/") for info in members)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise RefusedUploadError(f"{twice[0]!r} is in the archive twice")


def _check_name(info: zipfile.ZipInfo) -> list[str]:
    shown = repr(info.orig_filename[:200])
    name, mode = info.filename, info.external_attr >> 16
    if info.orig_filename != name or "\\" in name or name.startswith("/") or name[1:2] == ":":
        raise RefusedUploadError(f"the name {shown} leads elsewhere")
    parts = name.removesuffix("/").split("/")
    for part in parts:
        if part in ("", ".", ".."):
            raise RefusedUploadError(f"the name {shown} leads elsewhere")
        if len(part.encode("utf-8", "surrogatepass")) > _LONGEST_PART or len(parts) > _DEEPEST:
            raise RefusedUploadError(f"the name {shown} is too long")
        if any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in part):
            raise RefusedUploadError(f"the name {shown} holds control characters")
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR) or (stat.S_ISDIR(mode) and not info.is_dir()):
        raise RefusedUploadError(f"{shown} is neither a file nor a folder; links and devices are not taken")
    if info.flag_bits & 1:
        raise RefusedUploadError(f"{shown} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise RefusedUploadError(f"{shown} is packed in a way that is not taken: deflate or none")
    return parts


def _check_place(parts: Sequence[str], is_folder: bool) -> None:
    shown = repr("/".join(parts)[:200])
    if len(parts) < 3 and not is_folder:
        raise RefusedUploadError(f"{shown} does not belong to a run: names are STUDY/RUN/FILE")
    run = "".join(parts[1:2])  # the name is printed: a change of the writing direction would disguise it
    if run.startswith((".", "-", " ")) or "Cf" in map(unicodedata.category, run) or not is_study_name(parts[0]):
        raise RefusedUploadError(f"{shown} cannot be the name of a study and a run")
    if parts[-1] == layout.SECRETS_FILE:
        raise RefusedUploadError(f"{shown}: secrets are never taken")
    if parts[2:3] in ([layout.RECEIVED_FILE], [layout.RECEIVED_DIR]):
        raise RefusedUploadError(f"{shown}: what is received is marked here")


def _write(file: zipfile.ZipFile, info: zipfile.ZipInfo, path: str, left: int) -> int:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)  # the umask applies
    with open(descriptor, "wb") as writer, file.open(info) as reader:
        while block := reader.read(_CHUNK):
            left -= len(block)
            if left < 0:
                raise RefusedUploadError("the archive unpacks to more than it states", 413)
            writer.write(block)
    return left


# ---------------------------------------------------------------- checking and placing


def _check_run(run_dir: str, key: str) -> RunSpec:
    try:
        record = run_directory.load_record(run_dir, layout.RUN_FILE)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RefusedUploadError(f"{key} has no {layout.RUN_FILE}") from error
    except FormatError as error:
        raise RefusedUploadError(f"{key} is not a readable run: {error.message}") from error
    spec = record.spec  # commands open the paths in a spec to show logs and metrics
    paths = [spec.log_name, spec.other_log_name, *(command.name for command in spec.commands)]
    for path in (*paths, *(pattern.path for pattern in spec.patterns if isinstance(pattern, MetricFile))):
        if os.path.isabs(path) or os.pardir in path.split("/"):
            raise RefusedUploadError(f"{key}: its {layout.RUN_FILE} names {path[:200]!r}, which leads elsewhere")
    if not (state := load_status(run_dir).state).is_over:
        raise RefusedUploadError(f"{key} is not finished: it is {state}")
    return spec


def _check_metrics(run_dirs: Sequence[str]) -> None:
    """Refuse runs whose own patterns cannot be evaluated within METRICS_S."""
    if not run_dirs:
        return
    checker, top = LimitedProcess(), os.path.dirname(os.path.dirname(run_dirs[0]))
    try:
        checker.call(
            f"{__name__}:check_runs", top, [os.path.relpath(each, top) for each in run_dirs], limit_s=METRICS_S
        )
    except AssayError as error:
        raise RefusedUploadError(f"the metrics cannot be read: {error.message[:200]}") from None
    finally:
        checker.close()


def check_runs(top: str, run_dirs: Sequence[str]) -> None:
    """Read metrics like the commands that show metrics, in a child process. Messages name files relative to `top`."""
    os.chdir(top)
    for run_dir in run_dirs:
        collect.read_sources(collect.Summaries(), "uploaded/run", run_dir, run_directory.load_record(run_dir).spec)


def place_runs(runs: Sequence[tuple[str, str]], unpacked: str, root: str) -> list[StoredRun]:
    """Move all of the runs into the root, or none of the runs; uploads are stored one at a time."""
    paths = [(os.path.join(unpacked, study, run), os.path.join(root, study, run)) for study, run in runs]
    placed: list[tuple[str, str]] = []
    with locked(root):
        stored = [StoredRun(*run, not os.path.lexists(target)) for run, (_, target) in zip(runs, paths, strict=True)]
        for each, (source, target) in zip(stored, paths, strict=True):
            if not each.is_new and not _is_same(source, target):
                raise RefusedUploadError(f"{each.study}/{each.run} is here already, with other content", 409)
        try:
            for each, (source, target) in zip(stored, paths, strict=True):
                if each.is_new:
                    os.makedirs(os.path.join(root, each.study, layout.STUDY_META_DIR), exist_ok=True)
                    rename(source, target)
                    placed.append((target, source))
        except OSError:
            for target, source in reversed(placed):
                rename(target, source)
                with suppress(OSError):  # the study's folders are empty only if the study was new
                    os.rmdir(os.path.join(os.path.dirname(target), layout.STUDY_META_DIR))
                    os.rmdir(os.path.dirname(target))
            raise
    return stored


def _is_same(source: str, target: str) -> bool:
    """Return whether `target` has all files of `source`, except for tags; `target` may have more files."""
    if os.path.islink(target) or not os.path.isdir(target):
        return False
    for folder, _, names in os.walk(source):
        for name in names:
            ours = os.path.join(folder, name)
            theirs = os.path.join(target, os.path.relpath(ours, source))
            if os.path.relpath(ours, source) in (layout.TAGS_FILE, layout.RECEIVED_FILE):
                continue
            if not os.path.isfile(theirs) or not filecmp.cmp(ours, theirs, shallow=False):
                return False
    return True
