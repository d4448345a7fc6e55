"""Manages the files that steps leave: the inputs of a failed step, and dumps of tools.

A step works on files in temporary folders. Files that are needed to reproduce a failure are copied next to the tensors
that differ, and the texts of the outcome name the copies, so that its command line can be executed again.

Dumps get one folder per case, which has a folder for each further sample. Users may have files in these folders, too. A
dump therefore records its files, and the next dump removes only recorded files, so as not to mix two compilations.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from assay.errors import InfrastructureError
from assay.models.backends.base import BackendError
from assay.models.backends.captured_output import watch_folder
from assay.models.backends.onnx_backend import find_external
from assay.models.values.model import Job, StepOutcome, Target
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.system.files import write_atomic

MOST_BYTES = 64 * 1024 * 1024  # a larger file or folder is not copied, and the command keeps its path


def keep_failure(failure_dir: str, target: Target, job: Job, outcome: StepOutcome) -> StepOutcome:
    """Return the outcome with paths of copies, which stay valid; a file that cannot be copied keeps its path."""
    if not failure_dir:
        return outcome
    name = re.sub(r"[^\w.+-]+", "_", f"{job.step}-{target.name}")
    target_dir = os.path.join(os.path.abspath(failure_dir), job.case or "case", name)  # commands are pasted anywhere
    shutil.rmtree(target_dir, ignore_errors=True)
    copies = {job.folder: "made", job.source: os.path.basename(job.source)}
    if job.inputs:
        copies[job.inputs] = "inputs"
    moved = {old: os.path.join(target_dir, new) for old, new in copies.items()}
    copied = {old: new for old, new in moved.items() if _copy(old, new)}

    def change(text: str) -> str:
        for old in sorted(copied, key=len, reverse=True):  # one path may contain another
            text = text.replace(old, copied[old])
        return text

    texts: dict[str, Any] = {name: change(getattr(outcome, name)) for name in ("message", "stdout", "stderr", "hint")}
    return replace(outcome, command=_change_words(outcome.command, change), **texts)


def _copy(old: str, new: str) -> bool:
    """Copy a file or a folder; return False if it is too large, or cannot be copied."""
    pairs = [(os.path.normpath(os.path.join(old, name)), os.path.join(new, name)) for name in _find_files(old)]
    with suppress(OSError):
        if sum(os.path.getsize(source) for source, _ in pairs) > MOST_BYTES:
            return False
        if os.path.isdir(old):
            for folder, _, _ in os.walk(old):  # a command writes into these folders, so empty ones are copied, too
                os.makedirs(os.path.normpath(os.path.join(new, os.path.relpath(folder, old))), exist_ok=True)
        for source, copy in pairs:
            copied = os.path.normpath(copy)
            os.makedirs(os.path.dirname(copied), exist_ok=True)
            shutil.copyfile(source, copied)
        return True
    return False


def _find_files(path: str) -> Iterator[str]:
    """Yield the names of files relative to a path; a model's external data is next to it."""
    if os.path.isdir(path):
        for folder, _, names in os.walk(path):
            yield from (os.path.relpath(os.path.join(folder, name), path) for name in names)
        return
    yield "."
    if path.endswith(".onnx"):
        with suppress(BackendError):
            yield from (os.path.join("..", name) for name in find_external(path))


def _change_words(command: str, change: Callable[[str], str]) -> str:
    """Change a shell command word by word: a new path may need quotes that the old one did not need."""
    try:
        words = shlex.split(command)
    except ValueError:
        return change(command)
    if _join(words) != command:
        return change(command)
    return _join([change(word) for word in words])


def _join(words: list[str]) -> str:
    return " ".join(word if word == "&&" else shlex.quote(word) for word in words)


NOTE = ".assay-dump"  # lists the names of the files that a dump wrote, one per line


@dataclass(slots=True)
class DumpFolders:
    """The folders for dumps of one process."""

    _samples: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # folder, step → hashes of inputs in order
    _begun: dict[str, Callable[[], tuple[str, ...]]] = field(default_factory=dict)  # folder → the files written since

    def choose(self, base: str, case: str, step: str, sha: str) -> str:
        """Return the case's own folder for the first sample, or for a model that all samples share; the folders of
        further samples, `sample_2`, …, are in it. Steps may share a folder."""
        folder = os.path.join(os.path.abspath(base), case)
        known = self._samples.setdefault((folder, step), [])
        if sha not in known:
            known.append(sha)
        number = known.index(sha) + 1
        return make_folder(folder if number == 1 else os.path.join(folder, f"sample_{number}"))

    def clear(self, folder: str) -> None:
        """Remove the files of an earlier process's dump from a folder, at the first call for this folder."""
        if folder in self._begun:
            return
        names: list[str] = []
        with suppress(OSError), open(os.path.join(folder, NOTE), encoding="utf-8", errors="surrogateescape") as stream:
            names = stream.read().splitlines()
        for name in names:
            _remove(folder, os.path.normpath(os.path.join(folder, name)))
        self._begun[folder] = watch_folder(folder)

    def note(self, folder: str) -> None:
        """Record the files that are new or have changed since `clear`."""
        written = [os.path.relpath(path, folder) for path in self._begun[folder]()]
        names, path = [name for name in written if name != NOTE], os.path.join(folder, NOTE)
        with suppress(OSError):  # without this file the next dump removes nothing
            if not names:
                os.unlink(path)
                return
            write_atomic(path, "".join(f"{name}\n" for name in names if "\n" not in name))


def _remove(folder: str, path: str) -> None:
    """Remove a file, and folders that are empty afterwards, which tools make for their passes."""
    if not path.startswith(folder + os.sep):
        return
    with suppress(OSError):
        os.unlink(path)
        while (path := os.path.dirname(path)) != folder:
            os.rmdir(path)


def make_folder(folder: str) -> str:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise InfrastructureError(f"the folder {folder} cannot be made: {error.strerror}") from error
    return folder
