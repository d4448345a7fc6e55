"""A check of a model as one HTML page: no script, nothing from elsewhere; light or dark as the reader's system is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from assay.models.report.svg import Point, render_errors
from assay.models.report.text import (
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
from assay.models.values.model import CaseReport, ModelReport
from assay.show.formatting import escape_html as _text
from assay.show.style import STYLE
from assay.values.verdict import VerdictKind

_EMPTY = "-"
_LOG_LINES = 200
_MOST_FINDINGS = 5

MODEL_STYLE = """
.answer { font-size: 17px; margin: 10px 0 2px; overflow-wrap: anywhere; }
svg circle.local { fill: var(--check); } svg circle.accumulated { fill: var(--golden); }
svg path.accumulated { stroke: var(--golden); opacity: .75; }
svg path.allowed { stroke: var(--soft); stroke-dasharray: 4 3; stroke-width: 1.2; }
svg path.cross { stroke: var(--first); stroke-width: 2; } svg .tick.wrong { fill: var(--first); font-weight: 650; }
.legend i.dot { width: 10px; height: 10px; border-radius: 99px; } .legend i.dash { height: 0;
  border-top: 2px dashed var(--soft); vertical-align: 4px; border-radius: 0; }
.legend b { color: var(--first); margin-right: 7px; }
tr.first td:first-child { box-shadow: inset 3px 0 0 var(--first); }
td code, .next code { overflow-wrap: anywhere; } td.name, td.op { white-space: nowrap; } td.name { font-weight: 600; }
pre { margin: 8px 0; padding: 10px 12px; overflow-x: auto; background: var(--page); border: 1px solid var(--rule);
  border-radius: 8px; font: 12.5px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
pre.command { white-space: pre-wrap; overflow-wrap: anywhere; }
.next { display: grid; grid-template-columns: max-content 1fr; gap: 6px 16px; margin: 14px 0 0; }
.next dt { color: var(--soft); } .next dd { margin: 0; }
@media (max-width: 640px) { .next { grid-template-columns: 1fr; } .next dd { margin-bottom: 8px; } }
.chart { overflow-x: auto; } .chart svg { min-width: 760px; }
details.card { margin-top: 12px; } details.card summary { overflow-wrap: anywhere; }
"""

_LEGEND = (
    '<p class=legend><span><i class=dot style="background:var(--check)"></i>local error: the layer alone, fed with the '
    "reference's values</span>"
    '<span><i class=line style="background:var(--golden)"></i>accumulated error: as it comes out of the model</span>'
    "<span><i class=dash></i>allowed</span><span><i style='background:var(--fail)'></i>wrong</span>"
    "<span><b>&times;</b>a step failed</span></p>"
    "<p class=soft>Errors are relative to the tensor's scale; 0 is bit-equal.</p>"
)


def render_model_html(report: ModelReport) -> str:
    kind = report.verdict.kind
    title = f"{kind} {report.stem} on {report.target}"
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{STYLE}{MODEL_STYLE}</style>\n</head>\n<body>\n<main>\n"
    )
    body = "\n".join(_render_body(report))
    return f"{head}{body}\n<footer>made by Assay</footer>\n</main>\n</body>\n</html>\n"


def _render_body(report: ModelReport) -> Iterator[str]:
    kind = report.verdict.kind
    yield f"<h1>{_text(report.stem)} on {_text(report.target)} {_badge(kind)}</h1>"
    around = ", ".join(text for text in (f"reference {report.reference}", describe_surroundings(report)) if text)
    yield f"<p class=soft>{_text(report.model)}; {_text(around)}</p>"
    yield f"<p class=answer>{_text(_begin(describe_outcome(report)))}</p>"
    yield from _render_next(report)
    yield from _render_said(report)
    if report.cases:
        yield "<h3>Error by layer</h3>"
        yield f"<figure class=card><div class=chart>{render_errors(build_points(report))}</div>{_LEGEND}</figure>"
        yield from _render_cases(report)
    yield from _render_failures(report)
    yield from _render_origin(report)


def _badge(kind: object, word: str = "") -> str:
    return f'<span class="badge {kind}">{_text(word or kind)}</span>'


def _begin(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _render_next(report: ModelReport) -> Iterator[str]:
    steps = list(build_next_steps(report))
    if steps:
        inner = "".join(f"<dt>{_text(what)}</dt><dd><code>{_text(command)}</code></dd>" for what, command in steps)
        yield f"<dl class=next>{inner}</dl>"


def _render_said(report: ModelReport) -> Iterator[str]:
    said = [f"{finding.kind}: {finding.message}" for finding in report.findings]
    said += [*describe_ranks(report), *report.notes, *([describe_times(report)] if describe_times(report) else [])]
    if said:
        yield "<ul class=said>" + "".join(f"<li>{_text(text)}</li>" for text in said) + "</ul>"


# ---------------------------------------------------------------- the drawing


def build_points(report: ModelReport) -> list[Point]:
    return [_build_point(case, report) for case in report.cases]


def _build_point(case: CaseReport, report: ModelReport) -> Point:
    figures = build_figures(case)
    bounds = [each.tolerance.rel for each in case.local if each.tolerance.rel]
    return Point(
        label=label_of(case, report),
        local=figures.local,
        accumulated=figures.accumulated,
        allowed=min(bounds, default=None),
        outcome=case.outcome,
        is_wrong=case.verdict.kind is not VerdictKind.PASS,
        is_first=case.name == report.first_wrong,
        is_whole=case.layer is None,
    )


# ---------------------------------------------------------------- cases


def _render_cases(report: ModelReport) -> Iterator[str]:
    run = "run ms (estimate)" if report.is_estimate else "run ms"
    plain = ("layer", "op", "outcome")
    numeric = ("local error", "accumulated error", "cosine", "SQNR dB", "compile ms", run)
    head = "".join(f"<th>{name}</th>" for name in plain) + "".join(f"<th class=num>{name}</th>" for name in numeric)
    yield f'<h3>Cases</h3>\n<div class="card scroll"><table><thead><tr>{head}</tr></thead><tbody>'
    yield from (_render_case(case, report, len(plain) + len(numeric)) for case in report.cases)
    yield "</tbody></table></div>"


def _render_case(case: CaseReport, report: ModelReport, width: int) -> str:
    figures = build_figures(case)
    numbers = (
        render_error(figures.local),
        render_error(figures.accumulated),
        render_cosine(figures.cosine),
        render_db(figures.sqnr_db),
        render_ms(figures.compile_s),
        render_ms(figures.run_s),
    )
    cells = "".join(f"<td class=num>{_text(_EMPTY if text is None else text)}</td>" for text in numbers)
    why = _render_why(case)
    first = " first" if case.name == report.first_wrong else ""
    row = (
        f"<tr class='{'head' if why else 'plain'}{first}'><td class=name title='{_text(case.name)}'>"
        f"{_text(label_of(case, report))}</td><td class=op>{_text(ops_of(case) or _EMPTY)}"
        f"{_render_node(case)}</td>"
        f"<td>{_badge(case.verdict.kind, case.outcome)}</td>{cells}</tr>"
    )
    return f"{row}<tr class='why{first}'><td colspan={width}><div>{why}</div></td></tr>" if why else row


def _render_node(case: CaseReport) -> str:
    """The nodes' own names, for who looks them up in another viewer."""
    title = case.layer.title if case.layer else ""
    return f"<br><code class=soft>{_text(title)}</code>" if title else ""


def _render_why(case: CaseReport) -> str:
    """What was found; of a step that failed only the message, its output is further down."""
    lines = [_text(tell(finding, case)) for finding in find_bad(case)[:_MOST_FINDINGS]]
    lines += [f"<code>{_text(command)}</code>" for command in build_diff_commands(case)]
    return "<br>".join(lines)


# ---------------------------------------------------------------- steps that failed


def _render_failures(report: ModelReport) -> Iterator[str]:
    found = group_failures(report)
    if found:
        yield "<h3>Steps that failed</h3>"
    yield from (_render_failure(each, is_open=len(found) == 1) for each in found)


def _render_failure(found: FailedSteps, *, is_open: bool) -> str:
    step = found.step
    title = f"{_badge('ERROR', f'{step.step} {step.ending}')} {_text(join_names(found.cases))}: {_text(step.message)}"
    parts = [f"<pre class=command>{_text(render_command(step))}</pre>"] if step.command else []
    said = "\n".join(_text(line) for line in build_tail(step, _LOG_LINES))
    parts += [f"<pre>{said}</pre>"] if said else ["<p class=soft>it said nothing</p>"]
    parts += [f"<p>{_text(step.hint)}</p>"] if step.hint else []
    return f"<details class=card{' open' if is_open else ''}><summary>{title}</summary>{''.join(parts)}</details>"


# ---------------------------------------------------------------- where it comes from


def _render_origin(report: ModelReport) -> Iterator[str]:
    facts: Sequence[tuple[str, str]] = [
        ("model", report.model),
        ("reference", report.reference),
        ("target", report.target),
        *((name, version) for name, version in report.tools.items()),
        *((("run", report.run_dir),) if report.run_dir else ()),
    ]
    yield "<details><summary>Provenance</summary>\n<div class='card scroll'><table><tbody>"
    yield from (f"<tr><td class=key>{_text(key)}</td><td>{_text(value)}</td></tr>" for key, value in facts)
    yield "</tbody></table></div></details>"
