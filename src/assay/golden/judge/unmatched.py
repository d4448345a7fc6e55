"""The rule for other seeds: runs differ by far more than delta in any one window, so half the curve is averaged.

The mean over the second half of the segment decides about PASS; it has half of alpha. The windows have the other half
and can only fail (or be suspiciously better): they find what the half-curve mean dilutes, such as a spike or a late
divergence. Gather with ten replicas and check with three to five.
"""

from __future__ import annotations

from dataclasses import replace

from assay.golden.judge.effects import build_starts, measure_effects, stack_checks, stack_golden, stack_variants
from assay.golden.judge.pairing import Aligned, Pair
from assay.golden.judge.window import Report, Windows, build_limits, decide, describe_windows, find_rule_problem
from assay.golden.values import Rule, Track
from assay.judge.statistics import load_numpy
from assay.values.verdict import Finding, VerdictKind

ENOUGH_REPLICAS = 3


def judge_unmatched(rule: Rule, pair: Pair, peers: int = 1) -> list[Finding]:
    problem = find_rule_problem(rule) or _find_shortage(pair)
    if problem:
        return [Finding(VerdictKind.ERROR, pair.subject, problem)]
    shared = replace(rule, alpha=rule.alpha / 2)
    return [*_judge_half(rule, shared, pair, peers), *judge_spikes(shared, pair, peers)]


def _find_shortage(pair: Pair) -> str | None:
    if len(pair.golden) >= ENOUGH_REPLICAS:
        return None
    return (
        f"the golden has {len(pair.golden)} recordings; to compare other seeds it needs at least "
        f"{ENOUGH_REPLICAS}, and 10 to find small effects: gather with replicas"
    )


def _judge_half(rule: Rule, shared: Rule, pair: Pair, peers: int) -> list[Finding]:
    half = second_half(pair)
    if any(check.gaps for check in half.checks):
        return []
    effects = measure_effects(stack_golden(half.golden), stack_checks(half.checks), [0], stack_variants(half))
    limits = build_limits(rule, half, [0], effects)
    surely, passing = decide(shared, effects, limits, peers), decide(rule, effects, limits, peers)
    found = Windows(surely.failed, surely.changed, passing.passed, surely.judged)
    whole = replace(half, findings=pair.findings)
    return describe_windows(Report(rule, whole, effects, (0,), peers, limits), found)


def second_half(pair: Pair) -> Pair:
    cut = len(pair.steps) // 2
    golden = tuple(Track(track.steps[cut:], track.values[cut:]) for track in pair.golden)
    checks = tuple(_cut(check, cut) for check in pair.checks)
    variants = tuple(Track(track.steps[cut:], track.values[cut:]) for track in pair.variants)
    subject = f"{pair.subject}, second half"
    return replace(pair, subject=subject, steps=pair.steps[cut:], golden=golden, checks=checks, variants=variants)


def _cut(check: Aligned, cut: int) -> Aligned:
    values = check.values[cut:]
    missing = sum(value != value for value in values)  # noqa: PLR0124
    return Aligned(values, check.texts[cut:], missing)


def judge_spikes(rule: Rule, pair: Pair, peers: int) -> list[Finding]:
    """The windows that fail or changed; the others are not reported."""
    np = load_numpy()
    starts = build_starts(rule, pair.steps)
    effects = measure_effects(stack_golden(pair.golden), stack_checks(pair.checks), starts, stack_variants(pair))
    limits = build_limits(rule, pair, starts, effects)
    found = decide(rule, effects, limits, len(starts) * peers)
    report = Report(rule, pair, effects, tuple(starts), peers, limits)
    marked = ((VerdictKind.FAIL, found.failed), (VerdictKind.CHANGED, found.changed))
    return [report.describe(kind, marks) for kind, marks in marked if np.any(marks)]
