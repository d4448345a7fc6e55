"""The folders of the artifact store and the names in them. Who may change what, and when, is for the store to say."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterator

from assay.models.store.entry import NOT_ITS_FAULT
from assay.system.files import TEMPORARY_SUFFIX, write_atomic

_TRASH = "trash."
_KEY = re.compile(r"[0-9a-f]{64}")
_ENTRY = re.compile(r"(?P<key>[0-9a-f]{64})\.[0-9a-f]{16}\.(?P<bytes>\d+)")


class StoreLayout:
    def __init__(self, base: str) -> None:
        self._keys, self._entries, self._building = (
            os.path.join(base, each) for each in ("keys", "entries", "building")
        )

    def has_keys(self) -> bool:
        return os.path.isdir(self._keys)

    def has_entries(self) -> bool:
        return os.path.isdir(self._entries)

    def make_folders(self) -> None:
        for folder in (self._keys, self._entries, self._building):
            os.makedirs(folder, exist_ok=True)

    # ------------------------------------------------------------ keys

    def load_pointer(self, key: str) -> str | None:
        """The name of the entry that counts."""
        try:
            with open(os.path.join(self._keys, key), encoding="ascii") as file:
                name = file.read().strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except UnicodeDecodeError:
            name = ""
        except OSError as error:
            if error.errno in NOT_ITS_FAULT:
                raise
            name = ""
        match = _ENTRY.fullmatch(name)
        # after a power cut it may be empty: that names no entry, and the check says so
        return name if match and match["key"] == key else f"{key}.{'0' * 16}.0"

    def list_keys(self) -> list[str]:
        return [name for name in _list(self._keys) if _KEY.fullmatch(name)]

    def load_used_at(self, key: str) -> float:
        return os.stat(os.path.join(self._keys, key)).st_mtime

    def mark_used(self, key: str) -> None:
        with contextlib.suppress(OSError):  # read-only: nobody evicts there
            os.utime(os.path.join(self._keys, key))

    def forget_key(self, key: str, name: str) -> None:
        """Where it still names this entry."""
        if self.load_pointer(key) == name:
            os.unlink(os.path.join(self._keys, key))

    def remove_torn(self) -> None:
        """Key files are written under the shared lock: a half-written one is a dead process's."""
        for name in _list(self._keys):
            if name.endswith(TEMPORARY_SUFFIX):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._keys, name))

    # ------------------------------------------------------------ entries

    def find_entry(self, name: str) -> str:
        return os.path.join(self._entries, name)

    def choose_aside(self, key: str) -> str:
        """Where a new entry is made."""
        return os.path.join(self._building, f"{key}.{os.urandom(8).hex()}")

    def place(self, aside: str, name: str) -> None:
        """From now on it is an entry, and the one that counts."""
        os.rename(aside, self.find_entry(name))
        write_atomic(os.path.join(self._keys, find_key(name)), name)

    def measure(self) -> int:
        """Names tell the sizes: this costs one look at a folder."""
        return sum(map(find_size, _list(self._entries)))

    def list_by_use(self) -> list[str]:
        """All entries, least recently used first; those that no key names come before all others."""
        return sorted(filter(_ENTRY.fullmatch, _list(self._entries)), key=lambda name: (self._used_at(name), name))

    def _used_at(self, name: str) -> float:
        key = find_key(name)
        try:
            return self.load_used_at(key) if self.load_pointer(key) == name else 0.0
        except OSError:
            return 0.0

    def take_down(self, name: str) -> None:
        """It loses its name, which is quick, and waits to be deleted."""
        self.forget_key(find_key(name), name)
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.find_entry(name), os.path.join(self._building, _TRASH + os.urandom(8).hex()))

    def find_leftovers(self) -> Iterator[tuple[str, str | None]]:
        """What is on its way out, and builds that go on or were killed, with their key."""
        for name in _list(self._building):
            yield os.path.join(self._building, name), None if name.startswith(_TRASH) else find_key(name)


def find_key(name: str) -> str:
    return name.partition(".")[0]


def find_size(name: str) -> int:
    match = _ENTRY.fullmatch(name)
    return int(match["bytes"]) if match else 0


def remove_tree(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if not os.path.isdir(path):
        return
    for folder, _, _ in os.walk(path):  # a tool that makes read-only folders
        with contextlib.suppress(OSError):
            os.chmod(folder, stat.S_IRWXU)
    shutil.rmtree(path, ignore_errors=True)


def _list(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
