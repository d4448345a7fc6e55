"""A small judge of JSON by a schema: the words that our schemas use, and no others.

A word that it does not know is an error and not passed over, so a schema cannot promise what is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
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
        if word == "$ref":
            yield from problems(value, top["$defs"][wanted.removeprefix("#/$defs/")], top, at)
        elif word == "items":
            for number, each in enumerate(value if isinstance(value, list) else []):
                yield from problems(each, wanted, top, f"{at}[{number}]")
        elif word == "anyOf":
            if all(list(problems(value, each, top, at)) for each in wanted):
                yield f"{at} fits none of {len(wanted)}: {value!r}"
        elif not CHECKS[word](value, wanted):
            yield f"{at} does not have {word} {wanted!r}: {value!r}"
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


def is_of_type(value: Any, wanted: str | list[str]) -> bool:
    names = [wanted] if isinstance(wanted, str) else wanted
    return any(isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool)) for name in names)


CHECKS: dict[str, Callable[[Any, Any], bool]] = {  # of a value by itself
    "type": is_of_type,
    "enum": lambda value, wanted: value in wanted,
    "const": lambda value, wanted: value == wanted and type(value) is type(wanted),
    "required": lambda value, wanted: not isinstance(value, dict) or value.keys() >= set(wanted),
    "minimum": lambda value, wanted: not isinstance(value, (int, float)) or value >= wanted,
    "minLength": lambda value, wanted: not isinstance(value, str) or len(value) >= wanted,
    "pattern": lambda value, wanted: not isinstance(value, str) or re.search(wanted, value) is not None,
}
