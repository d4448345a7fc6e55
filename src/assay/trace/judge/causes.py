"""Compares the inputs of two sides apart from recorded tensors: torch's flags, optimiser groups, random state, weights.

An input that differs is a fact, not an error: whether it began a difference depends on when tensors begin to differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from assay.judge.statistics import np
from assay.show.formatting import render_count, render_number
from assay.system.fast_dataclasses import dataclass
from assay.trace.judge.pairing import Pairs
from assay.trace.judge.sides import Side
from assay.trace.records import Weight

Kind = Literal["flag", "group", "random", "weights", "ranks"]
# flags that change at most the order of sums: none of them is named as the cause of a difference beyond noise
_BENIGN = ("thread", "deterministic", "benchmark", "emulate_precision_casts")
_BENIGN_VALUES = ("foreach", "fused", "capturable", "differentiable")  # optimiser values that are never a cause


@dataclass(frozen=True, slots=True)
class Cause:
    kind: Kind
    step: int  # the first step in which the cause can have an effect
    name: str
    text: str
    module: str = ""
    is_benign: bool = False


def find_causes(a: Side, b: Side, pairs: Pairs) -> list[Cause]:
    """Return all causes, in the order in which they can have an effect within a step."""
    steps = sorted(set(a.steps) & set(b.steps))
    found = [*_find_weights(a, b, pairs, steps[0] if steps else 0)]
    for step in steps:
        mine, theirs = a.steps[step], b.steps[step]
        flags = [{**side.meta.get("flags", {}), **(line.get("flags") or {})} for side, line in ((a, mine), (b, theirs))]
        for name in flags[0]:
            if name in flags[1] and flags[0][name] != flags[1][name]:
                text = f"{name} is {flags[0][name]} in A and {flags[1][name]} in B"
                is_benign = any(word in name.lower() for word in _BENIGN)
                found.append(Cause("flag", step, name, text, is_benign=is_benign))
        if None not in (mine.get("random"), theirs.get("random")) and mine["random"] != theirs["random"]:
            found.append(Cause("random", step, "random state", "the random states of torch are not the same"))
        found += _find_groups(mine.get("groups") or [], theirs.get("groups") or [], step)
        if mine.get("skipped") is not theirs.get("skipped") and True in (mine.get("skipped"), theirs.get("skipped")):
            label = "A" if mine.get("skipped") else "B"
            text = f"GradScaler left out step {step} in {label} alone"
            found.append(Cause("group", step, "skipped step", text))
    for label, side in (("A", a), ("B", b)):
        if side.drift is not None:
            step, module, name = side.drift
            what = f"{module}.{name}".strip(".")
            text = f"the ranks of {label} had the same {what} at first, and no longer after step {step}"
            found.append(Cause("ranks", step, what, f"{text}: the gradients were not reduced over the ranks", module))
    firsts = {(each.kind, each.name, each.text.partition(" at step")[0]): each for each in reversed(found)}
    return list(firsts.values())[::-1]


def _find_groups(mine: list[dict[str, Any]], theirs: list[dict[str, Any]], step: int) -> Iterator[Cause]:
    """Compare optimiser groups by the values that each parameter gets, however the parameters are grouped. If the sides
    have different numbers of parameters (one has fused weights), only the sets of values are compared."""
    counts, others = _count_settings(mine), _count_settings(theirs)
    if counts == others or (counts.total() != others.total() and set(counts) == set(others)):
        return
    if len(mine) != len(theirs):
        text = f"A has {render_count(len(mine), 'group')} and B {len(theirs)}, with other values"
        yield Cause("group", step, "optimiser groups", text)
        return
    for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        different = [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]
        if names := [name for name in different if name != "parameters"] or different:
            text = ", ".join(f"{name} {_show(one.get(name))} in A, {_show(other.get(name))} in B" for name in names)
            # a value that only one version of torch has does not count if it is switched off
            meant = [name for name in names if name not in _BENIGN_VALUES and (one.get(name) or other.get(name))]
            what = f"group {number} of the optimiser"
            yield Cause("group", step, f"optimiser group {number}", f"{what} has {text}", is_benign=not meant)


def _count_settings(groups: list[dict[str, Any]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for group in groups:
        settings = {name: value for name, value in group.items() if name != "parameters"}
        counts[repr(sorted(settings.items(), key=repr))] += group.get("parameters", 1)
    return counts


def _show(value: Any) -> str:
    return render_number(value, 6) if isinstance(value, float) else str(value)


def _find_weights(a: Side, b: Side, pairs: Pairs, step: int) -> Iterator[Cause]:
    """Find parameters that differ before the first traced step."""
    if step > 1:  # weights may have been trained apart before this step, within noise
        return
    theirs = {(each.module, each.name): each for each in b.weights}
    names = {
        (a.points[i].module, a.points[i].name): (b.points[j].module, b.points[j].name)
        for i, j in enumerate(pairs.other)
        if a.keys[i][0] == "parameter" and j >= 0
    }
    for mine in a.weights:
        other = theirs.get(names.get((mine.module, mine.name), (mine.module, mine.name)))
        if other is not None and mine.hashes.shape == other.hashes.shape and (mine.hashes != other.hashes).any():
            name = f"{mine.module}.{mine.name}".strip(".")
            text = f"{name} differs before step {step}: {_describe_rows(mine, other)}"
            yield Cause("weights", step, name, text, mine.module)


def _describe_rows(mine: Weight, other: Weight) -> str:
    total, count = len(mine.hashes), int(np.count_nonzero(mine.hashes != other.hashes))
    if total > 1 and np.array_equal(np.sort(mine.hashes), np.sort(other.hashes)):
        return f"{count} of its {total} rows are in another order"
    return f"{count} of its {render_count(total, 'row')} {'is' if count == 1 else 'are'} not the same"
