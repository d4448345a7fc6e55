"""Builds documents: the comparison of two traces (verdict, table, charts), the verdict on one, the listing of one."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from assay.judge.statistics import np
from assay.show.formatting import render_count
from assay.trace.comparing import Traces, compare
from assay.trace.judge.difference import NAMED, OUTERMOST, Comparison, First, judge_finite, render_error
from assay.trace.judge.errors import BEYOND, WITHIN
from assay.trace.judge.sides import build_side
from assay.trace.records import NO_VALUES, Trace
from assay.values.document import (
    Area,
    Block,
    Chart,
    Commands,
    Curve,
    Document,
    Facts,
    Heading,
    Legend,
    Notes,
    Only,
    Panel,
    Section,
    Span,
    TableBlock,
    Text,
)
from assay.values.plain import build_plain
from assay.values.table import Column, Table
from assay.values.verdict import Verdict, VerdictKind

_BEFORE, _AFTER = 5, 6  # rows of the table before the first difference, and from it on
_MOST_NAMES = 40  # the most names of points on an axis
_MOST_ROWS = 400  # the most points of a chart whose points have texts
Growth = tuple[int, float, float]  # step, error, noise


def build_report(a: Traces, b: Traces | None, names: str | None = None) -> tuple[Document, Verdict]:
    """Build a report of two traces compared, or of one alone. `names`: a file that `compare` reads."""
    if b is not None:
        found = compare(a, b, names)
        return _build_diff(a, b, found), found.verdict
    side = build_side(a.ranks)
    verdict, first = judge_finite(side)
    facts = {
        "verdict": str(verdict.kind), "first": _build_first(first), "coverage": {"rows": len(side.rows)},
        "findings": build_plain(verdict.findings),
    }  # fmt: skip
    pairs = [("trace", a.label), ("tensors", str(len(side.rows))), *(_list_first(first) if first else ())]
    blocks = [*_list_answers(a.label, verdict), Section((Facts(pairs),))]
    return Document(f"{verdict.kind} {a.label}", blocks, facts=facts), verdict


def _build_diff(a: Traces, b: Traces, found: Comparison) -> Document:
    points, growth = [_build_point(found, n) for n in _choose_rows(found)], _list_growth(found)
    commands = []
    if found.other_precision:
        target = {"bfloat16": "torch-bf16"}.get(found.other_precision, "torch-compile")
        commands = [("each layer alone decides it", f"assay model check net.py:build --target {target}")]
    table = "Around the first difference" if found.first else "The largest errors"
    blocks: list[Block] = [
        *_list_answers(f"{a.label} and {b.label}", found.verdict),
        Section((Facts([*_list_facts(a, b, found, growth)]),)),
        Only(("html",), (Section([*_build_charts(found, growth)], "Error over depth and steps"),)),
        *((Section((_build_table(found, points),), table),) if points else ()),
        Section((Notes(found.notes),), "Also"),
        Section((Commands(commands),)),
    ]
    shown = ("step", "phase", "a", "b", "error", "noise", "how")
    facts = {
        "verdict": str(found.kind), "first": _build_first(found.first),
        "coverage": {"fraction": found.coverage.fraction, **build_plain(found.coverage)},
        "findings": build_plain(found.verdict.findings), "causes": build_plain(found.causes),
        "notes": list(found.notes), "a": a.folder, "b": b.folder,
        "noise": {"a": len(a.noise), "b": len(b.noise), "within": WITHIN, "beyond": BEYOND},
        "growth": [dict(zip(("step", "error", "noise"), build_plain(each), strict=True)) for each in growth],
        "commands": [command for _, command in commands],
        "points": [{name: build_plain(each[name]) for name in shown} for each in points],
    }  # fmt: skip
    return Document(f"{found.kind} {a.label} and {b.label}", blocks, facts=facts)


def _list_answers(title: str, verdict: Verdict) -> Iterator[Block]:
    yield Only(("html", "markdown"), (Heading(title, verdict.kind, level=1),))
    answers = []
    for finding in sorted(verdict.findings, key=lambda each: each.kind is VerdictKind.PASS):  # PASS findings come last
        subject = "" if finding.subject in finding.message else f" {finding.subject}"
        spans = (Span(str(finding.kind), str(finding.kind)), f"{subject}: {finding.message}")
        answers.append(Text(spans, role="answer"))
    yield Section(answers)


def _build_first(first: First | None) -> dict[str, Any] | None:
    facts: dict[str, Any] = build_plain(first) if first else {}
    return {name: value for name, value in facts.items() if name != "index"} or None


def _list_facts(a: Traces, b: Traces, found: Comparison, growth: Sequence[Growth]) -> Iterator[tuple[str, str]]:
    for letter, recording in (("A", a), ("B", b)):
        ranks = f", {render_count(len(recording.ranks), 'rank')}" if len(recording.ranks) > 1 else ""
        yield letter, f"{recording.label}{ranks}"
    if found.first is not None:
        yield from _list_first(found.first)
    if any(error for _, error, _ in growth):
        steps = ", ".join(f"step {step} {render_error(error)}" for step, error, _ in growth[:6])
        yield "growth", f"largest error of a parameter or output: {steps}"
    cover = found.coverage
    ways = ", ".join(f"{count} by {how}" for how, count in sorted(cover.by.items(), key=lambda each: -each[1]))
    rows = render_count(cover.rows, "tensor")
    yield "coverage", f"{cover.fraction:.0%} of the points, {rows}; pairs: {ways or 'none'}"
    limits = f"up to {WITHIN:g} times it is noise, from {BEYOND:g} times on it is not"
    noise = f"perturbed executions: {len(a.noise)} of A, {len(b.noise)} of B; {limits}"
    yield "noise", noise if a.noise or b.noise else "not recorded: every difference is CHANGED"


def _list_first(first: First) -> Iterator[tuple[str, str]]:
    mine, theirs = (_shorten(each) for each in first.source)
    if mine or theirs:
        same = mine == theirs or not theirs
        yield "source", mine if same else f"{mine or 'unknown'} in A, {theirs} in B"
    if first.error_out is not None:
        noise = f", noise {render_error(first.noise)}" if first.noise is not None else ""
        yield "error", f"in {render_error(first.error_in)}, out {render_error(first.error_out)}{noise}"


def _shorten(source: str) -> str:
    """Return a source with its path relative to the working directory, if the path is below this directory."""
    path, _, line = source.rpartition(":")
    return f"{os.path.relpath(path)}:{line}" if path.startswith(os.getcwd() + os.sep) else source


# ---------------------------------------------------------------- the table


def _choose_rows(found: Comparison) -> list[int]:
    """Choose the rows around the first difference; without a difference, the rows with the largest errors."""
    if found.first is not None and found.first.index >= 0:
        at = found.first.index
        return list(range(max(0, at - _BEFORE), min(len(found.compared.a), at + _AFTER)))
    worst = np.argsort(-found.compared.error, kind="stable")[: _BEFORE + _AFTER]
    return sorted(int(n) for n in worst if found.compared.error[n] > 0)


def _build_point(found: Comparison, number: int) -> dict[str, Any]:
    """Build the facts about a compared row."""
    compared = found.compared
    i, j = int(compared.point[number]), int(compared.other[number])
    squares = found.a.rows["sumsq"][int(compared.a[number])], found.b.rows["sumsq"][int(compared.b[number])]
    point = found.a.points[i]
    return {
        "number": number, "step": int(compared.step[number]), "phase": point.phase,
        "a": _join(found.a.keys[i]), "b": _join(found.b.keys[j]), "norms": [float(each) ** 0.5 for each in squares],
        "error": float(compared.error[number]), "noise": float(compared.noise[number]),
        "how": found.pairs.how[i] or "fused weights", "source": _shorten(point.source or ""),
    }  # fmt: skip


def _join(key: tuple[Any, ...]) -> str:
    name = f"{key[1]}.{key[2]}".strip(".") if key[0] in NAMED else key[1] or OUTERMOST
    again = f" call {key[3] + 1}" if key[3] else ""
    return f"{name}{again}{f' rank {key[6]}' if key[6] else ''}"


def _build_table(found: Comparison, points: Sequence[dict[str, Any]]) -> TableBlock:
    renamed = any(each["a"] != each["b"] for each in points)
    columns = [
        Column("step", "number", digits=None, rank=1), Column("phase", rank=2), Column("module", cut="left"),
        *((Column("module of B", cut="left", rank=1),) if renamed else ()),
        Column("norm of A", "number", rank=4), Column("of B", "number", rank=4), Column("error", align="right"),
        *((Column("noise", align="right"),) if found.has_noise else ()),
        Column("paired by", rank=3), Column("source", cut="left", rank=5),
    ]  # fmt: skip
    rows = [
        [
            each["step"], each["phase"], each["a"], *([each["b"]] if renamed else ()), *each["norms"],
            render_error(each["error"]), *([render_error(each["noise"])] if found.has_noise else ()),
            each["how"], each["source"],
        ]
        for each in points
    ]  # fmt: skip
    first, limit = found.first.index if found.first else -1, WITHIN if found.has_noise else 0.0
    numbers = [each["number"] for each in points]
    roles = ["FAIL first" if n == first else "FAIL" if found.compared.ratio[n] > limit else "" for n in numbers]
    return TableBlock(Table(tuple(columns), rows), roles=roles, hint="--json has them")


# ---------------------------------------------------------------- charts


class _Log:
    """A logarithmic axis; equal bits are at its bottom, infinite errors at its top."""

    def __init__(self, values: Sequence[float]) -> None:
        powers = [math.log10(each) for each in values if 1e-20 < each < math.inf] or [-8.0, -6.0]
        self.low, self.high = math.floor(min(powers)), max(math.ceil(max(powers)), math.floor(min(powers)) + 2)
        room = (self.high - self.low) / 12
        self.bottom, self.top = self.low - room, self.high + room

    def y(self, value: float) -> float:
        if value <= 0 or math.isinf(value):
            return self.bottom if value <= 0 else self.top
        return min(max(math.log10(value), self.bottom), self.top)

    def ticks(self) -> list[tuple[float, str]]:
        stride = math.ceil((self.high - self.low + 1) / 8)
        powers = range(self.low, self.high + 1, stride)
        return [(self.bottom, "0"), *((float(p), f"1e{p}" if p else "1") for p in powers)]


def _build_charts(found: Comparison, growth: Sequence[Growth]) -> Iterator[Block]:
    if not len(found.compared.a):
        return
    step = found.first.step if found.first else int(found.compared.step[0])
    noise = [("band", "area", "within noise")] if found.has_noise else []
    yield Legend([("accumulated", "line", "error"), *noise, ("first", "dash", "the first difference")])
    yield _build_depth(found, step)
    if len(growth) > 1:
        texts = [f"step {each}\nlargest error {render_error(error)}" for each, error, _ in growth]
        ticks = [(float(x), str(each)) for x, (each, _, _) in enumerate(growth)]
        marks = [float(x) for x, (each, _, _) in enumerate(growth) if found.first and each == step]
        title = "largest error of a parameter or output, by step"
        yield _draw(title, [each[1:] for each in growth], marks, texts, ticks, found.has_noise)


def _build_depth(found: Comparison, step: int) -> Chart:
    """Build a chart of every point of a step, in the order of execution."""
    compared, first = found.compared, found.first.index if found.first else -1
    is_state = found.a.find_phases("optimiser")[compared.point]  # states come between parameters, and have other units
    numbers = [n for n in np.flatnonzero(compared.step == step).tolist() if n == first or not is_state[n]]
    keys = [found.a.keys[int(compared.point[n])] for n in numbers]
    names, marks = [_join(key) for key in keys], [float(x) for x, n in enumerate(numbers) if n == first]
    errors = [(float(compared.error[n]), float(compared.noise[n])) for n in numbers]
    shown = zip(keys, names, errors, strict=True)
    texts = [f"{key[0]} {name}\nerror {render_error(error)}" for key, name, (error, _) in shown]
    title = f"step {step}, in the order of execution"
    ticks = [(float(x), name) for x, name in enumerate(names)]
    if len(names) > _MOST_NAMES:  # name some points, and the first difference
        stride = math.ceil(len(names) / 12)
        apart = [tick for tick in ticks[::stride] if all(abs(tick[0] - at) > stride / 2 for at in marks)]
        ticks = sorted([*apart, *(ticks[int(at)] for at in marks)])
    return _draw(title, errors, marks, texts, ticks, found.has_noise)


def _draw(
    title: str, errors: Sequence[tuple[float, float]], marks: Sequence[float], texts: Sequence[str],
    ticks: Sequence[tuple[float, str]], has_noise: bool,
) -> Chart:  # fmt: skip
    """Draw a chart. `errors`: the error and noise of each point. `marks`: the position of the first difference."""
    bounds = [WITHIN * noise for _, noise in errors] if has_noise else []
    scale = _Log([*(error for error, _ in errors), *bounds])
    points = [(float(x), scale.y(error)) for x, (error, _) in enumerate(errors)]
    upper = [(float(x), scale.y(each)) for x, each in enumerate(bounds)]
    areas = [Area(upper, [(x, scale.bottom) for x, _ in upper], "band")] if has_noise else []
    curve = Curve(points, "accumulated", marker="dot")
    wrong = Curve([points[int(x)] for x in marks], "cross", line=False, marker="cross")
    panel = Panel([curve, wrong], areas, y_range=(scale.bottom, scale.top), ticks=scale.ticks(), height=240)
    hovers = [(float(x), text) for x, text in enumerate(texts)] if len(texts) <= _MOST_ROWS else []
    return Chart(
        title, [panel], f"error, {title}", lines=marks, hovers=hovers, x_range=(-0.5, len(errors) - 0.5), x_ticks=ticks,
        is_wide=True,
    )  # fmt: skip


def _list_growth(found: Comparison) -> list[Growth]:
    """List the largest error of an output or parameter in each step."""
    compared = found.compared
    is_meant = found.a.find_phases("forward", "loss", "parameter")[compared.point]
    growth = []
    for step in np.unique(compared.step):
        at = np.flatnonzero((compared.step == step) & is_meant)
        if len(at):
            worst = at[int(compared.error[at].argmax())]
            growth.append((int(step), float(compared.error[worst]), float(compared.noise[worst])))
    return growth


# ---------------------------------------------------------------- what a trace contains

_COLUMNS = (
    Column("step", "number", digits=None), Column("phase"), Column("module", cut="left"), Column("tensor"),
    Column("shape", rank=2), Column("dtype", rank=3), Column("norm", "number"), Column("largest", "number", rank=1),
    Column("not finite", "number", digits=None, rank=1), Column("hash", rank=4), Column("source", cut="left", rank=5),
)  # fmt: skip


def build_listing(trace: Trace, step: int | None, only: Sequence[str]) -> Document:
    meta = trace.meta
    rows = list(_list_rows(trace, step, only))
    pairs = [
        ("level", f"{meta['level']}{', inside compiled regions' if meta.get('inside') else ''}"),
        ("process", f"rank {meta['rank']} of {meta['world']}, torch {meta['torch']}, {meta['device']}"),
        ("steps", ", ".join(_describe_step(each) for each in trace.steps) or "none was completed"),
        *([] if trace.is_complete else [("end", "the process did not end in order: what it recorded until then")]),
    ]
    names = [column.key or column.name for column in _COLUMNS]
    facts = {**meta, "steps": list(trace.steps), "rows": [dict(zip(names, row, strict=True)) for row in rows]}
    blocks = (Heading(os.path.relpath(trace.folder), level=1), Facts(pairs), TableBlock(Table(_COLUMNS, rows)))
    return Document("trace", blocks, facts=facts)


def _describe_step(facts: Any) -> str:
    loss, skipped = facts.get("loss"), " (skipped)" if facts.get("skipped") else ""
    return f"{facts['step']}{f' (loss {loss:.6g})' if loss is not None else ''}{skipped}"


def _list_rows(trace: Trace, step: int | None, only: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for row in trace.rows:
        point = trace.points[row["point"]]
        if step not in (None, row["step"]) or (only and not any(fnmatchcase(point.module, each) for each in only)):
            continue
        name = point.op or (f"{point.name} (call {point.call + 1})" if point.call else point.name)
        shape = "x".join(map(str, point.shape)) or "scalar"
        facts = (int(row["step"]), point.phase, point.module or point.kind, name, shape, point.dtype)
        values: tuple[Any, ...] = (None, None, None, "not read")
        if not row["flags"] & NO_VALUES:
            figures = (math.sqrt(row["sumsq"]), float(row["largest"]), int(row["nonfinite"]) or None)
            values = (*figures, f"{int(row['hash']):016x}")
        yield (*facts, *values, point.source)
