"""Chips that a model is compiled for: `tests/testdata/chips/<name>.json`, and groups of them.

A chip's file is a table with `target`, the name that the compiler knows, and perhaps `compile_flags` and `run_flags`.
Where `target` is `custom`, the other values describe the hardware, and make up one text in the order of `_CUSTOM`.
`<name>.group` lists chips, one in a line; `default.group`, where there is one, holds when nobody asks for anything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from assay.errors import InfrastructureError, NotFoundError, UsageError

DEFAULT = "default"
ALL = "all"
_LATEST = "latest"
_CUSTOM = ("hw_id", "lram", "slice", "css", "nss", "dma_t", "dma_f", "triple", "cpu", "features")  # beginnings of keys


def choose_chips(text: str | None, folder: str) -> tuple[str, ...]:
    """The names of the chips: `a,b`, `all` (every newest one), a group; nothing said: the default. Raises UsageError.

    `default` is a name that needs no file: the compiler gets no flag for the chip.
    """
    if text is None:
        return _choose_default(folder)
    found = [name for word in text.split(",") if word.strip() for name in _choose_one(word.strip(), folder)]
    if not found:
        raise UsageError("which chips?", "as in --torq-chips a,b, or all, or a group's name")
    return tuple(dict.fromkeys(found))


def _choose_default(folder: str) -> tuple[str, ...]:
    group = os.path.join(folder, f"{DEFAULT}.group")
    return _load_group(group, folder) if os.path.isfile(group) else (DEFAULT,)


def _choose_one(word: str, folder: str) -> tuple[str, ...]:
    known = _list_folder(folder)
    if word == ALL:
        return _choose_newest(folder, known)
    group = f"{word.removesuffix('.group')}.group"
    if group in known:
        return _load_group(os.path.join(folder, group), folder)
    if word == DEFAULT or f"{word}.json" in known:
        return (word,)
    names = [os.path.splitext(name)[0] for name in known]
    hint = None if names else f"there are no chips in {folder}"
    raise NotFoundError("chip", word, [*names, DEFAULT, ALL], hint)


def _choose_newest(folder: str, known: Sequence[str]) -> tuple[str, ...]:
    """Links such as `abc-latest.json` name the newest of each kind; without any, all are meant."""
    chips = [name for name in known if name.endswith(".json")]
    newest = [name for name in chips if os.path.splitext(name)[0].endswith(_LATEST)]
    paths = [os.path.realpath(os.path.join(folder, name)) for name in newest or chips]
    if not paths:
        raise UsageError(f"there are no chips in {folder}", "a chip is a file there: NAME.json")
    return tuple(sorted({os.path.splitext(os.path.basename(path))[0] for path in paths}))


def _load_group(path: str, folder: str) -> tuple[str, ...]:
    lines = [line.partition("#")[0].strip() for line in _load_text(path).splitlines()]
    names = tuple(line for line in lines if line)
    if not names:
        raise UsageError(f"{path} does not name a chip", "write one in each line")
    there = _list_folder(folder)
    for name in names:
        if name != DEFAULT and f"{name}.json" not in there:
            known = [os.path.splitext(each)[0] for each in there if each.endswith(".json")]
            raise NotFoundError(f"chip (of {os.path.basename(path)})", name, known)
    return names


def _list_folder(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith((".json", ".group")))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InfrastructureError(f"the folder of chips {folder} cannot be read: {error.strerror}") from error


def _load_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


# ---------------------------------------------------------------- one chip


def load_chip(name: str, folder: str) -> dict[str, Any]:
    """What is known of it; nothing for a `default` that has no file. Raises UsageError."""
    path = os.path.join(folder, f"{name}.json")
    if name == DEFAULT and not os.path.exists(path):
        return {}
    text = _load_text(path)
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path} is broken JSON: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("target", ""), str):
        raise UsageError(f"{path} is not a chip's file", 'it is a table with a target, as in {"target": "SL2610"}')
    return content


def name_chip(content: Mapping[str, Any]) -> str | None:
    """What a compiler gets: the value of `{chip}`. None: nothing."""
    target = content.get("target")
    if target != "custom":
        return str(target) if target else None
    return ":".join(_find_value(content, start) for start in _CUSTOM).rstrip(":")


def _find_value(content: Mapping[str, Any], start: str) -> str:
    return next((str(value) for key, value in content.items() if key.startswith(start)), "")


def read_flags(content: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """`compile_flags` or `run_flags` of a chip."""
    value = content.get(key, [])
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise UsageError(f"{key} of a chip must be a list of texts")
    return tuple(value)
