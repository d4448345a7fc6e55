"""TensorBoard event files, read with the standard library alone.

A file is a chain of records: length (8 bytes), checksum of the length (4), an Event in protobuf encoding, checksum of
the Event (4). Scalars are `simple_value` (first API, tensorboardX, torch) or a tensor without dimensions (second API).
An incomplete record is read by a later call; a record with a wrong checksum is skipped and counted. After a damaged
length the next record cannot be found: reading stops there, and the state's `problem` reports it.
"""

from __future__ import annotations

import struct
from functools import reduce
from typing import Any

from assay.observe.columns import Columns, add_value
from assay.values.protobuf import FIXED32, FIXED64, ProtobufError, read_fields, read_varint, to_signed

State = dict[str, Any]

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
# Only records up to this size are checked. An Event with scalars takes about forty bytes. Images, graphs and histograms
# are large and contain no scalars: checksums of megabytes in pure Python would cost seconds and protect nothing.
_CHECKED_BYTES = 1 << 16
_POLYNOMIAL = 0x82F63B78  # the Castagnoli polynomial, reflected

_EVENT_TIME, _EVENT_STEP, _EVENT_SUMMARY = 1, 2, 5
_SUMMARY_VALUE = 1
_VALUE_TAG, _VALUE_SIMPLE, _VALUE_TENSOR = 1, 2, 8
_TENSOR_TYPE, _TENSOR_SHAPE, _TENSOR_CONTENT = 1, 2, 4
_SHAPE_DIMENSION, _SHAPE_UNKNOWN = 2, 3
# TensorFlow's DataType -> format of one element in tensor_content
_CONTENT = dict(zip((1, 2, 3, 4, 5, 6, 9, 10, 17, 19, 22, 23), "fdiBhbq?HeIQ", strict=True))
# TensorFlow's DataType -> number of the typed field that has the elements if there is no tensor_content
_FIELDS = {1: 5, 2: 6, 3: 7, 4: 7, 5: 7, 6: 7, 9: 10, 10: 11, 14: 13, 17: 7, 19: 13, 22: 16, 23: 17}
_FLOATS = (1, 2)
_HALVES = (14, 19)
_BFLOAT16 = 14


def parse_events_columns(data: bytes, state: State) -> tuple[Columns, int, State]:
    """Return the scalars in `data`, how many bytes were consumed, and the state for the next call."""
    state = {key: value for key, value in state.items() if key != "problem"}
    columns: Columns = {}
    offset = 0
    while (record := _next_record(data, offset, state)) is not None:
        offset, event = record
        try:
            time, step, scalars = _decode_event(event)
        except ProtobufError:
            state["damaged"] = state.get("damaged", 0) + 1
            continue
        for tag, value in scalars:
            add_value(columns, tag, step, value, time)
    return columns, offset, state


def _next_record(data: bytes, offset: int, state: State) -> tuple[int, bytes] | None:
    """Return the next record's end and content (empty if damaged); None if it is incomplete or its length damaged."""
    if offset + _HEADER.size > len(data):
        return None
    length, checksum = _HEADER.unpack_from(data, offset)
    if checksum != masked_crc32c(data[offset : offset + 8]):
        # A later read may succeed: on some network file systems unwritten bytes read as zeros for a while.
        state["problem"] = f"the record at byte {offset} of the unread part has a damaged length"
        return None
    start = offset + _HEADER.size
    end = start + length + _CHECKSUM.size
    if end > len(data):
        return None
    content = data[start : start + length]
    if length <= _CHECKED_BYTES and _CHECKSUM.unpack_from(data, start + length)[0] != masked_crc32c(content):
        state["damaged"] = state.get("damaged", 0) + 1
        return end, b""
    return end, content


_TABLE = tuple(  # the remainder of each byte, after eight steps of the division
    reduce(lambda crc, _: (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0), range(8), byte) for byte in range(256)
)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    table = _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Return the checksum as in a file: rotated and shifted, so that a checksum of checksums is not degenerate."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _decode_event(event: bytes) -> tuple[float, float, list[tuple[str, float]]]:
    time = step = 0.0
    scalars: list[tuple[str, float]] = []
    for field, kind, value in read_fields(event):
        if field == _EVENT_TIME and kind == FIXED64 and isinstance(value, bytes):
            time = struct.unpack("<d", value)[0]
        elif field == _EVENT_STEP and isinstance(value, int):
            step = float(to_signed(value))
        elif field == _EVENT_SUMMARY and isinstance(value, bytes):
            messages = [content for inner, _, content in read_fields(value) if inner == _SUMMARY_VALUE]
            found = [_decode_value(content) for content in messages if isinstance(content, bytes)]
            scalars += [(tag, number) for tag, number in found if number is not None]
    return time, step, scalars


def _decode_value(message: bytes) -> tuple[str, float | None]:
    tag, number = "", None
    for field, kind, value in read_fields(message):
        if not isinstance(value, bytes):
            continue
        if field == _VALUE_TAG:
            tag = value.decode("utf-8", "replace")
        elif field == _VALUE_SIMPLE and kind == FIXED32:
            number = struct.unpack("<f", value)[0]
        elif field == _VALUE_TENSOR:
            number = _decode_scalar_tensor(value)
    return tag, number


def _decode_scalar_tensor(tensor: bytes) -> float | None:
    """Return the number of a tensor without dimensions; None for anything larger, and for text."""
    fields = {field: value for field, _, value in read_fields(tensor)}
    shape = fields.get(_TENSOR_SHAPE, b"")
    dtype = fields.get(_TENSOR_TYPE, 0)
    if not isinstance(shape, bytes) or not isinstance(dtype, int):
        return None
    if any(field in (_SHAPE_DIMENSION, _SHAPE_UNKNOWN) for field, _, _ in read_fields(shape)):
        return None
    content = fields.get(_TENSOR_CONTENT)
    if isinstance(content, bytes) and content:
        return _unpack(content, dtype)
    return _element(fields, dtype)


def _unpack(content: bytes, dtype: int) -> float | None:
    if dtype == _BFLOAT16:  # a bfloat16 is the upper half of a float
        content, dtype = b"\0\0" + content, 1
    form = f"<{_CONTENT.get(dtype, '')}"
    if not content or len(content) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, content)[0])


def _element(fields: dict[int, int | bytes], dtype: int) -> float | None:
    """Return the element of a typed field, which may be packed after its length. A missing field means zero."""
    if dtype not in _FIELDS:
        return None
    value = fields.get(_FIELDS[dtype], 0)
    if dtype in _FLOATS:
        return _unpack(value, dtype) if isinstance(value, bytes) else 0.0
    if isinstance(value, bytes):
        value = read_varint(value, 0)[0] if value else 0
    number = to_signed(value)
    return _unpack((number & 0xFFFF).to_bytes(2, "little"), dtype) if dtype in _HALVES else float(number)
