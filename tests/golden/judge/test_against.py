"""The rules for recordings in files: digits, noise, levels."""

from __future__ import annotations

import math
import random
import struct

import pytest

from assay.golden.judge.against import Digits, find_digits
from assay.golden.judge.convergence import judge_segment
from assay.golden.values import Rule, RuleKind, Segment, Track
from assay.values.verdict import Verdict, VerdictKind


def judge(kind: RuleKind, goldens: list[list[float]], run: list[float], tolerance: float | None = None) -> Verdict:
    tracks = tuple(Track(tuple(range(1, len(each) + 1)), tuple(each)) for each in (*goldens, run))
    check, tracks = {"loss": {"": tracks[-1]}}, tracks[:-1]
    return judge_segment(Rule("loss", kind, delta=tolerance), Segment(1, "", {"loss": {"": tracks}}), [check])


def single(value: float) -> float:
    (found,) = struct.unpack("<f", struct.pack("<f", value))
    return float(found)


def test_equality_at_the_digits_of_the_coarser_side_but_not_of_a_learning_rate() -> None:
    for golden, run, kind in (
        ([2.51, 2.25], [2.5149, 2.2451], "PASS"),
        ([2.5149, 2.2451], [2.51, 2.25], "PASS"),
        ([12.5149, 12.2451], [12.5, 12.2], "PASS"),
        ([2.5149, 2.2451, 2.0], [2.5, 2.2, 12.5], "CHANGED"),
        ([10.5149, 2.0149, 2.0451], [10.5, 2.0, 2.0], "INCONCLUSIVE"),  # the digits would not show 2.5%
        ([10.5, 2.0, 2.0], [10.5149, 2.0149, 2.0451], "PASS"),  # the golden has only these digits
        ([2.51, 2.25], [2.5151, 2.25], "CHANGED"),
        ([2.51, 2.25], [2.52, 2.25], "CHANGED"),
        ([0.0, 1.0], [0.4, 1.0], "CHANGED"),
        ([single(2.1), single(2.3)], [2.1, 2.3], "PASS"),
        ([single(2.1), single(2.3)], [2.1000005, 2.3], "CHANGED"),
    ):
        assert judge("digits", [golden], run).kind == kind
    for values, digits in (
        ([10.85678, 10.8729, 9.5], Digits(5)),
        ([10.123456789012345, 2.0], Digits()),
        ([single(10.1), single(0.003)], Digits(is_single=True)),
        ([1654.0, 1700.0], Digits()),  # counts are not rounded
        ([1.5e-05, 2.25e-05], Digits(7)),
        ([1e300, 0.125], Digits(3)),
        ([1e-05, 2e-05], Digits()),  # these were set, not rounded
        ([0.5, 0.25], Digits()),
    ):
        assert find_digits(values) == digits
    steps = (1, 2)
    for golden, run in (((1e-05, 2e-05), (1.4e-05, 2e-05)), ((1.5e-05, 2.25e-05), (1.5e-05, 2.253e-05))):
        segment = Segment(1, "", {"lr": {"": (Track(steps, golden),)}})
        verdict = judge_segment(Rule("lr", "digits"), segment, [{"lr": {"": Track(steps, run)}}])
        assert verdict.kind is VerdictKind.CHANGED


def test_without_noise_a_tolerance_is_all_there_is_and_with_noise_what_is_outside_fails() -> None:
    cases = ((1.04, 0.05, "PASS"), (1.05, 0.05, "PASS"), (1.06, 0.05, "CHANGED"), (0.94, 0.05, "CHANGED"))
    for scale, tolerance, kind in (*cases, (1.04, None, "CHANGED")):
        verdict = judge("digits", [[2.0, 1.0]], [2.0 * scale, 1.0 * scale], tolerance)
        assert verdict.kind == kind
        assert "noise unknown" in verdict.findings[0].message
    assert judge("digits", [[2.0, 1.0, 0.5]], [2.0, 1.1, 0.5], 0.05).kind == "CHANGED", "one value is enough"
    rng = random.Random(7)
    curves = [[(3 - step / 50) * (1 + 1e-3 * rng.gauss(0, 1)) for step in range(60)] for _ in range(6)]
    cases = ((1.0, None, "PASS"), (1.0003, None, "PASS"), (1.1, None, "FAIL"), (0.9, None, "FAIL"))
    for scale, tolerance, kind in (*cases, (1.1, 0.2, "CHANGED"), (1.1, 0.05, "FAIL")):
        assert judge("noise", curves[:5], [scale * value for value in curves[5]], tolerance).kind == kind


@pytest.mark.parametrize(
    ("goldens", "tolerance", "kind"), [(3, None, "INCONCLUSIVE"), (6, None, "FAIL"), (6, 0.99, "CHANGED")]
)
@pytest.mark.parametrize("shift", [1.08, 1 / 1.08])
def test_a_bias_below_the_noise_of_the_steps_is_found(
    goldens: int, tolerance: float | None, kind: str, shift: float
) -> None:
    """Each step of a gradient norm differs by 10% without a change; the mean of 200 steps does not."""
    rng = random.Random(3)
    curves = [[5 * math.exp(0.1 * rng.gauss(0, 1)) for _ in range(200)] for _ in range(goldens + 1)]
    run = [shift * value for value in curves[-1]]
    assert judge("noise", curves[:-1], curves[-1], tolerance).kind == "PASS"
    verdict = judge("noise", curves[:-1], run, tolerance)
    assert verdict.kind == kind
    assert verdict.findings[0].effect == pytest.approx(shift - 1, abs=0.04)
    if goldens == 3:  # with more goldens single windows show the bias
        assert "in the mean of steps 1 to 200: a bias, beyond the noise of 3 goldens" in verdict.findings[0].message


def test_goldens_that_keep_an_offset_show_no_bias_and_a_level_is_a_median() -> None:
    """Each run is off by 20% as a whole: 200 steps show no more than one step."""
    rng = random.Random(4)
    curves = [
        [offset * (3 - step / 100) for step in range(200)] for offset in [1 + 0.2 * rng.random() for _ in range(6)]
    ]
    assert judge("noise", curves[:-1], [1.1 * value for value in curves[-1]]).kind == "PASS"
    golden = [9.0, 1.0, 1.0, 1.0, 1.0]
    assert judge("level", [golden], [30.0, 1.0, 1.1, 1.1, 1.1], 0.2).kind is VerdictKind.PASS
    assert judge("level", [golden], [9.0, 1.5, 1.5, 1.5, 1.5], 0.2).kind is VerdictKind.CHANGED
    assert judge("level", [golden, golden], [9.0, 1.5, 1.5, 1.5, 1.5], 0.2).kind is VerdictKind.FAIL
    assert judge("level", [golden, [1.6] * 5], [1.55] * 5, 0.1).kind is VerdictKind.PASS  # as far as the goldens differ
    assert judge("level", [golden], [1000.0] * 5, 0.2).kind is VerdictKind.ERROR  # the check has another unit


def test_goldens_of_five_decimals_against_full_numbers_are_no_change() -> None:
    full = [3 - step / 47 for step in range(60)]
    rounded = [round(value, 5) for value in full]
    assert judge("noise", [rounded, rounded, rounded], full).kind is VerdictKind.PASS
    coarse = judge("noise", [full, full, full], rounded)
    assert coarse.kind is VerdictKind.PASS
    assert coarse.findings[0].message.endswith("\ncompared at 5 decimals, the fewest that a side has")
    assert "compared at" not in judge("noise", [rounded, rounded], full).findings[0].message
    assert judge("noise", [rounded] * 3, [1.001 * value for value in full]).kind is VerdictKind.FAIL


@pytest.mark.parametrize(
    ("metric", "golden"), [("lr", [round(1e-5 * min(step, 10), 6) for step in range(1, 61)]), ("epsilon", [0.1] * 60)]
)
def test_a_value_that_was_set_has_no_last_digit_that_may_differ(metric: str, golden: list[float]) -> None:
    """The text of a set value is short, as those of 1e-05 and 0.1 are, and was not rounded."""
    runs = [[factor * value for value in golden] for factor in (1.0, 1.02, 1.0213, 0.98)]
    tracks = [Track(tuple(range(1, 61)), tuple(each), tuple(map(repr, each))) for each in runs]
    segment = Segment(1, "", {metric: {"": (tracks[0],) * 5}})
    kinds = [judge_segment(Rule(metric, "noise"), segment, [{metric: {"": each}}]).kind for each in tracks]
    assert kinds == ["PASS", "FAIL", "FAIL", "FAIL"]


@pytest.mark.parametrize("kind", ["digits", "noise", "level"])
def test_missing_and_invalid_values_never_pass(kind: RuleKind) -> None:
    goldens = [[2.0, 1.5, 1.0], [2.0, 1.5, 1.0]]
    assert judge(kind, goldens, [2.0, float("nan"), 1.0], 0.5).kind is VerdictKind.FAIL
    assert judge(kind, goldens, [2.0, 1.5], 0.5).kind is VerdictKind.ERROR
    assert judge(kind, [[2.0, float("inf"), 1.0]], [2.0, 1.5, 1.0], 0.5).kind is VerdictKind.ERROR
