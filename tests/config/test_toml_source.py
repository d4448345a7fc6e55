"""Positions in TOML: tomllib says what is valid and what it means, we say where it is written."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.config.source import Node
from assay.config.toml_source import parse_toml
from assay.errors import ConfigError

EXAMPLE = '''\
title = "x"  # a comment = 3
a.b . "c d" = [1, [ 2,
  # a comment with ] and "quotes"
  3 ], {k = 'v', deep.er = true},]

  [table]
date = 1979-05-27 07:32:00
text = """
[not.a.header]
key = 1 \\"" ""\\" """""
raw = \'\'\'it's ''quoted\'\'\'\'\'
['table'."in ner"]
é_is_quoted.x = {}
[[many]]
n = +1_000
[[many.sub]]
[[many]]
n = 0x1F
'''.replace("é_is_quoted", '"é"')


def walk(node: Node, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], str]:
    """Path → position of the value; with "key" at its end, of the key."""
    found = {path: _at(node.position)}
    for entry in node.items():
        found[(*path, entry.key, "key")] = _at(entry.position)
        found |= walk(entry.node, (*path, entry.key))
    for index, element in enumerate(node.elements()):
        found |= walk(element, (*path, index))
    return found


def _at(position: Any) -> str:
    return f"{position.line}:{position.column}"


def test_every_key_and_value_knows_where_it_is_written() -> None:
    root = parse_toml(EXAMPLE, "f.toml")
    assert root.value == tomllib.loads(EXAMPLE)
    found = walk(root)
    assert found["title", "key"] == "1:1"
    assert found["title",] == "1:9"
    assert found["a", "key"] == "2:1"
    assert found["a", "b", "key"] == "2:3"
    assert found["a", "b", "c d", "key"] == "2:7"
    assert found["a", "b", "c d", 0] == "2:16"
    assert found["a", "b", "c d", 1] == "2:19"
    assert found["a", "b", "c d", 1, 1] == "4:3"
    assert found["a", "b", "c d", 2] == "4:8"
    assert found["a", "b", "c d", 2, "k"] == "4:13"
    assert found["a", "b", "c d", 2, "deep", "er", "key"] == "4:23"
    assert found["table", "key"] == "6:4"
    assert found["table", "date"] == "7:8"
    assert found["table", "raw"] == "11:7"
    assert found["table", "in ner", "key"] == "12:10"
    assert found["table", "in ner", "é", "x"] == "13:9"
    assert found["many", "key"] == "14:3"
    assert found["many", 0, "n"] == "15:5"
    assert found["many", 0, "sub", 0] == "16:8"
    assert found["many", 1, "n", "key"] == "18:1"


def test_a_scalar_has_its_text_and_a_string_its_content() -> None:
    root = parse_toml("a = 1_000\nb = 'x'\nc = 2020-01-02 10:00:00 # when\n", "f.toml")
    assert [entry.node.text for entry in root.items()] == ["1_000", "x", "2020-01-02 10:00:00"]


@pytest.mark.parametrize(
    ("text", "where"), [("a = [", "1:"), ("\na = runs", "2:5"), ("a = 1\na = 2", "2:"), ("[" * 9999, "1:")]
)
def test_broken_toml_is_refused_with_its_place(text: str, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_toml(text, "f.toml")
    assert str(caught.value).startswith(f"f.toml:{where}")


@dataclass
class Writer:
    """Writes TOML and notes where each key and value begins."""

    draw: Any
    text: str = ""
    expected: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def note(self, *path: Any) -> None:
        line = self.text.count("\n") + 1
        self.expected[path] = f"{line}:{len(self.text) - (self.text.rfind(chr(10)) + 1) + 1}"

    def space(self) -> None:
        self.text += self.draw(st.sampled_from(["", " ", "\t "]))

    def rest(self, *, lines: bool = True) -> None:
        """What may stand between the elements of an array."""
        self.text += self.draw(st.sampled_from(["", " ", "\n", ' # x ] , } "\n\t', "\r\n"] if lines else ["", " "]))

    def key(self, key: str, style: str) -> None:
        bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
        literal = "'" not in key and all(char >= " " and char != "\x7f" for char in key)
        if style == "bare" and bare:
            self.text += key
        elif style == "literal" and literal:
            self.text += f"'{key}'"
        else:
            self.text += _quote(key)

    def pair(self, path: tuple[Any, ...], key: str, value: Any, *, inline: bool) -> None:
        parts, inner = [key], value
        while isinstance(inner, dict) and len(inner) == 1 and self.draw(st.booleans()):
            ((more, inner),) = inner.items()
            parts.append(more)
        for index, part in enumerate(parts):
            self.note(*path, *parts[: index + 1], "key")
            if index < len(parts) - 1:
                self.note(*path, *parts[: index + 1])
            self.key(part, self.draw(st.sampled_from(["bare", "literal", "basic"])))
            self.space()
            self.text += "." if index < len(parts) - 1 else "="
            self.space()
        self.value((*path, *parts), inner, inline=inline)

    def value(self, path: tuple[Any, ...], value: Any, *, inline: bool = False) -> None:
        self.note(*path)
        if isinstance(value, dict):
            self.text += "{"
            for number, (key, each) in enumerate(value.items()):
                self.text += "," * bool(number)
                self.rest(lines=False)
                self.pair(path, key, each, inline=True)
                self.rest(lines=False)
            self.text += "}"
        elif isinstance(value, list):
            self.text += "["
            for number, each in enumerate(value):
                self.text += "," * bool(number)
                self.rest(lines=not inline)
                self.value((*path, number), each, inline=inline)
                self.rest(lines=not inline)
            self.text += "]"
        elif isinstance(value, str):
            self.text += self.draw(st.sampled_from(_spellings(value, inline)))
        else:
            self.text += json.dumps(value)

    def table(self, path: tuple[Any, ...], table: dict[str, Any]) -> None:
        sections = {key: each for key, each in table.items() if isinstance(each, dict) and self.draw(st.booleans())}
        for key, each in table.items():
            if key not in sections:
                self.space()
                self.pair(path, key, each, inline=False)
                self.space()
                self.text += self.draw(st.sampled_from(["\n", "# c = [\n", "\r\n\n"]))
        for key, each in sections.items():
            self.text += "["
            for index, part in enumerate((*path, key)):
                self.space()
                if (*path, key)[: index + 1] not in self.expected:
                    self.note(*(*path, key)[: index + 1])
                    self.note(*(*path, key)[: index + 1], "key")
                self.key(part, "basic")
                self.text += "." * (index < len(path))
            self.text += "]\n"
            self.table((*path, key), each)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _spellings(text: str, inline: bool) -> list[str]:
    found = [_quote(text)]
    if "'" not in text and all(char >= " " and char != "\x7f" for char in text):
        found.append(f"'{text}'")
    if not inline:
        found += [f'"""\n{_quote(text)[1:-1]}"""', f'"""\\\n   {_quote(text)[1:-1]}\\\n"""']
        if "'''" not in text and "\r" not in text and all(char >= " " or char == "\n" for char in text + "x"):
            found += [f"'''\n{text}'''"] if not text.endswith("'") and "\x7f" not in text else []
    return found


strings = st.text(st.characters(exclude_categories=("Cs",)), max_size=6) | st.sampled_from(['"', "''", "[a]", "x = 1"])
scalars = st.integers(-99, 99) | st.booleans() | st.sampled_from([0.5, -1e30]) | strings
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3), max_leaves=6
)


@given(st.dictionaries(strings, values, max_size=4), st.data())
def test_positions_are_right_whatever_the_file(content: dict[str, Any], data: Any) -> None:
    writer = Writer(data.draw)
    writer.expected[()] = "1:1"
    writer.table((), content)
    root = parse_toml(writer.text, "f.toml")
    assert root.value == tomllib.loads(writer.text)
    assert walk(root) == writer.expected
