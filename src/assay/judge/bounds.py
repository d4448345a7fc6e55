"""Bounds on the metrics of a finished run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from assay.errors import did_you_mean
from assay.values.series import Direction, Summary, direction_of
from assay.values.study import Check
from assay.values.verdict import Finding, Verdict, VerdictKind


def judge_checks(checks: Sequence[Check], run_name: str, summaries: Mapping[str, Summary]) -> Verdict:
    """Every check against the run's summaries. What cannot be compared is an ERROR, never a pass."""
    findings = [_judge(check, run_name, summaries) for check in checks]
    compared = sum(finding.kind is not VerdictKind.ERROR for finding in findings)
    return Verdict.of(findings, compared)


def direction_of_check(check: Check) -> Direction:
    """Which direction is better: an upper bound guards something that should be small, a lower bound the opposite."""
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
    value, step = _pick(check, summary)
    if summary.bad or not math.isfinite(value):
        return Finding(VerdictKind.FAIL, subject, _describe_bad(check, summary, value), value, _bound(check), step)
    return _compare(check, subject, value, step)


def _find_obstacle(check: Check, summaries: Mapping[str, Summary]) -> str | None:
    if check.min is None and check.max is None:
        return "the check has neither min nor max: nothing to compare"
    if any(bound is not None and math.isnan(bound) for bound in (check.min, check.max)):
        return "the bound is NaN: nothing can be compared with it"
    summary = summaries.get(check.metric)
    if summary is None:
        return _describe_missing(check.metric, summaries)
    return None if summary.count else "the metric has no values"


def _describe_missing(metric: str, known: Iterable[str]) -> str:
    suggestion = did_you_mean(metric, known)
    return "the run did not record this metric" + (f"; {suggestion}" if suggestion else "")


def _pick(check: Check, summary: Summary) -> tuple[float, float | None]:
    at = direction_of_check(check) if check.at == "best" else check.at
    if at == "min":
        return summary.min, summary.min_step
    if at == "max":
        return summary.max, summary.max_step
    if at == "mean":
        return summary.mean, None
    return summary.last, summary.last_step


def _bound(check: Check) -> float | None:
    return check.min if check.min is not None else check.max


def _describe_bad(check: Check, summary: Summary, value: float) -> str:
    if not summary.bad:
        return f"{_place(check)} value is {value:g}"
    return f"{summary.bad} of {summary.count} values are NaN or infinite"


def _compare(check: Check, subject: str, value: float, step: float | None) -> Finding:
    place = _place(check)
    if check.min is not None and value < check.min:
        return Finding(
            VerdictKind.FAIL, subject, f"{place} value {value:.6g} is below {check.min:.6g}", value, check.min, step
        )
    if check.max is not None and value > check.max:
        return Finding(
            VerdictKind.FAIL, subject, f"{place} value {value:.6g} is above {check.max:.6g}", value, check.max, step
        )
    return Finding(VerdictKind.PASS, subject, f"{place} value {value:.6g} {_allow(check)}", value, _bound(check), step)


def _allow(check: Check) -> str:
    if check.min is not None and check.max is not None:
        return f"is within {check.min:.6g} and {check.max:.6g}"
    return f"is at least {check.min:.6g}" if check.min is not None else f"is at most {check.max:.6g}"


def _place(check: Check) -> str:
    names = {"min": "smallest", "max": "largest", "best": f"best ({direction_of_check(check)})"}
    return names.get(check.at, check.at)
