"""Pairs the points of one side with those of the other side, and records the rule of each pair.

The rules for pairs are, in this order: a file of names; equal keys; equal hashes that are unique on both sides; equal
weights, by the hashes of their rows (another name, a part of a fused weight, another precision); the order of points
between pairs. The other points of paired modules are paired by the rest of their keys, and modules whose children are
paired become paired modules.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from assay.judge.statistics import Array, np
from assay.trace.judge.sides import Key, Side, load_lean
from assay.trace.records import Weight

NAMES, KEY, HASH, WEIGHTS, SEQUENCE = "names", "key", "hash", "weights", "sequence"
STRONG = (NAMES, KEY, HASH, WEIGHTS)
_CERTAIN = 0.9  # fraction of a parameter's rows that must be found in the other parameter
_LONGEST_SEGMENT = 2000  # the most points between two anchors that are aligned
Parameter = tuple[str, str]  # module and name


class Pairs:
    """Pairs of points. `other`: for each point of A its point of B, or -1; `how`: the rule of each pair. `fused`: the
    points of A and of B of which several on one side together are one point of the other side."""

    def __init__(self, a: Side, b: Side) -> None:
        self.a, self.b = a, b
        self.other = [-1] * len(a.keys)
        self.how = [""] * len(a.keys)
        self.fused: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
        self.used: set[int] = set()  # points of B that are paired
        shifts = _find_shifts(a.keys, b.keys)
        self.index = {(*key[:3], key[3] - shifts.get(key[:2], 0), *key[4:]): n for n, key in enumerate(b.keys)}

    def add(self, i: int, j: int, how: str) -> None:
        if self.other[i] < 0 and j not in self.used:
            self.other[i], self.how[i] = j, how
            self.used.add(j)

    def drop(self, points: Array) -> None:
        """Remove the pairs of some points of A."""
        for i in np.flatnonzero(points).tolist():
            self.used.discard(self.other[i])
            self.other[i], self.how[i] = -1, ""

    def follow(self, modules: Mapping[str, str], how: str) -> None:
        """Pair the points of paired modules, by the rest of their keys."""
        for i, key in enumerate(self.a.keys):
            if self.other[i] < 0 and key[1] in modules:
                j = self.index.get((key[0], modules[key[1]], *key[2:]))
                if j is not None:
                    self.add(i, j, how)

    @property
    def left(self) -> tuple[list[int], list[int]]:
        """The points of A and of B that have no pair."""
        a = [i for i, j in enumerate(self.other) if j < 0]
        return a, [j for j in range(len(self.b.keys)) if j not in self.used]

    @property
    def parts(self) -> tuple[set[int], set[int]]:
        """The points of A and of B that are fused, or parts of a fused point."""
        return {i for mine, _ in self.fused for i in mine}, {j for _, theirs in self.fused for j in theirs}


def _find_shifts(*sides: Sequence[Key]) -> dict[tuple[str, str], int]:
    """Return how many calls later B calls a module that one side calls more often in a step, as in an evaluation before
    the training forward. The first calls with a backward are compared: the module's, else the outermost module's."""
    firsts = [dict(sorted({key[1:4:2] for key in keys if key[0] == "backward"}, reverse=True)) for keys in sides]
    lasts = [dict(sorted({key[1:4:2] for key in keys if key[0] == "forward"})) for keys in sides]
    moved = [module for module, last in lasts[0].items() if lasts[1].get(module, last) != last]
    found = zip(moved, *([first.get(module, first.get("", 0)) for module in moved] for first in firsts), strict=True)
    return {(phase, module): y - x for module, x, y in found for phase in ("input", "forward", "backward")}


def pair_points(a: Side, b: Side, names: Sequence[tuple[str, str]] = ()) -> Pairs:
    pairing = Pairs(a, b)
    if names:
        pairing.follow(translate_names(sorted(a.names), names), NAMES)
    pairing.follow({name: name for name in a.names}, KEY)
    left_a, left_b = pairing.left
    if left_a and left_b:
        theirs = _find_unique(b, left_b)
        for key, i in _find_unique(a, left_a).items():
            if key in theirs:
                pairing.add(i, theirs[key], HASH)
        modules, parts = match_weights(a.weights, b.weights)
        modules = {**modules, **_find_modules(pairing)}
        pairing.follow(modules, WEIGHTS)
        pairing.follow(_find_parents(modules, parts), WEIGHTS)
        pairing.fused = tuple(_list_fused(pairing, parts))
        _align(pairing)
        pairing.follow(_find_modules(pairing), SEQUENCE)
    return pairing


def translate_names(known: Iterable[str], names: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Translate modules of A to names of B. The text that `*` matches is put into the other name."""
    import re

    translated: dict[str, str] = {}
    for mine, theirs in names:
        pattern = re.compile("(.*)".join(map(re.escape, mine.split("*"))))
        for name in known:
            found = pattern.fullmatch(name) if name not in translated and fnmatchcase(name, mine) else None
            if found:
                parts = [*found.groups(), *[""] * theirs.count("*")]
                words = theirs.split("*")
                translated[name] = words[0] + "".join(part + word for part, word in zip(parts, words[1:], strict=False))
    return translated


# ---------------------------------------------------------------- equal hashes


def _find_unique(side: Side, points: Sequence[int]) -> dict[tuple[str, int, int], int]:
    """Return points by phase, step and hash of their first row, if its hash is unique and it is not all zeros."""
    lean = load_lean(side.rows)
    _, first = np.unique(lean["point"], return_index=True)
    wanted = np.isin(lean["point"][first], points) & (lean["zeros"][first] < lean["count"][first]) & side.exact[first]
    hashes, counts = np.unique(lean["hash"][first], return_counts=True)
    single = np.isin(lean["hash"][first], hashes[counts == 1])
    return {
        (side.keys[point][0], int(lean["step"][row]), int(lean["hash"][row])): point
        for row, point in ((int(row), int(lean["point"][row])) for row in first[wanted & single])
    }


def _find_modules(pairing: Pairs) -> dict[str, str]:
    """Return the modules that have paired points, each with the module to which most of its points are paired."""
    votes: dict[str, Counter[str]] = {}
    for i, j in enumerate(pairing.other):
        if j >= 0:
            votes.setdefault(pairing.a.keys[i][1], Counter())[pairing.b.keys[j][1]] += 1
    return {module: found.most_common(1)[0][0] for module, found in votes.items()}


# ---------------------------------------------------------------- equal weights


def match_weights(a: Sequence[Weight], b: Sequence[Weight]) -> tuple[dict[str, str], list[tuple[Parameter, Parameter]]]:
    """Return modules with the same parameters, and parameters of which one is a part of the other side's (A, B)."""
    # Shared weights have several names on a side: the names are paired in order. Equal vectors (ones, zeros) are not
    # evidence unless each side has only one of them.
    same: list[tuple[Parameter, Parameter]] = []
    grouped = _group(b)
    for hashes, names in _group(a).items():
        others = grouped.get(hashes, [])
        if len(names) == len(others) == 1 or (len(hashes) > 8 and others):  # 8 bytes are a single row
            same += zip(names, others, strict=False)
    modules: dict[str, str] = {}
    for mine, theirs in same:
        modules.setdefault(mine[0], theirs[0])
    matched_a, matched_b = {mine for mine, _ in same}, {theirs for _, theirs in same}
    rest_a = [each for each in a if (each.module, each.name) not in matched_a]
    rest_b = [each for each in b if (each.module, each.name) not in matched_b]
    sizes = {(each.module, each.name): len(each.hashes) for each in (*rest_a, *rest_b)}
    parts = []
    for mine, theirs in _match_parts(rest_a, rest_b):
        if sizes[mine] < sizes[theirs]:
            parts.append((mine, theirs))
        else:  # both have most of the rows, or all rows in another order
            modules.setdefault(mine[0], theirs[0])
    inside_a = [(theirs, mine) for mine, theirs in _match_parts(rest_b, rest_a) if sizes[mine] < sizes[theirs]]
    return modules, [*parts, *inside_a]


def _group(weights: Sequence[Weight]) -> dict[bytes, list[Parameter]]:
    grouped: dict[bytes, list[Parameter]] = {}
    for each in weights:
        grouped.setdefault(each.hashes.tobytes(), []).append((each.module, each.name))
    return grouped


def _match_parts(small: Sequence[Weight], large: Sequence[Weight]) -> list[tuple[Parameter, Parameter]]:
    """Match parameters of `small` with those of `large` that have most of their rows, in any order, and not fewer."""
    if not small or not large:
        return []
    rows = np.concatenate([each.hashes for each in large])
    owners = np.repeat(np.arange(len(large)), [len(each.hashes) for each in large])
    order = np.argsort(rows, kind="stable")
    rows, owners = rows[order], owners[order]
    found = []
    for each in small:
        at = np.minimum(np.searchsorted(rows, each.hashes), len(rows) - 1)
        hits = owners[at[rows[at] == each.hashes]]
        best = int(np.bincount(hits).argmax()) if len(hits) else -1
        is_part = best >= 0 and len(large[best].hashes) >= len(each.hashes) > 1
        if is_part and (hits == best).sum() >= _CERTAIN * len(each.hashes):
            found.append(((each.module, each.name), (large[best].module, large[best].name)))
    return found


def _find_parents(modules: Mapping[str, str], parts: Iterable[tuple[Parameter, Parameter]]) -> dict[str, str]:
    """Return the modules that contain paired children, up to the outermost module."""
    pairs = {*modules.items(), *((mine[0], theirs[0]) for mine, theirs in parts)}
    parents: dict[str, str] = {}
    while pairs:
        votes: dict[str, Counter[str]] = {}
        for mine, theirs in pairs:
            if mine and theirs:
                votes.setdefault(mine.rpartition(".")[0], Counter())[theirs.rpartition(".")[0]] += 1
        pairs = {(mine, found.most_common(1)[0][0]) for mine, found in votes.items()}
        parents.update({mine: theirs for mine, theirs in pairs if mine not in parents})
    return parents


def _list_fused(pairing: Pairs, parts: Sequence[tuple[Parameter, Parameter]]) -> Iterator[Any]:
    """Yield the outputs, gradients and parameters of modules that are a single module on the other side."""
    left_a, left_b = ({*points} for points in pairing.left)
    groups: dict[tuple[str, Parameter], set[Parameter]] = {}
    for mine, theirs in parts:
        groups.setdefault(("A", theirs), set()).add(mine)
        groups.setdefault(("B", mine), set()).add(theirs)
    for (many, one), members in groups.items():
        if len(members) < 2:
            continue
        side, others = (pairing.a, pairing.b) if many == "A" else (pairing.b, pairing.a)
        free, left = (left_a, left_b) if many == "A" else (left_b, left_a)
        for j, key in enumerate(others.keys):
            if j in left and key[1] == one[0]:
                found = tuple(i for i, own in enumerate(side.keys) if i in free and _is_part(own, key, members, one[1]))
                if len(found) == len(members) and sum(_size(side, i) for i in found) == _size(others, j):
                    yield (found, (j,)) if many == "A" else ((j,), found)


def _size(side: Side, number: int) -> int:
    return math.prod(side.points[number].shape)


def _is_part(own: Key, whole: Key, members: set[Parameter], parameter: str) -> bool:
    """Return whether a point of a part belongs to a point of the fused module."""
    if (own[0], *own[3:]) != (whole[0], *whole[3:]) or own[1] not in {module for module, _ in members}:
        return False
    return (own[1], own[2]) in members if whole[2] == parameter else own[2] == whole[2]


# ---------------------------------------------------------------- the order between paired points


def _align(pairing: Pairs) -> None:
    """Pair unpaired points by phase, name and size, between anchors that come in the same order on both sides."""
    from difflib import SequenceMatcher

    a, b = pairing.a, pairing.b
    signs_a, signs_b, (parts_a, parts_b) = _sign(a), _sign(b), pairing.parts
    for phase in ("input", "forward", "loss", "backward"):
        mine = [i for i, key in enumerate(a.keys) if key[0] == phase]
        theirs = [j for j, key in enumerate(b.keys) if key[0] == phase]
        position = {j: number for number, j in enumerate(theirs)}
        anchors = [(n, position[pairing.other[i]]) for n, i in enumerate(mine) if pairing.other[i] in position]
        edges = [(-1, -1), *_keep_rising(anchors), (len(mine), len(theirs))]
        for (start_a, start_b), (end_a, end_b) in pairwise(edges):
            left = [i for i in mine[start_a + 1 : end_a] if pairing.other[i] < 0 and i not in parts_a]
            right = [j for j in theirs[start_b + 1 : end_b] if j not in pairing.used and j not in parts_b]
            if not left or not right or max(len(left), len(right)) > _LONGEST_SEGMENT:
                continue
            signs = [signs_a[i] for i in left], [signs_b[j] for j in right]
            for block in SequenceMatcher(None, *signs, autojunk=False).get_matching_blocks():
                for n in range(block.size):
                    pairing.add(left[block.a + n], right[block.b + n], SEQUENCE)


def _sign(side: Side) -> list[tuple[Any, ...]]:
    """Return what each point must have in common with another point to be aligned with it: the number of elements, the
    position among the outputs of its module, and the shapes of the module's parameters."""
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for each in side.weights:
        shapes.setdefault(each.module, []).append(tuple(each.shape))
    return [
        (_size(side, number), *key[2:5], key[6], tuple(sorted(shapes.get(key[1], ()))))
        for number, key in enumerate(side.keys)
    ]


def _keep_rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest subsequence of the anchors that comes in the same order on both sides."""
    from bisect import bisect_left

    ends: list[int] = []
    chain: list[int] = []  # number of the pair that ends the subsequence of each length
    before: list[int] = []
    for number, (_, theirs) in enumerate(pairs):
        at = bisect_left(ends, theirs)
        before.append(chain[at - 1] if at else -1)
        ends[at : at + 1], chain[at : at + 1] = [theirs], [number]
    kept, number = [], chain[-1] if chain else -1
    while number >= 0:
        kept.append(pairs[number])
        number = before[number]
    return kept[::-1]
