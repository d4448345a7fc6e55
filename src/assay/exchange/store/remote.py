"""The interface of shared storage: named objects below an address, in an object store or in a folder."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from assay.errors import FormatError, InfrastructureError, UsageError
from assay.exchange.store import object_store
from assay.exchange.store.transfer import FILE, STORES, parse_local, parse_scheme
from assay.system.files import TEMPORARY_SUFFIX, replacing
from assay.system.locks import hold_file
from assay.values.notify import Notify, ignore

_BLOCK = 1 << 20  # bytes that are read at once
_LOCK_SUFFIX = ".lock"


class Remote(Protocol):
    """Named objects below an address."""

    address: str

    def read(self, key: str) -> bytes | None:
        """Return the bytes of an object, or None if there is no such object."""

    def find(self, prefix: str) -> list[str]:
        """Return the keys of all objects below a prefix."""

    def stat(self, key: str) -> tuple[int, str | None] | None:
        """Return the size of an object, and its MD5 if the store knows it; None if there is no such object."""

    def digest(self, key: str) -> str:
        """Read an object from the store and return its SHA-256."""

    def send(self, content: bytes | str, key: str) -> str | None:
        """Store bytes, or the file at a path; return the MD5 of the stored object if the store reports the MD5."""

    def replace(self, content: bytes, key: str, before: bytes | None) -> bool:
        """Write an object if it is still `before` (None: absent). Return False if another client has changed it."""

    def bring(self, key: str, path: str) -> bool:
        """Copy an object into a new file, or return False if there is no such object."""


def open_remote(address: str, notify: Notify = ignore) -> Remote:
    """Open shared storage. Raise UsageError for an invalid address, InfrastructureError if it cannot be used."""
    scheme = parse_scheme(address, (*STORES, FILE))
    if scheme in STORES:
        object_store.check_installed(address)
        return object_store.ObjectRemote(address, notify)
    return FolderRemote(os.path.abspath(parse_local(address, scheme)))


class FolderRemote:
    """Named files below a folder of this machine or of a shared file system."""

    def __init__(self, folder: str) -> None:
        self.address = folder
        if os.path.lexists(folder) and not os.path.isdir(folder):
            raise UsageError(f"{folder} is not a folder", "name a folder, or an address such as s3://BUCKET/PREFIX")

    def read(self, key: str) -> bytes | None:
        try:
            with open(self._path(key), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._build_unreadable(key, error) from error

    def find(self, prefix: str) -> list[str]:
        found = []
        for folder, _, names in os.walk(self._path(prefix)):
            inside = os.path.relpath(folder, self.address)
            found += [
                os.path.join(inside, name) for name in names if not name.endswith((TEMPORARY_SUFFIX, _LOCK_SUFFIX))
            ]
        return sorted(found)

    def stat(self, key: str) -> tuple[int, str | None] | None:
        with self._reporting():
            try:
                return os.stat(self._path(key)).st_size, None
            except (FileNotFoundError, NotADirectoryError):
                return None

    def digest(self, key: str) -> str:
        with self._reporting():
            return hash_file(self._path(key))[1]

    def replace(self, content: bytes, key: str, before: bytes | None) -> bool:
        path = self._path(key)
        with self._reporting():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with hold_file(path + _LOCK_SUFFIX, lambda _fd: None, required=False):
                if self.read(key) != before:
                    return False
                self.send(content, key)
        return True

    def send(self, content: bytes | str, key: str) -> str | None:
        path = self._path(key)
        with self._reporting():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with replacing(path) as aside:
                if isinstance(content, bytes):
                    with open(aside, "xb") as file:
                        file.write(content)
                else:
                    shutil.copyfile(content, aside)
        return None  # a disk reports no checksum, so the caller reads the file back

    def bring(self, key: str, path: str) -> bool:
        try:
            source = open(self._path(key), "rb")  # noqa: SIM115 closed below
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._build_unreadable(key, error) from error
        with source, open(path, "wb") as target:  # a full disk of this machine is not an error of the store
            shutil.copyfileobj(source, target, _BLOCK)
        return True

    def _path(self, key: str) -> str:
        return os.path.join(self.address, key)

    def _build_unreadable(self, key: str, error: OSError) -> FormatError:
        """Return the error about one unreadable object, such as a private file; other objects are still fetched."""
        hint = f"its owner can let others read it: chmod -R a+rX {shlex.quote(self.address)}"
        return FormatError(f"{self._path(key)} cannot be read: {error.strerror or error}", hint)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InfrastructureError(f"{self.address} cannot be used: {error.strerror or error}") from error


def hash_file(path: str) -> tuple[int, str, str]:
    """Return the size, SHA-256 and MD5 of a file."""
    sha256, md5, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            sha256.update(block)
            md5.update(block)
            size += len(block)
    return size, sha256.hexdigest(), md5.hexdigest()
