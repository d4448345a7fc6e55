"""Builds documents of executions of benchmarks, and parts that the documents of all benchmark reports share."""

from __future__ import annotations

import math
import os
import shlex
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.bench.flow.commits import CommitsReport
from assay.bench.judge.trials import merge_reasons
from assay.bench.values.execution import CPU_TIME, RANGE, BenchExecution, BenchReport, group_by, is_size, order_metrics
from assay.show.chart import build_log_ticks, build_ticks
from assay.show.formatting import clean, render_count, render_duration, render_number, render_size
from assay.show.junit import ALLOWED
from assay.system.fast_dataclasses import asdict
from assay.values import layout
from assay.values.document import Block, Case, Document, Heading, Notes, Only, Span, Suite, TableBlock, Text
from assay.values.table import Column, Table
from assay.values.verdict import Finding, Verdict, VerdictKind

Cases = Sequence[tuple[str, str, Verdict]]  # group (a method), name (a metric), its verdict

_MOST_METRICS = 6
_STEPS = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6))
_BEYOND_STEPS = 1e18


# ---------------------------------------------------------------- executions


def build_run_document(report: BenchReport) -> Document:
    """Build a table with the medians and spreads of each method over its trials, then all findings and notes."""
    groups = group_executions(report.executions)
    notes = Notes([*_describe_all(report, groups), *report.notes])
    blocks: list[Block] = [TableBlock(build_run_table(groups), hint="--json has them"), notes]
    return build_bench_document("assay bench run", build_run_cases(report), blocks, build_report_facts(report))


def build_commits_document(found: CommitsReport, root: str | None) -> Document:
    """Build a table with a row for each commit, oldest first, and with results if there is only one benchmark."""
    report = found.report
    groups = group_executions(report.executions)
    names = _choose_metrics([e for e in report.executions if not e.void]) if len(groups) == 1 else []
    columns = (Column("commit"), Column("subject"), Column("ok", align="right"), *build_figure_columns(names))
    rows = []
    for outcome in found.outcomes:
        ended = [each for each in outcome.executions if not each.void]
        good = f"{sum(each.succeeded for each in ended)}/{len(ended)}"
        good = good if ended or not (outcome.known or outcome.problem) else "-"
        cells = [_render_cell(name, [e for e in ended if name in e.result.numbers]) for name in names]
        rows.append([outcome.commit.short, outcome.commit.subject, good, *cells])
    lines = [f"skipped: {outcome.problem}" for outcome in found.outcomes if outcome.problem]
    lines += _describe_all(report, groups)
    known = sum(outcome.known for outcome in found.outcomes)
    lines += [f"{render_count(known, 'execution')} of earlier calls: not repeated"] if known else []
    is_history = known + sum(each.result.is_measured for each in report.executions) > 1
    words = ["assay", "bench", "history", "--changes", *(["--root", root] if root else [])]
    lines += [f"what changed: `{shlex.join(words)}`"] if is_history else []
    commits = [
        {**asdict(each.commit), "executions": len(each.executions), "known": each.known, "problem": each.problem}
        for each in found.outcomes
    ]
    facts = {**build_report_facts(report), "exit_code": int(found.exit_code), "commits": commits}
    blocks: list[Block] = [TableBlock(Table(columns, rows), hint="--json has them"), Notes(lines)]
    return build_bench_document(f"assay bench run --commits {found.span}", build_run_cases(report), blocks, facts)


def _describe_all(report: BenchReport, groups: Mapping[tuple[str, str], Sequence[BenchExecution]]) -> Iterator[str]:
    for (method, label), found in groups.items():
        yield from _describe_trouble(method, label, found)
    taken = [each for each in report.executions if each.result.succeeded and not each.refused]
    merged = merge_reasons((each.trial, reason) for each in taken for reason in each.contaminated)
    for reason, trials in merged.items():  # each reason once for all benchmarks, since a suite has hundreds of them
        yield f"contaminated: {reason} ({len(trials)} of {render_count(len(report.executions), 'execution')})"
    yield from _advise_disturbed([each for each in report.executions if each.contaminated and each.result.is_measured])
    # files to read: the log of the first failure of each benchmark, and every trace
    runs = report.executions
    failed = {e.method: e for e in reversed(runs) if e.log and not (e.result.is_measured or e.void)}
    yield from (f"log of {e.method}: {_locate(e, e.log)}" for e in reversed(failed.values()))
    yield from (f"profile of {e.method}: {_locate(e, path)}" for e in runs for path in e.profiles)


def _advise_disturbed(spoilt: Sequence[BenchExecution]) -> Iterator[str]:
    """Describe which metrics were disturbed and do not count, and the command that judges CPU time instead."""
    names = dict.fromkeys(name for each in spoilt for name in each.numbers if each.find_disturbance(name))
    if not names:
        return
    what = "left out of histories and comparisons: run again when the machine is quiet, or take them with --all"
    yield f"in brackets: disturbed results of {', '.join(names)}, which are {what}"
    counting = [each for each in spoilt if CPU_TIME in each.numbers and not each.find_disturbance(CPU_TIME)]
    methods = [method for method, count in Counter(each.method for each in counting).items() if count > 1]
    if methods:  # a single execution is not a history
        root = os.path.relpath(os.path.dirname(os.path.dirname(counting[0].run_dir)))
        where = [] if root == layout.DEFAULT_ROOT else ["--root", root]
        words = ["assay", "bench", "history", CPU_TIME, *(methods if len(methods) == 1 else []), *where]
        yield f"cpu_time counts: `{shlex.join(words)}`"


def render_execution(execution: BenchExecution, number: int, total: int) -> str:
    """Render the line of an execution that has ended: its first result, or its problem."""
    label = f" {execution.label}" if execution.label else ""
    name = f"[{number:{len(str(total))}}/{total}] {execution.method}{label} trial {execution.trial}"
    if execution.result.findings:
        finding = execution.result.findings[0]
        return clean(f"{name}: {execution.void or finding.kind}: {finding.message}")
    if execution.result.skipped:
        return clean(f"{name}: skipped: {execution.result.skipped}")
    figures = execution.result.numbers
    first = next(iter(order_metrics(figures)), None)
    figure = f"{first} {render_values(first, [figures[first]])}" if first else "it reported nothing"
    if first and CPU_TIME in figures and execution.find_disturbance(first) and not execution.find_disturbance(CPU_TIME):
        figure += f", {CPU_TIME} {render_values(CPU_TIME, [figures[CPU_TIME]])}"
    word = "refused" if execution.refused else "contaminated"
    trouble = "".join(f" ({word}: {reason})" for reason in execution.contaminated[:1])
    return clean(f"{name}: {figure}{trouble}")


def group_executions(executions: Sequence[BenchExecution]) -> dict[tuple[str, str], list[BenchExecution]]:
    return group_by(executions, lambda each: (each.method, each.label or ""))


def build_run_table(groups: Mapping[tuple[str, str], Sequence[BenchExecution]]) -> Table:
    every = [execution for found in groups.values() for execution in found]
    names = _choose_metrics([execution for execution in every if not execution.void])
    has_labels, has_gpu = any(label for _, label in groups), any(each.peaks.gpu_memory_bytes for each in every)
    columns = [Column("method", cut="left"), *([Column("label")] if has_labels else []), Column("ok")]
    columns += [*build_figure_columns(names), Column("peak memory", "size", key="max_rss")]
    columns += [Column("peak GPU memory", "size", key="gpu_memory_bytes")] if has_gpu else []
    rows = []
    for (method, label), found in groups.items():
        ended = [execution for execution in found if not execution.void]
        good = sum(execution.succeeded for execution in ended)
        cells = [_render_cell(name, [e for e in ended if name in e.result.numbers]) for name in names]
        sizes = [max(each.peaks.max_rss for each in found) or None]
        sizes += [max(each.peaks.gpu_memory_bytes or 0 for each in found) or None] if has_gpu else []
        rows.append([method, *([label] if has_labels else []), f"{good}/{len(ended)}", *cells, *sizes])
    return Table(tuple(columns), rows)


def _render_cell(name: str, ended: Sequence[BenchExecution]) -> str | Span | None:
    doubted = [bool(each.find_disturbance(name)) for each in ended]
    values, aside = (
        [each.result.numbers[name] for each, is_doubted in zip(ended, doubted, strict=True) if is_doubted is wanted]
        for wanted in (False, True)
    )
    return render_figure(name, values, aside)


def build_figure_columns(names: Sequence[str]) -> list[Column]:
    """Build columns that are never cut: a narrow terminal omits the last columns, but never the first one."""
    return [Column(name, "text", "right", rank=rank, cut="never") for rank, name in enumerate(names)]


def _choose_metrics(executions: Sequence[BenchExecution]) -> list[str]:
    return order_metrics(name for execution in executions for name in execution.result.numbers)[:_MOST_METRICS]


def render_values(name: str, values: Sequence[float]) -> str | None:
    """Render the median, and half the distance between the quartiles in percent if there are enough values."""
    if not values:
        return None
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return str(values[0])
    values = finite
    middle = 2 * statistics.median(value / 2 for value in values)  # the sum of two large values is infinite
    text = render_duration(middle) if _is_time(name) and middle >= 100 else _render_value(name, middle)
    if len(values) < 3 or not middle:
        return text
    low, _, high = statistics.quantiles([value / middle for value in values], n=4, method="inclusive")
    return f"{text} ±{abs(50 * (high - low)):.1f}%"


def render_figure(name: str, values: Sequence[float], aside: Sequence[float]) -> str | Span | None:
    """Render the values that count and their number; if none counts, the disturbed values in grey and in brackets."""
    if values or not aside:
        text = render_values(name, values)
        return f"{text} ({len(values)} of {len(values) + len(aside)})" if aside else text
    return Span(f"({render_values(name, aside)})", "soft")


def build_value_ticks(metric: str, values: Sequence[float], *, is_log: bool) -> list[tuple[float, str]] | None:
    """Build ticks in the unit of the metric."""
    low, high = min(values), max(values)
    if is_log and high > low:
        return [(math.log10(tick), render_values(metric, [tick]) or "") for tick in build_log_ticks(low, high, 5)]
    ticks = build_ticks(low, high, 4)
    texts = [render_values(metric, [tick]) or "" for tick in ticks]
    places = [math.log10(tick) if is_log else tick for tick in ticks]
    return None if len(set(texts)) < len(texts) else list(zip(places, texts, strict=True))


def _is_time(name: str) -> bool:
    """Return whether a metric is a time, also if its name has a prefix: `part1.wall_time`."""
    return name.rpartition(".")[2] in ("wall_time", "cpu_time")


def _render_value(name: str, value: float) -> str:
    if is_size(name):
        return render_size(value)
    if not _is_time(name) or value <= 0:  # from a million on numbers get a unit: 62081446542 is hard to read
        unit, size = next((step for step in _STEPS if step[1] <= abs(value) < _BEYOND_STEPS), ("", 1.0))
        return f"{render_number(value / size, 4)} {unit}".rstrip()
    unit, size = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)) if value >= s), ("ns", 1e-9))
    return f"{render_number(value / size, 4)} {unit}"


def _locate(execution: BenchExecution, path: str) -> str:
    """Return a path in the form in which a user in this folder would write it."""
    full = os.path.join(execution.run_dir, path)
    return min(os.path.relpath(full), full, key=len)


def _describe_trouble(method: str, label: str, found: Sequence[BenchExecution]) -> list[str]:
    """Build a line for each finding and note, with the trials that have it."""
    lines: dict[str, list[int]] = {}
    for execution in found:
        for finding in execution.result.findings:
            text = f"{execution.void or finding.kind} {method}: {finding.message}"
            lines.setdefault(text, []).append(execution.trial)
        if execution.result.skipped:
            lines.setdefault(f"skipped {method}: {execution.result.skipped}", []).append(execution.trial)
        for note in execution.notes:
            lines.setdefault(f"{method}: {note}", []).append(execution.trial)
    refused = [e for e in found if e.result.succeeded and e.refused]  # a failed execution has no result to refuse
    merged = merge_reasons((e.trial, reason) for e in refused for reason in e.contaminated)
    lines |= {f"REFUSED {method}: {reason}": trials for reason, trials in merged.items()}
    suffix = f" ({label})" if label else ""
    if any(RANGE in execution.extra for execution in found):  # trials of different commits have the same numbers
        return [f"{text}{suffix} ({len(trials)} of {len(found)} executions)" for text, trials in lines.items()]
    where = [f" (trial {', '.join(map(str, trials))})" if len(found) > 1 else "" for trials in lines.values()]
    return [f"{text}{suffix}{trials}" for text, trials in zip(lines, where, strict=True)]


def build_report_facts(report: BenchReport) -> dict[str, Any]:
    return {
        "exit_code": int(report.exit_code),
        "interrupted": report.interrupted,
        "problem": report.problem,
        "executions": [
            {**asdict(execution), "numbers": execution.numbers, "succeeded": execution.succeeded}
            for execution in report.executions
        ],
    }


def build_run_cases(report: BenchReport) -> list[tuple[str, str, Verdict]]:
    cases = []
    for execution in report.executions:
        name = f"trial {execution.trial}" + (f" {execution.label}" if execution.label else "")
        findings = list(execution.result.findings)
        if execution.void:
            why = execution.result.skipped or "; ".join(finding.message for finding in findings)
            message = f"{execution.void}: {why}" if why else execution.void
            findings = [Finding(VerdictKind.INCONCLUSIVE, execution.method, message)]
        elif execution.refused:
            findings.append(Finding(VerdictKind.INCONCLUSIVE, execution.method, "; ".join(execution.contaminated)))
        cases.append((execution.method, name, Verdict.of(findings, 1)))
    return cases


# ---------------------------------------------------------------- documents for a pipeline


def build_bench_document(
    title: str, cases: Cases, blocks: Sequence[Block], facts: Any, *, allow_changed: bool = False
) -> Document:
    """Build a document. `blocks` are for a terminal and a page; Markdown and JUnit show the cases for a pipeline."""
    suite = []
    for group, name, verdict in cases:
        bad = [finding for finding in verdict.findings if finding.kind is not VerdictKind.PASS]
        details = "\n".join(f"{finding.kind} {finding.subject}: {finding.message}" for finding in bad)
        excuse = ALLOWED if allow_changed and verdict.kind is VerdictKind.CHANGED else ""
        suite.append(Case(group, name, verdict.kind, bad[0].message if bad else "", details, excuse=excuse))
    return Document(
        title,
        (Only(("markdown", "html"), _build_case_blocks(title, cases)), Only(("terminal", "html"), blocks)),
        suites=[Suite(title, suite)],
        suites_name="assay bench",
        facts=facts,
    )


def _build_case_blocks(title: str, cases: Cases) -> list[Block]:
    """Build a heading, the number of cases that passed, and a table of the findings that are not PASS."""
    kinds = [verdict.kind for _, _, verdict in cases]
    worst = Verdict.of([Finding(kind, "", "") for kind in kinds], len(kinds)).kind
    passed = sum(kind is VerdictKind.PASS for kind in kinds)
    columns = (Column("verdict", "state"), Column("benchmark"), Column("metric"), Column("what"), Column("effect"))
    rows = [
        [str(found.kind), group, name, found.message, render_effect(found)]
        for group, name, verdict in cases
        for found in verdict.findings
        if found.kind is not VerdictKind.PASS
    ]
    return [Heading(title, worst), Text(f"{len(cases)} checked, {passed} passed."), TableBlock(Table(columns, rows))]


def render_effect(finding: Finding) -> str | None:
    if finding.effect is None:
        return None
    text = f"{finding.effect:+.1%}"
    return f"{text} [{finding.interval[0]:+.1%}, {finding.interval[1]:+.1%}]" if finding.interval else text


def build_cases_facts(cases: Cases) -> list[dict[str, Any]]:
    return [
        {"benchmark": group, "metric": name, "verdict": str(verdict.kind), "findings": [*map(asdict, verdict.findings)]}
        for group, name, verdict in cases
    ]
