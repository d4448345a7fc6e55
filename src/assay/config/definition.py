"""Renders a program's Python values as the text of a native file, and as words of the command line."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any

from assay.config.native import KEYS
from assay.config.source import MAX_DEPTH, TAG, Problems, build_native, join_key
from assay.errors import did_you_mean
from assay.values.study import Value

_WIDTH = 110
_LONGEST_WORD = 100_000  # a safe limit in bytes: Linux refuses arguments of 128 KiB


def render_definition(keys: Mapping[str, object]) -> str:
    """Render the keys of a native file as YAML, in the given order; a key with None is left out. Raises ConfigError
    that lists every unknown keyword, and every value that a file cannot contain."""
    import yaml

    problems = Problems()
    given = {key: value for key, value in keys.items() if value is not None}
    for key in given:
        if key not in KEYS:
            hint = did_you_mean(key, KEYS) or f"known: {', '.join(KEYS)}"
            problems.add("unknown keyword", key, None, hint)
    plain = {key: _build_plain(value, key, problems) for key, value in given.items()}
    problems.raise_if_any()
    text: str = yaml.dump(
        plain, Dumper=_dumper(), sort_keys=False, allow_unicode=True, default_flow_style=None, width=_WIDTH
    )
    return text


def render_assignments(values: Mapping[str, object]) -> tuple[str, ...]:
    """Render `NAME=VALUE` words for the command line, which are parsed to the same values. Raises ConfigError that
    lists every value that a word cannot contain."""
    import yaml

    problems = Problems()
    words = []
    for name, value in values.items():
        plain = _build_plain(value, name, problems)
        text = yaml.dump([plain], Dumper=_quoting_dumper(), allow_unicode=True, default_flow_style=True, width=math.inf)
        word = f"{name}={text.strip()[1:-1]}"
        if "=" in name or not name.strip():
            problems.add(f"{name!r} cannot name a parameter here", "", None, "leave out the equals sign")
        elif len(word) > _LONGEST_WORD:
            hint = "put them into `params` of the study, or use {'range': …}"
            problems.add("has too many values for an override", name, None, hint)
        words.append(word)
    problems.raise_if_any()
    return tuple(words)


def _build_plain(value: Any, key: str, problems: Problems, depth: int = 0) -> Value:
    """Return a plain value; values of numpy and torch are recognised by their `tolist()`."""
    if isinstance(value, Enum):
        value = value.value
    elif isinstance(value, os.PathLike):
        value = os.fsdecode(value)
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)  # a subclass, such as numpy.float64, is converted too
    message = f"a study file cannot hold a value of the type {type(value).__name__}"
    hint = "give numbers, texts, paths, lists, tuples, ranges, arrays or mappings of them"
    if depth > MAX_DEPTH:
        message, hint = "nested too deeply", f"at most {MAX_DEPTH} levels are read"
    elif callable(getattr(value, "tolist", None)):
        return _build_plain(value.tolist(), key, problems, depth + 1)
    elif isinstance(value, Mapping):
        named = [(str(name), each) for name, each in value.items()]
        return {name: _build_plain(each, join_key(key, name), problems, depth + 1) for name, each in named}
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_build_plain(each, f"{key}[{index}]", problems, depth + 1) for index, each in enumerate(value)]
    problems.add(message, key, None, hint)
    return None


@cache
def _quoting_dumper() -> Any:
    """Return a dumper that puts every text in double quotes, which words of the command line accept, also in lists."""
    quoting: Any = type("QuotingDumper", (_dumper(),), {})
    quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar(f"{TAG}str", text, style='"'))
    return quoting


@cache
def _dumper() -> Any:
    """Return a dumper that puts quotes only around texts that the native flavour would not read as text."""
    import yaml

    native = build_native(yaml.SafeDumper)
    native.add_representer(
        str, lambda dumper, text: dumper.represent_scalar(f"{TAG}str", text, style="|" if "\n" in text else None)
    )
    native.ignore_aliases = lambda _dumper, _value: True  # a list that is used twice is written twice
    return native
