from __future__ import annotations

from array import array
from math import inf, isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.index.base import MetricColumns
from assay.record.index.chunk import build_series
from assay.record.index.tally import FIELDS, LAYOUT, NO_SUMMARY, Tally, parse_summaries
from assay.values.series import Summary

numbers = st.lists(st.floats(), max_size=30)


def tally_of(*batches: list[float], steps: bool = True) -> Tally:
    tally, start = Tally(), 0
    for batch in batches:
        counted = [float(start + index) for index in range(len(batch))]
        tally.extend(build_series((counted if steps else None, batch, None)))
        start += len(batch)
    return tally


def summary_of(tally: Tally) -> Summary:
    return parse_summaries(["m"], [tally.pack()])[0]


@given(numbers, st.data())
def test_the_grouping_of_points_does_not_matter(values: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(values)))
    whole, parts = tally_of(values), tally_of(values[:cut], values[cut:])
    one_by_one = tally_of(*[[value] for value in values])
    assert repr(whole.pack()) == repr(parts.pack()) == repr(one_by_one.pack())
    assert repr(whole.total) == repr(parts.total) == repr(one_by_one.total)


@given(numbers, numbers)
def test_a_restored_tally_goes_on_as_if_nothing_had_been(first: list[float], second: list[float]) -> None:
    tally = tally_of(first)
    restored = Tally.restore(tally.pack(), tally.total)
    more = build_series((None, second, None))
    tally.extend(more)
    restored.extend(more)
    assert (restored.pack(), restored.total) == (tally.pack(), tally.total)


def test_an_empty_tally_is_what_a_run_without_the_metric_shows() -> None:
    assert Tally().pack() == NO_SUMMARY
    assert len(NO_SUMMARY) == LAYOUT.size == 8 * len(FIELDS)


def test_the_fields_are_those_of_the_table() -> None:
    assert MetricColumns._fields == ("metric", *FIELDS)


def test_of_equal_values_the_first_counts() -> None:
    found = summary_of(tally_of([2.0, 1.0, 1.0], [1.0, 2.0, 2.0]))
    assert (found.min_step, found.max_step) == (1.0, 0.0)


def test_zero_of_either_sign_is_zero() -> None:
    found = summary_of(tally_of([0.0], [-0.0], [0.0]))
    assert (found.min_step, found.max_step, found.mean) == (0.0, 0.0, 0.0)


def test_without_steps_there_are_none() -> None:
    found = summary_of(tally_of([1.0, nan, 3.0], steps=False))
    assert (found.last_step, found.min_step, found.max_step) == (None, None, None)
    assert (found.min, found.max, found.count, found.bad) == (1.0, 3.0, 3, 1)


def test_a_sum_beyond_all_floats_stays_a_sum() -> None:
    tally = tally_of([1.7e308, 1.7e308], [5.0], [nan])
    found = summary_of(tally)
    assert (found.mean, found.min, found.max, found.bad, found.count) == (inf, 5.0, 1.7e308, 1, 4)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([1.0, 2.0], (1.0, 2.0)),
        ([nan, 2.0, nan], (2.0, 2.0)),
        ([nan, nan], (None, None)),
        ([5.0, nan, 3.0], (5.0, 3.0)),  # as written: clocks may go back
    ],
)
def test_the_first_and_last_known_time_are_kept(
    times: list[float], expected: tuple[float | None, float | None]
) -> None:
    tally = Tally()
    for time in times:
        tally.extend(build_series((None, [1.0], [time])))
    one_by_one = summary_of(tally)
    tally = Tally()
    tally.extend(build_series((None, [1.0] * len(times), times)))
    at_once = summary_of(tally)
    assert (one_by_one.first_time, one_by_one.last_time) == (at_once.first_time, at_once.last_time) == expected


def test_nothing_added_changes_nothing() -> None:
    tally = tally_of([1.0])
    before = tally.pack()
    tally.extend(build_series((None, array("d"), None)))
    assert tally.pack() == before


def test_the_mean_of_nothing_is_not_a_number() -> None:
    assert isnan(Tally().mean)
    assert isnan(tally_of([nan]).mean)


def test_many_summaries_keep_their_metrics() -> None:
    found = parse_summaries(["a", "b"], [tally_of([1.0]).pack(), tally_of([2.0]).pack()])
    assert [(one.metric, one.last, type(one.count)) for one in found] == [("a", 1.0, int), ("b", 2.0, int)]
    assert parse_summaries([], []) == []
