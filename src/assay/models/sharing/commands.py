"""The commands `assay model cache push` and `pull`, which copy entries of the artifact store to shared storage and
from there, by their key.

<address>/caches/models/<key>.json   an entry; its facts: parts, facts, made_by
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from assay.errors import ExitCode, FormatError
from assay.exchange import api as exchange
from assay.exchange.api import FolderManifest, OutgoingFolder, Remote, Sent, open_remote
from assay.models.store.artifacts import ArtifactStore, choose_store_folder
from assay.models.store.entry import build_key, relocate
from assay.show.console import Console
from assay.show.formatting import render_count, render_size
from assay.values.options import Request, option, quiet_option

_CACHE = ("caches", "models")  # folder in the shared storage
_FOLDER = "@folder@"  # stands for the folder of an entry, in paths among the entry's facts
_AT_ONCE = 4


class PushArtifactsRequest(Request):
    to: str = option("--to", metavar="ADDRESS", required=True, help="s3://, gs:// or az://BUCKET/PREFIX, or a folder.")
    check: bool = option(
        "--check", default=False, help="Ask the storage for every file; send files again that are damaged there."
    )
    quiet: bool = quiet_option()


def push(request: PushArtifactsRequest, console: Console) -> int:
    """Send artifacts to shared storage that are not there yet. After a kill the same command continues."""
    remote = open_remote(request.to, console.quieted(request.quiet).message)
    with ArtifactStore(choose_store_folder(os.environ, os.getcwd())) as store:
        sent = [each for each in push_artifacts(store, remote, check=request.check) if each.is_new or each.sent]
    size = render_size(sum(each.sent_bytes for each in sent))
    console.print(f"sent {render_count(len(sent), 'artifact')}, {size} to {request.to}")
    return int(ExitCode.OK)


class PullArtifactsRequest(Request):
    address: str = option(
        "--from", metavar="ADDRESS", required=True, help="s3://, gs:// or az://BUCKET/PREFIX, or a folder."
    )
    quiet: bool = quiet_option()


def pull(request: PullArtifactsRequest, console: Console) -> int:
    """Fetch missing artifacts from shared storage, as far as ASSAY_CACHE_LIMIT allows.

    They are used as if they had been made here: fetch only from storage whose writers you trust.
    """
    remote = open_remote(request.address, console.quieted(request.quiet).message)
    with ArtifactStore(choose_store_folder(os.environ, os.getcwd())) as store:
        damaged: list[FormatError] = []
        found, left = find_artifacts(store, remote, damaged)
        sizes = [each.bytes for each in pull_artifacts(store, remote, found, damaged)]
    fetched = f"{render_count(len(sizes), 'artifact')}, {render_size(sum(sizes))}"
    console.print(f"fetched {fetched} from {request.address}")
    for error in damaged:
        console.warning(error.render())
    if left:
        console.warning(f"there is no room for {left} more: ASSAY_CACHE_LIMIT is {render_size(store.limit_bytes)}")
    return int(ExitCode.INTERNAL if damaged else ExitCode.OK)


def push_artifacts(store: ArtifactStore, remote: Remote, *, check: bool = False) -> Iterator[Sent]:
    """Send the entries that the shared storage lacks; with `check`, compare all files of every entry."""
    there = set() if check else _list_keys(remote)
    folders = []
    for entry in reversed(store.load_entries()):  # oldest first: loading counts as use, and this keeps the order
        if entry.key in there or (artifact := store.load(entry.key)) is None or not _can_be_sent(artifact.folder):
            continue
        facts = {
            "parts": dict(entry.parts),
            "facts": relocate(artifact.facts, artifact.folder, _FOLDER),
            "made_by": artifact.made_by,
        }
        folders.append(OutgoingFolder(_build_key(entry.key), "artifact", entry.key, artifact.folder, facts))
    yield from exchange.push(folders, remote, check=check)


def find_artifacts(
    store: ArtifactStore, remote: Remote, damaged: list[FormatError]
) -> tuple[list[FolderManifest], int]:
    """Return the entries to fetch, which the store lacks, and the number of others, which exceed its limit."""
    here = store.load_entries()
    keys = sorted(_list_keys(remote) - {entry.key for entry in here})
    room = store.limit_bytes - sum(entry.size_bytes for entry in here)
    found: list[FolderManifest] = []
    whole = exchange.load_manifests(remote, list(map(_build_key, keys)), damaged)
    for manifest in whole:
        if manifest.bytes <= room:
            room -= manifest.bytes
            found.append(manifest)
    return found, len(whole) - len(found)


def pull_artifacts(
    store: ArtifactStore, remote: Remote, found: list[FolderManifest], damaged: list[FormatError]
) -> Iterator[FolderManifest]:
    """Fetch entries, several at once. Each entry appears in the store when it is complete."""
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pull")

    def pull(manifest: FolderManifest) -> FolderManifest | None:
        try:
            return pull_whole(manifest)
        except FormatError as error:
            damaged.append(error)
            return None

    def pull_whole(manifest: FolderManifest) -> FolderManifest:
        parts: Any = manifest.facts.get("parts")
        facts: Any = manifest.facts.get("facts")
        is_whole = isinstance(parts, dict) and isinstance(facts, dict)
        if not is_whole or build_key(parts) != manifest.name or not _stays_inside(facts.get("path", "")):
            raise FormatError(
                f"{remote.address} holds an artifact {manifest.name!r} that is not what its name says",
                "nothing of it was taken",
            )

        def build(folder: str) -> Mapping[str, Any]:
            exchange.fetch_files(manifest, folder, remote)
            made: Mapping[str, Any] = relocate(facts, _FOLDER, os.path.abspath(folder))
            return made

        artifact, _ = store.make(manifest.name, parts, build)
        if artifact is not None:
            artifact.close()
        return manifest

    try:
        yield from filter(None, pool.map(pull, found))
    finally:
        pool.shutdown(cancel_futures=True)


def _can_be_sent(folder: str) -> bool:
    """Return whether an artifact is complete and can be sent: locks, secrets and temporary files are never sent."""
    names, links, _ = exchange.list_folder(folder)
    entries = ((found, name) for found, folders, files in os.walk(folder) for name in (*folders, *files))
    paths = (os.path.join(found, name) for found, name in entries)
    return sum(os.path.islink(path) or not os.path.isdir(path) for path in paths) == len(names) + len(links)


def _stays_inside(path: object) -> bool:
    """Return whether a path that a step made, relative to its entry or with `_FOLDER`, is inside the entry."""
    if not isinstance(path, str):
        return False
    relative = os.path.normpath(path.removeprefix(_FOLDER).lstrip("/") if path.startswith(_FOLDER) else path or ".")
    return not os.path.isabs(relative) and relative.split("/")[0] != ".." and _FOLDER not in relative


def _build_key(key: str) -> str:
    return exchange.build_key(*_CACHE, key)


def _list_keys(remote: Remote) -> set[str]:
    return {key.rpartition("/")[2].removesuffix(".json") for key in remote.find("/".join(_CACHE))}
