"""The rows of a report on a gathering or a check, and its numbers as text.

The report is made from `build_test_rows`: one row for each segment and metric, and one for other findings about the
runs of a segment or the whole test.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from assay.golden.judge.pointwise import render_effect
from assay.golden.values import GoldenReport, GoldenTestReport, ReportMode, Rule, SegmentReport
from assay.show import formatting
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.verdict import SEVERITY, Finding, VerdictKind

RUN = "run"  # instead of the metric in a row about a segment's runs
RECORDING = "golden"  # instead of the metric in a row about the whole test


@dataclass(frozen=True, slots=True)
class ReportRow:
    """What was judged: a metric of a segment, the runs of a segment, or the whole test."""

    segment: int | None
    metric: str
    kind: VerdictKind
    findings: tuple[Finding, ...]
    comparisons: int = 0
    rule: Rule | None = None
    noise: float | None = None
    delta: float | None = None  # the delta of the verdict: the largest effect that passes
    configuration: str = ""  # the name in `golden.same`; "": the canonical configuration

    @property
    def name(self) -> str:
        """The configuration and the metric: `accum8 loss`."""
        return f"{self.configuration} {self.metric}".strip()

    @property
    def finding(self) -> Finding | None:
        """The worst finding; of equally bad findings, the one with the largest effect."""
        return choose_finding(self.findings)

    def locate(self, finding: Finding) -> str:
        """Render the segment, metric and label of a finding, as in `segment 100 loss MLM`."""
        segment = "" if self.segment is None else f"segment {self.segment} "
        return segment + name_finding(finding, self.name)

    def describe(self, finding: Finding) -> str:
        """Render the message of a finding, after its label if it has one."""
        name = name_finding(finding)
        return f"{name}: {finding.message}" if name else finding.message


def name_finding(finding: Finding, metric: str = "") -> str:
    """Render `loss MLM, second half`; empty for a metric without labels if `metric` is not given."""
    return ", ".join(filter(None, (f"{metric} {finding.label}".strip(), finding.part)))


def build_test_rows(test: GoldenTestReport) -> tuple[ReportRow, ...]:
    groups = [("", test.segments), *((each.name, each.segments) for each in test.same)]
    parts = [(name, segment) for name, segments in groups for segment in segments]
    rows = [replace(row, configuration=name) for name, segment in parts for row in _build_segment_rows(segment)]
    known = {finding for _, segment in parts for finding in segment.verdict.findings}
    rest = tuple(finding for finding in test.verdict.findings if finding not in known)
    bad = tuple(finding for finding in rest if finding.kind is not VerdictKind.PASS)
    if bad or not rows:
        found = choose_finding(bad or rest)
        kind = found.kind if found else test.verdict.kind
        rows.append(ReportRow(None, RECORDING, kind, bad or rest, 0 if rows else test.verdict.comparisons))
    return tuple(rows)


def _build_segment_rows(segment: SegmentReport) -> Iterator[ReportRow]:
    """Yield the rows of a segment. The row about its runs is the first: it explains what other rows lack."""
    known = {finding for metric in segment.metrics for finding in metric.verdict.findings}
    rest = tuple(finding for finding in segment.verdict.findings if finding not in known)
    if rest or not segment.metrics:
        found = choose_finding(rest)
        yield ReportRow(segment.start_step, RUN, found.kind if found else segment.verdict.kind, rest)
    for metric in segment.metrics:
        judged, facts = metric.verdict, (metric.rule, metric.noise, metric.delta)
        yield ReportRow(segment.start_step, metric.metric, judged.kind, judged.findings, judged.comparisons, *facts)


def choose_finding(findings: Sequence[Finding]) -> Finding | None:
    return min(findings, key=lambda each: (SEVERITY.index(each.kind), -abs(each.effect or 0.0)), default=None)


def render_percent(value: float | None, digits: int = 3) -> str:
    """Render a fraction as `+0.31%`; an empty string for None."""
    return "" if value is None else render_effect(value, digits)


def render_interval(interval: tuple[float, float] | None) -> str:
    if interval is None:
        return ""
    low, high = (render_percent(each, 2) for each in interval)
    return low if low == high else f"{low} to {high}"


def render_rule(rule: Rule | None) -> str:
    """Render a rule as `paired`, or `margin <= 20%`."""
    if rule is None:
        return ""
    if rule.kind == "margin":
        return f"{rule.operator} {render_share(rule.margin or 0.0)}"
    delta = f" {render_share(rule.delta)}" if rule.delta is not None else ""
    return f"{rule.kind}{delta}"


def render_share(value: float) -> str:
    """Render a fraction as `0.5%`."""
    return f"{formatting.render_number(100.0 * value, 3)}%"


def render_step(step: float | None) -> str:
    return "" if step is None else formatting.render_number(build_step(step) or 0)


def build_step(step: float | None) -> float | None:
    """Return a step as a whole number if it is one: 101, not 101.0."""
    return int(step) if step is not None and math.isfinite(step) and step == int(step) else step


def describe_outcome(mode: ReportMode, kind: VerdictKind) -> str:
    """Describe the verdict; PASS of a gathering, which judges nothing, is `recorded`."""
    return "recorded" if mode == "gather" and kind is VerdictKind.PASS else str(kind)


def describe_headline(report: GoldenReport) -> str:
    """Describe in one line what is wrong: `charlm: FAIL, loss +20% from step 1`."""
    bad = [test for test in report.tests if test.verdict.kind is not VerdictKind.PASS] or list(report.tests)
    return "; ".join(_describe_worst(report, test) for test in bad)


def _describe_worst(report: GoldenReport, test: GoldenTestReport) -> str:
    outcome = f"{formatting.clean(test.test)}: {describe_outcome(report.mode, test.verdict.kind)}"
    bad = [row for row in build_test_rows(test) if row.kind is test.verdict.kind and row.finding]
    if not bad or test.verdict.kind is VerdictKind.PASS:
        return outcome
    row = min(bad, key=lambda each: each.finding.step if each.finding and each.finding.step is not None else math.inf)
    assert row.finding is not None
    effect, step = render_percent(row.finding.effect), render_step(row.finding.step)
    if not effect:
        lines = row.finding.message.splitlines() or [""]
        return f"{outcome}, {formatting.clean(f'{row.locate(row.finding)}: {lines[0]}')}"
    name = formatting.clean(name_finding(row.finding, row.metric))
    return f"{outcome}, {name} {effect}{f' from step {step}' if step else ''}"
