r"""Command templates: splits a text into pieces.

`{name}` is a value, `[name]` a flag; `{{name}}` and `[[name]]` are a literal `{name}` and `[name]`. Everything else is
shell text that stays unchanged: `${HOME}`, `$((1+2))`, `l[0]`, `[ -f x ]`, `{1..3}`, `'{"a": 1}'`, `awk '{print $1}'`.

A flag is a word of its own, so `arr[i]` and `file[ab].txt` are not flags. The scanner follows the shell's quoting,
because a value has to be quoted for the position where it is inserted; it does not interpret comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from assay.errors import ConfigError
from assay.values.study import Flag, Piece, Placeholder, Position, Problem, Quote, ShellText

# values of every run, besides its parameters
RUN_VALUES = ("run.dir", "run.name", "run.id", "run.time", "study")

_NAME = r"[^\W\d][\w-]*(?:\.[\w-]+)*"
_ESCAPED = re.compile(rf"\{{(\{{{_NAME}\}})\}}|\[(\[{_NAME}\])\]")
_PLACE = re.compile(rf"\{{({_NAME})\}}")
_FLAG = re.compile(rf"\[({_NAME})\](?=$|[\s;&|)\"'`])")
# an opening bracket and a name without a closing bracket before the next opening one, or before the end
_UNCLOSED = re.compile(rf"\[{_NAME}(?=[\s;&|)][^\[\]]*(?:\[|\Z)|\Z)|\{{{_NAME}(?=[\s;&|)][^{{}}]*(?:\{{|\Z)|\Z)")
_PLAIN = re.compile(r"[^\\'\"$`#(){}\[]+")  # text without characters that have a meaning in a template
_BEFORE_FLAG = " \t\n;&|(\"'`"
_BEFORE_COMMENT = " \t\n;&|("

_Context = Literal["bare", "single", "double", "ansi", "paren", "backtick"]
_QUOTE: dict[_Context, Quote] = {"single": "single", "double": "double"}


def parse_template(text: str, position: Position | None = None, key: str = "") -> tuple[Piece, ...]:
    """Split a command's text. Raises ConfigError for a quote or a placeholder that is never closed."""
    scanner = _Scanner(text)
    pieces = scanner.scan()
    problems = [] if "<<" in text else list(scanner.problems())  # a here-document has quotes and brackets of its own
    if problems:
        raise ConfigError([Problem(message, key, position, hint) for message, hint in problems])
    return pieces


def template_names(pieces: tuple[Piece, ...]) -> list[str]:
    """Return the names that a template uses, without the run's own values."""
    return [piece.name for piece in pieces if isinstance(piece, Placeholder | Flag) and piece.name not in RUN_VALUES]


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._contexts: list[_Context] = ["bare"]
        self._pieces: list[Piece] = []
        self._plain: list[str] = []
        self._unclosed: list[str] = []  # unclosed names, such as `[lr` and `{lr`

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield each opening that is never closed, and what to do about it."""
        marks = {"single": "'", "ansi": "'", "double": '"', "backtick": "`"}
        quote = next((marks[context] for context in self._contexts if context in marks), None)
        if quote:
            yield f"the quote {quote} is opened and never closed", "close it, or write \\' for a lone apostrophe"
        for opened in dict.fromkeys(self._unclosed):
            closed = opened + ("]" if opened[0] == "[" else "}")
            yield f"{opened} is not closed", f"write {closed}, or '{opened}' in quotes for the literal text"

    def scan(self) -> tuple[Piece, ...]:
        while self._at < len(self._text):
            plain = _PLAIN.match(self._text, self._at)
            if plain:
                self._copy(plain.end() - plain.start())
            elif not self._take_name():
                self._take_shell()
        self._flush()
        return tuple(self._pieces)

    def _take_name(self) -> bool:
        """Take an escape, a placeholder or a flag at this position."""
        if self._text[self._at] not in "{[":
            return False
        escaped = _ESCAPED.match(self._text, self._at)
        if self._before() == "$" and not (escaped and escaped[1]):
            return False
        if escaped:
            self._plain.append(escaped[1] or escaped[2])
            self._at = escaped.end()
            return True
        if place := _PLACE.match(self._text, self._at):
            self._put(Placeholder(place[1], self._quote()))
            self._at = place.end()
            return True
        flag = _FLAG.match(self._text, self._at)
        if flag and (self._at == 0 or self._before() in _BEFORE_FLAG):
            self._put(Flag(flag[1], self._quote()))
            self._at = flag.end()
            return True
        # an unclosed name outside of quotes, where `[name` alone means nothing to the shell either
        opened = _UNCLOSED.match(self._text, self._at)
        is_place = self._text[self._at] == "{" or self._at == 0 or self._before() in _BEFORE_FLAG
        if opened and is_place and self._contexts[-1] in ("bare", "paren"):
            self._unclosed.append(opened[0])
        return False

    def _put(self, piece: Piece) -> None:
        """Add a piece. In $'…' no value is safe, so the quote is closed around it."""
        ansi = self._contexts[-1] == "ansi"
        if ansi:
            self._plain.append("'")
        self._flush()
        self._pieces.append(piece)
        if ansi:
            self._plain.append("$'")

    def _take_shell(self) -> None:
        """Take one character that may change the quoting."""
        character, context = self._text[self._at], self._contexts[-1]
        if context == "single":
            if character == "'":
                self._contexts.pop()
        elif character == "\\":
            self._copy(1)
        elif context == "ansi":
            if character == "'":
                self._contexts.pop()
        elif character == "$" and self._text.startswith("$(", self._at):
            self._contexts.append("paren")
            self._copy(1)
        elif character == "`":
            self._toggle("backtick")
        elif character == '"':
            self._toggle("double")
        elif context != "double":
            self._take_bare(character)
        self._copy(1)

    def _take_bare(self, character: str) -> None:
        if character == "'":
            self._contexts.append("ansi" if self._before() == "$" else "single")
        elif character == "(" and self._contexts[-1] == "paren":
            self._contexts.append("paren")
        elif character == ")" and self._contexts[-1] == "paren":
            self._contexts.pop()
        elif character == "#" and (self._at == 0 or self._before() in _BEFORE_COMMENT):
            end = self._text.find("\n", self._at)
            self._copy((end if end >= 0 else len(self._text)) - self._at - 1)

    def _toggle(self, context: _Context) -> None:
        if self._contexts[-1] == context:
            self._contexts.pop()
        else:
            self._contexts.append(context)

    def _quote(self) -> Quote:
        return _QUOTE.get(self._contexts[-1], "bare")

    def _before(self) -> str:
        return self._text[self._at - 1] if self._at else ""

    def _copy(self, count: int) -> None:
        self._plain.append(self._text[self._at : self._at + count])
        self._at += count

    def _flush(self) -> None:
        if self._plain:
            self._pieces.append(ShellText("".join(self._plain)))
            self._plain.clear()
