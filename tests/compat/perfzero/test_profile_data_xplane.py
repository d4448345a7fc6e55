"""Chrome traces as XSpace: what is written is read back by the reader of the same wire format."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.compat.perfzero.profile_data import HOST_PLANE, render_xspace
from assay.values.protobuf import read_fields


def iterate_fields(data: bytes) -> list[tuple[int, int | bytes]]:
    return [(number, value) for number, _, value in read_fields(data)]


def call(name: str, ts: float, dur: float, tid: object = 1) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "pid": 7, "tid": tid}


def parse(data: bytes | None) -> dict[str, Any]:
    """Lines by name, each a list of (call, begin in µs, duration in µs)."""
    assert data is not None
    space = list(iterate_fields(data))
    (plane,) = [content for number, content in space if number == 1]
    hosts = [content.decode() for number, content in space if number == 4]  # type: ignore[union-attr]
    fields = list(iterate_fields(plane))  # type: ignore[arg-type]
    names = {}
    for number, content in fields:
        if number == 4:
            entry = dict(iterate_fields(content))  # type: ignore[arg-type]
            metadata = dict(iterate_fields(entry[2]))  # type: ignore[arg-type]
            assert metadata[1] == entry[1]
            names[entry[1]] = metadata[2].decode()  # type: ignore[union-attr]
    lines = [parse_line(content, names) for number, content in fields if number == 3]
    assert dict(fields)[2] == HOST_PLANE.encode()
    return {"hosts": hosts, "lines": dict(lines)}


def parse_line(data: Any, names: dict[Any, str]) -> tuple[str, list[tuple[str, float, float]]]:
    fields = list(iterate_fields(data))
    events = [dict(iterate_fields(content)) for number, content in fields if number == 4]  # type: ignore[arg-type]
    calls = [(names[event[1]], event.get(2, 0) / 1e6, event.get(3, 0) / 1e6) for event in events]  # type: ignore[operator]
    return dict(fields)[11].decode(), calls  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "trace",
    [
        {},
        [],
        {"traceEvents": []},
        {"traceEvents": "x"},
        [{"ph": "M", "name": "thread_name"}, 3, {"ph": "X", "name": "a"}],
    ],
)
def test_a_trace_without_calls_is_none(trace: Any) -> None:
    assert render_xspace(trace, "host") is None


def test_threads_calls_and_the_host() -> None:
    trace = {
        "traceEvents": [
            {"ph": "M", "name": "thread_name", "pid": 7, "tid": 1, "args": {"name": "MainThread"}},
            call("inner", 1500.0, 100.0),
            call("outer", 1000.0, 2000.0),
            call("other", 1250.5, 0.25, tid="stream 7"),
        ]
    }
    assert parse(render_xspace(trace, "node7")) == {
        "hosts": ["node7"],
        "lines": {
            "MainThread 7/1": [("outer", 0.0, 2000.0), ("inner", 500.0, 100.0)],
            "thread 7/stream 7": [("other", 250.5, 0.25)],
        },
    }


def test_begin_and_end_are_a_call() -> None:
    events = [
        {"ph": "E", "name": "lonely", "ts": 0, "pid": 1, "tid": 1},
        {"ph": "B", "name": "outer", "ts": 10, "pid": 1, "tid": 1},
        {"ph": "B", "name": "inner", "ts": 12, "pid": 1, "tid": 1},
        {"ph": "E", "ts": 15, "pid": 1, "tid": 1},
        {"ph": "E", "ts": 20, "pid": 1, "tid": 1},
        {"ph": "B", "name": "never ended", "ts": 30, "pid": 1, "tid": 1},
    ]
    found = parse(render_xspace(events, "h"))["lines"]
    assert found == {"thread 1/1": [("outer", 0.0, 10.0), ("inner", 2.0, 3.0)]}


CALLS = st.lists(st.tuples(st.text(max_size=5), st.integers(0, 10**12), st.integers(0, 10**9)), min_size=1, max_size=30)


@given(CALLS)
def test_every_call_survives(calls: list[tuple[str, int, int]]) -> None:
    began = min(begin for _, begin, _ in calls)
    (found,) = parse(render_xspace([call(*each) for each in calls], "h"))["lines"].values()
    clean = [(name.encode("utf-8", "replace").decode(), begin - began, duration) for name, begin, duration in calls]
    assert sorted((name, round(begin), round(duration)) for name, begin, duration in found) == sorted(clean)
    assert all(math.isfinite(begin) for _, begin, _ in found)
