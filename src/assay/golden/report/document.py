"""The result of a gathering or a check as a document: for a terminal, Markdown, an HTML page, JUnit and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.golden.judge.evidence import find_uncovered
from assay.golden.report.charts import LEGEND, build_check_charts, build_recording_charts
from assay.golden.report.rows import (
    RUN,
    ReportRow,
    build_step,
    build_test_rows,
    describe_outcome,
    name_finding,
    render_interval,
    render_percent,
    render_rule,
    render_step,
)
from assay.golden.values import Golden, GoldenReport, GoldenTestReport, MetricReport, SegmentReport, SegmentRun
from assay.show import formatting
from assay.show.junit import ALLOWED
from assay.show.terminal_report import render_terminal
from assay.system.fast_dataclasses import asdict, replace
from assay.values import document as doc
from assay.values.table import Column, Table
from assay.values.verdict import SEVERITY, Verdict, VerdictKind

_MOST_ROWS = 24  # more rows are shortened on a terminal, see choose_rows
_MOST_REASONS = 5  # reasons below a row of a page
_MOST_GAPS = 5


def build_document(report: GoldenReport, *, allow_changed: bool = False, every_row: bool = True) -> doc.Document:
    """Build the report. `every_row`: a terminal shows all rows, however many there are."""
    what = "Convergence check" if report.mode == "check" else "Golden recording"
    took = f", {formatting.render_duration(report.elapsed_s)}" if report.elapsed_s else ""
    word = describe_outcome(report.mode, report.kind)
    heading, source = doc.Heading(what, report.kind, 1, word), doc.Text(f"{report.source}{took}", role="soft")
    head = doc.Only(("html",), (heading, source))
    return doc.Document(
        title=f"{report.kind} {report.source}",
        blocks=(head, *(doc.Section(list(_build_test(report, test, every_row))) for test in report.tests)),
        suites=[_build_suite(test, allow_changed) for test in report.tests],
        suites_name=f"assay golden {report.mode}",
        seconds=report.elapsed_s,
        facts=build_facts(report, allow_changed),
    )


def render_golden(report: GoldenReport) -> str:
    """Render the report for the message of an exception or a failed test."""
    return render_terminal(build_document(report), width=80)


def _build_test(report: GoldenReport, test: GoldenTestReport, every_row: bool) -> Iterator[doc.Block]:
    rows = build_test_rows(test)
    took = f" in {formatting.render_duration(report.elapsed_s)}" if report.elapsed_s else ""
    extent, savings = _describe_extent(test, report.mode), _describe_savings(test)
    golden = f"golden: {', '.join(_describe_golden(test.golden))}" if test.golden else ""
    coverage, differences = _describe_coverage(test.golden), _describe_differences(test)
    warnings = [f"warning: {text}" for text in test.warnings]
    word = describe_outcome(report.mode, test.verdict.kind)
    yield doc.Heading(test.test, test.verdict.kind, word=word)
    yield doc.Only(("markdown",), (doc.Text(f"{extent}{took}{'; ' + savings if savings else ''}"),))
    yield doc.Only(("html",), [doc.Text(describe_reason(test, rows), role="answer")] if report.mode == "check" else [])
    yield doc.Only(("html",), [doc.Text(text, role="soft") for text in (extent, savings, golden, coverage) if text])
    canonical = [row for row in rows if not row.configuration]
    matrix = [build_matrix(test, rows)] if test.same else []
    table = _build_page_table(canonical, "recorded" if report.mode == "gather" else "")
    yield doc.Only(("html",), (doc.Notes([*warnings, *differences]), table, *matrix))
    if report.mode == "check" and test.segments:
        shown = canonical if every_row else choose_rows(canonical)
        hidden = len(canonical) - len(shown)
        breaks = {len(shown): f"{hidden} more passed; --all shows them"} if hidden else None
        yield doc.Only(("terminal",), (doc.Section((doc.TableBlock(build_table(shown), breaks=breaks),)),))
        yield doc.Only(("markdown",), (doc.TableBlock(build_table(canonical)),))
        yield doc.Only(("terminal", "markdown"), matrix)
    bad = [(row, each) for row in rows for each in row.findings if each.kind is not VerdictKind.PASS]
    bad.sort(key=lambda pair: SEVERITY.index(pair[1].kind))
    found = [replace(each, subject=row.locate(each)) for row, each in bad]
    yield doc.Only(("terminal", "markdown"), (doc.Findings(found), doc.Notes([*warnings, *differences])))
    yield doc.Only(("markdown",), [doc.Text(text) for text in (golden, coverage) if text])
    manifest = f"manifest: {test.manifest}" if report.mode == "gather" and test.golden else ""
    lines = [*test.notes, *(text for text in (savings, golden, coverage, manifest) if text)]
    end = took if len(report.tests) == 1 else ""
    outcome = f"{test.test}: ", doc.Span(word, test.verdict.kind), f", {extent}{end}"
    yield doc.Only(("terminal",), (doc.Notes(lines), doc.Text(outcome)))
    yield doc.Only(("html",), list(_build_page(report, test)))


def describe_reason(test: GoldenTestReport, rows: Sequence[ReportRow]) -> str:
    """Explain in one sentence why the verdict is what it is."""
    worst = min(rows, key=rank_row, default=None)
    if worst is None or worst.kind is VerdictKind.PASS or worst.finding is None:
        return f"Nothing differs from the golden by more than is allowed: {test.verdict.comparisons} values compared."
    others = sum(row.kind is not VerdictKind.PASS for row in rows) - 1
    more = f"; {formatting.render_count(others, 'further row')} below did not pass either" if others else ""
    message = "; ".join(worst.finding.message.splitlines())
    return f"{worst.locate(worst.finding)}: {message}{more}."


def _describe_golden(golden: Golden) -> list[str]:
    """Describe the origin of a recording in short facts."""
    origin = golden.provenance
    facts = [str(origin["gathered_at"])] if origin.get("gathered_at") else []
    if origin.get("commit"):
        facts.append(f"commit {str(origin['commit'])[:12]}{' with local changes' if origin.get('dirty') else ''}")
    if origin.get("host"):
        facts.append(f"on {origin['host']}")
    facts.append(formatting.render_count(golden.recordings, "recording") + " of each segment")
    return facts


def _describe_coverage(golden: Golden | None) -> str:
    """Describe which steps of the training a check does not cover."""
    gaps = find_uncovered(golden) if golden else []
    if len(gaps) > _MOST_GAPS:
        gaps = [*gaps[: _MOST_GAPS - 2], f"{len(gaps) - _MOST_GAPS + 1} more stretches", gaps[-1]]
    return f"not covered by a segment: steps {', '.join(gaps)}" if gaps else ""


def _describe_savings(test: GoldenTestReport) -> str:
    if not test.saved_steps:
        return ""
    count = sum(run.stopped_early is not None for segment in test.segments for run in segment.runs)
    stopped, steps = formatting.render_count(count, "run"), formatting.render_count(test.saved_steps, "step")
    return f"{stopped} stopped early: {steps} saved, about {formatting.render_duration(test.saved_s)}"


def _describe_extent(test: GoldenTestReport, mode: str) -> str:
    """Describe what was compared: `3 segments, 540 values compared`."""
    count = len(test.segments) or len(test.golden.segments if test.golden else ())
    verb = "compared" if mode == "check" else "recorded"
    values = formatting.render_count(test.verdict.comparisons, "value")
    same = f"{formatting.render_count(len(test.same), 'configuration')}, " if test.same else ""
    return f"{formatting.render_count(count, 'segment')}, {same}{values} {verb}"


def _describe_differences(test: GoldenTestReport) -> list[str]:
    """Describe each difference in one line."""
    return [f"differs from the recording: {each}" for each in test.differs]


def _list_runs(test: GoldenTestReport) -> list[SegmentRun]:
    """List the runs of a test, with the runs of the configurations that must agree."""
    segments = [*test.segments, *(segment for each in test.same for segment in each.segments)]
    return [run for segment in segments for run in segment.runs]


def choose_rows(rows: Sequence[ReportRow]) -> Sequence[ReportRow]:
    """Choose from many rows the rows that did not pass, and those of the first and the last segment that passed."""
    passed = [row for row in rows if row.kind is VerdictKind.PASS]
    if len(rows) <= _MOST_ROWS or not passed:
        return rows
    ends = {passed[0].segment, passed[-1].segment}
    return [row for row in rows if row.kind is not VerdictKind.PASS or row.segment in ends]


def _build_page_table(rows: Sequence[ReportRow], good: str) -> doc.TableBlock:
    """Build the table of a page. `good`: the word instead of PASS for a gathering, which judges nothing."""
    notes = []
    rows = sorted(rows, key=lambda row: SEVERITY.index(row.kind))  # the worst verdicts first
    for row in rows:
        worst = [each for each in row.findings if each.kind is not VerdictKind.PASS] or list(row.findings)
        notes.append([row.describe(each) for each in worst[:_MOST_REASONS]])
    return doc.TableBlock(build_table(rows, good), notes, [str(row.kind) for row in rows])


def build_table(rows: Sequence[ReportRow], good: str = "") -> Table:
    """Build the table, without the column of intervals if no row has one."""
    left = (Column("segment", "number"), Column("metric"), Column("rule"), Column("verdict", "state"))
    right = tuple(Column(name, align="right") for name in ("effect", "interval", "step"))
    columns = (*left, *right, Column("values", "number"))
    cells = [_build_cells(row, good) for row in rows]
    kept = [at for at, column in enumerate(columns) if column.name != "interval" or any(row[at] for row in cells)]
    return Table(tuple(columns[at] for at in kept), [[row[at] for at in kept] for row in cells])


def _build_cells(row: ReportRow, good: str) -> list[Any]:
    finding = row.finding
    step = finding.step if finding and row.kind is not VerdictKind.PASS else None
    kind = str(row.kind)
    return [
        row.segment,
        row.metric,
        render_rule(row.rule) or None,
        doc.Span(good, kind) if good and row.kind is VerdictKind.PASS else kind,
        render_percent(finding.effect if finding else None) or None,
        render_interval(finding.interval if finding else None) or None,
        render_step(step) or None,
        row.comparisons,
    ]


def _build_page(report: GoldenReport, test: GoldenTestReport) -> Iterator[doc.Block]:
    if report.mode == "gather" and test.golden:
        yield from build_recording_charts(test.golden)
    elif any(segment.metrics for segment in test.segments):
        yield LEGEND
        yield from build_check_charts(test)
    yield doc.Details("Provenance", (doc.Facts(list(_list_origin(test))),))
    if runs := [*test.runs, *_list_runs(test)]:
        columns = (Column("run"), Column("state", "state"), Column("took", "duration"), Column("note"))
        rows = []
        for run in runs:
            note = "; ".join(text for text in (run.reason, run.stopped_early) if text) or None
            rows.append([doc.Span(run.dir, "code"), str(run.state), run.elapsed_s, note])
        yield doc.Details(formatting.render_count(len(runs), "run"), (doc.TableBlock(Table(columns, rows)),))


def _list_origin(test: GoldenTestReport) -> Iterator[tuple[str, str]]:
    yield "manifest", test.manifest
    yield from (("note", note) for note in test.notes)
    if test.golden is None:
        return
    for key, value in test.golden.provenance.items():
        if key != "files" and value not in (None, "", {}, [], ()):
            yield key.replace("_", " "), _flatten(value)
    for item in test.golden.history:
        yield "rebased", _flatten({key: item.get(key) for key in ("at", "reason") if item.get(key)})


def _flatten(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_flatten(each)}" for key, each in value.items() if each not in (None, "", {}, []))
    if isinstance(value, (list, tuple)):
        return ", ".join(_flatten(each) for each in value)
    return "yes" if value is True else "no" if value is False else str(value)


def _build_suite(test: GoldenTestReport, allow_changed: bool) -> doc.Suite:
    """Build the suite. A metric that an early stop left undecided has no case; the metric that failed has one."""
    properties: list[tuple[str, object]] = [
        ("manifest", test.manifest),
        ("verdict", test.verdict.kind),
        ("comparisons", test.verdict.comparisons),
        ("saved_steps", test.saved_steps),
    ]
    origin = test.golden.provenance if test.golden else {}
    names = ("gathered_at", "commit", "host", "config_hash")
    properties += [(f"golden.{name}", origin[name]) for name in names if origin.get(name)]
    return doc.Suite(
        test.test,
        [_build_case(test, row, allow_changed) for row in build_test_rows(test)],
        properties,
        sum(run.elapsed_s or 0.0 for run in _list_runs(test)),
        "\n".join([*(f"warning: {text}" for text in test.warnings), *_describe_differences(test), *test.notes]),
    )


def _build_case(test: GoldenTestReport, row: ReportRow, allow_changed: bool) -> doc.Case:
    excuse = ALLOWED if allow_changed and row.kind is VerdictKind.CHANGED else ""
    segment = "golden" if row.segment is None else f"segment {row.segment}"
    text = "\n".join(f"{each.kind} {each.subject}: {each.message}" for each in row.findings)
    return doc.Case(
        ".".join(filter(None, (test.test, row.configuration, segment))),
        row.metric,
        row.kind,
        row.describe(row.finding) if row.finding else "",
        "" if excuse else text,
        _case_seconds(test, row),
        list(_describe_case(row)),
        excuse=excuse,
    )


def _case_seconds(test: GoldenTestReport, row: ReportRow) -> float:
    """Return a case's time. A segment's runs serve all its metrics: their time is counted once, in the first case."""
    same = [segment for each in test.same if each.name == row.configuration for segment in each.segments]
    for segment in same if row.configuration else test.segments:
        if segment.start_step == row.segment:
            first = segment.metrics[0].metric if segment.metrics else RUN
            return sum(run.elapsed_s or 0.0 for run in segment.runs) if row.metric == first else 0.0
    return 0.0


def _describe_case(row: ReportRow) -> Iterator[tuple[str, object]]:
    """`effect`: the difference of `value` from `expected`, as a fraction of `expected`; both are means over the window
    with the largest effect, or values of the worst step if steps are compared. `step`: where a difference begins."""
    yield "verdict", row.kind
    if row.rule is not None:
        yield "rule", render_rule(row.rule)
    yield "comparisons", row.comparisons
    if (finding := row.finding) is not None:
        if name := name_finding(finding):
            yield "label", name
        named = (("effect", finding.effect), ("value", finding.value), ("expected", finding.expected))
        yield from ((name, value) for name, value in (*named, ("step", build_step(finding.step))) if value is not None)
        if finding.interval is not None:
            yield from zip(("interval_low", "interval_high"), finding.interval, strict=True)
    if row.noise is not None:
        yield "noise", row.noise


def build_facts(report: GoldenReport, allow_changed: bool = False) -> dict[str, Any]:
    """Return everything in the report, for JSON."""
    return {
        "mode": report.mode,
        "source": report.source,
        "verdict": str(report.kind),
        "exit_code": int(report.exit_code(allow_changed)),
        "elapsed_s": report.elapsed_s,
        "interrupted": report.interrupted,
        "problem": report.problem,
        "tests": [_build_test_facts(test) for test in report.tests],
    }


def _build_test_facts(test: GoldenTestReport) -> dict[str, Any]:
    return {
        "test": test.test,
        "manifest": test.manifest,
        **_build_verdict_facts(test.verdict),
        "saved_steps": test.saved_steps,
        "saved_s": test.saved_s,
        "notes": list(test.notes),
        "warnings": list(test.warnings),
        "differs": list(test.differs),
        "golden": _build_recording_facts(test.golden) if test.golden else None,
        "segments": [_build_segment_facts(segment) for segment in test.segments],
        "same": [
            {
                "configuration": each.name,
                "changes": each.title,
                **_build_verdict_facts(each.verdict),
                "segments": [_build_segment_facts(segment) for segment in each.segments],
            }
            for each in test.same
        ],
        "runs": [asdict(run) for run in test.runs],
    }


def _build_segment_facts(segment: SegmentReport) -> dict[str, Any]:
    return {
        "start_step": segment.start_step,
        "checkpoint": segment.checkpoint or None,
        **_build_verdict_facts(segment.verdict),
        "metrics": [_build_metric_facts(metric) for metric in segment.metrics],
        "runs": [asdict(run) for run in segment.runs],
    }


def _build_verdict_facts(verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": str(verdict.kind),
        "comparisons": verdict.comparisons,
        "findings": [{**asdict(each), "step": build_step(each.step)} for each in verdict.findings],
    }


def _build_recording_facts(golden: Golden) -> dict[str, Any]:
    return {
        "version": golden.version,
        "complete": golden.complete,
        "segments": [segment.start_step for segment in golden.segments],
        "steps_per_segment": golden.steps_per_segment,
        "not_covered": find_uncovered(golden),
        "recordings": golden.recordings,
        "noise": dict(golden.noise),
        "provenance": dict(golden.provenance),
        "history": [dict(item) for item in golden.history],
    }


def _build_metric_facts(metric: MetricReport) -> dict[str, Any]:
    rule = {key: value for key, value in asdict(metric.rule).items() if value not in (None, ()) and key != "position"}
    return {
        "metric": metric.metric,
        "rule": rule,
        "noise": metric.noise,
        **_build_verdict_facts(metric.verdict),
        **{
            side: {
                label: [{"steps": list(track.steps), "values": list(track.values)} for track in found]
                for label, found in tracks.items()
            }
            for side, tracks in (("golden", metric.golden), ("check", metric.check))
        },
    }


def build_matrix(test: GoldenTestReport, rows: Sequence[ReportRow]) -> doc.Section:
    """Show the worst verdict of several segments in a cell, and on a page the reasons of bad verdicts below the row."""
    metrics = list(dict.fromkeys(row.metric for row in rows if row.rule is not None))
    columns = (Column("configuration"), *(Column(name, "state") for name in metrics), Column("changes", rank=1))
    groups = [("", "the command as it is"), *((each.name, each.title) for each in test.same)]
    cells, notes, roles = [], [], []
    for name, title in groups:
        mine = [row for row in rows if row.configuration == name and row.segment is not None]
        cells.append([name or "canonical", *(_build_cell(mine, metric) for metric in metrics), title])
        bad = sorted((row for row in mine if name and row.kind is not VerdictKind.PASS), key=rank_row)
        reasons = [(row, row.finding.message.splitlines() if row.finding else ()) for row in bad[:_MOST_REASONS]]
        notes.append([f"segment {row.segment} {row.metric}: {'; '.join(lines)}" for row, lines in reasons])
        roles.append(str(min((row.kind for row in mine), key=SEVERITY.index, default=VerdictKind.ERROR)))
    return doc.Section((doc.TableBlock(Table(columns, cells), notes, roles),), "Configurations that must agree")


def _build_cell(rows: Sequence[ReportRow], metric: str) -> doc.Span | None:
    """Return the worst verdict of a metric, with the largest effect of that verdict."""
    found = [row for row in rows if row.metric == metric] or [row for row in rows if row.metric == RUN]
    if not found:
        return None
    worst = min(found, key=rank_row)
    effect = render_percent(worst.finding.effect if worst.finding else None)
    return doc.Span(f"{worst.kind} {effect}".strip(), str(worst.kind))


def rank_row(row: ReportRow) -> tuple[int, float]:
    """Rank the worst verdict first, and of equal verdicts the largest effect."""
    effect = (row.finding.effect if row.finding else None) or 0.0
    return SEVERITY.index(row.kind), 0.0 if math.isnan(effect) else -abs(effect)
