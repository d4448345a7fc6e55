"""report.jsonl: what the child of a benchmark wrote before it ended, however it ended."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from typing import Any

from assay.bench.values.execution import ChildReport
from assay.system.files import list_names, parse_json
from assay.values.protobuf import read_fields


def parse_child_report(text: str) -> ChildReport:
    """A line that is cut off or is not JSON is reported as a problem; the others count."""
    begin: Mapping[str, Any] | None = None
    end: Mapping[str, Any] | None = None
    reports: list[Mapping[str, Any]] = []
    problems: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = _parse_line(line)
        if fields is None:
            problems.append(f"line {number} of its report cannot be read")
        elif fields["kind"] == "begin":
            begin = fields
        elif fields["kind"] == "end":
            end = fields
        elif fields["kind"] == "report":
            reports.append(fields)
    return ChildReport(begin, tuple(reports), end, tuple(problems))


def _parse_line(line: str) -> dict[str, Any] | None:
    try:
        fields = parse_json(line)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and "kind" in fields else None


def load_root(path: str) -> int | None:
    """The first process of a benchmark, from what its child has written so far: the child itself, or the command that
    our wrapper has started (which says so in a second line). None where it has not been reported yet."""
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
    """The child's lines, and where it has none, the file that TensorFlow's own report_benchmark wrote."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            reported = parse_child_report(file.read())
    except OSError:
        reported = ChildReport()
    if reported.reports or tf_prefix is None:
        return reported
    reports, problems = _load_entries(tf_prefix)
    return ChildReport(reported.begin, tuple(reports), reported.end, (*reported.problems, *problems))


def _load_entries(prefix: str) -> tuple[list[Mapping[str, Any]], list[str]]:
    """All of them: the first entry of the first file is the benchmark's own, as in PerfZero, and
    problems of the others are reported."""
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
#   BenchmarkEntries  1: entry*
#   BenchmarkEntry    1: name  2: iters  3: cpu_time  4: wall_time  5: throughput  6: extras (map)  7: metrics*
#   EntryValue        1: double_value  2: string_value
#   MetricEntry       1: name  2: value  3: min_value (DoubleValue)  4: max_value (DoubleValue)
#
# The wire format is a list of (number, kind, content); an absent number is zero.


def parse_benchmark_entries(data: bytes) -> list[dict[str, Any]]:
    """Each as the keyword arguments of `report_benchmark`. Raises ValueError for an invalid message."""
    return [_parse_entry(_as_bytes(content)) for number, _, content in read_fields(data) if number == 1]


def _parse_entry(data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"extras": {}, "metrics": []}
    plain = {2: "iters", 3: "cpu_time", 4: "wall_time", 5: "throughput"}
    for number, _, content in read_fields(data):
        if number == 1:
            entry["name"] = _as_text(content)
        elif number in plain:
            entry[plain[number]] = _as_signed(content) if number == 2 else _as_double(content)
        elif number == 6:
            key, value = _parse_extra(_as_bytes(content))
            entry["extras"][key] = value
        elif number == 7:
            entry["metrics"].append(_parse_metric(_as_bytes(content)))
    return entry


def _parse_extra(data: bytes) -> tuple[str, float | str]:
    key = ""
    value: float | str = 0.0
    for number, _, content in read_fields(data):
        if number == 1:
            key = _as_text(content)
        elif number == 2:
            for kind, _, inner in read_fields(_as_bytes(content)):
                value = _as_double(inner) if kind == 1 else _as_text(inner)
    return key, value


def _parse_metric(data: bytes) -> dict[str, Any]:
    metric: dict[str, Any] = {"name": "", "value": 0.0}
    for number, _, content in read_fields(data):
        if number == 1:
            metric["name"] = _as_text(content)
        elif number == 2:
            metric["value"] = _as_double(content)
        elif number in (3, 4):
            wrapped = [_as_double(inner) for field, _, inner in read_fields(_as_bytes(content)) if field == 1]
            metric["min_value" if number == 3 else "max_value"] = wrapped[0] if wrapped else 0.0
    return metric


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
    return content - (1 << 64) if content >= 1 << 63 else content
