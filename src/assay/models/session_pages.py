"""Sessions of tests on the page of models: outcomes compared with a baseline, expected failures, measurements."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from assay.errors import AssayError, NotFoundError
from assay.follow.api import StudyLocation
from assay.record.index.base import RunRow
from assay.record.run_directory import load_record
from assay.system.fast_dataclasses import dataclass, field
from assay.values.document import Block, Section, TableBlock, Text
from assay.values.state import State
from assay.values.table import Column, Table


@dataclass(frozen=True, slots=True)
class SessionCard:
    id: str
    at: float
    commit: str
    batch: str
    counts: Mapping[str, int]  # outcome → tests


@dataclass(frozen=True, slots=True)
class TestedLine:
    test: str
    run: str
    outcome: str
    before: str  # outcome in the baseline; "" if the baseline does not have the test
    issue: str = ""

    @property
    def change(self) -> str:
        """The change of the outcome: empty if there is none, `other` if it is neither better nor worse."""
        if not self.before:
            return "new"
        if not self.outcome:
            return "gone"
        if self.outcome == self.before:
            return ""
        step = _GOOD.get(self.outcome, 0) - _GOOD.get(self.before, 0)
        return "worse" if step < 0 else "better" if step else "other"


NOT_THERE = "not there"
_GOOD = {"passed": 3, "xpass": 3, "xfail": 2, "skipped": 2}


@dataclass(frozen=True, slots=True)
class SessionPage:
    card: SessionCard
    baseline: SessionCard | None
    lines: tuple[TestedLine, ...]
    outcomes: tuple[str, ...]  # the outcomes that occur: rows and columns of the matrix
    matrix: Mapping[tuple[str, str], int] = field(default_factory=dict)  # before, now → tests

    @property
    def changed(self) -> dict[str, int]:
        """How many tests became worse, better, are new or gone; empty without a baseline."""
        words = [line.change for line in self.lines] if self.baseline else []
        return {word: words.count(word) for word in ("worse", "better", "other", "new", "gone") if word in words}

    @staticmethod
    def rate(before: str, now: str) -> str:
        """Return the change that a cell of the matrix shows."""
        return TestedLine("", "", now, before).change if NOT_THERE not in (before, now) else ""


def is_session_study(rows: Sequence[RunRow]) -> bool:
    return any("session" in row.params and "outcome" in row.params for row in rows)


def _find_session(row: RunRow) -> str:
    """Return the session of a test: the beginning of the run's name is used if run.json cannot be read."""
    if row.state is State.DAMAGED:
        return row.key.partition("/")[2].partition("-")[0]
    return str(row.params.get("session", ""))


def _find_outcome(row: RunRow) -> str:
    """Return a test's outcome, or the state of its run if the two contradict: a run that is not done has not passed."""
    outcome = str(row.params.get("outcome") or "unknown")
    is_doubtful = row.state is State.DAMAGED or (outcome in _GOOD and row.state is not State.DONE)
    return str(row.state) if is_doubtful else outcome


def list_sessions(rows: Sequence[RunRow]) -> list[SessionCard]:
    groups: dict[str, list[RunRow]] = {}
    for row in rows:
        if session := _find_session(row):
            groups.setdefault(session, []).append(row)
    cards = []
    for session, found in groups.items():
        counts = Counter(map(_find_outcome, found))
        at = max(row.ended_at or row.created_at or 0.0 for row in found)
        whole = next((row for row in found if "session" in row.params), found[0])
        cards.append(SessionCard(session, at, whole.commit or "", str(whole.params.get("batch_name", "")), counts))
    return sorted(cards, key=lambda card: -card.at)


def build_session_page(
    location: StudyLocation, rows: Sequence[RunRow], session: str, baseline: str | None
) -> SessionPage:
    """Build the page of a session compared with a baseline, by default the session before it."""
    cards = list_sessions(rows)
    known = {card.id: card for card in cards}
    for name in (session, baseline):
        if name and name not in known:
            raise NotFoundError("session", name, list(known))
    earlier = [card for card in cards if card.at < known[session].at]
    base = known[baseline] if baseline else earlier[0] if earlier else None
    now = {_name_test(row): row for row in rows if _find_session(row) == session}
    then = {_name_test(row): row for row in rows if base and _find_session(row) == base.id}
    lines = []
    for test in sorted({*now, *then}):
        row, old = now.get(test), then.get(test)
        outcome, before = _find_outcome(row) if row else "", _find_outcome(old) if old else ""
        run = (row or old).key.partition("/")[2]  # type: ignore[union-attr]
        issue = _find_issue(location, run) if outcome in ("xfail", "xpass", "nxpass") else ""
        lines.append(TestedLine(test, run, outcome, before, issue))
    matrix = Counter((line.before or NOT_THERE, line.outcome or NOT_THERE) for line in lines)
    outcomes = tuple(sorted({name for key in matrix for name in key}))
    lines.sort(key=lambda line: (("worse", "gone", "new", "other", "better", "").index(line.change), line.test))
    return SessionPage(known[session], base, tuple(lines), outcomes, matrix if base else {})


def choose_tested(lines: Sequence[TestedLine], text: str = "", before: str = "", now: str = "") -> list[TestedLine]:
    """Choose the tests whose names have all words of the text, in the cell `before`, `now` of the matrix."""
    words = text.lower().split()
    return [
        line
        for line in lines
        if all(word in line.test.lower() for word in words)
        and before in ("", line.before or NOT_THERE)
        and now in ("", line.outcome or NOT_THERE)
    ]


def build_measured_changes(
    rows: Sequence[RunRow], numbers: Mapping[str, Sequence[float]], session: str, baseline: str
) -> Sequence[Block]:
    """Build a table of the largest changes of measurements, without verdicts: a session measures a test only once."""
    now, then = (
        {_name_test(row): i for i, row in enumerate(rows) if _find_session(row) == name} for name in (session, baseline)
    )
    found = []
    for test, i in now.items():
        for metric, values in numbers.items() if test in then else ():
            old, new = values[then[test]], values[i]
            if math.isfinite(old) and math.isfinite(new) and old > 0 and abs(new / old - 1) >= _LEAST_CHANGE:
                found.append((new / old - 1, test, metric, old, new))
    found.sort(key=lambda each: -abs(each[0]))
    if not found:
        return []
    columns = (
        Column("change", align="right"), Column("measurement"), Column("before", "number"), Column("now", "number"),
        Column("test"),
    )  # fmt: skip
    cells: list[list[Any]] = [
        [f"{effect:+.1%}", metric, old, new, test] for effect, test, metric, old, new in found[:_MOST_CHANGES]
    ]
    table = TableBlock(Table(columns, cells))
    more = f" {len(found)} differ by {_LEAST_CHANGE:.0%} or more." if len(found) > _MOST_CHANGES else ""
    note = Text(f"Single measurements, which nothing is judged by.{more}", role="soft")
    return [Section([table, note], "Largest changes of measurements")]


_LEAST_CHANGE, _MOST_CHANGES = 0.05, 12


def _name_test(row: RunRow) -> str:
    params = row.params
    name = "::".join(str(params[key]) for key in ("module", "test") if params.get(key))
    name = name or row.key.partition("/")[2].partition("-")[2]
    return f"{name}[{params['parameters']}]" if params.get("parameters") else name


def _find_issue(location: StudyLocation, run: str) -> str:
    try:
        origin = load_record(os.path.join(location.dir, run)).origin or {}
        return str(origin.get("issue") or "")
    except (AssayError, OSError):
        return ""


def build_session_times(
    rows: Sequence[RunRow], numbers: Mapping[str, Sequence[float]], tests: Sequence[str]
) -> Sequence[Block]:
    """Build a table with measurements as rows and tests as columns. `numbers` has a value for each row by metric."""
    chosen = [(index, row) for index, row in enumerate(rows) if row.key.partition("/")[2] in tests]
    names = [name for name, values in numbers.items() if any(not math.isnan(values[i]) for i, _ in chosen)]
    columns = (Column("measurement"), *(Column(_name_test(row), "number") for _, row in chosen))
    cells: list[list[Any]] = [
        [name, *(None if math.isnan(numbers[name][i]) else numbers[name][i] for i, _ in chosen)] for name in names
    ]
    return [Section([TableBlock(Table(columns, cells))], "Measurements side by side")]
