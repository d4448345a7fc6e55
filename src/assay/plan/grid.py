"""The grid of one sweep: the number of its combinations, and the combination with a given index.

Grids are counted and indexed, never listed as a whole: the cost of a subset does not depend on the size of the grid.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, product
from typing import Any

from assay.system.fast_dataclasses import dataclass
from assay.values.run import canonical
from assay.values.study import Choices, Random, Subset, Sweep, Value, same_value

_DIGITS = 6  # digits of a drawn number: short in names, and equal on every machine


@dataclass(frozen=True, slots=True)
class AxisGroup:
    """Axes that advance together: one axis, or the axes of a zip."""

    names: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    repeats: tuple[tuple[Value, ...], ...] = ()  # rows that were listed more than once and are skipped


class Grid:
    def __init__(self, sweep: Sweep, *, distinct: bool) -> None:
        """`distinct`: a value that is listed twice counts once."""
        self.groups = [_build_group(sweep, names, distinct=distinct) for names in _group_names(sweep)]
        self.random = {name: axis for name, axis in sweep.axes.items() if isinstance(axis, Random)}
        self.count = math.prod(len(group.rows) for group in self.groups)
        self._names = [name for group in self.groups for name in group.names]
        self._order = None if self._names == list(sweep.axes) else list(sweep.axes)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield every combination, the last axis fastest."""
        for combination in product(*(group.rows for group in self.groups)):
            yield self._build(combination)

    def row(self, index: int, rng: random.Random) -> dict[str, Any]:
        """Return the combination with this index; `rng` draws the values of random axes."""
        chosen = []
        for group in reversed(self.groups):
            index, place = divmod(index, len(group.rows))
            chosen.append(group.rows[place])
        drawn = {name: draw(axis, rng) for name, axis in self.random.items()}
        return self._build(tuple(reversed(chosen)), drawn)

    def _build(
        self, combination: tuple[tuple[Value, ...], ...], drawn: dict[str, float] | None = None
    ) -> dict[str, Any]:
        values = (value for row in combination for value in row)
        params = dict(zip(self._names, values, strict=True))
        if self._order is None:
            return params
        params.update(drawn or {})
        return {name: params[name] for name in self._order}


Row = tuple[int, dict[str, Any]]  # index of the sweep, parameters


def count_rows(grids: Sequence[Grid], subset: Subset | None) -> int:
    """Return how many rows `draw_rows` yields at most."""
    total = sum(grid.count for grid in grids)
    if subset is None:
        return total
    if subset.per_sweep:
        return sum(count_rows([grid], Subset(subset.count)) for grid in grids)
    return subset.count if any(grid.random and grid.count for grid in grids) else min(subset.count, total)


def draw_rows(grids: Sequence[Grid], subset: Subset | None, *, distinct: bool) -> Iterator[Row]:
    """Yield every combination of every grid, or the requested subset, in the grids' order."""
    if subset is None:
        return ((index, row) for index, grid in enumerate(grids) for row in grid.rows())
    count, seed = subset.count, subset.seed
    if not subset.per_sweep:
        return iter(_Pool(grids).draw(count, *_build_streams(seed, 0), distinct=distinct))
    pools = ((index, _Pool([grid])) for index, grid in enumerate(grids))
    drawn = [(index, pool.draw(count, *_build_streams(seed, index), distinct=distinct)) for index, pool in pools]
    return ((index, row) for index, rows in drawn for _, row in rows)


def _build_streams(seed: int, pool: int) -> tuple[random.Random, random.Random]:
    """Return random numbers for the order of a pool's combinations, and for its random axes. The two generators
    are independent, so that the first values do not depend on how many are drawn."""
    order = random.Random(f"{seed} order {pool}") if pool else random.Random(seed)
    return order, random.Random(f"{seed} values {pool}")


class _Pool:
    """The combinations of several grids, numbered continuously."""

    def __init__(self, grids: Sequence[Grid]) -> None:
        self._grids = grids
        self._starts = [0, *accumulate(grid.count for grid in grids)]

    def draw(self, count: int, rng: random.Random, values: random.Random, *, distinct: bool) -> list[Row]:
        """Draw `count` combinations, each once; a smaller count draws a part of them. A combination with random axes
        may be drawn again, with other numbers, after all others."""
        taken = list(islice(self._fresh(rng, distinct=distinct), min(count, self._starts[-1])))
        while len(taken) < count and any(grid.random and grid.count for grid in self._grids):
            again = (index for index in shuffled(self._starts[-1], rng) if self._locate(index)[1].random)
            taken.extend(islice(again, count - len(taken)))
        located = ((number, self._locate(number)) for number in taken)
        drawn = [(number, (place, grid.row(index, values))) for number, (place, grid, index) in located]
        return [row for _, row in sorted(drawn, key=lambda pair: pair[0])]

    def _fresh(self, rng: random.Random, *, distinct: bool) -> Iterator[int]:
        """Yield all indices in random order; `distinct`: skip combinations with the parameters of an earlier one."""
        seen: set[str] = set()
        for number in shuffled(self._starts[-1], rng):
            _, grid, index = self._locate(number)
            if not distinct or grid.random or len(self._grids) == 1:
                yield number
                continue
            key = canonical(grid.row(index, rng))
            if key not in seen:
                seen.add(key)
                yield number

    def _locate(self, number: int) -> tuple[int, Grid, int]:
        place = bisect_right(self._starts, number) - 1
        return place, self._grids[place], number - self._starts[place]


def draw(axis: Random, rng: random.Random) -> float:
    """Draw a number between the bounds. Only `random()` is used, whose sequence is guaranteed not to change."""
    place = rng.random()
    if axis.kind == "int":
        return int(axis.low) + int(place * (int(axis.high) - int(axis.low) + 1))
    # each whole number has half a unit on both sides
    low, high = (axis.low - 0.5, axis.high + 0.5) if axis.kind == "log_int" else (axis.low, axis.high)
    if axis.kind == "uniform":
        return round_drawn(axis, low + (high - low) * place)
    return round_drawn(axis, math.exp(math.log(low) + (math.log(high) - math.log(low)) * place))


def round_drawn(axis: Random, number: float) -> float:
    """Round to as many digits as are readable in names, within the bounds."""
    if axis.kind in ("int", "log_int"):
        return min(max(round(number), int(axis.low)), int(axis.high))
    if (axis.high - axis.low) > 1e-3 * max(abs(axis.low), abs(axis.high)):
        number = float(f"{number:.{_DIGITS}g}")
    return min(max(number, axis.low), axis.high)


def shuffled(count: int, rng: random.Random) -> Iterator[int]:
    """Yield 0 … count-1 in random order, drawn one by one: memory is needed only for the drawn numbers."""
    moved: dict[int, int] = {}
    for taken in range(count):
        place = taken + int(rng.random() * (count - taken))
        yield moved.get(place, place)
        moved[place] = moved.pop(taken, taken) if place != taken else taken


def _group_names(sweep: Sweep) -> list[tuple[str, ...]]:
    """Return the groups in the order of their first axis. An axis with a single value is a group by itself."""
    zipped: dict[str, tuple[str, ...]] = {}
    for names in sweep.zips:
        several = tuple(name for name in names if len(_choices(sweep, name).values) > 1)
        zipped.update(dict.fromkeys(several, several))
    fixed = [name for name, axis in sweep.axes.items() if isinstance(axis, Choices)]
    return list(dict.fromkeys(zipped.get(name, (name,)) for name in fixed))


def _build_group(sweep: Sweep, names: tuple[str, ...], *, distinct: bool) -> AxisGroup:
    columns = [_choices(sweep, name).values for name in names]
    when = [(names.index(each.param), each.values) for each in sweep.when if each.param in names]
    rows = [
        row
        for row in zip(*columns, strict=True)
        if all(any(same_value(row[index], wanted) for wanted in values) for index, values in when)
    ]
    if not distinct:
        return AxisGroup(names, tuple(rows))
    first = {canonical(row): row for row in reversed(rows)}
    kept = [row for row in rows if first.get(canonical(row)) is row] if len(first) < len(rows) else rows
    repeats = tuple(row for row in rows if not any(row is other for other in kept)) if len(kept) < len(rows) else ()
    return AxisGroup(names, tuple(kept), repeats)


def _choices(sweep: Sweep, name: str) -> Choices:
    axis = sweep.axes[name]
    return axis if isinstance(axis, Choices) else Choices(())
