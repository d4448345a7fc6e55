"""What a benchmark's flags say."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from typing import Any

from assay.config.fields import parse_duration
from assay.errors import UsageError
from assay.values.benchmark import BenchMethod

_NAMED = re.compile(r"(?P<name>[A-Za-z][\w.-]*)=(?P<text>\S.*)", re.DOTALL)


def parse_commands(texts: Sequence[str]) -> list[BenchMethod]:
    """`NAME=TEXT` goes by that name; without one a command goes by its own text."""
    found = []
    for text in texts:
        match = _NAMED.fullmatch(text.strip())
        if not text.strip():
            raise UsageError("an empty --command", "write --command 'python train.py'")
        found.append(
            BenchMethod(match["text"], match["name"], "command")
            if match
            else BenchMethod(text.strip(), text.strip(), "command")
        )
    return found


def parse_pairs(texts: Sequence[str], flag: str) -> tuple[tuple[str, str], ...]:
    pairs = [tuple(text.partition("=")[::2]) for text in texts]
    for text, (name, value) in zip(texts, pairs, strict=True):
        if "=" not in text or not name:
            raise UsageError(f"{flag} {text!r} is no NAME=VALUE")
        if flag == "--metric":
            _check_pattern(text, value)
    return tuple((name, value) for name, value in pairs)


def _check_pattern(text: str, regex: str) -> None:
    try:
        groups = re.compile(regex).groups
    except re.error as error:
        raise UsageError(f"--metric {text!r}: broken regular expression: {error}") from None
    if groups < 1:
        raise UsageError(f"--metric {text!r} has no group", r"put the number into one: loss=loss: ([\d.]+)")


def parse_timeout(text: str | None) -> float | None:
    seconds = parse_duration(text) if text is not None else None
    if text is not None and not seconds:
        raise UsageError(f"--timeout {text} is no duration", "such as 90s, 30m, 2h or 1h30m")
    return seconds


def parse_arguments(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"the constructor's arguments are no JSON: {error}", """such as --args '{"batch": 64}'"""
        ) from None
    if not isinstance(found, dict):
        raise UsageError("the constructor's arguments must be a JSON object", """such as --args '{"batch": 64}'""")
    return found


def check_python(path: str | None) -> str | None:
    """An interpreter by its path, or by its name on PATH."""
    if path is not None and shutil.which(path) is None:
        raise UsageError(f"--python {path}: there is no such program", "name an interpreter by its path")
    return path


def check_folders(paths: Sequence[str]) -> None:
    for path in paths:
        if not os.path.isdir(path):
            raise UsageError(f"--path {path}: there is no such folder")
