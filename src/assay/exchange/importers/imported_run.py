"""The tools whose runs `assay index ingest` imports, their runs as read from a file, and parsers."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import IO, Any, NoReturn

from assay.errors import UsageError
from assay.record.importers.registry import Importer
from assay.record.index.base import Series
from assay.system.fast_dataclasses import dataclass, field
from assay.system.files import parse_json
from assay.values.state import State

STILL_RUNNING = "it was still running when it was imported; import it again to update it"
_WORDS = {"true": True, "false": False, "null": None, "none": None}
_NUMBERS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf, "-infinity": -math.inf}
_INTEGER = re.compile(r"[+-]?(?:0|[1-9]\d{0,17})")  # 007 is text
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_MODULES = "assay.exchange.importers"
_STORE = "MLflow's store (mlflow.db; a folder mlruns/, an experiment or a run in it)"
IMPORTERS = tuple(
    Importer(name, title, "runs", f"{_MODULES}.{module}:{recognise}", f"{_MODULES}.{module}:{load}")
    for name, title, module, recognise, load in (
        ("mlflow", _STORE, "mlflow_store", "is_mlflow", "load_mlflow"),
        ("wandb", "the CSV of W&B's runs table", "wandb_csv", "is_table", "load_table"),
        ("wandb-history", "the CSV of one of W&B's charts", "wandb_csv", "is_history", "load_history"),
        ("optuna", "Optuna's journal", "optuna_journal", "is_journal", "load_journal"),
        ("trackio", "Trackio's database", "trackio_database", "is_trackio", "load_trackio"),
    )
)


@dataclass(frozen=True, slots=True)
class ImportedRun:
    id: str  # the other tool's permanent id, which identifies the run when it is imported again
    name: str
    study: str
    state: State | None = State.DONE  # None: unknown, not in the file
    params: Mapping[str, Any] = field(default_factory=dict)
    points: Mapping[str, Series] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    note: str = ""
    reason: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    commit: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)  # other facts of the tool, kept with the run


@dataclass(frozen=True, slots=True)
class ImportedRuns:
    runs: tuple[ImportedRun, ...]
    notes: tuple[str, ...] = ()  # about what was left out or guessed


def refuse(path: str, why: str, line: int | None = None) -> NoReturn:
    """Raise UsageError about a file; nothing in the file is imported."""
    raise UsageError(f"{path}{f':{line}' if line is not None else ''}: {why}", "nothing was imported")


@contextmanager
def opening(path: str, mode: str = "r", **options: Any) -> Iterator[IO[Any]]:
    """Open a file, and refuse one that cannot be read or is not text."""
    try:
        with open(path, mode, **options) as file:
            yield file
    except UnicodeDecodeError as error:
        refuse(path, f"it is not text (byte {error.start + 1})")
    except OSError as error:
        refuse(path, f"it cannot be read: {error.strerror}")


def build_series(points: list[tuple[float | None, float, float | None]]) -> Series:
    """Build a series from rows of (step, value, time)."""
    steps, values, times = zip(*points, strict=True) if points else ((), (), ())
    return Series(_build_array(steps), array("d", values), _build_array(times))


def _build_array(values: tuple[float | None, ...]) -> array[float]:
    return array("d", [math.nan if value is None else value for value in values])


def parse_number(text: str) -> float | None:
    text = text.strip()
    return float(text) if _NUMBER.fullmatch(text) else _NUMBERS.get(text.lower())


def parse_value(text: str) -> Any:
    """Parse the text of a cell or parameter: a number, true, false, a list or mapping as JSON, else the text itself."""
    plain = text.strip()
    if _INTEGER.fullmatch(plain):
        return int(plain)
    if _NUMBER.fullmatch(plain):
        return float(plain)
    if plain.lower() in _WORDS:
        return _WORDS[plain.lower()]
    if plain[:1] in ("[", "{"):
        with suppress(ValueError):
            return parse_json(plain)
    return text


def parse_moment(text: str) -> float | None:
    """Parse ISO 8601 to seconds since the epoch, in local time without a zone; return None for other texts."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
