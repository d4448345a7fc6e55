"""One entry of the artifact store: a folder of files, and beside it a manifest with the size and sha256 of each.

<entry>/
    manifest.json   key, parts, facts, files, folders, links, built_in, made_at, made_by
    files/          what the builder made

Whatever does not agree with the manifest is damage, and damage means that the entry is not there: a file that is
missing, longer, shorter or different, and also one that was not made with the others, since a tool may pick it up.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import file_digest, sha256
from typing import Any

from assay.errors import InfrastructureError
from assay.values.plain import check_types

MANIFEST = "manifest.json"
FILES = "files"
NOT_ITS_FAULT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # a process at its limits says nothing about a file

Stamp = tuple[int, int, int]  # mtime in ns, size, inode
Stamps = dict[str, Stamp]


class EntryError(Exception):
    """Why an entry counts as missing, in one line."""


@dataclass(frozen=True, slots=True)
class Manifest:
    key: str
    parts: Mapping[str, Any]
    facts: Mapping[str, Any]
    files: Mapping[str, tuple[int, str]]  # relative path → size, sha256
    folders: tuple[str, ...]
    links: Mapping[str, str]
    built_in: str  # where the builder saw the folder: paths in the facts begin with it
    made_at: float
    made_by: str

    @property
    def size_bytes(self) -> int:
        return sum(size for size, _ in self.files.values())


@dataclass(slots=True)
class Survey:
    """What lies in a folder; nothing is opened for it."""

    files: Stamps = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)  # sockets, pipes, devices


# ---------------------------------------------------------------- parts and key


def build_key(parts: Mapping[str, Any]) -> str:
    """The sha256 of the parts as canonical JSON: the order of names does not count, everything else does.

    Only what JSON has can be a part, and names are text: {1: …} and {"1": …} must not become the same.
    """
    text = json.dumps(_canonical(parts), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise TypeError(f"names of parts must be text: {list(value)!r}")
        return {name: _canonical(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(each) for each in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"{type(value).__name__} cannot be part of a key: {value!r}")


# ---------------------------------------------------------------- making one


def build_manifest(
    key: str, parts: Mapping[str, Any], facts: Mapping[str, Any], folder: str, made_at: float, made_by: str
) -> tuple[Manifest, Stamps]:
    """Reads everything in `folder`. Raises InfrastructureError for what cannot be kept."""
    survey = survey_folder(folder)
    _require_keepable(survey, folder)
    files = {path: (stamp[1], hash_file(os.path.join(folder, path))) for path, stamp in survey.files.items()}
    manifest = Manifest(
        key, parts, facts, files, tuple(survey.folders), survey.links, os.path.abspath(folder), made_at, made_by
    )
    return manifest, survey.files


def _require_keepable(survey: Survey, folder: str) -> None:
    outside = [path for path, target in survey.links.items() if not _stays_inside(path, target)]
    for path, what in (
        *((path, "is no file") for path in survey.others),
        *((path, "leads outside") for path in outside),
    ):
        raise InfrastructureError(
            f"the artifact cannot be kept: {path} {what}", f"the tool made it in {folder}; only files and folders last"
        )


def _stays_inside(path: str, target: str) -> bool:
    led = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return not os.path.isabs(target) and led != ".." and not led.startswith("../")


def survey_folder(folder: str) -> Survey:
    survey = Survey()
    for path, entry in _walk(folder, ""):
        if entry.is_symlink():
            survey.links[path] = os.readlink(entry.path)
        elif entry.is_dir(follow_symlinks=False):
            survey.folders.append(path)
        elif entry.is_file(follow_symlinks=False):
            survey.files[path] = _stamp(entry.stat(follow_symlinks=False))
        else:
            survey.others.append(path)
    return survey


def _walk(folder: str, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        path = prefix + entry.name
        yield path, entry
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, f"{path}/")


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_size, status.st_ino


def hash_file(path: str) -> str:
    with open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()


def render_manifest(manifest: Manifest) -> str:
    return json.dumps(asdict(manifest)) + "\n"


# ---------------------------------------------------------------- reading one


def load_manifest(entry: str) -> Manifest:
    """Raises EntryError for whatever is not as it was written."""
    path = os.path.join(entry, MANIFEST)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise EntryError("its manifest is no file")
        with open(path, "rb") as file:
            return _parse_manifest(file.read())
    except OSError as error:
        raise _as_entry_error(error, "its manifest") from error


def _parse_manifest(text: bytes) -> Manifest:
    try:
        content = json.loads(text)
        files = {path: tuple(entry) for path, entry in content["files"].items()}
        manifest = check_types(Manifest(**{**content, "files": files, "folders": tuple(content["folders"])}))
        intact = build_key(manifest.parts) == manifest.key
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise EntryError("its manifest is damaged") from None
    if not intact:
        raise EntryError("its manifest does not belong to its key")
    return manifest


def check_files(entry: str, manifest: Manifest, known: Stamps | None) -> Stamps:
    """Every file against the manifest; `known`: how the files looked when they were last found right.

    A file that still looks like that is not read again. Returns how they look now.
    """
    folder = os.path.join(entry, FILES)
    try:
        survey = survey_folder(folder)
    except OSError as error:
        raise _as_entry_error(error, "its folder") from error
    _check_names(survey, manifest)
    for path, stamp in survey.files.items():
        if known is None or known.get(path) != stamp:
            _check_file(folder, path, stamp, *manifest.files[path])
    return survey.files


def _check_names(survey: Survey, manifest: Manifest) -> None:
    found = {**dict.fromkeys(survey.files, ""), **dict.fromkeys(survey.folders, "/"), **survey.links}
    made = {**dict.fromkeys(manifest.files, ""), **dict.fromkeys(manifest.folders, "/"), **manifest.links}
    found |= dict.fromkeys(survey.others, "?")
    for path in sorted(found.keys() | made.keys()):
        if path not in found:
            raise EntryError(f"{path} is gone")
        if path not in made:
            raise EntryError(f"{path} was not made with it")
        if found[path] != made[path]:
            raise EntryError(f"{path} is not what it was")


def _check_file(folder: str, path: str, stamp: Stamp, size: int, digest: str) -> None:
    if stamp[1] != size:
        raise EntryError(f"{path} has {stamp[1]} bytes instead of {size}")
    try:
        found = hash_file(os.path.join(folder, path))
    except OSError as error:
        raise _as_entry_error(error, path) from error
    if found != digest:
        raise EntryError(f"{path} has changed (sha256 {found[:8]}… instead of {digest[:8]}…)")


def _as_entry_error(error: OSError, what: str) -> Exception:
    """A process without descriptors or memory must not take good entries for bad ones."""
    if error.errno in NOT_ITS_FAULT:
        return InfrastructureError(f"cannot read the artifact cache: {error.strerror}: {error.filename}")
    reason = "is gone" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
    return EntryError(f"{what} {reason}")


def relocate(value: Any, old: str, new: str) -> Any:
    """Facts name files where the builder saw them; they lie in the entry's folder now."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, Mapping):
        return {name: relocate(each, old, new) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [relocate(each, old, new) for each in value]
    return value
