"""Builds the content of the pages of models: the list of checks, and a check with its graph, tensors and history."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import nlargest
from typing import Any

from assay.errors import AssayError, FormatError, NotFoundError, UsageError
from assay.follow.api import StudyLocation, open_index_of
from assay.models.commands.diff import draw_diff, load_side
from assay.models.judge.tensors import judge_outputs
from assay.models.records import MODEL_FILE, judge_run, load_report
from assay.models.report import tensor_diff
from assay.models.report.check import CASES, build_document
from assay.models.report.summary import (
    CaseMetrics,
    build_case_metrics,
    build_diff_commands,
    label_of,
    name_subject,
    render_error,
    render_ms,
)
from assay.models.values.model import STUDY, WRONG, CaseReport, ModelReport, Step, Tolerances
from assay.models.values.tensors import TensorComparison, TensorDiff
from assay.reading.api import load_fresh_table
from assay.record.index.base import RunRow
from assay.record.received import describe_facts
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.document import (
    Block,
    Chart,
    Content,
    Curve,
    Document,
    Heading,
    Panel,
    Section,
    Span,
    TableBlock,
    Text,
    choose_blocks,
)
from assay.values.plain import render_date
from assay.values.state import State
from assay.values.table import Column, Table
from assay.values.verdict import VerdictKind

_MOST_CHECKS = 400  # checks that are read for a list
_MOST_BEFORE = 40  # checks in a history
_MOST_NODES = 400  # nodes in the drawing of a graph
_MOST_MODELS = 12  # models in a report, with their layers
_MOST_BYTES = 128 << 20  # largest tensor that is compared on a page


def is_model_study(location: StudyLocation) -> bool:
    return location.name == STUDY


# ---------------------------------------------------------------- checks


@dataclass(frozen=True, slots=True)
class CheckSummary:
    """A check for lists and histories. `kind` is None without a report; `problem` explains why no result is valid."""

    run: str
    at: float
    stem: str
    target: str
    goal: str
    kind: VerdictKind | None = None
    first_wrong: str = ""
    error: float | None = None  # error of the full model
    compile_s: float | None = None
    run_s: float | None = None
    problem: str = ""
    received: str = ""  # the sender of an uploaded check

    @property
    def subject(self) -> tuple[str, str]:
        return self.stem, self.target


def list_checks(location: StudyLocation, rows: Sequence[RunRow]) -> list[CheckSummary]:
    """List checks, newest first: at most `_MOST_CHECKS` local ones, and as many uploaded ones."""
    sides = ([row for row in rows if row.is_foreign is is_foreign] for is_foreign in (False, True))
    newest = [row for side in sides for row in nlargest(_MOST_CHECKS, side, key=_find_time)]
    ordered = sorted(newest, key=_find_time, reverse=True)
    return [_summarise_row(location, row) for row in ordered]


def _find_time(row: RunRow) -> float:
    return row.started_at or row.created_at or 0.0


def _summarise_row(location: StudyLocation, row: RunRow) -> CheckSummary:
    run = row.key.partition("/")[2]
    at = row.ended_at or row.started_at or row.created_at or 0.0
    stem = row.title or os.path.splitext(os.path.basename(str(row.params.get("model", run))))[0]
    target, goal = (str(row.params.get(name, "")) for name in ("target", "goal"))
    check = CheckSummary(run, at, stem, target, goal, received=describe_facts(row.received))
    path = os.path.join(location.dir, run)
    try:
        stat = os.stat(os.path.join(path, MODEL_FILE))
    except OSError:
        return replace(check, problem=row.reason or f"{row.state}: there is no report")
    return replace(check, **_summarise(path, row.state, row.reason, stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=4096)
def _summarise(path: str, state: State, reason: str, _mtime: int, _size: int) -> Mapping[str, Any]:
    try:
        found = load_report(path)
    except (AssayError, OSError) as error:
        return {"problem": error.message if isinstance(error, AssayError) else str(error)}
    if found is None:
        return {"problem": "there is no report"}
    report = judge_run(found, state, reason)
    whole = next((case for case in report.cases if case.layer is None), None)
    numbers = build_case_metrics(whole) if whole else None
    first = next((case for case in report.cases if case.name == report.first_wrong), None)
    return {
        "stem": report.stem,
        "target": os.path.basename(report.other) or report.target,
        "kind": report.verdict.kind,
        "problem": "" if report is found else report.findings[-1].message,
        "first_wrong": label_of(first, report) if first else "",
        "error": numbers.accumulated if numbers else None,
        "compile_s": numbers.compile_s if numbers else None,
        "run_s": numbers.run_s if numbers else None,
    }


def group_checks(checks: Sequence[CheckSummary]) -> list[list[CheckSummary]]:
    """Group the checks by model and target, the newest first."""
    groups: dict[tuple[str, str], list[CheckSummary]] = {}
    for check in checks:
        groups.setdefault(check.subject, []).append(check)
    return [*groups.values()]


@dataclass(frozen=True, slots=True)
class ModelPage:
    report: ModelReport | None
    problem: str
    blocks: Sequence[Block] = ()
    graph: LayerGraph | None = None
    diffs: tuple[DiffLink, ...] = ()
    history: Sequence[Block] = ()
    layers: tuple[LayerRow, ...] = ()

    @property
    def parts(self) -> tuple[list[Block], list[Block], list[Block]]:
        """The report in three parts: title, facts and answer; the blocks before the table of cases, which `layers`
        replaces; the blocks after that table."""
        blocks = choose_blocks(self.blocks, "html")
        end = len(blocks)
        top = next((n for n, each in enumerate(blocks) if not isinstance(each, Heading | Text)), end)
        cases = next((n for n, each in enumerate(blocks) if isinstance(each, Section) and each.title == CASES), end)
        return blocks[:top], blocks[top:cases], blocks[cases + 1 :]


def build_model_page(location: StudyLocation, row: RunRow, checks: Sequence[CheckSummary]) -> ModelPage:
    """Build the page of a check. `checks` are all checks of the study. A damaged report is the page's `problem`."""
    run = row.key.partition("/")[2]
    try:
        report = load_report(os.path.join(location.dir, run))
    except FormatError as error:
        return ModelPage(None, f"{error.message}: {error.hint}" if error.hint else error.message)
    if report is None:
        known = next((check.problem for check in checks if check.run == run), "")
        return ModelPage(None, known or "there is no report")
    report = judge_run(report, row.state, row.reason)
    subject = (report.stem, report.target)
    mine = [check for check in reversed(checks) if check.subject == subject and check.goal == "check"]
    return ModelPage(
        report, "", build_document(report).blocks, build_graph(report), list_diffs(report),
        list(build_history(mine[-_MOST_BEFORE:])), tuple(_build_row(case, report) for case in report.cases),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class DiffLink:
    """A pair of tensors that differ, with the command that shows them."""

    case: str
    label: str
    number: int  # position among the case's pairs
    command: str


def list_diffs(report: ModelReport) -> tuple[DiffLink, ...]:
    """List all pairs that differ, those of the first wrong layer before all others."""
    return tuple(
        DiffLink(case.name, label_of(case, report), number, command)
        for case in sorted(report.cases, key=lambda case: case.name != report.first_wrong)
        for number, command in enumerate(build_diff_commands(case))
    )


def build_history(checks: Sequence[CheckSummary]) -> Iterator[Block]:
    """Build charts of the full model's error, run time and compile time over `checks`, which are oldest first."""
    if len(checks) < 2:
        return
    blocks = [*_build_error_chart(checks)]
    for name, seconds in (("run", [each.run_s for each in checks]), ("compile", [each.compile_s for each in checks])):
        points = [(float(n), 1000 * value) for n, value in enumerate(seconds, 1) if value is not None]
        if len(points) > 1:
            texts = [f"{render_ms(value / 1000)} ms" for _, value in points]
            curves = [Curve(points, "allowed"), Curve(points, "c0 point", line=False, marker="dot", texts=texts)]
            title = Span(f"{name} time of the full model, ms", "strong")
            blocks.append(_build_chart(title, Panel(curves), f"{name} time over checks", len(checks)))
    if blocks:
        yield Section(blocks, "Accuracy and time over checks")


def _build_error_chart(checks: Sequence[CheckSummary]) -> Iterator[Block]:
    """Build a chart of errors by their power of ten; a dot is PASS, a cross is any other verdict."""
    known = [(n, each, each.error) for n, each in enumerate(checks, 1) if each.error is not None]
    found = [
        (float(n), math.log10(max(error, 1e-12)) if error < math.inf else 2.0, each)
        for n, each, error in known
        if not math.isnan(error)
    ]
    if not found:
        return
    curves = [Curve([(x, y) for x, y, _ in found], "allowed")]
    for is_pass in (True, False):
        some = [each for each in found if (each[2].kind is VerdictKind.PASS) is is_pass]
        texts = [
            f"{render_date(each.at, '%Y-%m-%d %H:%M')}\n{each.kind or each.problem}\nerror {render_error(each.error)}"
            for _, _, each in some
        ]
        points = [(x, y) for x, y, _ in some]
        style = "c2 point" if is_pass else "c1 crossed"
        curves.append(Curve(points, style, line=False, marker="dot" if is_pass else "cross", texts=texts))
    powers = range(math.floor(min(y for _, y, _ in found)), math.ceil(max(y for _, y, _ in found)) + 1)
    ticks = [(float(p), "0" if p <= -12 else f"1e{p}") for p in powers]
    title = (Span("error of the full model", "strong"), Span("dot: PASS; cross: not", "soft"))
    panel = Panel(curves, y_range=(ticks[0][0] - 0.5, ticks[-1][0] + 0.5), ticks=ticks)
    yield _build_chart(title, panel, "error over checks", len(checks))


def _build_chart(title: Content, panel: Panel, label: str, count: int) -> Chart:
    return Chart(title, (panel,), label, x_range=(0.5, count + 0.5), x_label="check, the newest on the right")


# ---------------------------------------------------------------- the layers and their graph


LEVELS = (
    "bit-equal",
    "within the tolerance",
    "up to 10 times the tolerance",
    "up to 100 times the tolerance",
    "more than that",
    "broken or not computed",
)


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A case in the table and, if it is a layer, in the graph. Levels are indices of LEVELS; None: unknown."""

    case: CaseReport
    label: str
    numbers: CaseMetrics
    local_level: int | None
    accumulated_level: int | None
    is_first: bool

    @property
    def op(self) -> str:
        return ", ".join(self.case.layer.ops) if self.case.layer else ""

    @property
    def is_wrong(self) -> bool:
        return self.case.verdict.kind in WRONG

    @property
    def worst(self) -> float | None:
        return max((each for each in (self.numbers.local, self.numbers.accumulated) if each is not None), default=None)


def choose_layers(layers: Sequence[LayerRow], text: str = "", *, only_wrong: bool = False) -> list[LayerRow]:
    """Choose the layers that have all words of the text in their name or operator."""
    words = text.lower().split()
    return [
        layer
        for layer in layers
        if all(word in f"{layer.case.name} {layer.label} {layer.op}".lower() for word in words)
        and not (only_wrong and layer.case.verdict.kind is VerdictKind.PASS)
    ]


def _build_row(case: CaseReport, report: ModelReport) -> LayerRow:
    local, inside = ([_rate(each) for each in found] for found in (case.local, case.accumulated))
    failed = 5 if case.failed_step is not None else None
    return LayerRow(
        case,
        label_of(case, report),
        build_case_metrics(case),
        max(local, default=failed) if case.layer else None,
        max(inside, default=None),
        case.name == report.first_wrong,
    )


def _rate(compared: TensorComparison) -> int:
    error, allowed = compared.error, compared.tolerance.rel
    if compared.is_broken or not math.isfinite(error):
        return 5
    if error == 0:
        return 0
    ratio = error / allowed if allowed else math.inf
    return next((level for level, most in ((1, 1.0), (2, 10.0), (3, 100.0)) if ratio <= most), 4)


@dataclass(frozen=True, slots=True)
class GraphNode:
    layer: LayerRow
    x: float
    y: float


_NODE_W, _NODE_H, _GAP_X, _GAP_Y = 264, 26, 18, 22


@dataclass(frozen=True, slots=True)
class LayerGraph:
    width: int
    height: int
    nodes: tuple[GraphNode, ...]
    edges: tuple[str, ...]  # SVG paths
    left_out: int = 0
    node_width: int = _NODE_W


def build_graph(report: ModelReport) -> LayerGraph | None:
    """Build the graph of layers by distance from the inputs; a large model's is cut around the first wrong layer."""
    every = [case for case in report.cases if case.layer is not None]
    if not every:
        return None
    first = next((index for index, case in enumerate(every) if case.name == report.first_wrong), 0)
    start = max(0, min(first - _MOST_NODES // 2, len(every) - _MOST_NODES))
    cases = every[start : start + _MOST_NODES]
    makers: dict[str, int] = {}
    ranks: list[int] = []
    links: list[tuple[int, int]] = []
    for index, case in enumerate(cases):
        assert case.layer is not None
        before = sorted({makers[name] for name in case.layer.inputs if name in makers})
        links += [(other, index) for other in before]
        ranks.append(max((ranks[other] + 1 for other in before), default=0))
        makers |= dict.fromkeys(case.layer.outputs, index)
    columns: dict[int, int] = {}
    places = []
    for rank in ranks:
        column = columns.get(rank, 0)
        columns[rank] = column + 1
        places.append((10.0 + column * (_NODE_W + _GAP_X), 10.0 + rank * (_NODE_H + _GAP_Y)))
    nodes = tuple(GraphNode(_build_row(case, report), *place) for case, place in zip(cases, places, strict=True))
    edges = tuple(_draw_edge(places[a], places[b], is_next=ranks[b] == ranks[a] + 1) for a, b in links)
    width = 20 + max(columns.values()) * (_NODE_W + _GAP_X)
    height = 20 + (max(ranks) + 1) * (_NODE_H + _GAP_Y)
    return LayerGraph(width, height, nodes, edges, len(every) - len(cases))


def _draw_edge(start: tuple[float, float], end: tuple[float, float], *, is_next: bool) -> str:
    """Draw an edge as an SVG path: a curve to the next row, or lines between columns and rows to a later row."""
    x, y, half = end[0] + _NODE_W / 2, end[1], _GAP_Y / 2
    if not is_next:
        lane = start[0] + _NODE_W
        return f"M{lane:g} {start[1] + _NODE_H / 2:g}h{_GAP_X / 2:g}V{y - half:g}H{x:g}V{y:g}"
    begin_x, begin_y = start[0] + _NODE_W / 2, start[1] + _NODE_H
    return f"M{begin_x:g} {begin_y:g}C{begin_x:g} {begin_y + half:g} {x:g} {y - half:g} {x:g} {y:g}"


# ---------------------------------------------------------------- tensors


def build_tensor_blocks(
    location: StudyLocation, run: str, case_name: str, number: int
) -> tuple[Sequence[Block], tuple[DiffLink, ...]]:
    """Return the blocks of `assay model diff` for one output that differs, with the bounds of the check, and all pairs
    that differ. The blocks do not contain the paths of the files."""
    run_dir = os.path.join(location.dir, run)
    report = load_report(run_dir)
    cases = {case.name: case for case in report.cases if case.diffs} if report else {}
    if report is None or case_name not in cases:
        raise NotFoundError("case with tensors that differ", case_name, list(cases))
    case = cases[case_name]
    if not 0 <= number < len(case.diffs):
        raise NotFoundError("pair of tensors", str(number), [str(n) for n in range(len(case.diffs))])
    paths = case.diffs[number]
    for path in paths:  # a received report may name any file
        if "\0" in path or not os.path.realpath(path).startswith(os.path.join(os.path.realpath(run_dir), "")):
            raise UsageError("the tensors are not in the directory of the run", build_diff_commands(case)[number])
        if _measure(path) > _MOST_BYTES:
            raise UsageError("the tensors are too large for a page", build_diff_commands(case)[number])
    expected, actual = (load_side(path, None, None) for path in paths)
    known = {each.name: each.tolerance for each in (*case.accumulated, *case.local)}
    meant = _find_meant(case, number)
    if len(expected) == len(actual) == 1:  # a file of one tensor does not contain the tensor's name
        name = meant or next(iter(expected))
        expected, actual = ({name: array} for side in (expected, actual) for array in side.values())
    op = case.layer.ops[0] if case.layer and len(case.layer.ops) == 1 else None
    verdict, compared = judge_outputs(expected, actual, Tolerances(by_tensor=known), op=op)
    diffs = [draw_diff(TensorDiff(each, "", ""), expected[each.name], actual[each.name]) for each in compared]
    title = f"{label_of(case, report)} of {name_subject(report)}"
    return choose_blocks(tensor_diff.build_document(diffs, verdict, title=title).blocks, "html"), list_diffs(report)


def _find_meant(case: CaseReport, number: int) -> str:
    """Return the name of a pair's tensor: pair N is the Nth tensor that is wrong in isolation, else in the model."""
    for found in (case.local, case.accumulated):
        wrong = [each.name for each in found if each.verdict.kind is not VerdictKind.PASS]
        if len(wrong) == len(case.diffs):
            return wrong[number]
    return ""


def _measure(path: str) -> int:
    try:
        if not os.path.isdir(path):
            return os.path.getsize(path)
        entries = list(os.scandir(path))
        if any(entry.is_symlink() for entry in entries):
            raise UsageError(f"{path} holds links")
        return sum(entry.stat().st_size for entry in entries)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def build_times(location: StudyLocation, runs: Sequence[str]) -> Sequence[Block]:
    """Build a table of run times with layers as rows and checks as columns."""
    reports = [*filter(None, (load_report(os.path.join(location.dir, run)) for run in runs))]
    names = list(dict.fromkeys(label_of(case, report) for report in reports for case in report.cases))
    heads = [f"{number}: {name_subject(report)}" for number, report in enumerate(reports, 1)]
    rows = []
    for name in names:
        cells: list[str | None] = []
        for report in reports:
            case = next((each for each in report.cases if label_of(each, report) == name), None)
            seconds = case.seconds(Step.RUN) if case and case.failed_step is None else None
            cells.append(render_ms(seconds) if seconds is not None else case.outcome if case else None)
        rows.append([name, *cells])
    columns = (Column("layer"), *(Column(head, align="right") for head in heads))
    return [Section([TableBlock(Table(columns, rows))], "Run time of each layer, ms")]


# ---------------------------------------------------------------- `assay report`: one check, or each model's last check


def build_report(location: StudyLocation, wanted: str | None) -> Document | None:
    """Build the report of the run `wanted`, or of each model's last check on each target; None for unknown runs."""
    if not is_model_study(location):
        return None
    with open_index_of([location]) as index:
        rows = {row.key.partition("/")[2]: row for row in load_fresh_table(index, [location]).rows}
    checks = list_checks(location, [*rows.values()])
    if wanted is None:
        return Document("Models", [*_build_overview(location, rows, checks)])
    if wanted not in rows:
        return None
    page = build_model_page(location, rows[wanted], checks)
    if page.report is None:
        raise FormatError(page.problem)
    return Document(f"{page.report.verdict.kind} {page.report.stem}", [*page.blocks, *page.history])


def _build_overview(
    location: StudyLocation, rows: Mapping[str, RunRow], checks: Sequence[CheckSummary]
) -> Iterator[Block]:
    if not checks:
        raise UsageError(f"{location.dir}: no model has been checked yet", "assay model check MODEL.onnx")
    newest = [each[0] for each in group_checks(checks)]
    columns = (
        Column("model"), Column("target"), Column("verdict"), Column("when"), Column("first wrong layer"),
        Column("error", align="right"), Column("run ms", align="right"),
    )  # fmt: skip
    cells = [
        (
            check.stem, check.target, Span(str(check.kind), str(check.kind)) if check.kind else check.problem,
            render_date(check.at, "%Y-%m-%d %H:%M"), check.first_wrong, render_error(check.error) or "",
            render_ms(check.run_s) or "",
        )
        for check in newest
    ]  # fmt: skip
    yield Heading("Models", level=1, note=location.dir)
    yield TableBlock(Table(columns, cells))
    for check in newest[:_MOST_MODELS]:
        page: ModelPage = build_model_page(location, rows[check.run], checks)
        yield from (*page.blocks, *page.history)
