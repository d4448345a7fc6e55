"""One entry of the artifact store: its key, its files and the manifest that describes them.

<entry>/
    manifest.json   key, parts, facts, files, others, built_in, made_at, made_by
    files/          the builder's files

An entry is damaged, and counts as missing, if a file is missing, longer, shorter or different than in the manifest, or
if a file was added later, since a tool may read it.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import file_digest, sha256
from typing import Any

from assay.errors import InfrastructureError
from assay.show.formatting import shorten
from assay.system.fast_dataclasses import dataclass
from assay.values.plain import parse_strict

MANIFEST = "manifest.json"
FILES = "files"

Stamps = Mapping[str, tuple[int, int, int]]  # path → mtime in ns, size, inode

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # errors that are not due to the file
_FOLDER, _LINK, _SPECIAL = "/", "-> ", "?"


class EntryError(Exception):
    """The reason why an entry counts as missing, in one line."""


@dataclass(frozen=True, slots=True)
class EntryManifest:
    key: str
    parts: Mapping[str, Any]
    facts: Mapping[str, Any]
    files: Mapping[str, tuple[int, str]]  # relative path → size, sha256
    others: Mapping[str, str]  # path of a folder or link → its kind
    built_in: str  # the path of the folder during the build: paths in the facts begin with it
    made_at: float
    made_by: str

    @property
    def size_bytes(self) -> int:
        return sum(size for size, _ in self.files.values())


def build_key(parts: Mapping[str, Any]) -> str:
    """Return the sha256 of the parts as canonical JSON: the order of names does not count, everything else does. Parts
    have only JSON's types, and names are strings: {1: …} and {"1": …} must not get the same key."""
    return sha256(_render(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _render(value: Any) -> str:
    return json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise TypeError(f"names of parts must be strings: {list(value)!r}")
        return {name: _canonical(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(each) for each in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"{type(value).__name__} cannot be part of a key: {value!r}")


def build_manifest(
    key: str, parts: Mapping[str, Any], facts: Mapping[str, Any], folder: str, made_at: float, made_by: str
) -> tuple[EntryManifest, Stamps]:
    """Describe everything in `folder`. Raises InfrastructureError for files that cannot be stored."""
    stamps, others = _list_contents(folder)
    for path, kind in others.items():
        target = kind.removeprefix(_LINK)
        end = os.path.normpath(os.path.join(os.path.dirname(path), target))
        leaves = kind != _FOLDER and (os.path.isabs(target) or end == ".." or end.startswith("../"))
        problem = "is not a file" if kind == _SPECIAL else "leads outside" if leaves else ""
        if problem:
            raise InfrastructureError(
                f"the artifact cannot be stored: {path} {problem}",
                f"the tool made it in {folder}; only files, folders and links inside it can be stored",
            )
    files = {path: (size, hash_file(os.path.join(folder, path))) for path, (_, size, _) in stamps.items()}
    return EntryManifest(key, parts, facts, files, others, os.path.abspath(folder), made_at, made_by), stamps


def _list_contents(folder: str) -> tuple[Stamps, dict[str, str]]:
    """Return the regular files in a folder, and everything else by kind. No file is opened."""
    stamps, others = {}, {}
    for path, entry in _walk(folder, ""):
        if entry.is_symlink():
            others[path] = _LINK + os.readlink(entry.path)
        elif entry.is_dir(follow_symlinks=False):
            others[path] = _FOLDER
        elif entry.is_file(follow_symlinks=False):
            status = entry.stat(follow_symlinks=False)
            stamps[path] = (status.st_mtime_ns, status.st_size, status.st_ino)
        else:
            others[path] = _SPECIAL
    return stamps, others


def _walk(folder: str, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        path = prefix + entry.name
        yield path, entry
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, f"{path}/")


def hash_file(path: str) -> str:
    with open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()


def load_manifest(entry: str) -> EntryManifest:
    """Read a manifest. Raises FileNotFoundError, and EntryError if it is damaged."""
    path = os.path.join(entry, MANIFEST)
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            manifest = parse_strict(EntryManifest, json.loads(file.read()))
        is_intact = build_key(manifest.parts) == manifest.key
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _as_entry_error(error, "its manifest") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise EntryError("its manifest is damaged") from None
    if not is_intact:
        raise EntryError("its manifest does not belong to its key")
    return manifest


def check_files(entry: str, manifest: EntryManifest, known: Stamps | None) -> Stamps:
    """Compare every file with the manifest; `known`: the stamps of the files when they were last found intact. A file
    with its known stamp is not read again. Returns the current stamps."""
    folder = os.path.join(entry, FILES)
    try:
        stamps, others = _list_contents(folder)
    except OSError as error:
        raise _as_entry_error(error, "its folder") from error
    found, made = {**dict.fromkeys(stamps, ""), **others}, {**dict.fromkeys(manifest.files, ""), **manifest.others}
    for path in sorted(found.keys() | made.keys()):
        if path not in found:
            raise EntryError(f"{path} is missing")
        if path not in made:
            raise EntryError(f"{path} was added later")
        if found[path] != made[path]:
            raise EntryError(f"{path} is of another kind")
    for path, stamp in stamps.items():
        if known is None or known.get(path) != stamp:
            _check_file(folder, path, stamp[1], *manifest.files[path])
    return stamps


def _check_file(folder: str, path: str, found_size: int, size: int, digest: str) -> None:
    if found_size != size:
        raise EntryError(f"{path} has {found_size} bytes instead of {size}")
    try:
        found = hash_file(os.path.join(folder, path))
    except OSError as error:
        raise _as_entry_error(error, path) from error
    if found != digest:
        raise EntryError(f"{path} has changed (sha256 {found[:8]}… instead of {digest[:8]}…)")


def _as_entry_error(error: OSError, what: str) -> Exception:
    """Convert an error, so that a process without descriptors or memory does not report intact entries as damaged."""
    if error.errno in _OUT_OF_RESOURCES:
        return InfrastructureError(f"cannot read the artifact cache: {error.strerror}: {error.filename}")
    return EntryError(f"{what} cannot be read ({error.strerror})")


def relocate(value: Any, old: str, new: str) -> Any:
    """Replace the folder `old` by `new` in facts, which name files by their path during the build."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, Mapping):
        return {name: relocate(each, old, new) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [relocate(each, old, new) for each in value]
    return value


_NAMES = {"source": "the model", "model": "the model", "inputs": "the inputs"}
_NAMES_OF_RUN = {**_NAMES, "source": "the output of the previous step"}
_CODE = "tools.code "  # prefix of a part that is the hash of a file of a user's own back end
_ABSENT = object()
_MOST_CHANGES = 3
_LONGEST = 60


def render_miss(parts: Mapping[str, Any], entries: Iterable[tuple[Mapping[str, Any], float]]) -> str:
    """Describe the most similar entry of the same kind. `entries`: parts of each stored entry and its last use."""
    similar = [
        (sum(1 for _ in _find_changes(old, parts)), -used_at, old)
        for old, used_at in entries
        if all(old.get(name) == parts.get(name) for name in ("what", "case", "backend"))
    ]
    if not similar:
        return "miss: nothing similar is stored"
    _, _, old = min(similar, key=lambda each: each[:2])
    names = _NAMES_OF_RUN if parts.get("what") == "run" else _NAMES
    changes = [_render_change(*change, names) for change in _find_changes(old, parts)]
    more = f", and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
    return f"miss: {'; '.join(changes[:_MOST_CHANGES])}{more}"


def _find_changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield differences as (name, old, new); names inside of mappings are like `tools.iree`."""
    for name in sorted({*old, *new}):
        before, after = old.get(name, _ABSENT), new.get(name, _ABSENT)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _find_changes(before, after, f"{prefix}{name}.")
        elif _ABSENT in (before, after) or _render(before) != _render(after):  # 1 differs from 1.0 and from true
            yield f"{prefix}{name}", before, after


def _render_change(name: str, before: Any, after: Any, names: Mapping[str, str]) -> str:
    if name.startswith(_CODE):
        return f"the back end's code changed: {_render_value(name.removeprefix(_CODE))}"
    name = _render_value(name)
    if name in names and _is_digest(before) and _is_digest(after):
        return f"{names[name]} changed (sha {_render_value(before)} → {_render_value(after)})"
    if isinstance(before, list | tuple) and isinstance(after, list | tuple):
        return f"{name} changed: {_render_lists(before, after)}"
    if before is _ABSENT:
        return f"{name} is new: {_render_value(after)}"
    if after is _ABSENT:
        return f"{name} was removed: {_render_value(before)}"
    return f"{name} changed: {_render_value(before)} → {_render_value(after)}"


def _render_lists(before: list[Any] | tuple[Any, ...], after: list[Any] | tuple[Any, ...]) -> str:
    """Render only what was added to a list and removed from it: a compiler has many flags."""
    removed = [each for each in before if each not in after]
    added = [each for each in after if each not in before]
    if removed and added:
        return f"{_join(removed)} → {_join(added)}"
    if removed or added:
        return f"without {_join(removed)}" if removed else f"with {_join(added)}"
    return "another order" if len(before) == len(after) else f"{_join(before)} → {_join(after)}"


def _join(values: Iterable[Any]) -> str:
    return shorten(" ".join(_render_value(each) for each in values), _LONGEST, front=_LONGEST)


def _render_value(value: Any) -> str:
    if _is_digest(value):
        return f"{value[:4]}…"
    text = value if isinstance(value, str) and value else repr(value)
    return shorten(" ".join(text.split()), _LONGEST, front=_LONGEST)


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32,}", value) is not None
