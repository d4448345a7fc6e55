"""Folders in shared storage, such as a store of golden recordings, used through a copy on this machine.

<cache>/stores/<digest of the address>/
    read/<name>/    the copy for commands that only read, several at once; updated when no command uses it
    read/lock       held shared by commands that use the copy, exclusive by a command that updates the copy
    write/<name>/   the copy for commands that write, one at a time
    write/fetched.json   the files as they were fetched: files that differ were written here
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from assay.errors import InfrastructureError, UsageError
from assay.exchange.sharing import locked, move_into
from assay.exchange.store import mirror
from assay.exchange.store.manifests import FOLDERS, FolderManifest, build_key, render
from assay.exchange.store.mirror import OutgoingFolder
from assay.exchange.store.remote import Remote, hash_file, open_remote
from assay.system.files import cache_dir, parse_json, write_atomic
from assay.system.locks import RangeLocks
from assay.values.notify import Notify, ignore

_IN_USE = "in use"


@contextmanager
def shared_folder(address: str, *, writes: bool, notify: Notify = ignore) -> Iterator[str]:
    """Yield the path of a copy of the folder at an address (`s3://bucket/golden`: the folder `golden` in
    `s3://bucket`), and at the end send back the files that were written into it."""
    base, _, name = address.rstrip("/").rpartition("/")
    if not name or base.endswith(":/"):
        raise UsageError(f"{address} does not name a folder in the store", f"as in {address.rstrip('/')}/golden")
    remote = open_remote(base, notify)
    digest = hashlib.sha256(address.rstrip("/").encode()).hexdigest()[:16]
    parent = os.path.join(cache_dir(os.environ), "stores", digest, "write" if writes else "read")
    try:
        os.makedirs(os.path.join(parent, name), exist_ok=True)
    except OSError as error:
        hint = "set ASSAY_CACHE_DIR to a folder that can be written"
        raise InfrastructureError(f"{parent} cannot be made: {error.strerror}", hint) from error
    opened = _open_to_write if writes else _open_to_read
    with opened(address, remote, os.path.join(parent, name), notify) as copy:
        yield copy


def _load_manifest(remote: Remote, name: str) -> FolderManifest:
    return mirror.load_manifest(remote, build_key(FOLDERS, name)) or FolderManifest("folder", name)


# ---------------------------------------------------------------- reading


@contextmanager
def _open_to_read(address: str, remote: Remote, copy: str, notify: Notify) -> Iterator[str]:
    """Open the copy for a command that only reads, with one request if the copy is up to date."""
    locks = RangeLocks(os.path.join(os.path.dirname(copy), "lock"))
    try:
        while True:
            locks.hold(_IN_USE)
            manifest = _load_manifest(remote, os.path.basename(copy))
            if not any(_find_differences(manifest, copy)):
                break
            locks.release(_IN_USE)
            with locks.exclusive(_IN_USE, wait=False) as is_free:
                if is_free:
                    _bring_up_to_date(manifest, remote, copy)
                    continue
            notify(f"{address} has changed: waiting for another command that uses the copy of it on this machine")
            with locks.exclusive(_IN_USE):
                _bring_up_to_date(manifest, remote, copy)
        yield copy
    finally:
        locks.close()


def _find_differences(manifest: FolderManifest, copy: str) -> tuple[set[str], set[str]]:
    """Return the files that are missing or wrong in the copy, and the files that only the copy has."""
    wrong = {name for name, file in manifest.files.items() if not mirror.is_file_of(os.path.join(copy, name), file)}
    return wrong, set(mirror.list_folder(copy)[0]) - set(manifest.files)


def _bring_up_to_date(manifest: FolderManifest, remote: Remote, copy: str) -> None:
    wrong, extra = _find_differences(manifest, copy)
    for name in extra:
        os.unlink(os.path.join(copy, name))
    _fetch(manifest, remote, copy, wrong)


def _fetch(manifest: FolderManifest, remote: Remote, copy: str, names: set[str]) -> None:
    if names:
        mirror.fetch_files(manifest, copy + ".pull", remote, wanted=frozenset(names))
        move_into(copy + ".pull", copy, sorted(names))
        shutil.rmtree(copy + ".pull")


# ---------------------------------------------------------------- writing


@contextmanager
def _open_to_write(address: str, remote: Remote, copy: str, notify: Notify) -> Iterator[str]:
    """Open the copy for a command that writes. Files that an earlier call wrote but could not send are kept."""
    name, base_file = os.path.basename(copy), os.path.join(os.path.dirname(copy), "fetched.json")
    with locked(copy, f"another command on this machine writes to {address} now"):
        before: Mapping[str, Any] = {}
        with suppress(OSError, ValueError, KeyError, TypeError), open(base_file, "rb") as file:
            before = dict(parse_json(file.read())["files"])
        manifest = _load_manifest(remote, name)
        _fetch(manifest, remote, copy, {each for each in manifest.files if not _is_kept(manifest, copy, each, before)})
        write_atomic(base_file, render(FolderManifest("folder", name, {}, manifest.files, {})))
        yield copy
        key, leaves_out = build_key(FOLDERS, name), lambda each: each.endswith(".partial")
        folder = OutgoingFolder(key, "folder", name, copy, leaves_out=leaves_out, base=manifest.files, keeps=True)
        try:
            (sent,) = mirror.push([folder], remote)
        except InfrastructureError as error:
            again = f"assay push {shlex.quote(copy)} --to {shlex.quote(remote.address)}"
            hint = f"when the store answers again: {again}"
            raise InfrastructureError(f"{error.message}; what was written is kept in {copy}", hint) from error
        notify(f"sent {sent.sent} of {len(sent.manifest.files)} files to {address}")


def _is_kept(manifest: FolderManifest, copy: str, name: str, before: Mapping[str, Any]) -> bool:
    """Return whether a file is kept: it equals the store's file, or was written here since the last fetch."""
    path = os.path.join(copy, name)
    if mirror.is_file_of(path, manifest.files[name]):
        return True
    return os.path.isfile(path) and hash_file(path)[1] != (before.get(name) or ["", ""])[1]
