"""How a golden moves when it is replaced: step by step, and against the first one of all.

Ten rebases of half a percent each are five percent that no check has found. Each entry of a golden's history keeps the
levels of its recording and those of the first, so that the sum is always known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from assay.golden.judge.window import default_delta
from assay.golden.values import Golden, Rule, Segment

Levels = Mapping[str, Mapping[str, float]]  # metric (and label) → start step → mean level

WIDER = 2.0  # noise measured from a few replicas varies by half; a factor of two is not chance
QUIET = 1e-4  # smaller noise hides no relevant effect
CREEP_REBASES = 2


def build_rule_facts(rules: Sequence[Rule]) -> dict[str, dict[str, Any]]:
    """The rules as a manifest keeps them, so that a later rebase can detect that they were loosened."""
    facts: dict[str, dict[str, Any]] = {}
    for rule in rules:
        told: dict[str, Any] = {"rule": rule.kind}
        if rule.kind == "margin":
            told |= {"operator": rule.operator, "margin": rule.margin}
        elif rule.kind != "exact":
            told |= {
                "delta": default_delta(rule),
                "alpha": rule.alpha,
                "direction": rule.direction,
                "window": rule.window,
            }
        facts[rule.metric] = {key: value for key, value in told.items() if value is not None}
    return facts


# ---------------------------------------------------------------- levels


def measure_levels(golden: Golden) -> dict[str, dict[str, float]]:
    levels: dict[str, dict[str, float]] = {}
    for segment in golden.segments:
        for name, level in _measure_segment(segment).items():
            levels.setdefault(name, {})[str(segment.start_step)] = level
    return levels


def _measure_segment(segment: Segment) -> dict[str, float]:
    """The mean of all finite values of all recordings."""
    found: dict[str, float] = {}
    for metric, labels in segment.tracks.items():
        for label, tracks in labels.items():
            values = [value for track in tracks for value in track.values if math.isfinite(value)]
            if values:
                found[f"{metric} {label}".strip()] = math.fsum(values) / len(values)
    return found


def measure_drift(before: Levels, after: Levels) -> dict[str, float]:
    """The relative change of each metric, over the segments that both have; none in common: it is left out."""
    drift: dict[str, float] = {}
    for name, levels in before.items():
        pairs = [(level, after[name][start]) for start, level in levels.items() if start in after.get(name, {})]
        if pairs:
            drift[name] = math.fsum(_relative(*pair) for pair in pairs) / len(pairs)
    return drift


def _relative(before: float, after: float) -> float:
    if before == after:
        return 0.0
    return (after - before) / abs(before) if before else math.copysign(math.inf, after)


def find_creep(since_first: Mapping[str, float], rules: Sequence[Rule], rebases: int) -> list[str]:
    """Metrics whose many small changes add up to more than a single check would accept."""
    found = []
    for rule in rules:
        if rule.kind in ("exact", "margin") or rebases < CREEP_REBASES:
            continue
        delta = default_delta(rule)
        for name, effect in since_first.items():
            if name.split(" ", 1)[0] == rule.metric and abs(effect) > delta:
                found.append(f"{name} has drifted by {100 * effect:+.3g}% since the first golden, in {rebases} rebases")
    return found


# ---------------------------------------------------------------- widening


def find_widening(before: Golden, after: Golden) -> list[str]:
    """Everything by which the new golden accepts more than the old one."""
    return [
        *_find_noise(before, after),
        *_find_loosened(_rules_of(before), _rules_of(after)),
        *_find_losses(before, after),
        *_find_variants(before, after),
    ]


def _find_variants(before: Golden, after: Golden) -> list[str]:
    """The effect of a new variant counts as harmless from now on."""
    known, now = (
        dict.fromkeys(name for segment in golden.segments for name in segment.variants) for golden in (before, after)
    )
    return [f"the variant {name} is new: its effect will pass" for name in now if name not in known]


def _rules_of(golden: Golden) -> Mapping[str, Mapping[str, Any]]:
    found = golden.provenance.get("rules")
    return found if isinstance(found, Mapping) else {}


def _find_noise(before: Golden, after: Golden) -> list[str]:
    found = []
    for metric, noise in after.noise.items():
        usual = before.noise.get(metric)
        if usual is not None and noise > max(WIDER * usual, QUIET):
            found.append(f"the noise of {metric} grows from {100 * usual:.2g}% to {100 * noise:.2g}%")
    return found


def _find_loosened(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> list[str]:
    found = []
    for metric, old in before.items():
        new = after.get(metric)
        if new is None:
            found.append(f"{metric} is not judged any more")
            continue
        if new.get("rule") != old.get("rule"):
            found.append(f"{metric} is judged by {new.get('rule')} instead of {old.get('rule')}")
            continue
        found += [
            f"the {name} of {metric} grows from {old[name]:g} to {new[name]:g}"
            for name in ("delta", "margin")
            if name in old and name in new and new[name] > old[name]
        ]
        if new.get("alpha", 0) < old.get("alpha", 0):
            found.append(f"the alpha of {metric} falls from {old['alpha']:g} to {new['alpha']:g}")
    return found


def _find_losses(before: Golden, after: Golden) -> list[str]:
    found = []
    if len(after.segments) < len(before.segments):
        found.append(f"there are {len(after.segments)} segments instead of {len(before.segments)}")
    if 0 < after.steps_per_segment < before.steps_per_segment:
        found.append(f"segments have {after.steps_per_segment} steps instead of {before.steps_per_segment}")
    old, new = (min((segment.replicas for segment in golden.segments), default=0) for golden in (before, after))
    if new < old:
        found.append(f"there are {new} recordings of each segment instead of {old}")
    lost = {name for segment in before.segments for name in segment.tracks}
    lost -= {name for segment in after.segments for name in segment.tracks}
    return [*found, *(f"{name} is not recorded any more" for name in sorted(lost))]
