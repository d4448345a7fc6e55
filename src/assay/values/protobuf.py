"""Writing protobuf's wire format: enough for files that other programs show."""

from __future__ import annotations

import struct


def number(field: int, value: int) -> bytes:
    """Of any integer type without a sign; from 0 up."""
    return _key(field, 0) + _varint(value)


def double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def message(field: int, content: bytes) -> bytes:
    return _key(field, 2) + _varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    return message(field, value.encode("utf-8", "replace"))


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more come."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
