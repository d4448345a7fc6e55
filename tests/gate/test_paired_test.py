"""The paired test: its looks, its verdicts, and the choice among several winners."""

from __future__ import annotations

import math
import random

import pytest

from assay.gate.paired_test import (
    ALPHA,
    FEWEST,
    Choice,
    SeedPair,
    TryQuestion,
    build_schedule,
    choose_kept,
    is_near_zero,
    judge_look,
    measure_chance,
)

LOWER = TryQuestion("min", 0.005)
LEVEL = 0.01


def pair_up(a: list[float | None], b: list[float | None]) -> list[SeedPair]:
    return [SeedPair(seed, *both) for seed, both in enumerate(zip(a, b, strict=True), 1)]


def judge(a: list[float | None], b: list[float | None], question: TryQuestion = LOWER) -> Choice:
    return judge_look(pair_up(a, b), LEVEL, question).verdict


NOISY: list[float | None] = [1.0, 1.02, 0.97, 1.01, 0.99, 1.03, 0.98, 1.0]


@pytest.mark.parametrize(
    ("most", "looks"),
    [(5, (5,)), (6, (6,)), (7, (6, 7)), (20, (6, 8, 10, 12, 14, 16, 18, 20)), (50, (15, 20, 25, 30, 35, 40, 45, 50))],
)
def test_the_looks_end_with_the_last_pair(monkeypatch: pytest.MonkeyPatch, most: int, looks: tuple[int, ...]) -> None:
    monkeypatch.setattr("assay.gate.paired_test._PATHS", 5000)
    found, levels = zip(*build_schedule.__wrapped__(most), strict=True)  # not from the cache
    assert found == looks
    assert list(levels) == sorted(levels)
    assert levels[-1] <= ALPHA < sum(levels) + 1e-9


def test_equal_sides_are_called_better_as_often_as_was_promised() -> None:
    schedule, generator, better, count = build_schedule(20), random.Random(7), 0, 1000
    for _ in range(count):
        pairs = [SeedPair(seed, generator.gauss(1, 0.1), generator.gauss(1, 0.1)) for seed in range(20)]
        asked = TryQuestion("min", change=0.0)
        verdicts = (judge_look(pairs[:look], level, asked).verdict for look, level in schedule)
        better += next((verdict for verdict in verdicts if verdict != "undecided"), "") == "better"
    assert abs(better / count - ALPHA) < 4 * math.sqrt(ALPHA / count)


def test_a_side_with_one_value_is_one_run() -> None:
    """A side that ignores the seed, equal to the other one, was called better in 313 of 1,000 tries."""
    schedule, generator, better, count = build_schedule(20), random.Random(11), 0, 500
    for _ in range(count):
        lucky = generator.gauss(1, 0.1)
        pairs = [SeedPair(seed, generator.gauss(1, 0.1), lucky) for seed in range(20)]
        better += any(judge_look(pairs[:look], level, LOWER).verdict == "better" for look, level in schedule)
    assert better / count < 2 * ALPHA
    verdicts = judge(NOISY, [0.96] * 8), judge(NOISY, [0.5] * 8), judge([0.96] * 8, NOISY)
    assert verdicts == ("undecided", "better", "undecided")
    assert measure_chance(pair_up(NOISY, [0.96] * 8), LOWER) > 0.02
    nearly: list[float | None] = [0.99, 0.98, 0.99, 0.99, 0.97, 0.99, 0.98, 0.99]
    assert judge(nearly, [1.0] * 8, TryQuestion("max")) == "better", "an accuracy at its limit"


def test_a_clear_difference_is_better_or_worse_by_the_direction_and_a_failure_is_worse() -> None:
    lower = [value - 0.3 - 0.01 * at for at, value in enumerate(NOISY) if value is not None]
    assert judge(NOISY, [*lower]) == "better"
    assert judge([*lower], NOISY) == "worse"
    assert judge(NOISY, [*lower], TryQuestion("max")) == "worse"

    found = judge_look(pair_up(NOISY, [value - 0.25 for value in NOISY if value is not None]), LEVEL, LOWER)
    assert found.verdict == "better"
    assert found.effect == pytest.approx(-0.25)
    assert found.relative == pytest.approx(-0.25)
    for bad in (None, math.nan, math.inf):
        assert judge(NOISY, [bad] * 8) == "worse"
        assert judge([bad] * 8, NOISY) == "better"
        assert judge([bad] * 8, [bad] * 8) == "undecided"
    many: list[float | None] = [1.0] * 20
    assert judge(many, [*many[1:], None]) == "undecided", "one failure among equal pairs"
    lower: list[float | None] = [value - 0.02 - 0.001 * at for at, value in enumerate(NOISY) if value is not None]
    assert judge(NOISY, lower) == "better"
    assert judge(NOISY, [None, None, *lower[2:]]) == "undecided"
    found = judge_look(pair_up([None, *NOISY], [None, *NOISY]), LEVEL, LOWER)
    assert (found.pairs, found.failed_a, found.failed_b) == (8, 1, 1)


def test_a_difference_that_does_not_matter_is_the_same_and_noise_decides_nothing() -> None:
    assert judge(NOISY, NOISY) == "same"
    assert judge(NOISY, NOISY, TryQuestion("min", 0.0)) == "same"
    slightly = [value - 0.001 for value in NOISY if value is not None]
    assert judge(NOISY, [*slightly]) == "same"
    assert judge(NOISY, [*slightly], TryQuestion("min", 0.0005)) == "better"
    assert judge(NOISY, [*slightly], TryQuestion("min", change=0.0005)) == "better"
    assert judge(NOISY, [*reversed(NOISY)]) == "undecided"
    assert judge([1.0] * (FEWEST - 1), [0.5] * (FEWEST - 1)) == "undecided"
    assert judge([1.0] * FEWEST, [0.5] * FEWEST) == "better"
    assert all(map(is_near_zero, ([0.0, 0.0], [-0.01, 0.02], [0.01, 0.01, 0.01, 0.01, 9.0])))
    assert not any(map(is_near_zero, ([1.0, 1.1], [-3.0, -3.1], [])))


def test_the_chance_of_a_winner_and_which_of_several_are_kept() -> None:
    assert measure_chance(pair_up([1.0, 2.0] * 3, [0.5, 1.5] * 3), LOWER) == 0.5**6
    assert measure_chance(pair_up([1.0, 2.0] * 3, [1.5, 2.5] * 3), LOWER) == 1.0
    assert measure_chance(pair_up([1.0] * 6, [0.5] * 6), LOWER) == 1.0, "one pair, six times"
    assert measure_chance(pair_up(NOISY, [*reversed(NOISY)]), LOWER) == pytest.approx(0.5, abs=0.4)
    assert measure_chance(pair_up([None] * 6, [None] * 6), LOWER) == 1.0
    assert choose_kept([0.001, 0.04, 0.2, 0.09]) == [True, True, False, False]
    assert choose_kept([0.03, 0.03, 0.03]) == [True, True, True]
    assert choose_kept([0.2]) == [False]
    assert choose_kept([]) == []
