"""`--prove`: is the traced program the program? A second execution that records one step, at level `step`, decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.trace.records import NO_VALUES, Trace
from assay.values.verdict import VerdictKind

_PHASES = ("loss", "gradient", "parameter", "optimiser")
Key = tuple[int, str, str, str, int]  # rank, phase, module, name, call


def judge_proof(traced: Sequence[Trace], again: Sequence[Trace]) -> tuple[VerdictKind, str]:
    """PASS: equal bit for bit. INCONCLUSIVE: not, which a program that is not deterministic does by itself."""
    last = max((int(each["step"]) for trace in again for each in trace.steps), default=0)
    first, second = _collect_hashes(traced, last), _collect_hashes(again, last)
    shared = first.keys() & second.keys()
    if not shared or shared != second.keys():
        return VerdictKind.INCONCLUSIVE, f"step {last}: the second execution has other tensors, or none"
    graphs = [[trace.meta.get("graphs") for trace in each] for each in (traced, again)]
    if graphs[0] != graphs[1]:
        return VerdictKind.INCONCLUSIVE, f"torch.compile made {graphs[0][0]}, and {graphs[1][0]} without hooks"
    wrong = [key for key in second if first[key] != second[key]]
    if wrong:
        rank, phase, module, name, _ = wrong[0]
        what = f"{phase} {'.'.join(filter(None, (module, name)))} of rank {rank}"
        reason = "is the program deterministic? run it twice without a trace"
        text = f"step {last}: {len(wrong)} of {len(second)} tensors differ, first {what}; {reason}"
        return VerdictKind.INCONCLUSIVE, text
    return VerdictKind.PASS, f"step {last}: all {len(second)} tensors are equal bit for bit with one step traced"


def _collect_hashes(traces: Sequence[Trace], step: int) -> Mapping[Key, Any]:
    found: dict[Key, Any] = {}
    for trace in traces:
        for row in trace.rows[(trace.rows["step"] == step) & (trace.rows["flags"] & NO_VALUES == 0)]:
            point = trace.points[row["point"]]
            if point.phase in _PHASES:
                key = (int(trace.meta["rank"]), point.phase, point.module, point.name, point.call)
                found[key] = int(row["hash"])
    return found
