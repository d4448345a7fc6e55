"""Running summaries, and their packed form in a run's row."""

from __future__ import annotations

from array import array
from math import inf, isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.index.base import MetricColumns
from assay.record.index.digest import (
    FIELDS,
    LAYOUT,
    NO_SUMMARY,
    Digest,
    MetricDigest,
    Packed,
    Tally,
    build_empty,
    build_metric_columns,
    find_metrics,
    open_all_summaries,
    pack_digest,
    parse_summaries,
    unpack_digest,
)
from assay.record.index.packing import build_series
from assay.values.series import Summary

numbers = st.lists(st.floats(), max_size=30)


def tally_of(*batches: list[float], steps: bool = True) -> Tally:
    tally, start = Tally(), 0
    for batch in batches:
        counted = [float(start + index) for index in range(len(batch))]
        tally.extend(*build_series((counted if steps else None, batch, None)))
        start += len(batch)
    return tally


def open_packed(packed: list[Packed]) -> tuple[list[bytes | None], list[bytes | None]]:
    metrics = [one.metrics for one in packed]
    return metrics, open_all_summaries(metrics, [one.summaries for one in packed])


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
    tally.extend(*more)
    restored.extend(*more)
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
        ([5.0, nan, 3.0], (5.0, 3.0)),  # in the order of writing: clocks may go back
    ],
)
def test_the_first_and_last_known_time_are_kept(
    times: list[float], expected: tuple[float | None, float | None]
) -> None:
    tally = Tally()
    for time in times:
        tally.extend(*build_series((None, [1.0], [time])))
    one_by_one = summary_of(tally)
    tally = Tally()
    tally.extend(*build_series((None, [1.0] * len(times), times)))
    at_once = summary_of(tally)
    assert (one_by_one.first_time, one_by_one.last_time) == (at_once.first_time, at_once.last_time) == expected


NAMES = {1: "loss", 2: "acc", 3: "iou", 700: "late"}

digests = st.dictionaries(
    st.sampled_from(sorted(NAMES)), st.tuples(st.lists(st.floats(), min_size=1, max_size=5), st.integers(0, 65))
)


def build_digest(given_values: dict[int, tuple[list[float], int]]) -> Digest:
    return {number: MetricDigest(tally_of(values), loose) for number, (values, loose) in given_values.items()}


@given(digests)
def test_what_is_packed_comes_back(given_values: dict[int, tuple[list[float], int]]) -> None:
    digest = build_digest(given_values)
    found = unpack_digest(pack_digest(digest))
    assert {number: each.loose for number, each in found.items()} == {n: each.loose for n, each in digest.items()}
    for number, each in digest.items():
        assert found[number].tally.pack() == each.tally.pack()
        assert repr(found[number].tally.total) == repr(each.tally.total)


def test_a_run_without_metrics_takes_no_room() -> None:
    assert pack_digest({}) == Packed(None, None, None)
    assert unpack_digest(Packed()) == {}


def test_runs_with_the_same_metrics_are_packed_alike() -> None:
    first = pack_digest({2: MetricDigest(tally_of([1.0])), 1: MetricDigest(tally_of([2.0]))})
    assert first == pack_digest({1: MetricDigest(tally_of([2.0])), 2: MetricDigest(tally_of([1.0]))})
    assert first.metrics == array("q", [1, 2]).tobytes()


@given(st.lists(digests, max_size=6))
def test_columns_hold_what_each_run_has(runs: list[dict[int, tuple[list[float], int]]]) -> None:
    packed = [pack_digest(build_digest(run)) for run in runs]
    columns = build_metric_columns(*open_packed(packed), NAMES)
    assert set(columns) == {NAMES[number] for run in runs for number in run}
    for number, name in NAMES.items():
        for index, run in enumerate(runs if name in columns else ()):
            found = LAYOUT.pack(*(column[index] for column in columns[name][1:]))
            assert found == (tally_of(run[number][0]) if number in run else Tally()).pack()


def test_only_named_metrics_become_columns() -> None:
    packed = pack_digest(build_digest({1: ([4.0], 1), 2: ([5.0], 1)}))
    columns = build_metric_columns(*open_packed([packed, Packed()]), {2: "acc"})
    assert list(columns) == ["acc"]
    assert columns["acc"].metric == "acc"
    assert columns["acc"].last[0] == 5.0
    assert columns["acc"].count.tolist() == [1.0, 0.0]


def test_a_metric_that_no_run_has_is_empty_in_every_row() -> None:
    columns = build_empty("loss", 3)
    assert columns.count.tolist() == columns.bad.tolist() == [0.0, 0.0, 0.0]
    assert all(len(column) == 3 for column in columns[1:])
    assert all(isnan(value) for value in columns.last)
    assert len(columns) == 1 + len(FIELDS)
    assert build_empty("loss", 0).last.tolist() == []


def test_metrics_are_found_by_name() -> None:
    shapes = [array("q", [1, 3]).tobytes(), None, array("q", [3, 2]).tobytes()]
    assert find_metrics(shapes, NAMES) == ["acc", "iou", "loss"]
    assert find_metrics([], NAMES) == []
