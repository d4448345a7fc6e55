"""Checks bounds on the metrics of a finished run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from assay.errors import did_you_mean
from assay.values.series import Direction, Summary, direction_of, pick_value
from assay.values.study import Check
from assay.values.verdict import Finding, Verdict, VerdictKind


def judge_checks(checks: Sequence[Check], run_name: str, summaries: Mapping[str, Summary]) -> Verdict:
    """Compare every check with the run's summaries. A check that cannot be compared is an ERROR, never a PASS."""
    findings = [_judge(check, run_name, summaries) for check in checks]
    compared = sum(finding.kind is not VerdictKind.ERROR for finding in findings)
    return Verdict.of(findings, compared)


def direction_of_check(check: Check) -> Direction:
    """Return the better direction: an upper bound limits a value that should be small, a lower bound the opposite."""
    if check.min is None and check.max is not None:
        return "min"
    if check.max is None and check.min is not None:
        return "max"
    return direction_of(check.metric)


def _judge(check: Check, run_name: str, summaries: Mapping[str, Summary]) -> Finding:
    subject = f"{run_name} {check.metric}"
    problem = _find_obstacle(check, summaries)
    if problem:
        return Finding(VerdictKind.ERROR, subject, problem)
    summary = summaries[check.metric]
    value, step = pick_value(summary, direction_of_check(check) if check.at == "best" else check.at)
    kind, bound, what = _compare(check, summary, value)
    return Finding(kind, subject, what, value, bound, step)


def _find_obstacle(check: Check, summaries: Mapping[str, Summary]) -> str | None:
    if check.min is None and check.max is None:
        return "the check has neither min nor max: nothing to compare"
    if any(bound is not None and math.isnan(bound) for bound in (check.min, check.max)):
        return "the bound is NaN: nothing can be compared with it"
    summary = summaries.get(check.metric)
    if summary is None:
        suggestion = did_you_mean(check.metric, summaries)
        return "the run did not record this metric" + (f"; {suggestion}" if suggestion else "")
    return None if summary.count else "the metric has no values"


def _compare(check: Check, summary: Summary, value: float) -> tuple[VerdictKind, float | None, str]:
    """Return the verdict, the bound that decides it, and the reason."""
    names = {"min": "smallest", "max": "largest", "best": f"best ({direction_of_check(check)})"}
    name, low, high = names.get(check.at, check.at), check.min, check.max
    if summary.bad:
        bad = f"{summary.bad} of {summary.count} values are NaN or infinite"
        return VerdictKind.FAIL, high if low is None else low, bad
    if not math.isfinite(value):
        return VerdictKind.FAIL, high if low is None else low, f"{name} value is {value:g}"
    if low is not None and value < low:
        return VerdictKind.FAIL, low, f"{name} value {value:.6g} is below {low:.6g}"
    if high is not None and value > high:
        return VerdictKind.FAIL, high, f"{name} value {value:.6g} is above {high:.6g}"
    if low is None:
        return VerdictKind.PASS, high, f"{name} value {value:.6g} is at most {high:.6g}"
    allowed = f"is at least {low:.6g}" if high is None else f"is within {low:.6g} and {high:.6g}"
    return VerdictKind.PASS, low, f"{name} value {value:.6g} {allowed}"
