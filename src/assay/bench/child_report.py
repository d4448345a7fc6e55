"""Reads report.jsonl, the lines that the process of a benchmark wrote before it ended, by a crash or otherwise."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from assay.bench.values.execution import ChildReport
from assay.system.files import list_names, parse_json, try_text
from assay.values.protobuf import read_fields, to_signed


def parse_child_report(text: str) -> ChildReport:
    """Parse a report. A line that is cut off or is not JSON is reported as a problem; the other lines count."""
    lines = [_parse_line(line) for line in text.splitlines()]
    problems = [f"line {number} of its report cannot be read" for number, line in enumerate(lines, 1) if line is None]
    begins, reports, ends = (
        tuple(line for line in lines if line and line["kind"] == kind) for kind in ("begin", "report", "end")
    )
    return ChildReport(begins[-1] if begins else None, reports, ends[-1] if ends else None, tuple(problems))


def _parse_line(line: str) -> dict[str, Any] | None:
    try:
        fields = parse_json(line)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and "kind" in fields else None


def load_root(path: str) -> int | None:
    """Return the first process of a benchmark, from the lines that its child has written so far: the child itself, or
    the command that our wrapper has started, which a second line reports. None if neither has been reported yet."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(4096).splitlines()
    except OSError:
        return None
    for line in lines:
        fields = _parse_line(line)
        if fields is None:
            return None
        if isinstance(pid := fields.get("pid"), int) and "wrapper_rss" not in fields:
            return pid
    return None


def load_child_report(path: str, tf_prefix: str | None = None) -> ChildReport:
    """Load the child's lines; if there are none, the file that TensorFlow's own report_benchmark wrote."""
    reported = parse_child_report(try_text(path, "replace"))
    if reported.reports or tf_prefix is None:
        return reported
    reports, problems = _load_entries(tf_prefix)
    return ChildReport(reported.begin, tuple(reports), reported.end, (*reported.problems, *problems))


def _load_entries(prefix: str) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Load the entries of all files with a prefix, sorted by file name; return also the problems of the files."""
    folder, start = os.path.split(prefix)
    reports: list[Mapping[str, Any]] = []
    problems = []
    for name in sorted(name for name in list_names(folder) if name.startswith(start)):
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read()
        try:
            reports += parse_benchmark_entries(data)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    return reports, problems


# ---------------------------------------------------------------- TensorFlow's BenchmarkEntries, read without protobuf
#
# BenchmarkEntries is a list of entries, field 1. An absent number is zero.

Fields = Mapping[int, tuple[str, Callable[[int | bytes], Any]]]  # number → name, and the parser of the content


def parse_benchmark_entries(data: bytes) -> list[dict[str, Any]]:
    """Parse entries into keyword arguments of `report_benchmark`. Raises ValueError for an invalid message."""
    entries = []
    for found in (list(_read(_as_bytes(content), _ENTRY)) for number, _, content in read_fields(data) if number == 1):
        entry = {name: value for name, value in found if name not in ("extra", "metric")}
        extras = [value for name, value in found if name == "extra"]
        entry["extras"] = {extra.get("name", ""): extra.get("value", 0.0) for extra in extras}
        entry["metrics"] = [{"name": "", "value": 0.0, **value} for name, value in found if name == "metric"]
        entries.append(entry)
    return entries


def _read(data: bytes, fields: Fields) -> Iterator[tuple[str, Any]]:
    """Yield the name and the parsed content of each known field of a message."""
    for number, _, content in read_fields(data):
        if number in fields:
            name, parse = fields[number]
            yield name, parse(content)


def _as_bytes(content: int | bytes) -> bytes:
    if isinstance(content, int):
        raise ValueError("not a benchmark report: a number where a message is expected")  # noqa: TRY004 a bad file
    return content


def _as_text(content: int | bytes) -> str:
    return _as_bytes(content).decode("utf-8", "replace")


def _as_double(content: int | bytes) -> float:
    data = _as_bytes(content)
    if len(data) != 8:
        raise ValueError("not a benchmark report: a number of the wrong size")
    number: float = struct.unpack("<d", data)[0]
    return number


def _as_signed(content: int | bytes) -> int:
    if not isinstance(content, int):
        raise ValueError("not a benchmark report: a message where a number is expected")  # noqa: TRY004 a bad file
    return to_signed(content)


def _as_value(content: int | bytes) -> float | str:
    """Read an EntryValue, or a DoubleValue, which is an EntryValue without text."""
    found: float | str = dict(_read(_as_bytes(content), _VALUE)).get("value", 0.0)
    return found


_VALUE: Fields = {1: ("value", _as_double), 2: ("value", _as_text)}
_EXTRA: Fields = {1: ("name", _as_text), 2: ("value", _as_value)}
_METRIC: Fields = {
    1: ("name", _as_text), 2: ("value", _as_double), 3: ("min_value", _as_value), 4: ("max_value", _as_value),
}  # fmt: skip
_ENTRY: Fields = {
    1: ("name", _as_text), 2: ("iters", _as_signed), 3: ("cpu_time", _as_double), 4: ("wall_time", _as_double),
    5: ("throughput", _as_double), 6: ("extra", lambda content: dict(_read(_as_bytes(content), _EXTRA))),
    7: ("metric", lambda content: dict(_read(_as_bytes(content), _METRIC))),
}  # fmt: skip
