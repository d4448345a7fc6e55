"""Changes over many nights: the level of each metric in each night, and the nights where a level changed and stayed.

A night is all checks of one day, whatever their seeds. A metric's level in a night is the mean over all runs, segments
and steps, relative to the golden: a window over seeds instead of single steps. All functions are pure; the caller
passes the function that finds change points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from statistics import fmean, median
from typing import Protocol

from assay.golden.judge.effects import better_way
from assay.golden.judge.pointwise import measure_relative, render_bounded
from assay.golden.values import MetricReport, Rule, SegmentReport, Track
from assay.show.formatting import join_first, render_count
from assay.system.fast_dataclasses import dataclass, field
from assay.values.verdict import Finding, Verdict, VerdictKind

FEWEST_NIGHTS = 6  # nights with a level: fewer show no change point
_MOST_CAUSES = 3
_TREND = 4.5  # standard deviations; many, because successive nights may be correlated


class NightStep(Protocol):
    """A change point: the index of its first value, the levels, and its relative size with an interval."""

    at: int
    before: float
    after: float
    effect: float
    interval: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Drift:
    """A gradual change of a level, which no single night began. `at`: the night at which the last third begins."""

    at: int
    before: float
    after: float
    effect: float
    interval: tuple[float, float]


FindSteps = Callable[[Sequence[float | None]], Sequence[NightStep]]


@dataclass(frozen=True, slots=True)
class Night:
    """The checks of one day; `kind`: the worst of their verdicts. `accepted`: why users accepted the night."""

    date: str
    kind: VerdictKind
    runs: int
    levels: Mapping[str, float]  # metric (and label) → level
    accepted: str = ""
    origin: Mapping[str, str] = field(default_factory=dict)  # the origin of its last check

    @property
    def is_good(self) -> bool:
        return self.kind is VerdictKind.PASS or bool(self.accepted)


@dataclass(frozen=True, slots=True)
class Move:
    """A lasting change of one metric; `state`: open, accepted, or back (the level is what it was before)."""

    metric: str
    at: int  # the first night of the new level
    effect: float
    interval: tuple[float, float]
    state: str
    drifts: bool = False


def measure_levels(segments: Sequence[SegmentReport]) -> dict[str, float]:
    """Return the golden's mean of each metric, moved by the mean effect of the runs in units of the mean size. A run
    that was stopped early counts with the steps that it has; a run with values that are not finite is left out."""
    effects: dict[str, list[float]] = {}
    goldens: dict[str, list[float]] = {}
    for report in (metric for segment in segments for metric in segment.metrics):
        for label, recordings in report.golden.items():
            name = f"{report.metric} {label}".strip()
            expected = _average_recordings(report.rule, recordings)
            goldens.setdefault(name, []).extend(expected.values())
            effects.setdefault(name, []).extend(_measure_runs(report, label, expected))
    return {
        name: fmean(goldens[name]) + fmean(map(abs, goldens[name])) * fmean(found)
        for name, found in effects.items()
        if found
    }


def _average_recordings(rule: Rule, recordings: Sequence[Track]) -> dict[int, float]:
    """Return the mean of the recordings at each step, for other seeds only of the second half, which decides."""
    steps = recordings[0].steps if recordings else ()
    steps = steps[len(steps) // 2 :] if rule.kind == "unmatched" else steps
    found = [dict(zip(track.steps, track.values, strict=True)) for track in recordings]
    return {step: fmean(each[step] for each in found if step in each) for step in steps}


def _measure_runs(report: MetricReport, label: str, expected: Mapping[int, float]) -> Iterator[float]:
    for track in report.check.get(label, ()):
        logged = zip(track.steps, track.values, strict=True)
        pairs = [(value, expected[step]) for step, value in logged if step in expected]
        values, golden = ([pair[side] for pair in pairs] for side in (0, 1))
        if pairs and all(map(math.isfinite, values)):
            size = math.fsum(map(abs, golden))
            yield math.fsum(map(float.__sub__, values, golden)) / size if size else 0.0


def judge_nights(
    nights: Sequence[Night], rules: Mapping[str, Rule], find_steps: FindSteps
) -> tuple[Verdict, list[Move]]:
    """Judge nights, oldest first. FAIL: a metric became worse, and a night of its new level is not good. CHANGED: a
    metric became better, or moved although each night passed. Moves that were accepted or undone pass."""
    names = list(dict.fromkeys(name for night in nights for name in night.levels))
    judged = [_judge_metric(name, nights, rules.get(name), find_steps) for name in names]
    findings = [finding for found, _ in judged for finding in found]
    moves = [move for _, found in judged for move in found]
    last = next((at for at, night in enumerate(reversed(nights)) if night.is_good), len(nights))
    if last and not any(move.state == "open" for move in moves):
        many = "the last night" if last == 1 else f"the last {last} nights"
        message = f"{many} did not pass, and no lasting change shows yet"
        findings.append(Finding(VerdictKind.INCONCLUSIVE, nights[-1].date, message))
    return Verdict.of(findings, sum(len(night.levels) for night in nights)), sorted(moves, key=lambda move: move.at)


def _judge_metric(
    name: str, nights: Sequence[Night], rule: Rule | None, find_steps: FindSteps
) -> tuple[list[Finding], list[Move]]:
    levels = [night.levels.get(name) for night in nights]
    if (known := sum(level is not None for level in levels)) < FEWEST_NIGHTS:
        message = f"{render_count(known, 'night')} with a level of it: a lasting change shows from {FEWEST_NIGHTS} on"
        return [Finding(VerdictKind.INCONCLUSIVE, name, message)], []
    steps: list[NightStep | Drift] = [*find_steps(levels)] or [*find_drift(levels)]
    moves = list(_build_moves(name, nights, steps))
    still = [at for at, move in enumerate(moves) if move.state == "open"]
    unseen = [night.date for night in nights if name not in night.levels and not night.is_good]
    if not still and unseen:
        lost = f"no finite value is known of {', '.join(unseen[-3:])}"
        message = f"nothing moved in {render_count(known, 'night')}, and {lost}"
        return [Finding(VerdictKind.INCONCLUSIVE, name, message)], moves
    if not still:
        return [Finding(VerdictKind.PASS, name, f"nothing moved in {render_count(known, 'night')}", effect=0.0)], moves
    effect = measure_relative(steps[-1].after, steps[still[0]].before)
    way = better_way(rule or Rule(name))
    is_better = effect < 0 if way == "min" else effect > 0 if way == "max" else False
    bad = not all(night.is_good for night in nights[moves[still[0]].at :])
    kind = VerdictKind.FAIL if bad and not is_better else VerdictKind.CHANGED
    last = moves[still[-1]]
    return [Finding(kind, name, describe_moves([last], nights), effect=effect, interval=last.interval)], moves


def find_drift(levels: Sequence[float | None]) -> list[Drift]:
    """Find drift by the trend of Mann and Kendall: the number of pairs of nights that rise less those that fall."""
    known = [(at, level) for at, level in enumerate(levels) if level is not None]
    values, many, third = [level for _, level in known], len(known), max(1, len(known) // 3)
    score = sum((later > earlier) - (later < earlier) for earlier, later in combinations(values, 2))
    if abs(score) <= _TREND * math.sqrt(many * (many - 1) * (2 * many + 5) / 18):
        return []
    before, after = median(values[:third]), median(values[-third:])
    effect = measure_relative(after, before)
    return [Drift(known[-third][0], before, after, effect, (effect, effect))]


def _build_moves(name: str, nights: Sequence[Night], steps: Sequence[NightStep | Drift]) -> Iterator[Move]:
    """Build the moves. A step is accepted if any night from the step on is accepted; a step is back if the last level
    differs from a level before the step by no more than the uncertainty of the last step."""
    edges = [*(step.at for step in steps), len(nights)]
    accepted = [any(night.accepted for night in nights[start:end]) for start, end in pairwise(edges)]
    for at, step in enumerate(steps):
        low, high = steps[-1].interval
        reach = abs(high - low) / 2 * abs(steps[-1].before)
        is_back = any(abs(steps[-1].after - each.before) <= reach for each in steps[: at + 1])
        state = "accepted" if any(accepted[at:]) else "back" if is_back else "open"
        yield Move(name, step.at, step.effect, step.interval, state, isinstance(step, Drift))


def describe_moves(moves: Sequence[Move], nights: Sequence[Night]) -> str:
    """Describe moves that begin in one night: `loss +2% and lr +2% since 2026-11-12 (5 of 20 nights): torch 2.9 …`."""
    at = moves[0].at
    if moves[0].drifts:
        sizes = [f"{move.metric} {render_bounded(move.effect, *move.interval)}" for move in moves]
        return f"{' and '.join(sizes)} little by little, in {render_count(len(nights), 'night')} since {nights[0].date}"
    *sizes, last = (f"{move.metric} {render_bounded(move.effect, *move.interval)}" for move in moves)
    before, after = nights[at - 1].origin, nights[at].origin
    names = [name for name in after if name in before and before[name] != after[name]]
    causes = [f"{name} {after[name]} instead of {before[name]}" for name in names]
    since = f" since {nights[at].date} ({len(nights) - at} of {render_count(len(nights), 'night')})"
    shown = f"{', '.join(sizes)} and {last}" if sizes else last
    return f"{shown}{since}{': ' if causes else ''}{join_first(causes, _MOST_CAUSES)}"
