"""Equal environments are compared, others are doubted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.bench.judge.environments import (
    Environments,
    attribute_change,
    attribute_move,
    compare_code,
    describe_differences,
    doubt,
    doubt_load,
    match_environments,
    name_environments,
    shorten,
)
from assay.bench.judge.samples import Question
from assay.bench.values.comparison import SampleComparison
from assay.system.fast_dataclasses import replace
from assay.values.verdict import VerdictKind

V100 = {"cpu_model": "EPYC", "accelerator_model": "V100", "driver": "410"}
T4 = {**V100, "accelerator_model": "T4"}
NEW = {**V100, "driver": "999", "cudnn": "9"}


def test_what_both_sides_have_is_compared_and_nothing_else() -> None:
    (only,) = match_environments({"v": V100, "t": T4}, {"n": NEW, "v": V100})
    assert (only.base, only.head, only.name, only.differences) == ("v", "v", "", ())
    found = match_environments({"v": V100, "t": T4}, {"t": T4, "v": V100})
    assert [(match.base, match.head, match.name) for match in found] == [
        ("v", "v", "accelerator_model V100"),
        ("t", "t", "accelerator_model T4"),
    ]
    assert match_environments({}, {"v": V100}) == match_environments({"v": V100}, {}) == ()


def test_without_a_common_one_the_closest_are_taken_and_of_equally_close_ones_the_newest() -> None:
    (only,) = match_environments({"t": T4, "v": V100}, {"n": NEW})
    assert (only.base, only.head) == ("v", "n")
    assert only.differences == ("driver 410 → 999", "cudnn none → 9")
    (only,) = match_environments({"a": {"x": "1"}, "b": {"x": "2"}}, {"c": {"x": "3"}, "d": {"x": "4"}})
    assert (only.base, only.head) == ("b", "d")


SETUPS = st.dictionaries(
    st.sampled_from("abcd"), st.dictionaries(st.sampled_from("xyz"), st.sampled_from("12"), min_size=1), max_size=4
)


@given(SETUPS, SETUPS)
def test_differences_are_reported_exactly_where_nothing_is_common(base: Environments, head: Environments) -> None:
    found = match_environments(base, head)
    common = [name for name in base if name in head]
    assert [match.base for match in found] == common if common else len(found) == bool(base and head)
    for match in found:
        assert (match.base == match.head) == bool(common)
        assert match.differences == (() if common else describe_differences(base[match.base], head[match.head]))


# ---------------------------------------------------------------- words


def test_differences_name_what_came_and_went() -> None:
    assert describe_differences({"a": "1", "b": "2"}, {"b": "2", "c": "3"}) == ("a 1 → none", "c none → 3")
    assert describe_differences(V100, dict(V100)) == ()
    assert describe_differences({}, {"a": "1", "b": "2"}) == ("environment not recorded → a 1, b 2",)
    assert describe_differences({"a": "1"}, {}) == ("environment a 1 → not recorded",)
    assert shorten(list("abcd")) == "a, b, c, d"
    assert shorten(list("abcdef")) == "a, b, c, d and 2 more"


def test_names_hold_what_differs_among_all_of_them() -> None:
    assert name_environments({"v": V100}) == {"v": ""}
    assert name_environments({"v": V100, "n": NEW, "": {}}) == {
        "v": "cpu_model EPYC, accelerator_model V100, driver 410, cudnn none",
        "n": "cpu_model EPYC, accelerator_model V100, driver 999, cudnn 9",
        "": "not recorded",
    }


# ---------------------------------------------------------------- doubt


def compared(kind: VerdictKind, p: float | None = 0.001) -> SampleComparison:
    return SampleComparison("m x", kind, "+30%", 9, 9, 1.0, 1.3, 0.3, (0.28, 0.32), p, p, missing_trials=7)


@pytest.mark.parametrize("kind", [VerdictKind.PASS, VerdictKind.FAIL, VerdictKind.CHANGED, VerdictKind.INCONCLUSIVE])
def test_no_verdict_between_different_set_ups(kind: VerdictKind) -> None:
    found = doubt(compared(kind), ["model V100 → T4"], "; the code is the same")
    assert found.kind is VerdictKind.INCONCLUSIVE
    assert found.message == "environment or code? The environments differ (model V100 → T4); the code is the same: +30%"
    assert (found.effect, found.interval, found.missing_trials) == (0.3, (0.28, 0.32), 0)  # more would not help


def test_what_is_no_number_is_not_excused_and_too_few_trials_are_doubted() -> None:
    for kind in (VerdictKind.ERROR, VerdictKind.FAIL):
        broken = compared(kind, None)
        assert doubt(broken, ["model V100 → T4"], "") is broken
    assert "environment or code?" in doubt(compared(VerdictKind.INCONCLUSIVE, None), ["a 1 → 2"], "").message


# ---------------------------------------------------------------- the code


@pytest.mark.parametrize(
    ("before", "after", "code", "within", "move"),
    [
        ("c", "c", "same", ("unknown", "same commit"), ("environment", "the commit is the same")),
        ("c+1", "c+1", "same", ("unknown", "same commit"), ("environment", "the commit is the same")),
        ("c", "c+1", "edited", ("code", "local edits"), ("either", "local edits")),
        ("c+1", "c+2", "edited", ("code", "local edits"), ("either", "local edits")),
        ("+1", "+2", "edited", ("code", "local edits"), ("either", "local edits")),
        ("c", "d", "other", ("code", "environment is the same"), ("either", "environment and commit both changed")),
        ("c+1", "d+1", "other", ("code", "environment is the same"), ("either", "environment and commit both changed")),
        (None, "c", "unknown", ("unknown", "was not recorded"), ("either", "not recorded")),
        (None, None, "unknown", ("unknown", "was not recorded"), ("either", "not recorded")),
    ],
)
def test_changes_by_the_code_on_both_sides(before, after, code, within, move):
    """Local edits are other code, a missing commit is unknown."""
    assert compare_code(before, after) == code
    found = (attribute_change(before, after, is_recorded=True), attribute_move(before, after))
    for (cause, reason), (expected, words) in zip(found, (within, move), strict=True):
        assert cause == expected
        assert words in reason
    assert ("both changed" in found[1][1]) == (code == "other")
    unrecorded = ("unknown", "the environment was not recorded on both sides")
    assert attribute_change(before, after, is_recorded=False) == unrecorded
    assert attribute_move(before, after, "label")[0] == ("label" if code == "same" else "either")


def test_load_hides_no_difference_of_a_count_that_is_equal_in_every_execution() -> None:
    before, after, asked = [0.8] * 5, [0.2] * 5, Question("min")
    found = SampleComparison("letters", VerdictKind.PASS, "equal", 5, 5, 7.0, 7.0, 0.0, (0.0, 0.0))
    assert doubt_load(found, before, after, asked) is found
    noisy = replace(found, interval=(-0.01, 0.01))
    assert doubt_load(noisy, before, after, asked).kind is VerdictKind.INCONCLUSIVE
