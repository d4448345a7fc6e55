"""The verdict on a history: is the current level worse, since when, and has the change been triaged?"""

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

_MOVE_ALPHA = 0.05  # of a move to another environment, which is tested once and not searched for
FEWEST_MOVED = find_fewest(_MOVE_ALPHA)  # executions on either side; fewer cannot be significant


def judge_history(history: MetricHistory, recent: int | None = None, asserted: float = 0.05) -> Verdict:
    """FAIL: a worse level that persists and has not been triaged. INCONCLUSIVE: the environment changed as well, a new
    environment has too few executions, or the history is too short or too noisy to show a change of `asserted`. ERROR:
    the newest execution gives no value. Improvements and changes before the last `recent` executions raise no alarm."""
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
    if recent is None or change.kind == "trend":  # it continues to the newest
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
    """For the longest series: no series is long enough to show a change."""
    longest = max((len(series.points) for series in history.series), default=0)
    if longest < SHORTEST_SERIES and all(change.too_few for change in history.changes):
        message = f"{longest} comparable executions are too few; at least {SHORTEST_SERIES} are needed"
        yield Finding(VerdictKind.INCONCLUSIVE, _name(history), message)


_LARGEST_VISIBLE = 1.0  # largest detectable change that is offered as --min-effect


def _find_blindness(history: MetricHistory, asserted: float) -> Iterator[Finding]:
    """The newest series that is long enough is too noisy to show the change that matters."""
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
    """The newest of those that are long enough to show a change; without times, the longest."""
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
        words.append("other environments were measured since" if change.too_few else "the level has returned since")
    if change.judgement:
        words.append(f"{change.judgement}{': ' + change.note if change.note else ''}")
    return "; ".join(words)


# ---------------------------------------------------------------- what a series shows


@dataclass(frozen=True, slots=True)
class Course:
    """Steps or a trend of a series, and the smallest change that it could have shown."""

    steps: tuple[tuple[Step, Attribution], ...]  # each with its cause
    trend: Step | None  # from the first value to the last
    detectable: float | None
    needed: int | None  # points that would show the requested change


def describe_course(
    values: Sequence[float], fingerprints: Sequence[str | None], commits: Sequence[str | None], asked: float
) -> Course:
    """`asked`: the smallest change that must be found."""
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
    """Two stretches that meet at a known index; None: too few values, or no difference."""
    (found,) = compare_pairs([build_pair("", old, new, Question("min", 0.0, _MOVE_ALPHA))])
    if found.p is None or found.p >= _MOVE_ALPHA or found.base is None or found.head is None or found.effect is None:
        return None
    return Step(at, found.base, found.head, found.effect, found.interval)


def compare_medians(old: Sequence[float], new: Sequence[float], at: int) -> Step:
    """The same with too few values to test: medians, without an interval."""
    levels = find_median(old), find_median(new)
    scale = Scale.of(levels, levels[0])
    before, after = scale.apply(levels)
    return Step(at, *levels, scale.relate(after - before))


def describe_few(old: Sequence[float], new: Sequence[float]) -> str:
    """Whether the new values are within the range of the old ones; too few for a test."""
    inside = sum(min(old) <= value <= max(old) for value in new)
    where = "within" if inside == len(new) else "partly outside" if inside else "outside"
    counts = f"{count_executions(len(new))} on a new environment"
    if len(new) >= FEWEST_MOVED:
        counts = f"{count_executions(len(old))} on the old environment"
    return f"{counts}, too few to judge (at least {FEWEST_MOVED} are needed), {where} the old range"


def count_executions(number: int) -> str:
    return f"{number} execution{'' if number == 1 else 's'}"
