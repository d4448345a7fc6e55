"""`assay bench triage`: a person's judgement of a change, kept for later verdicts."""

from __future__ import annotations

import getpass
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from assay.bench.flow.archive import find_location, is_named
from assay.bench.flow.history import HistoryOptions, latest_triage, load_histories
from assay.bench.records import Judgement, Triage, add_triage, load_triage
from assay.bench.values.comparison import Change, MetricHistory
from assay.errors import NotFoundError, UsageError, did_you_mean

LAST = "last"
_MOST_CHANGES = 8  # that are listed


def triage_change(
    metric: str, method: str, name: str, judgement: Judgement, note: str, root: str | None, everything: bool = False
) -> str:
    """Store the judgement of a change, which is named by the execution where it begins, by a commit of its range, or
    `last`. Returns a line that names the change."""
    location = find_location(root)
    meant = None
    if judgement == "open":  # `open` revokes an earlier triage
        meant = _find_triaged(metric, method, name, load_triage(location.dir))
    if meant is None:
        meant = _find_untriaged(metric, method, name, HistoryOptions(root, min_effect=0.0, everything=everything))
    who = ""
    with suppress(KeyError, OSError):
        who = getpass.getuser()
    add_triage(location.dir, replace(meant, judgement=judgement, note=note, who=who, at=time.time()))
    return f"{meant.method} {metric}: the change at {meant.execution_id} is {judgement}"


def _find_triaged(metric: str, method: str, name: str, every: Sequence[Triage]) -> Triage | None:
    """Also where the change is no longer found: `invalid` leaves its executions out, and perhaps too few remain for a
    history."""
    said = [each for each in every if each.metric == metric and is_named(method, each.method)]
    standing = [each for each in latest_triage(said) if each.judgement != "open"]
    return next((each for each in reversed(standing) if name in (LAST, each.execution_id)), None)


def _find_untriaged(metric: str, method: str, name: str, options: HistoryOptions) -> Triage:
    histories = load_histories(metric, method, options)
    if len(histories) > 1:
        names = ", ".join(history.method for history in histories[:6])
        raise UsageError(f"{method!r} matches {len(histories)} benchmarks", f"one of: {names}")
    change = _find_change(histories[0], name)
    return Triage(histories[0].method, metric, change.execution_id, change.until)


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
