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
from datetime import datetime
from typing import Any, NamedTuple

from assay.system.files import parse_json
from assay.values import protobuf
from assay.values.protobuf import read_fields

_PLANE, _TRACE = ".xplane.pb", ".trace.json.gz"


def arrange_profiles(folder: str, host: str) -> list[str]:
    """Move the Chrome traces in the folder to where they belong; what could not be read stays, and is described."""
    found = sorted(os.path.join(base, name) for base, _, names in os.walk(folder) for name in names)
    bare = [path for path in found if path.endswith(_PLANE) and path.removesuffix(_PLANE) + _TRACE not in found]
    traces = [path for path in found if path.endswith(".json") and os.path.dirname(path) == folder]
    problems = [*map(_add_trace, bare), *(_arrange(path, host) for path in traces)]
    return [problem for problem in problems if problem]


def _add_trace(plane: str) -> str | None:
    try:
        with open(plane, "rb") as file:
            trace = build_trace(file.read())
    except (OSError, ValueError) as error:
        return f"the profile {plane} has no Chrome trace: {error}"
    with gzip.open(plane.removesuffix(_PLANE) + _TRACE, "wt", compresslevel=5, encoding="utf-8") as packed:
        json.dump(trace, packed)
    return None


def _arrange(source: str, host: str) -> str | None:
    folder, name = os.path.split(source)
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
Calls = list[tuple[float, float, str]]  # of a thread: begin and duration in microseconds, and the name


def render_xspace(trace: Mapping[str, Any] | Events, host: str) -> bytes | None:
    """An XSpace; None without any call. Complete events (`X`) and pairs of begin and end (`B`, `E`) count."""
    events = trace.get("traceEvents") if isinstance(trace, Mapping) else trace
    threads = _find_calls(events if isinstance(events, Sequence) else [])
    if not threads:
        return None
    every = [call for calls in threads.values() for call in calls]
    began = min(begin for begin, _, _ in every)
    ids = {name: number for number, name in enumerate(sorted({name for _, _, name in every}), 1)}
    lines = [_render_line(number, *thread, began, ids) for number, thread in enumerate(threads.items(), 1)]
    plane = protobuf.number(1, 1) + protobuf.text(2, HOST_PLANE) + b"".join(protobuf.message(3, line) for line in lines)
    for name, number in ids.items():
        metadata = protobuf.number(1, number) + protobuf.text(2, name)
        plane += protobuf.message(4, protobuf.number(1, number) + protobuf.message(2, metadata))
    return protobuf.message(1, plane) + protobuf.text(4, host)


def _find_calls(events: Events) -> dict[str, Calls]:
    """The calls of each thread, by its name."""
    calls: dict[tuple[str, str], Calls] = {}
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
            calls.setdefault(key, []).append((at, float(event.get("dur") or 0), name))
        elif kind == "B":
            begun.setdefault(key, []).append((at, name))
        elif kind == "E" and begun.get(key):
            since, opened = begun[key].pop()
            calls.setdefault(key, []).append((since, at - since, opened))
    return {f"{titles.get(key) or 'thread'} {'/'.join(key)}": each for key, each in calls.items()}


def _render_line(number: int, name: str, calls: Calls, began: float, ids: Mapping[str, int]) -> bytes:
    ordered = sorted(calls, key=lambda call: (call[0], -call[1]))  # a caller before what it calls
    events = [
        protobuf.number(1, ids[called])
        + protobuf.number(2, max(0, round((begin - began) * _PS_PER_US)))
        + protobuf.number(3, max(0, round(duration * _PS_PER_US)))
        for begin, duration, called in ordered
    ]
    head = protobuf.number(1, number) + protobuf.text(2, name) + protobuf.number(10, number) + protobuf.text(11, name)
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


class _Thread(NamedTuple):
    number: int
    name: str
    calls: list[tuple[int, int, int]]  # begin and duration in ps, id of the name


def build_trace(data: bytes) -> Trace:
    """Raises ValueError for an invalid file, or one that is cut off."""
    events: list[Trace] = []
    found: list[tuple[int, _Thread, dict[int, str]]] = []
    planes = [content for number, content in _iterate(memoryview(data)) if number == 1]
    for process, plane in enumerate(planes, 1):
        title, names, threads = _parse_plane(plane)
        if threads:
            events.append(_describe("process_name", process, 0, title))
            found += [(process, thread, names) for thread in threads]
    began = min((begin for _, thread, _ in found for begin, _, _ in thread.calls), default=0)
    for process, thread, names in found:
        events.append(_describe("thread_name", process, thread.number, thread.name))
        for begin, duration, name in thread.calls:
            times = {"ts": (begin - began) / _PS_PER_US, "dur": duration / _PS_PER_US}
            events.append(
                {"ph": "X", "name": names.get(name, str(name)), "pid": process, "tid": thread.number, **times}
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _describe(what: str, process: int, thread: int, name: str) -> Trace:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _parse_plane(data: memoryview) -> tuple[str, dict[int, str], list[_Thread]]:
    """Only threads with calls: a plane of mere facts has none."""
    title, names, threads = "", {}, []
    for number, content in _iterate(data):
        if number == 2:
            title = _text(content)
        elif number == 3:
            threads.append(_parse_line(content))
        elif number == 4:
            entry = dict(_iterate(content))
            named = dict(_iterate(entry.get(2, memoryview(b""))))
            names[_number(entry.get(1, 0))] = _text(named.get(4) or named.get(2) or memoryview(b""))
    return title, names, [thread for thread in threads if thread.calls]


def _parse_line(data: memoryview) -> _Thread:
    events: list[dict[int, Any]] = []
    fields: dict[int, Any] = {}
    for number, content in _iterate(data):
        if number == 4:
            events.append(dict(_iterate(content)))
        else:
            fields[number] = content
    base_ps = _number(fields.get(3, 0)) * _PS_PER_NS
    parts = [[_number(event.get(number, 0)) for number in (2, 3, 1)] for event in events if not event.get(5)]
    name = _text(fields.get(11) or fields.get(2) or memoryview(b""))
    return _Thread(
        _number(fields.get(1, 0)), name, [(base_ps + begin, took, name_id) for begin, took, name_id in parts]
    )


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
