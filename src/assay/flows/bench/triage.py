"""`assay bench triage`: what a person says about a change, kept where later verdicts find it."""

from __future__ import annotations

import getpass
import time
from dataclasses import dataclass
from typing import cast

from assay.errors import NotFoundError, UsageError
from assay.flows.bench.archive import find_place
from assay.flows.bench.history import HistoryOptions, load_histories
from assay.record.benchmarks import Judgement, Triage, add_triage, load_triage
from assay.values.bench_history import Change, MetricHistory


@dataclass(frozen=True, slots=True)
class Word:
    """What somebody says about a change: by the execution where it begins, by a commit of its range, or `last`."""

    metric: str
    method: str
    change: str
    judgement: str
    note: str = ""


def say_about(word: Word, root: str | None, everything: bool = False) -> str:
    """Write it down; what is meant is said back."""
    place = find_place(root)
    (history,) = load_histories(word.metric, word.method, HistoryOptions(root, min_effect=0.0, everything=everything))
    change = _find_change(history, word.change)
    said = [t for t in load_triage(place.dir) if t.method == history.method and t.metric == word.metric]
    if change is None:
        first, until = _find_said(said, word.change, history)
    else:
        first, until = change.execution_id, change.until
    judgement = cast("Judgement", word.judgement)
    add_triage(place.dir, Triage(history.method, word.metric, first, until, judgement, word.note, _user(), time.time()))
    return f"{history.method} {word.metric}: the change at {first} is {judgement}"


def _find_change(history: MetricHistory, name: str) -> Change | None:
    changes = history.changes
    if name == "last":
        if not changes:
            raise UsageError(
                f"{history.method} {history.metric} has no change", "see: assay bench history METRIC METHOD"
            )
        return changes[-1]
    for change in changes:
        commits = [commit for commit in change.commits if commit]
        if change.execution_id == name or (len(name) >= 4 and any(commit.startswith(name) for commit in commits)):
            return change
    return None


def _find_said(said: list[Triage], name: str, history: MetricHistory) -> tuple[str, str]:
    """Something was said before, and the change is not seen any more: `invalid` leaves its executions out."""
    for each in reversed(said):
        if each.execution_id == name:
            return each.execution_id, each.until
    raise NotFoundError("change", name, [change.execution_id for change in history.changes])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
