"""Commands that are called without click, which takes longer to import than most commands run.

Only plain words are read here: options by their full names, with valid values. Everything else (help, abbreviations,
joined short options, mistakes) is left to click, so that messages have a single source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.plugins import load
from assay.show.console import Console
from assay.values.options import Group, Option, find_request, reads_words


def find_call(words: Sequence[str], group: Group, services: Mapping[str, object]) -> Callable[[], Any] | None:
    """Return the call for these words; None if click has to parse them."""
    if not words or words[0] not in group.commands:
        return None
    found = load(group.commands[words[0]][0])
    if isinstance(found, Group):
        return find_call(words[1:], found, services)
    if reads_words(found):
        return lambda: found(words[1:])
    request = find_request(found)
    if request is None:
        return None
    given = parse_words(words[1:], request.OPTIONS)
    if given is None:
        return None
    further = {key: value for key, value in services.items() if key in found.__annotations__}
    return lambda: found(request.from_command_line(given), Console(), **further)


def parse_words(words: Sequence[str], options: Mapping[str, Option]) -> dict[str, Any] | None:
    """Return the values of options and arguments by field, as click would; None if click has to parse the words."""
    fields = {name: field for field, each in options.items() for name in each.names}
    given: dict[str, Any] = {field: [] if each.multiple else each.default for field, each in options.items()}
    seen: set[str] = set()
    arguments: list[str] = []
    left = list(reversed(words))
    while left:
        word = left.pop()
        if word == "--":
            arguments += reversed(left)
            break
        if not word.startswith("-"):
            arguments.append(word)
            continue
        name, equals, text = word.partition("=") if word.startswith("--") else (word, "", "")
        field = fields.get(name)
        if field is None or (options[field].is_flag and equals):
            return None
        seen.add(field)
        if options[field].is_flag:
            given[field] = True
            continue
        if not equals:
            text = left.pop() if left else ""
        if not _take(text, field, options[field], given, dashes=bool(equals)):
            return None
    is_complete = all(field in seen for field, each in options.items() if each.names and each.required)
    return given if is_complete and _take_arguments(arguments, options, given) else None


def _take(text: str, field: str, option: Option, given: dict[str, Any], *, dashes: bool) -> bool:
    """Store the text as the option's value; return False if it may not be valid."""
    if not text or (text.startswith("-") and not dashes) or (option.choices and text not in option.choices):
        return False
    value: Any = text
    if option.type is not str:
        try:
            value = option.type(text)
        except ValueError:
            return False
        low, high = option.minimum, option.maximum
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            return False
    if option.multiple:
        given[field].append(value)
    else:
        given[field] = value
    return True


def _take_arguments(arguments: Sequence[str], options: Mapping[str, Option], given: dict[str, Any]) -> bool:
    left = list(arguments)
    for field, each in options.items():
        if each.names:
            continue
        taken, left = (left, []) if each.multiple else (left[:1], left[1:])
        if each.required and not taken:
            return False
        if not all(_take(text, field, each, given, dashes=True) for text in taken):
            return False
    return not left
