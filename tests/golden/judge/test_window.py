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
from assay.golden.values import Rule
from assay.values.verdict import VerdictKind

LOSS = Rule("loss")
FAIL, PASS, CHANGED = VerdictKind.FAIL, VerdictKind.PASS, VerdictKind.CHANGED
INCONCLUSIVE, ERROR = VerdictKind.INCONCLUSIVE, VerdictKind.ERROR


def judge(golden, *checks, rule=LOSS, peers=1):
    return judge_segment(
        rule, segment(*golden, metric=rule.metric), [run(check, metric=rule.metric) for check in checks], peers=peers
    )


def quiet(rng, copies=5, **more):
    return noisy(rng, copies, **more)


@pytest.fixture
def rng():
    return np.random.default_rng(11)


# ---------------------------------------------------------------- good and bad runs


def test_a_run_like_the_others_passes(rng):
    verdict = judge(quiet(rng), noisy(rng, 1)[0])
    assert verdict.kind is PASS
    assert verdict.comparisons == 300
    (finding,) = verdict.findings
    assert abs(finding.effect) < 0.001
    assert finding.interval[0] < finding.effect < finding.interval[1] < 0.005


def test_a_worse_run_fails_with_its_effect_and_step(rng):
    verdict = judge(quiet(rng), noisy(rng, 1, effect=0.02)[0])
    assert verdict.kind is FAIL
    (finding,) = verdict.findings
    assert finding.effect == pytest.approx(0.02, abs=0.001)
    assert 0.015 < finding.interval[0] < finding.effect < finding.interval[1] < 0.025
    assert finding.step == 101
    assert "more than 0.5%\nbegins at step 101; 6 of 6 windows" in finding.message
    assert finding.value == pytest.approx(1.02 * finding.expected, rel=2e-3)


def test_a_better_run_is_suspicious(rng):
    verdict = judge(quiet(rng), noisy(rng, 1, effect=-0.02)[0])
    assert verdict.kind is CHANGED
    assert verdict.findings[0].message.startswith("suspiciously better: -2")


def test_a_late_divergence_fails_where_it_begins(rng):
    check = noisy(rng, 1)[0] * np.where(np.arange(300) < 220, 1.0, 1.0 + 0.002 * (np.arange(300) - 219))
    verdict = judge(quiet(rng), check)
    assert verdict.kind is FAIL
    assert 321 <= verdict.findings[0].step <= 325  # the first step that is farther away than noise
    assert "1 of 6 windows" in verdict.findings[0].message or "2 of 6 windows" in verdict.findings[0].message


def test_windows_of_both_kinds_are_both_reported(rng):
    check = noisy(rng, 1)[0] * np.where(np.arange(300) < 150, 0.95, 1.05)
    verdict = judge(quiet(rng), check)
    assert verdict.kind is FAIL
    assert [finding.kind for finding in verdict.findings] == [FAIL, CHANGED]


def test_noise_as_large_as_delta_is_inconclusive(rng):
    verdict = judge(noisy(rng, 5, step=0.05), noisy(rng, 1, step=0.05)[0])
    assert verdict.kind is INCONCLUSIVE
    assert "add a replica" in verdict.findings[0].message


def test_more_checks_narrow_the_interval(rng):
    golden, checks = noisy(rng, 5, step=0.01), noisy(rng, 3, step=0.01)
    one, three = judge(golden, checks[0]).findings[-1], judge(golden, *checks).findings[-1]
    assert three.interval[1] - three.interval[0] < 0.85 * (one.interval[1] - one.interval[0])


def test_sharing_alpha_among_more_comparisons_asks_for_more(rng):
    golden, check = noisy(rng, 5, step=0.01), noisy(rng, 1, step=0.01, effect=0.012)[0]
    assert judge(golden, check).kind is FAIL
    assert judge(golden, check, peers=100).kind is INCONCLUSIVE


# ---------------------------------------------------------------- rates, over many trials


def settle(rng, effect, **noise):
    """Run a check: one run, and up to three while it is inconclusive."""
    golden, runs, kind = noisy(rng, 5, **noise), [], INCONCLUSIVE
    while kind is INCONCLUSIVE and len(runs) < 3:
        runs.append(noisy(rng, 1, effect=effect, **noise)[0])
        kind = judge(golden, *runs).kind
    return kind


@pytest.mark.parametrize("noise", [{"step": 1e-3}, {"step": 0.01}, {"step": 0.02}, {"step": 1e-3, "whole": 2e-3}])
def test_null_checks_rarely_fail(noise):
    rng = np.random.default_rng(5)
    kinds = [settle(rng, 0.0, **noise) for _ in range(15)]
    assert kinds.count(FAIL) + kinds.count(CHANGED) <= 1


@pytest.mark.parametrize("noise", [{"step": 1e-3}, {"step": 0.01}, {"step": 0.02}, {"step": 1e-3, "whole": 1e-3}])
def test_two_percent_are_always_found(noise):
    rng = np.random.default_rng(6)
    assert {settle(rng, 0.02, **noise) for _ in range(6)} == {FAIL}


@pytest.mark.parametrize("noise", [{"step": 1e-3}, {"step": 1e-3, "whole": 3e-4}])
def test_one_percent_fails_and_half_of_delta_is_a_change_where_noise_is_small(noise):
    rng = np.random.default_rng(7)
    assert {settle(rng, 0.01, **noise) for _ in range(6)} == {FAIL}
    assert {settle(rng, 0.004, **noise) for _ in range(6)} == {CHANGED}


# ---------------------------------------------------------------- which way is worse


@pytest.mark.parametrize(
    ("metric", "up", "down"),
    [
        ("loss", FAIL, CHANGED),
        ("accuracy", CHANGED, FAIL),
        ("images/sec", CHANGED, FAIL),
        ("lr", FAIL, FAIL),
        ("grad_norm", FAIL, FAIL),
        ("anything", FAIL, FAIL),  # a name that does not tell: any change counts
    ],
)
def test_the_name_shows_which_way_is_worse(rng, metric, up, down):
    rule = Rule(metric)
    golden = quiet(rng)
    assert judge(golden, noisy(rng, 1, effect=0.08)[0], rule=rule).kind is up
    assert judge(golden, noisy(rng, 1, effect=-0.08)[0], rule=rule).kind is down
    assert judge(golden, noisy(rng, 1)[0], rule=rule).kind is PASS


@pytest.mark.parametrize(
    ("direction", "up", "down"), [("min", FAIL, CHANGED), ("max", CHANGED, FAIL), ("both", FAIL, FAIL)]
)
def test_the_rule_can_set_which_way_is_worse(rng, direction, up, down):
    rule = Rule("loss", direction=direction)
    assert better_way(rule) == direction
    golden = quiet(rng)
    assert judge(golden, noisy(rng, 1, effect=0.03)[0], rule=rule).kind is up
    assert judge(golden, noisy(rng, 1, effect=-0.03)[0], rule=rule).kind is down


# ---------------------------------------------------------------- no noise at all


def test_equal_replicas_divide_by_nothing():
    golden = [falling()] * 5
    assert judge(golden, falling()).kind is PASS
    assert judge(golden, falling() * (1 + 4e-8)).kind is PASS
    assert judge(golden, falling() * 1.004).kind is CHANGED
    assert judge(golden, falling() * 1.006).kind is FAIL
    assert judge(golden, falling() * 0.994).kind is CHANGED
    finding = judge(golden, falling() * 1.006).findings[0]
    assert finding.interval == pytest.approx((0.006, 0.006))


def test_a_delta_of_zero_without_noise_means_equal():
    rule = Rule("loss", delta=0.0)
    golden = [falling()] * 3
    assert judge(golden, falling(), rule=rule).kind is PASS
    assert judge(golden, falling() * (1 + 1e-9), rule=rule).kind is FAIL


# ---------------------------------------------------------------- a single recording


def test_one_recording_and_an_equal_check_pass():
    verdict = judge([falling()], falling())
    assert verdict.kind is PASS
    assert "equal bit for bit" in verdict.findings[0].message


@pytest.mark.parametrize("factor", [1 + 1e-9, 1.001, 2.0])
def test_one_recording_and_one_other_check_cannot_be_distinguished_from_noise(factor):
    verdict = judge([falling()], falling() * factor)
    assert verdict.kind is INCONCLUSIVE
    assert verdict.findings[0].effect == pytest.approx(factor - 1, rel=1e-5)
    assert "gather with replicas" in verdict.findings[0].message


def test_repeated_checks_give_a_single_recording_its_noise(rng):
    worse = falling() * 1.05
    assert judge([falling()], worse, worse).kind is FAIL
    golden = noisy(rng, 1)
    assert judge(golden, *noisy(rng, 3, effect=0.05)).kind is FAIL
    for _ in range(8):  # one recording never passes a check that differs
        assert judge(noisy(rng, 1), *noisy(rng, 3)).kind is INCONCLUSIVE


# ---------------------------------------------------------------- values without logs


def test_negative_values_are_compared_by_scaled_differences(rng):
    golden = -noisy(rng, 5)
    rule = Rule("reward")
    assert judge(golden, -noisy(rng, 1)[0], rule=rule).kind is PASS
    assert judge(golden, -noisy(rng, 1, effect=0.03)[0], rule=rule).kind is FAIL  # lower, and higher is better
    assert judge(golden, -noisy(rng, 1, effect=-0.03)[0], rule=rule).kind is CHANGED
    finding = judge(golden, -noisy(rng, 1, effect=0.03)[0], rule=rule).findings[0]
    assert finding.effect == pytest.approx(-0.03, abs=2e-3)


def test_an_accuracy_that_starts_at_zero(rng):
    curve = np.linspace(0.0, 0.9, 300)
    golden = [curve + rng.normal(0, 1e-4, 300).clip(0) for _ in range(5)]
    rule = Rule("accuracy")
    assert judge(golden, curve, rule=replace(rule, delta=0.02)).kind is PASS
    assert judge(golden, curve * 0.9, rule=replace(rule, delta=0.02)).kind is FAIL


def test_a_check_that_turns_negative_still_fails(rng):
    assert judge(quiet(rng), -falling(), rule=Rule("loss", direction="both")).kind is FAIL
    assert judge(quiet(rng), -falling()).kind is CHANGED


def test_a_golden_of_zeros():
    zeros = [np.zeros(60)] * 3
    rule = Rule("overflow_count")
    assert judge(zeros, np.zeros(60), rule=rule).kind is PASS
    late = np.zeros(60)
    late[-1] = 1.0
    verdict = judge(zeros, late, rule=rule)
    assert verdict.kind is FAIL
    assert verdict.findings[0].effect == math.inf
    assert judge([np.zeros(60)], late, late, rule=rule).kind is FAIL


# ---------------------------------------------------------------- windows


@pytest.mark.parametrize(
    ("count", "every", "window", "starts"),
    [
        (300, 1, None, [0, 50, 100, 150, 200, 250]),
        (60, 1, None, [0, 10, 20, 30, 40, 50]),
        (30, 10, None, [0, 5, 10, 15, 20, 25]),  # logged every ten steps
        (4, 5, None, [0, 1, 2, 3]),
        (1, 1, None, [0]),
        (320, 1, None, [0, 50, 100, 150, 200, 250]),  # twenty over: they join the last
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


def test_one_value_can_be_judged():
    assert judge([[0.5]] * 3, [0.5]).kind is PASS
    assert judge([[0.5]] * 3, [0.6]).kind is FAIL


def test_a_window_with_a_gap_is_not_judged_and_the_others_are(rng):
    golden = quiet(rng)
    short = track(noisy(rng, 1, effect=0.05)[0][:120])
    verdict = judge(golden, short)
    assert verdict.kind is FAIL  # what was logged fails, though the run ended early
    assert [finding.kind for finding in verdict.findings] == [FAIL, FAIL]
    assert "2 of 6 windows" in verdict.findings[0].message
    good = judge(golden, track(noisy(rng, 1)[0][:120]))
    assert [finding.kind for finding in good.findings] == [ERROR]


@given(st.integers(1, 400), st.integers(1, 7), st.one_of(st.none(), st.integers(1, 100)), st.integers(1, 12))
def test_windows_cover_every_value_once(count, every, window, replicas):
    rule = Rule("loss", window=window)
    starts = build_starts(rule, track([1.0] * count, every).steps)
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


# ---------------------------------------------------------------- deltas


@pytest.mark.parametrize(
    ("rule", "delta"),
    [
        (Rule("loss"), 0.005),
        (Rule("loss", "unmatched"), 0.01),
        (Rule("loss", delta=0.1), 0.1),
        (Rule("grad_norm"), 0.05),
        (Rule("gradient/norm"), 0.05),
        (Rule("grad_norm", delta=0.001), 0.001),
        (Rule("upgrade_loss"), 0.005),
    ],
)
def test_what_delta_is_where_none_is_named(rule, delta):
    assert default_delta(rule) == delta


def test_gradient_norms_may_move_more_once_the_runs_have_drifted_apart():
    assert build_alarms(Rule("grad_norm"), 3).tolist() == [0.01, 0.05, 0.05]
    assert build_alarms(Rule("grad_norm", delta=0.03), 3).tolist() == [0.03] * 3
    assert build_alarms(Rule("loss"), 2).tolist() == [0.005] * 2
    golden, rule = [falling()] * 5, Rule("grad_norm")
    late = np.where(np.arange(300) < 50, 1.0, 0.98)
    assert judge(golden, falling() * late, rule=rule).kind is CHANGED
    assert judge(golden, falling() * 0.98, rule=rule).kind is FAIL
    assert judge(golden, falling() * np.where(np.arange(300) < 50, 1.0, 0.94), rule=rule).kind is FAIL


def test_a_delta_decides_what_matters(rng):
    golden, check = quiet(rng), noisy(rng, 1, effect=0.02)[0]
    assert judge(golden, check, rule=Rule("loss", delta=0.03)).kind is CHANGED
    assert judge(golden, check, rule=Rule("loss", delta=0.01)).kind is FAIL


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


def test_value_over_expected_is_the_effect():
    golden, check = noisy(np.random.default_rng(3), 5), falling()
    worse = [value * (1.02 + 0.01 * (index % 2)) for index, value in enumerate(check)]
    (finding,) = [each for each in judge(golden, worse).findings if each.kind is FAIL]
    assert finding.value / finding.expected - 1 == pytest.approx(finding.effect, rel=1e-9)


def test_the_two_limits_of_a_gradient_norm_are_both_named():
    golden, rule = [falling()] * 5, Rule("grad_norm")
    assert find_first_delta(rule) == 0.01
    assert find_first_delta(Rule("loss")) is None
    (at_once,) = judge(golden, [value * 1.02 for value in falling()], rule=rule).findings
    assert "more than 1% (the limit of the first window; 5% later)" in at_once.message
    rising = [value * (1 + 0.1 * index / len(falling())) for index, value in enumerate(falling())]
    (later,) = [each for each in judge(golden, rising, rule=rule).findings if each.kind is FAIL]
    assert "more than 5% (1% in the first window)" in later.message


# ---------------------------------------------------------------- a sure difference is never a pass

PLACES = np.arange(300)
ALTERNATING = np.where(PLACES % 2, 1.0, -1.0)


def rounding(rng, size=1e-7):
    """Runs that drift apart as rounding does: slowly, each its own way."""
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
    assert 0.009 < finding.effect < 0.016  # what is above the golden, half of the steps
    assert "up and down, upward by " in finding.message


@pytest.mark.parametrize(("metric", "sign"), [("loss", -1), ("accuracy", 1)])
def test_a_failure_by_the_worse_part_is_not_reported_as_an_improvement(rng, metric, sign):
    shape = np.where(PLACES % 3, 0.06, -0.04) * sign  # two steps of three better: so is the mean
    rule = Rule(metric)
    finding = judge(noisy(rng, 5, step=1e-4), falling() * np.exp(shape), rule=rule).findings[0]
    assert finding.kind is FAIL
    assert f"up and down, {'downward' if sign > 0 else 'upward'} by " in finding.message
    assert finding.effect * sign < -0.005
    assert finding.interval is None


def test_rounding_passes_with_quiet_and_with_equal_replicas():
    rng = np.random.default_rng(8)
    for _ in range(10):
        golden = [rounding(rng) for _ in range(5)]
        assert judge(golden, rounding(rng)).kind is PASS
        assert judge([falling()] * 5, rounding(rng)).kind is PASS


def test_a_change_reports_where_it_begins_and_what_the_replicas_show(rng):
    golden = [rounding(rng) for _ in range(5)]
    check = falling() * np.where(PLACES < 180, 1.0, 1.002)
    (finding,) = judge(golden, check).findings
    assert finding.kind is CHANGED
    assert finding.step == 281
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


@pytest.mark.parametrize("digits", [3, 4])
def test_the_last_logged_digit_may_flip(digits):
    texts = [f"{value:.{digits}f}" for value in falling(60)]
    golden = [track(map(float, texts), texts=texts)] * 5
    flipped = list(texts)
    flipped[17] = f"{float(texts[17]) + 10.0**-digits:.{digits}f}"
    assert judge(golden, track(map(float, flipped), texts=flipped)).kind is PASS
    shifted = [f"{float(text) + 10.0**-digits:.{digits}f}" for text in texts]  # all of them, the same way
    assert judge(golden, track(map(float, shifted), texts=shifted)).kind is CHANGED


def test_one_logged_point_may_differ_by_its_last_digit():
    golden, rule = [track([2.3412], texts=["2.3412"])] * 3, Rule("eval_loss")
    assert judge(golden, track([2.3413], texts=["2.3413"]), rule=rule).kind is PASS
    assert judge(golden, track([2.3432], texts=["2.3432"]), rule=rule).kind is CHANGED


def test_one_more_hit_of_an_accuracy_is_no_change(rng):
    hits = rng.integers(60, 90, 60)
    golden, rule = [hits / 128] * 5, Rule("acc")
    other = hits.copy()
    other[20] += 1
    assert judge(golden, other / 128, rule=rule).kind is PASS
    assert judge(golden, (hits + rng.integers(-1, 2, 60)) / 128, rule=rule).kind in (CHANGED, FAIL)


def test_two_recordings_that_differ_show_less_than_five(rng):
    golden = noisy(rng, 5, step=1e-3, whole=1e-3)
    check = noisy(rng, 1, step=1e-4, effect=0.012)[0]
    loose = Rule("loss", delta=0.05)
    assert judge(golden, check, rule=loose).kind is CHANGED
    few = judge(golden[:2], check, rule=loose)
    assert few.kind is INCONCLUSIVE
    assert "too few recordings" in few.findings[0].message


def test_replicas_of_two_kinds_allow_both(rng):
    one, other = rounding(rng), rounding(rng) * 1.001
    golden = [one, one * (1 + 1e-7), other, one, other * (1 - 1e-7)]
    assert judge(golden, one).kind is PASS
    assert judge(golden, other).kind is PASS


# ---------------------------------------------------------------- variants


def judge_with_variants(golden, variants, check, rule=LOSS):
    found = replace(
        segment(*golden, metric=rule.metric),
        variants={str(number): run(values, metric=rule.metric) for number, values in enumerate(variants)},
    )
    return judge_segment(rule, found, [run(check, metric=rule.metric)])


def test_what_a_declared_variant_shows_passes(rng):
    golden, shift = [falling()] * 3, np.exp(1e-3 * np.sin(PLACES / 7.0))
    assert judge(golden, falling() * shift).kind is CHANGED
    assert judge_with_variants(golden, [falling() * shift], falling() * shift).kind is PASS
    assert judge_with_variants(golden, [falling() * shift], falling() / shift).kind is PASS
    assert judge_with_variants(golden, [falling() * shift], falling() * 1.006).kind is FAIL
    (finding,) = judge_with_variants(golden, [falling() * (1 + 1e-5)], falling() * shift).findings
    assert finding.kind is CHANGED
    assert "replicas and variants differ by 0.001% at most" in finding.message


def test_a_variant_widens_what_passes_up_to_delta_and_never_past_it():
    golden, other = [falling()] * 3, falling() * 1.003  # four times as much is 1.2%
    (finding,) = judge_with_variants(golden, [other], falling() * 1.0045).findings
    assert finding.kind is PASS
    assert finding.message.startswith("within 0.5%: at most +0.45%")
    assert judge_with_variants(golden, [other], falling() * 1.011).kind is FAIL
    assert judge_with_variants(golden, [other], falling() * 0.989).kind is CHANGED
    assert judge_with_variants(golden, [other], falling() * 1.011, Rule("loss", delta=0.02)).kind is PASS
    beyond = falling() * 1.008
    assert judge_with_variants(golden, [beyond], beyond).kind is FAIL


@pytest.mark.parametrize("replicas", [1, 5])
def test_one_recording_or_noisy_ones_do_not_let_a_variant_past_delta(rng, replicas):
    golden = noisy(rng, replicas, step=1e-5)
    assert judge_with_variants(golden, [falling() * 1.003], falling() * 1.011).kind is not PASS


def test_a_pass_names_the_limit_that_was_used():
    golden, other = [falling()] * 3, falling() * (1 + 1e-4)
    (finding,) = judge_with_variants(golden, [other], falling() * (1 + 3e-4)).findings
    assert finding.message.startswith("within 0.041% (harmless by the recordings; delta is 0.5%): at most +0.03%")


def test_three_variants_show_what_rounding_does(rng):
    golden, faulty = [falling()] * 3, falling() * np.exp(4e-6 * np.sin(PLACES / 5.0))
    variants = [falling() * np.exp(1e-7 * np.sin(PLACES / 9.0 + number)) for number in range(3)]
    assert judge_with_variants(golden, variants[:2], faulty).kind is PASS
    assert judge_with_variants(golden, variants, faulty).kind is CHANGED
    assert judge_with_variants(golden, variants, falling() * np.exp(2e-7 * np.cos(PLACES / 4.0))).kind is PASS
    copies = [variants[0], variants[0], falling()]  # equal to one another, or to the recording: no evidence
    assert judge_with_variants(golden, [*copies, variants[1]], faulty).kind is PASS
    lone = Rule("eval_loss")  # a single value may be as close as that by chance
    points = [[2.3 * (1 + 1e-9 * number)] for number in range(1, 4)]
    assert judge_with_variants([[2.3]] * 3, points, [2.3 * (1 + 1e-6)], lone).kind is PASS


def test_a_failure_prints_the_number_that_failed():
    """-4.95% is not more than 5%, however large it is as a log-ratio; the part below the golden may be."""
    rule = Rule("grad_norm", delta=0.05)
    assert judge([falling()] * 3, falling() * (1 - 0.0495), rule=rule).kind is CHANGED
    assert judge([falling()] * 3, falling() * 1.0495, rule=rule).kind is CHANGED
    shape = np.where(PLACES % 10 == 0, 1.02, 1 - 0.057)
    (finding,) = judge([falling()] * 3, falling() * shape, rule=rule).findings
    assert finding.kind is FAIL
    assert "up and down, downward by 5." in finding.message
    assert "more than 5%" in finding.message
    (close,) = judge([falling()] * 3, falling() * 1.0500004, rule=Rule("loss", delta=0.05)).findings
    assert "+5.00004% in steps" in close.message


def test_a_variant_makes_two_recordings_of_one():
    assert judge([falling()], falling() * (1 + 1e-8)).kind is INCONCLUSIVE
    assert judge_with_variants([falling()], [falling() * (1 + 2e-8)], falling() * (1 + 1e-8)).kind is PASS


def test_tolerance_is_learnt_window_by_window():
    golden, late = [falling()] * 3, np.where(PLACES < 250, 1.0, 1.002)
    assert judge_with_variants(golden, [falling() * late], falling() * late).kind is PASS
    early = np.where(PLACES < 50, 1.002, 1.0)
    assert judge_with_variants(golden, [falling() * late], falling() * early).kind is CHANGED
