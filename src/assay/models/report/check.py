"""The report of a model check as a document: for a terminal, Markdown, a page, JUnit and JSON."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from assay.models.report import summary
from assay.models.values.model import WRONG, CaseReport, ModelReport, Step, StepOutcome
from assay.models.values.tensors import OTHER_LARGEST
from assay.show import formatting
from assay.system.fast_dataclasses import asdict
from assay.values.document import (
    Block,
    Case,
    Code,
    Commands,
    Content,
    Details,
    Document,
    Facts,
    Findings,
    Heading,
    Legend,
    Notes,
    Only,
    Section,
    Span,
    Suite,
    TableBlock,
    Text,
)
from assay.values.table import Column, Table
from assay.values.verdict import Finding, VerdictKind

CASES = "Cases"  # the title of the table on a page
_MOST_ROWS = 60  # a longer list leaves out sequences of correct layers
_NEIGHBOURS = 2  # correct layers that are shown around an incorrect one
_NAMED = ("layer", "op", "outcome")  # columns that are never omitted
_IN_FULL = 3  # mismatches and failures that a terminal shows in full
_TAIL_LINES = {"terminal": 8, "markdown": 40, "html": 200}  # lines of a tool's output, by form
_MOST_FINDINGS = 5  # findings of one case
_VERBS = {VerdictKind.INCONCLUSIVE: "is not decided", VerdictKind.ERROR: "has no result"}


def render_case_line(case: CaseReport) -> str:
    """Render the line of a log: `mismatch m_layer_Conv_3 error 0.41, compile 120 ms, run 0.3 ms: y: …`."""
    metrics = summary.build_case_metrics(case)
    error = metrics.accumulated if case.layer is None else metrics.local
    numbers = [
        f"{name} {text}{unit}"
        for name, text, unit in (
            ("error", summary.render_error(error), ""),
            ("compile", summary.render_ms(metrics.compile_s), " ms"),
            ("run", summary.render_ms(metrics.run_s), " ms"),
        )
        if text is not None
    ]
    bad = summary.find_main_finding(case)
    why = f": {formatting.clean(summary.describe_finding(bad, case))}" if bad else ""
    return f"{case.outcome:<14} {formatting.clean(case.name)}  {', '.join(numbers)}".rstrip() + why


def build_document(report: ModelReport, *, every: bool = False) -> Document:
    """Build the document of a report; with `every`, the terminal's table omits no layer."""
    return Document(
        title=f"{report.verdict.kind} {summary.name_subject(report)}",
        blocks=(
            Only(("terminal",), list(_build_terminal(report, every))),
            Only(("markdown",), list(_build_markdown(report))),
            Only(("html",), list(_build_page(report))),
        ),
        suites=(_build_suite(report),),
        suites_name="assay model",
        seconds=report.elapsed_s,
        facts=build_model_facts(report),
    )


def _build_terminal(report: ModelReport, every: bool) -> Iterator[Block]:
    """Build the terminal's report: the answer, the table, the failures, what to do next, and the tools."""
    kind, sentence = str(report.verdict.kind), summary.describe_outcome(report)
    around = summary.describe_surroundings(report)
    head = Text((Span(kind, kind), f" {summary.name_subject(report)}: {sentence}"))
    yield Section([head])
    shown = list(report.cases) if every else choose_cases(report)
    yield Section([_build_table_block(shown, report)])
    groups = summary.group_failures(report)
    yield from (_build_failure(*each, "terminal") for each in groups[:_IN_FULL])
    yield Section(list(_build_more_failures(groups)))
    yield from _build_mismatches(report)
    findings = [each for each in report.findings if each.message not in sentence]
    yield Section([Findings(findings, len(findings)), Notes(_list_notes(report))])
    yield Section([Commands([(what, _from_here(command)) for what, command in summary.build_next_steps(report)])])
    made_with = [Text(f"reference {report.reference}; {around}", role="soft")] if around else []
    yield Section([*made_with, *([Text(f"kept in {_from_here(report.run_dir)}")] if report.run_dir else [])])


def _from_here(text: str) -> str:
    """Shorten paths below the terminal's folder; pages and files, which may be read elsewhere, keep whole paths."""
    here = os.getcwd()
    return text.removeprefix(f"cd {shlex.quote(here)} && ").replace(f"{here}/", "")


def _build_more_failures(groups: Sequence[tuple[StepOutcome, list[str]]]) -> Iterator[Block]:
    """Yield a line for each further failure, and each hint once."""
    hints = {step.hint for step, _ in groups[:_IN_FULL]} | {""}
    for step, names in groups[_IN_FULL:]:
        yield Text(f"{step.step} {step.ending} in {summary.join_names(names)}: {step.message}")
        if step.hint not in hints:
            yield from (Text(line, indent=1) for line in step.hint.splitlines())
        hints.add(step.hint)
    if len(groups) > _IN_FULL:
        yield Text("(--json has their command lines)")


def _build_mismatches(report: ModelReport) -> Iterator[Block]:
    """Build the wrong cases, only the first ones in full: layers after the first wrong one are often wrong, too."""
    wrong = find_mismatches(report)
    later = [command for _, command in summary.build_next_steps(report)]
    for case in wrong[:_IN_FULL]:
        differences = [command for command in summary.build_diff_commands(case) if command not in later]
        commands = [Code(_from_here(command), wraps=True) for command in differences[:_MOST_FINDINGS]]
        title = f"{summary.label_of(case, report)} {_VERBS.get(case.verdict.kind, 'differs')}:"
        bad = summary.find_bad(case)
        found = [summary.describe_finding(finding, case) for finding in bad[:_MOST_FINDINGS]]
        found += [f"and {len(bad) - _MOST_FINDINGS} more (--json has them)"] if len(bad) > _MOST_FINDINGS else []
        yield Section([*map(Text, found), *commands], title)
    if len(wrong) > _IN_FULL:
        names = summary.join_names([summary.label_of(case, report) for case in wrong[_IN_FULL:]])
        yield Section([Text(f"the same applies to {names} (--json has the commands that show them)")])


def find_mismatches(report: ModelReport) -> list[CaseReport]:
    """Return the wrong cases that were computed: the first wrong layer, then the full model, whose outputs users see,
    then the others."""
    wrong = [
        case
        for case in report.cases
        if case.failed_step is None
        and summary.find_bad(case)
        and (case.local or case.verdict.kind is not VerdictKind.ERROR)
    ]
    return sorted(wrong, key=lambda case: (case.name != report.first_wrong, case.layer is not None))


def _build_markdown(report: ModelReport) -> Iterator[Block]:
    yield Heading(summary.name_subject(report), report.verdict.kind)
    yield Text(summary.describe_outcome(report))
    shown = choose_cases(report)
    yield TableBlock(build_table(shown, report))
    if len(shown) < len(report.cases):
        yield Text(f"{formatting.render_count(len(report.cases) - len(shown), 'layer')} more, all correct.")
    yield from (_build_failure(*each, "markdown") for each in summary.group_failures(report))
    yield from _build_remarks(report)
    yield Text(
        f"Reference {', '.join(text for text in (report.reference, summary.describe_surroundings(report)) if text)}"
    )


def _build_remarks(report: ModelReport) -> list[Block]:
    findings = Findings(report.findings, len(report.findings))
    return [findings, Notes(_list_notes(report)), Commands(list(summary.build_next_steps(report)))]


def _list_notes(report: ModelReport) -> list[str]:
    wholes = [each for case in report.cases if case.layer is None for each in case.local]
    # outputs of the full model that choose another class, however little they differ
    ranks = [f"{each.name}: {flag}" for each in wholes for flag in each.flags if flag.startswith(OTHER_LARGEST)]
    texts = (report.coverage, *ranks, *report.notes, summary.describe_times(report))
    return [text for text in texts if text]


def _build_page(report: ModelReport) -> Iterator[Block]:
    answer = summary.describe_outcome(report)
    yield Heading(summary.name_subject(report), report.verdict.kind, level=1)
    yield Text(summary.describe_briefly(report), role="soft")
    answer, first = answer[:1].upper() + answer[1:], summary.find_first(report)
    head, name, tail = answer.partition(summary.label_of(first, report)) if first else (answer, "", "")
    yield Text((head, *([Span(name, "first")] if name else []), tail), role="answer")
    findings, notes, commands = _build_remarks(report)
    yield from (commands, findings, notes)
    if report.cases:
        yield Section([summary.build_chart(report), *_LEGEND], "Error by layer")
        yield Section([_build_table_block(report.cases, report, is_page=True)], CASES)
    groups = summary.group_failures(report)
    if groups:
        yield Section([_build_failure(*each, "html", is_open=len(groups) == 1) for each in groups], "Steps that failed")
    origin = [
        ("model", report.model),
        *([("compared with", report.other)] if report.other else []),
        ("reference", report.reference),
        ("target", report.target),
    ]
    run = [("run", report.run_dir)] if report.run_dir else []
    yield Details("Provenance", [Facts([*origin, *report.tools.items(), *run])])


_LEGEND = (
    Legend(
        (
            ("local", "dot", "local error: the layer alone, with the reference's values as inputs"),
            ("accumulated", "line", "accumulated error: as it comes out of the model"),
            ("allowed", "dash", "allowed"),
            ("fail", "area", "wrong"),
            ("", "cross", "a step failed"),
        )
    ),
    Text("Errors are relative to the tensor's scale; 0 is bit-equal.", role="soft"),
)


def _build_failure(step: StepOutcome, names: Sequence[str], form: str, *, is_open: bool = False) -> Details:
    what, rest = f"{step.step} {step.ending}", f" in {summary.join_names(names)}: {step.message or 'no output'}"
    title = what + rest if form == "markdown" else (Span(what, "ERROR"), rest)  # a Markdown summary is plain text
    tail = "\n".join(summary.build_tail(step, _TAIL_LINES[form]))
    blocks: list[Block] = [Code(summary.render_command(step), wraps=True)] if step.command else []
    if tail:
        blocks.append(Code(tail))
    elif form == "html":
        blocks.append(Text("no output", role="soft"))
    return Details(title, [*blocks, *map(Text, step.hint.splitlines())], is_open)


def build_table(cases: Sequence[CaseReport], report: ModelReport) -> Table:
    """Build the table without empty columns; a narrow screen omits the columns of the highest rank first."""
    columns = (
        Column("layer"),
        Column("op", rank=5),
        Column("node", rank=6),
        Column("paired by", rank=2),
        Column("outcome"),
        Column("local error", "number", key="local_error", short="local"),
        Column("accumulated error", "number", key="accumulated_error", short="accum."),
        Column("cosine", "number", rank=4),
        Column("SQNR dB", "number", rank=3),
        Column("compile ms", "number", rank=2),
        Column("run ms (estimate)" if report.is_estimate else "run ms", "number", rank=1, short="run ms"),
    )
    rows = [_build_row(case, report) for case in cases]
    kept = [
        index
        for index, each in enumerate(columns)
        if each.name in _NAMED or any(row[index] is not None for row in rows)
    ]
    return Table(tuple(columns[index] for index in kept), [[row[index] for index in kept] for row in rows])


def _build_row(case: CaseReport, report: ModelReport) -> list[str | Span | None]:
    metrics = summary.build_case_metrics(case)
    return [
        summary.label_of(case, report),
        summary.ops_of(case) or None,
        (case.layer.title or None) if case.layer else None,
        case.matched or None,
        Span(case.outcome, str(case.verdict.kind)),
        summary.render_error(metrics.local),
        summary.render_error(metrics.accumulated),
        None if metrics.cosine is None else f"{metrics.cosine:.6f}",
        None if metrics.sqnr_db is None else f"{metrics.sqnr_db:.1f}",
        *((None, None) if report.other else (summary.render_ms(metrics.compile_s), summary.render_ms(metrics.run_s))),
    ]


def _build_table_block(shown: Sequence[CaseReport], report: ModelReport, *, is_page: bool = False) -> TableBlock:
    roles = [
        f"{'' if case.verdict.kind is VerdictKind.PASS else case.verdict.kind}"
        f"{' first' if case.name == report.first_wrong else ''}"
        for case in shown
    ]
    notes: list[tuple[Content, ...]] = [
        (
            *(summary.describe_finding(finding, case) for finding in summary.find_bad(case)[:_MOST_FINDINGS]),
            *(Span(command, "code") for command in summary.build_diff_commands(case)),
        )
        for case in shown
    ]
    return TableBlock(build_table(shown, report), notes if is_page else (), roles, _list_gaps(shown, report))


def _list_gaps(shown: Sequence[CaseReport], report: ModelReport) -> dict[int, str]:
    """List a line for each sequence of layers that was left out."""
    indices = {case.name: index for index, case in enumerate(report.cases)}
    gaps, before = {}, -1
    for row, case in enumerate(shown):
        missing = indices[case.name] - before - 1
        if missing:
            are = "is" if missing == 1 else "are"
            gaps[row] = f"… {formatting.render_count(missing, 'layer')} that {are} correct"
        before = indices[case.name]
    return gaps | ({len(shown): "(--all shows every layer)"} if len(shown) < len(report.cases) else {})


def choose_cases(report: ModelReport) -> list[CaseReport]:
    """Choose all cases; for a large model only the incorrect layers, the layers around these, and the full model."""
    cases = report.cases
    if len(cases) <= _MOST_ROWS:
        return list(cases)
    near = {
        index + offset
        for index, case in enumerate(cases)
        if case.verdict.kind is not VerdictKind.PASS or case.layer is None or case.name == report.first_wrong
        for offset in range(-_NEIGHBOURS, _NEIGHBOURS + 1)
    }
    return [case for index, case in enumerate(cases) if index in near]


def _build_suite(report: ModelReport) -> Suite:
    """Build one test case for each layer, for the full model, and for each finding about the model as a whole."""
    cases = [_build_case(case, report) for case in report.cases]
    cases += [_build_whole(finding, report) for finding in report.findings if finding.kind is not VerdictKind.PASS]
    if not cases:  # nothing was compared: this must not pass
        cases = [_build_whole(Finding(VerdictKind.ERROR, report.stem, summary.describe_outcome(report)), report)]
    properties: list[tuple[str, object]] = [
        ("model", report.model),
        ("reference", report.reference),
        ("target", report.target),
        ("verdict", report.verdict.kind),
        ("summary", summary.describe_outcome(report)),
        *([("other", report.other), ("coverage", report.coverage)] if report.other else []),
        *([("first_wrong", report.first_wrong)] if report.first_wrong else []),
        *((f"tool.{name}", version) for name, version in report.tools.items()),
    ]
    return Suite(summary.name_subject(report), cases, properties, report.elapsed_s, "\n".join(report.notes))


def _build_case(case: CaseReport, report: ModelReport) -> Case:
    bad, step = summary.find_bad(case), case.failed_step
    lines = [f"{finding.kind} {finding.subject}: {finding.message}" for finding in bad]
    if step is not None:
        lines += [summary.render_command(step)] if step.command else []
        lines += [*summary.build_tail(step, 40), *([step.hint] if step.hint else [])]
    metrics = asdict(summary.build_case_metrics(case))
    numbers = {f"{name}_error" if name in ("local", "accumulated") else name: each for name, each in metrics.items()}
    return Case(
        classname=f"{report.stem}.{report.target}",
        name=case.name,
        kind=case.verdict.kind,
        message=bad[0].message if bad else case.outcome,
        text="\n".join([*lines, *summary.build_diff_commands(case)]),
        seconds=sum(step.elapsed_s for step in case.steps if not step.cached),
        properties=[
            ("verdict", case.verdict.kind),
            ("outcome", case.outcome),
            ("comparisons", case.verdict.comparisons),
            *((name, value) for name, value in numbers.items() if value is not None),
        ],
        type=case.outcome,
    )


def _build_whole(finding: Finding, report: ModelReport) -> Case:
    name = f"{report.stem} as a whole"
    return Case(f"{report.stem}.{report.target}", name, finding.kind, finding.message, finding.message)


def build_model_facts(report: ModelReport) -> dict[str, Any]:
    """Build the JSON of a report, with values that are derived from it, such as the verdict and the next commands."""
    facts = asdict(report)
    facts |= {
        "verdict": str(report.verdict.kind),
        "exit_code": int(report.exit_code),
        "comparisons": report.verdict.comparisons,
        "summary": summary.describe_outcome(report),
        "next": [command for _, command in summary.build_next_steps(report)],
    }
    for plain, case in zip(facts["cases"], report.cases, strict=True):
        metrics = asdict(summary.build_case_metrics(case))
        plain |= {f"{name}_error": metrics.pop(name) for name in ("local", "accumulated")}
        plain |= {"outcome": case.outcome, "is_wrong": case.verdict.kind in WRONG, **metrics}
        plain["import_s"] = case.seconds(Step.IMPORT)
        plain["diff_commands"] = summary.build_diff_commands(case)
    return facts
