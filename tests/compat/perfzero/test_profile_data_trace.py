"""TensorFlow's profiles as Chrome traces: what `render_xspace` wrote comes back, and no bytes are too strange."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.compat.perfzero.test_profile_data_xplane import call

from assay.compat.perfzero.profile_data import HOST_PLANE, build_trace, render_xspace
from assay.values import protobuf


def calls(trace: dict[str, Any]) -> list[tuple[str, float, float]]:
    return sorted((e["name"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X")


def names(trace: dict[str, Any], what: str) -> list[str]:
    return [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == what]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x0a", "cut off"),
        (b"\x0a\x05abc", "cut off"),
        (b"\x0b", "not a"),
        (b"\xff" * 12, "not a"),
        (b"<html>", "not a"),
    ],
)
def test_what_is_no_profile(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build_trace(data)


def test_an_empty_one_has_no_calls() -> None:
    assert build_trace(b"") == {"traceEvents": [], "displayTimeUnit": "ms"}


def test_threads_and_calls_come_back() -> None:
    data = render_xspace([call("outer", 1000.0, 2000.0), call("inner", 1500.0, 100.0), call("o", 1250.5, 0.25, 2)], "h")
    assert data is not None
    trace = build_trace(data)
    assert calls(trace) == [("inner", 500.0, 100.0), ("o", 250.5, 0.25), ("outer", 0.0, 2000.0)]
    assert names(trace, "process_name") == [HOST_PLANE]
    assert names(trace, "thread_name") == ["thread 7/1", "thread 7/2"]


def test_planes_lines_with_a_start_of_their_own_sums_and_shown_names() -> None:
    """As TensorFlow writes them: absolute nanoseconds for the line, picoseconds from there for the call."""
    metadata = protobuf.message(
        4,
        protobuf.number(1, 5)
        + protobuf.message(2, protobuf.number(1, 5) + protobuf.text(2, "long") + protobuf.text(4, "shown")),
    )
    first = protobuf.message(4, protobuf.number(1, 5) + protobuf.number(2, 3_000_000) + protobuf.number(3, 1_000_000))
    total = protobuf.message(4, protobuf.number(1, 5) + protobuf.number(5, 9))
    fixed = bytes([9 << 3 | 1]) + b"8 bytes." + bytes([10 << 3 | 5]) + b"four"
    early = protobuf.message(
        3,
        protobuf.number(1, 1)
        + protobuf.text(2, "early")
        + protobuf.number(3, 1_700_000_000_000_000_000)
        + first
        + total,
    )
    late = protobuf.message(
        3,
        protobuf.number(1, 2)
        + protobuf.text(2, "late")
        + protobuf.number(3, 1_700_000_000_000_002_000)
        + first
        + fixed,
    )
    facts = protobuf.message(1, protobuf.text(2, "/host:metadata") + metadata)
    trace = build_trace(facts + protobuf.message(1, protobuf.text(2, "/device:GPU:0") + metadata + early + late))
    assert calls(trace) == [("shown", 0.0, 1.0), ("shown", 2.0, 1.0)]
    assert names(trace, "process_name") == ["/device:GPU:0"], "a plane of mere facts is none"
    assert names(trace, "thread_name") == ["early", "late"]


times = st.integers(0, 10**9).map(float)


@given(st.lists(st.tuples(st.text(max_size=5), times, times, st.integers(1, 3)), min_size=1, max_size=12))
def test_whatever_was_written_comes_back(wanted: list[tuple[str, float, float, int]]) -> None:
    data = render_xspace([call(*each) for each in wanted], "h")
    assert data is not None
    began = min(begin for _, begin, _, _ in wanted)
    assert calls(build_trace(data)) == sorted((name, begin - began, length) for name, begin, length, _ in wanted)


@pytest.mark.parametrize(
    "data",
    [
        b"\x08\x00",  # a plane that is a number
        b"\x0a\x02\x10\x05",  # a plane whose name is a number
        b"\x0a\x02\x18\x05",  # a line that is a number
        b"\x0a\x05\x1a\x03\x1a\x01x",  # a line whose time is a text
        b"\x0a\x07\x1a\x05\x22\x03\x12\x01x",  # an event that begins at a text
    ],
)
def test_fields_of_another_kind_are_somebody_else_s(data: bytes) -> None:
    with pytest.raises(ValueError, match="no profile of TensorFlow"):
        build_trace(data)


@given(st.binary(max_size=60))
def test_no_bytes_break_it(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert build_trace(data)["displayTimeUnit"] == "ms"
