"""The artifact store: what tools made of models, found again by everything that went into it.

<folder>/v1/
    store.lock                         empty; its bytes are the locks, see artifact_locks
    keys/<key>                         the name of the entry that counts for a key; its mtime: when it was last used
    entries/<key>.<random>.<bytes>/    complete from the moment it has this name, and never changed; see artifact_entry
    building/<key>.<random>/           a build that goes on, or one that was killed; trash.<random>: on its way out

A key is the hash of all that went in (model bytes, tool versions, flags, inputs), so nothing is ever out of date: what
changed has another key. An entry gets its name when it is whole, and then the key's file is replaced: a killed builder
leaves nothing that counts, and who reads an entry that is replaced meanwhile keeps it, since the old folder stays until
nobody uses it. What is beyond the size limit leaves, least recently used first; never what a live process uses, and
never what was just made. Another layout gets a folder of its own, `v2`: two versions of Assay do not disturb one
another.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from assay.errors import InfrastructureError
from assay.models.store.entry import (
    FILES,
    MANIFEST,
    EntryError,
    Manifest,
    Stamps,
    build_key,
    build_manifest,
    check_files,
    load_manifest,
    relocate,
    render_manifest,
)
from assay.models.store.layout import StoreLayout, find_size, remove_tree
from assay.models.store.location import ENV_CACHE, choose_limit
from assay.models.store.reason import render_hit, render_miss
from assay.system.files import write_atomic
from assay.system.range_locks import StoreLocks

__all__ = ["Artifact", "ArtifactStore", "Cleared", "StoreEntry", "build_key"]

Build = Callable[[str], Mapping[str, Any] | None]

_LAYOUT = "v1"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Artifact:
    """What was made, in `folder`: to be read, never changed.

    It cannot be evicted until `close` (or the end of a `with`), the store's `close`, or the end of the process.
    """

    key: str
    folder: str
    parts: Mapping[str, Any]
    facts: Mapping[str, Any]
    made_at: float = 0.0
    made_by: str = ""
    size_bytes: int = 0
    _close: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    def close(self) -> None:
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """One line of `assay model cache ls`."""

    key: str
    parts: Mapping[str, Any]
    size_bytes: int
    made_at: float
    used_at: float
    made_by: str
    in_use: bool


@dataclass(frozen=True, slots=True)
class Cleared:
    removed: int
    freed_bytes: int
    kept: int  # in use by live processes


# ---------------------------------------------------------------- the store


class ArtifactStore:
    """Safe between threads and processes. Nothing is written before the first `make`.

    `limit_bytes=None`: ASSAY_CACHE_LIMIT, else 10 GiB. `damaged` tells why entries were found damaged, by key.
    """

    def __init__(self, folder: str, limit_bytes: int | None = None) -> None:
        self.folder = os.path.abspath(folder)
        self.limit_bytes = choose_limit(os.environ) if limit_bytes is None else limit_bytes
        self.damaged: dict[str, str] = {}
        base = os.path.join(self.folder, _LAYOUT)
        self._shelf = StoreLayout(base)
        self._locks = StoreLocks(os.path.join(base, "store.lock"))
        self._checked: dict[str, Stamps] = {}  # entry → how its files looked when they were right
        self._has_made = False

    def close(self) -> None:
        """Everything that was taken here may be evicted from now on; who made something leaves no more than the limit
        allows."""
        self._locks.close()
        if self._has_made:
            self._has_made = False
            with contextlib.suppress(OSError):
                self._evict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ finding

    def load(self, key: str) -> Artifact | None:
        """None: there is none, or it was damaged and is removed; `damaged[key]` then says why."""
        if not self._shelf.has_keys():
            return None
        name = self._take(key)
        if name is None:
            return None
        try:
            manifest = self._check(key, name)
        except EntryError as error:
            self.damaged[key] = str(error)
            self._locks.let_go(name)
            self._retire(key, name)
            return None
        except BaseException:
            self._locks.let_go(name)
            raise
        self._shelf.mark_used(key)
        return self._build_artifact(name, manifest)

    def _take(self, key: str) -> str | None:
        """The entry that counts, held: under the lock nobody can take it away between the two."""
        try:
            with self._locks.whole(exclusive=False):
                name = self._shelf.load_pointer(key)
                if name is not None:
                    self._locks.hold(name)
        except OSError as error:
            raise InfrastructureError(f"cannot read the artifact cache {self.folder}: {error}") from error
        return name

    def _check(self, key: str, name: str) -> Manifest:
        entry = self._shelf.find_entry(name)
        manifest = load_manifest(entry)
        if manifest.key != key:
            raise EntryError("its manifest belongs to another key")
        self._checked[name] = check_files(entry, manifest, self._checked.get(name))
        return manifest

    def _build_artifact(self, name: str, manifest: Manifest) -> Artifact:
        folder = os.path.join(self._shelf.find_entry(name), FILES)
        return Artifact(
            key=manifest.key,
            folder=folder,
            parts=manifest.parts,
            facts=relocate(manifest.facts, manifest.built_in, folder),
            made_at=manifest.made_at,
            made_by=manifest.made_by,
            size_bytes=manifest.size_bytes,
            _close=partial(self._let_go_once, [name]),
        )

    def _let_go_once(self, names: list[str]) -> None:
        """Closing an artifact twice must not let go what another one holds."""
        while names:
            self._locks.let_go(names.pop())

    def explain(self, parts: Mapping[str, Any]) -> str:
        """Why these parts are a hit or a miss now, in one line. Ask before `make`: afterwards it is a hit."""
        key = build_key(parts)
        artifact = self.load(key)
        if artifact is not None:
            with artifact:
                return render_hit(artifact.made_at, artifact.made_by)
        if key in self.damaged:
            return f"miss: the entry was damaged: {self.damaged[key]}"
        return render_miss(parts, ((entry.parts, entry.used_at) for entry in self.load_entries()))

    def load_entries(self) -> list[StoreEntry]:
        """What there is, most recently used first; the files themselves are not read."""
        found = []
        for key in self._shelf.list_keys():
            with contextlib.suppress(OSError, EntryError):  # gone meanwhile, or damaged: `load` tells
                found.append(self._load_entry(key))
        return sorted(found, key=lambda entry: (-entry.used_at, entry.key))

    def _load_entry(self, key: str) -> StoreEntry:
        used_at = self._shelf.load_used_at(key)
        name = self._shelf.load_pointer(key) or ""
        manifest = load_manifest(self._shelf.find_entry(name))
        size, in_use = manifest.size_bytes, self._locks.is_held(name)
        return StoreEntry(key, manifest.parts, size, manifest.made_at, used_at, manifest.made_by, in_use)

    # ------------------------------------------------------------ making

    def make(
        self,
        key: str,
        parts: Mapping[str, Any],
        build: Build,
        *,
        recompute: bool = False,
        made_since: float | None = None,
    ) -> tuple[Artifact | None, bool]:
        """The artifact, and whether it was made now. `key` is `build_key(parts)`.

        `build` fills an empty folder and returns facts to keep (JSON-like), or None where it failed: then nothing is
        kept. One process builds a key at a time; the others wait and take what it made. `recompute` builds in any case,
        `made_since` whatever was made before that time: one session that recomputes does it once for each key. Where
        building again fails, the old entry goes as well: what cannot be made any more is not served either.
        """
        if key != build_key(parts):
            raise ValueError(f"{key} is not the key of these parts")
        oldest = float("inf") if recompute else made_since
        found = self._load_since(key, oldest)
        if found is not None:
            return found, False
        with self._alone(key):
            found = self._load_since(key, oldest)  # somebody may have made it while we waited
            if found is not None:
                return found, False
            made = self._build(key, parts, build)
        if made is not None:
            self._has_made = True
            self._evict(keep=made[0])
        return (None, False) if made is None else (made[1], True)

    def _load_since(self, key: str, oldest: float | None) -> Artifact | None:
        if oldest == float("inf"):
            return None
        found = self.load(key)
        if found is None or oldest is None or found.made_at >= oldest:
            return found
        found.close()
        return None

    @contextlib.contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """Nobody else builds this key."""
        with contextlib.ExitStack() as stack:
            with self._writing():
                self._shelf.make_folders()
                self._sweep()
                stack.enter_context(self._locks.building(key))
            yield

    def _build(self, key: str, parts: Mapping[str, Any], build: Build) -> tuple[str, Artifact] | None:
        aside = self._shelf.choose_aside(key)
        folder = os.path.join(aside, FILES)
        try:
            with self._writing():
                os.makedirs(folder)
            with self._full_disk():
                facts = build(folder)
            if facts is None:
                self._forget(key)
                return None
            with self._writing():
                return self._publish(key, parts, facts, aside)
        finally:
            remove_tree(aside)

    def _publish(
        self, key: str, parts: Mapping[str, Any], facts: Mapping[str, Any], aside: str
    ) -> tuple[str, Artifact]:
        manifest, stamps = build_manifest(key, parts, facts, os.path.join(aside, FILES), time.time(), _describe_us())
        text = render_manifest(manifest)
        write_atomic(os.path.join(aside, MANIFEST), text)
        name = f"{os.path.basename(aside)}.{manifest.size_bytes + len(text)}"
        with self._locks.whole(exclusive=False):
            self._locks.hold(name)
            try:
                self._shelf.place(aside, name)
            except BaseException:
                self._locks.let_go(name)
                raise
        self._checked[name] = stamps
        self.damaged.pop(key, None)
        # read back: callers see the same types whether it was made or found
        return name, self._build_artifact(name, load_manifest(self._shelf.find_entry(name)))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """What a disk refuses becomes an error that a user can act on."""
        try:
            yield
        except OSError as error:
            raise self._refused(error) from error

    @contextlib.contextmanager
    def _full_disk(self) -> Iterator[None]:
        """Of what a builder raises only this is about us."""
        try:
            yield
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> InfrastructureError:
        place = error.filename if isinstance(error.filename, str) else self.folder
        hint = f"set {ENV_CACHE} to a folder that can be written"
        if error.errno in _FULL:
            hint = f"make room (`assay model cache clear`), or {hint}"
        return InfrastructureError(f"cannot write in the artifact cache {self.folder}: {error.strerror}: {place}", hint)

    # ------------------------------------------------------------ taking away

    def clear(self) -> Cleared:
        """Everything that no live process uses."""
        return self._remove(lambda entries: entries)

    def _evict(self, keep: str = "") -> None:
        if self._shelf.measure() <= self.limit_bytes:
            return
        with contextlib.suppress(InfrastructureError):  # too much is no reason to fail what was just made
            self._remove(lambda entries: self._choose_surplus(entries, keep))

    def _choose_surplus(self, entries: list[str], keep: str) -> list[str]:
        """`entries`, least recently used first: those to go until the rest fits. What is in use stays, and counts."""
        surplus = sum(map(find_size, entries)) - self.limit_bytes
        chosen = []
        for name in entries:
            if surplus > 0 and name != keep and not self._locks.is_held(name):
                chosen.append(name)
                surplus -= find_size(name)
        return chosen

    def _remove(self, choose: Callable[[list[str]], list[str]]) -> Cleared:
        """Under the lock entries only lose their names, which is quick; then they are deleted."""
        if not self._shelf.has_entries():
            return Cleared(0, 0, 0)
        with self._writing():
            self._shelf.make_folders()
            with self._locks.whole(exclusive=True):
                self._shelf.remove_torn()
                chosen = choose(self._shelf.list_by_use())
                removed = [name for name in chosen if self._discard(name)]
        self._sweep()
        return Cleared(len(removed), sum(map(find_size, removed)), len(chosen) - len(removed))

    def _discard(self, name: str) -> bool:
        """The caller has the lock. False: somebody uses it."""
        if self._locks.is_held(name):
            return False
        self._shelf.take_down(name)
        self._checked.pop(name, None)
        return True

    def _forget(self, key: str) -> None:
        name = self._shelf.load_pointer(key)
        if name is not None:
            self._retire(key, name)

    def _retire(self, key: str, name: str) -> None:
        """From now on it does not count; its folder goes when nobody uses it. A read-only store stays as it is."""
        with contextlib.suppress(OSError):
            with self._locks.whole(exclusive=True):
                self._shelf.forget_key(key, name)
                self._discard(name)
            self._sweep()

    def _sweep(self) -> None:
        """Delete what is on its way out, and what killed builders left: nobody builds that key now."""
        with contextlib.suppress(OSError):
            for path, key in self._shelf.find_leftovers():
                if key is None:
                    remove_tree(path)
                    continue
                with self._locks.if_not_building(key) as is_left:
                    if is_left:
                        remove_tree(path)


def _describe_us() -> str:
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's made-up user
        user = f"user {os.getuid()}"
    return f"{user}@{os.uname().nodename}"
