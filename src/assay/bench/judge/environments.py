"""Environment or code: which executions can be compared, and changes that come with another environment or load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import Literal

from assay.bench.judge.samples import Question
from assay.bench.values.comparison import Cause, SampleComparison
from assay.show.formatting import join_first
from assay.system.fast_dataclasses import replace
from assay.values.verdict import VerdictKind

QUESTION = "environment or code?"
# benchmarks/busy.py: growth of a time, as a logarithm, per additional fraction of all cores in use by others
LOAD_SLOPE = 1.0
LEAST_SHIFT = 0.05  # fraction of all cores; a smaller difference of the load is chance
shorten = partial(join_first, most=4)  # a message names the first differences, and counts the others

Environment = Mapping[str, str]
Environments = Mapping[str, Environment]  # fingerprint → environment
# fingerprints of base and head, the name of the environment among those that are compared, how both differ
Match = tuple[str, str, str, tuple[str, ...]]
Code = Literal["same", "edited", "other", "unknown"]
_BLAMES: Mapping[Code, tuple[Cause, str]] = {  # causes if the environment is the same on both sides
    "same": ("unknown", "same commit and same recorded environment on both sides"),
    "edited": ("code", "local edits, or packages other than the commit, differ; the recorded environment is the same"),
    "other": ("code", "the recorded environment is the same on both sides"),
    "unknown": ("unknown", "whether the code is the same was not recorded; the recorded environment is the same"),
}
_MOVES: Mapping[Code, tuple[Cause, str]] = {  # causes if the environment or the label differs
    "same": ("environment", "the commit is the same, the {} differs"),
    "edited": ("either", "the {} changed, and so did local edits or packages other than the commit"),
    "other": ("either", "{} and commit both changed"),
    "unknown": ("either", "the {} changed; whether the code is the same was not recorded"),
}


def match_environments(base: Environments, head: Environments) -> list[Match]:
    """Match the environments that both sides have, or else the two that differ least, which are not judged."""
    common = [fingerprint for fingerprint in base if fingerprint in head]
    if common:
        names = name_environments({fingerprint: base[fingerprint] for fingerprint in common})
        return [(each, each, names[each], ()) for each in common]
    pairs = [(a, b, "", describe_differences(base[a], head[b])) for a, b in product(base, head)]
    newest_first = reversed(pairs)
    return sorted(newest_first, key=lambda pair: len(pair[3]))[:1]


def name_environments(setups: Environments) -> dict[str, str]:
    """Name environments by their differences: `accelerator_model V100`. A single environment needs no name."""
    if len(setups) < 2:
        return dict.fromkeys(setups, "")
    keys = list(dict.fromkeys(key for setup in setups.values() for key in setup))
    differing = [key for key in keys if len({setup.get(key) for setup in setups.values()}) > 1]
    return {
        fingerprint: shorten([f"{key} {setup.get(key, 'none')}" for key in differing]) if setup else "not recorded"
        for fingerprint, setup in setups.items()
    }


def describe_differences(before: Environment, after: Environment) -> tuple[str, ...]:
    """Describe all differences, as in `cudnn 8.9.2 → 9.1.0`; a key that one side lacks is `none` there."""
    if not before or not after:
        old, new = (shorten([*map(" ".join, each.items())]) or "not recorded" for each in (before, after))
        return (f"environment {old} → {new}",)
    keys = dict.fromkeys([*before, *after])
    changed = [key for key in keys if before.get(key) != after.get(key)]
    return tuple(f"{key} {before.get(key, 'none')} → {after.get(key, 'none')}" for key in changed)


def doubt(comparison: SampleComparison, differences: Sequence[str], code: str) -> SampleComparison:
    """Make a comparison between different environments INCONCLUSIVE; its results are kept. Missing and invalid values
    (`p` None, but not for lack of trials) are not caused by the environment: their verdict stays."""
    if comparison.p is None and comparison.kind is not VerdictKind.INCONCLUSIVE:
        return comparison
    message = f"{QUESTION} The environments differ ({shorten(differences)}){code}: {comparison.message}"
    return replace(comparison, kind=VerdictKind.INCONCLUSIVE, message=message, missing_trials=0)


# ---------------------------------------------------------------- environment or code


def compare_code(before: str | None, after: str | None) -> Code:
    """Compare commits, each with `+` and a hash of local edits. `edited`: the commit is the same, the edits differ."""
    if before is None or after is None:
        return "unknown"
    if before == after:
        return "same"
    commits = {code.partition("+")[0] for code in (before, after)}
    return "edited" if len(commits) == 1 else "other"


def attribute_change(before: str | None, after: str | None, *, is_recorded: bool) -> tuple[Cause, str]:
    """Return the cause of a step or trend within one environment, by the code on both sides, and the reason."""
    if not is_recorded:
        return "unknown", "the environment was not recorded on both sides"
    return _BLAMES[compare_code(before, after)]


def attribute_move(before: str | None, after: str | None, what: str) -> tuple[Cause, str]:
    """Return the cause of a change between environments or labels (`what`), by the code on both sides, and a reason."""
    cause, reason = _MOVES[compare_code(before, after)]
    if cause == "environment" and what == "label":
        cause = "label"
    return cause, reason.format(what)


# ---------------------------------------------------------------- load or code

Loads = Sequence[float | None]  # for each execution: the fraction of all cores that other processes used


def measure_load_shift(before: Loads, after: Loads) -> float:
    """Return how much more other processes used after than before; 0 if about equal, or unknown for most executions."""
    sides = [[load for load in loads if load is not None] for loads in (before, after)]
    if any(2 * len(known) <= len(loads) for known, loads in zip(sides, (before, after), strict=True)):
        return 0.0
    shift = median(sides[1]) - median(sides[0])
    return shift if abs(shift) >= LEAST_SHIFT else 0.0


def can_load_explain(effect: float, before: Loads, after: Loads, *, is_worse: bool) -> bool:
    """Return whether the load of other processes may be the whole reason for a change of a time or rate."""
    shift = measure_load_shift(before, after)
    return (shift > 0) == is_worse and abs(math.log1p(max(effect, -1 + 1e-9))) <= LOAD_SLOPE * abs(shift)


def describe_loads(before: Loads, after: Loads) -> str:
    """Describe the loads: `others used 4% of the CPUs before and 81% after`."""
    old, new = (median(load for load in loads if load is not None) for loads in (before, after))
    return f"others used {old:.0%} of the CPUs before and {new:.0%} after"


def doubt_load(found: SampleComparison, before: Loads, after: Loads, asked: Question) -> SampleComparison:
    """Make a comparison INCONCLUSIVE if another load may be the reason for a difference, or may hide one."""
    shift = measure_load_shift(before, after)
    if not shift or found.effect is None or found.interval is None or found.kind is VerdictKind.INCONCLUSIVE:
        return found
    if found.interval[0] == found.interval[1]:  # load does not change a count that is equal in all executions of a side
        return found
    if found.kind is VerdictKind.PASS:
        sign = 1 if asked.direction == "min" else -1
        hidden = math.expm1(LOAD_SLOPE * max(0.0, -shift))
        is_open = hidden > 0 and max(sign * bound for bound in found.interval) + hidden > asked.threshold
    else:
        is_open = can_load_explain(found.effect, before, after, is_worse=found.kind is VerdictKind.FAIL)
    if not is_open:
        return found
    what = "may hide a difference" if found.kind is VerdictKind.PASS else "may be all of it"
    message = f"load or code? {describe_loads(before, after)}, which {what}: {found.message}"
    return replace(found, kind=VerdictKind.INCONCLUSIVE, message=message, missing_trials=0)
