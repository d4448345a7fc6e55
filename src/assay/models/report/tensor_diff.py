"""Two tensors beside each other, for a terminal and as JSON: numbers, worst elements, histogram, heat map."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from assay.models.values.tensors import Element, Heat, Histogram, TensorComparison, TensorDiff
from assay.show import formatting
from assay.show.sections import Section, render_sections
from assay.system.terminal import STATE_COLORS, paint
from assay.values.table import Column, Table
from assay.values.verdict import Verdict, VerdictKind

_NARROW = 80  # columns where nobody says how many there are
_HEAT_ROWS = 24
_WIDEST_CELL = 3
_BAR = 36
_LEAST_ABS = 1e-30  # an absolute bound below this is what a type may lose near zero, and not worth a word
_EIGHTHS = "▏▎▍▌▋▊▉█"

# from which multiple of the tolerance on, its sign, the same in ASCII, colour, meaning
_LEVELS = (
    (0.0, "·", ".", "dim", "equal"),
    (1e-300, "░", "-", "green", "within the tolerance"),
    (1.0, "▒", "+", "yellow", "up to 10 times"),
    (10.0, "▓", "#", "red", "up to 100 times"),
    (100.0, "█", "@", "bold red", "more"),
    (math.inf, "X", "X", "bold magenta", "NaN or infinite on one side"),
)


def find_level(excess: float) -> int:
    """0: equal, 1: within the tolerance, up to 5: NaN or infinite on one side."""
    if excess == math.inf:
        return 5
    limits = [0.0, 1.0, 10.0, 100.0]
    return sum(excess > limit for limit in limits)


def describe_levels() -> tuple[str, ...]:
    return tuple(meaning for *_, meaning in _LEVELS)


# ---------------------------------------------------------------- all tensors


def render_diffs(
    diffs: Sequence[TensorDiff], verdict: Verdict, *, width: int | None = None, color: bool = False, plain: bool = False
) -> str:
    """With several tensors a table of all of them first; then everything about each that is not well."""
    sections = [Section(lines=[_headline(diffs, verdict, color)], facts=())]
    shown = list(diffs)
    if len(diffs) > 1:
        sections.append(Section("Tensors", table=_build_overview(diffs)))
        shown = [each for each in diffs if each.comparison.verdict.kind is not VerdictKind.PASS]
    named = {each.comparison.name for each in diffs}
    loose = [finding for finding in verdict.findings if finding.subject not in named]
    sections.append(
        Section(
            lines=[
                f"{finding.kind} {formatting.clean(finding.subject)}: {formatting.clean(finding.message)}"
                for finding in loose
            ]
        )
    )
    for diff in shown:
        sections += _build_sections(diff, width, color=color, plain=plain, titled=len(diffs) > 1)
    return render_sections(sections, width=width, color=color, plain=plain)


def _headline(diffs: Sequence[TensorDiff], verdict: Verdict, color: bool) -> str:
    kind = str(verdict.kind)
    shown = paint(kind, STATE_COLORS.get(kind, "bold")) if color else kind
    return f"{shown}: {describe_outcome(diffs, verdict)}"


def describe_outcome(diffs: Sequence[TensorDiff], verdict: Verdict) -> str:
    wrong = sum(each.comparison.verdict.kind is VerdictKind.FAIL for each in diffs)
    if len(diffs) != 1:
        return f"{formatting.render_count(len(diffs), 'tensor')} compared, {wrong} different"
    if verdict.kind is VerdictKind.PASS:
        is_equal = diffs[0].comparison.max_abs == 0
        return "the tensors are equal" if is_equal else "the tensors are the same within the tolerance"
    return "the tensors differ" if verdict.kind is VerdictKind.FAIL else "nothing is proved"


def _build_overview(diffs: Sequence[TensorDiff]) -> Table:
    columns = (
        Column("verdict", "state"),
        Column("tensor"),
        Column("shape", rank=1),
        Column("wrong", "number", digits=None),
        Column("max abs", "text", "right"),
        Column("max rel", "text", "right"),
    )
    rows = [
        [
            str(each.verdict.kind), each.name, render_shape(each.shape[0]), each.wrong, render_error(each.max_abs),
            render_error(each.error),
        ]
        for each in (diff.comparison for diff in diffs)
    ]  # fmt: skip
    return Table(columns, rows)


# ---------------------------------------------------------------- one tensor


def _build_sections(
    diff: TensorDiff, width: int | None, *, color: bool, plain: bool, titled: bool
) -> Iterator[Section]:
    found = diff.comparison
    findings = [f"{finding.kind}: {finding.message}" for finding in found.verdict.findings]
    facts = [("expected", diff.expected), ("actual", diff.actual), *_list_part(diff)]
    said = [*findings, *(f"note: {flag}" for flag in found.flags)]
    lines = [formatting.wrap(formatting.clean(text), width, "  ") for text in said]
    lines = [part for line in lines for part in line.split("\n")]
    yield Section(formatting.clean(found.name) if titled else "", facts=facts)
    yield Section(lines=lines)
    yield Section("Numbers", facts=list_numbers(found))
    yield Section("Worst elements", table=build_worst(found))
    if diff.histogram is not None:
        yield Section("Absolute errors", lines=_draw_histogram(diff.histogram, plain=plain, color=color))
    if diff.heat is not None and found.wrong:
        room = (_NARROW if width is None else width) - 2
        yield Section(
            f"Where: {describe_axes(diff.heat, found.shape[0])}",
            lines=_draw_heat(diff.heat, room, color=color, plain=plain),
        )


def _list_part(diff: TensorDiff) -> list[tuple[str, str]]:
    return [("part", f"{diff.part}; indices below count inside it")] if diff.part else []


def list_numbers(found: TensorComparison) -> list[tuple[str, str]]:
    """Label and value of everything that was measured."""
    facts = [("shape", _both(*(render_shape(shape) for shape in found.shape))), ("dtype", _both(*found.dtype))]
    if not found.count:
        return facts
    share = f" ({100 * found.wrong / found.count:.3g}%)" if found.wrong else ""
    facts += [
        ("elements", f"{found.count}, {found.wrong} outside the tolerance{share}"),
        ("tolerance", describe_tolerance(found)),
        ("max abs error", render_error(found.max_abs)),
        ("mean abs error", render_error(found.mean_abs)),
        ("max rel error", f"{render_error(found.max_rel)} of max(|expected|, scale)"),
        ("scale", render_error(found.scale)),
    ]
    if found.max_ulp is not None:
        facts.append(("max ULP error", str(found.max_ulp)))
    if found.cosine is not None:
        facts.append(("cosine", f"{found.cosine:.9g}"))
    if found.sqnr_db is not None:
        facts.append(("signal to noise", "infinite: equal" if found.sqnr_db == math.inf else f"{found.sqnr_db:.4g} dB"))
    if found.top_k is not None:
        facts.append((f"top {found.tolerance.top_k or 1}", f"the same in {100 * found.top_k:.4g}% of rows"))
    if any(found.nan) or any(found.inf):
        facts.append(("NaN", f"{found.nan[0]} expected, {found.nan[1]} actual"))
        facts.append(("infinite", f"{found.inf[0]} expected, {found.inf[1]} actual; {found.misplaced} out of place"))
    return facts


def describe_tolerance(found: TensorComparison) -> str:
    asked = found.tolerance
    if any("int" in name or name == "bool" for name in found.dtype):
        exact = "exact" if not asked.int_abs or "bool" in found.dtype else f"up to {asked.int_abs}"
        most = 1.0 if asked.int_share is None or not asked.int_abs else asked.int_share
        share = f" in {100 * most:.3g}% of elements" if most < 1 else ""
        parts = [exact + share]
    elif found.dtype[0] == "string":
        parts = ["exact"]
    else:
        more = f"{asked.abs:.3g} + " if (asked.abs or 0) > _LEAST_ABS else ""
        parts = [f"{more}{asked.rel:.3g} * max(|expected|, scale)"]
    if asked.ulp is not None:
        parts.append(f"{asked.ulp} ULP")
    if asked.allowed_wrong:
        parts.append(f"{100 * asked.allowed_wrong:.3g}% of elements may be beyond")
    if asked.min_cosine is not None:
        parts.append(f"cosine at least {asked.min_cosine:g}")
    if asked.min_sqnr_db is not None:
        parts.append(f"signal to noise at least {asked.min_sqnr_db:g} dB")
    if asked.top_k is not None:
        parts.append(f"the same {asked.top_k} largest in each row")
    return ", ".join(parts)


def _both(expected: str, actual: str) -> str:
    return expected if expected == actual else f"{expected} expected, {actual} actual"


def render_shape(shape: tuple[int, ...]) -> str:
    return str(tuple(shape))


def render_error(value: float) -> str:
    return f"{value:.4g}"


def build_worst(found: TensorComparison) -> Table:
    columns = (
        Column("index"),
        Column("expected", "text", "right"),
        Column("actual", "text", "right"),
        Column("abs error", "text", "right"),
        Column("rel error", "text", "right"),
    )
    return Table(columns, [_build_row(each) for each in found.worst])


def _build_row(element: Element) -> list[str]:
    index = f"[{', '.join(map(str, element.index))}]"
    values = [render_value(value) for value in (element.expected, element.actual)]
    return [index, *values, *(render_error(value) for value in (element.abs_error, element.rel_error))]


def render_value(value: float | str) -> str:
    return f"{value:.9g}" if isinstance(value, float) else formatting.clean(str(value))


# ---------------------------------------------------------------- histogram


def list_bars(histogram: Histogram) -> list[tuple[str, int]]:
    """Label and count, equal elements first, what has no error last."""
    bars = [("equal", histogram.zero)]
    for low, high, count in zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False):
        bars.append((f"below {high:.0e}" if low == 0 else f"{low:.0e} to {high:.0e}", count))
    if histogram.broken:
        bars.append(("NaN or infinite", histogram.broken))
    return bars


def _draw_histogram(histogram: Histogram, *, plain: bool, color: bool) -> list[str]:
    bars = list_bars(histogram)
    most = max(count for _, count in bars) or 1
    label_width = max(len(label) for label, _ in bars)
    drawn = [_draw_bar(count / most, plain) for _, count in bars]
    shown = [paint(bar, "cyan") if color and bar else bar for bar in drawn]
    pads = [" " * (_BAR - len(bar)) for bar in drawn]
    return [
        f"{label:>{label_width}} {bar}{pad} {count}" for (label, count), bar, pad in zip(bars, shown, pads, strict=True)
    ]


def _draw_bar(share: float, plain: bool) -> str:
    """Whatever is not nothing is to be seen."""
    eighths = math.ceil(share * _BAR * 8)
    if plain:
        return "#" * -(-eighths // 8)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8 - 1] if eighths % 8 else "")


# ---------------------------------------------------------------- heat map


def describe_axes(heat: Heat, shape: tuple[int, ...]) -> str:
    named = [
        f"axis {axis} ({length})" for axis, length in zip(heat.axes, heat.lengths[2 - len(heat.axes) :], strict=True)
    ]
    text = " down, ".join(named) + " across"
    rest = math.prod(shape) > heat.lengths[0] * heat.lengths[1]
    return text + (", the largest error along the others" if rest else "")


def shrink_heat(heat: Heat, rows: int, columns: int) -> tuple[tuple[float, ...], ...]:
    """To at most so many; of the cells that become one the largest counts."""
    thin = [_shrink_row(row, columns) for row in heat.cells]
    count = min(rows, len(thin))
    groups = [thin[_edge(place, count, len(thin)) : _edge(place + 1, count, len(thin))] for place in range(count)]
    return tuple(tuple(max(cells) for cells in zip(*group, strict=True)) for group in groups)


def _shrink_row(row: Sequence[float], columns: int) -> tuple[float, ...]:
    count = min(columns, len(row))
    return tuple(max(row[_edge(place, count, len(row)) : _edge(place + 1, count, len(row))]) for place in range(count))


def _edge(place: int, count: int, total: int) -> int:
    return place * total // count


def find_first(cell: int, cells: int, length: int) -> int:
    """The first of `length` elements that lies in this cell."""
    return -(-cell * length // cells)


def _label(heat: Heat, place: int, count: int) -> int:
    return find_first(_edge(place, count, len(heat.cells)), len(heat.cells), heat.lengths[0])


def _draw_heat(heat: Heat, room: int, *, color: bool, plain: bool) -> list[str]:
    label_width = len(str(max(0, heat.lengths[0] - 1)))
    cells = shrink_heat(heat, _HEAT_ROWS, max(8, room - label_width - 1))
    width = max(1, min(_WIDEST_CELL, (room - label_width - 1) // len(cells[0])))
    lines = [
        f"{_label(heat, place, len(cells)):>{label_width}} {_draw_cells(row, width, color, plain)}"
        for place, row in enumerate(cells)
    ]
    seen = sorted({find_level(excess) for row in cells for excess in row})
    keys = [_sign(level, 1, color, plain) + f" {_LEVELS[level][4]}" for level in seen]
    plain_keys = [f"x {_LEVELS[level][4]}" for level in seen]
    return [*lines, *_join_keys(keys, [len(key) for key in plain_keys], room)]


def _join_keys(keys: Sequence[str], widths: Sequence[int], room: int) -> list[str]:
    """The legend in as many lines as it needs; colours take no room."""
    lines, used = [keys[0]], widths[0]
    for key, width in zip(keys[1:], widths[1:], strict=True):
        if used + 3 + width <= room:
            lines[-1] += f"   {key}"
            used += 3 + width
        else:
            lines.append(key)
            used = width
    return lines


def _draw_cells(row: Sequence[float], width: int, color: bool, plain: bool) -> str:
    """Neighbours of one level share their colour codes."""
    drawn, place = "", 0
    levels = [find_level(excess) for excess in row]
    while place < len(levels):
        end = place
        while end < len(levels) and levels[end] == levels[place]:
            end += 1
        drawn += _sign(levels[place], (end - place) * width, color, plain)
        place = end
    return drawn


def _sign(level: int, count: int, color: bool, plain: bool) -> str:
    _, sign, ascii_sign, style, _ = _LEVELS[level]
    text = (ascii_sign if plain else sign) * count
    return paint(text, style) if color else text


# ---------------------------------------------------------------- JSON


def build_diff_facts(diffs: Sequence[TensorDiff], verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": str(verdict.kind),
        "findings": [_build_finding(finding) for finding in verdict.findings],
        "tensors": [_build_facts(diff) for diff in diffs],
    }


def _build_finding(finding: Any) -> dict[str, Any]:
    return {"kind": str(finding.kind), "subject": finding.subject, "message": finding.message}


def _build_facts(diff: TensorDiff) -> dict[str, Any]:
    found = diff.comparison
    facts = asdict(found)
    for name in ("dtype", "shape", "nan", "inf"):
        expected, actual = getattr(found, name)
        facts[name] = {"expected": expected, "actual": actual}
    facts["verdict"] = str(found.verdict.kind)
    facts["findings"] = [finding.message for finding in found.verdict.findings]
    facts["files"] = {"expected": diff.expected, "actual": diff.actual}
    facts["part"] = diff.part or None
    facts["histogram"] = asdict(diff.histogram) if diff.histogram else None
    facts["heat"] = asdict(diff.heat) if diff.heat else None
    return facts
