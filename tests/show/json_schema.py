"""A small judge of JSON by a schema: the words that our schemas use, and no others.

A word that it does not know is an error and not passed over, so a schema cannot promise what is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

SILENT = {"$schema", "title", "description", "$defs"}
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "number": (int, float),
    "integer": int,
}


def problems(
    value: Any, schema: Mapping[str, Any], top: Mapping[str, Any] | None = None, at: str = "$"
) -> Iterator[str]:
    top = schema if top is None else top
    for word, wanted in schema.items():
        if word in SILENT or word in ("properties", "additionalProperties"):
            continue
        yield from WORDS[word](value, wanted, top, at)
    if isinstance(value, dict):
        yield from _properties(value, schema, top, at)


def _properties(value: dict[str, Any], schema: Mapping[str, Any], top: Mapping[str, Any], at: str) -> Iterator[str]:
    known = schema.get("properties", {})
    further = schema.get("additionalProperties", True)
    for key, each in value.items():
        if key in known:
            yield from problems(each, known[key], top, f"{at}.{key}")
        elif further is False:
            yield f"{at}.{key} is not expected"
        elif further is not True:
            yield from problems(each, further, top, f"{at}.{key}")


def _type(value: Any, wanted: str | list[str], _top: object, at: str) -> Iterator[str]:
    names = [wanted] if isinstance(wanted, str) else wanted
    if not any(isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool)) for name in names):
        yield f"{at} is no {wanted}: {value!r}"


def _required(value: Any, wanted: list[str], _top: object, at: str) -> Iterator[str]:
    yield from (f"{at}.{key} is missing" for key in wanted if isinstance(value, dict) and key not in value)


def _items(value: Any, wanted: Mapping[str, Any], top: Mapping[str, Any], at: str) -> Iterator[str]:
    for number, each in enumerate(value if isinstance(value, list) else []):
        yield from problems(each, wanted, top, f"{at}[{number}]")


def _ref(value: Any, wanted: str, top: Mapping[str, Any], at: str) -> Iterator[str]:
    yield from problems(value, top["$defs"][wanted.removeprefix("#/$defs/")], top, at)


def _any_of(value: Any, wanted: list[Mapping[str, Any]], top: Mapping[str, Any], at: str) -> Iterator[str]:
    if all(list(problems(value, each, top, at)) for each in wanted):
        yield f"{at} fits none of {len(wanted)}: {value!r}"


def _enum(value: Any, wanted: list[Any], _top: object, at: str) -> Iterator[str]:
    if value not in wanted:
        yield f"{at} is none of {wanted}: {value!r}"


def _const(value: Any, wanted: Any, _top: object, at: str) -> Iterator[str]:
    if value != wanted or type(value) is not type(wanted):
        yield f"{at} is not {wanted!r}: {value!r}"


def _minimum(value: Any, wanted: float, _top: object, at: str) -> Iterator[str]:
    if isinstance(value, (int, float)) and not value >= wanted:
        yield f"{at} is below {wanted}: {value!r}"


def _min_length(value: Any, wanted: int, _top: object, at: str) -> Iterator[str]:
    if isinstance(value, str) and len(value) < wanted:
        yield f"{at} is too short: {value!r}"


def _pattern(value: Any, wanted: str, _top: object, at: str) -> Iterator[str]:
    if isinstance(value, str) and not re.search(wanted, value):
        yield f"{at} does not match {wanted}: {value!r}"


WORDS: dict[str, Any] = {
    "type": _type,
    "required": _required,
    "items": _items,
    "$ref": _ref,
    "anyOf": _any_of,
    "enum": _enum,
    "const": _const,
    "minimum": _minimum,
    "minLength": _min_length,
    "pattern": _pattern,
}
