"""`assay model cache`: list the artifact store as a document, and clear it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from assay.models.store.artifacts import ArtifactStore, Cleared, StoreEntry, choose_store_folder
from assay.show.formatting import render_age, render_count, render_size
from assay.values.document import Document, TableBlock, Text
from assay.values.table import Column, Table

_COLUMNS = (
    Column("case"),
    Column("step"),
    Column("backend", rank=1),
    Column("size", align="right"),
    Column("used", align="right", rank=1),
    Column("", rank=1),
)


def load_cache() -> tuple[str, list[Mapping[str, Any]]]:
    """The folder, and its entries as facts, the least recently used first."""
    folder = choose_store_folder(os.environ, os.getcwd())
    with ArtifactStore(folder) as store:
        entries = sorted(store.load_entries(), key=lambda entry: entry.used_at)
    return folder, [_build_facts(entry) for entry in entries]


def _build_facts(entry: StoreEntry) -> dict[str, Any]:
    return {
        "case": str(entry.parts.get("case", "")),
        "step": str(entry.parts.get("what", "")),
        "backend": str(entry.parts.get("backend", "")),
        "size_bytes": entry.size_bytes,
        "made_at": entry.made_at,
        "used_at": entry.used_at,
        "made_by": entry.made_by,
        "in_use": entry.in_use,
        "key": entry.key,
    }


def build_document(folder: str, entries: Sequence[Mapping[str, Any]]) -> Document:
    total, now = sum(entry["size_bytes"] for entry in entries), time.time()
    rows = [
        (
            entry["case"],
            entry["step"],
            entry["backend"],
            render_size(entry["size_bytes"]),
            render_age(now - entry["used_at"]),
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
