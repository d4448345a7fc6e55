"""Values as JSON-like data and back, by their own annotations: for what travels to another process or into a file.

Numbers that JSON does not know (NaN, infinities) travel as texts where a float is expected. Unknown keys are those of a
newer version, and are passed over; a missing key takes the field's default.
"""

from __future__ import annotations

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
_STRANGE = {"nan", "inf", "-inf"}
NO_DATE = "an impossible time"
_HUGE = 2**63  # what SQLite and the C library take


def build_plain(value: Any) -> Any:
    """Dataclasses become mappings, tuples lists, enumerations their value."""
    if is_dataclass(value):
        return {each.name: build_plain(getattr(value, each.name)) for each in fields(value)}
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
    """A value of this class from what `build_plain` made of it. Raises ValueError, TypeError or KeyError."""
    parsed: T = _parse(kind, content)
    return parsed


def keep_fitting(kind: Any, content: Mapping[str, Any]) -> dict[str, Any]:
    """JSON-like data without the fields that do not hold what the class says of them; unknown keys stay."""
    hints = _hints(kind)
    return {name: value for name, value in content.items() if name not in hints or _fits(hints[name], value)}


def _fits(kind: Any, content: Any) -> bool:
    try:
        _parse(kind, content)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return False
    return True


class WrongTypeError(TypeError):
    """A field does not hold what its annotation says; the text is for people."""


def check_types(value: T, *, finite: bool = True) -> T:
    """The dataclass itself. Raises WrongTypeError for a field that does not hold what its annotation says: JSON may
    hold anything, and a damaged file must not end in an error far from where it was read. Numbers must be finite,
    unless a file keeps what a program measured."""
    kind: Any = type(value)
    for name, fits in _checks(kind, finite):
        if not fits(getattr(value, name)):
            raise WrongTypeError(f"{name} is {repr(getattr(value, name))[:60]}")
    return value


@cache
def _checks(kind: Any, finite: bool) -> tuple[tuple[str, Callable[[Any], bool]], ...]:
    hints = _hints(kind)
    return tuple((each.name, _build_check(hints[each.name], finite)) for each in fields(kind))


def _build_check(kind: Any, finite: bool) -> Callable[[Any], bool]:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return lambda _value: True
    if origin in (types.UnionType, typing.Union):
        choices = [_build_check(each, finite) for each in inner]
        return lambda value: any(fits(value) for fits in choices)
    if origin is tuple:
        return _build_tuple_check(inner, finite)
    if origin is typing.Literal:
        return lambda value: isinstance(value, str) and value in inner
    if origin is not None:  # a mapping
        fits_key, fits_value = _build_check(inner[0], finite), _build_check(inner[1], finite)
        return lambda value: (
            isinstance(value, Mapping) and all(fits_key(key) and fits_value(each) for key, each in value.items())
        )
    return _build_scalar_check(kind, finite)


def _build_tuple_check(inner: tuple[Any, ...], finite: bool) -> Callable[[Any], bool]:
    if len(inner) == 2 and inner[1] is Ellipsis:
        fits = _build_check(inner[0], finite)
        return lambda value: isinstance(value, tuple) and all(map(fits, value))
    each = [_build_check(kind, finite) for kind in inner]
    return lambda value: (
        isinstance(value, tuple)
        and len(value) == len(each)
        and all(fits(part) for fits, part in zip(each, value, strict=True))
    )


def _build_scalar_check(kind: Any, finite: bool) -> Callable[[Any], bool]:
    if kind is float:
        return lambda value: (type(value) is float and (not finite or math.isfinite(value))) or _is_whole(value)
    if kind is int:
        return _is_whole
    if is_dataclass(kind):
        return lambda value: isinstance(value, kind) and bool(check_types(value, finite=finite))  # type: ignore[arg-type]
    return lambda value: isinstance(value, kind)


def _is_whole(value: Any) -> bool:
    return type(value) is int and -_HUGE <= value < _HUGE


def _parse(kind: Any, content: Any) -> Any:  # noqa: PLR0911 one return for each shape of an annotation
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return content
    if origin in (types.UnionType, typing.Union):
        return _parse_union(inner, content)
    if origin is tuple:
        return _parse_tuple(inner, content)
    if origin is list:
        return [_parse(inner[0], each) for each in content]
    if origin is typing.Literal:
        return content
    if origin is not None and issubclass(origin, Mapping):
        return {key: _parse(inner[1], each) for key, each in content.items()}
    if is_dataclass(kind):
        return _parse_dataclass(kind, content)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(content)
    return _parse_scalar(kind, content)


def _parse_dataclass(kind: Any, content: Mapping[str, Any]) -> Any:
    hints = _hints(kind)
    known = {each.name for each in fields(kind) if each.init}
    return kind(**{name: _parse(hints[name], value) for name, value in content.items() if name in known})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _parse_tuple(inner: tuple[Any, ...], content: Any) -> tuple[Any, ...]:
    if len(inner) == 2 and inner[1] is Ellipsis:
        return tuple(_parse(inner[0], each) for each in content)
    if len(inner) != len(content):
        raise ValueError(f"{len(content)} values where {len(inner)} are expected")
    return tuple(_parse(each, value) for each, value in zip(inner, content, strict=True))


def _parse_union(inner: tuple[Any, ...], content: Any) -> Any:
    """The first alternative that takes it; texts and whole numbers are not bent into floats when they need not be."""
    if content is None:
        return None
    choices = [each for each in inner if each is not type(None)]
    exact = [each for each in choices if isinstance(each, type) and type(content) is each]
    for choice in (*exact, *choices):
        try:
            return _parse(choice, content)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    raise ValueError(f"{content!r} is none of {inner}")


def _parse_scalar(kind: Any, content: Any) -> Any:
    if kind is float and (isinstance(content, (int, float)) or content in _STRANGE):
        return float(content)
    if not isinstance(content, kind):
        raise TypeError(f"{content!r} is no {kind.__name__}")
    return content


# ---------------------------------------------------------------- times


def render_date(seconds: float, form: str, zone: tzinfo | None = None) -> str:
    """As strftime; a file may hold a number that is no time of any calendar. Without a zone: local time."""
    try:
        return datetime.fromtimestamp(seconds, zone).strftime(form)
    except (OverflowError, ValueError, OSError):
        return NO_DATE
