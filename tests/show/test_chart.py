"""A line with fewer points: what is far from the others stays."""

from __future__ import annotations

import math
import random
from array import array

from assay.show.chart import thin, thin_line


def test_a_line_without_gaps_is_thinned_as_its_points_are() -> None:
    rng = random.Random(1)
    for count in (11, 100, 1001, 5000):
        ys = array("d", (rng.choice([rng.random(), 1.0, 1.0]) for _ in range(count)))
        ys[count // 3], ys[count // 2] = 50.0, -50.0
        xs = array("d", range(count))
        found = thin_line(xs, ys, 40)
        assert list(zip(*found, strict=True)) == thin(list(zip(xs, ys, strict=True)), 40)
        assert {50.0, -50.0} <= set(found[1])


def test_gaps_stay_gaps() -> None:
    ys = array("d", (float(number % 7) for number in range(1000)))
    ys[500], ys[700], ys[800], ys[40], ys[600] = math.nan, math.inf, 1e301, -5.0, 50.0
    xs, thinned = thin_line(array("d", range(1000)), ys, 60)
    assert len(xs) < 100
    assert sum(map(math.isnan, thinned)) == 3
    assert {50.0, -5.0} <= set(thinned)
    assert max(y for y in thinned if y == y) == 50.0  # noqa: PLR0124
    xs, thinned = thin_line(array("d", range(1000)), array("d", [1e301] * 1000), 60)
    assert not any(map(math.isfinite, thinned))
