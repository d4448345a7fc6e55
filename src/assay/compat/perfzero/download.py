"""Download data: a file or a folder from the web, an object store or another path on this machine.

<parent>/<name>             the data, which appears last, after the content of archives next to it
<parent>/<name>.part        the partial download (a file, or a folder)
<parent>/<name>.part.json   notes on its source and version, with which it can be continued
<parent>/<name>.unpack/     the content of an archive before it is moved into the parent
<parent>/<name>.lock        held by the process that downloads; removed afterwards
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import urllib.parse
from dataclasses import dataclass

from assay.compat.perfzero import archive
from assay.compat.perfzero.values import Checksum, DownloadRetry
from assay.errors import InfrastructureError, MissingExtraError, UsageError
from assay.exchange import api as exchange
from assay.exchange.api import (
    STORES,
    copy_data,
    forget,
    load_listing,
    parse_local,
    parse_scheme,
    remove_part,
    render_url,
)
from assay.system.files import is_inside, rename
from assay.system.locks import hold_file
from assay.values.notify import Notify, ignore

_WEB = ("http", "https")
_SCHEMES = (*_WEB, *STORES, "file")
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def fetch(
    url: str,
    target: str,
    *,
    decompress: bool = True,
    checksum: Checksum | None = None,
    notify: Notify = ignore,
    retry: DownloadRetry = DownloadRetry(),  # noqa: B008 immutable
) -> None:
    """Fetch the URL to `target` unless that exists, and unpack archives into the folder of the target. Archives are
    recognised by the ending of the URL or the target, tar archives without an ending by their content.

    The target appears last: if it exists, the download is complete. Raise UsageError for a request that can never
    succeed, InfrastructureError for a failure that may be temporary.
    """
    job = _Job(url, target, decompress, checksum, notify, retry)
    try:
        if not os.path.lexists(job.target):
            os.makedirs(os.path.dirname(job.target), exist_ok=True)
            with hold_file(job.lock, lambda _fd: notify(f"waiting for another process that is fetching {job.target}")):
                if not os.path.lexists(job.target):  # if the target exists now, another process was faster
                    _bring(job)
                    return
        _check_cached(job)
    except OSError as error:
        raise build_disk_error(job.target, error) from error


@dataclass
class _Job:
    """One call of `fetch`, with the paths of its temporary files next to the target."""

    url: str
    target: str
    decompress: bool
    checksum: Checksum | None
    notify: Notify
    retry: DownloadRetry

    def __post_init__(self) -> None:
        if not self.target or os.path.abspath(self.target) == "/":
            raise UsageError(f"{self.target!r} is not a valid target", "name a file or a folder")
        self.scheme = parse_scheme(self.url, _SCHEMES)  # None for a plain path
        self.shown = render_url(self.url) if self.scheme else self.url
        self.target = os.path.abspath(self.target)
        self.name = os.path.basename(self.target)
        self.part, self.aside, self.lock = (f"{self.target}.{end}" for end in ("part", "unpack", "lock"))
        source = (urllib.parse.urlsplit(self.url).path if self.scheme else self.url).rstrip("/")
        self.original = os.path.basename(source)
        kind = archive.parse_kind(source) or archive.parse_kind(self.target)
        self.kind = kind if self.decompress else None
        # without an ending in URL or target, examine the content
        self.has_no_ending = self.decompress and not any(os.path.splitext(name)[1] for name in (source, self.target))


# ---------------------------------------------------------------- downloading


def _check_cached(job: _Job) -> None:
    """Refuse an existing file with another checksum, if the checksum can be compared; else the file is used."""
    if not os.path.exists(job.target):
        raise UsageError(f"{job.target} is a broken link", "remove it, or mount what it leads to")
    job.notify(f"{job.target} is already there")
    unpacked_in_place = job.kind is not None and archive.parse_kind(job.name) is None
    can_compare = os.path.isfile(job.target) and not unpacked_in_place
    if job.checksum and can_compare and (difference := _compare(job.target, job.checksum)):
        hint = "move it away to download it again"
        raise UsageError(f"{job.target} is already there, but it is other data: {difference}", hint)


def _bring(job: _Job) -> None:
    job.notify(f"downloading {job.shown}")
    if job.scheme in _WEB:
        try:
            from assay.compat.perfzero import http_file
        except ModuleNotFoundError as error:
            raise MissingExtraError(f"downloading {job.shown}", "download") from error
        if os.path.isdir(job.part):  # a folder of another source is left
            shutil.rmtree(job.part)
        http_file.download(job.url, job.part, job.notify, job.retry)
    elif job.scheme in STORES:
        exchange.download(job.url, job.part, job.notify)
    else:
        _copy_local(job)
    if os.path.isdir(job.part):
        if job.checksum:
            shutil.rmtree(job.part)
            raise UsageError(f"{job.shown} is a folder, and a checksum is of a file", "leave the checksum out")
        rename(job.part, job.target)
        forget(job.part)
        return
    if job.checksum and (difference := _compare(job.part, job.checksum)):
        _drop(job.part)
        hint = "the file there has changed or the checksum is wrong; nothing was kept"
        raise UsageError(f"{job.shown} is not what was expected: {difference}", hint)
    kind = archive.find_kind(job.part) if job.has_no_ending else job.kind
    if kind and _unpack(job, kind):
        os.unlink(job.part)
    else:
        with open(job.part, "rb") as file:
            os.fsync(file.fileno())  # without this a power failure could leave the name without content
        rename(job.part, job.target)
    forget(job.part)


def _unpack(job: _Job, kind: archive.ArchiveKind) -> bool:
    """Unpack the download. Return True if the archive contained the target itself, so that nothing is to be renamed."""
    parent = os.path.dirname(job.target)
    # `mydata` next to its content looks as if it had not been unpacked: name the archive too
    shown = job.name if job.original in ("", job.name) else f"{job.original} (kept as {job.name})"
    job.notify(f"unpacking {shown} into {parent}")
    shutil.rmtree(job.aside, ignore_errors=True)  # a killed process may have left the folder
    try:
        archive.unpack(job.part, kind, job.aside, job.name)
        inside = os.path.lexists(os.path.join(job.aside, job.name))
        reserved = frozenset(os.path.basename(path) for path in (job.part, job.part + ".json", job.aside, job.lock))
        archive.place(job.aside, parent, job.name, reserved)
    except archive.ArchiveError:
        _drop(job.part)  # the next download may be complete
        raise
    finally:
        shutil.rmtree(job.aside, ignore_errors=True)
    return inside


def _copy_local(job: _Job) -> None:
    path = parse_local(job.url, job.scheme)
    # a trailing * or / means the folder, unless a path has this name
    found = next((each for each in (path, path.removesuffix("*")) if os.path.exists(each)), None)
    if found is None:
        raise UsageError(f"there is no file or folder {path!r}")
    source = found.rstrip("/") or "/"
    _drop(job.part)
    if os.path.isfile(source):
        copy_data(source, job.part)
        return
    if not os.path.isdir(source):
        raise UsageError(f"{source} is neither a file nor a folder")
    if is_inside(job.part, source):
        raise UsageError(f"{source} cannot be copied into itself ({job.target})")
    listing = load_listing(source)
    os.mkdir(job.part)
    for name in listing.folders:
        os.mkdir(os.path.join(job.part, name))
    for file in listing.files:
        copy_data(file.path, os.path.join(job.part, file.name))


# ---------------------------------------------------------------- files


def build_disk_error(target: str, error: OSError) -> UsageError | InfrastructureError:
    """Return a one-line error about the disk."""
    if error.errno in _NO_ROOM:
        hint = "free some, or choose another folder"
        return InfrastructureError(f"there is no room for {target}: {error.strerror}", hint)
    if error.errno in _NOT_ALLOWED:
        hint = "choose another folder for the data"
        return UsageError(f"{error.filename or target} cannot be written: {error.strerror}", hint)
    if error.errno in {errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG}:
        return UsageError(f"{target} cannot be made: {error.filename or target}: {error.strerror}")
    return InfrastructureError(f"{target} cannot be written: {error.strerror or error}")


def _compare(path: str, wanted: Checksum) -> str | None:
    """Return how the file's checksum differs, or None."""
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(wanted.algorithm, usedforsecurity=False)).hexdigest()
    return None if found == wanted.hex else f"{wanted.algorithm} {found}, expected {wanted.hex}"


def _drop(part: str) -> None:
    """Remove a partial download and its notes, so that no later call uses or continues it."""
    remove_part(part)
    forget(part)
