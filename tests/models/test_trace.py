"""Traces for viewers. The protobuf is decoded with the schema of the package `perfetto`."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import defaultdict
from typing import Any

import pytest
from google.protobuf import unknown_fields
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from assay.models.trace import Slice, build_lanes, render_chrome, render_perfetto, render_slices_csv


def decode(content):
    trace = Trace()
    assert trace.ParseFromString(content) == len(content)
    for packet in trace.packet:
        assert_known(packet)
    return trace


def assert_known(message):
    """Nothing that the schema does not have: a wrong field number would be kept as unknown."""
    assert len(unknown_fields.UnknownFieldSet(message)) == 0
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in [value] if hasattr(value, "ListFields") else value:
                assert_known(each)


def read_back(content):
    """As a viewer does it: a stack for each track, by time; the tracks' names from the descriptors."""
    trace = decode(content)
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}

    def path(uuid):
        found = tracks[uuid]
        return (*(path(found.parent_uuid) if found.HasField("parent_uuid") else ()), found.name)

    stacks: dict[int, list[Any]] = defaultdict(list)
    slices = []
    last = 0
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        if not packet.HasField("track_event"):
            continue
        assert packet.timestamp >= last
        last = packet.timestamp
        event = packet.track_event
        if event.type == 1:
            stacks[event.track_uuid].append(packet)
        else:
            assert event.type == 2
            begin = stacks[event.track_uuid].pop()
            args = {each.name: read_value(each) for each in begin.track_event.debug_annotations}
            name = begin.track_event.name
            slices.append(Slice(path(event.track_uuid), name, begin.timestamp, packet.timestamp, args))
    assert not any(stacks.values()), "something never ends"
    return slices


def read_value(annotation):
    (value,) = [value for field, value in annotation.ListFields() if field.name != "name"]
    return value


def plain(slices):
    return sorted((s.track, s.name, s.start_ns, s.end_ns, json.dumps(dict(s.args), sort_keys=True)) for s in slices)


SLICES = [
    Slice(("ort", "CPU"), "conv1", 1_000, 5_000, {"op": "Conv", "bytes": 2304, "share": 0.5, "hot": True}),
    Slice(("ort", "CPU"), "inner", 2_000, 3_000),
    Slice(("ort", "session"), "run", 500, 9_000, {"delta": -7}),
    Slice(("iree",), "dispatch", 0, 0),
]


def test_perfetto_holds_every_slice():
    assert plain(read_back(render_perfetto(SLICES))) == plain(SLICES)


def test_perfetto_tracks_are_nested_and_parents_come_first():
    trace = decode(render_perfetto(SLICES))
    found = [packet.track_descriptor for packet in trace.packet if packet.HasField("track_descriptor")]
    assert [track.name for track in found] == ["iree", "ort", "session", "CPU"]
    ids = {track.name: track.uuid for track in found}
    assert [track.parent_uuid for track in found] == [0, 0, ids["ort"], ids["ort"]]
    assert [track.sibling_order_rank for track in found] == [0, 1, 2, 3]
    assert {track.child_ordering for track in found} == {3}
    assert trace.packet[0].sequence_flags == 1
    assert {packet.sequence_flags for packet in trace.packet[1:]} == {0}
    assert trace.packet[-1].HasField("track_event")


def test_perfetto_of_nothing_is_empty_ids_do_not_depend_on_the_file_and_times_begin_at_0():
    assert render_perfetto([]) == b""
    one, two = (decode(render_perfetto(slices)).packet[0] for slices in (SLICES[:1], SLICES[:2]))
    assert one.track_descriptor.uuid == two.track_descriptor.uuid != 0
    (found,) = read_back(render_perfetto([Slice(("a",), "x", -5, 10)]))
    assert (found.start_ns, found.end_ns) == (0, 15)


def test_overlapping_slices_get_lanes_of_the_same_name():
    overlapping = [Slice(("t",), str(number), 10 * number, 10 * number + 25) for number in range(5)]
    assert plain(read_back(render_perfetto(overlapping))) == plain(overlapping)
    trace = decode(render_perfetto(overlapping))
    tracks = [packet.track_descriptor for packet in trace.packet if packet.HasField("track_descriptor")]
    assert [track.name for track in tracks] == ["t", "t", "t"]
    assert len({track.uuid for track in tracks}) == 3


def test_odd_texts_and_numbers():
    args = {"n": math.nan, "big": 2**70, "list": [1, math.inf], "none": None, "odd": "\ud800", "empty": ""}
    (found,) = read_back(render_perfetto([Slice(("größe",), "数据 \x00 \udcff", 2**62, 2**62 + 1, args)]))
    assert found.track == ("größe",)
    assert found.name == "数据 \x00 ?"
    assert found.start_ns == 2**62
    assert math.isnan(found.args["n"])
    assert found.args["big"] == str(2**70)
    assert json.loads(found.args["list"]) == [1, "Infinity"]
    assert found.args["odd"] == "?"
    assert found.args["empty"] == ""
    assert found.args["none"] == "null"


times = st.integers(0, 60)
some_slices = st.lists(
    st.builds(
        lambda track, name, start, length, args: Slice(track, name, start, start + length, args),
        st.sampled_from([("a",), ("a", "b"), ("a", "c"), ("d", "b")]),
        st.text(st.characters(codec="utf-8"), max_size=3),
        times,
        times,
        st.dictionaries(
            st.text(max_size=3), st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=3), max_size=2
        ),
    ),
    max_size=30,
)


@given(some_slices)
def test_any_slices_survive_and_in_a_lane_they_are_nested_or_apart(slices):
    assert plain(read_back(render_perfetto(slices))) == plain(slices)
    lanes = build_lanes(slices)
    assert plain([piece for lane in lanes for piece in lane.slices]) == plain(slices)
    for lane in lanes:
        for index, one in enumerate(lane.slices):
            for other in lane.slices[index + 1 :]:
                assert other.start_ns >= one.end_ns or other.end_ns <= one.end_ns
    for track in {piece.track for piece in slices}:
        own = [piece for piece in slices if piece.track == track]
        most = max(sum(p.start_ns <= t < p.end_ns or p.start_ns == t for p in own) for t in range(121))
        assert sum(lane.track == track for lane in lanes) <= most


def test_chrome_holds_every_slice_with_its_track():
    events = json.loads(render_chrome(SLICES))["traceEvents"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    found = [
        (processes[e["pid"]], threads[e["pid"], e["tid"]], e["name"], e["ts"], e["dur"])
        for e in events
        if e["ph"] == "X"
    ]
    assert sorted(found) == [
        ("iree", "iree", "dispatch", 0.0, 0.0),
        ("ort", "CPU", "conv1", 1.0, 4.0),
        ("ort", "CPU", "inner", 2.0, 1.0),
        ("ort", "session", "run", 0.5, 8.5),
    ]
    (conv,) = [e for e in events if e["name"] == "conv1"]
    assert conv["args"] == {"op": "Conv", "bytes": 2304, "share": 0.5, "hot": True}


def test_chrome_times_keep_their_nanoseconds_and_lanes_have_names_of_their_own():
    base = 1_900_000_000_000_000_000
    slices = [Slice(("a", "b"), "x", base, base + 8), Slice(("a", "b"), "y", base + 7, base + 9)]
    content = json.loads(render_chrome(slices))
    events = {e["name"]: e for e in content["traceEvents"] if e["ph"] == "X"}
    assert content["otherData"]["start_ns"] == base
    assert (events["y"]["ts"], events["y"]["dur"]) == (0.007, 0.002)
    names = [e["args"]["name"] for e in content["traceEvents"] if e["name"] == "thread_name"]
    assert names == ["b", "b (2)"]


def test_chrome_is_json_whatever_a_tool_says():
    odd = [Slice(("a",), "\ud800", 0, 1, {"x": math.nan, "y": object, "z": [math.inf]})]
    content = json.loads(render_chrome(odd), parse_constant=pytest.fail)
    (event,) = [e for e in content["traceEvents"] if e["ph"] == "X"]
    assert event["args"]["x"] == "NaN"
    assert json.loads(render_chrome([]))["traceEvents"] == []


def test_csv_is_in_the_order_of_time():
    rows = list(csv.DictReader(io.StringIO(render_slices_csv(SLICES))))
    assert [row["name"] for row in rows] == ["dispatch", "run", "conv1", "inner"]
    assert rows[2] == {
        "track": "ort / CPU",
        "name": "conv1",
        "start_ns": "1000",
        "end_ns": "5000",
        "duration_ns": "4000",
        "args": '{"op": "Conv", "bytes": 2304, "share": 0.5, "hot": true}',
    }
    assert rows[3]["args"] == ""
    assert render_slices_csv([]) == "track,name,start_ns,end_ns,duration_ns,args\n"
    (row,) = csv.DictReader(io.StringIO(render_slices_csv([Slice(("a,b",), 'x"\ny', 0, 1)])))
    assert (row["track"], row["name"]) == ("a,b", 'x"\ny')


def test_a_slice_does_not_end_before_it_begins():
    with pytest.raises(ValueError, match="'x' ends 1 ns before it begins"):
        Slice(("a",), "x", 5, 4)
    assert Slice(("a",), "x", 5, 5).duration_ns == 0
