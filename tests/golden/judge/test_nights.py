"""Nights: the level of each metric, lasting changes, and what was accepted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from assay.bench.judge.changepoint import find_change_points
from assay.golden.judge.nights import Move, Night, judge_nights, measure_levels
from assay.golden.values import MetricReport, Rule, SegmentReport, Track
from assay.system.fast_dataclasses import replace
from assay.values.verdict import Finding, Verdict, VerdictKind

PASSED = Verdict.of([Finding(VerdictKind.PASS, "loss", "fine")], 1)
RULES = {"loss": Rule("loss"), "reward": Rule("reward", direction="max")}


def build_nights(levels: Sequence[float | None], metric: str = "loss", failed: Sequence[int] = ()) -> list[Night]:
    return [
        Night(
            f"2026-03-{at + 1:02}",
            VerdictKind.FAIL if at in failed else VerdictKind.PASS,
            3,
            {} if level is None else {metric: level},
            origin={"commit": "new" if at >= 12 else "old", "cpu": "abacus"},
        )
        for at, level in enumerate(levels)
    ]


def shift(*parts: tuple[int, float], noise: float = 1e-3) -> list[float]:
    rng = np.random.default_rng(3)
    return [float(level * math.exp(noise * rng.standard_normal())) for count, level in parts for _ in range(count)]


def judge(nights: Sequence[Night]) -> tuple[Verdict, list[Move]]:
    return judge_nights(nights, RULES, find_change_points)


def test_what_is_quiet_or_went_back_passes_but_does_not_hide_the_last_nights() -> None:
    verdict, moves = judge(build_nights(shift((20, 2.0))))
    assert (verdict.kind, moves, verdict.comparisons) == (VerdictKind.PASS, [], 20)
    verdict, moves = judge(build_nights(shift((12, 2.0), (8, 2.04), (10, 2.0))))
    assert (verdict.kind, [each.state for each in moves]) == (VerdictKind.PASS, ["back", "back"])
    verdict, _ = judge(build_nights(shift((18, 2.0), (2, 2.0)), failed=[18, 19]))
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert "the last 2 nights did not pass" in verdict.findings[-1].message


def test_a_lasting_change_is_named_with_its_size_its_night_and_what_else_changed() -> None:
    nights = build_nights(shift((12, 2.0), (8, 2.04)), failed=range(12, 20))
    verdict, (move,) = judge(nights)
    assert (verdict.kind, move.at, move.state) == (VerdictKind.FAIL, 12, "open")
    (found,) = verdict.findings
    assert found.effect == pytest.approx(0.02, abs=0.002)
    assert "since 2026-03-13 (8 of 20 nights): commit new instead of old" in found.message

    verdict, _ = judge(build_nights(shift((12, 2.0), (8, 2.01))))
    assert verdict.kind is VerdictKind.CHANGED, "each night passed: one night does not show it"


@pytest.mark.parametrize("way", [1, -1])
def test_a_drift_that_no_night_began_is_named(way: int) -> None:
    """A drift of 0.1% a night, which is within the noise of nights, has no change point, but makes 3% in the end."""
    levels = [level * (1 + way * 1e-3 * at) for at, level in enumerate(shift((30, 2.0)))]
    nights = build_nights(levels)
    assert not find_change_points(levels)
    verdict, (move,) = judge(nights)
    assert (verdict.kind, move.drifts, move.state) == (VerdictKind.CHANGED, True, "open")
    assert move.effect == pytest.approx(way * 0.02, abs=0.003)  # the effect from the first third to the last
    assert "little by little, in 30 nights since 2026-03-01" in verdict.findings[0].message
    accepted = [*nights[:-1], replace(nights[-1], accepted="meant")]
    assert judge(accepted)[0].kind is VerdictKind.PASS
    worse = judge(build_nights(levels, failed=[28]))[0].kind
    assert worse is (VerdictKind.FAIL if way > 0 else VerdictKind.CHANGED)


def test_what_was_accepted_passes_until_it_moves_again_and_the_direction_decides_what_is_worse() -> None:
    levels = shift((12, 2.0), (8, 2.04))
    nights = [replace(night, accepted="new data" if at == 14 else "") for at, night in enumerate(build_nights(levels))]
    verdict, (move,) = judge(nights)
    assert (verdict.kind, move.state) == (VerdictKind.PASS, "accepted")
    more = [replace(each, date=f"2026-04-{at + 1:02}") for at, each in enumerate(build_nights(shift((9, 2.1))))]
    verdict, moves = judge([*nights, *more])
    assert verdict.kind is VerdictKind.CHANGED
    assert [each.state for each in moves] == ["accepted", "open"]
    for metric, kind in (("loss", "CHANGED"), ("reward", "FAIL")):
        assert judge(build_nights(shift((12, 2.0), (8, 1.96)), metric, failed=[15]))[0].kind == kind


def test_few_nights_and_nights_without_a_level_never_pass() -> None:
    few: list[list[float | None]] = [[2.0], [2.0] * 5, [2.0, None, None, None, None, None, 2.0]]
    for levels in few:
        verdict, _ = judge(build_nights(levels))
        assert verdict.kind is VerdictKind.INCONCLUSIVE
        assert "a lasting change shows from 6 on" in verdict.findings[0].message
    assert judge(build_nights([None] * 9))[0].kind is VerdictKind.ERROR
    holes: list[float | None] = [None if night % 2 else 0.0 for night in range(15)]
    verdict, _ = judge(build_nights(holes, failed=range(1, 15, 2)))
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert "no finite value is known of" in verdict.findings[0].message
    assert judge(build_nights([2.0] * 9))[0].kind is VerdictKind.PASS, "deterministic nights"


def measure(golden: Sequence[float], *checks: Sequence[float], rule: Rule = RULES["loss"]) -> dict[str, float]:
    tracks = [Track(tuple(range(len(values))), tuple(values)) for values in (golden, *checks)]
    report = MetricReport(rule, PASSED, {"": (tracks[0],)}, {"": tuple(tracks[1:])})
    return measure_levels([SegmentReport(0, "", PASSED, (report,))])


def test_a_level_is_the_mean_over_runs_and_steps() -> None:
    assert measure([1.0, 3.0], [1.1, 3.3], [1.0, 3.0]) == {"loss": pytest.approx(2.1)}
    assert measure([1.0, 3.0], [1.2]) == {"loss": pytest.approx(2.4)}, "it was stopped"
    assert measure([1.0, 3.0], [math.nan, 3.0]) == {}
    assert measure([1.0, 3.0]) == {}
    assert measure([-1.0, 1.0], [-0.5, 1.5], rule=RULES["reward"]) == {"reward": pytest.approx(0.5)}
    half = measure([1.0, 2.0, 3.0, 4.0], [9.0, 9.0, 3.3, 4.4], rule=Rule("loss", "unmatched"))
    assert half == {"loss": pytest.approx(3.85)}, "of other seeds the second half"
