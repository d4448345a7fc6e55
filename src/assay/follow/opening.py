"""Open the index of a root: the index that `ASSAY_INDEX` or the settings name, else a SQLite file on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

from assay.errors import AssayError, InfrastructureError, UsageError
from assay.follow.locations import StudyLocation
from assay.plugins import require_function
from assay.record.index import sqlite
from assay.record.index.stored import Index
from assay.show.console import Console
from assay.system.files import read_text
from assay.values.notify import Notify, ignore

LOCAL = "local"


def open_index(
    root: str | os.PathLike[str], warn: Notify = ignore, *, is_needed: bool = True, renew: bool = False
) -> Index:
    """Open the index of a root. With `is_needed=False`, warn and use an index in memory if a server cannot be used: the
    run directories are complete. `renew`: also replace an index of another format on a server."""
    index: Index
    address = find_address()
    open_shared = require_function("index.open_shared", "an index on a server") if address else None
    try:
        index = open_shared(address, root, renew=renew) if open_shared else sqlite.open_index(root, warn)
    except InfrastructureError as error:
        if is_needed or not address:
            raise
        warn(f"{error.message}; the runs are not in it until a later command reads them")
        index = sqlite.SqliteIndex(":memory:", os.path.realpath(root))

    def store_points(key: str) -> None:
        from assay.follow import refresh  # not loaded for a table that has not changed

        refresh.store_points(index, StudyLocation(os.fspath(root), key.partition("/")[0]))

    index.store_points = store_points
    return index


def open_index_of(locations: Sequence[StudyLocation]) -> Index:
    """Open the index of the root that these studies share."""
    roots = {location.root for location in locations}
    if len(roots) > 1:
        text = f"these studies are under different roots: {', '.join(sorted(roots))}"
        raise UsageError(text, "take them one after another")
    return open_index(roots.pop(), Console().warning)


def find_address() -> str:
    """Return the address of a shared index; an empty string if none is configured."""
    found = os.environ.get("ASSAY_INDEX", "").strip()
    if not found and _may_have_settings(os.getcwd()):
        from assay.config.settings import load_settings  # loaded only if there may be a settings file

        try:
            found = load_settings(os.getcwd(), os.environ).index or ""
        except (AssayError, OSError):  # commands that need the settings report the error; other commands work
            return ""
    return "" if found == LOCAL else found


def _may_have_settings(folder: str) -> bool:
    """Whether `load_settings` may find a file. Loading its modules takes as long as showing a table of 500 runs."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    if os.path.exists(os.path.join(base, "assay", "config.toml")):
        return True
    while True:
        own, shared = os.path.join(folder, "assay.toml"), os.path.join(folder, "pyproject.toml")
        try:
            if os.path.exists(own) or "assay" in read_text(shared):
                return True
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:
            return True
        folder, before = os.path.dirname(folder), folder
        if folder == before:
            return False
