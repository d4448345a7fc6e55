"""Command templates of targets: words with placeholders.

A template is a text, split as a shell would, or a list of words. `{name}` stands for a value, `{{` and `}}` for braces.
Where a value is absent (no IR is dumped, no chip was named), the word that asks for it is left out; words that belong
together stand in brackets, `[--dump {ir_dir}]`, or in a list of their own, and go together. `[[` and `]]` are brackets.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from assay.errors import UsageError, did_you_mean

Value = str | Sequence[str] | None  # several words, or none: absent

OPTIONAL = ("ir_dir", "profile_dir", "chip", "hardware")
_PIECE = re.compile(r"(?P<brace>\{\{|\}\})|\{(?P<name>[A-Za-z_]\w*)\}|(?P<lone>[{}])")


@dataclass(frozen=True, slots=True)
class Part:
    """Words that are there together or not at all."""

    words: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return [name for word in self.words for name in find_names(word)]


@dataclass(frozen=True, slots=True)
class Template:
    parts: tuple[Part, ...]

    @property
    def program(self) -> str:
        return self.parts[0].words[0]

    @property
    def names(self) -> set[str]:
        return {name for part in self.parts for name in part.names}

    def expand(self, values: Mapping[str, Value]) -> list[str]:
        """The command line."""
        present = [part for part in self.parts if not any(values[name] is None for name in part.names)]
        return [text for part in present for word in part.words for text in _fill(word, values)]


def parse_template(content: object, known: Sequence[str], where: str) -> Template:
    """Raises UsageError for what is not a command line, and for placeholders that this step does not have.

    `where` is for messages: `target sim: compile`.
    """
    if isinstance(content, str):
        parts = tuple(_split_text(content, where))
    elif isinstance(content, list | tuple):
        parts = tuple(_parse_item(item, where) for item in content)
    else:
        raise UsageError(f"{where} must be a text or a list of words, not {content!r}")
    if not parts:
        raise UsageError(f"{where} is empty", 'it is a command line, as in "my-compiler {model} -o {artifact}"')
    for part in parts:
        _check(part, known, where)
    return Template(parts)


def _parse_item(item: object, where: str) -> Part:
    if isinstance(item, str):
        return Part((item,))
    if isinstance(item, list | tuple) and item and all(isinstance(word, str) for word in item):
        return Part(tuple(str(word) for word in item))
    raise UsageError(f"{where}: {item!r} is neither a word nor a list of words")


def _split_text(text: str, where: str) -> Iterator[Part]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{where} cannot be split into words: {error}", "every quote needs its end") from None
    group: list[str] | None = None
    for word in words:
        opens, closes = _is_bracket(word, "[", 0), _is_bracket(word, "]", -1)
        if group is None and not opens:
            yield Part((_unescape(word),))
            continue
        bare = word[1:] if group is None else word
        group = group or []
        group.append(_unescape(bare[:-1] if closes else bare))
        if closes:
            yield _close_group(group, where)
            group = None
    if group is not None:
        raise UsageError(f"{where}: the bracket before {group[0]!r} is never closed", "write [[ for a literal bracket")


def _is_bracket(word: str, bracket: str, end: int) -> bool:
    return bool(word) and word[end] == bracket and not (word.startswith("[[") if end == 0 else word.endswith("]]"))


def _unescape(word: str) -> str:
    word = word[1:] if word.startswith("[[") else word
    return word[:-1] if word.endswith("]]") else word


def _close_group(words: list[str], where: str) -> Part:
    part = Part(tuple(words))
    if not any(name in OPTIONAL for name in part.names):
        asked = ", ".join(f"{{{name}}}" for name in OPTIONAL)
        text = " ".join(words)
        raise UsageError(f"{where}: [{text}] asks for nothing that may be absent ({asked})", "write [[ ]] for brackets")
    return part


def _check(part: Part, known: Sequence[str], where: str) -> None:
    for word in part.words:
        for match in _PIECE.finditer(word):
            if match["lone"]:
                raise UsageError(f"{where}: a lone brace in {word!r}", "write {{ and }} for braces")
            if match["name"] and match["name"] not in known:
                message = f"{where}: {{{match['name']}}} is not known here"
                raise UsageError(message, did_you_mean(match["name"], known) or f"known: {', '.join(known)}")


def find_names(word: str) -> list[str]:
    return [match["name"] for match in _PIECE.finditer(word) if match["name"]]


def fill_text(text: str, values: Mapping[str, Value]) -> str:
    """A text whose values are all texts."""
    return "".join(_fill(text, values))


def _fill(word: str, values: Mapping[str, Value]) -> list[str]:
    """One word, or as many as a value brings that stands alone."""
    alone = re.fullmatch(r"\{(\w+)\}", word)
    if alone and not isinstance(values[alone[1]], str):
        return list(values[alone[1]] or ())

    def replace(match: re.Match[str]) -> str:
        if match["brace"]:
            return match["brace"][0]
        value = values[match["name"]]
        return value if isinstance(value, str) else " ".join(value or ())

    return [_PIECE.sub(replace, word)]
