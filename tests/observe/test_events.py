import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.observe.points import build_points

from assay.observe.events import crc32c, masked_crc32c, parse_events_columns


def parse_events(data, state):
    columns, consumed, state = parse_events_columns(data, state)
    return build_points(columns), consumed, state


def rows(points):
    return [(point.metric, point.step, point.value) for point in points]


def varint(number):
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def field(number, kind, content):
    key = varint(number << 3 | kind)
    return key + (varint(len(content)) + content if kind == 2 else content)


def record(content):
    header = struct.pack("<Q", len(content))
    return header + struct.pack("<I", masked_crc32c(header)) + content + struct.pack("<I", masked_crc32c(content))


def event(step, *values, time=12.5):
    summary = b"".join(field(1, 2, value) for value in values)
    return field(1, 1, struct.pack("<d", time)) + field(2, 0, varint(step)) + field(5, 2, summary)


def simple(tag, value):
    return field(1, 2, tag.encode()) + field(2, 5, struct.pack("<f", value))


def tensor(tag, dtype, *fields, shape=b""):
    content = field(1, 0, varint(dtype)) + field(2, 2, shape) + b"".join(fields)
    return field(1, 2, tag.encode()) + field(8, 2, content)


def test_checksum_of_the_standard():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


def test_simple_values():
    data = record(field(3, 2, b"brain.Event:2")) + record(event(7, simple("loss", 0.5), simple("acc", math.inf)))
    points, consumed, state = parse_events(data, {})
    assert rows(points) == [("loss", 7.0, 0.5), ("acc", 7.0, math.inf)]
    assert [point.time for point in points] == [12.5, 12.5]
    assert (consumed, state) == (len(data), {})


@pytest.mark.parametrize(
    ("dtype", "content", "value"),
    [
        (1, field(4, 2, struct.pack("<f", 0.5)), 0.5),
        (1, field(5, 2, struct.pack("<f", 0.5)), 0.5),  # packed
        (1, field(5, 5, struct.pack("<f", 0.5)), 0.5),  # alone
        (1, b"", 0.0),
        (2, field(6, 2, struct.pack("<d", 0.1)), 0.1),
        (2, field(4, 2, struct.pack("<d", 0.1)), 0.1),
        (3, field(7, 2, varint(-3)), -3.0),
        (3, field(4, 2, struct.pack("<i", -3)), -3.0),
        (9, field(10, 0, varint(5)), 5.0),
        (10, field(11, 2, varint(1)), 1.0),
        (14, field(4, 2, struct.pack("<f", 1.5)[2:]), 1.5),
        (14, field(13, 2, varint(0x3FC0)), 1.5),
        (19, field(4, 2, struct.pack("<e", 0.25)), 0.25),
        (19, field(13, 2, varint(0x3400)), 0.25),
        (23, field(17, 2, varint(9)), 9.0),
    ],
)
def test_scalar_tensors(dtype, content, value):
    points, _, _ = parse_events(record(event(1, tensor("x", dtype, content))), {})
    assert rows(points) == [("x", 1.0, value)]


def test_text_and_larger_tensors_are_no_scalars():
    vector = tensor("v", 1, field(4, 2, struct.pack("<2f", 1, 2)), shape=field(2, 2, field(1, 0, varint(2))))
    text = tensor("t", 7, field(8, 2, b"hello"))
    wrong_size = tensor("w", 1, field(4, 2, b"abc"))
    image = field(1, 2, b"image") + field(4, 2, b"png")
    points, _, state = parse_events(record(event(1, vector, text, wrong_size, image, simple("loss", 1.0))), {})
    assert rows(points) == [("loss", 1.0, 1.0)]
    assert "damaged" not in state


def test_a_negative_step_and_unknown_fields():
    data = record(event(-1, simple("loss", 1.0)) + field(99, 2, b"new") + field(98, 0, varint(5)))
    assert rows(parse_events(data, {})[0]) == [("loss", -1.0, 1.0)]


@given(st.data())
def test_a_truncated_tail_waits(data):
    whole = b"".join(record(event(n, simple("loss", n / 2))) for n in range(4))
    cut = data.draw(st.integers(0, len(whole)))
    first, consumed, state = parse_events(whole[:cut], {})
    second, more, state = parse_events(whole[consumed:], state)
    assert rows(first + second) == [("loss", float(n), n / 2) for n in range(4)]
    assert (consumed + more, state) == (len(whole), {})


def test_a_damaged_record_is_skipped_and_counted():
    good, bad = record(event(1, simple("loss", 1.0))), bytearray(record(event(2, simple("loss", 2.0))))
    bad[20] ^= 1
    points, consumed, state = parse_events(good + bytes(bad) + good, {})
    assert rows(points) == [("loss", 1.0, 1.0), ("loss", 1.0, 1.0)]
    assert (consumed, state) == (len(good) * 3, {"damaged": 1})


def test_a_sound_record_that_is_no_event_is_counted():
    for content in (b"\xff\xff", b"\x0a\x50short", b"\x0b", b"\x80" * 12):
        assert parse_events(record(content), {})[2] == {"damaged": 1}


def test_a_damaged_length_stops_the_reading_and_says_so_until_it_is_mended():
    good = record(event(1, simple("loss", 1.0)))
    points, consumed, state = parse_events(good + bytes(40), {})
    assert (len(points), consumed) == (1, len(good))
    assert f"byte {len(good)}" in state["problem"]
    points, consumed, state = parse_events(good, state)
    assert (len(points), consumed, state) == (1, len(good), {})


def test_large_records_are_passed_over():
    image = field(1, 2, b"image") + field(4, 2, bytes(1 << 18))
    data = record(event(1, image)) + record(event(2, simple("loss", 1.0)))
    points, consumed, _ = parse_events(data, {})
    assert (rows(points), consumed) == ([("loss", 2.0, 1.0)], len(data))


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setenv("CRC32C_SW_MODE", "auto")  # tensorboardX sets it on import, and would leave it behind
    tensorboardx = pytest.importorskip("tensorboardX")

    def write(fill):
        with tensorboardx.SummaryWriter(str(tmp_path), write_to_disk=True) as writer:
            fill(writer)
        (path,) = tmp_path.glob("events.out.tfevents.*")
        return path.read_bytes()

    return write


def test_scalars_written_by_tensorboardx(write):
    def fill(writer):
        for step in range(50):
            writer.add_scalar("val/loss", 1 / (step + 1), step, walltime=1000.0 + step)
            writer.add_scalar("Größe", -step, step)
        writer.add_scalar("nan", math.nan, 3)
        writer.add_text("note", "hello", 1)

    data = write(fill)
    points, consumed, state = parse_events(data, {})
    assert (consumed, state) == (len(data), {})
    loss = [point for point in points if point.metric == "val/loss"]
    assert [point.step for point in loss] == list(range(50))
    assert [point.value for point in loss] == pytest.approx([1 / (step + 1) for step in range(50)], rel=1e-6)
    assert [point.time for point in loss] == [1000.0 + step for step in range(50)]
    assert sum(point.metric == "Größe" for point in points) == 50
    assert [math.isnan(point.value) for point in points if point.metric == "nan"] == [True]
    assert {point.metric for point in points} == {"val/loss", "Größe", "nan"}


def test_tensors_of_the_second_api_encoded_by_protobuf(write):
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.proto.tensor_pb2 import TensorProto
    from tensorboardX.proto.tensor_shape_pb2 import TensorShapeProto

    def fill(writer):
        dims = [TensorShapeProto.Dim(size=1)]
        scalar = TensorProto(dtype="DT_FLOAT", float_val=[0.25], tensor_shape=TensorShapeProto())
        double = TensorProto(dtype="DT_DOUBLE", tensor_content=struct.pack("<d", 0.1), tensor_shape=TensorShapeProto())
        vector = TensorProto(dtype="DT_FLOAT", float_val=[1.0], tensor_shape=TensorShapeProto(dim=dims))
        tensors = {"scalar": scalar, "double": double, "vector": vector}
        values = [Summary.Value(tag=tag, tensor=tensor) for tag, tensor in tensors.items()]
        writer.file_writer.add_summary(Summary(value=values), 5)

    assert rows(parse_events(write(fill), {})[0]) == [("scalar", 5.0, 0.25), ("double", 5.0, 0.1)]
