from __future__ import annotations

from dataclasses import replace

import pytest
from tests.golden.judge.curves import START, track

from assay.errors import FormatError, NotFoundError
from assay.golden.judge.evidence import (
    choose_rules,
    find_dead,
    find_early_step,
    find_looser,
    find_seedless,
    find_uncovered,
    find_unjudged,
)
from assay.golden.judge.golden import build_rule_facts, find_widening
from assay.golden.values import Golden, Rule, Segment, Track

LOSS, ACC = Rule("loss"), Rule("acc")
BOTH = Rule("loss", "margin", operator="<=", margin=0.1, labels=("MLM", "NSP"))


def golden(rules=(), steps=60, **metrics):
    """Build a golden with one segment; a metric is a list of values, or a mapping from labels to lists."""
    tracks = {
        metric: {
            label: (track(values),) for label, values in (found if isinstance(found, dict) else {"": found}).items()
        }
        for metric, found in metrics.items()
    }
    origin = {"rules": build_rule_facts(rules)} if rules else {}
    return Golden("demo", (Segment(START, "ckpt", tracks),), steps_per_segment=steps, provenance=origin)


def test_what_was_judged_when_it_was_recorded_is_missed_and_damaged_rules_are_reported():
    found = golden([LOSS, ACC], loss=[2, 1], acc=[0, 1], lr=[1, 1])
    assert find_unjudged([LOSS, ACC], found) == []
    assert find_unjudged([LOSS], found) == ["acc"]
    assert find_unjudged([LOSS], found, ["loss"]) == []
    original = golden(loss={"MLM": [2, 1], "NSP": [1, 1]}, acc=[0, 1])  # without rules: all of it is meant
    assert find_unjudged([BOTH, ACC], original) == []
    assert find_unjudged([replace(BOTH, labels=("MLM",))], original) == ["loss NSP", "acc"]
    assert find_unjudged([replace(BOTH, labels=())], original) == ["acc"], "without labels all are compared"
    found, cut = golden([BOTH], loss={"MLM": [2, 1], "NSP": [1, 1]}), replace(BOTH, labels=("MLM",))
    assert find_unjudged([cut], found) == ["loss NSP"]
    assert find_unjudged(choose_rules([cut], found, ["loss"]), found, ["loss"]) == ["loss NSP"]
    (chosen,) = choose_rules([BOTH], found, ["loss MLM"])
    assert chosen.labels == ("MLM",)
    assert find_unjudged([chosen], found, ["loss MLM"]) == []
    with pytest.raises(NotFoundError, match="no metric named 'los'") as caught:
        choose_rules([BOTH], found, ["los"])
    assert "loss" in str(caught.value.hint)
    found = replace(golden(loss=[2, 1]), provenance={"rules": {"loss": {"rule": 5, "delta": "much"}}})
    for compare in (lambda: find_looser([LOSS], found), lambda: find_widening(found, golden([LOSS], loss=[2, 1]))):
        with pytest.raises(FormatError, match="damaged"):
            compare()


MARGIN = Rule("loss", "margin", operator="==", margin=0.1)


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (LOSS, Rule("loss", delta=0.05), "the delta of loss grows from 0.005 to 0.05"),
        (LOSS, Rule("loss", alpha=0.4), "the alpha of loss grows from 0.01 to 0.4"),
        (LOSS, Rule("loss", alpha=0.001), "the alpha of loss falls from 0.01 to 0.001"),
        (LOSS, Rule("loss", window=60), "the window of loss grows from 10 to 60 steps"),
        (LOSS, Rule("loss", direction="max"), "the direction of loss is max instead of min"),
        (Rule("grad_norm"), Rule("grad_norm", direction="min"), "the direction of grad_norm is min instead of both"),
        (LOSS, Rule("loss", "unmatched"), "loss is judged by unmatched instead of paired"),
        (Rule("loss", "exact"), LOSS, "loss is judged by paired instead of exact"),
        (MARGIN, replace(MARGIN, margin=0.5), "the margin of loss grows from 0.1 to 0.5"),
        (MARGIN, replace(MARGIN, operator="<="), "loss is compared by <= instead of =="),
        (replace(MARGIN, operator="<"), replace(MARGIN, operator="<="), "loss is compared by <= instead of <"),
        (replace(MARGIN, operator="!="), replace(MARGIN, operator="!=", margin=0.05), "the margin of loss falls from"),
        # an equal rule or a tighter one
        (LOSS, LOSS, ""),
        (LOSS, Rule("loss", delta=0.001), ""),
        (LOSS, Rule("loss", direction="both"), ""),
        (LOSS, Rule("loss", direction="min"), ""),
        (LOSS, Rule("loss", window=5), ""),
        (LOSS, Rule("loss", "exact"), ""),
        (MARGIN, replace(MARGIN, margin=0.05), ""),
        (replace(MARGIN, operator="<="), MARGIN, ""),
        (replace(MARGIN, operator="<="), replace(MARGIN, operator="<"), ""),
        (replace(MARGIN, operator="!="), replace(MARGIN, operator="!=", margin=0.5), ""),
        *((replace(MARGIN, operator=each), replace(MARGIN, operator=each, margin=0.5), "") for each in ("<", ">")),
    ],
)
def test_a_rule_that_accepts_more_than_the_recorded_one_is_found(before, now, words):
    found = find_looser([now], golden([before], **{before.metric: [2, 1]}))
    assert [text.startswith(words) for text in found] == [True] * bool(words), found


def check(**metrics):
    return [[{metric: {"": track(values)} for metric, values in metrics.items()}]]


def test_what_stands_still_in_the_golden_or_the_check_is_named_whatever_its_name():
    still = golden(loss=[2.3] * 5, acc=[0.1] * 5)
    (text,) = find_dead(still, check(loss=[2.3] * 5))
    assert text == "loss is 2.3 at every step of the golden and the check: nothing shows that it trains"
    assert find_dead(still) == ["loss is 2.3 at every step of the recording: nothing shows that it trains"]
    assert find_dead(still, check(loss=[2.3, 2.2, 2.1, 2.0, 1.9])) == [], "that is a difference, which rules find"

    # twenty steps with a line every five steps have four values
    (text,) = find_dead(golden(loss=[0.693147] * 4, acc=[0.5] * 4), check(loss=[0.693147] * 4))
    assert text.startswith("loss is 0.693147 at every step of the golden and the check")
    assert len(find_dead(golden(loss=[2.3] * 2))) == 1
    assert find_dead(golden(loss=[2.3])) == [], "one value is no curve"
    assert find_dead(golden(loss=[2.5, 2.4, 2.3], eval_loss=[2.3] * 4)) == [], "few may be equal by chance"
    still = golden(ce=[0.7] * 6, lr=[5, 4, 3, 2, 1, 0], tokens_per_sec=[1, 2, 3, 1, 2, 3])
    assert find_dead(still, check(ce=[0.7] * 6))[0].startswith("ce is 0.7 at every step")
    odd = golden(quality=[0.7] * 6, lr=[5, 4, 3, 2, 1, 0])
    words = "quality: no value changes from step to step in the golden and the check: nothing shows that it trains"
    assert find_dead(odd, check(quality=[0.7] * 6)) == [words]
    assert find_dead(odd, check(quality=[0.7] * 5 + [0.6])) == [], "that is a difference, which rules find"
    assert find_dead(golden(quality=[0.7] * 6, other=[1, 2])) == []
    assert find_dead(golden(quality=[0.7] * 6, loss_per_token=[2, 1])) == []
    assert find_dead(golden(quality=[0.7] * 6, token_accuracy=[0.1, 0.2])) == []
    assert find_dead(golden(lr=[1e-3] * 9)) == [], "nothing that is computed was recorded"
    assert find_dead(golden(loss=[2, 1], gnorm=[0] * 5))[0].startswith("gnorm is 0 at every step")
    moving, still = golden(loss=[2.0, 1.8, 1.9, 1.7, 1.6], grad_norm=[1.0, 0.9, 0.8, 0.7, 0.6]), [0.5] * 5
    (text,) = find_dead(moving, [[{"loss": {"": track(still)}}]])
    assert text == "loss is 0.5 at every step of the check, and not in the golden: nothing shows that it trains"
    assert find_dead(moving, [[{"grad_norm": {"": track(still)}}]]) == [], "it is clipped"
    assert len(find_dead(moving, [[{"grad_norm": {"": track([0.0] * 5)}}]])) == 1
    assert find_dead(moving, [[{"loss": {"": track([])}}]]) == [], "a check without a value at the golden's steps"
    late = golden(loss=[0.01, 0.0, 0.0, 0.01, 0.0])
    assert find_dead(late, [[{"loss": {"": Track(tuple(range(5)), (0.0,) * 5, ("0.00",) * 5)}}]]) == [], "rounded"


def test_a_gradient_norm_of_0_shows_that_nothing_trains_and_other_constants_do_not():
    (text,) = find_dead(golden(loss=[2.3, 2.2, 2.4], grad_norm=[0] * 5), check(grad_norm=[0] * 5))
    assert text.startswith("grad_norm is 0 at every step")
    assert find_dead(golden(grad_norm=[1] * 5)) == [], "a clipped norm may be constant"
    assert find_dead(golden(grad_norm=[3, 2, 1], grad_norm_frozen=[0] * 5)) == []
    assert find_dead(golden(loss=[2, 1], lr=[1e-3] * 9, acc=[1.0] * 9, loss_scale=[65536.0] * 9, batch=[8.0] * 9)) == []
    assert find_dead(golden(loss=[3, 2, 1], z_loss=[0] * 5)) == [], "a part that is switched off"
    assert find_dead(golden(loss={"all": [3, 2, 1], "aux": [0] * 5})) == []
    assert find_dead(golden(loss={"all": [3, 2, 1], "acc": [1] * 5})) == []
    assert find_dead(golden(z_loss=[0] * 5)) != []


def test_segments_are_looked_at_alone_and_together():
    def build(*parts):
        segments = [
            Segment(100 * at, "", {"loss": {"": (Track(tuple(range(len(part))), part),)}})
            for at, part in enumerate(parts)
        ]
        return Golden("demo", tuple(segments))

    assert find_dead(build((2.0,) * 3, (2.0,) * 3))[0].startswith("loss is 2 at every step")
    assert find_dead(build((3.0, 2.0, 1.0), (2.0,) * 5))[0].startswith("segment 100 loss is 2 at every step")
    assert find_dead(build((3.0, 2.0, 1.0), (0.0,) * 5)) == [], "it has learnt all there is"


def test_steps_before_the_checkpoint_and_steps_that_no_segment_has_are_named():
    (segment,) = golden(loss=[3, 2, 1]).segments  # steps 101 to 103, after 100
    assert find_early_step(segment, {101, 102, 103}) is None
    assert find_early_step(segment, {1, 50, 101, 102, 103}) == 1
    assert find_early_step(segment, {100, 101, 102, 103}) is None, "programs that count from 0 do"
    assert find_early_step(segment, {100, 101, 102, 103}, True) is None
    assert find_early_step(segment, {100, 101, 102, 103}, False) == 100
    from_scratch = Segment(0, "", {"loss": {"": (Track((0, 1), (2.0, 1.0)),)}})
    assert find_early_step(from_scratch, {0, 1}, False) is None

    def build(*spans, every=1):
        segments = []
        for first, last in spans:
            steps = tuple(range(first, last + 1, every))
            segments.append(Segment(first - every, "", {"loss": {"": (Track(steps, (1.0,) * len(steps)),)}}))
        return Golden("demo", tuple(segments))

    assert find_uncovered(build((101, 160), (201, 260))) == ["up to 100", "161 to 200", "after 260"]
    assert find_uncovered(build((1, 50), (51, 100))) == ["after 100"]
    assert find_uncovered(build((10, 50), (60, 100), every=10)) == ["after 100"]
    assert find_uncovered(Golden("demo", ())) == []


def test_other_seeds_that_change_nothing_are_named():
    rules = [Rule("return", "unmatched"), Rule("eps", "unmatched"), LOSS]
    runs = {"return": ([1, 2, 3], [2, 2, 3]), "eps": ([1, 1, 1], [1, 1, 1]), "loss": ([3, 2, 1], [3, 2, 1])}

    def record(**changed):
        tracks = {metric: {"": tuple(map(track, each))} for metric, each in (runs | changed).items()}
        return Golden("demo", (Segment(START, "ckpt", tracks),))

    def check(values):
        return [[{"return": {"": track(values)}, "loss": {"": track([3, 2, 1])}}]]

    words = ["segment 100: runs with other seeds are equal bit for bit: does the program read --seed?"]
    assert find_seedless(rules, record(), "--seed") == []
    assert find_seedless(rules, record(**{"return": ([1, 2, 3], [1, 2, 3])}), "--seed") == words
    assert find_seedless(rules, record(), "--seed", check([2, 2, 3])) == words
    assert find_seedless(rules, record(), "--seed", check([2, 2, 4])) == []
    assert find_seedless([LOSS], record(), "--seed", check([2, 2, 3])) == [], "the others share their seed"
