"""Read and write protobuf's wire format, as far as files of other programs need it, without protobuf's library."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from mmap import mmap
from typing import TypeVar

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT = 10

Buffer = TypeVar("Buffer", bytes, memoryview)


class ProtobufError(ValueError):
    """Raised for bytes that are not a complete protobuf message."""


def number(field: int, value: int) -> bytes:
    """Build a field of an unsigned integer type."""
    return _key(field, 0) + build_varint(value)


def double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def message(field: int, content: bytes) -> bytes:
    return _key(field, 2) + build_varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    return message(field, value.encode("utf-8", "replace"))


def _key(field: int, wire_type: int) -> bytes:
    return build_varint(field << 3 | wire_type)


def build_varint(value: int) -> bytes:
    """Build an integer of seven bits per byte, the lowest first; the eighth bit means that more bytes follow."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def read_fields(data: Buffer) -> Iterator[tuple[int, int, int | Buffer]]:
    """Yield the number, wire type and raw value of each field of a message: an unsigned integer, or bytes."""
    offset, size = 0, len(data)
    while offset < size:
        key, offset = _read_key(data, offset)
        kind = key & 7
        if kind == VARINT:
            value, offset = read_varint(data, offset)
            yield key >> 3, kind, value
            continue
        length = _WIDTHS.get(kind, 0)
        if kind == BYTES:
            length, offset = read_varint(data, offset)
        _check_end(offset + length, size)
        yield key >> 3, kind, data[offset : offset + length]
        offset += length


def scan_fields(data: bytes | mmap, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the number of each field, its start, and start and end of its content, without copying."""
    offset = start
    while offset < stop:
        begin = offset
        key, body = _read_key(data, offset)
        kind = key & 7
        if kind == VARINT:
            _, offset = read_varint(data, body)
        elif kind == BYTES:
            length, body = read_varint(data, body)
            offset = body + length
        else:
            offset = body + _WIDTHS.get(kind, 0)
        _check_end(offset, stop)
        yield key >> 3, begin, body, offset


def _read_key(data: bytes | memoryview | mmap, offset: int) -> tuple[int, int]:
    key, offset = read_varint(data, offset)
    if key & 7 not in (VARINT, FIXED64, BYTES, FIXED32) or not key >> 3:
        raise ProtobufError(f"it is not a protobuf message: a field {key >> 3} of wire type {key & 7}")
    return key, offset


def _check_end(end: int, stop: int) -> None:
    if end > stop:
        raise ProtobufError("it is cut off")


def read_varint(data: bytes | memoryview | mmap, offset: int) -> tuple[int, int]:
    """Return an unsigned integer and the offset of its end."""
    value = shift = 0
    try:
        while shift < 7 * _LONGEST_VARINT:
            byte = data[offset]
            offset += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, offset
            shift += 7
    except IndexError:
        raise ProtobufError("it is cut off") from None
    raise ProtobufError("it is not a protobuf message: an integer is too long")


def to_signed(value: int) -> int:
    """Convert the raw value of an integer field with a sign."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
