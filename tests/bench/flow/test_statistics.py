"""What benchmarks ask of the judges."""

from __future__ import annotations

import math
import random

import pytest

from assay.bench.flow.statistics import FEWEST_MOVED, compare_levels, describe_course, describe_few, look_at_few


def noise(level: float, count: int, seed: int) -> list[float]:
    chance = random.Random(seed)
    return [level * (1 + chance.gauss(0, 0.01)) for _ in range(count)]


def test_a_step_with_its_cause() -> None:
    values = [*noise(10, 30, 1), *noise(12, 30, 2)]
    commits = [f"{n:040x}" for n in range(60)]
    ((step, cause),) = describe_course(values, ["same"] * 60, commits, 0.05).steps
    assert abs(step.at - 30) <= 1
    assert step.effect == pytest.approx(0.2, abs=0.02)
    assert (step.before, step.after) == pytest.approx((10, 12), rel=0.01)
    assert step.interval is not None
    assert step.interval[0] < step.effect < step.interval[1]
    assert cause.origin == "code"


def test_a_step_where_only_the_environment_changed() -> None:
    values = [*noise(10, 30, 1), *noise(12, 30, 2)]
    ((_, cause),) = describe_course(values, ["one"] * 30 + ["two"] * 30, ["a"] * 60, 0.05).steps
    assert cause.origin == "environment"


@pytest.mark.parametrize("values", [[], [1.0], [5.0] * 40, noise(3, 40, 5)])
def test_no_step(values: list[float]) -> None:
    assert describe_course(values, [None] * len(values), [None] * len(values), 0.05).steps == ()


def test_levels_on_both_sides_of_a_known_place() -> None:
    step = compare_levels(noise(10, 12, 1), noise(11, 12, 2), 12)
    assert step is not None
    assert step.at == 12
    assert step.effect == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize(
    ("old", "new"), [([1.0], [2.0]), (noise(10, 12, 1), noise(10, 12, 2)), ([], [1.0]), ([1.0] * 5, [1.0] * 5)]
)
def test_levels_that_cannot_be_told_apart(old: list[float], new: list[float]) -> None:
    assert compare_levels(old, new, 0) is None


def test_a_few_are_looked_at_by_their_medians() -> None:
    step = look_at_few([1.0, 1.1, 0.9], [2.0], 3)
    assert (step.at, step.before, step.after, step.interval) == (3, 1.0, 2.0, None)
    assert step.effect == pytest.approx(1.0)
    assert look_at_few([0.0], [0.0], 1).effect == 0.0
    assert math.isfinite(look_at_few([0.0], [5.0], 1).effect)
    assert look_at_few([2.0], [-1.0], 1).effect == pytest.approx(-1.5)


@pytest.mark.parametrize(
    ("new", "where"), [([1.5], "within"), ([1.5, 3.0], "partly outside"), ([3.0, 0.5], "outside"), ([2.0], "within")]
)
def test_where_a_few_lie(new: list[float], where: str) -> None:
    words = describe_few([1.0, 2.0, 1.5, 1.2], new)
    assert words.startswith("1 execution on a new" if len(new) == 1 else "2 executions on a new")
    assert words.endswith(f"too few to judge (4 are the fewest), {where} the old range")


def test_the_side_that_is_too_short_is_named() -> None:
    assert describe_few([1.0], [1.0] * 5).startswith("1 execution on the old set-up, too few")
    assert compare_levels([1.0] * FEWEST_MOVED, [2.0 + n / 100 for n in range(FEWEST_MOVED)], 4) is not None
