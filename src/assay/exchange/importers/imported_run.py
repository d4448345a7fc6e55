"""A run as another tool recorded it, before it becomes a run directory of ours; and values as tables have them."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import IO, Any, NoReturn

from assay.errors import UsageError
from assay.record.index.base import Series
from assay.system.fast_dataclasses import dataclass, field
from assay.system.files import parse_json
from assay.values.state import State

STILL_RUNNING = "it was still running when it was imported; import it again to update it"
_WORDS = {"true": True, "false": False, "null": None, "none": None}
_NUMBERS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf, "-infinity": -math.inf}
_INTEGER = re.compile(r"[+-]?(?:0|[1-9]\d{0,17})")  # 007 is a text
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class ImportedRun:
    id: str  # what the other tool calls it for ever: the same run is found again by it
    name: str
    study: str
    state: State | None = State.DONE  # None: the file does not show it
    params: Mapping[str, Any] = field(default_factory=dict)
    points: Mapping[str, Series] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    note: str = ""
    reason: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    commit: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)  # more of what the tool knew, kept with the run


@dataclass(frozen=True, slots=True)
class ImportedRuns:
    runs: tuple[ImportedRun, ...]
    notes: tuple[str, ...] = ()  # on what was left out, or had to be guessed


def refuse(path: str, why: str, line: int | None = None) -> NoReturn:
    """Raise UsageError: nothing of a bad file is imported."""
    raise UsageError(f"{path}{f':{line}' if line is not None else ''}: {why}", "nothing was imported")


@contextmanager
def opening(path: str, mode: str = "r", **options: Any) -> Iterator[IO[Any]]:
    """The open file; one that cannot be read, or is not text, is refused."""
    try:
        with open(path, mode, **options) as file:
            yield file
    except UnicodeDecodeError as error:
        refuse(path, f"it is not text (byte {error.start + 1})")
    except OSError as error:
        refuse(path, f"it cannot be read: {error.strerror}")


def build_series(points: list[tuple[float | None, float, float | None]]) -> Series:
    """A series from rows of (step, value, time)."""
    steps, values, times = zip(*points, strict=True) if points else ((), (), ())
    return Series(_build_array(steps), array("d", values), _build_array(times))


def _build_array(values: tuple[float | None, ...]) -> array[float]:
    return array("d", [math.nan if value is None else value for value in values])


def parse_number(text: str) -> float | None:
    text = text.strip()
    return float(text) if _NUMBER.fullmatch(text) else _NUMBERS.get(text.lower())


def parse_value(text: str) -> Any:
    """A cell, or another text that stands for a value: a number, true, false, a list or mapping as JSON, else text."""
    plain = text.strip()
    if _INTEGER.fullmatch(plain):
        return int(plain)
    if _NUMBER.fullmatch(plain):
        return float(plain)
    if plain.lower() in _WORDS:
        return _WORDS[plain.lower()]
    if plain[:1] in ("[", "{"):
        try:
            return parse_json(plain)
        except ValueError:
            return text
    return text


def parse_moment(text: str) -> float | None:
    """ISO 8601 as seconds since the epoch, local time where it has no zone; None where it is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
