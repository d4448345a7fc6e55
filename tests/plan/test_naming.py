"""Native names: readable, safe, and never shared by two different runs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.plan.naming import MAX_NAME_BYTES, Draft, find_varying, name_native
from assay.values.run import canonical, spec_id


def drafts(*params: dict, repeat: int = 1) -> list[Draft]:
    return [
        Draft(0, row, row, id=spec_id((), row, ordinal), ordinal=ordinal) for row in params for ordinal in range(repeat)
    ]


def names(*params: dict, repeat: int = 1) -> list[str]:
    return name_native(drafts(*params, repeat=repeat))


def values(*found: object) -> list[str]:
    return names(*({"x": value} for value in found))


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("a/b", "x=a_b"), ("../../etc", "x=.._.._etc"), ("a b", "x=a_b"), ("a\nb", "x=a_b"), ("$(rm)", "x=__rm_"),
        ("it's", "x=it_s"), ("größe", "x=größe"), ("学習率", "x=学習率"), ("a~b", "x=a_b"), ("a=b,c", "x=a_b_c"), ("", "x="),
        ("a.", "x=a_"), ("-1", "x=-1"), ("a:b", "x=a_b"), ("🙂", "x=_"), ("\ud800", "x=_"),
    ],
)  # fmt: skip
def test_odd_texts_become_safe_names(value, name):
    assert values(value, "other")[0] == name


@pytest.mark.parametrize(("key", "start"), [(".x", "_.x="), ("-x", "_-x="), ("/x", "_x="), ("", "="), ("a b", "a_b=")])
def test_odd_parameter_names_start_no_name_oddly(key, start):
    found = names({key: 1}, {key: 2})
    assert [name.startswith(start) for name in found] == [True, True]


def test_long_names_are_shortened_and_stay_apart():
    assert len(set(values("\u00e9", "e\u0301"))) == 2, "one letter in two encodings"
    found = values("x" * 500 + "a", "x" * 500 + "b", "é" * 200)
    assert all(len(name.encode()) <= MAX_NAME_BYTES for name in found)
    assert len(set(found)) == 3
    assert all(re.search(r"~[0-9a-f]{8}$", name) for name in found)


@pytest.mark.parametrize(
    "pair",
    [
        ("a/b", "a_b"),
        ("A", "a"),
        (1, "1"),
        (True, "true"),
        (None, "null"),
        (0.1, "0.1"),
        ("É", "é"),
        ("straße", "STRASSE"),
    ],
)
def test_two_runs_that_would_share_a_name_both_get_a_hash(pair):
    found = values(*pair)
    assert all("~" in name for name in found)
    assert len({name.casefold() for name in found}) == 2


def test_only_what_varies_is_in_the_name_in_order_of_appearance():
    rows = [{"data": "c", "norm": norm, "lr": lr, "seed": 0} for norm in ("new", "old") for lr in (0.1, 0.05)]
    assert names(*rows) == ["norm=new,lr=0.1", "norm=new,lr=0.05", "norm=old,lr=0.1", "norm=old,lr=0.05"]


def test_a_parameter_that_some_runs_lack_is_in_the_name_of_the_others():
    assert names({"a": 1, "b": 2}, {"a": 1}) == ["b=2", "a=1"]


def test_a_single_combination_is_named_by_its_parameters():
    assert names({"a": 1, "b": "x"}) == ["a=1,b=x"]
    assert names({}) == ["run"], "there is nothing to name it by"
    (long,) = names({f"parameter{number}": "value" for number in range(20)})
    assert len(long.encode()) <= 120


def test_repeats_are_counted():
    assert names({"a": 1}, repeat=2) == ["a=1,repeat=0", "a=1,repeat=1"]
    assert names({}, repeat=2) == ["repeat=0", "repeat=1"]
    assert names({"a": 1}, {"a": 2}, repeat=2) == ["a=1,repeat=0", "a=1,repeat=1", "a=2,repeat=0", "a=2,repeat=1"]


def test_values_of_every_kind():
    assert values(True, 1e-5, 10, None, [1, "a", 2.5], "t") == [
        "x=true",
        "x=1e-05",
        "x=10",
        "x=null",
        "x=1+a+2.5",
        "x=t",
    ]


def test_one_and_true_and_one_point_zero_vary():
    assert find_varying(drafts({"a": 1}, {"a": True})) == ["a"]
    assert find_varying(drafts({"a": 1}, {"a": 1.0})) == ["a"]
    assert find_varying(drafts({"a": [1], "b": 0}, {"a": [True], "b": 0})) == ["a"]


SCALAR = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=150)
PARAMS = st.dictionaries(st.text(max_size=40), SCALAR | st.lists(SCALAR, max_size=3), max_size=4)
CLOSE = st.dictionaries(
    st.sampled_from(["a", "A", "b"]),
    st.sampled_from(["a", "A", "a/", "a_", 1, 1.0, "1", True, "true", "ß", "ss"]),
    max_size=3,
)


@given(st.lists(PARAMS, min_size=1, max_size=8) | st.lists(CLOSE, min_size=2, max_size=12), st.integers(1, 2))
def test_names_are_injective_and_safe_also_for_values_that_look_alike(rows, repeat):
    distinct = list({canonical(row): row for row in rows}.values())
    found = names(*distinct, repeat=repeat)
    assert len({name.casefold() for name in found}) == len(distinct) * repeat
    for name in found:
        assert 0 < len(name.encode()) <= MAX_NAME_BYTES
        assert re.fullmatch(r"[\w=][\w.+@,=~-]*", name)
        assert not name.endswith(".")
