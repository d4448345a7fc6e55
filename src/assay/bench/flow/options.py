"""Parsing of the flags of benchmarks, and alerts."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from assay.bench.values.execution import BenchMethod
from assay.errors import InfrastructureError, UsageError
from assay.values.secrets import hide_text

_NAMED = re.compile(r"(?P<name>[A-Za-z][\w.-]*)=(?P<text>\S.*)", re.DOTALL)
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_TIMEOUT_S = 20.0


def parse_commands(texts: Sequence[str]) -> list[BenchMethod]:
    """`NAME=TEXT` has that name; otherwise the command text is the name. `FOO=bar python x.py` sets a shell variable
    for a command and has no name."""
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
    """In capitals, and with a command after its value: `FOO=bar python x.py`, but not `TRUE=true`."""
    if not _VARIABLE.fullmatch(name):
        return False
    try:
        return len(shlex.split(text)) > 1
    except ValueError:  # an unclosed quote
        return len(text.split()) > 1


def parse_pairs(texts: Sequence[str], flag: str) -> tuple[tuple[str, str], ...]:
    pairs = [tuple(text.partition("=")[::2]) for text in texts]
    for text, (name, value) in zip(texts, pairs, strict=True):
        if "=" not in text or not name:
            raise UsageError(f"{flag} {text!r} is not NAME=VALUE")
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
            f"the constructor's arguments are not JSON: {error}", """such as --args '{"batch": 64}'"""
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


# ---------------------------------------------------------------- alerts: findings as JSON to a web address


def check_address(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--webhook {url} is not a valid address", "such as https://example.org/hook")


def send_alert(url: str, content: Mapping[str, Any]) -> None:
    """POST it. Raises InfrastructureError if it cannot be delivered."""
    import urllib.error
    import urllib.request

    check_address(url)
    data = json.dumps(content).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method="POST")  # noqa: S310 http only
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310
            pass
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds an open response
        raise InfrastructureError(f"the alert could not be sent to {urlsplit(url).hostname}: {error}") from error
