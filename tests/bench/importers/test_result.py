"""Fields of foreign files, one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from assay.bench.importers.result import FieldError, ForeignFields, parse_moment, parse_number


@pytest.mark.parametrize(
    "value", [None, True, 3, -1.5, math.nan, math.inf, 10**400, "", "text", "NaN", [], [1, "x"], {}, {"a": [None]}]
)
def test_whatever_it_is_it_is_that_or_refused(value: Any) -> None:
    fields = ForeignFields({"x": value}, "benchmark 'b'")
    kinds = ((fields.number, float), (fields.whole, int), (fields.text, str), (fields.part, ForeignFields))
    for ask, kind in kinds:
        try:
            found = ask("x")
        except FieldError as error:
            assert str(error).startswith("benchmark 'b': x is ")  # noqa: PT017
        else:
            assert found is None or isinstance(found, kind)


@pytest.mark.parametrize(
    ("value", "expected"), [(1, 1.0), ("Infinity", math.inf), ("-Infinity", -math.inf), (True, None), ("1", None)]
)
def test_numbers(value: Any, expected: float | None) -> None:
    assert parse_number(value) == expected
    assert math.isnan(parse_number("NaN") or 0)
    assert parse_number(10**400) is None


def test_what_is_missing_is_missed_where_it_is_needed() -> None:
    fields = ForeignFields({"null": None})
    assert "null" not in fields
    assert (fields.number("null"), fields.whole("x"), fields.text("x"), fields.items("x")) == (None, 0, "", ())
    for ask in (fields.need_number, fields.need_text):
        with pytest.raises(FieldError, match=r"^null is missing$"):
            ask("null")


def test_parts_are_called_by_their_names() -> None:
    fields = ForeignFields({"list": [{"name": "a", "v": "x"}, {"v": "x"}]}, "here")
    named, numbered = fields.parts("list", "metric")
    for part, place in ((named, "here metric 'a'"), (numbered, "here metric 2")):
        with pytest.raises(FieldError, match=f"^{place}: v is 'x', which is not a number$"):
            part.number("v")


def test_a_long_value_is_cut_and_what_is_no_date_refused() -> None:
    with pytest.raises(FieldError) as caught:
        ForeignFields({"x": "y" * 1000}).number("x")
    assert len(str(caught.value)) < 120
    for text in ("yesterday", "2024-13-01"):
        with pytest.raises(FieldError, match="which is not a date"):
            parse_moment(ForeignFields({"date": text}), "date")
    for text, expected in (
        ("2024-05-01T10:00:00+00:00", 1714557600.0),
        ("2024-05-01T10:00:00", 1714557600.0),
        ("", None),
    ):
        assert parse_moment(ForeignFields({"date": text}), "date") == expected
