"""What a buffer holds, without a database; the contract tests the rest of batches."""

from __future__ import annotations

import pytest

from assay.record.index.base import Cursor, RunRow
from assay.record.index.buffer import Buffer, PendingPoints
from assay.record.index.packing import build_series
from assay.values.run import State


def build_entry(source: str, start: int, *values: float, metric: str = "loss") -> PendingPoints:
    series = build_series((None, list(values), None))
    return PendingPoints(source, start, Cursor(start + len(values)), {metric: [series]})


@pytest.fixture
def buffer() -> Buffer:
    return Buffer()


def test_an_empty_buffer_has_nothing_to_write(buffer: Buffer) -> None:
    assert not buffer
    assert buffer.cursor("grid/a", "a.log") is None


def test_consecutive_entries_of_a_source_become_one(buffer: Buffer) -> None:
    buffer.add("grid/a", build_entry("a.log", 0, 1.0))
    buffer.add("grid/a", build_entry("a.log", 1, 2.0, 3.0))
    buffer.add("grid/a", build_entry("a.log", 3, 4.0, metric="acc"))
    (entry,) = buffer.entries["grid/a"]
    assert (entry.expected_offset, entry.cursor.offset) == (0, 4)
    assert [list(piece.values) for piece in entry.columns["loss"]] == [[1.0], [2.0, 3.0]]
    assert list(entry.columns) == ["loss", "acc"]


def test_another_source_in_between_keeps_the_order(buffer: Buffer) -> None:
    for source, start in (("a.log", 0), ("b.log", 0), ("a.log", 1)):
        buffer.add("grid/a", build_entry(source, start, 1.0))
    assert [entry.source for entry in buffer.entries["grid/a"]] == ["a.log", "b.log", "a.log"]
    assert buffer.cursor("grid/a", "a.log") == Cursor(2)
    assert buffer.cursor("grid/a", "b.log") == Cursor(1)
    assert buffer.cursor("grid/b", "a.log") is None


def test_a_forgotten_source_takes_its_waiting_points_along(buffer: Buffer) -> None:
    buffer.add("grid/a", build_entry("a.log", 5, 1.0))
    buffer.add("grid/a", build_entry("b.log", 0, 1.0))
    buffer.forget("grid/a", "a.log")
    assert [entry.source for entry in buffer.entries["grid/a"]] == ["b.log"]
    assert buffer.cursor("grid/a", "a.log") == Cursor(0)
    assert buffer.cursor("grid/a", "b.log") == Cursor(1)


def test_a_run_whose_points_are_all_forgotten_begins_everywhere(buffer: Buffer) -> None:
    buffer.add("grid/a", build_entry("a.log", 5, 1.0))
    buffer.forget("grid/a", None)
    assert "grid/a" not in buffer.entries
    assert buffer.cursor("grid/a", "a.log") == buffer.cursor("grid/a", "never.log") == Cursor(0)
    assert buffer.cursor("grid/b", "a.log") is None
    assert buffer


def test_the_last_row_of_a_run_counts(buffer: Buffer) -> None:
    for attempt in (1, 2):
        buffer.put(RunRow("grid/a", "grid", "a", "id", State.DONE, attempt, {}))
    assert [row.attempt for row in buffer.rows.values()] == [2]


def test_weight_grows_with_everything_that_waits(buffer: Buffer) -> None:
    weights = [buffer.weight]
    buffer.add("grid/a", build_entry("a.log", 0, 1.0, 2.0))
    weights.append(buffer.weight)
    buffer.put(RunRow("grid/a", "grid", "a", "id", State.DONE, 1, {}))
    weights.append(buffer.weight)
    buffer.forget("grid/b", None)
    weights.append(buffer.weight)
    assert weights[1] == 2
    assert weights == sorted(set(weights))
