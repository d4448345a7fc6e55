from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.index.base import RunRow, StudyRow
from assay.record.index.row import last_activity, pack_row, storable, unpack_rows
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
    again = unpack_rows([pack_row(row)])
    assert again == [row]
    assert type(again[0]) is RunRow
    assert again[0].state is state


def test_no_rows_are_no_rows() -> None:
    assert unpack_rows([]) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [(Path("a/b"), "a/b"), (State.LOST, "lost"), ([Path("x")], ["x"]), (MappingProxyType({"k": 1}), {"k": 1})],
)
def test_what_is_not_json_like_becomes_plain(value: Any, expected: Any) -> None:
    row = build_row(params=MappingProxyType({"x": value, "lr": 0.1}), title="kept")
    (again,) = unpack_rows([pack_row(row)])
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
    assert last_activity(build_row(**changes)) == expected


def test_text_for_sqlite_is_always_utf8() -> None:
    assert storable("größe\n") == "größe\n"
    assert storable("a\udcff").encode() == b"a\\udcff"


def test_a_study_counts_its_runs() -> None:
    assert StudyRow("s", {State.DONE: 2, State.FAILED: 1}, None).runs == 3
