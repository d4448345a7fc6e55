from __future__ import annotations

import math

import pytest

from assay.golden.judge.wording import render_bounded, render_effect


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0%"),
        (-0.0, "0%"),
        (0.03, "+3%"),
        (-0.0301, "-3.01%"),
        (4.1e-8, "<0.001%"),
        (-4.1e-8, "<0.001%"),
        (1e-5, "+0.001%"),
        (math.inf, "+inf%"),
    ],
)
def test_an_effect_in_words(value, text):
    assert render_effect(value) == text


def test_bounds_are_told_where_they_say_more():
    assert render_bounded(0.03, 0.02, 0.04) == "+3% [+2%, +4%]"
    assert render_bounded(0.03, 0.03, 0.03) == "+3%"
    assert render_bounded(0.03, 0.03, 0.031) == "+3% [+3%, +3.1%]"
    assert render_bounded(0.0, 0.0, 0.0) == "0%"
