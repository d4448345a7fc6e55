"""The verdict on a history: is the level of today worse than it was, since when, and has someone said so already?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from assay.bench.judge.changepoint import SHORTEST_SERIES, find_change_points
from assay.bench.judge.environments import attribute_changes
from assay.bench.judge.samples import Question, Scale, build_pair, compare_pairs, find_fewest, find_median
from assay.bench.judge.trend import count_needed, find_detectable, find_trend
from assay.bench.values.comparison import Attribution, Change, ChangePoint, MetricHistory, MetricSeries, Step
from assay.values.verdict import Finding, Verdict, VerdictKind

_MOVE_ALPHA = 0.05  # of a move to another set-up: it is looked at once, not searched for
FEWEST_MOVED = find_fewest(_MOVE_ALPHA)  # executions on either side of it, below which nothing can be sure


def judge_history(history: MetricHistory, recent: int | None = None, asserted: float = 0.05) -> Verdict:
    """A worse level that holds and that nobody has spoken about is a failure; where the set-up was changed as well, it
    is for people to decide, and so it is where a new set-up has too few executions to be judged. What got better is no
    alarm, nor what lies before the last `recent` executions. A history that is too short to show anything, or whose
    newest execution gives no value, is no PASS; nor is one that is too noisy to have shown a change of `asserted`."""
    findings = [_judge_change(history, change, recent) for change in history.changes]
    findings += [*_find_silence(history), *_find_shortness(history), *_find_blindness(history, asserted)]
    return Verdict.of(findings, sum(len(series.points) for series in history.series))


def _judge_change(history: MetricHistory, change: Change, recent: int | None) -> Finding:
    kind = VerdictKind.PASS
    matters = change.is_worse or change.too_few
    if matters and change.holds and not change.judgement and _is_recent(history, change, recent):
        is_sure = change.cause in ("code", "unknown") and not change.too_few
        kind = VerdictKind.FAIL if is_sure else VerdictKind.INCONCLUSIVE
    return Finding(
        kind=kind,
        subject=_name(history),
        message=describe_change(change),
        value=change.step.after,
        expected=change.step.before,
        step=float(change.step.at),
        effect=change.step.effect,
        interval=change.step.interval,
    )


def _is_recent(history: MetricHistory, change: Change, recent: int | None) -> bool:
    if recent is None or change.kind == "trend":  # it goes on to the newest
        return True
    for series in history.series:
        ids = [point.execution_id for point in series.points]
        if change.execution_id in ids:
            return len(ids) - ids.index(change.execution_id) <= recent
    return True


def _find_silence(history: MetricHistory) -> Iterator[Finding]:
    if history.broken:
        yield Finding(VerdictKind.ERROR, _name(history), history.broken)


def _find_shortness(history: MetricHistory) -> Iterator[Finding]:
    """Said of the longest series: in none of them could a change have been found."""
    longest = max((len(series.points) for series in history.series), default=0)
    if longest < SHORTEST_SERIES and all(change.too_few for change in history.changes):
        message = f"{longest} comparable executions tell nothing yet; {SHORTEST_SERIES} are the fewest"
        yield Finding(VerdictKind.INCONCLUSIVE, _name(history), message)


_LARGEST_VISIBLE = 1.0  # a history that only shows more than this shows nothing that anybody would accept


def _find_blindness(history: MetricHistory, asserted: float) -> Iterator[Finding]:
    """Where the newest series that is long enough would not have shown the change that matters."""
    series = find_newest(history)
    if series is None or series.detectable is None or series.detectable <= asserted:
        return
    message = f"a change of {asserted:.1%} would not have been found in this noise"
    if series.detectable <= _LARGEST_VISIBLE:
        message += f", only one of {series.detectable:.1%}"
    yield Finding(VerdictKind.INCONCLUSIVE, _name(history), f"{message}: {_advise_blind(series)}")


def _advise_blind(series: MetricSeries) -> str:
    visible = series.detectable or 0.0
    enough = (
        f"; or accept it with --min-effect {math.ceil(1000 * visible) / 1000:g}" if visible <= _LARGEST_VISIBLE else ""
    )
    if series.needed is None:
        return f"more executions do not help, less noise does{enough}"
    missing = series.needed - len(series.points)
    return f"about {missing} more execution{'' if missing == 1 else 's'} would show it{enough}"


def find_newest(history: MetricHistory) -> MetricSeries | None:
    """Of those that are long enough to show a change; without times, the longest."""
    known = [series for series in history.series if len(series.points) >= SHORTEST_SERIES]
    return max(known, key=lambda series: (series.points[-1].at or 0.0, len(series.points)), default=None)


def _name(history: MetricHistory) -> str:
    return f"{history.method} {history.metric}"


def describe_change(change: Change) -> str:
    words = [
        f"{change.step.effect:+.1%} {'step by step ' if change.kind == 'trend' else ''}since {change.execution_id}"
    ]
    old, new = ((commit or "unknown")[:12] for commit in change.commits)
    words.append(f"commits {old}..{new}" if old != new else f"commit {new}")
    cause = "environment or code?" if change.cause == "either" else f"{change.cause}:"
    details = f" ({', '.join(change.differences)})" if change.differences else ""
    words.append(f"{cause} {change.reason}{details}")
    if not change.holds:
        words.append("other set-ups were measured since" if change.too_few else "it has come back since")
    if change.judgement:
        words.append(f"{change.judgement}{': ' + change.note if change.note else ''}")
    return "; ".join(words)


# ---------------------------------------------------------------- what a series shows


@dataclass(frozen=True, slots=True)
class Course:
    """What a series shows: steps, or instead of them a level that creeps; and what it could have shown."""

    steps: tuple[tuple[Step, Attribution], ...]  # where the level changed and stayed, and what changed there as well
    trend: Step | None  # from the first value to the last
    detectable: float | None
    needed: int | None  # points that would show the change that was asked for


def describe_course(
    values: Sequence[float], fingerprints: Sequence[str | None], commits: Sequence[str | None], asked: float
) -> Course:
    """`asked`: the smallest change that has to be seen."""
    changes = find_change_points(values)
    trend = find_trend(values, changes)
    steps = () if trend else attribute_changes(changes, values, fingerprints, commits=commits)
    return Course(
        tuple((build_step(cause.change), cause) for cause in steps),
        Step(0, trend.before, trend.after, trend.size, trend.interval) if trend else None,
        find_detectable(values, trend or changes),
        count_needed(values, asked, trend or changes),
    )


def build_step(point: ChangePoint) -> Step:
    return Step(point.index, point.before, point.after, point.size, point.interval)


def compare_levels(old: Sequence[float], new: Sequence[float], at: int) -> Step | None:
    """Two stretches that met at a known place; None: too few values, or no difference."""
    (found,) = compare_pairs([build_pair("", old, new, Question("min", 0.0, _MOVE_ALPHA))])
    if found.p is None or found.p >= _MOVE_ALPHA or found.base is None or found.head is None or found.effect is None:
        return None
    return Step(at, found.base, found.head, found.effect, found.interval)


def look_at_few(old: Sequence[float], new: Sequence[float], at: int) -> Step:
    """The same where they are too few to be judged: medians, without an interval."""
    levels = find_median(old), find_median(new)
    scale = Scale.of(levels, levels[0])
    before, after = scale.apply(levels)
    return Step(at, *levels, scale.relate(after - before))


def describe_few(old: Sequence[float], new: Sequence[float]) -> str:
    """Where they lie, since no test can be asked."""
    inside = sum(min(old) <= value <= max(old) for value in new)
    where = "within" if inside == len(new) else "partly outside" if inside else "outside"
    counts = f"{count_executions(len(new))} on a new set-up"
    if len(new) >= FEWEST_MOVED:
        counts = f"{count_executions(len(old))} on the old set-up"
    return f"{counts}, too few to judge ({FEWEST_MOVED} are the fewest), {where} the old range"


def count_executions(number: int) -> str:
    return f"{number} execution{'' if number == 1 else 's'}"
