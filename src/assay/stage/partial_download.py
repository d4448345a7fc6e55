"""The part of a download that has arrived, and its notes: of which address and version it is."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from assay.system.files import write_atomic


def remove_part(part: str) -> None:
    """A file or a folder; the notes stay."""
    if os.path.isdir(part) and not os.path.islink(part):
        shutil.rmtree(part)
    else:
        with suppress(FileNotFoundError):
            os.unlink(part)


def digest_address(url: str) -> str:
    """A URL may hold a signature or a password."""
    return hashlib.sha256(url.encode()).hexdigest()


def load_notes(part: str, url: str) -> Mapping[str, Any]:
    """Empty for a part of another address, or of none that we know."""
    try:
        with open(_notes_path(part), encoding="utf-8") as file:
            notes = json.load(file)
        return dict(notes) if notes["address"] == digest_address(url) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write_notes(part: str, url: str, facts: Mapping[str, Any]) -> None:
    write_atomic(_notes_path(part), json.dumps({"address": digest_address(url), **facts}))


def forget(part: str) -> None:
    """The part has become the data, or is no longer to be continued."""
    with suppress(FileNotFoundError):
        os.unlink(_notes_path(part))


def _notes_path(part: str) -> str:
    return part + ".json"
