"""Which change moved a metric: effects that are exactly 0, effects that are not, and effects within the noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from assay.golden.judge.contrasts import MetricShift, build_curves, find_allowed, measure_shift, measure_shifts
from assay.golden.values import Golden, Rule, Segment, Track

TWO = {"aa": -1, "ba": 1}
FOUR = {"aa": 1, "ab": -1, "ba": -1, "bb": 1}
STEPS = tuple(range(1, 61))
BASE = tuple(2 + 6 * math.exp(-step / 20) for step in STEPS)


def segment(rows: Sequence[Sequence[float]], texts: Callable[[float], str] = repr, start: int = 0) -> Segment:
    tracks = tuple(Track(STEPS, tuple(row), tuple(map(texts, row))) for row in rows)
    return Segment(start, "", {"loss": {"": tracks}})


def measure(
    weights: dict[str, int], texts: Callable[[float], str] = repr, **cells: Sequence[Sequence[float]]
) -> MetricShift:
    (curves,) = build_curves({name: [segment(rows, texts)] for name, rows in cells.items()}, Rule("loss"))
    return measure_shift(curves, weights)


def scaled(factor: float) -> list[float]:
    return [factor * value for value in BASE]


def noisy(rng: np.random.Generator, runs: int, noise: float, factor: float = 1.0) -> list[list[float]]:
    return (np.array(BASE) * factor * (1 + noise * rng.normal(size=(runs, len(BASE))))).tolist()


def test_without_noise_what_is_not_equal_bit_for_bit_moved_also_together() -> None:
    assert measure(TWO, aa=[BASE], ba=[BASE]) == MetricShift("equal", level=pytest.approx(sum(BASE) / 60))
    almost = [*BASE[:-1], math.nextafter(BASE[-1], 9)]
    assert measure(TWO, aa=[BASE, BASE], ba=[almost, almost]).kind == "moved"
    assert measure(TWO, aa=[[0.0] * 60] * 2, ba=[[-0.0] * 60] * 2).kind == "moved", "the bits count"
    other = [*BASE[:2], BASE[2] + 0.5, BASE[3] - 0.5, *BASE[4:]]
    shift = measure(TWO, aa=[BASE, BASE], ba=[other, other])
    assert (shift.kind, shift.step) == ("moved", 3)
    assert shift.effect == pytest.approx(0, abs=1e-15)
    assert shift.largest == pytest.approx(0.5)
    assert measure(TWO, aa=[BASE], ba=[scaled(1.1)]).kind == "noise unknown"
    assert measure(TWO, aa=[BASE, BASE], ba=[scaled(1.1)]).kind == "moved", "the old one repeats itself"
    assert measure(TWO, aa=[BASE], ab=[BASE], ba=[scaled(1.1)], bb=[scaled(1.1)]).kind == "moved"
    pairs = {"aa": [BASE], "ba": [BASE], "ab": [scaled(1.1)], "bb": [scaled(1.1)]}
    assert measure(FOUR, **pairs).kind == "equal"
    added = {"aa": 0.0, "ab": 0.1, "ba": 0.3, "bb": 0.4}
    sums = {cell: [[value + more for value in BASE]] * 2 for cell, more in added.items()}
    assert measure(FOUR, **sums).kind == "rounding"
    digits = {cell: [[round(value, 3) for value in rows[0]]] * 2 for cell, rows in sums.items()}
    assert measure(FOUR, "{:.3f}".format, **digits).kind == "rounding"
    assert measure(FOUR, **{**sums, "bb": [scaled(1.3)] * 2}).kind == "moved"


def test_noise_is_compared_with_the_repeats() -> None:
    rng = np.random.default_rng(4)
    cells = {cell: noisy(rng, 2, 0.01) for cell in ("aa", "ab", "ba", "bb")}
    shift = measure(TWO, **cells)
    assert shift.kind == "within noise"
    assert shift.reach is not None
    assert abs(shift.effect) < shift.reach < 0.5
    assert abs(shift.effect) / shift.level < shift.bound
    assert measure(TWO, **{**cells, "ba": noisy(rng, 2, 0.01, 1.1)}).kind == "moved"
    rng = np.random.default_rng(5)
    other = [[*row[:50], *(1.2 * value for value in row[50:])] for row in noisy(rng, 4, 0.001)]
    assert measure(TWO, aa=noisy(rng, 4, 0.001), ba=other).kind == "moved"


def test_equal_cells_are_rarely_called_moved() -> None:
    """At most 5% of comparisons err; with equal noise 1.5%, and most if one cell has ten times the others' noise."""
    rng, found = np.random.default_rng(6), {"equal": 0, "unequal": 0}
    for _ in range(60):
        for name, noises in (("equal", (1, 1, 1, 1)), ("unequal", (10, 1, 1, 1))):
            cells = {cell: noisy(rng, 2, 0.001 * each) for cell, each in zip(FOUR, noises, strict=True)}
            found[name] += measure(TWO, **cells).kind == "moved"
    assert found["equal"] <= 2
    assert 0 < found["unequal"] <= 6


def test_two_goldens_and_what_a_rule_takes_for_nothing() -> None:
    before, after = Golden("t", (segment([BASE] * 2),)), Golden("t", (segment([scaled(1.01)]),))
    shifts = measure_shifts(before, after, [Rule("loss"), Rule("lr")])
    assert list(shifts) == ["loss"]
    assert (shifts["loss"].kind, shifts["loss"].relative) == ("moved", pytest.approx(0.01))
    other = Golden("t", (segment([BASE] * 2, start=9),))
    assert measure_shifts(before, other, [Rule("loss")]) == {}, "other segments"
    assert measure_shifts(Golden("t", ()), after, [Rule("loss")]) == {}
    rules = (Rule("loss", "exact"), Rule("loss", "margin", operator="<=", margin=0.1), Rule("loss", delta=0.02))
    assert [find_allowed(rule) for rule in rules] == [0.0, 0.1, 0.02]
