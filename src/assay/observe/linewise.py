"""Regular expressions that mean one line, run over many lines at once.

A search per line spends most of its time in Python. `re.finditer` over a whole block does not, but it may see
beyond a line's end: `\\s` and `[^,]` match a newline. So an expression is rewritten until nothing in it can; where
that cannot be shown (verbose or dot-all expressions, a class such as `[\\s,]`), it is searched line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_LINE = re.compile(r"[^\n]+")
_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|[0-7]{3}|0[0-7]?|[1-9][0-9]?|.)"
_CLASS = r"\[\^?\]?(?:\\.|[^]\\])*\]"
_OPENING = r"\(\?(?:P[<=>]|<[=!]|[:=!>#(]|[aiLmsux]*-?[aiLmsux]*[:)])?"
_TOKEN = re.compile(f"{_ESCAPE}|{_CLASS}|{_OPENING}|.", re.DOTALL)
_WITHOUT_NEWLINE = {r"\s": r"[^\S\n]", r"\W": r"[^\w\n]", r"\D": r"[^\d\n]", r"\A": "^", r"\Z": "$"}
_ANCHORS = {r"\b", r"\B"}


class Found(NamedTuple):
    """Matches in order; `bases` is where each one's line starts when the search went line by line."""

    matches: list[re.Match[str]]
    bases: list[int] | None

    def starts(self) -> list[int]:
        if self.bases is None:
            return [match.start() for match in self.matches]
        return [base + match.start() for base, match in zip(self.bases, self.matches, strict=True)]

    def texts(self, group: int) -> list[str]:
        return [match[group] for match in self.matches]


class LineRegex:
    """An expression whose matches never leave a line. Raises `re.error` when it is not one."""

    def __init__(self, regex: str) -> None:
        self.regex = re.compile(regex)
        self._bulk = _compile_bulk(regex)

    @property
    def is_bulk(self) -> bool:
        return self._bulk is not None

    def find(self, text: str) -> Found:
        """Every match in `text`, whose lines end with a newline."""
        if self._bulk is not None:
            return Found(list(self._bulk.finditer(text)), None)
        pairs = [(line.start(), match) for line in _LINE.finditer(text) for match in self.regex.finditer(line[0])]
        return Found([match for _, match in pairs], [base for base, _ in pairs])


def _compile_bulk(regex: str) -> re.Pattern[str] | None:
    pieces = list(_rewrite(regex))
    if None in pieces:
        return None
    try:
        return re.compile("".join(piece for piece in pieces if piece is not None), re.MULTILINE)
    except re.error:
        return None


def _rewrite(regex: str) -> Iterator[str | None]:
    """The same expression without newlines, piece by piece; None where a newline could still match."""
    for token in _TOKEN.findall(regex):
        if token in _WITHOUT_NEWLINE:
            yield _WITHOUT_NEWLINE[token]
        elif token.startswith("[^"):
            yield _negated_class(token)
        elif token.startswith("(?"):
            yield _opening(token)
        elif token[0] in "[\\\n":
            yield None if _matches_newline(token) else token
        else:
            yield token


def _negated_class(token: str) -> str | None:
    if token[-2] != "-":
        return f"{token[:-1]}\\n]"
    return None if token[2] in "]-" else f"[^\\n{token[2:]}"  # behind a dash it would end a range


def _opening(token: str) -> str | None:
    """Comments and flags change how the rest must be read: leave those to the search by line."""
    is_plain = token in {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?P<", "(?P=", "(?(", "(?i:", "(?i)"}
    return token if is_plain else None


def _matches_newline(token: str) -> bool:
    if token in _ANCHORS or re.fullmatch(r"\\[1-9][0-9]?", token):
        return False  # a repeated group repeats what held no newline
    try:
        return re.compile(token).match("\n") is not None
    except re.error:
        return True
