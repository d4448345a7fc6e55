"""Builds documents of histories, comparisons, environments and bisections of benchmarks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from assay.bench.flow.bisect import BenchBisect
from assay.bench.flow.selftest import BenchSelftestReport
from assay.bench.flow.tables import EnvironmentTable
from assay.bench.judge.samples import scale_visible
from assay.bench.records import Baseline
from assay.bench.report.executions import (
    build_bench_document,
    build_figure_columns,
    render_effect,
    render_figure,
    render_values,
)
from assay.bench.values.comparison import (
    TAKEN_BY_ALL,
    BenchSide,
    ComparisonReport,
    LastingChange,
    MetricChange,
    MetricComparison,
    MetricHistory,
    MetricPoint,
    MetricSeries,
)
from assay.errors import ExitCode
from assay.judge.bisection import build_culprit, build_suspects
from assay.show import table as tables
from assay.show.formatting import clean, render_count
from assay.show.terminal_report import render_terminal
from assay.system.fast_dataclasses import asdict, replace
from assay.values.document import Block, Document, Findings, Notes, Span, TableBlock, Text
from assay.values.plain import render_date
from assay.values.table import Column, Table
from assay.values.verdict import Finding, Verdict, VerdictKind

_BARS = "▁▂▃▄▅▆▇█"
_GAP = "·"
_MOST_BARS = 60
_NAMES = ("benchmark", "method")  # columns that contain dotted names


# ---------------------------------------------------------------- history


def build_history_document(title: str, histories: Sequence[MetricHistory]) -> Document:
    blocks = [block for history in histories for block in _build_history(history)]
    facts = [asdict(history) for history in histories]
    return build_bench_document(title, build_history_cases(histories), blocks, facts)


def build_history_cases(histories: Sequence[MetricHistory]) -> list[tuple[str, str, Verdict]]:
    return [(history.method, history.metric, history.verdict) for history in histories]


def _build_history(history: MetricHistory) -> Iterator[Block]:
    count = sum(len(series.points) for series in history.series)
    better = "perhaps " * history.guessed + ("lower" if history.direction == "min" else "higher")
    grey = sum(len(series.points) for series in history.aside)
    what = f" {history.method} {history.metric} ({better} is better): {render_count(count, 'execution')}"
    what += f", {grey} disturbed" if grey else ""
    yield Text((build_mark(history.verdict.kind), what))
    for series, aside in list_drawn(history):
        yield from _build_series(series, aside, history.metric)
    yield from build_changes(history)
    for reason, number in history.left_out.items():
        hint = " (include them with --all)" if reason in TAKEN_BY_ALL else ""
        yield Text(f"{render_count(number, 'execution')} left out: {reason}{hint}", indent=1)
    if history.instead:
        yield Text(f"cpu_time was not disturbed: `{history.instead}`", indent=1)


def list_drawn(history: MetricHistory) -> list[tuple[MetricSeries, tuple[MetricPoint, ...]]]:
    """Pair each series with the disturbed executions of its label and environment; a series may have only these."""
    aside = {(each.label, each.fingerprint): each for each in history.aside}
    drawn = []
    for series in history.series:
        disturbed = aside.pop((series.label, series.fingerprint), None)
        drawn.append((series, disturbed.points if disturbed else ()))
    return drawn + [(replace(each, points=()), each.points) for each in aside.values()]


def order_points(series: MetricSeries, aside: Sequence[MetricPoint]) -> list[tuple[MetricPoint, bool]]:
    """Return all points in the order in which they ran, and whether each counts."""
    both = [*((point, True) for point in series.points), *((point, False) for point in aside)]
    return sorted(both, key=lambda each: (each[0].at or 0.0, each[0].execution_id)) if aside else both


def build_mark(kind: VerdictKind) -> Span:
    return Span(str(kind), str(kind))


def _build_series(series: MetricSeries, aside: Sequence[MetricPoint], metric: str) -> Iterator[Text]:
    setup = ", ".join(f"{key} {value}" for key, value in series.setup.items()) or "unknown environment"
    label = f"label {series.label}; " if series.label else ""
    edges = [0, *(change.step.at for change in series.changes), len(series.points)]
    levels = [render_values(metric, [point.value for point in series.points[a:b]]) for a, b in pairwise(edges)]
    yield Text(f"{label}{setup}", indent=1)
    counted, disturbed = _draw([(point.value, counts) for point, counts in order_points(series, aside)])
    if series.points:
        yield Text(counted, indent=2)
    if aside:
        yield Text((Span(f"{disturbed}  disturbed", "soft"),), indent=2)
    if series.points:
        yield Text("levels: " + " → ".join(level or "-" for level in levels), indent=2)


def _draw(values: Sequence[tuple[float, bool]]) -> tuple[str, str]:
    """Draw two lines with a bar for each execution, or for each group of neighbours if there are many. Executions that
    count are in the first line, disturbed executions in the second line, both at their positions in the history."""
    size = -(-len(values) // _MOST_BARS)
    groups = [values[at : at + size] for at in range(0, len(values), size)]
    rows = [[[value for value, counts in group if counts is kind] for group in groups] for kind in (True, False)]
    heights = [[statistics.median(found) if found else None for found in row] for row in rows]
    known = [height for row in heights for height in row if height is not None]
    low, room = min(known) / 2, max(known) / 2 - min(known) / 2  # halved: differences of huge values overflow
    lines = [
        "".join(_GAP if h is None else _BARS[min(7, int(8 * ((h / 2 - low) / room))) if room else 0] for h in row)
        for row in heights
    ]
    return lines[0], lines[1]


def build_changes(history: MetricHistory) -> Iterator[Text]:
    """Build a line for each change, then for everything else that keeps the verdict from being PASS."""
    findings = history.verdict.findings
    for change, finding in zip(history.changes, findings, strict=False):
        yield Text(_describe_change(change, finding), indent=1)
    for finding in findings[len(history.changes) :]:
        yield Text((build_mark(finding.kind), f" {finding.message}"), indent=1)
    if not findings and not history.changes:
        seen = [describe_sight(series) for series in history.series if series.detectable]
        yield Text("; ".join(["no change", *(seen if len(seen) == 1 else [])]), indent=1)


def describe_sight(series: MetricSeries) -> str:
    """Describe which change would have been found in the last executions: a step needs several of them."""
    alone = f", one of {series.alone:.1%} in the newest alone" if series.alone else ""
    return f"a change of {series.detectable:.1%} in the last third of the executions would have been found{alone}"


def _describe_change(change: MetricChange, finding: Finding) -> tuple[str | Span, ...]:
    moment = render_date(change.at, "%Y-%m-%d %H:%M") if change.at else ""
    where = f"{moment} {change.execution_id}".strip()
    rest = finding.message.partition("; ")[2]
    effect = f"creep {render_effect(finding)} from" if change.kind == "trend" else render_effect(finding)
    effect = f"newest {effect}" if change.kind == "newest" else effect
    known = "worse" if change.is_worse else "better"
    mark = known if finding.kind is VerdictKind.PASS else build_mark(finding.kind)
    return mark, f" {effect} {where}: {rest}"


def build_changes_document(title: str, changes: Sequence[LastingChange], looked: int, short: int) -> Document:
    blocks = [block for change in changes for block in _build_lasting(change)]
    counts = [render_count(len(changes), "lasting change"), f"{render_count(looked, 'history', 'histories')} looked at"]
    counts += [f"{render_count(short, 'history', 'histories')} too short"] if short else []
    facts = {"changes": [asdict(change) for change in changes], "histories": looked, "too_short": short}
    cases = []
    for method, metric, each in ((change.method, *pair) for change in changes for pair in change.steps):
        levels, details = (each.step.after, each.step.before), (each.step.effect, each.step.interval)
        message = f"{metric} {'worse' if each.is_worse else 'better'} {describe_place(each)}"
        finding = Finding(VerdictKind.CHANGED, method, message, *levels, None, *details)
        cases.append((method, metric, Verdict.of([finding], 1)))
    return build_bench_document(title, cases, [*blocks, Text("; ".join(counts))], facts)


def _build_lasting(change: LastingChange) -> Iterator[Text]:
    """Build three lines: what changed, where it changed, and the command that shows the change."""
    effects = ", ".join(f"{metric} {each.step.effect:+.1%}" for metric, each in change.steps)
    first = change.first
    mark = Span("worse", str(VerdictKind.FAIL)) if first.is_worse else Span("better", str(VerdictKind.PASS))
    judged = f" ({first.judgement}{f': {first.note}' if first.note else ''})" if first.judgement else ""
    yield Text((mark, f" {change.method}: {effects}{judged}"))
    yield Text(f"{describe_place(first)}, {first.cause}: {first.reason}", indent=1)
    yield Text(change.command, indent=1)


def describe_place(change: MetricChange) -> str:
    day = render_date(change.at, "%Y-%m-%d") if change.at else ""
    before, after = (commit[:12] if commit else "?" for commit in change.commits)
    where = f"at {after}" if before == after else f"{before}..{after}"
    return f"{day} {where}".strip()


# ---------------------------------------------------------------- comparison


def build_comparison_document(report: ComparisonReport, *, allow_changed: bool = False) -> Document:
    return build_bench_document(
        f"assay bench compare: base {report.base}, head {report.head}",
        build_comparison_cases(report),
        list(_build_comparison(report)),
        asdict(report),
        allow_changed=allow_changed,
    )


def _build_comparison(report: ComparisonReport) -> Iterator[Block]:
    """Build a table for each environment, then the findings that are not PASS, the notes and the verdict."""
    yield Notes([f"{word}: {side}" for word, side in (("base", report.base), ("head", report.head)) if " " in side])
    methods = dict.fromkeys(metric.method for metric in report.metrics)
    yield Notes([*methods] if len(methods) == 1 else [])
    for setup in dict.fromkeys(metric.setup for metric in report.metrics):
        mine = [metric for metric in report.metrics if metric.setup == setup]
        yield Notes([f"environment: {setup}"] if setup else [])
        names = [clean(side).partition(" ")[0] for side in (report.base, report.head)]
        has_methods = len(methods) > 1
        table = build_comparison_table(names, mine, has_methods=has_methods)
        hint = "widen the terminal, or --json"
        yield TableBlock(table, split_by="benchmark" if has_methods else "", hint=hint)
    bad = [finding for finding in report.verdict.findings if finding.kind is not VerdictKind.PASS]
    yield Findings(bad, most=len(bad))
    yield Notes([*report.notes, *describe_visible(report)])
    count = render_count(report.verdict.comparisons, "metric")
    yield Text((build_mark(report.verdict.kind), f": {count} compared"))


def describe_visible(report: ComparisonReport) -> Iterator[str]:
    """Describe the smallest change that is visible with the noise and the trials of a comparison."""
    several = len({metric.method for metric in report.metrics}) > 1
    seen = []
    for metric in report.metrics:
        if metric.detectable is not None:
            words = [metric.method if several else "", metric.metric, f"({metric.setup})" if metric.setup else ""]
            seen.append(f"{' '.join(word for word in words if word)} {metric.detectable:.1%}")
    if seen:
        yield f"smallest worsening that 9 of 10 such comparisons call FAIL: {', '.join(seen)}"


def build_comparison_table(
    names: Sequence[str], metrics: Sequence[MetricComparison], *, has_methods: bool = True, is_whole: bool = False
) -> Table:
    """Build a table. `names`: names of the sides. `is_whole`: with reasons, and environments if there are several."""
    sides = names if names[0] != names[1] else ("base", "head")
    shown: Sequence[tuple[bool, Column, Callable[[MetricComparison], object]]] = (
        (True, Column("verdict", "state"), lambda each: str(each.finding.kind)),
        (has_methods, Column("benchmark", rank=2, cut="left"), lambda each: each.method),
        (True, Column("metric"), lambda each: each.metric),
        (is_whole and any(metric.setup for metric in metrics), Column("environment"), lambda each: each.setup),
        (True, Column(sides[0], "text", "right", cut="never"), lambda each: _render_side(each, each.base)),
        (True, Column(sides[1], "text", "right", cut="never"), lambda each: _render_side(each, each.head)),
        (True, Column("change", "text", "left", cut="never"), lambda each: _split_effect(each)[0]),
        (True, Column("interval", "text", "left", cut="never", rank=1), lambda each: _split_effect(each)[1]),
        (is_whole, Column("reason"), lambda each: each.finding.message),
    )
    columns = [(column, render) for is_shown, column, render in shown if is_shown]
    rows = [[render(metric) for _, render in columns] for metric in metrics]
    return Table(tuple(column for column, _ in columns), rows)


def _render_side(metric: MetricComparison, side: BenchSide) -> str | Span | None:
    return render_figure(metric.metric, side.values, side.aside)


def _split_effect(metric: MetricComparison) -> tuple[str | None, str | None]:
    """Return the change and its interval, in columns of their own: a narrow terminal has room for the change alone."""
    change, _, interval = (render_effect(metric.finding) or "").partition(" ")
    return change or None, interval or ("not significant" if change else None)  # no interval: few values


def build_comparison_cases(report: ComparisonReport) -> list[tuple[str, str, Verdict]]:
    cases = [
        (each.method, f"{each.metric} ({each.setup})" if each.setup else each.metric, Verdict.of([each.finding], 1))
        for each in report.metrics
    ]
    judged = [metric.finding for metric in report.metrics]
    return cases + [
        (found.subject, "execution", Verdict.of([found], 0)) for found in report.verdict.findings if found not in judged
    ]


def build_baselines_document(baselines: Mapping[str, Baseline]) -> Document:
    columns = (Column("baseline"), Column("of"), Column("commit"), Column("executions", "number"), Column("set"))
    rows = [
        [name, each.what, (each.commit or "-")[:12], len(each.runs), render_date(each.at, "%Y-%m-%d %H:%M")]
        for name, each in sorted(baselines.items())
    ]
    empty = Text("there is no baseline; set one: `assay bench baseline set NAME`")
    facts = {name: asdict(each) for name, each in baselines.items()}
    return Document("assay bench baseline", [TableBlock(Table(columns, rows)) if rows else empty], facts=facts)


def build_selftest_document(found: BenchSelftestReport) -> Document:
    counts = (found.found.trials, *(count for count in (10, 30, 100) if count > found.found.trials))
    columns = (Column("metric"), *(Column(f"{count} trials", "text", "right", cut="never") for count in counts))
    rows = [
        [metric, *(f"{scale_visible(visible, found.found.trials, count):.2%}" for count in counts)]
        for metric, visible in sorted(found.found.visible.items())
    ]
    verdict = found.report.verdict
    seen = {VerdictKind.PASS: "judged as equal", VerdictKind.FAIL: "judged as different"}
    open_ = [finding for finding in verdict.findings if finding.kind is not VerdictKind.PASS]
    lines = [f"{finding.subject}: {finding.message}" for finding in open_]
    kept = "`assay bench compare` refuses a smaller --min-effect on this machine from now on"
    if not found.kept:
        again = "run it again, with --trials 10 or more" if found.report.metrics else "nothing was measured"
        kept = f"nothing is kept of it: {again}"
    blocks: list[Block] = [
        Text((build_mark(verdict.kind), f" {found.method}: equal code is {seen.get(verdict.kind, 'not decided')}")),
        *([Text("smallest effect that 9 of 10 comparisons show, by their trials on each side:")] if rows else []),
        TableBlock(Table(columns, rows)),
        Notes([*lines, *found.report.notes, kept]),
    ]
    facts = {"method": found.method, "verdict": str(verdict.kind), "kept": found.kept, **asdict(found.found)}
    return build_bench_document("assay bench selftest", build_comparison_cases(found.report), blocks, facts)


# ---------------------------------------------------------------- environments, bisection


def render_setups(found: EnvironmentTable, form: str, width: int | None = None) -> str:
    """Render the table as `form`; in CSV and JSON medians and quartiles have columns of their own."""
    if form == "md":
        return tables.render_markdown(build_setup_table(found))
    if form == "text":
        table = TableBlock(build_setup_table(found), hint="choose with -m")
        return render_terminal(Document("", (table,)), width=width)
    names = [f"{name}.{part}" for name in found.metrics for part in ("median", "low", "high")]
    names += [f"{name}.left_out" for name in found.disturbed]
    columns = [*(Column(key) for key in found.by), *(Column(name, "number", digits=None) for name in ("n", *names))]
    cells = []
    for row in found.rows:
        figures = [figure for name in found.metrics for figure in _quartiles(row.values[name])]
        cells.append([*row.keys, row.count, *figures, *(len(row.aside[name]) for name in found.disturbed)])
    quartiles = Table(tuple(columns), cells)
    return tables.render_csv(quartiles) if form == "csv" else tables.render_json(quartiles) + "\n"


def build_setup_table(found: EnvironmentTable) -> Table:
    """Build the table, without metrics that no row has."""
    metrics = [name for name in found.metrics if any(row.values[name] or row.aside[name] for row in found.rows)]
    columns = [Column(key, cut="left" if key in _NAMES else "anywhere") for key in found.by]
    columns += [Column("n", "number", digits=None), *build_figure_columns(metrics)]
    cells = [
        [*row.keys, row.count, *(render_figure(name, row.values[name], row.aside[name]) for name in metrics)]
        for row in found.rows
    ]
    return Table(tuple(columns), cells)


def _quartiles(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    if len(values) < 2:  # a single value stays as reported: a mean would make 7 a 7.0, and overflow for 1e308
        only = next(iter(values), None)
        return only, only, only
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def choose_exit_code(found: BenchBisect) -> ExitCode:
    if found.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if found.culprit else ExitCode.INCONCLUSIVE


def build_bisect_document(found: BenchBisect) -> Document:
    facts = {"exit_code": int(choose_exit_code(found)), **asdict(found)}
    return Document("assay bench bisect", list(_build_bisect(found)), facts=facts)


def _build_bisect(found: BenchBisect) -> Iterator[Block]:
    """Build the culprit and its evidence, or the suspects; then all answers."""
    if found.culprit:
        yield from build_culprit(found.culprit)
        if evidence := found.evidence:
            yield Text(f"{evidence.method} {evidence.metric}: {evidence.finding.message}", indent=1)
            for side in (evidence.base, evidence.head):
                yield Text(f"{side.name}: {render_values(evidence.metric, side.values)}", indent=1)
    elif found.suspects:
        yield from build_suspects(found.suspects)
    elif found.stuck:
        yield Text(f"not found: {found.stuck}")
    if found.resumed and not found.culprit:
        yield Text("what an earlier call found counts as well: --fresh asks again")
    if not found.culprit:
        yield Notes([f"{answer.commit[:12]} {answer.outcome}: {answer.message}" for answer in found.answers])
    tried = len({answer.commit for answer in found.answers})
    before = f", {found.resumed} of them by an earlier call" if found.resumed else ""
    answers = f"{render_count(len(found.answers), 'answer')}{before}"
    yield Text(f"{tried} of {found.commits} commits tried, {answers}; log: {found.log}")
