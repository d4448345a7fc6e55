"""Rows and points as bytes."""

from __future__ import annotations

from array import array
from itertools import pairwise
from math import isnan, nan
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.index import packing
from assay.record.index.base import RunRow
from assay.values.run import State

text = st.text(st.characters(exclude_categories=()), max_size=8)
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


def build_row(**changes: Any) -> RunRow:
    return RunRow("s/n", "s", "n", "id", State.DONE, 1, {})._replace(**changes)


@given(st.dictionaries(text, json_like, max_size=4), text, st.sampled_from(State))
def test_a_row_comes_back_from_its_bytes(params: dict[str, Any], reason: str, state: State) -> None:
    row = build_row(params=params, reason=reason, state=state)
    again = packing.unpack_rows([packing.pack_row(row)])
    assert again == [row]
    assert type(again[0]) is RunRow
    assert again[0].state is state


@pytest.mark.parametrize(
    ("value", "expected"),
    [(Path("a/b"), "a/b"), (State.LOST, "lost"), ([Path("x")], ["x"]), (MappingProxyType({"k": 1}), {"k": 1})],
)
def test_what_is_not_json_like_becomes_plain(value: Any, expected: Any) -> None:
    row = build_row(params=MappingProxyType({"x": value, "lr": 0.1}), title="kept")
    (again,) = packing.unpack_rows([packing.pack_row(row)])
    assert again.params == {"x": expected, "lr": 0.1}
    assert (again.title, again.key, again.stamp) == ("kept", "s/n", 0.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 0.0),
        ({"created_at": 5.0}, 5.0),
        ({"created_at": 5.0, "started_at": 6.0}, 6.0),
        ({"started_at": 6.0, "ended_at": 8.0, "stamp": 7.0}, 8.0),
        ({"ended_at": 8.0, "stamp": 9.0}, 9.0),
    ],
)
def test_the_last_activity_is_the_newest_time(changes: dict[str, float], expected: float) -> None:
    assert packing.last_activity(build_row(**changes)) == expected


def test_text_for_sqlite_is_always_utf8() -> None:
    assert packing.storable("größe\n") == "größe\n"
    assert packing.storable("a\udcff").encode() == b"a\\udcff"


maybe = st.one_of(st.none(), st.floats(allow_nan=False))
triples = st.lists(st.tuples(maybe, st.floats(allow_nan=False), maybe), min_size=1, max_size=8)
chunks = st.lists(st.tuples(st.integers(1, 3), triples), min_size=1, max_size=6)


def build_chunk(source: int, rows: list[tuple[float | None, float, float | None]]) -> packing.Chunk:
    steps, values, times = ([nan if each is None else each for each in column] for column in zip(*rows, strict=True))
    return packing.Chunk([(source, len(rows))], packing.build_series((steps, values, times)))


def rows_of(chunk: packing.Chunk) -> list[tuple[float | None, float, float | None]]:
    return [
        (None if isnan(step) else step, value, None if isnan(time) else time)
        for step, value, time in zip(*packing.fill_series(chunk.series), strict=True)
    ]


@pytest.mark.parametrize(
    "columns", [([1.0], [1.0, 2.0], None), (None, [1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0], None), ([1.0], [], None)]
)
def test_columns_of_different_lengths_are_refused(
    columns: tuple[list[float] | None, list[float], list[float] | None],
) -> None:
    with pytest.raises(ValueError, match="equally long"):
        packing.build_series(columns)


def test_a_column_of_nothing_but_nan_is_stored_empty() -> None:
    assert packing.build_series(([nan, nan], [1.0, 2.0], None)) == (array("d"), array("d", [1.0, 2.0]), array("d"))


def test_integers_and_other_arrays_become_doubles() -> None:
    series = packing.build_series(([1, 2], array("f", [0.5, 1.5]), (3, 4)))
    assert [column.typecode for column in series] == ["d", "d", "d"]
    assert list(series.values) == [0.5, 1.5]


def test_a_join_leaves_its_pieces_alone() -> None:
    piece = packing.build_series(([1.0], [2.0], None))
    joined = packing.join_series([piece, piece])
    assert list(joined.values) == [2.0, 2.0]
    assert list(piece.values) == [2.0]


@given(chunks)
def test_joined_chunks_hold_all_points_in_order(
    given_chunks: list[tuple[int, list[tuple[float | None, float, float | None]]]],
) -> None:
    joined = packing.join_chunks([build_chunk(source, rows) for source, rows in given_chunks])
    assert rows_of(joined) == [one for _, rows in given_chunks for one in rows]
    assert sum(count for _, count in joined.parts) == len(joined.series.values)
    owners = [source for source, _ in joined.parts]
    assert all(one != following for one, following in pairwise(owners))


@given(chunks, st.integers(1, 3))
def test_a_dropped_source_leaves_the_points_of_the_others(
    given_chunks: list[tuple[int, list[tuple[float | None, float, float | None]]]], dropped: int
) -> None:
    left = packing.drop_source(
        packing.join_chunks([build_chunk(source, rows) for source, rows in given_chunks]), dropped
    )
    expected = [one for source, rows in given_chunks if source != dropped for one in rows]
    assert (rows_of(left) if left else []) == expected
    assert left is None or dropped not in {source for source, _ in left.parts}


@given(chunks)
def test_a_chunk_comes_back_from_its_bytes(
    given_chunks: list[tuple[int, list[tuple[float | None, float, float | None]]]],
) -> None:
    chunk = packing.join_chunks([build_chunk(source, rows) for source, rows in given_chunks])
    packed = [column.tobytes() for column in chunk.series]
    again = packing.unpack_chunk(b"1 2", packing.pack_parts(chunk.parts, chunk.series, b"1 2"), *packed)
    assert again.parts == chunk.parts
    assert rows_of(again) == rows_of(chunk)
