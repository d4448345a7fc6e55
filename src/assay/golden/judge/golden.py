"""What a golden shows before anything is checked: the noise of its replicas, with the smallest effect a check finds
and the smallest usable delta or margin; and the drift when a golden is replaced, since the previous and the first one.

Ten rebases of half a percent each are five percent that no check has found. Each entry of a golden's history keeps the
levels of its recording and of the first recording, so that the total drift is always known.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from assay.errors import FormatError
from assay.golden.judge.convergence import count_peers, judge_segment
from assay.golden.judge.effects import (
    average,
    build_differences,
    build_limits,
    build_starts,
    default_delta,
    find_rule_problem,
    find_width,
    measure_effects,
    measure_size,
    pool_variance,
    stack,
    stack_variants,
)
from assay.golden.judge.pairing import describe_subject, line_up
from assay.golden.judge.pointwise import has_equal_replicas, measure_relative
from assay.golden.judge.window import second_half
from assay.golden.values import Golden, Rule, Segment
from assay.judge.statistics import Array, normal_quantile, np, t_quantile
from assay.show.formatting import render_count
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.plain import parse_plain
from assay.values.series import find_direction
from assay.values.verdict import Finding, VerdictKind

MOST_CHECKS = 3
MISSES = 0.1  # an effect that a check "would find" is missed by one check in ten
LADDER = (1.0, 2.0, 5.0)
WIDER = 2.0  # noise measured from a few replicas varies by half; a factor of two is not chance
QUIET = 1e-4  # smaller noise hides no relevant effect
CREEP_REBASES = 2

Levels = Mapping[str, Mapping[str, float]]  # metric (and label) → start step → mean level


@dataclass(frozen=True, slots=True)
class SegmentNoise:
    """One metric and label of one segment. All values are relative: .01 is one percent."""

    subject: str
    metric: str
    label: str
    replicas: int
    steps: int
    per_step: float  # sd between replicas of a single value
    windows: tuple[float, ...]  # sd of each window's mean; for other seeds, of the mean of the second half
    detectable: tuple[float, ...]  # the smallest effect that 1, 2, 3 checks would find, in any window
    floor: float  # with a smaller delta not even a perfect check could pass
    suggested_delta: float
    outside: float = 0.0  # the smallest effect that is CHANGED, in the window where it is largest

    @property
    def per_window(self) -> float:
        return math.sqrt(sum(sd * sd for sd in self.windows) / len(self.windows))


def measure_golden_noise(rules: Sequence[Rule], golden: Golden) -> tuple[SegmentNoise, ...]:
    """Measure the noise of every metric in every segment; metrics without replicas are left out."""
    peers = count_peers(rules, golden)
    found = [measure_noise(rule, segment, peers=peers) for segment in golden.segments for rule in rules]
    return tuple(itertools.chain.from_iterable(found))


def summarise_noise(noises: Iterable[SegmentNoise]) -> dict[str, float]:
    """Return for each metric the noise of a window in its noisiest segment and label, which a manifest keeps."""
    summary: dict[str, float] = {}
    for noise in noises:
        summary[noise.metric] = max(noise.per_window, summary.get(noise.metric, 0.0))
    return summary


def measure_noise(rule: Rule, segment: Segment, *, peers: int = 1) -> tuple[SegmentNoise, ...]:
    if find_rule_problem(rule) is not None:
        return ()
    found = segment.tracks.get(rule.metric, {})
    several = [label for label in rule.labels or found if len(found.get(label, ())) > 1]
    labels = [label for label in several if not line_up(rule, segment, label, ()).findings]
    return tuple(_measure(rule, segment, label, peers * len(labels)) for label in labels)


def _measure(rule: Rule, segment: Segment, label: str, peers: int) -> SegmentNoise:
    tracks = segment.tracks[rule.metric][label]
    golden = stack(tracks)
    starts = build_starts(rule, tracks[0].steps)
    if rule.kind == "unmatched":  # for other seeds the second half of the curve decides
        golden, starts = golden[:, len(tracks[0].steps) // 2 :], [0]
    per_step, spread = _spread(golden, range(golden.shape[1])), _spread(golden, starts)
    largest = math.sqrt(float(pool_variance(spread).max()))
    freedom, delta, alpha = len(tracks) - 1, default_delta(rule), rule.alpha
    errors = [largest * math.sqrt(1 / len(tracks) + 1 / checks) for checks in range(1, MOST_CHECKS + 1)]
    surely, missed = t_quantile(freedom, alpha / (len(starts) * peers)), t_quantile(freedom, MISSES)
    usual = t_quantile(freedom, alpha)
    reach = usual + t_quantile(freedom, MISSES / len(starts))  # nine of ten good checks pass at the first run
    pair = line_up(rule, segment, label, ())
    pair = second_half(pair) if rule.kind == "unmatched" else pair
    effects = measure_effects(golden, golden[:1], starts, stack_variants(pair))
    limits = build_limits(rule, pair, starts, effects)
    outside = limits.sure
    if effects.spreads and effects.error is not None:  # a check is outside by its distance, or by its mean
        outside = np.minimum(outside, limits.floor + limits.declared + surely * effects.error)
    return SegmentNoise(
        subject=describe_subject(segment, rule.metric, label),
        metric=rule.metric,
        label=label,
        replicas=len(tracks),
        steps=golden.shape[1],
        per_step=math.sqrt(float(per_step.mean())),
        windows=tuple(float(value) ** 0.5 for value in spread),
        detectable=tuple(max(surely * error, delta) + missed * error for error in errors),
        floor=usual * errors[-1],
        suggested_delta=max(delta, round_up(reach * errors[0])),
        outside=float(outside.max()),
    )


def find_equal(rules: Sequence[Rule], golden: Golden) -> bool:
    """Whether there are several replicas, equal bit for bit in all metrics with the paired rule."""
    judged = {rule.metric for rule in rules if rule.kind == "paired"}
    found = [runs for segment in golden.segments for metric, _, runs in segment.walk() if metric in judged]
    return bool(found) and all(len(runs) > 1 and has_equal_replicas([run.values for run in runs]) for runs in found)


def find_idle_variants(rules: Sequence[Rule], golden: Golden) -> list[str]:
    """List variants that change nothing: equal bit for bit to the first recording in every metric that is judged."""
    idle, judged = dict.fromkeys(golden.variants, True), {rule.metric for rule in rules}
    for segment, name in itertools.product(golden.segments, golden.variants):
        for metric, labels in segment.variants.get(name, {}).items():
            for label, track in labels.items():
                if metric in judged and label in segment.tracks.get(metric, {}):
                    one = segment.tracks[metric][label][0]
                    idle[name] &= one.steps == track.steps and has_equal_replicas([one.values, track.values])
    return [name for name, is_idle in idle.items() if is_idle]


def find_far_variants(rules: Sequence[Rule], golden: Golden) -> list[str]:
    """List variants that fail as checks: variants excuse differences only up to delta, so that such a check fails."""
    found: dict[str, str] = {}
    for segment in golden.segments:
        alone = replace(segment, variants={})
        for (name, tracks), rule in itertools.product(segment.variants.items(), rules):
            if rule.kind == "paired" and rule.metric in segment.tracks:
                verdict = judge_segment(rule, alone, [tracks], peers=count_peers(rules, golden))
                bad = next((each for each in verdict.findings if each.kind is VerdictKind.FAIL), None)
                if bad is not None:
                    found.setdefault(name, f"{bad.subject}: {bad.message.splitlines()[0]}")
    return [f"the variant {name} is beyond delta, and a check like it fails ({text})" for name, text in found.items()]


def _spread(golden: Array, starts: Sequence[int]) -> Array:
    """Return the variance between replicas per window, in the units in which windows are judged."""
    size = None if (golden > 0).all() else measure_size(golden, starts)
    with np.errstate(invalid="ignore", divide="ignore"):
        return average(build_differences(golden, golden[:1], starts, size), starts).var(axis=0, ddof=1)


def round_up(value: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    digit = next((digit for digit in LADDER if digit * power >= value * (1 - 1e-12)), 10.0)
    return float(f"{digit * power:.0e}")


def check_margin(rule: Rule, noise: SegmentNoise) -> Finding | None:
    """Return a finding if the rule asks for more than the noise allows: good runs would not pass."""
    if rule.kind == "margin":
        return _check_fixed(rule, noise)
    if rule.kind == "exact":
        if noise.per_step == 0:
            return None
        message = f"the replicas differ from one another (sd {noise.per_step:.3g}): the exact rule cannot be used"
        return Finding(VerdictKind.ERROR, noise.subject, message, 0.0, noise.per_step)
    if (delta := default_delta(rule)) >= noise.floor:
        return None
    advice = f"set the delta of {noise.metric} to {noise.suggested_delta:g}, or gather more replicas"
    message = (
        f"a delta of {delta:.3g} is below the noise floor of {noise.floor:.3g}: even a perfect check could not pass; "
        f"{'let every run use the same seed, or ' if rule.kind == 'paired' else ''}{advice}"
    )
    return Finding(VerdictKind.ERROR, noise.subject, message, delta, noise.floor)


def find_refusals(rules: Sequence[Rule], found: Sequence[SegmentNoise]) -> list[tuple[Rule, Finding]]:
    """Return the rules that ask for more than the noise allows."""
    pairs = [(rule, check_margin(rule, noise)) for rule in rules for noise in found if noise.metric == rule.metric]
    return [(rule, finding) for rule, finding in pairs if finding is not None]


def _check_fixed(rule: Rule, noise: SegmentNoise) -> Finding | None:
    """Return a finding if good runs would leave the margin: each of many steps counts, and both sides are noisy."""
    if rule.operator not in ("==", "<=", ">=") or rule.margin is None:
        return None
    floor = noise.per_step * math.sqrt(2) * normal_quantile(rule.alpha / noise.steps)
    if rule.margin >= floor:
        return None
    message = (
        f"a margin of {rule.margin:g} is below the noise of {noise.steps} steps, {floor:.3g}: good runs would fail; "
        f"use {round_up(floor):g} or more, or the paired rule"
    )
    return Finding(VerdictKind.ERROR, noise.subject, message, rule.margin, floor)


def build_rule_facts(rules: Sequence[Rule]) -> dict[str, dict[str, Any]]:
    """Build the rules as a manifest keeps them, so that a later rebase can detect that they were loosened."""
    facts: dict[str, dict[str, Any]] = {}
    for rule in rules:
        kept: dict[str, Any] = {"rule": rule.kind}
        if rule.kind == "margin":
            kept |= {"operator": rule.operator, "margin": rule.margin}
        elif rule.kind != "exact":
            kept |= {"delta": default_delta(rule), "alpha": rule.alpha}
            kept |= {"direction": rule.direction, "window": rule.window}
        facts[rule.metric] = {key: value for key, value in kept.items() if value is not None}
    return facts


def parse_rules(golden: Golden) -> list[Rule]:
    """Return the rules with which the golden was gathered; older manifests have no rules. Raises FormatError."""
    try:
        stated = [{**each, "metric": metric, "kind": each["rule"]} for metric, each in golden.rules.items()]
        return [parse_plain(Rule, each) for each in stated]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FormatError(f"the rules in this golden recording are damaged: {json.dumps(golden.rules)[:200]}") from None


def measure_levels(golden: Golden) -> dict[str, dict[str, float]]:
    """Return by metric and segment the mean of all finite values of all recordings."""
    levels: dict[str, dict[str, float]] = {}
    for segment in golden.segments:
        for metric, label, runs in segment.walk():
            if values := [value for run in runs for value in run.values if math.isfinite(value)]:
                name = f"{metric} {label}".strip()
                levels.setdefault(name, {})[str(segment.start_step)] = math.fsum(values) / len(values)
    return levels


def measure_drift(before: Levels, after: Levels) -> dict[str, float]:
    """Return the relative change of each metric over the segments that are in both `before` and `after`."""
    drift: dict[str, float] = {}
    for name, levels in before.items():
        if pairs := [(level, after[name][start]) for start, level in levels.items() if start in after.get(name, {})]:
            drift[name] = math.fsum(measure_relative(now, then) for then, now in pairs) / len(pairs)
    return drift


def find_creep(since_first: Mapping[str, float], rules: Sequence[Rule], rebases: int) -> list[str]:
    """Describe metrics whose many small changes add up to more than a single check would accept."""
    allowed = {rule.metric: default_delta(rule) for rule in rules if rule.kind not in ("exact", "margin")}
    return [
        f"{name} has drifted by {100 * effect:+.3g}% since the first golden, in {rebases} rebases"
        for name, effect in since_first.items()
        if rebases >= CREEP_REBASES and abs(effect) > allowed.get(name.split(" ", 1)[0], math.inf)
    ]


def find_widening(before: Golden, after: Golden) -> list[str]:
    """List everything by which the new golden accepts more than the old one."""
    return [
        *(
            f"the noise of {metric} grows from {100 * before.noise[metric]:.2g}% to {100 * noise:.2g}%"
            for metric, noise in after.noise.items()
            if metric in before.noise and noise > max(WIDER * before.noise[metric], QUIET)
        ),
        *find_loosened(parse_rules(before), parse_rules(after), before.steps_per_segment),
        *_find_losses(before, after),
        *(f"the variant {name} is new: its effect will pass" for name in after.variants if name not in before.variants),
    ]


_TIGHTER = (("<=", "=="), (">=", "=="), ("<=", "<"), (">=", ">"))  # an operator, and one that accepts less


def find_loosened(before: Sequence[Rule], after: Sequence[Rule], steps: int) -> list[str]:
    """List rules that accept more than before, or were replaced. `steps`: the length of a segment."""
    found: list[str] = []
    now = build_rule_facts(after)
    for metric, old in build_rule_facts(before).items():
        if (new := now.get(metric)) is None:
            found.append(f"{metric} is not judged any more")
        elif new.get("rule") != old.get("rule"):
            is_tighter = new.get("rule") == "exact"
            found += [] if is_tighter else [f"{metric} is judged by {new.get('rule')} instead of {old.get('rule')}"]
        else:
            found += _compare_rules(metric, old, new, steps)
    return found


def _compare_rules(metric: str, old: Mapping[str, Any], new: Mapping[str, Any], steps: int) -> Iterator[str]:
    operator = new.get("operator")
    for name in ("delta", "margin") if operator not in ("<", ">") else ():  # < and > take no margin
        if name in old and name in new and (new[name] < old[name] if operator == "!=" else new[name] > old[name]):
            word = "falls" if operator == "!=" else "grows"
            yield f"the {name} of {metric} {word} from {old[name]:g} to {new[name]:g}"
    if old.get("alpha") != new.get("alpha"):
        word = "falls" if new.get("alpha", 0) < old.get("alpha", 0) else "grows"
        yield f"the alpha of {metric} {word} from {old.get('alpha', 0):g} to {new.get('alpha', 0):g}"
    if (old.get("operator"), operator) not in _TIGHTER and old.get("operator") != operator:
        yield f"{metric} is compared by {operator} instead of {old.get('operator')}"
    ways = [each.get("direction") or find_direction(metric) or "both" for each in (old, new)]
    if "delta" in old and ways[1] not in (ways[0], "both"):
        yield f"the direction of {metric} is {ways[1]} instead of {ways[0]}"
    widths = [each.get("window") or find_width(steps) for each in (old, new)]
    if "delta" in old and widths[1] > widths[0]:
        yield f"the window of {metric} grows from {widths[0]} to {widths[1]} steps"


def _find_losses(before: Golden, after: Golden) -> Iterator[str]:
    if len(after.segments) < len(before.segments):
        yield f"there are {len(after.segments)} segments instead of {len(before.segments)}"
    if 0 < after.steps_per_segment < before.steps_per_segment:
        yield f"segments have {after.steps_per_segment} steps instead of {before.steps_per_segment}"
    if after.recordings < before.recordings:
        yield f"{render_count(after.recordings, 'recording')} of each segment instead of {before.recordings}"
    kept = {(name, label) for each in after.segments for name, label, _ in each.walk()}
    pairs = dict.fromkeys((name, label) for each in before.segments for name, label, _ in each.walk())
    gone = {f"{name} {label}" if name in after.metrics else name for name, label in pairs if (name, label) not in kept}
    yield from (f"{name} is not recorded any more" for name in sorted(gone))
