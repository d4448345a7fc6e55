"""A Chrome trace as TensorBoard's profile tab reads profiles: `XSpace` of xplane.proto, written without protobuf.

    XSpace          1: planes*  4: hostnames*
    XPlane          1: id  2: name  3: lines*  4: event_metadata (map)
    XLine           1: id  2: name  4: events*  10: display_id  11: display_name
    XEvent          1: metadata_id  2: offset_ps  3: duration_ps
    XEventMetadata  1: id  2: name

One plane holds everything, under the name that TensorFlow gives to what happens on the host's CPUs; a line is a thread.
Time begins with the first call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.values import protobuf

HOST_PLANE = "/host:CPU"
_PS_PER_US = 1_000_000

Events = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class _Row:
    """One thread: its calls as (begin, duration, name), in microseconds."""

    name: str = ""
    calls: list[tuple[float, float, str]] = field(default_factory=list)


def render_xspace(trace: Mapping[str, Any] | Events, host: str) -> bytes | None:
    """None where the trace holds no call. Complete events (`X`) and pairs of begin and end (`B`, `E`) count."""
    events = trace.get("traceEvents") if isinstance(trace, Mapping) else trace
    rows = _build_rows(events if isinstance(events, Sequence) else [])
    if not rows:
        return None
    began = min(begin for row in rows.values() for begin, _, _ in row.calls)
    names = sorted({name for row in rows.values() for _, _, name in row.calls})
    ids = {name: number for number, name in enumerate(names, 1)}
    lines = [_render_line(number, row, began, ids) for number, row in enumerate(rows.values(), 1)]
    metadata = [_render_name(name, number) for name, number in ids.items()]
    plane = protobuf.number(1, 1) + protobuf.text(2, HOST_PLANE)
    plane += b"".join(protobuf.message(3, line) for line in lines) + b"".join(
        protobuf.message(4, entry) for entry in metadata
    )
    return protobuf.message(1, plane) + protobuf.text(4, host)


# ---------------------------------------------------------------- the trace


def _build_rows(events: Events) -> dict[tuple[str, str], _Row]:
    rows: dict[tuple[str, str], _Row] = {}
    begun: dict[tuple[str, str], list[tuple[float, str]]] = {}
    titles: dict[tuple[str, str], str] = {}
    for event in (event for event in events if isinstance(event, Mapping)):
        key, kind = (str(event.get("pid")), str(event.get("tid"))), event.get("ph")
        name, at = str(event.get("name", "")), event.get("ts")
        if kind == "M" and name == "thread_name":
            titles[key] = str((event.get("args") or {}).get("name", ""))
        elif not isinstance(at, (int, float)):
            continue
        elif kind == "X":
            rows.setdefault(key, _Row()).calls.append((at, float(event.get("dur") or 0), name))
        elif kind == "B":
            begun.setdefault(key, []).append((at, name))
        elif kind == "E" and begun.get(key):
            since, opened = begun[key].pop()
            rows.setdefault(key, _Row()).calls.append((since, at - since, opened))
    for (process, thread), row in rows.items():
        row.name = f"{titles.get((process, thread)) or 'thread'} {process}/{thread}"
    return rows


def _render_name(name: str, number: int) -> bytes:
    return protobuf.number(1, number) + protobuf.message(2, protobuf.number(1, number) + protobuf.text(2, name))


def _render_line(number: int, row: _Row, began: float, ids: Mapping[str, int]) -> bytes:
    calls = sorted(row.calls, key=lambda call: (call[0], -call[1]))  # a caller before what it calls
    events = [
        protobuf.number(1, ids[name])
        + protobuf.number(2, max(0, round((begin - began) * _PS_PER_US)))
        + protobuf.number(3, max(0, round(duration * _PS_PER_US)))
        for begin, duration, name in calls
    ]
    head = (
        protobuf.number(1, number)
        + protobuf.text(2, row.name)
        + protobuf.number(10, number)
        + protobuf.text(11, row.name)
    )
    return head + b"".join(protobuf.message(4, event) for event in events)
