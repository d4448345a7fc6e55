"""One side of a comparison: what its processes recorded, as rows that can be compared with those of the other side.

Several ranks become one side. Where both sides have as many ranks, each rank is compared with its own number. Otherwise
the ranks of a side are added up: replicas count once, shards add up (hash, sketch and counts: their indices are
global), partial sums add up by their sketch. Of what has no known placement and is not equal on all ranks only the
norms add up: that shows where to look, and never passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.judge.statistics import Array, load_numpy
from assay.system.fast_dataclasses import dataclass, replace
from assay.trace.records import Point, Trace, Weight

_CHUNK = 1 << 15  # rows that are read at once
LEAN = ("point", "step", "hash", "count", "nonfinite", "zeros", "sum", "sumsq")


Key = tuple[str, str, str, int, str | None, int, int]  # phase, module, name, call, op, repeat, rank


@dataclass(frozen=True, slots=True)
class Side:
    meta: Mapping[str, Any]
    points: Sequence[Point]
    keys: Sequence[Key]
    rows: Array
    order: Array  # of each row, over all ranks
    exact: Array  # of each row: whether its hash counts
    steps: Mapping[int, Mapping[str, Any]]
    weights: Sequence[Weight]
    world: int
    is_whole: bool  # every process ended in order
    by_norm: Array = None  # of each row: parts of unknown placement, of which only counts and norms add up
    unplaced: int = 0  # points that have such rows
    drift: tuple[int, str, str] | None = None  # step, module and name: the first parameter whose replicas differ

    @property
    def names(self) -> set[str]:
        return {key[1] for key in self.keys}


def build_sides(a: Sequence[Trace], b: Sequence[Trace]) -> tuple[Side, Side]:
    """Two sides that can be compared with each other."""
    if len(a) == len(b):
        return build_side(a), build_side(b)
    return combine_ranks(a), combine_ranks(b)


def build_side(ranks: Sequence[Trace]) -> Side:
    """Rank by rank: a point of rank 1 has another key than that of rank 0."""
    np = load_numpy()
    if len(ranks) == 1:
        rows, order = ranks[0].rows, np.arange(len(ranks[0].rows))
    else:
        offsets = np.cumsum([0, *(len(each.points) for each in ranks)])
        parts = [np.array(each.rows) for each in ranks]
        for part, offset in zip(parts, offsets, strict=False):
            part["point"] += np.uint32(offset)
            part["inputs"] = 0  # row numbers of that rank
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
    by_norm = load_numpy().zeros(len(rows), bool)
    return Side(
        ranks[0].meta,
        points,
        keys,
        rows,
        order,
        exact,
        steps,
        ranks[0].weights,
        len(ranks),
        all(each.is_complete for each in ranks),
        by_norm,
        drift=drift,
    )


def build_keys(points: Sequence[Point], rank: int = 0) -> list[Key]:
    """Points with the same key are numbered."""
    seen: dict[tuple[Any, ...], int] = {}
    keys = []
    for point in points:
        key = (point.phase, point.module, point.name, point.call, point.op)
        seen[key] = seen.get(key, -1) + 1
        keys.append((*key, seen[key], rank))
    return keys


def load_lean(rows: Array) -> dict[str, Array]:
    """The narrow columns, copied in pieces: a file of gigabytes is never in memory as a whole."""
    np = load_numpy()
    columns = {name: np.empty(len(rows), rows.dtype[name]) for name in LEAN}
    for start in range(0, len(rows), _CHUNK):
        part = rows[start : start + _CHUNK]
        for name, column in columns.items():
            column[start : start + _CHUNK] = part[name]
        release(rows)
    return columns


def release(rows: Array) -> None:
    """Let the system take back the pages of a file that were read."""
    import mmap

    base = rows
    while base is not None and not isinstance(base, mmap.mmap):
        base = getattr(base, "_mmap", None) or getattr(base, "base", None)
    if base is not None:
        base.madvise(mmap.MADV_DONTNEED)


# ---------------------------------------------------------------- ranks that are added up


def combine_ranks(ranks: Sequence[Trace]) -> Side:
    if len(ranks) == 1:
        return build_side(ranks)
    np = load_numpy()
    lines = [_number_rows(each) for each in ranks]
    common = set(lines[0]).intersection(*lines[1:])
    chosen = [key for key in lines[0] if key in common]  # in the order of the first rank
    parts = [np.array(each.rows[[line[key] for key in chosen]]) for each, line in zip(ranks, lines, strict=True)]
    points = ranks[0].points
    kinds = np.array([find_placement(points[index]) for index in parts[0]["point"]], dtype=object)
    means = np.array(["avg" in str(points[index].placement) for index in parts[0]["point"]], bool)
    is_equal = np.logical_and.reduce([part["hash"] == parts[0]["hash"] for part in parts[1:]])
    known = (kinds == "shard") | (kinds == "partial") | (kinds == "replicate") | is_equal
    kinds[~known] = "norm"
    unplaced = len(set(parts[0]["point"][~known].tolist()))
    # gradients of activations are those of each rank's own loss
    forward = np.array([points[index].phase in ("input", "forward") for index in parts[0]["point"]], bool)
    keep = known | forward
    rows, keys = _add([part[keep] for part in parts], kinds[keep], means[keep]), build_keys(points)
    side = _finish(ranks, points, keys, rows, np.arange(len(rows)), ((kinds != "partial") & known)[keep])
    return replace(side, by_norm=~known[keep], unplaced=unplaced)


def find_placement(point: Point) -> str:
    """How ranks share a tensor: shard, partial, replicate; empty: unknown. Torch writes S(0), P(sum) and R. Shards
    whose indices are not those of the whole tensor do not add up."""
    facts = point.placement or {}
    letters = {str(name).lstrip("_")[:1] for name in facts.get("placements") or ()}
    if "S" in letters:
        return "shard" if facts.get("global") and "P" not in letters else ""
    return "partial" if "P" in letters else "replicate" if letters else ""


def _number_rows(trace: Trace) -> dict[tuple[Any, ...], int]:
    """Key of the point, step and n-th time → row."""
    keys = build_keys(trace.points)
    found: dict[tuple[Any, ...], int] = {}
    times: dict[tuple[int, int], int] = {}
    for row, (point, step) in enumerate(zip(trace.rows["point"].tolist(), trace.rows["step"].tolist(), strict=True)):
        nth = times[point, step] = times.get((point, step), -1) + 1
        found[(*keys[point], step, nth)] = row
    return found


def _add(parts: Sequence[Array], kinds: Array, means: Array) -> Array:
    """Shards and partial sums of all ranks together; the others as the first rank has them."""
    np = load_numpy()
    total = parts[0].copy()
    total["inputs"] = 0
    adds, partial = (kinds != "replicate") & (kinds != ""), kinds == "partial"
    for name in ("hash", "count", "nonfinite", "zeros", "sum", "sumsq", "sketch"):
        values = np.stack([part[name][adds] for part in parts])
        total[name][adds] = values.sum(axis=0, dtype=values.dtype)
    total["largest"][adds] = np.max([part["largest"][adds] for part in parts], axis=0)
    total["sketch"][partial & means] /= len(parts)
    total["count"][partial] = parts[0]["count"][partial]
    total["sumsq"][partial] = (total["sketch"][partial].astype(float) ** 2).sum(axis=1)
    return total


def find_drift(ranks: Sequence[Trace]) -> tuple[int, str, str] | None:
    """The first parameter, by step, that all ranks began with and that is no longer the same on all of them."""
    lines = [_number_rows(each) for each in ranks]
    began = _find_replicas(ranks)
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


def _find_replicas(ranks: Sequence[Trace]) -> set[tuple[str, str]]:
    """Parameters whose rows are equal on all ranks when the trace begins."""
    tables = [{(each.module, each.name): each.hashes.tobytes() for each in rank.weights} for rank in ranks]
    sharded = {(point.module, point.name) for point in ranks[0].points if find_placement(point) == "shard"}
    same = {key for key, value in tables[0].items() if all(other.get(key) == value for other in tables[1:])}
    return same - sharded
