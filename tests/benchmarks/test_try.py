"""The figures of `assay try`: the script still makes them."""

from __future__ import annotations

import random
from types import ModuleType

import pytest

pytestmark = pytest.mark.needs(gate=True)
SCRIPT = "try"


def test_a_clear_improvement_ends_at_the_first_look(script: ModuleType) -> None:
    pairs = [script.SeedPair(seed, 1.0 + seed / 1000, 0.5) for seed in range(script.MOST)]
    assert script.decide(pairs) == ("better", 6)
    assert script.decide([script.SeedPair(pair.seed, pair.a, pair.a) for pair in pairs])[0] == "same"


def test_a_ledger_keeps_the_two_real_ones(script: ModuleType) -> None:
    kept = [list(script._keep(random.Random(seed))) for seed in range(10)]
    assert sum(each == [True, True] + [False] * 18 for each in kept) >= 8


def test_a_fixed_test_needs_the_size_of_the_tables(script: ModuleType) -> None:
    """Two-sided 5% and 90% power for one standard deviation: 13 pairs."""
    assert 12 < script._find_fixed_size(1.0, 0.9) <= 13


def test_the_figures_are_printed_with_intervals(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    script.show_equal_sides(20)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 2 * len(script.SHAPES)
    assert all("% [" in line for line in lines[1:])
