"""What checks find of injected faults, as a document."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from assay.golden.report.rows import choose_finding, render_percent, render_step
from assay.show.table import render_json
from assay.values.document import Block, Document, Section, TableBlock, Text
from assay.values.table import Column, Table
from assay.values.verdict import VerdictKind

if TYPE_CHECKING:
    from assay.golden.flow.selftest import SelftestReport

_MOST_FINDINGS = 5


def build_document(reports: Sequence[SelftestReport]) -> Document:
    sections = [Section(list(_build_blocks(report))) for report in reports]
    return Document("assay golden selftest", sections, facts=[_build_facts(report) for report in reports])


def _build_blocks(report: SelftestReport) -> Iterator[Block]:
    from assay.golden.flow.selftest import NO_EFFECT

    yield Section((TableBlock(build_table(report), numbers_names=True),))
    score = f"{report.caught} of {len(report.injected)} faults would be caught"
    yield Text(f"{report.test}, segment at {report.start_step}: {score}")
    for each in report.injected:
        if each.is_idle:
            yield Text(f"{NO_EFFECT}: {each.fault.title}: does the program read it?")
    control = report.control.verdict
    if control.kind is not VerdictKind.PASS:
        yield Text(f"but without any fault the check is {control.kind} already, so this proves nothing")
        bad = [each for each in control.findings[:_MOST_FINDINGS] if each.kind is not VerdictKind.PASS]
        yield from (Text(each.message, indent=1) for each in bad)
    for each in report.injected:
        if each.report.verdict.kind is VerdictKind.ERROR:
            found = choose_finding(each.report.verdict.findings)
            yield Text(f"not tried: {each.fault.title}: {found.message.splitlines()[0] if found else ''}")
    if report.problem:
        yield Text(f"assay: {report.problem}")


def build_table(report: SelftestReport) -> Table:
    columns = (
        Column("fault"),
        Column("result"),
        Column("verdict", "state"),
        Column("by"),
        Column("effect", align="right"),
        Column("step", align="right"),
    )
    rows: list[list[Any]] = [["none", "control", str(report.control.verdict.kind), None, None, None]]
    for each in report.injected:
        verdicts = [(metric, choose_finding(metric.verdict.findings)) for metric in each.report.metrics]
        bad = [(metric.metric, found) for metric, found in verdicts if found and found.kind in ("FAIL", "CHANGED")]
        effect, step = (bad[0][1].effect, bad[0][1].step) if bad else (None, None)
        by = ", ".join(name for name, _ in bad)
        numbers = render_percent(effect) or None, render_step(step) or None
        rows.append([each.fault.title, each.word, str(each.report.verdict.kind), by or None, *numbers])
    return Table(columns, rows)


def _build_facts(report: SelftestReport) -> dict[str, Any]:
    return {
        "test": report.test,
        "segment": report.start_step,
        "control": str(report.control.verdict.kind),
        "caught": report.caught,
        "faults": json.loads(render_json(build_table(report)))[1:],
        "exit_code": int(report.exit_code),
        "elapsed_s": report.elapsed_s,
    }
