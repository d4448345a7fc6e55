"""TensorFlow's protobuf, read by hand; the bytes are built here by a small writer of the same wire format."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.bench.child_report import (
    load_child_report,
    load_root,
    parse_benchmark_entries,
    parse_child_report,
)


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = b""
    while True:
        byte, number = number & 0x7F, number >> 7
        out += bytes([byte | (0x80 if number else 0)])
        if not number:
            return out


def whole(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def double(number: int, value: float) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<d", value)


def inner(number: int, data: bytes | str) -> bytes:
    raw = data.encode() if isinstance(data, str) else data
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def entry(**fields: Any) -> bytes:
    data = b""
    if "name" in fields:
        data += inner(1, fields["name"])
    if "iters" in fields:
        data += whole(2, fields["iters"])
    for key, number in (("cpu_time", 3), ("wall_time", 4), ("throughput", 5)):
        if key in fields:
            data += double(number, fields[key])
    for key, value in fields.get("extras", {}).items():
        boxed = inner(2, value) if isinstance(value, str) else double(1, value)
        data += inner(6, inner(1, key) + inner(2, boxed))
    for metric in fields.get("metrics", ()):
        body = inner(1, metric["name"]) + double(2, metric["value"])
        for key, number in (("min_value", 3), ("max_value", 4)):
            if key in metric:
                body += inner(number, double(1, metric[key]) if metric[key] else b"")
        data += inner(7, body)
    return inner(1, data)


def test_a_whole_entry() -> None:
    metrics = [{"name": "acc", "value": 0.5, "min_value": 0.0, "max_value": 1.0}, {"name": "x", "value": 2.0}]
    data = entry(name="C.m", iters=2000, wall_time=1.5, throughput=3.0, extras={"a": 1.0, "b": "text"}, metrics=metrics)
    (found,) = parse_benchmark_entries(data)
    assert found["name"] == "C.m"
    assert (found["iters"], found["wall_time"], found["throughput"]) == (2000, 1.5, 3.0)
    assert found["extras"] == {"a": 1.0, "b": "text"}
    assert found["metrics"] == metrics


def test_unknown_fields_are_passed_over() -> None:
    data = inner(1, inner(1, "n") + whole(99, 7) + double(98, 1.0) + inner(97, b"x") + varint(96 << 3 | 5) + b"1234")
    assert parse_benchmark_entries(data)[0]["name"] == "n"


@given(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
def test_numbers_come_back(iters: int, wall_time: float) -> None:
    (found,) = parse_benchmark_entries(entry(iters=iters, wall_time=wall_time))
    assert (found["iters"], found["wall_time"]) == (iters, wall_time)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):  # anything else would escape
        assert isinstance(parse_benchmark_entries(data), list)


def test_a_cut_file_is_refused() -> None:
    data = entry(name="C.m", wall_time=1.5)
    for end in range(1, len(data)):
        with pytest.raises(ValueError, match="cut off"):
            parse_benchmark_entries(data[:end])


# ---------------------------------------------------------------- report.jsonl


def test_the_lines_are_read_in_order() -> None:
    reported = parse_child_report(
        '{"kind":"begin","pid":1}\n{"kind":"report","wall_time":1}\n{"kind":"end","ok":true}\n'
    )
    assert reported.begin == {"kind": "begin", "pid": 1}
    assert [report["wall_time"] for report in reported.reports] == [1]
    assert reported.end is not None


def test_a_torn_line_is_named_and_costs_no_other() -> None:
    reported = parse_child_report('{"kind":"report","wall_time":1}\n{"kind":"rep')
    assert len(reported.reports) == 1
    assert reported.problems == ("line 2 of its report cannot be read",)


def test_tensorflow_s_file_counts_where_there_is_no_line(tmp_path: Any) -> None:
    (tmp_path / "proto_C.m").write_bytes(entry(name="C.m", wall_time=4.0))
    reported = load_child_report(str(tmp_path / "report.jsonl"), str(tmp_path / "proto_"))
    assert reported.reports[0]["wall_time"] == 4.0
    (tmp_path / "report.jsonl").write_text('{"kind":"report","wall_time":1}\n')
    assert load_child_report(str(tmp_path / "report.jsonl"), str(tmp_path / "proto_")).reports[0]["wall_time"] == 1


def test_every_entry_of_tensorflow_s_is_there(tmp_path: Any) -> None:
    (tmp_path / "proto_a").write_bytes(entry(name="a", wall_time=4.0) + entry(name="b", wall_time=5.0))
    (tmp_path / "proto_b").write_bytes(entry(name="c", wall_time=6.0))
    reported = load_child_report(str(tmp_path / "report.jsonl"), str(tmp_path / "proto_"))
    assert [(report["name"], report["wall_time"]) for report in reported.reports] == [
        ("a", 4.0),
        ("b", 5.0),
        ("c", 6.0),
    ]


def test_a_damaged_tensorflow_file_is_a_problem(tmp_path: Any) -> None:
    (tmp_path / "proto_C.m").write_bytes(b"\xff\xff\xff")
    reported = load_child_report(str(tmp_path / "report.jsonl"), str(tmp_path / "proto_"))
    assert reported.reports == ()
    assert "proto_C.m" in reported.problems[0]


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("", None),
        ('{"kind": "begin", "pid": 7}\n', 7),
        ('{"kind": "begin", "pid": 7, "wrapper_rss": 5}\n', None),  # the wrapper is ours
        ('{"kind": "begin", "pid": 7, "wrapper_rss": 5}\n{"kind": "command", "pid": 9}\n', 9),
        ('{"kind": "beg', None),
        ('["pid"]', None),
        ('{"kind": "begin", "pid": "7"}', None),
    ],
)
def test_the_first_process_is_the_one_that_says_so(tmp_path: Path, text: str, root: int | None) -> None:
    path = tmp_path / "report.jsonl"
    assert load_root(str(path)) is None  # there is no report yet
    path.write_text(text)
    assert load_root(str(path)) == root
