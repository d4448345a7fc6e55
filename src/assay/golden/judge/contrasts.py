"""Which change moved a metric: contrasts between the runs of up to four cells, each a code in an environment.

Cells that are equal bit for bit differ by exactly 0. Where every cell repeats itself bit for bit, any difference is
real. With noise, the mean over all steps and the mean of each window are compared with the spread of the repeats, by
Student's t with the degrees of freedom of Welch and Satterthwaite; half of `ALPHA` is for the mean over all steps.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from assay.golden.judge.effects import average, build_starts, default_delta, find_resolution, measure_size
from assay.golden.judge.pointwise import has_equal_replicas
from assay.golden.values import Golden, Rule, Segment, Track
from assay.judge.statistics import Array, np, t_quantile
from assay.system.fast_dataclasses import dataclass, replace

ALPHA = 0.05  # how often an effect of 0 is called moved
_ROUNDING = 8 * 2.0**-52  # relative rounding error of sums in this module

# equal: bit for bit. moved: surely. rounding: sums of logged digits. within noise: not larger than the repeats differ.
Kind = Literal["equal", "moved", "rounding", "within noise", "noise unknown"]
Cells = Mapping[str, Sequence[Segment]]  # name of a cell → its runs, as recordings of the same segments


@dataclass(frozen=True, slots=True)
class Curves:
    """One metric and label over all segments."""

    name: str
    steps: Sequence[int]
    starts: Sequence[int]  # of windows, as indices into `steps`
    cells: Mapping[str, Sequence[Sequence[float]]]  # a row for each run
    resolution: float  # value of the last logged digit; 0: all digits were logged

    def is_steady(self, cell: str) -> bool:
        """Whether equal runs give equal values, as repeats of the cell or a run of another cell show."""
        rows = self.cells[cell]
        others = [other[0] for name, other in self.cells.items() if name != cell]
        return has_equal_replicas(rows) if len(rows) > 1 else any(has_equal_replicas([*rows, each]) for each in others)

    def are_equal(self, one: str, other: str) -> bool:
        return has_equal_replicas([*self.cells[one], *self.cells[other]])


@dataclass(frozen=True, slots=True)
class MetricShift:
    """How far a metric was moved, in its own unit."""

    kind: Kind
    effect: float = 0.0  # mean over all steps
    level: float = 0.0  # the mean to which effects are relative
    largest: float = 0.0  # the largest effect of a single step
    step: int | None = None
    reach: float | None = None  # the interval is effect ± reach; None: there is no noise, or it is unknown
    bound: float = 0.0  # relative: the largest effect on a window that is not excluded

    @property
    def relative(self) -> float:
        return self.effect / abs(self.level) if self.level else math.inf if self.effect else 0.0


def build_curves(cells: Cells, rule: Rule) -> list[Curves]:
    """Build the curves of each label that has whole runs with the same segments and steps in all cells."""
    first = next(iter(cells.values()))
    labels = dict.fromkeys(label for segment in first for label in segment.tracks.get(rule.metric, {}))
    found = [_join(cells, rule, label) for label in labels if not rule.labels or label in rule.labels]
    return [curves for curves in found if curves is not None]


def _join(cells: Cells, rule: Rule, label: str) -> Curves | None:
    steps, starts, resolution = list[int](), list[int](), 0.0
    found: dict[str, list[tuple[Track, ...]]] = {name: [] for name in cells}
    if len({tuple(each.start_step for each in segments) for segments in cells.values()}) != 1:
        return None
    for parts in zip(*cells.values(), strict=True):
        sides = [part.tracks.get(rule.metric, {}).get(label, ()) for part in parts]
        if not sides[0]:
            continue
        if not all(sides) or len({run.steps for runs in sides for run in runs}) != 1:
            return None
        starts += [len(steps) + start for start in build_starts(rule, sides[0][0].steps)]
        steps += sides[0][0].steps
        resolution = max(resolution, find_resolution(sides[0][0]))
        for name, runs in zip(cells, sides, strict=True):
            found[name].append(runs)
    rows = {
        name: [[value for runs in parts for value in runs[number].values] for number in range(min(map(len, parts)))]
        for name, parts in found.items()
        if parts
    }
    return Curves(f"{rule.metric} {label}".strip(), steps, starts, rows, resolution) if rows else None


def measure_shift(curves: Curves, weights: Mapping[str, int]) -> MetricShift:
    """Measure the weighted sum of the cells' means, with the mean of the first cell as the level."""
    rows = {cell: np.array(curves.cells[cell], dtype=float) for cell in weights}
    level = float(next(iter(rows.values())).mean())
    if _find_equal(curves, list(weights)):
        return MetricShift("equal", level=level)
    apart = sum(weight * rows[cell].mean(axis=0) for cell, weight in weights.items())
    at, effect = int(np.abs(apart).argmax()), float(apart.mean())
    largest, step = float(apart[at]), curves.steps[at]
    single = {cell for cell in weights if len(rows[cell]) == 1 and not curves.is_steady(cell)}
    if len(single) == len(weights):
        return MetricShift("noise unknown", effect, level, largest, step)
    if all(cell in single or curves.is_steady(cell) for cell in weights):
        floor = (2 * curves.resolution + _ROUNDING * max(float(np.abs(each).max()) for each in rows.values())) * 1.001
        kind: Kind = "rounding" if len(weights) > 2 and abs(largest) <= floor else "moved"
        return MetricShift(kind, effect, level, largest, step)
    return _judge_noise(curves, weights, single, apart, MetricShift("within noise", effect, level, largest, step))


def _judge_noise(
    curves: Curves, weights: Mapping[str, int], single: Collection[str], apart: Array, shift: MetricShift
) -> MetricShift:
    """Compare windows relative to their level, so that their spreads can be pooled. `single`: cells of one run, whose
    spread is assumed to be that of the other cells."""
    rows = {cell: np.array(each, dtype=float) for cell, each in curves.cells.items()}
    size = measure_size(rows[next(iter(weights))], curves.starts)
    windows = average(apart[None], curves.starts)[0] / size
    means = {cell: average(each, curves.starts) / size for cell, each in rows.items()}
    of_windows = _find_reach(means, weights, single, ALPHA / 4 / len(windows))
    whole = {cell: each.mean(axis=1, keepdims=True) for cell, each in rows.items()}
    reach = float(_find_reach(whole, weights, single, ALPHA / 4)[0])
    is_moved = abs(shift.effect) > reach or bool((np.abs(windows) > of_windows).any())
    bound = float((np.abs(windows) + of_windows).max())
    return replace(shift, kind="moved" if is_moved else "within noise", reach=reach, bound=bound)


def _find_equal(curves: Curves, cells: Sequence[str]) -> bool:
    """Whether two cells are equal; of four cells, whether the first equals the second or third, as the others do."""
    if len(cells) == 2:
        return curves.are_equal(*cells)
    one, two, three, four = cells
    pairs = ((one, two), (three, four)), ((one, three), (two, four))
    return any(all(curves.are_equal(*pair) for pair in both) for both in pairs)


def _find_reach(runs: Mapping[str, Array], weights: Mapping[str, int], single: Collection[str], tail: float) -> Array:
    """Return how far chance moves the sum, per column. Two repeats do not show a spread well: the spread of the cells
    or of all repeated cells is used, whichever is larger, and half of each spread is the mean of all windows."""
    variances = {cell: each.var(axis=0, ddof=1) for cell, each in runs.items() if len(each) > 1}
    spread = {cell: (each + each.mean()) / 2 for cell, each in variances.items() if each.any()}
    noisy = [cell for cell in weights if cell in spread or (spread and cell in single)]
    if not noisy:  # the differences cancel in the mean
        return np.zeros(next(iter(runs.values())).shape[1])
    usual = sum(spread.values()) / len(spread)
    own = sum(weights[cell] ** 2 * spread.get(cell, usual) / len(runs[cell]) for cell in noisy)
    pooled = sum(weights[cell] ** 2 * usual / len(runs[cell]) for cell in noisy)
    fourth = sum(each * each / (len(runs[cell]) - 1) for cell, each in spread.items())
    freedom = np.maximum(1, np.floor((usual * len(spread)) ** 2 / fourth))
    return np.array([t_quantile(int(each), tail) for each in freedom]) * np.sqrt(np.maximum(own, pooled))


def measure_shifts(before: Golden, after: Golden, rules: Sequence[Rule]) -> dict[str, MetricShift]:
    """Measure the shifts between two goldens by metric and label; leave out metrics whose steps differ."""
    cells = {"a": before.segments, "b": after.segments}
    found = [curves for rule in rules for curves in build_curves(cells, rule)] if before.segments else []
    return {curves.name: measure_shift(curves, {"a": -1, "b": 1}) for curves in found}


def find_allowed(rule: Rule) -> float:
    """Return the largest relative effect that a rule accepts."""
    if rule.kind == "exact":
        return 0.0
    return rule.margin or 0.0 if rule.kind == "margin" else default_delta(rule)
