"""Send a folder out: to an object store, or to another place on this machine."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from assay.errors import InfrastructureError, UsageError
from assay.exchange import api as exchange
from assay.exchange.api import STORES, copy_data, load_listing, parse_local, parse_scheme
from assay.system.files import TEMPORARY_SUFFIX, is_inside, rename
from assay.values.notify import Notify, ignore

_SCHEMES = (*STORES, "file")


def check_target(url: str) -> None:
    """Raise UsageError for what can never be sent to. A network is not waited for: it may be there later."""
    scheme = parse_scheme(url, _SCHEMES)
    if scheme in STORES:
        exchange.check_installed(url)
        return
    target = parse_local(url, scheme)
    try:
        _make_target(target)
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}", "choose another folder") from error


def upload_folder(folder: str, url: str, notify: Notify = ignore) -> int:
    """What is in the folder, below the URL, with the same names. Returns how many files were sent and found there.

    A file that is there already is replaced. Empty folders are not sent: object stores have none.
    """
    scheme = parse_scheme(url, _SCHEMES)
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder!r} to send")
    files = load_listing(folder).files
    try:
        if scheme in STORES:
            exchange.upload(files, url, notify)
        else:
            target = parse_local(url, scheme)
            if is_inside(target, folder):
                raise UsageError(f"{folder} cannot be sent into itself ({target})")
            _make_target(target)
            for file in files:
                _copy_one(file.path, file.bytes, os.path.join(target, file.name))
    except PermissionError as error:
        raise UsageError(f"{error.filename or folder} cannot be used: {error.strerror}") from error
    except OSError as error:
        raise InfrastructureError(f"{folder} cannot be sent to {url}: {error.strerror or error}") from error
    return len(files)


def _make_target(target: str) -> None:
    os.makedirs(target, exist_ok=True)
    if not os.access(target, os.W_OK, effective_ids=True):  # reported for an empty folder, too
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)


def _copy_one(source: str, size: int, place: str) -> None:
    os.makedirs(os.path.dirname(place), exist_ok=True)
    aside = place + TEMPORARY_SUFFIX  # always the same, so that a copy that was killed leaves nothing for good
    with suppress(FileNotFoundError):
        os.unlink(aside)
    copy_data(source, aside)
    if os.path.getsize(aside) < size:  # longer is fine: a log may grow during the copy
        raise InfrastructureError(f"{place} has {os.path.getsize(aside)} of {size} bytes", "try again")
    rename(aside, place)
