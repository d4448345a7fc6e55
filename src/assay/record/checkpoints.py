"""The checkpoints of a run: files that its program wrote, from which a later attempt or another run continues."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress

from assay.system.fast_dataclasses import dataclass
from assay.system.files import TEMPORARY_SUFFIX
from assay.values import layout
from assay.values.run import Beginning

_WILD = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
_TEMPORARY = (TEMPORARY_SUFFIX, ".part", ".partial", ".incomplete", ".swp", "~")
_COUNTS = (("step", "(?:steps?|iter(?:ation)?s?)[-_=]?"), ("step", "checkpoint-"), ("epoch", "ep(?:ochs?)?[-_=]?"))
_ZIP = b"PK\x03\x04"  # the start of torch's and numpy's files, whose table of contents comes last


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: str  # relative to the run directory
    written_ns: int

    @property
    def numbers(self) -> list[int]:
        return [int(digits) for digits in re.findall(r"\d+", self.path)]


def list_checkpoints(run_dir: str, patterns: Sequence[str]) -> list[Checkpoint]:
    """Return the checkpoints whose files look complete, newest first. Files inside of a checkpoint are not listed."""
    fits = re.compile("|".join(map(_translate, patterns))).fullmatch
    found = []
    for folder, folders, files in os.walk(run_dir):
        if folder == run_dir:
            away = (layout.CODE_DIR, layout.RECEIVED_DIR)
            folders[:] = [name for name in folders if name.partition(".")[0] not in away]
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, run_dir)
            if fits(relative) and not _is_temporary(name) and (written_ns := _find_written_ns(path)) is not None:
                found.append(Checkpoint(relative, written_ns))
                folders[:] = [other for other in folders if other != name]
    return sorted(found, key=lambda each: (each.written_ns, each.numbers, each.path), reverse=True)


def find_newer(run_dir: str, begins: Beginning | None) -> str:
    """Return the newest checkpoint of an attempt if it is further than what the attempt began with, else an empty
    string. A program that ignores its checkpoint writes the same steps again: that is not progress."""
    found = list_checkpoints(run_dir, begins.files) if begins is not None else []
    if begins is None or not found or found[0].written_ns <= begins.newest_ns:
        return ""
    before, now = _find_count(begins.checkpoint), _find_count(found[0].path)
    is_further = before is None or now is None or before[0] != now[0] or now[1] > before[1]
    return found[0].path if is_further else ""


def describe_checkpoint(path: str) -> str:
    """Describe a checkpoint for people: its step, else its path."""
    count = _find_count(path)
    return f"{count[0]} {count[1]:,}" if count else path


def _find_count(path: str) -> tuple[str, int] | None:
    """Return unit and number of a checkpoint's name, as in `step-4200.pt`, `checkpoint-4200` or `epoch=3.ckpt`."""
    for unit, words in _COUNTS:
        if found := re.findall(rf"(?i)(?<![a-z]){words}(\d+)", path):
            return unit, int(found[-1])
    return None


def _translate(pattern: str) -> str:
    """Translate a path pattern to a regular expression: `*` matches no `/`, `**/` any number of folders."""
    parts = re.split(r"(\*\*/|\*|\?)", pattern.removeprefix("./"))
    return "".join(_WILD.get(part) or re.escape(part) for part in parts)


def _is_temporary(name: str) -> bool:
    lowered = name.lower()
    return lowered.startswith((".", "tmp")) or lowered.endswith(_TEMPORARY) or f"{TEMPORARY_SUFFIX}." in lowered


def _find_written_ns(path: str) -> int | None:
    """Return when a checkpoint (of a folder: its newest file) was written; None if it is empty, cut off or gone."""
    times_ns = []
    with suppress(OSError):
        inside = [entry.path for entry in os.scandir(path) if entry.is_file()] if os.path.isdir(path) else [path]
        for file in inside:
            status = os.stat(file)
            if _is_cut(file) or (file == path and not status.st_size):
                return None
            times_ns.append(status.st_mtime_ns)
    return max(times_ns, default=None)


def _is_cut(path: str) -> bool:
    """Return whether a file is an archive, such as torch's, that was cut off: other formats do not show it."""
    with open(path, "rb") as file:
        if file.read(len(_ZIP)) != _ZIP:
            return False
    import zipfile

    return not zipfile.is_zipfile(path)
