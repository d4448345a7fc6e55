"""The verdict on a convergence check: one segment by one rule or by all rules, and a run in progress.

Everything here is a pure function of recorded values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from assay.golden.judge.against import judge_digits, judge_level, judge_noise
from assay.golden.judge.effects import find_resolution, find_rule_problem
from assay.golden.judge.pairing import CheckRun, Pair, describe_subject, find_labels, line_up
from assay.golden.judge.pointwise import find_failing, find_margin_problem, judge_exact, judge_margin
from assay.golden.judge.same import judge_same
from assay.golden.judge.window import judge_spikes, judge_unmatched, judge_windows
from assay.golden.values import Golden, Rule, Segment, Track
from assay.system.fast_dataclasses import replace
from assay.values.verdict import Finding, Verdict, VerdictKind

# The result of one rule on one segment: findings, gaps, comparisons. `_conclude` decides the kind of the gaps.
RuleResult = tuple[list[Finding], list[Finding], int]


def judge_segment(rule: Rule, segment: Segment, checks: Sequence[CheckRun], *, peers: int = 1) -> Verdict:
    """Judge one metric of one segment, all its labels. `checks`: the runs of this segment so far, at least one;
    `peers`: the number of segments and metrics that are judged together and share alpha."""
    return _conclude([_judge_rule(rule, segment, checks, peers)])


def judge_rules(rules: Sequence[Rule], segment: Segment, checks: Sequence[CheckRun], *, peers: int = 1) -> Verdict:
    """Judge one segment by all rules."""
    if not rules:
        subject = describe_subject(segment, "metrics")
        return Verdict.of([Finding(VerdictKind.ERROR, subject, "no rule is given: nothing to compare")], 0)
    return _conclude([_judge_rule(rule, segment, checks, peers) for rule in rules])


def _judge_rule(rule: Rule, segment: Segment, checks: Sequence[CheckRun], peers: int) -> RuleResult:
    labels, findings = find_labels(rule, segment, checks)
    pairs = [line_up(rule, segment, label, checks) for label in labels]
    for label, pair in zip(labels, pairs, strict=True):
        judged = _name_digits(pair, _apply_rule(rule, pair, peers * len(labels))) if pair.is_usable else []
        findings += [replace(found, label=label) for found in (*pair.findings, *judged)]
    gaps = [replace(gap, label=label) for label, pair in zip(labels, pairs, strict=True) for gap in pair.gaps]
    return findings, gaps, sum(pair.compared for pair in pairs)


_RULES: dict[str, Callable[[Rule, Pair, int], list[Finding]]] = {
    "exact": lambda _, pair, __: judge_exact(pair),
    "margin": lambda rule, pair, _: judge_margin(rule, pair),
    "paired": judge_windows,
    "unmatched": judge_unmatched,
    "digits": lambda rule, pair, _: judge_digits(rule, pair),
    "noise": judge_noise,
    "level": lambda rule, pair, _: judge_level(rule, pair),
    "same": judge_same,
}


def _apply_rule(rule: Rule, pair: Pair, peers: int) -> list[Finding]:
    if (judge := _RULES.get(rule.kind)) is None:
        return [Finding(VerdictKind.ERROR, pair.subject, f"{rule.kind!r} is not a kind of rule")]
    return judge(rule, pair, peers)


def _name_digits(pair: Pair, findings: list[Finding]) -> list[Finding]:
    """Name the cause if a check with fewer digits than the golden differs by no more than its last digit."""
    golden, last = pair.golden[0], max(map(find_resolution, pair.checks))
    pairs = [both for check in pair.checks for both in zip(check.values, golden.values, strict=True)]
    if last <= find_resolution(golden) or any(abs(one - other) > last * (1 + 1e-9) for one, other in pairs):
        return findings
    shown = f"{pair.checks[0].texts[0]} instead of {(golden.texts or golden.values)[0]}"
    cause = f"\nthe check logs fewer digits than the golden has, {shown}: log as many"
    return [each if each.kind is VerdictKind.PASS else replace(each, message=each.message + cause) for each in findings]


def _conclude(judged: Sequence[RuleResult]) -> Verdict:
    """Combine results. Missing steps are an ERROR, or a FAIL if values failed: a failing run may be stopped early."""
    findings = [*dict.fromkeys(finding for found, _, _ in judged for finding in found)]  # runs may have equal findings
    kind = VerdictKind.FAIL if any(finding.kind is VerdictKind.FAIL for finding in findings) else VerdictKind.ERROR
    findings += dict.fromkeys(replace(gap, kind=kind) for _, gaps, _ in judged for gap in gaps)
    return Verdict.of(findings, sum(comparisons for _, _, comparisons in judged))


def count_peers(rules: Sequence[Rule], golden: Golden) -> int:
    """Count the combinations of segment and metric that are judged by statistics and share alpha."""
    return max(1, sum(rule.kind in ("paired", "unmatched", "noise", "same") for rule in rules) * len(golden.segments))


def judge_so_far(
    rule: Rule, segment: Segment, track: Track, *, label: str = "", earlier: Sequence[CheckRun] = (), peers: int = 1
) -> Finding | None:
    """Return a finding if a run in progress has definitely failed: in its first failing window, or by NaN or infinity.
    The final verdict has the same test of complete windows: a run that is stopped would have failed at the end, so
    testing often adds no false alarms. `earlier`: other checks of the same segment."""
    if label not in segment.tracks.get(rule.metric, {}):
        return None  # the final verdict reports a missing label
    pair = line_up(rule, segment, label, [*earlier, {rule.metric: {label: track}}], partial=True)
    findings = list(pair.findings)
    if pair.is_usable:
        findings += _judge_partial(rule, pair, peers * len(rule.labels or segment.tracks[rule.metric]))
    return next((found for found in findings if found.kind is VerdictKind.FAIL), None)


def _judge_partial(rule: Rule, pair: Pair, peers: int) -> list[Finding]:
    if rule.kind == "margin" and find_margin_problem(rule.operator, rule.margin) is None:
        failing = any(find_failing(rule, pair.golden[0], check) for check in pair.checks)
        return judge_margin(rule, pair) if failing else []
    if rule.kind == "paired":
        return judge_windows(rule, pair, peers)
    if rule.kind == "unmatched" and find_rule_problem(rule) is None and len(pair.golden) > 1:
        return judge_spikes(replace(rule, alpha=rule.alpha / 2), pair, peers)
    return []
