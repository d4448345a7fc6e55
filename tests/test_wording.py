"""Messages, help texts, comments, docstrings, identifiers and documents are in plain technical English.

Three lists. Phrases that no text may have (`is no duration` for `is not a duration`). Metaphors, which no identifier
may have either. In docstrings and comments also sentences whose subject is in the sentence before ("The same of …"),
pronouns of persons for code (who, nobody) and verbs of speaking for data (told, said, heard).
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
SOURCE, TESTS = TOP / "src" / "assay", TOP / "tests"

BANNED = re.compile(
    r"(?<!there )(?<!there\n)\bis\s+no\s+(?!longer\b|more\b)[a-z…]\w*"
    r"|\b("
    r"anew|meanwhile|mend(ed|ing|s)?"
    r"|laid\s+open|held\s+for\s+right|not\s+spoken\s+of|last\s+words|its\s+words"
    r"|of\s+(now|then)|says\s+no\s+[a-z]\w*"
    r"|doors?|attic|workshop|heritage|tellingness|chronicle"
    r")\b",
    re.IGNORECASE,
)
_METAPHORS = (
    "anew attic chronicle confess desk door heir heritage house laboratory meanwhile rooms stranger story twin unheard "
    "warden workbench workshop"
)
METAPHOR = re.compile(
    rf"(?<![A-Za-z])({'|'.join(f'[{w[0]}{w[0].upper()}]{w[1:]}' for w in _METAPHORS.split())})s?(?![a-z])"
)
_OPENING, _WORDS = (
    r"(the\s+same|as\s+above|ditto)\b",
    "(who(m|ever)?|somebody|nobody|anybody|everybody|told|said|heard)",
)
UNCLEAR = re.compile(rf"\A\s*{_OPENING}|(?<!`)\b{_WORDS}\b", re.IGNORECASE)
# To parse and tokenize all would take half a minute: what a module needs for one of these to be found.
_DOCSTRING = re.compile(r"^ *r?(\"\"\"|[\"'])(.+?)\1", re.MULTILINE | re.DOTALL)
_IN_COMMENT = re.compile(rf"#[#\s]*{_OPENING}|#.*\b{_WORDS}\b", re.IGNORECASE)
_PERSONS = re.compile(
    r"\b(users?|people|persons?|owners?|readers?|authors?|colleagues?|contributors?|those)\s+\Z", re.IGNORECASE
)


def find_banned(text: str, first_line: int = 1) -> list[str]:
    """`line: phrase` of each, also where a line break separates the words of a phrase."""
    return [f"{first_line + text.count(chr(10), 0, m.start())}: {m[0]!r}" for m in BANNED.finditer(text)]


def find_unclear(text: str, first_line: int = 1) -> list[str]:
    """`line: word` in the text of a docstring or of a comment; `people who` is allowed."""
    found = [m for m in UNCLEAR.finditer(text) if not _PERSONS.search(text[: m.start()])]
    return [f"{first_line + text.count(chr(10), 0, m.start())}: {m[0].strip()!r}" for m in found]


def strings_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Messages, help texts and docstrings; the parts of an f-string as one, with `…` for each value."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


def find_unclear_sentences(text: str) -> list[str]:
    """In the docstrings and comments of a module. Lines of comments that follow each other are one text."""
    found = []
    is_suspect = any(UNCLEAR.search(match[2]) for match in _DOCSTRING.finditer(text))
    for node in ast.walk(ast.parse(text)) if is_suspect else ():
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                found += find_unclear(first.value.value, first.lineno)
    for token in tokenize.generate_tokens(io.StringIO(text).readline) if _IN_COMMENT.search(text) else ():
        if token.type == tokenize.COMMENT:
            found += find_unclear(token.string.lstrip("#"), token.start[0])
    return found


def find_metaphors(text: str) -> list[str]:
    """In names, comments and docstrings; strings without a space are keys, formats and data of tests."""
    found = []
    is_suspect = any(word[1:] in text for word in _METAPHORS.split()) and METAPHOR.search(text)
    for token in tokenize.generate_tokens(io.StringIO(text).readline) if is_suspect else ():
        if token.type in (tokenize.NAME, tokenize.COMMENT) or (token.type == tokenize.STRING and '"""' in token.string):
            found += [f"{token.start[0]}: {m[0]!r}" for m in METAPHOR.finditer(token.string)]
    return found


def modules() -> Iterator[Path]:
    """Each module of ours but this one."""
    yield from (path for top in (SOURCE, TESTS) for path in sorted(top.rglob("*.py")) if path != Path(__file__))


def test_strings_are_plain_english() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for line, each in strings_of(ast.parse(text)) if BANNED.search(text) else ():
            found += [f"{path}:{phrase}" for phrase in find_banned(each, line)] if " " in each else []
    assert found == []


def test_comments_docstrings_and_names_are_plain_english() -> None:
    found = []
    for path in modules():
        text = path.read_text(encoding="utf-8")
        found += [f"{path}:{each}" for each in (*find_unclear_sentences(text), *find_metaphors(text))]
    assert found == []


def test_the_configuration_is_plain_english() -> None:
    text = (TOP / "pyproject.toml").read_text(encoding="utf-8")
    assert [m[0] for m in METAPHOR.finditer(text)] + find_banned(text) == []


def test_documents_are_plain_english() -> None:
    paths = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted((TOP / "docs").rglob("*.md"))]
    assert [f"{path}:{each}" for path in paths for each in find_banned(path.read_text(encoding="utf-8"))] == []


BANNED_ONES = "'2x' is no duration|'2x' is no …|the index is\n    no index|made anew|what happened meanwhile"
BANNED_ONES += "|its last words: killed|with the code of now|the front door|Mended by hand"


@pytest.mark.parametrize("text", BANNED_ONES.split("|"))
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


UNCLEAR_ONES = [
    "# the same of a run",
    "def f():\n    'The same, for a run.'",
    "x = 1  # nobody reads it",
    "# what was told\n",
]
CLEAR_ONES = ["# at the same time", "x = 'who said it'", "# users who read it", "said = 1"]


@pytest.mark.parametrize("text", UNCLEAR_ONES + CLEAR_ONES)
def test_unclear_sentences_are_found_and_clear_ones_left_alone(text: str) -> None:
    assert len(find_unclear_sentences(text)) == (text in UNCLEAR_ONES)


@pytest.mark.parametrize(
    ("text", "count"), [("open_desk()", 1), ("class Twins: ...", 1), ("# rooms", 1), ("history", 0)]
)
def test_a_metaphor_is_found_in_a_name(text: str, count: int) -> None:
    assert len(find_metaphors(text)) == count
