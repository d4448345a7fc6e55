"""What a gathering or a check came to: for a terminal, and as plain facts for JSON.

`build_rows` is what every form of the report is made from: one row for each segment and metric, and one for whatever
kept a segment or a whole test from being judged.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from assay.golden.values import Golden, GoldenReport, GoldenTestReport, MetricReport, Rule, SegmentReport, Track
from assay.show import formatting
from assay.show.json_text import to_json
from assay.show.table import render_table
from assay.system import terminal
from assay.values.table import Column, Table
from assay.values.verdict import Finding, Verdict, VerdictKind

RUN = "run"  # stands for the metric in a row about a segment's runs
RECORDING = "golden"  # and in one about the whole test
_SEVERITY = (VerdictKind.ERROR, VerdictKind.FAIL, VerdictKind.INCONCLUSIVE, VerdictKind.CHANGED, VerdictKind.PASS)
_MOST_FINDINGS = 20
_FINDING_WIDTH = 80
_MOST_ROWS = 24  # of a table on a terminal; of more only those that did not pass, and the first and the last that did
_SMALLEST = 1e-5  # below a thousandth of a percent nobody needs digits


@dataclass(frozen=True, slots=True)
class Row:
    """One judged thing. `finding` speaks for it: the worst one, and of those the one with the largest effect."""

    test: str
    segment: int | None
    metric: str
    kind: VerdictKind
    finding: Finding | None
    findings: tuple[Finding, ...]
    comparisons: int = 0
    rule: Rule | None = None
    noise: float | None = None

    @property
    def message(self) -> str:
        return self.tell(self.finding) if self.finding else ""

    @property
    def place(self) -> str:
        """`segment 100 loss`."""
        segment = "" if self.segment is None else f"segment {self.segment} "
        return f"{segment}{self.metric}"

    def place_of(self, finding: Finding) -> str:
        """`segment 100 loss MLM`: of several labels the one that the finding is about."""
        return f"{self.place}{self.label_of(finding, ' ')}"

    def label_of(self, finding: Finding, before: str = "") -> str:
        """What the finding's subject says beyond the metric; nothing for a metric without labels."""
        if self.segment is None and finding.subject.startswith("segment at "):  # what gathering refuses
            return f"{before}{finding.subject}"
        start = f"segment at {self.segment}: {self.metric}"
        rest = finding.subject.removeprefix(start) if finding.subject.startswith(start) else ""
        if rest[:1] == ",":  # `, second half`
            return rest if before else rest[1:].strip()
        return f"{before}{rest.strip()}" if rest[:1] == " " else ""

    def tell(self, finding: Finding) -> str:
        """The message, with its label in front where there is one."""
        label = self.label_of(finding)
        return f"{label}: {finding.message}" if label else finding.message


def build_rows(report: GoldenReport) -> tuple[Row, ...]:
    return tuple(row for test in report.tests for row in build_test_rows(test))


def build_test_rows(test: GoldenTestReport) -> tuple[Row, ...]:
    rows = [row for segment in test.segments for row in _build_segment_rows(test.test, segment)]
    told = {finding for segment in test.segments for finding in segment.verdict.findings}
    rest = tuple(finding for finding in test.verdict.findings if finding not in told)
    bad = tuple(finding for finding in rest if finding.kind is not VerdictKind.PASS)
    if bad or not rows:
        kind = _worst(bad or rest, test.verdict.kind)
        rows.append(
            Row(
                test.test,
                None,
                RECORDING,
                kind,
                choose_finding(bad or rest),
                bad or rest,
                0 if rows else test.verdict.comparisons,
            )
        )
    return tuple(rows)


def _build_segment_rows(test: str, segment: SegmentReport) -> Iterator[Row]:
    """What befell the runs comes first: it is the cause of what is missing behind it."""
    told = {finding for metric in segment.metrics for finding in metric.verdict.findings}
    rest = tuple(finding for finding in segment.verdict.findings if finding not in told)
    if rest or not segment.metrics:
        yield Row(test, segment.start_step, RUN, _worst(rest, segment.verdict.kind), choose_finding(rest), rest)
    for metric in segment.metrics:
        verdict = metric.verdict
        yield Row(
            test,
            segment.start_step,
            metric.metric,
            verdict.kind,
            choose_finding(verdict.findings),
            verdict.findings,
            verdict.comparisons,
            metric.rule,
            metric.noise,
        )


def _worst(findings: Sequence[Finding], otherwise: VerdictKind) -> VerdictKind:
    kinds = {finding.kind for finding in findings}
    return next((kind for kind in _SEVERITY if kind in kinds), otherwise)


def choose_finding(findings: Sequence[Finding]) -> Finding | None:
    return min(findings, key=lambda each: (_SEVERITY.index(each.kind), -abs(each.effect or 0.0)), default=None)


# ---------------------------------------------------------------- words


def render_percent(value: float | None, digits: int = 3) -> str:
    """`+0.31%`; nothing for nothing."""
    if value is None:
        return ""
    if value == 0:
        return "0%"
    if abs(value) < _SMALLEST:
        return "<0.001%"
    return f"{'+' if value > 0 else '-'}{formatting.render_number(abs(100.0 * value), digits)}%"


def render_interval(interval: tuple[float, float] | None) -> str:
    if interval is None:
        return ""
    low, high = (render_percent(each, 2) for each in interval)
    return low if low == high else f"{low} to {high}"


def render_rule(rule: Rule | None) -> str:
    """`paired`, `margin <= 20%`."""
    if rule is None:
        return ""
    if rule.kind == "margin":
        return f"{rule.operator} {render_share(rule.margin or 0.0)}"
    delta = f" {render_share(rule.delta)}" if rule.delta is not None else ""
    return f"{rule.kind}{delta}"


def render_share(value: float) -> str:
    """`0.5%`."""
    return f"{formatting.render_number(100.0 * value, 3)}%"


def render_step(step: float | None) -> str:
    return "" if step is None else formatting.render_number(build_step(step) or 0)


def build_step(step: float | None) -> float | None:
    """101, not 101.0."""
    return int(step) if step is not None and math.isfinite(step) and step == int(step) else step


def describe_golden(golden: Golden) -> list[str]:
    """Where a recording comes from, in short facts."""
    origin = golden.provenance
    facts = [str(origin["gathered_at"])] if origin.get("gathered_at") else []
    if origin.get("commit"):
        facts.append(f"commit {str(origin['commit'])[:12]}{' with local changes' if origin.get('dirty') else ''}")
    if origin.get("host"):
        facts.append(f"on {origin['host']}")
    facts.append(formatting.render_count(count_recordings(golden), "recording") + " of each segment")
    return facts


def count_recordings(golden: Golden) -> int:
    return min((segment.replicas for segment in golden.segments), default=0)


def describe_savings(test: GoldenTestReport) -> str:
    if not test.saved_steps:
        return ""
    count = sum(run.stopped_early is not None for segment in test.segments for run in segment.runs)
    stopped, steps = formatting.render_count(count, "run"), formatting.render_count(test.saved_steps, "step")
    return f"{stopped} stopped early: {steps} saved, about {formatting.render_duration(test.saved_s)}"


def describe_extent(test: GoldenTestReport, mode: str) -> str:
    """`3 segments, 540 values compared`."""
    count = len(test.segments) or len(test.golden.segments if test.golden else ())
    verb = "compared" if mode == "check" else "recorded"
    values = formatting.render_count(test.verdict.comparisons, "value")
    return f"{formatting.render_count(count, 'segment')}, {values} {verb}"


# ---------------------------------------------------------------- the terminal


def render_golden(
    report: GoldenReport,
    *,
    width: int | None = None,
    color: bool = False,
    plain: bool = False,
    notes: bool = True,
    every_row: bool = True,
) -> str:
    """For people: a table of the verdicts, what is behind each that is not a pass, and where things are."""
    look = {"width": width, "color": color, "plain": plain}
    blocks = [list(_render_test(report, test, look, notes, every_row)) for test in report.tests]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n" if blocks else ""


def _render_test(
    report: GoldenReport, test: GoldenTestReport, look: Mapping[str, Any], notes: bool, every_row: bool
) -> Iterator[str]:
    rows = build_test_rows(test)
    if report.mode == "check" and test.segments:
        shown = rows if every_row else choose_rows(rows)
        yield from render_table(build_table(shown), **look).splitlines()
        if len(shown) < len(rows):
            yield f"{'...' if look['plain'] else '…'} {len(rows) - len(shown)} more passed; --all shows them"
        yield ""
    yield from render_findings(rows, look["color"], look["width"])
    yield from (f"warning: {formatting.clean_lines(text)}" for text in test.warnings)
    if notes:
        yield from (formatting.clean(text) for text in test.notes)
        yield from _render_origin(test, report.mode)
    yield _render_outcome(report, test, look["color"])


def choose_rows(rows: Sequence[Row]) -> Sequence[Row]:
    """Of many rows those that did not pass, and the first and the last segment that did."""
    passed = [row for row in rows if row.kind is VerdictKind.PASS]
    if len(rows) <= _MOST_ROWS or not passed:
        return rows
    ends = {passed[0].segment, passed[-1].segment}
    return [row for row in rows if row.kind is not VerdictKind.PASS or row.segment in ends]


def build_table(rows: Sequence[Row]) -> Table:
    columns = (
        Column("segment", "number"),
        Column("metric"),
        Column("rule"),
        Column("verdict", "state"),
        Column("effect", align="right"),
        Column("interval", align="right"),
        Column("step", align="right"),
        Column("values", "number"),
    )
    cells = [_build_cells(row) for row in rows]
    kept = [
        place for place, column in enumerate(columns) if column.name != "interval" or any(row[place] for row in cells)
    ]
    return Table(tuple(columns[place] for place in kept), [[row[place] for place in kept] for row in cells])


def _build_cells(row: Row) -> list[Any]:
    finding = row.finding
    step = finding.step if finding and row.kind is not VerdictKind.PASS else None
    return [
        row.segment,
        row.metric,
        render_rule(row.rule) or None,
        str(row.kind),
        render_percent(finding.effect if finding else None) or None,
        render_interval(finding.interval if finding else None) or None,
        render_step(step) or None,
        row.comparisons,
    ]


def render_findings(rows: Sequence[Row], color: bool = False, width: int | None = None) -> Iterator[str]:
    """What is not a pass, the worst first; in lines of at most `width` columns."""
    bad = [(row, finding) for row in rows for finding in row.findings if finding.kind is not VerdictKind.PASS]
    bad.sort(key=lambda pair: _SEVERITY.index(pair[1].kind))
    for row, finding in bad[:_MOST_FINDINGS]:
        kind = str(finding.kind)
        mark = terminal.paint(kind, terminal.STATE_COLORS[kind]) if color else kind
        lines = finding.message.splitlines() or [""]
        first, *rest = _wrap(f"{kind} {formatting.clean(row.place_of(finding))}: {formatting.clean(lines[0])}", width)
        yield mark + first.removeprefix(kind)
        yield from rest
        yield from (part for line in lines[1:] for part in _wrap(f"  {formatting.clean(line.strip())}", width))
    if len(bad) > _MOST_FINDINGS:
        yield f"and {len(bad) - _MOST_FINDINGS} more"


def _wrap(line: str, width: int | None) -> list[str]:
    """Paths and words stay whole, and so does a line with a command: it is there to be copied."""
    if "assay " in line:
        return [line]
    most = min(width or _FINDING_WIDTH, _FINDING_WIDTH)
    return textwrap.wrap(line, most, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) or [line]


def _render_origin(test: GoldenTestReport, mode: str) -> Iterator[str]:
    savings = describe_savings(test)
    if savings:
        yield savings
    if test.golden is not None:
        yield f"golden: {formatting.clean(', '.join(describe_golden(test.golden)))}"
    if mode == "gather" and test.golden is not None:
        yield f"manifest: {formatting.clean(test.manifest)}"


def _render_outcome(report: GoldenReport, test: GoldenTestReport, color: bool) -> str:
    kind = str(test.verdict.kind)
    word = describe_outcome(report, test)
    style = terminal.STATE_COLORS[kind]
    mark = terminal.paint(word, f"bold {style}") if color else word
    took = f" in {formatting.render_duration(report.elapsed_s)}" if report.elapsed_s and len(report.tests) == 1 else ""
    return f"{formatting.clean(test.test)}: {mark}, {describe_extent(test, report.mode)}{took}"


def describe_outcome(report: GoldenReport, test: GoldenTestReport) -> str:
    """The verdict; a gathering has judged nothing, so what went well was recorded."""
    kind = test.verdict.kind
    return "recorded" if report.mode == "gather" and kind is VerdictKind.PASS else str(kind)


def describe_headline(report: GoldenReport) -> str:
    """One line that says what is wrong: `charlm: FAIL, loss +20% from step 1`."""
    bad = [test for test in report.tests if test.verdict.kind is not VerdictKind.PASS] or list(report.tests)
    return "; ".join(_describe_worst(report, test) for test in bad)


def _describe_worst(report: GoldenReport, test: GoldenTestReport) -> str:
    outcome = f"{formatting.clean(test.test)}: {describe_outcome(report, test)}"
    bad = [row for row in build_test_rows(test) if row.kind is test.verdict.kind and row.finding]
    if not bad or test.verdict.kind is VerdictKind.PASS:
        return outcome
    row = min(bad, key=lambda each: each.finding.step if each.finding and each.finding.step is not None else math.inf)
    assert row.finding is not None
    effect, step = render_percent(row.finding.effect), render_step(row.finding.step)
    if not effect:
        lines = row.finding.message.splitlines() or [""]
        return f"{outcome}, {formatting.clean(f'{row.place_of(row.finding)}: {lines[0]}')}"
    name = formatting.clean(f"{row.metric}{row.label_of(row.finding, ' ')}")
    return f"{outcome}, {name} {effect}{f' from step {step}' if step else ''}"


# ---------------------------------------------------------------- facts


def build_golden_facts(report: GoldenReport, allow_changed: bool = False) -> dict[str, Any]:
    """Everything, for JSON. Values that are not finite become words, never a silent null."""
    facts = {
        "mode": report.mode,
        "source": report.source,
        "verdict": str(report.kind),
        "exit_code": int(report.exit_code(allow_changed)),
        "elapsed_s": report.elapsed_s,
        "interrupted": report.interrupted,
        "problem": report.problem,
        "tests": [_build_test_facts(test) for test in report.tests],
    }
    found: dict[str, Any] = to_json(facts)
    return found


def _build_test_facts(test: GoldenTestReport) -> dict[str, Any]:
    return {
        "test": test.test,
        "manifest": test.manifest,
        **_build_verdict_facts(test.verdict),
        "saved_steps": test.saved_steps,
        "saved_s": test.saved_s,
        "notes": list(test.notes),
        "warnings": list(test.warnings),
        "golden": _build_recording_facts(test.golden) if test.golden else None,
        "segments": [_build_segment_facts(segment) for segment in test.segments],
        "runs": [_build_plain(run) for run in test.runs],
    }


def _build_verdict_facts(verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": str(verdict.kind),
        "comparisons": verdict.comparisons,
        "findings": [{**_build_plain(each), "step": build_step(each.step)} for each in verdict.findings],
    }


def _build_plain(value: Any) -> dict[str, Any]:
    return {key: str(each) if hasattr(each, "name") else each for key, each in asdict(value).items()}


def _build_recording_facts(golden: Golden) -> dict[str, Any]:
    return {
        "version": golden.version,
        "complete": golden.complete,
        "segments": [segment.start_step for segment in golden.segments],
        "steps_per_segment": golden.steps_per_segment,
        "recordings": count_recordings(golden),
        "noise": dict(golden.noise),
        "provenance": dict(golden.provenance),
        "history": [dict(item) for item in golden.history],
    }


def _build_segment_facts(segment: SegmentReport) -> dict[str, Any]:
    return {
        "start_step": segment.start_step,
        "checkpoint": segment.checkpoint,
        **_build_verdict_facts(segment.verdict),
        "metrics": [_build_metric_facts(metric) for metric in segment.metrics],
        "runs": [_build_plain(run) for run in segment.runs],
    }


def _build_metric_facts(metric: MetricReport) -> dict[str, Any]:
    rule = {key: value for key, value in asdict(metric.rule).items() if value not in (None, ()) and key != "position"}
    return {
        "metric": metric.metric,
        "rule": rule,
        "noise": metric.noise,
        **_build_verdict_facts(metric.verdict),
        "golden": _build_tracks(metric.golden),
        "check": _build_tracks(metric.check),
    }


def _build_tracks(tracks: Mapping[str, Sequence[Track]]) -> dict[str, Any]:
    return {
        label: [{"steps": list(track.steps), "values": list(track.values)} for track in found]
        for label, found in tracks.items()
    }


def render_evidence(evidence: Any) -> Iterator[str]:
    """`evidence`: a trial with the fields of a finding."""
    effect = render_percent(evidence.effect)
    if effect:
        interval = render_interval(evidence.interval)
        around = f" [{interval}]" if interval not in ("", effect) else ""
        since = f", first shows from step {render_step(evidence.step)}" if evidence.step is not None else ""
        yield f"  effect: {effect}{around}{since}"
    yield f"  {evidence.kind} {formatting.clean(evidence.subject)}: {formatting.clean(evidence.message)}"
