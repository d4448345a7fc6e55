"""What every index must do, whatever stores it.

An implementation's tests subclass `IndexContract` and give the fixture `store`: an empty store, with `open()` for
a new handle on it, and `opener`, Python source of an expression that does the same in another process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import reduce
from math import inf, isfinite, isnan, nan
from operator import add
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.observe import points as observed
from tests.observe.points import MetricPoint

import assay
from assay.errors import InfrastructureError, UsageError
from assay.record.index.base import Cursor, RunRow, Series
from assay.record.index.digest import Tally
from assay.record.index.stored import Index
from assay.values.run import State
from assay.values.series import Summary

WORKER = Path(__file__).with_name("index_worker.py")

values = st.one_of(
    st.floats(width=32), st.integers(-5, 5).map(float), st.sampled_from([nan, inf, -inf, 0.0, -0.0, 1e300, -1e300])
)
places = st.one_of(st.none(), st.floats(allow_nan=False, width=32), st.integers(0, 3).map(float))
points = st.builds(MetricPoint, st.sampled_from(["loss", "acc"]), values, places, places)
batches = st.lists(st.tuples(st.sampled_from(["a.log", "b.log"]), st.lists(points, max_size=6)), max_size=12)

_CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]  # each index is an executor of its own


class Store(Protocol):
    opener: str

    def open(self) -> Index: ...


def row(key: str = "grid/a", **changes: Any) -> RunRow:
    study, _, name = key.rpartition("/")
    return RunRow(key, study, name, "0123456789ab", State.DONE, 1, {"lr": 0.1})._replace(**changes)


def full_row() -> RunRow:
    return RunRow(
        key="grid/größe 'a\"\n",
        study="grid",
        name="größe 'a\"\n",
        id="fedcba987654",
        state=State.TIMEOUT,
        attempt=3,
        params={"lr": 1e-4, "n": 3, "deep": {"a": [1, None, True]}, "text": "ü\n\0'", "inf": inf, "none": None},
        title="a title",
        tag="tag",
        created_at=1.5,
        started_at=2.5,
        ended_at=3.5,
        host="node",
        slot="0,1",
        exit_code=124,
        reason="took too long",
        code_hash="abc",
        commit="def",
        peak_rss_bytes=1 << 40,
        cpu_s=0.25,
        origin="runx",
        parent="grid/before",
        trial=7,
        tags=("good", "größe"),
        note="one\ntwo",
        stamp=1234.5,
    )


def build_points(metric: str, numbers: Sequence[float], first_step: int = 0) -> list[MetricPoint]:
    return [MetricPoint(metric, value, float(first_step + i), 100.0 + i) for i, value in enumerate(numbers)]


def add_points(
    index: Index, key: str, source: str, cursor: Cursor, given_points: Sequence[MetricPoint], *, expected_offset: int
) -> bool:
    """Points sorted into the columns of their metrics."""
    columns: dict[str, tuple[list[float], list[float], list[float]]] = {}
    for point in given_points:
        steps, numbers, times = columns.setdefault(point.metric, ([], [], []))
        steps.append(nan if point.step is None else point.step)
        numbers.append(point.value)
        times.append(nan if point.time is None else point.time)
    return index.add_columns(key, source, cursor, columns, expected_offset=expected_offset)


def put_points(index: Index, key: str, numbers: Sequence[float], metric: str = "loss", source: str = "a.log") -> None:
    start = index.load_cursor(key, source).offset
    cursor = Cursor(start + len(numbers))
    assert add_points(index, key, source, cursor, build_points(metric, numbers, start), expected_offset=start)


def put_summary(index: Index, key: str, numbers: Sequence[float], metric: str = "loss", source: str = "a.log") -> None:
    """What `put_points` stores of a run that the index does not know, without the points."""
    tally = Tally()
    tally.extend(range(len(numbers)), numbers, ())
    index.add_summaries(key, {source: {"start": 5.0}}, {metric: tally.carry()})


def put_and_fail(index: Index, given_row: RunRow) -> None:
    with index.batch():
        index.put_runs([given_row])
        raise ZeroDivisionError


def listed(series: Series) -> list[tuple[float | None, float, float | None]]:
    """A series as tuples that can be compared: NaN is not equal to itself."""
    return [
        (None if isnan(step) else step, value if isfinite(value) else str(value), None if isnan(time) else time)  # type: ignore[misc]
        for step, value, time in zip(*series, strict=True)
    ]


def expected_summary(metric: str, series: Sequence[MetricPoint]) -> Summary:
    """By the definition, from all points at once."""
    finite = [point for point in series if isfinite(point.value)]
    low = min(finite, key=lambda point: point.value, default=MetricPoint(metric, nan))
    high = max(finite, key=lambda point: point.value, default=MetricPoint(metric, nan))
    times = [point.time for point in series if point.time is not None]
    return Summary(
        metric,
        len(series),
        series[-1].value,
        series[-1].step,
        low.value,
        low.step,
        high.value,
        high.step,
        reduce(add, [point.value for point in finite], 0.0) / len(finite) if finite else nan,
        len(series) - len(finite),
        times[0] if times else None,
        times[-1] if times else None,
    )


REFUSED_QUERIES = [
    *("DELETE FROM runs", "SELECT 1; DELETE FROM runs", "WITH x AS (SELECT 1) DELETE FROM runs", "COMMIT", ""),
    *("DROP TABLE runs", "SELECT 1; COMMIT; DELETE FROM runs", "ATTACH 'x' AS y", "SELECT nothing", "SELEC 1"),
    *("COPY runs TO '/dev/null'", "-- SELECT\nDELETE FROM runs", "EXPLAIN ANALYZE DELETE FROM runs"),
    *("WITH x AS (DELETE FROM runs RETURNING key) SELECT * FROM x", "COPY (SELECT 1) TO PROGRAM 'false'"),
    *("PRAGMA journal_mode = DELETE", "VACUUM INTO 'x'", "SELECT load_extension('x')", "(SELECT 1) UNION"),
    *("SELECT key INTO copied FROM runs", "SELECT * FROM runs FOR UPDATE", "/* SELECT */ CREATE TABLE x (y TEXT)"),
]


class IndexContract:
    @pytest.fixture
    def index(self, store: Store) -> Iterator[Index]:
        with store.open() as index:
            yield index

    @pytest.fixture
    def other(self, store: Store) -> Iterator[Index]:
        """A second handle, as another process has it."""
        with store.open() as index:
            yield index

    def test_an_empty_index_answers_everything_with_nothing(self, index: Index) -> None:
        assert index.load_runs() == []
        assert index.load_studies() == []
        assert index.load_summaries() == {}
        assert index.load_metric_names() == []
        assert index.load_cursor("grid/a", "a.log") == Cursor(0, {})
        assert index.load_cursors("a.log") == {}
        assert [len(column) for column in index.load_series("grid/a", "loss")] == [0, 0, 0]
        assert index.load_table() == ([], {})

    def test_rows_come_back_with_every_field(self, index: Index, other: Index) -> None:
        index.put_runs([full_row()])
        (loaded,) = other.load_runs()
        assert loaded == full_row()
        assert isinstance(loaded, RunRow)
        assert loaded.state is State.TIMEOUT
        index.clear()
        index.put_runs([row(f"grid/{state}", state=state, created_at=i) for i, state in enumerate(State)])
        found = other.load_runs()
        assert [one.state for one in found] == list(State)
        assert (found[0].title, found[0].exit_code, found[0].started_at, found[0].reason) == (None, None, None, "")

    def test_values_that_cannot_be_stored_as_they_are_come_back_as_text(self, index: Index) -> None:
        params = {"path": Path("data"), "name": State.DONE, "list": [Path("x")], "lr": 0.1}
        index.put_runs([row(params=params, reason="bad \udcff byte")])
        (loaded,) = index.load_runs()
        assert loaded.params == {"path": "data", "name": "done", "list": ["x"], "lr": 0.1}
        assert "bad" in loaded.reason

    def test_a_key_that_is_not_utf8_is_refused_and_nothing_else_suffers(self, index: Index) -> None:
        with pytest.raises(UsageError, match="not valid UTF-8"):
            index.put_runs([row("grid/\udcff")])
        with pytest.raises(UsageError, match="not valid UTF-8"):
            add_points(index, "grid/\udcff", "a.log", Cursor(1), [], expected_offset=0)
        index.put_runs([row()])
        assert [one.key for one in index.load_runs()] == ["grid/a"]

    def test_rows_come_in_the_order_of_creation_however_they_were_put(self, index: Index) -> None:
        """Two supervisors put them as they come, a rebuild by name."""
        made = [row("grid/b", created_at=1.0), row("grid/c", created_at=2.0), row("grid/a", created_at=2.0)]
        expected = ["grid/b", "grid/a", "grid/c"]
        for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
            index.clear()
            index.put_runs([made[i] for i in order])
            put_points(index, "grid/c", [3.0])
            table = index.load_table()
            assert [one.key for one in index.load_runs()] == [one.key for one in table.rows] == expected
            assert list(table.metrics["loss"].count) == [0, 0, 1]

    def test_putting_again_replaces_and_keeps_order_and_points(self, index: Index) -> None:
        index.put_runs([row("grid/b", created_at=1.0), row("grid/a", created_at=2.0)])
        put_points(index, "grid/b", [1.0])
        index.put_runs([row("grid/b", state=State.FAILED, params={}, created_at=1.0)])
        assert [(one.key, one.state) for one in index.load_runs()] == [("grid/b", State.FAILED), ("grid/a", State.DONE)]
        assert index.load_summaries()["grid/b"]["loss"].count == 1
        index.put_runs([row(attempt=1), row(attempt=2)])
        assert [one.attempt for one in index.load_runs(keys=["grid/a"])] == [2], "of two in one call the last"

    def test_runs_are_chosen_by_study_and_by_key(self, index: Index) -> None:
        index.put_runs([row("one/a"), row("one/b"), row("two/a"), row("three/a")])

        def keys(**chosen: Sequence[str]) -> list[str]:
            return [one.key for one in index.load_runs(**chosen)]

        assert keys(studies=["one"]) == ["one/a", "one/b"]
        assert keys(studies=["three", "two"]) == ["three/a", "two/a"]
        assert keys(keys=["two/a", "one/b", "no/such"]) == ["one/b", "two/a"]
        assert keys(studies=["one"], keys=["two/a", "one/b"]) == ["one/b"]
        assert keys(studies=[]) == keys(keys=[]) == keys(studies=["nope"]) == []
        assert keys(keys=[*(f"grid/{n}" for n in range(40_000)), "two/a"]) == ["two/a"]

    def test_studies_count_their_states_and_tell_the_last_activity(self, index: Index) -> None:
        index.put_runs(
            [
                row("b/1", created_at=10.0),
                row("b/2", state=State.RUNNING, started_at=20.0, stamp=25.0),
                row("b/3", ended_at=22.0),
                row("a/1", state=State.QUEUED),
            ]
        )
        first, second = index.load_studies()
        assert (first.name, dict(first.counts), first.last_activity, first.runs) == ("a", {State.QUEUED: 1}, None, 1)
        assert (second.name, dict(second.counts)) == ("b", {State.DONE: 2, State.RUNNING: 1})
        assert (second.last_activity, second.runs) == (25.0, 3)

    def test_forgotten_runs_take_everything_with_them(self, index: Index) -> None:
        index.put_runs([row("grid/a"), row("grid/b")])
        put_points(index, "grid/a", [1.0])
        put_points(index, "grid/b", [2.0])
        index.forget_runs(iter(["grid/a", "grid/none"]))
        assert [one.key for one in index.load_runs()] == ["grid/b"]
        assert list(index.load_summaries()) == ["grid/b"]
        assert index.load_cursor("grid/a", "a.log").offset == 0
        index.put_runs([row("grid/c")])  # it may get the place of the forgotten one, but nothing of what was there
        assert list(index.load_summaries()) == ["grid/b"]
        assert len(index.load_series("grid/c", "loss").values) == 0

    def test_a_cleared_index_is_empty_and_usable_by_all(self, index: Index, other: Index) -> None:
        for handle in (index, other):
            handle.put_runs([row()])
            put_points(handle, "grid/a", [1.0, 2.0])
        index.clear()
        assert (index.load_runs(), index.load_summaries(), index.load_metric_names()) == ([], {}, [])
        put_points(other, "grid/a", [5.0], metric="new")
        put_points(other, "grid/a", [6.0])
        assert {name: one.last for name, one in index.load_summaries()["grid/a"].items()} == {"new": 5.0, "loss": 6.0}

    def test_points_come_back_in_the_order_written(self, index: Index, other: Index) -> None:
        given_points = [
            MetricPoint("loss", 3.0, 7.0, 1.0),
            MetricPoint("acc", 0.5),
            MetricPoint("loss", 1.0, 2.0, None),
            MetricPoint("loss", nan, None, 3.0),
        ]
        assert add_points(index, "grid/a", "a.log", Cursor(10), given_points, expected_offset=0)
        assert listed(other.load_series("grid/a", "loss")) == [(7.0, 3.0, 1.0), (2.0, 1.0, None), (None, "nan", 3.0)]
        assert listed(other.load_series("grid/a", "acc")) == [(None, 0.5, None)]
        assert all(isinstance(column, array) for column in other.load_series("grid/a", "acc"))

    def test_columns_are_the_same_as_points(self, index: Index) -> None:
        steps, numbers = [0.0, 1.0, 2.0], [5.0, -inf, 4.0]
        columns = {
            "loss": (steps, numbers, None),
            "acc": (None, array("d", numbers), [nan, 8.0, 9.0]),
            "none": (None, [], None),
        }
        assert index.add_columns("grid/a", "a.log", Cursor(9), columns, expected_offset=0)
        same = [MetricPoint("loss", value, step) for step, value in zip(steps, numbers, strict=True)]
        same += [MetricPoint("acc", value, None, time) for value, time in zip(numbers, [None, 8.0, 9.0], strict=True)]
        assert add_points(index, "grid/b", "a.log", Cursor(9), same, expected_offset=0)
        for metric in ("loss", "acc"):
            assert listed(index.load_series("grid/a", metric)) == listed(index.load_series("grid/b", metric))
        summaries = index.load_summaries()
        assert repr(summaries["grid/a"]) == repr(summaries["grid/b"])
        assert index.load_metric_names() == ["acc", "loss"]  # a metric without a point is none
        with pytest.raises(ValueError, match="equally long"):
            index.add_columns("grid/c", "a.log", Cursor(9), {"x": ([1.0], [1.0, 2.0], None)}, expected_offset=0)
        assert index.load_cursor("grid/c", "a.log") == Cursor()

    def test_one_array_may_serve_several_metrics(self, index: Index) -> None:
        steps = array("d", [1.0, 2.0])
        for start in (0, 2):
            columns = {"loss": (steps, array("d", [1.0, 2.0]), None), "acc": (steps, array("d", [3.0, 4.0]), None)}
            assert index.add_columns("grid/a", "a.log", Cursor(start + 2), columns, expected_offset=start)
        assert list(index.load_series("grid/a", "acc").steps) == [1.0, 2.0, 1.0, 2.0]
        assert list(steps) == [1.0, 2.0]

    def test_the_cursor_comes_back_with_its_state(self, index: Index, other: Index) -> None:
        cursor = Cursor(1 << 40, {"step": 3.0, "rest": "ü\0", "list": [1, None]})
        assert add_points(index, "grid/a", "metrics/0.jsonl", cursor, [], expected_offset=0)
        assert other.load_cursor("grid/a", "metrics/0.jsonl") == cursor
        assert other.load_cursor("grid/a", "metrics/1.jsonl") == Cursor()
        assert other.load_cursor("grid/b", "metrics/0.jsonl") == Cursor()
        # it may go back when its file was truncated
        put_points(index, "grid/a", [1.0, 2.0])
        assert add_points(index, "grid/a", "a.log", Cursor(1), build_points("loss", [3.0]), expected_offset=2)
        assert index.load_cursor("grid/a", "a.log").offset == 1
        assert list(index.load_series("grid/a", "loss").values) == [1.0, 2.0, 3.0]

    def test_a_stale_reader_writes_nothing(self, index: Index, other: Index) -> None:
        assert add_points(index, "grid/a", "a.log", Cursor(5), build_points("loss", [1.0]), expected_offset=0)
        late = [*build_points("loss", [1.0]), *build_points("acc", [1.0])]
        assert not add_points(other, "grid/a", "a.log", Cursor(7, {"x": 1}), late, expected_offset=0)
        assert not add_points(index, "grid/a", "a.log", Cursor(7), late, expected_offset=7)
        assert index.load_cursor("grid/a", "a.log") == Cursor(5)
        assert list(index.load_series("grid/a", "loss").values) == [1.0]
        assert list(index.load_summaries()["grid/a"]) == ["loss"]
        assert add_points(
            other, "grid/a", "b.log", Cursor(7), late, expected_offset=0
        )  # another source is another matter

    def test_summaries_may_be_stored_without_their_points(self, index: Index, other: Index) -> None:
        index.put_runs([row("grid/a"), row("grid/b"), row("more/c")])
        put_points(index, "grid/a", [3.0, 1.0, nan, 2.0])
        put_summary(index, "grid/b", [3.0, 1.0, nan, 2.0])
        put_summary(index, "more/c", [1.0])
        stored, summarised = (other.load_summaries(["grid"])[key]["loss"] for key in ("grid/a", "grid/b"))
        assert (summarised.count, summarised.bad, summarised.last) == (stored.count, stored.bad, stored.last)
        assert (summarised.min, summarised.max, summarised.mean) == (stored.min, stored.max, stored.mean)
        plain = other.query("SELECT min, max, mean, count FROM metrics WHERE study = 'grid'").rows
        assert plain[0] == plain[1] == (1.0, 3.0, 2.0, 4)
        assert (other.find_summarised(["grid"]), sorted(other.find_summarised())) == (["grid/b"], ["grid/b", "more/c"])
        assert other.load_cursor("grid/b", "a.log") == Cursor()
        assert other.load_cursors("a.log")["grid/b"] == Cursor(0, {"start": 5.0})

    def test_points_that_are_not_stored_are_asked_for_and_never_answered_with_nothing(self, index: Index) -> None:
        put_summary(index, "grid/a", [1.0, 2.0])
        with pytest.raises(InfrastructureError, match="grid/a are not stored"):
            index.load_series("grid/a", "loss")
        index.store_points = lambda key: put_points(index, key, [1.0, 2.0])
        assert list(index.load_series("grid/a", "loss").values) == [1.0, 2.0]
        assert list(index.load_series("grid/a", "unknown").values) == []

    @pytest.mark.parametrize("batched", [False, True])
    def test_the_first_points_replace_the_summaries(self, index: Index, other: Index, batched: bool) -> None:
        put_summary(index, "grid/a", [5.0, 6.0], metric="old")
        put_summary(other, "grid/b", [5.0])
        assert not add_points(other, "grid/a", "a.log", Cursor(9), build_points("loss", [9.0]), expected_offset=8)
        assert list(index.load_summaries()["grid/a"]) == ["old"]  # a stale reader changes nothing
        with index.batch() if batched else nullcontext():
            put_points(index, "grid/a", [1.0], source="a.log")
            put_points(index, "grid/a", [2.0], source="b.log")
        assert list(other.load_summaries()["grid/a"]) == ["loss"]
        assert list(other.load_series("grid/a", "loss").values) == [1.0, 2.0]
        assert other.query("SELECT metric, count FROM metrics WHERE key = 'grid/a'").rows == [("loss", 2)]
        assert other.find_summarised() == ["grid/b"]

    def test_summaries_never_replace_points(self, index: Index, other: Index) -> None:
        with other.batch() as refused:
            put_summary(other, "grid/a", [5.0])
            put_summary(other, "grid/b", [5.0])
            put_points(index, "grid/a", [1.0, 2.0])
        assert refused == [("grid/a", "")]
        assert list(index.load_series("grid/a", "loss").values) == [1.0, 2.0]
        assert index.load_summaries()["grid/a"]["loss"].count == 2
        assert index.find_summarised() == ["grid/b"]

    def test_summaries_wait_and_are_forgotten_as_points_are(self, index: Index) -> None:
        with index.batch():
            put_summary(index, "grid/a", [5.0])
            put_summary(index, "grid/b", [5.0])
            put_summary(index, "grid/c", [5.0])
            assert index.load_cursor("grid/a", "a.log") == Cursor()
            put_points(index, "grid/a", [1.0])
            index.forget_points("grid/b")
        assert index.find_summarised() == ["grid/c"]
        put_summary(index, "grid/c", [7.0], metric="acc", source="b.log")  # another process, after the files changed
        assert list(index.load_summaries()["grid/c"]) == ["acc"]
        index.forget_points("grid/c", "b.log")
        assert list(index.load_summaries()) == ["grid/a"]

    def test_a_run_that_was_expected_to_be_new_is_compared_all_the_same(self, index: Index, other: Index) -> None:
        put_points(other, "grid/a", [1.0])
        with index.batch() as refused:
            index.expect_new(["grid/a", "grid/b"])
            for key in ("grid/a", "grid/b"):
                assert index.load_cursor(key, "a.log") == Cursor()
                put_points(index, key, [5.0, 6.0])
                assert index.load_cursor(key, "a.log") == Cursor(2)
        assert refused == [("grid/a", "a.log")]
        assert index.load_cursor("grid/a", "a.log") == Cursor(1)
        assert list(index.load_series("grid/a", "loss").values) == [1.0]
        assert list(index.load_series("grid/b", "loss").values) == [5.0, 6.0]

    def test_points_may_come_before_their_run(self, index: Index) -> None:
        put_points(index, "grid/a", [1.0])
        assert (index.load_runs(), index.load_studies(), index.load_table().rows) == ([], [], [])
        assert index.load_summaries(studies=["grid"])["grid/a"]["loss"].last == 1.0
        index.put_runs([row("grid/a")])
        assert [one.key for one in index.load_runs()] == ["grid/a"]
        assert list(index.load_series("grid/a", "loss").values) == [1.0]

    def test_hundreds_of_small_writes_are_one_series(self, index: Index) -> None:
        for number in range(300):
            put_points(index, "grid/a", [float(number)], source="a.log" if number % 3 else "b.log")
            put_points(index, "grid/a", [-1.0], metric="rare") if number % 50 == 0 else None
        assert list(index.load_series("grid/a", "loss").values) == [float(number) for number in range(300)]
        assert index.load_summaries()["grid/a"]["loss"].count == 300
        assert list(index.load_series("grid/a", "rare").values) == [-1.0] * 6

    def test_all_cursors_of_a_source_come_at_once(self, index: Index, other: Index) -> None:
        for key, source, end in (
            ("grid/a", "a.log", 3),
            ("grid/a", "b.log", 4),
            ("grid/b", "a.log", 5),
            ("x/a", "a.log", 6),
        ):
            index.add_columns(key, source, Cursor(end, {"at": key}), {"loss": (None, [1.0], None)}, expected_offset=0)
        expected = {key: Cursor(end, {"at": key}) for key, end in (("grid/a", 3), ("grid/b", 5), ("x/a", 6))}
        assert other.load_cursors("a.log") == expected
        assert other.load_cursors("b.log") == {"grid/a": Cursor(4, {"at": "grid/a"})}
        assert other.load_cursors("a.log", ["x"]) == {"x/a": expected["x/a"]}
        assert set(other.load_cursors("a.log", ["x", "grid"])) == set(expected)
        assert other.load_cursors("none.log") == other.load_cursors("a.log", []) == {}
        assert other.load_cursors("a.log", noting=("at", "other")) == expected
        assert other.load_cursors("a.log", noting=("other",)) == {}
        with index.batch():
            index.add_columns("new/a", "a.log", Cursor(3), {"loss": (None, [1.0], None)}, expected_offset=0)
            assert index.load_cursors("a.log", ["new"]) == {"new/a": Cursor(3)}, "those that wait, too"

    def test_a_metric_may_have_any_name(self, index: Index) -> None:
        names = ["loss/träin 'x'", "", "a\nb", "\udcff", "count"]
        for name in names:
            put_points(index, "grid/a", [1.0], metric=name)
            assert list(index.load_series("grid/a", name).values) == [1.0]
        assert len(index.load_metric_names()) == len(names)

    def test_points_that_count_no_longer_are_refused_when_they_are_written(self, index: Index, other: Index) -> None:
        """Another attempt began between their reading and the end of the batch."""
        is_newest, columns = True, {"loss": (None, [1.0], None)}
        with index.batch() as refused:
            assert index.add_columns("grid/a", "a.log", Cursor(3), columns, expected_offset=0, counts=lambda: is_newest)
            index.add_columns("grid/b", "a.log", Cursor(3), columns, expected_offset=0, counts=lambda: True)
            is_newest = False
        assert refused == [("grid/a", "a.log")]
        assert other.load_cursors("a.log") == {"grid/b": Cursor(3)}
        assert not index.add_columns("grid/a", "a.log", Cursor(3), columns, expected_offset=0, counts=lambda: is_newest)

    def test_forgetting_a_source_keeps_the_others(self, index: Index) -> None:
        for number in range(100):  # enough to be merged where an implementation merges
            put_points(index, "grid/a", [float(number)], source="a.log")
            put_points(index, "grid/a", [1000.0 + number], source="b.log")
        put_points(index, "grid/a", [7.0], metric="only", source="a.log")
        put_points(index, "grid/b", [5.0], source="a.log")
        index.forget_points("grid/a", "a.log")
        assert list(index.load_series("grid/a", "loss").values) == [1000.0 + number for number in range(100)]
        assert list(index.load_series("grid/a", "loss").steps) == [float(number) for number in range(100)]
        expected = expected_summary("loss", build_points("loss", [1000.0 + number for number in range(100)]))
        expected = replace(expected, first_time=100.0, last_time=100.0)  # each of the single points has this time
        assert index.load_summaries(keys=["grid/a"])["grid/a"] == {"loss": expected}
        assert (index.load_cursor("grid/a", "a.log").offset, index.load_cursor("grid/a", "b.log").offset) == (0, 100)
        assert list(index.load_series("grid/b", "loss").values) == [5.0]
        put_points(index, "grid/a", [1.0, 2.0], source="a.log")
        assert index.load_summaries()["grid/a"]["loss"].count == 102

    def test_forgetting_all_sources_keeps_the_run(self, index: Index) -> None:
        index.put_runs([row("grid/a")])
        put_points(index, "grid/a", [1.0], source="a.log")
        put_points(index, "grid/a", [2.0], source="b.log")
        for source in ("a.log", "none.log", None):  # what is not there changes nothing
            index.forget_points("grid/none", source)
        assert list(index.load_series("grid/a", "loss").values) == [1.0, 2.0]
        index.forget_points("grid/a")
        assert index.load_summaries() == {}
        assert len(index.load_series("grid/a", "loss").values) == 0
        assert [index.load_cursor("grid/a", source).offset for source in ("a.log", "b.log")] == [0, 0]
        assert [one.key for one in index.load_runs()] == ["grid/a"]

    def test_a_re_extraction_is_one_step_for_readers(self, index: Index, other: Index) -> None:
        put_points(index, "grid/a", [1.0, 2.0])
        with index.batch() as refused:
            index.forget_points("grid/a", "a.log")
            assert index.load_cursor("grid/a", "a.log").offset == 0
            put_points(index, "grid/a", [3.0], metric="better")
            assert list(other.load_summaries()["grid/a"]) == ["loss"]
        assert list(other.load_summaries()["grid/a"]) == ["better"]
        assert refused == []

    def test_a_summary_says_what_was_written(self, index: Index) -> None:
        put_points(index, "grid/a", [4.0, 1.0, 9.0])
        put_points(index, "grid/a", [1.0, 2.0])
        assert index.load_summaries() == {
            "grid/a": {"loss": Summary("loss", 5, 2.0, 4.0, 1.0, 1.0, 9.0, 2.0, 17.0 / 5, 0, 100.0, 101.0)}
        }
        put_points(index, "grid/huge", [1.7e308, 1.7e308])
        put_points(index, "grid/huge", [1.0])
        found = index.load_summaries()["grid/huge"]["loss"]
        assert (found.mean, found.min, found.max, found.bad) == (inf, 1.0, 1.7e308, 0)

    def test_values_that_are_not_finite_count_only_as_bad(self, index: Index) -> None:
        put_points(index, "grid/a", [inf, 2.0, -inf, 4.0])
        put_points(index, "grid/a", [nan])
        found = index.load_summaries()["grid/a"]["loss"]
        assert (found.count, found.bad, found.mean) == (5, 3, 3.0)
        assert (found.min, found.min_step, found.max, found.max_step) == (2.0, 1.0, 4.0, 3.0)
        assert isnan(found.last)
        assert found.last_step == 4.0
        put_points(index, "grid/b", [nan, inf])
        found = index.load_summaries()["grid/b"]["loss"]
        assert (found.count, found.bad, found.last) == (2, 2, inf)
        assert all(isnan(number) for number in (found.min, found.max, found.mean))
        assert found.min_step is found.max_step is None
        put_points(index, "grid/b", [3.0])
        assert index.load_summaries()["grid/b"]["loss"].min == 3.0

    @given(batches, st.sampled_from([None, "a.log", "b.log"]), st.booleans(), st.booleans())
    @settings(deadline=None, suppress_health_check=_CHECKS)
    def test_summaries_are_those_of_the_series_also_in_a_batch_and_after_forgetting(
        self, index: Index, given_batches: list[Any], forgotten: str | None, batched: bool, flushed: bool
    ) -> None:
        index.clear()
        written: dict[str, list[MetricPoint]] = {}
        with index.batch() if batched else nullcontext([]) as refused:
            for source, some in given_batches:
                start = index.load_cursor("grid/a", source).offset
                assert add_points(index, "grid/a", source, Cursor(start + 1), some, expected_offset=start)
                for point in some if source != forgotten else ():
                    written.setdefault(point.metric, []).append(point)
            if flushed:
                assert index.flush() == []
            if forgotten is not None:
                index.forget_points("grid/a", forgotten)
        assert refused == []
        found = index.load_summaries().get("grid/a", {})
        assert set(found) == set(written)
        for metric, expected in written.items():
            stored = observed.build_points({metric: index.load_series("grid/a", metric)})
            assert repr(stored) == repr(expected)  # repr: NaN is not equal to itself
            assert repr(found[metric]) == repr(expected_summary(metric, expected))

    def test_summaries_are_chosen_by_study_and_key(self, index: Index) -> None:
        for key in ("one/a", "one/b", "two/a"):
            put_points(index, key, [1.0], metric="loss")
            put_points(index, key, [2.0], metric="acc")

        def found(**chosen: Sequence[str]) -> dict[str, list[str]]:
            return {key: sorted(metrics) for key, metrics in index.load_summaries(**chosen).items()}

        assert found(studies=["one"]) == {"one/a": ["acc", "loss"], "one/b": ["acc", "loss"]}
        assert found(keys=["two/a", "no/such"]) == {"two/a": ["acc", "loss"]}
        assert found(keys=[]) == found(studies=["none"]) == found(studies=["one"], keys=["two/a"]) == {}
        put_points(index, "three/a", [1.0], metric="more")
        assert index.load_metric_names() == ["acc", "loss", "more"]
        assert index.load_metric_names(["three"]) == ["more"]
        assert index.load_metric_names([]) == []
        index.forget_runs(["three/a"])
        assert index.load_metric_names() == ["acc", "loss"]

    def test_a_table_says_the_same_as_rows_and_summaries(self, index: Index) -> None:
        index.put_runs([row("one/a"), row("two/b"), row("one/c"), row("one/none")])
        put_points(index, "one/c", [4.0, nan], metric="loss")
        put_points(index, "one/a", [1.0, 3.0], metric="loss")
        put_points(index, "one/c", [0.5], metric="acc")
        table = index.load_table()
        assert table.rows == index.load_runs()
        assert list(table.metrics) == ["acc", "loss"]
        summaries = index.load_summaries()
        for position, one in enumerate(table.rows):
            for metric, columns in table.metrics.items():
                expected = summaries.get(one.key, {}).get(metric)
                assert columns.count[position] == (expected.count if expected else 0)
                for name in [field.name for field in fields(Summary)[2:]]:
                    number = getattr(columns, name)[position]
                    wanted = getattr(expected, name) if expected else (0 if name == "bad" else nan)
                    assert repr(number) == repr(float(nan if wanted is None else wanted)), (one.key, metric, name)

    def test_a_table_is_chosen_by_study_and_metric(self, index: Index) -> None:
        index.put_runs([row("one/a"), row("two/b")])
        put_points(index, "one/a", [1.0], metric="loss")
        put_points(index, "two/b", [2.0], metric="acc")
        table = index.load_table(["two"])
        assert ([one.key for one in table.rows], list(table.metrics)) == (["two/b"], ["acc"])
        asked = index.load_table(["two"], ["none", "acc"])
        assert list(asked.metrics) == ["none", "acc"]
        assert list(asked.metrics["none"].count) == [0.0]
        assert list(asked.metrics["acc"].last) == [2.0]
        assert index.load_table([]).rows == []

    def test_a_batch_is_seen_by_others_when_it_ends(self, index: Index, other: Index) -> None:
        with index.batch():
            index.put_runs([row("grid/a")])
            put_points(index, "grid/a", [1.0])
            put_points(index, "grid/a", [2.0])
            assert index.load_cursor("grid/a", "a.log").offset == 2
            assert (other.load_runs(), other.load_summaries()) == ([], {})
        assert [one.key for one in other.load_runs()] == ["grid/a"]
        assert list(other.load_series("grid/a", "loss").values) == [1.0, 2.0]

    def test_a_waiting_batch_blocks_nobody(self, index: Index, other: Index) -> None:
        with index.batch():
            index.put_runs([row("grid/a")])
            put_points(index, "grid/a", [1.0])
            other.put_runs([row("grid/b")])
            with other.batch():
                other.put_runs([row("grid/c")])
        assert sorted(one.key for one in index.load_runs()) == ["grid/a", "grid/b", "grid/c"]

    def test_a_reader_in_a_batch_sees_its_own_writes(self, index: Index) -> None:
        with index.batch():
            index.put_runs([row("grid/a")])
            assert [one.key for one in index.load_runs()] == ["grid/a"]
            put_points(index, "grid/a", [1.0])
            assert list(index.load_series("grid/a", "loss").values) == [1.0]
            put_points(index, "grid/a", [2.0])
            assert index.load_table().metrics["loss"].count[0] == 2
            put_points(index, "grid/a", [3.0], metric="acc")
            assert index.load_metric_names() == ["acc", "loss"]
            index.forget_runs(["grid/a"])
            assert index.load_studies() == []

    def test_flush_writes_what_waits_and_of_nested_batches_the_outermost(self, index: Index, other: Index) -> None:
        with index.batch():
            index.put_runs([row("grid/a")])
            assert index.flush() == []
            assert [one.key for one in other.load_runs()] == ["grid/a"]
            with index.batch():
                index.put_runs([row("grid/b")])
            assert len(other.load_runs()) == 1
        assert len(other.load_runs()) == 2
        assert index.flush() == []

    def test_a_batch_that_ends_with_an_error_is_written(self, index: Index, other: Index) -> None:
        with pytest.raises(ZeroDivisionError):
            put_and_fail(index, row("grid/a"))
        assert [one.key for one in other.load_runs()] == ["grid/a"]
        index.put_runs([row("grid/b")])
        assert len(other.load_runs()) == 2  # no batch is open any more

    def test_closing_writes_what_waits_and_may_be_repeated(self, store: Store) -> None:
        index = store.open()
        with index.batch():
            index.put_runs([row("grid/a")])
            index.close()
        index.close()
        with store.open() as again:
            assert [one.key for one in again.load_runs()] == ["grid/a"]

    def test_what_became_stale_in_a_batch_is_named_and_dropped(self, index: Index, other: Index) -> None:
        with index.batch() as refused:
            index.put_runs([row("grid/a")])
            put_points(index, "grid/a", [1.0])
            put_points(index, "grid/a", [2.0])
            put_points(index, "grid/a", [8.0], source="b.log")
            put_points(other, "grid/a", [1.0])
            assert index.flush() == [("grid/a", "a.log")]
            assert refused == [("grid/a", "a.log")]
            assert index.load_cursor("grid/a", "a.log").offset == 1
            put_points(index, "grid/a", [9.0])
        assert refused == [("grid/a", "a.log")]
        assert list(index.load_series("grid/a", "loss").values) == [1.0, 8.0, 9.0]
        assert index.flush() == []

    def test_what_a_reader_in_a_batch_found_refused_is_told_by_the_next_flush(self, index: Index, other: Index) -> None:
        with index.batch() as refused:
            put_points(index, "grid/a", [1.0])
            put_points(other, "grid/a", [7.0])
            assert list(index.load_series("grid/a", "loss").values) == [7.0]
            assert refused == [("grid/a", "a.log")]
            assert index.flush() == [("grid/a", "a.log")]
            assert index.flush() == []

    @pytest.mark.parametrize("again", ["load_cursor", "forget_points"])
    def test_a_reader_that_ignores_a_refusal_is_told_by_its_next_call(
        self, index: Index, other: Index, again: str
    ) -> None:
        with index.batch():
            put_points(index, "grid/a", [1.0, 2.0])
            put_points(other, "grid/a", [7.0])
            index.flush()
            for start in (2, 1):  # also where it would fit: what it remembers of the file may be wrong
                points = build_points("loss", [3.0])
                assert not add_points(index, "grid/a", "a.log", Cursor(start + 1), points, expected_offset=start)
            put_points(index, "grid/b", [5.0])
            getattr(index, again)("grid/a", "a.log")
            start = 1 if again == "load_cursor" else 0
            assert add_points(index, "grid/a", "a.log", Cursor(9), build_points("loss", [8.0]), expected_offset=start)
        assert list(other.load_series("grid/a", "loss").values) == ([7.0, 8.0] if start else [8.0])

    def test_points_of_two_sources_keep_their_order_in_a_batch_and_a_stale_reader_is_refused_at_once(
        self, index: Index
    ) -> None:
        with index.batch():
            for number in range(6):
                put_points(index, "grid/a", [float(number)], source="ab"[number % 2])
            assert not add_points(index, "grid/a", "a", Cursor(1), build_points("loss", [9.0]), expected_offset=0)
        assert list(index.load_series("grid/a", "loss").values) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]

    def test_a_query_sees_what_was_written(self, index: Index) -> None:
        with index.batch():
            index.put_runs([row("grid/a"), row("grid/b", state=State.FAILED)])
            put_points(index, "grid/a", [2.0, 1.0])
            found = index.query("SELECT key, state FROM runs ORDER BY key")
        assert found == (["key", "state"], [("grid/a", "done"), ("grid/b", "failed")])
        assert index.query("SELECT metric, min, count FROM metrics").rows == [("loss", 1.0, 2)]
        assert index.query("WITH x AS (SELECT 1 AS n) SELECT n FROM x -- '?' and % are ordinary").rows == [(1,)]
        assert index.query("SELECT sum(runs) AS n FROM studies").rows == [(2,)]

    def test_a_query_that_would_write_or_is_wrong_is_refused(self, index: Index) -> None:
        index.put_runs([row()])
        for statement in REFUSED_QUERIES:
            with pytest.raises(UsageError):
                index.query(statement)
            assert len(index.load_runs()) == 1, statement
        index.put_runs([row("grid/b")])  # and writing goes on

    def test_a_query_ends_in_time(self, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(f"{type(index).__module__}.QUERY_LIMIT_S", 1.0)
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        with pytest.raises(UsageError, match="longer than 1 s"):
            index.query(endless)
        assert index.query("SELECT 1").rows == [(1,)]

    def test_a_compacted_index_holds_the_same(self, index: Index) -> None:
        for key in ("grid/a", "grid/b"):
            index.put_runs([row(key)])
            put_points(index, key, [1.0] * 1000)
        index.forget_runs(["grid/b"])
        index.compact()
        assert index.load_size() > 1000
        assert list(index.load_series("grid/a", "loss").values) == [1.0] * 1000

    def run_workers(self, store: Store, task: str, arguments: Sequence[Sequence[object]]) -> list[Any]:
        """One process per list of arguments, all let go at the same moment; what each printed, as JSON."""
        env = {**os.environ, "PYTHONPATH": str(Path(assay.__file__).parent.parent)}
        command = [sys.executable, str(WORKER), store.opener, task]
        workers = [
            subprocess.Popen(
                [*command, json.dumps(given_arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=env,
                text=True,
            )
            for given_arguments in arguments
        ]
        try:
            for worker in workers:
                assert worker.stdout is not None
                assert worker.stdout.readline() == "ready\n"
            answers = _talk_to_all(workers)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        return [json.loads(answer) for answer in answers]

    def test_four_processes_write_at_once(self, store: Store, index: Index) -> None:
        answers = self.run_workers(store, "write", [[f"study{number}", 40] for number in range(4)])
        assert answers == [0, 0, 0, 0]  # refusals
        assert len(index.load_runs()) == 160
        for number in range(4):
            summaries = index.load_summaries([f"study{number}"])
            assert len(summaries) == 40
            assert {one.count for metrics in summaries.values() for one in metrics.values()} == {3}
        assert index.load_metric_names() == ["acc", "loss"]

    def test_four_processes_that_open_a_new_store_at_once_share_it(self, store: Store) -> None:
        self.run_workers(store, "open_and_put", [[f"grid/{number}"] for number in range(4)])
        with store.open() as index:
            assert sorted(one.key for one in index.load_runs()) == [f"grid/{number}" for number in range(4)]

    @pytest.mark.parametrize("batched", [False, True], ids=["alone", "batched"])
    def test_two_supervisors_never_double_a_point(self, store: Store, index: Index, batched: bool) -> None:
        total = 300
        answers = self.run_workers(store, "race", [[total, batched, seed] for seed in range(2)])
        series = index.load_series("grid/a", "loss")
        assert list(series.values) == [float(number) for number in range(total)]
        assert index.load_cursor("grid/a", "a.log").offset == total
        assert index.load_summaries()["grid/a"]["loss"].count == total
        assert sum(answers) == total  # what each counts as its own


def _talk_to_all(workers: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Start all before waiting for any."""
    answers = [""] * len(workers)

    def talk(index: int) -> None:
        answers[index] = workers[index].communicate("go\n", timeout=120)[0]

    threads = [threading.Thread(target=talk, args=(index,)) for index in range(len(workers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [worker.returncode for worker in workers] == [0] * len(workers)
    return answers
