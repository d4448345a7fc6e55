"""How slots are written."""

import pytest

from assay.errors import UsageError
from assay.values.units import parse_slots


@pytest.mark.parametrize("text", ["", ",", " , "])
def test_no_slot(text):
    with pytest.raises(UsageError, match="no slot in") as caught:
        parse_slots(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    "text", ["cpu:0", "cpu:-1", "cpu:many", "0;1", "0+", "+1", "a b", "foo", "cpu4", "0+x", "\N{SUPERSCRIPT TWO}"]
)
def test_a_bad_slot_is_named(text):
    with pytest.raises(UsageError, match="bad slot") as caught:
        parse_slots(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("0", ("0",)),
        ("0,1", ("0", "1")),
        ("0+1,2+3", ("0,1", "2,3")),
        (" 0 , 0 ,", ("0", "0")),
        ("cpu", ("cpu",)),
        ("cpu:3", ("cpu", "cpu", "cpu")),
        ("cpu,cpu", ("cpu", "cpu")),
        ("0,cpu:2", ("0", "cpu", "cpu")),
        ("GPU-8f6ad2b1,1", ("GPU-8f6ad2b1", "1")),
        ("MIG-GPU-8f6ad2b1/1/0", ("MIG-GPU-8f6ad2b1/1/0",)),
    ],
)
def test_slots(text, slots):
    assert parse_slots(text) == slots


@pytest.mark.parametrize(("text", "meant"), [("cpu4", "cpu:4"), ("CPU:4", "cpu:4"), ("cpus-2", "cpu:2"), ("gpu1", "1")])
def test_a_slip_is_understood(text, meant):
    with pytest.raises(UsageError, match="bad slot") as caught:
        parse_slots(text)
    assert caught.value.hint == f"did you mean {meant}?"
