"""Sessions of tests on the page of the models: outcomes next to a baseline, expected failures, measurements."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from assay.errors import AssayError, NotFoundError
from assay.record.index.base import RunRow
from assay.record.run_directory import load_record
from assay.study.api import StudyLocation
from assay.system.fast_dataclasses import dataclass, field
from assay.values.document import Block, Section, TableBlock
from assay.values.table import Column, Table


@dataclass(frozen=True, slots=True)
class SessionCard:
    id: str
    at: float
    commit: str
    batch: str
    counts: Mapping[str, int]  # by outcome


@dataclass(frozen=True, slots=True)
class TestedLine:
    test: str
    run: str
    outcome: str
    before: str  # in the baseline; "": it was not there
    issue: str = ""

    @property
    def change(self) -> str:
        """Empty where it is as before."""
        if not self.before:
            return "new"
        if not self.outcome:
            return "gone"
        if self.outcome == self.before:
            return ""
        return "worse" if _GOOD.get(self.outcome, 0) < _GOOD.get(self.before, 0) else "better"


_GOOD = {"passed": 3, "xpass": 3, "xfail": 2, "skipped": 2}


@dataclass(frozen=True, slots=True)
class SessionPage:
    card: SessionCard
    baseline: SessionCard | None
    lines: tuple[TestedLine, ...]
    outcomes: tuple[str, ...]  # that there are: rows and columns of the matrix
    matrix: Mapping[tuple[str, str], int] = field(default_factory=dict)  # before, now → tests


def is_session_study(rows: Sequence[RunRow]) -> bool:
    return bool(rows) and "session" in rows[0].params and "outcome" in rows[0].params


def list_sessions(rows: Sequence[RunRow]) -> list[SessionCard]:
    groups: dict[str, list[RunRow]] = {}
    for row in rows:
        if "session" in row.params:
            groups.setdefault(str(row.params["session"]), []).append(row)
    cards = []
    for session, found in groups.items():
        counts: dict[str, int] = {}
        for row in found:
            outcome = str(row.params.get("outcome", ""))
            counts[outcome] = counts.get(outcome, 0) + 1
        at = max(row.ended_at or row.created_at or 0.0 for row in found)
        cards.append(
            SessionCard(session, at, found[0].commit or "", str(found[0].params.get("batch_name", "")), counts)
        )
    return sorted(cards, key=lambda card: -card.at)


def build_session_page(
    location: StudyLocation, rows: Sequence[RunRow], session: str, baseline: str | None
) -> SessionPage:
    """`baseline` None: the session before it."""
    cards = list_sessions(rows)
    known = {card.id: card for card in cards}
    for name in (session, baseline):
        if name and name not in known:
            raise NotFoundError("session", name, list(known))
    earlier = [card for card in cards if card.at < known[session].at]
    base = known[baseline] if baseline else earlier[0] if earlier else None
    now = {_name_test(row): row for row in rows if str(row.params.get("session")) == session}
    then = {_name_test(row): row for row in rows if base and str(row.params.get("session")) == base.id}
    lines = []
    for test in sorted({*now, *then}):
        row, old = now.get(test), then.get(test)
        outcome = str(row.params.get("outcome", "")) if row else ""
        before = str(old.params.get("outcome", "")) if old else ""
        run = (row or old).key.partition("/")[2]  # type: ignore[union-attr]
        issue = _find_issue(location, run) if outcome in ("xfail", "xpass", "nxpass") else ""
        lines.append(TestedLine(test, run, outcome, before, issue))
    matrix: dict[tuple[str, str], int] = {}
    for line in lines:
        key = (line.before or "not there", line.outcome or "not there")
        matrix[key] = matrix.get(key, 0) + 1
    outcomes = tuple(sorted({name for key in matrix for name in key}))
    lines.sort(key=lambda line: (("worse", "gone", "new", "better", "").index(line.change), line.test))
    return SessionPage(known[session], base, tuple(lines), outcomes, matrix if base else {})


def _name_test(row: RunRow) -> str:
    params = row.params
    name = "::".join(str(params[key]) for key in ("module", "test") if params.get(key))
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
    """Measurements as rows, tests as columns. `numbers`: by metric, for each row."""
    chosen = [(index, row) for index, row in enumerate(rows) if row.key.partition("/")[2] in tests]
    names = [name for name, values in numbers.items() if any(not math.isnan(values[i]) for i, _ in chosen)]
    columns = (Column("measurement"), *(Column(_name_test(row), "number") for _, row in chosen))
    cells: list[list[Any]] = [
        [name, *(None if math.isnan(numbers[name][i]) else numbers[name][i] for i, _ in chosen)] for name in names
    ]
    return [Section([TableBlock(Table(columns, cells))], "Measurements side by side")]
