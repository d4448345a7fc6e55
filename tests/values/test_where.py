"""`--where`: what the grammar takes and refuses, and three-valued comparisons next to a second implementation."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import UsageError
from assay.values.where import (
    MISSING,
    And,
    Name,
    Not,
    Or,
    Where,
    WhereColumn,
    WhereComparison,
    choose,
    find_names,
    parse_where,
)


def match(text: str, row: Mapping[str, Any], **flags: bool) -> bool:
    """Whether one row matches."""
    column = lambda name: WhereColumn([row.get(name.name, MISSING)], **flags)  # noqa: E731
    return choose(parse_where(text), 1, column) == [0]


@pytest.mark.parametrize(
    ("text", "row", "expected"),
    [
        ("lr < 0.1", {"lr": 0.01}, True),
        ("lr<0.1", {"lr": 0.1}, False),
        ("lr <= 1e-1", {"lr": 0.1}, True),
        ("lr == 0.0001", {"lr": "1e-4"}, True),  # YAML takes 1e-4 for a text
        ("lr == '1e-4'", {"lr": 0.0001}, True),
        ("lr = .1", {"lr": 0.1}, True),
        ("t > -5", {"t": -4}, True),
        ("t <inf", {"t": math.inf}, False),
        ("t == -inf", {"t": -math.inf}, True),
        ("seed == 9007199254740993", {"seed": 9007199254740993}, True),
        ("seed == 9007199254740993", {"seed": 9007199254740992}, False),
        (f"seed < {'9' * 2000}", {"seed": 3}, True),
        ("opt == adam", {"opt": "adam"}, True),
        ("opt == 'adam'", {"opt": "adam"}, True),
        ('opt == "adam"', {"opt": "Adam"}, False),
        ("opt != adam", {"opt": "sgd"}, True),
        ("norm == none", {"norm": "none"}, True),
        ("norm == null", {"norm": None}, True),
        ("norm == null", {"norm": "none"}, False),
        ("norm != null", {"norm": None}, False),
        ("amp == true", {"amp": True}, True),
        ("amp == True", {"amp": True}, True),
        ("amp == 1", {"amp": True}, False),
        ("amp in (1, 2)", {"amp": True}, False),
        ("n in (1, 2)", {"n": 1.0}, True),
        ("n not in (1, 2)", {"n": 3}, True),
        ("n not in [1, 2,]", {"n": 2}, False),
        ("n in ()", {"n": 2}, False),
        ("opt in (adam, 'sgd')", {"opt": "sgd"}, True),
        ("name ~ 'lr=0.1*'", {"name": "lr=0.1,seed=2"}, True),
        ("opt ~ ad*", {"opt": "adam"}, True),
        ("opt ~ ad", {"opt": "adam"}, False),
        ("seed ~ 1?", {"seed": 12}, True),
        ("layers == '[64, 64]'", {"layers": [64, 64]}, True),
        ("layers ~ '[[]64*'", {"layers": [64, 32]}, True),
        ("0.1 < lr", {"lr": 0.2}, True),
        ("0.1 < lr <= 0.5", {"lr": 0.5}, True),
        ("0.1 < lr <= 0.5", {"lr": 0.1}, False),
        ("val_loss > train_loss", {"val_loss": 2.0, "train_loss": 1.0}, True),
        ("epoch == `epochs`", {"epoch": 6.0, "epochs": 6}, True),
        ("1 == a", {"a": 1}, True),
        ("a == 1 or b == 1 and c == 1", {"a": 1, "b": 0, "c": 0}, True),
        ("(a == 1 or b == 1) and c == 1", {"a": 1, "b": 0, "c": 0}, False),
        ("not a == 1", {"a": 2}, True),
        ("not not a == 1", {"a": 1}, True),
        ("`a b` == 1", {"a b": 1}, True),
        ("`tick``ed` == 1", {"tick`ed": 1}, True),
        ("test.top-5/acc@1:x > 0", {"test.top-5/acc@1:x": 1}, True),
        (r"x == 'it\'s'", {"x": "it's"}, True),
        (r"x == 'a\\b'", {"x": r"a\b"}, True),
        ("x == 'größe 1'", {"x": "größe 1"}, True),
        ("größe > 1", {"größe": 2}, True),
        ("model == 7b", {"model": "7b"}, True),
        ("version < 'b'", {"version": "a"}, True),
        ("lr\n<\t1", {"lr": 0}, True),
        ("a == 1 AND NOT b == 1 Or c IN (1)", {"a": 1, "b": 2, "c": 3}, True),
    ],
)
def test_what_matches(text: str, row: dict[str, Any], expected: bool) -> None:
    assert match(text, row) is expected


@pytest.mark.parametrize(
    "text",
    ["x == 1", "x != 1", "x < 1", "x > 1", "x ~ '*'", "x in (1)", "x not in (1)", "not x == 1", "not x != 1"],
)
@pytest.mark.parametrize("row", [{}, {"x": math.nan}])
def test_missing_values_and_nan_never_match(text: str, row: dict[str, Any]) -> None:
    assert not match(text, row)
    assert match(f"({text}) or y == 1", {**row, "y": 1})
    assert not match(f"({text}) and y == 1", {**row, "y": 1})
    assert match(f"not (({text}) and y == 2)", {**row, "y": 1})


@pytest.mark.parametrize("text", ["x < 1", "x >= 1", "not x < 1", "x < b", "x <= null"])
@pytest.mark.parametrize("value", ["a", True, None, [1]])
def test_what_has_no_order_is_neither_less_nor_more(text: str, value: object) -> None:
    if not (isinstance(value, str | list) and text == "x < b"):
        assert not match(text, {"x": value, "b": 2})


def test_durations_and_sets() -> None:
    assert match("time < 2h", {"time": 7199.0}, is_duration=True)
    assert match("time in (90, 1m30s)", {"time": 90}, is_duration=True)
    with pytest.raises(UsageError, match="'long' is not a duration"):
        match("time == long", {"time": 1.0}, is_duration=True)
    assert match("tag == good", {"tag": ("new", "good")}, is_set=True)
    assert not match("tag != good", {"tag": ("new", "good")}, is_set=True)
    assert match("tag != good", {"tag": ()}, is_set=True)
    assert match("not tag == good", {"tag": ()}, is_set=True)
    assert match("tag ~ g*", {"tag": ("new", "good")}, is_set=True)
    assert match("tag in (a, new)", {"tag": ("new", "good")}, is_set=True)
    with pytest.raises(UsageError, match="write it on the left"):
        match("a == `tag`", {"a": (), "tag": ()}, is_set=True)


def test_names_as_they_are_written() -> None:
    where = parse_where("best(loss) < 1 and params.lr == 2 and metrics.`a b` == 3 and not run.time > 4 or x ~ y")
    assert [(name.name, name.kind, name.aggregate) for name in find_names(where.expression)] == [
        ("loss", "metrics", "best"),
        ("lr", "params", None),
        ("a b", "metrics", None),
        ("time", "run", None),
        ("x", None, None),
    ]
    (name,) = find_names(parse_where("min( metrics.loss ) < 3").expression)
    assert name == Name("loss", 5, "metrics", "min")
    (name,) = find_names(parse_where("min < 3").expression)
    assert name.aggregate is None


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("", 0, "expected a name or a value, not the end"),
        ("lr", 2, "expected a comparison"),
        ("lr <", 4, "expected a name or a value"),
        ("lr < 1 opt == 2", 7, "expected `and`, `or` or the end, not opt"),
        ("lr << 1", 4, "expected a name or a value, not <"),
        ("(lr < 1", 7, r"expected \), not the end"),
        ("lr < 1)", 6, "expected `and`"),
        ("lr == 'x", 6, "quote ' is never closed"),
        ("lr < 1 && opt == 2", 7, "write `and`"),
        ("lr < 1 || opt == 2", 7, "write `or`"),
        ("!lr", 0, "write `not`"),
        ("lr < $x", 5, "'\\$' is not understood"),
        ("and", 0, "not and"),
        ("lr in 3", 6, "expected \\( after `in`"),
        ("lr in (1 2)", 9, r"expected \), not 2"),
        ("lr in (last(x))", 7, "holds values"),
        ("'lr' < 0.1", 0, "value is compared with a value"),
        ("'a' ~ lr", 6, "~ compares a name with a pattern"),
        ("a ~ params.x", 4, "~ compares a name with a pattern"),
        ("best(0.5) < 1", 5, "takes the name of a metric"),
        ("best(params.lr) < 1", 5, "takes the name of a metric"),
        ("best(last(lr)) < 1", 5, "takes the name of a metric"),
        ("best(lr < 1", 8, "expected \\)"),
        ("(" * 10_000, 50, "nested more than 50 deep"),
        ("not " * 4000 + "a == 1", 200, "nested more than 50 deep"),
    ],
)
def test_what_is_refused_and_where(text: str, column: int, words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        parse_where(text)
    _, shown, caret, *_ = error.value.render().split("\n")
    assert len(shown) <= 90
    assert caret.index("^") - 2 == min(column, 50)
    assert shown[2:] == text[max(0, column - 50) : column + 30]


def test_too_long_a_text_is_refused() -> None:
    with pytest.raises(UsageError, match="too many"):
        parse_where("a == 1 or " * 3000)
    many = " or ".join(f"a == {i}" for i in range(1000))
    assert match(many, {"a": 999})


PIECES = [*"ab1.-+e\"'`()[],<>=!~&|$ \n\\", "and ", "not ", "in ", "best(", "é", "²"]


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_the_parser_raises_nothing_but_the_usage_error(text: str) -> None:
    with suppress(UsageError):
        assert parse_where(text).text == text


NAMES = "abc"
VALUES: list[Any] = [0, 1, 1.0, -2.5, "1", "1e0", "x", "xy", "", True, False, None, math.nan, math.inf, MISSING]
LITERALS = ["0", "1", "1.0", "-2.5", "'1'", "x", "xy", "''", "true", "false", "null", "inf"]


def comparisons() -> st.SearchStrategy[str]:
    name, literal = st.sampled_from(NAMES), st.sampled_from(LITERALS)
    sign = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
    several = st.lists(literal, max_size=3).map(", ".join)
    return st.one_of(
        st.builds("{} {} {}".format, name, st.sampled_from(["==", "!="]), literal),
        st.builds("{} {} {}".format, name, sign, literal.filter(lambda text: text not in ("x", "xy"))),
        st.builds("{} {} `{}`".format, name, sign, name),
        st.builds("{} in ({})".format, name, several),
        st.builds("{} not in ({})".format, name, several),
        st.builds("{} ~ '{}'".format, name, st.sampled_from(["*", "x*", "1", "?", "t*"])),
    )


EXPRESSIONS = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("not {}".format, inner),
    ),
    max_leaves=6,
)


def judge(expression: Any, row: Mapping[str, Any]) -> bool | None:
    """Row by row and branch by branch, with Python's own booleans: True, False or None, which is unknown."""
    if isinstance(expression, Not):
        inner = judge(expression.inner, row)
        return None if inner is None else not inner
    if isinstance(expression, And | Or):
        found = [judge(part, row) for part in expression.parts]
        decisive = isinstance(expression, Or)
        return decisive if decisive in found else None if None in found else not decisive
    return judge_comparison(expression, row)


def judge_comparison(comparison: WhereComparison, row: Mapping[str, Any]) -> bool | None:
    left, right = row[comparison.left.name], comparison.right
    right = row[right.name] if isinstance(right, Name) else right
    for side in (left, right):
        if side is MISSING or (isinstance(side, float) and math.isnan(side)):
            return None
    if isinstance(right, tuple) and comparison.sign == "in":
        return any(are_equal(left, each) for each in right)
    if comparison.sign == "~":
        text = left if isinstance(left, str) else {True: "true", False: "false", None: "null"}.get(
            left if left is None or isinstance(left, bool) else "", "Infinity" if left == math.inf else str(left)
        )  # fmt: skip
        return fnmatch.fnmatchcase(text, str(right))
    if comparison.sign in ("==", "!="):
        return are_equal(left, right) == (comparison.sign == "==")
    first, second = as_number(left), as_number(right)
    if first is None or second is None:
        if not (isinstance(left, str) and isinstance(right, str)) or first is not None or second is not None:
            return None
        order = (left > right) - (left < right)
    else:
        order = (first > second) - (first < second)
    return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[comparison.sign]


def are_equal(left: Any, right: Any) -> bool:
    first, second = as_number(left), as_number(right)
    if first is not None and second is not None:
        return first == second
    return type(left) is type(right) and left == right


def as_number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None or value in ("", "x", "xy"):
        return None
    return float(value)


@given(EXPRESSIONS, st.lists(st.fixed_dictionaries({name: st.sampled_from(VALUES) for name in NAMES}), max_size=6))
def test_evaluation_equals_a_second_implementation(text: str, rows: Sequence[Mapping[str, Any]]) -> None:
    where = parse_where(text)
    expected = [i for i, row in enumerate(rows) if judge(where.expression, row) is True]
    assert choose_from(where, rows) == expected
    opposite = [i for i, row in enumerate(rows) if judge(where.expression, row) is False]
    assert choose_from(parse_where(f"not ({text})"), rows) == opposite


def choose_from(where: Where, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    return choose(where, len(rows), lambda name: WhereColumn([row[name.name] for row in rows]))


def test_a_state_alone_is_a_condition() -> None:
    failed = WhereComparison(Name("state", 0, "run"), "==", "failed")
    assert parse_where("failed").expression == failed
    assert parse_where("failed or loss < 2").expression == Or((failed, WhereComparison(Name("loss", 10), "<", 2)))
    assert parse_where("not failed").expression == Not(WhereComparison(Name("state", 4, "run"), "==", "failed"))
    for text in ("fialed", "params.failed", "`failed", "failed <"):
        with pytest.raises(UsageError):
            parse_where(text)
    with pytest.raises(UsageError, match="did you mean 'failed'"):
        parse_where("loss < 2 or fialed")
