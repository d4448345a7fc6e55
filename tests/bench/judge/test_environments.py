"""Equal environments are compared, others are doubted: what tests of histories and comparisons do not show."""

from __future__ import annotations

from assay.bench.judge.environments import (
    attribute_change,
    describe_differences,
    doubt,
    doubt_load,
    match_environments,
    name_environments,
)
from assay.bench.judge.samples import Question
from assay.bench.values.comparison import SampleComparison
from assay.system.fast_dataclasses import replace
from assay.values.verdict import VerdictKind

V100 = {"cpu_model": "EPYC", "accelerator_model": "V100", "driver": "410"}
T4 = {**V100, "accelerator_model": "T4"}
NEW = {**V100, "driver": "999", "cudnn": "9"}


def test_without_a_common_one_the_closest_are_taken_and_of_equally_close_ones_the_newest() -> None:
    closest = match_environments({"t": T4, "v": V100}, {"n": NEW})
    assert closest == [("v", "n", "", ("driver 410 → 999", "cudnn none → 9"))]
    newest = match_environments({"a": {"x": "1"}, "b": {"x": "2"}}, {"c": {"x": "3"}, "d": {"x": "4"}})
    assert newest == [("b", "d", "", ("x 2 → 4",))]
    assert match_environments({"v": V100, "t": T4}, {"n": NEW, "v": V100}) == [("v", "v", "", ())]
    assert match_environments({}, {"v": V100}) == match_environments({"v": V100}, {}) == []


def test_names_and_differences() -> None:
    assert describe_differences({"a": "1", "b": "2"}, {"b": "2", "c": "3"}) == ("a 1 → none", "c none → 3")
    assert describe_differences(V100, dict(V100)) == ()
    assert describe_differences({}, {"a": "1", "b": "2"}) == ("environment not recorded → a 1, b 2",)
    assert describe_differences({"a": "1"}, {}) == ("environment a 1 → not recorded",)
    assert name_environments({"v": V100}) == {"v": ""}
    assert name_environments({"v": V100, "n": NEW, "": {}}) == {
        "v": "cpu_model EPYC, accelerator_model V100, driver 410, cudnn none",
        "n": "cpu_model EPYC, accelerator_model V100, driver 999, cudnn 9",
        "": "not recorded",
    }
    many = describe_differences({}, dict.fromkeys("abcdef", "1"))
    assert many == ("environment not recorded → a 1, b 1, c 1, d 1 and 2 more",)
    unrecorded = ("unknown", "the environment was not recorded on both sides")
    assert attribute_change("c", "d", is_recorded=False) == unrecorded


def compared(kind: VerdictKind, p: float | None = 0.001, effect: float = 0.3) -> SampleComparison:
    interval = (effect - 0.02, effect + 0.02) if effect else (0.0, 0.0)
    return SampleComparison("m x", kind, "+30%", 9, 9, 1.0, 1 + effect, effect, interval, p, p, missing_trials=7)


def test_what_is_compared_between_different_environments_is_doubted() -> None:
    """Its results stay, and more trials would not help. What is no number is not excused."""
    found = doubt(compared(VerdictKind.FAIL), ["model V100 → T4"], "; the code is the same")
    assert found.message == "environment or code? The environments differ (model V100 → T4); the code is the same: +30%"
    assert (found.kind, found.effect, found.missing_trials) == (VerdictKind.INCONCLUSIVE, 0.3, 0)
    broken = compared(VerdictKind.FAIL, None)
    assert doubt(broken, ["model V100 → T4"], "") is broken
    assert "environment or code?" in doubt(compared(VerdictKind.INCONCLUSIVE, None), ["a 1 → 2"], "").message


def test_load_may_hide_a_difference_but_not_of_a_count_that_is_equal_in_every_execution() -> None:
    before, after, asked = [0.8] * 5, [0.2] * 5, Question("min")
    equal = compared(VerdictKind.PASS, effect=0.0)
    assert doubt_load(equal, before, after, asked) is equal
    for direction, effect in (("min", -0.3), ("max", 0.3)):  # 60% less load is worth up to 82% in either direction
        noisy = replace(equal, effect=effect, interval=(effect - 0.01, effect + 0.01))
        hidden = doubt_load(noisy, before, after, replace(asked, direction=direction))
        assert (hidden.kind, hidden.missing_trials) == (VerdictKind.INCONCLUSIVE, 0)
        assert "others used 80% of the CPUs before and 20% after, which may hide a difference: +30%" in hidden.message
        far = replace(equal, effect=3 * effect, interval=(3 * effect, 3 * effect + 0.01 * (effect > 0)))
        assert doubt_load(far, before, after, replace(asked, direction=direction)) is far


def test_load_is_no_reason_for_another_count() -> None:
    more = compared(VerdictKind.FAIL, effect=0.08)
    loads = [0.2] * 5, [0.8] * 5
    assert doubt_load(more, *loads, Question("min")).kind is VerdictKind.INCONCLUSIVE
    counted = replace(more, interval=(0.08, 0.08))
    assert doubt_load(counted, *loads, Question("min")) is counted
