"""`assay model cache`: the stored results of earlier checks."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from assay.errors import ExitCode
from assay.models.store.artifacts import ArtifactStore, Cleared, choose_store_folder
from assay.plugins import merge
from assay.show.console import Console
from assay.show.formatting import render_age, render_count, render_size
from assay.values.document import Document, TableBlock, Text
from assay.values.options import Group, Request, json_option
from assay.values.table import Column, Table


def _find_sharing() -> dict[str, tuple[str, str]]:
    """Return the commands of the plug-in `models-sharing`, if it is available."""
    offered = merge("functions")
    known = {"push": "Send artifacts to shared storage.", "pull": "Fetch missing artifacts from shared storage."}
    return {word: (offered[name], text) for word, text in known.items() if (name := f"model-cache.{word}") in offered}


GROUP = Group(
    """Show, share or clear compiled models and results.

    The key of an artifact covers model, tool and flags: a change of any of them makes a new artifact.

    ASSAY_CACHE is the folder, ASSAY_CACHE_LIMIT its largest size (10 GiB by default).
    """,
    {
        "ls": ("assay.models.commands.cache:ls", "List artifacts, the least recently used first."),
        **_find_sharing(),
        "clear": ("assay.models.commands.cache:clear", "Remove all artifacts that no running check uses."),
    },
)
_COLUMNS = (
    Column("case"), Column("step"), Column("backend", rank=1), Column("size", align="right"),
    Column("used", align="right", rank=1), Column("", rank=1),
)  # fmt: skip
_PARTS = {"case": "case", "step": "what", "backend": "backend"}
_FACTS = ("size_bytes", "made_at", "used_at", "made_by", "in_use", "key")


class ListCacheRequest(Request):
    as_json: bool = json_option("JSON.")


def ls(request: ListCacheRequest, console: Console) -> int:
    """List artifacts, the least recently used first."""
    console.write_document(build_document(*load_cache()), as_json=request.as_json)
    return int(ExitCode.OK)


class ClearRequest(Request):
    pass


def clear(request: ClearRequest, console: Console) -> int:  # noqa: ARG001 it has no options
    """Remove all artifacts that no running check uses."""
    cleared = clear_cache()
    kept = f"; {render_count(cleared.kept, 'artifact')} in use left" if cleared.kept else ""
    removed = render_count(cleared.removed, "artifact")
    console.print(f"{removed} removed, {render_size(cleared.freed_bytes)} freed{kept}")
    return int(ExitCode.OK)


def load_cache() -> tuple[str, list[Mapping[str, Any]]]:
    """Return the folder, and its entries as facts, the least recently used first."""
    folder = choose_store_folder(os.environ, os.getcwd())
    with ArtifactStore(folder) as store:
        entries = sorted(store.load_entries(), key=lambda entry: entry.used_at)
    rows = list[Mapping[str, Any]]()
    for entry in entries:
        named = {name: str(entry.parts.get(part, "")) for name, part in _PARTS.items()}
        rows.append(named | {name: getattr(entry, name) for name in _FACTS})
    return folder, rows


def build_document(folder: str, entries: Sequence[Mapping[str, Any]]) -> Document:
    total, now = sum(entry["size_bytes"] for entry in entries), time.time()
    rows = [
        (
            *(entry[name] for name in _PARTS),
            *(render_size(entry["size_bytes"]), render_age(now - entry["used_at"])),
            "in use" if entry["in_use"] else "",
        )
        for entry in entries
    ]
    summary = f"{render_count(len(entries), 'artifact')}, {render_size(total)} in {folder}"
    facts = {"folder": folder, "size_bytes": total, "artifacts": list(entries)}
    return Document("artifact cache", (TableBlock(Table(_COLUMNS, rows)), Text(summary)), facts=facts)


def clear_cache() -> Cleared:
    with ArtifactStore(choose_store_folder(os.environ, os.getcwd())) as store:
        return store.clear()
