"""Configurations that must agree: means of signed residuals against the noise of the recordings."""

from __future__ import annotations

import numpy as np
import pytest
from tests.golden.judge.curves import START, falling, noisy, run, segment, track

from assay.golden.judge.convergence import judge_segment
from assay.golden.judge.same import find_autocorrelation_time
from assay.golden.values import Rule, Segment
from assay.system.fast_dataclasses import replace
from assay.values.verdict import VerdictKind

SAME = Rule("loss", "same")


def correlated(rng, copies, keep, *, step=1e-3, count=300, effect=0.0):
    rows = rng.standard_normal((copies, count))
    for at in range(1, count):
        rows[:, at] = keep * rows[:, at - 1] + np.sqrt(1 - keep**2) * rows[:, at]
    return falling(count) * np.exp(step * rows) * (1 + effect)


def judge(recordings, *checks, rule=SAME):
    return judge_segment(rule, segment(*recordings), [run(values) for values in checks])


@pytest.mark.parametrize("keep", [0.0, 0.9])
@pytest.mark.parametrize("count", [60, 300])
def test_harmless_configurations_agree_and_biased_ones_do_not_in_either_direction(keep: float, count: int) -> None:
    """The bias is 3 standard deviations of a window's mean: of 50 steps, or of 10 of 60."""
    rng, alarms, missed, width = np.random.default_rng(5), 0, 0, max(10, count // 6)
    spread = 1e-3 * np.sqrt((1 + keep) / (1 - keep) / width)
    for _ in range(20):
        *recordings, check = correlated(rng, 6, keep, count=count)
        alarms += judge(recordings, check).kind is not VerdictKind.PASS
        effect = min(3 * spread, 3e-3) * rng.choice((-1, 1))
        missed += judge(recordings, check * (1 + effect)).kind is VerdictKind.PASS
    assert alarms <= 1
    assert missed <= (10 if keep and count == 60 else 4)


def test_beyond_delta_is_fail_below_it_changed_and_differences_of_both_signs_agree() -> None:
    recordings = list(noisy(np.random.default_rng(1), 5, step=1e-4))
    small, large = (judge(recordings, recordings[0] * (1 + effect)) for effect in (-0.002, -0.02))
    assert (small.kind, large.kind) == (VerdictKind.CHANGED, VerdictKind.FAIL)
    (found,) = large.findings
    assert found.effect == pytest.approx(-0.02, abs=1e-3)
    assert found.interval is not None
    assert found.interval[0] < found.effect < found.interval[1] < -0.005
    assert found.step == START + 1
    assert "more than 0.5%\noutside the noise of 5 recordings" in found.message
    assert judge(recordings, recordings[0] * 0.98, rule=replace(SAME, delta=0.05)).kind is VerdictKind.CHANGED
    one = falling(300)
    other = one * (1 + 1e-5 * np.where(np.arange(300) % 2, 1, -1) * 20)
    assert judge([one, one], other).kind is VerdictKind.PASS
    assert judge([one, one], other, rule=Rule("loss")).kind is VerdictKind.CHANGED
    assert judge([one, one], one * 1.0003).kind is VerdictKind.CHANGED
    assert judge([one, one], one * 1.01).kind is VerdictKind.FAIL


def test_a_single_bad_window_and_a_few_bad_values_are_found() -> None:
    recordings = list(noisy(np.random.default_rng(2), 5, step=1e-3))
    bad = noisy(np.random.default_rng(3), 1, step=1e-3)[0]
    bad[200:250] *= 1.01
    (found,) = judge(recordings, bad).findings
    assert found.kind is VerdictKind.FAIL
    assert found.stretches[-1] == (START + 201, START + 250)
    golden = Segment(0, "", {"loss": {"": (track([1.0]), track([1.0001]), track([0.9999]))}})
    assert judge_segment(SAME, golden, [run([3.0])]).kind is VerdictKind.FAIL
    assert judge_segment(SAME, golden, [run([1.00005])]).kind is VerdictKind.PASS


def test_what_variants_show_is_harmless_up_to_delta_and_a_reward_is_judged_by_its_size() -> None:
    one = falling(300)
    moved = replace(segment(one, one), variants={"v": {"loss": {"": track(one * 1.001)}}})
    kinds = [judge_segment(SAME, moved, [run(one * factor)]).kind for factor in (1.003, 1.02)]
    assert kinds == [VerdictKind.PASS, VerdictKind.FAIL]
    rng, base = np.random.default_rng(6), np.linspace(-1, 1, 120)
    rows = base + rng.normal(0, 1e-3, (6, 120))
    rule = Rule("reward", "same", delta=0.01)
    golden = segment(*rows[:5], metric="reward")
    kinds = [judge_segment(rule, golden, [run(rows[5] + shift, metric="reward")]).kind for shift in (0.0, 0.05, -0.05)]
    assert kinds == [VerdictKind.PASS, VerdictKind.FAIL, VerdictKind.FAIL]


def test_too_much_noise_is_not_agreement_and_equal_bit_for_bit_is_the_strongest() -> None:
    """Two recordings that keep an offset of some percent do not show that a difference of 0.5% is absent."""
    rows = noisy(np.random.default_rng(4), 3, step=1e-4, whole=0.03)
    assert judge(rows[:2], rows[2]).kind is VerdictKind.INCONCLUSIVE
    assert judge(rows[:1], rows[2]).kind is VerdictKind.INCONCLUSIVE
    (found,) = judge([falling(30)], falling(30)).findings
    assert (found.kind, found.effect) == (VerdictKind.PASS, 0.0)
    assert "equal bit for bit" in found.message


def test_values_that_are_not_finite_fail_and_other_steps_no_steps_and_no_metric_are_errors() -> None:
    for value in (np.nan, np.inf):
        bad = falling(30)
        bad[7] = value
        assert judge([falling(30)] * 2, bad).kind is VerdictKind.FAIL
    golden = segment(falling(30), falling(30))
    half = {"loss": {"": track(falling(15))}}
    other = {"loss": {"": track(falling(3), every=1000)}}
    for check in (half, other, {"accuracy": {"": track(falling(30))}}, {}):
        assert judge_segment(SAME, golden, [check]).kind is VerdictKind.ERROR
    assert judge_segment(SAME, golden, []).kind is VerdictKind.ERROR
    assert judge_segment(replace(SAME, alpha=0.9), golden, [run(falling(30) * 1.1)]).kind is VerdictKind.ERROR


def test_the_autocorrelation_time() -> None:
    rng = np.random.default_rng(8)
    white = rng.standard_normal((5, 400))
    slow = np.log(correlated(rng, 5, 0.8, step=1.0, count=400) / falling(400))
    assert find_autocorrelation_time(white) < 2
    assert 5 < find_autocorrelation_time(slow) < 15  # (1 + 0.8) / (1 - 0.8) is 9
    assert find_autocorrelation_time(np.ones((3, 50)) * [[1.0], [-1.0], [0.5]]) > 20, "an offset that each run keeps"
    assert find_autocorrelation_time(np.zeros((2, 10))) == 1
