"""`assay model cache`: look at the artifact store, and empty it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from assay.models.store.artifacts import ArtifactStore, Cleared, StoreEntry, choose_store_folder


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


def clear_cache() -> Cleared:
    with ArtifactStore(choose_store_folder(os.environ, os.getcwd())) as store:
        return store.clear()
