"""Convert dataclasses to JSON-like data and back, by their annotations: for other processes and for files.

Numbers that JSON does not have (NaN, infinities) are strings if a float is expected. Unknown keys, of a newer
version, are ignored; a missing key takes the field's default.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from datetime import datetime, tzinfo
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from assay.system.fast_dataclasses import fields, is_dataclass

T = TypeVar("T")
Parse = Callable[[Any], Any]
Numbers = typing.Literal["any", "measured", "finite"]
_STRANGE = {"nan", "inf", "-inf"}
NO_DATE = "an impossible time"
_HUGE = 2**63  # the limit of SQLite and the C library


def build_plain(value: Any) -> Any:
    """Convert dataclasses to mappings, tuples to lists, enumerations to their values."""
    if is_dataclass(value):
        return {name: build_plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): build_plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [build_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def parse_plain(kind: type[T], content: Any) -> T:
    """Parse the result of `build_plain`, or a list of fields; raise ValueError, TypeError, KeyError, WrongTypeError."""
    parsed: T = _build_parser(typing.cast("Any", kind), "any")(content)
    return parsed


def parse_strict(kind: type[T], content: Any, *, finite: bool = True) -> T:
    """Parse a file that may be damaged: numbers must be within the limits of SQLite and the C library, and finite
    unless the file has measured values; literals must be valid."""
    parsed: T = _build_parser(typing.cast("Any", kind), "finite" if finite else "measured")(content)
    return parsed


def keep_fitting(kind: Any, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON-like data without fields that do not fit the class's annotations; unknown keys stay."""
    hints, kept = _hints(kind), {}
    for name, value in content.items():
        try:
            _build_parser(hints.get(name, Any), "any")(value)
            kept[name] = value
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            continue
    return kept


class WrongTypeError(TypeError):
    """The value of a field does not fit its annotation; the message is for people."""


def _is_whole(value: Any) -> bool:
    return type(value) is int and -_HUGE <= value < _HUGE


@cache
def _build_parser(kind: Any, numbers: Numbers) -> Parse:  # noqa: PLR0911 one return for each kind of annotation
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return _keep
    if origin in (types.UnionType, typing.Union):
        return _build_union_parser(inner, numbers)
    if origin is tuple:
        return _build_tuple_parser(inner, numbers)
    if origin is list:
        parse_element = _build_parser(inner[0], numbers)
        return lambda content: [parse_element(each) for each in content]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        parse_value = _build_parser(inner[1], numbers)
        if parse_value is _keep:
            return lambda content: dict(content.items())
        return lambda content: {key: parse_value(each) for key, each in content.items()}
    if is_dataclass(kind):
        return _build_dataclass_parser(kind, numbers)
    return _build_scalar_parser(kind, numbers)


def _keep(content: Any) -> Any:
    return content


def _build_dataclass_parser(kind: Any, numbers: Numbers) -> Parse:
    names = tuple(each.name for each in fields(kind) if each.init)
    parsers: dict[str, Parse] = {}  # filled by the first call, since a class may contain instances of itself

    def parse(content: Any) -> Any:
        if not parsers:
            hints = _hints(kind)
            parsers.update({name: _build_parser(hints[name], numbers) for name in names})
        given = dict(zip(names, content, strict=False)) if isinstance(content, list) else content
        try:
            return kind(**{name: parsers[name](value) for name, value in given.items() if name in parsers})
        except WrongTypeError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _find_misfit(parsers, given) or error from error

    return parse


def _find_misfit(parsers: Mapping[str, Parse], given: Any) -> WrongTypeError | None:
    """Find the field with a wrong value; None if a field is missing, or `given` is not a mapping."""
    for name, value in given.items() if isinstance(given, Mapping) else ():
        try:
            parsers.get(name, _keep)(value)
        except (ValueError, TypeError, KeyError, AttributeError):
            return WrongTypeError(f"{name} is {repr(value)[:60]}")
    return None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _build_tuple_parser(inner: tuple[Any, ...], numbers: Numbers) -> Parse:
    if len(inner) == 2 and inner[1] is Ellipsis:
        parse_element = _build_parser(inner[0], numbers)
        return lambda content: tuple([parse_element(each) for each in _check_list(content)])
    parsers = [_build_parser(each, numbers) for each in inner]

    def parse(content: Any) -> tuple[Any, ...]:
        if len(parsers) != len(_check_list(content)):
            raise ValueError(f"{len(content)} values where {len(parsers)} are expected")
        return tuple([each(value) for each, value in zip(parsers, content, strict=True)])

    return parse


def _check_list(content: Any) -> Any:
    if not isinstance(content, list | tuple):
        raise TypeError(f"{content!r} is not a list")
    return content


def _build_union_parser(inner: tuple[Any, ...], numbers: Numbers) -> Parse:
    """Parse by the first alternative that fits; strings and integers are not converted to floats needlessly."""
    choices = [each for each in inner if each is not type(None)]
    parsers = [_build_parser(each, numbers) for each in choices]
    exact = {each: parse for each, parse in zip(choices, parsers, strict=True) if isinstance(each, type)}
    is_optional = len(choices) < len(inner)
    if is_optional and len(parsers) == 1:
        (only,) = parsers
        return lambda content: None if content is None else only(content)

    def parse(content: Any) -> Any:
        if content is None and is_optional:
            return None
        first = exact.get(type(content))
        for each in (*([first] if first else []), *parsers):
            try:
                return each(content)
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
        raise ValueError(f"{content!r} is none of {inner}")

    return parse


def _build_scalar_parser(kind: Any, numbers: Numbers) -> Parse:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        return _keep if numbers == "any" else _require(lambda content: content in choices, "one of its values")
    if kind is float and numbers == "any":
        return _parse_float
    if kind is float:
        takes = math.isfinite if numbers == "finite" else lambda _number: True
        return _require(lambda content: (type(content) is float and takes(content)) or _is_whole(content), "float")
    if kind is int and numbers != "any":
        return _require(_is_whole, "int")
    return _require(lambda content: isinstance(content, kind), kind.__name__)


def _require(fits: Callable[[Any], bool], wanted: str) -> Parse:
    def parse(content: Any) -> Any:
        if not fits(content):
            raise TypeError(f"{content!r} is not {wanted}")
        return content

    return parse


def _parse_float(content: Any) -> float:
    if isinstance(content, (int, float)) or content in _STRANGE:
        return float(content)
    raise TypeError(f"{content!r} is not a number")


def render_value(value: Any) -> str:
    """Render strings unchanged, and everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def render_date(seconds: float, form: str, zone: tzinfo | None = None) -> str:
    """Render a time by strftime, in local time without a `zone`; NO_DATE for an impossible time."""
    try:
        return datetime.fromtimestamp(seconds, zone).strftime(form)
    except (OverflowError, ValueError, OSError):
        return NO_DATE
