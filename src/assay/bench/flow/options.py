"""What a benchmark's flags say."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from typing import Any

from assay.bench.values.execution import BenchMethod
from assay.errors import UsageError
from assay.values.secrets import hide_text

_NAMED = re.compile(r"(?P<name>[A-Za-z][\w.-]*)=(?P<text>\S.*)", re.DOTALL)
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


def parse_commands(texts: Sequence[str]) -> list[BenchMethod]:
    """`NAME=TEXT` goes by that name; without one a command goes by its own text. `FOO=bar python x.py` has none: it is
    how a shell sets a variable for a command, and is run as it is written."""
    found = []
    for text in map(str.strip, texts):
        if not text:
            raise UsageError("an empty --command", "write --command 'python train.py'")
        match = _NAMED.fullmatch(text)
        if match and not _sets_variable(match["name"], text):
            found.append(BenchMethod(match["text"], match["name"], "command"))
        else:
            found.append(BenchMethod(text, hide_text(text), "command"))
    return found


def _sets_variable(name: str, text: str) -> bool:
    """In capitals, and with a command behind its value: `FOO=bar python x.py`, but not `TRUE=true`."""
    if not _VARIABLE.fullmatch(name):
        return False
    try:
        return len(shlex.split(text)) > 1
    except ValueError:  # a quote that a later line closes in its own way
        return len(text.split()) > 1


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
