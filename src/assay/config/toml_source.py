"""TOML with positions: parses a text to the same nodes as YAML.

tomllib decides what is valid, and every single value. Since tomllib gives no positions, a text that is valid is scanned
again for the positions of keys and values.
"""

from __future__ import annotations

import re
import tomllib

from assay.config.source import UNSET, Item, Kind, Node, build_error
from assay.values.study import Position

_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")  # blanks, line breaks and comments
_KEY = re.compile(r"[A-Za-z0-9_-]+|\"(?:[^\"\\]|\\.)*\"|'[^']*'")
_STRING = re.compile(
    r"\"\"\"(?:[^\"\\]|\\(?s:.)|\"(?!\"\")|\"\"(?!\"))*\"{3,5}"
    r"|'''(?:[^']|'(?!'')|''(?!'))*'{3,5}"
    r"|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'"
)
_PLAIN = re.compile(r"\d{4}-\d\d-\d\d \d\d:[^\s,\]}#]*|[^\s,\]}#]+")  # a date may have a space before its time


class TomlNode(Node):
    """A value in a TOML file."""

    __slots__ = ("_at", "_text")

    mapping_name = "a table"

    def __init__(self, kind: Kind, position: Position, text: str = "") -> None:
        self.kind = kind
        self.duplicates, self._entries, self._elements = [], [], []
        self._at = position
        self._text = text
        self._value = tomllib.loads(f"value = {text}")["value"] if kind == "scalar" else UNSET

    @property
    def position(self) -> Position:
        return self._at

    @property
    def text(self) -> str:
        return str(self._value) if isinstance(self._value, str) else self._text


def parse_toml(text: str, file: str) -> Node:
    """Parse the whole file as a mapping. Raises ConfigError for invalid TOML."""
    try:
        tomllib.loads(text)
        return _Scanner(text, file).scan()
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        last = text.rstrip(" \t\r\n").split("\n")  # tomllib may report "at end of document"
        line, column = (int(found[1]), int(found[2])) if found else (len(last), len(last[-1]) + 1)
        message = re.sub(r"\s*\(at .*\)$", "", str(error))
        hint = "strings need quotes in TOML"
        raise build_error(f"broken TOML: {message}", Position(file, line, column), hint) from None
    except RecursionError:
        raise build_error("nested too deeply", Position(file, 1, 1), "use fewer levels") from None


class _Scanner:
    """Scans text that is known to be valid."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._index = 0
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]  # index of each line
        self._line = 0

    def scan(self) -> Node:
        root: Node = TomlNode("mapping", self._position())
        table = root
        while not self._skip(_BLANK):
            if self._text.startswith("[", self._index):
                table = self._scan_header(root)
            else:
                self._scan_pair(table)
        return root

    def _scan_header(self, root: Node) -> Node:
        is_array = self._text.startswith("[[", self._index)
        self._index += 1 + is_array
        *outer, (key, position) = self._scan_key()
        self._index += 1 + is_array
        table = root
        for part, at in outer:
            table = _open_table(table, part, at)
        if not is_array:
            return _open_table(table, key, position)
        array, element = table.find(key), TomlNode("mapping", position)
        if array is None:
            array = TomlNode("sequence", position)
            table.items().append(Item(key, position, array))
        array.elements().append(element)
        return element

    def _scan_pair(self, table: Node) -> None:
        *outer, (key, position) = self._scan_key()
        self._index += 1  # the equals sign
        for part, at in outer:
            table = _open_table(table, part, at)
        table.items().append(Item(key, position, self._scan_value()))

    def _scan_key(self) -> list[tuple[str, Position]]:
        """Return the parts of a dotted key, and stop at the character after the key."""
        parts = []
        while True:
            self._skip(_SPACE)
            position, written = self._position(), self._take(_KEY)
            parts.append((next(iter(tomllib.loads(f"{written} = 0"))) if written[0] in "\"'" else written, position))
            self._skip(_SPACE)
            if not self._text.startswith(".", self._index):
                return parts
            self._index += 1

    def _scan_value(self) -> TomlNode:
        self._skip(_SPACE)
        position, first = self._position(), self._text[self._index]
        if first == "[":
            array = TomlNode("sequence", position)
            while self._enter("]"):
                array.elements().append(self._scan_value())
            return array
        if first == "{":
            table = TomlNode("mapping", position)
            while self._enter("}"):
                self._scan_pair(table)
            return table
        return TomlNode("scalar", position, self._take(_STRING if first in "\"'" else _PLAIN))

    def _enter(self, end: str) -> bool:
        """Move past the bracket or comma to the next element; return False at the end."""
        if self._text[self._index] in "[{,":
            self._index += 1
        self._skip(_BLANK)
        if self._text[self._index] == ",":
            return self._enter(end)
        if self._text[self._index] != end:
            return True
        self._index += 1
        return False

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        """Skip a match; return whether the text ends there."""
        found = pattern.match(self._text, self._index)
        self._index = found.end() if found else self._index
        return self._index >= len(self._text)

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._index)
        assert found is not None
        self._index = found.end()
        return found[0]

    def _position(self) -> Position:
        while self._line + 1 < len(self._lines) and self._lines[self._line + 1] <= self._index:
            self._line += 1
        return Position(self._file, self._line + 1, self._index - self._lines[self._line] + 1)


def _open_table(table: Node, key: str, position: Position) -> Node:
    """Return the table under a key: the existing one, the newest of an array of tables, or a new one."""
    found = table.find(key)
    if found is None:
        found = TomlNode("mapping", position)
        table.items().append(Item(key, position, found))
    return found.elements()[-1] if found.kind == "sequence" else found
