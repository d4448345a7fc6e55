"""Environment or code: which executions can be compared, and whether a change coincides with another environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from typing import Literal

from assay.bench.judge.likelihood import find_level
from assay.bench.values.comparison import Attribution, Cause, ChangePoint, Comparison, EnvironmentSegment, Origin
from assay.judge.statistics import load_numpy
from assay.values.verdict import VerdictKind

QUESTION = "environment or code?"
MOST_DIFFERENCES = 4  # named in a message; the others are counted

Environment = Mapping[str, str]
Environments = Mapping[str, Environment]  # by fingerprint
TOLERANCE = 2  # points between a change point and the change of environment that it is attributed to
FEWEST_ON_EACH_SIDE = 3  # values of one environment, to see whether the step occurs within it
Code = Literal["same", "edited", "other", "unknown"]
_BLAMES: Mapping[Code, tuple[Origin, str]] = {  # where the environment is the same on both sides
    "same": ("unknown", "same commit and same recorded environment on both sides"),
    "edited": ("code", "local edits, or packages other than the commit, differ; the recorded environment is the same"),
    "other": ("code", "the recorded environment is the same on both sides"),
    "unknown": ("unknown", "whether the code is the same was not recorded; the recorded environment is the same"),
}
_MOVES: Mapping[Code, tuple[Cause, str]] = {  # where it is not
    "same": ("environment", "the commit is the same, the environment differs"),
    "edited": ("either", "the environment changed, and so did local edits or packages other than the commit"),
    "other": ("either", "environment and commit both changed"),
    "unknown": ("either", "the environment changed; whether the code is the same was not recorded"),
}


@dataclass(frozen=True, slots=True)
class EnvironmentMatch:
    """An environment of base and one of head that are compared."""

    base: str  # fingerprints
    head: str
    name: str = ""  # what distinguishes it from the other compared environments
    differences: tuple[str, ...] = ()  # none: they are equal


def match_environments(base: Environments, head: Environments) -> tuple[EnvironmentMatch, ...]:
    """Every environment that both sides have. Where there is none, the two that differ least: they are shown, but not
    judged. Empty where a side has no execution."""
    common = [fingerprint for fingerprint in base if fingerprint in head]
    if common:
        names = name_environments({fingerprint: base[fingerprint] for fingerprint in common})
        return tuple(EnvironmentMatch(fingerprint, fingerprint, names[fingerprint]) for fingerprint in common)
    pairs = [EnvironmentMatch(a, b, "", describe_differences(base[a], head[b])) for a, b in product(base, head)]
    newest_first = reversed(pairs)
    return tuple(sorted(newest_first, key=lambda pair: len(pair.differences))[:1])


def name_environments(setups: Environments) -> dict[str, str]:
    """By what differs among them: `accelerator_model V100`. A single one needs no name."""
    if len(setups) < 2:
        return dict.fromkeys(setups, "")
    keys = list(dict.fromkeys(key for setup in setups.values() for key in setup))
    telling = [key for key in keys if len({setup.get(key) for setup in setups.values()}) > 1]
    return {fingerprint: _name(setup, telling) for fingerprint, setup in setups.items()}


def _name(setup: Environment, keys: Sequence[str]) -> str:
    return shorten([f"{key} {setup.get(key, 'none')}" for key in keys]) if setup else "not recorded"


def describe_differences(before: Environment, after: Environment) -> tuple[str, ...]:
    """`cudnn 8.9.2 → 9.1.0`, one for each; a key that one side lacks is `none` there."""
    if not before or not after:
        sides = [
            "not recorded" if not setup else shorten([" ".join(item) for item in setup.items()])
            for setup in (before, after)
        ]
        return (f"environment {sides[0]} → {sides[1]}",)
    keys = dict.fromkeys([*before, *after])
    changed = [key for key in keys if before.get(key) != after.get(key)]
    return tuple(f"{key} {before.get(key, 'none')} → {after.get(key, 'none')}" for key in changed)


def shorten(texts: Sequence[str], most: int = MOST_DIFFERENCES) -> str:
    rest = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {rest} more" if rest > 0 else "")


def doubt(comparison: Comparison, differences: Sequence[str], code: str) -> Comparison:
    """A comparison between different environments keeps its results and becomes INCONCLUSIVE. Missing and invalid
    values (`p` None, but not for lack of trials) are not caused by the environment: that verdict stays."""
    if comparison.p is None and comparison.kind is not VerdictKind.INCONCLUSIVE:
        return comparison
    message = f"{QUESTION} The environments differ ({shorten(differences)}){code}: {comparison.message}"
    return replace(comparison, kind=VerdictKind.INCONCLUSIVE, message=message, missing_trials=0)


# ---------------------------------------------------------------- environment or code


def split_by_environment(fingerprints: Sequence[str | None]) -> tuple[EnvironmentSegment, ...]:
    """Stretches with one fingerprint. An empty fingerprint was not recorded."""
    segments = []
    start = 0
    for fingerprint, run in groupby(fingerprint or None for fingerprint in fingerprints):
        stop = start + sum(1 for _ in run)
        segments.append(EnvironmentSegment(start, stop, fingerprint))
        start = stop
    return tuple(segments)


def attribute_changes(
    changes: Sequence[ChangePoint],
    values: Sequence[float | None],
    fingerprints: Sequence[str | None],
    *,
    commits: Sequence[str | None] = (),
    tolerance: int = TOLERANCE,
) -> tuple[Attribution, ...]:
    """For each change point, what changed there. `fingerprints` and `commits` go with `values`, one each. A commit may
    be followed by `+` and a hash of local edits, which are part of the code. None: not recorded."""
    if len(fingerprints) != len(values) or (commits and len(commits) != len(values)):
        raise ValueError("a fingerprint, and a commit if any, belongs to each value")
    edges = [0, *(change.index for change in changes), len(values)]
    splits = [segment.start for segment in split_by_environment(fingerprints)[1:]]
    found = []
    for position, change in enumerate(changes):
        beside = range(edges[position], edges[position + 2])
        split = _find_nearest(splits, change, tolerance)
        found.append(_attribute(change, split, values, fingerprints, commits, beside))
    return tuple(found)


def _find_nearest(splits: Sequence[int], change: ChangePoint, tolerance: int) -> int | None:
    """A split between the last value of the old level and the first of the new one coincides with the change."""
    near = [at for at in splits if change.last_before - tolerance < at <= change.index + tolerance]
    return min(near, key=lambda at: abs(at - change.index), default=None)


def _attribute(
    change: ChangePoint,
    split: int | None,
    values: Sequence[float | None],
    fingerprints: Sequence[str | None],
    commits: Sequence[str | None],
    beside: range,
) -> Attribution:
    if not (fingerprints[change.last_before] and fingerprints[change.index]):
        return Attribution(change, "unknown", "the environment was not recorded on both sides", split)
    code = compare_code(commits[change.last_before], commits[change.index]) if commits else "other"
    if split is None:
        return Attribution(change, *_BLAMES[code])
    if code == "same":
        return Attribution(change, "environment", "the environment changed here, and the commit did not", split)
    return _hear_witnesses(change, split, values, fingerprints, beside)


def compare_code(before: str | None, after: str | None) -> Code:
    """By commits, followed by `+` and a hash of local edits. `edited`: the commit is the same, the edits differ."""
    if before is None or after is None:
        return "unknown"
    if before == after:
        return "same"
    commits = {code.partition("+")[0] for code in (before, after)}
    return "edited" if len(commits) == 1 else "other"


def attribute_trend(before: str | None, after: str | None) -> tuple[Cause, str]:
    """Of a trend within one environment, by the code at both ends."""
    origin, reason = _BLAMES[compare_code(before, after)]
    return origin, reason


def attribute_move(before: str | None, after: str | None) -> tuple[Cause, str]:
    """From one environment to another, by the code on both sides: the cause and the reason."""
    return _MOVES[compare_code(before, after)]


def _hear_witnesses(
    change: ChangePoint,
    split: int,
    values: Sequence[float | None],
    fingerprints: Sequence[str | None],
    beside: range,
) -> Attribution:
    """Environments that were measured on both sides (two machines in turns) separate code from environment."""
    for fingerprint in sorted({name for position in beside if (name := fingerprints[position])}):
        own = [position for position in beside if fingerprints[position] == fingerprint]
        step = _measure_step(values, own, change.index)
        if step is None:
            continue
        if step * change.size > 0 and abs(step) >= abs(change.size) / 2:
            return Attribution(change, "code", "environments that were measured on both sides show the step too", split)
        return Attribution(change, "environment", "within one environment there is no such step", split)
    return Attribution(change, "environment", "the environment changed here; measure both versions in one", split)


def _measure_step(values: Sequence[float | None], places: Sequence[int], index: int) -> float | None:
    """The relative step at `index` among these indices, or None where they are too few."""
    np = load_numpy()
    known = [(place, value) for place in places if (value := values[place]) is not None and np.isfinite(value)]
    before = np.array([value for place, value in known if place < index])
    after = np.array([value for place, value in known if place >= index])
    if min(len(before), len(after)) < FEWEST_ON_EACH_SIDE:
        return None
    level = find_level(before)
    return (find_level(after) - level) / abs(level) if level else None
