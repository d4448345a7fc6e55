"""A check of a model for people and machines: on a terminal, as Markdown, as JSON facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from assay.models.report.text import (
    WRONG,
    FailedSteps,
    build_diff_commands,
    build_figures,
    build_next_steps,
    build_tail,
    describe_outcome,
    describe_ranks,
    describe_surroundings,
    describe_times,
    find_bad,
    find_telling,
    group_failures,
    join_names,
    label_of,
    ops_of,
    render_command,
    render_cosine,
    render_db,
    render_error,
    render_ms,
    tell,
)
from assay.models.values.model import CaseReport, ModelReport, Step
from assay.show import formatting
from assay.show.table import fit_columns, render_markdown, render_table
from assay.system import terminal
from assay.values.table import Column, Table
from assay.values.verdict import VerdictKind

_MOST_ROWS = 60  # more than a person reads: long stretches of good layers are left out
_NEIGHBOURS = 2  # good layers that are kept around what is shown
_NAMED = ("layer", "op", "outcome")  # columns that are always there
_WIDE = 110  # columns from which on the names in a table are written out
_IN_FULL = 3  # mismatches and failures shown with all they say
_STYLES = {VerdictKind.FAIL: "red", VerdictKind.ERROR: "red", VerdictKind.PASS: "green"}
_VERBS = {VerdictKind.INCONCLUSIVE: "is not decided", VerdictKind.ERROR: "has no result"}
_MARKS = {VerdictKind.PASS: "✅", VerdictKind.FAIL: "❌", VerdictKind.ERROR: "❌"}


# ---------------------------------------------------------------- one line per case


def render_case_line(case: CaseReport) -> str:
    """For a log that is followed: `mismatch       m_layer_Conv_3  error 0.41, compile 120 ms, run 0.3 ms: y: …`."""
    figures = build_figures(case)
    error = figures.accumulated if case.layer is None else figures.local
    said = [
        f"{name} {text}{unit}"
        for name, text, unit in (
            ("error", render_error(error), ""),
            ("compile", render_ms(figures.compile_s), " ms"),
            ("run", render_ms(figures.run_s), " ms"),
        )
        if text is not None
    ]
    bad = find_telling(case)
    why = f": {formatting.clean(tell(bad, case))}" if bad else ""
    return f"{case.outcome:<14} {formatting.clean(case.name)}  {', '.join(said)}".rstrip() + why


# ---------------------------------------------------------------- the terminal


def render_model(report: ModelReport, *, color: bool, width: int | None, every: bool = False) -> str:
    """The answer first, then the table, then what failed and how, then what to do. `every`: no layer is left out."""
    blocks = [
        _render_head(report, color, width),
        _render_table(report, color, width, every),
        *(_render_failure(each, width) for each in group_failures(report)[:_IN_FULL]),
        _render_more_failures(report),
        *_render_mismatches(report, width),
        _render_said(report, width),
        _render_next(report),
        formatting.clean(f"kept in {report.run_dir}") + "\n" if report.run_dir else "",
    ]
    return "\n".join(block for block in blocks if block)


def _render_head(report: ModelReport, color: bool, width: int | None) -> str:
    kind = report.verdict.kind
    sentence = formatting.wrap(
        formatting.clean(f"{kind} {report.stem} on {report.target}: {describe_outcome(report)}"), width
    )
    painted = terminal.paint(str(kind), f"bold {_STYLES.get(kind, 'yellow')}")
    around = describe_surroundings(report)
    lines = [sentence.replace(str(kind), painted, 1) if color else sentence]
    if around:
        text = formatting.wrap(formatting.clean(f"reference {report.reference}; {around}"), width, "  ")
        lines.append(terminal.paint(text, "dim") if color else text)
    return "\n".join(lines) + "\n"


def build_table(cases: Sequence[CaseReport], report: ModelReport, *, short: bool = False) -> Table:
    """`short`: names for a narrow terminal. What is needed least leaves first, and what nobody has at once."""
    local, accumulated = ("local", "accum.") if short else ("local error", "accumulated error")
    columns = (
        Column("layer"),
        Column("op", rank=5),
        Column("node", rank=6),
        Column("outcome"),
        Column(local, "number", key="local_error"),
        Column(accumulated, "number", key="accumulated_error"),
        Column("cosine", "number", rank=4),
        Column("SQNR dB", "number", rank=3),
        Column("compile ms", "number", rank=2),
        Column("run ms (est.)" if report.is_estimate else "run ms", "number", rank=1),
    )
    rows = [_build_row(case, report) for case in cases]
    told = [
        place
        for place, each in enumerate(columns)
        if each.name in _NAMED or any(row[place] is not None for row in rows)
    ]
    return Table(tuple(columns[place] for place in told), [[row[place] for place in told] for row in rows])


def _build_row(case: CaseReport, report: ModelReport) -> list[str | None]:
    figures = build_figures(case)
    return [
        label_of(case, report),
        ops_of(case) or None,
        (case.layer.title or None) if case.layer else None,
        case.outcome,
        render_error(figures.local),
        render_error(figures.accumulated),
        render_cosine(figures.cosine),
        render_db(figures.sqnr_db),
        render_ms(figures.compile_s),
        render_ms(figures.run_s),
    ]


def _render_table(report: ModelReport, color: bool, width: int | None, every: bool) -> str:
    if not report.cases:
        return ""
    shown = list(report.cases) if every else choose_cases(report)
    table = build_table(shown, report, short=width is not None and width < _WIDE)
    if width is not None:
        table, _ = fit_columns(table, width)
    head, rule, *rows = render_table(table, width=width).splitlines()
    if color:
        head, rule = terminal.paint(head, "bold"), terminal.paint(rule, "dim")
        rows = [_paint_row(row, case, report) for row, case in zip(rows, shown, strict=True)]
    return "\n".join([head, rule, *_mark_gaps(rows, shown, report)]) + "\n"


def _mark_gaps(rows: Sequence[str], shown: Sequence[CaseReport], report: ModelReport) -> Iterator[str]:
    """A line for each stretch that was left out."""
    places = {case.name: place for place, case in enumerate(report.cases)}
    before = -1
    for row, case in zip(rows, shown, strict=True):
        missing = places[case.name] - before - 1
        if missing:
            yield f"… {formatting.render_count(missing, 'layer')} that {'is' if missing == 1 else 'are'} right"
        yield row
        before = places[case.name]
    if len(shown) < len(report.cases):
        yield "(--all shows every layer)"


def _paint_row(row: str, case: CaseReport, report: ModelReport) -> str:
    kind = case.verdict.kind
    if kind is VerdictKind.PASS:
        return row
    style = _STYLES.get(kind, "yellow")
    return terminal.paint(row, f"bold {style}" if case.name == report.first_wrong else style)


def choose_cases(report: ModelReport) -> list[CaseReport]:
    """All; of a large model what is not right, the layers around it, and the whole."""
    cases = report.cases
    if len(cases) <= _MOST_ROWS:
        return list(cases)
    places = [place for place, case in enumerate(cases) if _is_notable(case, report)]
    near = {at for place in places for at in range(place - _NEIGHBOURS, place + _NEIGHBOURS + 1)}
    return [case for place, case in enumerate(cases) if place in near]


def _is_notable(case: CaseReport, report: ModelReport) -> bool:
    return case.verdict.kind is not VerdictKind.PASS or case.layer is None or case.name == report.first_wrong


def _render_failure(found: FailedSteps, width: int | None) -> str:
    """The command stays on one line, however long: it is to be copied."""
    step = found.step
    title = f"{step.step} {step.ending} in {join_names(found.cases)}: {step.message or 'it said nothing'}"
    lines = [formatting.wrap(formatting.clean(title), width, "  ")]
    if step.command:
        lines.append(f"  {render_command(step)}")
    lines += [f"  | {line if width is None else formatting.shorten(line, 2 * width - 4)}" for line in build_tail(step)]
    if step.hint:
        lines.append(formatting.wrap(f"  {formatting.clean(step.hint)}", width, "  "))
    return "\n".join(lines) + "\n"


def _render_more_failures(report: ModelReport) -> str:
    """A line for each, and what to do once for all that it helps."""
    groups = group_failures(report)
    told = {each.step.hint for each in groups[:_IN_FULL]}
    lines = []
    for each in groups[_IN_FULL:]:
        lines.append(f"{each.step.step} {each.step.ending} in {join_names(each.cases)}: {each.step.message}")
        lines += [f"  {each.step.hint}"] if each.step.hint and each.step.hint not in told else []
        told.add(each.step.hint)
    lines += ["(--json has their command lines)"] if lines else []
    return "".join(f"{formatting.clean(line)}\n" for line in lines)


def _render_mismatches(report: ModelReport, width: int | None) -> Iterator[str]:
    """Numbers that differ. Once the first layer is wrong, many after it are too: the first ones are told in full."""
    wrong = find_mismatches(report)
    later = [command for _, command in build_next_steps(report)]
    for case in wrong[:_IN_FULL]:
        lines = [f"{formatting.clean(label_of(case, report))} {_VERBS.get(case.verdict.kind, 'differs')}:"]
        lines += [formatting.wrap(f"  {text}", width, "  ") for text in _describe_case(case)]
        lines += [f"  {formatting.clean(command)}" for command in build_diff_commands(case) if command not in later]
        yield "\n".join(lines) + "\n"
    if len(wrong) > _IN_FULL:
        names = join_names([label_of(case, report) for case in wrong[_IN_FULL:]])
        yield (
            formatting.wrap(
                f"the same goes for {formatting.clean(names)} (--json has the commands that show them)", width
            )
            + "\n"
        )


def find_mismatches(report: ModelReport) -> list[CaseReport]:
    """The first wrong layer before all others, then the whole: its outputs are what people see."""
    wrong = [case for case in report.cases if case.failed_step is None and find_bad(case) and _is_telling(case)]
    return sorted(wrong, key=lambda case: (case.name != report.first_wrong, case.layer is not None))


def _is_telling(case: CaseReport) -> bool:
    """One that was never computed has nothing to say but that."""
    return bool(case.local) or case.verdict.kind is not VerdictKind.ERROR


def _describe_case(case: CaseReport) -> list[str]:
    return [formatting.clean(tell(finding, case)) for finding in find_bad(case)]


def _render_said(report: ModelReport, width: int | None) -> str:
    above = describe_outcome(report)
    said = [f"{finding.kind} {finding.message}" for finding in report.findings if finding.message not in above]
    said += [*describe_ranks(report), *report.notes, *([describe_times(report)] if describe_times(report) else [])]
    return "".join(f"{formatting.wrap(formatting.clean(text), width, '  ')}\n" for text in said)


def _render_next(report: ModelReport) -> str:
    steps = list(build_next_steps(report))
    wide = max((len(what) for what, _ in steps), default=0)
    return "".join(f"{what + ':':<{wide + 1}}  {formatting.clean(command)}\n" for what, command in steps)


# ---------------------------------------------------------------- Markdown


def render_model_markdown(report: ModelReport) -> str:
    return "\n\n".join(_render_markdown_blocks(report)) + "\n"


def _render_markdown_blocks(report: ModelReport) -> Iterator[str]:
    kind = report.verdict.kind
    stem, target = formatting.escape_markdown(report.stem), formatting.escape_markdown(report.target)
    yield f"## {_MARKS.get(kind, '⚠️')} {stem} on {target}: {kind}"
    yield formatting.escape_markdown(describe_outcome(report))
    if report.cases:
        shown = choose_cases(report)
        yield render_markdown(build_table(shown, report)).rstrip("\n")
        if len(shown) < len(report.cases):
            yield f"{formatting.render_count(len(report.cases) - len(shown), 'layer')} more, all right."
    for found in group_failures(report):
        yield _render_details(found)
    said = [f"**{finding.kind}** {formatting.escape_markdown(finding.message)}" for finding in report.findings]
    said += [
        formatting.escape_markdown(note)
        for note in (*describe_ranks(report), *report.notes, describe_times(report))
        if note
    ]
    if said:
        yield "\n".join(f"- {text}" for text in said)
    steps = [f"# {what}\n{command}" for what, command in build_next_steps(report)]
    if steps:
        yield _fence("\n".join(steps), "sh")
    held_against = ", ".join(text for text in (report.reference, describe_surroundings(report)) if text)
    yield f"Reference {formatting.escape_markdown(held_against)}"


def _render_details(found: FailedSteps) -> str:
    step = found.step
    title = formatting.escape_markdown(f"{step.step} {step.ending} in {join_names(found.cases)}: {step.message}")
    said = [render_command(step)] if step.command else []
    body = "\n".join([*said, *build_tail(step, 40)])
    hint = f"\n\n{formatting.escape_markdown(step.hint)}" if step.hint else ""
    return f"<details><summary>{title}</summary>\n\n{_fence(body)}{hint}\n\n</details>"


def _fence(text: str, language: str = "") -> str:
    """Longer than any row of backticks inside."""
    ticks = "```"
    while ticks in text:
        ticks += "`"
    return f"{ticks}{language}\n{formatting.clean_lines(text)}\n{ticks}"


# ---------------------------------------------------------------- facts


def build_model_facts(report: ModelReport) -> dict[str, Any]:
    """Everything in the report, and what follows from it."""
    facts = asdict(report)
    facts |= {
        "verdict": str(report.verdict.kind),
        "exit_code": int(report.exit_code),
        "comparisons": report.verdict.comparisons,
        "summary": describe_outcome(report),
        "next": [command for _, command in build_next_steps(report)],
    }
    for plain, case in zip(facts["cases"], report.cases, strict=True):
        figures = asdict(build_figures(case))
        plain |= {f"{name}_error": figures.pop(name) for name in ("local", "accumulated")}
        plain |= {"outcome": case.outcome, "is_wrong": case.verdict.kind in WRONG, **figures}
        plain["import_s"] = case.seconds(Step.IMPORT)
        plain["diff_commands"] = build_diff_commands(case)
    return facts
