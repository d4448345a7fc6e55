"""A report as one HTML page: no script, nothing from elsewhere; light or dark as the reader's system is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.golden.report.svg import Panel, render_panel
from assay.golden.report.terminal import (
    Row,
    build_test_rows,
    describe_extent,
    describe_golden,
    describe_outcome,
    describe_savings,
    render_interval,
    render_percent,
    render_rule,
    render_share,
    render_step,
)
from assay.golden.values import Golden, GoldenReport, GoldenTestReport, MetricReport, SegmentReport, SegmentRun
from assay.show import formatting
from assay.show.formatting import escape_html as _text
from assay.show.style import STYLE
from assay.values.verdict import VerdictKind

_MARKED = {VerdictKind.FAIL: "fail", VerdictKind.CHANGED: "changed", VerdictKind.INCONCLUSIVE: "open"}
_EMPTY = "-"


def render_html(report: GoldenReport) -> str:
    title = f"{report.kind} {report.source}"
    body = "\n".join(part for test in report.tests for part in _render_test(report, test))
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
    )
    took = f", {formatting.render_duration(report.elapsed_s)}" if report.elapsed_s else ""
    what = "Convergence check" if report.mode == "check" else "Golden recording"
    word = "recorded" if report.mode == "gather" and report.kind is VerdictKind.PASS else ""
    top = f"<h1>{what} {_badge(report.kind, word)}</h1>\n<p class=soft>{_text(report.source)}{took}</p>\n"
    return f"{head}{top}{body}\n<footer>made by Assay</footer>\n</main>\n</body>\n</html>\n"


def _badge(kind: object, word: str = "") -> str:
    return f'<span class="badge {kind}">{word or kind}</span>'


def _render_test(report: GoldenReport, test: GoldenTestReport) -> Iterator[str]:
    rows = build_test_rows(test)
    yield f"<section>\n<h2>{_text(test.test)} {_badge(test.verdict.kind, describe_outcome(report, test))}</h2>"
    savings = describe_savings(test)
    yield f"<p class=soft>{_text(describe_extent(test, report.mode))}{'; ' + savings if savings else ''}</p>"
    if test.golden:
        yield f"<p class=soft>golden: {_text(', '.join(describe_golden(test.golden)))}</p>"
    said = [f"warning: {text}" for text in test.warnings]
    if said:
        yield "<ul class=said>" + "".join(f"<li>{_text(text)}</li>" for text in said) + "</ul>"
    yield from _render_verdicts(rows, "recorded" if report.mode == "gather" else "PASS")
    if report.mode == "gather" and test.golden:
        yield from _render_recording(test.golden)
    else:
        yield from _render_charts(test)
    yield from _render_origin(test)
    yield "</section>"


# ---------------------------------------------------------------- verdicts


def _render_verdicts(rows: Sequence[Row], good: str) -> Iterator[str]:
    """`good`: the word for what went well; a gathering has judged nothing."""
    names = ("segment", "metric", "rule", "verdict", "effect", "interval", "first step", "values")
    numeric = {"segment", "effect", "interval", "first step", "values"}
    head = "".join(f"<th{' class=num' if name in numeric else ''}>{name}</th>" for name in names)
    yield f'<div class="card scroll"><table><thead><tr>{head}</tr></thead><tbody>'
    yield from (_render_row(row, good) for row in rows)
    yield "</tbody></table></div>"


def _render_row(row: Row, good: str) -> str:
    finding = row.finding
    step = finding.step if finding and row.kind is not VerdictKind.PASS else None
    figures = (
        "" if row.segment is None else str(row.segment),
        render_percent(finding.effect if finding else None),
        render_interval(finding.interval if finding else None),
        render_step(step),
        str(row.comparisons or ""),
    )
    segment, effect, interval, first, count = (f"<td class=num>{_text(text or _EMPTY)}</td>" for text in figures)
    worst = [each for each in row.findings if each.kind is not VerdictKind.PASS] or list(row.findings)
    why = "<br>".join(_text(row.tell(each)) for each in worst[:5])
    rule = _text(render_rule(row.rule) or _EMPTY)
    word = good if row.kind is VerdictKind.PASS else ""
    return (
        f"<tr class=head>{segment}<td>{_text(row.metric)}</td><td>{rule}</td><td>{_badge(row.kind, word)}</td>"
        f"{effect}{interval}{first}{count}</tr>"
        f"<tr class='why {str(row.kind).lower()}'><td colspan=8><div>{why}</div></td></tr>"
    )


# ---------------------------------------------------------------- curves


def _render_charts(test: GoldenTestReport) -> Iterator[str]:
    names = list(dict.fromkeys(metric.metric for segment in test.segments for metric in segment.metrics))
    if names:
        yield _LEGEND
    for name in names:
        yield f"<h3>{_text(name)}</h3>\n<div class=charts>"
        for segment in test.segments:
            for metric in segment.metrics:
                if metric.metric == name:
                    yield from _render_metric(segment, metric)
        yield "</div>"


_LEGEND = (
    '<p class=legend><span><i class="line wide" style="background:var(--golden)"></i>golden, mean of its recordings'
    "</span>"
    '<span><i style="background:var(--band)"></i>band of the recordings</span>'
    '<span><i class=line style="background:var(--check)"></i>this check</span>'
    '<span><i style="background:var(--delta)"></i>difference that does not matter (lower part, in percent)</span>'
    '<span><i style="background:var(--fail)"></i>window that failed</span>'
    '<span><i style="background:var(--changed)"></i>changed</span>'
    '<span><i style="background:var(--open)"></i>undecided</span></p>'
)


def _render_metric(segment: SegmentReport, metric: MetricReport) -> Iterator[str]:
    for label in dict.fromkeys([*metric.golden, *metric.check]):
        name = f"{metric.metric} {label}".strip()
        found = [
            each for each in metric.verdict.findings if each.kind in _MARKED and _concerns(each.subject, metric, label)
        ]
        panel = Panel(
            name,
            tuple((track.steps, track.values) for track in metric.golden.get(label, ())),
            tuple((track.steps, track.values) for track in metric.check.get(label, ())),
            metric.delta,
            tuple((_MARKED[each.kind], low, high) for each in found for low, high in each.stretches),
            tuple(each.step for each in found if each.step is not None and not each.stretches),
            max((each.effect for each in found if each.effect is not None), key=abs, default=None),
        )
        noise = f"noise {render_share(metric.noise)}" if metric.noise is not None else ""
        yield (
            f"<figure class=card><figcaption><b>{_text(name)}</b>"
            f"<span class=soft>after step {segment.start_step}</span>"
            f"{_badge(metric.verdict.kind)}<span class='soft right'>{_text(noise)}</span></figcaption>"
            f"{render_panel(panel)}</figure>"
        )


def _concerns(subject: str, metric: MetricReport, label: str) -> bool:
    """With several labels, whether a finding speaks of this one; its subject then ends in the label."""
    return len(metric.golden) < 2 or not label or label in subject.split()


def _render_recording(golden: Golden) -> Iterator[str]:
    names = list(dict.fromkeys(name for segment in golden.segments for name in segment.tracks))
    for name in names:
        noise = golden.noise.get(name)
        said = f" <span class=soft>noise {render_share(noise)}</span>" if noise is not None else ""
        yield f"<h3>{_text(name)}{said}</h3>\n<div class=charts>"
        for segment in golden.segments:
            for label, tracks in segment.tracks.get(name, {}).items():
                title = f"{name} {label}".strip()
                panel = Panel(title, tuple((track.steps, track.values) for track in tracks), ())
                yield (
                    f"<figure class=card><figcaption><b>{_text(title)}</b><span class=soft>after step "
                    f"{segment.start_step}</span></figcaption>{render_panel(panel)}</figure>"
                )
        yield "</div>"


# ---------------------------------------------------------------- where it comes from


def _render_origin(test: GoldenTestReport) -> Iterator[str]:
    runs = [*test.runs, *(run for segment in test.segments for run in segment.runs)]
    facts = list(_build_facts(test))
    yield "<details><summary>Provenance</summary>\n<div class='card scroll'><table><tbody>"
    yield from (f"<tr><td class=key>{_text(key)}</td><td>{_text(value)}</td></tr>" for key, value in facts)
    yield "</tbody></table></div></details>"
    if runs:
        yield f"<details><summary>{formatting.render_count(len(runs), 'run')}</summary>"
        yield "<div class='card scroll'><table><tbody>"
        yield from (_render_run(run) for run in runs)
        yield "</tbody></table></div></details>"


def _build_facts(test: GoldenTestReport) -> Iterator[tuple[str, str]]:
    yield "manifest", test.manifest
    yield from (("note", note) for note in test.notes)
    if test.golden is None:
        return
    for key, value in test.golden.provenance.items():
        if value not in (None, "", {}, [], ()):
            yield key.replace("_", " "), _flatten(value)
    for item in test.golden.history:
        yield "rebased", _flatten({key: item.get(key) for key in ("at", "reason") if item.get(key)})


def _flatten(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_flatten(each)}" for key, each in value.items() if each not in (None, "", {}, []))
    if isinstance(value, (list, tuple)):
        return ", ".join(_flatten(each) for each in value)
    return "yes" if value is True else "no" if value is False else str(value)


def _render_run(run: SegmentRun) -> str:
    took = formatting.render_duration(run.elapsed_s) if run.elapsed_s is not None else _EMPTY
    said = "; ".join(text for text in (run.reason, run.stopped_early or "") if text)
    cells = (
        f"<code>{_text(run.dir)}</code>",
        _text(run.state),
        _text(took),
        _text(said or _EMPTY),
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
