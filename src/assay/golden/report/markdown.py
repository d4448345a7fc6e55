"""A report as Markdown: for a comment under a change, or the summary page of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from assay.golden.report.terminal import (
    build_table,
    build_test_rows,
    describe_extent,
    describe_golden,
    describe_outcome,
    describe_savings,
)
from assay.golden.values import GoldenReport, GoldenTestReport
from assay.show import formatting
from assay.show.table import render_markdown as render_table
from assay.values.verdict import VerdictKind

_MARKS = {
    VerdictKind.PASS: "✅",
    VerdictKind.FAIL: "❌",
    VerdictKind.ERROR: "❌",
    VerdictKind.INCONCLUSIVE: "⚠️",
    VerdictKind.CHANGED: "⚠️",
}
_MOST_FINDINGS = 20


def render_markdown(report: GoldenReport) -> str:
    blocks = [block for test in report.tests for block in _render_test(report, test)]
    return "\n\n".join(blocks) + "\n"


def _render_test(report: GoldenReport, test: GoldenTestReport) -> Iterator[str]:
    kind = test.verdict.kind
    yield f"## {_MARKS[kind]} {formatting.escape_markdown(test.test)}: {describe_outcome(report, test)}"
    took = f" in {formatting.render_duration(report.elapsed_s)}" if report.elapsed_s else ""
    savings = describe_savings(test)
    yield f"{describe_extent(test, report.mode)}{took}{'; ' + savings if savings else ''}"
    rows = build_test_rows(test)
    if test.segments:
        yield render_table(build_table(rows)).rstrip("\n")
    bad = [(row, each) for row in rows for each in row.findings if each.kind is not VerdictKind.PASS]
    if bad:
        escape = formatting.escape_markdown
        lines = [
            f"- **{each.kind}** {escape(row.place_of(each))}: {escape(each.message)}"
            for row, each in bad[:_MOST_FINDINGS]
        ]
        more = [f"- and {len(bad) - _MOST_FINDINGS} more"] if len(bad) > _MOST_FINDINGS else []
        yield "\n".join([*lines, *more])
    if test.warnings:
        yield "\n".join(f"- warning: {formatting.escape_markdown(text)}" for text in test.warnings)
    if test.golden is not None:
        yield f"Golden: {formatting.escape_markdown(', '.join(describe_golden(test.golden)))}"
