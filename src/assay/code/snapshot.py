"""A snapshot of the code: a copy that is taken once and given to every run as a private tree.

<store>/
    <hash>/tree/            the files, as they were when the snapshot was taken
    <hash>/manifest.json    the files of the tree, and the paths that are linked instead
    <hash>/pulled           marks a snapshot of `assay pull`: runs of this machine do not get it
    seen.json               size, times and inode of each source file with its digest, to make the next snapshot fast
    .tmp-*                  a snapshot that is being written, or whose writer was killed

The hash covers relative path, x bit and bytes of files, targets of symbolic links, empty folders, and which files only
their owner may read. The digest of the copied bytes names the snapshot, so an edit during the copy gives another
snapshot, never a wrong name.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from assay.code.tree import FileEntry, Limits, Selection, StrPath, Tree, load_tree, unreadable_error
from assay.errors import AssayError, FormatError, InfrastructureError, UsageError
from assay.system.fast_dataclasses import asdict, dataclass, field
from assay.system.files import blake2b, copy_file, parse_json, read_text, rename, write_atomic, write_new
from assay.values.layout import TEMPORARY_PREFIX
from assay.values.plain import parse_strict

_TREE = "tree"
_MANIFEST = "manifest.json"
_SEEN = "seen.json"
PULLED = "pulled"  # a file next to the manifest: the snapshot is of `assay pull`, and is not given to runs
_FORMAT = 1
_HASH_BYTES = 16
_SETTLED_NS = 1_000_000_000  # a file that was changed more recently may change again in the same tick of its clock
_HELD_FILE_BYTES = 65_536  # files up to this size are kept in memory between placements, if their tree is small
_HELD_TREE_BYTES = 4_000_000  # trees up to this size are small

Seen = dict[str, list[Any]]  # path -> [size, mtime_ns, ctime_ns, inode, digest]


@dataclass(frozen=True, slots=True)
class _Manifest:
    """The content of a snapshot's `manifest.json`, in this order; paths are relative."""

    format: int
    source: str
    files: tuple[tuple[str, int, int], ...]  # path, permissions, mtime_ns
    modes: Mapping[str, int]  # permissions of folders that not every user may enter
    secret: tuple[str, ...]
    symlinks: tuple[tuple[str, str], ...]
    empty: tuple[str, ...]
    linked: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of the code in a store. `linked` are relative paths, too large or ignored, that runs use in `source`."""

    hash: str
    path: str
    files: int
    bytes: int
    linked: tuple[str, ...]
    source: str
    secret: tuple[str, ...] = ()  # paths that are named like a secret: linked even if links are not allowed
    largest: tuple[tuple[str, int], ...] = field(default=(), compare=False)  # folders of the source, with their bytes


def take_snapshot(
    source: StrPath,
    store: StrPath,
    ignore: Sequence[str] = (),
    exclude: Sequence[StrPath] = (),
    *,
    guess: bool = True,
    link: bool = True,
    limits: Limits | None = None,
    secret: Sequence[str] = (),
    clock: Callable[[], int] = time.time_ns,
) -> Snapshot:
    """Copy the code into the store, unless the store has it already. `guess` leaves out .git, __pycache__, node_modules
    and virtual environments and links what git ignores; without it only the patterns count. `secret`: patterns of names
    that are linked, never copied."""
    source = os.path.abspath(source)
    selection = Selection(tuple(ignore), (*exclude, store), guess, link, limits or Limits(), tuple(secret))
    try:
        os.makedirs(store, exist_ok=True)
        looked_at = clock()
        tree = load_tree(source, selection)
        contents = _Contents(source, tree, _load_seen(store))
        digest = contents.digest()
        _remove_unusable(os.path.join(store, digest))
        if not os.path.exists(os.path.join(store, digest)):
            digest = _write_snapshot(store, contents)
        settled = contents.settled(looked_at)
        if settled != contents.seen:
            write_atomic(os.path.join(store, _SEEN), json.dumps(settled))
    except OSError as error:
        raise InfrastructureError(f"cannot keep a copy of the code in {str(store)!r}: {error.strerror}") from error
    path = os.path.join(store, digest, _TREE)
    largest = tuple(sorted(((folder.path, folder.bytes) for folder in tree.folders), key=lambda each: -each[1]))
    return Snapshot(digest, path, tree.count, tree.bytes, contents.linked, source, contents.secret, largest)


def _remove_unusable(path: str) -> None:
    """Remove a snapshot that was pulled (a new copy is safer), or that a power cut has damaged."""
    if os.path.exists(os.path.join(path, PULLED)) or (os.path.exists(path) and not _is_whole(path)):
        aside = os.path.join(os.path.dirname(path), f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}")
        rename(path, aside)
        shutil.rmtree(aside, ignore_errors=True)


def _is_whole(path: str) -> bool:
    try:
        found = _load_manifest(path)
        return found.bytes == sum(os.path.getsize(os.path.join(path, _TREE, name)) for name, *_ in found.files)
    except (AssayError, OSError):
        return False


def load_snapshot(store: StrPath, digest: str, *, to_read: bool = False) -> Snapshot:
    """Load an earlier snapshot: a queued run gets the code of its study's start. `to_read`: also a pulled snapshot."""
    if not to_read and os.path.exists(os.path.join(store, digest, PULLED)):
        raise FormatError(f"the code snapshot {digest} was pulled from elsewhere", "use the current code: --new-code")
    found = _load_manifest(os.path.join(store, digest))
    path = os.path.join(store, digest, _TREE)
    return Snapshot(digest, path, len(found.files), found.bytes, found.linked, found.source, found.secret)


def list_changes(store: StrPath, old: str, new: str) -> list[ChangedFile]:
    """Return the files that differ between two snapshots of the store, by name; none if one of them is missing."""
    import filecmp

    try:
        manifests = [_load_manifest(os.path.join(store, digest)) for digest in (old, new)]
    except AssayError:
        return []
    before, after = ({path for path, *_ in manifest.files} for manifest in manifests)
    left, right = (os.path.join(store, digest, _TREE) for digest in (old, new))
    changed = [ChangedFile(path, f"{right}/{path}", is_new=True) for path in after - before]
    changed += [ChangedFile(path, f"{left}/{path}") for path in before - after]
    for path in before & after:
        with suppress(OSError, ValueError):  # the copy was removed, or the manifest has a name that no file can have
            if filecmp.cmp(f"{left}/{path}", f"{right}/{path}", shallow=False):
                continue
        changed.append(ChangedFile(path, f"{right}/{path}"))
    return sorted(changed, key=lambda change: change.name)


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file that differs between two snapshots; `file` is its newest copy."""

    name: str
    file: str
    is_new: bool = False


class _Contents:
    """A tree with the digests of its files; with `seen`, unchanged files need not be read."""

    def __init__(self, source: str, tree: Tree, seen: Seen) -> None:
        self.source = source
        folders = list(tree.walk())
        self.files = [file for folder in folders for file in folder.files]
        self.linked = tuple(path for folder in folders for path in folder.linked)
        self.secret = tuple(path for folder in folders for path in folder.secret)
        self.modes = {folder.path: folder.mode for folder in folders if folder.path}
        self.empty = [folder.path for folder in folders if folder.path and folder.is_empty]
        skipped = {path for folder in folders for path in (*folder.skipped, *folder.secret)}
        self.symlinks = [
            (path, _retarget(self.source, path, target, skipped))
            for folder in folders
            for path, target in folder.symlinks
        ]
        self.seen = seen
        self.digests: dict[str, str] = {}
        self.gone: set[str] = set()

    def digest(self) -> str:
        """Return the hash of the whole tree; files whose state is not in `seen` are read."""
        unreadable = [file.path for file in self.files if file.path not in self.digests and not self._find_digest(file)]
        if unreadable:
            raise unreadable_error(unreadable)
        total = blake2b(digest_size=_HASH_BYTES)
        for record in sorted(self._records()):
            total.update(b"%d:" % len(record))  # the lengths keep a hostile name from imitating another tree
            total.update(record)
        return total.hexdigest()

    def _records(self) -> Iterable[bytes]:
        for file in self.present():
            kind = (b"x" if file.executable else b"f") + (b"p" if file.is_private else b"")
            yield b"\0".join((os.fsencode(file.path), kind, self.digests[file.path].encode()))
        for path, target in self.symlinks:
            yield b"\0".join((os.fsencode(path), b"l", os.fsencode(target)))
        for path in self.empty:
            yield b"\0".join((os.fsencode(path), b"d", b""))

    def present(self) -> list[FileEntry]:
        return [file for file in self.files if file.path not in self.gone] if self.gone else self.files

    def _find_digest(self, file: FileEntry) -> bool:
        known = self.seen.get(file.path)
        state = [file.size, file.mtime_ns, file.ctime_ns, file.inode]
        if isinstance(known, list) and len(known) == 5 and known[:4] == state:
            self.digests[file.path] = known[4]
            return True
        try:
            self.digests[file.path] = _hash_file(f"{self.source}/{file.path}")
        except FileNotFoundError:
            self.gone.add(file.path)
        except OSError:
            return False
        return True

    def copy(self, target: str) -> None:
        """Write the tree and compute the digest of every byte that was written."""
        os.mkdir(target)
        made = {""}
        for path in self.empty:
            self._make_folders(target, path, made)
        for file in self.present():
            self._make_folders(target, os.path.dirname(file.path), made)
            copy = f"{target}/{file.path}"
            try:
                copy_file(f"{self.source}/{file.path}", copy, mode=file.mode, mtime_ns=file.mtime_ns)
            except FileNotFoundError:
                self.gone.add(file.path)
            except PermissionError as error:
                raise unreadable_error([file.path]) from error
            else:
                self.digests[file.path] = _hash_file(copy)
        for path, destination in self.symlinks:
            self._make_folders(target, os.path.dirname(path), made)
            os.symlink(destination, f"{target}/{path}")

    def _make_folders(self, target: str, path: str, made: set[str]) -> None:
        if path in made:
            return
        self._make_folders(target, os.path.dirname(path), made)
        os.mkdir(f"{target}/{path}", self.modes.get(path, 0o777) | stat.S_IRWXU)
        made.add(path)

    def settled(self, looked_at_ns: int) -> Seen:
        """Return digests that may be kept: those of files that were not changed just before `looked_at_ns`."""
        return {
            file.path: [file.size, file.mtime_ns, file.ctime_ns, file.inode, self.digests[file.path]]
            for file in self.present()
            if max(file.mtime_ns, file.ctime_ns) + _SETTLED_NS < looked_at_ns
        }


def _retarget(source: str, path: str, target: str, skipped: set[str]) -> str:
    """Return a link's target: relative inside the tree, so that a run uses its own copy; otherwise absolute."""
    folder = os.path.dirname(f"{source}/{path}")
    pointed = os.path.normpath(os.path.join(folder, target))
    inside = os.path.relpath(pointed, source)
    outside = inside == os.pardir or inside.startswith(os.pardir + os.sep)
    if outside or any(inside == each or inside.startswith(each + os.sep) for each in skipped):
        return target if os.path.isabs(target) else os.path.join(os.path.realpath(folder), target)
    return os.path.relpath(pointed, folder) if os.path.isabs(target) else target


def _hash_file(path: str) -> str:
    digest = blake2b(digest_size=_HASH_BYTES)
    with open(path, "rb", buffering=0) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _write_snapshot(store: StrPath, contents: _Contents) -> str:
    """Write a snapshot to a temporary folder and rename it; of several writers the first wins, others use its copy."""
    aside = os.path.join(store, f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}")
    os.mkdir(aside)
    try:
        contents.copy(f"{aside}/{_TREE}")
        digest = contents.digest()
        with open(f"{aside}/{_MANIFEST}", "w", encoding="ascii") as stream:
            manifest = _Manifest(
                format=_FORMAT,
                source=contents.source,
                files=tuple((file.path, file.mode, file.mtime_ns) for file in contents.present()),
                modes={path: mode for path, mode in contents.modes.items() if mode & 0o055 != 0o055},
                secret=contents.secret,
                symlinks=tuple(contents.symlinks),
                empty=tuple(contents.empty),
                linked=contents.linked,
                bytes=sum(file.size for file in contents.present()),
            )
            json.dump(asdict(manifest), stream)
        target = os.path.join(store, digest)
        try:
            rename(aside, target)
        except OSError:
            if not os.path.exists(f"{target}/{_MANIFEST}"):
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return digest


def _load_seen(store: StrPath) -> Seen:
    """Load the digests of files that were seen. If they cannot be read, every file is read again."""
    try:
        seen = parse_json(read_text(os.path.join(store, _SEEN)))
    except (OSError, ValueError):
        return {}
    return seen if isinstance(seen, dict) else {}


def place_code(snapshot: Snapshot, target: StrPath, *, link: bool = True) -> None:
    """Give a run its private tree. `target` must not exist; its parent is the caller's temporary folder.

    Files are cloned if the file system can do that: they share blocks with the snapshot until one side is written to.
    Files are never hard links, by which one run's edits would reach another. With `link`, files that were not copied
    are reached through absolute links.
    """
    folders, files, symlinks = _load_layout(snapshot.path)
    base, origin = os.fspath(target), snapshot.path
    try:
        os.mkdir(base)
        for folder, mode in folders:
            os.mkdir(f"{base}/{folder}", mode)
        for path, mode, mtime_ns, held in files:
            if held is None:
                copy_file(f"{origin}/{path}", f"{base}/{path}", mode=mode, mtime_ns=mtime_ns)
            else:
                write_new(f"{base}/{path}", held, mode)
                os.utime(f"{base}/{path}", ns=(mtime_ns, mtime_ns))
        for path, destination in symlinks:
            os.symlink(destination, f"{base}/{path}")
        for path in (*snapshot.secret, *(snapshot.linked if link else ())):
            os.makedirs(os.path.dirname(f"{base}/{path}"), exist_ok=True)
            os.symlink(f"{snapshot.source}/{path}", f"{base}/{path}")
    except OSError as error:
        raise InfrastructureError(f"cannot place the code in {base!r}: {error.strerror}") from error


@lru_cache(maxsize=4)
def _load_layout(
    tree: str,
) -> tuple[list[tuple[str, int]], list[tuple[str, int, int, bytes | None]], tuple[tuple[str, str], ...]]:
    """Load a snapshot for many placements: folders with permissions, files with permissions, mtime and the bytes of
    small files, links with their targets."""
    manifest = _load_manifest(os.path.dirname(tree))
    hold = manifest.bytes <= _HELD_TREE_BYTES
    files = [
        (path, mode, mtime_ns, _load_small(f"{tree}/{path}") if hold else None)
        for path, mode, mtime_ns in manifest.files
    ]
    folders: set[str] = set()
    inside = [path for path, _, _ in manifest.files] + [path for path, _ in manifest.symlinks]
    for path in (*manifest.empty, *map(os.path.dirname, inside)):
        folder = path
        while folder and folder not in folders:
            folders.add(folder)
            folder = os.path.dirname(folder)
    outer_first = sorted(folders, key=lambda folder: folder.count("/"))
    modes = [(folder, manifest.modes.get(folder, 0o777) | stat.S_IRWXU) for folder in outer_first]
    return modes, files, manifest.symlinks


def _load_small(path: str) -> bytes | None:
    with open(path, "rb", buffering=0) as stream:
        content = stream.read(_HELD_FILE_BYTES + 1)
    return content if len(content) <= _HELD_FILE_BYTES else None


def _load_manifest(folder: str) -> _Manifest:
    try:
        manifest = parse_json(read_text(f"{folder}/{_MANIFEST}"))
    except FileNotFoundError as error:
        raise UsageError(f"there is no copy of the code in {folder!r}", "start the study again to take one") from error
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"the copy of the code in {folder!r} is damaged: {error}") from error
    fields: dict[str, Any] = manifest if isinstance(manifest, dict) else {}
    if type(fields.get("format")) is int and fields["format"] != _FORMAT:
        raise FormatError(f"the copy of the code in {folder!r} was made by another version of Assay")
    try:
        return parse_strict(_Manifest, fields)
    except (ValueError, TypeError):
        reason = "its list of files is not as it was written"
        raise FormatError(f"the copy of the code in {folder!r} is damaged: {reason}") from None
