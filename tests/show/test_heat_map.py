"""Bars and heat maps: levels, cells that become one, and every format."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

import pytest

from assay.show.heat_map import draw_bars, draw_heat_map, find_first, find_level, render_bars, render_heat_map, shrink
from assay.values.document import Bars, HeatMap

CELLS = [[0.0, 0.5, 1.0, 1.5], [10.5, 150.0, math.inf, 0.0], [0.0, 0.0, 0.0, 0.0]]
LEVELS = ("equal", "within", "up to 10", "up to 100", "more", "infinite")
HEAT = HeatMap(CELLS, (0.0, 1.0, 10.0, 100.0), LEVELS, (3, 4), (1, 2), "times <it>", "where & how")
BARS = Bars((("none", 0), ("<few>", 1), ("many", 400)), "how many")


@pytest.mark.parametrize(
    ("excess", "level"),
    [(0, 0), (1e-9, 1), (1, 1), (1.0000001, 2), (10, 2), (10.1, 3), (100, 3), (101, 4), (1e300, 4), (math.inf, 5)],
)
def test_levels(excess: float, level: int) -> None:
    assert find_level(excess, (0.0, 1.0, 10.0, 100.0)) == level


def test_shrinking_keeps_the_worst() -> None:
    assert shrink(CELLS, 2, 2) == [[0.5, 1.5], [150.0, math.inf]]
    assert shrink(CELLS, 9, 9) == CELLS
    assert shrink(CELLS, 1, 1) == [[math.inf]]


def test_the_first_element_of_a_cell() -> None:
    """The inverse of how elements are put into cells."""
    for length, cells in ((64, 48), (7, 3), (5, 5), (100, 7)):
        for cell in range(cells):
            first = find_first(cell, cells, length)
            assert first * cells // length == cell
            assert first == 0 or (first - 1) * cells // length == cell - 1


def test_a_heat_map_on_a_terminal() -> None:
    lines = list(render_heat_map(HEAT, 60, color=False, plain=False))
    assert lines[:3] == ["0 ···░░░░░░▒▒▒", "1 ▓▓▓███XXX···", "2 ············"]
    key = "· equal ░ within ▒ up to 10 ▓ up to 100 █ more X infinite"
    assert " ".join(" ".join(lines[3:]).split()) == key
    assert "".join(render_heat_map(HEAT, 60, color=False, plain=True)).isascii()
    painted = list(render_heat_map(HEAT, 60, color=True, plain=False))
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in painted] == lines
    assert all(len(line) <= 20 for line in render_heat_map(HEAT, 20, color=False, plain=False))


def test_a_bar_that_is_not_zero_is_visible() -> None:
    lengths = [sum(char in "█▏▎▍▌▋▊▉" for char in line) for line in render_bars(BARS, color=False, plain=False)]
    assert lengths == [0, 1, 36]
    assert list(render_bars(Bars(()), color=False, plain=False)) == []


def test_drawings_are_well_formed_and_escaped() -> None:
    bars, heat = ET.fromstring(draw_bars(BARS)), ET.fromstring(draw_heat_map(HEAT))
    assert [each.text for each in bars.iter("text")][2] == "<few>"
    assert [each.text for each in heat.iter("title")] == [
        "axis 1: 0, axis 2: 3: 1.5 times <it>",
        "axis 1: 1, axis 2: 0: 10.5 times <it>",
        "axis 1: 1, axis 2: 1: 150 times <it>",
        "axis 1: 1, axis 2: 2: infinite",
    ]
