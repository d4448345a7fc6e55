"""The ledger of tries: one line for each try in `tries.jsonl` of the study `try`. The newest line of a key counts."""

from __future__ import annotations

import contextlib
import json
import os
from typing import get_args

from assay.follow.api import StudyLocation
from assay.gate.paired_test import Choice, TryQuestion
from assay.launch.api import build_side_command
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.system.files import append_line, blake2b, load_lines
from assay.values import layout
from assay.values.plain import build_plain, parse_plain
from assay.values.secrets import hide_arguments
from assay.values.series import Direction

STUDY = "try"
SEED = "{seed}"
_FILE = "tries.jsonl"
_LATEST = 1e11  # seconds since the epoch: a line with a later time is damaged


@dataclass(frozen=True, slots=True)
class Metric:
    """The compared metric. `pattern`: a regular expression for the output; empty: the metric is logged or printed."""

    name: str
    direction: Direction
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class TrySide:
    """One side of a try: its code, and the command with `{seed}` in it."""

    code: str  # the hash of the code's snapshot, which the study stores
    commit: str  # the commit of the code, or the commit that uncommitted code is based on
    title: str  # the title in reports: a commit's subject, or the work tree
    words: tuple[str, ...]
    environment: str = ""
    inside: str = "."  # the folder in the code in which the command runs
    machine: str = ""  # a digest of packages, hardware and variables: another digest makes another run

    @property
    def key(self) -> str:
        """The key of a side: equal sides share their runs."""
        return _hash(self.code, self.build_command(0), self.machine)

    def build_command(self, seed: int) -> str:
        words = tuple(word.replace(SEED, str(seed)) for word in self.words)
        return build_side_command(words, self.environment, self.inside)

    def show_command(self) -> str:
        """Return the command as reports show it, with `{seed}` in it."""
        return build_side_command(self.words, self.environment, self.inside).replace(f"'{SEED}'", SEED)


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The result of repeating a try with fresh seeds on both sides."""

    pairs: int
    effect: float | None
    p: float
    is_kept: bool


@dataclass(frozen=True, slots=True)
class Try:
    """An idea and its result. `effect` and `interval` describe b - a; `seconds` and `runs` are the cost of the try."""

    idea: str
    metric: Metric
    question: TryQuestion
    a: TrySide
    b: TrySide
    most: int  # the largest number of pairs
    farm: str = ""
    timeout_s: float | None = None
    at: float = 0.0  # seconds since the epoch
    verdict: Choice = "undecided"
    reason: str = ""
    pairs: int = 0  # pairs with a value on at least one side
    values: tuple[tuple[int, float | None, float | None], ...] = ()  # seed, a, b
    effect: float | None = None
    relative: float | None = None
    interval: tuple[float, float] | None = None
    threshold: float | None = None
    runs: int = 0
    new_runs: int = 0  # runs that did not exist before this try
    seconds: float = 0.0  # the time of all runs together
    notes: tuple[str, ...] = field(default_factory=tuple)
    confirmation: Confirmation | None = None

    @property
    def key(self) -> str:
        """The key of the question: a later line with the same key replaces an earlier one."""
        return _hash(self.a.key, self.b.key, build_plain(self.metric), build_plain(self.question), self.most)


def _hash(*parts: object) -> str:
    return blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=6).hexdigest()


def record_try(location: StudyLocation, found: Try) -> None:
    append_line(_find_file(location), build_plain(hide_try(found)))


def hide_try(found: Try) -> Try:
    """Remove the secrets from a try's commands; a try without its secrets cannot be confirmed."""
    a, b = (replace(side, words=hide_arguments(side.words)) for side in (found.a, found.b))
    return replace(found, a=a, b=b)


def load_tries(location: StudyLocation) -> list[Try]:
    """Load all tries in the order of their first lines; a line that is cut short or damaged is ignored."""
    found: dict[str, Try] = {}
    for line in load_lines(_find_file(location)):
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            each = parse_plain(Try, line)
            if each.a.words and each.b.words and each.verdict in get_args(Choice) and 0 <= each.at < _LATEST:
                found[each.key] = each
    return list(found.values())


def _find_file(location: StudyLocation) -> str:
    return os.path.join(location.dir, layout.STUDY_META_DIR, _FILE)
