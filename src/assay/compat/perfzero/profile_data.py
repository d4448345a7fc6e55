"""The folder profiler_data/ in the layout of TensorBoard's profile tab.

    plugins/profile/<session>/<host>.xplane.pb        the file that the tab opens; TensorFlow itself writes this file
    plugins/profile/<session>/<host>.trace.json.gz    the profile for Chrome's about:tracing and ui.perfetto.dev

Every profiled window is a session. Traces of torch, py-spy and Assay's sampler are plain Chrome traces, which are moved
into sessions and converted; TensorFlow's profiles are converted to Chrome traces.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeGuard, cast

from assay.system.files import parse_json
from assay.values import protobuf
from assay.values.protobuf import read_fields

_PLANE, _TRACE = ".xplane.pb", ".trace.json.gz"


def arrange_profiles(folder: str, host: str) -> list[str]:
    """Move the Chrome traces in the folder into sessions. Unreadable files stay; return messages about them."""
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
    # sessions are named by time, as TensorFlow's are, and profiler: 2026_03_01_12_00_00_torch-1
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
# TensorBoard's profile tab reads a trace as the message `XSpace` of xplane.proto, written here without protobuf.
#
#     XSpace          1: planes*  4: hostnames*
#     XPlane          1: id  2: name  3: lines*  4: event_metadata (map)
#     XLine           1: id  2: name  4: events*  10: display_id  11: display_name
#     XEvent          1: metadata_id  2: offset_ps  3: duration_ps
#     XEventMetadata  1: id  2: name
#
# There is one plane, with TensorFlow's name for events on the CPUs of the host; a line is a thread. Time begins with
# the first call.

HOST_PLANE = "/host:CPU"
_PS_PER_US = 1_000_000
_MOST_US = 1e18

Events = Sequence[Mapping[str, Any]]
Calls = list[tuple[float, float, str]]  # calls of a thread: begin and duration in microseconds, and the name


def render_xspace(trace: Mapping[str, Any] | Events, host: str) -> bytes | None:
    """Render complete events (`X`) and pairs of begin and end (`B`, `E`) as an XSpace; None if there are no events."""
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
    """Return the calls of each thread by its name."""
    calls: dict[tuple[str, str], Calls] = {}
    begun: dict[tuple[str, str], list[tuple[float, str]]] = {}
    titles: dict[tuple[str, str], str] = {}
    for event in (event for event in events if isinstance(event, Mapping)):
        key, kind = (str(event.get("pid")), str(event.get("tid"))), event.get("ph")
        name, at, took, about = str(event.get("name", "")), event.get("ts"), event.get("dur") or 0, event.get("args")
        if kind == "M" and name == "thread_name":
            titles[key] = str(about.get("name", "")) if isinstance(about, Mapping) else ""
        elif not _is_time(at):
            continue
        elif kind == "X" and _is_time(took):
            calls.setdefault(key, []).append((at, took, name))
        elif kind == "B":
            begun.setdefault(key, []).append((at, name))
        elif kind == "E" and begun.get(key):
            since, opened = begun[key].pop()
            calls.setdefault(key, []).append((since, at - since, opened))
    return {f"{titles.get(key) or 'thread'} {'/'.join(key)}": each for key, each in calls.items()}


def _is_time(value: object) -> TypeGuard[float]:
    """Return whether a value of JSON is a number that can be a time: not NaN, and not beyond all dates."""
    return isinstance(value, (int, float)) and abs(value) < _MOST_US


def _render_line(number: int, name: str, calls: Calls, began: float, ids: Mapping[str, int]) -> bytes:
    ordered = sorted(calls, key=lambda call: (call[0], -call[1]))  # callers come before their callees
    events = [
        protobuf.number(1, ids[called])
        + protobuf.number(2, max(0, round((begin - began) * _PS_PER_US)))
        + protobuf.number(3, max(0, round(duration * _PS_PER_US)))
        for begin, duration, called in ordered
    ]
    head = protobuf.number(1, number) + protobuf.text(2, name) + protobuf.number(10, number) + protobuf.text(11, name)
    return head + b"".join(protobuf.message(4, event) for event in events)


# ---------------------------------------------------------------- reading xplane.proto
# TensorFlow's own profile (`XSpace` of xplane.proto) as a Chrome trace, read without protobuf. The tables have the
# needed fields of each message: number, name, and `int`, `str`, another message, or a list. A plane (the host's CPUs,
# a GPU) becomes a process of the trace, a line a thread. Time begins with the first call.

_EVENT = {1: ("name", int), 2: ("begin_ps", int), 3: ("took_ps", int), 5: ("occurrences", int)}  # 5: a sum of calls
_LINE = {1: ("id", int), 2: ("name", str), 3: ("begin_ns", int), 4: ("events", [_EVENT]), 11: ("display", str)}
_METADATA = {1: ("id", int), 2: ("metadata", {2: ("name", str), 4: ("display", str)})}
_SPACE = {1: ("planes", [{2: ("name", str), 3: ("lines", [_LINE]), 4: ("names", [_METADATA])}])}
_PS_PER_NS = 1_000

Trace = dict[str, Any]


def build_trace(data: bytes) -> Trace:
    """Convert TensorFlow's profile to a Chrome trace. Raise ValueError if it is invalid or incomplete."""
    processes: list[Trace] = []
    threads: list[tuple[Trace, list[tuple[int, int, str]]]] = []  # description and calls of each thread
    for process, plane in enumerate(_parse(memoryview(data), _SPACE)["planes"], 1):
        names = {each["id"]: each["metadata"]["display"] or each["metadata"]["name"] for each in plane["names"]}
        found = [(line, _list_calls(line, names)) for line in plane["lines"]]
        found = [(line, calls) for line, calls in found if calls]  # a plane may have only metadata
        if found:
            processes.append(_describe("process_name", process, 0, plane["name"]))
        for line, calls in found:
            threads.append((_describe("thread_name", process, line["id"], line["display"] or line["name"]), calls))
    began = min((begin for _, calls in threads for begin, _, _ in calls), default=0)
    events = processes
    for thread, calls in threads:
        where = {"pid": thread["pid"], "tid": thread["tid"]}
        events.append(thread)
        for begin, took, name in calls:
            times = {"ts": (begin - began) / _PS_PER_US, "dur": took / _PS_PER_US}
            events.append({"ph": "X", "name": name, **where, **times})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _list_calls(line: Trace, names: Mapping[int, str]) -> list[tuple[int, int, str]]:
    """Return the start and duration in ps, and the name, of each call."""
    base_ps = line["begin_ns"] * _PS_PER_NS
    return [
        (base_ps + event["begin_ps"], event["took_ps"], names.get(event["name"], str(event["name"])))
        for event in line["events"]
        if not event["occurrences"]
    ]


def _describe(what: str, process: int, thread: int, name: str) -> Trace:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _parse(data: memoryview, fields: Mapping[int, tuple[str, Any]]) -> dict[str, Any]:
    """Parse a message to a dict by field name. Raises ValueError for a field of a type that TensorFlow does not use."""
    found: dict[str, Any] = {}
    for name, kind in fields.values():
        found[name] = kind() if isinstance(kind, type) else [] if isinstance(kind, list) else _parse(data[:0], kind)
    for number, _, value in read_fields(data):
        if number not in fields:
            continue
        (name, kind), content = fields[number], cast("Any", value)
        if not isinstance(value, int if kind is int else memoryview):
            raise ValueError("no profile of TensorFlow")  # noqa: TRY004 the content is wrong, not our argument
        if isinstance(kind, list):
            found[name].append(_parse(content, kind[0]))
        elif isinstance(kind, type):
            found[name] = content if kind is int else bytes(content).decode("utf-8", "replace")
        else:
            found[name] = _parse(content, kind)
    return found
