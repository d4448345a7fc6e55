"""Equal environments are compared, others are doubted."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.bench.judge.changepoint import find_change_points
from assay.bench.judge.environments import (
    Environments,
    attribute_changes,
    attribute_move,
    compare_code,
    describe_differences,
    doubt,
    match_environments,
    name_environments,
    shorten,
    split_by_environment,
)
from assay.bench.values.comparison import ChangePoint, Comparison, EnvironmentSegment
from assay.values.verdict import VerdictKind

V100 = {"cpu_model": "EPYC", "accelerator_model": "V100", "driver": "410"}
T4 = {**V100, "accelerator_model": "T4"}
NEW = {**V100, "driver": "999", "cudnn": "9"}


def test_what_both_sides_have_is_compared_and_nothing_else() -> None:
    (only,) = match_environments({"v": V100, "t": T4}, {"n": NEW, "v": V100})
    assert (only.base, only.head, only.name, only.differences) == ("v", "v", "", ())


def test_several_common_ones_go_by_what_differs() -> None:
    found = match_environments({"v": V100, "t": T4}, {"t": T4, "v": V100})
    assert [(match.base, match.head, match.name) for match in found] == [
        ("v", "v", "accelerator_model V100"),
        ("t", "t", "accelerator_model T4"),
    ]


def test_without_a_common_one_the_closest_are_taken() -> None:
    (only,) = match_environments({"t": T4, "v": V100}, {"n": NEW})
    assert (only.base, only.head) == ("v", "n")
    assert only.differences == ("driver 410 → 999", "cudnn none → 9")


def test_of_equally_close_ones_the_newest_are_taken() -> None:
    (only,) = match_environments({"a": {"x": "1"}, "b": {"x": "2"}}, {"c": {"x": "3"}, "d": {"x": "4"}})
    assert (only.base, only.head) == ("b", "d")


def test_a_side_without_anything_has_no_match() -> None:
    assert match_environments({}, {"v": V100}) == match_environments({"v": V100}, {}) == ()


SETUPS = st.dictionaries(
    st.sampled_from("abcd"), st.dictionaries(st.sampled_from("xyz"), st.sampled_from("12"), min_size=1), max_size=4
)


@given(SETUPS, SETUPS)
def test_differences_are_said_exactly_where_nothing_is_common(base: Environments, head: Environments) -> None:
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


def test_a_environment_that_was_not_recorded_is_said_to_be_so() -> None:
    assert describe_differences({}, {"a": "1", "b": "2"}) == ("environment not recorded → a 1, b 2",)
    assert describe_differences({"a": "1"}, {}) == ("environment a 1 → not recorded",)


def test_names_hold_what_differs_among_all_of_them() -> None:
    assert name_environments({"v": V100}) == {"v": ""}
    assert name_environments({"v": V100, "n": NEW, "": {}}) == {
        "v": "cpu_model EPYC, accelerator_model V100, driver 410, cudnn none",
        "n": "cpu_model EPYC, accelerator_model V100, driver 999, cudnn 9",
        "": "not recorded",
    }


def test_many_are_counted() -> None:
    assert shorten(list("abcd")) == "a, b, c, d"
    assert shorten(list("abcdef")) == "a, b, c, d and 2 more"


# ---------------------------------------------------------------- doubt


def compared(kind: VerdictKind, p: float | None = 0.001) -> Comparison:
    return Comparison("m x", kind, "+30%", 9, 9, 1.0, 1.3, 0.3, (0.28, 0.32), p, p, missing_trials=7)


@pytest.mark.parametrize("kind", [VerdictKind.PASS, VerdictKind.FAIL, VerdictKind.CHANGED, VerdictKind.INCONCLUSIVE])
def test_no_verdict_between_different_set_ups(kind: VerdictKind) -> None:
    found = doubt(compared(kind), ["model V100 → T4"], "; the code is the same")
    assert found.kind is VerdictKind.INCONCLUSIVE
    assert found.message == "environment or code? The environments differ (model V100 → T4); the code is the same: +30%"
    assert (found.effect, found.interval, found.missing_trials) == (0.3, (0.28, 0.32), 0)  # more would not help


@pytest.mark.parametrize("kind", [VerdictKind.ERROR, VerdictKind.FAIL])
def test_what_is_no_number_is_not_excused(kind: VerdictKind) -> None:
    broken = compared(kind, None)
    assert doubt(broken, ["model V100 → T4"], "") is broken


def test_too_few_trials_are_doubted_as_well() -> None:
    assert "environment or code?" in doubt(compared(VerdictKind.INCONCLUSIVE, None), ["a 1 → 2"], "").message


# ---------------------------------------------------------------- environment or code


def step_at(index, size=0.2, last_before=None):
    before = index - 1 if last_before is None else last_before
    return ChangePoint(index, before, size, (size - 0.01, size + 0.01), 100.0, 100 * (1 + size), 0.999)


STEP = [100.0] * 30 + [120.0] * 30


def attribute(fingerprints, values=STEP, change=None, **options):
    (found,) = attribute_changes([change or step_at(30)], values, fingerprints, **options)
    return found


# ---------------------------------------------------------------- splits


def test_splits_where_the_fingerprint_changes():
    assert split_by_environment(["a", "a", "b", "a"]) == (
        EnvironmentSegment(0, 2, "a"),
        EnvironmentSegment(2, 3, "b"),
        EnvironmentSegment(3, 4, "a"),
    )


def test_one_environment_is_one_segment_and_none_is_none():
    assert split_by_environment(["a"] * 5) == (EnvironmentSegment(0, 5, "a"),)
    assert split_by_environment([]) == ()


def test_an_empty_fingerprint_was_not_recorded():
    assert split_by_environment(["", None]) == (EnvironmentSegment(0, 2, None),)


@given(st.lists(st.sampled_from(["a", "b", None])))
def test_segments_cover_the_series_without_overlap(fingerprints):
    segments = split_by_environment(fingerprints)
    covered = [(index, segment.fingerprint) for segment in segments for index in range(segment.start, segment.stop)]
    assert covered == list(enumerate(fingerprints))
    assert all(one.fingerprint != other.fingerprint for one, other in pairwise(segments))


# ---------------------------------------------------------------- causes


def test_same_environment_on_both_sides_means_code():
    assert attribute(["a"] * 60).origin == "code"


@pytest.mark.parametrize("split", [28, 29, 30, 31, 32])
def test_a_split_beside_the_change_means_environment(split):
    found = attribute(["a"] * split + ["b"] * (60 - split))
    assert (found.origin, found.split) == ("environment", split)


@pytest.mark.parametrize("split", [10, 25, 36, 50])
def test_a_split_elsewhere_does_not(split):
    assert attribute(["a"] * split + ["b"] * (60 - split)).origin == "code"


def test_a_split_among_missing_values_counts():
    values = [100.0] * 20 + [math.nan] * 20 + [120.0] * 20
    found = attribute(["a"] * 25 + ["b"] * 35, values, step_at(40, last_before=19))
    assert (found.origin, found.split) == ("environment", 25)


def test_an_unrecorded_environment_is_unknown():
    assert attribute([None] * 60).origin == "unknown"
    assert attribute(["a"] * 30 + [None] * 30).origin == "unknown"


def test_the_same_commit_on_both_sides_is_not_the_code():
    commits = ["c"] * 60
    assert attribute(["a"] * 30 + ["b"] * 30, commits=commits).origin == "environment"
    assert attribute(["a"] * 60, commits=commits).origin == "unknown"


def test_other_commits_on_both_sides_may_be_the_code():
    assert attribute(["a"] * 60, commits=["c"] * 30 + ["d"] * 30).origin == "code"


def test_two_machines_in_turns_that_both_show_the_step_mean_code():
    fingerprints = ["a", "b"] * 30
    assert attribute(fingerprints).origin == "code"


def test_a_machine_that_shows_no_step_means_environment():
    fingerprints = (["a"] * 30 + ["b"] * 10) + ["a", "b"] * 10
    values = [100.0 if name == "a" else 120.0 for name in fingerprints]
    assert attribute(fingerprints, values, step_at(30)).origin == "environment"


def test_a_shift_the_other_way_within_one_machine_is_no_witness_for_the_code():
    fingerprints = ["a"] * 30 + ["b"] * 26 + ["a"] * 4
    values = [100.0] * 30 + [120.0] * 26 + [80.0] * 4
    assert attribute(fingerprints, values, step_at(30)).origin == "environment"


def test_each_change_is_judged_between_its_neighbours():
    values = [100.0] * 30 + [120.0] * 30 + [150.0] * 30
    found = attribute_changes(find_change_points(values), values, ["a"] * 60 + ["b"] * 30)
    assert [one.origin for one in found] == ["code", "environment"]


def test_no_changes_no_causes():
    assert attribute_changes([], STEP, ["a"] * 60) == ()


def test_lengths_must_fit():
    with pytest.raises(ValueError, match="belongs to each value"):
        attribute_changes([step_at(30)], STEP, ["a"])
    with pytest.raises(ValueError, match="belongs to each value"):
        attribute_changes([step_at(30)], STEP, ["a"] * 60, commits=["c"])


# ---------------------------------------------------------------- the code


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ("c", "c", "same"),
        ("c+1", "c+1", "same"),
        ("c", "c+1", "edited"),
        ("c+1", "c+2", "edited"),
        ("+1", "+2", "edited"),
        ("c", "d", "other"),
        ("c+1", "d+1", "other"),
        (None, "c", "unknown"),
        (None, None, "unknown"),
    ],
)
def test_local_edits_are_other_code_and_a_missing_commit_is_unknown(before, after, code):
    assert compare_code(before, after) == code


def test_local_edits_are_blamed_like_a_commit():
    found = attribute(["a"] * 60, commits=["c"] * 30 + ["c+1"] * 30)
    assert (found.origin, found.reason.split(",")[0]) == ("code", "local edits")
    both = attribute(["a"] * 30 + ["b"] * 30, commits=["c"] * 30 + ["c+1"] * 30)
    assert "the commit did not" not in both.reason


@pytest.mark.parametrize("commits", [[None] * 60, ["c"] * 30 + [None] * 30])
def test_without_a_commit_nobody_is_blamed(commits):
    found = attribute(["a"] * 60, commits=commits)
    assert (found.origin, "was not recorded" in found.reason) == ("unknown", True)


@pytest.mark.parametrize(
    ("codes", "cause", "words"),
    [
        (("c", "c"), "environment", "the commit is the same"),
        (("c", "d"), "either", "environment and commit both changed"),
        (("c", "c+1"), "either", "local edits"),
        ((None, None), "either", "not recorded"),
        (("c", None), "either", "not recorded"),
    ],
)
def test_moves_by_the_code_on_both_sides(codes, cause, words):
    found = attribute_move(*codes)
    assert found[0] == cause
    assert words in found[1]
    assert ("both changed" in found[1]) == (codes == ("c", "d"))
