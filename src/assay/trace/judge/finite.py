"""The first value that is not finite in one trace alone, and what went in."""

from __future__ import annotations

from assay.judge.statistics import load_numpy
from assay.show.formatting import render_count, render_number
from assay.trace.judge.difference import OUTERMOST, UNKNOWN, First, describe_point
from assay.trace.judge.sides import Side, load_lean
from assay.values.verdict import Finding, Verdict, VerdictKind


def judge_finite(side: Side) -> tuple[Verdict, First | None]:
    """FAIL where something that is not finite comes out of what is finite. A step that the scaler skipped is not a
    fault: its gradients are large on purpose."""
    np = load_numpy()
    lean = load_lean(side.rows)
    skipped = [step for step, line in side.steps.items() if line.get("skipped")]
    found = np.flatnonzero((lean["nonfinite"] > 0) & ~np.isin(lean["step"], skipped))
    end = [] if side.is_whole else [_build_end()]
    if not len(found):
        text = f"all {render_count(len(side.rows), 'tensor')} are finite"
        return Verdict.of([Finding(VerdictKind.PASS, "", text), *end], len(side.rows)), None
    row = int(found[np.lexsort((side.order[found], lean["step"][found]))[0]])
    first = _describe(side, row, int(lean["nonfinite"][row]), int(lean["count"][row]))
    return Verdict.of(
        [Finding(VerdictKind.FAIL, first.module, first.text, step=first.step), *end], len(side.rows)
    ), first


def _build_end() -> Finding:
    return Finding(VerdictKind.INCONCLUSIVE, "end", "the trace ends before its program did: judged up to there")


def _describe(side: Side, row: int, bad: int, count: int) -> First:
    number = int(side.rows["point"][row])
    key, point = side.keys[number], side.points[number]
    first = First("nonfinite", int(side.rows["step"][row]), key[0], key[1] or OUTERMOST, key[2], "")
    inputs = [int(each) - 1 for each in side.rows["inputs"][row] if 0 < each < UNKNOWN]
    known = [each for each in inputs if each < len(side.rows)]
    names = [side.keys[int(side.rows["point"][each])][1] or OUTERMOST for each in known]
    text = f"{describe_point(first)}: {bad} of {render_count(count, 'value')} {'is' if bad == 1 else 'are'} not finite"
    largest = [render_number(float(side.rows["largest"][each]), 4) for each in known]
    sizes = [f"{name}: largest {value}" for name, value in zip(names, largest, strict=True)]
    text += f"; what went in is finite ({', '.join(sizes)})" if sizes else "; what went in was not recorded"
    return First(
        first.kind, first.step, first.phase, first.module, first.name, text, inputs=tuple(names),
        source=(point.source or "", ""),
    )  # fmt: skip
