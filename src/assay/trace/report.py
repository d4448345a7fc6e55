"""Two traces, or one, as a document: the answer, the points around it, error over depth and over steps."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

from assay.judge.statistics import load_numpy
from assay.show.formatting import render_count, render_number
from assay.system.fast_dataclasses import dataclass
from assay.trace.comparing import Recording
from assay.trace.judge.difference import NAMED, OUTERMOST, Comparison, First, render_error
from assay.trace.judge.errors import BEYOND, WITHIN
from assay.trace.judge.sides import Side
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
from assay.values.verdict import Verdict

_BEFORE, _AFTER = 5, 6  # rows of the table around the first wrong one
_MOST_NAMES = 40  # of points on an axis
_MOST_ROWS = 400  # of the page's table


@dataclass(frozen=True, slots=True)
class _View:
    """Everything that a report shows."""

    a: Recording
    b: Recording
    found: Comparison
    left: Side
    right: Side


def build_diff_document(a: Recording, b: Recording, found: Comparison, left: Side, right: Side) -> Document:
    view = _View(a, b, found, left, right)
    title = f"{found.kind} {a.label} and {b.label}"
    facts = Section((Facts([*_list_facts(view)]),))
    table = _build_table(view)
    blocks: list[Block] = [
        Only(("html", "markdown"), (Heading(f"{a.label} and {b.label}", found.kind, level=1),)),
        Section([Text(each, role="answer") for each in _list_answers(found.verdict)]),
        facts,
        Only(("html",), (Section([*_build_charts(view)], "Error over depth and steps"),)),
        *(
            (Section((table,), "Around the first difference" if found.first else "The largest errors"),)
            if table
            else ()
        ),
        Section((Notes(found.notes),), "Also"),
        Section((Commands([*_list_commands(view)]),)),
    ]
    return Document(title, blocks, facts=build_facts(view))


def _list_answers(verdict: Verdict) -> Iterator[tuple[str | Span, ...]]:
    for finding in verdict.findings:
        subject = "" if finding.subject in finding.message else f" {finding.subject}"
        yield (Span(str(finding.kind), str(finding.kind)), f"{subject}: {finding.message}")


def _list_facts(view: _View) -> Iterator[tuple[str, str]]:
    found, first = view.found, view.found.first
    for letter, recording in (("A", view.a), ("B", view.b)):
        ranks = f", {render_count(len(recording.ranks), 'rank')}" if len(recording.ranks) > 1 else ""
        yield letter, f"{recording.label}{ranks}"
    if first is not None:
        yield from _list_first(first)
    growth = [f"step {step} {render_error(error)}" for step, error, _ in _list_growth(view)[:6]]
    if any(error for _, error, _ in _list_growth(view)):
        yield "growth", f"largest error of a parameter or output: {', '.join(growth)}"
    cover = found.coverage
    ways = ", ".join(f"{count} by {how}" for how, count in sorted(cover.by.items(), key=lambda each: -each[1]))
    yield (
        "coverage",
        f"{cover.fraction:.0%} of the points, {render_count(cover.rows, 'tensor')}; pairs: {ways or 'none'}",
    )
    counts = [len(view.a.noise), len(view.b.noise)]
    limits = f"up to {WITHIN:g} times it is noise, from {BEYOND:g} times on it is not"
    noise = f"perturbed executions: {counts[0]} of A, {counts[1]} of B; {limits}"
    yield "noise", noise if any(counts) else "not recorded: every difference is CHANGED"


def _list_first(first: First) -> Iterator[tuple[str, str]]:
    mine, theirs = (_shorten(each) for each in first.source)
    if mine or theirs:
        same = mine == theirs or not theirs
        yield "source", mine if same else f"{mine or 'unknown'} in A, {theirs} in B"
    if first.error_out is not None:
        noise = f", noise {render_error(first.noise)}" if first.noise is not None else ""
        yield "error", f"in {render_error(first.error_in)}, out {render_error(first.error_out)}{noise}"


def _shorten(source: str) -> str:
    """From here where it is below."""
    path, _, line = source.rpartition(":")
    return f"{os.path.relpath(path)}:{line}" if path.startswith(os.getcwd() + os.sep) else source


def _list_commands(view: _View) -> Iterator[tuple[str, str]]:
    found = view.found
    if found.other_precision:
        kind = {"bfloat16": "torch-bf16"}.get(found.other_precision, "torch-compile")
        yield "each layer alone decides it", f"assay model check net.py:build --target {kind}"


# ---------------------------------------------------------------- the table


def _build_table(view: _View) -> TableBlock | None:
    found = view.found
    numbers = _choose_rows(found)
    if not len(numbers):
        return None
    renamed = any(mine != theirs for mine, theirs in (_name(view, n) for n in numbers))
    columns = (
        Column("step", "number", digits=None, rank=1), Column("phase", rank=2), Column("module", cut="left"),
        *((Column("module of B", cut="left", rank=1),) if renamed else ()),
        Column("norm of A", "number", rank=4), Column("of B", "number", rank=4), Column("error", align="right"),
        Column("noise", align="right"), Column("paired by", rank=3), Column("source", cut="left", rank=5),
    )  # fmt: skip
    rows = [_build_row(view, n, renamed) for n in numbers]
    ratio = found.compared.ratio
    first = found.first.index if found.first else -1
    limit = WITHIN if found.has_noise else 0.0
    roles = ["FAIL first" if n == first else "FAIL" if ratio[n] > limit else "" for n in numbers]
    keep = [i for i, name in enumerate(columns) if name.name != "noise" or found.has_noise]
    table = Table(tuple(columns[i] for i in keep), [[row[i] for i in keep] for row in rows])
    return TableBlock(table, roles=roles, hint="--json has them")


def _choose_rows(found: Comparison) -> list[int]:
    """Around the first wrong one; without one the largest errors."""
    np = load_numpy()
    total = len(found.compared.a)
    if found.first is not None and found.first.index >= 0:
        at = found.first.index
        return list(range(max(0, at - _BEFORE), min(total, at + _AFTER)))
    worst = np.argsort(-found.compared.error, kind="stable")[: _BEFORE + _AFTER]
    return sorted(int(n) for n in worst if found.compared.error[n] > 0)


def _name(view: _View, number: int) -> tuple[str, str]:
    """What a row is called in A and in B."""
    compared = view.found.compared
    keys = view.left.keys[int(compared.point[number])], view.right.keys[int(compared.other[number])]
    return _join(keys[0]), _join(keys[1])


def _join(key: tuple[Any, ...]) -> str:
    name = f"{key[1]}.{key[2]}".strip(".") if key[0] in NAMED else key[1] or OUTERMOST
    again = f" call {key[3] + 1}" if key[3] else ""
    return f"{name}{again}{f' rank {key[6]}' if key[6] else ''}"


def _build_row(view: _View, number: int, renamed: bool) -> list[Any]:
    found, compared = view.found, view.found.compared
    i = int(compared.point[number])
    squares = (view.left.rows["sumsq"][int(compared.a[number])], view.right.rows["sumsq"][int(compared.b[number])])
    point = view.left.points[i]
    names = _name(view, number)[: 2 if renamed else 1]
    how = found.pairs.how[i] or "fused weights"
    return [
        int(compared.step[number]), point.phase, *names,
        *(float(each) ** 0.5 for each in squares), _show(compared.error[number]), _show(compared.noise[number]), how,
        _shorten(point.source or ""),
    ]  # fmt: skip


def _show(value: float) -> str:
    return "0" if value == 0 else render_number(float(value), 2)


# ---------------------------------------------------------------- charts


class _Log:
    """A logarithmic axis; equal bits are at its bottom, what is infinite at its top."""

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
        return [
            (self.bottom, "0"),
            *((float(p), f"1e{p}" if p else "1") for p in range(self.low, self.high + 1, stride)),
        ]


def _build_charts(view: _View) -> Iterator[Block]:
    found = view.found
    if not len(found.compared.a):
        return
    step = found.first.step if found.first else int(found.compared.step[0])
    yield Legend(
        [("accumulated", "line", "error"), *([("band", "area", "within noise")] if found.has_noise else []),
         ("first", "dash", "the first difference")]
    )  # fmt: skip
    yield _build_depth(view, step)
    if len(_list_growth(view)) > 1:
        yield _build_steps(view)


def _build_depth(view: _View, step: int) -> Chart:
    """Every point of a step, in the order of execution."""
    np = load_numpy()
    compared, found = view.found.compared, view.found
    first = found.first.index if found.first else -1
    state = np.array([key[0] == "optimiser" for key in view.left.keys], bool)  # between parameters, in other units
    numbers = [int(n) for n in np.flatnonzero(compared.step == step) if n == first or not state[compared.point[n]]]
    names = [f"{view.left.points[int(compared.point[n])].phase} {_name(view, n)[0]}" for n in numbers]
    errors, noise = [float(compared.error[n]) for n in numbers], [WITHIN * float(compared.noise[n]) for n in numbers]
    marks = [float(x) for x, n in enumerate(numbers) if n == first]
    texts = [f"{name}\nerror {_show(error)}" for name, error in zip(names, errors, strict=True)]
    return _draw(
        f"step {step}, in the order of execution", errors, noise, marks, texts, _list_ticks(names, marks), view
    )


def _list_ticks(names: Sequence[str], marks: Sequence[float]) -> list[tuple[float, str]]:
    shown = [name.partition(" ")[2] for name in names]
    if len(names) <= _MOST_NAMES:
        return [(float(x), name) for x, name in enumerate(shown)]
    stride = math.ceil(len(names) / 12)
    near = [x for x in range(0, len(names), stride) if all(abs(x - at) > stride / 2 for at in marks)]
    return sorted([*((float(x), shown[x]) for x in near), *((at, shown[int(at)]) for at in marks)])


def _build_steps(view: _View) -> Chart:
    growth = _list_growth(view)
    first = view.found.first.step if view.found.first else None
    errors, noise = [error for _, error, _ in growth], [WITHIN * each for _, _, each in growth]
    marks = [float(x) for x, (step, _, _) in enumerate(growth) if step == first]
    texts = [f"step {step}\nlargest error {_show(error)}" for step, error, _ in growth]
    ticks = [(float(x), str(step)) for x, (step, _, _) in enumerate(growth)]
    return _draw("largest error of a parameter or output, by step", errors, noise, marks, texts, ticks, view)


def _draw(
    title: str, errors: Sequence[float], noise: Sequence[float], marks: Sequence[float], texts: Sequence[str],
    ticks: Sequence[tuple[float, str]], view: _View,
) -> Chart:  # fmt: skip
    has_noise = view.found.has_noise
    scale = _Log([*errors, *(noise if has_noise else ())])
    points = [(float(x), scale.y(error)) for x, error in enumerate(errors)]
    upper = [(float(x), scale.y(each)) for x, each in enumerate(noise)]
    areas = [Area(upper, [(x, scale.bottom) for x, _ in upper], "band")] if has_noise else []
    curve = Curve(points, "accumulated", marker="dot")
    wrong = Curve([points[int(x)] for x in marks], "cross", line=False, marker="cross")
    panel = Panel([curve, wrong], areas, y_range=(scale.bottom, scale.top), ticks=scale.ticks(), height=240)
    hovers = [(float(x), text) for x, text in enumerate(texts)] if len(texts) <= _MOST_ROWS else []
    return Chart(
        title, [panel], f"error, {title}", lines=marks, hovers=hovers, x_range=(-0.5, len(errors) - 0.5), x_ticks=ticks,
        is_wide=True,
    )  # fmt: skip


def _list_growth(view: _View) -> list[tuple[int, float, float]]:
    """Step, largest error of an output or parameter, and the noise of the same row."""
    np = load_numpy()
    compared = view.found.compared
    phases = np.array([key[0] in ("forward", "loss", "parameter") for key in view.left.keys], bool)
    growth = []
    for step in np.unique(compared.step):
        at = np.flatnonzero((compared.step == step) & phases[compared.point])
        if len(at):
            worst = at[int(compared.error[at].argmax())]
            growth.append((int(step), float(compared.error[worst]), float(compared.noise[worst])))
    return growth


# ---------------------------------------------------------------- JSON


def build_facts(view: _View) -> dict[str, Any]:
    found, cover = view.found, view.found.coverage
    return {
        "verdict": str(found.kind),
        "first": _build_first(found.first),
        "coverage": {"fraction": cover.fraction, **build_plain(cover)},
        "findings": build_plain(found.verdict.findings),
        "causes": build_plain(found.causes),
        "notes": list(found.notes),
        "a": view.a.folder,
        "b": view.b.folder,
        "noise": {"a": len(view.a.noise), "b": len(view.b.noise), "within": WITHIN, "beyond": BEYOND},
        "growth": [
            dict(zip(("step", "error", "noise"), build_plain(each), strict=True)) for each in _list_growth(view)
        ],
        "commands": [command for _, command in _list_commands(view)],
        "points": [_build_point(view, n) for n in _choose_rows(found)],
    }


def _build_first(first: First | None) -> dict[str, Any] | None:
    if first is None:
        return None
    facts: dict[str, Any] = build_plain(first)
    return {name: value for name, value in facts.items() if name != "index"}


def _build_point(view: _View, number: int) -> dict[str, Any]:
    compared = view.found.compared
    i = int(compared.point[number])
    return {
        "step": int(compared.step[number]),
        "phase": view.left.points[i].phase,
        **dict(zip("ab", _name(view, number), strict=True)),
        "error": build_plain(float(compared.error[number])),
        "noise": float(compared.noise[number]),
        "how": view.found.pairs.how[i] or "fused weights",
    }


# ---------------------------------------------------------------- one trace alone


def build_finite_document(a: Recording, verdict: Verdict, first: First | None, side: Side) -> Document:
    pairs = [("trace", a.label), ("tensors", str(len(side.rows)))]
    pairs += [*_list_first(first)] if first else []
    facts = {
        "verdict": str(verdict.kind), "first": _build_first(first), "coverage": {"rows": len(side.rows)},
        "findings": build_plain(verdict.findings),
    }  # fmt: skip
    answers = Section([Text(each, role="answer") for each in _list_answers(verdict)])
    heading = Only(("html", "markdown"), (Heading(a.label, verdict.kind, level=1),))
    return Document(f"{verdict.kind} {a.label}", [heading, answers, Section((Facts(pairs),))], facts=facts)
