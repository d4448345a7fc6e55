"""The comparison of tensors as a document: numbers, worst elements, histogram, heat map."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from assay.models.values.tensors import ErrorHistogram, Heat, TensorComparison, TensorDiff
from assay.show import formatting
from assay.system.fast_dataclasses import asdict
from assay.values.document import (
    Bars,
    Block,
    Document,
    Facts,
    Findings,
    Heading,
    HeatMap,
    Notes,
    Only,
    Section,
    Span,
    TableBlock,
    Text,
)
from assay.values.table import Column, Table
from assay.values.verdict import Verdict, VerdictKind

_LEAST_ABS = 1e-30  # a smaller absolute bound only covers the numbers near zero that a type may lose
_LIMITS = (0.0, 1.0, 10.0, 100.0)  # colours change at these multiples of the tolerance
_LEVELS = (
    "equal",
    "within the tolerance",
    "up to 10 times the tolerance",
    "up to 100 times the tolerance",
    "more than that",
    "NaN or infinite on one side",
)


def build_document(diffs: Sequence[TensorDiff], verdict: Verdict, *, title: str = "Tensor comparison") -> Document:
    """Build the report: for several tensors, a terminal shows a table, and details of each tensor that did not pass."""
    outcome = describe_outcome(diffs, verdict)
    named = {each.comparison.name for each in diffs}
    loose = [finding for finding in verdict.findings if finding.subject not in named]
    failed = [each for each in diffs if each.comparison.verdict.kind is not VerdictKind.PASS]
    terminal: list[Block] = [Section([Text((Span(str(verdict.kind), str(verdict.kind)), f": {outcome}"))])]
    if len(diffs) > 1:
        terminal.append(Section([TableBlock(_build_overview(diffs))], "Tensors"))
    terminal.append(Section([Findings(loose, len(loose))]))
    for diff in failed if len(diffs) > 1 else diffs:
        terminal += _build_terminal(diff, titled=len(diffs) > 1)
    page: list[Block] = [Heading(title, verdict.kind, level=1), Text(outcome, role="soft"), Findings(loose, len(loose))]
    return Document(
        title=f"{verdict.kind} tensor comparison",
        blocks=(
            Only(("terminal",), terminal),
            Only(("html",), [*page, *(block for diff in diffs for block in _build_page(diff))]),
        ),
        facts=build_diff_facts(diffs, verdict),
    )


def describe_outcome(diffs: Sequence[TensorDiff], verdict: Verdict) -> str:
    wrong = sum(each.comparison.verdict.kind is VerdictKind.FAIL for each in diffs)
    if len(diffs) != 1:
        return f"{formatting.render_count(len(diffs), 'tensor')} compared, {wrong} different"
    if verdict.kind is VerdictKind.PASS:
        is_equal = diffs[0].comparison.max_abs == 0
        return "the tensors are equal" if is_equal else "the tensors are the same within the tolerance"
    if verdict.kind is VerdictKind.FAIL:
        return "the tensors differ"
    return "the result is inconclusive" if diffs[0].comparison.count else "the tensors have no elements to compare"


def _build_overview(diffs: Sequence[TensorDiff]) -> Table:
    columns = (
        Column("verdict", "state"), Column("tensor"), Column("shape", rank=1), Column("wrong", "number", digits=None),
        Column("max abs", align="right"), Column("max rel", align="right"),
    )  # fmt: skip
    rows = [
        [
            str(each.verdict.kind), each.name, str(each.shape[0]), each.wrong, render_error(each.max_abs),
            render_error(each.error),
        ]
        for each in (diff.comparison for diff in diffs)
    ]  # fmt: skip
    return Table(columns, rows)


def _build_terminal(diff: TensorDiff, *, titled: bool) -> Iterator[Block]:
    found = diff.comparison
    yield Section([Facts(_list_files(diff))], found.name if titled else "")
    yield Section([Notes(_list_notes(found))])
    yield Section([Facts(list_numbers(found))], "Numbers")
    yield from _build_pictures(diff, found.wrong > 0)


def _build_page(diff: TensorDiff) -> Iterator[Block]:
    found = diff.comparison
    yield Heading(found.name, found.verdict.kind)
    if diff.expected:
        yield Facts(_list_files(diff))
    yield Notes(_list_notes(found))
    yield Facts(list_numbers(found))
    yield from _build_pictures(diff, with_heat=True)


def _build_pictures(diff: TensorDiff, with_heat: bool) -> Iterator[Block]:
    found = diff.comparison
    if found.worst:
        yield Section([TableBlock(build_worst(found))], "Worst elements")
    if diff.histogram is not None:
        yield Section([Bars(list_bars(diff.histogram), "histogram of absolute errors")], "Absolute errors")
    if diff.heat is not None and with_heat:
        cells, lengths, axes = diff.heat.cells, diff.heat.lengths, diff.heat.axes
        block = HeatMap(cells, _LIMITS, _LEVELS, lengths, axes, "times the tolerance", "heat map of errors")
        yield Section([block], f"Where: {describe_axes(diff.heat, found.shape[0])}")


def _list_files(diff: TensorDiff) -> list[tuple[str, str]]:
    part = [("part", f"{diff.part}; indices below count inside it")] if diff.part else []
    return [("expected", diff.expected), ("actual", diff.actual), *part]


def _list_notes(found: TensorComparison) -> list[str]:
    findings = [f"{finding.kind}: {finding.message}" for finding in found.verdict.findings]
    return [*findings, *(f"note: {flag}" for flag in found.flags)]


def list_numbers(found: TensorComparison) -> list[tuple[str, str]]:
    facts = [("shape", _both(*map(str, found.shape))), ("dtype", _both(*found.dtype))]
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
    agreeing = None if found.top_k is None else 100 * found.top_k
    ratio = "infinite: equal" if found.sqnr_db == math.inf else "{:.4g} dB"
    measured = (
        ("max ULP error", "{}", found.max_ulp),
        ("cosine", "{:.9g}", found.cosine),
        ("signal to noise", ratio, found.sqnr_db),
        (f"top {found.tolerance.top_k or 1}", "the same in {:.4g}% of rows", agreeing),
    )
    facts += [(label, text.format(value)) for label, text, value in measured if value is not None]
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
    others = (
        ("{} ULP", asked.ulp),
        ("{:.3g}% of elements may be beyond", 100 * asked.allowed_wrong or None),
        ("cosine at least {:g}", asked.min_cosine),
        ("signal to noise at least {:g} dB", asked.min_sqnr_db),
        ("the same {} largest in each row", asked.top_k),
    )
    return ", ".join([*parts, *(text.format(value) for text, value in others if value is not None)])


def _both(expected: str, actual: str) -> str:
    return expected if expected == actual else f"{expected} expected, {actual} actual"


def render_error(value: float) -> str:
    return f"{value:.4g}"


def build_worst(found: TensorComparison) -> Table:
    names = ("expected", "actual", "abs error", "rel error")
    rows = [
        [
            str(list(each.index)),
            *map(render_value, (each.expected, each.actual)),
            *map(render_error, (each.abs_error, each.rel_error)),
        ]
        for each in found.worst
    ]
    return Table((Column("index"), *(Column(name, align="right") for name in names)), rows)


def render_value(value: float | str) -> str:
    return f"{value:.9g}" if isinstance(value, float) else formatting.clean(str(value))


def list_bars(histogram: ErrorHistogram) -> list[tuple[str, int]]:
    """List label and count of each bar, equal elements first, elements without a defined error last."""
    bars = [("equal", histogram.zero)]
    for low, high, count in zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False):
        bars.append((f"below {high:.0e}" if low == 0 else f"{low:.0e} to {high:.0e}", count))
    if histogram.broken:
        bars.append(("NaN or infinite", histogram.broken))
    return bars


def describe_axes(heat: Heat, shape: tuple[int, ...]) -> str:
    named = [
        f"axis {axis} ({length})" for axis, length in zip(heat.axes, heat.lengths[2 - len(heat.axes) :], strict=True)
    ]
    text = " down, ".join(named) + " across"
    rest = math.prod(shape) > heat.lengths[0] * heat.lengths[1]
    return text + (", the largest error along the others" if rest else "")


def build_diff_facts(diffs: Sequence[TensorDiff], verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": str(verdict.kind),
        "findings": [
            {"kind": str(each.kind), "subject": each.subject, "message": each.message} for each in verdict.findings
        ],
        "tensors": [_build_facts(diff) for diff in diffs],
    }


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
