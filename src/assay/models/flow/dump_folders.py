"""Folders for what tools tell beside their result: one for each case, and in it one for each further sample.

Somebody else may have put files there as well. So a dump notes what it wrote, and only that goes when the next one is
made: passes of two compilations side by side would tell a story that never happened.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field

from assay.errors import InfrastructureError

NOTE = ".assay-dump"  # names of the files that a dump wrote, one in a line

Looks = dict[str, tuple[int, int]]  # name below the folder → size and date


@dataclass(slots=True)
class DumpFolders:
    """Those of one process."""

    _samples: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # folder, step → what went in, in turn
    _begun: dict[str, Looks] = field(default_factory=dict)  # folder → what was there before us

    def choose(self, base: str, case: str, step: str, sha: str) -> str:
        """The first sample's, or the model's where all samples share it, is the case's own; then `sample_2`, … Steps
        may share a folder."""
        folder = os.path.join(os.path.abspath(base), case)
        known = self._samples.setdefault((folder, step), [])
        if sha not in known:
            known.append(sha)
        number = known.index(sha) + 1
        return _make(folder if number == 1 else os.path.join(folder, f"sample_{number}"))

    def clear(self, folder: str) -> None:
        """What an earlier dump wrote goes; once for each process."""
        if folder in self._begun:
            return
        for name in _load_note(folder):
            _remove(folder, os.path.normpath(os.path.join(folder, name)))
        self._begun[folder] = survey(folder)

    def note(self, folder: str) -> None:
        """What is there now and was not before, or has changed."""
        before = self._begun.get(folder, {})
        names = sorted(name for name, looks in survey(folder).items() if before.get(name) != looks and name != NOTE)
        path = os.path.join(folder, NOTE)
        with suppress(OSError):  # without it the next dump clears nothing
            if not names:
                os.unlink(path)
                return
            with open(f"{path}.{os.getpid()}", "w", encoding="utf-8", errors="surrogateescape") as stream:
                stream.write("".join(f"{name}\n" for name in names if "\n" not in name))
            os.replace(f"{path}.{os.getpid()}", path)


def survey(folder: str) -> Looks:
    paths = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
    found = {os.path.relpath(path, folder): os.lstat(path) for path in paths}
    return {name: (status.st_size, status.st_mtime_ns) for name, status in found.items()}


def _load_note(folder: str) -> list[str]:
    try:
        with open(os.path.join(folder, NOTE), encoding="utf-8", errors="surrogateescape") as stream:
            return stream.read().splitlines()
    except OSError:
        return []


def _remove(folder: str, path: str) -> None:
    """With the folders in between that are empty then: tools make some for their passes. Never outside."""
    if not path.startswith(folder + os.sep):
        return
    with suppress(OSError):
        os.unlink(path)
        while (path := os.path.dirname(path)) != folder:
            os.rmdir(path)


def _make(folder: str) -> str:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise InfrastructureError(f"the folder {folder} cannot be made: {error.strerror}") from error
    return folder
