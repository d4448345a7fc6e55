"""The verdict on a history: is the level of today worse than it was, since when, and has someone said so already?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from assay.judge.changepoint import DEFAULT as DEFAULT_TUNING
from assay.judge.changepoint import SHORTEST_SERIES, Tuning, find_change_points
from assay.judge.origin import attribute_changes
from assay.values.bench import Attribution, ChangePoint, Triage
from assay.values.series import Direction
from assay.values.verdict import Finding, Verdict, VerdictKind

TRIAGE_REACH = 5  # new values can move a change point by some places; what was said of it stays with it


def judge_history(
    values: Sequence[float | None],
    direction: Direction,
    *,
    threshold: float = 0.0,
    since: int = 0,
    triage: Mapping[int, Triage] | None = None,
    fingerprints: Sequence[str | None] = (),
    commits: Sequence[str | None] = (),
    subject: str = "history",
    tuning: Tuning = DEFAULT_TUNING,
) -> Verdict:
    """A finding for each change point; PASS without one. `triage`: by the index of the change point.

    `since`: change points before this index are told, and raise no alarm any more.
    """
    obstacle = _find_obstacle(values, threshold, subject)
    if obstacle:
        return Verdict.of([obstacle], 0)
    changes = find_change_points(values, tuning)
    causes = attribute_changes(changes, values, fingerprints or [None] * len(values), commits=commits)
    compared = sum(value is not None and math.isfinite(value) for value in values) - 1
    asked = Asked(direction, threshold, since, triage or {})
    findings = [_judge(cause, changes, asked, subject) for cause in causes]
    return Verdict.of(findings or [_describe_calm(subject, compared + 1)], compared)


def _describe_calm(subject: str, count: int) -> Finding:
    return Finding(VerdictKind.PASS, subject, f"no change point in {count} values")


def _find_obstacle(values: Sequence[float | None], threshold: float, subject: str) -> Finding | None:
    if not math.isfinite(threshold) or threshold < 0:
        message = f"a threshold of {threshold:g} makes no sense; it is a proportion such as 0.05"
        return Finding(VerdictKind.ERROR, subject, message)
    good = sum(value is not None and math.isfinite(value) for value in values)
    if not good:
        return Finding(VerdictKind.ERROR, subject, "the history has no values")
    newest = values[-1]
    if newest is None or not math.isfinite(newest):
        return Finding(VerdictKind.FAIL, subject, "the newest value is missing, NaN or infinite", step=len(values) - 1)
    if good < SHORTEST_SERIES:
        message = f"a history of {good} values tells nothing yet; {SHORTEST_SERIES} is the fewest"
        return Finding(VerdictKind.INCONCLUSIVE, subject, message)
    return None


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of each change point."""

    direction: Direction
    threshold: float
    since: int
    triage: Mapping[int, Triage]


def _judge(cause: Attribution, changes: Sequence[ChangePoint], asked: Asked, subject: str) -> Finding:
    change = cause.change
    kind, why = _classify(cause, changes, asked)
    low, high = change.interval
    message = f"{change.size:+.2%} [{low:+.2%}, {high:+.2%}] between {change.last_before} and {change.index}: {why}"
    place = float(change.index)
    return Finding(kind, subject, message, change.after, change.before, place, change.size, change.interval)


def find_triage(change: ChangePoint, triage: Mapping[int, Triage]) -> Triage | None:
    near = [index for index in triage if abs(index - change.index) <= TRIAGE_REACH]
    return triage[min(near, key=lambda index: abs(index - change.index))] if near else None


def _classify(cause: Attribution, changes: Sequence[ChangePoint], asked: Asked) -> tuple[VerdictKind, str]:
    change = cause.change
    calm = _find_calm(change, asked)
    if calm:
        return VerdictKind.PASS, calm
    sign = 1 if asked.direction == "min" else -1
    if sign * change.size < 0:
        return VerdictKind.CHANGED, f"better from here on; {cause.origin}: {cause.reason}"
    if sign * (changes[-1].after - change.before) <= _find_slack(change, asked) * abs(change.before):
        return VerdictKind.PASS, "worse for a while; the level of today is as good as before"
    if cause.origin == "environment":
        return VerdictKind.INCONCLUSIVE, f"worse, environment: {cause.reason}"
    return VerdictKind.FAIL, f"worse from here on; {cause.origin}: {cause.reason}"


def _find_slack(change: ChangePoint, asked: Asked) -> float:
    """How much worse than before still is as good as before: levels are known no better than their step is."""
    low, high = change.interval
    uncertain = (high - low) / 2 if math.isfinite(high - low) else 0.0
    return max(asked.threshold, uncertain)


def _find_calm(change: ChangePoint, asked: Asked) -> str | None:
    """Why this change point raises no alarm, whatever it is."""
    said = find_triage(change, asked.triage)
    if said:
        return f"triaged as {said.state}" + (f" ({said.note})" if said.note else "")
    if change.index < asked.since:
        return "before the values that were asked about"
    return f"no more than {asked.threshold:.2%}" if abs(change.size) <= asked.threshold else None
