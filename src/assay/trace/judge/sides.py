"""One side of a comparison: the records of its processes, as rows that can be compared with those of the other side.

Several ranks become one side. If both sides have equally many ranks, ranks with the same number are compared. Otherwise
the ranks of a side are added up: replicas count once, shards add up (hash, sketch and counts, whose indices are
global), partial sums add up by their sketch. Placements that DDP is assumed to have must fit the shapes of the other
side. If the placement of a tensor is unknown, and the tensor is not equal on all ranks, its norms alone add up: norms
show where to look, and are never a PASS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.judge.statistics import Array, np
from assay.system.fast_dataclasses import dataclass, replace
from assay.trace.records import Point, Trace, Weight

_CHUNK = 1 << 15  # rows that are read at once
LEAN = ("point", "step", "flags", "hash", "count", "nonfinite", "zeros", "sum", "sumsq")
Key = tuple[str, str, str, int, str | None, int, int]  # phase, module, name, call, op, repeat, rank
Shapes = Mapping[Key, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Side:
    meta: Mapping[str, Any]
    points: Sequence[Point]
    keys: Sequence[Key]
    rows: Array
    order: Array  # position of each row in the order of execution, across all processes
    exact: Array  # for each row: whether its hash counts
    steps: Mapping[int, Mapping[str, Any]]
    weights: Sequence[Weight]
    world: int
    is_whole: bool  # whether every process ended in order
    by_norm: Array = None  # for each row: whether its placement is unknown, so that only counts and norms add up
    unplaced: int = 0  # how many points have rows of unknown placement
    drift: tuple[int, str, str] | None = None  # step, module and name: the first parameter whose replicas differ

    @property
    def names(self) -> set[str]:
        return {key[1] for key in self.keys}

    def find_phases(self, *phases: str) -> Array:
        """Return for each point whether it is of one of these phases."""
        return np.array([key[0] in phases for key in self.keys], bool)


def build_sides(a: Sequence[Trace], b: Sequence[Trace]) -> tuple[Side, Side]:
    """Build two sides that can be compared with each other."""
    if are_alike(a, b):
        return build_side(a), build_side(b)
    return combine_ranks(a, _list_shapes(b)), combine_ranks(b, _list_shapes(a))


def are_alike(a: Sequence[Trace], b: Sequence[Trace]) -> bool:
    """Return whether ranks are compared one by one: both sides have equally many, and known placements agree."""
    if len(a) != len(b) or len(a) == 1:
        return len(a) == len(b)
    mine, theirs = (dict(zip(build_keys(s[0].points), map(find_placement, s[0].points), strict=True)) for s in (a, b))
    return all(not kind or theirs.get(key) in (kind, "", None) for key, kind in mine.items())


def _list_shapes(ranks: Sequence[Trace]) -> Shapes:
    """Return the shapes of whole tensors, which are known if the side has one process."""
    points = ranks[0].points if len(ranks) == 1 else ()
    return {key: points[number].shape for number, key in enumerate(build_keys(points))}


def build_side(ranks: Sequence[Trace]) -> Side:
    """Build a side that has the points of each rank: the same point of two ranks has two keys."""
    if len(ranks) == 1:
        rows, order = ranks[0].rows, np.arange(len(ranks[0].rows))
    else:
        offsets = np.cumsum([0, *(len(each.points) for each in ranks)])
        parts = [np.array(each.rows) for each in ranks]
        for part, offset in zip(parts, offsets, strict=False):
            part["point"] += np.uint32(offset)
            part["inputs"] = 0  # inputs are row numbers of a single rank
        rows = np.concatenate(parts)
        order = np.concatenate([np.arange(len(part)) * len(ranks) + rank for rank, part in enumerate(parts)])
    keys = [key for rank, each in enumerate(ranks) for key in build_keys(each.points, rank)]
    points = [point for each in ranks for point in each.points]
    return _finish(ranks, points, keys, rows, order, np.ones(len(rows), bool))


def _finish(
    ranks: Sequence[Trace], points: Sequence[Point], keys: Sequence[Key], rows: Array, order: Array, exact: Array
) -> Side:
    steps = {each["step"]: each for each in reversed(ranks[0].steps)}
    drift = find_drift(ranks) if len(ranks) > 1 else None
    by_norm = np.zeros(len(rows), bool)
    meta, weights, is_whole = ranks[0].meta, ranks[0].weights, all(each.is_complete for each in ranks)
    return Side(meta, points, keys, rows, order, exact, steps, weights, len(ranks), is_whole, by_norm, drift=drift)


def build_keys(points: Sequence[Point], rank: int = 0) -> list[Key]:
    """Return the keys of points; equal keys are numbered."""
    seen: dict[tuple[Any, ...], int] = {}
    keys = []
    for point in points:
        key = (point.phase, point.module, point.name, point.call, point.op)
        seen[key] = seen.get(key, -1) + 1
        keys.append((*key, seen[key], rank))
    return keys


def load_lean(rows: Array) -> dict[str, Array]:
    """Return copies of the narrow columns, read in pieces: a file of gigabytes is never in memory as a whole."""
    columns = {name: np.empty(len(rows), rows.dtype[name]) for name in LEAN}
    for start in range(0, len(rows), _CHUNK):
        part = rows[start : start + _CHUNK]
        for name, column in columns.items():
            column[start : start + _CHUNK] = part[name]
        release(rows)
    return columns


def release(rows: Array) -> None:
    """Release the pages of a file that were read."""
    import mmap

    base = rows
    while base is not None and not isinstance(base, mmap.mmap):
        base = getattr(base, "_mmap", None) or getattr(base, "base", None)
    if base is not None:
        base.madvise(mmap.MADV_DONTNEED)


def combine_ranks(ranks: Sequence[Trace], shapes: Shapes = {}) -> Side:  # noqa: B006 it is not changed
    """Build a side by adding up its ranks. `shapes`: the shapes of the other side's tensors."""
    if len(ranks) == 1:
        return build_side(ranks)
    lines = [_number_rows(each) for each in ranks]
    common = set(lines[0]).intersection(*lines[1:])
    chosen = [key for key in lines[0] if key in common]  # keys in the order of the first rank
    parts = [np.array(each.rows[[line[key] for key in chosen]]) for each, line in zip(ranks, lines, strict=True)]
    points, keys = ranks[0].points, build_keys(ranks[0].points)
    is_equal = _find_equal(parts, ("hash",))
    is_alike = _find_equal(parts, ("count", "nonfinite", "zeros", "sum", "sumsq", "largest"))
    facts = zip(parts[0]["point"], is_equal, is_alike, strict=True)
    found = ["replicate" if same else _choose_kind(points[n], shapes.get(keys[n]), alike) for n, same, alike in facts]
    kinds = np.array(found, dtype=object)
    known, numbers = kinds != "", parts[0]["point"]
    kinds[~known] = "norm"
    unplaced = len(set(numbers[~known].tolist()))
    # gradients of activations without a known placement belong to each rank's own loss, and are left out
    keep = known | np.array([points[index].phase in ("input", "forward") for index in numbers], bool)
    # a loss is the mean over the ranks, and so is a gradient of each rank's own mean loss
    placements = [point.placement or {} for point in points]
    is_mean = np.array(["avg" in str(facts) or bool(facts.get("mean")) for facts in placements], bool)
    means = is_mean[numbers] & (kinds != "replicate")
    rows = _add([part[keep] for part in parts], kinds[keep], means[keep])
    exact = (kinds != "partial") & known & ~means
    side = _finish(ranks, points, keys, rows, np.arange(len(rows)), exact[keep])
    return replace(side, by_norm=~known[keep], unplaced=unplaced, weights=_join_weights(ranks))


def _find_equal(parts: Sequence[Array], names: Sequence[str]) -> Array:
    """Return which rows are the same on all ranks, by these columns."""
    return np.logical_and.reduce([part[name] == parts[0][name] for part in parts[1:] for name in names])


def _choose_kind(point: Point, shape: tuple[int, ...] | None, is_alike: bool) -> str:
    """Return how ranks share a tensor. An assumed placement must fit the shape of the other side's tensor, if it has
    the tensor. `is_alike`: all ranks have the same values, and their hashes differ only by the assumed indices."""
    facts, kind = point.placement or {}, find_placement(point)
    if kind != "shard" or not facts.get("assumed") or shape == tuple(facts["global"]):
        return kind
    if is_alike and shape in (None, tuple(point.shape)):
        return "replicate"
    return kind if shape is None else ""


def _join_weights(ranks: Sequence[Trace]) -> list[Weight]:
    """Join the rows of parameters that are cut in their first dimension, one rank after another. If a rank has a part
    of each row, the hashes of whole rows are not known."""
    rows = [{(each.module, each.name): each for each in rank.weights} for rank in ranks]
    sharded = _find_sharded(ranks[0])
    found = []
    for key, mine in rows[0].items():
        parts = [each[key].hashes for each in rows if key in each]
        if key not in sharded:
            found.append(mine)
        elif len(mine.shape) > 1 and mine.shape[0] == sum(map(len, parts)):
            found.append(replace(mine, hashes=np.concatenate(parts)))
    return found


def _find_sharded(trace: Trace) -> set[tuple[str, str]]:
    """Return the parameters of which a rank has only a part."""
    return {(point.module, point.name) for point in trace.points if find_placement(point) == "shard"}


def find_placement(point: Point) -> str:
    """Return how ranks share a tensor: shard, partial, replicate; empty: unknown. Torch writes S(0), P(sum) and R.
    Shards whose indices are not those of the whole tensor do not add up."""
    facts = point.placement or {}
    letters = {str(name).lstrip("_")[:1].replace("I", "S") for name in facts.get("placements") or ()}
    if "S" in letters:
        return "shard" if facts.get("global") and "P" not in letters else ""
    return "partial" if "P" in letters else "replicate" if letters else ""


def _number_rows(trace: Trace) -> dict[tuple[Any, ...], int]:
    """Return a mapping: key of the point, step and n-th time → row."""
    keys = build_keys(trace.points)
    found: dict[tuple[Any, ...], int] = {}
    times: dict[tuple[int, int], int] = {}
    for row, (point, step) in enumerate(zip(trace.rows["point"].tolist(), trace.rows["step"].tolist(), strict=True)):
        nth = times[point, step] = times.get((point, step), -1) + 1
        found[(*keys[point], step, nth)] = row
    return found


def _add(parts: Sequence[Array], kinds: Array, means: Array) -> Array:
    """Add up the shards and partial sums of all ranks; other rows are taken from the first rank."""
    total = parts[0].copy()
    total["inputs"] = 0
    adds, partial = kinds != "replicate", kinds == "partial"
    for name in ("hash", "count", "nonfinite", "zeros", "sum", "sumsq", "sketch"):
        values = np.stack([part[name][adds] for part in parts])
        total[name][adds] = values.sum(axis=0, dtype=values.dtype)
    total["largest"][adds] = np.max([part["largest"][adds] for part in parts], axis=0)
    for name, power in (("sketch", 1), ("sum", 1), ("sumsq", 2)):
        total[name][means] /= len(parts) ** power
    total["count"][partial] = parts[0]["count"][partial]
    total["sumsq"][partial] = (total["sketch"][partial].astype(float) ** 2).sum(axis=1)
    return total


def find_drift(ranks: Sequence[Trace]) -> tuple[int, str, str] | None:
    """Return the first parameter, by step, that was equal on all ranks when the trace began and has become unequal."""
    lines = [_number_rows(each) for each in ranks]
    # the parameters whose rows are equal on all ranks when the trace begins
    tables = [{(each.module, each.name): each.hashes.tobytes() for each in rank.weights} for rank in ranks]
    same = {key for key, value in tables[0].items() if all(other.get(key) == value for other in tables[1:])}
    began = same - _find_sharded(ranks[0])
    for key, row in lines[0].items():
        phase, module, name, step = key[0], key[1], key[2], key[-2]
        placement = find_placement(ranks[0].points[int(ranks[0].rows["point"][row])])
        is_replica = phase == "parameter" or (phase == "gradient" and placement == "replicate")
        if not is_replica or (module, name) not in began:
            continue
        others = [line.get(key) for line in lines[1:]]
        value = ranks[0].rows["hash"][row]
        if any(o is not None and r.rows["hash"][o] != value for o, r in zip(others, ranks[1:], strict=True)):
            return step, module, name
    return None
