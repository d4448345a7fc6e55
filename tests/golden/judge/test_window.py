from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden.judge.curves import falling, noisy, run, segment, track

from assay.golden.judge.convergence import judge_segment
from assay.golden.judge.effects import (
    better_way,
    build_alarms,
    build_starts,
    default_delta,
    find_first_delta,
    measure_effects,
)
from assay.golden.judge.pairing import line_up
from assay.golden.judge.window import second_half
from assay.golden.values import Rule
from assay.values.verdict import VerdictKind

LOSS = Rule("loss")
FAIL, PASS, CHANGED = VerdictKind.FAIL, VerdictKind.PASS, VerdictKind.CHANGED
INCONCLUSIVE, ERROR = VerdictKind.INCONCLUSIVE, VerdictKind.ERROR


def judge(golden, *checks, rule=LOSS, peers=1, variants=()):
    found = segment(*golden, metric=rule.metric)
    if variants:
        named = {str(number): run(values, metric=rule.metric) for number, values in enumerate(variants)}
        found = replace(found, variants=named)
    return judge_segment(rule, found, [run(check, metric=rule.metric) for check in checks], peers=peers)


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def test_a_run_like_the_others_passes_a_worse_one_fails_and_a_better_one_is_suspicious(rng):
    verdict = judge(noisy(rng, 5), noisy(rng, 1)[0])
    assert (verdict.kind, verdict.comparisons) == (PASS, 300)
    (finding,) = verdict.findings
    assert abs(finding.effect) < 0.001
    assert finding.interval[0] < finding.effect < finding.interval[1] < 0.005
    verdict = judge(noisy(rng, 5), noisy(rng, 1, effect=0.02)[0])
    assert verdict.kind is FAIL
    (finding,) = verdict.findings
    assert finding.effect == pytest.approx(0.02, abs=0.001)
    assert 0.015 < finding.interval[0] < finding.effect < finding.interval[1] < 0.025
    assert finding.step == 101
    assert "more than 0.5%\nbegins at step 101; 6 of 6 windows" in finding.message
    assert finding.value == pytest.approx(1.02 * finding.expected, rel=2e-3)
    verdict = judge(noisy(rng, 5), noisy(rng, 1, effect=-0.02)[0])
    assert verdict.kind is CHANGED
    assert verdict.findings[0].message.startswith("suspiciously better: -2")
    worse = [value * (1.02 + 0.01 * (index % 2)) for index, value in enumerate(falling())]
    (finding,) = [each for each in judge(noisy(rng, 5), worse).findings if each.kind is FAIL]
    assert finding.value / finding.expected - 1 == pytest.approx(finding.effect, rel=1e-9)


def test_a_late_divergence_fails_where_it_begins_and_noise_is_inconclusive(rng):
    check = noisy(rng, 1)[0] * np.where(np.arange(300) < 220, 1.0, 1.0 + 0.002 * (np.arange(300) - 219))
    verdict = judge(noisy(rng, 5), check)
    assert verdict.kind is FAIL
    assert 321 <= verdict.findings[0].step <= 325  # the first step that is farther away than noise
    assert "1 of 6 windows" in verdict.findings[0].message or "2 of 6 windows" in verdict.findings[0].message
    verdict = judge(noisy(rng, 5), noisy(rng, 1)[0] * np.where(np.arange(300) < 150, 0.95, 1.05))
    assert verdict.kind is FAIL
    assert [finding.kind for finding in verdict.findings] == [FAIL, CHANGED]
    verdict = judge(noisy(rng, 5, step=0.05), noisy(rng, 1, step=0.05)[0])
    assert verdict.kind is INCONCLUSIVE, "noise as large as delta"
    assert "add a replica" in verdict.findings[0].message
    golden, checks = noisy(rng, 5, step=0.01), noisy(rng, 3, step=0.01)
    one, three = judge(golden, checks[0]).findings[-1], judge(golden, *checks).findings[-1]
    assert three.interval[1] - three.interval[0] < 0.85 * (one.interval[1] - one.interval[0])
    golden, check = noisy(rng, 5, step=0.01), noisy(rng, 1, step=0.01, effect=0.014)[0]
    assert judge(golden, check).kind is FAIL
    assert judge(golden, check, peers=100).kind is INCONCLUSIVE, "alpha is shared"


def settle(rng, effect, **noise):
    """Run a check: one run, and up to three while it is inconclusive."""
    golden, runs, kind = noisy(rng, 5, **noise), [], INCONCLUSIVE
    while kind is INCONCLUSIVE and len(runs) < 3:
        runs.append(noisy(rng, 1, effect=effect, **noise)[0])
        kind = judge(golden, *runs).kind
    return kind


@pytest.mark.parametrize("noise", [{"step": 1e-3}, {"step": 0.01}, {"step": 0.02}, {"step": 1e-3, "whole": 1e-3}])
def test_null_checks_rarely_fail_and_two_percent_are_always_found(noise):
    rng = np.random.default_rng(5)
    kinds = [settle(rng, 0.0, **noise) for _ in range(15)]
    assert kinds.count(FAIL) + kinds.count(CHANGED) <= 1
    assert {settle(rng, 0.02, **noise) for _ in range(6)} == {FAIL}


@pytest.mark.parametrize("noise", [{"step": 1e-3}, {"step": 1e-3, "whole": 3e-4}])
def test_one_percent_fails_and_half_of_delta_is_a_change_where_noise_is_small(noise):
    rng = np.random.default_rng(7)
    assert {settle(rng, 0.01, **noise) for _ in range(6)} == {FAIL}
    assert {settle(rng, 0.004, **noise) for _ in range(6)} == {CHANGED}


@pytest.mark.parametrize(
    ("rule", "up", "down"),
    [
        (Rule("loss"), FAIL, CHANGED),
        (Rule("accuracy"), CHANGED, FAIL),
        (Rule("images/sec"), CHANGED, FAIL),
        (Rule("lr"), FAIL, FAIL),
        (Rule("grad_norm"), FAIL, FAIL),
        (Rule("anything"), FAIL, FAIL),  # the name does not show a direction: any change counts
        (Rule("loss", direction="min"), FAIL, CHANGED),
        (Rule("loss", direction="max"), CHANGED, FAIL),
        (Rule("loss", direction="both"), FAIL, FAIL),
    ],
)
def test_the_rule_or_the_name_shows_which_way_is_worse(rng, rule, up, down):
    assert rule.direction in (None, better_way(rule))
    golden = noisy(rng, 5)
    assert judge(golden, noisy(rng, 1, effect=0.08)[0], rule=rule).kind is up
    assert judge(golden, noisy(rng, 1, effect=-0.08)[0], rule=rule).kind is down
    assert judge(golden, noisy(rng, 1)[0], rule=rule).kind is PASS


def test_equal_replicas_divide_by_nothing():
    golden = [falling()] * 5
    factors = {1.0: PASS, 1 + 4e-8: PASS, 1.004: CHANGED, 1.006: FAIL, 0.994: CHANGED}
    assert {factor: judge(golden, falling() * factor).kind for factor in factors} == factors
    assert judge(golden, falling() * 1.006).findings[0].interval == pytest.approx((0.006, 0.006))
    nothing = Rule("loss", delta=0.0)
    assert judge(golden, falling(), rule=nothing).kind is PASS
    assert judge(golden, falling() * (1 + 1e-9), rule=nothing).kind is FAIL


def test_one_recording(rng):
    verdict = judge([falling()], falling())
    assert verdict.kind is PASS
    assert "equal bit for bit" in verdict.findings[0].message
    for factor in (1 + 1e-9, 1.001, 2.0):
        verdict = judge([falling()], falling() * factor)
        assert verdict.kind is INCONCLUSIVE, "one other check cannot be distinguished from noise"
        assert verdict.findings[0].effect == pytest.approx(factor - 1, rel=1e-5)
        assert "gather with replicas" in verdict.findings[0].message
    assert judge([falling()], falling() * 1.05, falling() * 1.05).kind is FAIL, "repeated checks give it noise"
    assert judge(noisy(rng, 1), *noisy(rng, 3, effect=0.05)).kind is FAIL
    for _ in range(8):  # one recording never passes a check that differs
        assert judge(noisy(rng, 1), *noisy(rng, 3)).kind is INCONCLUSIVE


def test_values_that_are_zero_or_negative_are_compared_by_scaled_differences(rng):
    golden, rule = -noisy(rng, 5), Rule("reward")
    assert judge(golden, -noisy(rng, 1)[0], rule=rule).kind is PASS
    worse = judge(golden, -noisy(rng, 1, effect=0.03)[0], rule=rule)  # lower is worse here, and higher is better
    assert worse.kind is FAIL
    assert worse.findings[0].effect == pytest.approx(-0.03, abs=2e-3)
    assert judge(golden, -noisy(rng, 1, effect=-0.03)[0], rule=rule).kind is CHANGED
    curve = np.linspace(0.0, 0.9, 300)  # an accuracy that starts at zero
    golden, rule = [curve + rng.normal(0, 1e-4, 300).clip(0) for _ in range(5)], Rule("accuracy", delta=0.02)
    assert judge(golden, curve, rule=rule).kind is PASS
    assert judge(golden, curve * 0.9, rule=rule).kind is FAIL
    assert judge(noisy(rng, 5), -falling(), rule=Rule("loss", direction="both")).kind is FAIL, "it turns negative"
    assert judge(noisy(rng, 5), -falling()).kind is CHANGED
    zeros, rule, late = [np.zeros(60)] * 3, Rule("overflow_count"), np.zeros(60)
    assert judge(zeros, np.zeros(60), rule=rule).kind is PASS
    late[-1] = 1.0
    verdict = judge(zeros, late, rule=rule)
    assert verdict.kind is FAIL
    assert verdict.findings[0].effect == math.inf
    assert judge([np.zeros(60)], late, late, rule=rule).kind is FAIL


@pytest.mark.parametrize(
    ("count", "every", "window", "starts"),
    [
        (300, 1, None, [0, 50, 100, 150, 200, 250]),
        (60, 1, None, [0, 10, 20, 30, 40, 50]),
        (30, 10, None, [0, 5, 10, 15, 20, 25]),  # logged every ten steps
        (4, 5, None, [0, 1, 2, 3]),
        (1, 1, None, [0]),
        (320, 1, None, [0, 50, 100, 150, 200, 250]),  # twenty further steps join the last window
        (330, 1, None, [0, 50, 100, 150, 200, 250, 300]),
        (100, 1, 25, [0, 25, 50, 75]),
        (100, 10, 25, [0, 3, 5, 8, 10, 13, 15, 18, 20, 23, 25, 28, 30, 33, 35, 38, 40, 43, 45, 48, 50, 53, 55, 58, 60]),
        (10, 1, 1000, [0]),
    ],
)
def test_where_windows_begin(count, every, window, starts):
    found = build_starts(Rule("loss", window=window), track([1.0] * count, every).steps)
    assert found[: len(starts)] == starts
    assert len(found) == len(starts) or count == 100


def test_one_value_and_windows_with_a_gap(rng):
    assert judge([[0.5]] * 3, [0.5]).kind is PASS
    assert judge([[0.5]] * 3, [0.6]).kind is FAIL
    golden = noisy(rng, 5)
    verdict = judge(golden, track(noisy(rng, 1, effect=0.05)[0][:120]))
    assert verdict.kind is FAIL  # the logged values fail, although the run ended early
    assert [finding.kind for finding in verdict.findings] == [FAIL, FAIL]
    assert "2 of 6 windows" in verdict.findings[0].message
    good = judge(golden, track(noisy(rng, 1)[0][:120]))
    assert [finding.kind for finding in good.findings] == [ERROR]


@given(st.integers(1, 400), st.integers(1, 7), st.one_of(st.none(), st.integers(1, 100)), st.integers(1, 12))
def test_windows_cover_every_value_once(count, every, window, replicas):
    starts = build_starts(Rule("loss", window=window), track([1.0] * count, every).steps)
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    assert starts[-1] < count
    golden = np.tile(np.linspace(1, 2, count), (replicas, 1))
    effects = measure_effects(golden, golden[:1] * 1.1, starts)
    assert effects.relative(effects.effect) == pytest.approx(np.full(len(starts), 0.1))


@given(st.integers(0, 2**32 - 1), st.floats(-0.2, 0.2))
def test_the_estimate_is_near_the_truth(seed, effect):
    rng = np.random.default_rng(seed)
    verdict = judge(noisy(rng, 5), noisy(rng, 1, effect=effect)[0])
    assert verdict.findings[0].effect == pytest.approx(effect, abs=2e-3)


def test_what_delta_is_where_none_is_named_and_in_the_first_window_of_gradient_norms():
    deltas = [
        (Rule("loss"), 0.005),
        (Rule("loss", "unmatched"), 0.01),
        (Rule("loss", delta=0.1), 0.1),
        (Rule("grad_norm"), 0.05),
        (Rule("gradient/norm"), 0.05),
        (Rule("grad_norm", delta=0.001), 0.001),
        (Rule("upgrade_loss"), 0.005),
    ]
    assert [default_delta(rule) for rule, _ in deltas] == [delta for _, delta in deltas]
    assert build_alarms(Rule("grad_norm"), 3).tolist() == [0.01, 0.05, 0.05]
    assert build_alarms(Rule("grad_norm", delta=0.03), 3).tolist() == [0.03] * 3
    assert build_alarms(Rule("loss"), 2).tolist() == [0.005] * 2
    golden, rule, is_first = [falling()] * 5, Rule("grad_norm"), np.arange(300) < 50
    assert judge(golden, falling() * np.where(is_first, 1.0, 0.98), rule=rule).kind is CHANGED
    assert judge(golden, falling() * 0.98, rule=rule).kind is FAIL
    assert judge(golden, falling() * np.where(is_first, 1.0, 0.94), rule=rule).kind is FAIL
    assert (find_first_delta(rule), find_first_delta(Rule("loss"))) == (0.01, None)
    (at_once,) = judge(golden, falling() * 1.02, rule=rule).findings
    assert "more than 1% (the limit of the first window; 5% later)" in at_once.message
    rising = falling() * (1 + 0.1 * np.arange(300) / 300)
    (later,) = [each for each in judge(golden, rising, rule=rule).findings if each.kind is FAIL]
    assert "more than 5% (1% in the first window)" in later.message


def test_a_delta_decides_what_matters_and_two_recordings_show_less_than_five(rng):
    golden, check = noisy(rng, 5), noisy(rng, 1, effect=0.02)[0]
    assert judge(golden, check, rule=Rule("loss", delta=0.03)).kind is CHANGED
    assert judge(golden, check, rule=Rule("loss", delta=0.01)).kind is FAIL
    golden = noisy(rng, 5, step=1e-3, whole=1e-3)
    check = noisy(rng, 1, step=1e-4, effect=0.012)[0]
    loose = Rule("loss", delta=0.05)
    assert judge(golden, check, rule=loose).kind is CHANGED
    few = judge(golden[:2], check, rule=loose)
    assert few.kind is INCONCLUSIVE
    assert "too few recordings" in few.findings[0].message


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Rule("loss", delta=-0.1), "a delta of -0.1"),
        (Rule("loss", delta=math.nan), "a delta of nan"),
        (Rule("loss", alpha=0.0), "an alpha of 0"),
        (Rule("loss", alpha=0.7), "an alpha of 0.7"),
        (Rule("loss", window=0), "a window of 0 steps"),
        (Rule("loss", "unmatched", window=-5), "a window of -5 steps"),
    ],
)
def test_a_rule_that_makes_no_sense_is_an_error(rule, words):
    verdict = judge([falling()] * 3, falling(), rule=rule)
    assert verdict.kind is ERROR
    assert words in verdict.findings[0].message


PLACES = np.arange(300)
ALTERNATING = np.where(PLACES % 2, 1.0, -1.0)


def rounding(rng, size=1e-7):
    """Return runs that drift apart as rounding makes them: slowly, and each in its own way."""
    return falling() * np.exp(np.cumsum(rng.normal(0, size / 17, 300)))


@pytest.mark.parametrize("effect", [1e-4, 1e-3, 4e-3])
@pytest.mark.parametrize("shape", [np.ones(300), ALTERNATING, np.sin(PLACES / 3.0), (PLACES % 10 == 0) * 5.0])
def test_a_difference_below_delta_is_changed_where_the_replicas_are_quiet(rng, effect, shape):
    golden = [rounding(rng) for _ in range(5)]
    verdict = judge(golden, falling() * np.exp(effect * shape))
    assert verdict.kind in (CHANGED, FAIL)
    assert verdict.kind is CHANGED or effect > 1e-3
    assert judge([falling()] * 5, falling() * np.exp(effect * shape)).kind is verdict.kind


@pytest.mark.parametrize("shape", [ALTERNATING, np.sin(PLACES)])
def test_differences_of_both_signs_beyond_delta_fail(rng, shape):
    (finding,) = judge(noisy(rng, 5, step=1e-4), falling() * np.exp(0.03 * shape)).findings
    assert finding.kind is FAIL
    assert 0.009 < finding.effect < 0.016  # half of the steps are above the golden by this effect
    assert "up and down, upward by " in finding.message


@pytest.mark.parametrize(("metric", "sign"), [("loss", -1), ("accuracy", 1)])
def test_a_failure_by_the_worse_part_is_not_reported_as_an_improvement(rng, metric, sign):
    shape = np.where(PLACES % 3, 0.06, -0.04) * sign  # two steps of three are better, and so is the mean
    finding = judge(noisy(rng, 5, step=1e-4), falling() * np.exp(shape), rule=Rule(metric)).findings[0]
    assert finding.kind is FAIL
    assert f"up and down, {'downward' if sign > 0 else 'upward'} by " in finding.message
    assert finding.effect * sign < -0.005
    assert finding.interval is None


def test_rounding_passes_and_a_change_reports_where_it_begins_and_what_the_replicas_show(rng):
    rng = np.random.default_rng(8)
    for _ in range(10):
        golden = [rounding(rng) for _ in range(5)]
        assert judge(golden, rounding(rng)).kind is PASS
        assert judge([falling()] * 5, rounding(rng)).kind is PASS
    one, other = rounding(rng), rounding(rng) * 1.001
    golden = [one, one * (1 + 1e-7), other, one, other * (1 - 1e-7)]
    assert judge(golden, one).kind is PASS, "replicas of two kinds allow both"
    assert judge(golden, other).kind is PASS
    golden = [rounding(rng) for _ in range(5)]
    (finding,) = judge(golden, falling() * np.where(PLACES < 180, 1.0, 1.002)).findings
    assert (finding.kind, finding.step) == (CHANGED, 281)
    assert finding.effect == pytest.approx(0.002, rel=0.01)
    first, second = finding.message.splitlines()
    assert first == "+0.2% in steps 301 to 350; begins at step 281"
    assert second.startswith("3 of 6 windows; replicas differ by ")
    assert second.endswith("% at most; delta is 0.5%")
    assert max(map(len, finding.message.splitlines())) <= 80


def test_a_learning_rate_that_differs_at_all_is_a_change():
    curve = np.linspace(1e-3, 5e-4, 60)
    for name in ("lr", "learning_rate", "train/lr", "optimizer_lr", "lr-group0", "LearningRate"):
        golden, rule = [curve] * 5, Rule(name)
        assert judge(golden, curve, rule=rule).kind is PASS
        assert judge(golden, curve * (1 + 5e-6), rule=rule).kind is CHANGED
    assert judge([curve] * 5, curve * (1 + 5e-6), rule=Rule("clrs_score")).kind is PASS
    short, other = (track([value] * 60, texts=[text] * 60) for value, text in ((0.1, "0.1"), (0.102, "0.102")))
    assert judge([short] * 5, other, rule=Rule("lr")).kind is FAIL, "it was set, not rounded to one digit"


def logged(values, digits):
    texts = [f"{value:.{digits}f}" for value in values]
    return track(map(float, texts), texts=texts)


def test_the_last_logged_digit_may_flip_and_a_failure_prints_the_number_that_failed(rng):
    for digits in (3, 4):
        golden, last = logged(falling(60), digits), 10.0**-digits
        flipped = [value + last * (at == 17) for at, value in enumerate(golden.values)]
        assert judge([golden] * 5, logged(flipped, digits)).kind is PASS
        shifted = [value + last for value in golden.values]  # all values, shifted in the same direction
        assert judge([golden] * 5, logged(shifted, digits)).kind is CHANGED
    point, rule = [logged([2.3412], 4)] * 3, Rule("eval_loss")
    assert judge(point, logged([2.3413], 4), rule=rule).kind is PASS
    assert judge(point, logged([2.3432], 4), rule=rule).kind is CHANGED
    hits = rng.integers(60, 90, 60)
    golden, rule, other = [hits / 128] * 5, Rule("acc"), hits.copy()
    other[20] += 1
    assert judge(golden, other / 128, rule=rule).kind is PASS, "one more hit of an accuracy"
    assert judge(golden, (hits + rng.integers(-1, 2, 60)) / 128, rule=rule).kind in (CHANGED, FAIL)
    golden, rule = [falling()] * 3, Rule("grad_norm", delta=0.05)
    assert judge(golden, falling() * (1 - 0.0495), rule=rule).kind is CHANGED
    assert judge(golden, falling() * 1.0495, rule=rule).kind is CHANGED
    (finding,) = judge(golden, falling() * np.where(PLACES % 10 == 0, 1.02, 1 - 0.057), rule=rule).findings
    assert finding.kind is FAIL
    assert "up and down, downward by 5." in finding.message
    assert "more than 5%" in finding.message
    (close,) = judge(golden, falling() * 1.0500004, rule=Rule("loss", delta=0.05)).findings
    assert "+5.00004% in steps" in close.message


def test_what_a_declared_variant_shows_passes_up_to_delta_and_never_past_it(rng):
    golden, shift = [falling()] * 3, np.exp(1e-3 * np.sin(PLACES / 7.0))
    assert judge(golden, falling() * shift).kind is CHANGED
    for check, kind in ((falling() * shift, PASS), (falling() / shift, PASS), (falling() * 1.006, FAIL)):
        assert judge(golden, check, variants=[falling() * shift]).kind is kind
    (finding,) = judge(golden, falling() * shift, variants=[falling() * (1 + 1e-5)]).findings
    assert finding.kind is CHANGED
    assert "replicas and variants differ by 0.001% at most" in finding.message
    assert judge([falling()], falling() * (1 + 1e-8)).kind is INCONCLUSIVE
    assert judge([falling()], falling() * (1 + 1e-8), variants=[falling() * (1 + 2e-8)]).kind is PASS, "two recordings"
    late, early = np.where(PLACES < 250, 1.0, 1.002), np.where(PLACES < 50, 1.002, 1.0)
    assert judge(golden, falling() * late, variants=[falling() * late]).kind is PASS, "window by window"
    assert judge(golden, falling() * early, variants=[falling() * late]).kind is CHANGED
    golden, other = [falling()] * 3, falling() * 1.003  # four times the difference is 1.2%
    (finding,) = judge(golden, falling() * 1.0045, variants=[other]).findings
    assert finding.kind is PASS
    assert finding.message.startswith("within 0.5%: at most +0.45%")
    assert judge(golden, falling() * 1.011, variants=[other]).kind is FAIL
    assert judge(golden, falling() * 0.989, variants=[other]).kind is CHANGED
    assert judge(golden, falling() * 1.011, variants=[other], rule=Rule("loss", delta=0.02)).kind is PASS
    assert judge(golden, falling() * 1.008, variants=[falling() * 1.008]).kind is FAIL
    for replicas in (1, 5):
        assert judge(noisy(rng, replicas, step=1e-5), falling() * 1.011, variants=[other]).kind is not PASS
    (finding,) = judge(golden, falling() * (1 + 3e-4), variants=[falling() * (1 + 1e-4)]).findings
    assert finding.message.startswith("within 0.041% (harmless by the recordings; delta is 0.5%): at most +0.03%")


def test_three_variants_show_what_rounding_does():
    golden, faulty = [falling()] * 3, falling() * np.exp(4e-6 * np.sin(PLACES / 5.0))
    variants = [falling() * np.exp(1e-7 * np.sin(PLACES / 9.0 + number)) for number in range(3)]
    assert judge(golden, faulty, variants=variants[:2]).kind is PASS
    assert judge(golden, faulty, variants=variants).kind is CHANGED
    assert judge(golden, falling() * np.exp(2e-7 * np.cos(PLACES / 4.0)), variants=variants).kind is PASS
    copies = [variants[0], variants[0], falling()]  # equal to one another, or to the recording: no evidence
    assert judge(golden, faulty, variants=[*copies, variants[1]]).kind is PASS
    points = [[2.3 * (1 + 1e-9 * number)] for number in range(1, 4)]  # as close as single values can be by chance
    assert judge([[2.3]] * 3, [2.3 * (1 + 1e-6)], variants=points, rule=Rule("eval_loss")).kind is PASS


RULE = Rule("loss", "unmatched")
SEEDS = {"step": 0.02, "whole": 0.004}  # the effect of other seeds on a small model


def judge_unmatched(golden, *checks, rule=RULE):
    return judge(golden, *checks, rule=rule)


def test_of_other_seeds_runs_like_the_others_pass_and_worse_ones_fail(rng):
    verdict = judge_unmatched(noisy(rng, 10, step=0.01, whole=0.001), *noisy(rng, 5, step=0.01, whole=0.001))
    assert verdict.kind is PASS
    assert verdict.findings[0].subject == "segment at 100: loss, second half"
    assert verdict.findings[0].part == "second half"
    assert verdict.comparisons == 1500
    verdict = judge_unmatched(noisy(rng, 10, **SEEDS), *noisy(rng, 5, effect=0.05, **SEEDS))
    assert verdict.kind is FAIL
    assert verdict.findings[0].effect == pytest.approx(0.05, abs=0.01)
    golden, better = noisy(rng, 10, **SEEDS), noisy(rng, 5, effect=-0.05, **SEEDS)
    assert judge_unmatched(golden, *better).kind is CHANGED, "suspicious"
    assert judge_unmatched(golden, *better, rule=Rule("loss", "unmatched", direction="both")).kind is FAIL


def test_a_late_divergence_that_the_half_dilutes_is_found_by_a_window(rng):
    golden = noisy(rng, 10, **SEEDS)
    spiked = noisy(rng, 3, **SEEDS) * np.where(np.arange(300) < 250, 1.0, 1.10)
    verdict = judge_unmatched(golden, *spiked)
    assert verdict.kind is FAIL
    assert any("1 of 6 windows" in finding.message for finding in verdict.findings if finding.kind is FAIL)
    assert any(finding.step == 351 for finding in verdict.findings if finding.kind is FAIL)


def test_noisy_windows_alone_do_not_make_it_inconclusive(rng):
    """Each window of other seeds is wider than delta; only the half-curve mean must surely be below delta."""
    kinds = {
        judge_unmatched(noisy(rng, 10, step=0.03, whole=5e-4), *noisy(rng, 5, step=0.03, whole=5e-4)).kind
        for _ in range(10)
    }
    assert PASS in kinds


def test_of_other_seeds_null_checks_rarely_fail_and_five_percent_are_always_found():
    rng = np.random.default_rng(8)
    kinds = [judge_unmatched(noisy(rng, 10, **SEEDS), *noisy(rng, 3, **SEEDS)).kind for _ in range(20)]
    assert kinds.count(FAIL) + kinds.count(CHANGED) <= 1
    rng = np.random.default_rng(9)
    five = [judge_unmatched(noisy(rng, 10, **SEEDS), *noisy(rng, 3, effect=0.05, **SEEDS)).kind for _ in range(12)]
    two = [judge_unmatched(noisy(rng, 10, **SEEDS), *noisy(rng, 5, effect=0.02, **SEEDS)).kind for _ in range(12)]
    assert set(five) == {FAIL}
    assert two.count(FAIL) >= 11


def test_too_few_recordings_nan_and_early_ends_never_pass(rng):
    for replicas in (1, 2):
        verdict = judge_unmatched(noisy(rng, replicas), *noisy(rng, 5))
        assert verdict.kind is ERROR
        words = f"the golden has {replicas} recordings; to compare other seeds it needs at least 3"
        assert words in verdict.findings[0].message
    check = noisy(rng, 1)[0]
    check[7] = math.nan
    verdict = judge_unmatched(noisy(rng, 10), check)
    assert (verdict.kind, verdict.findings[0].step) == (FAIL, 108)
    for kept in (10, 149, 150, 299):
        verdict = judge_unmatched(noisy(rng, 10), noisy(rng, 1)[0][:kept])
        assert verdict.kind is ERROR
        assert not any(finding.kind is PASS for finding in verdict.findings)


def test_of_other_seeds_equal_replicas_and_what_rarely_moves():
    golden = [falling()] * 3
    assert judge_unmatched(golden, falling()).kind is PASS
    assert judge_unmatched(golden, falling() * 1.011).kind is FAIL
    assert judge_unmatched(golden, falling() * 1.009).kind is CHANGED
    golden = np.ones((10, 300))
    golden[range(10), range(200, 300, 10)] = 127 / 128
    verdict = judge_unmatched(golden, np.ones(300))
    assert not any("from step to step" in each.message for each in verdict.findings)
    pair = line_up(RULE, segment([4.0, 3.0, 2.0, 1.0, 0.5]), "", [run(track([4.0, 3.0, 2.0, 1.0]))])
    half = second_half(pair)
    assert half.steps == (103, 104, 105)
    assert half.golden[0].values == (2.0, 1.0, 0.5)
    assert half.checks[0].gaps == 1


def build_counted(rng, copies):
    """An accuracy over 128 examples, as the fraction of right ones."""
    right = 0.9 - 0.6 * np.exp(-np.arange(300) / 60) + rng.normal(0, 0.005, (copies, 1))
    return rng.binomial(128, right) / 128


def build_correlated(rng, copies):
    """A loss whose noise has heavy tails and continues for some steps."""
    noise = rng.standard_t(3, (copies, 300)) * 0.01
    for step in range(1, 300):
        noise[:, step] += 0.7 * noise[:, step - 1]
    return falling() * np.exp(noise)


SMOOTHED = {
    "running mean": lambda values: np.cumsum(values) / np.arange(1, len(values) + 1),
    "mean of ten": lambda values: np.convolve(values, np.full(10, 0.1))[: len(values)],
    "repeated": lambda values: np.repeat(values[::10], 10),
}


@pytest.mark.parametrize("build", [build_counted, build_correlated])
def test_a_smoothed_value_of_the_same_mean_does_not_pass(build):
    """The rule was chosen on other curves: those of `noisy`."""
    rng, rule = np.random.default_rng(3), Rule("x", "unmatched", delta=0.5, direction="both")
    moves = [0, 0]
    for _ in range(20):
        golden, checks = build(rng, 10), build(rng, 3)
        for at, smooth in enumerate([lambda values: values, *SMOOTHED.values()]):
            recorded = segment(*golden, metric="x")
            verdict = judge_segment(rule, recorded, [run(smooth(values), metric="x") for values in checks])
            found = [each for each in verdict.findings if "from step to step" in each.message]
            assert all((each.kind, each.part) == (CHANGED, "second half") for each in found)
            moves[at > 0] += bool(found)
    assert moves == [0, 20 * len(SMOOTHED)]
