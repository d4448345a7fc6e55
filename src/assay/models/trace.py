"""Traces for viewers: Chrome's JSON (chrome://tracing, ui.perfetto.dev), Perfetto's own protobuf, and CSV.

The protobuf is written without a library. These fields of Perfetto's `trace.proto` are used:

    Trace            1: packet*
    TracePacket      8: timestamp (ns)  10: trusted_packet_sequence_id  11: track_event  13: sequence_flags
                     60: track_descriptor
    TrackDescriptor  1: uuid  2: name  5: parent_uuid  11: child_ordering  12: sibling_order_rank
    TrackEvent       4: debug_annotations*  9: type (1 begin, 2 end)  11: track_uuid  22: categories*  23: name
    DebugAnnotation  2: bool  4: int  5: double  6: string  10: name

In both formats the slices of a track must be nested or apart. A track whose slices overlap is split into lanes:
several tracks with its name.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from assay.show.formatting import to_json
from assay.system.fast_dataclasses import dataclass, field
from assay.values import protobuf


@dataclass(frozen=True, slots=True)
class Slice:
    """A timed operation. `track` is a path, ("onnxruntime", "CPU"), whose parts are nested in a viewer; it is never
    empty."""

    track: tuple[str, ...]
    name: str
    start_ns: int
    end_ns: int
    args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.end_ns < self.start_ns:
            raise ValueError(f"{self.name!r} ends {self.start_ns - self.end_ns} ns before it begins")

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


CSV_COLUMNS = ("track", "name", "start_ns", "end_ns", "duration_ns", "args")
_TRACK_SEPARATOR = " / "
_SEQUENCE = 1
_BEGIN, _END = 1, 2
_EXPLICIT = 3  # siblings are ordered by their rank
_STATE_CLEARED = 1


@dataclass(slots=True)
class Lane:
    """Slices of one track that are nested or apart, in the order in which they begin, the outer one first."""

    track: tuple[str, ...]
    number: int
    slices: list[Slice] = field(default_factory=list)
    _open: list[int] = field(default_factory=list)  # ends of the slices that contain the next one, the innermost last

    def take(self, piece: Slice) -> bool:
        """Add a slice unless it overlaps; return whether it was added. Slices must come in the order of `_sort_key`."""
        while self._open and self._open[-1] <= piece.start_ns:
            self._open.pop()
        if self._open and piece.end_ns > self._open[-1]:
            return False
        self._open.append(piece.end_ns)
        self.slices.append(piece)
        return True


def build_lanes(slices: Sequence[Slice]) -> list[Lane]:
    """Build the lanes of tracks in the order of their first slices; each track has as few lanes as first fit gives."""
    lanes: dict[tuple[str, ...], list[Lane]] = {}
    for piece in sorted(slices, key=_sort_key):
        found = lanes.setdefault(piece.track, [])
        if not any(lane.take(piece) for lane in found):
            found.append(Lane(piece.track, len(found)))
            found[-1].take(piece)
    return [lane for found in lanes.values() for lane in found]


def _sort_key(piece: Slice) -> tuple[int, int]:
    return piece.start_ns, -piece.end_ns


def render_chrome(slices: Sequence[Slice]) -> str:
    """Render Chrome's JSON. Times begin with the first slice: microseconds since 1970 would lose digits."""
    base = min((piece.start_ns for piece in slices), default=0)
    groups: dict[str, int] = {}
    events: list[dict[str, Any]] = []
    for thread, lane in enumerate(build_lanes(slices), start=1):
        # Chrome has two levels: processes and threads
        group = lane.track[0]
        name = _TRACK_SEPARATOR.join(lane.track[1:]) or group
        name += f" ({lane.number + 1})" if lane.number else ""
        process = groups.setdefault(group, len(groups) + 1)
        ids = {"pid": process, "tid": thread}
        events.append({"ph": "M", "name": "thread_name", **ids, "args": {"name": name}})
        events.append({"ph": "M", "name": "thread_sort_index", **ids, "args": {"sort_index": thread}})
        for piece in lane.slices:
            times = {"ts": (piece.start_ns - base) / 1000, "dur": piece.duration_ns / 1000}
            args = {"args": dict(piece.args)} if piece.args else {}
            events.append({"ph": "X", "name": piece.name, "cat": piece.track[-1], **ids, **times, **args})
    named = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for name, pid in groups.items()]
    content = {"displayTimeUnit": "ns", "otherData": {"start_ns": base}, "traceEvents": [*named, *events]}
    return json.dumps(to_json(content), default=str, allow_nan=False) + "\n"


def render_perfetto(slices: Sequence[Slice]) -> bytes:
    """Render a `.pb` file that ui.perfetto.dev opens."""
    lanes = build_lanes(slices)
    shift = min(0, *(piece.start_ns for piece in slices)) if slices else 0  # timestamps are unsigned
    packets = list(_build_tracks(lanes))
    events = [event for lane in lanes for event in _build_events(lane, shift)]
    packets += [packet for _, packet in sorted(events, key=lambda event: event[0])]
    if packets:
        packets[0] += protobuf.number(13, _STATE_CLEARED)  # the sequence begins here
    return b"".join(protobuf.message(1, packet) for packet in packets)


def _build_tracks(lanes: Sequence[Lane]) -> Iterator[bytes]:
    """Build the packet of every track, parents before their children, ranked in this order."""
    known: set[tuple[tuple[str, ...], int]] = set()
    for lane in lanes:
        for depth in range(1, len(lane.track) + 1):
            ids = lane.track[:depth], lane.number if depth == len(lane.track) else 0
            if ids not in known:
                inner = protobuf.number(1, _uuid(*ids)) + protobuf.text(2, lane.track[depth - 1])
                inner += protobuf.number(5, _uuid(lane.track[: depth - 1], 0)) if depth > 1 else b""
                inner += protobuf.number(11, _EXPLICIT) + protobuf.number(12, len(known))
                known.add(ids)
                yield protobuf.number(10, _SEQUENCE) + protobuf.message(60, inner)


def _uuid(track: tuple[str, ...], lane: int) -> int:
    """Return the id of a track, which is the same in every file and never 0."""
    text = json.dumps([*track, lane])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) or 1


def _build_events(lane: Lane, shift: int) -> Iterator[tuple[int, bytes]]:
    """Yield the time and packet of each event in the order that a viewer needs, also if times are equal."""
    track = _uuid(lane.track, lane.number)

    def build(time_ns: int, kind: int, content: bytes = b"") -> tuple[int, bytes]:
        inner = protobuf.message(11, protobuf.number(9, kind) + protobuf.number(11, track) + content)
        return time_ns, protobuf.number(8, time_ns - shift) + protobuf.number(10, _SEQUENCE) + inner

    ends: list[int] = []
    for piece in lane.slices:
        while ends and ends[-1] <= piece.start_ns:
            yield build(ends.pop(), _END)
        args = b"".join(protobuf.message(4, _annotation(name, value)) for name, value in piece.args.items())
        yield build(piece.start_ns, _BEGIN, protobuf.text(22, piece.track[-1]) + protobuf.text(23, piece.name) + args)
        ends.append(piece.end_ns)
    while ends:
        yield build(ends.pop(), _END)


def _annotation(name: str, value: Any) -> bytes:
    if isinstance(value, bool):
        inner = protobuf.number(2, int(value))
    elif isinstance(value, int) and -(2**63) <= value < 2**63:
        inner = protobuf.number(4, value % 2**64)
    elif isinstance(value, float):
        inner = protobuf.double(5, value)
    else:
        inner = protobuf.text(6, value if isinstance(value, str) else json.dumps(to_json(value), default=str))
    return inner + protobuf.text(10, str(name))


def render_slices_csv(slices: Sequence[Slice]) -> str:
    """Render slices in the order of time; the last cell of a row is a JSON object with the slice's arguments."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for piece in sorted(slices, key=_sort_key):
        args = json.dumps(to_json(dict(piece.args)), ensure_ascii=False, default=str) if piece.args else ""
        track = _TRACK_SEPARATOR.join(piece.track)
        writer.writerow((track, piece.name, piece.start_ns, piece.end_ns, piece.duration_ns, args))
    return stream.getvalue()
