"""Messages, help texts, docstrings and documents are in plain technical English.

A list of metaphors and inversions is banned (`is no duration` for `is not a duration`). Identifiers are not checked:
a string without a space is a name, a key or a format.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
SOURCE = TOP / "src" / "assay"

BANNED = re.compile(
    r"(?<!there )(?<!there\n)\bis\s+no\s+(?!longer\b|more\b)[a-z…]\w*"
    r"|\b("
    r"anew|meanwhile|mend(ed|ing|s)?"
    r"|laid\s+open|held\s+for\s+right|not\s+spoken\s+of|last\s+words|its\s+words"
    r"|of\s+(now|then)"
    r"|doors?|attic|workshop|heritage|tellingness|chronicle"
    r")\b",
    re.IGNORECASE,
)


def find_banned(text: str, first_line: int = 1) -> list[str]:
    """`line: phrase` of each, also where a line break separates the words of a phrase."""
    return [f"{first_line + text.count(chr(10), 0, m.start())}: {m[0]!r}" for m in BANNED.finditer(text)]


def strings_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Messages, help texts and docstrings; the parts of an f-string as one, with `…` for each value."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


def test_strings_are_plain_english() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for line, text in strings_of(ast.parse(path.read_text(encoding="utf-8"))):
            found += [f"{path}:{each}" for each in find_banned(text, line)] if " " in text else []
    assert found == []


def test_documents_are_plain_english() -> None:
    paths = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted((TOP / "docs").rglob("*.md"))]
    assert [f"{path}:{each}" for path in paths for each in find_banned(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "text",
    [
        "'2x' is no duration",
        "'2x' is no …",
        "the index is\n    no index",
        "made anew",
        "what happened meanwhile",
        "its last words: killed",
        "with the code of now",
        "the front door",
        "Mended by hand",
    ],
)
def test_a_banned_phrase_is_found(text: str) -> None:
    assert len(find_banned(text)) == 1


@pytest.mark.parametrize(
    "text",
    ["'2x' is not a duration", "there is no run", "it is no longer there", "outdoors", "of nowhere", "the amendment"],
)
def test_plain_english_is_left_alone(text: str) -> None:
    assert find_banned(text) == []


def test_parts_of_an_f_string_are_read_together() -> None:
    tree = ast.parse('say(f"{name!r} is "\n    f"no class", key="door")')
    assert [text for _, text in strings_of(tree) if find_banned(text) and " " in text] == ["… is no class"]
