import math

import numpy as np
import pytest

from assay.judge.history import find_triage, judge_history
from assay.values.bench import ChangePoint, Triage
from assay.values.verdict import VerdictKind

PASS, FAIL, CHANGED = VerdictKind.PASS, VerdictKind.FAIL, VerdictKind.CHANGED
INCONCLUSIVE, ERROR = VerdictKind.INCONCLUSIVE, VerdictKind.ERROR


def build_values(*levels, each=40, seed=0):
    rng = np.random.default_rng(seed)
    return [float(level * math.exp(0.01 * rng.standard_normal())) for level in levels for _ in range(each)]


SLOWER = build_values(100, 120)


# ---------------------------------------------------------------- never a pass without reason


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        ([], ERROR, "no values"),
        ([None, math.nan], ERROR, "no values"),
        ([1.0], INCONCLUSIVE, "history of 1 values"),
        ([1.0] * 5, INCONCLUSIVE, "history of 5 values"),
        ([1.0] * 50 + [math.nan], FAIL, "newest value"),
        ([1.0] * 50 + [None], FAIL, "newest value"),
        ([1.0] * 50 + [math.inf], FAIL, "newest value"),
    ],
)
def test_what_cannot_be_judged_does_not_pass(values, kind, words):
    verdict = judge_history(values, "min")
    assert verdict.kind is kind
    assert words in verdict.findings[0].message


@pytest.mark.parametrize("threshold", [-1, math.nan, math.inf])
def test_a_senseless_threshold_is_an_error(threshold):
    assert judge_history(SLOWER, "min", threshold=threshold).kind is ERROR


# ---------------------------------------------------------------- verdicts


def test_a_constant_or_calm_history_passes():
    assert judge_history([3.0] * 50, "min").kind is PASS
    calm = judge_history(build_values(100), "min")
    assert (calm.kind, calm.comparisons) == (PASS, 39)


def test_a_slower_level_fails_with_size_interval_and_place():
    verdict = judge_history(SLOWER, "min", subject="wall_time")
    (finding,) = verdict.findings
    assert verdict.kind is FAIL
    assert finding.subject == "wall_time"
    assert (finding.step, finding.effect) == (40, pytest.approx(0.2, abs=0.02))
    assert finding.interval[0] < finding.effect < finding.interval[1]
    assert "between 39 and 40" in finding.message


def test_the_direction_says_what_is_worse():
    assert judge_history(SLOWER, "max").kind is CHANGED
    assert judge_history(build_values(120, 100), "max").kind is FAIL


def test_a_step_below_the_threshold_passes_and_a_larger_one_still_fails():
    assert judge_history(SLOWER, "min", threshold=0.3).kind is PASS
    assert judge_history(SLOWER, "min", threshold=0.1).kind is FAIL


def test_what_has_recovered_does_not_fail():
    verdict = judge_history(build_values(100, 120, 100), "min")
    assert [finding.kind for finding in verdict.findings] == [PASS, CHANGED]
    assert "as good as before" in verdict.findings[0].message


def test_what_has_recovered_in_part_still_fails():
    assert judge_history(build_values(100, 130, 115), "min").kind is FAIL


def test_values_before_those_asked_about_raise_no_alarm():
    assert judge_history(SLOWER, "min", since=60).kind is PASS
    assert judge_history(SLOWER, "min", since=40).kind is FAIL


# ---------------------------------------------------------------- triage


@pytest.mark.parametrize("state", ["ack", "invalid", "wontfix"])
@pytest.mark.parametrize("index", [37, 40, 45])
def test_triage_is_respected_even_when_the_place_moved_a_little(state, index):
    verdict = judge_history(SLOWER, "min", triage={index: Triage(state, "known")})
    assert verdict.kind is PASS
    assert f"triaged as {state} (known)" in verdict.findings[0].message


def test_triage_of_another_change_excuses_nothing():
    values = build_values(100, 120, 150)
    verdict = judge_history(values, "min", triage={40: Triage("ack")})
    assert [finding.kind for finding in verdict.findings] == [PASS, FAIL]
    assert judge_history(SLOWER, "min", triage={60: Triage("ack")}).kind is FAIL


def test_the_nearest_triage_counts():
    change = ChangePoint(40, 39, 0.2, (0.1, 0.3), 1.0, 1.2, 1.0)
    assert find_triage(change, {38: Triage("ack"), 41: Triage("invalid")}) == Triage("invalid")
    assert find_triage(change, {}) is None


# ---------------------------------------------------------------- environment or code


def test_a_change_of_the_environment_is_not_blamed_on_the_code():
    verdict = judge_history(SLOWER, "min", fingerprints=["a"] * 40 + ["b"] * 40)
    assert verdict.kind is INCONCLUSIVE
    assert "environment" in verdict.findings[0].message


def test_a_change_within_one_environment_fails():
    verdict = judge_history(SLOWER, "min", fingerprints=["a"] * 80, commits=["c"] * 40 + ["d"] * 40)
    assert verdict.kind is FAIL
    assert "code:" in verdict.findings[0].message


def test_an_environment_that_was_not_recorded_excuses_nothing():
    verdict = judge_history(SLOWER, "min")
    assert verdict.kind is FAIL
    assert "unknown:" in verdict.findings[0].message
