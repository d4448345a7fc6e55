from __future__ import annotations

from array import array
from math import isnan, nan

from hypothesis import given
from hypothesis import strategies as st

from assay.record.index.chunk import build_series
from assay.record.index.digest import (
    Digest,
    MetricDigest,
    Packed,
    build_empty,
    build_metric_columns,
    find_metrics,
    open_summaries,
    pack_digest,
    split_summaries,
    unpack_digest,
)
from assay.record.index.tally import FIELDS, LAYOUT, Tally

NAMES = {1: "loss", 2: "acc", 3: "iou", 700: "late"}

digests = st.dictionaries(
    st.sampled_from(sorted(NAMES)), st.tuples(st.lists(st.floats(), min_size=1, max_size=5), st.integers(0, 65))
)


def build_digest(given_values: dict[int, tuple[list[float], int]]) -> Digest:
    return {number: MetricDigest(tally_of(values), loose) for number, (values, loose) in given_values.items()}


def tally_of(values: list[float]) -> Tally:
    tally = Tally()
    tally.extend(build_series((None, values, None)))
    return tally


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
    second = pack_digest({1: MetricDigest(tally_of([2.0])), 2: MetricDigest(tally_of([1.0]))})
    assert first == second
    assert first.metrics == array("q", [1, 2]).tobytes()


def test_a_standing_begins_with_nothing_of_another() -> None:
    MetricDigest().tally.extend(build_series((None, [1.0], None)))
    assert (MetricDigest().tally.count, MetricDigest().loose) == (0, 0)


def test_summaries_are_split_where_they_meet() -> None:
    packed = [tally_of([1.0]).pack(), tally_of([2.0, 3.0]).pack()]
    assert split_summaries(b"".join(packed)) == packed
    assert split_summaries(b"") == []


@given(st.lists(digests, max_size=6))
def test_columns_hold_what_each_run_has(runs: list[dict[int, tuple[list[float], int]]]) -> None:
    packed = [pack_digest(build_digest(run)) for run in runs]
    columns = build_metric_columns([one.metrics for one in packed], [open_summaries(*one[:2]) for one in packed], NAMES)
    assert set(columns) == {NAMES[number] for run in runs for number in run}
    for number, name in NAMES.items():
        for index, run in enumerate(runs if name in columns else ()):
            found = LAYOUT.pack(*(column[index] for column in columns[name][1:]))
            assert found == (tally_of(run[number][0]) if number in run else Tally()).pack()


def test_only_named_metrics_become_columns() -> None:
    packed = pack_digest(build_digest({1: ([4.0], 1), 2: ([5.0], 1)}))
    columns = build_metric_columns([packed.metrics, None], [open_summaries(*packed[:2]), None], {2: "acc"})
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


def test_nothing_makes_no_columns() -> None:
    assert build_metric_columns([], [], NAMES) == {}
    assert build_metric_columns([None], [None], NAMES) == {}


def test_metrics_are_found_by_name() -> None:
    shapes = [array("q", [1, 3]).tobytes(), None, array("q", [3, 2]).tobytes()]
    assert find_metrics(shapes, NAMES) == ["acc", "iou", "loss"]
    assert find_metrics([], NAMES) == []


def test_a_value_that_is_not_a_number_stays_in_its_place() -> None:
    packed = [pack_digest({1: MetricDigest(tally_of(values))}) for values in ([nan], [2.0])]
    last = build_metric_columns([one.metrics for one in packed], [open_summaries(*one[:2]) for one in packed], NAMES)[
        "loss"
    ].last
    assert isnan(last[0])
    assert last[1] == 2.0
