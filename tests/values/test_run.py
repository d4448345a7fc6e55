"""Ids are for ever: the literal ones here may never change, or finished runs would run again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from assay.values.run import Command, canonical, spec_id

COMMANDS = (Command("train", 'python t.py --lr 0.1 --out "${ASSAY_RUN_DIR}"'), Command("test", "true"))


def test_pinned_ids():
    assert spec_id((), {}) == "8ed17c6fc99606d9"
    assert spec_id(COMMANDS, {"lr": 0.1, "seed": 0}) == "3e113ae3e8f5e452"
    assert spec_id(COMMANDS, {"lr": 0.1, "seed": 0}, 1) == "dbedf4709a82f664"
    assert spec_id(COMMANDS, {"ü": [None, True, 1e-05, "\n'"], "d": {"b": 1, "a": float("inf")}}) == "22059a963e4af60f"


def test_the_order_of_parameters_and_time_limits_do_not_count():
    limited = tuple(Command(command.name, command.text, 60.0) for command in COMMANDS)
    assert spec_id(COMMANDS, {"a": 1, "b": 2}) == spec_id(limited, {"b": 2, "a": 1})


def test_everything_else_counts():
    variants = [
        spec_id(COMMANDS, {"a": 1}),
        spec_id(COMMANDS[:1], {"a": 1}),
        spec_id(COMMANDS[::-1], {"a": 1}),
        spec_id([Command("other", COMMANDS[0].text), COMMANDS[1]], {"a": 1}),
        spec_id([Command("train", "true"), COMMANDS[1]], {"a": 1}),
        spec_id(COMMANDS, {"b": 1}),
        *(spec_id(COMMANDS, {"a": value}) for value in (1.0, True, "1", [1], None, "", "\ud800", "\ud801")),
        *(spec_id(COMMANDS, {"a": 1}, ordinal) for ordinal in (1, 2)),
    ]
    assert len(set(variants)) == len(variants)


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()))
def test_an_id_is_sixteen_hex_digits_and_stable(params):
    found = spec_id(COMMANDS, params)
    assert found == spec_id(COMMANDS, dict(reversed(params.items())))
    assert len(found) == 16
    assert set(found) <= set("0123456789abcdef")
    assert canonical(params).isascii()
