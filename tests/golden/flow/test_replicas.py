"""What a repeated segment says; whole gatherings with replicas are in test_golden.py."""

from __future__ import annotations

import pytest

from assay.golden.flow.replicas import _find_lost, cut_track, describe_noise, falls_one_short
from assay.golden.judge.noise import Noise
from assay.golden.recorder import Values
from assay.golden.values import Rule, Segment, Track

SEGMENT = Segment(4, "c", {"loss": {"": (Track((5, 6, 7), (1.0, 1.0, 1.0)),)}})


def test_one_step_short_is_only_the_last_step() -> None:
    track = Track((5, 6, 7), (1.0, 1.0, 1.0))
    segment = Segment(4, "c", {"loss": {"": (track,)}})
    assert falls_one_short(segment, _values(4, 5, 6))
    assert not falls_one_short(segment, _values(5, 6, 7))
    assert not falls_one_short(segment, _values(5, 7))
    assert not falls_one_short(segment, _values(5))
    assert not falls_one_short(segment, _values())
    assert not falls_one_short(segment, _values(5, 6, 8))


def _values(*steps: int) -> Values:
    return Values({("loss", ""): dict.fromkeys(steps, (1.0, "1.0"))})


def test_a_run_is_cut_to_the_steps_of_the_recording() -> None:
    values = _values(4, 5, 7)
    assert cut_track(values, "loss", "", (5, 6, 7)) == Track((5, 7), (1.0, 1.0), ("1.0", "1.0"))
    assert cut_track(values, "loss", "other", (5, 6, 7)).steps == ()
    assert cut_track(values, "acc", "", (5,)).steps == ()


@pytest.mark.parametrize(
    ("steps", "lost"),
    [((4, 5, 6, 7, 8), []), ((5, 6), [("loss", 7)]), ((6, 7), [("loss", 5)]), ((), [("loss", 5)])],
)
def test_the_first_step_that_a_replica_lacks_is_named(steps: tuple[int, ...], lost: list[tuple[str, int]]) -> None:
    assert list(_find_lost(SEGMENT, _values(*steps))) == lost


def build_noise(metric: str, window: float) -> Noise:
    return Noise(f"segment at 4: {metric}", metric, "", 3, 50, 0.02, (window,), (0.03, 0.02, 0.01), 0.001, 0.05)


def test_the_noisiest_place_of_each_metric_speaks() -> None:
    found = [build_noise("loss", 0.01), build_noise("loss", 0.04), build_noise("loss", 0.02), build_noise("acc", 0.003)]
    assert describe_noise(found) == [
        "loss: noise 4% per window, 2% per step (3 replicas); CHANGED from 0%, FAIL from 3%; suggested delta 5%",
        "acc: noise 0.3% per window, 2% per step (3 replicas); CHANGED from 0%, FAIL from 3%; suggested delta 5%",
    ]
    assert describe_noise([]) == []


def test_a_metric_that_must_be_equal_has_no_delta() -> None:
    rules = [Rule("loss", "exact"), Rule("acc")]
    said = describe_noise([build_noise("loss", 0.01), build_noise("acc", 0.01)], rules)
    assert [line.split(":")[0] for line in said] == ["acc"]
