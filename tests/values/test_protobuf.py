"""Bytes as protobuf's own library writes and reads them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.values import protobuf


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (protobuf.number(1, 0), "0800"),
        (protobuf.number(1, 150), "089601"),
        (protobuf.number(16, 127), "80017f"),
        (protobuf.number(2, 2**64 - 1), "10ffffffffffffffffff01"),
        (protobuf.double(5, 1.0), "29000000000000f03f"),
        (protobuf.text(2, "testing"), "120774657374696e67"),
        (protobuf.message(3, protobuf.number(1, 150)), "1a03089601"),
        (protobuf.message(3, b""), "1a00"),
    ],
)
def test_the_examples_of_the_format(written: bytes, expected: str) -> None:
    assert written.hex() == expected


def read_varint(data: bytes) -> tuple[int, bytes]:
    value = shift = 0
    for index, byte in enumerate(data):
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, data[index + 1 :]
    raise AssertionError("it has no end")


@given(st.integers(1, 2**29 - 1), st.integers(0, 2**64 - 1))
def test_numbers_come_back(field: int, value: int) -> None:
    key, rest = read_varint(protobuf.number(field, value))
    assert key == field << 3
    assert read_varint(rest) == (value, b"")


@given(st.integers(1, 100), st.text(st.characters(codec="utf-8"), max_size=300), st.floats(allow_nan=False))
def test_texts_and_doubles_come_back(field: int, value: str, number: float) -> None:
    key, rest = read_varint(protobuf.text(field, value))
    size, content = read_varint(rest)
    assert (key, size) == (field << 3 | 2, len(content))
    assert content.decode() == value
    assert struct.unpack("<d", protobuf.double(1, number)[1:]) == (number,)


def test_half_a_character_is_no_reason_to_fail() -> None:
    assert protobuf.text(1, "\ud800") == protobuf.text(1, "?")


def test_what_was_written_is_read_again() -> None:
    data = protobuf.number(1, 2**64 - 1) + protobuf.text(2, "ä") + protobuf.double(16, 0.5) + b"\x1d\1\0\0\0"
    expected = [(1, 0, 2**64 - 1), (2, 2, "ä".encode()), (16, 1, struct.pack("<d", 0.5)), (3, 5, b"\1\0\0\0")]
    assert list(protobuf.read_fields(data)) == expected
    assert [
        (number, kind, bytes(value) if kind else value)
        for number, kind, value in protobuf.read_fields(memoryview(data))
    ] == expected
    places = list(protobuf.scan_fields(data, 0, len(data)))
    assert [number for number, _, _, _ in places] == [1, 2, 16, 3]
    assert [data[body:end] for _, _, body, end in places[1:]] == [value for _, _, value in expected[1:]]
    assert b"".join(data[begin:end] for _, begin, _, end in places) == data
    assert protobuf.to_signed(2**64 - 1) == -1


@pytest.mark.parametrize(
    "data", [b"\x08", b"\x80", b"\x0a\x05abc", b"\x0d\1\2", b"\x0b", b"\x00\x01", b"\x08" + b"\xff" * 10 + b"\1"]
)
def test_what_is_not_a_message_is_refused(data: bytes) -> None:
    with pytest.raises(protobuf.ProtobufError):
        list(protobuf.read_fields(data))
    with pytest.raises(protobuf.ProtobufError):
        list(protobuf.scan_fields(data, 0, len(data)))
