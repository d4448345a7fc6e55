"""profiler_data/ as TensorBoard's profile tab expects it.

    plugins/profile/<session>/<host>.xplane.pb        what the tab opens; TensorFlow writes it there by itself
    plugins/profile/<session>/<host>.trace.json.gz    the same for Chrome's about:tracing and ui.perfetto.dev

Every window is a session. Traces of torch, py-spy and of our own sampler come as plain Chrome traces and are put there;
for TensorFlow's the Chrome trace is made.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from assay.system.files import parse_json
from assay.values import protobuf
from assay.values.protobuf import read_fields

_PLANE, _TRACE = ".xplane.pb", ".trace.json.gz"


def arrange_profiles(folder: str, host: str) -> list[str]:
    """Move the Chrome traces in the folder to where they belong; what could not be read stays, and is described."""
    problems = [problem for plane in _find_bare_planes(folder) if (problem := _add_trace(plane))]
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if name.endswith(".json"):
            problem = _arrange(folder, name, host)
            problems += [problem] if problem else []
    return problems


def _find_bare_planes(folder: str) -> list[str]:
    """Planes without a Chrome trace next to them."""
    found = [os.path.join(base, name) for base, _, names in os.walk(folder) for name in names if name.endswith(_PLANE)]
    return sorted(path for path in found if not os.path.exists(path.removesuffix(_PLANE) + _TRACE))


def _add_trace(plane: str) -> str | None:
    try:
        with open(plane, "rb") as file:
            trace = build_trace(file.read())
    except (OSError, ValueError) as error:
        return f"the profile {plane} has no Chrome trace: {error}"
    with gzip.open(plane.removesuffix(_PLANE) + _TRACE, "wt", compresslevel=5, encoding="utf-8") as packed:
        json.dump(trace, packed)
    return None


def _arrange(folder: str, name: str, host: str) -> str | None:
    source = os.path.join(folder, name)
    try:
        with open(source, "rb") as file:
            data = file.read()
        trace = parse_json(data)
    except (OSError, ValueError) as error:
        return f"the profile {source} cannot be read: {error}"
    # named by the time, as TensorFlow's are, and by the profiler: 2026_03_01_12_00_00_torch-1
    moment = datetime.fromtimestamp(os.stat(source).st_mtime)  # noqa: DTZ006 local time, as TensorFlow does
    session_name = f"{moment:%Y_%m_%d_%H_%M_%S}_{name.removesuffix('.json')}"
    session = os.path.join(folder, "plugins", "profile", session_name)
    os.makedirs(session)
    with gzip.open(os.path.join(session, host + _TRACE), "wb", compresslevel=5) as packed:
        packed.write(data)
    space = render_xspace(trace, host)
    if space is not None:
        with open(os.path.join(session, host + _PLANE), "wb") as plane:
            plane.write(space)
    os.unlink(source)
    return None


# ---------------------------------------------------------------- writing xplane.proto
# A Chrome trace as TensorBoard's profile tab reads profiles: `XSpace` of xplane.proto, written without protobuf.
#
#     XSpace          1: planes*  4: hostnames*
#     XPlane          1: id  2: name  3: lines*  4: event_metadata (map)
#     XLine           1: id  2: name  4: events*  10: display_id  11: display_name
#     XEvent          1: metadata_id  2: offset_ps  3: duration_ps
#     XEventMetadata  1: id  2: name
#
# One plane holds everything, under the name that TensorFlow gives to what happens on the host's CPUs; a line is a
# thread. Time begins with the first call.

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
    plane = protobuf.number(1, 1) + protobuf.text(2, HOST_PLANE) + b"".join(protobuf.message(3, line) for line in lines)
    for name, number in ids.items():
        metadata = protobuf.number(1, number) + protobuf.text(2, name)
        plane += protobuf.message(4, protobuf.number(1, number) + protobuf.message(2, metadata))
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


# ---------------------------------------------------------------- reading xplane.proto
# TensorFlow's own profile (`XSpace` of xplane.proto) as a Chrome trace, read without protobuf.
#
#     XSpace          1: planes*
#     XPlane          2: name  3: lines*  4: event_metadata (map of 1: id, 2: metadata)
#     XLine           1: id  2: name  3: timestamp_ns  4: events*  11: display_name
#     XEvent          1: metadata_id  2: offset_ps  3: duration_ps  5: num_occurrences (a sum, and no call)
#     XEventMetadata  2: name  4: display_name
#
# A plane (the host's CPUs, a GPU) is a process of the trace, a line a thread. Time begins with the first call.

_PS_PER_NS = 1_000

Trace = dict[str, Any]
Fields = Iterator[tuple[int, Any]]


@dataclass(slots=True)
class _Thread:
    process: int
    number: int
    name: str = ""
    calls: list[tuple[int, int, int]] = field(default_factory=list)  # begin and duration in ps, id of the name


def build_trace(data: bytes) -> Trace:
    """Raises ValueError for an invalid file, or one that is cut off."""
    events: list[Trace] = []
    found: list[tuple[_Thread, dict[int, str]]] = []
    planes = [content for number, content in _iterate(memoryview(data)) if number == 1]
    for process, plane in enumerate(planes, 1):
        name, names, threads = _parse_plane(plane, process)
        if threads:
            events.append(_describe("process_name", process, 0, name))
            found += [(thread, names) for thread in threads]
    began = min((begin for thread, _ in found for begin, _, _ in thread.calls), default=0)
    for thread, names in found:
        events.append(_describe("thread_name", thread.process, thread.number, thread.name))
        events += [_build_call(thread, names, call, began) for call in thread.calls]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _describe(what: str, process: int, thread: int, name: str) -> Trace:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _build_call(thread: _Thread, names: dict[int, str], call: tuple[int, int, int], began: int) -> Trace:
    begin, duration, name = call
    return {
        "ph": "X",
        "name": names.get(name, str(name)),
        "pid": thread.process,
        "tid": thread.number,
        "ts": (begin - began) / _PS_PER_US,
        "dur": duration / _PS_PER_US,
    }


# ---------------------------------------------------------------- the messages


def _parse_plane(data: memoryview, process: int) -> tuple[str, dict[int, str], list[_Thread]]:
    """Only threads with calls: a plane of mere facts has none."""
    title, names, threads = "", {}, []
    for number, content in _iterate(data):
        if number == 2:
            title = _text(content)
        elif number == 3:
            threads.append(_parse_line(content, process))
        elif number == 4:
            entry = dict(_iterate(content))
            names[_number(entry.get(1, 0))] = _parse_name(entry.get(2, memoryview(b"")))
    return title, names, [thread for thread in threads if thread.calls]


def _parse_name(data: memoryview) -> str:
    fields = {number: content for number, content in _iterate(data) if number in (2, 4)}
    return _text(fields.get(4) or fields.get(2) or memoryview(b""))


def _parse_line(data: memoryview, process: int) -> _Thread:
    thread, shown, base_ps = _Thread(process, 0), "", 0
    raw: list[dict[int, Any]] = []
    for number, content in _iterate(data):
        if number == 1:
            thread.number = _number(content)
        elif number == 2:
            thread.name = _text(content)
        elif number == 3:
            base_ps = _number(content) * _PS_PER_NS
        elif number == 4:
            raw.append(dict(_iterate(content)))
        elif number == 11:
            shown = _text(content)
    thread.name = shown or thread.name
    for event in raw:
        name, begin, duration = (_number(event.get(number, 0)) for number in (1, 2, 3))
        if not event.get(5):
            thread.calls.append((base_ps + begin, duration, name))
    return thread


def _text(content: Any) -> str:
    return bytes(_message(content)).decode("utf-8", "replace")


def _message(content: Any) -> memoryview:
    """A field may be there and be of another kind: then another program wrote the file."""
    if not isinstance(content, memoryview):
        raise ValueError("no profile of TensorFlow")  # noqa: TRY004 what it holds is wrong, not what we were given
    return content


def _number(content: Any) -> int:
    if not isinstance(content, int):
        raise ValueError("no profile of TensorFlow")  # noqa: TRY004
    return content


def _iterate(content: Any) -> Fields:
    return ((number, value) for number, _, value in read_fields(_message(content)))
