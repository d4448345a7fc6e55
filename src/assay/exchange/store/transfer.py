"""Helpers of all transfers of data: addresses, partial downloads, listings of folders.

Users give addresses as http://…, gs://…, s3://…, az://…, abfs://…, file:…, or a plain path.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import urllib.parse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from assay.errors import UsageError, suggest
from assay.system.files import copy_file, parse_json, write_atomic

FILE = "file"
WEB = ("http", "https")
STORES = ("gs", "s3", "az", "abfs", "abfss")


# ---------------------------------------------------------------- addresses


def parse_scheme(url: str, known: Sequence[str]) -> str | None:
    """Return the scheme of an address, or None for a plain path. An unknown scheme is an error, not a path."""
    if not url:
        raise UsageError("the address is empty")
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", url) or re.match(r"(file):", url, re.IGNORECASE)
    if not match:
        return None
    scheme = match[1].lower()
    try:
        netloc = urllib.parse.urlsplit(url).netloc
    except ValueError as error:  # the address is not shown: it may contain a password
        raise UsageError(f"an address that begins with {scheme}:// is not valid: {error}") from None
    if scheme not in known:
        hint = "known: " + ", ".join(f"{name}://" for name in known) + " and plain paths"
        if close := suggest(scheme, known):
            hint = f"{close} {hint}"
        raise UsageError(f"{render_url(url)}: {scheme}:// cannot be used here", hint)
    if scheme != FILE and not netloc:
        raise UsageError(f"{url!r} does not name a {'host' if scheme in WEB else 'bucket'}")
    return scheme


def parse_local(url: str, scheme: str | None) -> str:
    """Return the path of a file: URL, or a plain path unchanged."""
    if scheme is None:
        return url
    pieces = urllib.parse.urlsplit(url)
    if pieces.netloc not in {"", "localhost"}:
        hint = "only files of this machine can be used: write file:///PATH"
        raise UsageError(f"{url!r} names the machine {pieces.netloc!r}", hint)
    # ? and # separate parts of a web address; in a path they are ordinary characters
    rest = url.split(":", 1)[1]
    path = urllib.parse.unquote(rest[2 + len(pieces.netloc) :] if rest.startswith("//") else rest)
    if not path:
        raise UsageError(f"{url!r} does not name a path", "write file:///PATH")
    return path


def render_url(url: str) -> str:
    """Return an address without passwords and signed queries, to be shown."""
    pieces = urllib.parse.urlsplit(url)
    if pieces.scheme not in WEB:
        return url
    query = "…" if pieces.query else ""
    return urllib.parse.urlunsplit((pieces.scheme, pieces.netloc.rpartition("@")[2], pieces.path, query, ""))


# ---------------------------------------------------------------- partial downloads


def remove_part(part: str) -> None:
    """Remove a partial file or folder, but not its notes."""
    if os.path.isdir(part) and not os.path.islink(part):
        shutil.rmtree(part)
    else:
        with suppress(FileNotFoundError):
            os.unlink(part)


def digest_address(url: str) -> str:
    """Return a hash that identifies an address, which may contain a signature or a password."""
    return hashlib.sha256(url.encode()).hexdigest()


def load_notes(part: str, url: str) -> Mapping[str, Any]:
    """Load the notes on a partial download, or {} if it is of another or an unknown address."""
    with suppress(OSError, ValueError, KeyError, TypeError), open(f"{part}.json", encoding="utf-8") as file:
        notes = parse_json(file.read())
        return dict(notes) if notes["address"] == digest_address(url) else {}
    return {}


def write_notes(part: str, url: str, facts: Mapping[str, Any]) -> None:
    write_atomic(f"{part}.json", json.dumps({"address": digest_address(url), **facts}))


def forget(part: str) -> None:
    """Remove the notes on a partial download that is complete or will not be continued."""
    with suppress(FileNotFoundError):
        os.unlink(f"{part}.json")


# ---------------------------------------------------------------- folders


@dataclass(frozen=True, slots=True)
class DataFile:
    name: str  # relative path, with /
    path: str
    bytes: int


@dataclass(slots=True)
class FolderListing:
    """The files and folders in a folder, in order of name; links are followed."""

    files: list[DataFile] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)  # relative paths, each after its parent


def load_listing(folder: str) -> FolderListing:
    """List a folder. Raise UsageError for broken links, links that form a loop, pipes and devices."""
    listing = FolderListing()

    def add(inside: str, above: Sequence[os.stat_result]) -> None:
        above = (*above, os.stat(inside))
        for path in (os.path.join(inside, name) for name in sorted(os.listdir(inside))):
            name = os.path.relpath(path, folder)
            try:
                status = os.stat(path)
            except (FileNotFoundError, PermissionError) as error:
                raise UsageError(f"{path} cannot be read: {error.strerror}") from None
            if stat.S_ISDIR(status.st_mode):
                if any(os.path.samestat(status, each) for each in above):
                    raise UsageError(f"{path} is a link to a folder that it is in", "remove it: it forms a loop")
                listing.folders.append(name)
                add(path, above)
            elif stat.S_ISREG(status.st_mode):
                listing.files.append(DataFile(name, path, status.st_size))
            else:
                raise UsageError(f"{path} is neither a file nor a folder")

    add(folder, ())
    return listing


def copy_data(source: str, target: str) -> None:
    """Copy a file with its time and permissions. The target must not exist."""
    status = os.stat(source)
    try:
        copy_file(source, target, mode=(status.st_mode & 0o777) | 0o600, mtime_ns=status.st_mtime_ns)
    except PermissionError as error:
        if error.filename == source:
            raise UsageError(f"{source} cannot be read: {error.strerror}") from None
        raise
