"""A golden segment and the runs that check it, aligned step by step. This module alone reports mismatches.

Every mismatch becomes a finding that is not PASS: a metric or label that was not logged, a run that ended early, a gap,
a step that was logged twice, a golden whose replicas have different steps.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping, Sequence

from assay.errors import did_you_mean
from assay.golden.values import Rule, Segment, Track
from assay.system.fast_dataclasses import dataclass
from assay.values.verdict import Finding, VerdictKind

CheckRun = Mapping[str, Mapping[str, Track]]  # metric -> label -> what one run of a segment logged

MISSING = math.nan


@dataclass(frozen=True, slots=True)
class Aligned:
    """One check's values at the golden's steps; a missing value is `MISSING`."""

    values: tuple[float, ...]
    texts: tuple[str, ...]  # as long as `values`, or empty
    gaps: int  # how many values are missing


@dataclass(frozen=True, slots=True)
class Pair:
    """One metric and label of a segment: all replicas of the golden and all checks, over the golden's steps."""

    subject: str
    steps: tuple[int, ...]
    golden: tuple[Track, ...]
    checks: tuple[Aligned, ...]
    findings: tuple[Finding, ...] = ()  # mismatches: ERROR, or FAIL for values that are not finite
    gaps: tuple[Finding, ...] = ()  # steps that a check did not log
    variants: tuple[Track, ...] = ()  # declared harmless, over the same steps

    @property
    def compared(self) -> int:
        return sum(len(self.steps) - check.gaps for check in self.checks)

    @property
    def is_usable(self) -> bool:
        return bool(self.steps and self.golden and self.checks)

    @property
    def is_whole(self) -> bool:
        """Whether every check has a finite value at every step: only then can the metric pass."""
        return self.is_usable and not self.findings and not any(check.gaps for check in self.checks)


def describe_subject(segment: Segment, metric: str, label: str = "") -> str:
    name = f"{metric} {label}" if label else metric
    return f"segment at {segment.start_step}: {name}"


def find_labels(rule: Rule, segment: Segment, checks: Sequence[CheckRun]) -> tuple[tuple[str, ...], list[Finding]]:
    """Return the labels that can be compared, and findings for labels that cannot."""
    subject = describe_subject(segment, rule.metric)
    if not (golden := segment.tracks.get(rule.metric)):
        return (), [Finding(VerdictKind.ERROR, subject, _describe_absent("golden", rule.metric, segment.tracks))]
    if not checks:
        return (), [Finding(VerdictKind.ERROR, subject, "no run checked this segment")]
    wanted = rule.labels or tuple(golden)
    lost = {label: describe_subject(segment, rule.metric, label) for label in wanted if label not in golden}
    findings = [
        Finding(VerdictKind.ERROR, where, f"the golden has no label {label!r}; it has {_join(golden)}", label=label)
        for label, where in lost.items()
    ]
    labels = tuple(label for label in wanted if label in golden)
    for run in checks:
        if not (found := run.get(rule.metric)):
            findings.append(Finding(VerdictKind.ERROR, subject, _describe_absent("check", rule.metric, run)))
        elif not found.keys() >= {*labels} or (not rule.labels and not found.keys() <= golden.keys()):
            message = f"the golden has the labels {_join(golden)}, the check has {_join(found)}"
            findings.append(Finding(VerdictKind.FAIL, subject, message))
    return labels, findings


def _describe_absent(where: str, metric: str, known: Mapping[str, object]) -> str:
    suggestion = did_you_mean(metric, known)
    return f"the {where} has no {metric}" + (f"; {suggestion}" if suggestion else "")


def _join(labels: Mapping[str, object]) -> str:
    return ", ".join(repr(label) for label in labels) or "none"


def line_up(rule: Rule, segment: Segment, label: str, checks: Sequence[CheckRun], *, partial: bool = False) -> Pair:
    """Align checks with the golden. `partial`: the run is in progress, so that missing steps are not a finding."""
    subject = describe_subject(segment, rule.metric, label)
    golden = segment.tracks[rule.metric][label]
    if obstacle := _find_obstacle(golden):
        return Pair(subject, (), golden, (), (Finding(VerdictKind.ERROR, subject, obstacle),))
    steps = golden[0].steps
    tracks = [run[rule.metric][label] for run in checks if label in run.get(rule.metric, {})]
    problems = [_find_disorder(track) for track in tracks]
    found = [problem for problem in problems if problem is not None]
    findings = [Finding(VerdictKind.ERROR, subject, f"in the check, {problem}") for problem in found]
    sound = [track for track, problem in zip(tracks, problems, strict=True) if problem is None]
    findings += [finding for track in sound for finding in _find_bad_values(track, subject)]
    gaps = [] if partial else [finding for track in sound for finding in _find_gaps(track, steps, subject)]
    aligned = tuple(_align(track, steps) for track in sound)
    others = [metrics.get(rule.metric, {}).get(label) for metrics in segment.variants.values()]
    whole = [track for track in others if track is not None and track.steps == steps]  # a variant must have all steps
    variants = tuple(track for track in whole if all(map(math.isfinite, track.values)))
    return Pair(subject, steps, golden, aligned, tuple(findings), tuple(gaps), variants)


def _find_obstacle(golden: Sequence[Track]) -> str | None:
    if not golden or not golden[0].steps:
        return "the golden has no values"
    for number, track in enumerate(golden, 1):
        if problem := _find_disorder(track):
            return f"in the golden's replica {number}, {problem}"
        if track.steps != golden[0].steps:
            return f"the golden's replicas 1 and {number} have different steps: gather again"
        if not all(map(math.isfinite, track.values)):
            step = next(s for s, value in zip(track.steps, track.values, strict=True) if not math.isfinite(value))
            return f"the golden itself is not finite at step {step} (replica {number}): gather again"
    return None


def _find_disorder(track: Track) -> str | None:
    steps = track.steps
    if all(map(operator.lt, steps, steps[1:])):
        return None
    before, after = next((a, b) for a, b in itertools.pairwise(steps) if a >= b)
    return f"step {after} was logged twice" if before == after else f"step {after} was logged after step {before}"


def _align(track: Track, steps: tuple[int, ...]) -> Aligned:
    if track.steps == steps:
        return Aligned(track.values, track.texts if len(track.texts) == len(steps) else (), 0)
    positions = {step: index for index, step in enumerate(track.steps)}
    indices = [positions.get(step) for step in steps]
    values = tuple(MISSING if index is None else track.values[index] for index in indices)
    texts: tuple[str, ...] = ()
    if len(track.texts) == len(track.steps):
        texts = tuple("" if index is None else track.texts[index] for index in indices)
    return Aligned(values, texts, sum(index is None for index in indices))


def _find_bad_values(track: Track, subject: str) -> list[Finding]:
    """Report the first value that is NaN or infinite, at any step: no rule accepts such a value."""
    if all(map(math.isfinite, track.values)):
        return []
    bad = [(step, value) for step, value in zip(track.steps, track.values, strict=True) if not math.isfinite(value)]
    step, value = bad[0]
    more = f", and {len(bad) - 1} later values" if len(bad) > 1 else ""
    message = f"the check is {value:g} at step {step}{more}"
    return [Finding(VerdictKind.FAIL, subject, message, value, step=step)]


def _find_gaps(track: Track, steps: tuple[int, ...], subject: str) -> list[Finding]:
    if track.steps == steps:
        return []
    there = set(track.steps)
    if not (gaps := [step for step in steps if step not in there]):
        return []
    if not there.intersection(steps):
        message = f"the check logged none of the golden's {len(steps)} steps"
    elif gaps[0] > max(there):
        message = f"the last value of the check is at step {max(there)}: {len(gaps)} of {len(steps)} steps are missing"
    else:
        message = f"the check has no value at step {gaps[0]}: {len(gaps)} of {len(steps)} steps are missing"
    return [Finding(VerdictKind.ERROR, subject, message, step=gaps[0])]
