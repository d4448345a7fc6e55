import itertools
import math
import random
import statistics
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.bench.judge.samples import (
    ALPHA,
    MOST_TRIALS,
    THRESHOLD,
    Question,
    adjust_holm,
    build_finding,
    build_pair,
    compare_pairs,
    count_missing,
    decide_next,
    find_fewest,
    measure_p,
    measure_shift,
)
from assay.bench.values.comparison import SampleComparison, Samples
from assay.values.verdict import Verdict, VerdictKind

PASS, FAIL, CHANGED = VerdictKind.PASS, VerdictKind.FAIL, VerdictKind.CHANGED
INCONCLUSIVE, ERROR = VerdictKind.INCONCLUSIVE, VerdictKind.ERROR


@pytest.mark.parametrize("interval", [(math.inf, math.inf), (-math.inf, math.inf), (0.0, 0.0)])
def test_values_too_far_apart_for_a_number_ask_for_many_trials(interval):
    found = SampleComparison("x", INCONCLUSIVE, "", 5, 5, effect=interval[1], interval=interval)
    assert count_missing(found, Question("min", 0.0)) == MOST_TRIALS


def draw(level, n, seed, noise=0.03):
    return tuple((level * np.exp(noise * np.random.default_rng(seed).standard_normal(n))).tolist())


def judge_pairs(pairs):
    comparisons = compare_pairs(pairs)
    return Verdict.of(map(build_finding, comparisons), sum(one.p is not None for one in comparisons))


def judge_pair(base, head, direction, *, threshold=THRESHOLD, alpha=ALPHA, subject="head"):
    """One metric alone."""
    return judge_pairs([build_pair(subject, base, head, Question(direction, threshold, alpha))])


def compare(base, head, direction="min", threshold=0.05, alpha=0.01):
    return compare_pairs([build_pair("time", base, head, Question(direction, threshold, alpha))])[0]


def test_an_interval_beyond_the_threshold_says_what_is_lacking():
    """Among many metrics five trials a side cannot be sure, however far apart they are."""
    pairs = [
        build_pair(name, draw(100, 5, seed, 0.001), draw(level, 5, seed + 9, 0.001), Question("min", 0.05, 0.01))
        for seed, (name, level) in enumerate([("far", 130), ("a", 100), ("b", 100)])
    ]
    found = compare_pairs(pairs)[0]
    assert found.kind is INCONCLUSIVE
    assert "beyond 5.00%, but not significant" in found.message
    assert "cannot be told" not in found.message


# ---------------------------------------------------------------- bad input is never a pass


@pytest.mark.parametrize(
    ("base", "head", "kind", "words"),
    [
        ((), (1.0,) * 9, ERROR, "base has no values"),
        ((1.0,) * 9, (), ERROR, "head has no values"),
        ((), (), ERROR, "base has no values"),
        ((1.0,) * 9, (1.0,) * 8 + (math.nan,), FAIL, "1 of 9 values of head are NaN"),
        ((1.0,) * 9, (math.inf,) * 9, FAIL, "9 of 9"),
        ((1.0,) * 8 + (math.nan,), (1.0,) * 9, ERROR, "values of base are NaN"),
        ((1.0,), (1.0,), INCONCLUSIVE, "needs 4 more"),
        ((1.0,) * 9, (1.0,) * 2, INCONCLUSIVE, "needs 3 more"),
    ],
)
def test_what_cannot_be_compared_does_not_pass(base, head, kind, words):
    verdict = judge_pair(base, head, "min")
    assert verdict.kind is kind
    assert words in verdict.findings[0].message
    assert verdict.comparisons == 0


def test_senseless_questions_are_errors():
    for threshold, alpha in (
        (-0.1, 0.01),
        (math.nan, 0.01),
        (math.inf, 0.01),
        (0.05, 0.0),
        (0.05, 0.5),
        (0.05, math.nan),
    ):
        verdict = judge_pair((1.0,) * 9, (1.0,) * 9, "min", threshold=threshold, alpha=alpha)
        assert verdict.kind is ERROR
        assert "is not valid" in verdict.findings[0].message
    assert judge_pairs([]).kind is ERROR, "nothing was compared"


# ---------------------------------------------------------------- verdicts


def test_a_slower_head_fails_and_says_by_how_much():
    verdict = judge_pair(draw(100, 10, 0), draw(120, 10, 1), "min", subject="wall_time")
    (finding,) = verdict.findings
    assert verdict.kind is FAIL
    assert finding.subject == "wall_time"
    assert finding.effect == pytest.approx(0.2, abs=0.06)
    assert finding.interval[0] < finding.effect < finding.interval[1]
    assert finding.expected == pytest.approx(100, abs=5)
    assert "worse by more than 5.00%" in finding.message


@pytest.mark.parametrize(
    ("base", "head", "options", "kind"),
    [
        (draw(100, 10, 0), draw(130, 10, 1), {}, FAIL),
        (draw(100, 10, 0), draw(70, 10, 1), {}, CHANGED),
        (draw(100, 10, 0), draw(130, 10, 1), {"direction": "max"}, CHANGED),
        (draw(100, 10, 0), draw(70, 10, 1), {"direction": "max"}, FAIL),
        (draw(100, 20, 0, 0.01), draw(100, 20, 1, 0.01), {}, PASS),
        ((5.0,) * 6, (5.0,) * 6, {}, PASS),
        ((5.0,) * 6, (6.0,) * 6, {}, FAIL),
        ((5.0,) * 6, (5.01,) * 6, {}, PASS),  # sure, and too small to matter
        (draw(100, 20, 0, 0.005), draw(103, 20, 1, 0.005), {"threshold": 0.05}, PASS),
        (draw(100, 20, 0, 0.005), draw(103, 20, 1, 0.005), {"threshold": 0.01}, FAIL),
        ((1.0, 1.01, 1.02, 1.03, 1.04), (1.3, 1.31, 1.32, 1.33, 1.34), {"alpha": 0.01}, FAIL),
        ((1.0, 1.01, 1.02, 1.03, 1.04), (1.3, 1.31, 1.32, 1.33, 1.34), {"alpha": 0.001}, INCONCLUSIVE),
        # zero, negative and huge values are compared by differences
        ((-1.0, 0.0, 1.0, 0.5, -0.5, 0.2, -0.3, 0.1), (49.0, 50.0, 51.0, 50.5, 49.5, 50.2, 49.7, 50.1), {}, FAIL),
        ((0.0,) * 6, (0.0,) * 6, {}, PASS),
        ((0.0,) * 6, (1.0,) * 6, {}, FAIL),
        ((1e-300,) * 6, (1e300,) * 6, {}, FAIL),
        ((-1e308,) * 6, (1e308,) * 6, {}, FAIL),
        ((-1e308,) * 6, (1e308,) * 6, {"direction": "max"}, CHANGED),
    ],
)
def test_verdicts(base, head, options, kind):
    assert judge_pair(base, head, **{"direction": "min", **options}).kind is kind


def test_noise_that_hides_the_answer_is_inconclusive_and_says_how_many_more():
    found = compare(draw(100, 6, 3, 0.1), draw(102, 6, 4, 0.1))
    assert found.kind is INCONCLUSIVE
    assert found.missing_trials > 0
    assert f"needs about {found.missing_trials} more" in found.message


def test_as_many_more_trials_as_were_asked_for_mostly_settle_it():
    settled = asked = 0
    for seed in range(40):
        first = compare(draw(100, 8, seed), draw(100, 8, seed + 100))
        if first.kind is INCONCLUSIVE:
            asked += 1
            n = 8 + first.missing_trials
            settled += compare(draw(100, n, seed), draw(100, n, seed + 100)).kind is not INCONCLUSIVE
    assert asked >= 5
    assert settled / asked >= 0.6


# ---------------------------------------------------------------- false alarms and power


def draw_odd(_level, trials, seed):
    rng = np.random.default_rng(seed)
    return np.exp(0.03 * rng.standard_t(2, trials) + 0.1 * (rng.random(trials) < 0.3)).tolist()


@pytest.mark.parametrize(("noise", "trials", "threshold"), [(draw, 5, 0.05), (draw, 20, 0.05), (draw_odd, 12, 0.0)])
def test_a_against_a_fails_at_most_twice_in_a_hundred(noise, trials, threshold):
    pairs = [(noise(100, trials, 2 * s), noise(100, trials, 2 * s + 1)) for s in range(100)]
    assert sum(judge_pair(*pair, "min", threshold=threshold).kind is FAIL for pair in pairs) <= 2


def test_eight_percent_in_three_percent_noise_are_found_with_ten_trials_each():
    kinds = Counter(judge_pair(draw(100, 10, 2 * s), draw(108, 10, 2 * s + 1), "min").kind for s in range(100))
    assert kinds[FAIL] >= 93
    assert kinds[PASS] == 0


# ---------------------------------------------------------------- many metrics


def test_holm_by_hand():
    assert adjust_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjust_holm([]) == []
    assert adjust_holm([0.9, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_keeps_the_order_and_only_raises(values):
    adjusted = adjust_holm(values)
    assert all(one <= other <= 1 for one, other in zip(values, adjusted, strict=True))
    order = sorted(range(len(values)), key=values.__getitem__)
    assert [adjusted[i] for i in order] == sorted(adjusted)


def test_correction_turns_a_lucky_fail_among_many_into_doubt():
    odd = build_pair("odd", (1.0, 1.01, 1.02, 1.03, 1.04), (1.3, 1.31, 1.32, 1.33, 1.34), Question("min"))
    same = [build_pair(f"m{i}", draw(1, 10, i), draw(1, 10, i + 50), Question("min")) for i in range(9)]
    alone, together = compare_pairs([odd])[0], compare_pairs([odd, *same])[0]
    assert alone.kind is FAIL
    assert together.kind is INCONCLUSIVE
    assert together.p_adjusted == pytest.approx(10 * together.p)


def test_one_bad_metric_does_not_hide_the_others():
    pairs = [
        build_pair("nan", (1.0,) * 6, (math.nan,) * 6, Question("min")),
        build_pair("good", (1.0,) * 6, (1.0,) * 6, Question("min")),
    ]
    verdict = judge_pairs(pairs)
    assert [finding.kind for finding in verdict.findings] == [FAIL, PASS]
    assert verdict.kind is FAIL
    assert verdict.comparisons == 1


# ---------------------------------------------------------------- contamination


def test_contaminated_trials_are_left_out_and_reported():
    head = (*draw(100, 10, 1, 0.01), 900.0, 950.0)
    spoilt = Samples(head, "head", {10: "foreign load", 11: "foreign load"})
    found = compare(Samples(draw(100, 12, 0, 0.01)), spoilt)
    assert found.kind is PASS
    assert found.head_trials == 10
    assert found.warnings == ("head: 2 of 12 trials left out: foreign load",)
    assert "2 of 12 trials left out" in build_finding(found).message
    slow = Samples((1.0, *draw(130, 10, 1)), contaminated={0: "throttled"})
    assert judge_pair(draw(100, 10, 0), slow, "min").kind is FAIL, "clean trials still fail beside them"
    broken = Samples((1.0,) * 9 + (math.nan,), contaminated={9: "foreign load"})
    assert judge_pair((1.0,) * 9, broken, "min").kind is FAIL, "a NaN is not excused"
    samples = Samples((1.0, 2.0, 3.0, 4.0), contaminated={1: "foreign load", 3: "throttled", 7: "no such trial"})
    assert (samples.clean, samples.disturbed) == ((1.0, 3.0), (2.0, 4.0))
    assert Samples((1.0, 2.0)).clean == (1.0, 2.0)


def test_mostly_contaminated_trials_decide_nothing():
    spoilt = Samples(draw(100, 20, 1, 0.001), contaminated=dict.fromkeys(range(14), "foreign load"))
    found = compare(draw(100, 20, 0, 0.001), spoilt)
    assert found.kind is INCONCLUSIVE
    assert found.missing_trials == 8  # then half of them are clean
    assert "foreign load" in found.warnings[0]


def test_what_it_would_take_does_not_grow_with_every_contaminated_trial():
    def spoil(count):
        return Samples((1.0,) * count, contaminated=dict.fromkeys(range(count), "throttled"))

    few, many = compare(spoil(10), spoil(10)), compare(spoil(140), spoil(140))
    assert few.kind is many.kind is compare((1.0,) * 6, spoil(6)).kind is INCONCLUSIVE
    assert few.missing_trials == many.missing_trials == find_fewest(0.01)
    assert many.message.startswith("all trials of base and head are contaminated: wait until the machine is quiet")
    assert "--all" in many.message
    assert compare((1.0,) * 10, spoil(10)).message.startswith("all trials of head are contaminated: ")


# ---------------------------------------------------------------- what is odd about the trials


def test_drift_and_modes_inside_a_run_are_reported_and_ordinary_noise_is_not_odd():
    drifting = [100 + trial for trial in range(12)]
    warnings = compare(draw(100, 12, 0), drifting).warnings
    assert warnings == ("head: drifts from trial to trial (+10.4% over the run)",)
    rng = np.random.default_rng(1)
    jumping = (100 + 20 * (np.arange(20) % 3 == 0) + rng.standard_normal(20)).tolist()
    (warning,) = compare(jumping, draw(100, 20, 3)).warnings
    assert warning.startswith("base: has two modes, near 10")
    odd = sum(bool(compare(draw(100, n, s), draw(100, n, s + 500)).warnings) for s in range(40) for n in (10, 30))
    assert odd <= 3
    assert compare((1.0,) * 20, (1.0,) * 20).warnings == ()


# ---------------------------------------------------------------- the numbers


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_p_is_that_of_all_ways_to_deal_the_values(base, head):
    """Ties included: how often a sum of ranks is as far from its mean as that of base is."""
    values = [*base, *head]
    ranks = [sum(other < value for other in values) + values.count(value) / 2 for value in values]
    mean = sum(ranks) * len(base) / len(values)
    sums = [abs(sum(dealt) - mean) for dealt in itertools.combinations(ranks, len(base))]
    far = abs(sum(ranks[: len(base)]) - mean) - 1e-9
    assert measure_p(base, head) == pytest.approx(sum(each >= far for each in sums) / len(sums))
    assert measure_p(base, head) == pytest.approx(measure_p(head, base))


def test_p_of_many_trials_is_close_to_the_exact_one():
    exact = 0.187526745826294  # scipy.stats.mannwhitneyu(base, head, method="exact")
    assert measure_p(draw(100, 60, 0), draw(101, 60, 1)) == pytest.approx(exact, rel=0.1)
    assert measure_p((1.0,) * 80, (1.0,) * 80) == 1


def test_the_shifts_interval_covers_the_truth():
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(300):
        shift = measure_shift(rng.standard_normal(8), rng.standard_normal(8) + 1, 0.05)
        covered += shift.low <= 1 <= shift.high
        assert shift.low <= shift.estimate <= shift.high
    assert covered / 300 >= 0.92


NOISES = {
    "normal": lambda rng, n: 0.02 * rng.standard_normal(n),
    "heavy tail": lambda rng, n: 0.02 * rng.standard_t(2, n),
    "a third slowed": lambda rng, n: 0.03 * rng.standard_normal(n) + (rng.random(n) < 0.33) * rng.exponential(0.1, n),
    "two modes": lambda rng, n: 0.01 * rng.standard_normal(n) + 0.15 * (rng.random(n) < 0.4),
}


def follow(noise, rng, effect, confirmed, most=30):
    """Trials as they are asked for, as `compare --git` does it: what was seen decides when it ends."""
    base, head, ran, more = [], [], 0, 10
    while True:
        base += np.exp(noise(rng, more)).tolist()
        head += ((1 + effect) * np.exp(noise(rng, more))).tolist()
        ran += more
        found = compare(base, head)
        step = decide_next([found], confirmed=confirmed, most=most, ran=ran)
        if step is None or step.kind != "more":
            return found
        more = step.trials


@pytest.mark.parametrize("name", NOISES)
def test_the_reported_interval_covers_a_true_eight_percent_when_followed_to_its_end(name):
    rng = np.random.default_rng(8)
    covered = []
    for _ in range(60):
        found = follow(NOISES[name], rng, 0.08, confirmed=False)
        if found.kind is FAIL:
            again = follow(NOISES[name], rng, 0.08, confirmed=True)
            found = again if again.kind is FAIL else found
        covered.append(found.interval[0] <= 0.08 <= found.interval[1])
    assert np.mean(covered) >= 0.93


def draw_process(rng, level):
    """Fifty samples of one process: processes differ by 4%, its own samples by 2%."""
    return Samples(tuple(level * np.exp(0.04 * rng.standard_normal() + 0.02 * rng.standard_normal(50))), "", {}, True)


def test_one_process_a_side_is_believed_only_where_the_difference_is_large():
    rng = np.random.default_rng(5)
    found = [compare(draw_process(rng, 1), draw_process(rng, 1.08)) for _ in range(80)]
    assert np.mean([one.interval[0] <= 0.08 <= one.interval[1] for one in found]) >= 0.93
    same = Counter(compare(draw_process(rng, 1), draw_process(rng, 1)).kind for _ in range(80))
    assert same[FAIL] <= 1
    assert same[INCONCLUSIVE] >= 76
    assert compare(draw_process(rng, 1), draw_process(rng, 2)).kind is FAIL
    assert compare(draw_process(rng, 2), draw_process(rng, 1)).kind is CHANGED


def test_the_spread_of_processes_is_a_share_where_values_are_not_positive():
    base = Samples((-1.0, *(100.0,) * 49), is_one_process=True)
    low, high = compare(base, Samples((100.0,) * 50)).interval
    assert (low, high) == pytest.approx((-0.129, 0.129), abs=0.002)  # 2.58 times 5%


def test_more_trials_give_narrower_intervals():
    few, *many = (compare(draw(1, trials, 0), draw(1, trials, 1)) for trials in (8, 20, 60))
    for each in many:
        assert each.interval[1] - each.interval[0] < few.interval[1] - few.interval[0]
    assert (find_fewest(0.05), find_fewest(0.01)) == (4, 5)


@given(st.integers(0, 10_000), st.floats(1e-3, 1e6))
def test_units_do_not_matter(seed, factor):
    base, head = draw(1, 8, seed), draw(1.06, 8, seed + 1)
    one, other = compare(base, head), compare([v * factor for v in base], [v * factor for v in head])
    assert one.kind is other.kind
    assert one.effect == pytest.approx(other.effect)


@given(st.integers(0, 10_000), st.floats(0.8, 1.25))
def test_a_rate_and_a_time_get_the_same_verdict(seed, ratio):
    base, head = draw(1, 10, seed), draw(ratio, 10, seed + 1)
    time = compare(base, head, "min", 0.0)
    rate = compare([1 / value for value in base], [1 / value for value in head], "max", 0.0)
    assert time.kind is rate.kind


# ---------------------------------------------------------------- what to do next


def settle(kind, *, missing=0, trials=10, p=0.001):
    return SampleComparison("m", kind, "", trials, trials, p=p, missing_trials=missing)


def test_what_to_do_next():
    assert decide_next([settle(FAIL), settle(PASS)]).kind == "confirm"
    assert decide_next([settle(FAIL)], confirmed=True) is None
    assert decide_next([settle(FAIL, p=None)]) is None, "NaN needs no confirmation"
    step = decide_next([settle(INCONCLUSIVE, missing=7), settle(INCONCLUSIVE, missing=12), settle(PASS)])
    assert (step.kind, step.trials) == ("more", 12), "as many as the neediest metric"
    assert decide_next([settle(INCONCLUSIVE, missing=500)]).trials == MOST_TRIALS - 10
    assert decide_next([settle(INCONCLUSIVE, missing=5, trials=MOST_TRIALS)]) is None
    assert decide_next([settle(INCONCLUSIVE, missing=5)], most=10) is None
    nothing = settle(INCONCLUSIVE, missing=5, trials=0, p=None)  # contaminated trials count towards the most
    assert decide_next([nothing], most=30, ran=10).trials == 5
    assert decide_next([nothing], most=12, ran=10).trials == 2
    assert decide_next([nothing], most=30, ran=30) is None
    assert {decide_next([settle(kind)]) for kind in (PASS, CHANGED, ERROR)} == {decide_next([])} == {None}


def test_single_values_show_their_ratio_and_are_unsure():
    found = compare((10.0,), (12.0,))
    assert found.kind is VerdictKind.INCONCLUSIVE
    assert (found.base, found.head, found.interval) == (10.0, 12.0, None)
    assert found.effect == pytest.approx(0.2)
    assert found.message.startswith("+20.00%, not significant: too few clean trials")


def test_so_few_trials_that_the_number_of_metrics_lets_none_fail_ask_for_enough():
    """2 / 252 is below alpha, and not when it is corrected for two metrics."""
    slow = [
        build_pair(name, (1.0, 1.01, 1.02, 1.03, 1.04), (2.0, 2.01, 2.02, 2.03, 2.04), Question("min")) for name in "ab"
    ]
    alone, *_ = compare_pairs(slow[:1])
    both = compare_pairs(slow)
    assert alone.kind is VerdictKind.FAIL
    assert [one.kind for one in both] == [VerdictKind.INCONCLUSIVE] * 2
    assert [one.missing_trials for one in both] == [1, 1]
    assert "so few trials of 2 metrics cannot reach" in both[0].message
    more = [build_pair(p.subject, (*p.base.values, 1.05), (*p.head.values, 2.05), p.question) for p in slow]
    assert [one.kind for one in compare_pairs(more)] == [VerdictKind.FAIL] * 2


# ---------------------------------------------------------------- a few slow trials, and wide intervals


@pytest.mark.parametrize(("direction", "factor", "noise"), [("min", 3.0, 0.001), ("max", 1 / 3, 0.01)])
def test_four_of_twenty_trials_three_times_slower_are_named_and_do_not_pass(direction, factor, noise):
    head = list(draw(100, 20, 1, noise))
    for trial in (2, 7, 11, 19):
        head[trial] *= factor
    found = compare(draw(100, 20, 2, noise), head, direction)
    assert found.kind is INCONCLUSIVE
    assert found.missing_trials > 0
    assert f"head: 4 of 20 trials are {factor:.2g} times the others (trials 3, 8, 12, 20)" in found.warnings
    assert compare(head, draw(100, 20, 2, noise), direction).kind is PASS, "those of base do not make head worse"
    assert compare(head, head[::-1], direction).kind is PASS, "both sides have as many"


def test_one_slow_trial_is_chance_and_some_among_equal_ones_do_not_pass():
    head = [*draw(100, 19, 1, 0.01), 300.0]
    assert compare(draw(100, 20, 2, 0.01), head).kind is PASS
    assert compare([1.0] * 20, [1.0] * 16 + [3.0] * 4).kind is INCONCLUSIVE


def test_a_wide_interval_that_ends_below_the_threshold_asks_for_more_trials():
    base = [100.0, 150.0, 101.0, 160.0, 99.0, 155.0, 102.0, 150.0]
    head = [99.0, 100.0, 98.0, 101.0, 97.0, 100.0, 99.0, 103.0]
    found = compare(base, head)
    low, high = found.interval
    assert low < -0.3
    assert 0 < high <= 0.05
    assert found.kind is INCONCLUSIVE
    assert "too wide an interval" in found.message
    assert found.missing_trials > 0


# ---------------------------------------------------------------- what could have been seen


@pytest.mark.parametrize(
    ("trials", "noise", "direction"), [(6, 0.08, "min"), (10, 0.01, "max"), (10, 0.08, "max"), (30, 0.03, "min")]
)
def test_a_worsening_of_the_size_that_is_stated_is_found_in_nine_of_ten(trials, noise, direction):
    chance = random.Random(f"{trials}{noise}")

    def run(factor):
        base, head = ([level * math.exp(chance.gauss(0, noise)) for _ in range(trials)] for level in (1.0, factor))
        return compare_pairs([build_pair("x", base, head, Question(direction))])[0]

    stated = statistics.median(run(1.0).detectable or math.nan for _ in range(40))
    factor = 1 + stated if direction == "min" else 1 - stated
    assert 80 <= sum(run(factor).kind is VerdictKind.FAIL for _ in range(100)) <= 99


def test_what_could_be_seen_is_unknown_where_nothing_was_compared():
    assert compare_pairs([build_pair("x", (1.0, 1.1), (1.0, 1.1), Question("min"))])[0].detectable is None
