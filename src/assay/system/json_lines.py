"""Files of JSON lines that are only ever added to: what a kill cuts short costs one line, and no other."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, BinaryIO

from assay.errors import InfrastructureError


def append_line(path: str, facts: Mapping[str, Any]) -> None:
    """On the disk when this returns. A torn last line is ended first, so that it spoils nothing."""
    try:
        with open(path, "a+b") as file:
            start = b"" if _ends_well(file) else b"\n"
            file.write(start + json.dumps(facts).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InfrastructureError(f"{path} cannot be written: {error.strerror}") from error


def _ends_well(file: BinaryIO) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def load_lines(path: str) -> list[dict[str, Any]]:
    """Every line that is a JSON object, in order; none where there is no file."""
    found = []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        with suppress(ValueError):
            facts = json.loads(line)
            if isinstance(facts, dict):
                found.append(facts)
    return found
