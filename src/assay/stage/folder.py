"""Every file of a folder of data, links followed: what is copied or sent elsewhere must be complete there."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field

from assay.errors import UsageError
from assay.system.files import copy_file

Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class DataFile:
    name: str  # relative, with /
    path: str
    bytes: int


@dataclass(slots=True)
class Listing:
    """In order of name."""

    files: list[DataFile] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)  # relative, each after the one that it is in

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def load_listing(folder: str) -> Listing:
    """Raises UsageError for a link that leads nowhere or round in circles, and for pipes and devices."""
    listing = Listing()
    _list(folder, "", (_identify(os.stat(folder)),), listing)
    return listing


def _list(folder: str, prefix: str, above: tuple[Identity, ...], listing: Listing) -> None:
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        status = _load_status(path)
        if stat.S_ISDIR(status.st_mode):
            if _identify(status) in above:
                raise UsageError(f"{path} is a link to a folder that it is in", "remove it: it has no end")
            listing.folders.append(prefix + name)
            _list(path, f"{prefix}{name}/", (*above, _identify(status)), listing)
        elif stat.S_ISREG(status.st_mode):
            listing.files.append(DataFile(prefix + name, path, status.st_size))
        else:
            raise UsageError(f"{path} is neither a file nor a folder")


def _load_status(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except (FileNotFoundError, PermissionError) as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _identify(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def copy_data(source: str, target: str) -> None:
    """One file, with its time and its permissions; the target must not be there."""
    status = os.stat(source)
    try:
        copy_file(source, target, mode=(status.st_mode & 0o777) | 0o600, mtime_ns=status.st_mtime_ns)
    except PermissionError as error:
        if error.filename == source:
            raise UsageError(f"{source} cannot be read: {error.strerror}") from None
        raise


def is_inside(path: str, folder: str) -> bool:
    """Also true for the folder itself; links are followed."""
    real = os.path.realpath(folder)
    return os.path.commonpath([real, os.path.realpath(path)]) == real
