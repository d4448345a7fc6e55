"""TensorFlow's protobuf, read by hand: what we write in its format, and the bytes that TensorFlow has written."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.bench.child_report import (
    load_child_report,
    load_root,
    parse_benchmark_entries,
    parse_child_report,
)
from assay.values import protobuf
from assay.values.protobuf import double, message, text


def whole(number: int, value: int) -> bytes:
    return protobuf.number(number, value & (1 << 64) - 1)


def entry(name: str, iters: int = 0, wall_time: float = 0.0) -> bytes:
    return message(1, text(1, name) + whole(2, iters) + double(4, wall_time))


def test_unknown_fields_are_passed_over_and_a_message_that_was_cut_off_is_refused() -> None:
    unknown = whole(99, 7) + double(98, 1.0) + text(97, "x") + protobuf.build_varint(96 << 3 | 5) + b"1234"
    assert parse_benchmark_entries(message(1, text(1, "n") + unknown))[0]["name"] == "n"
    cut = entry("C.m", wall_time=1.5)
    for end in range(1, len(cut)):
        with pytest.raises(ValueError, match="cut off"):
            parse_benchmark_entries(cut[:end])


@given(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
def test_numbers_come_back(iters: int, wall_time: float) -> None:
    (found,) = parse_benchmark_entries(entry("m", iters, wall_time))
    assert (found["iters"], found["wall_time"]) == (iters, wall_time)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):  # anything else would escape
        assert isinstance(parse_benchmark_entries(data), list)


# what TensorFlow 2.21 with protobuf 7 really writes, byte for byte
FULL = bytes.fromhex(
    "0ac0010a0d4d61744d756c2e73717561726510d00f19000000000000e03f210000000000428f40290000000000000440323d0a03746f7012"
    "3612347b2276616c7565223a20332c2022737563636565646564223a2066616c73652c20226465736372697074696f6e223a202264227d32"
    "110a047261746512090900000000000011403a240a0361636311000000000000e83f1a0909000000000000e03f220909000000000000f03f"
    "3a080a047a65726f1a003a0f0a046261726511000000000000f8bf"
)
BARE = bytes.fromhex("0a1a0a0d4d61744d756c2e6c6974746c6510ffffffffffffffffff01")  # iters=-1 and nothing else


def test_what_tensorflow_writes() -> None:
    (found,) = parse_benchmark_entries(FULL)
    assert found.pop("extras") == {"top": '{"value": 3, "succeeded": false, "description": "d"}', "rate": 4.25}
    assert found.pop("metrics") == [
        {"name": "acc", "value": 0.75, "min_value": 0.5, "max_value": 1.0},
        {"name": "zero", "value": 0.0, "min_value": 0.0},
        {"name": "bare", "value": -1.5},
    ]
    assert found == {"name": "MatMul.square", "iters": 2000, "cpu_time": 0.5, "wall_time": 1000.25, "throughput": 2.5}
    assert parse_benchmark_entries(BARE) == [{"name": "MatMul.little", "iters": -1, "extras": {}, "metrics": []}]


# ---------------------------------------------------------------- report.jsonl


def test_the_lines_are_read_in_order_and_a_torn_one_is_named() -> None:
    lines = '{"kind":"begin","pid":1}\n{"kind":"report","wall_time":1}\n{"kind":"end","ok":true}\n'
    reported = parse_child_report(lines)
    assert reported.begin == {"kind": "begin", "pid": 1}
    assert [report["wall_time"] for report in reported.reports] == [1]
    assert reported.end is not None
    torn = parse_child_report('{"kind":"report","wall_time":1}\n{"kind":"rep')
    assert len(torn.reports) == 1
    assert torn.problems == ("line 2 of its report cannot be read",)


def test_tensorflow_s_files_count_where_there_is_no_line(tmp_path: Path) -> None:
    (tmp_path / "proto_a").write_bytes(entry("a", wall_time=4.0) + entry("b", wall_time=5.0))
    (tmp_path / "proto_b").write_bytes(entry("c", wall_time=6.0))
    (tmp_path / "proto_c").write_bytes(b"\xff\xff\xff")
    paths = str(tmp_path / "report.jsonl"), str(tmp_path / "proto_")
    reported = load_child_report(*paths)
    found = [(report["name"], report["wall_time"]) for report in reported.reports]
    assert found == [("a", 4.0), ("b", 5.0), ("c", 6.0)], "every entry of every file"
    (problem,) = reported.problems
    assert problem.startswith("proto_c: "), "one that is damaged is a problem"
    (tmp_path / "report.jsonl").write_text('{"kind":"report","wall_time":1}\n')
    assert load_child_report(*paths).reports[0]["wall_time"] == 1


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
