from __future__ import annotations

import math

import numpy as np
import pytest
from tests.golden.judge.curves import falling, noisy, run, segment, track

from assay.golden.judge.convergence import judge_segment
from assay.golden.judge.pairing import line_up
from assay.golden.judge.window import second_half
from assay.golden.values import Rule
from assay.values.verdict import VerdictKind

RULE = Rule("loss", "unmatched")
SEEDS = {"step": 0.02, "whole": 0.004}  # the effect of other seeds on a small model
FAIL, PASS, CHANGED = VerdictKind.FAIL, VerdictKind.PASS, VerdictKind.CHANGED
INCONCLUSIVE, ERROR = VerdictKind.INCONCLUSIVE, VerdictKind.ERROR


def judge(golden, *checks, rule=RULE, peers=1):
    return judge_segment(rule, segment(*golden), [run(check) for check in checks], peers=peers)


@pytest.fixture
def rng():
    return np.random.default_rng(21)


def test_runs_like_the_others_pass(rng):
    verdict = judge(noisy(rng, 10, step=0.01, whole=0.001), *noisy(rng, 5, step=0.01, whole=0.001))
    assert verdict.kind is PASS
    assert verdict.findings[0].subject == "segment at 100: loss, second half"
    assert verdict.findings[0].part == "second half"
    assert verdict.comparisons == 1500


def test_worse_runs_fail(rng):
    verdict = judge(noisy(rng, 10, **SEEDS), *noisy(rng, 5, effect=0.05, **SEEDS))
    assert verdict.kind is FAIL
    assert verdict.findings[0].effect == pytest.approx(0.05, abs=0.01)
    golden, better = noisy(rng, 10, **SEEDS), noisy(rng, 5, effect=-0.05, **SEEDS)
    assert judge(golden, *better).kind is CHANGED, "suspicious"
    assert judge(golden, *better, rule=Rule("loss", "unmatched", direction="both")).kind is FAIL


def test_a_late_divergence_that_the_half_dilutes_is_found_by_a_window(rng):
    golden = noisy(rng, 10, **SEEDS)
    spiked = noisy(rng, 3, **SEEDS) * np.where(np.arange(300) < 250, 1.0, 1.10)
    verdict = judge(golden, *spiked)
    assert verdict.kind is FAIL
    assert any("1 of 6 windows" in finding.message for finding in verdict.findings if finding.kind is FAIL)
    assert any(finding.step == 351 for finding in verdict.findings if finding.kind is FAIL)


def test_noisy_windows_alone_do_not_make_it_inconclusive(rng):
    """Each window of other seeds is wider than delta; only the half-curve mean must surely be below delta."""
    kinds = {
        judge(noisy(rng, 10, step=0.03, whole=5e-4), *noisy(rng, 5, step=0.03, whole=5e-4)).kind for _ in range(10)
    }
    assert PASS in kinds


def test_null_checks_rarely_fail():
    rng = np.random.default_rng(8)
    kinds = [judge(noisy(rng, 10, **SEEDS), *noisy(rng, 3, **SEEDS)).kind for _ in range(20)]
    assert kinds.count(FAIL) + kinds.count(CHANGED) <= 1


def test_five_percent_are_always_found_and_two_mostly():
    rng = np.random.default_rng(9)
    five = [judge(noisy(rng, 10, **SEEDS), *noisy(rng, 3, effect=0.05, **SEEDS)).kind for _ in range(12)]
    two = [judge(noisy(rng, 10, **SEEDS), *noisy(rng, 5, effect=0.02, **SEEDS)).kind for _ in range(12)]
    assert set(five) == {FAIL}
    assert two.count(FAIL) >= 11


def test_too_few_recordings_nan_and_early_ends_never_pass(rng):
    for replicas in (1, 2):
        verdict = judge(noisy(rng, replicas), *noisy(rng, 5))
        assert verdict.kind is ERROR
        words = f"the golden has {replicas} recordings; to compare other seeds it needs at least 3"
        assert words in verdict.findings[0].message
    check = noisy(rng, 1)[0]
    check[7] = math.nan
    verdict = judge(noisy(rng, 10), check)
    assert (verdict.kind, verdict.findings[0].step) == (FAIL, 108)
    for kept in (10, 149, 150, 299):
        verdict = judge(noisy(rng, 10), noisy(rng, 1)[0][:kept])
        assert verdict.kind is ERROR
        assert not any(finding.kind is PASS for finding in verdict.findings)


def test_equal_replicas_divide_by_nothing():
    golden = [falling()] * 3
    assert judge(golden, falling()).kind is PASS
    assert judge(golden, falling() * 1.011).kind is FAIL
    assert judge(golden, falling() * 1.009).kind is CHANGED


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


def test_what_rarely_moves_is_not_compared_by_its_movement():
    """An accuracy that has come to 1 may leave it never or more often."""
    golden = np.ones((10, 300))
    golden[range(10), range(200, 300, 10)] = 127 / 128
    verdict = judge(golden, np.ones(300))
    assert not any("from step to step" in each.message for each in verdict.findings)


def test_the_second_half():
    pair = line_up(RULE, segment([4.0, 3.0, 2.0, 1.0, 0.5]), "", [run(track([4.0, 3.0, 2.0, 1.0]))])
    half = second_half(pair)
    assert half.steps == (103, 104, 105)
    assert half.golden[0].values == (2.0, 1.0, 0.5)
    assert half.checks[0].gaps == 1
