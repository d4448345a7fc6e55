"""Folders in shared storage (an object store, or a path), sent and fetched without sending any content twice.

<address>/objects/<2 digits>/<sha256>   the content of files, each stored once
<address>/<key>.json                    a folder: the names of its files with size, SHA-256, permissions and time

A manifest is written after all its objects have been found in the store with the right hash: a killed transfer leaves
no manifest, and the next transfer continues with the objects that have arrived. Objects never change, so the objects of
an older manifest can still be read.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from assay.errors import FormatError, InfrastructureError, UsageError
from assay.exchange.store import manifests
from assay.exchange.store.manifests import FolderManifest, Stored, is_upload, object_key, rename_files, suggest_push
from assay.exchange.store.remote import Remote, hash_file
from assay.exchange.store.transfer import copy_data
from assay.system.files import TEMPORARY_SUFFIX, rename
from assay.values.layout import PRESENCE_FILE, SECRETS_FILE

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_PASSING = re.compile(r"\.[0-9a-f]{8}\.tmp$")  # names of temporary files of system/files.py
_FOLDERS_AT_ONCE = 4
_FILES_AT_ONCE = 32
_MOST_TRIES = 50  # attempts to write a manifest that other clients write, too
_SHOWN_AFTER_S = (0.1, 0.4, 1.5)  # some stores list new objects with a delay
_IN_MEMORY = 8 << 20  # bytes; smaller files are sent from memory, so that exactly the hashed content is sent
_ASK_FIRST = 1 << 16  # bytes; smaller files are sent without asking whether the store has them


# ---------------------------------------------------------------- manifests


def load_manifest(remote: Remote, key: str) -> FolderManifest | None:
    """Load a manifest with the listings of its trees. Raise FormatError if it is damaged or must not be used."""
    text = remote.read(key)
    if text is None:
        return None
    manifest = _build_whole(text, remote, key)
    if fault := manifests.find_fault(manifest, key):
        hint = f"nothing of it was taken; {suggest_push(remote.address, key)}"
        raise FormatError(f"{remote.address}/{key} {fault}", hint)
    return manifest


def load_manifests(remote: Remote, keys: Sequence[str], damaged: list[FormatError]) -> list[FolderManifest]:
    """Load the existing manifests, in order. Errors are added to `damaged`."""
    found = list(try_each(lambda key: load_manifest(remote, key), keys, _FILES_AT_ONCE))
    damaged += [each for each in found if isinstance(each, FormatError)]
    return [each for each in found if isinstance(each, FolderManifest)]


def try_each(call: Callable[[_Item], _Result], items: Iterable[_Item], at_once: int) -> Iterator[_Result | FormatError]:
    """Call a function for several items at once; yield the results in order. A FormatError is yielded, not raised."""

    def attempt(item: _Item) -> _Result | FormatError:
        try:
            return call(item)
        except FormatError as error:
            return error

    with _pool(at_once) as pool:
        yield from pool.map(attempt, items)


def _build_whole(text: bytes, remote: Remote, key: str) -> FolderManifest:
    again = suggest_push(remote.address, key)
    manifest = manifests.parse(text, f"{remote.address}/{key}", again)
    files, links, empty = dict(manifest.files), dict(manifest.links), list(manifest.empty)
    for folder, sha256 in manifest.trees.items():
        where = f"{remote.address}/{object_key(sha256)}"
        listing = remote.read(object_key(sha256))
        if listing is None or hashlib.sha256(listing).hexdigest() != sha256:
            why = "it is missing" if listing is None else "its hash is wrong"
            raise FormatError(f"{where} is damaged: {why}", again)
        tree = rename_files(manifests.parse(listing, where, again), lambda name, top=folder: f"{top}/{name}")  # type: ignore[misc]
        files |= tree.files
        links |= tree.links
        empty += tree.empty
    return replace(manifest, files=files, links=links, empty=tuple(empty))


# ---------------------------------------------------------------- sending


@dataclass(frozen=True, slots=True)
class OutgoingFolder:
    """A folder to send."""

    key: str
    kind: str
    name: str
    path: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    trees: tuple[str, ...] = ()  # top-level folders that other folders share
    leaves_out: Callable[[str], bool] = lambda _name: False  # called with each file's and folder's relative name
    base: Mapping[str, Stored] | None = None  # files as they were fetched: only changed files are sent
    keeps: bool = False  # keep files that only the store has, and of two versions of a file the newer one


@dataclass(frozen=True, slots=True)
class Sent:
    folder: OutgoingFolder
    sent: int  # number of files that were sent
    sent_bytes: int
    is_new: bool
    manifest: FolderManifest


def push(
    folders: Sequence[OutgoingFolder], remote: Remote, *, check: bool = False, dry_run: bool = False
) -> Iterator[Sent]:
    """Send folders, several at once, and yield the results in order. `check`: verify the objects that should exist."""
    with _pool(_FILES_AT_ONCE) as files, _pool(_FOLDERS_AT_ONCE) as several:
        yield from several.map(lambda each: _push_one(each, remote, files, check, dry_run), folders)


@contextmanager
def _pool(count: int) -> Iterator[Executor]:
    pool = ThreadPoolExecutor(count, thread_name_prefix="mirror")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _push_one(folder: OutgoingFolder, remote: Remote, pool: Executor, check: bool, dry_run: bool) -> Sent:
    text, old = _load_old(folder, remote)
    is_new, known = old is None, dict(old.files) if old else {}
    names, links, empty = list_folder(folder.path, folder.leaves_out)
    sender = _Sender(remote, {file.sha256 for file in known.values()}, check, dry_run)

    def take(name: str) -> tuple[str, Stored | None]:
        return name, sender.send(os.path.join(folder.path, name), known.get(name))

    here = FolderManifest(folder.kind, folder.name, folder.facts, empty=empty, links=links)
    here = replace(here, files={name: file for name, file in pool.map(take, names) if file is not None})
    for _ in range(_MOST_TRIES):
        if old is not None and is_upload(folder.facts) and not is_upload(old.facts):  # the owner has sent the run
            return Sent(folder, 0, 0, is_new, old)
        manifest = _merge(folder, here, old)
        if fault := manifests.find_fault(manifest, folder.key):
            raise UsageError(f"{folder.path} cannot be sent: it {fault}")
        shown, trees = _split_trees(manifest, folder.trees)
        if not dry_run:
            listings = _Sender(remote, set(old.trees.values()) if old else set(), check, dry_run)
            for listing in trees:
                listings.send_bytes(listing)
        rendered = manifests.render(shown)
        if dry_run or rendered == text or remote.replace(rendered, folder.key, text):
            return Sent(folder, len(sender.counted), sum(sender.counted), is_new, manifest)
        text, old = _load_old(folder, remote)  # another client wrote the manifest: merge both
    raise InfrastructureError(f"{remote.address}/{folder.key} is written by others all the time", "try again later")


def _load_old(folder: OutgoingFolder, remote: Remote) -> tuple[bytes | None, FolderManifest | None]:
    text = remote.read(folder.key)
    try:
        old = None if text is None else _build_whole(text, remote, folder.key)
    except FormatError:
        old = None
    if old is not None:  # a damaged manifest may have a name as two kinds
        folders = manifests.find_folders([*old.files, *old.links])
        files = {name: each for name, each in old.files.items() if name not in folders}
        links = {name: each for name, each in old.links.items() if name not in folders and name not in files}
        old = replace(old, files=files, links=links, empty=())
    if old is not None and manifests.find_fault(old, folder.key):
        old = None  # a valid manifest replaces the invalid one
    if old is not None and "uid" in folder.facts and old.facts.get("uid") != folder.facts["uid"]:
        hint = "send this one to another address"
        raise UsageError(f"{remote.address} holds another run that is called {folder.name}", hint)
    if old is not None and is_upload(old.facts) and not is_upload(folder.facts):
        old = None  # the owner's run replaces an upload completely
    return text, old


def _merge(folder: OutgoingFolder, here: FolderManifest, old: FolderManifest | None) -> FolderManifest:
    """Return the manifest to write, given the manifest `old` that the store has now."""
    found, known = here.files, old.files if old else {}
    if folder.base is not None:
        found = {n: each for n, each in found.items() if (was := folder.base.get(n)) is None or was[:2] != each[:2]}
    elif folder.keeps:
        found = {n: each for n, each in found.items() if n not in known or each.mtime_ns >= known[n].mtime_ns}
    ours = replace(here, files=found)
    if not folder.keeps or old is None:
        return ours
    if old.facts.get("stamp", 0) > here.facts.get("stamp", 0):
        ours, facts = _drop_other_kinds(ours, old), old.facts
    else:
        old, facts = _drop_other_kinds(old, ours), here.facts
    files, links = {**old.files, **ours.files}, {**old.links, **ours.links}
    taken = {*files, *links, *manifests.find_folders([*files, *links])}
    return replace(ours, facts=facts, files=files, links=links, empty=tuple(n for n in ours.empty if n not in taken))


def _drop_other_kinds(manifest: FolderManifest, newer: FolderManifest) -> FolderManifest:
    """Drop names that have another kind in the newer manifest, such as a file that is now a link or a folder."""
    leaves = {*newer.files, *newer.links}
    folders = {*manifests.find_folders([*leaves, *newer.empty]), *newer.empty}

    def stays(name: str, others: Mapping[str, object]) -> bool:
        return name not in folders and name not in others and leaves.isdisjoint(manifests.find_folders([name]))

    return replace(
        manifest,
        files={name: each for name, each in manifest.files.items() if stays(name, newer.links)},
        links={name: each for name, each in manifest.links.items() if stays(name, newer.files)},
        empty=tuple(name for name in manifest.empty if name not in leaves and stays(name, {})),
    )


def _split_trees(manifest: FolderManifest, tops: Sequence[str]) -> tuple[FolderManifest, list[bytes]]:
    listings: list[bytes] = []
    for top in tops:
        begin = top + "/"
        inside = rename_files(manifest, lambda name: name.removeprefix(begin) if name.startswith(begin) else None)  # noqa: B023
        if not inside.files and not inside.links and not inside.empty:
            continue
        listing = manifests.render(replace(inside, kind="tree", name="", facts={}, trees={}))
        listings.append(listing)
        outside = rename_files(manifest, lambda name: None if name.startswith(begin) else name)  # noqa: B023
        manifest = replace(outside, trees={**manifest.trees, top: hashlib.sha256(listing).hexdigest()})
    return manifest, listings


def list_folder(
    path: str, leaves_out: Callable[[str], bool] = lambda _name: False, *, temporary: bool = False
) -> tuple[list[str], dict[str, str], tuple[str, ...]]:
    """Return the files, symbolic links and empty folders below a path, sorted, without secrets, pipes and sockets.

    Temporary files of Assay are listed only if `temporary` is set.
    """
    names: list[str] = []
    links: dict[str, str] = {}
    empty: list[str] = []
    waiting = [""]
    while waiting:
        inside = waiting.pop()
        try:
            entries = list(os.scandir(os.path.join(path, inside)))
        except FileNotFoundError:  # a running program has removed the folder
            continue
        except OSError as error:
            raise UsageError(f"{os.path.join(path, inside)} cannot be read: {error.strerror}") from error
        if inside and not entries:
            empty.append(inside)
        neighbours = {entry.name for entry in entries}
        for entry in entries:
            name = f"{inside}/{entry.name}" if inside else entry.name
            if entry.name == SECRETS_FILE or leaves_out(name) or (not temporary and _is_passing(entry, neighbours)):
                continue
            if entry.is_symlink():
                with suppress(FileNotFoundError):
                    links[name] = os.readlink(entry.path)
            elif entry.is_dir():
                waiting.append(name)
            elif entry.is_file():
                names.append(name)
    return sorted(names), dict(sorted(links.items())), tuple(sorted(empty))


def _is_passing(entry: os.DirEntry[str], neighbours: set[str]) -> bool:
    """Return whether an entry is a temporary file of Assay: `NAME.<8 digits>.tmp`, or empty `NAME.lock` next to NAME.
    Other lock files, such as uv.lock, are ordinary files."""
    if entry.name.endswith(".lock") and entry.name.removesuffix(".lock") in neighbours:
        return entry.is_file(follow_symlinks=False) and entry.stat().st_size == 0
    return entry.name == PRESENCE_FILE or _PASSING.search(entry.name) is not None


class _Sender:
    """Sends files; several threads use it at once."""

    def __init__(self, remote: Remote, known: set[str], check: bool, dry_run: bool) -> None:
        self._remote, self._known, self._check, self._dry_run = remote, known, check, dry_run
        self._lock = threading.Lock()
        self._claimed: set[str] = set()  # hashes that a thread checks or sends; the manifest is written after them
        self.counted: list[int] = []  # bytes of each file that was sent

    def send(self, path: str, known: Stored | None) -> Stored | None:
        """Send one file; return None if the file has been removed."""
        try:
            status = os.stat(path)
            if known and not self._check and (known.bytes, known.mtime_ns) == (status.st_size, status.st_mtime_ns):
                return known
            if status.st_size <= _IN_MEMORY:
                with open(path, "rb") as file:
                    content = file.read()
                sha256 = self.send_bytes(content)
                size = len(content)
            else:
                size, sha256 = self._send_large(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
        return Stored(size, sha256, stat.S_IMODE(status.st_mode), status.st_mtime_ns)

    def send_bytes(self, content: bytes) -> str:
        sha256 = hashlib.sha256(content).hexdigest()
        self._offer(content, len(content), sha256, hashlib.md5(content, usedforsecurity=False).hexdigest())
        return sha256

    def _send_large(self, path: str) -> tuple[int, str]:
        """Send a large file; if it changes during the transfer, copy it and send the copy."""
        before = os.stat(path)
        size, sha256, md5 = hash_file(path)
        try:
            self._offer(path, size, sha256, md5)
            after = os.stat(path)
            if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
                return size, sha256
        except InfrastructureError:
            after = os.stat(path)
            if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
                raise
        with tempfile.TemporaryDirectory(prefix="assay-push-") as folder:
            copy = os.path.join(folder, "copy")
            copy_data(path, copy)
            size, sha256, md5 = hash_file(copy)
            self._offer(copy, size, sha256, md5)
        return size, sha256

    def _offer(self, content: bytes | str, size: int, sha256: str, md5: str) -> None:
        with self._lock:
            if sha256 in self._claimed or (sha256 in self._known and not self._check):
                return
            self._claimed.add(sha256)
        asks = self._check or self._dry_run or size >= _ASK_FIRST
        if asks and self._has(size, sha256, md5):
            return
        self.counted.append(size)
        if self._dry_run:
            return
        if self._remote.send(content, object_key(sha256)) != md5 and not self._has_arrived(size, sha256, md5):
            where = f"{self._remote.address}/{object_key(sha256)}"
            raise InfrastructureError(f"{where} did not arrive as it was sent", "send it again: the same command")

    def _has_arrived(self, size: int, sha256: str, md5: str) -> bool:
        for delay_s in _SHOWN_AFTER_S:
            if self._remote.stat(object_key(sha256)) is not None:
                break
            time.sleep(delay_s)
        return self._has(size, sha256, md5)

    def _has(self, size: int, sha256: str, md5: str) -> bool:
        """Return whether the store has the content, by the MD5 that it reports, else by reading the object back."""
        key = object_key(sha256)
        found = self._remote.stat(key)
        if found is None or found[0] != size:
            return False
        return found[1] == md5 or self._remote.digest(key) == sha256


# ---------------------------------------------------------------- fetching


@dataclass(frozen=True, slots=True)
class FetchCounts:
    files: int  # number of files that were transferred
    bytes: int
    left_out: tuple[str, ...]  # symbolic links that lead outside


def fetch_files(
    manifest: FolderManifest,
    aside: str,
    remote: Remote,
    present: str | None = None,
    wanted: frozenset[str] | None = None,
) -> FetchCounts:
    """Fetch files into the folder `aside`, continuing a killed call; every file is compared with its hash.

    `present`: a folder that may already have some of the files; `wanted`: the names to fetch, or None for all.
    One FormatError names all files that are missing or damaged.
    """
    os.makedirs(aside, exist_ok=True)
    names = [name for name in manifest.files if wanted is None or name in wanted]
    there, links, _ = list_folder(aside, temporary=True)  # includes temporary files of a killed call
    for name in (*links, *(set(there) - set(names))):
        os.unlink(os.path.join(aside, name))
    for folder, _, _ in os.walk(aside, topdown=False):  # remove empty folders: a name may now be a file's or a link's
        if folder != aside:
            with suppress(OSError):
                os.rmdir(folder)
    results = list(try_each(lambda name: _fetch_one(manifest, name, aside, present, remote), names, _FILES_AT_ONCE))
    if damaged := [each for each in results if isinstance(each, FormatError)]:
        key = manifests.find_key(manifest.kind, manifest.name, "")
        raise FormatError("\n".join(each.message for each in damaged), suggest_push(remote.address, key or ""))
    came = [each for each in results if isinstance(each, int)]
    for name in manifest.empty if wanted is None else ():
        os.makedirs(os.path.join(aside, name), exist_ok=True)
    left_out = []
    for name, target in manifest.links.items():
        if wanted is not None and name not in wanted:
            continue
        if manifests.leads_outside(name, target):
            left_out.append(name)
            continue
        path = os.path.join(aside, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
    return FetchCounts(len(came), sum(came), tuple(left_out))


def _fetch_one(manifest: FolderManifest, name: str, aside: str, present: str | None, remote: Remote) -> int | None:
    """Fetch one file; return the number of bytes that were transferred, or None if the content was already here."""
    file = manifest.files[name]
    path = os.path.join(aside, name)
    if is_file_of(path, file):
        return None
    os.makedirs(os.path.dirname(path), exist_ok=True)
    known = hashlib.sha256(os.fsencode(name)).hexdigest()  # a hash: a name may be as long as the file system allows
    part = os.path.join(os.path.dirname(path), f".{known[:16]}.{known[16:24]}{TEMPORARY_SUFFIX}")
    with suppress(FileNotFoundError):
        os.unlink(part)
    here = os.path.join(present, name) if present else ""
    is_here = is_file_of(here, file)
    shown = f"{remote.address}/{object_key(file.sha256)} ({name} of {manifest.name})"
    if is_here:
        copy_data(here, part)
    elif not remote.bring(object_key(file.sha256), part):
        raise FormatError(f"{shown} is damaged: it is missing")
    if not is_file_of(part, file):
        os.unlink(part)
        raise FormatError(f"{shown} is damaged: its hash is wrong")
    os.chmod(part, (file.mode & 0o755) | 0o600)
    os.utime(part, ns=(file.mtime_ns, file.mtime_ns))
    rename(part, path)
    return None if is_here else file.bytes


def is_file_of(path: str, file: Stored) -> bool:
    """Return whether the path is a regular file, not a link, with exactly the content of `file`."""
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size != file.bytes:
            return False
        with open(path, "rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256
    except OSError:
        return False
