"""What a step that failed was given, kept so that its command line can be typed again.

A step works on files in folders that go away: in the store's workplace, in ours. What a failure needs of them is copied
beside the tensors that differ, and the texts of the outcome lead there.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from assay.models.backends.base import BackendError
from assay.models.backends.onnx_file import find_external
from assay.models.values.model import Job, StepOutcome, Target

MOST_BYTES = 64 * 1024 * 1024  # of one thing: what is larger stays where it is, and its command with it


def keep_failure(failure_dir: str, target: Target, job: Job, outcome: StepOutcome) -> StepOutcome:
    """The outcome with paths that stay. A full disk costs the copy, not the outcome."""
    if not failure_dir:
        return outcome
    place = os.path.join(failure_dir, job.case or "case", re.sub(r"[^\w.+-]+", "_", f"{job.step}-{target.name}"))
    shutil.rmtree(place, ignore_errors=True)
    moved = {old: new for old, new in _list_moves(job, place) if _copy(old, new)}
    return _rewrite(outcome, moved)


def _list_moves(job: Job, place: str) -> Iterator[tuple[str, str]]:
    yield job.folder, os.path.join(place, "made")
    yield job.source, os.path.join(place, os.path.basename(job.source))
    if job.inputs:
        yield job.inputs, os.path.join(place, "inputs")


def _copy(old: str, new: str) -> bool:
    """False: it is too large, or cannot be copied."""
    pairs = [(os.path.normpath(os.path.join(old, name)), os.path.join(new, name)) for name in _find_files(old)]
    with suppress(OSError):
        if sum(os.path.getsize(source) for source, _ in pairs) > MOST_BYTES:
            return False
        if os.path.isdir(old):
            for folder, _, _ in os.walk(old):  # a command writes into them, empty or not
                os.makedirs(os.path.normpath(os.path.join(new, os.path.relpath(folder, old))), exist_ok=True)
        for source, copy in pairs:
            copied = os.path.normpath(copy)
            os.makedirs(os.path.dirname(copied), exist_ok=True)
            shutil.copyfile(source, copied)
        return True
    return False


def _find_files(path: str) -> Iterator[str]:
    """Names relative to it; a model's external data lies beside it."""
    if os.path.isdir(path):
        for folder, _, names in os.walk(path):
            yield from (os.path.relpath(os.path.join(folder, name), path) for name in names)
        return
    yield "."
    if path.endswith(".onnx"):
        with suppress(BackendError):
            yield from (os.path.join("..", name) for name in find_external(path))


def _rewrite(outcome: StepOutcome, moved: Mapping[str, str]) -> StepOutcome:
    """The longest path first: one may lie in another."""

    def change(text: str) -> str:
        for old in sorted(moved, key=len, reverse=True):
            text = text.replace(old, moved[old])
        return text

    return replace(
        outcome,
        message=change(outcome.message),
        command=_change_words(outcome.command, change),
        stdout=change(outcome.stdout),
        stderr=change(outcome.stderr),
        hint=change(outcome.hint),
    )


def _change_words(command: str, change: Callable[[str], str]) -> str:
    """Word by word: a new path may need quotes where the old one needed none. What is no line for a shell has none."""
    try:
        words = shlex.split(command)
    except ValueError:
        return change(command)
    if _join(words) != command:
        return change(command)
    return _join([change(word) for word in words])


def _join(words: list[str]) -> str:
    return " ".join(word if word == "&&" else shlex.quote(word) for word in words)
