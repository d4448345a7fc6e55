"""`--where`: choose runs by comparisons over parameters, metrics and fields of a run.

    lr < 0.1 and opt == adam            a parameter's value; a metric's last value
    best(acc) > 0.9                     also last, min, max and mean of a metric
    state in (failed, timeout)          a word after ==, !=, ~ and in `in (…)` is a text, with or without quotes
    failed or lost                      a state alone: state == failed
    params.seed == 1                    if a parameter and a metric have the same name: params.X, metrics.X, run.X
    name ~ "lr=0.1*" or not 0.1 < dropout <= 0.5

The text is parsed, never executed. Truth has three values, as in SQL: a comparison with a missing value or NaN is
unknown, so is its `not`, and only true comparisons match. `docs/reference/where.md` describes the whole grammar.
"""

from __future__ import annotations

import fnmatch
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, reduce
from itertools import compress, repeat
from typing import Any, Literal, NoReturn, cast

from assay.errors import UsageError, suggest
from assay.system.fast_dataclasses import NamedTuple
from assay.values.plain import render_value
from assay.values.state import State
from assay.values.units import parse_duration

Kind = Literal["params", "metrics", "run"]
Aggregate = Literal["last", "best", "min", "max", "mean"]
AGGREGATES = ("last", "best", "min", "max", "mean")
MISSING: Any = object()
MOST_CHARACTERS = 20_000
MOST_NESTED = 50


class Name(NamedTuple):
    """A parameter, a metric or a field of the run. `kind`: None if the text does not state it."""

    name: str
    column: int  # the position of the name in the text
    kind: Kind | None = None
    aggregate: Aggregate | None = None


Value = str | int | float | bool | None


class WhereComparison(NamedTuple):
    left: Name
    sign: str
    right: Name | Value | tuple[Value, ...]  # a tuple for `in`


class Not(NamedTuple):
    inner: Expression


class And(NamedTuple):
    parts: tuple[Expression, ...]


class Or(NamedTuple):
    parts: tuple[Expression, ...]


Expression = WhereComparison | Not | And | Or


class Where(NamedTuple):
    text: str
    expression: Expression

    def __str__(self) -> str:
        return self.text

    def refuse(self, why: str, column: int, hint: str | None = None, example: str = "") -> NoReturn:
        refuse(self.text, why, column, hint, example)


_EXAMPLE = "'lr<0.1 and opt==\"adam\" and best(loss)<0.3 and state==done'"


class WhereError(UsageError):
    """`problem` and `advice` are the message and its hint without the name of the option, for forms."""

    def __init__(self, problem: str, hint: str | None = None, *, example: str = "", text: str = "") -> None:
        self.problem = f"{text!r}: {problem}" if text else problem
        self.advice = hint or (f"as in {example}" if example else "")
        message = f"--where{' ' if text else ': '}{self.problem}"
        super().__init__(message, hint or (f"as in --where {example}" if example else None))


def refuse(text: str, why: str, column: int, hint: str | None = None, example: str = _EXAMPLE) -> NoReturn:
    """Raise an error with the text, and a caret under the wrong character."""
    start = max(0, column - 50)
    shown = re.sub(r"\s", " ", text[start : column + 30])
    raise WhereError(f"{why}\n  {shown}\n  {' ' * (column - start)}^", hint, example=example)


# ---------------------------------------------------------------- from the text to an expression


_TOKEN = re.compile(
    r"""
      (?P<number>[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+|inf)(?:[eE][-+]?[0-9]+)?(?![\w./:@%*?+-]))
    | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<quoted>(?:(?:params|metrics|run)\.)?`(?:[^`]|``)+`)
    | (?P<sign><=|>=|==|!=|<|>|=|~|\(|\)|\[|\]|,)
    | (?P<word>[\w*?][\w./:@%*?+-]*)
    """,
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"\s*[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\s*")
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_SIGNS = (*_MIRRORED, "=", "~")
_KEYWORDS = ("and", "or", "not", "in")
_CONSTANTS = {"true": True, "false": False, "null": None}
_OTHER_LANGUAGES = {"&": "write `and`", "|": "write `or`", "!": "write `not`, or `!=` between two values"}


class _Token(NamedTuple):
    kind: str
    text: str
    column: int


def parse_where(text: str) -> Where:
    """Parse an expression; raise WhereError with the position of a mistake."""
    if len(text) > MOST_CHARACTERS:
        raise WhereError(f"{len(text)} characters are too many; at most {MOST_CHARACTERS} are read")
    return Where(text, _Parser(text).parse())


class _Parser:
    """A recursive-descent parser: one method for each rule, the weakest operator first."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split())
        self._next = 0
        self._depth = 0

    def _split(self) -> Iterator[_Token]:
        at = 0
        while at < len(self._text):
            if self._text[at].isspace():
                at += 1
                continue
            match = _TOKEN.match(self._text, at)
            if match is None:
                character = self._text[at]
                if character in "\"'`":
                    refuse(self._text, f"the quote {character} is never closed", at)
                refuse(self._text, f"{character!r} is not understood", at, _OTHER_LANGUAGES.get(character))
            text = match[0].lower() if match[0].lower() in _KEYWORDS else match[0]
            yield _Token(str(match.lastgroup), text, at)
            at = match.end()

    def parse(self) -> Expression:
        found = self._or()
        if self._peek().kind != "end":
            self._refuse_token("`and`, `or` or the end")
        return found

    def _peek(self) -> _Token:
        if self._next < len(self._tokens):
            return self._tokens[self._next]
        return _Token("end", "the end", len(self._text))

    def _take(self, *texts: str) -> str | None:
        token = self._peek()
        if token.kind in ("sign", "word") and token.text in texts:
            self._next += 1
            return token.text
        return None

    def _need(self, text: str) -> None:
        if self._take(text) is None:
            self._refuse_token(text)

    def _refuse_token(self, wanted: str, hint: str | None = None) -> NoReturn:
        token = self._peek()
        refuse(self._text, f"expected {wanted}, not {token.text}", token.column, hint)

    def _or(self) -> Expression:
        parts = [self._and()]
        while self._take("or"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _and(self) -> Expression:
        parts = [self._not()]
        while self._take("and"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _not(self) -> Expression:
        begin = self._peek().column
        opening = self._take("not", "(")
        if opening is None:
            return self._comparison()
        self._depth += 1
        if self._depth > MOST_NESTED:
            refuse(self._text, f"nested more than {MOST_NESTED} deep", begin)
        found: Expression
        if opening == "not":
            found = Not(self._not())
        else:
            found = self._or()
            self._need(")")
        self._depth -= 1
        return found

    def _comparison(self) -> Expression:
        """Parse `a < b`, `a in (…)`, or `a < b <= c` as both of its comparisons."""
        parts: list[Expression] = []
        begin = self._peek().column
        left = self._operand()
        while True:
            if sign := self._take(*_SIGNS):
                sign = "==" if sign == "=" else sign
                is_text = isinstance(left, Name) and sign in ("==", "!=", "~")
                at = self._peek().column
                right = self._operand(is_text=is_text)
                parts.append(self._build_comparison(left, sign, right, begin, at))
                left, begin = right, at
            elif isinstance(left, Name) and self._peek().text in ("in", "not"):
                is_not = self._take("not")
                self._need("in")
                inside = WhereComparison(left, "in", self._list())
                parts.append(Not(inside) if is_not else inside)
            else:
                break
        if not parts and isinstance(left, Name) and left.kind is None and left.name in list(State):
            return WhereComparison(Name("state", begin, "run"), "==", left.name)
        if not parts:
            word = left.name if isinstance(left, Name) else ""
            self._refuse_token("a comparison such as < or ==", suggest(word, map(str, State)))
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _build_comparison(
        self, left: Name | Value, sign: str, right: Name | Value, left_at: int, right_at: int
    ) -> WhereComparison:
        if sign == "~" and (not isinstance(left, Name) or isinstance(right, Name)):
            refuse(self._text, "~ compares a name with a pattern, as in name ~ 'lr=0.1*'", right_at)
        if isinstance(left, Name):
            return WhereComparison(left, sign, right)
        if isinstance(right, Name):
            return WhereComparison(right, _MIRRORED[sign], left)
        hint = "the name of a parameter or metric has no quotes; one with special characters is in backticks: `a b`"
        refuse(self._text, "a value is compared with a value", left_at, hint)

    def _list(self) -> tuple[Value, ...]:
        closing = {"(": ")", "[": "]"}.get(self._take("(", "[") or "")
        if closing is None:
            self._refuse_token("( after `in`")
        values: list[Value] = []
        while not self._take(closing):
            at = self._peek().column
            value = self._operand(is_text=True)
            if isinstance(value, Name):
                refuse(self._text, "the list after `in` holds values, not names", at)
            values.append(value)
            if not self._take(","):
                self._need(closing)
                break
        return tuple(values)

    def _operand(self, *, is_text: bool = False) -> Name | Value:
        """Parse a name or a value. `is_text`: a bare word is a text; a word with a leading digit always is."""
        token = self._peek()
        if token.kind in ("end", "sign") or token.text in _KEYWORDS:
            self._refuse_token("a name or a value")
        self._next += 1
        if token.kind == "number":
            return _parse_number(token.text)
        if token.kind == "text":
            return re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL)
        if token.kind == "quoted":
            prefix, _, name = token.text[:-1].partition("`")
            return Name(name.replace("``", "`"), token.column, cast("Kind | None", prefix.rstrip(".") or None))
        if token.text.lower() in _CONSTANTS:
            return _CONSTANTS[token.text.lower()]
        return self._word(token, is_text)

    def _word(self, token: _Token, is_text: bool) -> Name | str:
        if token.text in AGGREGATES and self._take("("):
            begin, inner = self._peek().column, self._operand()
            if not isinstance(inner, Name) or inner.aggregate or inner.kind in ("params", "run"):
                refuse(self._text, f"{token.text}() takes the name of a metric", begin)
            self._need(")")
            return Name(inner.name, inner.column, "metrics", cast(Aggregate, token.text))
        kind, _, rest = token.text.partition(".")
        if rest and kind in ("params", "metrics", "run"):
            return Name(rest, token.column, cast(Kind, kind))
        return token.text if is_text or token.text[0].isdigit() else Name(token.text, token.column)


def _parse_number(text: str) -> float:
    is_whole = text.strip().lstrip("+-").isdigit() and len(text) < 1000  # Python refuses to convert longer integers
    return int(text) if is_whole else float(text)


def find_comparisons(expression: Expression) -> Iterator[WhereComparison]:
    if isinstance(expression, WhereComparison):
        yield expression
    else:
        for part in (expression.inner,) if isinstance(expression, Not) else expression.parts:
            yield from find_comparisons(part)


def find_names(expression: Expression) -> Iterator[Name]:
    for left, _, right in find_comparisons(expression):
        yield left
        if isinstance(right, Name):
            yield right


# ---------------------------------------------------------------- the rows that match


class WhereColumn(NamedTuple):
    """The values of a name: one for each row, MISSING for a row without one."""

    values: Sequence[Any]
    is_duration: bool = False  # in seconds: comparable with 2h30m
    is_set: bool = False  # each value contains several, as tags do: a comparison is true if one of them fulfils it
    plain: type | None = None  # the result of `find_plain`: float if all are finite numbers, str if all are texts


Resolve = Callable[[Name], WhereColumn]

# Truth values, one byte for each row: a bitwise `and` gives the smaller of two, a bitwise `or` the larger.
NO, UNKNOWN, YES = 0, 1, 3
_NOT = bytes.maketrans(bytes((NO, UNKNOWN, YES)), bytes((YES, UNKNOWN, NO)))
_IS_YES = bytes.maketrans(bytes((NO, UNKNOWN, YES)), bytes((0, 0, 1)))
_FROM_BOOL = bytes.maketrans(bytes((0, 1)), bytes((NO, YES)))


def choose(where: Where, rows: int, resolve: Resolve) -> list[int]:
    """Return the indexes of the rows that match. `resolve` raises an error for an unknown name."""
    truths = _evaluate(where, where.expression, rows, resolve)
    return list(compress(range(rows), truths.translate(_IS_YES)))


def _evaluate(where: Where, expression: Expression, rows: int, resolve: Resolve) -> bytes:
    """Return a truth value for each row, computed column by column: thousands of rows take a millisecond."""
    if isinstance(expression, WhereComparison):
        return _compare_columns(where, expression, rows, resolve)
    if isinstance(expression, Not):
        return _evaluate(where, expression.inner, rows, resolve).translate(_NOT)
    parts = (int.from_bytes(_evaluate(where, part, rows, resolve)) for part in expression.parts)
    return reduce(operator.and_ if isinstance(expression, And) else operator.or_, parts).to_bytes(rows)


def _compare_columns(where: Where, comparison: WhereComparison, rows: int, resolve: Resolve) -> bytes:
    left, sign, right = comparison
    column = resolve(left)
    if sign in _PLAIN and not isinstance(right, Name | tuple) and not column.is_set:
        value = _as_seconds(where, left, column, right)
        if _is_plain(column.plain or find_plain(column.values), sign, value):
            return bytes(map(_PLAIN[sign], column.values, repeat(value))).translate(_FROM_BOOL)
    if isinstance(right, Name):
        other = resolve(right)
        if other.is_set:
            where.refuse(f"{right.name} holds several values: write it on the left", right.column)
        seconds: Any = map(_normalise, other.values)
    elif isinstance(right, tuple):
        wanted = [_as_seconds(where, left, column, each) for each in right]
        # the keys of the set distinguish 1 and true
        seconds = repeat(frozenset((each.__class__ is bool, each) for each in wanted), rows)
    elif sign == "~":
        seconds = repeat(re.compile(fnmatch.translate(render_value(right))), rows)
    else:
        seconds = repeat(_as_seconds(where, left, column, right), rows)
    prepare = _render_known if sign == "~" else _normalise
    if not column.is_set:
        return bytes(map(_COMPARE[sign], map(prepare, column.values), seconds))
    compare = _COMPARE["==" if sign == "!=" else sign]
    found = bytes(
        max((compare(prepare(each), second) for each in several), default=NO)
        for several, second in zip(column.values, seconds, strict=True)
    )
    return found.translate(_NOT) if sign == "!=" else found


_PLAIN: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _is_plain(plain: type | None, sign: str, value: Value) -> bool:
    """Whether Python's own comparison is correct, as it usually is: numbers with a number, or equality of texts."""
    if value.__class__ in _NUMBERS:
        return plain is float
    return value.__class__ is str and plain is str and sign in ("==", "!=")


def find_plain(values: Sequence[Any]) -> type | None:
    """Return the type of all values: float for finite numbers, str for texts, None for anything else."""
    kinds = set(map(type, values))
    if kinds == {str}:
        return str
    try:
        return float if kinds <= _NUMBERS and math.isfinite(sum(values)) else None
    except OverflowError:  # an integer with hundreds of digits
        return None


def _as_seconds(where: Where, name: Name, column: WhereColumn, value: Value) -> Value:
    value = _normalise(value)
    if not column.is_duration or not isinstance(value, str):
        return value
    seconds = parse_duration(value)
    if seconds is None:
        where.refuse(f"{value!r} is not a duration", name.column, example=f"'{name.name} < 2h30m'")
    return seconds


def _normalise(value: Any) -> Any:
    """Return a number, a text that is not a number (in YAML 1e-4 is a text), true, false, null, or MISSING."""
    kind = value.__class__
    if kind is float:
        return value if value == value else MISSING  # noqa: PLR0124
    if kind is int or kind is bool or value is None or value is MISSING:
        return value
    return _normalise_text(str(value)) if isinstance(value, str) else render_value(value)


@lru_cache(4096)  # parameters and states have few different values
def _normalise_text(text: str) -> str | float:
    return _parse_number(text) if _NUMBER.fullmatch(text) else text


def _render_known(value: Any) -> Any:
    return MISSING if _normalise(value) is MISSING else render_value(value)


# The functions below are called once for each row, with normalised values.
_NUMBERS = frozenset((int, float))


def _is_equal(first: Any, second: Any) -> int:
    if first is MISSING or second is MISSING:
        return UNKNOWN
    return YES if first == second and (first.__class__ is bool) == (second.__class__ is bool) else NO


def _build_order(holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], int]:
    def compare(first: Any, second: Any) -> int:
        """Compare numbers with numbers, and texts with texts; the order of anything else is unknown."""
        kind, other = first.__class__, second.__class__
        if (kind in _NUMBERS and other in _NUMBERS) or (kind is str and other is str):
            return YES if holds(first, second) else NO
        return UNKNOWN

    return compare


def _is_among(value: Any, values: frozenset[tuple[bool, Any]]) -> int:
    if value is MISSING:
        return UNKNOWN
    return YES if (value.__class__ is bool, value) in values else NO


def _fits(text: Any, pattern: re.Pattern[str]) -> int:
    if text is MISSING:
        return UNKNOWN
    return YES if pattern.match(text) else NO


_COMPARE: dict[str, Callable[[Any, Any], int]] = {
    "==": _is_equal,
    "!=": lambda first, second: _NOT[_is_equal(first, second)],
    **{sign: _build_order(_PLAIN[sign]) for sign in ("<", "<=", ">", ">=")},
    "in": _is_among,
    "~": _fits,
}
