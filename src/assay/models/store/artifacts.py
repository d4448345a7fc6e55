"""The artifact store: the results of tools for models, found by the hash of everything that they depend on.

<folder>/v2/
    lock                          empty; see RangeLocks in system.locks
    <key>/<version>.<bytes>/      an entry, complete from the moment it has this name, and never changed; see entry
    <key>/building/               a build in progress, or one that was killed

A key is the hash of all inputs (model bytes, tool versions, flags, input tensors), so an entry is never out of date: a
changed input has another key. The newest version of a key counts. Locks: the process that builds a key holds `<key>`
exclusively; processes that use an entry share `<key>/<version>.<bytes>`, which a process that removes the entry holds
exclusively. The manifest is removed first, and an entry without a manifest does not count: a kill at any time leaves no
wrong entry. Above the size limit entries are removed, least recently used (the mtime of their folder) first; never an
entry that a live process uses, and never the one that was just made.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC
from functools import partial
from typing import Any, Self

from assay.errors import InfrastructureError, UsageError
from assay.models.store.entry import (
    FILES,
    MANIFEST,
    EntryError,
    EntryManifest,
    Stamps,
    build_key,
    build_manifest,
    check_files,
    load_manifest,
    relocate,
    render_miss,
)
from assay.system.fast_dataclasses import asdict, dataclass, field
from assay.system.files import cache_dir, rename, write_atomic
from assay.system.locks import RangeLocks
from assay.values.plain import render_date
from assay.values.units import parse_size

Build = Callable[[str], Mapping[str, Any] | None]

ENV_CACHE = "ASSAY_CACHE"
ENV_LIMIT = "ASSAY_CACHE_LIMIT"
DEFAULT_LIMIT_BYTES = 10 * 1024**3
NO_LIMIT = 2**63 - 1

_LAYOUT = "v2"
_BUILDING = "building"
_KEY = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"(?P<number>\d+)\.(?P<bytes>\d+)")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def choose_store_folder(env: Mapping[str, str], start: str) -> str:
    """Return ASSAY_CACHE (relative to `start`), else `artifacts` in the user's cache folder."""
    if env.get(ENV_CACHE):
        return os.path.abspath(os.path.join(start, env[ENV_CACHE]))
    return os.path.join(cache_dir(env), "artifacts")


def parse_limit(text: str) -> int:
    """Parse `20GB`, `512 MiB`, `1.5g`, a number of bytes; `none`: no limit. GB is a thousand MB, GiB 1024 MiB."""
    if text.strip().lower() == "none":
        return NO_LIMIT
    size = parse_size(text)
    if size is None:
        raise UsageError(f"{ENV_LIMIT}={text} is not a size", "for example 20GB, 512MiB, or none for no limit")
    return min(size, NO_LIMIT)


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """A result in `folder`, which may be read, but must never be changed. It cannot be evicted until `close` (or the
    end of a `with`), the store's `close`, or the end of the process."""

    key: str
    folder: str
    facts: Mapping[str, Any]
    made_at: float = 0.0
    made_by: str = ""
    _close: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    def close(self) -> None:
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class StoreEntry(EntryManifest):
    """One line of `assay model cache ls`."""

    used_at: float
    in_use: bool


@dataclass(frozen=True, slots=True)
class Cleared:
    removed: int
    freed_bytes: int
    kept: int  # entries in use by live processes


class ArtifactStore:
    """The store, safe between threads and processes. Nothing is written before the first `make`. `limit_bytes=None`:
    ASSAY_CACHE_LIMIT, else 10 GiB. `damaged` has the reasons why entries are damaged, by key."""

    def __init__(self, folder: str, limit_bytes: int | None = None) -> None:
        self.folder = os.path.abspath(folder)
        if limit_bytes is None:
            limit_bytes = parse_limit(os.environ[ENV_LIMIT]) if os.environ.get(ENV_LIMIT) else DEFAULT_LIMIT_BYTES
        self.limit_bytes = limit_bytes
        self.damaged: dict[str, str] = {}
        self._base = os.path.join(self.folder, _LAYOUT)
        self._locks = RangeLocks(os.path.join(self._base, "lock"))
        self._checked: dict[str, Stamps] = {}  # entry → stamps of its files when they were last found intact
        self._size_bytes: int | None = None  # size of all entries, estimated; None until this process has made one

    def close(self) -> None:
        """Release everything that this object has loaded, and reduce the store to its limit."""
        self._locks.close()
        if self._size_bytes is not None:
            with contextlib.suppress(OSError):
                self._evict()
            self._size_bytes = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self, key: str) -> StoredArtifact | None:
        """Return a key's artifact; None if there is none, or it was damaged: `damaged[key]` has the reason."""
        try:
            return self._load(key)
        except OSError as error:
            raise InfrastructureError(f"cannot read the artifact cache {self.folder}: {error}") from error

    def _load(self, key: str) -> StoredArtifact | None:
        while (name := self._find_newest(key)) is not None:
            self._locks.hold(name)
            try:
                manifest = self._check(key, name)
            except FileNotFoundError:  # the entry was removed since it was listed
                self._locks.release(name)
            except EntryError as error:
                self.damaged[key] = str(error)
                self._locks.release(name)
                with contextlib.suppress(OSError):  # a read-only store cannot be changed
                    self._retire(name)
                return None
            except BaseException:
                self._locks.release(name)
                raise
            else:
                with contextlib.suppress(OSError):  # in a read-only store nothing is evicted
                    os.utime(self._path(name))
                return self._build_artifact(name, manifest)
        return None

    def _check(self, key: str, name: str) -> EntryManifest:
        manifest = load_manifest(self._path(name))
        if manifest.key != key:
            raise EntryError("its manifest belongs to another key")
        self._checked[name] = check_files(self._path(name), manifest, self._checked.get(name))
        return manifest

    def _build_artifact(self, name: str, manifest: EntryManifest) -> StoredArtifact:
        folder = os.path.join(self._path(name), FILES)
        return StoredArtifact(
            key=manifest.key,
            folder=folder,
            facts=relocate(manifest.facts, manifest.built_in, folder),
            made_at=manifest.made_at,
            made_by=manifest.made_by,
            _close=partial(self._release_once, [name]),
        )

    def _release_once(self, names: list[str]) -> None:
        """Release names only once: closing an artifact twice must not release another artifact."""
        while names:
            self._locks.release(names.pop())

    def explain(self, parts: Mapping[str, Any]) -> str:
        """Explain in one line why these parts are a hit or a miss. Call it before `make`, which makes a miss a hit."""
        key = build_key(parts)
        artifact = self.load(key)
        if artifact is not None:
            with artifact:
                when = render_date(artifact.made_at, "%Y-%m-%d %H:%M:%S UTC", UTC)
                return f"hit: made {when} by {artifact.made_by}"
        if key in self.damaged:
            return f"miss: the entry was damaged: {self.damaged[key]}"
        return render_miss(parts, ((entry.parts, entry.used_at) for entry in self.load_entries()))

    def load_entries(self) -> list[StoreEntry]:
        """Return the newest version of each key, most recently used first; the files themselves are not read."""
        found = []
        for name in filter(None, map(self._find_newest, self._list_keys())):
            with contextlib.suppress(OSError, EntryError):  # a removed or damaged entry is reported by `load`
                manifest, used_at = load_manifest(self._path(name)), os.stat(self._path(name)).st_mtime
                found.append(StoreEntry(**asdict(manifest), used_at=used_at, in_use=self._locks.is_held(name)))
        return sorted(found, key=lambda entry: (-entry.used_at, entry.key))

    def make(
        self,
        key: str,
        parts: Mapping[str, Any],
        build: Build,
        *,
        recompute: bool = False,
        made_since: float | None = None,
    ) -> tuple[StoredArtifact | None, bool]:
        """Return the artifact, and whether it was made now. `key` is `build_key(parts)`.

        `build` fills an empty folder and returns facts to store (JSON-like), or None if it failed: then nothing is
        stored. One process builds a key at a time; the others wait and use its result. `recompute` builds in any case,
        `made_since` only if the entry is older than this time: one session that recomputes builds each key once. If
        building again fails, the old entry is removed as well.
        """
        if key != build_key(parts):
            raise ValueError(f"{key} is not the key of these parts")
        oldest = float("inf") if recompute else made_since
        found = self._load_since(key, oldest)
        if found is not None:
            return found, False
        with contextlib.ExitStack() as stack:
            with self._writing():
                os.makedirs(self._base, exist_ok=True)
                stack.enter_context(self._locks.exclusive(key))
            found = self._load_since(key, oldest)  # another process may have made the entry during the wait
            if found is not None:
                return found, False
            name = self._build(key, parts, build)
        if name is None:
            return None, False
        self.damaged.pop(key, None)
        with contextlib.suppress(OSError):  # a failure to evict must not fail the build
            if self._size_bytes is not None:
                self._size_bytes += _find_size(name)  # other processes may add entries, too; `close` counts again
            if self._size_bytes is None or self._size_bytes > self.limit_bytes:
                self._evict(keep=name)
        # the manifest is read back, so that callers get the same types as from a stored entry
        return self._build_artifact(name, load_manifest(self._path(name))), True

    def _load_since(self, key: str, oldest: float | None) -> StoredArtifact | None:
        if oldest == float("inf"):
            return None
        found = self.load(key)
        if found is None or oldest is None or found.made_at >= oldest:
            return found
        found.close()
        return None

    def _build(self, key: str, parts: Mapping[str, Any], build: Build) -> str | None:
        """Build an entry. Returns its name, which is locked. The caller has the key's lock."""
        building = self._path(key, _BUILDING)
        folder = os.path.join(building, FILES)
        try:
            with self._writing():
                _remove_tree(building)
                os.makedirs(folder)
            with self._writing(only=_FULL):  # other errors of a builder are not the store's
                facts = build(folder)
            with self._writing():
                if facts is None:
                    for version in self._list_versions(key):
                        self._retire(f"{key}/{version}")
                    return None
                return self._publish(key, parts, facts, building)
        finally:
            _remove_tree(building)
            with contextlib.suppress(OSError):
                os.rmdir(self._path(key))

    def _publish(self, key: str, parts: Mapping[str, Any], facts: Mapping[str, Any], building: str) -> str:
        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:  # a user without a name, as in a container
            user = f"user {os.getuid()}"
        made_by, files = f"{user}@{os.uname().nodename}", os.path.join(building, FILES)
        manifest, stamps = build_manifest(key, parts, facts, files, time.time(), made_by)
        text = json.dumps(asdict(manifest)) + "\n"
        write_atomic(os.path.join(building, MANIFEST), text)
        old = self._list_versions(key)
        number = max(time.time_ns(), 1 + max(map(_find_number, old), default=0))
        name = f"{key}/{number}.{manifest.size_bytes + len(text)}"
        self._locks.hold(name)
        try:
            rename(building, self._path(name))
        except BaseException:
            self._locks.release(name)
            raise
        self._checked[name] = stamps
        for version in old:
            self._remove(f"{key}/{version}")
        return name

    @contextlib.contextmanager
    def _writing(self, only: tuple[int, ...] = ()) -> Iterator[None]:
        """Convert errors of the file system to InfrastructureError, with a hint on how to fix them."""
        try:
            yield
        except OSError as error:
            if only and error.errno not in only:
                raise
            path = error.filename if isinstance(error.filename, str) else self.folder
            hint = f"set {ENV_CACHE} to a folder that can be written"
            if error.errno in _FULL:
                hint = f"free disk space (`assay model cache clear`), or {hint}"
            message = f"cannot write in the artifact cache {self.folder}: {error.strerror}: {path}"
            raise InfrastructureError(message, hint) from error

    def clear(self) -> Cleared:
        """Remove everything that no live process uses."""
        names = self._list_names()
        with self._writing():
            removed = [name for name in names if self._remove(name)]
            self._remove_remains()
        return Cleared(len(removed), sum(map(_find_size, removed)), len(names) - len(removed))

    def _evict(self, keep: str = "") -> None:
        names = self._list_names()
        size = sum(map(_find_size, names))
        if size > self.limit_bytes:
            for name in sorted(names, key=self._find_used_at):
                if size > self.limit_bytes and name != keep and self._remove(name):
                    size -= _find_size(name)
        self._size_bytes = size
        self._remove_remains()

    def _find_used_at(self, name: str) -> float:
        try:
            os.stat(self._path(name, MANIFEST))
            return os.stat(self._path(name)).st_mtime
        except OSError:  # a partly removed entry is removed first
            return 0.0

    def _remove(self, name: str) -> bool:
        """Remove an entry. Returns False if it is in use."""
        key = os.path.dirname(name)
        with self._locks.exclusive(name, wait=False) as is_free:
            if not is_free:
                return False
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(self._path(name, MANIFEST))
            _remove_tree(self._path(name))
        self._checked.pop(name, None)
        with self._locks.exclusive(key, wait=False) as is_free, contextlib.suppress(OSError):
            if is_free:
                os.rmdir(self._path(key))
        return True

    def _retire(self, name: str) -> None:
        """Invalidate an entry; if it is in use, its files stay until a later removal."""
        if not self._remove(name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(name, MANIFEST))

    def _remove_remains(self) -> None:
        """Remove the files of builds and removals that were killed."""
        for key in self._list_keys():
            names = _list(self._path(key))
            if not names or _BUILDING in names:
                with self._locks.exclusive(key, wait=False) as is_free, contextlib.suppress(OSError):
                    if is_free:
                        _remove_tree(self._path(key, _BUILDING))
                        os.rmdir(self._path(key))

    def _path(self, *names: str) -> str:
        return os.path.join(self._base, *names)

    def _list_keys(self) -> list[str]:
        return list(filter(_KEY.fullmatch, _list(self._base)))

    def _list_versions(self, key: str) -> list[str]:
        return list(filter(_VERSION.fullmatch, _list(self._path(key))))

    def _list_names(self) -> list[str]:
        return [f"{key}/{version}" for key in self._list_keys() for version in self._list_versions(key)]

    def _find_newest(self, key: str) -> str | None:
        versions = sorted(self._list_versions(key), key=_find_number, reverse=True)
        return next((f"{key}/{each}" for each in versions if os.path.exists(self._path(key, each, MANIFEST))), None)


def _find_number(version: str) -> int:
    return int(version.partition(".")[0])


def _find_size(name: str) -> int:
    return int(name.rpartition(".")[2])


def _list(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove_tree(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if os.path.isdir(path):  # a tool may make read-only folders
        for folder, _, _ in os.walk(path):
            with contextlib.suppress(OSError):
                os.chmod(folder, stat.S_IRWXU)
        shutil.rmtree(path, ignore_errors=True)
