"""TensorFlow's own profile (`XSpace` of xplane.proto) as a Chrome trace, read without protobuf.

    XSpace          1: planes*
    XPlane          2: name  3: lines*  4: event_metadata (map of 1: id, 2: metadata)
    XLine           1: id  2: name  3: timestamp_ns  4: events*  11: display_name
    XEvent          1: metadata_id  2: offset_ps  3: duration_ps  5: num_occurrences (a sum, and no call)
    XEventMetadata  2: name  4: display_name

A plane (the host's CPUs, a GPU) is a process of the trace, a line a thread. Time begins with the first call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from assay.values.protobuf import read_fields

_PS_PER_US = 1_000_000
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
    """Raises ValueError for what is no such file, or one that is cut off."""
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
    """A field may be there and be of another kind: then this is somebody else's file."""
    if not isinstance(content, memoryview):
        raise ValueError("no profile of TensorFlow")  # noqa: TRY004 what it holds is wrong, not what we were given
    return content


def _number(content: Any) -> int:
    if not isinstance(content, int):
        raise ValueError("no profile of TensorFlow")  # noqa: TRY004
    return content


def _iterate(content: Any) -> Fields:
    return ((number, value) for number, _, value in read_fields(_message(content)))
