"""The artifact store of a team: entries sent to a shared place and fetched from there, by their key.

<address>/caches/models/<key>.json   an entry; its facts: parts, facts, made_by
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from assay.errors import FormatError
from assay.exchange import api as exchange
from assay.exchange.api import Fetching, FolderManifest, OutgoingFolder, Remote, Sent
from assay.models.store.artifacts import ArtifactStore
from assay.models.store.entry import build_key, relocate

_CACHE = ("caches", "models")  # in the shared place
_FOLDER = "@folder@"  # of the entry, in the paths among its facts
_AT_ONCE = 4


def push_artifacts(store: ArtifactStore, remote: Remote, *, check: bool = False) -> Iterator[Sent]:
    """What is not there yet; with `check` everything, compared."""
    there = set() if check else _list_keys(remote)
    folders = []
    for entry in reversed(store.load_entries()):  # loading one counts as use: the order of use stays as it was
        if entry.key in there or (artifact := store.load(entry.key)) is None or not _can_be_sent(artifact.folder):
            continue
        facts = {
            "parts": dict(entry.parts),
            "facts": relocate(artifact.facts, artifact.folder, _FOLDER),
            "made_by": artifact.made_by,
        }
        folders.append(OutgoingFolder(_build_key(entry.key), "artifact", entry.key, artifact.folder, facts))
    yield from exchange.push(folders, remote, check=check)


def find_artifacts(store: ArtifactStore, remote: Remote) -> tuple[list[FolderManifest], int]:
    """What is there and not here, and how many more the limit of the store leaves no room for."""
    here = store.load_entries()
    keys = sorted(_list_keys(remote) - {entry.key for entry in here})
    room = store.limit_bytes - sum(entry.size_bytes for entry in here)
    found: list[FolderManifest] = []
    for manifest in exchange.load_manifests(remote, list(map(_build_key, keys))):
        if manifest.bytes <= room:
            room -= manifest.bytes
            found.append(manifest)
    return found, len(keys) - len(found)


def pull_artifacts(store: ArtifactStore, remote: Remote, found: list[FolderManifest]) -> Iterator[FolderManifest]:
    """Each appears when all of it is here; several at once."""
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pull")

    def pull(manifest: FolderManifest) -> FolderManifest:
        parts: Any = manifest.facts.get("parts")
        facts: Any = manifest.facts.get("facts")
        is_whole = isinstance(parts, dict) and isinstance(facts, dict)
        if not is_whole or build_key(parts) != manifest.name or not _stays_inside(facts.get("path", "")):
            raise FormatError(
                f"{remote.address} holds an artifact {manifest.name!r} that is not what its name says",
                "nothing of it was taken",
            )

        def build(folder: str) -> Mapping[str, Any]:
            exchange.fetch_files(Fetching(manifest, folder), remote)
            made: Mapping[str, Any] = relocate(facts, _FOLDER, os.path.abspath(folder))
            return made

        artifact, _ = store.make(manifest.name, parts, build)
        if artifact is not None:
            artifact.close()
        return manifest

    try:
        yield from pool.map(pull, found)
    finally:
        pool.shutdown(cancel_futures=True)


def _can_be_sent(folder: str) -> bool:
    """Locks, secrets and temporary files are never sent; an artifact without one of its files would not be whole."""
    names, links, _ = exchange.list_folder(folder)
    entries = ((found, name) for found, folders, files in os.walk(folder) for name in (*folders, *files))
    paths = (os.path.join(found, name) for found, name in entries)
    return sum(os.path.islink(path) or not os.path.isdir(path) for path in paths) == len(names) + len(links)


def _stays_inside(path: object) -> bool:
    """What a step has made: relative to its entry, or marked with `_FOLDER`."""
    if not isinstance(path, str):
        return False
    relative = os.path.normpath(path.removeprefix(_FOLDER).lstrip("/") if path.startswith(_FOLDER) else path or ".")
    return not os.path.isabs(relative) and relative.split("/")[0] != ".." and _FOLDER not in relative


def _build_key(key: str) -> str:
    return exchange.build_key(*_CACHE, key)


def _list_keys(remote: Remote) -> set[str]:
    return {key.rpartition("/")[2].removesuffix(".json") for key in remote.find("/".join(_CACHE))}
