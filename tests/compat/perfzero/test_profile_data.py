"""profiler_data/ as TensorBoard's profile tab looks for it."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
import shlex
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.finished_study import until

from assay.bench.values.execution import BenchExecution, BenchResult
from assay.compat.perfzero.profile_data import HOST_PLANE, arrange_profiles, build_trace, render_xspace
from assay.compat.perfzero.summary import render_profile_hint
from assay.values import protobuf


def write(path: Path, content: object, at: float) -> None:
    path.write_text(json.dumps(content))
    os.utime(path, (at, at))


def test_every_window_is_a_session(tmp_path: Path) -> None:
    trace = {"traceEvents": [call("step", 1.0, 2.0)]}
    write(tmp_path / "torch-1.json", trace, 1_700_000_000)
    write(tmp_path / "torch-2.json", trace, 1_700_000_000)
    assert arrange_profiles(str(tmp_path), "node7") == []
    assert [path.name for path in tmp_path.iterdir()] == ["plugins"]
    sessions = sorted((tmp_path / "plugins" / "profile").iterdir())
    assert [session.name[19:] for session in sessions] == ["_torch-1", "_torch-2"], "two in one second stay apart"
    for session in sessions:
        assert sorted(path.name for path in session.iterdir()) == ["node7.trace.json.gz", "node7.xplane.pb"]
        assert json.loads(gzip.decompress((session / "node7.trace.json.gz").read_bytes())) == trace
        assert (session / "node7.xplane.pb").read_bytes().endswith(protobuf.text(4, "node7")), "the name of the host"


@pytest.mark.services("frameworks")
def test_the_printed_command_of_tensorboard_shows_the_profile(tmp_path: Path) -> None:
    """With what `assay[perfzero]` installs; TensorBoard alone has no tab for profiles."""
    folder = tmp_path / "profiler_data"
    folder.mkdir()
    write(folder / "torch-1.json", {"traceEvents": [call("one step", 1.0, 2.0)]}, 1_700_000_000)
    assert arrange_profiles(str(folder), "node7") == []
    execution = BenchExecution("e", "m.f", 1, BenchResult("m.f", True), "", str(tmp_path), profiles=("h.xplane.pb",))
    command, said = render_profile_hint(execution).split(" shows ")
    assert said == "the profile of m.f"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = str(Path(sys.executable).with_name("tensorboard"))
    board = subprocess.Popen(
        [program, *shlex.split(command)[1:], f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def ask(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/data/plugin/profile/{path}", timeout=60) as answer:
            data = answer.read()
        return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)

    def find_sessions() -> Any:
        with contextlib.suppress(OSError):
            return ask("runs")
        return None

    try:
        until(find_sessions, "it answers", 120)
        (session,) = find_sessions()
        assert session.endswith("_torch-1")
        query = f"run={quote(session, safe='')}"
        assert "trace_viewer" in " ".join(ask(f"run_tools?{query}"))
        assert [host["hostname"] for host in ask(f"hosts?{query}&tag=trace_viewer")] == ["node7"]
        events = ask(f"data?{query}&tag=trace_viewer&host=node7")["traceEvents"]
        assert "one step" in [event.get("name") for event in events]
    finally:
        board.kill()
        board.wait()


def test_what_tensorflow_wrote_stays(tmp_path: Path) -> None:
    plane = tmp_path / "plugins" / "profile" / "2026_01_01_00_00_00" / "node7.xplane.pb"
    plane.parent.mkdir(parents=True)
    space = render_xspace({"traceEvents": [call("MatMul", 1.0, 2.0)]}, "node7")
    assert space is not None
    plane.write_bytes(space)
    assert arrange_profiles(str(tmp_path), "node7") == []
    assert plane.read_bytes() == space
    trace = plane.with_name("node7.trace.json.gz")
    assert [event["name"] for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]][-1] == "MatMul"
    before = trace.stat().st_mtime_ns
    assert arrange_profiles(str(tmp_path), "node7") == []
    assert trace.stat().st_mtime_ns == before, "one that is there stays"


def test_what_is_cut_off_is_reported_and_kept(tmp_path: Path) -> None:
    plane = tmp_path / "plugins" / "profile" / "s" / "h.xplane.pb"
    plane.parent.mkdir(parents=True)
    plane.write_bytes(b"\x0a\x7fx")
    (tmp_path / "torch-1.json").write_text('{"traceEvents": [')
    first, second = arrange_profiles(str(tmp_path), "h")
    assert f"the profile {plane} has no Chrome trace: it is cut off" in first
    assert [path.name for path in plane.parent.iterdir()] == ["h.xplane.pb"]
    assert "torch-1.json cannot be read" in second
    assert (tmp_path / "torch-1.json").exists()


def test_a_trace_without_calls_has_no_plane(tmp_path: Path) -> None:
    write(tmp_path / "python-1.json", {"traceEvents": []}, 0)
    assert arrange_profiles(str(tmp_path), "h") == []
    assert [path.name for path in tmp_path.rglob("h.*")] == ["h.trace.json.gz"]
    assert arrange_profiles(str(tmp_path / "absent"), "h") == [], "no profile is no problem"
    events = [{"ph": "M", "name": "thread_name"}, 3, {"ph": "X", "name": "a"}]
    odd = [{"ph": "M", "name": "thread_name", "args": True}]
    odd += [
        {"ph": "X", "name": "a", "ts": ts, "dur": dur} for ts, dur in ((10**400, 1), (1, "x"), (1, [2]), (math.nan, 1))
    ]
    traces: list[Any] = [{}, [], {"traceEvents": []}, {"traceEvents": "x"}, events, odd]
    assert [render_xspace(trace, "host") for trace in traces] == [None] * 6


# ---------------------------------------------------------------- planes


def call(name: str, ts: float, dur: float, tid: object = 1) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "pid": 7, "tid": tid}


def lines(data: bytes | None) -> dict[str, list[tuple[str, float, float]]]:
    """By the name of each thread its calls, with begin and duration in µs. That the reader is right is tested below,
    with what TensorFlow wrote."""
    assert data is not None
    events = build_trace(data)["traceEvents"]
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    return {
        name: [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == number]
        for number, name in threads.items()
    }


def test_threads_and_calls_come_back() -> None:
    named = {"ph": "M", "name": "thread_name", "pid": 7, "tid": 1, "args": {"name": "MainThread"}}
    made = [call("inner", 1500.0, 100.0), call("outer", 1000.0, 2000.0), call("other", 1250.5, 0.25, tid="stream 7")]
    data = render_xspace({"traceEvents": [named, *made]}, "node7")
    assert data is not None
    assert lines(data) == {
        "MainThread 7/1": [("outer", 0.0, 2000.0), ("inner", 500.0, 100.0)],
        "thread 7/stream 7": [("other", 250.5, 0.25)],
    }
    assert names(build_trace(data), "process_name") == [HOST_PLANE]


def test_begin_and_end_are_a_call() -> None:
    events = [
        {"ph": "E", "name": "lonely", "ts": 0, "pid": 1, "tid": 1},
        {"ph": "B", "name": "outer", "ts": 10, "pid": 1, "tid": 1},
        {"ph": "B", "name": "inner", "ts": 12, "pid": 1, "tid": 1},
        {"ph": "E", "ts": 15, "pid": 1, "tid": 1},
        {"ph": "E", "ts": 20, "pid": 1, "tid": 1},
        {"ph": "B", "name": "never ended", "ts": 30, "pid": 1, "tid": 1},
    ]
    assert lines(render_xspace(events, "h")) == {"thread 1/1": [("outer", 0.0, 10.0), ("inner", 2.0, 3.0)]}


# ---------------------------------------------------------------- traces


def calls(trace: dict[str, Any]) -> list[tuple[str, float, float]]:
    return sorted((e["name"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X")


def names(trace: dict[str, Any], what: str) -> list[str]:
    return [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == what]


def test_planes_lines_with_a_start_of_their_own_sums_and_shown_names() -> None:
    """As TensorFlow writes them: absolute nanoseconds for the line, picoseconds from there for the call."""
    named = protobuf.message(2, protobuf.number(1, 5) + protobuf.text(2, "long") + protobuf.text(4, "shown"))
    metadata = protobuf.message(4, protobuf.number(1, 5) + named)
    first = protobuf.message(4, protobuf.number(1, 5) + protobuf.number(2, 3_000_000) + protobuf.number(3, 1_000_000))
    total = protobuf.message(4, protobuf.number(1, 5) + protobuf.number(5, 9))
    fixed = bytes([9 << 3 | 1]) + b"8 bytes." + bytes([10 << 3 | 5]) + b"four"
    base = 1_700_000_000_000_000_000
    head = protobuf.number(1, 1) + protobuf.text(2, "early") + protobuf.number(3, base)
    early = protobuf.message(3, head + first + total)
    head = protobuf.number(1, 2) + protobuf.text(2, "late") + protobuf.number(3, base + 2_000)
    late = protobuf.message(3, head + first + fixed)
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
    ("data", "words"),
    [
        (b"\x0a\x05abc", "cut off"),
        (b"\x0b", "not a"),
        (b"<html>", "not a"),
        (b"\x08\x00", "no profile of TensorFlow"),  # a plane that is a number
        (b"\x0a\x02\x10\x05", "no profile of TensorFlow"),  # a plane whose name is a number
        (b"\x0a\x02\x18\x05", "no profile of TensorFlow"),  # a line that is a number
        (b"\x0a\x05\x1a\x03\x1a\x01x", "no profile of TensorFlow"),  # a line whose time is a text
        (b"\x0a\x07\x1a\x05\x22\x03\x12\x01x", "no profile of TensorFlow"),  # an event that begins at a text
    ],
)
def test_what_is_no_profile(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build_trace(data)


@given(st.binary(max_size=60))
def test_no_bytes_break_it(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert build_trace(data)["displayTimeUnit"] == "ms"
