"""Benchmarks for people and machines: executions, comparisons and histories as text, Markdown, JUnit and JSON."""

from __future__ import annotations

import math
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree as ET

from assay.show.table import Column, Table, render_table
from assay.show.words import clean, render_duration, render_number, wrap
from assay.values.benchmark import BenchExecution, BenchReport
from assay.values.verdict import Finding, Verdict, VerdictKind

Cases = Sequence[tuple[str, str, Verdict]]  # group (a method), name (a metric), what was found

_MOST_METRICS = 6
_PERCENT = re.compile(r"(\d+)%")


# ---------------------------------------------------------------- executions


def render_bench_report(report: BenchReport, *, color: bool, width: int | None) -> str:
    """One row for each method: the median over its trials, and the spread; then everything that is to be said."""
    groups = group_executions(report.executions)
    text = render_table(build_run_table(groups), width=width, color=color) if groups else ""
    lines = [line for (method, label), found in groups.items() for line in _describe_trouble(method, label, found)]
    lines += _describe_files(report.executions)
    lines += list(report.notes)
    return text + "".join(f"{wrap(clean(line), width, '  ')}\n" for line in lines)


def render_execution(execution: BenchExecution, number: int, total: int) -> str:
    """One line when it has ended: its first figure, or what is wrong."""
    label = f" {execution.label}" if execution.label else ""
    name = f"[{number:{len(str(total))}}/{total}] {execution.method}{label} trial {execution.trial}"
    if execution.result.findings:
        finding = execution.result.findings[0]
        return clean(f"{name}: {finding.kind}: {finding.message}")
    figures = execution.result.numbers
    first = next((key for key in ("wall_time", "throughput", *figures) if key in figures), None)
    figure = f"{first} {render_values(first, [figures[first]])}" if first else "it reported nothing"
    word = "refused" if execution.refused else "contaminated"
    trouble = "".join(f" ({word}: {reason})" for reason in execution.contaminated[:1])
    return clean(f"{name}: {figure}{trouble}")


def group_executions(executions: Sequence[BenchExecution]) -> dict[tuple[str, str], list[BenchExecution]]:
    groups: dict[tuple[str, str], list[BenchExecution]] = {}
    for execution in executions:
        groups.setdefault((execution.method, execution.label or ""), []).append(execution)
    return groups


def build_run_table(groups: Mapping[tuple[str, str], Sequence[BenchExecution]]) -> Table:
    names = _choose_metrics([execution for found in groups.values() for execution in found])
    has_labels = any(label for _, label in groups)
    columns = [Column("method"), *([Column("label")] if has_labels else []), Column("ok")]
    columns += [Column(name, "text", "right") for name in names]
    columns += [Column("peak memory", "size", key="max_rss")]
    rows = []
    for (method, label), found in groups.items():
        good = sum(execution.succeeded for execution in found)
        values = [[e.result.numbers[name] for e in found if name in e.result.numbers] for name in names]
        cells = [render_values(name, each) for name, each in zip(names, values, strict=True)]
        peak = max(execution.peaks.max_rss for execution in found)
        rows.append([method, *([label] if has_labels else []), f"{good}/{len(found)}", *cells, peak or None])
    return Table(tuple(columns), rows)


def _choose_metrics(executions: Sequence[BenchExecution]) -> list[str]:
    names: dict[str, None] = {}
    for execution in executions:
        names.update(dict.fromkeys(execution.result.numbers))
    first = [name for name in ("wall_time", "throughput") if name in names]
    return [*first, *(name for name in names if name not in first)][:_MOST_METRICS]


def render_values(name: str, values: Sequence[float]) -> str | None:
    """The median, and half the distance of the quartiles in percent where there are enough."""
    if not values:
        return None
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return str(values[0])
    values = finite
    middle = statistics.median(values)
    text = (
        render_duration(middle) if name in ("wall_time", "cpu_time") and middle >= 100 else _render_value(name, middle)
    )
    if len(values) < 3 or not middle:
        return text
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{text} ±{abs(50 * (high - low) / middle):.1f}%"


def _render_value(name: str, value: float) -> str:
    if name not in ("wall_time", "cpu_time") or value <= 0:
        return render_number(value, 4)
    unit, size = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)) if value >= s), ("ns", 1e-9))
    return f"{render_number(value / size, 4)} {unit}"


def _describe_files(executions: Sequence[BenchExecution]) -> list[str]:
    """Where to read on: the log of the first failure of each benchmark, and every trace."""
    failed = {e.method: e for e in reversed(executions) if e.log and not e.result.is_figure}
    logs = [f"log of {e.method}: {_locate(e, e.log)}" for e in reversed(failed.values())]
    traces = [f"profile of {e.method}: {_locate(e, path)}" for e in executions for path in e.profiles]
    return logs + traces


def _locate(execution: BenchExecution, path: str) -> str:
    """As one would write it here."""
    full = os.path.join(execution.run_dir, path)
    return min(os.path.relpath(full), full, key=len)


def _describe_trouble(method: str, label: str, found: Sequence[BenchExecution]) -> list[str]:
    """A line for each thing that is to be said, with the trials that it is said of."""
    lines: dict[str, list[int]] = {}
    for execution in found:
        for finding in execution.result.findings:
            lines.setdefault(f"{finding.kind} {method}: {finding.message}", []).append(execution.trial)
    lines |= _describe_dirt(method, found)
    suffix = f" ({label})" if label else ""
    several = len(found) > 1
    return [
        text + suffix + (f" (trial {', '.join(map(str, trials))})" if several else "") for text, trials in lines.items()
    ]


def _describe_dirt(method: str, found: Sequence[BenchExecution]) -> dict[str, list[int]]:
    """Reasons that differ in a percentage alone are one; what failed has no figure that could be others' fault."""
    seen: dict[str, list[tuple[int, list[int]]]] = {}
    for execution in found:
        word = "REFUSED" if execution.refused else "contaminated"
        for reason in execution.contaminated if execution.result.succeeded else ():
            shares = [int(share) for share in _PERCENT.findall(reason)]
            seen.setdefault(f"{word} {method}: {_PERCENT.sub('…%', reason)}", []).append((execution.trial, shares))
    return {
        text.replace("…%", _render_range([share for _, shares in trials for share in shares])): [n for n, _ in trials]
        for text, trials in seen.items()
    }


def _render_range(shares: Sequence[int]) -> str:
    if not shares:
        return ""
    low, high = min(shares), max(shares)
    return f"{low}%" if low == high else f"{low} to {high}%"


def build_execution_facts(execution: BenchExecution) -> dict[str, Any]:
    facts = asdict(execution)
    facts["numbers"] = execution.result.numbers
    facts["succeeded"] = execution.succeeded
    return facts


def build_report_facts(report: BenchReport) -> dict[str, Any]:
    return {
        "exit_code": int(report.exit_code),
        "interrupted": report.interrupted,
        "problem": report.problem,
        "executions": [build_execution_facts(execution) for execution in report.executions],
    }


def build_run_cases(report: BenchReport) -> list[tuple[str, str, Verdict]]:
    cases = []
    for execution in report.executions:
        findings = list(execution.result.findings)
        if execution.refused:
            findings.append(Finding(VerdictKind.INCONCLUSIVE, execution.method, "; ".join(execution.contaminated)))
        name = f"trial {execution.trial}" + (f" {execution.label}" if execution.label else "")
        cases.append((execution.method, name, Verdict.of(findings, 1)))
    return cases


# ---------------------------------------------------------------- for a pipeline


def render_cases_markdown(title: str, cases: Cases) -> str:
    """A table of everything that is not a pass, worst first; all is well: one line."""
    bad = [
        (group, name, finding)
        for group, name, verdict in cases
        for finding in verdict.findings
        if finding.kind is not VerdictKind.PASS
    ]
    kinds = [verdict.kind for _, _, verdict in cases]
    worst = Verdict.of([Finding(kind, "", "") for kind in kinds], len(kinds)).kind
    lines = [
        f"## {title}: {worst}",
        "",
        f"{len(cases)} checked, {sum(kind is VerdictKind.PASS for kind in kinds)} passed.",
    ]
    if bad:
        lines += ["", "| verdict | benchmark | metric | what | effect |", "|---|---|---|---|---|"]
        lines += [
            f"| {f.kind} | {_cell(group)} | {_cell(name)} | {_cell(f.message)} | {_effect(f)} |"
            for group, name, f in bad
        ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return clean(text).replace("|", "\\|")


def _effect(finding: Finding) -> str:
    if finding.effect is None:
        return ""
    text = f"{finding.effect:+.1%}"
    return f"{text} [{finding.interval[0]:+.1%}, {finding.interval[1]:+.1%}]" if finding.interval else text


_ELEMENTS = {
    VerdictKind.FAIL: "failure",
    VerdictKind.INCONCLUSIVE: "failure",
    VerdictKind.CHANGED: "failure",
    VerdictKind.ERROR: "error",
}


def render_cases_junit(title: str, cases: Cases) -> str:
    """As for convergence: what is not shown to be good never leaves a pipeline green."""
    counts = {"tests": len(cases), "failures": 0, "errors": 0}
    suite = ET.Element("testsuite", {"name": _xml(title)})
    for group, name, verdict in cases:
        case = ET.SubElement(suite, "testcase", {"classname": _xml(group), "name": _xml(name)})
        if verdict.kind is VerdictKind.PASS:
            continue
        element = _ELEMENTS[verdict.kind]
        counts["errors" if element == "error" else "failures"] += 1
        bad = [finding for finding in verdict.findings if finding.kind is not VerdictKind.PASS]
        node = ET.SubElement(case, element, {"type": str(verdict.kind), "message": _xml(bad[0].message if bad else "")})
        node.text = _xml("\n".join(f"{finding.kind} {finding.subject}: {finding.message}" for finding in bad))
    for name, count in counts.items():
        suite.set(name, str(count))
    top = ET.Element("testsuites", {"name": "assay bench", **{name: str(count) for name, count in counts.items()}})
    top.append(suite)
    ET.indent(top)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(top, encoding="unicode") + "\n"


def _xml(text: str) -> str:
    """XML has no place for control characters, nor for the halves of a pair."""
    return "".join(
        char
        if char in "\t\n\r"
        or (ord(char) >= 0x20 and not 0xD800 <= ord(char) <= 0xDFFF and ord(char) not in (0xFFFE, 0xFFFF))
        else f"\\x{ord(char):02x}"
        for char in text
    )


def build_cases_facts(cases: Cases) -> list[dict[str, Any]]:
    return [
        {
            "benchmark": group,
            "metric": name,
            "verdict": str(verdict.kind),
            "findings": [asdict(found) for found in verdict.findings],
        }
        for group, name, verdict in cases
    ]
