"""`assay bench triage`: a person's judgement of a change, kept for later verdicts."""

from __future__ import annotations

import getpass
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from assay.bench.flow.archive import find_location, is_named
from assay.bench.flow.history import HistoryOptions, latest_triage, load_histories
from assay.bench.records import Judgement, Triage, add_triage, load_triage
from assay.bench.values.comparison import Change, MetricHistory
from assay.errors import NotFoundError, UsageError, did_you_mean

LAST = "last"
_MOST_CHANGES = 8  # that are listed


@dataclass(frozen=True, slots=True)
class Decision:
    """The judgement of a change, which is named by the execution where it begins, by a commit of its range, or
    `last`."""

    metric: str
    method: str
    change: str
    judgement: str
    note: str = ""


def triage_change(word: Decision, root: str | None, everything: bool = False) -> str:
    """Store it; returns a line that names the change."""
    location = find_location(root)
    meant = _find_triaged(word, load_triage(location.dir)) or _find_untriaged(word, root, everything)
    judgement = cast("Judgement", word.judgement)
    said = Triage(
        meant.method, word.metric, meant.execution_id, meant.until, judgement, word.note, _user(), time.time()
    )
    add_triage(location.dir, said)
    return f"{said.method} {word.metric}: the change at {said.execution_id} is {judgement}"


def _find_triaged(word: Decision, every: Sequence[Triage]) -> Triage | None:
    """An earlier triage: `open` revokes it, also where the change is no longer found (`invalid` leaves its executions
    out, and perhaps too few remain for a history)."""
    if word.judgement != "open":
        return None
    said = [each for each in every if each.metric == word.metric and is_named(word.method, each.method)]
    standing = [each for each in latest_triage(said) if each.judgement != "open"]
    return next((each for each in reversed(standing) if word.change in (LAST, each.execution_id)), None)


def _find_untriaged(word: Decision, root: str | None, everything: bool) -> Triage:
    histories = load_histories(word.metric, word.method, HistoryOptions(root, min_effect=0.0, everything=everything))
    if len(histories) > 1:
        names = ", ".join(history.method for history in histories[:6])
        raise UsageError(f"{word.method!r} matches {len(histories)} benchmarks", f"one of: {names}")
    change = _find_change(histories[0], word.change)
    return Triage(histories[0].method, word.metric, change.execution_id, change.until)


def _find_change(history: MetricHistory, name: str) -> Change:
    changes = history.changes
    if name == LAST and changes:
        return changes[-1]
    for change in changes:
        commits = [commit for commit in change.commits if commit]
        if change.execution_id == name or (len(name) >= 4 and any(commit.startswith(name) for commit in commits)):
            return change
    if not changes:
        raise UsageError(
            f"{history.method} {history.metric} has no change",
            "see: assay bench history METRIC METHOD; invalid executions are left out: `open` revokes that",
        )
    ids = [change.execution_id for change in changes]
    listed = f"changes: {', '.join(ids[-_MOST_CHANGES:])}, or {LAST}"
    close = did_you_mean(name, ids) if len(ids) > 1 else None
    raise NotFoundError("change", name, ids, f"{close}; {listed}" if close and "mean" in close else listed)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
